/* What `open` makes: the codebook and, for static ranges, what is known of every channel. */
#include "kvquant_state.h"

#include <kvant/kit/diag.h>

/* ---- Fixed codebooks ----------------------------------------------------------------------------------- */

/* NormalFloat as the authors' --nf: with P the inverse normal distribution, o = (1/32 + 1/30) / 2 and m =
 * 2^(bits-1), the m numbers P(x), x in m+1 equal steps from 1 - o to 1/2 but for the last, 0, and the m-1
 * numbers -P(x), x in m equal steps likewise; all divided by the largest. */
static const float nf2[] = {-1, 0, 0.337915093f, 1};
static const float nf3[] = {-1, -0.478629023f, -0.217141733f, 0, 0.160930127f, 0.337915093f, 0.562616825f, 1};
static const float nf4[] = {-1,
                            -0.696192682f,
                            -0.525072873f,
                            -0.394917399f,
                            -0.284441262f,
                            -0.184773386f,
                            -0.0910499468f,
                            0,
                            0.0795802623f,
                            0.160930127f,
                            0.246112183f,
                            0.337915093f,
                            0.440709621f,
                            0.562616825f,
                            0.722956538f,
                            1};

void kvquant_fixed_book(uint32_t codebook, uint32_t bits, float book[16]) {
    uint32_t levels = 1u << bits;
    const float *nf = bits == 2 ? nf2 : bits == 3 ? nf3 : nf4;
    for (uint32_t i = 0; i < levels; i++)
        book[i] = codebook == KVQUANT_NF ? nf[i] : (float)(2 * i) / (float)(levels - 1) - 1;
}

/* ---- Tensors ------------------------------------------------------------------------------------------- */

/* The tensor of this name, F32, of the shape [rows][columns] or, with rows 0, [columns]. */
static kvant_status find(const kvant_setup *setup, const char *name, uint64_t rows, uint64_t columns,
                         const kvant_array **found, kvant_diag *diag) {
    const char *side = setup->side == KVANT_SIDE_KEY ? "key" : "value";
    *found = NULL;
    for (uint32_t i = 0; i < setup->tensor_count; i++)
        if (strcmp(setup->tensors[i].name, name) == 0) *found = &setup->tensors[i];
    if (*found == NULL)
        return kvant_fail(diag, KVANT_ERROR_MISSING, "",
                          "tensor \"%s\" of layer %u, %s, is missing: kvquant learns it (kvant calibrate)",
                          name, setup->layer, side);
    const kvant_array *a = *found;
    uint32_t rank = rows > 0 ? 2 : 1;
    uint64_t count = (rows > 0 ? rows : 1) * columns;
    bool fits = a->dtype == KVANT_DTYPE_F32 && a->rank == rank && a->bytes == count * sizeof(float) &&
                a->data != NULL && a->shape[rank - 1] == columns && (rows == 0 || a->shape[0] == rows);
    if (fits) return KVANT_OK;
    if (rows > 0)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "",
                          "tensor \"%s\" of layer %u, %s, must be F32 [%llu, %llu] (all kv heads, head_dim)",
                          name, setup->layer, side, (unsigned long long)rows, (unsigned long long)columns);
    return kvant_fail(diag, KVANT_ERROR_MISMATCH, "", "tensor \"%s\" of layer %u, %s, must be F32 [%llu]",
                      name, setup->layer, side, (unsigned long long)columns);
}

static float number(const kvant_array *array, size_t index) {
    return kvant_load_element((const char *)array->data + index * sizeof(float), KVANT_DTYPE_F32);
}

static kvant_status refuse(const kvant_setup *setup, const char *name, size_t index, const char *rule,
                           kvant_diag *diag) {
    return kvant_fail(diag, KVANT_ERROR_MISMATCH, "", "tensor \"%s\" of layer %u, %s: number %zu %s", name,
                      setup->layer, setup->side == KVANT_SIDE_KEY ? "key" : "value", index, rule);
}

/* Floats in the order of their values, as integers. */
static int32_t order_of(float x) {
    int32_t bits = (int32_t)kvant_float_bits(x);
    return bits >= 0 ? bits : INT32_MIN - bits;
}

static float float_of(int32_t order) {
    return kvant_bits_float((uint32_t)(order >= 0 ? order : INT32_MIN - order));
}

/* ---- Codebook ------------------------------------------------------------------------------------------ */

enum { ENTRY_MAX = 1024 }; /* far beyond what a fit gives: entries lie in [-1, 1], after Q-Norm not far out */

static kvant_status open_book(kvquant_state *state, const kvant_setup *setup, kvant_diag *diag) {
    const kvquant_config *config = &state->block.config;
    uint32_t levels = state->block.levels;
    const kvant_array *book;
    if (!kvquant_needs_codebook(config)) {
        kvquant_fixed_book(config->codebook, config->bits, state->book);
        return KVANT_OK;
    }
    kvant_status status = find(setup, "codebook", 0, levels, &book, diag);
    for (uint32_t i = 0; status == KVANT_OK && i < levels; i++) {
        state->book[i] = number(book, i);
        if (!(fabsf(state->book[i]) <= ENTRY_MAX))
            status = refuse(setup, "codebook", i, "is not within [-1024, 1024]", diag);
        else if (i > 0 && state->book[i] < state->book[i - 1])
            status = refuse(setup, "codebook", i, "is less than the one before", diag);
    }
    return status;
}

static kvant_status open_norm(kvquant_state *state, const kvant_setup *setup, kvant_diag *diag) {
    const kvant_array *scale, *offset;
    uint32_t levels = state->block.levels;
    memcpy(state->table, state->book, sizeof state->table);
    if (!state->block.config.qnorm) return KVANT_OK;
    kvant_status status = find(setup, "normscale", 0, 1, &scale, diag);
    if (status == KVANT_OK) status = find(setup, "normoffset", 0, 1, &offset, diag);
    if (status != KVANT_OK) return status;
    float s = number(scale, 0), o = number(offset, 0);
    if (!(s > 0 && s <= ENTRY_MAX)) return refuse(setup, "normscale", 0, "is not within (0, 1024]", diag);
    if (!(fabsf(o) <= ENTRY_MAX)) return refuse(setup, "normoffset", 0, "is not within [-1024, 1024]", diag);
    for (uint32_t i = 0; i < levels; i++) {
        float product = state->book[i] * s;
        state->table[i] = product + o;
    }
    return KVANT_OK;
}

/* Of two neighbours the upper one is nearer from one float on, which lies between them. Below and above it
 * stays so unless the distances to both round to one number, which takes a gap beyond the resolution of a
 * float as wide as the book. */
static void open_edges(kvquant_state *state) {
    const float *book = state->book;
    uint32_t levels = state->block.levels;
    float width = book[levels - 1] - book[0];
    state->has_edges = true;
    for (uint32_t k = 1; k < levels; k++) {
        if (!(book[k] - book[k - 1] > width * 0x1p-20f)) state->has_edges = false;
        int32_t below = order_of(book[k - 1]), above = order_of(book[k]);
        while ((int64_t)above - below > 1) {
            int32_t between = (int32_t)(below + ((int64_t)above - below) / 2);
            float x = float_of(between);
            if (fabsf(book[k] - x) < fabsf(book[k - 1] - x))
                above = between;
            else
                below = between;
        }
        state->edges[k] = float_of(above);
    }
}

/* ---- Static ranges ------------------------------------------------------------------------------------- */

/* The largest x with (x - z) / r not above 1, which is monotone in x: outliers of the deployed cache are
 * those above. For -z it is the least x of the other tail, negated. */
static float edge_of(float middle, float half) {
    int32_t in = order_of(-FLT_MAX), out = order_of(INFINITY);
    while ((int64_t)out - in > 1) {
        int32_t between = (int32_t)(in + ((int64_t)out - in) / 2);
        if ((float_of(between) - middle) / half > 1)
            out = between;
        else
            in = between;
    }
    return float_of(in);
}

static void set_channel(kvquant_state *state, size_t at, float upper, float lower) {
    const kvquant_channels *c = &state->channels;
    kvquant_range table = kvquant_range_of_f16(upper, lower), score = kvquant_range_of(upper, lower);
    c->middle[at] = table.middle;
    c->half[at] = table.half;
    c->score_middle[at] = state->block.config.deployed ? score.middle : table.middle;
    c->score_half[at] = state->block.config.deployed ? score.half : table.half;
    c->high[at] = upper;
    c->low[at] = lower;
    if (!state->block.config.deployed) return;
    c->high[at] = edge_of(score.middle, score.half);
    c->low[at] = -edge_of(-score.middle, score.half);
}

static kvant_status open_channels(kvquant_state *state, const kvant_setup *setup, kvant_diag *diag) {
    const kvquant_block *block = &state->block;
    const kvant_array *upper, *lower;
    kvant_status status = find(setup, "upper", setup->total_kv_heads, block->head_dim, &upper, diag);
    if (status == KVANT_OK)
        status = find(setup, "lower", setup->total_kv_heads, block->head_dim, &lower, diag);
    if (status != KVANT_OK) return status;
    for (uint32_t h = 0; h < block->heads; h++)
        for (uint32_t c = 0; c < block->padded; c++) {
            size_t at = (size_t)h * block->padded + c;
            size_t from = ((size_t)setup->first_kv_head + h) * block->head_dim + c;
            if (c >= block->head_dim) {
                set_channel(state, at, 1, -1);
                state->channels.high[at] = INFINITY;
                state->channels.low[at] = -INFINITY;
                continue;
            }
            float u = number(upper, from), l = number(lower, from);
            if (!kvquant_finite(u)) return refuse(setup, "upper", from, "is not finite", diag);
            if (!kvquant_finite(l)) return refuse(setup, "lower", from, "is not finite", diag);
            if (l > u) return refuse(setup, "upper", from, "is less than that of \"lower\"", diag);
            /* Both in float16, as the authors keep them. */
            set_channel(state, at, kvant_f16_to_f32(kvant_f32_to_f16_sat(u)) + 0.0f,
                        kvant_f16_to_f32(kvant_f32_to_f16_sat(l)) + 0.0f);
        }
    return KVANT_OK;
}

kvant_status kvquant_tables_open(kvquant_state *state, const kvant_setup *setup, kvant_diag *diag) {
    const kvquant_block *block = &state->block;
    kvant_status status = KVANT_OK;
    if (block->config.is_static) status = open_channels(state, setup, diag);
    if (status == KVANT_OK) status = open_book(state, setup, diag);
    if (status == KVANT_OK) status = open_norm(state, setup, diag);
    if (status != KVANT_OK) return status;
    open_edges(state);
    state->hidden_code = kvquant_by_rank(&block->config) ? block->levels / 2 - 1
                                                         : kvquant_nearest(state->book, block->levels, 0);
    return KVANT_OK;
}
