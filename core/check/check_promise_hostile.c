/* Checks with bytes that no encoder wrote, and of the look at codes. */
#include "check_compare.h"
#include "check_promise.h"

#include <kvant/kvant.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa5, EXTENTS = 8, RANGES = 3, ARRAYS_LIMIT = 64, ARRAY_BYTES = 1 << 30 };

static uint64_t element_size(uint32_t dtype) {
    switch (dtype) {
    case KVANT_DTYPE_F32:
    case KVANT_DTYPE_U32:
    case KVANT_DTYPE_I32:
        return 4;
    case KVANT_DTYPE_F64:
    case KVANT_DTYPE_U64:
    case KVANT_DTYPE_I64:
        return 8;
    case KVANT_DTYPE_F16:
    case KVANT_DTYPE_BF16:
    case KVANT_DTYPE_U16:
    case KVANT_DTYPE_I16:
        return 2;
    case KVANT_DTYPE_F8_E4M3:
    case KVANT_DTYPE_F8_E5M2:
    case KVANT_DTYPE_F8_E8M0:
    case KVANT_DTYPE_U8:
    case KVANT_DTYPE_I8:
    case KVANT_DTYPE_BOOL:
        return 1;
    default:
        return 0;
    }
}

/* What is wrong with a description, or NULL. *elements is their number. */
static const char *array_fault(const kvant_array *array, uint64_t *elements) {
    *elements = 1;
    if (array->rank > KVANT_RANK_MAX) return "its rank is above 8";
    if (array->data != NULL) return "a description has data";
    if (array->rank == 0 && array->bytes == 0) return NULL; /* not there */
    if (array->name == NULL || array->name[0] == '\0') return "it has no name";
    for (uint32_t i = 0; i < array->rank; i++) {
        if (array->shape[i] > ARRAY_BYTES || *elements > ARRAY_BYTES) return "its shape is absurd";
        *elements *= array->shape[i];
    }
    if (element_size(array->dtype) == 0) return "its dtype does not exist";
    if (*elements * element_size(array->dtype) != array->bytes)
        return "shape and dtype do not make its bytes";
    return NULL;
}

/* Reads twice over different poison: what differs was not written. */
static void read_array(check_context *context, check_id id, const kvant_inspect *inspect,
                       const kvant_extent *extent, uint32_t index, const kvant_array *array) {
    check_worker *worker = context->worker;
    check_buffer data;
    check_subject *subject = &context->subject;
    unsigned char *first = malloc((size_t)array->bytes + 1);
    if (first == NULL || !check_buffer_create(&worker->buffers, &data, "array", (size_t)array->bytes, 1, 0))
        check_out_of_memory();
    for (uint32_t round = 0; round < 2; round++) {
        ptrdiff_t offset;
        check_buffer_fill(&data, round == 0 ? 0xff : 0);
        check_buffer_fill(&subject->scratch, round == 0 ? 0xff : 0);
        kvant_status status = check_call_read(worker, inspect, subject->state.data, extent, index, data.data,
                                              subject->scratch.data);
        if (check_buffer_damaged(&data, &offset) || check_buffer_damaged(&subject->scratch, &offset))
            check_fail(worker, CHECK_BOUNDS, "inspect.read of \"%s\" wrote outside, at offset %td",
                       array->name, offset);
        if (id == CHECK_ARBITRARY) continue;
        if (status != KVANT_OK)
            check_fail(worker, id, "inspect.read of \"%s\" returned %d (%s)", array->name, status,
                       kvant_status_text(status));
        else if (round == 0)
            memcpy(first, data.data, (size_t)array->bytes);
        else if (memcmp(first, data.data, (size_t)array->bytes) != 0)
            check_fail(
                worker, id,
                "inspect.read of \"%s\" does not write all of its %llu bytes, or differs from call to call",
                array->name, (unsigned long long)array->bytes);
    }
    check_buffer_free(&worker->buffers, &data);
    free(first);
}

static void look_at_arrays(check_context *context, check_id id, const kvant_inspect *inspect,
                           const kvant_extent *extent) {
    check_worker *worker = context->worker;
    for (uint32_t i = 0; i < inspect->array_count && i < ARRAYS_LIMIT; i++) {
        kvant_array array;
        memset(&array, 0, sizeof array);
        kvant_status status =
            check_call_describe(worker, inspect, context->subject.state.data, extent, i, &array);
        if (status != KVANT_OK) {
            if (id != CHECK_ARBITRARY)
                check_fail(worker, id, "inspect.describe of array %u returned %d (%s)", i, status,
                           kvant_status_text(status));
            continue;
        }
        uint64_t elements;
        const char *fault = array_fault(&array, &elements);
        if (fault != NULL) {
            check_fail(worker, id, "inspect.describe of array %u (%s): %s", i,
                       array.name != NULL ? array.name : "NULL", fault);
            continue;
        }
        if (array.rank == 0 && array.bytes == 0) continue;
        if (id != CHECK_ARBITRARY && strcmp(array.name, "codes") == 0 && elements != context->elements)
            check_fail(worker, id, "\"codes\" has %llu entries for %zu elements",
                       (unsigned long long)elements, context->elements);
        read_array(context, id, inspect, extent, i, &array);
    }
}

void check_inspect(check_context *context) {
    check_worker *worker = context->worker;
    const kvant_inspect *inspect = check_call_extension(worker, KVANT_EXT_INSPECT);
    if (inspect == NULL) {
        worker->ran &= ~((uint64_t)1 << CHECK_INSPECT);
        return;
    }
    const kvant_extent extent = {.bytes = context->extent.buffer.data,
                                 .size = context->extent.size,
                                 .live_count = context->configuration.setup.block_tokens};
    look_at_arrays(context, CHECK_INSPECT, inspect, &extent);
}

/* Random, zeros, ones, or what encode wrote with some bits turned. */
static void fill_arbitrary(check_context *context, check_extent *extent, uint32_t kind) {
    unsigned char *bytes = extent->buffer.data;
    size_t size = (size_t)extent->size, written = (size_t)context->extent.size;
    check_random *random = &context->random;
    switch (kind) {
    case 0:
        memset(bytes, 0, size);
        return;
    case 1:
        memset(bytes, 0xff, size);
        return;
    case 2:
    case 3:
    case 4:
        for (size_t i = 0; i < size; i++) bytes[i] = context->extent.buffer.data[i % written];
        for (size_t n = kind == 2 ? 1 : 1 + size / 50; n > 0; n--)
            bytes[check_random_below(random, (uint32_t)size)] ^=
                (unsigned char)(1u << check_random_below(random, 8));
        /* The head of an extent is where offsets and counts stand. */
        if (kind == 4)
            for (size_t i = 0; i < size && i < 16; i++) bytes[i] = (unsigned char)check_random_next(random);
        return;
    default:
        for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)check_random_next(random);
    }
}

static void try_arbitrary(check_context *context, const kvant_inspect *inspect, uint32_t kind) {
    check_worker *worker = context->worker;
    const kvant_layout *layout = &context->layout;
    check_extent extent = {.first_position = check_random_next(&context->random)};
    uint32_t steps = layout->size_steps < UINT32_MAX ? (uint32_t)layout->size_steps + 1 : UINT32_MAX;
    extent.size = layout->size_min + check_random_below(&context->random, steps) * layout->size_step;
    if (!check_buffer_create(&worker->buffers, &extent.buffer, "extent", (size_t)extent.size,
                             layout->alignment, 0))
        check_out_of_memory();
    fill_arbitrary(context, &extent, kind);
    check_buffer_protect(&extent.buffer, true);
    for (uint32_t i = 0; i < RANGES; i++) {
        check_decoding how = check_whole(context, CHECK_ARBITRARY);
        if (i > 0) {
            how.first_token = check_random_below(&context->random, how.tokens);
            how.tokens = 1 + check_random_below(&context->random, how.tokens - how.first_token) % 8;
            how.first_head = check_random_below(&context->random, how.heads);
            how.heads = 1;
            how.dtype = (uint32_t)KVANT_DTYPE_F32 + check_random_below(&context->random, 3);
        }
        (void)check_subject_decode(&context->subject, &extent, &how, NULL);
    }
    const kvant_extent look = {.bytes = extent.buffer.data,
                               .size = extent.size,
                               .first_position = extent.first_position,
                               .live_count = context->configuration.setup.block_tokens};
    if (inspect != NULL) look_at_arrays(context, CHECK_ARBITRARY, inspect, &look);
    check_extent_free(worker, &extent);
}

void check_arbitrary(check_context *context) {
    const kvant_inspect *inspect = check_call_extension(context->worker, KVANT_EXT_INSPECT);
    for (uint32_t kind = 0; kind < EXTENTS; kind++) try_arbitrary(context, inspect, kind);
}
