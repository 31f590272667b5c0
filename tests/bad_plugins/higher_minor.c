/* Compiled against a later minor version, with a longer root: accepted, the host reads what it knows. */
#include "honest.h"

static const kvant_descriptor descriptor = {HONEST_DESCRIPTOR("higher_minor")};
static const struct {
    kvant_plugin plugin;
    void *later;
} longer = {{HONEST_CALLS, .descriptor = &descriptor, .struct_size = sizeof(kvant_plugin) + sizeof(void *),
             .abi = KVANT_ABI_MAJOR << 16 | 7},
            NULL};

const kvant_plugin *kvant_plugin_query(uint32_t host_abi) {
    (void)host_abi;
    return &longer.plugin;
}
