/* [codec NAME] sections, the sections of their tables, and codecs named by a plugin alone. See pipeline.h. */
#include "pipeline/pipeline.h"

#include "base/text.h"
#include "plugin/schema.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>

static kvant_status no_memory(const kvant_pipeline *pipeline, kvant_diag *diag) {
    return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_MEMORY, 0, "", "out of memory");
}

/* ---- Specs --------------------------------------------------------------------------------------------- */

static kvant_codec_spec *add_spec(kvant_pipeline *pipeline, const kvant_plugin *plugin, const char *name,
                                  kvant_diag *diag) {
    size_t count = plugin->descriptor->param_count;
    kvant_codec_spec spec = {.name = kvant_arena_string(&pipeline->arena, name), .plugin = plugin};
    spec.values = kvant_arena_alloc(&pipeline->arena, count, sizeof *spec.values);
    spec.lines = kvant_arena_alloc(&pipeline->arena, count, sizeof *spec.lines);
    kvant_codec_spec *specs = realloc(pipeline->specs, (pipeline->spec_count + (size_t)1) * sizeof *specs);
    if (specs != NULL) pipeline->specs = specs;
    if (specs == NULL || spec.name == NULL || spec.values == NULL || spec.lines == NULL) {
        (void)no_memory(pipeline, diag);
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++)
        kvant_schema_default(kvant_schema_param(plugin->descriptor, i), &spec.values[i]);
    pipeline->specs[pipeline->spec_count] = spec;
    return &pipeline->specs[pipeline->spec_count++];
}

/* The plugin called `name`; an error gets the line of the text that names it. */
static kvant_status find_plugin(const kvant_pipeline *pipeline, const char *name, int32_t line,
                                const char *key, const kvant_plugin **plugin, kvant_diag *diag) {
    kvant_diag why = {.struct_size = sizeof why};
    kvant_status status = kvant_plugin_find(name, plugin, &why);
    return status == KVANT_OK ? status
                              : kvant_pipeline_fail(pipeline, diag, status, line, key, "%s", why.message);
}

static int32_t spec_of_section(const kvant_pipeline *pipeline, const char *name) {
    for (uint32_t i = 0; i < pipeline->spec_count; i++)
        if (strcmp(pipeline->specs[i].name, name) == 0) return (int32_t)i;
    return KVANT_SPEC_NONE;
}

/* The [codec] section that `word` was meant to be, NULL if none is near. */
static const char *nearest_section(const kvant_pipeline *pipeline, const char *word) {
    const char **names = malloc((pipeline->spec_count + (size_t)1) * sizeof *names);
    if (names == NULL) return NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < pipeline->spec_count; i++)
        if (pipeline->specs[i].line != 0) names[count++] = pipeline->specs[i].name;
    const char *nearest = kvant_nearest(word, names, count);
    free(names);
    return nearest;
}

kvant_status kvant_pipeline_find_spec(kvant_pipeline *pipeline, const char *word, int32_t line,
                                      const char *key, int32_t *spec, kvant_diag *diag) {
    int32_t found = spec_of_section(pipeline, word);
    if (found == KVANT_SPEC_NONE) {
        const char *section = nearest_section(pipeline, word);
        if (!kvant_is_name(word))
            return kvant_pipeline_fail(
                pipeline, diag, KVANT_ERROR_VALUE, line, key,
                "\"%s\" is no codec's name: a letter, then letters, digits and _, lower case, at "
                "most 32; parameters go into a [codec NAME] section",
                word);
        const kvant_plugin *plugin = NULL;
        kvant_diag why = {.struct_size = sizeof why};
        kvant_status status = kvant_plugin_find(word, &plugin, &why);
        if (status == KVANT_ERROR_PLUGIN_NOT_FOUND && section != NULL)
            return kvant_pipeline_fail(
                pipeline, diag, KVANT_ERROR_UNKNOWN_NAME, line, key,
                "there is neither a [codec %s] section nor a plugin %s; did you mean the section "
                "\"%s\"?",
                word, word, section);
        if (status != KVANT_OK)
            return kvant_pipeline_fail(pipeline, diag, status, line, key, "%s", why.message);
        if (add_spec(pipeline, plugin, word, diag) == NULL) return KVANT_ERROR_MEMORY;
        found = (int32_t)pipeline->spec_count - 1;
    }
    pipeline->specs[found].used = true;
    *spec = found;
    return KVANT_OK;
}

/* ---- Tables -------------------------------------------------------------------------------------------- */

/* The rows of section [param title]; consumed[] tells which sections somebody used. */
static kvant_status read_table(kvant_pipeline *pipeline, const kvant_param *param,
                               const kvant_ini_entry *entry, kvant_value *value, bool *consumed,
                               kvant_diag *diag) {
    const kvant_ini *ini = pipeline->ini;
    uint32_t at = 0;
    while (at < ini->section_count && (strcmp(ini->sections[at].kind, param->name) != 0 ||
                                       strcmp(ini->sections[at].title, entry->value) != 0))
        at++;
    if (at == ini->section_count)
        return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_UNKNOWN_NAME, entry->line, entry->key,
                                   "%s = %s names a table, and there is no section [%s %s]", entry->key,
                                   entry->value, entry->key, entry->value);
    const kvant_ini_section *section = &ini->sections[at];
    kvant_table_row *rows = kvant_arena_alloc(&pipeline->arena, section->count, sizeof *rows);
    if (rows == NULL) return no_memory(pipeline, diag);
    for (uint32_t i = 0; i < section->count; i++) {
        const kvant_ini_entry *line = &ini->entries[section->first + i];
        kvant_diag why = {.struct_size = sizeof why};
        kvant_status status = kvant_schema_parse_row(param, line->key, line->value, &rows[i], &why);
        if (status != KVANT_OK)
            return kvant_pipeline_fail(pipeline, diag, status, line->line, line->key, "%s", why.message);
    }
    consumed[at] = true;
    *value = (kvant_value){.rows = rows, .row_count = section->count, .given = 1};
    return KVANT_OK;
}

/* ---- Sections ------------------------------------------------------------------------------------------ */

static kvant_status read_parameter(kvant_pipeline *pipeline, kvant_codec_spec *spec,
                                   const kvant_ini_entry *entry, bool *consumed, kvant_diag *diag) {
    uint32_t index = 0;
    kvant_diag why = {.struct_size = sizeof why};
    kvant_status status = kvant_schema_find(spec->plugin->descriptor, entry->key, &index, &why);
    if (status == KVANT_OK) {
        const kvant_param *param = kvant_schema_param(spec->plugin->descriptor, index);
        spec->lines[index] = entry->line;
        if (param->type == KVANT_PARAM_TABLE)
            return read_table(pipeline, param, entry, &spec->values[index], consumed, diag);
        status = kvant_schema_parse(param, entry->value, &spec->values[index], &why);
    }
    return status == KVANT_OK
               ? status
               : kvant_pipeline_fail(pipeline, diag, status, entry->line, entry->key, "%s", why.message);
}

static kvant_status lacks_plugin(const kvant_pipeline *pipeline, const kvant_ini_section *section,
                                 kvant_diag *diag) {
    static const char *const word[] = {"plugin"};
    for (uint32_t i = 0; i < section->count; i++) {
        const kvant_ini_entry *entry = &pipeline->ini->entries[section->first + i];
        if (kvant_nearest(entry->key, word, 1) != NULL)
            return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_UNKNOWN_NAME, entry->line, entry->key,
                                       "[codec %s] has no key \"%s\"; did you mean \"plugin\"?",
                                       section->title, entry->key);
    }
    return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_SYNTAX, section->line, "plugin",
                               "[codec %s] lacks the line plugin = NAME", section->title);
}

static kvant_status read_codec(kvant_pipeline *pipeline, const kvant_ini_section *section, bool *consumed,
                               kvant_diag *diag) {
    if (!kvant_is_name(section->title))
        return kvant_pipeline_fail(
            pipeline, diag, KVANT_ERROR_SYNTAX, section->line, "",
            "[codec %s]: a codec has a name of its own: a letter, then letters, digits and _, "
            "lower case, at most 32",
            section->title);
    const kvant_ini_entry *entries = &pipeline->ini->entries[section->first], *named = NULL;
    for (uint32_t i = 0; i < section->count; i++)
        if (strcmp(entries[i].key, "plugin") == 0) named = &entries[i];
    if (named == NULL) return lacks_plugin(pipeline, section, diag);
    if (!kvant_is_name(named->value))
        return kvant_pipeline_fail(
            pipeline, diag, KVANT_ERROR_VALUE, named->line, "plugin",
            "plugin: \"%s\" is no plugin's name: a letter, then letters, digits and _, lower "
            "case, at most 32",
            named->value);
    const kvant_plugin *plugin = NULL;
    kvant_status status = find_plugin(pipeline, named->value, named->line, "plugin", &plugin, diag);
    if (status != KVANT_OK) return status;
    kvant_codec_spec *spec = add_spec(pipeline, plugin, section->title, diag);
    if (spec == NULL) return KVANT_ERROR_MEMORY;
    spec->line = section->line;
    for (uint32_t i = 0; status == KVANT_OK && i < section->count; i++)
        if (&entries[i] != named) status = read_parameter(pipeline, spec, &entries[i], consumed, diag);
    return status;
}

/* The kinds of section that this pipeline may have: three fixed ones and the tables of its plugins. */
static kvant_status unknown_section(const kvant_pipeline *pipeline, const kvant_ini_section *section,
                                    kvant_diag *diag) {
    const char *kinds[64] = {"pipeline", "codec", "layers"};
    uint32_t count = 3;
    for (uint32_t i = 0; i < pipeline->spec_count; i++) {
        const kvant_descriptor *descriptor = pipeline->specs[i].plugin->descriptor;
        for (uint32_t p = 0; p < descriptor->param_count; p++) {
            const kvant_param *param = kvant_schema_param(descriptor, p);
            if (param->type != KVANT_PARAM_TABLE) continue;
            if (strcmp(param->name, section->kind) == 0)
                return kvant_pipeline_fail(
                    pipeline, diag, KVANT_ERROR_CONFLICT, section->line, "",
                    "[%s %s] is used by no codec; say %s = %s in a [codec] section or remove it",
                    section->kind, section->title, section->kind,
                    section->title[0] != '\0' ? section->title : "NAME");
            if (count < sizeof kinds / sizeof kinds[0]) kinds[count++] = param->name;
        }
    }
    const char *nearest = kvant_nearest(section->kind, kinds, count);
    return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_UNKNOWN_NAME, section->line, "",
                               "there is no section [%s]; %s%s%s", section->kind,
                               nearest != NULL ? "did you mean ["
                                               : "there are [pipeline], [codec NAME], [layers RANGES",
                               nearest != NULL ? nearest : "", "]");
}

kvant_status kvant_pipeline_read_codecs(kvant_pipeline *pipeline, kvant_diag *diag) {
    const kvant_ini *ini = pipeline->ini;
    kvant_status status = KVANT_OK;
    bool *consumed = kvant_arena_alloc(&pipeline->arena, ini->section_count, sizeof *consumed);
    if (consumed == NULL) return no_memory(pipeline, diag);
    for (uint32_t i = 0; status == KVANT_OK && i < ini->section_count; i++) {
        const char *kind = ini->sections[i].kind;
        if (strcmp(kind, "codec") == 0) status = read_codec(pipeline, &ini->sections[i], consumed, diag);
        if (strcmp(kind, "codec") == 0 || strcmp(kind, "pipeline") == 0 || strcmp(kind, "layers") == 0)
            consumed[i] = true;
    }
    for (uint32_t i = 0; status == KVANT_OK && i < ini->section_count; i++)
        if (!consumed[i]) status = unknown_section(pipeline, &ini->sections[i], diag);
    return status;
}
