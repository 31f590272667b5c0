/* Whether this build runs under AddressSanitizer or ThreadSanitizer: tests do less then, or leave out what
 * measures memory, since a sanitizer's own is not ours. */
#ifndef KVANT_TEST_SANITIZED_H
#define KVANT_TEST_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVANT_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KVANT_TEST_SANITIZED 1
#endif
#endif
#ifndef KVANT_TEST_SANITIZED
#define KVANT_TEST_SANITIZED 0
#endif

#endif
