/* Is the structure of an LMDB file sound? LMDB believes its pages: a damaged one sends it outside of the file
 * or into another record. So every page of its trees is looked at once, when a store is opened; what records
 * hold is not read, they have checksums of their own.
 *
 *     page        0  number  8 | 8  0  2 | 10  flags  2 | 12  lower  2 | 14  upper  2 | 16  offsets, 2 each
 *                 overflow: | 12  pages  4 | 16  bytes of one value
 *     node        0  size, low and high half  4 | 4  flags  2 | 6  key bytes  2 | 8  key, value
 *                 branch: number of the page below in 0..6; large value: number of its first page
 *     pages 0, 1  16  magic  4 | 20  version  4 | 24  address  8 | 32  map bytes  8
 *                 40  tree of free pages  48 | 88  main tree  48 | 136  last page  8 | 144  transaction  8
 *     tree        0  0  4 | 4  flags  2 | 6  depth  2 | 8  branch, leaf, large pages, entries, root  8 each
 *
 * Numbers are in the machine's order. This is format version 1, of LMDB 0.9 on 64-bit machines. */
#ifndef KVANT_STORE_LMDB_CHECK_H
#define KVANT_STORE_LMDB_CHECK_H

#include <kvant/types.h>

#include <stdbool.h>

/* A shorter file was never finished: two pages of the least size. */
enum { KVANT_LMDB_FILE_MIN = 8192, KVANT_LMDB_PAGE_HEADER = 16 };

/* Before LMDB opens it: both heads, and that the file is as long as they say. */
kvant_status kvant_lmdb_check_head(int fd, const char *file, kvant_diag *diag);

/* The trees of one transaction's snapshot. *moved: its head is no longer there, look again. */
kvant_status kvant_lmdb_check(int fd, uint64_t transaction, const char *file, bool *moved, kvant_diag *diag);

/* The same over the file's bytes in memory; *why in static text, *page where. */
bool kvant_lmdb_bytes_are_sound(const unsigned char *bytes, size_t size, uint64_t transaction,
                                const char **why, uint64_t *page);

/* A value as LMDB hands it out of its map: true unless it is a large one under which another page's number or
 * length is stated. */
bool kvant_lmdb_large_is_sound(const void *value, size_t size, const void *map, size_t page_bytes);

/* Where the map begins, from a small value in it; NULL if that is not to be seen: pages of another size than
 * the machine's, or a page of a transaction's own. */
const void *kvant_lmdb_map(const void *value, size_t page_bytes);

#endif
