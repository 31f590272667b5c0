/* A codec that learns, for tests of calibration; the test registers it. It keeps the rows that encode got as
 * floats, and needs one tensor for each of its rows:
 *
 *     range   f32 [total_kv_heads, 2]   first pass: mean of |x| of a head, without sinks
 *                                       second pass: the largest difference of |x| to that mean
 *
 * so that a test can recompute what it learned, see in the extents what encode got, and make it lie. */
#ifndef KVANT_TEST_LEARNER_H
#define KVANT_TEST_LEARNER_H

#include <kvant/plugin.h>

/* "learner": both sides, every dtype; parameters bits (1 to 8), before (yes: stores keys before RoPE), sized
 * (yes: plan answers MISSING without a tensor). */
extern kvant_plugin_query_fn kvant_plugin_query_learner;

/* Registers it and resets its behaviour: a test's setup. */
int learner_setup(void **state);

typedef enum learner_lie {
    LEARNER_HONEST,
    LEARNER_TWICE,       /* a tensor twice */
    LEARNER_WRONG_LAYER, /* a tensor of a layer that it does not code */
    LEARNER_WRONG_SIDE,  /* side 2 */
    LEARNER_NOTHING,     /* no tensor */
    LEARNER_ENDLESS,     /* always asks for the samples again */
    LEARNER_CENTER,      /* the host's name */
    LEARNER_NAME,        /* a name with a dot */
    LEARNER_SIZE,        /* fewer bytes than the shape takes */
    LEARNER_DTYPE,       /* a dtype that does not exist */
    LEARNER_SHAPE,       /* a shape that its own open refuses */
    LEARNER_STATUS       /* feed returns 1 */
} learner_lie;

typedef struct learner_behaviour {
    learner_lie lie;
    kvant_status refuse;                           /* what feed says of layer 1, with "refused by the test" */
    void (*on_sample)(const kvant_sample *sample); /* sees every sample; NULL = nobody */
    uint32_t sessions, open_sessions, passes, setups;
} learner_behaviour;
extern learner_behaviour learner;

#endif
