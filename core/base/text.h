/* A string that grows, and a few questions about strings.
 *
 * kvant_text remembers a failed allocation (`failed`) and then ignores what is appended, so that a caller
 * checks once at the end. */
#ifndef KVANT_BASE_TEXT_H
#define KVANT_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct kvant_text {
    char *data; /* NUL-terminated once something was appended; NULL before */
    size_t size;
    size_t capacity;
    bool failed;
} kvant_text;

void kvant_text_append(kvant_text *text, const char *bytes, size_t size);
void kvant_text_puts(kvant_text *text, const char *string);
__attribute__((format(printf, 2, 3))) void kvant_text_printf(kvant_text *text, const char *format, ...);
void kvant_text_free(kvant_text *text);

/* The candidate nearest to `word` by edit distance, or NULL if none is close enough to be worth a hint. */
const char *kvant_nearest(const char *word, const char *const *candidates, size_t count);

/* True for [a-z][a-z0-9_]{0,31}: names of codecs, plugins and parameters. */
bool kvant_is_name(const char *word);

/* 2*size hex digits and a NUL. */
void kvant_hex(const unsigned char *bytes, size_t size, char *out);

#endif
