/* Which tags get 4 bits: a knapsack. See triaxial_solver.c. */
#ifndef KVANT_TRIAXIAL_SOLVER_H
#define KVANT_TRIAXIAL_SOLVER_H

#include <stdbool.h>
#include <stdint.h>

enum { TRIAXIAL_EXACT_MAX = 22, TRIAXIAL_ITEMS_MAX = 256 };

typedef struct triaxial_item {
    double gain;   /* loss with 2 bits minus loss with 4; finite */
    double tokens; /* > 0 */
} triaxial_item;

/* Chooses the items whose gains sum to the most while their tokens sum to at most `room`; items without gain
 * stay out. Exact for up to TRIAXIAL_EXACT_MAX items with a gain, else greedy: by gain per token, skipping
 * what does not fit. A tie goes to the lower index. At most TRIAXIAL_ITEMS_MAX items. Returns the sum of
 * gains. */
double triaxial_solve(const triaxial_item *items, uint32_t count, double room, bool *chosen);

#endif
