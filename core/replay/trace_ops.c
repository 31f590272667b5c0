/* The operations of a trace: what each line says, and the rules on names and lengths. See trace.h. */
#include "replay/trace_internal.h"

#include "base/text.h"

#include <kvant/kit/tags.h>

#include <stdlib.h>
#include <string.h>

static const char *const op_names[KVANT_TRACE_OPS] = {"request", "load",  "fork", "reorder", "rollback",
                                                      "drop",    "evict", "save", "restart", "end"};

const char *kvant_trace_op_name(uint32_t op) {
    return op < KVANT_TRACE_OPS ? op_names[op] : "unknown operation";
}

/* The sequence of a line that speaks of one that lives. */
static kvant_status take_sequence(kvant_trace *t) {
    const char *name = NULL;
    kvant_status status = trace_string(t, t->json, "sequence", true, &name);
    if (status == KVANT_OK) status = trace_live_name(t, "sequence", name, &t->event.sequence);
    t->event.name = name != NULL ? name : "";
    return status;
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

static kvant_status read_draft(kvant_trace *t) {
    static const char *const keys[] = {"propose", "accept"};
    kvant_trace_event *e = &t->event;
    const json_t *draft = json_object_get(t->json, "draft");
    int64_t number = 0;
    if (draft == NULL) return KVANT_OK;
    if (!json_is_object(draft))
        return trace_fail(t, KVANT_ERROR_SYNTAX, "draft", "draft: an object with propose and accept");
    kvant_status status = trace_check_keys(t, draft, "draft", keys, 2);
    if (status == KVANT_OK)
        status = trace_number(t, draft, "propose", true, 1, KVANT_TRACE_DRAFT_MAX, 0, &number);
    if (status != KVANT_OK) return status;
    e->draft = (uint32_t)number;
    const json_t *accept = json_object_get(draft, "accept");
    if (accept == NULL) return KVANT_OK;
    size_t count = json_array_size(accept);
    if (!json_is_array(accept) || count == 0 || count > KVANT_TRACE_TEXT_MAX)
        return trace_fail(t, KVANT_ERROR_VALUE, "accept",
                          "accept: an array of numbers, how many of a draft are right");
    free(t->accepted);
    t->accepted = malloc(count * sizeof *t->accepted);
    if (t->accepted == NULL) return trace_fail(t, KVANT_ERROR_MEMORY, "accept", "out of memory");
    for (size_t i = 0; i < count; i++) {
        const json_t *n = json_array_get(accept, i);
        if (!json_is_integer(n) || json_integer_value(n) < 0 || json_integer_value(n) > number)
            return trace_fail(t, KVANT_ERROR_VALUE, "accept",
                              "accept: number %zu is not from 0 to the %u that are proposed", i, e->draft);
        t->accepted[i] = (uint32_t)json_integer_value(n);
    }
    e->accepted = t->accepted;
    e->accepted_count = (uint32_t)count;
    return KVANT_OK;
}

/* Its sequence: one that lives and goes on, or a new one. */
static kvant_status start_request(kvant_trace *t) {
    kvant_trace_event *e = &t->event;
    const char *name = NULL, *tenant = NULL;
    kvant_status status = trace_string(t, t->json, "sequence", true, &name);
    if (status == KVANT_OK) status = trace_string(t, t->json, "tenant", false, &tenant);
    if (status != KVANT_OK) return status;
    e->name = name;
    e->sequence = trace_find_name(t, name);
    if (e->sequence == t->name_count) {
        e->starts = 1;
        status = trace_add_name(t, name, tenant != NULL ? tenant : "", &e->sequence);
        if (status != KVANT_OK) return status;
    } else if (e->op == KVANT_TRACE_LOAD) {
        return trace_fail(t, KVANT_ERROR_CONFLICT, "sequence",
                          "\"%.128s\" lives: only a new sequence is loaded", name);
    } else if (tenant != NULL && strcmp(tenant, t->names[e->sequence].tenant) != 0) {
        return trace_fail(t, KVANT_ERROR_CONFLICT, "tenant", "\"%.128s\" began as tenant \"%.128s\"", name,
                          t->names[e->sequence].tenant);
    }
    e->tenant = t->names[e->sequence].tenant;
    return KVANT_OK;
}

static kvant_status read_request(kvant_trace *t) {
    static const char *const keys[] = {"op", "sequence", "tenant", "text", "generate", "draft", "note"};
    kvant_trace_event *e = &t->event;
    kvant_status status = trace_check_keys(t, t->json, op_names[e->op], keys, 7);
    if (status == KVANT_OK) status = start_request(t);
    if (status == KVANT_OK)
        status =
            trace_read_text(t, json_object_get(t->json, "text"), "text", KVANT_TAG_USER, false, &e->text);
    if (status == KVANT_OK)
        status = trace_read_text(t, json_object_get(t->json, "generate"), "generate", KVANT_TAG_ASSISTANT,
                                 true, &e->generated);
    if (status == KVANT_OK) status = read_draft(t);
    if (status != KVANT_OK) return status;
    if (e->starts && e->text.count == 0)
        return trace_fail(t, KVANT_ERROR_MISSING, "text",
                          "\"%.128s\" is new, and a new sequence needs a text", e->name);
    if (e->text.count + e->generated.count == 0)
        return trace_fail(t, KVANT_ERROR_MISSING, "text", "a request needs a text, or tokens to generate");
    if (e->draft > 0 && e->generated.count == 0)
        return trace_fail(t, KVANT_ERROR_CONFLICT, "draft", "a draft needs tokens to generate");
    uint64_t length = (uint64_t)t->names[e->sequence].length + e->text.count + e->generated.count;
    if (length > KVANT_TRACE_TEXT_MAX)
        return trace_fail(t, KVANT_ERROR_VALUE, "text", "\"%.128s\" would have more than %d tokens", e->name,
                          KVANT_TRACE_TEXT_MAX);
    t->names[e->sequence].length = (uint32_t)length;
    return KVANT_OK;
}

/* ---- Changes ------------------------------------------------------------------------------------------- */

static kvant_status read_fork(kvant_trace *t) {
    static const char *const keys[] = {"op", "sequence", "of", "note"};
    kvant_trace_event *e = &t->event;
    const char *name = NULL, *of = NULL;
    kvant_status status = trace_check_keys(t, t->json, "fork", keys, 4);
    if (status == KVANT_OK) status = trace_string(t, t->json, "sequence", true, &name);
    if (status == KVANT_OK) status = trace_string(t, t->json, "of", true, &of);
    if (status == KVANT_OK) status = trace_live_name(t, "of", of, &e->source);
    if (status != KVANT_OK) return status;
    if (trace_find_name(t, name) < t->name_count)
        return trace_fail(t, KVANT_ERROR_DUPLICATE, "sequence", "\"%.128s\" lives: a fork needs a new name",
                          name);
    e->name = name;
    status = trace_add_name(t, name, t->names[e->source].tenant, &e->sequence);
    if (status == KVANT_OK) t->names[e->sequence].length = t->names[e->source].length;
    return status;
}

/* One entry of a reorder: its sequence, and which one it becomes. */
static kvant_status read_order(kvant_trace *t, uint32_t i, const json_t *name, const json_t *source) {
    kvant_trace_event *e = &t->event;
    if (!json_is_string(name))
        return trace_fail(t, KVANT_ERROR_VALUE, "sequences", "sequences: entry %u is no name", i);
    kvant_status status = trace_live_name(t, "sequences", json_string_value(name), &t->sequences[i]);
    if (status != KVANT_OK) return status;
    for (uint32_t j = 0; j < i; j++)
        if (t->sequences[j] == t->sequences[i])
            return trace_fail(t, KVANT_ERROR_DUPLICATE, "sequences", "\"%.128s\" is there twice",
                              json_string_value(name));
    if (strcmp(t->names[t->sequences[0]].tenant, t->names[t->sequences[i]].tenant) != 0)
        return trace_fail(t, KVANT_ERROR_CONFLICT, "sequences",
                          "sequences of two tenants cannot change places");
    if (!json_is_integer(source) || json_integer_value(source) < 0 || json_integer_value(source) >= e->count)
        return trace_fail(t, KVANT_ERROR_VALUE, "sources", "sources: entry %u is not from 0 to %u", i,
                          e->count - 1);
    t->sources[i] = (uint32_t)json_integer_value(source);
    return KVANT_OK;
}

static kvant_status read_reorder(kvant_trace *t) {
    static const char *const keys[] = {"op", "sequences", "sources", "note"};
    kvant_trace_event *e = &t->event;
    const json_t *names = json_object_get(t->json, "sequences"),
                 *sources = json_object_get(t->json, "sources");
    kvant_status status = trace_check_keys(t, t->json, "reorder", keys, 4);
    if (status != KVANT_OK) return status;
    size_t count = json_array_size(names);
    if (count == 0 || count > KVANT_TRACE_NAMES_MAX || json_array_size(sources) != count)
        return trace_fail(t, KVANT_ERROR_VALUE, "sequences",
                          "reorder: sequences and sources are arrays of one length");
    free(t->sequences);
    free(t->sources);
    t->sequences = calloc(count, sizeof *t->sequences);
    t->sources = calloc(count, sizeof *t->sources);
    uint32_t *lengths = calloc(count, sizeof *lengths);
    if (t->sequences == NULL || t->sources == NULL || lengths == NULL)
        status = trace_fail(t, KVANT_ERROR_MEMORY, "sequences", "out of memory");
    e->count = (uint32_t)count;
    e->sequences = t->sequences;
    e->sources = t->sources;
    for (uint32_t i = 0; status == KVANT_OK && i < e->count; i++)
        status = read_order(t, i, json_array_get(names, i), json_array_get(sources, i));
    for (uint32_t i = 0; status == KVANT_OK && i < e->count; i++)
        lengths[i] = t->names[t->sequences[t->sources[i]]].length;
    for (uint32_t i = 0; status == KVANT_OK && i < e->count; i++)
        t->names[t->sequences[i]].length = lengths[i];
    free(lengths);
    return status;
}

static kvant_status read_rollback(kvant_trace *t) {
    static const char *const keys[] = {"op", "sequence", "tokens", "note"};
    int64_t tokens = 0;
    kvant_status status = trace_check_keys(t, t->json, "rollback", keys, 4);
    if (status == KVANT_OK) status = take_sequence(t);
    if (status == KVANT_OK)
        status = trace_number(t, t->json, "tokens", true, 1, KVANT_TRACE_TEXT_MAX, 0, &tokens);
    if (status != KVANT_OK) return status;
    trace_name *name = &t->names[t->event.sequence];
    if (tokens > name->length)
        return trace_fail(t, KVANT_ERROR_VALUE, "tokens",
                          "\"%.128s\" has %u tokens, %lld cannot be taken back", name->name, name->length,
                          (long long)tokens);
    t->event.count = (uint32_t)tokens;
    name->length -= (uint32_t)tokens;
    return KVANT_OK;
}

static kvant_status read_drop(kvant_trace *t) {
    static const char *const keys[] = {"op", "sequence", "first", "count", "note"};
    int64_t first = 0, count = 0;
    kvant_status status = trace_check_keys(t, t->json, "drop", keys, 5);
    if (status == KVANT_OK) status = take_sequence(t);
    if (status == KVANT_OK)
        status = trace_number(t, t->json, "first", true, 0, KVANT_TRACE_TEXT_MAX, 0, &first);
    if (status == KVANT_OK)
        status = trace_number(t, t->json, "count", true, 1, KVANT_TRACE_TEXT_MAX, 0, &count);
    if (status != KVANT_OK) return status;
    const trace_name *name = &t->names[t->event.sequence];
    if (first + count > name->length)
        return trace_fail(t, KVANT_ERROR_VALUE, "count",
                          "\"%.128s\" has %u tokens: [%lld, %lld) is beyond them", name->name, name->length,
                          (long long)first, (long long)(first + count));
    t->event.first = (uint64_t)first;
    t->event.count = (uint32_t)count;
    return KVANT_OK;
}

static kvant_status read_evict(kvant_trace *t) {
    static const char *const keys[] = {"op", "fraction", "bytes", "note"};
    const json_t *fraction = json_object_get(t->json, "fraction"), *bytes = json_object_get(t->json, "bytes");
    int64_t number = 0;
    kvant_status status = trace_check_keys(t, t->json, "evict", keys, 4);
    if (status != KVANT_OK) return status;
    if ((fraction != NULL) == (bytes != NULL))
        return trace_fail(t, KVANT_ERROR_CONFLICT, "fraction",
                          "evict: either a fraction of the pool, or bytes");
    status = trace_number(t, t->json, "bytes", false, 1, INT64_MAX, 0, &number);
    if (status != KVANT_OK) return status;
    t->event.bytes = (uint64_t)number;
    if (bytes != NULL) return KVANT_OK;
    t->event.fraction = json_number_value(fraction);
    if (!json_is_number(fraction) || !(t->event.fraction > 0 && t->event.fraction <= 1))
        return trace_fail(t, KVANT_ERROR_VALUE, "fraction", "fraction: a number above 0, at most 1");
    return KVANT_OK;
}

static kvant_status read_named(kvant_trace *t) {
    static const char *const keys[] = {"op", "sequence", "note"};
    kvant_status status = trace_check_keys(t, t->json, op_names[t->event.op], keys, 3);
    if (status == KVANT_OK) status = take_sequence(t);
    if (status == KVANT_OK && t->event.op == KVANT_TRACE_END) trace_end_name(t, t->event.sequence);
    return status;
}

static kvant_status read_restart(kvant_trace *t) {
    static const char *const keys[] = {"op", "note"};
    kvant_status status = trace_check_keys(t, t->json, "restart", keys, 2);
    for (uint32_t i = 0; status == KVANT_OK && i < t->name_count; i++) trace_end_name(t, i);
    return status;
}

kvant_status trace_read_event(kvant_trace *t, const char *op) {
    kvant_trace_event *e = &t->event;
    e->op = 0;
    while (e->op < KVANT_TRACE_OPS && strcmp(op_names[e->op], op) != 0) e->op++;
    switch (e->op) {
    case KVANT_TRACE_REQUEST:
    case KVANT_TRACE_LOAD:
        return read_request(t);
    case KVANT_TRACE_FORK:
        return read_fork(t);
    case KVANT_TRACE_REORDER:
        return read_reorder(t);
    case KVANT_TRACE_ROLLBACK:
        return read_rollback(t);
    case KVANT_TRACE_DROP:
        return read_drop(t);
    case KVANT_TRACE_EVICT:
        return read_evict(t);
    case KVANT_TRACE_RESTART:
        return read_restart(t);
    case KVANT_TRACE_SAVE:
    case KVANT_TRACE_END:
        return read_named(t);
    default:
        break;
    }
    const char *near = kvant_nearest(op, op_names, KVANT_TRACE_OPS);
    if (near != NULL)
        return trace_fail(t, KVANT_ERROR_UNKNOWN_NAME, "op", "there is no op \"%.64s\"; did you mean \"%s\"?",
                          op, near);
    return trace_fail(t, KVANT_ERROR_UNKNOWN_NAME, "op", "there is no op \"%.64s\"", op);
}
