/* See tagger.h. */
#include "tagger.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <string.h>

/* What is known of a token before turns become times. */
typedef struct token_mark {
    uint8_t role, modality;
    int32_t turn;
} token_mark;

/* ---- By ids -------------------------------------------------------------------------------------------- */

typedef struct scan {
    const kvant_tag_template *t;
    const int32_t *ids;
    uint32_t tokens;
    uint32_t untagged;
    int32_t turn;
    bool past_system; /* a message of another role has begun */
    token_mark *marks;
} scan;

/* Ids of the list at a place; 0 = they are not there. */
static uint32_t found(const scan *s, const kvant_tag_ids *list, uint32_t at) {
    if (list->count == 0 || list->count > s->tokens - at) return 0;
    for (uint32_t i = 0; i < list->count; i++)
        if (s->ids[at + i] != list->ids[i]) return 0;
    return list->count;
}

static bool is_one_of(const kvant_tag_ids *list, int32_t id) {
    for (uint32_t i = 0; i < list->count; i++)
        if (list->ids[i] == id) return true;
    return false;
}

static void mark(const scan *s, uint32_t from, uint32_t to, uint32_t role) {
    for (uint32_t i = from; i < to; i++) s->marks[i] = (token_mark){(uint8_t)role, KVANT_TAG_TEXT, s->turn};
}

/* The header behind a start: its role, and where the text begins. A role that the template does not know is a
 * user's; its header then ends at header_end, or at the first newline nearby. */
static uint32_t read_header(const scan *s, uint32_t at, uint32_t *role) {
    enum { HEADER_MAX = 16 };
    const kvant_tag_template *t = s->t;
    const kvant_tag_ids *limit = t->header_end.count > 0 ? &t->header_end : &t->newline;
    uint32_t length = 0, end;
    *role = KVANT_TAG_USER;
    for (uint32_t r = 0; r < t->role_count; r++)
        if (found(s, &t->roles[r].ids, at) > length) { /* the longest name that fits */
            length = found(s, &t->roles[r].ids, at);
            *role = t->roles[r].role;
        }
    end = at + length;
    if (t->header_end.count > 0 || length == 0)
        for (uint32_t i = end; i < s->tokens && i < end + HEADER_MAX; i++)
            if (found(s, limit, i) > 0) {
                end = i + found(s, limit, i);
                break;
            }
    return end +
           (end < s->tokens && (length > 0 || t->header_end.count > 0) ? found(s, &t->newline, end) : 0);
}

static const kvant_tag_bracket *bracket_at(const scan *s, uint32_t at, uint32_t role) {
    for (uint32_t b = 0; b < s->t->bracket_count; b++)
        if (s->t->brackets[b].within == role && found(s, &s->t->brackets[b].open, at) > 0)
            return &s->t->brackets[b];
    return NULL;
}

/* One bracket from `at` on, to its close or to `end`. Returns what is behind it. */
static uint32_t mark_bracket(const scan *s, const kvant_tag_bracket *bracket, uint32_t at, uint32_t end) {
    uint32_t inside = at + bracket->open.count, close = inside;
    while (close < end && (found(s, &bracket->close, close) == 0 || close + bracket->close.count > end))
        close++;
    mark(s, at, inside, KVANT_TAG_DELIM);
    mark(s, inside, close, bracket->role);
    if (close == end) return end;
    mark(s, close, close + bracket->close.count, KVANT_TAG_DELIM);
    return close + bracket->close.count;
}

static void mark_text(const scan *s, uint32_t at, uint32_t end, uint32_t role) {
    while (at < end) {
        const kvant_tag_bracket *bracket = bracket_at(s, at, role);
        if (bracket != NULL && at + bracket->open.count <= end) {
            at = mark_bracket(s, bracket, at, end);
            continue;
        }
        mark(s, at, at + 1, is_one_of(&s->t->scaffold, s->ids[at]) ? KVANT_TAG_DELIM : role);
        at++;
    }
}

/* One message from its start id on. Returns what is behind it. */
static uint32_t mark_message(scan *s, uint32_t at) {
    uint32_t role, text = read_header(s, at + s->t->start.count, &role), end = text;
    while (end < s->tokens && found(s, &s->t->end, end) == 0 && found(s, &s->t->start, end) == 0) end++;
    if (role == KVANT_TAG_INST && s->past_system) role = KVANT_TAG_USER;
    if (role != KVANT_TAG_INST) s->past_system = true;
    const kvant_tag_bracket *first = text < end ? bracket_at(s, text, role) : NULL;
    bool tool_result = first != NULL && first->role == KVANT_TAG_OBS;
    if (role == KVANT_TAG_USER && (s->t->any_user_turns || !tool_result)) s->turn++;
    mark(s, at, text, KVANT_TAG_DELIM);
    mark_text(s, text, end, role);
    uint32_t behind = end + (end < s->tokens ? found(s, &s->t->end, end) : 0);
    if (behind > end && behind < s->tokens) behind += found(s, &s->t->newline, behind);
    mark(s, end, behind, KVANT_TAG_DELIM);
    return behind;
}

static void scan_ids(scan *s) {
    for (uint32_t at = 0; at < s->tokens;) {
        if (found(s, &s->t->start, at) > 0) {
            at = mark_message(s, at);
            continue;
        }
        mark(s, at, at + 1, is_one_of(&s->t->scaffold, s->ids[at]) ? KVANT_TAG_DELIM : s->untagged);
        at++;
    }
    /* What a user shows or a tool shot is an observation. */
    for (uint32_t i = 0; i < s->tokens; i++)
        if (is_one_of(&s->t->image, s->ids[i])) {
            s->marks[i].modality = KVANT_TAG_IMAGE;
            if (s->marks[i].role == KVANT_TAG_USER) s->marks[i].role = KVANT_TAG_OBS;
        }
}

/* ---- By spans ------------------------------------------------------------------------------------------ */

static kvant_status check_spans(const kvant_tag_source *source, uint32_t tokens, kvant_diag *diag) {
    uint32_t behind = 0;
    int32_t turn = 0;
    for (uint32_t i = 0; i < source->span_count; i++) {
        const kvant_tag_span *span = &source->spans[i];
        if (span->role >= KVANT_TAG_ROLES || span->modality >= KVANT_TAG_MODALITIES ||
            span->turn < KVANT_TAG_NO_TURN)
            return kvant_fail(diag, KVANT_ERROR_VALUE, "spans",
                              "span %u: role, modality or turn is out of range", i);
        if (span->first < behind || span->count == 0 || span->first > tokens ||
            span->count > tokens - span->first)
            return kvant_fail(
                diag, KVANT_ERROR_VALUE, "spans",
                "span %u: tokens %u to %llu: spans must ascend without overlap and lie in the %u tokens", i,
                span->first, (unsigned long long)span->first + span->count, tokens);
        if (span->turn != KVANT_TAG_NO_TURN && span->turn < turn)
            return kvant_fail(diag, KVANT_ERROR_VALUE, "spans", "span %u: turn %d comes after turn %d", i,
                              (int)span->turn, (int)turn);
        turn = span->turn > turn ? span->turn : turn;
        behind = span->first + span->count;
    }
    return KVANT_OK;
}

/* Spans over what ids say. Once there are spans they alone count turns, so that text does not. */
static void apply_spans(const kvant_tag_source *source, uint32_t tokens, token_mark *marks) {
    int32_t turn = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < source->span_count; i++) {
        const kvant_tag_span *span = &source->spans[i];
        bool opens = span->role == KVANT_TAG_USER &&
                     (i == 0 || source->spans[i - 1].role != KVANT_TAG_USER ||
                      source->spans[i - 1].first + source->spans[i - 1].count != span->first);
        for (; at < span->first; at++) marks[at].turn = turn;
        turn = span->turn != KVANT_TAG_NO_TURN ? span->turn : turn + opens;
        for (; at < span->first + span->count; at++)
            marks[at] = (token_mark){(uint8_t)span->role, (uint8_t)span->modality, turn};
    }
    for (; at < tokens; at++) marks[at].turn = turn;
}

/* ---- Both ---------------------------------------------------------------------------------------------- */

/* Turn 0 lies before the first user message and is older whatever the last turn is. */
static uint32_t time_of(int32_t turn, int32_t last, bool causal) {
    int32_t age = last - turn;
    if (causal || turn == 0 || age >= KVANT_TAG_OLDER) return KVANT_TAG_OLDER;
    return (uint32_t)age;
}

kvant_status kvant_tag_tokens(const kvant_tag_source *source, uint32_t tokens, uint8_t *tags,
                              kvant_diag *diag) {
    if (source->untagged >= KVANT_TAG_ROLES)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "untagged",
                          "the role of untagged tokens is out of range");
    kvant_status status = check_spans(source, tokens, diag);
    if (status != KVANT_OK || tokens == 0) return status;
    token_mark *marks = malloc(tokens * sizeof *marks);
    if (marks == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    scan s = {.t = source->chat_template,
              .ids = source->ids,
              .tokens = tokens,
              .untagged = source->untagged,
              .marks = marks};
    mark(&s, 0, tokens, source->untagged);
    if (source->ids != NULL && source->chat_template != NULL) scan_ids(&s);
    if (source->span_count > 0) apply_spans(source, tokens, marks);
    int32_t last = marks[tokens - 1].turn; /* turns only grow */
    for (uint32_t i = 0; i < tokens; i++)
        tags[i] =
            kvant_tag_make(time_of(marks[i].turn, last, source->causal), marks[i].modality, marks[i].role);
    free(marks);
    return KVANT_OK;
}

/* ---- A dump's own tags --------------------------------------------------------------------------------- */

typedef struct meaning {
    bool known;
    uint8_t role, modality;
} meaning;

/* "user", "image.user", "older.text.user". */
static bool read_words(const char *text, size_t length, meaning *m) {
    bool has[KVANT_TAG_AXES] = {false};
    *m = (meaning){.known = true, .modality = KVANT_TAG_TEXT};
    for (size_t at = 0; at <= length;) {
        const char *dot = memchr(text + at, '.', length - at);
        size_t word = dot != NULL ? (size_t)(dot - text) - at : length - at;
        uint32_t axis, value;
        if (!kvant_tag_find_word(text + at, word, &axis, &value) || has[axis]) return false;
        has[axis] = true; /* a time that the text had once says nothing: turns do */
        if (axis == KVANT_TAG_AXIS_ROLE) m->role = (uint8_t)value;
        if (axis == KVANT_TAG_AXIS_MODALITY) m->modality = (uint8_t)value;
        at += word + 1;
    }
    return has[KVANT_TAG_AXIS_ROLE];
}

static kvant_status read_names(const char *names, meaning meanings[256], kvant_diag *diag) {
    memset(meanings, 0, 256 * sizeof *meanings);
    for (const char *at = names; *at != '\0';) {
        size_t length = strcspn(at, ",");
        char *colon = NULL;
        unsigned long byte = strtoul(at, &colon, 10);
        if (at[0] < '0' || at[0] > '9' || *colon != ':' || byte > 255 || (size_t)(colon - at) > length)
            return kvant_fail(diag, KVANT_ERROR_SYNTAX, "tag_names",
                              "tag_names: \"%.*s\" is no NUMBER:NAME, with a number up to 255",
                              (int)(length < 60 ? length : 60), at);
        const char *name = colon + 1;
        size_t name_length = length - (size_t)(name - at);
        if (!read_words(name, name_length, &meanings[byte]))
            return kvant_fail(
                diag, KVANT_ERROR_UNKNOWN_NAME, "tag_names",
                "tag_names: \"%.*s\" is no role: inst (system), user, assistant (assistant_text), "
                "reasoning (thought), tool_call, obs (tool, tool_observation), delim; image. before it "
                "for images",
                (int)(name_length < 60 ? name_length : 60), name);
        at += length + (at[length] == ',');
    }
    return KVANT_OK;
}

kvant_status kvant_tag_spans_of(const uint8_t *tags, const int32_t *turns, uint32_t tokens, const char *names,
                                kvant_tag_span *spans, uint32_t *count, kvant_diag *diag) {
    meaning meanings[256];
    kvant_status status = read_names(names, meanings, diag);
    *count = 0;
    for (uint32_t i = 0; i < tokens && status == KVANT_OK; i++) {
        const meaning *m = &meanings[tags[i]];
        if (!m->known)
            return kvant_fail(diag, KVANT_ERROR_VALUE, "tags", "token %u: tag %u has no name in tag_names", i,
                              tags[i]);
        bool goes_on = i > 0 && tags[i] == tags[i - 1] && (turns == NULL || turns[i] == turns[i - 1]);
        if (goes_on)
            spans[*count - 1].count++;
        else
            spans[(*count)++] =
                (kvant_tag_span){i, 1, m->role, m->modality, turns != NULL ? turns[i] : KVANT_TAG_NO_TURN};
        if (turns != NULL && turns[i] < 0)
            return kvant_fail(diag, KVANT_ERROR_VALUE, "turn", "token %u: turn %d is negative", i,
                              (int)turns[i]);
    }
    return status;
}
