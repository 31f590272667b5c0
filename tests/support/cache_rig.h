/* A cache with a made-up model whose rows follow from a token's id and position, for tests that tell a story
 * through kvant/cache.h and compare two ways to the same end. Calls that must work fail the test.
 *
 *     rig *r = rig_open(&(rig_wish){.text = ini});
 *     kvant_sequence *s = rig_sequence(r);
 *     rig_take(r, s, &(rig_step){.ids = ids, .count = 70, .outputs = outputs});        a step with attention
 *     rig_assert_rows(r, s, ids);             what it reads back, against the codec floor, block by block
 *     rig_assert_outputs(r, ids, 0, 70, 0, outputs);                     against double precision
 *     kvant_sequence_free(s); rig_close(r);
 */
#ifndef KVANT_TEST_CACHE_RIG_H
#define KVANT_TEST_CACHE_RIG_H

#include <kvant/cache.h>

#include <stdbool.h>

enum { RIG_LAYERS_MAX = 8 };

typedef struct rig_wish {
    const char *text;                   /* an INI; NULL = rig_kivi */
    const char *directory;              /* of its artifacts */
    const kvant_layer_geometry *layers; /* NULL = two unlike ones: 2 and 1 kv heads, dims 32/16 and 24/40 */
    uint32_t layer_count;
    uint32_t dtype; /* 0 = F16 */
    uint32_t keys;
    const char *model;   /* NULL = "rig/model@1"; "" = unknown */
    const float *center; /* [kv_heads, key_dim] of layer 0: put into the plan by hand */
    uint64_t bytes;      /* of the pool; 0 = 32 MiB */
    uint32_t threads;
    kvant_loop *loop;
    void *loop_context;
    kvant_store *store;
} rig_wish;

typedef struct rig {
    rig_wish wish;
    kvant_geometry geometry; /* points to `layers` */
    kvant_layer_geometry layers[RIG_LAYERS_MAX];
    kvant_plan *plan;
    kvant_cache *cache;
    uint32_t block_tokens, sinks, recent;
} rig;

/* Blocks of 32, 3 sinks, 20 recent; 2 bits. */
extern const char rig_kivi[];

rig *rig_open(const rig_wish *wish);
void rig_close(rig *r);

/* A plan without a cache, for the same wish. */
kvant_plan *rig_plan(const rig_wish *wish);

/* `count` ids that follow from a seed; for the caller to free. */
uint64_t *rig_ids(uint32_t count, uint64_t seed);

kvant_sequence *rig_sequence(rig *r);

/* How a step's rows lie in the caller's memory. */
enum { RIG_DENSE = 0, RIG_BACKWARDS = 1, RIG_ODD = 2 };

typedef struct rig_step {
    const uint64_t *ids; /* of the step's tokens */
    const uint8_t *tags;
    uint32_t count, tentative;
    uint32_t dropped; /* at commit */
    uint32_t layout;  /* RIG_* */
    bool unknown;     /* the cache is not told the ids */
    float *outputs;   /* rig_outputs floats; NULL = put without attention */
} rig_step;

/* Floats of [layer][token, q_heads, value_dim]. */
size_t rig_outputs(const rig *r, uint32_t count);

/* begin, all layers, commit. */
void rig_take(rig *r, kvant_sequence *s, const rig_step *step);
/* The parts. */
kvant_status rig_begin(kvant_sequence *s, const rig_step *step);
void rig_layers(rig *r, kvant_sequence *s, const rig_step *step);

/* ids in steps of at most `chunk` tokens, without attention; the first `length` are there already. */
void rig_grow(rig *r, kvant_sequence *s, const uint64_t *ids, uint32_t count, uint32_t chunk);

kvant_sequence_info rig_info(const kvant_sequence *s);
kvant_bytes rig_bytes(const kvant_sequence *s);
kvant_cache_report rig_report(const rig *r);

/* What lookup finds: ids[0, count), a first step that ends with them. */
uint64_t rig_found(rig *r, const uint64_t *ids, const uint8_t *tags, uint32_t count, const char *salt);
kvant_match *rig_lookup(rig *r, const uint64_t *ids, const uint8_t *tags, uint32_t count, const char *salt,
                        uint64_t first_step_end);

/* Rows as floats, in poisoned memory; for the caller to free. */
float *rig_read(const rig *r, const kvant_sequence *s, uint32_t layer, uint32_t side, uint64_t first,
                uint32_t count);

/* Rows of the model as the caller hands them over, dense; what: a side, or RIG_QUERY. */
enum { RIG_QUERY = 2 };
void *rig_rows(const rig *r, uint32_t layer, uint32_t what, const uint64_t *ids, uint64_t first,
               uint32_t count);

/* From which position on a layer of a sequence can be read. */
uint64_t rig_readable(const rig *r, const kvant_sequence *s, uint32_t layer);

/* Rows [0, count) as the codec floor says, of which [sinks, coded) are encoded and decoded; ids up to the
 * end of the last block that is. For the caller to free. */
float *rig_expected(const rig *r, uint32_t layer, uint32_t side, const uint64_t *ids, uint32_t count,
                    uint32_t coded);

/* Everything that can be read, against the codec floor's own encoding of the same rows: blocks before
 * tail_first, sinks and tail raw. */
void rig_assert_rows(const rig *r, const kvant_sequence *s, const uint64_t *ids);

/* Outputs of a step over positions [first, first + count), against double precision over what its queries
 * may see: own rows and tail raw, blocks that begin encoded as codes. For sequences that only grew. */
void rig_assert_outputs(const rig *r, const uint64_t *ids, uint32_t first, uint32_t count, uint32_t tentative,
                        const float *outputs);

/* The same for any sequence, with the positions before `coded` as codes. */
void rig_assert_outputs_over(const rig *r, const uint64_t *ids, uint32_t first, uint32_t count,
                             uint32_t coded, const float *outputs);

/* All that can be seen of a sequence: counts, bytes, rows, outputs of one probing query. */
typedef struct rig_picture rig_picture;
rig_picture *rig_look(rig *r, const kvant_sequence *s);
void rig_assert_same(const rig_picture *a, const rig_picture *b);
void rig_picture_free(rig_picture *p);

/* Two sequences show the same. */
void rig_assert_alike(rig *ra, const kvant_sequence *a, rig *rb, const kvant_sequence *b);

/* The sequence shows what it showed, and takes as much of the pool (tables may have room left); frees the
 * picture. */
void rig_assert_still(rig *r, const kvant_sequence *s, rig_picture *picture);

/* kvant_test_view's kin: a dense view. */
kvant_mutable_view rig_view(void *data, uint32_t dtype, uint32_t tokens, uint32_t heads, uint32_t dim);

extern kvant_diag rig_diag;
#define rig_ok(call) rig_ok_at((call), #call, __FILE__, __LINE__)
void rig_ok_at(kvant_status status, const char *call, const char *file, int line);

/* Fails with this status and a message that contains the words. */
#define rig_refused(call, want, words)                                                                       \
    (rig_diag.message[0] = '\0', rig_refused_at((call), (want), (words), #call, __FILE__, __LINE__))
void rig_refused_at(kvant_status status, kvant_status want, const char *words, const char *call,
                    const char *file, int line);

/* ---- Wrong calls --------------------------------------------------------------------------------------- */

/* Two caches of the default wish, a sequence of each, one with `tokens` tokens in it; ids: [tokens + more]. */
typedef struct rig_pair {
    rig *r, *other;
    kvant_sequence *s, *foreign;
    uint64_t *ids;
} rig_pair;
rig_pair rig_pair_open(uint32_t tokens, uint32_t more);
void rig_pair_close(rig_pair *pair);

#endif
