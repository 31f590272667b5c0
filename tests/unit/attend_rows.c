/* What a query row sees: ranges, windows, soft caps, live ranges, log-sum-exps, groups, shapes. */
#include "support/attend_bed.h"
#include "support/scorer.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Decoded and on codes, on either side. */
static const struct {
    const char *key, *value;
} pairs[] = {{"raw", "raw"},        {"scorer", "scorer"}, {"kivi", "scorer"},
             {"scorer", "uniform"}, {"uniform", "raw"},   {"hack", "hack"}};
enum { PAIRS = sizeof pairs / sizeof pairs[0] };

static int setup(void **state) {
    (void)state;
    scorer_register();
    return 0;
}

static void run_and_check(const bed *b, bed_call *c, const kvant_attention_options *options) {
    bed_run(b, &c, 1, options);
    bed_assert_right(b, c, options);
}

/* Ranges of every kind, in no order: empty, of one token, from inside a block to inside another, beyond the
 * end. */
static void any_range_is_seen_exactly(void **state) {
    (void)state;
    enum { TOKENS = 800, ROWS = 40 };
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b =
            bed_open(&(bed_wish){.key = pairs[p].key, .value = pairs[p].value, .tokens = TOKENS, .seed = p});
        bed_call *c = bed_call_make(b, TOKENS, 640, ROWS);
        kvant_attention_options options = bed_options(b);
        uint64_t seed = 9;
        for (uint32_t r = 0; r < ROWS; r++) {
            uint64_t from = kvant_test_random(&seed) % (TOKENS + 50);
            c->ranges[r] = (kvant_token_range){from, from + kvant_test_random(&seed) % 300};
        }
        c->ranges[0] = (kvant_token_range){100, 100};
        c->ranges[1] = (kvant_token_range){128, 129};
        c->ranges[2] = (kvant_token_range){127, 129};
        c->ranges[3] = (kvant_token_range){0, UINT64_MAX};
        c->ranges[4] = (kvant_token_range){639, 641};
        c->ranges[5] = (kvant_token_range){TOKENS, TOKENS + 9};
        run_and_check(b, c, &options);
        assert_true(c->log_sum_exp[0] == -INFINITY && c->log_sum_exp[5 * 6] == -INFINITY);
        bed_call_free(c);
        bed_close(b);
    }
}

static void windows_and_causal_ranges(void **state) {
    (void)state;
    kvant_token_range ranges[4];
    kvant_token_range_causal(10, 3, 0, ranges);
    for (uint32_t r = 0; r < 3; r++) assert_true(ranges[r].from == 0 && ranges[r].to == 11 + r);
    kvant_token_range_causal(2, 4, 4, ranges);
    static const uint64_t from[] = {0, 0, 1, 2};
    for (uint32_t r = 0; r < 4; r++) assert_true(ranges[r].from == from[r] && ranges[r].to == 3 + r);
    kvant_token_range_causal(UINT64_MAX - 2, 1, 1, ranges);
    assert_true(ranges[0].from == UINT64_MAX - 2 && ranges[0].to == UINT64_MAX - 1);

    for (size_t p = 0; p < PAIRS; p++) {
        bed *b =
            bed_open(&(bed_wish){.key = pairs[p].key, .value = pairs[p].value, .tokens = 600, .seed = 3 + p});
        bed_call *c = bed_call_make(b, 600, 448, 9);
        kvant_attention_options options = bed_options(b);
        static const uint32_t windows[] = {1, 63, 64, 65, 200, 599, 601};
        for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
            kvant_token_range_causal(591, 9, windows[w], c->ranges);
            run_and_check(b, c, &options);
        }
        bed_call_free(c);
        bed_close(b);
    }
}

/* A long step: its own rows raw and causal, over blocks. */
static void a_long_step_sees_blocks_and_itself(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b = bed_open(
            &(bed_wish){.key = pairs[p].key, .value = pairs[p].value, .tokens = 400, .group = 2, .seed = p});
        bed_call *c = bed_call_make(b, 400, 256, 144);
        kvant_attention_options options = bed_options(b);
        run_and_check(b, c, &options);
        bed_call_free(c);
        bed_close(b);
    }
}

static void soft_caps_bend_logits(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b = bed_open(
            &(bed_wish){.key = pairs[p].key, .value = pairs[p].value, .tokens = 300, .seed = 40 + p});
        bed_call *c = bed_call_make(b, 300, 256, 3), *plain = bed_call_make(b, 300, 256, 3);
        kvant_attention_options options = bed_options(b);
        bed_run(b, &plain, 1, &options);
        static const float caps[] = {0.5f, 3, 50};
        for (size_t i = 0; i < 3; i++) {
            options.soft_cap = caps[i];
            run_and_check(b, c, &options);
            assert_true(fabsf(c->log_sum_exp[0] - plain->log_sum_exp[0]) > (i < 2 ? 0.01f : 1e-7f));
        }
        bed_call_free(c);
        bed_call_free(plain);
        bed_close(b);
    }
}

/* Attention in two parts, joined by their log-sum-exps, is attention in one. */
static void log_sum_exps_join_parts(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b = bed_open(
            &(bed_wish){.key = pairs[p].key, .value = pairs[p].value, .tokens = 500, .seed = 60 + p});
        kvant_attention_options options = bed_options(b);
        bed_call *whole = bed_call_make(b, 500, 448, 2), *old = bed_call_make(b, 500, 448, 2),
                 *new = bed_call_make(b, 500, 448, 2);
        for (uint32_t r = 0; r < 2; r++) old->ranges[r].to = new->ranges[r].from = 201;
        bed_call *calls[] = {whole, old, new};
        bed_run(b, calls, 3, &options);
        for (uint32_t i = 0; i < 2 * 6; i++) {
            double all = log(exp((double)old->log_sum_exp[i]) + exp((double)new->log_sum_exp[i]));
            kvant_assert_close(whole->log_sum_exp[i], all, 3e-6);
            for (uint32_t c = 0; c < 32; c++) {
                double joined =
                    exp((double)old->log_sum_exp[i] - all) * (double)old->output_rows[32 * i + c] +
                    exp((double)new->log_sum_exp[i] - all) * (double)new->output_rows[32 * i + c];
                /* HACK rounds weights to 8 bits relative to the largest of a call. */
                kvant_assert_close(whole->output_rows[32 * i + c], joined,
                                   strcmp(pairs[p].value, "hack") == 0 ? 0.05 : 1e-5);
            }
        }
        for (size_t i = 0; i < 3; i++) bed_call_free(calls[i]);
        bed_close(b);
    }
}

/* A short block, a block out of which tokens were dropped, one that is not there any more. */
static void live_ranges_are_respected(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b = bed_open(
            &(bed_wish){.key = pairs[p].key, .value = pairs[p].value, .tokens = 400, .seed = 80 + p});
        bed_call *c = bed_call_make(b, 384, 384, 2);
        kvant_attention_options options = bed_options(b);
        c->references[5].live_count = 17;    /* cut */
        c->references[6] = c->references[2]; /* tokens 20 to 40 dropped */
        c->references[2].live_count = 20;
        c->references[6].live_first = 41;
        c->references[6].live_count = 23;
        c->sequence.reference_count = 7;
        c->references[1] = (kvant_reference){.first_position = 12345678}; /* gone */
        c->references[3].live_first = 63;
        c->references[3].live_count = 1;
        run_and_check(b, c, &options);
        bed_call_free(c);
        bed_close(b);
    }
}

static void raw_rows_alone_and_sinks(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS; p++) {
        bed *b = bed_open(&(bed_wish){.key = pairs[p].key,
                                      .value = pairs[p].value,
                                      .head = "sinks = 7",
                                      .tokens = 900,
                                      .seed = 100 + p});
        kvant_attention_options options = bed_options(b);
        bed_call *c = bed_call_make(b, 900, 0, 2);
        assert_int_equal(c->sequence.reference_count, 0);
        run_and_check(b, c, &options);
        bed_call_free(c);
        c = bed_call_make(b, 900, 832, 2);
        assert_int_equal(c->references[0].live_first, 7);
        assert_int_equal(c->sequence.run_count, 2);
        run_and_check(b, c, &options);
        bed_call_free(c);
        c = bed_call_make(b, 100, 0, 2); /* in pieces */
        c->sequence.run_count = 0;
        bed_call_add_run(b, c, 0, 1);
        bed_call_add_run(b, c, 1, 0);
        bed_call_add_run(b, c, 1, 62);
        bed_call_add_run(b, c, 63, 37);
        run_and_check(b, c, &options);
        bed_call_free(c);
        bed_close(b);
    }
}

/* Codes are scored once for all query heads of a group. */
static void groups_share_their_codes(void **state) {
    (void)state;
    static const uint32_t groups[] = {1, 3, 4, 8, 70};
    for (size_t g = 0; g < 5; g++)
        for (size_t p = 0; p < PAIRS; p++) {
            bed *b = bed_open(&(bed_wish){.key = pairs[p].key,
                                          .value = pairs[p].value,
                                          .tokens = 330,
                                          .group = groups[g],
                                          .seed = g + p});
            kvant_attention_options options = bed_options(b);
            bed_call *c = bed_call_make(b, 330, 320, 1);
            scorer_counts counts = {0};
            scorer_count = &counts;
            run_and_check(b, c, &options);
            scorer_count = NULL;
            if (strcmp(pairs[p].key, "scorer") == 0) {
                assert_int_equal(counts.scored, 320 * 2);
                assert_int_equal(counts.queries, 2 * groups[g]);
            }
            if (strcmp(pairs[p].value, "scorer") == 0) assert_int_equal(counts.mixed, 320 * 2);
            bed_call_free(c);
            bed_close(b);
        }
}

/* Head dims that fill no vector, blocks that divide nothing, positions beyond 32 bits. */
static void odd_shapes(void **state) {
    (void)state;
    static const bed_wish wishes[] = {
        {.key = "scorer", .value = "scorer", .key_dim = 5, .value_dim = 7, .block_tokens = 11},
        {.key = "raw", .value = "raw", .key_dim = 7, .value_dim = 5, .block_tokens = 1, .kv_heads = 3},
        {.key = "raw", .value = "scorer", .key_dim = 80, .value_dim = 17, .block_tokens = 100, .group = 1},
        {.key = "scorer", .value = "raw", .key_dim = 33, .value_dim = 96, .block_tokens = 300},
        {.key = "scorer", .value = "raw", .key_dim = 24, .value_dim = 24, .first_position = 0x123456789a},
        {.key = "raw", .value = "scorer", .key_dim = 128, .value_dim = 256, .dtype = KVANT_DTYPE_BF16},
        {.key = "raw",
         .value = "raw",
         .key_dim = 192,
         .value_dim = 128,
         .dtype = KVANT_DTYPE_F32,
         .group = 5}};
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        bed_wish wish = wishes[i];
        uint32_t block = wish.block_tokens != 0 ? wish.block_tokens : 64;
        wish.tokens = 640;
        wish.seed = 200 + i;
        bed *b = bed_open(&wish);
        kvant_attention_options options = bed_options(b);
        uint32_t coded = (block == 1 ? 50 : 610) / block * block;
        bed_call *c = bed_call_make(b, 640, coded, 4);
        run_and_check(b, c, &options);
        bed_call_free(c);
        bed_close(b);
    }
}

/* Many spans: errors do not grow with the length. */
static void four_thousand_tokens(void **state) {
    (void)state;
    static const size_t long_pairs[] = {0, 1, 2};
    for (size_t i = 0; i < 3; i++) {
        size_t p = long_pairs[i];
        bed *b = bed_open(&(bed_wish){.key = pairs[p].key,
                                      .value = pairs[p].value,
                                      .tokens = 5000,
                                      .kv_heads = 1,
                                      .block_tokens = 96,
                                      .seed = 300 + p});
        kvant_attention_options options = bed_options(b);
        bed_call *c = bed_call_make(b, 5000, 4992, 2);
        bed_worst = 0;
        run_and_check(b, c, &options);
        print_message("%.3f of what is allowed\n", bed_worst);
        bed_call_free(c);
        bed_close(b);
    }
}

/* Queries and outputs of any dtype and stride; no log-sum-exp. */
static void queries_and_outputs_of_any_kind(void **state) {
    (void)state;
    static const uint32_t dtypes[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};
    enum { ROWS = 2, HEADS = 6, KEY = 64, VALUE = 32, GAP = 3 };
    bed *b = bed_open(&(bed_wish){.key = "kivi", .value = "scorer", .tokens = 200, .seed = 5});
    kvant_attention_options options = bed_options(b);
    for (size_t d = 0; d < 3; d++) {
        uint32_t width = kvant_element_bytes(dtypes[d]);
        bed_call *c = bed_call_make(b, 200, 128, ROWS), *plain = bed_call_make(b, 200, 128, ROWS);
        unsigned char *queries = malloc((size_t)ROWS * HEADS * KEY * GAP * width);
        unsigned char *outputs = malloc((size_t)ROWS * HEADS * VALUE * GAP * width);
        memset(outputs, 0xee, (size_t)ROWS * HEADS * VALUE * GAP * width);
        for (uint32_t i = 0; i < ROWS * HEADS * KEY; i++) {
            kvant_store_element(queries + (size_t)i * GAP * width, dtypes[d], plain->query_rows[i]);
            plain->query_rows[i] = kvant_load_element(queries + (size_t)i * GAP * width, dtypes[d]);
        }
        c->queries.data = queries;
        c->queries.dtype = c->outputs.dtype = dtypes[d];
        c->queries.channel_stride = c->outputs.channel_stride = GAP * width;
        c->queries.head_stride = KEY * GAP * width;
        c->queries.token_stride = HEADS * KEY * GAP * width;
        c->outputs.data = outputs;
        c->outputs.head_stride = VALUE * GAP * width;
        c->outputs.token_stride = HEADS * VALUE * GAP * width;
        c->sequence.log_sum_exp = NULL;
        bed_call *calls[] = {c, plain};
        bed_run(b, calls, 2, &options);
        bed_assert_right(b, plain, &options);
        for (uint32_t i = 0; i < ROWS * HEADS * VALUE; i++) {
            unsigned char want[4] = {0};
            kvant_store_element(want, dtypes[d], plain->output_rows[i]);
            kvant_assert_bytes(outputs + (size_t)i * GAP * width, want, width);
            for (uint32_t k = width; k < GAP * width; k++)
                assert_int_equal(outputs[i * GAP * width + k], 0xee);
        }
        free(queries);
        free(outputs);
        bed_call_free(c);
        bed_call_free(plain);
    }
    bed_close(b);
}

static void nothing_to_do_is_no_error(void **state) {
    (void)state;
    bed *b = bed_open(&(bed_wish){.key = "scorer", .value = "kivi", .tokens = 200, .seed = 5});
    kvant_attention_options options = bed_options(b);
    bed_run(b, NULL, 0, &options);
    bed_call *none = bed_call_make(b, 200, 128, 0), *empty = bed_call_make(b, 0, 0, 3),
             *some = bed_call_make(b, 200, 128, 2);
    bed_call *calls[] = {none, empty, none, some, none};
    bed_run(b, calls, 5, &options);
    bed_assert_right(b, empty, &options);
    bed_assert_right(b, some, &options);
    for (size_t i = 0; i < 3 * 6; i++) assert_true(empty->log_sum_exp[i] == -INFINITY);
    bed_call_free(none);
    bed_call_free(empty);
    bed_call_free(some);
    bed_close(b);
}

/* Logits of a magnitude at which exp of one of them would overflow. */
static void large_logits(void **state) {
    (void)state;
    for (size_t p = 0; p < PAIRS - 1; p++) {
        bed *b = bed_open(
            &(bed_wish){.key = pairs[p].key, .value = pairs[p].value, .tokens = 300, .seed = 70 + p});
        bed_call *c = bed_call_make(b, 300, 256, 3);
        kvant_attention_options options = bed_options(b);
        options.scale = 40;
        run_and_check(b, c, &options);
        assert_true(c->log_sum_exp[0] > 100);
        options.scale = -40;
        run_and_check(b, c, &options);
        bed_call_free(c);
        bed_close(b);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(any_range_is_seen_exactly, setup),
        cmocka_unit_test_setup(windows_and_causal_ranges, setup),
        cmocka_unit_test_setup(a_long_step_sees_blocks_and_itself, setup),
        cmocka_unit_test_setup(soft_caps_bend_logits, setup),
        cmocka_unit_test_setup(log_sum_exps_join_parts, setup),
        cmocka_unit_test_setup(live_ranges_are_respected, setup),
        cmocka_unit_test_setup(raw_rows_alone_and_sinks, setup),
        cmocka_unit_test_setup(groups_share_their_codes, setup),
        cmocka_unit_test_setup(odd_shapes, setup),
        cmocka_unit_test_setup(four_thousand_tokens, setup),
        cmocka_unit_test_setup(queries_and_outputs_of_any_kind, setup),
        cmocka_unit_test_setup(nothing_to_do_is_no_error, setup),
        cmocka_unit_test_setup(large_logits, setup),
    };
    return kvant_run_tests(tests, argc, argv);
}
