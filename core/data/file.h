/* Files: mapped to read, written whole or not at all, and errors that name them. */
#ifndef KVANT_DATA_FILE_H
#define KVANT_DATA_FILE_H

#include <kvant/types.h>

/* Like kvant_fail, with the file in the diag. Bytes of the message that a terminal would act on become
 * '?', so that names taken from a hostile file keep the message one line. */
__attribute__((format(printf, 4, 5))) kvant_status kvant_file_fail(kvant_diag *diag, kvant_status status,
                                                                   const char *file, const char *format, ...);

/* The contents of a regular file, read only. An empty file has bytes = "" and size 0. */
typedef struct kvant_file_map {
    const unsigned char *bytes;
    size_t size;
    void *mapping; /* NULL = nothing to unmap */
} kvant_file_map;

kvant_status kvant_file_map_open(const char *file, kvant_file_map *map, kvant_diag *diag);
void kvant_file_map_close(kvant_file_map *map);

/* Gives the memory of pages that were read back to the system; reading them again is still fine. */
void kvant_file_map_forget(const kvant_file_map *map);

/* Writes to a temporary name in the same directory; commit flushes it to the disk and renames it, so that
 * a reader sees the old file or the whole new one. A failed write is remembered and told by commit.
 * `commit` and `abort` free the writer; a failed commit leaves nothing behind. */
typedef struct kvant_file_writer kvant_file_writer;

kvant_status kvant_file_writer_open(const char *file, kvant_file_writer **writer, kvant_diag *diag);
void kvant_file_writer_add(kvant_file_writer *writer, const void *bytes, size_t size);
kvant_status kvant_file_writer_commit(kvant_file_writer *writer, kvant_diag *diag);
void kvant_file_writer_abort(kvant_file_writer *writer);

/* Bytes added so far. */
uint64_t kvant_file_writer_offset(const kvant_file_writer *writer);

#endif
