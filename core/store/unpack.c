/* Records back to rows: the second half of pack.h. */
#include "pack.h"

#include "pipeline/codec_rows.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

static const char *side_name(uint32_t side) {
    return side == KVANT_SIDE_KEY ? "key" : "value";
}

kvant_status kvant_unpack_check(const kvant_plan *plan, const kvant_record *record, const char *what,
                                kvant_diag *diag) {
    kvant_plan_info info = {.struct_size = sizeof info};
    const kvant_record_head *head = &record->head;
    unsigned char fingerprint[KVANT_RECORD_KEY_BYTES];
    kvant_status status = kvant_plan_describe(plan, &info);
    if (status == KVANT_OK) status = kvant_plan_fingerprint(plan, fingerprint, diag);
    if (status != KVANT_OK) return status;
    if (memcmp(fingerprint, head->fingerprint, sizeof fingerprint) != 0)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "", "%s: another scheme wrote it (fingerprints differ)",
                          what);
    if (head->layers != info.geometry->layer_count || head->dtype != info.geometry->dtype)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "",
                          "%s: %u layers or the dtype do not fit the model's %u", what, head->layers,
                          info.geometry->layer_count);
    if (head->kind != KVANT_RECORD_BLOCK) return KVANT_OK;
    if (head->tokens != info.block_tokens)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "",
                          "%s: a block of %u tokens, and the pipeline's have %u", what, head->tokens,
                          info.block_tokens);
    if (head->block == 0 && head->sinks != info.sinks)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "", "%s: %u sinks, and the pipeline has %u", what,
                          head->sinks, info.sinks);
    return KVANT_OK;
}

/* Raw rows of the first `tokens` tokens, dense in the record. */
static kvant_status copy_raw(const kvant_record *record, uint32_t layer, uint32_t side, uint32_t tokens,
                             const kvant_mutable_view *rows, const char *what, kvant_diag *diag) {
    kvant_record_part raw = kvant_record_raw(record, layer, side);
    uint32_t dtype = record->head.dtype;
    size_t element = kvant_element_bytes(dtype), row = element * rows->head_dim;
    uint64_t bytes = (uint64_t)tokens * rows->heads * row;
    if (tokens == 0) return KVANT_OK;
    if (raw.size != bytes)
        return kvant_fail(diag, KVANT_ERROR_CORRUPT, "",
                          "%s: layer %u %s has %llu bytes of raw rows, not %llu", what, layer,
                          side_name(side), (unsigned long long)raw.size, (unsigned long long)bytes);
    const unsigned char *from = raw.bytes;
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++, from += row) {
            char *to = kvant_mutable_view_at(rows, t, h);
            if (rows->dtype == dtype && rows->channel_stride == (int64_t)element) {
                memcpy(to, from, row);
                continue;
            }
            for (uint32_t c = 0; c < rows->head_dim; c++)
                kvant_store_element(to + (int64_t)c * rows->channel_stride, rows->dtype,
                                    kvant_load_element(from + c * element, dtype));
        }
    return KVANT_OK;
}

kvant_status kvant_unpack_view(const kvant_codec *codec, const kvant_record *record, uint32_t layer,
                               uint32_t side, const kvant_mutable_view *rows, void *extent, void *scratch,
                               const char *what, kvant_diag *diag) {
    const kvant_record_head *head = &record->head;
    if (head->kind == KVANT_RECORD_TAIL) return copy_raw(record, layer, side, head->tokens, rows, what, diag);
    kvant_record_part part = kvant_record_extent(record, layer, side);
    if (part.size == 0)
        return kvant_fail(diag, KVANT_ERROR_MISSING, "", "%s: layer %u %s has no extent", what, layer,
                          side_name(side));
    if (part.size > kvant_codec_extent_max(codec) ||
        kvant_codec_extent_size(codec, (size_t)part.size) != part.size)
        return kvant_fail(diag, KVANT_ERROR_CORRUPT, "",
                          "%s: layer %u %s has %llu bytes, which is no size of its codec", what, layer,
                          side_name(side), (unsigned long long)part.size);
    memcpy(extent, part.bytes, (size_t)part.size); /* to where codecs may load aligned */
    kvant_status status =
        kvant_codec_decode(codec, extent, (size_t)part.size, head->first_position, NULL, rows, scratch, diag);
    return status == KVANT_OK ? copy_raw(record, layer, side, head->sinks, rows, what, diag) : status;
}

kvant_status kvant_unpack_rows(const kvant_codec *codec, const kvant_record *record, uint32_t layer,
                               uint32_t side, void *rows, void *extent, void *scratch, const char *what,
                               kvant_diag *diag) {
    const kvant_setup *setup = kvant_codec_row(codec)->setup;
    const kvant_mutable_view view =
        kvant_dense_mutable_view(rows, setup->dtype, record->head.tokens, setup->kv_heads, setup->head_dim);
    return kvant_unpack_view(codec, record, layer, side, &view, extent, scratch, what, diag);
}
