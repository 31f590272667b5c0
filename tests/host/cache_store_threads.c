/* Many threads on one cache and its store: sequences are saved while others attend them, loaded, found,
 * evicted and grown, windows release what others still copy. Whatever is read is right; for ThreadSanitizer
 * too. */
#include "support/cache_place.h"
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, PROMPTS = 5, LONGEST = 150 };

static const kvant_layer_geometry layers[] = {{.struct_size = sizeof layers[0],
                                               .kv_heads = 2,
                                               .q_heads = 4,
                                               .total_kv_heads = 2,
                                               .key_dim = 16,
                                               .value_dim = 8},
                                              {.struct_size = sizeof layers[0],
                                               .kv_heads = 1,
                                               .q_heads = 2,
                                               .total_kv_heads = 1,
                                               .key_dim = 8,
                                               .value_dim = 16,
                                               .window = 20}};
static const char text[] =
    "[pipeline]\nblock_tokens = 8\nsinks = 2\nrecent = 9\n[layers]\nkey = uniform\nvalue = "
    "raw\n";

typedef struct world {
    place p;
    rig *r;
    uint64_t *ids[PROMPTS];
    kvant_sequence *common; /* never changes: everybody saves and attends it */
    atomic_uint rounds;
    atomic_uint loaded, found;
} world;

typedef struct worker {
    world *w;
    uint64_t seed;
    pthread_t thread;
    bool failed;
} worker;

/* cmocka's assertions belong to the main thread. */
#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                            \
            return false;                                                                                    \
        }                                                                                                    \
    } while (0)

static kvant_prefix prefix_of(const world *w, uint32_t prompt, uint32_t count) {
    return (kvant_prefix){
        .struct_size = sizeof(kvant_prefix), .ids = w->ids[prompt], .count = count, .first_step_end = count};
}

/* The last row that a sequence reads of the layer that sees everything, against the model: raw values. */
static bool rows_are_right(const world *w, const kvant_sequence *s, uint32_t prompt) {
    kvant_sequence_info info = {.struct_size = sizeof info};
    MUST(kvant_sequence_describe(s, &info) == KVANT_OK);
    if (info.length == 0) return true;
    uint16_t got[LONGEST * 2 * 8];
    unsigned char *scratch = aligned_alloc(64, (kvant_cache_read_scratch(w->r->cache) + 127) / 64 * 64);
    MUST(scratch != NULL);
    kvant_mutable_view view = rig_view(got, KVANT_DTYPE_F16, (uint32_t)info.length, 2, 8);
    kvant_status status = kvant_sequence_read(s, 0, KVANT_SIDE_VALUE, 0, &view, scratch, NULL);
    free(scratch);
    MUST(status == KVANT_OK);
    void *want = rig_rows(w->r, 0, KVANT_SIDE_VALUE, w->ids[prompt], 0, (uint32_t)info.length);
    bool same = memcmp(got, want, info.length * 2 * 8 * sizeof *got) == 0;
    free(want);
    MUST(same);
    return true;
}

static bool grow_to(world *w, kvant_sequence *s, uint32_t prompt, uint32_t count, uint32_t chunk) {
    kvant_sequence_info info = {.struct_size = sizeof info};
    MUST(kvant_sequence_describe(s, &info) == KVANT_OK);
    for (uint32_t at = (uint32_t)info.length; at < count; at += chunk) {
        uint32_t n = count - at < chunk ? count - at : chunk;
        const kvant_step_options step = {.struct_size = sizeof step, .count = n, .ids = w->ids[prompt] + at};
        if (kvant_step_begin(s, &step, NULL) != KVANT_OK) return true; /* the pool is full: so be it */
        for (uint32_t layer = 0; layer < 2; layer++) {
            void *rows[2];
            kvant_view views[2];
            for (uint32_t side = 0; side < 2; side++) {
                const kvant_layer_geometry *g = &layers[layer];
                rows[side] = rig_rows(w->r, layer, side, w->ids[prompt] + at, at, n);
                kvant_mutable_view view = rig_view(rows[side], KVANT_DTYPE_F16, n, g->kv_heads,
                                                   side == KVANT_SIDE_KEY ? g->key_dim : g->value_dim);
                memcpy(&views[side], &view, sizeof view);
            }
            kvant_status status = kvant_step_put(s, layer, &views[0], &views[1], NULL);
            free(rows[0]);
            free(rows[1]);
            MUST(status == KVANT_OK);
        }
        MUST(kvant_step_commit(s, n, NULL) == KVANT_OK);
    }
    return true;
}

static bool one_round(world *w, uint64_t *seed) {
    uint32_t prompt = (uint32_t)(kvant_test_random(seed) % PROMPTS),
             count = 1 + (uint32_t)(kvant_test_random(seed) % LONGEST);
    const kvant_prefix prefix = prefix_of(w, prompt, count);
    kvant_sequence *s = NULL;
    kvant_match *match = NULL;
    uint32_t reason = UINT32_MAX;
    kvant_saved saved = {.struct_size = sizeof saved};
    kvant_status status;
    switch (kvant_test_random(seed) % 6) {
    case 0: /* everybody saves the same sequence */
        MUST(kvant_sequence_save(w->common, w->p.store, &saved, NULL) == KVANT_OK && saved.tokens == LONGEST);
        MUST(rows_are_right(w, w->common, 0));
        return true;
    case 1: /* load, read, grow, save */
    case 2:
        status = kvant_sequence_load(w->r->cache, w->p.store, &prefix, &s, &reason, NULL);
        if (status == KVANT_ERROR_NO_SPACE) return true;
        MUST(status == KVANT_OK && (reason == KVANT_STORE_FOUND || reason == KVANT_STORE_ABSENT));
        kvant_sequence_info info = {.struct_size = sizeof info};
        MUST(kvant_sequence_describe(s, &info) == KVANT_OK);
        atomic_fetch_add(&w->loaded, (unsigned)info.length);
        if (!rows_are_right(w, s, prompt) || !grow_to(w, s, prompt, count, 1 + count / 3)) return false;
        MUST(kvant_sequence_save(s, w->p.store, &saved, NULL) == KVANT_OK);
        MUST(rows_are_right(w, s, prompt));
        kvant_sequence_free(s);
        return true;
    case 3: /* look up, grow */
    case 4:
        MUST(kvant_cache_lookup(w->r->cache, &prefix, &match, NULL) == KVANT_OK);
        atomic_fetch_add(&w->found, (unsigned)kvant_match_tokens(match));
        MUST(kvant_sequence_create_from(match, &s, NULL) == KVANT_OK);
        kvant_match_release(match);
        if (!rows_are_right(w, s, prompt) || !grow_to(w, s, prompt, count, 7)) return false;
        MUST(rows_are_right(w, s, prompt));
        kvant_sequence_free(s);
        return true;
    default:
        (void)kvant_cache_evict(w->r->cache, kvant_test_random(seed) % 60000, NULL, NULL);
        return true;
    }
}

static void *work(void *argument) {
    worker *me = argument;
    uint32_t rounds = atomic_load(&me->w->rounds);
    for (uint32_t i = 0; i < rounds && !me->failed; i++) me->failed = !one_round(me->w, &me->seed);
    return NULL;
}

static void together(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < PLACE_PACKED; kind++) {
        static world w;
        worker workers[THREADS];
        memset(&w, 0, sizeof w);
        w.p = place_make(kind);
        w.r = rig_open(&(rig_wish){
            .text = text, .layers = layers, .layer_count = 2, .bytes = 120000, .store = w.p.store});
        for (uint32_t i = 0; i < PROMPTS; i++) {
            w.ids[i] = rig_ids(LONGEST, 30 + i);
            if (i > 1) memcpy(w.ids[i], w.ids[i - 1], 50 * sizeof *w.ids[i]);
        }
        w.common = rig_sequence(w.r);
        rig_grow(w.r, w.common, w.ids[0], LONGEST, 31);
        atomic_store(&w.rounds, 150);
        for (uint32_t i = 0; i < THREADS; i++) {
            workers[i] = (worker){.w = &w, .seed = 100 + i + kind * THREADS};
            assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (uint32_t i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
            assert_false(workers[i].failed);
        }
        assert_true(atomic_load(&w.loaded) > 1000 && atomic_load(&w.found) > 1000);
        kvant_cache_report report = rig_report(w.r);
        assert_true(report.evictions > 50 && report.spilled > 50 && report.stored_hits > 20);
        assert_int_equal(report.sequences, 1);
        kvant_sequence_free(w.common);
        rig_ok(kvant_cache_evict(w.r->cache, rig_report(w.r).capacity, NULL, &rig_diag));
        report = rig_report(w.r);
        assert_int_equal(report.free, report.capacity);
        assert_int_equal(report.blocks, 0);
        rig_close(w.r);
        place_remove(&w.p);
        for (uint32_t i = 0; i < PROMPTS; i++) free(w.ids[i]);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(together)};
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
