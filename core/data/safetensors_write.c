/* The writer of safetensors files: header first, then the tensors in the order given. */
#include "safetensors.h"

#include "base/text.h"
#include "file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { DATA_ALIGNMENT = 64 };

struct kvant_safetensors_writer {
    kvant_file_writer *file;
    char *name;
    uint64_t end; /* offset at which the file must end */
};

/* Quoted and escaped; false for a string that is not UTF-8. */
static bool put_string(kvant_text *text, const char *string) {
    json_t *value = json_string(string);
    char *quoted = value != NULL ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (quoted != NULL) kvant_text_puts(text, quoted);
    bool done = quoted != NULL;
    free(quoted);
    json_decref(value);
    return done;
}

static int by_key(const void *left, const void *right) {
    return strcmp(((const kvant_metadata *)left)->key, ((const kvant_metadata *)right)->key);
}

static bool put_metadata(kvant_text *text, const kvant_metadata *metadata, uint32_t count) {
    if (count == 0) return true;
    kvant_metadata *sorted = malloc(count * sizeof *sorted);
    if (sorted == NULL) return false;
    memcpy(sorted, metadata, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_key);
    bool done = true;
    kvant_text_puts(text, "\"__metadata__\":{");
    for (uint32_t i = 0; i < count && done; i++) {
        if (i > 0) kvant_text_puts(text, ",");
        done = (i == 0 || strcmp(sorted[i].key, sorted[i - 1].key) != 0) && put_string(text, sorted[i].key);
        kvant_text_puts(text, ":");
        done = done && put_string(text, sorted[i].value);
    }
    kvant_text_puts(text, "}");
    free(sorted);
    return done;
}

static bool put_array(kvant_text *text, const kvant_array *array, uint64_t *offset) {
    uint64_t bytes, end;
    if (array->rank > KVANT_RANK_MAX || strcmp(array->name, "__metadata__") == 0 ||
        !kvant_array_size(array->dtype, array->shape, array->rank, &bytes) || bytes != array->bytes ||
        __builtin_add_overflow(*offset, bytes, &end) || !put_string(text, array->name))
        return false;
    kvant_text_printf(text, ":{\"dtype\":\"%s\",\"shape\":[", kvant_dtype_name(array->dtype));
    for (uint32_t i = 0; i < array->rank; i++)
        kvant_text_printf(text, "%s%llu", i > 0 ? "," : "", (unsigned long long)array->shape[i]);
    kvant_text_printf(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*offset,
                      (unsigned long long)end);
    *offset = end;
    return true;
}

static int by_name(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static bool names_differ(const kvant_array *arrays, uint32_t count) {
    const char **names = malloc((count + 1) * sizeof *names);
    if (names == NULL) return false;
    for (uint32_t i = 0; i < count; i++) names[i] = arrays[i].name;
    if (count > 0) qsort(names, count, sizeof *names, by_name);
    bool differ = true;
    for (uint32_t i = 1; i < count; i++) differ = differ && strcmp(names[i - 1], names[i]) != 0;
    free(names);
    return differ;
}

static bool put_header(kvant_text *text, const kvant_array *arrays, uint32_t count,
                       const kvant_metadata *metadata, uint32_t metadata_count, uint64_t *data_bytes) {
    *data_bytes = 0;
    kvant_text_puts(text, "{");
    if (!names_differ(arrays, count) || !put_metadata(text, metadata, metadata_count)) return false;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0 || metadata_count > 0) kvant_text_puts(text, ",");
        if (!put_array(text, &arrays[i], data_bytes)) return false;
    }
    kvant_text_puts(text, "}");
    /* The format allows spaces after the header and no gap between tensors. */
    while ((text->size + 8) % DATA_ALIGNMENT != 0 && !text->failed) kvant_text_puts(text, " ");
    return !text->failed;
}

static void put_length(unsigned char bytes[8], uint64_t length) {
    for (unsigned i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> 8 * i);
}

static kvant_status unfit(const kvant_text *header, const char *file, kvant_diag *diag) {
    if (header->failed) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, file, "out of memory");
    return kvant_file_fail(diag, KVANT_ERROR_ARGUMENT, file,
                           "arrays or metadata that a safetensors file cannot hold (names, sizes, UTF-8)");
}

kvant_status kvant_safetensors_begin(const char *file, const kvant_array *arrays, uint32_t count,
                                     const kvant_metadata *metadata, uint32_t metadata_count,
                                     kvant_safetensors_writer **out, kvant_diag *diag) {
    kvant_text text = {0};
    uint64_t data_bytes;
    kvant_status status = KVANT_OK;
    kvant_safetensors_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL || (writer->name = strdup(file)) == NULL) {
        status = kvant_file_fail(diag, KVANT_ERROR_MEMORY, file, "out of memory");
        goto out;
    }
    if (!put_header(&text, arrays, count, metadata, metadata_count, &data_bytes)) {
        status = unfit(&text, file, diag);
        goto out;
    }
    status = kvant_file_writer_open(file, &writer->file, diag);
    if (status != KVANT_OK) goto out;
    unsigned char length[8];
    put_length(length, text.size);
    kvant_file_writer_add(writer->file, length, sizeof length);
    kvant_file_writer_add(writer->file, text.data, text.size);
    writer->end = kvant_file_writer_offset(writer->file) + data_bytes;
    *out = writer;
    writer = NULL;
out:
    kvant_text_free(&text);
    kvant_safetensors_abort(writer);
    return status;
}

void kvant_safetensors_add(kvant_safetensors_writer *writer, const void *bytes, size_t size) {
    kvant_file_writer_add(writer->file, bytes, size);
}

kvant_status kvant_safetensors_commit(kvant_safetensors_writer *writer, kvant_diag *diag) {
    kvant_status status;
    if (kvant_file_writer_offset(writer->file) != writer->end) {
        status = kvant_file_fail(diag, KVANT_ERROR_ARGUMENT, writer->name,
                                 "the data written do not match the header");
    } else {
        status = kvant_file_writer_commit(writer->file, diag);
        writer->file = NULL;
    }
    kvant_safetensors_abort(writer);
    return status;
}

void kvant_safetensors_abort(kvant_safetensors_writer *writer) {
    if (writer == NULL) return;
    kvant_file_writer_abort(writer->file);
    free(writer->name);
    free(writer);
}

kvant_status kvant_safetensors_pack(kvant_text *text, const kvant_array *arrays, uint32_t count,
                                    const kvant_metadata *metadata, uint32_t metadata_count, const char *name,
                                    kvant_diag *diag) {
    kvant_text header = {0};
    uint64_t data_bytes;
    kvant_status status = KVANT_OK;
    if (put_header(&header, arrays, count, metadata, metadata_count, &data_bytes)) {
        unsigned char length[8];
        put_length(length, header.size);
        kvant_text_append(text, (const char *)length, sizeof length);
        kvant_text_append(text, header.data, header.size);
        for (uint32_t i = 0; i < count; i++) kvant_text_append(text, arrays[i].data, (size_t)arrays[i].bytes);
        if (text->failed) status = kvant_file_fail(diag, KVANT_ERROR_MEMORY, name, "out of memory");
    } else {
        status = unfit(&header, name, diag);
    }
    kvant_text_free(&header);
    return status;
}

kvant_status kvant_safetensors_write(const char *file, const kvant_array *arrays, uint32_t count,
                                     const kvant_metadata *metadata, uint32_t metadata_count,
                                     kvant_diag *diag) {
    kvant_safetensors_writer *writer = NULL;
    kvant_status status =
        kvant_safetensors_begin(file, arrays, count, metadata, metadata_count, &writer, diag);
    if (status != KVANT_OK) return status;
    for (uint32_t i = 0; i < count; i++)
        kvant_safetensors_add(writer, arrays[i].data, (size_t)arrays[i].bytes);
    return kvant_safetensors_commit(writer, diag);
}
