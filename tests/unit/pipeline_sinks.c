/* The codec floor and attention sinks: the first row after them stands in for each, on the codec's side of
 * RoPE and with its class, in the block that begins the sequence and in no other. */
#include "support/floor.h"
#include "support/test.h"
#include "support/tester.h"

#include <kvant/kit/rope.h>
#include <kvant/kvant.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = FLOOR_TOKENS,
    DIM = FLOOR_DIM,
    COUNT = FLOOR_COUNT,
    ROW = FLOOR_HEADS * FLOOR_DIM,
    SINKS = 3
};

static const uint8_t tags[TOKENS] = {1, 2, 3, 4, 5, 6, 8, 9};

static void encode_at(floor_codec *o, const float *rows, uint64_t position) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_view view;
    unsigned char *memory = floor_lay_out(rows, &view, KVANT_DTYPE_F32, floor_dense(KVANT_DTYPE_F32));
    memset(o->extent, 0xa5, o->capacity);
    memset(o->scratch, 0x5a, o->scratch_bytes);
    o->report = (kvant_encode_report){.struct_size = sizeof o->report};
    if (kvant_codec_encode(o->codec, &view, position, tags, o->extent, o->capacity, o->scratch, &o->report,
                           &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    free(memory);
}

static void the_next_row_stands_in(void **state) {
    (void)state;
    float rows[COUNT], want[COUNT];
    floor_rows(rows, KVANT_DTYPE_F32);
    memcpy(want, rows, sizeof want);
    for (int t = 0; t < SINKS; t++) memcpy(want + t * ROW, rows + SINKS * ROW, ROW * sizeof(float));
    floor_codec o =
        floor_open((floor_wish){.dtype = KVANT_DTYPE_F32, .codec = "tester_tags", .head = "sinks = 3\n"});
    encode_at(&o, rows, 0);
    kvant_assert_bytes(o.extent, want, sizeof want);
    for (int t = 0; t < TOKENS; t++)
        assert_int_equal(o.extent[4 * COUNT + t], tags[t > SINKS ? t : SINKS] % 7);
    encode_at(&o, rows, TOKENS);
    kvant_assert_bytes(o.extent, rows, sizeof rows);
    for (int t = 0; t < TOKENS; t++) assert_int_equal(o.extent[4 * COUNT + t], tags[t] % 7);
    encode_at(&o, rows, 1); /* the block begins inside the sinks */
    memcpy(want, rows, sizeof want);
    for (int t = 0; t < SINKS - 1; t++) memcpy(want + t * ROW, rows + (SINKS - 1) * ROW, ROW * sizeof(float));
    kvant_assert_bytes(o.extent, want, sizeof want);
    floor_close(&o);
}

/* A row that turns back by another position than its own is a row that the model never made. */
static void it_turns_by_its_own_position(void **state) {
    (void)state;
    double frequency[DIM / 2];
    kvant_rope_inverse_frequency(100, DIM, frequency);
    kvant_rope rope = {.struct_size = sizeof rope,
                       .style = KVANT_ROPE_NEOX,
                       .rotary_dim = DIM,
                       .magnitude = 1,
                       .inverse_frequency = frequency};
    float rows[COUNT], turns[DIM], got[COUNT];
    floor_rows(rows, KVANT_DTYPE_F32);
    tester.flags = KVANT_LAYOUT_KEYS_BEFORE_ROPE;
    floor_codec o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F32, .rope = &rope, .head = "sinks = 3\n"});
    encode_at(&o, rows, 0);
    memcpy(got, o.extent, sizeof got);
    for (int t = 0; t < TOKENS; t++) {
        int source = t > SINKS ? t : SINKS;
        kvant_rope_turns(&rope, (uint64_t)source, turns);
        for (int h = 0; h < FLOOR_HEADS; h++) {
            float row[DIM];
            memcpy(row, rows + source * ROW + h * DIM, sizeof row);
            kvant_rope_undo(&rope, turns, row);
            kvant_assert_bytes(got + t * ROW + h * DIM, row, sizeof row);
        }
    }
    floor_close(&o);
}

/* Sink rows are the caller's to keep: what is wrong in them is refused, and not counted where it is
 * replaced. */
static void sinks_are_not_counted(void **state) {
    (void)state;
    float rows[COUNT];
    floor_rows(rows, KVANT_DTYPE_F32);
    rows[2] = NAN;
    rows[SINKS * ROW + 1] = INFINITY;
    floor_codec o =
        floor_open((floor_wish){.dtype = KVANT_DTYPE_F32, .head = "sinks = 3\non_nonfinite = saturate\n"});
    encode_at(&o, rows, 0);
    assert_int_equal(o.report.replaced, 1);
    encode_at(&o, rows, TOKENS);
    assert_int_equal(o.report.replaced, 2);
    floor_close(&o);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_next_row_stands_in, floor_setup),
        cmocka_unit_test_setup(it_turns_by_its_own_position, floor_setup),
        cmocka_unit_test_setup(sinks_are_not_counted, floor_setup),
    };
    return kvant_run_tests(tests, argc, argv);
}
