/* See gpu_image.h. */
#include "gpu/gpu_image.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <zstd.h>

enum {
    IMAGES_MOST = 64,
    ARCHITECTURES_MOST = 32,
    UNPACKED_MOST = 1 << 28 /* of PTX: a frame that claims more is not believed */
};

#define BROKEN(...) kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "", __VA_ARGS__)

const kvant_gpu_image *gpu_image_at(const kvant_gpu *gpu, uint32_t index) {
    return (const kvant_gpu_image *)((const char *)gpu->images + (size_t)index * gpu->images->struct_size);
}

static size_t packed_size(const kvant_gpu_image *image) {
    return (size_t)((const char *)image->bytes_end - (const char *)image->bytes);
}

/* ---- Unpacking ----------------------------------------------------------------------------------------- */

/* Whether the frame says how long it is is up to who made it, so the output grows. */
static kvant_status unpack(const kvant_gpu_image *image, char **bytes, size_t *size, kvant_diag *diag) {
    ZSTD_DStream *stream = ZSTD_createDStream();
    ZSTD_inBuffer in = {image->bytes, packed_size(image), 0};
    ZSTD_outBuffer out = {NULL, 0, 0};
    kvant_status status = stream != NULL ? KVANT_OK : KVANT_ERROR_MEMORY;
    size_t left = 1;
    while (status == KVANT_OK && left != 0) {
        if (out.size - out.pos < 2) {
            size_t room = out.size == 0 ? 8 * in.size + 4096 : 2 * out.size;
            char *more = room <= UNPACKED_MOST ? realloc(out.dst, room) : NULL;
            if (more == NULL) {
                status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no room for an image of %zu bytes", room);
                break;
            }
            out.dst = more;
            out.size = room;
        }
        size_t before = out.pos, read = in.pos;
        ZSTD_outBuffer part = {out.dst, out.size - 1, out.pos};
        left = ZSTD_decompressStream(stream, &part, &in);
        out.pos = part.pos;
        if (ZSTD_isError(left))
            status = BROKEN("a packed image does not unpack: %s", ZSTD_getErrorName(left));
        else if (left != 0 && in.pos == in.size && in.pos == read && out.pos == before)
            status = BROKEN("a packed image ends early");
    }
    if (status == KVANT_OK && in.pos != in.size) status = BROKEN("a packed image has bytes behind its frame");
    ZSTD_freeDStream(stream);
    if (status != KVANT_OK) {
        free(out.dst);
        return status;
    }
    *bytes = out.dst;
    *size = out.pos;
    (*bytes)[*size] = '\0';
    return KVANT_OK;
}

kvant_status gpu_image_bytes(const kvant_gpu_image *image, char **bytes, size_t *size, kvant_diag *diag) {
    if (image->packing == KVANT_PACKING_ZSTD) return unpack(image, bytes, size, diag);
    *size = packed_size(image);
    *bytes = malloc(*size + 1);
    if (*bytes == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no room for %zu bytes", *size);
    memcpy(*bytes, image->bytes, *size);
    (*bytes)[*size] = '\0';
    return KVANT_OK;
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

/* A fat binary: magic, version, size of this header, size of what follows. */
static kvant_status vet_fatbin(const char *bytes, size_t size, uint32_t index, kvant_diag *diag) {
    uint32_t magic = 0;
    uint16_t header = 0;
    uint64_t body = 0;
    if (size >= 16) {
        memcpy(&magic, bytes, sizeof magic);
        memcpy(&header, bytes + 6, sizeof header);
        memcpy(&body, bytes + 8, sizeof body);
    }
    if (magic != 0xba55ed50u || header < 16 || body > size || header + body > size)
        return BROKEN("gpu image %u is no fat binary, or is cut short", index);
    return KVANT_OK;
}

/* PTX begins with comments, then .version, .target sm_XX. */
static kvant_status vet_ptx(const kvant_gpu_image *image, const char *text, size_t size, uint32_t index,
                            kvant_diag *diag) {
    const char *target = strstr(text, ".target sm_");
    unsigned long number = target != NULL ? strtoul(target + strlen(".target sm_"), NULL, 10) : 0;
    if (strlen(text) != size || strstr(text, ".version ") == NULL || target == NULL)
        return BROKEN("gpu image %u is no PTX text", index);
    if (number != (image->architectures[0] & ~(uint32_t)KVANT_ARCHITECTURE_EXACT))
        return BROKEN("gpu image %u is PTX for sm_%lu and says %u", index, number, image->architectures[0]);
    return KVANT_OK;
}

static kvant_status vet_image(const kvant_gpu_image *image, uint32_t index, kvant_diag *diag) {
    if (image->kind != KVANT_IMAGE_FATBIN && image->kind != KVANT_IMAGE_PTX)
        return BROKEN("gpu image %u is of kind %u", index, image->kind);
    if (image->packing > KVANT_PACKING_ZSTD)
        return BROKEN("gpu image %u has packing %u", index, image->packing);
    if (image->architectures == NULL || image->architecture_count == 0 ||
        image->architecture_count > ARCHITECTURES_MOST)
        return BROKEN("gpu image %u names %u architectures", index, image->architecture_count);
    if (image->kind == KVANT_IMAGE_PTX && image->architecture_count != 1)
        return BROKEN("gpu image %u is PTX for %u architectures", index, image->architecture_count);
    for (uint32_t i = 0; i < image->architecture_count; i++) {
        uint32_t number = image->architectures[i] & ~(uint32_t)KVANT_ARCHITECTURE_EXACT;
        if (number < 50 || number > 999)
            return BROKEN("gpu image %u names architecture %u", index, image->architectures[i]);
    }
    if (image->bytes == NULL || (const char *)image->bytes_end <= (const char *)image->bytes)
        return BROKEN("gpu image %u is empty", index);
    char *bytes = NULL;
    size_t size = 0;
    kvant_status status = gpu_image_bytes(image, &bytes, &size, diag);
    if (status == KVANT_OK)
        status = image->kind == KVANT_IMAGE_PTX ? vet_ptx(image, bytes, size, index, diag)
                                                : vet_fatbin(bytes, size, index, diag);
    free(bytes);
    return status;
}

kvant_status gpu_vet(const kvant_gpu *gpu, kvant_diag *diag) {
    if (gpu->struct_size < sizeof *gpu)
        return BROKEN("kvant_gpu.struct_size is %u, at least %zu are needed", gpu->struct_size, sizeof *gpu);
    if (gpu->plan == NULL || gpu->upload == NULL) return BROKEN("kvant_gpu.plan or .upload is NULL");
    if (gpu->images == NULL || gpu->image_count == 0 || gpu->image_count > IMAGES_MOST)
        return BROKEN("kvant_gpu has %u images", gpu->image_count);
    if (gpu->images->struct_size < sizeof *gpu->images)
        return BROKEN("kvant_gpu_image.struct_size is %u, at least %zu are needed", gpu->images->struct_size,
                      sizeof *gpu->images);
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < gpu->image_count && status == KVANT_OK; i++)
        status = vet_image(gpu_image_at(gpu, i), i, diag);
    return status;
}

kvant_status gpu_plan_vet(const kvant_gpu_plan *plan, kvant_diag *diag) {
    if (plan->kernel_count > KVANT_GPU_KERNELS) return BROKEN("a plan of %u kernels", plan->kernel_count);
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        const kvant_gpu_kernel *k = &plan->kernels[i];
        if (memchr(k->name, '\0', sizeof k->name) == NULL || k->name[0] == '\0')
            return BROKEN("kernel %u of a plan has no name, or one without an end", i);
        if (k->call < KVANT_GPU_ENCODE || k->call > KVANT_GPU_ATTEND)
            return BROKEN("kernel %s serves call %u", k->name, k->call);
        if (k->threads == 0 || k->threads > 1024 || k->threads % 32 != 0)
            return BROKEN("kernel %s has %u threads: they are a multiple of 32, at most 1024", k->name,
                          k->threads);
        if (k->units == 0 || k->units >> 31 != 0)
            return BROKEN("kernel %s has %llu units of work: they are 1 to 2^31 - 1", k->name,
                          (unsigned long long)k->units);
        if (k->block_scratch_bytes % 256 != 0 || k->job_scratch_bytes % 256 != 0)
            return BROKEN("kernel %s asks for scratch that is no multiple of 256 bytes", k->name);
        if (k->reserved != 0) return BROKEN("kernel %s: reserved is not 0", k->name);
    }
    return KVANT_OK;
}

/* ---- Choice -------------------------------------------------------------------------------------------- */

static bool fits(const kvant_gpu_image *image, uint32_t major, uint32_t minor) {
    for (uint32_t i = 0; i < image->architecture_count; i++) {
        bool exact = (image->architectures[i] & KVANT_ARCHITECTURE_EXACT) != 0;
        uint32_t number = image->architectures[i] & ~(uint32_t)KVANT_ARCHITECTURE_EXACT;
        uint32_t device = 10 * major + minor;
        if (number == device) return true;
        if (exact || number > device) continue;
        if (image->kind == KVANT_IMAGE_PTX || number / 10 == major) return true;
    }
    return false;
}

kvant_status gpu_image_choose(const kvant_gpu *gpu, uint32_t major, uint32_t minor,
                              const kvant_gpu_image **image, kvant_diag *diag) {
    for (uint32_t i = 0; i < gpu->image_count; i++) {
        *image = gpu_image_at(gpu, i);
        if (fits(*image, major, minor)) return KVANT_OK;
    }
    char text[256];
    gpu_images_text(gpu, text, sizeof text);
    *image = NULL;
    return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "",
                      "no image for a device of compute capability %u.%u; the plugin carries %s", major,
                      minor, text);
}

void gpu_images_text(const kvant_gpu *gpu, char *text, size_t size) {
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < gpu->image_count; i++) {
        const kvant_gpu_image *image = gpu_image_at(gpu, i);
        for (uint32_t j = 0; j < image->architecture_count && at < size; j++) {
            uint32_t number = image->architectures[j] & ~(uint32_t)KVANT_ARCHITECTURE_EXACT;
            bool exact = (image->architectures[j] & KVANT_ARCHITECTURE_EXACT) != 0;
            at += (size_t)snprintf(text + at, size - at, "%s%s%u%s", at > 0 ? " " : "",
                                   image->kind == KVANT_IMAGE_PTX ? "compute_" : "sm_", number,
                                   exact ? "a" : "");
        }
    }
}
