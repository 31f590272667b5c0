/* kvant/records.h: one record in memory, packed and unpacked. */
#include "pack.h"
#include "pipeline/plan.h"
#include "store.h"
#include "store/tag_classes.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct kvant_records {
    kvant_plan_info info; /* of codecs' plan, which they keep alive */
    kvant_plan *plan;
    kvant_codec **codecs; /* [layers, 2] */
    uint32_t layers;
    uint8_t fingerprint[32];
    uint8_t tag_classes[256];
    size_t extent_max;
    size_t codec_scratch;
};

static kvant_status no_memory(kvant_diag *diag) {
    return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

kvant_status kvant_records_open(const kvant_plan *plan, kvant_records **records, kvant_diag *diag) {
    if (plan == NULL || records == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_records_open: plan or records is NULL");
    kvant_records *r = calloc(1, sizeof *r);
    if (r == NULL) return no_memory(diag);
    r->info.struct_size = sizeof r->info;
    r->plan = kvant_plan_hold(plan);
    kvant_status status = kvant_plan_describe(plan, &r->info);
    if (status == KVANT_OK) status = kvant_plan_fingerprint(plan, r->fingerprint, diag);
    if (status == KVANT_OK) status = kvant_tag_classes(plan, r->tag_classes);
    if (status == KVANT_OK) status = kvant_codecs_open(plan, true, true, &r->codecs, diag);
    if (status != KVANT_OK) {
        kvant_records_close(r);
        return status;
    }
    r->layers = r->info.geometry->layer_count;
    for (size_t i = 0; i < (size_t)r->layers * 2; i++) {
        size_t extent = kvant_codec_extent_max(r->codecs[i]),
               scratch = kvant_codec_scratch_bytes(r->codecs[i]);
        if (extent > r->extent_max) r->extent_max = extent;
        if (scratch > r->codec_scratch) r->codec_scratch = scratch;
    }
    *records = r;
    return KVANT_OK;
}

void kvant_records_close(kvant_records *r) {
    if (r == NULL) return;
    kvant_codecs_close(r->codecs, r->layers);
    kvant_plan_free(r->plan);
    free(r);
}

/* ---- Sizes and scratch --------------------------------------------------------------------------------- */

size_t kvant_records_bound(const kvant_records *r, uint32_t kind, uint32_t tokens) {
    if (r == NULL || tokens == 0 || (kind != KVANT_STORE_BLOCK && kind != KVANT_STORE_TAIL)) return 0;
    if (kind == KVANT_STORE_BLOCK && tokens != r->info.block_tokens) return 0;
    return kvant_pack_bound(r->codecs, r->layers, kind, tokens, r->info.sinks);
}

static size_t rounded(size_t size, size_t to) {
    return (size + to - 1) / to * to;
}

/*     caller's scratch, aligned to 64
 *     | up to 4096 | one extent, aligned to 4096 | codec's scratch | classes of the tokens | views | */
typedef struct parts {
    unsigned char *extent;
    void *scratch;
    uint8_t *classes;
} parts;

static parts cut(const kvant_records *r, void *scratch) {
    size_t misaligned = (uintptr_t)scratch % KVANT_STAGE_ALIGNMENT;
    parts p = {.extent =
                   (unsigned char *)scratch + (misaligned > 0 ? KVANT_STAGE_ALIGNMENT - misaligned : 0)};
    p.scratch = p.extent + rounded(r->extent_max, 64);
    p.classes = (uint8_t *)p.scratch + rounded(r->codec_scratch, 64);
    return p;
}

size_t kvant_records_scratch_bytes(const kvant_records *r, uint32_t tokens) {
    if (r == NULL) return 0;
    return rounded(
        KVANT_STAGE_ALIGNMENT + rounded(r->extent_max, 64) + rounded(r->codec_scratch, 64) + tokens, 64);
}

/* ---- Pack ---------------------------------------------------------------------------------------------- */

static kvant_status check_source(const kvant_records *r, const kvant_record_source *s, const void *scratch,
                                 kvant_diag *diag) {
    if (r == NULL || s == NULL || s->struct_size < sizeof *s || scratch == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "records, source or scratch is NULL, or struct_size is not set");
    if ((uintptr_t)scratch % 64 != 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "scratch", "scratch is not aligned to 64");
    if (s->kind != KVANT_STORE_BLOCK && s->kind != KVANT_STORE_TAIL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "kind", "kind %u is neither block nor tail", s->kind);
    if (s->tokens == 0 || (s->kind == KVANT_STORE_BLOCK && s->tokens != r->info.block_tokens))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "tokens", "%u tokens; the plan's blocks have %u",
                          s->tokens, r->info.block_tokens);
    if (s->block > (UINT64_MAX - s->tokens) / r->info.block_tokens)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "block", "block %llu is beyond all positions",
                          (unsigned long long)s->block);
    if ((s->block == 0) != (s->parent == NULL))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "parent",
                          "block 0 has no block before it, every other has one");
    if (s->ids == NULL || (s->salt == NULL && s->salt_bytes > 0) || s->salt_bytes > SIZE_MAX)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "ids", "ids, or a salt of some bytes, are NULL");
    return KVANT_OK;
}

/* Both sides of a layer, or neither where its window can have passed the block. */
static kvant_status check_rows(const kvant_records *r, const kvant_record_source *s, kvant_diag *diag) {
    if (s->rows == NULL) return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "rows", "rows are NULL");
    for (uint32_t i = 0; i < r->layers * 2; i++) {
        const kvant_view *rows = s->rows[i];
        const kvant_setup *setup = kvant_codec_row(r->codecs[i])->setup;
        bool passed = s->kind == KVANT_STORE_BLOCK && kvant_layer_at(r->info.geometry, i / 2)->window != 0;
        if (rows == NULL && passed && s->rows[i ^ 1] == NULL) continue;
        const char *side = i % 2 == KVANT_SIDE_KEY ? "keys" : "values";
        if (rows == NULL || rows->struct_size < sizeof *rows || rows->data == NULL)
            return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "rows", "layer %u: %s are missing", i / 2, side);
        if (rows->dtype != setup->dtype)
            return kvant_fail(diag, KVANT_ERROR_DTYPE, "rows", "layer %u: %s are not of the geometry's dtype",
                              i / 2, side);
        if (rows->tokens != s->tokens || rows->heads != setup->kv_heads || rows->head_dim != setup->head_dim)
            return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "rows",
                              "layer %u: %s of %u tokens, %u heads and %u channels, not %u, %u and %u", i / 2,
                              side, rows->tokens, rows->heads, rows->head_dim, s->tokens, setup->kv_heads,
                              setup->head_dim);
    }
    return KVANT_OK;
}

static kvant_record_head head_of(const kvant_records *r, const kvant_record_source *s) {
    kvant_record_head head = {.kind = s->kind,
                              .tokens = s->tokens,
                              .layers = r->layers,
                              .sinks = s->kind == KVANT_STORE_BLOCK && s->block == 0 ? r->info.sinks : 0,
                              .dtype = r->info.geometry->dtype,
                              .block = s->block,
                              .first_position = s->block * r->info.block_tokens};
    memcpy(head.fingerprint, r->fingerprint, sizeof head.fingerprint);
    if (s->parent != NULL) memcpy(head.parent, s->parent, sizeof head.parent);
    return head;
}

static void classify(const kvant_records *r, const kvant_record_source *s, uint8_t *classes) {
    for (uint32_t t = 0; t < s->tokens; t++) classes[t] = r->tag_classes[s->tags != NULL ? s->tags[t] : 0];
}

kvant_status kvant_records_key(const kvant_records *r, const kvant_record_source *s, void *scratch,
                               uint8_t key[32], kvant_diag *diag) {
    kvant_status status = check_source(r, s, scratch, diag);
    if (status != KVANT_OK) return status;
    kvant_record_head head = head_of(r, s);
    parts p = cut(r, scratch);
    classify(r, s, p.classes);
    status = kvant_record_key(&head, s->ids, p.classes, s->salt, (size_t)s->salt_bytes, key);
    return status == KVANT_OK ? status : no_memory(diag);
}

static void tell(const kvant_pack_job *job, const kvant_pack_totals *totals, kvant_record_report *report) {
    if (report == NULL || report->struct_size < sizeof report->struct_size) return;
    kvant_record_report all = {.struct_size = report->struct_size,
                               .size = totals->record_bytes,
                               .saturated = totals->saturated,
                               .replaced = totals->replaced};
    memcpy(all.key, job->head.key, sizeof all.key);
    memcpy(all.fingerprint, job->head.fingerprint, sizeof all.fingerprint);
    memcpy(report, &all, report->struct_size < sizeof all ? report->struct_size : sizeof all);
}

kvant_status kvant_records_pack(const kvant_records *r, const kvant_record_source *s, void *buffer,
                                size_t capacity, void *scratch, kvant_record_report *report,
                                kvant_diag *diag) {
    kvant_status status = check_source(r, s, scratch, diag);
    if (status == KVANT_OK) status = check_rows(r, s, diag);
    if (status != KVANT_OK) return status;
    size_t bound = kvant_records_bound(r, s->kind, s->tokens), size = 0;
    if (bound == 0) return no_memory(diag);
    if (buffer == NULL || capacity < bound)
        return kvant_fail(diag, KVANT_ERROR_CAPACITY, "capacity",
                          "a buffer of %zu bytes, and the record may take %zu", buffer != NULL ? capacity : 0,
                          bound);
    parts p = cut(r, scratch);
    classify(r, s, p.classes);
    kvant_pack_thread thread = {.scratch = p.scratch};
    kvant_pack_job job = {.codecs = r->codecs,
                          .rows = s->rows,
                          .head = head_of(r, s),
                          .on_nonfinite = r->info.on_nonfinite,
                          .ids = s->ids,
                          .tags = s->tags,
                          .classes = p.classes,
                          .salt = s->salt,
                          .salt_bytes = (size_t)s->salt_bytes,
                          .stage = p.extent,
                          .threads = &thread,
                          .thread_count = 1};
    kvant_pack_totals totals = {0};
    status = kvant_pack_record(&job, buffer, capacity, &size, &totals, diag);
    if (status == KVANT_OK) tell(&job, &totals, report);
    return status;
}

/* ---- Read and unpack ----------------------------------------------------------------------------------- */

static kvant_status read_record(const void *bytes, size_t size, kvant_record *record, kvant_diag *diag) {
    const char *why = "";
    if (bytes == NULL) return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "record", "no record");
    kvant_status status = kvant_record_read(bytes, size, record, &why);
    return status == KVANT_OK ? status : kvant_fail(diag, status, "record", "the record: %s", why);
}

kvant_status kvant_record_describe(const void *bytes, size_t size, kvant_record_info *info,
                                   kvant_diag *diag) {
    kvant_record record;
    if (info == NULL || info->struct_size < sizeof info->struct_size)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "info", "info is NULL, or its struct_size is not set");
    kvant_status status = read_record(bytes, size, &record, diag);
    if (status != KVANT_OK) return status;
    const kvant_record_head *head = &record.head;
    kvant_record_info all = {.struct_size = info->struct_size,
                             .kind = head->kind,
                             .tokens = head->tokens,
                             .layers = head->layers,
                             .sinks = head->sinks,
                             .dtype = head->dtype,
                             .block = head->block,
                             .first_position = head->first_position,
                             .size = record.size,
                             .ids = record.ids,
                             .tags = record.tags};
    memcpy(all.fingerprint, head->fingerprint, sizeof all.fingerprint);
    memcpy(all.parent, head->parent, sizeof all.parent);
    memcpy(all.key, head->key, sizeof all.key);
    memcpy(info, &all, info->struct_size < sizeof all ? info->struct_size : sizeof all);
    return KVANT_OK;
}

/* Whether it is the record that was asked for, and one of this plan. */
static kvant_status check_record(const kvant_records *r, const kvant_store_key *key,
                                 const kvant_record *record, kvant_diag *diag) {
    const char *why = "";
    kvant_status status = kvant_unpack_check(r->plan, record, "the record", diag);
    if (status != KVANT_OK || key == NULL) return status;
    if (key->struct_size < sizeof *key || (key->salt == NULL && key->salt_bytes > 0))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "key",
                          "a key without its struct_size, or salt_bytes without a salt");
    uint32_t reason = kvant_store_verify(key, record->bytes, (size_t)record->size, &why);
    if (reason == KVANT_STORE_FOUND) return KVANT_OK;
    return kvant_fail(diag, reason == KVANT_STORE_UNREADABLE ? KVANT_ERROR_MEMORY : KVANT_ERROR_MISMATCH,
                      "key", "the record: %s", why);
}

static kvant_status check_target(const kvant_codec *codec, const kvant_record *record, uint32_t layer,
                                 uint32_t side, const kvant_mutable_view *rows, kvant_diag *diag) {
    const kvant_setup *setup = kvant_codec_row(codec)->setup;
    const char *name = side == KVANT_SIDE_KEY ? "keys" : "values";
    if (rows->struct_size < sizeof *rows || rows->data == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "rows", "layer %u: no place for %s", layer, name);
    if (rows->dtype != KVANT_DTYPE_F32 && rows->dtype != KVANT_DTYPE_F16 && rows->dtype != KVANT_DTYPE_BF16)
        return kvant_fail(diag, KVANT_ERROR_DTYPE, "rows", "layer %u: %s can be F32, F16 or BF16", layer,
                          name);
    if (rows->tokens != record->head.tokens || rows->heads != setup->kv_heads ||
        rows->head_dim != setup->head_dim)
        return kvant_fail(
            diag, KVANT_ERROR_ARGUMENT, "rows",
            "layer %u: a place for %s of %u tokens, %u heads and %u channels, not %u, %u and %u", layer, name,
            rows->tokens, rows->heads, rows->head_dim, record->head.tokens, setup->kv_heads, setup->head_dim);
    return KVANT_OK;
}

kvant_status kvant_records_unpack(const kvant_records *r, const kvant_store_key *key, const void *bytes,
                                  size_t size, uint32_t first_layer, uint32_t layer_count,
                                  const kvant_mutable_view *const *rows, void *scratch, kvant_diag *diag) {
    if (r == NULL || rows == NULL || scratch == NULL || (uintptr_t)scratch % 64 != 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "records, rows or scratch is NULL, or scratch is not aligned to 64");
    if (first_layer > r->layers || layer_count > r->layers - first_layer)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "first_layer", "layers %u to %llu of %u", first_layer,
                          (unsigned long long)first_layer + layer_count, r->layers);
    kvant_record record;
    parts p = cut(r, scratch);
    kvant_status status = read_record(bytes, size, &record, diag);
    if (status == KVANT_OK) status = check_record(r, key, &record, diag);
    for (uint32_t i = 0; i < layer_count * 2 && status == KVANT_OK; i++)
        if (rows[i] != NULL)
            status = check_target(r->codecs[first_layer * 2 + i], &record, first_layer + i / 2, i % 2,
                                  rows[i], diag);
    for (uint32_t i = 0; i < layer_count * 2 && status == KVANT_OK; i++)
        if (rows[i] != NULL)
            status = kvant_unpack_view(r->codecs[first_layer * 2 + i], &record, first_layer + i / 2, i % 2,
                                       rows[i], p.extent, p.scratch, "the record", diag);
    return status;
}
