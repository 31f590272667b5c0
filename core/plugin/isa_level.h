/* What kvant_isa() and its kin in kvant.h keep from applications. */
#ifndef KVANT_PLUGIN_ISA_LEVEL_H
#define KVANT_PLUGIN_ISA_LEVEL_H

#include <kvant/kvant.h>

/* VALUE, and the list of levels that this machine has, if the environment variable KVANT_ISA names no
 * level or one above this machine's. Whatever opens plugins, pipelines or codecs calls it first:
 * kvant_isa() itself cannot fail. */
kvant_status kvant_isa_check(kvant_diag *diag);

#endif
