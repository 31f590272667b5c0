/* A machine that takes random operations on a cache and on its model (cache_model.h), right ones and wrong
 * ones, and compares after each. Where its numbers come from is the caller's: a generator with a seed, or
 * the bytes of a fuzzer.
 *
 *     cache_machine *x = cache_machine_open(&model_settings[i], 0, below, context);
 *     for (..) cache_machine_operation(x);
 *     cache_machine_close(x);
 * / */
#ifndef KVANT_TEST_CACHE_MACHINE_H
#define KVANT_TEST_CACHE_MACHINE_H

#include "support/cache_model.h"

typedef struct cache_machine cache_machine;

/* A number below `limit` > 0. */
typedef uint32_t machine_below(void *context, uint32_t limit);

/* bytes: of the pool; 0 = as the setting says. */
cache_machine *cache_machine_open(const model_setting *setting, uint64_t bytes, machine_below *below,
                                  void *context);
void cache_machine_operation(cache_machine *x);

/* Everything of every sequence is read and attended once more, then freed. */
void cache_machine_close(cache_machine *x);

/* How often something happened that a run must have seen. */
typedef struct machine_counts {
    uint64_t operations, steps, commits, aborts, injected, no_space, evictions, hits, refused, attends, reads;
} machine_counts;
const machine_counts *cache_machine_counts(const cache_machine *x);

/* ---- Within (cache_machine_*.c) ------------------------------------------------------------------------ */

enum { MACHINE_SCRIPTS = 3, MACHINE_STEP_MAX = 150, MACHINE_OPEN_MAX = 2 };

struct cache_machine {
    cache_model *m;
    machine_below *below;
    void *context;
    machine_counts counts;
    kvant_diag diag;
    bool grew[MODEL_SEQUENCES]; /* the sequence only grew, and never shared a block */
    bool ended;                 /* a step, without a commit */
    const char *name;           /* of the operation */
    char detail[160];
    uint32_t at;
    float *queries, *outputs[2], *log_sum_exp[2]; /* of MODEL_TOKENS rows */
};

uint32_t machine_draw(cache_machine *x, uint32_t limit);
bool machine_chance(cache_machine *x, uint32_t one_in);
void machine_settle(cache_machine *x, const model_sequence *s);

/* The id and tag that script `script` has at a position: sequences that follow one share blocks. */
uint64_t machine_script_id(uint32_t script, uint64_t position);
uint8_t machine_script_tag(uint32_t script, uint64_t position);

void machine_begin(cache_machine *x, model_sequence *s);
void machine_step(cache_machine *x, model_sequence *s); /* something within a step */
void machine_cache_attend(cache_machine *x, model_sequence *s);
void machine_read(cache_machine *x, model_sequence *s);

#endif
