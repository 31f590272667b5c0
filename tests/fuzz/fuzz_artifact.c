/* The artifact reader, and its fit to a geometry. */
#include "data/artifact.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const kvant_layer_geometry layers[2] = {{.struct_size = sizeof layers[0],
                                             .kv_heads = 2,
                                             .q_heads = 4,
                                             .total_kv_heads = 2,
                                             .key_dim = 4,
                                             .value_dim = 6},
                                            {.struct_size = sizeof layers[0],
                                             .kv_heads = 1,
                                             .q_heads = 4,
                                             .total_kv_heads = 1,
                                             .key_dim = 8,
                                             .value_dim = 8}};
    const kvant_geometry geometry = {
        .struct_size = sizeof geometry, .layer_count = 2, .dtype = KVANT_DTYPE_F16, .layers = layers};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_artifact *artifact = NULL;
    kvant_status status = kvant_artifact_parse(data, size, "fuzz", &artifact, &diag);
    kvant_fuzz_check(status, &diag);
    if (status != KVANT_OK) return 0;
    kvant_fuzz_check(kvant_artifact_check(artifact, &geometry, &diag), &diag);
    for (uint32_t row = 0; row < 6; row++) {
        uint32_t count;
        const kvant_array *tensors = kvant_artifact_tensors(artifact, row / 2, row % 2, &count);
        for (uint32_t i = 0; i < count; i++) kvant_fuzz_touch(tensors[i].data, tensors[i].bytes);
    }
    kvant_artifact_close(artifact);
    return 0;
}
