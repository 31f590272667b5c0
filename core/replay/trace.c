/* A trace line by line: JSON, members, the names of sequences that live. See trace.h. */
#include "replay/trace_internal.h"

#include "base/text.h"

#include <kvant/kit/diag.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- Members ------------------------------------------------------------------------------------------- */

kvant_status trace_fail(const kvant_trace *t, kvant_status status, const char *key, const char *format, ...) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    for (char *c = message; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    (void)kvant_fail(t->diag, status, key, "%s", message);
    if (t->diag != NULL && t->diag->struct_size >= sizeof *t->diag) {
        (void)snprintf(t->diag->file, sizeof t->diag->file, "%s", t->file);
        t->diag->line = (int32_t)t->line;
    }
    return status;
}

kvant_status trace_check_keys(const kvant_trace *t, const json_t *object, const char *what,
                              const char *const *known, size_t count) {
    void *member;
    json_t *own = (json_t *)(uintptr_t)object; /* jansson's iterators take no const */
    for (member = json_object_iter(own); member != NULL; member = json_object_iter_next(own, member)) {
        const char *key = json_object_iter_key(member), *near;
        size_t i = 0;
        while (i < count && strcmp(known[i], key) != 0) i++;
        if (i < count) continue;
        near = kvant_nearest(key, known, count);
        if (near != NULL)
            return trace_fail(t, KVANT_ERROR_UNKNOWN_NAME, key,
                              "%s: there is no key \"%.64s\"; did you mean \"%s\"?", what, key, near);
        return trace_fail(t, KVANT_ERROR_UNKNOWN_NAME, key, "%s: there is no key \"%.64s\"", what, key);
    }
    return KVANT_OK;
}

kvant_status trace_number(const kvant_trace *t, const json_t *object, const char *key, bool must,
                          int64_t least, int64_t most, int64_t absent, int64_t *number) {
    const json_t *json = json_object_get(object, key);
    *number = absent;
    if (json == NULL && !must) return KVANT_OK;
    if (json == NULL) return trace_fail(t, KVANT_ERROR_MISSING, key, "\"%s\" is missing", key);
    if (!json_is_integer(json) || json_integer_value(json) < least || json_integer_value(json) > most)
        return trace_fail(t, KVANT_ERROR_VALUE, key, "\"%s\" is a whole number from %lld to %lld", key,
                          (long long)least, (long long)most);
    *number = json_integer_value(json);
    return KVANT_OK;
}

kvant_status trace_string(const kvant_trace *t, const json_t *object, const char *key, bool must,
                          const char **string) {
    const json_t *json = json_object_get(object, key);
    *string = NULL;
    if (json == NULL && !must) return KVANT_OK;
    if (json == NULL) return trace_fail(t, KVANT_ERROR_MISSING, key, "\"%s\" is missing", key);
    size_t length = json_is_string(json) ? json_string_length(json) : 0;
    if (length == 0 || length > KVANT_TRACE_NAME_MAX)
        return trace_fail(t, KVANT_ERROR_VALUE, key, "\"%s\" is a string of 1 to %d bytes", key,
                          KVANT_TRACE_NAME_MAX);
    *string = json_string_value(json);
    return KVANT_OK;
}

/* ---- Names --------------------------------------------------------------------------------------------- */

/* The number of a sequence that lives; name_count = there is none. */
uint32_t trace_find_name(const kvant_trace *t, const char *name) {
    uint32_t i = 0;
    while (i < t->name_count && (t->names[i].name == NULL || strcmp(t->names[i].name, name) != 0)) i++;
    return i;
}

kvant_status trace_live_name(const kvant_trace *t, const char *key, const char *name, uint32_t *number) {
    const char *near = NULL, **names = malloc((t->name_count + 1) * sizeof *names);
    uint32_t live = 0;
    *number = trace_find_name(t, name);
    for (uint32_t i = 0; names != NULL && i < t->name_count; i++)
        if (t->names[i].name != NULL) names[live++] = t->names[i].name;
    if (names != NULL && *number == t->name_count) near = kvant_nearest(name, names, live);
    free(names);
    if (*number < t->name_count) return KVANT_OK;
    if (near != NULL)
        return trace_fail(t, KVANT_ERROR_UNKNOWN_NAME, key,
                          "there is no sequence \"%.128s\" here; did you mean \"%s\"?", name, near);
    return trace_fail(t, KVANT_ERROR_UNKNOWN_NAME, key, "there is no sequence \"%.128s\" here", name);
}

kvant_status trace_add_name(kvant_trace *t, const char *name, const char *tenant, uint32_t *number) {
    uint32_t i = 0;
    while (i < t->name_count && t->names[i].name != NULL) i++;
    if (i == KVANT_TRACE_NAMES_MAX)
        return trace_fail(t, KVANT_ERROR_VALUE, "sequence", "more than %d sequences at once",
                          KVANT_TRACE_NAMES_MAX);
    if (i == t->name_capacity) {
        uint32_t capacity = i < 16 ? 16 : 2 * i;
        trace_name *names = realloc(t->names, capacity * sizeof *names);
        if (names == NULL) return trace_fail(t, KVANT_ERROR_MEMORY, "sequence", "out of memory");
        t->names = names;
        t->name_capacity = capacity;
    }
    trace_name entry = {.name = strdup(name), .tenant = strdup(tenant)};
    if (entry.name == NULL || entry.tenant == NULL) {
        free(entry.name);
        free(entry.tenant);
        return trace_fail(t, KVANT_ERROR_MEMORY, "sequence", "out of memory");
    }
    t->names[i] = entry;
    if (i == t->name_count) t->name_count++;
    *number = i;
    return KVANT_OK;
}

void trace_end_name(kvant_trace *t, uint32_t number) {
    free(t->names[number].name);
    free(t->names[number].tenant);
    t->names[number] = (trace_name){0};
}

/* ---- Lines --------------------------------------------------------------------------------------------- */

/* The next line that is neither empty nor a comment, as an object; json = NULL at the end. */
static kvant_status read_line(kvant_trace *t) {
    for (;;) {
        json_decref(t->json);
        t->json = NULL;
        errno = 0;
        ssize_t size = getline(&t->buffer, &t->buffer_size, t->stream);
        if (size < 0 && (ferror(t->stream) || errno != 0))
            return trace_fail(t, KVANT_ERROR_IO, "", "cannot read: %s", strerror(errno));
        if (size < 0) return KVANT_OK;
        t->line++;
        if (size > KVANT_TRACE_LINE_MAX)
            return trace_fail(t, KVANT_ERROR_SYNTAX, "", "a line of more than %d bytes",
                              KVANT_TRACE_LINE_MAX);
        size_t blank = strspn(t->buffer, " \t\r\n");
        if (t->buffer[blank] == '#' || blank == (size_t)size) continue;
        json_error_t error;
        t->json = json_loadb(t->buffer, (size_t)size, JSON_REJECT_DUPLICATES, &error);
        if (t->json == NULL)
            return trace_fail(t, KVANT_ERROR_SYNTAX, "", "no JSON, at column %d: %s", error.column,
                              error.text);
        if (!json_is_object(t->json))
            return trace_fail(t, KVANT_ERROR_SYNTAX, "", "a line is one object {..}");
        return KVANT_OK;
    }
}

kvant_status kvant_trace_next(kvant_trace *t, const kvant_trace_event **event, kvant_diag *diag) {
    *event = NULL;
    t->diag = diag;
    for (;;) {
        kvant_status status = read_line(t);
        if (status != KVANT_OK || t->json == NULL) return status;
        if (json_object_get(t->json, "segment") != NULL) {
            status = trace_define_segment(t);
            if (status != KVANT_OK) return status;
            continue;
        }
        const char *op = NULL;
        status = trace_string(t, t->json, "op", true, &op);
        if (status != KVANT_OK) return status;
        t->event = (kvant_trace_event){.line = t->line,
                                       .name = "",
                                       .tenant = "",
                                       .text = t->event.text,
                                       .generated = t->event.generated};
        t->event.text.count = t->event.generated.count = 0;
        status = trace_read_event(t, op);
        if (status == KVANT_OK) *event = &t->event;
        return status;
    }
}

/* ---- Open ---------------------------------------------------------------------------------------------- */

static kvant_status read_format(kvant_trace *t) {
    static const char *const keys[] = {"format", "note"};
    kvant_status status = read_line(t);
    if (status != KVANT_OK) return status;
    const char *format = json_string_value(json_object_get(t->json, "format"));
    if (format == NULL)
        return trace_fail(t, KVANT_ERROR_SYNTAX, "format",
                          "no trace: the first line is {\"format\": \"kvant-trace/1\"}");
    if (strcmp(format, "kvant-trace/1") != 0)
        return trace_fail(t, KVANT_ERROR_VERSION, "format",
                          "format \"%.64s\", and this build reads kvant-trace/1", format);
    return trace_check_keys(t, t->json, "the first line", keys, 2);
}

kvant_status kvant_trace_open(const char *file, kvant_trace **trace, kvant_diag *diag) {
    *trace = NULL;
    kvant_trace *t = calloc(1, sizeof *t);
    if (t == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    t->diag = diag;
    t->file = strdup(file);
    kvant_status status = KVANT_OK;
    if (t->file == NULL) {
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    } else {
        t->stream = fopen(file, "re");
        status = t->stream == NULL ? trace_fail(t, KVANT_ERROR_IO, "", "cannot open: %s", strerror(errno))
                                   : read_format(t);
    }
    if (status == KVANT_OK)
        *trace = t;
    else
        kvant_trace_close(t);
    return status;
}

void kvant_trace_close(kvant_trace *t) {
    if (t == NULL) return;
    if (t->stream != NULL) (void)fclose(t->stream);
    json_decref(t->json);
    for (uint32_t i = 0; i < t->segment_count; i++) {
        free(t->segments[i].name);
        trace_text_free(&t->segments[i].text);
    }
    for (uint32_t i = 0; i < t->name_count; i++) trace_end_name(t, i);
    trace_text_free(&t->event.text);
    trace_text_free(&t->event.generated);
    trace_text_free(&t->scratch);
    free(t->segments);
    free(t->names);
    free(t->accepted);
    free(t->sequences);
    free(t->sources);
    free(t->buffer);
    free(t->file);
    free(t);
}
