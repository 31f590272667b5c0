/* The registry: which plugins this process has, the library's only state. registry.c is the part of
 * kvant.h that finds and opens; catalog.c, the part that lists, looks in through this header. */
#ifndef KVANT_PLUGIN_REGISTRY_H
#define KVANT_PLUGIN_REGISTRY_H

#include "plugin/search.h"

#include <kvant/kvant.h>

/* A plugin in use. Never freed, never changed, but for `next` of the last one. */
typedef struct kvant_loaded {
    struct kvant_loaded *next;
    const kvant_plugin *plugin;
    kvant_plugin_query_fn *query; /* of a registered one, else NULL */
    char *file;                   /* absolute path as it was found; "" if registered */
    dev_t device;                 /* what the file is, whatever it is called */
    ino_t inode;
} kvant_loaded;

/* All that follows needs the lock. */
void kvant_registry_lock(void);
void kvant_registry_unlock(void);

const kvant_loaded *kvant_registry_first(void);
const kvant_loaded *kvant_registry_by_name(const char *name);

/* The directories to search, in order; the caller frees. */
kvant_status kvant_registry_directories(kvant_directories *out, kvant_diag *diag);

/* Checks, opens, vets and enters one file, which must carry the plugin `name`. On failure the diag's
 * message is the reason, without the path. */
kvant_status kvant_registry_open(const char *path, const char *name, const kvant_loaded **loaded,
                                 kvant_diag *diag);

#endif
