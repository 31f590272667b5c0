/* The cache floor without memory: every allocation of every call fails once. After each failure all is as
 * before, and the same call works once there is memory again. What a step does after its begin needs none. */
#include "support/cache_take.h"
#include "support/data.h"
#include "support/memory_faults.h"
#include "support/test.h"

#include <stdio.h>

enum { TOKENS = 150, FULL = 1000 };

static kvant_diag diag = {.struct_size = sizeof diag};

static void end(void) {
    memory_faults_stop();
    fail();
}

typedef struct bed {
    cache_model *m; /* the model takes no part */
    kvant_store *store;
    take_text *text;
    kvant_sequence *parent; /* TOKENS long */
    kvant_sequence *made, *second;
    kvant_cache *opened;
    kvant_match *match;
} bed;

static void ok_at(kvant_status status, const char *call, int line) {
    if (status == KVANT_OK) return;
    print_error("line %d: %s: %s\n", line, call, diag.message);
    fail();
}
#define OK(call) ok_at((call), #call, __LINE__)

static bed *open_bed(const char *name) {
    bed *b = calloc(1, sizeof *b);
    assert_non_null(b);
    cache_model_end = end;
    for (uint32_t i = 0; i < model_setting_count; i++)
        if (strcmp(model_settings[i].name, name) == 0) {
            model_setting large = model_settings[i];
            large.blocks *= 4;
            b->m = cache_model_open(&large, 0);
        }
    assert_non_null(b->m);
    b->text = take_text_make(b->m, 1, 0);
    OK(kvant_sequence_create(b->m->cache, "salt", 4, &b->parent, &diag));
    OK(take_step(b->m, b->m->cache, b->parent, b->text, 0, 100, NULL));
    OK(take_step(b->m, b->m->cache, b->parent, b->text, 100, TOKENS, NULL));
    return b;
}

static kvant_cache_report report_of(const bed *b) {
    kvant_cache_report report = {.struct_size = sizeof report};
    OK(kvant_cache_describe(b->m->cache, &report));
    return report;
}

static void close_bed(bed *b) {
    kvant_sequence_free(b->parent);
    cache_model_leave(b->m);
    free(b->text);
    free(b);
}

/* ---- Every allocation of a call ------------------------------------------------------------------------ */

typedef struct call {
    const char *name;
    kvant_status (*make)(bed *b);
    void (*undo)(bed *b); /* after it worked */
    bool may_work;        /* it may do with less: a smaller hash table, a store that is read in vain */
} call;

static void same_report(const call *c, uint64_t nth, const kvant_cache_report *was, const bed *b) {
    kvant_cache_report now = report_of(b);
    if (was->sequences == now.sequences && was->blocks == now.blocks && was->free == now.free &&
        was->indexed == now.indexed && was->pinned == now.pinned && was->bytes.payload == now.bytes.payload &&
        was->bytes.metadata == now.bytes.metadata && was->bytes.raw == now.bytes.raw)
        return;
    print_error("%s, allocation %llu failed: %u sequences, %llu blocks, %llu free, %llu indexed, %llu "
                "pinned; before: "
                "%u, %llu, %llu, %llu, %llu\n",
                c->name, (unsigned long long)nth, now.sequences, (unsigned long long)now.blocks,
                (unsigned long long)now.free, (unsigned long long)now.indexed, (unsigned long long)now.pinned,
                was->sequences, (unsigned long long)was->blocks, (unsigned long long)was->free,
                (unsigned long long)was->indexed, (unsigned long long)was->pinned);
    fail();
}

/* What the parent shows, but for rows that windows released. */
static void same_parent(const call *c, uint64_t nth, const bed *b, uint64_t length) {
    kvant_sequence_info info = {.struct_size = sizeof info};
    float row[MODEL_HEADS * 16], want[MODEL_HEADS * 16];
    OK(kvant_sequence_describe(b->parent, &info));
    if (info.length != length || info.in_step != 0) {
        print_error("%s, allocation %llu failed: the sequence has %llu tokens\n", c->name,
                    (unsigned long long)nth, (unsigned long long)info.length);
        fail();
    }
    for (uint64_t p = info.tail_first; p < length; p++) {
        kvant_mutable_view view = {.struct_size = sizeof view,
                                   .dtype = KVANT_DTYPE_F32,
                                   .data = row,
                                   .tokens = 1,
                                   .heads = MODEL_HEADS,
                                   .head_dim = MODEL_KEY_DIM,
                                   .token_stride = sizeof row,
                                   .head_stride = MODEL_KEY_DIM * sizeof(float),
                                   .channel_stride = sizeof(float)};
        OK(kvant_sequence_read(b->parent, 0, KVANT_SIDE_KEY, p, &view, b->m->scratch, &diag));
        model_kept_rows(b->m, 0, KVANT_SIDE_KEY, &b->text->tokens[p], 1, want);
        kvant_assert_bytes(row, want, sizeof row); /* of settings with F32 */
    }
}

/* Fails the nth allocation of a call, for every n until it asks for no more. */
static void fail_each(bed *b, const call *c) {
    kvant_sequence_info info = {.struct_size = sizeof info};
    OK(kvant_sequence_describe(b->parent, &info));
    uint64_t failed = 0;
    for (uint64_t nth = 0; nth < FULL; nth++) {
        kvant_cache_report was = report_of(b);
        diag.message[0] = '\0';
        memory_faults_start(nth, false);
        kvant_status status = c->make(b);
        uint64_t asked = memory_faults_stop();
        if (asked <= nth) { /* none failed */
            OK(status);
            c->undo(b);
            printf("%s: %llu of %llu allocations that failed were refused\n", c->name,
                   (unsigned long long)failed, (unsigned long long)nth);
            assert_true(failed > 0 || c->may_work || nth == 0);
            return;
        }
        failed += status != KVANT_OK;
        if (status == KVANT_OK && c->may_work) {
            c->undo(b);
        } else if (status != KVANT_ERROR_MEMORY && !(status == KVANT_ERROR_NO_SPACE && c->may_work)) {
            print_error("%s, allocation %llu failed: status %d: %s\n", c->name, (unsigned long long)nth,
                        status, diag.message);
            fail();
        } else if (diag.message[0] == '\0') {
            print_error("%s, allocation %llu failed: not a word\n", c->name, (unsigned long long)nth);
            fail();
        }
        same_report(c, nth, &was, b);
        same_parent(c, nth, b, info.length);
    }
    print_error("%s: still asks for memory after %d allocations\n", c->name, FULL);
    fail();
}

/* ---- The calls ----------------------------------------------------------------------------------------- */

static kvant_status make_open(bed *b) {
    kvant_cache_options options = {.struct_size = sizeof options, .bytes = 1 << 20};
    return kvant_cache_open(b->m->plan, &options, &b->opened, &diag);
}

static void undo_open(bed *b) {
    kvant_cache_close(b->opened);
}

static kvant_status make_create(bed *b) {
    return kvant_sequence_create(b->m->cache, "salt", 4, &b->made, &diag);
}

static void undo_made(bed *b) {
    kvant_sequence_free(b->made);
    b->made = NULL;
}

static kvant_status make_begin(bed *b) {
    kvant_step_options step = {.struct_size = sizeof step,
                               .count = 77,
                               .ids = b->text->ids + TOKENS,
                               .tags = b->text->tags + TOKENS};
    return kvant_step_begin(b->parent, &step, &diag);
}

static void undo_begin(bed *b) {
    kvant_step_abort(b->parent);
}

static kvant_status make_fork(bed *b) {
    return kvant_sequence_fork(b->parent, &b->made, &diag);
}

static kvant_status make_reorder(bed *b) {
    kvant_sequence *sequences[] = {b->parent, b->made, b->second};
    static const uint32_t sources[] = {0, 0, 1};
    return kvant_sequence_reorder(sequences, sources, 3, &diag);
}

static void undo_nothing(bed *b) {
    (void)b;
}

static kvant_status make_lookup(bed *b) {
    kvant_prefix prefix = {.struct_size = sizeof prefix,
                           .ids = b->text->ids,
                           .tags = b->text->tags,
                           .count = TOKENS,
                           .salt = "salt",
                           .salt_bytes = 4,
                           .first_step_end = TOKENS};
    return kvant_cache_lookup(b->m->cache, &prefix, &b->match, &diag);
}

static void undo_lookup(bed *b) {
    assert_true(kvant_match_tokens(b->match) >= 2 * b->m->block_tokens);
    kvant_match_release(b->match);
    b->match = NULL;
}

static kvant_status make_create_from(bed *b) {
    return kvant_sequence_create_from(b->match, &b->made, &diag);
}

static kvant_status make_truncate(bed *b) { /* among sinks: they are raw again */
    return kvant_sequence_truncate(b->made, 2, &diag);
}

static void undo_truncate(bed *b) {
    kvant_sequence_info info = {.struct_size = sizeof info};
    OK(kvant_sequence_describe(b->made, &info));
    assert_int_equal(info.length, 2);
    assert_int_equal(info.tail_first, 0);
}

static kvant_status make_drop(bed *b) {
    return kvant_sequence_drop(b->made, 20, 3, &diag);
}

static kvant_saved saved = {.struct_size = sizeof saved};

static kvant_status make_save(bed *b) {
    return kvant_sequence_save(b->parent, b->store, &saved, &diag);
}

static void undo_save(bed *b) {
    (void)b;
    assert_int_equal(saved.tokens, TOKENS);
}

static kvant_status make_load(bed *b) {
    kvant_prefix prefix = {.struct_size = sizeof prefix,
                           .ids = b->text->ids,
                           .tags = b->text->tags,
                           .count = TOKENS,
                           .salt = "salt",
                           .salt_bytes = 4};
    kvant_status status = kvant_sequence_load(b->opened, b->store, &prefix, &b->made, NULL, &diag);
    if (status != KVANT_OK) b->made = NULL;
    return status;
}

/* What could be had of it; without a failure all. */
static void undo_load(bed *b) {
    kvant_sequence_info info = {.struct_size = sizeof info};
    OK(kvant_sequence_describe(b->made, &info));
    assert_true(info.length <= TOKENS);
    undo_made(b);
    OK(kvant_cache_evict(b->opened, UINT64_C(1) << 20, NULL, &diag));
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void calls_on_sequences(void **state) {
    static const char *const names[] = {"raw", "kvquant", "narrow"};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        bed *b = open_bed(names[i]);
        fail_each(b, &(call){"open", make_open, undo_open, false});
        fail_each(b, &(call){"create", make_create, undo_made, false});
        fail_each(b, &(call){"fork", make_fork, undo_made, false});
        fail_each(b, &(call){"begin", make_begin, undo_begin, true});
        OK(kvant_sequence_fork(b->parent, &b->second, &diag)); /* so that begin copies a page */
        fail_each(b, &(call){"begin of one of two", make_begin, undo_begin, true});
        OK(make_create(b));
        fail_each(b, &(call){"reorder", make_reorder, undo_nothing, false});
        undo_made(b);
        kvant_sequence_free(b->second);
        fail_each(b, &(call){"lookup", make_lookup, undo_lookup, false});
        OK(make_lookup(b));
        fail_each(b, &(call){"create_from", make_create_from, undo_made, false});
        undo_lookup(b);
        OK(make_fork(b));
        fail_each(b, &(call){"drop", make_drop, undo_nothing, false});
        undo_made(b);
        close_bed(b);
    }
}

static void truncation_among_sinks(void **state) {
    (void)state;
    bed *b = open_bed("uniform");
    kvant_sequence *parent = b->parent; /* F16: same_parent looks at F32 */
    OK(kvant_sequence_create(b->m->cache, NULL, 0, &b->parent, &diag));
    OK(kvant_sequence_fork(parent, &b->made, &diag));
    fail_each(b, &(call){"truncate", make_truncate, undo_truncate, false});
    undo_made(b);
    kvant_sequence_free(parent);
    close_bed(b);
}

static void save_and_load(void **state) {
    (void)state;
    bed *b = open_bed("kvquant");
    kvant_store_options options = {.struct_size = sizeof options, .capacity = 64 << 20};
    char directory[4096];
    (void)snprintf(directory, sizeof directory, "%s/store", kvant_test_directory());
    OK(kvant_store_open_directory(directory, &options, &b->store, &diag));
    fail_each(b, &(call){"save", make_save, undo_save, true});
    OK(make_save(b));
    OK(make_open(b));
    fail_each(b, &(call){"load", make_load, undo_load, true});
    OK(make_load(b));
    kvant_sequence_info info = {.struct_size = sizeof info};
    OK(kvant_sequence_describe(b->made, &info));
    assert_int_equal(info.length, TOKENS);
    undo_load(b);
    undo_open(b);
    kvant_store_close(b->store);
    close_bed(b);
}

/* However many there were, with whatever they had taken by then. */
static void aborted_steps_leave_nothing(void **state) {
    (void)state;
    bed *b = open_bed("raw");
    kvant_cache_report first = {0}, last;
    kvant_view views[2];
    void *keys = take_rows(b->m, b->text, 0, KVANT_SIDE_KEY, TOKENS, TOKENS + 77, &views[0]);
    void *values = take_rows(b->m, b->text, 0, KVANT_SIDE_VALUE, TOKENS, TOKENS + 77, &views[1]);
    OK(make_fork(b)); /* so that begin copies a page */
    for (uint32_t i = 0; i < 1000; i++) {
        OK(make_begin(b));
        if (i % 2 == 0) OK(kvant_step_put(b->parent, 0, &views[0], &views[1], &diag));
        kvant_step_abort(b->parent);
        last = report_of(b);
        if (i == 10) first = last;
    }
    assert_int_equal(last.bytes.tables, first.bytes.tables);
    assert_int_equal(last.free, first.free);
    assert_int_equal(last.blocks, first.blocks);
    undo_made(b);
    free(keys);
    free(values);
    close_bed(b);
}

/* From begin to commit not one byte is asked for. */
static void steps_take_all_at_begin(void **state) {
    (void)state;
    for (uint32_t i = 0; i < model_setting_count; i++) {
        if (strcmp(model_settings[i].name, "saturate") == 0) continue; /* replaces in a copy */
        bed *b = open_bed(model_settings[i].name);
        void *rows[MODEL_LAYERS][2];
        kvant_view views[MODEL_LAYERS][3];
        float *queries[MODEL_LAYERS], *outputs = take_room(77);
        OK(kvant_sequence_fork(b->parent, &b->made, &diag));
        for (uint32_t l = 0; l < MODEL_LAYERS; l++) {
            for (uint32_t side = 0; side < 2; side++)
                rows[l][side] = take_rows(b->m, b->text, l, side, TOKENS, TOKENS + 77, &views[l][side]);
            queries[l] = take_queries(b->text, l, TOKENS, TOKENS + 77, &views[l][2]);
        }
        kvant_attention_options options = {.struct_size = sizeof options, .scale = 0.25f};
        OK(make_begin(b));
        memory_faults_start(0, true);
        kvant_status status = KVANT_OK;
        for (uint32_t l = 0; l < MODEL_LAYERS && status == KVANT_OK; l++) {
            kvant_mutable_view view = take_outputs_view(b->m, l, 77, outputs);
            kvant_step_rows part = {.struct_size = sizeof part,
                                    .sequence = b->parent,
                                    .keys = &views[l][0],
                                    .values = &views[l][1],
                                    .queries = &views[l][2],
                                    .outputs = &view};
            status = kvant_step_attend(b->m->cache, l, &part, 1, &options, &diag);
        }
        if (status == KVANT_OK) status = kvant_step_commit(b->parent, 77, &diag);
        uint64_t asked = memory_faults_stop();
        if (status != KVANT_OK || asked != 0) {
            print_error("%s: status %d, %llu allocations within a step: %s\n", model_settings[i].name, status,
                        (unsigned long long)asked, diag.message);
            fail();
        }
        for (uint32_t l = 0; l < MODEL_LAYERS; l++) {
            free(rows[l][0]);
            free(rows[l][1]);
            free(queries[l]);
        }
        free(outputs);
        undo_made(b);
        close_bed(b);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_on_sequences),      cmocka_unit_test(truncation_among_sinks),
        cmocka_unit_test(save_and_load),           cmocka_unit_test(aborted_steps_leave_nothing),
        cmocka_unit_test(steps_take_all_at_begin),
    };
    return kvant_run_tests(tests, argc, argv);
}
