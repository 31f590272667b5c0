/* The pages of an LMDB file: the check that stands before LMDB must not read outside of them, nor run on. */
#include "fuzz.h"
#include "store/lmdb_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (uint64_t transaction = 0; transaction < 12; transaction++) {
        const char *why = NULL;
        uint64_t page = 0;
        if (!kvant_lmdb_bytes_are_sound(data, size, transaction, &why, &page) && why == NULL) abort();
    }
    return 0;
}
