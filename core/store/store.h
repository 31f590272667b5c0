/* What the stores share: the layer of kvant_store above a table of calls, and the verification between. */
#ifndef KVANT_STORE_STORE_H
#define KVANT_STORE_STORE_H

#include "record.h"

#include <kvant/kvant.h>

enum { KVANT_STORE_KEY_BYTES = KVANT_RECORD_KEY_BYTES };

/* Options with every default filled in. */
kvant_status kvant_store_settle(const kvant_store_options *given, kvant_store_options *options,
                                kvant_diag *diag);

/* Whether these bytes are the record that `key` asks for: KVANT_STORE_FOUND, or why not and *why in a
 * sentence of static text. Not for packed records. */
uint32_t kvant_store_verify(const kvant_store_key *key, const void *bytes, size_t size, const char **why);

/* The name that a key has in a store. */
void kvant_store_name(const kvant_store_key *key, uint8_t name[KVANT_STORE_NAME_BYTES]);

/* Makes the directory if its parent is there, and refuses one that everybody may write to. */
kvant_status kvant_store_make_directory(const char *directory, kvant_diag *diag);

/* What was made in it is on the disk afterwards. */
kvant_status kvant_store_flush_directory(const char *directory, kvant_diag *diag);

/* The status of an errno, and the diag's message "WHAT: strerror". */
kvant_status kvant_store_system_error(kvant_diag *diag, const char *path, const char *what, int error);

#endif
