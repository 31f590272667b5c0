/* kvquant where it is easily wrong: all levels alike on hard rows; outliers that are never lost; caps; groups
 * without width; ranges that overflow; what open refuses; sizes as planned. */
#include "support/test.h"
#include "support/test_codec.h"

#include <kvant/kit/view.h>
#include <kvant/kvant.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Artifacts
 * ------------------------------------------------------------------------------------------ */

enum { HEADS_MAX = 8, DIM_MAX = 160 };

/* What a calibration could have given: ranges of all heads, an uneven codebook, moments. */
typedef struct artifact {
    kvant_array tensors[5];
    float upper[HEADS_MAX * DIM_MAX], lower[HEADS_MAX * DIM_MAX], book[16], scale, offset;
} artifact;

static kvant_array tensor(const char *name, const float *data, uint32_t rank, uint64_t a, uint64_t b) {
    return (kvant_array){.name = name,
                         .data = data,
                         .dtype = KVANT_DTYPE_F32,
                         .rank = rank,
                         .shape = {a, rank == 2 ? b : 0},
                         .bytes = sizeof(float) * a * (rank == 2 ? b : 1)};
}

static void make_artifact(artifact *a, uint32_t bits, uint32_t heads, uint32_t dim) {
    uint32_t levels = 1u << bits;
    assert_true(heads <= HEADS_MAX && dim <= DIM_MAX);
    for (uint32_t i = 0; i < heads * dim; i++) {
        float size = i % 7 == 3 ? 40.0f : 1.5f, middle = (float)(i % 5) - 2;
        a->upper[i] = middle + size;
        a->lower[i] = middle - size * 1.25f;
        if (i % 11 == 5) a->upper[i] = a->lower[i] = 0.5f; /* a channel that never changed */
    }
    for (uint32_t i = 0; i < levels; i++) {
        float x = 2 * ((float)i + 0.5f) / (float)levels - 1;
        a->book[i] = x * (0.6f + 0.4f * x * x) + 0.01f;
    }
    a->scale = 1.07f;
    a->offset = -0.003f;
    a->tensors[0] = tensor("codebook", a->book, 1, levels, 0);
    a->tensors[1] = tensor("lower", a->lower, 2, heads, dim);
    a->tensors[2] = tensor("normoffset", &a->offset, 1, 1, 0);
    a->tensors[3] = tensor("normscale", &a->scale, 1, 1, 0);
    a->tensors[4] = tensor("upper", a->upper, 2, heads, dim);
}

static kvant_test_codec *open_codec(artifact *a, uint32_t side, uint32_t dtype, uint32_t tokens,
                                    uint32_t heads, uint32_t dim, uint32_t isa, const char *parameters) {
    uint32_t bits = strstr(parameters, "bits=2") != NULL ? 2 : strstr(parameters, "bits=4") != NULL ? 4 : 3;
    make_artifact(a, bits, heads, dim);
    const kvant_setup setup = {.side = side,
                               .dtype = dtype,
                               .block_tokens = tokens,
                               .kv_heads = heads,
                               .head_dim = dim,
                               .isa = isa,
                               .tensors = a->tensors,
                               .tensor_count = 5};
    return kvant_test_codec_open_setup("kvquant", &setup, parameters);
}

/* ---- All levels alike
 * ------------------------------------------------------------------------------------ */

static const char *const variants[] = {
    "bits=2",
    "bits=3",
    "bits=4",
    "bits=3 outliers=none",
    "bits=3 cap=2",
    "bits=4 cap=1 arithmetic=simulated",
    "bits=2 arithmetic=deployed",
    "bits=4 arithmetic=deployed qnorm=yes",
    "bits=3 qnorm=yes",
    "bits=3 axis=token",
    "bits=4 axis=token codebook=uniform fraction=0.3",
    "bits=2 axis=token cap=3",
    "bits=4 axis=token arithmetic=deployed outliers=none",
    "bits=3 axis=token cap=2 arithmetic=simulated fraction=0.2",
    "bits=3 axis=channel",
    "bits=3 axis=channel thresholds=dynamic codebook=nf",
    "bits=4 axis=channel thresholds=dynamic cap=1",
    "bits=2 axis=channel thresholds=dynamic outliers=none",
    "bits=3 meta=f16",
    "bits=4 axis=token meta=bf16",
};

/* Numbers of every kind: plain, outlier channels, equal runs, huge, tiny, zero of both signs. */
static float hard_number(uint64_t *seed, uint32_t token, uint32_t channel, uint32_t kind, float most) {
    float x = (float)kvant_test_normal(seed);
    if (kind == 1) return channel % 7 == 3 ? 30 * x + 5 : x + 2;
    if (kind == 2) return (float)((int)(x * 2)) * 0.5f; /* ties, both zeros */
    if (kind == 3) return token % 5 == 2 ? 1.75f : channel % 13 == 4 ? -most : x;
    if (kind == 4) return (token + channel) % 17 == 0 ? most * (x > 0 ? 1.0f : -1.0f) : x * 1e-7f;
    if (kind == 5) return most * 0.9f * (x > 0 ? 1.0f : -1.0f);
    return x;
}

static void one_geometry(const char *variant, uint32_t side, uint32_t dtype, uint32_t tokens, uint32_t heads,
                         uint32_t dim) {
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    size_t elements = (size_t)tokens * heads * dim;
    float most = dtype == KVANT_DTYPE_F16 ? 65504.0f : FLT_MAX * 0.999f;
    artifact *a = malloc(sizeof *a);
    uint8_t *rows = malloc(elements * 4), *first = NULL;
    float *first_values = NULL;
    assert_non_null(a);
    assert_non_null(rows);
    for (uint32_t kind = 0; kind < 6; kind++) {
        uint64_t seed = 77 + kind, size = 0, saturated = 0;
        for (size_t i = 0; i < elements; i++)
            kvant_store_element(
                rows + i * kvant_element_bytes(dtype), dtype,
                hard_number(&seed, (uint32_t)(i / (heads * dim)), (uint32_t)(i % dim), kind, most));
        for (uint32_t k = 0; k < count; k++) {
            kvant_test_codec *c = open_codec(a, side, dtype, tokens, heads, dim, isas[k], variant);
            kvant_test_codec_encode(c, rows, elements);
            float *values = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
            for (size_t i = 0; i < elements; i++)
                if (!isfinite(values[i]))
                    fail_msg("%s: element %zu decodes to %g", variant, i, (double)values[i]);
            if (k == 0) {
                size = c->size;
                saturated = c->saturated;
                first = malloc(size);
                assert_non_null(first);
                memcpy(first, c->extent, size);
                first_values = values;
            } else {
                assert_int_equal(c->size, size);
                assert_int_equal(c->saturated, saturated);
                if (memcmp(c->extent, first, size) != 0)
                    print_error("%s, side %u, dtype %u, %ux%ux%u, kind %u, isa %u:\n", variant, side, dtype,
                                tokens, heads, dim, kind, isas[k]);
                kvant_assert_bytes(c->extent, first, size);
                kvant_assert_bytes(values, first_values, elements * sizeof *values);
                free(values);
            }
            kvant_test_codec_close(c);
        }
        free(first);
        free(first_values);
    }
    free(rows);
    free(a);
}

static void levels_agree(void **state) {
    (void)state;
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++)
        for (uint32_t side = 0; side < 2; side++) {
            one_geometry(variants[v], side, KVANT_DTYPE_F32, 70, 3, 40);
            one_geometry(variants[v], side, KVANT_DTYPE_F16, 9, 5, 17);
            one_geometry(variants[v], side, KVANT_DTYPE_BF16, 64, 1, 128);
            one_geometry(variants[v], side, KVANT_DTYPE_F32, 33, 2, 1);
        }
}

/* ---- Outliers
 * -------------------------------------------------------------------------------------------- */

/* Every element beyond its channel's range comes back, and nothing else is stored; the extent grows with them
 * up to all elements. */
static void outliers_are_never_lost(void **state) {
    enum { TOKENS = 64, HEADS = 3, DIM = 32, ELEMENTS = TOKENS * HEADS * DIM };
    static const double shares[] = {0, .001, .01, .2, 1};
    artifact *a = malloc(sizeof *a);
    float *rows = malloc(ELEMENTS * sizeof *rows);
    (void)state;
    assert_non_null(a);
    assert_non_null(rows);
    for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++) {
        uint64_t seed = 5;
        size_t beyond = 0;
        kvant_test_codec *c = open_codec(a, KVANT_SIDE_KEY, KVANT_DTYPE_F32, TOKENS, HEADS, DIM, kvant_isa(),
                                         "bits=3 meta=f16");
        for (size_t i = 0; i < ELEMENTS; i++) {
            bool out = (double)(kvant_test_random(&seed) >> 11) * 0x1p-53 < shares[s] || shares[s] == 1;
            rows[i] = out ? 1000 + (float)(i % 900)
                          : (a->upper[i % (HEADS * DIM)] + a->lower[i % (HEADS * DIM)]) / 2;
            beyond += out;
        }
        kvant_test_codec_encode(c, rows, ELEMENTS);
        const kvant_layout *l = &c->layout;
        assert_int_equal(c->saturated, 0);
        assert_int_equal((c->size - l->size_min) % l->size_step, 0);
        assert_int_equal((c->size - l->size_min) / l->size_step, (beyond + 15) / 16);
        if (shares[s] == 1) assert_int_equal((c->size - l->size_min) / l->size_step, l->size_steps);
        float *got = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
        for (size_t i = 0; i < ELEMENTS; i++)
            if (rows[i] >= 1000) kvant_assert_close(got[i], rows[i], rows[i] * 0x1p-11f);
        free(got);
        kvant_test_codec_close(c);
    }
    free(rows);
    free(a);
}

/* cap = 2: of five elements beyond each end the farthest two are kept, the rest saturates and is counted. */
static void a_cap_keeps_the_farthest(void **state) {
    enum { TOKENS = 1, HEADS = 2, DIM = 24, ELEMENTS = HEADS * DIM };
    static const uint32_t places[10] = {3, 40, 9, 30, 20, 1, 47, 33, 12, 25};
    static const float sizes[10] = {50, 90, 60, 70, 80, -50, -90, -60, -70, -80};
    static const char *const ways[] = {"bits=3 cap=2", "bits=3 cap=2 arithmetic=simulated"};
    artifact *a = malloc(sizeof *a);
    float rows[ELEMENTS], book[8];
    (void)state;
    assert_non_null(a);
    for (uint32_t i = 0; i < 8; i++) book[i] = (float)i / 3.5f - 1;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        rows[i] = 0.25f;
        a->upper[i] = 1;
        a->lower[i] = -1;
    }
    for (uint32_t i = 0; i < 10; i++) rows[places[i]] = sizes[i];
    a->tensors[0] = tensor("codebook", book, 1, 8, 0);
    a->tensors[1] = tensor("lower", a->lower, 2, HEADS, DIM);
    a->tensors[2] = tensor("upper", a->upper, 2, HEADS, DIM);
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    for (uint32_t k = 0; k < 2 * count; k++) {
        const kvant_setup setup = {.side = KVANT_SIDE_KEY,
                                   .dtype = KVANT_DTYPE_F32,
                                   .block_tokens = TOKENS,
                                   .kv_heads = HEADS,
                                   .head_dim = DIM,
                                   .isa = isas[k / 2],
                                   .tensors = a->tensors,
                                   .tensor_count = 3};
        kvant_test_codec *c = kvant_test_codec_open_setup("kvquant", &setup, ways[k % 2]);
        kvant_test_codec_encode(c, rows, ELEMENTS);
        assert_int_equal(c->saturated, 6);
        assert_int_equal(c->layout.size_steps, 0);
        float *got = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
        for (uint32_t i = 0; i < 10; i++) {
            bool kept = fabsf(sizes[i]) >= 80;
            kvant_assert_close(got[places[i]], kept ? sizes[i] : sizes[i] > 0 ? 1 : -1, 1e-4);
        }
        free(got);
        kvant_test_codec_close(c);
    }
    free(a);
}

/* Equal values at the edge of the tails: each element is stored once, the lower index first. */
static void ties_by_rank_go_to_the_lower_index(void **state) {
    enum { DIM = 40 };
    float rows[DIM];
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    (void)state;
    for (uint32_t i = 0; i < DIM; i++) rows[i] = i % 2 == 0 ? 3 : -1; /* two values only */
    for (uint32_t k = 0; k < count; k++) {
        static const uint32_t want[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        kvant_array array;
        kvant_test_codec *c = kvant_test_codec_open("kvquant", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 1, 1, DIM,
                                                    isas[k], "bits=3 codebook=uniform cap=4");
        kvant_test_codec_encode(c, rows, DIM);
        uint32_t *index = kvant_test_codec_inspect(c, "outlier_index", &array);
        assert_int_equal(array.bytes, sizeof want);
        assert_memory_equal(index, want, sizeof want);
        float *got = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
        for (uint32_t i = 0; i < DIM; i++) kvant_assert_close(got[i], rows[i], 1e-6);
        free(got);
        free(index);
        kvant_test_codec_close(c);
    }
}

/* A constant token decodes exactly and stores no outlier. */
static void constant_tokens_are_exact(void **state) {
    static const float constants[] = {0, 0.1f, -3e38f, 65504, 1e-40f};
    (void)state;
    for (size_t k = 0; k < sizeof constants / sizeof constants[0]; k++) {
        float rows[96];
        for (size_t i = 0; i < 96; i++) rows[i] = constants[k];
        kvant_test_codec *c = kvant_test_codec_open("kvquant", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 3, 1, 32,
                                                    KVANT_ISA_SCALAR, "bits=2 codebook=nf");
        kvant_test_codec_encode(c, rows, 96);
        assert_int_equal(c->size, c->layout.size_min);
        float *got = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
        for (size_t i = 0; i < 96; i++) assert_true(got[i] == rows[i]);
        free(got);
        kvant_test_codec_close(c);
    }
}

/* ---- Setup
 * ----------------------------------------------------------------------------------------------- */

static void plan_refuses(uint32_t side, const char *parameters, kvant_status want, const char *key) {
    kvant_layout layout = {.struct_size = sizeof layout};
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(
        kvant_test_codec_plan("kvquant", side, KVANT_DTYPE_F16, 64, 2, 64, parameters, &layout, &diag), want);
    assert_string_equal(diag.key, key);
    assert_int_equal(layout.block_multiple, 1);
}

static void conflicts_are_refused(void **state) {
    (void)state;
    plan_refuses(KVANT_SIDE_VALUE, "thresholds=static", KVANT_ERROR_CONFLICT, "thresholds");
    plan_refuses(KVANT_SIDE_KEY, "axis=token thresholds=static", KVANT_ERROR_CONFLICT, "thresholds");
    plan_refuses(KVANT_SIDE_KEY, "thresholds=dynamic arithmetic=deployed", KVANT_ERROR_CONFLICT,
                 "arithmetic");
    plan_refuses(KVANT_SIDE_KEY, "outliers=none cap=3", KVANT_ERROR_CONFLICT, "cap");
    plan_refuses(KVANT_SIDE_KEY, "outliers=none fraction=0.02", KVANT_ERROR_CONFLICT, "fraction");
}

static kvant_status open_with(artifact *a, uint32_t side, uint32_t count, uint32_t first_head, uint32_t total,
                              const char *parameters, kvant_diag *diag) {
    artifact spare;
    kvant_test_codec *c =
        open_codec(&spare, side, KVANT_DTYPE_F16, 64, 2, 40, KVANT_ISA_SCALAR, parameters); /* its values */
    c->setup.tensors = a->tensors;
    c->setup.tensor_count = count;
    c->setup.first_kv_head = first_head;
    c->setup.total_kv_heads = total;
    memset(c->state, 0, c->layout.state_bytes);
    kvant_status status = c->plugin->open(&c->setup, &c->layout, c->state, diag);
    kvant_test_codec_close(c);
    return status;
}

static void artifacts_are_checked(void **state) {
    artifact *a = malloc(sizeof *a);
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)state;
    assert_non_null(a);
    make_artifact(a, 3, 4, 40);
    assert_int_equal(open_with(a, KVANT_SIDE_KEY, 5, 2, 4, "bits=3", &diag), KVANT_OK);
    assert_int_equal(open_with(a, KVANT_SIDE_KEY, 5, 0, 2, "bits=3", &diag), KVANT_ERROR_MISMATCH);
    kvant_assert_contains(diag.message, "upper");
    assert_int_equal(open_with(a, KVANT_SIDE_KEY, 0, 0, 4, "bits=3", &diag), KVANT_ERROR_MISSING);
    assert_int_equal(open_with(a, KVANT_SIDE_KEY, 4, 0, 4, "bits=3", &diag), KVANT_ERROR_MISSING);
    kvant_assert_contains(diag.message, "\"upper\" of layer 0, key");
    assert_int_equal(open_with(a, KVANT_SIDE_VALUE, 0, 0, 4, "bits=3", &diag), KVANT_ERROR_MISSING);
    kvant_assert_contains(diag.message, "codebook");
    assert_int_equal(open_with(a, KVANT_SIDE_VALUE, 0, 0, 4, "bits=3 codebook=nf", &diag), KVANT_OK);
    assert_int_equal(open_with(a, KVANT_SIDE_VALUE, 2, 0, 4, "bits=3 qnorm=yes", &diag), KVANT_ERROR_MISSING);
    assert_int_equal(open_with(a, KVANT_SIDE_VALUE, 1, 0, 4, "bits=2", &diag), KVANT_ERROR_MISMATCH);
    a->book[3] = a->book[2] - 1;
    assert_int_equal(open_with(a, KVANT_SIDE_VALUE, 1, 0, 4, "bits=3", &diag), KVANT_ERROR_MISMATCH);
    kvant_assert_contains(diag.message, "number 3");
    a->upper[50] = NAN;
    assert_int_equal(open_with(a, KVANT_SIDE_KEY, 5, 0, 4, "bits=3", &diag), KVANT_ERROR_MISMATCH);
    kvant_assert_contains(diag.message, "number 50");
    free(a);
}

/* A rank reads its own heads: the bytes are those of the same heads in a codec of all. */
static void ranks_read_their_own_heads(void **state) {
    enum { TOKENS = 16, DIM = 40 };
    artifact *a = malloc(sizeof *a);
    float rows[TOKENS * 4 * DIM], own[TOKENS * 2 * DIM];
    uint64_t seed = 3;
    (void)state;
    assert_non_null(a);
    for (size_t i = 0; i < TOKENS * 4 * DIM; i++) rows[i] = 2 * (float)kvant_test_normal(&seed);
    for (size_t t = 0; t < TOKENS; t++)
        memcpy(own + t * 2 * DIM, rows + (t * 4 + 2) * DIM, 2 * DIM * sizeof(float));
    kvant_test_codec *all =
        open_codec(a, KVANT_SIDE_KEY, KVANT_DTYPE_F32, TOKENS, 4, DIM, KVANT_ISA_SCALAR, "bits=3");
    kvant_setup setup = all->setup;
    setup.kv_heads = 2;
    setup.first_kv_head = 2;
    kvant_test_codec *rank = kvant_test_codec_open_setup("kvquant", &setup, "bits=3");
    kvant_test_codec_encode(all, rows, TOKENS * 4 * DIM);
    kvant_test_codec_encode(rank, own, TOKENS * 2 * DIM);
    float *whole = kvant_test_codec_decode(all, KVANT_DTYPE_F32),
          *part = kvant_test_codec_decode(rank, KVANT_DTYPE_F32);
    for (size_t t = 0; t < TOKENS; t++)
        kvant_assert_bytes(part + t * 2 * DIM, whole + (t * 4 + 2) * DIM, 2 * DIM * sizeof(float));
    free(whole);
    free(part);
    kvant_test_codec_close(rank);
    kvant_test_codec_close(all);
    free(a);
}

/* N(0,1) values, per token over 512 channels, no artifact; the numbers are those of the formula in Python. */
static void errors_stay_within_bands(void **state) {
    enum { TOKENS = 64, HEADS = 4, DIM = 128, ELEMENTS = TOKENS * HEADS * DIM };
    static const struct {
        const char *parameters;
        double nmse;
    } cases[] = {
        {"bits=2 codebook=nf", 0.2949},
        {"bits=3 codebook=nf", 0.0392},
        {"bits=4 codebook=nf", 0.00823},
        {"bits=4 codebook=uniform", 0.00883},
        {"bits=3 codebook=uniform outliers=none", 0.0625},
        {"bits=3 codebook=nf outliers=none", 0.0492},
    };
    float *rows = malloc(ELEMENTS * sizeof *rows);
    uint64_t seed = 12;
    (void)state;
    assert_non_null(rows);
    for (size_t i = 0; i < ELEMENTS; i++) rows[i] = (float)kvant_test_normal(&seed);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        double error = 0, size = 0;
        kvant_test_codec *c = kvant_test_codec_open("kvquant", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, TOKENS,
                                                    HEADS, DIM, kvant_isa(), cases[k].parameters);
        kvant_test_codec_encode(c, rows, ELEMENTS);
        float *got = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
        for (size_t i = 0; i < ELEMENTS; i++) {
            error += ((double)got[i] - (double)rows[i]) * ((double)got[i] - (double)rows[i]);
            size += (double)rows[i] * (double)rows[i];
        }
        kvant_assert_within(error / size, cases[k].nmse, .03);
        free(got);
        kvant_test_codec_close(c);
    }
    free(rows);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_agree),
        cmocka_unit_test(outliers_are_never_lost),
        cmocka_unit_test(a_cap_keeps_the_farthest),
        cmocka_unit_test(ties_by_rank_go_to_the_lower_index),
        cmocka_unit_test(constant_tokens_are_exact),
        cmocka_unit_test(conflicts_are_refused),
        cmocka_unit_test(artifacts_are_checked),
        cmocka_unit_test(ranks_read_their_own_heads),
        cmocka_unit_test(errors_stay_within_bands),
    };
    return kvant_run_tests(tests, argc, argv);
}
