/* raw: keeps rows as they are, or rounded to another float type.
 *
 * What other codecs are measured against, and what a layer or a side gets that is not to be quantized. It is
 * also the example of a plugin's parts: this file has what a host sees (parameters, descriptor, plan, open
 * and the table of calls), raw_block.h the byte map, raw_reference.c the scalar code that defines the bytes,
 * raw_cpu.c the fast code, raw_inspect.c a look at an extent, raw_gpu.c and raw.cu the kernels of a GPU.
 */
#include "raw.h"

#include <kvant/kit/diag.h>

/* ---- What the user can set ------------------------------------------------------------------- */

enum { PARAM_FORMAT, PARAM_COUNT };

enum { HEAD_DIM_MAX = 4096 };

static const char *const format_choices[] = {"input", "f32", "f16", "bf16"};

static const kvant_param params[PARAM_COUNT] = {
    [PARAM_FORMAT] = {.struct_size = sizeof(kvant_param),
                      .type = KVANT_PARAM_CHOICE,
                      .name = "format",
                      .unit = "",
                      .help = "type of the stored elements; input = the type of the rows",
                      .choices = format_choices,
                      .choice_count = sizeof format_choices / sizeof format_choices[0],
                      .integer_default = 0},
};

static const kvant_descriptor descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = (uint32_t)'R' | (uint32_t)'A' << 8 | (uint32_t)'W' << 16 | (uint32_t)' ' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .head_dim_min = 1,
    .head_dim_max = HEAD_DIM_MAX,
    .head_dim_multiple = 1,
    .param_count = PARAM_COUNT,
    .name = "raw",
    .version = "1.0.0",
    .title = "raw: rows as they are, or rounded to f32, f16 or bf16",
    .paper = "",
    .license = "Apache-2.0",
    .deviations = "",
    .params = params,
};

/* ---- Setup ----------------------------------------------------------------------------------- */

/* Best last, within the family of this processor. */
static const raw_code *const codes[] = {
    &raw_code_reference,
#if defined(KVANT_HAVE_V2)
    &raw_code_v2,
#endif
#if defined(KVANT_HAVE_V3)
    &raw_code_v3,
#endif
#if defined(KVANT_HAVE_V4)
    &raw_code_v4,
#endif
#if defined(KVANT_HAVE_NEON)
    &raw_code_neon,
#endif
};

static const raw_code *code_for(uint32_t isa) {
    const raw_code *best = &raw_code_reference;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i]->isa <= isa) best = codes[i];
    return best;
}

/* The host has checked the parameters against the schema, and dtype, side and head_dim against the
 * descriptor. */
kvant_status raw_block_of(const kvant_setup *setup, raw_block *block, kvant_diag *diag) {
    static const uint32_t dtypes[] = {KVANT_DTYPE_NONE, KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};
    int64_t choice = setup->values[PARAM_FORMAT].integer;
    uint32_t format = choice == 0 ? setup->dtype : dtypes[choice];
    if (setup->block_tokens == 0 || setup->kv_heads == 0 || setup->head_dim == 0)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "block_tokens is %u, kv_heads %u and head_dim %u: each must be at least 1",
                          setup->block_tokens, setup->kv_heads, setup->head_dim);
    if (!raw_block_make(block, setup->block_tokens, setup->kv_heads, setup->head_dim, setup->dtype, format))
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "a block of %u tokens, %u heads and %u channels is too large to address",
                          setup->block_tokens, setup->kv_heads, setup->head_dim);
    return KVANT_OK;
}

/* Whether every value of dtype is one of format. */
static bool holds(uint32_t format, uint32_t dtype) {
    return format == dtype || format == KVANT_DTYPE_F32;
}

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    raw_block block;
    layout->block_multiple = 1;
    kvant_status status = raw_block_of(setup, &block, diag);
    if (status != KVANT_OK) return status;
    const raw_code *code = code_for(setup->isa);
    layout->flags = holds(block.format, block.input) ? KVANT_LAYOUT_LOSSLESS : 0;
    layout->alignment = RAW_HEAD_ALIGN;
    layout->isa = code->isa;
    layout->size_min = block.bytes;
    layout->payload_bits = (uint64_t)block.heads * raw_block_used(&block) * 8;
    layout->metadata_bits = 0;
    layout->state_bytes = sizeof(raw_state);
    layout->scratch_bytes = code->scratch_bytes(&block);
    return KVANT_OK;
}

static kvant_status open_codec(const kvant_setup *setup, const kvant_layout *layout, void *memory,
                               kvant_diag *diag) {
    (void)layout;
    raw_state *state = memory;
    state->code = code_for(setup->isa);
    return raw_block_of(setup, &state->block, diag);
}

static void close_codec(void *memory) {
    (void)memory; /* everything is in the state, which the host frees */
}

/* ---- Hot calls ------------------------------------------------------------------------------- */

static kvant_status encode(const void *memory, kvant_encode_args *args) {
    const raw_state *state = memory;
    args->saturated = state->code->encode(&state->block, args->rows, args->extent, args->scratch);
    args->size = state->block.bytes;
    return KVANT_OK;
}

static kvant_status decode(const void *memory, const kvant_decode_args *args) {
    const raw_state *state = memory;
    state->code->decode(&state->block, args);
    return KVANT_OK;
}

static const void *extension(const char *id) {
#ifdef KVANT_HAVE_GPU
    if (strcmp(id, KVANT_EXT_GPU) == 0) return &raw_gpu;
#endif
    return strcmp(id, KVANT_EXT_INSPECT) == 0 ? &raw_inspect : NULL;
}

/* ---- The one exported function --------------------------------------------------------------- */

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
