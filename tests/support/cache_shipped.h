/* The pipelines that ship, on the geometry of the sample that ships: for what must hold for every codec. */
#ifndef KVANT_TEST_CACHE_SHIPPED_H
#define KVANT_TEST_CACHE_SHIPPED_H

#include "support/cache_rig.h"

/* Calls each(wish, name) for every pipelines/NAME.ini below the source directory; at least `least` of them.
 * The wish has text, directory and geometry. */
void rig_each_shipped(const char *source, uint32_t least,
                      void (*each)(const rig_wish *wish, const char *name));

#endif
