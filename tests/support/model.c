/* See model.h. */
#include "support/model.h"

#include "support/test.h"
#include "support/tester.h"

#include <string.h>

enum { LAYERS = TEST_LAYERS, HEADS = TEST_HEADS, DIM = TEST_DIM };

void test_model_make(test_model *m) {
    for (uint32_t i = 0; i < DIM / 2; i++) m->frequency[i] = 1.0 / (1 << i);
    m->rope = (kvant_rope){.struct_size = sizeof m->rope,
                           .style = KVANT_ROPE_NEOX,
                           .rotary_dim = DIM,
                           .magnitude = 1,
                           .inverse_frequency = m->frequency};
    for (uint32_t i = 0; i < LAYERS; i++)
        m->layers[i] = (kvant_layer_geometry){.struct_size = sizeof m->layers[i],
                                              .kv_heads = HEADS,
                                              .q_heads = 3 * HEADS,
                                              .total_kv_heads = HEADS,
                                              .key_dim = DIM,
                                              .value_dim = DIM + 8,
                                              .rope = &m->rope};
    m->geometry = (kvant_geometry){.struct_size = sizeof m->geometry,
                                   .layer_count = LAYERS,
                                   .dtype = KVANT_DTYPE_F16,
                                   .layers = m->layers,
                                   .model = "test/model@1"};
}

int test_model_setup(void **state) {
    (void)state;
    tester_register();
    tester = (tester_behaviour){0};
    return 0;
}

/* Resolves a text on the model; *plan only where that works. */
kvant_status test_resolve_on(const char *text, const kvant_geometry *geometry, const char *directory,
                             kvant_plan **plan, kvant_diag *diag) {
    kvant_pipeline *pipeline = NULL;
    *diag = (kvant_diag){.struct_size = sizeof *diag};
    *plan = NULL;
    kvant_status status = kvant_pipeline_parse(text, strlen(text), "p.ini", directory, &pipeline, diag);
    if (status != KVANT_OK) fail_msg("line %d: %s", (int)diag->line, diag->message);
    status = kvant_pipeline_resolve(pipeline, geometry, plan, diag);
    kvant_pipeline_free(pipeline);
    if ((status == KVANT_OK) != (*plan != NULL))
        fail_msg("status %d and plan %p", (int)status, (void *)*plan);
    return status;
}

kvant_plan *test_resolve(const char *text) {
    test_model m;
    kvant_plan *plan = NULL;
    kvant_diag diag;
    test_model_make(&m);
    if (test_resolve_on(text, &m.geometry, NULL, &plan, &diag) != KVANT_OK)
        fail_msg("line %d: %s", (int)diag.line, diag.message);
    memset(&m, 0xcc, sizeof m); /* a plan keeps nothing of the geometry */
    return plan;
}

void test_refused(const char *text, const kvant_geometry *geometry, kvant_status status, int line,
                  const char *says) {
    test_model m;
    kvant_plan *plan = NULL;
    kvant_diag diag;
    test_model_make(&m);
    kvant_status got = test_resolve_on(text, geometry != NULL ? geometry : &m.geometry, NULL, &plan, &diag);
    if (got == status && (line < 0 || diag.line == line) && strstr(diag.message, says) != NULL &&
        (line < 0 || strcmp(diag.file, "p.ini") == 0))
        return;
    kvant_plan_free(plan);
    fail_msg("%s\nstatus %d, %s:%d: %s; expected %d, line %d, %s", text, (int)got, diag.file, (int)diag.line,
             diag.message, (int)status, line, says);
}
