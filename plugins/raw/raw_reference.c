/* The scalar code of raw, which defines its bytes and floats.
 *
 * An element of the format's own type is copied bit for bit. Any other is widened to float, which is exact,
 * and rounded once to nearest even; where a finite number would overflow, the largest of its sign takes its
 * place (kit/view.h) and is counted.
 */
#include "raw.h"

#include <kvant/kit/view.h>

/* Whether rounding x to the format would give infinity. */
static bool overflows(float x, uint32_t format) {
    if (format == KVANT_DTYPE_F32) return false;
    float magnitude = x < 0 ? -x : x;
    return magnitude >= (format == KVANT_DTYPE_F16 ? 65520.0f : 0x1.ffp127f) && magnitude <= 0x1.fffffep127f;
}

static uint64_t encode(const raw_block *block, const kvant_view *rows, uint8_t *extent, void *scratch) {
    (void)scratch;
    uint64_t saturated = 0;
    for (uint32_t h = 0; h < block->heads; h++) {
        for (uint32_t t = 0; t < block->tokens; t++) {
            const char *row = kvant_view_at(rows, t, h);
            uint8_t *out = extent + raw_block_row(block, t, h);
            for (uint32_t c = 0; c < block->head_dim; c++, out += block->element_bytes) {
                const char *element = row + (int64_t)c * rows->channel_stride;
                if (block->format == block->input) {
                    memcpy(out, element, block->element_bytes);
                } else {
                    float x = kvant_load_element(element, block->input);
                    saturated += overflows(x, block->format);
                    kvant_store_element(out, block->format, x);
                }
            }
        }
        size_t used = raw_block_used(block);
        memset(extent + raw_block_row(block, 0, h) + used, 0, block->head_bytes - used);
    }
    return saturated;
}

static void decode(const raw_block *block, const kvant_decode_args *args) {
    const kvant_mutable_view *rows = args->rows;
    for (uint32_t h = 0; h < rows->heads; h++) {
        for (uint32_t t = 0; t < rows->tokens; t++) {
            const uint8_t *element = (const uint8_t *)args->extent->bytes +
                                     raw_block_row(block, args->first_token + t, args->first_head + h);
            char *row = kvant_mutable_view_at(rows, t, h);
            for (uint32_t c = 0; c < block->head_dim; c++, element += block->element_bytes) {
                char *out = row + (int64_t)c * rows->channel_stride;
                if (rows->dtype == block->format)
                    memcpy(out, element, block->element_bytes);
                else
                    kvant_store_element(out, rows->dtype, kvant_load_element(element, block->format));
            }
        }
    }
}

static uint64_t scratch_bytes(const raw_block *block) {
    (void)block;
    return 0;
}

const raw_code raw_code_reference = {KVANT_ISA_SCALAR, encode, decode, scratch_bytes};
