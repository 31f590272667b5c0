/* One record of rows that lie in memory: what a packer of whole sequences (pack.h) and the public calls
 * (kvant/records.h) have in common. */
#ifndef KVANT_STORE_PACK_RECORD_H
#define KVANT_STORE_PACK_RECORD_H

#include "record.h"

#include <kvant/kvant.h>

enum { KVANT_STAGE_ALIGNMENT = 4096 }; /* what any codec may ask of an extent */

/* Where an extent lies in the staging area, and what encoding it said. */
typedef struct kvant_pack_row {
    size_t at;
    size_t size;
    uint64_t saturated;
    uint64_t replaced;
} kvant_pack_row;

typedef struct kvant_pack_thread {
    void *scratch;
    uint32_t index; /* where it failed; set with the diag */
    kvant_diag diag;
} kvant_pack_thread;

/* Over all records so far. */
typedef struct kvant_pack_totals {
    uint64_t extent_bytes;
    uint64_t raw_bytes;
    uint64_t record_bytes;
    uint64_t saturated;
    uint64_t replaced;
} kvant_pack_totals;

typedef struct kvant_pack_job {
    kvant_codec *const *codecs;    /* [layers, 2] */
    const kvant_view *const *rows; /* [layers, 2] of head.tokens tokens; NULL = absent */
    kvant_record_head head;        /* its key is computed */
    uint32_t on_nonfinite;         /* KVANT_ON_NONFINITE_* */
    const uint64_t *ids;           /* [tokens], as the next two */
    const unsigned char *tags;     /* NULL = zeros */
    const unsigned char *classes;
    const void *salt;
    size_t salt_bytes;

    /* One thread: `stage` is room for the largest extent, and `placed` is not used. More: `stage` is room for
     * all extents, side by side at placed[i].at, so that the bytes do not depend on the number of threads. */
    unsigned char *stage; /* aligned to KVANT_STAGE_ALIGNMENT */
    kvant_pack_row *placed;
    kvant_pack_thread *threads;
    uint32_t thread_count;
} kvant_pack_job;

/* Bytes of a dense row of one token, as the codec's setup says. */
size_t kvant_pack_token_bytes(const kvant_codec *codec);

/* Most bytes of a record of `tokens` tokens; 0 = too large. Codecs that are NULL have no part in it. */
size_t kvant_pack_bound(kvant_codec *const *codecs, uint32_t layers, uint32_t kind, uint32_t tokens,
                        uint32_t sinks);

/* Adds to *totals. The buffer needs no alignment. */
kvant_status kvant_pack_record(kvant_pack_job *job, void *buffer, size_t capacity, size_t *size,
                               kvant_pack_totals *totals, kvant_diag *diag);

#endif
