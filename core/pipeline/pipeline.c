/* Pipelines: from a file, from memory, from a codec's name; and the [pipeline] section. See pipeline.h. */
#include "pipeline/pipeline.h"

#include "base/text.h"
#include "plugin/fpenv.h"
#include "plugin/isa_level.h"
#include "plugin/schema.h"

#include <kvant/kit/diag.h>

#include <errno.h>
#include <stdlib.h>

kvant_status kvant_pipeline_fail(const kvant_pipeline *pipeline, kvant_diag *diag, kvant_status status,
                                 int32_t line, const char *key, const char *format, ...) {
    char message[sizeof diag->message];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    kvant_ini ini = {.file = pipeline->file};
    return kvant_ini_fail(&ini, diag, status, line, key, "%s", message);
}

/* ---- [pipeline] ---------------------------------------------------------------------------------------- */

static const char *const center_choices[] = {"none", "artifact"};
static const char *const nonfinite_choices[] = {"error", "saturate"};

/* The keys that are numbers or choices go through the same reader as the parameters of codecs. */
enum { HEAD_BLOCK_TOKENS, HEAD_SINKS, HEAD_RECENT, HEAD_KEY_CENTER, HEAD_ON_NONFINITE, HEAD_VALUES };
static const kvant_param head_params[HEAD_VALUES] = {
    [HEAD_BLOCK_TOKENS] = {.struct_size = sizeof(kvant_param),
                           .type = KVANT_PARAM_INTEGER,
                           .name = "block_tokens",
                           .unit = "tokens",
                           .help = "",
                           .integer_min = 1,
                           .integer_max = KVANT_BLOCK_TOKENS_MAX,
                           .integer_default = 64},
    [HEAD_SINKS] = {.struct_size = sizeof(kvant_param),
                    .type = KVANT_PARAM_INTEGER,
                    .name = "sinks",
                    .unit = "tokens",
                    .help = "",
                    .integer_max = KVANT_BLOCK_TOKENS_MAX - 1},
    [HEAD_RECENT] = {.struct_size = sizeof(kvant_param),
                     .type = KVANT_PARAM_INTEGER,
                     .name = "recent",
                     .unit = "tokens",
                     .help = "",
                     .integer_max = 1 << 24},
    [HEAD_KEY_CENTER] = {.struct_size = sizeof(kvant_param),
                         .type = KVANT_PARAM_CHOICE,
                         .name = "key_center",
                         .unit = "",
                         .help = "",
                         .choices = center_choices,
                         .choice_count = 2},
    [HEAD_ON_NONFINITE] = {.struct_size = sizeof(kvant_param),
                           .type = KVANT_PARAM_CHOICE,
                           .name = "on_nonfinite",
                           .unit = "",
                           .help = "",
                           .choices = nonfinite_choices,
                           .choice_count = 2},
};

static const char *const head_keys[] = {"block_tokens", "sinks", "recent",   "key_center",
                                        "on_nonfinite", "name",  "artifact", "on_unsupported"};
enum { HEAD_KEYS = sizeof head_keys / sizeof head_keys[0] };

static const kvant_ini_section *find_section(const kvant_pipeline *pipeline, const char *kind) {
    for (uint32_t i = 0; i < pipeline->ini->section_count; i++)
        if (strcmp(pipeline->ini->sections[i].kind, kind) == 0) return &pipeline->ini->sections[i];
    return NULL;
}

/* artifact = none, or a file: absolute, or relative to the pipeline's own. */
static kvant_status read_artifact(kvant_pipeline *pipeline, const kvant_ini_entry *entry,
                                  const char *directory, kvant_diag *diag) {
    if (strcmp(entry->value, "none") == 0) return KVANT_OK;
    bool absolute = entry->value[0] == '/';
    if (!absolute && directory == NULL)
        return kvant_pipeline_fail(
            pipeline, diag, KVANT_ERROR_VALUE, entry->line, "artifact",
            "artifact: \"%s\" is a relative path, and a pipeline from memory has no directory; "
            "give an absolute one",
            entry->value);
    kvant_text path = {0};
    if (!absolute) kvant_text_printf(&path, "%s/", directory);
    kvant_text_puts(&path, entry->value);
    pipeline->artifact = path.failed ? NULL : kvant_arena_string(&pipeline->arena, path.data);
    kvant_text_free(&path);
    return pipeline->artifact != NULL ? KVANT_OK
                                      : kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_MEMORY, entry->line,
                                                            "artifact", "out of memory");
}

/* on_unsupported = error | use NAME; called when the codecs are known. */
static kvant_status read_replacement(kvant_pipeline *pipeline, const kvant_ini_entry *entry,
                                     kvant_diag *diag) {
    const char *word = entry->value;
    if (strcmp(word, "error") == 0) return KVANT_OK;
    if (strncmp(word, "use", 3) != 0 || (word[3] != ' ' && word[3] != '\t'))
        return kvant_pipeline_fail(
            pipeline, diag, KVANT_ERROR_VALUE, entry->line, entry->key,
            "on_unsupported: \"%s\" is not allowed: it takes error, or use and the name of a "
            "codec (use raw)",
            word);
    word += 3 + strspn(word + 3, " \t");
    return kvant_pipeline_find_spec(pipeline, word, entry->line, entry->key, &pipeline->replacement, diag);
}

static kvant_status read_head_value(kvant_pipeline *pipeline, const kvant_ini_entry *entry,
                                    kvant_value *values, int32_t *lines, const char *directory,
                                    kvant_diag *diag) {
    for (uint32_t i = 0; i < HEAD_VALUES; i++) {
        if (strcmp(head_params[i].name, entry->key) != 0) continue;
        kvant_diag why = {.struct_size = sizeof why};
        lines[i] = entry->line;
        kvant_status status = kvant_schema_parse(&head_params[i], entry->value, &values[i], &why);
        return status == KVANT_OK
                   ? status
                   : kvant_pipeline_fail(pipeline, diag, status, entry->line, entry->key, "%s", why.message);
    }
    if (strcmp(entry->key, "name") == 0) {
        pipeline->name = entry->value;
        return KVANT_OK;
    }
    if (strcmp(entry->key, "artifact") == 0) return read_artifact(pipeline, entry, directory, diag);
    if (strcmp(entry->key, "on_unsupported") == 0) return KVANT_OK; /* once the codecs are known */
    const char *nearest = kvant_nearest(entry->key, head_keys, HEAD_KEYS);
    return kvant_pipeline_fail(
        pipeline, diag, KVANT_ERROR_UNKNOWN_NAME, entry->line, entry->key,
        "[pipeline] has no key \"%s\"; %s%s%s", entry->key,
        nearest != NULL ? "did you mean \"" : "it has: name, block_tokens, sinks, recent, ",
        nearest != NULL ? nearest : "key_center, artifact, on_nonfinite, on_unsupported",
        nearest != NULL ? "\"?" : "");
}

kvant_status kvant_pipeline_read_head(kvant_pipeline *pipeline, const char *directory, kvant_diag *diag) {
    kvant_value values[HEAD_VALUES];
    int32_t lines[HEAD_VALUES] = {0};
    for (uint32_t i = 0; i < HEAD_VALUES; i++) kvant_schema_default(&head_params[i], &values[i]);
    const kvant_ini_section *section = pipeline->ini != NULL ? find_section(pipeline, "pipeline") : NULL;
    for (uint32_t i = 0; section != NULL && i < section->count; i++) {
        const kvant_ini_entry *entry = &pipeline->ini->entries[section->first + i];
        kvant_status status = read_head_value(pipeline, entry, values, lines, directory, diag);
        if (status != KVANT_OK) return status;
    }
    pipeline->block_tokens = (uint32_t)values[HEAD_BLOCK_TOKENS].integer;
    pipeline->block_tokens_line = lines[HEAD_BLOCK_TOKENS];
    pipeline->sinks = (uint32_t)values[HEAD_SINKS].integer;
    pipeline->recent = (uint32_t)values[HEAD_RECENT].integer;
    pipeline->key_center = (uint32_t)values[HEAD_KEY_CENTER].integer;
    pipeline->key_center_line = lines[HEAD_KEY_CENTER];
    pipeline->on_nonfinite = (uint32_t)values[HEAD_ON_NONFINITE].integer;
    if (pipeline->sinks >= pipeline->block_tokens)
        return kvant_pipeline_fail(
            pipeline, diag, KVANT_ERROR_CONFLICT, lines[HEAD_SINKS], "sinks",
            "sinks = %u: sinks lie in the first block, so fewer than block_tokens = %u of them",
            pipeline->sinks, pipeline->block_tokens);
    if (pipeline->key_center != 0 && pipeline->artifact == NULL)
        return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_CONFLICT, pipeline->key_center_line,
                                   "key_center",
                                   "key_center = artifact needs artifact = FILE; here it is none");
    return KVANT_OK;
}

/* ---- From text ----------------------------------------------------------------------------------------- */

static kvant_status check_head_title(const kvant_pipeline *pipeline, kvant_diag *diag) {
    for (uint32_t i = 0; i < pipeline->ini->section_count; i++) {
        const kvant_ini_section *section = &pipeline->ini->sections[i];
        if (strcmp(section->kind, "pipeline") == 0 && section->title[0] != '\0')
            return kvant_pipeline_fail(
                pipeline, diag, KVANT_ERROR_SYNTAX, section->line, "",
                "[pipeline %s]: there is one [pipeline], without a word behind it; its name is "
                "the key name",
                section->title);
    }
    return KVANT_OK;
}

static kvant_status read_sections(kvant_pipeline *pipeline, const char *directory, kvant_diag *diag) {
    kvant_status status = check_head_title(pipeline, diag);
    if (status == KVANT_OK) status = kvant_pipeline_read_head(pipeline, directory, diag);
    if (status == KVANT_OK) status = kvant_pipeline_read_codecs(pipeline, diag);
    const kvant_ini_section *head = find_section(pipeline, "pipeline");
    for (uint32_t i = 0; status == KVANT_OK && head != NULL && i < head->count; i++) {
        const kvant_ini_entry *entry = &pipeline->ini->entries[head->first + i];
        if (strcmp(entry->key, "on_unsupported") == 0) status = read_replacement(pipeline, entry, diag);
    }
    if (status == KVANT_OK) status = kvant_pipeline_read_layers(pipeline, diag);
    for (uint32_t i = 0; status == KVANT_OK && i < pipeline->spec_count; i++)
        if (!pipeline->specs[i].used)
            status = kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_CONFLICT, pipeline->specs[i].line, "",
                                         "[codec %s] is used by no [layers] section; use it or remove it",
                                         pipeline->specs[i].name);
    return status;
}

static kvant_pipeline *new_pipeline(kvant_diag *diag) {
    kvant_pipeline *pipeline = calloc(1, sizeof *pipeline);
    if (pipeline == NULL) {
        (void)kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
        return NULL;
    }
    pipeline->file = "";
    pipeline->name = "";
    pipeline->replacement = KVANT_SPEC_NONE;
    return pipeline;
}

/* "dir/balanced.ini" -> "balanced". */
static const char *base_name(kvant_arena *arena, const char *file) {
    const char *slash = strrchr(file, '/');
    const char *base = slash != NULL ? slash + 1 : file;
    size_t size = strlen(base);
    if (size > 4 && strcmp(base + size - 4, ".ini") == 0) size -= 4;
    return kvant_arena_copy(arena, base, size);
}

kvant_status kvant_pipeline_parse(const char *text, size_t size, const char *name, const char *directory,
                                  kvant_pipeline **pipeline, kvant_diag *diag) {
    if ((text == NULL && size != 0) || name == NULL || pipeline == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_pipeline_parse: text, name or pipeline is NULL");
    kvant_status status = kvant_isa_check(diag);
    if (status != KVANT_OK) return status;
    kvant_pipeline *made = new_pipeline(diag);
    if (made == NULL) return KVANT_ERROR_MEMORY;
    kvant_fp_state saved = kvant_fp_enter(); /* decimal numbers round to nearest, whatever the caller does */
    status = kvant_ini_parse(text, size, name, &made->ini, diag);
    if (status == KVANT_OK) {
        made->file = made->ini->file;
        made->name = base_name(&made->arena, made->file);
        status = made->name != NULL ? read_sections(made, directory, diag)
                                    : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    kvant_fp_leave(saved);
    if (status == KVANT_OK)
        *pipeline = made;
    else
        kvant_pipeline_free(made);
    return status;
}

/* ---- From a file --------------------------------------------------------------------------------------- */

/* Not a mapping: a pipeline may come through a pipe, and text that changes under the reader must not. */
static kvant_status read_file(const char *file, kvant_text *text, kvant_diag *diag) {
    FILE *stream = fopen(file, "rbe");
    char bytes[4096];
    size_t size = 0;
    while (stream != NULL && text->size <= KVANT_INI_SIZE_MAX &&
           (size = fread(bytes, 1, sizeof bytes, stream)) > 0)
        kvant_text_append(text, bytes, size);
    kvant_status status = stream == NULL || ferror(stream) ? KVANT_ERROR_IO
                          : text->failed                   ? KVANT_ERROR_MEMORY
                                                           : KVANT_OK;
    if (status != KVANT_OK) {
        kvant_ini ini = {.file = file};
        (void)kvant_ini_fail(&ini, diag, status, 0, "", "cannot be read: %s",
                             strerror(status == KVANT_ERROR_IO ? errno : ENOMEM));
    }
    if (stream != NULL) (void)fclose(stream);
    return status;
}

kvant_status kvant_pipeline_load(const char *file, kvant_pipeline **pipeline, kvant_diag *diag) {
    if (file == NULL || pipeline == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_pipeline_load: file or pipeline is NULL");
    kvant_text text = {0}, directory = {0};
    kvant_status status = read_file(file, &text, diag);
    if (status != KVANT_OK) goto out;
    const char *slash = strrchr(file, '/');
    if (slash == NULL)
        kvant_text_puts(&directory, ".");
    else
        kvant_text_append(&directory, file, slash == file ? 1 : (size_t)(slash - file));
    status = directory.failed
                 ? kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory")
                 : kvant_pipeline_parse(text.data, text.size, file, directory.data, pipeline, diag);
out:
    kvant_text_free(&text);
    kvant_text_free(&directory);
    return status;
}

/* ---- From a codec's name ------------------------------------------------------------------------------- */

/* What a side is stored as that the codec does not serve. The only codec that the library knows by name. */
static const char raw_codec[] = "raw";

static kvant_status fill_of_codec(kvant_pipeline *pipeline, const char *codec, kvant_diag *diag) {
    kvant_status status = kvant_pipeline_read_head(pipeline, NULL, diag);
    if (status == KVANT_OK) status = kvant_pipeline_read_layers(pipeline, diag);
    if (status != KVANT_OK) return status;
    int32_t spec = KVANT_SPEC_NONE, raw = KVANT_SPEC_NONE;
    status = kvant_pipeline_find_spec(pipeline, codec, 0, "", &spec, diag);
    if (status != KVANT_OK) return status;
    uint32_t sides = pipeline->specs[spec].plugin->descriptor->sides;
    if ((sides & KVANT_SIDES_BOTH) != KVANT_SIDES_BOTH) {
        status = kvant_pipeline_find_spec(pipeline, raw_codec, 0, "", &raw, diag);
        if (status != KVANT_OK) return status;
    }
    pipeline->rules[0].spec[KVANT_SIDE_KEY] = sides & KVANT_SIDES_KEY ? spec : raw;
    pipeline->rules[0].spec[KVANT_SIDE_VALUE] = sides & KVANT_SIDES_VALUE ? spec : raw;
    pipeline->name = kvant_arena_string(&pipeline->arena, codec);
    return pipeline->name != NULL ? KVANT_OK : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

kvant_status kvant_pipeline_of_codec(const char *codec, kvant_pipeline **pipeline, kvant_diag *diag) {
    if (codec == NULL || pipeline == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_pipeline_of_codec: codec or pipeline is NULL");
    kvant_status status = kvant_isa_check(diag);
    if (status != KVANT_OK) return status;
    kvant_pipeline *made = new_pipeline(diag);
    if (made == NULL) return KVANT_ERROR_MEMORY;
    status = fill_of_codec(made, codec, diag);
    if (status == KVANT_OK)
        *pipeline = made;
    else
        kvant_pipeline_free(made);
    return status;
}

kvant_status kvant_pipeline_open(const char *word, kvant_pipeline **pipeline, kvant_diag *diag) {
    if (word != NULL && kvant_is_name(word)) return kvant_pipeline_of_codec(word, pipeline, diag);
    return kvant_pipeline_load(word, pipeline, diag);
}

void kvant_pipeline_free(kvant_pipeline *pipeline) {
    if (pipeline == NULL) return;
    kvant_arena_free(&pipeline->arena);
    kvant_ini_free(pipeline->ini);
    free(pipeline->specs);
    free(pipeline);
}
