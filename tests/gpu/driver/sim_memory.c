/* Device memory and page-locked memory of the host's; copies. */
#include "sim_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sim_block {
    struct sim_block *next;
    uintptr_t at;
    size_t size;
    bool on_host;
} sim_block;

enum { HOST_POISON = 0xA5 };

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static gpu_result add_block(void *memory, size_t size, bool on_host) {
    sim_block *block = malloc(sizeof *block);
    if (block == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    *block = (sim_block){sim.blocks, (uintptr_t)memory, size, on_host};
    sim.blocks = block;
    return GPU_SUCCESS;
}

/* The block with this address in it; `whole`, the range that must not leave it, may be 0. */
static const sim_block *find_block(uintptr_t address, size_t whole, bool on_host) {
    for (const sim_block *b = sim.blocks; b != NULL; b = b->next)
        if (b->on_host == on_host && address >= b->at && address - b->at < b->size &&
            whole <= b->size - (address - b->at))
            return b;
    return NULL;
}

/* Of the block that begins there. */
static bool take_block(uintptr_t at, bool on_host, size_t *size) {
    for (sim_block **link = &sim.blocks; *link != NULL; link = &(*link)->next) {
        sim_block *block = *link;
        if (block->at != at || block->on_host != on_host) continue;
        *link = block->next;
        *size = block->size;
        free(block);
        return true;
    }
    return false;
}

bool sim_is_on_device(uintptr_t address, size_t size) {
    return find_block(address, size, false) != NULL;
}

bool sim_is_page_locked(uintptr_t address, size_t size) {
    return find_block(address, size, true) != NULL;
}

void sim_memory_end(void) {
    while (sim.blocks != NULL) {
        sim_block *block = sim.blocks;
        sim.blocks = block->next;
        if (block->on_host) {
            ptx_memory_remove(sim.totals.machine, (void *)block->at);
            free((void *)block->at);
        }
        free(block);
    }
}

/* ---- Allocation ---------------------------------------------------------------------------------------- */

SIM_CALL(SIM_WORK | SIM_UNSAFE, memory_alloc, (gpu_address * address, size_t size), (address, size)) {
    char name[48];
    *address = 0;
    if (sim.broken != GPU_SUCCESS) return sim.broken;
    if (size == 0) return GPU_ERROR_INVALID_VALUE;
    if (size > sim.config.memory_most - sim.totals.bytes) return GPU_ERROR_OUT_OF_MEMORY;
    (void)snprintf(name, sizeof name, "allocation %u", ++sim.allocation_number);
    void *memory = ptx_memory_alloc(sim.totals.machine, size, name);
    if (memory == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    gpu_result result = add_block(memory, size, false);
    if (result != GPU_SUCCESS) {
        ptx_memory_free(sim.totals.machine, memory);
        return result;
    }
    *address = (uintptr_t)memory;
    sim.totals.allocations++;
    sim.totals.bytes += size;
    if (sim.totals.bytes > sim.totals.bytes_most) sim.totals.bytes_most = sim.totals.bytes;
    return GPU_SUCCESS;
}

/* Waits for the device, as the driver does. */
SIM_CALL(SIM_WORK | SIM_UNSAFE, memory_free, (gpu_address address), (address)) {
    size_t size = 0;
    if (address == 0) return GPU_SUCCESS;
    gpu_result result = sim_finish(0);
    if (!take_block((uintptr_t)address, false, &size))
        return sim_misuse(GPU_ERROR_INVALID_VALUE, "cuMemFree of 0x%llx, which is no allocation", address);
    ptx_memory_free(sim.totals.machine, (void *)(uintptr_t)address);
    sim.totals.allocations--;
    sim.totals.bytes -= size;
    return result;
}

SIM_CALL(SIM_WORK, memory_info, (size_t * left, size_t *total), (left, total)) {
    *total = sim.config.memory_most;
    *left = sim.config.memory_most - sim.totals.bytes;
    return GPU_SUCCESS;
}

/* Kernels may use it too: addresses are unified. */
SIM_CALL(SIM_WORK | SIM_UNSAFE, host_alloc, (void **memory, size_t size, unsigned flags),
         (memory, size, flags)) {
    char name[48];
    (void)flags;
    *memory = NULL;
    if (sim.broken != GPU_SUCCESS) return sim.broken;
    if (size == 0) return GPU_ERROR_INVALID_VALUE;
    void *got = size < SIZE_MAX - 4096 ? aligned_alloc(4096, (size + 4095) / 4096 * 4096) : NULL;
    if (got == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    (void)snprintf(name, sizeof name, "page-locked memory %u", ++sim.allocation_number);
    memset(got, HOST_POISON, size);
    if (add_block(got, size, true) != GPU_SUCCESS) {
        free(got);
        return GPU_ERROR_OUT_OF_MEMORY;
    }
    (void)ptx_memory_add(sim.totals.machine, got, size, name, false);
    sim.totals.host_allocations++;
    *memory = got;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_WORK | SIM_UNSAFE, host_free, (void *memory), (memory)) {
    size_t size = 0;
    gpu_result result = sim_finish(0);
    if (!take_block((uintptr_t)memory, true, &size))
        return sim_misuse(GPU_ERROR_INVALID_VALUE, "cuMemFreeHost of %p, which is no page-locked memory",
                          memory);
    ptx_memory_remove(sim.totals.machine, memory);
    free(memory);
    sim.totals.host_allocations--;
    return result;
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

static gpu_result need_memory(gpu_address address, size_t size, const char *call) {
    if (sim_is_on_device((uintptr_t)address, size)) return GPU_SUCCESS;
    const sim_block *b = find_block((uintptr_t)address, 0, false);
    if (b != NULL)
        return sim_misuse(GPU_ERROR_INVALID_VALUE, "%s: %zu bytes from byte %zu on of an allocation of %zu",
                          call, size, (size_t)address - b->at, b->size);
    return sim_misuse(GPU_ERROR_INVALID_VALUE, "%s: %zu bytes at 0x%llx, which is no device memory", call,
                      size, address);
}

/* Pageable memory is the caller's to know. */
static gpu_result need_host(const void *memory, size_t size, const char *call) {
    uintptr_t address = (uintptr_t)memory;
    if (memory == NULL || find_block(address, 0, false) != NULL)
        return sim_misuse(GPU_ERROR_INVALID_VALUE, "%s: %p is no memory of the host", call, memory);
    const sim_block *b = find_block(address, 0, true);
    if (b == NULL || sim_is_page_locked(address, size)) return GPU_SUCCESS;
    return sim_misuse(GPU_ERROR_INVALID_VALUE, "%s: %zu bytes from byte %zu on of page-locked memory of %zu",
                      call, size, address - b->at, b->size);
}

static gpu_result put_copy(sim_kind kind, uintptr_t to, uintptr_t from, size_t size, gpu_stream stream) {
    bool staged = false, waits = false;
    gpu_result result = sim_find_stream(&stream);
    if (result != GPU_SUCCESS) return result;
    if (kind == SIM_TO_DEVICE) staged = !sim_is_page_locked(from, size);
    if (kind == SIM_TO_HOST) waits = !sim_is_page_locked(to, size);
    if ((staged || waits) && stream->capture != NULL)
        return sim_capture_spoil(stream->capture, SIM_ERROR_CAPTURE_UNSUPPORTED,
                                 "a copy of memory that is not page-locked");
    sim_operation *copy = sim_operation_new(kind);
    if (copy == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    copy->to = to;
    copy->from = from;
    copy->size = size;
    if (staged && sim.config.deferred) {
        copy->bytes = malloc(size);
        if (copy->bytes == NULL) {
            sim_operation_free(copy);
            return GPU_ERROR_OUT_OF_MEMORY;
        }
        memcpy(copy->bytes, (const void *)from, size);
    }
    uint64_t id = 0;
    result = sim_put(stream, copy, &id);
    return result == GPU_SUCCESS && waits ? sim_finish(id) : result;
}

static gpu_result to_device(gpu_address to, const void *from, size_t size, gpu_stream stream,
                            const char *call) {
    if (size == 0) return GPU_SUCCESS;
    gpu_result result = need_memory(to, size, call);
    if (result == GPU_SUCCESS) result = need_host(from, size, call);
    return result == GPU_SUCCESS ? put_copy(SIM_TO_DEVICE, (uintptr_t)to, (uintptr_t)from, size, stream)
                                 : result;
}

static gpu_result to_host(void *to, gpu_address from, size_t size, gpu_stream stream, const char *call) {
    if (size == 0) return GPU_SUCCESS;
    gpu_result result = need_memory(from, size, call);
    if (result == GPU_SUCCESS) result = need_host(to, size, call);
    return result == GPU_SUCCESS ? put_copy(SIM_TO_HOST, (uintptr_t)to, (uintptr_t)from, size, stream)
                                 : result;
}

static gpu_result set(gpu_address to, unsigned char value, size_t size, gpu_stream stream, const char *call) {
    if (size == 0) return GPU_SUCCESS;
    gpu_result result = need_memory(to, size, call);
    if (result == GPU_SUCCESS) result = sim_find_stream(&stream);
    if (result != GPU_SUCCESS) return result;
    sim_operation *operation = sim_operation_new(SIM_SET);
    if (operation == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    operation->to = (uintptr_t)to;
    operation->size = size;
    operation->value = value;
    return sim_put(stream, operation, NULL);
}

SIM_CALL(SIM_WORK, copy_to_device, (gpu_address to, const void *from, size_t size, gpu_stream stream),
         (to, from, size, stream)) {
    return to_device(to, from, size, stream, "cuMemcpyHtoDAsync");
}

SIM_CALL(SIM_WORK, copy_to_host, (void *to, gpu_address from, size_t size, gpu_stream stream),
         (to, from, size, stream)) {
    return to_host(to, from, size, stream, "cuMemcpyDtoHAsync");
}

SIM_CALL(SIM_WORK, copy_on_device, (gpu_address to, gpu_address from, size_t size, gpu_stream stream),
         (to, from, size, stream)) {
    if (size == 0) return GPU_SUCCESS;
    gpu_result result = need_memory(to, size, "cuMemcpyDtoDAsync");
    if (result == GPU_SUCCESS) result = need_memory(from, size, "cuMemcpyDtoDAsync");
    if (result == GPU_SUCCESS && (to < from ? from - to : to - from) < size)
        result = sim_misuse(GPU_ERROR_INVALID_VALUE, "cuMemcpyDtoDAsync: %zu bytes over each other", size);
    return result == GPU_SUCCESS ? put_copy(SIM_ON_DEVICE, (uintptr_t)to, (uintptr_t)from, size, stream)
                                 : result;
}

SIM_CALL(SIM_WORK, memory_set, (gpu_address to, unsigned char value, size_t size, gpu_stream stream),
         (to, value, size, stream)) {
    return set(to, value, size, stream, "cuMemsetD8Async");
}

/* The forms that wait. */
SIM_CALL(SIM_WORK | SIM_UNSAFE, copy_to_device_now, (gpu_address to, const void *from, size_t size),
         (to, from, size)) {
    gpu_result result = to_device(to, from, size, NULL, "cuMemcpyHtoD");
    return result == GPU_SUCCESS ? sim_finish_stream(&sim.legacy) : result;
}

SIM_CALL(SIM_WORK | SIM_UNSAFE, copy_to_host_now, (void *to, gpu_address from, size_t size),
         (to, from, size)) {
    gpu_result result = to_host(to, from, size, NULL, "cuMemcpyDtoH");
    return result == GPU_SUCCESS ? sim_finish_stream(&sim.legacy) : result;
}

/* Does not wait, where the memory is the device's. */
SIM_CALL(SIM_WORK | SIM_UNSAFE, memory_set_now, (gpu_address to, unsigned char value, size_t size),
         (to, value, size)) {
    return set(to, value, size, NULL, "cuMemsetD8");
}
