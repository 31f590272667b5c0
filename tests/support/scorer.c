/* See scorer.h. */
#include "support/scorer.h"

#include "support/test.h"

#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>
#include <kvant/kvant.h>

#include <stdbool.h>

enum { JUNK = 5, SCRATCH = 192, SCRATCH_ROW = 64 };

scorer_counts *scorer_count;
kvant_status scorer_fails;

typedef struct scorer_state {
    uint32_t tokens, heads, head_dim, pairs, style;
    uint32_t before;
} scorer_state;

static kvant_status plan_scorer(const kvant_setup *setup, kvant_layout *layout, bool before) {
    uint64_t elements = (uint64_t)setup->block_tokens * setup->kv_heads * setup->head_dim;
    bool key = setup->side == KVANT_SIDE_KEY;
    layout->flags = KVANT_LAYOUT_ATTEND | (before && key ? KVANT_LAYOUT_KEYS_BEFORE_ROPE : 0u);
    layout->block_multiple = 1;
    layout->alignment = 128;
    layout->size_min = 4 * elements;
    layout->payload_bits = 32 * elements;
    layout->state_bytes = sizeof(scorer_state);
    layout->scratch_bytes = SCRATCH;
    layout->attend_scratch_bytes = SCRATCH;
    layout->attend_scratch_row = SCRATCH_ROW;
    layout->query_state_bytes = key ? ((uint64_t)setup->head_dim * 4 + 63) / 64 * 64 : 0;
    layout->mix_width = key ? 0 : setup->head_dim + JUNK;
    layout->attend_tolerance = key ? 2e-7 : 2e-6; /* sums in double, and in float */
    return KVANT_OK;
}

static kvant_status plan_after(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    (void)diag;
    return plan_scorer(setup, layout, false);
}

static kvant_status plan_before(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    (void)diag;
    return plan_scorer(setup, layout, true);
}

static kvant_status open_scorer(const kvant_setup *setup, const kvant_layout *layout, void *state,
                                kvant_diag *diag) {
    (void)diag;
    *(scorer_state *)state = (scorer_state){.tokens = setup->block_tokens,
                                            .heads = setup->kv_heads,
                                            .head_dim = setup->head_dim,
                                            .pairs = kvant_rope_pairs(setup->rope),
                                            .style = setup->rope != NULL ? setup->rope->style : 0,
                                            .before = layout->flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE};
    return KVANT_OK;
}

static void close_scorer(void *state) {
    (void)state;
}

static const float *row_at(const scorer_state *s, const kvant_extent *extent, uint32_t token, uint32_t head) {
    return (const float *)extent->bytes + ((size_t)token * s->heads + head) * s->head_dim;
}

static kvant_status encode(const void *state, kvant_encode_args *args) {
    const scorer_state *s = state;
    float *out = args->extent;
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t h = 0; h < s->heads; h++)
            kvant_load_row(args->rows, t, h, out + ((size_t)t * s->heads + h) * s->head_dim);
    args->size = (uint64_t)s->tokens * s->heads * s->head_dim * sizeof(float);
    return KVANT_OK;
}

static kvant_status decode(const void *state, const kvant_decode_args *args) {
    const scorer_state *s = state;
    memset(args->scratch, 0x5a, SCRATCH);
    for (uint32_t t = 0; t < args->rows->tokens; t++)
        for (uint32_t h = 0; h < args->rows->heads; h++)
            kvant_store_row(args->rows, t, h,
                            row_at(s, args->extent, args->first_token + t, args->first_head + h));
    return KVANT_OK;
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

static bool aligned(const void *address) {
    return address != NULL && (uintptr_t)address % 64 == 0;
}

static void use_scratch(void *scratch, uint32_t heads, uint32_t rows) {
    memset(scratch, 0x5a, SCRATCH + (size_t)heads * rows * SCRATCH_ROW);
}

static bool live_is_right(const scorer_state *s, const kvant_extent *extents, uint32_t count) {
    bool good = count != 0;
    for (uint32_t e = 0; e < count; e++)
        good = good && extents[e].live_count != 0 && extents[e].live_count <= s->tokens &&
               extents[e].live_first <= s->tokens - extents[e].live_count &&
               (uintptr_t)extents[e].bytes % 128 == 0;
    return good;
}

static size_t query_floats(const scorer_state *s) {
    return (s->head_dim + 15u) / 16 * 16;
}

static kvant_status query(const void *state, const kvant_query_args *args) {
    const scorer_state *s = state;
    if (!aligned(args->query_state) || !aligned(args->scratch) || args->first_head + args->heads > s->heads)
        return KVANT_ERROR_ARGUMENT;
    use_scratch(args->scratch, args->heads, args->rows);
    for (size_t r = 0; r < (size_t)args->heads * args->rows; r++)
        memcpy((float *)args->query_state + r * query_floats(s), args->queries + r * args->query_stride,
               s->head_dim * sizeof(float));
    if (scorer_count != NULL) scorer_count->queries += (uint64_t)args->heads * args->rows;
    return KVANT_OK;
}

/* The key of a token, turned by the sum of two angles. */
static void turned_key(const scorer_state *s, const kvant_score_args *args, uint32_t e, uint32_t t,
                       uint32_t head, double *key) {
    const float *row = row_at(s, &args->extents[e], t, head);
    for (uint32_t c = 0; c < s->head_dim; c++) key[c] = (double)row[c];
    for (uint32_t i = 0; s->before && i < s->pairs; i++) {
        const float *a = args->first_turns + 2 * ((size_t)e * s->pairs + i);
        const float *b = args->offset_turns + 2 * ((size_t)t * s->pairs + i);
        double cosine = (double)a[0] * (double)b[0] - (double)a[1] * (double)b[1];
        double sine = (double)a[1] * (double)b[0] + (double)a[0] * (double)b[1];
        uint32_t first = s->style == KVANT_ROPE_NEOX ? i : 2 * i;
        uint32_t second = s->style == KVANT_ROPE_NEOX ? i + s->pairs : 2 * i + 1;
        double x = key[first], y = key[second];
        key[first] = x * cosine - y * sine;
        key[second] = y * cosine + x * sine;
    }
}

static kvant_status score(const void *state, const kvant_score_args *args) {
    const scorer_state *s = state;
    double key[512];
    bool turns = s->before && s->pairs != 0;
    if (s->head_dim > 512 || !aligned(args->query_state) ||
        !live_is_right(s, args->extents, args->extent_count) || args->offset_count != s->tokens ||
        (args->first_turns != NULL) != turns || (args->offset_turns != NULL) != turns)
        return KVANT_ERROR_ARGUMENT;
    use_scratch(args->scratch, args->heads, args->rows);
    for (uint32_t e = 0; e < args->extent_count; e++)
        for (uint32_t i = 0; i < args->extents[e].live_count; i++)
            for (uint32_t h = 0; h < args->heads; h++) {
                uint32_t t = args->extents[e].live_first + i;
                turned_key(s, args, e, t, args->first_head + h, key);
                for (uint32_t r = 0; r < args->rows; r++) {
                    size_t at = (size_t)h * args->rows + r;
                    const float *q = (const float *)args->query_state + at * query_floats(s);
                    double sum = 0;
                    for (uint32_t c = 0; c < s->head_dim; c++) sum += (double)q[c] * key[c];
                    args->logits[at * args->logit_stride + (size_t)e * s->tokens + t] = (float)sum;
                }
                if (scorer_count != NULL) scorer_count->scored++;
            }
    return scorer_fails;
}

static kvant_status mix(const void *state, const kvant_mix_args *args) {
    const scorer_state *s = state;
    if (!aligned(args->accumulators) || args->accumulator_stride % 16 != 0 ||
        args->accumulator_stride < s->head_dim + JUNK || !live_is_right(s, args->extents, args->extent_count))
        return KVANT_ERROR_ARGUMENT;
    use_scratch(args->scratch, args->heads, args->rows);
    for (uint32_t e = 0; e < args->extent_count; e++)
        for (uint32_t i = 0; i < args->extents[e].live_count; i++)
            for (uint32_t h = 0; h < args->heads; h++) {
                uint32_t t = args->extents[e].live_first + i;
                const float *value = row_at(s, &args->extents[e], t, args->first_head + h);
                for (uint32_t r = 0; r < args->rows; r++) {
                    size_t at = (size_t)h * args->rows + r;
                    float weight = args->weights[at * args->weight_stride + (size_t)e * s->tokens + t];
                    float *sum = args->accumulators + at * args->accumulator_stride;
                    if (!(weight >= 0 && weight <= 1.00001f)) return KVANT_ERROR_ARGUMENT;
                    for (uint32_t j = 0; j < JUNK; j++) sum[j] += weight * 3.0f;
                    for (uint32_t c = 0; c < s->head_dim; c++)
                        sum[JUNK + c] += weight * (2 * value[s->head_dim - 1 - c]);
                }
                if (scorer_count != NULL) scorer_count->mixed++;
            }
    return scorer_fails;
}

static kvant_status finish(const void *state, const kvant_finish_args *args) {
    const scorer_state *s = state;
    use_scratch(args->scratch, args->heads, args->rows);
    for (size_t r = 0; r < (size_t)args->heads * args->rows; r++)
        for (uint32_t c = 0; c < s->head_dim; c++)
            args->outputs[r * args->output_stride + c] =
                args->accumulators[r * args->accumulator_stride + JUNK + s->head_dim - 1 - c] / 2;
    return scorer_fails;
}

static const kvant_attend attend = {
    .struct_size = sizeof(kvant_attend), .query = query, .score = score, .mix = mix, .finish = finish};

static const void *extension(const char *id) {
    return strcmp(id, KVANT_EXT_ATTEND) == 0 ? &attend : NULL;
}

/* ---- The plugins --------------------------------------------------------------------------------------- */

#define DESCRIPTOR(name_, letter)                                                                            \
    {                                                                                                        \
        .struct_size = sizeof(kvant_descriptor), .format_id = 'S' | 'C' << 8 | 'O' << 16 | (letter) << 24,   \
        .format_version = 1, .sides = KVANT_SIDES_BOTH, .dtypes = KVANT_DTYPES_ALL, .head_dim_min = 1,       \
        .head_dim_max = 512, .head_dim_multiple = 1, .name = (name_), .version = "1.0.0",                    \
        .title = "Keeps what it gets, and attends on it", .paper = "", .license = "Apache-2.0",              \
        .deviations = ""                                                                                     \
    }

#define PLUGIN(descriptor_, plan_)                                                                           \
    {                                                                                                        \
        .struct_size = sizeof(kvant_plugin), .abi = KVANT_ABI, .descriptor = &(descriptor_),                 \
        .plan = (plan_), .open = open_scorer, .close = close_scorer, .encode = encode, .decode = decode,     \
        .extension = extension                                                                               \
    }

static const kvant_descriptor after_descriptor = DESCRIPTOR("scorer", 'A');
static const kvant_descriptor before_descriptor = DESCRIPTOR("scorer_before", 'B');
static const kvant_plugin after_plugin = PLUGIN(after_descriptor, plan_after);
static const kvant_plugin before_plugin = PLUGIN(before_descriptor, plan_before);

static const kvant_plugin *query_after(uint32_t host_abi) {
    (void)host_abi;
    return &after_plugin;
}

static const kvant_plugin *query_before(uint32_t host_abi) {
    (void)host_abi;
    return &before_plugin;
}

void scorer_register(void) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_plugin_register(query_after, &diag) != KVANT_OK ||
        kvant_plugin_register(query_before, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
}
