/* A layer with an encoded sequence, for tests of the attention floor, and what double precision says of it.
 *
 *     bed *b = bed_open(&(bed_wish){.key = "kivi", .value = "raw", .tokens = 647});
 *     bed_call *c = bed_call_make(b, 200, 128, 3);     200 tokens, those before 128 as blocks; 3 rows
 *     bed_run(b, &c, 1, &options);
 *     bed_assert_right(b, c, &options);
 *     bed_call_free(c); bed_close(b);
 */
#ifndef KVANT_TEST_ATTEND_BED_H
#define KVANT_TEST_ATTEND_BED_H

#include <kvant/kvant.h>

#include <stdbool.h>

typedef struct bed_wish {
    const char *key, *value; /* codecs, as in [layers], or "kivi bits=4 group=32"; NULL = raw */
    const char *head;        /* further lines of the INI, before [layers] */
    uint32_t tokens;         /* of the sequence; all whole blocks are encoded */
    /* 0 = f16, after RoPE, 2 kv heads, 3 query heads each, keys of 64 and values of 32 channels, blocks of
     * 64. */
    uint32_t dtype, keys, kv_heads, group, key_dim, value_dim, block_tokens;
    const kvant_rope *rope;
    const float *center; /* [kv_heads, key_dim]: put into the plan by hand */
    uint64_t first_position;
    uint64_t seed;
} bed_wish;

typedef struct bed {
    bed_wish wish; /* completed */
    kvant_plan *plan;
    kvant_attention *attention;
    uint32_t blocks, sinks;
    unsigned char *raw[2];     /* [tokens, kv_heads, dim] of the dtype, as the caller has them */
    unsigned char *extents[2]; /* blocks of them, bed_extent_stride apart */
    uint64_t *sizes[2];        /* [blocks] */
    float *exact[2];           /* [tokens, kv_heads, dim], keys after RoPE */
    float *decoded[2];         /* the same of the blocks, as kvant_codec_decode gives them */
    double tolerance[2]; /* of somebody else than the floor who attends on codes; 0 = as the floor does */
} bed;

/* NULL, with the reason in the diag, where a codec needs an artifact or does not take the geometry; any other
 * failure fails the test. */
bed *bed_try_open(const bed_wish *wish, kvant_diag *diag);
bed *bed_open(const bed_wish *wish);
void bed_close(bed *b);

/* After a test changed rows in `raw`; `exact` and `decoded` follow. */
void bed_encode_again(bed *b);

size_t bed_extent_stride(const bed *b, uint32_t side);
uint32_t bed_dim(const bed *b, uint32_t side);

/* One sequence of a call, with memory of its own, for the test to change. */
enum { BED_REFERENCES = 64, BED_RUNS = 16 };
typedef struct bed_call {
    kvant_attention_sequence sequence;
    kvant_reference references[BED_REFERENCES];
    kvant_raw_run runs[BED_RUNS];
    kvant_view run_views[BED_RUNS][2];
    kvant_view queries;
    kvant_mutable_view outputs;
    kvant_token_range *ranges;
    float *query_rows;  /* [rows, q_heads, key_dim] */
    float *output_rows; /* [rows, q_heads, value_dim] */
    float *log_sum_exp;
    uint32_t tokens, rows;
} bed_call;

/* Tokens [0, tokens), of which those before `coded` (whole blocks) are references, sinks and the rest raw
 * runs; `rows` queries at the last positions, causal. */
bed_call *bed_call_make(const bed *b, uint32_t tokens, uint32_t coded, uint32_t rows);
void bed_call_free(bed_call *c);

/* Adds tokens [first, first + count) as one more raw run. */
void bed_call_add_run(const bed *b, bed_call *c, uint32_t first, uint32_t count);

kvant_attention_options bed_options(const bed *b);

/* Outputs and scratch are poisoned first; scratch has exactly the size that the floor asks for, with guards.
 */
kvant_status bed_try_run(const bed *b, bed_call *const *calls, uint32_t count,
                         const kvant_attention_options *options, kvant_diag *diag);
void bed_run(const bed *b, bed_call *const *calls, uint32_t count, const kvant_attention_options *options);

/* Outputs and log-sum-exps against double precision, each row within what kvant.h promises. */
void bed_assert_right(const bed *b, const bed_call *c, const kvant_attention_options *options);

/* Outputs and log-sum-exps, bit for bit. */
void bed_assert_same(const bed_call *a, const bed_call *b);

/* The largest error that bed_assert_right has seen, in units of what is allowed. */
extern double bed_worst;

#endif
