/* The axes of the check: everything that a configuration chooses, with the values that are tried.
 *
 * Fixed axes: side, dtype, kv_heads, head_dim, block_tokens, data, rope, isa. Behind them one axis per
 * parameter of the schema: every choice, every listed integer, some of a range (its ends, the default,
 * powers of two, one odd number), both positions of a switch. Tables keep their default.
 *
 * For kernels the fixed axes hold fewer values, data is "mixed" (each block its own family), and behind the
 * parameters come four axes about attention.
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

/* Axes for kernels, counted from check_axes.gpu. */
enum {
    CHECK_GPU_AXIS_GROUP,  /* query heads of a kv head */
    CHECK_GPU_AXIS_TOKENS, /* of the sequence: CHECK_TOKENS_* */
    CHECK_GPU_AXIS_SIGHT,  /* CHECK_SIGHT_* */
    CHECK_GPU_AXIS_DIM,    /* head_dim of the other side */
    CHECK_GPU_AXES
};
enum {
    CHECK_TOKENS_ONE,
    CHECK_TOKENS_BEFORE_BLOCK,
    CHECK_TOKENS_BLOCK,
    CHECK_TOKENS_AFTER_BLOCK,
    CHECK_TOKENS_BLOCKS, /* ten blocks and seven */
    CHECK_TOKENS_COUNT
};
/* Which tokens a row sees, and how logits are bent. */
enum {
    CHECK_SIGHT_ALL,
    CHECK_SIGHT_WINDOW,
    CHECK_SIGHT_LIVE,
    CHECK_SIGHT_CAP,
    CHECK_SIGHT_MIXED,
    CHECK_SIGHT_COUNT
};

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
    uint32_t gpu;            /* the first axis for kernels; 0 = there are none */
    uint32_t skipped_params; /* parameters beyond the room for axes: they keep their defaults */
    check_axis axis[CHECK_AXES];
} check_axes;

/* Fills the axes from the descriptor, then pins those that `settings` name to one value. Random values of
 * ranges are drawn from the seed. */
kvant_status check_axes_create(const kvant_descriptor *descriptor, const check_options *options,
                               check_axes *axes, kvant_diag *diag);

/* The integer that a row has on an axis. */
int64_t check_axes_value(const check_axes *axes, const check_row *row, uint32_t axis);

/* "bits=2", "data=outlier"; like snprintf. */
size_t check_axis_text(const check_axes *axes, uint32_t axis, uint32_t value, char *text, size_t capacity);

/* Product of the counts, saturated. */
uint64_t check_axes_product(const check_axes *axes);

#endif
