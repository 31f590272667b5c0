/* Pipelines calibrated on test dumps through the library, for tests of calibration. */
#ifndef KVANT_TEST_LEARNING_H
#define KVANT_TEST_LEARNING_H

#include "support/write_dump.h"

#include <kvant/kvant.h>

enum { LEARNING_TEXTS = 4 };

typedef struct learning {
    kvant_pipeline *pipeline;
    kvant_calibration *calibration;
    kvant_calibration_info info;
    kvant_diag diag;
} learning;

/* A text called "p.ini", whose artifacts lie in kvant_test_directory(), on dumps that are written there as
 * text0.safetensors, text1.safetensors, ... learning_run fails the test if it cannot; free with
 * learning_free. */
kvant_status learning_try(const char *text, const kvant_test_dump *dumps, uint32_t count, learning *l);
learning learning_run(const char *text, const kvant_test_dump *dumps, uint32_t count);
void learning_free(learning *l);

/* The same must be refused with this status, and a message that contains `says`, about `file` ("" = none; the
 * base name is enough); no session is left open. */
void learning_refused(const char *text, const kvant_test_dump *dumps, uint32_t count, kvant_status status,
                      const char *file, const char *says);

/* A path in kvant_test_directory(), the same string for the same name. */
const char *learning_path(const char *name);

/* The text of a pipeline with codec c = learner on both sides; `head` are lines of [pipeline], `codec` of
 * [codec c]. A string of the call before last is overwritten. */
const char *learning_text(const char *head, const char *codec);

#endif
