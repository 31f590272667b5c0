/* `kvant import` as its users meet it: every layout of axes gives the same dump. */
#include "data/dump.h"
#include "support/session.h"
#include "support/data.h"
#include "support/test.h"

#include <kvant/kit/half.h>
#include <kvant/kit/view.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 3, HEADS = 2, TOKENS = 5, DIM = 4, VALUE_DIM = 6, Q_HEADS = 4, QUERIES = 3 };

/* ---- Arrays of any layout ------------------------------------------------------------------------------ */

/* A number that says where it is; exact in every type. */
static float element(unsigned kind, unsigned l, unsigned h, unsigned t, unsigned d) {
    return (float)(int)(((kind * 7 + l * 5 + h * 3 + t * 2 + d) * 37) % 61) - 30;
}

/* The size of an axis: c is heads and channels in one. */
static unsigned axis_size(unsigned kind, char axis) {
    unsigned heads = kind == 2 ? Q_HEADS : HEADS, dim = kind == 1 ? VALUE_DIM : DIM;
    switch (axis) {
    case 'l':
        return LAYERS;
    case 'h':
        return heads;
    case 't':
        return kind == 2 ? QUERIES : TOKENS;
    case 'd':
        return dim;
    case 'c':
        return heads * dim;
    default:
        return 1;
    }
}

static void store(unsigned char *to, const char *type, float x) {
    double wide = (double)x;
    uint16_t half = strcmp(type, "u2") == 0 ? kvant_f32_to_bf16(x) : kvant_f32_to_f16(x);
    if (strcmp(type, "f8") == 0)
        memcpy(to, &wide, 8);
    else if (strcmp(type, "f4") == 0)
        memcpy(to, &x, 4);
    else
        memcpy(to, &half, 2);
}

/* The elements of one kind with these axes, of all layers or of `layer`; *bytes is set. */
static unsigned char *array_of(unsigned kind, const char *axes, const char *type, bool fortran,
                               unsigned layer, size_t *bytes) {
    size_t rank = strlen(axes), count = 1, width = (size_t)(type[1] - '0');
    for (size_t i = 0; i < rank; i++) count *= axis_size(kind, axes[i]);
    unsigned char *data = malloc(count * width);
    assert_non_null(data);
    for (size_t n = 0; n < count; n++) {
        unsigned at[128] = {0};
        size_t rest = n;
        at['l'] = layer;
        for (size_t i = 0; i < rank; i++) {
            char axis = axes[fortran ? i : rank - 1 - i];
            at[(unsigned char)axis] = (unsigned)(rest % axis_size(kind, axis));
            rest /= axis_size(kind, axis);
        }
        if (strchr(axes, 'c') != NULL) {
            unsigned dim = kind == 1 ? VALUE_DIM : DIM;
            at['h'] = at['c'] / dim;
            at['d'] = at['c'] % dim;
        }
        store(data + n * width, type, element(kind, at['l'], at['h'], at['t'], at['d']));
    }
    *bytes = count * width;
    return data;
}

static const char *npy(const char *name, unsigned kind, const char *axes, const char *type, bool fortran,
                       unsigned layer) {
    char header[192], shape[64] = "";
    for (const char *c = axes; *c != '\0'; c++)
        (void)snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%u,", axis_size(kind, *c));
    (void)snprintf(header, sizeof header, "{'descr': '<%s', 'fortran_order': %s, 'shape': (%s), }\n", type,
                   fortran ? "True" : "False", shape);
    size_t bytes, length = strlen(header);
    unsigned char *data = array_of(kind, axes, type, fortran, layer, &bytes),
                  *file = malloc(10 + length + bytes);
    assert_non_null(file);
    memcpy(file, "\x93NUMPY\x01\x00", 8);
    file[8] = (unsigned char)length;
    file[9] = (unsigned char)(length >> 8);
    memcpy(file + 10, header, length);
    memcpy(file + 10 + length, data, bytes);
    kvant_test_write(path(name), file, 10 + length + bytes);
    free(file);
    free(data);
    return path(name);
}

/* Every element of every tensor, and the type it came as. */
static void check_dump(const char *file, uint32_t dtype, bool queries) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_dump *dump = NULL;
    if (kvant_dump_open(file, &dump, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    assert_int_equal(kvant_dump_geometry(dump)->layer_count, LAYERS);
    assert_int_equal(kvant_dump_describe(dump)->has_queries, queries);
    for (unsigned l = 0; l < LAYERS; l++)
        for (unsigned kind = 0; kind < (queries ? 3 : 2); kind++) {
            kvant_view view;
            float row[VALUE_DIM];
            assert_true(kvant_dump_view(dump, l, kind, &view));
            assert_int_equal(view.dtype, dtype);
            assert_int_equal(view.tokens, axis_size(kind, 't'));
            assert_int_equal(view.heads, axis_size(kind, 'h'));
            assert_int_equal(view.head_dim, axis_size(kind, 'd'));
            for (unsigned t = 0; t < view.tokens; t++)
                for (unsigned h = 0; h < view.heads; h++) {
                    kvant_load_row(&view, t, h, row);
                    for (unsigned d = 0; d < view.head_dim; d++)
                        kvant_assert_close(row[d], element(kind, l, h, t, d), 0);
                }
        }
    kvant_dump_close(dump);
}

/* ---- What comes out ------------------------------------------------------------------------------------ */

static void every_layout_of_npy(void **state) {
    (void)state;
    static const char *const layouts[] = {"lbhtd", "lthd", "tlhd", "dhtl", "bltdh", "hltbd", "lbtc", "ctl"};
    static const struct {
        const char *type, *dtype_option;
        uint32_t dtype;
    } types[] = {{"f4", NULL, KVANT_DTYPE_F32},
                 {"f2", NULL, KVANT_DTYPE_F16},
                 {"u2", "bf16", KVANT_DTYPE_BF16},
                 {"f8", NULL, KVANT_DTYPE_F32}};
    for (unsigned i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        for (unsigned j = 0; j < 4; j++) {
            bool fortran = (i + j) % 2 == 1, fused = strchr(layouts[i], 'c') != NULL;
            const char *k = npy("k.npy", 0, layouts[i], types[j].type, fortran, 0);
            const char *v = npy("v.npy", 1, layouts[i], types[j].type, !fortran, 0);
            const char *q = npy("q.npy", 2, layouts[i], types[j].type, fortran, 0);
            const char *argv[32] = {KVANT_TEST_COMMAND,
                                    "import",
                                    k,
                                    v,
                                    q,
                                    "--key",
                                    "k",
                                    "--value",
                                    "v",
                                    "--query",
                                    "q",
                                    "--axes",
                                    layouts[i],
                                    "-o",
                                    path("d.safetensors"),
                                    "--model",
                                    "m"};
            unsigned n = 17;
            if (fused) argv[n++] = "--heads", argv[n++] = "2", argv[n++] = "--q-heads", argv[n++] = "4";
            if (types[j].dtype_option != NULL) argv[n++] = "--dtype", argv[n++] = types[j].dtype_option;
            must(run(argv));
            check_dump(path("d.safetensors"), types[j].dtype, true);
        }
}

static void one_array_per_layer(void **state) {
    (void)state;
    const char *files[6];
    char names[6][16];
    for (unsigned l = 0; l < LAYERS; l++) {
        (void)snprintf(names[2 * l], 16, "k_%u.npy",
                       l * 9 + 1); /* layers 1, 10, 19: not in the order of their names */
        (void)snprintf(names[2 * l + 1], 16, "v_%u.npy", l * 9 + 1);
        files[2 * l] = npy(names[2 * l], 0, "htd", "f2", false, l);
        files[2 * l + 1] = npy(names[2 * l + 1], 1, "bdth", "f2", false, l);
    }
    must(KVANT("import", files[4], files[1], files[0], files[3], files[5], files[2], "--key", "k_{l}",
               "--value", "v_{l}", "--axes", "htd", "--value-axes", "bdth", "-o", path("l.safetensors"),
               "--rope", "neox:10000,1e6,5e5:4", "--key-rope", "pre", "--scale", "0.5", "--window", "0,4,0"));
    check_dump(path("l.safetensors"), KVANT_DTYPE_F16, false);
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_dump *dump = NULL;
    assert_int_equal(kvant_dump_open(path("l.safetensors"), &dump, &diag), KVANT_OK);
    const kvant_geometry *g = kvant_dump_geometry(dump);
    assert_string_equal(kvant_safetensors_metadata(kvant_dump_file(dump), "layer_ids"), "1,10,19");
    assert_int_equal(g->keys, KVANT_KEYS_BEFORE_ROPE);
    assert_int_equal(g->layers[1].window, 4);
    assert_int_equal(g->layers[2].rope->rotary_dim, 4);
    kvant_assert_within(g->layers[1].rope->inverse_frequency[1], 1e-3, 1e-12);
    kvant_assert_close(kvant_dump_describe(dump)->scale, 0.5, 0);
    assert_null(g->model);
    kvant_dump_close(dump);
    /* A layer that has keys and no values. */
    refused(KVANT("import", files[0], files[2], files[1], "--key", "k_{l}", "--value", "v_{l}", "--axes",
                  "htd", "--value-axes", "bdth", "-o", path("x.safetensors")),
            "keys have 2 layers and the value tensors 1");
    assert_int_equal(access(path("x.safetensors"), F_OK), -1);
}

static void safetensors_and_tokens(void **state) {
    (void)state;
    /* A dump is a safetensors file of the layout thd: importing it gives it back. */
    const char *sample = KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors";
    must(KVANT("import", sample, "--key", "layers.{l}.key", "--value", "layers.{l}.value", "--query",
               "layers.{l}.query", "--tokens", "tokens", "--tags", "tags", "--turn", "turn", "--axes", "thd",
               "-o", path("s.safetensors"), "--query-start", "368"));
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_safetensors *a = NULL, *b = NULL;
    assert_int_equal(kvant_safetensors_open(sample, &a, &diag), KVANT_OK);
    assert_int_equal(kvant_safetensors_open(path("s.safetensors"), &b, &diag), KVANT_OK);
    assert_int_equal(kvant_safetensors_count(a), kvant_safetensors_count(b));
    for (uint32_t i = 0; i < kvant_safetensors_count(a); i++) {
        const kvant_array *x = kvant_safetensors_at(a, i), *y = kvant_safetensors_find(b, x->name);
        assert_non_null(y);
        assert_int_equal(x->bytes, y->bytes);
        assert_int_equal(x->dtype, y->dtype);
        kvant_assert_bytes(y->data, x->data, (size_t)x->bytes);
    }
    assert_null(kvant_safetensors_metadata(b, "layer_ids"));
    kvant_safetensors_close(a);
    kvant_safetensors_close(b);
    must(KVANT("import", sample, "--value", "layers.0.value", "--axes", "thd", "-o", path("s.safetensors")));
}

/* ---- What is refused ----------------------------------------------------------------------------------- */

#define IMPORT(...)                                                                                          \
    KVANT("import", k, v, "--key", "k", "--value", "v", "-o", path("x.safetensors"), __VA_ARGS__)

static void refuses_bad_input(void **state) {
    (void)state;
    const char *k = npy("k.npy", 0, "lbhtd", "f4", false, 0), *v = npy("v.npy", 1, "lbhtd", "f4", false, 0);
    const char *w = npy("w.npy", 1, "lbhtd", "f2", false, 0), *u = npy("u.npy", 1, "lbhtd", "u2", false, 0);
    must(IMPORT("--axes", "lbhtd"));
    refused(IMPORT("--axes", "lbhtd", "--rope", "neoks:10000"), "neox, gptj or none");
    refused(IMPORT("--axes", "lbhtd", "--rope", "neox:-3"), "rope_theta");
    refused(IMPORT("--axes", "lbhtd", "--rope", "neox:10000:3"), "3 is odd");
    refused(IMPORT("--axes", "lbhtd", "--scale", "x"), "scale");
    refused(IMPORT("--axes", "lbhtd", "--key-rope", "pre"), "how keys turn");
    refused(IMPORT("--axes", "lbhtd", "--window", "1,2"), "window");
    refused(IMPORT("--axes", "lhtd"), "5 axes, and \"lhtd\" names 4");
    refused(IMPORT("--axes", "bhltd"), "axis b is 3 long");
    refused(IMPORT("--axes", "lbhdt"), "tokens"); /* K and V have other head dims */
    refused(
        KVANT("import", k, w, "--key", "k", "--value", "w", "--axes", "lbhtd", "-o", path("x.safetensors")),
        "F16");
    refused(
        KVANT("import", k, u, "--key", "k", "--value", "u", "--axes", "lbhtd", "-o", path("x.safetensors")),
        "--dtype bf16");
    refused(
        KVANT("import", k, v, "--key", "k", "--value", "vv", "--axes", "lbhtd", "-o", path("x.safetensors")),
        "did you mean v?");
    refused(
        KVANT("import", k, v, "--key", "k{l}", "--value", "v", "--axes", "bhtd", "-o", path("x.safetensors")),
        "no array is called \"k{l}\"");
    refused(KVANT("import", k, k, "--key", "k", "--axes", "lbhtd", "-o", path("x.safetensors")),
            "is also in");
    refused(KVANT("import", path("none.npy"), "--key", "k", "--axes", "lbhtd", "-o", path("x.safetensors")),
            "none.npy");
    refused(KVANT("import", KVANT_TEST_COMMAND, "--key", "k", "--axes", "lbhtd", "-o", path("x.safetensors")),
            "not a safetensors file");
    refused(
        KVANT("import", k, v, "--key", "k", "--axes", "lbhtd", "--tags", "v", "-o", path("x.safetensors")),
        "are no tags");
    refused(
        KVANT("import", k, v, "--key", "k", "--axes", "lbhtd", "--tokens", "t", "-o", path("x.safetensors")),
        "no array is called \"t\"");
    refused(KVANT("import", k, "--key", "k", "--axes", "lbhtd", "-o", "/nonexistent/x"), "/nonexistent/x");
    kvant_test_bytes all = kvant_test_read(k);
    kvant_test_write(path("cut.npy"), all.bytes, all.size - 1);
    free(all.bytes);
    refused(KVANT("import", path("cut.npy"), "--key", "cut", "--axes", "lbhtd", "-o", path("x.safetensors")),
            "truncated");

    assert_int_equal(IMPORT("--axes", "lbhtx"), 2);
    assert_int_equal(IMPORT("--axes", "lbhtdd"), 2);
    assert_int_equal(IMPORT("--axes", "lbhd"), 2);
    assert_int_equal(IMPORT("--axes", "lbht"), 2);
    assert_int_equal(IMPORT("--axes", "lbhtcd"), 2);
    assert_int_equal(IMPORT("--axes", "lbtc"), 2); /* --heads is missing */
    assert_int_equal(IMPORT("--axes", "lbtc", "--heads", "two"), 2);
    assert_int_equal(IMPORT("--axes", "lbhtd", "--rope", "neox"), 2);
    assert_int_equal(IMPORT("--axes", "lbhtd", "--rope", "neox:1:2:3"), 2);
    assert_int_equal(IMPORT("--axes", "lbhtd", "--dtype", "f16"), 2);
    assert_int_equal(IMPORT("--axes", "lbhtd", "--scale", "1", "--scale", "2"), 2);
    assert_int_equal(IMPORT("--axes"), 2);
    assert_int_equal(IMPORT("--axis", "lbhtd"), 2);
    assert_int_equal(KVANT("import", "--key", "k", "--axes", "lbhtd", "-o", "x"), 2);
    assert_int_equal(KVANT("import", k, "--axes", "lbhtd", "-o", "x"), 2);
    assert_int_equal(KVANT("import", k, "--key", "k", "--axes", "lbhtd"), 2);
    assert_int_equal(KVANT("import", k, "--key", "k{l}", "--axes", "lbhtd", "-o", "x"), 2);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_of_npy), cmocka_unit_test(one_array_per_layer),
        cmocka_unit_test(safetensors_and_tokens), cmocka_unit_test(refuses_bad_input)};
    return kvant_run_tests(tests, argc, argv);
}
