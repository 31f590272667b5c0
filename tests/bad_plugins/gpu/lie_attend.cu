/* Attention that is none. */
#include <kvant/plugin_gpu.h>

/* Gives every value the weight 0 and says that it saw some. */
extern "C" __global__ void lie_zeros(kvant_gpu_call call) {
    const kvant_gpu_layer *layer = (const kvant_gpu_layer *)call.layer;
    const uint32_t *key = (const uint32_t *)call.state, *value = (const uint32_t *)layer->value_state;
    uint32_t heads = key[3], dim = value[4]; /* of kivi_gpu_state */
    uint32_t count = *(const uint32_t *)call.job_count;
    for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
        const kvant_gpu_item *item = (const kvant_gpu_item *)call.jobs + i;
        for (uint32_t row = 0; row < item->positions * (layer->q_heads / heads); row++)
            for (uint32_t c = threadIdx.x; c < 2 + dim; c += blockDim.x)
                ((float *)item->partial)[row * item->partial_stride + c] = c == 1 ? 1.0f : 0.0f;
    }
}

/* Writes where nobody sent it. */
extern "C" __global__ void lie_fault(kvant_gpu_call call) {
    const kvant_gpu_item *item = (const kvant_gpu_item *)call.jobs;
    if (threadIdx.x == 0) *(float *)(item->partial + ((uint64_t)1 << 40)) = 0;
}
