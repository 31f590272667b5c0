/* One configuration. See check_case.h. */
#include "check_case.h"

#include "check_worker.h"

#include "base/text.h"
#include "plugin/schema.h"

#include <kvant/kit/view.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill_rope(check_case *c, uint32_t style) {
    uint32_t dim = c->setup.head_dim;
    uint32_t rotary = style == KVANT_ROPE_GPTJ && dim > 8 ? dim / 2 & ~1u : dim & ~1u;
    if (c->setup.side != KVANT_SIDE_KEY || style == KVANT_ROPE_NONE || rotary == 0) return;
    for (uint32_t i = 0; i < rotary / 2; i++) c->inverse_frequency[i] = pow(10000, -2.0 * i / rotary);
    c->rope = (kvant_rope){.struct_size = sizeof c->rope,
                           .style = style,
                           .rotary_dim = rotary,
                           .magnitude = 1,
                           .inverse_frequency = c->inverse_frequency};
    c->setup.rope = &c->rope;
}

static void fill_values(const check_axes *axes, const check_row *row, check_case *c) {
    for (uint32_t i = 0; i < axes->descriptor->param_count; i++)
        kvant_schema_default(kvant_schema_param(axes->descriptor, i), &c->values[i]);
    for (uint32_t a = CHECK_AXIS_PARAM; a < axes->count; a++) {
        const check_axis *axis = &axes->axis[a];
        if (axis->param != NULL && axis->param->type != KVANT_PARAM_TABLE)
            c->values[axis->param_index] = axis->values[row->value[a]];
    }
}

bool check_case_create(const check_axes *axes, const check_row *row, uint64_t seed, check_case *c) {
    *c = (check_case){.seed = seed};
    uint32_t heads = (uint32_t)check_axes_value(axes, row, CHECK_AXIS_HEADS);
    uint32_t dim = (uint32_t)check_axes_value(axes, row, CHECK_AXIS_DIM);
    uint32_t group =
        axes->gpu != 0 ? (uint32_t)check_axes_value(axes, row, axes->gpu + CHECK_GPU_AXIS_GROUP) : 2;
    c->values = calloc(axes->descriptor->param_count + 1u, sizeof *c->values);
    c->inverse_frequency = calloc(dim / 2 + 1u, sizeof *c->inverse_frequency);
    if (c->values == NULL || c->inverse_frequency == NULL) {
        check_case_free(c);
        return false;
    }
    c->setup = (kvant_setup){
        .struct_size = sizeof c->setup,
        .side = (uint32_t)check_axes_value(axes, row, CHECK_AXIS_SIDE),
        .layer = 1,
        .layer_count = 4,
        .dtype = (uint32_t)check_axes_value(axes, row, CHECK_AXIS_DTYPE),
        .head_dim = dim,
        .kv_heads = heads,
        .first_kv_head = heads == 3 ? 1 : 0, /* a rank that is not alone */
        .total_kv_heads = heads == 3 ? 5 : heads,
        .q_heads = heads * group,
        .isa = (uint32_t)check_axes_value(axes, row, CHECK_AXIS_ISA),
        .value_count = axes->descriptor->param_count,
        .values = c->values,
    };
    c->data = (check_data)check_axes_value(axes, row, CHECK_AXIS_DATA);
    c->block = check_axes_value(axes, row, CHECK_AXIS_BLOCK);
    c->block_exact =
        axes->axis[CHECK_AXIS_BLOCK].values[row->value[CHECK_AXIS_BLOCK]].number == CHECK_BLOCK_EXACT;
    c->setup.block_tokens = c->block > 0 ? (uint32_t)c->block : CHECK_BLOCK_COMMON;
    fill_rope(c, (uint32_t)check_axes_value(axes, row, CHECK_AXIS_ROPE));
    fill_values(axes, row, c);
    return true;
}

void check_case_set_arrays(check_case *c, const kvant_array *arrays, uint32_t count) {
    check_case_free_arrays(c);
    for (uint32_t i = 0; i < count; i++) {
        c->arrays[i] = arrays[i];
        c->arrays[i].name = strdup(arrays[i].name);
        if (c->arrays[i].name == NULL) check_out_of_memory();
    }
    c->setup.tensors = c->arrays;
    c->setup.tensor_count = count;
}

static void free_const(const void *memory) {
    union {
        const void *given;
        void *owned;
    } pointer = {.given = memory};
    free(pointer.owned);
}

void check_case_free_arrays(check_case *c) {
    for (uint32_t i = 0; i < c->setup.tensor_count && !c->borrowed; i++) {
        free_const(c->arrays[i].data);
        free_const(c->arrays[i].name);
    }
    c->setup.tensors = NULL;
    c->setup.tensor_count = 0;
    c->borrowed = false;
}

void check_case_free(check_case *c) {
    check_case_free_arrays(c);
    free(c->values);
    free(c->inverse_frequency);
    *c = (check_case){0};
}

uint32_t check_case_block(const check_case *c, uint32_t multiple) {
    if (multiple == 0 || multiple > CHECK_BLOCK_MAX || c->block_exact) return c->setup.block_tokens;
    if (c->block < 0) {
        uint64_t tokens = (uint64_t)-c->block * multiple;
        return tokens > 1024 ? multiple : (uint32_t)tokens;
    }
    return ((uint32_t)c->block + multiple - 1) / multiple * multiple;
}

bool check_case_copy(const check_case *from, check_case *to) {
    *to = *from;
    to->borrowed = true;
    if (from->setup.tensor_count > 0) to->setup.tensors = to->arrays;
    uint32_t count = from->setup.value_count, dim = from->setup.head_dim;
    to->values = calloc(count + 1u, sizeof *to->values);
    to->inverse_frequency = calloc(dim / 2 + 1u, sizeof *to->inverse_frequency);
    if (to->values == NULL || to->inverse_frequency == NULL) {
        check_case_free(to);
        return false;
    }
    memcpy(to->values, from->values, count * sizeof *to->values);
    memcpy(to->inverse_frequency, from->inverse_frequency, dim / 2 * sizeof *to->inverse_frequency);
    to->setup.values = to->values;
    to->rope.inverse_frequency = to->inverse_frequency;
    if (from->setup.rope != NULL) to->setup.rope = &to->rope;
    return true;
}

void check_case_text(const check_axes *axes, const check_row *row, const check_case *c, char *text,
                     size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t a = 0; a < axes->count && used + 1 < capacity; a++) {
        if (axes->axis[a].param != NULL && axes->axis[a].param->type == KVANT_PARAM_TABLE) continue;
        if (used > 0) text[used++] = ' ';
        size_t size;
        if (a == CHECK_AXIS_BLOCK) {
            int written = snprintf(text + used, capacity - used, "block_tokens=%u", c->setup.block_tokens);
            size = written > 0 ? (size_t)written : 0;
        } else {
            size = check_axis_text(axes, a, row->value[a], text + used, capacity - used);
        }
        used += size;
    }
    if (used >= capacity) text[capacity - 1] = '\0';
}

uint64_t check_case_elements(const check_case *c) {
    return (uint64_t)c->setup.block_tokens * c->setup.kv_heads * c->setup.head_dim;
}
