/* Every pipeline that is shipped and needs an artifact ships it, learned from
 * samples/sample_prose.safetensors: learned again it has the same bytes, and it serves the other sample. */
#include "support/data.h"
#include "support/test.h"

#include "data/dump.h"
#include "pipeline/pipeline.h"

#include <kvant/kvant.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIPELINES    KVANT_TEST_SOURCE_DIR "/pipelines"
#define SAMPLE       KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors"
#define SAMPLE_PROSE KVANT_TEST_SOURCE_DIR "/samples/sample_prose.safetensors"

enum { SIZE_LIMIT = 1 << 20 };

static bool ends_with(const char *text, const char *end) {
    size_t size = strlen(text), tail = strlen(end);
    return size > tail && strcmp(text + size - tail, end) == 0;
}

/* Resolves on the other sample and opens every codec. */
static void serves(const kvant_pipeline *pipeline, const char *name) {
    kvant_dump *dump = NULL;
    kvant_plan *plan = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = kvant_dump_open(SAMPLE, &dump, &diag);
    if (status == KVANT_OK)
        status = kvant_pipeline_resolve(pipeline, kvant_dump_geometry(dump), &plan, &diag);
    for (uint32_t i = 0; i < 8 && status == KVANT_OK; i++) {
        kvant_codec *codec = NULL;
        status = kvant_codec_open(plan, i / 2, i % 2, &codec, &diag);
        kvant_codec_close(codec);
    }
    if (status != KVANT_OK) fail_msg("%s: %s", name, diag.message);
    kvant_plan_free(plan);
    kvant_dump_close(dump);
}

static void relearn(const kvant_pipeline *pipeline, const char *name) {
    kvant_dump_source text = {.struct_size = sizeof text, .name = SAMPLE_PROSE};
    kvant_calibration *learned = NULL;
    kvant_calibration_info info = {.struct_size = sizeof info};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_test_bytes shipped = kvant_test_read(pipeline->artifact);
    if (kvant_calibration_run(pipeline, &text, 1, NULL, &learned, &diag) != KVANT_OK)
        fail_msg("%s: %s: %s", name, diag.file, diag.message);
    assert_int_equal(kvant_calibration_describe(learned, &info), KVANT_OK);
    if (shipped.size != info.size || memcmp(shipped.bytes, info.bytes, shipped.size) != 0)
        fail_msg("%s: %s is not what `kvant calibrate` learns from %s now", name, pipeline->artifact,
                 SAMPLE_PROSE);
    assert_true(shipped.size < SIZE_LIMIT);
    kvant_calibration_free(learned);
    free(shipped.bytes);
}

static void shipped_artifacts_are_learned_from_the_sample(void **state) {
    (void)state;
    int found = 0;
    struct dirent *entry;
    DIR *folder = opendir(PIPELINES);
    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL) {
        char file[512], artifact[512];
        kvant_pipeline *pipeline = NULL;
        kvant_diag diag = {.struct_size = sizeof diag};
        if (!ends_with(entry->d_name, ".ini")) continue;
        (void)snprintf(file, sizeof file, PIPELINES "/%s", entry->d_name);
        (void)snprintf(artifact, sizeof artifact, PIPELINES "/artifacts/%.*s.safetensors",
                       (int)(strlen(entry->d_name) - 4), entry->d_name);
        if (kvant_pipeline_load(file, &pipeline, &diag) != KVANT_OK)
            fail_msg("%s:%d: %s", diag.file, (int)diag.line, diag.message);
        if (pipeline->artifact != NULL) {
            assert_string_equal(pipeline->artifact, artifact);
            relearn(pipeline, entry->d_name);
            serves(pipeline, entry->d_name);
            found++;
        }
        kvant_pipeline_free(pipeline);
    }
    closedir(folder);
    assert_true(found > 0);
}

/* And no artifact lies there that no pipeline names. */
static void every_artifact_has_its_pipeline(void **state) {
    (void)state;
    struct dirent *entry;
    DIR *folder = opendir(PIPELINES "/artifacts");
    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL) {
        char file[512];
        if (!ends_with(entry->d_name, ".safetensors")) continue;
        (void)snprintf(file, sizeof file, PIPELINES "/%.*s.ini",
                       (int)(strlen(entry->d_name) - strlen(".safetensors")), entry->d_name);
        FILE *stream = fopen(file, "r");
        if (stream == NULL) fail_msg("%s belongs to no pipeline", entry->d_name);
        fclose(stream);
    }
    closedir(folder);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(shipped_artifacts_are_learned_from_the_sample),
                                              cmocka_unit_test(every_artifact_has_its_pipeline)};
    return kvant_run_tests(tests, argc, argv);
}
