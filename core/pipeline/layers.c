/* [layers RANGES] sections: which layer and side uses which codec. See pipeline.h. */
#include "pipeline/pipeline.h"

#include "base/text.h"

#include <kvant/kit/diag.h>

static const char *const side_keys[2] = {"key", "value"};

/* ---- Ranges -------------------------------------------------------------------------------------------- */

/* -?digits of a layer; false if there is none or it is out of every model's reach. "-0" is no layer. */
static bool read_layer(const char **at, int32_t *layer) {
    bool negative = **at == '-';
    const char *digit = *at + negative;
    int32_t number = 0;
    if (*digit < '0' || *digit > '9') return false;
    for (; *digit >= '0' && *digit <= '9'; digit++) {
        number = 10 * number + (*digit - '0');
        if (number > KVANT_LAYERS_MAX) return false;
    }
    if (negative && number == 0) return false;
    *layer = negative ? -number : number;
    *at = digit;
    return true;
}

static bool is_separator(char c) {
    return c == ',' || c == ' ' || c == '\0';
}

/* One item, LAYER or LAYER-LAYER, up to a separator. */
static bool read_item(const char **at, kvant_layer_range *range) {
    if (!read_layer(at, &range->first)) return false;
    range->last = range->first;
    if (**at == '-') {
        (*at)++;
        if (!read_layer(at, &range->last)) return false;
    }
    return is_separator(**at);
}

/* Past the blanks and the one comma between two items. */
static bool read_separator(const char **at) {
    *at += strspn(*at, " ");
    if (**at != ',') return true;
    (*at)++;
    *at += strspn(*at, " ");
    return **at != '\0' && **at != ',';
}

kvant_status kvant_layer_ranges_parse(kvant_pipeline *pipeline, const char *text, int32_t line,
                                      const kvant_layer_range **ranges, uint32_t *count, kvant_diag *diag) {
    kvant_layer_range *made = kvant_arena_alloc(&pipeline->arena, strlen(text) / 2 + 1, sizeof *made);
    if (made == NULL)
        return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_MEMORY, line, "", "out of memory");
    *ranges = made;
    *count = 0;
    for (const char *at = text; *at != '\0';) {
        kvant_layer_range *range = &made[*count];
        const char *item = at;
        if (!read_item(&at, range) || !read_separator(&at))
            return kvant_pipeline_fail(
                pipeline, diag, KVANT_ERROR_SYNTAX, line, "",
                "[layers %s]: cannot read \"%.*s\"; layers are written like 0-3, 7, -2, -1 "
                "(negative: from the end; no blank inside a range)",
                text, (int)(item[0] == ',' ? 1 : strcspn(item, ", ")), item);
        if ((range->first < 0) == (range->last < 0) && range->first > range->last)
            return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_VALUE, line, "",
                                       "[layers %s]: the range %d-%d runs backwards; write %d-%d", text,
                                       (int)range->first, (int)range->last, (int)range->last,
                                       (int)range->first);
        (*count)++;
    }
    return KVANT_OK;
}

kvant_status kvant_layer_range_resolve(const kvant_pipeline *pipeline, const kvant_layer_rule *rule,
                                       uint32_t index, uint32_t layers, uint32_t *from, uint32_t *to,
                                       kvant_diag *diag) {
    const kvant_layer_range *range = &rule->ranges[index];
    int64_t first = range->first < 0 ? (int64_t)layers + range->first : range->first;
    int64_t last = range->last < 0 ? (int64_t)layers + range->last : range->last;
    for (int end = 0; end < 2; end++) {
        int64_t layer = end == 0 ? first : last;
        if (layer >= 0 && layer < (int64_t)layers) continue;
        return kvant_pipeline_fail(
            pipeline, diag, KVANT_ERROR_GEOMETRY, rule->line, "",
            "[layers ...]: there is no layer %d; the model has %u: 0 to %u, or -%u to -1",
            (int)(end == 0 ? range->first : range->last), layers, layers - 1, layers);
    }
    if (first > last)
        return kvant_pipeline_fail(
            pipeline, diag, KVANT_ERROR_VALUE, rule->line, "",
            "[layers ...]: the range %d-%d runs backwards on a model of %u layers: from %u to %u",
            (int)range->first, (int)range->last, layers, (uint32_t)first, (uint32_t)last);
    *from = (uint32_t)first;
    *to = (uint32_t)last;
    return KVANT_OK;
}

/* ---- Sections ------------------------------------------------------------------------------------------ */

static kvant_status read_rule(kvant_pipeline *pipeline, const kvant_ini_section *section,
                              kvant_layer_rule *rule, kvant_diag *diag) {
    rule->line = section->line;
    kvant_status status = kvant_layer_ranges_parse(pipeline, section->title, section->line, &rule->ranges,
                                                   &rule->range_count, diag);
    for (uint32_t i = 0; status == KVANT_OK && i < section->count; i++) {
        const kvant_ini_entry *entry = &pipeline->ini->entries[section->first + i];
        uint32_t side =
            strcmp(entry->key, side_keys[KVANT_SIDE_KEY]) == 0 ? KVANT_SIDE_KEY : KVANT_SIDE_VALUE;
        if (strcmp(entry->key, side_keys[side]) != 0) {
            const char *nearest = kvant_nearest(entry->key, side_keys, 2);
            return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_UNKNOWN_NAME, entry->line, entry->key,
                                       "[layers] has no key \"%s\"; %s%s%s", entry->key,
                                       nearest != NULL ? "did you mean \"" : "it has: key, value",
                                       nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
        }
        rule->spec_line[side] = entry->line;
        status = kvant_pipeline_find_spec(pipeline, entry->value, entry->line, entry->key, &rule->spec[side],
                                          diag);
    }
    if (status == KVANT_OK && section->count == 0)
        status = kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_SYNTAX, section->line, "",
                                     "[layers] says neither key = CODEC nor value = CODEC");
    return status;
}

kvant_status kvant_pipeline_read_layers(kvant_pipeline *pipeline, kvant_diag *diag) {
    uint32_t sections = pipeline->ini != NULL ? pipeline->ini->section_count : 0;
    pipeline->rules = kvant_arena_alloc(&pipeline->arena, (size_t)sections + 1, sizeof *pipeline->rules);
    if (pipeline->rules == NULL)
        return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_MEMORY, 0, "", "out of memory");
    for (uint32_t i = 0; i <= sections; i++)
        pipeline->rules[i].spec[KVANT_SIDE_KEY] = pipeline->rules[i].spec[KVANT_SIDE_VALUE] = KVANT_SPEC_NONE;
    if (pipeline->ini == NULL) { /* of a codec's name: one rule for every layer, filled by the caller */
        pipeline->rule_count = 1;
        return KVANT_OK;
    }
    for (uint32_t i = 0; i < sections; i++) {
        const kvant_ini_section *section = &pipeline->ini->sections[i];
        if (strcmp(section->kind, "layers") != 0) continue;
        kvant_status status = read_rule(pipeline, section, &pipeline->rules[pipeline->rule_count++], diag);
        if (status != KVANT_OK) return status;
    }
    if (pipeline->rule_count == 0)
        return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_SYNTAX, 0, "",
                                   "there is no [layers] section: no layer has a codec");
    return KVANT_OK;
}
