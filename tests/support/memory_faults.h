/* Allocations that fail. Defines malloc, calloc, realloc and aligned_alloc in front of those of the C library
 * or of a sanitizer, so it is included in one file of a test program, and only there.
 *
 *     for (uint64_t nth = 0; !done; nth++) {
 *         memory_faults_start(nth, false);           the nth allocation from now on fails, from 0
 *         status = call_under_test();
 *         done = memory_faults_stop() <= nth;        how many were asked for: none failed
 *         ... status is MEMORY and nothing has changed, or done ...
 *     }
 */
#ifndef KVANT_TEST_MEMORY_FAULTS_H
#define KVANT_TEST_MEMORY_FAULTS_H

/* 0 = this sanitizer does not let its allocator be stood in front of, and nothing ever fails: skip(). */
#define MEMORY_FAULTS_WORK 1
#if defined(__SANITIZE_THREAD__)
#undef MEMORY_FAULTS_WORK
#define MEMORY_FAULTS_WORK 0
#elif defined(__clang__)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef MEMORY_FAULTS_WORK
#define MEMORY_FAULTS_WORK 0
#endif
#endif

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Atomic bool memory_faults_on;
static _Atomic bool memory_faults_for_good;
static _Atomic uint64_t memory_faults_nth;
static _Atomic uint64_t memory_faults_asked;

/* for_good: all after the nth fail too. */
static inline void memory_faults_start(uint64_t nth, bool for_good) {
    memory_faults_nth = nth;
    memory_faults_for_good = for_good;
    memory_faults_asked = 0;
    memory_faults_on = true;
}

/* How many allocations were asked for since the start, on all threads. */
static inline uint64_t memory_faults_stop(void) {
    memory_faults_on = false;
    return memory_faults_asked;
}

static inline bool memory_faults_now(void) {
    if (!memory_faults_on) return false;
    uint64_t number = memory_faults_asked++;
    bool fails = memory_faults_for_good ? number >= memory_faults_nth : number == memory_faults_nth;
    if (fails) errno = ENOMEM;
    return fails;
}

#if MEMORY_FAULTS_WORK
/* The function of this name that would be called without this file. ISO C has no conversion from dlsym's
 * result. */
#define MEMORY_FAULTS_NEXT(name, next)                                                                       \
    do {                                                                                                     \
        void *found = dlsym(RTLD_NEXT, name);                                                                \
        memcpy(&(next), &found, sizeof found);                                                               \
    } while (0)

void *malloc(size_t size) {
    static void *(*next)(size_t);
    if (next == NULL) MEMORY_FAULTS_NEXT("malloc", next);
    return memory_faults_now() ? NULL : next(size);
}

void *calloc(size_t count, size_t size) {
    static void *(*next)(size_t, size_t);
    if (next == NULL) MEMORY_FAULTS_NEXT("calloc", next);
    return memory_faults_now() ? NULL : next(count, size);
}

void *realloc(void *old, size_t size) {
    static void *(*next)(void *, size_t);
    if (next == NULL) MEMORY_FAULTS_NEXT("realloc", next);
    return memory_faults_now() ? NULL : next(old, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    static void *(*next)(size_t, size_t);
    if (next == NULL) MEMORY_FAULTS_NEXT("aligned_alloc", next);
    return memory_faults_now() ? NULL : next(alignment, size);
}

#endif

#endif
