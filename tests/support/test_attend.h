/* kvant.attend/1 of a codec that test_codec.h opened, on runs of extents, with scratch of exactly the size
 * that the layout says, filled with garbage and watched. Everything that goes wrong fails the test. */
#ifndef KVANT_TEST_TEST_ATTEND_H
#define KVANT_TEST_TEST_ATTEND_H

#include "support/test_codec.h"

/* What a call serves. */
typedef struct kvant_test_group {
    const kvant_extent *extents;
    uint32_t extent_count;
    uint32_t first_head, heads, rows;
} kvant_test_group;

/* A copy of what the codec encoded last, all of it live; the caller frees with kvant_test_extent_free. */
kvant_extent kvant_test_extent_copy(const kvant_test_codec *codec);
void kvant_test_extent_free(kvant_extent *extent);

/* queries [heads * rows, head_dim], logits [heads * rows, extent_count * block_tokens], both dense. */
void kvant_test_score(kvant_test_codec *codec, const kvant_test_group *group, const float *queries,
                      float *logits);

/* weights [heads * rows, extent_count * block_tokens], outputs [heads * rows, head_dim], both dense. One call
 * of mix for the whole run, then finish. */
void kvant_test_mix(kvant_test_codec *codec, const kvant_test_group *group, const float *weights,
                    float *outputs);

#endif
