/* Fast attention on codes, compiled once per instruction set: the floats of hack_attend_reference.c, bit for
 * bit.
 *
 * For every partition of tokens first all rows of the group become 8-bit operands, then every line of 16 free
 * indices is read once for up to four rows (hack_dot.h).
 */
#include "hack.h"
#include "hack_attend.h"
#include "hack_dot.h"
#include "hack_identity.h"

#include <kvant/kit/isa.h>

/* ---- Scratch ------------------------------------------------------------------------------------------- */

/* Arrays start on multiples of 64 bytes and have room up to the next. */
typedef struct work {
    float *scale, *min;  /* of one partition of tokens: per channel [head_dim], or [parts][partition] */
    float *sums;         /* keys: [parts][16 tokens]; values: [head_dim] */
    float *folded, *row; /* [longest of head_dim and partition]; row: weights where not all tokens live */
    uint32_t *dots;      /* [HACK_TILE][16], keys [parts] of them */
    uint32_t *live_sums; /* [16] */
    uint8_t *ones;       /* values: [partition], 1 where a token lives */
    uint8_t *rows;       /* of each row: operand [parts], minima [parts], code_sum, codes */
    size_t row_bytes;
    size_t code_offset; /* of a row */
    size_t code_stride; /* from one operand's codes to the next part's */
} work;

typedef struct row_work {
    hack_operand *operand; /* [parts] */
    float *minima;         /* [parts]: sums of operand times minima; keys only the first */
    uint32_t *code_sum;
    uint8_t *codes;
} row_work;

static row_work row_at(const hack_block *block, const work *w, uint32_t r) {
    uint8_t *base = w->rows + r * w->row_bytes;
    hack_operand *operand = (hack_operand *)(void *)base;
    float *minima = (float *)(void *)(operand + block->parts);
    return (row_work){operand, minima, (uint32_t *)(void *)(minima + block->parts), base + w->code_offset};
}

/* Bytes of one row, and where in it codes lie. */
static size_t row_bytes(const hack_block *block, work *w) {
    bool key = block->side == KVANT_SIDE_KEY;
    w->code_offset =
        hack_round_up((sizeof(hack_operand) + sizeof(float)) * block->parts + sizeof(uint32_t), 64);
    w->code_stride = key ? block->part : block->partition;
    size_t codes = key                  ? hack_padded_dim(block)
                   : block->per_channel ? block->partition
                                        : (size_t)block->parts * block->partition;
    return w->row_bytes = w->code_offset + hack_round_up(codes, 64);
}

static size_t carve(const hack_block *block, void *scratch, work *w) {
    bool key = block->side == KVANT_SIDE_KEY;
    size_t longest = block->head_dim > block->partition ? block->head_dim : block->partition;
    size_t planes = block->per_channel ? block->head_dim : (size_t)block->parts * block->partition;
    size_t plane = hack_round_up(planes * sizeof(float), 64);
    size_t sums =
        hack_round_up((key ? (size_t)block->parts * HACK_LINE : block->head_dim) * sizeof(float), 64);
    size_t line = hack_round_up(longest * sizeof(float), 64);
    size_t dots = (size_t)(key ? block->parts : 1) * HACK_TILE * HACK_LINE * sizeof(uint32_t);
    size_t ones = key ? 0 : hack_round_up(block->partition, 64);
    if (scratch != NULL) {
        uint8_t *at = scratch;
        w->scale = (float *)(void *)at;
        w->min = (float *)(void *)(at + plane);
        at += 2 * plane;
        w->sums = (float *)(void *)at;
        at += sums;
        w->folded = (float *)(void *)at;
        w->row = (float *)(void *)(at + line);
        at += 2 * line;
        w->dots = (uint32_t *)(void *)at;
        w->live_sums = (uint32_t *)(void *)(at + dots);
        at += dots + HACK_LINE * sizeof(uint32_t);
        w->ones = at;
        w->rows = at + ones;
        row_bytes(block, w);
    }
    return 2 * plane + sums + 2 * line + dots + HACK_LINE * sizeof(uint32_t) + ones;
}

static uint64_t scratch_bytes(const hack_block *block) {
    return carve(block, NULL, NULL);
}

static uint64_t scratch_row(const hack_block *block) {
    work w = {0};
    return row_bytes(block, &w);
}

/* ---- Operands ------------------------------------------------------------------------------------------ */

/* Codes of x[0 .. count). */
static hack_operand quantize(const float *x, uint32_t count, uint8_t *codes) {
    float low = x[0], high = x[0];
    uint32_t i = 0;
    if (count >= HACK_WIDTH) {
        hack_floats lows = hack_load(x), highs = lows;
        for (i = HACK_WIDTH; i + HACK_WIDTH <= count; i += HACK_WIDTH) {
            lows = hack_least(lows, hack_load(x + i));
            highs = hack_most(highs, hack_load(x + i));
        }
        low = hack_least_lane(lows);
        high = hack_most_lane(highs);
    }
    for (; i < count; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    hack_operand o = hack_operand_fit(low, high);
    const hack_floats zero = {0}, top = hack_splat((float)HACK_OPERAND_LEVELS), min = hack_splat(o.min);
    const hack_floats divisor = hack_splat(o.scale > 0 ? o.scale : INFINITY);
    for (i = 0; i + HACK_WIDTH <= count; i += HACK_WIDTH) {
        hack_floats u = hack_most(zero, (hack_load(x + i) - min) / divisor);
        hack_store_bytes(codes + i, (hack_ints)(hack_least(top, u) + 0x1p23f));
    }
    for (; i < count; i++) codes[i] = (uint8_t)hack_operand_code(o, x[i]);
    return o;
}

/* folded = a * scale; returns the sum of a * min in the order of hack_identity.h. */
static float fold(const float *a, const float *scale, const float *min, uint32_t count, float *folded) {
    enum { VECTORS = HACK_LANES / HACK_WIDTH };
    hack_floats sum[VECTORS];
    float lanes[HACK_LANES];
    uint32_t i = 0;
    for (uint32_t k = 0; k < VECTORS; k++) sum[k] = hack_splat(0);
    for (; i + HACK_LANES <= count; i += HACK_LANES)
        for (uint32_t k = 0; k < VECTORS; k++) {
            uint32_t at = i + k * HACK_WIDTH;
            hack_floats x = hack_load(a + at);
            hack_store(folded + at, x * hack_load(scale + at));
            sum[k] += x * hack_load(min + at);
        }
    for (uint32_t k = 0; k < VECTORS; k++) hack_store(lanes + k * HACK_WIDTH, sum[k]);
    for (; i < count; i++) {
        folded[i] = a[i] * scale[i];
        lanes[i % HACK_LANES] += a[i] * min[i];
    }
    return hack_lane_sum(lanes);
}

/* `count` neighbours of a plane of sums, as floats. */
static void load_sums(const hack_block *block, const uint8_t *head, size_t index, uint32_t count,
                      float *out) {
    const uint8_t *at = head + block->sum_offset + index * block->sum_bytes;
    uint32_t i = 0;
    if (block->sum_bytes == 1)
        for (; i + HACK_WIDTH <= count; i += HACK_WIDTH) hack_store(out + i, hack_load_bytes(at + i));
    if (block->sum_bytes == 2)
        for (; i < count; i++) {
            uint16_t sum;
            memcpy(&sum, at + (size_t)i * sizeof sum, sizeof sum);
            out[i] = (float)(int32_t)sum;
        }
    for (; i < count; i++) out[i] = hack_count(hack_sum_load(block, head + block->sum_offset, index + i));
}

static void load_meta(const hack_block *block, const uint8_t *head, size_t index, uint32_t count,
                      float *scale, float *min) {
    size_t offset = index * block->meta_bytes;
    kvant_load_elements(head + block->scale_offset + offset, block->meta, count, scale);
    kvant_load_elements(head + block->min_offset + offset, block->meta, count, min);
}

/* ---- One line ------------------------------------------------------------------------------------------ */

/* scale * dots + min * sums for 8 or 4 of a line, from `at` on. */
HACK_INLINE hack_floats folded_lanes(hack_operand o, const uint32_t *dots, const float *sums, uint32_t at) {
    hack_ints dot;
    memcpy(&dot, dots + at, sizeof dot);
    return o.scale * hack_from_ints(dot) + o.min * hack_load(sums + at);
}

/* ---- Keys ---------------------------------------------------------------------------------------------- */

/* What `score` works on: one head of one extent. */
typedef struct key_job {
    const hack_block *block;
    const uint8_t *head;
    const uint8_t *query; /* of row 0 */
    size_t query_stride;  /* bytes */
    float *logits;        /* of row 0 and token 0 */
    size_t logit_stride;
    uint32_t rows;
    work *w;
} key_job;

static void fold_queries(const key_job *job, uint32_t first) {
    const hack_block *block = job->block;
    work *w = job->w;
    load_meta(block, job->head, hack_meta_index(block, first, 0), block->head_dim, w->scale, w->min);
    for (uint32_t r = 0; r < job->rows; r++) {
        row_work row = row_at(block, w, r);
        const float *q = (const float *)(const void *)(job->query + r * job->query_stride);
        row.minima[0] = fold(q, w->scale, w->min, block->head_dim, w->folded);
        for (uint32_t p = 0; p < block->parts; p++)
            row.operand[p] = quantize(w->folded + p * block->part, block->part, row.codes + p * block->part);
        memset(row.codes + block->head_dim, 0, hack_padded_dim(block) - block->head_dim);
    }
}

/* Dot products of a line of keys with the codes of rows [r, r + count). */
static void dot_keys(const key_job *job, uint32_t line, uint32_t r, uint32_t count) {
    const hack_block *block = job->block;
    work *w = job->w;
    hack_run run = {.line = job->head + kvant_planar_bytes(line * HACK_LINE, block->head_dim, block->bits),
                    .summed_count = block->head_dim,
                    .count = block->part};
    const uint8_t *codes[HACK_TILE];
    for (uint32_t i = 0; i < count; i++)
        codes[i] = block->per_channel
                       ? row_at(block, w, r + i).codes
                       : job->query + (r + i) * job->query_stride + 3 * block->parts * sizeof(float);
    memset(w->dots, 0, (size_t)block->parts * HACK_TILE * HACK_LINE * sizeof *w->dots);
    for (uint32_t p = 0; p < block->parts; p++) {
        const uint8_t *operands[HACK_TILE];
        uint32_t *dots[HACK_TILE];
        run.first = p * block->part;
        for (uint32_t i = 0; i < count; i++) {
            operands[i] = codes[i] + run.first;
            dots[i] = w->dots + ((size_t)p * HACK_TILE + i) * HACK_LINE;
        }
        hack_dot(&run, block->bits, count, operands, dots);
    }
}

static void logits_folded(const key_job *job, uint32_t r, uint32_t slot, float out[HACK_LINE]) {
    const hack_block *block = job->block;
    const work *w = job->w;
    row_work row = row_at(block, w, r);
    for (uint32_t at = 0; at < HACK_LINE; at += HACK_WIDTH) {
        hack_floats logit = {0};
        for (uint32_t p = 0; p < block->parts; p++)
            logit += folded_lanes(row.operand[p], w->dots + ((size_t)p * HACK_TILE + slot) * HACK_LINE,
                                  w->sums + (size_t)p * HACK_LINE, at);
        hack_store(out + at, logit + row.minima[0]);
    }
}

static void logits_plain(const key_job *job, uint32_t r, uint32_t slot, uint32_t token,
                         float out[HACK_LINE]) {
    const hack_block *block = job->block;
    const work *w = job->w;
    hack_query_state q = hack_query_parts(block, (void *)(uintptr_t)(job->query + r * job->query_stride));
    for (uint32_t i = 0; i < HACK_LINE; i++) out[i] = 0;
    for (uint32_t p = 0; p < block->parts; p++) {
        float scale[HACK_LINE], min[HACK_LINE];
        hack_operand o = {q.scale[p], q.min[p]};
        load_meta(block, job->head, (size_t)p * block->tokens + token, HACK_LINE, scale, min);
        float rest = hack_folded(o, q.sum[p], block->part);
        for (uint32_t at = 0; at < HACK_LINE; at += HACK_WIDTH) {
            hack_floats x = folded_lanes(o, w->dots + ((size_t)p * HACK_TILE + slot) * HACK_LINE,
                                         w->sums + (size_t)p * HACK_LINE, at);
            hack_floats product = hack_load(scale + at) * x + hack_load(min + at) * rest;
            hack_store(out + at, hack_load(out + at) + product);
        }
    }
}

static void score_line(const key_job *job, uint32_t line, hack_range live) {
    const hack_block *block = job->block;
    uint32_t token = line * HACK_LINE;
    uint32_t from = live.from > token ? live.from - token : 0;
    uint32_t to = live.to - token < HACK_LINE ? live.to - token : HACK_LINE;
    for (uint32_t p = 0; p < block->parts; p++)
        load_sums(block, job->head, (size_t)p * block->tokens + token, HACK_LINE,
                  job->w->sums + (size_t)p * HACK_LINE);
    for (uint32_t r = 0; r < job->rows; r += HACK_TILE) {
        uint32_t count = job->rows - r < HACK_TILE ? job->rows - r : HACK_TILE;
        dot_keys(job, line, r, count);
        for (uint32_t i = 0; i < count; i++) {
            float out[HACK_LINE];
            if (block->per_channel)
                logits_folded(job, r + i, i, out);
            else
                logits_plain(job, r + i, i, token, out);
            memcpy(job->logits + (r + i) * job->logit_stride + token + from, out + from,
                   (to - from) * sizeof *out);
        }
    }
}

static void score_extent(const key_job *job, const kvant_extent *extent) {
    const hack_block *block = job->block;
    for (uint32_t first = 0; first < block->tokens; first += block->partition) {
        hack_range live = hack_live(extent, first, block->partition);
        if (live.from == live.to) continue;
        if (block->per_channel) fold_queries(job, first);
        for (uint32_t line = live.from / HACK_LINE; line * HACK_LINE < live.to; line++)
            score_line(job, line, live);
    }
}

static void score(const hack_block *block, const kvant_score_args *args) {
    work w = {0};
    carve(block, args->scratch, &w);
    size_t stride = hack_query_bytes(block);
    for (uint32_t e = 0; e < args->extent_count; e++)
        for (uint32_t h = 0; h < args->heads; h++) {
            size_t row = (size_t)h * args->rows;
            key_job job = {.block = block,
                           .head = (const uint8_t *)args->extents[e].bytes +
                                   (args->first_head + h) * block->head_bytes,
                           .query = (const uint8_t *)args->query_state + row * stride,
                           .query_stride = stride,
                           .logits = args->logits + row * args->logit_stride + (size_t)e * block->tokens,
                           .logit_stride = args->logit_stride,
                           .rows = args->rows,
                           .w = &w};
            score_extent(&job, &args->extents[e]);
        }
}

/* ---- Values -------------------------------------------------------------------------------------------- */

/* What `mix` works on: one partition of tokens of one head of one extent. */
typedef struct value_job {
    const hack_block *block;
    const uint8_t *head;
    uint32_t first;       /* token */
    uint32_t from, to;    /* live tokens, from `first` on */
    const float *weights; /* of row 0 and token `first` */
    size_t weight_stride;
    float *accumulators; /* of row 0 */
    size_t accumulator_stride;
    uint32_t rows;
    bool whole; /* all tokens live */
    work *w;
} value_job;

/* Scales and minima; those of tokens that do not live are 0. */
static void load_values_meta(const value_job *job) {
    const hack_block *block = job->block;
    work *w = job->w;
    if (block->per_channel) {
        load_meta(block, job->head, hack_meta_index(block, job->first, 0), block->head_dim, w->scale, w->min);
        return;
    }
    for (uint32_t p = 0; p < block->parts; p++) {
        float *scale = w->scale + (size_t)p * block->partition, *min = w->min + (size_t)p * block->partition;
        load_meta(block, job->head, (size_t)p * block->tokens + job->first, block->partition, scale, min);
        for (uint32_t t = 0; t < block->partition && !job->whole; t++)
            if (t < job->from || t >= job->to) scale[t] = min[t] = 0;
    }
}

/* The weights of a row, zeros where a token does not live. */
static const float *weights_of(const value_job *job, uint32_t r) {
    const float *weights = job->weights + r * job->weight_stride;
    if (job->whole) return weights;
    memset(job->w->row, 0, job->block->partition * sizeof *weights);
    memcpy(job->w->row + job->from, weights + job->from, (job->to - job->from) * sizeof *weights);
    return job->w->row;
}

static void quantize_weights(const value_job *job) {
    const hack_block *block = job->block;
    work *w = job->w;
    uint32_t live = job->to - job->from, partition = block->partition;
    for (uint32_t r = 0; r < job->rows; r++) {
        row_work row = row_at(block, w, r);
        const float *weights = weights_of(job, r);
        uint32_t operands = block->per_channel ? 1 : block->parts;
        if (!job->whole) memset(row.codes, 0, (size_t)operands * partition);
        if (block->per_channel) {
            row.operand[0] = quantize(weights + job->from, live, row.codes + job->from);
            *row.code_sum = 0;
            for (uint32_t t = 0; t < partition; t++) *row.code_sum += row.codes[t];
            continue;
        }
        for (uint32_t p = 0; p < block->parts; p++) {
            size_t at = (size_t)p * partition;
            row.minima[p] = fold(weights, w->scale + at, w->min + at, partition, w->folded);
            row.operand[p] = quantize(w->folded + job->from, live, row.codes + at + job->from);
        }
    }
}

/* Adds up a line of 16 channels over the partition's tokens, matrix by matrix. */
static void dot_values(const value_job *job, uint32_t line, uint32_t rows, const uint8_t *const *codes,
                       uint32_t *const *dots) {
    const hack_block *block = job->block;
    for (uint32_t t = 0; t < block->partition;) {
        hack_matrix m = hack_matrix_of(block, job->first + t);
        uint32_t place = job->first + t - m.first_token, left = m.summed_count - place;
        uint32_t count = block->partition - t < left ? block->partition - t : left;
        size_t words = kvant_planar_words(m.summed_count, block->bits);
        hack_run run = {.line = job->head + m.offset + line * words * 64,
                        .summed_count = m.summed_count,
                        .first = place,
                        .count = count};
        const uint8_t *operands[HACK_TILE];
        for (uint32_t i = 0; i < rows; i++) operands[i] = codes[i] + t;
        hack_dot(&run, block->bits, rows, operands, dots);
        t += count;
    }
}

/* Sums of codes of a line's channels over live tokens. */
static const float *sums_of(const value_job *job, uint32_t line) {
    work *w = job->w;
    if (job->whole) return w->sums + (size_t)line * HACK_LINE;
    const uint8_t *ones[1] = {w->ones};
    uint32_t *dots[1] = {w->live_sums};
    memset(w->live_sums, 0, HACK_LINE * sizeof *w->live_sums);
    dot_values(job, line, 1, ones, dots);
    for (uint32_t i = 0; i < HACK_LINE; i++) w->row[i] = hack_count(w->live_sums[i]);
    return w->row;
}

/* Adds what a row has from 16 channels, or the last `count` of them, to its accumulator. */
static void add_line(const value_job *job, const row_work *row, uint32_t line, uint32_t count,
                     const uint32_t *dots, const float *sums, float *accumulator) {
    const hack_block *block = job->block;
    const work *w = job->w;
    uint32_t channel = line * HACK_LINE, part = channel / block->part, at = 0;
    hack_operand o = row->operand[block->per_channel ? 0 : part];
    float rest = block->per_channel ? hack_folded(o, *row->code_sum, job->to - job->from) : row->minima[part];
    const float *scale = w->scale + channel, *min = w->min + channel; /* used with one per channel only */
    for (; at + HACK_WIDTH <= count; at += HACK_WIDTH) {
        hack_floats x = folded_lanes(o, dots, sums, at);
        if (block->per_channel)
            x = hack_load(scale + at) * x + hack_load(min + at) * rest;
        else
            x = x + rest;
        hack_store(accumulator + channel + at, hack_load(accumulator + channel + at) + x);
    }
    for (; at < count; at++) {
        float x = o.scale * hack_count(dots[at]) + o.min * sums[at];
        accumulator[channel + at] += block->per_channel ? scale[at] * x + min[at] * rest : x + rest;
    }
}

static void mix_line(const value_job *job, uint32_t line) {
    const hack_block *block = job->block;
    work *w = job->w;
    uint32_t channel = line * HACK_LINE, left = block->head_dim - channel;
    uint32_t channels = left < HACK_LINE ? left : HACK_LINE;
    size_t operand = block->per_channel ? 0 : (size_t)(channel / block->part) * block->partition;
    const float *sums = sums_of(job, line);
    for (uint32_t r = 0; r < job->rows; r += HACK_TILE) {
        uint32_t count = job->rows - r < HACK_TILE ? job->rows - r : HACK_TILE;
        const uint8_t *codes[HACK_TILE];
        uint32_t *dots[HACK_TILE];
        for (uint32_t i = 0; i < count; i++) {
            codes[i] = row_at(block, w, r + i).codes + operand;
            dots[i] = w->dots + i * HACK_LINE;
        }
        memset(w->dots, 0, HACK_TILE * HACK_LINE * sizeof *w->dots);
        dot_values(job, line, count, codes, dots);
        for (uint32_t i = 0; i < count; i++) {
            row_work row = row_at(block, w, r + i);
            add_line(job, &row, line, channels, dots[i], sums,
                     job->accumulators + (r + i) * job->accumulator_stride);
        }
    }
}

static void mix_partition(const value_job *job) {
    const hack_block *block = job->block;
    work *w = job->w;
    load_values_meta(job);
    if (job->whole)
        load_sums(block, job->head, (size_t)(job->first / block->partition) * block->head_dim,
                  block->head_dim, w->sums);
    else
        for (uint32_t t = 0; t < block->partition; t++) w->ones[t] = t >= job->from && t < job->to;
    quantize_weights(job);
    for (uint32_t line = 0; line * HACK_LINE < block->head_dim; line++) mix_line(job, line);
}

static void mix(const hack_block *block, const kvant_mix_args *args) {
    work w = {0};
    carve(block, args->scratch, &w);
    for (uint32_t e = 0; e < args->extent_count; e++)
        for (uint32_t h = 0; h < args->heads; h++)
            for (uint32_t first = 0; first < block->tokens; first += block->partition) {
                hack_range live = hack_live(&args->extents[e], first, block->partition);
                size_t row = (size_t)h * args->rows;
                if (live.from == live.to) continue;
                value_job job = {
                    .block = block,
                    .head =
                        (const uint8_t *)args->extents[e].bytes + (args->first_head + h) * block->head_bytes,
                    .first = first,
                    .from = live.from - first,
                    .to = live.to - first,
                    .weights = args->weights + row * args->weight_stride + (size_t)e * block->tokens + first,
                    .weight_stride = args->weight_stride,
                    .accumulators = args->accumulators + row * args->accumulator_stride,
                    .accumulator_stride = args->accumulator_stride,
                    .rows = args->rows,
                    .whole = live.to - live.from == block->partition,
                    .w = &w};
                mix_partition(&job);
            }
}

const hack_attend_table KVANT_CPU(hack_attend) = {hack_query, score, mix, scratch_bytes, scratch_row};
