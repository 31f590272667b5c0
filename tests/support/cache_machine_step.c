/* Operations of the machine within a step, and attention. See cache_machine.h. */
#include "support/cache_machine.h"

#include "data/blocks.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Begin --------------------------------------------------------------------------------------------- */

static uint32_t draw_count(cache_machine *x, const model_sequence *s) {
    uint32_t room = MODEL_TOKENS - (uint32_t)s->now.length, count = 1;
    switch (machine_draw(x, 8)) {
    case 0:
        count = 1 + machine_draw(x, MACHINE_STEP_MAX);
        break;
    case 1:
    case 2:
        count = 1 + machine_draw(x, 40);
        break;
    default:
        count = 1 + machine_draw(x, 6);
    }
    return count < room ? count : room;
}

/* Tokens of the step: on a script, which others follow too, or like no other. */
static void draw_tokens(cache_machine *x, model_sequence *s, uint64_t *ids, uint8_t *tags) {
    cache_model *m = x->m;
    uint32_t script = machine_draw(x, 4) != 0 ? s->salt % MACHINE_SCRIPTS : machine_draw(x, MACHINE_SCRIPTS);
    bool tagged = tags != NULL, strange = machine_chance(x, 12);
    uint64_t first = s->now.length;
    const model_token *before = first > 0 ? &s->now.tokens[first - 1] : NULL;
    for (uint32_t t = 0; t < s->count; t++) {
        ids[t] = machine_script_id(script, first + t);
        if (strange) ids[t] += 1000 + machine_draw(x, 3);
        uint8_t tag = tagged ? machine_script_tag(script, first + t) : 0;
        if (tagged) tags[t] = tag;
        bool like_others = s->known && first + t < s->now.private_first;
        s->during.tokens[first + t] = model_next(m, s->salt, before, ids[t], tag, like_others);
        before = &s->during.tokens[first + t];
    }
}

static uint64_t evicted(cache_machine *x) {
    kvant_cache_report report = {.struct_size = sizeof report};
    (void)kvant_cache_describe(x->m->cache, &report);
    uint64_t more = report.evictions - x->m->evictions;
    x->counts.evictions += more;
    return more;
}

void machine_begin(cache_machine *x, model_sequence *s) {
    cache_model *m = x->m;
    uint64_t ids[MACHINE_STEP_MAX];
    uint8_t tags[MACHINE_STEP_MAX];
    if (s->now.length == MODEL_TOKENS) return;
    x->name = "begin";
    s->count = draw_count(x, s);
    s->tentative = machine_chance(x, 3) ? machine_draw(x, s->count + 1) : 0;
    s->known = !machine_chance(x, 15);
    bool tagged = machine_chance(x, 2) || s->salt == 1;
    draw_tokens(x, s, ids, tagged ? tags : NULL);
    kvant_step_options options = {.struct_size = sizeof options,
                                  .count = s->count,
                                  .tentative = s->tentative,
                                  .ids = s->known ? ids : NULL,
                                  .tags = tagged ? tags : NULL};
    (void)snprintf(x->detail, sizeof x->detail, "%llu + %u tokens, %u tentative%s",
                   (unsigned long long)s->now.length, s->count, s->tentative, s->known ? "" : ", unknown");
    kvant_status status = kvant_step_begin(s->real, &options, &x->diag);
    model_evict(m, evicted(x));
    if (status == KVANT_ERROR_NO_SPACE) {
        x->counts.no_space++;
        x->ended = true;
        for (const model_block *b = m->blocks; b != NULL; b = b->next)
            if (b->indexed && b->pins == 0 && b->marks == 0)
                MODEL_FAIL("no space, and blocks that nobody holds are left");
        return;
    }
    if (status != KVANT_OK) MODEL_FAIL("begin: %s", x->diag.message);
    if (s->tentative > 0) x->grew[s - m->sequences] = false;
    x->counts.steps++;
    model_begin(m, s);
}

/* ---- Rows of the caller -------------------------------------------------------------------------------- */

/* The step's rows of a layer, in memory of the caller's with strides of its own. */
typedef struct caller_rows {
    kvant_view view[2];
    unsigned char *memory[2];
} caller_rows;

static void lay_out(cache_machine *x, const model_sequence *s, uint32_t layer, caller_rows *rows) {
    cache_model *m = x->m;
    uint32_t way = machine_draw(x, 4), element = kvant_element_bytes(m->setting->dtype);
    for (uint32_t side = 0; side < 2; side++) {
        uint32_t dim = model_dim(m, layer, side);
        size_t row = (size_t)model_row_bytes(m, layer, side), stride = way == 1 ? row + 12 : row;
        unsigned char *dense = malloc(s->count * row + 1);
        rows->memory[side] = malloc(s->count * stride + 3);
        if (dense == NULL || rows->memory[side] == NULL) MODEL_FAIL("out of memory");
        model_rows(m, layer, side, s->during.tokens + s->now.length, s->count, dense);
        memset(rows->memory[side], 0xff, s->count * stride + 3);
        unsigned char *base = rows->memory[side] + (way == 3 ? 1 : 0); /* elements that are not aligned */
        kvant_view *v = &rows->view[side];
        *v = kvant_rows_view(base, m->setting->dtype, s->count, MODEL_HEADS, dim);
        v->token_stride = (int64_t)stride;
        if (way == 2) { /* backwards */
            v->data = base + (s->count - 1) * stride;
            v->token_stride = -(int64_t)stride;
        }
        for (uint32_t t = 0; t < s->count; t++)
            memcpy((unsigned char *)(uintptr_t)v->data + t * v->token_stride, dense + t * row, row);
        v->channel_stride = element;
        free(dense);
    }
}

static void free_rows(caller_rows *rows) {
    free(rows->memory[0]);
    free(rows->memory[1]);
}

/* Makes a number of the rows a NaN. */
static void spoil(cache_machine *x, caller_rows *rows) {
    uint32_t side = machine_draw(x, 2);
    const kvant_view *v = &rows->view[side];
    uint32_t t = machine_draw(x, v->tokens), h = machine_draw(x, v->heads), c = machine_draw(x, v->head_dim);
    uint32_t element = kvant_element_bytes(v->dtype);
    memset((unsigned char *)(uintptr_t)kvant_view_at(v, t, h) + c * element, 0x7f, element);
    unsigned char *top = (unsigned char *)(uintptr_t)kvant_view_at(v, t, h) + c * element;
    if (element == 4)
        top[2] = 0xff;
    else
        top[0] = 0xff, top[1] = 0x7f;
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

static kvant_attention_options draw_options(cache_machine *x) {
    return (kvant_attention_options){.struct_size = sizeof(kvant_attention_options),
                                     .scale = 0.25f,
                                     .soft_cap = machine_chance(x, 4) ? 5.0f : 0.0f};
}

/* Queries, outputs and log-sum-exps of a sequence begin at row x->at of the machine's. */
static kvant_view draw_queries(cache_machine *x, uint32_t rows) {
    float *queries = x->queries + (size_t)x->at * MODEL_Q_HEADS * MODEL_KEY_DIM;
    uint64_t seed = machine_draw(x, 1u << 16);
    for (uint32_t i = 0; i < rows * MODEL_Q_HEADS * MODEL_KEY_DIM; i++)
        queries[i] = (float)(int16_t)model_hash(seed, i) * 0x1p-15f;
    return kvant_rows_view(queries, KVANT_DTYPE_F32, rows, MODEL_Q_HEADS, MODEL_KEY_DIM);
}

static float *sums_of(cache_machine *x, uint32_t which) {
    return x->log_sum_exp[which] + (size_t)x->at * MODEL_Q_HEADS;
}

static kvant_mutable_view outputs_view(cache_machine *x, uint32_t layer, uint32_t which, uint32_t rows) {
    uint32_t dim = model_dim(x->m, layer, KVANT_SIDE_VALUE);
    float *outputs = x->outputs[which] + (size_t)x->at * MODEL_Q_HEADS * dim;
    memset(outputs, 0xff, (size_t)rows * MODEL_Q_HEADS * dim * sizeof(float));
    memset(sums_of(x, which), 0xff, (size_t)rows * MODEL_Q_HEADS * sizeof(float));
    kvant_mutable_view v = {.struct_size = sizeof v,
                            .dtype = KVANT_DTYPE_F32,
                            .data = outputs,
                            .tokens = rows,
                            .heads = MODEL_Q_HEADS,
                            .head_dim = dim,
                            .token_stride = (int64_t)(MODEL_Q_HEADS * dim * sizeof(float)),
                            .head_stride = (int64_t)(dim * sizeof(float)),
                            .channel_stride = sizeof(float)};
    return v;
}

/* The cache's outputs with the model's. */
static void compare(cache_machine *x, uint32_t layer, uint32_t rows, bool sums) {
    size_t width = MODEL_Q_HEADS * (size_t)model_dim(x->m, layer, KVANT_SIDE_VALUE), count = rows * width;
    const float *got = x->outputs[0] + x->at * width, *want = x->outputs[1] + x->at * width;
    if (!model_same_floats(got, want, count)) {
        float worst = 0;
        for (size_t i = 0; i < count; i++)
            if (!(fabsf(got[i] - want[i]) <= worst)) worst = fabsf(got[i] - want[i]);
        MODEL_FAIL("layer %u: outputs of %u rows differ from the model's, by up to %g", layer, rows,
                   (double)worst);
    }
    if (sums && !model_same_floats(sums_of(x, 0), sums_of(x, 1), (size_t)rows * MODEL_Q_HEADS))
        MODEL_FAIL("layer %u: log-sum-exps of %u rows differ from the model's", layer, rows);
    x->counts.attends++;
}

/* The model's outputs of the step's own queries. */
static void attend_step(cache_machine *x, model_sequence *s, uint32_t layer, const kvant_view *queries,
                        bool sums, const kvant_attention_options *options) {
    cache_model *m = x->m;
    kvant_token_range ranges[MACHINE_STEP_MAX];
    void *own[2];
    for (uint32_t side = 0; side < 2; side++) {
        own[side] = malloc(s->count * (size_t)model_row_bytes(m, layer, side) + 1);
        if (own[side] == NULL) MODEL_FAIL("out of memory");
        model_kept_rows(m, layer, side, s->during.tokens + s->now.length, s->count, own[side]);
    }
    kvant_token_range_causal(s->now.length, s->count, m->setting->window[layer], ranges);
    kvant_mutable_view outputs = outputs_view(x, layer, 1, s->count);
    model_queries q = {.rows = s->count,
                       .view = queries,
                       .ranges = ranges,
                       .outputs = &outputs,
                       .log_sum_exp = sums ? sums_of(x, 1) : NULL};
    model_attend(m, &s->during, layer, own, s->count, &q, options);
    free(own[0]);
    free(own[1]);
}

/* Queries at any positions of a sequence, by ranges of heads; layer open or not. */
void machine_cache_attend(cache_machine *x, model_sequence *s) {
    cache_model *m = x->m;
    uint32_t layer = machine_draw(x, MODEL_LAYERS), rows = 1 + machine_draw(x, 4);
    if (s->steps && s->open[layer]) return; /* done where the layer is opened */
    x->name = "cache_attend";
    kvant_attention_options options = draw_options(x);
    kvant_token_range ranges[4];
    kvant_view queries = draw_queries(x, rows);
    kvant_mutable_view outputs = outputs_view(x, layer, 0, rows);
    for (uint32_t r = 0; r < rows; r++) {
        ranges[r].from = machine_chance(x, 2) ? 0 : machine_draw(x, (uint32_t)s->now.length + 1);
        ranges[r].to = ranges[r].from + machine_draw(x, (uint32_t)(s->now.length - ranges[r].from) + 1);
    }
    kvant_attend_part part = {.struct_size = sizeof part,
                              .sequence = s->real,
                              .queries = &queries,
                              .ranges = ranges,
                              .outputs = &outputs,
                              .log_sum_exp = sums_of(x, 0)};
    uint32_t heads = 1 + machine_draw(x, MODEL_HEADS);
    for (uint32_t head = 0; head < MODEL_HEADS; head += heads) {
        options.first_kv_head = head;
        options.kv_heads = head + heads < MODEL_HEADS ? heads : MODEL_HEADS - head;
        size_t bytes = kvant_cache_attend_scratch(m->cache, layer, &part, 1, &options);
        void *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
        if (bytes == 0 || scratch == NULL) MODEL_FAIL("kvant_cache_attend_scratch: %zu bytes", bytes);
        if (kvant_cache_attend(m->cache, layer, &part, 1, &options, scratch, bytes, &x->diag) != KVANT_OK)
            MODEL_FAIL("cache_attend: %s", x->diag.message);
        free(scratch);
    }
    options.first_kv_head = options.kv_heads = 0;
    kvant_mutable_view want = outputs_view(x, layer, 1, rows);
    model_queries q = {
        .rows = rows, .view = &queries, .ranges = ranges, .outputs = &want, .log_sum_exp = sums_of(x, 1)};
    model_attend(m, &s->now, layer, NULL, 0, &q, &options);
    compare(x, layer, rows, true);
}

/* ---- Layers -------------------------------------------------------------------------------------------- */

static uint32_t draw_missing(cache_machine *x, const model_sequence *s) {
    uint32_t layer = machine_draw(x, MODEL_LAYERS);
    for (uint32_t i = 0; i < MODEL_LAYERS && s->given[layer]; i++) layer = (layer + 1) % MODEL_LAYERS;
    return layer;
}

static void give_layer(cache_machine *x, model_sequence *s, uint32_t layer) {
    caller_rows rows;
    x->name = "put";
    lay_out(x, s, layer, &rows);
    if (kvant_step_put(s->real, layer, &rows.view[0], &rows.view[1], &x->diag) != KVANT_OK)
        MODEL_FAIL("put: %s", x->diag.message);
    free_rows(&rows);
    s->given[layer] = true;
}

/* The layer of one sequence, or of two in one call; `wrong`: of which a number is none. */
static void attend_layer(cache_machine *x, model_sequence *const *s, uint32_t count, uint32_t layer,
                         bool wrong) {
    caller_rows rows[2];
    kvant_view queries[2];
    kvant_mutable_view outputs[2];
    kvant_step_rows parts[2];
    bool sums = machine_chance(x, 2);
    kvant_attention_options options = draw_options(x);
    x->name = count > 1 ? "step_attend of two" : "step_attend";
    for (uint32_t i = 0; i < count; i++) {
        x->at = i * MACHINE_STEP_MAX;
        lay_out(x, s[i], layer, &rows[i]);
        queries[i] = draw_queries(x, s[i]->count);
        outputs[i] = outputs_view(x, layer, 0, s[i]->count);
        parts[i] = (kvant_step_rows){.struct_size = sizeof parts[i],
                                     .sequence = s[i]->real,
                                     .keys = &rows[i].view[0],
                                     .values = &rows[i].view[1],
                                     .queries = &queries[i],
                                     .outputs = &outputs[i],
                                     .log_sum_exp = sums ? sums_of(x, 0) : NULL};
    }
    if (wrong) spoil(x, &rows[machine_draw(x, count)]);
    kvant_status status = kvant_step_attend(x->m->cache, layer, parts, count, &options, &x->diag);
    if (status != (wrong ? KVANT_ERROR_NOT_FINITE : KVANT_OK))
        MODEL_FAIL("step_attend gave %d: %s", status, x->diag.message);
    for (uint32_t i = 0; i < count; i++) {
        x->at = i * MACHINE_STEP_MAX;
        free_rows(&rows[i]);
        if (wrong) { /* ends the steps of all */
            model_abort(x->m, s[i]);
            continue;
        }
        s[i]->given[layer] = true;
        attend_step(x, s[i], layer, &queries[i], sums, &options);
        compare(x, layer, s[i]->count, sums);
    }
    x->at = 0;
    if (!wrong) return;
    x->counts.injected++;
    x->ended = true;
}

/* With another one that is in a step and lacks the layer too, if there is one. */
static void attend_some(cache_machine *x, model_sequence *s) {
    model_sequence *both[2] = {s, NULL};
    uint32_t layer = draw_missing(x, s), count = 1;
    for (uint32_t i = 0; i < MODEL_SEQUENCES && machine_chance(x, 2); i++) {
        model_sequence *other = &x->m->sequences[i];
        if (other == s || other->real == NULL || !other->steps || other->given[layer]) continue;
        both[1] = other;
        count = 2;
        break;
    }
    attend_layer(x, both, count, layer, !x->m->saturates && machine_chance(x, 20));
}

/* begin, the step's own queries by heads, end. */
static void open_layer(cache_machine *x, model_sequence *s, uint32_t layer) {
    caller_rows rows;
    cache_model *m = x->m;
    x->name = "layer_begin";
    lay_out(x, s, layer, &rows);
    if (kvant_step_layer_begin(s->real, layer, &rows.view[0], &rows.view[1], &x->diag) != KVANT_OK)
        MODEL_FAIL("layer_begin: %s", x->diag.message);
    kvant_attention_options options = draw_options(x);
    kvant_view queries = draw_queries(x, s->count);
    kvant_mutable_view outputs = outputs_view(x, layer, 0, s->count);
    kvant_attend_part part = {.struct_size = sizeof part,
                              .sequence = s->real,
                              .queries = &queries,
                              .outputs = &outputs,
                              .log_sum_exp = sums_of(x, 0)};
    for (uint32_t head = 0; head < MODEL_HEADS; head++) {
        options.first_kv_head = head;
        options.kv_heads = 1;
        size_t bytes = kvant_cache_attend_scratch(m->cache, layer, &part, 1, &options);
        void *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
        if (bytes == 0 || scratch == NULL) MODEL_FAIL("kvant_cache_attend_scratch: %zu bytes", bytes);
        if (kvant_cache_attend(m->cache, layer, &part, 1, &options, scratch, bytes, &x->diag) != KVANT_OK)
            MODEL_FAIL("cache_attend of an open layer: %s", x->diag.message);
        free(scratch);
    }
    options.first_kv_head = options.kv_heads = 0;
    s->given[layer] = true;
    attend_step(x, s, layer, &queries, true, &options);
    compare(x, layer, s->count, true);
    if (machine_chance(x, 8)) {
        x->name = "abort with a layer open";
        kvant_step_abort(s->real);
        model_abort(m, s);
        x->counts.aborts++;
        x->ended = true;
    } else if (kvant_step_layer_end(s->real, layer, &x->diag) != KVANT_OK) {
        MODEL_FAIL("layer_end: %s", x->diag.message);
    }
    free_rows(&rows);
}

/* ---- Ends ---------------------------------------------------------------------------------------------- */

static void commit(cache_machine *x, model_sequence *s) {
    uint32_t keep = s->count - (s->tentative > 0 ? machine_draw(x, s->tentative + 1) : 0);
    x->name = "commit";
    (void)snprintf(x->detail, sizeof x->detail, "%u of %u tokens behind %llu", keep, s->count,
                   (unsigned long long)s->now.length);
    if (kvant_step_commit(s->real, keep, &x->diag) != KVANT_OK) MODEL_FAIL("commit: %s", x->diag.message);
    model_commit(x->m, s, keep);
    x->counts.commits++;
}

/* A call that must fail, and end the step. */
static void injure(cache_machine *x, model_sequence *s) {
    cache_model *m = x->m;
    uint32_t layer = draw_missing(x, s);
    kvant_status status = KVANT_OK, want = KVANT_ERROR_ARGUMENT;
    caller_rows rows;
    bool again = false;
    x->name = "a wrong call within a step";
    x->diag.message[0] = '\0';
    lay_out(x, s, layer, &rows);
    switch (machine_draw(x, 8)) {
    case 7: /* a second begin; whether it ends the step is not said */
        again = true;
        status = kvant_step_begin(
            s->real, &(kvant_step_options){.struct_size = sizeof(kvant_step_options), .count = 1}, &x->diag);
        break;
    case 0:
        if (m->saturates || s->given[layer]) break;
        spoil(x, &rows);
        want = KVANT_ERROR_NOT_FINITE;
        status = kvant_step_put(s->real, layer, &rows.view[0], &rows.view[1], &x->diag);
        break;
    case 1:
        rows.view[machine_draw(x, 2)].tokens++;
        status = kvant_step_put(s->real, layer, &rows.view[0], &rows.view[1], &x->diag);
        break;
    case 2:
        status = kvant_step_put(s->real, MODEL_LAYERS + machine_draw(x, 3), &rows.view[0], &rows.view[1],
                                &x->diag);
        break;
    case 3: /* given twice */
        for (layer = 0; layer < MODEL_LAYERS && !s->given[layer];) layer++;
        if (layer == MODEL_LAYERS) break;
        free_rows(&rows);
        lay_out(x, s, layer, &rows);
        status = kvant_step_put(s->real, layer, &rows.view[0], &rows.view[1], &x->diag);
        break;
    case 4: /* too few, too many, or a layer is missing */
        status = kvant_step_commit(s->real, machine_chance(x, 2) ? s->count + 1 : s->count - s->tentative - 1,
                                   &x->diag);
        break;
    case 5:
        status = kvant_step_layer_end(s->real, layer, &x->diag);
        break;
    default:
        rows.view[machine_draw(x, 2)].head_dim--;
        status = kvant_step_layer_begin(s->real, layer, &rows.view[0], &rows.view[1], &x->diag);
    }
    free_rows(&rows);
    if (status == KVANT_OK && x->diag.message[0] == '\0') return; /* nothing could be injured */
    if (status != want) MODEL_FAIL("a wrong call gave %d (%s), not %d", status, x->diag.message, want);
    if (x->diag.message[0] == '\0') MODEL_FAIL("a wrong call was refused without a word");
    kvant_sequence_info info = {.struct_size = sizeof info};
    (void)kvant_sequence_describe(s->real, &info);
    if (!again || !info.in_step) model_abort(m, s);
    x->counts.injected++;
    x->ended = true;
}

void machine_step(cache_machine *x, model_sequence *s) {
    bool all = true;
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++) all = all && s->given[layer];
    uint32_t choice = machine_draw(x, 32);
    if (choice == 0) {
        x->name = "abort";
        kvant_step_abort(s->real);
        model_abort(x->m, s);
        x->counts.aborts++;
        x->ended = true;
    } else if (choice == 1) {
        injure(x, s);
    } else if (choice < 4) {
        machine_read(x, s);
    } else if (choice < 6) {
        machine_cache_attend(x, s);
    } else if (all) {
        commit(x, s);
    } else if (choice < 16) {
        give_layer(x, s, draw_missing(x, s));
    } else if (choice < 28) {
        attend_some(x, s);
    } else {
        open_layer(x, s, draw_missing(x, s));
    }
}
