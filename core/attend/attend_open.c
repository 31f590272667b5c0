/* Opens the codecs of a layer for attention, and answers what they do. See attend.h. */
#include "attend/attend.h"

#include "pipeline/codec_floor.h"
#include "pipeline/plan.h"
#include "plugin/fpenv.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/rope.h>

#include <stddef.h>
#include <stdlib.h>

static const char *const side_names[2] = {"key", "value"};

static uint32_t round_to_lanes(uint32_t count) {
    return (count + KVANT_ATTEND_LANES - 1) / KVANT_ATTEND_LANES * KVANT_ATTEND_LANES;
}

/* The extension of a side whose layout promises it. */
static kvant_status find_codes(kvant_attention *a, uint32_t side, kvant_diag *diag) {
    const kvant_row *row = a->rows[side];
    if ((row->layout->flags & KVANT_LAYOUT_ATTEND) == 0) return KVANT_OK;
    const kvant_attend *found = row->plugin->extension(KVANT_EXT_ATTEND);
    bool whole = found != NULL && found->struct_size >= sizeof *found;
    if (whole && side == KVANT_SIDE_KEY) whole = found->query != NULL && found->score != NULL;
    if (whole && side == KVANT_SIDE_VALUE) whole = found->mix != NULL && found->finish != NULL;
    if (!whole)
        return kvant_fail(
            diag, KVANT_ERROR_PLUGIN_BROKEN, "",
            "layer %u %s: codec %s: it promises attention on codes, and calls of " KVANT_EXT_ATTEND
            " are missing",
            a->layer, side_names[side], row->codec);
    a->codes[side] = found;
    return KVANT_OK;
}

static kvant_status open_codecs(kvant_attention *a, const kvant_plan *plan, kvant_diag *diag) {
    for (uint32_t side = 0; side < 2; side++) {
        kvant_status status = kvant_codec_open(plan, a->layer, side, &a->codecs[side], diag);
        if (status != KVANT_OK) return status;
        a->rows[side] = kvant_codec_row(a->codecs[side]);
        a->states[side] = kvant_codec_state(a->codecs[side]);
        status = find_codes(a, side, diag);
        if (status != KVANT_OK) return status;
    }
    return KVANT_OK;
}

static void take_sizes(kvant_attention *a, const kvant_plan *plan) {
    const kvant_layer_geometry *g = kvant_layer_at(&plan->geometry, a->layer);
    a->dtype = plan->geometry.dtype;
    a->block_tokens = plan->block_tokens;
    a->sinks = plan->sinks;
    a->kv_heads = g->kv_heads;
    a->q_heads = g->q_heads;
    a->group = g->q_heads / g->kv_heads;
    a->key_dim = g->key_dim;
    a->value_dim = g->value_dim;
    a->key_width = round_to_lanes(g->key_dim);
    a->value_width = round_to_lanes(g->value_dim);
    if (a->codes[KVANT_SIDE_VALUE] != NULL)
        a->mix_width = round_to_lanes(a->rows[KVANT_SIDE_VALUE]->layout->mix_width);
    a->step_extents = plan->block_tokens < KVANT_ATTEND_STEP ? KVANT_ATTEND_STEP / plan->block_tokens : 1;
    a->step_tokens = a->step_extents * plan->block_tokens;
    a->span_tokens = a->step_tokens;
    if (a->step_tokens < KVANT_ATTEND_SPAN)
        a->span_tokens = KVANT_ATTEND_SPAN / a->step_tokens * a->step_tokens;
}

/* How keys come to the side after RoPE, where queries are. */
static kvant_status take_turns(kvant_attention *a, const kvant_plan *plan, kvant_diag *diag) {
    const kvant_plan_entry *entry = &plan->entries[2 * (size_t)a->layer + KVANT_SIDE_KEY];
    bool stored_before = (entry->layout.flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE) != 0;
    if (entry->setup.rope == NULL) return KVANT_OK;
    a->turns_raw = plan->geometry.keys == KVANT_KEYS_BEFORE_ROPE;
    a->turns_decoded = stored_before;
    if (!a->turns_raw && !a->turns_decoded) return KVANT_OK;
    a->rope = entry->setup.rope;
    a->turn_table = entry->turn_table;
    a->pairs = kvant_rope_pairs(a->rope);
    if (!stored_before || a->codes[KVANT_SIDE_KEY] == NULL) return KVANT_OK;
    return attend_turns_make(a) == KVANT_OK ? KVANT_OK
                                            : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

kvant_status kvant_attention_open(const kvant_plan *plan, uint32_t layer, kvant_attention **attention,
                                  kvant_diag *diag) {
    if (plan == NULL || attention == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_attention_open: plan or attention is NULL");
    if (layer >= plan->geometry.layer_count)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_attention_open: there is no layer %u",
                          layer);
    kvant_attention *made = calloc(1, sizeof *made);
    if (made == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    made->layer = layer;
    made->kernels = kvant_attend_kernels_for(kvant_isa());
    kvant_status status = open_codecs(made, plan, diag);
    if (status == KVANT_OK) {
        take_sizes(made, plan);
        made->center = kvant_codec_center(made->codecs[KVANT_SIDE_KEY]);
        kvant_fp_state saved = kvant_fp_enter();
        status = take_turns(made, plan, diag);
        kvant_fp_leave(saved);
    }
    if (status == KVANT_OK)
        *attention = made;
    else
        kvant_attention_close(made);
    return status;
}

void kvant_attention_close(kvant_attention *attention) {
    if (attention == NULL) return;
    for (uint32_t side = 0; side < 2; side++) kvant_codec_close(attention->codecs[side]);
    free(attention->offset_turns);
    free(attention->coarse_turns);
    free(attention);
}

const kvant_codec *kvant_attention_codec(const kvant_attention *attention, uint32_t side) {
    return attention != NULL && side <= KVANT_SIDE_VALUE ? attention->codecs[side] : NULL;
}

kvant_status kvant_attention_describe(const kvant_attention *attention, kvant_attention_info *info) {
    if (attention == NULL || info == NULL || info->struct_size < sizeof info->struct_size)
        return KVANT_ERROR_ARGUMENT;
    uint32_t room = info->struct_size;
    kvant_attention_info all = {.struct_size = room,
                                .keys_on_codes = attention->codes[KVANT_SIDE_KEY] != NULL,
                                .values_on_codes = attention->codes[KVANT_SIDE_VALUE] != NULL,
                                .isa = attention->kernels->isa};
    memcpy(info, &all, room < sizeof all ? room : sizeof all);
    return KVANT_OK;
}

void kvant_token_range_causal(uint64_t first_position, uint32_t rows, uint32_t window,
                              kvant_token_range *ranges) {
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t to = first_position + r + 1;
        ranges[r] = (kvant_token_range){.from = window != 0 && to > window ? to - window : 0, .to = to};
    }
}
