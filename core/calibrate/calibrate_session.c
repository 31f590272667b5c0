/* See calibrate_session.h. */
#include "calibrate/calibrate_session.h"

#include "plugin/fpenv.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>

static const char *const side_names[2] = {"key", "value"};

/* ---- Which codecs -------------------------------------------------------------------------------------- */

static bool is_of(const kvant_plan_entry *entry, const calibrate_session *session) {
    return entry->row.plugin == session->plugin && strcmp(entry->row.codec, session->codec) == 0;
}

/* A row needs an artifact if its codec says MISSING without one. */
static kvant_status needs_artifact(const kvant_plan *plan, uint32_t layer, uint32_t side, bool *needs,
                                   kvant_diag *diag) {
    const kvant_plan_entry *entry = &plan->entries[2 * (size_t)layer + side];
    kvant_codec *codec = NULL;
    *needs = entry->lacks_artifact;
    if (*needs) return KVANT_OK;
    kvant_status status = kvant_codec_open(plan, layer, side, &codec, diag);
    kvant_codec_close(codec);
    *needs = status == KVANT_ERROR_MISSING;
    return *needs ? KVANT_OK : status;
}

static kvant_status collect_setups(calibrate_session *session, kvant_diag *diag) {
    const kvant_plan *plan = session->plan;
    size_t rows = 2 * (size_t)plan->geometry.layer_count;
    session->setups = calloc(rows, sizeof *session->setups);
    if (session->setups == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (size_t i = 0; i < rows; i++)
        if (is_of(&plan->entries[i], session))
            session->setups[session->setup_count++] = &plan->entries[i].setup;
    return KVANT_OK;
}

static kvant_status add_session(const kvant_plan *plan, const kvant_plan_entry *entry,
                                calibrate_session *session, kvant_diag *diag) {
    const kvant_plugin *plugin = entry->row.plugin;
    *session = (calibrate_session){.plan = plan, .plugin = plugin, .codec = entry->row.codec, .wants = true};
    if (plugin->extension != NULL) session->calls = plugin->extension(KVANT_EXT_CALIBRATE);
    const kvant_calibrate *calls = session->calls;
    if (calls == NULL)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "artifact",
                          "codec %s (plugin %s) needs an artifact, and has no " KVANT_EXT_CALIBRATE
                          " to learn one with",
                          session->codec, plugin->descriptor->name);
    if (calls->struct_size < sizeof *calls || calls->begin == NULL || calls->feed == NULL ||
        calls->again == NULL || calls->end == NULL || calls->free == NULL)
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "",
                          "plugin %s: a call of " KVANT_EXT_CALIBRATE " is missing",
                          plugin->descriptor->name);
    return collect_setups(session, diag);
}

kvant_status calibrate_sessions_find(const kvant_plan *plan, calibrate_session **out, uint32_t *count,
                                     kvant_diag *diag) {
    size_t rows = 2 * (size_t)plan->geometry.layer_count;
    calibrate_session *sessions = calloc(rows, sizeof *sessions);
    kvant_status status =
        sessions != NULL ? KVANT_OK : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    uint32_t found = 0;
    for (size_t i = 0; i < rows && status == KVANT_OK; i++) {
        const kvant_plan_entry *entry = &plan->entries[i];
        bool known = false, needs = false;
        for (uint32_t k = 0; k < found; k++) known = known || is_of(entry, &sessions[k]);
        if (known) continue;
        status = needs_artifact(plan, (uint32_t)(i / 2), (uint32_t)(i % 2), &needs, diag);
        if (status == KVANT_OK && needs) status = add_session(plan, entry, &sessions[found++], diag);
    }
    if (status != KVANT_OK) {
        calibrate_sessions_free(sessions, found);
        return status;
    }
    *out = sessions;
    *count = found;
    return KVANT_OK;
}

void calibrate_sessions_free(calibrate_session *sessions, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (sessions[i].begun) sessions[i].calls->free(sessions[i].session);
        free(sessions[i].setups);
    }
    free(sessions);
}

bool calibrate_session_codes(const calibrate_session *session, uint32_t layer, bool codes[2]) {
    for (uint32_t side = 0; side < 2; side++)
        codes[side] = is_of(&session->plan->entries[2 * (size_t)layer + side], session);
    return codes[0] || codes[1];
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

/* "codec k2 (plugin kvquant)", or "codec kvquant". */
static void name_codec(const calibrate_session *session, char *text, size_t size) {
    const char *plugin = session->plugin->descriptor->name;
    bool alone = strcmp(plugin, session->codec) == 0;
    (void)snprintf(text, size, "codec %s%s%s%s", session->codec, alone ? "" : " (plugin ",
                   alone ? "" : plugin, alone ? "" : ")");
}

/* The plugin's word with the codec in front, and the file where there is one. */
static kvant_status blame(const calibrate_session *session, kvant_status status, const kvant_diag *why,
                          const char *call, const char *file, kvant_diag *diag) {
    char name[128];
    name_codec(session, name, sizeof name);
    if (status > 0) {
        status = KVANT_ERROR_PLUGIN_BROKEN;
        (void)kvant_fail(diag, status, "", "%s: %s returned a number that is no status", name, call);
    } else {
        (void)kvant_fail(diag, status, why->key, "%s: %s", name,
                         why->message[0] != '\0' ? why->message : kvant_status_text(status));
    }
    if (file != NULL && diag != NULL && diag->struct_size >= sizeof *diag)
        (void)snprintf(diag->file, sizeof diag->file, "%s", file);
    return status;
}

__attribute__((format(printf, 3, 4))) static kvant_status broken(const calibrate_session *session,
                                                                 kvant_diag *diag, const char *format, ...) {
    char message[1024];
    kvant_diag why = {.struct_size = sizeof why};
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    (void)kvant_fail(&why, KVANT_ERROR_PLUGIN_BROKEN, "", "%s", message);
    return blame(session, KVANT_ERROR_PLUGIN_BROKEN, &why, "", NULL, diag);
}

kvant_status calibrate_session_begin(calibrate_session *session, kvant_diag *diag) {
    kvant_diag why = {.struct_size = sizeof why};
    kvant_fp_state saved = kvant_fp_enter();
    kvant_status status =
        session->calls->begin(session->setups, session->setup_count, &session->session, &why);
    kvant_fp_leave(saved);
    session->begun = status == KVANT_OK;
    return status == KVANT_OK ? status : blame(session, status, &why, "begin", NULL, diag);
}

kvant_status calibrate_session_feed(calibrate_session *session, const kvant_sample *sample, const char *file,
                                    kvant_diag *diag) {
    kvant_diag why = {.struct_size = sizeof why};
    kvant_fp_state saved = kvant_fp_enter();
    kvant_status status = session->calls->feed(session->session, sample, &why);
    kvant_fp_leave(saved);
    if (status == KVANT_OK) return status;
    /* Where a codec does not say it itself. */
    if (strncmp(why.message, "layer ", 6) == 0) return blame(session, status, &why, "feed", file, diag);
    char message[sizeof why.message];
    (void)snprintf(message, sizeof message, "layer %u: %.2000s", sample->layer,
                   why.message[0] != '\0' ? why.message : kvant_status_text(status));
    memcpy(why.message, message, sizeof message);
    return blame(session, status, &why, "feed", file, diag);
}

kvant_status calibrate_session_again(calibrate_session *session, kvant_diag *diag) {
    kvant_diag why = {.struct_size = sizeof why};
    uint32_t again = 0;
    session->passes++;
    kvant_fp_state saved = kvant_fp_enter();
    kvant_status status = session->calls->again(session->session, &again, &why);
    kvant_fp_leave(saved);
    if (status != KVANT_OK) return blame(session, status, &why, "again", NULL, diag);
    session->wants = again != 0;
    if (session->wants && session->passes >= CALIBRATE_PASSES_MAX)
        return broken(session, diag, "it asks for the samples again after %d passes", CALIBRATE_PASSES_MAX);
    return KVANT_OK;
}

/* ---- Tensors ------------------------------------------------------------------------------------------- */

typedef struct tensor_sink {
    calibrate_session *session;
    kvant_artifact_builder *artifact;
    bool *learned; /* [layer_count][2] */
    kvant_status status;
    kvant_diag *diag;
} tensor_sink;

static kvant_status take_tensor(const tensor_sink *sink, uint32_t layer, uint32_t side,
                                const kvant_array *tensor) {
    const calibrate_session *session = sink->session;
    uint32_t layers = session->plan->geometry.layer_count;
    bool codes[2];
    if (tensor == NULL || tensor->name == NULL) return broken(session, sink->diag, "end: a tensor is NULL");
    if (layer >= layers || side > KVANT_SIDE_VALUE ||
        !(calibrate_session_codes(session, layer, codes) && codes[side]))
        return broken(session, sink->diag,
                      "end: the tensor \"%.64s\" is for layer %u, side %u, which it does not code",
                      tensor->name, layer, side);
    if (side == KVANT_SIDE_KEY && strcmp(tensor->name, "center") == 0)
        return broken(session, sink->diag,
                      "end: a tensor of keys is called \"center\", which is the host's name");
    kvant_diag why = {.struct_size = sizeof why};
    kvant_status status = kvant_artifact_builder_add(sink->artifact, layer, side, tensor, &why);
    if (status == KVANT_OK || status == KVANT_ERROR_MEMORY) return status;
    return broken(session, sink->diag, "end: layer %u %s: %s", layer, side_names[side], why.message);
}

static void sink_tensor(void *context, uint32_t layer, uint32_t side, const kvant_array *tensor) {
    tensor_sink *sink = context;
    if (sink->status != KVANT_OK) return;
    sink->status = take_tensor(sink, layer, side, tensor);
    if (sink->status != KVANT_OK) return;
    sink->learned[2 * (size_t)layer + side] = true;
    sink->session->tensors++;
}

/* What the tensors were learned for, row by row. */
static kvant_status say_codecs(const tensor_sink *sink) {
    const kvant_plan *plan = sink->session->plan;
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < 2 * plan->geometry.layer_count && status == KVANT_OK; i++) {
        char key[64];
        kvant_text codec = {0};
        if (!sink->learned[i]) continue;
        (void)snprintf(key, sizeof key, "layers.%u.%s.codec", i / 2, side_names[i % 2]);
        kvant_plan_put_learned(&codec, plan, &plan->entries[i].row);
        if (codec.failed)
            status = kvant_fail(sink->diag, KVANT_ERROR_MEMORY, "", "out of memory");
        else
            kvant_artifact_builder_say(sink->artifact, key, "%s", codec.data);
        kvant_text_free(&codec);
    }
    return status;
}

kvant_status calibrate_session_end(calibrate_session *session, kvant_artifact_builder *artifact,
                                   kvant_diag *diag) {
    kvant_diag why = {.struct_size = sizeof why};
    bool *learned = calloc(2 * (size_t)session->plan->geometry.layer_count, sizeof *learned);
    if (learned == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    tensor_sink sink = {.session = session, .artifact = artifact, .learned = learned, .diag = diag};
    kvant_fp_state saved = kvant_fp_enter();
    kvant_status status = session->calls->end(session->session, sink_tensor, &sink, &why);
    kvant_fp_leave(saved);
    if (status != KVANT_OK)
        status = blame(session, status, &why, "end", NULL, diag);
    else if (sink.status != KVANT_OK)
        status = sink.status == KVANT_ERROR_MEMORY ? kvant_fail(diag, sink.status, "", "out of memory")
                                                   : sink.status;
    else if (session->tensors == 0)
        status = broken(session, diag, "it needs an artifact, and end learned no tensor");
    if (status == KVANT_OK) status = say_codecs(&sink);
    free(learned);
    return status;
}
