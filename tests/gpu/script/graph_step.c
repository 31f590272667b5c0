/* A step of a layer - new blocks of both sides encoded, then attention over them and the older ones -
 * captured into a CUDA graph once and replayed over other jobs, beside the same step launched call by call:
 * the same bits.
 *
 * The driver is whatever is found: a real one, or the interpreter's. */
#include "device_bed.h"

#include "support/sanitized.h"
#include "support/test.h"

#include <gpu_graph.h>
#include <kvant/kit/view.h>

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 32,
    BLOCKS = 7,
    STEPS = 5,
    NEW_MOST = 2,
    SEQUENCES = 3,
    POSITIONS = 4,
    TAIL_MOST = 20,
    POISON = 0xA5
};

#define OK(call) check((call), &diag, #call)

static void check(kvant_status status, const kvant_diag *diag, const char *what) {
    if (status != KVANT_OK) fail_msg("%s: %d: %s", what, status, diag->message);
}

/* One of the two ways: memory of its own, so that neither sees what the other wrote. */
typedef struct way {
    kvant_device_work *work;
    uint64_t extents[2], decoded[2], outputs, log_sum_exp;
} way;

typedef struct scene {
    kvant_device *device;
    const gpu_driver *driver;
    gpu_graph_calls calls;
    gpu_stream stream;
    bed *host;
    device_bed *there; /* its raw rows and extents, and the layer */
    way captured, eager;
    uint64_t queries;
    uint32_t q_heads;
    size_t extent_bytes[2], decoded_bytes[2], output_bytes, sum_bytes;
    uint32_t encoded; /* blocks so far */
} scene;

static void *pointer(uint64_t address) {
    return (void *)(uintptr_t)address;
}

static void fill(scene *s, uint64_t at, int value, size_t bytes) {
    kvant_diag diag = {.struct_size = sizeof diag};
    unsigned char *memory = malloc(bytes);
    assert_non_null(memory);
    memset(memory, value, bytes);
    OK(kvant_device_write(s->device, at, memory, bytes, s->stream, &diag));
    free(memory);
}

static void *fetch(scene *s, uint64_t at, size_t bytes) {
    kvant_diag diag = {.struct_size = sizeof diag};
    void *memory = malloc(bytes);
    assert_non_null(memory);
    OK(kvant_device_read(s->device, memory, at, bytes, s->stream, &diag));
    return memory;
}

static void open_way(scene *s, way *w) {
    kvant_diag diag = {.struct_size = sizeof diag};
    const kvant_device_limits limits = {.struct_size = sizeof limits,
                                        .blocks = NEW_MOST,
                                        .sequences = SEQUENCES,
                                        .positions = POSITIONS,
                                        .runs = SEQUENCES,
                                        .span_tokens = 2 * BLOCK,
                                        .references = SEQUENCES * BLOCKS};
    OK(kvant_device_work_open(s->there->layer, &limits, 0, &w->work, &diag));
    for (uint32_t side = 0; side < 2; side++) {
        OK(kvant_device_alloc(s->device, s->extent_bytes[side], &w->extents[side], &diag));
        OK(kvant_device_alloc(s->device, s->decoded_bytes[side], &w->decoded[side], &diag));
        fill(s, w->extents[side], POISON, s->extent_bytes[side]);
    }
    OK(kvant_device_alloc(s->device, s->output_bytes, &w->outputs, &diag));
    OK(kvant_device_alloc(s->device, s->sum_bytes, &w->log_sum_exp, &diag));
}

static void close_way(scene *s, way *w) {
    kvant_device_work_close(w->work);
    for (uint32_t side = 0; side < 2; side++) {
        kvant_device_free(s->device, w->extents[side]);
        kvant_device_free(s->device, w->decoded[side]);
    }
    kvant_device_free(s->device, w->outputs);
    kvant_device_free(s->device, w->log_sum_exp);
}

static void open_scene(scene *s, const char *key, const char *value, uint32_t dtype, uint32_t attends) {
    kvant_diag diag = {.struct_size = sizeof diag};
    memset(s, 0, sizeof *s);
    s->device = device_bed_device();
    OK(gpu_driver_find(&s->driver, &diag));
    OK(gpu_graph_find(&s->calls, &diag));
    OK(gpu_device_enter(&s->device->gpu, &diag));
    assert_int_equal(s->driver->stream_create(&s->stream, 1), GPU_SUCCESS);
    s->host = bed_open(
        &(bed_wish){.key = key,
                    .value = value,
                    .head = "on_nonfinite = saturate\n[codec four]\nplugin = kivi\nbits = 4\ngroup = 32\n"
                            "[codec two]\nplugin = kivi\nbits = 2\ngroup = 32",
                    .tokens = BLOCKS * BLOCK + TAIL_MOST,
                    .dtype = dtype,
                    .block_tokens = BLOCK});
    s->there = device_bed_open(s->device, s->host, attends);
    const bed_wish *w = &s->host->wish;
    s->q_heads = w->kv_heads * w->group;
    for (uint32_t side = 0; side < 2; side++) {
        s->extent_bytes[side] = BLOCKS * bed_extent_stride(s->host, side);
        s->decoded_bytes[side] =
            (size_t)NEW_MOST * BLOCK * w->kv_heads * bed_dim(s->host, side) * sizeof(float);
    }
    s->output_bytes = (size_t)POSITIONS * s->q_heads * w->value_dim * sizeof(float);
    s->sum_bytes = (size_t)POSITIONS * s->q_heads * sizeof(float);
    size_t count = (size_t)STEPS * POSITIONS * s->q_heads * w->key_dim, width = kvant_element_bytes(w->dtype);
    unsigned char *queries = malloc(count * width);
    uint64_t seed = 77;
    assert_non_null(queries);
    for (size_t i = 0; i < count; i++)
        kvant_store_element(queries + i * width, w->dtype, (float)kvant_test_normal(&seed));
    OK(kvant_device_alloc(s->device, count * width, &s->queries, &diag));
    OK(kvant_device_write(s->device, s->queries, queries, count * width, s->stream, &diag));
    free(queries);
    open_way(s, &s->captured);
    open_way(s, &s->eager);
}

static void close_scene(scene *s) {
    close_way(s, &s->captured);
    close_way(s, &s->eager);
    kvant_device_free(s->device, s->queries);
    device_bed_close(s->there);
    bed_close(s->host);
    (void)s->driver->stream_destroy(s->stream);
    gpu_device_leave(&s->device->gpu);
    kvant_device_close(s->device);
}

/* ---- A step -------------------------------------------------------------------------------------------- */

static kvant_view rows_there(const scene *s, uint32_t side, uint32_t first, uint32_t tokens) {
    const bed_wish *w = &s->host->wish;
    size_t row = (size_t)w->kv_heads * bed_dim(s->host, side) * kvant_element_bytes(w->dtype);
    return kvant_rows_view(pointer(s->there->raw[side] + first * row), w->dtype, tokens, w->kv_heads,
                           bed_dim(s->host, side));
}

/* Blocks [encoded, encoded + count) of a side to their extents; and some of them back, as floats. */
static void prepare_codec(scene *s, way *w, uint32_t side, uint32_t count) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_device_block blocks[NEW_MOST];
    kvant_device_extent extents[NEW_MOST];
    kvant_view views[NEW_MOST];
    kvant_mutable_view floats[NEW_MOST];
    uint32_t dim = bed_dim(s->host, side), heads = s->host->wish.kv_heads;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t k = s->encoded + i;
        uint64_t extent = w->extents[side] + k * bed_extent_stride(s->host, side);
        int64_t row = (int64_t)sizeof(float) * dim;
        views[i] = rows_there(s, side, k * BLOCK, BLOCK);
        floats[i] = (kvant_mutable_view){
            .struct_size = sizeof floats[i],
            .dtype = KVANT_DTYPE_F32,
            .data = pointer(w->decoded[side] + (uint64_t)i * BLOCK * heads * (uint64_t)row),
            .tokens = BLOCK,
            .heads = heads,
            .head_dim = dim,
            .token_stride = row * heads,
            .head_stride = row,
            .channel_stride = sizeof(float)};
        blocks[i] = (kvant_device_block){.struct_size = sizeof blocks[i],
                                         .rows = &views[i],
                                         .extent = extent,
                                         .first_position = (uint64_t)k * BLOCK};
        extents[i] = (kvant_device_extent){.struct_size = sizeof extents[i],
                                           .extent = extent,
                                           .size = s->host->sizes[side][k],
                                           .first_position = (uint64_t)k * BLOCK,
                                           .rows = &floats[i]};
    }
    OK(kvant_device_encode_prepare(w->work, side, blocks, count, s->stream, &diag));
    OK(kvant_device_decode_prepare(w->work, side, extents, count, s->stream, &diag));
}

/* As many sequences, blocks, positions and raw tokens as the number of the step says. */
static void prepare_attend(scene *s, way *w, uint32_t step, uint32_t blocks) {
    kvant_diag diag = {.struct_size = sizeof diag};
    const bed_wish *wish = &s->host->wish;
    kvant_device_sequence sequences[SEQUENCES];
    kvant_gpu_reference references[SEQUENCES][BLOCKS];
    kvant_raw_run runs[SEQUENCES];
    kvant_view views[SEQUENCES][2], queries[SEQUENCES];
    kvant_mutable_view outputs[SEQUENCES];
    uint32_t count = 1 + (step + 1) % SEQUENCES, position = 0;
    uint64_t query = (uint64_t)s->q_heads * wish->key_dim * kvant_element_bytes(wish->dtype);
    uint64_t output = (uint64_t)s->q_heads * wish->value_dim * sizeof(float);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t have = blocks > i ? blocks - i : 0, tail = 3 + (5 * step + 7 * i) % (TAIL_MOST - 3);
        uint32_t positions = i == 1 ? 2 : 1;
        for (uint32_t k = 0; k < have; k++)
            references[i][k] = (kvant_gpu_reference){
                .first_position = (uint64_t)k * BLOCK, .key_index = k, .value_index = k, .live_count = BLOCK};
        for (uint32_t side = 0; side < 2; side++) views[i][side] = rows_there(s, side, have * BLOCK, tail);
        runs[i] = (kvant_raw_run){
            .keys = &views[i][0], .values = &views[i][1], .first_position = (uint64_t)have * BLOCK};
        queries[i] = kvant_rows_view(pointer(s->queries + (step * POSITIONS + position) * query), wish->dtype,
                                     positions, s->q_heads, wish->key_dim);
        outputs[i] = (kvant_mutable_view){.struct_size = sizeof outputs[i],
                                          .dtype = KVANT_DTYPE_F32,
                                          .data = pointer(w->outputs + position * output),
                                          .tokens = positions,
                                          .heads = s->q_heads,
                                          .head_dim = wish->value_dim,
                                          .token_stride = (int64_t)output,
                                          .head_stride = (int64_t)sizeof(float) * wish->value_dim,
                                          .channel_stride = sizeof(float)};
        sequences[i] =
            (kvant_device_sequence){.struct_size = sizeof sequences[i],
                                    .reference_count = have,
                                    .run_count = 1,
                                    .references = references[i],
                                    .runs = &runs[i],
                                    .queries = &queries[i],
                                    .outputs = &outputs[i],
                                    .log_sum_exp = w->log_sum_exp + position * s->q_heads * sizeof(float),
                                    .query_position = have * BLOCK + tail - positions};
        position += positions;
    }
    const kvant_device_attend_options how = {.struct_size = sizeof how,
                                             .window = step == 3 ? 50 : 0,
                                             .scale = step == 2 ? 0.25f : 0.125f,
                                             .soft_cap = step == 4 ? 8.0f : 0,
                                             .key_base = w->extents[0],
                                             .key_stride = bed_extent_stride(s->host, 0),
                                             .value_base = w->extents[1],
                                             .value_stride = bed_extent_stride(s->host, 1)};
    OK(kvant_device_attend_prepare(w->work, sequences, count, &how, s->stream, &diag));
}

static void prepare(scene *s, way *w, uint32_t step, uint32_t blocks) {
    for (uint32_t side = 0; side < 2; side++) {
        prepare_codec(s, w, side, blocks);
        fill(s, w->decoded[side], POISON, s->decoded_bytes[side]);
    }
    prepare_attend(s, w, step, s->encoded + blocks);
    fill(s, w->outputs, 0xff, s->output_bytes);
    fill(s, w->log_sum_exp, 0xff, s->sum_bytes);
}

static kvant_status launch(void *context, gpu_stream stream, kvant_diag *diag) {
    kvant_device_work *work = context;
    kvant_status status = KVANT_OK;
    for (uint32_t side = 0; side < 2 && status == KVANT_OK; side++) {
        status = kvant_device_encode_launch(work, side, stream, diag);
        if (status == KVANT_OK) status = kvant_device_decode_launch(work, side, stream, diag);
    }
    return status == KVANT_OK ? kvant_device_attend_launch(work, stream, diag) : status;
}

/* ---- Comparing ----------------------------------------------------------------------------------------- */

static void assert_same(scene *s, uint64_t captured, uint64_t eager, size_t bytes, const char *what) {
    void *a = fetch(s, captured, bytes), *b = fetch(s, eager, bytes);
    kvant_assert_bytes_at(a, b, bytes, what, __FILE__, __LINE__);
    free(a);
    free(b);
}

static void compare(scene *s, uint32_t blocks) {
    kvant_diag diag = {.struct_size = sizeof diag};
    for (uint32_t side = 0; side < 2; side++) {
        kvant_encode_report reports[2][NEW_MOST] = {{{.struct_size = sizeof reports[0][0]}},
                                                    {{.struct_size = sizeof reports[0][0]}}};
        OK(kvant_device_encode_finish(s->captured.work, side, reports[0], blocks, s->stream, &diag));
        OK(kvant_device_encode_finish(s->eager.work, side, reports[1], blocks, s->stream, &diag));
        for (uint32_t i = 0; i < blocks; i++) {
            assert_int_equal(reports[0][i].size, s->host->sizes[side][s->encoded + i]);
            assert_int_equal(reports[1][i].size, reports[0][i].size);
        }
        assert_same(s, s->captured.extents[side], s->eager.extents[side], s->extent_bytes[side], "extents");
        assert_same(s, s->captured.decoded[side], s->eager.decoded[side], s->decoded_bytes[side],
                    "decoded rows");
        size_t stride = bed_extent_stride(s->host, side);
        for (uint32_t i = 0; i < blocks; i++) {
            size_t k = s->encoded + i;
            unsigned char *got = fetch(s, s->captured.extents[side] + k * stride, s->host->sizes[side][k]);
            kvant_assert_bytes(got, s->host->extents[side] + k * stride, s->host->sizes[side][k]);
            free(got);
        }
    }
    assert_same(s, s->captured.outputs, s->eager.outputs, s->output_bytes, "outputs");
    assert_same(s, s->captured.log_sum_exp, s->eager.log_sum_exp, s->sum_bytes, "log-sum-exps");
}

/* Something was written, and not what the step before wrote. */
static void assert_new(scene *s, unsigned char **before) {
    unsigned char *now = fetch(s, s->captured.outputs, s->output_bytes);
    size_t row = (size_t)s->q_heads * s->host->wish.value_dim * sizeof(float);
    bool written = false;
    for (size_t i = 0; i < row; i++) written = written || now[i] != 0xff;
    assert_true(written);
    if (*before != NULL) assert_memory_not_equal(now, *before, row);
    free(*before);
    *before = now;
}

static void run(const char *key, const char *value, uint32_t dtype, uint32_t attends) {
    kvant_diag diag = {.struct_size = sizeof diag};
    scene s;
    gpu_graph_exec graph = NULL;
    unsigned char *before = NULL;
    open_scene(&s, key, value, dtype, attends);
    /* Before the first prepare: the graph holds nothing of a step. */
    OK(gpu_graph_capture(s.driver, &s.calls, s.stream, launch, s.captured.work, &graph, &diag));
    for (uint32_t step = 0; step < STEPS && s.encoded < BLOCKS; step++) {
        uint32_t blocks = 1 + step % NEW_MOST;
        if (blocks > BLOCKS - s.encoded) blocks = BLOCKS - s.encoded;
        prepare(&s, &s.captured, step, blocks);
        assert_int_equal(s.calls.graph_launch(graph, s.stream), GPU_SUCCESS);
        prepare(&s, &s.eager, step, blocks);
        OK(launch(s.eager.work, s.stream, &diag));
        compare(&s, blocks);
        assert_new(&s, &before);
        s.encoded += blocks;
    }
    free(before);
    (void)s.calls.exec_destroy(graph);
    close_scene(&s);
}

static void test_fused(void **state) {
    (void)state;
    run("four", "two", KVANT_DTYPE_F16, KVANT_DEVICE_ATTEND_FUSED);
}

static void test_split(void **state) {
    (void)state;
    if (KVANT_TEST_SANITIZED) skip();
    run("two", "four", KVANT_DTYPE_BF16, KVANT_DEVICE_ATTEND_SPLIT);
}

static void test_rows(void **state) {
    (void)state;
    if (KVANT_TEST_SANITIZED) skip();
    run("four", "two", KVANT_DTYPE_F32, KVANT_DEVICE_ATTEND_ROWS);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_fused), cmocka_unit_test(test_split),
                                              cmocka_unit_test(test_rows)};
    return kvant_run_tests(tests, argc, argv);
}
