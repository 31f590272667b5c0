/* The reader. Jansson parses the header; everything that the format promises beyond JSON is checked here,
 * before any array is handed out:
 *
 *     0        8                    8 + n                                    size
 *     | n: u64 | header: n bytes JSON | data: every byte belongs to one tensor |
 *
 * The header is an object of tensors {"dtype", "shape", "data_offsets": [begin, end)} and "__metadata__",
 * an object of strings. Offsets count from the start of the data. Format:
 * github.com/huggingface/safetensors, README. */
#include "safetensors.h"
#include "file.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, HEADER_MAX = 100 * 1000 * 1000 };

struct kvant_safetensors {
    char *name;
    kvant_file_map map; /* empty where the bytes are the caller's */
    json_t *header;     /* owns every name and string below */
    kvant_array *arrays;
    kvant_metadata *metadata;
    uint32_t count;
    uint32_t metadata_count;
};

/* What one call of the reader carries along. */
typedef struct reader {
    kvant_safetensors *st;
    const unsigned char *data;
    uint64_t data_bytes;
    kvant_diag *diag;
} reader;

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
    [KVANT_DTYPE_F32] = {"F32", 4},         [KVANT_DTYPE_F16] = {"F16", 2},
    [KVANT_DTYPE_BF16] = {"BF16", 2},       [KVANT_DTYPE_F64] = {"F64", 8},
    [KVANT_DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [KVANT_DTYPE_F8_E5M2] = {"F8_E5M2", 1},
    [KVANT_DTYPE_U8] = {"U8", 1},           [KVANT_DTYPE_I8] = {"I8", 1},
    [KVANT_DTYPE_U16] = {"U16", 2},         [KVANT_DTYPE_I16] = {"I16", 2},
    [KVANT_DTYPE_U32] = {"U32", 4},         [KVANT_DTYPE_I32] = {"I32", 4},
    [KVANT_DTYPE_U64] = {"U64", 8},         [KVANT_DTYPE_I64] = {"I64", 8},
    [KVANT_DTYPE_BOOL] = {"BOOL", 1},       [KVANT_DTYPE_F8_E8M0] = {"F8_E8M0", 1},
};
enum { DTYPE_END = sizeof dtypes / sizeof dtypes[0] };

uint32_t kvant_dtype_bytes(uint32_t dtype) {
    return dtype < DTYPE_END ? dtypes[dtype].bytes : 0;
}

const char *kvant_dtype_name(uint32_t dtype) {
    return dtype < DTYPE_END && dtypes[dtype].name != NULL ? dtypes[dtype].name : "none";
}

uint32_t kvant_dtype_of_name(const char *name) {
    for (uint32_t i = 1; i < DTYPE_END; i++)
        if (strcmp(dtypes[i].name, name) == 0) return i;
    return KVANT_DTYPE_NONE;
}

bool kvant_array_size(uint32_t dtype, const uint64_t *shape, uint32_t rank, uint64_t *bytes) {
    uint64_t size = kvant_dtype_bytes(dtype);
    bool fits = size > 0, empty = false;
    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(size, shape[i], &size))
            fits = false;
    }
    *bytes = empty ? 0 : size;
    return fits;
}

/* ---- One tensor ---------------------------------------------------------------------------------------- */

static kvant_status bad_tensor(const reader *r, const char *name, const char *rule) {
    return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, r->st->name, "tensor \"%.200s\": %s", name, rule);
}

static kvant_status read_dtype(const reader *r, const json_t *value, kvant_array *array) {
    if (!json_is_string(value)) return bad_tensor(r, array->name, "\"dtype\" is missing or not a string");
    array->dtype = kvant_dtype_of_name(json_string_value(value));
    if (array->dtype != KVANT_DTYPE_NONE) return KVANT_OK;
    return kvant_file_fail(r->diag, KVANT_ERROR_DTYPE, r->st->name,
                           "tensor \"%.200s\": dtype \"%.40s\" is not known", array->name,
                           json_string_value(value));
}

static kvant_status read_shape(const reader *r, const json_t *value, kvant_array *array) {
    if (!json_is_array(value)) return bad_tensor(r, array->name, "\"shape\" is missing or not an array");
    if (json_array_size(value) > KVANT_RANK_MAX)
        return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, r->st->name,
                               "tensor \"%.200s\": rank %zu is above the limit of %d", array->name,
                               json_array_size(value), KVANT_RANK_MAX);
    array->rank = (uint32_t)json_array_size(value);
    for (uint32_t i = 0; i < array->rank; i++) {
        const json_t *size = json_array_get(value, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return bad_tensor(r, array->name, "\"shape\" holds something else than whole numbers >= 0");
        array->shape[i] = (uint64_t)json_integer_value(size);
    }
    return KVANT_OK;
}

static kvant_status read_offsets(const reader *r, const json_t *value, kvant_array *array) {
    const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
        return bad_tensor(r, array->name, "\"data_offsets\" is not [begin, end] with 0 <= begin <= end");
    uint64_t begin = (uint64_t)json_integer_value(first), end = (uint64_t)json_integer_value(last), bytes;
    if (end > r->data_bytes)
        return kvant_file_fail(
            r->diag, KVANT_ERROR_CORRUPT, r->st->name,
            "tensor \"%.200s\": ends at byte %llu of the data, which has %llu bytes (truncated file?)",
            array->name, (unsigned long long)end, (unsigned long long)r->data_bytes);
    if (!kvant_array_size(array->dtype, array->shape, array->rank, &bytes))
        return bad_tensor(r, array->name, "the size of its shape overflows 64 bits");
    if (bytes != end - begin)
        return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, r->st->name,
                               "tensor \"%.200s\": dtype and shape take %llu bytes, \"data_offsets\" %llu",
                               array->name, (unsigned long long)bytes, (unsigned long long)(end - begin));
    array->bytes = bytes;
    array->data = r->data + begin;
    return KVANT_OK;
}

static kvant_status read_tensor(const reader *r, const char *name, json_t *value, kvant_array *array) {
    *array = (kvant_array){.name = name};
    if (!json_is_object(value)) return bad_tensor(r, name, "its entry in the header is not an object");
    const char *key;
    json_t *member;
    json_object_foreach(value, key,
                        member) if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
                                    strcmp(key, "data_offsets") !=
                                        0) return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, r->st->name,
                                                                  "tensor \"%.200s\": unknown key \"%.80s\"",
                                                                  name, key);
    kvant_status status = read_dtype(r, json_object_get(value, "dtype"), array);
    if (status == KVANT_OK) status = read_shape(r, json_object_get(value, "shape"), array);
    if (status == KVANT_OK) status = read_offsets(r, json_object_get(value, "data_offsets"), array);
    return status;
}

/* ---- The header ---------------------------------------------------------------------------------------- */

static int by_place(const void *left, const void *right) {
    const kvant_array *a = left, *b = right;
    if (a->data != b->data) return (const char *)a->data < (const char *)b->data ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int by_name(const void *left, const void *right) {
    return strcmp(((const kvant_array *)left)->name, ((const kvant_array *)right)->name);
}

static int by_key(const void *left, const void *right) {
    return strcmp(((const kvant_metadata *)left)->key, ((const kvant_metadata *)right)->key);
}

/* Every byte of the data belongs to exactly one tensor: hidden bytes and shared ones are both refused. */
static kvant_status check_places(const reader *r) {
    kvant_safetensors *st = r->st;
    if (st->count > 0) qsort(st->arrays, st->count, sizeof *st->arrays, by_place);
    uint64_t next = 0;
    for (uint32_t i = 0; i < st->count; i++) {
        const kvant_array *array = &st->arrays[i];
        uint64_t begin = (uint64_t)((const unsigned char *)array->data - r->data);
        if (begin < next) {
            const kvant_array *before = &st->arrays[i - 1];
            return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, st->name,
                                   "tensors \"%.200s\" and \"%.200s\" overlap", before->name, array->name);
        }
        if (begin > next)
            return kvant_file_fail(
                r->diag, KVANT_ERROR_CORRUPT, st->name,
                "bytes %llu to %llu of the data, before tensor \"%.200s\", belong to no tensor",
                (unsigned long long)next, (unsigned long long)begin, array->name);
        next = begin + array->bytes;
    }
    if (next == r->data_bytes) return KVANT_OK;
    return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, st->name,
                           "%llu bytes after the last tensor belong to no tensor",
                           (unsigned long long)(r->data_bytes - next));
}

static kvant_status read_metadata(const reader *r, json_t *value) {
    kvant_safetensors *st = r->st;
    if (value == NULL) return KVANT_OK;
    if (!json_is_object(value))
        return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, st->name, "\"__metadata__\" is not an object");
    st->metadata = calloc(json_object_size(value) + 1, sizeof *st->metadata);
    if (st->metadata == NULL) return kvant_file_fail(r->diag, KVANT_ERROR_MEMORY, st->name, "out of memory");
    const char *key;
    json_t *member;
    json_object_foreach(value, key, member) {
        if (!json_is_string(member))
            return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, st->name,
                                   "metadata \"%.200s\" is not a string", key);
        st->metadata[st->metadata_count++] = (kvant_metadata){key, json_string_value(member)};
    }
    if (st->metadata_count > 0) qsort(st->metadata, st->metadata_count, sizeof *st->metadata, by_key);
    return KVANT_OK;
}

static kvant_status read_tensors(const reader *r) {
    kvant_safetensors *st = r->st;
    st->arrays = calloc(json_object_size(st->header) + 1, sizeof *st->arrays);
    if (st->arrays == NULL) return kvant_file_fail(r->diag, KVANT_ERROR_MEMORY, st->name, "out of memory");
    const char *name;
    json_t *value;
    json_object_foreach(st->header, name, value) {
        if (strcmp(name, "__metadata__") == 0) continue;
        kvant_status status = read_tensor(r, name, value, &st->arrays[st->count]);
        if (status != KVANT_OK) return status;
        st->count++;
    }
    kvant_status status = check_places(r);
    if (status == KVANT_OK && st->count > 0) qsort(st->arrays, st->count, sizeof *st->arrays, by_name);
    return status;
}

static kvant_status read_header(reader *r, const unsigned char *bytes, size_t size) {
    const char *file = r->st->name;
    if (size < LENGTH_BYTES)
        return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, file,
                               "%zu bytes are too few for a safetensors file (truncated file?)", size);
    uint64_t length = 0;
    for (unsigned i = 0; i < LENGTH_BYTES; i++) length |= (uint64_t)bytes[i] << 8 * i;
    if (length > HEADER_MAX)
        return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, file,
                               "not a safetensors file: a header of %llu bytes is above the limit of %d",
                               (unsigned long long)length, HEADER_MAX);
    if (length > size - LENGTH_BYTES)
        return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, file,
                               "a header of %llu bytes does not fit into a file of %zu (truncated file?)",
                               (unsigned long long)length, size);
    if (length < 2 || bytes[LENGTH_BYTES] != '{')
        return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, file,
                               "not a safetensors file: the header does not start with '{'");
    json_error_t error;
    r->st->header =
        json_loadb((const char *)bytes + LENGTH_BYTES, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (r->st->header == NULL)
        return kvant_file_fail(r->diag, KVANT_ERROR_CORRUPT, file, "header, byte %d: %.200s", error.position,
                               error.text);
    r->data = bytes + LENGTH_BYTES + length;
    r->data_bytes = size - LENGTH_BYTES - length;
    kvant_status status = read_metadata(r, json_object_get(r->st->header, "__metadata__"));
    return status == KVANT_OK ? read_tensors(r) : status;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

kvant_status kvant_safetensors_parse(const void *bytes, size_t size, const char *name,
                                     kvant_safetensors **out, kvant_diag *diag) {
    kvant_safetensors *st = calloc(1, sizeof *st);
    if (st == NULL || (st->name = strdup(name)) == NULL) {
        free(st);
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, name, "out of memory");
    }
    reader r = {.st = st, .diag = diag};
    kvant_status status = read_header(&r, bytes, size);
    if (status != KVANT_OK) {
        kvant_safetensors_close(st);
        return status;
    }
    *out = st;
    return KVANT_OK;
}

kvant_status kvant_safetensors_open(const char *file, kvant_safetensors **out, kvant_diag *diag) {
    kvant_file_map map;
    kvant_status status = kvant_file_map_open(file, &map, diag);
    if (status != KVANT_OK) return status;
    status = kvant_safetensors_parse(map.bytes, map.size, file, out, diag);
    if (status == KVANT_OK)
        (*out)->map = map;
    else
        kvant_file_map_close(&map);
    return status;
}

void kvant_safetensors_close(kvant_safetensors *st) {
    if (st == NULL) return;
    free(st->arrays);
    free(st->metadata);
    json_decref(st->header);
    kvant_file_map_close(&st->map);
    free(st->name);
    free(st);
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

uint32_t kvant_safetensors_count(const kvant_safetensors *st) {
    return st->count;
}

const kvant_array *kvant_safetensors_at(const kvant_safetensors *st, uint32_t index) {
    return index < st->count ? &st->arrays[index] : NULL;
}

const kvant_array *kvant_safetensors_find(const kvant_safetensors *st, const char *name) {
    kvant_array wanted = {.name = name};
    if (st->count == 0) return NULL;
    return bsearch(&wanted, st->arrays, st->count, sizeof *st->arrays, by_name);
}

uint32_t kvant_safetensors_metadata_count(const kvant_safetensors *st) {
    return st->metadata_count;
}

const char *kvant_safetensors_metadata_key(const kvant_safetensors *st, uint32_t index) {
    return index < st->metadata_count ? st->metadata[index].key : NULL;
}

const char *kvant_safetensors_metadata(const kvant_safetensors *st, const char *key) {
    kvant_metadata wanted = {.key = key};
    if (st->metadata_count == 0) return NULL;
    const kvant_metadata *found =
        bsearch(&wanted, st->metadata, st->metadata_count, sizeof *st->metadata, by_key);
    return found != NULL ? found->value : NULL;
}
