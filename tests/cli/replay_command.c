/* `kvant replay` as its users meet it: traces written, replayed against the cache and compared, wrong
 * answers found, capacity, stores and restarts, errors. */
#include "support/run_command.h"
#include "support/scratch.h"
#include "support/test.h"
#include "support/write_dump.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE    KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors"
#define TRACE     KVANT_TEST_SOURCE_DIR "/samples/agent.jsonl"
#define PIPELINES KVANT_TEST_SOURCE_DIR "/pipelines/"
#define GEOMETRY  "layers=2,kv_heads=2,q_heads=4,head_dim=32,dtype=f16,rope=neox:10000"
/* Every operation occurs in it. */
#define SMALL                                                                                                \
    "agents=3,turns=6,seed=26,context=400,system=40,tools=60,answer=24,observation=70,restart=8,save=40,"    \
    "evict=15,drop=30,fork=20,rollback=25,tenants=2"

static char *folder, *small; /* a trace with everything in it */
static char *out, *err;

#define REPLAY(...) run((const char *const[]){KVANT_TEST_COMMAND, "replay", __VA_ARGS__, NULL})

static int run(const char *const argv[]) {
    free(out);
    free(err);
    return kvant_run(argv, &out, &err);
}

/* The document that the last run printed; the run must have ended so. */
static json_t *document(int status, int expected) {
    if (status != expected) fail_msg("exit status %d, not %d: %s", status, expected, err);
    json_error_t error;
    json_t *root = json_loads(out, 0, &error);
    if (root == NULL) fail_msg("%s in: %.300s", error.text, out);
    return root;
}

static json_t *result_of(const json_t *root, size_t index) {
    json_t *result = json_array_get(json_object_get(root, "results"), index);
    assert_non_null(result);
    return result;
}

static long long number(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_integer(value)) fail_msg("no number %s", name);
    return json_integer_value(value);
}

/* ---- Right answers ------------------------------------------------------------------------------------- */

/* The counts of a result follow from the trace: */
static void check_sample(const json_t *r, bool reads_stored_blocks) {
    const json_t *compared = json_object_get(r, "compared");
    assert_true(json_is_null(json_object_get(r, "failure")));
    assert_int_equal(number(r, "requests"), 19);
    assert_int_equal(number(r, "served"), 19);
    assert_int_equal(number(r, "refused") + number(r, "skipped"), 0);
    assert_int_equal(number(r, "asked_tokens"), 80 + 4 * (80 + 297 + 358) + 384 + 504);
    assert_int_equal(number(r, "generated_tokens"), 5 * 141 + 13 + 20 + 100);
    assert_int_equal(number(r, "saved_tokens"), 384);
    assert_int_equal(number(r, "loaded_tokens"), 384); /* all of what was saved is there again */
    assert_int_equal(number(r, "restarts"), 1);
    assert_int_equal(number(r, "drops"), 1);
    assert_true(number(r, "found_tokens") > 1000);
    assert_true(number(r, "rejected_tokens") > 50);
    assert_true(number(r, "aborted_steps") > 10);
    assert_true(number(r, "spilled") > 0);
    assert_true(number(r, "stored_hits") > 0 || !reads_stored_blocks);
    assert_true(number(compared, "rows") > 50000 && number(compared, "outputs") > 1000);
    /* The texts of rounds that went on, and of new sequences: each token is found or computed. */
    assert_int_equal(number(r, "asked_tokens") + 146 + 17,
                     number(r, "found_tokens") + number(r, "prefilled_tokens"));
}

/* Every shipped kind of method on the conversation of the sample, with a store. */
static void sample_is_replayed(void **state) {
    (void)state;
    char *store = kvant_scratch_path(folder, "lmdb");
    json_t *root =
        document(REPLAY(TRACE, "raw", PIPELINES "kivi-2.ini", PIPELINES "turboquant-4-centered.ini",
                        PIPELINES "hack-4.ini", PIPELINES "kvquant-3.ini", PIPELINES "triaxial.ini", SAMPLE,
                        "--bytes", "8M", "--store", store, "--json"),
                 0);
    assert_string_equal(err, "");
    for (size_t i = 0; i < 6; i++)
        check_sample(result_of(root, i), i < 5); /* blocks of triaxial are longer */
    long long raw = number(json_object_get(result_of(root, 0), "bytes"), "payload");
    long long kivi = number(json_object_get(result_of(root, 1), "bytes"), "payload");
    assert_true(raw >= 8 * kivi); /* 16 bits and 2, and raw keeps no tokens unencoded */
    json_decref(root);
    free(store);
    store = kvant_scratch_path(folder, "directory");
    root = document(REPLAY(TRACE, "kivi", SAMPLE, "--bytes", "8M", "--store", store, "--store-kind",
                           "directory", "--json"),
                    0);
    check_sample(result_of(root, 0), true);
    json_decref(root);
    free(store);
}

/* Rows, windows, dims and dtypes of a dump; what tokens are made of. */
static void geometries_are_replayed(void **state) {
    (void)state;
    static const struct {
        uint32_t dtype, kv_heads, q_heads, key_dim, value_dim, window;
        bool before;
        const char *by;
    } all[] = {{KVANT_DTYPE_F16, 2, 6, 32, 24, 0, false, "id"},
               {KVANT_DTYPE_BF16, 1, 4, 18, 7, 70, false, "context"},
               {KVANT_DTYPE_F32, 3, 3, 20, 33, 130, true, "position"}};
    static const char ini[] =
        "[pipeline]\nblock_tokens = 32\nsinks = 3\nrecent = 21\n[layers]\nkey = uniform\nvalue = "
        "uniform\n[layers 1]\nkey = raw\n";
    char *dump = kvant_scratch_path(folder, "dump.safetensors"),
         *pipeline = kvant_scratch_path(folder, "p.ini");
    kvant_scratch_write(pipeline, ini, sizeof ini - 1);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        kvant_test_dump d = kvant_test_dump_default();
        d.dtype = all[i].dtype;
        d.kv_heads = all[i].kv_heads;
        d.q_heads = all[i].q_heads;
        d.key_dim = all[i].key_dim;
        d.value_dim = all[i].value_dim;
        d.window = all[i].window;
        d.keys_before_rope = all[i].before;
        d.has_queries = i != 1;
        kvant_test_dump_write(&d, dump);
        json_t *root = document(REPLAY(small, pipeline, "raw", dump, "--rows-by", all[i].by, "--bytes", "3M",
                                       "--every", "4", "--json", "--step", "70"),
                                0);
        for (size_t k = 0; k < 2; k++) {
            const json_t *r = result_of(root, k);
            assert_int_equal(number(r, "refused"), 0);
            assert_true(number(json_object_get(r, "compared"), "outputs") > 300);
            assert_true((number(r, "rollback_refusals") > 0) <= (all[i].window > 0));
        }
        json_decref(root);
    }
    free(dump);
    free(pipeline);
}

/* A fork of a long sequence goes back to its beginning, in layers that had released what lies between: what
 * others with the same beginning see must still be there. */
static void deep_cuts_release_nothing_of_others(void **state) {
    (void)state;
    static const char ini[] = "[pipeline]\nblock_tokens = 32\nsinks = 5\nrecent = 40\n[layers]\nkey = "
                              "uniform\nvalue = uniform\n";
    static const char text[] =
        "{\"format\": \"kvant-trace/1\"}\n"
        "{\"op\": \"request\", \"sequence\": \"a\", \"text\": {\"range\": [0, 110]}}\n"
        "{\"op\": \"request\", \"sequence\": \"b\", \"text\": [{\"range\": [0, 110]}, {\"range\": [1000, "
        "300]}]}\n"
        "{\"op\": \"fork\", \"sequence\": \"c\", \"of\": \"b\"}\n"
        "{\"op\": \"rollback\", \"sequence\": \"c\", \"tokens\": 404}\n"
        "{\"op\": \"request\", \"sequence\": \"a\", \"generate\": {\"range\": [2000, 30]}}\n";
    char *dump = kvant_scratch_path(folder, "w.safetensors"), *pipeline = kvant_scratch_path(folder, "w.ini");
    char *trace = kvant_scratch_path(folder, "w.jsonl");
    kvant_test_dump d = kvant_test_dump_default();
    d.window = 90;
    kvant_test_dump_write(&d, dump);
    kvant_scratch_write(pipeline, ini, sizeof ini - 1);
    kvant_scratch_write(trace, text, sizeof text - 1);
    json_t *root = document(REPLAY(trace, pipeline, dump, "--bytes", "2M", "--every", "1", "--json"), 0);
    const json_t *r = result_of(root, 0);
    assert_int_equal(number(r, "served"), 3);
    assert_int_equal(number(r, "found_tokens"), 64); /* blocks that a and b share */
    assert_int_equal(number(r, "rollback_refusals"), 0);
    json_decref(root);
    free(dump);
    free(pipeline);
    free(trace);
}

/* ---- Capacity ------------------------------------------------------------------------------------------ */

/* The counts of a result without those that are times or bytes of tables. */
static char *counts_of(const json_t *root, size_t index) {
    json_t *copy = json_deep_copy(result_of(root, index));
    json_object_del(copy, "seconds");
    char *text = json_dumps(copy, JSON_SORT_KEYS);
    assert_non_null(text);
    json_decref(copy);
    return text;
}

/* On the same bytes raw refuses and evicts where 2 bits do not; answers and counts depend on no threads. */
static void capacity_is_pictured(void **state) {
    (void)state;
    char *counts[2];
    for (int i = 0; i < 2; i++) {
        json_t *root = document(REPLAY(small, "raw", "kivi", "--geometry", GEOMETRY, "--bytes", "250K",
                                       "--json", "--threads", i == 0 ? "1" : "3"),
                                0);
        const json_t *raw = result_of(root, 0), *kivi = result_of(root, 1);
        assert_true(number(raw, "refused") > 0);
        assert_int_equal(number(kivi, "refused"), 0);
        assert_int_equal(number(kivi, "served"), number(kivi, "requests"));
        assert_true(number(raw, "served") + number(raw, "refused") <= number(raw, "requests"));
        assert_true(number(raw, "evictions") > number(kivi, "evictions"));
        assert_true(number(raw, "found_tokens") * number(kivi, "asked_tokens") <
                    number(kivi, "found_tokens") * number(raw, "asked_tokens"));
        assert_int_equal(number(raw, "spilled"), 0);
        assert_true(number(raw, "peak") <= number(raw, "capacity"));
        assert_true(number(raw, "capacity") <= 250 << 10);
        counts[i] = counts_of(root, 0);
        json_decref(root);
    }
    assert_string_equal(counts[0], counts[1]);
    free(counts[0]);
    free(counts[1]);
}

/* What a store holds outlives a run; blocks of other rows are not found in it, though their ids are the
 * same. */
static void stores_outlive_runs(void **state) {
    (void)state;
    char *store = kvant_scratch_path(folder, "outlives");
    long long found[3];
    static const char *const seeds[] = {"1", "1", "2"};
    for (int i = 0; i < 3; i++) {
        json_t *root = document(REPLAY(small, "kivi", "--geometry", GEOMETRY, "--bytes", "2M", "--store",
                                       store, "--seed", seeds[i], "--json"),
                                0);
        found[i] = number(result_of(root, 0), "found_tokens");
        assert_true(number(result_of(root, 0), "saves") > 0);
        json_decref(root);
    }
    assert_true(found[1] > found[0]);
    assert_int_equal(found[2], found[0]);
    free(store);
}

static void less_may_be_compared(void **state) {
    (void)state;
    static const char *const checks[] = {"none", "reads", "all"};
    long long rows[3], outputs[3];
    for (int i = 0; i < 3; i++) {
        json_t *root = document(
            REPLAY(small, "kivi", "--geometry", GEOMETRY, "--bytes", "2M", "--check", checks[i], "--json"),
            0);
        const json_t *compared = json_object_get(result_of(root, 0), "compared");
        rows[i] = number(compared, "rows");
        outputs[i] = number(compared, "outputs");
        json_decref(root);
    }
    assert_int_equal(rows[0], 0);
    assert_true(rows[1] > 10000 && rows[2] > rows[1]);
    assert_int_equal(outputs[1], 0);
    assert_true(outputs[2] > 100);
    json_t *root =
        document(REPLAY(small, "kivi", "--geometry", GEOMETRY, "--bytes", "2M", "--put", "--json"), 0);
    const json_t *compared = json_object_get(result_of(root, 0), "compared");
    assert_int_equal(number(compared, "outputs"), 0);
    assert_true(number(compared, "rows") > 10000);
    json_decref(root);
}

static void table_is_printed(void **state) {
    (void)state;
    assert_int_equal(REPLAY(small, "raw", "kivi", "--geometry", GEOMETRY, "--bytes", "2M"), 0);
    static const char *const words[] = {"a pool of 2.10 MB",
                                        "\npipeline ",
                                        "\nraw ",
                                        "\nkivi ",
                                        " ok\n",
                                        " peak ",
                                        "compared with the oracle (all): "};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) kvant_assert_contains(out, words[i]);
}

/* ---- Wrong answers ------------------------------------------------------------------------------------- */

/* A codec that does not encode twice alike is what a cache would look like that encodes the wrong rows: line,
 * sequence, layer, side and token are named, and the other pipelines are replayed all the same. */
static void wrong_answers_are_found(void **state) {
    (void)state;
    static const char path[] = KVANT_TEST_BUILD_DIR "/tests/bad_plugins/lie_counter";
    json_t *root = document(
        REPLAY(TRACE, "lie_counter", "raw", SAMPLE, "--bytes", "8M", "--plugin-path", path, "--json"), 1);
    kvant_assert_contains(err, "agent.jsonl:");
    kvant_assert_contains(err, "lie_counter: sequence \"stays\": layer ");
    kvant_assert_contains(err, "(encoded), head 0, channel ");
    kvant_assert_contains(err, " is right\n");
    const json_t *failure = json_object_get(result_of(root, 0), "failure");
    assert_true(number(failure, "line") >= 8);
    assert_string_equal(json_string_value(json_object_get(failure, "sequence")), "stays");
    kvant_assert_contains(json_string_value(json_object_get(failure, "message")), "token ");
    assert_true(json_is_null(json_object_get(result_of(root, 1), "failure")));
    assert_int_equal(number(result_of(root, 1), "served"), 19);
    json_decref(root);
    assert_int_equal(REPLAY(TRACE, "lie_counter", SAMPLE, "--bytes", "8M", "--plugin-path", path), 1);
    kvant_assert_contains(out, "WRONG\n");
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

#define REFUSED(status, part, ...) assert_refused(REPLAY(__VA_ARGS__), (status), (part))

static void assert_refused(int got, int status, const char *part) {
    if (got != status) fail_msg("exit status %d, not %d: %s%s", got, status, out, err);
    assert_string_equal(out, "");
    kvant_assert_contains(err, part);
}

static void usage_is_checked(void **state) {
    (void)state;
    REFUSED(2, "no trace", "raw", SAMPLE);
    REFUSED(2, "no pipeline", TRACE, SAMPLE);
    REFUSED(2, "either a dump", TRACE, "raw");
    REFUSED(2, "either a dump", TRACE, "raw", SAMPLE, "--geometry", GEOMETRY);
    REFUSED(2, "is a second", TRACE, TRACE, "raw", SAMPLE);
    REFUSED(2, "no option --bite", TRACE, "raw", SAMPLE, "--bite", "3");
    REFUSED(2, "--bytes takes a value", TRACE, "raw", SAMPLE, "--bytes");
    REFUSED(2, "--bytes takes bytes", TRACE, "raw", SAMPLE, "--bytes", "8X");
    REFUSED(2, "--bytes takes bytes", TRACE, "raw", SAMPLE, "--bytes", "99999999999G");
    REFUSED(2, "--step takes a number", TRACE, "raw", SAMPLE, "--step", "0");
    REFUSED(2, "did you mean reads?", TRACE, "raw", SAMPLE, "--check", "read");
    REFUSED(2, "did you mean context?", TRACE, "raw", SAMPLE, "--rows-by", "contxt");
    REFUSED(2, "goes with --store", TRACE, "raw", SAMPLE, "--store-bytes", "2M");
    REFUSED(2, "-o TRACE.jsonl is missing", "--generate", "agents=2");
    REFUSED(2, "did you mean \"agents\"?", "--generate", "agent=2", "-o", "/tmp/never.jsonl");
    REFUSED(2, "exclude each other", "--generate", "", "--from-dump", SAMPLE, "-o", "/tmp/never.jsonl");
    REFUSED(2, "does not replay one as well", "--generate", "", "-o", "/tmp/never.jsonl", "raw");
    REFUSED(2, "-o goes with", TRACE, "raw", SAMPLE, "-o", "/tmp/never.jsonl");
}

static void input_is_checked(void **state) {
    (void)state;
    static const char text[] =
        "{\"format\": \"kvant-trace/1\"}\n{\"op\": \"restart\"}\n{\"op\": \"restrat\"}\n";
    char *bad = kvant_scratch_path(folder, "bad.jsonl"), *empty = kvant_scratch_path(folder, "empty.jsonl");
    kvant_scratch_write(bad, text, sizeof text - 1);
    kvant_scratch_write(empty, text, 28);
    REFUSED(3, "bad.jsonl:3: there is no op \"restrat\"; did you mean \"restart\"?", bad, "raw", SAMPLE);
    REFUSED(3, "empty.jsonl: there is nothing in it to replay", empty, "raw", SAMPLE);
    REFUSED(3, "no-such.jsonl: cannot open", "no-such.jsonl", "raw", SAMPLE);
    REFUSED(3, "no-such.safetensors", TRACE, "raw", "no-such.safetensors");
    REFUSED(3, "rwa", TRACE, "rwa", SAMPLE);
    REFUSED(3, "no-such.ini", TRACE, "no-such.ini", SAMPLE);
    REFUSED(3, "kv_haeds", TRACE, "raw", "--geometry", "kv_haeds=3");
    REFUSED(3, "/proc/no-such", TRACE, "raw", SAMPLE, "--store", "/proc/no-such");
    REFUSED(3, "raw", TRACE, "raw", SAMPLE, "--bytes", "64K"); /* less than a block */
    REFUSED(3, "tag_names", "--from-dump", KVANT_TEST_SOURCE_DIR "/samples/sample_prose.safetensors", "-o",
            bad);
    REFUSED(3, "/no-such/", "--generate", "agents=1,turns=1", "-o", "/no-such/x.jsonl");
    kvant_test_dump d = kvant_test_dump_default();
    char *dump = kvant_scratch_path(folder, "keys.safetensors");
    d.has_values = false;
    kvant_test_dump_write(&d, dump);
    REFUSED(3, "it has no values", TRACE, "raw", dump);
    free(dump);
    free(bad);
    free(empty);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(sample_is_replayed),
        cmocka_unit_test(geometries_are_replayed),
        cmocka_unit_test(deep_cuts_release_nothing_of_others),
        cmocka_unit_test(capacity_is_pictured),
        cmocka_unit_test(stores_outlive_runs),
        cmocka_unit_test(less_may_be_compared),
        cmocka_unit_test(table_is_printed),
        cmocka_unit_test(wrong_answers_are_found),
        cmocka_unit_test(usage_is_checked),
        cmocka_unit_test(input_is_checked),
    };
    folder = kvant_scratch_make();
    small = kvant_scratch_path(folder, "small.jsonl");
    if (REPLAY("--generate", SMALL, "-o", small) != 0) return 1;
    int failures = kvant_run_tests(tests, argc, argv);
    free(out);
    free(err);
    free(small);
    kvant_scratch_remove(folder);
    return failures;
}
