/* Pipelines resolved: geometries that are wrong, RoPE, and the means of key centring. */
#include "support/model.h"
#include "support/scratch.h"
#include "support/test.h"
#include "support/tester.h"

#include "data/safetensors.h"
#include "pipeline/plan.h"

#include <kvant/kit/half.h>
#include <kvant/kvant.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = TEST_LAYERS, HEADS = TEST_HEADS, DIM = TEST_DIM };

static const char plain[] = "[layers]\nkey = tester\nvalue = tester\n";

/* ---- Geometry ------------------------------------------------------------------------------------------ */

static void wrong_geometries_are_refused(void **state) {
    (void)state;
    test_model m;
#define WRONG(change, status, says)                                                                          \
    do {                                                                                                     \
        test_model_make(&m);                                                                                 \
        change;                                                                                              \
        test_refused(plain, &m.geometry, status, -1, says);                                                  \
    } while (0)
    WRONG(m.geometry.struct_size = 8, KVANT_ERROR_ARGUMENT, "struct_size");
    WRONG(m.geometry.layer_count = 0, KVANT_ERROR_GEOMETRY, "0 layers");
    WRONG(m.geometry.layer_count = 4097, KVANT_ERROR_GEOMETRY, "4097 layers");
    WRONG(m.geometry.dtype = KVANT_DTYPE_I8, KVANT_ERROR_DTYPE, "type 8");
    WRONG(m.geometry.keys = 2, KVANT_ERROR_ARGUMENT, "side of RoPE");
    WRONG(m.geometry.layers = NULL, KVANT_ERROR_ARGUMENT, "no layers");
    WRONG(m.layers[0].struct_size = 12, KVANT_ERROR_ARGUMENT, "struct_size");
    WRONG(m.layers[2].kv_heads = 0, KVANT_ERROR_GEOMETRY, "layer 2: kv_heads = 0");
    WRONG(m.layers[2].q_heads = 7, KVANT_ERROR_GEOMETRY, "7 query heads are not a multiple of 2");
    WRONG(m.layers[2].q_heads = 0, KVANT_ERROR_GEOMETRY, "q_heads = 0");
    WRONG(m.layers[2].total_kv_heads = 1, KVANT_ERROR_GEOMETRY,
          "2 kv heads from head 0 on do not fit among 1");
    WRONG(m.layers[2].first_kv_head = UINT32_MAX, KVANT_ERROR_GEOMETRY, "do not fit among 2");
    WRONG(m.layers[2].key_dim = 0, KVANT_ERROR_GEOMETRY, "key_dim = 0");
    WRONG(m.layers[2].value_dim = 65537, KVANT_ERROR_GEOMETRY, "value_dim = 65537");
    WRONG(m.rope.style = 3, KVANT_ERROR_GEOMETRY, "style 3");
    WRONG(m.rope.rotary_dim = 15, KVANT_ERROR_GEOMETRY, "rotary_dim 15");
    WRONG(m.rope.rotary_dim = 18, KVANT_ERROR_GEOMETRY, "rotary_dim 18");
    WRONG(m.rope.rotary_dim = 0, KVANT_ERROR_GEOMETRY, "rotary_dim 0");
    WRONG(m.rope.magnitude = 0, KVANT_ERROR_GEOMETRY, "magnitude");
    WRONG(m.rope.inverse_frequency = NULL, KVANT_ERROR_ARGUMENT, "frequencies");
    WRONG(m.frequency[3] = 1.0 / 0.0, KVANT_ERROR_GEOMETRY, "frequency 3");
    WRONG(m.rope.struct_size = 4, KVANT_ERROR_ARGUMENT, "rope.struct_size");
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_plan *plan = NULL;
    assert_int_equal(kvant_pipeline_resolve(NULL, &m.geometry, &plan, &diag), KVANT_ERROR_ARGUMENT);
}

/* An array of layers is walked by its first element's struct_size: a later version's caller has larger
 * ones. */
static void larger_layer_structs_are_walked(void **state) {
    (void)state;
    struct larger {
        kvant_layer_geometry layer;
        uint64_t more[3];
    } layers[LAYERS];
    test_model m;
    kvant_plan *plan = NULL;
    kvant_diag diag;
    test_model_make(&m);
    for (uint32_t i = 0; i < LAYERS; i++) {
        layers[i].layer = m.layers[i];
        layers[i].layer.struct_size = sizeof layers[i];
        layers[i].layer.key_dim = DIM + 2 * i;
    }
    m.geometry.layers = &layers[0].layer;
    assert_int_equal(test_resolve_on(plain, &m.geometry, NULL, &plan, &diag), KVANT_OK);
    kvant_row row = {.struct_size = sizeof row};
    assert_int_equal(kvant_plan_row(plan, 5, KVANT_SIDE_KEY, &row), KVANT_OK);
    assert_int_equal(row.setup->head_dim, DIM + 10);
    kvant_plan_free(plan);
}

static void turning_needs_a_rope(void **state) {
    (void)state;
    test_model m;
    kvant_plan *plan = NULL;
    kvant_diag diag;
    static const char keys[] = "[layers]\nkey = tester_keys\nvalue = raw\n";
    test_model_make(&m);
    tester.flags = KVANT_LAYOUT_KEYS_BEFORE_ROPE;
    assert_int_equal(test_resolve_on(keys, &m.geometry, NULL, &plan, &diag), KVANT_OK);
    assert_int_equal(plan->entries[0].turn, KVANT_TURN_UNDO);
    kvant_plan_free(plan);
    /* A layer without RoPE among others that have it: its keys do not turn. */
    m.layers[3].rope = NULL;
    assert_int_equal(test_resolve_on(keys, &m.geometry, NULL, &plan, &diag), KVANT_OK);
    assert_int_equal(plan->entries[6].turn, KVANT_TURN_NONE);
    kvant_plan_free(plan);
    for (uint32_t i = 0; i < LAYERS; i++) m.layers[i].rope = NULL;
    test_refused(keys, &m.geometry, KVANT_ERROR_GEOMETRY, 2,
                 "it stores keys before RoPE and gets them after it");
    m.geometry.keys = KVANT_KEYS_BEFORE_ROPE;
    assert_int_equal(test_resolve_on(keys, &m.geometry, NULL, &plan, &diag), KVANT_OK);
    kvant_plan_free(plan);
    tester.flags = 0;
    test_refused(keys, &m.geometry, KVANT_ERROR_GEOMETRY, 2,
                 "it stores keys after RoPE and gets them before it");
    /* Said outright that they do not turn. */
    m.rope.style = KVANT_ROPE_NONE;
    for (uint32_t i = 0; i < LAYERS; i++) m.layers[i].rope = &m.rope;
    assert_int_equal(test_resolve_on(keys, &m.geometry, NULL, &plan, &diag), KVANT_OK);
    assert_null(plan->entries[0].setup.rope);
    kvant_plan_free(plan);
}

/* ---- Centring ------------------------------------------------------------------------------------------ */

/* An artifact of `layers` layers with centers [HEADS, DIM] of the dtype; `name` of the tensor. */
static void write_artifact(const char *file, const char *name, uint32_t layers, uint32_t dtype,
                           const void *data) {
    char names[LAYERS][64];
    kvant_array arrays[LAYERS];
    kvant_metadata metadata = {"format", "kvant-artifact/1"};
    kvant_diag diag = {.struct_size = sizeof diag};
    for (uint32_t i = 0; i < layers; i++) {
        (void)snprintf(names[i], sizeof names[i], "layers.%u.key.%s", i, name);
        arrays[i] = (kvant_array){.name = names[i],
                                  .data = data,
                                  .shape = {HEADS, DIM},
                                  .rank = 2,
                                  .dtype = dtype,
                                  .bytes = (uint64_t)HEADS * DIM * (dtype == KVANT_DTYPE_F32 ? 4 : 2)};
    }
    if (kvant_safetensors_write(file, arrays, layers, &metadata, 1, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
}

static void centres_come_from_the_artifact(void **state) {
    (void)state;
    static const char text[] = "[pipeline]\nartifact = a.safetensors\nkey_center = artifact\n[layers]\nkey = "
                               "tester\nvalue = tester\n[layers 5]\nkey = raw\n";
    char *folder = kvant_scratch_make(), *file = kvant_scratch_path(folder, "a.safetensors");
    float means[HEADS * DIM];
    test_model m;
    kvant_plan *plan = NULL;
    kvant_diag diag;
    test_model_make(&m);
    for (int i = 0; i < HEADS * DIM; i++) means[i] = (float)i - 3.5f;
    assert_int_equal(test_resolve_on(text, &m.geometry, folder, &plan, &diag), KVANT_ERROR_IO);
    write_artifact(file, "center", LAYERS, KVANT_DTYPE_F32, means);
    assert_int_equal(test_resolve_on(text, &m.geometry, folder, &plan, &diag), KVANT_OK);
    assert_memory_equal(plan->entries[8].center, means, sizeof means);
    assert_null(plan->entries[9].center);  /* values are never centred */
    assert_null(plan->entries[10].center); /* nor is what is lossless */
    assert_int_equal(plan->entries[8].setup.tensor_count, 1);
    kvant_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(kvant_plan_describe(plan, &info), KVANT_OK);
    assert_int_equal(strlen(info.artifact_digest), 64);
    assert_int_equal(info.key_center, 1);
    kvant_plan_free(plan);

    tester.flags = KVANT_LAYOUT_KEYS_BEFORE_ROPE;
    static const char before[] =
        "[pipeline]\nartifact = a.safetensors\nkey_center = artifact\n[layers]\nkey = "
        "tester\nvalue = raw\n";
    assert_int_equal(test_resolve_on(before, &m.geometry, folder, &plan, &diag), KVANT_ERROR_CONFLICT);
    kvant_assert_contains(diag.message, "stores keys before RoPE");
    assert_int_equal(diag.line, 3);
    tester.flags = 0;

    means[DIM + 2] = 0.0f / 0.0f;
    write_artifact(file, "center", LAYERS, KVANT_DTYPE_F32, means);
    assert_int_equal(test_resolve_on(text, &m.geometry, folder, &plan, &diag), KVANT_ERROR_NOT_FINITE);
    kvant_assert_contains(diag.message, "head 1, channel 2");
    means[DIM + 2] = 0;
    write_artifact(file, "centre", LAYERS, KVANT_DTYPE_F32, means);
    assert_int_equal(test_resolve_on(text, &m.geometry, folder, &plan, &diag), KVANT_ERROR_MISSING);
    kvant_assert_contains(diag.message, "no tensor \"center\"");
    write_artifact(file, "center", 3, KVANT_DTYPE_F32, means);
    assert_int_equal(test_resolve_on(text, &m.geometry, folder, &plan, &diag), KVANT_ERROR_MISSING);
    kvant_assert_contains(diag.message, "layer 3 key");
    write_artifact(file, "center", LAYERS, KVANT_DTYPE_F32, means);
    m.layers[4].key_dim = DIM + 2;
    assert_int_equal(test_resolve_on(text, &m.geometry, folder, &plan, &diag), KVANT_ERROR_MISMATCH);
    free(file);
    kvant_scratch_remove(folder);
}

/* Artifacts hold the heads of all ranks; one rank reads its own. */
static void a_rank_reads_its_own_centres(void **state) {
    (void)state;
    uint16_t means[4 * DIM];
    for (uint32_t i = 0; i < 4 * DIM; i++) means[i] = kvant_f32_to_bf16((float)i);
    kvant_array tensor = {.name = "center",
                          .data = means,
                          .shape = {4, DIM},
                          .rank = 2,
                          .dtype = KVANT_DTYPE_BF16,
                          .bytes = sizeof means};
    kvant_plan plan = {.key_center = 1};
    kvant_plan_entry entry = {.setup = {.head_dim = DIM,
                                        .kv_heads = 2,
                                        .first_kv_head = 1,
                                        .total_kv_heads = 4,
                                        .tensors = &tensor,
                                        .tensor_count = 1}};
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_plan_find_center(&plan, &entry, &diag), KVANT_OK);
    for (uint32_t i = 0; i < 2 * DIM; i++) kvant_assert_close(entry.center[i], DIM + i, 0);
    tensor.shape[0] = 2; /* only this rank's */
    assert_int_equal(kvant_plan_find_center(&plan, &entry, &diag), KVANT_ERROR_MISMATCH);
    kvant_assert_contains(diag.message, "not [4 heads, 16 channels]");
    tensor.dtype = KVANT_DTYPE_I16;
    assert_int_equal(kvant_plan_find_center(&plan, &entry, &diag), KVANT_ERROR_DTYPE);
    kvant_arena_free(&plan.arena);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(wrong_geometries_are_refused, test_model_setup),
        cmocka_unit_test_setup(larger_layer_structs_are_walked, test_model_setup),
        cmocka_unit_test_setup(turning_needs_a_rope, test_model_setup),
        cmocka_unit_test_setup(centres_come_from_the_artifact, test_model_setup),
        cmocka_unit_test_setup(a_rank_reads_its_own_centres, test_model_setup),
    };
    return kvant_run_tests(tests, argc, argv);
}
