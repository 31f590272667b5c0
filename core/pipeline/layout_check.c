/* What a plugin's plan() answered, held against plugin.h: a host that reserves, aligns and bounds memory
 * by these numbers must not take them on trust. See plan.h. */
#include "pipeline/plan.h"

#include <kvant/kit/diag.h>

#include <math.h>

/* No machine holds more; keeps every later sum of sizes far from overflow. */
static const uint64_t bytes_max = UINT64_C(1) << 48;

#define LIE(...) kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "", __VA_ARGS__)

/* a + b * c, UINT64_MAX if it does not fit. */
static uint64_t sum_of_product(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t product = 0, sum = 0;
    if (__builtin_mul_overflow(b, c, &product) || __builtin_add_overflow(a, product, &sum)) return UINT64_MAX;
    return sum;
}

static kvant_status check_sizes(const kvant_layout *layout, kvant_diag *diag) {
    if (layout->size_min == 0) return LIE("layout: size_min is 0");
    if ((layout->size_step == 0) != (layout->size_steps == 0))
        return LIE("layout: size_step %llu and size_steps %llu: both are 0 or neither is",
                   (unsigned long long)layout->size_step, (unsigned long long)layout->size_steps);
    uint64_t largest = sum_of_product(layout->size_min, layout->size_step, layout->size_steps);
    if (largest > bytes_max)
        return LIE("layout: the largest extent (%llu + %llu * %llu bytes) is above 2^48 bytes",
                   (unsigned long long)layout->size_min, (unsigned long long)layout->size_step,
                   (unsigned long long)layout->size_steps);
    if (layout->size_steps == 0 && (layout->payload_bits_step != 0 || layout->metadata_bits_step != 0))
        return LIE("layout: bits per step, and there is one size only");
    /* Bits and bytes are linear in the step: what holds at both ends holds between. */
    for (int end = 0; end < 2; end++) {
        uint64_t steps = end == 0 ? 0 : layout->size_steps, bits = 0;
        uint64_t payload = sum_of_product(layout->payload_bits, layout->payload_bits_step, steps);
        uint64_t metadata = sum_of_product(layout->metadata_bits, layout->metadata_bits_step, steps);
        uint64_t bytes = end == 0 ? layout->size_min : largest;
        if (__builtin_add_overflow(payload, metadata, &bits) || bits > 8 * bytes)
            return LIE("layout: payload (%llu bits) and metadata (%llu bits) do not fit into the %s extent "
                       "(%llu bytes)",
                       (unsigned long long)payload, (unsigned long long)metadata,
                       end == 0 ? "smallest" : "largest", (unsigned long long)bytes);
    }
    return KVANT_OK;
}

static kvant_status check_memory(const kvant_layout *layout, kvant_diag *diag) {
    const struct {
        const char *name;
        uint64_t bytes;
    } sizes[] = {{"state_bytes", layout->state_bytes},
                 {"scratch_bytes", layout->scratch_bytes},
                 {"attend_scratch_bytes", layout->attend_scratch_bytes},
                 {"attend_scratch_row", layout->attend_scratch_row},
                 {"query_state_bytes", layout->query_state_bytes}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].bytes > bytes_max)
            return LIE("layout: %s is %llu, above 2^48", sizes[i].name, (unsigned long long)sizes[i].bytes);
    if (layout->query_state_bytes % 64 != 0)
        return LIE("layout: query_state_bytes %llu is not a multiple of 64",
                   (unsigned long long)layout->query_state_bytes);
    if (!isfinite(layout->attend_tolerance) || layout->attend_tolerance < 0)
        return LIE("layout: attend_tolerance %g is not a finite number from 0 on", layout->attend_tolerance);
    return KVANT_OK;
}

/* Attention on codes and tags: what is promised must be offered, what is not asked for must be absent. */
static kvant_status check_promises(const kvant_plugin *plugin, const kvant_setup *setup,
                                   const kvant_layout *layout, kvant_diag *diag) {
    bool attends = (layout->flags & KVANT_LAYOUT_ATTEND) != 0;
    bool mixes = attends && setup->side == KVANT_SIDE_VALUE;
    if (attends && (plugin->extension == NULL || plugin->extension(KVANT_EXT_ATTEND) == NULL))
        return LIE("layout: it promises attention on codes, and there is no extension " KVANT_EXT_ATTEND);
    if ((layout->mix_width != 0) != mixes)
        return LIE("layout: mix_width is %u, and the row %s", layout->mix_width,
                   mixes ? "is of values and attends on codes" : "mixes no values on codes");
    if (setup->side == KVANT_SIDE_VALUE && (layout->flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE) != 0)
        return LIE("layout: values are not stored on a side of RoPE");
    for (size_t tag = 0; tag < 256; tag++)
        if (layout->tag_class[tag] != 0 && (plugin->descriptor->requires_bits & KVANT_REQUIRES_TAGS) == 0)
            return LIE("layout: tag %zu has class %u, and the plugin does not ask for tags", tag,
                       layout->tag_class[tag]);
    return KVANT_OK;
}

/* x86-64 levels and AArch64 are two families; scalar code belongs to both. */
static bool may_use(uint32_t allowed, uint32_t isa) {
    return isa == KVANT_ISA_SCALAR ||
           (isa <= allowed && (isa >= KVANT_ISA_AARCH64) == (allowed >= KVANT_ISA_AARCH64));
}

kvant_status kvant_layout_check(const kvant_plugin *plugin, const kvant_setup *setup,
                                const kvant_layout *layout, kvant_diag *diag) {
    uint32_t alignment = layout->alignment;
    if (layout->struct_size != sizeof *layout) return LIE("layout: plan changed struct_size");
    if (alignment == 0 || alignment > 4096 || (alignment & (alignment - 1)) != 0)
        return LIE("layout: alignment %u is not a power of two from 1 to 4096", alignment);
    if (layout->block_multiple == 0) return LIE("layout: block_multiple is 0");
    if (setup->block_tokens % layout->block_multiple != 0)
        return LIE("layout: plan accepted block_tokens %u, which is no multiple of its block_multiple %u",
                   setup->block_tokens, layout->block_multiple);
    if (!may_use(setup->isa, layout->isa))
        return LIE("layout: isa %u is not within the allowed %u", layout->isa, setup->isa);
    kvant_status status = check_sizes(layout, diag);
    if (status == KVANT_OK) status = check_memory(layout, diag);
    return status == KVANT_OK ? check_promises(plugin, setup, layout, diag) : status;
}
