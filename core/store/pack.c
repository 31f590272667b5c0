/* Whole sequences to records. See pack.h; pack_record.c makes one record. */
#include "pack.h"

#include "base/parallel.h"
#include "data/dump.h"
#include "store/tag_classes.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>
#include <string.h>

enum { SCRATCH_ALIGNMENT = 64 };

struct kvant_packer {
    kvant_pack_source source;
    kvant_plan_info info;
    kvant_blocks blocks;
    unsigned char tag_classes[256];
    unsigned char *classes; /* [tokens] */
    uint32_t row_count;
    uint32_t next;
    kvant_pack_job job;      /* of the last record; head.fingerprint stays */
    kvant_view *views;       /* [row_count] of the record at hand */
    const kvant_view **rows; /* [row_count], to those */
    unsigned char *record;
    size_t record_capacity;
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

/* Room for every extent at its largest, and for the record of all of them. */
static kvant_status allocate(kvant_packer *p, kvant_diag *diag) {
    const kvant_pack_source *source = &p->source;
    kvant_pack_job *job = &p->job;
    size_t stage = 0, scratch = 0, block = 0, tail = 0;
    for (uint32_t i = 0; i < p->row_count; i++) {
        if (source->codecs[i] == NULL) continue;
        p->rows[i] = &p->views[i];
        size_t extent = kvant_codec_extent_max(source->codecs[i]);
        extent = (extent + KVANT_STAGE_ALIGNMENT - 1) / KVANT_STAGE_ALIGNMENT * KVANT_STAGE_ALIGNMENT;
        job->placed[i].at = job->thread_count > 1 ? stage : 0;
        stage = job->thread_count > 1 ? stage + extent : stage > extent ? stage : extent;
        if (kvant_codec_scratch_bytes(source->codecs[i]) > scratch)
            scratch = kvant_codec_scratch_bytes(source->codecs[i]);
    }
    if (p->blocks.count > 0)
        block = kvant_pack_bound(source->codecs, p->row_count / 2, KVANT_RECORD_BLOCK, p->info.block_tokens,
                                 p->blocks.sinks);
    if (p->blocks.tail_tokens > 0)
        tail =
            kvant_pack_bound(source->codecs, p->row_count / 2, KVANT_RECORD_TAIL, p->blocks.tail_tokens, 0);
    if ((p->blocks.count > 0 && block == 0) || (p->blocks.tail_tokens > 0 && tail == 0))
        return no_memory(diag);
    p->record_capacity = block > tail ? block : tail;
    job->stage = aligned(p->blocks.count > 0 ? stage : 0, KVANT_STAGE_ALIGNMENT);
    p->record = aligned(p->record_capacity, KVANT_RECORD_ALIGNMENT);
    p->classes = malloc((size_t)source->tokens + 1);
    if (job->stage == NULL || p->record == NULL || p->classes == NULL) return no_memory(diag);
    for (uint32_t i = 0; i < job->thread_count; i++) {
        kvant_pack_thread *thread = &job->threads[i];
        thread->diag.struct_size = sizeof thread->diag;
        thread->scratch = aligned(scratch, SCRATCH_ALIGNMENT);
        if (thread->scratch == NULL) return no_memory(diag);
    }
    return KVANT_OK;
}

static kvant_status allocate_lists(kvant_packer *p, kvant_diag *diag) {
    p->job.placed = calloc(p->row_count, sizeof *p->job.placed);
    p->job.threads = calloc(p->job.thread_count, sizeof *p->job.threads);
    p->views = calloc(p->row_count, sizeof *p->views);
    p->rows = calloc(p->row_count, sizeof *p->rows);
    return p->job.placed != NULL && p->job.threads != NULL && p->views != NULL && p->rows != NULL
               ? KVANT_OK
               : no_memory(diag);
}

kvant_status kvant_packer_open(const kvant_pack_source *source, kvant_packer **out, kvant_diag *diag) {
    kvant_packer *p = calloc(1, sizeof *p);
    if (p == NULL) return no_memory(diag);
    p->source = *source;
    p->info.struct_size = sizeof p->info;
    kvant_status status = kvant_plan_describe(source->plan, &p->info);
    if (status == KVANT_OK) status = kvant_plan_fingerprint(source->plan, p->job.head.fingerprint, diag);
    if (status == KVANT_OK) status = kvant_tag_classes(source->plan, p->tag_classes);
    if (status != KVANT_OK) goto out;
    p->blocks = kvant_blocks_split(source->tokens, p->info.block_tokens, p->info.sinks, p->info.recent);
    p->row_count = p->info.geometry->layer_count * 2;
    p->job.codecs = source->codecs;
    p->job.head.layers = p->info.geometry->layer_count;
    p->job.head.dtype = p->info.geometry->dtype;
    p->job.on_nonfinite = p->info.on_nonfinite;
    p->job.thread_count = kvant_parallel_threads(source->threads);
    status = allocate_lists(p, diag);
    if (status == KVANT_OK) status = allocate(p, diag);
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
    for (uint32_t i = 0; p->job.threads != NULL && i < p->job.thread_count; i++)
        free(p->job.threads[i].scratch);
    free(p->job.threads);
    free(p->job.placed);
    free(p->job.stage);
    free(p->views);
    free(p->rows);
    free(p->classes);
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

kvant_status kvant_packer_next(kvant_packer *p, const unsigned char **record, size_t *size,
                               kvant_diag *diag) {
    if (p->next >= kvant_packer_count(p))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "no record is left");
    const kvant_pack_source *source = &p->source;
    bool block = p->next < p->blocks.count;
    kvant_pack_job *job = &p->job;
    kvant_record_head *head = &job->head;
    memcpy(head->parent, head->key, sizeof head->parent); /* zeros before the first */
    head->kind = block ? KVANT_RECORD_BLOCK : KVANT_RECORD_TAIL;
    head->tokens = block ? p->blocks.block_tokens : p->blocks.tail_tokens;
    head->sinks = block && p->next == 0 ? p->blocks.sinks : 0;
    head->block = p->next;
    head->first_position = (uint64_t)p->next * p->blocks.block_tokens;
    uint32_t first = p->next * p->blocks.block_tokens;
    for (uint32_t i = 0; i < p->row_count; i++)
        if (source->codecs[i] != NULL) p->views[i] = kvant_view_slice(&source->rows[i], first, head->tokens);
    job->rows = p->rows;
    job->ids = source->ids + first;
    job->tags = source->tags != NULL ? source->tags + first : NULL;
    job->classes = p->classes + first;
    job->salt = source->salt;
    job->salt_bytes = source->salt_bytes;
    kvant_status status = kvant_pack_record(job, p->record, p->record_capacity, size, &p->totals, diag);
    if (status != KVANT_OK) return status;
    *record = p->record;
    p->next++;
    return KVANT_OK;
}
