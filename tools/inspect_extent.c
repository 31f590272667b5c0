/* See inspect_extent.h. */
#include "inspect_extent.h"

#include "plugin/fpenv.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/e8m0.h>
#include <kvant/kit/float8.h>
#include <kvant/kit/half.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXTENT_ALIGNMENT = 4096, SCRATCH_ALIGNMENT = 64, FIRST_VALUES = 8 };

/* What was read of one extent. */
typedef struct extent_arrays {
    kvant_array *arrays;
    uint32_t count;
} extent_arrays;

static void free_arrays(extent_arrays *all) {
    for (uint32_t i = 0; i < all->count; i++) free((void *)(uintptr_t)all->arrays[i].data);
    free(all->arrays);
    *all = (extent_arrays){0};
}

static const char *side_text(uint32_t side) {
    return side == KVANT_SIDE_KEY ? "key" : "value";
}

/* ---- Read ---------------------------------------------------------------------------------------------- */

static kvant_status find_record(const saved *s, const inspect_request *r, const kvant_record **record,
                                kvant_diag *diag) {
    const kvant_description *d = &s->description;
    uint32_t blocks = 0;
    while (blocks < kvant_sequence_file_count(s->file) &&
           kvant_sequence_file_record(s->file, blocks)->head.kind == KVANT_RECORD_BLOCK)
        blocks++;
    if (r->layer >= d->layers)
        return kvant_fail(diag, KVANT_ERROR_MISSING, "layer", "there is no layer %u; there are %u", r->layer,
                          d->layers);
    if (!(r->side == KVANT_SIDE_KEY ? d->has_keys : d->has_values))
        return kvant_fail(diag, KVANT_ERROR_MISSING, "side", "the records hold no %ss", side_text(r->side));
    if (r->block >= blocks)
        return kvant_fail(diag, KVANT_ERROR_MISSING, "block",
                          "there is no block %u; there are %u, and raw rows", r->block, blocks);
    *record = kvant_sequence_file_record(s->file, r->block);
    if (kvant_record_extent(*record, r->layer, r->side).size > 0) return KVANT_OK;
    return kvant_fail(diag, KVANT_ERROR_MISSING, "", "layer %u %s has no extent in block %u", r->layer,
                      side_text(r->side), r->block);
}

/* An array that a broken plugin describes wrongly must not become a broken file. */
static kvant_status read_array(const kvant_inspect *inspect, const void *state, const kvant_extent *extent,
                               uint32_t index, void *scratch, kvant_array *array, kvant_diag *diag) {
    uint64_t bytes;
    *array = (kvant_array){0};
    kvant_status status = inspect->describe(state, extent, index, array);
    array->data = NULL;
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "kvant.inspect/1 failed at array %u", index);
    if (array->bytes == 0) return KVANT_OK;
    if (array->name == NULL || array->rank > KVANT_RANK_MAX ||
        !kvant_array_size(array->dtype, array->shape, array->rank, &bytes) || bytes != array->bytes)
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "",
                          "kvant.inspect/1: shape and bytes of array %u disagree", index);
    void *data = malloc((size_t)bytes);
    if (data == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    array->data = data;
    status = inspect->read(state, extent, index, data, scratch);
    return status == KVANT_OK ? status
                              : kvant_fail(diag, status, "", "kvant.inspect/1 failed at array %u", index);
}

static kvant_status read_arrays(const kvant_codec *codec, const kvant_extent *extent, void *scratch,
                                extent_arrays *all, kvant_diag *diag) {
    const kvant_plugin *plugin = kvant_codec_row(codec)->plugin;
    const kvant_inspect *inspect = plugin->extension != NULL ? plugin->extension(KVANT_EXT_INSPECT) : NULL;
    if (inspect == NULL)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "codec %s does not explain its extents (%s)",
                          plugin->descriptor->name, KVANT_EXT_INSPECT);
    all->arrays = calloc((size_t)inspect->array_count + 1, sizeof *all->arrays);
    if (all->arrays == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_fp_state environment = kvant_fp_enter();
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < inspect->array_count && status == KVANT_OK; i++) {
        kvant_array *array = &all->arrays[all->count];
        status = read_array(inspect, kvant_codec_state(codec), extent, i, scratch, array, diag);
        if (array->data != NULL) all->count++;
    }
    kvant_fp_leave(environment);
    return status;
}

/* ---- Describe ------------------------------------------------------------------------------------------ */

static double element_at(const kvant_array *array, uint64_t i) {
    const unsigned char *p = (const unsigned char *)array->data + i * kvant_dtype_bytes(array->dtype);
    union {
        float f32;
        double f64;
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } x = {.u64 = 0};
    memcpy(&x, p, kvant_dtype_bytes(array->dtype));
    switch (array->dtype) {
    case KVANT_DTYPE_F32:
        return (double)x.f32;
    case KVANT_DTYPE_F16:
        return (double)kvant_f16_to_f32(x.u16);
    case KVANT_DTYPE_BF16:
        return (double)kvant_bf16_to_f32(x.u16);
    case KVANT_DTYPE_F64:
        return x.f64;
    case KVANT_DTYPE_F8_E4M3:
        return (double)kvant_e4m3_to_f32(x.u8);
    case KVANT_DTYPE_F8_E5M2:
        return (double)kvant_e5m2_to_f32(x.u8);
    case KVANT_DTYPE_F8_E8M0:
        return (double)kvant_e8m0_to_f32(x.u8);
    case KVANT_DTYPE_I8:
        return x.i8;
    case KVANT_DTYPE_U16:
        return x.u16;
    case KVANT_DTYPE_I16:
        return x.i16;
    case KVANT_DTYPE_U32:
        return x.u32;
    case KVANT_DTYPE_I32:
        return x.i32;
    case KVANT_DTYPE_U64:
        return (double)x.u64;
    case KVANT_DTYPE_I64:
        return (double)x.i64;
    default:
        return x.u8;
    }
}

/* JSON has no NaN: null. */
static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *describe_array(const kvant_array *array) {
    uint64_t count = array->bytes / kvant_dtype_bytes(array->dtype);
    double least = INFINITY, most = -INFINITY;
    json_t *shape = json_array(), *first = json_array();
    for (uint32_t d = 0; d < array->rank; d++)
        json_array_append_new(shape, json_integer((json_int_t)array->shape[d]));
    for (uint64_t i = 0; i < count; i++) {
        double x = element_at(array, i);
        if (x < least) least = x;
        if (x > most) most = x;
        if (i < FIRST_VALUES) json_array_append_new(first, number(x));
    }
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "name", array->name, "dtype",
                     kvant_dtype_name(array->dtype), "shape", shape, "min", number(least), "max",
                     number(most), "first", first);
}

static json_t *describe(const saved *s, const inspect_request *r, const kvant_codec *codec,
                        const kvant_record *record, const extent_arrays *all) {
    const kvant_row *row = kvant_codec_row(codec);
    json_t *parameters = json_object(), *arrays = json_array();
    for (uint32_t i = 0; i < row->plugin->descriptor->param_count; i++) {
        char value[128] = "";
        (void)kvant_row_value(row, i, value, sizeof value);
        json_object_set_new(parameters, row->plugin->descriptor->params[i].name, json_string(value));
    }
    for (uint32_t i = 0; i < all->count; i++) json_array_append_new(arrays, describe_array(&all->arrays[i]));
    return json_pack(
        "{s:s, s:s, s:i, s:s, s:i, s:I, s:i, s:s, s:o, s:I, s:I, s:o}", "format", "kvant-extent/1", "file",
        s->path, "layer", (int)r->layer, "side", side_text(r->side), "block", (int)r->block, "first_position",
        (json_int_t)record->head.first_position, "tokens", (int)record->head.tokens, "codec",
        row->plugin->descriptor->name, "parameters", parameters, "offset",
        (json_int_t)(kvant_record_extent(record, r->layer, r->side).bytes - record->bytes), "bytes",
        (json_int_t)kvant_record_extent(record, r->layer, r->side).size, "arrays", arrays);
}

static kvant_status save(const saved *s, const inspect_request *r, const kvant_codec *codec,
                         const extent_arrays *all, kvant_diag *diag) {
    char layer[16], block[16];
    (void)snprintf(layer, sizeof layer, "%u", r->layer);
    (void)snprintf(block, sizeof block, "%u", r->block);
    const kvant_metadata metadata[] = {{"format", "kvant-extent/1"},
                                       {"codec", kvant_codec_row(codec)->plugin->descriptor->name},
                                       {"file", s->path},
                                       {"layer", layer},
                                       {"side", side_text(r->side)},
                                       {"block", block}};
    return kvant_safetensors_write(r->output, all->arrays, all->count, metadata,
                                   sizeof metadata / sizeof metadata[0], diag);
}

kvant_status inspect_extent(saved *s, const inspect_request *r, json_t **root, kvant_diag *diag) {
    const kvant_record *record = NULL;
    kvant_codec *codec = NULL;
    extent_arrays all = {0};
    void *bytes = NULL, *scratch = NULL;
    kvant_status status = find_record(s, r, &record, diag);
    if (status == KVANT_OK) status = saved_resolve(s, r->artifacts, diag);
    if (status == KVANT_OK) status = kvant_codec_open(s->plan, r->layer, r->side, &codec, diag);
    if (status != KVANT_OK) goto out;
    kvant_record_part part = kvant_record_extent(record, r->layer, r->side);
    if (kvant_codec_extent_size(codec, (size_t)part.size) != part.size) {
        status = kvant_fail(diag, KVANT_ERROR_CORRUPT, "", "%llu bytes are no size of this codec's extents",
                            (unsigned long long)part.size);
        goto out;
    }
    bytes = aligned_room((size_t)part.size, EXTENT_ALIGNMENT);
    scratch = aligned_room(kvant_codec_scratch_bytes(codec), SCRATCH_ALIGNMENT);
    if (bytes == NULL || scratch == NULL) {
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
        goto out;
    }
    memcpy(bytes, part.bytes, (size_t)part.size);
    kvant_extent extent = {.bytes = bytes,
                           .size = part.size,
                           .first_position = record->head.first_position,
                           .live_count = record->head.tokens};
    status = read_arrays(codec, &extent, scratch, &all, diag);
    if (status == KVANT_OK && r->output != NULL) status = save(s, r, codec, &all, diag);
    if (status == KVANT_OK) *root = describe(s, r, codec, record, &all);
out:
    free_arrays(&all);
    free(bytes);
    free(scratch);
    if (codec != NULL) kvant_codec_close(codec);
    return status;
}

void print_extent(const json_t *root) {
    printf("layer %" JSON_INTEGER_FORMAT " %s, block %" JSON_INTEGER_FORMAT ": %" JSON_INTEGER_FORMAT
           " tokens from position %" JSON_INTEGER_FORMAT " on, %" JSON_INTEGER_FORMAT " bytes\ncodec %s",
           json_integer_value(json_object_get(root, "layer")),
           json_string_value(json_object_get(root, "side")),
           json_integer_value(json_object_get(root, "block")),
           json_integer_value(json_object_get(root, "tokens")),
           json_integer_value(json_object_get(root, "first_position")),
           json_integer_value(json_object_get(root, "bytes")),
           json_string_value(json_object_get(root, "codec")));
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(root, "parameters"), key, value)
        printf(" %s=%s", key, json_string_value(value));
    printf("\n\n");
    size_t i, k;
    json_array_foreach(json_object_get(root, "arrays"), i, value) {
        const json_t *item;
        printf("%-16s %-8s [", json_string_value(json_object_get(value, "name")),
               json_string_value(json_object_get(value, "dtype")));
        json_array_foreach(json_object_get(value, "shape"), k, item)
            printf("%s%" JSON_INTEGER_FORMAT, k > 0 ? ", " : "", json_integer_value(item));
        printf("]  %g to %g:", json_number_value(json_object_get(value, "min")),
               json_number_value(json_object_get(value, "max")));
        json_array_foreach(json_object_get(value, "first"), k, item) {
            if (json_is_null(item))
                printf(" nan");
            else
                printf(" %g", json_number_value(item));
        }
        printf(" ...\n");
    }
}
