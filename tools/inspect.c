/* kvant inspect: what is in a file: records and their extents; dumps, artifacts and other safetensors by
 * their lists. */
#include "command.h"
#include "inspect_extent.h"

#include "base/text.h"
#include "data/artifact.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A file of records --------------------------------------------------------------------------------- */

typedef struct side_bytes {
    uint64_t smallest, largest, total, raw;
    uint32_t extents;
} side_bytes;

static side_bytes count_side(const saved *s, uint32_t layer, uint32_t side) {
    side_bytes b = {.smallest = UINT64_MAX};
    for (uint32_t i = 0; i < kvant_sequence_file_count(s->file); i++) {
        const kvant_record *record = kvant_sequence_file_record(s->file, i);
        uint64_t size = kvant_record_extent(record, layer, side).size;
        b.raw += kvant_record_raw(record, layer, side).size;
        if (size == 0) continue;
        b.extents++;
        b.total += size;
        if (size < b.smallest) b.smallest = size;
        if (size > b.largest) b.largest = size;
    }
    if (b.extents == 0) b.smallest = 0;
    return b;
}

static json_t *describe_sides(const saved *s) {
    const kvant_geometry *geometry = kvant_dump_geometry(s->description.dump);
    json_t *rows = json_array();
    for (uint32_t i = 0; i < geometry->layer_count * 2; i++) {
        const kvant_layer_geometry *layer = &geometry->layers[i / 2];
        bool key = i % 2 == KVANT_SIDE_KEY;
        if (!(key ? s->description.has_keys : s->description.has_values)) continue;
        side_bytes b = count_side(s, i / 2, i % 2);
        json_array_append_new(
            rows,
            json_pack("{s:i, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I}", "layer", (int)(i / 2), "side",
                      key ? "key" : "value", "kv_heads", (int)layer->kv_heads, "head_dim",
                      (int)(key ? layer->key_dim : layer->value_dim), "extents", (json_int_t)b.extents,
                      "extent_bytes_min", (json_int_t)b.smallest, "extent_bytes_max", (json_int_t)b.largest,
                      "extent_bytes", (json_int_t)b.total, "raw_bytes", (json_int_t)b.raw));
    }
    return rows;
}

static json_t *describe_records(const saved *s) {
    uint32_t count = kvant_sequence_file_count(s->file);
    const kvant_record *first = kvant_sequence_file_record(s->file, 0);
    const kvant_record *last = kvant_sequence_file_record(s->file, count - 1);
    bool tail = last->head.kind == KVANT_RECORD_TAIL;
    const kvant_geometry *geometry = kvant_dump_geometry(s->description.dump);
    char fingerprint[2 * KVANT_RECORD_KEY_BYTES + 1], key[2 * KVANT_RECORD_KEY_BYTES + 1];
    kvant_hex(first->head.fingerprint, KVANT_RECORD_KEY_BYTES, fingerprint);
    kvant_hex(last->head.key, KVANT_RECORD_KEY_BYTES, key);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes += kvant_sequence_file_record(s->file, i)->size;
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "format",
                     "kvant-sequence/1", "file", s->path, "pipeline", s->description.pipeline_name, "model",
                     geometry->model != NULL ? geometry->model : "", "fingerprint", fingerprint, "last_key",
                     key, "dtype", kvant_dtype_name(geometry->dtype), "layers", (int)geometry->layer_count,
                     "tokens", (json_int_t)kvant_sequence_file_tokens(s->file), "blocks",
                     (json_int_t)(count - tail), "block_tokens",
                     (json_int_t)(tail && count == 1 ? 0 : first->head.tokens), "sinks",
                     (json_int_t)first->head.sinks, "tail_tokens", (json_int_t)(tail ? last->head.tokens : 0),
                     "record_bytes", (json_int_t)bytes, "rows", describe_sides(s));
}

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static json_int_t number_of(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static void print_records(const json_t *root) {
    printf("file of records %s\n", text_of(root, "file"));
    printf("  pipeline     %s\n", text_of(root, "pipeline"));
    printf("  model        %s\n", text_of(root, "model"));
    printf("  fingerprint  %s\n", text_of(root, "fingerprint"));
    printf("  tokens       %" JSON_INTEGER_FORMAT " %s in %" JSON_INTEGER_FORMAT
           " layers: %" JSON_INTEGER_FORMAT " blocks of %" JSON_INTEGER_FORMAT ", %" JSON_INTEGER_FORMAT
           " sinks raw, a tail of %" JSON_INTEGER_FORMAT "\n",
           number_of(root, "tokens"), text_of(root, "dtype"), number_of(root, "layers"),
           number_of(root, "blocks"), number_of(root, "block_tokens"), number_of(root, "sinks"),
           number_of(root, "tail_tokens"));
    printf("  bytes        %" JSON_INTEGER_FORMAT " of records\n\n", number_of(root, "record_bytes"));
    printf("%-6s %-6s %9s %9s %8s %13s %13s %13s\n", "layer", "side", "kv_heads", "head_dim", "extents",
           "bytes of one", "extent bytes", "raw bytes");
    const json_t *row;
    size_t i;
    json_array_foreach(json_object_get(root, "rows"), i, row) {
        char one[48];
        json_int_t least = number_of(row, "extent_bytes_min"), most = number_of(row, "extent_bytes_max");
        if (least == most)
            (void)snprintf(one, sizeof one, "%" JSON_INTEGER_FORMAT, least);
        else
            (void)snprintf(one, sizeof one, "%" JSON_INTEGER_FORMAT "-%" JSON_INTEGER_FORMAT, least, most);
        printf("%-6" JSON_INTEGER_FORMAT " %-6s %9" JSON_INTEGER_FORMAT " %9" JSON_INTEGER_FORMAT
               " %8" JSON_INTEGER_FORMAT " %13s %13" JSON_INTEGER_FORMAT " %13" JSON_INTEGER_FORMAT "\n",
               number_of(row, "layer"), text_of(row, "side"), number_of(row, "kv_heads"),
               number_of(row, "head_dim"), number_of(row, "extents"), one, number_of(row, "extent_bytes"),
               number_of(row, "raw_bytes"));
    }
}

/* ---- Safetensors --------------------------------------------------------------------------------------- */

static json_t *describe_tensors(const kvant_safetensors *st, const char *format, const char *file) {
    json_t *metadata = json_object(), *tensors = json_array();
    for (uint32_t i = 0; i < kvant_safetensors_metadata_count(st); i++) {
        const char *key = kvant_safetensors_metadata_key(st, i);
        json_object_set_new(metadata, key, json_string(kvant_safetensors_metadata(st, key)));
    }
    for (uint32_t i = 0; i < kvant_safetensors_count(st); i++) {
        const kvant_array *array = kvant_safetensors_at(st, i);
        json_t *shape = json_array();
        for (uint32_t d = 0; d < array->rank; d++)
            json_array_append_new(shape, json_integer((json_int_t)array->shape[d]));
        json_array_append_new(tensors, json_pack("{s:s, s:s, s:o, s:I}", "name", array->name, "dtype",
                                                 kvant_dtype_name(array->dtype), "shape", shape, "bytes",
                                                 (json_int_t)array->bytes));
    }
    return json_pack("{s:s, s:s, s:o, s:o}", "format", format, "file", file, "metadata", metadata, "tensors",
                     tensors);
}

static void print_tensors(const json_t *root) {
    printf("%s %s\n", text_of(root, "format"), text_of(root, "file"));
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(root, "metadata"), key, value) {
        const char *text = json_string_value(value);
        size_t length = strcspn(text, "\n");
        printf("  %-14s %.*s%s\n", key, length > 200 ? 200 : (int)length, text,
               length > 200 || text[length] != '\0' ? " ..." : "");
    }
    size_t i, d;
    json_array_foreach(json_object_get(root, "tensors"), i, value) {
        printf("%-32s %-8s [", text_of(value, "name"), text_of(value, "dtype"));
        const json_t *size;
        json_array_foreach(json_object_get(value, "shape"), d, size)
            printf("%s%" JSON_INTEGER_FORMAT, d > 0 ? ", " : "", json_integer_value(size));
        printf("]\n");
    }
}

/* A dump or an artifact is opened as one, so that what is wrong with it is said. */
static kvant_status inspect_tensors(const char *file, json_t **root, kvant_diag *diag) {
    kvant_safetensors *st = NULL;
    kvant_status status = kvant_safetensors_open(file, &st, diag);
    if (status != KVANT_OK) return status;
    const char *format = kvant_safetensors_metadata(st, "format");
    kvant_dump *dump = NULL;
    kvant_artifact *artifact = NULL;
    if (format == NULL) {
        format = "safetensors";
    } else if (strcmp(format, "kvant-kv/1") == 0) {
        status = kvant_dump_open(file, &dump, diag);
    } else if (strcmp(format, "kvant-artifact/1") == 0) {
        status = kvant_artifact_open(file, &artifact, diag);
    }
    if (status == KVANT_OK) *root = describe_tensors(st, format, file);
    if (artifact != NULL) json_object_set_new(*root, "digest", json_string(kvant_artifact_digest(artifact)));
    kvant_dump_close(dump);
    kvant_artifact_close(artifact);
    kvant_safetensors_close(st);
    return status;
}

/* ---- The command --------------------------------------------------------------------------------------- */

static int finish(json_t *root, void (*print)(const json_t *root), const char *file) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (root == NULL)
        return input_error(&diag, kvant_file_fail(&diag, KVANT_ERROR_MEMORY, file, "out of memory"));
    if (options.json) {
        json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        print(root);
    }
    json_decref(root);
    return EXIT_DONE;
}

static bool starts_like_records(const char *file) {
    char start[8] = {0};
    FILE *stream = fopen(file, "rbe");
    if (stream == NULL) return false;
    bool is =
        fread(start, 1, sizeof start, stream) == sizeof start && memcmp(start, "KVANTSEQ", sizeof start) == 0;
    fclose(stream);
    return is;
}

static int inspect_records(const inspect_request *r) {
    kvant_diag diag = {.struct_size = sizeof diag};
    saved s;
    json_t *root = NULL;
    kvant_status status = saved_open(r->file, &s, &diag);
    if (status != KVANT_OK) return input_error(&diag, status);
    int result;
    if (!r->extent)
        result = finish(describe_records(&s), print_records, r->file);
    else if ((status = inspect_extent(&s, r, &root, &diag)) == KVANT_OK)
        result = finish(root, print_extent, r->file);
    else
        result = input_error(&diag, in_file(&diag, r->file, status));
    saved_close(&s);
    return result;
}

static const char help[] =
    "usage: kvant inspect FILE [--layer L] [--side key|value] [--block N] [-o ARRAYS] [--artifacts DIR]\n"
    "\n"
    "Shows what a file holds. Of a file of records (`kvant encode`): pipeline, model, fingerprint, blocks "
    "and\n"
    "bytes; with any of the options below one extent as its codec explains it, array by array: codes, "
    "scales,\n"
    "minima, outliers. Of a dump, an artifact or another safetensors file: metadata and tensors.\n"
    "\n"
    "  --layer L         layer of the extent, from 0 (default 0)\n"
    "  --side SIDE       key or value (default key)\n"
    "  --block N         block of the extent, from 0 (default 0)\n"
    "  -o ARRAYS         save its arrays as a safetensors file\n"
    "  --artifacts DIR   where the pipeline's artifact lies, instead of the directory that the file names\n"
    "\n"
    "example:\n"
    "  kvant inspect sample.kvant --layer 2 --side value --block 1 -o extent.safetensors\n";

static bool read_number(const char *text, uint32_t *number) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value > UINT32_MAX) return false;
    *number = (uint32_t)value;
    return true;
}

static int run(int argc, char **argv) {
    static const struct option known[] = {
        {"layer", required_argument, NULL, 'l'},     {"side", required_argument, NULL, 's'},
        {"block", required_argument, NULL, 'b'},     {"output", required_argument, NULL, 'o'},
        {"artifacts", required_argument, NULL, 'a'}, {NULL, 0, NULL, 0}};
    inspect_request r = {.side = KVANT_SIDE_KEY};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":o:", known, NULL)) != -1;) {
        if (option == ':') return usage_error("inspect", "%s takes a value", argv[optind - 1]);
        if (option == '?') return usage_error("inspect", "there is no option %s", argv[optind - 1]);
        if (option == 'a') {
            r.artifacts = optarg;
            continue;
        }
        r.extent = true;
        if (option == 'o') r.output = optarg;
        if ((option == 'l' && !read_number(optarg, &r.layer)) ||
            (option == 'b' && !read_number(optarg, &r.block)))
            return usage_error("inspect", "--%s takes a whole number, not \"%s\"",
                               option == 'l' ? "layer" : "block", optarg);
        if (option == 's') {
            r.side = strcmp(optarg, "value") == 0 ? KVANT_SIDE_VALUE : KVANT_SIDE_KEY;
            if (r.side == KVANT_SIDE_KEY && strcmp(optarg, "key") != 0)
                return usage_error("inspect", "--side is key or value, not \"%s\"", optarg);
        }
    }
    if (argc - optind != 1) return usage_error("inspect", "it takes one file");
    r.file = argv[optind];
    if (starts_like_records(r.file)) return inspect_records(&r);
    kvant_diag diag = {.struct_size = sizeof diag};
    if (r.extent)
        return input_error(
            &diag, kvant_file_fail(&diag, KVANT_ERROR_CORRUPT, r.file,
                                   "not a file of records, which alone has layers, sides and blocks"));
    json_t *root = NULL;
    kvant_status status = inspect_tensors(r.file, &root, &diag);
    return status == KVANT_OK ? finish(root, print_tensors, r.file) : input_error(&diag, status);
}

const command command_inspect = {"inspect", "what a file holds, down to the codes of one extent", help, run};
