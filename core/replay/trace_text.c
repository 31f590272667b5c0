/* Texts of a trace: pieces of tokens, and segments, which are texts with a name. */
#include "replay/trace_internal.h"

#include "base/text.h"

#include <kvant/kit/tags.h>

#include <stdlib.h>
#include <string.h>

/* ---- Tokens -------------------------------------------------------------------------------------------- */

bool trace_text_reserve(kvant_trace_text *text, uint32_t count) {
    uint64_t need = (uint64_t)text->count + count;
    if (need <= text->capacity) return true;
    uint64_t capacity = text->capacity < 256 ? 256 : text->capacity;
    while (capacity < need) capacity *= 2;
    uint64_t *ids = realloc(text->ids, (size_t)capacity * sizeof *ids);
    if (ids == NULL) return false;
    text->ids = ids;
    uint8_t *tags = realloc(text->tags, (size_t)capacity);
    if (tags == NULL) return false;
    text->tags = tags;
    text->capacity = (uint32_t)capacity;
    return true;
}

void trace_text_free(kvant_trace_text *text) {
    free(text->ids);
    free(text->tags);
    *text = (kvant_trace_text){0};
}

static kvant_status make_room(const kvant_trace *t, const char *key, uint64_t count, kvant_trace_text *out) {
    if (count > KVANT_TRACE_TEXT_MAX - (uint64_t)out->count)
        return trace_fail(t, KVANT_ERROR_VALUE, key, "%s: more than %d tokens", key, KVANT_TRACE_TEXT_MAX);
    if (!trace_text_reserve(out, (uint32_t)count))
        return trace_fail(t, KVANT_ERROR_MEMORY, key, "out of memory for %llu tokens",
                          (unsigned long long)count);
    return KVANT_OK;
}

static void put_token(kvant_trace_text *out, uint64_t id, uint8_t tag) {
    out->ids[out->count] = id;
    out->tags[out->count++] = tag;
}

/* ---- Pieces -------------------------------------------------------------------------------------------- */

static const char *const piece_keys[] = {"range", "ids", "segment", "role", "tag", "generated"};

static trace_segment *find_segment(const kvant_trace *t, const char *name) {
    for (uint32_t i = 0; i < t->segment_count; i++)
        if (strcmp(t->segments[i].name, name) == 0) return &t->segments[i];
    return NULL;
}

static kvant_status unknown_segment(const kvant_trace *t, const char *name) {
    const char *near = NULL;
    const char **names = malloc((t->segment_count + 1) * sizeof *names);
    for (uint32_t i = 0; names != NULL && i < t->segment_count; i++) names[i] = t->segments[i].name;
    if (names != NULL) near = kvant_nearest(name, names, t->segment_count);
    free(names);
    return near != NULL ? trace_fail(t, KVANT_ERROR_UNKNOWN_NAME, "segment",
                                     "there is no segment \"%.128s\" yet; did you mean \"%s\"?", name, near)
                        : trace_fail(t, KVANT_ERROR_UNKNOWN_NAME, "segment",
                                     "there is no segment \"%.128s\" yet", name);
}

/* A copy of a segment, whose tokens keep their tags. */
static kvant_status put_segment(const kvant_trace *t, const json_t *piece, const char *key,
                                kvant_trace_text *out) {
    const char *name = NULL;
    if (json_object_size(piece) != 1)
        return trace_fail(t, KVANT_ERROR_CONFLICT, "segment",
                          "%s: a piece with a segment has no other key: the segment's tokens keep their tags",
                          key);
    kvant_status status = trace_string(t, piece, "segment", true, &name);
    if (status != KVANT_OK) return status;
    const trace_segment *segment = find_segment(t, name);
    if (segment == NULL) return unknown_segment(t, name);
    status = make_room(t, key, segment->text.count, out);
    if (status != KVANT_OK || segment->text.count == 0) return status;
    memcpy(out->ids + out->count, segment->text.ids, segment->text.count * sizeof *out->ids);
    memcpy(out->tags + out->count, segment->text.tags, segment->text.count);
    out->count += segment->text.count;
    return KVANT_OK;
}

static kvant_status put_range(const kvant_trace *t, const json_t *range, const char *key, uint8_t tag,
                              kvant_trace_text *out) {
    json_t *first = json_array_get(range, 0), *count = json_array_get(range, 1);
    if (json_array_size(range) != 2 || !json_is_integer(first) || !json_is_integer(count) ||
        json_integer_value(first) < 0 || json_integer_value(count) < 0 ||
        json_integer_value(count) > INT64_MAX - json_integer_value(first))
        return trace_fail(t, KVANT_ERROR_VALUE, "range",
                          "%s: a range is [first id, how many], whole numbers from 0 on", key);
    kvant_status status = make_room(t, key, (uint64_t)json_integer_value(count), out);
    for (json_int_t i = 0; status == KVANT_OK && i < json_integer_value(count); i++)
        put_token(out, (uint64_t)(json_integer_value(first) + i), tag);
    return status;
}

static kvant_status put_ids(const kvant_trace *t, const json_t *ids, const char *key, uint8_t tag,
                            kvant_trace_text *out) {
    size_t index;
    json_t *id;
    if (!json_is_array(ids))
        return trace_fail(t, KVANT_ERROR_VALUE, "ids", "%s: ids are an array of whole numbers from 0 on",
                          key);
    kvant_status status = make_room(t, key, json_array_size(ids), out);
    if (status != KVANT_OK) return status;
    json_array_foreach(ids, index, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return trace_fail(t, KVANT_ERROR_VALUE, "ids", "%s: id %zu is no whole number from 0 on", key,
                              index);
        put_token(out, (uint64_t)json_integer_value(id), tag);
    }
    return KVANT_OK;
}

/* The tag that `role`, `tag` and `generated` of a piece come to. */
static kvant_status read_tag(const kvant_trace *t, const json_t *piece, const char *key, uint32_t role,
                             bool generated, uint8_t *tag) {
    const char *word = NULL;
    const json_t *mark = json_object_get(piece, "generated");
    bool has_tag = json_object_get(piece, "tag") != NULL;
    int64_t number = 0;
    uint32_t axis = 0;
    kvant_status status = trace_string(t, piece, "role", false, &word);
    if (status == KVANT_OK) status = trace_number(t, piece, "tag", false, 0, 255, 0, &number);
    if (status != KVANT_OK) return status;
    if (has_tag && (word != NULL || mark != NULL))
        return trace_fail(t, KVANT_ERROR_CONFLICT, "tag",
                          "%s: a tag says it all: no role or generated beside it", key);
    if (mark != NULL && !json_is_boolean(mark))
        return trace_fail(t, KVANT_ERROR_VALUE, "generated", "%s: generated is true or false", key);
    if (word != NULL &&
        (!kvant_tag_find_word(word, strlen(word), &axis, &role) || axis != KVANT_TAG_AXIS_ROLE))
        return trace_fail(
            t, KVANT_ERROR_UNKNOWN_NAME, "role",
            "%s: \"%.128s\" is no role: inst, user, assistant, reasoning, tool_call, obs, delim", key, word);
    *tag = has_tag ? (uint8_t)number : kvant_tag_make(KVANT_TAG_OLDER, KVANT_TAG_TEXT, role);
    if (!has_tag && (generated || json_is_true(mark))) *tag = (uint8_t)(*tag + KVANT_TAG_GENERATED);
    return KVANT_OK;
}

static kvant_status put_piece(const kvant_trace *t, const json_t *piece, const char *key, uint32_t role,
                              bool generated, kvant_trace_text *out) {
    uint8_t tag = 0;
    if (!json_is_object(piece))
        return trace_fail(t, KVANT_ERROR_SYNTAX, key, "%s: a text is a piece {..} or an array of them", key);
    kvant_status status =
        trace_check_keys(t, piece, key, piece_keys, sizeof piece_keys / sizeof piece_keys[0]);
    if (status != KVANT_OK) return status;
    const json_t *range = json_object_get(piece, "range"), *ids = json_object_get(piece, "ids"),
                 *segment = json_object_get(piece, "segment");
    if ((range != NULL) + (ids != NULL) + (segment != NULL) != 1)
        return trace_fail(t, KVANT_ERROR_CONFLICT, key, "%s: a piece has one of range, ids and segment", key);
    if (segment != NULL) return put_segment(t, piece, key, out);
    status = read_tag(t, piece, key, role, generated, &tag);
    if (status != KVANT_OK) return status;
    return range != NULL ? put_range(t, range, key, tag, out) : put_ids(t, ids, key, tag, out);
}

kvant_status trace_read_text(const kvant_trace *t, const json_t *json, const char *key, uint32_t role,
                             bool generated, kvant_trace_text *out) {
    out->count = 0;
    if (json == NULL) return KVANT_OK;
    if (!json_is_array(json)) return put_piece(t, json, key, role, generated, out);
    kvant_status status = KVANT_OK;
    for (size_t i = 0; i < json_array_size(json) && status == KVANT_OK; i++)
        status = put_piece(t, json_array_get(json, i), key, role, generated, out);
    return status;
}

/* ---- Segments ------------------------------------------------------------------------------------------ */

static trace_segment *new_segment(kvant_trace *t, const char *name) {
    if (t->segment_count == t->segment_capacity) {
        uint32_t capacity = t->segment_capacity < 16 ? 16 : 2 * t->segment_capacity;
        trace_segment *segments = realloc(t->segments, capacity * sizeof *segments);
        if (segments == NULL) return NULL;
        t->segments = segments;
        t->segment_capacity = capacity;
    }
    trace_segment *segment = &t->segments[t->segment_count];
    *segment = (trace_segment){.name = strdup(name)};
    if (segment->name == NULL) return NULL;
    t->segment_count++;
    return segment;
}

kvant_status trace_define_segment(kvant_trace *t) {
    static const char *const keys[] = {"segment", "text"};
    const char *name = NULL;
    kvant_status status = trace_check_keys(t, t->json, "a segment", keys, 2);
    if (status == KVANT_OK) status = trace_string(t, t->json, "segment", true, &name);
    if (status != KVANT_OK) return status;
    const json_t *json = json_object_get(t->json, "text");
    if (json == NULL) return trace_fail(t, KVANT_ERROR_MISSING, "text", "a segment needs a text");
    /* Read beside the old one, which the new one may contain. */
    status = trace_read_text(t, json, "text", KVANT_TAG_USER, false, &t->scratch);
    if (status != KVANT_OK) return status;
    trace_segment *segment = find_segment(t, name);
    if (segment == NULL) segment = new_segment(t, name);
    if (segment == NULL || !trace_text_reserve(&segment->text, t->scratch.count))
        return trace_fail(t, KVANT_ERROR_MEMORY, "segment", "out of memory");
    segment->text.count = t->scratch.count;
    if (t->scratch.count == 0) {
        trace_text_free(&segment->text); /* how a long trace forgets a conversation */
        return KVANT_OK;
    }
    memcpy(segment->text.ids, t->scratch.ids, t->scratch.count * sizeof *t->scratch.ids);
    memcpy(segment->text.tags, t->scratch.tags, t->scratch.count);
    return KVANT_OK;
}
