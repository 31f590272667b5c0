/* kvant encode: a dump's keys and values to a file of records. */
#include "command.h"
#include "saved.h"

#include "base/text.h"

#include <getopt.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    const char *pipeline;
    const char *dump;
    const char *output;
    const char *model; /* NULL = the dump's */
} request;

/* All that a run holds. */
typedef struct job {
    kvant_dump *dump;
    kvant_geometry geometry; /* the dump's, with the model of the request */
    char *pipeline_text;     /* an INI file that says the same as the request's PIPELINE */
    char *directory;         /* of the INI file, absolute; NULL = none */
    kvant_plan *plan;
    kvant_plan_info info;
    kvant_codec **codecs;
    kvant_view *rows;
    uint64_t *ids;
    kvant_packer *packer;
} job;

static kvant_status no_memory(kvant_diag *diag, const char *file) {
    return kvant_file_fail(diag, KVANT_ERROR_MEMORY, file, "out of memory");
}

/* ---- The pipeline -------------------------------------------------------------------------------------- */

/* A codec's name alone has no text: this is what it means, with everything that is not the codec's said. */
static kvant_status text_of_codec(job *j, kvant_diag *diag) {
    kvant_text text = {0};
    kvant_text_printf(&text,
                      "[pipeline]\nname = %s\nblock_tokens = %u\nsinks = %u\nrecent = %u\n\n[layers]\n",
                      j->info.name, j->info.block_tokens, j->info.sinks, j->info.recent);
    for (uint32_t side = 0; side < 2; side++) {
        kvant_row row = {.struct_size = sizeof row};
        kvant_status status = kvant_plan_row(j->plan, 0, side, &row);
        if (status != KVANT_OK) return status;
        kvant_text_printf(&text, "%s = %s\n", side == KVANT_SIDE_KEY ? "key" : "value", row.codec);
    }
    if (text.failed) return no_memory(diag, "");
    j->pipeline_text = text.data;
    return KVANT_OK;
}

static kvant_status read_ini(const request *r, job *j, kvant_pipeline **pipeline, kvant_diag *diag) {
    kvant_file_map map;
    char absolute[PATH_MAX];
    kvant_status status = kvant_file_map_open(r->pipeline, &map, diag);
    if (status != KVANT_OK) return status;
    if (memchr(map.bytes, 0, map.size) != NULL)
        status =
            kvant_file_fail(diag, KVANT_ERROR_SYNTAX, r->pipeline, "not a text file: it holds a zero byte");
    else if ((j->pipeline_text = strndup((const char *)map.bytes, map.size)) == NULL)
        status = no_memory(diag, r->pipeline);
    kvant_file_map_close(&map);
    if (status != KVANT_OK) return status;
    if (realpath(r->pipeline, absolute) != NULL) {
        char *slash = strrchr(absolute, '/');
        slash[slash == absolute ? 1 : 0] = '\0';
        j->directory = strdup(absolute);
    }
    return kvant_pipeline_parse(j->pipeline_text, strlen(j->pipeline_text), r->pipeline, j->directory,
                                pipeline, diag);
}

static kvant_status resolve(const request *r, job *j, kvant_diag *diag) {
    kvant_pipeline *pipeline = NULL;
    bool codec = kvant_is_name(r->pipeline);
    kvant_status status =
        codec ? kvant_pipeline_of_codec(r->pipeline, &pipeline, diag) : read_ini(r, j, &pipeline, diag);
    if (status == KVANT_OK) status = kvant_pipeline_resolve(pipeline, &j->geometry, &j->plan, diag);
    kvant_pipeline_free(pipeline);
    j->info.struct_size = sizeof j->info;
    if (status == KVANT_OK) status = kvant_plan_describe(j->plan, &j->info);
    if (status == KVANT_OK && codec) status = text_of_codec(j, diag);
    return status;
}

/* ---- The job ------------------------------------------------------------------------------------------- */

static kvant_status open_rows(const request *r, job *j, kvant_diag *diag) {
    const kvant_dump_info *dump = kvant_dump_describe(j->dump);
    uint32_t rows = j->geometry.layer_count * 2;
    j->rows = calloc(rows, sizeof *j->rows);
    j->ids = calloc(dump->tokens, sizeof *j->ids);
    if (j->rows == NULL || j->ids == NULL) return no_memory(diag, r->dump);
    for (uint32_t i = 0; i < rows; i++) (void)kvant_dump_view(j->dump, i / 2, i % 2, &j->rows[i]);
    for (uint32_t t = 0; t < dump->tokens; t++)
        j->ids[t] = dump->token_ids != NULL ? (uint64_t)(int64_t)dump->token_ids[t] : t;
    kvant_status status = kvant_codecs_open(j->plan, dump->has_keys, dump->has_values, &j->codecs, diag);
    if (status != KVANT_OK) return status;
    kvant_pack_source source = {.plan = j->plan,
                                .codecs = j->codecs,
                                .rows = j->rows,
                                .tokens = dump->tokens,
                                .threads = options.threads,
                                .ids = j->ids,
                                .tags = dump->tags};
    return kvant_packer_open(&source, &j->packer, diag);
}

static kvant_status open_job(const request *r, job *j, kvant_diag *diag) {
    kvant_status status = kvant_dump_open(r->dump, &j->dump, diag);
    if (status != KVANT_OK) return status;
    j->geometry = *kvant_dump_geometry(j->dump);
    if (r->model != NULL) j->geometry.model = r->model;
    if (j->geometry.model == NULL)
        return kvant_file_fail(
            diag, KVANT_ERROR_MISSING, r->dump,
            "metadata \"model\" is missing, and records need it: name it with --model TEXT");
    status = resolve(r, j, diag);
    return status == KVANT_OK ? open_rows(r, j, diag) : status;
}

static kvant_status write_file(const request *r, job *j, kvant_diag *diag) {
    kvant_text description = {0};
    kvant_file_writer *writer = NULL;
    kvant_description_source source = {.dump = j->dump,
                                       .plan = j->plan,
                                       .model = r->model,
                                       .pipeline = j->pipeline_text,
                                       .pipeline_name = r->pipeline,
                                       .pipeline_directory =
                                           j->info.artifact_digest[0] != '\0' ? j->directory : NULL};
    kvant_status status = kvant_description_write(&source, r->output, &description, diag);
    uint32_t records = kvant_packer_count(j->packer);
    if (status == KVANT_OK)
        status = kvant_sequence_file_create(r->output, description.data, description.size, records,
                                            kvant_dump_describe(j->dump)->tokens, &writer, diag);
    for (uint32_t i = 0; i < records && status == KVANT_OK; i++) {
        const unsigned char *record;
        size_t size;
        status = in_file(diag, r->dump, kvant_packer_next(j->packer, &record, &size, diag));
        if (status == KVANT_OK) kvant_file_writer_add(writer, record, size);
    }
    kvant_text_free(&description);
    if (status == KVANT_OK) return kvant_file_writer_commit(writer, diag);
    kvant_file_writer_abort(writer);
    return status;
}

static void close_job(job *j) {
    kvant_packer_close(j->packer);
    kvant_codecs_close(j->codecs, j->geometry.layer_count);
    kvant_plan_free(j->plan);
    kvant_dump_close(j->dump);
    free(j->pipeline_text);
    free(j->directory);
    free(j->rows);
    free(j->ids);
}

/* ---- The report ---------------------------------------------------------------------------------------- */

static int report(const request *r, const job *j) {
    const kvant_pack_totals totals = kvant_packer_totals(j->packer);
    const kvant_blocks *blocks = kvant_packer_blocks(j->packer);
    uint64_t original = 0;
    for (uint32_t i = 0; i < j->geometry.layer_count * 2; i++)
        if (j->codecs[i] != NULL) original += kvant_rows_bytes(&j->rows[i]);
    if (options.json) {
        json_t *root =
            json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "file", r->output,
                      "pipeline", j->info.name, "dump", r->dump, "tokens", (json_int_t)blocks->tokens,
                      "blocks", (json_int_t)blocks->count, "block_tokens", (json_int_t)blocks->block_tokens,
                      "sinks", (json_int_t)blocks->sinks, "tail_tokens", (json_int_t)blocks->tail_tokens,
                      "input_bytes", (json_int_t)original, "extent_bytes", (json_int_t)totals.extent_bytes,
                      "raw_bytes", (json_int_t)totals.raw_bytes, "saturated", (json_int_t)totals.saturated,
                      "replaced", (json_int_t)totals.replaced);
        if (root == NULL) return EXIT_INPUT;
        json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(root);
        return EXIT_DONE;
    }
    printf("%s: %u tokens in %u blocks of %u", r->output, blocks->tokens, blocks->count,
           blocks->block_tokens);
    if (blocks->sinks > 0) printf(", %u sinks raw", blocks->sinks);
    if (blocks->tail_tokens > 0) printf(", %u tokens of the tail raw", blocks->tail_tokens);
    printf("; %llu bytes of extents and %llu of raw rows for %llu\n", (unsigned long long)totals.extent_bytes,
           (unsigned long long)totals.raw_bytes, (unsigned long long)original);
    if (totals.saturated > 0)
        printf("%llu elements or metadata left the format's range and were saturated\n",
               (unsigned long long)totals.saturated);
    if (totals.replaced > 0)
        printf("%llu elements were not finite and were replaced\n", (unsigned long long)totals.replaced);
    return EXIT_DONE;
}

static const char help[] =
    "usage: kvant encode PIPELINE DUMP -o FILE [--model TEXT]\n"
    "\n"
    "Encodes the keys and values of a dump as the pipeline says and writes them as records, in the format "
    "of\n"
    "the cache's store: whole blocks older than the pipeline's `recent` window as extents, sinks and the "
    "tail\n"
    "raw. The file also holds the pipeline and what else the dump has, so that `kvant decode` needs nothing\n"
    "but the file.\n"
    "\n"
    "  PIPELINE      an INI file, or the name of a codec: its defaults on both sides\n"
    "  DUMP          a kvant-kv/1 file (see `kvant help import`)\n"
    "  -o FILE       the file to write; a file of that name is replaced once the new one is complete\n"
    "  --model TEXT  weights, revision, adapters: instead of what the dump says; records need it\n"
    "\n"
    "example:\n"
    "  kvant encode pipelines/kivi-2bit.ini samples/sample.safetensors -o sample.kvant\n";

static int run(int argc, char **argv) {
    static const struct option known[] = {{"output", required_argument, NULL, 'o'},
                                          {"model", required_argument, NULL, 'm'},
                                          {NULL, 0, NULL, 0}};
    request r = {0};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":o:", known, NULL)) != -1;) {
        if (option == 'o')
            r.output = optarg;
        else if (option == 'm')
            r.model = optarg;
        else if (option == ':')
            return usage_error("encode", "%s takes a value", argv[optind - 1]);
        else
            return usage_error("encode", "there is no option %s", argv[optind - 1]);
    }
    if (argc - optind != 2) return usage_error("encode", "it takes a pipeline and a dump");
    if (r.output == NULL) return usage_error("encode", "-o FILE is missing");
    if (r.model != NULL && r.model[0] == '\0') return usage_error("encode", "--model is empty");
    r.pipeline = argv[optind];
    r.dump = argv[optind + 1];
    kvant_diag diag = {.struct_size = sizeof diag};
    job j = {0};
    kvant_status status = open_job(&r, &j, &diag);
    if (status == KVANT_OK) status = write_file(&r, &j, &diag);
    int result = status == KVANT_OK ? report(&r, &j) : input_error(&diag, status);
    close_job(&j);
    return result;
}

const command command_encode = {"encode", "a dump's keys and values to a file of records", help, run};
