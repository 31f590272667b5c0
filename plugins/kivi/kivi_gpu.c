/* kivi's side of kvant.gpu/1: images, launches, and the state as kernels read it. The kernels are kivi.cu. */
#include "kivi_gpu.h"
#include "kivi.h"

#include <kvant/kit/attend_shape.h>
#include <kvant/kit/diag.h>
#include <kvant/kit/gpu_images.h>
#include <kvant/kit/split.h>

#include <string.h>

KVANT_GPU_IMAGES(kivi);

static uint32_t tiles_of(const kivi_block *block) {
    return (block->groups + KIVI_GPU_GROUPS - 1) / KIVI_GPU_GROUPS;
}

static kvant_gpu_kernel kernel(const char *name, const char *suffix, uint32_t call, uint64_t units,
                               uint32_t shared) {
    kvant_gpu_kernel k = {.call = call, .threads = KIVI_GPU_THREADS, .shared_bytes = shared, .units = units};
    (void)snprintf(k.name, sizeof k.name, "%s%s", name, suffix);
    return k;
}

static kvant_status plan(const kvant_setup *setup, const kvant_layout *layout, kvant_gpu_plan *plan_out,
                         kvant_diag *diag) {
    static const char *const suffixes[] = {
        [KVANT_DTYPE_F32] = "_f32", [KVANT_DTYPE_F16] = "_f16", [KVANT_DTYPE_BF16] = "_bf16"};
    kivi_block block;
    (void)layout;
    kvant_status status = kivi_block_of(setup, &block, diag);
    if (status != KVANT_OK) return status;
    bool key = block.side == KVANT_SIDE_KEY;
    uint64_t chunks = (block.tokens + KIVI_GPU_TOKENS - 1) / KIVI_GPU_TOKENS;
    uint64_t encode_units = (uint64_t)block.heads * (key ? block.groups : chunks * tiles_of(&block));
    uint64_t decode_units = block.heads * chunks;
    if (encode_units >> 31 != 0 || decode_units >> 31 != 0)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "",
                          "a block of %u tokens and %u heads is more than one launch can take", block.tokens,
                          block.heads);
    const char *suffix = suffixes[block.dtype];
    uint32_t fit_bytes = 2 * sizeof(float);
    plan_out->state_bytes = sizeof(kivi_gpu_state);
    plan_out->kernel_count = 2;
    if (key) {
        plan_out->kernels[0] =
            kernel("kivi_encode_keys", suffix, KVANT_GPU_ENCODE, encode_units, block.head_dim * fit_bytes);
        plan_out->kernels[1] = kernel("kivi_decode_keys", "", KVANT_GPU_DECODE, decode_units, 0);
    } else {
        plan_out->kernels[0] = kernel("kivi_encode_values", suffix, KVANT_GPU_ENCODE, encode_units,
                                      KIVI_GPU_GROUPS * KIVI_GPU_TOKENS * fit_bytes);
        plan_out->kernels[1] = kernel("kivi_decode_values", "", KVANT_GPU_DECODE, decode_units, 0);
    }
    if (block.head_dim <= KVANT_SPLIT_DIM_MOST)
        plan_out->kernels[plan_out->kernel_count++] =
            key ? kvant_split_kernel("kivi_score", KVANT_GPU_SCORE, block.head_dim)
                : kvant_split_kernel("kivi_mix", KVANT_GPU_MIX, block.head_dim);
    return KVANT_OK;
}

static kvant_attend_side side_of(const kivi_block *block) {
    return (kvant_attend_side){.tokens = block->tokens,
                               .head_dim = block->head_dim,
                               .bits = block->bits,
                               .group = block->group,
                               .meta_bytes = block->meta_bytes};
}

/* Tensor cores (kit/attend_codes.cuh) where shapes allow; elsewhere kit/attend.cuh: queries of eight rows in
 * shared memory, sums of 1024 channels in registers. Any two widths and groups go together. */
static kvant_status pair(const kvant_setup *key, const kvant_setup *value, kvant_gpu_kernel *kernel_out,
                         kvant_diag *diag) {
    enum { DIM_MOST = 1024, ROWS = 8 };
    kivi_block keys, values;
    kvant_status status = kivi_block_of(key, &keys, diag);
    if (status == KVANT_OK) status = kivi_block_of(value, &values, diag);
    if (status != KVANT_OK) return status;
    if (key->head_dim > DIM_MOST || value->head_dim > DIM_MOST)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "attention on codes takes head_dim up to %d",
                          DIM_MOST);
    const kvant_attend_side key_side = side_of(&keys), value_side = side_of(&values);
    switch (kvant_attend_codes_class(&key_side, &value_side)) {
    case 128:
        *kernel_out = kernel("kivi_attend_codes", "_128", KVANT_GPU_ATTEND, 1,
                             kvant_attend_codes_bytes(&key_side, &value_side));
        break;
    case 256:
        *kernel_out = kernel("kivi_attend_codes", "_256", KVANT_GPU_ATTEND, 1,
                             kvant_attend_codes_bytes(&key_side, &value_side));
        break;
    default:
        *kernel_out =
            kernel("kivi_attend", "", KVANT_GPU_ATTEND, 1, ROWS * key->head_dim * (uint32_t)sizeof(float));
    }
    return KVANT_OK;
}

static kvant_status upload(const void *memory, const kvant_gpu_plan *plan_in, void *device_state) {
    const kivi_block *block = &((const kivi_state *)memory)->block;
    (void)plan_in;
    const kivi_gpu_state state = {.bits = block->bits,
                                  .levels = block->levels,
                                  .tokens = block->tokens,
                                  .heads = block->heads,
                                  .head_dim = block->head_dim,
                                  .group = block->group,
                                  .groups = block->groups,
                                  .dtype = block->dtype,
                                  .meta = block->meta,
                                  .meta_bytes = block->meta_bytes,
                                  .plane_row = block->plane_row,
                                  .tiles = tiles_of(block),
                                  .matrix_bytes = block->matrix_bytes,
                                  .scale_offset = block->scale_offset,
                                  .min_offset = block->min_offset,
                                  .head_bytes = block->head_bytes,
                                  .bytes = block->bytes};
    memcpy(device_state, &state, sizeof state);
    return KVANT_OK;
}

const kvant_gpu kivi_gpu = {.struct_size = sizeof(kvant_gpu),
                            .image_count = KVANT_GPU_IMAGE_COUNT,
                            .images = kvant_gpu_images,
                            .plan = plan,
                            .upload = upload,
                            .pair = pair};
