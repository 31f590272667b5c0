/* The attention floor against double precision: every ordered pair of the codecs that are there, at lengths
 * around blocks and the recent window. */
#include "support/attend_bed.h"
#include "support/scorer.h"
#include "support/test.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK = 64, RECENT = 70, MOST = 10 * BLOCK + 7, NAMES = 32 };

typedef struct names {
    const char *name[NAMES];
    uint32_t sides[NAMES];
    uint32_t count;
} names;

static void add_name(void *context, const kvant_plugin_entry *entry) {
    names *n = context;
    if (entry->plugin == NULL) return;
    assert_true(n->count < NAMES);
    n->sides[n->count] = entry->plugin->descriptor->sides;
    n->name[n->count++] = entry->plugin->descriptor->name;
}

static bool has(const names *n, const char *name) {
    for (uint32_t i = 0; i < n->count; i++)
        if (strcmp(n->name[i], name) == 0) return true;
    return false;
}

/* All lengths at once: what is older than `recent` tokens lies in blocks, as far as it fills them. */
static void try_lengths(const bed *b, uint32_t recent) {
    static const uint32_t lengths[] = {
        0,          1,          BLOCK - 1,          BLOCK,          BLOCK + 1,
        RECENT - 1, RECENT + 1, RECENT + BLOCK - 1, RECENT + BLOCK, RECENT + BLOCK + 1,
        MOST};
    enum { LENGTHS = sizeof lengths / sizeof lengths[0] };
    bed_call *calls[LENGTHS];
    kvant_attention_options options = bed_options(b);
    for (uint32_t i = 0; i < LENGTHS; i++) {
        uint32_t old = lengths[i] > recent ? lengths[i] - recent : 0;
        calls[i] = bed_call_make(b, lengths[i], old / BLOCK * BLOCK, 2);
    }
    bed_run(b, calls, LENGTHS, &options);
    for (uint32_t i = 0; i < LENGTHS; i++) {
        bed_assert_right(b, calls[i], &options);
        bed_call_free(calls[i]);
    }
}

static void every_pair_is_right_at_every_length(void **state) {
    (void)state;
    names n = {0};
    kvant_diag diag = {.struct_size = sizeof diag};
    scorer_register();
    if (kvant_plugin_list(add_name, &n, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    assert_true(has(&n, "raw") && has(&n, "uniform") && has(&n, "kivi") && has(&n, "scorer"));
    uint32_t tried = 0, skipped = 0;
    for (uint32_t k = 0; k < n.count; k++)
        for (uint32_t v = 0; v < n.count; v++) {
            if ((n.sides[k] & KVANT_SIDES_KEY) == 0 || (n.sides[v] & KVANT_SIDES_VALUE) == 0) continue;
            bed *b = bed_try_open(&(bed_wish){.key = n.name[k],
                                              .value = n.name[v],
                                              .head = "sinks = 4",
                                              .tokens = MOST,
                                              .value_dim = 128,
                                              .seed = 10 * k + v},
                                  &diag);
            if (b == NULL) {
                skipped++;
                continue;
            }
            bed_worst = 0;
            try_lengths(b, 0);
            try_lengths(b, RECENT);
            print_message("%s, %s: %.3f of what is allowed\n", n.name[k], n.name[v], bed_worst);
            bed_close(b);
            tried++;
        }
    print_message("%u pairs, %u more without an artifact\n", tried, skipped);
    assert_true(tried >= 4 * 4);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair_is_right_at_every_length)};
    return kvant_run_tests(tests, argc, argv);
}
