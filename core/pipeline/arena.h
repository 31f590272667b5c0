/* Memory that is freed all at once: what a pipeline or a plan holds is allocated piece by piece and lives
 * as one. */
#ifndef KVANT_PIPELINE_ARENA_H
#define KVANT_PIPELINE_ARENA_H

#include <stddef.h>

typedef struct kvant_arena {
    struct kvant_arena_piece *newest; /* NULL = empty */
} kvant_arena;

/* count * size zeroed bytes, aligned for every type; NULL without memory or when the product overflows.
 * Never NULL for zero bytes. */
void *kvant_arena_alloc(kvant_arena *arena, size_t count, size_t size);

/* Copies, with a NUL behind. */
char *kvant_arena_copy(kvant_arena *arena, const char *bytes, size_t size);
char *kvant_arena_string(kvant_arena *arena, const char *string);

void kvant_arena_free(kvant_arena *arena);

#endif
