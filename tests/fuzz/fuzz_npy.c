/* The .npy reader. */
#include "data/npy.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_npy *npy = NULL;
    kvant_status status = kvant_npy_parse(data, size, "fuzz.npy", &npy, &diag);
    kvant_fuzz_check(status, &diag);
    if (status == KVANT_OK) kvant_fuzz_touch(kvant_npy_array(npy)->data, kvant_npy_array(npy)->bytes);
    kvant_npy_close(npy);
    return 0;
}
