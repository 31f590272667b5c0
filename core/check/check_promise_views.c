/* Checks that vary how rows lie, which of them are asked for, and in which type. */
#include "check_compare.h"
#include "check_promise.h"

#include "oracle_float.h"

#include <kvant/kit/half.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { POISON = 0xa5, ALL_FORMS_LIMIT = 1 << 16, SLICES = 10 };

static void view_once(check_context *context, check_form form) {
    char situation[64];
    (void)snprintf(situation, sizeof situation, "with %s rows", check_form_name(form));
    const check_encoding encoding = {.form = form, .poison = POISON, .scratch = POISON};
    check_encode_again(context, CHECK_VIEWS, &context->subject, &encoding, situation);
    check_decoding decoding = check_whole(context, CHECK_VIEWS);
    decoding.form = form;
    check_decode_again(context, &context->subject, &decoding, situation);
}

/* Stride zero: one row for all tokens, against the same rows written out. */
static void view_broadcast(check_context *context) {
    const kvant_setup *setup = &context->configuration.setup;
    size_t row = (size_t)setup->kv_heads * setup->head_dim;
    float *values = malloc(context->elements * sizeof *values);
    if (values == NULL) check_out_of_memory();
    for (size_t i = 0; i < context->elements; i++) values[i] = context->values[i % row];
    const check_encoding how = {.poison = POISON, .scratch = POISON};
    check_extent written_out, broadcast;
    check_rows rows;
    check_rows_create(context->worker, &rows, setup->dtype, 1, setup->kv_heads, setup->head_dim,
                      CHECK_FORM_DENSE);
    check_rows_store(&rows, context->values);
    check_buffer_protect(&rows.buffer, true);
    kvant_view view = check_rows_view(&rows);
    view.tokens = setup->block_tokens;
    view.token_stride = 0;
    bool good = check_subject_encode(&context->subject, values, &how, &written_out, NULL);
    if (check_subject_encode_view(&context->subject, &view, &how, &broadcast, NULL) && good)
        (void)check_same_bytes(context, CHECK_VIEWS, &written_out, &broadcast, "with a token stride of zero");
    check_extent_free(context->worker, &written_out);
    check_extent_free(context->worker, &broadcast);
    check_rows_free(context->worker, &rows);
    free(values);
}

void check_views(check_context *context) {
    if (context->elements <= ALL_FORMS_LIMIT) {
        for (unsigned form = CHECK_FORM_DENSE + 1; form < CHECK_FORM_COUNT; form++)
            view_once(context, (check_form)form);
        view_broadcast(context);
        return;
    }
    uint32_t first = check_random_below(&context->random, CHECK_FORM_COUNT - 1);
    for (uint32_t i = 0; i < 2; i++)
        view_once(context, (check_form)(CHECK_FORM_DENSE + 1 + (first + i * 2) % (CHECK_FORM_COUNT - 1)));
}

static void random_range(check_context *context, uint32_t count, uint32_t *first, uint32_t *length) {
    *first = check_random_below(&context->random, count);
    *length = 1 + check_random_below(&context->random, count - *first);
}

/* The corners first, then anything. */
static check_decoding slice(check_context *context, uint32_t index) {
    check_decoding how = check_whole(context, CHECK_SLICES);
    uint32_t tokens = how.tokens, heads = how.heads;
    switch (index) {
    case 0:
        how.first_token = tokens - 1;
        how.tokens = 1;
        break;
    case 1:
        how.first_head = heads - 1;
        how.heads = 1;
        break;
    case 2:
        how.tokens = 1;
        how.heads = 1;
        break;
    case 3:
        how.first_token = tokens - 1;
        how.first_head = heads - 1;
        how.tokens = how.heads = 1;
        break;
    case 4:
        how.first_token = tokens > 1;
        how.tokens = tokens - how.first_token;
        break;
    default:
        random_range(context, tokens, &how.first_token, &how.tokens);
        random_range(context, heads, &how.first_head, &how.heads);
        how.form = (check_form)check_random_below(&context->random, CHECK_FORM_COUNT);
    }
    how.poison = (unsigned char)(index % 2 == 0 ? 0xff : 0x55);
    return how;
}

void check_slices(check_context *context) {
    for (uint32_t i = 0; i < SLICES; i++) {
        const check_decoding how = slice(context, i);
        char situation[96];
        (void)snprintf(situation, sizeof situation, "decoding tokens %u+%u of heads %u+%u", how.first_token,
                       how.tokens, how.first_head, how.heads);
        check_decode_again(context, &context->subject, &how, situation);
    }
}

static void round_once(check_context *context, uint32_t dtype) {
    check_decoding how = check_whole(context, CHECK_ROUNDING);
    how.dtype = dtype;
    uint32_t *bits = malloc(context->elements * sizeof *bits);
    if (bits == NULL) check_out_of_memory();
    bool good = check_subject_decode(&context->subject, &context->extent, &how, bits);
    for (size_t i = 0; i < context->elements && good; i++) {
        float x = check_bits_float(context->decoded[i]);
        if (!isfinite(x)) continue;
        float rounded = (float)oracle_saturate((double)x, dtype);
        uint32_t expected = dtype == KVANT_DTYPE_F16 ? kvant_f32_to_f16(rounded) : kvant_f32_to_bf16(rounded);
        if (bits[i] == expected) continue;
        char place[96];
        check_place(context, &how, i, place, sizeof place);
        check_fail(context->worker, CHECK_ROUNDING, "%s: %a as %s is %04x instead of %04x", place, (double)x,
                   dtype == KVANT_DTYPE_F16 ? "F16" : "BF16", bits[i], expected);
        break;
    }
    free(bits);
}

void check_rounding(check_context *context) {
    round_once(context, KVANT_DTYPE_F16);
    round_once(context, KVANT_DTYPE_BF16);
}
