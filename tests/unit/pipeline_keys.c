/* The codec floor: what the host does to keys on their way (centring, turning), and that the caller's
 * floating-point environment neither matters nor changes. */
#include "support/floor.h"
#include "support/test.h"
#include "support/tester.h"

#include "pipeline/codec_floor.h"
#include "pipeline/pipeline.h"

#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>
#include <kvant/kvant.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    TOKENS = FLOOR_TOKENS,
    HEADS = FLOOR_HEADS,
    DIM = FLOOR_DIM,
    COUNT = FLOOR_COUNT,
    FIRST = FLOOR_FIRST
};

/* ---- Centring ------------------------------------------------------------------------------------------ */

static void means_are_subtracted_and_added(void **state) {
    (void)state;
    float rows[COUNT], center[HEADS * DIM], want[COUNT], got[COUNT];
    for (int i = 0; i < HEADS * DIM; i++) center[i] = 1.5f + 0.37f * (float)i;
    for (size_t d = 0; d < 3; d++) {
        uint32_t dtype = floor_dtypes[d];
        floor_codec o = floor_open((floor_wish){.dtype = dtype, .center = center});
        assert_ptr_equal(kvant_codec_center(o.codec), center);
        floor_rows(rows, dtype);
        floor_encode_floats(&o, rows, dtype);
        for (int i = 0; i < COUNT; i++) { /* one float subtraction, one rounding to the dtype */
            unsigned char element[4];
            kvant_store_element(element, dtype, rows[i] - center[i % (HEADS * DIM)]);
            want[i] = kvant_load_element(element, dtype);
        }
        kvant_assert_bytes(o.extent, want, sizeof want);
        floor_decode_floats(&o, got);
        for (int i = 0; i < COUNT; i++) {
            kvant_assert_close(got[i], want[i] + center[i % (HEADS * DIM)], 0);
            kvant_assert_close(got[i], rows[i],
                               fabsf(rows[i]) * (dtype == KVANT_DTYPE_BF16 ? 0x1p-7 : 0x1p-10) + 0.05);
        }
        /* Part of the heads: the means are those of the right ones. */
        kvant_range range = {.struct_size = sizeof range, .first_token = 3, .first_head = 1};
        kvant_mutable_view part = {.struct_size = sizeof part,
                                   .dtype = KVANT_DTYPE_F32,
                                   .data = want,
                                   .tokens = 2,
                                   .heads = 2,
                                   .head_dim = DIM,
                                   .token_stride = 4 * 2 * DIM,
                                   .head_stride = 4 * DIM,
                                   .channel_stride = 4};
        assert_int_equal(
            kvant_codec_decode(o.codec, o.extent, o.report.size, FIRST, &range, &part, o.scratch, NULL),
            KVANT_OK);
        for (uint32_t t = 0; t < 2; t++)
            kvant_assert_bytes(want + t * 2 * DIM, got + ((3 + t) * HEADS + 1) * DIM,
                               2 * DIM * sizeof(float));
        floor_close(&o);
    }
}

/* What leaves the dtype's range becomes its largest number, and is counted. */
static void centred_rows_saturate(void **state) {
    (void)state;
    static const float most[] = {FLT_MAX, 65504.0f, 0x1.fep127f};
    float rows[COUNT], center[HEADS * DIM] = {0}, got[COUNT];
    for (size_t d = 0; d < 3; d++) {
        for (int i = 0; i < HEADS * DIM; i++) center[i] = i == 4 ? -most[d] : 0;
        floor_codec o = floor_open((floor_wish){.dtype = floor_dtypes[d], .center = center});
        floor_rows(rows, floor_dtypes[d]);
        rows[4] = most[d];
        rows[4 + HEADS * DIM] = -most[d];
        tester.saturated = 5;
        floor_encode_floats(&o, rows, floor_dtypes[d]);
        memcpy(got, o.extent, sizeof got);
        kvant_assert_close(got[4], most[d], 0);
        kvant_assert_close(got[4 + HEADS * DIM], 0, 0);
        /* For f16 every other key of that channel stays below 65520. */
        assert_int_equal(o.report.saturated, 5 + 1);
        assert_int_equal(o.report.replaced, 0);
        tester.saturated = 0;
        floor_close(&o);
    }
    /* On the way back: 65504 + 100 does not fit into f16. */
    center[4] = 100;
    floor_codec o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F16, .center = center});
    floor_rows(rows, KVANT_DTYPE_F16);
    rows[4] = 65504;
    floor_encode_floats(&o, rows, KVANT_DTYPE_F16);
    memcpy(got, o.extent, sizeof got);
    got[4] = 65504;
    memcpy(o.extent, got, sizeof got);
    uint16_t half[COUNT];
    kvant_mutable_view view = {.struct_size = sizeof view,
                               .dtype = KVANT_DTYPE_F16,
                               .data = half,
                               .tokens = TOKENS,
                               .heads = HEADS,
                               .head_dim = DIM,
                               .token_stride = 2 * HEADS * DIM,
                               .head_stride = 2 * DIM,
                               .channel_stride = 2};
    assert_int_equal(
        kvant_codec_decode(o.codec, o.extent, o.report.size, FIRST, NULL, &view, o.scratch, NULL), KVANT_OK);
    kvant_assert_close(kvant_f16_to_f32(half[4]), 65504, 0);
    floor_close(&o);
}

/* ---- Turning ------------------------------------------------------------------------------------------- */

static void keys_turn_to_the_codecs_side_and_back(void **state) {
    (void)state;
    double frequency[DIM / 2];
    float rows[COUNT], want[COUNT], got[COUNT], turns[DIM];
    kvant_rope_inverse_frequency(10000, 8, frequency);
    for (int round = 0; round < 12; round++) {
        kvant_rope rope = {.struct_size = sizeof rope,
                           .style = round % 2 ? KVANT_ROPE_GPTJ : KVANT_ROPE_NEOX,
                           .rotary_dim = 8, /* two channels stay */
                           .magnitude = round % 4 < 2 ? 1 : 1.25,
                           .inverse_frequency = frequency};
        uint32_t dtype = floor_dtypes[round % 3];
        bool before = round >= 6; /* the caller's side */
        tester.flags = before ? 0 : KVANT_LAYOUT_KEYS_BEFORE_ROPE;
        floor_codec o = floor_open((floor_wish){
            .dtype = dtype, .rope = &rope, .keys = before ? KVANT_KEYS_BEFORE_ROPE : KVANT_KEYS_AFTER_ROPE});
        floor_rows(rows, dtype);
        floor_encode_floats(&o, rows, dtype);
        memcpy(want, rows, sizeof want);
        for (uint32_t t = 0; t < TOKENS; t++) {
            kvant_rope_turns(&rope, FIRST + t, turns);
            for (uint32_t h = 0; h < HEADS; h++) {
                float *row = want + (t * HEADS + h) * DIM;
                if (before)
                    kvant_rope_apply(&rope, turns, row);
                else
                    kvant_rope_undo(&rope, turns, row);
                for (uint32_t c = 0; c < DIM; c++) {
                    unsigned char element[4];
                    kvant_store_element(element, dtype, row[c]);
                    row[c] = kvant_load_element(element, dtype);
                }
            }
        }
        kvant_assert_bytes(o.extent, want, sizeof want);
        double moved = 0;
        for (int i = 0; i < COUNT; i++) moved += fabs((double)want[i] - (double)rows[i]);
        assert_true(moved > COUNT);
        floor_decode_floats(&o, got);
        for (uint32_t i = 0; i < COUNT; i++)
            kvant_assert_close(got[i], rows[i],
                               dtype == KVANT_DTYPE_F32   ? 1e-4
                               : dtype == KVANT_DTYPE_F16 ? 0.25
                                                          : 2);
        floor_close(&o);
    }
    tester.flags = 0;
}

/* Turned first, then centred, rounded once. */
static void turned_keys_are_centred_on_the_codecs_side(void **state) {
    (void)state;
    double frequency[DIM / 2] = {1, 0.1, 0.01, 0.001, 0.0001};
    kvant_rope rope = {.struct_size = sizeof rope,
                       .style = KVANT_ROPE_NEOX,
                       .rotary_dim = DIM,
                       .magnitude = 1,
                       .inverse_frequency = frequency};
    float rows[COUNT], center[HEADS * DIM], want[COUNT], got[COUNT], turns[DIM];
    for (int i = 0; i < HEADS * DIM; i++) center[i] = 0.7f * (float)(i % 9) - 2;
    floor_codec o = floor_open((floor_wish){
        .dtype = KVANT_DTYPE_F16, .rope = &rope, .center = center, .keys = KVANT_KEYS_BEFORE_ROPE});
    floor_rows(rows, KVANT_DTYPE_F16);
    floor_encode_floats(&o, rows, KVANT_DTYPE_F16);
    memcpy(want, rows, sizeof want);
    for (uint32_t t = 0; t < TOKENS; t++) {
        kvant_rope_turns(&rope, FIRST + t, turns);
        for (uint32_t h = 0; h < HEADS; h++) {
            float *row = want + (t * HEADS + h) * DIM;
            kvant_rope_apply(&rope, turns, row);
            for (uint32_t c = 0; c < DIM; c++) row[c] = kvant_round_f16(row[c] - center[h * DIM + c]);
        }
    }
    kvant_assert_bytes(o.extent, want, sizeof want);
    floor_decode_floats(&o, got);
    for (uint32_t i = 0; i < COUNT; i++) kvant_assert_close(got[i], rows[i], 0.15);
    floor_close(&o);
}

static void values_never_turn(void **state) {
    (void)state;
    double frequency[DIM / 2] = {1, 1, 1, 1, 1};
    kvant_rope rope = {.struct_size = sizeof rope,
                       .style = KVANT_ROPE_NEOX,
                       .rotary_dim = DIM,
                       .magnitude = 1,
                       .inverse_frequency = frequency};
    float rows[COUNT];
    floor_codec o = floor_open((floor_wish){
        .dtype = KVANT_DTYPE_F32, .rope = &rope, .side = KVANT_SIDE_VALUE, .keys = KVANT_KEYS_BEFORE_ROPE});
    floor_rows(rows, KVANT_DTYPE_F32);
    floor_encode_floats(&o, rows, KVANT_DTYPE_F32);
    kvant_assert_bytes(o.extent, rows, sizeof rows);
    floor_close(&o);
}

/* ---- The caller's floating-point environment ----------------------------------------------------------- */

#if defined(__x86_64__)
static void flushed_denormals_change_nothing_and_stay_flushed(void **state) {
    (void)state;
    float rows[COUNT], center[HEADS * DIM], want[COUNT], plain[COUNT], back[COUNT];
    /* A denormal difference: 1.5 and 1.25 times 2^-126. */
    for (int i = 0; i < COUNT; i++) rows[i] = 0x1.8p-126f;
    for (int i = 0; i < HEADS * DIM; i++) center[i] = 0x1.4p-126f;
    floor_codec o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F32, .center = center});
    floor_encode_floats(&o, rows, KVANT_DTYPE_F32);
    memcpy(want, o.extent, sizeof want);
    kvant_assert_close(want[0], 0x1p-128f, 0);
    assert_true(want[0] > 0);
    floor_decode_floats(&o, plain);
    unsigned before = _mm_getcsr();
    /* Flush to zero, denormals are zero, round towards zero. */
    unsigned odd = before | 0x8040u | 0x6000u;
    _mm_setcsr(odd);
    floor_encode_floats(&o, rows, KVANT_DTYPE_F32);
    unsigned after_encode = _mm_getcsr();
    floor_decode_floats(&o, back);
    unsigned after_decode = _mm_getcsr();
    _mm_setcsr(before);
    assert_int_equal(after_encode & 0xffc0u, odd & 0xffc0u);
    assert_int_equal(after_decode & 0xffc0u, odd & 0xffc0u);
    assert_int_equal(o.report.saturated, 0); /* the codec counts one if it sees denormals flushed */
    kvant_assert_bytes(o.extent, want, sizeof want);
    kvant_assert_bytes(back, plain, sizeof back);
    floor_close(&o);
}

static void decimal_numbers_do_not_depend_on_the_rounding_mode(void **state) {
    (void)state;
    static const char text[] = "[codec k]\nplugin = tester\nratio = 0.1\n[layers]\nkey = k\nvalue = k\n";
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_pipeline *pipeline = NULL;
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x4000u); /* upwards */
    kvant_status status = kvant_pipeline_parse(text, sizeof text - 1, "r", NULL, &pipeline, &diag);
    _mm_setcsr(before);
    assert_int_equal(status, KVANT_OK);
    kvant_assert_close(pipeline->specs[0].values[2].number, 0.1, 0);
    kvant_pipeline_free(pipeline);
}
#endif

/* ---- Real codecs --------------------------------------------------------------------------------------- */

/* Same rows, same bytes, whatever the strides; and decode comes close. */
static void real_codecs_do_not_see_strides(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double error; /* of the norm */
    } codecs[] = {{"raw", 0}, {"kivi", 0.7}, {"uniform", 0.02}};
    enum { T = 64, H = 2, D = 64, N = T * H * D };
    float *rows = malloc(N * sizeof *rows), *turned = malloc(N * sizeof *turned),
          *out = malloc(N * sizeof *out);
    uint64_t seed = 5;
    for (int i = 0; i < N; i++) rows[i] = (float)kvant_test_normal(&seed) + (i % D == 7 ? 8.0f : 0.0f);
    for (int t = 0; t < T; t++)
        for (int h = 0; h < H; h++)
            for (int c = 0; c < D; c++) turned[(h * D + c) * T + t] = rows[(t * H + h) * D + c];
    for (size_t i = 0; i < 3; i++)
        for (uint32_t side = 0; side < 2; side++) {
            kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                          .kv_heads = H,
                                          .q_heads = H,
                                          .total_kv_heads = H,
                                          .key_dim = D,
                                          .value_dim = D};
            kvant_geometry geometry = {
                .struct_size = sizeof geometry, .layer_count = 1, .dtype = KVANT_DTYPE_F32, .layers = &layer};
            kvant_pipeline *pipeline = NULL;
            kvant_plan *plan = NULL;
            kvant_codec *codec = NULL;
            kvant_diag diag = {.struct_size = sizeof diag};
            if (kvant_pipeline_of_codec(codecs[i].name, &pipeline, &diag) != KVANT_OK ||
                kvant_pipeline_resolve(pipeline, &geometry, &plan, &diag) != KVANT_OK ||
                kvant_codec_open(plan, 0, side, &codec, &diag) != KVANT_OK)
                fail_msg("%s", diag.message);
            size_t size = kvant_codec_extent_max(codec), scratch_bytes = kvant_codec_scratch_bytes(codec);
            unsigned char *memory[3], *extents[2];
            extents[0] = floor_guarded(size, &memory[0]);
            extents[1] = floor_guarded(size, &memory[1]);
            unsigned char *scratch = floor_guarded(scratch_bytes, &memory[2]);
            kvant_view views[2];
            views[0] = (kvant_view){.struct_size = sizeof views[0],
                                    .dtype = KVANT_DTYPE_F32,
                                    .data = rows,
                                    .tokens = T,
                                    .heads = H,
                                    .head_dim = D,
                                    .token_stride = 4 * H * D,
                                    .head_stride = 4 * D,
                                    .channel_stride = 4};
            views[1] = views[0];
            views[1].data = turned;
            views[1].token_stride = 4;
            views[1].head_stride = 4 * D * T;
            views[1].channel_stride = 4 * T;
            kvant_encode_report reports[2] = {{.struct_size = sizeof reports[0]},
                                              {.struct_size = sizeof reports[0]}};
            for (int v = 0; v < 2; v++) {
                memset(extents[v], v == 0 ? 0x11 : 0xee, size);
                if (kvant_codec_encode(codec, &views[v], 0, NULL, extents[v], size, scratch, &reports[v],
                                       &diag) != KVANT_OK)
                    fail_msg("%s", diag.message);
            }
            assert_int_equal(reports[0].size, reports[1].size);
            kvant_assert_bytes(extents[1], extents[0], reports[0].size);
            kvant_mutable_view to = {.struct_size = sizeof to,
                                     .dtype = KVANT_DTYPE_F32,
                                     .data = out,
                                     .tokens = T,
                                     .heads = H,
                                     .head_dim = D,
                                     .token_stride = 4 * H * D,
                                     .head_stride = 4 * D,
                                     .channel_stride = 4};
            memset(out, 0xff, N * sizeof *out);
            assert_int_equal(
                kvant_codec_decode(codec, extents[0], reports[0].size, 0, NULL, &to, scratch, &diag),
                KVANT_OK);
            double error = 0, norm = 0;
            for (int k = 0; k < N; k++) {
                error += ((double)out[k] - (double)rows[k]) * ((double)out[k] - (double)rows[k]);
                norm += (double)rows[k] * (double)rows[k];
            }
            if (!(sqrt(error / norm) <= codecs[i].error))
                fail_msg("%s, side %u: relative error %g", codecs[i].name, side, sqrt(error / norm));
            assert_true(codecs[i].error == 0 || error > 0);
            for (int k = 0; k < 3; k++) {
                floor_check_guards(memory[k], k < 2 ? size : scratch_bytes);
                free(memory[k]);
            }
            kvant_codec_close(codec);
            kvant_plan_free(plan);
            kvant_pipeline_free(pipeline);
        }
    free(rows);
    free(turned);
    free(out);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(means_are_subtracted_and_added, floor_setup),
        cmocka_unit_test_setup(centred_rows_saturate, floor_setup),
        cmocka_unit_test_setup(keys_turn_to_the_codecs_side_and_back, floor_setup),
        cmocka_unit_test_setup(turned_keys_are_centred_on_the_codecs_side, floor_setup),
        cmocka_unit_test_setup(values_never_turn, floor_setup),
#if defined(__x86_64__)
        cmocka_unit_test_setup(flushed_denormals_change_nothing_and_stay_flushed, floor_setup),
        cmocka_unit_test_setup(decimal_numbers_do_not_depend_on_the_rounding_mode, floor_setup),
#endif
        cmocka_unit_test_setup(real_codecs_do_not_see_strides, floor_setup),
    };
    return kvant_run_tests(tests, argc, argv);
}
