/* Texts of the status codes, and the library's version. */
#include <kvant/kvant.h>

const char *kvant_version(void) {
    return KVANT_VERSION_TEXT; /* from kvant.h by way of the build: one place states it */
}

const char *kvant_status_text(kvant_status status) {
    switch (status) {
    case KVANT_OK: return "done";
    case KVANT_ERROR_ARGUMENT: return "wrong argument";
    case KVANT_ERROR_UNSUPPORTED: return "not supported";
    case KVANT_ERROR_MEMORY: return "out of memory";
    case KVANT_ERROR_CAPACITY: return "buffer too small";
    case KVANT_ERROR_SYNTAX: return "syntax error";
    case KVANT_ERROR_UNKNOWN_NAME: return "unknown name";
    case KVANT_ERROR_DUPLICATE: return "said twice";
    case KVANT_ERROR_VALUE: return "value out of its range";
    case KVANT_ERROR_CONFLICT: return "values contradict each other";
    case KVANT_ERROR_GEOMETRY: return "geometry not supported";
    case KVANT_ERROR_BLOCK_TOKENS: return "block_tokens not supported";
    case KVANT_ERROR_DTYPE: return "data type not supported";
    case KVANT_ERROR_NOT_FINITE: return "not finite";
    case KVANT_ERROR_CORRUPT: return "corrupt data";
    case KVANT_ERROR_VERSION: return "unknown format version";
    case KVANT_ERROR_MISMATCH: return "made for something else";
    case KVANT_ERROR_MISSING: return "missing";
    case KVANT_ERROR_PLUGIN_NOT_FOUND: return "plugin not found";
    case KVANT_ERROR_PLUGIN_REFUSED: return "plugin refused";
    case KVANT_ERROR_PLUGIN_ABI: return "plugin of another ABI";
    case KVANT_ERROR_PLUGIN_BROKEN: return "plugin broken";
    case KVANT_ERROR_IO: return "input/output error";
    case KVANT_ERROR_NO_SPACE: return "no space left";
    case KVANT_ERROR_DEVICE: return "device error";
    default: return "unknown status";
    }
}
