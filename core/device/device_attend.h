/* Internal to core/device: the lists of one attention while they are written. */
#ifndef KVANT_DEVICE_DEVICE_ATTEND_H
#define KVANT_DEVICE_DEVICE_ATTEND_H

#include "device/device_internal.h"

typedef struct attend_list {
    const kvant_device_work *work;
    const device_attend_places *at;
    const kvant_device_attend_options *options;
    gpu_address list, scratch; /* on the device */
    unsigned char *pinned;
    kvant_gpu_item *coded_items, *raw_items;
    core_merge_job *merges;
    kvant_gpu_reference *references;
    kvant_gpu_run *runs;
    uint32_t counts[DEVICE_COUNTS];
    uint32_t reference_count, run_count;
    uint32_t query_jobs, key_jobs, query_positions;
    uint64_t partial_row;         /* rows of partials so far */
    uint64_t logits;              /* floats so far */
    kvant_gpu_view float_queries; /* of the sequence, where blocks are decoded */
} attend_list;

/* The sequence, walked by the first one's struct_size. */
const kvant_device_sequence *device_sequence_at(const kvant_device_sequence *sequences, uint32_t index);

/* Arguments, and whether they fit what the work was opened for. */
kvant_status device_attend_check(const kvant_device_work *work, const kvant_device_sequence *sequences,
                                 uint32_t count, const kvant_device_attend_options *options,
                                 kvant_diag *diag);

/* Where blocks are decoded (KVANT_DEVICE_ATTEND_ROWS): jobs that decode references [from, from + count) of
 * the list, turn and move their keys, and make floats of the sequence's queries; and the runs that they
 * become. */
void device_tiles_add(attend_list *l, const kvant_device_sequence *s, uint32_t from, uint32_t count);

#endif
