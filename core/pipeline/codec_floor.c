/* The codec floor of kvant.h: one row of a plan, opened.
 *
 * Scratch of one call, each part aligned to 64 bytes:
 *
 *     | the plugin's scratch | rows, as the codec gets or gives them | one row of floats | classes | turns |
 *     | turns of the last multiple |
 *
 * Rows pass through a copy only where the host changes them: keys that turn or are centred, numbers that
 * are replaced, sinks. Else the plugin reads and writes the caller's view.
 */
#include "pipeline/codec_floor.h"

#include "data/blocks.h"
#include "pipeline/codec_rows.h"
#include "pipeline/plan.h"
#include "plugin/fpenv.h"
#include "plugin/isa_level.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>

struct kvant_codec {
    kvant_plan *plan; /* held */
    const kvant_plan_entry *entry;
    void *state;
    bool changes; /* the host turns or centres the rows */
    bool classes; /* the plugin wants the classes of the tokens */
    size_t extent_max;
    size_t rows_at, row_at, classes_at, turns_at, base_at; /* offsets in scratch */
    size_t scratch_bytes;
};

static const char *const side_names[2] = {"key", "value"};

/* ---- Open and close ------------------------------------------------------------------------------------ */

/* Appends a part of count * size bytes, aligned; false if the sum is beyond the address space. */
static bool place_part(size_t *end, size_t *at, uint64_t count, uint64_t size) {
    uint64_t bytes = 0, sum = 0;
    *at = *end;
    if (__builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(bytes, (uint64_t)*end, &sum))
        return false;
    if (sum > SIZE_MAX / 2 - 64) return false;
    *end = ((size_t)sum + 63) / 64 * 64;
    return true;
}

static bool place_scratch(kvant_codec *codec) {
    const kvant_setup *setup = &codec->entry->setup;
    uint64_t elements = (uint64_t)setup->block_tokens * setup->kv_heads * setup->head_dim;
    bool copies =
        codec->changes || codec->plan->on_nonfinite == KVANT_ON_NONFINITE_SATURATE || codec->plan->sinks > 0;
    /* Decoded rows that the host changes stay floats until then. */
    uint64_t width = codec->changes ? sizeof(float) : kvant_element_bytes(setup->dtype);
    uint32_t pairs = codec->entry->turn != KVANT_TURN_NONE ? setup->rope->rotary_dim / 2 : 0;
    size_t end = 0, plugin = 0;
    if (!place_part(&end, &plugin, codec->entry->layout.scratch_bytes, 1)) return false;
    if (!place_part(&end, &codec->rows_at, copies ? elements : 0, width)) return false;
    if (!place_part(&end, &codec->row_at, copies ? setup->head_dim : 0, sizeof(float))) return false;
    if (!place_part(&end, &codec->classes_at, codec->classes ? setup->block_tokens : 0, 1)) return false;
    if (!place_part(&end, &codec->turns_at, pairs, 2 * sizeof(float))) return false;
    if (!place_part(&end, &codec->base_at, pairs, 2 * sizeof(double))) return false;
    codec->scratch_bytes = end;
    return true;
}

static kvant_status open_state(kvant_codec *codec, kvant_diag *diag) {
    const kvant_plan_entry *entry = codec->entry;
    uint64_t bytes = entry->layout.state_bytes != 0 ? entry->layout.state_bytes : 1;
    if (bytes > SIZE_MAX / 2) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    size_t rounded = ((size_t)bytes + 63) / 64 * 64;
    codec->state = aligned_alloc(64, rounded);
    if (codec->state == NULL)
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory: the codec's state takes %zu bytes",
                          rounded);
    memset(codec->state, 0, rounded);
    kvant_diag why = {.struct_size = sizeof why};
    kvant_status status = entry->row.plugin->open(&entry->setup, &entry->layout, codec->state, &why);
    if (status == KVANT_OK) return status;
    free(codec->state);
    codec->state = NULL;
    if (status > 0) {
        status = KVANT_ERROR_PLUGIN_BROKEN;
        (void)kvant_fail(&why, status, "", "open returned a number that is no status");
    }
    return kvant_fail(diag, status, why.key, "layer %u %s: codec %s: %s", entry->setup.layer,
                      side_names[entry->setup.side], entry->row.codec,
                      why.message[0] != '\0' ? why.message : kvant_status_text(status));
}

kvant_status kvant_codec_open(const kvant_plan *plan, uint32_t layer, uint32_t side, kvant_codec **codec,
                              kvant_diag *diag) {
    if (plan == NULL || codec == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_codec_open: plan or codec is NULL");
    if (layer >= plan->geometry.layer_count || side > KVANT_SIDE_VALUE)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_codec_open: there is no layer %u, side %u",
                          layer, side);
    kvant_codec *made = calloc(1, sizeof *made);
    if (made == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    made->plan = kvant_plan_hold(plan);
    made->entry = &plan->entries[2 * (size_t)layer + side];
    made->changes = made->entry->turn != KVANT_TURN_NONE || made->entry->center != NULL;
    made->classes = (made->entry->row.plugin->descriptor->requires_bits & KVANT_REQUIRES_TAGS) != 0;
    const kvant_layout *layout = &made->entry->layout;
    uint64_t largest =
        layout->size_min + layout->size_step * layout->size_steps; /* checked in kvant_layout_check */
    made->extent_max = (size_t)largest;
    kvant_status status = KVANT_OK;
    if (largest > SIZE_MAX / 2 || !place_scratch(made))
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "",
                            "layer %u %s: a block does not fit into this machine's memory", layer,
                            side_names[side]);
    if (status == KVANT_OK) {
        kvant_fp_state saved = kvant_fp_enter();
        status = open_state(made, diag);
        kvant_fp_leave(saved);
    }
    if (status == KVANT_OK)
        *codec = made;
    else
        kvant_codec_close(made);
    return status;
}

void kvant_codec_close(kvant_codec *codec) {
    if (codec == NULL) return;
    if (codec->state != NULL) codec->entry->row.plugin->close(codec->state);
    free(codec->state);
    kvant_plan_free(codec->plan);
    free(codec);
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

const kvant_row *kvant_codec_row(const kvant_codec *codec) {
    return codec != NULL ? &codec->entry->row : NULL;
}

size_t kvant_codec_extent_max(const kvant_codec *codec) {
    return codec != NULL ? codec->extent_max : 0;
}

size_t kvant_codec_scratch_bytes(const kvant_codec *codec) {
    return codec != NULL ? codec->scratch_bytes : 0;
}

size_t kvant_codec_extent_size(const kvant_codec *codec, size_t size) {
    if (codec == NULL || size > codec->extent_max) return 0;
    const kvant_layout *layout = &codec->entry->layout;
    if (size <= layout->size_min) return (size_t)layout->size_min;
    uint64_t steps = (size - layout->size_min + layout->size_step - 1) / layout->size_step;
    return (size_t)(layout->size_min + steps * layout->size_step);
}

const void *kvant_codec_state(const kvant_codec *codec) {
    return codec != NULL ? codec->state : NULL;
}

const kvant_plan_entry *kvant_codec_entry(const kvant_codec *codec) {
    return codec->entry;
}

const kvant_plan *kvant_codec_plan(const kvant_codec *codec) {
    return codec->plan;
}

const float *kvant_codec_center(const kvant_codec *codec) {
    return codec != NULL ? codec->entry->center : NULL;
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

#define REFUSE(status, key, ...) fail_at(codec, diag, (status), (key), __VA_ARGS__)

/* "layer 3 key: ..." */
__attribute__((format(printf, 5, 6))) static kvant_status fail_at(const kvant_codec *codec, kvant_diag *diag,
                                                                  kvant_status status, const char *key,
                                                                  const char *format, ...) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return kvant_fail(diag, status, key, "layer %u %s: %s", codec->entry->setup.layer,
                      side_names[codec->entry->setup.side], message);
}

static bool is_aligned(const void *address, uint32_t alignment) {
    return ((uintptr_t)address & (alignment - 1)) == 0;
}

/* What encode and decode share. */
static kvant_status check_memory(const kvant_codec *codec, const void *extent, const void *scratch,
                                 uint64_t first_position, kvant_diag *diag) {
    const kvant_setup *setup = &codec->entry->setup;
    uint32_t alignment = codec->entry->layout.alignment;
    if (extent == NULL || !is_aligned(extent, alignment))
        return REFUSE(KVANT_ERROR_ARGUMENT, "extent", "the extent is NULL or not aligned to %u bytes",
                      alignment);
    if (codec->scratch_bytes != 0 && (scratch == NULL || !is_aligned(scratch, 64)))
        return REFUSE(KVANT_ERROR_ARGUMENT, "scratch", "scratch is NULL or not aligned to 64 bytes");
    if (first_position > UINT64_MAX - setup->block_tokens)
        return REFUSE(KVANT_ERROR_ARGUMENT, "first_position", "first position %llu + %u tokens overflows",
                      (unsigned long long)first_position, setup->block_tokens);
    return KVANT_OK;
}

static kvant_status check_rows(const kvant_codec *codec, const kvant_view *rows, kvant_diag *diag) {
    const kvant_setup *setup = &codec->entry->setup;
    if (rows == NULL || rows->struct_size < sizeof *rows || rows->data == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "rows",
                      "rows are NULL, hold no data, or their struct_size is not %zu", sizeof *rows);
    if (rows->dtype != setup->dtype)
        return REFUSE(KVANT_ERROR_DTYPE, "rows", "rows of type %u, and the geometry says %u", rows->dtype,
                      setup->dtype);
    if (rows->tokens != setup->block_tokens || rows->heads != setup->kv_heads ||
        rows->head_dim != setup->head_dim)
        return REFUSE(KVANT_ERROR_ARGUMENT, "rows", "rows [%u, %u, %u], and a block is [%u, %u, %u]",
                      rows->tokens, rows->heads, rows->head_dim, setup->block_tokens, setup->kv_heads,
                      setup->head_dim);
    return KVANT_OK;
}

static kvant_status refuse_place(const kvant_codec *codec, const kvant_view *rows, kvant_place place,
                                 uint64_t first_position, kvant_diag *diag) {
    float x = kvant_load_element(kvant_view_at(rows, place.token, place.head) +
                                     (int64_t)place.channel * rows->channel_stride,
                                 rows->dtype);
    uint32_t bits = kvant_float_bits(x);
    const char *what = (bits & 0x007fffffu) != 0 ? "NaN" : (bits >> 31) != 0 ? "-infinity" : "infinity";
    return REFUSE(KVANT_ERROR_NOT_FINITE, "", "token %u (position %llu), head %u, channel %u is %s",
                  place.token, (unsigned long long)(first_position + place.token), place.head, place.channel,
                  what);
}

static void *part(void *scratch, size_t at) {
    return scratch != NULL ? (char *)scratch + at : NULL;
}

static kvant_row_scratch row_scratch(const kvant_codec *codec, void *scratch) {
    return (kvant_row_scratch){.row = part(scratch, codec->row_at),
                               .turns = part(scratch, codec->turns_at),
                               .base = part(scratch, codec->base_at)};
}

/* Their own rows would widen the block's statistics for nothing. */
uint32_t kvant_codec_sinks(const kvant_codec *codec, uint64_t first_position) {
    uint32_t sinks = codec->plan->sinks; /* below block_tokens */
    return first_position < sinks ? sinks - (uint32_t)first_position : 0;
}

static const uint8_t *classify(const kvant_codec *codec, const uint8_t *tags, uint32_t sinks, void *scratch) {
    if (!codec->classes) return NULL;
    const kvant_layout *layout = &codec->entry->layout;
    uint8_t *classes = part(scratch, codec->classes_at);
    for (uint32_t t = 0; t < codec->entry->setup.block_tokens; t++)
        classes[t] = layout->tag_class[tags != NULL ? tags[t > sinks ? t : sinks] : 0];
    return classes;
}

/* The rows as the codec gets them, in scratch. */
static kvant_view change_rows(const kvant_codec *codec, const kvant_view *rows, uint64_t first_position,
                              uint32_t sinks, void *scratch, kvant_encode_report *all) {
    const kvant_setup *setup = &codec->entry->setup;
    kvant_mutable_view to = kvant_dense_mutable_view(part(scratch, codec->rows_at), setup->dtype,
                                                     setup->block_tokens, setup->kv_heads, setup->head_dim);
    kvant_view from = *rows;
    kvant_mutable_view rest = to;
    from.data = kvant_view_at(rows, sinks, 0);
    rest.data = kvant_mutable_view_at(&to, sinks, 0);
    from.tokens = rest.tokens = setup->block_tokens - sinks;
    kvant_rows_to_codec(codec->entry, &from, &rest, first_position + sinks, row_scratch(codec, scratch),
                        &all->replaced, &all->saturated);
    for (uint32_t t = 0; t < sinks; t++)
        memcpy(kvant_mutable_view_at(&to, t, 0), rest.data, (size_t)to.token_stride);
    return kvant_rows_view(to.data, setup->dtype, setup->block_tokens, setup->kv_heads, setup->head_dim);
}

/* In the pinned floating-point environment, on checked arguments. */
static kvant_status encode_rows(const kvant_codec *codec, const kvant_view *rows, uint64_t first_position,
                                const uint8_t *tags, void *extent, void *scratch, kvant_encode_report *all,
                                kvant_diag *diag) {
    uint32_t sinks = kvant_codec_sinks(codec, first_position);
    kvant_view copy;
    kvant_place place;
    bool bad = kvant_find_not_finite(rows, &place);
    if (bad && codec->plan->on_nonfinite == KVANT_ON_NONFINITE_ERROR)
        return refuse_place(codec, rows, place, first_position, diag);
    if (bad || codec->changes || sinks > 0) {
        copy = change_rows(codec, rows, first_position, sinks, scratch, all);
        rows = &copy;
    }
    kvant_encode_args args = {.struct_size = sizeof args,
                              .rows = rows,
                              .classes = classify(codec, tags, sinks, scratch),
                              .first_position = first_position,
                              .extent = extent,
                              .scratch = scratch};
    kvant_status status = codec->entry->row.plugin->encode(codec->state, &args);
    if (status != KVANT_OK)
        return REFUSE(KVANT_ERROR_PLUGIN_BROKEN, "", "codec %s: encode failed on finite rows: %s",
                      codec->entry->row.codec, kvant_status_text(status));
    if (args.size == 0 || args.size > codec->extent_max ||
        kvant_codec_extent_size(codec, (size_t)args.size) != args.size)
        return REFUSE(KVANT_ERROR_PLUGIN_BROKEN, "",
                      "codec %s: encode used %llu bytes, which is no size of its layout",
                      codec->entry->row.codec, (unsigned long long)args.size);
    all->size = args.size;
    all->saturated += args.saturated;
    return KVANT_OK;
}

kvant_status kvant_codec_encode(const kvant_codec *codec, const kvant_view *rows, uint64_t first_position,
                                const uint8_t *tags, void *extent, size_t capacity, void *scratch,
                                kvant_encode_report *report, kvant_diag *diag) {
    if (codec == NULL || report == NULL || report->struct_size < sizeof *report)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_codec_encode: codec or report is NULL, or "
                          "report.struct_size is not set");
    kvant_status status = check_memory(codec, extent, scratch, first_position, diag);
    if (status == KVANT_OK) status = check_rows(codec, rows, diag);
    if (status != KVANT_OK) return status;
    if (capacity < codec->extent_max)
        return REFUSE(KVANT_ERROR_CAPACITY, "capacity", "room for %zu bytes, and an extent takes up to %zu",
                      capacity, codec->extent_max);
    kvant_encode_report all = {.struct_size = report->struct_size};
    kvant_fp_state saved = kvant_fp_enter();
    status = encode_rows(codec, rows, first_position, tags, extent, scratch, &all, diag);
    kvant_fp_leave(saved);
    if (status == KVANT_OK) *report = all;
    return status;
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

static kvant_status check_range(const kvant_codec *codec, const kvant_range *range,
                                const kvant_mutable_view *rows, kvant_diag *diag) {
    const kvant_setup *setup = &codec->entry->setup;
    if (rows == NULL || rows->struct_size < sizeof *rows || rows->data == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "rows",
                      "rows are NULL, hold no data, or their struct_size is not %zu", sizeof *rows);
    if (rows->dtype != KVANT_DTYPE_F32 && rows->dtype != KVANT_DTYPE_F16 && rows->dtype != KVANT_DTYPE_BF16)
        return REFUSE(KVANT_ERROR_DTYPE, "rows", "rows of type %u; decode writes F32, F16 or BF16",
                      rows->dtype);
    if (range != NULL && range->struct_size < sizeof *range)
        return REFUSE(KVANT_ERROR_ARGUMENT, "range", "range.struct_size is %u, not %zu", range->struct_size,
                      sizeof *range);
    uint32_t token = range != NULL ? range->first_token : 0, head = range != NULL ? range->first_head : 0;
    if (rows->head_dim != setup->head_dim || rows->tokens > setup->block_tokens ||
        rows->heads > setup->kv_heads || token > setup->block_tokens - rows->tokens ||
        head > setup->kv_heads - rows->heads)
        return REFUSE(KVANT_ERROR_ARGUMENT, "rows",
                      "rows [%u, %u, %u] from token %u, head %u on are outside of a block "
                      "[%u, %u, %u]",
                      rows->tokens, rows->heads, rows->head_dim, token, head, setup->block_tokens,
                      setup->kv_heads, setup->head_dim);
    return KVANT_OK;
}

static kvant_status decode_rows(const kvant_codec *codec, const kvant_extent *extent,
                                const kvant_range *range, const kvant_mutable_view *rows, void *scratch,
                                kvant_diag *diag) {
    kvant_mutable_view floats = kvant_dense_mutable_view(part(scratch, codec->rows_at), KVANT_DTYPE_F32,
                                                         rows->tokens, rows->heads, rows->head_dim);
    kvant_decode_args args = {.struct_size = sizeof args,
                              .first_token = range != NULL ? range->first_token : 0,
                              .first_head = range != NULL ? range->first_head : 0,
                              .extent = extent,
                              .rows = codec->changes ? &floats : rows,
                              .scratch = scratch};
    kvant_status status = codec->entry->row.plugin->decode(codec->state, &args);
    if (status != KVANT_OK)
        return REFUSE(KVANT_ERROR_PLUGIN_BROKEN, "", "codec %s: decode failed: %s", codec->entry->row.codec,
                      kvant_status_text(status));
    if (codec->changes) {
        kvant_view from =
            kvant_rows_view(floats.data, KVANT_DTYPE_F32, rows->tokens, rows->heads, rows->head_dim);
        kvant_rows_from_codec(codec->entry, &from, rows, extent->first_position + args.first_token,
                              args.first_head, row_scratch(codec, scratch));
    }
    return KVANT_OK;
}

kvant_status kvant_codec_decode(const kvant_codec *codec, const void *extent, size_t size,
                                uint64_t first_position, const kvant_range *range,
                                const kvant_mutable_view *rows, void *scratch, kvant_diag *diag) {
    if (codec == NULL) return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_codec_decode: codec is NULL");
    kvant_status status = check_memory(codec, extent, scratch, first_position, diag);
    if (status == KVANT_OK) status = check_range(codec, range, rows, diag);
    if (status != KVANT_OK) return status;
    if (size == 0 || kvant_codec_extent_size(codec, size) != size)
        return REFUSE(KVANT_ERROR_ARGUMENT, "size", "%zu bytes are no size of this codec's extents", size);
    if (rows->tokens == 0 || rows->heads == 0) return KVANT_OK;
    kvant_extent bytes = {.bytes = extent,
                          .size = size,
                          .first_position = first_position,
                          .live_count = codec->entry->setup.block_tokens};
    kvant_fp_state saved = kvant_fp_enter();
    status = decode_rows(codec, &bytes, range, rows, scratch, diag);
    kvant_fp_leave(saved);
    return status;
}
