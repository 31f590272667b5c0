/* Pipelines resolved: which row gets what, what is refused and where, and plugins whose plan lies. */
#include "support/model.h"
#include "support/test.h"
#include "support/tester.h"

#include <kvant/kvant.h>

#include <stddef.h>
#include <string.h>

enum { LAYERS = TEST_LAYERS, HEADS = TEST_HEADS, DIM = TEST_DIM };

static const char plain[] = "[layers]\nkey = tester\nvalue = tester\n";

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static const char *codec_of(const kvant_plan *plan, uint32_t layer, uint32_t side) {
    kvant_row row = {.struct_size = sizeof row};
    assert_int_equal(kvant_plan_row(plan, layer, side, &row), KVANT_OK);
    return row.codec;
}

static void later_sections_override(void **state) {
    (void)state;
    kvant_plan *plan =
        test_resolve("[codec a]\nplugin = tester\n[codec b]\nplugin = tester\n[codec c]\nplugin = tester\n"
                     "[layers]\nkey = a\nvalue = b\n"
                     "[layers 1-4]\nkey = b\n"
                     "[layers -2, 0]\nkey = c\nvalue = c\n"
                     "[layers 4--1]\nvalue = a\n");
    const char *keys = "", *values = "";
    char got[2][LAYERS + 1] = {{0}};
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t side = 0; side < 2; side++) got[side][layer] = codec_of(plan, layer, side)[0];
    keys = got[0];
    values = got[1];
    assert_string_equal(keys, "cbbbca");
    assert_string_equal(values, "cbbbaa");
    kvant_plan_free(plan);
}

static void rows_carry_setup_and_layout(void **state) {
    (void)state;
    kvant_plan *plan =
        test_resolve("[pipeline]\nname = n\nblock_tokens = 32\nsinks = 3\nrecent = 5\n"
                     "[codec k]\nplugin = tester\nbits = 4\nratio = 0.25\nmeta = bf16\nexact = no\ntags = t\n"
                     "[tags t]\nb = 2\na = 1\n[layers]\nkey = k\nvalue = tester\n");
    kvant_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(kvant_plan_describe(plan, &info), KVANT_OK);
    assert_int_equal(info.struct_size, sizeof info);
    assert_string_equal(info.name, "n");
    assert_int_equal(info.block_tokens, 32);
    assert_int_equal(info.sinks, 3);
    assert_int_equal(info.recent, 5);
    assert_string_equal(info.artifact_digest, "");
    assert_int_equal(info.geometry->layer_count, LAYERS);
    assert_string_equal(info.geometry->model, "test/model@1");
    kvant_row row = {.struct_size = sizeof row};
    assert_int_equal(kvant_plan_row(plan, 2, KVANT_SIDE_KEY, &row), KVANT_OK);
    assert_int_equal(row.replaced, 0);
    assert_string_equal(row.reason, "");
    assert_int_equal(row.setup->layer, 2);
    assert_int_equal(row.setup->side, KVANT_SIDE_KEY);
    assert_int_equal(row.setup->head_dim, DIM);
    assert_int_equal(row.setup->dtype, KVANT_DTYPE_F16);
    assert_int_equal(row.setup->isa, kvant_isa());
    assert_int_equal(row.setup->value_count, 8);
    assert_int_equal(row.setup->q_heads, 3 * HEADS);
    assert_non_null(row.setup->rope);
    kvant_assert_close(row.setup->rope->inverse_frequency[3], 0.125, 0);
    assert_int_equal(row.layout->size_min, 4 * 32 * HEADS * DIM + 32);
    assert_int_equal(row.setup->values[5].row_count, 2);
    assert_string_equal(row.setup->values[5].rows[0].key, "b"); /* in the order of the text */
    static const char *const want[] = {"4", "32", "0.25", "bf16", "no", "{a=1,b=2}", "float", "3"};
    char text[64];
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(kvant_row_value(&row, i, text, sizeof text), strlen(want[i]));
        assert_string_equal(text, want[i]);
    }
    assert_int_equal(kvant_row_value(&row, 8, text, sizeof text), 0);
    assert_int_equal(kvant_row_value(&row, 5, text, 4), 9);
    assert_string_equal(text, "{a=");
    assert_int_equal(kvant_plan_row(plan, 2, KVANT_SIDE_VALUE, &row), KVANT_OK);
    assert_int_equal(row.setup->head_dim, DIM + 8);
    assert_null(row.setup->rope);
    assert_int_equal(row.setup->values[0].given, 0);
    assert_int_equal(kvant_plan_row(plan, LAYERS, 0, &row), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_plan_row(plan, 0, 2, &row), KVANT_ERROR_ARGUMENT);
    kvant_plan_free(plan);
}

/* A caller that was compiled with a shorter struct gets that much and no more. */
static void shorter_structs_are_respected(void **state) {
    (void)state;
    kvant_plan *plan = test_resolve(plain);
    kvant_plan_info info;
    memset(&info, 0x77, sizeof info);
    info.struct_size = offsetof(kvant_plan_info, recent);
    assert_int_equal(kvant_plan_describe(plan, &info), KVANT_OK);
    assert_int_equal(info.block_tokens, 64);
    assert_int_equal(info.struct_size, offsetof(kvant_plan_info, recent));
    assert_int_equal(info.recent, 0x77777777);
    kvant_plan_free(plan);
}

static void a_codecs_name_is_a_pipeline(void **state) {
    (void)state;
    test_model m;
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    test_model_make(&m);
    assert_int_equal(kvant_pipeline_of_codec("tester", &pipeline, &diag), KVANT_OK);
    assert_int_equal(kvant_pipeline_resolve(pipeline, &m.geometry, &plan, &diag), KVANT_OK);
    assert_string_equal(codec_of(plan, 5, KVANT_SIDE_VALUE), "tester");
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    pipeline = NULL;
    /* A codec for keys only: values stay raw. */
    assert_int_equal(kvant_pipeline_of_codec("tester_keys", &pipeline, &diag), KVANT_OK);
    assert_int_equal(kvant_pipeline_resolve(pipeline, &m.geometry, &plan, &diag), KVANT_OK);
    assert_string_equal(codec_of(plan, 5, KVANT_SIDE_KEY), "tester_keys");
    assert_string_equal(codec_of(plan, 5, KVANT_SIDE_VALUE), "raw");
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    pipeline = NULL;
    assert_int_equal(kvant_pipeline_of_codec("testr", &pipeline, &diag), KVANT_ERROR_PLUGIN_NOT_FOUND);
    kvant_assert_contains(diag.message, "tester");
    assert_int_equal(kvant_pipeline_of_codec("te/ster", &pipeline, &diag), KVANT_ERROR_VALUE);
    assert_null(pipeline);
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

static void rows_that_are_missing_or_out_of_range_are_refused(void **state) {
    (void)state;
    test_refused("[layers]\nkey = tester\n", NULL, KVANT_ERROR_CONFLICT, 0, "layer 0 has no value codec");
    test_refused("[layers 0-4]\nkey = tester\nvalue = tester\n", NULL, KVANT_ERROR_CONFLICT, 0,
                 "layer 5 has no key codec");
    test_refused("[layers]\nkey = tester\nvalue = tester\n[layers 6]\nkey = tester\n", NULL,
                 KVANT_ERROR_GEOMETRY, 4, "no layer 6; the model has 6: 0 to 5, or -6 to -1");
    test_refused("[layers 2-9]\nkey = tester\nvalue = tester\n", NULL, KVANT_ERROR_GEOMETRY, 1, "no layer 9");
    test_refused("[layers -7]\nkey = tester\nvalue = tester\n[layers]\nkey = tester\nvalue = tester\n", NULL,
                 KVANT_ERROR_GEOMETRY, 1, "no layer -7");
    test_refused("[layers 4--4]\nkey = tester\nvalue = tester\n", NULL, KVANT_ERROR_VALUE, 1, "from 4 to 2");
    test_refused("[layers -1-0]\nkey = tester\nvalue = tester\n", NULL, KVANT_ERROR_VALUE, 1, "from 5 to 0");
}

static void what_the_descriptor_excludes_is_refused(void **state) {
    (void)state;
    test_model m;
    test_model_make(&m);
    test_refused("[layers]\nkey = tester\nvalue = tester\n[layers 3]\nvalue = tester_keys\n", NULL,
                 KVANT_ERROR_UNSUPPORTED, 5, "layer 3 value: codec tester_keys: it stores keys only");
    m.geometry.dtype = KVANT_DTYPE_BF16;
    test_refused("[layers]\nkey = tester_keys\nvalue = tester\n", &m.geometry, KVANT_ERROR_DTYPE, 2,
                 "but f32 f16");
    m.geometry.dtype = KVANT_DTYPE_F32;
    m.layers[4].key_dim = 20;
    test_refused(
        "[codec kk]\nplugin = tester_keys\n[layers]\nkey = kk\nvalue = tester\n", &m.geometry,
        KVANT_ERROR_GEOMETRY, 4,
        "layer 4 key: codec kk (plugin tester_keys): it does not take head_dim 20: it takes multiples of "
        "8 from 8 "
        "to 64");
}

static void a_parameter_at_fault_has_its_line(void **state) {
    (void)state;
    tester.refuse = KVANT_ERROR_GEOMETRY;
    tester.refuse_key = "group";
    test_refused("[codec k]\nplugin = tester\ngroup = 48\n[layers]\nkey = k\nvalue = k\n", NULL,
                 KVANT_ERROR_GEOMETRY, 3, "layer 0 key: codec k (plugin tester): refused by the test");
    tester.refuse_key = "bits"; /* a default has no line: that of the row */
    test_refused("[codec k]\nplugin = tester\ngroup = 48\n[layers]\nkey = k\nvalue = k\n", NULL,
                 KVANT_ERROR_GEOMETRY, 5, "refused");
}

static void block_tokens_that_suit_every_row_are_named(void **state) {
    (void)state;
    tester.block_multiple = 24;
    test_refused("[pipeline]\nname = x\nblock_tokens = 64\n[layers]\nkey = tester\nvalue = tester\n", NULL,
                 KVANT_ERROR_BLOCK_TOKENS, 3,
                 "block_tokens = 64: layer 0 key: codec tester takes multiples of 24; "
                 "block_tokens = 24 is the least");
    test_refused("[pipeline]\nsinks = 60\n[layers]\nkey = tester\nvalue = tester\n", NULL,
                 KVANT_ERROR_BLOCK_TOKENS, 0, "block_tokens = 72 is the least"); /* more than the sinks */
    tester.block_multiple = 65535;
    test_refused(plain, NULL, KVANT_ERROR_BLOCK_TOKENS, 0, "65535 is the least");
    tester.block_multiple = 65537;
    test_refused(plain, NULL, KVANT_ERROR_BLOCK_TOKENS, 0, "no number up to 65536");
    /* Not curable by another codec. */
    tester.block_multiple = 24;
    test_refused("[pipeline]\non_unsupported = use tester_keys\n[layers]\nkey = tester\nvalue = tester\n",
                 NULL, KVANT_ERROR_BLOCK_TOKENS, 0, "24");
}

static uint32_t varying_multiple; /* of odd layers and even ones */
static kvant_status varying_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag);
static const kvant_plugin *varying_query(uint32_t abi) {
    static kvant_plugin plugin;
    static kvant_descriptor descriptor;
    plugin = *kvant_plugin_query_tester(abi);
    descriptor = *plugin.descriptor;
    descriptor.name = "tester_varying";
    plugin.descriptor = &descriptor;
    plugin.plan = varying_plan;
    return &plugin;
}
static kvant_status varying_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    tester.block_multiple = setup->layer % 2 == 0 ? 16 : varying_multiple;
    return kvant_plugin_query_tester(0)->plan(setup, layout, diag);
}

static void the_least_common_multiple_is_over_all_rows(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_plugin_register(varying_query, &diag), KVANT_OK);
    varying_multiple = 24; /* 64 suits even layers, and still counts */
    test_refused("[layers]\nkey = tester_varying\nvalue = tester_varying\n", NULL, KVANT_ERROR_BLOCK_TOKENS,
                 0,
                 "layer 1 key: codec tester_varying takes multiples of 24; block_tokens = 48 is the least");
    varying_multiple = 65521;
    test_refused("[layers]\nkey = tester_varying\nvalue = tester_varying\n", NULL, KVANT_ERROR_BLOCK_TOKENS,
                 0, "no number up to 65536");
}

static void unsupported_rows_are_replaced_where_asked(void **state) {
    (void)state;
    kvant_plan *plan = test_resolve(
        "[pipeline]\non_unsupported = use tester\n[layers]\nkey = tester_keys\nvalue = tester_keys\n");
    kvant_row row = {.struct_size = sizeof row};
    assert_int_equal(kvant_plan_row(plan, 1, KVANT_SIDE_KEY, &row), KVANT_OK);
    assert_int_equal(row.replaced, 0);
    assert_string_equal(row.codec, "tester_keys");
    assert_int_equal(kvant_plan_row(plan, 1, KVANT_SIDE_VALUE, &row), KVANT_OK);
    assert_int_equal(row.replaced, 1);
    assert_string_equal(row.codec, "tester");
    assert_string_equal(row.reason, "layer 1 value: codec tester_keys: it stores keys only");
    kvant_plan_free(plan);
    /* The replacement may be refused too; both reasons are told. */
    tester.refuse = KVANT_ERROR_UNSUPPORTED;
    tester.refuse_key = "";
    test_refused("[pipeline]\non_unsupported = use tester\n[layers]\nkey = tester\nvalue = tester_keys\n",
                 NULL, KVANT_ERROR_UNSUPPORTED, 4, "layer 0 key: codec tester: refused by the test");
    tester.refuse_layers = 1;
    test_refused(
        "[pipeline]\non_unsupported = use tester_keys\n[layers]\nkey = raw\nvalue = tester\n", NULL,
        KVANT_ERROR_UNSUPPORTED, 5,
        "layer 0 value: codec tester_keys: it stores keys only; it was to replace layer 0 value: codec "
        "tester: "
        "refused by the test");
    /* A wrong value or a broken plugin is not cured. */
    tester.refuse = KVANT_ERROR_VALUE;
    test_refused("[pipeline]\non_unsupported = use tester_keys\n[layers]\nkey = tester\nvalue = tester\n",
                 NULL, KVANT_ERROR_VALUE, 4, "refused by the test");
}

/* ---- Plans that lie ------------------------------------------------------------------------------------ */

static void lie_size(kvant_layout *l) {
    l->size_min = 0;
}
static void lie_alignment(kvant_layout *l) {
    l->alignment = 48;
}
static void lie_alignment_0(kvant_layout *l) {
    l->alignment = 0;
}
static void lie_alignment_8192(kvant_layout *l) {
    l->alignment = 8192;
}
static void lie_step(kvant_layout *l) {
    l->size_step = 3;
}
static void lie_steps(kvant_layout *l) {
    l->size_steps = 3;
}
static void lie_overflow(kvant_layout *l) {
    l->size_step = UINT64_MAX / 2;
    l->size_steps = 3;
}
static void lie_huge(kvant_layout *l) {
    l->size_min = UINT64_C(1) << 60;
}
static void lie_payload(kvant_layout *l) {
    l->payload_bits = 8 * l->size_min + 1;
}
static void lie_bits(kvant_layout *l) {
    l->payload_bits = UINT64_MAX;
    l->metadata_bits = UINT64_MAX;
}
static void lie_bits_step(kvant_layout *l) {
    l->payload_bits_step = 1;
}
static void lie_bits_last(kvant_layout *l) {
    l->size_step = 1;
    l->size_steps = 1;
    l->payload_bits_step = 9;
}
static void lie_multiple(kvant_layout *l) {
    l->block_multiple = 0;
}
static void lie_multiple_48(kvant_layout *l) {
    l->block_multiple = 48;
}
static void lie_state(kvant_layout *l) {
    l->state_bytes = UINT64_MAX;
}
static void lie_scratch(kvant_layout *l) {
    l->scratch_bytes = UINT64_MAX - 3;
}
static void lie_query(kvant_layout *l) {
    l->query_state_bytes = 65;
}
static void lie_tolerance(kvant_layout *l) {
    l->attend_tolerance = -1;
}
static void lie_isa(kvant_layout *l) {
    l->isa = 77;
}
static void lie_struct_size(kvant_layout *l) {
    l->struct_size = 4;
}
static void lie_mix(kvant_layout *l) {
    l->mix_width = 3;
}
static void lie_attend(kvant_layout *l) {
    l->flags |= KVANT_LAYOUT_ATTEND;
}
static void lie_tags(kvant_layout *l) {
    l->tag_class[200] = 1;
}

static void lie_side(kvant_layout *l) {
    l->flags |= KVANT_LAYOUT_KEYS_BEFORE_ROPE;
}

static void lies_are_named(void **state) {
    (void)state;
    static const struct {
        void (*lie)(kvant_layout *);
        const char *says;
    } lies[] = {{lie_size, "size_min is 0"},
                {lie_alignment, "alignment 48"},
                {lie_alignment_0, "alignment 0"},
                {lie_alignment_8192, "alignment 8192"},
                {lie_step, "size_step 3 and size_steps 0"},
                {lie_steps, "size_step 0 and size_steps 3"},
                {lie_overflow, "above 2^48"},
                {lie_huge, "above 2^48"},
                {lie_payload, "do not fit into the smallest extent"},
                {lie_bits, "do not fit"},
                {lie_bits_step, "one size only"},
                {lie_bits_last, "do not fit into the largest extent"},
                {lie_multiple, "block_multiple is 0"},
                {lie_multiple_48, "no multiple of its block_multiple 48"},
                {lie_state, "state_bytes"},
                {lie_scratch, "scratch_bytes"},
                {lie_query, "query_state_bytes 65"},
                {lie_tolerance, "attend_tolerance"},
                {lie_isa, "isa 77"},
                {lie_struct_size, "struct_size"},
                {lie_mix, "mix_width is 3"},
                {lie_attend, "no extension"},
                {lie_tags, "tag 200"}};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        tester = (tester_behaviour){.lie = lies[i].lie};
        test_refused(plain, NULL, KVANT_ERROR_PLUGIN_BROKEN, 2, lies[i].says);
        test_refused("[pipeline]\non_unsupported = use raw\n[layers]\nkey = tester\nvalue = tester\n", NULL,
                     KVANT_ERROR_PLUGIN_BROKEN, 4, lies[i].says);
    }
    tester = (tester_behaviour){.lie = lie_side};
    test_refused(plain, NULL, KVANT_ERROR_PLUGIN_BROKEN, 3, "values are not stored on a side of RoPE");
    tester = (tester_behaviour){.refuse = 5, .refuse_key = ""};
    test_refused(plain, NULL, KVANT_ERROR_PLUGIN_BROKEN, 2, "plan returned 5");
    tester = (tester_behaviour){.refuse = KVANT_ERROR_BLOCK_TOKENS, .refuse_key = ""};
    test_refused(plain, NULL, KVANT_ERROR_PLUGIN_BROKEN, 2, "plan refused block_tokens 64");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(later_sections_override, test_model_setup),
        cmocka_unit_test_setup(rows_carry_setup_and_layout, test_model_setup),
        cmocka_unit_test_setup(shorter_structs_are_respected, test_model_setup),
        cmocka_unit_test_setup(a_codecs_name_is_a_pipeline, test_model_setup),
        cmocka_unit_test_setup(rows_that_are_missing_or_out_of_range_are_refused, test_model_setup),
        cmocka_unit_test_setup(what_the_descriptor_excludes_is_refused, test_model_setup),
        cmocka_unit_test_setup(a_parameter_at_fault_has_its_line, test_model_setup),
        cmocka_unit_test_setup(block_tokens_that_suit_every_row_are_named, test_model_setup),
        cmocka_unit_test_setup(the_least_common_multiple_is_over_all_rows, test_model_setup),
        cmocka_unit_test_setup(unsupported_rows_are_replaced_where_asked, test_model_setup),
        cmocka_unit_test_setup(lies_are_named, test_model_setup),
    };
    return kvant_run_tests(tests, argc, argv);
}
