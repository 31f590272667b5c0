/* core/measure/eval with a codec whose mistakes are known: what it does wrong must be seen, and where. */
#include "support/write_dump.h"
#include "support/test.h"

#include "measure/eval_run.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- A codec that stores floats, and may spoil them ---------------------------------------------------- */

enum { COPY, ZEROS, NANS, DOUBLE, NOTHING, SECOND_HALF_ZERO };
static const char *const modes[] = {"copy", "zeros", "nans", "double", "nothing", "second_half_zero"};
static const char *const ropes[] = {"after", "before"};
static const kvant_param params[] = {{.struct_size = sizeof(kvant_param),
                                      .type = KVANT_PARAM_CHOICE,
                                      .name = "mode",
                                      .unit = "",
                                      .help = "what decode does",
                                      .choices = modes,
                                      .choice_count = 6},
                                     {.struct_size = sizeof(kvant_param),
                                      .type = KVANT_PARAM_CHOICE,
                                      .name = "rope",
                                      .unit = "",
                                      .help = "side of RoPE",
                                      .choices = ropes,
                                      .choice_count = 2}};
static const kvant_descriptor descriptor = {.struct_size = sizeof descriptor,
                                            .format_id = 'S' | 'P' << 8 | 'O' << 16 | 'I' << 24,
                                            .format_version = 1,
                                            .sides = KVANT_SIDES_BOTH,
                                            .dtypes = KVANT_DTYPES_ALL,
                                            .head_dim_min = 1,
                                            .head_dim_max = 4096,
                                            .head_dim_multiple = 1,
                                            .param_count = 2,
                                            .name = "spoil",
                                            .version = "1.0.0",
                                            .title = "Floats, spoiled on request",
                                            .paper = "",
                                            .license = "Apache-2.0",
                                            .deviations = "",
                                            .params = params};

typedef struct spoil_state {
    uint32_t mode, heads, dim, tokens;
} spoil_state;

/* 64 bytes of "metadata" and 32 of padding around 32 bits an element. */
static kvant_status spoil_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    (void)diag;
    uint64_t elements = (uint64_t)setup->block_tokens * setup->kv_heads * setup->head_dim;
    layout->alignment = 64;
    layout->block_multiple = 1;
    layout->size_min = 4 * elements + 96;
    layout->payload_bits = 32 * elements;
    layout->metadata_bits = 512;
    layout->state_bytes = sizeof(spoil_state);
    if (setup->values[1].integer == 1 && setup->side == KVANT_SIDE_KEY)
        layout->flags |= KVANT_LAYOUT_KEYS_BEFORE_ROPE;
    return KVANT_OK;
}

static kvant_status spoil_open(const kvant_setup *setup, const kvant_layout *layout, void *state,
                               kvant_diag *diag) {
    (void)layout;
    (void)diag;
    *(spoil_state *)state = (spoil_state){.mode = (uint32_t)setup->values[0].integer,
                                          .heads = setup->kv_heads,
                                          .dim = setup->head_dim,
                                          .tokens = setup->block_tokens};
    return KVANT_OK;
}

static void spoil_close(void *state) {
    (void)state;
}

static kvant_status spoil_encode(const void *state, kvant_encode_args *args) {
    const spoil_state *s = state;
    float *out = args->extent;
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t h = 0; h < s->heads; h++, out += s->dim) kvant_load_row(args->rows, t, h, out);
    memset(out, 0, 96);
    args->size = (uint64_t)4 * s->tokens * s->heads * s->dim + 96;
    args->saturated = 1;
    return KVANT_OK;
}

static kvant_status spoil_decode(const void *state, const kvant_decode_args *args) {
    const spoil_state *s = state;
    float row[256];
    for (uint32_t t = 0; t < args->rows->tokens; t++)
        for (uint32_t h = 0; h < args->rows->heads; h++) {
            uint32_t token = args->first_token + t, head = args->first_head + h;
            const float *from =
                (const float *)args->extent->bytes + ((size_t)token * s->heads + head) * s->dim;
            for (uint32_t c = 0; c < s->dim; c++) {
                float x = from[c];
                if (s->mode == ZEROS || (s->mode == SECOND_HALF_ZERO && token >= s->tokens / 2)) x = 0;
                if (s->mode == DOUBLE) x = 2 * x;
                if (s->mode == NANS && token == 5 && c == 0) x = NAN;
                row[c] = x;
            }
            if (s->mode != NOTHING) kvant_store_row(args->rows, t, h, row);
        }
    return KVANT_OK;
}

static const kvant_plugin plugin = {.struct_size = sizeof plugin,
                                    .abi = KVANT_ABI,
                                    .descriptor = &descriptor,
                                    .plan = spoil_plan,
                                    .open = spoil_open,
                                    .close = spoil_close,
                                    .encode = spoil_encode,
                                    .decode = spoil_decode};

static const kvant_plugin *spoil_query(uint32_t host_abi) {
    (void)host_abi;
    return &plugin;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static char dump_file[64];

typedef struct setting {
    const char *mode;
    const char *rope;
    uint32_t block_tokens, sinks, recent, threads;
    const char *on_nonfinite;
} setting;

static const setting plain = {"copy", "after", 32, 0, 0, 1, "error"};

static kvant_status run(const kvant_test_dump *d, setting s, kvant_eval **eval, kvant_diag *diag) {
    char text[512];
    int size =
        snprintf(text, sizeof text,
                 "[pipeline]\nname = test\nblock_tokens = %u\nsinks = %u\nrecent = %u\non_nonfinite = %s\n"
                 "[codec k]\nplugin = spoil\nmode = %s\nrope = %s\n[codec v]\nplugin = spoil\nmode = %s\n"
                 "[layers]\nkey = k\nvalue = v\n",
                 s.block_tokens, s.sinks, s.recent, s.on_nonfinite, s.mode, s.rope, s.mode);
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_dump *dump = NULL;
    kvant_eval_options how = {.threads = s.threads};
    kvant_test_dump_write(d, dump_file);
    *eval = NULL;
    kvant_status status = kvant_pipeline_parse(text, (size_t)size, "test.ini", NULL, &pipeline, diag);
    if (status == KVANT_OK) status = kvant_dump_open(dump_file, &dump, diag);
    if (status == KVANT_OK) status = kvant_pipeline_resolve(pipeline, kvant_dump_geometry(dump), &plan, diag);
    if (status != KVANT_OK) fail_msg("%s", diag->message);
    status = kvant_eval_run(plan, dump, &how, eval, diag);
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    kvant_dump_close(dump);
    (void)unlink(dump_file);
    return status;
}

static kvant_eval *must_run(const kvant_test_dump *d, setting s) {
    kvant_eval *eval = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (run(d, s, &eval, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    return eval;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void a_lossless_codec_has_no_error_at_all(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    kvant_eval *eval = must_run(&d, plain);
    assert_int_equal(eval->layer_count, 3);
    for (uint32_t l = 0; l < 3; l++) {
        assert_true(isnan(kvant_eval_metric(&eval->layers[l], KVANT_METRIC_DEVICE)));
        for (kvant_metric m = 0; m < KVANT_METRIC_DEVICE; m++) {
            double want = m == KVANT_METRIC_KEY_COSINE || m == KVANT_METRIC_VALUE_COSINE ? 1 : 0;
            kvant_assert_close(kvant_eval_metric(&eval->layers[l], m), want, want * 1e-12);
        }
        assert_int_equal(eval->layers[l].sides[0].quality.rows, 128 * 2);
        assert_int_equal(eval->layers[l].sides[1].saturated, 4);
        assert_string_equal(eval->layers[l].sides[0].codec, "spoil");
    }
    assert_int_equal(eval->coded_tokens, 128);
    kvant_eval_free(eval);
}

/* What a device's layers say, and what the run says of them. */
static void the_worst_of_a_device_is_found(void **state) {
    (void)state;
    kvant_eval_layer layers[4] = {{.device = {.rms = NAN}},
                                  {.device = {.attends = 1, .rms = 3e-7, .of_allowed = 0.4}},
                                  {.device = {.attends = 1, .rms = 9e-7, .of_allowed = 2}},
                                  {.device = {.attends = 2, .rms = 5e-7, .of_allowed = 1}}};
    kvant_eval eval = {.layer_count = 4, .layers = layers};
    uint32_t layer;
    double of_allowed;
    kvant_spread rms;
    assert_true(kvant_eval_device_worst(&eval, &layer, &of_allowed));
    assert_int_equal(layer, 2);
    kvant_assert_close(of_allowed, 2, 0);
    assert_int_equal(kvant_eval_spread(&eval, KVANT_METRIC_DEVICE, &rms), KVANT_OK);
    kvant_assert_close(rms.median, 5e-7, 0);
    kvant_assert_close(rms.worst, 9e-7, 0);
    eval.layer_count = 1;
    assert_false(kvant_eval_device_worst(&eval, &layer, &of_allowed));
}

static void a_codec_that_does_nothing_is_seen(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    setting s = plain;
    s.mode = "zeros";
    kvant_eval *eval = must_run(&d, s);
    for (uint32_t l = 0; l < 3; l++) {
        kvant_assert_close(kvant_eval_metric(&eval->layers[l], KVANT_METRIC_KEY_NMSE), 1, 0);
        kvant_assert_close(kvant_eval_metric(&eval->layers[l], KVANT_METRIC_VALUE_NMSE), 1, 0);
        kvant_assert_close(kvant_eval_metric(&eval->layers[l], KVANT_METRIC_KEY_COSINE), 0, 0);
        assert_true(eval->layers[l].attention.both > 0.3);
        assert_true(eval->layers[l].attention.divergence > 0.1);
    }
    kvant_eval_free(eval);
    s.mode = "double";
    eval = must_run(&d, s);
    kvant_assert_close(kvant_eval_metric(&eval->layers[1], KVANT_METRIC_KEY_NMSE), 1, 1e-15);
    kvant_assert_close(kvant_eval_metric(&eval->layers[1], KVANT_METRIC_KEY_COSINE), 1, 1e-12);
    kvant_eval_free(eval);
}

static void numbers_that_are_not_finite_are_found(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    setting s = plain;
    uint32_t layer, side;
    uint64_t count;
    kvant_eval *eval = must_run(&d, s);
    assert_false(kvant_eval_not_finite(eval, &layer, &side, &count));
    kvant_eval_free(eval);
    s.mode = "nans";
    eval = must_run(&d, s);
    assert_true(kvant_eval_not_finite(eval, &layer, &side, &count));
    assert_int_equal(layer, 0);
    assert_int_equal(side, KVANT_SIDE_KEY);
    assert_int_equal(count, 4 * 2); /* token 5 of four blocks, two heads */
    assert_true(kvant_eval_metric(&eval->layers[0], KVANT_METRIC_KEY_NMSE) == INFINITY);
    assert_true(eval->layers[0].attention.both == INFINITY);
    kvant_eval_free(eval);
    s.mode = "nothing"; /* what decode does not write must not pass for a number */
    eval = must_run(&d, s);
    assert_true(kvant_eval_not_finite(eval, &layer, &side, &count));
    assert_int_equal(count, 128 * 2 * 32);
    kvant_eval_free(eval);
}

static void sinks_are_exact_and_not_counted(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    setting s = plain;
    s.mode = "zeros";
    s.sinks = 4;
    kvant_eval *eval = must_run(&d, s);
    assert_int_equal(eval->coded_tokens, 124);
    assert_int_equal(eval->layers[0].sides[0].quality.rows, 124 * 2);
    kvant_account account = kvant_eval_side_account(eval, KVANT_SIDE_VALUE);
    assert_int_equal(account.raw_elements, 3 * (4 + 22) * 2 * 24);
    assert_int_equal(account.raw_bytes, 3 * (4 + 22) * 2 * 24 * 2);
    kvant_eval_free(eval);
    /* With every coded token a sink but one, hardly any error is left. */
    d.tokens = 32;
    d.query_start = 23;
    s.sinks = 31;
    kvant_eval *nearly = must_run(&d, s);
    s.sinks = 0;
    kvant_eval *none = must_run(&d, s);
    assert_true(nearly->layers[0].attention.both < 0.2 * none->layers[0].attention.both);
    kvant_eval_free(nearly);
    kvant_eval_free(none);
}

static void bits_count_everything(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    kvant_eval *eval = must_run(&d, plain);
    kvant_account account = kvant_eval_account(eval);
    uint64_t key = 32 * 2 * 32, value = 32 * 2 * 24, extents = 3 * 4;
    assert_int_equal(account.extent_elements, extents * (key + value));
    assert_int_equal(account.extent_bytes, extents * (4 * key + 96 + 4 * value + 96));
    assert_int_equal(account.metadata_bits, 2 * extents * 512);
    kvant_assert_close(kvant_account_payload(&account), 32, 0);
    kvant_assert_within(kvant_account_all(&account), 32 + 8.0 * 192 / (double)(key + value), 1e-12);
    assert_int_equal(kvant_account_bytes(&account), account.extent_bytes + 3 * 22 * 2 * (32 + 24) * 2);
    kvant_eval_free(eval);
}

static void same(const kvant_eval *a, const kvant_eval *b) {
    assert_int_equal(a->layer_count, b->layer_count);
    for (uint32_t l = 0; l < a->layer_count; l++) {
        for (uint32_t side = 0; side < 2; side++) {
            kvant_assert_bytes(&a->layers[l].sides[side].quality, &b->layers[l].sides[side].quality,
                               sizeof(kvant_quality));
            kvant_assert_bytes(&a->layers[l].sides[side].account, &b->layers[l].sides[side].account,
                               sizeof(kvant_account));
        }
        kvant_assert_bytes(&a->layers[l].attention, &b->layers[l].attention, sizeof(kvant_distortion_error));
        kvant_assert_bytes(a->layers[l].heads, b->layers[l].heads,
                           a->layers[l].q_heads * sizeof *a->layers[l].heads);
    }
}

static void threads_change_nothing(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    d.layers = 7;
    setting s = plain;
    s.mode = "second_half_zero";
    s.sinks = 3;
    kvant_eval *one = must_run(&d, s);
    assert_true(one->layers[6].attention.both > 0);
    s.threads = 3;
    kvant_eval *three = must_run(&d, s);
    assert_int_equal(three->threads, 3);
    same(one, three);
    kvant_eval_free(one);
    kvant_eval_free(three);
}

/* The recent column: a query sees a block as codes once all of it is older than the recent window. */
static void the_recent_window_stays_raw(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    d.tokens = 128;
    d.query_tokens = 1;
    d.query_start = 127;
    setting s = plain;
    s.mode = "zeros";
    double last = INFINITY;
    for (uint32_t recent = 0; recent <= 128; recent += 32) {
        s.recent = recent;
        kvant_eval *eval = must_run(&d, s);
        assert_int_equal(eval->coded_tokens, 128); /* the main columns know nothing of it */
        double error = eval->layers[0].attention.recent;
        /* At recent = 0 the block of the query itself is raw in a growing cache, as at 1..32. */
        if (recent == 0) assert_true(error < eval->layers[0].attention.both);
        if (recent == 32) kvant_assert_close(error, last, 0);
        if (recent > 32) assert_true(error < last);
        if (recent == 128) kvant_assert_close(error, 0, 0);
        last = error;
        kvant_eval_free(eval);
    }
    /* 33 newest of 128 tokens: the third block holds one of them. */
    s.recent = 33;
    kvant_eval *more = must_run(&d, s);
    s.recent = 64;
    kvant_eval *two = must_run(&d, s);
    kvant_assert_close(more->layers[0].attention.recent, two->layers[0].attention.recent, 0);
    kvant_eval_free(more);
    kvant_eval_free(two);
}

/* The same keys, dumped before and after RoPE, and coded on either side of it. */
static void keys_before_rope_meet_turned_queries(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    d.dtype = KVANT_DTYPE_F32;
    setting s = plain;
    s.mode = "second_half_zero"; /* zero rows are zero on both sides of RoPE */
    kvant_eval *after = must_run(&d, s);
    d.keys_before_rope = true;
    kvant_eval *before = must_run(&d, s);
    s.rope = "before";
    kvant_eval *stored_before = must_run(&d, s);
    for (uint32_t l = 0; l < 3; l++) {
        double want = after->layers[l].attention.both;
        assert_true(want > 0.1);
        kvant_assert_within(before->layers[l].attention.both, want, 1e-5);
        kvant_assert_within(stored_before->layers[l].attention.both, want, 1e-5);
        kvant_assert_within(before->layers[l].attention.divergence, after->layers[l].attention.divergence,
                            1e-5);
        kvant_assert_within(before->layers[l].attention.key_only, after->layers[l].attention.key_only, 1e-5);
    }
    kvant_eval_free(after);
    kvant_eval_free(before);
    kvant_eval_free(stored_before);
}

static void what_is_missing_is_not_invented(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    setting s = plain;
    s.mode = "zeros";
    d.has_values = false; /* keys and queries: rows of softmax, no outputs */
    kvant_eval *eval = must_run(&d, s);
    assert_true(eval->has_divergence && !eval->has_output_error);
    assert_true(kvant_eval_metric(&eval->layers[0], KVANT_METRIC_DIVERGENCE) > 0.1);
    assert_true(isnan(kvant_eval_metric(&eval->layers[0], KVANT_METRIC_BOTH)));
    assert_true(isnan(kvant_eval_metric(&eval->layers[0], KVANT_METRIC_VALUE_NMSE)));
    kvant_spread spread;
    assert_int_equal(kvant_eval_spread(eval, KVANT_METRIC_BOTH, &spread), KVANT_OK);
    assert_true(isnan(spread.median) && isnan(spread.worst));
    uint32_t layer, head;
    double error;
    assert_false(kvant_eval_worst_head(eval, &layer, &head, &error));
    kvant_eval_free(eval);
    d.has_values = true;
    d.has_keys = false; /* values only: nothing to attend with */
    d.has_queries = false;
    eval = must_run(&d, s);
    kvant_assert_close(kvant_eval_metric(&eval->layers[0], KVANT_METRIC_VALUE_NMSE), 1, 0);
    for (kvant_metric m = KVANT_METRIC_KEY_ONLY; m < KVANT_METRIC_COUNT; m++)
        assert_true(isnan(kvant_eval_metric(&eval->layers[0], m)));
    assert_false(eval->layers[0].sides[0].measured);
    assert_int_equal(kvant_eval_side_account(eval, KVANT_SIDE_KEY).raw_bytes, 0);
    kvant_eval_free(eval);
}

static void a_dump_shorter_than_a_block_codes_nothing(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    setting s = plain;
    s.block_tokens = 256;
    s.sinks = 4;
    s.mode = "zeros";
    kvant_eval *eval = must_run(&d, s);
    assert_int_equal(eval->coded_tokens, 0);
    assert_true(isnan(kvant_eval_metric(&eval->layers[0], KVANT_METRIC_KEY_NMSE)));
    kvant_assert_close(eval->layers[0].attention.both, 0, 0);
    kvant_account account = kvant_eval_account(eval);
    assert_int_equal(account.raw_elements, 3 * 150 * 2 * (32 + 24));
    assert_true(isnan(kvant_account_all(&account)) && isnan(kvant_eval_encode_speed(eval)));
    kvant_eval_free(eval);
}

static void bad_input_is_named_or_replaced(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    d.poisoned = "layers.1.value";
    d.token = 70;
    d.head = 1;
    d.channel = 9;
    d.poison = NAN;
    kvant_eval *eval;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(run(&d, plain, &eval, &diag), KVANT_ERROR_NOT_FINITE);
    assert_null(eval);
    kvant_assert_contains(diag.message, "layers.1.value: NaN at token 70, head 1, channel 9");
    kvant_assert_contains(diag.file, dump_file);
    setting s = plain;
    s.on_nonfinite = "saturate";
    eval = must_run(&d, s);
    assert_int_equal(eval->layers[1].sides[1].input_not_finite, 1);
    assert_int_equal(eval->layers[1].sides[0].input_not_finite, 0);
    kvant_assert_close(kvant_eval_metric(&eval->layers[1], KVANT_METRIC_VALUE_NMSE), 0, 0);
    kvant_assert_close(eval->layers[1].attention.both, 0, 0);
    kvant_eval_free(eval);
    d.poisoned = "layers.2.key";
    d.poison = -INFINITY;
    eval = must_run(&d, s);
    assert_int_equal(eval->layers[2].sides[0].input_not_finite, 1);
    kvant_assert_close(kvant_eval_metric(&eval->layers[2], KVANT_METRIC_KEY_NMSE), 0, 0);
    kvant_eval_free(eval);
    d.poisoned = "layers.0.query"; /* queries are never replaced */
    d.token = 3;
    assert_int_equal(run(&d, s, &eval, &diag), KVANT_ERROR_NOT_FINITE);
    kvant_assert_contains(diag.message, "layers.0.query: an infinity at token 3, head 1, channel 9");
}

/* One tile is 64 tokens, decoded runs are bounded, long series of queries go in pieces: shapes that meet all
 * borders agree with the smallest one. */
static void large_blocks_and_many_queries_agree_with_small_ones(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    d.layers = 1;
    d.tokens = 512;
    d.kv_heads = 32;
    d.q_heads = 64;
    d.key_dim = 128;
    d.value_dim = 96;
    d.query_tokens = 40; /* 64 heads x 40 rows x 5 x 96 doubles: more than one pass */
    d.query_start = 472;
    setting s = plain;
    s.mode = "double";
    s.block_tokens = 32;
    kvant_eval *small = must_run(&d, s);
    s.block_tokens = 512; /* 512 x 32 x 128 floats: more than one run */
    kvant_eval *large = must_run(&d, s);
    assert_int_equal(large->coded_tokens, 512);
    kvant_assert_within(large->layers[0].sides[0].quality.error, small->layers[0].sides[0].quality.error,
                        1e-11);
    assert_int_equal(large->layers[0].sides[0].quality.rows, 512 * 32);
    kvant_assert_within(large->layers[0].attention.both, small->layers[0].attention.both, 1e-9);
    kvant_assert_within(large->layers[0].attention.divergence, small->layers[0].attention.divergence, 1e-9);
    assert_int_equal(large->layers[0].heads[63].rows, 40);
    kvant_eval_free(small);
    kvant_eval_free(large);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lossless_codec_has_no_error_at_all),
        cmocka_unit_test(the_worst_of_a_device_is_found),
        cmocka_unit_test(a_codec_that_does_nothing_is_seen),
        cmocka_unit_test(numbers_that_are_not_finite_are_found),
        cmocka_unit_test(sinks_are_exact_and_not_counted),
        cmocka_unit_test(bits_count_everything),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(the_recent_window_stays_raw),
        cmocka_unit_test(keys_before_rope_meet_turned_queries),
        cmocka_unit_test(what_is_missing_is_not_invented),
        cmocka_unit_test(a_dump_shorter_than_a_block_codes_nothing),
        cmocka_unit_test(bad_input_is_named_or_replaced),
        cmocka_unit_test(large_blocks_and_many_queries_agree_with_small_ones),
    };
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_plugin_register(spoil_query, &diag) != KVANT_OK) {
        fprintf(stderr, "%s\n", diag.message);
        return 1;
    }
    (void)snprintf(dump_file, sizeof dump_file, "/tmp/kvant-measure-%ld.safetensors", (long)getpid());
    return kvant_run_tests(tests, argc, argv);
}
