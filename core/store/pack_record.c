/* See pack_record.h. */
#include "pack_record.h"

#include "base/parallel.h"
#include "data/blocks.h"
#include "data/finite.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdbool.h>

static const char *side_name(uint32_t index) {
    return index % 2 == KVANT_SIDE_KEY ? "key" : "value";
}

size_t kvant_pack_token_bytes(const kvant_codec *codec) {
    const kvant_setup *setup = kvant_codec_row(codec)->setup;
    return (size_t)kvant_element_bytes(setup->dtype) * setup->kv_heads * setup->head_dim;
}

size_t kvant_pack_bound(kvant_codec *const *codecs, uint32_t layers, uint32_t kind, uint32_t tokens,
                        uint32_t sinks) {
    uint64_t parts = 0;
    uint32_t raw = kind == KVANT_RECORD_BLOCK ? sinks : tokens;
    for (size_t i = 0; i < (size_t)layers * 2; i++) {
        uint64_t bytes = 0;
        if (codecs[i] == NULL) continue;
        if (__builtin_mul_overflow((uint64_t)raw, (uint64_t)kvant_pack_token_bytes(codecs[i]), &bytes))
            return 0;
        if (kind == KVANT_RECORD_BLOCK) bytes += kvant_codec_extent_max(codecs[i]) + KVANT_RECORD_ALIGNMENT;
        if (__builtin_add_overflow(parts, bytes + KVANT_RECORD_ALIGNMENT, &parts)) return 0;
    }
    return kvant_record_size(tokens, layers, parts);
}

/* ---- Extents ------------------------------------------------------------------------------------------- */

static kvant_status encode_row(const kvant_pack_job *job, uint32_t index, kvant_pack_row *row, void *scratch,
                               kvant_diag *diag) {
    const kvant_codec *codec = job->codecs[index];
    row->size = 0;
    if (job->rows[index] == NULL) return KVANT_OK;
    kvant_encode_report report = {.struct_size = sizeof report};
    kvant_status status =
        kvant_codec_encode(codec, job->rows[index], job->head.first_position, job->tags, job->stage + row->at,
                           kvant_codec_extent_max(codec), scratch, &report, diag);
    if (status != KVANT_OK) return status;
    row->size = (size_t)report.size;
    row->saturated = report.saturated;
    row->replaced = report.replaced;
    return KVANT_OK;
}

static kvant_status encode_in_thread(void *context, uint32_t index, uint32_t thread_index) {
    const kvant_pack_job *job = context;
    kvant_pack_thread *thread = &job->threads[thread_index];
    kvant_status status = encode_row(job, index, &job->placed[index], thread->scratch, &thread->diag);
    if (status != KVANT_OK) thread->index = index;
    return status;
}

/* All extents side by side; the diag of the first row that fails. */
static kvant_status encode_rows(kvant_pack_job *job, kvant_diag *diag) {
    for (uint32_t i = 0; i < job->thread_count; i++) job->threads[i].index = UINT32_MAX;
    kvant_status status = kvant_parallel_for(job->thread_count, job->head.layers * 2, encode_in_thread, job);
    if (status == KVANT_OK) return KVANT_OK;
    const kvant_pack_thread *first = &job->threads[0];
    for (uint32_t i = 1; i < job->thread_count; i++)
        if (job->threads[i].index < first->index) first = &job->threads[i];
    if (diag != NULL && diag->struct_size >= sizeof *diag) *diag = first->diag;
    return status;
}

static kvant_status put_extent(const kvant_pack_job *job, kvant_record_writer *writer, uint32_t index,
                               kvant_pack_totals *totals, kvant_diag *diag) {
    kvant_pack_row here = {.at = 0};
    kvant_pack_row *row = job->thread_count > 1 ? &job->placed[index] : &here;
    kvant_status status = KVANT_OK;
    if (job->thread_count == 1) status = encode_row(job, index, row, job->threads[0].scratch, diag);
    if (status != KVANT_OK) return status;
    void *room = kvant_record_room(writer, row->size);
    if (room == NULL) return kvant_fail(diag, KVANT_ERROR_CAPACITY, "", "extents do not fit into the record");
    memcpy(room, job->stage + row->at, row->size);
    kvant_record_put_extent(writer, index / 2, index % 2, row->size);
    totals->extent_bytes += row->size;
    totals->saturated += row->saturated;
    totals->replaced += row->replaced;
    return KVANT_OK;
}

/* ---- Raw rows ------------------------------------------------------------------------------------------ */

/* They go to the record as they are, dense, once they are known to be finite. */
static kvant_status put_raw(const kvant_pack_job *job, kvant_record_writer *writer, uint32_t index,
                            uint32_t tokens, kvant_pack_totals *totals, kvant_diag *diag) {
    kvant_view rows = *job->rows[index];
    rows.tokens = tokens;
    uint64_t bytes = kvant_rows_bytes(&rows), count = bytes / kvant_element_bytes(rows.dtype);
    void *room = kvant_record_room(writer, (size_t)bytes);
    if (room == NULL)
        return kvant_fail(diag, KVANT_ERROR_CAPACITY, "", "raw rows do not fit into the record");
    kvant_rows_pack(&rows, room);
    uint64_t bad = kvant_find_nonfinite(room, rows.dtype, count);
    if (bad < count && job->on_nonfinite == KVANT_ON_NONFINITE_ERROR) {
        uint64_t row = bad / rows.head_dim;
        return kvant_fail(diag, KVANT_ERROR_NOT_FINITE, "",
                          "layer %u %s: position %llu, head %llu, channel %llu is not finite", index / 2,
                          side_name(index), (unsigned long long)(job->head.first_position + row / rows.heads),
                          (unsigned long long)(row % rows.heads), (unsigned long long)(bad % rows.head_dim));
    }
    if (bad < count) totals->replaced += kvant_replace_nonfinite(room, rows.dtype, count);
    kvant_record_put_raw(writer, index / 2, index % 2, (size_t)bytes);
    totals->raw_bytes += bytes;
    return KVANT_OK;
}

/* ---- All of it ----------------------------------------------------------------------------------------- */

kvant_status kvant_pack_record(kvant_pack_job *job, void *buffer, size_t capacity, size_t *size,
                               kvant_pack_totals *totals, kvant_diag *diag) {
    bool block = job->head.kind == KVANT_RECORD_BLOCK;
    kvant_record_writer writer;
    kvant_status status = block && job->thread_count > 1 ? encode_rows(job, diag) : KVANT_OK;
    if (status != KVANT_OK) return status;
    status = kvant_record_start(&writer, buffer, capacity, &job->head, job->ids, job->tags, job->classes,
                                job->salt, job->salt_bytes);
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "cannot start a record");
    uint32_t raw = block ? job->head.sinks : job->head.tokens;
    for (uint32_t i = 0; i < job->head.layers * 2; i++) {
        if (job->rows[i] == NULL) continue;
        if (block) status = put_extent(job, &writer, i, totals, diag);
        if (status == KVANT_OK && raw > 0) status = put_raw(job, &writer, i, raw, totals, diag);
        if (status != KVANT_OK) return status;
    }
    *size = kvant_record_finish(&writer);
    if (*size == 0) return kvant_fail(diag, KVANT_ERROR_CAPACITY, "", "the record does not fit");
    totals->record_bytes += *size;
    return KVANT_OK;
}
