/* From tags to widths: rules, tables, artifacts, budgets; and what is refused by which name. */
#include "support/test.h"
#include "support/test_codec.h"

#include <kvant/kit/tags.h>

#include <stdio.h>
#include <string.h>

enum { TOKENS = 256 };

static kvant_status plan(const char *text, kvant_layout *layout, kvant_diag *diag) {
    *diag = (kvant_diag){.struct_size = sizeof *diag};
    return kvant_test_codec_plan("triaxial", KVANT_SIDE_KEY, KVANT_DTYPE_F16, TOKENS, 2, 64, text, layout,
                                 diag);
}

static void accept(const char *text, kvant_layout *layout) {
    kvant_diag diag;
    if (plan(text, layout, &diag) != KVANT_OK) fail_msg("%s: %s", text, diag.message);
}

static void refuse(const char *text, kvant_status status, const char *key, const char *part) {
    kvant_layout layout;
    kvant_diag diag;
    assert_int_equal(plan(text, &layout, &diag), status);
    assert_string_equal(diag.key, key);
    kvant_assert_contains(diag.message, part);
}

static uint8_t tag(const char *time, const char *modality, const char *role) {
    uint32_t axis = 0, value[3] = {0};
    assert_true(kvant_tag_find_word(time, strlen(time), &axis, &value[0]) && axis == KVANT_TAG_AXIS_TIME);
    assert_true(kvant_tag_find_word(modality, strlen(modality), &axis, &value[1]) &&
                axis == KVANT_TAG_AXIS_MODALITY);
    assert_true(kvant_tag_find_word(role, strlen(role), &axis, &value[2]) && axis == KVANT_TAG_AXIS_ROLE);
    return kvant_tag_make(value[0], value[1], value[2]);
}

static void tag_space(void **state) {
    (void)state;
    char text[KVANT_TAG_TEXT_MAX];
    assert_int_equal(KVANT_TAG_COUNT, 56);
    assert_int_equal(tag("current", "text", "inst"), 0);
    assert_int_equal(tag("older", "image", "delim"), 55);
    assert_int_equal(tag("turn_m2", "image", "tool_call"), (2 * 2 + 1) * 7 + 4);
    for (uint32_t t = 0; t < 56; t++)
        assert_int_equal(kvant_tag_make(kvant_tag_axis(t, 0), kvant_tag_axis(t, 1), kvant_tag_axis(t, 2)), t);
    assert_string_equal(kvant_tag_text(47, text), "older.text.obs");
    assert_string_equal(kvant_tag_text(64 + 2, text), "generated.current.text.assistant");
    assert_string_equal(kvant_tag_text(56, text), "56");
    assert_string_equal(kvant_tag_text(255, text), "255");
}

static void built_in_rules(void **state) {
    (void)state;
    kvant_layout l;
    accept("", &l);
    assert_int_equal(l.tag_class[tag("older", "text", "inst")], 1);
    assert_int_equal(l.tag_class[tag("older", "image", "delim")], 1);
    assert_int_equal(l.tag_class[tag("turn_m1", "text", "tool_call")], 1);
    assert_int_equal(l.tag_class[tag("current", "text", "obs")], 1);
    assert_int_equal(l.tag_class[tag("current", "image", "obs")], 0);
    assert_int_equal(l.tag_class[tag("turn_m1", "text", "obs")], 0);
    assert_int_equal(l.tag_class[tag("older", "text", "assistant")], 0);
    assert_int_equal(l.tag_class[64 + tag("older", "text", "assistant")], 1); /* generated */
    for (uint32_t byte = 120; byte < 256; byte++) assert_int_equal(l.tag_class[byte], 0);
    accept("space=roles", &l);
    static const uint8_t roles[8] = {1, 0, 0, 1, 0, 0, 0, 0};
    assert_memory_equal(l.tag_class, roles, 8);
}

static void tables(void **state) {
    (void)state;
    kvant_layout l;
    /* The more specific row wins, in either order. */
    static const char *const texts[] = {
        "tags=default:2,obs:4,older.obs:2,older.image.obs:4,12:4,generated:4",
        "tags=generated:4,12:4,older.image.obs:4,older.obs:2,obs:4,default:2"};
    for (uint32_t i = 0; i < 2; i++) {
        accept(texts[i], &l);
        assert_int_equal(l.tag_class[tag("current", "text", "obs")], 1);
        assert_int_equal(l.tag_class[tag("older", "text", "obs")], 0);
        assert_int_equal(l.tag_class[tag("older", "image", "obs")], 1);
        assert_int_equal(l.tag_class[12], 1);
        assert_int_equal(l.tag_class[13], 0);
        assert_int_equal(l.tag_class[64 + 13], 1);
        assert_int_equal(l.tag_class[200], 0);
    }
    accept("tags=*.text.*:2,current.*.user:4,image:4",
           &l); /* 2 axes before 1; what no row names: the rules */
    assert_int_equal(l.tag_class[tag("current", "text", "user")], 1);
    assert_int_equal(l.tag_class[tag("current", "text", "inst")], 0);
    assert_int_equal(l.tag_class[tag("older", "image", "obs")], 1);
    accept("space=roles tags=system:2,tool_observation:4", &l);
    assert_int_equal(l.tag_class[0], 0);
    assert_int_equal(l.tag_class[4], 1);
    assert_int_equal(l.tag_class[3], 1); /* by the rules */
}

static void refusals(void **state) {
    (void)state;
    refuse("tags=obs:3", KVANT_ERROR_VALUE, "tags", "must be 2 or 4");
    refuse("tags=tools:2", KVANT_ERROR_UNKNOWN_NAME, "tags", "\"tools\" is no tag");
    refuse("tags=older.obz:2", KVANT_ERROR_UNKNOWN_NAME, "tags", "\"obz\" is no tag");
    refuse("tags=older.current:2", KVANT_ERROR_UNKNOWN_NAME, "tags", "\"current\"");
    refuse("tags=256:2", KVANT_ERROR_UNKNOWN_NAME, "tags", "\"256\"");
    refuse("tags=*:2", KVANT_ERROR_UNKNOWN_NAME, "tags", "\"*\"");
    refuse("tags=older..obs:2", KVANT_ERROR_UNKNOWN_NAME, "tags", "\"\"");
    refuse("tags=older:2,obs:4", KVANT_ERROR_CONFLICT, "tags", "older.text.obs");
    refuse("space=roles tags=older.obs:2", KVANT_ERROR_CONFLICT, "tags", "has no \"older\"");
    refuse("space=roles tags=delim:2", KVANT_ERROR_CONFLICT, "tags", "has no \"delim\"");
    refuse("budget=2.5", KVANT_ERROR_CONFLICT, "budget", "policy = artifact");
    refuse("policy=artifact", KVANT_ERROR_MISSING, "policy", "kvant calibrate");
    refuse("policy=artifact tags=default:2", KVANT_ERROR_CONFLICT, "policy", "nothing to decide");
    refuse("group=128 tags=default:2,obs:3", KVANT_ERROR_VALUE, "tags", "obs");
    kvant_layout layout = {.struct_size = sizeof layout};
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(
        kvant_test_codec_plan("triaxial", 0, KVANT_DTYPE_F16, 96, 1, 64, "group=64", &layout, &diag),
        KVANT_ERROR_BLOCK_TOKENS);
    assert_int_equal(layout.block_multiple, 64);
    assert_string_equal(diag.key, "group");
    assert_int_equal(plan("policy=artifact", &layout, &diag), KVANT_ERROR_MISSING);
    assert_int_equal(layout.block_multiple, 32);
    assert_int_equal(layout.alignment, 64);
}

/* ---- Artifacts ----------------------------------------------------------------------------------------- */

typedef struct artifact {
    uint8_t tags[4];
    uint64_t tokens[4];
    double loss[4][2];
    kvant_array arrays[3];
} artifact;

/* Tag 40 is dear and rare, 47 cheap and common. */
static void make_artifact(artifact *a) {
    *a = (artifact){
        .tags = {0, 7, 40, 47}, .tokens = {100, 100, 50, 750}, .loss = {{3, 1}, {1, 0.9}, {9, 1}, {4, 3}}};
    a->arrays[0] = (kvant_array){"loss", a->loss, {4, 2}, sizeof a->loss, KVANT_DTYPE_F64, 2};
    a->arrays[1] = (kvant_array){"tag", a->tags, {4}, sizeof a->tags, KVANT_DTYPE_U8, 1};
    a->arrays[2] = (kvant_array){"tokens", a->tokens, {4}, sizeof a->tokens, KVANT_DTYPE_U64, 1};
}

static kvant_status plan_with(const artifact *a, uint32_t arrays, const char *text, kvant_layout *layout,
                              kvant_diag *diag) {
    /* A codec of the same text without an artifact's need lends its setup. */
    char words[160];
    (void)snprintf(words, sizeof words, "%s policy=artifact", text);
    artifact good;
    make_artifact(&good);
    kvant_setup setup = {.struct_size = sizeof setup,
                         .dtype = KVANT_DTYPE_F16,
                         .block_tokens = TOKENS,
                         .head_dim = 64,
                         .kv_heads = 2,
                         .tensors = good.arrays,
                         .tensor_count = 3};
    kvant_test_codec *c = kvant_test_codec_open_setup("triaxial", &setup, words);
    kvant_setup changed = c->setup;
    changed.tensors = a->arrays;
    changed.tensor_count = arrays;
    *layout = (kvant_layout){.struct_size = sizeof *layout};
    *diag = (kvant_diag){.struct_size = sizeof *diag};
    kvant_status status = c->plugin->plan(&changed, layout, diag);
    kvant_test_codec_close(c);
    return status;
}

static void classes_of(const artifact *a, const char *text, const char *wanted) {
    kvant_layout l;
    kvant_diag diag;
    char got[5] = "";
    if (plan_with(a, 3, text, &l, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    for (uint32_t i = 0; i < 4; i++) got[i] = l.tag_class[a->tags[i]] ? '4' : '2';
    assert_string_equal(got, wanted);
    assert_int_equal(l.tag_class[1], 1); /* not seen */
}

static void budgets(void **state) {
    (void)state;
    artifact a;
    make_artifact(&a);
    classes_of(&a, "budget=2", "2222");
    classes_of(&a, "budget=2.09", "2222"); /* 45 tokens: not even the rare one */
    classes_of(&a, "budget=2.1", "2242");
    classes_of(&a, "budget=2.3", "4242");
    classes_of(&a, "budget=2.5", "4442");
    classes_of(&a, "budget=3.6", "4442"); /* 800 of 1000: the common one beside the rare would gain less */
    classes_of(&a, "budget=3.8", "4244");
    classes_of(&a, "budget=4", "4444");
    classes_of(&a, "", "4442"); /* 2.7 */
    classes_of(&a, "budget=2.3 tags=7:4", "2442");
    classes_of(&a, "budget=3.5 tags=47:2", "4442");
    a.loss[1][0] = 0.5; /* 4 bits are worse: never bought */
    classes_of(&a, "budget=4", "4244");
}

static void unfit_artifacts(void **state) {
    (void)state;
    kvant_layout l;
    kvant_diag diag;
    artifact a;
#define UNFIT(status, key_, part, change)                                                                    \
    make_artifact(&a);                                                                                       \
    change;                                                                                                  \
    assert_int_equal(plan_with(&a, 3, "", &l, &diag), status);                                               \
    assert_string_equal(diag.key, key_);                                                                     \
    kvant_assert_contains(diag.message, part)
    UNFIT(KVANT_ERROR_MISSING, "policy", "\"tag\"", a.arrays[1].name = "tags");
    UNFIT(KVANT_ERROR_MISMATCH, "tag", "u8", a.arrays[1].dtype = KVANT_DTYPE_I8);
    UNFIT(KVANT_ERROR_MISMATCH, "tag", "u8", a.arrays[1].rank = 2);
    UNFIT(KVANT_ERROR_MISMATCH, "tag", "ascend", a.tags[2] = 7);
    UNFIT(KVANT_ERROR_MISMATCH, "tokens", "u64", a.arrays[2].dtype = KVANT_DTYPE_I64);
    UNFIT(KVANT_ERROR_MISMATCH, "tokens", "one for each", a.arrays[2].shape[0] = 3);
    UNFIT(KVANT_ERROR_MISMATCH, "tokens", "from 1", a.tokens[3] = 0);
    UNFIT(KVANT_ERROR_MISMATCH, "loss", "two for each", a.arrays[0].shape[1] = 3);
    UNFIT(KVANT_ERROR_MISMATCH, "loss", "finite", a.loss[1][1] = -1);
    UNFIT(KVANT_ERROR_MISMATCH, "loss", "finite", a.loss[1][1] = (double)0x1p1023 * 4);
    make_artifact(&a);
    assert_int_equal(plan_with(&a, 2, "", &l, &diag), KVANT_ERROR_MISSING);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(tag_space), cmocka_unit_test(built_in_rules),
                                              cmocka_unit_test(tables),    cmocka_unit_test(refusals),
                                              cmocka_unit_test(budgets),   cmocka_unit_test(unfit_artifacts)};
    return kvant_run_tests(tests, argc, argv);
}
