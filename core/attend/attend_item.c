/* One item: the tokens of a span, step by step, as the rows of a unit see them.
 *
 * A step has references of one quotient by step_tokens, or tokens of one raw run. It has three passes: logits
 * of all rows (on codes, or tile by tile on floats), one softmax row after another, values (likewise). A
 * segment is what one reference or the run has of it; its tokens take block_tokens numbers of a row of
 * logits.
 *
 * Tiles begin at multiples of TILE, whatever the rows see, and every row adds only what it sees: so its sums
 * do not depend on its neighbours. */
#include "attend/attend.h"

#include "attend/attend_math.h"
#include "pipeline/turns.h"

#include <kvant/kit/view.h>

#include <math.h>

enum { TILE = KVANT_ATTEND_TILE };

/* What the passes of an item need. */
typedef struct attend_step {
    const kvant_attention *a;
    const attend_unit *unit;
    const attend_unit_state *state;
    const attend_work *work;
    const attend_partial *partial;
    float soft_cap;
    uint32_t rows;
    uint32_t segments;       /* that some row sees */
    const char *call;        /* of a plugin, the last one made */
    uint64_t first_multiple; /* whose turns first_base holds */
} attend_step;

/* ---- Segments ------------------------------------------------------------------------------------------ */

static bool is_coded(const attend_segment *s) {
    return s->reference != NULL;
}

/* The tokens of segment k that position i sees: two numbers. */
static uint32_t *seen(const attend_step *step, uint32_t k, uint32_t i) {
    return step->work->seen + 2 * ((size_t)k * step->unit->positions + i);
}

/* first + offset, cut to [lo, hi], without overflow. */
static uint32_t cut(uint64_t bound, uint64_t position, uint32_t lo, uint32_t hi) {
    if (bound <= position + lo) return lo;
    return bound >= position + hi ? hi : (uint32_t)(bound - position);
}

/* Keeps the segment if some row sees a token of it. */
static void add_segment(attend_step *step, const attend_segment *segment) {
    const kvant_token_range *ranges = step->unit->sequence->ranges + step->unit->first_row;
    attend_segment *kept = &step->work->segments[step->segments];
    *kept = *segment;
    kept->seen_from = segment->hi;
    kept->seen_to = segment->lo;
    for (uint32_t i = 0; i < step->unit->positions; i++) {
        uint32_t *s = seen(step, step->segments, i);
        s[0] = cut(ranges[i].from, segment->position, segment->lo, segment->hi);
        s[1] = cut(ranges[i].to, segment->position, segment->lo, segment->hi);
        if (s[0] >= s[1]) {
            s[0] = s[1] = segment->lo;
            continue;
        }
        if (s[0] < kept->seen_from) kept->seen_from = s[0];
        if (s[1] > kept->seen_to) kept->seen_to = s[1];
    }
    if (kept->seen_from < kept->seen_to) step->segments++;
}

static attend_segment coded_segment(const kvant_reference *r) {
    return (attend_segment){.reference = r,
                            .lo = r->live_first,
                            .hi = r->live_first + r->live_count,
                            .position = r->first_position};
}

/* The segments of the step that begins at a place, and the place after it. */
static attend_place take_step(attend_step *step, attend_place begin, attend_place end) {
    const kvant_attention *a = step->a;
    const kvant_attention_sequence *s = step->unit->sequence;
    attend_place place = begin;
    step->segments = 0;
    if (place.reference == s->reference_count) {
        const kvant_raw_run *run = &s->runs[place.run];
        attend_place next = attend_place_next(s, place, a->step_tokens);
        uint32_t tokens = (next.run == place.run ? next.token : run->keys->tokens) - place.token;
        attend_segment segment = {
            .run = run, .first = place.token, .hi = tokens, .position = run->first_position + place.token};
        add_segment(step, &segment);
        return next;
    }
    uint64_t quotient = s->references[place.reference].first_position / a->step_tokens;
    for (uint32_t taken = 0; taken < a->step_extents; taken++) {
        attend_segment segment = coded_segment(&s->references[place.reference]);
        add_segment(step, &segment);
        place = attend_place_next(s, place, a->step_tokens);
        if (attend_place_is(place, end) || place.reference == s->reference_count ||
            s->references[place.reference].first_position / a->step_tokens != quotient)
            break;
    }
    return place;
}

static float *logits_of(const attend_step *step, uint32_t row, uint32_t segment) {
    return step->work->logits + (size_t)row * step->a->step_tokens + (size_t)segment * step->a->block_tokens;
}

/* ---- Tiles --------------------------------------------------------------------------------------------- */

/* What lies past a row's channels is 0: plugins and views write channels only. */
static void pad_tile(const attend_step *step, uint32_t dim, uint32_t width) {
    for (uint32_t t = 0; t < TILE && dim < width; t++)
        memset(step->work->tile + (size_t)t * width + dim, 0, (width - dim) * sizeof(float));
}

/* Tokens [from, to) of a segment, decoded to the tile's first rows. */
static kvant_status decode_tile(attend_step *step, uint32_t side, const attend_segment *s, uint32_t from,
                                uint32_t to, uint32_t dim, uint32_t width) {
    const kvant_reference *r = s->reference;
    bool key = side == KVANT_SIDE_KEY;
    kvant_extent extent = {.bytes = key ? r->key : r->value,
                           .size = key ? r->key_size : r->value_size,
                           .first_position = r->first_position,
                           .live_first = r->live_first,
                           .live_count = r->live_count};
    kvant_mutable_view rows = {.struct_size = sizeof rows,
                               .dtype = KVANT_DTYPE_F32,
                               .data = step->work->tile,
                               .tokens = to - from,
                               .heads = 1,
                               .head_dim = dim,
                               .token_stride = (int64_t)(width * sizeof(float)),
                               .head_stride = (int64_t)(width * sizeof(float)),
                               .channel_stride = sizeof(float)};
    kvant_decode_args args = {.struct_size = sizeof args,
                              .first_token = from,
                              .first_head = step->unit->head,
                              .extent = &extent,
                              .rows = &rows,
                              .scratch = step->work->plugin};
    step->call = "decode";
    return step->a->rows[side]->plugin->decode(step->a->states[side], &args);
}

static kvant_status fill_tile(attend_step *step, uint32_t side, const attend_segment *s, uint32_t from,
                              uint32_t to) {
    const kvant_attention *a = step->a;
    bool key = side == KVANT_SIDE_KEY;
    uint32_t dim = key ? a->key_dim : a->value_dim, width = key ? a->key_width : a->value_width;
    if (is_coded(s)) return decode_tile(step, side, s, from, to, dim, width);
    const kvant_view *rows = key ? s->run->keys : s->run->values;
    a->kernels->load(rows, s->first + from, to - from, step->unit->head, step->work->tile, width);
    return KVANT_OK;
}

static void turn_tile(const attend_step *step, const attend_segment *s, uint32_t from, uint32_t to) {
    const kvant_attention *a = step->a;
    if (!(is_coded(s) ? a->turns_decoded : a->turns_raw)) return;
    kvant_turn_walk walk = kvant_turn_walk_begin(a->rope, a->turn_table, step->work->base);
    for (uint32_t t = from; t < to; t++) {
        kvant_turn_walk_to(&walk, s->position + t, step->work->turns);
        a->kernels->turn(a->rope, step->work->turns, step->work->tile + (size_t)(t - from) * a->key_width);
    }
}

/* The end of the tile that begins with a token: a multiple of TILE, of positions or within the block. */
static uint32_t tile_end(const attend_segment *s, uint32_t token) {
    uint64_t place = is_coded(s) ? token : s->position + token;
    uint32_t rest = TILE - (uint32_t)(place % TILE);
    return s->seen_to - token < rest ? s->seen_to : token + rest;
}

/* ---- Logits -------------------------------------------------------------------------------------------- */

static kvant_status score_floats(attend_step *step) {
    const kvant_attention *a = step->a;
    pad_tile(step, a->key_dim, a->key_width);
    for (uint32_t k = 0; k < step->segments; k++) {
        const attend_segment *s = &step->work->segments[k];
        for (uint32_t low = s->seen_from, high; low < s->seen_to; low = high) {
            high = tile_end(s, low);
            kvant_status status = fill_tile(step, KVANT_SIDE_KEY, s, low, high);
            if (status != KVANT_OK) return status;
            turn_tile(step, s, low, high);
            for (uint32_t r = 0; r < step->rows; r++)
                a->kernels->dot(step->state->queries + (size_t)r * a->key_width, step->work->tile, high - low,
                                a->key_width, logits_of(step, r, k) + low);
        }
    }
    return KVANT_OK;
}

static kvant_status score_codes(attend_step *step) {
    const kvant_attention *a = step->a;
    bool turns = a->offset_turns != NULL;
    for (uint32_t k = 0; k < step->segments; k++) {
        const attend_segment *s = &step->work->segments[k];
        step->work->extents[k] = (kvant_extent){.bytes = s->reference->key,
                                                .size = s->reference->key_size,
                                                .first_position = s->position,
                                                .live_first = s->seen_from,
                                                .live_count = s->seen_to - s->seen_from};
        if (turns)
            attend_turns_first(a, s->position, &step->first_multiple, step->work->first_base,
                               step->work->first_turns + 2 * (size_t)k * a->pairs);
    }
    kvant_score_args args = {.struct_size = sizeof args,
                             .first_head = step->unit->head,
                             .heads = 1,
                             .rows = step->rows,
                             .query_state = step->state->prepared,
                             .extents = step->work->extents,
                             .extent_count = step->segments,
                             .offset_count = a->block_tokens,
                             .first_turns = turns ? step->work->first_turns : NULL,
                             .offset_turns = a->offset_turns,
                             .logits = step->work->logits,
                             .logit_stride = a->step_tokens,
                             .scratch = step->work->plugin};
    step->call = "score";
    return a->codes[KVANT_SIDE_KEY]->score(a->states[KVANT_SIDE_KEY], &args);
}

/* ---- Softmax ------------------------------------------------------------------------------------------- */

/* Weights of 0 for a row of which a logit is not a number, or which has no largest one: codecs are promised
 * numbers in [0, 1]. What was not a number makes NaN of the row's sum, and so of all it gives. */
static void weigh_nothing(const attend_step *step, uint32_t r, uint32_t position) {
    for (uint32_t k = 0; k < step->segments; k++) {
        const uint32_t *s = seen(step, k, position);
        float *x = logits_of(step, r, k);
        for (uint32_t t = s[0]; t < s[1]; t++) {
            if (x[t] != x[t]) step->partial->sum[r] = NAN;
            x[t] = 0;
        }
    }
}

static void weigh_row(const attend_step *step, uint32_t r) {
    const kvant_attention *a = step->a;
    const attend_partial *p = step->partial;
    uint32_t position = r / a->group, tokens = 0;
    float most = -INFINITY;
    for (uint32_t k = 0; k < step->segments; k++) {
        const uint32_t *s = seen(step, k, position);
        if (s[0] == s[1]) continue;
        float bias = is_coded(&step->work->segments[k]) ? step->state->bias[r] : 0;
        float largest = a->kernels->settle(logits_of(step, r, k) + s[0], s[1] - s[0], bias, step->soft_cap);
        if (largest > most) most = largest;
        tokens += s[1] - s[0];
    }
    if (tokens == 0) return;
    if (most == -INFINITY) {
        weigh_nothing(step, r, position);
        return;
    }
    if (most > p->largest[r]) {
        float keep = p->largest[r] == -INFINITY ? 0 : kvant_attend_exp(p->largest[r] - most);
        p->largest[r] = most;
        p->sum[r] *= keep;
        a->kernels->scale(p->coded + (size_t)r * a->mix_width, a->mix_width, keep);
        a->kernels->scale(p->plain + (size_t)r * a->value_width, a->value_width, keep);
    }
    for (uint32_t k = 0; k < step->segments; k++) {
        const uint32_t *s = seen(step, k, position);
        if (s[0] < s[1])
            p->sum[r] += a->kernels->weigh(logits_of(step, r, k) + s[0], s[1] - s[0], p->largest[r]);
    }
    if (p->sum[r] != p->sum[r]) weigh_nothing(step, r, position);
}

/* ---- Values -------------------------------------------------------------------------------------------- */

static kvant_status mix_floats(attend_step *step) {
    const kvant_attention *a = step->a;
    pad_tile(step, a->value_dim, a->value_width);
    for (uint32_t k = 0; k < step->segments; k++) {
        const attend_segment *s = &step->work->segments[k];
        for (uint32_t low = s->seen_from, high; low < s->seen_to; low = high) {
            high = tile_end(s, low);
            kvant_status status = fill_tile(step, KVANT_SIDE_VALUE, s, low, high);
            if (status != KVANT_OK) return status;
            for (uint32_t r = 0; r < step->rows; r++) {
                const uint32_t *own = seen(step, k, r / a->group);
                uint32_t from = own[0] > low ? own[0] : low, to = own[1] < high ? own[1] : high;
                if (from >= to) continue;
                a->kernels->mix(
                    step->partial->plain + (size_t)r * a->value_width, logits_of(step, r, k) + from,
                    step->work->tile + (size_t)(from - low) * a->value_width, to - from, a->value_width);
            }
        }
    }
    return KVANT_OK;
}

/* Segments [k, end) as `positions` rows from `position` on see them, all alike. */
static kvant_status mix_run(attend_step *step, uint32_t k, uint32_t end, uint32_t position,
                            uint32_t positions) {
    const kvant_attention *a = step->a;
    uint32_t row = position * a->group;
    for (uint32_t i = k; i < end; i++) {
        const attend_segment *s = &step->work->segments[i];
        const uint32_t *own = seen(step, i, position);
        step->work->extents[i] = (kvant_extent){.bytes = s->reference->value,
                                                .size = s->reference->value_size,
                                                .first_position = s->position,
                                                .live_first = own[0],
                                                .live_count = own[1] - own[0]};
    }
    kvant_mix_args args = {.struct_size = sizeof args,
                           .first_head = step->unit->head,
                           .heads = 1,
                           .rows = positions * a->group,
                           .extents = step->work->extents + k,
                           .extent_count = end - k,
                           .weights = logits_of(step, row, k),
                           .weight_stride = a->step_tokens,
                           .accumulators = step->partial->coded + (size_t)row * a->mix_width,
                           .accumulator_stride = a->mix_width,
                           .scratch = step->work->plugin};
    step->call = "mix";
    return a->codes[KVANT_SIDE_VALUE]->mix(a->states[KVANT_SIDE_VALUE], &args);
}

static bool see_alike(const attend_step *step, uint32_t i, uint32_t j) {
    for (uint32_t k = 0; k < step->segments; k++)
        if (memcmp(seen(step, k, i), seen(step, k, j), 2 * sizeof(uint32_t)) != 0) return false;
    return true;
}

/* Rows that see the same tokens share a call; an extent of which they see nothing is left out. */
static kvant_status mix_codes(attend_step *step) {
    uint32_t positions = step->unit->positions, alike;
    for (uint32_t i = 0; i < positions; i += alike) {
        for (alike = 1; i + alike < positions && see_alike(step, i, i + alike);) alike++;
        for (uint32_t k = 0; k < step->segments; k++) {
            uint32_t end = k;
            while (end < step->segments && seen(step, end, i)[0] < seen(step, end, i)[1]) end++;
            kvant_status status = end > k ? mix_run(step, k, end, i, alike) : KVANT_OK;
            if (status != KVANT_OK) return status;
            k = end;
        }
    }
    return KVANT_OK;
}

/* ---- The item ------------------------------------------------------------------------------------------ */

static kvant_status run_step(attend_step *step) {
    bool coded = is_coded(&step->work->segments[0]);
    const kvant_attention *a = step->a;
    kvant_status status = coded && a->codes[KVANT_SIDE_KEY] != NULL ? score_codes(step) : score_floats(step);
    if (status != KVANT_OK) return status;
    for (uint32_t r = 0; r < step->rows; r++) weigh_row(step, r);
    return coded && a->codes[KVANT_SIDE_VALUE] != NULL ? mix_codes(step) : mix_floats(step);
}

kvant_status attend_item_run(const kvant_attention *a, const attend_unit *unit, attend_item *item,
                             float soft_cap, const attend_unit_state *state, const attend_work *work,
                             const attend_partial *partial) {
    attend_step step = {.a = a,
                        .unit = unit,
                        .state = state,
                        .work = work,
                        .partial = partial,
                        .soft_cap = soft_cap,
                        .rows = unit->positions * a->group,
                        .call = "",
                        .first_multiple = UINT64_MAX};
    attend_partial_clear(a, partial, step.rows);
    kvant_status status = KVANT_OK;
    for (attend_place place = item->begin; !attend_place_is(place, item->end) && status == KVANT_OK;) {
        place = take_step(&step, place, item->end);
        if (step.segments != 0) status = run_step(&step);
    }
    item->call = step.call;
    return status;
}
