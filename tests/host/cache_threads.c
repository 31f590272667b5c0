/* Many threads on one cache: sequences that grow, forks of a common parent, matches, evictions in a tiny
 * pool, and several threads that attend one sequence. What each thread gets is what it gets alone in a
 * cache of its own. */
#include "support/cache_take.h"
#include "support/sanitized.h"
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = KVANT_TEST_SANITIZED ? 24 : 200 };

enum { THREADS = 4, TEXTS = 3, PARENT = 90, COMMON = 64 };

static const model_setting *setting_named(const char *name) {
    for (uint32_t i = 0; i < model_setting_count; i++)
        if (strcmp(model_settings[i].name, name) == 0) return &model_settings[i];
    MODEL_FAIL("no setting %s", name);
}

/* What all threads share, and one thread's own. */
typedef struct common {
    cache_model *m; /* its cache is the shared one; the model takes no part */
    take_text *texts[TEXTS];
    kvant_sequence *parent; /* of text 0 */
    float *probe;           /* outputs of one query over it, a layer after the other */
    atomic_uint hits, no_space, forks;
} common;

typedef struct worker {
    common *c;
    kvant_cache *own; /* for the same without company */
    uint64_t state;
    uint32_t number;
    bool fine;
    char what[160];
} worker;

static uint32_t below(worker *w, uint32_t limit) {
    return (uint32_t)((kvant_test_random(&w->state) >> 32) * limit >> 32);
}

#define SAY(...) (snprintf(w->what, sizeof w->what, __VA_ARGS__), false)

static kvant_cache *open_cache(const cache_model *m, uint64_t bytes) {
    kvant_cache *cache = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_cache_options options = {.struct_size = sizeof options, .bytes = bytes};
    if (kvant_cache_open(m->plan, &options, &cache, &diag) != KVANT_OK) MODEL_FAIL("%s", diag.message);
    return cache;
}

/* ---- A parent that everybody looks at ------------------------------------------------------------------ */

static void probe(const common *c, uint32_t layer, float *outputs) {
    kvant_view queries;
    float *rows = take_queries(c->texts[0], layer, 5, 6, &queries);
    kvant_mutable_view view = take_outputs_view(c->m, layer, 1, outputs);
    kvant_token_range range = {0, PARENT};
    kvant_attention_options options = {.struct_size = sizeof options, .scale = 0.25f};
    kvant_attend_part part = {.struct_size = sizeof part,
                              .sequence = c->parent,
                              .queries = &queries,
                              .ranges = &range,
                              .outputs = &view};
    size_t bytes = kvant_cache_attend_scratch(c->m->cache, layer, &part, 1, &options);
    void *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_cache_attend(c->m->cache, layer, &part, 1, &options, scratch, bytes, &diag) != KVANT_OK)
        MODEL_FAIL("cache_attend: %s", diag.message);
    free(scratch);
    free(rows);
}

static bool look_at_parent(worker *w) {
    float *outputs = take_room(1);
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) probe(w->c, layer, outputs);
    bool same = take_same(outputs, w->c->probe, 1);
    free(outputs);
    return same || SAY("the parent looks different");
}

/* ---- A sequence of one's own --------------------------------------------------------------------------- */

static kvant_sequence *from_match(worker *w, uint32_t text, uint32_t to, uint32_t *found) {
    common *c = w->c;
    kvant_prefix prefix = {.struct_size = sizeof prefix,
                           .ids = c->texts[text]->ids,
                           .tags = c->texts[text]->tags,
                           .count = to,
                           .first_step_end = to};
    kvant_match *match = NULL;
    kvant_sequence *s = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_cache_lookup(c->m->cache, &prefix, &match, &diag) != KVANT_OK ||
        kvant_sequence_create_from(match, &s, &diag) != KVANT_OK)
        MODEL_FAIL("lookup: %s", diag.message);
    *found = (uint32_t)kvant_match_tokens(match);
    kvant_match_release(match);
    if (*found > 0) atomic_fetch_add(&c->hits, 1);
    return s;
}

/* The same steps here and alone. True if they gave the same, or there was no space. */
static bool grow(worker *w, kvant_sequence *s, kvant_sequence *alone, uint32_t text, uint32_t first,
                 uint32_t *to) {
    common *c = w->c;
    uint32_t end_of_step = *to;
    float *got = take_room(end_of_step - first), *want = take_room(end_of_step - first);
    kvant_status status = take_step(c->m, c->m->cache, s, c->texts[text], first, end_of_step, got);
    bool fine = status == KVANT_OK || status == KVANT_ERROR_NO_SPACE;
    if (status == KVANT_OK) {
        (void)take_step(c->m, w->own, alone, c->texts[text], first, end_of_step, want);
        fine = take_same(got, want, end_of_step - first) ||
               SAY("text %u, step %u to %u: other outputs than alone", text, first, end_of_step);
    } else if (fine) {
        atomic_fetch_add(&c->no_space, 1);
        *to = 0;
    } else {
        fine = SAY("begin: status %d", status);
    }
    free(got);
    free(want);
    return fine;
}

/* One sequence's life: from nothing, a match or the parent. */
static bool live(worker *w) {
    common *c = w->c;
    uint32_t kind = below(w, 3), text = kind == 2 ? 0 : below(w, TEXTS), first = 0, to = 30 + below(w, 150);
    kvant_sequence *s = NULL, *alone = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    bool fine = true;
    if (kvant_sequence_create(w->own, NULL, 0, &alone, &diag) != KVANT_OK) MODEL_FAIL("%s", diag.message);
    if (kind == 0) {
        if (kvant_sequence_create(c->m->cache, NULL, 0, &s, &diag) != KVANT_OK)
            MODEL_FAIL("%s", diag.message);
    } else if (kind == 1) {
        s = from_match(w, text, to, &first);
    } else {
        if (kvant_sequence_fork(c->parent, &s, &diag) != KVANT_OK) MODEL_FAIL("%s", diag.message);
        atomic_fetch_add(&c->forks, 1);
        first = PARENT;
        to = PARENT + 1 + below(w, 60);
    }
    if (first > 0) (void)take_step(c->m, w->own, alone, c->texts[text], 0, first, NULL);
    for (uint32_t i = 0; i < 5 && fine && to > first; i++) {
        fine = grow(w, s, alone, text, first, &to);
        if (to == 0) break;
        first = to;
        to += 1 + below(w, 24);
        if (below(w, 6) == 0) (void)kvant_cache_evict(c->m->cache, c->m->capacity / 4, NULL, NULL);
    }
    kvant_sequence_free(s);
    kvant_sequence_free(alone);
    return fine;
}

static void *work(void *context) {
    worker *w = context;
    kvant_cache_report report = {.struct_size = sizeof report};
    for (uint32_t i = 0; i < ROUNDS && w->fine; i++) {
        w->fine = live(w);
        if (w->fine && i % 4 == w->number) w->fine = look_at_parent(w);
        (void)kvant_cache_describe(w->c->m->cache, &report);
    }
    return NULL;
}

static void open_common(common *c, const char *name, uint32_t percent) {
    model_setting small = *setting_named(name);
    small.blocks = small.blocks * percent / 100;
    memset(c, 0, sizeof *c);
    c->m = cache_model_open(&small, 0);
    for (uint32_t i = 0; i < TEXTS; i++) c->texts[i] = take_text_make(c->m, i + 1, COMMON);
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_sequence_create(c->m->cache, NULL, 0, &c->parent, &diag) != KVANT_OK)
        MODEL_FAIL("%s", diag.message);
    if (take_step(c->m, c->m->cache, c->parent, c->texts[0], 0, PARENT, NULL) != KVANT_OK)
        MODEL_FAIL("no space for the parent");
    c->probe = take_room(1);
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) probe(c, layer, c->probe);
}

static void close_common(common *c) {
    kvant_sequence_free(c->parent);
    cache_model_leave(c->m);
    for (uint32_t i = 0; i < TEXTS; i++) free(c->texts[i]);
    free(c->probe);
}

static void lives_at_once(const char *name, uint32_t percent, bool fills) {
    common c;
    worker workers[THREADS];
    pthread_t threads[THREADS];
    open_common(&c, name, percent);
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){.c = &c, .state = 100 * i + percent, .number = i, .fine = true};
        workers[i].own = open_cache(c.m, UINT64_C(64) << 20);
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        if (!workers[i].fine) {
            print_error("%s, thread %u: %s\n", name, i, workers[i].what);
            fail();
        }
        kvant_cache_close(workers[i].own);
    }
    printf("%s: %u hits, %u forks, %u without space\n", name, c.hits, c.forks, c.no_space);
    assert_true(c.hits > 0 && c.forks > 0 && (c.no_space > 0 || !fills));
    close_common(&c);
}

static void sequences_in_a_small_pool(void **state) {
    (void)state;
    lives_at_once("uniform", 36, true);
    lives_at_once("hack", 36, true);
}

static void sequences_with_windows(void **state) {
    (void)state;
    lives_at_once("window", 45, true);
}

static void sequences_with_extents_of_many_sizes(void **state) {
    (void)state;
    lives_at_once("kvquant", 45, false);
}

/* ---- One sequence, many threads ------------------------------------------------------------------------ */

typedef struct heads_job {
    common *c;
    kvant_sequence *s;
    uint32_t layer, head, count, first;
    kvant_view *queries;
    float *outputs;
    bool fine;
} heads_job;

static void *attend_heads(void *context) {
    heads_job *job = context;
    kvant_mutable_view view = take_outputs_view(job->c->m, job->layer, job->count, job->outputs);
    kvant_attention_options options = {
        .struct_size = sizeof options, .scale = 0.25f, .first_kv_head = job->head, .kv_heads = 1};
    kvant_attend_part part = {
        .struct_size = sizeof part, .sequence = job->s, .queries = job->queries, .outputs = &view};
    size_t bytes = kvant_cache_attend_scratch(job->c->m->cache, job->layer, &part, 1, &options);
    void *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    job->fine = bytes > 0 && scratch != NULL;
    for (uint32_t i = 0; i < 4 && job->fine; i++) /* again and again: nothing changes */
        job->fine = kvant_cache_attend(job->c->m->cache, job->layer, &part, 1, &options, scratch, bytes,
                                       NULL) == KVANT_OK;
    free(scratch);
    return NULL;
}

static void *evict_meanwhile(void *context) {
    heads_job *job = context;
    uint32_t found = 0;
    worker w = {.c = job->c, .state = 3};
    for (uint32_t i = 0; i < 8; i++) {
        kvant_sequence_free(from_match(&w, 0, 80, &found));
        (void)kvant_cache_evict(job->c->m->cache, job->c->m->capacity / 2, NULL, NULL);
    }
    return NULL;
}

/* A step whose heads are attended by a thread each, while another evicts and looks up. */
static void step_by_heads(common *c, kvant_sequence *s, uint32_t first, uint32_t to, float *outputs) {
    kvant_diag diag = {.struct_size = sizeof diag};
    const take_text *text = c->texts[0];
    kvant_step_options step = {.struct_size = sizeof step,
                               .count = to - first,
                               .ids = text->ids + first,
                               .tags = text->tags + first};
    if (kvant_step_begin(s, &step, &diag) != KVANT_OK) MODEL_FAIL("begin: %s", diag.message);
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) {
        kvant_view views[3];
        void *keys = take_rows(c->m, text, layer, 0, first, to, &views[0]);
        void *values = take_rows(c->m, text, layer, 1, first, to, &views[1]);
        float *queries = take_queries(text, layer, first, to, &views[2]);
        pthread_t threads[MODEL_HEADS + 1];
        heads_job jobs[MODEL_HEADS + 1];
        if (kvant_step_layer_begin(s, layer, &views[0], &views[1], &diag) != KVANT_OK)
            MODEL_FAIL("layer_begin: %s", diag.message);
        for (uint32_t i = 0; i <= MODEL_HEADS; i++) {
            jobs[i] = (heads_job){.c = c,
                                  .s = s,
                                  .layer = layer,
                                  .head = i,
                                  .count = to - first,
                                  .queries = &views[2],
                                  .outputs = outputs,
                                  .fine = true};
            assert_int_equal(
                pthread_create(&threads[i], NULL, i < MODEL_HEADS ? attend_heads : evict_meanwhile, &jobs[i]),
                0);
        }
        for (uint32_t i = 0; i <= MODEL_HEADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (uint32_t i = 0; i <= MODEL_HEADS; i++) assert_true(jobs[i].fine);
        if (kvant_step_layer_end(s, layer, &diag) != KVANT_OK) MODEL_FAIL("layer_end: %s", diag.message);
        free(keys);
        free(values);
        free(queries);
    }
    if (kvant_step_commit(s, to - first, &diag) != KVANT_OK) MODEL_FAIL("commit: %s", diag.message);
}

static void heads_of_one_sequence(void **state) {
    static const char *const names[] = {"uniform", "hack", "window"};
    (void)state;
    for (uint32_t n = 0; n < 3; n++) {
        common c;
        open_common(&c, names[n], 200);
        kvant_cache *own = open_cache(c.m, UINT64_C(64) << 20);
        kvant_sequence *s = NULL, *alone = NULL;
        kvant_diag diag = {.struct_size = sizeof diag};
        assert_int_equal(kvant_sequence_create(c.m->cache, "s", 1, &s, &diag), KVANT_OK);
        assert_int_equal(kvant_sequence_create(own, "s", 1, &alone, &diag), KVANT_OK);
        static const uint32_t ends[] = {70, 71, 72, 100, 137, 138};
        uint32_t first = 0;
        for (uint32_t i = 0; i < sizeof ends / sizeof ends[0]; first = ends[i++]) {
            float *got = take_room(ends[i] - first), *want = take_room(ends[i] - first);
            step_by_heads(&c, s, first, ends[i], got);
            assert_int_equal(take_step(c.m, own, alone, c.texts[0], first, ends[i], want), KVANT_OK);
            if (!take_same(got, want, ends[i] - first)) {
                print_error("%s: step %u to %u by heads gives other outputs\n", names[n], first, ends[i]);
                fail();
            }
            free(got);
            free(want);
        }
        kvant_sequence_free(s);
        kvant_sequence_free(alone);
        kvant_cache_close(own);
        close_common(&c);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_in_a_small_pool),
        cmocka_unit_test(sequences_with_windows),
        cmocka_unit_test(sequences_with_extents_of_many_sizes),
        cmocka_unit_test(heads_of_one_sequence),
    };
    return kvant_run_tests(tests, argc, argv);
}
