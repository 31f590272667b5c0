/* Every codec beside every other: keys by one and values by the other, on real rows, with what each must
 * learn. A codec gives the same bytes and the same floats whatever its companion is. */
#include "support/data.h"
#include "support/test.h"

#include <data/dump.h>
#include <kvant/kit/view.h>
#include <kvant/kvant.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256, LAYERS = 4, SINKS = 2 };

/* What a section needs beside the name of the plugin. */
static const struct {
    const char *name;
    const char *parameters;
    const char *sections; /* behind its own */
    bool learns;
} codecs[] = {
    {"hack", "", "", false},
    {"kivi", "bits = 2\n", "", false},
    {"kvquant", "", "", true},
    {"nvfp4", "", "", false},
    {"raw", "", "", false},
    {"triaxial", "space = roles\ntags = roles\n", "[tags roles]\ninst = 4\ntool_call = 4\ndefault = 2\n",
     false},
    {"turboquant", "", "", false},
    {"uniform", "", "", false},
};
enum { CODECS = sizeof codecs / sizeof codecs[0] };

/* One extent and what it decodes to. */
typedef struct coded {
    unsigned char *bytes;
    float *rows;
    size_t size, count;
} coded;

static kvant_dump *dump;
static coded alone[CODECS][LAYERS][2];

static void die_unless(kvant_status status, const kvant_diag *diag) {
    if (status != KVANT_OK) fail_msg("%s: %s", diag->file, diag->message);
}

/* Even layers have codec a on keys and b on values, odd ones the other way round. */
static kvant_pipeline *make_pipeline(uint32_t a, uint32_t b, const char *artifact) {
    char text[4096];
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_pipeline *pipeline = NULL;
    int size = snprintf(text, sizeof text,
                        "[pipeline]\nname = mixed\nblock_tokens = %d\nsinks = %d\nrecent = 0\n%s%s\n", BLOCK,
                        SINKS, artifact != NULL ? "artifact = " : "", artifact != NULL ? artifact : "");
    for (uint32_t i = 0; i < (a == b ? 1 : 2); i++) {
        uint32_t c = i == 0 ? a : b;
        size += snprintf(text + size, sizeof text - (size_t)size, "[codec c%u]\nplugin = %s\n%s%s", c,
                         codecs[c].name, codecs[c].parameters, codecs[c].sections);
    }
    size += snprintf(text + size, sizeof text - (size_t)size,
                     "[layers]\nkey = c%u\nvalue = c%u\n[layers 1, 3]\nkey = c%u\nvalue = c%u\n", a, b, b, a);
    die_unless(
        kvant_pipeline_parse(text, (size_t)size, "mixed.ini", kvant_test_directory(), &pipeline, &diag),
        &diag);
    return pipeline;
}

/* The plan, after learning what its codecs need. */
static kvant_plan *make_plan(uint32_t a, uint32_t b) {
    kvant_diag diag = {.struct_size = sizeof diag};
    bool learns = codecs[a].learns || codecs[b].learns;
    kvant_pipeline *pipeline = make_pipeline(a, b, learns ? "mixed.safetensors" : NULL);
    if (learns) {
        const kvant_dump_source text = {.struct_size = sizeof text,
                                        .name = KVANT_TEST_SOURCE_DIR "/samples/sample_prose.safetensors"};
        kvant_calibration *learned = NULL;
        char file[512];
        (void)snprintf(file, sizeof file, "%s/mixed.safetensors", kvant_test_directory());
        die_unless(kvant_calibration_run(pipeline, &text, 1, NULL, &learned, &diag), &diag);
        die_unless(kvant_calibration_write(learned, file, &diag), &diag);
        kvant_calibration_free(learned);
    }
    kvant_plan *plan = NULL;
    die_unless(kvant_pipeline_resolve(pipeline, kvant_dump_geometry(dump), &plan, &diag), &diag);
    kvant_pipeline_free(pipeline);
    return plan;
}

/* Block 0 of the dump through one row of a plan. */
static coded code_row(const kvant_plan *plan, uint32_t layer, uint32_t side) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_codec *codec = NULL;
    kvant_view whole;
    die_unless(kvant_codec_open(plan, layer, side, &codec, &diag), &diag);
    assert_true(kvant_dump_view(dump, layer, side, &whole));
    kvant_view rows = kvant_view_slice(&whole, 0, BLOCK);
    size_t capacity = kvant_codec_extent_max(codec), room = (capacity + 4095) / 4096 * 4096;
    coded c = {.bytes = aligned_alloc(4096, room), .count = (size_t)BLOCK * rows.heads * rows.head_dim};
    c.rows = malloc(c.count * sizeof *c.rows);
    void *scratch = aligned_alloc(64, (kvant_codec_scratch_bytes(codec) + 127) / 64 * 64);
    assert_true(c.bytes != NULL && c.rows != NULL && scratch != NULL);
    memset(c.bytes, 0x5a, room);
    memset(c.rows, 0xff, c.count * sizeof *c.rows);
    kvant_encode_report report = {.struct_size = sizeof report};
    die_unless(kvant_codec_encode(codec, &rows, 0, kvant_dump_describe(dump)->tags, c.bytes, capacity,
                                  scratch, &report, &diag),
               &diag);
    c.size = (size_t)report.size;
    const kvant_mutable_view out = {.struct_size = sizeof out,
                                    .dtype = KVANT_DTYPE_F32,
                                    .data = c.rows,
                                    .tokens = BLOCK,
                                    .heads = rows.heads,
                                    .head_dim = rows.head_dim,
                                    .token_stride = (int64_t)4 * rows.heads * rows.head_dim,
                                    .head_stride = (int64_t)4 * rows.head_dim,
                                    .channel_stride = 4};
    die_unless(kvant_codec_decode(codec, c.bytes, c.size, 0, NULL, &out, scratch, &diag), &diag);
    free(scratch);
    kvant_codec_close(codec);
    return c;
}

static void coded_free(coded *c) {
    free(c->bytes);
    free(c->rows);
}

/* The floats are near the rows: NMSE below that of forgetting them, and not 0 but for the lossless. */
static void check_error(uint32_t codec, uint32_t layer, uint32_t side, const coded *c) {
    kvant_view whole;
    double energy = 0, error = 0;
    assert_true(kvant_dump_view(dump, layer, side, &whole));
    for (uint32_t t = SINKS; t < BLOCK; t++)
        for (uint32_t h = 0; h < whole.heads; h++) {
            float row[1024];
            kvant_load_row(&whole, t, h, row);
            for (uint32_t i = 0; i < whole.head_dim; i++) {
                double e =
                    (double)c->rows[((size_t)t * whole.heads + h) * whole.head_dim + i] - (double)row[i];
                energy += (double)row[i] * (double)row[i];
                error += e * e;
            }
        }
    double nmse = error / energy;
    if (strcmp(codecs[codec].name, "raw") == 0)
        kvant_assert_close(nmse, 0, 0);
    else if (!(nmse > 1e-6 && nmse < 0.65))
        fail_msg("%s on layer %u, side %u: NMSE %g", codecs[codec].name, layer, side, nmse);
}

/* Opens the dump and codes it with each codec alone, once. */
static void prepare(void) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (dump != NULL) return;
    die_unless(kvant_dump_open(KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors", &dump, &diag), &diag);
    for (uint32_t c = 0; c < CODECS; c++) {
        kvant_plan *plan = make_plan(c, c);
        for (uint32_t i = 0; i < 2 * LAYERS; i++) alone[c][i / 2][i % 2] = code_row(plan, i / 2, i % 2);
        kvant_plan_free(plan);
    }
}

static void each_alone_is_near_its_rows(void **state) {
    (void)state;
    prepare();
    for (uint32_t c = 0; c < CODECS; c++)
        for (uint32_t i = 0; i < 2 * LAYERS; i++) check_error(c, i / 2, i % 2, &alone[c][i / 2][i % 2]);
}

static void every_ordered_pair_keeps_to_itself(void **state) {
    (void)state;
    prepare();
    for (uint32_t a = 0; a < CODECS; a++)
        for (uint32_t b = a + 1; b < CODECS; b++) {
            kvant_plan *plan = make_plan(a, b);
            for (uint32_t i = 0; i < 2 * LAYERS; i++) {
                uint32_t layer = i / 2, side = i % 2, own = (layer + side) % 2 == 0 ? a : b;
                coded got = code_row(plan, layer, side);
                const coded *want = &alone[own][layer][side];
                if (got.size != want->size || memcmp(got.bytes, want->bytes, got.size) != 0 ||
                    memcmp(got.rows, want->rows, got.count * sizeof *got.rows) != 0)
                    fail_msg("layer %u, side %u: %s beside %s differs from %s alone", layer, side,
                             codecs[own].name, codecs[own == a ? b : a].name, codecs[own].name);
                coded_free(&got);
            }
            kvant_plan_free(plan);
        }
}

static void count_codec(void *context, const kvant_plugin_entry *entry) {
    uint32_t *count = context;
    if (entry->plugin == NULL) return;
    for (uint32_t c = 0; c < CODECS; c++)
        if (strcmp(codecs[c].name, entry->name) == 0) {
            (*count)++;
            return;
        }
    fail_msg("%s is not among the pairs", entry->name);
}

static void no_codec_is_left_out(void **state) {
    uint32_t count = 0;
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)state;
    die_unless(kvant_plugin_list(count_codec, &count, &diag), &diag);
    assert_int_equal(count, CODECS);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_codec_is_left_out),
        cmocka_unit_test(each_alone_is_near_its_rows),
        cmocka_unit_test(every_ordered_pair_keeps_to_itself),
    };
    return kvant_run_tests(tests, argc, argv);
}
