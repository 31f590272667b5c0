/* Wrong arguments of the attention floor: each refused by sequence, place and rule, with nothing written;
 * failures of a codec; scratch sizes. */
#include "support/attend_bed.h"
#include "support/floor.h"
#include "support/scorer.h"
#include "support/test.h"
#include "support/tester.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, HEADS = 6, VALUE = 32 };

static bed *b;
static bed_call *good, *bad;
static kvant_attention_options options;

static int setup(void **state) {
    (void)state;
    scorer_register();
    tester_register();
    tester = (tester_behaviour){0};
    b = bed_open(
        &(bed_wish){.key = "kivi", .value = "scorer", .head = "sinks = 4", .tokens = 300, .seed = 1});
    good = bed_call_make(b, 300, 256, ROWS);
    bad = bed_call_make(b, 300, 256, ROWS);
    options = bed_options(b);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    bed_call_free(good);
    bed_call_free(bad);
    bed_close(b);
    return 0;
}

/* `bad` is the second sequence of a call that is refused with these words; then it is made good again. */
static void expect(kvant_status status, const char *words) {
    bed_call *calls[] = {good, bad};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status got = bed_try_run(b, calls, 2, &options, &diag);
    if (got != status) fail_msg("status %d, not %d: %s", (int)got, (int)status, diag.message);
    kvant_assert_contains(diag.message, words);
    kvant_assert_contains(diag.message, "layer 0");
    for (size_t i = 0; i < 2; i++) {
        const unsigned char *out = (const unsigned char *)calls[i]->output_rows;
        for (size_t k = 0; k < sizeof(float) * ROWS * HEADS * VALUE; k++) assert_int_equal(out[k], 0xff);
    }
    bed_call_free(bad);
    bad = bed_call_make(b, 300, 256, ROWS);
    options = bed_options(b);
}

static void queries_outputs_and_ranges(void **state) {
    (void)state;
    bad->sequence.queries = NULL;
    expect(KVANT_ERROR_ARGUMENT, "sequence 1: queries are NULL");
    bad->queries.dtype = KVANT_DTYPE_I8;
    expect(KVANT_ERROR_DTYPE, "queries of type 8");
    bad->queries.heads = 5;
    expect(KVANT_ERROR_ARGUMENT, "queries [2 rows, 5 heads, 64 channels], and the layer has 6 query heads");
    bad->queries.head_dim = 63;
    expect(KVANT_ERROR_ARGUMENT, "keys of 64 channels");
    bad->outputs.data = NULL;
    expect(KVANT_ERROR_ARGUMENT, "outputs are NULL");
    bad->outputs.tokens = 3;
    expect(KVANT_ERROR_ARGUMENT,
           "outputs [3, 6, 32], and the queries ask for [2 rows, 6 heads, 32 channels]");
    bad->outputs.dtype = KVANT_DTYPE_F64;
    expect(KVANT_ERROR_DTYPE, "outputs of type 4");
    bad->sequence.ranges = NULL;
    expect(KVANT_ERROR_ARGUMENT, "ranges are NULL");
    bad->ranges[1] = (kvant_token_range){7, 6};
    expect(KVANT_ERROR_ARGUMENT, "sequence 1: row 1: the range [7, 6)");
}

static void references(void **state) {
    (void)state;
    bad->references[3].key = NULL;
    expect(KVANT_ERROR_ARGUMENT, "sequence 1: reference 3: the key extent is NULL or not aligned");
    bad->references[2].value = (const char *)bad->references[2].value + 64;
    expect(KVANT_ERROR_ARGUMENT, "reference 2: the value extent is NULL or not aligned to 128 bytes");
    bad->references[2].value_size -= 1;
    expect(KVANT_ERROR_ARGUMENT, "reference 2: 16383 bytes are no size of a value extent of codec scorer");
    bad->references[0].key_size = 0;
    expect(KVANT_ERROR_ARGUMENT, "reference 0: 0 bytes are no size of a key extent of codec kivi");
    bad->references[1].live_first = 1;
    expect(KVANT_ERROR_ARGUMENT, "reference 1: live tokens from 1, 64 of them, are not within a block of 64");
    bad->references[1].live_first = 65;
    expect(KVANT_ERROR_ARGUMENT, "not within a block");
    bad->references[1].first_position = UINT64_MAX - 10;
    expect(KVANT_ERROR_ARGUMENT, "overflows");
    bad->references[0].live_first = 3;
    bad->references[0].live_count = 61;
    expect(KVANT_ERROR_ARGUMENT, "reference 0: its token at position 3 is one of the 4 sinks");
    bad->sequence.references = NULL;
    expect(KVANT_ERROR_ARGUMENT, "4 references");
}

static void raw_runs(void **state) {
    (void)state;
    bad->runs[1].keys = NULL;
    expect(KVANT_ERROR_ARGUMENT, "sequence 1: raw run 1: keys are NULL");
    bad->run_views[0][KVANT_SIDE_VALUE].dtype = KVANT_DTYPE_F32;
    expect(KVANT_ERROR_DTYPE, "raw run 0: values of type 1, and the geometry says 2");
    bad->run_views[0][KVANT_SIDE_KEY].heads = 6;
    expect(KVANT_ERROR_ARGUMENT,
           "raw run 0: keys [4 tokens, 6 heads, 64 channels], and the layer has 2 kv heads");
    bad->run_views[1][KVANT_SIDE_VALUE].tokens--;
    expect(KVANT_ERROR_ARGUMENT, "raw run 1: 44 keys and 43 values");
    bad->runs[1].first_position = UINT64_MAX - 3;
    expect(KVANT_ERROR_ARGUMENT, "raw run 1: first position");
}

static void the_call(void **state) {
    (void)state;
    options.scale = 0;
    expect(KVANT_ERROR_ARGUMENT, "scale = 0");
    options.scale = NAN;
    expect(KVANT_ERROR_ARGUMENT, "scale = nan");
    options.soft_cap = -1;
    expect(KVANT_ERROR_ARGUMENT, "soft_cap = -1");
    options.soft_cap = INFINITY;
    expect(KVANT_ERROR_ARGUMENT, "soft_cap = inf");
    options.first_kv_head = 2;
    expect(KVANT_ERROR_ARGUMENT, "0 kv heads from head 2 on are not within the layer's 2");
    options.first_kv_head = 1;
    options.kv_heads = 2;
    expect(KVANT_ERROR_ARGUMENT, "2 kv heads from head 1 on");
    options.struct_size = 4;
    expect(KVANT_ERROR_ARGUMENT, "options are NULL");
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_attention_run(NULL, &good->sequence, 1, &options, NULL, 0, &diag),
                     KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_attention_run(b->attention, NULL, 1, &options, NULL, 0, &diag),
                     KVANT_ERROR_ARGUMENT);
    options.threads = 5000;
    assert_int_equal(kvant_attention_run(b->attention, &good->sequence, 1, &options, NULL, 0, &diag),
                     KVANT_ERROR_ARGUMENT);
    kvant_assert_contains(diag.message, "threads = 5000 is above 1024");
    options.threads = 1;
    size_t size = kvant_attention_scratch_bytes(b->attention, 1, ROWS);
    unsigned char *memory, *scratch = floor_guarded(size + 64, &memory);
    assert_int_equal(
        kvant_attention_run(b->attention, &good->sequence, 1, &options, scratch, size - 1, &diag),
        KVANT_ERROR_CAPACITY);
    kvant_assert_contains(diag.message, "1 threads with 2 query rows take");
    assert_int_equal(
        kvant_attention_run(b->attention, &good->sequence, 1, &options, scratch + 4, size, &diag),
        KVANT_ERROR_ARGUMENT);
    kvant_assert_contains(diag.message, "not aligned to 64");
    free(memory);
    /* A NULL diag is fine. */
    bad->ranges[1] = (kvant_token_range){7, 6};
    assert_int_equal(kvant_attention_run(b->attention, &bad->sequence, 1, &options, NULL, 0, NULL),
                     KVANT_ERROR_ARGUMENT);
}

static void opening(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_attention *attention = NULL;
    assert_int_equal(kvant_attention_open(NULL, 0, &attention, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_attention_open(b->plan, 1, &attention, &diag), KVANT_ERROR_ARGUMENT);
    kvant_assert_contains(diag.message, "there is no layer 1");
    bed *t = bed_open(&(bed_wish){.key = "tester", .value = "tester", .tokens = 64});
    tester.open_fails = KVANT_ERROR_MISSING;
    uint32_t closed = tester.closed;
    assert_int_equal(kvant_attention_open(t->plan, 0, &attention, &diag), KVANT_ERROR_MISSING);
    kvant_assert_contains(diag.message, "not opened by the test");
    assert_null(attention);
    tester.open_fails = KVANT_OK;
    bed_close(t);
    assert_int_equal(tester.closed, closed + 2);
    kvant_attention_close(NULL);
    assert_null(kvant_attention_codec(NULL, 0));
    assert_null(kvant_attention_codec(b->attention, 2));
    assert_int_equal(kvant_attention_describe(NULL, NULL), KVANT_ERROR_ARGUMENT);
    kvant_attention_info info = {.struct_size = 8, .values_on_codes = 99};
    assert_int_equal(kvant_attention_describe(b->attention, &info), KVANT_OK);
    assert_true(info.struct_size == 8 && info.keys_on_codes == 0 && info.values_on_codes == 99);
    info.struct_size = sizeof info;
    assert_int_equal(kvant_attention_describe(b->attention, &info), KVANT_OK);
    assert_int_equal(info.values_on_codes, 1);
}

static void a_codec_that_fails_is_named(void **state) {
    (void)state;
    bed_call *calls[] = {good, bad};
    kvant_diag diag = {.struct_size = sizeof diag};
    for (uint32_t threads = 1; threads < 4; threads += 2) {
        options.threads = threads;
        scorer_fails = KVANT_ERROR_MEMORY;
        assert_int_equal(bed_try_run(b, calls, 2, &options, &diag), KVANT_ERROR_PLUGIN_BROKEN);
        scorer_fails = KVANT_OK;
        kvant_assert_contains(diag.message, "codec kivi or scorer: mix failed for head 0");
    }
    bed_run(b, calls, 2, &options);
    bed_assert_right(b, bad, &options);
}

/* Scratch grows with threads and rows, up to what a unit takes, and is 0 where there is no such size. */
static void scratch_sizes(void **state) {
    (void)state;
    size_t last = 0;
    for (uint32_t threads = 1; threads <= 1024; threads *= 2) {
        size_t size = kvant_attention_scratch_bytes(b->attention, threads, 1);
        assert_true(size > last && size % 64 == 0);
        last = size;
    }
    last = 0;
    for (uint32_t rows = 1; rows < 200; rows++) {
        size_t size = kvant_attention_scratch_bytes(b->attention, 3, rows);
        assert_true(size >= last);
        last = size;
    }
    assert_int_equal(kvant_attention_scratch_bytes(b->attention, 0, 7),
                     kvant_attention_scratch_bytes(b->attention, 1, 7));
    assert_int_equal(kvant_attention_scratch_bytes(b->attention, 3, 4000000000u), last);
    assert_int_equal(kvant_attention_scratch_bytes(b->attention, 1025, 1), 0);
    assert_int_equal(kvant_attention_scratch_bytes(NULL, 1, 1), 0);
}

/* An older caller's sequences are shorter than this build's; here a newer one's are longer. */
static void sequences_are_walked_by_their_own_size(void **state) {
    (void)state;
    struct longer {
        kvant_attention_sequence sequence;
        uint64_t more[3];
    } two[2];
    memset(two, 0xff, sizeof two);
    two[0].sequence = good->sequence;
    two[1].sequence = bad->sequence;
    two[0].sequence.struct_size = two[1].sequence.struct_size = sizeof two[0];
    size_t size = kvant_attention_scratch_bytes(b->attention, 1, ROWS);
    unsigned char *memory, *scratch = floor_guarded(size, &memory);
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_attention_run(b->attention, &two[0].sequence, 2, &options, scratch, size, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    free(memory);
    bed_assert_right(b, good, &options);
    bed_assert_right(b, bad, &options);
    bad->sequence.struct_size = 16;
    assert_int_equal(kvant_attention_run(b->attention, &bad->sequence, 1, &options, NULL, 0, &diag),
                     KVANT_ERROR_ARGUMENT);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(queries_outputs_and_ranges, setup, teardown),
        cmocka_unit_test_setup_teardown(references, setup, teardown),
        cmocka_unit_test_setup_teardown(raw_runs, setup, teardown),
        cmocka_unit_test_setup_teardown(the_call, setup, teardown),
        cmocka_unit_test_setup_teardown(opening, setup, teardown),
        cmocka_unit_test_setup_teardown(a_codec_that_fails_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(scratch_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(sequences_are_walked_by_their_own_size, setup, teardown),
    };
    return kvant_run_tests(tests, argc, argv);
}
