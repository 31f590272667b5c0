/* Traces: what a line means, every rule that a line can break with its file and line, made-up traffic, and
 * the traces of dumps. */
#include "replay/trace.h"

#include "replay/trace_of_dump.h"
#include "replay/traffic.h"
#include "support/data.h"
#include "support/scratch.h"
#include "support/test.h"

#include <kvant/kit/tags.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD "{\"format\": \"kvant-trace/1\"}\n"

static char *folder;

static char *write_trace(const char *name, const char *text) {
    char *path = kvant_scratch_path(folder, name);
    kvant_scratch_write(path, text, strlen(text));
    return path;
}

static kvant_trace *open_trace(const char *path) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_trace *trace = NULL;
    if (kvant_trace_open(path, &trace, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    return trace;
}

static const kvant_trace_event *next(kvant_trace *trace) {
    kvant_diag diag = {.struct_size = sizeof diag};
    const kvant_trace_event *event = NULL;
    if (kvant_trace_next(trace, &event, &diag) != KVANT_OK) fail_msg("line %d: %s", diag.line, diag.message);
    return event;
}

/* ---- What lines mean ----------------------------------------------------------------------------------- */

static void requests_are_read(void **state) {
    (void)state;
    char *path = write_trace(
        "request.jsonl", HEAD
        "# a comment, then an empty line\n\n"
        "{\"segment\": \"system\", \"text\": {\"range\": [100, 3], \"role\": \"inst\"}}\n"
        "{\"segment\": \"system\", \"text\": [{\"segment\": \"system\"}, {\"ids\": [7, 9], \"tag\": 200}]}\n"
        "{\"op\": \"request\", \"sequence\": \"a\", \"tenant\": \"t\", \"text\": [{\"segment\": \"system\"}, "
        "{\"range\": [5, 1]}, {\"ids\": [1], \"role\": \"obs\", \"generated\": true}], \"generate\": "
        "{\"range\": "
        "[50, 2]}, \"draft\": {\"propose\": 3, \"accept\": [0, 3]}, \"note\": \"x\"}\n"
        "{\"op\": \"request\", \"sequence\": \"a\", \"generate\": [{\"segment\": \"system\"}]}\n");
    kvant_trace *trace = open_trace(path);
    const kvant_trace_event *e = next(trace);
    static const uint64_t ids[] = {100, 101, 102, 7, 9, 5, 1};
    uint8_t inst = kvant_tag_make(KVANT_TAG_OLDER, KVANT_TAG_TEXT, KVANT_TAG_INST);
    uint8_t user = kvant_tag_make(KVANT_TAG_OLDER, KVANT_TAG_TEXT, KVANT_TAG_USER);
    uint8_t obs = kvant_tag_make(KVANT_TAG_OLDER, KVANT_TAG_TEXT, KVANT_TAG_OBS);
    uint8_t said =
        (uint8_t)(kvant_tag_make(KVANT_TAG_OLDER, KVANT_TAG_TEXT, KVANT_TAG_ASSISTANT) + KVANT_TAG_GENERATED);
    const uint8_t tags[] = {inst, inst, inst, 200, 200, user, (uint8_t)(obs + KVANT_TAG_GENERATED)};
    assert_int_equal(e->op, KVANT_TRACE_REQUEST);
    assert_int_equal(e->line, 6);
    assert_string_equal(e->name, "a");
    assert_string_equal(e->tenant, "t");
    assert_int_equal(e->starts, 1);
    assert_int_equal(e->text.count, 7);
    kvant_assert_bytes(e->text.ids, ids, sizeof ids);
    kvant_assert_bytes(e->text.tags, tags, sizeof tags);
    assert_int_equal(e->generated.count, 2);
    assert_int_equal(e->generated.ids[1], 51);
    assert_int_equal(e->generated.tags[1], said);
    assert_int_equal(e->draft, 3);
    assert_int_equal(e->accepted_count, 2);
    assert_int_equal(e->accepted[1], 3);
    uint32_t number = e->sequence;
    e = next(trace);
    assert_int_equal(e->starts, 0);
    assert_int_equal(e->sequence, number);
    assert_string_equal(e->tenant, "t");
    assert_int_equal(e->text.count, 0);
    assert_int_equal(e->generated.count, 5);
    assert_int_equal(e->generated.tags[0], inst); /* a segment's tokens keep their tags */
    assert_int_equal(e->draft, 0);
    assert_null(next(trace));
    kvant_trace_close(trace);
    free(path);
}

static void other_operations_are_read(void **state) {
    (void)state;
    char *path = write_trace(
        "operations.jsonl", HEAD
        "{\"op\": \"request\", \"sequence\": \"a\", \"text\": {\"range\": [0, 10]}}\n"
        "{\"op\": \"fork\", \"sequence\": \"b\", \"of\": \"a\"}\n"
        "{\"op\": \"rollback\", \"sequence\": \"b\", \"tokens\": 4}\n"
        "{\"op\": \"drop\", \"sequence\": \"a\", \"first\": 2, \"count\": 8}\n"
        "{\"op\": \"reorder\", \"sequences\": [\"a\", \"b\"], \"sources\": [1, 0]}\n"
        "{\"op\": \"rollback\", \"sequence\": \"b\", \"tokens\": 10}\n" /* it has the length that a had */
        "{\"op\": \"evict\", \"fraction\": 0.25}\n"
        "{\"op\": \"evict\", \"bytes\": 4096}\n"
        "{\"op\": \"save\", \"sequence\": \"a\"}\n"
        "{\"op\": \"end\", \"sequence\": \"a\"}\n"
        "{\"op\": \"fork\", \"sequence\": \"c\", \"of\": \"b\"}\n"
        "{\"op\": \"restart\"}\n"
        "{\"op\": \"load\", \"sequence\": \"a\", \"text\": {\"range\": [0, 6]}}\n");
    kvant_trace *trace = open_trace(path);
    uint32_t a = next(trace)->sequence;
    const kvant_trace_event *e = next(trace);
    uint32_t b = e->sequence;
    assert_int_equal(e->op, KVANT_TRACE_FORK);
    assert_int_equal(e->source, a);
    assert_int_not_equal(a, b);
    assert_int_equal(next(trace)->count, 4);
    e = next(trace);
    assert_int_equal(e->first, 2);
    assert_int_equal(e->count, 8);
    e = next(trace);
    assert_int_equal(e->count, 2);
    assert_int_equal(e->sequences[0], a);
    assert_int_equal(e->sequences[1], b);
    assert_int_equal(e->sources[0], 1);
    assert_int_equal(next(trace)->count, 10);
    kvant_assert_close(next(trace)->fraction, 0.25, 0);
    e = next(trace);
    assert_int_equal(e->bytes, 4096);
    kvant_assert_close(e->fraction, 0, 0);
    assert_int_equal(next(trace)->op, KVANT_TRACE_SAVE);
    assert_int_equal(next(trace)->op, KVANT_TRACE_END);
    assert_int_equal(next(trace)->sequence, a); /* its number is free again */
    assert_int_equal(next(trace)->op, KVANT_TRACE_RESTART);
    e = next(trace);
    assert_int_equal(e->op, KVANT_TRACE_LOAD);
    assert_int_equal(e->starts, 1);
    assert_null(next(trace));
    kvant_trace_close(trace);
    free(path);
}

/* ---- What lines may not -------------------------------------------------------------------------------- */

#define A(...)   "{\"op\": \"request\", \"sequence\": \"a\", \"text\": {\"range\": [0, 10]}" __VA_ARGS__ "}\n"
#define B(piece) "{\"op\": \"request\", \"sequence\": \"b\", \"text\": " piece "}\n"

static const struct {
    const char *lines; /* behind the first one; the last of them is wrong */
    kvant_status status;
    const char *says;
} wrong[] = {
    {"{\"op\": \"request\"\n", KVANT_ERROR_SYNTAX, "no JSON"},
    {"[1]\n", KVANT_ERROR_SYNTAX, "one object"},
    {"{\"op\": \"end\", \"op\": \"end\"}\n", KVANT_ERROR_SYNTAX, "duplicate"},
    {"{}\n", KVANT_ERROR_MISSING, "\"op\" is missing"},
    {"{\"op\": 3}\n", KVANT_ERROR_VALUE, "\"op\" is a string"},
    {"{\"op\": \"requst\"}\n", KVANT_ERROR_UNKNOWN_NAME, "did you mean \"request\"?"},
    {"{\"op\": \"qqqqqq\"}\n", KVANT_ERROR_UNKNOWN_NAME, "there is no op \"qqqqqq\""},
    {A(", \"tenat\": \"x\""), KVANT_ERROR_UNKNOWN_NAME, "did you mean \"tenant\"?"},
    {"{\"op\": \"request\", \"text\": []}\n", KVANT_ERROR_MISSING, "\"sequence\" is missing"},
    {"{\"op\": \"request\", \"sequence\": \"\", \"text\": []}\n", KVANT_ERROR_VALUE, "1 to 128 bytes"},
    {"{\"op\": \"request\", \"sequence\": \"a\"}\n", KVANT_ERROR_MISSING, "a new sequence needs a text"},
    {A("") "{\"op\": \"request\", \"sequence\": \"a\"}\n", KVANT_ERROR_MISSING, "or tokens to generate"},
    {A("") "{\"op\": \"request\", \"sequence\": \"a\", \"tenant\": \"x\", \"text\": {\"ids\": [1]}}\n",
     KVANT_ERROR_CONFLICT, "began as tenant \"\""},
    {A("") "{\"op\": \"load\", \"sequence\": \"a\", \"text\": {\"ids\": [1]}}\n", KVANT_ERROR_CONFLICT,
     "only a new sequence is loaded"},
    {B("7"), KVANT_ERROR_SYNTAX, "a text is a piece"},
    {B("{\"range\": [1]}"), KVANT_ERROR_VALUE, "a range is [first id, how many]"},
    {B("{\"range\": [-1, 2]}"), KVANT_ERROR_VALUE, "a range is [first id, how many]"},
    {B("{\"range\": [9223372036854775807, 2]}"), KVANT_ERROR_VALUE, "a range is [first id, how many]"},
    {B("{\"range\": [0, 16777217]}"), KVANT_ERROR_VALUE, "more than 16777216 tokens"},
    {B("{\"ids\": 3}"), KVANT_ERROR_VALUE, "ids are an array"},
    {B("{\"ids\": [3, -1]}"), KVANT_ERROR_VALUE, "id 1 is no whole number"},
    {B("{\"ids\": [0.5]}"), KVANT_ERROR_VALUE, "id 0 is no whole number"},
    {B("{\"role\": \"user\"}"), KVANT_ERROR_CONFLICT, "one of range, ids and segment"},
    {B("{\"ids\": [1], \"range\": [1, 2]}"), KVANT_ERROR_CONFLICT, "one of range, ids and segment"},
    {B("{\"ids\": [1], \"roel\": \"user\"}"), KVANT_ERROR_UNKNOWN_NAME, "did you mean \"role\"?"},
    {B("{\"ids\": [1], \"role\": \"older\"}"), KVANT_ERROR_UNKNOWN_NAME, "\"older\" is no role"},
    {B("{\"ids\": [1], \"tag\": 256}"), KVANT_ERROR_VALUE, "from 0 to 255"},
    {B("{\"ids\": [1], \"tag\": 5, \"role\": \"user\"}"), KVANT_ERROR_CONFLICT, "a tag says it all"},
    {B("{\"ids\": [1], \"generated\": 1}"), KVANT_ERROR_VALUE, "true or false"},
    {B("{\"segment\": \"x\"}"), KVANT_ERROR_UNKNOWN_NAME, "there is no segment \"x\" yet"},
    {"{\"segment\": \"system\", \"text\": []}\n" B("{\"segment\": \"sistem\"}"), KVANT_ERROR_UNKNOWN_NAME,
     "did you mean \"system\"?"},
    {"{\"segment\": \"s\", \"text\": []}\n" B("{\"segment\": \"s\", \"role\": \"user\"}"),
     KVANT_ERROR_CONFLICT, "keep their tags"},
    {"{\"segment\": \"s\"}\n", KVANT_ERROR_MISSING, "a segment needs a text"},
    {"{\"segment\": \"s\", \"text\": [], \"op\": \"end\"}\n", KVANT_ERROR_UNKNOWN_NAME, "no key \"op\""},
    {A(", \"draft\": 4"), KVANT_ERROR_SYNTAX, "an object with propose and accept"},
    {A(", \"draft\": {\"propose\": 4}"), KVANT_ERROR_CONFLICT, "a draft needs tokens to generate"},
    {A(", \"generate\": {\"ids\": [1]}, \"draft\": {\"propose\": 0}"), KVANT_ERROR_VALUE, "from 1 to 1024"},
    {A(", \"generate\": {\"ids\": [1]}, \"draft\": {\"propose\": 2, \"accept\": [2, 3]}"), KVANT_ERROR_VALUE,
     "number 1 is not from 0 to the 2"},
    {A(", \"generate\": {\"ids\": [1]}, \"draft\": {\"propose\": 2, \"accept\": []}"), KVANT_ERROR_VALUE,
     "an array of numbers"},
    {"{\"op\": \"fork\", \"sequence\": \"b\", \"of\": \"a\"}\n", KVANT_ERROR_UNKNOWN_NAME,
     "there is no sequence \"a\" here"},
    {A("") "{\"op\": \"fork\", \"sequence\": \"a\", \"of\": \"a\"}\n", KVANT_ERROR_DUPLICATE,
     "needs a new name"},
    {"{\"op\": \"request\", \"sequence\": \"agent-one\", \"text\": {\"ids\": [1]}}\n"
     "{\"op\": \"end\", \"sequence\": \"agent-oen\"}\n",
     KVANT_ERROR_UNKNOWN_NAME, "did you mean \"agent-one\"?"},
    {A("") "{\"op\": \"end\", \"sequence\": \"a\"}\n{\"op\": \"end\", \"sequence\": \"a\"}\n",
     KVANT_ERROR_UNKNOWN_NAME, "there is no sequence \"a\" here"},
    {A("") "{\"op\": \"restart\"}\n{\"op\": \"save\", \"sequence\": \"a\"}\n", KVANT_ERROR_UNKNOWN_NAME,
     "there is no sequence \"a\" here"},
    {A("") "{\"op\": \"rollback\", \"sequence\": \"a\", \"tokens\": 11}\n", KVANT_ERROR_VALUE,
     "has 10 tokens"},
    {A("") "{\"op\": \"rollback\", \"sequence\": \"a\", \"tokens\": 0}\n", KVANT_ERROR_VALUE, "from 1 to"},
    {A("") "{\"op\": \"rollback\", \"sequence\": \"a\", \"tokens\": 6}\n"
           "{\"op\": \"rollback\", \"sequence\": \"a\", \"tokens\": 5}\n",
     KVANT_ERROR_VALUE, "has 4 tokens"},
    {A("") "{\"op\": \"drop\", \"sequence\": \"a\", \"first\": 4, \"count\": 7}\n", KVANT_ERROR_VALUE,
     "[4, 11) is beyond"},
    {A("") "{\"op\": \"drop\", \"sequence\": \"a\", \"first\": 4}\n", KVANT_ERROR_MISSING,
     "\"count\" is missing"},
    {"{\"op\": \"evict\"}\n", KVANT_ERROR_CONFLICT, "either a fraction"},
    {"{\"op\": \"evict\", \"fraction\": 0.5, \"bytes\": 1}\n", KVANT_ERROR_CONFLICT, "either a fraction"},
    {"{\"op\": \"evict\", \"fraction\": 1.5}\n", KVANT_ERROR_VALUE, "at most 1"},
    {"{\"op\": \"evict\", \"fraction\": 0}\n", KVANT_ERROR_VALUE, "above 0"},
    {"{\"op\": \"evict\", \"bytes\": 0}\n", KVANT_ERROR_VALUE, "from 1"},
    {A("") "{\"op\": \"reorder\", \"sequences\": [\"a\"], \"sources\": []}\n", KVANT_ERROR_VALUE,
     "of one length"},
    {A("") "{\"op\": \"reorder\", \"sequences\": [\"a\", \"a\"], \"sources\": [0, 1]}\n",
     KVANT_ERROR_DUPLICATE, "is there twice"},
    {A("") "{\"op\": \"reorder\", \"sequences\": [\"a\"], \"sources\": [1]}\n", KVANT_ERROR_VALUE,
     "from 0 to 0"},
    {A("") "{\"op\": \"request\", \"sequence\": \"c\", \"tenant\": \"t\", \"text\": {\"ids\": [1]}}\n"
           "{\"op\": \"reorder\", \"sequences\": [\"a\", \"c\"], \"sources\": [0, 1]}\n",
     KVANT_ERROR_CONFLICT, "two tenants"},
};

static int lines_of(const char *text) {
    int lines = 0;
    for (; *text != '\0'; text++) lines += *text == '\n';
    return lines;
}

static void every_rule_has_its_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        kvant_diag diag = {.struct_size = sizeof diag};
        char *text = malloc(strlen(wrong[i].lines) + sizeof HEAD);
        assert_non_null(text);
        (void)sprintf(text, "%s%s", HEAD, wrong[i].lines);
        char *path = write_trace("wrong.jsonl", text);
        kvant_trace *trace = open_trace(path);
        const kvant_trace_event *event = NULL;
        kvant_status status;
        do status = kvant_trace_next(trace, &event, &diag);
        while (status == KVANT_OK && event != NULL);
        if (status != wrong[i].status || strstr(diag.message, wrong[i].says) == NULL ||
            diag.line != lines_of(text) || strcmp(diag.file, path) != 0)
            fail_msg("%s\nstatus %d, line %d: %s", wrong[i].lines, status, diag.line, diag.message);
        assert_null(strchr(diag.message, '\n'));
        kvant_trace_close(trace);
        free(path);
        free(text);
    }
}

static void first_line_is_the_format(void **state) {
    (void)state;
    static const struct {
        const char *text;
        kvant_status status;
        const char *says;
    } all[] = {{"", KVANT_ERROR_SYNTAX, "the first line is"},
               {"{\"op\": \"restart\"}\n", KVANT_ERROR_SYNTAX, "the first line is"},
               {"{\"format\": \"kvant-trace/2\"}\n", KVANT_ERROR_VERSION, "reads kvant-trace/1"},
               {"{\"format\": \"kvant-trace/1\", \"formt\": 1}\n", KVANT_ERROR_UNKNOWN_NAME, "did you mean"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        kvant_diag diag = {.struct_size = sizeof diag};
        char *path = write_trace("first.jsonl", all[i].text);
        kvant_trace *trace = NULL;
        assert_int_equal(kvant_trace_open(path, &trace, &diag), all[i].status);
        assert_null(trace);
        kvant_assert_contains(diag.message, all[i].says);
        assert_string_equal(diag.file, path);
        free(path);
    }
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_trace *trace = NULL;
    assert_int_equal(kvant_trace_open("/nowhere/x.jsonl", &trace, &diag), KVANT_ERROR_IO);
    kvant_assert_contains(diag.message, "cannot open");
}

/* ---- Made-up traffic ----------------------------------------------------------------------------------- */

static char *make_traffic(const char *name, const char *numbers) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_traffic traffic;
    char *path = kvant_scratch_path(folder, name);
    if (kvant_traffic_parse(numbers, &traffic, &diag) != KVANT_OK ||
        kvant_traffic_write(&traffic, path, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    return path;
}

/* Reads it to its end; how often each operation occurs. */
static void count_operations(const char *path, uint32_t *counts) {
    kvant_trace *trace = open_trace(path);
    for (const kvant_trace_event *e; (e = next(trace)) != NULL;) counts[e->op]++;
    kvant_trace_close(trace);
}

static void traffic_has_everything(void **state) {
    (void)state;
    static const char numbers[] = "agents=6,turns=40,seed=7,tenants=2,drop=20,restart=10,evict=10";
    uint32_t counts[KVANT_TRACE_OPS] = {0};
    char *one = make_traffic("one.jsonl", numbers), *two = make_traffic("two.jsonl", numbers);
    char *other =
        make_traffic("other.jsonl", "agents=6,turns=40,seed=8,tenants=2,drop=20,restart=10,evict=10");
    kvant_test_bytes a = kvant_test_read(one), b = kvant_test_read(two), c = kvant_test_read(other);
    assert_int_equal(a.size, b.size);
    kvant_assert_bytes(a.bytes, b.bytes, a.size);
    assert_true(a.size != c.size || memcmp(a.bytes, c.bytes, a.size) != 0);
    count_operations(one, counts);
    for (uint32_t op = 0; op < KVANT_TRACE_OPS; op++)
        if (counts[op] == 0) fail_msg("no %s", kvant_trace_op_name(op));
    assert_true(counts[KVANT_TRACE_REQUEST] >= 6 * 40);
    free(a.bytes);
    free(b.bytes);
    free(c.bytes);
    free(one);
    free(two);
    free(other);
}

/* What is set to nothing does not happen, and conversations stay within their context. */
static void traffic_obeys_its_numbers(void **state) {
    (void)state;
    uint32_t counts[KVANT_TRACE_OPS] = {0}, longest = 0;
    char *path = make_traffic("quiet.jsonl", "agents=3,turns=60,context=1000,keep=100,calls=1,fork=0,draft=0,"
                                             "rollback=0,drop=0,evict=0,save=0,restart=0");
    count_operations(path, counts);
    assert_true(counts[KVANT_TRACE_REQUEST] >= 180 && counts[KVANT_TRACE_REQUEST] <= 360);
    for (uint32_t op = KVANT_TRACE_LOAD; op < KVANT_TRACE_END; op++) assert_int_equal(counts[op], 0);
    kvant_trace *trace = open_trace(path);
    for (const kvant_trace_event *e; (e = next(trace)) != NULL;) {
        assert_int_equal(e->draft, 0);
        if (e->text.count > longest) longest = e->text.count;
    }
    assert_true(longest < 1500);
    kvant_trace_close(trace);
    free(path);
}

static void traffic_refuses(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
        kvant_status status;
    } all[] = {{"agent=3", "did you mean \"agents\"?", KVANT_ERROR_UNKNOWN_NAME},
               {"agents", "agents=NUMBER", KVANT_ERROR_SYNTAX},
               {"agents=0", "from 1 to", KVANT_ERROR_VALUE},
               {"agents=3x", "not \"3x\"", KVANT_ERROR_VALUE},
               {"agents=-3", "not \"-3\"", KVANT_ERROR_VALUE},
               {"agents=", "not \"\"", KVANT_ERROR_VALUE},
               {"keep=101", "from 0 to 100", KVANT_ERROR_VALUE},
               {"seed=1,seed=1", "twice", KVANT_ERROR_DUPLICATE},
               {"seed=1,", "no number \"\"", KVANT_ERROR_UNKNOWN_NAME}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_traffic traffic;
        kvant_status status = kvant_traffic_parse(all[i].text, &traffic, &diag);
        if (status != all[i].status || strstr(diag.message, all[i].says) == NULL)
            fail_msg("%s: %d, %s", all[i].text, status, diag.message);
    }
}

/* ---- Dumps --------------------------------------------------------------------------------------------- */

/* Of the shipped sample: rounds are what its tags say, and the ids are its own. */
static void dumps_become_traces(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_dump *dump = NULL;
    char *path = kvant_scratch_path(folder, "dump.jsonl");
    assert_int_equal(kvant_dump_open(KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors", &dump, &diag),
                     KVANT_OK);
    if (kvant_trace_of_dump(dump, path, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    const int32_t *ids = kvant_dump_describe(dump)->token_ids;
    kvant_trace *trace = open_trace(path);
    uint32_t position = 0;
    for (int round = 0; round < 3; round++) {
        static const uint32_t counts[3][2] = {{80, 71}, {146, 44}, {17, 26}};
        const kvant_trace_event *e = next(trace);
        assert_int_equal(e->op, KVANT_TRACE_REQUEST);
        assert_int_equal(e->text.count, counts[round][0]);
        assert_int_equal(e->generated.count, counts[round][1]);
        for (uint32_t i = 0; i < e->text.count; i++) assert_int_equal(e->text.ids[i], ids[position++]);
        for (uint32_t i = 0; i < e->generated.count; i++) {
            assert_int_equal(e->generated.ids[i], ids[position++]);
            assert_true(e->generated.tags[i] >= KVANT_TAG_GENERATED);
        }
    }
    assert_int_equal(position, 384);
    kvant_trace_close(trace);
    uint32_t counts[KVANT_TRACE_OPS] = {0};
    count_operations(path, counts);
    for (uint32_t op = 0; op < KVANT_TRACE_OPS; op++) assert_true(counts[op] > 0);
    kvant_dump_close(dump);
    assert_int_equal(kvant_dump_open(KVANT_TEST_SOURCE_DIR "/samples/sample_prose.safetensors", &dump, &diag),
                     KVANT_OK);
    assert_int_equal(kvant_trace_of_dump(dump, path, &diag), KVANT_ERROR_MISSING);
    kvant_assert_contains(diag.message, "tag_names");
    kvant_dump_close(dump);
    free(path);
}

/* The trace that is shipped is the one that this makes. */
static void shipped_trace_is_of_the_sample(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_dump *dump = NULL;
    char *path = kvant_scratch_path(folder, "sample.jsonl");
    assert_int_equal(kvant_dump_open(KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors", &dump, &diag),
                     KVANT_OK);
    assert_int_equal(kvant_trace_of_dump(dump, path, &diag), KVANT_OK);
    kvant_test_bytes made = kvant_test_read(path),
                     shipped = kvant_test_read(KVANT_TEST_SOURCE_DIR "/samples/agent.jsonl");
    assert_int_equal(made.size, shipped.size);
    kvant_assert_bytes(made.bytes, shipped.bytes, made.size);
    kvant_dump_close(dump);
    free(made.bytes);
    free(shipped.bytes);
    free(path);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_read),
        cmocka_unit_test(other_operations_are_read),
        cmocka_unit_test(every_rule_has_its_place),
        cmocka_unit_test(first_line_is_the_format),
        cmocka_unit_test(traffic_has_everything),
        cmocka_unit_test(traffic_obeys_its_numbers),
        cmocka_unit_test(traffic_refuses),
        cmocka_unit_test(dumps_become_traces),
        cmocka_unit_test(shipped_trace_is_of_the_sample),
    };
    folder = kvant_scratch_make();
    int failures = kvant_run_tests(tests, argc, argv);
    kvant_scratch_remove(folder);
    return failures;
}
