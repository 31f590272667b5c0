/* What the parts of a sequence share: making, copying, letting go. See cache.h. */
#ifndef KVANT_CACHE_SEQUENCE_H
#define KVANT_CACHE_SEQUENCE_H

#include "cache/cache.h"

/* An empty sequence; NULL without memory. */
kvant_sequence *sequence_new(kvant_cache *cache, const void *salt, uint64_t salt_bytes);

/* Lets go of blocks, pages and what was dropped; lists and room stay. Takes the lock. */
void sequence_clear(kvant_sequence *sequence);

/* Frees the memory of a sequence that holds nothing. */
void sequence_delete(kvant_sequence *sequence);

/* One holder more of all its blocks, needs and pages. Under the lock. */
void sequence_hold(const kvant_sequence *sequence);

/* A sequence that holds the same. NULL without memory. Takes the lock. */
kvant_sequence *sequence_copy(const kvant_sequence *sequence);

/* Lets go of the blocks from `first` on. Under the lock. */
void sequence_release_blocks(kvant_sequence *sequence, uint32_t first);

/* Lets windows pass the blocks that lie `window` tokens or more before the first raw one. Under the lock. */
void sequence_pass_windows(kvant_sequence *sequence);

/* Makes private what must be: after a cut or with tokens dropped. */
void sequence_settle_private(kvant_sequence *sequence);

/* Whether every token of [first, end) was dropped. */
bool sequence_is_dropped(const kvant_sequence *sequence, uint64_t first, uint64_t end);

/* Calls visit(context, from, to) for what lives of [first, end), in order. */
void sequence_live(const kvant_sequence *sequence, uint64_t first, uint64_t end,
                   void (*visit)(void *context, uint64_t from, uint64_t to), void *context);

#endif
