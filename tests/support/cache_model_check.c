/* The cache against the model: counts, bytes, rows, attention. See cache_model.h. */
#include "support/cache_model.h"

#include "data/blocks.h"

#include <kvant/kit/view.h>

#include <stdlib.h>
#include <string.h>

typedef unsigned long long number;

/* ---- Counts and bytes ---------------------------------------------------------------------------------- */

static uint64_t block_bytes(cache_model *m, model_block *b) {
    uint64_t bytes = b->first == 0 ? m->sinks_bytes : 0;
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
        for (uint32_t side = 0; side < 2 && !b->released[layer]; side++)
            bytes += (model_encoded(m, b, layer, side)->size + m->unit - 1) / m->unit * m->unit;
    return bytes;
}

/* What a step may have taken besides: blocks at their largest, pages for what stays raw, one copied page. */
static uint64_t step_bytes(const cache_model *m, const model_sequence *s) {
    uint64_t block = m->sinks_bytes, pages = s->count / m->block_tokens + 2;
    for (uint32_t i = 0; i < 2 * MODEL_LAYERS; i++) block += m->extent_max[i / 2][i % 2];
    return pages * m->page_bytes +
           ((s->now.length - s->now.tail_first + s->count) / m->block_tokens + 1) * block;
}

static uint64_t committed_bytes(cache_model *m, uint64_t *count, uint64_t *indexed, uint64_t *pinned) {
    uint64_t bytes = 0;
    model_count(m);
    for (model_block *b = m->blocks; b != NULL; b = b->next) {
        bytes += block_bytes(m, b);
        ++*count;
        *indexed += b->indexed;
        *pinned += b->indexed && b->pins > 0;
    }
    for (const model_page *p = m->pages; p != NULL; p = p->next) bytes += m->page_bytes;
    return bytes;
}

#define SAME(what, got, want)                                                                                \
    do {                                                                                                     \
        number got_ = (got), want_ = (want);                                                                 \
        if (got_ != want_) MODEL_FAIL("%s: %llu, and the model has %llu", what, got_, want_);                \
    } while (0)

void model_check_cache(cache_model *m) {
    kvant_cache_report r = {.struct_size = sizeof r};
    uint64_t blocks = 0, indexed = 0, pinned = 0, sequences = 0, most = 0;
    if (kvant_cache_describe(m->cache, &r) != KVANT_OK) MODEL_FAIL("kvant_cache_describe failed");
    uint64_t bytes = committed_bytes(m, &blocks, &indexed, &pinned), used = r.capacity - r.free;
    bool steps = false;
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        const model_sequence *s = &m->sequences[i];
        sequences += s->real != NULL;
        if (s->real == NULL || !s->steps) continue;
        steps = true;
        most += step_bytes(m, s);
    }
    SAME("sequences", r.sequences, sequences);
    SAME("capacity", r.capacity, m->capacity);
    SAME("evictions", r.evictions, m->evictions);
    SAME("lookups", r.lookups, m->lookups);
    SAME("asked tokens", r.asked_tokens, m->asked);
    SAME("found tokens", r.found_tokens, m->found);
    SAME("saturated", r.saturated, m->saturated);
    SAME("indexed", r.indexed, indexed);
    SAME("pinned", r.pinned, pinned);
    SAME("bytes of the pool by kind", r.bytes.payload + r.bytes.metadata + r.bytes.padding + r.bytes.raw,
         used);
    if (r.peak < used || r.peak > r.capacity) MODEL_FAIL("peak %llu", (number)r.peak);
    if (!steps) {
        SAME("blocks", r.blocks, blocks);
        SAME("used bytes", used, bytes);
    } else if (used < bytes || used > bytes + most) {
        MODEL_FAIL("%llu bytes are used; the model has %llu, and its steps may have %llu", (number)used,
                   (number)bytes, (number)most);
    }
}

void model_check_sequence(cache_model *m, const model_sequence *s) {
    kvant_sequence_info info = {.struct_size = sizeof info};
    if (kvant_sequence_describe(s->real, &info) != KVANT_OK) MODEL_FAIL("kvant_sequence_describe failed");
    (void)m;
    SAME("in_step", info.in_step, s->steps);
    SAME("length", info.length, s->now.length);
    SAME("live tokens", info.live_tokens, s->now.live);
    SAME("blocks of the sequence", info.blocks, s->now.block_count);
    SAME("tail_first", info.tail_first, s->now.tail_first);
    SAME("private_first", info.private_first, s->now.private_first);
}

void model_check_bytes(cache_model *m, const model_sequence *s) {
    kvant_bytes got = {.struct_size = sizeof got};
    if (kvant_sequence_bytes(s->real, &got) != KVANT_OK) MODEL_FAIL("kvant_sequence_bytes failed");
    uint64_t bytes = s->now.page_count * m->page_bytes;
    for (uint32_t i = 0; i < s->now.block_count; i++) bytes += block_bytes(m, s->now.blocks[i]);
    SAME("bytes of the sequence", got.payload + got.metadata + got.padding + got.raw, bytes);
    SAME("total of the sequence", got.total, bytes + got.tables);
}

/* ---- Reads --------------------------------------------------------------------------------------------- */

static void convert(const cache_model *m, const void *from, uint32_t dtype, void *to, size_t count) {
    uint32_t own = kvant_element_bytes(m->setting->dtype), other = kvant_element_bytes(dtype);
    for (size_t i = 0; i < count; i++)
        kvant_store_element((unsigned char *)to + i * other, dtype,
                            kvant_load_element((const unsigned char *)from + i * own, m->setting->dtype));
}

/* The block that covers a position, or NULL. */
static model_block *block_at(const cache_model *m, const model_state *s, uint64_t position, uint32_t *index) {
    for (uint32_t i = 0; i < s->block_count && position < s->tail_first; i++)
        if (s->blocks[i]->first <= position && position < model_block_end(m, s, i)) {
            *index = i;
            return s->blocks[i];
        }
    return NULL;
}

/* Whether a token can be read at all in a layer. */
static bool is_there(const cache_model *m, const model_state *s, uint32_t layer, uint64_t position) {
    uint32_t index = 0;
    if (position >= s->length || s->dropped[position]) return false;
    if (position >= s->tail_first) return true;
    return block_at(m, s, position, &index) != NULL && index >= s->passed[layer];
}

/* One token, [heads, dim]. */
static void read_token(cache_model *m, const model_state *s, uint32_t layer, uint32_t side, uint64_t position,
                       uint32_t dtype, void *to) {
    uint32_t index = 0, dim = model_dim(m, layer, side);
    model_block *b = block_at(m, s, position, &index);
    if (b == NULL || position < m->sinks) {
        unsigned char row[MODEL_HEADS * 16 * 4];
        model_kept_rows(m, layer, side, &s->tokens[position], 1, row);
        convert(m, row, dtype, to, (size_t)MODEL_HEADS * dim);
        return;
    }
    const model_extent *extent = model_encoded(m, b, layer, side);
    kvant_range range = {.struct_size = sizeof range, .first_token = (uint32_t)(position - b->first)};
    kvant_mutable_view view = {.struct_size = sizeof view,
                               .dtype = dtype,
                               .data = to,
                               .tokens = 1,
                               .heads = MODEL_HEADS,
                               .head_dim = dim,
                               .channel_stride = kvant_element_bytes(dtype)};
    view.head_stride = view.token_stride = (int64_t)dim * view.channel_stride;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_codec_decode(kvant_attention_codec(m->attention[layer], side), extent->bytes,
                           (size_t)extent->size, b->first, &range, &view, m->scratch, &diag) != KVANT_OK)
        MODEL_FAIL("the model's own block: %s", diag.message);
}

void model_check_read(cache_model *m, const model_sequence *s, uint32_t layer, uint32_t side, uint64_t first,
                      uint32_t count, uint32_t dtype) {
    const model_state *state = &s->now;
    uint32_t dim = model_dim(m, layer, side), element = kvant_element_bytes(dtype);
    size_t row = (size_t)MODEL_HEADS * dim * element, stride = row + 8; /* with gaps that must stay */
    unsigned char *got = malloc(count * stride + 1), *want = malloc(row);
    if (got == NULL || want == NULL) MODEL_FAIL("out of memory");
    memset(got, 0x5b, count * stride + 1);
    kvant_mutable_view view = {.struct_size = sizeof view,
                               .dtype = dtype,
                               .data = got,
                               .tokens = count,
                               .heads = MODEL_HEADS,
                               .head_dim = dim,
                               .token_stride = (int64_t)stride,
                               .head_stride = (int64_t)dim * element,
                               .channel_stride = element};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = kvant_sequence_read(s->real, layer, side, first, &view, m->scratch, &diag);
    bool all = true;
    for (uint64_t p = first; p < first + count; p++) all = all && is_there(m, state, layer, p);
    if (first > state->length) all = false;
    if (!all && status != KVANT_ERROR_ARGUMENT)
        MODEL_FAIL("read of layer %u, positions %llu to %llu of %llu: status %d, and some are not there",
                   layer, (number)first, (number)(first + count), (number)state->length, status);
    if (all && status != KVANT_OK)
        MODEL_FAIL("read of layer %u, positions %llu to %llu of %llu: %s", layer, (number)first,
                   (number)(first + count), (number)state->length, diag.message);
    if (!all && diag.message[0] == '\0') MODEL_FAIL("a read was refused without a word");
    for (uint32_t t = 0; t < count && all; t++) {
        read_token(m, state, layer, side, first + t, dtype, want);
        if (memcmp(want, got + t * stride, row) != 0)
            MODEL_FAIL("layer %u side %u: position %llu of %llu (tail from %llu) is not what the model reads",
                       layer, side, (number)(first + t), (number)state->length, (number)state->tail_first);
        for (size_t i = row; i < stride && t + 1 < count; i++)
            if (got[t * stride + i] != 0x5b) MODEL_FAIL("read wrote between the rows");
    }
    m->reads++;
    free(got);
    free(want);
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

enum { REFERENCES = MODEL_TOKENS, RUNS = MODEL_TOKENS };

/* The cut into references and runs that the attention floor's numbers depend on: a reference for each live
 * range of a block, a run for each of the sinks, of a page of the tail, of the step. */
typedef struct model_sight {
    kvant_reference references[REFERENCES];
    kvant_raw_run runs[RUNS];
    kvant_view views[RUNS][2];
    uint32_t reference_count, run_count;
    unsigned char *rows[2]; /* of the whole sequence, as kept */
} model_sight;

static void add_run(cache_model *m, model_sight *sight, uint32_t layer, void *const rows[2], uint64_t first,
                    uint64_t from, uint64_t to) {
    kvant_view *views = sight->views[sight->run_count];
    for (uint32_t side = 0; side < 2; side++)
        views[side] = kvant_rows_view(
            (const unsigned char *)rows[side] + (from - first) * model_row_bytes(m, layer, side),
            m->setting->dtype, (uint32_t)(to - from), MODEL_HEADS, model_dim(m, layer, side));
    sight->runs[sight->run_count++] =
        (kvant_raw_run){.keys = &views[0], .values = &views[1], .first_position = from};
}

static void add_reference(cache_model *m, model_sight *sight, uint32_t layer, model_block *b, uint64_t from,
                          uint64_t to) {
    const model_extent *key = model_encoded(m, b, layer, KVANT_SIDE_KEY);
    const model_extent *value = model_encoded(m, b, layer, KVANT_SIDE_VALUE);
    sight->references[sight->reference_count++] = (kvant_reference){.key = key->bytes,
                                                                    .value = value->bytes,
                                                                    .key_size = key->size,
                                                                    .value_size = value->size,
                                                                    .first_position = b->first,
                                                                    .live_first = (uint32_t)(from - b->first),
                                                                    .live_count = (uint32_t)(to - from)};
}

/* Every live range of [first, end). */
static void add_live(cache_model *m, const model_state *s, model_sight *sight, uint32_t layer, model_block *b,
                     uint64_t first, uint64_t end) {
    for (uint64_t from = first, to; from < end; from = to + 1) {
        for (to = from; to < end && !s->dropped[to];) to++;
        if (to == from) continue;
        if (b != NULL)
            add_reference(m, sight, layer, b, from, to);
        else
            add_run(m, sight, layer, (void *const *)sight->rows, 0, from, to);
    }
}

static void look(cache_model *m, const model_state *s, uint32_t layer, model_sight *sight) {
    sight->reference_count = sight->run_count = 0;
    for (uint32_t side = 0; side < 2; side++) {
        sight->rows[side] = malloc(s->length * model_row_bytes(m, layer, side) + 1);
        if (sight->rows[side] == NULL) MODEL_FAIL("out of memory");
        uint64_t raw = s->block_count > 0 && m->sinks > 0 ? m->sinks : 0,
                 row = model_row_bytes(m, layer, side);
        model_kept_rows(m, layer, side, s->tokens, (uint32_t)raw, sight->rows[side]);
        model_kept_rows(m, layer, side, s->tokens + s->tail_first, (uint32_t)(s->length - s->tail_first),
                        sight->rows[side] + s->tail_first * row);
    }
    for (uint32_t i = s->passed[layer]; i < s->block_count; i++) {
        uint64_t first = s->blocks[i]->first, end = model_block_end(m, s, i);
        if (first == 0 && m->sinks > 0) {
            add_live(m, s, sight, layer, NULL, 0, m->sinks);
            first = m->sinks;
        }
        add_live(m, s, sight, layer, s->blocks[i], first, end);
    }
    for (uint64_t first = s->tail_first; first < s->length; first += m->block_tokens)
        add_live(m, s, sight, layer, NULL, first,
                 first + m->block_tokens < s->length ? first + m->block_tokens : s->length);
}

void model_attend(cache_model *m, const model_state *state, uint32_t layer, void *const own[2],
                  uint32_t own_count, const model_queries *queries, const kvant_attention_options *options) {
    static model_sight sight; /* tests that use the model have one thread */
    look(m, state, layer, &sight);
    if (own != NULL) add_run(m, &sight, layer, own, state->length, state->length, state->length + own_count);
    kvant_attention_sequence sequence = {.struct_size = sizeof sequence,
                                         .reference_count = sight.reference_count,
                                         .run_count = sight.run_count,
                                         .references = sight.references,
                                         .runs = sight.runs,
                                         .queries = queries->view,
                                         .ranges = queries->ranges,
                                         .outputs = queries->outputs,
                                         .log_sum_exp = queries->log_sum_exp};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_attention_run(m->attention[layer], &sequence, 1, options, m->scratch, m->scratch_bytes,
                            &diag) != KVANT_OK)
        MODEL_FAIL("the model's own attention: %s", diag.message);
    for (uint32_t side = 0; side < 2; side++) free(sight.rows[side]);
    m->attends++;
    m->rows_seen += queries->rows;
}

bool model_same_floats(const float *a, const float *b, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) return false;
    return true;
}
