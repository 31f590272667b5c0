/* What a replay's oracle knows of a sequence: when blocks are encoded, what a cut and a drop leave, and
 * that origins tell sequences apart whose rows must differ. */
#include "replay/replay_history.h"

#include "replay/replay_rows.h"
#include "support/test.h"

#include <kvant/kvant.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 8, SINKS = 3, RECENT = 5 };

static replay_history make(uint32_t tokens) {
    replay_history h;
    replay_history_init(&h, BLOCK, SINKS, RECENT, 1);
    for (uint32_t t = 0; t < tokens; t++) {
        uint64_t origin = 100 + t;
        uint8_t tag = (uint8_t)t;
        assert_true(replay_history_append(&h, &origin, &tag, 1));
    }
    assert_true(replay_history_seal(&h, tokens < RECENT ? 0 : tokens - RECENT));
    return h;
}

/* A block is encoded once all of its tokens are older than the newest, tentative ones not counted. */
static void blocks_age(void **state) {
    (void)state;
    for (uint32_t tokens = 1; tokens < 40; tokens++) {
        replay_history h = make(tokens);
        uint32_t blocks = tokens < RECENT ? 0 : (tokens - RECENT) / BLOCK;
        assert_int_equal(h.block_count, blocks);
        assert_int_equal(h.tail_first, blocks * BLOCK);
        assert_int_equal(replay_history_limit(&h, 7, 3), tokens + 4 < RECENT ? 0 : tokens + 4 - RECENT);
        replay_history_free(&h);
    }
}

/* A cut in the tail, between blocks, inside one, twice, and among the sinks. */
static void cuts_leave_what_was_encoded(void **state) {
    (void)state;
    replay_history h = make(30); /* blocks [0, 8), [8, 16), [16, 24) */
    assert_int_equal(h.tail_first, 24);
    assert_true(replay_history_truncate(&h, 26));
    assert_int_equal(h.tail_first, 24);
    assert_true(h.private_first == UINT64_MAX);
    assert_true(replay_history_truncate(&h, 16));
    assert_int_equal(h.block_count, 2);
    assert_int_equal(h.tail_first, 16);
    assert_true(h.private_first == UINT64_MAX);
    assert_true(replay_history_truncate(&h, 13));
    assert_int_equal(h.block_count, 2);
    assert_int_equal(h.tail_first, 13);
    assert_int_equal(h.private_first, 13);
    assert_int_equal(replay_history_block_end(&h, 1), 13);
    for (uint32_t t = 0; t < 20; t++) { /* other tokens follow */
        uint64_t origin = 500 + t;
        uint8_t tag = 77;
        assert_true(replay_history_append(&h, &origin, &tag, 1));
    }
    assert_true(replay_history_seal(&h, h.length - RECENT));
    assert_int_equal(h.block_count, 3); /* [13, 21): blocks begin at the cut */
    assert_int_equal(h.blocks[2].first, 13);
    const uint64_t *origins = replay_history_block_origins(&h, 1);
    for (uint32_t t = 0; t < BLOCK; t++) { /* the cut block was encoded from what is gone */
        assert_int_equal(origins[t], 108 + t);
        assert_int_equal(replay_history_block_tags(&h, 1)[t], 8 + t);
    }
    assert_int_equal(replay_history_block_origins(&h, 2)[0], 500);
    assert_true(replay_history_truncate(&h, 10));
    assert_int_equal(replay_history_block_origins(&h, 1)[7], 115);
    assert_int_equal(replay_history_block_end(&h, 1), 10);
    assert_true(replay_history_truncate(&h, SINKS));
    assert_int_equal(h.block_count, 0);
    assert_int_equal(h.tail_first, 0);
    assert_int_equal(h.length, SINKS);
    assert_true(h.private_first == UINT64_MAX); /* its rows are raw, and all its own */
    replay_history_free(&h);
}

static void drops_join(void **state) {
    (void)state;
    static const uint64_t spans[][2] = {{4, 2}, {10, 3}, {6, 1}, {20, 4}, {12, 9}};
    replay_history h = make(30);
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++)
        assert_true(replay_history_drop(&h, spans[i][0], spans[i][1]));
    bool gone[30] = {false};
    uint64_t live = 30;
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++)
        for (uint64_t t = spans[i][0]; t < spans[i][0] + spans[i][1]; t++) {
            live -= !gone[t];
            gone[t] = true;
        }
    assert_int_equal(replay_history_live(&h), live);
    assert_int_equal(h.dropped_count, 2); /* [4, 7), [10, 24) */
    for (uint64_t t = 0; t < 30; t++) {
        bool lives;
        uint64_t end = replay_history_run(&h, t, 30, &lives);
        assert_int_equal(lives, !gone[t]);
        for (uint64_t u = t; u < end; u++) assert_int_equal(gone[u], gone[t]);
        assert_true(end == 30 || gone[end] != gone[t]);
    }
    assert_int_equal(h.private_first, 30);
    assert_true(replay_history_truncate(&h, 15)); /* inside the second one */
    assert_int_equal(h.dropped[1].end, 15);
    assert_true(h.private_first <= 15);
    assert_true(replay_history_truncate(&h, 8));
    assert_int_equal(h.dropped_count, 1);
    assert_int_equal(h.private_first, 8);
    assert_true(replay_history_truncate(&h, 0));
    assert_int_equal(h.dropped_count, 0);
    assert_true(h.private_first == UINT64_MAX);
    replay_history_free(&h);
}

/* A copy has memory of its own. */
static void copies_stand_alone(void **state) {
    (void)state;
    replay_history h = make(30), copy;
    assert_true(replay_history_drop(&h, 5, 3));
    assert_true(replay_history_truncate(&h, 13));
    assert_true(replay_history_copy(&copy, &h));
    for (uint64_t t = 0; t < h.length; t++) h.origins[t] = 0;
    h.blocks[1].origins[3] = 0;
    h.dropped[0].end = 13;
    assert_int_equal(copy.length, 13);
    assert_int_equal(copy.origins[12], 112);
    assert_int_equal(copy.blocks[1].origins[3], 111);
    assert_int_equal(copy.blocks[1].tags[3], 11);
    assert_int_equal(copy.dropped[0].end, 8);
    assert_int_equal(copy.tail_first, 13);
    assert_int_equal(copy.private_first, h.private_first);
    replay_history_free(&h);
    replay_history_free(&copy);
}

/* By context, a row tells of everything before it; by id or position, of nothing else. */
static void origins_tell_apart(void **state) {
    (void)state;
    kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                  .kv_heads = 2,
                                  .q_heads = 2,
                                  .total_kv_heads = 2,
                                  .key_dim = 5,
                                  .value_dim = 3};
    kvant_geometry geometry = {
        .struct_size = sizeof geometry, .layer_count = 1, .dtype = KVANT_DTYPE_BF16, .layers = &layer};
    for (uint32_t by = KVANT_REPLAY_BY_CONTEXT; by <= KVANT_REPLAY_BY_POSITION; by++) {
        kvant_replay_rows *rows = NULL, *other_seed = NULL;
        kvant_diag diag = {.struct_size = sizeof diag};
        assert_int_equal(kvant_replay_rows_open(&geometry, NULL, by, 1, &rows, &diag), KVANT_OK);
        assert_int_equal(kvant_replay_rows_open(&geometry, NULL, by, 2, &other_seed, &diag), KVANT_OK);
        uint64_t a = kvant_replay_origin_begin(rows, "a"), b = kvant_replay_origin_begin(rows, "b");
        /* The same, another tenant, another token before, another way, another id. */
        const uint64_t origins[] = {kvant_replay_origin(rows, a, 7, 0), kvant_replay_origin(rows, b, 7, 0),
                                    kvant_replay_origin(rows, kvant_replay_origin(rows, a, 6, 0), 7, 0),
                                    kvant_replay_origin(rows, a, 7, 9), kvant_replay_origin(rows, a, 8, 0)};
        uint16_t first[10], row[10], again[10];
        kvant_replay_rows_fill(rows, 0, KVANT_SIDE_KEY, origins, 50, 1, first);
        for (size_t i = 1; i < 5; i++) {
            bool differs = by == KVANT_REPLAY_BY_CONTEXT || (by == KVANT_REPLAY_BY_ID && i == 4);
            memset(row, 0xa5, sizeof row);
            kvant_replay_rows_fill(rows, 0, KVANT_SIDE_KEY, &origins[i], 50, 1, row);
            assert_int_equal(memcmp(first, row, sizeof row) != 0, differs);
        }
        kvant_replay_rows_fill(rows, 0, KVANT_SIDE_KEY, origins, 51, 1, row);
        assert_memory_not_equal(first, row, sizeof row); /* the position */
        kvant_replay_rows_fill(rows, 0, KVANT_SIDE_KEY, origins, 50, 1, again);
        assert_memory_equal(first, again, sizeof row);
        kvant_replay_rows_fill(other_seed, 0, KVANT_SIDE_KEY, origins, 50, 1, row);
        assert_memory_not_equal(first, row, sizeof row);
        kvant_replay_rows_close(rows);
        kvant_replay_rows_close(other_seed);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_age),         cmocka_unit_test(cuts_leave_what_was_encoded),
        cmocka_unit_test(drops_join),         cmocka_unit_test(copies_stand_alone),
        cmocka_unit_test(origins_tell_apart),
    };
    return kvant_run_tests(tests, argc, argv);
}
