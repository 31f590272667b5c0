/* The cache floor's naive model: what kvant/cache.h promises, with nothing shared, nothing counted,
 * nothing clever.
 *
 * The model keeps of every sequence the list of its tokens, and knows by position alone which of them are
 * sealed, dropped, private. Rows of keys and values follow from a token's context, a hash over all tokens
 * up to it, so that they are made again whenever they are wanted; blocks go through the codec floor on
 * their own. Who holds which block and page is found by looking at all sequences. cache_machine.h takes
 * random operations on both.
 *
 * A difference ends the program through cache_model_fail. */
#ifndef KVANT_TEST_CACHE_MODEL_H
#define KVANT_TEST_CACHE_MODEL_H

#include <kvant/cache.h>

#include <stdbool.h>

enum {
    MODEL_LAYERS = 2,
    MODEL_HEADS = 2,
    MODEL_Q_HEADS = 4,
    MODEL_KEY_DIM = 16,
    MODEL_TOKENS = 512, /* of a sequence at most, its step included */
    MODEL_BLOCKS = MODEL_TOKENS,
    MODEL_PAGES = 48
};

/* ---- Settings (cache_model_setting.c) ------------------------------------------------------------------ */

/* A pipeline on a small geometry. */
typedef struct model_setting {
    const char *name;
    const char *text; /* INI */
    uint32_t dtype;
    uint32_t value_dim[MODEL_LAYERS];
    uint32_t window[MODEL_LAYERS];
    bool turns;       /* keys turn */
    uint32_t threads; /* of the cache, played by one, in an order of their own; 0 = none */
    uint32_t blocks;  /* the pool has room for about so many blocks with pages of their own */
} model_setting;

extern const model_setting model_settings[];
extern const uint32_t model_setting_count;

kvant_plan *model_setting_plan(const model_setting *setting);

/* ---- What there is ------------------------------------------------------------------------------------- */

typedef struct model_token {
    uint64_t id;
    uint64_t context; /* its rows follow from this */
    uint8_t tag;
} model_token;

typedef struct model_extent {
    unsigned char *bytes; /* NULL = not encoded yet */
    uint64_t size;
} model_extent;

/* block_tokens tokens, sealed. */
typedef struct model_block {
    struct model_block *next; /* of the model's */
    uint64_t first;
    model_token *tokens;
    uint64_t key[2];
    uint64_t parent[2];         /* the key that went into it; zeros: of block 0 */
    struct model_block *before; /* of the indexed: that of the block before */
    bool identified, indexed;
    bool released[MODEL_LAYERS];
    uint64_t used;  /* when its last holder but none left it, in ticks of the model */
    uint32_t pins;  /* found anew by model_count */
    uint32_t marks; /* blocks of the index that it stands before, likewise */
    model_extent extents[MODEL_LAYERS][2];
    uint64_t saturated, replaced;
} model_block;

/* Rows of up to block_tokens tokens of a tail. Only its identity counts: what it holds follows from
 * tokens. */
typedef struct model_page {
    struct model_page *next;
    uint32_t pins;
} model_page;

/* What a sequence is when it is in no step. Block i covers [its first, the next one's first or
 * tail_first). */
typedef struct model_state {
    uint64_t length, tail_first, private_first, live;
    uint32_t block_count, page_count;
    uint32_t passed[MODEL_LAYERS]; /* blocks before this one are behind the window */
    model_block *blocks[MODEL_BLOCKS];
    model_page *pages[MODEL_PAGES];
    model_token tokens[MODEL_TOKENS];
    uint8_t dropped[MODEL_TOKENS];
} model_state;

typedef struct model_sequence {
    kvant_sequence *real; /* NULL = there is none */
    uint32_t salt;
    model_state now; /* as of the last commit */
    /* The step. */
    bool steps;
    uint32_t count, tentative;
    model_state during; /* with the blocks that begin encoded, and the step's tokens beyond `length` */
    bool known;
    bool given[MODEL_LAYERS];
    bool open[MODEL_LAYERS]; /* layer_begin without layer_end */
    void *rows[MODEL_LAYERS][2];
} model_sequence;

typedef struct model_match {
    kvant_match *real;
    uint32_t salt;
    uint64_t tokens_count;
    uint32_t block_count;
    uint32_t passed[MODEL_LAYERS];
    model_block *blocks[MODEL_BLOCKS];
} model_match;

enum { MODEL_SEQUENCES = 8, MODEL_MATCHES = 3 };

typedef struct cache_model {
    const model_setting *setting; /* &own */
    model_setting own;
    kvant_plan *plan;
    kvant_cache *cache;
    kvant_attention *attention[MODEL_LAYERS];
    uint32_t block_tokens, sinks, recent;
    bool saturates;
    uint64_t unit, page_bytes, sinks_bytes, capacity;
    uint64_t extent_max[MODEL_LAYERS][2];
    bool one_size; /* extents have one */
    uint8_t classes[256];
    model_block *blocks;
    model_page *pages;
    uint64_t ticks, nonce;
    model_sequence sequences[MODEL_SEQUENCES];
    model_match matches[MODEL_MATCHES];
    const model_sequence *more; /* holders besides, while sequences are reordered */
    uint32_t more_count;
    uint64_t evictions, lookups, asked, found, saturated, replaced; /* as the report must have them */
    void *scratch;                                                  /* of codecs, attention and reads */
    size_t scratch_bytes;
    uint64_t reads, attends, rows_seen; /* for the curious */
} cache_model;

/* ---- cache_model_state.c ------------------------------------------------------------------------------- */

/* `bytes` of pool; 0 = as the setting says. */
cache_model *cache_model_open(const model_setting *setting, uint64_t bytes);

/* Frees what is left, and sees that nothing leaks. */
void cache_model_close(cache_model *m);

/* The same where the cache was used without the model: sequences and matches are freed, and nothing must
 * be held. */
void cache_model_leave(cache_model *m);

/* Says what differs and where, then ends by what `cache_model_end` is set to, or abort. */
_Noreturn void cache_model_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
extern void (*cache_model_end)(void);
extern void (*cache_model_place)(void); /* says which operation this is */
#define MODEL_FAIL(...) cache_model_fail(__FILE__, __LINE__, __VA_ARGS__)

uint32_t model_dim(const cache_model *m, uint32_t layer, uint32_t side);
uint64_t model_hash(uint64_t a, uint64_t b);

/* Rows [count, heads, dim] of the setting's dtype, as the caller of a step has them. */
void model_rows(const cache_model *m, uint32_t layer, uint32_t side, const model_token *tokens,
                uint32_t count, void *rows);
/* As the cache keeps them raw. */
void model_kept_rows(const cache_model *m, uint32_t layer, uint32_t side, const model_token *tokens,
                     uint32_t count, void *rows);
uint64_t model_row_bytes(const cache_model *m, uint32_t layer, uint32_t side);

/* The next token after `before` (NULL = the first); unknown ones and those of private sequences are like no
 * other. */
model_token model_next(cache_model *m, uint32_t salt, const model_token *before, uint64_t id, uint8_t tag,
                       bool like_others);

/* Encoded once. */
const model_extent *model_encoded(cache_model *m, model_block *block, uint32_t layer, uint32_t side);
uint64_t model_block_end(const cache_model *m, const model_state *s, uint32_t i);

/* Pins of all blocks and pages, children in the index; what nobody can have any more goes. */
void model_count(cache_model *m);

/* ---- Rules (cache_model_rules.c): what calls that succeed do ------------------------------------------- */

void model_create(cache_model *m, model_sequence *s, uint32_t salt);
void model_create_from(cache_model *m, model_sequence *s, const model_match *match);
void model_lookup(cache_model *m, model_match *match, uint32_t salt, const uint64_t *ids, const uint8_t *tags,
                  uint64_t count, uint64_t first_step_end);
void model_release(cache_model *m, model_match *match);
void model_fork(cache_model *m, const model_sequence *s, model_sequence *fork);
void model_reorder(cache_model *m, model_sequence *const *sequences, const uint32_t *sources, uint32_t count);
kvant_status model_truncate(cache_model *m, model_sequence *s, uint64_t length);
void model_drop(cache_model *m, model_sequence *s, uint64_t first, uint64_t count);
void model_reset(cache_model *m, model_sequence *s);
void model_free(cache_model *m, model_sequence *s);
/* s->count, tentative, known are set, the tokens stand in s->during.tokens from s->now.length on. */
void model_begin(cache_model *m, model_sequence *s);
void model_commit(cache_model *m, model_sequence *s, uint32_t keep);
void model_abort(cache_model *m, model_sequence *s);
/* The cache evicted so many blocks more than the model. */
void model_evict(cache_model *m, uint64_t blocks);

/* ---- Comparison (cache_model_check.c) ------------------------------------------------------------------ */

/* Counts and bytes of the cache; `exactly` where no step is open. */
void model_check_cache(cache_model *m);
void model_check_sequence(cache_model *m, const model_sequence *s);
/* Tokens [first, first + count) of a layer and side, converted to a dtype; also where it must be refused. */
void model_check_read(cache_model *m, const model_sequence *s, uint32_t layer, uint32_t side, uint64_t first,
                      uint32_t count, uint32_t dtype);
void model_check_bytes(cache_model *m, const model_sequence *s);

/* Attention by the model's own blocks and rows: of the state, and of the step's `own` rows behind it (NULL
 * = none). / */
typedef struct model_queries {
    uint32_t rows;
    const kvant_view *view;
    const kvant_token_range *ranges;
    const kvant_mutable_view *outputs;
    float *log_sum_exp;
} model_queries;
void model_attend(cache_model *m, const model_state *state, uint32_t layer, void *const own[2],
                  uint32_t own_count, const model_queries *queries, const kvant_attention_options *options);
bool model_same_floats(const float *a, const float *b, size_t count);

#endif
