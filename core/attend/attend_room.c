/* Scratch of a call. See attend.h.
 *
 *     | partials of a wave | states of units | one work area a thread | items and units of two waves, marks |
 *
 * each part of each aligned to 64 bytes. */
#include "attend/attend.h"

#include <stddef.h>

/* Lays parts out one after another; `failed` where the sum does not fit. */
typedef struct lay_out {
    uint64_t end;
    bool failed;
} lay_out;

static uint64_t place(lay_out *l, uint64_t count, uint64_t size) {
    uint64_t at = l->end, bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 4 ||
        __builtin_add_overflow(l->end, (bytes + 63) / 64 * 64, &l->end) || l->end > SIZE_MAX / 2) {
        l->failed = true;
        l->end = at;
    }
    return at;
}

static void *part(void *base, lay_out *l, uint64_t count, uint64_t size) {
    uint64_t at = place(l, count, size);
    return base != NULL ? (char *)base + at : NULL;
}

/* With base = NULL these measure. */
static attend_partial lay_partial(const kvant_attention *a, uint32_t rows, void *base, lay_out *l) {
    attend_partial p;
    p.largest = part(base, l, rows, sizeof(float));
    p.sum = part(base, l, rows, sizeof(float));
    p.coded = part(base, l, rows, a->mix_width * sizeof(float));
    p.plain = part(base, l, rows, a->value_width * sizeof(float));
    return p;
}

static attend_unit_state lay_state(const kvant_attention *a, uint32_t rows, void *base, lay_out *l) {
    const kvant_layout *keys = a->rows[KVANT_SIDE_KEY]->layout;
    attend_unit_state s;
    s.queries = part(base, l, rows, a->key_width * sizeof(float));
    s.prepared = part(base, l, rows, a->codes[KVANT_SIDE_KEY] != NULL ? keys->query_state_bytes : 0);
    s.bias = part(base, l, rows, sizeof(float));
    s.total = lay_partial(a, rows, base, l);
    return s;
}

/* What any call of a codec may need: decoding, and attention on codes for a unit's rows. */
static uint64_t plugin_scratch(const kvant_attention *a, uint32_t rows, lay_out *l) {
    uint64_t most = 0;
    for (uint32_t side = 0; side < 2; side++) {
        const kvant_layout *layout = a->rows[side]->layout;
        uint64_t attend = 0;
        if (a->codes[side] != NULL &&
            (__builtin_mul_overflow(layout->attend_scratch_row, (uint64_t)rows, &attend) ||
             __builtin_add_overflow(attend, layout->attend_scratch_bytes, &attend)))
            l->failed = true;
        if (layout->scratch_bytes > most) most = layout->scratch_bytes;
        if (attend > most) most = attend;
    }
    return most;
}

static attend_work lay_work(const kvant_attention *a, uint32_t positions, void *base, lay_out *l) {
    uint32_t rows = positions * a->group;
    uint32_t width = a->key_width > a->value_width ? a->key_width : a->value_width;
    uint64_t first_turns = a->offset_turns != NULL ? (uint64_t)a->step_extents * a->pairs : 0;
    attend_work w;
    w.logits = part(base, l, rows, (uint64_t)a->step_tokens * sizeof(float));
    w.tile = part(base, l, KVANT_ATTEND_TILE, width * sizeof(float));
    w.outputs = part(base, l, rows, a->value_width * sizeof(float));
    w.seen = part(base, l, (uint64_t)a->step_extents * positions, 2 * sizeof(uint32_t));
    w.segments = part(base, l, a->step_extents, sizeof(attend_segment));
    w.extents = part(base, l, a->step_extents, sizeof(kvant_extent));
    w.first_turns = part(base, l, first_turns, 2 * sizeof(float));
    w.turns = part(base, l, a->pairs, 2 * sizeof(float));
    w.base = part(base, l, a->pairs, 2 * sizeof(double));
    w.first_base = part(base, l, first_turns != 0 ? a->pairs : 0, 2 * sizeof(double));
    w.plugin = part(base, l, plugin_scratch(a, rows, l), 1);
    return w;
}

bool attend_room_make(const kvant_attention *a, uint32_t threads, uint32_t rows, attend_room *room) {
    if (threads == 0) threads = 1;
    if (threads > KVANT_ATTEND_THREADS_MAX) return false;
    uint32_t positions = KVANT_ATTEND_ROWS / a->group;
    if (positions > rows) positions = rows;
    if (positions == 0) positions = 1;
    *room = (attend_room){.threads = threads, .positions = positions, .rows = positions * a->group};
    /* One thread merges each item at once; several need enough items for all to be busy till the end. */
    room->slots = threads == 1 ? 1 : 8 * threads;
    room->states = 2 * room->slots;
    lay_out one = {0}, all = {0};
    (void)lay_partial(a, room->rows, NULL, &one);
    room->slot_bytes = (size_t)one.end;
    lay_out state = {0}, work = {0};
    (void)lay_state(a, room->rows, NULL, &state);
    (void)lay_work(a, positions, NULL, &work);
    room->state_bytes = (size_t)state.end;
    room->work_bytes = (size_t)work.end;
    room->slots_at = (size_t)place(&all, room->slots, room->slot_bytes);
    room->states_at = (size_t)place(&all, room->states, room->state_bytes);
    room->works_at = (size_t)place(&all, threads, room->work_bytes);
    room->waves_at =
        (size_t)place(&all, 2 * (uint64_t)room->slots, sizeof(attend_item) + sizeof(attend_unit) + 1);
    room->total = (size_t)all.end;
    return !one.failed && !state.failed && !work.failed && !all.failed;
}

attend_partial attend_room_slot(const kvant_attention *a, const attend_room *room, void *scratch,
                                uint32_t slot) {
    lay_out l = {0};
    return lay_partial(a, room->rows, (char *)scratch + room->slots_at + slot * room->slot_bytes, &l);
}

attend_unit_state attend_room_state(const kvant_attention *a, const attend_room *room, void *scratch,
                                    uint64_t unit) {
    lay_out l = {0};
    size_t index = (size_t)(unit % room->states);
    return lay_state(a, room->rows, (char *)scratch + room->states_at + index * room->state_bytes, &l);
}

attend_work attend_room_work(const kvant_attention *a, const attend_room *room, void *scratch,
                             uint32_t thread) {
    lay_out l = {0};
    return lay_work(a, room->positions, (char *)scratch + room->works_at + thread * room->work_bytes, &l);
}

size_t kvant_attention_scratch_bytes(const kvant_attention *attention, uint32_t threads, uint32_t rows) {
    attend_room room;
    return attention != NULL && attend_room_make(attention, threads, rows, &room) ? room.total : 0;
}
