/* Attention of anything: shapes, codecs, RoPE, live ranges, cuts of raw rows, ranges, soft caps and threads
 * at random, each against double precision and against itself alone on one thread. The seed of a case that
 * fails is printed. */
#include "support/attend_bed.h"
#include "support/scorer.h"
#include "support/test.h"
#include "support/tester.h"

#include <kvant/kit/rope.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 150, CALLS_MAX = 4, DIM_MAX = 80 };

static int setup(void **state) {
    (void)state;
    scorer_register();
    tester_register();
    tester = (tester_behaviour){0};
    return 0;
}

/* 0 to count - 1 */
static uint32_t pick(uint64_t *seed, uint32_t count) {
    return (uint32_t)(kvant_test_random(seed) % count);
}

/* Some blocks are left out, some lose tokens at either end or in the middle; sinks stay out of block 0. */
static void thin_out(const bed *b, bed_call *c, uint64_t *seed) {
    uint32_t count = 0;
    kvant_reference old[BED_REFERENCES];
    memcpy(old, c->references, sizeof old);
    for (uint32_t i = 0; i < c->sequence.reference_count && count + 2 <= BED_REFERENCES; i++) {
        kvant_reference r = old[i];
        uint32_t how = pick(seed, 8);
        if (how == 0) continue;
        if (how == 1) r.live_count = pick(seed, r.live_count + 1);
        if (how == 2 && r.live_count > 1) {
            uint32_t cut = 1 + pick(seed, r.live_count - 1);
            r.live_first += cut;
            r.live_count -= cut;
        }
        if (how == 3 && r.live_count > 2) {
            uint32_t gap = 1 + pick(seed, r.live_count - 2);
            kvant_reference second = r;
            second.live_first += gap + 1;
            second.live_count -= gap + 1;
            r.live_count = gap;
            c->references[count++] = r;
            r = second;
        }
        c->references[count++] = r;
    }
    c->sequence.reference_count = count;
    (void)b;
}

/* The tail in up to four pieces. */
static void cut_tail(const bed *b, bed_call *c, uint32_t coded, uint64_t *seed) {
    if (c->tokens <= coded) return;
    c->sequence.run_count--;
    uint32_t first = coded;
    for (uint32_t piece = 0; piece < 3; piece++) {
        uint32_t count = pick(seed, c->tokens - first + 1);
        bed_call_add_run(b, c, first, count);
        first += count;
    }
    bed_call_add_run(b, c, first, c->tokens - first);
}

static bed_call *random_call(const bed *b, uint64_t *seed) {
    uint32_t block = b->wish.block_tokens, tokens = pick(seed, b->wish.tokens + 1);
    uint32_t blocks = tokens / block < BED_REFERENCES / 2 ? tokens / block : BED_REFERENCES / 2;
    uint32_t coded = pick(seed, blocks + 1) * block;
    bed_call *c = bed_call_make(b, tokens, coded, pick(seed, 8));
    thin_out(b, c, seed);
    cut_tail(b, c, coded, seed);
    for (uint32_t r = 0; r < c->rows; r++) {
        if (pick(seed, 3) == 0) continue; /* causal, as it is */
        uint64_t from = b->wish.first_position + pick(seed, tokens + 10);
        c->ranges[r] = (kvant_token_range){from, from + pick(seed, tokens + 10)};
    }
    return c;
}

static bed_wish random_wish(uint64_t *seed, kvant_rope *rope, double *frequency) {
    static const char *const codecs[] = {"raw", "scorer", "scorer_before", "tester"};
    static const char *const heads[] = {"", "sinks = 0", "sinks = 1"};
    static const uint32_t dtypes[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};
    static const uint32_t blocks[] = {2, 3, 16, 48, 64, 100, 300};
    bed_wish w = {.key = codecs[pick(seed, 4)],
                  .value = codecs[pick(seed, 4)],
                  .head = heads[pick(seed, 3)],
                  .tokens = 1 + pick(seed, pick(seed, 4) == 0 ? 3000 : 400),
                  .dtype = dtypes[pick(seed, 3)],
                  .keys = pick(seed, 2),
                  .kv_heads = 1 + pick(seed, 3),
                  .group = 1 + pick(seed, 5),
                  .key_dim = 2 * (1 + pick(seed, DIM_MAX / 2)),
                  .value_dim = 1 + pick(seed, DIM_MAX),
                  .block_tokens = blocks[pick(seed, 7)],
                  .first_position = pick(seed, 3) == 0 ? kvant_test_random(seed) >> 20 : 0,
                  .seed = kvant_test_random(seed)};
    tester.flags = pick(seed, 2) ? KVANT_LAYOUT_KEYS_BEFORE_ROPE : 0;
    if (pick(seed, 3) != 0) {
        uint32_t rotary = 2 * (1 + pick(seed, w.key_dim / 2));
        kvant_rope_inverse_frequency(100 + pick(seed, 100000), rotary, frequency);
        *rope = (kvant_rope){.struct_size = sizeof *rope,
                             .style = 1 + pick(seed, 2),
                             .rotary_dim = rotary,
                             .magnitude = 0.5 + pick(seed, 4),
                             .inverse_frequency = frequency};
        w.rope = rope;
    }
    return w;
}

static void random_case(uint64_t seed) {
    kvant_rope rope;
    double frequency[DIM_MAX];
    bed_wish wish = random_wish(&seed, &rope, frequency);
    bed *b = bed_open(&wish);
    uint32_t count = 1 + pick(&seed, CALLS_MAX);
    bed_call *calls[CALLS_MAX];
    for (uint32_t i = 0; i < count; i++) calls[i] = random_call(b, &seed);
    kvant_attention_options options = bed_options(b);
    options.threads = 1 + pick(&seed, 5);
    options.soft_cap = pick(&seed, 3) == 0 ? 4 : 0;
    if (pick(&seed, 4) == 0) options.scale *= -3;
    bed_run(b, calls, count, &options);
    for (uint32_t i = 0; i < count; i++) {
        bed_assert_right(b, calls[i], &options);
        size_t heads = calls[i]->queries.heads, rows = calls[i]->rows;
        float *outputs = malloc(rows * heads * b->wish.value_dim * sizeof(float) + 1);
        float *sums = malloc(rows * heads * sizeof(float) + 1);
        memcpy(outputs, calls[i]->output_rows, rows * heads * b->wish.value_dim * sizeof(float));
        memcpy(sums, calls[i]->log_sum_exp, rows * heads * sizeof(float));
        options.threads = 1;
        bed_run(b, &calls[i], 1, &options);
        kvant_assert_bytes(outputs, calls[i]->output_rows, rows * heads * b->wish.value_dim * sizeof(float));
        kvant_assert_bytes(sums, calls[i]->log_sum_exp, rows * heads * sizeof(float));
        free(outputs);
        free(sums);
        bed_call_free(calls[i]);
    }
    bed_close(b);
}

static uint64_t current; /* for the message of a failure */

static int name_seed(void **state) {
    (void)state;
    if (current != 0) print_error("the case has seed %llu\n", (unsigned long long)current);
    return 0;
}

static void anything_is_right_and_reproducible(void **state) {
    (void)state;
    bed_worst = 0;
    for (uint64_t i = 1; i <= CASES; i++) {
        current = 0x9e3779b97f4a7c15u * i;
        random_case(current);
    }
    current = 0;
    print_message("%d cases, at worst %.3f of what is allowed\n", CASES, bed_worst);
    assert_true(bed_worst > 0.01); /* the bounds are not far from what happens */
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(anything_is_right_and_reproducible, setup, name_seed),
    };
    return kvant_run_tests(tests, argc, argv);
}
