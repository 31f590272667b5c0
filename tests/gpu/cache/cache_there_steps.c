/* Steps of a cache on a device beside the same in the host's memory: prefill in chunks, decode, tentative
 * tokens, several sequences at once, over geometries, dtypes, widths of codes, windows, sinks. */
#include "twin.h"

#include "support/sanitized.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>

static void text_of(char *text, size_t size, uint32_t block, uint32_t sinks, uint32_t recent, const char *key,
                    const char *value) {
    (void)snprintf(text, size,
                   "[pipeline]\nblock_tokens = %u\nsinks = %u\nrecent = %u\n[codec k]\n%s\n[codec v]\n%s\n"
                   "[layers]\nkey = k\nvalue = v\n",
                   block, sinks, recent, key, value);
}

#define LAYER(kv, q, key, value, newest)                                                                     \
    {                                                                                                        \
        .struct_size = sizeof(kvant_layer_geometry), .kv_heads = (kv), .q_heads = (q),                       \
        .total_kv_heads = (kv), .key_dim = (key), .value_dim = (value), .window = (newest)                   \
    }

static const kvant_layer_geometry wide[] = {LAYER(1, 8, 96, 64, 0), LAYER(2, 2, 64, 80, 40)};
static const kvant_layer_geometry windows[] = {LAYER(2, 8, 32, 64, 24), LAYER(1, 3, 32, 32, 0),
                                               LAYER(1, 1, 64, 32, 70)};

typedef struct steps_case {
    const char *key, *value;
    const kvant_layer_geometry *layers; /* NULL = the rig's */
    uint32_t layer_count, dtype, sinks, recent;
} steps_case;

/* Every value of every column with most of the others. */
static const steps_case cases[] = {
    {"plugin = kivi\nbits = 2\ngroup = 32", "plugin = kivi\nbits = 2\ngroup = 8", NULL, 0, KVANT_DTYPE_F16, 3,
     20},
    {"plugin = kivi\nbits = 4\ngroup = 32", "plugin = kivi\nbits = 4\ngroup = 16", wide, 2, KVANT_DTYPE_BF16,
     0, 0},
    {"plugin = kivi\nbits = 4\ngroup = 32", "plugin = kivi\nbits = 2\ngroup = 32", windows, 3,
     KVANT_DTYPE_F32, 5, 33},
    {"plugin = kivi\nbits = 2\ngroup = 32", "plugin = kivi\nbits = 4\ngroup = 32", windows, 3,
     KVANT_DTYPE_F16, 0, 64},
    {"plugin = kivi\nbits = 4\ngroup = 32", "plugin = raw", NULL, 0, KVANT_DTYPE_BF16, 4, 1},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static twin *open_case(const steps_case *c, char *text, size_t size) {
    text_of(text, size, 32, c->sinks, c->recent, c->key, c->value);
    return twin_open(&(twin_wish){
        .rig = {.text = text, .layers = c->layers, .layer_count = c->layer_count, .dtype = c->dtype}});
}

/* Prefill in chunks that end anywhere, rows in every layout, then single tokens over the end of a block. */
static void one_sequence(void **state) {
    (void)state;
    for (uint32_t i = 0; i < CASES; i += KVANT_TEST_SANITIZED ? 2 : 1) {
        char text[512];
        twin *t = open_case(&cases[i], text, sizeof text);
        uint64_t *ids = rig_ids(300, 100 + i);
        twin_sequence s = twin_create(t);
        if (getenv("KVANT_TEST_VERBOSE") != NULL) printf("case %u\n", i);
        twin_take(t, &(twin_step){.s = &s, .ids = ids, .count = 70}, 1);
        twin_assert_same(t, &s);
        twin_take(t, &(twin_step){.s = &s, .ids = ids + 70, .count = 45, .layout = TWIN_ODD}, 1);
        twin_take(
            t, &(twin_step){.s = &s, .ids = ids + 115, .count = 10, .layout = TWIN_BACKWARDS, .apart = true},
            1);
        twin_assert_same(t, &s);
        for (uint32_t at = 125; at < 131; at++)
            twin_take(t, &(twin_step){.s = &s, .ids = ids + at, .count = 1, .layout = at % 3}, 1);
        twin_assert_same(t, &s);
        twin_take(t, &(twin_step){.s = &s, .ids = ids + 131, .count = 1, .quiet = true}, 1);
        twin_probe(t, &s, 3, 0);
        twin_probe(t, &s, 1, 17);
        twin_assert_reports(t);
        twin_free(&s);
        twin_close(t);
        free(ids);
    }
}

/* Tokens that are dropped at commit, at the end of a block and in its middle; an aborted step; ids
 * unknown. */
static void tentative_tokens(void **state) {
    (void)state;
    twin *t = twin_open(&(twin_wish){0});
    uint64_t *ids = rig_ids(300, 7);
    twin_sequence s = twin_create(t);
    twin_grow(t, &s, ids, 80, 80);
    twin_take(t, &(twin_step){.s = &s, .ids = ids + 80, .count = 8, .tentative = 7, .dropped = 5}, 1);
    twin_assert_same(t, &s);
    twin_take(t, &(twin_step){.s = &s, .ids = ids + 83, .count = 40, .tentative = 40, .dropped = 40}, 1);
    twin_assert_same(t, &s);
    twin_take(t, &(twin_step){.s = &s, .ids = ids + 83, .count = 40, .tentative = 40, .dropped = 0}, 1);
    twin_assert_same(t, &s);
    const twin_step aborted = {.s = &s, .ids = ids + 10, .count = 60};
    twin_begin(t, &aborted);
    twin_layers(t, &aborted, 1);
    kvant_step_abort(s.host);
    kvant_step_abort(s.there);
    twin_assert_same(t, &s);
    twin_take(t, &(twin_step){.s = &s, .ids = ids + 123, .count = 30, .unknown = true}, 1);
    twin_assert_same(t, &s);
    twin_assert_reports(t);
    twin_free(&s);
    twin_close(t);
    free(ids);
}

/* Steps of unlike length in one call: outputs are each sequence's own. */
static void many_sequences(void **state) {
    (void)state;
    enum { COUNT = 5 };
    twin *t =
        twin_open(&(twin_wish){.rig = {.layers = windows, .layer_count = 3, .dtype = KVANT_DTYPE_BF16}});
    uint64_t *ids[COUNT];
    twin_sequence s[COUNT];
    twin_step steps[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        ids[i] = rig_ids(200, 50 + i);
        s[i] = twin_create(t);
        twin_grow(t, &s[i], ids[i], 20 * i, 50);
    }
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            uint64_t at = rig_info(s[i].host).length;
            steps[i] = (twin_step){.s = &s[i], .ids = ids[i] + at, .count = round == 0 ? 1 + 13 * i : 1};
        }
        twin_take(t, steps, COUNT);
    }
    for (uint32_t i = 0; i < COUNT; i++) twin_assert_same(t, &s[i]);
    twin_assert_reports(t);
    for (uint32_t i = 0; i < COUNT; i++) {
        twin_free(&s[i]);
        free(ids[i]);
    }
    twin_close(t);
}

/* More query rows than are attended at once, and more blocks than are encoded at once. */
static void long_prefill(void **state) {
    (void)state;
    static const kvant_layer_geometry small[] = {LAYER(1, 1, 32, 32, 0)};
    char text[512];
    text_of(text, sizeof text, 32, 2, 8, "plugin = kivi\nbits = 2\ngroup = 32",
            "plugin = kivi\nbits = 2\ngroup = 32");
    twin *t = twin_open(
        &(twin_wish){.rig = {.text = text, .layers = small, .layer_count = 1, .bytes = UINT64_C(2) << 20}});
    uint32_t first = 2100, second = KVANT_TEST_SANITIZED ? 30 : 1040;
    uint64_t *ids = rig_ids(4000, 11);
    twin_sequence s = twin_create(t);
    twin_take(t, &(twin_step){.s = &s, .ids = ids, .count = first, .quiet = true}, 1);
    twin_take(t, &(twin_step){.s = &s, .ids = ids + first, .count = second}, 1);
    twin_assert_same(t, &s);
    twin_free(&s);
    twin_close(t);
    free(ids);
}

static int leave(void **state) {
    (void)state;
    twin_device_close();
    return 0;
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_sequence),
        cmocka_unit_test(tentative_tokens),
        cmocka_unit_test(many_sequences),
        cmocka_unit_test_teardown(long_prefill, leave),
    };
    return kvant_run_tests(tests, argc, argv);
}
