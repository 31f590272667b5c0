/* Calibration: texts and a pipeline in, the bytes of an artifact out. See kvant.h and calibration.h.
 *
 *     for each pass that some codec wants
 *         for each layer
 *             first pass: rows are checked, and the layer's key means learned
 *             for each text: the layer's rows to every codec that wants the pass
 *
 * so that one layer of one text is looked at at a time. Then the tensors are packed, and the artifact is
 * loaded back through the pipeline before anybody sees it. */
#include "calibrate/calibration.h"

#include "base/text.h"
#include "calibrate/calibrate_session.h"
#include "data/digest.h"
#include "plugin/fpenv.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>

struct kvant_calibration {
    kvant_text bytes;
    char digest[65];
    char *model;
    uint32_t layers;
    uint64_t tokens;
    uint32_t tensors, centered, passes;
    kvant_calibration_codec *codecs; /* names are its own */
    uint32_t codec_count;
    kvant_calibration_text *texts; /* names and digests are its own */
    uint32_t text_count;
};

typedef struct calibrate_run {
    const kvant_pipeline *pipeline;
    const kvant_calibration_options *options; /* NULL = none */
    calibrate_texts texts;
    kvant_plan *plan; /* to learn with */
    calibrate_session *sessions;
    uint32_t session_count;
    calibrate_sample sample;
    kvant_artifact_builder *artifact;
    kvant_calibration *result;
    kvant_diag *diag;
} calibrate_run;

static kvant_status no_memory(kvant_diag *diag) {
    return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

/* ---- Learning ------------------------------------------------------------------------------------------ */

static const kvant_plan_entry *entry_of(const calibrate_run *run, uint32_t layer, uint32_t side) {
    return &run->plan->entries[2 * (size_t)layer + side];
}

static uint32_t count_centered(const calibrate_run *run) {
    uint32_t count = 0;
    for (uint32_t l = 0; l < run->texts.geometry.layer_count; l++)
        count += entry_of(run, l, KVANT_SIDE_KEY)->centers;
    return count;
}

static kvant_status find_work(calibrate_run *run) {
    kvant_status status = calibrate_sessions_find(run->plan, &run->sessions, &run->session_count, run->diag);
    if (status != KVANT_OK) return status;
    run->result->centered = count_centered(run);
    if (run->session_count > 0 || run->result->centered > 0) return KVANT_OK;
    return kvant_pipeline_fail(
        run->pipeline, run->diag, KVANT_ERROR_UNSUPPORTED, 0, "",
        "pipeline %.100s: there is nothing to learn: none of its codecs needs an "
        "artifact, and %s",
        run->pipeline->name,
        run->pipeline->key_center == 0 ? "key_center = none" : "no key is centred (its codecs are lossless)");
}

/* Every side that something is learned from; and whatever there is must be finite, since a run of the model
 * that went wrong is no text to learn from. */
static kvant_status check_layer(const calibrate_run *run, uint32_t layer) {
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < run->texts.count && status == KVANT_OK; i++) {
        const calibrate_text *text = &run->texts.items[i];
        const char *learner[2] = {
            entry_of(run, layer, KVANT_SIDE_KEY)->centers ? "key_center = artifact" : NULL, NULL};
        bool codes[2];
        for (uint32_t k = 0; k < run->session_count; k++) {
            if (!calibrate_session_codes(&run->sessions[k], layer, codes)) continue;
            for (uint32_t side = 0; side < 2; side++)
                if (codes[side] && learner[side] == NULL) learner[side] = run->sessions[k].codec;
        }
        for (uint32_t side = 0; side < 2 && status == KVANT_OK; side++)
            if (learner[side] != NULL)
                status = calibrate_check_side(text, layer, side, run->plan->sinks, learner[side], run->diag);
        if (status == KVANT_OK) status = calibrate_check_context(text, layer, run->diag);
    }
    return status;
}

static kvant_status learn_center(const calibrate_run *run, uint32_t layer) {
    kvant_plan *plan = run->plan;
    kvant_plan_entry *entry = &plan->entries[2 * (size_t)layer + KVANT_SIDE_KEY];
    if (!entry->centers) return KVANT_OK;
    uint32_t heads = entry->setup.total_kv_heads, dim = entry->setup.head_dim;
    float *center = kvant_arena_alloc(&plan->arena, (size_t)heads * dim, sizeof *center);
    if (center == NULL) return no_memory(run->diag);
    kvant_fp_state saved = kvant_fp_enter();
    kvant_status status = calibrate_center(&run->texts, entry, plan->sinks, center, run->diag);
    kvant_fp_leave(saved);
    if (status != KVANT_OK) return status;
    entry->center = center;
    kvant_array tensor = {.name = "center",
                          .data = center,
                          .shape = {heads, dim},
                          .bytes = (uint64_t)heads * dim * sizeof *center,
                          .dtype = KVANT_DTYPE_F32,
                          .rank = 2};
    return kvant_artifact_builder_add(run->artifact, layer, KVANT_SIDE_KEY, &tensor, run->diag);
}

static kvant_status feed_layer(calibrate_run *run, uint32_t layer) {
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < run->texts.count; i++)
        for (uint32_t k = 0; k < run->session_count; k++) {
            calibrate_session *session = &run->sessions[k];
            const calibrate_text *text = &run->texts.items[i];
            bool codes[2];
            if (!session->wants || !calibrate_session_codes(session, layer, codes)) continue;
            kvant_fp_state saved = kvant_fp_enter();
            status = calibrate_sample_fill(&run->sample, run->plan, text, i, layer, codes, run->diag);
            kvant_fp_leave(saved);
            if (status == KVANT_OK)
                status = calibrate_session_feed(session, &run->sample.sample, text->info->file, run->diag);
            if (status != KVANT_OK) return status;
        }
    return KVANT_OK;
}

static void tell(const calibrate_run *run, uint32_t layer) {
    const kvant_calibration_options *o = run->options;
    if (o != NULL && o->progress != NULL)
        o->progress(o->context, run->result->passes, layer, run->texts.geometry.layer_count);
}

static kvant_status pass(calibrate_run *run) {
    kvant_status status = KVANT_OK;
    bool first = run->result->passes++ == 0;
    for (uint32_t layer = 0; layer < run->texts.geometry.layer_count && status == KVANT_OK; layer++) {
        tell(run, layer);
        if (first) status = check_layer(run, layer);
        if (first && status == KVANT_OK) status = learn_center(run, layer);
        if (status == KVANT_OK) status = feed_layer(run, layer);
        calibrate_texts_forget(&run->texts);
    }
    for (uint32_t k = 0; k < run->session_count && status == KVANT_OK; k++)
        if (run->sessions[k].wants) status = calibrate_session_again(&run->sessions[k], run->diag);
    return status;
}

static kvant_status learn(calibrate_run *run) {
    kvant_status status = KVANT_OK;
    bool more = true;
    for (uint32_t k = 0; k < run->session_count && status == KVANT_OK; k++)
        status = calibrate_session_begin(&run->sessions[k], run->diag);
    while (more && status == KVANT_OK) {
        status = pass(run);
        more = false;
        for (uint32_t k = 0; k < run->session_count; k++) more = more || run->sessions[k].wants;
    }
    for (uint32_t k = 0; k < run->session_count && status == KVANT_OK; k++)
        status = calibrate_session_end(&run->sessions[k], run->artifact, run->diag);
    return status;
}

/* ---- The artifact -------------------------------------------------------------------------------------- */

static uint32_t kv_heads_of(const kvant_layer_geometry *g) {
    return g->total_kv_heads;
}
static uint32_t q_heads_of(const kvant_layer_geometry *g) {
    return g->q_heads;
}
static uint32_t key_dim_of(const kvant_layer_geometry *g) {
    return g->key_dim;
}
static uint32_t value_dim_of(const kvant_layer_geometry *g) {
    return g->value_dim;
}

/* One number, or one per layer where they differ. */
static void say_number(const calibrate_run *run, const char *key,
                       uint32_t (*number)(const kvant_layer_geometry *g)) {
    const kvant_geometry *g = &run->texts.geometry;
    kvant_text text = {0};
    bool alike = true;
    for (uint32_t l = 1; l < g->layer_count; l++)
        alike = alike && number(&g->layers[l]) == number(&g->layers[0]);
    for (uint32_t l = 0; l < (alike ? 1 : g->layer_count); l++)
        kvant_text_printf(&text, "%s%u", l > 0 ? "," : "", number(&g->layers[l]));
    if (!text.failed) kvant_artifact_builder_say(run->artifact, key, "%s", text.data);
    kvant_text_free(&text);
}

/* What it was learned with; docs/calibration.md says which of these must match when it is used. */
static kvant_status say_origin(const calibrate_run *run) {
    kvant_artifact_builder *artifact = run->artifact;
    kvant_text digests = {0}, tokens = {0};
    for (uint32_t i = 0; i < run->texts.count; i++) {
        kvant_text_printf(&digests, "%s%s", i > 0 ? "," : "", run->texts.items[i].digest);
        kvant_text_printf(&tokens, "%s%u", i > 0 ? "," : "", run->texts.items[i].info->tokens);
    }
    bool failed = digests.failed || tokens.failed;
    if (!failed) {
        kvant_artifact_builder_say(artifact, "text_sha256", "%s", digests.data);
        kvant_artifact_builder_say(artifact, "text_tokens", "%s", tokens.data);
    }
    kvant_text_free(&digests);
    kvant_text_free(&tokens);
    if (failed) return no_memory(run->diag);
    kvant_artifact_builder_say(artifact, "pipeline", "%s", run->plan->name);
    kvant_artifact_builder_say(artifact, "sinks", "%u", run->plan->sinks);
    kvant_artifact_builder_say(artifact, "layers", "%u", run->texts.geometry.layer_count);
    if (run->texts.geometry.model != NULL)
        kvant_artifact_builder_say(artifact, "model", "%s", run->texts.geometry.model);
    say_number(run, "kv_heads", kv_heads_of);
    if (run->texts.knows_q_heads) say_number(run, "q_heads", q_heads_of);
    if (run->texts.has_keys) say_number(run, "head_dim", key_dim_of);
    if (run->texts.has_values) say_number(run, "value_dim", value_dim_of);
    return KVANT_OK;
}

static const char *name_of(const calibrate_run *run) {
    return run->pipeline->artifact != NULL ? run->pipeline->artifact : "the artifact";
}

/* Through the pipeline, as whoever uses it will: every check of an artifact, and every codec's open. */
static kvant_status load_back(const calibrate_run *run) {
    kvant_calibration *c = run->result;
    kvant_artifact *artifact = NULL;
    kvant_plan *plan = NULL;
    kvant_diag why = {.struct_size = sizeof why};
    kvant_status status = kvant_artifact_parse(c->bytes.data, c->bytes.size, name_of(run), &artifact, &why);
    if (status == KVANT_OK) {
        memcpy(c->digest, kvant_artifact_digest(artifact), sizeof c->digest);
        status = kvant_pipeline_resolve_with(run->pipeline, &run->texts.geometry, artifact, &plan, &why);
    }
    for (uint32_t i = 0; i < 2 * run->texts.geometry.layer_count && status == KVANT_OK; i++) {
        kvant_codec *codec = NULL;
        status = kvant_codec_open(plan, i / 2, i % 2, &codec, &why);
        kvant_codec_close(codec);
    }
    kvant_plan_free(plan);
    if (status == KVANT_OK) return status;
    return kvant_pipeline_fail(run->pipeline, run->diag, status, 0, why.key,
                               "what was learned does not load back: %.1800s", why.message);
}

/* ---- The result ---------------------------------------------------------------------------------------- */

static bool report_codecs(const calibrate_run *run) {
    kvant_calibration *c = run->result;
    c->codecs = calloc(run->session_count + (size_t)1, sizeof *c->codecs);
    if (c->codecs == NULL) return false;
    for (uint32_t k = 0; k < run->session_count; k++) {
        const calibrate_session *s = &run->sessions[k];
        c->codecs[c->codec_count++] = (kvant_calibration_codec){.codec = strdup(s->codec),
                                                                .plugin = s->plugin->descriptor->name,
                                                                .rows = s->setup_count,
                                                                .tensors = s->tensors,
                                                                .passes = s->passes};
        if (c->codecs[k].codec == NULL) return false;
    }
    return true;
}

static bool report_texts(const calibrate_run *run) {
    kvant_calibration *c = run->result;
    c->texts = calloc(run->texts.count, sizeof *c->texts);
    if (c->texts == NULL) return false;
    for (uint32_t i = 0; i < run->texts.count; i++) {
        const calibrate_text *text = &run->texts.items[i];
        c->texts[c->text_count++] = (kvant_calibration_text){
            .file = strdup(text->info->file), .tokens = text->info->tokens, .digest = strdup(text->digest)};
        if (c->texts[i].file == NULL || c->texts[i].digest == NULL) return false;
    }
    if (run->texts.geometry.model != NULL) {
        c->model = strdup(run->texts.geometry.model);
        if (c->model == NULL) return false;
    }
    return true;
}

static kvant_status finish(const calibrate_run *run) {
    kvant_calibration *c = run->result;
    kvant_status status = say_origin(run);
    if (status == KVANT_OK)
        status = kvant_artifact_builder_pack(run->artifact, name_of(run), &c->bytes, run->diag);
    if (status == KVANT_OK) status = load_back(run);
    if (status != KVANT_OK) return status;
    c->layers = run->texts.geometry.layer_count;
    c->tensors = kvant_artifact_builder_count(run->artifact);
    return report_codecs(run) && report_texts(run) ? KVANT_OK : no_memory(run->diag);
}

/* ---- The public calls ---------------------------------------------------------------------------------- */

static kvant_status check_arguments(const kvant_pipeline *pipeline, const kvant_dump_source *texts,
                                    uint32_t count, kvant_calibration **calibration, kvant_diag *diag) {
    if (pipeline == NULL || texts == NULL || count == 0 || calibration == NULL)
        return kvant_fail(
            diag, KVANT_ERROR_ARGUMENT, "",
            "kvant_calibration_run: pipeline, texts or calibration is NULL, or there is no text");
    if (texts->struct_size < sizeof *texts)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_calibration_run: struct_size of texts is not set");
    for (uint32_t i = 0; i < count; i++) {
        const kvant_dump_source *text = (const void *)((const char *)texts + (size_t)i * texts->struct_size);
        if (text->name == NULL || (text->bytes != NULL && text->size > SIZE_MAX / 2))
            return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                              "kvant_calibration_run: text %u has no name, or no size", i);
    }
    return KVANT_OK;
}

kvant_status kvant_calibration_run(const kvant_pipeline *pipeline, const kvant_dump_source *texts,
                                   uint32_t text_count, const kvant_calibration_options *options,
                                   kvant_calibration **calibration, kvant_diag *diag) {
    kvant_status status = check_arguments(pipeline, texts, text_count, calibration, diag);
    if (status != KVANT_OK) return status;
    if (options != NULL && options->struct_size < sizeof *options)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_calibration_run: options.struct_size is not set");
    calibrate_run run = {.pipeline = pipeline,
                         .options = options,
                         .artifact = kvant_artifact_builder_new(),
                         .result = calloc(1, sizeof *run.result),
                         .diag = diag};
    if (run.artifact == NULL || run.result == NULL) status = no_memory(diag);
    if (status == KVANT_OK) status = calibrate_texts_open(texts, text_count, &run.texts, diag);
    if (status == KVANT_OK)
        status = kvant_pipeline_resolve_to_learn(pipeline, &run.texts.geometry, &run.plan, diag);
    if (status == KVANT_OK) status = find_work(&run);
    if (status == KVANT_OK)
        status = calibrate_texts_count(&run.texts, run.plan->sinks, &run.result->tokens, diag);
    if (status == KVANT_OK) status = learn(&run);
    if (status == KVANT_OK) status = finish(&run);
    calibrate_sessions_free(run.sessions, run.session_count);
    calibrate_sample_free(&run.sample);
    kvant_artifact_builder_free(run.artifact);
    kvant_plan_free(run.plan);
    calibrate_texts_close(&run.texts);
    if (status == KVANT_OK)
        *calibration = run.result;
    else
        kvant_calibration_free(run.result);
    return status;
}

void kvant_calibration_free(kvant_calibration *c) {
    if (c == NULL) return;
    for (uint32_t i = 0; i < c->codec_count; i++) free((void *)(uintptr_t)c->codecs[i].codec);
    for (uint32_t i = 0; i < c->text_count; i++) {
        free((void *)(uintptr_t)c->texts[i].file);
        free((void *)(uintptr_t)c->texts[i].digest);
    }
    free(c->codecs);
    free(c->texts);
    free(c->model);
    kvant_text_free(&c->bytes);
    free(c);
}

kvant_status kvant_calibration_describe(const kvant_calibration *c, kvant_calibration_info *info) {
    if (c == NULL || info == NULL || info->struct_size < sizeof info->struct_size)
        return KVANT_ERROR_ARGUMENT;
    uint32_t room = info->struct_size;
    const kvant_calibration_info all = {.struct_size = room,
                                        .text_count = c->text_count,
                                        .tokens = c->tokens,
                                        .tensor_count = c->tensors,
                                        .centered_layers = c->centered,
                                        .passes = c->passes,
                                        .bytes = c->bytes.data,
                                        .size = c->bytes.size,
                                        .digest = c->digest};
    memcpy(info, &all, room < sizeof all ? room : sizeof all);
    return KVANT_OK;
}

kvant_status kvant_calibration_write(const kvant_calibration *c, const char *file, kvant_diag *diag) {
    if (c == NULL || file == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_calibration_write: calibration or file is NULL");
    kvant_file_writer *writer = NULL;
    kvant_artifact *artifact = NULL;
    kvant_status status = kvant_file_writer_open(file, &writer, diag);
    if (status != KVANT_OK) return status;
    kvant_file_writer_add(writer, c->bytes.data, c->bytes.size);
    status = kvant_file_writer_commit(writer, diag);
    if (status == KVANT_OK) status = kvant_artifact_open(file, &artifact, diag);
    if (status != KVANT_OK) return status;
    if (strcmp(kvant_artifact_digest(artifact), c->digest) != 0)
        status = kvant_file_fail(diag, KVANT_ERROR_IO, file, "does not hold what was written to it");
    kvant_artifact_close(artifact);
    return status;
}

/* ---- For the command ----------------------------------------------------------------------------------- */

const char *kvant_calibration_model(const kvant_calibration *c) {
    return c->model;
}

uint32_t kvant_calibration_layers(const kvant_calibration *c) {
    return c->layers;
}

uint32_t kvant_calibration_codecs(const kvant_calibration *c) {
    return c->codec_count;
}

kvant_calibration_codec kvant_calibration_codec_at(const kvant_calibration *c, uint32_t index) {
    return c->codecs[index];
}

kvant_calibration_text kvant_calibration_text_at(const kvant_calibration *c, uint32_t index) {
    return c->texts[index];
}
