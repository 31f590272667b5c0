/* nvfp4: 4-bit floats with one scale for every 16 channels of a token, and their sibling MXFP4.
 *
 * NVIDIA's NVFP4 as inference engines store keys and values in it: E2M1 codes, an E4M3 scale for each block
 * of 16, and a second, global scale in float32; MXFP4 of the OCP Microscaling specification: blocks of 32
 * with a power of two. This file has what a host sees: descriptor, plan, open. Parameters are in
 * nvfp4_config.c, the arithmetic in nvfp4_number.h, the byte map in nvfp4_block.h.
 */
#include "nvfp4.h"

#include <kvant/kit/diag.h>

enum { TOKENS_MAX = 1 << 20, HEAD_DIM_MAX = 4096 };

static const kvant_descriptor descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = (uint32_t)'N' | (uint32_t)'V' << 8 | (uint32_t)'F' << 16 | (uint32_t)'4' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .head_dim_min = 1,
    .head_dim_max = HEAD_DIM_MAX,
    .head_dim_multiple = 1,
    .param_count = NVFP4_PARAM_COUNT,
    .name = "nvfp4",
    .version = "1.0.0",
    .title = "NVFP4 and MXFP4: 4-bit floats with a scale for every 16 or 32 channels of a token",
    .paper = "NVIDIA, NVFP4 KV cache, 2025; OCP Microscaling Formats 1.0; Cook et al., Four Over Six, "
             "arXiv 2512.02010",
    .license = "Apache-2.0",
    .deviations =
        "nvfp4: codes, scales and decoded numbers are FlashInfer's paged append bit for bit. four_over_six: "
        "FlashInfer's reference bit for bit, except that -0 stays -0. mxfp4: torchao's, except that byte 0 "
        "encodes with the 2^-127 that it decodes with. A decoded number that would be infinite is the "
        "largest float. A head_dim that is no multiple of the block has a short last block (the engines "
        "refuse it). The global scale may also be taken from each extent.",
    .params = nvfp4_params,
};

/* ---- Setup --------------------------------------------------------------------------------------------- */

/* Best last, within the family of this processor. */
static const nvfp4_code_table *const codes[] = {
    &nvfp4_code_reference,
#if defined(KVANT_HAVE_V2)
    &nvfp4_code_v2,
#endif
#if defined(KVANT_HAVE_V3)
    &nvfp4_code_v3,
#endif
#if defined(KVANT_HAVE_V4)
    &nvfp4_code_v4,
#endif
#if defined(KVANT_HAVE_NEON)
    &nvfp4_code_neon,
#endif
};

static const nvfp4_code_table *code_for(uint32_t isa) {
    const nvfp4_code_table *best = &nvfp4_code_reference;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i]->isa <= isa) best = codes[i];
    return best;
}

/* The host has checked the parameters against the schema, and dtype, side and head_dim against the
 * descriptor. */
static kvant_status block_of(const kvant_setup *setup, const nvfp4_config *config, nvfp4_block *block,
                             kvant_diag *diag) {
    if (setup->block_tokens == 0 || setup->block_tokens > TOKENS_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "", "block_tokens is %u, must be 1 to %d",
                          setup->block_tokens, TOKENS_MAX);
    if (setup->kv_heads == 0 || setup->head_dim == 0 || setup->head_dim > HEAD_DIM_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "kv_heads is %u and head_dim %u: at least 1, head_dim at most %d", setup->kv_heads,
                          setup->head_dim, HEAD_DIM_MAX);
    bool own = config->global == NVFP4_GLOBAL_EXTENT;
    if (!nvfp4_block_make(block, setup->side, setup->block_tokens, setup->kv_heads, setup->head_dim,
                          config->format == NVFP4_FORMAT_MXFP4 ? NVFP4_BLOCK_MX : NVFP4_BLOCK_NV,
                          own ? nvfp4_global_count(config, setup->kv_heads) : 0))
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "a block of %u tokens, %u heads and %u channels is too large to address",
                          setup->block_tokens, setup->kv_heads, setup->head_dim);
    return KVANT_OK;
}

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    nvfp4_config config;
    nvfp4_block block;
    layout->block_multiple = 1;
    layout->alignment = NVFP4_ALIGN;
    kvant_status status = nvfp4_config_read(&config, setup, diag);
    if (status == KVANT_OK) status = block_of(setup, &config, &block, diag);
    if (status != KVANT_OK) return status;
    const nvfp4_code_table *code = code_for(setup->isa);
    layout->isa = code->isa;
    layout->size_min = block.bytes;
    layout->payload_bits = (uint64_t)block.tokens * block.head_dim * NVFP4_BITS * block.heads;
    layout->metadata_bits =
        (uint64_t)block.tokens * block.blocks * 8 * block.heads + 32 * (uint64_t)block.globals;
    layout->state_bytes = sizeof(nvfp4_state) + (uint64_t)setup->kv_heads * sizeof(nvfp4_global);
    layout->scratch_bytes = code->scratch_bytes(&block);
    return KVANT_OK;
}

/* ---- The artifact -------------------------------------------------------------------------------------- */

/* The name of the tensor says what its numbers are. */
static const struct {
    const char *name;
    uint32_t convention;
} tensor_names[] = {{"multiplier", NVFP4_CONVENTION_MULTIPLIER},
                    {"inverse", NVFP4_CONVENTION_INVERSE},
                    {"amax", NVFP4_CONVENTION_AMAX}};

enum { TENSOR_NAMES = sizeof tensor_names / sizeof tensor_names[0] };

static kvant_status find_tensor(const kvant_setup *setup, const kvant_array **tensor, uint32_t *convention,
                                kvant_diag *diag) {
    *tensor = NULL;
    for (uint32_t i = 0; i < setup->tensor_count; i++)
        for (size_t n = 0; n < TENSOR_NAMES; n++) {
            if (strcmp(setup->tensors[i].name, tensor_names[n].name) != 0) continue;
            if (*tensor != NULL)
                return kvant_fail(diag, KVANT_ERROR_CONFLICT, "global_scale",
                                  "the artifact has both \"%s\" and \"%s\" for this layer and side: one is "
                                  "enough",
                                  (*tensor)->name, setup->tensors[i].name);
            *tensor = &setup->tensors[i];
            *convention = tensor_names[n].convention;
        }
    if (*tensor == NULL)
        return kvant_fail(
            diag, KVANT_ERROR_MISSING, "global_scale",
            "global_scale = artifact needs a tensor \"multiplier\", \"inverse\" or \"amax\" for "
            "the %s of layer %u",
            setup->side == KVANT_SIDE_KEY ? "keys" : "values", setup->layer);
    return KVANT_OK;
}

static kvant_status check_tensor(const kvant_setup *setup, const nvfp4_config *config,
                                 const kvant_array *tensor, kvant_diag *diag) {
    uint32_t want = config->per == NVFP4_PER_HEAD ? setup->total_kv_heads : 1;
    bool scalar = tensor->rank == 0 && want == 1;
    if (tensor->dtype != KVANT_DTYPE_F32 || tensor->data == NULL ||
        tensor->bytes != (uint64_t)want * sizeof(float) ||
        !(scalar || (tensor->rank == 1 && tensor->shape[0] == want)))
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "global_scale",
                          "tensor \"%s\" of layer %u must be F32 [%u] (global_per = %s)", tensor->name,
                          setup->layer, want, config->per == NVFP4_PER_HEAD ? "head" : "layer");
    if (config->per == NVFP4_PER_HEAD && (setup->first_kv_head > setup->total_kv_heads ||
                                          setup->kv_heads > setup->total_kv_heads - setup->first_kv_head))
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "", "heads %u to %u are not among the model's %u",
                          setup->first_kv_head, setup->first_kv_head + setup->kv_heads - 1,
                          setup->total_kv_heads);
    return KVANT_OK;
}

static kvant_status read_artifact(const kvant_setup *setup, nvfp4_state *state, kvant_diag *diag) {
    const kvant_array *tensor;
    uint32_t convention = NVFP4_CONVENTION_MULTIPLIER;
    kvant_status status = find_tensor(setup, &tensor, &convention, diag);
    if (status == KVANT_OK) status = check_tensor(setup, &state->config, tensor, diag);
    if (status != KVANT_OK) return status;
    uint32_t first = state->config.per == NVFP4_PER_HEAD ? setup->first_kv_head : 0;
    for (uint32_t i = 0; i < nvfp4_global_count(&state->config, setup->kv_heads); i++) {
        float value;
        memcpy(&value, (const char *)tensor->data + (first + i) * sizeof value, sizeof value);
        nvfp4_global global = nvfp4_global_from(&state->config, convention, value);
        if (!nvfp4_global_is_usable(global))
            return kvant_fail(diag, KVANT_ERROR_VALUE, "global_scale",
                              "tensor \"%s\" of layer %u has %g at %u: its multiplier must be within 2^-112 "
                              "and 2^120",
                              tensor->name, setup->layer, (double)value, first + i);
        state->globals[i] = global;
    }
    return KVANT_OK;
}

static kvant_status open_codec(const kvant_setup *setup, const kvant_layout *layout, void *memory,
                               kvant_diag *diag) {
    nvfp4_state *state = memory;
    (void)layout;
    kvant_status status = nvfp4_config_read(&state->config, setup, diag);
    if (status == KVANT_OK) status = block_of(setup, &state->config, &state->block, diag);
    if (status != KVANT_OK) return status;
    state->code = code_for(setup->isa);
    if (state->config.format == NVFP4_FORMAT_MXFP4 || state->config.global == NVFP4_GLOBAL_EXTENT)
        return KVANT_OK;
    if (state->config.global == NVFP4_GLOBAL_ARTIFACT) return read_artifact(setup, state, diag);
    state->globals[0] = nvfp4_global_from(&state->config, state->config.convention, state->config.value);
    return KVANT_OK;
}

static void close_codec(void *memory) {
    (void)memory; /* everything is in the state, which the host frees */
}

/* ---- Hot calls ----------------------------------------------------------------------------------------- */

static kvant_status encode(const void *memory, kvant_encode_args *args) {
    const nvfp4_state *state = memory;
    state->code->encode(state, args);
    return KVANT_OK;
}

static kvant_status decode(const void *memory, const kvant_decode_args *args) {
    const nvfp4_state *state = memory;
    state->code->decode(state, args);
    return KVANT_OK;
}

static const void *extension(const char *id) {
    if (strcmp(id, KVANT_EXT_INSPECT) == 0) return &nvfp4_inspect;
    if (strcmp(id, KVANT_EXT_CALIBRATE) == 0) return &nvfp4_calibrate;
    return NULL;
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
