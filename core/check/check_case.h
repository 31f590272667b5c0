/* One configuration, as the plugin gets it: a setup with all that it points to. */
#ifndef KVANT_CHECK_CASE_H
#define KVANT_CHECK_CASE_H

#include "check_axes.h"
#include "check_data.h"

enum { CHECK_ROTARY = 8192, CHECK_BLOCK_MAX = 1 << 16, CHECK_ARRAYS = 16, CHECK_ARRAY_NAME = 64 };

typedef struct check_case {
    kvant_setup setup; /* points into this struct */
    kvant_rope rope;
    kvant_value *values;
    double *inverse_frequency; /* [head_dim / 2] */
    kvant_array arrays[CHECK_ARRAYS]; /* of an artifact, sorted by name */
    bool borrowed;                    /* their names and data belong to another case */
    check_data data; /* CHECK_DATA_COUNT: each block another */
    int64_t block; /* of the axis: see check_axes.h */
    bool block_exact;
    uint64_t seed; /* of its data */
} check_case;

/* From a row of value indices. block_tokens is still that of the axis, made positive: check_case_set_block
 * follows once block_multiple is known. False when there is no memory. */
bool check_case_create(const check_axes *axes, const check_row *row, uint64_t seed, check_case *c);
void check_case_free(check_case *c);

/* The number of tokens that the axis asks for, given the codec's block_multiple. */
uint32_t check_case_block(const check_case *c, uint32_t block_multiple);

/* A copy in memory of its own, but for the tensors' data: the same answers must come from it. */
bool check_case_copy(const check_case *from, check_case *to);

/* "side=key dtype=f16 kv_heads=3 ... block_tokens=64 bits=2 group=32", as --set takes it. */
void check_case_text(const check_axes *axes, const check_row *row, const check_case *c, char *text,
                     size_t capacity);

/* Gives the setup tensors, as calibration might; `count` of them, whose data come from malloc. */
void check_case_set_arrays(check_case *c, const kvant_array *arrays, uint32_t count);
void check_case_free_arrays(check_case *c);

/* Elements of a block. */
uint64_t check_case_elements(const check_case *c);

#endif
