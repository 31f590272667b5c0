/* What a cache on a device refuses, when, and what is left afterwards. */
#include "twin.h"

#include "support/test.h"

#include "device/device_internal.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvant_status begin_there(const twin_step *step) {
    const kvant_step_options options = {
        .struct_size = sizeof options, .count = step->count, .tentative = step->tentative, .ids = step->ids};
    return kvant_step_begin(step->s->there, &options, &rig_diag);
}

/* ---- Numbers that are not finite ----------------------------------------------------------------------- */

typedef struct bad_case {
    uint32_t before, count, tentative; /* tokens of the sequence, of the step */
    uint32_t layer, side, at;
    const char *says;
} bad_case;

/* The rig's layers: keys [2, 32], values [2, 16]; keys [1, 24], values [1, 40]. */
static void commit_names_the_first(void **state) {
    (void)state;
    static const bad_case cases[] = {
        {60, 1, 0, 0, 0, 0, "layer 0 key: position 60, head 0, channel 0 "}, /* to one page */
        {60, 1, 0, 1, 1, 39, "layer 1 value: position 60, head 0, channel 39 "},
        {0, 100, 0, 0, 1, 5 * 32 + 16 + 3,
         "layer 0 value: position 5, head 1, channel 3 "}, /* encoded at once */
        {40, 90, 0, 1, 0, 12 * 24 + 7, "layer 1 key: position 52, head 0, channel 7 "},
        {40, 90, 0, 0, 0, 89 * 64 + 63, "layer 0 key: position 129, head 1, channel 31 "},
        {10, 2, 2, 1, 0, 24 + 1, "layer 1 key: position 11, head 0, channel 1 "}, /* not to be kept */
    };
    twin *t = twin_open(&(twin_wish){0});
    uint64_t *ids = rig_ids(300, 71);
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bad_case *c = &cases[i];
        twin_sequence s = twin_create(t);
        if (c->before > 0) twin_grow(t, &s, ids, c->before, 33);
        const twin_step step = {.s = &s,
                                .ids = ids + c->before,
                                .count = c->count,
                                .tentative = c->tentative,
                                .spoiled = 1 + i % 2,
                                .spoiled_layer = c->layer,
                                .spoiled_side = c->side,
                                .spoiled_at = c->at};
        rig_ok(begin_there(&step));
        twin_put_there(t, &step);
        rig_refused(kvant_step_commit(s.there, c->count - c->tentative, &rig_diag), KVANT_ERROR_NOT_FINITE,
                    c->says);
        assert_string_equal(rig_diag.key, c->side == 0 ? "key" : "value");
        assert_int_equal(rig_info(s.there).in_step, 0);
        twin_assert_same(t, &s);
        twin_assert_reports(t);
        twin_take(t, &(twin_step){.s = &s, .ids = ids + c->before, .count = 37}, 1);
        twin_assert_same(t, &s);
        twin_free(&s);
    }
    twin_close(t);
    free(ids);
}

static const char saturate[] =
    "[pipeline]\nblock_tokens = 32\nsinks = 3\nrecent = 20\non_nonfinite = saturate\n"
    "[codec k]\nplugin = kivi\nbits = 2\ngroup = 32\n"
    "[codec v]\nplugin = kivi\nbits = 4\ngroup = 8\n"
    "[layers]\nkey = k\nvalue = v\n";

/* Both replace the same; counted at commit, not by a step that is aborted. */
static void replaced_and_counted(void **state) {
    (void)state;
    static const uint32_t dtypes[3] = {KVANT_DTYPE_F16, KVANT_DTYPE_BF16, KVANT_DTYPE_F32};
    for (uint32_t i = 0; i < 3; i++) {
        twin *t = twin_open(&(twin_wish){.rig = {.text = saturate, .dtype = dtypes[i]}});
        uint64_t *ids = rig_ids(300, 81);
        twin_sequence s = twin_create(t);
        twin_step step = {
            .s = &s, .ids = ids, .count = 70, .spoiled = 5, .spoiled_at = 64 * 40 + 3, .quiet = true};
        twin_begin(t, &step);
        twin_layers(t, &step, 1);
        kvant_step_abort(s.host);
        kvant_step_abort(s.there);
        twin_assert_reports(t);
        twin_take(t, &step, 1);
        twin_assert_same(t, &s);
        step = (twin_step){.s = &s,
                           .ids = ids + 70,
                           .count = 50,
                           .layout = TWIN_ODD,
                           .quiet = true,
                           .spoiled = 4,
                           .spoiled_layer = 1,
                           .spoiled_side = 1};
        twin_take(t, &step, 1);
        step = (twin_step){
            .s = &s, .ids = ids + 120, .count = 1, .quiet = true, .spoiled = 3, .spoiled_side = 1};
        twin_take(t, &step, 1);
        twin_assert_same(t, &s);
        twin_assert_reports(t);
        kvant_cache_report report = {.struct_size = sizeof report};
        rig_ok(kvant_cache_describe(t->cache, &report));
        assert_int_equal(report.replaced, 12);
        twin_free(&s);
        twin_close(t);
        free(ids);
    }
}

/* Two layers open at once, both with rows of their own. */
static void layers_open_at_once(void **state) {
    (void)state;
    twin *t = twin_open(&(twin_wish){.rig = {.text = saturate}});
    uint64_t *ids = rig_ids(300, 91);
    twin_sequence s = twin_create(t);
    twin_grow(t, &s, ids, 40, 40);
    const kvant_step_options options = {.struct_size = sizeof options, .count = 30, .ids = ids + 40};
    kvant_sequence *both[2] = {s.host, s.there};
    twin_rows rows[2][2];
    for (uint32_t i = 0; i < 4; i++) {
        const kvant_layer_geometry *g = &t->host->layers[i / 2];
        rows[i / 2][i % 2] =
            twin_lay_out(t, rig_rows(t->host, i / 2, i % 2, ids + 40, 40, 30), KVANT_DTYPE_F16, 30,
                         g->kv_heads, i % 2 == 0 ? g->key_dim : g->value_dim, TWIN_DENSE);
    }
    for (uint32_t there = 0; there < 2; there++) {
        rig_ok(kvant_step_begin(both[there], &options, &rig_diag));
        for (uint32_t layer = 0; layer < 2; layer++)
            rig_ok(kvant_step_layer_begin(both[there], layer,
                                          there ? &rows[layer][0].there : &rows[layer][0].host,
                                          there ? &rows[layer][1].there : &rows[layer][1].host, &rig_diag));
        for (uint32_t layer = 0; layer < 2; layer++)
            rig_ok(kvant_step_layer_end(both[there], layer, &rig_diag));
        rig_ok(kvant_step_commit(both[there], 30, &rig_diag));
    }
    twin_assert_same(t, &s);
    for (uint32_t i = 0; i < 4; i++) twin_rows_free(t, &rows[i / 2][i % 2]);
    twin_free(&s);
    twin_close(t);
    free(ids);
}

/* ---- The pool ------------------------------------------------------------------------------------------ */

/* Both pools are full after as many steps, say the same, and have room again when somebody leaves. */
static void pools_that_are_full(void **state) {
    (void)state;
    twin *t = twin_open(&(twin_wish){.rig = {.bytes = 120000}});
    uint64_t *ids = rig_ids(4000, 101);
    twin_sequence s = twin_create(t), other = twin_create(t);
    twin_grow(t, &other, ids + 3000, 100, 100);
    kvant_status status = KVANT_OK;
    uint32_t at = 0;
    for (; at < 3000; at += 40) {
        const twin_step step = {.s = &s, .ids = ids + at, .count = 40, .quiet = true};
        const kvant_step_options options = {.struct_size = sizeof options, .count = 40, .ids = ids + at};
        status = kvant_step_begin(s.host, &options, &rig_diag);
        char message[256];
        (void)snprintf(message, sizeof message, "%.250s", rig_diag.message);
        assert_int_equal(begin_there(&step), status);
        if (status != KVANT_OK) {
            assert_string_equal(rig_diag.message, message);
            break;
        }
        twin_layers(t, &step, 1);
        twin_commit(t, &step);
    }
    assert_int_equal(status, KVANT_ERROR_NO_SPACE);
    twin_assert_same(t, &s);
    twin_assert_reports(t);
    twin_free(&other);
    twin_take(t, &(twin_step){.s = &s, .ids = ids + at, .count = 20}, 1);
    twin_assert_same(t, &s);
    twin_free(&s);
    twin_close(t);
    free(ids);
}

/* ---- Arguments ----------------------------------------------------------------------------------------- */

typedef struct asked {
    kvant_view queries;
    kvant_mutable_view outputs;
    kvant_token_range ranges[4];
    kvant_attention_options options;
    kvant_attend_part part;
} asked;

static void ask(twin *t, const twin_sequence *s, asked *a, twin_rows *queries, twin_rows *outputs) {
    const kvant_layer_geometry *g = &t->host->layers[0];
    const uint64_t ids[4] = {1, 2, 3, 4};
    *queries = twin_lay_out(t, rig_rows(t->host, 0, RIG_QUERY, ids, 0, 4), KVANT_DTYPE_F16, 4, g->q_heads,
                            g->key_dim, TWIN_DENSE);
    *outputs = twin_lay_out(t, NULL, KVANT_DTYPE_F32, 4, g->q_heads, g->value_dim, TWIN_DENSE);
    a->queries = queries->there;
    a->outputs =
        rig_view((void *)(uintptr_t)outputs->there.data, KVANT_DTYPE_F32, 4, g->q_heads, g->value_dim);
    a->options = (kvant_attention_options){.struct_size = sizeof a->options, .scale = 0.25f};
    kvant_token_range_causal(20, 4, 0, a->ranges);
    a->part = (kvant_attend_part){.struct_size = sizeof a->part,
                                  .sequence = s->there,
                                  .queries = &a->queries,
                                  .ranges = a->ranges,
                                  .outputs = &a->outputs};
}

static void queries_that_are_refused(void **state) {
    (void)state;
    twin *t = twin_open(&(twin_wish){0});
    uint64_t *ids = rig_ids(100, 111);
    twin_sequence s = twin_create(t);
    twin_grow(t, &s, ids, 60, 60);
    asked a;
    twin_rows queries, outputs;
    ask(t, &s, &a, &queries, &outputs);
    const asked good = a;
#define ATTEND kvant_cache_attend(t->cache, 0, &a.part, 1, &a.options, NULL, 0, &rig_diag)
    rig_ok(ATTEND);
    a.ranges[2].to++;
    rig_refused(ATTEND, KVANT_ERROR_UNSUPPORTED, "part 0, row 2 sees the positions from 0 to before 24");
    memcpy(a.ranges, good.ranges, sizeof a.ranges);
    a.ranges[1].from = 3;
    rig_refused(ATTEND, KVANT_ERROR_UNSUPPORTED, "row 0");
    kvant_token_range_causal(20, 4, 22, a.ranges); /* the first rows see all there is before them */
    rig_ok(ATTEND);
    a.ranges[3].from++;
    rig_refused(ATTEND, KVANT_ERROR_UNSUPPORTED, "row 3");
    for (uint32_t i = 0; i < 4; i++) a.ranges[i] = (kvant_token_range){0, 0};
    rig_refused(ATTEND, KVANT_ERROR_UNSUPPORTED, "row 0");
    memcpy(a.ranges, good.ranges, sizeof a.ranges);
    a.options.kv_heads = 1;
    rig_refused(ATTEND, KVANT_ERROR_UNSUPPORTED, "all kv heads");
    a.options.kv_heads = 2;
    rig_ok(ATTEND);
    a.options.first_kv_head = 1;
    rig_refused(ATTEND, KVANT_ERROR_UNSUPPORTED, "all kv heads");
    a.options = good.options;
    a.options.scale = 0;
    rig_refused(ATTEND, KVANT_ERROR_ARGUMENT, "scale");
    a.options = good.options;
    a.queries.dtype = KVANT_DTYPE_BF16;
    rig_refused(ATTEND, KVANT_ERROR_DTYPE, "queries of type");
    a.queries = good.queries;
    a.outputs.tokens = 3;
    rig_refused(ATTEND, KVANT_ERROR_ARGUMENT, "outputs");
    a.outputs = good.outputs;
    a.part.outputs = NULL;
    rig_refused(ATTEND, KVANT_ERROR_ARGUMENT, "outputs");
    a.part.outputs = &a.outputs;
    a.part.ranges = NULL;
    rig_refused(ATTEND, KVANT_ERROR_ARGUMENT, "not open in a step");
    twin_assert_same(t, &s);
    twin_rows_free(t, &queries);
    twin_rows_free(t, &outputs);
    twin_free(&s);
    twin_close(t);
    free(ids);
}

/* An error of a step ends it, whatever was already put into the stream. */
static void steps_that_end(void **state) {
    (void)state;
    twin *t = twin_open(&(twin_wish){0});
    uint64_t *ids = rig_ids(200, 121);
    twin_sequence s = twin_create(t);
    twin_grow(t, &s, ids, 50, 50);
    const twin_step step = {.s = &s, .ids = ids + 50, .count = 40};
    rig_ok(begin_there(&step));
    twin_put_there(t, &step);
    rig_refused(kvant_step_put(s.there, 1, NULL, NULL, &rig_diag), KVANT_ERROR_ARGUMENT, "already");
    assert_int_equal(rig_info(s.there).in_step, 0);
    twin_assert_same(t, &s);
    rig_ok(begin_there(&step));
    rig_refused(kvant_step_commit(s.there, 40, &rig_diag), KVANT_ERROR_ARGUMENT, "layer 0 got no keys");
    twin_assert_same(t, &s);
    twin_assert_reports(t);
    rig_ok(begin_there(&step));
    kvant_sequence_reset(s.there); /* in a step */
    kvant_sequence_reset(s.host);
    twin_take(t, &(twin_step){.s = &s, .ids = ids, .count = 40}, 1);
    twin_assert_same(t, &s);
    twin_free(&s);
    twin_close(t);
    free(ids);
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static size_t device_memory_free(kvant_device *device) {
    typedef int find(const char *, void **, int, uint64_t, int *);
    typedef int info(size_t *, size_t *);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *entry = NULL;
    find *address = NULL;
    info *memory_info = NULL;
    size_t left = 0, total = 0;
    int found = 0;
    assert_non_null(driver);
    entry = dlsym(driver, "cuGetProcAddress_v2");
    assert_non_null(entry);
    memcpy(&address, &entry, sizeof address);
    assert_int_equal(address("cuMemGetInfo", &entry, 12000, 0, &found), 0);
    assert_non_null(entry);
    memcpy(&memory_info, &entry, sizeof memory_info);
    rig_ok(gpu_device_enter(&device->gpu, &rig_diag));
    int result = memory_info(&left, &total);
    gpu_device_leave(&device->gpu);
    assert_int_equal(result, 0);
    assert_true(left > 0 && left < total);
    return left;
}

static kvant_status open_there(const rig_wish *wish, kvant_cache_options options) {
    kvant_plan *plan = rig_plan(wish);
    kvant_cache *cache = NULL;
    options.struct_size = options.struct_size != 0 ? options.struct_size : sizeof options;
    kvant_status status = kvant_cache_open(plan, &options, &cache, &rig_diag);
    kvant_plan_free(plan);
    kvant_cache_close(cache);
    return status;
}

static void caches_that_do_not_open(void **state) {
    (void)state;
    kvant_device *device = twin_device();
    static const char elsewhere[] = "[pipeline]\nblock_tokens = 32\n[codec k]\nplugin = nvfp4\n"
                                    "[layers]\nkey = k\nvalue = k\n";
    const rig_wish usual = {0}, without_kernels = {.text = elsewhere};
    static const kvant_layer_geometry layer[] = {{.struct_size = sizeof layer[0],
                                                  .kv_heads = 1,
                                                  .q_heads = 1,
                                                  .total_kv_heads = 1,
                                                  .key_dim = 64,
                                                  .value_dim = 64}};
    const rig_wish other = {.text = elsewhere, .layers = layer, .layer_count = 1};
    (void)without_kernels;
    rig_refused(open_there(&usual, (kvant_cache_options){.bytes = 1000, .device = device}),
                KVANT_ERROR_ARGUMENT, "a pool of 1000 bytes");
    rig_refused(open_there(&usual, (kvant_cache_options){.bytes = UINT64_C(1) << 50, .device = device}),
                KVANT_ERROR_MEMORY, "");
    rig_refused(open_there(&other, (kvant_cache_options){.bytes = 1 << 20, .device = device}),
                KVANT_ERROR_UNSUPPORTED, "");
    /* A caller that knows nothing of devices. */
    rig_ok(open_there(&usual, (kvant_cache_options){.struct_size = offsetof(kvant_cache_options, device),
                                                    .bytes = 1 << 20,
                                                    .device = (kvant_device *)(uintptr_t)1}));
}

/* Everything goes back, whatever became of steps. */
static void nothing_is_left(void **state) {
    (void)state;
    kvant_device *device = twin_device();
    uint64_t *ids = rig_ids(400, 131);
    size_t before = 0;
    for (uint32_t round = 0; round < 2; round++) { /* code that is loaded at the first stays */
        if (round == 1) before = device_memory_free(device);
        twin *t = twin_open(&(twin_wish){.rig = {.text = saturate}});
        twin_sequence s = twin_create(t), open = twin_create(t);
        twin_grow(t, &s, ids, 200, 150);
        rig_ok(begin_there(&(twin_step){.s = &open, .ids = ids, .count = 70}));
        twin_free(&open); /* in a step */
        twin_free(&s);
        twin_close(t);
        if (round == 1) assert_int_equal(device_memory_free(device), before);
    }
    free(ids);
}

static int leave(void **state) {
    (void)state;
    twin_device_close();
    return 0;
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(commit_names_the_first),   cmocka_unit_test(replaced_and_counted),
        cmocka_unit_test(layers_open_at_once),      cmocka_unit_test(pools_that_are_full),
        cmocka_unit_test(queries_that_are_refused), cmocka_unit_test(steps_that_end),
        cmocka_unit_test(caches_that_do_not_open),  cmocka_unit_test_teardown(nothing_is_left, leave),
    };
    return kvant_run_tests(tests, argc, argv);
}
