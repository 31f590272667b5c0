/* kvant tag, as the real command, on the sample. */
#include "support/data.h"
#include "support/run_command.h"
#include "support/test.h"

#include "data/dump.h"

#include <kvant/kit/tags.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE        KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors"
#define PROSE         KVANT_TEST_SOURCE_DIR "/samples/sample_prose.safetensors"
#define CHAT_TEMPLATE KVANT_TEST_SOURCE_DIR "/samples/smollm2-chat.ini"

static char *out, *err;
static char output[4096];

static int run(const char *const argv[]) {
    free(out);
    free(err);
    return kvant_run(argv, &out, &err);
}

static void count_roles(uint32_t counts[KVANT_TAG_ROLES], uint32_t times[KVANT_TAG_TIMES]) {
    kvant_dump *dump = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_dump_open(output, &dump, &diag), KVANT_OK);
    const kvant_dump_info *info = kvant_dump_describe(dump);
    assert_int_equal(info->tokens, 384);
    assert_int_equal(info->query_tokens, 16); /* all else is still there */
    assert_int_equal(kvant_dump_geometry(dump)->layer_count, 4);
    memset(counts, 0, KVANT_TAG_ROLES * sizeof *counts);
    memset(times, 0, KVANT_TAG_TIMES * sizeof *times);
    for (uint32_t t = 0; t < info->tokens; t++) {
        counts[kvant_tag_axis(info->tags[t], KVANT_TAG_AXIS_ROLE)]++;
        times[kvant_tag_axis(info->tags[t], KVANT_TAG_AXIS_TIME)]++;
    }
    kvant_dump_close(dump);
}

static void by_spans_and_by_ids(void **state) {
    (void)state;
    uint32_t roles[KVANT_TAG_ROLES], times[KVANT_TAG_TIMES];
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "tag", SAMPLE, "-o", output, NULL}), 0);
    kvant_assert_contains(out, "384 tokens, by spans");
    kvant_assert_contains(out, "older.text.inst");
    kvant_assert_contains(err, "not causal");
    count_roles(roles, times);
    static const uint32_t by_spans[KVANT_TAG_ROLES] = {59, 38, 44, 54, 43, 146, 0};
    assert_memory_equal(roles, by_spans, sizeof by_spans);
    static const uint32_t when[KVANT_TAG_TIMES] = {43, 282, 0, 59};
    assert_memory_equal(times, when, sizeof when);

    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "tag", SAMPLE, "--template", CHAT_TEMPLATE,
                                               "--ids", "--causal", "-o", output, "--json", NULL}),
                     0);
    kvant_assert_contains(out, "\"causal\": true");
    assert_string_equal(err, "");
    count_roles(roles, times);
    static const uint32_t by_ids[KVANT_TAG_ROLES] = {54, 28, 39, 36, 31, 141, 55};
    assert_memory_equal(roles, by_ids, sizeof by_ids);
    assert_int_equal(times[KVANT_TAG_OLDER], 384);

    /* What the command wrote it reads. */
    char again[4200];
    (void)snprintf(again, sizeof again, "%s.again", output);
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "tag", output, "-o", again, NULL}), 0);
    assert_int_equal(remove(again), 0);
}

static void with_spans(void **state) {
    (void)state;
    char spans[4200];
    uint32_t roles[KVANT_TAG_ROLES], times[KVANT_TAG_TIMES];
    (void)snprintf(spans, sizeof spans, "%s/spans.json", kvant_test_directory());
    static const char good[] =
        "[{\"first\": 0, \"count\": 100, \"role\": \"inst\", \"turn\": 0},"
        " {\"first\": 200, \"count\": 10, \"role\": \"user\", \"modality\": \"image\"}]";
    kvant_test_write(spans, good, sizeof good - 1);
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "tag", PROSE, "--spans", spans,
                                               "--untagged", "obs", "-o", output, NULL}),
                     0);
    count_roles(roles, times);
    static const uint32_t wanted[KVANT_TAG_ROLES] = {100, 10, 0, 0, 0, 274, 0};
    assert_memory_equal(roles, wanted, sizeof wanted);
    static const char *const bad[] = {"{}",
                                      "[]",
                                      "[1]",
                                      "[{\"first\": 0}]",
                                      "[{\"first\": 0, \"count\": 1, \"role\": \"x\"}]",
                                      "[{\"first\": 0, \"count\": 1, \"role\": \"user\", \"tuns\": 1}]",
                                      "[{\"first\": 0, \"count\": 385, \"role\": \"user\"}]",
                                      "[{\"first\": 0, \"count\": 1, \"role\": \"user\", \"turn\": -1}]",
                                      "["};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvant_test_write(spans, bad[i], strlen(bad[i]));
        assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "tag", PROSE, "--spans", spans, "-o",
                                                   output, NULL}),
                         3);
        kvant_assert_contains(err, "spans.json");
    }
}

static void refusals(void **state) {
    (void)state;
    char file[4200];
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "tag", PROSE, "-o", output, NULL}), 3);
    kvant_assert_contains(err, "nothing says what its tokens are");
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "tag", PROSE, NULL}), 2);
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "tag", "-o", output, NULL}), 2);
    assert_int_equal(
        run((const char *const[]){KVANT_TEST_COMMAND, "tag", PROSE, "--ids", "-o", output, NULL}), 2);
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "tag", PROSE, "--untagged", "older", "-o",
                                               output, NULL}),
                     2);
    (void)snprintf(file, sizeof file, "%s/chat.ini", kvant_test_directory());
    static const struct {
        const char *text, *part;
    } bad[] = {{"[template]\nend = 2\n", "needs start"},
               {"[template]\nstart = x\n", "chat.ini:2: start takes up to 16 token ids"},
               {"[template]\nstart = 1\nstop = 2\n", "has no key \"stop\""},
               {"[template]\nstart = 1\nturn = user\n", "real_user or any_user"},
               {"[template]\nstart = 1\n[role x]\nids = 1\n", "lacks \"as\""},
               {"[template]\nstart = 1\n[role x]\nids = 1\nas = older\n", "\"older\" is no role"},
               {"[template]\nstart = 1\n[bracket x]\nopen = 1\nas = obs\nin = user\n", "lacks \"close\""},
               {"[template]\nstart = 1\n[roles x]\nids = 1\n", "[roles] is no section"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvant_test_write(file, bad[i].text, strlen(bad[i].text));
        assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "tag", PROSE, "--template", file, "-o",
                                                   output, NULL}),
                         3);
        kvant_assert_contains(err, bad[i].part);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(by_spans_and_by_ids),
                                              cmocka_unit_test(with_spans), cmocka_unit_test(refusals)};
    (void)snprintf(output, sizeof output, "%s/tagged.safetensors", kvant_test_directory());
    int result = kvant_run_tests(tests, argc, argv);
    free(out);
    free(err);
    return result;
}
