/* hack: homomorphic quantization; attention in integers on asymmetric codes of few bits.
 *
 * Zhang et al., "HACK: Homomorphic Acceleration via Compression of the Key-Value Cache for Disaggregated LLM
 * Inference", arXiv 2502.03589, and its artifact (ATC 2026). Keys and values become codes in partitions, with
 * the sums of codes beside them; queries and weights become 8-bit codes; products of codes are corrected by
 * the sums, so nothing is ever dequantized. This file has what a host sees: parameters, descriptor, plan,
 * open. The arithmetic is in hack_quantize.h and hack_identity.h, the byte map in hack_block.h.
 */
#include "hack.h"
#include "hack_attend.h"
#include "hack_quantize.h"
#include "hack_tolerance.h"

#include <kvant/kit/diag.h>

/* ---- What the user can set ----------------------------------------------------------------------------- */

enum {
    PARAM_BITS,
    PARAM_PARTITION,
    PARAM_AXES,
    PARAM_META,
    PARAM_ROUNDING,
    PARAM_SEED,
    PARAM_FLAT,
    PARAM_COUNT
};

enum { TOKENS_MAX = 1 << 20, HEAD_DIM_MAX = 4096 };

static const int64_t bits_allowed[] = {2, 4, 8};
static const int64_t partitions[] = {16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096};
static const char *const axes_choices[] = {[HACK_AXES_ARTIFACT] = "artifact", [HACK_AXES_PAPER] = "paper"};
static const char *const meta_choices[] = {"bf16", "f16", "f32"};
static const char *const flat_choices[] = {"zero", "one"};
static const char *const rounding_choices[] = {[HACK_NEAREST] = "nearest", [HACK_STOCHASTIC] = "stochastic"};

static const kvant_param params[PARAM_COUNT] = {
    [PARAM_BITS] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_INTEGER,
                    .name = "bits",
                    .unit = "bits",
                    .help = "width of a code",
                    .integers = bits_allowed,
                    .integer_count = sizeof bits_allowed / sizeof bits_allowed[0],
                    .integer_min = 2,
                    .integer_max = 8,
                    .integer_default = 2},
    [PARAM_PARTITION] =
        {.struct_size = sizeof(kvant_param),
         .type = KVANT_PARAM_INTEGER,
         .name = "partition",
         .unit = "",
         .help = "numbers of a partition: tokens (divides block_tokens), and at most as many channels, "
                 "in steps of 16 downwards until they divide head_dim",
         .integers = partitions,
         .integer_count = sizeof partitions / sizeof partitions[0],
         .integer_min = 16,
         .integer_max = 4096,
         .integer_default = 64},
    [PARAM_AXES] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_CHOICE,
                    .name = "axes",
                    .unit = "",
                    .help = "artifact = keys in partitions along tokens, values along channels; paper = keys "
                            "along channels, values along tokens",
                    .choices = axes_choices,
                    .choice_count = sizeof axes_choices / sizeof axes_choices[0],
                    .integer_default = HACK_AXES_ARTIFACT},
    [PARAM_META] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_CHOICE,
                    .name = "meta",
                    .unit = "",
                    .help = "type of stored scales and minima; the artifact's is bf16, the paper's f16",
                    .choices = meta_choices,
                    .choice_count = sizeof meta_choices / sizeof meta_choices[0],
                    .integer_default = 0},
    [PARAM_ROUNDING] = {.struct_size = sizeof(kvant_param),
                        .type = KVANT_PARAM_CHOICE,
                        .name = "rounding",
                        .unit = "",
                        .help = "nearest = half to even; stochastic = up with the probability of the rest",
                        .choices = rounding_choices,
                        .choice_count = sizeof rounding_choices / sizeof rounding_choices[0],
                        .integer_default = HACK_NEAREST},
    [PARAM_SEED] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_INTEGER,
                    .name = "seed",
                    .unit = "",
                    .help = "of the noise of stochastic rounding, which is a function of seed, layer, side, "
                            "position, head and channel",
                    .integer_min = 0,
                    .integer_max = INT32_MAX,
                    .integer_default = 0},
    [PARAM_FLAT] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_CHOICE,
                    .name = "flat",
                    .unit = "",
                    .help = "scale that is stored for a partition without range; the artifact's is one, "
                            "which coarsens the 8-bit codes of queries and weights",
                    .choices = flat_choices,
                    .choice_count = sizeof flat_choices / sizeof flat_choices[0],
                    .integer_default = 0},
};

static const kvant_descriptor descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = (uint32_t)'H' | (uint32_t)'A' << 8 | (uint32_t)'C' << 16 | (uint32_t)'K' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .head_dim_min = 1,
    .head_dim_max = HEAD_DIM_MAX,
    .head_dim_multiple = 1,
    .param_count = PARAM_COUNT,
    .name = "hack",
    .version = "1.0.0",
    .title = "HACK: attention in integers on asymmetric codes with stored sums",
    .paper = "Zhang et al., HACK, arXiv 2502.03589, section 5; artifact of ATC 2026",
    .license = "Apache-2.0",
    .deviations =
        "The artifact's codes, scales, minima and sums, bit for bit, except: a constant partition stores "
        "scale 0 (the artifact's 1, flat = one, spoils the 8-bit range of weights and queries); ranges that "
        "overflow give "
        "finite scales. Queries and weights are rounded to nearest also where rounding is stochastic, and "
        "the noise is a function of position, head and channel. Blocks begin at multiples of block_tokens, "
        "not behind the sinks; sinks and the 16-bit tail belong to the host.",
    .params = params,
};

/* ---- Setup --------------------------------------------------------------------------------------------- */

typedef struct level {
    const hack_code_table *code;
    const hack_attend_table *attend;
} level;

/* Best last, within the family of this processor. */
static const level levels[] = {
    {&hack_code_reference, &hack_attend_reference},
#if defined(KVANT_HAVE_V2)
    {&hack_code_v2, &hack_attend_v2},
#endif
#if defined(KVANT_HAVE_V3)
    {&hack_code_v3, &hack_attend_v3},
#endif
#if defined(KVANT_HAVE_V4)
    {&hack_code_v4, &hack_attend_v4},
#endif
#if defined(KVANT_HAVE_NEON)
    {&hack_code_neon, &hack_attend_neon},
#endif
};

static level level_for(uint32_t isa) {
    level best = levels[0];
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (levels[i].code->isa <= isa) best = levels[i];
    return best;
}

static kvant_status refuse_shape(const kvant_setup *setup, kvant_diag *diag) {
    uint32_t partition = (uint32_t)setup->values[PARAM_PARTITION].integer;
    if (setup->block_tokens % partition != 0)
        return kvant_fail(diag, KVANT_ERROR_BLOCK_TOKENS, "partition",
                          "partition = %u must divide block_tokens = %u", partition, setup->block_tokens);
    if (setup->block_tokens == 0 || setup->block_tokens > TOKENS_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "", "block_tokens is %u, must be 1 to %d",
                          setup->block_tokens, TOKENS_MAX);
    if (setup->kv_heads == 0 || setup->head_dim == 0 || setup->head_dim > HEAD_DIM_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "kv_heads is %u and head_dim %u: at least 1, head_dim at most %d", setup->kv_heads,
                          setup->head_dim, HEAD_DIM_MAX);
    if (hack_part(partition, setup->head_dim) == 0)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "partition",
                          "head_dim = %u is no multiple of 16 and larger than partition = %u: it cannot be "
                          "cut into partitions of channels",
                          setup->head_dim, partition);
    return KVANT_OK;
}

/* The host has checked the parameters against the schema, and dtype, side and head_dim against the
 * descriptor. */
static kvant_status block_of(const kvant_setup *setup, hack_block *block, kvant_diag *diag) {
    static const uint32_t metas[] = {KVANT_DTYPE_BF16, KVANT_DTYPE_F16, KVANT_DTYPE_F32};
    kvant_status status = refuse_shape(setup, diag);
    if (status != KVANT_OK) return status;
    bool artifact = setup->values[PARAM_AXES].integer == HACK_AXES_ARTIFACT;
    uint32_t partition = (uint32_t)setup->values[PARAM_PARTITION].integer;
    *block = (hack_block){.side = setup->side,
                          .bits = (uint32_t)setup->values[PARAM_BITS].integer,
                          .tokens = setup->block_tokens,
                          .heads = setup->kv_heads,
                          .head_dim = setup->head_dim,
                          .partition = partition,
                          .part = hack_part(partition, setup->head_dim),
                          .per_channel = (setup->side == KVANT_SIDE_KEY) == artifact,
                          .dtype = setup->dtype,
                          .meta = metas[setup->values[PARAM_META].integer],
                          .rounding = (uint32_t)setup->values[PARAM_ROUNDING].integer,
                          .flat = (float)setup->values[PARAM_FLAT].integer,
                          .first_head = setup->first_kv_head,
                          .noise_base = hack_noise_base((uint64_t)setup->values[PARAM_SEED].integer,
                                                        setup->layer, setup->side)};
    if (!hack_block_make(block))
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "a block of %u tokens, %u heads and %u channels is too large to address",
                          setup->block_tokens, setup->kv_heads, setup->head_dim);
    return KVANT_OK;
}

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    hack_block block;
    layout->block_multiple = (uint32_t)setup->values[PARAM_PARTITION].integer;
    kvant_status status = block_of(setup, &block, diag);
    if (status != KVANT_OK) return status;
    level best = level_for(setup->isa);
    bool key = setup->side == KVANT_SIDE_KEY;
    uint64_t head_metadata = (uint64_t)block.meta_count * 2 * block.meta_bytes * 8 +
                             (uint64_t)block.sum_count * block.sum_bytes * 8;
    layout->flags = KVANT_LAYOUT_ATTEND;
    layout->alignment = HACK_HEAD_ALIGN;
    layout->isa = best.code->isa;
    layout->size_min = block.bytes;
    layout->payload_bits = (uint64_t)block.tokens * block.head_dim * block.bits * block.heads;
    layout->metadata_bits = head_metadata * block.heads;
    layout->state_bytes = sizeof(hack_state);
    layout->scratch_bytes = best.code->scratch_bytes(&block);
    layout->mix_width = key ? 0 : block.head_dim;
    layout->attend_scratch_bytes = best.attend->scratch_bytes(&block);
    layout->attend_scratch_row = best.attend->scratch_row(&block);
    layout->query_state_bytes = key ? hack_query_bytes(&block) : 0;
    layout->attend_tolerance = hack_tolerance(&block);
    return KVANT_OK;
}

static kvant_status open_codec(const kvant_setup *setup, const kvant_layout *layout, void *memory,
                               kvant_diag *diag) {
    hack_state *state = memory;
    (void)layout;
    kvant_status status = block_of(setup, &state->block, diag);
    if (status != KVANT_OK) return status;
    level best = level_for(setup->isa);
    state->code = best.code;
    state->attend = best.attend;
    return KVANT_OK;
}

static void close_codec(void *memory) {
    (void)memory; /* everything is in the state, which the host frees */
}

/* ---- Hot calls ----------------------------------------------------------------------------------------- */

static kvant_status encode(const void *memory, kvant_encode_args *args) {
    const hack_state *state = memory;
    state->code->encode(&state->block, args);
    return KVANT_OK;
}

static kvant_status decode(const void *memory, const kvant_decode_args *args) {
    const hack_state *state = memory;
    state->code->decode(&state->block, args);
    return KVANT_OK;
}

static kvant_status query(const void *memory, const kvant_query_args *args) {
    const hack_state *state = memory;
    state->attend->query(&state->block, args);
    return KVANT_OK;
}

static kvant_status score(const void *memory, const kvant_score_args *args) {
    const hack_state *state = memory;
    state->attend->score(&state->block, args);
    return KVANT_OK;
}

static kvant_status mix(const void *memory, const kvant_mix_args *args) {
    const hack_state *state = memory;
    state->attend->mix(&state->block, args);
    return KVANT_OK;
}

/* The accumulator is the output. */
static kvant_status finish(const void *memory, const kvant_finish_args *args) {
    const hack_block *block = &((const hack_state *)memory)->block;
    for (size_t r = 0; r < (size_t)args->heads * args->rows; r++)
        memcpy(args->outputs + r * args->output_stride, args->accumulators + r * args->accumulator_stride,
               block->head_dim * sizeof(float));
    return KVANT_OK;
}

static const kvant_attend attend = {
    .struct_size = sizeof(kvant_attend), .query = query, .score = score, .mix = mix, .finish = finish};

static const void *extension(const char *id) {
    if (strcmp(id, KVANT_EXT_INSPECT) == 0) return &hack_inspect;
    return strcmp(id, KVANT_EXT_ATTEND) == 0 ? &attend : NULL;
}

/* ---- The one exported function ------------------------------------------------------------------------- */

static const kvant_plugin plugin = {
    .struct_size = sizeof(kvant_plugin),
    .abi = KVANT_ABI,
    .descriptor = &descriptor,
    .plan = plan,
    .open = open_codec,
    .close = close_codec,
    .encode = encode,
    .decode = decode,
    .extension = extension,
};

__attribute__((visibility("default"))) const kvant_plugin *kvant_plugin_query(uint32_t host_abi);

const kvant_plugin *kvant_plugin_query(uint32_t host_abi) {
    (void)host_abi; /* the host decides whether plugin.abi fits */
    return &plugin;
}
