/* core/plugin/schema: text to value and back, errors that help. */
#include "support/test.h"

#include "plugin/schema.h"

#include <fenv.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const metas[] = {"f16", "bf16", "f32"};
static const int64_t groups[] = {32, 64, 128};

enum { BITS, GROUP, CLIP, META, CENTER, TAGS, COUNT };

static const kvant_param params[COUNT] = {
    {.struct_size = sizeof(kvant_param),
     .type = KVANT_PARAM_INTEGER,
     .name = "bits",
     .unit = "bits",
     .help = "of a code",
     .integer_min = -3,
     .integer_max = 8,
     .integer_default = 2},
    {.struct_size = sizeof(kvant_param),
     .type = KVANT_PARAM_INTEGER,
     .name = "group",
     .unit = "tokens",
     .help = "tokens of a group",
     .integers = groups,
     .integer_count = 3,
     .integer_min = 1,
     .integer_max = 128,
     .integer_default = 64},
    {.struct_size = sizeof(kvant_param),
     .type = KVANT_PARAM_NUMBER,
     .name = "clip",
     .unit = "",
     .help = "a limit",
     .number_min = -0.5,
     .number_max = 4,
     .number_default = 0.1},
    {.struct_size = sizeof(kvant_param),
     .type = KVANT_PARAM_CHOICE,
     .name = "meta",
     .unit = "",
     .help = "of scales",
     .choices = metas,
     .choice_count = 3,
     .integer_default = 1},
    {.struct_size = sizeof(kvant_param),
     .type = KVANT_PARAM_SWITCH,
     .name = "center",
     .unit = "",
     .help = "or not",
     .integer_default = 1},
    {.struct_size = sizeof(kvant_param),
     .type = KVANT_PARAM_TABLE,
     .name = "tags",
     .unit = "bits",
     .help = "widths",
     .integer_min = 2,
     .integer_max = 4},
};
static const kvant_descriptor descriptor = {
    .struct_size = sizeof descriptor, .name = "tester", .params = params, .param_count = COUNT};

static kvant_status parse(int param, const char *text, kvant_value *value, kvant_diag *diag) {
    *diag = (kvant_diag){.struct_size = sizeof *diag};
    *value = (kvant_value){.integer = -77, .number = -77};
    return kvant_schema_parse(&params[param], text, value, diag);
}

static void accept(int param, const char *text, const char *canonical) {
    kvant_value value, again;
    kvant_diag diag;
    char out[64], back[64];
    assert_int_equal(parse(param, text, &value, &diag), KVANT_OK);
    assert_int_equal(value.given, 1);
    assert_int_equal(kvant_schema_check(&params[param], &value, &diag), KVANT_OK);
    assert_int_equal(kvant_schema_text(&params[param], &value, out, sizeof out), strlen(canonical));
    assert_string_equal(out, canonical);
    assert_int_equal(parse(param, out, &again, &diag), KVANT_OK);
    assert_true(again.integer == value.integer && again.number == value.number);
    (void)kvant_schema_text(&params[param], &again, back, sizeof back);
    assert_string_equal(back, canonical);
}

static void refuse(int param, const char *text, kvant_status status, const char *part, const char *other) {
    kvant_value value;
    kvant_diag diag;
    assert_int_equal(parse(param, text, &value, &diag), status);
    assert_true(value.integer == -77 && value.number == -77); /* untouched */
    assert_string_equal(diag.key, params[param].name);
    kvant_assert_contains(diag.message, part);
    kvant_assert_contains(diag.message, other);
    assert_int_equal(kvant_schema_parse(&params[param], text, &value, NULL), status);
}

static void integers(void **state) {
    (void)state;
    accept(BITS, "8", "8");
    accept(BITS, "-3", "-3");
    accept(BITS, "004", "4");
    accept(BITS, "-0", "0");
    accept(GROUP, "128", "128");
    refuse(BITS, "9", KVANT_ERROR_VALUE, "-3 to 8 bits", "nearest is 8");
    refuse(BITS, "-4", KVANT_ERROR_VALUE, "-3 to 8", "nearest is -3");
    refuse(GROUP, "48", KVANT_ERROR_VALUE, "32, 64 or 128 tokens", "nearest is 32");
    refuse(GROUP, "100", KVANT_ERROR_VALUE, "group", "nearest is 128");
    refuse(GROUP, "9223372036854775807", KVANT_ERROR_VALUE, "32, 64 or 128", "nearest is 128");
    refuse(BITS, "9223372036854775808", KVANT_ERROR_VALUE, "-3 to 8", "9223372036854775808");
    static const char *const wrong[] = {"",    " 2",  "2 ", "+2",  "0x2", "2.0",
                                        "2e0", "two", "-",  "--2", "2,",  "inf"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refuse(BITS, wrong[i], KVANT_ERROR_VALUE, "decimal digits", wrong[i]);
}

static void numbers(void **state) {
    (void)state;
    accept(CLIP, "1", "1");
    accept(CLIP, "0.1", "0.1");
    accept(CLIP, "1e-3", "0.001");
    accept(CLIP, "2.50", "2.5");
    accept(CLIP, "-0.0", "0");
    kvant_value zero;
    kvant_diag diag;
    assert_int_equal(parse(CLIP, "-0", &zero, &diag), KVANT_OK);
    assert_false(signbit(zero.number));
    accept(CLIP, "0.30000000000000004", "0.30000000000000004");
    accept(CLIP, "3.9999999999999996", "3.9999999999999996");
    accept(CLIP, "4.94065645841246544e-324", "5e-324");
    refuse(CLIP, "4.0000000000000009", KVANT_ERROR_VALUE, "-0.5 to 4", "nearest is 4");
    refuse(CLIP, "-1", KVANT_ERROR_VALUE, "-0.5 to 4", "nearest is -0.5");
    refuse(CLIP, "1e999", KVANT_ERROR_VALUE, "-0.5 to 4", "1e999");
    static const char *const wrong[] = {"",   " 1", "1 ",  "+1", "0x1p3", "nan",  "inf", "infinity",
                                        ".5", "5.", "1,5", "1e", "1e+",   "1.e3", "e3",  "1.5f"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refuse(CLIP, wrong[i], KVANT_ERROR_VALUE, "decimal number", wrong[i]);
}

/* A comma as decimal point in the application's locale changes nothing. (Debian's C.UTF-8 is always there;
 * others may not be, and then there is nothing to test.) */
static void locale(void **state) {
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (setlocale(LC_ALL, names[i]) != NULL) break;
    accept(CLIP, "2.5", "2.5");
    (void)setlocale(LC_ALL, "C");
}

/* Nor does the caller's rounding mode: 0.1 is one double. */
static void rounding_mode(void **state) {
    (void)state;
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (size_t i = 0; i < 3; i++) {
        kvant_value value = {0};
        char text[64] = "";
        assert_int_equal(fesetround(modes[i]), 0);
        kvant_status status = kvant_schema_parse(&params[CLIP], "0.30000000000000004", &value, NULL);
        (void)kvant_schema_text(&params[CLIP], &value, text, sizeof text);
        int after = fegetround();
        (void)fesetround(FE_TONEAREST);
        assert_int_equal(status, KVANT_OK);
        assert_true(value.number == 0x1.3333333333334p-2);
        assert_string_equal(text, "0.30000000000000004");
        assert_int_equal(after, modes[i]);
        accept(CLIP, "0.1", "0.1");
    }
}

static void choices(void **state) {
    (void)state;
    accept(META, "bf16", "bf16");
    accept(META, "f16", "f16");
    refuse(META, "b16", KVANT_ERROR_UNKNOWN_NAME, "f16, bf16 or f32", "nearest is");
    refuse(META, "F16", KVANT_ERROR_UNKNOWN_NAME, "f16, bf16 or f32", "nearest is f16");
    refuse(META, "", KVANT_ERROR_UNKNOWN_NAME, "f16, bf16 or f32", "meta");
    accept(CENTER, "yes", "yes");
    accept(CENTER, "no", "no");
    refuse(CENTER, "true", KVANT_ERROR_VALUE, "yes or no", "true");
    refuse(CENTER, "1", KVANT_ERROR_VALUE, "yes or no", "center");
}

static void tables(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_table_row row = {0};
    char text[64];
    refuse(TAGS, "4", KVANT_ERROR_SYNTAX, "section of its own", "2 to 4");
    assert_int_equal(kvant_schema_parse_row(&params[TAGS], "user.text", "4", &row, &diag), KVANT_OK);
    assert_string_equal(row.key, "user.text");
    assert_int_equal(row.value, 4);
    assert_int_equal(kvant_schema_parse_row(&params[TAGS], "user", "5", &row, &diag), KVANT_ERROR_VALUE);
    kvant_assert_contains(diag.message, "user = \"5\"");
    kvant_assert_contains(diag.message, "2 to 4 bits");
    assert_int_equal(kvant_schema_parse_row(&params[TAGS], "us er", "4", &row, &diag), KVANT_ERROR_SYNTAX);
    assert_int_equal(kvant_schema_parse_row(&params[TAGS], "", "4", &row, &diag), KVANT_ERROR_SYNTAX);
    assert_int_equal(kvant_schema_parse_row(&params[BITS], "a", "4", &row, &diag), KVANT_ERROR_SYNTAX);

    kvant_value value;
    kvant_schema_default(&params[TAGS], &value);
    assert_int_equal(kvant_schema_text(&params[TAGS], &value, text, sizeof text), 2);
    assert_string_equal(text, "{}");
    /* Order is a matter of spelling. */
    const kvant_table_row rows[] = {{"tool", 4}, {"a", 2}, {"system", 3}};
    value = (kvant_value){.rows = rows, .row_count = 3, .given = 1};
    assert_int_equal(kvant_schema_text(&params[TAGS], &value, text, sizeof text), 21);
    assert_string_equal(text, "{a=2,system=3,tool=4}");
    assert_int_equal(kvant_schema_check(&params[TAGS], &value, &diag), KVANT_OK);
    const kvant_table_row twice[] = {{"tool", 4}, {"tool", 2}};
    value = (kvant_value){.rows = twice, .row_count = 2};
    assert_int_equal(kvant_schema_check(&params[TAGS], &value, &diag), KVANT_ERROR_DUPLICATE);
}

static void text_is_cut_like_snprintf(void **state) {
    (void)state;
    kvant_value value = {.integer = 1};
    char text[4] = "xxx";
    assert_int_equal(kvant_schema_text(&params[META], &value, text, sizeof text), 4);
    assert_string_equal(text, "bf1");
    assert_int_equal(kvant_schema_text(&params[META], &value, NULL, 0), 4);
    assert_int_equal(kvant_schema_range(&params[META], NULL, 0), strlen("f16, bf16 or f32"));
}

static void defaults(void **state) {
    (void)state;
    kvant_value value = {.given = 1, .row_count = 9};
    static const char *const want[COUNT] = {"2", "64", "0.1", "bf16", "yes", "{}"};
    for (uint32_t i = 0; i < COUNT; i++) {
        char text[64];
        kvant_schema_default(&params[i], &value);
        assert_int_equal(value.given, 0);
        assert_int_equal(value.row_count, 0);
        assert_int_equal(kvant_schema_check(&params[i], &value, NULL), KVANT_OK);
        (void)kvant_schema_text(&params[i], &value, text, sizeof text);
        assert_string_equal(text, want[i]);
    }
}

static void values_by_hand(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_value value = {.integer = 3};
    assert_int_equal(kvant_schema_check(&params[META], &value, &diag), KVANT_ERROR_VALUE);
    assert_int_equal(kvant_schema_check(&params[GROUP], &value, &diag), KVANT_ERROR_VALUE);
    assert_int_equal(kvant_schema_check(&params[CENTER], &value, &diag), KVANT_ERROR_VALUE);
    value.integer = -1;
    assert_int_equal(kvant_schema_check(&params[META], &value, &diag), KVANT_ERROR_VALUE);
    value.number = NAN;
    assert_int_equal(kvant_schema_check(&params[CLIP], &value, &diag), KVANT_ERROR_VALUE);
    value.number = INFINITY;
    assert_int_equal(kvant_schema_check(&params[CLIP], &value, &diag), KVANT_ERROR_VALUE);
}

static void names(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    uint32_t index = 99;
    assert_int_equal(kvant_schema_find(&descriptor, "meta", &index, &diag), KVANT_OK);
    assert_int_equal(index, META);
    assert_int_equal(kvant_schema_find(&descriptor, "metta", &index, &diag), KVANT_ERROR_UNKNOWN_NAME);
    kvant_assert_contains(diag.message, "did you mean \"meta\"?");
    kvant_assert_contains(diag.message, "tester");
    assert_string_equal(diag.key, "metta");
    assert_int_equal(kvant_schema_find(&descriptor, "quux", &index, &diag), KVANT_ERROR_UNKNOWN_NAME);
    kvant_assert_contains(diag.message, "bits, group, clip, meta, center, tags");
    const kvant_descriptor none = {.struct_size = sizeof none, .name = "none"};
    assert_int_equal(kvant_schema_find(&none, "bits", &index, &diag), KVANT_ERROR_UNKNOWN_NAME);
    kvant_assert_contains(diag.message, "no parameters");
    assert_null(kvant_schema_param(&none, 0));
    assert_null(kvant_schema_param(&descriptor, COUNT));
}

/* An array of a later, longer kvant_param is walked by the size that its first element states. */
static void longer_elements(void **state) {
    (void)state;
    static struct {
        kvant_param param;
        uint64_t later[3];
    } longer[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        longer[i].param = params[i];
        longer[i].param.struct_size = sizeof longer[i];
    }
    kvant_descriptor d = descriptor;
    d.params = &longer[0].param;
    kvant_diag diag = {.struct_size = sizeof diag};
    uint32_t index = 0;
    assert_int_equal(kvant_schema_vet(&d, &diag), KVANT_OK);
    assert_int_equal(kvant_schema_find(&d, "tags", &index, &diag), KVANT_OK);
    assert_int_equal(index, TAGS);
    assert_ptr_equal(kvant_schema_param(&d, TAGS), &longer[TAGS].param);
}

static void ranges(void **state) {
    (void)state;
    static const char *const want[COUNT] = {"-3 to 8",          "32, 64 or 128", "-0.5 to 4",
                                            "f16, bf16 or f32", "yes or no",     "a section of key = 2 to 4"};
    for (uint32_t i = 0; i < COUNT; i++) {
        char text[64];
        assert_int_equal(kvant_schema_range(&params[i], text, sizeof text), strlen(want[i]));
        assert_string_equal(text, want[i]);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers),
        cmocka_unit_test(numbers),
        cmocka_unit_test(locale),
        cmocka_unit_test(rounding_mode),
        cmocka_unit_test(choices),
        cmocka_unit_test(tables),
        cmocka_unit_test(text_is_cut_like_snprintf),
        cmocka_unit_test(defaults),
        cmocka_unit_test(values_by_hand),
        cmocka_unit_test(names),
        cmocka_unit_test(longer_elements),
        cmocka_unit_test(ranges),
    };
    return kvant_run_tests(tests, argc, argv);
}
