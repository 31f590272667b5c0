/* Comparisons. See check_compare.h. */
#include "check_compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

float check_bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

check_decoding check_whole(const check_context *context, check_id id) {
    const kvant_setup *setup = &context->configuration.setup;
    return (check_decoding){.tokens = setup->block_tokens,
                            .heads = setup->kv_heads,
                            .dtype = KVANT_DTYPE_F32,
                            .poison = 0xff,
                            .scratch = 0xff,
                            .id = id};
}

bool check_same_bytes(check_context *context, check_id id, const check_extent *expected,
                      const check_extent *got, const char *situation) {
    check_worker *worker = context->worker;
    if (expected->size != got->size) {
        check_fail(worker, id, "%s: the extent has %llu bytes instead of %llu", situation,
                   (unsigned long long)got->size, (unsigned long long)expected->size);
        return false;
    }
    const unsigned char *a = expected->buffer.data, *b = got->buffer.data;
    if (memcmp(a, b, expected->size) == 0) return true;
    size_t at = 0, differing = 0;
    while (a[at] == b[at]) at++;
    for (size_t i = at; i < expected->size; i++) differing += a[i] != b[i];
    check_fail(worker, id, "%s: byte %zu of %llu is %02x instead of %02x, %zu bytes differ", situation, at,
               (unsigned long long)expected->size, b[at], a[at], differing);
    return false;
}

void check_place(const check_context *context, const check_decoding *range, size_t index, char *text,
                 size_t capacity) {
    uint32_t dim = context->configuration.setup.head_dim;
    (void)snprintf(text, capacity, "token %zu, head %zu, channel %zu",
                   range->first_token + index / dim / range->heads,
                   range->first_head + index / dim % range->heads, index % dim);
}

bool check_same_floats(check_context *context, check_id id, const check_decoding *range, const uint32_t *got,
                       const char *situation) {
    const kvant_setup *setup = &context->configuration.setup;
    size_t index = 0;
    for (uint32_t t = 0; t < range->tokens; t++)
        for (uint32_t h = 0; h < range->heads; h++)
            for (uint32_t c = 0; c < setup->head_dim; c++, index++) {
                size_t row = (size_t)(range->first_token + t) * setup->kv_heads + range->first_head + h;
                uint32_t expected = context->decoded[row * setup->head_dim + c];
                if (expected == got[index]) continue;
                char place[96];
                check_place(context, range, index, place, sizeof place);
                check_fail(context->worker, id, "%s: %s is %a instead of %a", situation, place,
                           (double)check_bits_float(got[index]), (double)check_bits_float(expected));
                return false;
            }
    return true;
}

void check_encode_again(check_context *context, check_id id, check_subject *subject,
                        const check_encoding *how, const char *situation) {
    check_extent extent;
    if (check_subject_encode(subject, context->values, how, &extent, NULL)) {
        bool same = check_same_bytes(context, id, &context->extent, &extent, situation);
        if (same && extent.saturated != context->extent.saturated)
            check_fail(context->worker, id, "%s: saturated is %llu instead of %llu", situation,
                       (unsigned long long)extent.saturated, (unsigned long long)context->extent.saturated);
    }
    check_extent_free(context->worker, &extent);
}

void check_decode_again(check_context *context, check_subject *subject, const check_decoding *how,
                        const char *situation) {
    size_t count = (size_t)how->tokens * how->heads * context->configuration.setup.head_dim;
    uint32_t *bits = malloc((count + 1) * sizeof *bits);
    if (bits == NULL) check_out_of_memory();
    if (check_subject_decode(subject, &context->extent, how, bits))
        (void)check_same_floats(context, how->id, how, bits, situation);
    free(bits);
}
