/* Traces made up from a seed: agents that share system prompts and tools, grow conversations with tool
 * calls, come back with the whole conversation or stay, sample, speculate, take back, prune, are saved, and
 * live through evictions and restarts. */
#ifndef KVANT_REPLAY_TRAFFIC_H
#define KVANT_REPLAY_TRAFFIC_H

#include <kvant/types.h>

/* Numbers of tokens are means; per cent are of turns. */
typedef struct kvant_traffic {
    uint32_t agents, turns, seed, tenants;
    uint32_t kinds; /* of agents: each has a system prompt and tools of its own */
    uint32_t system, tools, user, answer, observation;
    uint32_t calls;   /* of tools in a turn, at most */
    uint32_t context; /* an agent whose conversation has more tokens begins a new one */
    uint32_t keep;    /* per cent of the agents that stay in memory between requests */
    uint32_t fork, draft, rollback, drop, evict, save, restart; /* per cent */
} kvant_traffic;

/* "agents=8,turns=12,seed=1" over the defaults. UNKNOWN_NAME, DUPLICATE, VALUE, SYNTAX, naming the part. */
kvant_status kvant_traffic_parse(const char *text, kvant_traffic *traffic, kvant_diag *diag);

/* Writes the trace; same numbers, same bytes. */
kvant_status kvant_traffic_write(const kvant_traffic *traffic, const char *file, kvant_diag *diag);

#endif
