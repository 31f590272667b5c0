/* Records: one block of a sequence, or its raw tail, as self-contained bytes. `kvant encode` writes them,
 * the cache's store writes the same.
 *
 *     kvant record, version 1; all numbers little-endian                             docs/record-format.md
 *
 *     offset  bytes  field
 *     0       8      magic "KVANTREC"
 *     8       4      version = 1
 *     12      4      kind: 1 = block, 2 = tail
 *     16      8      record bytes: all of it, a multiple of 64
 *     24      8      header bytes: from 0 to the payload, a multiple of 64
 *     32      32     fingerprint of the scheme
 *     64      32     key of the block before, zeros at block 0
 *     96      32     own key
 *     128     8      number of the block in its sequence; a tail has the number of the block that it begins
 *     136     8      position of the first token
 *     144     4      tokens n, >= 1
 *     148     4      layers L, 1 to 65536
 *     152     4      sinks: raw rows kept beside block 0; 0 elsewhere
 *     156     4      dtype of raw rows: 1 = F32, 2 = F16, 3 = BF16
 *     160     8      XXH3-64 of the payload
 *     168     24     zeros
 *     192     64*L   table: per layer, first key then value: extent offset, extent bytes, raw offset, raw
 *                    bytes, u64 each; offsets from the start of the record; an absent part is 0, 0
 *     ..      8*n    token ids
 *     ..      n      tags
 *     ..      n      classes of the tags
 *     ..      0-63   zeros
 *     h-8     8      XXH3-64 of the header without these 8 bytes                      h = header bytes
 *     h       ..     payload: the parts in the table's order, each at the next multiple of 64, zeros between
 *
 * A block has extents and, with sinks, raw rows [sinks, kv_heads, dim] of the same layers and sides; a
 * tail has raw rows [n, kv_heads, dim] only. An absent extent of a block belongs to a layer whose window
 * has passed it.
 *
 * Key = SHA-256 of five fields, each behind its length as a u64: fingerprint, key of the block before,
 * token ids (8 bytes each), classes, salt (empty after block 0).
 *
 * A record is verified before anything in it is used: whatever differs has a name. */
#ifndef KVANT_STORE_RECORD_H
#define KVANT_STORE_RECORD_H

#include <kvant/types.h>

enum {
    KVANT_RECORD_VERSION = 1,
    KVANT_RECORD_ALIGNMENT = 64,
    KVANT_RECORD_KEY_BYTES = 32,
    KVANT_RECORD_LAYERS_MAX = 65536
};
enum { KVANT_RECORD_BLOCK = 1, KVANT_RECORD_TAIL = 2 };

/* What the header says. */
typedef struct kvant_record_head {
    uint32_t kind;
    uint32_t tokens;
    uint32_t layers;
    uint32_t sinks;
    uint32_t dtype;
    uint64_t block;
    uint64_t first_position;
    unsigned char fingerprint[KVANT_RECORD_KEY_BYTES];
    unsigned char parent[KVANT_RECORD_KEY_BYTES];
    unsigned char key[KVANT_RECORD_KEY_BYTES];
} kvant_record_head;

/* A run of bytes of the record; NULL and 0 where there is none. */
typedef struct kvant_record_part {
    const unsigned char *bytes;
    uint64_t size;
} kvant_record_part;

/* ---- Key ----------------------------------------------------------------------------------------------- */

/* The key of `head` from its fingerprint, parent and these: ids and classes of head->tokens tokens. */
kvant_status kvant_record_key(const kvant_record_head *head, const uint64_t *ids,
                              const unsigned char *classes, const void *salt, size_t salt_bytes,
                              unsigned char key[KVANT_RECORD_KEY_BYTES]);

/* ---- Read ---------------------------------------------------------------------------------------------- */

/* A verified record; points into its bytes. */
typedef struct kvant_record {
    const unsigned char *bytes;
    uint64_t size; /* of the record, which may be less than was given */
    uint64_t header_bytes;
    kvant_record_head head;
    const unsigned char *ids; /* [tokens] u64, little-endian: kvant_record_id */
    const unsigned char *tags;
    const unsigned char *classes;
} kvant_record;

/* Verifies the record at the start of bytes[0, size) completely. On failure *reason says what is wrong, in
 * static text, and nothing of the bytes may be used. The bytes need no alignment. */
kvant_status kvant_record_read(const void *bytes, size_t size, kvant_record *record, const char **reason);

/* KVANT_ERROR_MISMATCH unless the record's own key is that of its contents and this salt (NULL = none). */
kvant_status kvant_record_check_key(const kvant_record *record, const void *salt, size_t salt_bytes);

uint64_t kvant_record_id(const kvant_record *record, uint32_t token);
kvant_record_part kvant_record_extent(const kvant_record *record, uint32_t layer, uint32_t side);
kvant_record_part kvant_record_raw(const kvant_record *record, uint32_t layer, uint32_t side);

/* ---- Write --------------------------------------------------------------------------------------------- */

/* Fills a buffer of the caller's: start, then for each part, layer by layer, key before value, extent
 * before raw: room and put; then finish.
 *
 *     kvant_record_start(&writer, buffer, capacity, &head, ids, tags, classes);
 *     void *extent = kvant_record_room(&writer, extent_max);
 *     ... encode into extent, which used `size` bytes ...
 *     kvant_record_put_extent(&writer, layer, side, size);
 *     size_t bytes = kvant_record_finish(&writer);
 * / */
typedef struct kvant_record_writer {
    unsigned char *base;
    size_t capacity;
    size_t end;
    uint32_t layers;
} kvant_record_writer;

/* The size of a record whose parts take `part_bytes` in all, each rounded up to a multiple of 64. 0 = too
 * large. */
size_t kvant_record_size(uint32_t tokens, uint32_t layers, uint64_t part_bytes);

/* tags and classes: NULL = zeros. head->key is computed from these and the salt, and left in head. */
kvant_status kvant_record_start(kvant_record_writer *writer, void *buffer, size_t capacity,
                                kvant_record_head *head, const uint64_t *ids, const unsigned char *tags,
                                const unsigned char *classes, const void *salt, size_t salt_bytes);

/* Where the next part goes; NULL if `size` bytes do not fit. Its offset is a multiple of 64. */
void *kvant_record_room(kvant_record_writer *writer, size_t size);
void kvant_record_put_extent(kvant_record_writer *writer, uint32_t layer, uint32_t side, size_t size);
void kvant_record_put_raw(kvant_record_writer *writer, uint32_t layer, uint32_t side, size_t size);

/* Zeros between the parts, checksums; the size of the record. */
size_t kvant_record_finish(kvant_record_writer *writer);

#endif
