/* Tags for tokens: what each token of a chat is, in the tag space of kvant/kit/tags.h.
 *
 * Whoever rendered the chat knows best: spans say which tokens are what. Tokens that no span claims are found
 * by their ids, with a template that knows the special ids of a model: messages from a start id to an end id,
 * the role behind the start, brackets inside. One linear pass, no tokenizer.
 *
 * Text cannot promote itself: brackets count only in messages of the role that they belong to, and a message
 * of the system behind the first other one is tagged as a user's, since ids inside of what a user or a tool
 * wrote may look like one.
 */
#ifndef KVANT_DATA_TAGGER_H
#define KVANT_DATA_TAGGER_H

#include <kvant/kit/tags.h>
#include <kvant/types.h>

#include <stdbool.h>

enum { KVANT_TAG_IDS_MAX = 16, KVANT_TAG_RULES_MAX = 16, KVANT_TAG_NO_TURN = -1 };

/* Ids side by side; none = never found. */
typedef struct kvant_tag_ids {
    int32_t ids[KVANT_TAG_IDS_MAX];
    uint32_t count;
} kvant_tag_ids;

/* `ids` behind a message's start say that it has this role. */
typedef struct kvant_tag_role_rule {
    kvant_tag_ids ids;
    uint32_t role;
} kvant_tag_role_rule;

/* Text between open and close, in messages of role `within`. Without a close it runs to the message's end. */
typedef struct kvant_tag_bracket {
    kvant_tag_ids open, close;
    uint32_t role;
    uint32_t within;
} kvant_tag_bracket;

/* How a model writes a chat. Zeroed = no ids known. */
typedef struct kvant_tag_template {
    kvant_tag_ids start;      /* of a message */
    kvant_tag_ids header_end; /* between a role and its text; none = the role's ids are the header */
    kvant_tag_ids end;
    kvant_tag_ids newline;  /* scaffolding where it follows a header or an end */
    kvant_tag_ids scaffold; /* single ids that are scaffolding anywhere */
    kvant_tag_ids image;    /* single ids that stand for a piece of an image */
    kvant_tag_role_rule roles[KVANT_TAG_RULES_MAX];
    kvant_tag_bracket brackets[KVANT_TAG_RULES_MAX];
    uint32_t role_count, bracket_count;
    bool any_user_turns; /* also a user message that begins with a bracket of role obs (tool results) opens a
                            turn */
} kvant_tag_template;

/* Tokens [first, first + count) as the renderer knows them. */
typedef struct kvant_tag_span {
    uint32_t first, count;
    uint32_t role;     /* KVANT_TAG_INST, ... */
    uint32_t modality; /* KVANT_TAG_TEXT, ... */
    int32_t
        turn; /* 0 = before the first user message, 1 = from the first on, ...; KVANT_TAG_NO_TURN = count the
                          user spans */
} kvant_tag_span;

typedef struct kvant_tag_source {
    const kvant_tag_span *spans; /* ascending, not overlapping */
    uint32_t span_count;
    uint32_t untagged;                       /* role of tokens that nobody claims */
    const int32_t *ids;                      /* [tokens] or NULL */
    const kvant_tag_template *chat_template; /* NULL = ids are not looked at */
    bool causal;                             /* all tokens are `older`: tags that later turns do not change */
} kvant_tag_source;

/* tags[tokens]. Refuses spans that overlap, run backwards or leave the text. */
kvant_status kvant_tag_tokens(const kvant_tag_source *source, uint32_t tokens, uint8_t *tags,
                              kvant_diag *diag);

/* Spans of a dump with tags of its own: bytes, turns (NULL = unknown) and what the bytes mean, "0:system,
 * 1:user", with the words of kvant_tag_find_word; a word may name a modality too ("image.user"). spans has
 * room for `tokens`. Refuses a byte without a name and a name that is no role. */
kvant_status kvant_tag_spans_of(const uint8_t *tags, const int32_t *turns, uint32_t tokens, const char *names,
                                kvant_tag_span *spans, uint32_t *count, kvant_diag *diag);

#endif
