/* Attention on codes, one number after another, as hack_identity.h defines it: the scalar level and the norm,
 * which every other level equals bit for bit.
 *
 *     query   axes = artifact: a copy of the row, f32 [head_dim]; it is quantized in `score`, once for every
 *             partition of tokens, since their scales are folded in
 *             axes = paper: for each partition of channels scale, min (f32), then sums of codes (u32), each
 *             [parts], then the codes (u8 [head_dim])
 *     mix     accumulators are the sums themselves, [head_dim]
 */
#include "hack.h"
#include "hack_attend.h"
#include "hack_identity.h"

#include <string.h>

static const uint8_t *head_of(const hack_block *block, const kvant_extent *extent, uint32_t head) {
    return (const uint8_t *)extent->bytes + head * block->head_bytes;
}

static float scale_at(const hack_block *block, const uint8_t *head, uint32_t t, uint32_t c) {
    return hack_meta_load(block, head + block->scale_offset, hack_meta_index(block, t, c));
}

static float min_at(const hack_block *block, const uint8_t *head, uint32_t t, uint32_t c) {
    return hack_meta_load(block, head + block->min_offset, hack_meta_index(block, t, c));
}

static uint32_t sum_at(const hack_block *block, const uint8_t *head, uint32_t t, uint32_t c) {
    return hack_sum_load(block, head + block->sum_offset, hack_sum_index(block, t, c));
}

/* Quantizes x[0 .. count), of which only [from, to) live; codes outside are 0. */
static hack_operand quantize(const float *x, uint32_t from, uint32_t to, uint32_t count, uint8_t *codes) {
    float low = x[from], high = x[from];
    for (uint32_t i = from; i < to; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    hack_operand o = hack_operand_fit(low, high);
    for (uint32_t i = 0; i < count; i++)
        codes[i] = i >= from && i < to ? (uint8_t)hack_operand_code(o, x[i]) : 0;
    return o;
}

/* ---- Scratch ------------------------------------------------------------------------------------------- */

/* One operand at a time: its numbers, its codes and, with axes = artifact, its partitions. */
typedef struct work {
    float *folded;         /* [longest of head_dim and partition] */
    hack_operand *operand; /* [parts] */
    uint8_t *codes;        /* like folded */
} work;

static size_t carve(const hack_block *block, void *scratch, work *w) {
    size_t count = block->head_dim > block->partition ? block->head_dim : block->partition;
    size_t folded = hack_round_up(count * sizeof(float), 64);
    size_t operands = hack_round_up(block->parts * sizeof(hack_operand), 64);
    if (scratch != NULL) {
        uint8_t *at = scratch;
        w->folded = (float *)(void *)at;
        w->operand = (hack_operand *)(void *)(at + folded);
        w->codes = at + folded + operands;
    }
    return folded + operands + count;
}

static uint64_t scratch_bytes(const hack_block *block) {
    return carve(block, NULL, NULL);
}

static uint64_t scratch_row(const hack_block *block) {
    (void)block;
    return 0;
}

/* ---- Keys ---------------------------------------------------------------------------------------------- */

void hack_query(const hack_block *block, const kvant_query_args *args) {
    uint64_t stride = hack_query_bytes(block);
    for (uint32_t r = 0; r < args->heads * args->rows; r++) {
        const float *q = args->queries + r * args->query_stride;
        uint8_t *out = (uint8_t *)args->query_state + r * stride;
        memset(out, 0, stride);
        if (block->per_channel) {
            memcpy(out, q, block->head_dim * sizeof *q);
            continue;
        }
        hack_query_state s = hack_query_parts(block, out);
        for (uint32_t p = 0; p < block->parts; p++) {
            uint8_t *codes = s.codes + p * block->part;
            hack_operand o = quantize(q + p * block->part, 0, block->part, block->part, codes);
            s.scale[p] = o.scale;
            s.min[p] = o.min;
            for (uint32_t c = 0; c < block->part; c++) s.sum[p] += codes[c];
        }
    }
}

static uint32_t key_dot(const hack_block *block, const uint8_t *head, uint32_t t, uint32_t part,
                        const uint8_t *codes) {
    uint32_t dot = 0;
    for (uint32_t c = part * block->part; c < (part + 1) * block->part; c++)
        dot += codes[c] * hack_code_get(block, head, t, c);
    return dot;
}

/* axes = artifact: the live tokens [from, to) of one partition. */
static void score_folded(const hack_block *block, const uint8_t *head, const float *q, uint32_t from,
                         uint32_t to, float *logits, work *w) {
    float lanes[HACK_LANES] = {0};
    for (uint32_t c = 0; c < block->head_dim; c++) {
        w->folded[c] = q[c] * scale_at(block, head, from, c);
        lanes[c % HACK_LANES] += q[c] * min_at(block, head, from, c);
    }
    float minima = hack_lane_sum(lanes);
    for (uint32_t p = 0; p < block->parts; p++)
        w->operand[p] =
            quantize(w->folded + p * block->part, 0, block->part, block->part, w->codes + p * block->part);
    for (uint32_t t = from; t < to; t++) {
        float logit = 0;
        for (uint32_t p = 0; p < block->parts; p++)
            logit += hack_folded(w->operand[p], key_dot(block, head, t, p, w->codes),
                                 sum_at(block, head, t, p * block->part));
        logits[t] = logit + minima;
    }
}

/* axes = paper. */
static void score_plain(const hack_block *block, const uint8_t *head, const hack_query_state *q,
                        uint32_t from, uint32_t to, float *logits) {
    for (uint32_t t = from; t < to; t++) {
        float logit = 0;
        for (uint32_t p = 0; p < block->parts; p++) {
            uint32_t c = p * block->part;
            hack_operand o = {q->scale[p], q->min[p]};
            logit +=
                hack_product(o, q->sum[p], scale_at(block, head, t, c), min_at(block, head, t, c),
                             sum_at(block, head, t, c), key_dot(block, head, t, p, q->codes), block->part);
        }
        logits[t] = logit;
    }
}

static void score_row(const hack_block *block, const kvant_extent *extent, uint32_t head,
                      const uint8_t *state, float *logits, work *w) {
    const uint8_t *base = head_of(block, extent, head);
    for (uint32_t first = 0; first < block->tokens; first += block->partition) {
        hack_range live = hack_live(extent, first, block->partition);
        if (live.from == live.to) continue;
        if (block->per_channel) {
            score_folded(block, base, (const float *)(const void *)state, live.from, live.to, logits, w);
        } else {
            hack_query_state q = hack_query_parts(block, (uint8_t *)(uintptr_t)state);
            score_plain(block, base, &q, live.from, live.to, logits);
        }
    }
}

static void score(const hack_block *block, const kvant_score_args *args) {
    work w = {0};
    carve(block, args->scratch, &w);
    uint64_t stride = hack_query_bytes(block);
    for (uint32_t h = 0; h < args->heads; h++)
        for (uint32_t r = 0; r < args->rows; r++) {
            size_t row = (size_t)h * args->rows + r;
            for (uint32_t e = 0; e < args->extent_count; e++)
                score_row(block, &args->extents[e], args->first_head + h,
                          (const uint8_t *)args->query_state + row * stride,
                          args->logits + row * args->logit_stride + (size_t)e * block->tokens, &w);
        }
}

/* ---- Values -------------------------------------------------------------------------------------------- */

/* Sums of codes, and of codes times weights' codes, of one channel over live tokens. The stored sum serves
 * where all tokens of the partition live. */
static void value_sums(const hack_block *block, const uint8_t *head, uint32_t first, hack_range live,
                       uint32_t c, const uint8_t *codes, uint32_t *dot, uint32_t *sum) {
    bool whole = live.to - live.from == block->partition;
    *dot = 0;
    *sum = whole ? sum_at(block, head, first, c) : 0;
    for (uint32_t t = live.from; t < live.to; t++) {
        uint32_t code = hack_code_get(block, head, t, c);
        *dot += codes[t - first] * code;
        *sum += whole ? 0 : code;
    }
}

/* axes = artifact: one partition of tokens. */
static void mix_folded(const hack_block *block, const uint8_t *head, uint32_t first, hack_range live,
                       const float *weights, float *accumulator, work *w) {
    for (uint32_t p = 0; p < block->parts; p++) {
        float lanes[HACK_LANES] = {0};
        for (uint32_t t = live.from; t < live.to; t++) {
            w->folded[t - first] = weights[t] * scale_at(block, head, t, p * block->part);
            lanes[(t - first) % HACK_LANES] += weights[t] * min_at(block, head, t, p * block->part);
        }
        float minima = hack_lane_sum(lanes);
        hack_operand o = quantize(w->folded, live.from - first, live.to - first, block->partition, w->codes);
        for (uint32_t c = p * block->part; c < (p + 1) * block->part; c++) {
            uint32_t dot, sum;
            value_sums(block, head, first, live, c, w->codes, &dot, &sum);
            accumulator[c] += hack_folded(o, dot, sum) + minima;
        }
    }
}

/* axes = paper. */
static void mix_plain(const hack_block *block, const uint8_t *head, uint32_t first, hack_range live,
                      const float *weights, float *accumulator, work *w) {
    uint32_t weight_sum = 0;
    for (uint32_t t = live.from; t < live.to; t++) w->folded[t - first] = weights[t];
    hack_operand o = quantize(w->folded, live.from - first, live.to - first, block->partition, w->codes);
    for (uint32_t t = live.from; t < live.to; t++) weight_sum += w->codes[t - first];
    for (uint32_t c = 0; c < block->head_dim; c++) {
        uint32_t dot, sum;
        value_sums(block, head, first, live, c, w->codes, &dot, &sum);
        accumulator[c] += hack_product(o, weight_sum, scale_at(block, head, first, c),
                                       min_at(block, head, first, c), sum, dot, live.to - live.from);
    }
}

static void mix_row(const hack_block *block, const kvant_extent *extent, uint32_t head, const float *weights,
                    float *accumulator, work *w) {
    const uint8_t *base = head_of(block, extent, head);
    for (uint32_t first = 0; first < block->tokens; first += block->partition) {
        hack_range live = hack_live(extent, first, block->partition);
        if (live.from == live.to) continue;
        if (block->per_channel)
            mix_plain(block, base, first, live, weights, accumulator, w);
        else
            mix_folded(block, base, first, live, weights, accumulator, w);
    }
}

static void mix(const hack_block *block, const kvant_mix_args *args) {
    work w = {0};
    carve(block, args->scratch, &w);
    for (uint32_t h = 0; h < args->heads; h++)
        for (uint32_t r = 0; r < args->rows; r++) {
            size_t row = (size_t)h * args->rows + r;
            for (uint32_t e = 0; e < args->extent_count; e++)
                mix_row(block, &args->extents[e], args->first_head + h,
                        args->weights + row * args->weight_stride + (size_t)e * block->tokens,
                        args->accumulators + row * args->accumulator_stride, &w);
        }
}

const hack_attend_table hack_attend_reference = {hack_query, score, mix, scratch_bytes, scratch_row};
