/* One codec opened through the codec floor, with rows, poisoned memory and guards round it: for tests of
 * what the host hands to a codec and gives back. */
#ifndef KVANT_TEST_FLOOR_H
#define KVANT_TEST_FLOOR_H

#include <kvant/kvant.h>

/* The block: small, with an odd number of heads. FIRST is its first position. */
enum {
    FLOOR_TOKENS = 8,
    FLOOR_HEADS = 3,
    FLOOR_DIM = 10,
    FLOOR_COUNT = FLOOR_TOKENS * FLOOR_HEADS * FLOOR_DIM,
    FLOOR_FIRST = 1000
};

/* F32, F16, BF16. */
extern const uint32_t floor_dtypes[3];

typedef struct floor_wish {
    uint32_t dtype;
    uint32_t keys; /* KVANT_KEYS_* */
    uint32_t side;
    const char *codec; /* NULL = tester */
    const char *head;  /* lines of [pipeline] */
    const kvant_rope *rope;
    const float *center; /* [FLOOR_HEADS, FLOOR_DIM]: put into the plan by hand */
} floor_wish;

typedef struct floor_codec {
    kvant_plan *plan;
    kvant_codec *codec;
    unsigned char *extent_memory, *extent; /* with guards of 64 bytes */
    unsigned char *scratch_memory, *scratch;
    size_t capacity, scratch_bytes;
    kvant_encode_report report;
} floor_codec;

/* A test's setup: registers the test codecs and resets their behaviour. */
int floor_setup(void **state);

/* close looks at the guards. */
floor_codec floor_open(floor_wish wish);
void floor_close(floor_codec *o);

/* `size` bytes aligned to 64 with 64 guard bytes on each side; *memory is to be freed. */
unsigned char *floor_guarded(size_t size, unsigned char **memory);
void floor_check_guards(const unsigned char *memory, size_t size);

/* Far from zero, an outlier channel, a constant one; exact in the dtype, in [token, head, channel] order. */
void floor_rows(float *rows, uint32_t dtype);

/* Rows in memory with strides of the caller's; `memory` begins at the element that lies lowest. */
typedef struct floor_strides {
    int64_t token, head, channel; /* bytes */
} floor_strides;

floor_strides floor_dense(uint32_t dtype);

/* The rows in memory of their own, to be freed, with NaN in every gap. */
unsigned char *floor_lay_out(const float *rows, kvant_view *view, uint32_t dtype, floor_strides strides);

/* Poisons extent and scratch, then encodes. */
kvant_status floor_encode(floor_codec *o, const kvant_view *view, const uint8_t *tags, kvant_diag *diag);
void floor_encode_floats(floor_codec *o, const float *rows, uint32_t dtype);

/* Decodes the block to dense floats, in poisoned memory. */
void floor_decode_floats(floor_codec *o, float *rows);

#endif
