/* The fast code of raw, compiled once per instruction set: copies of whole rows where no element changes its
 * type, else rows through floats in loops that the compiler vectorises. Same bytes and floats as
 * raw_reference.c. */
#include "raw.h"

#include <kvant/kit/isa.h>
#include <kvant/kit/view.h>

/* Elements of `size` bytes, 2 or 4, from one stride to another. */
static void copy_elements(char *out, int64_t out_stride, const char *in, int64_t in_stride, size_t size,
                          uint32_t count) {
    if (in_stride == (int64_t)size && out_stride == (int64_t)size) {
        memcpy(out, in, count * size);
    } else if (size == 4) {
        for (int64_t c = 0; c < count; c++) memcpy(out + c * out_stride, in + c * in_stride, 4);
    } else {
        for (int64_t c = 0; c < count; c++) memcpy(out + c * out_stride, in + c * in_stride, 2);
    }
}

/* Finite numbers that rounding would make infinity: magnitudes whose bits are at least `overflow`. */
static uint32_t count_overflows(const float *row, uint32_t count, int32_t overflow) {
    uint32_t overflows = 0;
    for (uint32_t c = 0; c < count; c++) {
        int32_t magnitude = (int32_t)(kvant_float_bits(row[c]) & 0x7fffffffu);
        overflows += (magnitude >= overflow) & (magnitude < 0x7f800000);
    }
    return overflows;
}

static uint64_t encode_row(const raw_block *block, const kvant_view *rows, uint32_t token, uint32_t head,
                           uint8_t *out, float *row) {
    kvant_load_row(rows, token, head, row);
    kvant_store_elements(out, block->format, block->head_dim, row); /* saturates */
    if (block->format == KVANT_DTYPE_F32) return 0;
    /* 65520, halfway from 65504 to 65536; or halfway from 2^128 - 2^120 to 2^128 */
    return count_overflows(row, block->head_dim, block->format == KVANT_DTYPE_F16 ? 0x477ff000 : 0x7f7f8000);
}

static uint64_t encode(const raw_block *block, const kvant_view *rows, uint8_t *extent, void *scratch) {
    uint64_t saturated = 0;
    for (uint32_t h = 0; h < block->heads; h++) {
        for (uint32_t t = 0; t < block->tokens; t++) {
            uint8_t *out = extent + raw_block_row(block, t, h);
            if (block->format == block->input)
                copy_elements((char *)out, block->element_bytes, kvant_view_at(rows, t, h),
                              rows->channel_stride, block->element_bytes, block->head_dim);
            else
                saturated += encode_row(block, rows, t, h, out, scratch);
        }
        size_t used = raw_block_used(block);
        memset(extent + raw_block_row(block, 0, h) + used, 0, block->head_bytes - used);
    }
    return saturated;
}

static void decode(const raw_block *block, const kvant_decode_args *args) {
    const kvant_mutable_view *rows = args->rows;
    float *row = args->scratch;
    for (uint32_t h = 0; h < rows->heads; h++) {
        for (uint32_t t = 0; t < rows->tokens; t++) {
            const char *in = (const char *)args->extent->bytes +
                             raw_block_row(block, args->first_token + t, args->first_head + h);
            if (rows->dtype == block->format) {
                copy_elements(kvant_mutable_view_at(rows, t, h), rows->channel_stride, in,
                              block->element_bytes, block->element_bytes, block->head_dim);
            } else {
                kvant_load_elements(in, block->format, block->head_dim, row);
                kvant_store_row(rows, t, h, row);
            }
        }
    }
}

/* One row of floats. */
static uint64_t scratch_bytes(const raw_block *block) {
    return block->head_dim * sizeof(float);
}

const raw_code KVANT_CPU(raw_code) = {KVANT_CPU_ISA, encode, decode, scratch_bytes};
