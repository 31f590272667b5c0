/* See ini.h. ini_parse_stream() asks our reader for one line at a time and calls our handler for a line
 * with a key, so the reader's line counter is the handler's line. The reader checks a line whole, then
 * hands inih a plain form of it (no comment, no blanks at the ends); the handler makes sure that both read
 * the same. */
#include "pipeline/ini.h"

#include <ini.h>
#include <kvant/kit/diag.h>

#include "pipeline/arena.h"

#include <stdbool.h>
#include <stdlib.h>

enum { ENTRIES_MAX = 65536, SECTION_ENTRIES_MAX = 4096 };

/* What kvant_ini_parse returns; the public part comes first. */
typedef struct ini_store {
    kvant_ini ini;
    kvant_arena arena;
    kvant_ini_section *sections;
    kvant_ini_entry *entries;
    size_t section_capacity;
    size_t entry_capacity;
} ini_store;

typedef struct ini_reader_state {
    ini_store *store;
    kvant_diag *diag;
    kvant_status status; /* the first error; ends the reading */
    const char *text;
    size_t size;
    size_t at;
    int32_t line;
    char key[KVANT_INI_NAME_MAX + 1]; /* of this line */
    char value[KVANT_INI_LINE_MAX + 1];
} ini_reader_state;

/* A piece of a line. */
typedef struct span {
    const char *at;
    size_t size;
} span;

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

static bool is_key_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("_.*+-", c) != NULL);
}

static span trim(span s) {
    while (s.size > 0 && is_blank(s.at[0])) s = (span){s.at + 1, s.size - 1};
    while (s.size > 0 && is_blank(s.at[s.size - 1])) s.size--;
    return s;
}

kvant_status kvant_ini_fail(const kvant_ini *ini, kvant_diag *diag, kvant_status status, int32_t line,
                            const char *key, const char *format, ...) {
    char message[sizeof diag->message];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    (void)kvant_fail(diag, status, key, "%s", message);
    if (diag == NULL || diag->struct_size < sizeof *diag) return status;
    (void)snprintf(diag->file, sizeof diag->file, "%s", ini->file);
    diag->line = line;
    return status;
}

#define FAIL(state, status_, key_, ...)                                                                      \
    ((state)->status =                                                                                       \
         kvant_ini_fail(&(state)->store->ini, (state)->diag, (status_), (state)->line, (key_), __VA_ARGS__))

/* Room for one more element behind `count`; false without memory. */
static bool grow(void **array, size_t *capacity, size_t count, size_t size) {
    if (count < *capacity) return true;
    size_t wanted = *capacity != 0 ? 2 * *capacity : 16;
    void *bigger = realloc(*array, wanted * size);
    if (bigger == NULL) return false;
    *array = bigger;
    *capacity = wanted;
    return true;
}

/* Bytes of the UTF-8 character at s, 0 if there is none. */
static size_t utf8_character(const unsigned char *s, size_t size) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t bytes = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : 4;
    if (bytes == 1) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4 || bytes > size) return 0;
    uint32_t code = s[0] & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (s[i] & 0x3fu);
    }
    return code < least[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : bytes;
}

static kvant_status check_characters(ini_reader_state *state, span line) {
    if (line.size > KVANT_INI_LINE_MAX)
        return FAIL(state, KVANT_ERROR_SYNTAX, "",
                    "the line has %zu characters; at most %d fit (a long list goes on in a further section)",
                    line.size, KVANT_INI_LINE_MAX);
    const unsigned char *s = (const unsigned char *)line.at;
    for (size_t i = 0, bytes; i < line.size; i += bytes) {
        bytes = utf8_character(s + i, line.size - i);
        if (bytes == 0)
            return FAIL(state, KVANT_ERROR_SYNTAX, "", "byte %zu of the line is not UTF-8", i + 1);
        if (s[i] == 0)
            return FAIL(state, KVANT_ERROR_SYNTAX, "", "byte %zu of the line is NUL: not a text", i + 1);
        if ((s[i] < 0x20 && s[i] != '\t') || s[i] == 0x7f)
            return FAIL(state, KVANT_ERROR_SYNTAX, "", "byte %zu of the line is the control character 0x%02x",
                        i + 1, s[i]);
    }
    return KVANT_OK;
}

/* What stands before an inline comment: a `;` with a blank before it. */
static kvant_status cut_comment(ini_reader_state *state, span *text) {
    for (size_t i = 1; i < text->size; i++) {
        if (!is_blank(text->at[i - 1])) continue;
        if (text->at[i] == '#')
            return FAIL(state, KVANT_ERROR_SYNTAX, "",
                        "\" #\" begins no comment here; a comment behind a value begins with \" ;\"");
        if (text->at[i] != ';') continue;
        text->size = i;
        break;
    }
    *text = trim(*text);
    return KVANT_OK;
}

static kvant_status add_section(ini_reader_state *state, span name) {
    ini_store *store = state->store;
    char title[KVANT_INI_NAME_MAX + 1];
    size_t kind = 0, size = 0;
    while (kind < name.size && !is_blank(name.at[kind])) kind++;
    for (size_t i = kind; i < name.size; i++)
        if (!is_blank(name.at[i]) || (size != 0 && !is_blank(name.at[i - 1])))
            title[size++] = is_blank(name.at[i]) ? ' ' : name.at[i];
    title[size] = '\0';
    for (uint32_t i = 0; i < store->ini.section_count; i++) {
        const kvant_ini_section *other = &store->sections[i];
        if (strlen(other->kind) == kind && memcmp(other->kind, name.at, kind) == 0 &&
            strcmp(other->title, title) == 0)
            return FAIL(state, KVANT_ERROR_DUPLICATE, "", "[%.*s] is here and in line %d; join the two",
                        (int)name.size, name.at, (int)other->line);
    }
    if (store->ini.section_count == KVANT_INI_SECTIONS_MAX)
        return FAIL(state, KVANT_ERROR_SYNTAX, "", "more than %d sections", KVANT_INI_SECTIONS_MAX);
    kvant_ini_section section = {.kind = kvant_arena_copy(&store->arena, name.at, kind),
                                 .title = kvant_arena_string(&store->arena, title),
                                 .first = store->ini.entry_count,
                                 .line = state->line};
    void *sections = store->sections;
    bool room = grow(&sections, &store->section_capacity, store->ini.section_count, sizeof section);
    store->sections = sections;
    if (!room || section.kind == NULL || section.title == NULL)
        return FAIL(state, KVANT_ERROR_MEMORY, "", "out of memory");
    store->sections[store->ini.section_count++] = section;
    return KVANT_OK;
}

/* [kind title] and then nothing but a comment. */
static kvant_status read_section(ini_reader_state *state, span line, char *plain, size_t capacity) {
    const char *end = memchr(line.at, ']', line.size);
    if (end == NULL)
        return FAIL(state, KVANT_ERROR_SYNTAX, "", "a section begins with [ and here lacks its ]");
    span name = trim((span){line.at + 1, (size_t)(end - line.at) - 1});
    span rest = {end, line.size - (size_t)(end - line.at)};
    if (cut_comment(state, &rest) != KVANT_OK) return state->status;
    if (rest.size > 1)
        return FAIL(state, KVANT_ERROR_SYNTAX, "",
                    "\"%.*s\" behind the ] of a section; a key goes on its own line", (int)rest.size - 1,
                    rest.at + 1);
    if (name.size == 0) return FAIL(state, KVANT_ERROR_SYNTAX, "", "a section needs a name between [ and ]");
    if (name.size > KVANT_INI_NAME_MAX)
        return FAIL(state, KVANT_ERROR_SYNTAX, "",
                    "the name of the section has %zu characters; at most %d fit (use two sections)",
                    name.size, KVANT_INI_NAME_MAX);
    for (size_t i = 0; i < name.size; i++)
        if (strchr("[;#=", name.at[i]) != NULL)
            return FAIL(state, KVANT_ERROR_SYNTAX, "", "the name of a section holds no \"%c\"", name.at[i]);
    (void)snprintf(plain, capacity, "[%.*s]\n", (int)name.size, name.at);
    return add_section(state, name);
}

/* key = value ; comment */
static kvant_status read_entry(ini_reader_state *state, span line, char *plain, size_t capacity) {
    if (is_blank(line.at[0]))
        return FAIL(
            state, KVANT_ERROR_SYNTAX, "",
            "the line begins with a blank; lines are not continued and keys begin in the first column");
    const char *equals = memchr(line.at, '=', line.size);
    if (equals == NULL)
        return FAIL(state, KVANT_ERROR_SYNTAX, "",
                    "\"%.*s\" lacks a =; a line is key = value, [section] or ; comment", (int)line.size,
                    line.at);
    span key = trim((span){line.at, (size_t)(equals - line.at)});
    span value = {equals, line.size - (size_t)(equals - line.at)};
    if (key.size == 0) return FAIL(state, KVANT_ERROR_SYNTAX, "", "there is no key before the =");
    if (key.size > KVANT_INI_NAME_MAX)
        return FAIL(state, KVANT_ERROR_SYNTAX, "", "the key has %zu characters; at most %d fit", key.size,
                    KVANT_INI_NAME_MAX);
    for (size_t i = 0; i < key.size; i++)
        if (!is_key_character(key.at[i]))
            return FAIL(state, KVANT_ERROR_SYNTAX, "",
                        "\"%.*s\" is no key: letters, digits and _ . * + - only; a line is key = value",
                        (int)key.size, key.at);
    (void)snprintf(state->key, sizeof state->key, "%.*s", (int)key.size, key.at);
    value = (span){value.at + 1, value.size - 1};
    if (cut_comment(state, &value) != KVANT_OK) return state->status;
    if (value.size == 0) return FAIL(state, KVANT_ERROR_VALUE, state->key, "%s has no value", state->key);
    (void)snprintf(state->value, sizeof state->value, "%.*s", (int)value.size, value.at);
    if (state->store->ini.section_count == 0)
        return FAIL(state, KVANT_ERROR_SYNTAX, state->key, "%s stands before any [section]", state->key);
    (void)snprintf(plain, capacity, "%s=%s\n", state->key, state->value);
    return KVANT_OK;
}

/* inih's fgets: the next line in plain form, NULL at the end or at an error. */
static char *read_line(char *plain, int capacity, void *stream) {
    ini_reader_state *state = stream;
    if (state->status != KVANT_OK || state->at >= state->size) return NULL;
    state->line++;
    state->key[0] = '\0';
    const char *start = state->text + state->at;
    const char *end = memchr(start, '\n', state->size - state->at);
    span line = {start, end != NULL ? (size_t)(end - start) : state->size - state->at};
    state->at += line.size + (end != NULL);
    if (line.size > 0 && line.at[line.size - 1] == '\r') line.size--;
    if (check_characters(state, line) != KVANT_OK) return NULL;
    if (capacity < KVANT_INI_LINE_MAX + 3) { /* an inih built with a shorter line */
        FAIL(state, KVANT_ERROR_UNSUPPORTED, "",
             "the INI library of this system takes lines of %d characters only", capacity - 3);
        return NULL;
    }
    (void)snprintf(plain, (size_t)capacity, "\n");
    span content = trim(line);
    if (content.size == 0 || content.at[0] == ';' || content.at[0] == '#') return plain;
    if (line.at[0] == '[')
        (void)read_section(state, line, plain, (size_t)capacity);
    else
        (void)read_entry(state, line, plain, (size_t)capacity);
    return state->status == KVANT_OK ? plain : NULL;
}

static kvant_status add_entry(ini_reader_state *state, const char *key, const char *value) {
    ini_store *store = state->store;
    kvant_ini_section *section = &store->sections[store->ini.section_count - 1];
    for (uint32_t i = 0; i < section->count; i++) {
        const kvant_ini_entry *other = &store->entries[section->first + i];
        if (strcmp(other->key, key) == 0)
            return FAIL(state, KVANT_ERROR_DUPLICATE, key, "%s is here and in line %d", key,
                        (int)other->line);
    }
    if (store->ini.entry_count == ENTRIES_MAX || section->count == SECTION_ENTRIES_MAX)
        return FAIL(state, KVANT_ERROR_SYNTAX, key, "more than %d keys in a section or %d in all",
                    SECTION_ENTRIES_MAX, ENTRIES_MAX);
    kvant_ini_entry entry = {.key = kvant_arena_string(&store->arena, key),
                             .value = kvant_arena_string(&store->arena, value),
                             .line = state->line};
    void *entries = store->entries;
    bool room = grow(&entries, &store->entry_capacity, store->ini.entry_count, sizeof entry);
    store->entries = entries;
    if (!room || entry.key == NULL || entry.value == NULL)
        return FAIL(state, KVANT_ERROR_MEMORY, key, "out of memory");
    store->entries[store->ini.entry_count++] = entry;
    section->count++;
    return KVANT_OK;
}

/* inih's handler; non-zero = go on. */
static int handle_entry(void *user, const char *section, const char *key, const char *value) {
    ini_reader_state *state = user;
    (void)section; /* the reader knows better: an empty section is one too */
    if (state->status != KVANT_OK || key == NULL) return 1;
    if (value == NULL || strcmp(key, state->key) != 0 || strcmp(value, state->value) != 0)
        FAIL(state, KVANT_ERROR_SYNTAX, state->key,
             "the INI library of this system reads \"%s = %s\" as \"%s = %s\"", state->key, state->value, key,
             value != NULL ? value : "");
    else
        add_entry(state, key, value);
    return state->status == KVANT_OK;
}

static kvant_status parse(ini_reader_state *state) {
    if (state->size > KVANT_INI_SIZE_MAX)
        return FAIL(state, KVANT_ERROR_SYNTAX, "", "a pipeline of %zu bytes; at most %d fit", state->size,
                    KVANT_INI_SIZE_MAX);
    if (state->size >= 2 &&
        (memcmp(state->text, "\xff\xfe", 2) == 0 || memcmp(state->text, "\xfe\xff", 2) == 0))
        return FAIL(state, KVANT_ERROR_SYNTAX, "", "the text is UTF-16; save it as UTF-8");
    if (state->size >= 3 && memcmp(state->text, "\xef\xbb\xbf", 3) == 0) state->at = 3; /* byte order mark */
    int result = ini_parse_stream(read_line, state, handle_entry, state);
    if (state->status == KVANT_OK && result != 0) {
        state->line = result > 0 ? result : 0;
        return result == -2 ? FAIL(state, KVANT_ERROR_MEMORY, "", "out of memory")
                            : FAIL(state, KVANT_ERROR_SYNTAX, "", "neither key = value nor [section]");
    }
    return state->status;
}

kvant_status kvant_ini_parse(const char *text, size_t size, const char *name, kvant_ini **ini,
                             kvant_diag *diag) {
    if ((text == NULL && size != 0) || name == NULL || ini == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_ini_parse: text, name or ini is NULL");
    ini_store *store = calloc(1, sizeof *store);
    if (store == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    store->ini.file = "";
    ini_reader_state state = {.store = store, .diag = diag, .text = size != 0 ? text : "", .size = size};
    const char *file = kvant_arena_string(&store->arena, name);
    if (file != NULL) store->ini.file = file;
    kvant_status status =
        file != NULL ? parse(&state) : FAIL(&state, KVANT_ERROR_MEMORY, "", "out of memory");
    store->ini.sections = store->sections;
    store->ini.entries = store->entries;
    if (status != KVANT_OK)
        kvant_ini_free(&store->ini);
    else
        *ini = &store->ini;
    return status;
}

void kvant_ini_free(kvant_ini *ini) {
    if (ini == NULL) return;
    ini_store *store = (ini_store *)ini; /* ini is its first member */
    kvant_arena_free(&store->arena);
    free(store->sections);
    free(store->entries);
    free(store);
}
