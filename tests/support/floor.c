/* See floor.h. */
#include "support/floor.h"

#include "support/test.h"
#include "support/tester.h"

#include "pipeline/plan.h"

#include <kvant/kit/view.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const uint32_t floor_dtypes[3] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};

/* ---- One opened codec ---------------------------------------------------------------------------------- */

unsigned char *floor_guarded(size_t size, unsigned char **memory) {
    size_t total = (size + 64 + 63) / 64 * 64 + 128;
    *memory = aligned_alloc(64, total);
    assert_non_null(*memory);
    memset(*memory, 0xa5, total);
    return *memory + 64;
}

void floor_check_guards(const unsigned char *memory, size_t size) {
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal(memory[i], 0xa5);
        assert_int_equal(memory[64 + size + i], 0xa5);
    }
}

static kvant_geometry geometry_of(const floor_wish *w, kvant_layer_geometry *layer) {
    *layer = (kvant_layer_geometry){.struct_size = sizeof *layer,
                                    .kv_heads = FLOOR_HEADS,
                                    .q_heads = FLOOR_HEADS,
                                    .total_kv_heads = FLOOR_HEADS,
                                    .key_dim = FLOOR_DIM,
                                    .value_dim = FLOOR_DIM,
                                    .rope = w->rope};
    return (kvant_geometry){.struct_size = sizeof(kvant_geometry),
                            .layer_count = 1,
                            .dtype = w->dtype,
                            .keys = w->keys,
                            .layers = layer};
}

floor_codec floor_open(floor_wish w) {
    floor_codec o = {.report = {.struct_size = sizeof o.report}};
    char text[512];
    kvant_layer_geometry layer;
    kvant_geometry geometry = geometry_of(&w, &layer);
    kvant_pipeline *pipeline = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)snprintf(text, sizeof text,
                   "[pipeline]\nblock_tokens = %d\n%s\n[layers]\nkey = %s\nvalue = tester\n", FLOOR_TOKENS,
                   w.head != NULL ? w.head : "", w.codec != NULL ? w.codec : "tester");
    if (kvant_pipeline_parse(text, strlen(text), "c.ini", NULL, &pipeline, &diag) != KVANT_OK ||
        kvant_pipeline_resolve(pipeline, &geometry, &o.plan, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    kvant_pipeline_free(pipeline);
    o.plan->entries[w.side].center = w.center;
    if (kvant_codec_open(o.plan, 0, w.side, &o.codec, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    o.capacity = kvant_codec_extent_max(o.codec);
    o.scratch_bytes = kvant_codec_scratch_bytes(o.codec);
    o.extent = floor_guarded(o.capacity, &o.extent_memory);
    o.scratch = floor_guarded(o.scratch_bytes, &o.scratch_memory);
    return o;
}

void floor_close(floor_codec *o) {
    floor_check_guards(o->extent_memory, o->capacity);
    floor_check_guards(o->scratch_memory, o->scratch_bytes);
    kvant_codec_close(o->codec);
    kvant_plan_free(o->plan);
    free(o->extent_memory);
    free(o->scratch_memory);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

/* Far from zero, an outlier channel, a constant one; exact in every dtype, in [token, head, channel]
 * order. */
void floor_rows(float *rows, uint32_t dtype) {
    uint64_t seed = 11;
    for (uint32_t i = 0; i < FLOOR_COUNT; i++) {
        double x = kvant_test_normal(&seed) + 3;
        uint32_t c = i % FLOOR_DIM;
        if (c == 2) x *= 40;
        if (c == 5) x = -7.25;
        unsigned char element[4];
        kvant_store_element(element, dtype, (float)x);
        rows[i] = kvant_load_element(element, dtype);
    }
}

unsigned char *floor_lay_out(const float *rows, kvant_view *view, uint32_t dtype, floor_strides s) {
    int64_t low = 0, high = 0;
    const int64_t ends[3] = {s.token * (FLOOR_TOKENS - 1), s.head * (FLOOR_HEADS - 1),
                             s.channel * (FLOOR_DIM - 1)};
    for (int i = 0; i < 3; i++) {
        if (ends[i] < 0)
            low += ends[i];
        else
            high += ends[i];
    }
    unsigned char *memory = malloc((size_t)(high - low) + 4);
    assert_non_null(memory);
    memset(memory, 0xff, (size_t)(high - low) + 4); /* NaN wherever nobody looks */
    *view = (kvant_view){.struct_size = sizeof *view,
                         .dtype = dtype,
                         .data = memory - low,
                         .tokens = FLOOR_TOKENS,
                         .heads = FLOOR_HEADS,
                         .head_dim = FLOOR_DIM,
                         .token_stride = s.token,
                         .head_stride = s.head,
                         .channel_stride = s.channel};
    for (uint32_t i = 0; i < FLOOR_COUNT; i++) {
        uint32_t t = i / (FLOOR_HEADS * FLOOR_DIM), h = i / FLOOR_DIM % FLOOR_HEADS, c = i % FLOOR_DIM;
        unsigned char *at =
            memory - low + (int64_t)t * s.token + (int64_t)h * s.head + (int64_t)c * s.channel;
        kvant_store_element(at, dtype, rows[i]);
    }
    return memory;
}

floor_strides floor_dense(uint32_t dtype) {
    int64_t width = kvant_element_bytes(dtype);
    return (floor_strides){width * FLOOR_DIM * FLOOR_HEADS, width * FLOOR_DIM, width};
}

kvant_status floor_encode(floor_codec *o, const kvant_view *view, const uint8_t *tags, kvant_diag *diag) {
    memset(o->extent, 0xee, o->capacity);
    memset(o->scratch, 0xdd, o->scratch_bytes);
    *diag = (kvant_diag){.struct_size = sizeof *diag};
    return kvant_codec_encode(o->codec, view, FLOOR_FIRST, tags, o->extent, o->capacity, o->scratch,
                              &o->report, diag);
}

void floor_encode_floats(floor_codec *o, const float *rows, uint32_t dtype) {
    kvant_view view;
    kvant_diag diag;
    unsigned char *memory = floor_lay_out(rows, &view, dtype, floor_dense(dtype));
    if (floor_encode(o, &view, NULL, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    free(memory);
}

/* Decodes to floats, in poisoned memory. */
void floor_decode_floats(floor_codec *o, float *rows) {
    kvant_mutable_view view = {.struct_size = sizeof view,
                               .dtype = KVANT_DTYPE_F32,
                               .data = rows,
                               .tokens = FLOOR_TOKENS,
                               .heads = FLOOR_HEADS,
                               .head_dim = FLOOR_DIM,
                               .token_stride = 4 * FLOOR_HEADS * FLOOR_DIM,
                               .head_stride = 4 * FLOOR_DIM,
                               .channel_stride = 4};
    kvant_diag diag = {.struct_size = sizeof diag};
    memset(rows, 0xff, FLOOR_COUNT * sizeof *rows);
    memset(o->scratch, 0xdd, o->scratch_bytes);
    if (kvant_codec_decode(o->codec, o->extent, o->report.size, FLOOR_FIRST, NULL, &view, o->scratch,
                           &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
}

int floor_setup(void **state) {
    (void)state;
    tester_register();
    tester = (tester_behaviour){0};
    return 0;
}
