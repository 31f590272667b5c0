/* What dump.c (tensors) and dump_metadata.c (strings) share. */
#ifndef KVANT_DATA_DUMP_INTERNAL_H
#define KVANT_DATA_DUMP_INTERNAL_H

#include "dump.h"

/* Where a dump's parts come from: an open file, or lists that are yet to be written. */
typedef struct dump_source {
    const kvant_array *arrays;
    uint32_t count;
    const kvant_metadata *metadata;
    uint32_t metadata_count;
} dump_source;

enum {
    DUMP_KINDS = 3,
    DUMP_HEADS_MAX = 65536,
    DUMP_DIM_MAX = 65536,
    DUMP_FREQUENCIES_MAX = 1 << 24 /* of all layers: a file's numbers alone must not claim gigabytes */
};

struct kvant_dump {
    kvant_safetensors *st; /* NULL while checking lists */
    char *file;
    char *name;
    kvant_dump_info info;
    kvant_geometry geometry;
    kvant_layer_geometry *layers;
    kvant_rope *ropes;                         /* [layer_count], those of the layers point here */
    double *frequencies;                       /* [layer_count, frequency_stride] */
    const kvant_array *(*tensors)[DUMP_KINDS]; /* [layer_count]; NULL where there is none */
    int32_t *token_ids;
    int32_t *turn;
    uint8_t *tags;
};

/* NULL = the key is not there. */
const char *kvant_dump_metadata(const dump_source *source, const char *key);

/* Fills what the strings say and checks it against the shapes, which are already in. */
kvant_status kvant_dump_read_metadata(kvant_dump *dump, const dump_source *source, kvant_diag *diag);

#endif
