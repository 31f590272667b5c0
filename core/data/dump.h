/* Keys, values and queries of one run of a model: the dump file kvant-kv/1 (docs/dump-format.md), a
 * safetensors file. The file is mapped, not read: views point into the mapping and memory grows only by
 * the pages that are touched. */
#ifndef KVANT_DATA_DUMP_H
#define KVANT_DATA_DUMP_H

#include "safetensors.h"

#include <kvant/kvant.h>

#include <stdbool.h>

typedef struct kvant_dump kvant_dump;

/* Opens and checks everything: shapes against each other, metadata, lengths. The diag names file, tensor
 * and rule. */
kvant_status kvant_dump_open(const char *file, kvant_dump **dump, kvant_diag *diag);
/* The same over bytes in memory, which must outlive it; `name` stands for the file. */
kvant_status kvant_dump_parse(const void *bytes, size_t size, const char *name, kvant_dump **dump,
                              kvant_diag *diag);
/* The same rules on arrays in memory or yet to be written (data NULL: views then point nowhere). Arrays
 * and metadata must outlive the dump. */
kvant_status kvant_dump_of_arrays(const kvant_array *arrays, uint32_t count, const kvant_metadata *metadata,
                                  uint32_t metadata_count, const char *name, kvant_dump **dump,
                                  kvant_diag *diag);
void kvant_dump_close(kvant_dump *dump);

/* Layers, heads, dims, dtype, RoPE, windows, model: from shapes and metadata. A dump with keys only has
 * value_dim = key_dim, and one with values only key_dim = value_dim. dtype: that of the keys, of the
 * values where there are none. */
const kvant_geometry *kvant_dump_geometry(const kvant_dump *dump);

typedef struct kvant_dump_info {
    const char *file; /* as given to open */
    const char *name; /* the file's base name without ".safetensors" */
    uint32_t tokens;
    uint32_t query_tokens; /* 0 without queries */
    uint64_t query_start;  /* position of query row 0 */
    double scale;          /* of logits; from the metadata, else 1/sqrt(key_dim) */
    bool has_keys, has_values, has_queries;
    const uint8_t *tags;      /* [tokens] or NULL */
    const int32_t *turn;      /* [tokens] or NULL */
    const int32_t *token_ids; /* [tokens] or NULL */
} kvant_dump_info;
const kvant_dump_info *kvant_dump_describe(const kvant_dump *dump);

enum { KVANT_DUMP_KEY = KVANT_SIDE_KEY, KVANT_DUMP_VALUE = KVANT_SIDE_VALUE, KVANT_DUMP_QUERY = 2 };

/* The whole tensor of a layer as a view; false where the dump does not have it. Row 0 of keys and values
 * is position 0, row 0 of queries position query_start. */
bool kvant_dump_view(const kvant_dump *dump, uint32_t layer, uint32_t what, kvant_view *view);

/* The file behind it: all metadata strings, and tensors that this header does not know (importance, ...).
 * NULL for a dump of arrays. */
const kvant_safetensors *kvant_dump_file(const kvant_dump *dump);

/* The same view, tokens [first, first + count). */
kvant_view kvant_view_slice(const kvant_view *view, uint32_t first, uint32_t count);

#endif
