/* The core's own kernels (core/gpu/kernels), under the rules of kvant/plugin_gpu.h: what they are called,
 * what their jobs are. C and CUDA read it.
 *
 *     kvant_core_rows       core_rows_job: rows from one place to another: copied, converted, checked, made
 *                           what a codec gets or what its caller gets back (pipeline/codec_rows.h)
 *     kvant_core_attend     kvant_gpu_item, kvant_gpu_layer: attention over raw runs alone, up to partials;
 *                           references are not looked at
 *     kvant_core_soften     kvant_gpu_item: between score and mix: logits to weights, a partial's largest
 *                           logit and sum
 *     kvant_core_merge      core_merge_job: partials in the order of their slots to output rows
 *
 * A call's `state` is a core_attend_state for attend and soften, else 0. */
#ifndef KVANT_GPU_CORE_KERNELS_H
#define KVANT_GPU_CORE_KERNELS_H

#include <kvant/plugin_gpu.h>

enum {
    CORE_ROWS_THREADS = 128,
    CORE_ROWS_CHUNK = 16, /* tokens of a unit */
    CORE_ATTEND_THREADS = 128,
    CORE_ATTEND_ROWS = 8,        /* query rows that share a load of keys and values */
    CORE_ATTEND_DIM_MOST = 1024, /* of keys and of values */
    CORE_SOFTEN_THREADS = 128,
    CORE_MERGE_THREADS = 256
};

/* ---- Rows ---------------------------------------------------------------------------------------------- */

enum {
    CORE_ROWS_REPLACE = 1u << 0,  /* NaN by 0, infinities by the largest number of from_dtype; counted */
    CORE_ROWS_SUBTRACT = 1u << 1, /* `center`, after a turn */
    CORE_ROWS_ADD = 1u << 2,      /* `center`, before a turn */
    CORE_ROWS_TURN = 1u << 3,     /* rotary pairs, by the angle of the token's position */
    CORE_ROWS_UNTURN = 1u << 4,   /* back */
    CORE_ROWS_SATURATE = 1u << 5 /* what rounds to an infinity of to_dtype becomes its largest number; counted
                                     as status.saturated. Always where dtypes differ or a flag above is set */
};

/* What `job_count` of a call of kvant_core_rows points to: block b of the grid takes the units b, b + grid,
 * .. of jobs * units, unit u % units of job u / units. */
typedef struct core_rows_head {
    uint32_t jobs;
    uint32_t units; /* of the job with most tokens: CORE_ROWS_CHUNK tokens each */
} core_rows_head;

/* What became of a job: {0, 0, UINT64_MAX} before it. */
typedef struct core_rows_status {
    uint64_t replaced;         /* added to */
    uint64_t saturated;        /* added to */
    uint64_t first_not_finite; /* least (token * heads + head) * dim + channel of `from`, before REPLACE */
    uint64_t reserved;
} core_rows_status;

/* Without flags and with one dtype bits are copied as they are. Same numbers as kvant_rows_to_codec and
 * kvant_rows_from_codec: float, one rounding an operation; in the order replace, add, turn, subtract,
 * saturate. What a row that stands in for others holds is counted once. Rows are aligned to nothing, means to
 * 4 bytes, tables of turns to 16. */
typedef struct core_rows_job {
    kvant_gpu_view from; /* [tokens, heads, dim] */
    kvant_gpu_view to;   /* likewise; data = 0: only looked at */
    uint64_t center;     /* float [heads, dim] of the job's heads */
    uint64_t
        turn_bases; /* double [.., pairs, 2], cosine and sine: multiples of 64 from first_position / 64 on */
    uint64_t turn_offsets; /* double [64, pairs, 2]; pipeline/turns.h says how they join */
    uint64_t status;       /* a core_rows_status; 0 = nobody asks */
    uint64_t first_position;
    uint32_t flags;
    uint32_t from_dtype; /* F32, F16, BF16 */
    uint32_t to_dtype;
    uint32_t tokens;
    uint32_t heads;
    uint32_t dim;
    uint32_t stand_in;   /* below `tokens`: its row stands in for all before it, which are not read */
    uint32_t rope_style; /* KVANT_ROPE_* */
    uint32_t rotary_dim;
    float magnitude;
} core_rows_job;

/* ---- Attention ----------------------------------------------------------------------------------------- */

/* kvant_core_attend: an item is a unit of work. Dynamic shared memory of a block: CORE_ATTEND_ROWS * key_dim
 * floats. */
typedef struct core_attend_state {
    uint32_t dtype; /* of queries and raw rows */
    uint32_t kv_heads;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t block_tokens;
    uint32_t reserved;
} core_attend_state;

/* kvant_core_merge: a row is a unit of work, or CORE_MERGE_WARPS rows where count is at most
 * CORE_MERGE_SLICE. A row's partials are cut into slices of max(CORE_MERGE_SLICE, count / CORE_MERGE_WARPS
 * rounded up); a slice's partials are added one after another in the order of their slots, then the slices in
 * theirs. So the numbers depend on the partials and on nothing else. A row that saw nothing becomes zeros. */
enum { CORE_MERGE_WARPS = CORE_MERGE_THREADS / 32, CORE_MERGE_SLICE = 8 };

/* Query rows of one sequence for one kv head: partial i of row r lies at partial + (i * partial_step + r *
 * partial_stride) floats: largest logit, sum, value_dim sums. A row that saw nothing: zeros and -infinity. */
typedef struct core_merge_job {
    uint64_t partial;
    uint64_t partial_step;   /* floats */
    uint64_t partial_stride; /* floats */
    kvant_gpu_view outputs;  /* [positions, q_heads, value_dim] of dtype */
    uint64_t log_sum_exp;    /* float [positions, q_heads]; 0 = not asked for */
    uint32_t count;          /* partials */
    uint32_t positions;
    uint32_t group; /* query heads of the kv head; row = position * group + query head within the group */
    uint32_t kv_head;
    uint32_t q_heads;
    uint32_t value_dim;
    uint32_t dtype;
    uint32_t reserved;
} core_merge_job;

#endif
