/* kvant/types.h: the words that plugins, the library and applications share.
 *
 * Scalars, data types, tensor views, status codes, diagnostics and the geometry of a model. Plain data only:
 * no inline functions, no bit-fields, nothing that a binding to another language would have to write again.
 * Compiles as C11 and as C++17.
 *
 * Conventions that hold everywhere:
 *   - Counts are uint32_t, byte sizes uint64_t or size_t, byte strides int64_t. Token positions are uint64_t.
 *   - Every struct that crosses a border starts with `uint32_t struct_size`: whoever allocates it sets
 *     `x.struct_size = sizeof x`. A reader uses a member only if struct_size covers it; members are only ever
 *     appended. Structs marked "frozen" stand in arrays and never change within an ABI major version.
 *   - Strings are UTF-8 and end with NUL. Memory belongs to whoever allocated it unless a comment says
 *     otherwise.
 */
#ifndef KVANT_TYPES_H
#define KVANT_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status -------------------------------------------------------------------------------------------- */

/* Zero is success, negative numbers are errors. Numbers are pinned: a released one never changes its
 * meaning. */
typedef int32_t kvant_status;

enum {
    KVANT_OK = 0,

    /* How the call was made. */
    KVANT_ERROR_ARGUMENT = -1,    /* an argument breaks the rule that the declaration states */
    KVANT_ERROR_UNSUPPORTED = -2, /* understood, and this build, codec or device cannot do it */
    KVANT_ERROR_MEMORY = -3,      /* an allocation failed */
    KVANT_ERROR_CAPACITY = -4,    /* the caller's buffer is too small */

    /* Parameters and pipelines. */
    KVANT_ERROR_SYNTAX = -10,       /* a text that does not follow the grammar */
    KVANT_ERROR_UNKNOWN_NAME = -11, /* a section, key, codec, parameter or choice that does not exist */
    KVANT_ERROR_DUPLICATE = -12,    /* said twice */
    KVANT_ERROR_VALUE = -13,        /* a value of the wrong type or out of its range */
    KVANT_ERROR_CONFLICT = -14,     /* values that are right one by one and wrong together */

    /* Shapes. */
    KVANT_ERROR_GEOMETRY = -20,     /* heads, dims, layers or RoPE that the codec or the pipeline cannot
                                       take */
    KVANT_ERROR_BLOCK_TOKENS = -21, /* block_tokens is not a multiple of what the codec needs */
    KVANT_ERROR_DTYPE = -22,        /* a data type that the codec does not take */

    /* Data. */
    KVANT_ERROR_NOT_FINITE = -30, /* NaN or infinity where a finite number must be */
    KVANT_ERROR_CORRUPT = -31,    /* bytes that break their own format */
    KVANT_ERROR_VERSION = -32,    /* a format version that this build does not read */
    KVANT_ERROR_MISMATCH = -33,   /* right in itself, and made for something else */
    KVANT_ERROR_MISSING = -34,    /* a tensor, artifact or record that is not there */

    /* Plugins. */
    KVANT_ERROR_PLUGIN_NOT_FOUND = -40,
    KVANT_ERROR_PLUGIN_REFUSED = -41, /* the file is not acceptable: path, permissions, type, or the loader's
                                         word */
    KVANT_ERROR_PLUGIN_ABI = -42,     /* made for another ABI */
    KVANT_ERROR_PLUGIN_BROKEN = -43,  /* loads, and breaks a promise of plugin.h */

    /* The system. */
    KVANT_ERROR_IO = -50,
    KVANT_ERROR_NO_SPACE = -51,
    KVANT_ERROR_DEVICE = -60
};

/* What went wrong, for a person. Setup calls take one (NULL is allowed) and fill it on failure; on success it
 * is left alone. `message` is one line that says place and rule, and for a plugin search one more line per
 * path tried. */
typedef struct kvant_diag {
    uint32_t struct_size;
    int32_t line;       /* line in `file`, from 1; 0 = no line */
    char file[512];     /* the INI, dump or plugin file; "" = none */
    char key[64];       /* the parameter or key at fault; "" = none */
    char message[2048]; /* without trailing newline */
} kvant_diag;

/* ---- Scalars and tensors ------------------------------------------------------------------------------- */

/* Data types. Keys, values and queries are F32, F16 or BF16; the others occur in artifacts and inspected
 * arrays. */
enum {
    KVANT_DTYPE_NONE = 0,
    KVANT_DTYPE_F32 = 1,
    KVANT_DTYPE_F16 = 2,
    KVANT_DTYPE_BF16 = 3,
    KVANT_DTYPE_F64 = 4,
    KVANT_DTYPE_F8_E4M3 = 5,
    KVANT_DTYPE_F8_E5M2 = 6,
    KVANT_DTYPE_U8 = 7,
    KVANT_DTYPE_I8 = 8,
    KVANT_DTYPE_U16 = 9,
    KVANT_DTYPE_I16 = 10,
    KVANT_DTYPE_U32 = 11,
    KVANT_DTYPE_I32 = 12,
    KVANT_DTYPE_U64 = 13,
    KVANT_DTYPE_I64 = 14,
    KVANT_DTYPE_BOOL = 15,
    KVANT_DTYPE_F8_E8M0 = 16
};

/* Which tensor of a layer. The number 2 is kept for a latent that is scored and mixed (MLA). */
enum { KVANT_SIDE_KEY = 0, KVANT_SIDE_VALUE = 1 };

/* Rows of keys, values or queries, read only: element (token, head, channel) lies at
 *     (const char *)data + token*token_stride + head*head_stride + channel*channel_stride.
 * Strides are bytes, may be negative or zero, and need not be multiples of the element size: readers may not
 * assume that elements are aligned. */
typedef struct kvant_view {
    uint32_t struct_size;
    uint32_t dtype; /* F32, F16 or BF16 */
    const void *data;
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t reserved; /* 0 */
    int64_t token_stride;
    int64_t head_stride;
    int64_t channel_stride;
} kvant_view;

/* The same, to be written. */
typedef struct kvant_mutable_view {
    uint32_t struct_size;
    uint32_t dtype;
    void *data;
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t reserved;
    int64_t token_stride;
    int64_t head_stride;
    int64_t channel_stride;
} kvant_mutable_view;

/* A dense, C-ordered array with a name: what an artifact holds and what an inspector shows. Frozen. */
enum { KVANT_RANK_MAX = 8 };
typedef struct kvant_array {
    const char *name;
    const void *data; /* NULL in a description without contents; alignment of the element is not promised */
    uint64_t shape[KVANT_RANK_MAX];
    uint64_t bytes;
    uint32_t dtype;
    uint32_t rank; /* 0 = one scalar */
} kvant_array;

/* ---- Geometry ------------------------------------------------------------------------------------------ */

/* How a rotary pair is laid out: NEOX pairs channel i with i + rotary_dim/2, GPTJ pairs 2i with 2i+1. */
enum { KVANT_ROPE_NONE = 0, KVANT_ROPE_NEOX = 1, KVANT_ROPE_GPTJ = 2 };

/* Rotary position embedding as data. Pair i of a row at position p turns by the angle p *
 * inverse_frequency[i]:
 *     (x, y) -> (x cos a - y sin a, y cos a + x sin a), each times `magnitude`.
 * Channels from rotary_dim on do not turn. Linear, YaRN or Llama-3 scaling is a matter of the numbers in the
 * table; a scaling that changes with the length of the sequence cannot be said here and is refused where it
 * matters. */
typedef struct kvant_rope {
    uint32_t struct_size;
    uint32_t style;      /* KVANT_ROPE_*; NONE = keys do not turn, all else is ignored */
    uint32_t rotary_dim; /* even, at most head_dim */
    uint32_t reserved;
    double magnitude;                /* 1 unless the model scales (YaRN's mscale) */
    const double *inverse_frequency; /* [rotary_dim / 2] */
} kvant_rope;

/* One layer that stores keys and values of its own. An array of these is walked by its first element's
 * struct_size. On a tensor-parallel rank kv_heads and q_heads count the rank's own heads, first_kv_head is
 * the number of the first of them and total_kv_heads counts all ranks'. */
typedef struct kvant_layer_geometry {
    uint32_t struct_size;
    uint32_t kv_heads;
    uint32_t q_heads; /* a multiple of kv_heads: query head h reads kv head h / (q_heads / kv_heads) */
    uint32_t first_kv_head;
    uint32_t total_kv_heads;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t window;        /* a query sees the newest `window` tokens, itself included; 0 = all */
    const kvant_rope *rope; /* NULL = keys do not turn; several layers may share one */
} kvant_layer_geometry;

#ifdef __cplusplus
}
#endif

#endif
