/* See device_bed.h. */
#include "device_bed.h"

#include "support/test.h"

#include <gpu/core_image.h>

#include <kvant/kit/view.h>

#include <stdlib.h>
#include <string.h>

enum { POISON = 0xD3 };

#define OK(call) check((call), &diag, #call)

static void check(kvant_status status, const kvant_diag *diag, const char *what) {
    if (status != KVANT_OK) fail_msg("%s: %d: %s", what, status, diag->message);
}

kvant_device *device_bed_device(void) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_device *device = NULL;
    if (core_gpu_table() == NULL) {
        print_message("skipped: built without nvcc, so there are no kernels\n");
        skip();
    }
    OK(kvant_device_open(0, &device, &diag));
    return device;
}

static uint64_t put(kvant_device *device, const void *bytes, size_t size) {
    kvant_diag diag = {.struct_size = sizeof diag};
    uint64_t at = 0;
    OK(kvant_device_alloc(device, size, &at, &diag));
    OK(kvant_device_write(device, at, bytes, size, NULL, &diag));
    return at;
}

static size_t raw_bytes(const bed *b, uint32_t side) {
    return (size_t)b->wish.tokens * b->wish.kv_heads * bed_dim(b, side) * kvant_element_bytes(b->wish.dtype);
}

device_bed *device_bed_open(kvant_device *device, const bed *host, uint32_t attends) {
    kvant_diag diag = {.struct_size = sizeof diag};
    device_bed *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->device = device;
    b->host = host;
    OK(kvant_device_layer_open(device, host->attention, &b->layer, &diag));
    if (attends != 0) b->layer->attends = attends;
    for (uint32_t side = 0; side < 2; side++) {
        size_t bytes = (host->blocks + 1) * bed_extent_stride(host, side);
        unsigned char *poison = malloc(bytes);
        assert_non_null(poison);
        memset(poison, POISON, bytes);
        b->extents[side] = put(device, poison, bytes);
        b->raw[side] = put(device, host->raw[side], raw_bytes(host, side));
        free(poison);
    }
    return b;
}

void device_bed_close(device_bed *b) {
    for (uint32_t side = 0; side < 2; side++) {
        kvant_device_free(b->device, b->raw[side]);
        kvant_device_free(b->device, b->extents[side]);
    }
    kvant_device_layer_close(b->layer);
    free(b);
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

/* Rows of the bed's from token `first` on, in device memory. */
static kvant_view rows_there(const device_bed *b, kvant_view rows, uint32_t side) {
    rows.data = (const void *)(uintptr_t)(b->raw[side] +
                                          (uint64_t)((const unsigned char *)rows.data - b->host->raw[side]));
    return rows;
}

static void compare(const device_bed *b, uint32_t side) {
    kvant_diag diag = {.struct_size = sizeof diag};
    size_t stride = bed_extent_stride(b->host, side), bytes = b->host->blocks * stride;
    unsigned char *got = malloc(bytes + 1);
    assert_non_null(got);
    OK(kvant_device_read(b->device, got, b->extents[side], bytes, b->stream, &diag));
    for (uint32_t k = 0; k < b->host->blocks; k++)
        for (size_t i = 0; i < stride; i++) {
            size_t size = b->host->sizes[side][k];
            unsigned char want = i < size ? b->host->extents[side][k * stride + i] : POISON;
            size_t most = kvant_codec_extent_max(kvant_attention_codec(b->host->attention, side));
            if (i >= size && i < most) continue; /* what a codec may touch and does not count */
            if (got[k * stride + i] != want)
                fail_msg("side %u, block %u, byte %zu of %zu: %02x, and the host has %02x", side, k, i, size,
                         got[k * stride + i], want);
        }
    free(got);
}

static void encode_all(device_bed *b, uint32_t batch, bool waits) {
    kvant_diag diag = {.struct_size = sizeof diag};
    const bed *host = b->host;
    kvant_device_work *work = NULL;
    kvant_device_limits limits = {.struct_size = sizeof limits, .blocks = batch};
    kvant_device_block *blocks = calloc(batch, sizeof *blocks);
    kvant_view *views = calloc(batch, sizeof *views);
    kvant_encode_report *reports = calloc(batch, sizeof *reports);
    OK(kvant_device_work_open(b->layer, &limits, 0, &work, &diag));
    for (uint32_t side = 0; side < 2; side++) {
        size_t stride = bed_extent_stride(host, side);
        size_t row =
            (size_t)host->wish.kv_heads * bed_dim(host, side) * kvant_element_bytes(host->wish.dtype);
        for (uint32_t first = 0; first < host->blocks; first += batch) {
            uint32_t count = host->blocks - first < batch ? host->blocks - first : batch;
            for (uint32_t i = 0; i < count; i++) {
                uint32_t token = (first + i) * host->wish.block_tokens;
                views[i] = rows_there(b,
                                      kvant_rows_view(host->raw[side] + token * row, host->wish.dtype,
                                                      host->wish.block_tokens, host->wish.kv_heads,
                                                      bed_dim(host, side)),
                                      side);
                blocks[i] = (kvant_device_block){.struct_size = sizeof *blocks,
                                                 .rows = &views[i],
                                                 .extent = b->extents[side] + (first + i) * stride,
                                                 .first_position = host->wish.first_position + token};
            }
            reports[0].struct_size = sizeof *reports;
            OK(kvant_device_encode_prepare(work, side, blocks, count, b->stream, &diag));
            OK(kvant_device_encode_launch(work, side, b->stream, &diag));
            if (waits) OK(kvant_device_encode_finish(work, side, reports, count, b->stream, &diag));
            for (uint32_t i = 0; i < count && waits; i++)
                assert_int_equal(reports[i].size, host->sizes[side][first + i]);
        }
        compare(b, side);
    }
    kvant_device_work_close(work);
    free(blocks);
    free(views);
    free(reports);
}

void device_bed_encode(device_bed *b, uint32_t batch) {
    encode_all(b, batch, true);
}

void device_bed_encode_at_once(device_bed *b) {
    encode_all(b, 1, false);
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

/* A call's memory there. */
typedef struct call_there {
    kvant_gpu_reference references[BED_REFERENCES];
    kvant_raw_run runs[BED_RUNS];
    kvant_view run_views[BED_RUNS][2];
    kvant_view queries;
    kvant_mutable_view outputs;
    uint64_t query_rows, output_rows, log_sum_exp;
    size_t output_bytes, output_count, rows;
} call_there;

/* Rounded in the call too, so that double precision sees what the device sees. */
static uint64_t put_queries(const device_bed *b, bed_call *c, size_t count) {
    uint32_t dtype = b->host->wish.dtype, width = kvant_element_bytes(dtype);
    unsigned char *rows = malloc(count * width + 1);
    assert_non_null(rows);
    for (size_t i = 0; i < count; i++) {
        kvant_store_element(rows + i * width, dtype, c->query_rows[i]);
        c->query_rows[i] = kvant_load_element(rows + i * width, dtype);
    }
    uint64_t at = put(b->device, rows, count * width);
    free(rows);
    return at;
}

static void put_references(const device_bed *b, const bed_call *c, call_there *t) {
    const bed *host = b->host;
    for (uint32_t i = 0; i < c->sequence.reference_count; i++) {
        const kvant_reference *r = &c->references[i];
        size_t key = (size_t)((const unsigned char *)r->key - host->extents[KVANT_SIDE_KEY]);
        size_t value = (size_t)((const unsigned char *)r->value - host->extents[KVANT_SIDE_VALUE]);
        const kvant_layout *layouts[2] = {kvant_codec_row(kvant_attention_codec(host->attention, 0))->layout,
                                          kvant_codec_row(kvant_attention_codec(host->attention, 1))->layout};
        t->references[i] = (kvant_gpu_reference){
            .first_position = r->first_position,
            .key_index = (uint32_t)(key / bed_extent_stride(host, KVANT_SIDE_KEY)),
            .value_index = (uint32_t)(value / bed_extent_stride(host, KVANT_SIDE_VALUE)),
            .live_first = r->live_first,
            .live_count = r->live_count};
        if (layouts[0]->size_step > 0)
            t->references[i].key_step =
                (uint32_t)((r->key_size - layouts[0]->size_min) / layouts[0]->size_step);
        if (layouts[1]->size_step > 0)
            t->references[i].value_step =
                (uint32_t)((r->value_size - layouts[1]->size_min) / layouts[1]->size_step);
    }
    for (uint32_t i = 0; i < c->sequence.run_count; i++) {
        for (uint32_t side = 0; side < 2; side++)
            t->run_views[i][side] = rows_there(b, c->run_views[i][side], side);
        t->runs[i] = (kvant_raw_run){.keys = &t->run_views[i][0],
                                     .values = &t->run_views[i][1],
                                     .first_position = c->runs[i].first_position};
    }
}

static void put_call(const device_bed *b, bed_call *c, const device_bed_options *options, call_there *t,
                     kvant_device_sequence *sequence) {
    const bed *host = b->host;
    uint32_t heads = host->wish.kv_heads * host->wish.group;
    uint32_t dtype = options->output_dtype != 0 ? options->output_dtype : KVANT_DTYPE_F32;
    uint32_t width = kvant_element_bytes(dtype);
    t->rows = (size_t)c->rows * heads;
    t->output_count = t->rows * host->wish.value_dim;
    t->output_bytes = t->output_count * width;
    put_references(b, c, t);
    t->query_rows = put_queries(b, c, t->rows * host->wish.key_dim);
    memset(c->output_rows, 0xff, t->output_bytes);
    memset(c->log_sum_exp, 0xff, t->rows * sizeof(float));
    t->output_rows = put(b->device, c->output_rows, t->output_bytes);
    t->log_sum_exp = put(b->device, c->log_sum_exp, t->rows * sizeof(float));
    t->queries = kvant_rows_view((const void *)(uintptr_t)t->query_rows, host->wish.dtype, c->rows, heads,
                                 host->wish.key_dim);
    t->outputs = c->outputs;
    t->outputs.dtype = dtype;
    t->outputs.data = (void *)(uintptr_t)t->output_rows;
    t->outputs.channel_stride = width;
    t->outputs.head_stride = (int64_t)(width * (size_t)host->wish.value_dim);
    t->outputs.token_stride = t->outputs.head_stride * heads;
    *sequence = (kvant_device_sequence){.struct_size = sizeof *sequence,
                                        .reference_count = c->sequence.reference_count,
                                        .run_count = c->sequence.run_count,
                                        .references = t->references,
                                        .runs = t->runs,
                                        .queries = &t->queries,
                                        .outputs = &t->outputs,
                                        .log_sum_exp = t->log_sum_exp,
                                        .query_position = host->wish.first_position + c->tokens - c->rows};
}

static void get_call(const device_bed *b, bed_call *c, const call_there *t) {
    kvant_diag diag = {.struct_size = sizeof diag};
    unsigned char *rows = malloc(t->output_bytes + 1);
    uint32_t width = kvant_element_bytes(t->outputs.dtype);
    assert_non_null(rows);
    OK(kvant_device_read(b->device, rows, t->output_rows, t->output_bytes, b->stream, &diag));
    OK(kvant_device_read(b->device, c->log_sum_exp, t->log_sum_exp, t->rows * sizeof(float), b->stream,
                         &diag));
    for (size_t i = 0; i < t->output_count; i++)
        c->output_rows[i] = kvant_load_element(rows + i * width, t->outputs.dtype);
    free(rows);
    kvant_device_free(b->device, t->query_rows);
    kvant_device_free(b->device, t->output_rows);
    kvant_device_free(b->device, t->log_sum_exp);
}

void device_bed_run(device_bed *b, bed_call *const *calls, uint32_t count,
                    const device_bed_options *options) {
    kvant_diag diag = {.struct_size = sizeof diag};
    const bed *host = b->host;
    kvant_device_limits limits = {
        .struct_size = sizeof limits, .sequences = count, .span_tokens = options->span_tokens};
    kvant_attention_options there = bed_options(host);
    kvant_device_attend_options o = {.struct_size = sizeof o,
                                     .window = options->window,
                                     .scale = there.scale,
                                     .soft_cap = options->soft_cap,
                                     .key_base = b->extents[KVANT_SIDE_KEY],
                                     .key_stride = bed_extent_stride(host, KVANT_SIDE_KEY),
                                     .value_base = b->extents[KVANT_SIDE_VALUE],
                                     .value_stride = bed_extent_stride(host, KVANT_SIDE_VALUE)};
    kvant_device_sequence *sequences = calloc(count + 1, sizeof *sequences);
    call_there *rooms = calloc(count + 1, sizeof *rooms);
    kvant_device_work *work = NULL;
    for (uint32_t i = 0; i < count; i++) {
        put_call(b, calls[i], options, &rooms[i], &sequences[i]);
        limits.references += calls[i]->sequence.reference_count;
        limits.runs += calls[i]->sequence.run_count;
        limits.positions += calls[i]->rows;
    }
    OK(kvant_device_work_open(b->layer, &limits, 0, &work, &diag));
    OK(kvant_device_attend_prepare(work, sequences, count, &o, b->stream, &diag));
    OK(kvant_device_attend_launch(work, b->stream, &diag));
    for (uint32_t i = 0; i < count; i++) get_call(b, calls[i], &rooms[i]);
    kvant_device_work_close(work);
    free(sequences);
    free(rooms);
}
