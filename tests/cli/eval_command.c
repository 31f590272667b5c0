/* `kvant eval` as its users meet it: tables, files, errors. */
#include "support/run_command.h"
#include "support/write_dump.h"
#include "support/test.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAMPLE       KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors"
#define SAMPLE_PRE   KVANT_TEST_SOURCE_DIR "/samples/sample_pre.safetensors"
#define SAMPLE_PROSE KVANT_TEST_SOURCE_DIR "/samples/sample_prose.safetensors"

static char folder[] = "/tmp/kvant-eval-XXXXXX";
static char *out, *err;

#define EVAL(...) run((const char *const[]){KVANT_TEST_COMMAND, "eval", __VA_ARGS__, NULL})

static int run(const char *const argv[]) {
    free(out);
    free(err);
    return kvant_run(argv, &out, &err);
}

/* Exit status 3, nothing on stdout, and one line on stderr that contains `part`. */
static void assert_refused(int status, const char *part) {
    if (status != 3) fail_msg("exit status %d, not 3: %s%s", status, out, err);
    assert_string_equal(out, "");
    kvant_assert_contains(err, part);
    assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1);
}

/* A file in the test's folder; the path lives until the next call but one. */
static const char *path(const char *name) {
    static char paths[4][128];
    static int next;
    next = (next + 1) % 4;
    (void)snprintf(paths[next], sizeof paths[next], "%s/%s", folder, name);
    return paths[next];
}

static const char *write_file(const char *name, const char *text) {
    const char *file = path(name);
    FILE *stream = fopen(file, "w");
    assert_non_null(stream);
    fputs(text, stream);
    assert_int_equal(fclose(stream), 0);
    return file;
}

static char *read_file(const char *file) {
    FILE *stream = fopen(file, "rb");
    assert_non_null(stream);
    struct stat info;
    assert_int_equal(fstat(fileno(stream), &info), 0);
    char *text = calloc(1, (size_t)info.st_size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)info.st_size, stream), info.st_size);
    (void)fclose(stream);
    return text;
}

static const char *dump_named(const kvant_test_dump *dump, const char *name) {
    const char *file = path(name);
    kvant_test_dump_write(dump, file);
    return file;
}

/* ---- What it prints ------------------------------------------------------------------------------------ */

static const char *line_of(const char *text, const char *start) {
    for (const char *line = text; line != NULL && *line != '\0';
         line = strchr(line, '\n'), line += line != NULL)
        if (strncmp(line, start, strlen(start)) == 0) return line;
    fail_msg("no line starts with \"%s\" in:\n%s", start, text);
    return NULL;
}

static void the_table_is_aligned_and_fits(void **state) {
    (void)state;
    assert_int_equal(EVAL("kivi", "uniform", "raw", SAMPLE, "--layers"), 0);
    assert_string_equal(err, "");
    kvant_assert_contains(out, "sample: 4 layers, 384 tokens, 16 query rows, keys after RoPE\n");
    const char *header = line_of(out, "pipeline");
    size_t width = strcspn(header, "\n");
    assert_true(width <= 130);
    const char *const names[] = {"kivi ", "uniform ", "raw "};
    for (int i = 0; i < 3; i++) assert_int_equal(strcspn(line_of(out, names[i]), "\n"), width);
    kvant_assert_contains(out, "kivi on sample, layer by layer\n");
    kvant_assert_contains(out, "attention error");
}

static void two_dumps_have_a_table_each(void **state) {
    (void)state;
    assert_int_equal(EVAL("raw", SAMPLE, "kivi", SAMPLE_PROSE), 0);
    const char *first = strstr(out, "sample: "), *second = strstr(out, "sample_prose: ");
    assert_true(first != NULL && second != NULL && first < second);
    assert_true(line_of(second, "raw ") < line_of(second, "kivi "));
}

static const json_t *result_at(const json_t *root, size_t i) {
    const json_t *result = json_array_get(json_object_get(root, "results"), i);
    assert_non_null(result);
    return result;
}

static double number_at(const json_t *object, const char *name, const char *part) {
    const json_t *number = json_object_get(object, name);
    if (part != NULL) number = json_object_get(number, part);
    if (!json_is_number(number)) fail_msg("%s %s is not a number", name, part != NULL ? part : "");
    return json_number_value(number);
}

static void json_has_every_number(void **state) {
    (void)state;
    assert_int_equal(EVAL("raw", "kivi", "--json", SAMPLE), 0);
    json_t *root = json_loads(out, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "command")), "eval");
    const json_t *raw = result_at(root, 0), *kivi = result_at(root, 1);
    assert_string_equal(json_string_value(json_object_get(raw, "pipeline")), "raw");
    assert_string_equal(json_string_value(json_object_get(kivi, "source")), "kivi");
    static const char *const spreads[] = {"key_nmse",           "value_nmse",
                                          "attention_key_only", "attention_value_only",
                                          "attention_both",     "attention_kl"};
    for (size_t i = 0; i < sizeof spreads / sizeof spreads[0]; i++) {
        kvant_assert_close(number_at(raw, spreads[i], "median"), 0, 0); /* raw keeps the dump's own type */
        double median = number_at(kivi, spreads[i], "median"), worst = number_at(kivi, spreads[i], "worst");
        assert_true(median > 0 && worst >= median);
        assert_true(number_at(kivi, spreads[i], "worst_layer") < 4);
    }
    kvant_assert_close(number_at(raw, "payload_bits", NULL), 16, 0);
    assert_true(number_at(kivi, "all_in_bits", NULL) > number_at(kivi, "payload_bits", NULL));
    assert_true(number_at(kivi, "key_cosine", "worst") < 1);
    assert_true(number_at(kivi, "worst_head", "error") >= number_at(kivi, "attention_both", "worst"));
    assert_true(number_at(kivi, "decode_gb_per_second", NULL) > 0);
    const json_t *layers = json_object_get(kivi, "layers");
    assert_int_equal(json_array_size(layers), 4);
    const json_t *attention = json_object_get(json_array_get(layers, 2), "attention");
    assert_int_equal(json_array_size(json_object_get(attention, "heads")), 9);
    json_decref(root);
}

static void a_name_that_is_no_utf8_does_not_spoil_the_document(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    const char *dump = dump_named(&d, "\xff\xfe.safetensors");
    assert_int_equal(EVAL("raw", dump, "--json"), 0);
    json_t *root = json_loads(out, 0, NULL);
    assert_non_null(root);
    const json_t *name = json_object_get(json_array_get(json_object_get(root, "dumps"), 0), "name");
    assert_string_equal(json_string_value(name), "??");
    json_decref(root);
}

static void csv_has_a_line_per_result_or_layer(void **state) {
    (void)state;
    for (int layers = 0; layers < 2; layers++) {
        assert_int_equal(layers ? EVAL("raw", "kivi", "--csv", SAMPLE, SAMPLE_PRE, "--layers")
                                : EVAL("raw", "kivi", "--csv", SAMPLE, SAMPLE_PRE),
                         0);
        size_t lines = 0, columns = 0;
        for (const char *line = out; *line != '\0'; line += strcspn(line, "\n") + 1, lines++) {
            size_t commas = 0;
            for (const char *c = line; *c != '\n'; c++) commas += *c == ',';
            if (lines == 0) columns = commas;
            assert_int_equal(commas, columns);
        }
        assert_int_equal(lines, 1 + 2 * 2 * (layers ? 4 : 1));
        kvant_assert_contains(out, layers ? "pipeline,dump,layer," : "pipeline,dump,tokens,");
    }
}

static void missing_columns_are_named(void **state) {
    (void)state;
    assert_int_equal(EVAL("kivi", SAMPLE_PRE), 0);
    kvant_assert_contains(out, "keys before RoPE\n");
    kvant_assert_contains(out, "-: sample_pre has no values, queries: not measured");
    assert_int_equal(EVAL("kivi", SAMPLE_PRE, "--json"), 0);
    json_t *root = json_loads(out, 0, NULL);
    assert_true(json_is_null(json_object_get(result_at(root, 0), "attention_both")));
    assert_true(json_is_null(json_object_get(result_at(root, 0), "value_nmse")));
    assert_true(json_is_null(json_object_get(result_at(root, 0), "worst_head")));
    assert_true(number_at(result_at(root, 0), "key_nmse", "median") > 0);
    json_decref(root);
}

static void a_pipeline_that_codes_little_is_marked(void **state) {
    (void)state;
    const char *ini =
        write_file("long.ini", "[pipeline]\nname = long\nblock_tokens = 256\nsinks = 0\n[layers]\n"
                               "key = kivi\nvalue = kivi\n");
    assert_int_equal(EVAL(ini, "kivi", SAMPLE), 0);
    kvant_assert_contains(out, "long* ");
    kvant_assert_contains(out, "*: long codes 256 of 384 tokens");
    assert_null(strstr(out, "kivi*"));
    assert_int_equal(EVAL(ini, SAMPLE, "--json"), 0);
    kvant_assert_contains(out, "\"coded_under_90_percent\": true");
}

static void names_that_are_equal_are_told_apart(void **state) {
    (void)state;
    const char *a = write_file("a.ini", "[pipeline]\nname = same\n[layers]\nkey = kivi\nvalue = kivi\n");
    const char *b = write_file("b.ini", "[pipeline]\nname = same\n[layers]\nkey = kivi\nvalue = raw\n");
    assert_int_equal(EVAL(a, b, "raw", SAMPLE), 0);
    (void)line_of(out, a);
    (void)line_of(out, b);
    (void)line_of(out, "raw ");
}

/* Everything but times. */
static void strip_times(json_t *value) {
    static const char *const times[] = {"encode_seconds", "decode_seconds", "encode_gb_per_second",
                                        "decode_gb_per_second"};
    const char *key;
    size_t index;
    json_t *child;
    for (int i = 0; i < 4 && json_is_object(value); i++) json_object_del(value, times[i]);
    if (json_is_object(value)) json_object_foreach(value, key, child) strip_times(child);
    if (json_is_array(value)) json_array_foreach(value, index, child) strip_times(child);
}

static void threads_change_no_number(void **state) {
    (void)state;
    json_t *roots[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(EVAL("kivi", "--json", SAMPLE, "--threads", i == 0 ? "1" : "3"), 0);
        roots[i] = json_loads(out, 0, NULL);
        strip_times(roots[i]);
    }
    assert_true(json_equal(roots[0], roots[1]));
    json_decref(roots[0]);
    json_decref(roots[1]);
}

/* ---- The page ------------------------------------------------------------------------------------------ */

/* Every tag that opens is closed in order; ids occur once; nothing is fetched from anywhere. */
static void assert_well_formed(const char *page) {
    char stack[64][16];
    int depth = 0;
    for (const char *c = strchr(page, '<'); c != NULL; c = strchr(c + 1, '<')) {
        if (c[1] == '!') continue;
        char name[16] = "";
        bool closing = c[1] == '/';
        const char *start = c + 1 + closing, *end = strchr(c, '>');
        assert_non_null(end);
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(start, " \n\t/>"), start);
        if (end[-1] == '/' || strcmp(name, "meta") == 0 || strcmp(name, "br") == 0) continue;
        if (!closing) {
            assert_true(depth < 64);
            strcpy(stack[depth++], name);
        } else if (depth == 0 || strcmp(stack[--depth], name) != 0) {
            fail_msg("</%s> closes <%s>", name, depth >= 0 ? stack[depth] : "nothing");
        }
    }
    assert_int_equal(depth, 0);
    for (const char *c = strstr(page, " id="); c != NULL; c = strstr(c + 1, " id=")) {
        char id[64];
        (void)snprintf(id, sizeof id, "%.*s", (int)(5 + strcspn(c + 5, "'\"")) + 1, c);
        if (strstr(c + 1, id) != NULL) fail_msg("twice:%s", id);
    }
    for (const char *c = strstr(page, "http"); c != NULL; c = strstr(c + 1, "http"))
        assert_true(strncmp(c, "http://www.w3.org/", 18) == 0); /* XML name spaces */
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "<link"));
    assert_null(strstr(page, "src="));
    assert_null(strstr(page, "@import"));
}

static void the_page_is_whole_and_escaped(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    d.model = "a <b> & \"c\" 'd'";
    const char *ini = write_file("it's <x>&y_z.ini", "[layers]\nkey = kivi\nvalue = raw\n");
    const char *dump = dump_named(&d, "model.safetensors"), *page_file = path("page.html");
    const char *twin = write_file("twin.ini", "[layers]\nkey = raw\nvalue = kivi\n");
    int status = EVAL(ini, twin, "kivi", dump, SAMPLE_PRE, "--html", page_file);
    if (status != 0) fail_msg("%s", err);
    char *page = read_file(page_file);
    assert_well_formed(page);
    kvant_assert_contains(page, "<!DOCTYPE html>");
    kvant_assert_contains(page, "a &lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
    kvant_assert_contains(page, "it&#39;s &lt;x&gt;&amp;y_z");
    assert_null(strstr(page, "<x>"));
    int plots = 0;
    for (const char *c = strstr(page, "<svg"); c != NULL; c = strstr(c + 1, "<svg")) plots++;
    assert_int_equal(plots, 4);
    kvant_assert_contains(page, "layer by layer");
    free(page);
}

static void an_error_free_pipeline_still_makes_a_page(void **state) {
    (void)state;
    const char *page_file = path("raw.html");
    assert_int_equal(EVAL("raw", SAMPLE, "--html", page_file), 0);
    char *page = read_file(page_file);
    assert_well_formed(page);
    kvant_assert_contains(page, "Nothing to draw");
    free(page);
}

static void without_gnuplot_the_package_is_named(void **state) {
    (void)state;
    const char *page = path("none.html");
    assert_refused(run((const char *const[]){"env", "PATH=/nonexistent", KVANT_TEST_COMMAND, "eval", "kivi",
                                             SAMPLE, "--html", page, NULL}),
                   "gnuplot-nox");
    assert_int_equal(access(page, F_OK), -1);
    assert_refused(EVAL("kivi", SAMPLE, "--html", "/nonexistent/page.html"),
                   "/nonexistent/page.html: cannot write");
}

/* ---- What it refuses ----------------------------------------------------------------------------------- */

static void wrong_usage_is_exit_status_two(void **state) {
    (void)state;
    assert_int_equal(EVAL("kivi"), 2);
    kvant_assert_contains(err, "no dump");
    assert_int_equal(EVAL(SAMPLE), 2);
    kvant_assert_contains(err, "no pipeline");
    assert_int_equal(EVAL("kivi", SAMPLE, "--layer"), 2);
    kvant_assert_contains(err, "did you mean --layers");
    assert_int_equal(EVAL("kivi", SAMPLE, "--html"), 2);
    assert_int_equal(EVAL("kivi", SAMPLE, "--csv", "--json"), 2);
    assert_int_equal(EVAL("kivi", SAMPLE, "--threads", "0"), 2);
}

static void unknown_codecs_and_files_are_named(void **state) {
    (void)state;
    int status = EVAL("kivy", SAMPLE);
    assert_int_equal(status, 3);
    assert_string_equal(out, "");
    kvant_assert_contains(err, "kivy");
    kvant_assert_contains(err, "kivi");
    assert_refused(EVAL("nothing.ini", SAMPLE), "nothing.ini");
    assert_refused(EVAL("kivi", "/nonexistent.safetensors"), "/nonexistent.safetensors");
    const char *ini = write_file("bad.ini", "[layers]\nkey = kivi\nvalu = raw\n");
    assert_refused(EVAL(ini, SAMPLE), "bad.ini:3:");
    ini = write_file("far.ini", "[layers 9]\nkey = raw\nvalue = raw\n");
    assert_refused(EVAL(ini, SAMPLE), "far.ini:1:");
}

static void damaged_dumps_are_refused(void **state) {
    (void)state;
    const char *whole = SAMPLE, *cut = path("cut.safetensors");
    FILE *from = fopen(whole, "rb"), *to = fopen(cut, "wb");
    static char bytes[700000];
    assert_true(from != NULL && to != NULL);
    size_t size = fread(bytes, 1, sizeof bytes, from);
    static const size_t sizes[] = {0, 1, 7, 8, 100, 3000, 699999};
    (void)fclose(from);
    (void)fclose(to);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        to = fopen(cut, "wb");
        assert_int_equal(fwrite(bytes, 1, sizes[i] < size ? sizes[i] : size, to), sizes[i]);
        (void)fclose(to);
        assert_refused(EVAL("kivi", cut), "cut.safetensors");
    }
}

static void bad_numbers_are_named(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    d.poisoned = "layers.1.key";
    d.token = 147; /* in the raw tail, where no encoder would meet it */
    d.head = 1;
    d.channel = 30;
    d.poison = NAN;
    const char *dump = dump_named(&d, "nan.safetensors");
    assert_refused(EVAL("kivi", dump), "nan.safetensors: layers.1.key: NaN at token 147, head 1, channel 30");
    d.token = 5;
    d.poison = INFINITY;
    dump = dump_named(&d, "infinite.safetensors");
    assert_refused(EVAL("kivi", dump), "layers.1.key: an infinity at token 5, head 1, channel 30");
    const char *ini =
        write_file("saturate.ini", "[pipeline]\nname = saturate\non_nonfinite = saturate\n[layers]\n"
                                   "key = raw\nvalue = raw\n");
    assert_int_equal(EVAL(ini, dump), 0);
    kvant_assert_contains(out,
                          "!: saturate: keys of 1 layers (the first is 1) had numbers that are not finite");
}

static void wrong_shapes_are_refused(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    d.tokens = 0;
    d.has_queries = false;
    assert_refused(EVAL("kivi", dump_named(&d, "zero.safetensors")), "0 tokens");
    /* Keys and values with other head counts, by hand: [2, 1, 2] and [2, 2, 2] of F16. */
    static const char header[] =
        "{\"layers.0.key\":{\"dtype\":\"F16\",\"shape\":[2,1,2],\"data_offsets\":[0,8]},"
        "\"layers.0.value\":{\"dtype\":\"F16\",\"shape\":[2,2,2],\"data_offsets\":[8,24]},"
        "\"__metadata__\":{\"format\":\"kvant-kv/1\"}}";
    const char *file = path("heads.safetensors");
    FILE *stream = fopen(file, "wb");
    assert_non_null(stream);
    unsigned char size[8] = {(unsigned char)(sizeof header - 1)};
    static const char data[24];
    assert_true(sizeof header - 1 < 256);
    fwrite(size, 1, sizeof size, stream);
    fwrite(header, 1, sizeof header - 1, stream);
    fwrite(data, 1, sizeof data, stream);
    assert_int_equal(fclose(stream), 0);
    assert_refused(EVAL("kivi", file), "heads");
}

static void what_a_codec_refuses_names_pipeline_and_dump(void **state) {
    (void)state;
    const char *ini =
        write_file("odd.ini", "[pipeline]\nblock_tokens = 48\n[codec k]\nplugin = kivi\ngroup = 32\n"
                              "[layers]\nkey = k\nvalue = raw\n");
    int status = EVAL(ini, SAMPLE);
    assert_int_equal(status, 3);
    kvant_assert_contains(err, "odd.ini");
    kvant_assert_contains(err, "block_tokens");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_aligned_and_fits),
        cmocka_unit_test(two_dumps_have_a_table_each),
        cmocka_unit_test(json_has_every_number),
        cmocka_unit_test(a_name_that_is_no_utf8_does_not_spoil_the_document),
        cmocka_unit_test(csv_has_a_line_per_result_or_layer),
        cmocka_unit_test(missing_columns_are_named),
        cmocka_unit_test(a_pipeline_that_codes_little_is_marked),
        cmocka_unit_test(names_that_are_equal_are_told_apart),
        cmocka_unit_test(threads_change_no_number),
        cmocka_unit_test(the_page_is_whole_and_escaped),
        cmocka_unit_test(an_error_free_pipeline_still_makes_a_page),
        cmocka_unit_test(without_gnuplot_the_package_is_named),
        cmocka_unit_test(wrong_usage_is_exit_status_two),
        cmocka_unit_test(unknown_codecs_and_files_are_named),
        cmocka_unit_test(damaged_dumps_are_refused),
        cmocka_unit_test(bad_numbers_are_named),
        cmocka_unit_test(wrong_shapes_are_refused),
        cmocka_unit_test(what_a_codec_refuses_names_pipeline_and_dump),
    };
    if (mkdtemp(folder) == NULL) return 1;
    int failures = kvant_run_tests(tests, argc, argv);
    (void)run((const char *const[]){"rm", "-rf", folder, NULL});
    free(out);
    free(err);
    return failures;
}
