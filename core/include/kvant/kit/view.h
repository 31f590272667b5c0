/* kvant/kit/view.h: read and write rows of tensor views of any dtype, stride and alignment as floats.
 *
 * Rows whose channels lie side by side take loops that vectorise; all others go element by element, to the
 * same bits.
 */
#ifndef KVANT_KIT_VIEW_H
#define KVANT_KIT_VIEW_H

#include "../types.h"
#include "half.h"

/* The processor's own F16 conversions, where they are compiled for (x86-64-v3). NaN, the only value that they
 * convert differently, is put right. */
#if defined(__F16C__) && defined(__AVX2__)
#define KVANT_HAVE_F16C_ 1
#include <immintrin.h>
#endif

/* Bytes of an element of F32, F16 or BF16. */
static inline uint32_t kvant_element_bytes(uint32_t dtype) {
    return dtype == KVANT_DTYPE_F32 ? 4u : 2u;
}

static inline float kvant_load_element(const void *address, uint32_t dtype) {
    /* In a loop over elements of a type that is only known at run time, gcc 12 turns the branch into a select
     * and loads four bytes also where two are there, which reads beyond the last element. It does not where
     * it cannot see that the addresses are the same. */
    const int is_known = __builtin_constant_p(dtype);
    if (dtype == KVANT_DTYPE_F32) {
        float x;
        if (!is_known) __asm__("" : "+r"(address));
        memcpy(&x, address, sizeof x);
        return x;
    }
    uint16_t half;
    memcpy(&half, address, sizeof half);
    return dtype == KVANT_DTYPE_F16 ? kvant_f16_to_f32(half) : kvant_bf16_to_f32(half);
}

/* Rounds once, to nearest even; a finite number beyond the type's range becomes its largest, as plugin.h asks
 * of decode. */
static inline void kvant_store_element(void *address, uint32_t dtype, float x) {
    if (dtype == KVANT_DTYPE_F32) {
        memcpy(address, &x, sizeof x);
        return;
    }
    uint16_t half = dtype == KVANT_DTYPE_F16 ? kvant_f32_to_f16_sat(x) : kvant_f32_to_bf16_sat(x);
    memcpy(address, &half, sizeof half);
}

static inline const char *kvant_view_at(const kvant_view *view, uint32_t token, uint32_t head) {
    return (const char *)view->data + (int64_t)token * view->token_stride + (int64_t)head * view->head_stride;
}

static inline char *kvant_mutable_view_at(const kvant_mutable_view *view, uint32_t token, uint32_t head) {
    return (char *)view->data + (int64_t)token * view->token_stride + (int64_t)head * view->head_stride;
}

static inline void kvant_load_f16_(const char *bytes, size_t count, float *__restrict row) {
    size_t whole = 0;
#ifdef KVANT_HAVE_F16C_
    whole = count / 8 * 8;
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    for (size_t c = 0; c < whole; c += 8) {
        __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(bytes + 2 * c)));
        /* Compared as integers: clang 14 turns a comparison of floats here into one of halves, one by one. */
        __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_castps_si256(nan));
        __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
        x = _mm256_blendv_ps(x, nan, _mm256_castsi256_ps(is_nan));
        _mm256_storeu_ps(row + c, x);
    }
#endif
    for (size_t c = whole; c < count; c++) row[c] = kvant_load_element(bytes + 2 * c, KVANT_DTYPE_F16);
}

static inline void kvant_store_f16_(char *__restrict bytes, size_t count, const float *row) {
    size_t whole = 0;
#ifdef KVANT_HAVE_F16C_
    whole = count / 8 * 8;
    /* Finite lanes are clamped to 65504; a lane that is not a number becomes the positive NaN with all bits
     * set, whose half is 7FFF. */
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256i infinity = _mm256_set1_epi32(0x7f800000), largest = _mm256_set1_epi32(0x477fe000);
    for (size_t c = 0; c < whole; c += 8) {
        __m256 x = _mm256_loadu_ps(row + c);
        __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_castps_si256(nan));
        __m256 sign = _mm256_andnot_ps(nan, x);
        __m256i is_over =
            _mm256_and_si256(_mm256_cmpgt_epi32(magnitude, largest), _mm256_cmpgt_epi32(infinity, magnitude));
        x = _mm256_blendv_ps(x, _mm256_or_ps(sign, _mm256_castsi256_ps(largest)),
                             _mm256_castsi256_ps(is_over));
        x = _mm256_blendv_ps(x, nan, _mm256_castsi256_ps(_mm256_cmpgt_epi32(magnitude, infinity)));
        __m128i half = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(bytes + 2 * c), half);
    }
#endif
    for (size_t c = whole; c < count; c++) kvant_store_element(bytes + 2 * c, KVANT_DTYPE_F16, row[c]);
}

/* `count` elements that lie side by side, at any alignment. row and address do not overlap. */
static inline void kvant_load_elements(const void *address, uint32_t dtype, uint32_t count,
                                       float *__restrict row) {
    const char *bytes = (const char *)address;
    if (dtype == KVANT_DTYPE_F32) {
        memcpy(row, bytes, (size_t)count * sizeof *row);
    } else if (dtype == KVANT_DTYPE_F16) {
        kvant_load_f16_(bytes, count, row);
    } else {
        for (size_t c = 0; c < count; c++) row[c] = kvant_load_element(bytes + 2 * c, KVANT_DTYPE_BF16);
    }
}

static inline void kvant_store_elements(void *__restrict address, uint32_t dtype, uint32_t count,
                                        const float *row) {
    char *bytes = (char *)address;
    if (dtype == KVANT_DTYPE_F32) {
        memcpy(bytes, row, (size_t)count * sizeof *row);
    } else if (dtype == KVANT_DTYPE_F16) {
        kvant_store_f16_(bytes, count, row);
    } else {
        for (size_t c = 0; c < count; c++) kvant_store_element(bytes + 2 * c, KVANT_DTYPE_BF16, row[c]);
    }
}

/* The head_dim channels of one token and head, as floats. */
static inline void kvant_load_row(const kvant_view *view, uint32_t token, uint32_t head, float *row) {
    const char *address = kvant_view_at(view, token, head);
    if (view->channel_stride == (int64_t)kvant_element_bytes(view->dtype)) {
        kvant_load_elements(address, view->dtype, view->head_dim, row);
        return;
    }
    for (uint32_t c = 0; c < view->head_dim; c++)
        row[c] = kvant_load_element(address + (int64_t)c * view->channel_stride, view->dtype);
}

static inline void kvant_store_row(const kvant_mutable_view *view, uint32_t token, uint32_t head,
                                   const float *row) {
    char *address = kvant_mutable_view_at(view, token, head);
    if (view->channel_stride == (int64_t)kvant_element_bytes(view->dtype)) {
        kvant_store_elements(address, view->dtype, view->head_dim, row);
        return;
    }
    for (uint32_t c = 0; c < view->head_dim; c++)
        kvant_store_element(address + (int64_t)c * view->channel_stride, view->dtype, row[c]);
}

#endif
