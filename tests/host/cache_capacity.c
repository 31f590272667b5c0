/* Capacity as bytes say: what 32K tokens take, and that the estimate is what is taken. */
#include "support/cache_rig.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 30, HEADS = 3, DIM = 64, TOKENS = 32768, CHUNK = 2048 };

static const char text[] = "[pipeline]\nblock_tokens = 128\nsinks = 4\nrecent = 128\n"
                           "[codec kivi]\nplugin = kivi\nbits = 2\ngroup = 32\nmeta = f16\n"
                           "[layers]\nkey = kivi\nvalue = kivi\n";

static kvant_plan *plan_of_sample(const char *ini) {
    static kvant_layer_geometry layers[LAYERS];
    for (uint32_t l = 0; l < LAYERS; l++)
        layers[l] = (kvant_layer_geometry){.struct_size = sizeof layers[l],
                                           .kv_heads = HEADS,
                                           .q_heads = 3 * HEADS,
                                           .total_kv_heads = HEADS,
                                           .key_dim = DIM,
                                           .value_dim = DIM};
    const kvant_geometry geometry = {.struct_size = sizeof geometry,
                                     .layer_count = LAYERS,
                                     .dtype = KVANT_DTYPE_F16,
                                     .keys = KVANT_KEYS_AFTER_ROPE,
                                     .layers = layers,
                                     .model = "capacity"};
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    rig_ok(kvant_pipeline_parse(ini, strlen(ini), "capacity.ini", NULL, &pipeline, &rig_diag));
    rig_ok(kvant_pipeline_resolve(pipeline, &geometry, &plan, &rig_diag));
    kvant_pipeline_free(pipeline);
    return plan;
}

/* A step of `count` tokens; every layer gets rows of its own out of one run of numbers. */
static void grow(kvant_sequence *s, const unsigned char *numbers, uint32_t count) {
    uint64_t ids[CHUNK], first = rig_info(s).length;
    for (uint32_t t = 0; t < count; t++) ids[t] = first + t;
    rig_ok(rig_begin(s, &(rig_step){.ids = ids, .count = count}));
    for (uint32_t l = 0; l < LAYERS; l++) {
        const int64_t row = 2 * HEADS * DIM;
        kvant_view keys = {sizeof keys,
                           KVANT_DTYPE_F16,
                           numbers + 2 * (l * 77 + first % 1000),
                           count,
                           HEADS,
                           DIM,
                           0,
                           row,
                           2 * DIM,
                           2},
                   values = keys;
        values.data = numbers + 2 * (l * 91 + first % 1000 + 5000);
        rig_ok(kvant_step_put(s, l, &keys, &values, &rig_diag));
    }
    rig_ok(kvant_step_commit(s, count, &rig_diag));
}

static unsigned char *make_numbers(void) {
    enum { COUNT = CHUNK * HEADS * DIM + 10000 };
    unsigned char *numbers = malloc(2 * COUNT);
    uint64_t seed = 5;
    assert_non_null(numbers);
    for (uint32_t i = 0; i < COUNT; i++)
        kvant_store_element(numbers + 2 * i, KVANT_DTYPE_F16,
                            (float)((double)(kvant_test_random(&seed) >> 11) * 0x1p-52 + i % 7));
    return numbers;
}

/* 2-bit KIVI, 32K tokens, 30 layers: all that the process holds for them, against codes, scales and the raw
 * rows that the rule keeps. */
static void a_long_text_takes_what_its_codes_take(void **state) {
    (void)state;
    kvant_plan *plan = plan_of_sample(text);
    unsigned char *numbers = make_numbers();
    kvant_bytes least = {.struct_size = sizeof least}, most = {.struct_size = sizeof most};
    kvant_cache *cache = NULL;
    kvant_sequence *s = NULL;
    rig_ok(kvant_cache_estimate(plan, TOKENS, &least, &most, &rig_diag));
    assert_int_equal(least.total, most.total);
    /* Room for the sequence and for what a step of CHUNK tokens takes besides: extents that it encodes (in
     * the estimate of the next length), pages. */
    kvant_bytes step = {.struct_size = sizeof step};
    rig_ok(kvant_cache_estimate(plan, CHUNK, &least, &step, &rig_diag));
    uint64_t page = UINT64_C(2) * LAYERS * 128 * HEADS * DIM * 2;
    const kvant_cache_options options = {.struct_size = sizeof options,
                                         .bytes = most.total + step.total + 20 * page};
    rig_ok(kvant_cache_open(plan, &options, &cache, &rig_diag));
    rig_ok(kvant_sequence_create(cache, NULL, 0, &s, &rig_diag));
    for (uint32_t at = 0; at < TOKENS; at += CHUNK) grow(s, numbers, CHUNK);
    assert_int_equal(rig_info(s).length, TOKENS);
    assert_int_equal(rig_info(s).tail_first, TOKENS - 128);

    /* From the numbers of the method alone. */
    uint64_t rows = UINT64_C(2) * LAYERS * HEADS * DIM, coded = rows * (TOKENS - 128);
    uint64_t payload = coded / 4, metadata = coded / 32 * 4, window = rows * 2 * (128 + 4);
    kvant_bytes got = rig_bytes(s);
    kvant_cache_report report = {.struct_size = sizeof report};
    rig_ok(kvant_cache_describe(cache, &report));
    assert_int_equal(got.payload, payload);
    assert_int_equal(got.metadata, metadata);
    assert_int_equal(got.total, most.total);
    print_message("%.1f MB in all, %.1f of codes, %.1f of scales, %.1f raw: %.4f of these three\n",
                  (double)got.total / 1e6, (double)payload / 1e6, (double)metadata / 1e6,
                  (double)window / 1e6, (double)got.total / (double)(payload + metadata + window));
    assert_true((double)got.total <= 1.05 * (double)(payload + metadata + window));
    assert_true((double)report.bytes.total <= 1.05 * (double)(payload + metadata + window));
    assert_true((double)(report.capacity - report.free) <= 1.05 * (double)(payload + metadata + window));
    assert_true(5.0 * (double)got.total < (double)(2 * rows * TOKENS)); /* of raw f16 */
    kvant_sequence_free(s);
    kvant_cache_close(cache);
    kvant_plan_free(plan);
    free(numbers);
}

/* As many sequences as the estimate says, and no more, fit into a pool of that many bytes. */
static void the_budget_holds_what_the_estimate_says(void **state) {
    (void)state;
    enum { SEQUENCES = 7, LENGTH = 137 };
    kvant_bytes least = {.struct_size = sizeof least}, most = {.struct_size = sizeof most};
    kvant_plan *plan = rig_plan(&(rig_wish){.model = ""});
    rig_ok(kvant_cache_estimate(plan, LENGTH, &least, &most, &rig_diag));
    kvant_plan_free(plan);
    rig *r = rig_open(&(rig_wish){.model = "", .bytes = (most.total - most.tables) * SEQUENCES});
    kvant_sequence *all[SEQUENCES + 1];
    uint64_t *ids = rig_ids(LENGTH, 1);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        all[i] = rig_sequence(r);
        for (uint32_t n = 0; n < LENGTH - 1; n++)
            rig_take(r, all[i], &(rig_step){.ids = ids + n, .count = 1});
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        rig_grow(r, all[i], ids, LENGTH, 1);
        rig_assert_rows(r, all[i], ids);
    }
    assert_true(rig_report(r).free < (most.total - most.tables));
    all[SEQUENCES] = rig_sequence(r);
    kvant_status status = KVANT_OK;
    for (uint32_t n = 0; n < LENGTH && status == KVANT_OK; n++) {
        const rig_step step = {.ids = ids + n, .count = 1};
        status = rig_begin(all[SEQUENCES], &step);
        if (status != KVANT_OK) break;
        rig_layers(r, all[SEQUENCES], &step);
        rig_ok(kvant_step_commit(all[SEQUENCES], 1, &rig_diag));
    }
    assert_int_equal(status, KVANT_ERROR_NO_SPACE);
    for (uint32_t i = 0; i <= SEQUENCES; i++) kvant_sequence_free(all[i]);
    free(ids);
    rig_close(r);
}

/* What a step holds besides: the blocks that it encodes, at their largest, and a page for each block_tokens
 * of the tokens that are raw when it ends. */
static void a_step_takes_no_more_than_it_says(void **state) {
    (void)state;
    static const char variable[] = "[pipeline]\nblock_tokens = 64\nsinks = 3\nrecent = 20\n"
                                   "[codec t]\nplugin = triaxial\nspace = roles\npolicy = rules\n"
                                   "[layers]\nkey = t\nvalue = t\n";
    static const uint32_t counts[] = {1, 2, 31, 63, 64, 65, 200, 7, 350};
    uint64_t *ids = rig_ids(1000, 3);
    uint8_t tags[1000];
    for (uint32_t t = 0; t < 1000; t++) tags[t] = (uint8_t)(t / 90 % 6);
    for (uint32_t k = 0; k < 2; k++) {
        rig *r = rig_open(&(rig_wish){.text = k == 0 ? NULL : variable, .model = ""});
        kvant_sequence *s = rig_sequence(r);
        kvant_bytes least = {.struct_size = sizeof least}, most = {.struct_size = sizeof most};
        rig_ok(kvant_cache_estimate(r->plan, 1, &least, &most, &rig_diag));
        uint64_t page = most.raw, block = 0, largest = 0;
        for (uint32_t i = 0; i < 4; i++) {
            kvant_row row = {.struct_size = sizeof row};
            rig_ok(kvant_plan_row(r->plan, i / 2, i % 2, &row));
            uint64_t size = row.layout->size_min + row.layout->size_step * row.layout->size_steps;
            block += (size + 63) / 64 * 64;
        }
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            uint32_t length = (uint32_t)rig_info(s).length, end = length + counts[i], first = 0;
            const rig_step step = {.ids = ids + length, .tags = tags + length, .count = counts[i]};
            uint64_t before = rig_report(r).capacity - rig_report(r).free, sinks = 0;
            first = (uint32_t)rig_info(s).tail_first;
            uint32_t coded = end > 20 ? (end - 20) / r->block_tokens * r->block_tokens : 0;
            if (coded < first) coded = first;
            if (first == 0 && coded > 0) sinks = page;
            uint64_t besides = (coded - first) / r->block_tokens * block + sinks +
                               (end - coded + r->block_tokens - 1) / r->block_tokens * page;
            rig_ok(rig_begin(s, &step));
            uint64_t in_step = rig_report(r).capacity - rig_report(r).free;
            assert_true(in_step <= before + besides);
            if (in_step - before > largest) largest = in_step - before;
            rig_layers(r, s, &step);
            assert_true(rig_report(r).capacity - rig_report(r).free <= before + besides);
            rig_ok(kvant_step_commit(s, step.count, &rig_diag));
        }
        assert_true(largest > 3 * block); /* it does take them */
        assert_true(rig_report(r).peak >= largest);
        kvant_sequence_free(s);
        rig_close(r);
    }
    free(ids);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_text_takes_what_its_codes_take),
        cmocka_unit_test(the_budget_holds_what_the_estimate_says),
        cmocka_unit_test(a_step_takes_no_more_than_it_says),
    };
    return kvant_run_tests(tests, argc, argv);
}
