/* The files of the plain-directory store: their names, and all of them in the order of last use. */
#ifndef KVANT_STORE_DIRECTORY_SCAN_H
#define KVANT_STORE_DIRECTORY_SCAN_H

#include <kvant/kvant.h>

#include <stdbool.h>
#include <time.h>

enum { KVANT_FILE_NAME_BYTES = 80 }; /* room for "ab/cd/", 64 hex digits, ".block" and a NUL */

/* "ab/cd/<key in hex>.block" or ".tail". */
void kvant_file_name(const uint8_t *name, char path[KVANT_FILE_NAME_BYTES]);

typedef struct kvant_found {
    uint8_t name[KVANT_STORE_NAME_BYTES];
    uint64_t bytes;
    struct timespec used;
} kvant_found;

typedef struct kvant_found_list {
    kvant_found *files;
    size_t count, capacity;
    size_t next; /* for whoever walks it */
} kvant_found_list;

/* Every record under the open directory `root`, the one used longest ago first; equal times by name. What is
 * not named like a record is passed over. Returns an errno. */
int kvant_scan(int root, kvant_found_list *list);
void kvant_found_free(kvant_found_list *list);

/* What a file takes of the capacity: whole blocks of 4096 bytes. */
uint64_t kvant_file_room(uint64_t bytes);

#endif
