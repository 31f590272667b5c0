/* Codecs for tests of the attention floor, which the test registers itself. They keep rows as floats, so
 * that a test knows what comes out, and attend on them through kvant.attend/1, in a space of their own:
 * accumulators hold the channels backwards and doubled, behind five floats of something else. A call that
 * breaks a rule of plugin.h that a codec can see fails.
 *
 *     extent: | T*H*D floats, [token, head, channel] |
 */
#ifndef KVANT_TEST_SCORER_H
#define KVANT_TEST_SCORER_H

#include <kvant/plugin.h>

/* "scorer" keeps keys after RoPE, "scorer_before" before. */
void scorer_register(void);

/* What went through the calls since the test set it to zero. Not for several threads. */
typedef struct scorer_counts {
    uint64_t scored; /* pairs of a token and a kv head, however many rows */
    uint64_t mixed;
    uint64_t queries; /* query rows prepared */
} scorer_counts;
extern scorer_counts *scorer_count; /* NULL = nobody counts */

/* What score, mix and finish say; KVANT_OK but in a test of failures. */
extern kvant_status scorer_fails;

#endif
