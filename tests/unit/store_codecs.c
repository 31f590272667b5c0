/* A sequence goes through a store and comes back in another process, with everything that its codecs need:
 * codes, scales, raw sinks, raw tail. */
#include "data/blocks.h"
#include "store/pack.h"
#include "support/scratch.h"
#include "support/store_records.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS = 2,
    TOKENS = 141,
    HEADS = 2,
    DIM = 32,
    ROW = HEADS * DIM,
    SIDES = LAYERS * 2,
    RECORDS_MAX = 8
};

#define WINDOWS "block_tokens = 32\nsinks = 3\nrecent = 5\n"
static const char *const pipelines[] = {
    ("[pipeline]\nname = a\n" WINDOWS "[codec k]\nplugin = kivi\nbits = 2\ngroup = 32\n"
     "[layers]\nkey = k\nvalue = k\n"),
    ("[pipeline]\nname = b\n" WINDOWS "[layers]\nkey = uniform\nvalue = uniform\n"),
    ("[pipeline]\nname = c\nblock_tokens = 32\n[layers]\nkey = raw\nvalue = uniform\n")};
enum { PIPELINES = sizeof pipelines / sizeof pipelines[0] };

typedef struct sequence {
    kvant_plan *plan;
    kvant_codec **codecs;
    float data[SIDES][TOKENS * ROW];
    kvant_view rows[SIDES];
    uint64_t ids[TOKENS];
    uint8_t fingerprint[32];
} sequence;

static kvant_diag diag = {.struct_size = sizeof diag};

static void must(kvant_status status) {
    if (status != KVANT_OK) {
        (void)fprintf(stderr, "%s\n", diag.message);
        abort();
    }
}

static void open_sequence(sequence *s, const char *text) {
    kvant_layer_geometry layers[LAYERS];
    for (unsigned i = 0; i < LAYERS; i++)
        layers[i] = (kvant_layer_geometry){.struct_size = sizeof layers[i],
                                           .kv_heads = HEADS,
                                           .q_heads = HEADS,
                                           .total_kv_heads = HEADS,
                                           .key_dim = DIM,
                                           .value_dim = DIM};
    const kvant_geometry geometry = {.struct_size = sizeof geometry,
                                     .layer_count = LAYERS,
                                     .dtype = KVANT_DTYPE_F32,
                                     .layers = layers,
                                     .model = "m"};
    kvant_pipeline *pipeline = NULL;
    uint64_t seed = 3;
    must(kvant_pipeline_parse(text, strlen(text), "p.ini", NULL, &pipeline, &diag));
    must(kvant_pipeline_resolve(pipeline, &geometry, &s->plan, &diag));
    kvant_pipeline_free(pipeline);
    must(kvant_plan_fingerprint(s->plan, s->fingerprint, &diag));
    must(kvant_codecs_open(s->plan, true, true, &s->codecs, &diag));
    for (unsigned i = 0; i < SIDES; i++) {
        for (unsigned e = 0; e < TOKENS * ROW; e++)
            s->data[i][e] = (float)(4 + kvant_test_normal(&seed) * (e % DIM == 7 ? 20 : 1));
        s->rows[i] = kvant_rows_view(s->data[i], KVANT_DTYPE_F32, TOKENS, HEADS, DIM);
    }
    for (unsigned t = 0; t < TOKENS; t++) s->ids[t] = 9000 + t;
}

static void close_sequence(sequence *s) {
    kvant_codecs_close(s->codecs, LAYERS);
    kvant_plan_free(s->plan);
}

static kvant_packer *open_packer(const sequence *s) {
    const kvant_pack_source source = {
        .plan = s->plan, .codecs = s->codecs, .rows = s->rows, .tokens = TOKENS, .threads = 1, .ids = s->ids};
    kvant_packer *packer = NULL;
    must(kvant_packer_open(&source, &packer, &diag));
    return packer;
}

static kvant_store_key key_of(const sequence *s, const unsigned char *bytes, size_t size) {
    kvant_record record;
    const char *why = NULL;
    kvant_store_key key = {.struct_size = sizeof key};
    must(kvant_record_read(bytes, size, &record, &why));
    key.kind = record.head.kind;
    memcpy(key.key, record.head.key, sizeof key.key);
    memcpy(key.fingerprint, s->fingerprint, sizeof key.fingerprint);
    return key;
}

/* ---- The two processes --------------------------------------------------------------------------------- */

typedef struct task {
    uint32_t kind, pack;
    const char *directory, *pipeline;
} task;

/* Encodes and puts; the process ends. */
static void save(void *context) {
    static sequence s;
    const task *t = context;
    open_sequence(&s, t->pipeline);
    kvant_packer *packer = open_packer(&s);
    kvant_store *store = test_store_open(t->kind, t->directory, 0, t->pack);
    for (uint32_t i = 0; i < kvant_packer_count(packer); i++) {
        const unsigned char *bytes = NULL;
        size_t size = 0;
        must(kvant_packer_next(packer, &bytes, &size, &diag));
        const kvant_store_key key = key_of(&s, bytes, size);
        must(kvant_store_put(store, &key, bytes, size, &diag));
    }
    kvant_store_close(store);
    kvant_packer_close(packer);
    close_sequence(&s);
}

typedef struct target {
    const sequence *s;
    float rows[SIDES][TOKENS * ROW];
    uint32_t tokens;
    void *extent, *scratch;
} target;

/* Decodes a record to its place. */
static kvant_status load(void *context, const void *bytes, size_t size) {
    target *t = context;
    kvant_record record;
    const char *why = NULL;
    must(kvant_record_read(bytes, size, &record, &why));
    must(kvant_unpack_check(t->s->plan, &record, "stored", &diag));
    for (uint32_t i = 0; i < SIDES; i++)
        must(kvant_unpack_rows(t->s->codecs[i], &record, i / 2, i % 2,
                               t->rows[i] + record.head.first_position * ROW, t->extent, t->scratch, "stored",
                               &diag));
    t->tokens += record.head.tokens;
    return KVANT_OK;
}

static target *new_target(const sequence *s) {
    target *t = malloc(sizeof *t);
    if (t == NULL) abort();
    memset(t, 0xee, sizeof *t);
    t->s = s;
    t->tokens = 0;
    t->extent = aligned_alloc(4096, 1 << 16);
    t->scratch = aligned_alloc(4096, 1 << 20);
    if (t->extent == NULL || t->scratch == NULL) abort();
    return t;
}

static void free_target(target *t) {
    free(t->extent);
    free(t->scratch);
    free(t);
}

static void one_sequence(const task *t) {
    static sequence s;
    assert_int_equal(kvant_in_child(save, (void *)(uintptr_t)t), 0);
    open_sequence(&s, t->pipeline);
    target *stored = new_target(&s), *direct = new_target(&s);
    kvant_packer *packer = open_packer(&s);
    kvant_store *store = test_store_open(t->kind, t->directory, 0, 0);
    assert_true(kvant_packer_count(packer) >= 4);
    for (uint32_t i = 0; i < kvant_packer_count(packer); i++) {
        const unsigned char *bytes = NULL;
        size_t size = 0;
        uint32_t reason = 0;
        must(kvant_packer_next(packer, &bytes, &size, &diag));
        const kvant_store_key key = key_of(&s, bytes, size);
        must(load(direct, bytes, size));
        if (kvant_store_get(store, &key, load, stored, &reason, &diag) != KVANT_OK)
            fail_msg("%s", diag.message);
    }
    /* Told by what is there, not by what was reported (F43): every row, and near what was put in. */
    assert_int_equal(stored->tokens, TOKENS);
    assert_int_equal(test_store_stats(store).hits, kvant_packer_count(packer));
    for (uint32_t i = 0; i < SIDES; i++) {
        kvant_assert_bytes(stored->rows[i], direct->rows[i], sizeof stored->rows[i]);
        double error = 0, all = 0;
        for (uint32_t e = 0; e < TOKENS * ROW; e++) {
            double d = (double)stored->rows[i][e] - (double)s.data[i][e];
            error += d * d;
            all += (double)s.data[i][e] * (double)s.data[i][e];
        }
        assert_true(error < 0.2 * all);
    }
    kvant_store_close(store);
    kvant_packer_close(packer);
    free_target(stored);
    free_target(direct);
    close_sequence(&s);
}

static void f42_f46_everything_comes_back(void **state) {
    (void)state;
    for (uint32_t i = 0; i < PIPELINES * TEST_STORES * 2; i++) {
        char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
        one_sequence(&(task){i % 2, i / 2 % 2, directory, pipelines[i / 4]});
        free(directory);
        kvant_scratch_remove(folder);
    }
}

/* F41: one store for several pipelines; nobody finds another's records under keys of their own, nor with
 * another's keys. */
static void f41_pipelines_never_meet(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
        task t = {kind, 0, directory, pipelines[0]};
        assert_int_equal(kvant_in_child(save, &t), 0);
        static sequence a, b;
        open_sequence(&a, pipelines[0]);
        open_sequence(&b, pipelines[1]);
        kvant_packer *pa = open_packer(&a), *pb = open_packer(&b);
        kvant_store *store = test_store_open(kind, directory, 0, 0);
        const unsigned char *bytes = NULL;
        size_t size = 0;
        uint32_t reason = 0;
        must(kvant_packer_next(pb, &bytes, &size, &diag));
        kvant_store_key key = key_of(&b, bytes, size);
        assert_int_equal(kvant_store_read(store, &key, NULL, 0, &size, &reason, &diag), KVANT_ERROR_MISSING);
        assert_int_equal(reason, KVANT_STORE_ABSENT);
        must(kvant_packer_next(pa, &bytes, &size, &diag));
        key = key_of(&a, bytes, size);
        memcpy(key.fingerprint, b.fingerprint, sizeof key.fingerprint);
        assert_int_equal(kvant_store_read(store, &key, NULL, 0, &size, &reason, &diag), KVANT_ERROR_MISSING);
        assert_int_equal(reason, KVANT_STORE_FINGERPRINT);
        kvant_store_close(store);
        kvant_packer_close(pa);
        kvant_packer_close(pb);
        close_sequence(&a);
        close_sequence(&b);
        free(directory);
        kvant_scratch_remove(folder);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(f42_f46_everything_comes_back),
                                              cmocka_unit_test(f41_pipelines_never_meet)};
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
