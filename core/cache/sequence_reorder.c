/* Beam search's reorder: all sequences take their new contents at once. See cache.h. */
#include "cache/sequence.h"

#include <kvant/kit/diag.h>

static kvant_status check(kvant_sequence *const *sequences, const uint32_t *sources, uint32_t count,
                          kvant_diag *diag) {
    for (uint32_t i = 0; i < count; i++) {
        if (sequences[i] == NULL)
            return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_sequence_reorder: sequence %u is NULL",
                              i);
        if (sources[i] >= count)
            return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "sources",
                              "kvant_sequence_reorder: source %u of sequence %u, and there are %u",
                              sources[i], i, count);
        if (sequences[i]->cache != sequences[0]->cache)
            return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                              "kvant_sequence_reorder: sequence %u is of another cache", i);
        if (sequences[i]->step != NULL)
            return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                              "kvant_sequence_reorder: sequence %u is in a step; commit or abort it first",
                              i);
        for (uint32_t j = 0; j < i; j++)
            if (sequences[j] == sequences[i])
                return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                                  "kvant_sequence_reorder: sequences %u and %u are one", j, i);
    }
    return KVANT_OK;
}

/* The contents change places; the addresses stay the caller's. */
static void swap(kvant_sequence *x, kvant_sequence *y) {
    kvant_sequence old = *x;
    *x = *y;
    *y = old;
}

kvant_status kvant_sequence_reorder(kvant_sequence *const *sequences, const uint32_t *sources, uint32_t count,
                                    kvant_diag *diag) {
    if (count == 0) return KVANT_OK;
    if (sequences == NULL || sources == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_sequence_reorder: an array is NULL");
    kvant_status status = check(sequences, sources, count, diag);
    if (status != KVANT_OK) return status;
    kvant_cache *cache = sequences[0]->cache;
    kvant_sequence **copies = cache_take(cache, count * sizeof *copies);
    if (copies == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        if (sources[i] == i) continue;
        copies[i] = sequence_copy(sequences[sources[i]]);
        if (copies[i] == NULL) status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    for (uint32_t i = 0; i < count; i++) {
        if (copies[i] == NULL) continue;
        if (status == KVANT_OK) swap(sequences[i], copies[i]);
        kvant_sequence_free(copies[i]);
    }
    cache_give(cache, copies, count * sizeof *copies);
    return status;
}
