/* A file of records, opened for `kvant decode` and `kvant inspect`: its records, its description, and its
 * pipeline resolved by the codecs that are installed. */
#ifndef KVANT_TOOLS_SAVED_H
#define KVANT_TOOLS_SAVED_H

#include "store/description.h"
#include "store/pack.h"
#include "store/sequence_file.h"

typedef struct saved {
    const char *path;
    kvant_sequence_file *file;
    kvant_description description;
    kvant_plan *plan; /* NULL until saved_resolve */
    kvant_plan_info info;
} saved;

/* Everything verified but the codecs. */
kvant_status saved_open(const char *path, saved *s, kvant_diag *diag);

/* Resolves the embedded pipeline. `directory` holds its artifact instead of the directory that was
 * recorded, NULL = that one. Refuses where the fingerprint differs, and names the first line of the
 * canonical text that does. */
kvant_status saved_resolve(saved *s, const char *directory, kvant_diag *diag);

/* "record 3", as messages name it. */
const char *saved_record_name(uint32_t index, char text[32]);

void saved_close(saved *s);

/* Puts the file into a diag that has none. Returns the status. */
kvant_status in_file(kvant_diag *diag, const char *file, kvant_status status);

/* Memory aligned to `alignment`, a power of two; NULL without memory. */
void *aligned_room(size_t size, size_t alignment);

#endif
