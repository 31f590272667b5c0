/* A codec for tests of the host, which the test registers itself: it keeps the rows that encode got as
 * floats, so that a test sees in the extent what the host handed over, and lies on demand.
 *
 *     extent: | T*H*D floats, [token, head, channel] | T bytes: the class of each token (0 without tags) |
 */
#ifndef KVANT_TEST_TESTER_H
#define KVANT_TEST_TESTER_H

#include <kvant/plugin.h>

/* "tester": both sides, every dtype. */
extern kvant_plugin_query_fn kvant_plugin_query_tester;
/* "tester_keys": keys only, f16 and f32, head_dim 8 to 64 in steps of 8, asks for tags (class = tag % 7). */
extern kvant_plugin_query_fn kvant_plugin_query_tester_keys;

/* "tester_tags": as "tester" without parameters, and asks for tags (class = tag % 7). */
extern kvant_plugin_query_fn kvant_plugin_query_tester_tags;

/* Registers all; fails the test if it cannot. */
void tester_register(void);

/* What they do; the test resets it to all zero. Not for several threads. */
typedef struct tester_behaviour {
    uint32_t flags;          /* of the layout */
    uint32_t block_multiple; /* 0 = 1 */
    kvant_status refuse;     /* what plan says, with `refuse_key` and "refused by the test" */
    const char *refuse_key;
    uint32_t refuse_layers; /* refuses only layers below this; 0 = all */
    void (*lie)(kvant_layout *layout);
    kvant_status open_fails;
    kvant_status encode_fails;
    uint64_t encode_size; /* what encode says it used; 0 = the truth */
    uint64_t saturated;   /* what encode counts */
    uint32_t state_bytes; /* 0 = a few */
    uint32_t size_steps;  /* further sizes, 16 bytes each; encode uses one step where there are some */
    const kvant_setup *last_setup; /* of the last open */
    uint32_t opened, closed;       /* counts */
} tester_behaviour;
extern tester_behaviour tester;

#endif
