/* Whether an artifact's tensors were learned for the codec of a row: its metadata
 * "layers.<l>.<key|value>.codec" against the same text of the pipeline's codec. See plan.h. */
#include "pipeline/plan.h"

#include "base/text.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>

static const char *const side_names[2] = {"key", "value"};

enum { FORMAT_SIZE = 6 }; /* "FMT ", with its quotes: may hold blanks */

void kvant_plan_put_learned(kvant_text *text, const kvant_plan *plan, const kvant_row *row) {
    kvant_plan_put_format(text, row->plugin->descriptor);
    if (row->setup->side == KVANT_SIDE_KEY)
        kvant_text_printf(text, " key_center=%s", plan->key_center != 0 ? "artifact" : "none");
    kvant_plan_put_values(text, row, KVANT_PARAM_UNLEARNED);
}

/* The means of keys are the host's and suit every codec. */
static bool has_tensors_of_a_codec(const kvant_setup *setup) {
    for (uint32_t i = 0; i < setup->tensor_count; i++)
        if (setup->side != KVANT_SIDE_KEY || strcmp(setup->tensors[i].name, "center") != 0) return true;
    return false;
}

/* The word " name=..." of a codec's text that has this name; its size in *size, 0 if there is none. */
static const char *find_word(const char *text, const char *name, size_t name_size, size_t *size) {
    for (const char *at = text + strcspn(text, " "); *at == ' '; at += strcspn(at, " ")) {
        at++;
        if (strncmp(at, name, name_size) != 0 || at[name_size] != '=') continue;
        *size = strcspn(at, " ");
        return at;
    }
    *size = 0;
    return "";
}

/* Names the first word of `text` that `other` lacks or says otherwise. */
static bool name_difference(const char *text, const char *other, char name[64], const char *words[2],
                            int sizes[2]) {
    for (const char *at = text + strcspn(text, " "); *at == ' '; at += strcspn(at, " ")) {
        at++;
        size_t size = strcspn(at, " "), name_size = strcspn(at, "= "), other_size;
        const char *same = find_word(other, at, name_size, &other_size);
        if (size == other_size && memcmp(at, same, size) == 0) continue;
        words[0] = at;
        words[1] = same;
        sizes[0] = size < 200 ? (int)size : 200;
        sizes[1] = other_size < 200 ? (int)other_size : 200;
        (void)snprintf(name, 64, "%.*s", name_size < 63 ? (int)name_size : 63, at);
        return true;
    }
    return false;
}

static kvant_status refuse_words(const kvant_plan *plan, const char *learned, const char *asked,
                                 kvant_diag *diag) {
    const char *file = kvant_artifact_file(plan->artifact), *words[2];
    char name[64] = "";
    int sizes[2];
    if (name_difference(asked, learned, name, words, sizes))
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, name,
                          "the artifact %.300s was learned for %.*s%s, and the pipeline says %.*s", file,
                          sizes[1], words[1], sizes[1] == 0 ? "another default" : "", sizes[0], words[0]);
    if (name_difference(learned, asked, name, words, sizes))
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, name,
                          "the artifact %.300s was learned for %.*s, which the codec does not have now", file,
                          sizes[0], words[0]);
    return kvant_fail(diag, KVANT_ERROR_MISMATCH, "", "the artifact %.300s was learned for %.200s", file,
                      learned);
}

static kvant_status compare(const kvant_plan *plan, const char *learned, const char *asked,
                            kvant_diag *diag) {
    if (strcmp(learned, asked) == 0) return KVANT_OK;
    if (strncmp(learned, asked, FORMAT_SIZE) == 0)
        return refuse_words(plan, learned + FORMAT_SIZE, asked + FORMAT_SIZE, diag);
    return kvant_fail(diag, KVANT_ERROR_MISMATCH, "artifact",
                      "the artifact %.300s was learned for the format %.6s, and this codec's is %.6s",
                      kvant_artifact_file(plan->artifact), learned, asked);
}

/* What a terminal would act on becomes '?'. */
static char *printable(const char *text) {
    char *copy = strdup(text);
    for (char *c = copy; c != NULL && *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    return copy;
}

kvant_status kvant_plan_check_learned(const kvant_plan *plan, const kvant_plugin *plugin,
                                      const kvant_setup *setup, kvant_diag *diag) {
    if (plan->artifact == NULL || !has_tensors_of_a_codec(setup)) return KVANT_OK;
    /* A codec that learns nothing does not look at tensors. */
    if (plugin->extension == NULL || plugin->extension(KVANT_EXT_CALIBRATE) == NULL) return KVANT_OK;
    char key[64];
    (void)snprintf(key, sizeof key, "layers.%u.%s.codec", setup->layer, side_names[setup->side]);
    const char *learned = kvant_artifact_metadata(plan->artifact, key);
    if (learned == NULL) return KVANT_OK;
    kvant_row row = {.struct_size = sizeof row, .plugin = plugin, .setup = setup};
    kvant_text asked = {0};
    kvant_plan_put_learned(&asked, plan, &row);
    char *copy = printable(learned);
    kvant_status status = asked.failed || copy == NULL
                              ? kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory")
                              : compare(plan, copy, asked.data, diag);
    kvant_text_free(&asked);
    free(copy);
    return status;
}
