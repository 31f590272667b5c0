/* NumPy's .npy files, versions 1 to 3: one array, little-endian numbers, C or Fortran order.
 *
 *     0       6        8             10 or 12
 *     | magic | version | header bytes | header: a Python dict, padded with spaces, then "\n" | data |
 *
 * Format: numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#ifndef KVANT_DATA_NPY_H
#define KVANT_DATA_NPY_H

#include <kvant/types.h>

#include <stdbool.h>

typedef struct kvant_npy kvant_npy;

/* '<f2' '<f4' '<f8', 'u1' 'i1' 'b1', '<u2' '<i2' '<u4' '<i4' '<u8' '<i8'. NumPy has no BF16: 'V2', as
 * which ml_dtypes writes it, is U16 here, and the caller says what it means. */
kvant_status kvant_npy_open(const char *file, kvant_npy **npy, kvant_diag *diag);
/* The same over bytes in memory, which must outlive it; `name` stands for the file. */
kvant_status kvant_npy_parse(const void *bytes, size_t size, const char *name, kvant_npy **npy,
                             kvant_diag *diag);
void kvant_npy_close(kvant_npy *npy);

/* The array; its name is the file's base name without ".npy". Where kvant_npy_fortran says so its first
 * axis is the one whose elements are neighbours. */
const kvant_array *kvant_npy_array(const kvant_npy *npy);
bool kvant_npy_fortran(const kvant_npy *npy);

#endif
