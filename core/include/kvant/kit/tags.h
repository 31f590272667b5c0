/* kvant/kit/tags.h: what a token is, as one byte: the tag space of three axes.
 *
 *     tag = (time * 2 + modality) * 7 + role        0 to 55
 *     tag + 64                                      the same, of a token that the model generated itself
 *
 *     time      current   from the last message of a user to the end of the sequence
 *               turn_m1   one turn of the user before
 *               turn_m2   two
 *               older     three and more, and what lies before the first message of a user
 *     modality  text, image
 *     role      inst      system prompt, tool schemas
 *               user      what a user wrote
 *               assistant what the assistant wrote, outside of all brackets
 *               reasoning inside think brackets
 *               tool_call inside tool-call brackets
 *               obs       what tools gave back, screenshots
 *               delim     scaffolding of the template: role markers, brackets
 *
 * Time is not causal: a token's tag changes when later turns arrive.
 */
#ifndef KVANT_KIT_TAGS_H
#define KVANT_KIT_TAGS_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { KVANT_TAG_CURRENT, KVANT_TAG_TURN_M1, KVANT_TAG_TURN_M2, KVANT_TAG_OLDER, KVANT_TAG_TIMES };
enum { KVANT_TAG_TEXT, KVANT_TAG_IMAGE, KVANT_TAG_MODALITIES };
enum {
    KVANT_TAG_INST,
    KVANT_TAG_USER,
    KVANT_TAG_ASSISTANT,
    KVANT_TAG_REASONING,
    KVANT_TAG_TOOL_CALL,
    KVANT_TAG_OBS,
    KVANT_TAG_DELIM,
    KVANT_TAG_ROLES
};
enum {
    KVANT_TAG_COUNT = KVANT_TAG_TIMES * KVANT_TAG_MODALITIES * KVANT_TAG_ROLES, /* 56 */
    KVANT_TAG_GENERATED = 64,
    KVANT_TAG_TEXT_MAX = 48 /* bytes of a tag in words, with its NUL */
};
enum { KVANT_TAG_AXIS_TIME, KVANT_TAG_AXIS_MODALITY, KVANT_TAG_AXIS_ROLE, KVANT_TAG_AXES };

static inline uint8_t kvant_tag_make(uint32_t time, uint32_t modality, uint32_t role) {
    return (uint8_t)((time * KVANT_TAG_MODALITIES + modality) * KVANT_TAG_ROLES + role);
}

/* Of a tag below KVANT_TAG_COUNT. */
static inline uint32_t kvant_tag_axis(uint32_t tag, uint32_t axis) {
    if (axis == KVANT_TAG_AXIS_ROLE) return tag % KVANT_TAG_ROLES;
    if (axis == KVANT_TAG_AXIS_MODALITY) return tag / KVANT_TAG_ROLES % KVANT_TAG_MODALITIES;
    return tag / (KVANT_TAG_ROLES * KVANT_TAG_MODALITIES);
}

/* The name of a value of an axis; NULL where there is none. */
static inline const char *kvant_tag_word(uint32_t axis, uint32_t value) {
    static const char *const times[KVANT_TAG_TIMES] = {"current", "turn_m1", "turn_m2", "older"};
    static const char *const modalities[KVANT_TAG_MODALITIES] = {"text", "image"};
    static const char *const roles[KVANT_TAG_ROLES] = {"inst",      "user", "assistant", "reasoning",
                                                       "tool_call", "obs",  "delim"};
    if (axis == KVANT_TAG_AXIS_TIME) return value < KVANT_TAG_TIMES ? times[value] : NULL;
    if (axis == KVANT_TAG_AXIS_MODALITY) return value < KVANT_TAG_MODALITIES ? modalities[value] : NULL;
    return axis == KVANT_TAG_AXIS_ROLE && value < KVANT_TAG_ROLES ? roles[value] : NULL;
}

/* Which axis and value `length` characters name; 0 = none. Also under the names that dumps have for roles. */
static inline int kvant_tag_find_word(const char *word, size_t length, uint32_t *axis, uint32_t *value) {
    static const struct {
        const char *word;
        uint32_t role;
    } aliases[] = {{"system", KVANT_TAG_INST},
                   {"assistant_text", KVANT_TAG_ASSISTANT},
                   {"thought", KVANT_TAG_REASONING},
                   {"tool", KVANT_TAG_OBS},
                   {"tool_observation", KVANT_TAG_OBS}};
    for (uint32_t a = 0; a < KVANT_TAG_AXES; a++)
        for (uint32_t v = 0; kvant_tag_word(a, v) != NULL; v++)
            if (strlen(kvant_tag_word(a, v)) == length && memcmp(kvant_tag_word(a, v), word, length) == 0) {
                *axis = a;
                *value = v;
                return 1;
            }
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (strlen(aliases[i].word) == length && memcmp(aliases[i].word, word, length) == 0) {
            *axis = KVANT_TAG_AXIS_ROLE;
            *value = aliases[i].role;
            return 1;
        }
    return 0;
}

/* "older.text.obs", "generated.current.text.assistant", or the number of a byte that is no tag of this space.
 * Returns text. */
static inline const char *kvant_tag_text(uint8_t tag, char text[KVANT_TAG_TEXT_MAX]) {
    uint32_t plain = tag & ~(uint32_t)KVANT_TAG_GENERATED;
    if (plain >= KVANT_TAG_COUNT)
        (void)snprintf(text, KVANT_TAG_TEXT_MAX, "%u", (unsigned)tag);
    else
        (void)snprintf(
            text, KVANT_TAG_TEXT_MAX, "%s%s.%s.%s", plain != tag ? "generated." : "",
            kvant_tag_word(KVANT_TAG_AXIS_TIME, kvant_tag_axis(plain, KVANT_TAG_AXIS_TIME)),
            kvant_tag_word(KVANT_TAG_AXIS_MODALITY, kvant_tag_axis(plain, KVANT_TAG_AXIS_MODALITY)),
            kvant_tag_word(KVANT_TAG_AXIS_ROLE, kvant_tag_axis(plain, KVANT_TAG_AXIS_ROLE)));
    return text;
}

#endif
