/* The check of kvant.attend/1: logits and mixes on codes against those of the decoded rows in double
 * precision, in whole runs, extent by extent, row by row, over part of the tokens, and on arbitrary bytes. */
#include "check_compare.h"
#include "check_promise.h"

#include "plugin/fpenv.h"

#include <kvant/kit/rope.h>
#include <kvant/kvant.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXTENTS = 2, ROWS = 3, POISON = 0xa5, ATTEND_LIMIT = 1 << 17, STRIDE_GAP = 16, POSITION = 1000 };

/* One shape of call: heads [first_head, +heads), rows [first_row, +rows) of each, extents [first, +count). */
typedef struct shape {
    uint32_t first_head, heads, first_row, rows, first_extent, extents;
} shape;

typedef struct attend_case {
    check_context *context;
    const kvant_attend *attend;
    check_extent coded[EXTENTS];
    kvant_extent look[EXTENTS];
    float *decoded[EXTENTS]; /* [token, head, channel], turned where the codec keeps keys before RoPE */
    float *input;            /* queries [head, ROWS, dim], or weights [head, ROWS, EXTENTS * tokens] */
    float *result;           /* logits [head, ROWS, EXTENTS * tokens], or outputs [head, ROWS, dim] */
    float *first_turns, *offset_turns;
    uint32_t tokens, heads, dim;
    bool keys;
} attend_case;

static size_t input_width(const attend_case *a) {
    return a->keys ? a->dim : (size_t)EXTENTS * a->tokens;
}

static size_t result_width(const attend_case *a) {
    return a->keys ? (size_t)EXTENTS * a->tokens : a->dim;
}

static void *must_allocate(size_t count, size_t width) {
    void *memory = calloc(count + 1, width);
    if (memory == NULL) check_out_of_memory();
    return memory;
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

static kvant_fp_state call_begin(check_worker *worker) {
    atomic_store(&worker->slot->call, CHECK_CALL_ATTEND);
    atomic_fetch_add(&worker->slot->beat, 1);
    return kvant_fp_enter();
}

static void call_end(check_worker *worker, kvant_fp_state saved) {
    kvant_fp_leave(saved);
    atomic_store(&worker->slot->call, CHECK_CALL_NONE);
}

static void make_buffer(attend_case *a, check_buffer *buffer, const char *name, size_t size, size_t alignment,
                        unsigned char byte) {
    if (!check_buffer_create(&a->context->worker->buffers, buffer, name, size, alignment, 0))
        check_out_of_memory();
    check_buffer_fill(buffer, byte);
}

static void end_buffer(attend_case *a, check_buffer *buffer, const char *call) {
    ptrdiff_t offset;
    if (check_buffer_damaged(buffer, &offset))
        check_fail(a->context->worker, CHECK_BOUNDS, "%s wrote at offset %td of %s of %zu bytes", call,
                   offset, buffer->name, buffer->size);
    check_buffer_free(&a->context->worker->buffers, buffer);
}

/* The rows of a shape out of an array [head, ROWS, width], at a stride. */
static void gather(const attend_case *a, const shape *s, const float *from, size_t width, float *to,
                   size_t stride) {
    for (uint32_t h = 0; h < s->heads; h++)
        for (uint32_t r = 0; r < s->rows; r++)
            memcpy(to + ((size_t)h * s->rows + r) * stride,
                   from + ((size_t)(s->first_head + h) * ROWS + s->first_row + r) * width,
                   width * sizeof *to);
    (void)a;
}

static size_t scratch_size(const attend_case *a, const shape *s) {
    const kvant_layout *l = &a->context->layout;
    return (size_t)(l->attend_scratch_bytes + (uint64_t)s->heads * s->rows * l->attend_scratch_row);
}

/* query and score into logits [rows of the shape, extents of the shape * tokens] over poison. */
static kvant_status score(attend_case *a, const shape *s, unsigned char poison, uint32_t *logits) {
    check_context *context = a->context;
    size_t rows = (size_t)s->heads * s->rows, width = (size_t)s->extents * a->tokens;
    size_t query_stride = a->dim + STRIDE_GAP, logit_stride = width + STRIDE_GAP;
    size_t pairs =
        context->configuration.setup.rope != NULL ? context->configuration.setup.rope->rotary_dim : 0;
    check_buffer queries, state, scratch, output;
    make_buffer(a, &queries, "queries", rows * query_stride * 4, 64, 0xff);
    make_buffer(a, &state, "query_state", rows * (size_t)context->layout.query_state_bytes, 64, poison);
    make_buffer(a, &scratch, "scratch", scratch_size(a, s), 64, poison);
    make_buffer(a, &output, "logits", rows * logit_stride * 4, 64, poison);
    gather(a, s, a->input, a->dim, (float *)(void *)queries.data, query_stride);
    check_buffer_protect(&queries, true);
    const kvant_query_args query = {.struct_size = sizeof query,
                                    .first_head = s->first_head,
                                    .heads = s->heads,
                                    .rows = s->rows,
                                    .queries = (const float *)(const void *)queries.data,
                                    .query_stride = query_stride,
                                    .query_state = state.data,
                                    .scratch = scratch.data};
    const kvant_score_args args = {
        .struct_size = sizeof args,
        .first_head = s->first_head,
        .heads = s->heads,
        .rows = s->rows,
        .query_state = state.data,
        .extents = a->look + s->first_extent,
        .extent_count = s->extents,
        .offset_count = a->tokens,
        .first_turns = a->first_turns != NULL ? a->first_turns + s->first_extent * pairs : NULL,
        .offset_turns = a->offset_turns,
        .logits = (float *)(void *)output.data,
        .logit_stride = logit_stride,
        .scratch = scratch.data};
    kvant_fp_state saved = call_begin(context->worker);
    kvant_status status = a->attend->query(context->subject.state.data, &query);
    check_buffer_protect(&state, true);
    if (status == KVANT_OK) {
        check_buffer_fill(&scratch, (unsigned char)~poison);
        status = a->attend->score(context->subject.state.data, &args);
    }
    call_end(context->worker, saved);
    check_buffer_protect(&state, false);
    for (size_t r = 0; r < rows; r++)
        memcpy(logits + r * width, output.data + r * logit_stride * 4, width * 4);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = width * 4; i < logit_stride * 4; i++)
            if (output.data[r * logit_stride * 4 + i] != poison) {
                check_fail(context->worker, CHECK_BOUNDS, "score wrote behind a row of logits");
                r = rows - 1;
                break;
            }
    end_buffer(a, &queries, "score");
    end_buffer(a, &state, "query");
    end_buffer(a, &scratch, "score");
    end_buffer(a, &output, "score");
    return status;
}

/* mix and finish into outputs [rows of the shape, dim]; the run of extents in one call or in several. */
static kvant_status mix(attend_case *a, const shape *s, unsigned char poison, bool apart, uint32_t *outputs) {
    check_context *context = a->context;
    const kvant_layout *l = &context->layout;
    size_t rows = (size_t)s->heads * s->rows, width = (size_t)EXTENTS * a->tokens;
    size_t weight_stride = width + STRIDE_GAP, output_stride = a->dim + STRIDE_GAP;
    size_t accumulator_stride = ((size_t)l->mix_width + 15) / 16 * 16 + 16;
    check_buffer weights, accumulators, scratch, output;
    make_buffer(a, &weights, "weights", rows * weight_stride * 4, 64, 0xff);
    make_buffer(a, &accumulators, "accumulators", rows * accumulator_stride * 4, 64, 0);
    make_buffer(a, &scratch, "scratch", scratch_size(a, s), 64, poison);
    make_buffer(a, &output, "outputs", rows * output_stride * 4, 64, poison);
    gather(a, s, a->input, width, (float *)(void *)weights.data, weight_stride);
    check_buffer_protect(&weights, true);
    kvant_fp_state saved = call_begin(context->worker);
    kvant_status status = KVANT_OK;
    uint32_t step = apart ? 1 : s->extents;
    for (uint32_t e = 0; e < s->extents && status == KVANT_OK; e += step) {
        const kvant_mix_args args = {.struct_size = sizeof args,
                                     .first_head = s->first_head,
                                     .heads = s->heads,
                                     .rows = s->rows,
                                     .extents = a->look + s->first_extent + e,
                                     .extent_count = step,
                                     .weights = (const float *)(const void *)weights.data +
                                                (size_t)(s->first_extent + e) * a->tokens,
                                     .weight_stride = weight_stride,
                                     .accumulators = (float *)(void *)accumulators.data,
                                     .accumulator_stride = accumulator_stride,
                                     .scratch = scratch.data};
        status = a->attend->mix(context->subject.state.data, &args);
    }
    const kvant_finish_args finish = {.struct_size = sizeof finish,
                                      .first_head = s->first_head,
                                      .heads = s->heads,
                                      .rows = s->rows,
                                      .accumulators = (const float *)(const void *)accumulators.data,
                                      .accumulator_stride = accumulator_stride,
                                      .outputs = (float *)(void *)output.data,
                                      .output_stride = output_stride,
                                      .scratch = scratch.data};
    if (status == KVANT_OK) status = a->attend->finish(context->subject.state.data, &finish);
    call_end(context->worker, saved);
    for (size_t r = 0; r < rows; r++)
        memcpy(outputs + r * a->dim, output.data + r * output_stride * 4, (size_t)a->dim * 4);
    end_buffer(a, &weights, "mix");
    end_buffer(a, &accumulators, "mix");
    end_buffer(a, &scratch, "mix");
    end_buffer(a, &output, "finish");
    return status;
}

static kvant_status attend(attend_case *a, const shape *s, unsigned char poison, bool apart, uint32_t *bits) {
    return a->keys ? score(a, s, poison, bits) : mix(a, s, poison, apart, bits);
}

/* ---- What must come out -------------------------------------------------------------------------------- */

static float value_at(const attend_case *a, uint32_t e, uint32_t t, uint32_t h, uint32_t c) {
    return a->decoded[e][((size_t)t * a->heads + h) * a->dim + c];
}

/* Logit or output `i` of a row, and the same sum of absolute products. */
static double expected(const attend_case *a, uint32_t h, const float *in, size_t i, double *absolute) {
    double sum = 0;
    *absolute = 0;
    if (a->keys) {
        for (uint32_t c = 0; c < a->dim; c++) {
            double p = (double)in[c] *
                       (double)value_at(a, (uint32_t)(i / a->tokens), (uint32_t)(i % a->tokens), h, c);
            sum += p;
            *absolute += fabs(p);
        }
        return sum;
    }
    for (uint32_t e = 0; e < EXTENTS; e++)
        for (uint32_t t = 0; t < a->tokens; t++) {
            double p = (double)in[(size_t)e * a->tokens + t] * (double)value_at(a, e, t, h, (uint32_t)i);
            sum += p;
            *absolute += fabs(p);
        }
    return sum;
}

static void compare_with_decoded(attend_case *a) {
    size_t width = result_width(a);
    for (uint32_t h = 0; h < a->heads; h++)
        for (uint32_t r = 0; r < ROWS; r++) {
            const float *in = a->input + ((size_t)h * ROWS + r) * input_width(a);
            const float *out = a->result + ((size_t)h * ROWS + r) * width;
            double error = 0, size = 0;
            for (size_t i = 0; i < width; i++) {
                double absolute, e = (double)out[i] - expected(a, h, in, i, &absolute);
                error += e * e;
                size += absolute * absolute;
            }
            double tolerance = a->context->layout.attend_tolerance;
            if (!(sqrt(error) <= tolerance * sqrt(size))) {
                check_fail(a->context->worker, CHECK_ATTEND,
                           "%s of head %u, row %u: the error is %.4g of the sums of absolute products, "
                           "attend_tolerance is %.4g",
                           a->keys ? "logits" : "the mix", h, r, sqrt(error) / sqrt(size), tolerance);
                return;
            }
        }
}

/* The results of a smaller call against those of the whole. */
static void compare_shape(attend_case *a, const shape *s, bool apart, const char *situation) {
    size_t rows = (size_t)s->heads * s->rows;
    size_t width = a->keys ? (size_t)s->extents * a->tokens : a->dim;
    uint32_t *bits = must_allocate(rows * width, sizeof *bits);
    kvant_status status = attend(a, s, (unsigned char)~POISON, apart, bits);
    if (status != KVANT_OK)
        check_fail(a->context->worker, CHECK_ATTEND, "%s: status %d (%s)", situation, status,
                   kvant_status_text(status));
    for (uint32_t h = 0; h < s->heads && status == KVANT_OK; h++)
        for (uint32_t r = 0; r < s->rows; r++) {
            const float *whole = a->result +
                                 ((size_t)(s->first_head + h) * ROWS + s->first_row + r) * result_width(a) +
                                 (a->keys ? (size_t)s->first_extent * a->tokens : 0);
            if (memcmp(whole, bits + ((size_t)h * s->rows + r) * width, width * sizeof *bits) == 0) continue;
            check_fail(a->context->worker, CHECK_ATTEND, "%s: other numbers than in one call for all",
                       situation);
            status = KVANT_ERROR_MISMATCH;
            break;
        }
    free(bits);
}

/* Part of the tokens live: logits elsewhere are not touched, weights elsewhere are not read. */
static void try_live_range(attend_case *a) {
    check_worker *worker = a->context->worker;
    const shape all = {.heads = a->heads, .rows = ROWS, .extents = EXTENTS};
    uint32_t first = a->tokens / 3, count = a->tokens - first - a->tokens / 5;
    size_t width = result_width(a), rows = (size_t)a->heads * ROWS;
    uint32_t *bits = must_allocate(rows * width, sizeof *bits);
    float *kept = a->input, *holes = must_allocate(rows * input_width(a), sizeof *holes);
    a->look[1].live_first = first;
    a->look[1].live_count = count;
    memcpy(holes, kept, rows * input_width(a) * sizeof *holes);
    for (size_t r = 0; r < rows && !a->keys; r++)
        for (uint32_t t = 0; t < a->tokens; t++)
            if (t < first || t >= first + count) {
                holes[r * input_width(a) + a->tokens + t] = NAN;
                kept[r * input_width(a) + a->tokens + t] = 0;
            }
    a->input = holes;
    kvant_status status = attend(a, &all, POISON, false, bits);
    a->input = kept;
    if (status != KVANT_OK)
        check_fail(worker, CHECK_ATTEND, "with part of the tokens live: status %d (%s)", status,
                   kvant_status_text(status));
    else if (a->keys) {
        uint32_t untouched;
        memset(&untouched, POISON, sizeof untouched);
        for (size_t r = 0; r < rows; r++)
            for (uint32_t t = 0; t < a->tokens; t++) {
                bool lives = t >= first && t < first + count;
                size_t at = r * width + a->tokens + t;
                if (lives ? memcmp(&bits[at], &a->result[at], 4) == 0 : bits[at] == untouched) continue;
                check_fail(worker, CHECK_ATTEND,
                           lives ? "token %u lives in a shorter range: another logit"
                                 : "token %u does not live, and its logit was written",
                           t);
                r = rows - 1;
                break;
            }
    } else {
        memcpy(a->result, bits, rows * width * sizeof *bits);
        compare_with_decoded(a);
    }
    a->look[1].live_first = 0;
    a->look[1].live_count = a->tokens;
    free(holes);
    free(bits);
}

static void try_arbitrary_bytes(attend_case *a) {
    check_worker *worker = a->context->worker;
    const shape all = {.heads = a->heads, .rows = ROWS, .extents = EXTENTS};
    uint32_t *bits = must_allocate((size_t)a->heads * ROWS * result_width(a), sizeof *bits);
    check_buffer bytes[EXTENTS];
    for (uint32_t e = 0; e < EXTENTS; e++) {
        make_buffer(a, &bytes[e], "extent", (size_t)a->look[e].size, a->context->layout.alignment, 0xff);
        for (size_t i = 0; e == 0 && i < bytes[e].size; i++)
            bytes[e].data[i] = (unsigned char)check_random_next(&a->context->random);
        check_buffer_protect(&bytes[e], true);
        a->look[e].bytes = bytes[e].data;
    }
    worker->running = CHECK_ARBITRARY;
    atomic_store(&worker->slot->check, CHECK_ARBITRARY);
    (void)attend(a, &all, POISON, false, bits);
    worker->running = CHECK_ATTEND;
    atomic_store(&worker->slot->check, CHECK_ATTEND);
    for (uint32_t e = 0; e < EXTENTS; e++) {
        a->look[e].bytes = a->coded[e].buffer.data;
        check_buffer_free(&worker->buffers, &bytes[e]);
    }
    free(bits);
}

/* ---- The case ------------------------------------------------------------------------------------------ */

static void turn_decoded(attend_case *a) {
    const kvant_rope *rope = a->context->configuration.setup.rope;
    size_t width = kvant_rope_pairs(rope) * 2;
    a->first_turns = must_allocate(EXTENTS * width, sizeof(float));
    a->offset_turns = must_allocate(a->tokens * width, sizeof(float));
    float *turns = must_allocate(width, sizeof *turns);
    for (uint32_t t = 0; t < a->tokens; t++) kvant_rope_turns(rope, t, a->offset_turns + t * width);
    for (uint32_t e = 0; e < EXTENTS; e++) {
        kvant_rope_turns(rope, a->look[e].first_position, a->first_turns + e * width);
        for (size_t i = 0; i < width; i++) a->first_turns[e * width + i] *= (float)rope->magnitude;
        for (uint32_t t = 0; t < a->tokens; t++) {
            kvant_rope_turns(rope, a->look[e].first_position + t, turns);
            for (uint32_t h = 0; h < a->heads; h++)
                kvant_rope_apply(rope, turns, a->decoded[e] + ((size_t)t * a->heads + h) * a->dim);
        }
    }
    free(turns);
}

/* Two extents: that of the configuration and one of ordinary rows. */
static bool encode_extents(attend_case *a) {
    check_context *context = a->context;
    const kvant_setup *setup = &context->configuration.setup;
    float *values = must_allocate(context->elements, sizeof *values);
    bool good = true;
    for (uint32_t e = 0; e < EXTENTS && good; e++) {
        const check_encoding how = {
            .poison = POISON, .scratch = POISON, .first_position = POSITION + (uint64_t)e * 3 * a->tokens};
        memcpy(values, context->values, context->elements * sizeof *values);
        if (e > 0)
            check_data_fill(CHECK_DATA_OFFSET, setup->dtype, a->tokens, a->heads, a->dim, &context->random,
                            values);
        a->decoded[e] = must_allocate(context->elements, sizeof(float));
        good = check_subject_encode(&context->subject, values, &how, &a->coded[e], NULL) &&
               check_subject_decode_all(&context->subject, &a->coded[e], CHECK_ATTEND, a->decoded[e]);
        a->look[e] = (kvant_extent){.bytes = a->coded[e].buffer.data,
                                    .size = a->coded[e].size,
                                    .first_position = how.first_position,
                                    .live_count = a->tokens};
    }
    free(values);
    return good;
}

/* Queries of a normal distribution with one large channel; weights like those of a softmax, one row with a
 * peak, one with hidden tokens. */
static void fill_input(attend_case *a) {
    check_random *random = &a->context->random;
    size_t width = input_width(a);
    for (size_t row = 0; row < (size_t)a->heads * ROWS; row++)
        for (size_t i = 0; i < width; i++) {
            double x = check_random_normal(random);
            if (!a->keys) x = row % ROWS == 1 && i % 5 == 2 ? 0 : exp(2 * x) / exp(6);
            if (a->keys && i == 3) x *= 8;
            a->input[row * width + i] = (float)(x > 1 && !a->keys ? 1 : x);
        }
}

static void attend_case_free(attend_case *a) {
    for (uint32_t e = 0; e < EXTENTS; e++) {
        check_extent_free(a->context->worker, &a->coded[e]);
        free(a->decoded[e]);
    }
    free(a->input);
    free(a->result);
    free(a->first_turns);
    free(a->offset_turns);
}

static void look_at_attention(attend_case *a) {
    const shape all = {.heads = a->heads, .rows = ROWS, .extents = EXTENTS};
    const shape part = {
        .first_head = a->heads - 1, .heads = 1, .first_row = 1, .rows = 1, .extents = EXTENTS};
    fill_input(a);
    uint32_t *bits = must_allocate((size_t)a->heads * ROWS * result_width(a), sizeof *bits);
    kvant_status status = attend(a, &all, POISON, false, bits);
    memcpy(a->result, bits, (size_t)a->heads * ROWS * result_width(a) * sizeof *bits);
    free(bits);
    if (status != KVANT_OK) {
        check_fail(a->context->worker, CHECK_ATTEND, "status %d (%s) on arguments that keep the rules",
                   status, kvant_status_text(status));
        return;
    }
    compare_with_decoded(a);
    compare_shape(a, &all, true, a->keys ? "the same call again" : "extent by extent");
    compare_shape(a, &part, false, "one head and one row alone");
    for (uint32_t e = 0; e < EXTENTS && a->keys; e++) {
        const shape one = {.heads = a->heads, .rows = ROWS, .first_extent = e, .extents = 1};
        compare_shape(a, &one, false, "extent by extent");
    }
    if (a->tokens > 2) try_live_range(a);
    try_arbitrary_bytes(a);
}

void check_attend(check_context *context) {
    check_worker *worker = context->worker;
    const kvant_setup *setup = &context->configuration.setup;
    if (!(context->layout.flags & KVANT_LAYOUT_ATTEND) || context->elements > ATTEND_LIMIT) {
        worker->ran &= ~((uint64_t)1 << CHECK_ATTEND);
        return;
    }
    attend_case a = {.context = context,
                     .attend = check_call_extension(worker, KVANT_EXT_ATTEND),
                     .tokens = setup->block_tokens,
                     .heads = setup->kv_heads,
                     .dim = setup->head_dim,
                     .keys = setup->side == KVANT_SIDE_KEY};
    size_t rows = (size_t)a.heads * ROWS;
    a.input = must_allocate(rows * input_width(&a), sizeof(float));
    a.result = must_allocate(rows * result_width(&a), sizeof(float));
    /* Products of the largest floats leave the range. */
    bool extreme = context->configuration.data == CHECK_DATA_MAXIMUM && setup->dtype != KVANT_DTYPE_F16;
    if (!extreme && encode_extents(&a)) {
        if ((context->layout.flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE) && setup->rope != NULL) turn_decoded(&a);
        look_at_attention(&a);
    }
    attend_case_free(&a);
}
