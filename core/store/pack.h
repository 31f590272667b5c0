/* From keys and values in memory to records, and back: what `kvant encode` and `kvant decode` do, and what
 * the cache does when a sequence leaves memory. */
#ifndef KVANT_STORE_PACK_H
#define KVANT_STORE_PACK_H

#include "data/blocks.h"
#include "pack_record.h"
#include "record.h"

#include <kvant/kvant.h>

#include <stdbool.h>

/* The codecs of a plan, opened: [layers, 2]; NULL for a side that is not asked for. */
kvant_status kvant_codecs_open(const kvant_plan *plan, bool keys, bool values, kvant_codec ***codecs,
                               kvant_diag *diag);
void kvant_codecs_close(kvant_codec **codecs, uint32_t layers);

/* ---- Pack ---------------------------------------------------------------------------------------------- */

/* One sequence to records. */
typedef struct kvant_packer kvant_packer;

typedef struct kvant_pack_source {
    const kvant_plan *plan;
    kvant_codec *const *codecs; /* [layers, 2], NULL = no such side */
    const kvant_view
        *rows; /* [layers, 2] of all tokens, of the geometry's dtype; unused where there is no codec */
    uint32_t tokens;
    uint32_t threads;          /* 0 = one per CPU */
    const uint64_t *ids;       /* [tokens] */
    const unsigned char *tags; /* [tokens] or NULL */
    const void *salt;
    size_t salt_bytes;
} kvant_pack_source;

/* What the source points to must outlive the packer. KVANT_ERROR_MISSING where the geometry names no
 * model. */
kvant_status kvant_packer_open(const kvant_pack_source *source, kvant_packer **packer, kvant_diag *diag);
void kvant_packer_close(kvant_packer *packer);

const kvant_blocks *kvant_packer_blocks(const kvant_packer *packer);

/* Whole blocks, and one more where tokens are left. */
uint32_t kvant_packer_count(const kvant_packer *packer);

/* The next record; its bytes live until the next call. Not finite numbers are refused by layer, side,
 * position, head and channel, or replaced and counted, as the pipeline says; those of raw rows too. */
kvant_status kvant_packer_next(kvant_packer *packer, const unsigned char **record, size_t *size,
                               kvant_diag *diag);

/* Over all records so far. */
kvant_pack_totals kvant_packer_totals(const kvant_packer *packer);

/* ---- Unpack -------------------------------------------------------------------------------------------- */

/* One layer and side of a verified record to `rows`: [tokens of the record, kv_heads, dim], any strides, F32,
 * F16 or BF16. `extent` is room for kvant_codec_extent_max bytes, aligned to 4096; scratch as the codec asks.
 * The diag's message starts with `what`, a name of the record. */
kvant_status kvant_unpack_view(const kvant_codec *codec, const kvant_record *record, uint32_t layer,
                               uint32_t side, const kvant_mutable_view *rows, void *extent, void *scratch,
                               const char *what, kvant_diag *diag);

/* The same to its place among dense rows [.., kv_heads, dim] of the geometry's dtype; `rows` is the place of
 * the record's first token. */
kvant_status kvant_unpack_rows(const kvant_codec *codec, const kvant_record *record, uint32_t layer,
                               uint32_t side, void *rows, void *extent, void *scratch, const char *what,
                               kvant_diag *diag);

/* Refuses a record that is whole and does not fit the plan: fingerprint, layers, dtype, tokens, sinks. */
kvant_status kvant_unpack_check(const kvant_plan *plan, const kvant_record *record, const char *what,
                                kvant_diag *diag);

#endif
