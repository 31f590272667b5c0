/* Every argument of steps and attention that breaks a rule of kvant/cache.h: the status, a message that names
 * place and rule, and a sequence that is as it was before the step. */
#include "support/cache_rig.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 100, STEP = 5 };

#define REFUSED(call, words) rig_refused((call), KVANT_ERROR_ARGUMENT, (words))

/* ---- Steps --------------------------------------------------------------------------------------------- */

static void beginning(void **state) {
    (void)state;
    rig_pair b = rig_pair_open(TOKENS, STEP);
    const kvant_step_options right = {.struct_size = sizeof right, .count = STEP, .ids = b.ids + TOKENS};
    kvant_step_options o = right;
    rig_picture *before = rig_look(b.r, b.s);
    REFUSED(kvant_step_begin(NULL, &o, &rig_diag), "sequence");
    REFUSED(kvant_step_begin(b.s, NULL, &rig_diag), "options");
    o.struct_size = 8;
    REFUSED(kvant_step_begin(b.s, &o, &rig_diag), "struct_size");
    o = right;
    o.count = 0;
    REFUSED(kvant_step_begin(b.s, &o, &rig_diag), "0 tokens");
    o = right;
    o.tentative = STEP + 1;
    REFUSED(kvant_step_begin(b.s, &o, &rig_diag), "6 of 5 tokens are tentative");
    rig_ok(kvant_step_begin(b.s, &right, &rig_diag));
    REFUSED(kvant_step_begin(b.s, &right, &rig_diag), "in a step already");
    kvant_step_abort(b.s);
    kvant_step_abort(b.s);
    kvant_step_abort(NULL);
    rig_assert_still(b.r, b.s, before);
    /* Outside of a step. */
    before = rig_look(b.r, b.s);
    kvant_view any = {.struct_size = sizeof any};
    REFUSED(kvant_step_put(b.s, 0, &any, &any, &rig_diag), "no step");
    REFUSED(kvant_step_layer_begin(b.s, 0, &any, &any, &rig_diag), "no step");
    REFUSED(kvant_step_layer_end(b.s, 0, &rig_diag), "layer 0");
    REFUSED(kvant_step_commit(b.s, 1, &rig_diag), "no step");
    REFUSED(kvant_step_put(NULL, 0, &any, &any, &rig_diag), "sequence");
    REFUSED(kvant_step_layer_begin(NULL, 0, &any, &any, &rig_diag), "sequence");
    REFUSED(kvant_step_layer_end(NULL, 0, &rig_diag), "sequence");
    REFUSED(kvant_step_commit(NULL, 1, &rig_diag), "sequence");
    rig_assert_still(b.r, b.s, before);
    rig_pair_close(&b);
}

/* The pool is full of what is held: what the step takes and what is free, and nothing is taken. */
static void no_room(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){.bytes = 40000});
    uint64_t *ids = rig_ids(4000, 10);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 70, 10);
    rig_picture *before = rig_look(r, s);
    uint64_t space = rig_report(r).free;
    char words[64];
    (void)snprintf(words, sizeof words, "%llu of %llu bytes are free", (unsigned long long)space,
                   (unsigned long long)rig_report(r).capacity);
    rig_refused(rig_begin(s, &(rig_step){.ids = ids + 70, .count = 3900}), KVANT_ERROR_NO_SPACE, words);
    assert_non_null(strstr(rig_diag.message, "3900 tokens"));
    assert_int_equal(rig_report(r).free, space);
    rig_assert_still(r, s, before);
    rig_take(r, s, &(rig_step){.ids = ids + 70, .count = 5});
    rig_assert_rows(r, s, ids);
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* Whatever a step took, copies of shared pages too, goes back. */
static void an_abort_gives_everything_back(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(400, 11);
    kvant_sequence *s = rig_sequence(r);
    for (uint32_t n = 1; n < 140; n += n % 3 + 1) {
        kvant_sequence *fork = NULL;
        rig_grow(r, s, ids, n, 7);
        rig_ok(kvant_sequence_fork(s, &fork, &rig_diag));
        kvant_cache_report before = rig_report(r);
        rig_picture *picture = rig_look(r, fork);
        for (uint32_t count = 1; count < 250; count = 3 * count + 1) {
            const rig_step step = {.ids = ids + n, .count = count};
            rig_ok(rig_begin(fork, &step));
            assert_true(rig_report(r).free < before.free);
            if (count % 2 == 0) rig_layers(r, fork, &step);
            kvant_step_abort(fork);
            kvant_cache_report after = rig_report(r);
            assert_int_equal(after.free, before.free);
            assert_int_equal(after.blocks, before.blocks);
            assert_int_equal(after.indexed, before.indexed);
            assert_int_equal(after.bytes.payload, before.bytes.payload);
            assert_int_equal(after.bytes.raw, before.bytes.raw);
        }
        rig_assert_still(r, fork, picture);
        kvant_sequence_free(fork);
    }
    rig_assert_rows(r, s, ids);
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* A right call of kvant_step_attend for layer 1, for the spoilers below. */
typedef struct call {
    rig_pair *b;
    uint32_t layer;
    kvant_view views[3];
    kvant_mutable_view outputs;
    kvant_step_rows rows;
    kvant_attention_options options;
    kvant_step_rows *rows_at;
    kvant_attention_options *options_at;
} call;

typedef struct spoiler {
    const char *words;
    void (*spoil)(call *c);
    kvant_status status; /* 0 = ARGUMENT */
    uint32_t puts;       /* 1 = an error of kvant_step_put and kvant_step_layer_begin too */
} spoiler;

#define SPOIL(name, ...)                                                                                     \
    static void name(call *c) {                                                                              \
        __VA_ARGS__;                                                                                         \
    }
SPOIL(layer_7, c->layer = 7)
SPOIL(no_keys, c->rows.keys = NULL)
SPOIL(no_values, c->rows.values = NULL)
SPOIL(no_data, c->views[1].data = NULL)
SPOIL(small_view, c->views[0].struct_size = 8)
SPOIL(other_type, c->views[0].dtype = KVANT_DTYPE_F32)
SPOIL(more_tokens, c->views[1].tokens = STEP + 1)
SPOIL(fewer_tokens, c->views[0].tokens = STEP - 1)
SPOIL(other_heads, c->views[0].heads = 2)
SPOIL(other_dim, c->views[1].head_dim = 24)
SPOIL(no_rows, c->rows_at = NULL)
SPOIL(small_rows, c->rows.struct_size = 16)
SPOIL(no_sequence, c->rows.sequence = NULL)
SPOIL(foreign_sequence, c->rows.sequence = c->b->foreign)
SPOIL(no_queries, c->rows.queries = NULL)
SPOIL(more_queries, c->views[2].tokens = STEP + 1)
SPOIL(query_heads, c->views[2].heads = 3)
SPOIL(query_dim, c->views[2].head_dim = 40)
SPOIL(no_outputs, c->rows.outputs = NULL)
SPOIL(output_dim, c->outputs.head_dim = 24)
SPOIL(output_type, c->outputs.dtype = KVANT_DTYPE_I8)
SPOIL(no_options, c->options_at = NULL)
SPOIL(small_options, c->options.struct_size = 4)
SPOIL(no_scale, c->options.scale = 0)

static const spoiler spoilers[] = {
    {"layer 7", layer_7, 0, 1},
    {"layer 1 key", no_keys, 0, 1},
    {"layer 1 value", no_values, 0, 1},
    {"layer 1 value", no_data, 0, 1},
    {"layer 1 key", small_view, 0, 1},
    {"layer 1 key: rows of type 1", other_type, KVANT_ERROR_DTYPE, 1},
    {"layer 1 value: rows [6, 1, 40]", more_tokens, 0, 1},
    {"layer 1 key: rows [4, 1, 24]", fewer_tokens, 0, 1},
    {"layer 1 key: rows [5, 2, 24]", other_heads, 0, 1},
    {"layer 1 value: rows [5, 1, 24]", other_dim, 0, 1},
    {"rows", no_rows, 0, 0},
    {"struct_size", small_rows, 0, 0},
    {"sequence 0", no_sequence, 0, 0},
    {"sequence 0 is NULL or of another cache", foreign_sequence, 0, 0},
    {"sequence 0: queries", no_queries, 0, 0},
    {"sequence 0: queries", more_queries, 0, 0},
    {"layer 1", query_heads, 0, 0},
    {"layer 1", query_dim, 0, 0},
    {"layer 1", no_outputs, 0, 0},
    {"layer 1", output_dim, 0, 0},
    {"layer 1", output_type, KVANT_ERROR_DTYPE, 0},
    {"options", no_options, 0, 0},
    {"options", small_options, 0, 0},
    {"scale", no_scale, 0, 0},
};

enum { ATTEND = 0, PUT = 1, LAYER = 2, WAYS = 3 };

/* One wrong call in a step whose layer 0 is done; the sequence is as before, and takes the right step. */
static void one_spoiled(rig_pair *b, const spoiler *how, uint32_t way) {
    static float floats[STEP * 2 * 40];
    void *rows[3];
    call c = {.b = b, .layer = 1};
    const rig_step step = {.ids = b->ids + TOKENS, .count = STEP};
    for (uint32_t what = 0; what < 3; what++) {
        rows[what] = rig_rows(b->r, 1, what, step.ids, TOKENS, STEP);
        uint32_t heads = what == RIG_QUERY ? 2 : 1, dim = what == KVANT_SIDE_VALUE ? 40 : 24;
        kvant_mutable_view v = rig_view(rows[what], KVANT_DTYPE_F16, STEP, heads, dim);
        c.views[what] =
            (kvant_view){sizeof c.views[0], v.dtype, v.data,         v.tokens,      v.heads,
                         v.head_dim,        0,       v.token_stride, v.head_stride, v.channel_stride};
    }
    c.outputs = rig_view(floats, KVANT_DTYPE_F32, STEP, 2, 40);
    c.rows = (kvant_step_rows){.struct_size = sizeof c.rows,
                               .sequence = b->s,
                               .keys = &c.views[0],
                               .values = &c.views[1],
                               .queries = &c.views[2],
                               .outputs = &c.outputs};
    c.options = (kvant_attention_options){.struct_size = sizeof c.options, .scale = 1};
    c.rows_at = &c.rows;
    c.options_at = &c.options;
    how->spoil(&c);
    rig_picture *before = rig_look(b->r, b->s);
    rig_ok(rig_begin(b->s, &step));
    kvant_status want = how->status != 0 ? how->status : KVANT_ERROR_ARGUMENT;
    if (way == ATTEND)
        rig_refused(kvant_step_attend(b->r->cache, c.layer, c.rows_at, 1, c.options_at, &rig_diag), want,
                    how->words);
    else if (way == PUT)
        rig_refused(kvant_step_put(b->s, c.layer, c.rows.keys, c.rows.values, &rig_diag), want, how->words);
    else
        rig_refused(kvant_step_layer_begin(b->s, c.layer, c.rows.keys, c.rows.values, &rig_diag), want,
                    how->words);
    /* Where the call named no sequence of this cache, nobody's step has ended. */
    bool named = c.rows_at != NULL && c.rows.sequence == b->s && c.rows.struct_size == sizeof c.rows;
    assert_int_equal(rig_info(b->s).in_step, !named);
    kvant_step_abort(b->s);
    rig_assert_still(b->r, b->s, before);
    for (uint32_t what = 0; what < 3; what++) free(rows[what]);
}

static void rows_of_a_layer(void **state) {
    (void)state;
    rig_pair b = rig_pair_open(TOKENS, STEP);
    for (size_t i = 0; i < sizeof spoilers / sizeof spoilers[0]; i++)
        for (uint32_t way = 0; way < (spoilers[i].puts ? WAYS : 1); way++) one_spoiled(&b, &spoilers[i], way);
    rig_grow(b.r, b.s, b.ids, TOKENS + STEP, STEP);
    rig_assert_rows(b.r, b.s, b.ids);
    rig_pair_close(&b);
}

/* Layers given twice, not at all, or not closed; more or fewer tokens kept than may be. */
static void ends_of_a_step(void **state) {
    (void)state;
    rig_pair b = rig_pair_open(TOKENS, STEP);
    const rig_step step = {.ids = b.ids + TOKENS, .count = STEP, .tentative = 2};
    void *rows[2] = {rig_rows(b.r, 0, 0, step.ids, TOKENS, STEP),
                     rig_rows(b.r, 0, 1, step.ids, TOKENS, STEP)};
    kvant_mutable_view k = rig_view(rows[0], KVANT_DTYPE_F16, STEP, 2, 32),
                       v = rig_view(rows[1], KVANT_DTYPE_F16, STEP, 2, 16);
    const kvant_view keys = {sizeof keys, k.dtype, k.data, STEP, 2, 32, 0, k.token_stride, k.head_stride, 2},
                     values = {sizeof values,  v.dtype,       v.data, STEP, 2, 16, 0,
                               v.token_stride, v.head_stride, 2};
    for (uint32_t i = 0; i < 7; i++) {
        rig_picture *before = rig_look(b.r, b.s);
        rig_ok(rig_begin(b.s, &step));
        if (i >= 5) rig_layers(b.r, b.s, &step);
        if (i < 3) rig_ok(kvant_step_put(b.s, 0, &keys, &values, &rig_diag));
        if (i == 3 || i == 4) rig_ok(kvant_step_layer_begin(b.s, 0, &keys, &values, &rig_diag));
        if (i == 0) REFUSED(kvant_step_put(b.s, 0, &keys, &values, &rig_diag), "layer 0 was given");
        if (i == 1) REFUSED(kvant_step_commit(b.s, STEP, &rig_diag), "layer 1 got no keys");
        if (i == 2) REFUSED(kvant_step_layer_end(b.s, 1, &rig_diag), "layer 1 is not open");
        if (i == 3) REFUSED(kvant_step_layer_begin(b.s, 0, &keys, &values, &rig_diag), "layer 0 was given");
        if (i == 4) REFUSED(kvant_step_commit(b.s, STEP, &rig_diag), "layer 0 is still open");
        if (i == 5) REFUSED(kvant_step_commit(b.s, STEP + 1, &rig_diag), "6 of 5");
        if (i == 6) REFUSED(kvant_step_commit(b.s, 2, &rig_diag), "2 of 5");
        assert_int_equal(rig_info(b.s).in_step, 0);
        rig_assert_still(b.r, b.s, before);
    }
    rig_ok(rig_begin(b.s, &step));
    rig_layers(b.r, b.s, &step);
    rig_ok(kvant_step_commit(b.s, 3, &rig_diag));
    assert_int_equal(rig_info(b.s).length, TOKENS + 3);
    free(rows[0]);
    free(rows[1]);
    rig_pair_close(&b);
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

static void attending(void **state) {
    (void)state;
    rig_pair b = rig_pair_open(TOKENS, STEP);
    float query[6 * 32] = {1}, output[6 * 16];
    const kvant_token_range range = {0, TOKENS};
    const kvant_view q = {sizeof q, KVANT_DTYPE_F32, query, 1, 6, 32, 0, sizeof query, 128, 4};
    const kvant_mutable_view o = rig_view(output, KVANT_DTYPE_F32, 1, 6, 16);
    const kvant_attend_part right = {
        .struct_size = sizeof right, .sequence = b.s, .queries = &q, .ranges = &range, .outputs = &o};
    const kvant_attention_options options = {.struct_size = sizeof options, .scale = 1};
    kvant_attend_part p = right;
    kvant_cache *cache = b.r->cache;
    size_t size = kvant_cache_attend_scratch(cache, 0, &p, 1, &options);
    assert_true(size > 0);
    void *scratch = aligned_alloc(64, (size + 128) / 64 * 64);
    assert_non_null(scratch);
#define ATTEND_REFUSED(words)                                                                                \
    REFUSED(kvant_cache_attend(cache, 0, &p, 1, &options, scratch, size, &rig_diag), words);                 \
    assert_int_equal(kvant_cache_attend_scratch(cache, 0, &p, 1, &options), 0);                              \
    p = right
    REFUSED(kvant_cache_attend(NULL, 0, &p, 1, &options, scratch, size, &rig_diag), "cache");
    REFUSED(kvant_cache_attend(cache, 0, NULL, 1, &options, scratch, size, &rig_diag), "parts");
    REFUSED(kvant_cache_attend(cache, 0, &p, 1, NULL, scratch, size, &rig_diag), "options");
    REFUSED(kvant_cache_attend(cache, 2, &p, 1, &options, scratch, size, &rig_diag), "layer 2");
    p.struct_size = 8;
    ATTEND_REFUSED("struct_size");
    p.sequence = NULL;
    ATTEND_REFUSED("part 0");
    p.sequence = b.foreign;
    ATTEND_REFUSED("another cache");
    p.queries = NULL;
    ATTEND_REFUSED("part 0: queries");
    p.ranges = NULL;
    ATTEND_REFUSED("layer 0 is not open");
    kvant_attention_options bad = options;
    bad.scale = 0;
    REFUSED(kvant_cache_attend(cache, 0, &p, 1, &bad, scratch, size, &rig_diag), "scale");
    REFUSED(kvant_cache_attend(cache, 0, &p, 1, &options, (char *)scratch + 4, size, &rig_diag), "64");
    REFUSED(kvant_cache_attend(cache, 0, &p, 1, &options, NULL, size, &rig_diag), "scratch");
    rig_refused(kvant_cache_attend(cache, 0, &p, 1, &options, scratch, size - 1, &rig_diag),
                KVANT_ERROR_CAPACITY, "scratch");
    p.outputs = NULL;
    REFUSED(kvant_cache_attend(cache, 0, &p, 1, &options, scratch, size, &rig_diag), "output");
    rig_ok(kvant_cache_attend(cache, 0, &right, 1, &options, scratch, size, &rig_diag));
    rig_ok(kvant_cache_attend(cache, 0, NULL, 0, &options, scratch, size, &rig_diag));
    /* An error of it in a step does not end the step. */
    const rig_step step = {.ids = b.ids + TOKENS, .count = STEP};
    rig_ok(rig_begin(b.s, &step));
    REFUSED(kvant_cache_attend(cache, 0, &p, 1, &options, scratch, size, &rig_diag), "output");
    assert_int_equal(rig_info(b.s).in_step, 1);
    rig_layers(b.r, b.s, &step);
    rig_ok(kvant_step_commit(b.s, STEP, &rig_diag));
    free(scratch);
    rig_pair_close(&b);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(beginning),
        cmocka_unit_test(no_room),
        cmocka_unit_test(an_abort_gives_everything_back),
        cmocka_unit_test(rows_of_a_layer),
        cmocka_unit_test(ends_of_a_step),
        cmocka_unit_test(attending),
    };
    return kvant_run_tests(tests, argc, argv);
}
