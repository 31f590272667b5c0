/* kvant info, as the real command, on a codec whose numbers can be worked out by hand: rows of 8 or 4 bits
 * with one f32 scale each (tests/bad_plugins/honest.h). */
#include "support/run_command.h"
#include "support/test.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HONEST      KVANT_TEST_BUILD_DIR "/tests/bad_plugins/honest"
#define PLUGIN_PATH "--plugin-path", HONEST

static char *out, *err;

static int run(const char *const argv[]) {
    free(out);
    free(err);
    return kvant_run(argv, &out, &err);
}

static void text(void **state) {
    (void)state;
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, PLUGIN_PATH, "info", "honest", NULL}), 0);
    assert_string_equal(err, "");
    kvant_assert_contains(out, "honest 1.0.0: Rows to 8 or 4 bits, for tests\n");
    kvant_assert_contains(out, "bits           integer: 4 or 8 bits; default 8\n");
    kvant_assert_contains(out, "bits of a code\n");
    kvant_assert_contains(out, "head_dim    1 to 4096\n");
    kvant_assert_contains(out, "rows        f32, f16, bf16\n");
    kvant_assert_contains(out, "format      HEST, version 1\n");
    kvant_assert_contains(out, "deviations\n  none\n");
    kvant_assert_contains(out, HONEST "/kvant_honest.so\n");
    assert_null(strstr(out, "extent bytes"));
    /* By file, with nothing in the path. */
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "info", HONEST "/kvant_honest.so", NULL}),
                     0);
    kvant_assert_contains(out, "honest 1.0.0: ");
}

/* K and V of different widths, an odd one, 4 bits: the sizes of both sides, by hand. */
static void sizes(void **state) {
    (void)state;
    assert_int_equal(
        run((const char *const[]){KVANT_TEST_COMMAND, PLUGIN_PATH, "--json", "info", "honest", "--set",
                                  "bits=4", "--block-tokens", "48", "--geometry",
                                  "layers=2,kv_heads=3,q_heads=9,head_dim=46,value_dim=33,dtype=bf16,"
                                  "rope=gptj:1e4:32",
                                  NULL}),
        0);
    json_t *codec = json_loads(out, 0, NULL);
    assert_non_null(codec);
    const char *bits = NULL, *preset = NULL;
    assert_int_equal(json_unpack(codec, "{s:[{s:s, s:s}]}", "parameters", "value", &bits, "default", &preset),
                     0);
    assert_string_equal(bits, "4");
    assert_string_equal(preset, "8");
    assert_int_equal(json_array_size(json_object_get(codec, "geometry")), 2);
    static const struct {
        const char *side;
        double dim, row_bytes;
    } want[2] = {{"key", 46, 23}, {"value", 33, 17}};
    for (size_t i = 0; i < 2; i++) {
        const char *side = NULL;
        json_int_t tokens = 0, bytes = 0, multiple = 0;
        double payload = 0, all_in = 0, all_in_max = 0;
        assert_int_equal(json_unpack(json_array_get(json_object_get(codec, "geometry"), i),
                                     "{s:s, s:I, s:I, s:I, s:f, s:f, s:f}", "side", &side, "block_tokens",
                                     &tokens, "extent_bytes_max", &bytes, "block_multiple", &multiple,
                                     "payload_bits", &payload, "all_in_bits", &all_in, "all_in_bits_max",
                                     &all_in_max),
                         0);
        assert_string_equal(side, want[i].side);
        assert_int_equal(tokens, 48);
        assert_int_equal(multiple, 1);
        assert_int_equal(bytes, 48 * 3 * (4 + (int)want[i].row_bytes));
        kvant_assert_close(payload, 4, 0);
        kvant_assert_close(all_in, 8 * (4 + want[i].row_bytes) / want[i].dim, 1e-12);
        kvant_assert_close(all_in_max, all_in, 0);
    }
    json_decref(codec);
}

static void usual_block(void **state) {
    (void)state;
    assert_int_equal(
        run((const char *const[]){KVANT_TEST_COMMAND, PLUGIN_PATH, "info", "honest", "--geometry",
                                  "rope=none,dtype=f32,head_dim=64,q_heads=2,kv_heads=2,layers=1", NULL}),
        0);
    kvant_assert_contains(out, "\nkey\n  block tokens          64\n");
    kvant_assert_contains(out, "\nvalue\n");
    kvant_assert_contains(out, "extent bytes          8704\n");
    kvant_assert_contains(out, "all-in bits/element   8.5\n");
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

#define GOOD "layers=1,kv_heads=2,q_heads=4,head_dim=64,dtype=f16,rope=none"

static void geometry_errors(void **state) {
    (void)state;
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        {"", "\"\" is not NAME=VALUE"},
        {"layers", "\"layers\" is not NAME=VALUE"},
        {GOOD ",", "\"\" is not NAME=VALUE"},
        {"layers=1, kv_heads=2", "there is no part \" kv_heads\""},
        {"layer=1", "did you mean layers?"},
        {GOOD ",layers=2", "layers is said twice"},
        {"layers=1", "kv_heads is missing"},
        {"layers=1,kv_heads=2,q_heads=4,head_dim=64,dtype=f16", "rope is missing"},
        {"layers=1,kv_heads=2,q_heads=4,head_dim=64,rope=none", "dtype is missing"},
        {"layers=0", "layers: \"0\" is not allowed: it takes 1 to 4096"},
        {"layers=99999999999999999999", "layers: \"99999999999999999999\" is not allowed"},
        {"layers=1e3", "layers: \"1e3\" is not an integer"},
        {"kv_heads=-1", "kv_heads: \"-1\" is not allowed"},
        {"layers=1,kv_heads=4,q_heads=6,head_dim=64,dtype=f16,rope=none",
         "q_heads: 6 is not a multiple of kv_heads = 4"},
        {"dtype=f8", "dtype: \"f8\" is not allowed: it takes f32, f16 or bf16"},
        {"rope=neo:10000", "there is no style \"neo\"; it takes none, neox or gptj"},
        {"rope=neox", "rope: it takes none, or a style and theta"},
        {"rope=none:10000", "rope: it takes none, or a style and theta"},
        {"rope=neox:", "rope: \"\" is not a decimal number"},
        {"rope=neox:0", "rope: \"0\" is not allowed"},
        {"rope=neox:1e4:", "rope: \"\" is not an integer"},
        {"rope=neox:1e4:0", "rope: \"0\" is not allowed"},
        {"layers=1,kv_heads=2,q_heads=4,head_dim=64,dtype=f16,rope=neox:1e4:66",
         "rotary_dim 66 is above head_dim = 64"},
        {"layers=1,kv_heads=2,q_heads=4,head_dim=64,dtype=f16,rope=neox:1e4:7",
         "rope: 7 channels cannot turn"},
        {"layers=1,kv_heads=2,q_heads=4,head_dim=33,dtype=f16,rope=neox:1e4",
         "rope: 33 channels cannot turn"},
        {"layers=1,kv_heads=2,q_heads=4,head_dim=4097,dtype=f16,rope=none", "at most 4096 channels"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status = run((const char *const[]){KVANT_TEST_COMMAND, PLUGIN_PATH, "info", "honest",
                                               "--geometry", cases[i].text, NULL});
        if (status != 3) print_error("%s: %d\n", cases[i].text, status);
        assert_int_equal(status, 3);
        kvant_assert_contains(err, cases[i].part);
    }
}

static void usage_and_names(void **state) {
    (void)state;
    static const struct {
        const char *argv[12];
        int status;
        const char *part;
    } cases[] = {
        {{KVANT_TEST_COMMAND, "info"}, 2, "it takes one codec"},
        {{KVANT_TEST_COMMAND, "info", "a", "b"}, 2, "it takes one codec"},
        {{KVANT_TEST_COMMAND, "info", "--geometri", "x", "honest"}, 2, "there is no option --geometri"},
        {{KVANT_TEST_COMMAND, "info", "honest", "--set"}, 2, "--set takes a value"},
        {{KVANT_TEST_COMMAND, "info", "honest", "--block-tokens", "64"},
         2,
         "says nothing without --geometry"},
        {{KVANT_TEST_COMMAND, "info", "honest", "--geometry", GOOD, "--block-tokens", "0"}, 2, "from 1 to"},
        {{KVANT_TEST_COMMAND, "info", "honest", "--geometry", GOOD, "--block-tokens", "64x"}, 2, "from 1 to"},
        {{KVANT_TEST_COMMAND, PLUGIN_PATH, "info", "honets"},
         3,
         "there is no codec \"honets\"; did you mean \"honest\"?"},
        {{KVANT_TEST_COMMAND, PLUGIN_PATH, "info", "honest", "--set", "bits"}, 3, "KEY=VALUE, not \"bits\""},
        {{KVANT_TEST_COMMAND, PLUGIN_PATH, "info", "honest", "--set", "bit=4"}, 3, "did you mean \"bits\"?"},
        {{KVANT_TEST_COMMAND, PLUGIN_PATH, "info", "honest", "--set", "bits=5"},
         3,
         "4 or 8 bits; the nearest is 4"},
        {{KVANT_TEST_COMMAND, PLUGIN_PATH, "info", "honest", "--set", "bits=4", "--set", "bits=8"},
         3,
         "bits twice"},
        {{KVANT_TEST_COMMAND, "info", "./no/kvant_x.so"}, 3, "No such file"},
        {{"env", "KVANT_ISA=v33", KVANT_TEST_COMMAND, PLUGIN_PATH, "info", "honest"}, 3, "KVANT_ISA: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status = run(cases[i].argv);
        if (status != cases[i].status) print_error("case %zu: %d, %s\n", i, status, err);
        assert_int_equal(status, cases[i].status);
        kvant_assert_contains(err, cases[i].part);
        assert_string_equal(out, "");
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(text),
        cmocka_unit_test(sizes),
        cmocka_unit_test(usual_block),
        cmocka_unit_test(geometry_errors),
        cmocka_unit_test(usage_and_names),
    };
    int result = kvant_run_tests(tests, argc, argv);
    free(out);
    free(err);
    return result;
}
