/* core/plugin/vet: every rule of plugin.h that can be seen without a call, one fault at a time. */
#include "support/test.h"

#include "plugin/schema.h"
#include "plugin/vet.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    (void)setup, (void)layout, (void)diag;
    return KVANT_ERROR_UNSUPPORTED;
}
static kvant_status open_it(const kvant_setup *setup, const kvant_layout *layout, void *state,
                            kvant_diag *diag) {
    (void)setup, (void)layout, (void)state, (void)diag;
    return KVANT_ERROR_UNSUPPORTED;
}
static void close_it(void *state) {
    (void)state;
}
static kvant_status encode(const void *state, kvant_encode_args *args) {
    (void)state, (void)args;
    return KVANT_ERROR_UNSUPPORTED;
}
static kvant_status decode(const void *state, const kvant_decode_args *args) {
    (void)state, (void)args;
    return KVANT_ERROR_UNSUPPORTED;
}

/* A plugin without a fault, fresh for each case to spoil. */
static const char *choices[3];
static int64_t integers[3];
static kvant_param params[3];
static kvant_descriptor descriptor;
static kvant_plugin plugin;

static void reset(void) {
    choices[0] = "f16", choices[1] = "bf16", choices[2] = "f32";
    integers[0] = -2, integers[1] = 4, integers[2] = 8;
    params[0] = (kvant_param){.struct_size = sizeof(kvant_param),
                              .type = KVANT_PARAM_INTEGER,
                              .name = "bits",
                              .unit = "bits",
                              .help = "of a code",
                              .integers = integers,
                              .integer_count = 3,
                              .integer_min = -2,
                              .integer_max = 8,
                              .integer_default = 4};
    params[1] = (kvant_param){.struct_size = sizeof(kvant_param),
                              .type = KVANT_PARAM_CHOICE,
                              .name = "meta",
                              .unit = "",
                              .help = "of scales",
                              .choices = choices,
                              .choice_count = 3,
                              .integer_default = 2,
                              .flags = KVANT_PARAM_READING | KVANT_PARAM_LATER};
    params[2] = (kvant_param){.struct_size = sizeof(kvant_param),
                              .type = KVANT_PARAM_NUMBER,
                              .name = "clip",
                              .unit = "",
                              .help = "a limit",
                              .number_min = -1,
                              .number_max = 1,
                              .number_default = 1};
    descriptor = (kvant_descriptor){.struct_size = sizeof descriptor,
                                    .format_id = 0x20574152,
                                    .format_version = 1,
                                    .sides = KVANT_SIDES_KEY,
                                    .dtypes = KVANT_DTYPES_F16,
                                    .head_dim_min = 1,
                                    .head_dim_max = 256,
                                    .head_dim_multiple = 1,
                                    .param_count = 3,
                                    .name = "tester",
                                    .version = "1.0.0",
                                    .title = "A test",
                                    .paper = "",
                                    .license = "Apache-2.0",
                                    .deviations = "",
                                    .params = params};
    plugin = (kvant_plugin){.struct_size = sizeof plugin,
                            .abi = KVANT_ABI,
                            .descriptor = &descriptor,
                            .plan = plan,
                            .open = open_it,
                            .close = close_it,
                            .encode = encode,
                            .decode = decode};
}

static void expect(kvant_status status, const char *part, int line) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status got = kvant_vet(&plugin, &diag);
    if (got != status) print_error("line %d: status %d, \"%s\"\n", line, got, diag.message);
    assert_int_equal(got, status);
    kvant_assert_contains_at(diag.message, part, __FILE__, line);
    assert_null(strchr(diag.message, '\n'));
    assert_int_equal(kvant_vet(&plugin, NULL), status);
    reset();
}

/* One fault, and what the message must say. */
#define BROKEN(fault, part)                                                                                  \
    do {                                                                                                     \
        fault;                                                                                               \
        expect(KVANT_ERROR_PLUGIN_BROKEN, (part), __LINE__);                                                 \
    } while (0)
#define OTHER_ABI(fault, part)                                                                               \
    do {                                                                                                     \
        fault;                                                                                               \
        expect(KVANT_ERROR_PLUGIN_ABI, (part), __LINE__);                                                    \
    } while (0)
#define FINE(change)                                                                                         \
    do {                                                                                                     \
        change;                                                                                              \
        expect(KVANT_OK, "", __LINE__);                                                                      \
    } while (0)

static void root(void **state) {
    (void)state;
    reset();
    FINE((void)0);
    BROKEN(plugin.struct_size = 0, "plugin.struct_size is 0");
    BROKEN(plugin.struct_size = sizeof plugin - 1, "plugin.struct_size is");
    FINE(plugin.struct_size = 4 * sizeof plugin);
    OTHER_ABI(plugin.abi = 0, "plugin.abi is 0.0");
    OTHER_ABI(plugin.abi = 2u << 16 | 5, "plugin.abi is 2.5 and this library takes 1.x");
    /* The version comes before sizes that only it gives a meaning. */
    OTHER_ABI((plugin.abi = 2u << 16, plugin.struct_size = 8), "plugin.abi is 2.0");
    FINE(plugin.abi = (uint32_t)KVANT_ABI_MAJOR << 16 | 0xffff);
    BROKEN(plugin.descriptor = NULL, "plugin.descriptor is NULL");
    BROKEN(plugin.plan = NULL, "plugin.plan is NULL");
    BROKEN(plugin.open = NULL, "plugin.open is NULL");
    BROKEN(plugin.close = NULL, "plugin.close is NULL");
    BROKEN(plugin.encode = NULL, "plugin.encode is NULL");
    BROKEN(plugin.decode = NULL, "plugin.decode is NULL");
}

static void description(void **state) {
    (void)state;
    reset();
    BROKEN(descriptor.struct_size = sizeof descriptor - 8, "descriptor.struct_size is");
    FINE(descriptor.struct_size = sizeof descriptor + 64);
    BROKEN(descriptor.name = NULL, "descriptor.name is NULL");
    static const char *const names[] = {"",    "Kivi", "2bit",      "_x",
                                        "a-b", "a b",  "k\xc3\xb6", "a23456789012345678901234567890123"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        BROKEN(descriptor.name = names[i], "descriptor.name is");
    FINE(descriptor.name = "a2345678901234567890123456789_12");
    BROKEN(descriptor.version = NULL, "descriptor.version is NULL");
    BROKEN(descriptor.version = "", "descriptor.version is empty");
    BROKEN(descriptor.title = NULL, "descriptor.title is NULL");
    BROKEN(descriptor.title = "two\nlines", "descriptor.title is not a line of UTF-8");
    BROKEN(descriptor.paper = NULL, "descriptor.paper is NULL");
    BROKEN(descriptor.paper = "\033[2J", "descriptor.paper is not a line of UTF-8");
    BROKEN(descriptor.license = NULL, "descriptor.license is NULL");
    BROKEN(descriptor.deviations = NULL, "descriptor.deviations is NULL");
    FINE(descriptor.deviations = "several\nlines");
    BROKEN(descriptor.deviations = "bell\a", "descriptor.deviations is not UTF-8");
    FINE(descriptor.title = "K\xc3\xb6ln \xe2\x86\x92 \xf0\x9f\x98\x80 \xed\x9f\xbf \xf4\x8f\xbf\xbf");
    static const char *const not_utf8[] = {"\xff",
                                           "\xc3",
                                           "\xc3(",
                                           "\xc0\x80",
                                           "\x80",
                                           "\xe0\x80\xaf",
                                           "\xed\xa0\x80",
                                           "\xe2\x86",
                                           "\xf0\x80\x80\x80",
                                           "\x7f",
                                           "\xf4\x90\x80\x80",
                                           "\xf5\x80\x80\x80",
                                           "a\xe2\x86"};
    for (size_t i = 0; i < sizeof not_utf8 / sizeof not_utf8[0]; i++)
        BROKEN(descriptor.title = not_utf8[i], "descriptor.title is not a line of UTF-8");
    BROKEN(descriptor.format_id = 0, "descriptor.format_id");
    BROKEN(descriptor.format_id = 0x41414107, "descriptor.format_id is 0x41414107");
    BROKEN(descriptor.format_id = 0x7f414141, "descriptor.format_id");
    BROKEN(descriptor.sides = 0, "descriptor.sides");
    BROKEN(descriptor.sides = 5, "descriptor.sides is 0x5");
    BROKEN(descriptor.dtypes = 0, "descriptor.dtypes");
    BROKEN(descriptor.dtypes = 1, "descriptor.dtypes is 0x1");
    BROKEN(descriptor.dtypes = 1u << KVANT_DTYPE_F64, "descriptor.dtypes");
    FINE(descriptor.requires_bits = KVANT_REQUIRES_TAGS);
    OTHER_ABI(descriptor.requires_bits = 1u << 7 | KVANT_REQUIRES_TAGS, "descriptor.requires_bits has 0x80");
    FINE(descriptor.offers_bits = UINT32_MAX);
}

static void head_dims(void **state) {
    (void)state;
    reset();
    BROKEN(descriptor.head_dim_min = 0, "min and multiple are at least 1");
    BROKEN(descriptor.head_dim_multiple = 0, "min and multiple are at least 1");
    BROKEN(descriptor.head_dim_max = 0, "min is at most max");
    BROKEN((descriptor.head_dim_min = 33, descriptor.head_dim_max = 63, descriptor.head_dim_multiple = 32),
           "no multiple of it lies between 33 and 63");
    FINE((descriptor.head_dim_min = 33, descriptor.head_dim_max = 64, descriptor.head_dim_multiple = 32));
    FINE((descriptor.head_dim_min = 64, descriptor.head_dim_max = 64, descriptor.head_dim_multiple = 64));
    FINE((descriptor.head_dim_max = UINT32_MAX, descriptor.head_dim_multiple = UINT32_MAX));
}

static void schema(void **state) {
    (void)state;
    reset();
    FINE((descriptor.param_count = 0, descriptor.params = NULL));
    BROKEN(descriptor.params = NULL, "descriptor.param_count is 3 and params is NULL");
    BROKEN(descriptor.param_count = KVANT_SCHEMA_PARAMS_MAX + 1, "at most 256");
    BROKEN(params[0].struct_size = 16, "struct_size is 16");
    BROKEN(params[0].struct_size = sizeof(kvant_param) + 4, "a multiple of 8");
    BROKEN(params[1].struct_size = sizeof(kvant_param) + 8, "parameter 1 (meta): struct_size is");
    BROKEN(params[0].name = NULL, "parameter 0 (NULL)");
    BROKEN(params[0].name = "Bits", "parameter 0 (Bits): a name takes");
    BROKEN(params[2].name = "plugin", "keeps this word");
    BROKEN(params[2].name = "bits", "parameter 0 has the same name");
    BROKEN(params[1].unit = NULL, "parameter 1 (meta): unit");
    BROKEN(params[1].help = NULL, "parameter 1 (meta): help");
    BROKEN(params[1].help = "", "parameter 1 (meta): help");
    BROKEN(params[1].help = "a\nb", "parameter 1 (meta): help");
    BROKEN(params[1].flags = 8, "flags 0x8");
    BROKEN(params[1].type = 0, "type 0");
    BROKEN(params[1].type = 6, "type 6");
}

static void integer_rules(void **state) {
    (void)state;
    reset();
    BROKEN(params[0].integer_min = 9, "integer_min 9 is above integer_max 8");
    BROKEN(params[0].integer_default = 9, "the default 9 is outside of -2 to 8");
    BROKEN(params[0].integer_default = 5, "the default 5 is not one of integers[]");
    BROKEN(params[0].integers = NULL, "integers is NULL");
    BROKEN(integers[1] = -2, "integers[1] = -2 does not ascend");
    BROKEN((integers[1] = 8, integers[2] = 4, params[0].integer_default = 8),
           "integers[2] = 4 does not ascend");
    BROKEN(integers[2] = 16, "integers[2] = 16 is outside");
    FINE((params[0].integer_count = 0, params[0].integers = NULL, params[0].integer_default = 5));
    params[0].type = KVANT_PARAM_SWITCH;
    BROKEN(params[0].integer_default = 2, "neither 0 nor 1");
    FINE((params[0].type = KVANT_PARAM_SWITCH, params[0].integer_default = 0));
    FINE((params[0].type = KVANT_PARAM_TABLE, params[0].integer_count = 0));
    BROKEN((params[0].type = KVANT_PARAM_TABLE, params[0].integer_max = -9),
           "integer_min -2 is above integer_max -9");
}

static void number_and_choice_rules(void **state) {
    (void)state;
    reset();
    BROKEN(params[2].number_min = 2, "number_min 2 is above number_max 1");
    BROKEN(params[2].number_default = 1.5, "the default 1.5 is outside of -1 to 1");
    BROKEN(params[2].number_default = NAN, "must be finite");
    BROKEN(params[2].number_max = INFINITY, "must be finite");
    BROKEN(params[2].number_min = NAN, "must be finite");
    BROKEN(params[1].choice_count = 0, "a choice without choices");
    BROKEN(params[1].choices = NULL, "a choice without choices");
    BROKEN(choices[1] = NULL, "choices[1] is NULL");
    static const char *const words[] = {"", "a b", "a;b", "#a", "a\tb", "\"a\"", "\xc3\xa4"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        BROKEN(choices[2] = words[i], "choices[2] is \"");
    BROKEN(choices[2] = "f16", "choices[0] and choices[2] are both \"f16\"");
    BROKEN(params[1].integer_default = 3, "the default 3 is not an index below 3");
    BROKEN(params[1].integer_default = -1, "the default -1 is not an index below 3");
}

/* The key names the parameter at fault, for callers that look it up. */
static void key(void **state) {
    (void)state;
    reset();
    kvant_diag diag = {.struct_size = sizeof diag};
    params[2].number_default = 3;
    assert_int_equal(kvant_vet(&plugin, &diag), KVANT_ERROR_PLUGIN_BROKEN);
    assert_string_equal(diag.key, "clip");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(root),   cmocka_unit_test(description),   cmocka_unit_test(head_dims),
        cmocka_unit_test(schema), cmocka_unit_test(integer_rules), cmocka_unit_test(number_and_choice_rules),
        cmocka_unit_test(key),
    };
    return kvant_run_tests(tests, argc, argv);
}
