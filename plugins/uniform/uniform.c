/* uniform: plain quantization. Every element becomes a number of a few bits, and every group of elements has
 * a scale and, if asked, a minimum. This file describes the codec and makes its state; the arithmetic is in
 * uniform_convention.c, the bytes in uniform_block.h. */
#include "uniform_state.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <math.h>
#include <string.h>

enum {
    HEAD_DIM_MAX = 65536,
    COUNT_MAX = 1 << 24,            /* of tokens or heads */
    ELEMENTS_MAX = (int)(1u << 30), /* of an extent */
    ALIGNMENT = 64
};

static const kvant_descriptor descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = 'U' | 'N' << 8 | 'I' << 16 | (uint32_t)'F' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .head_dim_min = 1,
    .head_dim_max = HEAD_DIM_MAX,
    .head_dim_multiple = 1,
    .param_count = UNIFORM_PARAM_COUNT,
    .name = "uniform",
    .version = "1.0.0",
    .title = "Plain quantization: FP8, INT8, INT4, INT3, INT2, 1 bit",
    .paper = "FP8: arXiv 2209.05433; Atom KV4: arXiv 2310.19102, section 4; QServe KV4: arXiv 2405.04532, "
             "section 4",
    .license = "Apache-2.0",
    .deviations =
        "Never NaN or infinity, and saturated metadata is counted: upstream's scales overflow. "
        "Atom stores the integer zero clamp(rint(-min/s), 0, 15), which loses a group that has one sign, and "
        "so a "
        "constant one; QServe stores z = -min/s, whose 0/0 gives NaN for a constant group and whose code 16 "
        "wraps to "
        "0. With the preset parameters the minimum is stored in the same 16 bits, and a constant group comes "
        "back as "
        "its minimum. llama.cpp's blocks of 32 may be short at the end of a head. A group of zeros of "
        "compressed-tensors has zero = 0 as upstream, by rule instead of by a cast of NaN.",
    .params = uniform_params,
};

/* ---- Plan ---------------------------------------------------------------------------------------------- */

static kvant_status check_geometry(const kvant_setup *setup, kvant_diag *diag) {
    if (setup->side != KVANT_SIDE_KEY && setup->side != KVANT_SIDE_VALUE)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "side %u: uniform codes keys and values",
                          setup->side);
    if (setup->dtype != KVANT_DTYPE_F32 && setup->dtype != KVANT_DTYPE_F16 &&
        setup->dtype != KVANT_DTYPE_BF16)
        return kvant_fail(diag, KVANT_ERROR_DTYPE, "", "rows of dtype %u: f32, f16 or bf16", setup->dtype);
    if (setup->head_dim == 0 || setup->head_dim > HEAD_DIM_MAX || setup->kv_heads == 0 ||
        setup->kv_heads > COUNT_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "%u kv heads of %u channels: 1 to %d heads of 1 to %d", setup->kv_heads,
                          setup->head_dim, COUNT_MAX, HEAD_DIM_MAX);
    if (setup->block_tokens == 0 || setup->block_tokens > COUNT_MAX)
        return kvant_fail(diag, KVANT_ERROR_BLOCK_TOKENS, "", "blocks of %u tokens: 1 to %d",
                          setup->block_tokens, COUNT_MAX);
    if ((uint64_t)setup->block_tokens * setup->head_dim > ELEMENTS_MAX / setup->kv_heads)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "a block of %u tokens, %u heads and %u channels is more than 2^30 elements",
                          setup->block_tokens, setup->kv_heads, setup->head_dim);
    return KVANT_OK;
}

static uint32_t stored_bytes(uint32_t type) {
    switch (type) {
    case KVANT_DTYPE_F32:
        return 4;
    case KVANT_DTYPE_F16:
    case KVANT_DTYPE_BF16:
        return 2;
    default:
        return 1;
    }
}

/* Rounds static_scale and static_min to their stored types. Returns the parameter that does not fit its type,
 * or UNIFORM_PARAM_COUNT. */
static uint32_t static_numbers(const uniform_config *config, const uniform_arithmetic *a, float *scale,
                               float *minimum) {
    uint32_t saturated = 0;
    *scale = uniform_round_stored(config->static_scale, a->scale_type, &saturated);
    if (saturated > 0 || *scale == 0.0f) return UNIFORM_PARAM_STATIC_SCALE;
    *minimum = 0.0f;
    if (a->rule.offset == UNIFORM_OFFSET_MINIMUM)
        *minimum = uniform_round_stored(config->static_min, a->offset_type, &saturated);
    return saturated > 0 ? UNIFORM_PARAM_STATIC_MIN : UNIFORM_PARAM_COUNT;
}

static kvant_status check_static(const uniform_config *config, const uniform_arithmetic *a,
                                 const kvant_setup *setup, kvant_diag *diag) {
    float scale, minimum;
    if (config->scaling != UNIFORM_STATIC) return KVANT_OK;
    uint32_t param = static_numbers(config, a, &scale, &minimum);
    if (param == UNIFORM_PARAM_COUNT) return KVANT_OK;
    double number = param == UNIFORM_PARAM_STATIC_SCALE ? config->static_scale : config->static_min;
    return kvant_fail(
        diag, KVANT_ERROR_CONFLICT, uniform_params[param].name, "%s = %g is outside of scale = %s",
        uniform_params[param].name, number,
        uniform_word(UNIFORM_PARAM_SCALE, (uint32_t)setup->values[UNIFORM_PARAM_SCALE].integer));
}

/* All that follows from a setup, the static scales apart. */
static kvant_status make_state(const kvant_setup *setup, uniform_config *config, uniform_state *s,
                               kvant_diag *diag) {
    kvant_status status = uniform_config_read(config, setup, diag);
    if (status == KVANT_OK) status = uniform_arithmetic_make(&s->arithmetic, config, setup->dtype, diag);
    if (status == KVANT_OK) status = check_static(config, &s->arithmetic, setup, diag);
    if (status == KVANT_OK) status = check_geometry(setup, diag);
    if (status != KVANT_OK) return status;
    s->fixed = config->scaling != UNIFORM_DYNAMIC;
    s->dtype = setup->dtype;
    s->block = (uniform_block){.side = setup->side,
                               .bits = s->arithmetic.bits,
                               .tokens = setup->block_tokens,
                               .heads = setup->kv_heads,
                               .head_dim = setup->head_dim,
                               .granularity = config->granularity};
    if (!s->fixed) {
        s->block.scale_bytes = stored_bytes(s->arithmetic.scale_type);
        if (s->arithmetic.rule.offset != UNIFORM_OFFSET_NONE)
            s->block.offset_bytes = stored_bytes(s->arithmetic.offset_type);
    }
    if (config->granularity == UNIFORM_GROUP_TOKENS && setup->block_tokens % config->group != 0)
        return kvant_fail(diag, KVANT_ERROR_BLOCK_TOKENS, "group",
                          "blocks of %u tokens are no multiple of group = %u, which runs along tokens",
                          setup->block_tokens, config->group);
    uniform_block_make(&s->block, config->group);
    return KVANT_OK;
}

/* The best level at or below the setup's, and its code. */
static uint32_t choose_level(uint32_t isa, uniform_encode_fn **encode, uniform_decode_fn **decode) {
#define LEVEL(level, suffix)                                                                                 \
    if (isa >= (level)) return *encode = uniform_encode_##suffix, *decode = uniform_decode_##suffix, (level)
#ifdef KVANT_HAVE_NEON
    if (isa == KVANT_ISA_AARCH64) LEVEL(KVANT_ISA_AARCH64, neon);
#endif
    if (isa < KVANT_ISA_AARCH64) {
#ifdef KVANT_HAVE_V4
        LEVEL(KVANT_ISA_X86_64_V4, v4);
#endif
#ifdef KVANT_HAVE_V3
        LEVEL(KVANT_ISA_X86_64_V3, v3);
#endif
#ifdef KVANT_HAVE_V2
        LEVEL(KVANT_ISA_X86_64_V2, v2);
#endif
    }
#undef LEVEL
    *encode = uniform_encode_reference;
    *decode = uniform_decode_reference;
    return KVANT_ISA_SCALAR;
}

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    uniform_state s = {0};
    uniform_config config;
    layout->alignment = ALIGNMENT;
    layout->block_multiple = 1;
    kvant_status status = make_state(setup, &config, &s, diag);
    if ((status == KVANT_OK || status == KVANT_ERROR_BLOCK_TOKENS) &&
        config.granularity == UNIFORM_GROUP_TOKENS)
        layout->block_multiple = config.group;
    if (status != KVANT_OK) return status;
    const uniform_block *b = &s.block;
    if (config.rope == UNIFORM_KEYS_BEFORE_ROPE) layout->flags |= KVANT_LAYOUT_KEYS_BEFORE_ROPE;
    layout->isa = choose_level(setup->isa, &s.encode, &s.decode);
    layout->size_min = b->bytes;
    layout->payload_bits = (uint64_t)b->tokens * b->heads * b->head_dim * b->bits;
    layout->metadata_bits = uniform_group_count(b) * 8 * (b->scale_bytes + b->offset_bytes);
    layout->state_bytes = uniform_state_bytes(b, s.fixed);
    layout->scratch_bytes = uniform_scratch_cut(b, s.arithmetic.rule.range == UNIFORM_RANGE_MEAN, NULL).bytes;
    return KVANT_OK;
}

/* ---- Open ---------------------------------------------------------------------------------------------- */

static const kvant_array *find_tensor(const kvant_setup *setup, const char *name) {
    for (uint32_t i = 0; i < setup->tensor_count; i++)
        if (strcmp(setup->tensors[i].name, name) == 0) return &setup->tensors[i];
    return NULL;
}

/* The shape that an artifact's tensor must have: all ranks' heads. */
static uint32_t tensor_shape(const kvant_setup *setup, const uniform_block *b, uint64_t shape[2]) {
    shape[0] = setup->total_kv_heads;
    if (b->granularity == UNIFORM_TENSOR) shape[0] = 1;
    if (b->granularity == UNIFORM_TENSOR || b->granularity == UNIFORM_HEAD) return 1;
    shape[1] = b->granularity == UNIFORM_CHANNEL ? b->head_dim : uniform_ceil_div(b->head_dim, b->group);
    return 2;
}

static kvant_status check_tensor(const kvant_setup *setup, const uniform_block *b, const char *name,
                                 const kvant_array *tensor, kvant_diag *diag) {
    uint64_t shape[2] = {1, 1};
    uint32_t rank = tensor_shape(setup, b, shape);
    const char *side = setup->side == KVANT_SIDE_KEY ? "key" : "value";
    if (tensor == NULL)
        return kvant_fail(diag, KVANT_ERROR_MISSING, "scaling",
                          "scaling = artifact: the artifact has no tensor layers.%u.%s.%s", setup->layer,
                          side, name);
    bool fits =
        tensor->rank == rank && tensor->shape[0] == shape[0] && (rank < 2 || tensor->shape[1] == shape[1]);
    if (!fits && rank == 1)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "scaling", "layers.%u.%s.%s must have shape [%llu]",
                          setup->layer, side, name, (unsigned long long)shape[0]);
    if (!fits)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "scaling",
                          "layers.%u.%s.%s must have shape [%llu, %llu]", setup->layer, side, name,
                          (unsigned long long)shape[0], (unsigned long long)shape[1]);
    if (tensor->dtype != KVANT_DTYPE_F32 && tensor->dtype != KVANT_DTYPE_F16 &&
        tensor->dtype != KVANT_DTYPE_BF16)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "scaling", "layers.%u.%s.%s must be F32, F16 or BF16",
                          setup->layer, side, name);
    if (tensor->bytes / kvant_element_bytes(tensor->dtype) != shape[0] * shape[1])
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "scaling",
                          "layers.%u.%s.%s has %llu bytes for %llu numbers", setup->layer, side, name,
                          (unsigned long long)tensor->bytes, (unsigned long long)(shape[0] * shape[1]));
    return KVANT_OK;
}

/* One number of the tensor for every group of this rank's heads, in the order of the planes. */
static kvant_status spread_tensor(const kvant_setup *setup, const uniform_block *b, const char *name,
                                  uint32_t type, float *out, kvant_diag *diag) {
    const kvant_array *tensor = find_tensor(setup, name);
    kvant_status status = check_tensor(setup, b, name, tensor, diag);
    if (status != KVANT_OK) return status;
    bool one = b->granularity == UNIFORM_TENSOR, by_group = b->granularity == UNIFORM_GROUP_CHANNELS;
    size_t columns = by_group ? b->groups / b->tokens : b->groups, repeat = by_group ? b->tokens : 1;
    uint32_t bytes = kvant_element_bytes(tensor->dtype), saturated = 0;
    for (uint32_t h = 0; h < (one ? 1 : b->heads); h++)
        for (size_t c = 0; c < columns; c++) {
            size_t index = (one ? 0 : (size_t)(setup->first_kv_head + h)) * columns + c;
            float x = kvant_load_element((const char *)tensor->data + index * bytes, tensor->dtype);
            if (!isfinite(x) || (strcmp(name, "scale") == 0 && x < 0))
                return kvant_fail(diag, KVANT_ERROR_VALUE, "scaling",
                                  "layers.%u.%s.%s: number %zu is %g; scales are finite and not negative",
                                  setup->layer, setup->side == KVANT_SIDE_KEY ? "key" : "value", name, index,
                                  (double)x);
            x = uniform_round_stored(x, type, &saturated);
            for (size_t r = 0; r < repeat; r++) *out++ = x;
        }
    if (saturated > 0)
        return kvant_fail(diag, KVANT_ERROR_VALUE, "scale",
                          "%u numbers of the artifact's %s overflow the scale type", saturated, name);
    return KVANT_OK;
}

static kvant_status fill_fixed(const kvant_setup *setup, const uniform_config *config, uniform_state *s,
                               kvant_diag *diag) {
    const uniform_arithmetic *a = &s->arithmetic;
    float *scales = (float *)(void *)((char *)s + UNIFORM_STATE_FLOATS);
    float *minima = scales + uniform_group_count(&s->block);
    bool minimum = a->rule.offset == UNIFORM_OFFSET_MINIMUM;
    if (config->scaling == UNIFORM_ARTIFACT) {
        kvant_status status = spread_tensor(setup, &s->block, "scale", a->scale_type, scales, diag);
        if (status == KVANT_OK && minimum)
            status = spread_tensor(setup, &s->block, "min", a->offset_type, minima, diag);
        return status;
    }
    static_numbers(config, a, scales, minima);
    return KVANT_OK;
}

static kvant_status open_codec(const kvant_setup *setup, const kvant_layout *layout, void *state,
                               kvant_diag *diag) {
    uniform_state *s = state;
    uniform_config config;
    (void)layout;
    kvant_status status = make_state(setup, &config, s, diag);
    if (status != KVANT_OK) return status;
    choose_level(setup->isa, &s->encode, &s->decode);
    return s->fixed ? fill_fixed(setup, &config, s, diag) : KVANT_OK;
}

static void close_codec(void *state) {
    (void)state; /* holds nothing but its own bytes */
}

/* ---- Hot calls ----------------------------------------------------------------------------------------- */

static kvant_status encode(const void *state, kvant_encode_args *args) {
    return ((const uniform_state *)state)->encode(state, args);
}

static kvant_status decode(const void *state, const kvant_decode_args *args) {
    return ((const uniform_state *)state)->decode(state, args);
}

static const void *extension(const char *id) {
    return strcmp(id, KVANT_EXT_INSPECT) == 0 ? &uniform_inspect : NULL;
}

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
    (void)host_abi;
    return &plugin;
}
