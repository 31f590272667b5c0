/* The INI reader, and the pipeline reader behind it. */
#include "fuzz.h"
#include "pipeline/ini.h"

#include <kvant/kvant.h>

#include <stdbool.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_ini *ini = NULL;
    int32_t lines = 1;
    for (size_t i = 0; i < size; i++) lines += data[i] == '\n';
    kvant_status status = kvant_ini_parse(text, size, "fuzz.ini", &ini, &diag);
    kvant_fuzz_check(status, &diag);
    if (status != KVANT_OK) {
        if (diag.line < 0 || diag.line > lines) abort();
        return 0;
    }
    for (uint32_t i = 0; i < ini->section_count; i++)
        if (ini->sections[i].first + ini->sections[i].count > ini->entry_count) abort();
    kvant_ini_free(ini);
    kvant_pipeline *pipeline = NULL;
    status = kvant_pipeline_parse(text, size, "fuzz.ini", NULL, &pipeline, &diag);
    /* A plugin that is not found is told with every path tried, one a line. */
    if (status != KVANT_ERROR_PLUGIN_NOT_FOUND) kvant_fuzz_check(status, &diag);
    if (status != KVANT_OK && (diag.line < 0 || diag.line > lines)) abort();
    kvant_pipeline_free(pipeline);
    return 0;
}
