/* MXFP4 against four projects: the mx.* cases of data/nvfp4.safetensors, through the plugin's own encode,
 * inspect and decode, on both sides, at every instruction set of this machine. Rows are blocks of 32; they
 * are encoded as heads of 32 channels, and two by two as heads of 64.
 *
 *     torchao_floor, _even, _ceil, _rceil    bit for bit. Where the scale byte is 0 and the block is not zero
 *                    torchao encodes with 2^-126 or 1 and decodes with 2^-127: there the codec's own rule is
 *                    tested, that decoded numbers are the nearest
 *     ct             compressed-tensors, the rule even
 *     modelopt       rceil, but ties go toward zero, and +0 has a minus sign
 *     gguf           floor, but ties go toward zero; below 2^-124 its byte wraps
 */
#include "support/test.h"
#include "support/test_codec.h"

#include <data/safetensors.h>
#include <kvant/kit/e8m0.h>
#include <kvant/kit/float4.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 32 };

static kvant_safetensors *file;
static uint32_t looked; /* tensors, of one pass */

typedef struct subject {
    const char *name;
    const float *x; /* [blocks, 32] */
    uint32_t blocks, dim, side, isa;
} subject;

typedef struct encoded {
    uint8_t *codes, *scales;
    float *decoded;
} encoded;

static const kvant_array *need(const char *name, const char *what) {
    char full[96];
    (void)snprintf(full, sizeof full, "mx.%s.%s", name, what);
    const kvant_array *array = kvant_safetensors_find(file, full);
    if (array == NULL) fail_msg("%s is missing", full);
    looked++;
    return array;
}

static const uint8_t *bytes_of(const subject *s, const char *what, size_t size) {
    const kvant_array *array = need(s->name, what);
    assert_int_equal(array->bytes, s->blocks * size);
    return array->data;
}

static encoded encode(const subject *s, const char *exponent) {
    char parameters[64];
    encoded e;
    kvant_array array;
    size_t count = (size_t)s->blocks * WIDTH;
    (void)snprintf(parameters, sizeof parameters, "format=mxfp4 exponent=%s", exponent);
    kvant_test_codec *codec = kvant_test_codec_open("nvfp4", s->side, KVANT_DTYPE_F32,
                                                    (uint32_t)count / s->dim, 1, s->dim, s->isa, parameters);
    kvant_test_codec_encode(codec, s->x, count);
    assert_int_equal(codec->saturated, 0); /* what the rules clip is on purpose */
    e.codes = kvant_test_codec_inspect(codec, "codes", &array);
    assert_int_equal(array.bytes, count);
    e.scales = kvant_test_codec_inspect(codec, "scale", &array);
    assert_int_equal(array.bytes, s->blocks);
    assert_int_equal(array.dtype, KVANT_DTYPE_F8_E8M0);
    e.decoded = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    kvant_test_codec_close(codec);
    return e;
}

static void discard(encoded *e) {
    free(e->codes);
    free(e->scales);
    free(e->decoded);
}

static float amax_of(const subject *s, uint32_t block) {
    float amax = 0.0f;
    for (uint32_t i = 0; i < WIDTH; i++) amax = fmaxf(amax, fabsf(s->x[block * WIDTH + i]));
    return amax;
}

static bool is_tie(double y) {
    static const double ties[] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
    for (size_t i = 0; i < sizeof ties / sizeof ties[0]; i++)
        if (fabs(y) == ties[i]) return true;
    return false;
}

/* x^ = e2m1 * 2^(b-127), at most the largest float, and no other code would be nearer. */
static void check_nearest(const subject *s, const encoded *e, uint32_t block) {
    double scale = ldexp(1, e->scales[block] - 127);
    for (size_t i = (size_t)block * WIDTH; i < (size_t)(block + 1) * WIDTH; i++) {
        double error = fabs(kvant_e2m1_to_f32(e->codes[i]) * scale - (double)s->x[i]);
        double value = kvant_e2m1_to_f32(e->codes[i]) * scale, most = 0x1.fffffep127;
        kvant_assert_close(e->decoded[i], fmax(-most, fmin(value, most)), 0);
        for (uint8_t code = 0; code < 16; code++)
            assert_true(error <= fabs(kvant_e2m1_to_f32(code) * scale - (double)s->x[i]));
    }
}

static uint8_t pair_at(const uint8_t *codes, size_t i) {
    return codes[i / 2] >> i % 2 * 4 & 15;
}

static void check_torchao(const subject *s, const char *rule, const encoded *e) {
    char name[32];
    (void)snprintf(name, sizeof name, "torchao_%s.codes", rule);
    const uint8_t *codes = bytes_of(s, name, WIDTH / 2);
    (void)snprintf(name, sizeof name, "torchao_%s.sf", rule);
    const uint8_t *scales = bytes_of(s, name, 1);
    kvant_assert_bytes(e->scales, scales, s->blocks);
    for (uint32_t b = 0; b < s->blocks; b++) {
        check_nearest(s, e, b);
        if (scales[b] == 0 && amax_of(s, b) > 0) continue;
        for (size_t i = (size_t)b * WIDTH; i < (size_t)(b + 1) * WIDTH; i++)
            if (e->codes[i] != pair_at(codes, i))
                fail_msg("mx.%s.%s: element %zu is %u, not %u (isa %u)", s->name, name, i, e->codes[i],
                         pair_at(codes, i), s->isa);
    }
}

static void check_compressed_tensors(const subject *s, const encoded *e) {
    const uint8_t *codes = bytes_of(s, "ct.codes", WIDTH / 2);
    const uint8_t *scales = bytes_of(s, "ct.scale_f32", sizeof(float));
    for (uint32_t b = 0; b < s->blocks; b++) {
        float scale;
        memcpy(&scale, scales + b * sizeof scale, sizeof scale);
        if (isinf(scale) || e->scales[b] == 0) continue; /* it divides by infinity, or has no such byte */
        assert_true(scale == kvant_e8m0_to_f32(e->scales[b]));
        for (size_t i = (size_t)b * WIDTH; i < (size_t)(b + 1) * WIDTH; i++) {
            uint8_t theirs = pair_at(codes, i);
            if (theirs != e->codes[i] && ((theirs | e->codes[i]) & 7) != 0)
                fail_msg("mx.%s.ct: element %zu is %u, not %u", s->name, i, e->codes[i], theirs);
        }
    }
}

/* The same magnitude, or, at a tie, the one below. */
static void check_toward_zero(const subject *s, const encoded *e, size_t i, uint8_t theirs) {
    double y = (double)s->x[i] / ldexp(1, e->scales[i / WIDTH] - 127);
    uint32_t ours = e->codes[i] & 7;
    if ((theirs & 7) != ours && !(is_tie(y) && (theirs & 7u) + 1 == ours))
        fail_msg("mx.%s: element %zu is %u, not %u", s->name, i, e->codes[i], theirs);
    if (ours != 0 && (theirs & 7) != 0) assert_int_equal(theirs & 8, e->codes[i] & 8);
}

static void check_modelopt(const subject *s, const encoded *e) {
    const uint8_t *codes = bytes_of(s, "modelopt.codes", WIDTH / 2), *scales = bytes_of(s, "modelopt.sf", 1);
    for (uint32_t b = 0; b < s->blocks; b++) {
        float amax = amax_of(s, b);
        if (amax < 0x1p-124f) continue; /* its logarithm of so small a float is not exact */
        assert_int_equal(e->scales[b], scales[b]);
        for (size_t i = (size_t)b * WIDTH; i < (size_t)(b + 1) * WIDTH; i++)
            check_toward_zero(s, e, i, pair_at(codes, i));
    }
}

static void check_gguf(const subject *s, const encoded *e) {
    const uint8_t *rows = bytes_of(s, "gguf", 1 + WIDTH / 2);
    for (uint32_t b = 0; b < s->blocks; b++) {
        const uint8_t *row = rows + (size_t)b * (1 + WIDTH / 2);
        if (amax_of(s, b) < 0x1p-124f) continue;
        assert_int_equal(e->scales[b], row[0]);
        for (size_t i = 0; i < WIDTH; i++)
            check_toward_zero(s, e, (size_t)b * WIDTH + i, row[1 + i % 16] >> i / 16 * 4 & 15);
    }
}

static void check_case(subject *s) {
    static const char *const rules[] = {"floor", "even", "ceil", "rceil"};
    const kvant_array *x = need(s->name, "x");
    s->x = x->data;
    s->blocks = (uint32_t)x->shape[0];
    if (s->blocks * WIDTH % s->dim != 0) s->dim = WIDTH;
    for (size_t r = 0; r < 4; r++) {
        encoded e = encode(s, rules[r]);
        check_torchao(s, rules[r], &e);
        if (r == 0) check_gguf(s, &e);
        if (r == 1) check_compressed_tensors(s, &e);
        if (r == 3) check_modelopt(s, &e);
        discard(&e);
    }
}

static void every_case(void **state) {
    static const char *const cases[] = {"gauss_D64", "gauss_D128", "gauss_D256", "range_D128",
                                        "f32_D128",  "mx_edge",    "mx_ties"};
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas), tensors = 0;
    (void)state;
    for (uint32_t i = 0; i < kvant_safetensors_count(file); i++)
        tensors += strncmp(kvant_safetensors_at(file, i)->name, "mx.", 3) == 0;
    for (uint32_t i = 0; i < isa_count; i++)
        for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++)
            for (uint32_t dim = WIDTH; dim <= 2 * WIDTH; dim += WIDTH) {
                looked = 0;
                for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
                    check_case(&(subject){.name = cases[c], .dim = dim, .side = side, .isa = isas[i]});
                assert_int_equal(looked, tensors); /* every one once */
            }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(every_case)};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_open(KVANT_TEST_SOURCE_DIR "/tests/golden/data/nvfp4.safetensors", &file, &diag) !=
        KVANT_OK) {
        fprintf(stderr, "%s\n", diag.message);
        return EXIT_FAILURE;
    }
    int status = kvant_run_tests(tests, argc, argv);
    kvant_safetensors_close(file);
    return status;
}
