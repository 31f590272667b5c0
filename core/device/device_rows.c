/* Row jobs: what the host does to rows on their way to a codec and back (pipeline/codec_rows.h), as jobs of
 * kvant_core_rows. See device.h. */
#include "device/device_internal.h"

#include "pipeline/turns.h"
#include "plugin/fpenv.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/rope.h>

/* ---- Jobs ---------------------------------------------------------------------------------------------- */

uint32_t device_rows_units(uint32_t tokens) {
    return tokens / CORE_ROWS_CHUNK + (tokens % CORE_ROWS_CHUNK > 0);
}

static uint32_t multiples(uint32_t tokens) {
    return (tokens + KVANT_TURN_PERIOD - 1) / KVANT_TURN_PERIOD + 1;
}

uint64_t device_turn_doubles(const device_side *side, uint32_t tokens) {
    return side->turn_offsets != 0 ? (uint64_t)multiples(tokens) * side->pairs * 2 : 0;
}

void device_turn_bases(const device_side *side, uint64_t first, uint32_t tokens, double *bases) {
    uint64_t multiple = first - first % KVANT_TURN_PERIOD;
    kvant_fp_state saved = kvant_fp_enter();
    for (; multiple < first + tokens; multiple += KVANT_TURN_PERIOD, bases += 2 * (size_t)side->pairs)
        kvant_turn_exact(side->entry->setup.rope, multiple, bases);
    kvant_fp_leave(saved);
}

uint32_t device_flags_to_codec(const device_side *side, bool replaces) {
    uint32_t flags = replaces ? CORE_ROWS_REPLACE : 0;
    if (side->entry->turn == KVANT_TURN_APPLY) flags |= CORE_ROWS_TURN;
    if (side->entry->turn == KVANT_TURN_UNDO) flags |= CORE_ROWS_UNTURN;
    if (side->center != 0) flags |= CORE_ROWS_SUBTRACT;
    return flags != 0 ? flags | CORE_ROWS_SATURATE : 0;
}

uint32_t device_flags_from_codec(const device_side *side) {
    uint32_t flags = 0;
    if (side->entry->turn == KVANT_TURN_APPLY) flags |= CORE_ROWS_UNTURN;
    if (side->entry->turn == KVANT_TURN_UNDO) flags |= CORE_ROWS_TURN;
    if (side->center != 0) flags |= CORE_ROWS_ADD;
    return flags | CORE_ROWS_SATURATE;
}

core_rows_job device_rows_job(const device_side *side, uint32_t flags) {
    const kvant_setup *setup = &side->entry->setup;
    core_rows_job job = {.flags = flags,
                         .from_dtype = setup->dtype,
                         .to_dtype = setup->dtype,
                         .heads = setup->kv_heads,
                         .dim = setup->head_dim,
                         .magnitude = 1};
    if ((flags & (CORE_ROWS_ADD | CORE_ROWS_SUBTRACT)) != 0) job.center = side->center;
    if ((flags & (CORE_ROWS_TURN | CORE_ROWS_UNTURN)) != 0) {
        job.turn_offsets = side->turn_offsets;
        job.rope_style = setup->rope->style;
        job.rotary_dim = setup->rope->rotary_dim;
        job.magnitude = (float)setup->rope->magnitude;
    }
    return job;
}

/* ---- Launch -------------------------------------------------------------------------------------------- */

/* The next slot, waited for; the lock is held from here to the launch, so that a slot's copy and kernel
 * follow one another in their stream. */
static kvant_status launch(kvant_device *device, const core_rows_job *jobs, uint32_t count, void *stream,
                           kvant_diag *diag) {
    const gpu_driver *d = device->gpu.driver;
    device_rows_slot *slot = &device->slots[device->next_slot];
    device->next_slot = (device->next_slot + 1) % DEVICE_ROWS_SLOTS;
    kvant_status status = KVANT_OK;
    if (slot->used) status = gpu_check(d, d->event_synchronize(slot->done), "cuEventSynchronize", diag);
    if (status != KVANT_OK) return status;
    slot->used = false;
    core_rows_head head = {.jobs = count, .units = 1};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t units = device_rows_units(jobs[i].tokens);
        if (units > head.units) head.units = units;
    }
    memset(slot->pinned, 0, DEVICE_ALIGNMENT);
    memcpy(slot->pinned, &head, sizeof head);
    memcpy(slot->pinned + DEVICE_ALIGNMENT, jobs, count * sizeof *jobs);
    status = gpu_check(
        d, d->copy_to_device(slot->list, slot->pinned, DEVICE_ALIGNMENT + count * sizeof *jobs, stream),
        "cuMemcpyHtoDAsync", diag);
    const kvant_gpu_call call = {.jobs = slot->list + DEVICE_ALIGNMENT, .job_count = slot->list};
    if (status == KVANT_OK)
        status = gpu_launchable_launch(&device->core.module, &device->rows, (uint64_t)head.units * count,
                                       &call, stream, diag);
    if (status == KVANT_OK) status = gpu_check(d, d->event_record(slot->done, stream), "cuEventRecord", diag);
    slot->used = status == KVANT_OK;
    return status;
}

kvant_status device_rows(kvant_device *device, const core_rows_job *jobs, uint32_t count, void *stream,
                         kvant_diag *diag) {
    if (count == 0) return KVANT_OK;
    pthread_mutex_lock(&device->lock);
    kvant_status status = gpu_device_enter(&device->gpu, diag);
    if (status == KVANT_OK) {
        for (uint32_t first = 0; first < count && status == KVANT_OK; first += DEVICE_ROWS_JOBS)
            status =
                launch(device, jobs + first,
                       count - first < DEVICE_ROWS_JOBS ? count - first : DEVICE_ROWS_JOBS, stream, diag);
        gpu_device_leave(&device->gpu);
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}
