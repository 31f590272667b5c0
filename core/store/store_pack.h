/* A record packed with zstd, as a store may keep it. What a reader has to know before it unpacks, the
 * record's own fixed head, is not packed.
 *
 *     packed record, version 1; all numbers little-endian                                     docs/stores.md
 *
 *     offset  bytes  field
 *     0       8      magic "KVANTPAK"
 *     8       4      version = 1
 *     12      4      method: 1 = zstd
 *     16      8      bytes of all of it
 *     24      8      XXH3-64 of all of it but these 8 bytes: of [0, 24) with [32, ..) behind
 *     32      32     zeros
 *     64      192    the record's first 192 bytes (record.h): its size stands there
 *     256     ..     one zstd frame: the record's other bytes
 *
 * The size that the head states is the room that unpacking gets; a frame that says or does otherwise is
 * refused. */
#ifndef KVANT_STORE_STORE_PACK_H
#define KVANT_STORE_STORE_PACK_H

#include <kvant/types.h>

#include <stdbool.h>

/* Room for a record of `size` bytes, packed. */
size_t kvant_store_pack_bound(size_t size);

/* Packs a record. 0 = it gets no smaller by a sixteenth, or there is no memory: it is stored as it is. */
size_t kvant_store_pack(const void *record, size_t size, int level, void *packed, size_t capacity);

bool kvant_store_is_packed(const void *bytes, size_t size);

/* Checks all that is not packed; *record_bytes is then the room that kvant_store_unpack needs, at most
 * record_max. Returns KVANT_STORE_FOUND, or why it must not be unpacked. */
uint32_t kvant_store_unpack_size(const void *packed, size_t size, uint64_t record_max, uint64_t *record_bytes,
                                 const char **why);

/* After kvant_store_unpack_size: writes record_bytes bytes, which are not verified yet. */
uint32_t kvant_store_unpack(const void *packed, size_t size, void *record, uint64_t record_bytes,
                            const char **why);

#endif
