/* See import_arrays.h. */
#include "import_arrays.h"

#include "base/text.h"
#include "data/file.h"

#include <kvant/kit/float8.h>
#include <kvant/kit/half.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Files --------------------------------------------------------------------------------------------- */

static bool is_npy(const char *file) {
    size_t length = strlen(file);
    return length > 4 && strcmp(file + length - 4, ".npy") == 0;
}

static kvant_status add_array(foreign_files *all, const kvant_array *array, const char *file, bool fortran,
                              kvant_diag *diag) {
    foreign_array *arrays = realloc(all->arrays, ((size_t)all->count + 1) * sizeof *arrays);
    if (arrays == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, file, "out of memory");
    all->arrays = arrays;
    all->arrays[all->count++] = (foreign_array){array, file, fortran};
    return KVANT_OK;
}

static kvant_status open_one(const char *file, uint32_t index, foreign_files *all, kvant_diag *diag) {
    if (is_npy(file)) {
        kvant_status status = kvant_npy_open(file, &all->npys[index], diag);
        if (status != KVANT_OK) return status;
        return add_array(all, kvant_npy_array(all->npys[index]), file, kvant_npy_fortran(all->npys[index]),
                         diag);
    }
    kvant_status status = kvant_safetensors_open(file, &all->tensors[index], diag);
    for (uint32_t i = 0; status == KVANT_OK && i < kvant_safetensors_count(all->tensors[index]); i++)
        status = add_array(all, kvant_safetensors_at(all->tensors[index], i), file, false, diag);
    return status;
}

static int by_name(const void *left, const void *right) {
    return strcmp(((const foreign_array *)left)->array->name, ((const foreign_array *)right)->array->name);
}

kvant_status foreign_open(char *const *files, uint32_t count, foreign_files *all, kvant_diag *diag) {
    *all = (foreign_files){.tensors = calloc((size_t)count + 1, sizeof *all->tensors),
                           .npys = calloc((size_t)count + 1, sizeof *all->npys),
                           .file_count = count};
    kvant_status status = KVANT_OK;
    if (all->tensors == NULL || all->npys == NULL)
        status = kvant_file_fail(diag, KVANT_ERROR_MEMORY, files[0], "out of memory");
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) status = open_one(files[i], i, all, diag);
    if (status == KVANT_OK && all->count > 0) qsort(all->arrays, all->count, sizeof *all->arrays, by_name);
    for (uint32_t i = 1; i < all->count && status == KVANT_OK; i++)
        if (by_name(&all->arrays[i - 1], &all->arrays[i]) == 0)
            status = kvant_file_fail(diag, KVANT_ERROR_DUPLICATE, all->arrays[i].file,
                                     "array \"%.200s\" is also in %.400s", all->arrays[i].array->name,
                                     all->arrays[i - 1].file);
    if (status != KVANT_OK) foreign_close(all);
    return status;
}

void foreign_close(foreign_files *all) {
    for (uint32_t i = 0; i < all->file_count; i++) {
        if (all->tensors != NULL) kvant_safetensors_close(all->tensors[i]);
        if (all->npys != NULL) kvant_npy_close(all->npys[i]);
    }
    free(all->tensors);
    free(all->npys);
    free(all->arrays);
    *all = (foreign_files){0};
}

const foreign_array *foreign_find(const foreign_files *all, const char *name) {
    const kvant_array array = {.name = name};
    const foreign_array wanted = {.array = &array};
    if (all->count == 0) return NULL;
    return bsearch(&wanted, all->arrays, all->count, sizeof *all->arrays, by_name);
}

/* ---- Names --------------------------------------------------------------------------------------------- */

char *foreign_name(const char *pattern, uint32_t layer) {
    kvant_text text = {0};
    for (const char *at = pattern, *mark; at != NULL; at = mark != NULL ? mark + 3 : NULL) {
        mark = strstr(at, "{l}");
        kvant_text_append(&text, at, mark != NULL ? (size_t)(mark - at) : strlen(at));
        if (mark != NULL) kvant_text_printf(&text, "%u", layer);
    }
    if (!text.failed) return text.data;
    kvant_text_free(&text);
    return NULL;
}

/* The number that stands where the pattern's first {l} is; the caller checks that the whole name fits. */
static bool number_in(const char *name, const char *pattern, uint32_t *layer) {
    const char *mark = strstr(pattern, "{l}");
    size_t before = (size_t)(mark - pattern);
    if (strncmp(name, pattern, before) != 0 || name[before] < '0' || name[before] > '9') return false;
    uint64_t number = 0;
    for (const char *c = name + before; *c >= '0' && *c <= '9' && number <= UINT32_MAX; c++)
        number = number * 10 + (uint64_t)(*c - '0');
    *layer = (uint32_t)number;
    return number <= UINT32_MAX;
}

static int by_number(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

static kvant_status no_array(const foreign_files *all, const char *pattern, kvant_diag *diag) {
    const char **names = calloc((size_t)all->count + 1, sizeof *names);
    const char *nearest = NULL;
    for (uint32_t i = 0; names != NULL && i < all->count; i++) names[i] = all->arrays[i].array->name;
    char *first = foreign_name(pattern, 0);
    if (names != NULL && first != NULL) nearest = kvant_nearest(first, names, all->count);
    bool guess = nearest != NULL;
    if (nearest == NULL && all->count > 0) nearest = all->arrays[0].array->name;
    kvant_status status =
        kvant_file_fail(diag, KVANT_ERROR_MISSING, all->count > 0 ? all->arrays[0].file : "",
                        "no array is called \"%.200s\"%s%.200s%s", pattern,
                        nearest == NULL ? ""
                        : guess         ? "; did you mean "
                                        : "; there is ",
                        nearest != NULL ? nearest : "", guess ? "?" : "");
    free(first);
    free(names);
    return status;
}

kvant_status foreign_layers(const foreign_files *all, const char *pattern, uint32_t **layers, uint32_t *count,
                            kvant_diag *diag) {
    bool many = strstr(pattern, "{l}") != NULL;
    *count = 0;
    *layers = calloc((size_t)all->count + 1, sizeof **layers);
    if (*layers == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (!many && foreign_find(all, pattern) != NULL) *count = 1;
    for (uint32_t i = 0; many && i < all->count; i++) {
        uint32_t layer;
        if (!number_in(all->arrays[i].array->name, pattern, &layer)) continue;
        char *name = foreign_name(pattern, layer);
        if (name != NULL && strcmp(name, all->arrays[i].array->name) == 0) (*layers)[(*count)++] = layer;
        free(name);
    }
    if (*count == 0) return no_array(all, pattern, diag);
    qsort(*layers, *count, sizeof **layers, by_number);
    return KVANT_OK;
}

/* ---- Layout -------------------------------------------------------------------------------------------- */

static kvant_status element_types(const foreign_array *from, bool u16_is_bf16, foreign_rows *rows,
                                  kvant_diag *diag) {
    rows->dtype = from->array->dtype;
    if (rows->dtype == KVANT_DTYPE_U16 && u16_is_bf16) rows->dtype = KVANT_DTYPE_BF16;
    switch (rows->dtype) {
    case KVANT_DTYPE_F32:
    case KVANT_DTYPE_F16:
    case KVANT_DTYPE_BF16:
        rows->to_dtype = rows->dtype;
        return KVANT_OK;
    case KVANT_DTYPE_F64:
        rows->to_dtype = KVANT_DTYPE_F32;
        return KVANT_OK;
    case KVANT_DTYPE_F8_E4M3:
    case KVANT_DTYPE_F8_E5M2:
        rows->to_dtype = KVANT_DTYPE_F16;
        return KVANT_OK; /* exact */
    default:
        break;
    }
    return kvant_file_fail(diag, KVANT_ERROR_DTYPE, from->file, "array \"%.200s\" has dtype %s%s",
                           from->array->name, kvant_dtype_name(rows->dtype),
                           rows->dtype == KVANT_DTYPE_U16 ? "; if these are BF16, say --dtype bf16"
                                                          : ", not numbers of keys");
}

static kvant_status bad_axes(const foreign_array *from, const char *axes, kvant_diag *diag) {
    char shape[256] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < from->array->rank; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%llu", i > 0 ? ", " : "",
                                 (unsigned long long)from->array->shape[i]);
    return kvant_file_fail(diag, KVANT_ERROR_GEOMETRY, from->file,
                           "array \"%.200s\" is [%s]: %u axes, and \"%.20s\" names %zu", from->array->name,
                           shape, from->array->rank, axes, strlen(axes));
}

kvant_status foreign_layout(const foreign_array *from, const char *axes, uint32_t heads, bool u16_is_bf16,
                            foreign_rows *rows, kvant_diag *diag) {
    *rows = (foreign_rows){.from = from, .layers = 1, .tokens = 1, .heads = 1, .head_dim = 1};
    kvant_status status = element_types(from, u16_is_bf16, rows, diag);
    if (status != KVANT_OK) return status;
    uint32_t rank = from->array->rank;
    if (strlen(axes) != rank) return bad_axes(from, axes, diag);
    uint64_t stride = 1;
    for (uint32_t i = 0; i < rank; i++) {
        uint32_t axis = from->fortran ? i : rank - 1 - i;
        uint64_t size = from->array->shape[axis];
        switch (axes[axis]) {
        case 'l':
            rows->layers = size, rows->layer_stride = stride;
            break;
        case 'h':
            rows->heads = size, rows->head_stride = stride;
            break;
        case 't':
            rows->tokens = size, rows->token_stride = stride;
            break;
        case 'd':
            rows->head_dim = size, rows->channel_stride = stride;
            break;
        case 'c':
            if (heads == 0 || size % heads != 0)
                return kvant_file_fail(diag, KVANT_ERROR_GEOMETRY, from->file,
                                       "array \"%.200s\": axis c is %llu long, no multiple of %u heads",
                                       from->array->name, (unsigned long long)size, heads);
            rows->heads = heads, rows->head_stride = stride * (size / heads);
            rows->head_dim = size / heads, rows->channel_stride = stride;
            break;
        default: /* b */
            if (size != 1)
                return kvant_file_fail(diag, KVANT_ERROR_GEOMETRY, from->file,
                                       "array \"%.200s\": axis b is %llu long; a dump holds one sequence",
                                       from->array->name, (unsigned long long)size);
        }
        stride *= size; /* the array lies in memory, so this does not overflow */
    }
    if (from->array->bytes > 0) return KVANT_OK;
    return kvant_file_fail(diag, KVANT_ERROR_GEOMETRY, from->file, "array \"%.200s\" is empty",
                           from->array->name);
}

static void convert(const unsigned char *from, uint32_t dtype, unsigned char *to) {
    double wide;
    float narrow;
    uint16_t half;
    switch (dtype) {
    case KVANT_DTYPE_F64:
        memcpy(&wide, from, sizeof wide);
        narrow = (float)wide;
        memcpy(to, &narrow, sizeof narrow);
        break;
    case KVANT_DTYPE_F8_E4M3:
    case KVANT_DTYPE_F8_E5M2:
        half = kvant_f32_to_f16(dtype == KVANT_DTYPE_F8_E4M3 ? kvant_e4m3_to_f32(*from)
                                                             : kvant_e5m2_to_f32(*from));
        memcpy(to, &half, sizeof half);
        break;
    case KVANT_DTYPE_F32:
        memcpy(to, from, 4);
        break;
    default:
        memcpy(to, from, 2);
    }
}

void foreign_gather(const foreign_rows *rows, uint64_t layer, void *dense) {
    const unsigned char *base = rows->from->array->data;
    uint64_t bytes = kvant_dtype_bytes(rows->dtype);
    uint32_t to_bytes = kvant_dtype_bytes(rows->to_dtype);
    unsigned char *to = dense;
    for (uint64_t t = 0; t < rows->tokens; t++)
        for (uint64_t h = 0; h < rows->heads; h++) {
            const unsigned char *from =
                base + (layer * rows->layer_stride + t * rows->token_stride + h * rows->head_stride) * bytes;
            if (rows->dtype == rows->to_dtype && rows->channel_stride == 1) {
                memcpy(to, from, (size_t)(rows->head_dim * bytes));
                to += rows->head_dim * bytes;
                continue;
            }
            for (uint64_t c = 0; c < rows->head_dim; c++, to += to_bytes)
                convert(from + c * rows->channel_stride * bytes, rows->dtype, to);
        }
}
