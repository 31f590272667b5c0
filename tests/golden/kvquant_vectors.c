/* KVQuant against what its authors' simulation returned, with given thresholds and codebooks: every
 * evaluation of data/kvquant.safetensors through the plugin's own encode, inspect and decode, at every
 * instruction set of this machine. Codes and reconstruction bit for bit, outliers element for element.
 *
 * An evaluation has `codes` (no meaning under the mask), `recon`, and a mask of outliers: its own,
 * `mask_1pct` of its set, or none. Rows that it leaves raw ("sink4") are the host's. */
#include "support/test.h"
#include "support/test_codec.h"

#include <data/safetensors.h>
#include <kvant/kit/view.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct evaluation {
    const char *set, *name;
    const char *codebook; /* tensor of the file, or of the set */
    const char *upper, *lower;
    const char *mask; /* NULL = none */
    const char *parameters;
    uint32_t heads, dim;
    uint32_t raw;     /* first rows that stay as they are */
    double nmse;      /* 0 = not to be compared */
    bool values_only; /* the mask is not a codec's: see the README of the vectors */
} evaluation;

#define K_1PCT(set, bits, heads, nmse)                                                                       \
    {                                                                                                        \
        set, "nuq" #bits "_1pct", set "/nuq" #bits "_fisher/codebook", "upper", "lower", "mask_1pct",        \
            "bits=" #bits, heads, 64, 0, nmse, false                                                         \
    }
#define V_1PCT(set, bits, heads)                                                                             \
    {                                                                                                        \
        set, "nuq" #bits "_1pct", set "/nuq" #bits "_fisher/codebook", NULL, NULL, "mask_1pct",              \
            "bits=" #bits, heads, 64, 0, 0, false                                                            \
    }

static const evaluation evaluations[] = {
    K_1PCT("synthetic_k", 2, 2, 0),
    K_1PCT("synthetic_k", 3, 2, .0229),
    K_1PCT("synthetic_k", 4, 2, 0),
    K_1PCT("real_k", 2, 3, 0),
    K_1PCT("real_k", 3, 3, .00580),
    K_1PCT("real_k", 4, 3, 0),
    V_1PCT("synthetic_v", 2, 2),
    V_1PCT("synthetic_v", 3, 2),
    V_1PCT("synthetic_v", 4, 2),
    V_1PCT("real_v", 2, 3),
    V_1PCT("real_v", 3, 3),
    V_1PCT("real_v", 4, 3),
    {"synthetic_k", "nuq3_dense", "synthetic_k/nuq3_dense/codebook", "dense_upper", "dense_lower", NULL,
     "bits=3 outliers=none", 2, 64, 0, .1277, false},
    {"synthetic_v", "nuq3_dense", "synthetic_v/nuq3_dense/codebook", NULL, NULL, NULL, "bits=3 outliers=none",
     2, 64, 0, 0, false},
    {"synthetic_k", "nuq3_sink4", "synthetic_k/nuq3_sink4/codebook", "upper", "lower", "nuq3_sink4/mask",
     "bits=3", 2, 64, 4, 0, false},
    {"synthetic_v", "nuq3_sink4", "synthetic_v/nuq3_sink4/codebook", NULL, NULL, "nuq3_sink4/mask", "bits=3",
     2, 64, 4, 0, false},
    {"synthetic_k", "nuq2_qnorm", "synthetic_k/nuq2_fisher/codebook", "upper", "lower", "nuq2_qnorm/mask",
     "bits=2 qnorm=yes", 2, 64, 0, 0, false},
    {"synthetic_v", "nuq2_qnorm", "synthetic_v/nuq2_fisher/codebook", NULL, NULL, "nuq2_qnorm/mask",
     "bits=2 qnorm=yes", 2, 64, 0, 0, false},
    {"capped_k", "nuq3", "synthetic_k/nuq3_fisher/codebook", "synthetic_k/upper", "synthetic_k/lower",
     "nuq3/mask", "bits=3 cap=21 arithmetic=simulated", 2, 64, 0, 0, false},
    {"degenerate_k", "nuq3_1pct", "degenerate_k/codebook", "upper", "lower", "nuq3_1pct/mask", "bits=3", 1,
     64, 0, 0, false},
    {"degenerate_k", "nuq3_dense", "degenerate_k/codebook", "upper", "lower", NULL, "bits=3 outliers=none", 1,
     64, 0, 0, false},
    {"degenerate_v", "nuq3_1pct", "degenerate_v/codebook", NULL, NULL, "nuq3_1pct/mask", "bits=3", 1, 64, 0,
     0, true},
    {"degenerate_v", "nuq3_dense", "degenerate_v/codebook", NULL, NULL, NULL, "bits=3 outliers=none", 1, 64,
     0, 0, false},
};

static kvant_safetensors *file;

static const kvant_array *find(const char *set, const char *name) {
    char path[160];
    const kvant_array *array = NULL;
    if (strchr(name, '/') != NULL) array = kvant_safetensors_find(file, name);
    (void)snprintf(path, sizeof path, "%s/%s", set, name);
    if (array == NULL) array = kvant_safetensors_find(file, path);
    if (array == NULL) fail_msg("%s is missing", path);
    return array;
}

static const kvant_array *part(const evaluation *e, const char *what) {
    char name[96];
    (void)snprintf(name, sizeof name, "%s/%s", e->name, what);
    return find(e->set, name);
}

static float number(const kvant_array *array, size_t i) {
    return kvant_load_element((const char *)array->data + i * kvant_element_bytes(array->dtype),
                              array->dtype);
}

/* A tensor of the setup, sorted by name by the caller. */
static kvant_array tensor(const char *name, const kvant_array *from, uint32_t rank, uint64_t a, uint64_t b) {
    kvant_array array = *from;
    array.name = name;
    array.rank = rank;
    array.shape[0] = a;
    array.shape[1] = b;
    return array;
}

static kvant_test_codec *open_codec(const evaluation *e, uint32_t tokens, uint32_t isa,
                                    kvant_array tensors[5]) {
    uint32_t count = 0;
    const kvant_array *book = find(e->set, e->codebook);
    tensors[count++] = tensor("codebook", book, 1, book->shape[0], 0);
    if (e->lower != NULL) tensors[count++] = tensor("lower", find(e->set, e->lower), 2, e->heads, e->dim);
    if (strstr(e->parameters, "qnorm") != NULL) {
        tensors[count++] = tensor("normoffset", part(e, "normoffset"), 1, 1, 0);
        tensors[count++] = tensor("normscale", part(e, "normscale"), 1, 1, 0);
    }
    if (e->upper != NULL) tensors[count++] = tensor("upper", find(e->set, e->upper), 2, e->heads, e->dim);
    const kvant_setup setup = {.side = e->upper != NULL ? KVANT_SIDE_KEY : KVANT_SIDE_VALUE,
                               .dtype = KVANT_DTYPE_F16,
                               .block_tokens = tokens,
                               .kv_heads = e->heads,
                               .head_dim = e->dim,
                               .isa = isa,
                               .tensors = tensors,
                               .tensor_count = count};
    return kvant_test_codec_open_setup("kvquant", &setup, e->parameters);
}

static void check_outliers(const evaluation *e, kvant_test_codec *codec, const uint8_t *mask,
                           size_t elements) {
    uint8_t *marks = calloc(elements, 1);
    kvant_array array;
    size_t wanted = 0;
    assert_non_null(marks);
    for (size_t i = 0; mask != NULL && i < elements; i++) wanted += mask[i];
    if (wanted > 0) {
        uint32_t *index = kvant_test_codec_inspect(codec, "outlier_index", &array);
        assert_int_equal(array.dtype, KVANT_DTYPE_U32);
        for (size_t i = 0; i < array.bytes / 4; i++) {
            assert_true(index[i] < elements);
            marks[index[i]] = 1;
        }
        free(index);
    }
    for (size_t i = 0; i < elements; i++)
        if (marks[i] != (mask != NULL && mask[i] != 0))
            fail_msg("%s/%s: element %zu is%s an outlier", e->set, e->name, i, marks[i] ? "" : " not");
    free(marks);
}

static void check_evaluation(const evaluation *e, uint32_t isa) {
    const kvant_array *input = find(e->set, "eval"), *codes = part(e, "codes"), *recon = part(e, "recon");
    size_t width = (size_t)e->heads * e->dim, skip = e->raw * width;
    uint32_t tokens = (uint32_t)recon->shape[0];
    size_t elements = tokens * width;
    kvant_array tensors[5], array;
    const uint8_t *mask = e->mask != NULL ? find(e->set, e->mask)->data : NULL;
    uint8_t *own_mask = NULL;
    kvant_test_codec *codec = open_codec(e, tokens, isa, tensors);
    uint16_t *rows = malloc(elements * sizeof *rows);
    assert_non_null(rows);
    memcpy(rows, input->data, elements * sizeof *rows);
    if (e->raw > 0) { /* the host puts the next row in their place */
        own_mask = malloc(elements);
        assert_non_null(own_mask);
        memcpy(own_mask, mask, elements);
        for (uint32_t t = 0; t < e->raw; t++) {
            memcpy(rows + t * width, rows + skip, width * sizeof *rows);
            memcpy(own_mask + t * width, mask + skip, width);
        }
        mask = own_mask;
    }
    kvant_test_codec_encode(codec, rows, elements);
    uint8_t *got_codes = kvant_test_codec_inspect(codec, "codes", &array);
    float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    if (!e->values_only) check_outliers(e, codec, mask, elements);
    double error = 0, size = 0;
    for (size_t i = 0; i < elements; i++) {
        double x = (double)number(input, i), want = (double)number(recon, i);
        if (i < skip) {
            if (x != want) fail_msg("%s/%s: the vectors change a raw row", e->set, e->name);
            continue;
        }
        bool out = mask != NULL && mask[i];
        uint8_t code = ((const uint8_t *)codes->data)[i];
        if (!out && code != got_codes[i])
            fail_msg("%s/%s: code %zu is %u, not %u", e->set, e->name, i, got_codes[i], code);
        if ((double)got[i] != want)
            fail_msg("%s/%s: element %zu decodes to %.9g, not %.9g", e->set, e->name, i, (double)got[i],
                     want);
        error += (x - (double)got[i]) * (x - (double)got[i]);
        size += x * x;
    }
    if (e->nmse > 0) kvant_assert_within(error / size, e->nmse, .02);
    free(got);
    free(got_codes);
    free(rows);
    free(own_mask);
    kvant_test_codec_close(codec);
}

static void evaluations_match(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    (void)state;
    for (uint32_t i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof evaluations / sizeof evaluations[0]; k++)
            check_evaluation(&evaluations[k], isas[i]);
}

/* The squared error of an evaluation's rows, relative to theirs. */
static double nmse_of(const evaluation *e) {
    const kvant_array *input = find(e->set, "eval");
    uint32_t tokens = (uint32_t)input->shape[0];
    size_t elements = (size_t)tokens * e->heads * e->dim;
    kvant_array tensors[5];
    kvant_test_codec *codec = open_codec(e, tokens, KVANT_ISA_SCALAR, tensors);
    kvant_test_codec_encode(codec, input->data, elements);
    float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    double error = 0, size = 0;
    for (size_t i = 0; i < elements; i++) {
        double x = (double)number(input, i);
        error += (x - (double)got[i]) * (x - (double)got[i]);
        size += x * x;
    }
    free(got);
    kvant_test_codec_close(codec);
    return error / size;
}

/* Learned codebooks beat evenly spaced ones of the same width on real keys that were not learned from. */
static void learning_pays(void **state) {
    static const evaluation learned[] = {K_1PCT("real_k", 2, 3, 0), K_1PCT("real_k", 3, 3, 0),
                                         K_1PCT("real_k", 4, 3, 0)};
    static const char *const even[] = {"bits=2 codebook=uniform", "bits=3 codebook=uniform",
                                       "bits=4 codebook=uniform"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        evaluation other = learned[i];
        other.parameters = even[i];
        double with = nmse_of(&learned[i]), without = nmse_of(&other);
        if (!(with < without * .95))
            fail_msg("%s: nmse %g, evenly spaced %g", learned[i].name, with, without);
    }
}

/* No evaluation of the file is passed over. */
static void nothing_is_left_out(void **state) {
    (void)state;
    for (uint32_t i = 0; i < kvant_safetensors_count(file); i++) {
        const char *name = kvant_safetensors_at(file, i)->name, *end = strstr(name, "/recon");
        bool known = end == NULL;
        for (size_t k = 0; !known && k < sizeof evaluations / sizeof evaluations[0]; k++) {
            char own[96];
            (void)snprintf(own, sizeof own, "%s/%s/recon", evaluations[k].set, evaluations[k].name);
            known = strcmp(own, name) == 0;
        }
        if (!known) fail_msg("%s is not looked at", name);
    }
}

/* The levels of codebook = nf: rows that are the signposts themselves, in a group whose range is [-1, 1]. */
static void signposts_match(void **state) {
    (void)state;
    for (uint32_t bits = 2; bits <= 4; bits++) {
        char name[32], parameters[96];
        kvant_array array;
        uint32_t levels = 1u << bits;
        (void)snprintf(name, sizeof name, "nf%u/signposts", bits);
        (void)snprintf(parameters, sizeof parameters, "bits=%u codebook=nf outliers=none", bits);
        const kvant_array *signposts = kvant_safetensors_find(file, name);
        assert_non_null(signposts);
        float rows[16];
        memcpy(rows, signposts->data, levels * sizeof *rows);
        kvant_test_codec *codec = kvant_test_codec_open("kvquant", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 1, 1,
                                                        levels, KVANT_ISA_SCALAR, parameters);
        kvant_test_codec_encode(codec, rows, levels);
        uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
        float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        for (uint32_t i = 0; i < levels; i++) {
            assert_int_equal(codes[i], i);
            kvant_assert_close(got[i], rows[i], 1e-6);
        }
        free(got);
        free(codes);
        kvant_test_codec_close(codec);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_match),
        cmocka_unit_test(learning_pays),
        cmocka_unit_test(nothing_is_left_out),
        cmocka_unit_test(signposts_match),
    };
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_open(KVANT_TEST_SOURCE_DIR "/tests/golden/data/kvquant.safetensors", &file,
                               &diag) != KVANT_OK) {
        fprintf(stderr, "%s\n", diag.message);
        return 1;
    }
    int failed = kvant_run_tests(tests, argc, argv);
    kvant_safetensors_close(file);
    return failed;
}
