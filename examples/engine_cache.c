/* An engine that leaves its keys and values to the library: cache floor of kvant.h; docs/host.md explains it.
 *
 * A budget of bytes; requests that begin with what is known of their prompt; a fork, speculation, a rollback;
 * blocks evicted into a store, a conversation saved, a restart. The "model" is sines, two layers of different
 * shape, and its next token is a hash over every bit of every output: a text that goes on in the same words
 * was computed from the same bytes. */
#define _XOPEN_SOURCE 700 /* mkdtemp */

#include <kvant/kvant.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 2, Q_HEADS = 4, DIM = 64, CHUNK = 64, PROMPT = 300, TEXT_MAX = 1000, BUDGET = 4 << 20 };

static const char pipeline_text[] = "[pipeline]\nblock_tokens = 64\nsinks = 4\nrecent = 32\n"
                                    "[codec k]\nplugin = kivi\nbits = 4\n"
                                    "[layers]\nkey = k\nvalue = k\n";

static const uint32_t kv_heads[LAYERS] = {2, 1}, value_dim[LAYERS] = {DIM, DIM / 2}; /* the model's layers */

typedef struct conversation {
    kvant_sequence *sequence;
    uint64_t ids[TEXT_MAX]; /* tokens [0, length) are in the sequence, ids[length] is the next */
    uint32_t length;
    uint64_t found; /* tokens that needed no computing */
} conversation;

static kvant_diag diag = {.struct_size = sizeof diag};
static kvant_cache *cache;
static kvant_store *store;

static void check(kvant_status status) {
    if (status == KVANT_OK) return;
    (void)fprintf(stderr, "%s\n", diag.message);
    exit(1);
}

static void expect(int condition, const char *what) {
    if (condition) return;
    (void)fprintf(stderr, "not so: %s\n", what);
    exit(1);
}

/* What an application opens once: a pool, and a store behind it. */
static void open_cache(const char *directory) {
    kvant_layer_geometry layers[LAYERS];
    for (uint32_t l = 0; l < LAYERS; l++)
        layers[l] = (kvant_layer_geometry){.struct_size = sizeof layers[l],
                                           .kv_heads = kv_heads[l],
                                           .q_heads = Q_HEADS,
                                           .total_kv_heads = kv_heads[l],
                                           .key_dim = DIM,
                                           .value_dim = value_dim[l]};
    const kvant_geometry geometry = {.struct_size = sizeof geometry,
                                     .layer_count = LAYERS,
                                     .dtype = KVANT_DTYPE_F32,
                                     .layers = layers,
                                     .model = "example/sines@1"};
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    check(kvant_pipeline_parse(pipeline_text, sizeof pipeline_text - 1, "engine", NULL, &pipeline, &diag));
    check(kvant_pipeline_resolve(pipeline, &geometry, &plan, &diag));
    check(kvant_store_open_lmdb(directory, NULL, &store, &diag));
    const kvant_cache_options options = {.struct_size = sizeof options, .bytes = BUDGET, .store = store};
    check(kvant_cache_open(plan, &options, &cache, &diag));
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
}

static void close_cache(void) {
    kvant_cache_close(cache);
    kvant_store_close(store);
}

/* ---- The model ----------------------------------------------------------------------------------------- */

static kvant_mutable_view view_of(float *data, uint32_t tokens, uint32_t heads, uint32_t dim) {
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = KVANT_DTYPE_F32,
                                .data = data,
                                .tokens = tokens,
                                .heads = heads,
                                .head_dim = dim,
                                .token_stride = (int64_t)(4 * heads * dim),
                                .head_stride = 4 * dim,
                                .channel_stride = 4};
}

/* Keys, values or queries of the tokens at `position` on. */
static kvant_view rows_of(float *data, const uint64_t *ids, uint64_t position, uint32_t tokens,
                          uint32_t heads, uint32_t dim, float phase) {
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t i = 0; i < heads * dim; i++)
            data[t * heads * dim + i] = sinf(phase * (float)(ids[t] % 97 + i) + 0.1f * (float)(position + t));
    kvant_mutable_view v = view_of(data, tokens, heads, dim);
    return (kvant_view){sizeof(kvant_view), v.dtype,       data, tokens, heads, dim, 0,
                        v.token_stride,     v.head_stride, 4};
}

/* One step of `count` tokens, of which `keep` stay; the next token after the last one that stays. */
static uint64_t step(kvant_sequence *sequence, const uint64_t *ids, uint64_t position, uint32_t count,
                     uint32_t tentative, uint32_t keep) {
    static float keys[CHUNK * Q_HEADS * DIM], values[CHUNK * Q_HEADS * DIM], queries[CHUNK * Q_HEADS * DIM],
        outputs[CHUNK * Q_HEADS * DIM];
    uint64_t next = 17;
    kvant_step_options tokens = {
        .struct_size = sizeof tokens, .count = count, .tentative = tentative, .ids = ids};
    check(kvant_step_begin(sequence, &tokens, &diag));
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t dim = value_dim[l];
        kvant_view k = rows_of(keys, ids, position, count, kv_heads[l], DIM, 0.37f + (float)l);
        kvant_view v = rows_of(values, ids, position, count, kv_heads[l], dim, 0.11f + (float)l);
        kvant_view q = rows_of(queries, ids, position, count, Q_HEADS, DIM, 0.23f + (float)l);
        kvant_mutable_view o = view_of(outputs, count, Q_HEADS, dim);
        kvant_step_rows rows = {.struct_size = sizeof rows,
                                .sequence = sequence,
                                .keys = &k,
                                .values = &v,
                                .queries = &q,
                                .outputs = &o};
        kvant_attention_options options = {.struct_size = sizeof options, .scale = 1 / sqrtf(DIM)};
        check(kvant_step_attend(cache, l, &rows, 1, &options, &diag));
        for (uint32_t i = 0; i < Q_HEADS * dim; i++) {
            uint32_t bits;
            memcpy(&bits, outputs + (keep - 1) * Q_HEADS * dim + i, sizeof bits);
            next = next * 1099511628211u + bits;
        }
    }
    check(kvant_step_commit(sequence, keep, &diag));
    return next >> 32;
}

/* ---- The engine ---------------------------------------------------------------------------------------- */

/* Begins with what is known of the prompt, and computes the rest in chunks. The step after what was found
 * ends with the prompt, so that is what lookup is told. */
static void begin(conversation *c, const uint64_t *prompt) {
    kvant_match *match = NULL;
    kvant_prefix prefix = {
        .struct_size = sizeof prefix, .ids = prompt, .count = PROMPT, .first_step_end = PROMPT};
    memcpy(c->ids, prompt, PROMPT * sizeof *prompt);
    check(kvant_cache_lookup(cache, &prefix, &match, &diag));
    check(kvant_sequence_create_from(match, &c->sequence, &diag));
    c->found = kvant_match_tokens(match);
    c->length = (uint32_t)c->found;
    kvant_match_release(match);
    while (c->length < PROMPT) {
        uint32_t n = PROMPT - c->length < CHUNK ? PROMPT - c->length : CHUNK;
        uint64_t next = step(c->sequence, c->ids + c->length, c->length, n, 0, n);
        c->length += n;
        if (c->length == PROMPT) c->ids[c->length] = next;
    }
}

static void say(conversation *c, uint32_t tokens) {
    for (; tokens > 0; tokens--, c->length++)
        c->ids[c->length + 1] = step(c->sequence, c->ids + c->length, c->length, 1, 0, 1);
}

/* The next token and three guesses; all of them wrong, so only the first stays. */
static void speculate(conversation *c) {
    uint64_t ids[4] = {c->ids[c->length], 1, 2, 3};
    c->ids[c->length + 1] = step(c->sequence, ids, c->length, 4, 3, 1);
    c->length++;
}

static int is_same_text(const conversation *a, const conversation *b) {
    return a->length == b->length && memcmp(a->ids, b->ids, (a->length + 1) * sizeof a->ids[0]) == 0;
}

/* Everything but the restart. `last` was saved when it had *saved_at tokens, and went on. */
static void serve(const uint64_t *prompt, conversation *last, uint32_t *saved_at) {
    static conversation first, branch, again, alone;
    begin(&first, prompt);
    say(&first, 90);
    uint32_t mark = first.length;

    branch = first; /* shares every byte; from here on each goes its own way */
    check(kvant_sequence_fork(first.sequence, &branch.sequence, &diag));
    branch.ids[mark] = 12345;
    say(&branch, 5);
    say(&first, 10); /* an answer that nobody likes, taken back */
    check(kvant_sequence_truncate(first.sequence, mark, &diag));
    first.length = mark;
    speculate(&first);
    say(&first, 9);
    say(&branch, 5);

    begin(&again, prompt); /* other requests with this prompt: its whole blocks are here */
    say(&again, 100);
    expect(first.found == 0 && again.found == 256, "whole blocks of the prompt are found");
    expect(is_same_text(&first, &again), "fork, rollback and guesses leave no trace; warm is as cold");
    begin(&alone, prompt);
    say(&alone, 90);
    alone.ids[mark] = 12345;
    say(&alone, 10);
    expect(is_same_text(&branch, &alone), "a branch is what it would be alone");
    kvant_sequence_free(alone.sequence);
    kvant_sequence_free(again.sequence);
    kvant_sequence_free(branch.sequence);
    kvant_sequence_free(first.sequence);

    kvant_cache_report report = {.struct_size = sizeof report};
    check(kvant_cache_evict(cache, BUDGET, NULL, &diag)); /* memory is wanted: blocks go to the store */
    begin(last, prompt);
    say(last, 100);
    check(kvant_cache_describe(cache, &report));
    expect(report.stored_hits == 4 && is_same_text(&first, last), "they come back from it");
    printf("%llu of %llu tokens looked up were found, %llu blocks of them in the store; %llu KiB of memory "
           "at most\n",
           (unsigned long long)report.found_tokens, (unsigned long long)report.asked_tokens,
           (unsigned long long)report.stored_hits, (unsigned long long)(report.peak >> 10));

    kvant_saved saved = {.struct_size = sizeof saved};
    check(kvant_sequence_save(last->sequence, store, &saved, &diag));
    expect(saved.tokens == last->length, "all of it is saved");
    *saved_at = last->length;
    say(last, 50);
    kvant_sequence_free(last->sequence);
}

/* Goes on where `last` was saved. */
static void resume(const conversation *last, uint32_t saved_at) {
    static conversation loaded;
    kvant_sequence_info info = {.struct_size = sizeof info};
    kvant_prefix prefix = {.struct_size = sizeof prefix, .ids = last->ids, .count = saved_at};
    check(kvant_sequence_load(cache, store, &prefix, &loaded.sequence, NULL, &diag));
    check(kvant_sequence_describe(loaded.sequence, &info));
    expect(info.length == saved_at, "all that was saved is loaded");
    memcpy(loaded.ids, last->ids, (saved_at + 1) * sizeof loaded.ids[0]);
    loaded.length = saved_at;
    say(&loaded, 50);
    expect(is_same_text(last, &loaded), "it goes on as if nothing had happened");
    kvant_sequence_free(loaded.sequence);
}

/* The store's files. */
static void clean_up(const char *directory) {
    static const char *const files[] = {"data.mdb", "lock.mdb", "open.lock"};
    char path[128];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        (void)remove(path);
    }
    expect(rmdir(directory) == 0, "the store's directory is empty");
}

int main(void) {
    static conversation last;
    char directory[] = "/tmp/kvant_engine_XXXXXX";
    uint64_t prompt[PROMPT];
    uint32_t saved_at;
    for (uint32_t i = 0; i < PROMPT; i++) prompt[i] = i * i % 1009;
    expect(mkdtemp(directory) != NULL, "a directory for the store");
    open_cache(directory);
    serve(prompt, &last, &saved_at);
    close_cache();
    open_cache(directory); /* a restart */
    resume(&last, saved_at);
    close_cache();
    clean_up(directory);
    return 0;
}
