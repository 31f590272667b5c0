/* One extent of a file of records, array by array, through the codec's kvant.inspect/1. */
#ifndef KVANT_TOOLS_INSPECT_EXTENT_H
#define KVANT_TOOLS_INSPECT_EXTENT_H

#include "saved.h"

#include <jansson.h>

typedef struct inspect_request {
    const char *file;
    const char *output; /* NULL = do not save */
    const char *artifacts;
    uint32_t layer;
    uint32_t side;
    uint32_t block;
    bool extent; /* some option asks for an extent */
} inspect_request;

/* Describes the extent in *root, for the caller to free, and saves its arrays where the request names a
 * file. */
kvant_status inspect_extent(saved *s, const inspect_request *r, json_t **root, kvant_diag *diag);
void print_extent(const json_t *root);

#endif
