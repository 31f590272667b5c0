/* turboquant against the vectors of data/turboquant.safetensors, through the plugin's own encode, inspect and
 * decode, on both sides, at every instruction set of this machine.
 *
 *     <case>.x, .signs, .norm, .rot              rows; what the rotation makes of them
 *     <case>.b<bits>.codes, .packed              codebook indices; FAISS's bytes for them
 *     <case>.b<bits>.scale_*, .dq_*, .cnorm, .ydotc
 *     wht128.eden_{unb,biased}.b<bits>.{bytes,dq}  FAISS's IndexEDEN on rot * sqrt(128)
 *     hadamard.n<N>.{x,y}                        Sylvester's order
 *     faiss.d<D>.b<bits>.trained                 codebooks
 *     prod.{ortho,gauss}.b<bits>.{raw,nc}.*      algorithm 2 with given matrices
 *
 * Not claimed: llamacpp.* (another layout, tables of 5 digits, one of them mis-scaled), tqp_table.* (not
 * converged), and of eden_biased the scale (least squares); unbias.* is in turboquant_bias.c. */
#include "support/test.h"
#include "support/test_codec.h"

#include "turboquant/turboquant_state.h"

#include <data/safetensors.h>
#include <kvant/kit/hadamard.h>
#include <kvant/kit/lloyd_max.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvant_safetensors *file;

static const kvant_array *find(const char *format, ...) {
    char name[96];
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    return kvant_safetensors_find(file, name);
}

static const kvant_array *need(const kvant_array *array) {
    if (array == NULL) fail_msg("a tensor is missing");
    return array;
}

static double number(const kvant_array *array, size_t i) {
    const char *data = array->data;
    float single;
    double wide;
    switch (array->dtype) {
    case KVANT_DTYPE_F32:
        memcpy(&single, data + 4 * i, 4);
        return (double)single;
    case KVANT_DTYPE_F64:
        memcpy(&wide, data + 8 * i, 8);
        return wide;
    case KVANT_DTYPE_I8:
        return ((const int8_t *)(const void *)data)[i];
    default:
        return ((const uint8_t *)(const void *)data)[i];
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static const struct rows {
    const char *name;
    uint32_t dim, count, seed;
} cases[] = {
    {"sin128", 128, 1, 42}, {"wht64", 64, 12, 1064}, {"wht128", 128, 12, 1128}, {"wht256", 256, 12, 1256}};

static float *floats(const kvant_array *array) {
    float *x = malloc(array->bytes);
    assert_non_null(x);
    memcpy(x, array->data, array->bytes);
    return x;
}

static void check_codes(const struct rows *r, uint32_t bits, const uint8_t *codes) {
    const kvant_array *want = need(find("%s.b%u.codes", r->name, bits));
    const kvant_array *packed = need(find("%s.b%u.packed", r->name, bits));
    size_t row_bytes = r->dim * bits / 8;
    kvant_assert_bytes(codes, want->data, (size_t)r->count * r->dim);
    for (size_t t = 0; t < r->count; t++) {
        uint8_t bytes[256] = {0};
        for (size_t j = 0; j < r->dim; j++) {
            size_t at = j * bits;
            uint32_t two = (uint32_t)codes[t * r->dim + j] << at % 8;
            bytes[at / 8] = (uint8_t)(bytes[at / 8] | two);
            if (two > 255) bytes[at / 8 + 1] = (uint8_t)(bytes[at / 8 + 1] | two >> 8);
        }
        /* FAISS sends the zeros of the zero row down with 1 bit, as it does with no other width. */
        if (bits == 1 && number(find("%s.norm", r->name), t) == 0) memset(bytes, 0, sizeof bytes);
        kvant_assert_bytes(bytes, (const uint8_t *)packed->data + t * row_bytes, row_bytes);
        for (int biased = 0; biased < 2; biased++) {
            const kvant_array *eden = find("%s.eden_%s.b%u.bytes", r->name, biased ? "biased" : "unb", bits);
            if (eden != NULL && number(find("%s.norm", r->name), t) > 0)
                kvant_assert_bytes(bytes, (const uint8_t *)eden->data + t * (row_bytes + 8), row_bytes);
        }
    }
}

/* scale: ours, in units of the root mean square. */
static void check_scale(const struct rows *r, uint32_t bits, const char *mode, const float *scale) {
    const kvant_array *want = need(find("%s.b%u.scale_%s", r->name, bits, mode));
    const kvant_array *eden = find("%s.eden_%s.b%u.bytes", r->name, mode, bits);
    for (size_t t = 0; t < r->count; t++) {
        double norm = number(find("%s.norm", r->name), t), got = (double)scale[t] * sqrt(r->dim);
        kvant_assert_close(got, number(want, t), 1e-6 * number(want, t));
        if (strcmp(mode, "nc") == 0 && norm > 0)
            kvant_assert_within(norm / got, number(find("%s.b%u.cnorm", r->name, bits), t), 1e-6);
        if (strcmp(mode, "unb") == 0 && norm > 0)
            kvant_assert_within(norm / got, number(find("%s.b%u.ydotc", r->name, bits), t), 1e-6);
        if (eden == NULL || norm == 0) continue;
        float theirs; /* of rows with root mean square 1 */
        size_t row = r->dim * bits / 8 + 8;
        memcpy(&theirs, (const char *)eden->data + t * row + row - 4, 4);
        kvant_assert_within((double)scale[t] * sqrt(r->dim) / norm, theirs, 1e-6);
    }
}

/* Errors against the norm of a row: an element near zero has no relative one. */
static void check_values(const struct rows *r, const kvant_array *want, const float *got) {
    if (want == NULL) return;
    for (size_t t = 0; t < r->count; t++) {
        double worst = 0, norm = number(find("%s.norm", r->name), t);
        for (size_t i = t * r->dim; i < (t + 1) * r->dim; i++)
            worst = fmax(worst, fabs((double)got[i] - number(want, i)));
        kvant_assert_close(worst, 0, 1e-6 * norm);
    }
}

static void check_row_case(const struct rows *r, uint32_t bits, const char *mode, const char *word,
                           uint32_t side, uint32_t isa) {
    char parameters[96];
    kvant_array array;
    float *x = floats(need(find("%s.x", r->name)));
    snprintf(parameters, sizeof parameters, "bits=%u scale_mode=%s scale_type=f32 seed=%u", bits, word,
             r->seed);
    kvant_test_codec *codec =
        kvant_test_codec_open("turboquant", side, KVANT_DTYPE_F32, r->count, 1, r->dim, isa, parameters);
    kvant_test_codec_encode(codec, x, (size_t)r->count * r->dim);
    uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
    float *scale = kvant_test_codec_inspect(codec, "scale", &array);
    float *values = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    check_codes(r, bits, codes);
    check_scale(r, bits, mode, scale);
    check_values(r, find("%s.b%u.dq_%s", r->name, bits, mode), values);
    if (strcmp(mode, "nc") == 0) check_values(r, find("%s.b%u.dq_nc_turboquant_plus", r->name, bits), values);
    assert_int_equal(codec->saturated, 0);
    free(x);
    free(codes);
    free(scale);
    free(values);
    kvant_test_codec_close(codec);
}

static void rows_of_algorithm_1(void **state) {
    (void)state;
    static const char *const modes[][2] = {{"raw", "raw"}, {"nc", "norm_corrected"}, {"unb", "unbiased"}};
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (uint32_t bits = 1; bits <= 4; bits++)
            for (size_t m = 0; m < 3; m++)
                for (uint32_t k = 0; k < 2 * isa_count; k++)
                    check_row_case(&cases[c], bits, modes[m][0], modes[m][1], k & 1, isas[k / 2]);
}

/* The signs that a seed gives, which the file has, and the rotation itself, with 8 bits. */
static void signs_and_rotation(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const struct rows *r = &cases[c];
        char parameters[32];
        snprintf(parameters, sizeof parameters, "bits=8 seed=%u", r->seed);
        kvant_test_codec *codec = kvant_test_codec_open("turboquant", KVANT_SIDE_KEY, KVANT_DTYPE_F32, 1, 1,
                                                        r->dim, KVANT_ISA_SCALAR, parameters);
        const turboquant_state *s = codec->state;
        const kvant_array *signs = need(find("%s.signs", r->name)), *x = need(find("%s.x", r->name));
        assert_int_equal(s->tables[0].rotation.rounds, 1);
        for (uint32_t i = 0; i < r->dim; i++)
            kvant_assert_within(s->tables[0].rotation.weights[i] * sqrtf((float)r->dim), number(signs, i),
                                1e-6);
        const kvant_array *rot = need(find("%s.rot", r->name));
        for (size_t t = 0; t < r->count; t++) {
            float row[256];
            double norm = number(find("%s.norm", r->name), t);
            for (uint32_t i = 0; i < r->dim; i++)
                row[i] = (float)number(x, t * r->dim + i) * s->tables[0].rotation.weights[i];
            kvant_hadamard(row, r->dim);
            for (uint32_t i = 0; i < r->dim; i++)
                kvant_assert_close(row[i], number(rot, t * r->dim + i) * norm, 1e-6 * norm);
        }
        kvant_test_codec_close(codec);
    }
}

/* FAISS's EDEN decodes in the rotated basis: centroid times scale. */
static void eden_values(void **state) {
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        double centroids[256], boundaries[256];
        kvant_lloyd_max(0, bits, centroids, boundaries);
        const kvant_array *dq = need(find("wht128.eden_unb.b%u.dq", bits));
        const kvant_array *codes = need(find("wht128.b%u.codes", bits));
        const kvant_array *scale = need(find("wht128.b%u.scale_unb", bits));
        for (size_t i = 0; i < 12 * 128; i++) {
            double norm = number(find("wht128.norm"), i / 128);
            double want = norm > 0 ? centroids[(size_t)number(codes, i)] * number(scale, i / 128) / norm : 0;
            kvant_assert_close(number(dq, i), want, 1e-6 * (fabs(want) + 1));
        }
    }
}

static void tables(void **state) {
    (void)state;
    static const uint32_t dims[] = {64, 80, 96, 128, 256};
    for (uint32_t n = 2; n <= 256; n *= 2) {
        const kvant_array *x = need(find("hadamard.n%u.x", n)), *y = need(find("hadamard.n%u.y", n));
        for (size_t t = 0; t < 3; t++) {
            float row[256];
            memcpy(row, (const char *)x->data + t * n * sizeof *row, n * sizeof *row);
            kvant_hadamard(row, n);
            kvant_assert_bytes(row, (const char *)y->data + t * n * sizeof *row, n * sizeof *row);
        }
    }
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
        for (uint32_t bits = 1; bits <= 4; bits++) {
            double centroids[256], boundaries[256];
            kvant_lloyd_max(0, bits, centroids, boundaries);
            const kvant_array *trained = need(find("faiss.d%u.b%u.trained", dims[d], bits));
            uint32_t count = 1u << bits;
            for (uint32_t k = 0; k < 2 * count - 1; k++) {
                double want = (k < count ? centroids[k] : boundaries[k - count]) / sqrt(dims[d]);
                kvant_assert_close(number(trained, k), want, 2.4e-7 * fabs(want));
            }
        }
}

/* ---- Algorithm 2 --------------------------------------------------------------------------------------- */

enum { DIM = 64, KEYS = 8 };

/* Puts the file's S into the state of a codec with sketch = gaussian, which multiplies rotated residuals:
 * row j becomes R S_j. An orthogonal S has the coefficient sqrt(pi/2) / sqrt(d) instead of sqrt(pi/2) / d. */
static void put_matrix(turboquant_state *s, const kvant_array *matrix, bool ortho) {
    const float *weights = s->tables[0].rotation.weights;
    for (uint32_t j = 0; j < DIM; j++)
        for (uint32_t i = 0; i < DIM; i++) {
            double sum = 0;
            for (uint32_t m = 0; m < DIM; m++)
                sum += number(matrix, j * DIM + m) * (double)weights[m] * (__builtin_parity(i & m) ? -1 : 1);
            s->tables[0].matrix[i * DIM + j] = (float)(ortho ? sqrt(DIM) * sum : sum);
        }
}

/* Signs that no rounding can turn: |S e| / |e| above 1e-5. Returns the rows that have others, as bits. */
static uint32_t check_signs(const turboquant_state *s, const char *name, const uint8_t *codes,
                            const uint8_t *signs, const float *scale) {
    const kvant_array *qjl = need(find("%s.qjl", name)), *k = need(find("prod.k"));
    const turboquant_tables *t = &s->tables[0];
    uint32_t skipped = 0;
    for (uint32_t r = 0; r < KEYS; r++) {
        double e[DIM], length = 0;
        for (uint32_t i = 0; i < DIM; i++) {
            e[i] = -(double)t->centroids[codes[r * DIM + i]] * (double)scale[r];
            for (uint32_t m = 0; m < DIM; m++)
                e[i] += number(k, r * DIM + m) * (double)t->rotation.weights[m] *
                        (__builtin_parity(i & m) ? -1 : 1);
            length += e[i] * e[i];
        }
        for (uint32_t j = 0; j < DIM; j++) {
            double sum = 0;
            for (uint32_t i = 0; i < DIM; i++) sum += (double)t->matrix[i * DIM + j] * e[i];
            if (fabs(sum) < 1e-4 * sqrt(length)) { /* the matrix may be sqrt(64) times as large */
                skipped |= 1u << r;
                continue;
            }
            assert_int_equal(signs[r * DIM + j], number(qjl, r * DIM + j) > 0);
        }
    }
    return skipped;
}

static void check_prod(const char *kind, uint32_t bits, const char *mode, uint32_t side, uint32_t isa) {
    char name[48], parameters[128];
    kvant_array array;
    bool ortho = strcmp(kind, "ortho") == 0;
    snprintf(name, sizeof name, "prod.%s.b%u.%s", kind, bits, mode);
    snprintf(parameters, sizeof parameters,
             "mode=prod sketch=gaussian bits=%u scale_mode=%s scale_type=f32 seed=77", bits,
             strcmp(mode, "nc") == 0 ? "norm_corrected" : "raw");
    kvant_test_codec *codec =
        kvant_test_codec_open("turboquant", side, KVANT_DTYPE_F32, KEYS, 1, DIM, isa, parameters);
    put_matrix(codec->state, need(find("prod.%s.S", kind)), ortho);
    float *k = floats(need(find("prod.k")));
    kvant_test_codec_encode(codec, k, KEYS * DIM);
    uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
    uint8_t *signs = kvant_test_codec_inspect(codec, "signs", &array);
    float *scale = kvant_test_codec_inspect(codec, "scale", &array);
    float *residual = kvant_test_codec_inspect(codec, "residual", &array);
    float *values = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    kvant_assert_bytes(codes, need(find("%s.codes", name))->data, KEYS * DIM);
    uint32_t skipped = check_signs(codec->state, name, codes, signs, scale);
    assert_true(__builtin_popcount(skipped) <= 3);
    for (uint32_t r = 0; r < KEYS; r++) {
        double norm = number(need(find("%s.norm", name)), r);
        double length =
            ortho ? number(need(find("%s.rnorm", name)), r) : number(need(find("%s.gamma", name)), r) * norm;
        kvant_assert_within((double)residual[r] * sqrt(DIM), length, 1e-6 * norm / length + 1e-6);
        if ((skipped >> r & 1) != 0) continue; /* one other sign moves every value */
        for (uint32_t i = r * DIM; i < (r + 1) * DIM; i++)
            kvant_assert_close(values[i], number(need(find("%s.dq", name)), i), 2e-6 * norm);
        for (uint32_t q = 0; q < KEYS; q++) {
            double dot = 0, size = 0;
            for (uint32_t i = 0; i < DIM; i++) {
                double x = number(find("prod.q"), q * DIM + i);
                dot += x * (double)values[r * DIM + i];
                size += x * x;
            }
            kvant_assert_close(dot, number(need(find("%s.dots", name)), q * KEYS + r),
                               2e-6 * norm * sqrt(size));
        }
    }
    free(k);
    free(codes);
    free(signs);
    free(scale);
    free(residual);
    free(values);
    kvant_test_codec_close(codec);
}

static void algorithm_2(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    for (uint32_t bits = 2; bits <= 4; bits++)
        for (uint32_t k = 0; k < 2 * isa_count; k++) {
            check_prod("ortho", bits, "raw", k & 1, isas[k / 2]);
            check_prod("ortho", bits, "nc", k & 1, isas[k / 2]);
            check_prod("gauss", bits, "raw", k & 1, isas[k / 2]);
        }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(tables), cmocka_unit_test(signs_and_rotation),
                                              cmocka_unit_test(rows_of_algorithm_1),
                                              cmocka_unit_test(eden_values), cmocka_unit_test(algorithm_2)};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_open(KVANT_TEST_SOURCE_DIR "/tests/golden/data/turboquant.safetensors", &file,
                               &diag) != KVANT_OK) {
        fprintf(stderr, "%s\n", diag.message);
        return EXIT_FAILURE;
    }
    int status = kvant_run_tests(tests, argc, argv);
    kvant_safetensors_close(file);
    return status;
}
