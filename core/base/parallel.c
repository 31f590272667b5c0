/* See parallel.h. Threads are created per loop: its jobs take milliseconds and more. */
#include "base/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct loop {
    kvant_status (*body)(void *context, uint32_t index, uint32_t thread);
    void *context;
    uint32_t count;
    atomic_uint next;
    pthread_mutex_t lock; /* guards the two below */
    uint32_t failed_index;
    kvant_status status;
} loop;

typedef struct worker {
    loop *loop;
    uint32_t thread;
    pthread_t handle;
} worker;

static void run(loop *l, uint32_t thread) {
    for (;;) {
        uint32_t index = atomic_fetch_add(&l->next, 1);
        if (index >= l->count) return;
        kvant_status status = l->body(l->context, index, thread);
        if (status == KVANT_OK) continue;
        pthread_mutex_lock(&l->lock);
        if (l->status == KVANT_OK || index < l->failed_index) {
            l->failed_index = index;
            l->status = status;
        }
        pthread_mutex_unlock(&l->lock);
        atomic_store(&l->next, l->count);
        return;
    }
}

static void *start(void *argument) {
    worker *w = argument;
    run(w->loop, w->thread);
    return NULL;
}

uint32_t kvant_parallel_threads(uint32_t threads) {
    if (threads > 0) return threads;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

kvant_status kvant_parallel_for(uint32_t threads, uint32_t count,
                                kvant_status (*body)(void *context, uint32_t index, uint32_t thread),
                                void *context) {
    threads = kvant_parallel_threads(threads);
    if (threads > count) threads = count;
    loop l = {.body = body, .context = context, .count = count, .status = KVANT_OK};
    atomic_init(&l.next, 0);
    pthread_mutex_init(&l.lock, NULL);
    worker *workers = threads > 1 ? calloc(threads, sizeof *workers) : NULL;
    uint32_t started = 0;
    for (uint32_t i = 1; workers != NULL && i < threads; i++) {
        workers[started] = (worker){.loop = &l, .thread = i};
        /* Fewer threads than asked for give the same results, later. */
        if (pthread_create(&workers[started].handle, NULL, start, &workers[started]) != 0) break;
        started++;
    }
    run(&l, 0);
    for (uint32_t i = 0; i < started; i++) pthread_join(workers[i].handle, NULL);
    free(workers);
    pthread_mutex_destroy(&l.lock);
    return l.status;
}
