/* See test_attend.h. */
#include "support/test_attend.h"
#include "support/test.h"

#include <plugin/fpenv.h>

#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, POISON = 0x5A };

static void *guarded(size_t size) {
    uint8_t *memory = aligned_alloc(64, (size + 2 * GUARD + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, POISON, (size + 2 * GUARD + 63) / 64 * 64);
    return memory + GUARD;
}

static void release(void *memory, size_t size, const char *what) {
    const uint8_t *bytes = memory;
    for (size_t i = 0; i < GUARD; i++)
        if (bytes[(ptrdiff_t)i - GUARD] != POISON || bytes[size + i] != POISON)
            fail_msg("%s: a byte beside it was written", what);
    free((uint8_t *)memory - GUARD);
}

kvant_extent kvant_test_extent_copy(const kvant_test_codec *codec) {
    uint8_t *bytes = aligned_alloc(64, (codec->size + 63) / 64 * 64);
    assert_non_null(bytes);
    memcpy(bytes, codec->extent, codec->size);
    return (kvant_extent){.bytes = bytes, .size = codec->size, .live_count = codec->setup.block_tokens};
}

void kvant_test_extent_free(kvant_extent *extent) {
    free((void *)(uintptr_t)extent->bytes);
    extent->bytes = NULL;
}

static const kvant_attend *attend_of(const kvant_test_codec *codec) {
    assert_true((codec->layout.flags & KVANT_LAYOUT_ATTEND) != 0);
    assert_non_null(codec->plugin->extension);
    const kvant_attend *attend = codec->plugin->extension(KVANT_EXT_ATTEND);
    assert_non_null(attend);
    return attend;
}

static size_t scratch_of(const kvant_test_codec *codec, size_t rows) {
    return codec->layout.attend_scratch_bytes + rows * codec->layout.attend_scratch_row;
}

void kvant_test_score(kvant_test_codec *codec, const kvant_test_group *group, const float *queries,
                      float *logits) {
    const kvant_attend *attend = attend_of(codec);
    size_t rows = (size_t)group->heads * group->rows, state_bytes = rows * codec->layout.query_state_bytes;
    size_t scratch_bytes = scratch_of(codec, rows);
    void *state = guarded(state_bytes), *scratch = guarded(scratch_bytes);
    kvant_query_args q = {.struct_size = sizeof q,
                          .first_head = group->first_head,
                          .heads = group->heads,
                          .rows = group->rows,
                          .queries = queries,
                          .query_stride = codec->setup.head_dim,
                          .query_state = state,
                          .scratch = scratch};
    kvant_score_args s = {.struct_size = sizeof s,
                          .first_head = group->first_head,
                          .heads = group->heads,
                          .rows = group->rows,
                          .query_state = state,
                          .extents = group->extents,
                          .extent_count = group->extent_count,
                          .offset_count = codec->setup.block_tokens,
                          .logits = logits,
                          .logit_stride = (uint64_t)group->extent_count * codec->setup.block_tokens,
                          .scratch = scratch};
    kvant_fp_state saved = kvant_fp_enter();
    kvant_status status = attend->query(codec->state, &q);
    memset(scratch, POISON, scratch_bytes);
    if (status == KVANT_OK) status = attend->score(codec->state, &s);
    kvant_fp_leave(saved);
    assert_int_equal(status, KVANT_OK);
    release(state, state_bytes, "query state");
    release(scratch, scratch_bytes, "scratch of score");
}

void kvant_test_mix(kvant_test_codec *codec, const kvant_test_group *group, const float *weights,
                    float *outputs) {
    const kvant_attend *attend = attend_of(codec);
    size_t rows = (size_t)group->heads * group->rows, stride = (codec->layout.mix_width + 15) / 16 * 16;
    size_t scratch_bytes = scratch_of(codec, rows), bytes = rows * stride * sizeof(float);
    float *accumulators = guarded(bytes);
    void *scratch = guarded(scratch_bytes);
    memset(accumulators, 0, bytes);
    kvant_mix_args m = {.struct_size = sizeof m,
                        .first_head = group->first_head,
                        .heads = group->heads,
                        .rows = group->rows,
                        .extents = group->extents,
                        .extent_count = group->extent_count,
                        .weights = weights,
                        .weight_stride = (uint64_t)group->extent_count * codec->setup.block_tokens,
                        .accumulators = accumulators,
                        .accumulator_stride = stride,
                        .scratch = scratch};
    kvant_finish_args f = {.struct_size = sizeof f,
                           .first_head = group->first_head,
                           .heads = group->heads,
                           .rows = group->rows,
                           .accumulators = accumulators,
                           .accumulator_stride = stride,
                           .outputs = outputs,
                           .output_stride = codec->setup.head_dim,
                           .scratch = scratch};
    kvant_fp_state saved = kvant_fp_enter();
    kvant_status status = attend->mix(codec->state, &m);
    if (status == KVANT_OK) status = attend->finish(codec->state, &f);
    kvant_fp_leave(saved);
    assert_int_equal(status, KVANT_OK);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = codec->layout.mix_width; c < stride; c++)
            if (accumulators[r * stride + c] != 0) fail_msg("mix wrote beyond mix_width");
    release(accumulators, bytes, "accumulators");
    release(scratch, scratch_bytes, "scratch of mix");
}
