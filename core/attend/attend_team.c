/* See attend_team.h. Workers sleep between loops; a loop is over when all of them have found nothing left to
 * do. */
#include "attend/attend_team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct attend_worker {
    attend_team *team;
    uint32_t thread;
    pthread_t handle;
} attend_worker;

struct attend_team {
    pthread_mutex_t lock; /* guards what follows, but for `next` */
    pthread_cond_t begun, over;
    uint64_t loops; /* begun so far */
    uint32_t busy;  /* workers that have not finished the last one */
    bool stops;
    kvant_loop_body *body;
    void *argument;
    uint32_t count;
    atomic_uint next;
    uint32_t started;
    attend_worker workers[];
};

static void take_indices(attend_team *team, kvant_loop_body *body, void *argument, uint32_t count,
                         uint32_t thread) {
    for (;;) {
        uint32_t index = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);
        if (index >= count) return;
        body(argument, index, thread);
    }
}

static void *work(void *context) {
    attend_worker *worker = context;
    attend_team *team = worker->team;
    uint64_t seen = 0;
    pthread_mutex_lock(&team->lock);
    for (;;) {
        while (team->loops == seen && !team->stops) pthread_cond_wait(&team->begun, &team->lock);
        if (team->stops) break;
        seen = team->loops;
        kvant_loop_body *body = team->body;
        void *argument = team->argument;
        uint32_t count = team->count;
        pthread_mutex_unlock(&team->lock);
        take_indices(team, body, argument, count, worker->thread);
        pthread_mutex_lock(&team->lock);
        if (--team->busy == 0) pthread_cond_signal(&team->over);
    }
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

attend_team *attend_team_start(uint32_t threads) {
    if (threads <= 1) return NULL;
    attend_team *team = calloc(1, sizeof *team + (threads - 1) * sizeof team->workers[0]);
    if (team == NULL) return NULL;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begun, NULL);
    pthread_cond_init(&team->over, NULL);
    atomic_init(&team->next, 0);
    for (; team->started < threads - 1; team->started++) {
        attend_worker *worker = &team->workers[team->started];
        *worker = (attend_worker){.team = team, .thread = team->started + 1};
        if (pthread_create(&worker->handle, NULL, work, worker) != 0) break;
    }
    return team;
}

void attend_team_stop(attend_team *team) {
    if (team == NULL) return;
    pthread_mutex_lock(&team->lock);
    team->stops = true;
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->lock);
    for (uint32_t i = 0; i < team->started; i++) pthread_join(team->workers[i].handle, NULL);
    pthread_cond_destroy(&team->over);
    pthread_cond_destroy(&team->begun);
    pthread_mutex_destroy(&team->lock);
    free(team);
}

void attend_team_loop(void *context, uint32_t count, uint32_t threads, kvant_loop_body *body,
                      void *argument) {
    attend_team *team = context;
    (void)threads; /* as many as the team was started with, or fewer */
    pthread_mutex_lock(&team->lock);
    team->body = body;
    team->argument = argument;
    team->count = count;
    team->busy = team->started;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    team->loops++;
    pthread_cond_broadcast(&team->begun);
    pthread_mutex_unlock(&team->lock);
    take_indices(team, body, argument, count, 0);
    pthread_mutex_lock(&team->lock);
    while (team->busy != 0) pthread_cond_wait(&team->over, &team->lock);
    pthread_mutex_unlock(&team->lock);
}
