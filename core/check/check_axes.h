/* The axes of the check: everything that a configuration chooses, with the values that are tried.
 *
 * Fixed axes: side, dtype, kv_heads, head_dim, block_tokens, data, rope, isa. Behind them one axis per
 * parameter of the schema: every choice, every listed integer, some of a range (its ends, the default,
 * powers of two, one odd number), both positions of a switch. Tables keep their default.
 */
#ifndef KVANT_CHECK_AXES_H
#define KVANT_CHECK_AXES_H

#include "check_board.h"
#include "check_random.h"

enum {
    CHECK_AXIS_SIDE,
    CHECK_AXIS_DTYPE,
    CHECK_AXIS_HEADS,
    CHECK_AXIS_DIM,
    CHECK_AXIS_BLOCK,
    CHECK_AXIS_DATA,
    CHECK_AXIS_ROPE,
    CHECK_AXIS_ISA,
    CHECK_AXIS_PARAM, /* this and all after it are parameters */
    CHECK_AXIS_VALUES = 20
};

/* block_tokens: a number of tokens, rounded up to what the codec takes unless value.number is EXACT, or -n
 * = n times block_multiple. */
enum { CHECK_BLOCK_COMMON = 64, CHECK_BLOCK_EXACT = 1 };

typedef struct check_axis {
    const char *name;
    const kvant_param *param; /* NULL for a fixed axis */
    uint32_t param_index;
    uint32_t count;
    uint32_t fallback; /* index of the default value, or of an ordinary one */
    kvant_value values[CHECK_AXIS_VALUES];
} check_axis;

typedef struct check_axes {
    const kvant_descriptor *descriptor;
    uint32_t count;
    uint32_t skipped_params; /* parameters beyond the room for axes: they keep their defaults */
    check_axis axis[CHECK_AXES];
} check_axes;

/* Fills the axes from the descriptor, then pins those that `settings` name to one value. Random values of
 * ranges are drawn from the seed. */
kvant_status check_axes_create(const kvant_descriptor *descriptor, const check_options *options,
                               check_axes *axes, kvant_diag *diag);

/* "bits=2", "data=outlier"; like snprintf. */
size_t check_axis_text(const check_axes *axes, uint32_t axis, uint32_t value, char *text, size_t capacity);

/* Product of the counts, saturated. */
uint64_t check_axes_product(const check_axes *axes);

#endif
