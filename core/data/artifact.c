/* See artifact.h. */
#include "artifact.h"

#include "base/text.h"
#include "digest.h"
#include "file.h"
#include "numbers.h"
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

/* The tensors [first, first + count) belong to this layer and side. */
typedef struct artifact_row {
    uint32_t layer;
    uint32_t side;
    uint32_t first;
    uint32_t count;
} artifact_row;

struct kvant_artifact {
    char *name;
    kvant_file_map map; /* empty where the bytes are the caller's */
    kvant_safetensors *st;
    /* Sorted by full name, so that those of a row lie together and are sorted; names are without prefix. */
    kvant_array *tensors;
    artifact_row *rows;
    uint32_t row_count;
    char digest[2 * KVANT_SHA256_BYTES + 1];
};

/* ---- Open ---------------------------------------------------------------------------------------------- */

/* "layers.<number>.<key|value>.<rest>" */
static bool split_name(const char *name, uint32_t *layer, uint32_t *side, const char **rest) {
    if (strncmp(name, "layers.", 7) != 0) return false;
    const char *digits = name + 7, *c = digits;
    uint64_t number = 0;
    for (; *c >= '0' && *c <= '9' && number <= UINT32_MAX; c++) number = number * 10 + (uint64_t)(*c - '0');
    if (c == digits || (digits[0] == '0' && c > digits + 1) || number >= UINT32_MAX) return false;
    *layer = (uint32_t)number;
    if (strncmp(c, ".key.", 5) == 0) {
        *side = KVANT_SIDE_KEY;
        *rest = c + 5;
    } else if (strncmp(c, ".value.", 7) == 0) {
        *side = KVANT_SIDE_VALUE;
        *rest = c + 7;
    } else {
        return false;
    }
    return **rest != '\0';
}

static kvant_status read_tensors(kvant_artifact *artifact, kvant_diag *diag) {
    uint32_t count = kvant_safetensors_count(artifact->st);
    artifact->tensors = calloc((size_t)count + 1, sizeof *artifact->tensors);
    artifact->rows = calloc((size_t)count + 1, sizeof *artifact->rows);
    if (artifact->tensors == NULL || artifact->rows == NULL)
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, artifact->name, "out of memory");
    for (uint32_t i = 0; i < count; i++) {
        artifact_row row = {.first = i};
        const char *rest;
        artifact->tensors[i] = *kvant_safetensors_at(artifact->st, i);
        if (!split_name(artifact->tensors[i].name, &row.layer, &row.side, &rest))
            return kvant_file_fail(diag, KVANT_ERROR_CORRUPT, artifact->name,
                                   "tensor \"%.200s\": the tensors of an artifact are called "
                                   "layers.<number>.<key|value>.<name>",
                                   artifact->tensors[i].name);
        artifact->tensors[i].name = rest;
        artifact_row *last = artifact->row_count > 0 ? &artifact->rows[artifact->row_count - 1] : NULL;
        if (last == NULL || last->layer != row.layer || last->side != row.side)
            *(last = &artifact->rows[artifact->row_count++]) = row;
        last->count++;
    }
    return KVANT_OK;
}

static kvant_status read_artifact(kvant_artifact *artifact, const void *bytes, size_t size,
                                  kvant_diag *diag) {
    unsigned char digest[KVANT_SHA256_BYTES];
    kvant_status status = kvant_safetensors_parse(bytes, size, artifact->name, &artifact->st, diag);
    if (status != KVANT_OK) return status;
    const char *format = kvant_safetensors_metadata(artifact->st, "format");
    if (format == NULL || strcmp(format, "kvant-artifact/1") != 0)
        return kvant_file_fail(diag, KVANT_ERROR_VERSION, artifact->name,
                               "not an artifact: metadata \"format\" is %s%.80s%s, not \"kvant-artifact/1\"",
                               format != NULL ? "\"" : "", format != NULL ? format : "missing",
                               format != NULL ? "\"" : "");
    status = kvant_sha256(bytes, size, digest);
    if (status != KVANT_OK) return kvant_file_fail(diag, status, artifact->name, "out of memory");
    kvant_hex(digest, sizeof digest, artifact->digest);
    return read_tensors(artifact, diag);
}

kvant_status kvant_artifact_parse(const void *bytes, size_t size, const char *name, kvant_artifact **out,
                                  kvant_diag *diag) {
    kvant_artifact *artifact = calloc(1, sizeof *artifact);
    if (artifact == NULL || (artifact->name = strdup(name)) == NULL) {
        free(artifact);
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, name, "out of memory");
    }
    kvant_status status = read_artifact(artifact, bytes, size, diag);
    if (status == KVANT_OK)
        *out = artifact;
    else
        kvant_artifact_close(artifact);
    return status;
}

/* One mapping for digest and tensors, so that both are of the same bytes. */
kvant_status kvant_artifact_open(const char *file, kvant_artifact **out, kvant_diag *diag) {
    kvant_file_map map;
    kvant_status status = kvant_file_map_open(file, &map, diag);
    if (status != KVANT_OK) return status;
    status = kvant_artifact_parse(map.bytes, map.size, file, out, diag);
    if (status == KVANT_OK)
        (*out)->map = map;
    else
        kvant_file_map_close(&map);
    return status;
}

void kvant_artifact_close(kvant_artifact *artifact) {
    if (artifact == NULL) return;
    kvant_safetensors_close(artifact->st);
    kvant_file_map_close(&artifact->map);
    free(artifact->tensors);
    free(artifact->rows);
    free(artifact->name);
    free(artifact);
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

const char *kvant_artifact_file(const kvant_artifact *artifact) {
    return artifact->name;
}

const char *kvant_artifact_digest(const kvant_artifact *artifact) {
    return artifact->digest;
}

const char *kvant_artifact_metadata(const kvant_artifact *artifact, const char *key) {
    return kvant_safetensors_metadata(artifact->st, key);
}

const kvant_array *kvant_artifact_tensors(const kvant_artifact *artifact, uint32_t layer, uint32_t side,
                                          uint32_t *count) {
    *count = 0;
    for (uint32_t i = 0; i < artifact->row_count; i++) {
        const artifact_row *row = &artifact->rows[i];
        if (row->layer != layer || row->side != side) continue;
        *count = row->count;
        return &artifact->tensors[row->first];
    }
    return NULL;
}

/* ---- Fit to a geometry --------------------------------------------------------------------------------- */

enum { COUNT_MAX = 0x7fffffff };

typedef uint32_t geometry_number(const kvant_geometry *geometry, uint32_t layer);

static uint32_t layers_of(const kvant_geometry *geometry, uint32_t layer) {
    (void)layer;
    return geometry->layer_count;
}
static uint32_t kv_heads_of(const kvant_geometry *geometry, uint32_t layer) {
    return geometry->layers[layer].total_kv_heads;
}
static uint32_t q_heads_of(const kvant_geometry *geometry, uint32_t layer) {
    const kvant_layer_geometry *l = &geometry->layers[layer];
    return l->q_heads / l->kv_heads * l->total_kv_heads;
}
static uint32_t key_dim_of(const kvant_geometry *geometry, uint32_t layer) {
    return geometry->layers[layer].key_dim;
}
static uint32_t value_dim_of(const kvant_geometry *geometry, uint32_t layer) {
    return geometry->layers[layer].value_dim;
}

static kvant_status check_number(const kvant_artifact *artifact, const kvant_geometry *geometry,
                                 const char *key, geometry_number *want, kvant_diag *diag) {
    const char *text = kvant_artifact_metadata(artifact, key);
    if (text == NULL) return KVANT_OK;
    kvant_numbers numbers;
    kvant_status status = kvant_numbers_read(text, true, 1, COUNT_MAX, &numbers);
    if (status != KVANT_OK)
        return kvant_file_fail(diag, status, artifact->name, "metadata \"%s\": \"%.80s\" is not %s", key,
                               text, "a whole number > 0 (or one per layer)");
    if (numbers.count != 1 && numbers.count != geometry->layer_count)
        status = kvant_file_fail(diag, KVANT_ERROR_MISMATCH, artifact->name,
                                 "metadata \"%s\" has %zu numbers, and there are %u layers", key,
                                 numbers.count, geometry->layer_count);
    for (uint32_t l = 0; l < geometry->layer_count && status == KVANT_OK; l++) {
        double learned = kvant_numbers_at(&numbers, l, 0);
        if (learned == want(geometry, l)) continue;
        status = want == layers_of ? kvant_file_fail(diag, KVANT_ERROR_MISMATCH, artifact->name,
                                                     "learned for %s = %.0f, and the model has %u", key,
                                                     learned, geometry->layer_count)
                                   : kvant_file_fail(diag, KVANT_ERROR_MISMATCH, artifact->name,
                                                     "learned for %s = %.0f, and layer %u has %u", key,
                                                     learned, l, want(geometry, l));
    }
    kvant_numbers_free(&numbers);
    return status;
}

static kvant_status check_key_rope(const kvant_artifact *artifact, const kvant_geometry *geometry,
                                   kvant_diag *diag) {
    const char *text = kvant_artifact_metadata(artifact, "key_rope");
    const char *want = geometry->keys == KVANT_KEYS_BEFORE_ROPE ? "pre" : "post";
    if (text == NULL || strcmp(text, want) == 0) return KVANT_OK;
    if (strcmp(text, "pre") != 0 && strcmp(text, "post") != 0)
        return kvant_file_fail(diag, KVANT_ERROR_VALUE, artifact->name,
                               "metadata \"key_rope\": \"%.80s\" is not pre or post", text);
    return kvant_file_fail(
        diag, KVANT_ERROR_MISMATCH, artifact->name, "learned from keys %s RoPE, and these are keys %s it",
        strcmp(text, "pre") == 0 ? "before" : "after", strcmp(want, "pre") == 0 ? "before" : "after");
}

/* What another model's keys and values look like says nothing about this one's. */
static kvant_status check_model(const kvant_artifact *artifact, const kvant_geometry *geometry,
                                kvant_diag *diag) {
    const char *model = kvant_artifact_metadata(artifact, "model");
    if (model == NULL || geometry->model == NULL || strcmp(model, geometry->model) == 0) return KVANT_OK;
    return kvant_file_fail(diag, KVANT_ERROR_MISMATCH, artifact->name,
                           "learned from the model \"%.300s\", and this is \"%.300s\"", model,
                           geometry->model);
}

kvant_status kvant_artifact_check(const kvant_artifact *artifact, const kvant_geometry *geometry,
                                  kvant_diag *diag) {
    kvant_status status = check_number(artifact, geometry, "layers", layers_of, diag);
    if (status == KVANT_OK) status = check_number(artifact, geometry, "kv_heads", kv_heads_of, diag);
    if (status == KVANT_OK) status = check_number(artifact, geometry, "q_heads", q_heads_of, diag);
    if (status == KVANT_OK) status = check_number(artifact, geometry, "head_dim", key_dim_of, diag);
    if (status == KVANT_OK) status = check_number(artifact, geometry, "value_dim", value_dim_of, diag);
    if (status == KVANT_OK) status = check_key_rope(artifact, geometry, diag);
    if (status == KVANT_OK) status = check_model(artifact, geometry, diag);
    for (uint32_t i = 0; i < artifact->row_count && status == KVANT_OK; i++)
        if (artifact->rows[i].layer >= geometry->layer_count)
            status = kvant_file_fail(diag, KVANT_ERROR_MISMATCH, artifact->name,
                                     "has tensors of layer %u, and there are %u layers",
                                     artifact->rows[i].layer, geometry->layer_count);
    return status;
}
