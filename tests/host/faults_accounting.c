/* Public faults of other projects: what a cache costs (F60). LM Studio#1862, AlexsJones/llmfit#951,
 * jundot/omlx#2725, vllm-metal#468, vllm-project/vllm#49878, configiq#112, tpu-inference#1285 and #3483,
 * aiconfigurator#1201: every layer counted though few keep keys and values, compression ignored, padding
 * ignored, windows taken to grow. Right: one function of the layouts, and the pool's own numbers agree. */
#include "support/cache_rig.h"
#include "support/scratch.h"
#include "support/store_records.h"
#include "support/test.h"
#include "support/tester.h"

#include <stdlib.h>
#include <string.h>

enum { LENGTH_COUNT = 16 };
static const uint32_t lengths[LENGTH_COUNT] = {0,  1,  3,  19, 20,  31,  32,  51,
                                               52, 53, 84, 96, 115, 116, 339, 640};

static void estimate(const rig *r, uint64_t tokens, kvant_bytes *least, kvant_bytes *most) {
    memset(least, 0xee, sizeof *least);
    memset(most, 0xee, sizeof *most);
    least->struct_size = sizeof *least;
    most->struct_size = sizeof *most;
    rig_ok(kvant_cache_estimate(r->plan, tokens, least, most, &rig_diag));
    assert_int_equal(least->total,
                     least->payload + least->metadata + least->padding + least->raw + least->tables);
    assert_int_equal(most->total, most->payload + most->metadata + most->padding + most->raw + most->tables);
}

static void assert_bytes_are(const kvant_bytes *got, const kvant_bytes *want) {
    assert_int_equal(got->payload, want->payload);
    assert_int_equal(got->metadata, want->metadata);
    assert_int_equal(got->padding, want->padding);
    assert_int_equal(got->raw, want->raw);
    assert_int_equal(got->tables, want->tables);
    assert_int_equal(got->total, want->total);
}

static uint64_t in_pool(const kvant_bytes *b) {
    return b->payload + b->metadata + b->padding + b->raw;
}

static const kvant_layer_geometry mixed[4] = {{.struct_size = sizeof mixed[0],
                                               .kv_heads = 2,
                                               .q_heads = 6,
                                               .total_kv_heads = 2,
                                               .key_dim = 32,
                                               .value_dim = 16},
                                              {.struct_size = sizeof mixed[0],
                                               .kv_heads = 1,
                                               .q_heads = 2,
                                               .total_kv_heads = 1,
                                               .key_dim = 24,
                                               .value_dim = 40},
                                              {.struct_size = sizeof mixed[0],
                                               .kv_heads = 1,
                                               .q_heads = 1,
                                               .total_kv_heads = 1,
                                               .key_dim = 40,
                                               .value_dim = 8,
                                               .window = 40},
                                              {.struct_size = sizeof mixed[0],
                                               .kv_heads = 3,
                                               .q_heads = 3,
                                               .total_kv_heads = 3,
                                               .key_dim = 8,
                                               .value_dim = 8,
                                               .window = 100}};

static void f60_estimate_is_what_is_allocated(void **state) {
    (void)state;
    static const char *const texts[] = {
        NULL, "[pipeline]\nblock_tokens = 32\nrecent = 20\n[layers]\nkey = raw\nvalue = uniform\n",
        "[pipeline]\nblock_tokens = 32\nsinks = 31\n[layers]\nkey = uniform\nvalue = raw\n"
        "[layers 1]\nkey = raw\n",
        /* Extents that fill no whole number of the pool's units. */
        "[pipeline]\nblock_tokens = 16\nrecent = 20\n[layers]\nkey = tester\nvalue = tester\n"};
    static const uint32_t dtypes[] = {KVANT_DTYPE_F16, KVANT_DTYPE_F32, KVANT_DTYPE_BF16};
    uint64_t *ids = rig_ids(640, 60);
    tester_register();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        for (uint32_t windows = 0; windows < 2; windows++) {
            rig *r = rig_open(&(rig_wish){.text = texts[i],
                                          .layers = mixed,
                                          .layer_count = windows ? 4 : 2,
                                          .dtype = dtypes[(i + windows) % 3],
                                          .model = ""});
            kvant_sequence *s = rig_sequence(r);
            for (uint32_t k = 0; k < LENGTH_COUNT; k++) {
                kvant_bytes least, most, got;
                rig_grow(r, s, ids, lengths[k], 50);
                estimate(r, lengths[k], &least, &most);
                got = rig_bytes(s);
                assert_bytes_are(&least, &most);
                assert_bytes_are(&got, &most);
                kvant_cache_report report = rig_report(r);
                assert_int_equal(in_pool(&report.bytes), in_pool(&got));
                assert_int_equal(report.capacity - report.free, in_pool(&got));
            }
            kvant_sequence_free(s);
            assert_int_equal(in_pool(&(kvant_bytes){.payload = rig_report(r).bytes.payload}), 0);
            rig_close(r);
        }
    free(ids);
}

/* Codecs whose extents have several sizes: between the two. */
static void f60_variable_extents_lie_between(void **state) {
    (void)state;
    static const char text[] = "[pipeline]\nblock_tokens = 64\nrecent = 20\n"
                               "[codec t]\nplugin = triaxial\nspace = roles\npolicy = rules\n"
                               "[layers]\nkey = t\nvalue = t\n";
    static const kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                               .kv_heads = 2,
                                               .q_heads = 2,
                                               .total_kv_heads = 2,
                                               .key_dim = 32,
                                               .value_dim = 32};
    enum { TOKENS = 64 * 9 + 30 };
    uint64_t *ids = rig_ids(TOKENS, 601);
    uint8_t tags[TOKENS];
    for (uint32_t t = 0; t < TOKENS; t++) tags[t] = (uint8_t)(t / 100);
    rig *r = rig_open(&(rig_wish){.text = text, .layers = &layer, .layer_count = 1, .model = ""});
    kvant_sequence *s = rig_sequence(r);
    uint32_t between = 0;
    for (uint32_t at = 0; at < TOKENS; at += 31) {
        kvant_bytes least, most, got;
        uint32_t n = TOKENS - at < 31 ? TOKENS - at : 31;
        rig_take(r, s, &(rig_step){.ids = ids + at, .tags = tags + at, .count = n});
        estimate(r, at + n, &least, &most);
        got = rig_bytes(s);
        assert_true(least.total <= got.total && got.total <= most.total);
        assert_int_equal(got.raw, most.raw);
        assert_int_equal(got.tables, most.tables);
        between += least.total < got.total && got.total < most.total;
        assert_int_equal(rig_report(r).capacity - rig_report(r).free, in_pool(&got));
    }
    assert_true(between > 0);
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* A windowed layer takes no more after its window than at its end; one without goes on growing. */
static void f60_windows_stop_growing(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){.layers = mixed + 2, .layer_count = 2, .model = ""});
    kvant_sequence *s = rig_sequence(r);
    uint64_t *ids = rig_ids(1600, 602);
    rig_grow(r, s, ids, 320, 32);
    kvant_bytes early = rig_bytes(s);
    for (uint32_t n = 352; n <= 1600; n += 32) {
        rig_grow(r, s, ids, n, 32);
        kvant_bytes now = rig_bytes(s), least, most;
        assert_int_equal(in_pool(&now), in_pool(&early));
        estimate(r, n, &least, &most);
        assert_bytes_are(&now, &most);
    }
    kvant_sequence_free(s);
    rig_close(r);
    r = rig_open(&(rig_wish){.layers = mixed + 1, .layer_count = 2, .model = ""}); /* one of two has none */
    s = rig_sequence(r);
    rig_grow(r, s, ids, 320, 32);
    early = rig_bytes(s);
    rig_grow(r, s, ids, 1600, 32);
    assert_true(rig_bytes(s).payload > 3 * early.payload);
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* Payload is what the codec's bits say, layer by layer: 2 bits a number, and less than raw in all. */
static void f60_compression_and_shapes_count(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){.model = ""});
    kvant_sequence *s = rig_sequence(r);
    uint64_t *ids = rig_ids(32 * 20 + 20, 603);
    rig_grow(r, s, ids, 32 * 20 + 20, 200);
    kvant_bytes got = rig_bytes(s);
    uint64_t numbers = 2 * (32 + 16) + 1 * (24 + 40), bits = 0;
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t side = 0; side < 2; side++) {
            kvant_row row = {.struct_size = sizeof row};
            rig_ok(kvant_plan_row(r->plan, l, side, &row));
            bits += row.layout->payload_bits;
        }
    assert_int_equal(bits, 2 * numbers * 32);
    assert_int_equal(got.payload, 20 * bits / 8);
    assert_true(got.metadata > 0 && in_pool(&got) < 2 * numbers * (32 * 20 + 20) / 2);
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* Shared blocks cost once, whatever each sequence is told. */
static void f60_shared_blocks_cost_once(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){0});
    kvant_sequence *s = rig_sequence(r), *forks[10];
    uint64_t *ids = rig_ids(340, 604);
    rig_grow(r, s, ids, 340, 340);
    kvant_cache_report one = rig_report(r);
    for (uint32_t i = 0; i < 10; i++) rig_ok(kvant_sequence_fork(s, &forks[i], &rig_diag));
    kvant_cache_report many = rig_report(r);
    assert_int_equal(many.sequences, 11);
    assert_int_equal(in_pool(&many.bytes), in_pool(&one.bytes));
    assert_int_equal(many.free, one.free);
    assert_int_equal(many.blocks, one.blocks);
    for (uint32_t i = 0; i < 10; i++) {
        kvant_bytes a = rig_bytes(s), b = rig_bytes(forks[i]);
        assert_bytes_are(&b, &a);
        kvant_sequence_free(forks[i]);
    }
    kvant_sequence_free(s);
    assert_int_equal(rig_report(r).sequences, 0);
    assert_int_equal(rig_report(r).bytes.raw > 0, rig_report(r).blocks > 0); /* sinks, beside block 0 */
    free(ids);
    rig_close(r);
}

/* A page of raw rows: what a sequence of one token takes. */
static uint64_t page_bytes(const rig *r) {
    kvant_bytes least, most;
    estimate(r, 1, &least, &most);
    return most.raw;
}

/* What lookups found, what was evicted, and where it went. */
static void f60_counters_count(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = NULL;
    rig_ok(kvant_store_open_directory(directory, NULL, &store, &rig_diag));
    rig *r = rig_open(&(rig_wish){.store = store});
    uint64_t *ids = rig_ids(200, 605), *other = rig_ids(70, 606);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 200, 200);
    assert_int_equal(rig_found(r, other, NULL, 70, NULL), 0);
    assert_int_equal(rig_found(r, ids, NULL, 200, NULL), 160);
    kvant_cache_report report = rig_report(r);
    assert_int_equal(report.lookups, 2);
    assert_int_equal(report.asked_tokens, 270);
    assert_int_equal(report.found_tokens, 160);
    assert_int_equal(report.blocks, 5);
    assert_int_equal(report.indexed, 5);
    assert_int_equal(report.pinned, 5);
    assert_int_equal(report.peak >= report.capacity - report.free, 1);
    kvant_sequence_free(s);
    assert_int_equal(rig_report(r).pinned, 0);
    uint64_t freed = 0;
    rig_ok(kvant_cache_evict(r->cache, report.capacity, &freed, &rig_diag));
    assert_int_equal(freed, report.bytes.payload + report.bytes.metadata + report.bytes.padding +
                                (report.bytes.raw - 2 * page_bytes(r)));
    report = rig_report(r);
    assert_int_equal(report.evictions, 5);
    assert_int_equal(report.spilled, 5);
    assert_int_equal(report.spill_failures, 0);
    assert_int_equal(report.blocks, 0);
    assert_int_equal(report.bytes.total - report.bytes.tables, 0);
    assert_int_equal(rig_found(r, ids, NULL, 200, NULL), 160);
    assert_int_equal(rig_report(r).stored_hits, 5);
    assert_int_equal(rig_report(r).found_tokens, 320);
    free(ids);
    free(other);
    rig_close(r);
    kvant_store_close(store);
    free(directory);
    kvant_scratch_remove(folder);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(f60_estimate_is_what_is_allocated),
        cmocka_unit_test(f60_variable_extents_lie_between),
        cmocka_unit_test(f60_windows_stop_growing),
        cmocka_unit_test(f60_compression_and_shapes_count),
        cmocka_unit_test(f60_shared_blocks_cost_once),
        cmocka_unit_test(f60_counters_count),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
