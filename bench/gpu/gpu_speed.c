/* How fast a device encodes, decodes and attends, against copies of as many bytes on the device and against
 * attention over uncompressed bf16 rows (gpu_plain.cu), all of them in turn in one process. One JSON
 * document (docs/performance.md says what is in it), written anew after every case, so that a run that is
 * cut short leaves what it had.
 *
 *     gpu_speed [--out FILE] [--device N] [--rounds N] [--seconds N] [--tiny] [--describe | --check]
 *
 * --seconds: no case is begun after so many (300). --tiny: sizes for a device that is none; times then mean
 * nothing. --describe: the device alone, status 0 if there is one; --check: and whether attention is right.
 * Exit status 0 if everything was measured and results were right, 1 if not, 3 without a device.
 */
#include "gpu_coded.h"
#include "gpu_plain_run.h"

#include <kvant/kit/diag.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SETS_MOST = 96,
    CODECS = 2,
    SUBJECTS_MOST = 2 * (1 + CODECS), /* each with its copy */
    ATTRIBUTE_CLOCK = 13,             /* kHz */
    ATTRIBUTE_MEMORY_CLOCK = 36,
    ATTRIBUTE_MEMORY_BITS = 37
};

/* Bounds of ||o - o'|| / sum of p ||v||: what is outside computes something else. */
static const double plain_most = 4e-3;
static const struct {
    const char *name, *parameters;
    double error_least, error_most;
} codecs[CODECS] = {{"kivi 4", "bits = 4\ngroup = 32", 2e-3, 5e-2},
                    {"kivi 2", "bits = 2\ngroup = 32", 1e-2, 4e-1}};

typedef struct options {
    const char *out;
    uint32_t device, rounds, seconds;
    bool tiny, describe, check;
} options;

typedef struct bench {
    options o;
    gpu_clock clock;
    kvant_device *device;
    gpu_plain plain;
    gpu_coded coded[CODECS]; /* bf16; layer NULL = it could not be opened */
    uint32_t kv_heads, group;
    double graph_us;
    double start;
    json_t *root;
    bool is_fine;
} bench;

static _Noreturn void die(const char *what, const char *why) {
    fprintf(stderr, "gpu_speed: %s: %s\n", what, why);
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static json_t *need(json_t *value) {
    if (value == NULL) die("JSON", "out of memory");
    return value;
}

static json_t *list(const bench *b, const char *name) {
    json_t *array = json_object_get(b->root, name);
    if (array == NULL) {
        array = need(json_array());
        json_object_set_new(b->root, name, array);
    }
    return array;
}

static json_t *number(double x) {
    return need(isfinite(x) ? json_real(x) : json_null());
}

/* What is there so far, under its name once it is whole. */
static void write_out(const bench *b) {
    char name[4096];
    if (b->o.out == NULL) return;
    if (snprintf(name, sizeof name, "%s.part", b->o.out) >= (int)sizeof name) die(b->o.out, "too long");
    if (json_dump_file(b->root, name, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) != 0 ||
        rename(name, b->o.out) != 0)
        die(b->o.out, "cannot be written");
}

static void complain(bench *b, const char *what, const char *why) {
    char text[1024];
    (void)snprintf(text, sizeof text, "%s: %s", what, why);
    fprintf(stderr, "gpu_speed: %s\n", text);
    json_array_append_new(list(b, "errors"), need(json_string(text)));
    b->is_fine = false;
}

static json_t *span(const gpu_span *s) {
    if (!s->is_known) return need(json_null());
    return need(json_pack("{s:f,s:f,s:f}", "median", s->median, "least", s->least, "most", s->most));
}

/* Microseconds to compare by: from a graph where there is one. */
static double best_known(const gpu_timed *t) {
    return t->graph.is_known ? t->graph.median : t->eager.is_known ? t->eager.median : NAN;
}

/* Copies by whichever way is faster: what is measured against them has no excuse. */
static const gpu_span *copy_span(const gpu_copy *copy) {
    const gpu_timed *t = &copy->timed;
    return t->graph.is_known && t->graph.median < t->eager.median ? &t->graph : &t->eager;
}

/* What every subject has: times, rates, and those of the copy of as many bytes. */
static json_t *measured(const gpu_timed *t, uint64_t bytes, const gpu_copy *copy) {
    json_t *o = need(json_object());
    double rate = 1e-3 * (double)bytes / best_known(t);
    double copy_rate = 1e-3 * (double)copy->bytes / copy_span(copy)->median;
    json_object_set_new(o, "bytes", need(json_integer((json_int_t)bytes)));
    json_object_set_new(o, "sets", need(json_integer(t->sets)));
    json_object_set_new(o, "graph_us", span(&t->graph));
    json_object_set_new(o, "eager_us", span(&t->eager));
    if (t->fault[0] != '\0') json_object_set_new(o, "not_captured", need(json_string(t->fault)));
    json_object_set_new(o, "gb_per_second", number(rate));
    json_object_set_new(o, "copy_us", span(copy_span(copy)));
    json_object_set_new(o, "copy_gb_per_second", number(copy_rate));
    json_object_set_new(o, "of_copy", number(rate / copy_rate));
    return o;
}

/* ---- Cases --------------------------------------------------------------------------------------------- */

/* So many that a set is gone from the L2 cache when its turn comes again. */
static uint32_t sets_of(const bench *b, uint64_t bytes) {
    uint64_t sets = (4 * b->clock.l2_bytes + bytes - 1) / bytes;
    if (b->o.tiny) return 2;
    return sets < 2 ? 2 : sets > SETS_MOST ? SETS_MOST : (uint32_t)sets;
}

/* Whether `bytes` fit, with room to spare; else says so. */
static bool fits(bench *b, const char *what, uint64_t bytes) {
    char why[128];
    size_t free_bytes = 0, all = 0;
    if (b->clock.calls.memory_info(&free_bytes, &all) != GPU_SUCCESS || bytes <= free_bytes / 10 * 9)
        return true;
    (void)snprintf(why, sizeof why, "takes %llu MiB, and %zu are free", (unsigned long long)bytes >> 20,
                   free_bytes >> 20);
    json_array_append_new(list(b, "skipped"), need(json_pack("{s:s,s:s}", "case", what, "reason", why)));
    return false;
}

static bool is_late(bench *b, const char *what) {
    if (now() - b->start < b->o.seconds) return false;
    json_array_append_new(list(b, "skipped"),
                          need(json_pack("{s:s,s:s}", "case", what, "reason", "no time left")));
    return true;
}

static const char *dtype_name(uint32_t dtype) {
    return dtype == KVANT_DTYPE_F16 ? "f16" : "bf16";
}

/* Encode and decode of one side. */
static void codec_case(bench *b, const gpu_coded *coded, const char *name, uint32_t side) {
    uint32_t tokens = b->o.tiny ? 2 * CODED_BLOCK : 16384;
    uint64_t rows = (uint64_t)tokens * b->kv_heads * CODED_DIM * 2;
    uint64_t bytes = tokens / CODED_BLOCK * coded->extent_bytes[side] + rows;
    uint32_t sets = sets_of(b, bytes);
    gpu_room room = {.clock = &b->clock};
    gpu_coded_blocks blocks;
    gpu_copy copy;
    char what[128];
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)snprintf(what, sizeof what, "%s, %s, %s", name, side == KVANT_SIDE_KEY ? "keys" : "values",
                   dtype_name(coded->dtype));
    if (is_late(b, what) || !fits(b, what, sets * (3 * rows + bytes))) return;
    kvant_status status = gpu_coded_blocks_open(coded, &room, side, tokens, sets, &blocks, &diag);
    if (status == KVANT_OK) {
        gpu_timed *const subjects[] = {&blocks.encode, &blocks.decode, &copy.timed};
        status = gpu_copy_open(&room, bytes, sets, &copy, &diag);
        if (status == KVANT_OK)
            status = gpu_clock_measure(&b->clock, subjects, 3, b->o.rounds, b->graph_us, &diag);
        for (uint32_t i = 0; i < 2 && status == KVANT_OK; i++) {
            json_t *o = measured(subjects[i], bytes, &copy);
            json_object_set_new(o, "codec", need(json_string(name)));
            json_object_set_new(o, "side", need(json_string(side == KVANT_SIDE_KEY ? "key" : "value")));
            json_object_set_new(o, "dtype", need(json_string(dtype_name(coded->dtype))));
            json_object_set_new(o, "tokens", need(json_integer(tokens)));
            json_object_set_new(o, "row_bytes", need(json_integer((json_int_t)rows)));
            json_array_append_new(list(b, i == 0 ? "encode" : "decode"), o);
        }
        gpu_coded_blocks_close(&blocks);
    }
    gpu_room_free(&room);
    if (status != KVANT_OK) complain(b, what, diag.message);
    write_out(b);
}

/* One contender of an attention case, with the copy of its bytes. */
typedef struct contender {
    const char *name;
    uint64_t bytes;
    gpu_timed *timed;
    gpu_copy copy;
    const char *attends;
    uint32_t parts; /* splits, or tokens of a span */
} contender;

static const char *attends_name(const gpu_coded *coded) {
    kvant_device_layer_info info = {.struct_size = sizeof info};
    static const char *const names[] = {"", "fused", "split", "rows"};
    return kvant_device_layer_describe(coded->layer, &info) == KVANT_OK && info.attends < 4
               ? names[info.attends]
               : "";
}

static void report(bench *b, const contender *all, uint32_t count, uint32_t tokens, uint32_t batch) {
    for (uint32_t i = 0; i < count; i++) {
        double us = best_known(all[i].timed);
        json_t *o = measured(all[i].timed, all[i].bytes, &all[i].copy);
        json_object_set_new(o, "subject", need(json_string(all[i].name)));
        json_object_set_new(o, "tokens", need(json_integer(tokens)));
        json_object_set_new(o, "batch", need(json_integer(batch)));
        json_object_set_new(o, "ns_per_token", number(1e3 * us / tokens / batch));
        json_object_set_new(o, "times_faster_than_plain", number(best_known(all[0].timed) / us));
        json_object_set_new(o, "attends", need(json_string(all[i].attends)));
        json_object_set_new(o, i == 0 ? "splits" : "span_tokens", need(json_integer(all[i].parts)));
        json_array_append_new(list(b, "attend"), o);
    }
}

static kvant_status add(bench *b, gpu_room *room, contender *all, uint32_t *count, const contender *one,
                        kvant_diag *diag) {
    all[*count] = *one;
    (void)b;
    return gpu_copy_open(room, one->bytes, one->timed->sets, &all[(*count)++].copy, diag);
}

/* One decode step of a layer. */
static void attend_case(bench *b, uint32_t tokens, uint32_t batch) {
    const gpu_plain_shape shape = {batch, b->kv_heads, b->group, tokens};
    uint64_t plain_bytes = (uint64_t)batch * tokens * b->kv_heads * CODED_DIM * 4, need_bytes;
    gpu_room room = {.clock = &b->clock};
    gpu_plain_sets plain = {0};
    gpu_coded_step steps[CODECS] = {0};
    contender all[1 + CODECS];
    gpu_timed *subjects[SUBJECTS_MOST];
    uint32_t count = 0;
    char what[64];
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)snprintf(what, sizeof what, "attention, %u tokens, batch %u", tokens, batch);
    need_bytes = 2 * plain_bytes * sets_of(b, plain_bytes);
    for (uint32_t i = 0; i < CODECS; i++) need_bytes += plain_bytes * sets_of(b, plain_bytes / 3);
    if (is_late(b, what) || !fits(b, what, need_bytes)) return;
    kvant_status status =
        gpu_plain_sets_open(&b->plain, &room, &shape, sets_of(b, plain_bytes), 0, &plain, &diag);
    if (status == KVANT_OK)
        status = add(b, &room, all, &count,
                     &(contender){.name = "plain bf16",
                                  .bytes = plain.bytes,
                                  .timed = &plain.timed,
                                  .attends = "plain",
                                  .parts = plain.calls[0].splits},
                     &diag);
    for (uint32_t i = 0; i < CODECS && status == KVANT_OK; i++) {
        const gpu_coded *coded = &b->coded[i];
        if (coded->layer == NULL) continue;
        uint64_t bytes =
            (uint64_t)batch * (tokens / CODED_BLOCK) * (coded->extent_bytes[0] + coded->extent_bytes[1]);
        status = gpu_coded_step_open(coded, &room, batch, tokens, sets_of(b, bytes), 0, 0, &steps[i], &diag);
        if (status == KVANT_OK)
            status = add(b, &room, all, &count,
                         &(contender){.name = codecs[i].name,
                                      .bytes = steps[i].bytes,
                                      .timed = &steps[i].timed,
                                      .attends = attends_name(coded),
                                      .parts = steps[i].span_tokens},
                         &diag);
    }
    for (uint32_t i = 0; i < count; i++) {
        subjects[2 * i] = all[i].timed;
        subjects[2 * i + 1] = &all[i].copy.timed;
    }
    if (status == KVANT_OK)
        status = gpu_clock_measure(&b->clock, subjects, 2 * count, b->o.rounds, b->graph_us, &diag);
    if (status == KVANT_OK) report(b, all, count, tokens, batch);
    for (uint32_t i = 0; i < CODECS; i++) gpu_coded_step_close(&steps[i]);
    gpu_plain_sets_close(&plain);
    gpu_room_free(&room);
    if (status != KVANT_OK) complain(b, what, diag.message);
    write_out(b);
}

/* ---- The whole ----------------------------------------------------------------------------------------- */

static json_t *attribute(const bench *b, int which) {
    int value = 0;
    const gpu_driver *d = b->clock.device.driver;
    if (d->device_attribute(&value, which, b->clock.device.number) != GPU_SUCCESS) return need(json_null());
    return need(json_integer(value));
}

static void describe(bench *b) {
    const gpu_device *g = &b->clock.device;
    int version = 0;
    size_t free_bytes = 0, all = 0;
    (void)g->driver->driver_version(&version);
    (void)b->clock.calls.memory_info(&free_bytes, &all);
    json_t *o = need(json_pack("{s:s,s:i,s:i,s:i,s:i,s:I,s:I,s:I}", "name", g->name, "major", (int)g->major,
                               "minor", (int)g->minor, "multiprocessors", (int)g->multiprocessors, "driver",
                               version, "memory_bytes", (json_int_t)all, "free_bytes", (json_int_t)free_bytes,
                               "l2_bytes", (json_int_t)b->clock.l2_bytes));
    json_object_set_new(o, "clock_khz", attribute(b, ATTRIBUTE_CLOCK));
    json_object_set_new(o, "memory_clock_khz", attribute(b, ATTRIBUTE_MEMORY_CLOCK));
    json_object_set_new(o, "memory_bits", attribute(b, ATTRIBUTE_MEMORY_BITS));
    json_object_set_new(b->root, "device", o);
}

static void check(bench *b) {
    kvant_diag diag = {.struct_size = sizeof diag};
    double error = NAN;
    json_t *o = need(json_object());
    json_object_set_new(b->root, "check", o);
    if (gpu_plain_check(&b->plain, &error, &diag) != KVANT_OK)
        complain(b, "check of plain bf16", diag.message);
    json_object_set_new(o, "plain bf16", number(error));
    if (!(error <= plain_most)) complain(b, "check of plain bf16", "its error is out of bounds");
    for (uint32_t i = 0; i < CODECS; i++) {
        if (b->coded[i].layer == NULL) continue;
        if (gpu_coded_check(&b->coded[i], &error, &diag) != KVANT_OK) {
            complain(b, codecs[i].name, diag.message);
            error = NAN;
        } else if (!(error >= codecs[i].error_least && error <= codecs[i].error_most)) {
            complain(b, codecs[i].name, "the error of its attention is out of bounds");
        }
        json_object_set_new(o, codecs[i].name, number(error));
    }
    write_out(b);
}

static void measure_all(bench *b) {
    static const uint32_t full[] = {4096, 16384, 32768, 65536, 131072}, tiny[] = {128, 192};
    const uint32_t *tokens = b->o.tiny ? tiny : full;
    uint32_t count = b->o.tiny ? sizeof tiny / sizeof tiny[0] : sizeof full / sizeof full[0];
    for (uint32_t i = 0; i < count; i++) {
        if (!b->o.tiny || i == 0) attend_case(b, tokens[i], 1);
        if (!b->o.tiny || i == 1) attend_case(b, tokens[i], b->o.tiny ? 2 : 8);
    }
    for (uint32_t i = 0; i < CODECS; i++)
        for (uint32_t dtype = 0; dtype < 2; dtype++) {
            kvant_diag diag = {.struct_size = sizeof diag};
            gpu_coded coded;
            if (b->coded[i].layer == NULL || (b->o.tiny && dtype != i)) continue;
            if (gpu_coded_open(&b->clock, b->device, "kivi", codecs[i].parameters, b->kv_heads, b->group,
                               dtype == 0 ? KVANT_DTYPE_F16 : KVANT_DTYPE_BF16, &coded, &diag) != KVANT_OK) {
                complain(b, codecs[i].name, diag.message);
                continue;
            }
            for (uint32_t side = 0; side < 2; side++) codec_case(b, &coded, codecs[i].name, side);
            gpu_coded_close(&coded);
        }
}

/* How the codec is served there. */
static void describe_codec(bench *b, uint32_t i) {
    kvant_device_layer_info info = {.struct_size = sizeof info};
    const gpu_coded *coded = &b->coded[i];
    if (kvant_device_layer_describe(coded->layer, &info) != KVANT_OK) return;
    json_array_append_new(
        list(b, "codecs"),
        need(json_pack("{s:s,s:s,s:[b,b],s:[I,I]}", "codec", codecs[i].name, "attends", attends_name(coded),
                       "jit", (int)info.jit[0], (int)info.jit[1], "extent_bytes",
                       (json_int_t)coded->extent_bytes[0], (json_int_t)coded->extent_bytes[1])));
}

static void open_all(bench *b) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (gpu_clock_open(b->o.device, &b->clock, &diag) != KVANT_OK ||
        kvant_device_open(b->o.device, &b->device, &diag) != KVANT_OK) {
        fprintf(stderr, "gpu_speed: %s\n", diag.message);
        complain(b, "device", diag.message);
        write_out(b);
        exit(3);
    }
    b->clock.is_patient = !b->o.tiny;
    describe(b);
    write_out(b);
    if (gpu_plain_open(&b->clock, &b->plain, &diag) != KVANT_OK) {
        complain(b, "plain bf16", diag.message);
        write_out(b);
        exit(1);
    }
    for (uint32_t i = 0; i < CODECS; i++)
        if (gpu_coded_open(&b->clock, b->device, "kivi", codecs[i].parameters, b->kv_heads, b->group,
                           KVANT_DTYPE_BF16, &b->coded[i], &diag) == KVANT_OK)
            describe_codec(b, i);
        else
            complain(b, codecs[i].name, diag.message);
}

static options read_options(int argc, char **argv) {
    options o = {.rounds = 15, .seconds = 300};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        char *end = NULL;
        if (strcmp(name, "--tiny") == 0) {
            o.tiny = true;
            o.rounds = 1;
            continue;
        }
        if (strcmp(name, "--describe") == 0 || strcmp(name, "--check") == 0) {
            *(strcmp(name, "--check") == 0 ? &o.check : &o.describe) = true;
            continue;
        }
        if (++i == argc) die(name, "expected a value after it (see the head of bench/gpu/gpu_speed.c)");
        unsigned long value = strtoul(argv[i], &end, 10);
        bool is_number = end != argv[i] && *end == '\0' && value < 1u << 20;
        if (strcmp(name, "--out") == 0)
            o.out = argv[i];
        else if (strcmp(name, "--device") == 0 && is_number)
            o.device = (uint32_t)value;
        else if (strcmp(name, "--rounds") == 0 && is_number && value > 0 && value <= CLOCK_ROUNDS_MOST)
            o.rounds = (uint32_t)value;
        else if (strcmp(name, "--seconds") == 0 && is_number)
            o.seconds = (uint32_t)value;
        else
            die(name, "unknown option, or not a number (see the head of bench/gpu/gpu_speed.c)");
    }
    return o;
}

int main(int argc, char **argv) {
    static bench b;
    b = (bench){.o = read_options(argc, argv), .kv_heads = 8, .group = 4, .graph_us = 2000, .is_fine = true};
    if (b.o.tiny) {
        b.kv_heads = 1;
        b.graph_us = 0;
    }
    b.start = now();
    b.root = need(json_object());
    json_object_set_new(b.root, "kv_heads", need(json_integer(b.kv_heads)));
    json_object_set_new(b.root, "q_heads", need(json_integer(b.kv_heads * b.group)));
    json_object_set_new(b.root, "head_dim", need(json_integer(CODED_DIM)));
    json_object_set_new(b.root, "rounds", need(json_integer(b.o.rounds)));
    json_object_set_new(b.root, "tiny", need(json_boolean(b.o.tiny)));
    (void)list(&b, "errors");
    (void)list(&b, "skipped");
    open_all(&b);
    if (!b.o.describe) check(&b);
    if (!b.o.describe && !b.o.check) measure_all(&b);
    for (uint32_t i = 0; i < CODECS; i++) gpu_coded_close(&b.coded[i]);
    gpu_plain_close(&b.plain);
    kvant_device_close(b.device);
    gpu_clock_close(&b.clock);
    json_object_set_new(b.root, "seconds", need(json_real(now() - b.start)));
    json_object_set_new(b.root, "whole", need(json_boolean(json_array_size(list(&b, "skipped")) == 0)));
    write_out(&b);
    if (b.o.out == NULL) json_dumpf(b.root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    json_decref(b.root);
    return b.is_fine || b.o.describe ? 0 : 1;
}
