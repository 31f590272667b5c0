/* turboquant: rotate a head's channels, quantize every coordinate with the quantizer that is best for what
 * the rotation makes of any vector.
 *
 * Zandieh, Daliri, Hadian, Mirrokni, "TurboQuant: Online Vector Quantization with Near-optimal Distortion
 * Rate", arXiv 2504.19874: algorithm 1 is mode = mse, algorithm 2 is mode = prod. This file has what a host
 * sees: parameters, descriptor, plan, open. The arithmetic is in turboquant_reference.c, the byte map in
 * turboquant_block.h. */
#include "turboquant_scratch.h"

#include <kvant/kit/diag.h>

#include <string.h>

/* ---- What the user can set ----------------------------------------------------------------------------- */

enum {
    PARAM_BITS,
    PARAM_MODE,
    PARAM_SCALE_MODE,
    PARAM_SCALE_TYPE,
    PARAM_CODEBOOK,
    PARAM_ROTATION,
    PARAM_SKETCH,
    PARAM_OUTLIERS,
    PARAM_SEED,
    PARAM_COUNT
};
enum { MODE_MSE, MODE_PROD };
enum { OUTLIERS_NONE, OUTLIERS_QUARTER, OUTLIERS_HALF };

enum {
    HEAD_DIM_MAX = 4096,
    GAUSSIAN_DIM_MAX = 1024, /* of a dense sketch: 4 MB */
    TOKENS_MAX = 1 << 20
};

static const char *const mode_choices[] = {"mse", "prod"};
static const char *const scale_mode_choices[] = {"raw", "norm_corrected", "unbiased"};
static const char *const scale_type_choices[] = {"f16", "bf16", "f32"};
static const char *const codebook_choices[] = {"gauss", "sphere"};
static const char *const rotation_choices[] = {"signed", "double"};
static const char *const sketch_choices[] = {"hadamard", "gaussian"};
static const char *const outlier_choices[] = {"none", "quarter", "half"};

#define CHOICE(words, otherwise)                                                                             \
    .struct_size = sizeof(kvant_param), .type = KVANT_PARAM_CHOICE, .unit = "", .choices = (words),          \
    .choice_count = sizeof(words) / sizeof *(words), .integer_default = (otherwise)

static const kvant_param params[PARAM_COUNT] = {
    [PARAM_BITS] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_INTEGER,
                    .name = "bits",
                    .unit = "bits",
                    .help = "of a coordinate, with prod's sign bit; outliers have one more",
                    .integer_min = 1,
                    .integer_max = 8,
                    .integer_default = 4},
    [PARAM_MODE] = {CHOICE(mode_choices, MODE_MSE), .name = "mode",
                    .help = "mse: least error (algorithm 1); prod: one bit fewer, and one that makes inner "
                            "products unbiased (algorithm 2)"},
    [PARAM_SCALE_MODE] = {CHOICE(scale_mode_choices, TURBOQUANT_NORM_CORRECTED), .name = "scale_mode",
                          .help = "raw: the norm, as in the paper; norm_corrected: decoded rows have the "
                                  "norm of their originals; unbiased: no shrinkage along the row itself"},
    [PARAM_SCALE_TYPE] = {CHOICE(scale_type_choices, 0), .name = "scale_type",
                          .help = "type of stored scales and residual norms"},
    [PARAM_CODEBOOK] = {CHOICE(codebook_choices, TURBOQUANT_CODEBOOK_GAUSS), .name = "codebook",
                        .help = "Lloyd-Max levels for N(0,1), or for a coordinate of a sphere in as many "
                                "dimensions as are rotated together"},
    [PARAM_ROTATION] = {CHOICE(rotation_choices, 0), .name = "rotation",
                        .help = "Hadamard transforms with random signs; double: twice as many"},
    [PARAM_SKETCH] = {CHOICE(sketch_choices, TURBOQUANT_SKETCH_HADAMARD), .name = "sketch",
                      .help = "prod's matrix: a second rotation, or independent N(0,1) as in the paper, "
                              "which is slow and noisier"},
    [PARAM_OUTLIERS] = {CHOICE(outlier_choices, OUTLIERS_NONE), .name = "outliers",
                        .help = "share of channels, those of most energy in the block, that are coded apart "
                                "with one bit more: bits + 0.25 or + 0.5 on average"},
    [PARAM_SEED] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_INTEGER,
                    .name = "seed",
                    .unit = "",
                    .help = "of signs, orders and matrices; the same for every layer that names this codec",
                    .integer_min = 0,
                    .integer_max = INT64_MAX,
                    .integer_default = 42},
};

static const kvant_descriptor descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = (uint32_t)'T' | (uint32_t)'U' << 8 | (uint32_t)'R' << 16 | (uint32_t)'B' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .head_dim_min = 1,
    .head_dim_max = HEAD_DIM_MAX,
    .head_dim_multiple = 1,
    .param_count = PARAM_COUNT,
    .name = "turboquant",
    .version = "1.0.0",
    .title = "TurboQuant: random rotation, then the best scalar quantizer",
    .paper = "Zandieh et al., TurboQuant, arXiv 2504.19874, algorithms 1 and 2",
    .license = "Apache-2.0",
    .deviations =
        "The rotation is a Hadamard transform with random signs instead of a dense random orthogonal matrix; "
        "where the number of channels is no power of two, four rounds over power-of-two chunks with random "
        "orders in between. Scales are norm-corrected by default (raw is the paper's). prod's matrix is "
        "orthogonal by default, which is less noisy, and its residual is that of the stored scale. Outliers "
        "are chosen anew for every block, their share is what the average says (the paper calls 2.25 bits "
        "2.5). No stored bit is entropy coded.",
    .params = params,
};

/* ---- Setup --------------------------------------------------------------------------------------------- */

/* Best last, within the family of this processor. */
static const turboquant_code *const codes[] = {
    &turboquant_code_reference,
#if defined(KVANT_HAVE_V2)
    &turboquant_code_v2,
#endif
#if defined(KVANT_HAVE_V3)
    &turboquant_code_v3,
#endif
#if defined(KVANT_HAVE_V4)
    &turboquant_code_v4,
#endif
#if defined(KVANT_HAVE_NEON)
    &turboquant_code_neon,
#endif
};

static const turboquant_code *code_for(uint32_t isa) {
    const turboquant_code *best = &turboquant_code_reference;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i]->isa <= isa) best = codes[i];
    return best;
}

static kvant_status check_geometry(const kvant_setup *setup, kvant_diag *diag) {
    if (setup->side != KVANT_SIDE_KEY && setup->side != KVANT_SIDE_VALUE)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "side %u: turboquant codes keys and values",
                          setup->side);
    if (setup->dtype != KVANT_DTYPE_F32 && setup->dtype != KVANT_DTYPE_F16 &&
        setup->dtype != KVANT_DTYPE_BF16)
        return kvant_fail(diag, KVANT_ERROR_DTYPE, "", "rows of dtype %u: f32, f16 or bf16", setup->dtype);
    if (setup->block_tokens == 0 || setup->block_tokens > TOKENS_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "", "block_tokens is %u, must be 1 to %d",
                          setup->block_tokens, TOKENS_MAX);
    if (setup->kv_heads == 0 || setup->head_dim == 0 || setup->head_dim > HEAD_DIM_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "kv_heads is %u and head_dim %u: at least 1, head_dim at most %d", setup->kv_heads,
                          setup->head_dim, HEAD_DIM_MAX);
    return KVANT_OK;
}

/* Parameters that do not go together, or say what nothing reads. */
static kvant_status check_values(const kvant_setup *setup, kvant_diag *diag) {
    const kvant_value *v = setup->values;
    int64_t bits = v[PARAM_BITS].integer;
    bool prod = v[PARAM_MODE].integer == MODE_PROD, split = v[PARAM_OUTLIERS].integer != OUTLIERS_NONE;
    if (split && bits == 8)
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, "outliers",
                          "outliers have one bit more than bits = 8; at most 8 can be stored");
    if (!prod && v[PARAM_SKETCH].given)
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, "sketch", "sketch is only for mode = prod");
    if (prod && bits == 1 && !split && (v[PARAM_SCALE_MODE].given || v[PARAM_CODEBOOK].given))
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, v[PARAM_SCALE_MODE].given ? "scale_mode" : "codebook",
                          "mode = prod with bits = 1 is the sketch alone: it has no codebook and no scale");
    if (v[PARAM_CODEBOOK].integer == TURBOQUANT_CODEBOOK_SPHERE && setup->head_dim < 2)
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, "codebook",
                          "codebook = sphere needs at least 2 channels that are rotated together");
    return KVANT_OK;
}

static kvant_status make_parts(const kvant_setup *setup, turboquant_block *b, kvant_diag *diag) {
    const kvant_value *v = setup->values;
    static const uint32_t quarters[] = {0, 1, 2};
    uint32_t bits = (uint32_t)v[PARAM_BITS].integer, dim = setup->head_dim;
    bool sphere = v[PARAM_CODEBOOK].integer == TURBOQUANT_CODEBOOK_SPHERE;
    uint32_t outliers = dim * quarters[v[PARAM_OUTLIERS].integer] / 4;
    b->part_count = v[PARAM_OUTLIERS].integer == OUTLIERS_NONE ? 1 : 2;
    if (b->part_count > 1 && (outliers < 1 || (sphere && outliers < 2)))
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "outliers",
                          "head_dim = %u: the %s of its channels are too few to be coded apart", dim,
                          outlier_choices[v[PARAM_OUTLIERS].integer]);
    turboquant_part_make(&b->parts[0], dim - outliers, bits, b->prod != 0);
    if (b->part_count > 1) turboquant_part_make(&b->parts[1], outliers, bits + 1, b->prod != 0);
    return KVANT_OK;
}

/* All of a state but its tables. */
static kvant_status read_setup(const kvant_setup *setup, turboquant_state *s, kvant_diag *diag) {
    static const uint32_t types[] = {KVANT_DTYPE_F16, KVANT_DTYPE_BF16, KVANT_DTYPE_F32};
    const kvant_value *v = setup->values;
    kvant_status status = check_geometry(setup, diag);
    if (status == KVANT_OK) status = check_values(setup, diag);
    if (status != KVANT_OK) return status;
    turboquant_block *b = &s->block;
    *b = (turboquant_block){.side = setup->side,
                            .tokens = setup->block_tokens,
                            .heads = setup->kv_heads,
                            .head_dim = setup->head_dim,
                            .scale_type = types[v[PARAM_SCALE_TYPE].integer],
                            .prod = v[PARAM_MODE].integer == MODE_PROD};
    b->scale_bytes = kvant_element_bytes(b->scale_type);
    s->scale_mode = (uint32_t)v[PARAM_SCALE_MODE].integer;
    s->sketch_kind = (uint32_t)v[PARAM_SKETCH].integer;
    s->codebook = (uint32_t)v[PARAM_CODEBOOK].integer;
    s->doubled = (uint32_t)v[PARAM_ROTATION].integer;
    s->seed = (uint64_t)v[PARAM_SEED].integer;
    if (b->prod && s->sketch_kind == TURBOQUANT_SKETCH_GAUSSIAN && b->head_dim > GAUSSIAN_DIM_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "sketch",
                          "head_dim = %u: sketch = gaussian is a dense matrix and takes at most %d channels",
                          b->head_dim, GAUSSIAN_DIM_MAX);
    status = make_parts(setup, b, diag);
    if (status != KVANT_OK) return status;
    if (!turboquant_block_make(b))
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "a block of %u tokens, %u heads and %u channels is too large to address", b->tokens,
                          b->heads, b->head_dim);
    return KVANT_OK;
}

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    turboquant_state s = {0};
    layout->alignment = TURBOQUANT_HEAD_ALIGN;
    layout->block_multiple = 1;
    kvant_status status = read_setup(setup, &s, diag);
    if (status != KVANT_OK) return status;
    const turboquant_block *b = &s.block;
    uint64_t payload = 0, metadata = b->part_count > 1 ? b->head_dim : 0; /* bits of a head */
    for (uint32_t p = 0; p < b->part_count; p++) {
        const turboquant_part *part = &b->parts[p];
        uint32_t scales = (part->code_bits > 0 ? 1u : 0u) + b->prod;
        payload += (uint64_t)b->tokens * part->dim * part->bits;
        metadata += (uint64_t)b->tokens * scales * b->scale_bytes * 8;
    }
    layout->isa = code_for(setup->isa)->isa;
    layout->size_min = b->bytes;
    layout->payload_bits = payload * b->heads;
    layout->metadata_bits = metadata * b->heads;
    layout->state_bytes = turboquant_state_bytes(&s);
    layout->scratch_bytes = turboquant_scratch_cut(b, NULL).bytes;
    return KVANT_OK;
}

static kvant_status open_codec(const kvant_setup *setup, const kvant_layout *layout, void *memory,
                               kvant_diag *diag) {
    turboquant_state *state = memory;
    (void)layout;
    kvant_status status = read_setup(setup, state, diag);
    if (status != KVANT_OK) return status;
    state->code = code_for(setup->isa);
    turboquant_tables_make(state);
    return KVANT_OK;
}

static void close_codec(void *memory) {
    (void)memory; /* everything is in the state, which the host frees */
}

/* ---- Hot calls ----------------------------------------------------------------------------------------- */

static kvant_status encode(const void *memory, kvant_encode_args *args) {
    return ((const turboquant_state *)memory)->code->encode(memory, args);
}

static kvant_status decode(const void *memory, const kvant_decode_args *args) {
    return ((const turboquant_state *)memory)->code->decode(memory, args);
}

static const void *extension(const char *id) {
    return strcmp(id, KVANT_EXT_INSPECT) == 0 ? &turboquant_inspect : NULL;
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
