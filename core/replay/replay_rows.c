/* See replay_rows.h. Made-up rows look like those of models: keys have channels that are far from zero and
 * a few that are loud, values are small and even, queries are about normal. IEEE + and * only: the same
 * rows everywhere. */
#include "replay/replay_rows.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>

/* A channel of made-up rows: mean + spread * n, n about normal. */
typedef struct rows_channel {
    float mean, spread;
} rows_channel;

typedef struct rows_tensor {
    rows_channel *channels; /* [heads, dim] */
    uint32_t heads, dim;
    kvant_view dump; /* data NULL = made up */
} rows_tensor;

struct kvant_replay_rows {
    const kvant_dump *dump;
    uint32_t by, layers, dtype;
    uint64_t seed;
    rows_tensor *tensors; /* [layers][3] */
};

uint64_t kvant_replay_mix(uint64_t a, uint64_t b) {
    /* The finish of splitmix64 over both. */
    uint64_t x = a ^ (b * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(0x7f4a7c15f39cc060));
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Mean 0, variance 1: the sum of four even numbers. */
static float about_normal(uint64_t bits) {
    uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)(bits >> 16 & 0xffff) +
                   (uint32_t)(bits >> 32 & 0xffff) + (uint32_t)(bits >> 48);
    return ((float)sum - 131070.0f) * (1.0f / 37837.0f);
}

/* ---- Origins ------------------------------------------------------------------------------------------- */

uint64_t kvant_replay_origin_begin(const kvant_replay_rows *rows, const char *tenant) {
    uint64_t origin = kvant_replay_mix(rows->seed, 1);
    for (const char *c = tenant; *c != '\0'; c++) origin = kvant_replay_mix(origin, (unsigned char)*c);
    return origin;
}

uint64_t kvant_replay_origin(const kvant_replay_rows *rows, uint64_t before, uint64_t id, uint64_t way) {
    if (rows->by != KVANT_REPLAY_BY_CONTEXT) return id;
    return kvant_replay_mix(kvant_replay_mix(before, id), way);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static void copy_row(const rows_tensor *t, uint32_t row, uint32_t dtype, unsigned char *out) {
    uint32_t bytes = kvant_element_bytes(dtype);
    for (uint32_t h = 0; h < t->heads; h++) {
        const char *from = kvant_view_at(&t->dump, row, h);
        for (uint32_t c = 0; c < t->dim; c++, out += bytes)
            kvant_store_element(
                out, dtype, kvant_load_element(from + (int64_t)c * t->dump.channel_stride, t->dump.dtype));
    }
}

static void make_row(const rows_tensor *t, uint64_t state, uint32_t dtype, unsigned char *out) {
    uint32_t bytes = kvant_element_bytes(dtype);
    for (uint32_t i = 0; i < t->heads * t->dim; i++, out += bytes) {
        state += UINT64_C(0x9e3779b97f4a7c15);
        uint64_t x = (state ^ (state >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        const rows_channel *c = &t->channels[i];
        kvant_store_element(out, dtype, c->mean + c->spread * about_normal(x ^ (x >> 31)));
    }
}

void kvant_replay_rows_fill(const kvant_replay_rows *rows, uint32_t layer, uint32_t what,
                            const uint64_t *origins, uint64_t first_position, uint32_t count, void *dense) {
    const rows_tensor *t = &rows->tensors[(size_t)layer * 3 + what];
    uint32_t dtype = what == KVANT_REPLAY_QUERY ? KVANT_DTYPE_F32 : rows->dtype;
    size_t row_bytes = (size_t)t->heads * t->dim * kvant_element_bytes(dtype);
    uint64_t tensor = kvant_replay_mix(rows->seed, (uint64_t)layer * 4 + what);
    for (uint32_t i = 0; i < count; i++) {
        unsigned char *out = (unsigned char *)dense + i * row_bytes;
        uint64_t position = first_position + i;
        if (t->dump.data != NULL)
            copy_row(
                t,
                (uint32_t)((rows->by == KVANT_REPLAY_BY_POSITION ? position : origins[i]) % t->dump.tokens),
                dtype, out);
        else
            make_row(t,
                     kvant_replay_mix(
                         tensor,
                         kvant_replay_mix(position, rows->by == KVANT_REPLAY_BY_POSITION ? 0 : origins[i])),
                     dtype, out);
    }
}

/* ---- Open ---------------------------------------------------------------------------------------------- */

/* Keys: means up to 3 away from zero, and one channel of 16 is loud. */
static bool make_channels(const kvant_replay_rows *rows, uint32_t layer, uint32_t what, rows_tensor *t) {
    t->channels = calloc((size_t)t->heads * t->dim, sizeof *t->channels);
    if (t->channels == NULL) return false;
    for (uint32_t i = 0; i < t->heads * t->dim; i++) {
        uint64_t x = kvant_replay_mix(kvant_replay_mix(rows->seed, UINT64_C(0x6368616e)),
                                      ((uint64_t)layer * 4 + what) << 32 | i);
        float mean = about_normal(kvant_replay_mix(x, 1));
        bool loud = x % 16 == 0;
        if (what == KVANT_SIDE_KEY)
            t->channels[i] = (rows_channel){loud ? 8 * mean : 1.5f * mean, loud ? 4.0f : 1.0f};
        else if (what == KVANT_SIDE_VALUE)
            t->channels[i] = (rows_channel){0.25f * mean, 0.5f};
        else
            t->channels[i] = (rows_channel){0, 1};
    }
    return true;
}

static kvant_status open_layer(kvant_replay_rows *rows, const kvant_geometry *geometry, uint32_t layer,
                               kvant_diag *diag) {
    const kvant_layer_geometry *g =
        (const kvant_layer_geometry *)(const void *)((const char *)geometry->layers +
                                                     (size_t)layer * geometry->layers[0].struct_size);
    for (uint32_t what = 0; what < 3; what++) {
        rows_tensor *t = &rows->tensors[(size_t)layer * 3 + what];
        t->heads = what == KVANT_REPLAY_QUERY ? g->q_heads : g->kv_heads;
        t->dim = what == KVANT_SIDE_VALUE ? g->value_dim : g->key_dim;
        if (rows->dump != NULL && kvant_dump_view(rows->dump, layer, what, &t->dump)) continue;
        t->dump.data = NULL;
        if (rows->dump != NULL && what != KVANT_REPLAY_QUERY)
            return kvant_fail(
                diag, KVANT_ERROR_MISSING, "", "%s: it has no %s, and rows cannot be taken from it",
                kvant_dump_describe(rows->dump)->file, what == KVANT_SIDE_KEY ? "keys" : "values");
        if (!make_channels(rows, layer, what, t))
            return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    return KVANT_OK;
}

kvant_status kvant_replay_rows_open(const kvant_geometry *geometry, const kvant_dump *dump, uint32_t by,
                                    uint64_t seed, kvant_replay_rows **out, kvant_diag *diag) {
    *out = NULL;
    kvant_replay_rows *rows = calloc(1, sizeof *rows);
    if (rows == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    *rows = (kvant_replay_rows){
        .dump = dump, .by = by, .layers = geometry->layer_count, .dtype = geometry->dtype, .seed = seed};
    rows->tensors = calloc((size_t)rows->layers * 3, sizeof *rows->tensors);
    kvant_status status =
        rows->tensors == NULL ? kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory") : KVANT_OK;
    for (uint32_t l = 0; status == KVANT_OK && l < rows->layers; l++)
        status = open_layer(rows, geometry, l, diag);
    if (status == KVANT_OK)
        *out = rows;
    else
        kvant_replay_rows_close(rows);
    return status;
}

void kvant_replay_rows_close(kvant_replay_rows *rows) {
    if (rows == NULL) return;
    for (uint32_t i = 0; rows->tensors != NULL && i < rows->layers * 3; i++) free(rows->tensors[i].channels);
    free(rows->tensors);
    free(rows);
}
