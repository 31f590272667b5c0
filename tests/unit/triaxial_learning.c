/* Calibration of triaxial: losses against attention computed anew, plainly, for every tag and width; sums
 * over layers, means over texts; what cannot be learned from is refused. */
#include "support/test.h"
#include "support/test_codec.h"

#include <kvant/kit/half.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = 75,
    KV = 2,
    Q = 4,
    DIM = 40,
    VDIM = 36,
    ROWS = 5,
    GROUP = 32,
    LAYERS = 2,
    TEXTS = 2,
    TAGS = 5
};

static const uint8_t tag_names[TAGS] = {0, 3, 9, 40, 200};

typedef struct text {
    float keys[TOKENS * KV * DIM], values[TOKENS * KV * VDIM], queries[ROWS * Q * DIM];
    uint8_t tags[TOKENS];
    kvant_view views[3];
    kvant_sample sample;
} text;

static void make_text(text *x, uint32_t layer, uint32_t number) {
    uint64_t seed = 1000 * layer + number + 1;
    for (uint32_t i = 0; i < TOKENS * KV * DIM; i++)
        x->keys[i] = (float)(kvant_test_normal(&seed) * (i % 7 == 0 ? 4 : 1) + (i % 5 == 0 ? 3 : 0));
    for (uint32_t i = 0; i < TOKENS * KV * VDIM; i++) x->values[i] = (float)kvant_test_normal(&seed);
    for (uint32_t i = 0; i < ROWS * Q * DIM; i++) x->queries[i] = (float)kvant_test_normal(&seed);
    for (uint32_t t = 0; t < TOKENS; t++) x->tags[t] = tag_names[(t / 3 + number) % TAGS];
    x->views[0] = kvant_test_view(x->keys, KVANT_DTYPE_F32, TOKENS, KV, DIM);
    x->views[1] = kvant_test_view(x->values, KVANT_DTYPE_F32, TOKENS, KV, VDIM);
    x->views[2] = kvant_test_view(x->queries, KVANT_DTYPE_F32, ROWS, Q, DIM);
    x->sample =
        (kvant_sample){.struct_size = sizeof x->sample,
                       .layer = layer,
                       .keys = &x->views[0],
                       .values = &x->views[1],
                       .queries = &x->views[2],
                       .tags = x->tags,
                       .sinks = 2,
                       .first_position = 10,
                       .query_position = 82 - layer, /* the last rows see all 75 tokens, the first do not */
                       .logit_scale = 0.2,
                       .soft_cap = layer == 1 ? 5 : 0,
                       .text = number,
                       .window = number == 1 ? 50 : 0};
}

/* ---- The same, plainly --------------------------------------------------------------------------------- */

static double f16(double x) {
    return (double)kvant_f16_to_f32(kvant_f32_to_f16((float)x));
}

static void quantize(float *x, uint32_t count, size_t stride, int bits) {
    float low = x[0], high = x[0];
    for (uint32_t i = 1; i < count; i++) {
        low = fminf(low, x[i * stride]);
        high = fmaxf(high, x[i * stride]);
    }
    float levels = (float)((1 << bits) - 1), scale = (float)f16((double)((high - low) / levels)),
          min = (float)f16((double)low);
    if (scale == 0) scale = 1;
    for (uint32_t i = 0; i < count; i++) {
        float code = fminf(fmaxf(rintf((x[i * stride] - min) / scale), 0), levels);
        x[i * stride] = code * scale + min;
    }
}

static void quantize_tokens(float *x, uint32_t dim, int bits) {
    for (uint32_t t = 2; t < TOKENS; t++)
        for (uint32_t h = 0; h < KV; h++)
            for (uint32_t c = 0; c < dim; c += GROUP)
                quantize(x + (t * KV + h) * dim + c, dim - c < GROUP ? dim - c : GROUP, 1, bits);
}

static void quantize_channels(const float *from, float *x) {
    static float part[TOKENS * KV * DIM];
    static const uint32_t first[] = {2, 34, TOKENS - GROUP}; /* the last quantum ends with the text */
    for (uint32_t i = 0; i < 3; i++) {
        memcpy(part, from, sizeof part);
        for (uint32_t c = 0; c < KV * DIM; c++) quantize(part + first[i] * KV * DIM + c, GROUP, KV * DIM, 2);
        memcpy(x + first[i] * KV * DIM, part + first[i] * KV * DIM, GROUP * KV * DIM * sizeof *x);
    }
}

static bool sees(const kvant_sample *s, uint32_t row, uint32_t t) {
    uint64_t query = s->query_position + row, key = s->first_position + t;
    return key <= query && (s->window == 0 || query - key < s->window);
}

static void attend(const kvant_sample *s, const float *keys, const float *values, const float *queries,
                   uint32_t row, uint32_t h, double out[VDIM]) {
    double sum = 0, mixed[VDIM] = {0};
    for (uint32_t t = 0; t < TOKENS; t++) {
        if (!sees(s, row, t)) continue;
        double logit = 0;
        for (uint32_t c = 0; c < DIM; c++)
            logit += (double)queries[(row * Q + h) * DIM + c] * (double)keys[(t * KV + h / 2) * DIM + c];
        logit *= s->logit_scale;
        if (s->soft_cap > 0) logit = s->soft_cap * tanh(logit / s->soft_cap);
        double e = exp(logit);
        sum += e;
        for (uint32_t c = 0; c < VDIM; c++) mixed[c] += e * (double)values[(t * KV + h / 2) * VDIM + c];
    }
    for (uint32_t c = 0; c < VDIM; c++) out[c] = mixed[c] / sum;
}

/* Loss of one text with only `tag` of `bits`. */
static double plain_loss(const text *x, uint8_t tag, int bits, uint32_t sides) {
    static float keys[TOKENS * KV * DIM], values[TOKENS * KV * VDIM];
    memcpy(keys, x->keys, sizeof keys);
    memcpy(values, x->values, sizeof values);
    if (sides & KVANT_SIDES_VALUE) quantize_tokens(values, VDIM, bits);
    if ((sides & KVANT_SIDES_KEY) && bits == 4) quantize_tokens(keys, DIM, bits);
    if ((sides & KVANT_SIDES_KEY) && bits == 2) quantize_channels(x->keys, keys);
    for (uint32_t t = 0; t < TOKENS; t++) {
        if (t >= 2 && x->tags[t] == tag) continue;
        memcpy(keys + t * KV * DIM, x->keys + t * KV * DIM, KV * DIM * sizeof *keys);
        memcpy(values + t * KV * VDIM, x->values + t * KV * VDIM, KV * VDIM * sizeof *values);
    }
    double worst = 0;
    for (uint32_t h = 0; h < Q; h++) {
        double error = 0;
        for (uint32_t row = 0; row < ROWS; row++) {
            double a[VDIM], b[VDIM];
            attend(&x->sample, x->keys, x->values, x->queries, row, h, a);
            attend(&x->sample, keys, values, x->queries, row, h, b);
            for (uint32_t c = 0; c < VDIM; c++) error += (a[c] - b[c]) * (a[c] - b[c]) / VDIM / ROWS;
        }
        worst = fmax(worst, error);
    }
    return worst;
}

/* ---- Sessions ------------------------------------------------------------------------------------------ */

typedef struct learned {
    uint32_t tensors;
    uint8_t tags[256];
    uint64_t tokens[256];
    double loss[256][2];
    uint64_t count;
} learned;

static void take(void *context, uint32_t layer, uint32_t side, const kvant_array *tensor) {
    learned *l = context;
    l->tensors++;
    assert_true(layer < LAYERS && side < 2);
    void *to = strcmp(tensor->name, "tag") == 0      ? (void *)l->tags
               : strcmp(tensor->name, "tokens") == 0 ? (void *)l->tokens
                                                     : (void *)l->loss;
    if (l->tensors > 3) assert_memory_equal(to, tensor->data, tensor->bytes); /* the same for every row */
    memcpy(to, tensor->data, tensor->bytes);
    l->count = tensor->shape[0];
}

typedef struct bench {
    kvant_test_codec *codec;
    const kvant_calibrate *calibrate;
    kvant_value values[8];
    kvant_setup setups[2 * LAYERS];
    const kvant_setup *list[2 * LAYERS];
    uint32_t count;
    void *session;
    kvant_diag diag;
    text *texts[LAYERS][TEXTS];
} bench;

static bench *start(uint32_t sides, bool artifact) {
    bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->codec = kvant_test_codec_open("triaxial", 0, KVANT_DTYPE_F32, 256, KV, DIM, KVANT_ISA_SCALAR, "");
    b->calibrate = b->codec->plugin->extension(KVANT_EXT_CALIBRATE);
    assert_non_null(b->calibrate);
    for (uint32_t i = 0; i < b->codec->plugin->descriptor->param_count; i++) {
        b->values[i] = b->codec->values[i];
        if (strcmp(b->codec->plugin->descriptor->params[i].name, "policy") == 0)
            b->values[i].integer = artifact;
    }
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t side = 0; side < 2; side++) {
            if (!(sides >> side & 1)) continue;
            kvant_setup *s = &b->setups[b->count];
            *s = b->codec->setup;
            s->side = side;
            s->layer = l;
            s->values = b->values;
            b->list[b->count++] = s;
        }
    b->diag.struct_size = sizeof b->diag;
    assert_int_equal(b->calibrate->begin(b->list, b->count, &b->session, &b->diag), KVANT_OK);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t t = 0; t < TEXTS; t++) {
            b->texts[l][t] = malloc(sizeof(text));
            assert_non_null(b->texts[l][t]);
            make_text(b->texts[l][t], l, t);
        }
    return b;
}

static void stop(bench *b) {
    b->calibrate->free(b->session);
    kvant_test_codec_close(b->codec);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t t = 0; t < TEXTS; t++) free(b->texts[l][t]);
    free(b);
}

static void learn(bench *b, learned *out) {
    uint32_t again = 1;
    *out = (learned){0};
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t t = 0; t < TEXTS; t++)
            if (b->calibrate->feed(b->session, &b->texts[l][t]->sample, &b->diag) != KVANT_OK)
                fail_msg("%s", b->diag.message);
    assert_int_equal(b->calibrate->again(b->session, &again, &b->diag), KVANT_OK);
    assert_int_equal(again, 0);
    assert_int_equal(b->calibrate->end(b->session, take, out, &b->diag), KVANT_OK);
}

static void losses_are_those_of_attention(void **state) {
    (void)state;
    for (uint32_t sides = 1; sides <= 3; sides++) {
        bench *b = start(sides, true);
        learned l;
        learn(b, &l);
        assert_int_equal(l.tensors, 3 * b->count);
        assert_int_equal(l.count, TAGS);
        for (uint32_t k = 0; k < TAGS; k++) {
            uint64_t tokens = 0;
            assert_int_equal(l.tags[k], tag_names[k]);
            for (uint32_t t = 0; t < TEXTS; t++)
                for (uint32_t i = 2; i < TOKENS; i++) tokens += b->texts[0][t]->tags[i] == tag_names[k];
            assert_int_equal(l.tokens[k], tokens);
            for (uint32_t w = 0; w < 2; w++) {
                double wanted = 0;
                for (uint32_t layer = 0; layer < LAYERS; layer++)
                    for (uint32_t t = 0; t < TEXTS; t++)
                        wanted += plain_loss(b->texts[layer][t], tag_names[k], w == 0 ? 2 : 4, sides) / TEXTS;
                assert_true(wanted > 1e-7);
                kvant_assert_close(l.loss[k][w], wanted, 1e-9 * wanted);
            }
            assert_true(l.loss[k][0] > 4 * l.loss[k][1]); /* 2 bits cost much more than 4 */
        }
        stop(b);
    }
}

static void is_deterministic(void **state) {
    (void)state;
    learned l[2];
    for (uint32_t i = 0; i < 2; i++) {
        bench *b = start(3, true);
        learn(b, &l[i]);
        stop(b);
    }
    assert_memory_equal(l[0].loss, l[1].loss, sizeof l[0].loss);
    bench *b = start(3, false); /* the built-in rules need nothing */
    learn(b, &l[0]);
    assert_int_equal(l[0].tensors, 0);
    stop(b);
}

static void refused(bench *b, kvant_status status, const char *part) {
    b->diag.message[0] = '\0';
    assert_int_equal(b->calibrate->feed(b->session, &b->texts[0][0]->sample, &b->diag), status);
    kvant_assert_contains(b->diag.message, part);
    make_text(b->texts[0][0], 0, 0);
}

static void refuses_what_teaches_nothing(void **state) {
    (void)state;
    bench *b = start(3, true);
    text *x = b->texts[0][0];
    x->sample.tags = NULL;
    refused(b, KVANT_ERROR_MISSING, "no tags");
    x->sample.queries = NULL;
    refused(b, KVANT_ERROR_MISSING, "no queries");
    x->sample.keys = NULL;
    refused(b, KVANT_ERROR_MISSING, "no keys");
    x->sample.values = NULL;
    refused(b, KVANT_ERROR_MISSING, "no values");
    x->values[(3 * KV + 1) * VDIM + 5] = NAN;
    refused(b, KVANT_ERROR_NOT_FINITE, "value of token 3, head 1, channel 5");
    x->queries[7] = INFINITY;
    refused(b, KVANT_ERROR_NOT_FINITE, "query of token 0, head 0, channel 7");
    memset(x->keys, 0, sizeof x->keys);
    refused(b, KVANT_ERROR_VALUE, "every key is zero");
    memset(x->values, 0, sizeof x->values);
    refused(b, KVANT_ERROR_VALUE, "every value is zero");
    x->sample.sinks = TOKENS - GROUP + 1;
    refused(b, KVANT_ERROR_VALUE, "at least 32 tokens");
    x->views[2].heads = 3;
    refused(b, KVANT_ERROR_GEOMETRY, "do not fit");
    x->sample.logit_scale = NAN;
    refused(b, KVANT_ERROR_VALUE, "logit scale");
    learned l = {0};
    assert_int_equal(b->calibrate->end(b->session, take, &l, &b->diag), KVANT_ERROR_MISSING);
    kvant_assert_contains(b->diag.message, "layer 0: no sample");
    for (uint32_t layer = 0; layer < LAYERS; layer++) { /* queries before every key */
        b->texts[layer][0]->sample.query_position = 0;
        assert_int_equal(b->calibrate->feed(b->session, &b->texts[layer][0]->sample, &b->diag), KVANT_OK);
    }
    assert_int_equal(b->calibrate->end(b->session, take, &l, &b->diag), KVANT_ERROR_VALUE);
    kvant_assert_contains(b->diag.message, "no query feels a difference");
    assert_int_equal(l.tensors, 0);
    stop(b);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(losses_are_those_of_attention),
                                              cmocka_unit_test(is_deterministic),
                                              cmocka_unit_test(refuses_what_teaches_nothing)};
    return kvant_run_tests(tests, argc, argv);
}
