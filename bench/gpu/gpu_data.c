/* See gpu_data.h. */
#include "gpu_data.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>

enum { CHUNK_BYTES = 8 << 20 };

#define TRY(call, what) gpu_check(clock->device.driver, (call), (what), diag)

kvant_status gpu_room_take(gpu_room *room, uint64_t bytes, gpu_address *address, kvant_diag *diag) {
    gpu_address *more = realloc(room->addresses, (room->count + 1) * sizeof *more);
    if (more == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    room->addresses = more;
    const gpu_clock *clock = room->clock;
    kvant_status status =
        TRY(clock->device.driver->memory_alloc(address, bytes > 0 ? bytes : 1), "cuMemAlloc of a buffer");
    if (status == KVANT_OK) room->addresses[room->count++] = *address;
    return status;
}

void gpu_room_free(gpu_room *room) {
    for (uint32_t i = 0; i < room->count; i++)
        (void)room->clock->device.driver->memory_free(room->addresses[i]);
    free(room->addresses);
    room->addresses = NULL;
    room->count = 0;
}

/* The sum of four uniform numbers, scaled. */
static float bell(uint64_t *seed) {
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    uint32_t sum = (uint32_t)(z & 0xffff) + (uint32_t)(z >> 16 & 0xffff) + (uint32_t)(z >> 32 & 0xffff) +
                   (uint32_t)(z >> 48);
    return ((float)sum / 65536.0f - 2.0f) * 1.7320508f;
}

kvant_status gpu_fill(gpu_clock *clock, gpu_address to, uint64_t bytes, uint32_t dtype, uint64_t seed,
                      kvant_diag *diag) {
    const gpu_driver *d = clock->device.driver;
    uint64_t chunk = bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES, element = kvant_element_bytes(dtype);
    char *numbers = calloc(1, chunk + element);
    if (numbers == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint64_t at = 0; at < chunk; at += element) kvant_store_element(numbers + at, dtype, bell(&seed));
    kvant_status status = TRY(d->copy_to_device(to, numbers, chunk, clock->stream), "cuMemcpyHtoDAsync");
    for (uint64_t done = chunk; done < bytes && status == KVANT_OK; done += chunk)
        status =
            TRY(d->copy_on_device(to + done, to, bytes - done < chunk ? bytes - done : chunk, clock->stream),
                "cuMemcpyDtoDAsync");
    if (status == KVANT_OK) status = TRY(d->stream_synchronize(clock->stream), "cuStreamSynchronize");
    free(numbers);
    return status;
}

kvant_status gpu_read(gpu_clock *clock, gpu_address from, size_t bytes, void **to, kvant_diag *diag) {
    const gpu_driver *d = clock->device.driver;
    *to = malloc(bytes);
    if (*to == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_status status = TRY(d->copy_to_host(*to, from, bytes, clock->stream), "cuMemcpyDtoHAsync");
    if (status == KVANT_OK) status = TRY(d->stream_synchronize(clock->stream), "cuStreamSynchronize");
    if (status == KVANT_OK) return KVANT_OK;
    free(*to);
    *to = NULL;
    return status;
}

static kvant_status launch_copy(void *context, uint32_t set, gpu_stream stream, kvant_diag *diag) {
    const gpu_copy *copy = context;
    const gpu_clock *clock = copy->clock;
    gpu_address from = copy->at + set * copy->bytes;
    return TRY(clock->device.driver->copy_on_device(from + copy->bytes / 2, from, copy->bytes / 2, stream),
               "cuMemcpyDtoDAsync");
}

kvant_status gpu_copy_open(gpu_room *room, uint64_t bytes, uint32_t sets, gpu_copy *copy, kvant_diag *diag) {
    *copy = (gpu_copy){.clock = room->clock, .bytes = (bytes + 511) / 512 * 512};
    copy->timed = (gpu_timed){.launch = launch_copy, .context = copy, .sets = sets};
    kvant_status status = gpu_room_take(room, copy->bytes * sets, &copy->at, diag);
    if (status != KVANT_OK) return status;
    return gpu_fill(room->clock, copy->at, copy->bytes * sets, KVANT_DTYPE_BF16, 11, diag);
}
