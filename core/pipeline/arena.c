/* See arena.h. One allocation a piece: pieces are few, and sanitizers then see the end of each. */
#include "pipeline/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct kvant_arena_piece {
    struct kvant_arena_piece *older;
    _Alignas(max_align_t) unsigned char bytes[];
} kvant_arena_piece;

void *kvant_arena_alloc(kvant_arena *arena, size_t count, size_t size) {
    if (size != 0 && count > (SIZE_MAX / 2 - sizeof(kvant_arena_piece)) / size) return NULL;
    kvant_arena_piece *piece = calloc(1, sizeof *piece + (count * size != 0 ? count * size : 1));
    if (piece == NULL) return NULL;
    piece->older = arena->newest;
    arena->newest = piece;
    return piece->bytes;
}

char *kvant_arena_copy(kvant_arena *arena, const char *bytes, size_t size) {
    if (size == SIZE_MAX) return NULL;
    char *copy = kvant_arena_alloc(arena, size + 1, 1);
    if (copy != NULL && size != 0) memcpy(copy, bytes, size);
    return copy;
}

char *kvant_arena_string(kvant_arena *arena, const char *string) {
    return kvant_arena_copy(arena, string, strlen(string));
}

void kvant_arena_free(kvant_arena *arena) {
    while (arena->newest != NULL) {
        kvant_arena_piece *piece = arena->newest;
        arena->newest = piece->older;
        free(piece);
    }
}
