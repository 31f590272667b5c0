/* Pipelines from text: what the grammar refuses, with its line and its words, and what it takes. */
#include "support/test.h"
#include "support/tester.h"

#include "pipeline/pipeline.h"

#include <kvant/kvant.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bad_text {
    const char *text;
    kvant_status status;
    int line;
    const char *says; /* a part of the message */
} bad_text;

#define TEN    "0123456789"
#define FIFTY  TEN TEN TEN TEN TEN
#define LAYERS "[layers]\nkey = tester\nvalue = tester\n"

static const bad_text bad_texts[] = {
    /* lines */
    {"[pipeline]\nname = " FIFTY FIFTY FIFTY TEN TEN TEN TEN "1\n" LAYERS, KVANT_ERROR_SYNTAX, 2,
     "at most 197"},
    {"; " FIFTY FIFTY FIFTY FIFTY "\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "202 characters"},
    {"[codec " FIFTY "]\nplugin = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "at most 49"},
    {"[layers 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]\nkey = tester\n", KVANT_ERROR_SYNTAX, 1,
     "use two sections"},
    {"[pipeline]\n" FIFTY " = 3\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "50 characters; at most 49"},
    {"block_tokens = 64\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "before any [section]"},
    {"\n; a comment\n\nname = x\n" LAYERS, KVANT_ERROR_SYNTAX, 4, "before any [section]"},
    {LAYERS "[pipeline\nname = x\n", KVANT_ERROR_SYNTAX, 4, "lacks its ]"},
    {LAYERS "[layers 0-1\nkey = tester\n", KVANT_ERROR_SYNTAX, 4, "lacks its ]"},
    {"[pipeline] name = x\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "behind the ]"},
    {"[pipeline]x\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "behind the ]"},
    {"[pipeline];x\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "behind the ]"},
    {"[pipeline] # x\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "begins no comment here"},
    {"[]\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "needs a name"},
    {"[   ]\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "needs a name"},
    {"[[pipeline]]\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "behind the ]"},
    {"[a[b]\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "holds no \"[\""},
    {"[layers ; all]\nkey = tester\n", KVANT_ERROR_SYNTAX, 1, "holds no \";\""},
    {" [pipeline]\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "begins with a blank"},
    {"[pipeline]\nname = a\n b\n" LAYERS, KVANT_ERROR_SYNTAX, 3, "begins with a blank"},
    {"[pipeline]\nname = a\n\tsinks = 3\n" LAYERS, KVANT_ERROR_SYNTAX, 3, "begins with a blank"},
    {"[pipeline]\nname\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "lacks a ="},
    {"[pipeline]\nname : x\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "lacks a ="},
    {"[pipeline]\nname:x = 3\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "is no key"},
    {"[pipeline]\nblock tokens = 3\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "is no key"},
    {"[pipeline]\nname ; x = 3\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "is no key"},
    {"[pipeline]\n= 3\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "no key before the ="},
    {"[pipeline]\nname =\n" LAYERS, KVANT_ERROR_VALUE, 2, "name has no value"},
    {"[pipeline]\nname = ; none\n" LAYERS, KVANT_ERROR_VALUE, 2, "name has no value"},
    {"[pipeline]\nsinks = 4 # four\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "begins with \" ;\""},
    {"[pipeline]\nname = a\vb\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "control character 0x0b"},
    {"[pipeline]\rname = a\r" LAYERS, KVANT_ERROR_SYNTAX, 1, "control character 0x0d"},
    {"[pipeline]\nname = a\xff\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "not UTF-8"},
    {"[pipeline]\nname = a\xc0\xaf\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "byte 9 of the line is not UTF-8"},
    {"[pipeline]\nname = a\xed\xa0\x80\n" LAYERS, KVANT_ERROR_SYNTAX, 2, "not UTF-8"},
    {"\xff\xfe[\0p\0", KVANT_ERROR_SYNTAX, 0, "UTF-16"},
    /* twice */
    {"[pipeline]\nsinks = 1\nname = x\nsinks = 1\n" LAYERS, KVANT_ERROR_DUPLICATE, 4,
     "sinks is here and in line 2"},
    {"[pipeline]\n[pipeline]\n" LAYERS, KVANT_ERROR_DUPLICATE, 2, "line 1"},
    {"[codec a]\nplugin = tester\n[codec  a ]\nplugin = tester\n" LAYERS, KVANT_ERROR_DUPLICATE, 3, "line 1"},
    {LAYERS "[layers 1]\nkey = tester\n[layers 1]\nvalue = tester\n", KVANT_ERROR_DUPLICATE, 6, "line 4"},
    {"[layers]\nkey = tester\nkey = tester\n", KVANT_ERROR_DUPLICATE, 3, "line 2"},
    /* sections */
    {"[pipelines]\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 1, "did you mean [pipeline]"},
    {"[layer 0]\nkey = tester\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 1, "did you mean [layers]"},
    {"[zzzzzzzz]\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 1, "[codec NAME]"},
    {"[Pipeline]\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 1, "did you mean [pipeline]"},
    {"[pipeline x]\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "without a word behind it"},
    {"[codec]\nplugin = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "a name of its own"},
    {"[codec 2k]\nplugin = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "a name of its own"},
    {"[codec a b]\nplugin = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "a name of its own"},
    {"[codec k]\nplugin = tester\n" LAYERS, KVANT_ERROR_CONFLICT, 1, "used by no [layers]"},
    {"[codec k]\nplugin = tester\n[tags x]\na = 1\n[layers]\nkey = k\nvalue = k\n", KVANT_ERROR_CONFLICT, 3,
     "used by no codec"},
    {"[codec k]\nplugin = tester\n[tagz x]\na = 1\n[layers]\nkey = k\nvalue = k\n", KVANT_ERROR_UNKNOWN_NAME,
     3, "did you mean [tags]"},
    {"", KVANT_ERROR_SYNTAX, 0, "no [layers] section"},
    {"[pipeline]\nname = x\n", KVANT_ERROR_SYNTAX, 0, "no [layers] section"},
    /* [pipeline] */
    {"[pipeline]\nblock_token = 64\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 2, "did you mean \"block_tokens\""},
    {"[pipeline]\nzzz = 64\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 2, "on_unsupported"},
    {"[pipeline]\nBlock_tokens = 64\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 2, "did you mean \"block_tokens\""},
    {"[pipeline]\nblock_tokens = 0\n" LAYERS, KVANT_ERROR_VALUE, 2, "1 to 65536"},
    {"[pipeline]\nblock_tokens = 65537\n" LAYERS, KVANT_ERROR_VALUE, 2, "1 to 65536"},
    {"[pipeline]\nblock_tokens = -64\n" LAYERS, KVANT_ERROR_VALUE, 2, "1 to 65536"},
    {"[pipeline]\nblock_tokens = 64.0\n" LAYERS, KVANT_ERROR_VALUE, 2, "not an integer"},
    {"[pipeline]\nblock_tokens = 0x40\n" LAYERS, KVANT_ERROR_VALUE, 2, "not an integer"},
    {"[pipeline]\nblock_tokens = 99999999999999999999\n" LAYERS, KVANT_ERROR_VALUE, 2, "1 to 65536"},
    {"[pipeline]\nblock_tokens = 64;x\n" LAYERS, KVANT_ERROR_VALUE, 2, "64;x"},
    {"[pipeline]\nsinks = 64\n" LAYERS, KVANT_ERROR_CONFLICT, 2, "fewer than block_tokens = 64"},
    {"[pipeline]\nsinks = 8\nblock_tokens = 8\n" LAYERS, KVANT_ERROR_CONFLICT, 2,
     "fewer than block_tokens = 8"},
    {"[pipeline]\nrecent = -1\n" LAYERS, KVANT_ERROR_VALUE, 2, "recent"},
    {"[pipeline]\nkey_center = mean\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 2, "none or artifact"},
    {"[pipeline]\nkey_center = artifact\n" LAYERS, KVANT_ERROR_CONFLICT, 2, "needs artifact = FILE"},
    {"[pipeline]\nartifact = a.safetensors\n" LAYERS, KVANT_ERROR_VALUE, 2, "relative path"},
    {"[pipeline]\non_nonfinite = saturated\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 2, "the nearest is saturate"},
    {"[pipeline]\non_unsupported = use\n" LAYERS, KVANT_ERROR_VALUE, 2, "the name of a codec"},
    {"[pipeline]\non_unsupported = raw\n" LAYERS, KVANT_ERROR_VALUE, 2, "the name of a codec"},
    {"[pipeline]\non_unsupported = use teste\n" LAYERS, KVANT_ERROR_PLUGIN_NOT_FOUND, 2, "tester"},
    {"[pipeline]\non_unsupported = use a b\n" LAYERS, KVANT_ERROR_VALUE, 2, "no codec's name"},
    /* [codec] */
    {"[codec k]\nbits = 2\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "lacks the line plugin"},
    {"[codec k]\nplugn = tester\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 2, "did you mean \"plugin\""},
    {"[codec k]\nplugin = teste\n" LAYERS, KVANT_ERROR_PLUGIN_NOT_FOUND, 2, "tester"},
    {"[codec k]\nplugin = ../tester\n" LAYERS, KVANT_ERROR_VALUE, 2, "no plugin's name"},
    {"[codec k]\nplugin = tester\nbit = 2\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 3, "did you mean \"bits\""},
    {"[codec k]\nbits = 5\nplugin = tester\n" LAYERS, KVANT_ERROR_VALUE, 2, "1, 2, 3, 4 or 8"},
    {"[codec k]\nplugin = tester\nbits = two\n" LAYERS, KVANT_ERROR_VALUE, 3, "not an integer"},
    {"[codec k]\nplugin = tester\ngroup = 1025\n" LAYERS, KVANT_ERROR_VALUE, 3, "the nearest is 1024"},
    {"[codec k]\nplugin = tester\nratio = 1e999\n" LAYERS, KVANT_ERROR_VALUE, 3, "ratio"},
    {"[codec k]\nplugin = tester\nratio = nan\n" LAYERS, KVANT_ERROR_VALUE, 3, "not a decimal number"},
    {"[codec k]\nplugin = tester\nratio = 0,5\n" LAYERS, KVANT_ERROR_VALUE, 3, "not a decimal number"},
    {"[codec k]\nplugin = tester\nratio = 10.5\n" LAYERS, KVANT_ERROR_VALUE, 3, "the nearest is"},
    {"[codec k]\nplugin = tester\nmeta = f17\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 3, "the nearest is f16"},
    {"[codec k]\nplugin = tester\nexact = true\n" LAYERS, KVANT_ERROR_VALUE, 3, "yes or no"},
    {"[codec k]\nplugin = tester\ntags = x\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 3, "no section [tags x]"},
    {"[codec k]\nplugin = tester\ntags = x\n[tags x]\na = 9\n" LAYERS, KVANT_ERROR_VALUE, 5, "0 to 8"},
    {"[codec k]\nplugin = tester\ntags = x\n[tags x]\na = 1\na = 2\n" LAYERS, KVANT_ERROR_DUPLICATE, 6,
     "line 5"},
    {"[codec k]\nplugin = tester_keys\nbits = 2\n" LAYERS, KVANT_ERROR_UNKNOWN_NAME, 3, "no parameters"},
    /* [layers] */
    {"[layers]\nkeys = tester\n", KVANT_ERROR_UNKNOWN_NAME, 2, "did you mean \"key\""},
    {"[layers]\nk = tester\n", KVANT_ERROR_UNKNOWN_NAME, 2, "key, value"},
    {"[layers]\n" LAYERS, KVANT_ERROR_DUPLICATE, 2, "line 1"},
    {"[layers 0]\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "says neither"},
    {"[layers]\nkey = tester bits=2\nvalue = tester\n", KVANT_ERROR_VALUE, 2, "[codec NAME] section"},
    {"[layers]\nkey = teste\nvalue = tester\n", KVANT_ERROR_PLUGIN_NOT_FOUND, 2, "tester"},
    {"[codec kay]\nplugin = tester\n[layers]\nkey = key\nvalue = kay\n", KVANT_ERROR_UNKNOWN_NAME, 4,
     "the section \"kay\""},
    {"[layers 3-1]\nkey = tester\n" LAYERS, KVANT_ERROR_VALUE, 1, "write 1-3"},
    {"[layers -1--3]\nkey = tester\n" LAYERS, KVANT_ERROR_VALUE, 1, "runs backwards"},
    {"[layers 0 - 3]\nkey = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "cannot read \"-\""},
    {"[layers 0-]\nkey = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "cannot read \"0-\""},
    {"[layers 0,,1]\nkey = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "layers are written like"},
    {"[layers 0,]\nkey = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "layers are written like"},
    {"[layers ,0]\nkey = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "layers are written like"},
    {"[layers 0-1-2]\nkey = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "layers are written like"},
    {"[layers all]\nkey = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "cannot read \"all\""},
    {"[layers -0]\nkey = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "cannot read \"-0\""},
    {"[layers 99999999999]\nkey = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "cannot read"},
    {"[layers 0..3]\nkey = tester\n" LAYERS, KVANT_ERROR_SYNTAX, 1, "cannot read"},
};

static void bad_texts_are_refused_by_name_and_line(void **state) {
    (void)state;
    int wrong = 0;
    tester_register();
    for (size_t i = 0; i < sizeof bad_texts / sizeof bad_texts[0]; i++) {
        const bad_text *bad = &bad_texts[i];
        size_t size = bad->text[0] == '\xff' ? 6 : strlen(bad->text);
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_pipeline *pipeline = NULL;
        kvant_status status = kvant_pipeline_parse(bad->text, size, "bad.ini", NULL, &pipeline, &diag);
        if (status == bad->status && diag.line == bad->line && strcmp(diag.file, "bad.ini") == 0 &&
            pipeline == NULL && strstr(diag.message, bad->says) != NULL && strchr(diag.message, '\n') == NULL)
            continue;
        /* A search for a plugin names its paths, one a line. */
        if (status == bad->status && status == KVANT_ERROR_PLUGIN_NOT_FOUND && diag.line == bad->line &&
            strstr(diag.message, bad->says) != NULL)
            continue;
        print_error("text %zu:\n%s\nstatus %d, line %d, \"%s\"; expected %d, line %d, \"%s\"\n", i, bad->text,
                    (int)status, (int)diag.line, diag.message, (int)bad->status, bad->line, bad->says);
        kvant_pipeline_free(pipeline);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

static kvant_pipeline *parse(const char *text, size_t size) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_pipeline *pipeline = NULL;
    if (kvant_pipeline_parse(text, size, "dir/good.ini", NULL, &pipeline, &diag) != KVANT_OK)
        fail_msg("line %d: %s", (int)diag.line, diag.message);
    return pipeline;
}

static void nul_bytes_are_refused(void **state) {
    (void)state;
    static const char text[] = "[pipeline]\nname = a\0b\n" LAYERS;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_pipeline *pipeline = NULL;
    assert_int_equal(kvant_pipeline_parse(text, sizeof text - 1, "n.ini", NULL, &pipeline, &diag),
                     KVANT_ERROR_SYNTAX);
    assert_int_equal(diag.line, 2);
    kvant_assert_contains(diag.message, "NUL");
}

static void the_longest_line_and_names_are_taken_whole(void **state) {
    (void)state;
    char text[1024], value[198], key[50];
    memset(value, 'v', 190);
    value[190] = '\0'; /* "name = " + 190 = 197 */
    memset(key, 'q', 49);
    key[49] = '\0';
    (void)snprintf(
        text, sizeof text,
        "[pipeline]\r\nname = %s\r\n[codec k]\nplugin=tester\ntags = t\n[tags t]\n%s = 7\n[layers]\nkey = "
        "k\nvalue = k",
        value, key);
    tester_register();
    kvant_pipeline *pipeline = parse(text, strlen(text));
    assert_string_equal(pipeline->name, value);
    assert_int_equal(pipeline->specs[0].values[5].row_count, 1);
    assert_string_equal(pipeline->specs[0].values[5].rows[0].key, key);
    assert_int_equal(pipeline->specs[0].values[5].rows[0].value, 7);
    kvant_pipeline_free(pipeline);
}

static void defaults_are_those_of_the_documentation(void **state) {
    (void)state;
    tester_register();
    kvant_pipeline *pipeline = parse(LAYERS, strlen(LAYERS));
    assert_string_equal(pipeline->name, "good");
    assert_int_equal(pipeline->block_tokens, 64);
    assert_int_equal(pipeline->sinks, 0);
    assert_int_equal(pipeline->recent, 0);
    assert_int_equal(pipeline->key_center, 0);
    assert_int_equal(pipeline->on_nonfinite, KVANT_ON_NONFINITE_ERROR);
    assert_int_equal(pipeline->replacement, KVANT_SPEC_NONE);
    assert_null(pipeline->artifact);
    kvant_pipeline_free(pipeline);
}

/* Byte order mark, CR LF, comments, tabs, order of sections, no newline at the end. */
static void every_spelling_is_read(void **state) {
    (void)state;
    static const char text[] = "\xef\xbb\xbf; first\r\n"
                               "[layers]; \r\n"
                               "\t# second\r\n"
                               "key\t=k2\t; third\r\n"
                               "value= tester\r\n"
                               "   \r\n"
                               "[ codec\tk2 ]  ; fourth\r\n"
                               "bits=4\r\n"
                               "ratio = -1.5e0 ;\r\n"
                               "plugin   =   tester\r\n"
                               "[pipeline]\r\n"
                               "name = a=b;c#d [e] \xc3\xa9  ; fifth = [x]\r\n"
                               "on_unsupported = use\t tester\r\n"
                               "sinks = 4";
    char bytes[sizeof text];
    memcpy(bytes, text, sizeof text);
    char *bad = strstr(bytes, "]; \r"); /* "];" is an error of its own: a comment needs a blank before it */
    bad[1] = ' ';
    bad[2] = ';';
    tester_register();
    kvant_pipeline *pipeline = parse(bytes, sizeof bytes - 1);
    assert_string_equal(pipeline->name, "a=b;c#d [e] \xc3\xa9");
    assert_int_equal(pipeline->sinks, 4);
    assert_int_equal(pipeline->spec_count, 2);
    assert_string_equal(pipeline->specs[0].name, "k2");
    assert_int_equal(pipeline->specs[0].values[0].integer, 4);
    assert_int_equal(pipeline->specs[0].values[0].given, 1);
    kvant_assert_close(pipeline->specs[0].values[2].number, -1.5, 0);
    assert_int_equal(pipeline->specs[0].values[1].integer, 32);
    assert_int_equal(pipeline->specs[0].values[1].given, 0);
    assert_int_equal(pipeline->rules[0].spec[KVANT_SIDE_KEY], 0);
    assert_int_equal(pipeline->rules[0].spec[KVANT_SIDE_VALUE], 1);
    assert_int_equal(pipeline->replacement, 1);
    kvant_pipeline_free(pipeline);
}

static void ranges_are_read_as_written(void **state) {
    (void)state;
    static const char text[] =
        "[layers]\nvalue = tester\nkey = tester\n[layers 0-3 7,-2 , -1  5--2]\nkey = tester\n";
    static const kvant_layer_range want[] = {{0, 3}, {7, 7}, {-2, -2}, {-1, -1}, {5, -2}};
    tester_register();
    kvant_pipeline *pipeline = parse(text, strlen(text));
    const kvant_layer_rule *rule = &pipeline->rules[1];
    assert_int_equal(rule->range_count, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(rule->ranges[i].first, want[i].first);
        assert_int_equal(rule->ranges[i].last, want[i].last);
    }
    assert_int_equal(rule->line, 4);
    assert_int_equal(rule->spec[KVANT_SIDE_VALUE], KVANT_SPEC_NONE);
    kvant_pipeline_free(pipeline);
}

static void files_are_read_and_refused_by_name(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_pipeline *pipeline = NULL;
    char file[] = "/tmp/kvant_pipeline_XXXXXX";
    int descriptor = mkstemp(file);
    assert_true(descriptor >= 0);
    FILE *stream = fdopen(descriptor, "w");
    fputs("[pipeline]\nartifact = means.safetensors\n" LAYERS, stream);
    fclose(stream);
    tester_register();
    assert_int_equal(kvant_pipeline_load(file, &pipeline, &diag), KVANT_OK);
    assert_string_equal(pipeline->artifact, "/tmp/means.safetensors");
    kvant_pipeline_free(pipeline);
    pipeline = NULL;
    remove(file);
    assert_int_equal(kvant_pipeline_load(file, &pipeline, &diag), KVANT_ERROR_IO);
    assert_string_equal(diag.file, file);
    kvant_assert_contains(diag.message, "No such file");
    assert_int_equal(kvant_pipeline_load("/tmp", &pipeline, &diag), KVANT_ERROR_IO);
    assert_int_equal(kvant_pipeline_load(NULL, &pipeline, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_pipeline_parse("", 0, NULL, NULL, &pipeline, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_pipeline_parse(NULL, 3, "x", NULL, &pipeline, &diag), KVANT_ERROR_ARGUMENT);
    assert_null(pipeline);
}

static void a_huge_text_is_refused(void **state) {
    (void)state;
    size_t size = KVANT_INI_SIZE_MAX + (size_t)1;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, '\n', size);
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_ini *ini = NULL;
    assert_int_equal(kvant_ini_parse(text, size, "big", &ini, &diag), KVANT_ERROR_SYNTAX);
    kvant_assert_contains(diag.message, "at most 1048576");
    assert_int_equal(kvant_ini_parse(text, size - 1, "big", &ini, &diag), KVANT_OK);
    assert_int_equal(ini->section_count, 0);
    kvant_ini_free(ini);
    free(text);
}

/* A hundred thousand mutations of a good text: an answer each time, and a line within the text. */
static void mutations_are_answered(void **state) {
    (void)state;
    static const char good[] =
        "[pipeline]\nname = x ; y\nblock_tokens = 64\n[codec k]\nplugin = tester\nbits = 2\ntags = "
        "t\n[tags t]\na = 1\n[layers 0-1, -1]\nkey = k\nvalue = k\n";
    static const char letters[] = "\0\n\r\t =;#[]-,:0123456789abckltgs\xff\xc3";
    uint64_t seed = 7;
    size_t taken = 0;
    tester_register();
    for (int round = 0; round < 100000; round++) {
        char text[sizeof good + 8];
        size_t size = sizeof good - 1;
        memcpy(text, good, size);
        for (uint64_t n = 1 + kvant_test_random(&seed) % 3; n > 0; n--)
            text[kvant_test_random(&seed) % size] = letters[kvant_test_random(&seed) % (sizeof letters - 1)];
        if (kvant_test_random(&seed) % 8 == 0) size = kvant_test_random(&seed) % size;
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_ini *ini = NULL;
        kvant_status status = kvant_ini_parse(text, size, "m", &ini, &diag);
        int lines = 1;
        for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
        if (status == KVANT_OK) {
            taken++;
            assert_non_null(ini);
        } else {
            assert_true(diag.line >= 1 && diag.line <= lines && diag.message[0] != '\0');
            assert_null(ini);
        }
        kvant_ini_free(ini);
    }
    assert_true(taken > 1000 && taken < 99000);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_texts_are_refused_by_name_and_line),
        cmocka_unit_test(nul_bytes_are_refused),
        cmocka_unit_test(the_longest_line_and_names_are_taken_whole),
        cmocka_unit_test(defaults_are_those_of_the_documentation),
        cmocka_unit_test(every_spelling_is_read),
        cmocka_unit_test(ranges_are_read_as_written),
        cmocka_unit_test(files_are_read_and_refused_by_name),
        cmocka_unit_test(a_huge_text_is_refused),
        cmocka_unit_test(mutations_are_answered),
    };
    return kvant_run_tests(tests, argc, argv);
}
