/* kvant_pipeline_resolve: pipeline + geometry -> one planned row per layer and side. See plan.h.
 *
 * For each row: the rule that says its codec (the last [layers] section that names the layer), what the
 * descriptor promises (side, dtype, head_dim), the plugin's plan(), the layout it answers, and what the
 * host adds (turning, centring). Refusals that on_unsupported may cure put the replacement there;
 * block_tokens that do not fit are collected over all rows, so that the error can name a number that suits
 * every one. */
#include "pipeline/plan.h"

#include "base/text.h"
#include "data/file.h"
#include "data/safetensors.h"
#include "pipeline/turns.h"
#include "plugin/fpenv.h"
#include "plugin/isa_level.h"
#include "plugin/schema.h"

#include <kvant/kit/diag.h>

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct resolver {
    const kvant_pipeline *pipeline;
    kvant_plan *plan;
    kvant_value **values; /* per spec: the plan's copy, NULL = not yet made */
    bool rope_given;      /* some layer of the caller's geometry says how keys turn, or that they do not */
    uint64_t multiple;    /* least common multiple of all rows' block_multiple; 0 = beyond the limit */
    char misfit[512];     /* the first row that refuses block_tokens; "" = none */
} resolver;

static const char *const side_names[2] = {"key", "value"};

/* ---- One row ------------------------------------------------------------------------------------------- */

static kvant_status check_descriptor(const kvant_descriptor *descriptor, const kvant_setup *setup,
                                     kvant_diag *why) {
    if ((descriptor->sides >> setup->side & 1) == 0)
        return kvant_fail(why, KVANT_ERROR_UNSUPPORTED, "", "it stores %ss only",
                          side_names[1 - setup->side]);
    if ((descriptor->dtypes >> setup->dtype & 1) == 0)
        return kvant_fail(why, KVANT_ERROR_DTYPE, "dtype", "it does not take %s, but%s%s%s",
                          kvant_dtype_name(setup->dtype), descriptor->dtypes & KVANT_DTYPES_F32 ? " f32" : "",
                          descriptor->dtypes & KVANT_DTYPES_F16 ? " f16" : "",
                          descriptor->dtypes & KVANT_DTYPES_BF16 ? " bf16" : "");
    if (setup->head_dim < descriptor->head_dim_min || setup->head_dim > descriptor->head_dim_max ||
        setup->head_dim % descriptor->head_dim_multiple != 0)
        return kvant_fail(why, KVANT_ERROR_GEOMETRY, "head_dim",
                          "it does not take head_dim %u: it takes multiples of %u from %u to %u",
                          setup->head_dim, descriptor->head_dim_multiple, descriptor->head_dim_min,
                          descriptor->head_dim_max);
    return KVANT_OK;
}

/* The plan's own copy of a spec's values, made once; NULL without memory. */
static kvant_value *take_values(resolver *r, uint32_t index) {
    const kvant_codec_spec *spec = &r->pipeline->specs[index];
    if (r->values[index] != NULL) return r->values[index];
    uint32_t count = spec->plugin->descriptor->param_count;
    kvant_value *values = kvant_arena_alloc(&r->plan->arena, count, sizeof *values);
    for (uint32_t i = 0; values != NULL && i < count; i++) {
        values[i] = spec->values[i];
        if (values[i].rows == NULL) continue;
        kvant_table_row *rows = kvant_arena_alloc(&r->plan->arena, values[i].row_count, sizeof *rows);
        if (rows == NULL) return NULL;
        for (uint32_t k = 0; k < values[i].row_count; k++) {
            rows[k] = values[i].rows[k];
            rows[k].key = kvant_arena_string(&r->plan->arena, rows[k].key);
            if (rows[k].key == NULL) return NULL;
        }
        values[i].rows = rows;
    }
    return r->values[index] = values;
}

static kvant_status fill_setup(resolver *r, uint32_t spec, uint32_t layer, uint32_t side, kvant_setup *setup,
                               kvant_diag *why) {
    const kvant_plan *plan = r->plan;
    const kvant_layer_geometry *g = &plan->geometry.layers[layer];
    *setup = (kvant_setup){.struct_size = sizeof *setup,
                           .side = side,
                           .layer = layer,
                           .layer_count = plan->geometry.layer_count,
                           .dtype = plan->geometry.dtype,
                           .block_tokens = plan->block_tokens,
                           .head_dim = side == KVANT_SIDE_KEY ? g->key_dim : g->value_dim,
                           .kv_heads = g->kv_heads,
                           .first_kv_head = g->first_kv_head,
                           .total_kv_heads = g->total_kv_heads,
                           .q_heads = g->q_heads,
                           .isa = kvant_isa(),
                           .value_count = r->pipeline->specs[spec].plugin->descriptor->param_count,
                           .rope = side == KVANT_SIDE_KEY ? g->rope : NULL,
                           .values = take_values(r, spec)};
    if (setup->values == NULL) return kvant_fail(why, KVANT_ERROR_MEMORY, "", "out of memory");
    if (plan->artifact != NULL)
        setup->tensors = kvant_artifact_tensors(plan->artifact, layer, side, &setup->tensor_count);
    return KVANT_OK;
}

/* What the host must add: turning keys to the codec's side of RoPE, subtracting their mean. */
static kvant_status add_host_part(resolver *r, kvant_plan_entry *entry, kvant_diag *why) {
    const kvant_plan *plan = r->plan;
    if (entry->setup.side != KVANT_SIDE_KEY) return KVANT_OK;
    bool given_before = plan->geometry.keys == KVANT_KEYS_BEFORE_ROPE;
    bool stored_before = (entry->layout.flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE) != 0;
    if (given_before != stored_before && entry->setup.rope == NULL && !r->rope_given)
        return kvant_fail(
            why, KVANT_ERROR_GEOMETRY, "rope",
            "it stores keys %s RoPE and gets them %s it: turning them needs the model's RoPE, and the "
            "geometry gives none",
            stored_before ? "before" : "after", given_before ? "before" : "after");
    if (given_before != stored_before && entry->setup.rope != NULL)
        entry->turn = stored_before ? KVANT_TURN_UNDO : KVANT_TURN_APPLY;
    if (plan->key_center == 0) return KVANT_OK;
    if (stored_before)
        return kvant_fail(
            why, KVANT_ERROR_CONFLICT, "key_center",
            "it stores keys before RoPE, where key_center = artifact does not apply (the means are of "
            "keys after RoPE)");
    entry->centers = (entry->layout.flags & KVANT_LAYOUT_LOSSLESS) == 0;
    return entry->centers && !plan->learns ? kvant_plan_find_center(r->plan, entry, why) : KVANT_OK;
}

/* plan() said that sizes depend on an artifact: while one is learned, what it filled nevertheless is all
 * that is needed. */
static kvant_status take_missing(const kvant_plan_entry *entry, kvant_diag *why) {
    const kvant_layout *layout = &entry->layout;
    if (layout->struct_size != sizeof *layout || layout->block_multiple == 0 ||
        (entry->setup.side == KVANT_SIDE_VALUE && (layout->flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE) != 0))
        return kvant_fail(why, KVANT_ERROR_PLUGIN_BROKEN, "",
                          "plan answered that it needs an artifact, and left flags or block_multiple wrong");
    return entry->setup.block_tokens % layout->block_multiple == 0 ? KVANT_OK : KVANT_ERROR_BLOCK_TOKENS;
}

/* One codec for one row: everything but the error's place. */
static kvant_status plan_spec(resolver *r, uint32_t spec, uint32_t layer, uint32_t side,
                              kvant_plan_entry *entry, kvant_diag *why) {
    const kvant_plugin *plugin = r->pipeline->specs[spec].plugin;
    *entry = (kvant_plan_entry){.layout.struct_size = sizeof entry->layout};
    kvant_status status = fill_setup(r, spec, layer, side, &entry->setup, why);
    if (status == KVANT_OK) status = check_descriptor(plugin->descriptor, &entry->setup, why);
    if (status == KVANT_OK) status = kvant_plan_check_learned(r->plan, plugin, &entry->setup, why);
    if (status != KVANT_OK) return status;
    status = plugin->plan(&entry->setup, &entry->layout, why);
    if (status > 0)
        return kvant_fail(why, KVANT_ERROR_PLUGIN_BROKEN, "", "plan returned %d, which is no status",
                          (int)status);
    uint32_t multiple = entry->layout.block_multiple;
    if (status == KVANT_ERROR_BLOCK_TOKENS && (multiple == 0 || entry->setup.block_tokens % multiple == 0))
        return kvant_fail(
            why, KVANT_ERROR_PLUGIN_BROKEN, "block_tokens",
            "plan refused block_tokens %u, and says in block_multiple that it takes multiples of %u",
            entry->setup.block_tokens, multiple);
    entry->lacks_artifact = status == KVANT_ERROR_MISSING && r->plan->learns;
    if (entry->lacks_artifact)
        status = take_missing(entry, why);
    else if (status == KVANT_OK)
        status = kvant_layout_check(plugin, &entry->setup, &entry->layout, why);
    return status == KVANT_OK ? add_host_part(r, entry, why) : status;
}

/* ---- Errors and replacements --------------------------------------------------------------------------- */

/* "layer 3 value: codec v3 (plugin turboquant): " */
static void name_row(const kvant_codec_spec *spec, uint32_t layer, uint32_t side, char *text,
                     size_t capacity) {
    const char *plugin = spec->plugin->descriptor->name;
    bool alone = strcmp(plugin, spec->name) == 0;
    (void)snprintf(text, capacity, "layer %u %s: codec %s%s%s%s", layer, side_names[side], spec->name,
                   alone ? "" : " (plugin ", alone ? "" : plugin, alone ? "" : ")");
}

/* The line to look at: that of the parameter at fault, else of the [layers] entry that chose the codec. */
static int32_t line_at_fault(const kvant_pipeline *pipeline, const kvant_codec_spec *spec, const char *key,
                             int32_t layers_line) {
    const kvant_descriptor *descriptor = spec->plugin->descriptor;
    if (strcmp(key, "key_center") == 0 && pipeline->key_center_line != 0) return pipeline->key_center_line;
    for (uint32_t i = 0; i < descriptor->param_count; i++)
        if (strcmp(kvant_schema_param(descriptor, i)->name, key) == 0 && spec->lines[i] != 0)
            return spec->lines[i];
    return layers_line;
}

static bool curable(kvant_status status) {
    return status == KVANT_ERROR_UNSUPPORTED || status == KVANT_ERROR_GEOMETRY || status == KVANT_ERROR_DTYPE;
}

static void fold_multiple(resolver *r, uint32_t multiple) {
    uint64_t a = r->multiple, b = multiple;
    if (a == 0) return;
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    uint64_t common = r->multiple / a * multiple; /* both are at most 2^32 */
    r->multiple = common <= KVANT_BLOCK_TOKENS_MAX ? common : 0;
}

/* Plans a row with the codec that the pipeline says, or with its replacement. */
static kvant_status resolve_row(resolver *r, const kvant_layer_rule *rule, uint32_t layer, uint32_t side,
                                kvant_diag *diag) {
    const kvant_pipeline *pipeline = r->pipeline;
    kvant_plan_entry *entry = &r->plan->entries[2 * (size_t)layer + side];
    uint32_t index = (uint32_t)rule->spec[side];
    const char *reason = "";
    kvant_diag why = {.struct_size = sizeof why};
    kvant_status status = plan_spec(r, index, layer, side, entry, &why);
    if (curable(status) && pipeline->replacement != KVANT_SPEC_NONE &&
        (uint32_t)pipeline->replacement != index) {
        char asked[256];
        name_row(&pipeline->specs[index], layer, side, asked, sizeof asked);
        kvant_text text = {0};
        kvant_text_printf(&text, "%s: %s", asked,
                          why.message[0] != '\0' ? why.message : kvant_status_text(status));
        reason = text.failed ? NULL : kvant_arena_string(&r->plan->arena, text.data);
        kvant_text_free(&text);
        if (reason == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
        why = (kvant_diag){.struct_size = sizeof why};
        index = (uint32_t)pipeline->replacement;
        status = plan_spec(r, index, layer, side, entry, &why);
    }
    const kvant_codec_spec *spec = &pipeline->specs[index];
    char name[256];
    name_row(spec, layer, side, name, sizeof name);
    if (status == KVANT_OK || status == KVANT_ERROR_BLOCK_TOKENS)
        fold_multiple(r, entry->layout.block_multiple);
    if (status == KVANT_ERROR_BLOCK_TOKENS) {
        if (r->misfit[0] == '\0')
            (void)snprintf(r->misfit, sizeof r->misfit, "%s takes multiples of %u", name,
                           entry->layout.block_multiple);
        return KVANT_OK;
    }
    if (status != KVANT_OK)
        return kvant_pipeline_fail(
            pipeline, diag, status, line_at_fault(pipeline, spec, why.key, rule->spec_line[side]), why.key,
            "%s: %s%s%s", name, why.message[0] != '\0' ? why.message : kvant_status_text(status),
            reason[0] != '\0' ? "; it was to replace " : "", reason);
    entry->row = (kvant_row){.struct_size = sizeof entry->row,
                             .replaced = reason[0] != '\0',
                             .codec = kvant_arena_string(&r->plan->arena, spec->name),
                             .reason = reason,
                             .plugin = spec->plugin,
                             .setup = &entry->setup,
                             .layout = &entry->layout};
    return entry->row.codec != NULL ? KVANT_OK : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

static kvant_status refuse_block_tokens(const resolver *r, kvant_diag *diag) {
    const kvant_pipeline *pipeline = r->pipeline;
    uint64_t works = r->multiple;
    while (works != 0 && works <= pipeline->sinks) works += r->multiple;
    char advice[128];
    (void)snprintf(advice, sizeof advice, "block_tokens = %llu is the least that suits every row",
                   (unsigned long long)works);
    return kvant_pipeline_fail(pipeline, diag, KVANT_ERROR_BLOCK_TOKENS, pipeline->block_tokens_line,
                               "block_tokens", "block_tokens = %u: %s; %s", pipeline->block_tokens, r->misfit,
                               works != 0 ? advice : "no number up to 65536 suits every row");
}

/* ---- All rows ------------------------------------------------------------------------------------------ */

/* For each layer and side the last rule that names it; NULL = none. Every range is checked, also of rules
 * that later ones override. */
static kvant_status choose_rules(const kvant_pipeline *pipeline, uint32_t layers,
                                 const kvant_layer_rule **chosen, kvant_diag *diag) {
    for (uint32_t i = 0; i < pipeline->rule_count; i++) {
        const kvant_layer_rule *rule = &pipeline->rules[i];
        for (uint32_t k = 0; k < (rule->range_count != 0 ? rule->range_count : 1); k++) {
            uint32_t from = 0, to = layers - 1;
            kvant_status status =
                rule->range_count == 0
                    ? KVANT_OK
                    : kvant_layer_range_resolve(pipeline, rule, k, layers, &from, &to, diag);
            if (status != KVANT_OK) return status;
            for (uint32_t layer = from; layer <= to; layer++)
                for (uint32_t side = 0; side < 2; side++)
                    if (rule->spec[side] != KVANT_SPEC_NONE) chosen[2 * (size_t)layer + side] = rule;
        }
    }
    return KVANT_OK;
}

static kvant_status resolve_rows(resolver *r, kvant_diag *diag) {
    uint32_t layers = r->plan->geometry.layer_count;
    const kvant_layer_rule **chosen = calloc(2 * (size_t)layers, sizeof *chosen);
    if (chosen == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_status status = choose_rules(r->pipeline, layers, chosen, diag);
    for (size_t i = 0; status == KVANT_OK && i < 2 * (size_t)layers; i++) {
        if (chosen[i] == NULL)
            status = kvant_pipeline_fail(
                r->pipeline, diag, KVANT_ERROR_CONFLICT, 0, side_names[i % 2],
                "layer %zu has no %s codec; a section [layers] with %s = CODEC serves all layers", i / 2,
                side_names[i % 2], side_names[i % 2]);
        else
            status = resolve_row(r, chosen[i], (uint32_t)(i / 2), (uint32_t)(i % 2), diag);
    }
    free(chosen);
    return status == KVANT_OK && r->misfit[0] != '\0' ? refuse_block_tokens(r, diag) : status;
}

/* Whoever encodes, decodes or attends turns keys that are before RoPE on either side. */
static bool keys_turn(const kvant_plan *plan, const kvant_plan_entry *entry) {
    return entry->setup.rope != NULL && (plan->geometry.keys == KVANT_KEYS_BEFORE_ROPE ||
                                         (entry->layout.flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE) != 0);
}

/* Layers that turn alike share their RoPE (see plan.h), and a table. */
static kvant_status add_turn_tables(kvant_plan *plan, kvant_diag *diag) {
    const kvant_plan_entry *last = NULL;
    for (size_t i = 0; i < plan->geometry.layer_count; i++) {
        kvant_plan_entry *entry = &plan->entries[2 * i + KVANT_SIDE_KEY];
        if (!keys_turn(plan, entry)) continue;
        for (size_t k = i; k > 0 && (last == NULL || last->setup.rope != entry->setup.rope); k--)
            last = &plan->entries[2 * (k - 1) + KVANT_SIDE_KEY];
        if (last != NULL && last->setup.rope == entry->setup.rope && last->turn_table != NULL) {
            entry->turn_table = last->turn_table;
            continue;
        }
        double *table =
            kvant_arena_alloc(&plan->arena, kvant_turn_table_size(entry->setup.rope), sizeof *table);
        if (table == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
        kvant_turn_table_fill(entry->setup.rope, table);
        entry->turn_table = table;
        last = entry;
    }
    return KVANT_OK;
}

/* An artifact that is not there yet is told from one that is no good. */
static kvant_status open_artifact(const char *file, kvant_artifact **artifact, kvant_diag *diag) {
    if (access(file, F_OK) != 0 && errno == ENOENT)
        return kvant_file_fail(
            diag, KVANT_ERROR_IO, file,
            "there is no such artifact; `kvant calibrate PIPELINE DUMP... -o FILE` learns one");
    return kvant_artifact_open(file, artifact, diag);
}

static kvant_status fill_plan(kvant_plan *plan, const kvant_pipeline *pipeline,
                              const kvant_geometry *geometry, kvant_diag *diag) {
    resolver r = {.pipeline = pipeline, .plan = plan, .multiple = 1};
    plan->block_tokens = pipeline->block_tokens;
    plan->sinks = pipeline->sinks;
    plan->recent = pipeline->recent;
    plan->key_center = pipeline->key_center;
    plan->on_nonfinite = pipeline->on_nonfinite;
    kvant_status status = kvant_plan_take_geometry(plan, geometry, diag);
    if (status != KVANT_OK) return status;
    for (uint32_t i = 0; i < geometry->layer_count; i++)
        if (kvant_layer_at(geometry, i)->rope != NULL) r.rope_given = true;
    plan->name = kvant_arena_string(&plan->arena, pipeline->name);
    plan->entries = kvant_arena_alloc(&plan->arena, 2 * (size_t)geometry->layer_count, sizeof *plan->entries);
    r.values = calloc((size_t)pipeline->spec_count + 1, sizeof *r.values);
    if (plan->name == NULL || plan->entries == NULL || r.values == NULL)
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (status == KVANT_OK && plan->artifact == NULL && pipeline->artifact != NULL && !plan->learns)
        status = open_artifact(pipeline->artifact, &plan->artifact, diag);
    if (status == KVANT_OK && plan->artifact != NULL)
        status = kvant_artifact_check(plan->artifact, &plan->geometry, diag);
    if (status == KVANT_OK) status = resolve_rows(&r, diag);
    if (status == KVANT_OK) status = add_turn_tables(plan, diag);
    if (status == KVANT_OK && !plan->learns) status = kvant_plan_hash(plan, diag);
    free(r.values);
    return status;
}

/* Takes the artifact over. */
static kvant_status resolve(const kvant_pipeline *pipeline, const kvant_geometry *geometry,
                            kvant_artifact *artifact, bool learns, kvant_plan **plan, kvant_diag *diag) {
    kvant_status status = kvant_isa_check(diag);
    kvant_plan *made = status == KVANT_OK ? calloc(1, sizeof *made) : NULL;
    if (made == NULL) {
        kvant_artifact_close(artifact);
        return status == KVANT_OK ? kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory") : status;
    }
    made->self = made;
    made->artifact = artifact;
    made->learns = learns;
    atomic_init(&made->references, 1);
    kvant_fp_state saved = kvant_fp_enter();
    status = fill_plan(made, pipeline, geometry, diag);
    kvant_fp_leave(saved);
    if (status == KVANT_OK)
        *plan = made;
    else
        kvant_plan_free(made);
    return status;
}

kvant_status kvant_pipeline_resolve(const kvant_pipeline *pipeline, const kvant_geometry *geometry,
                                    kvant_plan **plan, kvant_diag *diag) {
    if (pipeline == NULL || geometry == NULL || plan == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_pipeline_resolve: pipeline, geometry or plan is NULL");
    return resolve(pipeline, geometry, NULL, false, plan, diag);
}

kvant_status kvant_pipeline_resolve_with(const kvant_pipeline *pipeline, const kvant_geometry *geometry,
                                         kvant_artifact *artifact, kvant_plan **plan, kvant_diag *diag) {
    return resolve(pipeline, geometry, artifact, false, plan, diag);
}

kvant_status kvant_pipeline_resolve_to_learn(const kvant_pipeline *pipeline, const kvant_geometry *geometry,
                                             kvant_plan **plan, kvant_diag *diag) {
    return resolve(pipeline, geometry, NULL, true, plan, diag);
}
