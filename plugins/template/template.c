/* template: symmetric integer quantization with one scale per token and head, as a start for a codec of your
 * own.
 *
 *     scale = max|x| / L        code = round_half_even(x / scale)        x^ = code * scale        L = 2^(bits-1) - 1
 *
 * Everything a plugin must have is in this file: a schema, a descriptor, five calls, one exported function.
 * The rules that the calls keep are in kvant/plugin.h; `kvant check` puts each of them to the test.
 */
#include "template_block.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>
#include <kvant/plugin.h>

#include <float.h>

/* ---- What the user can set ----------------------------------------------------------------------------- */

enum { PARAM_BITS, PARAM_COUNT };

static const int64_t bits_allowed[] = {4, 8};

static const kvant_param params[PARAM_COUNT] = {
    [PARAM_BITS] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_INTEGER,
                    .name = "bits",
                    .unit = "bits",
                    .help = "width of a code",
                    .integers = bits_allowed,
                    .integer_count = 2,
                    .integer_min = 4,
                    .integer_max = 8,
                    .integer_default = 8},
};

static const kvant_descriptor descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = 'T' | 'M' << 8 | 'P' << 16 | 'L' << 24, /* four letters of your own */
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .head_dim_min = 1,
    .head_dim_max = 4096,
    .head_dim_multiple = 1,
    .name = "template",
    .version = "0.1.0",
    .title = "symmetric integers, one scale per token and head",
    .paper = "",
    .license = "Apache-2.0",
    .deviations = "",
    .params = params,
    .param_count = PARAM_COUNT,
};

/* ---- Setup --------------------------------------------------------------------------------------------- */

/* What the hot calls need; the host allocates it. */
typedef struct state {
    template_block block;
} state;

static template_block block_of(const kvant_setup *setup) {
    return template_block_of(setup->block_tokens, setup->kv_heads, setup->head_dim,
                             (uint32_t)setup->values[PARAM_BITS].integer);
}

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    /* The host has checked parameters against the schema and head_dim, dtype and side against the
     * descriptor. */
    if (setup->block_tokens > 65536)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "block_tokens", "block_tokens is %u, at most 65536",
                          setup->block_tokens);
    template_block b = block_of(setup);
    uint64_t rows = (uint64_t)b.tokens * b.heads;
    layout->alignment = 64;
    layout->block_multiple = 1;
    layout->isa = KVANT_ISA_SCALAR;
    layout->size_min = (uint64_t)b.heads * b.head_bytes;
    layout->payload_bits = rows * b.head_dim * b.bits;
    layout->metadata_bits = rows * 32;
    layout->state_bytes = sizeof(state);
    layout->scratch_bytes = (uint64_t)b.head_dim * sizeof(float);
    return KVANT_OK;
}

static kvant_status open_codec(const kvant_setup *setup, const kvant_layout *layout, void *memory,
                               kvant_diag *diag) {
    (void)layout;
    (void)diag;
    state *s = memory;
    s->block = block_of(setup);
    return KVANT_OK;
}

static void close_codec(void *memory) {
    (void)memory; /* nothing was acquired beyond the state */
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

/* To the nearest integer, ties to even, for |x| < 2^22: the sum has no room for fractions. */
static float round_half_even(float x) {
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

static void put_code(const template_block *b, uint8_t *row, uint32_t channel, int code) {
    if (b->bits == 8)
        row[channel] = (uint8_t)(int8_t)code;
    else
        row[channel / 2] = (uint8_t)(row[channel / 2] | (code + 8) << (channel % 2 * 4));
}

static kvant_status encode(const void *memory, kvant_encode_args *args) {
    const state *s = memory;
    const template_block *b = &s->block;
    float *x = args->scratch;
    float largest_code = b->bits == 8 ? 127.0f : 7.0f;
    memset(args->extent, 0, b->heads * b->head_bytes); /* every byte is written, padding too */
    for (uint32_t h = 0; h < b->heads; h++) {
        uint8_t *head = (uint8_t *)args->extent + h * b->head_bytes;
        for (uint32_t t = 0; t < b->tokens; t++) {
            kvant_load_row(args->rows, t, h, x);
            float largest = 0;
            for (uint32_t c = 0; c < b->head_dim; c++) {
                float magnitude = x[c] < 0 ? -x[c] : x[c];
                if (magnitude > largest) largest = magnitude;
            }
            float scale = largest / largest_code;
            if (scale * largest_code > FLT_MAX)
                scale *= 0x1.fffffep-1f; /* rounded up at the very end of the range */
            memcpy(head + t * sizeof scale, &scale, sizeof scale);
            if (scale == 0) scale = 1; /* a row of zeros, or one too small for its scale: all codes are 0 */
            uint8_t *row = head + b->codes + t * b->row_bytes;
            for (uint32_t c = 0; c < b->head_dim; c++) {
                float ratio = x[c] / scale; /* beyond the range where a subnormal scale is inexact */
                if (ratio > largest_code) ratio = largest_code;
                if (ratio < -largest_code) ratio = -largest_code;
                put_code(b, row, c, (int)round_half_even(ratio));
            }
        }
    }
    args->size = b->heads * b->head_bytes;
    args->saturated = 0;
    return KVANT_OK;
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

static int get_code(const template_block *b, const uint8_t *row, uint32_t channel) {
    if (b->bits == 8) return (int8_t)row[channel];
    return (row[channel / 2] >> (channel % 2 * 4) & 15) - 8;
}

static kvant_status decode(const void *memory, const kvant_decode_args *args) {
    const state *s = memory;
    const template_block *b = &s->block;
    float *x = args->scratch;
    for (uint32_t h = 0; h < args->rows->heads; h++) {
        const uint8_t *head = (const uint8_t *)args->extent->bytes + (args->first_head + h) * b->head_bytes;
        for (uint32_t t = 0; t < args->rows->tokens; t++) {
            uint32_t token = args->first_token + t;
            float scale;
            memcpy(&scale, head + token * sizeof scale, sizeof scale);
            const uint8_t *row = head + b->codes + token * b->row_bytes;
            for (uint32_t c = 0; c < b->head_dim; c++) x[c] = (float)get_code(b, row, c) * scale;
            kvant_store_row(args->rows, t, h, x);
        }
    }
    return KVANT_OK;
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
};

__attribute__((visibility("default"))) const kvant_plugin *kvant_plugin_query(uint32_t host_abi);

const kvant_plugin *kvant_plugin_query(uint32_t host_abi) {
    (void)host_abi; /* this plugin has one ABI to offer; the host decides whether it fits */
    return &plugin;
}
