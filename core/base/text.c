/* See text.h. */
#include "base/text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(kvant_text *text, size_t more) {
    if (text->failed) return false;
    if (more > SIZE_MAX / 2 - text->size - 1) {
        text->failed = true;
        return false;
    }
    size_t need = text->size + more + 1;
    if (need <= text->capacity) return true;
    size_t capacity = text->capacity ? text->capacity : 128;
    while (capacity < need) capacity *= 2;
    char *data = realloc(text->data, capacity);
    if (data == NULL) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void kvant_text_append(kvant_text *text, const char *bytes, size_t size) {
    if (!reserve(text, size)) return;
    if (size) memcpy(text->data + text->size, bytes, size);
    text->size += size;
    text->data[text->size] = '\0';
}

void kvant_text_puts(kvant_text *text, const char *string) {
    kvant_text_append(text, string, strlen(string));
}

void kvant_text_printf(kvant_text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (size < 0 || !reserve(text, (size_t)size)) return;
    va_start(arguments, format);
    (void)vsnprintf(text->data + text->size, (size_t)size + 1, format, arguments);
    va_end(arguments);
    text->size += (size_t)size;
}

void kvant_text_free(kvant_text *text) {
    free(text->data);
    *text = (kvant_text){0};
}

/* Levenshtein distance, with words cut at 63 characters: names are shorter. */
static unsigned distance(const char *a, const char *b) {
    unsigned row[64];
    size_t n = strnlen(b, 63);
    for (size_t j = 0; j <= n; j++) row[j] = (unsigned)j;
    for (size_t i = 0; a[i] != '\0' && i < 63; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i + 1;
        for (size_t j = 0; j < n; j++) {
            unsigned change = diagonal + (a[i] != b[j]);
            unsigned gap = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            diagonal = row[j + 1];
            row[j + 1] = change < gap ? change : gap;
        }
    }
    return row[n];
}

const char *kvant_nearest(const char *word, const char *const *candidates, size_t count) {
    const char *best = NULL;
    unsigned least = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned d = distance(word, candidates[i]);
        if (best == NULL || d < least) {
            best = candidates[i];
            least = d;
        }
    }
    /* A hint that shares less than half of its letters with the word misleads. */
    return best != NULL && least * 2 <= strlen(word) + 1 && least < 5 ? best : NULL;
}

bool kvant_is_name(const char *word) {
    size_t size = strnlen(word, 33);
    if (size == 0 || size > 32 || word[0] < 'a' || word[0] > 'z') return false;
    for (size_t i = 0; i < size; i++) {
        char c = word[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
    }
    return true;
}

void kvant_hex(const unsigned char *bytes, size_t size, char *out) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < size; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * size] = '\0';
}
