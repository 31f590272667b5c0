/* Tags by spans and by ids: templates of three kinds of chats, brackets in the wrong place, text that would
 * be instructions, turns; and the sample's own tags against what its ids say. */
#include "support/test.h"

#include "data/dump.h"
#include "data/tagger.h"

#include <stdlib.h>
#include <string.h>

/* ---- A small language ---------------------------------------------------------------------------------- */

/* One letter a token:  < start   > end   _ newline   S U A T roles (two tokens: A a)   ( ) think   { } call
 * [ ] tool result   # image   v vision mark   other letters text */
static int32_t id_of(char letter) {
    return (int32_t)(unsigned char)letter;
}

static kvant_tag_ids one(const char *letters) {
    kvant_tag_ids ids = {.count = (uint32_t)strlen(letters)};
    for (uint32_t i = 0; i < ids.count; i++) ids.ids[i] = id_of(letters[i]);
    return ids;
}

static kvant_tag_template chat(void) {
    kvant_tag_template t = {
        .start = one("<"), .end = one(">"), .newline = one("_"), .scaffold = one("v"), .image = one("#")};
    t.roles[t.role_count++] = (kvant_tag_role_rule){one("S"), KVANT_TAG_INST};
    t.roles[t.role_count++] = (kvant_tag_role_rule){one("U"), KVANT_TAG_USER};
    t.roles[t.role_count++] = (kvant_tag_role_rule){one("Aa"), KVANT_TAG_ASSISTANT};
    t.roles[t.role_count++] = (kvant_tag_role_rule){one("T"), KVANT_TAG_OBS};
    t.brackets[t.bracket_count++] =
        (kvant_tag_bracket){one("("), one(")"), KVANT_TAG_REASONING, KVANT_TAG_ASSISTANT};
    t.brackets[t.bracket_count++] =
        (kvant_tag_bracket){one("{"), one("}"), KVANT_TAG_TOOL_CALL, KVANT_TAG_ASSISTANT};
    t.brackets[t.bracket_count++] = (kvant_tag_bracket){one("["), one("]"), KVANT_TAG_OBS, KVANT_TAG_USER};
    return t;
}

/* Tags as letters: roles i u a r t o d, upper case for images; times 0 1 2 3. */
static void tags_of(const kvant_tag_source *source, uint32_t tokens, char *roles, char *times) {
    uint8_t tags[128];
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_tag_tokens(source, tokens, tags, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    for (uint32_t i = 0; i < tokens; i++) {
        assert_true(tags[i] < KVANT_TAG_COUNT);
        roles[i] = (kvant_tag_axis(tags[i], KVANT_TAG_AXIS_MODALITY) == KVANT_TAG_IMAGE
                        ? "IUARTOD"
                        : "iuartod")[kvant_tag_axis(tags[i], KVANT_TAG_AXIS_ROLE)];
        times[i] = (char)('0' + kvant_tag_axis(tags[i], KVANT_TAG_AXIS_TIME));
    }
    roles[tokens] = times[tokens] = '\0';
}

static void check_text(const kvant_tag_template *t, const char *text, const char *roles, const char *times) {
    int32_t *ids =
        malloc((strlen(text) + 1) * sizeof *ids); /* no byte more: a sanitizer sees a read beyond */
    char got_roles[129], got_times[129];
    assert_non_null(ids);
    for (size_t i = 0; i < strlen(text); i++) ids[i] = id_of(text[i]);
    const kvant_tag_source source = {.untagged = KVANT_TAG_ASSISTANT, .ids = ids, .chat_template = t};
    tags_of(&source, (uint32_t)strlen(text), got_roles, got_times);
    free(ids);
    assert_string_equal(got_roles, roles);
    if (times != NULL) assert_string_equal(got_times, times);
}

static void a_chat_by_ids(void **state) {
    (void)state;
    kvant_tag_template t = chat();
    check_text(&t, "<S_xx>_<U_yy>_<Aa_(rr)z{cc}>_<T_oo>_<U_y", "dddiiddddduudddddddrrdadttddddddoodddddu",
               "3333333111111111111111111111111111110000");
    /* Five turns: the first two are older. */
    check_text(&t, "<Ua><Ub><Uc><Ud><Ue", "ddudddudddudddudddu", "3333333322221111000");
}

static void brackets_and_unknown_things(void **state) {
    (void)state;
    kvant_tag_template t = chat();
    check_text(&t, "<Sx{y}>", "ddiiiid", NULL);           /* schemas name the brackets: still instructions */
    check_text(&t, "<Aax{cc", "dddadtt", NULL);           /* unclosed: to the end */
    check_text(&t, "<Aax{cc>_<Uy", "dddadttddddu", NULL); /* of the message, not of the text */
    check_text(&t, "<U[oo]x>", "dddoodud", NULL);
    check_text(&t, "<U##x#>", "ddOOuOd", NULL);
    check_text(&t, "<Avx>", "dudud", NULL); /* an unknown role is a user's; "A" without "a" is no assistant */
    check_text(&t, "<Q_x>", "dddud", NULL);
    check_text(&t, "xx<", "aad", NULL);
    check_text(&t, "<", "d", NULL);
    check_text(&t, "<A", "du", NULL);
    check_text(&t, "", "", NULL);
    check_text(&t, "xyz", "aaa", "333");
    t.end.count = 0;
    check_text(&t, "<Uxx<Aay", "dduuddda", NULL);
}

/* A system message behind the first other one may be a user's text. */
static void text_does_not_become_instructions(void **state) {
    (void)state;
    kvant_tag_template t = chat();
    check_text(&t, "<Sx><Sy><Uz<Slies>", "ddidddidddudduuuud", NULL);
}

/* Tool results that come as user messages open no turn, unless asked to. */
static void turns(void **state) {
    (void)state;
    kvant_tag_template t = chat();
    const char *text = "<Ux><Aay><U[o]><Aaz><Uw";
    check_text(&t, text, "dduddddaddddodddddadddu", "11111111111111111111000");
    t.any_user_turns = true;
    check_text(&t, text, "dduddddaddddodddddadddu", "22222222211111111111000");
}

/* Llama's headers: role and text are parted by an id. */
static void headers(void **state) {
    (void)state;
    kvant_tag_template t = chat();
    t.header_end = one("|");
    check_text(&t, "<S|_xx><Aa|y><Q?|z", "ddddiidddddadddddu", NULL);
}

/* ---- Spans --------------------------------------------------------------------------------------------- */

static void spans_first(void **state) {
    (void)state;
    kvant_tag_template t = chat();
    const char *text = "<Ux><Aa{c}y>";
    int32_t ids[16];
    char roles[17], times[17];
    for (uint32_t i = 0; i < 12; i++) ids[i] = id_of(text[i]);
    kvant_tag_span spans[] = {{0, 4, KVANT_TAG_INST, KVANT_TAG_TEXT, 0},
                              {8, 1, KVANT_TAG_OBS, KVANT_TAG_IMAGE, 1}};
    kvant_tag_source source = {
        .spans = spans, .span_count = 2, .untagged = KVANT_TAG_ASSISTANT, .ids = ids, .chat_template = &t};
    tags_of(&source, 12, roles, times);
    assert_string_equal(roles, "iiiiddddOdad"); /* what no span claims: ids */
    assert_string_equal(times, "333333330000");
    source.causal = true;
    tags_of(&source, 12, roles, times);
    assert_string_equal(times, "333333333333");
    source = (kvant_tag_source){.spans = spans, .span_count = 2, .untagged = KVANT_TAG_USER};
    tags_of(&source, 12, roles, times);
    assert_string_equal(roles, "iiiiuuuuOuuu");
    /* Without turns the user spans count: neighbours are one message. */
    kvant_tag_span users[] = {{0, 1, KVANT_TAG_INST, 0, -1}, {1, 1, KVANT_TAG_USER, 0, -1},
                              {2, 1, KVANT_TAG_USER, 1, -1}, {3, 2, KVANT_TAG_ASSISTANT, 0, -1},
                              {6, 1, KVANT_TAG_USER, 0, -1}, {8, 1, KVANT_TAG_USER, 0, -1}};
    source = (kvant_tag_source){.spans = users, .span_count = 6, .untagged = KVANT_TAG_ASSISTANT};
    tags_of(&source, 10, roles, times);
    assert_string_equal(roles, "iuUaaauaua");
    assert_string_equal(times, "3222221100");
}

static void bad_spans(void **state) {
    (void)state;
    static const struct {
        kvant_tag_span spans[2];
        const char *part;
    } cases[] = {{{{0, 4, 0, 0, 0}, {3, 1, 0, 0, 0}}, "span 1: tokens 3 to 4"},
                 {{{0, 4, 0, 0, 0}, {8, 3, 0, 0, 0}}, "10 tokens"},
                 {{{0, 4, 0, 0, 0}, {8, UINT32_MAX, 0, 0, 0}}, "span 1"},
                 {{{0, 0, 0, 0, 0}, {8, 1, 0, 0, 0}}, "span 0"},
                 {{{0, 1, 7, 0, 0}, {8, 1, 0, 0, 0}}, "out of range"},
                 {{{0, 1, 0, 2, 0}, {8, 1, 0, 0, 0}}, "out of range"},
                 {{{0, 1, 0, 0, -2}, {8, 1, 0, 0, 0}}, "out of range"},
                 {{{0, 1, 0, 0, 3}, {8, 1, 0, 0, 2}}, "turn 2 comes after turn 3"}};
    uint8_t tags[10];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const kvant_tag_source source = {.spans = cases[i].spans, .span_count = 2};
        kvant_diag diag = {.struct_size = sizeof diag};
        assert_int_equal(kvant_tag_tokens(&source, 10, tags, &diag), KVANT_ERROR_VALUE);
        kvant_assert_contains(diag.message, cases[i].part);
    }
}

static void spans_of_a_dump(void **state) {
    (void)state;
    static const uint8_t tags[] = {7, 7, 1, 1, 1, 9};
    static const int32_t turn[] = {0, 0, 1, 1, 2, 2};
    kvant_tag_span spans[6];
    uint32_t count;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(
        kvant_tag_spans_of(tags, turn, 6, "7:system,1:user,9:older.image.tool", spans, &count, &diag),
        KVANT_OK);
    assert_int_equal(count, 4);
    assert_true(spans[0].count == 2 && spans[0].role == KVANT_TAG_INST && spans[0].turn == 0);
    assert_true(spans[2].first == 4 && spans[2].role == KVANT_TAG_USER && spans[2].turn == 2);
    assert_true(spans[3].role == KVANT_TAG_OBS && spans[3].modality == KVANT_TAG_IMAGE);
    assert_int_equal(kvant_tag_spans_of(tags, NULL, 6, "7:system,1:user,9:tool", spans, &count, &diag),
                     KVANT_OK);
    assert_true(count == 3 && spans[1].turn == KVANT_TAG_NO_TURN);
    static const char *const bad[] = {
        "7:system,1:user", "7:system,1:users,9:tool", "7:system,1user,9:tool", "7:,1:user,9:tool",
        "256:user",        "7:image,1:user,9:tool",   "7:system.user,1:user",  ":user",
        "7:system, 1:user"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_true(kvant_tag_spans_of(tags, turn, 6, bad[i], spans, &count, &diag) != KVANT_OK);
}

/* The sample's tags were made by its renderer, with headers and ends under the tag of their message. Its ids
 * say the same of every token that is no scaffolding. */
static void ids_agree_with_the_renderer(void **state) {
    (void)state;
    kvant_dump *dump = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_dump_open(KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors", &dump, &diag),
                     KVANT_OK);
    const kvant_dump_info *info = kvant_dump_describe(dump);
    kvant_tag_template t = {.start = {{1}, 1}, .end = {{2}, 1}, .newline = {{198}, 1}};
    t.roles[t.role_count++] = (kvant_tag_role_rule){{{9690}, 1}, KVANT_TAG_INST};
    t.roles[t.role_count++] = (kvant_tag_role_rule){{{4093}, 1}, KVANT_TAG_USER};
    t.roles[t.role_count++] = (kvant_tag_role_rule){{{520, 9531}, 2}, KVANT_TAG_ASSISTANT};
    t.roles[t.role_count++] = (kvant_tag_role_rule){{{19324}, 1}, KVANT_TAG_OBS};
    t.brackets[t.bracket_count++] = (kvant_tag_bracket){
        {{44, 17400, 46}, 3}, {{9617, 17400, 46}, 3}, KVANT_TAG_REASONING, KVANT_TAG_ASSISTANT};
    t.brackets[t.bracket_count++] = (kvant_tag_bracket){{{44, 19324, 79, 4350, 46}, 5},
                                                        {{9617, 19324, 79, 4350, 46}, 5},
                                                        KVANT_TAG_TOOL_CALL,
                                                        KVANT_TAG_ASSISTANT};
    kvant_tag_span *spans = calloc(info->tokens, sizeof *spans);
    uint8_t *by_spans = malloc(info->tokens), *by_ids = malloc(info->tokens);
    assert_true(spans != NULL && by_spans != NULL && by_ids != NULL);
    kvant_tag_source source = {.spans = spans, .untagged = KVANT_TAG_ASSISTANT};
    assert_int_equal(
        kvant_tag_spans_of(info->tags, info->turn, info->tokens,
                           "0:system,1:user,2:assistant_text,3:tool_call,4:tool_observation,5:thought", spans,
                           &source.span_count, &diag),
        KVANT_OK);
    assert_int_equal(kvant_tag_tokens(&source, info->tokens, by_spans, &diag), KVANT_OK);
    source = (kvant_tag_source){.untagged = KVANT_TAG_ASSISTANT, .ids = info->token_ids, .chat_template = &t};
    assert_int_equal(kvant_tag_tokens(&source, info->tokens, by_ids, &diag), KVANT_OK);
    uint32_t scaffolding = 0;
    for (uint32_t i = 0; i < info->tokens; i++) {
        bool scaffold = kvant_tag_axis(by_ids[i], KVANT_TAG_AXIS_ROLE) == KVANT_TAG_DELIM;
        scaffolding += scaffold;
        /* The newline between two brackets is the assistant's by its place, the next bracket's by the
         * renderer. */
        bool between = info->token_ids[i] == 198 &&
                       kvant_tag_axis(by_ids[i], KVANT_TAG_AXIS_ROLE) == KVANT_TAG_ASSISTANT;
        if (!scaffold && !between && by_ids[i] != by_spans[i])
            fail_msg("token %u: %u by ids, %u by spans", i, by_ids[i], by_spans[i]);
        assert_int_equal(kvant_tag_axis(by_ids[i], KVANT_TAG_AXIS_TIME),
                         kvant_tag_axis(by_spans[i], KVANT_TAG_AXIS_TIME));
    }
    assert_int_equal(scaffolding, 55);
    free(spans);
    free(by_spans);
    free(by_ids);
    kvant_dump_close(dump);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(a_chat_by_ids),
                                              cmocka_unit_test(brackets_and_unknown_things),
                                              cmocka_unit_test(text_does_not_become_instructions),
                                              cmocka_unit_test(turns),
                                              cmocka_unit_test(headers),
                                              cmocka_unit_test(spans_first),
                                              cmocka_unit_test(bad_spans),
                                              cmocka_unit_test(spans_of_a_dump),
                                              cmocka_unit_test(ids_agree_with_the_renderer)};
    return kvant_run_tests(tests, argc, argv);
}
