/* KVQuant against its authors' deployed cache: data/kvquant_deployed.safetensors, one outlier strip of 21 per
 * tail and token over 32 heads of 128, through the plugin with cap = 21, at every instruction set of this
 * machine. Codes, packed words, outliers and reconstruction bit for bit.
 *
 * Of keys their strip is always full: what lies within the thresholds fills it with the value 0. Those are no
 * outliers here; every one that has a value must be there with that value. */
#include "support/test.h"
#include "support/test_codec.h"

#include <data/safetensors.h>
#include <kvant/kit/view.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 6, HEADS = 32, DIM = 128, WIDTH = HEADS * DIM, ELEMENTS = TOKENS * WIDTH, STRIP = 42 };

/* Elements of `k/input` beyond their thresholds that the strips do not hold. */
enum { SATURATED_KEYS = 413 };

static kvant_safetensors *file;

static const kvant_array *find(const char *set, const char *name) {
    char path[96];
    (void)snprintf(path, sizeof path, "%s/%s", set, name);
    const kvant_array *array = kvant_safetensors_find(file, path);
    if (array == NULL) fail_msg("%s is missing", path);
    return array;
}

static kvant_array tensor(const char *name, const kvant_array *from, uint32_t rank, uint64_t a, uint64_t b) {
    kvant_array array = *from;
    array.name = name;
    array.rank = rank;
    array.shape[0] = a;
    array.shape[1] = b;
    return array;
}

static float number_at(const kvant_array *array, size_t i) {
    return kvant_load_element((const char *)array->data + i * kvant_element_bytes(array->dtype),
                              array->dtype);
}

/* Their thresholds are float16, the artifact's are float32. */
static float *widened(const kvant_array *from) {
    float *out = malloc(WIDTH * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < WIDTH; i++) out[i] = number_at(from, i);
    return out;
}

/* 32 channels are one little-endian string of 32 * bits bits. */
static void check_words(const char *set, uint32_t bits, const uint8_t *codes) {
    const kvant_array *words = find(set, "words");
    uint32_t rows = DIM / 32 * bits;
    assert_int_equal(words->bytes, (size_t)4 * HEADS * rows * TOKENS);
    for (size_t h = 0; h < HEADS; h++)
        for (size_t r = 0; r < rows; r++)
            for (size_t t = 0; t < TOKENS; t++) {
                uint32_t got = 0, want;
                for (size_t b = 0; b < 32; b++) {
                    size_t bit = r % bits * 32 + b, channel = r / bits * 32 + bit / bits;
                    got |= (codes[(t * HEADS + h) * DIM + channel] >> bit % bits & 1u) << b;
                }
                memcpy(&want, (const char *)words->data + 4 * ((h * rows + r) * TOKENS + t), 4);
                if (got != want)
                    fail_msg("%s: word (%zu, %zu, %zu) is %08x, not %08x", set, h, r, t, got, want);
            }
}

static void check_outliers(const char *set, kvant_test_codec *codec) {
    const kvant_array *values = find(set, "outlier_values"), *channels = find(set, "outlier_index");
    kvant_array array;
    uint32_t *index = kvant_test_codec_inspect(codec, "outlier_index", &array);
    size_t count = array.bytes / 4;
    float *sparse = kvant_test_codec_inspect(codec, "outlier_sparse", &array);
    float *got = calloc(ELEMENTS, sizeof *got);
    assert_non_null(got);
    for (size_t i = 0; i < count; i++) got[index[i]] = sparse[i];
    size_t known = 0, zeros = 0;
    for (size_t i = 0; i < count; i++) zeros += sparse[i] == 0;
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t s = 0; s < STRIP; s++) {
            int32_t channel;
            memcpy(&channel, (const char *)channels->data + 4 * (t * STRIP + s), 4);
            float want = number_at(values, t * STRIP + s), have = got[t * WIDTH + (size_t)channel];
            known += want != 0;
            if (have != want)
                fail_msg("%s: token %zu, channel %d: sparse value %.9g, not %.9g", set, t, channel,
                         (double)have, (double)want);
        }
    assert_int_equal(known, count - zeros);
    free(got);
    free(sparse);
    free(index);
}

static void check_set(const char *set, uint32_t bits, bool qnorm, uint32_t isa) {
    bool key = set[0] == 'k';
    char parameters[96], plain[16];
    kvant_array tensors[5], array;
    uint32_t count = 0;
    float *lower = NULL, *upper = NULL;
    (void)snprintf(plain, sizeof plain, "%c/nuq%u", set[0],
                   bits); /* Q-Norm has the codebook of the plain set */
    tensors[count++] = tensor("codebook", find(plain, "codebook"), 1, (uint64_t)1 << bits, 0);
    if (key) {
        lower = widened(find("k", "lower"));
        upper = widened(find("k", "upper"));
        kvant_array range = {.dtype = KVANT_DTYPE_F32, .bytes = sizeof(float) * WIDTH, .data = lower};
        tensors[count++] = tensor("lower", &range, 2, HEADS, DIM);
    }
    if (qnorm) {
        tensors[count++] = tensor("normoffset", find(set, "normoffset"), 1, 1, 0);
        tensors[count++] = tensor("normscale", find(set, "normscale"), 1, 1, 0);
    }
    if (key) {
        kvant_array range = {.dtype = KVANT_DTYPE_F32, .bytes = sizeof(float) * WIDTH, .data = upper};
        tensors[count++] = tensor("upper", &range, 2, HEADS, DIM);
    }
    (void)snprintf(parameters, sizeof parameters, "bits=%u cap=21%s", bits, qnorm ? " qnorm=yes" : "");
    const kvant_setup setup = {.side = key ? KVANT_SIDE_KEY : KVANT_SIDE_VALUE,
                               .dtype = KVANT_DTYPE_F16,
                               .block_tokens = TOKENS,
                               .kv_heads = HEADS,
                               .head_dim = DIM,
                               .isa = isa,
                               .tensors = tensors,
                               .tensor_count = count};
    kvant_test_codec *codec = kvant_test_codec_open_setup("kvquant", &setup, parameters);
    kvant_test_codec_encode(codec, find(key ? "k" : "v", "input")->data, ELEMENTS);
    assert_int_equal(codec->saturated, key ? SATURATED_KEYS : 0);
    uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
    if (memcmp(codes, find(set, "codes")->data, ELEMENTS) != 0) print_error("%s:\n", set);
    kvant_assert_bytes(codes, find(set, "codes")->data, ELEMENTS);
    check_words(set, bits, codes);
    check_outliers(set, codec);
    float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    const kvant_array *recon = find(set, "recon");
    for (size_t i = 0; i < ELEMENTS; i++)
        if (got[i] != number_at(recon, i))
            fail_msg("%s: element %zu decodes to %.9g, not %.9g", set, i, (double)got[i],
                     (double)number_at(recon, i));
    free(got);
    free(codes);
    free(lower);
    free(upper);
    kvant_test_codec_close(codec);
}

static void sets_match(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    (void)state;
    for (uint32_t i = 0; i < count; i++) {
        check_set("k/nuq2", 2, false, isas[i]);
        check_set("k/nuq3", 3, false, isas[i]);
        check_set("k/nuq4", 4, false, isas[i]);
        check_set("k/nuq2_qnorm", 2, true, isas[i]);
        check_set("v/nuq2", 2, false, isas[i]);
        check_set("v/nuq3", 3, false, isas[i]);
        check_set("v/nuq4", 4, false, isas[i]);
        check_set("v/nuq2_qnorm", 2, true, isas[i]);
    }
}

/* Without a cap the same arithmetic keeps all 619 elements beyond the thresholds. */
static void all_are_kept_without_a_cap(void **state) {
    (void)state;
    float *lower = widened(find("k", "lower")), *upper = widened(find("k", "upper"));
    kvant_array range = {.dtype = KVANT_DTYPE_F32, .bytes = sizeof(float) * WIDTH, .data = lower}, array;
    kvant_array tensors[3] = {tensor("codebook", find("k/nuq3", "codebook"), 1, 8, 0),
                              tensor("lower", &range, 2, HEADS, DIM)};
    range.data = upper;
    tensors[2] = tensor("upper", &range, 2, HEADS, DIM);
    const kvant_setup setup = {.side = KVANT_SIDE_KEY,
                               .dtype = KVANT_DTYPE_F16,
                               .block_tokens = TOKENS,
                               .kv_heads = HEADS,
                               .head_dim = DIM,
                               .isa = KVANT_ISA_SCALAR,
                               .tensors = tensors,
                               .tensor_count = 3};
    kvant_test_codec *codec = kvant_test_codec_open_setup("kvquant", &setup, "bits=3 arithmetic=deployed");
    kvant_test_codec_encode(codec, find("k", "input")->data, ELEMENTS);
    assert_int_equal(codec->saturated, 0);
    float *values = kvant_test_codec_inspect(codec, "outlier_value", &array);
    assert_int_equal(array.bytes / 4, 54 + 50 + 58 + 408 + 0 + 49);
    free(values);
    kvant_test_codec_close(codec);
    free(lower);
    free(upper);
}

/* Without a cap a value token keeps int((1 - sparsity)/2 * width) + 1 per tail: at sparsity .9 and width 320
 * that is 16, not 17, since (1 - .9)/2 * 320 is below 16 in double. */
static void tails_are_counted_as_theirs(void **state) {
    static const struct {
        const char *parameters;
        uint32_t heads, dim, per_tail;
    } cases[] = {{"codebook=uniform arithmetic=deployed", 1, 8, 1},
                 {"codebook=uniform arithmetic=deployed", 1, 1000, 6},
                 {"codebook=uniform arithmetic=deployed", 8, 128, 6},
                 {"codebook=uniform arithmetic=deployed", 32, 128, 21},
                 {"codebook=uniform arithmetic=deployed fraction=0.02", 2, 50, 2},
                 {"codebook=uniform arithmetic=deployed fraction=0.1", 4, 80, 16}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static float rows[WIDTH];
        kvant_array array;
        for (uint32_t c = 0; c < WIDTH; c++) rows[c] = (float)(c * 2654435761u % 65537u);
        kvant_test_codec *codec =
            kvant_test_codec_open("kvquant", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 1, cases[i].heads,
                                  cases[i].dim, KVANT_ISA_SCALAR, cases[i].parameters);
        kvant_test_codec_encode(codec, rows, (size_t)cases[i].heads * cases[i].dim);
        uint32_t *index = kvant_test_codec_inspect(codec, "outlier_index", &array);
        assert_int_equal(array.bytes / 4, 2 * cases[i].per_tail);
        free(index);
        kvant_test_codec_close(codec);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_match),
        cmocka_unit_test(all_are_kept_without_a_cap),
        cmocka_unit_test(tails_are_counted_as_theirs),
    };
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_open(KVANT_TEST_SOURCE_DIR "/tests/golden/data/kvquant_deployed.safetensors", &file,
                               &diag) != KVANT_OK) {
        fprintf(stderr, "%s\n", diag.message);
        return 1;
    }
    int failed = kvant_run_tests(tests, argc, argv);
    kvant_safetensors_close(file);
    return failed;
}
