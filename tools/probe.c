/* See probe.h. */
#include "probe.h"

#include "pipeline/plan.h"
#include "plugin/fpenv.h"
#include "plugin/schema.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <string.h>

enum { USUAL_BLOCK_TOKENS = 64 };

kvant_value *probe_defaults(const kvant_plugin *plugin) {
    const kvant_descriptor *d = plugin->descriptor;
    kvant_value *values = calloc(d->param_count + (size_t)1, sizeof *values);
    for (uint32_t i = 0; values != NULL && i < d->param_count; i++)
        kvant_schema_default(kvant_schema_param(d, i), &values[i]);
    return values;
}

static kvant_setup setup_for(const kvant_plugin *plugin, const kvant_geometry *geometry, uint32_t side,
                             const kvant_value *values) {
    const kvant_layer_geometry *layer = geometry->layers;
    return (kvant_setup){
        .struct_size = sizeof(kvant_setup),
        .side = side,
        .layer_count = geometry->layer_count,
        .dtype = geometry->dtype,
        .head_dim = side == KVANT_SIDE_KEY ? layer->key_dim : layer->value_dim,
        .kv_heads = layer->kv_heads,
        .first_kv_head = layer->first_kv_head,
        .total_kv_heads = layer->total_kv_heads,
        .q_heads = layer->q_heads,
        .isa = kvant_isa(),
        .value_count = plugin->descriptor->param_count,
        .rope = side == KVANT_SIDE_KEY ? layer->rope : NULL,
        .values = values,
    };
}

static kvant_status plan(const kvant_plugin *plugin, const kvant_setup *setup, kvant_layout *layout,
                         kvant_diag *diag) {
    *layout = (kvant_layout){.struct_size = sizeof *layout};
    kvant_fp_state saved = kvant_fp_enter();
    kvant_status status = plugin->plan(setup, layout, diag);
    kvant_fp_leave(saved);
    return status;
}

static void measure(probe *out, const kvant_setup *setup) {
    const kvant_layout *l = &out->layout;
    double steps = (double)l->size_steps;
    out->elements = (double)setup->block_tokens * setup->kv_heads * setup->head_dim;
    out->payload_min = (double)l->payload_bits / out->elements;
    out->payload_max = out->payload_min + steps * (double)l->payload_bits_step / out->elements;
    out->all_in_min = 8 * (double)l->size_min / out->elements;
    out->all_in_max = out->all_in_min + 8 * steps * (double)l->size_step / out->elements;
}

kvant_status probe_plan(const kvant_plugin *plugin, const kvant_geometry *geometry, uint32_t side,
                        uint32_t block_tokens, const kvant_value *values, probe *out, kvant_diag *diag) {
    const kvant_descriptor *d = plugin->descriptor;
    *out = (probe){0};
    if ((d->sides >> side & 1u) == 0)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "codec %s does not take %ss", d->name,
                          side_name(side));
    if ((d->dtypes >> geometry->dtype & 1u) == 0)
        return kvant_fail(diag, KVANT_ERROR_DTYPE, "", "codec %s does not take rows of %s", d->name,
                          dtype_name(geometry->dtype));
    kvant_setup setup = setup_for(plugin, geometry, side, values);
    setup.block_tokens = block_tokens != 0 ? block_tokens : USUAL_BLOCK_TOKENS;
    kvant_status status = plan(plugin, &setup, &out->layout, diag);
    uint32_t multiple = out->layout.block_multiple;
    if (status == KVANT_ERROR_BLOCK_TOKENS && block_tokens == 0 && multiple > 0 &&
        multiple <= KVANT_BLOCK_TOKENS_MAX) {
        setup.block_tokens = (USUAL_BLOCK_TOKENS + multiple - 1) / multiple * multiple;
        status = plan(plugin, &setup, &out->layout, diag);
    }
    out->block_tokens = setup.block_tokens;
    if (status == KVANT_OK) status = kvant_layout_check(plugin, &setup, &out->layout, diag);
    if (status == KVANT_OK) measure(out, &setup);
    return status;
}

const char *side_name(uint32_t side) {
    return side == KVANT_SIDE_KEY ? "key" : "value";
}

const char *dtype_name(uint32_t dtype) {
    return dtype == KVANT_DTYPE_F32 ? "f32" : dtype == KVANT_DTYPE_F16 ? "f16" : "bf16";
}

const void *probe_extension(const kvant_plugin *plugin, const char *id) {
    return plugin->extension != NULL ? plugin->extension(id) : NULL;
}

json_t *json_of_bytes(const char *bytes) {
    json_t *string = json_string(bytes);
    if (string != NULL) return string;
    char *copy = strdup(bytes);
    for (char *at = copy; at != NULL && *at != '\0'; at++)
        if ((unsigned char)*at >= 0x80) *at = '?';
    string = copy != NULL ? json_string(copy) : NULL;
    free(copy);
    return string;
}
