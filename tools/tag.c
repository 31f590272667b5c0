/* kvant tag: tags of three axes for the tokens of a dump. */
#include "command.h"
#include "tag_template.h"

#include "base/text.h"
#include "data/dump.h"
#include "data/file.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    const char *dump, *output, *template_file, *spans_file;
    uint32_t untagged;
    bool causal, by_ids;
} request;

/* Everything on its way from one dump to the other. */
typedef struct job {
    kvant_dump *dump;
    kvant_tag_template chat;
    kvant_tag_span *spans;
    uint32_t span_count;
    uint8_t *tags;
    kvant_array *arrays;
    kvant_metadata *metadata;
    kvant_text names;
    uint32_t counts[256];
    const char *source; /* where the tags come from, in words */
} job;

/* ---- Sources ------------------------------------------------------------------------------------------- */

static kvant_status find_spans(const request *r, job *j, const kvant_dump_info *info, kvant_diag *diag) {
    if (r->spans_file != NULL) return tag_spans_load(r->spans_file, &j->spans, &j->span_count, diag);
    const char *names = kvant_safetensors_metadata(kvant_dump_file(j->dump), "tag_names");
    if (r->by_ids || info->tags == NULL || names == NULL) return KVANT_OK;
    j->spans = calloc(info->tokens + 1u, sizeof *j->spans);
    if (j->spans == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, r->dump, "out of memory");
    char message[sizeof diag->message];
    kvant_status status =
        kvant_tag_spans_of(info->tags, info->turn, info->tokens, names, j->spans, &j->span_count, diag);
    if (status == KVANT_OK) return status;
    memcpy(message, diag->message, sizeof message);
    return kvant_file_fail(diag, status, r->dump, "%s", message);
}

static kvant_status find_tags(const request *r, job *j, kvant_diag *diag) {
    const kvant_dump_info *info = kvant_dump_describe(j->dump);
    kvant_status status = KVANT_OK;
    if (r->template_file != NULL) status = tag_template_load(r->template_file, &j->chat, diag);
    if (status == KVANT_OK) status = find_spans(r, j, info, diag);
    if (status != KVANT_OK) return status;
    bool by_ids = r->template_file != NULL && info->token_ids != NULL;
    if (j->span_count == 0 && !by_ids)
        return kvant_file_fail(
            diag, KVANT_ERROR_MISSING, r->dump,
            "nothing says what its tokens are: it needs --spans, or tensor tags with metadata tag_names, "
            "or tensor tokens with --template");
    j->source = j->span_count == 0 ? "ids" : by_ids ? "spans, then ids" : "spans";
    j->tags = malloc(info->tokens + 1u);
    if (j->tags == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, r->dump, "out of memory");
    const kvant_tag_source source = {.spans = j->spans,
                                     .span_count = j->span_count,
                                     .untagged = r->untagged,
                                     .ids = info->token_ids,
                                     .chat_template = by_ids ? &j->chat : NULL,
                                     .causal = r->causal};
    char message[sizeof diag->message];
    status = kvant_tag_tokens(&source, info->tokens, j->tags, diag);
    for (uint32_t t = 0; t < info->tokens && status == KVANT_OK; t++) j->counts[j->tags[t]]++;
    if (status == KVANT_OK) return status;
    memcpy(message, diag->message, sizeof message);
    return kvant_file_fail(diag, status, r->spans_file != NULL ? r->spans_file : r->dump, "%s", message);
}

/* ---- Write --------------------------------------------------------------------------------------------- */

/* All of the dump, with other tags. */
static kvant_status write_dump(const request *r, job *j, kvant_diag *diag) {
    const kvant_safetensors *file = kvant_dump_file(j->dump);
    uint32_t count = kvant_safetensors_count(file), said = kvant_safetensors_metadata_count(file), arrays = 0,
             metadata = 0;
    uint32_t tokens = kvant_dump_describe(j->dump)->tokens;
    j->arrays = calloc(count + 1u, sizeof *j->arrays);
    j->metadata = calloc(said + 2u, sizeof *j->metadata);
    for (uint32_t tag = 0; tag < 256; tag++) {
        char text[KVANT_TAG_TEXT_MAX];
        if (j->counts[tag] > 0)
            kvant_text_printf(&j->names, "%s%u:%s", j->names.size > 0 ? "," : "", tag,
                              kvant_tag_text((uint8_t)tag, text));
    }
    if (j->arrays == NULL || j->metadata == NULL || j->names.failed)
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, r->output, "out of memory");
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(kvant_safetensors_at(file, i)->name, "tags") != 0)
            j->arrays[arrays++] = *kvant_safetensors_at(file, i);
    j->arrays[arrays++] = (kvant_array){.name = "tags",
                                        .data = j->tags,
                                        .shape = {tokens},
                                        .bytes = tokens,
                                        .dtype = KVANT_DTYPE_U8,
                                        .rank = 1};
    for (uint32_t i = 0; i < said; i++) {
        const char *key = kvant_safetensors_metadata_key(file, i);
        if (strcmp(key, "tag_names") != 0 && strcmp(key, "tag_space") != 0)
            j->metadata[metadata++] = (kvant_metadata){key, kvant_safetensors_metadata(file, key)};
    }
    j->metadata[metadata++] = (kvant_metadata){"tag_names", j->names.data != NULL ? j->names.data : ""};
    j->metadata[metadata++] = (kvant_metadata){"tag_space", "triaxial"};
    return kvant_safetensors_write(r->output, j->arrays, arrays, j->metadata, metadata, diag);
}

/* ---- Report -------------------------------------------------------------------------------------------- */

static bool has_time(const job *j) {
    for (uint32_t tag = 0; tag < KVANT_TAG_COUNT; tag++)
        if (j->counts[tag] > 0 && kvant_tag_axis(tag, KVANT_TAG_AXIS_TIME) != KVANT_TAG_OLDER) return true;
    return false;
}

static void report(const request *r, const job *j) {
    char text[KVANT_TAG_TEXT_MAX];
    uint32_t tokens = kvant_dump_describe(j->dump)->tokens;
    json_t *rows = json_array();
    if (!options.json) printf("%s: %u tokens, by %s\n", r->output, tokens, j->source);
    for (uint32_t tag = 0; tag < KVANT_TAG_COUNT; tag++) {
        if (j->counts[tag] == 0) continue;
        (void)kvant_tag_text((uint8_t)tag, text);
        json_array_append_new(
            rows, json_pack("{s:i, s:s, s:i}", "tag", (int)tag, "name", text, "tokens", (int)j->counts[tag]));
        if (!options.json)
            printf("  %3u  %-28s %7u  %5.1f %%\n", tag, text, j->counts[tag],
                   100.0 * j->counts[tag] / tokens);
    }
    json_t *all = json_pack("{s:s, s:i, s:s, s:b, s:o}", "output", r->output, "tokens", (int)tokens, "source",
                            j->source, "causal", !has_time(j), "tags", rows);
    if (options.json && all != NULL) {
        json_dumpf(all, stdout, JSON_INDENT(2));
        putchar('\n');
    }
    json_decref(all);
    if (has_time(j))
        fputs("kvant tag: these tags are not causal: they say how many turns ago a token was, and change "
              "when later "
              "turns arrive; a cached block whose tags changed is then a prefix miss. --causal leaves time "
              "out.\n",
              stderr);
}

/* ---- The command --------------------------------------------------------------------------------------- */

static int read_options(request *r, int argc, char **argv) {
    static const struct option known[] = {{"template", required_argument, NULL, 't'},
                                          {"spans", required_argument, NULL, 's'},
                                          {"untagged", required_argument, NULL, 'u'},
                                          {"causal", no_argument, NULL, 'c'},
                                          {"ids", no_argument, NULL, 'i'},
                                          {"output", required_argument, NULL, 'o'},
                                          {NULL, 0, NULL, 0}};
    uint32_t axis = 0;
    *r = (request){.untagged = KVANT_TAG_ASSISTANT};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":o:", known, NULL)) != -1;) {
        if (option == ':') return usage_error("tag", "%s takes a value", argv[optind - 1]);
        if (option == '?') return usage_error("tag", "there is no option %s", argv[optind - 1]);
        if (option == 'u' && (!kvant_tag_find_word(optarg, strlen(optarg), &axis, &r->untagged) ||
                              axis != KVANT_TAG_AXIS_ROLE))
            return usage_error("tag", "--untagged takes a role, not \"%s\"", optarg);
        if (option == 't') r->template_file = optarg;
        if (option == 's') r->spans_file = optarg;
        if (option == 'o') r->output = optarg;
        r->causal = r->causal || option == 'c';
        r->by_ids = r->by_ids || option == 'i';
    }
    if (optind + 1 != argc) return usage_error("tag", "it takes one dump");
    r->dump = argv[optind];
    if (r->output == NULL) return usage_error("tag", "-o DUMP is missing");
    if (r->by_ids && (r->template_file == NULL || r->spans_file != NULL))
        return usage_error("tag", "--ids goes by the ids alone: with --template, without --spans");
    return EXIT_DONE;
}

static int run(int argc, char **argv) {
    request r;
    job j = {0};
    kvant_diag diag = {.struct_size = sizeof diag};
    int result = read_options(&r, argc, argv);
    if (result != EXIT_DONE) return result;
    kvant_status status = kvant_dump_open(r.dump, &j.dump, &diag);
    if (status == KVANT_OK) status = find_tags(&r, &j, &diag);
    if (status == KVANT_OK) status = write_dump(&r, &j, &diag);
    if (status == KVANT_OK)
        report(&r, &j);
    else
        result = input_error(&diag, status);
    free(j.spans);
    free(j.tags);
    free(j.arrays);
    free(j.metadata);
    kvant_text_free(&j.names);
    kvant_dump_close(j.dump);
    return result;
}

static const char help[] =
    "usage: kvant tag DUMP [--spans FILE] [--template FILE [--ids]] [--untagged ROLE] [--causal] -o DUMP\n\n"
    "Copies a dump and gives its tokens tags of three axes: time (current, turn_m1, turn_m2, older), "
    "modality (text,\n"
    "image) and role (inst, user, assistant, reasoning, tool_call, obs, delim). Codecs like triaxial choose "
    "widths by\n"
    "them.\n\n"
    "Spans come first: those of --spans, else the dump's own tags where its metadata tag_names say what they "
    "mean.\n"
    "Tokens that no span claims are found by their ids, with --template.\n\n"
    "  --spans FILE      JSON: [{\"first\": 0, \"count\": 59, \"role\": \"inst\", \"modality\": \"text\", "
    "\"turn\": 0}, ...]\n"
    "  --template FILE   INI: the ids of a model's chat template; samples/smollm2-chat.ini shows all keys\n"
    "  --ids             go by the ids alone, not by the dump's own tags\n"
    "  --untagged ROLE   of tokens that nobody claims (assistant)\n"
    "  --causal          leave time out (every token is older), so that later turns change no tag\n"
    "  -o DUMP           the new dump\n\n"
    "example:\n"
    "  kvant tag samples/sample.safetensors --template samples/smollm2-chat.ini --ids -o tagged.safetensors\n"
    "  kvant eval pipelines/triaxial-time.ini tagged.safetensors\n";

const command command_tag = {"tag", "say what the tokens of a dump are: time, modality, role", help, run};
