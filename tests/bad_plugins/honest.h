/* An honest codec, for the plugins of this folder to lie with: each includes this file and replaces one
 * thing.
 *
 * Every row (one token, one head) is quantized by itself, symmetrically, to 8 or 4 bits:
 *     scale = max|x| / q,  code = x / scale rounded to nearest even and cut to [-q, q],  q = 127 or 7
 *
 * The extent, T tokens of H heads of D channels:
 *     scales  f32 [T][H]
 *     codes   [T][H] rows of ceil(D * bits / 8) bytes; at 4 bits channel c is nibble c % 2 of byte c / 2,
 *             low first, biased by 8; at 8 bits a code is a signed byte
 */
#ifndef KVANT_TEST_HONEST_H
#define KVANT_TEST_HONEST_H

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>
#include <kvant/plugin.h>

#include <string.h>

#define HONEST __attribute__((unused)) static

typedef struct honest {
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t bits;
    uint32_t isa;
} honest;

HONEST size_t honest_row_bytes(const honest *h) {
    return ((size_t)h->head_dim * h->bits + 7) / 8;
}

HONEST size_t honest_codes(const honest *h) {
    return (size_t)h->tokens * h->heads * sizeof(float);
}

HONEST size_t honest_size(const honest *h) {
    return honest_codes(h) + (size_t)h->tokens * h->heads * honest_row_bytes(h);
}

HONEST honest honest_of(const kvant_setup *setup) {
    return (honest){.tokens = setup->block_tokens,
                    .heads = setup->kv_heads,
                    .head_dim = setup->head_dim,
                    .bits = (uint32_t)setup->values[0].integer,
                    .isa = setup->isa};
}

HONEST kvant_status honest_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    honest h = honest_of(setup);
    uint64_t rows = (uint64_t)h.tokens * h.heads;
    layout->alignment = 4;
    layout->block_multiple = 1;
    if (h.head_dim > 4096 || rows > 1u << 24)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, h.head_dim > 4096 ? "head_dim" : "block_tokens",
                          "at most 4096 channels and 2^24 rows a block");
    layout->isa = KVANT_ISA_SCALAR;
    layout->size_min = honest_size(&h);
    layout->payload_bits = rows * h.head_dim * h.bits;
    layout->metadata_bits = rows * 32;
    layout->state_bytes = sizeof h;
    layout->scratch_bytes = (uint64_t)h.head_dim * sizeof(float);
    return KVANT_OK;
}

HONEST kvant_status honest_open(const kvant_setup *setup, const kvant_layout *layout, void *state,
                                kvant_diag *diag) {
    honest h = honest_of(setup);
    (void)layout;
    (void)diag;
    memcpy(state, &h, sizeof h);
    return KVANT_OK;
}

HONEST void honest_close(void *state) {
    (void)state;
}

HONEST float honest_scale(const float *row, uint32_t count, float q) {
    float most = 0.0f;
    for (uint32_t c = 0; c < count; c++) {
        float x = row[c] < 0.0f ? -row[c] : row[c];
        if (x > most) most = x;
    }
    float scale = most / q;
    /* At the end of the range of floats the rounded scale must not decode beyond it. */
    while (scale * q > 0x1.fffffep127f) scale = kvant_bits_float(kvant_float_bits(scale) - 1);
    return scale;
}

HONEST int32_t honest_code(float x, float scale, float q) {
    if (scale == 0.0f) return 0;
    float y = x / scale;
    if (y > q) y = q;
    if (y < -q) y = -q;
    volatile float shifted = y + 0x1.8p23f; /* rounds to an integer */
    return (int32_t)(shifted - 0x1.8p23f);
}

HONEST void honest_put_row(const honest *h, uint8_t *codes, const float *row, float scale) {
    float q = h->bits == 8 ? 127.0f : 7.0f;
    memset(codes, 0, honest_row_bytes(h));
    for (uint32_t c = 0; c < h->head_dim; c++) {
        int32_t code = honest_code(row[c], scale, q);
        if (h->bits == 8)
            codes[c] = (uint8_t)code;
        else
            codes[c / 2] = (uint8_t)(codes[c / 2] | (code + 8) << (c % 2 * 4));
    }
}

HONEST void honest_get_row(const honest *h, const uint8_t *codes, float scale, float *row) {
    for (uint32_t c = 0; c < h->head_dim; c++) {
        int32_t code = h->bits == 8 ? (int8_t)codes[c] : (codes[c / 2] >> (c % 2 * 4) & 15) - 8;
        row[c] = (float)code * scale;
    }
}

HONEST kvant_status honest_encode(const void *state, kvant_encode_args *args) {
    const honest *h = state;
    uint8_t *scales = args->extent, *codes = scales + honest_codes(h);
    float *row = args->scratch;
    for (uint32_t t = 0; t < h->tokens; t++)
        for (uint32_t k = 0; k < h->heads; k++) {
            size_t index = (size_t)t * h->heads + k;
            kvant_load_row(args->rows, t, k, row);
            float scale = honest_scale(row, h->head_dim, h->bits == 8 ? 127.0f : 7.0f);
            memcpy(scales + index * sizeof scale, &scale, sizeof scale);
            honest_put_row(h, codes + index * honest_row_bytes(h), row, scale);
        }
    args->size = honest_size(h);
    args->saturated = 0;
    return KVANT_OK;
}

/* What a type cannot hold becomes its largest number. */
HONEST float honest_cut(float x, uint32_t dtype) {
    float most = dtype == KVANT_DTYPE_F16    ? 65504.0f
                 : dtype == KVANT_DTYPE_BF16 ? 0x1.fep127f
                                             : 0x1.fffffep127f;
    return x > most ? most : x < -most ? -most : x;
}

/* One row of the extent to one row of the view. */
HONEST void honest_decode_row(const honest *h, const kvant_decode_args *args, uint32_t token, uint32_t head,
                              uint32_t to_token, uint32_t to_head) {
    const uint8_t *bytes = args->extent->bytes;
    size_t index = (size_t)token * h->heads + head;
    float *row = args->scratch, scale;
    memcpy(&scale, bytes + index * sizeof scale, sizeof scale);
    honest_get_row(h, bytes + honest_codes(h) + index * honest_row_bytes(h), scale, row);
    for (uint32_t c = 0; c < h->head_dim; c++) row[c] = honest_cut(row[c], args->rows->dtype);
    kvant_store_row(args->rows, to_token, to_head, row);
}

HONEST kvant_status honest_decode(const void *state, const kvant_decode_args *args) {
    for (uint32_t t = 0; t < args->rows->tokens; t++)
        for (uint32_t k = 0; k < args->rows->heads; k++)
            honest_decode_row(state, args, args->first_token + t, args->first_head + k, t, k);
    return KVANT_OK;
}

/* ---- Descriptors --------------------------------------------------------------------------------------- */

HONEST const int64_t honest_bits[] = {4, 8};

/* Members of a kvant_param, a kvant_descriptor and a kvant_plugin; what follows them in braces replaces
 * them. */
#define HONEST_PARAM                                                                                         \
    .struct_size = sizeof(kvant_param), .type = KVANT_PARAM_INTEGER, .integer_count = 2, .name = "bits",     \
    .unit = "bits", .help = "bits of a code", .integers = honest_bits, .integer_min = 4, .integer_max = 8,   \
    .integer_default = 8

HONEST const kvant_param honest_params[] = {{HONEST_PARAM}};

#define HONEST_DESCRIPTOR(NAME)                                                                              \
    .struct_size = sizeof(kvant_descriptor), .format_id = 0x54534548 /* HEST */, .format_version = 1,        \
    .sides = KVANT_SIDES_BOTH, .dtypes = KVANT_DTYPES_ALL, .head_dim_min = 1, .head_dim_max = 4096,          \
    .head_dim_multiple = 1, .param_count = 1, .name = NAME, .version = "1.0.0",                              \
    .title = "Rows to 8 or 4 bits, for tests", .paper = "", .license = "Apache-2.0", .deviations = "",       \
    .params = honest_params

#define HONEST_CALLS                                                                                         \
    .struct_size = sizeof(kvant_plugin), .abi = KVANT_ABI, .plan = honest_plan, .open = honest_open,         \
    .close = honest_close, .encode = honest_encode, .decode = honest_decode

__attribute__((visibility("default"))) const kvant_plugin *kvant_plugin_query(uint32_t host_abi);

/* The whole plugin; the rest are members of kvant_plugin to replace, at least one: .encode = encode */
#define LIAR(NAME, ...)                                                                                      \
    static const kvant_descriptor descriptor = {HONEST_DESCRIPTOR(NAME)};                                    \
    static const kvant_plugin plugin = {HONEST_CALLS, .descriptor = &descriptor, __VA_ARGS__};               \
    const kvant_plugin *kvant_plugin_query(uint32_t host_abi) {                                              \
        (void)host_abi;                                                                                      \
        return &plugin;                                                                                      \
    }

/* The same with members of kvant_descriptor to replace. */
#define MISDESCRIBED(NAME, ...)                                                                              \
    static const kvant_descriptor descriptor = {HONEST_DESCRIPTOR(NAME), __VA_ARGS__};                       \
    static const kvant_plugin plugin = {HONEST_CALLS, .descriptor = &descriptor};                            \
    const kvant_plugin *kvant_plugin_query(uint32_t host_abi) {                                              \
        (void)host_abi;                                                                                      \
        return &plugin;                                                                                      \
    }

#endif
