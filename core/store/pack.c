/* See pack.h. Extents are encoded side by side into a staging area, one place for each layer and side, and
 * then copied to the record in order, so that the bytes do not depend on the number of threads. */
#include "pack.h"

#include "base/parallel.h"
#include "data/dump.h"
#include "data/finite.h"
#include "tag_classes.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>

enum { STAGE_ALIGNMENT = 4096, SCRATCH_ALIGNMENT = 64 };

/* What one layer and side got in the record at hand. */
typedef struct pack_row {
    size_t at;   /* in the staging area */
    size_t size; /* of its extent */
    uint64_t saturated;
    uint64_t replaced;
} pack_row;

typedef struct pack_thread {
    void *scratch;
    uint32_t index; /* where it failed; set with the diag */
    kvant_diag diag;
} pack_thread;

struct kvant_packer {
    kvant_pack_source source;
    kvant_plan_info info;
    kvant_blocks blocks;
    kvant_record_head head; /* of the last record; the fingerprint stays */
    unsigned char tag_classes[256];
    unsigned char *classes; /* [tokens] */
    uint32_t row_count;
    uint32_t next;
    pack_row *rows;
    unsigned char *stage;
    unsigned char *record;
    size_t record_capacity;
    pack_thread *threads;
    uint32_t thread_count;
    kvant_pack_totals totals;
};

static kvant_status no_memory(kvant_diag *diag) {
    return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

static void *aligned(size_t size, size_t alignment) {
    if (size > SIZE_MAX / 2) return NULL;
    size_t rounded = (size + alignment - 1) / alignment * alignment;
    return aligned_alloc(alignment, rounded > 0 ? rounded : alignment);
}

/* ---- Codecs -------------------------------------------------------------------------------------------- */

void kvant_codecs_close(kvant_codec **codecs, uint32_t layers) {
    if (codecs == NULL) return;
    for (size_t i = 0; i < (size_t)layers * 2; i++)
        if (codecs[i] != NULL) kvant_codec_close(codecs[i]);
    free(codecs);
}

kvant_status kvant_codecs_open(const kvant_plan *plan, bool keys, bool values, kvant_codec ***out,
                               kvant_diag *diag) {
    kvant_plan_info info = {.struct_size = sizeof info};
    kvant_status status = kvant_plan_describe(plan, &info);
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "no plan");
    uint32_t layers = info.geometry->layer_count;
    kvant_codec **codecs = calloc((size_t)layers * 2, sizeof *codecs);
    if (codecs == NULL) return no_memory(diag);
    for (uint32_t i = 0; i < layers * 2 && status == KVANT_OK; i++)
        if (i % 2 == KVANT_SIDE_KEY ? keys : values)
            status = kvant_codec_open(plan, i / 2, i % 2, &codecs[i], diag);
    if (status == KVANT_OK)
        *out = codecs;
    else
        kvant_codecs_close(codecs, layers);
    return status;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

/* Room for every extent at its largest, for raw rows at most, and for the record of all of them. */
static kvant_status allocate(kvant_packer *p, kvant_diag *diag) {
    const kvant_pack_source *source = &p->source;
    uint32_t block_tokens = p->info.block_tokens;
    uint64_t stage = 0, block_parts = 0, tail_parts = 0;
    size_t scratch = 0;
    for (uint32_t i = 0; i < p->row_count; i++) {
        if (source->codecs[i] == NULL) continue;
        kvant_view tail = kvant_view_slice(&source->rows[i], 0, p->blocks.tail_tokens);
        kvant_view sinks = kvant_view_slice(&source->rows[i], 0, p->blocks.sinks);
        size_t extent = kvant_codec_extent_max(source->codecs[i]);
        p->rows[i].at = (size_t)stage;
        stage += (extent + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
        block_parts += extent + kvant_rows_bytes(&sinks) + 2 * KVANT_RECORD_ALIGNMENT;
        tail_parts += kvant_rows_bytes(&tail) + KVANT_RECORD_ALIGNMENT;
        if (kvant_codec_scratch_bytes(source->codecs[i]) > scratch)
            scratch = kvant_codec_scratch_bytes(source->codecs[i]);
    }
    size_t block = p->blocks.count > 0 ? kvant_record_size(block_tokens, p->row_count / 2, block_parts) : 0;
    size_t tail = kvant_record_size(p->blocks.tail_tokens, p->row_count / 2, tail_parts);
    p->record_capacity = block > tail ? block : tail;
    p->stage = aligned(p->blocks.count > 0 ? (size_t)stage : 0, STAGE_ALIGNMENT);
    p->record = aligned(p->record_capacity, KVANT_RECORD_ALIGNMENT);
    p->classes = malloc((size_t)source->tokens + 1);
    if (p->stage == NULL || p->record == NULL || p->classes == NULL) return no_memory(diag);
    for (uint32_t i = 0; i < p->thread_count; i++) {
        pack_thread *thread = &p->threads[i];
        thread->diag.struct_size = sizeof thread->diag;
        thread->scratch = aligned(scratch, SCRATCH_ALIGNMENT);
        if (thread->scratch == NULL) return no_memory(diag);
    }
    return KVANT_OK;
}

kvant_status kvant_packer_open(const kvant_pack_source *source, kvant_packer **out, kvant_diag *diag) {
    kvant_packer *p = calloc(1, sizeof *p);
    if (p == NULL) return no_memory(diag);
    p->source = *source;
    p->info.struct_size = sizeof p->info;
    kvant_status status = kvant_plan_describe(source->plan, &p->info);
    if (status == KVANT_OK) status = kvant_plan_fingerprint(source->plan, p->head.fingerprint, diag);
    if (status == KVANT_OK) status = kvant_tag_classes(source->plan, p->tag_classes);
    if (status != KVANT_OK) goto out;
    p->blocks = kvant_blocks_split(source->tokens, p->info.block_tokens, p->info.sinks, p->info.recent);
    p->row_count = p->info.geometry->layer_count * 2;
    p->head.layers = p->info.geometry->layer_count;
    p->head.dtype = p->info.geometry->dtype;
    p->thread_count = kvant_parallel_threads(source->threads);
    p->rows = calloc(p->row_count, sizeof *p->rows);
    p->threads = calloc(p->thread_count, sizeof *p->threads);
    status = p->rows != NULL && p->threads != NULL ? allocate(p, diag) : no_memory(diag);
    for (uint32_t t = 0; status == KVANT_OK && t < source->tokens; t++)
        p->classes[t] = p->tag_classes[source->tags != NULL ? source->tags[t] : 0];
out:
    if (status == KVANT_OK)
        *out = p;
    else
        kvant_packer_close(p);
    return status;
}

void kvant_packer_close(kvant_packer *p) {
    if (p == NULL) return;
    for (uint32_t i = 0; p->threads != NULL && i < p->thread_count; i++) {
        free(p->threads[i].scratch);
    }
    free(p->threads);
    free(p->rows);
    free(p->classes);
    free(p->stage);
    free(p->record);
    free(p);
}

const kvant_blocks *kvant_packer_blocks(const kvant_packer *p) {
    return &p->blocks;
}

uint32_t kvant_packer_count(const kvant_packer *p) {
    return p->blocks.count + (p->blocks.tail_tokens > 0);
}

kvant_pack_totals kvant_packer_totals(const kvant_packer *p) {
    return p->totals;
}

/* ---- One record ---------------------------------------------------------------------------------------- */

static kvant_status encode_row(void *context, uint32_t index, uint32_t thread_index) {
    kvant_packer *p = context;
    pack_row *row = &p->rows[index];
    pack_thread *thread = &p->threads[thread_index];
    const kvant_codec *codec = p->source.codecs[index];
    row->size = 0;
    if (codec == NULL) return KVANT_OK;
    kvant_view rows = kvant_blocks_view(&p->blocks, &p->source.rows[index], p->next);
    const unsigned char *tags = p->source.tags;
    kvant_encode_report report = {.struct_size = sizeof report};
    kvant_status status = kvant_codec_encode(
        codec, &rows, p->head.first_position, tags != NULL ? tags + p->head.first_position : NULL,
        p->stage + row->at, kvant_codec_extent_max(codec), thread->scratch, &report, &thread->diag);
    if (status != KVANT_OK) {
        thread->index = index;
        return status;
    }
    row->size = (size_t)report.size;
    row->saturated = report.saturated;
    row->replaced = report.replaced;
    return KVANT_OK;
}

static kvant_status encode_rows(kvant_packer *p, kvant_diag *diag) {
    for (uint32_t i = 0; i < p->thread_count; i++) p->threads[i].index = UINT32_MAX;
    kvant_status status = kvant_parallel_for(p->thread_count, p->row_count, encode_row, p);
    if (status == KVANT_OK) return KVANT_OK;
    const pack_thread *first = &p->threads[0];
    for (uint32_t i = 1; i < p->thread_count; i++)
        if (p->threads[i].index < first->index) first = &p->threads[i];
    if (diag != NULL && diag->struct_size >= sizeof *diag) *diag = first->diag;
    return status;
}

/* Raw rows go to the record as they are, dense, once they are known to be finite. */
static kvant_status put_raw(kvant_packer *p, kvant_record_writer *writer, uint32_t index, uint32_t tokens,
                            kvant_diag *diag) {
    kvant_view rows = kvant_view_slice(&p->source.rows[index], (uint32_t)p->head.first_position, tokens);
    uint64_t bytes = kvant_rows_bytes(&rows), count = bytes / kvant_element_bytes(rows.dtype);
    void *room = kvant_record_room(writer, (size_t)bytes);
    if (room == NULL)
        return kvant_fail(diag, KVANT_ERROR_CAPACITY, "", "raw rows do not fit into the record");
    kvant_rows_pack(&rows, room);
    uint64_t bad = kvant_find_nonfinite(room, rows.dtype, count);
    if (bad < count && p->info.on_nonfinite == KVANT_ON_NONFINITE_ERROR) {
        uint64_t row = bad / rows.head_dim;
        return kvant_fail(diag, KVANT_ERROR_NOT_FINITE, "",
                          "layer %u %s: position %llu, head %llu, channel %llu is not finite", index / 2,
                          index % 2 == KVANT_SIDE_KEY ? "key" : "value",
                          (unsigned long long)(p->head.first_position + row / rows.heads),
                          (unsigned long long)(row % rows.heads), (unsigned long long)(bad % rows.head_dim));
    }
    if (bad < count) p->totals.replaced += kvant_replace_nonfinite(room, rows.dtype, count);
    kvant_record_put_raw(writer, index / 2, index % 2, (size_t)bytes);
    p->totals.raw_bytes += bytes;
    return KVANT_OK;
}

static kvant_status put_extent(kvant_packer *p, kvant_record_writer *writer, uint32_t index,
                               kvant_diag *diag) {
    const pack_row *row = &p->rows[index];
    void *room = kvant_record_room(writer, row->size);
    if (room == NULL) return kvant_fail(diag, KVANT_ERROR_CAPACITY, "", "extents do not fit into the record");
    memcpy(room, p->stage + row->at, row->size);
    kvant_record_put_extent(writer, index / 2, index % 2, row->size);
    p->totals.extent_bytes += row->size;
    p->totals.saturated += row->saturated;
    p->totals.replaced += row->replaced;
    return KVANT_OK;
}

kvant_status kvant_packer_next(kvant_packer *p, const unsigned char **record, size_t *size,
                               kvant_diag *diag) {
    if (p->next >= kvant_packer_count(p))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "no record is left");
    bool block = p->next < p->blocks.count;
    kvant_record_head *head = &p->head;
    memcpy(head->parent, head->key, sizeof head->parent); /* zeros before the first */
    head->kind = block ? KVANT_RECORD_BLOCK : KVANT_RECORD_TAIL;
    head->tokens = block ? p->blocks.block_tokens : p->blocks.tail_tokens;
    head->sinks = block && p->next == 0 ? p->blocks.sinks : 0;
    head->block = p->next;
    head->first_position = (uint64_t)p->next * p->blocks.block_tokens;
    kvant_status status = block ? encode_rows(p, diag) : KVANT_OK;
    if (status != KVANT_OK) return status;
    kvant_record_writer writer;
    size_t first = (size_t)head->first_position;
    status = kvant_record_start(&writer, p->record, p->record_capacity, head, p->source.ids + first,
                                p->source.tags != NULL ? p->source.tags + first : NULL, p->classes + first,
                                p->source.salt, p->source.salt_bytes);
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "cannot start a record");
    uint32_t raw = block ? head->sinks : head->tokens;
    for (uint32_t i = 0; i < p->row_count; i++) {
        if (p->source.codecs[i] == NULL) continue;
        if (block) status = put_extent(p, &writer, i, diag);
        if (status == KVANT_OK && raw > 0) status = put_raw(p, &writer, i, raw, diag);
        if (status != KVANT_OK) return status;
    }
    *size = kvant_record_finish(&writer);
    *record = p->record;
    p->totals.record_bytes += *size;
    p->next++;
    return KVANT_OK;
}
