/* kvant import: arrays of other programs to a dump. */
#include "command.h"
#include "import_arrays.h"

#include "base/text.h"
#include "data/dump.h"
#include "data/file.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 3, METADATA_MAX = 16, PER_TOKEN = 3 };
static const char *const kind_names[KINDS] = {"key", "value", "query"};
static const char *const per_token_names[PER_TOKEN] = {"tokens", "turn", "tags"};

typedef struct request {
    char *const *files;
    uint32_t file_count;
    const char *output;
    const char *names[KINDS]; /* patterns; NULL = not asked for */
    const char *axes[KINDS];
    const char *per_token[PER_TOKEN];
    const char *rope;
    const char *heads_text, *q_heads_text;
    uint32_t heads, q_heads; /* of the axis c */
    bool u16_is_bf16;
    kvant_metadata metadata[METADATA_MAX];
    uint32_t metadata_count;
    char rope_parts[3][64];
    char layer_count[16];
    char *layer_ids;
} request;

static void say(request *r, const char *key, const char *value) {
    r->metadata[r->metadata_count++] = (kvant_metadata){key, value};
}

/* ---- The dump's tensors -------------------------------------------------------------------------------- */

/* A tensor of rows to be written: which array, and which layer of it. */
typedef struct planned {
    char name[32];
    foreign_rows rows;
    uint64_t layer; /* inside the array */
} planned;

typedef struct job {
    foreign_files files;
    planned *tensors; /* layer by layer, key, value, query */
    uint32_t tensor_count;
    uint32_t layer_count;
    kvant_array *arrays;
    uint32_t array_count;
    void *per_token[PER_TOKEN];
} job;

/* All layers of one kind. With {l} in the name there is one array per layer, else one array holds them. */
static kvant_status plan_kind(request *r, job *j, int kind, planned **out, uint32_t *out_count,
                              uint32_t **out_layers, kvant_diag *diag) {
    const char *pattern = r->names[kind];
    uint32_t names = 0;
    kvant_status status = foreign_layers(&j->files, pattern, out_layers, &names, diag);
    if (status != KVANT_OK) return status;
    uint32_t heads = kind == KVANT_DUMP_QUERY ? r->q_heads : r->heads;
    bool many = strstr(pattern, "{l}") != NULL;
    planned *tensors = NULL;
    for (uint32_t i = 0; i < names && status == KVANT_OK; i++) {
        char *name = foreign_name(pattern, (*out_layers)[i]);
        const foreign_array *array = name != NULL ? foreign_find(&j->files, name) : NULL;
        foreign_rows rows;
        free(name);
        if (array == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, r->output, "out of memory");
        status = foreign_layout(array, r->axes[kind], heads, r->u16_is_bf16, &rows, diag);
        if (status != KVANT_OK) break;
        uint64_t layers = many ? 1 : rows.layers;
        if (tensors == NULL) tensors = calloc((size_t)(many ? names : layers), sizeof *tensors);
        if (tensors == NULL || layers > UINT16_MAX + 1) {
            status =
                kvant_file_fail(diag, KVANT_ERROR_MEMORY, r->output, "out of memory, or too many layers");
            break;
        }
        for (uint64_t l = 0; l < layers; l++) tensors[(*out_count)++] = (planned){.rows = rows, .layer = l};
    }
    *out = tensors;
    return status;
}

/* The kinds must be there for the same layers. */
static kvant_status plan_tensors(request *r, job *j, kvant_diag *diag) {
    planned *kinds[KINDS] = {NULL};
    uint32_t counts[KINDS] = {0}, *layers[KINDS] = {NULL}, asked = 0;
    int first = -1;
    kvant_status status = KVANT_OK;
    for (int kind = 0; kind < KINDS && status == KVANT_OK; kind++) {
        if (r->names[kind] == NULL) continue;
        status = plan_kind(r, j, kind, &kinds[kind], &counts[kind], &layers[kind], diag);
        if (status != KVANT_OK) break;
        asked++;
        if (first < 0) first = kind;
        bool alike = counts[kind] == counts[first];
        if (alike && strstr(r->names[kind], "{l}") != NULL && strstr(r->names[first], "{l}") != NULL)
            alike = memcmp(layers[kind], layers[first], counts[kind] * sizeof **layers) == 0;
        if (!alike)
            status = kvant_file_fail(diag, KVANT_ERROR_MISSING, r->files[0],
                                     "the %ss have %u layers and the %s tensors %u, or other ones",
                                     kind_names[first], counts[first], kind_names[kind], counts[kind]);
    }
    if (status == KVANT_OK) {
        j->layer_count = counts[first];
        j->tensors = calloc((size_t)asked * j->layer_count, sizeof *j->tensors);
        kvant_text ids = {0};
        bool gaps = false;
        for (uint32_t l = 0; l < j->layer_count && j->tensors != NULL; l++) {
            uint32_t id = strstr(r->names[first], "{l}") != NULL ? layers[first][l] : l;
            gaps = gaps || id != l;
            kvant_text_printf(&ids, "%s%u", l > 0 ? "," : "", id);
            for (int kind = 0; kind < KINDS; kind++) {
                if (kinds[kind] == NULL) continue;
                planned *tensor = &j->tensors[j->tensor_count++];
                *tensor = kinds[kind][l];
                (void)snprintf(tensor->name, sizeof tensor->name, "layers.%u.%s", l, kind_names[kind]);
            }
        }
        if (j->tensors == NULL || ids.failed)
            status = kvant_file_fail(diag, KVANT_ERROR_MEMORY, r->output, "out of memory");
        r->layer_ids = ids.data;
        if (gaps) say(r, "layer_ids", r->layer_ids);
    }
    for (int kind = 0; kind < KINDS; kind++) {
        free(kinds[kind]);
        free(layers[kind]);
    }
    return status;
}

/* ---- One number per token ------------------------------------------------------------------------------ */

static int64_t integer_at(const kvant_array *array, uint64_t i) {
    const unsigned char *p = (const unsigned char *)array->data + i * kvant_dtype_bytes(array->dtype);
    int64_t wide = 0;
    int32_t word = 0;
    uint32_t unsigned_word = 0;
    switch (array->dtype) {
    case KVANT_DTYPE_I64:
    case KVANT_DTYPE_U64:
        memcpy(&wide, p, sizeof wide);
        return wide;
    case KVANT_DTYPE_I32:
        memcpy(&word, p, sizeof word);
        return word;
    case KVANT_DTYPE_U32:
        memcpy(&unsigned_word, p, sizeof unsigned_word);
        return unsigned_word;
    default:
        return *p;
    }
}

static kvant_status read_per_token(const request *r, job *j, int which, kvant_diag *diag) {
    const foreign_array *from = foreign_find(&j->files, r->per_token[which]);
    bool tags = which == PER_TOKEN - 1;
    if (from == NULL)
        return kvant_file_fail(diag, KVANT_ERROR_MISSING, r->files[0], "no array is called \"%.200s\"",
                               r->per_token[which]);
    const kvant_array *array = from->array;
    uint64_t count = array->bytes / kvant_dtype_bytes(array->dtype);
    bool integers = array->dtype == KVANT_DTYPE_I64 || array->dtype == KVANT_DTYPE_U64 ||
                    array->dtype == KVANT_DTYPE_I32 || array->dtype == KVANT_DTYPE_U32 ||
                    array->dtype == KVANT_DTYPE_U8;
    if (!integers)
        return kvant_file_fail(diag, KVANT_ERROR_DTYPE, from->file, "array \"%.200s\": %s are no %s",
                               array->name, kvant_dtype_name(array->dtype), per_token_names[which]);
    size_t element = tags ? 1 : 4;
    unsigned char *bytes = malloc((size_t)count * element + 1);
    if (bytes == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, r->output, "out of memory");
    j->per_token[which] = bytes;
    for (uint64_t i = 0; i < count; i++) {
        int64_t x = integer_at(array, i);
        int32_t word = (int32_t)x;
        if (tags ? x < 0 || x > 255 : x < INT32_MIN || x > INT32_MAX)
            return kvant_file_fail(diag, KVANT_ERROR_VALUE, from->file,
                                   "array \"%.200s\": %lld at %llu is out of range", array->name,
                                   (long long)x, (unsigned long long)i);
        if (tags)
            bytes[i] = (unsigned char)x;
        else
            memcpy(bytes + i * element, &word, sizeof word);
    }
    j->arrays[j->array_count++] = (kvant_array){.name = per_token_names[which],
                                                .data = bytes,
                                                .shape = {count},
                                                .bytes = count * element,
                                                .dtype = tags ? KVANT_DTYPE_U8 : KVANT_DTYPE_I32,
                                                .rank = 1};
    return KVANT_OK;
}

/* ---- Write --------------------------------------------------------------------------------------------- */

static kvant_status describe(request *r, job *j, kvant_diag *diag) {
    j->arrays = calloc((size_t)j->tensor_count + PER_TOKEN, sizeof *j->arrays);
    if (j->arrays == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, r->output, "out of memory");
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < j->tensor_count; i++) {
        const planned *tensor = &j->tensors[i];
        kvant_array *array = &j->arrays[j->array_count++];
        *array = (kvant_array){.name = tensor->name,
                               .shape = {tensor->rows.tokens, tensor->rows.heads, tensor->rows.head_dim},
                               .dtype = tensor->rows.to_dtype,
                               .rank = 3};
        if (!kvant_array_size(array->dtype, array->shape, array->rank, &array->bytes))
            status = KVANT_ERROR_GEOMETRY;
    }
    for (int which = 0; which < PER_TOKEN && status == KVANT_OK; which++)
        if (r->per_token[which] != NULL) status = read_per_token(r, j, which, diag);
    if (status != KVANT_OK) return status;
    (void)snprintf(r->layer_count, sizeof r->layer_count, "%u", j->layer_count);
    say(r, "format", "kvant-kv/1");
    say(r, "layers", r->layer_count);
    kvant_dump *dump = NULL;
    status = kvant_dump_of_arrays(j->arrays, j->array_count, r->metadata, r->metadata_count, r->output, &dump,
                                  diag);
    kvant_dump_close(dump);
    return status;
}

static kvant_status write_dump(const request *r, const job *j, kvant_diag *diag) {
    kvant_safetensors_writer *writer = NULL;
    kvant_status status = kvant_safetensors_begin(r->output, j->arrays, j->array_count, r->metadata,
                                                  r->metadata_count, &writer, diag);
    for (uint32_t i = 0; i < j->array_count && status == KVANT_OK; i++) {
        const kvant_array *array = &j->arrays[i];
        if (i >= j->tensor_count) {
            kvant_safetensors_add(writer, array->data, (size_t)array->bytes);
            continue;
        }
        void *dense = malloc((size_t)array->bytes);
        if (dense == NULL) {
            status = kvant_file_fail(diag, KVANT_ERROR_MEMORY, r->output, "out of memory");
            break;
        }
        foreign_gather(&j->tensors[i].rows, j->tensors[i].layer, dense);
        kvant_safetensors_add(writer, dense, (size_t)array->bytes);
        free(dense);
    }
    if (status == KVANT_OK) return kvant_safetensors_commit(writer, diag);
    kvant_safetensors_abort(writer);
    return status;
}

static kvant_status import(request *r, kvant_diag *diag) {
    job j = {0};
    kvant_status status = foreign_open(r->files, r->file_count, &j.files, diag);
    if (status == KVANT_OK) status = plan_tensors(r, &j, diag);
    if (status == KVANT_OK) status = describe(r, &j, diag);
    if (status == KVANT_OK) status = write_dump(r, &j, diag);
    for (int which = 0; which < PER_TOKEN; which++) free(j.per_token[which]);
    free(j.arrays);
    free(j.tensors);
    free(r->layer_ids);
    foreign_close(&j.files);
    return status;
}

/* ---- The command line ---------------------------------------------------------------------------------- */

static const char help[] =
    "usage: kvant import FILE... --key NAME --value NAME [--query NAME] --axes AXES -o DUMP [options]\n"
    "\n"
    "Arrays of other programs, .npy or safetensors in any layout, to a dump (kvant-kv/1). NAME is a tensor "
    "of a\n"
    "safetensors file, or a .npy file without directory and ending; {l} in it stands for the layer, as in\n"
    "model.layers.{l}.k. AXES names the axes of the arrays, outermost first, one letter each:\n"
    "\n"
    "  l layer   b batch (must be 1)   h kv head (query head)   t token   d channel   c heads and channels "
    "in one\n"
    "\n"
    "t and one of d, c are needed. FP8 becomes F16 and F64 F32; other types stay.\n"
    "\n"
    "  --key, --value, --query NAME      at least one of key and value\n"
    "  --axes AXES                       of all; --value-axes and --query-axes where they differ\n"
    "  --heads N, --q-heads N            how many heads an axis c has\n"
    "  --dtype bf16                      16-bit integers are BF16 (NumPy has no such type)\n"
    "  --tokens, --turn, --tags NAME     arrays with one integer per token\n"
    "  --model TEXT                      weights, revision, adapters; `encode` needs it\n"
    "  --rope none|neox:THETA[:DIM]      how keys turn (or gptj:...): neox pairs halves, gptj neighbours;\n"
    "                                    THETA may be a list with commas, one per layer\n"
    "  --key-rope pre|post               the keys are from before or after RoPE\n"
    "  --scale X                         of logits; without it 1/sqrt(head_dim)\n"
    "  --window N[,N...]                 attention window, one or one per layer; 0 = all tokens\n"
    "  --query-start N                   position of the first query; without it they are the last tokens'\n"
    "  -o DUMP                           the file to write\n"
    "\n"
    "examples:\n"
    "  kvant import k.npy v.npy --key k --value v --axes lbhtd --model my-model -o dump.safetensors\n"
    "  kvant import kv.safetensors --key 'layers.{l}.k' --value 'layers.{l}.v' --axes bhtd --rope "
    "neox:500000 \\\n"
    "      --key-rope post --model my-model -o dump.safetensors\n";

static int check_axes(const char *option, const char *axes) {
    for (const char *c = axes; *c != '\0'; c++)
        if (strchr("lbhtdc", *c) == NULL || strchr(c + 1, *c) != NULL)
            return usage_error("import", "%s \"%s\": letters of l b h t d c, each once", option, axes);
    bool fused = strchr(axes, 'c') != NULL, apart = strchr(axes, 'd') != NULL;
    if (strchr(axes, 't') == NULL || fused == apart || (fused && strchr(axes, 'h') != NULL))
        return usage_error("import", "%s \"%s\": t and d are needed (or t and c, without h)", option, axes);
    return EXIT_DONE;
}

static int read_heads(const char *option, const char *text, uint32_t *heads) {
    if (text == NULL) return EXIT_DONE;
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < 1 || value > 1u << 20)
        return usage_error("import", "%s takes a number of heads, not \"%s\"", option, text);
    *heads = (uint32_t)value;
    return EXIT_DONE;
}

/* none, or STYLE:THETA[:ROTARY_DIM]; the dump's own rules check the parts. */
static int read_rope(request *r) {
    if (r->rope == NULL) return EXIT_DONE;
    static const char *const keys[3] = {"rope_style", "rope_theta", "rotary_dim"};
    const char *at = r->rope;
    unsigned parts = 0;
    for (; at != NULL && parts < 3; parts++) {
        size_t length = strcspn(at, ":");
        if (length == 0 || length >= sizeof r->rope_parts[0]) break;
        memcpy(r->rope_parts[parts], at, length);
        at = at[length] == ':' ? at + length + 1 : NULL;
    }
    bool none = strcmp(r->rope, "none") == 0;
    if (at != NULL || (!none && parts < 2))
        return usage_error("import", "--rope takes none or STYLE:THETA[:DIM], as in neox:10000, not \"%s\"",
                           r->rope);
    for (unsigned i = 0; i < parts; i++) say(r, keys[i], r->rope_parts[i]);
    return EXIT_DONE;
}

static int check_request(request *r) {
    static const char *const options_of[KINDS] = {"--axes", "--value-axes", "--query-axes"};
    if (r->file_count == 0) return usage_error("import", "it takes the files to read");
    if (r->names[KVANT_DUMP_KEY] == NULL && r->names[KVANT_DUMP_VALUE] == NULL)
        return usage_error("import", "--key NAME and --value NAME are missing");
    if (r->axes[0] == NULL) return usage_error("import", "--axes AXES is missing");
    if (r->output == NULL) return usage_error("import", "-o DUMP is missing");
    if (r->q_heads_text == NULL) r->q_heads_text = r->heads_text;
    int result = read_heads("--heads", r->heads_text, &r->heads);
    if (result == EXIT_DONE) result = read_heads("--q-heads", r->q_heads_text, &r->q_heads);
    if (result == EXIT_DONE) result = read_rope(r);
    for (int kind = 0; kind < KINDS && result == EXIT_DONE; kind++) {
        if (r->axes[kind] == NULL) r->axes[kind] = r->axes[0];
        result = check_axes(options_of[kind], r->axes[kind]);
        if (result != EXIT_DONE || r->names[kind] == NULL) continue;
        if (strchr(r->axes[kind], 'l') != NULL && strstr(r->names[kind], "{l}") != NULL)
            return usage_error("import", "the layer is both an axis of \"%s\" and in the name \"%s\"",
                               r->axes[kind], r->names[kind]);
        if (strchr(r->axes[kind], 'c') != NULL && (kind == KVANT_DUMP_QUERY ? r->q_heads : r->heads) == 0)
            return usage_error("import", "an axis c needs --heads N");
    }
    return result;
}

/* What goes into the dump's metadata as it is said. */
static const char *metadata_key(int option) {
    static const char *const keys[] = {"model", "key_rope", "scale", "window", "query_start"};
    return option >= 1000 && option < 1005 ? keys[option - 1000] : NULL;
}

static int run(int argc, char **argv) {
    static const struct option known[] = {
        {"key", required_argument, NULL, 100},        {"value", required_argument, NULL, 101},
        {"query", required_argument, NULL, 102},      {"axes", required_argument, NULL, 200},
        {"value-axes", required_argument, NULL, 201}, {"query-axes", required_argument, NULL, 202},
        {"tokens", required_argument, NULL, 300},     {"turn", required_argument, NULL, 301},
        {"tags", required_argument, NULL, 302},       {"rope", required_argument, NULL, 400},
        {"heads", required_argument, NULL, 401},      {"q-heads", required_argument, NULL, 402},
        {"dtype", required_argument, NULL, 403},      {"model", required_argument, NULL, 1000},
        {"key-rope", required_argument, NULL, 1001},  {"scale", required_argument, NULL, 1002},
        {"window", required_argument, NULL, 1003},    {"query-start", required_argument, NULL, 1004},
        {"output", required_argument, NULL, 'o'},     {NULL, 0, NULL, 0}};
    request r = {0};
    bool said[5] = {false};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":o:", known, NULL)) != -1;) {
        if (option == ':') return usage_error("import", "%s takes a value", argv[optind - 1]);
        if (option == '?') return usage_error("import", "there is no option %s", argv[optind - 1]);
        if (metadata_key(option) != NULL) {
            if (said[option - 1000]) return usage_error("import", "%s is said twice", argv[optind - 2]);
            said[option - 1000] = true;
            say(&r, metadata_key(option), optarg);
        } else if (option >= 300 && option < 303) {
            r.per_token[option - 300] = optarg;
        } else if (option >= 200 && option < 203) {
            r.axes[option - 200] = optarg;
        } else if (option >= 100 && option < 103) {
            r.names[option - 100] = optarg;
        } else if (option == 'o') {
            r.output = optarg;
        } else if (option == 400) {
            r.rope = optarg;
        } else if (option == 401) {
            r.heads_text = optarg;
        } else if (option == 402) {
            r.q_heads_text = optarg;
        } else {
            if (strcmp(optarg, "bf16") != 0)
                return usage_error("import", "--dtype is bf16, not \"%s\"", optarg);
            r.u16_is_bf16 = true;
        }
    }
    r.files = argv + optind;
    r.file_count = (uint32_t)(argc - optind);
    int result = check_request(&r);
    if (result != EXIT_DONE) return result;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = import(&r, &diag);
    return status == KVANT_OK ? EXIT_DONE : input_error(&diag, status);
}

const command command_import = {"import", "arrays of other programs to a dump", help, run};
