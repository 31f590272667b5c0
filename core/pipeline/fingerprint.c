/* The canonical text of a plan and its SHA-256. The text is specified line by line in docs/pipelines.md,
 * "Fingerprint": whoever changes a line here changes every fingerprint, and must raise the number in the
 * first one. */
#include "pipeline/plan.h"

#include "base/text.h"
#include "data/digest.h"
#include "plugin/schema.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>

static void put_number(kvant_text *text, double number) {
    static const kvant_param number_param = {.struct_size = sizeof number_param, .type = KVANT_PARAM_NUMBER};
    char digits[KVANT_SCHEMA_TEXT_MAX];
    kvant_value value = {.number = number};
    (void)kvant_schema_text(&number_param, &value, digits, sizeof digits);
    kvant_text_puts(text, digits);
}

/* " name=value"; the schema writes a table with its keys sorted, so that the order of the text does not
 * matter. */
static void put_value(kvant_text *text, const kvant_row *row, uint32_t index) {
    size_t size = kvant_row_value(row, index, NULL, 0);
    char *value = malloc(size + 1);
    if (value == NULL) {
        text->failed = true;
        return;
    }
    (void)kvant_row_value(row, index, value, size + 1);
    kvant_text_printf(text, " %s=%s", kvant_schema_param(row->plugin->descriptor, index)->name, value);
    free(value);
}

/* Parameters with one of the `unless` flags do not count, nor do reading parameters; those that came later
 * only where they differ from their default. */
static bool is_hashed(const kvant_row *row, uint32_t index, uint32_t unless) {
    const kvant_param *param = kvant_schema_param(row->plugin->descriptor, index);
    const kvant_value *value = &row->setup->values[index];
    kvant_value standard;
    if (param->flags & (KVANT_PARAM_READING | unless)) return false;
    if ((param->flags & KVANT_PARAM_LATER) == 0) return true;
    kvant_schema_default(param, &standard);
    return value->integer != standard.integer || value->number != standard.number || value->row_count != 0;
}

/* The parameters of a row in the order of their names, which outlives the order of a plugin's schema. */
void kvant_plan_put_values(kvant_text *text, const kvant_row *row, uint32_t unless) {
    const kvant_descriptor *descriptor = row->plugin->descriptor;
    const char *last = "";
    for (uint32_t n = 0; n < descriptor->param_count; n++) {
        const kvant_param *next = NULL;
        uint32_t index = 0;
        for (uint32_t i = 0; i < descriptor->param_count; i++) {
            const kvant_param *param = kvant_schema_param(descriptor, i);
            if (strcmp(param->name, last) <= 0 || (next != NULL && strcmp(param->name, next->name) >= 0))
                continue;
            next = param;
            index = i;
        }
        if (next == NULL) break;
        last = next->name;
        if (is_hashed(row, index, unless)) put_value(text, row, index);
    }
}

void kvant_plan_put_format(kvant_text *text, const kvant_descriptor *descriptor) {
    uint32_t id = descriptor->format_id;
    kvant_text_printf(text, "\"%c%c%c%c\" version=%u", (int)(id & 255), (int)(id >> 8 & 255),
                      (int)(id >> 16 & 255), (int)(id >> 24), descriptor->format_version);
}

static void put_row(kvant_text *text, const kvant_plan_entry *entry) {
    bool key = entry->setup.side == KVANT_SIDE_KEY;
    kvant_text_puts(text, key ? "key " : "value ");
    kvant_plan_put_format(text, entry->row.plugin->descriptor);
    if (key)
        kvant_text_printf(text, " rope=%s center=%s",
                          entry->layout.flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE ? "before" : "after",
                          entry->center != NULL ? "yes" : "no");
    kvant_plan_put_values(text, &entry->row, 0);
    kvant_text_puts(text, "\n");
}

/* Writes a RoPE that is new, and returns its number. */
static uint32_t put_rope(kvant_text *text, const kvant_rope *rope, uint32_t *written) {
    const kvant_plan_rope *own = (const kvant_plan_rope *)(const void *)rope;
    if (own->number < *written) return own->number;
    kvant_text_printf(text, "rope %u %s rotary_dim=%u magnitude=", own->number,
                      rope->style == KVANT_ROPE_NEOX ? "neox" : "gptj", rope->rotary_dim);
    put_number(text, rope->magnitude);
    for (uint32_t i = 0; i < rope->rotary_dim / 2; i++) {
        kvant_text_puts(text, " ");
        put_number(text, rope->inverse_frequency[i]);
    }
    kvant_text_puts(text, "\n");
    *written = own->number + 1;
    return own->number;
}

static void put_layer(kvant_text *text, const kvant_plan *plan, uint32_t layer, uint32_t *ropes) {
    const kvant_layer_geometry *g = &plan->geometry.layers[layer];
    uint32_t rope = g->rope != NULL ? put_rope(text, g->rope, ropes) : 0;
    kvant_text_printf(
        text, "layer %u kv_heads=%u first_kv_head=%u total_kv_heads=%u q_heads=%u key_dim=%u value_dim=%u",
        layer, g->kv_heads, g->first_kv_head, g->total_kv_heads, g->q_heads, g->key_dim, g->value_dim);
    if (g->rope != NULL)
        kvant_text_printf(text, " rope=%u\n", rope);
    else
        kvant_text_puts(text, " rope=none\n");
    put_row(text, &plan->entries[2 * (size_t)layer + KVANT_SIDE_KEY]);
    put_row(text, &plan->entries[2 * (size_t)layer + KVANT_SIDE_VALUE]);
}

static const char *dtype_word(uint32_t dtype) {
    return dtype == KVANT_DTYPE_F32 ? "f32" : dtype == KVANT_DTYPE_F16 ? "f16" : "bf16";
}

kvant_status kvant_plan_hash(kvant_plan *plan, kvant_diag *diag) {
    const kvant_geometry *geometry = &plan->geometry;
    if (geometry->model == NULL) return KVANT_OK;
    kvant_text text = {0};
    uint32_t ropes = 0;
    kvant_text_puts(&text, "kvant-scheme/1\n");
    /* A model string may hold anything: its length makes its end certain. */
    kvant_text_printf(&text, "model %zu %s\n", strlen(geometry->model), geometry->model);
    kvant_text_printf(&text, "dtype %s\n", dtype_word(geometry->dtype));
    kvant_text_printf(&text, "keys %s\n", geometry->keys == KVANT_KEYS_BEFORE_ROPE ? "before" : "after");
    kvant_text_printf(&text, "block_tokens %u\n", plan->block_tokens);
    kvant_text_printf(&text, "sinks %u\n", plan->sinks);
    kvant_text_printf(&text, "key_center %s\n", plan->key_center != 0 ? "artifact" : "none");
    kvant_text_printf(&text, "on_nonfinite %s\n",
                      plan->on_nonfinite == KVANT_ON_NONFINITE_SATURATE ? "saturate" : "error");
    kvant_text_printf(&text, "artifact %s\n",
                      plan->artifact != NULL ? kvant_artifact_digest(plan->artifact) : "none");
    kvant_text_printf(&text, "layers %u\n", geometry->layer_count);
    for (uint32_t layer = 0; layer < geometry->layer_count; layer++) put_layer(&text, plan, layer, &ropes);
    plan->canonical = text.failed ? NULL : kvant_arena_copy(&plan->arena, text.data, text.size);
    kvant_status status = plan->canonical != NULL ? kvant_sha256(text.data, text.size, plan->fingerprint)
                                                  : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (status != KVANT_OK) (void)kvant_fail(diag, status, "", "SHA-256: %s", kvant_status_text(status));
    kvant_text_free(&text);
    return status;
}
