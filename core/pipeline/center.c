/* Key centring: the artifact's tensor "center", checked and made float for one row. See plan.h. */
#include "pipeline/plan.h"

#include "data/safetensors.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <math.h>

kvant_status kvant_plan_find_center(kvant_plan *plan, kvant_plan_entry *entry, kvant_diag *diag) {
    const kvant_setup *setup = &entry->setup;
    const kvant_array *found = NULL;
    for (uint32_t i = 0; i < setup->tensor_count; i++)
        if (strcmp(setup->tensors[i].name, "center") == 0) found = &setup->tensors[i];
    if (found == NULL)
        return kvant_fail(diag, KVANT_ERROR_MISSING, "key_center",
                          "key_center = artifact, and the artifact has no tensor \"center\" for these keys");
    if (found->dtype != KVANT_DTYPE_F32 && found->dtype != KVANT_DTYPE_F16 &&
        found->dtype != KVANT_DTYPE_BF16)
        return kvant_fail(diag, KVANT_ERROR_DTYPE, "key_center",
                          "the artifact's tensor \"center\" is %s, not F32, F16 "
                          "or BF16",
                          kvant_dtype_name(found->dtype));
    /* Artifacts hold the heads of all ranks. */
    if (found->rank != 2 || found->shape[0] != setup->total_kv_heads || found->shape[1] != setup->head_dim)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "key_center",
                          "the artifact's tensor \"center\" is not [%u heads, %u channels]",
                          setup->total_kv_heads, setup->head_dim);
    size_t count = (size_t)setup->kv_heads * setup->head_dim, width = kvant_element_bytes(found->dtype);
    const char *bytes = (const char *)found->data + (size_t)setup->first_kv_head * setup->head_dim * width;
    float *center = kvant_arena_alloc(&plan->arena, count, sizeof *center);
    if (center == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (size_t i = 0; i < count; i++) {
        center[i] = kvant_load_element(bytes + i * width, found->dtype);
        if (!isfinite(center[i]))
            return kvant_fail(diag, KVANT_ERROR_NOT_FINITE, "key_center",
                              "the artifact's tensor \"center\" is not finite at head %zu, channel %zu",
                              setup->first_kv_head + i / setup->head_dim, i % setup->head_dim);
    }
    entry->center = center;
    return KVANT_OK;
}
