/* The arrays of the files that `kvant import` reads, and one tensor of rows out of an array of any layout. */
#ifndef KVANT_TOOLS_IMPORT_ARRAYS_H
#define KVANT_TOOLS_IMPORT_ARRAYS_H

#include "data/npy.h"
#include "data/safetensors.h"

/* An array as a file has it. */
typedef struct foreign_array {
    const kvant_array *array;
    const char *file;
    bool fortran; /* its first axis is the one whose elements are neighbours */
} foreign_array;

typedef struct foreign_files {
    kvant_safetensors **tensors; /* [file_count]; NULL where the file is a .npy */
    kvant_npy **npys;
    uint32_t file_count;
    foreign_array *arrays; /* of all files; names are unique */
    uint32_t count;
} foreign_files;

kvant_status foreign_open(char *const *files, uint32_t count, foreign_files *all, kvant_diag *diag);
void foreign_close(foreign_files *all);

/* NULL = there is none of this name. */
const foreign_array *foreign_find(const foreign_files *all, const char *name);

/* Layers that a name with {l} occurs for, ascending; the caller frees. A name without it: one entry if
 * there is such an array. *count = 0 and the nearest name in the diag if there is none. */
kvant_status foreign_layers(const foreign_files *all, const char *pattern, uint32_t **layers, uint32_t *count,
                            kvant_diag *diag);

/* `pattern` with {l} replaced; the caller frees. */
char *foreign_name(const char *pattern, uint32_t layer);

/* Rows inside an array: [tokens, heads, head_dim] of one layer, strides in elements. */
typedef struct foreign_rows {
    const foreign_array *from;
    uint32_t dtype;    /* what the elements are: U16 may have been declared BF16 */
    uint32_t to_dtype; /* F32, F16 or BF16 */
    uint64_t layers;   /* of the array: 1 where it has no layer axis */
    uint64_t tokens;
    uint64_t heads;
    uint64_t head_dim;
    uint64_t layer_stride, token_stride, head_stride, channel_stride;
} foreign_rows;

/* Applies axes (letters of "lbhtdc", one per axis of the array, each once) to an array. `c` is heads and
 * channels in one axis, heads * head_dim long. `u16_is_bf16` declares what 16-bit integers mean. */
kvant_status foreign_layout(const foreign_array *from, const char *axes, uint32_t heads, bool u16_is_bf16,
                            foreign_rows *rows, kvant_diag *diag);

/* The rows of one layer as dense bytes: tokens * heads * head_dim elements of to_dtype. */
void foreign_gather(const foreign_rows *rows, uint64_t layer, void *dense);

#endif
