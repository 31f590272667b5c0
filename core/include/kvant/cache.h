/* kvant/cache.h: the cache floor, part of kvant.h: sequences of tokens whose keys and values lie encoded in
 * one pool of bytes, shared between sequences with the same prefix, evicted, stored and loaded again.
 *
 *     kvant_cache_options options = {.struct_size = sizeof options, .bytes = UINT64_C(4) << 30};
 *     kvant_cache_open(plan, &options, &cache, &diag);
 *     kvant_cache_lookup(cache, &prefix, &match, &diag);               // what of the prompt is here already?
 *     kvant_sequence_create_from(match, &sequence, &diag);
 *     kvant_step_begin(sequence, &(kvant_step_options){.struct_size = .., .count = n, .ids = ids}, &diag);
 *     for (uint32_t layer = 0; layer < layers; layer++)                // keys, values, queries of the step
 *         kvant_step_attend(cache, layer, &rows, 1, &attention, &diag);
 *     kvant_step_commit(sequence, n, &diag);
 *
 * docs/host.md tells the life of a token, examples/engine_cache.c is an engine on a page.
 *
 * Positions: a sequence's tokens have positions from 0 on, in the order in which they came; its length is the
 * position of the next one. Lengths and ranges of tokens are in positions everywhere. A dropped token keeps
 * its position.
 *
 * Steps: a sequence grows by steps. kvant_step_begin says how many tokens, and takes every byte that the step
 * can need, so that nothing fails for want of memory afterwards; then every layer is given its keys and
 * values once, in any order; kvant_step_commit publishes. kvant_step_abort, or an error of any kvant_step_
 * function, leaves the sequence as it was before kvant_step_begin, byte for byte, and ends the step; only a
 * second kvant_step_begin in a step is refused and ends nothing.
 *
 * What is encoded when: tokens are raw while they are among the `recent` newest or do not fill a block. At
 * begin, blocks of raw tokens that are all older than the `recent` newest, counting the step's own
 * non-tentative tokens, are encoded, so that the step's queries see them as codes. Blocks that hold rows of
 * the step itself are encoded, by the same rule, when their layer is done. So a query sees the rows of its
 * own step raw, whatever is older as the rule says, and the same rows give the same bytes however they are
 * cut into steps. Encoded bytes never change, are shared, and are never encoded twice.
 *
 * Windows: a layer with a window releases its part of a block once the block lies `window` tokens or more
 * before the first raw token of every sequence that holds it. Nothing brings it back: what would need it is
 * refused.
 *
 * Threads: functions on a sequence that take it const may run on many threads at once; all others need the
 * sequence alone. Different sequences are independent, and everything on a cache, a match and a fork may run
 * at any time on any thread. No lock is held while anything is encoded, decoded, attended, read or written.
 *
 * Memory: `bytes` bounds the pool, which holds extents and raw rows. Tables beside it (token ids, keys,
 * lists: see kvant_bytes) and scratch come from malloc. When the pool is full, blocks that no sequence holds
 * are evicted, those used longest ago first; where that does not do, begin refuses with NO_SPACE.
 *
 * Devices: with options.device the pool lies there, and rows, queries, outputs and log-sum-exps that calls
 * are given are its memory too: views whose data, and pointers that, are device addresses, which the host
 * does not read. The same calls do the same things to the same bytes: extents are equal to the host's, and go
 * through stores from one to the other. What is different:
 *
 *     - Everything is put into the cache's stream, in the order of the calls. Only commit, abort, read,
 *       save, load, lookup from a store and eviction into one wait for it, and begin where the works' lists
 *       must grow or extents have different sizes. Memory that a call was given is used in the stream's
 *       order, and may be given back in it.
 *     - Numbers that are not finite are found by the device: where a pipeline says on_nonfinite = error,
 *       commit refuses with NOT_FINITE, naming layer, side, position, head and channel, and ends the step as
 *       every error does. Where it says saturate, rows are replaced in a copy.
 *     - Sizes of extents are known at commit: until then those of different sizes take their largest.
 *     - Queries stand at consecutive positions and see up to themselves, or the newest of a window; they are
 *       of the geometry's dtype; all heads are attended. Everything else is refused with UNSUPPORTED or
 *       DTYPE.
 *     - kvant_attention_options of a call: `scale` and `soft_cap` alone; `threads` and `loop` of the cache
 *       are not used. Outputs are within tolerance of the host's, not equal bit for bit.
 *     - Beside the pool the device holds lists and scratch of attention, as much as the steps under way need
 *       at once: begin takes them. */
#ifndef KVANT_CACHE_H
#define KVANT_CACHE_H

#include "kvant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Cache --------------------------------------------------------------------------------------------- */

typedef struct kvant_cache kvant_cache;
typedef struct kvant_store kvant_store;   /* stores.h */
typedef struct kvant_device kvant_device; /* device.h */

typedef struct kvant_cache_options {
    uint32_t struct_size;
    uint32_t threads; /* that encode and attend in a step; 0 or 1 = the caller's alone */
    uint64_t bytes;   /* of the pool, reserved at once and touched as it fills */
    kvant_loop *loop; /* as kvant_attention_options; called from any thread that takes a step */
    void *loop_context;
    kvant_store *store; /* NULL = none. Blocks that are evicted are put there first (a put that fails is
                           counted, and the block is gone), and lookups go on there. Outlives the cache */
    kvant_device *device; /* NULL = the pool lies in the host's memory. Else it is the device's, and so are
                             rows, queries, outputs and log-sum-exps of all calls: see above. Outlives the
                             cache */
    void *stream;         /* a CUstream of the device: everything happens in its order */
} kvant_cache_options;

/* Opens the codecs of all layers. The plan may go. Errors: ARGUMENT (less bytes than one block and its raw
 * rows take), MEMORY, and those of kvant_codec_open. A plan whose geometry names no model has no fingerprint:
 * its cache shares blocks by fork only, and has no lookup, save or load. */
KVANT_API kvant_status kvant_cache_open(const kvant_plan *plan, const kvant_cache_options *options,
                                        kvant_cache **cache, kvant_diag *diag);

/* Its sequences and matches are freed before. NULL is fine. */
KVANT_API void kvant_cache_close(kvant_cache *cache);

/* Where bytes are. The first four lie in the pool. */
typedef struct kvant_bytes {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t payload;  /* codes of elements */
    uint64_t metadata; /* scales, minima, norms, positions of outliers */
    uint64_t padding;  /* of extents, inside and up to the pool's unit */
    uint64_t raw;      /* pages of raw rows: tails and sinks, rows that are not filled yet included */
    uint64_t tables;   /* beside the pool: token ids, tags, keys, lists */
    uint64_t total;    /* of these five */
} kvant_bytes;

/* What a sequence of `tokens` tokens takes that only grew, without tentative tokens, and shares nothing.
 * Where extents have one size, least and most are the same, and are what kvant_sequence_bytes says, to the
 * byte; else they count every extent at its smallest and largest. During a step there are, besides, the
 * extents of blocks that the step encodes at their largest size, and one page (block_tokens raw rows of every
 * layer) for each block_tokens tokens that stay raw. Callers set struct_size of both. */
KVANT_API kvant_status kvant_cache_estimate(const kvant_plan *plan, uint64_t tokens, kvant_bytes *least,
                                            kvant_bytes *most, kvant_diag *diag);

typedef struct kvant_cache_report {
    uint32_t struct_size;
    uint32_t sequences;
    kvant_bytes bytes; /* of everything, shared blocks once; struct_size is set for you */
    uint64_t capacity; /* of the pool */
    uint64_t free;     /* of it */
    uint64_t unusable; /* free bytes in holes that are too small for any extent of the plan */
    uint64_t peak;     /* most that was ever taken of the pool */
    uint64_t blocks;   /* that exist */
    uint64_t indexed;  /* that lookup can find */
    uint64_t pinned;   /* of the indexed: held by a sequence or a match */
    uint64_t lookups;
    uint64_t asked_tokens; /* of all lookups */
    uint64_t found_tokens; /* of those, by lookups */
    uint64_t stored_hits;  /* blocks that lookups took from the store */
    uint64_t evictions;    /* blocks */
    uint64_t spilled;      /* of the evicted: put into the store */
    uint64_t spill_failures;
    uint64_t saturated; /* as kvant_encode_report counts, over all blocks encoded */
    uint64_t replaced;  /* likewise, over all rows that committed steps were given */
} kvant_cache_report;

/* The caller sets report->struct_size. */
KVANT_API kvant_status kvant_cache_describe(const kvant_cache *cache, kvant_cache_report *report);

/* Evicts until `bytes` of the pool are free, into the store if there is one. *freed (may be NULL) = bytes
 * that became free. NO_SPACE if what is left is pinned. */
KVANT_API kvant_status kvant_cache_evict(kvant_cache *cache, uint64_t bytes, uint64_t *freed,
                                         kvant_diag *diag);

/* ---- Prefixes ------------------------------------------------------------------------------------------ */

/* The tokens that a sequence will begin with. */
typedef struct kvant_prefix {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const uint64_t *ids;
    const uint8_t *tags; /* NULL = all zero */
    uint64_t count;
    const void *salt; /* sequences of different salts share nothing: a tenant, an adapter. NULL = none */
    uint64_t salt_bytes;
    /* For lookup: the length at the end of the first step that the sequence will take, > 0. A match ends at
     * least max(1, recent) tokens before it, so that this step sees what it would see had the sequence begun
     * at 0 with the same steps. */
    uint64_t first_step_end;
} kvant_prefix;

typedef struct kvant_match kvant_match;

/* Finds the longest prefix whose blocks are here, in memory or in the store, and pins it: nothing of it is
 * evicted before kvant_match_release. Never an error that there is none: a match may have 0 tokens. Ids are
 * compared, not only hashes. A match ends where an extent that the next token would see was released by its
 * layer's window. A store that cannot be read, or lacks room in the pool for what it has, ends the match. */
KVANT_API kvant_status kvant_cache_lookup(kvant_cache *cache, const kvant_prefix *prefix, kvant_match **match,
                                          kvant_diag *diag);
KVANT_API uint64_t kvant_match_tokens(const kvant_match *match);
KVANT_API void kvant_match_release(kvant_match *match); /* NULL is fine */

/* ---- Sequences ----------------------------------------------------------------------------------------- */

typedef struct kvant_sequence kvant_sequence;

/* An empty one. The salt is copied. */
KVANT_API kvant_status kvant_sequence_create(kvant_cache *cache, const void *salt, uint64_t salt_bytes,
                                             kvant_sequence **sequence, kvant_diag *diag);

/* One that begins with what was found; any number may come from one match, which is released by the
 * caller. */
KVANT_API kvant_status kvant_sequence_create_from(const kvant_match *match, kvant_sequence **sequence,
                                                  kvant_diag *diag);

/* Ends a step that is open. NULL is fine. */
KVANT_API void kvant_sequence_free(kvant_sequence *sequence);

/* A second sequence with the same tokens. Nothing is copied but lists; a page of raw rows is copied by
 * whoever writes to it first. ARGUMENT during a step. */
KVANT_API kvant_status kvant_sequence_fork(const kvant_sequence *sequence, kvant_sequence **fork,
                                           kvant_diag *diag);

/* Beam search: sequences[i] becomes what sequences[sources[i]] was, all at once; all of one cache, none in a
 * step. On an error all are as they were. */
KVANT_API kvant_status kvant_sequence_reorder(kvant_sequence *const *sequences, const uint32_t *sources,
                                              uint32_t count, kvant_diag *diag);

/* Empty again, with the same salt. Ends a step that is open. */
KVANT_API void kvant_sequence_reset(kvant_sequence *sequence);

/* Keeps the tokens at positions below `length`; the next token has that position. Exact and without copies:
 * an encoded block is cut by its count of live tokens. From there on the sequence is private (its blocks are
 * neither found by lookups nor stored) unless the cut lies between blocks or among raw tokens. Cut among the
 * sinks, the sequence is raw again. Errors: ARGUMENT (longer than the sequence; during a step),
 * UNSUPPORTED, naming layer and block, where the next token would see what its layer's window released;
 * NO_SPACE or MEMORY among the sinks alone, for a page of raw rows. */
KVANT_API kvant_status kvant_sequence_truncate(kvant_sequence *sequence, uint64_t length, kvant_diag *diag);

/* Drops the tokens at positions [first, first + count): no query sees them from now on. Positions stay. What
 * comes after is private. ARGUMENT: beyond the length, or during a step. */
KVANT_API kvant_status kvant_sequence_drop(kvant_sequence *sequence, uint64_t first, uint64_t count,
                                           kvant_diag *diag);

typedef struct kvant_sequence_info {
    uint32_t struct_size;
    uint32_t in_step;       /* 1 = between begin and commit: the members below are those before begin */
    uint64_t length;        /* position of the next token */
    uint64_t live_tokens;   /* length less what was dropped */
    uint64_t blocks;        /* encoded, whole or cut */
    uint64_t tail_first;    /* position from which on tokens are raw */
    uint64_t private_first; /* blocks with a token from here on are not shared by lookup; UINT64_MAX = none */
} kvant_sequence_info;

/* The caller sets info->struct_size. */
KVANT_API kvant_status kvant_sequence_describe(const kvant_sequence *sequence, kvant_sequence_info *info);

/* What it takes, shared blocks and pages as if they were its own. The caller sets bytes->struct_size. */
KVANT_API kvant_status kvant_sequence_bytes(const kvant_sequence *sequence, kvant_bytes *bytes);

/* The rows that queries see of a layer: rows->tokens tokens from position `first` on, decoded or raw,
 * converted to rows->dtype (F32, F16, BF16); all kv heads. scratch: kvant_cache_read_scratch bytes, aligned
 * to 64; on a device not used, and NULL will do. Before a commit: as before begin. Waits for a device.
 * ARGUMENT names the first token that was dropped or released, or is beyond the length. */
KVANT_API kvant_status kvant_sequence_read(const kvant_sequence *sequence, uint32_t layer, uint32_t side,
                                           uint64_t first, const kvant_mutable_view *rows, void *scratch,
                                           kvant_diag *diag);
KVANT_API size_t kvant_cache_read_scratch(const kvant_cache *cache); /* 0 on a device */

/* ---- Steps --------------------------------------------------------------------------------------------- */

typedef struct kvant_step_options {
    uint32_t struct_size;
    uint32_t count;      /* tokens of the step, 1 to 2^30 */
    uint32_t tentative;  /* how many of them, the newest, may yet be dropped at commit; <= count */
    uint32_t reserved;   /* 0 */
    const uint64_t *ids; /* [count], copied; NULL = unknown: from here on the sequence is private */
    const uint8_t *tags; /* [count], copied; NULL = all zero */
} kvant_step_options;

/* Errors: ARGUMENT, MEMORY, NO_SPACE (of the pool, after evicting what nobody holds: the message says what
 * the step takes and what is free), DEVICE. */
KVANT_API kvant_status kvant_step_begin(kvant_sequence *sequence, const kvant_step_options *options,
                                        kvant_diag *diag);

/* The keys and values of one layer: [count, kv_heads, dim], of the geometry's dtype and side of RoPE. The
 * views are used until the call returns, what they show on a device in the stream's order. NOT_FINITE names
 * layer, side, position, head and channel; on a device commit says it. */
KVANT_API kvant_status kvant_step_put(kvant_sequence *sequence, uint32_t layer, const kvant_view *keys,
                                      const kvant_view *values, kvant_diag *diag);

/* One sequence of a batch. An array of these is walked by its first element's struct_size. */
typedef struct kvant_step_rows {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    kvant_sequence *sequence;
    const kvant_view *keys;
    const kvant_view *values;
    /* [count, q_heads, key_dim]: token t of the step sees what is live up to itself, or the newest `window`
     * positions. */
    const kvant_view *queries;
    const kvant_mutable_view *outputs; /* [count, q_heads, value_dim] */
    float *log_sum_exp;                /* [count, q_heads]; NULL = not asked for. On a device: there */
} kvant_step_rows;

/* The same with the attention of the step's queries, for sequences of one cache, each in a step of its own.
 * Of options, `scale` and `soft_cap` are used; heads: all; threads: the cache's. An error ends the steps of
 * all sequences of the call. */
KVANT_API kvant_status kvant_step_attend(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                                         uint32_t count, const kvant_attention_options *options,
                                         kvant_diag *diag);

/* The three parts of kvant_step_attend, for engines whose threads each attend some heads, or whose layers
 * read the keys and values of another: open a layer, attend it any number of times from any number of threads
 * with kvant_cache_attend, close it. The views must live until it is closed. Several layers may be open. */
KVANT_API kvant_status kvant_step_layer_begin(kvant_sequence *sequence, uint32_t layer,
                                              const kvant_view *keys, const kvant_view *values,
                                              kvant_diag *diag);
KVANT_API kvant_status kvant_step_layer_end(kvant_sequence *sequence, uint32_t layer, kvant_diag *diag);

/* Publishes the first `keep` tokens of the step, count - tentative <= keep <= count; of the others there is
 * no trace. ARGUMENT where a layer was not given. Waits for a device; NOT_FINITE then is of any row of the
 * step, also of one that would not be kept. */
KVANT_API kvant_status kvant_step_commit(kvant_sequence *sequence, uint32_t keep, kvant_diag *diag);

/* Nothing happens where there is no step. */
KVANT_API void kvant_step_abort(kvant_sequence *sequence);

/* ---- Attention ----------------------------------------------------------------------------------------- */

/* One sequence of a call. An array of these is walked by its first element's struct_size. */
typedef struct kvant_attend_part {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const kvant_sequence *sequence;
    const kvant_view *queries;       /* [rows, q_heads, key_dim] */
    const kvant_token_range *ranges; /* [rows], in positions; NULL = the step's own: rows = its count, causal
                                         within the layer's window */
    const kvant_mutable_view *outputs;
    float *log_sum_exp; /* NULL = not asked for */
} kvant_attend_part;

/* Attention of any queries over sequences of one cache; changes nothing. Where the layer is open in a step,
 * the step's rows are seen; where it is not, the sequence as of its last commit. Released tokens of a
 * windowed layer and dropped ones are not seen. scratch: aligned to 64; on a device not used, and NULL will
 * do. Errors as kvant_attention_run; on a device UNSUPPORTED names the part and row whose range is not what
 * kvant_token_range_causal gives for any position and window. The step goes on. */
KVANT_API kvant_status kvant_cache_attend(const kvant_cache *cache, uint32_t layer,
                                          const kvant_attend_part *parts, uint32_t count,
                                          const kvant_attention_options *options, void *scratch,
                                          size_t scratch_size, kvant_diag *diag);

/* Bytes of scratch for that call; 0 if its arguments are wrong, and on a device. */
KVANT_API size_t kvant_cache_attend_scratch(const kvant_cache *cache, uint32_t layer,
                                            const kvant_attend_part *parts, uint32_t count,
                                            const kvant_attention_options *options);

/* ---- Save and load ------------------------------------------------------------------------------------- */

typedef struct kvant_saved {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t tokens; /* the length that can be loaded again; less than the sequence's where it is private */
    uint64_t blocks; /* records put or already there */
    uint64_t tail_tokens;
    uint64_t bytes; /* of records put by this call */
} kvant_saved;

/* Puts the sequence's blocks, and its raw tail as one record, into a store. Blocks that are there already are
 * not written again. *saved (may be NULL) says how much could be: a private part cannot. Errors of the store;
 * ARGUMENT during a step; MISSING without a model. */
KVANT_API kvant_status kvant_sequence_save(const kvant_sequence *sequence, kvant_store *store,
                                           kvant_saved *saved, kvant_diag *diag);

/* The longest beginning of prefix->ids that can be had from memory and store, blocks and raw tail, as a
 * sequence that goes on exactly as the saved one would; first_step_end is not used. A sequence of 0 tokens
 * where there is nothing: ask kvant_sequence_describe for its length. *reason (may be NULL) is
 * KVANT_STORE_FOUND if all of it was there, else why the first missing record was a miss. Errors: MISSING
 * without a model, NO_SPACE (the pool), MEMORY. */
KVANT_API kvant_status kvant_sequence_load(kvant_cache *cache, kvant_store *store, const kvant_prefix *prefix,
                                           kvant_sequence **sequence, uint32_t *reason, kvant_diag *diag);

#ifdef __cplusplus
}
#endif

#endif
