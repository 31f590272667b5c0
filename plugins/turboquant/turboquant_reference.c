/* The norm: one element after the other, written to be read. Floats, one IEEE operation at a time; "sum"
 * without more is the halving tree of kit/sum.h.
 *
 * Encoding the n channels x of one token, head and part (R is the rotation, K_n the root of n in float):
 *
 *     power    a power of two that brings max|x| into [2, 4); x <- x * power
 *     r        sqrt(sum of x * x)
 *     t        (R x)[i] * (K_n / r)                   coordinates of root mean square 1; r = 0: all +0
 *     code     how many boundaries are <= t           a tie goes up, -0 is 0
 *     scale    raw              r * (1 / K_n)
 *              norm_corrected   r / sqrt(sum of c * c)             c: the centroid of each code
 *              unbiased         r * K_n / (sum of t * c)
 *              times 1 / power, rounded to the stored type, at its end where it would overflow
 *
 * and with mode = prod, from the scale as it is stored:
 *
 *     e        (R x)[i] - c * (scale * power)         the rotated residual
 *     residual sqrt(sum of e * e) * (1 / K_n) / power, rounded likewise
 *     sign     1 where (S e)[i] >= 0                  S: a second rotation, or a matrix of N(0,1)
 *
 * Decoding:
 *
 *     mse      x = (R^T c)[i] * scale
 *     prod     x = R^T(c * (scale * power) + w * (residual * power * sqrt(pi/2)))[i] / power
 *              w = S^T (+-1), for a gaussian matrix times 1 / K_n;  power: of the larger of the two scales
 *
 *     within +-FLT_MAX
 */
#include "turboquant_scratch.h"

#include <float.h>

/* ---- Rotations ----------------------------------------------------------------------------------------- */

/* Sylvester's matrix, by butterflies of stride 1, 2, 4, ... */
static void transform(float *x, uint32_t n) {
    for (uint32_t stride = 1; stride < n; stride *= 2)
        for (uint32_t start = 0; start < n; start += 2 * stride)
            for (uint32_t i = start; i < start + stride; i++) {
                float a = x[i], b = x[i + stride];
                x[i] = a + b;
                x[i + stride] = a - b;
            }
}

static void transform_chunks(float *x, uint32_t dim) {
    for (uint32_t chunk = 1u << 31; chunk > 0; chunk /= 2) {
        if ((dim & chunk) == 0) continue;
        transform(x, chunk);
        x += chunk;
    }
}

static void rotate(const turboquant_rotation *r, float *x, float *swap) {
    for (uint32_t round = 0; round < r->rounds; round++) {
        const float *weights = r->weights + (size_t)round * r->dim;
        if (r->reorders && round > 0) {
            const uint32_t *order = r->order + (size_t)round * r->dim;
            for (uint32_t i = 0; i < r->dim; i++) swap[i] = x[order[i]];
            memcpy(x, swap, r->dim * sizeof *x);
        }
        for (uint32_t i = 0; i < r->dim; i++) x[i] = turboquant_flip(x[i], weights[i]);
        transform_chunks(x, r->dim);
        for (uint32_t i = 0; i < r->dim; i++) x[i] = turboquant_shrink(x[i], weights[i]);
    }
}

static void rotate_back(const turboquant_rotation *r, float *x, float *swap) {
    for (uint32_t round = r->rounds; round-- > 0;) {
        const float *weights = r->weights + (size_t)round * r->dim;
        transform_chunks(x, r->dim);
        for (uint32_t i = 0; i < r->dim; i++) x[i] *= weights[i];
        if (r->reorders && round > 0) {
            const uint32_t *order = r->order + (size_t)round * r->dim;
            for (uint32_t i = 0; i < r->dim; i++) swap[order[i]] = x[i];
            memcpy(x, swap, r->dim * sizeof *x);
        }
    }
}

/* ---- Sketch -------------------------------------------------------------------------------------------- */

/* S e, in place. */
static void sketch(const turboquant_tables *t, uint32_t dim, float *e, const turboquant_scratch *s) {
    if (t->matrix == NULL) {
        rotate(&t->sketch, e, s->swap);
        return;
    }
    for (uint32_t j = 0; j < dim; j++) {
        for (uint32_t i = 0; i < dim; i++) s->terms[i] = t->matrix[(size_t)i * dim + j] * e[i];
        s->swap[j] = kvant_sum(s->terms, dim);
    }
    memcpy(e, s->swap, dim * sizeof *e);
}

/* S^T of +-1, in place. */
static void sketch_back(const turboquant_tables *t, uint32_t dim, float *w, const turboquant_scratch *s) {
    if (t->matrix == NULL) {
        rotate_back(&t->sketch, w, s->swap);
        return;
    }
    for (uint32_t i = 0; i < dim; i++) {
        for (uint32_t j = 0; j < dim; j++) s->terms[j] = t->matrix[(size_t)i * dim + j] * w[j];
        s->swap[i] = kvant_sum(s->terms, dim) * t->inverse_root;
    }
    memcpy(w, s->swap, dim * sizeof *w);
}

/* ---- One row ------------------------------------------------------------------------------------------- */

static float sum_of_products(const float *a, const float *b, uint32_t n, float *terms) {
    for (uint32_t i = 0; i < n; i++) terms[i] = a[i] * b[i];
    return kvant_sum(terms, n);
}

static float largest_magnitude(const float *x, uint32_t n) {
    float largest = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        float magnitude = kvant_bits_float(kvant_float_bits(x[i]) & 0x7fffffffu);
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* What decoding multiplies the centroids with, before it is rounded. `c`: centroids, `t`: coordinates. */
static float fit_scale(const turboquant_state *state, const turboquant_tables *tables, uint32_t dim, float r,
                       const float *t, const float *c, float *terms) {
    if (r == 0.0f) return 0.0f;
    switch (state->scale_mode) {
    case TURBOQUANT_RAW:
        return r * tables->inverse_root;
    case TURBOQUANT_UNBIASED:
        return r * tables->root / sum_of_products(t, c, dim, terms);
    default:
        return r / kvant_root_f32(sum_of_products(c, c, dim, terms));
    }
}

typedef struct stored {
    float scale;
    float residual;
} stored;

/* x: the channels, destroyed. */
static stored encode_row(const turboquant_state *state, uint32_t p, float *x, uint8_t *symbols,
                         const turboquant_scratch *s, uint64_t *saturated) {
    const turboquant_block *b = &state->block;
    const turboquant_part *part = &b->parts[p];
    const turboquant_tables *tables = &state->tables[p];
    uint32_t n = part->dim;
    float *t = s->gathered, *c = s->sketch;
    stored out = {0, 0};

    float power = turboquant_power_for(largest_magnitude(x, n)), back = 1.0f / power;
    for (uint32_t i = 0; i < n; i++) x[i] *= power;
    float r = kvant_root_f32(sum_of_products(x, x, n, s->terms));
    rotate(&tables->rotation, x, s->swap);
    memset(symbols, 0, n);
    memset(c, 0, n * sizeof *c);
    if (part->code_bits > 0) {
        float unit = r > 0.0f ? tables->root / r : 0.0f;
        for (uint32_t i = 0; i < n; i++) {
            t[i] = x[i] * unit;
            for (uint32_t k = 0; k + 1 < part->levels; k++)
                symbols[i] = (uint8_t)(symbols[i] + (t[i] >= tables->boundaries[k]));
            c[i] = tables->centroids[symbols[i]];
        }
        float scale = fit_scale(state, tables, n, r, t, c, s->terms);
        out.scale = turboquant_round_stored(scale * back, b->scale_type, saturated);
    }
    if (!b->prod) return out;
    float taken = out.scale * power;
    for (uint32_t i = 0; i < n; i++) c[i] = x[i] - c[i] * taken;
    float length = kvant_root_f32(sum_of_products(c, c, n, s->terms)) * tables->inverse_root;
    out.residual = turboquant_round_stored(length * back, b->scale_type, saturated);
    sketch(tables, n, c, s);
    for (uint32_t i = 0; i < n; i++)
        symbols[i] = (uint8_t)(symbols[i] | (c[i] >= 0.0f ? 1u : 0u) << part->code_bits);
    return out;
}

static float cut(float x) {
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

/* x: the channels of the part, written. */
static void decode_row(const turboquant_state *state, uint32_t p, const uint8_t *symbols, stored in, float *x,
                       const turboquant_scratch *s) {
    const turboquant_part *part = &state->block.parts[p];
    const turboquant_tables *tables = &state->tables[p];
    uint32_t n = part->dim;
    for (uint32_t i = 0; i < n; i++)
        x[i] = part->code_bits > 0 ? tables->centroids[symbols[i] & (part->levels - 1)] : 0.0f;
    if (!state->block.prod) {
        rotate_back(&tables->rotation, x, s->swap);
        for (uint32_t i = 0; i < n; i++) x[i] = cut(x[i] * in.scale);
        return;
    }
    float *w = s->sketch;
    for (uint32_t i = 0; i < n; i++) w[i] = (symbols[i] >> part->code_bits & 1) != 0 ? 1.0f : -1.0f;
    sketch_back(tables, n, w, s);
    float power = turboquant_power_for(in.scale > in.residual ? in.scale : in.residual), back = 1.0f / power;
    float scale = in.scale * power, residual = in.residual * power * 0x1.40d932p+0f; /* sqrt(pi/2) */
    for (uint32_t i = 0; i < n; i++) x[i] = x[i] * scale + w[i] * residual;
    rotate_back(&tables->rotation, x, s->swap);
    for (uint32_t i = 0; i < n; i++) x[i] = cut(x[i] * back);
}

/* ---- Extents ------------------------------------------------------------------------------------------- */

static void encode_token(const turboquant_state *state, const kvant_view *rows, uint32_t token, uint32_t head,
                         uint8_t *bytes, const turboquant_scratch *s, uint64_t *saturated) {
    const turboquant_block *b = &state->block;
    const char *from = kvant_view_at(rows, token, head);
    for (uint32_t i = 0; i < b->head_dim; i++)
        s->row[i] = kvant_load_element(from + (int64_t)s->channels[i] * rows->channel_stride, rows->dtype);
    float *x = s->row;
    for (uint32_t p = 0; p < b->part_count; x += b->parts[p++].dim) {
        const turboquant_part *part = &b->parts[p];
        stored out = encode_row(state, p, x, s->symbols, s, saturated);
        for (uint32_t i = 0; i < part->dim; i++)
            turboquant_symbol_put(b, part, bytes, token, i, s->symbols[i]);
        size_t at = (size_t)token * b->scale_bytes;
        if (part->code_bits > 0)
            kvant_store_element(bytes + part->scale_offset + at, b->scale_type, out.scale);
        if (b->prod) kvant_store_element(bytes + part->residual_offset + at, b->scale_type, out.residual);
    }
}

static kvant_status encode(const void *memory, kvant_encode_args *args) {
    const turboquant_state *state = memory;
    const turboquant_block *b = &state->block;
    turboquant_scratch s = turboquant_scratch_cut(b, args->scratch);
    memset(args->extent, 0, b->bytes);
    args->size = b->bytes;
    args->saturated = 0;
    for (uint32_t h = 0; h < b->heads; h++) {
        uint8_t *bytes = (uint8_t *)args->extent + h * b->head_bytes;
        if (b->part_count > 1) turboquant_outliers_find(b, args->rows, h, bytes, &s);
        turboquant_channels_read(b, bytes, s.channels);
        for (uint32_t t = 0; t < b->tokens; t++)
            encode_token(state, args->rows, t, h, bytes, &s, &args->saturated);
    }
    return KVANT_OK;
}

static void decode_token(const turboquant_state *state, const uint8_t *bytes, uint32_t token, char *to,
                         const kvant_mutable_view *rows, const turboquant_scratch *s) {
    const turboquant_block *b = &state->block;
    float *x = s->row;
    for (uint32_t p = 0; p < b->part_count; x += b->parts[p++].dim) {
        const turboquant_part *part = &b->parts[p];
        stored in = {0, 0};
        for (uint32_t i = 0; i < part->dim; i++)
            s->symbols[i] = (uint8_t)turboquant_symbol_get(b, part, bytes, token, i);
        if (part->code_bits > 0)
            in.scale = turboquant_load_stored(bytes + part->scale_offset, token, b->scale_type);
        if (b->prod)
            in.residual = turboquant_load_stored(bytes + part->residual_offset, token, b->scale_type);
        decode_row(state, p, s->symbols, in, x, s);
    }
    for (uint32_t i = 0; i < b->head_dim; i++)
        kvant_store_element(to + (int64_t)s->channels[i] * rows->channel_stride, rows->dtype, s->row[i]);
}

static kvant_status decode(const void *memory, const kvant_decode_args *args) {
    const turboquant_state *state = memory;
    const turboquant_block *b = &state->block;
    turboquant_scratch s = turboquant_scratch_cut(b, args->scratch);
    for (uint32_t h = 0; h < args->rows->heads; h++) {
        const uint8_t *bytes = (const uint8_t *)args->extent->bytes + (args->first_head + h) * b->head_bytes;
        turboquant_channels_read(b, bytes, s.channels);
        for (uint32_t t = 0; t < args->rows->tokens; t++)
            decode_token(state, bytes, args->first_token + t, kvant_mutable_view_at(args->rows, t, h),
                         args->rows, &s);
    }
    return KVANT_OK;
}

const turboquant_code turboquant_code_reference = {KVANT_ISA_SCALAR, encode, decode};
