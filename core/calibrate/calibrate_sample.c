/* See calibrate_sample.h. */
#include "calibrate/calibrate_sample.h"

#include "pipeline/codec_rows.h"
#include "pipeline/turns.h"

#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvant_status no_memory(const calibrate_text *text, kvant_diag *diag) {
    return kvant_file_fail(diag, KVANT_ERROR_MEMORY, text->info->file, "out of memory");
}

/* ---- Keys ---------------------------------------------------------------------------------------------- */

/* Room that encode's own row changes need. */
static kvant_status take_scratch(const calibrate_text *text, const kvant_plan_entry *entry,
                                 kvant_row_scratch *scratch, kvant_diag *diag) {
    uint32_t rotary = entry->turn != KVANT_TURN_NONE ? entry->setup.rope->rotary_dim : 0;
    scratch->row = calloc((size_t)entry->setup.head_dim + 1, sizeof *scratch->row);
    scratch->turns = calloc((size_t)rotary + 1, sizeof *scratch->turns);
    scratch->base = calloc((size_t)rotary + 1, sizeof *scratch->base);
    return scratch->row != NULL && scratch->turns != NULL && scratch->base != NULL ? KVANT_OK
                                                                                   : no_memory(text, diag);
}

static void drop_scratch(kvant_row_scratch *scratch) {
    free(scratch->row);
    free(scratch->turns);
    free(scratch->base);
}

/* The keys of a layer that another codec codes: after RoPE, as queries are. */
static kvant_status context_entry(calibrate_sample *s, const kvant_plan *plan, const calibrate_text *text,
                                  uint32_t layer, kvant_plan_entry *entry, kvant_diag *diag) {
    *entry = (kvant_plan_entry){.setup = plan->entries[2 * (size_t)layer + KVANT_SIDE_KEY].setup};
    const kvant_rope *rope = entry->setup.rope;
    if (plan->geometry.keys != KVANT_KEYS_BEFORE_ROPE || rope == NULL) return KVANT_OK;
    if (s->rope != rope) {
        free(s->table);
        s->rope = rope;
        s->table = calloc(kvant_turn_table_size(rope) + 1, sizeof *s->table);
        if (s->table == NULL) return no_memory(text, diag);
        kvant_turn_table_fill(rope, s->table);
    }
    entry->turn = KVANT_TURN_APPLY;
    entry->turn_table = s->table;
    return KVANT_OK;
}

/* Replaces a view of the dump's keys by one of changed rows, where anything changes. */
static kvant_status change_keys(calibrate_sample *s, const calibrate_text *text,
                                const kvant_plan_entry *entry, kvant_view *keys, kvant_diag *diag) {
    if (entry->turn == KVANT_TURN_NONE && entry->center == NULL) return KVANT_OK;
    size_t size = (size_t)keys->tokens * keys->heads * keys->head_dim * kvant_element_bytes(keys->dtype);
    if (size > s->keys_size) {
        free(s->keys);
        s->keys = malloc(size);
        s->keys_size = s->keys != NULL ? size : 0;
        if (s->keys == NULL) return no_memory(text, diag);
    }
    kvant_mutable_view to =
        kvant_dense_mutable_view(s->keys, keys->dtype, keys->tokens, keys->heads, keys->head_dim);
    kvant_row_scratch scratch = {0};
    kvant_status status = take_scratch(text, entry, &scratch, diag);
    uint64_t saturated = 0;
    if (status == KVANT_OK) {
        kvant_rows_to_codec(entry, keys, &to, 0, scratch, NULL, &saturated);
        *keys = (kvant_view){.struct_size = sizeof *keys,
                             .dtype = to.dtype,
                             .data = to.data,
                             .tokens = to.tokens,
                             .heads = to.heads,
                             .head_dim = to.head_dim,
                             .token_stride = to.token_stride,
                             .head_stride = to.head_stride,
                             .channel_stride = to.channel_stride};
    }
    drop_scratch(&scratch);
    return status;
}

/* ---- Importance ---------------------------------------------------------------------------------------- */

static bool is_rows(const char *name) {
    return strcmp(name, "key") == 0 || strcmp(name, "value") == 0 || strcmp(name, "query") == 0;
}

/* The arrays that plugin.h names have the shapes that it says. */
static kvant_status check_importance(const calibrate_text *text, const kvant_layer_geometry *layer,
                                     const kvant_array *array, const char *full, kvant_diag *diag) {
    const struct {
        const char *name;
        uint64_t heads, dim;
    } known[] = {{"key_squared_gradient", layer->kv_heads, layer->key_dim},
                 {"value_squared_gradient", layer->kv_heads, layer->value_dim},
                 {"output_projection", layer->q_heads, layer->value_dim}};
    for (int i = 0; i < 3; i++) {
        if (strcmp(array->name, known[i].name) != 0) continue;
        bool per_token = i < 2;
        if (array->rank != 3 || array->shape[1] != known[i].heads || array->shape[2] != known[i].dim ||
            (per_token && array->shape[0] != text->info->tokens))
            return kvant_file_fail(diag, KVANT_ERROR_GEOMETRY, text->info->file,
                                   "tensor \"%s\" is not [%s, %llu, %llu]", full,
                                   per_token ? "tokens" : "model_dim", (unsigned long long)known[i].heads,
                                   (unsigned long long)known[i].dim);
        if (array->dtype != KVANT_DTYPE_F32 && array->dtype != KVANT_DTYPE_F16 &&
            array->dtype != KVANT_DTYPE_BF16)
            return kvant_file_fail(diag, KVANT_ERROR_DTYPE, text->info->file,
                                   "tensor \"%s\" is %s, not F32, F16 or BF16", full,
                                   kvant_dtype_name(array->dtype));
    }
    return KVANT_OK;
}

/* Every further tensor of the layer, by its name without prefix. */
static kvant_status take_importance(calibrate_sample *s, const calibrate_text *text,
                                    const kvant_layer_geometry *geometry, uint32_t layer, kvant_diag *diag) {
    const kvant_safetensors *file = kvant_dump_file(text->dump);
    char prefix[32];
    int size = snprintf(prefix, sizeof prefix, "layers.%u.", layer);
    kvant_array *arrays =
        realloc(s->importance, (kvant_safetensors_count(file) + (size_t)1) * sizeof *arrays);
    if (arrays == NULL) return no_memory(text, diag);
    s->importance = arrays;
    uint32_t count = 0;
    for (uint32_t i = 0; i < kvant_safetensors_count(file); i++) {
        const kvant_array *array = kvant_safetensors_at(file, i);
        if (strncmp(array->name, prefix, (size_t)size) != 0 || is_rows(array->name + size)) continue;
        arrays[count] = *array;
        arrays[count].name = array->name + size;
        kvant_status status = check_importance(text, geometry, &arrays[count], array->name, diag);
        if (status != KVANT_OK) return status;
        count++;
    }
    s->sample.importance = count > 0 ? arrays : NULL;
    s->sample.importance_count = count;
    return KVANT_OK;
}

/* ---- The sample ---------------------------------------------------------------------------------------- */

kvant_status calibrate_sample_fill(calibrate_sample *s, const kvant_plan *plan, const calibrate_text *text,
                                   uint32_t text_index, uint32_t layer, const bool codes[2],
                                   kvant_diag *diag) {
    const kvant_dump_info *info = text->info;
    const kvant_layer_geometry *geometry = &plan->geometry.layers[layer];
    const kvant_view *views[3] = {NULL};
    for (uint32_t what = 0; what < 3; what++)
        if (kvant_dump_view(text->dump, layer, what, &s->views[what])) views[what] = &s->views[what];
    s->sample = (kvant_sample){.struct_size = sizeof s->sample,
                               .layer = layer,
                               .keys = views[KVANT_DUMP_KEY],
                               .values = views[KVANT_DUMP_VALUE],
                               .queries = views[KVANT_DUMP_QUERY],
                               .tags = info->tags,
                               .sinks = plan->sinks,
                               .query_position = info->query_start,
                               .logit_scale = info->scale,
                               .text = text_index,
                               .window = geometry->window};
    kvant_status status = take_importance(s, text, geometry, layer, diag);
    if (status != KVANT_OK || views[KVANT_DUMP_KEY] == NULL) return status;
    kvant_view *keys = &s->views[KVANT_DUMP_KEY];
    if (codes[KVANT_SIDE_KEY])
        return change_keys(s, text, &plan->entries[2 * (size_t)layer + KVANT_SIDE_KEY], keys, diag);
    kvant_plan_entry context;
    status = context_entry(s, plan, text, layer, &context, diag);
    return status == KVANT_OK ? change_keys(s, text, &context, keys, diag) : status;
}

void calibrate_sample_free(calibrate_sample *s) {
    free(s->importance);
    free(s->keys);
    free(s->table);
}

/* ---- Means --------------------------------------------------------------------------------------------- */

static void turn_row(const kvant_plan_entry *entry, const float *turns, float *row) {
    if (entry->turn == KVANT_TURN_APPLY) kvant_rope_apply(entry->setup.rope, turns, row);
    if (entry->turn == KVANT_TURN_UNDO) kvant_rope_undo(entry->setup.rope, turns, row);
}

/* As encode subtracts a mean from floats that were turned and not yet rounded, so are they summed. */
static void add_keys(const kvant_plan_entry *entry, const kvant_view *keys, uint32_t sinks,
                     kvant_row_scratch scratch, double *sums) {
    uint32_t dim = keys->head_dim;
    kvant_turn_walk walk = kvant_turn_walk_begin(entry->setup.rope, entry->turn_table, scratch.base);
    for (uint32_t t = sinks; t < keys->tokens; t++) {
        if (entry->turn != KVANT_TURN_NONE) kvant_turn_walk_to(&walk, t, scratch.turns);
        for (uint32_t h = 0; h < keys->heads; h++) {
            kvant_load_row(keys, t, h, scratch.row);
            turn_row(entry, scratch.turns, scratch.row);
            for (uint32_t c = 0; c < dim; c++) sums[(size_t)h * dim + c] += (double)scratch.row[c];
        }
    }
}

kvant_status calibrate_center(const calibrate_texts *texts, const kvant_plan_entry *entry, uint32_t sinks,
                              float *center, kvant_diag *diag) {
    size_t count = (size_t)entry->setup.kv_heads * entry->setup.head_dim;
    double tokens = 0, *sums = calloc(count, sizeof *sums);
    kvant_row_scratch scratch = {0};
    kvant_status status = take_scratch(&texts->items[0], entry, &scratch, diag);
    if (sums == NULL) status = no_memory(&texts->items[0], diag);
    for (uint32_t i = 0; i < texts->count && status == KVANT_OK; i++) {
        kvant_view keys;
        if (!kvant_dump_view(texts->items[i].dump, entry->setup.layer, KVANT_DUMP_KEY, &keys)) continue;
        add_keys(entry, &keys, sinks, scratch, sums);
        tokens += keys.tokens - sinks;
    }
    for (size_t i = 0; i < count && status == KVANT_OK; i++) center[i] = (float)(sums[i] / tokens);
    drop_scratch(&scratch);
    free(sums);
    return status;
}
