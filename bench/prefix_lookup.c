/* How fast a prefix is found: kvant_cache_lookup of a prompt whose blocks are all in memory, as microseconds
 * and as a ratio to hashing the same bytes with one EVP context, measured in turn in the same run. Prints a
 * Markdown table.
 *
 *     prefix_lookup [--blocks N] [--layers N] [--prompts N] [--rounds N]
 *
 * Prompts (50) of N blocks (100) of 64 tokens are put into a cache of N layers (30) of one small head, by one
 * step each, and let go: nothing but the index holds them. Then all of them are looked up in an order that is
 * another in each of the rounds (40), and for the first row one of them as often. Medians. */
#include <kvant/kvant.h>

#include <kvant/cache.h>

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK_TOKENS = 64, HEAD_DIM = 8, LAYERS_MAX = 1024 };
/* What a key hashes: four fields that are there and an empty one, behind their lengths
 * (core/store/block_key.h). */
enum { MESSAGE_BYTES = 5 * 8 + 32 + 32 + BLOCK_TOKENS * 9 };

typedef struct options {
    uint32_t blocks, layers, prompts, rounds;
} options;

static _Noreturn void die(const char *what, const char *why) {
    fprintf(stderr, "prefix_lookup: %s: %s\n", what, why);
    exit(2);
}

static void must(kvant_status status, const char *what, const kvant_diag *diag) {
    if (status != KVANT_OK) die(what, diag->message);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t mix(uint64_t z) { /* splitmix64 */
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void *room(size_t count, size_t size) {
    void *bytes = calloc(count, size);
    if (bytes == NULL) die("memory", "out of it");
    return bytes;
}

/* ---- The cache ----------------------------------------------------------------------------------------- */

static const char text[] = "[pipeline]\n"
                           "name = rows\n"
                           "block_tokens = 64\n"
                           "sinks = 0\n"
                           "recent = 0\n"
                           "[layers]\n"
                           "key = raw\n"
                           "value = raw\n";

static kvant_cache *open_cache(const options *o) {
    static kvant_layer_geometry layers[LAYERS_MAX];
    kvant_diag diag = {.struct_size = sizeof diag};
    for (uint32_t i = 0; i < o->layers; i++)
        layers[i] = (kvant_layer_geometry){.struct_size = sizeof layers[i],
                                           .kv_heads = 1,
                                           .q_heads = 1,
                                           .total_kv_heads = 1,
                                           .key_dim = HEAD_DIM,
                                           .value_dim = HEAD_DIM};
    kvant_geometry geometry = {.struct_size = sizeof geometry,
                               .layer_count = o->layers,
                               .dtype = KVANT_DTYPE_F16,
                               .layers = layers,
                               .model = "prefix_lookup"};
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_cache *cache = NULL;
    must(kvant_pipeline_parse(text, strlen(text), "rows", NULL, &pipeline, &diag), "pipeline", &diag);
    must(kvant_pipeline_resolve(pipeline, &geometry, &plan, &diag), "geometry", &diag);
    uint64_t block_bytes = (uint64_t)BLOCK_TOKENS * HEAD_DIM * 2 * 2 * o->layers;
    kvant_cache_options settings = {.struct_size = sizeof settings,
                                    .bytes = block_bytes * (o->blocks + 2) * (o->prompts + 2)};
    must(kvant_cache_open(plan, &settings, &cache, &diag), "cache", &diag);
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    return cache;
}

/* One step; every row is the same. */
static void put_prompt(kvant_cache *cache, const options *o, const uint64_t *ids) {
    static const uint16_t row[HEAD_DIM] = {0x3c00, 0x4000, 0x4200, 0x3c00, 0x4000, 0x4200, 0x3c00, 0x4000};
    uint32_t tokens = o->blocks * BLOCK_TOKENS;
    kvant_view view = {.struct_size = sizeof view,
                       .dtype = KVANT_DTYPE_F16,
                       .data = row,
                       .tokens = tokens,
                       .heads = 1,
                       .head_dim = HEAD_DIM,
                       .channel_stride = 2};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_sequence *sequence = NULL;
    must(kvant_sequence_create(cache, NULL, 0, &sequence, &diag), "sequence", &diag);
    kvant_step_options step = {.struct_size = sizeof step, .count = tokens, .ids = ids};
    must(kvant_step_begin(sequence, &step, &diag), "begin", &diag);
    for (uint32_t layer = 0; layer < o->layers; layer++)
        must(kvant_step_put(sequence, layer, &view, &view, &diag), "put", &diag);
    must(kvant_step_commit(sequence, tokens, &diag), "commit", &diag);
    kvant_sequence_free(sequence);
}

/* ---- Times --------------------------------------------------------------------------------------------- */

static void look_up(kvant_cache *cache, const options *o, const uint64_t *ids, double *found,
                    double *released) {
    uint64_t tokens = (uint64_t)o->blocks * BLOCK_TOKENS;
    kvant_prefix prefix = {
        .struct_size = sizeof prefix, .ids = ids, .count = tokens, .first_step_end = tokens + 1};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_match *match = NULL;
    double start = now();
    must(kvant_cache_lookup(cache, &prefix, &match, &diag), "lookup", &diag);
    double between = now();
    if (kvant_match_tokens(match) != tokens) die("lookup", "not all of the prompt is there");
    double again = now();
    kvant_match_release(match);
    *found = between - start;
    *released = now() - again;
}

static double hash(EVP_MD_CTX *context, const EVP_MD *sha256, const uint8_t *messages, uint32_t count) {
    uint8_t digest[32];
    double start = now();
    for (uint32_t i = 0; i < count; i++)
        if (EVP_DigestInit_ex2(context, sha256, NULL) != 1 ||
            EVP_DigestUpdate(context, messages + (size_t)i * MESSAGE_BYTES, MESSAGE_BYTES) != 1 ||
            EVP_DigestFinal_ex(context, digest, NULL) != 1)
            die("SHA-256", "failed");
    return now() - start;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *times, size_t count) {
    qsort(times, count, sizeof *times, compare);
    return times[count / 2];
}

static void measure(kvant_cache *cache, const options *o, uint64_t *const *ids, uint32_t prompts) {
    size_t count = (size_t)o->prompts * o->rounds;
    double *found = room(count, sizeof *found), *released = room(count, sizeof *released);
    double *hashed = room(count, sizeof *hashed);
    uint8_t *messages = room(o->blocks, MESSAGE_BYTES);
    EVP_MD *sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (sha256 == NULL || context == NULL) die("SHA-256", "not there");
    for (size_t i = 0; i < count; i++) {
        look_up(cache, o, ids[mix(i) % prompts], &found[i], &released[i]);
        hashed[i] = hash(context, sha256, messages, o->blocks);
    }
    double lookup = median(found, count), reference = median(hashed, count);
    printf("| %u | %u | %u | %.1f | %.1f | %.2f | %.1f |\n", prompts, o->blocks, o->layers, lookup * 1e6,
           reference * 1e6, lookup / reference, median(released, count) * 1e6);
    EVP_MD_CTX_free(context);
    EVP_MD_free(sha256);
    free(messages);
    free(hashed);
    free(released);
    free(found);
}

static uint32_t number(const char *value, uint32_t most) {
    char *end = NULL;
    unsigned long n = value != NULL ? strtoul(value, &end, 10) : 0;
    if (value == NULL || *end != '\0' || n < 1 || n > most) die("not a number", value != NULL ? value : "");
    return (uint32_t)n;
}

int main(int argc, char **argv) {
    options o = {.blocks = 100, .layers = 30, .prompts = 50, .rounds = 40};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--blocks") == 0)
            o.blocks = number(argv[i + 1], 100000);
        else if (strcmp(argv[i], "--layers") == 0)
            o.layers = number(argv[i + 1], LAYERS_MAX);
        else if (strcmp(argv[i], "--prompts") == 0)
            o.prompts = number(argv[i + 1], 100000);
        else if (strcmp(argv[i], "--rounds") == 0)
            o.rounds = number(argv[i + 1], 100000);
        else
            die("unknown argument", argv[i]);
    }
    kvant_cache *cache = open_cache(&o);
    uint64_t **ids = room(o.prompts, sizeof *ids);
    for (uint32_t p = 0; p < o.prompts; p++) {
        ids[p] = room((size_t)o.blocks * BLOCK_TOKENS, sizeof **ids);
        for (uint32_t t = 0; t < o.blocks * BLOCK_TOKENS; t++) ids[p][t] = mix((uint64_t)p << 32 | t) % 50000;
        put_prompt(cache, &o, ids[p]);
    }
    printf("| prompts | blocks | layers | lookup us | SHA-256 us | lookup / SHA-256 | release us |\n");
    printf("|---|---|---|---|---|---|---|\n");
    measure(cache, &o, ids, 1);
    if (o.prompts > 1) measure(cache, &o, ids, o.prompts);
    for (uint32_t p = 0; p < o.prompts; p++) free(ids[p]);
    free(ids);
    kvant_cache_close(cache);
    return 0;
}
