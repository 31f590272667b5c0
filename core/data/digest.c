/* See digest.h. Over OpenSSL's EVP interface, which picks the machine's instructions. */
#include "digest.h"
#include "file.h"

#include <openssl/evp.h>
#include <stdlib.h>

struct kvant_sha256_context {
    EVP_MD_CTX *evp;
    int failed;
};

kvant_status kvant_sha256(const void *bytes, size_t size, unsigned char digest[KVANT_SHA256_BYTES]) {
    return EVP_Digest(bytes, size, digest, NULL, EVP_sha256(), NULL) == 1 ? KVANT_OK : KVANT_ERROR_MEMORY;
}

kvant_sha256_context *kvant_sha256_begin(void) {
    kvant_sha256_context *context = calloc(1, sizeof *context);
    if (context == NULL) return NULL;
    context->evp = EVP_MD_CTX_new();
    context->failed = context->evp == NULL || EVP_DigestInit_ex(context->evp, EVP_sha256(), NULL) != 1;
    return context;
}

void kvant_sha256_add(kvant_sha256_context *context, const void *bytes, size_t size) {
    if (context == NULL || context->failed || size == 0) return;
    if (EVP_DigestUpdate(context->evp, bytes, size) != 1) context->failed = 1;
}

void kvant_sha256_field(kvant_sha256_context *context, const void *bytes, size_t size) {
    unsigned char length[8];
    for (unsigned i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)size >> 8 * i);
    kvant_sha256_add(context, length, sizeof length);
    kvant_sha256_add(context, bytes, size);
}

kvant_status kvant_sha256_finish(kvant_sha256_context *context, unsigned char digest[KVANT_SHA256_BYTES]) {
    if (context == NULL) return KVANT_ERROR_MEMORY;
    int failed = context->failed || EVP_DigestFinal_ex(context->evp, digest, NULL) != 1;
    EVP_MD_CTX_free(context->evp);
    free(context);
    return failed ? KVANT_ERROR_MEMORY : KVANT_OK;
}

kvant_status kvant_sha256_file(const char *file, unsigned char digest[KVANT_SHA256_BYTES], kvant_diag *diag) {
    kvant_file_map map;
    kvant_status status = kvant_file_map_open(file, &map, diag);
    if (status != KVANT_OK) return status;
    status = kvant_sha256(map.bytes, map.size, digest);
    kvant_file_map_close(&map);
    return status == KVANT_OK ? KVANT_OK : kvant_file_fail(diag, status, file, "out of memory");
}
