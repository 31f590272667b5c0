/* Operations of the machine on sequences, matches and the cache. See cache_machine.h. */
#include "support/cache_machine.h"

#include <kvant/kit/view.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t machine_draw(cache_machine *x, uint32_t limit) {
    return x->below(x->context, limit);
}

bool machine_chance(cache_machine *x, uint32_t one_in) {
    return machine_draw(x, one_in) == 0;
}

uint64_t machine_script_id(uint32_t script, uint64_t position) {
    return 100 + position / 3 + (position > 40 ? 1000 * (uint64_t)script : 0);
}

uint8_t machine_script_tag(uint32_t script, uint64_t position) {
    return (uint8_t)(position / 7 % 6 + 0 * script);
}

const machine_counts *cache_machine_counts(const cache_machine *x) {
    return &x->counts;
}

/* ---- Failure ------------------------------------------------------------------------------------------- */

static const cache_machine *running;

static void say_place(void) {
    if (running == NULL) return;
    fprintf(stderr, "    setting %s, operation %llu: %s %s\n", running->m->setting->name,
            (unsigned long long)running->counts.operations, running->name, running->detail);
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

cache_machine *cache_machine_open(const model_setting *setting, uint64_t bytes, machine_below *below,
                                  void *context) {
    cache_machine *x = calloc(1, sizeof *x);
    size_t rows = (size_t)MODEL_TOKENS * MODEL_Q_HEADS;
    if (x == NULL) MODEL_FAIL("out of memory");
    x->m = cache_model_open(setting, bytes);
    x->below = below;
    x->context = context;
    x->diag.struct_size = sizeof x->diag;
    x->name = "open";
    x->queries = malloc(rows * MODEL_KEY_DIM * sizeof(float));
    for (uint32_t i = 0; i < 2; i++) {
        x->outputs[i] = malloc(rows * 16 * sizeof(float));
        x->log_sum_exp[i] = malloc(rows * sizeof(float));
        if (x->outputs[i] == NULL || x->log_sum_exp[i] == NULL) MODEL_FAIL("out of memory");
    }
    if (x->queries == NULL) MODEL_FAIL("out of memory");
    running = x;
    cache_model_place = say_place;
    return x;
}

void cache_machine_close(cache_machine *x) {
    x->name = "close";
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        model_sequence *s = &x->m->sequences[i];
        for (uint32_t layer = 0; s->real != NULL && layer < MODEL_LAYERS; layer++)
            for (uint64_t p = 0; p < s->now.length;
                 p++) /* one by one: dropped and released ones are refused */
                model_check_read(x->m, s, layer, (uint32_t)p % 2, p, 1, KVANT_DTYPE_F32);
    }
    cache_model_close(x->m);
    running = NULL;
    cache_model_place = NULL;
    for (uint32_t i = 0; i < 2; i++) {
        free(x->outputs[i]);
        free(x->log_sum_exp[i]);
    }
    free(x->queries);
    free(x);
}

/* ---- Sequences ----------------------------------------------------------------------------------------- */

static model_sequence *draw_slot(cache_machine *x, bool used) {
    uint32_t first = machine_draw(x, MODEL_SEQUENCES);
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        model_sequence *s = &x->m->sequences[(first + i) % MODEL_SEQUENCES];
        if ((s->real != NULL) == used) return s;
    }
    return NULL;
}

static const char salts[3][8] = {"", "tenant", "other"};

static void create(cache_machine *x) {
    model_sequence *s = draw_slot(x, false);
    uint32_t salt = machine_draw(x, 6);
    if (s == NULL) return;
    if (salt > 2) salt = 0;
    x->name = "create";
    if (kvant_sequence_create(x->m->cache, salts[salt], strlen(salts[salt]), &s->real, &x->diag) != KVANT_OK)
        MODEL_FAIL("create: %s", x->diag.message);
    model_create(x->m, s, salt);
    x->grew[s - x->m->sequences] = true;
}

static void fork_one(cache_machine *x, model_sequence *s) {
    model_sequence *fork = draw_slot(x, false);
    if (fork == NULL) return;
    x->name = "fork";
    kvant_sequence *real = NULL;
    kvant_status status = kvant_sequence_fork(s->real, &real, &x->diag);
    if (s->steps) {
        if (status != KVANT_ERROR_ARGUMENT || real != NULL)
            MODEL_FAIL("a fork during a step gave %d", status);
        x->counts.refused++;
        return;
    }
    if (status != KVANT_OK) MODEL_FAIL("fork: %s", x->diag.message);
    fork->real = real;
    model_fork(x->m, s, fork);
    x->grew[s - x->m->sequences] = x->grew[fork - x->m->sequences] = false;
}

static void reorder(cache_machine *x) {
    model_sequence *chosen[MODEL_SEQUENCES];
    kvant_sequence *real[MODEL_SEQUENCES];
    uint32_t sources[MODEL_SEQUENCES], count = 0;
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++)
        if (x->m->sequences[i].real != NULL && !x->m->sequences[i].steps && machine_chance(x, 2))
            chosen[count++] = &x->m->sequences[i];
    if (count == 0) return;
    x->name = "reorder";
    for (uint32_t i = 0; i < count; i++) {
        real[i] = chosen[i]->real;
        sources[i] = machine_chance(x, 3) ? i : machine_draw(x, count);
        if (sources[i] != i)
            x->grew[chosen[i] - x->m->sequences] = x->grew[chosen[sources[i]] - x->m->sequences] = false;
    }
    if (kvant_sequence_reorder(real, sources, count, &x->diag) != KVANT_OK)
        MODEL_FAIL("reorder: %s", x->diag.message);
    model_reorder(x->m, chosen, sources, count);
}

static uint64_t draw_length(cache_machine *x, const model_sequence *s) {
    uint64_t length = s->now.length, block = x->m->block_tokens;
    switch (machine_draw(x, 8)) {
    case 0:
        return machine_draw(x, (uint32_t)length + 1);
    case 1:
        return length < 5 ? length : machine_draw(x, 5); /* among sinks */
    case 2:
        return machine_draw(x, (uint32_t)(length / block) + 1) * block;
    case 3:
        return s->now.tail_first;
    case 4:
        return length + machine_draw(x, 2); /* nothing, or too much */
    default:
        return length - machine_draw(x, (uint32_t)(length < 30 ? length : 30) + 1);
    }
}

static void truncate_one(cache_machine *x, model_sequence *s) {
    uint64_t length = draw_length(x, s);
    x->name = "truncate";
    (void)snprintf(x->detail, sizeof x->detail, "%llu tokens to %llu", (unsigned long long)s->now.length,
                   (unsigned long long)length);
    x->diag.message[0] = '\0';
    kvant_status status = kvant_sequence_truncate(s->real, length, &x->diag);
    kvant_cache_report report = {.struct_size = sizeof report};
    (void)kvant_cache_describe(x->m->cache, &report);
    model_evict(x->m, report.evictions - x->m->evictions); /* sinks want a page */
    if (status != KVANT_OK) {
        x->counts.refused++;
        if (x->diag.message[0] == '\0') MODEL_FAIL("truncate was refused without a word");
    }
    if (s->steps || length > s->now.length) {
        if (status != KVANT_ERROR_ARGUMENT) MODEL_FAIL("truncate gave %d, and cannot be", status);
        return;
    }
    if (length < s->now.length) x->grew[s - x->m->sequences] = false;
    bool sinks = length > 0 && length <= x->m->sinks && s->now.tail_first > length;
    if (status == KVANT_ERROR_NO_SPACE && sinks) return;
    kvant_status want = model_truncate(x->m, s, length);
    if (status != want) MODEL_FAIL("truncate gave %d (%s), not %d", status, x->diag.message, want);
}

static void drop(cache_machine *x, model_sequence *s) {
    uint64_t first = machine_draw(x, (uint32_t)s->now.length + 1);
    uint64_t most = s->now.length - first, count = machine_draw(x, 40);
    if (count > most && !machine_chance(x, 8)) count = most;
    x->name = "drop";
    (void)snprintf(x->detail, sizeof x->detail, "%llu from %llu on of %llu", (unsigned long long)count,
                   (unsigned long long)first, (unsigned long long)s->now.length);
    kvant_status status = kvant_sequence_drop(s->real, first, count, &x->diag);
    bool wrong = s->steps || count > most;
    if (status != (wrong ? KVANT_ERROR_ARGUMENT : KVANT_OK))
        MODEL_FAIL("drop gave %d: %s", status, x->diag.message);
    if (wrong) {
        x->counts.refused++;
        return;
    }
    model_drop(x->m, s, first, count);
    x->grew[s - x->m->sequences] = false;
}

/* ---- Prefixes ------------------------------------------------------------------------------------------ */

static model_match *draw_match(cache_machine *x, bool used) {
    uint32_t first = machine_draw(x, MODEL_MATCHES);
    for (uint32_t i = 0; i < MODEL_MATCHES; i++) {
        model_match *match = &x->m->matches[(first + i) % MODEL_MATCHES];
        if ((match->real != NULL) == used) return match;
    }
    return NULL;
}

static void lookup(cache_machine *x) {
    model_match *match = draw_match(x, false);
    uint64_t ids[MODEL_TOKENS];
    uint8_t tags[MODEL_TOKENS];
    uint32_t script = machine_draw(x, MACHINE_SCRIPTS), salt = machine_draw(x, 6),
             count = machine_draw(x, 400);
    if (salt > 2) salt = 0;
    if (match == NULL) return;
    if (machine_chance(x, 2)) script = salt % MACHINE_SCRIPTS;
    for (uint32_t t = 0; t < count; t++) {
        ids[t] = machine_script_id(script, t);
        tags[t] = machine_script_tag(script, t);
    }
    if (count > 0 && machine_chance(x, 6)) ids[machine_draw(x, count)] += 7;
    bool tagged = salt == 1 || machine_chance(x, 2);
    kvant_prefix prefix = {.struct_size = sizeof prefix,
                           .ids = ids,
                           .tags = tagged ? tags : NULL,
                           .count = count,
                           .salt = salts[salt],
                           .salt_bytes = strlen(salts[salt]),
                           .first_step_end = 1 + machine_draw(x, 450)};
    x->name = "lookup";
    if (kvant_cache_lookup(x->m->cache, &prefix, &match->real, &x->diag) != KVANT_OK)
        MODEL_FAIL("lookup: %s", x->diag.message);
    model_lookup(x->m, match, salt, ids, prefix.tags, count, prefix.first_step_end);
    if (kvant_match_tokens(match->real) != match->tokens_count)
        MODEL_FAIL("lookup found %llu of %u tokens (first step to %llu), and the model %llu",
                   (unsigned long long)kvant_match_tokens(match->real), count,
                   (unsigned long long)prefix.first_step_end, (unsigned long long)match->tokens_count);
    if (match->tokens_count > 0) x->counts.hits++;
}

static void release(cache_machine *x) {
    model_match *match = draw_match(x, true);
    if (match == NULL) return;
    x->name = "release";
    kvant_match_release(match->real);
    model_release(x->m, match);
}

static void create_from(cache_machine *x) {
    model_match *match = draw_match(x, true);
    model_sequence *s = draw_slot(x, false);
    if (match == NULL || s == NULL) return;
    x->name = "create_from";
    if (kvant_sequence_create_from(match->real, &s->real, &x->diag) != KVANT_OK)
        MODEL_FAIL("create_from: %s", x->diag.message);
    model_create_from(x->m, s, match);
    x->grew[s - x->m->sequences] = false;
    model_check_sequence(x->m, s);
    if (machine_chance(x, 2)) release(x);
}

/* ---- The cache ----------------------------------------------------------------------------------------- */

static void evict(cache_machine *x) {
    cache_model *m = x->m;
    uint64_t bytes = machine_draw(x, (uint32_t)(m->capacity / 64) + 1) * 64ull / (1 + machine_draw(x, 4)),
             freed = 7;
    x->name = "evict";
    kvant_cache_report before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    (void)kvant_cache_describe(m->cache, &before);
    kvant_status status = kvant_cache_evict(m->cache, bytes, &freed, &x->diag);
    (void)kvant_cache_describe(m->cache, &after);
    x->counts.evictions += after.evictions - m->evictions;
    model_evict(m, after.evictions - m->evictions);
    if (freed != after.free - before.free) MODEL_FAIL("evict freed other than it says");
    if ((status == KVANT_OK) != (after.free >= bytes)) MODEL_FAIL("evict gave %d", status);
    if (status != KVANT_OK && status != KVANT_ERROR_NO_SPACE) MODEL_FAIL("evict gave %d", status);
    if (after.evictions > before.evictions && before.free >= bytes) MODEL_FAIL("evicted without need");
    for (const model_block *b = m->blocks; b != NULL && status != KVANT_OK; b = b->next)
        if (b->indexed && b->pins == 0 && b->marks == 0) MODEL_FAIL("blocks that nobody holds are left");
}

/* For a sequence that only grew, to the byte. */
static void estimate(cache_machine *x, const model_sequence *s) {
    kvant_bytes least = {.struct_size = sizeof least}, most = least, got = least;
    x->name = "estimate";
    model_check_bytes(x->m, s);
    if (!x->grew[s - x->m->sequences] || s->steps || s->salt != 0) return;
    for (uint32_t i = 0; i < s->now.block_count; i++)
        if (s->now.blocks[i]->pins > 1) return; /* another one's window may keep what this one's released */
    if (kvant_cache_estimate(x->m->plan, s->now.length, &least, &most, &x->diag) != KVANT_OK ||
        kvant_sequence_bytes(s->real, &got) != KVANT_OK)
        MODEL_FAIL("estimate: %s", x->diag.message);
    if (x->m->one_size && (memcmp(&least, &most, sizeof least) != 0 || memcmp(&least, &got, sizeof got) != 0))
        MODEL_FAIL("%llu tokens: estimates of %llu and %llu bytes (raw %llu, tables %llu), and it has %llu "
                   "(raw %llu, "
                   "tables %llu)",
                   (unsigned long long)s->now.length, (unsigned long long)least.total,
                   (unsigned long long)most.total, (unsigned long long)least.raw,
                   (unsigned long long)least.tables, (unsigned long long)got.total,
                   (unsigned long long)got.raw, (unsigned long long)got.tables);
    if (got.total < least.total || got.total > most.total || got.raw != least.raw)
        MODEL_FAIL("%llu bytes, and the estimate is %llu to %llu", (unsigned long long)got.total,
                   (unsigned long long)least.total, (unsigned long long)most.total);
}

void machine_read(cache_machine *x, model_sequence *s) {
    static const uint32_t dtypes[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};
    uint32_t length = (uint32_t)s->now.length, first = machine_draw(x, length + 2);
    uint32_t count = 1 + machine_draw(x, 40);
    if (first + count > length && first < length && !machine_chance(x, 8)) count = length - first;
    x->name = "read";
    model_check_read(x->m, s, machine_draw(x, MODEL_LAYERS), machine_draw(x, 2), first, count,
                     dtypes[machine_draw(x, 3)]);
    x->counts.reads++;
}

/* ---- The choice ---------------------------------------------------------------------------------------- */

static void reset_or_free(cache_machine *x, model_sequence *s, bool frees) {
    x->name = frees ? "free" : "reset";
    if (frees)
        kvant_sequence_free(s->real);
    else
        kvant_sequence_reset(s->real);
    if (frees)
        model_free(x->m, s);
    else
        model_reset(x->m, s);
    x->grew[s - x->m->sequences] = false;
}

static uint32_t open_steps(const cache_machine *x) {
    uint32_t open = 0;
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++)
        open += x->m->sequences[i].real != NULL && x->m->sequences[i].steps;
    return open;
}

static model_sequence *draw_stepping(cache_machine *x) {
    uint32_t first = machine_draw(x, MODEL_SEQUENCES);
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        model_sequence *s = &x->m->sequences[(first + i) % MODEL_SEQUENCES];
        if (s->real != NULL && s->steps) return s;
    }
    return NULL;
}

static void on_sequence(cache_machine *x, model_sequence *s) {
    uint32_t choice = machine_draw(x, 64);
    bool full = s->now.length + 8 > MODEL_TOKENS;
    if (choice < 26 && !full) {
        if (!s->steps && open_steps(x) < MACHINE_OPEN_MAX) machine_begin(x, s);
    } else if (choice < 34) {
        machine_read(x, s);
    } else if (choice < 42) {
        machine_cache_attend(x, s);
    } else if (choice < 48) {
        truncate_one(x, s);
    } else if (choice < 51) {
        drop(x, s);
    } else if (choice < 57) {
        fork_one(x, s);
    } else if (choice < 59) {
        estimate(x, s);
    } else if (choice < 60 || full) {
        reset_or_free(x, s, false);
    } else {
        reset_or_free(x, s, true);
    }
}

static void on_cache(cache_machine *x) {
    switch (machine_draw(x, 12)) {
    case 0:
    case 1:
    case 2:
    case 3:
        create(x);
        break;
    case 4:
    case 5:
    case 6:
        lookup(x);
        break;
    case 7:
    case 8:
        create_from(x);
        break;
    case 9:
        release(x);
        break;
    case 10:
        reorder(x);
        break;
    default:
        evict(x);
    }
}

void cache_machine_operation(cache_machine *x) {
    model_sequence *stepping = draw_stepping(x), *s = NULL;
    running = x;
    x->counts.operations++;
    x->detail[0] = '\0';
    if (stepping != NULL && machine_draw(x, 4) != 0) {
        machine_step(x, stepping);
        s = stepping;
    } else if (machine_draw(x, 4) == 0 || (s = draw_slot(x, true)) == NULL) {
        on_cache(x);
    } else {
        on_sequence(x, s);
    }
    if (s != NULL && s->real != NULL) model_check_sequence(x->m, s);
    for (uint32_t i = 0; i < MODEL_SEQUENCES && x->ended;
         i++) /* lists keep the room of a step that was lost */
        if (!x->m->sequences[i].steps) x->grew[i] = false;
    x->ended = false;
    model_check_cache(x->m);
}
