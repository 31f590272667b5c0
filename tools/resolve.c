/* kvant resolve: what a pipeline comes to on a model, one row per layer and side. */
#include "command.h"

#include "base/text.h"
#include "data/dump.h"
#include "geometry.h"
#include "pipeline/pipeline.h"
#include "pipeline/plan.h"
#include "plugin/schema.h"
#include "probe.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    const char *pipeline;
    const char *dump;          /* NULL = geometry_text */
    const char *geometry_text; /* NULL = dump */
    const char *model;
} request;

/* Bits and bytes of rows, added up; rows with several sizes have a least and a most. */
typedef struct total {
    double elements; /* of a token */
    double payload_min, payload_max;
    double bytes_min, bytes_max;
    double raw_bytes;
} total;

/* ---- As JSON ------------------------------------------------------------------------------------------- */

static json_t *json_of_parameters(const kvant_row *row) {
    json_t *parameters = json_object();
    for (uint32_t i = 0; i < row->plugin->descriptor->param_count; i++) {
        size_t size = kvant_row_value(row, i, NULL, 0);
        char *text = malloc(size + 1);
        if (text == NULL) break;
        (void)kvant_row_value(row, i, text, size + 1);
        json_object_set_new(parameters, kvant_schema_param(row->plugin->descriptor, i)->name,
                            json_string(text));
        free(text);
    }
    return parameters;
}

static json_t *json_of_row(const kvant_plan_entry *entry, total *sum) {
    const kvant_row *row = &entry->row;
    const kvant_setup *setup = row->setup;
    const kvant_layout *l = row->layout;
    double steps = (double)l->size_steps, tokens = setup->block_tokens;
    double of_token = (double)setup->kv_heads * setup->head_dim, elements = tokens * of_token;
    double payload_min = (double)l->payload_bits, bytes_min = (double)l->size_min;
    double payload_max = payload_min + steps * (double)l->payload_bits_step;
    double bytes_max = bytes_min + steps * (double)l->size_step;
    char format[5] = "";
    for (uint32_t i = 0; i < 4; i++) format[i] = (char)(row->plugin->descriptor->format_id >> 8 * i & 0xff);
    sum->elements += of_token;
    sum->payload_min += payload_min / tokens;
    sum->payload_max += payload_max / tokens;
    sum->bytes_min += bytes_min / tokens;
    sum->bytes_max += bytes_max / tokens;
    sum->raw_bytes += of_token * (setup->dtype == KVANT_DTYPE_F32 ? 4 : 2);
    return json_pack("{s:I, s:s, s:s, s:s, s:s, s:s, s:I, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:b, "
                     "s:b, s:b, s:s}",
                     "layer", (json_int_t)setup->layer, "side", side_name(setup->side), "codec", row->codec,
                     "plugin", row->plugin->descriptor->name, "plugin_version",
                     row->plugin->descriptor->version, "format", format, "format_version",
                     (json_int_t)row->plugin->descriptor->format_version, "parameters",
                     json_of_parameters(row), "payload_bits", payload_min / elements, "payload_bits_max",
                     payload_max / elements, "all_in_bits", 8 * bytes_min / elements, "all_in_bits_max",
                     8 * bytes_max / elements, "bytes_per_token", bytes_min / tokens, "bytes_per_token_max",
                     bytes_max / tokens, "extent_bytes_min", (json_int_t)l->size_min, "extent_bytes_max",
                     (json_int_t)(l->size_min + l->size_steps * l->size_step), "keys_before_rope",
                     (l->flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE) != 0, "centered", entry->center != NULL,
                     "replaced", row->replaced != 0, "reason", row->reason);
}

static json_t *json_of_plan(const kvant_plan *plan) {
    total sum = {0};
    kvant_plan_info info = {.struct_size = sizeof info};
    (void)kvant_plan_describe(plan, &info);
    const kvant_geometry *g = info.geometry;
    json_t *rows = json_array();
    for (size_t i = 0; i < 2 * (size_t)g->layer_count; i++)
        json_array_append_new(rows, json_of_row(&plan->entries[i], &sum));
    uint8_t digest[32];
    char hex[65];
    bool named = kvant_plan_fingerprint(plan, digest, NULL) == KVANT_OK;
    if (named) kvant_hex(digest, sizeof digest, hex);
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:s, s:s, s:s?, s:s?, s:I, s:s, s:s, s:o, s:{s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:f}, s:s?}",
        "pipeline", info.name, "block_tokens", (json_int_t)info.block_tokens, "sinks", (json_int_t)info.sinks,
        "recent", (json_int_t)info.recent, "key_center", info.key_center != 0 ? "artifact" : "none",
        "on_nonfinite", info.on_nonfinite == KVANT_ON_NONFINITE_SATURATE ? "saturate" : "error", "artifact",
        info.artifact_digest[0] != '\0' ? info.artifact_digest : NULL, "model", g->model, "layers",
        (json_int_t)g->layer_count, "dtype", dtype_name(g->dtype), "keys",
        g->keys == KVANT_KEYS_BEFORE_ROPE ? "before" : "after", "rows", rows, "total", "payload_bits",
        sum.payload_min / sum.elements, "payload_bits_max", sum.payload_max / sum.elements, "all_in_bits",
        8 * sum.bytes_min / sum.elements, "all_in_bits_max", 8 * sum.bytes_max / sum.elements,
        "bytes_per_token", sum.bytes_min, "bytes_per_token_max", sum.bytes_max, "raw_bytes_per_token",
        sum.raw_bytes, "fingerprint", named ? hex : NULL);
}

/* ---- As text ------------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "none";
}

static double number_of(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

/* "2.5", or "2.5 to 4" for rows with several sizes. */
static void range_text(const json_t *object, const char *least, const char *most, char *text, size_t size) {
    double low = number_of(object, least), high = number_of(object, most);
    int length = snprintf(text, size, "%.5g", low);
    if (high > low && length > 0 && (size_t)length < size)
        (void)snprintf(text + length, size - (size_t)length, "-%.5g", high);
}

/* Rows of neighbouring layers are told once where nothing but the layer differs. */
static bool same_row(json_t *a, json_t *b) {
    const char *key;
    json_t *value;
    json_object_foreach(a, key, value) {
        bool says_layer = strcmp(key, "layer") == 0 || strcmp(key, "reason") == 0;
        if (!says_layer && !json_equal(value, json_object_get(b, key))) return false;
    }
    return true;
}

static void print_row(const json_t *row, size_t first, size_t last) {
    char layers[48], payload[32], all_in[32], bytes[48];
    (void)snprintf(layers, sizeof layers, first == last ? "%zu" : "%zu-%zu", first, last);
    range_text(row, "payload_bits", "payload_bits_max", payload, sizeof payload);
    range_text(row, "all_in_bits", "all_in_bits_max", all_in, sizeof all_in);
    range_text(row, "bytes_per_token", "bytes_per_token_max", bytes, sizeof bytes);
    printf("%-9s %-6s %-12s %-12s %8s %8s %13s ", layers, text_of(row, "side"), text_of(row, "codec"),
           text_of(row, "plugin"), payload, all_in, bytes);
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(row, "parameters"), name, value)
        printf(" %s=%s", name, json_string_value(value));
    if (json_is_true(json_object_get(row, "keys_before_rope"))) printf(" (before RoPE)");
    if (json_is_true(json_object_get(row, "centered"))) printf(" (centred)");
    printf("\n");
    if (json_is_true(json_object_get(row, "replaced")))
        printf("          replaces %s\n", text_of(row, "reason"));
}

static void print_plan(const json_t *plan) {
    printf("pipeline     %s\n", text_of(plan, "pipeline"));
    printf("model        %s\n", text_of(plan, "model"));
    printf("layers       %lld, %s, keys %s RoPE\n",
           (long long)json_integer_value(json_object_get(plan, "layers")), text_of(plan, "dtype"),
           text_of(plan, "keys"));
    printf("blocks       %lld tokens; sinks %lld, recent %lld\n",
           (long long)json_integer_value(json_object_get(plan, "block_tokens")),
           (long long)json_integer_value(json_object_get(plan, "sinks")),
           (long long)json_integer_value(json_object_get(plan, "recent")));
    printf("rules        key_center %s, on_nonfinite %s, artifact %s\n\n", text_of(plan, "key_center"),
           text_of(plan, "on_nonfinite"), text_of(plan, "artifact"));
    printf("%-9s %-6s %-12s %-12s %8s %8s %13s  %s\n", "layers", "side", "codec", "plugin", "payload",
           "all-in", "bytes/token", "parameters");
    const json_t *rows = json_object_get(plan, "rows");
    size_t layers = json_array_size(rows) / 2;
    for (size_t first = 0, last = 0; first < layers; first = last + 1) {
        json_t *key = json_array_get(rows, 2 * first), *value = json_array_get(rows, 2 * first + 1);
        for (last = first; last + 1 < layers && same_row(key, json_array_get(rows, 2 * last + 2)) &&
                           same_row(value, json_array_get(rows, 2 * last + 3));)
            last++;
        print_row(key, first, last);
        print_row(value, first, last);
    }
    const json_t *sum = json_object_get(plan, "total");
    char payload[32], all_in[32], bytes[48];
    range_text(sum, "payload_bits", "payload_bits_max", payload, sizeof payload);
    range_text(sum, "all_in_bits", "all_in_bits_max", all_in, sizeof all_in);
    range_text(sum, "bytes_per_token", "bytes_per_token_max", bytes, sizeof bytes);
    printf("%-9s %-6s %-12s %-12s %8s %8s %13s  (%.0f uncoded)\n", "all", "", "", "", payload, all_in, bytes,
           number_of(sum, "raw_bytes_per_token"));
    bool named = json_is_string(json_object_get(plan, "fingerprint"));
    printf("\nfingerprint  %s\n", named ? text_of(plan, "fingerprint")
                                        : "none: no model is named, and bytes mean nothing without it");
}

/* ---- Command ------------------------------------------------------------------------------------------- */

static int print(const kvant_plan *plan) {
    json_t *document = json_of_plan(plan);
    if (document == NULL) {
        fputs("kvant resolve: out of memory, or a name that is not UTF-8\n", stderr);
        return EXIT_INPUT;
    }
    int result = EXIT_DONE;
    if (!options.json)
        print_plan(document);
    else if (json_dumpf(document, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF)
        result = EXIT_INPUT;
    json_decref(document);
    return result;
}

static int resolve(const request *r) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_dump *dump = NULL;
    parsed_geometry geometry = {0};
    kvant_status status = kvant_pipeline_open(r->pipeline, &pipeline, &diag);
    if (status == KVANT_OK)
        status = r->dump != NULL ? kvant_dump_open(r->dump, &dump, &diag)
                                 : geometry_parse(r->geometry_text, r->model, &geometry, &diag);
    if (status == KVANT_OK)
        status = kvant_pipeline_resolve(pipeline, dump != NULL ? kvant_dump_geometry(dump) : &geometry.value,
                                        &plan, &diag);
    int result = status == KVANT_OK ? print(plan) : input_error(&diag, status);
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    if (dump != NULL) kvant_dump_close(dump);
    geometry_free(&geometry);
    return result;
}

static int run(int argc, char **argv) {
    static const struct option known[] = {
        {"geometry", required_argument, NULL, 'g'}, {"model", required_argument, NULL, 'm'}, {0}};
    request r = {0};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":", known, NULL)) != -1;) {
        switch (option) {
        case 'g':
            r.geometry_text = optarg;
            break;
        case 'm':
            r.model = optarg;
            break;
        case ':':
            return usage_error("resolve", "%s takes a value", argv[optind - 1]);
        default:
            return usage_error("resolve", "there is no option %s", argv[optind - 1]);
        }
    }
    if (optind < argc) r.pipeline = argv[optind++];
    if (optind < argc) r.dump = argv[optind++];
    if (r.pipeline == NULL || optind < argc)
        return usage_error("resolve", "it takes a pipeline and a dump, or a pipeline and --geometry");
    if ((r.dump != NULL) == (r.geometry_text != NULL))
        return usage_error("resolve", "it takes either a dump or --geometry");
    if (r.model != NULL && r.dump != NULL)
        return usage_error("resolve", "--model goes with --geometry; a dump names its own model");
    return resolve(&r);
}

const command command_resolve = {
    .name = "resolve",
    .summary = "one row per layer and side: codec, parameters, bits, bytes; the fingerprint",
    .help = "usage: kvant resolve PIPELINE (DUMP | --geometry G [--model TEXT]) [--json]\n"
            "\n"
            "PIPELINE is an INI file, or a codec's name: its defaults on both sides. Layers that differ in\n"
            "nothing are told once. Bits are per element: of the codes alone (payload), and of all bytes\n"
            "(all-in: with scales, zero points, padding). Codecs whose blocks have several sizes show the\n"
            "least and the most.\n"
            "\n"
            "  DUMP          keys and values whose model the pipeline is resolved for\n"
            "  --geometry G  without a dump:\n"
            "                layers=30,kv_heads=3,q_heads=9,head_dim=64[,value_dim=64],dtype=f16,\n"
            "                rope=neox:100000[:rotary_dim] (or rope=gptj:..., rope=none)\n"
            "  --model TEXT  the model: weights, revision, adapters. Without it there is no fingerprint\n"
            "\n"
            "example: kvant resolve pipelines/kivi-2.ini samples/sample.safetensors\n",
    .run = run,
};
