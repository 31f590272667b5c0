/* How fast codecs encode and decode: one thread, every instruction set of this machine, as GB/s of rows and
 * as a ratio to memcpy of the same rows, measured in turn in the same run; the best of several rounds. Prints
 * a Markdown table.
 *
 *     codec_speed [--tokens N] [--block N] [--heads N] [--dim N] [--rounds N] [--dtype f32|f16|bf16|all]
 *                 [--isa LEVEL|all] [CODEC[:NAME=VALUE[,NAME=VALUE]...]]...
 *
 *     codec_speed --isa all kivi:bits=2 kivi:bits=4,group=64 uniform raw
 *
 * Rows are numbers of a normal distribution, `tokens` of them (4096), in blocks of `block` (64) tokens, dense
 * as [token, head, channel]. Decoding writes rows of the type that was encoded. A GB is 1e9 bytes of rows;
 * for memcpy it is the bytes copied.
 */
#include <kvant/kit/view.h>
#include <kvant/kvant.h>
#include <plugin/fpenv.h>
#include <plugin/schema.h>

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CODECS_MAX = 64 };

typedef struct options {
    uint32_t tokens, block, heads, dim, rounds;
    uint32_t dtypes; /* KVANT_DTYPES_* */
    uint32_t isa;    /* UINT32_MAX = all */
    const char *codecs[CODECS_MAX];
    uint32_t codec_count;
} options;

/* One codec, opened, with what it is measured on. */
typedef struct subject {
    const kvant_plugin *plugin;
    kvant_setup setup;
    kvant_layout layout;
    kvant_value *values;
    void *state, *scratch;
    uint8_t *classes; /* of a block's tokens: those of tags 0, 5, 10, ... below 64; or NULL */
    uint8_t *rows, *extents, *out;
    size_t row_bytes; /* of all rows */
    uint64_t *sizes;
    uint32_t blocks;
} subject;

static _Noreturn void die(const char *what, const char *why) {
    fprintf(stderr, "codec_speed: %s: %s\n", what, why);
    exit(2);
}

static void *allocate(size_t size) {
    void *memory = aligned_alloc(4096, (size + 4096) / 4096 * 4096);
    if (memory == NULL) die("memory", "out of it");
    memset(memory, 1, size);
    return memory;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
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

/* ---- One codec ----------------------------------------------------------------------------------------- */

/* "kivi:bits=2,group=32" */
static void find_codec(subject *s, const char *text) {
    kvant_diag diag = {.struct_size = sizeof diag};
    char copy[256], *rest = NULL;
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy) die(text, "too long");
    char *parameters = strchr(copy, ':');
    if (parameters != NULL) *parameters++ = '\0';
    if (kvant_plugin_find(copy, &s->plugin, &diag) != KVANT_OK) die(text, diag.message);
    const kvant_descriptor *d = s->plugin->descriptor;
    s->values = calloc(d->param_count + 1, sizeof *s->values);
    if (s->values == NULL) die("memory", "out of it");
    for (uint32_t i = 0; i < d->param_count; i++)
        kvant_schema_default(kvant_schema_param(d, i), &s->values[i]);
    if (parameters == NULL) return;
    for (char *word = strtok_r(parameters, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        uint32_t index = 0;
        char *equals = strchr(word, '=');
        if (equals == NULL) die(text, "expected NAME=VALUE after the colon");
        *equals = '\0';
        if (kvant_schema_find(d, word, &index, &diag) != KVANT_OK ||
            kvant_schema_parse(kvant_schema_param(d, index), equals + 1, &s->values[index], &diag) !=
                KVANT_OK)
            die(text, diag.message);
    }
}

/* False, with a line on stderr, where the codec cannot do it. */
static bool open_subject(subject *s, const options *o, const char *text, uint32_t side, uint32_t dtype,
                         uint32_t isa) {
    kvant_diag diag = {.struct_size = sizeof diag};
    memset(s, 0, sizeof *s);
    find_codec(s, text);
    const kvant_descriptor *d = s->plugin->descriptor;
    if ((d->sides >> side & 1) == 0 || (d->dtypes >> dtype & 1) == 0) return false;
    s->setup = (kvant_setup){.struct_size = sizeof s->setup,
                             .side = side,
                             .layer_count = 1,
                             .dtype = dtype,
                             .block_tokens = o->block,
                             .head_dim = o->dim,
                             .kv_heads = o->heads,
                             .total_kv_heads = o->heads,
                             .q_heads = o->heads,
                             .isa = isa,
                             .value_count = d->param_count,
                             .values = s->values};
    s->layout.struct_size = sizeof s->layout;
    if (s->plugin->plan(&s->setup, &s->layout, &diag) != KVANT_OK) {
        fprintf(stderr, "codec_speed: %s: %s\n", text, diag.message);
        return false;
    }
    if (s->layout.isa != isa) return false; /* no code of its own for this level */
    uint64_t extent = s->layout.size_min + s->layout.size_step * s->layout.size_steps;
    s->blocks = o->tokens / o->block;
    s->row_bytes = (size_t)s->blocks * o->block * o->heads * o->dim * kvant_element_bytes(dtype);
    s->state = allocate(s->layout.state_bytes);
    memset(s->state, 0, s->layout.state_bytes);
    s->scratch = allocate(s->layout.scratch_bytes);
    if (s->plugin->descriptor->requires_bits & KVANT_REQUIRES_TAGS) {
        s->classes = allocate(s->setup.block_tokens);
        for (uint32_t t = 0; t < s->setup.block_tokens; t++) s->classes[t] = s->layout.tag_class[t * 5 % 64];
    }
    s->rows = allocate(s->row_bytes);
    s->out = allocate(s->row_bytes);
    s->extents = allocate((extent + 4095) / 4096 * 4096 * s->blocks);
    s->sizes = allocate(s->blocks * sizeof *s->sizes);
    if (s->plugin->open(&s->setup, &s->layout, s->state, &diag) != KVANT_OK) {
        fprintf(stderr, "codec_speed: %s: %s\n", text, diag.message);
        return false;
    }
    uint64_t seed = 1;
    size_t count = s->row_bytes / kvant_element_bytes(dtype);
    for (size_t i = 0; i < count; i++)
        kvant_store_element(s->rows + i * kvant_element_bytes(dtype), dtype, (float)normal(&seed));
    return true;
}

static void close_subject(subject *s) {
    if (s->state != NULL) s->plugin->close(s->state);
    free(s->state);
    free(s->scratch);
    free(s->classes);
    free(s->rows);
    free(s->out);
    free(s->extents);
    free(s->sizes);
    free(s->values);
}

static uint8_t *extent_at(const subject *s, uint32_t block) {
    uint64_t stride = (s->layout.size_min + s->layout.size_step * s->layout.size_steps + 4095) / 4096 * 4096;
    return s->extents + stride * block;
}

static void encode_all(subject *s) {
    const kvant_setup *p = &s->setup;
    int64_t element = kvant_element_bytes(p->dtype), head = element * p->head_dim, token = head * p->kv_heads;
    for (uint32_t b = 0; b < s->blocks; b++) {
        kvant_view view = {.struct_size = sizeof view,
                           .dtype = p->dtype,
                           .data = s->rows + (size_t)b * p->block_tokens * (size_t)token,
                           .tokens = p->block_tokens,
                           .heads = p->kv_heads,
                           .head_dim = p->head_dim,
                           .token_stride = token,
                           .head_stride = head,
                           .channel_stride = element};
        kvant_encode_args args = {.struct_size = sizeof args,
                                  .rows = &view,
                                  .classes = s->classes,
                                  .first_position = (uint64_t)b * p->block_tokens,
                                  .extent = extent_at(s, b),
                                  .scratch = s->scratch};
        if (s->plugin->encode(s->state, &args) != KVANT_OK) die(s->plugin->descriptor->name, "encode failed");
        s->sizes[b] = args.size;
    }
}

static void decode_all(subject *s) {
    const kvant_setup *p = &s->setup;
    int64_t element = kvant_element_bytes(p->dtype), head = element * p->head_dim, token = head * p->kv_heads;
    for (uint32_t b = 0; b < s->blocks; b++) {
        kvant_mutable_view view = {.struct_size = sizeof view,
                                   .dtype = p->dtype,
                                   .data = s->out + (size_t)b * p->block_tokens * (size_t)token,
                                   .tokens = p->block_tokens,
                                   .heads = p->kv_heads,
                                   .head_dim = p->head_dim,
                                   .token_stride = token,
                                   .head_stride = head,
                                   .channel_stride = element};
        kvant_extent extent = {.bytes = extent_at(s, b),
                               .size = s->sizes[b],
                               .first_position = (uint64_t)b * p->block_tokens,
                               .live_count = p->block_tokens};
        kvant_decode_args args = {
            .struct_size = sizeof args, .extent = &extent, .rows = &view, .scratch = s->scratch};
        if (s->plugin->decode(s->state, &args) != KVANT_OK) die(s->plugin->descriptor->name, "decode failed");
    }
}

/* ---- Measuring ----------------------------------------------------------------------------------------- */

static void measure(subject *s, const options *o, const char *text) {
    static const char *const dtypes[] = {"", "f32", "f16", "bf16"};
    double copy = INFINITY, encode = INFINITY, decode = INFINITY;
    kvant_fp_state saved = kvant_fp_enter();
    for (uint32_t r = 0; r < o->rounds; r++) {
        double t0 = now();
        memcpy(s->out, s->rows, s->row_bytes);
        double t1 = now();
        encode_all(s);
        double t2 = now();
        decode_all(s);
        double t3 = now();
        copy = fmin(copy, t1 - t0);
        encode = fmin(encode, t2 - t1);
        decode = fmin(decode, t3 - t2);
    }
    kvant_fp_leave(saved);
    double bytes = 0, gigabytes = 1e-9 * (double)s->row_bytes;
    for (uint32_t b = 0; b < s->blocks; b++) bytes += (double)s->sizes[b];
    printf("| %s | %s | %s | %s | %.3f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", text,
           s->setup.side == KVANT_SIDE_KEY ? "key" : "value", dtypes[s->setup.dtype],
           kvant_isa_name(s->setup.isa),
           8 * bytes / ((double)s->row_bytes / kvant_element_bytes(s->setup.dtype)), gigabytes / encode,
           copy / encode, gigabytes / decode, copy / decode, gigabytes / copy);
    fflush(stdout);
}

/* ---- Command line -------------------------------------------------------------------------------------- */

static uint32_t positive(const char *name, const char *text) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < 1 || value > 1 << 24)
        die(name, "expected a number from 1 to 16777216");
    return (uint32_t)value;
}

static uint32_t dtypes_of(const char *text) {
    if (strcmp(text, "f32") == 0) return KVANT_DTYPES_F32;
    if (strcmp(text, "f16") == 0) return KVANT_DTYPES_F16;
    if (strcmp(text, "bf16") == 0) return KVANT_DTYPES_BF16;
    if (strcmp(text, "all") != 0) die("--dtype", "expected f32, f16, bf16 or all");
    return KVANT_DTYPES_ALL;
}

static const uint32_t isas[] = {KVANT_ISA_SCALAR, KVANT_ISA_X86_64_V2, KVANT_ISA_X86_64_V3,
                                KVANT_ISA_X86_64_V4, KVANT_ISA_AARCH64};

static uint32_t isa_of(const char *text) {
    if (strcmp(text, "all") == 0) return UINT32_MAX;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++)
        if (strcmp(kvant_isa_name(isas[i]), text) == 0) return isas[i];
    die("--isa", "expected scalar, v2, v3, v4, neon or all");
}

static options read_options(int argc, char **argv) {
    static const char *const set[] = {
        "kivi:bits=2",
        "kivi:bits=4",
        "uniform:format=int8",
        "uniform:format=int4",
        "uniform:format=int4,granularity=group_channels,group=32,symmetry=asymmetric",
        "uniform:format=e4m3",
        "raw"};
    options o = {.tokens = 4096,
                 .block = 64,
                 .heads = 8,
                 .dim = 128,
                 .rounds = 9,
                 .dtypes = KVANT_DTYPES_F32,
                 .isa = kvant_isa()};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (name[0] != '-') {
            if (o.codec_count == CODECS_MAX) die(name, "too many codecs");
            o.codecs[o.codec_count++] = name;
            continue;
        }
        if (++i == argc) die(name, "expected a value after it (see the head of bench/codec_speed.c)");
        if (strcmp(name, "--tokens") == 0)
            o.tokens = positive(name, argv[i]);
        else if (strcmp(name, "--block") == 0)
            o.block = positive(name, argv[i]);
        else if (strcmp(name, "--heads") == 0)
            o.heads = positive(name, argv[i]);
        else if (strcmp(name, "--dim") == 0)
            o.dim = positive(name, argv[i]);
        else if (strcmp(name, "--rounds") == 0)
            o.rounds = positive(name, argv[i]);
        else if (strcmp(name, "--dtype") == 0)
            o.dtypes = dtypes_of(argv[i]);
        else if (strcmp(name, "--isa") == 0)
            o.isa = isa_of(argv[i]);
        else
            die(name, "unknown option (see the head of bench/codec_speed.c)");
    }
    if (o.tokens < o.block) die("--tokens", "less than one block");
    if (o.codec_count == 0)
        for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) o.codecs[o.codec_count++] = set[i];
    return o;
}

int main(int argc, char **argv) {
    options o = read_options(argc, argv);
    printf("%u tokens in blocks of %u, %u heads of %u, best of %u rounds, one thread\n\n", o.tokens, o.block,
           o.heads, o.dim, o.rounds);
    printf("| codec | side | rows | isa | bits | encode GB/s | of memcpy | decode GB/s | of memcpy | memcpy "
           "GB/s |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n");
    for (uint32_t c = 0; c < o.codec_count; c++)
        for (uint32_t dtype = KVANT_DTYPE_F32; dtype <= KVANT_DTYPE_BF16; dtype++)
            for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++)
                for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
                    bool mine = (isas[i] >= KVANT_ISA_AARCH64) == (kvant_isa() >= KVANT_ISA_AARCH64);
                    subject s;
                    if ((o.dtypes >> dtype & 1) == 0 || isas[i] > kvant_isa() || (!mine && isas[i] != 0))
                        continue;
                    if (o.isa != UINT32_MAX && o.isa != isas[i]) continue;
                    if (open_subject(&s, &o, o.codecs[c], side, dtype, isas[i])) measure(&s, &o, o.codecs[c]);
                    close_subject(&s);
                }
    return 0;
}
