/* kvquant: non-uniform codes for keys per channel before RoPE and values per token, outliers kept apart.
 *
 * Hooper et al., "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization",
 * NeurIPS 2024, arXiv 2401.18079. This file has what a host sees: descriptor, plan, open. Parameters are in
 * kvquant_config.c, the arithmetic in kvquant_math.h, the byte map in kvquant_block.h.
 */
#include "kvquant_state.h"
#include "kvquant_work.h"

#include <kvant/kit/diag.h>

enum { TOKENS_MAX = 1 << 20, HEAD_DIM_MAX = 4096 };

static const kvant_descriptor descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = (uint32_t)'K' | (uint32_t)'V' << 8 | (uint32_t)'Q' << 16 | (uint32_t)'1' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .head_dim_min = 1,
    .head_dim_max = HEAD_DIM_MAX,
    .head_dim_multiple = 1,
    .param_count = KVQUANT_PARAM_COUNT,
    .name = "kvquant",
    .version = "1.0.0",
    .title = "KVQuant: non-uniform codes, keys per channel before RoPE, values per token, sparse outliers",
    .paper = "Hooper et al., KVQuant, NeurIPS 2024, arXiv 2401.18079, sections 3.1 to 3.5",
    .license = "Apache-2.0",
    .deviations =
        "Codebooks are the optimum of the k-means problem (the code stops at a local one). An outlier is "
        "stored as it was, in the meta type, and what the code stores (its difference to the dense entry) is "
        "derived from it. Equal values at the edge of the tails are stored once. A group without width "
        "stores no outlier that equals it. Elements far outside a range get the nearest end code (the code "
        "may take the first). Sinks and the newest tokens belong to the host (sinks, recent). Per-token "
        "ranges span the heads of one rank.",
    .params = kvquant_params,
};

/* ---- Setup --------------------------------------------------------------------------------------------- */

/* Best last, within the family of this processor. */
static const kvquant_code *const codes[] = {
    &kvquant_code_reference,
#if defined(KVANT_HAVE_V2)
    &kvquant_code_v2,
#endif
#if defined(KVANT_HAVE_V3)
    &kvquant_code_v3,
#endif
#if defined(KVANT_HAVE_V4)
    &kvquant_code_v4,
#endif
#if defined(KVANT_HAVE_NEON)
    &kvquant_code_neon,
#endif
};

static const kvquant_code *code_for(uint32_t isa) {
    const kvquant_code *best = &kvquant_code_reference;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i]->isa <= isa) best = codes[i];
    return best;
}

static kvant_status block_of(const kvant_setup *setup, kvquant_block *block, kvant_diag *diag) {
    kvquant_config config;
    kvant_status status = kvquant_config_read(&config, setup, diag);
    if (status != KVANT_OK) return status;
    if (setup->block_tokens == 0 || setup->block_tokens > TOKENS_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "", "block_tokens is %u, must be 1 to %d",
                          setup->block_tokens, TOKENS_MAX);
    if (setup->kv_heads == 0 || setup->head_dim == 0 || setup->head_dim > HEAD_DIM_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "kv_heads is %u and head_dim %u: at least 1, head_dim at most %d", setup->kv_heads,
                          setup->head_dim, HEAD_DIM_MAX);
    uint64_t width = (uint64_t)setup->kv_heads * setup->head_dim;
    if (width * setup->block_tokens > INT32_MAX)
        return kvant_fail(
            diag, KVANT_ERROR_GEOMETRY, "",
            "a block of %u tokens, %u heads and %u channels has more elements than an outlier's "
            "place can name (2^31 - 1)",
            setup->block_tokens, setup->kv_heads, setup->head_dim);
    kvquant_block_make(block, &config, setup);
    return KVANT_OK;
}

static size_t state_bytes(const kvquant_block *block) {
    size_t bytes = kvquant_round_up(sizeof(kvquant_state), 64);
    kvquant_channels none;
    return block->config.is_static ? bytes + kvquant_channels_carve(block, NULL, &none) : bytes;
}

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvquant_block block;
    layout->block_multiple = 1;
    layout->alignment = KVQUANT_ALIGN;
    if (setup->side == KVANT_SIDE_KEY) layout->flags = KVANT_LAYOUT_KEYS_BEFORE_ROPE;
    kvant_status status = block_of(setup, &block, diag);
    if (status != KVANT_OK) return status;
    uint64_t elements = (uint64_t)block.tokens * block.width, ranges = 0;
    if (kvquant_channel_ranges(&block)) ranges = 2 * (uint64_t)block.width;
    if (kvquant_token_ranges(&block)) ranges = 2 * (uint64_t)block.tokens;
    layout->isa = code_for(setup->isa)->isa;
    layout->size_min = block.size_min;
    layout->size_step = block.steps > 0 ? KVQUANT_STEP : 0;
    layout->size_steps = block.steps;
    layout->payload_bits = elements * block.config.bits;
    layout->metadata_bits = ranges * block.meta_bytes * 8 + (block.config.sparse ? 32u * block.heads : 0u) +
                            block.fixed_slots * block.slot_bytes * 8;
    layout->metadata_bits_step = 8 * layout->size_step;
    layout->state_bytes = state_bytes(&block);
    layout->scratch_bytes = kvquant_work_bytes(&block);
    return KVANT_OK;
}

static kvant_status open_codec(const kvant_setup *setup, const kvant_layout *layout, void *memory,
                               kvant_diag *diag) {
    kvquant_state *state = memory;
    (void)layout;
    kvant_status status = block_of(setup, &state->block, diag);
    if (status != KVANT_OK) return status;
    state->code = code_for(setup->isa);
    if (state->block.config.is_static)
        (void)kvquant_channels_carve(
            &state->block, (uint8_t *)memory + kvquant_round_up(sizeof(kvquant_state), 64), &state->channels);
    return kvquant_tables_open(state, setup, diag);
}

static void close_codec(void *memory) {
    (void)memory; /* everything is in the state, which the host frees */
}

/* ---- Hot calls ----------------------------------------------------------------------------------------- */

static kvant_status encode(const void *memory, kvant_encode_args *args) {
    const kvquant_state *state = memory;
    state->code->encode(state, args);
    return KVANT_OK;
}

static kvant_status decode(const void *memory, const kvant_decode_args *args) {
    const kvquant_state *state = memory;
    state->code->decode(state, args);
    return KVANT_OK;
}

static const void *extension(const char *id) {
    if (strcmp(id, KVANT_EXT_INSPECT) == 0) return &kvquant_inspect;
    return strcmp(id, KVANT_EXT_CALIBRATE) == 0 ? &kvquant_calibrate : NULL;
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
