/* Devices from within: what the floors of kvant/device.h are made of, and what the cache floor and `kvant
 * eval` use beside them. */
#ifndef KVANT_DEVICE_DEVICE_H
#define KVANT_DEVICE_DEVICE_H

#include "gpu/core_kernels.h"
#include "gpu/gpu_device.h"

#include <kvant/kvant.h>

/* Puts jobs into the stream, however many: lists go through page-locked memory of the device's own. Jobs are
 * independent of each other; they may be used again when this returns. Any thread. */
kvant_status device_rows(kvant_device *device, const core_rows_job *jobs, uint32_t count, void *stream,
                         kvant_diag *diag);

/* A view of device memory as kernels read it. */
kvant_gpu_view device_view(const void *data, int64_t token_stride, int64_t head_stride,
                           int64_t channel_stride);

/* Page-locked memory of the host's, which copies in stream order may use. NULL without. */
void *device_pinned_take(kvant_device *device, size_t bytes);
void device_pinned_give(kvant_device *device, void *memory);

/* In stream order, without waiting; host memory is page-locked. */
kvant_status device_copy_in(kvant_device *device, uint64_t to, const void *pinned, uint64_t bytes,
                            void *stream, kvant_diag *diag);
kvant_status device_copy_out(kvant_device *device, void *pinned, uint64_t from, uint64_t bytes, void *stream,
                             kvant_diag *diag);
kvant_status device_copy_within(kvant_device *device, uint64_t to, uint64_t from, uint64_t bytes,
                                void *stream, kvant_diag *diag);
kvant_status device_set(kvant_device *device, uint64_t to, unsigned char value, uint64_t bytes, void *stream,
                        kvant_diag *diag);

/* Waits until everything in the stream is done. */
kvant_status device_wait(kvant_device *device, void *stream, kvant_diag *diag);

/* What the last encode_launch of a side wrote, [count], into page-locked memory, in stream order: to be
 * looked at after a device_wait. `replaced` of row jobs is in rows[i]; zeros where the host changes
 * nothing. */
typedef struct device_encode_status {
    kvant_gpu_status codec;
    core_rows_status rows;
} device_encode_status;
kvant_status device_encode_statuses(kvant_device_work *work, uint32_t side, device_encode_status *pinned,
                                    uint32_t count, void *stream, kvant_diag *diag);

/* The first element that is NaN or infinite, (token * kv_heads + head) * head_dim + channel; UINT64_MAX where
 * there is none. replaces: on_nonfinite = saturate. */
uint64_t device_encode_bad(const device_encode_status *status, bool replaces);

#endif
