/* Compares bytes and floats and says where they differ first. */
#ifndef KVANT_CHECK_COMPARE_H
#define KVANT_CHECK_COMPARE_H

#include "check_context.h"

/* True if both extents have the same size and bytes; else a failure "SITUATION: byte 17 of 640 is 3f
 * instead of 3e". */
bool check_same_bytes(check_context *context, check_id id, const check_extent *expected,
                      const check_extent *got, const char *situation);

/* The elements of a range, dense, against those of the whole extent. */
bool check_same_floats(check_context *context, check_id id, const check_decoding *range, const uint32_t *got,
                       const char *situation);

/* Where element `index` of a range stands: "token 3, head 0, channel 17". */
void check_place(const check_context *context, const check_decoding *range, size_t index, char *text,
                 size_t capacity);

float check_bits_float(uint32_t bits);

/* Encodes context->values and compares with context->extent. */
void check_encode_again(check_context *context, check_id id, check_subject *subject,
                        const check_encoding *how, const char *situation);

/* Decodes a range of context->extent and compares with context->decoded. */
void check_decode_again(check_context *context, check_subject *subject, const check_decoding *how,
                        const char *situation);

/* Everything of a block, as F32. */
check_decoding check_whole(const check_context *context, check_id id);

#endif
