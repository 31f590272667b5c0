/* See learning.h. */
#include "support/learning.h"

#include "support/data.h"
#include "support/learner.h"
#include "support/session.h"
#include "support/test.h"

#include <stdio.h>
#include <string.h>

kvant_status learning_try(const char *text, const kvant_test_dump *dumps, uint32_t count, learning *l) {
    kvant_dump_source sources[LEARNING_TEXTS];
    *l = (learning){.diag.struct_size = sizeof l->diag, .info.struct_size = sizeof l->info};
    assert_true(count <= LEARNING_TEXTS);
    for (uint32_t i = 0; i < count; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "text%u.safetensors", i);
        sources[i] = (kvant_dump_source){.struct_size = sizeof sources[i], .name = path(name)};
        kvant_test_dump_write(&dumps[i], sources[i].name);
    }
    if (kvant_pipeline_parse(text, strlen(text), "p.ini", kvant_test_directory(), &l->pipeline, &l->diag) !=
        KVANT_OK)
        fail_msg("%s:%d: %s", l->diag.file, (int)l->diag.line, l->diag.message);
    kvant_status status = kvant_calibration_run(l->pipeline, sources, count, NULL, &l->calibration, &l->diag);
    if ((status == KVANT_OK) != (l->calibration != NULL)) fail_msg("status %d and a result", (int)status);
    if (status == KVANT_OK) assert_int_equal(kvant_calibration_describe(l->calibration, &l->info), KVANT_OK);
    assert_int_equal(learner.open_sessions, 0);
    return status;
}

learning learning_run(const char *text, const kvant_test_dump *dumps, uint32_t count) {
    learning l;
    kvant_status status = learning_try(text, dumps, count, &l);
    if (status != KVANT_OK) fail_msg("%d: %s: %s", (int)status, l.diag.file, l.diag.message);
    return l;
}

void learning_free(learning *l) {
    kvant_calibration_free(l->calibration);
    kvant_pipeline_free(l->pipeline);
}

void learning_refused(const char *text, const kvant_test_dump *dumps, uint32_t count, kvant_status status,
                      const char *file, const char *says) {
    learning l;
    kvant_status got = learning_try(text, dumps, count, &l);
    learning_free(&l);
    size_t size = strlen(file), full = strlen(l.diag.file);
    bool right_file = size <= full && (size > 0 || full == 0) && strcmp(l.diag.file + full - size, file) == 0;
    if (got != status || !right_file || strstr(l.diag.message, says) == NULL ||
        strchr(l.diag.message, '\n') != NULL)
        fail_msg("status %d, %s: %s\nexpected %d, %s, %s", (int)got, l.diag.file, l.diag.message, (int)status,
                 file, says);
}

const char *learning_path(const char *name) {
    return path(name);
}

const char *learning_text(const char *head, const char *codec) {
    static char texts[2][1024];
    static unsigned next;
    char *text = texts[next++ % 2];
    (void)snprintf(
        text, sizeof texts[0],
        "[pipeline]\nblock_tokens = 32\n%s[codec c]\nplugin = learner\n%s[layers]\nkey = c\nvalue = c\n",
        head, codec);
    return text;
}
