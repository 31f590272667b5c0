/* The reference: one number after another, as triaxial_group.h and triaxial_block.h define them. It is the
 * scalar level, the norm that every other level equals byte for byte, and meant to be read. */
#include "triaxial.h"
#include "triaxial_group.h"

#include <string.h>

/* One head of a block that is being encoded. */
typedef struct subject {
    const triaxial_block *block;
    const kvant_view *rows;
    const uint32_t *order; /* of this run: the token at each place */
    triaxial_run run;
    uint32_t head;
    uint8_t *bytes; /* of the head */
} subject;

/* One group: `places` x `channels` numbers from (place, channel) on, one of the two being 1. */
typedef struct area {
    uint32_t place, channel;
    uint32_t places, channels;
} area;

static float row_at(const subject *s, uint32_t place, uint32_t channel) {
    return kvant_load_element(kvant_view_at(s->rows, s->order[place], s->head) +
                                  (int64_t)channel * s->rows->channel_stride,
                              s->rows->dtype);
}

static void encode_group(const subject *s, area a, uint64_t *saturated) {
    float min = row_at(s, a.place, a.channel), max = min;
    for (uint32_t p = a.place; p < a.place + a.places; p++)
        for (uint32_t c = a.channel; c < a.channel + a.channels; c++) {
            float x = row_at(s, p, c);
            min = x < min ? x : min;
            max = x > max ? x : max;
        }
    triaxial_group group = triaxial_fit(s->run.levels, min, max, saturated);
    size_t index = triaxial_plane_index(s->block, &s->run, a.place, a.channel);
    kvant_store_element(s->bytes + s->run.scale_offset + 2 * index, KVANT_DTYPE_F16, group.scale);
    kvant_store_element(s->bytes + s->run.min_offset + 2 * index, KVANT_DTYPE_F16, group.min);
    for (uint32_t p = a.place; p < a.place + a.places; p++)
        for (uint32_t c = a.channel; c < a.channel + a.channels; c++)
            triaxial_code_put(s->block, &s->run, s->bytes + s->run.code_offset, p, c,
                              triaxial_code(s->run.levels, group, row_at(s, p, c)));
}

static void encode_run(const subject *s, uint64_t *saturated) {
    uint32_t places = s->run.per_channel ? s->block->group : 1;
    uint32_t channels = s->run.per_channel ? 1 : s->block->group;
    for (uint32_t p = 0; p < s->run.count; p += places)
        for (uint32_t c = 0; c < s->block->head_dim; c += channels) {
            uint32_t left = s->block->head_dim - c; /* the last group of channels may be short */
            encode_group(s, (area){p, c, places, channels < left ? channels : left}, saturated);
        }
}

static void encode(const triaxial_block *block, kvant_encode_args *args) {
    uint32_t *order = args->scratch, wide = triaxial_order(block, args->classes, order);
    triaxial_run runs[TRIAXIAL_WIDTHS];
    triaxial_runs(block, wide, runs);
    args->size = triaxial_extent_bytes(block, wide);
    args->saturated = 0;
    memset(args->extent, 0, args->size); /* padding is zero */
    triaxial_map_write(block, args->extent, order, wide);
    for (uint32_t head = 0; head < block->heads; head++) {
        uint8_t *bytes = (uint8_t *)args->extent + block->map_bytes + head * triaxial_head_bytes(block, wide);
        subject s = {block, args->rows, order, runs[TRIAXIAL_NARROW], head, bytes};
        encode_run(&s, &args->saturated);
        s.order = order + block->tokens - wide;
        s.run = runs[TRIAXIAL_WIDE];
        encode_run(&s, &args->saturated);
    }
}

static void decode_token(const triaxial_block *block, const triaxial_run *run, const uint8_t *bytes,
                         uint32_t place, char *out, const kvant_mutable_view *rows) {
    for (uint32_t c = 0; c < block->head_dim; c++) {
        size_t index = triaxial_plane_index(block, run, place, c);
        triaxial_group group = {kvant_load_element(bytes + run->scale_offset + 2 * index, KVANT_DTYPE_F16),
                                kvant_load_element(bytes + run->min_offset + 2 * index, KVANT_DTYPE_F16)};
        uint32_t code = triaxial_code_get(block, run, bytes + run->code_offset, place, c);
        kvant_store_element(out + (int64_t)c * rows->channel_stride, rows->dtype,
                            triaxial_value(group, code));
    }
}

static void decode(const triaxial_block *block, const kvant_decode_args *args) {
    const kvant_mutable_view *rows = args->rows;
    const uint8_t *extent = args->extent->bytes;
    uint32_t *order = args->scratch;
    uint32_t wide = triaxial_order_of_extent(block, extent, args->extent->size, order);
    uint32_t narrow = block->tokens - wide;
    triaxial_run runs[TRIAXIAL_WIDTHS];
    triaxial_runs(block, wide, runs);
    for (uint32_t h = 0; h < rows->heads; h++) {
        const uint8_t *bytes =
            extent + block->map_bytes + (args->first_head + h) * triaxial_head_bytes(block, wide);
        for (uint32_t i = 0; i < block->tokens; i++) {
            if (order[i] < args->first_token || order[i] - args->first_token >= rows->tokens) continue;
            char *out = kvant_mutable_view_at(rows, order[i] - args->first_token, h);
            if (i < narrow)
                decode_token(block, &runs[TRIAXIAL_NARROW], bytes, i, out, rows);
            else
                decode_token(block, &runs[TRIAXIAL_WIDE], bytes, i - narrow, out, rows);
        }
    }
}

static uint64_t scratch_bytes(const triaxial_block *block) {
    return (uint64_t)block->tokens * sizeof(uint32_t);
}

const triaxial_code_set triaxial_code_reference = {KVANT_ISA_SCALAR, encode, decode, scratch_bytes};
