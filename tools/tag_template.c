/* See tag_template.h. */
#include "tag_template.h"

#include "base/text.h"
#include "data/file.h"
#include "pipeline/ini.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- Templates ----------------------------------------------------------------------------------------- */

static kvant_status read_ids(const kvant_ini *ini, const kvant_ini_entry *entry, kvant_tag_ids *ids,
                             kvant_diag *diag) {
    *ids = (kvant_tag_ids){.count = 0};
    for (const char *at = entry->value; *at != '\0';) {
        char *end = NULL;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno != 0 || id < 0 || id > INT32_MAX ||
            (*end != ' ' && *end != '\t' && *end != '\0') || ids->count == KVANT_TAG_IDS_MAX)
            return kvant_ini_fail(ini, diag, KVANT_ERROR_VALUE, entry->line, entry->key,
                                  "%s takes up to %d token ids from 0 on, separated by blanks", entry->key,
                                  KVANT_TAG_IDS_MAX);
        ids->ids[ids->count++] = (int32_t)id;
        at = end + strspn(end, " \t");
    }
    return KVANT_OK;
}

static kvant_status read_role(const kvant_ini *ini, const kvant_ini_entry *entry, uint32_t *role,
                              kvant_diag *diag) {
    uint32_t axis = 0;
    if (kvant_tag_find_word(entry->value, strlen(entry->value), &axis, role) && axis == KVANT_TAG_AXIS_ROLE)
        return KVANT_OK;
    return kvant_ini_fail(
        ini, diag, KVANT_ERROR_UNKNOWN_NAME, entry->line, entry->key,
        "\"%s\" is no role; there are inst, user, assistant, reasoning, tool_call, obs, delim", entry->value);
}

static kvant_status unknown_key(const kvant_ini *ini, const kvant_ini_section *section,
                                const kvant_ini_entry *entry, const char *const *keys, size_t count,
                                kvant_diag *diag) {
    const char *nearest = kvant_nearest(entry->key, keys, count);
    return kvant_ini_fail(ini, diag, KVANT_ERROR_UNKNOWN_NAME, entry->line, entry->key,
                          "[%s] has no key \"%s\"%s%s%s", section->kind, entry->key,
                          nearest != NULL ? "; did you mean \"" : "", nearest != NULL ? nearest : "",
                          nearest != NULL ? "\"?" : "");
}

static kvant_status read_main(const kvant_ini *ini, const kvant_ini_section *section,
                              kvant_tag_template *chat, kvant_diag *diag) {
    static const char *const keys[] = {"start", "header_end", "end", "newline", "scaffold", "image", "turn"};
    kvant_tag_ids *const lists[] = {&chat->start,   &chat->header_end, &chat->end,
                                    &chat->newline, &chat->scaffold,   &chat->image};
    kvant_status status = KVANT_OK;
    for (uint32_t i = section->first; i < section->first + section->count && status == KVANT_OK; i++) {
        const kvant_ini_entry *entry = &ini->entries[i];
        size_t k = 0;
        while (k < 7 && strcmp(keys[k], entry->key) != 0) k++;
        if (k < 6) {
            status = read_ids(ini, entry, lists[k], diag);
        } else if (k == 6) {
            chat->any_user_turns = strcmp(entry->value, "any_user") == 0;
            if (!chat->any_user_turns && strcmp(entry->value, "real_user") != 0)
                status = kvant_ini_fail(ini, diag, KVANT_ERROR_VALUE, entry->line, "turn",
                                        "turn is real_user or any_user, not \"%s\"", entry->value);
        } else {
            status = unknown_key(ini, section, entry, keys, 7, diag);
        }
    }
    return status;
}

/* [role ...] has ids, as; [bracket ...] has open, close, as, in. All are needed. */
static kvant_status read_rule(const kvant_ini *ini, const kvant_ini_section *section, bool bracket,
                              kvant_tag_ids *const lists[2], uint32_t *const roles[2], kvant_diag *diag) {
    static const char *const names[2][4] = {{"ids", "as", "", ""}, {"open", "as", "close", "in"}};
    uint32_t count = bracket ? 4 : 2, seen = 0;
    kvant_status status = KVANT_OK;
    for (uint32_t i = section->first; i < section->first + section->count && status == KVANT_OK; i++) {
        const kvant_ini_entry *entry = &ini->entries[i];
        uint32_t k = 0;
        while (k < count && strcmp(names[bracket][k], entry->key) != 0) k++;
        if (k == count)
            status = unknown_key(ini, section, entry, names[bracket], count, diag);
        else if (k % 2 == 0)
            status = read_ids(ini, entry, lists[k / 2], diag);
        else
            status = read_role(ini, entry, roles[k / 2], diag);
        seen |= 1u << k;
    }
    for (uint32_t k = 0; k < count && status == KVANT_OK; k++)
        if (!(seen >> k & 1))
            status = kvant_ini_fail(ini, diag, KVANT_ERROR_MISSING, section->line, names[bracket][k],
                                    "[%s %s] lacks \"%s\"", section->kind, section->title, names[bracket][k]);
    return status;
}

static kvant_status read_section(const kvant_ini *ini, const kvant_ini_section *section,
                                 kvant_tag_template *chat, kvant_diag *diag) {
    if (strcmp(section->kind, "template") == 0) return read_main(ini, section, chat, diag);
    bool bracket = strcmp(section->kind, "bracket") == 0;
    if (!bracket && strcmp(section->kind, "role") != 0)
        return kvant_ini_fail(
            ini, diag, KVANT_ERROR_UNKNOWN_NAME, section->line, section->kind,
            "[%s] is no section of a chat template; there are [template], [role ...], [bracket ...]",
            section->kind);
    uint32_t *count = bracket ? &chat->bracket_count : &chat->role_count;
    if (*count == KVANT_TAG_RULES_MAX)
        return kvant_ini_fail(ini, diag, KVANT_ERROR_VALUE, section->line, section->kind,
                              "at most %d of [%s ...]", KVANT_TAG_RULES_MAX, section->kind);
    kvant_tag_role_rule *role = &chat->roles[bracket ? 0 : *count];
    kvant_tag_bracket *b = &chat->brackets[bracket ? *count : 0];
    ++*count;
    if (bracket)
        return read_rule(ini, section, true, (kvant_tag_ids *const[2]){&b->open, &b->close},
                         (uint32_t *const[2]){&b->role, &b->within}, diag);
    return read_rule(ini, section, false, (kvant_tag_ids *const[2]){&role->ids, NULL},
                     (uint32_t *const[2]){&role->role, NULL}, diag);
}

kvant_status tag_template_load(const char *file, kvant_tag_template *chat, kvant_diag *diag) {
    kvant_file_map map;
    kvant_ini *ini = NULL;
    *chat = (kvant_tag_template){.any_user_turns = false};
    kvant_status status = kvant_file_map_open(file, &map, diag);
    if (status != KVANT_OK) return status;
    status = kvant_ini_parse((const char *)map.bytes, map.size, file, &ini, diag);
    for (uint32_t i = 0; status == KVANT_OK && i < ini->section_count; i++)
        status = read_section(ini, &ini->sections[i], chat, diag);
    if (status == KVANT_OK && chat->start.count == 0)
        status = kvant_file_fail(diag, KVANT_ERROR_MISSING, file,
                                 "[template] needs start, the ids that begin a message");
    kvant_ini_free(ini);
    kvant_file_map_close(&map);
    return status;
}

/* ---- Spans --------------------------------------------------------------------------------------------- */

static bool read_word(const json_t *object, const char *key, uint32_t wanted_axis, uint32_t *value) {
    const char *word = json_string_value(json_object_get(object, key));
    uint32_t axis = 0;
    return word != NULL && kvant_tag_find_word(word, strlen(word), &axis, value) && axis == wanted_axis;
}

static const char *read_span(json_t *object, kvant_tag_span *span) {
    static const char *const keys[] = {"first", "count", "role", "modality", "turn"};
    const json_t *first = json_object_get(object, "first"), *count = json_object_get(object, "count");
    const json_t *turn = json_object_get(object, "turn");
    const char *key;
    json_t *value;
    *span = (kvant_tag_span){.modality = KVANT_TAG_TEXT, .turn = KVANT_TAG_NO_TURN};
    if (!json_is_object(object)) return "is no object";
    json_object_foreach(object, key, value) {
        size_t k = 0;
        while (k < 5 && strcmp(keys[k], key) != 0) k++;
        if (k == 5) return "has a key other than first, count, role, modality, turn";
    }
    if (!json_is_integer(first) || !json_is_integer(count) || json_integer_value(first) < 0 ||
        json_integer_value(count) < 1 || json_integer_value(first) > UINT32_MAX ||
        json_integer_value(count) > UINT32_MAX)
        return "needs first and count, numbers of tokens";
    span->first = (uint32_t)json_integer_value(first);
    span->count = (uint32_t)json_integer_value(count);
    if (!read_word(object, "role", KVANT_TAG_AXIS_ROLE, &span->role))
        return "needs role: inst, user, assistant, reasoning, tool_call, obs or delim";
    if (json_object_get(object, "modality") != NULL &&
        !read_word(object, "modality", KVANT_TAG_AXIS_MODALITY, &span->modality))
        return "has a modality other than text and image";
    if (turn == NULL) return NULL;
    if (!json_is_integer(turn) || json_integer_value(turn) < 0 || json_integer_value(turn) > INT32_MAX)
        return "has a turn that is no number from 0 on";
    span->turn = (int32_t)json_integer_value(turn);
    return NULL;
}

kvant_status tag_spans_load(const char *file, kvant_tag_span **spans, uint32_t *count, kvant_diag *diag) {
    kvant_file_map map;
    *spans = NULL;
    *count = 0;
    kvant_status status = kvant_file_map_open(file, &map, diag);
    if (status != KVANT_OK) return status;
    json_error_t error;
    json_t *array = json_loadb((const char *)map.bytes, map.size, JSON_REJECT_DUPLICATES, &error);
    size_t size = json_array_size(array);
    if (array == NULL)
        status = kvant_file_fail(diag, KVANT_ERROR_SYNTAX, file, "line %d: %s", error.line, error.text);
    else if (size == 0)
        status = kvant_file_fail(diag, KVANT_ERROR_SYNTAX, file, "must be an array of spans, and not empty");
    else if ((*spans = calloc(size, sizeof **spans)) == NULL)
        status = kvant_file_fail(diag, KVANT_ERROR_MEMORY, file, "out of memory");
    for (size_t i = 0; i < size && status == KVANT_OK; i++) {
        const char *fault = read_span(json_array_get(array, i), &(*spans)[i]);
        if (fault != NULL) status = kvant_file_fail(diag, KVANT_ERROR_VALUE, file, "span %zu %s", i, fault);
    }
    *count = (uint32_t)size;
    json_decref(array);
    kvant_file_map_close(&map);
    return status;
}
