/* safetensors: named dense tensors and string metadata in one file. Reading maps the file and checks the
 * whole header: its length (at most 100 MB), JSON, dtypes, shapes against byte ranges, overflow, overlap,
 * gaps, bounds. */
#ifndef KVANT_DATA_SAFETENSORS_H
#define KVANT_DATA_SAFETENSORS_H

#include <kvant/types.h>

#include <stdbool.h>

typedef struct kvant_safetensors kvant_safetensors;

kvant_status kvant_safetensors_open(const char *file, kvant_safetensors **st, kvant_diag *diag);
/* The same over bytes in memory, which must outlive it; `name` stands for the file in messages. */
kvant_status kvant_safetensors_parse(const void *bytes, size_t size, const char *name, kvant_safetensors **st,
                                     kvant_diag *diag);
void kvant_safetensors_close(kvant_safetensors *st);

/* Tensors in the order of their names; arrays point into the file and may be unaligned. */
uint32_t kvant_safetensors_count(const kvant_safetensors *st);
const kvant_array *kvant_safetensors_at(const kvant_safetensors *st, uint32_t index);
const kvant_array *kvant_safetensors_find(const kvant_safetensors *st,
                                          const char *name); /* NULL = not there */

/* Metadata strings in the order of their keys. */
uint32_t kvant_safetensors_metadata_count(const kvant_safetensors *st);
const char *kvant_safetensors_metadata_key(const kvant_safetensors *st, uint32_t index);
const char *kvant_safetensors_metadata(const kvant_safetensors *st, const char *key); /* NULL = not there */

typedef struct kvant_metadata {
    const char *key;
    const char *value;
} kvant_metadata;

/* Writes a file atomically (temporary name in the same directory, fsync, rename). The header is canonical:
 * same input, same bytes; metadata sorted by key, tensors in the order given. The header is padded so that
 * the data start at a multiple of 64 bytes; between tensors the format allows no gap. */
kvant_status kvant_safetensors_write(const char *file, const kvant_array *arrays, uint32_t count,
                                     const kvant_metadata *metadata, uint32_t metadata_count,
                                     kvant_diag *diag);

/* The same in pieces, for data that need not be in memory at once: `begin` takes descriptions (data is
 * ignored), then `add` the bytes of all tensors one after another, then `commit` or `abort`, which free
 * the writer. */
typedef struct kvant_safetensors_writer kvant_safetensors_writer;

kvant_status kvant_safetensors_begin(const char *file, const kvant_array *arrays, uint32_t count,
                                     const kvant_metadata *metadata, uint32_t metadata_count,
                                     kvant_safetensors_writer **writer, kvant_diag *diag);
void kvant_safetensors_add(kvant_safetensors_writer *writer, const void *bytes, size_t size);
kvant_status kvant_safetensors_commit(kvant_safetensors_writer *writer, kvant_diag *diag);
void kvant_safetensors_abort(kvant_safetensors_writer *writer);

/* The same as bytes in memory, appended to `text`. */
struct kvant_text;
kvant_status kvant_safetensors_pack(struct kvant_text *text, const kvant_array *arrays, uint32_t count,
                                    const kvant_metadata *metadata, uint32_t metadata_count, const char *name,
                                    kvant_diag *diag);

/* Bytes of one element; 0 for an unknown dtype. And the safetensors spelling, "BF16". */
uint32_t kvant_dtype_bytes(uint32_t dtype);
const char *kvant_dtype_name(uint32_t dtype);
uint32_t kvant_dtype_of_name(const char *name); /* KVANT_DTYPE_NONE for an unknown name */

/* Bytes of a dense array; false where a size overflows 64 bits or the dtype is unknown. */
bool kvant_array_size(uint32_t dtype, const uint64_t *shape, uint32_t rank, uint64_t *bytes);

#endif
