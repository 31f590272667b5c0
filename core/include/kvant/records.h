/* kvant/records.h: n tokens of a sequence to one record in memory and back, without a cache: for servers that
 * keep records for others, and for engines with pages of their own; part of kvant.h. docs/record-format.md
 * says what a record holds; stores.h keeps them on disk. They are the bytes that kvant_sequence_save writes.
 *
 *     kvant_records *records = NULL;
 *     if (kvant_records_open(plan, &records, &diag)) die(diag.message);
 *     void *buffer = malloc(kvant_records_bound(records, KVANT_STORE_BLOCK, block_tokens));
 *     void *scratch = aligned_alloc(64, kvant_records_scratch_bytes(records, block_tokens));
 *     kvant_record_source source = {.struct_size = sizeof source, .kind = KVANT_STORE_BLOCK, ...};
 *     kvant_records_pack(records, &source, buffer, bound, scratch, &report, &diag);   // report.key names it
 *     ...
 *     kvant_records_unpack(records, &key, record, size, 0, layers, rows, scratch, &diag);
 *
 * A block record holds block_tokens tokens, encoded, and where it is the first of its sequence the raw rows
 * of the plan's sinks. A tail record holds any number of tokens raw: those that fill no block, and the
 * `recent` newest. The key of a record is a hash over that of the block before it, so keys say where a
 * sequence goes on.
 *
 * Threads: an opened kvant_records is immutable; any number of threads may pack and unpack at once, each with
 * scratch of its own. Memory: after open nothing is allocated but, for a moment, OpenSSL's context of a hash.
 */
#ifndef KVANT_RECORDS_H
#define KVANT_RECORDS_H

#include "kvant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvant_store_key kvant_store_key; /* stores.h */

/* The codecs of a plan, all of them opened. */
typedef struct kvant_records kvant_records;

/* The plan may go. MISSING if its geometry names no model: records carry the fingerprint. Else as
 * kvant_codec_open. */
KVANT_API kvant_status kvant_records_open(const kvant_plan *plan, kvant_records **records, kvant_diag *diag);
KVANT_API void kvant_records_close(kvant_records *records); /* NULL is fine */

/* Most bytes of a record; 0 if there is no such record (a block of another number of tokens than the plan's,
 * no tokens, or too many for memory). kind: KVANT_STORE_BLOCK or KVANT_STORE_TAIL. */
KVANT_API size_t kvant_records_bound(const kvant_records *records, uint32_t kind, uint32_t tokens);

/* Bytes of scratch, aligned to 64, for any call below on a record of at most that many tokens. */
KVANT_API size_t kvant_records_scratch_bytes(const kvant_records *records, uint32_t tokens);

/* What goes into one record. */
typedef struct kvant_record_source {
    uint32_t struct_size;
    uint32_t kind;     /* KVANT_STORE_BLOCK or KVANT_STORE_TAIL */
    uint32_t tokens;   /* of a block the plan's block_tokens; of a tail > 0 */
    uint32_t reserved; /* 0 */
    uint64_t block;    /* number of the block in its sequence, or of the block that the tail begins; the first
                              token has the position block * block_tokens */
    const uint8_t *parent; /* [32], key of the block before; NULL where block = 0 */
    const uint64_t *ids;   /* [tokens] */
    const uint8_t *tags;   /* [tokens]; NULL = all zero */
    const void *salt;      /* of the sequence; NULL = none */
    uint64_t salt_bytes;
    /* [layers][2], key then value: [tokens, kv_heads, dim] of the geometry's dtype and side of RoPE. Both
     * NULL, in a block: a layer whose window has passed it. */
    const kvant_view *const *rows;
} kvant_record_source;

/* The key that the record has: to ask for it before anything is computed. source->rows is not used. Errors:
 * ARGUMENT, MEMORY. */
KVANT_API kvant_status kvant_records_key(const kvant_records *records, const kvant_record_source *source,
                                         void *scratch, uint8_t key[32], kvant_diag *diag);

typedef struct kvant_record_report {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t size;      /* of the record */
    uint64_t saturated; /* as kvant_encode_report, over all layers */
    uint64_t replaced;
    uint8_t key[32];
    uint8_t fingerprint[32];
} kvant_record_report;

/* Writes a record; buffer: any alignment, `capacity` bytes, at least what kvant_records_bound says. report
 * may be NULL; the caller sets report->struct_size. Errors: ARGUMENT, DTYPE, CAPACITY, MEMORY, and
 * NOT_FINITE, which names layer, side, position, head and channel; the buffer is then unspecified. */
KVANT_API kvant_status kvant_records_pack(const kvant_records *records, const kvant_record_source *source,
                                          void *buffer, size_t capacity, void *scratch,
                                          kvant_record_report *report, kvant_diag *diag);

/* What a record says about itself. */
typedef struct kvant_record_info {
    uint32_t struct_size;
    uint32_t kind; /* KVANT_STORE_* */
    uint32_t tokens;
    uint32_t layers;
    uint32_t sinks; /* raw tokens beside block 0 */
    uint32_t dtype; /* of raw rows */
    uint64_t block;
    uint64_t first_position;
    uint64_t size; /* of the record; bytes may follow it */
    uint8_t fingerprint[32];
    uint8_t parent[32]; /* zeros: of block 0 */
    uint8_t key[32];
    const uint8_t *ids;  /* [tokens] of 8 bytes, little-endian; these and tags lie in the record */
    const uint8_t *tags; /* [tokens] */
} kvant_record_info;

/* Verifies the record at the start of bytes[0, size): lengths, checksums, structure. Needs no plan. The
 * caller sets info->struct_size. VERSION; CORRUPT, and the diag says what is wrong. */
KVANT_API kvant_status kvant_record_describe(const void *bytes, size_t size, kvant_record_info *info,
                                             kvant_diag *diag);

/* Verifies the record, then decodes layers [first_layer, first_layer + layer_count) into rows,
 * [layer_count][2], NULL = not wanted: each [tokens, kv_heads, dim] of F32, F16 or BF16, sinks as they were
 * given. key: what was asked for; the record must be that one, made with this plan, and its key that of its
 * tokens and the salt. NULL = made with this plan is enough. Errors: VERSION, CORRUPT, MISMATCH, MISSING (an
 * extent that the record does not have, of a layer whose window had passed it), ARGUMENT, DTYPE, MEMORY; rows
 * are then unspecified. */
KVANT_API kvant_status kvant_records_unpack(const kvant_records *records, const kvant_store_key *key,
                                            const void *record, size_t size, uint32_t first_layer,
                                            uint32_t layer_count, const kvant_mutable_view *const *rows,
                                            void *scratch, kvant_diag *diag);

#ifdef __cplusplus
}
#endif

#endif
