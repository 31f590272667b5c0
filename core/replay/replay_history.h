/* What a sequence has been through: where each of its tokens comes from, and which of them a cache must
 * have encoded, by the rules of kvant/cache.h and nothing else. Rows are not kept: they follow from origins
 * (replay_rows.h), so that a token takes nine bytes.
 *
 *     positions   0           tail_first       length
 *                 | block | block | cut | tail |
 *
 * A block holds block_tokens tokens from its first position on. One that was cut was encoded from tokens
 * that are no longer the sequence's: it keeps their origins. */
#ifndef KVANT_REPLAY_REPLAY_HISTORY_H
#define KVANT_REPLAY_REPLAY_HISTORY_H

#include <kvant/types.h>

#include <stdbool.h>

typedef struct replay_block {
    uint64_t first;
    uint64_t *origins; /* [block_tokens]; NULL = never cut: the sequence's own */
    uint8_t *tags;     /* [block_tokens], behind them */
} replay_block;

/* Positions [first, end). */
typedef struct replay_span {
    uint64_t first, end;
} replay_span;

typedef struct replay_history {
    uint32_t block_tokens, sinks, recent;
    uint64_t begin;    /* origin before the first token */
    uint64_t *origins; /* [length] */
    uint8_t *tags;     /* [length] */
    uint64_t length, capacity;
    replay_block *blocks;
    uint32_t block_count, block_capacity;
    uint64_t tail_first;
    replay_span *dropped; /* in order, apart from each other */
    uint32_t dropped_count, dropped_capacity;
    uint64_t private_first; /* tokens from here on are not what others would have; UINT64_MAX = all are */
} replay_history;

void replay_history_init(replay_history *h, uint32_t block_tokens, uint32_t sinks, uint32_t recent,
                         uint64_t begin);
void replay_history_free(replay_history *h);

/* All of them: false without memory, and then the history is of no more use but to be freed. */
bool replay_history_append(replay_history *h, const uint64_t *origins, const uint8_t *tags, uint32_t count);

/* Blocks of the tail that end at or before `limit` are encoded. */
bool replay_history_seal(replay_history *h, uint64_t limit);

/* What a step of `count` tokens, `tentative` of them tentative, lets be encoded: positions before this. */
uint64_t replay_history_limit(const replay_history *h, uint32_t count, uint32_t tentative);

bool replay_history_truncate(replay_history *h, uint64_t length);
bool replay_history_drop(replay_history *h, uint64_t first, uint64_t count);
bool replay_history_copy(replay_history *to, const replay_history *from);

/* The position after the last one that a block still covers. */
uint64_t replay_history_block_end(const replay_history *h, uint32_t block);

/* Origins and tags that a block was encoded from. */
const uint64_t *replay_history_block_origins(const replay_history *h, uint32_t block);
const uint8_t *replay_history_block_tags(const replay_history *h, uint32_t block);

/* The end of the run of positions from `position` on, below `end`, of which all live or none does. */
uint64_t replay_history_run(const replay_history *h, uint64_t position, uint64_t end, bool *live);

uint64_t replay_history_live(const replay_history *h);

/* The origin that the next token follows, and what sets it apart (kvant_replay_origin). */
uint64_t replay_history_last(const replay_history *h);
uint64_t replay_history_way(const replay_history *h);

#endif
