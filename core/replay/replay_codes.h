/* Encoded blocks of a replay's oracle: made from raw rows, some of them kept. */
#ifndef KVANT_REPLAY_REPLAY_CODES_H
#define KVANT_REPLAY_REPLAY_CODES_H

#include "replay/replay_oracle.h"

/* The blocks of one layer and side that are kept. */
typedef struct replay_kept {
    size_t stride; /* bytes of an extent at most, rounded up to 64 */
    unsigned char *extents;
    uint64_t *marks; /* of what is there: 0 = nothing */
    uint64_t *sizes;
} replay_kept;

/* Memory that grows and is used again. */
typedef struct replay_room {
    unsigned char *bytes; /* aligned to 64 */
    size_t size;
} replay_room;

struct kvant_replay_oracle {
    const kvant_plan *plan;
    const kvant_replay_rows *rows;
    const kvant_geometry *geometry;
    kvant_plan_info info;
    float scale;
    kvant_attention **attention; /* [layers] */
    replay_kept *kept;           /* [layers][2] */
    uint32_t slots;              /* of each of them */
    replay_compared compared;
    replay_room raw;      /* raw rows of a block */
    replay_room scratch;  /* of codecs and attention */
    replay_room expected; /* rows or outputs as they must be */
    replay_room got;
    replay_room coded[2]; /* extents of a sequence */
    replay_room lists;
    replay_room tail[2]; /* raw rows of a sequence */
};

/* At least `size` bytes; false without memory. What was there is lost. */
bool replay_room_for(replay_room *room, size_t size);

kvant_status replay_codes_open(kvant_replay_oracle *oracle, uint64_t memory, kvant_diag *diag);
void replay_codes_close(kvant_replay_oracle *oracle);

/* The extent of a block, which lives until the next call. */
kvant_status replay_codes_get(kvant_replay_oracle *oracle, uint32_t layer, uint32_t side,
                              const replay_history *h, uint32_t block, const void **extent, uint64_t *size,
                              kvant_diag *diag);

const kvant_layer_geometry *replay_layer(const kvant_replay_oracle *oracle, uint32_t layer);
uint32_t replay_dim(const kvant_replay_oracle *oracle, uint32_t layer, uint32_t side);

/* Bytes of one token's raw row. */
size_t replay_row_bytes(const kvant_replay_oracle *oracle, uint32_t layer, uint32_t side);

#endif
