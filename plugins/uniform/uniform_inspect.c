/* kvant.inspect/1: an extent as arrays.
 *
 *     codes   [tokens, heads, head_dim]   I8: signed codes (symmetric, compressed_tensors). U8: unsigned,
 *                                         Q4_0's nibbles, the bytes of FP8, 1-bit signs
 *     scale   groups                      as stored; E8M0 as its byte
 *     min     groups                      where the convention stores a minimum
 *     zero    groups                      I8, where it stores an integer zero
 *
 * Groups, in the order of the elements:
 *
 *     tensor [1]   head [heads]   channel [heads, head_dim]   token [tokens, heads]
 *     group_channels [tokens, heads, head_dim / group]   group_tokens [tokens / group, heads, head_dim]
 *
 * Static scales are not in the extent and not shown. */
#include "uniform_state.h"

#include <string.h>

enum { CODES, SCALE, MINIMUM, ZERO, ARRAYS };

/* Q4_0 alone has signed codes whose nibbles are what its users know. */
static bool signed_codes(const uniform_arithmetic *a) {
    return a->bias != 0 && a->rule.rounding != UNIFORM_HALF_UP;
}

static uint32_t group_shape(const uniform_block *b, uint64_t *shape) {
    switch (b->granularity) {
    case UNIFORM_TENSOR:
        shape[0] = 1;
        return 1;
    case UNIFORM_HEAD:
        shape[0] = b->heads;
        return 1;
    case UNIFORM_CHANNEL:
        shape[0] = b->heads;
        shape[1] = b->head_dim;
        return 2;
    case UNIFORM_TOKEN:
        shape[0] = b->tokens;
        shape[1] = b->heads;
        return 2;
    case UNIFORM_GROUP_CHANNELS:
        shape[0] = b->tokens;
        shape[1] = b->heads;
        shape[2] = b->groups / b->tokens;
        return 3;
    default:
        shape[0] = b->tokens / b->group;
        shape[1] = b->heads;
        shape[2] = b->head_dim;
        return 3;
    }
}

static kvant_status describe(const void *state, const kvant_extent *extent, uint32_t index,
                             kvant_array *array) {
    static const char *const names[ARRAYS] = {"codes", "scale", "min", "zero"};
    const uniform_state *s = state;
    const uniform_block *b = &s->block;
    const uniform_arithmetic *a = &s->arithmetic;
    (void)extent;
    if (index >= ARRAYS) return KVANT_ERROR_ARGUMENT;
    *array = (kvant_array){.name = names[index], .dtype = KVANT_DTYPE_U8};
    if (index == CODES) {
        array->dtype = signed_codes(a) ? KVANT_DTYPE_I8 : KVANT_DTYPE_U8;
        array->rank = 3;
        array->shape[0] = b->tokens;
        array->shape[1] = b->heads;
        array->shape[2] = b->head_dim;
        array->bytes = (uint64_t)b->tokens * b->heads * b->head_dim;
        return KVANT_OK;
    }
    if (s->fixed) return KVANT_OK;
    if (index == MINIMUM && a->rule.offset != UNIFORM_OFFSET_MINIMUM) return KVANT_OK;
    if (index == ZERO && a->rule.offset != UNIFORM_OFFSET_ZERO) return KVANT_OK;
    array->dtype = index == SCALE ? a->scale_type : a->offset_type;
    array->rank = group_shape(b, array->shape);
    array->bytes = uniform_group_count(b) * (index == SCALE ? b->scale_bytes : b->offset_bytes);
    return KVANT_OK;
}

static void read_codes(const uniform_state *s, const uint8_t *extent, uint8_t *out) {
    const uniform_block *b = &s->block;
    int32_t bias = signed_codes(&s->arithmetic) ? s->arithmetic.bias : 0;
    for (uint32_t t = 0; t < b->tokens; t++)
        for (uint32_t h = 0; h < b->heads; h++)
            for (uint32_t c = 0; c < b->head_dim; c++)
                *out++ = (uint8_t)((int32_t)uniform_get_code(b, extent + h * b->head_bytes, t, c) - bias);
}

/* The place of a head's group in the order of the elements. */
static size_t place_of(const uniform_block *b, uint32_t head, size_t group) {
    switch (b->granularity) {
    case UNIFORM_CHANNEL:
        return (size_t)head * b->head_dim + group;
    case UNIFORM_TOKEN:
        return group * b->heads + head;
    case UNIFORM_GROUP_CHANNELS: {
        size_t groups = b->groups / b->tokens, token = group % b->tokens;
        return (token * b->heads + head) * groups + group / b->tokens;
    }
    case UNIFORM_GROUP_TOKENS: {
        size_t row = group / b->head_dim;
        return (row * b->heads + head) * b->head_dim + group % b->head_dim;
    }
    default:
        return head;
    }
}

static kvant_status read_array(const void *state, const kvant_extent *extent, uint32_t index, void *data,
                               void *scratch) {
    const uniform_state *s = state;
    const uniform_block *b = &s->block;
    const uint8_t *bytes = extent->bytes;
    kvant_array array;
    (void)scratch;
    kvant_status status = describe(state, extent, index, &array);
    if (status != KVANT_OK || array.bytes == 0) return status;
    if (index == CODES) {
        read_codes(s, bytes, data);
        return KVANT_OK;
    }
    size_t size = index == SCALE ? b->scale_bytes : b->offset_bytes;
    for (uint32_t h = 0; h < (b->granularity == UNIFORM_TENSOR ? 1 : b->heads); h++) {
        const uint8_t *plane = bytes + (index == SCALE ? uniform_scale_at(b, h) : uniform_offset_at(b, h));
        for (size_t g = 0; g < b->groups; g++)
            memcpy((uint8_t *)data + place_of(b, h, g) * size, plane + g * size, size);
    }
    return KVANT_OK;
}

const kvant_inspect uniform_inspect = {
    .struct_size = sizeof(kvant_inspect),
    .array_count = ARRAYS,
    .describe = describe,
    .read = read_array,
};
