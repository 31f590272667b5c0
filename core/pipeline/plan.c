/* A plan and its questions: hold, free, describe, rows. resolve_rows.c makes one. See plan.h. */
#include "pipeline/plan.h"

#include "plugin/schema.h"

#include <kvant/kit/diag.h>

#include <stddef.h>
#include <stdlib.h>

kvant_plan *kvant_plan_hold(const kvant_plan *plan) {
    atomic_fetch_add_explicit(&plan->self->references, 1, memory_order_relaxed);
    return plan->self;
}

void kvant_plan_free(kvant_plan *plan) {
    if (plan == NULL || atomic_fetch_sub_explicit(&plan->references, 1, memory_order_acq_rel) != 1) return;
    if (plan->artifact != NULL) kvant_artifact_close(plan->artifact);
    kvant_arena_free(&plan->arena);
    free(plan);
}

/* Copies what the caller's struct has room for; its struct_size stays. */
static void hand_out(void *to, uint32_t room, const void *from, size_t size) {
    memcpy(to, from, room < size ? room : size);
    memcpy(to, &room, sizeof room);
}

kvant_status kvant_plan_describe(const kvant_plan *plan, kvant_plan_info *info) {
    if (plan == NULL || info == NULL || info->struct_size < offsetof(kvant_plan_info, block_tokens))
        return KVANT_ERROR_ARGUMENT;
    kvant_plan_info all = {.block_tokens = plan->block_tokens,
                           .sinks = plan->sinks,
                           .recent = plan->recent,
                           .key_center = plan->key_center,
                           .on_nonfinite = plan->on_nonfinite,
                           .name = plan->name,
                           .artifact_digest =
                               plan->artifact != NULL ? kvant_artifact_digest(plan->artifact) : "",
                           .geometry = &plan->geometry};
    hand_out(info, info->struct_size, &all, sizeof all);
    return KVANT_OK;
}

kvant_status kvant_plan_row(const kvant_plan *plan, uint32_t layer, uint32_t side, kvant_row *row) {
    if (plan == NULL || row == NULL || row->struct_size < offsetof(kvant_row, replaced) ||
        layer >= plan->geometry.layer_count || side > KVANT_SIDE_VALUE)
        return KVANT_ERROR_ARGUMENT;
    const kvant_row *from = &plan->entries[2 * (size_t)layer + side].row;
    hand_out(row, row->struct_size, from, sizeof *from);
    return KVANT_OK;
}

size_t kvant_row_value(const kvant_row *row, uint32_t index, char *text, size_t capacity) {
    const kvant_param *param = row != NULL && row->plugin != NULL && row->setup != NULL
                                   ? kvant_schema_param(row->plugin->descriptor, index)
                                   : NULL;
    if (param == NULL || (text == NULL && capacity != 0)) return 0;
    return kvant_schema_text(param, &row->setup->values[index], text, capacity);
}

static kvant_status no_model(kvant_diag *diag) {
    return kvant_fail(diag, KVANT_ERROR_MISSING, "model",
                      "there is no fingerprint: the geometry names no model (weights, revision, adapters)");
}

kvant_status kvant_plan_fingerprint(const kvant_plan *plan, uint8_t digest[32], kvant_diag *diag) {
    if (plan == NULL || digest == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_plan_fingerprint: plan or digest is NULL");
    if (plan->canonical == NULL) return no_model(diag);
    memcpy(digest, plan->fingerprint, sizeof plan->fingerprint);
    return KVANT_OK;
}

kvant_status kvant_plan_canonical(const kvant_plan *plan, const char **text, kvant_diag *diag) {
    if (plan == NULL || text == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_plan_canonical: plan or text is NULL");
    if (plan->canonical == NULL) return no_model(diag);
    *text = plan->canonical;
    return KVANT_OK;
}
