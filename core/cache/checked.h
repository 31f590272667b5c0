/* Checks of the library on itself: where they are on, assert works and memory that was given back is filled
 * with 0xDB (under AddressSanitizer it cannot be touched at all), so that whoever still uses it is found: by
 * a wrong result, by ThreadSanitizer as a race, or at once. On in debug builds and under these two
 * sanitizers. Include it after all else. */
#ifndef KVANT_CACHE_CHECKED_H
#define KVANT_CACHE_CHECKED_H

#if defined(__has_feature) /* clang */
#define KVANT_SANITIZES(what) __has_feature(what)
#else
#define KVANT_SANITIZES(what) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || KVANT_SANITIZES(address_sanitizer)
#define KVANT_ASAN 1
#else
#define KVANT_ASAN 0
#endif
#if KVANT_ASAN || defined(__SANITIZE_THREAD__) || KVANT_SANITIZES(thread_sanitizer)
#undef NDEBUG /* these builds optimise, and assert nevertheless */
#endif
#if defined(NDEBUG)
#define KVANT_CHECKED 0
#else
#define KVANT_CHECKED 1
#endif
#include <assert.h>

#if KVANT_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size)   ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

enum { KVANT_POISON = 0xDB };

#endif
