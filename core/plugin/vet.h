/* Is this a plugin? The checks between kvant_plugin_query and the first call: all that can be seen without
 * running the codec. What a codec does when it runs is put to the test by `kvant check`. */
#ifndef KVANT_PLUGIN_VET_H
#define KVANT_PLUGIN_VET_H

#include <kvant/plugin.h>

#include <stdbool.h>

/* PLUGIN_ABI: made for another ABI major version, or needs what this host cannot do. PLUGIN_BROKEN:
 * anything else that plugin.h asks for and that is not so. The message names the field, key = the
 * parameter at fault. */
kvant_status kvant_vet(const kvant_plugin *plugin, kvant_diag *diag);

/* True for UTF-8 without control characters, so that it can be printed anywhere; a newline passes where
 * `lines`. */
bool kvant_vet_text(const char *text, bool lines);

#endif
