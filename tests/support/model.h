/* A small model, and pipelines resolved on it, for tests of plans. */
#ifndef KVANT_TEST_MODEL_H
#define KVANT_TEST_MODEL_H

#include <kvant/kvant.h>

enum { TEST_LAYERS = 6, TEST_HEADS = 2, TEST_DIM = 16 };

typedef struct test_model {
    kvant_geometry geometry;
    kvant_layer_geometry layers[TEST_LAYERS];
    kvant_rope rope;
    double frequency[TEST_DIM / 2];
} test_model;

/* f16, keys after RoPE, values 8 channels wider than keys. Points into itself: does not move. */
void test_model_make(test_model *m);

/* A test's setup: registers the test codecs and resets their behaviour. */
int test_model_setup(void **state);

/* Resolves a text called "p.ini", which must be right in itself; *plan only where that works. */
kvant_status test_resolve_on(const char *text, const kvant_geometry *geometry, const char *directory,
                             kvant_plan **plan, kvant_diag *diag);

/* On the model, which then goes; must work. */
kvant_plan *test_resolve(const char *text);

/* On a geometry (NULL = the model) the text must be refused so. line < 0: without a place in the text. */
void test_refused(const char *text, const kvant_geometry *geometry, kvant_status status, int line,
                  const char *says);

#endif
