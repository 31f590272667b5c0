/* The walk over a sequence, span by span, and what happens to a unit before its first item and after each of
 * them. See attend.h. */
#include "attend/attend.h"

#include "attend/attend_math.h"

#include <kvant/kit/math.h>
#include <kvant/kit/view.h>

#include <math.h>

/* ---- Spans --------------------------------------------------------------------------------------------- */

bool attend_place_is_end(const kvant_attention_sequence *s, attend_place place) {
    return place.reference == s->reference_count && place.run == s->run_count;
}

static uint64_t position_of(const kvant_attention_sequence *s, attend_place place) {
    if (place.reference < s->reference_count) return s->references[place.reference].first_position;
    return s->runs[place.run].first_position + place.token;
}

/* Over references and runs that have no tokens. */
static attend_place skip_empty(const kvant_attention_sequence *s, attend_place place) {
    while (place.reference < s->reference_count && s->references[place.reference].live_count == 0)
        place.reference++;
    while (place.reference == s->reference_count && place.run < s->run_count &&
           s->runs[place.run].keys->tokens == 0)
        place.run++;
    return place;
}

attend_place attend_place_first(const kvant_attention_sequence *s) {
    return skip_empty(s, (attend_place){0, 0, 0});
}

attend_place attend_place_next(const kvant_attention_sequence *s, attend_place place, uint32_t period) {
    if (place.reference < s->reference_count) {
        place.reference++;
        return skip_empty(s, place);
    }
    uint32_t left = s->runs[place.run].keys->tokens - place.token;
    uint64_t rest = period - position_of(s, place) % period;
    if (rest < left) {
        place.token += (uint32_t)rest;
        return place;
    }
    return skip_empty(s, (attend_place){place.reference, place.run + 1, 0});
}

attend_place attend_span_end(const kvant_attention *a, const kvant_attention_sequence *s,
                             attend_place begin) {
    uint64_t span = position_of(s, begin) / a->span_tokens;
    attend_place place = attend_place_next(s, begin, a->span_tokens);
    while (!attend_place_is_end(s, place) && position_of(s, place) / a->span_tokens == span)
        place = attend_place_next(s, place, a->span_tokens);
    return place;
}

bool attend_place_is(attend_place x, attend_place y) {
    return x.reference == y.reference && x.run == y.run && x.token == y.token;
}

bool attend_span_is_seen(const kvant_attention *a, const attend_unit *unit, attend_place begin,
                         attend_place end) {
    const kvant_attention_sequence *s = unit->sequence;
    attend_place place = begin;
    while (!attend_place_is(place, end)) {
        attend_place next = attend_place_next(s, place, a->span_tokens);
        uint64_t first = position_of(s, place), count;
        if (place.reference < s->reference_count) {
            first += s->references[place.reference].live_first;
            count = s->references[place.reference].live_count;
        } else {
            count = (next.run == place.run ? next.token : s->runs[place.run].keys->tokens) - place.token;
        }
        if (count != 0 && first < unit->to && first + count > unit->from) return true;
        place = next;
    }
    return false;
}

/* ---- Begin --------------------------------------------------------------------------------------------- */

static uint32_t rows_of(const kvant_attention *a, const attend_unit *unit) {
    return unit->positions * a->group;
}

void attend_partial_clear(const kvant_attention *a, const attend_partial *p, uint32_t rows) {
    for (uint32_t r = 0; r < rows; r++) {
        p->largest[r] = -INFINITY;
        p->sum[r] = 0;
    }
    memset(p->coded, 0, (size_t)rows * a->mix_width * sizeof *p->coded);
    memset(p->plain, 0, (size_t)rows * a->value_width * sizeof *p->plain);
}

static void load_queries(const kvant_attention *a, const attend_unit *unit, float scale, float *queries) {
    for (uint32_t i = 0; i < unit->positions; i++)
        for (uint32_t g = 0; g < a->group; g++) {
            float *row = queries + ((size_t)i * a->group + g) * a->key_width;
            kvant_load_row(unit->sequence->queries, unit->first_row + i, unit->head * a->group + g, row);
            for (uint32_t c = 0; c < a->key_dim; c++) row[c] *= scale;
            for (uint32_t c = a->key_dim; c < a->key_width; c++) row[c] = 0;
        }
}

/* The tile is free until the first item: it holds the mean. */
static void add_bias(const kvant_attention *a, const attend_unit *unit, const attend_unit_state *state,
                     const attend_work *work) {
    const float *center = a->center + (size_t)unit->head * a->key_dim;
    for (uint32_t c = 0; c < a->key_width; c++) work->tile[c] = c < a->key_dim ? center[c] : 0;
    for (uint32_t r = 0; r < rows_of(a, unit); r++)
        a->kernels->dot(state->queries + (size_t)r * a->key_width, work->tile, 1, a->key_width,
                        &state->bias[r]);
}

kvant_status attend_unit_begin(const kvant_attention *a, attend_unit *unit, float scale,
                               const attend_unit_state *state, const attend_work *work) {
    uint32_t rows = rows_of(a, unit);
    attend_partial_clear(a, &state->total, rows);
    load_queries(a, unit, scale, state->queries);
    if (a->center != NULL)
        add_bias(a, unit, state, work);
    else
        memset(state->bias, 0, rows * sizeof *state->bias);
    if (a->codes[KVANT_SIDE_KEY] == NULL) return KVANT_OK;
    kvant_query_args args = {.struct_size = sizeof args,
                             .first_head = unit->head,
                             .heads = 1,
                             .rows = rows,
                             .queries = state->queries,
                             .query_stride = a->key_width,
                             .query_state = state->prepared,
                             .scratch = work->plugin};
    unit->call = "query";
    return a->codes[KVANT_SIDE_KEY]->query(a->states[KVANT_SIDE_KEY], &args);
}

/* ---- Merge --------------------------------------------------------------------------------------------- */

void attend_unit_merge(const kvant_attention *a, const attend_unit *unit, const attend_unit_state *state,
                       const attend_partial *partial) {
    const attend_partial *total = &state->total;
    for (uint32_t r = 0; r < rows_of(a, unit); r++) {
        float old = total->largest[r], new = partial->largest[r];
        if (new == -INFINITY && partial->sum[r] == 0) continue;
        float largest = new > old ? new : old;
        float keep = old == -INFINITY && total->sum[r] == 0 ? 0 : kvant_attend_exp(old - largest);
        float take = kvant_attend_exp(new - largest);
        total->largest[r] = largest;
        total->sum[r] = total->sum[r] * keep + partial->sum[r] * take;
        size_t coded = (size_t)r * a->mix_width, plain = (size_t)r * a->value_width;
        a->kernels->merge(total->coded + coded, keep, partial->coded + coded, take, a->mix_width);
        a->kernels->merge(total->plain + plain, keep, partial->plain + plain, take, a->value_width);
    }
}

/* ---- End ----------------------------------------------------------------------------------------------- */

/* The accumulators in the codec's space, back in plain space. */
static kvant_status finish_codes(const kvant_attention *a, attend_unit *unit, const attend_unit_state *state,
                                 const attend_work *work) {
    kvant_finish_args args = {.struct_size = sizeof args,
                              .first_head = unit->head,
                              .heads = 1,
                              .rows = rows_of(a, unit),
                              .accumulators = state->total.coded,
                              .accumulator_stride = a->mix_width,
                              .outputs = work->outputs,
                              .output_stride = a->value_width,
                              .scratch = work->plugin};
    unit->call = "finish";
    return a->codes[KVANT_SIDE_VALUE]->finish(a->states[KVANT_SIDE_VALUE], &args);
}

static void write_row(const kvant_attention *a, const attend_unit *unit, const attend_partial *total,
                      const attend_work *work, uint32_t r) {
    uint32_t row = unit->first_row + r / a->group, head = unit->head * a->group + r % a->group;
    const float *plain = total->plain + (size_t)r * a->value_width;
    float *output = work->outputs + (size_t)r * a->value_width, sum = total->sum[r];
    bool nothing = total->largest[r] == -INFINITY && sum == 0;
    bool coded = a->mix_width != 0;
    for (uint32_t c = 0; c < a->value_dim; c++)
        output[c] = nothing ? 0 : (coded ? output[c] + plain[c] : plain[c]) / sum;
    kvant_store_row(unit->sequence->outputs, row, head, output);
    if (unit->sequence->log_sum_exp != NULL)
        unit->sequence->log_sum_exp[(size_t)row * a->q_heads + head] =
            nothing ? -INFINITY : (float)((double)total->largest[r] + kvant_log((double)sum));
}

kvant_status attend_unit_end(const kvant_attention *a, attend_unit *unit, const attend_unit_state *state,
                             const attend_work *work) {
    kvant_status status = a->mix_width != 0 ? finish_codes(a, unit, state, work) : KVANT_OK;
    for (uint32_t r = 0; r < rows_of(a, unit) && status == KVANT_OK; r++)
        write_row(a, unit, &state->total, work, r);
    return status;
}
