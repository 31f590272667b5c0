/* kvant_attention_run: a call as waves of items. See attend.h.
 *
 * A wave is as many items as there are slots for partials, whatever the call's size; so scratch does not grow
 * with sequences and tokens. Between two waves stands one loop more: it merges the items of the last wave,
 * unit by unit, and begins the units of the next.
 *
 *     begin 0 | items 0 | merge 0, begin 1 | items 1 | merge 1, begin 2 | ...
 *
 * Which wave an item falls into depends on the call and on its threads; the numbers do not. */
#include "attend/attend.h"

#include "attend/attend_team.h"
#include "plugin/fpenv.h"

#include <kvant/kit/diag.h>

typedef struct attend_wave {
    attend_item *items;
    attend_unit *units;
    uint32_t item_count, unit_count;
} attend_wave;

/* The next span that no wave has yet. */
typedef struct attend_cursor {
    uint32_t sequence;
    bool open; /* `unit` and `place` are set */
    attend_unit unit;
    attend_place place;
    uint64_t units; /* opened so far */
} attend_cursor;

typedef struct attend_call {
    const kvant_attention *a;
    const kvant_attention_sequence *sequences;
    uint32_t sequence_count;
    const kvant_attention_options *options;
    uint32_t heads_end; /* after the last kv head */
    attend_room room;
    char *scratch;
    attend_wave waves[2];
    unsigned char *done; /* marks of a loop */
    kvant_loop *loop;    /* NULL = this thread alone */
    void *loop_context;
    attend_cursor cursor;
    attend_wave *now, *next;
} attend_call;

/* ---- Waves --------------------------------------------------------------------------------------------- */

static void open_unit(const attend_call *call, attend_cursor *c, uint32_t head, uint32_t first_row) {
    const kvant_attention_sequence *s = attend_sequence_at(call->sequences, c->sequence);
    uint32_t left = s->queries->tokens - first_row;
    c->unit = (attend_unit){.sequence = s,
                            .number = c->units++,
                            .head = head,
                            .first_row = first_row,
                            .positions = left < call->room.positions ? left : call->room.positions,
                            .from = UINT64_MAX,
                            .begins = true};
    for (uint32_t r = first_row; r < first_row + c->unit.positions; r++) {
        if (s->ranges[r].from == s->ranges[r].to) continue;
        if (s->ranges[r].from < c->unit.from) c->unit.from = s->ranges[r].from;
        if (s->ranges[r].to > c->unit.to) c->unit.to = s->ranges[r].to;
    }
    c->place = attend_place_first(s);
    c->open = true;
}

/* The unit after the one that ended: next head, else next rows, else next sequence. False at the end. */
static bool open_next(const attend_call *call, attend_cursor *c) {
    uint32_t first = call->options->first_kv_head;
    if (c->sequence == call->sequence_count) return false;
    if (c->units != 0) {
        const attend_unit *u = &c->unit;
        uint32_t after = u->first_row + u->positions;
        if (u->head + 1 < call->heads_end) {
            open_unit(call, c, u->head + 1, u->first_row);
            return true;
        }
        if (after < u->sequence->queries->tokens) {
            open_unit(call, c, first, after);
            return true;
        }
        c->sequence++;
    }
    while (c->sequence < call->sequence_count &&
           attend_sequence_at(call->sequences, c->sequence)->queries->tokens == 0)
        c->sequence++;
    if (c->sequence == call->sequence_count) return false;
    open_unit(call, c, first, 0);
    return true;
}

/* Spans of the open unit that some row sees, as far as there is room. */
static void take_items(const attend_call *call, attend_cursor *c, attend_wave *wave) {
    const kvant_attention_sequence *s = c->unit.sequence;
    attend_unit *unit = &wave->units[wave->unit_count];
    *unit = c->unit;
    unit->item_first = wave->item_count;
    while (!attend_place_is_end(s, c->place) && wave->item_count < call->room.slots) {
        attend_place end = attend_span_end(call->a, s, c->place);
        if (attend_span_is_seen(call->a, unit, c->place, end))
            wave->items[wave->item_count++] =
                (attend_item){.unit = wave->unit_count, .begin = c->place, .end = end};
        c->place = end;
    }
    unit->item_count = wave->item_count - unit->item_first;
    unit->ends = attend_place_is_end(s, c->place);
    c->unit.begins = false;
    c->open = !unit->ends;
    wave->unit_count++;
}

/* False if nothing is left. */
static bool fill_wave(attend_call *call, attend_wave *wave) {
    attend_cursor *c = &call->cursor;
    wave->item_count = wave->unit_count = 0;
    while (wave->item_count < call->room.slots && wave->unit_count < call->room.slots) {
        if (!c->open && !open_next(call, c)) break;
        take_items(call, c, wave);
    }
    return wave->unit_count != 0;
}

/* ---- Bodies of the loops ------------------------------------------------------------------------------- */

static void run_item(attend_call *call, uint32_t index, uint32_t thread) {
    attend_item *item = &call->now->items[index];
    const attend_unit *unit = &call->now->units[item->unit];
    attend_unit_state state = attend_room_state(call->a, &call->room, call->scratch, unit->number);
    attend_work work = attend_room_work(call->a, &call->room, call->scratch, thread);
    attend_partial partial = attend_room_slot(call->a, &call->room, call->scratch, index);
    item->status = attend_item_run(call->a, unit, item, call->options->soft_cap, &state, &work, &partial);
}

static void merge_unit(attend_call *call, uint32_t index, uint32_t thread) {
    attend_unit *unit = &call->now->units[index];
    attend_unit_state state = attend_room_state(call->a, &call->room, call->scratch, unit->number);
    for (uint32_t i = unit->item_first; i < unit->item_first + unit->item_count; i++) {
        attend_partial partial = attend_room_slot(call->a, &call->room, call->scratch, i);
        attend_unit_merge(call->a, unit, &state, &partial);
    }
    if (!unit->ends) return;
    attend_work work = attend_room_work(call->a, &call->room, call->scratch, thread);
    unit->status = attend_unit_end(call->a, unit, &state, &work);
}

static void begin_unit(attend_call *call, uint32_t index, uint32_t thread) {
    attend_unit *unit = &call->next->units[index];
    if (!unit->begins) return;
    attend_unit_state state = attend_room_state(call->a, &call->room, call->scratch, unit->number);
    attend_work work = attend_room_work(call->a, &call->room, call->scratch, thread);
    unit->status = attend_unit_begin(call->a, unit, call->options->scale, &state, &work);
}

static void merge_or_begin(attend_call *call, uint32_t index, uint32_t thread) {
    uint32_t merges = call->now->unit_count;
    if (index < merges)
        merge_unit(call, index, thread);
    else
        begin_unit(call, index - merges, thread);
}

/* ---- Loops --------------------------------------------------------------------------------------------- */

typedef struct attend_loop {
    attend_call *call;
    void (*body)(attend_call *call, uint32_t index, uint32_t thread);
    uint32_t count;
} attend_loop;

/* One index, in the floating-point environment that plugins count on. */
static void do_index(void *argument, uint32_t index, uint32_t thread) {
    const attend_loop *l = argument;
    if (index >= l->count || thread >= l->call->room.threads) return; /* not done: found below */
    kvant_fp_state saved = kvant_fp_enter();
    l->body(l->call, index, thread);
    kvant_fp_leave(saved);
    l->call->done[index] = 1;
}

static kvant_status run_loop(attend_call *call, uint32_t count,
                             void (*body)(attend_call *call, uint32_t index, uint32_t thread),
                             kvant_diag *diag) {
    attend_loop l = {.call = call, .body = body, .count = count};
    uint32_t threads = call->room.threads;
    memset(call->done, 0, count);
    if (call->loop == NULL || count <= 1)
        for (uint32_t i = 0; i < count; i++) do_index(&l, i, 0);
    else
        call->loop(call->loop_context, count, threads, do_index, &l);
    for (uint32_t i = 0; i < count; i++)
        if (!call->done[i])
            return kvant_fail(
                diag, KVANT_ERROR_ARGUMENT, "loop",
                "layer %u attention: options.loop returned before index %u of %u was done, or gave "
                "it a thread number not below %u",
                call->a->layer, i, count, threads);
    return KVANT_OK;
}

/* ---- The call ------------------------------------------------------------------------------------------ */

static kvant_status blame(const attend_call *call, kvant_status status, const char *plugin_call,
                          const attend_unit *unit, kvant_diag *diag) {
    return kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "",
                      "layer %u attention: codec %s or %s: %s failed for head %u: %s", call->a->layer,
                      call->a->rows[KVANT_SIDE_KEY]->codec, call->a->rows[KVANT_SIDE_VALUE]->codec,
                      plugin_call, unit->head, kvant_status_text(status));
}

static kvant_status find_failure(const attend_call *call, const attend_wave *wave, kvant_diag *diag) {
    for (uint32_t i = 0; i < wave->unit_count; i++)
        if (wave->units[i].status != KVANT_OK)
            return blame(call, wave->units[i].status, wave->units[i].call, &wave->units[i], diag);
    for (uint32_t i = 0; i < wave->item_count; i++)
        if (wave->items[i].status != KVANT_OK)
            return blame(call, wave->items[i].status, wave->items[i].call, &wave->units[wave->items[i].unit],
                         diag);
    return KVANT_OK;
}

static kvant_status run_waves(attend_call *call, kvant_diag *diag) {
    call->now = &call->waves[0];
    call->next = &call->waves[1];
    while (fill_wave(call, call->next) || call->now->unit_count != 0) {
        kvant_status status =
            run_loop(call, call->now->unit_count + call->next->unit_count, merge_or_begin, diag);
        if (status == KVANT_OK) status = find_failure(call, call->now, diag);
        if (status == KVANT_OK) status = find_failure(call, call->next, diag);
        if (status != KVANT_OK) return status;
        attend_wave *merged = call->now;
        call->now = call->next;
        call->next = merged;
        status = run_loop(call, call->now->item_count, run_item, diag);
        if (status == KVANT_OK) status = find_failure(call, call->now, diag);
        if (status != KVANT_OK) return status;
    }
    return KVANT_OK;
}

static void place_waves(attend_call *call) {
    char *at = call->scratch + call->room.waves_at;
    size_t slots = call->room.slots;
    for (int i = 0; i < 2; i++) call->waves[i].units = (attend_unit *)(void *)at + (size_t)i * slots;
    at += 2 * slots * sizeof(attend_unit);
    for (int i = 0; i < 2; i++) call->waves[i].items = (attend_item *)(void *)at + (size_t)i * slots;
    at += 2 * slots * sizeof(attend_item);
    call->done = (unsigned char *)at;
}

kvant_status kvant_attention_run(const kvant_attention *attention, const kvant_attention_sequence *sequences,
                                 uint32_t sequence_count, const kvant_attention_options *options,
                                 void *scratch, size_t scratch_size, kvant_diag *diag) {
    if (attention == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_attention_run: attention is NULL");
    kvant_status status = attend_check(attention, sequences, sequence_count, options, diag);
    if (status != KVANT_OK) return status;
    attend_call call = {.a = attention,
                        .sequences = sequences,
                        .sequence_count = sequence_count,
                        .options = options,
                        .heads_end = attend_heads_end(attention, options),
                        .scratch = scratch};
    uint32_t rows = 0;
    for (uint32_t i = 0; i < sequence_count; i++) {
        uint32_t own = attend_sequence_at(sequences, i)->queries->tokens;
        if (own > rows) rows = own;
    }
    if (rows == 0) return KVANT_OK;
    bool fits = attend_room_make(attention, options->threads, rows, &call.room);
    if (!fits || call.room.total > scratch_size)
        return kvant_fail(
            diag, KVANT_ERROR_CAPACITY, "scratch",
            "layer %u attention: scratch of %zu bytes, and %u threads with %u query rows take %zu",
            attention->layer, scratch_size, call.room.threads, rows, call.room.total);
    if (scratch == NULL || ((uintptr_t)scratch & 63) != 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "scratch",
                          "layer %u attention: scratch is NULL or not aligned to 64 bytes", attention->layer);
    place_waves(&call);
    attend_team *team = options->loop == NULL ? attend_team_start(call.room.threads) : NULL;
    if (team != NULL) {
        call.loop = attend_team_loop;
        call.loop_context = team;
    } else if (call.room.threads > 1) {
        call.loop = options->loop;
        call.loop_context = options->loop_context;
    }
    status = run_waves(&call, diag);
    attend_team_stop(team);
    return status;
}
