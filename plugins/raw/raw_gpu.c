/* raw's side of kvant.gpu/1: images, launches, and the state as kernels read it. The kernels are raw.cu. */
#include "raw_gpu.h"
#include "raw.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/gpu_images.h>
#include <kvant/kit/split.h>

KVANT_GPU_IMAGES(raw);

static kvant_gpu_kernel kernel(const char *name, uint32_t call, uint64_t units) {
    kvant_gpu_kernel k = {.call = call, .threads = RAW_GPU_THREADS, .units = units};
    (void)snprintf(k.name, sizeof k.name, "%s", name);
    return k;
}

static kvant_status plan(const kvant_setup *setup, const kvant_layout *layout, kvant_gpu_plan *plan_out,
                         kvant_diag *diag) {
    static const char *const scores[] = {[KVANT_DTYPE_F32] = "raw_score_f32",
                                         [KVANT_DTYPE_F16] = "raw_score_f16",
                                         [KVANT_DTYPE_BF16] = "raw_score_bf16"};
    static const char *const mixes[] = {[KVANT_DTYPE_F32] = "raw_mix_f32",
                                        [KVANT_DTYPE_F16] = "raw_mix_f16",
                                        [KVANT_DTYPE_BF16] = "raw_mix_bf16"};
    raw_block block;
    kvant_status status = raw_block_of(setup, &block, diag);
    if (status != KVANT_OK) return status;
    uint64_t units =
        setup->kv_heads * (((uint64_t)setup->block_tokens + RAW_GPU_TOKENS - 1) / RAW_GPU_TOKENS);
    (void)layout;
    if (units >> 31 != 0)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "",
                          "a block of %u tokens and %u heads is more than one launch can take",
                          setup->block_tokens, setup->kv_heads);
    plan_out->state_bytes = sizeof(raw_gpu_state);
    plan_out->kernel_count = 2;
    plan_out->kernels[0] = kernel("raw_encode", KVANT_GPU_ENCODE, units);
    plan_out->kernels[1] = kernel("raw_decode", KVANT_GPU_DECODE, units);
    if (setup->head_dim <= KVANT_SPLIT_DIM_MOST)
        plan_out->kernels[plan_out->kernel_count++] =
            setup->side == KVANT_SIDE_KEY
                ? kvant_split_kernel(scores[block.format], KVANT_GPU_SCORE, setup->head_dim)
                : kvant_split_kernel(mixes[block.format], KVANT_GPU_MIX, setup->head_dim);
    return KVANT_OK;
}

static kvant_status upload(const void *memory, const kvant_gpu_plan *plan_in, void *device_state) {
    const raw_block *block = &((const raw_state *)memory)->block;
    (void)plan_in;
    const raw_gpu_state state = {.tokens = block->tokens,
                                 .heads = block->heads,
                                 .head_dim = block->head_dim,
                                 .input = block->input,
                                 .format = block->format,
                                 .element_bytes = block->element_bytes,
                                 .row_bytes = block->row_bytes,
                                 .head_bytes = block->head_bytes,
                                 .bytes = block->bytes};
    memcpy(device_state, &state, sizeof state);
    return KVANT_OK;
}

const kvant_gpu raw_gpu = {.struct_size = sizeof(kvant_gpu),
                           .image_count = KVANT_GPU_IMAGE_COUNT,
                           .images = kvant_gpu_images,
                           .plan = plan,
                           .upload = upload};
