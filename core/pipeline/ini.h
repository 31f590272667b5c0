/* INI text -> sections and entries, each with its line.
 *
 * inih parses; what it would do silently is refused here, before it sees the line:
 *
 *     line longer than 197 characters            inih hands on the first part of the value
 *     section or key longer than 49 characters   inih cuts the name
 *     `[layers 0-1` without `]`                  inih files the keys that follow under the section before
 *     text after `]`                             inih ignores it
 *     key before any section                     inih hands it on with section ""
 *     a line that begins with a blank            inih takes it for more of the value above
 *     `key : value`                              inih takes : for =
 *     ` #` behind a value                        inih takes it for a part of the value
 *     the same key or section twice              inih hands on both
 *
 * So are control characters and text that is not UTF-8. A byte order mark, CR LF and a last line without
 * newline are fine. What sections and keys mean is the caller's.
 */
#ifndef KVANT_PIPELINE_INI_H
#define KVANT_PIPELINE_INI_H

#include <kvant/types.h>

enum {
    KVANT_INI_LINE_MAX = 197, /* characters (bytes) of a line without its end */
    KVANT_INI_NAME_MAX = 49,  /* of a section, between the brackets, or of a key */
    KVANT_INI_SIZE_MAX = 1 << 20,
    KVANT_INI_SECTIONS_MAX = 4096
};

/* `[codec k2]`: kind "codec", title "k2". Blanks around both are gone, runs of them inside a title are
 * one. */
typedef struct kvant_ini_section {
    const char *kind;
    const char *title; /* "" = the kind stands alone */
    uint32_t first;    /* its entries: [first, first + count) */
    uint32_t count;
    int32_t line;
} kvant_ini_section;

typedef struct kvant_ini_entry {
    const char *key;
    const char *value; /* not empty; no blanks around it */
    int32_t line;
} kvant_ini_entry;

typedef struct kvant_ini {
    const char *file; /* as messages name it */
    const kvant_ini_section *sections;
    const kvant_ini_entry *entries;
    uint32_t section_count;
    uint32_t entry_count;
} kvant_ini;

/* Reads `size` bytes of text; `name` stands for the file in messages. On failure the diag has name, line,
 * and what is to be done. */
kvant_status kvant_ini_parse(const char *text, size_t size, const char *name, kvant_ini **ini,
                             kvant_diag *diag);
void kvant_ini_free(kvant_ini *ini);

/* Fills the diag with file and line; `key` may be "". Returns status. */
__attribute__((format(printf, 6, 7))) kvant_status kvant_ini_fail(const kvant_ini *ini, kvant_diag *diag,
                                                                  kvant_status status, int32_t line,
                                                                  const char *key, const char *format, ...);

#endif
