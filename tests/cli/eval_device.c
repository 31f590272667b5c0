/* `kvant eval --device`: every number is the CPU's but times, and what a device cannot do is one clear error.
 *
 * KVANT_GPU=interp (the default) finds the simulated driver (tests/gpu/driver), KVANT_GPU=real the machine's.
 * Without nvcc there are no kernels, and what needs them is skipped. */
#include "support/run_command.h"
#include "support/sanitized.h"
#include "support/scratch.h"
#include "support/test.h"
#include "support/write_dump.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAMPLE     KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors"
#define SAMPLE_PRE KVANT_TEST_SOURCE_DIR "/samples/sample_pre.safetensors"
#define DRIVER     KVANT_TEST_BUILD_DIR "/tests/gpu/driver"

static char *folder, *out, *err;
static char search_path[512]; /* "LD_LIBRARY_PATH=..." of runs on a device */

/* A variable of the simulated driver; the real one does not know it. */
static const char *simulated = "KVANT_PTX_ORDER=eager";

#define RUN(...)                                                                                             \
    run((const char *const[]){"env", search_path, simulated, KVANT_TEST_COMMAND, __VA_ARGS__, NULL})

static int run(const char *const argv[]) {
    free(out);
    free(err);
    return kvant_run(argv, &out, &err);
}

static bool is_real(void) {
    const char *gpu = getenv("KVANT_GPU");
    return gpu != NULL && strcmp(gpu, "real") == 0;
}

/* Skips the test where there are no kernels. */
static void need_kernels(void) {
    char *text;
    int status = kvant_run((const char *const[]){KVANT_TEST_COMMAND, "list", "--json", NULL}, &text, NULL);
    json_t *root = json_loads(text, 0, NULL);
    const char *built = json_string_value(json_object_get(root, "gpu_code"));
    bool builds = status == 0 && built != NULL && strcmp(built, "built") == 0;
    json_decref(root);
    free(text);
    if (!builds) skip();
}

static char *path_of(const char *name) {
    return kvant_scratch_path(folder, name);
}

static char *write_pipeline(const char *name, const char *text) {
    char *file = path_of(name);
    kvant_scratch_write(file, text, strlen(text));
    return file;
}

/* ---- Documents ----------------------------------------------------------------------------------------- */

/* What a device and the CPU say differently. */
static const char *const of_a_device[] = {"device",
                                          "device_attention",
                                          "device_attention_rms",
                                          "device_encode_seconds",
                                          "device_decode_seconds",
                                          "device_encode_gb_per_second",
                                          "device_decode_gb_per_second",
                                          "encode_seconds",
                                          "decode_seconds",
                                          "encode_gb_per_second",
                                          "decode_gb_per_second",
                                          "jit"};

static void strip(json_t *value) {
    const char *key;
    size_t index;
    json_t *child;
    for (size_t i = 0; i < sizeof of_a_device / sizeof of_a_device[0] && json_is_object(value); i++)
        json_object_del(value, of_a_device[i]);
    json_object_foreach(value, key, child) strip(child);
    json_array_foreach(value, index, child) strip(child);
}

/* Where two documents differ. */
static void assert_same(const json_t *got, const json_t *want, const char *path) {
    char at[512];
    if (json_equal(got, want)) return;
    if (json_is_object(want) && json_is_object(got)) {
        void *position = json_object_iter((json_t *)(uintptr_t)want);
        for (; position != NULL; position = json_object_iter_next((json_t *)(uintptr_t)want, position)) {
            const char *key = json_object_iter_key(position);
            (void)snprintf(at, sizeof at, "%.400s.%.60s", path, key);
            assert_same(json_object_get(got, key), json_object_iter_value(position), at);
        }
    }
    for (size_t i = 0; json_is_array(want) && i < json_array_size(want); i++) {
        (void)snprintf(at, sizeof at, "%.400s[%zu]", path, i);
        assert_same(json_array_get(got, i), json_array_get(want, i), at);
    }
    char *a = json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT),
         *b = json_dumps(want, JSON_ENCODE_ANY | JSON_COMPACT);
    fail_msg("%s: on the device %.200s, on the CPU %.200s", path, a != NULL ? a : "nothing",
             b != NULL ? b : "nothing");
}

static const json_t *result_of(const json_t *root, size_t index) {
    const json_t *result = json_array_get(json_object_get(root, "results"), index);
    assert_non_null(result);
    return result;
}

static const json_t *layer_of(const json_t *result, size_t index) {
    const json_t *layer = json_array_get(json_object_get(result, "layers"), index);
    assert_non_null(layer);
    return layer;
}

static double number_at(const json_t *object, const char *name) {
    const json_t *number = json_object_get(object, name);
    if (!json_is_number(number)) fail_msg("%s is no number", name);
    return json_number_value(number);
}

/* The document of a device run, after everything but its own fields was found to be the CPU's. */
static json_t *compare(const char *pipeline, const char *dump) {
    json_t *roots[2];
    for (int i = 0; i < 2; i++) {
        int status = i == 0 ? RUN("eval", pipeline, dump, "--json", "--device", "0")
                            : RUN("eval", pipeline, dump, "--json");
        if (status != 0)
            fail_msg("%s on %s, %s: %d: %s", pipeline, dump, i == 0 ? "device" : "CPU", status, err);
        assert_string_equal(err, "");
        roots[i] = json_loads(out, 0, NULL);
        assert_non_null(roots[i]);
    }
    assert_true(json_is_null(json_object_get(roots[1], "device")));
    json_t *whole = json_deep_copy(roots[0]);
    strip(roots[0]);
    strip(roots[1]);
    assert_same(roots[0], roots[1], "");
    assert_true(json_equal(roots[0], roots[1]));
    json_decref(roots[0]);
    json_decref(roots[1]);
    return whole;
}

/* The device attended in every layer, as `attends` says, and rightly: not better than floats can, or it was
 * not measured. */
static void assert_attended(const json_t *root, const char *attends) {
    const json_t *result = result_of(root, 0), *layers = json_object_get(result, "layers");
    for (size_t l = 0; l < json_array_size(layers); l++) {
        const json_t *d = json_object_get(layer_of(result, l), "device_attention");
        if (!json_is_object(d)) fail_msg("layer %zu has no device_attention", l);
        assert_string_equal(json_string_value(json_object_get(d, "attends")), attends);
        double rms = number_at(d, "rms"), largest = number_at(d, "largest");
        assert_true(rms > 1e-9 && rms <= largest && largest < 0.05);
        assert_true(number_at(d, "of_allowed") > 1e-4 && number_at(d, "of_allowed") <= 1);
        assert_true(number_at(d, "log_sum_exp") < 0.05 && number_at(d, "seconds") > 0);
    }
}

/* ---- The same numbers ---------------------------------------------------------------------------------- */

typedef struct test_case {
    const char *name;
    const char *pipeline; /* INI */
    const char *attends;  /* NULL = the dump has not what it takes */
    kvant_test_dump dump; /* members that are 0 are the default dump's */
    const char *simulated;
    bool no_keys, no_values, no_queries;
} test_case;

#define PIPELINE(block, sinks, recent, more)                                                                 \
    "[pipeline]\nname = p\nblock_tokens = " block "\nsinks = " sinks "\nrecent = " recent "\n" more
#define KIVI(bits, group)                                                                                    \
    "[codec c]\nplugin = kivi\nbits = " bits "\ngroup = " group "\n[layers]\nkey = c\nvalue = c\n"
#define KIVI_TWO(k, kg, v, vg)                                                                               \
    "[codec k]\nplugin = kivi\nbits = " k "\ngroup = " kg "\n[codec v]\nplugin = kivi\nbits = " v            \
    "\ngroup = " vg "\n[layers]\nkey = k\nvalue = v\n"

static const test_case cases[] = {
    {.name = "two bits, sinks, three heads a kv head",
     .pipeline = PIPELINE("32", "4", "40", KIVI("2", "8")),
     .attends = "fused",
     .simulated = "KVANT_PTX_ORDER=deferred"},
    {.name = "four bits, window, bf16",
     .pipeline = PIPELINE("64", "0", "0", KIVI("4", "32")),
     .attends = "fused",
     .dump = {.layers = 2,
              .tokens = 200,
              .kv_heads = 1,
              .q_heads = 4,
              .key_dim = 64,
              .value_dim = 32,
              .query_tokens = 5,
              .query_start = 190,
              .window = 70,
              .dtype = KVANT_DTYPE_BF16},
     .simulated = "KVANT_PTX_DEVICE=9.0"},
    {.name = "f32, queries of another type, one head a kv head",
     .pipeline = PIPELINE("32", "1", "5", KIVI_TWO("8", "32", "1", "12")),
     .attends = "fused",
     .dump = {.layers = 1,
              .tokens = 70,
              .q_heads = 2,
              .key_dim = 36,
              .value_dim = 20,
              .query_tokens = 3,
              .query_start = 40,
              .dtype = KVANT_DTYPE_F32,
              .query_dtype = KVANT_DTYPE_BF16}},
    {.name = "many small blocks, queries from the first token on",
     .pipeline = PIPELINE("8", "3", "8", KIVI_TWO("4", "8", "2", "8")),
     .attends = "fused",
     .dump = {.layers = 1,
              .tokens = 8 * 67 + 5,
              .kv_heads = 1,
              .q_heads = 1,
              .key_dim = 8,
              .value_dim = 8,
              .query_tokens = 70}},
    {.name = "queries of more than one pass",
     .pipeline = PIPELINE("32", "0", "0", KIVI("4", "16")),
     .attends = "fused",
     .dump = {.layers = 1,
              .tokens = 40,
              .kv_heads = 1,
              .q_heads = 64,
              .key_dim = 16,
              .value_dim = 128,
              .query_tokens = 20,
              .query_start = 20}},
    {.name = "no whole block",
     .pipeline = PIPELINE("256", "4", "0", KIVI("4", "32")),
     .attends = "fused",
     .dump = {.layers = 1,
              .query_tokens = 2,
              .query_start = 148,
              .value_dim = 32,
              .query_dtype = KVANT_DTYPE_F32}},
    {.name = "codecs of two plugins",
     .pipeline = PIPELINE("32", "0", "0",
                          "[codec v]\nplugin = kivi\nbits = 4\ngroup = 8\n[layers]\nkey = raw\nvalue = v\n"),
     .attends = "split",
     .dump = {.layers = 1, .query_tokens = 2, .query_start = 130}},
    {.name = "keys only",
     .pipeline = PIPELINE("32", "4", "0", KIVI("4", "8")),
     .dump = {.layers = 1},
     .no_values = true,
     .no_queries = true},
    {.name = "values only",
     .pipeline = PIPELINE("32", "4", "0", KIVI("4", "8")),
     .dump = {.layers = 1},
     .no_keys = true,
     .no_queries = true},
    {.name = "no values",
     .pipeline = PIPELINE("32", "4", "0", KIVI("2", "8")),
     .dump = {.layers = 1},
     .no_values = true},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static kvant_test_dump dump_of(const test_case *c) {
    kvant_test_dump d = kvant_test_dump_default(), wish = c->dump;
    uint32_t *const to[] = {&d.layers,    &d.tokens,       &d.kv_heads, &d.q_heads, &d.key_dim,
                            &d.value_dim, &d.query_tokens, &d.dtype,    &d.window,  &d.query_dtype};
    const uint32_t from[] = {wish.layers,  wish.tokens,     wish.kv_heads,     wish.q_heads,
                             wish.key_dim, wish.value_dim,  wish.query_tokens, wish.dtype,
                             wish.window,  wish.query_dtype};
    for (size_t i = 0; i < sizeof from / sizeof from[0]; i++)
        if (from[i] != 0) *to[i] = from[i];
    if (wish.query_tokens != 0) d.query_start = wish.query_start;
    d.has_keys = !c->no_keys;
    d.has_values = !c->no_values;
    d.has_queries = !c->no_queries;
    return d;
}

static void numbers_are_those_of_the_cpu(void **state) {
    (void)state;
    need_kernels();
    for (size_t i = 0; i < (KVANT_TEST_SANITIZED ? 3 : CASES); i++) {
        const test_case *c = &cases[i];
        if (getenv("KVANT_GPU_VERBOSE") != NULL) print_message("  %s\n", c->name);
        kvant_test_dump d = dump_of(c);
        char *dump = path_of("rows.safetensors"), *pipeline = write_pipeline("p.ini", c->pipeline);
        kvant_test_dump_write(&d, dump);
        simulated = c->simulated != NULL ? c->simulated : "KVANT_PTX_ORDER=eager";
        json_t *root = compare(pipeline, dump);
        simulated = "KVANT_PTX_ORDER=eager";
        if (c->simulated != NULL && strstr(c->simulated, "9.0") != NULL && !is_real())
            assert_true(json_is_false(
                json_object_get(json_object_get(layer_of(result_of(root, 0), 0), "key"), "jit")));
        if (c->attends != NULL)
            assert_attended(root, c->attends);
        else
            assert_true(json_is_null(json_object_get(layer_of(result_of(root, 0), 0), "device_attention")));
        json_decref(root);
        free(pipeline);
        free(dump);
    }
}

/* What is not finite is replaced: in a block there, in the tail before it goes there. */
static void numbers_that_are_not_finite_are_replaced(void **state) {
    (void)state;
    need_kernels();
    static const struct {
        const char *tensor;
        uint32_t token;
        float poison;
    } places[] = {{"layers.0.key", 40, NAN}, {"layers.1.value", 149, INFINITY}, {"layers.1.key", 1, NAN}};
    char *dump = path_of("poisoned.safetensors");
    char *saturate =
        write_pipeline("s.ini", PIPELINE("32", "4", "0", "on_nonfinite = saturate\n" KIVI("4", "8")));
    for (size_t i = 0; i < 3; i++) {
        kvant_test_dump d = kvant_test_dump_default();
        d.layers = 2;
        d.poisoned = places[i].tensor;
        d.token = places[i].token;
        d.head = 1;
        d.channel = 5;
        d.poison = places[i].poison;
        kvant_test_dump_write(&d, dump);
        json_t *root = compare(saturate, dump);
        assert_attended(root, "fused");
        json_decref(root);
    }
    assert_int_equal(RUN("eval", "kivi", dump, "--device", "0"), 3);
    kvant_assert_contains(err, "layers.1.key: NaN at token 1, head 1, channel 5");
    free(saturate);
    free(dump);
}

/* A value beyond what scales in f16 can say. */
static void numbers_that_leave_their_format_are_counted(void **state) {
    (void)state;
    need_kernels();
    char *dump = path_of("large.safetensors");
    char *pipeline = write_pipeline("l.ini", PIPELINE("32", "0", "0", KIVI("4", "8\nmeta = f16")));
    kvant_test_dump d = kvant_test_dump_default();
    d.layers = 1;
    d.dtype = KVANT_DTYPE_F32;
    d.poisoned = "layers.0.value";
    d.token = 70;
    d.channel = 3;
    d.poison = 1e9f;
    kvant_test_dump_write(&d, dump);
    json_t *root = compare(pipeline, dump);
    assert_true(number_at(json_object_get(layer_of(result_of(root, 0), 0), "value"), "saturated") > 0);
    assert_attended(root, "fused");
    json_decref(root);
    free(pipeline);
    free(dump);
}

/* The means of keys, taken off before encode and put back. */
static void keys_that_are_centred(void **state) {
    (void)state;
    need_kernels();
    char *dump = path_of("center.safetensors"), *artifact = path_of("means.safetensors");
    char *pipeline = write_pipeline(
        "c.ini",
        PIPELINE("32", "4", "0", "key_center = artifact\nartifact = means.safetensors\n" KIVI("2", "32")));
    kvant_test_dump d = kvant_test_dump_default();
    d.layers = 1;
    kvant_test_dump_write(&d, dump);
    if (RUN("calibrate", pipeline, dump, "-o", artifact) != 0) fail_msg("%s", err);
    json_t *root = compare(pipeline, dump);
    assert_attended(root, "fused");
    json_decref(root);
    free(pipeline);
    free(artifact);
    free(dump);
}

/* ---- What it says -------------------------------------------------------------------------------------- */

static void the_report_names_the_device(void **state) {
    (void)state;
    need_kernels();
    kvant_test_dump d = kvant_test_dump_default();
    d.layers = 1;
    char *dump = path_of("one.safetensors"), *page = path_of("page.html");
    char *pipeline = write_pipeline("p.ini", PIPELINE("32", "0", "0", KIVI("4", "8")));
    kvant_test_dump_write(&d, dump);
    int status = RUN("eval", pipeline, dump, "--device=0", "--layers");
    if (status != 0) fail_msg("%d: %s", status, err);
    kvant_assert_contains(out, "device 0: ");
    kvant_assert_contains(out, "compute capability ");
    kvant_assert_contains(out,
                          "device: p: its own attention (fused) differs from that of the decoded rows by ");
    kvant_assert_contains(out, "KL  device\n");
    if (!is_real()) kvant_assert_contains(out, "device: p: the driver compiled PTX of codec kivi");
    assert_int_equal(RUN("eval", pipeline, dump), 0);
    assert_null(strstr(out, "device"));
    status = RUN("eval", pipeline, dump, "--device", "0", "--csv");
    if (status != 0) fail_msg("%d: %s", status, err);
    kvant_assert_contains(out, "device_attention_rms_median");
    kvant_assert_contains(out, "device_encode_gb_per_second");
    status = RUN("eval", pipeline, dump, "--device", "0", "--json");
    if (status != 0) fail_msg("%d: %s", status, err);
    json_t *root = json_loads(out, 0, NULL);
    const json_t *device = json_object_get(root, "device"), *result = result_of(root, 0);
    assert_int_equal(json_integer_value(json_object_get(device, "number")), 0);
    assert_true(json_string_length(json_object_get(device, "name")) > 0);
    assert_true(strtod(json_string_value(json_object_get(device, "compute_capability")), NULL) >= 8);
    assert_true(number_at(device, "multiprocessors") > 0);
    assert_true(json_is_null(json_object_get(result, "encode_gb_per_second")));
    assert_true(number_at(result, "device_encode_gb_per_second") > 0);
    assert_true(number_at(result, "device_decode_gb_per_second") > 0);
    const json_t *key = json_object_get(layer_of(result, 0), "key");
    assert_true(json_is_null(json_object_get(key, "encode_seconds")));
    assert_true(number_at(key, "device_encode_seconds") > 0 && number_at(key, "device_decode_seconds") > 0);
    assert_true(json_is_boolean(json_object_get(key, "jit")));
    if (!is_real()) assert_true(json_is_true(json_object_get(key, "jit")));
    json_decref(root);
    status = RUN("eval", pipeline, dump, "--device", "0", "--html", page);
    if (status != 0) fail_msg("%d: %s", status, err);
    free(pipeline);
    free(page);
    free(dump);
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

/* Nothing on standard output, and one line of message that contains `part`. */
static void assert_refused(int status, const char *part) {
    if (status != 3) fail_msg("exit status %d, not 3: %s%s", status, out, err);
    assert_string_equal(out, "");
    kvant_assert_contains(err, part);
    assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1);
}

static void codecs_without_kernels_are_refused(void **state) {
    (void)state;
    need_kernels();
    char *mixed =
        write_pipeline("mixed.ini", "[layers]\nkey = kivi\nvalue = kivi\n[layers 2]\nvalue = uniform\n");
    assert_refused(RUN("eval", "uniform", SAMPLE, "--device", "0"), "codec uniform");
    kvant_assert_contains(err, "layer 0 key");
    assert_refused(RUN("eval", mixed, SAMPLE, "--device", "0"), "layer 2 value: codec uniform");
    assert_int_equal(RUN("eval", "uniform", SAMPLE), 0);
    free(mixed);
}

static void architectures_without_an_image_are_refused(void **state) {
    (void)state;
    need_kernels();
    if (is_real()) skip();
    simulated = "KVANT_PTX_DEVICE=7.5";
    int status = RUN("eval", "kivi", SAMPLE, "--device", "0");
    simulated = "KVANT_PTX_ORDER=eager";
    assert_refused(status, "no image for a device of compute capability 7.5");
}

/* Memory that ends at one place or another: one line that says so. */
static void memory_of_the_device_ends(void **state) {
    (void)state;
    need_kernels();
    if (is_real()) skip();
    kvant_test_dump d = kvant_test_dump_default();
    d.layers = 1;
    d.tokens = 80;
    d.query_start = 71;
    char *dump = path_of("small.safetensors"), memory[64];
    char *pipeline = write_pipeline("m.ini", PIPELINE("32", "4", "0", KIVI("4", "8")));
    uint32_t little = 1000, enough = 16 << 20, of_layer = 0;
    kvant_test_dump_write(&d, dump);
    while (enough - little > 1000) {
        uint32_t middle = little + (enough - little) / 2;
        (void)snprintf(memory, sizeof memory, "KVANT_PTX_MEMORY=%u", middle);
        simulated = memory;
        int status = RUN("eval", pipeline, dump, "--device", "0");
        simulated = "KVANT_PTX_ORDER=eager";
        *(status == 0 ? &enough : &little) = middle;
        if (status == 0) continue;
        assert_refused(status, "OUT_OF_MEMORY");
        of_layer += strstr(err, "layer 0") != NULL;
    }
    assert_true(of_layer > 0 && enough < 16 << 20);
    free(pipeline);
    free(dump);
}

static void keys_before_rope_are_refused(void **state) {
    (void)state;
    need_kernels();
    assert_refused(RUN("eval", "kivi", SAMPLE_PRE, "--device", "0"), "keys before RoPE");
}

static void devices_that_are_not_there(void **state) {
    (void)state;
    need_kernels();
    assert_refused(RUN("eval", "kivi", SAMPLE, "--device", "77"), "there is no device 77");
    assert_refused(RUN("eval", "kivi", SAMPLE, "--device", "2147483647"), "there is no device 2147483647");
}

static void no_driver(void **state) {
    (void)state;
    char *empty = path_of("empty"), variable[600];
    (void)snprintf(variable, sizeof variable, "LD_LIBRARY_PATH=%s", empty);
    int status = run((const char *const[]){"env", variable, KVANT_TEST_COMMAND, "eval", "kivi", SAMPLE,
                                           "--device", "0", NULL});
    free(empty);
    if (status == 0 || strstr(err, "no CUDA driver") == NULL) {
        print_message("this machine has a driver: %s", err);
        skip();
    }
    assert_refused(status, "no CUDA driver: libcuda.so.1");
}

static void wrong_numbers_of_a_device(void **state) {
    (void)state;
    static const char *const wrong[] = {"nonsense",  "-1", "", "0x1", "1.5", "99999999999999999999",
                                        "2147483648"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[64], message[128];
        (void)snprintf(text, sizeof text, "--device=%s", wrong[i]);
        (void)snprintf(message, sizeof message, "--device takes the number of a GPU, from 0, not \"%s\"",
                       wrong[i]);
        assert_int_equal(RUN("eval", "kivi", SAMPLE, text), 2);
        kvant_assert_contains(err, message);
        assert_string_equal(out, "");
    }
    assert_int_equal(RUN("eval", "kivi", SAMPLE, "--device"), 2);
    assert_int_equal(RUN("eval", "kivi", SAMPLE, "--devise", "0"), 2);
    kvant_assert_contains(err, "did you mean --device?");
}

static void set_search_path(void) {
    const char *path = getenv("LD_LIBRARY_PATH");
    if (is_real())
        (void)snprintf(search_path, sizeof search_path, "LD_LIBRARY_PATH=%s", path != NULL ? path : "");
    else
        (void)snprintf(search_path, sizeof search_path, "LD_LIBRARY_PATH=%s", DRIVER);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_the_cpu),
        cmocka_unit_test(numbers_that_are_not_finite_are_replaced),
        cmocka_unit_test(numbers_that_leave_their_format_are_counted),
        cmocka_unit_test(keys_that_are_centred),
        cmocka_unit_test(the_report_names_the_device),
        cmocka_unit_test(codecs_without_kernels_are_refused),
        cmocka_unit_test(architectures_without_an_image_are_refused),
        cmocka_unit_test(memory_of_the_device_ends),
        cmocka_unit_test(keys_before_rope_are_refused),
        cmocka_unit_test(devices_that_are_not_there),
        cmocka_unit_test(no_driver),
        cmocka_unit_test(wrong_numbers_of_a_device),
    };
    set_search_path();
    folder = kvant_scratch_make();
    int status = kvant_run_tests(tests, argc, argv);
    kvant_scratch_remove(folder);
    free(out);
    free(err);
    return status;
}
