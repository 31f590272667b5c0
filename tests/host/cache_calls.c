/* Ways to make the same call: sequences together or one by one, a layer at once or in its three parts, all
 * heads or some at a time, layers in any order. The numbers are the same to the bit. */
#include "support/cache_rig.h"
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 70, STEP = 3 };

/* What one sequence hands to one layer. */
typedef struct hands {
    void *rows[3];
    kvant_view views[3];
    float *out, *log_sum_exp;
    kvant_mutable_view outputs;
    size_t out_bytes, sum_bytes;
} hands;

static hands hands_of(const rig *r, uint32_t layer, const uint64_t *ids, uint64_t first, uint32_t count) {
    const kvant_layer_geometry *g = &r->layers[layer];
    hands h = {.out_bytes = sizeof(float) * count * g->q_heads * g->value_dim,
               .sum_bytes = sizeof(float) * count * g->q_heads};
    for (uint32_t what = 0; what < 3; what++) {
        h.rows[what] = rig_rows(r, layer, what, ids, first, count);
        kvant_mutable_view v =
            rig_view(h.rows[what], r->geometry.dtype, count, what == RIG_QUERY ? g->q_heads : g->kv_heads,
                     what == KVANT_SIDE_VALUE ? g->value_dim : g->key_dim);
        h.views[what] =
            (kvant_view){sizeof h.views[0], v.dtype, v.data,         v.tokens,      v.heads,
                         v.head_dim,        0,       v.token_stride, v.head_stride, v.channel_stride};
    }
    h.out = malloc(h.out_bytes);
    h.log_sum_exp = malloc(h.sum_bytes);
    assert_true(h.out != NULL && h.log_sum_exp != NULL);
    memset(h.out, 0xff, h.out_bytes);
    memset(h.log_sum_exp, 0xff, h.sum_bytes);
    h.outputs = rig_view(h.out, KVANT_DTYPE_F32, count, g->q_heads, g->value_dim);
    return h;
}

static void hands_free(hands *h) {
    for (uint32_t what = 0; what < 3; what++) free(h->rows[what]);
    free(h->out);
    free(h->log_sum_exp);
}

static kvant_step_rows rows_of(kvant_sequence *s, const hands *h) {
    return (kvant_step_rows){.struct_size = sizeof(kvant_step_rows),
                             .sequence = s,
                             .keys = &h->views[0],
                             .values = &h->views[1],
                             .queries = &h->views[2],
                             .outputs = &h->outputs,
                             .log_sum_exp = h->log_sum_exp};
}

static kvant_attention_options options_of(const rig *r, uint32_t layer) {
    return (kvant_attention_options){.struct_size = sizeof(kvant_attention_options),
                                     .scale = (float)(1 / sqrt(r->layers[layer].key_dim)),
                                     .soft_cap = 8};
}

/* Sequences of lengths from 0 on, all of them different texts. */
static void grow_many(rig *r, kvant_sequence **s, uint64_t **ids) {
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t length = i * 3 % 130;
        ids[i] = rig_ids(length + 20, 100 + i);
        s[i] = rig_sequence(r);
        if (length > 0) rig_grow(r, s[i], ids[i], length, 50);
    }
}

static void free_many(kvant_sequence **s, uint64_t **ids) {
    for (uint32_t i = 0; i < MANY; i++) {
        kvant_sequence_free(s[i]);
        free(ids[i]);
    }
}

static void a_batch_and_one_by_one(void **state) {
    (void)state;
    static kvant_sequence *s[2][MANY];
    static uint64_t *ids[2][MANY];
    static kvant_step_rows rows[MANY];
    static hands h[2][MANY];
    rig *r = rig_open(&(rig_wish){.model = "", .threads = 2});
    grow_many(r, s[0], ids[0]);
    grow_many(r, s[1], ids[1]);
    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t i = 0; i < MANY; i++)
            rig_ok(rig_begin(
                s[k][i], &(rig_step){.ids = ids[k][i] + rig_info(s[k][i]).length, .count = 1 + i % STEP}));
    for (uint32_t l = 0; l < 2; l++) {
        const kvant_attention_options options = options_of(r, l);
        for (uint32_t k = 0; k < 2; k++)
            for (uint32_t i = 0; i < MANY; i++) {
                uint64_t length = rig_info(s[k][i]).length;
                h[k][i] = hands_of(r, l, ids[k][i] + length, length, 1 + i % STEP);
                rows[i] = rows_of(s[k][i], &h[k][i]);
                if (k == 1) rig_ok(kvant_step_attend(r->cache, l, &rows[i], 1, &options, &rig_diag));
                if (k == 0 && i + 1 == MANY)
                    rig_ok(kvant_step_attend(r->cache, l, rows, MANY, &options, &rig_diag));
            }
        for (uint32_t i = 0; i < MANY; i++) {
            kvant_assert_bytes(h[0][i].out, h[1][i].out, h[0][i].out_bytes);
            kvant_assert_bytes(h[0][i].log_sum_exp, h[1][i].log_sum_exp, h[0][i].sum_bytes);
            for (uint32_t k = 0; k < 2; k++) hands_free(&h[k][i]);
        }
    }
    for (uint32_t i = 0; i < MANY; i++) {
        for (uint32_t k = 0; k < 2; k++) rig_ok(kvant_step_commit(s[k][i], 1 + i % STEP, &rig_diag));
        rig_assert_alike(r, s[0][i], r, s[1][i]);
    }
    free_many(s[0], ids[0]);
    free_many(s[1], ids[1]);
    rig_close(r);
}

/* Queries of many sequences outside of a step, in one call and in many, with a loop over heads. */
static void questions_to_many(void **state) {
    (void)state;
    static kvant_sequence *s[MANY];
    static uint64_t *ids[MANY];
    static hands h[3][MANY];
    static kvant_attend_part parts[MANY];
    static kvant_token_range ranges[MANY][STEP];
    rig *r = rig_open(&(rig_wish){.model = ""});
    grow_many(r, s, ids);
    kvant_attention_options options = options_of(r, 0);
    for (uint32_t k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < MANY; i++) {
            h[k][i] = hands_of(r, 0, ids[i], 5, STEP);
            for (uint32_t t = 0; t < STEP; t++) ranges[i][t] = (kvant_token_range){t * 7, 40 * t + i};
            parts[i] = (kvant_attend_part){.struct_size = sizeof parts[i],
                                           .sequence = s[i],
                                           .queries = &h[k][i].views[2],
                                           .ranges = ranges[i],
                                           .outputs = &h[k][i].outputs,
                                           .log_sum_exp = h[k][i].log_sum_exp};
        }
        uint32_t count = k == 0 ? MANY : 1;
        for (uint32_t at = 0; at < MANY; at += count)
            for (uint32_t head = 0; head < (k == 2 ? 2 : 1); head++) {
                options.first_kv_head = k == 2 ? 1 - head : 0;
                options.kv_heads = k == 2 ? 1 : 0;
                size_t size = kvant_cache_attend_scratch(r->cache, 0, parts + at, count, &options);
                void *scratch = aligned_alloc(64, (size + 64) / 64 * 64);
                assert_non_null(scratch);
                rig_ok(
                    kvant_cache_attend(r->cache, 0, parts + at, count, &options, scratch, size, &rig_diag));
                free(scratch);
            }
    }
    for (uint32_t i = 0; i < MANY; i++)
        for (uint32_t k = 1; k < 3; k++) {
            kvant_assert_bytes(h[k][i].out, h[0][i].out, h[0][i].out_bytes);
            kvant_assert_bytes(h[k][i].log_sum_exp, h[0][i].log_sum_exp, h[0][i].sum_bytes);
        }
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t i = 0; i < MANY; i++) hands_free(&h[k][i]);
    free_many(s, ids);
    rig_close(r);
}

/* A layer opened, attended head by head and row by row, and closed; layers from the last to the first, and
 * all open at once. */
static void a_layer_in_its_parts(void **state) {
    (void)state;
    enum { BEFORE = 90, COUNT = 40 };
    rig *r = rig_open(&(rig_wish){.model = ""});
    uint64_t *ids = rig_ids(BEFORE + COUNT, 5);
    kvant_sequence *whole = rig_sequence(r), *parts = rig_sequence(r);
    hands h[2][2];
    rig_grow(r, whole, ids, BEFORE, 33);
    rig_grow(r, parts, ids, BEFORE, 33);
    rig_ok(rig_begin(whole, &(rig_step){.ids = ids + BEFORE, .count = COUNT}));
    rig_ok(rig_begin(parts, &(rig_step){.ids = ids + BEFORE, .count = COUNT}));
    for (uint32_t l = 0; l < 2; l++) {
        const kvant_attention_options options = options_of(r, l);
        for (uint32_t k = 0; k < 2; k++) h[k][l] = hands_of(r, l, ids + BEFORE, BEFORE, COUNT);
        const kvant_step_rows rows = rows_of(whole, &h[0][l]);
        rig_ok(kvant_step_attend(r->cache, l, &rows, 1, &options, &rig_diag));
    }
    for (uint32_t l = 2; l-- > 0;)
        rig_ok(kvant_step_layer_begin(parts, l, &h[1][l].views[0], &h[1][l].views[1], &rig_diag));
    for (uint32_t l = 2; l-- > 0;) {
        const kvant_attend_part part = {.struct_size = sizeof part,
                                        .sequence = parts,
                                        .queries = &h[1][l].views[2],
                                        .outputs = &h[1][l].outputs,
                                        .log_sum_exp = h[1][l].log_sum_exp};
        kvant_attention_options options = options_of(r, l);
        options.kv_heads = 1;
        for (uint32_t head = 0; head < r->layers[l].kv_heads; head++) {
            options.first_kv_head = head;
            size_t size = kvant_cache_attend_scratch(r->cache, l, &part, 1, &options);
            void *scratch = aligned_alloc(64, (size + 64) / 64 * 64);
            assert_non_null(scratch);
            rig_ok(kvant_cache_attend(r->cache, l, &part, 1, &options, scratch, size, &rig_diag));
            free(scratch);
        }
        kvant_assert_bytes(h[1][l].out, h[0][l].out, h[0][l].out_bytes);
        kvant_assert_bytes(h[1][l].log_sum_exp, h[0][l].log_sum_exp, h[0][l].sum_bytes);
        rig_ok(kvant_step_layer_end(parts, l, &rig_diag));
    }
    rig_ok(kvant_step_commit(whole, COUNT, &rig_diag));
    rig_ok(kvant_step_commit(parts, COUNT, &rig_diag));
    rig_assert_alike(r, parts, r, whole);
    rig_assert_rows(r, parts, ids);
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t k = 0; k < 2; k++) hands_free(&h[k][l]);
    kvant_sequence_free(whole);
    kvant_sequence_free(parts);
    free(ids);
    rig_close(r);
}

/* One sequence of a batch gives what is not finite: the steps of all end, and all are as before. */
static void an_error_ends_the_batch(void **state) {
    (void)state;
    enum { THREE = 3 };
    rig *r = rig_open(&(rig_wish){.model = ""});
    uint64_t *ids = rig_ids(60, 6);
    kvant_sequence *s[THREE];
    rig_picture *before[THREE];
    hands h[THREE];
    kvant_step_rows rows[THREE];
    for (uint32_t i = 0; i < THREE; i++) {
        s[i] = rig_sequence(r);
        rig_grow(r, s[i], ids, 50 + i, 50);
        before[i] = rig_look(r, s[i]);
        rig_ok(rig_begin(s[i], &(rig_step){.ids = ids + 50 + i, .count = 2}));
        h[i] = hands_of(r, 0, ids + 50 + i, 50 + i, 2);
        rows[i] = rows_of(s[i], &h[i]);
    }
    ((uint16_t *)h[1].rows[KVANT_SIDE_VALUE])[2 * 16 + 16 + 3] = 0x7e00; /* token 1, head 1, channel 3 */
    const kvant_attention_options options = options_of(r, 0);
    rig_refused(kvant_step_attend(r->cache, 0, rows, THREE, &options, &rig_diag), KVANT_ERROR_NOT_FINITE,
                "layer 0 value: token 1 of the step (position 52), head 1, channel 3 is NaN");
    for (uint32_t i = 0; i < THREE; i++) {
        assert_int_equal(rig_info(s[i]).in_step, 0);
        rig_assert_still(r, s[i], before[i]);
        hands_free(&h[i]);
        kvant_sequence_free(s[i]);
    }
    free(ids);
    rig_close(r);
}

/* Channels apart, rows apart, and the bytes between them are the caller's: sinks, a block and raw rows. */
static void reads_into_rows_that_lie_apart(void **state) {
    (void)state;
    enum { TOKENS = 70, GAP = 0xee };
    static const uint32_t dtypes[3] = {KVANT_DTYPE_F16, KVANT_DTYPE_F32, KVANT_DTYPE_BF16};
    rig *r = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(TOKENS, 8);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, TOKENS, 33);
    void *scratch = aligned_alloc(64, (kvant_cache_read_scratch(r->cache) + 63) / 64 * 64);
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t dtype = dtypes[i / 2], side = i % 2, heads = r->layers[0].kv_heads;
        uint32_t dim = side == KVANT_SIDE_KEY ? r->layers[0].key_dim : r->layers[0].value_dim;
        uint32_t width = dtype == KVANT_DTYPE_F32 ? 4 : 2;
        size_t dense_bytes = (size_t)TOKENS * heads * dim * width, bytes = 3 * dense_bytes;
        unsigned char *dense = malloc(dense_bytes), *apart = malloc(bytes), *want = malloc(bytes);
        assert_true(dense != NULL && apart != NULL && want != NULL && scratch != NULL);
        kvant_mutable_view rows = rig_view(dense, dtype, TOKENS, heads, dim);
        rig_ok(kvant_sequence_read(s, 0, side, 0, &rows, scratch, &rig_diag));
        memset(apart, GAP, bytes);
        memset(want, GAP, bytes);
        for (uint32_t e = 0; e < TOKENS * heads * dim; e++)
            memcpy(want + (size_t)e * 3 * width, dense + (size_t)e * width, width);
        rows.data = apart;
        rows.token_stride *= 3;
        rows.head_stride *= 3;
        rows.channel_stride *= 3;
        rig_ok(kvant_sequence_read(s, 0, side, 0, &rows, scratch, &rig_diag));
        kvant_assert_bytes(apart, want, bytes);
        free(dense);
        free(apart);
        free(want);
    }
    free(scratch);
    free(ids);
    kvant_sequence_free(s);
    rig_close(r);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_and_one_by_one),
        cmocka_unit_test(questions_to_many),
        cmocka_unit_test(a_layer_in_its_parts),
        cmocka_unit_test(an_error_ends_the_batch),
        cmocka_unit_test(reads_into_rows_that_lie_apart),
    };
    return kvant_run_tests(tests, argc, argv);
}
