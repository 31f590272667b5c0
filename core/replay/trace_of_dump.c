/* See trace_of_dump.h. What the assistant thought, called and said is generated, everything else comes in:
 * so the conversation falls into rounds, each a text and what was generated upon it. They are played
 *
 *   - by one who stays: every round goes on where the last one ended; an answer is sampled again from a
 *     fork, and taken back; a tool's output is pruned; the sequence is saved, and loaded after a restart;
 *   - by one who comes back with the whole conversation each round, and speculates, before and after
 *     everything was evicted;
 *   - by another tenant, who shares nothing. */
#include "replay/trace_of_dump.h"

#include "data/tagger.h"
#include "replay/trace_write.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 256, NAME = 24 };

/* Spans [text, said) come in, [said, end) are generated. */
typedef struct round {
    uint32_t text, said, end;
    uint32_t first_token, said_token, end_token;
    char text_name[NAME], said_name[NAME];
} round;

typedef struct conversation {
    const kvant_dump *dump;
    const kvant_dump_info *info;
    trace_writer writer;
    kvant_tag_span *spans;
    uint32_t span_count;
    trace_piece *pieces; /* [span_count] */
    uint64_t *ids;       /* [tokens] */
    round *rounds;
    uint32_t round_count;
} conversation;

/* ---- Rounds -------------------------------------------------------------------------------------------- */

static bool is_generated(const kvant_tag_span *s) {
    return s->role == KVANT_TAG_ASSISTANT || s->role == KVANT_TAG_REASONING || s->role == KVANT_TAG_TOOL_CALL;
}

static kvant_status read_spans(conversation *c, kvant_diag *diag) {
    const kvant_dump_info *info = c->info;
    const kvant_safetensors *st = kvant_dump_file(c->dump);
    const char *names = st != NULL ? kvant_safetensors_metadata(st, "tag_names") : NULL;
    if (info->tags == NULL || names == NULL)
        return kvant_file_fail(
            diag, KVANT_ERROR_MISSING, info->file,
            "a trace needs tensor tags, and metadata tag_names that says what they mean: `kvant "
            "tag` makes them");
    c->spans = calloc(info->tokens, sizeof *c->spans);
    c->pieces = calloc(info->tokens, sizeof *c->pieces);
    c->ids = calloc(info->tokens, sizeof *c->ids);
    c->rounds = calloc(ROUNDS_MAX, sizeof *c->rounds);
    if (c->spans == NULL || c->pieces == NULL || c->ids == NULL || c->rounds == NULL)
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, info->file, "out of memory");
    char message[sizeof diag->message];
    kvant_status status =
        kvant_tag_spans_of(info->tags, info->turn, info->tokens, names, c->spans, &c->span_count, diag);
    if (status != KVANT_OK) {
        (void)snprintf(message, sizeof message, "%s", diag->message);
        return kvant_file_fail(diag, status, info->file, "%s", message);
    }
    for (uint32_t t = 0; t < info->tokens; t++)
        c->ids[t] = info->token_ids != NULL ? (uint32_t)info->token_ids[t] : t;
    for (uint32_t i = 0; i < c->span_count; i++)
        c->pieces[i] = (trace_piece){.ids = c->ids + c->spans[i].first,
                                     .count = c->spans[i].count,
                                     .role = c->spans[i].role,
                                     .generated = is_generated(&c->spans[i])};
    return KVANT_OK;
}

static kvant_status find_rounds(conversation *c, kvant_diag *diag) {
    uint32_t i = 0;
    while (i < c->span_count && c->round_count < ROUNDS_MAX) {
        round *r = &c->rounds[c->round_count];
        r->text = i;
        while (i < c->span_count && !is_generated(&c->spans[i])) i++;
        r->said = i;
        while (i < c->span_count && is_generated(&c->spans[i])) i++;
        r->end = i;
        if (r->said == r->end) break; /* a question at the end that nobody answered */
        r->first_token = c->spans[r->text].first;
        r->said_token = c->spans[r->said].first;
        r->end_token = c->spans[r->end - 1].first + c->spans[r->end - 1].count;
        (void)snprintf(r->text_name, sizeof r->text_name, "text-%u", c->round_count);
        (void)snprintf(r->said_name, sizeof r->said_name, "said-%u", c->round_count);
        c->round_count++;
    }
    if (c->round_count == 0 || c->rounds[0].text == c->rounds[0].said)
        return kvant_file_fail(diag, KVANT_ERROR_VALUE, c->info->file,
                               "a trace needs a text, and something that an assistant said upon it");
    return KVANT_OK;
}

/* ---- Scenes -------------------------------------------------------------------------------------------- */

/* The texts and answers of rounds [first, last], the last answer left out, under "text". */
static void write_texts(conversation *c, uint32_t first, uint32_t last, bool answered) {
    trace_piece pieces[2 * ROUNDS_MAX];
    uint32_t count = 0;
    for (uint32_t i = first; i <= last; i++) {
        pieces[count++] = (trace_piece){.segment = c->rounds[i].text_name};
        if (i < last || answered) pieces[count++] = (trace_piece){.segment = c->rounds[i].said_name};
    }
    trace_write_text(&c->writer, "text", pieces, count);
}

static void write_answer(conversation *c, uint32_t i) {
    trace_piece said = {.segment = c->rounds[i].said_name};
    trace_write_text(&c->writer, "generate", &said, 1);
}

static void write_other_answer(conversation *c, uint64_t first, uint32_t count) {
    trace_piece said = {.first = first, .count = count, .role = KVANT_TAG_ASSISTANT, .generated = true};
    trace_write_text(&c->writer, "generate", &said, 1);
}

static void write_simple(conversation *c, const char *op, const char *name) {
    trace_write_op(&c->writer, op, name);
    trace_write_end(&c->writer);
}

static void stay(conversation *c) {
    trace_writer *w = &c->writer;
    uint32_t last = c->round_count - 1,
             half = (c->rounds[last].end_token - c->rounds[last].said_token + 1) / 2;
    for (uint32_t i = 0; i < c->round_count; i++) {
        trace_write_op(w, "request", "stays");
        write_texts(c, i, i, false);
        write_answer(c, i);
        trace_write_end(w);
    }
    trace_write_op(w, "fork", "sampled");
    kvant_text_puts(&w->line, ", \"of\": \"stays\"");
    trace_write_end(w);
    trace_write_op(w, "rollback", "sampled");
    kvant_text_printf(&w->line, ", \"tokens\": %u", half);
    trace_write_end(w);
    trace_write_op(w, "request", "sampled");
    write_other_answer(c, 1000000, half);
    trace_write_end(w);
    trace_write_op(w, "reorder", NULL);
    kvant_text_puts(&w->line, ", \"sequences\": [\"stays\", \"sampled\"], \"sources\": [1, 0]");
    trace_write_end(w);
    write_simple(c, "end", "stays");
    write_simple(c, "save", "sampled");
}

static void come_back(conversation *c, const char *tenant) {
    trace_writer *w = &c->writer;
    for (uint32_t i = 0; i < c->round_count; i++) {
        trace_write_op(w, "request", "comes-back");
        if (tenant != NULL) kvant_text_printf(&w->line, ", \"tenant\": \"%s\"", tenant);
        write_texts(c, 0, i, false);
        write_answer(c, i);
        kvant_text_puts(&w->line, ", \"draft\": {\"propose\": 4, \"accept\": [4, 0, 2, 1, 3]}");
        trace_write_end(w);
        write_simple(c, "end", "comes-back");
    }
}

/* The longest thing that a tool gave back is dropped, or else the middle of the conversation. */
static void prune(conversation *c) {
    uint32_t tokens = c->rounds[c->round_count - 1].end_token;
    kvant_tag_span longest = {.first = tokens / 3, .count = tokens / 3};
    uint32_t most = 0;
    for (uint32_t i = 0; i < c->rounds[c->round_count - 1].end; i++)
        if (c->spans[i].role == KVANT_TAG_OBS && c->spans[i].count > most) {
            longest = c->spans[i];
            most = longest.count;
        }
    if (longest.count == 0) return;
    trace_write_op(&c->writer, "drop", "stays");
    kvant_text_printf(&c->writer.line, ", \"first\": %u, \"count\": %u", longest.first, longest.count);
    trace_write_end(&c->writer);
}

static void load(conversation *c) {
    trace_writer *w = &c->writer;
    trace_write_op(w, "load", "stays");
    write_texts(c, 0, c->round_count - 1, true);
    write_other_answer(c, 2000000, 20);
    trace_write_end(w);
    prune(c);
    trace_write_op(w, "request", "stays");
    write_other_answer(c, 3000000, 100);
    trace_write_end(w);
}

/* With what was said behind the pruned part, which is not what it would have been otherwise: nobody finds
 * it. */
static void come_back_unpruned(conversation *c) {
    trace_writer *w = &c->writer;
    trace_piece pieces[2 * ROUNDS_MAX + 2];
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->round_count; i++) {
        pieces[count++] = (trace_piece){.segment = c->rounds[i].text_name};
        pieces[count++] = (trace_piece){.segment = c->rounds[i].said_name};
    }
    pieces[count++] =
        (trace_piece){.first = 2000000, .count = 20, .role = KVANT_TAG_ASSISTANT, .generated = true};
    pieces[count++] =
        (trace_piece){.first = 3000000, .count = 100, .role = KVANT_TAG_ASSISTANT, .generated = true};
    trace_write_op(w, "request", "unpruned");
    trace_write_text(w, "text", pieces, count);
    trace_write_end(w);
    write_simple(c, "end", "unpruned");
}

static void write_scenes(conversation *c) {
    for (uint32_t i = 0; i < c->round_count; i++) {
        const round *r = &c->rounds[i];
        trace_write_segment(&c->writer, r->text_name, c->pieces + r->text, r->said - r->text);
        trace_write_segment(&c->writer, r->said_name, c->pieces + r->said, r->end - r->said);
    }
    stay(c);
    come_back(c, NULL);
    write_simple(c, "restart", NULL);
    load(c);
    come_back(c, NULL);
    write_simple(c, "end", "stays");
    come_back_unpruned(c);
    trace_write_op(&c->writer, "evict", NULL);
    kvant_text_puts(&c->writer.line, ", \"fraction\": 1");
    trace_write_end(&c->writer);
    come_back(c, NULL);
    come_back(c, "another");
}

kvant_status kvant_trace_of_dump(const kvant_dump *dump, const char *file, kvant_diag *diag) {
    conversation c = {.dump = dump, .info = kvant_dump_describe(dump)};
    char note[256];
    kvant_status status = read_spans(&c, diag);
    if (status == KVANT_OK) status = find_rounds(&c, diag);
    (void)snprintf(note, sizeof note, "made by kvant replay --from-dump of a dump of %u tokens",
                   c.info->tokens);
    if (status == KVANT_OK) status = trace_writer_open(file, note, &c.writer, diag);
    if (status == KVANT_OK) write_scenes(&c);
    status = trace_writer_close(&c.writer, status, diag);
    free(c.spans);
    free(c.pieces);
    free(c.ids);
    free(c.rounds);
    return status;
}
