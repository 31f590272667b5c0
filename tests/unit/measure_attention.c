/* core/measure/attention against attention written as its formula: all logits, one softmax, one sum. */
#include "support/test.h"

#include "data/blocks.h"
#include "measure/attention.h"
#include "measure/quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct scene {
    kvant_distortion_shape shape;
    uint32_t tokens;
    uint32_t raw_from;           /* tokens from here on are raw */
    uint64_t coded_from;         /* of every coded tile */
    float *queries;              /* [rows, q_heads, key_dim] */
    double *keys[2], *values[2]; /* exact, coded: [kv_heads, tokens, dim] */
} scene;

/* Keys with a loud channel and a common offset; coded rows with noise. */
static scene make_scene(kvant_distortion_shape shape, uint32_t tokens, uint64_t seed, double noise) {
    scene s = {.shape = shape, .tokens = tokens, .raw_from = tokens};
    size_t queries = (size_t)shape.rows * shape.q_heads * shape.key_dim;
    size_t keys = (size_t)shape.kv_heads * tokens * shape.key_dim;
    size_t values = (size_t)shape.kv_heads * tokens * shape.value_dim;
    s.queries = calloc(queries, sizeof *s.queries);
    for (int i = 0; i < 2; i++) {
        s.keys[i] = calloc(keys, sizeof *s.keys[i]);
        s.values[i] = calloc(values + 1, sizeof *s.values[i]);
    }
    for (size_t i = 0; i < queries; i++) s.queries[i] = (float)kvant_test_normal(&seed);
    for (size_t i = 0; i < keys; i++) {
        s.keys[0][i] = 3 + (i % shape.key_dim == 1 ? 12 : 1) * kvant_test_normal(&seed);
        s.keys[1][i] = s.keys[0][i] + noise * kvant_test_normal(&seed);
    }
    for (size_t i = 0; i < values; i++) {
        s.values[0][i] = 0.5 + kvant_test_normal(&seed);
        s.values[1][i] = s.values[0][i] + noise * kvant_test_normal(&seed);
    }
    return s;
}

static void free_scene(scene *s) {
    free(s->queries);
    for (int i = 0; i < 2; i++) {
        free(s->keys[i]);
        free(s->values[i]);
    }
}

static kvant_view query_view(const scene *s) {
    return kvant_rows_view(s->queries, KVANT_DTYPE_F32, s->shape.rows, s->shape.q_heads, s->shape.key_dim);
}

static void feed(kvant_distortion *attention, const scene *s, uint32_t tile_tokens) {
    for (uint32_t first = 0, count; first < s->tokens; first += count) {
        uint32_t border = first < s->raw_from ? s->raw_from : s->tokens;
        count = border - first < tile_tokens ? border - first : tile_tokens;
        int coded = first < s->raw_from;
        for (uint32_t h = 0; h < s->shape.kv_heads; h++) {
            size_t row = (size_t)h * s->tokens + first;
            kvant_distortion_tile tile = {
                .kv_head = h,
                .tokens = count,
                .first_position = first,
                .coded_from = s->coded_from,
                .keys = s->keys[0] + row * s->shape.key_dim,
                .coded_keys = s->keys[coded] + row * s->shape.key_dim,
                .values = s->shape.value_dim ? s->values[0] + row * s->shape.value_dim : NULL,
                .coded_values = s->shape.value_dim ? s->values[coded] + row * s->shape.value_dim : NULL,
            };
            kvant_distortion_add(attention, &tile);
        }
    }
}

static void measure(const scene *s, uint32_t tile_tokens, kvant_distortion_sums *sums) {
    kvant_view queries = query_view(s);
    kvant_distortion *attention = kvant_distortion_new(&s->shape, &queries);
    assert_non_null(attention);
    memset(sums, 0, s->shape.q_heads * sizeof *sums);
    feed(attention, s, tile_tokens);
    kvant_distortion_finish(attention, sums);
    kvant_distortion_free(attention);
}

/* The formula. Weights of one row with keys `k` before raw_from; output with values `v`. */
static void naive_row(const scene *s, uint32_t head, uint32_t row, int k, int v, double *weights,
                      double *output) {
    const kvant_distortion_shape *a = &s->shape;
    uint64_t position = a->query_start + row;
    uint32_t kv = head / (a->q_heads / a->kv_heads);
    double max = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < s->tokens; t++) {
        weights[t] = -INFINITY;
        if (t > position || (a->window != 0 && t + (uint64_t)a->window <= position)) continue;
        const double *key = s->keys[t < s->raw_from ? k : 0] + ((size_t)kv * s->tokens + t) * a->key_dim;
        weights[t] = 0;
        for (uint32_t c = 0; c < a->key_dim; c++)
            weights[t] +=
                a->scale * (double)s->queries[((size_t)row * a->q_heads + head) * a->key_dim + c] * key[c];
        max = fmax(max, weights[t]);
    }
    for (uint32_t t = 0; t < s->tokens; t++) sum += weights[t] = exp(weights[t] - max);
    for (uint32_t c = 0; c < a->value_dim; c++) output[c] = 0;
    for (uint32_t t = 0; t < s->tokens; t++) {
        weights[t] /= sum;
        const double *value =
            s->values[t < s->raw_from ? v : 0] + ((size_t)kv * s->tokens + t) * a->value_dim;
        for (uint32_t c = 0; c < a->value_dim; c++) output[c] += weights[t] * value[c];
    }
}

static double squared(const double *x, const double *y, uint32_t n) {
    double sum = 0;
    for (uint32_t c = 0; c < n; c++) sum += (x[c] - y[c]) * (x[c] - y[c]);
    return sum;
}

static void naive_head(const scene *s, uint32_t head, kvant_distortion_sums *sums) {
    uint32_t dim = s->shape.value_dim, n = s->tokens;
    double *p = calloc(n, sizeof *p), *q = calloc(n, sizeof *q);
    double *o = calloc(dim + 1, sizeof *o), *x = calloc(dim + 1, sizeof *x),
           *zero = calloc(dim + 1, sizeof *zero);
    memset(sums, 0, sizeof *sums);
    for (uint32_t r = 0; r < s->shape.rows; r++) {
        naive_row(s, head, r, 0, 0, p, o);
        sums->output += squared(o, zero, dim);
        naive_row(s, head, r, 0, 1, q, x);
        sums->value_only += squared(o, x, dim);
        naive_row(s, head, r, 1, 0, q, x);
        sums->key_only += squared(o, x, dim);
        naive_row(s, head, r, 1, 1, q, x);
        sums->both += squared(o, x, dim);
        double divergence = 0;
        for (uint32_t t = 0; t < n; t++)
            if (p[t] > 0) divergence += p[t] * log(p[t] / q[t]);
        sums->divergence += divergence;
        sums->max_divergence = fmax(sums->max_divergence, divergence);
        if (s->shape.query_start + r >= s->coded_from) sums->recent += squared(o, x, dim);
        sums->rows++;
    }
    free(p);
    free(q);
    free(o);
    free(x);
    free(zero);
}

static void compare(const scene *s, uint32_t tile_tokens) {
    kvant_distortion_sums got[16], want;
    assert_true(s->shape.q_heads <= 16);
    measure(s, tile_tokens, got);
    for (uint32_t h = 0; h < s->shape.q_heads; h++) {
        naive_head(s, h, &want);
        kvant_assert_within(got[h].output, want.output, 1e-10);
        kvant_assert_within(got[h].key_only, want.key_only, 1e-8);
        kvant_assert_within(got[h].value_only, want.value_only, 1e-8);
        kvant_assert_within(got[h].both, want.both, 1e-8);
        kvant_assert_within(got[h].recent, want.recent, 1e-8);
        kvant_assert_close(got[h].divergence, want.divergence, 1e-10 + 1e-8 * want.divergence);
        kvant_assert_close(got[h].max_divergence, want.max_divergence, 1e-10 + 1e-8 * want.max_divergence);
        assert_int_equal(got[h].rows, want.rows);
    }
}

static void equals_the_formula(void **state) {
    (void)state;
    /* Group sizes 1, 3 and 8, K dims other than V dims, dims that fill no vector, queries in the middle and
     * at the end, windows longer and shorter than a tile. */
    static const struct {
        kvant_distortion_shape shape;
        uint32_t tokens;
    } cases[] = {
        {{.q_heads = 3,
          .kv_heads = 3,
          .key_dim = 16,
          .value_dim = 16,
          .rows = 5,
          .query_start = 95,
          .scale = 0.2},
         100},
        {{.q_heads = 9,
          .kv_heads = 3,
          .key_dim = 46,
          .value_dim = 7,
          .rows = 4,
          .query_start = 30,
          .scale = 0.1},
         97},
        {{.q_heads = 8,
          .kv_heads = 1,
          .key_dim = 5,
          .value_dim = 64,
          .window = 3,
          .rows = 6,
          .query_start = 60,
          .scale = 0.1},
         70},
        {{.q_heads = 2,
          .kv_heads = 1,
          .key_dim = 8,
          .value_dim = 9,
          .window = 70,
          .rows = 8,
          .query_start = 120,
          .scale = 0.3},
         130},
        {{.q_heads = 2,
          .kv_heads = 2,
          .key_dim = 1,
          .value_dim = 1,
          .rows = 40,
          .query_start = 0,
          .scale = 1},
         40},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        scene s = make_scene(cases[i].shape, cases[i].tokens, 100 + i, 0.2);
        compare(&s, 64);
        compare(&s, 7);            /* tiles of any size */
        s.raw_from = s.tokens - 5; /* and with a raw tail */
        compare(&s, 32);
        free_scene(&s);
    }
}

static void recent_tiles_are_raw_to_early_queries(void **state) {
    (void)state;
    const kvant_distortion_shape shape = {.q_heads = 2,
                                          .kv_heads = 1,
                                          .key_dim = 8,
                                          .value_dim = 8,
                                          .rows = 10,
                                          .query_start = 50,
                                          .scale = 0.3};
    scene s = make_scene(shape, 60, 5, 0.3);
    for (uint64_t from = 49; from <= 61; from += 4) { /* none, some and all rows see raw tiles */
        s.coded_from = from;
        kvant_distortion_sums got[2], want;
        measure(&s, 16, got);
        for (uint32_t h = 0; h < 2; h++) {
            naive_head(&s, h, &want);
            if (from <= 50) assert_true(fabs(want.recent - want.both) < 1e-12);
            kvant_assert_close(got[h].recent, want.recent, 1e-8 * want.both);
        }
    }
    free_scene(&s);
}

static void one_token_hides_every_key_error(void **state) {
    (void)state;
    const kvant_distortion_shape shape = {
        .q_heads = 2, .kv_heads = 1, .key_dim = 4, .value_dim = 4, .rows = 1, .query_start = 0, .scale = 0.5};
    scene s = make_scene(shape, 1, 9, 0.5);
    kvant_distortion_sums sums[2];
    measure(&s, 64, sums);
    kvant_distortion_error e = kvant_distortion_errors(sums, 2);
    kvant_assert_close(e.key_only, 0, 0);
    kvant_assert_close(e.divergence, 0, 0);
    double x = 0, y = 0;
    for (int c = 0; c < 4; c++) {
        x += pow(s.values[0][c], 2);
        y += pow(s.values[0][c] - s.values[1][c], 2);
    }
    kvant_assert_within(e.both, sqrt(y / x), 1e-12);
    kvant_assert_within(e.value_only, sqrt(y / x), 1e-12);
    free_scene(&s);
}

static void identical_rows_give_exactly_nothing(void **state) {
    (void)state;
    const kvant_distortion_shape shape = {.q_heads = 6,
                                          .kv_heads = 2,
                                          .key_dim = 20,
                                          .value_dim = 12,
                                          .rows = 7,
                                          .query_start = 90,
                                          .scale = 0.25};
    scene s = make_scene(shape, 97, 3, 0);
    kvant_distortion_sums sums[6];
    measure(&s, 64, sums);
    kvant_distortion_error e = kvant_distortion_errors(sums, 6);
    kvant_assert_close(e.key_only, 0, 0);
    kvant_assert_close(e.value_only, 0, 0);
    kvant_assert_close(e.both, 0, 0);
    kvant_assert_close(e.recent, 0, 0);
    kvant_assert_close(e.divergence, 0, 0);
    kvant_assert_close(e.max_divergence, 0, 0);
    free_scene(&s);
}

static void divergence_is_never_negative(void **state) {
    (void)state;
    const kvant_distortion_shape shape = {.q_heads = 1,
                                          .kv_heads = 1,
                                          .key_dim = 16,
                                          .value_dim = 0,
                                          .rows = 30,
                                          .query_start = 60,
                                          .scale = 0.25};
    for (double noise = 1e-13; noise < 10; noise *= 10) {
        scene s = make_scene(shape, 90, 77, noise);
        kvant_distortion_sums sum;
        measure(&s, 64, &sum);
        assert_true(sum.divergence >= 0 && sum.max_divergence >= 0 && sum.divergence < INFINITY);
        if (noise > 1e-4) assert_true(sum.divergence > 0);
        free_scene(&s);
    }
}

/* Keys without values: the divergence is that of the same keys with values. */
static void divergence_needs_no_values(void **state) {
    (void)state;
    kvant_distortion_shape shape = {.q_heads = 4,
                                    .kv_heads = 2,
                                    .key_dim = 16,
                                    .value_dim = 3,
                                    .rows = 6,
                                    .query_start = 80,
                                    .scale = 0.25};
    scene s = make_scene(shape, 90, 8, 0.1);
    kvant_distortion_sums with[4], without[4];
    measure(&s, 64, with);
    s.shape.value_dim = 0;
    measure(&s, 64, without);
    for (int h = 0; h < 4; h++) {
        assert_true(with[h].divergence > 0);
        kvant_assert_close(without[h].divergence, with[h].divergence, 0);
    }
    free_scene(&s);
}

static void query_rows_may_be_measured_piece_by_piece(void **state) {
    (void)state;
    const kvant_distortion_shape shape = {.q_heads = 4,
                                          .kv_heads = 2,
                                          .key_dim = 16,
                                          .value_dim = 8,
                                          .rows = 10,
                                          .query_start = 80,
                                          .scale = 0.25};
    scene s = make_scene(shape, 90, 21, 0.1), piece = s;
    kvant_distortion_sums whole[4], parts[4] = {{0}};
    measure(&s, 64, whole);
    kvant_view queries = query_view(&s);
    for (uint32_t first = 0; first < 10; first += 3) {
        piece.shape.rows = 10 - first < 3 ? 10 - first : 3;
        piece.shape.query_start = 80 + first;
        kvant_view rows = queries;
        rows.data = (const char *)rows.data + (int64_t)first * rows.token_stride;
        rows.tokens = piece.shape.rows;
        kvant_distortion *attention = kvant_distortion_new(&piece.shape, &rows);
        assert_non_null(attention);
        feed(attention, &piece, 64);
        kvant_distortion_finish(attention, parts);
        kvant_distortion_free(attention);
    }
    kvant_assert_bytes(parts, whole, sizeof whole);
    free_scene(&s);
}

static void logits_that_overflow_exp_do_no_harm(void **state) {
    (void)state;
    const kvant_distortion_shape shape = {.q_heads = 1,
                                          .kv_heads = 1,
                                          .key_dim = 8,
                                          .value_dim = 4,
                                          .rows = 4,
                                          .query_start = 70,
                                          .scale = 300};
    scene s = make_scene(shape, 80, 4, 0.01);
    kvant_distortion_sums sum;
    measure(&s, 16, &sum);
    kvant_distortion_error e = kvant_distortion_errors(&sum, 1);
    assert_true(isfinite(e.both) && e.both > 0 && isfinite(e.divergence));
    free_scene(&s);
}

static void decoded_nan_is_an_infinite_error(void **state) {
    (void)state;
    const kvant_distortion_shape shape = {.q_heads = 1,
                                          .kv_heads = 1,
                                          .key_dim = 8,
                                          .value_dim = 4,
                                          .rows = 4,
                                          .query_start = 70,
                                          .scale = 0.3};
    scene s = make_scene(shape, 80, 4, 0.01);
    s.keys[1][5] = NAN;
    kvant_distortion_sums sum;
    measure(&s, 16, &sum);
    kvant_distortion_error e = kvant_distortion_errors(&sum, 1);
    assert_true(e.key_only == INFINITY && e.both == INFINITY && e.divergence == INFINITY);
    assert_true(isfinite(e.value_only));
    free_scene(&s);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_formula),
        cmocka_unit_test(recent_tiles_are_raw_to_early_queries),
        cmocka_unit_test(one_token_hides_every_key_error),
        cmocka_unit_test(identical_rows_give_exactly_nothing),
        cmocka_unit_test(divergence_is_never_negative),
        cmocka_unit_test(divergence_needs_no_values),
        cmocka_unit_test(query_rows_may_be_measured_piece_by_piece),
        cmocka_unit_test(logits_that_overflow_exp_do_no_harm),
        cmocka_unit_test(decoded_nan_is_an_infinite_error),
    };
    return kvant_run_tests(tests, argc, argv);
}
