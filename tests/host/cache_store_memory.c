/* Memory that runs out at any allocation of a save, a load, an eviction into a store and of packing: an error
 * or a shorter beginning, and everything as it was. */
#include "support/memory_faults.h"

#include "support/cache_place.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT = 120 };

static const char text[] =
    "[pipeline]\nblock_tokens = 16\nsinks = 3\nrecent = 20\n[layers]\nkey = uniform\nvalue = "
    "raw\n";
static const rig_wish wish = {.text = text};

static void save_runs_out(void **state) {
    (void)state;
    rig *r = rig_open(&wish);
    uint64_t *ids = rig_ids(COUNT, 1);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, COUNT, COUNT);
    uint32_t refused = 0;
    bool done = false;
    for (uint64_t nth = 0; !done; nth++) {
        place p = place_make(PLACE_DIRECTORY);
        kvant_saved saved = {.struct_size = sizeof saved};
        memory_faults_start(nth, false);
        kvant_status status = kvant_sequence_save(s, p.store, &saved, NULL);
        done = memory_faults_stop() <= nth;
        rig *fresh = rig_open(&wish);
        if (status == KVANT_OK) {
            assert_int_equal(saved.tokens, COUNT);
            kvant_sequence *loaded = place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = COUNT},
                                                  COUNT, KVANT_STORE_FOUND);
            kvant_sequence_free(loaded);
        } else {
            assert_true(status == KVANT_ERROR_MEMORY || status == KVANT_ERROR_IO);
            refused++;
            place_assert_saved(&p, s, COUNT); /* the second time it works */
        }
        rig_close(fresh);
        place_remove(&p);
    }
    assert_true(refused > 10);
    rig_assert_rows(r, s, ids);
    kvant_sequence_free(s);
    rig_close(r);
    free(ids);
}

static void load_runs_out(void **state) {
    (void)state;
    place p = place_make(PLACE_CALLS);
    rig *r = rig_open(&wish);
    uint64_t *ids = rig_ids(COUNT, 2);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, COUNT, COUNT);
    place_assert_saved(&p, s, COUNT);
    uint32_t refused = 0, shorter = 0;
    bool done = false;
    for (uint64_t nth = 0; !done; nth++) {
        rig *fresh = rig_open(&wish);
        const kvant_prefix prefix = {.struct_size = sizeof prefix, .ids = ids, .count = COUNT};
        kvant_sequence *loaded = NULL;
        uint32_t reason = UINT32_MAX;
        memory_faults_start(nth, false);
        kvant_status status = kvant_sequence_load(fresh->cache, p.store, &prefix, &loaded, &reason, NULL);
        done = memory_faults_stop() <= nth;
        if (status == KVANT_OK) {
            uint64_t length = rig_info(loaded).length;
            assert_true(length == COUNT ? reason == KVANT_STORE_FOUND : reason == KVANT_STORE_UNREADABLE);
            shorter += length < COUNT;
            rig_assert_rows(fresh, loaded, ids);
            kvant_sequence_free(loaded);
        } else {
            assert_int_equal(status, KVANT_ERROR_MEMORY);
            assert_null(loaded);
            refused++;
        }
        (void)kvant_cache_evict(fresh->cache, rig_report(fresh).capacity, NULL, NULL);
        kvant_cache_report report = rig_report(fresh);
        assert_int_equal(report.free, report.capacity);
        assert_int_equal(report.blocks, 0);
        assert_int_equal(report.sequences, 0);
        loaded =
            place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = COUNT}, COUNT, KVANT_STORE_FOUND);
        rig_assert_alike(r, s, fresh, loaded);
        kvant_sequence_free(loaded);
        rig_close(fresh);
    }
    assert_true(refused > 10 && shorter > 0);
    kvant_sequence_free(s);
    rig_close(r);
    place_remove(&p);
    free(ids);
}

static void eviction_runs_out(void **state) {
    (void)state;
    uint64_t *ids = rig_ids(COUNT, 3);
    uint32_t lost = 0;
    bool done = false;
    for (uint64_t nth = 0; !done; nth++) {
        place p = place_make(PLACE_CALLS);
        rig *r = rig_open(&(rig_wish){.text = text, .store = p.store});
        kvant_sequence *s = rig_sequence(r);
        rig_grow(r, s, ids, COUNT, COUNT);
        kvant_sequence_free(s);
        uint64_t capacity = rig_report(r).capacity;
        memory_faults_start(nth, false);
        kvant_status status = kvant_cache_evict(r->cache, capacity, NULL, NULL);
        done = memory_faults_stop() <= nth;
        assert_int_equal(status, KVANT_OK);
        kvant_cache_report report = rig_report(r);
        assert_int_equal(report.blocks, 0);
        assert_int_equal(report.spilled + report.spill_failures, 6);
        lost += report.spill_failures > 0;
        s = place_load(&p, r, &(place_prefix){.ids = ids, .count = COUNT}, NULL);
        rig_assert_rows(r, s, ids);
        kvant_sequence_free(s);
        rig_close(r);
        place_remove(&p);
    }
    assert_true(lost > 5);
    free(ids);
}

static void packing_runs_out(void **state) {
    (void)state;
    rig *r = rig_open(&wish);
    uint64_t *ids = rig_ids(16, 4);
    kvant_records *records = NULL;
    bool done = false;
    uint32_t refused = 0;
    for (uint64_t nth = 0; !done; nth++) {
        kvant_records_close(records);
        records = NULL;
        memory_faults_start(nth, false);
        kvant_status status = kvant_records_open(r->plan, &records, NULL);
        done = memory_faults_stop() <= nth;
        assert_true(status == KVANT_OK ? records != NULL : status == KVANT_ERROR_MEMORY && records == NULL);
        refused += status != KVANT_OK;
    }
    assert_true(refused > 4);
    kvant_view views[4];
    const kvant_view *pointers[4];
    void *rows[4];
    for (uint32_t i = 0; i < 4; i++) {
        const kvant_layer_geometry *g = &r->layers[i / 2];
        rows[i] = rig_rows(r, i / 2, i % 2, ids, 0, 16);
        kvant_mutable_view view = rig_view(rows[i], KVANT_DTYPE_F16, 16, g->kv_heads,
                                           i % 2 == KVANT_SIDE_KEY ? g->key_dim : g->value_dim);
        memcpy(&views[i], &view, sizeof view);
        pointers[i] = &views[i];
    }
    const kvant_record_source source = {
        .struct_size = sizeof source, .kind = KVANT_STORE_BLOCK, .tokens = 16, .ids = ids, .rows = pointers};
    size_t bound = kvant_records_bound(records, KVANT_STORE_BLOCK, 16);
    unsigned char *buffer = malloc(bound), *first = malloc(bound);
    void *scratch = aligned_alloc(64, kvant_records_scratch_bytes(records, 16));
    assert_true(buffer != NULL && first != NULL && scratch != NULL);
    kvant_record_report report = {.struct_size = sizeof report};
    rig_ok(kvant_records_pack(records, &source, first, bound, scratch, &report, &rig_diag));
    done = false;
    for (uint64_t nth = 0; !done; nth++) {
        memory_faults_start(nth, false);
        kvant_status status = kvant_records_pack(records, &source, buffer, bound, scratch, &report, NULL);
        done = memory_faults_stop() <= nth;
        assert_true(status == KVANT_OK || status == KVANT_ERROR_MEMORY);
        if (status == KVANT_OK) kvant_assert_bytes(buffer, first, report.size);
        assert_true(nth < 20); /* a context of OpenSSL's, and no more */
    }
    free(buffer);
    free(first);
    free(scratch);
    for (uint32_t i = 0; i < 4; i++) free(rows[i]);
    kvant_records_close(records);
    rig_close(r);
    free(ids);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(save_runs_out),
        cmocka_unit_test(load_runs_out),
        cmocka_unit_test(eviction_runs_out),
        cmocka_unit_test(packing_runs_out),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
