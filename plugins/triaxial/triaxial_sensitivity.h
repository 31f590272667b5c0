/* What 2 or 4 bits on the tokens of one tag do to the attention output. See triaxial_sensitivity.c. */
#ifndef KVANT_TRIAXIAL_SENSITIVITY_H
#define KVANT_TRIAXIAL_SENSITIVITY_H

#include <kvant/plugin.h>

enum { TRIAXIAL_TAGS = 256 };

/* Adds the layer's loss of one text: loss[tag][0] with 2 bits, [1] with 4, the largest over query heads of
 * the mean squared error of the attention output. sides: KVANT_SIDES_* that the codec quantizes. The sample
 * has all views and tags, of shapes that fit, and finite numbers. False where memory is short. */
_Bool triaxial_sensitivity(const kvant_sample *sample, uint32_t group, uint32_t sides,
                           double loss[TRIAXIAL_TAGS][2]);

#endif
