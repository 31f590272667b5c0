/* What the parameters of `uniform` do: each changes bytes, combinations without meaning are refused by
 * name, bits are counted exactly, and static scales come from a number or from an artifact. */
#include "support/test_codec.h"
#include "support/test.h"

#include <kvant/kit/half.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, HEADS = 2, DIM = 128, COUNT = TOKENS * HEADS * DIM };

static void fill(float *x, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(kvant_test_normal(&seed) * (i % 37 == 0 ? 12 : 1) + 0.375);
}

/* ---- Effects ------------------------------------------------------------------------------------------- */

static const struct {
    const char *one, *other;
} effects[] = {
    {"format=int8", "format=e4m3"},
    {"format=e4m3", "format=e5m2"},
    {"format=int8", "format=int4"},
    {"format=int4", "format=int3"},
    {"format=int3", "format=int2"},
    {"format=int2", "format=int1"},
    {"granularity=tensor", "granularity=head"},
    {"granularity=head", "granularity=token"},
    {"granularity=token", "granularity=channel"},
    {"granularity=channel", "granularity=group_tokens"},
    {"granularity=token", "granularity=group_channels"},
    {"granularity=group_channels group=32", "granularity=group_channels group=16"},
    {"granularity=group_tokens group=32", "granularity=group_tokens group=16"},
    {"symmetry=symmetric", "symmetry=asymmetric"},
    {"scale=f16", "scale=f32"},
    {"scale=f16", "scale=bf16"},
    {"scale=bf16", "scale=e8m0"},
    {"granularity=tensor", "granularity=tensor scaling=static"},
    {"granularity=tensor scaling=static static_scale=1",
     "granularity=tensor scaling=static static_scale=0.5"},
    {"granularity=tensor scaling=static symmetry=asymmetric static_min=0",
     "granularity=tensor scaling=static symmetry=asymmetric static_min=-1"},
    {"convention=kvant", "convention=compressed_tensors"},
    {"convention=kvant scale=f32", "convention=reciprocal scale=f32"},
    {"convention=kvant granularity=group_channels", "convention=gguf granularity=group_channels"},
    {"convention=compressed_tensors", "convention=quanto"},
};

static void options_change_bytes(void **state) {
    float *x = malloc(COUNT * sizeof *x);
    (void)state;
    assert_non_null(x);
    /* Odd multiples of half an int8 step: ties, where a division and a reciprocal part. */
    for (size_t i = 0; i < COUNT; i++) x[i] = 0.7f * (float)((int)(i * 7919 % 509) - 254);
    for (size_t i = 0; i < sizeof effects / sizeof effects[0]; i++)
        for (uint32_t side = 0; side < 2; side++) {
            kvant_test_codec *a = kvant_test_codec_open("uniform", side, KVANT_DTYPE_F32, TOKENS, HEADS, DIM,
                                                        KVANT_ISA_SCALAR, effects[i].one);
            kvant_test_codec *b = kvant_test_codec_open("uniform", side, KVANT_DTYPE_F32, TOKENS, HEADS, DIM,
                                                        KVANT_ISA_SCALAR, effects[i].other);
            kvant_test_codec_encode(a, x, COUNT);
            kvant_test_codec_encode(b, x, COUNT);
            if (a->size == b->size && memcmp(a->extent, b->extent, a->size) == 0)
                fail_msg("\"%s\" and \"%s\" give the same bytes", effects[i].one, effects[i].other);
            kvant_test_codec_close(a);
            kvant_test_codec_close(b);
        }
    free(x);
}

/* rope is a flag of the layout; the bytes are those of the keys that the host hands over. */
static void rope_is_a_flag(void **state) {
    kvant_layout layout;
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)state;
    assert_int_equal(kvant_test_codec_plan("uniform", 0, KVANT_DTYPE_F16, 64, 1, 64, "", &layout, &diag),
                     KVANT_OK);
    assert_int_equal(layout.flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE, 0);
    assert_int_equal(
        kvant_test_codec_plan("uniform", 0, KVANT_DTYPE_F16, 64, 1, 64, "rope=before", &layout, &diag),
        KVANT_OK);
    assert_int_equal(layout.flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE, KVANT_LAYOUT_KEYS_BEFORE_ROPE);
}

/* Codes of every width reach both ends of their range, and no other code occurs. */
static void all_codes_occur(void **state) {
    static const struct {
        const char *parameters;
        uint32_t codes;
    } cases[] = {
        {"format=int8 granularity=tensor", 255},
        {"format=int8 granularity=tensor symmetry=asymmetric", 256},
        {"format=int8 granularity=tensor convention=compressed_tensors", 256},
        {"format=int4", 15},
        {"format=int4 symmetry=asymmetric", 16},
        {"format=int3", 7},
        {"format=int3 symmetry=asymmetric", 8},
        {"format=int2", 3},
        {"format=int2 symmetry=asymmetric", 4},
        {"format=int1", 2},
        {"format=int1 symmetry=asymmetric", 2},
    };
    enum { MANY = 64 * 8 * 128 };
    float *x = malloc(MANY * sizeof *x);
    (void)state;
    assert_non_null(x);
    for (size_t i = 0; i < MANY; i++) x[i] = (float)(i * 2654435761u % 65536) / 32767.5f - 1.0f; /* even */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool seen[256] = {false};
        uint32_t codes = 0;
        kvant_array array;
        kvant_test_codec *codec = kvant_test_codec_open("uniform", 1, KVANT_DTYPE_F32, 64, 8, 128,
                                                        KVANT_ISA_SCALAR, cases[i].parameters);
        kvant_test_codec_encode(codec, x, MANY);
        uint8_t *got = kvant_test_codec_inspect(codec, "codes", &array);
        for (size_t e = 0; e < MANY; e++) seen[got[e]] = true;
        for (size_t c = 0; c < 256; c++) codes += seen[c];
        if (codes != cases[i].codes)
            fail_msg("%s: %u codes occur, not %u", cases[i].parameters, codes, cases[i].codes);
        free(got);
        kvant_test_codec_close(codec);
    }
    free(x);
}

/* ---- Bits ---------------------------------------------------------------------------------------------- */

static void bits_are_exact(void **state) {
    static const struct {
        const char *parameters;
        uint32_t tokens, heads, dim;
        double payload, metadata, padding; /* bits an element */
    } cases[] = {
        {"format=int4 symmetry=asymmetric", 64, 3, 64, 4, 32.0 / 64, 0}, /* QServe-KV4, Atom-KV4 */
        {"format=int4 symmetry=asymmetric", 64, 8, 128, 4, 32.0 / 128, 0},
        {"format=int8 granularity=group_channels convention=gguf", 64, 3, 64, 8, 0.5, 0},
        {"format=int4 granularity=group_channels convention=gguf", 64, 3, 64, 4, 0.5, 0},
        {"format=int4 granularity=group_channels symmetry=asymmetric", 64, 3, 64, 4, 1, 0},
        {"format=e4m3 granularity=tensor scaling=static", 64, 3, 64, 8, 0, 0},
        {"format=int8", 64, 3, 64, 8, 0.25, 0},
        {"format=int3 granularity=group_tokens symmetry=asymmetric", 64, 1, 128, 3, 1, 0},
        {"format=int8 granularity=tensor scale=f32", 64, 1, 64, 8, 32.0 / 4096,
         480.0 / 4096}, /* a tail of 64 bytes */
        {"format=int8 granularity=head", 64, 2, 64, 8, 16.0 / 4096, 496.0 / 4096},
        {"format=int4 granularity=token symmetry=asymmetric convention=compressed_tensors", 64, 1, 64, 4,
         24.0 / 64, 0},
        {"format=int1 scale=e8m0", 64, 1, 64, 1, 8.0 / 64, 0},
        {"format=int4 granularity=group_channels scale=f32", 64, 1, 100, 4, 4 * 32.0 / 100,
         16.0 / 100}, /* W = 13 words */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint32_t side = 0; side < 1; side++) {
            kvant_layout l;
            kvant_diag diag = {.struct_size = sizeof diag};
            double count = (double)cases[i].tokens * cases[i].heads * cases[i].dim;
            if (kvant_test_codec_plan("uniform", side, KVANT_DTYPE_F16, cases[i].tokens, cases[i].heads,
                                      cases[i].dim, cases[i].parameters, &l, &diag) != KVANT_OK)
                fail_msg("%s: %s", cases[i].parameters, diag.message);
            kvant_assert_close((double)l.payload_bits / count, cases[i].payload, 0);
            kvant_assert_close((double)l.metadata_bits / count, cases[i].metadata, 1e-12);
            kvant_assert_close((double)(8 * l.size_min - l.payload_bits - l.metadata_bits) / count,
                               cases[i].padding, 1e-12);
            assert_int_equal(l.size_steps, 0);
            assert_int_equal(l.size_min % l.alignment, 0);
        }
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

static void refusals(void **state) {
    static const struct {
        const char *parameters, *key, *part;
        uint32_t side, tokens;
        kvant_status status;
    } cases[] = {
        {"format=e4m3 symmetry=asymmetric", "symmetry", "float with a sign", 0, 64, KVANT_ERROR_CONFLICT},
        {"format=e5m2 symmetry=asymmetric", "symmetry", "e5m2", 1, 64, KVANT_ERROR_CONFLICT},
        {"group=32", "group", "granularity = token", 0, 64, KVANT_ERROR_CONFLICT},
        {"granularity=channel group=32", "group", "granularity = channel", 0, 64, KVANT_ERROR_CONFLICT},
        {"static_scale=2", "static_scale", "scaling = dynamic", 0, 64, KVANT_ERROR_CONFLICT},
        {"granularity=tensor scaling=static static_min=2", "static_min", "symmetric", 0, 64,
         KVANT_ERROR_CONFLICT},
        {"scaling=static", "granularity", "one scale for everything", 0, 64, KVANT_ERROR_CONFLICT},
        {"scaling=artifact", "granularity", "no tokens in advance", 0, 64, KVANT_ERROR_CONFLICT},
        {"scaling=artifact granularity=group_tokens", "granularity", "group_tokens", 0, 64,
         KVANT_ERROR_CONFLICT},
        {"rope=before", "rope", "values do not turn", 1, 64, KVANT_ERROR_CONFLICT},
        {"convention=gguf", "granularity", "32 channels", 0, 64, KVANT_ERROR_CONFLICT},
        {"convention=gguf granularity=group_channels group=64", "group", "32", 0, 64, KVANT_ERROR_CONFLICT},
        {"convention=gguf granularity=group_channels scale=bf16", "scale", "f16", 0, 64,
         KVANT_ERROR_CONFLICT},
        {"convention=gguf granularity=group_channels format=int2", "convention", "int2", 0, 64,
         KVANT_ERROR_CONFLICT},
        {"convention=gguf granularity=group_channels symmetry=asymmetric", "convention", "int8", 0, 64,
         KVANT_ERROR_CONFLICT},
        {"convention=compressed_tensors format=int1", "convention", "int1", 0, 64, KVANT_ERROR_CONFLICT},
        {"convention=compressed_tensors scale=e8m0", "scale", "e8m0", 0, 64, KVANT_ERROR_CONFLICT},
        {"convention=compressed_tensors symmetry=asymmetric granularity=tensor scaling=static", "scaling",
         "dynamic", 0, 64, KVANT_ERROR_CONFLICT},
        {"convention=quanto format=int4", "convention", "symmetric", 0, 64, KVANT_ERROR_CONFLICT},
        {"convention=reciprocal format=int1", "convention", "int1", 0, 64, KVANT_ERROR_CONFLICT},
        {"granularity=tensor scaling=static static_scale=1e6", "static_scale", "f16", 0, 64,
         KVANT_ERROR_CONFLICT},
        {"granularity=tensor scaling=static static_scale=1e-9", "static_scale", "f16", 0, 64,
         KVANT_ERROR_CONFLICT},
        {"granularity=tensor scaling=static symmetry=asymmetric static_min=-1e6", "static_min", "f16", 0, 64,
         KVANT_ERROR_CONFLICT},
        {"granularity=group_tokens group=32", "group", "48 tokens", 0, 48, KVANT_ERROR_BLOCK_TOKENS},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvant_layout layout;
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_status status =
            kvant_test_codec_plan("uniform", cases[i].side, KVANT_DTYPE_F32, cases[i].tokens, 1, 64,
                                  cases[i].parameters, &layout, &diag);
        if (status != cases[i].status || strcmp(diag.key, cases[i].key) != 0)
            fail_msg("%s: status %d, key \"%s\": %s", cases[i].parameters, status, diag.key, diag.message);
        kvant_assert_contains(diag.message, cases[i].part);
        if (cases[i].status == KVANT_ERROR_BLOCK_TOKENS) assert_int_equal(layout.block_multiple, 32);
    }
}

static void too_large_is_refused(void **state) {
    kvant_layout layout;
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)state;
    assert_int_equal(
        kvant_test_codec_plan("uniform", 0, KVANT_DTYPE_F32, 1 << 24, 1 << 20, 65536, "", &layout, &diag),
        KVANT_ERROR_GEOMETRY);
    assert_int_equal(kvant_test_codec_plan("uniform", 0, KVANT_DTYPE_F32, 64, 1, 65537, "", &layout, &diag),
                     KVANT_ERROR_GEOMETRY);
    assert_int_equal(kvant_test_codec_plan("uniform", 0, KVANT_DTYPE_F32, 0, 1, 64, "", &layout, &diag),
                     KVANT_ERROR_BLOCK_TOKENS);
}

/* ---- Artifacts ----------------------------------------------------------------------------------------- */

enum { SCALING = 5, ALL_HEADS = 5, FIRST_HEAD = 2, SMALL = 40, GROUPS = 3 /* of 16 channels of 40 */ };

typedef struct artifact_case {
    const char *parameters; /* with scaling still dynamic */
    uint32_t rank;
    uint64_t shape[2];
} artifact_case;

static const artifact_case artifact_cases[] = {
    {"format=int8 granularity=tensor", 1, {1}},
    {"format=e4m3 granularity=head scale=f32", 1, {ALL_HEADS}},
    {"format=int4 granularity=channel symmetry=asymmetric scale=bf16", 2, {ALL_HEADS, SMALL}},
    {"format=int4 granularity=group_channels group=16 symmetry=asymmetric", 2, {ALL_HEADS, GROUPS}},
};

/* Sets up a rank that has heads 2 and 3 of 5, and its tensors. */
static kvant_status open_artifact(kvant_test_codec *codec, const kvant_array *tensors, uint32_t count,
                                  void **state, kvant_diag *diag) {
    codec->values[SCALING].integer = 2; /* artifact */
    codec->values[SCALING].given = 1;
    codec->setup.first_kv_head = FIRST_HEAD;
    codec->setup.total_kv_heads = ALL_HEADS;
    codec->setup.tensors = tensors;
    codec->setup.tensor_count = count;
    kvant_layout layout = {.struct_size = sizeof layout};
    assert_int_equal(codec->plugin->plan(&codec->setup, &layout, diag), KVANT_OK);
    assert_int_equal(layout.metadata_bits, 0);
    assert_true(layout.scratch_bytes <= codec->layout.scratch_bytes);
    assert_true(layout.size_min <= codec->layout.size_min);
    *state = aligned_alloc(64, (layout.state_bytes + 63) / 64 * 64);
    assert_non_null(*state);
    memset(*state, 0, layout.state_bytes);
    codec->size = layout.size_min;
    return codec->plugin->open(&codec->setup, &layout, *state, diag);
}

static void check_artifact(const artifact_case *c, uint32_t isa) {
    float scale[ALL_HEADS * SMALL], minimum[ALL_HEADS * SMALL], x[TOKENS * 2 * SMALL],
        got[TOKENS * 2 * SMALL];
    uint64_t count = c->shape[0] * (c->rank == 2 ? c->shape[1] : 1);
    for (uint64_t i = 0; i < count; i++) scale[i] = 0.25f + 0.03125f * (float)(i % 29);
    for (uint64_t i = 0; i < count; i++) minimum[i] = -2.0f - 0.125f * (float)(i % 5);
    fill(x, TOKENS * 2 * SMALL, 11);
    kvant_array tensors[2] = {{.name = "min",
                               .data = minimum,
                               .bytes = 4 * count,
                               .dtype = KVANT_DTYPE_F32,
                               .rank = c->rank,
                               .shape = {c->shape[0], c->shape[1]}},
                              {.name = "scale",
                               .data = scale,
                               .bytes = 4 * count,
                               .dtype = KVANT_DTYPE_F32,
                               .rank = c->rank,
                               .shape = {c->shape[0], c->shape[1]}}};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_test_codec *codec =
        kvant_test_codec_open("uniform", 0, KVANT_DTYPE_F32, TOKENS, 2, SMALL, isa, c->parameters);
    void *state = NULL;
    if (open_artifact(codec, tensors, 2, &state, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    kvant_view rows = kvant_test_view(x, KVANT_DTYPE_F32, TOKENS, 2, SMALL);
    kvant_encode_args in = {
        .struct_size = sizeof in, .rows = &rows, .extent = codec->extent, .scratch = codec->scratch};
    assert_int_equal(codec->plugin->encode(state, &in), KVANT_OK);
    kvant_mutable_view out = kvant_test_mutable_view(got, KVANT_DTYPE_F32, TOKENS, 2, SMALL);
    kvant_extent extent = {.bytes = codec->extent, .size = in.size, .live_count = TOKENS};
    kvant_decode_args back = {
        .struct_size = sizeof back, .extent = &extent, .rows = &out, .scratch = codec->scratch};
    assert_int_equal(codec->plugin->decode(state, &back), KVANT_OK);
    bool asymmetric = strstr(c->parameters, "asymmetric") != NULL,
         e4m3 = strstr(c->parameters, "e4m3") != NULL;
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t d = 0; d < SMALL; d++) {
                uint64_t i = c->rank == 1
                                 ? (c->shape[0] == 1 ? 0 : FIRST_HEAD + h)
                                 : (FIRST_HEAD + h) * c->shape[1] + (c->shape[1] == SMALL ? d : d / 16);
                double e = (double)x[(t * 2 + h) * SMALL + d], s = (double)scale[i];
                double m = asymmetric ? (double)minimum[i] : 0, q = nearbyint((e - m) / s);
                double want = (asymmetric ? fmin(fmax(q, 0), 15) : fmin(fmax(q, -127), 127)) * s + m;
                if (e4m3) { /* 4 significant bits, from 2^-9 on */
                    int exponent;
                    (void)frexp(e / s, &exponent);
                    double step = ldexp(1, exponent - 4 > -9 ? exponent - 4 : -9);
                    want = nearbyint(e / s / step) * step * s;
                }
                kvant_assert_close((double)got[(t * 2 + h) * SMALL + d], want, 1e-5 * (1 + fabs(want)));
            }
    codec->plugin->close(state);
    free(state);
    kvant_test_codec_close(codec);
}

static void scales_from_an_artifact(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)state;
    for (size_t i = 0; i < sizeof artifact_cases / sizeof artifact_cases[0]; i++)
        for (uint32_t k = 0; k < isa_count; k++) check_artifact(&artifact_cases[i], isas[k]);
}

static void artifacts_that_do_not_fit(void **state) {
    static const float good[SMALL] = {1}, negative[2] = {1, -1}, infinite[2] = {1, INFINITY};
    const struct {
        const kvant_array tensor;
        kvant_status status;
        const char *part;
    } cases[] = {
        {{.name = "other", .data = good, .bytes = 8, .dtype = KVANT_DTYPE_F32, .rank = 1, .shape = {2}},
         KVANT_ERROR_MISSING,
         "no tensor layers.0.key.scale"},
        {{.name = "scale", .data = good, .bytes = 12, .dtype = KVANT_DTYPE_F32, .rank = 1, .shape = {3}},
         KVANT_ERROR_MISMATCH,
         "shape [2]"},
        {{.name = "scale", .data = good, .bytes = 2, .dtype = KVANT_DTYPE_U8, .rank = 1, .shape = {2}},
         KVANT_ERROR_MISMATCH,
         "F32"},
        {{.name = "scale", .data = negative, .bytes = 8, .dtype = KVANT_DTYPE_F32, .rank = 1, .shape = {2}},
         KVANT_ERROR_VALUE,
         "number 1 is -1"},
        {{.name = "scale", .data = infinite, .bytes = 8, .dtype = KVANT_DTYPE_F32, .rank = 1, .shape = {2}},
         KVANT_ERROR_VALUE,
         "number 1 is inf"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvant_diag diag = {.struct_size = sizeof diag};
        void *memory = NULL;
        kvant_test_codec *codec = kvant_test_codec_open("uniform", 0, KVANT_DTYPE_F32, TOKENS, 2, SMALL,
                                                        KVANT_ISA_SCALAR, "granularity=head");
        kvant_layout layout = {.struct_size = sizeof layout};
        codec->values[SCALING].integer = 2;
        codec->setup.tensors = &cases[i].tensor;
        codec->setup.tensor_count = 1;
        assert_int_equal(codec->plugin->plan(&codec->setup, &layout, &diag),
                         KVANT_OK); /* sizes do not depend on it */
        memory = aligned_alloc(64, (layout.state_bytes + 63) / 64 * 64);
        assert_non_null(memory);
        memset(memory, 0, layout.state_bytes);
        assert_int_equal(codec->plugin->open(&codec->setup, &layout, memory, &diag), cases[i].status);
        kvant_assert_contains(diag.message, cases[i].part);
        free(memory);
        kvant_test_codec_close(codec);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_change_bytes),
        cmocka_unit_test(rope_is_a_flag),
        cmocka_unit_test(all_codes_occur),
        cmocka_unit_test(bits_are_exact),
        cmocka_unit_test(refusals),
        cmocka_unit_test(too_large_is_refused),
        cmocka_unit_test(scales_from_an_artifact),
        cmocka_unit_test(artifacts_that_do_not_fit),
    };
    return kvant_run_tests(tests, argc, argv);
}
