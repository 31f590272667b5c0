/* The dump reader: names, shapes and metadata behind a safetensors header. */
#include "data/dump.h"
#include "fuzz.h"

#include <math.h>

static void use(const kvant_dump *dump) {
    const kvant_geometry *geometry = kvant_dump_geometry(dump);
    const kvant_dump_info *info = kvant_dump_describe(dump);
    for (uint32_t l = 0; l < geometry->layer_count; l++) {
        const kvant_layer_geometry *layer = &geometry->layers[l];
        if (layer->kv_heads == 0 || layer->q_heads % layer->kv_heads != 0) abort();
        for (uint32_t i = 0; layer->rope != NULL && i < layer->rope->rotary_dim / 2; i++)
            if (!isfinite(layer->rope->inverse_frequency[i])) abort();
        for (uint32_t what = 0; what < 3; what++) {
            kvant_view view;
            if (!kvant_dump_view(dump, l, what, &view)) continue;
            if (what < 2 && view.tokens != info->tokens) abort();
            kvant_fuzz_touch(view.data, (uint64_t)view.tokens * (uint64_t)view.token_stride);
        }
    }
    if (info->tags != NULL) kvant_fuzz_touch(info->tags, info->tokens);
    if (info->token_ids != NULL) kvant_fuzz_touch(info->token_ids, (uint64_t)info->tokens * 4);
    if (info->query_start + info->query_tokens > info->tokens || !(info->scale > 0)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_dump *dump = NULL;
    kvant_status status = kvant_dump_parse(data, size, "fuzz", &dump, &diag);
    kvant_fuzz_check(status, &diag);
    if (status == KVANT_OK) use(dump);
    kvant_dump_close(dump);
    return 0;
}
