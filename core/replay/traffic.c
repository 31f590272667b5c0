/* See traffic.h. Every text is a range of ids that nobody else has; what agents share, they share by name. */
#include "replay/traffic.h"

#include "replay/replay_rows.h"
#include "replay/trace_write.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/tags.h>

#include <stdlib.h>

enum { PIECES = 4096, NAME = 32 };

/* Where an agent's sequence is. */
enum { AWAY, LIVE, SAVED };

typedef struct agent {
    trace_piece *pieces; /* of its conversation: system and tools, then ranges */
    uint32_t count;
    uint64_t tokens;
    uint32_t number, turns;
    uint32_t state; /* AWAY, ... */
    bool keeps;
    char name[NAME], system[NAME], tools[NAME];
} agent;

typedef struct traffic_run {
    const kvant_traffic *t;
    trace_writer writer;
    uint64_t random, next_id;
    agent *agents;
    uint32_t forks; /* made so far, to name them */
} traffic_run;

/* ---- Chance -------------------------------------------------------------------------------------------- */

static uint32_t below(traffic_run *r, uint32_t n) {
    r->random = kvant_replay_mix(r->random, 3);
    return (uint32_t)((r->random >> 32) * n >> 32);
}

static bool chance(traffic_run *r, uint32_t percent) {
    return below(r, 100) < percent;
}

/* From half to one and a half times the mean, at least 1. */
static uint32_t about(traffic_run *r, uint32_t mean) {
    uint32_t n = mean / 2 + below(r, mean + 1);
    return n > 0 ? n : 1;
}

static trace_piece new_text(traffic_run *r, uint32_t mean, uint32_t role, bool generated) {
    trace_piece p = {.first = r->next_id, .count = about(r, mean), .role = role, .generated = generated};
    r->next_id += p.count;
    return p;
}

/* ---- Conversations ------------------------------------------------------------------------------------- */

static void begin_conversation(const traffic_run *r, agent *a) {
    a->pieces[0] = (trace_piece){.segment = a->system};
    a->pieces[1] = (trace_piece){.segment = a->tools};
    a->count = 2;
    a->tokens = (uint64_t)r->t->system + r->t->tools;
}

static void say(agent *a, trace_piece piece) {
    a->pieces[a->count++] = piece;
    a->tokens += piece.count;
}

/* Forgets the last tokens, which are no segment's. Returns how many it could. */
static uint32_t unsay(agent *a, uint32_t tokens) {
    uint32_t left = tokens;
    while (left > 0 && a->count > 2) {
        trace_piece *last = &a->pieces[a->count - 1];
        uint32_t n = left < last->count ? left : last->count;
        last->count -= n;
        left -= n;
        if (last->count == 0) a->count--;
    }
    a->tokens -= tokens - left;
    return tokens - left;
}

static void write_tenant(traffic_run *r, const agent *a) {
    if (r->t->tenants > 1)
        kvant_text_printf(&r->writer.line, ", \"tenant\": \"tenant-%u\"", a->number % r->t->tenants);
}

static void write_draft(traffic_run *r) {
    if (!chance(r, r->t->draft)) return;
    uint32_t propose = 1 + below(r, 8);
    kvant_text_printf(&r->writer.line, ", \"draft\": {\"propose\": %u, \"accept\": [", propose);
    for (uint32_t i = 0, n = 1 + below(r, 6); i < n; i++)
        kvant_text_printf(&r->writer.line, "%s%u", i > 0 ? ", " : "", below(r, propose + 1));
    kvant_text_puts(&r->writer.line, "]}");
}

static void write_simple(traffic_run *r, const char *op, const char *name) {
    trace_write_op(&r->writer, op, name);
    trace_write_end(&r->writer);
}

/* One request: what is new comes in, what the model says goes out. */
static void request(traffic_run *r, agent *a, const trace_piece *in, const trace_piece *out,
                    uint32_t out_count) {
    trace_writer *w = &r->writer;
    say(a, *in);
    trace_write_op(w, a->state == SAVED ? "load" : "request", a->name);
    if (a->state == LIVE) {
        trace_write_text(w, "text", in, 1);
    } else {
        write_tenant(r, a);
        trace_write_text(w, "text", a->pieces, a->count);
    }
    trace_write_text(w, "generate", out, out_count);
    write_draft(r);
    trace_write_end(w);
    for (uint32_t i = 0; i < out_count; i++) say(a, out[i]);
    a->state = LIVE;
    if (a->keeps) return;
    write_simple(r, "end", a->name);
    a->state = AWAY;
}

/* ---- What else happens --------------------------------------------------------------------------------- */

/* Two more answers to the same question; the last one may become the first's. */
static void sample(traffic_run *r, const agent *a) {
    char names[2][NAME + 16];
    for (int i = 0; i < 2; i++) {
        trace_piece out = new_text(r, r->t->answer, KVANT_TAG_ASSISTANT, true);
        (void)snprintf(names[i], sizeof names[i], "%s/%u", a->name, r->forks++);
        trace_write_op(&r->writer, "fork", names[i]);
        kvant_text_printf(&r->writer.line, ", \"of\": \"%s\"", i == 0 ? a->name : names[0]);
        trace_write_end(&r->writer);
        trace_write_op(&r->writer, "request", names[i]);
        trace_write_text(&r->writer, "generate", &out, 1);
        write_draft(r);
        trace_write_end(&r->writer);
    }
    if (chance(r, 50)) {
        trace_write_op(&r->writer, "reorder", NULL);
        kvant_text_printf(&r->writer.line, ", \"sequences\": [\"%s\", \"%s\"], \"sources\": [%u, %u]",
                          names[0], names[1], below(r, 2), below(r, 2));
        trace_write_end(&r->writer);
    }
    for (int i = 0; i < 2; i++) write_simple(r, "end", names[i]);
}

/* The last tokens are taken back, some or many, and others come. */
static void roll_back(traffic_run *r, agent *a) {
    uint32_t tokens = unsay(a, about(r, r->t->answer * (chance(r, 50) ? 1 : 4)));
    if (tokens == 0) return;
    trace_piece out = new_text(r, r->t->answer, KVANT_TAG_ASSISTANT, true);
    trace_write_op(&r->writer, "rollback", a->name);
    kvant_text_printf(&r->writer.line, ", \"tokens\": %u", tokens);
    trace_write_end(&r->writer);
    trace_write_op(&r->writer, "request", a->name);
    trace_write_text(&r->writer, "generate", &out, 1);
    trace_write_end(&r->writer);
    say(a, out);
}

/* A sequence that goes on from its first few tokens, or from none. */
static void start_over(traffic_run *r, const agent *a) {
    char name[NAME + 16];
    trace_piece in = new_text(r, r->t->user, KVANT_TAG_USER, false);
    trace_piece out = new_text(r, r->t->answer, KVANT_TAG_ASSISTANT, true);
    (void)snprintf(name, sizeof name, "%s/%u", a->name, r->forks++);
    trace_write_op(&r->writer, "fork", name);
    kvant_text_printf(&r->writer.line, ", \"of\": \"%s\"", a->name);
    trace_write_end(&r->writer);
    trace_write_op(&r->writer, "rollback", name);
    kvant_text_printf(&r->writer.line, ", \"tokens\": %u",
                      (uint32_t)(a->tokens - below(r, r->t->system < 8 ? r->t->system : 8)));
    trace_write_end(&r->writer);
    trace_write_op(&r->writer, "request", name);
    trace_write_text(&r->writer, "text", &in, 1);
    trace_write_text(&r->writer, "generate", &out, 1);
    trace_write_end(&r->writer);
    write_simple(r, "end", name);
}

/* It goes, and will come back with the whole conversation: which is not what its sequence had any more. */
static void leave(traffic_run *r, agent *a) {
    write_simple(r, "end", a->name);
    a->state = AWAY;
}

/* Some tokens are pruned: in the middle, or near the end, and then some of them are taken back. */
static void prune(traffic_run *r, agent *a) {
    uint32_t count = about(r, r->t->observation);
    uint64_t behind = (uint64_t)r->t->system / 2;
    bool last = chance(r, 50);
    if (a->tokens < behind + count + 1) return;
    uint64_t most = a->tokens - behind - count, first = behind + (last ? most : below(r, (uint32_t)most));
    trace_write_op(&r->writer, "drop", a->name);
    kvant_text_printf(&r->writer.line, ", \"first\": %llu, \"count\": %u", (unsigned long long)first, count);
    trace_write_end(&r->writer);
    if (last) roll_back(r, a);
    trace_piece out = new_text(r, r->t->answer, KVANT_TAG_ASSISTANT, true);
    trace_write_op(&r->writer, "request", a->name);
    trace_write_text(&r->writer, "generate", &out, 1);
    trace_write_end(&r->writer);
    say(a, out);
    if (chance(r, 50)) leave(r, a);
}

static void save(traffic_run *r, agent *a) {
    write_simple(r, "save", a->name);
    if (!chance(r, 50)) return;
    write_simple(r, "end", a->name);
    a->state = SAVED;
}

static void restart(traffic_run *r) {
    for (uint32_t i = 0; i < r->t->agents; i++) {
        agent *a = &r->agents[i];
        bool saves = a->state == LIVE && chance(r, 70);
        if (saves) write_simple(r, "save", a->name);
        if (a->state == LIVE) a->state = saves ? SAVED : AWAY;
    }
    write_simple(r, "restart", NULL);
}

static void happen(traffic_run *r, agent *a) {
    const kvant_traffic *t = r->t;
    if (a->state == LIVE && chance(r, t->fork)) sample(r, a);
    if (a->state == LIVE && chance(r, t->rollback)) start_over(r, a);
    if (a->state == LIVE && chance(r, t->rollback)) roll_back(r, a);
    if (a->state == LIVE && chance(r, t->drop)) prune(r, a);
    if (a->state == LIVE && chance(r, t->save)) save(r, a);
    if (chance(r, t->evict)) {
        trace_write_op(&r->writer, "evict", NULL);
        kvant_text_printf(&r->writer.line, ", \"fraction\": 0.%02u", 10 + below(r, 90));
        trace_write_end(&r->writer);
    }
    if (chance(r, t->restart)) restart(r);
}

/* ---- Agents -------------------------------------------------------------------------------------------- */

static void turn(traffic_run *r, agent *a) {
    const kvant_traffic *t = r->t;
    uint32_t calls = below(r, t->calls + 1);
    if (a->tokens > t->context || a->count + 4 * (t->calls + 2) > PIECES) {
        if (a->state == LIVE) write_simple(r, "end", a->name);
        a->state = AWAY;
        begin_conversation(r, a);
    }
    for (uint32_t i = 0; i <= calls; i++) {
        trace_piece in = i == 0 ? new_text(r, t->user, KVANT_TAG_USER, false)
                                : new_text(r, t->observation, KVANT_TAG_OBS, false);
        trace_piece out[2] = {new_text(r, t->answer, KVANT_TAG_REASONING, true)};
        out[1] = i < calls ? new_text(r, t->answer / 3, KVANT_TAG_TOOL_CALL, true)
                           : new_text(r, t->answer, KVANT_TAG_ASSISTANT, true);
        request(r, a, &in, out, 2);
    }
    happen(r, a);
    if (--a->turns > 0 || a->state != LIVE) return;
    write_simple(r, "end", a->name);
    a->state = AWAY;
}

/* Segments that agents of a kind share, of exactly the mean's tokens: positions are counted with them. */
static void write_segments(traffic_run *r) {
    for (uint32_t k = 0; k < r->t->kinds; k++) {
        char name[NAME];
        trace_piece system = {.first = r->next_id, .count = r->t->system, .role = KVANT_TAG_INST};
        trace_piece tools = {
            .first = r->next_id + r->t->system, .count = r->t->tools, .role = KVANT_TAG_INST};
        r->next_id += (uint64_t)r->t->system + r->t->tools;
        (void)snprintf(name, sizeof name, "system-%u", k);
        trace_write_segment(&r->writer, name, &system, 1);
        (void)snprintf(name, sizeof name, "tools-%u", k);
        trace_write_segment(&r->writer, name, &tools, 1);
    }
}

static bool make_agents(traffic_run *r) {
    r->agents = calloc(r->t->agents, sizeof *r->agents);
    for (uint32_t i = 0; r->agents != NULL && i < r->t->agents; i++) {
        agent *a = &r->agents[i];
        a->number = i;
        a->turns = r->t->turns;
        a->keeps = chance(r, r->t->keep);
        a->pieces = calloc(PIECES + 8, sizeof *a->pieces);
        (void)snprintf(a->name, sizeof a->name, "agent-%u", i);
        (void)snprintf(a->system, sizeof a->system, "system-%u", i % r->t->kinds);
        (void)snprintf(a->tools, sizeof a->tools, "tools-%u", i % r->t->kinds);
        if (a->pieces == NULL) return false;
        begin_conversation(r, a);
    }
    return r->agents != NULL;
}

static void take_turns(traffic_run *r) {
    uint32_t left = r->t->agents;
    while (left > 0) {
        uint32_t i = below(r, r->t->agents);
        while (r->agents[i].turns == 0) i = (i + 1) % r->t->agents;
        turn(r, &r->agents[i]);
        left -= r->agents[i].turns == 0;
    }
}

kvant_status kvant_traffic_write(const kvant_traffic *t, const char *file, kvant_diag *diag) {
    traffic_run r = {.t = t, .random = kvant_replay_mix(t->seed, 4), .next_id = 1000};
    char note[128];
    (void)snprintf(note, sizeof note, "made by kvant replay --generate agents=%u,turns=%u,seed=%u", t->agents,
                   t->turns, t->seed);
    kvant_status status = trace_writer_open(file, note, &r.writer, diag);
    if (status != KVANT_OK) return status;
    if (make_agents(&r)) {
        write_segments(&r);
        take_turns(&r);
    } else {
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    for (uint32_t i = 0; r.agents != NULL && i < t->agents; i++) free(r.agents[i].pieces);
    free(r.agents);
    return trace_writer_close(&r.writer, status, diag);
}
