/* Keys, values and queries for a trace, which has only token ids: made up, or taken from a dump.
 *
 * A token has an origin, 64 bits, from which its rows follow, together with its position, layer and the
 * seed. By `context` an origin depends on all tokens before it and on the tenant, as rows of a model do: so
 * a block that a cache shares where it should not has other rows than its reader expects. */
#ifndef KVANT_REPLAY_REPLAY_ROWS_H
#define KVANT_REPLAY_REPLAY_ROWS_H

#include "data/dump.h"

#include <kvant/kvant.h>

enum { KVANT_REPLAY_BY_CONTEXT, KVANT_REPLAY_BY_ID, KVANT_REPLAY_BY_POSITION };

/* As kvant_view's sides; queries are the third. */
enum { KVANT_REPLAY_QUERY = 2 };

typedef struct kvant_replay_rows kvant_replay_rows;

/* dump: NULL = rows are made up; else token t takes row origin % tokens of it (by position: position %
 * tokens), and must outlive the rows; MISSING where it lacks keys or values. Queries are made up where the
 * dump has none. The geometry is copied. */
kvant_status kvant_replay_rows_open(const kvant_geometry *geometry, const kvant_dump *dump, uint32_t by,
                                    uint64_t seed, kvant_replay_rows **rows, kvant_diag *diag);
void kvant_replay_rows_close(kvant_replay_rows *rows);

/* What stands for the tokens before the first one. */
uint64_t kvant_replay_origin_begin(const kvant_replay_rows *rows, const char *tenant);

/* The origin of a token behind one with origin `before`. `way`: 0, or what else sets this sequence apart from
 * others with the same tokens (something was dropped). */
uint64_t kvant_replay_origin(const kvant_replay_rows *rows, uint64_t before, uint64_t id, uint64_t way);

/* Rows of consecutive tokens, dense: keys and values [count, kv_heads, dim] of the geometry's dtype,
 * queries [count, q_heads, key_dim] of F32. May run on many threads. */
void kvant_replay_rows_fill(const kvant_replay_rows *rows, uint32_t layer, uint32_t what,
                            const uint64_t *origins, uint64_t first_position, uint32_t count, void *dense);

/* A well-mixed 64-bit number of two others. */
uint64_t kvant_replay_mix(uint64_t a, uint64_t b);

#endif
