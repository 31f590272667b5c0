/* See description.h. */
#include "description.h"

#include "bytes.h"
#include "data/file.h"

#include <stdio.h>

#include <stdlib.h>
#include <string.h>

enum { GEOMETRY_NUMBERS = 4, NAME_BYTES = 32 };
static const char prefix[] = "dump.";
enum { PREFIX = sizeof prefix - 1 };

static kvant_status no_memory(const char *file, kvant_diag *diag) {
    return kvant_file_fail(diag, KVANT_ERROR_MEMORY, file, "out of memory");
}

/* ---- Write --------------------------------------------------------------------------------------------- */

static bool is_side(const char *name) {
    const char *last = strrchr(name, '.');
    return strncmp(name, "layers.", 7) == 0 && last != NULL &&
           (strcmp(last, ".key") == 0 || strcmp(last, ".value") == 0);
}

static bool is_kept(const char *name) {
    return !is_side(name) && strcmp(name, "tokens") != 0 && strcmp(name, "tags") != 0;
}

static char *prefixed(const char *name) {
    char *result = malloc(PREFIX + strlen(name) + 1);
    if (result == NULL) return NULL;
    memcpy(result, prefix, PREFIX);
    strcpy(result + PREFIX, name);
    return result;
}

static void put_geometry(const kvant_dump *dump, unsigned char *bytes) {
    const kvant_geometry *geometry = kvant_dump_geometry(dump);
    const kvant_dump_info *info = kvant_dump_describe(dump);
    for (uint32_t l = 0; l < geometry->layer_count; l++, bytes += GEOMETRY_NUMBERS * 4) {
        kvant_put32(bytes, geometry->layers[l].kv_heads);
        kvant_put32(bytes + 4, geometry->layers[l].q_heads);
        kvant_put32(bytes + 8, info->has_keys ? geometry->layers[l].key_dim : 0);
        kvant_put32(bytes + 12, info->has_values ? geometry->layers[l].value_dim : 0);
    }
}

/* The dump's own strings, `model` replaced; *count grows. False without memory. */
static bool put_dump_metadata(const kvant_description_source *source, kvant_metadata *metadata,
                              uint32_t *count) {
    const kvant_safetensors *st = kvant_dump_file(source->dump);
    bool has_model = false;
    for (uint32_t i = 0; i < kvant_safetensors_metadata_count(st); i++) {
        const char *key = kvant_safetensors_metadata_key(st, i);
        bool model = strcmp(key, "model") == 0 && source->model != NULL;
        has_model = has_model || model;
        metadata[*count] =
            (kvant_metadata){prefixed(key), model ? source->model : kvant_safetensors_metadata(st, key)};
        if (metadata[(*count)++].key == NULL) return false;
    }
    if (source->model == NULL || has_model) return true;
    metadata[*count] = (kvant_metadata){prefixed("model"), source->model};
    return metadata[(*count)++].key != NULL;
}

kvant_status kvant_description_write(const kvant_description_source *source, const char *file,
                                     kvant_text *text, kvant_diag *diag) {
    const kvant_safetensors *st = kvant_dump_file(source->dump);
    const kvant_dump_info *info = kvant_dump_describe(source->dump);
    uint32_t layers = kvant_dump_geometry(source->dump)->layer_count, count = 0, metadata_count = 0, own = 0;
    const char *canonical = NULL;
    kvant_status status = kvant_plan_canonical(source->plan, &canonical, diag);
    if (status != KVANT_OK) return status;
    unsigned char *geometry = malloc((size_t)layers * GEOMETRY_NUMBERS * 4);
    kvant_array *arrays = calloc((size_t)kvant_safetensors_count(st) + 1, sizeof *arrays);
    kvant_metadata *metadata = calloc((size_t)kvant_safetensors_metadata_count(st) + 9, sizeof *metadata);
    if (geometry == NULL || arrays == NULL || metadata == NULL) {
        status = no_memory(file, diag);
        goto out;
    }
    put_geometry(source->dump, geometry);
    arrays[count++] = (kvant_array){.name = "geometry",
                                    .data = geometry,
                                    .shape = {layers, GEOMETRY_NUMBERS},
                                    .bytes = (uint64_t)layers * GEOMETRY_NUMBERS * 4,
                                    .dtype = KVANT_DTYPE_U32,
                                    .rank = 2};
    metadata[metadata_count++] = (kvant_metadata){"format", "kvant-sequence/1"};
    metadata[metadata_count++] = (kvant_metadata){"pipeline", source->pipeline};
    metadata[metadata_count++] = (kvant_metadata){"pipeline_name", source->pipeline_name};
    metadata[metadata_count++] = (kvant_metadata){"canonical", canonical};
    metadata[metadata_count++] = (kvant_metadata){"tokens", info->token_ids != NULL ? "yes" : "no"};
    metadata[metadata_count++] = (kvant_metadata){"tags", info->tags != NULL ? "yes" : "no"};
    if (source->pipeline_directory != NULL)
        metadata[metadata_count++] = (kvant_metadata){"pipeline_directory", source->pipeline_directory};
    own = metadata_count;
    bool done = put_dump_metadata(source, metadata, &metadata_count);
    for (uint32_t i = 0; i < kvant_safetensors_count(st) && done; i++) {
        const kvant_array *array = kvant_safetensors_at(st, i);
        if (!is_kept(array->name)) continue;
        arrays[count] = *array;
        arrays[count].name = prefixed(array->name);
        done = arrays[count++].name != NULL;
    }
    status = done ? kvant_safetensors_pack(text, arrays, count, metadata, metadata_count, file, diag)
                  : no_memory(file, diag);
out:
    for (uint32_t i = own; i < metadata_count; i++) free((void *)(uintptr_t)metadata[i].key);
    for (uint32_t i = 1; i < count; i++) free((void *)(uintptr_t)arrays[i].name);
    free(metadata);
    free(arrays);
    free(geometry);
    return status;
}

/* ---- Read ---------------------------------------------------------------------------------------------- */

static kvant_status missing(const char *what, const char *file, kvant_diag *diag) {
    return kvant_file_fail(diag, KVANT_ERROR_CORRUPT, file, "description: \"%s\" is missing or wrong", what);
}

static kvant_status read_strings(kvant_description *d, const char *file, kvant_diag *diag) {
    const char *format = kvant_safetensors_metadata(d->st, "format");
    if (format == NULL || strcmp(format, "kvant-sequence/1") != 0) return missing("format", file, diag);
    d->pipeline = kvant_safetensors_metadata(d->st, "pipeline");
    d->pipeline_name = kvant_safetensors_metadata(d->st, "pipeline_name");
    d->pipeline_directory = kvant_safetensors_metadata(d->st, "pipeline_directory");
    d->canonical = kvant_safetensors_metadata(d->st, "canonical");
    if (d->pipeline == NULL) return missing("pipeline", file, diag);
    if (d->pipeline_name == NULL) return missing("pipeline_name", file, diag);
    if (d->canonical == NULL) return missing("canonical", file, diag);
    static const char *const names[2] = {"tokens", "tags"};
    bool *const flags[2] = {&d->has_tokens, &d->has_tags};
    for (unsigned i = 0; i < 2; i++) {
        const char *text = kvant_safetensors_metadata(d->st, names[i]);
        if (text == NULL || (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0))
            return missing(names[i], file, diag);
        *flags[i] = strcmp(text, "yes") == 0;
    }
    uint32_t count = kvant_safetensors_metadata_count(d->st);
    d->metadata = calloc((size_t)count + 1, sizeof *d->metadata);
    if (d->metadata == NULL) return no_memory(file, diag);
    for (uint32_t i = 0; i < count; i++) {
        const char *key = kvant_safetensors_metadata_key(d->st, i);
        if (strncmp(key, prefix, PREFIX) == 0)
            d->metadata[d->metadata_count++] =
                (kvant_metadata){key + PREFIX, kvant_safetensors_metadata(d->st, key)};
    }
    return KVANT_OK;
}

static bool add_array(kvant_description *d, const char *name, uint32_t dtype, uint64_t tokens, uint32_t heads,
                      uint32_t dim) {
    kvant_array *array = &d->arrays[d->array_count++];
    *array =
        (kvant_array){.name = name, .dtype = dtype, .shape = {tokens, heads, dim}, .rank = heads > 0 ? 3 : 1};
    return kvant_array_size(dtype, array->shape, array->rank, &array->bytes);
}

/* The number of layers is that of the geometry tensor, whose bytes are there: no count from the file is
 * believed. */
static kvant_status read_geometry(kvant_description *d, uint32_t dtype, uint64_t tokens, const char *file,
                                  kvant_diag *diag) {
    const kvant_array *geometry = kvant_safetensors_find(d->st, "geometry");
    if (geometry == NULL || geometry->dtype != KVANT_DTYPE_U32 || geometry->rank != 2 ||
        geometry->shape[1] != GEOMETRY_NUMBERS || geometry->shape[0] < 1 ||
        geometry->shape[0] > KVANT_RECORD_LAYERS_MAX)
        return missing("geometry", file, diag);
    d->layers = (uint32_t)geometry->shape[0];
    d->names = malloc((size_t)d->layers * 2 * NAME_BYTES);
    d->arrays = calloc((size_t)d->layers * 2 + 2 + kvant_safetensors_count(d->st), sizeof *d->arrays);
    if (d->names == NULL || d->arrays == NULL) return no_memory(file, diag);
    const unsigned char *numbers = geometry->data;
    d->has_keys = kvant_get32(numbers + 8) > 0;
    d->has_values = kvant_get32(numbers + 12) > 0;
    for (uint32_t l = 0; l < d->layers; l++, numbers += GEOMETRY_NUMBERS * 4)
        for (uint32_t side = 0; side < 2; side++) {
            uint32_t heads = kvant_get32(numbers), dim = kvant_get32(numbers + 8 + 4 * side);
            char *name = d->names + ((size_t)l * 2 + side) * NAME_BYTES;
            if (heads < 1 || (dim > 0) != (side == 0 ? d->has_keys : d->has_values))
                return missing("geometry", file, diag);
            if (dim == 0) continue;
            (void)snprintf(name, NAME_BYTES, "layers.%u.%s", l, side == 0 ? "key" : "value");
            if (!add_array(d, name, dtype, tokens, heads, dim)) return missing("geometry", file, diag);
        }
    if (d->has_tokens) add_array(d, "tokens", KVANT_DTYPE_I32, tokens, 0, 0);
    if (d->has_tags) add_array(d, "tags", KVANT_DTYPE_U8, tokens, 0, 0);
    for (uint32_t i = 0; i < kvant_safetensors_count(d->st); i++) {
        const kvant_array *array = kvant_safetensors_at(d->st, i);
        if (strncmp(array->name, prefix, PREFIX) != 0) continue;
        if (!is_kept(array->name + PREFIX)) return missing("geometry", file, diag);
        d->arrays[d->array_count] = *array;
        d->arrays[d->array_count++].name = array->name + PREFIX;
    }
    return KVANT_OK;
}

kvant_status kvant_description_read(kvant_record_part bytes, uint32_t dtype, uint64_t tokens,
                                    const char *file, kvant_description *description, kvant_diag *diag) {
    *description = (kvant_description){0};
    kvant_status status =
        kvant_safetensors_parse(bytes.bytes, (size_t)bytes.size, file, &description->st, diag);
    if (status == KVANT_OK) status = read_strings(description, file, diag);
    if (status == KVANT_OK) status = read_geometry(description, dtype, tokens, file, diag);
    if (status == KVANT_OK)
        status = kvant_dump_of_arrays(description->arrays, description->array_count, description->metadata,
                                      description->metadata_count, file, &description->dump, diag);
    if (status != KVANT_OK) kvant_description_free(description);
    return status;
}

void kvant_description_free(kvant_description *description) {
    kvant_dump_close(description->dump);
    free(description->arrays);
    free(description->metadata);
    free(description->names);
    kvant_safetensors_close(description->st);
    *description = (kvant_description){0};
}
