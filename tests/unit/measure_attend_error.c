/* core/measure/attend_error against its formula: all logits, one softmax, every bound written out. */
#include "support/test.h"

#include "data/blocks.h"
#include "measure/attend_error.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 150, KV_HEADS = 2, GROUP = 3, Q_HEADS = 6, KEY_DIM = 5, VALUE_DIM = 7, ROWS = 4, SINKS = 3 };
enum { CODED_TO = 96, START = TOKENS - ROWS };

typedef struct scene {
    kvant_distortion_shape shape;
    attend_allowance allowance;
    float queries[ROWS * Q_HEADS * KEY_DIM];
    float center[KV_HEADS * KEY_DIM];
    double keys[KV_HEADS][TOKENS][KEY_DIM], values[KV_HEADS][TOKENS][VALUE_DIM];
} scene;

/* A row's answer and what it may be off by. */
typedef struct answer {
    double output[VALUE_DIM], log_sum_exp, size, allowed_output, allowed_log_sum_exp;
    bool sees;
} answer;

static scene make_scene(uint64_t seed) {
    scene s = {.shape = {.q_heads = Q_HEADS,
                         .kv_heads = KV_HEADS,
                         .key_dim = KEY_DIM,
                         .value_dim = VALUE_DIM,
                         .rows = ROWS,
                         .query_start = START,
                         .scale = 0.125}};
    for (size_t i = 0; i < ROWS * Q_HEADS * KEY_DIM; i++) s.queries[i] = (float)kvant_test_normal(&seed);
    for (size_t i = 0; i < KV_HEADS * KEY_DIM; i++) s.center[i] = (float)(4 + kvant_test_normal(&seed));
    for (uint32_t h = 0; h < KV_HEADS; h++)
        for (uint32_t t = 0; t < TOKENS; t++) {
            /* Logits that grow, so that the largest one keeps moving. */
            for (uint32_t c = 0; c < KEY_DIM; c++) s.keys[h][t][c] = 1 + t * 0.2 * kvant_test_normal(&seed);
            for (uint32_t c = 0; c < VALUE_DIM; c++) s.values[h][t][c] = 0.5 + kvant_test_normal(&seed);
        }
    return s;
}

static bool is_raw(uint32_t token) {
    return token < SINKS || token >= CODED_TO;
}

static double logit_at(const scene *s, uint32_t row, uint32_t head, uint32_t t, double *absolute) {
    uint32_t kv = head / GROUP;
    double sum = 0;
    *absolute = 0;
    for (uint32_t c = 0; c < KEY_DIM; c++) {
        double q = s->shape.scale * (double)s->queries[(row * Q_HEADS + head) * KEY_DIM + c];
        double k = s->keys[kv][t][c], center = 0;
        if (s->allowance.center != NULL && !is_raw(t)) center = (double)s->center[kv * KEY_DIM + c];
        sum += q * k;
        *absolute += fabs(q) * (fabs(k - center) + fabs(center));
    }
    return sum;
}

static answer answer_of(const scene *s, uint32_t row, uint32_t head) {
    answer a = {.log_sum_exp = -INFINITY};
    double logits[TOKENS], most = -INFINITY, m = 0, codes = 0, sum = 0, norms = 0, absolutes = 0;
    uint64_t position = s->shape.query_start + row;
    for (uint32_t t = 0; t < TOKENS; t++) {
        double absolute;
        logits[t] = -INFINITY;
        if (t > position || (s->shape.window != 0 && position - t >= s->shape.window)) continue;
        a.sees = true;
        logits[t] = logit_at(s, row, head, t, &absolute);
        most = fmax(most, logits[t]);
        m = fmax(m, absolute);
        if (!is_raw(t)) codes += absolute * absolute;
    }
    if (!a.sees) return a;
    for (uint32_t t = 0; t < TOKENS; t++) sum += exp(logits[t] - most);
    a.log_sum_exp = most + log(sum);
    for (uint32_t c = 0; c < VALUE_DIM; c++) {
        double absolute = 0;
        for (uint32_t t = 0; t < TOKENS; t++) {
            double part = exp(logits[t] - most) / sum * s->values[head / GROUP][t][c];
            a.output[c] += part;
            absolute += fabs(part);
        }
        a.size += a.output[c] * a.output[c];
        absolutes += absolute * absolute;
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        double norm = 0;
        for (uint32_t c = 0; c < VALUE_DIM; c++)
            norm += s->values[head / GROUP][t][c] * s->values[head / GROUP][t][c];
        norms += exp(logits[t] - most) / sum * sqrt(norm);
    }
    a.size = sqrt(a.size);
    a.allowed_log_sum_exp = 5e-7 * (1 + m) + s->allowance.tolerance[0] * sqrt(codes);
    a.allowed_output = (2e-6 * (1 + m) + 2 * s->allowance.tolerance[0] * sqrt(codes)) * norms +
                       s->allowance.tolerance[1] * sqrt(absolutes);
    return a;
}

/* Tiles of at most `tile` tokens; a tile is coded or raw, but for the sinks at the front. */
static attend_error *feed(const scene *s, uint32_t tile) {
    kvant_view queries = kvant_rows_view(s->queries, KVANT_DTYPE_F32, ROWS, Q_HEADS, KEY_DIM);
    attend_error *e = attend_error_new(&s->shape, &queries, &s->allowance);
    assert_non_null(e);
    for (uint32_t first = 0, count; first < TOKENS; first += count) {
        uint32_t border = first < CODED_TO ? CODED_TO : TOKENS;
        count = border - first < tile ? border - first : tile;
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            const kvant_distortion_tile t = {.kv_head = h,
                                             .tokens = count,
                                             .first_position = first,
                                             .coded_keys = &s->keys[h][first][0],
                                             .coded_values = &s->values[h][first][0]};
            uint32_t sinks = first < SINKS ? SINKS - first : 0;
            attend_error_add(e, &t, first >= CODED_TO || sinks > count ? count : sinks);
        }
    }
    return e;
}

typedef struct outputs {
    float rows[ROWS * Q_HEADS * VALUE_DIM], log_sum_exp[ROWS * Q_HEADS];
} outputs;

/* The right answers as floats. */
static outputs right(const scene *s) {
    outputs o;
    for (uint32_t i = 0; i < ROWS * Q_HEADS; i++) {
        answer a = answer_of(s, i / Q_HEADS, i % Q_HEADS);
        for (uint32_t c = 0; c < VALUE_DIM; c++) o.rows[i * VALUE_DIM + c] = (float)a.output[c];
        o.log_sum_exp[i] = (float)a.log_sum_exp;
    }
    return o;
}

/* Held against the object in pieces of `rows` rows. */
static attend_error_sums compare(const scene *s, const outputs *o, uint32_t tile, uint32_t rows) {
    attend_error_sums sums = {0};
    attend_error *e = feed(s, tile);
    for (uint32_t first = 0; first < ROWS; first += rows) {
        uint32_t count = ROWS - first < rows ? ROWS - first : rows;
        attend_error_compare(e, first, count, o->rows + (size_t)first * Q_HEADS * VALUE_DIM,
                             o->log_sum_exp + (size_t)first * Q_HEADS, &sums);
    }
    attend_error_free(e);
    assert_int_equal(sums.rows, ROWS * Q_HEADS);
    return sums;
}

static void right_answers_pass(void **state) {
    (void)state;
    for (uint32_t variant = 0; variant < 4; variant++) {
        scene s = make_scene(variant);
        if (variant & 1) s.shape.window = 60;
        if (variant & 2) s.allowance.center = s.center;
        outputs o = right(&s);
        for (uint32_t tile = 1; tile <= 64; tile += 21) {
            attend_error_sums sums = compare(&s, &o, tile, tile % 3 + 1);
            assert_true(sums.largest > 0 && sums.largest < 2e-7); /* their own rounding */
            assert_true(sums.of_allowed > 0 && sums.of_allowed < 0.3);
        }
    }
}

/* An error of one output, or of one log-sum-exp, is reported for what it is. */
static void errors_are_measured(void **state) {
    (void)state;
    for (uint32_t variant = 0; variant < 8; variant++) {
        scene s = make_scene(10 + variant);
        uint32_t at = (variant * 5 + 3) % (ROWS * Q_HEADS);
        if (variant & 1) s.shape.window = 33;
        if (variant & 2) s.allowance.center = s.center;
        if (variant & 4) s.allowance.tolerance[0] = 2e-3;
        if (variant & 4) s.allowance.tolerance[1] = 3e-3;
        outputs o = right(&s), p = o;
        answer a = answer_of(&s, at / Q_HEADS, at % Q_HEADS);
        float off = (float)(a.allowed_output * 50);
        o.rows[at * VALUE_DIM + 3] += off;
        attend_error_sums sums = compare(&s, &o, 64, ROWS);
        double moved = (double)o.rows[at * VALUE_DIM + 3] - a.output[3];
        kvant_assert_within(sums.of_allowed, fabs(moved) / a.allowed_output, 1e-3);
        kvant_assert_within(sums.largest, fabs(moved) / a.size, 1e-3);
        kvant_assert_within(sqrt(sums.squares), fabs(moved) / a.size, 1e-3);
        p.log_sum_exp[at] += (float)(a.allowed_log_sum_exp * 50);
        sums = compare(&s, &p, 17, 1);
        double shift = fabs((double)p.log_sum_exp[at] - a.log_sum_exp);
        kvant_assert_within(sums.of_allowed, shift / a.allowed_log_sum_exp, 1e-3);
        kvant_assert_within(sums.log_sum_exp, shift, 1e-3);
        assert_true(sums.largest < 2e-7);
    }
}

static void what_is_no_number_is_never_allowed(void **state) {
    (void)state;
    scene s = make_scene(3);
    s.allowance.tolerance[0] = s.allowance.tolerance[1] = 1e6;
    for (int place = 0; place < 2; place++) {
        outputs o = right(&s);
        (place == 0 ? o.rows : o.log_sum_exp)[5] = NAN;
        assert_true(isinf(compare(&s, &o, 64, ROWS).of_allowed));
    }
}

/* Queries before the first token there is: zeros and -infinity, exactly. */
static void rows_that_see_nothing(void **state) {
    (void)state;
    scene s = make_scene(4);
    kvant_view queries = kvant_rows_view(s.queries, KVANT_DTYPE_F32, ROWS, Q_HEADS, KEY_DIM);
    outputs o;
    memset(&o, 0, sizeof o);
    for (uint32_t i = 0; i < ROWS * Q_HEADS; i++) o.log_sum_exp[i] = -INFINITY;
    for (int place = 0; place < 3; place++) {
        attend_error_sums sums = {0};
        attend_error *e = attend_error_new(&s.shape, &queries, &s.allowance);
        assert_non_null(e);
        if (place == 1) o.rows[4] = 1e-30f;
        if (place == 2) o.rows[4] = 0, o.log_sum_exp[4] = -100;
        attend_error_compare(e, 0, ROWS, o.rows, o.log_sum_exp, &sums);
        assert_true(place == 0 ? sums.of_allowed == 0 && sums.largest == 0 : isinf(sums.of_allowed));
        attend_error_free(e);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_answers_pass), cmocka_unit_test(errors_are_measured),
        cmocka_unit_test(what_is_no_number_is_never_allowed), cmocka_unit_test(rows_that_see_nothing)};
    return kvant_run_tests(tests, argc, argv);
}
