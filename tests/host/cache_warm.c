/* A sequence that begins with what a lookup found gives what one that began at 0 gives, bit for bit, if
 * their steps end at the same places: for first steps of every length after the hit, and the steps that
 * follow. */
#include "support/cache_take.h"
#include "support/sanitized.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

enum { STRIDE = KVANT_TEST_SANITIZED ? 5 : 1 }; /* first steps of every length */

typedef struct bed {
    cache_model *m;
    take_text *text;
} bed;

static void end(void) {
    fail();
}

static bed *open_bed(const model_setting *setting) {
    bed *b = calloc(1, sizeof *b);
    assert_non_null(b);
    model_setting large = *setting;
    large.blocks = 400;
    b->m = cache_model_open(&large, 0);
    b->text = take_text_make(b->m, 1, MODEL_TOKENS);
    return b;
}

static void close_bed(bed *b) {
    cache_model_leave(b->m);
    free(b->text);
    free(b);
}

#define OK(call)                                                                                             \
    do {                                                                                                     \
        kvant_diag diag = {.struct_size = sizeof diag};                                                      \
        if ((call) != KVANT_OK) {                                                                            \
            print_error("%s: %s\n", #call, diag.message);                                                    \
            fail();                                                                                          \
        }                                                                                                    \
    } while (0)

static void take(bed *b, kvant_sequence *s, uint32_t first, uint32_t to, float *outputs) {
    assert_int_equal(take_step(b->m, b->m->cache, s, b->text, first, to, outputs), KVANT_OK);
}

/* The same step of both sequences. */
static void compare(bed *b, kvant_sequence *warm, kvant_sequence *cold, uint32_t first, uint32_t to) {
    float *got = take_room(to - first), *want = take_room(to - first);
    take(b, warm, first, to, got);
    take(b, cold, first, to, want);
    if (!take_same(got, want, to - first)) {
        print_error("%s: step %u to %u of a warm sequence differs from a cold one's\n", b->m->setting->name,
                    first, to);
        fail();
    }
    free(got);
    free(want);
}

static void same_rows(bed *b, const kvant_sequence *warm, const kvant_sequence *cold, uint32_t layer,
                      uint32_t side, uint64_t first, uint32_t count) {
    uint32_t dim = model_dim(b->m, layer, side);
    float *got[2];
    const kvant_sequence *s[2] = {warm, cold};
    for (uint32_t i = 0; i < 2; i++) {
        got[i] = malloc((size_t)count * MODEL_HEADS * dim * sizeof(float));
        assert_non_null(got[i]);
        kvant_mutable_view view = {.struct_size = sizeof view,
                                   .dtype = KVANT_DTYPE_F32,
                                   .data = got[i],
                                   .tokens = count,
                                   .heads = MODEL_HEADS,
                                   .head_dim = dim,
                                   .token_stride = (int64_t)(MODEL_HEADS * dim * sizeof(float)),
                                   .head_stride = (int64_t)(dim * sizeof(float)),
                                   .channel_stride = sizeof(float)};
        OK(kvant_sequence_read(s[i], layer, side, first, &view, b->m->scratch, &diag));
    }
    kvant_assert_bytes(got[0], got[1], (size_t)count * MODEL_HEADS * dim * sizeof(float));
    free(got[0]);
    free(got[1]);
}

/* The first step ends at `to`; the match is what a lookup that is told so finds. Returns the match's
 * tokens. */
static uint32_t try_first_step(bed *b, uint32_t to) {
    kvant_prefix prefix = {.struct_size = sizeof prefix,
                           .ids = b->text->ids,
                           .tags = b->text->tags,
                           .count = to,
                           .first_step_end = to};
    kvant_match *match = NULL;
    kvant_sequence *warm = NULL, *cold = NULL;
    OK(kvant_cache_lookup(b->m->cache, &prefix, &match, &diag));
    uint32_t found = (uint32_t)kvant_match_tokens(match), recent = b->m->recent > 1 ? b->m->recent : 1;
    assert_true(found == 0 || found + recent <= to);
    OK(kvant_sequence_create_from(match, &warm, &diag));
    kvant_match_release(match);
    OK(kvant_sequence_create(b->m->cache, "cold", 4, &cold, &diag));
    if (found > 0) take(b, cold, 0, found, NULL);
    compare(b, warm, cold, found, to);
    compare(b, warm, cold, to, to + 1);
    compare(b, warm, cold, to + 1, to + 1 + b->m->block_tokens);
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) {
        uint32_t window = b->m->setting->window[layer], length = to + 1 + b->m->block_tokens;
        uint32_t first = window == 0 || window > length ? 0 : length - window;
        for (uint32_t side = 0; side < 2; side++)
            same_rows(b, warm, cold, layer, side, first, length - first);
    }
    kvant_sequence_free(warm);
    kvant_sequence_free(cold);
    return found;
}

static void warm_is_cold(void **state) {
    (void)state;
    cache_model_end = end;
    for (uint32_t i = 0; i < model_setting_count; i++) {
        bed *b = open_bed(&model_settings[i]);
        kvant_sequence *donor = NULL;
        uint32_t blocks = 3, prompt = blocks * b->m->block_tokens + b->m->recent, most = 0, hits = 0;
        OK(kvant_sequence_create(b->m->cache, NULL, 0, &donor, &diag));
        take(b, donor, 0, prompt, NULL);
        for (uint32_t to = 1; to < prompt + 2 * b->m->block_tokens; to += STRIDE) {
            uint32_t found = try_first_step(b, to);
            hits += found > 0;
            if (found > most) most = found;
        }
        if (most < blocks * b->m->block_tokens || hits == 0) {
            print_error("%s: %u tokens were found at most\n", b->m->setting->name, most);
            fail();
        }
        kvant_sequence_free(donor);
        close_bed(b);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(warm_is_cold)};
    return kvant_run_tests(tests, argc, argv);
}
