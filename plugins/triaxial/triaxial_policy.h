/* The width of every tag: rules, table, artifact. See triaxial_policy.c. */
#ifndef KVANT_TRIAXIAL_POLICY_H
#define KVANT_TRIAXIAL_POLICY_H

#include <kvant/plugin.h>

#include <stdbool.h>

enum { TRIAXIAL_SPACE_TRIAXIAL, TRIAXIAL_SPACE_ROLES };

/* widths[256]: 2 or 4, by the setup's parameters and, with policy = artifact, its tensors. Refuses unknown
 * keys, rows that contradict each other, a missing or unfit artifact, a budget that the table exceeds. */
kvant_status triaxial_widths(const kvant_setup *setup, uint8_t widths[256], kvant_diag *diag);

/* True if the table alone gives every tag a width. */
bool triaxial_table_says_all(const kvant_setup *setup);

#endif
