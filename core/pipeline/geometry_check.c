/* A caller's geometry, checked and copied into a plan. See plan.h. */
#include "pipeline/plan.h"

#include <kvant/kit/diag.h>

#include <math.h>

const kvant_layer_geometry *kvant_layer_at(const kvant_geometry *geometry, uint32_t layer) {
    const char *first = (const char *)geometry->layers;
    return (const kvant_layer_geometry *)(const void *)(first +
                                                        (size_t)layer * geometry->layers->struct_size);
}

static kvant_status check_rope(const kvant_rope *rope, uint32_t layer, uint32_t key_dim, kvant_diag *diag) {
    if (rope->struct_size < sizeof *rope)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "rope",
                          "geometry: layer %u: rope.struct_size is %u, not %zu", layer, rope->struct_size,
                          sizeof *rope);
    if (rope->style == KVANT_ROPE_NONE) return KVANT_OK;
    if (rope->style != KVANT_ROPE_NEOX && rope->style != KVANT_ROPE_GPTJ)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "rope",
                          "geometry: layer %u: RoPE style %u does not exist", layer, rope->style);
    if (rope->rotary_dim == 0 || rope->rotary_dim % 2 != 0 || rope->rotary_dim > key_dim)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "rotary_dim",
                          "geometry: layer %u: rotary_dim %u is not an even number from 2 to key_dim %u",
                          layer, rope->rotary_dim, key_dim);
    if (!isfinite((float)rope->magnitude) || (float)rope->magnitude <= 0)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "rope",
                          "geometry: layer %u: RoPE magnitude %g is no float above 0", layer,
                          rope->magnitude);
    if (rope->inverse_frequency == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "rope",
                          "geometry: layer %u: RoPE without inverse frequencies", layer);
    for (uint32_t i = 0; i < rope->rotary_dim / 2; i++)
        if (!isfinite(rope->inverse_frequency[i]))
            return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "rope",
                              "geometry: layer %u: RoPE inverse frequency %u is not finite", layer, i);
    return KVANT_OK;
}

static kvant_status check_layer(const kvant_layer_geometry *layer, uint32_t index, kvant_diag *diag) {
    const struct {
        const char *name;
        uint32_t value, most;
    } counts[] = {{"kv_heads", layer->kv_heads, KVANT_HEADS_MAX},
                  {"q_heads", layer->q_heads, KVANT_HEADS_MAX},
                  {"total_kv_heads", layer->total_kv_heads, KVANT_HEADS_MAX},
                  {"key_dim", layer->key_dim, KVANT_DIM_MAX},
                  {"value_dim", layer->value_dim, KVANT_DIM_MAX}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].value == 0 || counts[i].value > counts[i].most)
            return kvant_fail(diag, KVANT_ERROR_GEOMETRY, counts[i].name,
                              "geometry: layer %u: %s = %u is not from 1 to %u", index, counts[i].name,
                              counts[i].value, counts[i].most);
    if (layer->q_heads % layer->kv_heads != 0)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "q_heads",
                          "geometry: layer %u: %u query heads are not a multiple of %u kv heads", index,
                          layer->q_heads, layer->kv_heads);
    if (layer->kv_heads > layer->total_kv_heads ||
        layer->first_kv_head > layer->total_kv_heads - layer->kv_heads)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "first_kv_head",
                          "geometry: layer %u: %u kv heads from head %u on do not fit among %u in total",
                          index, layer->kv_heads, layer->first_kv_head, layer->total_kv_heads);
    return layer->rope != NULL ? check_rope(layer->rope, index, layer->key_dim, diag) : KVANT_OK;
}

static kvant_status check_geometry(const kvant_geometry *geometry, kvant_diag *diag) {
    if (geometry->struct_size < sizeof *geometry)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "geometry: struct_size is %u, not %zu",
                          geometry->struct_size, sizeof *geometry);
    if (geometry->layer_count == 0 || geometry->layer_count > KVANT_LAYERS_MAX)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "layers", "geometry: %u layers are not from 1 to %d",
                          geometry->layer_count, KVANT_LAYERS_MAX);
    if (geometry->dtype != KVANT_DTYPE_F32 && geometry->dtype != KVANT_DTYPE_F16 &&
        geometry->dtype != KVANT_DTYPE_BF16)
        return kvant_fail(diag, KVANT_ERROR_DTYPE, "dtype",
                          "geometry: keys and values are f32, f16 or bf16, not type %u", geometry->dtype);
    if (geometry->keys != KVANT_KEYS_AFTER_ROPE && geometry->keys != KVANT_KEYS_BEFORE_ROPE)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "keys", "geometry: keys = %u is no side of RoPE",
                          geometry->keys);
    if (geometry->layers == NULL || geometry->layers->struct_size < sizeof(kvant_layer_geometry) ||
        geometry->layers->struct_size % _Alignof(kvant_layer_geometry) != 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "layers",
                          "geometry: no layers, or their struct_size is not %zu",
                          sizeof(kvant_layer_geometry));
    for (uint32_t i = 0; i < geometry->layer_count; i++) {
        kvant_status status = check_layer(kvant_layer_at(geometry, i), i, diag);
        if (status != KVANT_OK) return status;
    }
    return KVANT_OK;
}

static bool same_rope(const kvant_rope *a, const kvant_rope *b) {
    if (a->style != b->style || a->rotary_dim != b->rotary_dim ||
        memcmp(&a->magnitude, &b->magnitude, sizeof(double)) != 0)
        return false;
    return memcmp(a->inverse_frequency, b->inverse_frequency, a->rotary_dim / 2 * sizeof(double)) == 0;
}

/* A copy, shared with an earlier layer that turns alike; NULL without memory. */
static const kvant_rope *take_rope(kvant_plan *plan, const kvant_layer_geometry *layers, uint32_t before,
                                   const kvant_rope *rope, uint32_t *count) {
    for (uint32_t i = before; i-- > 0;)
        if (layers[i].rope != NULL && same_rope(layers[i].rope, rope)) return layers[i].rope;
    kvant_plan_rope *copy = kvant_arena_alloc(&plan->arena, 1, sizeof *copy);
    double *table = kvant_arena_alloc(&plan->arena, rope->rotary_dim / 2, sizeof *table);
    if (copy == NULL || table == NULL) return NULL;
    memcpy(table, rope->inverse_frequency, rope->rotary_dim / 2 * sizeof *table);
    copy->number = (*count)++;
    copy->rope = (kvant_rope){.struct_size = sizeof copy->rope,
                              .style = rope->style,
                              .rotary_dim = rope->rotary_dim,
                              .magnitude = rope->magnitude,
                              .inverse_frequency = table};
    return &copy->rope;
}

kvant_status kvant_plan_take_geometry(kvant_plan *plan, const kvant_geometry *geometry, kvant_diag *diag) {
    kvant_status status = check_geometry(geometry, diag);
    if (status != KVANT_OK) return status;
    kvant_layer_geometry *layers = kvant_arena_alloc(&plan->arena, geometry->layer_count, sizeof *layers);
    uint32_t ropes = 0;
    bool named = geometry->model != NULL && geometry->model[0] != '\0';
    const char *model = named ? kvant_arena_string(&plan->arena, geometry->model) : NULL;
    if (layers == NULL || (named && model == NULL))
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint32_t i = 0; i < geometry->layer_count; i++) {
        const kvant_layer_geometry *from = kvant_layer_at(geometry, i);
        layers[i] = *from;
        layers[i].struct_size = sizeof layers[i];
        if (from->rope == NULL || from->rope->style == KVANT_ROPE_NONE) {
            layers[i].rope = NULL;
            continue;
        }
        layers[i].rope = take_rope(plan, layers, i, from->rope, &ropes);
        if (layers[i].rope == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    plan->geometry = (kvant_geometry){.struct_size = sizeof plan->geometry,
                                      .layer_count = geometry->layer_count,
                                      .dtype = geometry->dtype,
                                      .keys = geometry->keys,
                                      .layers = layers,
                                      .model = model};
    return KVANT_OK;
}
