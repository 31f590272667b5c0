/* The safetensors reader. */
#include "data/safetensors.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_safetensors *st = NULL;
    kvant_status status = kvant_safetensors_parse(data, size, "fuzz", &st, &diag);
    kvant_fuzz_check(status, &diag);
    if (status != KVANT_OK) return 0;
    uint64_t total = 0;
    for (uint32_t i = 0; i < kvant_safetensors_count(st); i++) {
        const kvant_array *array = kvant_safetensors_at(st, i);
        kvant_fuzz_touch(array->data, array->bytes);
        total += array->bytes;
        if (kvant_safetensors_find(st, array->name) != array) abort();
    }
    if (total > size) abort(); /* two tensors share bytes */
    for (uint32_t i = 0; i < kvant_safetensors_metadata_count(st); i++)
        if (kvant_safetensors_metadata(st, kvant_safetensors_metadata_key(st, i)) == NULL) abort();
    kvant_safetensors_close(st);
    return 0;
}
