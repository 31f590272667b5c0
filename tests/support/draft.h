/* A safetensors file to be, whose tensors and metadata a test changes one rule at a time. Tensors are zeros.
 *
 *     kvant_draft d = kvant_draft_dump();
 *     kvant_draft_say(&d, "layers", "3");
 *     kvant_text text = kvant_draft_pack(&d);
 */
#ifndef KVANT_TEST_DRAFT_H
#define KVANT_TEST_DRAFT_H

#include "base/text.h"
#include "data/safetensors.h"

enum { KVANT_DRAFT_ARRAYS = 16, KVANT_DRAFT_STRINGS = 24 };

typedef struct kvant_draft {
    kvant_array arrays[KVANT_DRAFT_ARRAYS];
    uint32_t count;
    kvant_metadata metadata[KVANT_DRAFT_STRINGS];
    uint32_t metadata_count;
} kvant_draft;

/* Adds a tensor; trailing zeros of the shape are axes that it does not have. */
void kvant_draft_put(kvant_draft *d, const char *name, uint32_t dtype, uint64_t a, uint64_t b, uint64_t c);
void kvant_draft_drop(kvant_draft *d, const char *name);

/* Sets a metadata string; NULL takes it away. */
void kvant_draft_say(kvant_draft *d, const char *key, const char *value);

/* A right dump with everything. Two layers of other shapes: 10 tokens, 2 kv heads of 8 and 6, 3 kv heads of
 * 12 and 5; 4 queries. */
kvant_draft kvant_draft_dump(void);

/* Its bytes, for the caller to free. */
kvant_text kvant_draft_pack(const kvant_draft *d);

#endif
