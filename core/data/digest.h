/* SHA-256. */
#ifndef KVANT_DATA_DIGEST_H
#define KVANT_DATA_DIGEST_H

#include <kvant/types.h>

enum { KVANT_SHA256_BYTES = 32 };

/* The digest of one run of bytes. */
kvant_status kvant_sha256(const void *bytes, size_t size, unsigned char digest[KVANT_SHA256_BYTES]);

/* In pieces: begin, any number of adds, finish. finish frees the context whatever happened before it and
 * reports the first failure, so that adds need no check. begin returns NULL without memory; add and finish
 * accept that. */
typedef struct kvant_sha256_context kvant_sha256_context;
kvant_sha256_context *kvant_sha256_begin(void);
void kvant_sha256_add(kvant_sha256_context *context, const void *bytes, size_t size);
kvant_status kvant_sha256_finish(kvant_sha256_context *context, unsigned char digest[KVANT_SHA256_BYTES]);

/* A field whose end cannot be mistaken: its length as 8 little-endian bytes, then its bytes. */
void kvant_sha256_field(kvant_sha256_context *context, const void *bytes, size_t size);

/* The digest of a whole file. */
kvant_status kvant_sha256_file(const char *file, unsigned char digest[KVANT_SHA256_BYTES], kvant_diag *diag);

#endif
