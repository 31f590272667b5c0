/* A layer on a device: both codecs, how they attend, and what the host's part of them needs there. See
 * kvant/device.h. */
#include "device/device_internal.h"

#include "pipeline/codec_floor.h"
#include "pipeline/turns.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/rope.h>

#include <stdlib.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

const char *device_side_name(uint32_t side) {
    return side == KVANT_SIDE_KEY ? "key" : "value";
}

/* "layer 3 key: ..." before what a deeper part said. */
static kvant_status name_it(const kvant_device_layer *layer, uint32_t side, kvant_status status,
                            const kvant_diag *why, kvant_diag *diag) {
    return REFUSE(status, why->key, "layer %u %s: %s", layer->sides[side].entry->setup.layer,
                  device_side_name(side), why->message);
}

static kvant_status put(kvant_device *device, const void *bytes, uint64_t size, gpu_address *address,
                        kvant_diag *diag) {
    uint64_t made = 0;
    kvant_status status = kvant_device_alloc(device, size, &made, diag);
    *address = made;
    return status == KVANT_OK ? kvant_device_write(device, made, bytes, size, NULL, diag) : status;
}

/* ---- Sides --------------------------------------------------------------------------------------------- */

static kvant_status put_tables(kvant_device *device, device_side *s, kvant_diag *diag) {
    const kvant_setup *setup = &s->entry->setup;
    kvant_status status = KVANT_OK;
    if (s->entry->center != NULL)
        status = put(device, s->entry->center, (uint64_t)setup->kv_heads * setup->head_dim * sizeof(float),
                     &s->center, diag);
    if (status != KVANT_OK || s->entry->turn == KVANT_TURN_NONE) return status;
    s->pairs = kvant_rope_pairs(setup->rope);
    return put(device, s->entry->turn_table, kvant_turn_table_size(setup->rope) * sizeof(double),
               &s->turn_offsets, diag);
}

static kvant_status open_side(kvant_device_layer *layer, uint32_t side, kvant_diag *diag) {
    device_side *s = &layer->sides[side];
    const gpu_module *module = NULL;
    const kvant_plan *plan = kvant_codec_plan(s->codec);
    const kvant_setup *setup = &s->entry->setup;
    s->changes = s->entry->turn != KVANT_TURN_NONE || s->entry->center != NULL;
    s->classes = (s->entry->row.plugin->descriptor->requires_bits & KVANT_REQUIRES_TAGS) != 0;
    s->passes = s->changes || plan->sinks > 0 || plan->on_nonfinite == KVANT_ON_NONFINITE_SATURATE;
    s->row_elements = (uint64_t)setup->block_tokens * setup->kv_heads * setup->head_dim;
    kvant_status status = device_module_find(layer->device, s->entry->row.plugin, &module, diag);
    if (status == KVANT_OK)
        status = gpu_codec_open(module, setup, &s->entry->layout, kvant_codec_state(s->codec), NULL, &s->gpu,
                                diag);
    if (status != KVANT_OK) return status;
    s->is_open = true;
    for (uint32_t call = KVANT_GPU_ENCODE; call <= KVANT_GPU_DECODE; call++)
        if (!gpu_codec_offers(&s->gpu, call))
            return REFUSE(KVANT_ERROR_UNSUPPORTED, "", "codec %s has no kernel that %s", s->entry->row.codec,
                          call == KVANT_GPU_ENCODE ? "encodes" : "decodes");
    return put_tables(layer->device, s, diag);
}

static void close_side(kvant_device *device, device_side *s) {
    if (s->is_open) gpu_codec_close(&s->gpu);
    kvant_device_free(device, s->center);
    kvant_device_free(device, s->turn_offsets);
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

/* Kernels on codes that take queries as they are and give values as they are. Keys that are stored before
 * RoPE are decoded and turned. */
static kvant_status choose(kvant_device_layer *layer, kvant_diag *diag) {
    device_side *key = &layer->sides[KVANT_SIDE_KEY], *value = &layer->sides[KVANT_SIDE_VALUE];
    layer->attends = KVANT_DEVICE_ATTEND_ROWS;
    if (layer->attention->turns_decoded || gpu_codec_offers(&key->gpu, KVANT_GPU_QUERY) ||
        gpu_codec_offers(&value->gpu, KVANT_GPU_FINISH))
        return KVANT_OK;
    if (key->entry->row.plugin == value->entry->row.plugin) {
        kvant_diag why = {.struct_size = sizeof why};
        kvant_status status = gpu_codec_pair(&key->gpu, &key->entry->setup, &value->entry->setup, &why);
        if (status == KVANT_OK) layer->attends = KVANT_DEVICE_ATTEND_FUSED;
        if (status == KVANT_OK) return KVANT_OK;
        if (status != KVANT_ERROR_UNSUPPORTED) return REFUSE(status, why.key, "%s", why.message);
    }
    if (gpu_codec_offers(&key->gpu, KVANT_GPU_SCORE) && gpu_codec_offers(&value->gpu, KVANT_GPU_MIX))
        layer->attends = KVANT_DEVICE_ATTEND_SPLIT;
    return KVANT_OK;
}

static kvant_status open_core(kvant_device_layer *layer, kvant_diag *diag) {
    const kvant_attention *a = layer->attention;
    const gpu_module *core = &layer->device->core.module;
    if (a->key_dim > CORE_ATTEND_DIM_MOST || a->value_dim > CORE_ATTEND_DIM_MOST)
        return REFUSE(KVANT_ERROR_UNSUPPORTED, "", "head dims of %u and %u; a device attends up to %d",
                      a->key_dim, a->value_dim, CORE_ATTEND_DIM_MOST);
    core_attend_state state = {.dtype = a->dtype,
                               .kv_heads = a->kv_heads,
                               .key_dim = a->key_dim,
                               .value_dim = a->value_dim,
                               .block_tokens = a->block_tokens};
    kvant_status status = gpu_launchable_open(core, "kvant_core_attend", CORE_ATTEND_THREADS,
                                              CORE_ATTEND_ROWS * a->key_dim * (uint32_t)sizeof(float),
                                              &layer->attend_rows, diag);
    if (status == KVANT_OK)
        status = gpu_launchable_open(core, "kvant_core_soften", CORE_SOFTEN_THREADS, 0, &layer->soften, diag);
    if (status == KVANT_OK) status = put(layer->device, &state, sizeof state, &layer->rows_state, diag);
    state.dtype = KVANT_DTYPE_F32;
    return status == KVANT_OK ? put(layer->device, &state, sizeof state, &layer->float_state, diag) : status;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

kvant_status kvant_device_layer_open(kvant_device *device, const kvant_attention *attention,
                                     kvant_device_layer **layer, kvant_diag *diag) {
    if (device == NULL || attention == NULL || layer == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "",
                      "kvant_device_layer_open: device, attention or layer is NULL");
    if (attention->turns_raw)
        return REFUSE(KVANT_ERROR_UNSUPPORTED, "keys",
                      "layer %u: keys before RoPE are not attended on a device; give them after it",
                      attention->layer);
    kvant_device_layer *made = calloc(1, sizeof *made);
    if (made == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    made->device = device;
    made->attention = attention;
    kvant_diag why = {.struct_size = sizeof why};
    kvant_status status = KVANT_OK;
    for (uint32_t side = 0; side < 2; side++) {
        made->sides[side].codec = attention->codecs[side];
        made->sides[side].entry = kvant_codec_entry(attention->codecs[side]);
    }
    for (uint32_t side = 0; side < 2 && status == KVANT_OK; side++) {
        status = open_side(made, side, &why);
        if (status != KVANT_OK) name_it(made, side, status, &why, diag);
    }
    if (status == KVANT_OK) {
        status = choose(made, &why);
        if (status == KVANT_OK) status = open_core(made, &why);
        if (status != KVANT_OK) name_it(made, KVANT_SIDE_KEY, status, &why, diag);
    }
    if (status == KVANT_OK)
        *layer = made;
    else
        kvant_device_layer_close(made);
    return status;
}

void kvant_device_layer_close(kvant_device_layer *layer) {
    if (layer == NULL) return;
    for (uint32_t side = 0; side < 2; side++) close_side(layer->device, &layer->sides[side]);
    kvant_device_free(layer->device, layer->rows_state);
    kvant_device_free(layer->device, layer->float_state);
    free(layer);
}

kvant_status kvant_device_layer_describe(const kvant_device_layer *layer, kvant_device_layer_info *info) {
    if (layer == NULL || info == NULL || info->struct_size < sizeof *info) return KVANT_ERROR_ARGUMENT;
    info->attends = layer->attends;
    for (uint32_t side = 0; side < 2; side++) info->jit[side] = layer->sides[side].gpu.module->is_jit;
    return KVANT_OK;
}

/* ---- Arguments ----------------------------------------------------------------------------------------- */

kvant_status device_check_rows(const device_side *side, const kvant_view *rows, uint32_t tokens,
                               const char *at, kvant_diag *diag) {
    const kvant_setup *setup = &side->entry->setup;
    if (rows == NULL || rows->struct_size < sizeof *rows || rows->data == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "rows",
                      "layer %u %s: %s: rows are NULL, hold no data, or their struct_size is not %zu",
                      setup->layer, device_side_name(setup->side), at, sizeof *rows);
    if (rows->dtype != setup->dtype)
        return REFUSE(KVANT_ERROR_DTYPE, "rows", "layer %u %s: %s: rows of type %u, and the geometry says %u",
                      setup->layer, device_side_name(setup->side), at, rows->dtype, setup->dtype);
    if (rows->tokens != tokens || rows->heads != setup->kv_heads || rows->head_dim != setup->head_dim)
        return REFUSE(KVANT_ERROR_ARGUMENT, "rows",
                      "layer %u %s: %s: rows [%u, %u, %u], and [%u, %u, %u] are needed", setup->layer,
                      device_side_name(setup->side), at, rows->tokens, rows->heads, rows->head_dim, tokens,
                      setup->kv_heads, setup->head_dim);
    return KVANT_OK;
}
