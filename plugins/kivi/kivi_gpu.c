/* kivi's side of kvant.gpu/1: images, launches, and the state as kernels read it. The kernels are kivi.cu. */
#include "kivi_gpu.h"
#include "kivi.h"

#include <kvant/kit/diag.h>

#include <string.h>

extern const unsigned char kvant_kivi_fatbin[], kvant_kivi_fatbin_end[];
extern const unsigned char kvant_kivi_ptx[], kvant_kivi_ptx_end[];

static const uint32_t architectures[] = {KVANT_GPU_ARCHITECTURES};

static const kvant_gpu_image images[] = {
    {.struct_size = sizeof(kvant_gpu_image),
     .kind = KVANT_IMAGE_FATBIN,
     .packing = KVANT_PACKING_NONE,
     .architecture_count = sizeof architectures / sizeof architectures[0],
     .architectures = architectures,
     .bytes = kvant_kivi_fatbin,
     .bytes_end = kvant_kivi_fatbin_end},
    {.struct_size = sizeof(kvant_gpu_image),
     .kind = KVANT_IMAGE_PTX,
     .packing = KVANT_PACKING_ZSTD,
     .architecture_count = 1,
     .architectures = architectures,
     .bytes = kvant_kivi_ptx,
     .bytes_end = kvant_kivi_ptx_end},
};

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
    return KVANT_OK;
}

/* kit/attend.cuh: queries of eight rows in shared memory, sums of 1024 channels in registers. Any two widths
 * and groups go together. */
static kvant_status pair(const kvant_setup *key, const kvant_setup *value, kvant_gpu_kernel *kernel_out,
                         kvant_diag *diag) {
    enum { DIM_MOST = 1024, ROWS = 8 };
    kivi_block block;
    kvant_status status = kivi_block_of(key, &block, diag);
    if (status == KVANT_OK) status = kivi_block_of(value, &block, diag);
    if (status != KVANT_OK) return status;
    if (key->head_dim > DIM_MOST || value->head_dim > DIM_MOST)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "attention on codes takes head_dim up to %d",
                          DIM_MOST);
    *kernel_out =
        kernel("kivi_attend", "", KVANT_GPU_ATTEND, 1, ROWS * key->head_dim * (uint32_t)sizeof(float));
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
                            .image_count = sizeof images / sizeof images[0],
                            .images = images,
                            .plan = plan,
                            .upload = upload,
                            .pair = pair};
