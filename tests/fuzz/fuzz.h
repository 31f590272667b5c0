/* What a fuzz target is, and what the targets share. */
#ifndef KVANT_FUZZ_H
#define KVANT_FUZZ_H

#include <kvant/types.h>

#include <stdlib.h>
#include <string.h>

/* Returns 0. Must survive any bytes: no crash, no leak, no endless loop. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A refusal that says nothing, or more than one line, is a fault too. */
static inline void kvant_fuzz_check(kvant_status status, const kvant_diag *diag) {
    if (status == KVANT_OK) return;
    if (diag->message[0] == '\0' || strchr(diag->message, '\n') != NULL) abort();
}

/* Reads every byte, so that a sanitizer sees what lies outside. */
static inline void kvant_fuzz_touch(const void *bytes, uint64_t size) {
    const volatile unsigned char *p = bytes;
    for (uint64_t i = 0; i < size; i++) (void)p[i];
}

#endif
