/* The check's own parts: a check that sees nothing would pass everything. */
#include "support/test.h"

#include "bad_plugins/honest.h"
#include "check/check_buffer.h"
#include "check/check_cover.h"
#include "check/check_data.h"
#include "check/oracle.h"
#include "check/oracle_float.h"
#include "plugin/schema.h"

#include <kvant/kit/float8.h>
#include <kvant/kit/half.h>
#include <kvant/kvant.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Number formats against the kit's ---------------------------------------------------------------- */

static void formats_agree_with_the_kit(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (uint32_t i = 0; i < 300000; i++) {
        float x = kvant_bits_float((uint32_t)kvant_test_random(&seed));
        if (i % 3 == 0) x = (float)kvant_test_normal(&seed) * ldexpf(1, (int)(i % 40) - 28);
        if (!isfinite(x)) continue;
        double wide = (double)x;
        if (fabs(wide) < 65000)
            assert_true(oracle_round(wide, KVANT_DTYPE_F16) == (double)kvant_round_f16(x));
        if (fabs(wide) < 3e38)
            assert_true(oracle_round(wide, KVANT_DTYPE_BF16) == (double)kvant_round_bf16(x));
        assert_true(oracle_saturate(wide, KVANT_DTYPE_F8_E4M3) ==
                    (double)kvant_e4m3_to_f32(kvant_f32_to_e4m3(x)));
        assert_true(oracle_saturate(wide, KVANT_DTYPE_F8_E5M2) ==
                    (double)kvant_e5m2_to_f32(kvant_f32_to_e5m2(x)));
        assert_true(oracle_round(wide, KVANT_DTYPE_F32) == wide);
    }
    assert_true(oracle_round(1 + 0x1p-24, KVANT_DTYPE_F32) == 1); /* a tie, to even */
    assert_true(oracle_saturate(1e6, KVANT_DTYPE_F16) == 65504);
    assert_true(signbit(oracle_round(-1e-30, KVANT_DTYPE_F16)));
}

/* ---- Buffers ----------------------------------------------------------------------------------------- */

static sigjmp_buf back;

static void on_fault(int number) {
    (void)number;
    siglongjmp(back, 1);
}

static bool faults(volatile unsigned char *address, bool write) {
    struct sigaction action = {.sa_handler = on_fault}, old;
    (void)sigaction(SIGSEGV, &action, &old);
    bool fault = true;
    if (sigsetjmp(back, 1) == 0) {
        if (write)
            *address = 1;
        else
            (void)*address;
        fault = false;
    }
    (void)sigaction(SIGSEGV, &old, NULL);
    return fault;
}

static void buffers_notice(void **state) {
    static const size_t sizes[] = {0, 1, 63, 64, 4095, 4096, 4097, 100000};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_buffers all = {{NULL}};
        check_buffer buffer;
        ptrdiff_t offset = 0;
        assert_true(check_buffer_create(&all, &buffer, "test", sizes[i], 1, 0));
        assert_false(check_buffer_damaged(&buffer, &offset));
        check_buffer_fill(&buffer, 3);
        assert_false(check_buffer_damaged(&buffer, &offset));
        assert_true(faults(buffer.data + sizes[i], false));
        assert_true(check_buffers_find(&all, buffer.data + sizes[i]) == &buffer);
        buffer.data[-1] ^= 1;
        assert_true(check_buffer_damaged(&buffer, &offset));
        assert_int_equal(offset, -1);
        buffer.data[-1] ^= 1;
        if (sizes[i] > 0) {
            check_buffer_protect(&buffer, true);
            assert_false(faults(buffer.data, false));
            assert_true(faults(buffer.data, true));
        }
        check_buffer_free(&all, &buffer);
        assert_true(check_buffers_find(&all, buffer.data) == NULL);
        /* With an alignment there is slack behind, which a pattern watches. */
        assert_true(check_buffer_create(&all, &buffer, "test", sizes[i], 64, 0));
        assert_int_equal((uintptr_t)buffer.data % 64, 0);
        if (sizes[i] % 64 != 0) {
            buffer.data[sizes[i]] ^= 1;
            assert_true(check_buffer_damaged(&buffer, &offset));
            assert_int_equal(offset, sizes[i]);
        }
        check_buffer_free(&all, &buffer);
    }
}

/* ---- Covering array ---------------------------------------------------------------------------------- */

static const int64_t many[] = {1, 2, 3, 4, 5, 6, 7};
static const char *const words[] = {"a", "b", "c"};
static const kvant_param covered_params[] = {
    {.struct_size = sizeof(kvant_param),
     .type = KVANT_PARAM_INTEGER,
     .integer_count = 7,
     .name = "seven",
     .unit = "",
     .help = "a number",
     .integers = many,
     .integer_min = 1,
     .integer_max = 7,
     .integer_default = 2},
    {.struct_size = sizeof(kvant_param),
     .type = KVANT_PARAM_CHOICE,
     .choice_count = 3,
     .name = "word",
     .unit = "",
     .help = "a word",
     .choices = words},
    {.struct_size = sizeof(kvant_param),
     .type = KVANT_PARAM_SWITCH,
     .name = "turned",
     .unit = "",
     .help = "a switch"},
};
static const kvant_descriptor covered_descriptor = {.struct_size = sizeof(kvant_descriptor),
                                                    .format_id = 0x44564f43,
                                                    .format_version = 1,
                                                    .sides = KVANT_SIDES_BOTH,
                                                    .dtypes = KVANT_DTYPES_ALL,
                                                    .head_dim_min = 1,
                                                    .head_dim_max = 4096,
                                                    .head_dim_multiple = 1,
                                                    .param_count = 3,
                                                    .name = "covered",
                                                    .version = "1.0.0",
                                                    .title = "Constraints",
                                                    .paper = "",
                                                    .license = "Apache-2.0",
                                                    .deviations = "",
                                                    .params = covered_params};

/* Word c takes only even numbers; the switch only word a, and blocks of 16. */
static bool is_taken(const kvant_setup *setup) {
    int64_t seven = setup->values[0].integer, word = setup->values[1].integer,
            turned = setup->values[2].integer;
    return (word != 2 || seven % 2 == 0) && (turned == 0 || word == 0);
}

static kvant_status covered_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    layout->block_multiple = setup->values[2].integer != 0 ? 16 : 1;
    if (!is_taken(setup)) return kvant_fail(diag, KVANT_ERROR_CONFLICT, "word", "not together");
    if (setup->block_tokens % layout->block_multiple != 0)
        return kvant_fail(diag, KVANT_ERROR_BLOCK_TOKENS, "", "blocks of 16");
    return KVANT_OK;
}

static const kvant_plugin covered_plugin = {.struct_size = sizeof(kvant_plugin),
                                            .abi = KVANT_ABI,
                                            .descriptor = &covered_descriptor,
                                            .plan = covered_plan,
                                            .open = honest_open,
                                            .close = honest_close,
                                            .encode = honest_encode,
                                            .decode = honest_decode};

static bool pair_is_taken(const check_worker *worker, uint32_t a, uint32_t va, uint32_t b, uint32_t vb) {
    const check_board *board = worker->board;
    for (uint32_t i = 0; i < board->row_count; i++)
        if (board->rows[i].accepted && board->rows[i].value[a] == va && board->rows[i].value[b] == vb)
            return true;
    return false;
}

/* Is there any setting of the three parameters with these two values that the plan takes? */
static bool pair_is_possible(const check_axes *axes, uint32_t a, uint32_t va, uint32_t b, uint32_t vb) {
    for (uint32_t i = 0; i < 7 * 3 * 2; i++) {
        const uint32_t value[3] = {i % 7, i / 7 % 3, i / 21};
        bool fits = true;
        kvant_value values[3];
        for (uint32_t p = 0; p < 3; p++) {
            values[p] = axes->axis[CHECK_AXIS_PARAM + p].values[value[p]];
            if (a == CHECK_AXIS_PARAM + p && va != value[p]) fits = false;
            if (b == CHECK_AXIS_PARAM + p && vb != value[p]) fits = false;
        }
        const kvant_setup setup = {.values = values};
        if (fits && is_taken(&setup)) return true;
    }
    return false;
}

static void nothing(void *context, const check_record *record) {
    (void)context;
    (void)record;
}

static void every_possible_pair_is_covered(void **state) {
    (void)state;
    const check_options options = {.codec = "covered", .seed = 11, .fraction = 1, .number = -1};
    check_worker *worker = calloc(1, sizeof *worker);
    assert_non_null(worker);
    worker->options = &options;
    worker->board = check_board_create();
    assert_non_null(worker->board);
    worker->slot = &worker->board->slots[0];
    worker->plugin = &covered_plugin;
    worker->emit = nothing;
    worker->number = -1;
    assert_int_equal(check_axes_create(&covered_descriptor, &options, &worker->axes, NULL), KVANT_OK);
    check_cover(worker, false);
    const check_axes *axes = &worker->axes;
    uint64_t pairs = 0, possible = 0;
    for (uint32_t a = 0; a < axes->count; a++)
        for (uint32_t b = a + 1; b < axes->count; b++)
            for (uint32_t va = 0; va < axes->axis[a].count; va++)
                for (uint32_t vb = 0; vb < axes->axis[b].count; vb++) {
                    bool can = pair_is_possible(axes, a, va, b, vb);
                    assert_int_equal(pair_is_taken(worker, a, va, b, vb), can);
                    pairs++;
                    possible += can;
                }
    assert_int_equal(worker->board->pairs, pairs);
    assert_int_equal(worker->board->pairs_accepted, possible);
    assert_true(possible < pairs);
    assert_true(worker->board->row_count < 600); /* a pairwise array, no product */
    check_board_free(worker->board);
    free(worker);
}

/* ---- Data -------------------------------------------------------------------------------------------- */

static void data_is_finite_and_exact(void **state) {
    (void)state;
    float values[32 * 3 * 48];
    for (unsigned data = 0; data < CHECK_DATA_COUNT; data++)
        for (uint32_t dtype = KVANT_DTYPE_F32; dtype <= KVANT_DTYPE_BF16; dtype++) {
            check_random random = check_random_stream(3, data);
            double energy = 0;
            check_data_fill((check_data)data, dtype, 32, 3, 48, &random, values);
            for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
                assert_true(isfinite(values[i]));
                energy += fabs((double)values[i]);
                if (dtype == KVANT_DTYPE_F16) assert_true(kvant_round_f16(values[i]) == values[i]);
                if (dtype == KVANT_DTYPE_BF16) assert_true(kvant_round_bf16(values[i]) == values[i]);
            }
            assert_true(energy > 0);
        }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_agree_with_the_kit),
        cmocka_unit_test(buffers_notice),
        cmocka_unit_test(every_possible_pair_is_covered),
        cmocka_unit_test(data_is_finite_and_exact),
    };
    return kvant_run_tests(tests, argc, argv);
}
