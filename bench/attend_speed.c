/* How fast the attention floor is: one decode step of one layer, one thread, against plain attention over
 * dense float32 rows with the same kernels in the same run; the best of several rounds, taken in turn. Prints
 * a Markdown table in ns of processor time per token and query head.
 *
 *     attend_speed [--tokens N] [--kv-heads N] [--group N] [--dim N] [--rows N] [--rounds N] [--block N]
 *                  [KEY[:VALUE]]...
 *
 *     attend_speed --tokens 4096 raw kivi hack uniform:kivi
 *
 * A codec is one of [layers]; KEY alone serves both sides. "rows" are query positions of the step (1); the
 * sequence (4096 tokens) lies in blocks of 64. "rows:f16" is the same sequence as raw rows of f16, dense as
 * [token, head, channel].
 */
#include <attend/attend_kernels.h>
#include <data/blocks.h>
#include <kvant/kit/view.h>
#include <kvant/kvant.h>
#include <plugin/fpenv.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUBJECTS_MAX = 64 };

typedef struct options {
    uint32_t tokens, kv_heads, group, dim, rows, rounds, block;
    const char *subjects[SUBJECTS_MAX];
    uint32_t subject_count;
} options;

typedef struct subject {
    const char *name;
    kvant_plan *plan;
    kvant_attention *attention;
    unsigned char *extents[2];
    kvant_reference *references;
    kvant_attention_sequence sequence;
    kvant_view raw[2];
    kvant_raw_run run;
    void *scratch;
    size_t scratch_size;
    double best;
} subject;

typedef struct bench {
    options o;
    float *rows[2];  /* [token, head, channel] */
    void *half[2];   /* the same in f16 */
    float *dense[2]; /* [head, token, channel], for plain attention */
    float *queries, *outputs, *logits;
    kvant_view query_view;
    kvant_mutable_view output_view;
    kvant_token_range *ranges;
} bench;

static _Noreturn void die(const char *what, const char *why) {
    fprintf(stderr, "attend_speed: %s: %s\n", what, why);
    exit(2);
}

static void *allocate(size_t size) {
    void *memory = aligned_alloc(4096, (size + 4096) / 4096 * 4096);
    if (memory == NULL) die("memory", "out of it");
    memset(memory, 0, size);
    return memory;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* one thread: what others take does not count */
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* N(0,1) by Box and Muller from a 64-bit mixer. */
static double normal(uint64_t *seed) {
    double u[2];
    for (int i = 0; i < 2; i++) {
        uint64_t z = *seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        u[i] = ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
    }
    return sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]);
}

/* ---- Data ---------------------------------------------------------------------------------------------- */

static void make_data(bench *b) {
    const options *o = &b->o;
    size_t row = (size_t)o->kv_heads * o->dim, count = o->tokens * row;
    uint32_t q_heads = o->kv_heads * o->group;
    uint64_t seed = 1;
    for (int side = 0; side < 2; side++) {
        b->rows[side] = allocate(count * sizeof(float));
        b->dense[side] = allocate(count * sizeof(float));
        b->half[side] = allocate(count * 2);
        for (size_t i = 0; i < count; i++) {
            size_t token = i / row, head = i % row / o->dim, c = i % o->dim;
            kvant_store_element((char *)b->half[side] + 2 * i, KVANT_DTYPE_F16, (float)normal(&seed));
            float x = kvant_load_element((char *)b->half[side] + 2 * i, KVANT_DTYPE_F16);
            b->rows[side][i] = b->dense[side][(head * o->tokens + token) * o->dim + c] = x;
        }
    }
    size_t queries = (size_t)o->rows * q_heads * o->dim;
    b->queries = allocate(queries * sizeof(float));
    b->outputs = allocate(queries * sizeof(float));
    b->logits = allocate((size_t)o->tokens * o->group * o->rows * sizeof(float));
    b->ranges = allocate(o->rows * sizeof *b->ranges);
    for (size_t i = 0; i < queries; i++) b->queries[i] = (float)normal(&seed);
    for (uint32_t r = 0; r < o->rows; r++) b->ranges[r] = (kvant_token_range){0, o->tokens};
    b->query_view = kvant_rows_view(b->queries, KVANT_DTYPE_F32, o->rows, q_heads, o->dim);
    b->output_view = (kvant_mutable_view){.struct_size = sizeof b->output_view,
                                          .dtype = KVANT_DTYPE_F32,
                                          .data = b->outputs,
                                          .tokens = o->rows,
                                          .heads = q_heads,
                                          .head_dim = o->dim,
                                          .token_stride = b->query_view.token_stride,
                                          .head_stride = b->query_view.head_stride,
                                          .channel_stride = b->query_view.channel_stride};
}

/* ---- Subjects ------------------------------------------------------------------------------------------ */

static void encode(const bench *b, subject *s) {
    const options *o = &b->o;
    uint32_t blocks = o->tokens / o->block;
    s->references = allocate(blocks * sizeof *s->references);
    for (uint32_t side = 0; side < 2; side++) {
        const kvant_codec *codec = kvant_attention_codec(s->attention, side);
        size_t stride = (kvant_codec_extent_max(codec) + 4095) / 4096 * 4096;
        void *scratch = allocate(kvant_codec_scratch_bytes(codec));
        s->extents[side] = allocate(blocks * stride);
        for (uint32_t k = 0; k < blocks; k++) {
            kvant_view rows =
                kvant_rows_view((char *)b->half[side] + (size_t)k * o->block * o->kv_heads * o->dim * 2,
                                KVANT_DTYPE_F16, o->block, o->kv_heads, o->dim);
            kvant_encode_report report = {.struct_size = sizeof report};
            kvant_diag diag = {.struct_size = sizeof diag};
            unsigned char *extent = s->extents[side] + k * stride;
            if (kvant_codec_encode(codec, &rows, (uint64_t)k * o->block, NULL, extent, stride, scratch,
                                   &report, &diag) != KVANT_OK)
                die(s->name, diag.message);
            kvant_reference *r = &s->references[k];
            r->first_position = (uint64_t)k * o->block;
            r->live_count = o->block;
            if (side == KVANT_SIDE_KEY) {
                r->key = extent;
                r->key_size = report.size;
            } else {
                r->value = extent;
                r->value_size = report.size;
            }
        }
        free(scratch);
    }
    s->sequence.references = s->references;
    s->sequence.reference_count = blocks;
}

/* False, with a line on stderr, where the codec cannot do it. */
static bool open_subject(bench *b, subject *s, const char *name) {
    const options *o = &b->o;
    kvant_diag diag = {.struct_size = sizeof diag};
    char text[512], key[128];
    bool raw = strcmp(name, "rows:f16") == 0;
    if (snprintf(key, sizeof key, "%s", raw ? "raw" : name) >= (int)sizeof key) die(name, "too long");
    char *value = strchr(key, ':');
    if (value != NULL) *value++ = '\0';
    (void)snprintf(text, sizeof text, "[pipeline]\nblock_tokens = %u\n[layers]\nkey = %s\nvalue = %s\n",
                   o->block, key, value != NULL ? value : key);
    kvant_rope none = {.struct_size = sizeof none};
    kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                  .kv_heads = o->kv_heads,
                                  .q_heads = o->kv_heads * o->group,
                                  .total_kv_heads = o->kv_heads,
                                  .key_dim = o->dim,
                                  .value_dim = o->dim,
                                  .rope = &none};
    kvant_geometry geometry = {
        .struct_size = sizeof geometry, .layer_count = 1, .dtype = KVANT_DTYPE_F16, .layers = &layer};
    kvant_pipeline *pipeline = NULL;
    *s = (subject){.name = name, .best = INFINITY};
    kvant_status status = kvant_pipeline_parse(text, strlen(text), "attend_speed", NULL, &pipeline, &diag);
    if (status == KVANT_OK) status = kvant_pipeline_resolve(pipeline, &geometry, &s->plan, &diag);
    if (status == KVANT_OK) status = kvant_attention_open(s->plan, 0, &s->attention, &diag);
    kvant_pipeline_free(pipeline);
    if (status != KVANT_OK) {
        fprintf(stderr, "attend_speed: %s: %s\n", name, diag.message);
        return false;
    }
    s->sequence = (kvant_attention_sequence){.struct_size = sizeof s->sequence,
                                             .queries = &b->query_view,
                                             .ranges = b->ranges,
                                             .outputs = &b->output_view};
    for (int side = 0; side < 2; side++)
        s->raw[side] = kvant_rows_view(b->half[side], KVANT_DTYPE_F16, o->tokens, o->kv_heads, o->dim);
    s->run = (kvant_raw_run){.keys = &s->raw[0], .values = &s->raw[1]};
    if (raw) {
        s->sequence.runs = &s->run;
        s->sequence.run_count = 1;
    } else {
        encode(b, s);
    }
    s->scratch_size = kvant_attention_scratch_bytes(s->attention, 1, o->rows);
    s->scratch = allocate(s->scratch_size);
    return true;
}

static void close_subject(subject *s) {
    kvant_attention_close(s->attention);
    kvant_plan_free(s->plan);
    for (int side = 0; side < 2; side++) free(s->extents[side]);
    free(s->references);
    free(s->scratch);
}

/* ---- Measuring ----------------------------------------------------------------------------------------- */

/* Over dense float32 rows, tile by tile for all query heads of a group: what an engine without quantization
 * would do with these kernels. */
static void attend_plainly(const bench *b, const kvant_attend_kernels *k, float scale) {
    enum { TILE = 32 };
    const options *o = &b->o;
    uint32_t rows = o->group * o->rows;
    for (uint32_t h = 0; h < o->kv_heads; h++) {
        const float *keys = b->dense[0] + (size_t)h * o->tokens * o->dim;
        const float *values = b->dense[1] + (size_t)h * o->tokens * o->dim;
        size_t q_heads = (size_t)o->kv_heads * o->group;
        for (uint32_t t = 0; t < o->tokens; t += TILE)
            for (uint32_t r = 0; r < rows; r++)
                k->dot(b->queries + (r / o->group * q_heads + h * o->group + r % o->group) * o->dim,
                       keys + (size_t)t * o->dim, o->tokens - t < TILE ? o->tokens - t : TILE, o->dim,
                       b->logits + (size_t)r * o->tokens + t);
        for (uint32_t r = 0; r < rows; r++) {
            float *x = b->logits + (size_t)r * o->tokens;
            k->scale(x, o->tokens, scale);
            float most = k->settle(x, o->tokens, 0, 0);
            k->scale(x, o->tokens, 1 / k->weigh(x, o->tokens, most));
        }
        for (uint32_t t = 0; t < o->tokens; t += TILE)
            for (uint32_t r = 0; r < rows; r++) {
                float *out = b->outputs + (r / o->group * q_heads + h * o->group + r % o->group) * o->dim;
                if (t == 0) memset(out, 0, o->dim * sizeof *out);
                k->mix(out, b->logits + (size_t)r * o->tokens + t, values + (size_t)t * o->dim,
                       o->tokens - t < TILE ? o->tokens - t : TILE, o->dim);
            }
    }
}

static void attend(subject *s, float scale) {
    kvant_attention_options how = {.struct_size = sizeof how, .threads = 1, .scale = scale};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_attention_run(s->attention, &s->sequence, 1, &how, s->scratch, s->scratch_size, &diag) !=
        KVANT_OK)
        die(s->name, diag.message);
}

static uint32_t positive(const char *name, const char *text) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end != '\0' || value < 1 || value > 1 << 24) die(name, "expected a number from 1 to 16777216");
    return (uint32_t)value;
}

static options read_options(int argc, char **argv) {
    static const char *const set[] = {"rows:f16", "raw", "uniform", "kivi", "hack", "turboquant", "nvfp4"};
    options o = {.tokens = 4096, .kv_heads = 8, .group = 4, .dim = 128, .rows = 1, .rounds = 9, .block = 64};
    const struct {
        const char *name;
        uint32_t *value;
    } numbers[] = {{"--tokens", &o.tokens}, {"--kv-heads", &o.kv_heads}, {"--group", &o.group},
                   {"--dim", &o.dim},       {"--rows", &o.rows},         {"--rounds", &o.rounds},
                   {"--block", &o.block}};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (name[0] != '-') {
            if (o.subject_count == SUBJECTS_MAX) die(name, "too many codecs");
            o.subjects[o.subject_count++] = name;
            continue;
        }
        bool known = false;
        if (++i == argc) die(name, "expected a value after it (see the head of bench/attend_speed.c)");
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++)
            if (strcmp(numbers[k].name, name) == 0) {
                *numbers[k].value = positive(name, argv[i]);
                known = true;
            }
        if (!known) die(name, "unknown option (see the head of bench/attend_speed.c)");
    }
    if (o.dim % 16 != 0 || o.dim > 1024) die("--dim", "expected a multiple of 16 up to 1024");
    o.tokens = o.tokens / o.block * o.block;
    if (o.tokens == 0) die("--tokens", "less than one block");
    if (o.subject_count == 0)
        for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) o.subjects[o.subject_count++] = set[i];
    return o;
}

int main(int argc, char **argv) {
    bench b = {.o = read_options(argc, argv)};
    const options *o = &b.o;
    subject subjects[SUBJECTS_MAX];
    uint32_t count = 0;
    make_data(&b);
    for (uint32_t i = 0; i < o->subject_count; i++)
        if (open_subject(&b, &subjects[count], o->subjects[i])) count++;
    const kvant_attend_kernels *kernels = kvant_attend_kernels_for(kvant_isa());
    float scale = 1 / sqrtf((float)o->dim);
    double plain = INFINITY;
    for (uint32_t r = 0; r < o->rounds; r++) {
        kvant_fp_state saved = kvant_fp_enter();
        double start = now();
        attend_plainly(&b, kernels, scale);
        plain = fmin(plain, now() - start);
        kvant_fp_leave(saved);
        for (uint32_t i = 0; i < count; i++) {
            start = now();
            attend(&subjects[i], scale);
            subjects[i].best = fmin(subjects[i].best, now() - start);
        }
    }
    double pairs = (double)o->tokens * o->kv_heads * o->group * o->rows;
    printf(
        "%u tokens, %u kv heads, %u query heads, %u channels, %u query positions, blocks of %u, %s, best of "
        "%u "
        "rounds, one thread\n\n| keys and values | on codes | ns per token and query head | of plain f32 |\n"
        "|---|---|---|---|\n| plain f32 | | %.2f | 1.00 |\n",
        o->tokens, o->kv_heads, o->kv_heads * o->group, o->dim, o->rows, o->block,
        kvant_isa_name(kernels->isa), o->rounds, 1e9 * plain / pairs);
    for (uint32_t i = 0; i < count; i++) {
        kvant_attention_info info = {.struct_size = sizeof info};
        (void)kvant_attention_describe(subjects[i].attention, &info);
        printf("| %s | %s %s | %.2f | %.2f |\n", subjects[i].name, info.keys_on_codes ? "keys" : "",
               info.values_on_codes ? "values" : "", 1e9 * subjects[i].best / pairs,
               subjects[i].best / plain);
        close_subject(&subjects[i]);
    }
    return 0;
}
