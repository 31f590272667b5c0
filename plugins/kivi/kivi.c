/* kivi: asymmetric quantization with keys grouped per channel and values per token.
 *
 * Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024, arXiv 2402.02750.
 * Outliers of keys stay in their channels, so a group of keys runs along the tokens of one channel; outliers
 * of values do not, so a group of values runs along the channels of one token. This file has what a host
 * sees: parameters, descriptor, plan, open. The arithmetic is in kivi_group.h, the byte map in kivi_block.h.
 */
#include "kivi.h"

#include <kvant/kit/diag.h>

/* ---- What the user can set ----------------------------------------------------------------------------- */

enum { PARAM_BITS, PARAM_GROUP, PARAM_META, PARAM_COUNT };

enum { GROUP_MAX = 4096, TOKENS_MAX = 1 << 20, HEAD_DIM_MAX = 4096 };

static const int64_t bits_allowed[] = {1, 2, 3, 4, 8};
static const char *const meta_choices[] = {"input", "f16", "bf16", "f32"};

static const kvant_param params[PARAM_COUNT] = {
    [PARAM_BITS] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_INTEGER,
                    .name = "bits",
                    .unit = "bits",
                    .help = "width of a code",
                    .integers = bits_allowed,
                    .integer_count = sizeof bits_allowed / sizeof bits_allowed[0],
                    .integer_min = 1,
                    .integer_max = 8,
                    .integer_default = 2},
    [PARAM_GROUP] =
        {.struct_size = sizeof(kvant_param),
         .type = KVANT_PARAM_INTEGER,
         .name = "group",
         .unit = "",
         .help = "numbers that share a scale and a minimum: tokens of a key channel (divides block_tokens), "
                 "channels of a value token (at most all of the head's)",
         .integer_min = 1,
         .integer_max = GROUP_MAX,
         .integer_default = 32},
    [PARAM_META] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_CHOICE,
                    .name = "meta",
                    .unit = "",
                    .help = "type of stored scales and minima; input = the type of the rows",
                    .choices = meta_choices,
                    .choice_count = sizeof meta_choices / sizeof meta_choices[0],
                    .integer_default = 0},
};

static const kvant_descriptor descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = (uint32_t)'K' | (uint32_t)'I' << 8 | (uint32_t)'V' << 16 | (uint32_t)'I' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .head_dim_min = 1,
    .head_dim_max = HEAD_DIM_MAX,
    .head_dim_multiple = 1,
    .param_count = PARAM_COUNT,
    .name = "kivi",
    .version = "1.0.0",
    .title = "KIVI: asymmetric quantization, keys per channel, values per token",
    .paper = "Liu et al., KIVI, ICML 2024, arXiv 2402.02750, section 3",
    .license = "Apache-2.0",
    .deviations = "The group rule of the paper and its code, bit for bit, except: a constant group has codes "
                  "0 (the code casts NaN "
                  "to an integer); a range that overflows the input type gives a finite scale (the code "
                  "gives infinity and NaN); "
                  "a scale that underflows to 0 gives codes 0 (the code gives the largest code or NaN). "
                  "Values are decoded in "
                  "float32, as the paper's GPU kernel does and its Python reference does not. The residual "
                  "window belongs to the "
                  "host (recent), which seals blocks of both sides at the same token; any number of tokens "
                  "may be appended at once.",
    .params = params,
};

/* ---- Setup --------------------------------------------------------------------------------------------- */

/* Best last, within the family of this processor. */
static const kivi_code *const codes[] = {
    &kivi_code_reference,
#if defined(KVANT_HAVE_V2)
    &kivi_code_v2,
#endif
#if defined(KVANT_HAVE_V3)
    &kivi_code_v3,
#endif
#if defined(KVANT_HAVE_V4)
    &kivi_code_v4,
#endif
#if defined(KVANT_HAVE_NEON)
    &kivi_code_neon,
#endif
};

static const kivi_code *code_for(uint32_t isa) {
    const kivi_code *best = &kivi_code_reference;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i]->isa <= isa) best = codes[i];
    return best;
}

static uint32_t meta_of(const kvant_setup *setup) {
    static const uint32_t dtypes[] = {KVANT_DTYPE_NONE, KVANT_DTYPE_F16, KVANT_DTYPE_BF16, KVANT_DTYPE_F32};
    int64_t choice = setup->values[PARAM_META].integer;
    return choice == 0 ? setup->dtype : dtypes[choice];
}

/* The host has checked the parameters against the schema, and dtype, side and head_dim against the
 * descriptor. */
kvant_status kivi_block_of(const kvant_setup *setup, kivi_block *block, kvant_diag *diag) {
    uint32_t group = (uint32_t)setup->values[PARAM_GROUP].integer;
    if (setup->side == KVANT_SIDE_KEY && setup->block_tokens % group != 0)
        return kvant_fail(diag, KVANT_ERROR_BLOCK_TOKENS, "group",
                          "keys are grouped along tokens: group = %u must divide block_tokens = %u", group,
                          setup->block_tokens);
    if (setup->block_tokens == 0 || setup->block_tokens > TOKENS_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "", "block_tokens is %u, must be 1 to %d",
                          setup->block_tokens, TOKENS_MAX);
    if (setup->kv_heads == 0 || setup->head_dim == 0 || setup->head_dim > HEAD_DIM_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "kv_heads is %u and head_dim %u: at least 1, head_dim at most %d", setup->kv_heads,
                          setup->head_dim, HEAD_DIM_MAX);
    if (!kivi_block_make(block, setup->side, (uint32_t)setup->values[PARAM_BITS].integer, group, setup->dtype,
                         meta_of(setup), setup->block_tokens, setup->kv_heads, setup->head_dim))
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "a block of %u tokens, %u heads and %u channels is too large to address",
                          setup->block_tokens, setup->kv_heads, setup->head_dim);
    return KVANT_OK;
}

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kivi_block block;
    layout->block_multiple = setup->side == KVANT_SIDE_KEY ? (uint32_t)setup->values[PARAM_GROUP].integer : 1;
    kvant_status status = kivi_block_of(setup, &block, diag);
    if (status != KVANT_OK) return status;
    const kivi_code *code = code_for(setup->isa);
    uint64_t head_codes = (uint64_t)block.tokens * block.head_dim;
    uint64_t head_groups = (uint64_t)block.groups * block.plane_row;
    layout->alignment = KIVI_HEAD_ALIGN;
    layout->isa = code->isa;
    layout->attend_tolerance = 0x1p-16; /* of kernels that fold scales: README */
    layout->size_min = block.bytes;
    layout->payload_bits = head_codes * block.bits * block.heads;
    layout->metadata_bits = head_groups * 2 * block.meta_bytes * 8 * block.heads;
    layout->state_bytes = sizeof(kivi_state);
    layout->scratch_bytes = code->scratch_bytes(&block);
    return KVANT_OK;
}

static kvant_status open_codec(const kvant_setup *setup, const kvant_layout *layout, void *memory,
                               kvant_diag *diag) {
    kivi_state *state = memory;
    (void)layout;
    kvant_status status = kivi_block_of(setup, &state->block, diag);
    if (status == KVANT_OK) state->code = code_for(setup->isa);
    return status;
}

static void close_codec(void *memory) {
    (void)memory; /* everything is in the state, which the host frees */
}

/* ---- Hot calls ----------------------------------------------------------------------------------------- */

static kvant_status encode(const void *memory, kvant_encode_args *args) {
    const kivi_state *state = memory;
    state->code->encode(&state->block, args);
    return KVANT_OK;
}

static kvant_status decode(const void *memory, const kvant_decode_args *args) {
    const kivi_state *state = memory;
    state->code->decode(&state->block, args);
    return KVANT_OK;
}

static const void *extension(const char *id) {
#ifdef KVANT_HAVE_GPU
    if (strcmp(id, KVANT_EXT_GPU) == 0) return &kivi_gpu;
#endif
    return strcmp(id, KVANT_EXT_INSPECT) == 0 ? &kivi_inspect : NULL;
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
