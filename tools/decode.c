/* kvant decode: a file of records back to a dump. */
#include "command.h"
#include "saved.h"

#include "base/parallel.h"

#include <kvant/kit/view.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXTENT_ALIGNMENT = 4096, SCRATCH_ALIGNMENT = 64 };

typedef struct request {
    const char *file;
    const char *output;
    const char *artifacts; /* directory; NULL = as recorded */
} request;

/* One layer and side: every record decodes to its own place of `rows`. */
typedef struct side_job {
    const saved *s;
    const kvant_codec *codec;
    uint32_t layer;
    uint32_t side;
    size_t token_bytes;
    char *rows;
    void **extents; /* [threads] */
    void **scratch; /* [threads] */
    kvant_diag *diags;
    uint32_t *failed; /* [threads]: the record whose diag is there */
} side_job;

static kvant_status decode_record(void *context, uint32_t index, uint32_t thread) {
    side_job *j = context;
    char name[32];
    const kvant_record *record = kvant_sequence_file_record(j->s->file, index);
    kvant_status status = kvant_unpack_rows(
        j->codec, record, j->layer, j->side, j->rows + record->head.first_position * j->token_bytes,
        j->extents[thread], j->scratch[thread], saved_record_name(index, name), &j->diags[thread]);
    if (status != KVANT_OK) j->failed[thread] = index;
    return status;
}

static kvant_status decode_side(side_job *j, uint32_t threads, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < threads; i++) {
        j->failed[i] = UINT32_MAX;
        j->extents[i] = aligned_room(kvant_codec_extent_max(j->codec), EXTENT_ALIGNMENT);
        j->scratch[i] = aligned_room(kvant_codec_scratch_bytes(j->codec), SCRATCH_ALIGNMENT);
        if (j->extents[i] == NULL || j->scratch[i] == NULL)
            status = kvant_file_fail(diag, KVANT_ERROR_MEMORY, j->s->path, "out of memory");
    }
    if (status == KVANT_OK) {
        status = kvant_parallel_for(threads, kvant_sequence_file_count(j->s->file), decode_record, j);
        uint32_t first = 0;
        for (uint32_t i = 1; i < threads; i++)
            if (j->failed[i] < j->failed[first]) first = i;
        if (status != KVANT_OK) *diag = j->diags[first];
    }
    for (uint32_t i = 0; i < threads; i++) {
        free(j->extents[i]);
        free(j->scratch[i]);
        j->extents[i] = j->scratch[i] = NULL;
    }
    return in_file(diag, j->s->path, status);
}

/* Keys and values, in the order of the description's arrays; one tensor in memory at a time. */
static kvant_status write_sides(const saved *s, kvant_codec *const *codecs, kvant_safetensors_writer *writer,
                                uint32_t threads, kvant_diag *diag) {
    uint64_t tokens = kvant_sequence_file_tokens(s->file);
    side_job j = {.s = s,
                  .extents = calloc(threads, sizeof *j.extents),
                  .scratch = calloc(threads, sizeof *j.scratch),
                  .diags = calloc(threads, sizeof *j.diags),
                  .failed = calloc(threads, sizeof *j.failed)};
    kvant_status status = KVANT_OK;
    if (j.extents == NULL || j.scratch == NULL || j.diags == NULL || j.failed == NULL)
        status = kvant_file_fail(diag, KVANT_ERROR_MEMORY, s->path, "out of memory");
    for (uint32_t i = 0; i < threads && status == KVANT_OK; i++) j.diags[i].struct_size = sizeof j.diags[i];
    for (uint32_t i = 0; i < s->description.layers * 2 && status == KVANT_OK; i++) {
        if (codecs[i] == NULL) continue;
        const kvant_setup *setup = kvant_codec_row(codecs[i])->setup;
        j.codec = codecs[i];
        j.layer = i / 2;
        j.side = i % 2;
        j.token_bytes = (size_t)kvant_element_bytes(setup->dtype) * setup->kv_heads * setup->head_dim;
        j.rows = malloc((size_t)tokens * j.token_bytes);
        status = j.rows != NULL ? decode_side(&j, threads, diag)
                                : kvant_file_fail(diag, KVANT_ERROR_MEMORY, s->path, "out of memory");
        if (status == KVANT_OK) kvant_safetensors_add(writer, j.rows, (size_t)tokens * j.token_bytes);
        free(j.rows);
    }
    free(j.extents);
    free(j.scratch);
    free(j.diags);
    free(j.failed);
    return status;
}

static void write_tokens(const saved *s, kvant_safetensors_writer *writer) {
    const kvant_description *d = &s->description;
    for (uint32_t i = 0; i < kvant_sequence_file_count(s->file) && d->has_tokens; i++) {
        const kvant_record *record = kvant_sequence_file_record(s->file, i);
        for (uint32_t t = 0; t < record->head.tokens; t++) {
            uint32_t id = (uint32_t)kvant_record_id(record, t);
            unsigned char bytes[4] = {(unsigned char)id, (unsigned char)(id >> 8), (unsigned char)(id >> 16),
                                      (unsigned char)(id >> 24)};
            kvant_safetensors_add(writer, bytes, sizeof bytes);
        }
    }
    for (uint32_t i = 0; i < kvant_sequence_file_count(s->file) && d->has_tags; i++) {
        const kvant_record *record = kvant_sequence_file_record(s->file, i);
        kvant_safetensors_add(writer, record->tags, record->head.tokens);
    }
    for (uint32_t i = 0; i < d->array_count; i++)
        if (d->arrays[i].data != NULL)
            kvant_safetensors_add(writer, d->arrays[i].data, (size_t)d->arrays[i].bytes);
}

static kvant_status decode(const request *r, saved *s, kvant_diag *diag) {
    const kvant_description *d = &s->description;
    kvant_codec **codecs = NULL;
    kvant_safetensors_writer *writer = NULL;
    uint32_t layers = d->layers;
    kvant_status status = saved_resolve(s, r->artifacts, diag);
    if (status == KVANT_OK) status = kvant_codecs_open(s->plan, d->has_keys, d->has_values, &codecs, diag);
    if (status != KVANT_OK) return in_file(diag, r->file, status);
    status = kvant_safetensors_begin(r->output, d->arrays, d->array_count, d->metadata, d->metadata_count,
                                     &writer, diag);
    if (status == KVANT_OK) {
        status = write_sides(s, codecs, writer, kvant_parallel_threads(options.threads), diag);
        if (status == KVANT_OK) {
            write_tokens(s, writer);
            status = kvant_safetensors_commit(writer, diag);
        } else {
            kvant_safetensors_abort(writer);
        }
    }
    kvant_codecs_close(codecs, layers);
    return status;
}

static const char help[] =
    "usage: kvant decode FILE -o DUMP [--artifacts DIR]\n"
    "\n"
    "Decodes a file that `kvant encode` wrote to a dump of the same shape: keys and values as the codecs "
    "give\n"
    "them back, raw rows as they were, and everything else that the first dump had. Every record is "
    "verified\n"
    "before it is used; a file that other versions of the codecs wrote is refused.\n"
    "\n"
    "  -o DUMP          the kvant-kv/1 file to write\n"
    "  --artifacts DIR  where the pipeline's artifact lies, instead of the directory that the file names\n"
    "\n"
    "example:\n"
    "  kvant decode sample.kvant -o decoded.safetensors\n";

static int run(int argc, char **argv) {
    static const struct option known[] = {{"output", required_argument, NULL, 'o'},
                                          {"artifacts", required_argument, NULL, 'a'},
                                          {NULL, 0, NULL, 0}};
    request r = {0};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":o:", known, NULL)) != -1;) {
        if (option == 'o')
            r.output = optarg;
        else if (option == 'a')
            r.artifacts = optarg;
        else if (option == ':')
            return usage_error("decode", "%s takes a value", argv[optind - 1]);
        else
            return usage_error("decode", "there is no option %s", argv[optind - 1]);
    }
    if (argc - optind != 1) return usage_error("decode", "it takes one file");
    if (r.output == NULL) return usage_error("decode", "-o DUMP is missing");
    r.file = argv[optind];
    kvant_diag diag = {.struct_size = sizeof diag};
    saved s;
    kvant_status status = saved_open(r.file, &s, &diag);
    if (status == KVANT_OK) {
        status = decode(&r, &s, &diag);
        saved_close(&s);
    }
    return status == KVANT_OK ? EXIT_DONE : input_error(&diag, status);
}

const command command_decode = {"decode", "a file of records back to a dump", help, run};
