/* Checks of encode and of the whole decode: every byte, every element, the same again. */
#include "check_compare.h"
#include "check_promise.h"

#include <fenv.h>
#include <kvant/kit/view.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { POISON = 0xa5, OTHER_POISON = 0x5a, BITS_LIMIT = 1 << 16 };

static void fill_values(check_context *context) {
    const kvant_setup *setup = &context->configuration.setup;
    check_random random = {context->configuration.seed};
    context->values = malloc(context->elements * sizeof *context->values);
    context->decoded = malloc(context->elements * sizeof *context->decoded);
    if (context->values == NULL || context->decoded == NULL) check_out_of_memory();
    check_data_fill(context->configuration.data, setup->dtype, setup->block_tokens, setup->kv_heads,
                    setup->head_dim, &random, context->values);
}

void check_encode(check_context *context) {
    check_worker *worker = context->worker;
    const check_encoding first = {.poison = POISON, .scratch = POISON};
    const check_encoding second = {.poison = OTHER_POISON, .scratch = POISON};
    check_extent again;
    bool beyond = false, beyond_again = false;
    fill_values(context);
    if (!check_subject_encode(&context->subject, context->values, &first, &context->extent, &beyond)) {
        context->over = true;
        return;
    }
    if (!check_subject_encode(&context->subject, context->values, &second, &again, &beyond_again)) {
        context->over = true;
        check_extent_free(worker, &again);
        return;
    }
    if (beyond || beyond_again)
        check_fail(worker, CHECK_ENCODE, "encode wrote behind the %llu bytes that it says it used",
                   (unsigned long long)context->extent.size);
    const unsigned char *a = context->extent.buffer.data, *b = again.buffer.data;
    size_t size = (size_t)context->extent.size;
    for (size_t i = 0; again.size == context->extent.size && i < size; i++)
        if (a[i] == POISON && b[i] == OTHER_POISON) {
            check_fail(worker, CHECK_ENCODE, "encode did not write byte %zu of %zu", i, size);
            break;
        }
    if (!check_has_failed(worker, CHECK_ENCODE))
        (void)check_same_bytes(context, CHECK_REPEAT, &context->extent, &again,
                               "encoding the same rows again");
    check_extent_free(worker, &again);
}

void check_decode(check_context *context) {
    check_worker *worker = context->worker;
    check_decoding how = check_whole(context, CHECK_DECODE);
    uint32_t *again = malloc(context->elements * sizeof *again);
    if (again == NULL) check_out_of_memory();
    check_decoding second = how;
    second.poison = 0;
    if (!check_subject_decode(&context->subject, &context->extent, &how, context->decoded) ||
        !check_subject_decode(&context->subject, &context->extent, &second, again)) {
        context->over = true;
        free(again);
        return;
    }
    for (size_t i = 0; i < context->elements; i++)
        if (context->decoded[i] == 0xffffffff && again[i] == 0) {
            char place[96];
            check_place(context, &how, i, place, sizeof place);
            check_fail(worker, CHECK_DECODE, "decode did not write %s", place);
            break;
        }
    if (!check_has_failed(worker, CHECK_DECODE))
        (void)check_same_floats(context, CHECK_REPEAT, &how, again, "decoding the same extent again");
    free(again);
}

void check_finite(check_context *context) {
    const check_decoding whole = check_whole(context, CHECK_FINITE);
    for (size_t i = 0; i < context->elements; i++)
        if ((context->decoded[i] & 0x7f800000) == 0x7f800000) {
            char place[96];
            check_place(context, &whole, i, place, sizeof place);
            check_fail(context->worker, CHECK_FINITE, "%s: %g came back as %g", place,
                       (double)context->values[i], (double)check_bits_float(context->decoded[i]));
            return;
        }
}

void check_lossless(check_context *context) {
    check_worker *worker = context->worker;
    if (!(context->layout.flags & KVANT_LAYOUT_LOSSLESS)) {
        worker->ran &= ~((uint64_t)1 << CHECK_LOSSLESS);
        return;
    }
    check_decoding how = check_whole(context, CHECK_LOSSLESS);
    how.dtype = context->configuration.setup.dtype;
    uint32_t *bits = malloc(context->elements * sizeof *bits);
    if (bits == NULL) check_out_of_memory();
    bool good = check_subject_decode(&context->subject, &context->extent, &how, bits);
    for (size_t i = 0; i < context->elements && good; i++) {
        uint32_t given = 0;
        kvant_store_element(&given, how.dtype, context->values[i]);
        if (given == bits[i]) continue;
        char place[96];
        check_place(context, &how, i, place, sizeof place);
        check_fail(worker, CHECK_LOSSLESS,
                   "the layout says lossless, and %s came back as %08x instead of %08x", place, bits[i],
                   given);
        break;
    }
    free(bits);
}

/* Bits of an extent that some rows set are information; the layout says how many there are. */
void check_bits(check_context *context) {
    check_worker *worker = context->worker;
    const kvant_setup *setup = &context->configuration.setup;
    if (context->elements > BITS_LIMIT && worker->number % 8 != 0) {
        worker->ran &= ~((uint64_t)1 << CHECK_BITS);
        return;
    }
    static const check_data families[] = {CHECK_DATA_NORMAL, CHECK_DATA_RANGE,   CHECK_DATA_HUGE,
                                          CHECK_DATA_TIES,   CHECK_DATA_OUTLIER, CHECK_DATA_TINY};
    const check_encoding how = {.poison = POISON, .scratch = POISON};
    size_t size = (size_t)context->extent.size;
    unsigned char *set = malloc(size);
    float *values = malloc(context->elements * sizeof *values);
    if (set == NULL || values == NULL) check_out_of_memory();
    memcpy(set, context->extent.buffer.data, size);
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        check_extent extent;
        check_data_fill(families[i], setup->dtype, setup->block_tokens, setup->kv_heads, setup->head_dim,
                        &context->random, values);
        if (check_subject_encode(&context->subject, values, &how, &extent, NULL) && extent.size == size)
            for (size_t b = 0; b < size; b++) set[b] |= extent.buffer.data[b];
        check_extent_free(worker, &extent);
    }
    uint64_t used = 0, step;
    for (size_t b = 0; b < size; b++) used += (uint64_t)__builtin_popcount(set[b]);
    (void)check_layout_has_size(&context->layout, size, &step);
    const kvant_layout *l = &context->layout;
    uint64_t said =
        l->payload_bits + l->metadata_bits + step * (l->payload_bits_step + l->metadata_bits_step);
    if (used > said)
        check_fail(worker, CHECK_BITS,
                   "%llu bits of an extent are set by some rows; payload_bits and metadata_bits make %llu",
                   (unsigned long long)used, (unsigned long long)said);
    free(set);
    free(values);
}

/* Flush to zero, denormals are zero, rounding up: what a caller may have set. The host sets its own
 * around calls. */
static void disturb_environment(void) {
    (void)fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

static void restore_environment(void) {
    (void)fesetround(FE_TONEAREST);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() & ~0x8040u);
#endif
}

void check_repeat(check_context *context) {
    check_worker *worker = context->worker;
    check_encoding how = {.poison = 0, .scratch = 0};
    check_encode_again(context, CHECK_REPEAT, &context->subject, &how, "with zeros in scratch and extent");
    how = (check_encoding){.poison = 0xff, .scratch = 0xff};
    disturb_environment();
    check_encode_again(context, CHECK_REPEAT, &context->subject, &how,
                       "with FF in scratch and extent, called with denormals flushed and rounding up");
    check_decoding whole = check_whole(context, CHECK_REPEAT);
    whole.scratch = 0;
    check_decode_again(context, &context->subject, &whole,
                       "with zeros in scratch, called with denormals flushed and rounding up");
    restore_environment();
    how.first_position = 123456789;
    check_extent moved;
    if (check_subject_encode(&context->subject, context->values, &how, &moved, NULL) &&
        (moved.size != context->extent.size ||
         memcmp(moved.buffer.data, context->extent.buffer.data, moved.size) != 0))
        check_note(worker, "the bytes depend on first_position");
    check_extent_free(worker, &moved);
}
