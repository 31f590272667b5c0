/* An opened codec and its calls. See check_subject.h. */
#include "check_subject.h"

#include <kvant/kvant.h>
#include <stdlib.h>
#include <string.h>

uint64_t check_layout_largest(const kvant_layout *layout) {
    if (layout->size_steps == 0) return layout->size_min;
    if (layout->size_step > (UINT64_MAX - layout->size_min) / layout->size_steps) return 0;
    return layout->size_min + layout->size_steps * layout->size_step;
}

bool check_layout_has_size(const kvant_layout *layout, uint64_t size, uint64_t *step) {
    *step = 0;
    if (size < layout->size_min) return false;
    if (size == layout->size_min) return true;
    if (layout->size_steps == 0 || layout->size_step == 0) return false;
    *step = (size - layout->size_min) / layout->size_step;
    return (size - layout->size_min) % layout->size_step == 0 && *step <= layout->size_steps;
}

static uint8_t *make_classes(const check_subject *subject) {
    if (!(subject->worker->plugin->descriptor->requires_bits & KVANT_REQUIRES_TAGS)) return NULL;
    uint32_t tokens = subject->setup->block_tokens;
    uint8_t *classes = malloc(tokens);
    if (classes == NULL) check_out_of_memory();
    for (uint32_t t = 0; t < tokens; t++)
        classes[t] = subject->layout.tag_class[t % 8 == 7 ? t * 5 % 256 : t * 5 % 64];
    return classes;
}

kvant_status check_subject_open(check_worker *worker, check_subject *subject, const kvant_setup *setup,
                                const kvant_layout *layout, kvant_diag *diag) {
    *subject = (check_subject){.worker = worker, .setup = setup, .layout = *layout};
    subject->classes = make_classes(subject);
    if (!check_buffer_create(&worker->buffers, &subject->state, "state", layout->state_bytes, 64, 0) ||
        !check_buffer_create(&worker->buffers, &subject->scratch, "scratch", layout->scratch_bytes, 64, 0))
        check_out_of_memory();
    kvant_status status = check_call_open(worker, setup, layout, subject->state.data, diag);
    ptrdiff_t offset;
    if (check_buffer_damaged(&subject->state, &offset))
        check_fail(worker, CHECK_BOUNDS, "open wrote at offset %td of a state of %zu bytes", offset,
                   subject->state.size);
    subject->is_open = status == KVANT_OK;
    if (subject->is_open)
        check_buffer_protect(&subject->state, true);
    else
        check_subject_close(subject);
    return status;
}

void check_subject_close(check_subject *subject) {
    if (subject->worker == NULL) return;
    check_buffer_protect(&subject->state, false);
    if (subject->is_open) check_call_close(subject->worker, subject->state.data);
    subject->is_open = false;
    free(subject->classes);
    subject->classes = NULL;
    check_buffer_free(&subject->worker->buffers, &subject->state);
    check_buffer_free(&subject->worker->buffers, &subject->scratch);
}

void check_extent_free(check_worker *worker, check_extent *extent) {
    check_buffer_free(&worker->buffers, &extent->buffer);
    extent->size = 0;
}

/* Writes outside of scratch and extent; and of the argument struct, what is not a result. */
static void look_behind_encode(check_subject *subject, const check_buffer *room,
                               const kvant_encode_args *before, const kvant_encode_args *after) {
    check_worker *worker = subject->worker;
    ptrdiff_t offset;
    if (check_buffer_damaged(&subject->scratch, &offset))
        check_fail(worker, CHECK_BOUNDS, "encode wrote at offset %td of a scratch of %zu bytes", offset,
                   subject->scratch.size);
    if (check_buffer_damaged(room, &offset))
        check_fail(worker, CHECK_BOUNDS, "encode wrote at offset %td of an extent with room for %zu bytes",
                   offset, room->size);
    kvant_encode_args changed = *after;
    changed.size = before->size;
    changed.saturated = before->saturated;
    if (memcmp(&changed, before, sizeof changed) != 0)
        check_fail(worker, CHECK_ENCODE, "encode changed members of its arguments that are not results");
}

/* The used bytes to memory of just that size; true if bytes behind them are no longer `poison`. */
static bool take_extent(check_worker *worker, const check_buffer *room, const kvant_layout *layout,
                        unsigned char poison, check_extent *extent) {
    if (!check_buffer_create(&worker->buffers, &extent->buffer, "extent", extent->size, layout->alignment, 0))
        check_out_of_memory();
    memcpy(extent->buffer.data, room->data, extent->size);
    check_buffer_protect(&extent->buffer, true);
    for (size_t i = extent->size; i < room->size; i++)
        if (room->data[i] != poison) return true;
    return false;
}

static bool encode_is_good(check_subject *subject, kvant_status status, uint64_t size) {
    uint64_t step;
    if (status != KVANT_OK) {
        check_fail(subject->worker, CHECK_ENCODE,
                   "encode returned %d (%s) on finite rows that keep the rules", status,
                   kvant_status_text(status));
        return false;
    }
    if (check_layout_has_size(&subject->layout, size, &step)) return true;
    check_fail(subject->worker, CHECK_ENCODE,
               "encode says it used %llu bytes, which is no size of the layout (%llu + k * %llu, k <= %llu)",
               (unsigned long long)size, (unsigned long long)subject->layout.size_min,
               (unsigned long long)subject->layout.size_step, (unsigned long long)subject->layout.size_steps);
    return false;
}

bool check_subject_encode_view(check_subject *subject, const kvant_view *view, const check_encoding *how,
                               check_extent *extent, bool *beyond) {
    check_worker *worker = subject->worker;
    check_buffer room;
    *extent = (check_extent){.first_position = how->first_position};
    if (!check_buffer_create(&worker->buffers, &room, "extent", check_layout_largest(&subject->layout),
                             subject->layout.alignment, 0))
        check_out_of_memory();
    check_buffer_fill(&room, how->poison);
    check_buffer_fill(&subject->scratch, how->scratch);
    kvant_encode_args args = {.struct_size = sizeof args,
                              .rows = view,
                              .classes = subject->classes,
                              .first_position = how->first_position,
                              .extent = room.data,
                              .scratch = subject->scratch.data};
    const kvant_encode_args before = args;
    kvant_status status = check_call_encode(worker, subject->state.data, &args);
    look_behind_encode(subject, &room, &before, &args);
    extent->size = args.size;
    extent->saturated = args.saturated;
    bool good = encode_is_good(subject, status, args.size);
    if (good) {
        bool written = take_extent(worker, &room, &subject->layout, how->poison, extent);
        if (beyond != NULL) *beyond = written;
    }
    check_buffer_free(&worker->buffers, &room);
    return good;
}

bool check_subject_encode(check_subject *subject, const float *values, const check_encoding *how,
                          check_extent *extent, bool *beyond) {
    const kvant_setup *setup = subject->setup;
    check_rows rows;
    check_rows_create(subject->worker, &rows, setup->dtype, setup->block_tokens, setup->kv_heads,
                      setup->head_dim, how->form);
    check_rows_store(&rows, values);
    check_buffer_protect(&rows.buffer, true);
    kvant_view view = check_rows_view(&rows);
    bool good = check_subject_encode_view(subject, &view, how, extent, beyond);
    check_rows_free(subject->worker, &rows);
    return good;
}

static void look_behind_decode(check_subject *subject, const check_rows *rows, const check_decoding *how) {
    check_worker *worker = subject->worker;
    ptrdiff_t offset;
    size_t gap;
    if (check_buffer_damaged(&subject->scratch, &offset))
        check_fail(worker, CHECK_BOUNDS, "decode wrote at offset %td of a scratch of %zu bytes", offset,
                   subject->scratch.size);
    if (check_buffer_damaged(&rows->buffer, &offset))
        check_fail(worker, CHECK_BOUNDS,
                   "decode wrote at offset %td of rows of %zu bytes (tokens %u+%u, heads %u+%u)", offset,
                   rows->buffer.size, how->first_token, how->tokens, how->first_head, how->heads);
    else if (check_rows_gap_written(rows, how->poison, &gap))
        check_fail(worker, CHECK_BOUNDS,
                   "decode wrote between the elements of %s rows, at byte %zu (tokens %u+%u, heads "
                   "%u+%u)",
                   check_form_name(how->form), gap, how->first_token, how->tokens, how->first_head,
                   how->heads);
}

bool check_subject_decode(check_subject *subject, const check_extent *extent, const check_decoding *how,
                          uint32_t *bits) {
    check_worker *worker = subject->worker;
    check_rows rows;
    check_rows_create(worker, &rows, how->dtype, how->tokens, how->heads, subject->setup->head_dim,
                      how->form);
    check_buffer_fill(&rows.buffer, how->poison);
    check_buffer_fill(&subject->scratch, how->scratch);
    kvant_mutable_view view = check_rows_mutable_view(&rows);
    const kvant_extent look = {.bytes = extent->buffer.data,
                               .size = extent->size,
                               .first_position = extent->first_position,
                               .live_count = subject->setup->block_tokens};
    const kvant_decode_args args = {.struct_size = sizeof args,
                                    .first_token = how->first_token,
                                    .first_head = how->first_head,
                                    .extent = &look,
                                    .rows = &view,
                                    .scratch = subject->scratch.data};
    kvant_status status = check_call_decode(worker, subject->state.data, &args);
    look_behind_decode(subject, &rows, how);
    if (bits != NULL) check_rows_load(&rows, bits);
    check_rows_free(worker, &rows);
    if (status == KVANT_OK) return true;
    if (how->id != CHECK_ARBITRARY)
        check_fail(worker, how->id,
                   "decode returned %d (%s) for tokens %u+%u, heads %u+%u of an extent that encode wrote",
                   status, kvant_status_text(status), how->first_token, how->tokens, how->first_head,
                   how->heads);
    return false;
}

bool check_subject_decode_all(check_subject *subject, const check_extent *extent, check_id id,
                              float *values) {
    const check_decoding how = {.tokens = subject->setup->block_tokens,
                                .heads = subject->setup->kv_heads,
                                .dtype = KVANT_DTYPE_F32,
                                .poison = 0xff,
                                .scratch = 0xff,
                                .id = id};
    size_t count = (size_t)how.tokens * how.heads * subject->setup->head_dim;
    uint32_t *copy = malloc(count * sizeof *copy);
    if (copy == NULL) check_out_of_memory();
    bool good = check_subject_decode(subject, extent, &how, copy);
    memcpy(values, copy, count * sizeof *copy);
    free(copy);
    return good;
}
