/* kvant/stores.h: where records (docs/record-format.md) stay when a sequence leaves memory, for this process,
 * for others and after a restart; part of kvant.h. Two stores come with the library, one file of LMDB and a
 * tree of plain files; a third kind is a table of functions of the application's. docs/stores.md says what
 * lies on disk and what a crash leaves.
 *
 *     kvant_store_options options = {.struct_size = sizeof options, .capacity = UINT64_C(20) << 30};
 *     kvant_store *store = NULL;
 *     if (kvant_store_open_lmdb("/var/cache/kvant", &options, &store, &diag)) die(diag.message);
 *     kvant_store_put(store, &key, record, size, &diag);                  // on the disk when it returns
 *     if (kvant_store_get(store, &key, use_record, context, &reason, &diag) == KVANT_ERROR_MISSING)
 *         puts(kvant_store_reason_text(reason));                          // a miss: encode it anew
 *     kvant_store_close(store);
 *
 * What holds for every kind:
 *   - A record that was put is found after a crash, unless it was evicted or removed since.
 *   - What get hands out is verified from the first to the last byte: lengths, checksums, version,
 *     fingerprint, kind, key, and that the key is that of the record's tokens, classes and salt. Whatever
 *     differs is a miss that has a reason and a counter, never an error of the application's and never a
 *     wrong byte. A broken record stays where it is until it is put again, removed or evicted.
 *   - A store that is full makes room by evicting the records that were used longest ago; where that does
 *     not do, put refuses (KVANT_ERROR_NO_SPACE); what was evicted by then stays evicted, all else is as it
 *     was.
 *   - Every function may run on many threads at once, in many processes at once. A handle does not survive
 *     fork: a child opens the store again. */
#ifndef KVANT_STORES_H
#define KVANT_STORES_H

#include "kvant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvant_store kvant_store;

/* Why a record was not found, was not taken for what it says, or was not written. */
enum {
    KVANT_STORE_FOUND = 0,
    KVANT_STORE_ABSENT = 1,      /* there is no such record */
    KVANT_STORE_TRUNCATED = 2,   /* shorter than it says */
    KVANT_STORE_CHECKSUM = 3,    /* a checksum, or something else in it that a writer never writes */
    KVANT_STORE_VERSION = 4,     /* a record version that this build does not read */
    KVANT_STORE_ENDIAN = 5,      /* numbers in the other byte order */
    KVANT_STORE_FOREIGN = 6,     /* no record at all: wrong magic */
    KVANT_STORE_FINGERPRINT = 7, /* another scheme wrote it: model, pipeline, artifact, geometry, rank */
    KVANT_STORE_KEY = 8,         /* whole, and another one: renamed, other kind, other tokens or salt */
    KVANT_STORE_UNREADABLE = 9,  /* the disk, permissions, memory, the store's own structure */
    KVANT_STORE_FULL = 10,       /* a put for which there was no room */
    KVANT_STORE_REASONS = 11
};

/* "absent"; "unknown reason" for an unknown number. Never NULL. */
KVANT_API const char *kvant_store_reason_text(uint32_t reason);

/* Blocks and raw tails are kept apart: a tail of block_tokens tokens has the key of the block that it will
 * be. */
enum { KVANT_STORE_BLOCK = 1, KVANT_STORE_TAIL = 2 };

/* What a record is put under and asked for with. */
typedef struct kvant_store_key {
    uint32_t struct_size;
    uint32_t kind;           /* KVANT_STORE_BLOCK or KVANT_STORE_TAIL */
    uint8_t key[32];         /* the record's own */
    uint8_t fingerprint[32]; /* kvant_plan_fingerprint */
    const void *salt;        /* what the key of block 0 was made with; NULL = none */
    uint64_t salt_bytes;
} kvant_store_key;

enum { KVANT_STORE_PACK_NONE = 0, KVANT_STORE_PACK_ZSTD = 1 };

typedef struct kvant_store_options {
    uint32_t struct_size;
    uint32_t pack;       /* of records that are put from now on: KVANT_STORE_PACK_*; both are read */
    int32_t pack_level;  /* of zstd, 1 to 19; 0 = 1 */
    uint32_t reserved;   /* 0 */
    uint64_t capacity;   /* bytes on disk, at least 1 MiB; 0 = 1 GiB */
    uint64_t record_max; /* bytes of a record, larger ones are neither put nor unpacked; 0 = a quarter of the
                            capacity; never above 4 GiB - 64 KiB */
} kvant_store_options;

/* An embedded database, DIRECTORY/data.mdb, made where it is missing; `directory` itself too, not its
 * parents. The file never grows beyond the capacity. options: NULL = all defaults. A process opens a
 * directory once. Not for network file systems. Errors: IO, NO_SPACE, VERSION, CORRUPT (the database's own
 * structure is damaged: the message says where; remove the directory), UNSUPPORTED (already open in this
 * process), MISMATCH (a store of the other kind). */
KVANT_API kvant_status kvant_store_open_lmdb(const char *directory, const kvant_store_options *options,
                                             kvant_store **store, kvant_diag *diag);

/* One file for each record, DIRECTORY/ab/cd/<key in hex>.block or .tail. */
KVANT_API kvant_status kvant_store_open_directory(const char *directory, const kvant_store_options *options,
                                                  kvant_store **store, kvant_diag *diag);

/* Waits for nobody: no other thread may be in a call. NULL is fine. */
KVANT_API void kvant_store_close(kvant_store *store);

/* Puts record[0, size), whole or not at all; when it returns KVANT_OK the record is on the disk. A record of
 * the same key is replaced. The record is verified first: CORRUPT or VERSION if it is none, MISMATCH if it is
 * not that of `key`. NO_SPACE (counted as full), IO (counted as unreadable), CAPACITY if it is larger than
 * record_max. */
KVANT_API kvant_status kvant_store_put(kvant_store *store, const kvant_store_key *key, const void *record,
                                       size_t size, kvant_diag *diag);

/* Calls use(context, record, size) with the verified bytes, which live during the call and have no particular
 * alignment; returns what `use` returns. KVANT_ERROR_MISSING = a miss: `use` was not called, *reason (may be
 * NULL) says why in one word and the diag in a sentence. A `use` that takes long keeps space from being used
 * again. It may call the store. */
typedef kvant_status kvant_store_use(void *context, const void *record, size_t size);
KVANT_API kvant_status kvant_store_get(kvant_store *store, const kvant_store_key *key, kvant_store_use *use,
                                       void *context, uint32_t *reason, kvant_diag *diag);

/* The same into memory of the caller's; *size is the record's. KVANT_ERROR_CAPACITY if it does not fit: then
 * *size says how much is needed. Whatever is not KVANT_OK leaves the buffer unchanged. */
KVANT_API kvant_status kvant_store_read(kvant_store *store, const kvant_store_key *key, void *buffer,
                                        size_t capacity, size_t *size, uint32_t *reason, kvant_diag *diag);

/* KVANT_OK if something is stored under the key: no promise that it is whole, and no use of it that eviction
 * would see. KVANT_ERROR_MISSING otherwise. Counts nothing. */
KVANT_API kvant_status kvant_store_contains(kvant_store *store, const kvant_store_key *key, kvant_diag *diag);

/* KVANT_ERROR_MISSING if there is none. Only key and kind are looked at. */
KVANT_API kvant_status kvant_store_remove(kvant_store *store, const kvant_store_key *key, kvant_diag *diag);

typedef struct kvant_store_entry {
    uint32_t struct_size;
    uint32_t kind;
    const uint8_t *key; /* [32] */
    uint64_t bytes;     /* as stored, packed ones packed */
} kvant_store_entry;

/* Calls visit for every record, the one used longest ago first, until it returns something else than
 * KVANT_OK, which is then returned. Nothing is verified. Records put or removed meanwhile may be missed or
 * seen. */
KVANT_API kvant_status kvant_store_iterate(kvant_store *store,
                                           kvant_status (*visit)(void *context,
                                                                 const kvant_store_entry *entry),
                                           void *context, kvant_diag *diag);

typedef struct kvant_store_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t records; /* stored now, by whatever process */
    uint64_t bytes;   /* that they take of the capacity */
    uint64_t capacity;
    /* Through this handle: */
    uint64_t hits;
    uint64_t puts; /* that succeeded */
    uint64_t evictions;
    uint64_t reasons[KVANT_STORE_REASONS]; /* by KVANT_STORE_*; [FOUND] = hits */
} kvant_store_stats;

/* The caller sets stats->struct_size. */
KVANT_API kvant_status kvant_store_describe(kvant_store *store, kvant_store_stats *stats, kvant_diag *diag);

/* A kind of the application's own (a server, an object store): functions that keep named bytes. The library
 * packs, verifies and counts above it. A name is a record's key and one more byte, its kind. Every function
 * may be called from many threads at once; each fills the diag on failure. Errors of get: MISSING = absent,
 * all others are misses that count as unreadable. Errors of put: NO_SPACE counts as full. */
enum { KVANT_STORE_NAME_BYTES = 33 };
typedef struct kvant_store_usage {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t records, bytes, capacity, evictions;
} kvant_store_usage;

typedef struct kvant_store_calls {
    uint32_t struct_size;
    uint32_t reserved;
    /* Durable when it returns KVANT_OK; whole or not at all. */
    kvant_status (*put)(void *state, const uint8_t *name, const void *bytes, size_t size, kvant_diag *diag);
    /* Calls use once with the bytes and returns what it returns. */
    kvant_status (*get)(void *state, const uint8_t *name, kvant_store_use *use, void *context,
                        kvant_diag *diag);
    /* The bytes under the name were of use: what eviction goes by. May be NULL. */
    void (*touch)(void *state, const uint8_t *name);
    kvant_status (*contains)(void *state, const uint8_t *name, kvant_diag *diag);
    kvant_status (*remove)(void *state, const uint8_t *name, kvant_diag *diag);
    kvant_status (*iterate)(void *state,
                            kvant_status (*visit)(void *context, const uint8_t *name, uint64_t bytes),
                            void *context, kvant_diag *diag);
    kvant_status (*usage)(void *state, kvant_store_usage *usage, kvant_diag *diag);
    void (*close)(void *state);
} kvant_store_calls;

/* `calls` must outlive the store; `state` is closed with it, and when this fails not. */
KVANT_API kvant_status kvant_store_open_calls(const kvant_store_calls *calls, void *state,
                                              const kvant_store_options *options, kvant_store **store,
                                              kvant_diag *diag);

#ifdef __cplusplus
}
#endif

#endif
