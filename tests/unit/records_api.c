/* kvant/records.h: the same bytes as a saved sequence's, and what comes out of them. */
#include "support/cache_place.h"
#include "support/test.h"
#include "support/tester.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 120, GUARD = 64 };

static const kvant_layer_geometry three[] = {{.struct_size = sizeof three[0],
                                              .kv_heads = 2,
                                              .q_heads = 4,
                                              .total_kv_heads = 2,
                                              .key_dim = 24,
                                              .value_dim = 40},
                                             {.struct_size = sizeof three[0],
                                              .kv_heads = 1,
                                              .q_heads = 3,
                                              .total_kv_heads = 1,
                                              .key_dim = 10,
                                              .value_dim = 6,
                                              .window = 30},
                                             {.struct_size = sizeof three[0],
                                              .kv_heads = 3,
                                              .q_heads = 3,
                                              .total_kv_heads = 3,
                                              .key_dim = 7,
                                              .value_dim = 16}};
static const char text[] = "[pipeline]\nblock_tokens = 16\nsinks = 3\nrecent = 20\n"
                           "[layers]\nkey = tester_tags\nvalue = uniform\n[layers -1]\nkey = raw\n";

/* Everything to pack records of one sequence with. */
typedef struct bench {
    rig *r;
    kvant_records *records;
    uint64_t *ids;
    uint8_t tags[COUNT];
    void *rows[6]; /* [tokens of the record] */
    kvant_view views[6];
    const kvant_view *pointers[6];
    kvant_record_source source;
    unsigned char *memory, *buffer; /* the buffer begins at an odd address; guards around */
    size_t bound;
    /* At an address that wastes most for alignment, with a guard behind it. */
    unsigned char *scratch_memory, *scratch;
    size_t scratch_bytes;
    kvant_record_report report;
} bench;

static bench open_bench(uint32_t dtype, uint32_t sizes) {
    tester = (tester_behaviour){.size_steps = sizes};
    bench b = {.r = rig_open(&(rig_wish){.text = text, .layers = three, .layer_count = 3, .dtype = dtype}),
               .ids = rig_ids(COUNT + PLACE_MORE, 1)};
    for (uint32_t t = 0; t < COUNT; t++) b.tags[t] = (uint8_t)(t * t % 11);
    rig_ok(kvant_records_open(b.r->plan, &b.records, &rig_diag));
    b.report.struct_size = sizeof b.report;
    return b;
}

static void drop_record(bench *b) {
    for (uint32_t i = 0; i < 6; i++) free(b->rows[i]);
    free(b->memory);
    free(b->scratch_memory);
    memset(b->rows, 0, sizeof b->rows);
    b->memory = b->scratch_memory = NULL;
}

static void close_bench(bench *b) {
    drop_record(b);
    kvant_records_close(b->records);
    rig_close(b->r);
    free(b->ids);
    tester = (tester_behaviour){0};
}

/* Source, rows, buffer and scratch of a record of `tokens` tokens from block `number` on; guards are
 * poisoned. */
static void take_record(bench *b, uint32_t kind, uint32_t number, uint32_t tokens, const uint8_t *parent) {
    uint32_t first = number * 16;
    drop_record(b);
    for (uint32_t i = 0; i < 6; i++) {
        const kvant_layer_geometry *g = &three[i / 2];
        b->rows[i] = rig_rows(b->r, i / 2, i % 2, b->ids + first, first, tokens);
        kvant_mutable_view view = rig_view(b->rows[i], b->r->geometry.dtype, tokens, g->kv_heads,
                                           i % 2 == KVANT_SIDE_KEY ? g->key_dim : g->value_dim);
        memcpy(&b->views[i], &view, sizeof view);
        b->pointers[i] = &b->views[i];
    }
    b->source = (kvant_record_source){.struct_size = sizeof b->source,
                                      .kind = kind,
                                      .tokens = tokens,
                                      .block = number,
                                      .parent = parent,
                                      .ids = b->ids + first,
                                      .tags = b->tags + first,
                                      .salt = "salt",
                                      .salt_bytes = 4,
                                      .rows = b->pointers};
    b->bound = kvant_records_bound(b->records, kind, tokens);
    assert_true(b->bound > 0);
    b->memory = malloc(b->bound + 2 * GUARD + 1);
    b->scratch_bytes = kvant_records_scratch_bytes(b->records, tokens);
    b->scratch_memory = aligned_alloc(4096, (b->scratch_bytes + 2 * GUARD + 4095) / 4096 * 4096);
    assert_true(b->memory != NULL && b->scratch_memory != NULL && b->scratch_bytes % 64 == 0);
    b->scratch = b->scratch_memory + 64;
    memset(b->memory, 0xee, b->bound + 2 * GUARD + 1);
    memset(b->scratch, 0xee, b->scratch_bytes + GUARD);
    b->buffer = b->memory + GUARD + 1;
}

static void pack(bench *b) {
    uint8_t key[32];
    rig_ok(kvant_records_key(b->records, &b->source, b->scratch, key, &rig_diag));
    memset(b->scratch, 0xee, b->scratch_bytes);
    rig_ok(
        kvant_records_pack(b->records, &b->source, b->buffer, b->bound, b->scratch, &b->report, &rig_diag));
    kvant_assert_bytes(key, b->report.key, 32);
    assert_true(b->report.size <= b->bound);
    for (uint32_t i = 0; i < GUARD; i++) {
        assert_int_equal(b->buffer[-1 - (int32_t)i], 0xee);
        assert_int_equal(b->buffer[b->bound + i], 0xee);
        assert_int_equal(b->scratch[b->scratch_bytes + i], 0xee);
    }
}

/* ---- The same as a cache ------------------------------------------------------------------------------- */

/* Every record of a sequence, made from rows, is the one that the cache saves, byte for byte; so a cache
 * loads what was packed here. */
static void as_a_cache_saves(void **state) {
    (void)state;
    for (uint32_t variant = 0; variant < 6; variant++) {
        bench b = open_bench(KVANT_DTYPE_F32 + variant % 3, variant / 3 * 4);
        place p = place_make(PLACE_CALLS), q = place_make(PLACE_CALLS);
        kvant_sequence *s = NULL;
        rig_ok(kvant_sequence_create(b.r->cache, "salt", 4, &s, &rig_diag));
        rig_take(b.r, s, &(rig_step){.ids = b.ids, .tags = b.tags, .count = 40});
        rig_take(b.r, s, &(rig_step){.ids = b.ids + 40, .tags = b.tags + 40, .count = COUNT - 40});
        uint32_t blocks = (uint32_t)rig_info(s).blocks;
        assert_int_equal(blocks, 6);
        place_assert_saved(&p, s, COUNT);
        uint8_t parent[32];
        for (uint32_t i = 0; i <= blocks; i++) {
            uint32_t kind = i < blocks ? KVANT_STORE_BLOCK : KVANT_STORE_TAIL;
            take_record(&b, kind, i, i < blocks ? 16 : COUNT - 16 * blocks, i > 0 ? parent : NULL);
            /* Position 120: the window of 30 and 20 recent ones are all later than the first four blocks. */
            if (i > 0 && i < 4) b.pointers[2] = b.pointers[3] = NULL;
            pack(&b);
            memcpy(parent, b.report.key, sizeof parent);
            kvant_store_key key = {.struct_size = sizeof key, .kind = kind, .salt = "salt", .salt_bytes = 4};
            memcpy(key.key, b.report.key, sizeof key.key);
            memcpy(key.fingerprint, b.report.fingerprint, sizeof key.fingerprint);
            rig_ok(kvant_store_put(q.store, &key, b.buffer, b.report.size, &rig_diag));
            if (i == 0) continue; /* the cache released a layer of block 0 and kept its sinks */
            size_t size = 0;
            unsigned char *saved = place_stored(&p, &key, &size);
            assert_int_equal(size, b.report.size);
            kvant_assert_bytes(b.buffer, saved, size);
            free(saved);
        }
        rig *fresh = rig_open(&b.r->wish);
        kvant_sequence *loaded = place_expect(
            &q, fresh, &(place_prefix){.ids = b.ids, .tags = b.tags, .count = COUNT, .salt = "salt"}, COUNT,
            KVANT_STORE_FOUND);
        rig_assert_alike(b.r, s, fresh, loaded);
        kvant_sequence_free(loaded);
        kvant_sequence_free(s);
        rig_close(fresh);
        place_remove(&p);
        place_remove(&q);
        close_bench(&b);
    }
}

/* ---- Back ---------------------------------------------------------------------------------------------- */

/* A view of any dtype and strides over memory with NaN in every gap. */
static kvant_mutable_view place_for(const kvant_view *like, uint32_t dtype, uint32_t gap, bool backwards,
                                    void **memory) {
    int64_t element = kvant_element_bytes(dtype), channel = element * (1 + gap);
    int64_t head = channel * like->head_dim + gap, token = head * like->heads + 3 * gap;
    size_t size = (size_t)(token * like->tokens) + 64;
    *memory = malloc(size);
    assert_non_null(*memory);
    memset(*memory, 0xff, size);
    kvant_mutable_view view = {.struct_size = sizeof view,
                               .dtype = dtype,
                               .data = *memory,
                               .tokens = like->tokens,
                               .heads = like->heads,
                               .head_dim = like->head_dim,
                               .token_stride = token,
                               .head_stride = head,
                               .channel_stride = channel};
    if (backwards) {
        view.data = (char *)*memory + token * (like->tokens - 1);
        view.token_stride = -token;
    }
    return view;
}

static float at(const kvant_mutable_view *view, uint32_t t, uint32_t h, uint32_t c) {
    return kvant_load_element(kvant_mutable_view_at(view, t, h) + c * view->channel_stride, view->dtype);
}

static float given(const kvant_view *view, uint32_t t, uint32_t h, uint32_t c) {
    return kvant_load_element(kvant_view_at(view, t, h) + c * view->channel_stride, view->dtype);
}

/* What comes back: sinks, tails and raw codecs exactly, the rest as the codec floor decodes it; into f32
 * exactly, into halves rounded once. */
static void check_rows(const bench *b, uint32_t i, const kvant_mutable_view *got, const float *want,
                       uint32_t first) {
    const kvant_view *in = &b->views[i];
    uint32_t differ = 0;
    for (uint32_t t = 0; t < got->tokens; t++)
        for (uint32_t h = 0; h < got->heads; h++)
            for (uint32_t c = 0; c < got->head_dim; c++) {
                float exact = want[((size_t)(first + t) * got->heads + h) * got->head_dim + c],
                      rounded = exact;
                unsigned char half[4];
                kvant_store_element(half, got->dtype, exact);
                rounded = kvant_load_element(half, got->dtype);
                float x = at(got, t, h, c);
                if (x != rounded)
                    fail_msg("layer %u side %u token %u: %g, not %g", i / 2, i % 2, t, (double)x,
                             (double)rounded);
                differ += exact != given(in, t, h, c);
            }
    bool lossy = i % 2 == 1 && b->source.kind == KVANT_STORE_BLOCK; /* uniform, 8 bits; the others keep all */
    assert_int_equal(differ > 0, lossy);
}

static void comes_back(void **state) {
    (void)state;
    uint8_t parent[32] = {1, 2, 3};
    for (uint32_t variant = 0; variant < 18; variant++) {
        bench b = open_bench(KVANT_DTYPE_F32 + variant % 3, variant % 2 * 3);
        static const struct {
            uint32_t kind, number, tokens;
        } cases[] = {{KVANT_STORE_BLOCK, 0, 16},
                     {KVANT_STORE_BLOCK, 2, 16},
                     {KVANT_STORE_TAIL, 0, 5},
                     {KVANT_STORE_TAIL, 3, 45},
                     {KVANT_STORE_TAIL, 1, 104}};
        for (uint32_t k = 0; k < 5; k++) {
            uint32_t first = cases[k].number * 16, dtype = KVANT_DTYPE_F32 + variant / 3 % 3;
            take_record(&b, cases[k].kind, cases[k].number, cases[k].tokens, first > 0 ? parent : NULL);
            pack(&b);
            kvant_mutable_view out[6];
            const kvant_mutable_view *outs[6];
            void *memory[6];
            for (uint32_t i = 0; i < 6; i++) {
                out[i] = place_for(&b.views[i], dtype, variant / 9 * 3, variant % 4 == 3, &memory[i]);
                outs[i] = &out[i];
            }
            kvant_store_key key = {.struct_size = sizeof key,
                                   .kind = cases[k].kind,
                                   .salt = first == 0 ? "salt" : NULL,
                                   .salt_bytes = first == 0 ? 4 : 0};
            memcpy(key.key, b.report.key, 32);
            memcpy(key.fingerprint, b.report.fingerprint, 32);
            memset(b.scratch, 0xee, b.scratch_bytes);
            /* All layers at once, or one after the other with one side left out. */
            if (variant % 2 == 0) {
                rig_ok(kvant_records_unpack(b.records, &key, b.buffer, b.report.size, 0, 3, outs, b.scratch,
                                            &rig_diag));
            } else {
                for (uint32_t i = 0; i < 6; i++) {
                    const kvant_mutable_view *one[2] = {i % 2 == 0 ? outs[i] : NULL,
                                                        i % 2 == 1 ? outs[i] : NULL};
                    rig_ok(kvant_records_unpack(b.records, NULL, b.buffer, b.report.size + GUARD, i / 2, 1,
                                                one, b.scratch, &rig_diag));
                }
            }
            for (uint32_t i = 0; i < 6; i++) {
                float *want = rig_expected(b.r, i / 2, i % 2, b.ids, first + cases[k].tokens,
                                           cases[k].kind == KVANT_STORE_BLOCK ? first + 16 : first);
                check_rows(&b, i, &out[i], want, first);
                free(want);
                free(memory[i]);
            }
        }
        close_bench(&b);
    }
}

static void says_what_it_is(void **state) {
    (void)state;
    bench b = open_bench(KVANT_DTYPE_BF16, 0);
    uint8_t parent[32] = {9, 8, 7}, fingerprint[32];
    rig_ok(kvant_plan_fingerprint(b.r->plan, fingerprint, &rig_diag));
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t kind = k < 2 ? KVANT_STORE_BLOCK : KVANT_STORE_TAIL;
        take_record(&b, kind, k == 0 ? 0 : 3, k < 2 ? 16 : 41, k == 0 ? NULL : parent);
        pack(&b);
        kvant_record_info info;
        memset(&info, 0xee, sizeof info);
        info.struct_size = sizeof info;
        rig_ok(kvant_record_describe(b.buffer, b.report.size + 9, &info, &rig_diag));
        assert_int_equal(info.kind, kind);
        assert_int_equal(info.tokens, b.source.tokens);
        assert_int_equal(info.layers, 3);
        assert_int_equal(info.sinks, k == 0 ? 3 : 0);
        assert_int_equal(info.dtype, KVANT_DTYPE_BF16);
        assert_int_equal(info.block, b.source.block);
        assert_int_equal(info.first_position, b.source.block * 16);
        assert_int_equal(info.size, b.report.size);
        kvant_assert_bytes(info.key, b.report.key, 32);
        kvant_assert_bytes(info.fingerprint, fingerprint, 32);
        static const uint8_t none[32];
        kvant_assert_bytes(info.parent, k == 0 ? none : parent, 32);
        for (uint32_t t = 0; t < info.tokens; t++) {
            uint64_t id = 0;
            for (uint32_t i = 0; i < 8; i++) id |= (uint64_t)info.ids[8 * t + i] << 8 * i;
            assert_int_equal(id, b.source.ids[t]);
            assert_int_equal(info.tags[t], b.source.tags[t]);
        }
        /* An older caller's struct ends earlier. */
        kvant_record_info old;
        memset(&old, 0xee, sizeof old);
        old.struct_size = offsetof(kvant_record_info, key);
        rig_ok(kvant_record_describe(b.buffer, b.report.size, &old, &rig_diag));
        assert_int_equal(old.tokens, info.tokens);
        assert_int_equal(old.key[0], 0xee);
    }
    close_bench(&b);
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

static kvant_status try_pack(bench *b, size_t capacity) {
    return kvant_records_pack(b->records, &b->source, b->buffer, capacity, b->scratch, NULL, &rig_diag);
}

static void refuses_sources(void **state) {
    (void)state;
    bench b = open_bench(KVANT_DTYPE_F16, 0);
    const uint8_t parent[32] = {1};
    uint8_t key[32];
    assert_int_equal(kvant_records_bound(b.records, KVANT_STORE_BLOCK, 15), 0);
    assert_int_equal(kvant_records_bound(b.records, KVANT_STORE_TAIL, 0), 0);
    assert_int_equal(kvant_records_bound(b.records, 3, 16), 0);
    assert_true(kvant_records_bound(b.records, KVANT_STORE_TAIL, UINT32_MAX) > UINT32_MAX);
    take_record(&b, KVANT_STORE_BLOCK, 1, 16, parent);
#define CASE(change, back, status, words)                                                                    \
    do {                                                                                                     \
        change;                                                                                              \
        rig_refused(try_pack(&b, b.bound), (status), words);                                                 \
        back;                                                                                                \
    } while (0)
    CASE(b.source.kind = 3, b.source.kind = KVANT_STORE_BLOCK, KVANT_ERROR_ARGUMENT, "kind 3");
    CASE(b.source.tokens = 15, b.source.tokens = 16, KVANT_ERROR_ARGUMENT, "15 tokens");
    CASE(b.source.parent = NULL, b.source.parent = parent, KVANT_ERROR_ARGUMENT, "block 0");
    CASE(b.source.block = 0, b.source.block = 1, KVANT_ERROR_ARGUMENT, "block 0");
    CASE(b.source.block = UINT64_MAX / 16, b.source.block = 1, KVANT_ERROR_ARGUMENT, "positions");
    CASE(b.source.ids = NULL, b.source.ids = b.ids, KVANT_ERROR_ARGUMENT, "ids");
    CASE(b.source.salt = NULL, b.source.salt = "salt", KVANT_ERROR_ARGUMENT, "salt");
    CASE(b.source.struct_size = 8, b.source.struct_size = sizeof b.source, KVANT_ERROR_ARGUMENT,
         "struct_size");
    CASE(b.source.rows = NULL, b.source.rows = b.pointers, KVANT_ERROR_ARGUMENT, "rows");
    CASE(b.pointers[1] = NULL, b.pointers[1] = &b.views[1], KVANT_ERROR_ARGUMENT, "layer 0: values");
    CASE(b.pointers[2] = NULL, b.pointers[2] = &b.views[2], KVANT_ERROR_ARGUMENT, "layer 1: keys");
    CASE(b.pointers[4] = b.pointers[5] = NULL, (b.pointers[4] = &b.views[4], b.pointers[5] = &b.views[5]),
         KVANT_ERROR_ARGUMENT, "layer 2: keys");
    CASE(b.views[3].dtype = KVANT_DTYPE_F32, b.views[3].dtype = KVANT_DTYPE_F16, KVANT_ERROR_DTYPE,
         "layer 1: values");
    CASE(b.views[3].head_dim = 5, b.views[3].head_dim = 6, KVANT_ERROR_ARGUMENT, "5 channels");
    CASE(b.views[0].tokens = 17, b.views[0].tokens = 16, KVANT_ERROR_ARGUMENT, "17 tokens");
    rig_refused(try_pack(&b, b.bound - 1), KVANT_ERROR_CAPACITY, "may take");
    rig_refused(kvant_records_pack(b.records, &b.source, NULL, b.bound, b.scratch, NULL, &rig_diag),
                KVANT_ERROR_CAPACITY, "may take");
    rig_refused(kvant_records_pack(b.records, &b.source, b.buffer, b.bound, b.scratch + 8, NULL, &rig_diag),
                KVANT_ERROR_ARGUMENT, "64");
    rig_refused(kvant_records_key(b.records, &b.source, NULL, key, &rig_diag), KVANT_ERROR_ARGUMENT, "NULL");
    rig_refused(kvant_records_open(NULL, &b.records, &rig_diag), KVANT_ERROR_ARGUMENT, "NULL");
    rig *nameless = rig_open(&(rig_wish){.model = ""});
    kvant_records *none = NULL;
    rig_refused(kvant_records_open(nameless->plan, &none, &rig_diag), KVANT_ERROR_MISSING, "model");
    assert_null(none);
    kvant_records_close(NULL);
    rig_close(nameless);
    /* Numbers that are not finite, by place: in a tail, among sinks, in a block. */
    static const struct {
        uint32_t kind, number, token;
        const char *words;
    } places[] = {{KVANT_STORE_TAIL, 0, 4, "position 4, head 1, channel 3"},
                  {KVANT_STORE_BLOCK, 0, 1, "position 1), head 1, channel 3"},
                  {KVANT_STORE_BLOCK, 2, 7, "position 39), head 1, channel 3"}};
    for (uint32_t i = 0; i < 3; i++) {
        take_record(&b, places[i].kind, places[i].number, 16, places[i].number > 0 ? parent : NULL);
        const uint16_t nan = 0x7e00;
        memcpy((char *)b.rows[4] + ((size_t)places[i].token * 3 + 1) * 14 + 6, &nan, 2);
        rig_refused(try_pack(&b, b.bound), KVANT_ERROR_NOT_FINITE, places[i].words);
    }
    close_bench(&b);
}

static void refuses_records(void **state) {
    (void)state;
    bench b = open_bench(KVANT_DTYPE_F16, 0);
    const uint8_t parent[32] = {1};
    take_record(&b, KVANT_STORE_BLOCK, 1, 16, parent);
    b.pointers[2] = b.pointers[3] = NULL;
    pack(&b);
    size_t size = b.report.size;
    kvant_mutable_view out[6];
    const kvant_mutable_view *outs[6];
    void *memory[6];
    for (uint32_t i = 0; i < 6; i++) {
        out[i] = place_for(&b.views[i], KVANT_DTYPE_F32, 0, false, &memory[i]);
        outs[i] = i / 2 == 1 ? NULL : &out[i];
    }
    kvant_store_key key = {.struct_size = sizeof key, .kind = KVANT_STORE_BLOCK};
    memcpy(key.key, b.report.key, 32);
    memcpy(key.fingerprint, b.report.fingerprint, 32);
#define UNPACK(key_, bytes, size_, first, count)                                                             \
    kvant_records_unpack(b.records, key_, bytes, size_, first, count, outs, b.scratch, &rig_diag)
    rig_ok(UNPACK(&key, b.buffer, size, 0, 3));
    outs[3] = &out[3];
    rig_refused(UNPACK(&key, b.buffer, size, 0, 3), KVANT_ERROR_MISSING, "layer 1 value has no extent");
    outs[3] = NULL;
    rig_refused(UNPACK(&key, b.buffer, size, 1, 3), KVANT_ERROR_ARGUMENT, "layers 1 to 4 of 3");
    rig_refused(UNPACK(&key, b.buffer, size, 4, 0), KVANT_ERROR_ARGUMENT, "of 3");
    rig_refused(UNPACK(&key, NULL, size, 0, 3), KVANT_ERROR_ARGUMENT, "no record");
    rig_refused(UNPACK(&key, b.buffer, size - 1, 0, 3), KVANT_ERROR_CORRUPT, "cut off");
    rig_refused(UNPACK(&key, b.buffer, 10, 0, 3), KVANT_ERROR_CORRUPT, "cut off");
    key.key[3] ^= 1;
    rig_refused(UNPACK(&key, b.buffer, size, 0, 3), KVANT_ERROR_MISMATCH, "another record");
    key.key[3] ^= 1;
    key.kind = KVANT_STORE_TAIL;
    rig_refused(UNPACK(&key, b.buffer, size, 0, 3), KVANT_ERROR_MISMATCH, "another record");
    key.kind = KVANT_STORE_BLOCK;
    key.struct_size = 4;
    rig_refused(UNPACK(&key, b.buffer, size, 0, 3), KVANT_ERROR_ARGUMENT, "struct_size");
    key.struct_size = sizeof key;
    out[0].dtype = KVANT_DTYPE_U8;
    rig_refused(UNPACK(&key, b.buffer, size, 0, 3), KVANT_ERROR_DTYPE, "layer 0: keys");
    out[0].dtype = KVANT_DTYPE_F32;
    out[4].tokens = 15;
    rig_refused(UNPACK(&key, b.buffer, size, 0, 3), KVANT_ERROR_ARGUMENT,
                "layer 2: a place for keys of 15 tokens");
    out[4].tokens = 16;
    b.buffer[size - 3] ^= 4;
    rig_refused(UNPACK(NULL, b.buffer, size, 0, 3), KVANT_ERROR_CORRUPT, "");
    kvant_record_info info = {.struct_size = sizeof info};
    rig_refused(kvant_record_describe(b.buffer, size, &info, &rig_diag), KVANT_ERROR_CORRUPT, "");
    b.buffer[size - 3] ^= 4;
    b.buffer[8] = 2;
    rig_refused(kvant_record_describe(b.buffer, size, &info, &rig_diag), KVANT_ERROR_VERSION, "version");
    b.buffer[8] = 1;
    rig_refused(kvant_record_describe(b.buffer, size, NULL, &rig_diag), KVANT_ERROR_ARGUMENT, "info");
    /* Another plan, and another salt. */
    rig *other = rig_open(&(rig_wish){.text = text, .layers = three, .layer_count = 3, .model = "other"});
    kvant_records *theirs = NULL;
    rig_ok(kvant_records_open(other->plan, &theirs, &rig_diag));
    rig_refused(kvant_records_unpack(theirs, NULL, b.buffer, size, 0, 3, outs, b.scratch, &rig_diag),
                KVANT_ERROR_MISMATCH, "another scheme");
    kvant_records_close(theirs);
    rig_close(other);
    take_record(&b, KVANT_STORE_TAIL, 0, 16, NULL);
    pack(&b);
    memcpy(key.key, b.report.key, 32);
    key.kind = KVANT_STORE_TAIL;
    rig_refused(UNPACK(&key, b.buffer, b.report.size, 0, 3), KVANT_ERROR_MISMATCH, "salt");
    key.salt = "salt";
    key.salt_bytes = 4;
    rig_ok(UNPACK(&key, b.buffer, b.report.size, 0, 3));
    for (uint32_t i = 0; i < 6; i++) free(memory[i]);
    close_bench(&b);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_a_cache_saves), cmocka_unit_test(comes_back),
        cmocka_unit_test(says_what_it_is),  cmocka_unit_test(refuses_sources),
        cmocka_unit_test(refuses_records),
    };
    tester_register();
    return kvant_run_tests(tests, argc, argv);
}
