/* See artifact_write.h. */
#include "data/artifact_write.h"

#include "data/file.h"
#include "data/safetensors.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 63, FULL_NAME_BYTES = 96 };

struct kvant_artifact_builder {
    kvant_array *arrays; /* names and data are its own */
    kvant_metadata *metadata;
    uint32_t count, capacity;
    uint32_t metadata_count, metadata_capacity;
    bool failed; /* an allocation of `say` */
};

kvant_artifact_builder *kvant_artifact_builder_new(void) {
    return calloc(1, sizeof(kvant_artifact_builder));
}

void kvant_artifact_builder_free(kvant_artifact_builder *builder) {
    if (builder == NULL) return;
    for (uint32_t i = 0; i < builder->count; i++) {
        free((void *)(uintptr_t)builder->arrays[i].name);
        free((void *)(uintptr_t)builder->arrays[i].data);
    }
    for (uint32_t i = 0; i < builder->metadata_count; i++) {
        free((void *)(uintptr_t)builder->metadata[i].key);
        free((void *)(uintptr_t)builder->metadata[i].value);
    }
    free(builder->arrays);
    free(builder->metadata);
    free(builder);
}

/* Room for one more item; false without memory. */
static bool grow(void **items, uint32_t count, uint32_t *capacity, size_t size) {
    if (count < *capacity) return true;
    uint32_t more = *capacity != 0 ? 2 * *capacity : 16;
    void *grown = realloc(*items, more * size);
    if (grown == NULL) return false;
    *items = grown;
    *capacity = more;
    return true;
}

/* ---- Tensors ------------------------------------------------------------------------------------------- */

static bool is_tensor_name(const char *name) {
    size_t size = 0;
    if (name == NULL || name[0] < 'a' || name[0] > 'z') return false;
    for (; name[size] != '\0' && size <= NAME_MAX_BYTES; size++) {
        char c = name[size];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
    }
    return size <= NAME_MAX_BYTES;
}

static kvant_status check_tensor(const kvant_array *tensor, kvant_diag *diag) {
    uint64_t bytes;
    if (!is_tensor_name(tensor->name))
        return kvant_fail(
            diag, KVANT_ERROR_ARGUMENT, "",
            "the tensor's name is not a letter followed by letters, digits and _, lower case, at "
            "most %d",
            NAME_MAX_BYTES);
    if (kvant_dtype_bytes(tensor->dtype) == 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "the tensor \"%s\" has the dtype %u, which is none",
                          tensor->name, tensor->dtype);
    if (tensor->rank > KVANT_RANK_MAX)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "the tensor \"%s\" has rank %u, above %d",
                          tensor->name, tensor->rank, KVANT_RANK_MAX);
    if (!kvant_array_size(tensor->dtype, tensor->shape, tensor->rank, &bytes) || bytes != tensor->bytes)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "the tensor \"%s\" has %llu bytes, and its shape takes another number",
                          tensor->name, (unsigned long long)tensor->bytes);
    if (bytes > SIZE_MAX / 2 || (bytes != 0 && tensor->data == NULL))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "the tensor \"%s\" has no data", tensor->name);
    return KVANT_OK;
}

kvant_status kvant_artifact_builder_add(kvant_artifact_builder *builder, uint32_t layer, uint32_t side,
                                        const kvant_array *tensor, kvant_diag *diag) {
    char full[FULL_NAME_BYTES];
    kvant_status status = check_tensor(tensor, diag);
    if (status != KVANT_OK) return status;
    (void)snprintf(full, sizeof full, "layers.%u.%s.%s", layer, side == KVANT_SIDE_KEY ? "key" : "value",
                   tensor->name);
    for (uint32_t i = 0; i < builder->count; i++)
        if (strcmp(builder->arrays[i].name, full) == 0)
            return kvant_fail(diag, KVANT_ERROR_DUPLICATE, "", "the tensor \"%s\" comes twice", full);
    kvant_array copy = *tensor;
    char *name = strdup(full);
    void *data = malloc(tensor->bytes != 0 ? (size_t)tensor->bytes : 1);
    if (name == NULL || data == NULL ||
        !grow((void **)&builder->arrays, builder->count, &builder->capacity, sizeof *builder->arrays)) {
        free(name);
        free(data);
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    if (tensor->bytes != 0) memcpy(data, tensor->data, (size_t)tensor->bytes);
    copy.name = name;
    copy.data = data;
    builder->arrays[builder->count++] = copy;
    return KVANT_OK;
}

uint32_t kvant_artifact_builder_count(const kvant_artifact_builder *builder) {
    return builder->count;
}

/* ---- Metadata ------------------------------------------------------------------------------------------ */

void kvant_artifact_builder_say(kvant_artifact_builder *builder, const char *key, const char *format, ...) {
    va_list arguments;
    char *name = strdup(key), *value = NULL;
    va_start(arguments, format);
    int size = vasprintf(&value, format, arguments);
    va_end(arguments);
    if (size < 0) value = NULL;
    if (name == NULL || value == NULL ||
        !grow((void **)&builder->metadata, builder->metadata_count, &builder->metadata_capacity,
              sizeof *builder->metadata)) {
        free(name);
        free(value);
        builder->failed = true;
        return;
    }
    builder->metadata[builder->metadata_count++] = (kvant_metadata){name, value};
}

/* ---- Pack ---------------------------------------------------------------------------------------------- */

static int by_name(const void *left, const void *right) {
    return strcmp(((const kvant_array *)left)->name, ((const kvant_array *)right)->name);
}

kvant_status kvant_artifact_builder_pack(const kvant_artifact_builder *builder, const char *name,
                                         kvant_text *bytes, kvant_diag *diag) {
    uint32_t strings = builder->metadata_count + 1;
    kvant_array *arrays = malloc((builder->count + (size_t)1) * sizeof *arrays);
    kvant_metadata *metadata = malloc(strings * sizeof *metadata);
    kvant_status status = KVANT_OK;
    if (arrays == NULL || metadata == NULL || builder->failed) {
        status = kvant_file_fail(diag, KVANT_ERROR_MEMORY, name, "out of memory");
    } else {
        if (builder->count > 0) {
            memcpy(arrays, builder->arrays, builder->count * sizeof *arrays);
            qsort(arrays, builder->count, sizeof *arrays, by_name);
        }
        metadata[0] = (kvant_metadata){"format", "kvant-artifact/1"};
        if (builder->metadata_count > 0)
            memcpy(metadata + 1, builder->metadata, builder->metadata_count * sizeof *metadata);
        status = kvant_safetensors_pack(bytes, arrays, builder->count, metadata, strings, name, diag);
    }
    free(arrays);
    free(metadata);
    return status;
}
