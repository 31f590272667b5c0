/* Tensors of a dump: which layers there are, and that their shapes agree. The strings are in
 * dump_metadata.c. */
#include "dump_internal.h"
#include "file.h"

#include <kvant/kit/view.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[DUMP_KINDS] = {"key", "value", "query"};

const char *kvant_dump_metadata(const dump_source *source, const char *key) {
    for (uint32_t i = 0; i < source->metadata_count; i++)
        if (strcmp(source->metadata[i].key, key) == 0) return source->metadata[i].value;
    return NULL;
}

static const kvant_array *find(const dump_source *source, const char *name) {
    for (uint32_t i = 0; i < source->count; i++)
        if (strcmp(source->arrays[i].name, name) == 0) return &source->arrays[i];
    return NULL;
}

/* ---- Names --------------------------------------------------------------------------------------------- */

/* "layers.<number>.<rest>", the number as a decimal without leading zeros. */
static bool split_name(const char *name, uint32_t *layer, const char **rest) {
    if (strncmp(name, "layers.", 7) != 0) return false;
    const char *digits = name + 7, *c = digits;
    uint64_t number = 0;
    for (; *c >= '0' && *c <= '9' && number <= UINT32_MAX; c++) number = number * 10 + (uint64_t)(*c - '0');
    if (c == digits || (digits[0] == '0' && c > digits + 1) || *c != '.' || c[1] == '\0' ||
        number >= UINT32_MAX)
        return false;
    *layer = (uint32_t)number;
    *rest = c + 1;
    return true;
}

static int kind_of(const char *rest) {
    for (int kind = 0; kind < DUMP_KINDS; kind++)
        if (strcmp(rest, kind_names[kind]) == 0) return kind;
    return -1;
}

/* `tensors` tensors leave a layer below that number without one: names it. */
static kvant_status name_gap(const kvant_dump *dump, const dump_source *source, uint32_t tensors,
                             kvant_diag *diag) {
    bool *seen = calloc((size_t)tensors + 1, sizeof *seen);
    if (seen == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, dump->file, "out of memory");
    uint32_t layer, gap = 0, highest = 0;
    const char *rest;
    for (uint32_t i = 0; i < source->count; i++) {
        if (!split_name(source->arrays[i].name, &layer, &rest) || kind_of(rest) < 0) continue;
        if (layer <= tensors) seen[layer] = true;
        if (layer > highest) highest = layer;
    }
    while (gap < tensors && seen[gap]) gap++;
    free(seen);
    return kvant_file_fail(diag, KVANT_ERROR_MISSING, dump->file,
                           "layer %u has no tensor, and the highest layer is %u", gap, highest);
}

static kvant_status count_layers(kvant_dump *dump, const dump_source *source, kvant_diag *diag) {
    uint32_t layer, layers = 0, tensors = 0;
    const char *rest;
    for (uint32_t i = 0; i < source->count; i++) {
        const char *name = source->arrays[i].name;
        if (strncmp(name, "layers.", 7) != 0) continue;
        if (!split_name(name, &layer, &rest))
            return kvant_file_fail(diag, KVANT_ERROR_CORRUPT, dump->file,
                                   "tensor \"%.200s\": a layer's tensor is called layers.<number>.<name>",
                                   name);
        if (kind_of(rest) < 0) continue;
        tensors++;
        if (layer >= layers) layers = layer + 1;
    }
    if (layers == 0)
        return kvant_file_fail(diag, KVANT_ERROR_MISSING, dump->file,
                               "no tensor is called layers.<number>.key or .value%s%.200s",
                               source->count > 0 ? "; there is " : "",
                               source->count > 0 ? source->arrays[0].name : "");
    if (layers > tensors) return name_gap(dump, source, tensors, diag);
    dump->geometry.layer_count = layers;
    return KVANT_OK;
}

/* A kind of tensor is in every layer or in none. */
static kvant_status collect_tensors(kvant_dump *dump, const dump_source *source, kvant_diag *diag) {
    uint32_t layers = dump->geometry.layer_count, layer;
    bool has[DUMP_KINDS] = {false};
    const char *rest;
    dump->tensors = calloc(layers, sizeof *dump->tensors);
    dump->layers = calloc(layers, sizeof *dump->layers);
    if (dump->tensors == NULL || dump->layers == NULL)
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, dump->file, "out of memory");
    for (uint32_t i = 0; i < source->count; i++) {
        if (!split_name(source->arrays[i].name, &layer, &rest)) continue;
        int kind = kind_of(rest);
        if (kind < 0) continue;
        has[kind] = true;
        dump->tensors[layer][kind] = &source->arrays[i];
    }
    for (uint32_t l = 0; l < layers; l++)
        for (int kind = 0; kind < DUMP_KINDS; kind++)
            if (has[kind] && dump->tensors[l][kind] == NULL)
                return kvant_file_fail(diag, KVANT_ERROR_MISSING, dump->file,
                                       "tensor \"layers.%u.%s\" is missing; other layers have it", l,
                                       kind_names[kind]);
    dump->info.has_keys = has[KVANT_DUMP_KEY];
    dump->info.has_values = has[KVANT_DUMP_VALUE];
    dump->info.has_queries = has[KVANT_DUMP_QUERY];
    if (dump->info.has_keys || dump->info.has_values) return KVANT_OK;
    return kvant_file_fail(diag, KVANT_ERROR_MISSING, dump->file,
                           "there are queries and neither keys nor values");
}

/* ---- Shapes -------------------------------------------------------------------------------------------- */

static kvant_status check_rows(const kvant_dump *dump, const kvant_array *array, kvant_diag *diag) {
    if (array->dtype != KVANT_DTYPE_F32 && array->dtype != KVANT_DTYPE_F16 &&
        array->dtype != KVANT_DTYPE_BF16)
        return kvant_file_fail(diag, KVANT_ERROR_DTYPE, dump->file,
                               "tensor \"%s\": dtype %s is not F32, F16 or BF16", array->name,
                               kvant_dtype_name(array->dtype));
    if (array->rank != 3)
        return kvant_file_fail(diag, KVANT_ERROR_GEOMETRY, dump->file,
                               "tensor \"%s\": rank %u, not [tokens, heads, head_dim]", array->name,
                               array->rank);
    static const char *const axes[3] = {"tokens", "heads", "head_dim"};
    static const uint64_t limits[3] = {INT32_MAX, DUMP_HEADS_MAX, DUMP_DIM_MAX};
    for (uint32_t i = 0; i < 3; i++)
        if (array->shape[i] < 1 || array->shape[i] > limits[i])
            return kvant_file_fail(
                diag, KVANT_ERROR_GEOMETRY, dump->file, "tensor \"%s\": %llu %s, not 1 to %llu", array->name,
                (unsigned long long)array->shape[i], axes[i], (unsigned long long)limits[i]);
    return KVANT_OK;
}

static kvant_status must_equal(const kvant_dump *dump, const kvant_array *array, const char *what,
                               uint64_t got, const kvant_array *other, uint64_t want, kvant_diag *diag) {
    if (got == want) return KVANT_OK;
    return kvant_file_fail(diag, KVANT_ERROR_GEOMETRY, dump->file,
                           "tensor \"%s\": %llu %s, and \"%s\" has %llu", array->name,
                           (unsigned long long)got, what, other->name, (unsigned long long)want);
}

static kvant_status same_dtype(const kvant_dump *dump, const kvant_array *array, const kvant_array *other,
                               kvant_diag *diag) {
    if (array->dtype == other->dtype) return KVANT_OK;
    return kvant_file_fail(diag, KVANT_ERROR_DTYPE, dump->file, "tensor \"%s\": %s, and \"%s\" is %s",
                           array->name, kvant_dtype_name(array->dtype), other->name,
                           kvant_dtype_name(other->dtype));
}

/* Queries may have a dtype of their own; keys and values share the geometry's. */
static kvant_status check_layer(kvant_dump *dump, uint32_t layer, kvant_diag *diag) {
    const kvant_array *const *tensors = dump->tensors[layer];
    const kvant_array *key = tensors[KVANT_DUMP_KEY], *value = tensors[KVANT_DUMP_VALUE];
    const kvant_array *query = tensors[KVANT_DUMP_QUERY];
    const kvant_array *rows = key != NULL ? key : value;
    const kvant_array *first = dump->tensors[0][key != NULL ? KVANT_DUMP_KEY : KVANT_DUMP_VALUE];
    const kvant_array *first_query = dump->tensors[0][KVANT_DUMP_QUERY];
    kvant_status status = KVANT_OK;
    for (int kind = 0; kind < DUMP_KINDS && status == KVANT_OK; kind++)
        if (tensors[kind] != NULL) status = check_rows(dump, tensors[kind], diag);
    if (status == KVANT_OK) status = same_dtype(dump, rows, first, diag);
    if (status == KVANT_OK)
        status = must_equal(dump, rows, "tokens", rows->shape[0], first, first->shape[0], diag);
    if (status == KVANT_OK && key != NULL && value != NULL) {
        status = must_equal(dump, value, "tokens", value->shape[0], key, key->shape[0], diag);
        if (status == KVANT_OK)
            status = must_equal(dump, value, "heads", value->shape[1], key, key->shape[1], diag);
        if (status == KVANT_OK) status = same_dtype(dump, value, key, diag);
    }
    if (status != KVANT_OK || query == NULL) return status;
    status = must_equal(dump, query, "tokens", query->shape[0], first_query, first_query->shape[0], diag);
    if (status == KVANT_OK) status = same_dtype(dump, query, first_query, diag);
    if (status == KVANT_OK && key != NULL)
        status = must_equal(dump, query, "channels", query->shape[2], key, key->shape[2], diag);
    if (status == KVANT_OK && query->shape[1] % rows->shape[1] != 0)
        status = kvant_file_fail(diag, KVANT_ERROR_GEOMETRY, dump->file,
                                 "tensor \"%s\": %llu heads are not a multiple of the %llu of \"%s\"",
                                 query->name, (unsigned long long)query->shape[1],
                                 (unsigned long long)rows->shape[1], rows->name);
    return status;
}

static kvant_status read_shapes(kvant_dump *dump, kvant_diag *diag) {
    for (uint32_t l = 0; l < dump->geometry.layer_count; l++) {
        kvant_status status = check_layer(dump, l, diag);
        if (status != KVANT_OK) return status;
        const kvant_array *key = dump->tensors[l][KVANT_DUMP_KEY],
                          *value = dump->tensors[l][KVANT_DUMP_VALUE];
        const kvant_array *query = dump->tensors[l][KVANT_DUMP_QUERY];
        uint32_t heads = (uint32_t)(key != NULL ? key : value)->shape[1];
        dump->layers[l] =
            (kvant_layer_geometry){.struct_size = sizeof dump->layers[l],
                                   .kv_heads = heads,
                                   .q_heads = query != NULL ? (uint32_t)query->shape[1] : heads,
                                   .total_kv_heads = heads,
                                   .key_dim = (uint32_t)(key != NULL ? key : value)->shape[2],
                                   .value_dim = (uint32_t)(value != NULL ? value : key)->shape[2]};
    }
    const kvant_array *first = dump->tensors[0][dump->info.has_keys ? KVANT_DUMP_KEY : KVANT_DUMP_VALUE];
    dump->info.tokens = (uint32_t)first->shape[0];
    if (dump->info.has_queries)
        dump->info.query_tokens = (uint32_t)dump->tensors[0][KVANT_DUMP_QUERY]->shape[0];
    dump->geometry.dtype = first->dtype;
    dump->geometry.layers = dump->layers;
    return KVANT_OK;
}

/* ---- One number per token ------------------------------------------------------------------------------ */

/* A copy, since a file may hold it unaligned. *copy stays NULL where there is no such tensor, or no data
 * yet. */
static kvant_status copy_per_token(const kvant_dump *dump, const dump_source *source, const char *name,
                                   uint32_t dtype, void **copy, kvant_diag *diag) {
    const kvant_array *array = find(source, name);
    if (array == NULL) return KVANT_OK;
    if (array->dtype != dtype || array->rank != 1 || array->shape[0] != dump->info.tokens)
        return kvant_file_fail(diag, KVANT_ERROR_GEOMETRY, dump->file,
                               "tensor \"%s\": not %s [%u], one per token", name, kvant_dtype_name(dtype),
                               dump->info.tokens);
    if (array->data == NULL) return KVANT_OK;
    *copy = malloc((size_t)array->bytes);
    if (*copy == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, dump->file, "out of memory");
    memcpy(*copy, array->data, (size_t)array->bytes);
    return KVANT_OK;
}

static kvant_status read_per_token(kvant_dump *dump, const dump_source *source, kvant_diag *diag) {
    void *ids = NULL, *turn = NULL, *tags = NULL;
    kvant_status status = copy_per_token(dump, source, "tokens", KVANT_DTYPE_I32, &ids, diag);
    if (status == KVANT_OK) status = copy_per_token(dump, source, "turn", KVANT_DTYPE_I32, &turn, diag);
    if (status == KVANT_OK) status = copy_per_token(dump, source, "tags", KVANT_DTYPE_U8, &tags, diag);
    dump->info.token_ids = dump->token_ids = ids;
    dump->info.turn = dump->turn = turn;
    dump->info.tags = dump->tags = tags;
    return status;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static bool set_names(kvant_dump *dump, const char *file) {
    static const char suffix[] = ".safetensors";
    const char *slash = strrchr(file, '/');
    dump->file = strdup(file);
    dump->name = strdup(slash != NULL ? slash + 1 : file);
    if (dump->file == NULL || dump->name == NULL) return false;
    size_t length = strlen(dump->name);
    if (length > sizeof suffix - 1 && strcmp(dump->name + length - (sizeof suffix - 1), suffix) == 0)
        dump->name[length - (sizeof suffix - 1)] = '\0';
    dump->info.file = dump->file;
    dump->info.name = dump->name;
    return true;
}

static kvant_status build(kvant_dump *dump, const dump_source *source, kvant_diag *diag) {
    const char *format = kvant_dump_metadata(source, "format");
    dump->geometry.struct_size = sizeof dump->geometry;
    if (format == NULL || strcmp(format, "kvant-kv/1") != 0)
        return kvant_file_fail(diag, KVANT_ERROR_VERSION, dump->file,
                               "not a dump: metadata \"format\" is %s%.80s%s, not \"kvant-kv/1\"",
                               format != NULL ? "\"" : "", format != NULL ? format : "missing",
                               format != NULL ? "\"" : "");
    kvant_status status = count_layers(dump, source, diag);
    if (status == KVANT_OK) status = collect_tensors(dump, source, diag);
    if (status == KVANT_OK) status = read_shapes(dump, diag);
    if (status == KVANT_OK) status = read_per_token(dump, source, diag);
    if (status == KVANT_OK) status = kvant_dump_read_metadata(dump, source, diag);
    return status;
}

/* Takes the file over, whatever comes of it. */
static kvant_status open_source(kvant_safetensors *st, const char *name, kvant_dump **out, kvant_diag *diag) {
    kvant_dump *dump = calloc(1, sizeof *dump);
    if (dump == NULL) {
        kvant_safetensors_close(st);
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, name, "out of memory");
    }
    dump->st = st;
    kvant_metadata *metadata = calloc(kvant_safetensors_metadata_count(st) + 1, sizeof *metadata);
    kvant_status status;
    if (metadata == NULL || !set_names(dump, name)) {
        status = kvant_file_fail(diag, KVANT_ERROR_MEMORY, name, "out of memory");
    } else {
        dump_source source = {.arrays = kvant_safetensors_at(st, 0),
                              .count = kvant_safetensors_count(st),
                              .metadata = metadata,
                              .metadata_count = kvant_safetensors_metadata_count(st)};
        for (uint32_t i = 0; i < source.metadata_count; i++) {
            metadata[i].key = kvant_safetensors_metadata_key(st, i);
            metadata[i].value = kvant_safetensors_metadata(st, metadata[i].key);
        }
        status = build(dump, &source, diag);
    }
    free(metadata);
    if (status == KVANT_OK)
        *out = dump;
    else
        kvant_dump_close(dump);
    return status;
}

kvant_status kvant_dump_open(const char *file, kvant_dump **out, kvant_diag *diag) {
    kvant_safetensors *st = NULL;
    kvant_status status = kvant_safetensors_open(file, &st, diag);
    return status == KVANT_OK ? open_source(st, file, out, diag) : status;
}

kvant_status kvant_dump_parse(const void *bytes, size_t size, const char *name, kvant_dump **out,
                              kvant_diag *diag) {
    kvant_safetensors *st = NULL;
    kvant_status status = kvant_safetensors_parse(bytes, size, name, &st, diag);
    return status == KVANT_OK ? open_source(st, name, out, diag) : status;
}

kvant_status kvant_dump_of_arrays(const kvant_array *arrays, uint32_t count, const kvant_metadata *metadata,
                                  uint32_t metadata_count, const char *name, kvant_dump **out,
                                  kvant_diag *diag) {
    kvant_dump *dump = calloc(1, sizeof *dump);
    dump_source source = {arrays, count, metadata, metadata_count};
    kvant_status status = dump != NULL && set_names(dump, name)
                              ? build(dump, &source, diag)
                              : kvant_file_fail(diag, KVANT_ERROR_MEMORY, name, "out of memory");
    if (status == KVANT_OK)
        *out = dump;
    else
        kvant_dump_close(dump);
    return status;
}

void kvant_dump_close(kvant_dump *dump) {
    if (dump == NULL) return;
    free(dump->token_ids);
    free(dump->turn);
    free(dump->tags);
    free(dump->layers);
    free(dump->ropes);
    free(dump->frequencies);
    free(dump->tensors);
    free(dump->file);
    free(dump->name);
    kvant_safetensors_close(dump->st);
    free(dump);
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

const kvant_geometry *kvant_dump_geometry(const kvant_dump *dump) {
    return &dump->geometry;
}

const kvant_dump_info *kvant_dump_describe(const kvant_dump *dump) {
    return &dump->info;
}

const kvant_safetensors *kvant_dump_file(const kvant_dump *dump) {
    return dump->st;
}

bool kvant_dump_view(const kvant_dump *dump, uint32_t layer, uint32_t what, kvant_view *view) {
    if (layer >= dump->geometry.layer_count || what >= DUMP_KINDS) return false;
    const kvant_array *array = dump->tensors[layer][what];
    if (array == NULL) return false;
    int64_t element = kvant_element_bytes(array->dtype);
    int64_t heads = (int64_t)array->shape[1], head_dim = (int64_t)array->shape[2];
    *view = (kvant_view){.struct_size = sizeof *view,
                         .dtype = array->dtype,
                         .data = array->data,
                         .tokens = (uint32_t)array->shape[0],
                         .heads = (uint32_t)heads,
                         .head_dim = (uint32_t)head_dim,
                         .token_stride = heads * head_dim * element,
                         .head_stride = head_dim * element,
                         .channel_stride = element};
    return true;
}

kvant_view kvant_view_slice(const kvant_view *view, uint32_t first, uint32_t count) {
    kvant_view slice = *view;
    slice.data = (const char *)view->data + (int64_t)first * view->token_stride;
    slice.tokens = count;
    return slice;
}
