/* All that can be seen of a sequence, to be compared; see cache_rig.h. */
#include "support/cache_rig.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

struct rig_picture {
    kvant_sequence_info info;
    kvant_bytes bytes;
    float *rows[RIG_LAYERS_MAX][2];
    size_t row_bytes[RIG_LAYERS_MAX][2];
    float *outputs[RIG_LAYERS_MAX];
    size_t output_bytes[RIG_LAYERS_MAX];
    uint32_t layers;
};

/* Outputs and log-sum-exps of a made-up query at the position of the newest token. */
static void probe(rig *r, const kvant_sequence *s, uint32_t layer, rig_picture *p) {
    const kvant_layer_geometry *g = &r->layers[layer];
    const uint64_t id = 4711;
    size_t floats = (size_t)g->q_heads * g->value_dim;
    void *rows = rig_rows(r, layer, RIG_QUERY, &id, 3, 1);
    float *outputs = malloc((floats + g->q_heads) * sizeof *outputs);
    assert_non_null(outputs);
    memset(outputs, 0xff, (floats + g->q_heads) * sizeof *outputs);
    kvant_mutable_view q = rig_view(rows, r->geometry.dtype, 1, g->q_heads, g->key_dim);
    const kvant_mutable_view out = rig_view(outputs, KVANT_DTYPE_F32, 1, g->q_heads, g->value_dim);
    const kvant_view queries = {.struct_size = sizeof queries,
                                .dtype = q.dtype,
                                .data = q.data,
                                .tokens = 1,
                                .heads = q.heads,
                                .head_dim = q.head_dim,
                                .token_stride = q.token_stride,
                                .head_stride = q.head_stride,
                                .channel_stride = q.channel_stride};
    const kvant_token_range range = {.from = rig_readable(r, s, layer), .to = p->info.length};
    const kvant_attend_part part = {.struct_size = sizeof part,
                                    .sequence = s,
                                    .queries = &queries,
                                    .ranges = &range,
                                    .outputs = &out,
                                    .log_sum_exp = outputs + floats};
    const kvant_attention_options options = {
        .struct_size = sizeof options, .threads = 1, .scale = 0.25f, .soft_cap = 20};
    size_t size = kvant_cache_attend_scratch(r->cache, layer, &part, 1, &options);
    void *scratch = aligned_alloc(64, (size + 64) / 64 * 64);
    assert_non_null(scratch);
    memset(scratch, 0xff, size);
    rig_ok(kvant_cache_attend(r->cache, layer, &part, 1, &options, scratch, size, &rig_diag));
    free(scratch);
    free(rows);
    p->outputs[layer] = outputs;
    p->output_bytes[layer] = (floats + g->q_heads) * sizeof *outputs;
}

rig_picture *rig_look(rig *r, const kvant_sequence *s) {
    rig_picture *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->info = rig_info(s);
    p->bytes = rig_bytes(s);
    p->layers = r->geometry.layer_count;
    for (uint32_t l = 0; l < p->layers; l++) {
        uint64_t first = rig_readable(r, s, l);
        uint32_t count = p->info.length > first ? (uint32_t)(p->info.length - first) : 0;
        for (uint32_t side = 0; side < 2 && count != 0; side++) {
            uint32_t dim = side == KVANT_SIDE_KEY ? r->layers[l].key_dim : r->layers[l].value_dim;
            p->rows[l][side] = rig_read(r, s, l, side, first, count);
            p->row_bytes[l][side] = (size_t)count * r->layers[l].kv_heads * dim * sizeof(float);
        }
        probe(r, s, l, p);
    }
    return p;
}

void rig_assert_same(const rig_picture *a, const rig_picture *b) {
    assert_int_equal(a->info.length, b->info.length);
    assert_int_equal(a->info.live_tokens, b->info.live_tokens);
    assert_int_equal(a->info.blocks, b->info.blocks);
    assert_int_equal(a->info.tail_first, b->info.tail_first);
    assert_int_equal(a->layers, b->layers);
    for (uint32_t l = 0; l < a->layers; l++) {
        for (uint32_t side = 0; side < 2; side++) {
            assert_int_equal(a->row_bytes[l][side], b->row_bytes[l][side]);
            if (a->row_bytes[l][side] != 0)
                kvant_assert_bytes(a->rows[l][side], b->rows[l][side], a->row_bytes[l][side]);
        }
        kvant_assert_bytes(a->outputs[l], b->outputs[l], a->output_bytes[l]);
    }
}

void rig_picture_free(rig_picture *p) {
    for (uint32_t l = 0; l < p->layers; l++) {
        free(p->rows[l][0]);
        free(p->rows[l][1]);
        free(p->outputs[l]);
    }
    free(p);
}

void rig_assert_alike(rig *ra, const kvant_sequence *a, rig *rb, const kvant_sequence *b) {
    rig_picture *x = rig_look(ra, a), *y = rig_look(rb, b);
    rig_assert_same(x, y);
    rig_picture_free(x);
    rig_picture_free(y);
}

void rig_assert_still(rig *r, const kvant_sequence *s, rig_picture *picture) {
    rig_picture *now = rig_look(r, s);
    rig_assert_same(now, picture);
    assert_int_equal(now->info.in_step, picture->info.in_step);
    assert_int_equal(now->info.private_first, picture->info.private_first);
    assert_int_equal(now->bytes.payload, picture->bytes.payload);
    assert_int_equal(now->bytes.metadata, picture->bytes.metadata);
    assert_int_equal(now->bytes.padding, picture->bytes.padding);
    assert_int_equal(now->bytes.raw, picture->bytes.raw);
    rig_picture_free(now);
    rig_picture_free(picture);
}
