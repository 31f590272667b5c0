/* See dump.h. */
#include "support/write_dump.h"

#include "support/test.h"

#include "data/safetensors.h"

#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 64, THETA = 10000 };

kvant_test_dump kvant_test_dump_default(void) {
    return (kvant_test_dump){.layers = 3,
                             .tokens = 150,
                             .kv_heads = 2,
                             .q_heads = 6,
                             .key_dim = 32,
                             .value_dim = 24,
                             .query_tokens = 9,
                             .query_start = 141,
                             .dtype = KVANT_DTYPE_F16,
                             .has_keys = true,
                             .has_values = true,
                             .has_queries = true,
                             .model = "test model",
                             .seed = 1};
}

/* Rows of one kind; each element is a function of seed, kind, layer and place alone. */
static void fill(const kvant_test_dump *d, uint32_t layer, int kind, uint32_t tokens, uint32_t heads,
                 uint32_t dim, float *rows) {
    uint64_t seed = d->seed * 1000003 + layer * 16 + (uint64_t)kind;
    for (size_t i = 0; i < (size_t)tokens * heads * dim; i++) {
        uint32_t c = (uint32_t)(i % dim);
        double x = kvant_test_normal(&seed);
        if (kind == KVANT_SIDE_KEY) x = 0.7 + (c == 3 % dim ? 4 : 0.6) * x;
        if (kind == KVANT_SIDE_VALUE) x = 0.4 + (0.5 + 0.25 * layer) * x;
        rows[i] = (float)x;
    }
}

static void turn(const kvant_test_dump *d, float *keys) {
    double *frequency = calloc(d->key_dim / 2 + 1, sizeof *frequency);
    float *turns = calloc(d->key_dim + 1, sizeof *turns);
    assert_true(frequency != NULL && turns != NULL);
    uint32_t rotary = d->key_dim / 2 * 2;
    kvant_rope_inverse_frequency(THETA, rotary, frequency);
    const kvant_rope rope = {.struct_size = sizeof rope,
                             .style = KVANT_ROPE_NEOX,
                             .rotary_dim = rotary,
                             .magnitude = 1,
                             .inverse_frequency = frequency};
    for (uint32_t t = 0; t < d->tokens; t++) {
        kvant_rope_turns(&rope, t, turns);
        for (uint32_t h = 0; h < d->kv_heads; h++)
            kvant_rope_apply(&rope, turns, keys + ((size_t)t * d->kv_heads + h) * d->key_dim);
    }
    free(frequency);
    free(turns);
}

static void make_tensor(const kvant_test_dump *d, uint32_t layer, int kind, kvant_array *array) {
    static const char *const names[] = {"key", "value", "query"};
    uint32_t tokens = kind == 2 ? d->query_tokens : d->tokens, heads = kind == 2 ? d->q_heads : d->kv_heads;
    uint32_t dim = kind == KVANT_SIDE_VALUE ? d->value_dim : d->key_dim;
    uint32_t dtype = kind == 2 && d->query_dtype != 0 ? d->query_dtype : d->dtype;
    size_t count = (size_t)tokens * heads * dim, element = kvant_element_bytes(dtype);
    char *name = calloc(1, NAME), *data = calloc(count + 1, element);
    float *rows = calloc(count + 1, sizeof *rows);
    assert_true(name != NULL && data != NULL && rows != NULL);
    (void)snprintf(name, NAME, "layers.%u.%s", layer, names[kind]);
    fill(d, layer, kind, tokens, heads, dim, rows);
    if (kind == KVANT_SIDE_KEY && !d->keys_before_rope) turn(d, rows);
    if (d->poisoned != NULL && strcmp(d->poisoned, name) == 0)
        rows[((size_t)d->token * heads + d->head) * dim + d->channel] = d->poison;
    for (size_t i = 0; i < count; i++) kvant_store_element(data + i * element, dtype, rows[i]);
    free(rows);
    *array = (kvant_array){.name = name,
                           .data = data,
                           .shape = {tokens, heads, dim},
                           .bytes = count * element,
                           .dtype = dtype,
                           .rank = 3};
}

static void free_string(const char *string) {
    union {
        const char *given;
        char *taken;
    } pointer = {.given = string};
    free(pointer.taken);
}

void kvant_test_dump_write(const kvant_test_dump *d, const char *file) {
    kvant_array *arrays = calloc((size_t)d->layers * 3, sizeof *arrays);
    uint32_t count = 0;
    char start[32], window[32], theta[32], rotary[32];
    (void)snprintf(start, sizeof start, "%llu", (unsigned long long)d->query_start);
    (void)snprintf(window, sizeof window, "%u", d->window);
    (void)snprintf(theta, sizeof theta, "%d", THETA);
    (void)snprintf(rotary, sizeof rotary, "%u", d->key_dim / 2 * 2);
    kvant_metadata metadata[9] = {
        {"format", "kvant-kv/1"}, {"key_rope", d->keys_before_rope ? "pre" : "post"}, {"window", window}};
    uint32_t strings = 3;
    if (d->has_keys) {
        metadata[strings++] = (kvant_metadata){"rope_style", "neox"};
        metadata[strings++] = (kvant_metadata){"rope_theta", theta};
        metadata[strings++] = (kvant_metadata){"rotary_dim", rotary};
    }
    if (d->model != NULL) metadata[strings++] = (kvant_metadata){"model", d->model};
    if (d->has_queries) metadata[strings++] = (kvant_metadata){"query_start", start};
    for (uint32_t l = 0; l < d->layers; l++) {
        if (d->has_keys) make_tensor(d, l, KVANT_SIDE_KEY, &arrays[count++]);
        if (d->has_values) make_tensor(d, l, KVANT_SIDE_VALUE, &arrays[count++]);
        if (d->has_queries) make_tensor(d, l, 2, &arrays[count++]);
    }
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_write(file, arrays, count, metadata, strings, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    for (uint32_t i = 0; i < count; i++) {
        free_string(arrays[i].name);
        free_string(arrays[i].data);
    }
    free(arrays);
}
