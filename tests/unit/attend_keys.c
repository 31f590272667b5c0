/* What the host does to keys when it attends: RoPE on either side of either of caller and codec, centring. */
#include "attend/attend.h"

#include "support/attend_bed.h"
#include "support/scorer.h"
#include "support/test.h"
#include "support/tester.h"

#include <kvant/kit/rope.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 48, TOKENS = 500, CODED = 448 };

static int setup(void **state) {
    (void)state;
    scorer_register();
    tester_register();
    tester = (tester_behaviour){0};
    return 0;
}

static void check(const bed_wish *wish, float soft_cap) {
    bed *b = bed_open(wish);
    kvant_attention_options options = bed_options(b);
    options.soft_cap = soft_cap;
    bed_call *c = bed_call_make(b, TOKENS, CODED, 3);
    bed_run(b, &c, 1, &options);
    bed_assert_right(b, c, &options);
    bed_call_free(c);
    bed_close(b);
}

/* The codec decodes ("tester", "raw") or attends on its codes ("scorer"); both ends before or after RoPE. */
static void keys_before_and_after_rope(void **state) {
    (void)state;
    static const struct {
        const char *codec;
        uint32_t flags; /* of tester */
    } codecs[] = {{"scorer", 0},
                  {"scorer_before", 0},
                  {"tester", 0},
                  {"tester", KVANT_LAYOUT_KEYS_BEFORE_ROPE},
                  {"raw", 0}};
    static const struct {
        uint32_t style, rotary_dim;
        double magnitude;
        uint64_t first_position;
    } ropes[] = {{KVANT_ROPE_NEOX, DIM, 1, 0},
                 {KVANT_ROPE_GPTJ, DIM, 1.25, 37},
                 {KVANT_ROPE_NEOX, 20, 0.8, 1000003},
                 {KVANT_ROPE_GPTJ, 20, 1, (uint64_t)1 << 33}};
    double frequency[DIM / 2];
    for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++)
        for (size_t r = 0; r < 4; r++)
            for (uint32_t keys = KVANT_KEYS_AFTER_ROPE; keys <= KVANT_KEYS_BEFORE_ROPE; keys++) {
                kvant_rope_inverse_frequency(10000, ropes[r].rotary_dim, frequency);
                kvant_rope rope = {.struct_size = sizeof rope,
                                   .style = ropes[r].style,
                                   .rotary_dim = ropes[r].rotary_dim,
                                   .magnitude = ropes[r].magnitude,
                                   .inverse_frequency = frequency};
                tester.flags = codecs[c].flags;
                check(&(bed_wish){.key = codecs[c].codec,
                                  .value = "raw",
                                  .tokens = TOKENS,
                                  .keys = keys,
                                  .rope = &rope,
                                  .key_dim = DIM,
                                  .first_position = ropes[r].first_position,
                                  .seed = 10 * c + r},
                      r == 1 ? 4 : 0);
            }
}

/* The four combinations see the same keys: rows of f32 that are turned by hand beforehand, or not, give the
 * same outputs but for rounding. This would fail where both ends forget to turn. */
static void the_side_of_rope_makes_no_difference(void **state) {
    (void)state;
    static const char *const codecs[] = {"scorer", "scorer_before", "raw"};
    double frequency[DIM / 2];
    kvant_rope_inverse_frequency(500, DIM, frequency);
    kvant_rope rope = {.struct_size = sizeof rope,
                       .style = KVANT_ROPE_NEOX,
                       .rotary_dim = DIM,
                       .magnitude = 1,
                       .inverse_frequency = frequency};
    float *want = NULL;
    size_t count = (size_t)2 * 6 * 32;
    for (size_t k = 0; k < 3; k++)
        for (uint32_t keys = KVANT_KEYS_AFTER_ROPE; keys <= KVANT_KEYS_BEFORE_ROPE; keys++) {
            bed *b = bed_open(&(bed_wish){.key = codecs[k],
                                          .value = "raw",
                                          .tokens = TOKENS,
                                          .keys = keys,
                                          .rope = &rope,
                                          .dtype = KVANT_DTYPE_F32,
                                          .key_dim = DIM,
                                          .seed = 4});
            if (keys == KVANT_KEYS_AFTER_ROPE) { /* turn what the bed made, and encode again */
                float *rows = (float *)(void *)b->raw[KVANT_SIDE_KEY], turns[DIM];
                for (uint32_t t = 0; t < TOKENS; t++) {
                    kvant_rope_turns(&rope, t, turns);
                    for (uint32_t h = 0; h < 2; h++)
                        kvant_rope_apply(&rope, turns, rows + ((size_t)t * 2 + h) * DIM);
                }
                bed_encode_again(b);
            }
            kvant_attention_options options = bed_options(b);
            bed_call *c = bed_call_make(b, TOKENS, CODED, 2);
            bed_run(b, &c, 1, &options);
            if (want == NULL) {
                want = malloc(count * sizeof *want);
                assert_non_null(want);
                memcpy(want, c->output_rows, count * sizeof *want);
            }
            for (size_t i = 0; i < count; i++) kvant_assert_close(c->output_rows[i], want[i], 2e-5);
            bed_call_free(c);
            bed_close(b);
        }
    free(want);
}

/* Means of a size that moves every logit: where one is missing, coded tokens weigh e^3 less against raw ones.
 */
static void means_come_back_into_logits(void **state) {
    (void)state;
    static const char *const codecs[] = {"scorer", "tester", "kivi", "hack"};
    float center[2 * 64];
    for (int i = 0; i < 128; i++) center[i] = 2.0f * sinf((float)i) + (i % 3 == 0 ? 1.5f : 0);
    for (size_t k = 0; k < 4; k++)
        for (int capped = 0; capped < 2; capped++)
            check(
                &(bed_wish){
                    .key = codecs[k], .value = "uniform", .tokens = TOKENS, .center = center, .seed = k},
                capped ? 2.5f : 0);
    /* Keys before RoPE, centred after it. */
    double frequency[32];
    kvant_rope_inverse_frequency(10000, 64, frequency);
    kvant_rope rope = {.struct_size = sizeof rope,
                       .style = KVANT_ROPE_NEOX,
                       .rotary_dim = 64,
                       .magnitude = 1,
                       .inverse_frequency = frequency};
    for (size_t k = 0; k < 2; k++)
        check(&(bed_wish){.key = codecs[k],
                          .value = "raw",
                          .tokens = TOKENS,
                          .center = center,
                          .rope = &rope,
                          .keys = KVANT_KEYS_BEFORE_ROPE,
                          .seed = k},
              0);
}

/* Centred and not, a codec that keeps floats gives the same attention, also under a soft cap. */
static void centring_a_lossless_codec_changes_nothing(void **state) {
    (void)state;
    float center[2 * 64];
    for (int i = 0; i < 128; i++) center[i] = 0.25f * (float)(i % 9 - 3);
    static const char *const codecs[] = {"scorer", "tester"};
    for (size_t k = 0; k < 2; k++) {
        bed_wish wish = {
            .key = codecs[k], .value = "raw", .tokens = TOKENS, .dtype = KVANT_DTYPE_F32, .seed = 8};
        bed *plain = bed_open(&wish);
        wish.center = center;
        bed *centered = bed_open(&wish);
        kvant_attention_options options = bed_options(plain);
        options.soft_cap = 1.5f;
        bed_call *x = bed_call_make(plain, TOKENS, CODED, 2), *y = bed_call_make(centered, TOKENS, CODED, 2);
        bed_run(plain, &x, 1, &options);
        bed_run(centered, &y, 1, &options);
        assert_true(memcmp(plain->extents[KVANT_SIDE_KEY], centered->extents[KVANT_SIDE_KEY], 1000) != 0);
        for (size_t i = 0; i < 2 * 6; i++) kvant_assert_close(x->log_sum_exp[i], y->log_sum_exp[i], 2e-6);
        for (size_t i = 0; i < 2 * 6 * 32; i++)
            kvant_assert_close(x->output_rows[i], y->output_rows[i], 3e-6);
        bed_call_free(x);
        bed_call_free(y);
        bed_close(plain);
        bed_close(centered);
    }
}

/* The tables that a codec turns by give the angles of any position. */
static void turns_of_blocks_are_exact(void **state) {
    (void)state;
    double frequency[DIM / 2];
    kvant_rope_inverse_frequency(10000, DIM, frequency);
    kvant_rope rope = {.struct_size = sizeof rope,
                       .style = KVANT_ROPE_NEOX,
                       .rotary_dim = DIM,
                       .magnitude = 1.5,
                       .inverse_frequency = frequency};
    bed *b = bed_open(&(bed_wish){
        .key = "scorer_before", .tokens = 100, .key_dim = DIM, .rope = &rope, .block_tokens = 100});
    float got[DIM], want[DIM];
    double base[DIM];
    uint64_t multiple = UINT64_MAX, seed = 3;
    for (uint32_t t = 0; t < 100; t++) {
        kvant_rope_turns(&rope, t, want);
        for (uint32_t i = 0; i < DIM; i++)
            kvant_assert_close(b->attention->offset_turns[t * DIM + i], want[i], 0x1p-24);
    }
    for (uint32_t i = 0; i < 2000; i++) {
        uint64_t position = kvant_test_random(&seed) >> (i % 50);
        if (i % 3 == 0) position = 64 * i;
        attend_turns_first(b->attention, position, &multiple, base, got);
        kvant_rope_turns(&rope, position, want);
        for (uint32_t k = 0; k < DIM; k++) kvant_assert_close(got[k], want[k] * 1.5f, 0x1p-23);
    }
    bed_close(b);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(keys_before_and_after_rope, setup),
        cmocka_unit_test_setup(the_side_of_rope_makes_no_difference, setup),
        cmocka_unit_test_setup(means_come_back_into_logits, setup),
        cmocka_unit_test_setup(centring_a_lossless_codec_changes_nothing, setup),
        cmocka_unit_test_setup(turns_of_blocks_are_exact, setup),
    };
    return kvant_run_tests(tests, argc, argv);
}
