/* Threads that live for one call and run its loops one after another: starting them for each loop would cost
 * as much as many loops take. Results do not depend on how many there are. */
#ifndef KVANT_ATTEND_ATTEND_TEAM_H
#define KVANT_ATTEND_ATTEND_TEAM_H

#include <kvant/kvant.h>

typedef struct attend_team attend_team;

/* `threads` of them, the caller's included; fewer where no more can be started, which takes longer. NULL =
 * the caller's alone. */
attend_team *attend_team_start(uint32_t threads);
void attend_team_stop(attend_team *team);

/* A kvant_loop whose context is the team. */
void attend_team_loop(void *team, uint32_t count, uint32_t threads, kvant_loop_body *body, void *argument);

#endif
