/* Truncation where others hold what is cut, and where what is cut is gone: stories that the model check
 * (cache_model.c) met, told one by one. */
#include "support/cache_take.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

static kvant_diag diag = {.struct_size = sizeof diag};

static void end(void) {
    fail();
}

typedef struct bed {
    cache_model *m;
    take_text *text;
} bed;

static bed open_bed(const char *name) {
    bed b = {0};
    cache_model_end = end;
    for (uint32_t i = 0; i < model_setting_count; i++)
        if (strcmp(model_settings[i].name, name) == 0) b.m = cache_model_open(&model_settings[i], 0);
    assert_non_null(b.m);
    b.text = take_text_make(b.m, 1, 0);
    return b;
}

static void close_bed(bed *b) {
    cache_model_leave(b->m);
    free(b->text);
}

static kvant_sequence *grown(const bed *b, uint32_t length) {
    kvant_sequence *s = NULL;
    assert_int_equal(kvant_sequence_create(b->m->cache, NULL, 0, &s, &diag), KVANT_OK);
    assert_int_equal(take_step(b->m, b->m->cache, s, b->text, 0, length, NULL), KVANT_OK);
    return s;
}

/* Keys of `count` tokens from the first on. */
static kvant_status read_keys(const bed *b, const kvant_sequence *s, uint32_t layer, uint32_t count,
                              float *rows) {
    kvant_mutable_view view = {.struct_size = sizeof view,
                               .dtype = KVANT_DTYPE_F32,
                               .data = rows,
                               .tokens = count,
                               .heads = MODEL_HEADS,
                               .head_dim = MODEL_KEY_DIM,
                               .token_stride = MODEL_HEADS * MODEL_KEY_DIM * sizeof(float),
                               .head_stride = MODEL_KEY_DIM * sizeof(float),
                               .channel_stride = sizeof(float)};
    return kvant_sequence_read(s, layer, KVANT_SIDE_KEY, 0, &view, b->m->scratch, &diag);
}

/* Layer 1 sees 48 tokens. The long one's window has passed the blocks that the fork still sees; when it is
 * cut below them it lets go of them, and must not speak for the fork. */
static void a_cut_leaves_a_fork_what_it_sees(void **state) {
    (void)state;
    bed b = open_bed("window");
    float *before = calloc(60 * MODEL_HEADS * MODEL_KEY_DIM, sizeof *before);
    float *after = calloc(60 * MODEL_HEADS * MODEL_KEY_DIM, sizeof *after);
    kvant_sequence *fork = NULL, *s = grown(&b, 60);
    assert_true(before != NULL && after != NULL);
    assert_int_equal(kvant_sequence_fork(s, &fork, &diag), KVANT_OK);
    assert_int_equal(read_keys(&b, fork, 1, 60, before), KVANT_OK);
    assert_int_equal(take_step(b.m, b.m->cache, s, b.text, 60, 200, NULL), KVANT_OK);
    assert_int_equal(kvant_sequence_truncate(s, 10, &diag), KVANT_OK);
    kvant_bytes bytes = {.struct_size = sizeof bytes};
    uint64_t extents = 0;
    for (uint32_t i = 0; i < 2 * MODEL_LAYERS; i++) extents += b.m->extent_max[i / 2][i % 2];
    assert_int_equal(kvant_sequence_bytes(fork, &bytes), KVANT_OK);
    assert_int_equal(bytes.payload + bytes.metadata + bytes.padding,
                     2 * extents); /* two blocks, all of them */
    assert_int_equal(read_keys(&b, fork, 1, 60, after), KVANT_OK);
    kvant_assert_bytes(after, before, 60 * MODEL_HEADS * MODEL_KEY_DIM * sizeof(float));
    kvant_sequence_free(fork);
    kvant_sequence_free(s);
    free(before);
    free(after);
    close_bed(&b);
}

/* All of the only block was dropped, so the sequence let it go, and it was evicted: a cut among the sinks
 * has no rows to take back, and none is seen. */
static void a_cut_among_sinks_that_are_gone(void **state) {
    (void)state;
    bed b = open_bed("uniform");
    kvant_sequence *s = grown(&b, 40);
    kvant_sequence_info info = {.struct_size = sizeof info};
    assert_int_equal(kvant_sequence_drop(s, 0, 16, &diag), KVANT_OK);
    assert_int_equal(kvant_cache_evict(b.m->cache, b.m->capacity, NULL, &diag), KVANT_ERROR_NO_SPACE);
    assert_int_equal(kvant_sequence_truncate(s, 2, &diag), KVANT_OK);
    assert_int_equal(kvant_sequence_describe(s, &info), KVANT_OK);
    assert_int_equal(info.length, 2);
    assert_int_equal(info.live_tokens, 0);
    float row[MODEL_HEADS * MODEL_KEY_DIM];
    assert_int_equal(read_keys(&b, s, 0, 1, row), KVANT_ERROR_ARGUMENT);
    assert_int_equal(take_step(b.m, b.m->cache, s, b.text, 2, 70, NULL), KVANT_OK);
    kvant_sequence_free(s);
    close_bed(&b);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_leaves_a_fork_what_it_sees),
        cmocka_unit_test(a_cut_among_sinks_that_are_gone),
    };
    return kvant_run_tests(tests, argc, argv);
}
