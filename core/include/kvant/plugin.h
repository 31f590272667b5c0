/* kvant/plugin.h: the plugin ABI. This file is the specification; all that a codec's author must read is
 * here.
 *
 * A codec is a quantization method for one side (keys or values) of one layer. A plugin is a shared object
 * `kvant_<name>.so` that carries one codec and exports one function:
 *
 *     const kvant_plugin *kvant_plugin_query(uint32_t host_abi);
 *
 * It returns static const data and does nothing else. A plugin includes this header and kvant/kit/, links
 * nothing of the core, and leaves every other symbol hidden. Five calls make a codec:
 *
 *     plan    may I do this geometry with these parameters, and how many bytes does it take?     pure
 *     open    fill the state that the host allocated (tables, parameters)                        once
 *     encode  one block of tokens, all heads -> one extent of bytes                              hot
 *     decode  any tokens and heads of one extent -> floats                                       hot
 *     close   forget what `open` made                                                            once
 *
 * Everything else (attention on codes, calibration, GPU kernels, a look at the codes) is an extension, found
 * by name. With the five calls alone a codec already works everywhere: the host decodes tiles and does the
 * rest itself.
 *
 * An extent is the encoded form of block_tokens consecutive tokens of one sequence, one layer, one side, all
 * of the rank's kv heads. It is the widest scope of any statistic that an encoder takes from the data, it
 * says all that a decoder needs besides the state, and once written it never changes.
 *
 * Rules for every call
 *   Threads    [setup] calls for one codec come one at a time, from any thread. [hot] calls come from many
 *              threads at once on the same state, which is const for them. A plugin starts no thread and
 *              keeps no writable global and no thread-local data.
 *   Memory     The host allocates everything: state, extents, scratch, outputs. A plugin keeps no pointer
 *              past the call that got it, except the setup's arrays and strings, which live until `close`.
 *              [hot] calls do not allocate, lock, log or do I/O. Two calls that run at once never share
 *              scratch or output.
 *   Alignment  State, scratch, query state and accumulators are aligned to 64 bytes, extents to
 *              layout.alignment, tensor views to nothing.
 *   Same bytes encode and decode give the same bytes and the same floats on every thread, instruction set and
 *              device, whatever the strides of the views: IEEE + - * / and sqrt, one rounding each, and what
 *              is exact (comparison, integers, bits, rounding to an integer, conversion to nearest even); no
 *              fused multiply-add, no libm. Reductions run in the halving tree of kit/sum.h; a recurrence
 *              (error feedback, a butterfly, a trellis) keeps the order that the reference code states. A
 *              minimum or maximum that is zero is +0. A tie in a selection goes to the lower index. Tables
 *              made in `open` follow the same rules. The host sets rounding to nearest-even and denormals on
 *              around every call. For attention: same plugin, same isa, same arguments, same bits; across
 *              instruction sets and devices within layout.attend_tolerance.
 *   Errors     Status codes of types.h. plan and open fill the diag: `key` = the parameter at fault ("" =
 *              none), `message` = the rule. [hot] calls have no diag: on arguments that keep the rules stated
 *              here and on finite input they do not fail.
 *   Safety     decode, score, mix and inspect may be handed an extent of arbitrary bytes: they neither read
 *              nor write outside what they were given, and they return. What they return then is unspecified.
 *   Growth     Whoever fills a struct that another allocated writes only members that its struct_size covers.
 *   No silent fallback: what cannot be done as asked is refused in plan.
 */
#ifndef KVANT_PLUGIN_H
#define KVANT_PLUGIN_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* major << 16 | minor. The host takes a plugin of its own major version. A higher minor only appends
 * members. */
enum { KVANT_ABI_MAJOR = 1, KVANT_ABI_MINOR = 0, KVANT_ABI = 1 << 16 | 0 };

/* ---- Parameter schema ---------------------------------------------------------------------------------- */

enum {
    KVANT_PARAM_INTEGER = 1, /* value.integer; within [integer_min, integer_max] and, if given, one of
                                integers[] */
    KVANT_PARAM_NUMBER = 2,  /* value.number, finite, within [number_min, number_max] */
    KVANT_PARAM_CHOICE = 3,  /* value.integer = index into choices[] */
    KVANT_PARAM_SWITCH = 4,  /* value.integer = 0 or 1; written yes or no */
    KVANT_PARAM_TABLE = 5    /* value.rows: a section of key = integer lines, every integer within the integer
                                range; keys are unique and hashed sorted. plan refuses a key that it does not
                                know with KVANT_ERROR_UNKNOWN_NAME */
};

enum {
    /* Changes only how attention computes on an extent, never its bytes, its size or what decode gives: not
     * part of the fingerprint. */
    KVANT_PARAM_READING = 1u << 0,
    /* Came after the first release of this format version: part of the fingerprint only when it differs from
     * its default, so that older records stay valid. */
    KVANT_PARAM_LATER = 1u << 1,
    /* What kvant.calibrate/1 learns does not depend on it: an artifact learned with another value fits. */
    KVANT_PARAM_UNLEARNED = 1u << 2
};

/* One parameter. The INI reader, `kvant info`, the documentation and the fingerprint derive from it. An array
 * of these is walked by its first element's struct_size. */
typedef struct kvant_param {
    uint32_t struct_size;
    uint32_t type;
    uint32_t flags;
    uint32_t choice_count;  /* CHOICE: entries of choices[] */
    uint32_t integer_count; /* INTEGER: entries of integers[]; 0 = the whole range */
    uint32_t reserved;
    const char *name; /* [a-z][a-z0-9_]{0,31}; not a word that the pipeline keeps: "plugin" */
    const char *unit; /* "bits", "tokens", "channels"; "" = none */
    const char *help; /* one line */
    const char *const *choices;
    const int64_t *integers; /* ascending */
    int64_t integer_min;
    int64_t integer_max;
    int64_t integer_default; /* INTEGER, CHOICE (an index), SWITCH */
    double number_min;
    double number_max;
    double number_default;
} kvant_param;

/* A line of a TABLE. Frozen. */
typedef struct kvant_table_row {
    const char *key;
    int64_t value;
} kvant_table_row;

/* The resolved value of one parameter, in the order of the schema. Frozen. */
typedef struct kvant_value {
    int64_t integer;
    double number;
    const kvant_table_row *rows; /* TABLE; in the order of the text; NULL when not given */
    uint32_t row_count;
    uint32_t given; /* 1 = the pipeline says it, 0 = the default */
} kvant_value;

/* ---- Descriptor ---------------------------------------------------------------------------------------- */

enum { KVANT_SIDES_KEY = 1u << 0, KVANT_SIDES_VALUE = 1u << 1, KVANT_SIDES_BOTH = 3u };
enum {
    KVANT_DTYPES_F32 = 1u << KVANT_DTYPE_F32,
    KVANT_DTYPES_F16 = 1u << KVANT_DTYPE_F16,
    KVANT_DTYPES_BF16 = 1u << KVANT_DTYPE_BF16,
    KVANT_DTYPES_ALL = 14u
};

/* What the host must know how to provide. A host refuses a plugin with a bit it does not know. Zero asks
 * nothing. */
enum {
    KVANT_REQUIRES_TAGS = 1u << 0 /* encode needs the class of every token (layout.tag_class). A plugin
                                     without this bit leaves tag_class all zero */
};

/* What a host may use and may ignore. Zero promises nothing. (None is defined yet.) */

typedef struct kvant_descriptor {
    uint32_t struct_size;
    uint32_t format_id;      /* four printable ASCII characters, first in the low byte: names the byte
                                format */
    uint32_t format_version; /* of the bytes; has nothing to do with the ABI or the plugin's own version */
    uint32_t sides;          /* KVANT_SIDES_* */
    uint32_t dtypes;         /* KVANT_DTYPES_*: element types of the rows that encode takes */
    uint32_t requires_bits;  /* KVANT_REQUIRES_* */
    uint32_t offers_bits;    /* optional half; 0 */
    /* Every head_dim in [min, max] that is a multiple of `multiple` can be planned for some parameters; plan
     * has the last word. */
    uint32_t head_dim_min;
    uint32_t head_dim_max;
    uint32_t head_dim_multiple;
    uint32_t param_count;
    uint32_t reserved;
    const char *name;       /* [a-z][a-z0-9_]{0,31}; the file is kvant_<name>.so */
    const char *version;    /* of the plugin, "1.0.0" */
    const char *title;      /* "KIVI: asymmetric 2-bit quantization" */
    const char *paper;      /* "arXiv 2402.02750, sections 3.2 and 3.3"; "" = none */
    const char *license;    /* SPDX */
    const char *deviations; /* where and why it differs from the paper or its code; "" = nowhere */
    const kvant_param *params;
} kvant_descriptor;

/* ---- Setup and layout ---------------------------------------------------------------------------------- */

/* Instruction sets, each including those before it of its family. SCALAR is the plugin's reference code,
 * which is normative. A plugin uses its best code at or below setup.isa and says which in layout.isa. A state
 * is not moved between open and close. */
enum {
    KVANT_ISA_SCALAR = 0,
    KVANT_ISA_X86_64_V2 = 2,
    KVANT_ISA_X86_64_V3 = 3, /* AVX2, FMA, F16C */
    KVANT_ISA_X86_64_V4 = 4, /* AVX-512 F BW CD DQ VL and VNNI */
    KVANT_ISA_AARCH64 = 32   /* NEON */
};

/* What a codec is planned and opened for: one layer, one side. Pointers stay valid until `close`. */
typedef struct kvant_setup {
    uint32_t struct_size;
    uint32_t side;  /* KVANT_SIDE_* */
    uint32_t layer; /* from 0 */
    uint32_t layer_count;
    uint32_t dtype; /* of the rows that encode gets, also where the host turned or centred them: F32, F16 or
                       BF16 */
    uint32_t block_tokens;
    uint32_t head_dim; /* of this side */
    uint32_t kv_heads; /* of this rank; every extent holds all of them */
    uint32_t first_kv_head;
    uint32_t total_kv_heads;
    uint32_t q_heads;
    uint32_t isa;         /* highest that may be used */
    uint32_t value_count; /* = descriptor.param_count */
    uint32_t tensor_count;
    const kvant_rope *rope;    /* keys: how they turn; NULL = they do not (never style NONE). Values: NULL */
    const kvant_value *values; /* one per parameter, checked against the schema */
    const kvant_array *tensors; /* what calibration learned for this layer and side; names without prefix;
                                   sorted by name. 0 of them where the pipeline has no artifact or it has none
                                   for this row. They cover the heads of all ranks (total_kv_heads) in order;
                                   a rank reads its own from first_kv_head on. Another count is
                                   KVANT_ERROR_MISMATCH in plan or open */
} kvant_setup;

enum {
    /* Keys are stored before RoPE: encode gets unturned keys, decode gives unturned keys, and score is handed
     * the cosines and sines to turn by. The host turns rows where the caller's side of RoPE differs. Without
     * effect where setup.rope is NULL. */
    KVANT_LAYOUT_KEYS_BEFORE_ROPE = 1u << 0,
    /* decode into setup.dtype gives the very bits that encode got. */
    KVANT_LAYOUT_LOSSLESS = 1u << 1,
    /* kvant.attend/1 serves this setup. Unset: the host decodes tiles, whatever extension() answers. */
    KVANT_LAYOUT_ATTEND = 1u << 2
};

/* What plan answers. The host zeroes it and sets struct_size; plan fills it.
 *
 * An extent takes size_min + k * size_step bytes, 0 <= k <= size_steps; encode chooses k. size_steps = 0
 * where all extents have one size. A size need not be a multiple of the alignment, and nobody touches bytes
 * beyond it. The bits of an extent with step k are
 *     payload_bits  + k * payload_bits_step     codes of real elements; an entropy coder's steps, used or not
 *     metadata_bits + k * metadata_bits_step    scales, minima, norms, indices, outlier values and positions
 * and what is left of its bytes is padding, which is zero.
 *
 * Only isa, the scratch sizes and what concerns attention may depend on setup.isa or on a READING
 * parameter. */
typedef struct kvant_layout {
    uint32_t struct_size;
    uint32_t flags;          /* KVANT_LAYOUT_* */
    uint32_t alignment;      /* of an extent: a power of two, 1 to 4096 */
    uint32_t block_multiple; /* block_tokens must be a multiple of this; >= 1. Filled even when plan refuses
                                setup.block_tokens for this very rule (KVANT_ERROR_BLOCK_TOKENS; any other
                                limit on block_tokens is KVANT_ERROR_GEOMETRY) */
    uint32_t isa;            /* the code that open will choose */
    uint32_t mix_width;      /* values with KVANT_LAYOUT_ATTEND: floats of one accumulator row; else 0 */
    uint64_t size_min;       /* bytes, > 0 */
    uint64_t size_step;      /* 0 when size_steps is 0 */
    uint64_t size_steps;
    uint64_t payload_bits;
    uint64_t metadata_bits;
    uint64_t payload_bits_step;
    uint64_t metadata_bits_step;
    uint64_t state_bytes;           /* 0 is allowed */
    uint64_t scratch_bytes;         /* for one encode, decode or inspect */
    uint64_t attend_scratch_bytes;  /* for one query, score, mix or finish, plus, for each of its rows, */
    uint64_t attend_scratch_row;    /*   this many: heads * rows of them */
    uint64_t query_state_bytes;     /* of one query row, a multiple of 64 */
    double attend_tolerance;        /* largest L2 norm of the difference of a row's logits (of its mix) from
                                       decode-then-multiply in double precision, over the L2 norm of the same
                                       sums taken of absolute products, on whole extents that encode wrote;
                                       from a proof or a measurement that the plugin's README states */
    uint8_t tag_class[256];         /* the class of each tag: tags of one class are alike to this codec. All
                                       zero where tags do not matter */
} kvant_layout;

/* ---- Hot calls ----------------------------------------------------------------------------------------- */

/* A look at an extent: where its bytes lie and which of its tokens live. A token outside the live range may
 * be read as bytes and is never read into a sum. Frozen. */
typedef struct kvant_extent {
    const void *bytes;
    uint64_t size;           /* as encode chose it; for arbitrary bytes: some size of the layout */
    uint64_t first_position; /* position of token 0 */
    uint32_t live_first;     /* first live token */
    uint32_t live_count;     /* live_first + live_count <= block_tokens */
} kvant_extent;

typedef struct kvant_encode_args {
    uint32_t struct_size;
    uint32_t reserved;
    const kvant_view *rows;  /* [block_tokens, kv_heads, head_dim] of setup.dtype; finite; never overlaps the
                                extent. Where the host keeps a token raw, its row is a copy of another row of
                                the block, and its class that row's */
    const uint8_t *classes;  /* [block_tokens], values of tag_class; NULL without KVANT_REQUIRES_TAGS */
    uint64_t first_position; /* of token 0; the tokens are consecutive */
    void *extent;            /* room for the largest size; contents undefined */
    void *scratch;
    /* Results. What was written decodes to finite F32 numbers. */
    uint64_t size;      /* the size used; every byte of it is written, none beyond */
    uint64_t saturated; /* elements or metadata whose value left the format's range and was set to its end;
                           what the method clips on purpose does not count */
} kvant_encode_args;

typedef struct kvant_decode_args {
    uint32_t struct_size;
    uint32_t first_token;
    uint32_t first_head;
    uint32_t reserved;
    const kvant_extent *extent;     /* the live range is ignored: any token may be asked for */
    const kvant_mutable_view *rows; /* [tokens, heads, head_dim], any of F32, F16, BF16 (rounded once, to
                                       nearest even, from the F32 result; a finite result beyond the type's
                                       range becomes its largest number); token 0 of it is first_token.
                                       Nothing else is written */
    void *scratch;
} kvant_decode_args;

/* ---- The plugin ---------------------------------------------------------------------------------------- */

typedef struct kvant_plugin {
    uint32_t struct_size;
    uint32_t abi; /* KVANT_ABI that the plugin was compiled with */
    const kvant_descriptor *descriptor;

    /* [setup, also from many threads at once] Pure: same setup, same answer; no side effects; callable
     * without open. Accepts or refuses geometry and parameters and fills the layout. Accepts a missing
     * artifact where nothing in the layout depends on it; otherwise refuses with KVANT_ERROR_MISSING and
     * still fills flags, alignment and block_multiple, on which calibration runs. */
    kvant_status (*plan)(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag);

    /* [setup] Fills `state`, layout.state_bytes zeroed bytes. `layout` is what plan said for this setup. On
     * failure the host frees the state and does not call close. Refuses a missing or unfit artifact, naming
     * the tensor. */
    kvant_status (*open)(const kvant_setup *setup, const kvant_layout *layout, void *state, kvant_diag *diag);

    /* [setup] Releases what open acquired beyond the state, which is usually nothing. The host then frees the
     * state. */
    void (*close)(void *state);

    /* [hot] One whole block to one extent. */
    kvant_status (*encode)(const void *state, kvant_encode_args *args);

    /* [hot] Any range of tokens and heads of one extent to rows. */
    kvant_status (*decode)(const void *state, const kvant_decode_args *args);

    /* [setup] The extension with this id, static const data, or NULL. NULL instead of the function = none at
     * all. */
    const void *(*extension)(const char *id);
} kvant_plugin;

typedef const kvant_plugin *kvant_plugin_query_fn(uint32_t host_abi);

/* ---- Extension kvant.attend/1: attention on codes ------------------------------------------------------ */

/* For one layer the host calls, per step, `query` once for the key codec; then, over runs of extents, `score`
 * of the key codec, its own softmax, `mix` of the value codec; and `finish` once. Masks, softmax, windows,
 * soft caps and dropped tokens are the host's: a codec sees live ranges, never a mask.
 *
 * A call serves the heads [first_head, first_head + heads) of the extents and `rows` query rows for each of
 * them (the query heads of the group, times the positions of a step). Row arrays are head-major: row r of
 * head h is row (h - first_head) * rows + r of the array. Runs exist so that a codec can prefetch the next
 * extent and unpack codes once for all rows. The result of a run is that of its extents one call at a time,
 * in order: mix adds each extent's contribution to the accumulator before the next. Nor does a row depend on
 * which other rows, heads or extents share its call. Accumulators start as zeros from the host;
 * accumulator_stride is a multiple of 16 floats. */
#define KVANT_EXT_ATTEND "kvant.attend/1"

typedef struct kvant_query_args {
    uint32_t struct_size;
    uint32_t first_head;
    uint32_t heads;
    uint32_t rows;
    const float *queries;      /* [heads * rows, head_dim], stride query_stride floats; after RoPE; logit
                                  scale in */
    uint64_t query_stride;
    void *query_state;         /* [heads * rows] of layout.query_state_bytes, laid out as the codec likes */
    void *scratch;
} kvant_query_args;

typedef struct kvant_score_args {
    uint32_t struct_size;
    uint32_t first_head;
    uint32_t heads;
    uint32_t rows;
    const void *query_state; /* as `query` wrote it for the same heads and rows */
    const kvant_extent *extents;
    uint32_t extent_count;
    uint32_t offset_count;   /* of the offset tables: block_tokens */
    /* Only for KVANT_LAYOUT_KEYS_BEFORE_ROPE, else NULL. A key at position first_position + t turns by the
     * angle of the extent's first position plus that of the offset t; cos and sin of a pair are two floats
     * side by side. Both are NULL where setup.rope is NULL. */
    const float *first_turns;  /* [extent_count, rotary_dim / 2, 2]; rope.magnitude is in these */
    const float *offset_turns; /* [offset_count, rotary_dim / 2, 2]; and not in these */
    float *logits;             /* [heads * rows, extent_count * block_tokens], stride logit_stride floats:
                                  written at live tokens, untouched elsewhere */
    uint64_t logit_stride;
    void *scratch;
} kvant_score_args;

typedef struct kvant_mix_args {
    uint32_t struct_size;
    uint32_t first_head;
    uint32_t heads;
    uint32_t rows;
    const kvant_extent *extents;
    uint32_t extent_count;
    uint32_t reserved;
    const float *weights;  /* [heads * rows, extent_count * block_tokens], stride weight_stride floats, in [0,
                              1] up to rounding; 0 where a row's own mask hides a live token; undefined at
                              tokens that do not live */
    uint64_t weight_stride;
    float *accumulators;   /* [heads * rows, layout.mix_width], stride accumulator_stride floats: weights
                              times values is added. The host may scale and add rows of accumulators in
                              between: the map from accumulator to output is linear */
    uint64_t accumulator_stride;
    void *scratch;
} kvant_mix_args;

typedef struct kvant_finish_args {
    uint32_t struct_size;
    uint32_t first_head;
    uint32_t heads;
    uint32_t rows;
    const float *accumulators;
    uint64_t accumulator_stride;
    float *outputs; /* [heads * rows, head_dim], stride output_stride floats; written */
    uint64_t output_stride;
    void *scratch;
} kvant_finish_args;

typedef struct kvant_attend {
    uint32_t struct_size;
    uint32_t reserved;
    /* query and score are NULL where the codec does not take keys, mix and finish where it does not take
     * values. */
    kvant_status (*query)(const void *state, const kvant_query_args *args);   /* [hot] keys */
    kvant_status (*score)(const void *state, const kvant_score_args *args);   /* [hot] keys */
    kvant_status (*mix)(const void *state, const kvant_mix_args *args);       /* [hot] values */
    kvant_status (*finish)(const void *state, const kvant_finish_args *args); /* [hot] values */
} kvant_attend;

/* ---- Extension kvant.calibrate/1: learning an artifact, offline ---------------------------------------- */

/* One session learns for one codec of a pipeline, on all layers and sides that use it. Sessions may allocate,
 * through their own means, and take their time; they are driven from one thread. Same samples in the same
 * order, same tensors, to the bit. */
#define KVANT_EXT_CALIBRATE "kvant.calibrate/1"

/* One text's rows of one layer. Absent views are NULL. */
typedef struct kvant_sample {
    uint32_t struct_size;
    uint32_t layer;
    const kvant_view *keys;         /* [tokens, kv_heads, key_dim], as encode will get them: on the codec's
                                       side of RoPE, centred where the pipeline centres */
    const kvant_view *values;       /* [tokens, kv_heads, value_dim] */
    const kvant_view *queries;      /* [query tokens, q_heads, key_dim], after RoPE, logit scale not in */
    const uint8_t *tags;            /* [tokens] or NULL */
    /* What the dump has on this layer, by name: "key_squared_gradient" [tokens, kv_heads, key_dim],
     * "value_squared_gradient" [tokens, kv_heads, value_dim], "output_projection" [model_dim, q_heads,
     * value_dim]. */
    const kvant_array *importance;
    uint32_t importance_count;
    uint32_t sinks;                 /* first tokens that stay raw: not to be learned from */
    uint64_t first_position;
    uint64_t query_position;        /* of query row 0 */
    double logit_scale;
    double soft_cap;                /* 0 = none */
    uint32_t text;                  /* number of the text: rows of different texts do not attend to one
                                       another */
    uint32_t window;                /* of the layer; 0 = all */
} kvant_sample;

typedef void kvant_tensor_sink(void *context, uint32_t layer, uint32_t side, const kvant_array *tensor);

typedef struct kvant_calibrate {
    uint32_t struct_size;
    uint32_t reserved;
    /* setups: every row of the pipeline that uses this codec, without tensors, with all heads (first_kv_head
     * 0, kv_heads = total_kv_heads). They and all they point to live until free. */
    kvant_status (*begin)(const kvant_setup *const *setups, uint32_t setup_count, void **session,
                          kvant_diag *diag);
    /* Layer by layer, ascending, and within a layer text by text. */
    kvant_status (*feed)(void *session, const kvant_sample *sample, kvant_diag *diag);
    /* 1 = hand the same samples in again in the same order (two-pass methods), 0 = enough. The host ends a
     * session that asks for a 65th pass. */
    kvant_status (*again)(void *session, uint32_t *again, kvant_diag *diag);
    /* Calls sink once per tensor; the tensor is the host's to copy during the call. Names are
     * [a-z][a-z0-9_]*; "center" on keys is the host's own. Refuses too little data. */
    kvant_status (*end)(void *session, kvant_tensor_sink *sink, void *context, kvant_diag *diag);
    void (*free)(void *session); /* after end, or instead of it */
} kvant_calibrate;

/* ---- Extension kvant.inspect/1: a look at the codes ---------------------------------------------------- */

/* Shows one extent as named arrays: "codes", "scale", "min", "zero", "outlier_value", ... For golden tests,
 * `kvant inspect` and teaching; not fast. Codes come one per element in the order [token, head, channel],
 * whatever the byte map; metadata in the order of its groups, which the plugin's README states. */
#define KVANT_EXT_INSPECT "kvant.inspect/1"

typedef struct kvant_inspect {
    uint32_t struct_size;
    uint32_t array_count; /* an upper bound over all layouts */
    /* [hot] Describes array `index` of an extent: name (static), dtype, shape, bytes; data NULL. An array
     * that this layout or extent does not have: rank 0 and bytes 0. On arbitrary bytes too, shape and bytes
     * are bounded by the largest that the layout allows. */
    kvant_status (*describe)(const void *state, const kvant_extent *extent, uint32_t index,
                             kvant_array *array);
    /* [hot] Writes its contents, `bytes` as described for the same extent. scratch: layout.scratch_bytes. */
    kvant_status (*read)(const void *state, const kvant_extent *extent, uint32_t index, void *data,
                         void *scratch);
} kvant_inspect;

/* ---- Reserved ------------------------------------------------------------------------------------------ */

/* A side number 2 names a latent that is scored and mixed; "kvant.shrink/1" re-encodes a sealed extent into a
 * smaller new one. Plugins may not use these names for anything else. */

#ifdef __cplusplus
}
#endif

/* Extension kvant.gpu/1: kernels. */
#include "plugin_gpu.h"

#endif
