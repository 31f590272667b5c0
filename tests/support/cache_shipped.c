/* See cache_shipped.h. */
#include "support/cache_shipped.h"

#include "support/data.h"
#include "support/test.h"

#include "data/dump.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rig_each_shipped(const char *source, uint32_t least,
                      void (*each)(const rig_wish *wish, const char *name)) {
    char directory[1024], pattern[2048], sample[2048];
    kvant_dump *dump = NULL;
    glob_t found;
    (void)snprintf(sample, sizeof sample, "%s/samples/sample.safetensors", source);
    (void)snprintf(directory, sizeof directory, "%s/pipelines", source);
    (void)snprintf(pattern, sizeof pattern, "%s/*.ini", directory);
    rig_ok(kvant_dump_open(sample, &dump, &rig_diag));
    const kvant_geometry *g = kvant_dump_geometry(dump);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= least);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        kvant_test_bytes file = kvant_test_read(found.gl_pathv[i]);
        char *text = calloc(file.size + 1, 1);
        assert_non_null(text);
        memcpy(text, file.bytes, file.size);
        print_message("%s\n", strrchr(found.gl_pathv[i], '/') + 1);
        each(&(rig_wish){.text = text,
                         .directory = directory,
                         .layers = g->layers,
                         .layer_count = g->layer_count,
                         .dtype = g->dtype,
                         .keys = g->keys,
                         .model = g->model},
             found.gl_pathv[i]);
        free(text);
        free(file.bytes);
    }
    globfree(&found);
    kvant_dump_close(dump);
}
