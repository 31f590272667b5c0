/* Which configurations are run.
 *
 * First a grid: every head_dim with every number of kv heads and both sides at the default parameters. Then
 * a pairwise covering array over all axes: every pair of values of two axes occurs in a configuration that
 * plan accepts, unless plan refuses every one of some dozens of tries. Refused configurations are run too:
 * their refusal must have a reason. With `all` the full product takes their place, in an order drawn from
 * the seed, computed and never stored.
 */
#ifndef KVANT_CHECK_COVER_H
#define KVANT_CHECK_COVER_H

#include "check_worker.h"

/* Chooses rows and writes them and their statistics to the board. `blind`: without asking plan, which
 * kills. */
void check_cover(check_worker *worker, bool blind);

/* Number of configurations, `fraction` applied. */
uint64_t check_cover_count(const check_worker *worker);

/* Configuration `number`. */
void check_cover_row(const check_worker *worker, uint64_t number, check_row *row);

#endif
