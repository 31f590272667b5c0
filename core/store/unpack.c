/* Records back to rows: the second half of pack.h. */
#include "pack.h"

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

static kvant_status copy_raw(const kvant_record *record, uint32_t layer, uint32_t side, uint32_t tokens,
                             size_t token, void *rows, const char *what, kvant_diag *diag) {
    kvant_record_part raw = kvant_record_raw(record, layer, side);
    if (tokens == 0) return KVANT_OK;
    if (raw.size != (uint64_t)tokens * token)
        return kvant_fail(diag, KVANT_ERROR_CORRUPT, "",
                          "%s: layer %u %s has %llu bytes of raw rows, not %llu", what, layer,
                          side_name(side), (unsigned long long)raw.size, (unsigned long long)tokens * token);
    memcpy(rows, raw.bytes, (size_t)raw.size);
    return KVANT_OK;
}

kvant_status kvant_unpack_rows(const kvant_codec *codec, const kvant_record *record, uint32_t layer,
                               uint32_t side, void *rows, void *extent, void *scratch, const char *what,
                               kvant_diag *diag) {
    const kvant_setup *setup = kvant_codec_row(codec)->setup;
    const kvant_record_head *head = &record->head;
    size_t element = kvant_element_bytes(setup->dtype), token = element * setup->kv_heads * setup->head_dim;
    if (head->kind == KVANT_RECORD_TAIL)
        return copy_raw(record, layer, side, head->tokens, token, rows, what, diag);
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
    kvant_mutable_view view = {.struct_size = sizeof view,
                               .dtype = setup->dtype,
                               .data = rows,
                               .tokens = head->tokens,
                               .heads = setup->kv_heads,
                               .head_dim = setup->head_dim,
                               .token_stride = (int64_t)token,
                               .head_stride = (int64_t)(element * setup->head_dim),
                               .channel_stride = (int64_t)element};
    kvant_status status = kvant_codec_decode(codec, extent, (size_t)part.size, head->first_position, NULL,
                                             &view, scratch, diag);
    return status == KVANT_OK ? copy_raw(record, layer, side, head->sinks, token, rows, what, diag) : status;
}
