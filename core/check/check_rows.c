/* Rows in guarded memory, in every form that a view can say. See check_subject.h. */
#include "check_subject.h"

#include <kvant/kit/view.h>
#include <stdlib.h>
#include <string.h>

static const char *const form_names[CHECK_FORM_COUNT] = {"dense",  "odd address", "head-major",
                                                         "padded", "backwards",   "transposed"};

const char *check_form_name(check_form form) {
    return form < CHECK_FORM_COUNT ? form_names[form] : "?";
}

static void set_strides(check_rows *rows, int64_t token, int64_t head, int64_t channel) {
    rows->token_stride = token;
    rows->head_stride = head;
    rows->channel_stride = channel;
}

/* Bytes that the elements span. */
static size_t rows_span(const check_rows *rows, int64_t element) {
    int64_t t = llabs(rows->token_stride) * (rows->tokens - 1),
            h = llabs(rows->head_stride) * (rows->heads - 1),
            c = llabs(rows->channel_stride) * (rows->head_dim - 1);
    return (size_t)(t + h + c + element);
}

void check_rows_create(check_worker *worker, check_rows *rows, uint32_t dtype, uint32_t tokens,
                       uint32_t heads, uint32_t head_dim, check_form form) {
    int64_t e = kvant_element_bytes(dtype), dim = head_dim, T = tokens, H = heads;
    *rows = (check_rows){.dtype = dtype, .tokens = tokens, .heads = heads, .head_dim = head_dim};
    switch (form) {
    case CHECK_FORM_HEAD_FIRST:
        set_strides(rows, dim * e, T * dim * e, e);
        break;
    case CHECK_FORM_PADDED:
        set_strides(rows, H * (dim * (e + 3) + 5) + 7, dim * (e + 3) + 5, e + 3);
        break;
    case CHECK_FORM_BACKWARDS:
        set_strides(rows, -H * dim * e, -dim * e, -e);
        break;
    case CHECK_FORM_TRANSPOSED:
        set_strides(rows, e, T * e, H * T * e);
        break;
    default:
        set_strides(rows, H * dim * e, dim * e, e);
    }
    size_t span = rows_span(rows, e);
    if (!check_buffer_create(&worker->buffers, &rows->buffer, "rows", span, 1,
                             form == CHECK_FORM_ODD ? 1 : 0))
        check_out_of_memory();
    rows->first = rows->buffer.data + (form == CHECK_FORM_BACKWARDS ? span - (size_t)e : 0);
}

void check_rows_free(check_worker *worker, check_rows *rows) {
    check_buffer_free(&worker->buffers, &rows->buffer);
}

static unsigned char *element_at(const check_rows *rows, uint32_t t, uint32_t h, uint32_t c) {
    return rows->first + (int64_t)t * rows->token_stride + (int64_t)h * rows->head_stride +
           (int64_t)c * rows->channel_stride;
}

void check_rows_store(check_rows *rows, const float *values) {
    for (uint32_t t = 0; t < rows->tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++)
            for (uint32_t c = 0; c < rows->head_dim; c++)
                kvant_store_element(element_at(rows, t, h, c), rows->dtype, *values++);
}

void check_rows_load(const check_rows *rows, uint32_t *bits) {
    uint32_t size = kvant_element_bytes(rows->dtype);
    for (uint32_t t = 0; t < rows->tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++)
            for (uint32_t c = 0; c < rows->head_dim; c++) {
                *bits = 0;
                memcpy(bits++, element_at(rows, t, h, c), size);
            }
}

bool check_rows_gap_written(const check_rows *rows, unsigned char byte, size_t *offset) {
    size_t elements = (size_t)rows->tokens * rows->heads * rows->head_dim;
    uint32_t size = kvant_element_bytes(rows->dtype);
    if (elements * size == rows->buffer.size) return false;
    bool *owned = calloc(rows->buffer.size, sizeof *owned);
    if (owned == NULL) check_out_of_memory();
    for (uint32_t t = 0; t < rows->tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++)
            for (uint32_t c = 0; c < rows->head_dim; c++)
                memset(owned + (element_at(rows, t, h, c) - rows->buffer.data), 1, size);
    bool written = false;
    for (size_t i = 0; i < rows->buffer.size && !written; i++)
        if (!owned[i] && rows->buffer.data[i] != byte) {
            written = true;
            *offset = i;
        }
    free(owned);
    return written;
}

kvant_view check_rows_view(const check_rows *rows) {
    return (kvant_view){.struct_size = sizeof(kvant_view),
                        .dtype = rows->dtype,
                        .data = rows->first,
                        .tokens = rows->tokens,
                        .heads = rows->heads,
                        .head_dim = rows->head_dim,
                        .token_stride = rows->token_stride,
                        .head_stride = rows->head_stride,
                        .channel_stride = rows->channel_stride};
}

kvant_mutable_view check_rows_mutable_view(const check_rows *rows) {
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = rows->dtype,
                                .data = rows->first,
                                .tokens = rows->tokens,
                                .heads = rows->heads,
                                .head_dim = rows->head_dim,
                                .token_stride = rows->token_stride,
                                .head_stride = rows->head_stride,
                                .channel_stride = rows->channel_stride};
}
