/* kvant_cache_estimate: what a sequence takes, from the layouts that a cache allocates by. See cache.h. */
#include "cache/cache.h"

#include <kvant/kit/diag.h>

static void add_extents(const kvant_plan *plan, const cache_shape *shape, uint32_t i, uint64_t count,
                        uint64_t steps, kvant_bytes *bytes) {
    const kvant_layout *layout = &plan->entries[i].layout;
    uint64_t payload = 0, metadata = 0;
    cache_extent_parts(layout, steps, &payload, &metadata);
    bytes->payload += count * payload;
    bytes->metadata += count * metadata;
    bytes->padding +=
        count * (cache_rounded(shape, layout->size_min + steps * layout->size_step) - payload - metadata);
}

static void estimate(const kvant_plan *plan, const cache_shape *shape, uint64_t tokens, bool largest,
                     kvant_bytes *bytes) {
    uint64_t block_tokens = shape->block_tokens;
    uint64_t blocks = tokens > shape->recent ? (tokens - shape->recent) / block_tokens : 0;
    uint64_t pages = (tokens - blocks * block_tokens + block_tokens - 1) / block_tokens;
    uint32_t steady = cache_steady_pages(shape);
    for (uint32_t i = 0; i < 2 * shape->layer_count; i++) {
        uint64_t window = shape->layers[i / 2].window, held = blocks;
        if (window != 0 && blocks * block_tokens > window)
            held -= (blocks * block_tokens - window) / block_tokens;
        add_extents(plan, shape, i, held, largest ? plan->entries[i].layout.size_steps : 0, bytes);
    }
    bytes->raw = pages * cache_rounded(shape, shape->page_bytes);
    bytes->tables = blocks * cache_block_tables(shape) + pages * cache_page_tables(shape) +
                    cache_sequence_tables(shape, 0, blocks > 0 ? cache_list_room(blocks) : 0,
                                          tokens > 0 ? cache_list_room(steady) : 0, 0);
    if (blocks > 0 && shape->sinks > 0) {
        bytes->raw += cache_rounded(shape, shape->sinks_bytes);
        bytes->tables += cache_page_tables(shape);
    }
    bytes->total = bytes->payload + bytes->metadata + bytes->padding + bytes->raw + bytes->tables;
}

kvant_status kvant_cache_estimate(const kvant_plan *plan, uint64_t tokens, kvant_bytes *least,
                                  kvant_bytes *most, kvant_diag *diag) {
    if (plan == NULL || least == NULL || most == NULL || least->struct_size < sizeof *least ||
        most->struct_size < sizeof *most)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_cache_estimate: plan, least or most is NULL, or a struct_size is not set");
    if (plan->learns)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "plan", "a plan to learn from has no sizes");
    if (tokens > (UINT64_C(1) << 40))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "tokens", "%llu tokens are beyond 2^40",
                          (unsigned long long)tokens);
    cache_shape shape;
    kvant_status status = cache_shape_make(plan, &shape, diag);
    if (status != KVANT_OK) return status;
    kvant_bytes *all[2] = {least, most};
    for (uint32_t i = 0; i < 2; i++) {
        *all[i] = (kvant_bytes){.struct_size = all[i]->struct_size};
        estimate(plan, &shape, tokens, i == 1, all[i]);
    }
    cache_shape_free(&shape);
    return KVANT_OK;
}
