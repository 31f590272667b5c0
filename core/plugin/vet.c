/* See vet.h. Order matters: sizes before members, the ABI's version before what depends on it. */
#include "plugin/vet.h"

#include "base/text.h"
#include "plugin/schema.h"

#include <kvant/kit/diag.h>

#include <stdbool.h>

enum { KNOWN_REQUIRES = KVANT_REQUIRES_TAGS, ABI_MINOR_BITS = 16 };

#define BROKEN(...) kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "", __VA_ARGS__)

static kvant_status vet_size(const char *name, uint32_t size, size_t least, kvant_diag *diag) {
    if (size >= least) return KVANT_OK;
    return BROKEN("%s.struct_size is %u; of ABI %d.%d it is at least %zu", name, size, KVANT_ABI_MAJOR,
                  KVANT_ABI_MINOR, least);
}

/* Bytes of the UTF-8 character that starts here, 0 if none does: no overlong forms, surrogates or numbers
 * that are not Unicode's. The end of the text ends a character as any wrong byte does. */
static size_t character(const unsigned char *at) {
    size_t size = at[0] < 0x80   ? 1
                  : at[0] < 0xc2 ? 0
                  : at[0] < 0xe0 ? 2
                  : at[0] < 0xf0 ? 3
                  : at[0] < 0xf5 ? 4
                                 : 0;
    for (size_t i = 1; i < size; i++)
        if (at[i] < 0x80 || at[i] > 0xbf) return 0;
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
        (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return size;
}

bool kvant_vet_text(const char *text, bool lines) {
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        size_t size = character(at);
        if (size == 0 || *at == 0x7f || (*at < 0x20 && !(lines && *at == '\n'))) return false;
        at += size;
    }
    return true;
}

/* A line of text, not empty where `needed`. */
static kvant_status vet_line(const char *field, const char *text, bool needed, kvant_diag *diag) {
    if (text == NULL) return BROKEN("descriptor.%s is NULL", field);
    if (needed && text[0] == '\0') return BROKEN("descriptor.%s is empty", field);
    if (!kvant_vet_text(text, false)) return BROKEN("descriptor.%s is not a line of UTF-8", field);
    return KVANT_OK;
}

static kvant_status vet_strings(const kvant_descriptor *d, kvant_diag *diag) {
    const struct {
        const char *field;
        const char *text;
        bool needed;
    } lines[] = {
        {"version", d->version, true},
        {"title", d->title, true},
        {"paper", d->paper, false},
        {"license", d->license, true},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        kvant_status status = vet_line(lines[i].field, lines[i].text, lines[i].needed, diag);
        if (status != KVANT_OK) return status;
    }
    if (d->deviations == NULL) return BROKEN("descriptor.deviations is NULL");
    return kvant_vet_text(d->deviations, true) ? KVANT_OK : BROKEN("descriptor.deviations is not UTF-8");
}

static kvant_status vet_numbers(const kvant_descriptor *d, kvant_diag *diag) {
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t c = d->format_id >> 8 * i & 0xff;
        if (c < 0x20 || c > 0x7e)
            return BROKEN("descriptor.format_id is 0x%08x: it takes four printable ASCII characters",
                          d->format_id);
    }
    if (d->sides == 0 || (d->sides & ~(uint32_t)KVANT_SIDES_BOTH) != 0)
        return BROKEN("descriptor.sides is 0x%x: it takes KVANT_SIDES_KEY, KVANT_SIDES_VALUE or both",
                      d->sides);
    if (d->dtypes == 0 || (d->dtypes & ~(uint32_t)KVANT_DTYPES_ALL) != 0)
        return BROKEN("descriptor.dtypes is 0x%x: it takes KVANT_DTYPES_F32, _F16, _BF16", d->dtypes);
    if (d->head_dim_multiple == 0 || d->head_dim_min == 0 || d->head_dim_min > d->head_dim_max)
        return BROKEN(
            "descriptor.head_dim_min, _max, _multiple are %u, %u, %u: min and multiple are at least 1 and "
            "min is at most max",
            d->head_dim_min, d->head_dim_max, d->head_dim_multiple);
    if (d->head_dim_max / d->head_dim_multiple == (d->head_dim_min - 1) / d->head_dim_multiple)
        return BROKEN("descriptor.head_dim_multiple is %u: no multiple of it lies between %u and %u",
                      d->head_dim_multiple, d->head_dim_min, d->head_dim_max);
    uint32_t unknown = d->requires_bits & ~(uint32_t)KNOWN_REQUIRES;
    if (unknown != 0)
        return kvant_fail(
            diag, KVANT_ERROR_PLUGIN_ABI, "",
            "descriptor.requires_bits has 0x%x, which this library cannot provide: the plugin needs a "
            "newer one",
            unknown);
    return KVANT_OK;
}

static kvant_status vet_descriptor(const kvant_descriptor *d, kvant_diag *diag) {
    if (d == NULL) return BROKEN("plugin.descriptor is NULL");
    kvant_status status = vet_size("descriptor", d->struct_size, sizeof *d, diag);
    if (status != KVANT_OK) return status;
    if (d->name == NULL) return BROKEN("descriptor.name is NULL");
    if (!kvant_is_name(d->name))
        return BROKEN("descriptor.name is \"%.40s\": it takes [a-z][a-z0-9_]{0,31}", d->name);
    if ((status = vet_strings(d, diag)) != KVANT_OK) return status;
    if ((status = vet_numbers(d, diag)) != KVANT_OK) return status;
    return kvant_schema_vet(d, diag);
}

static kvant_status vet_calls(const kvant_plugin *plugin, kvant_diag *diag) {
    const char *missing = plugin->plan == NULL     ? "plan"
                          : plugin->open == NULL   ? "open"
                          : plugin->close == NULL  ? "close"
                          : plugin->encode == NULL ? "encode"
                          : plugin->decode == NULL ? "decode"
                                                   : NULL;
    return missing == NULL ? KVANT_OK : BROKEN("plugin.%s is NULL: the five calls are mandatory", missing);
}

kvant_status kvant_vet(const kvant_plugin *plugin, kvant_diag *diag) {
    /* Only these eight bytes mean the same in every ABI. */
    kvant_status status = vet_size("plugin", plugin->struct_size, 2 * sizeof(uint32_t), diag);
    if (status != KVANT_OK) return status;
    if (plugin->abi >> ABI_MINOR_BITS != KVANT_ABI_MAJOR)
        return kvant_fail(
            diag, KVANT_ERROR_PLUGIN_ABI, "",
            "plugin.abi is %u.%u and this library takes %d.x: rebuild the plugin with this version's "
            "plugin.h",
            plugin->abi >> ABI_MINOR_BITS, plugin->abi & 0xffff, KVANT_ABI_MAJOR);
    if ((status = vet_size("plugin", plugin->struct_size, sizeof *plugin, diag)) != KVANT_OK) return status;
    if ((status = vet_descriptor(plugin->descriptor, diag)) != KVANT_OK) return status;
    return vet_calls(plugin, diag);
}
