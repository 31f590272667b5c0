/* kvant info: one codec, its parameters, and what it takes on a given geometry. */
#include "command.h"

#include "pipeline/pipeline.h"
#include "plugin/schema.h"
#include "probe.h"

#include <kvant/kit/diag.h>

#include <jansson.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    const char *codec;
    const char *geometry_text;
    const char *const *sets; /* [set_count] "key=value" */
    int set_count;
    uint32_t block_tokens; /* 0 = the usual */

    const kvant_plugin *plugin;
    parsed_geometry geometry;
    kvant_value *values;
} request;

/* ---- As JSON ------------------------------------------------------------------------------------------- */

static json_t *json_of_number(const kvant_param *p, int64_t integer, double number) {
    return p->type == KVANT_PARAM_NUMBER ? json_real(number) : json_integer(integer);
}

static json_t *json_of_param(const kvant_param *p, const kvant_value *value) {
    char range[1024], text[1024], preset[1024];
    kvant_value standard;
    kvant_schema_default(p, &standard);
    (void)kvant_schema_range(p, range, sizeof range);
    (void)kvant_schema_text(p, value, text, sizeof text);
    (void)kvant_schema_text(p, &standard, preset, sizeof preset);
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:b}", "name", p->name, "type",
                  kvant_schema_type_name(p->type), "range", range, "default", preset, "value", text, "unit",
                  p->unit, "help", p->help, "reading", (p->flags & KVANT_PARAM_READING) != 0, "later",
                  (p->flags & KVANT_PARAM_LATER) != 0);
    if (p->type == KVANT_PARAM_CHOICE || p->integer_count > 0) {
        json_t *list = json_array();
        for (uint32_t i = 0; i < p->choice_count && p->type == KVANT_PARAM_CHOICE; i++)
            json_array_append_new(list, json_string(p->choices[i]));
        for (uint32_t i = 0; i < p->integer_count && p->type == KVANT_PARAM_INTEGER; i++)
            json_array_append_new(list, json_integer(p->integers[i]));
        json_object_set_new(object, "choices", list);
    } else if (p->type != KVANT_PARAM_SWITCH) {
        json_object_set_new(object, "min", json_of_number(p, p->integer_min, p->number_min));
        json_object_set_new(object, "max", json_of_number(p, p->integer_max, p->number_max));
    }
    return object;
}

static json_t *json_of_codec(const request *r) {
    static const struct {
        const char *id;
        const char *word;
    } extensions[] = {{KVANT_EXT_ATTEND, "attend"},
                      {KVANT_EXT_CALIBRATE, "calibrate"},
                      {KVANT_EXT_INSPECT, "inspect"},
                      {"kvant.gpu/1", "gpu"}};
    const kvant_descriptor *d = r->plugin->descriptor;
    char format[5] = "";
    for (uint32_t i = 0; i < 4; i++) format[i] = (char)(d->format_id >> 8 * i & 0xff);
    json_t *sides = json_array(), *dtypes = json_array(), *offers = json_array(), *needs = json_array();
    for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++)
        if ((d->sides >> side & 1u) != 0) json_array_append_new(sides, json_string(side_name(side)));
    for (uint32_t dtype = KVANT_DTYPE_F32; dtype <= KVANT_DTYPE_BF16; dtype++)
        if ((d->dtypes >> dtype & 1u) != 0) json_array_append_new(dtypes, json_string(dtype_name(dtype)));
    for (size_t i = 0; i < sizeof extensions / sizeof extensions[0]; i++)
        if (probe_extension(r->plugin, extensions[i].id) != NULL)
            json_array_append_new(offers, json_string(extensions[i].word));
    if ((d->requires_bits & KVANT_REQUIRES_TAGS) != 0) json_array_append_new(needs, json_string("tags"));
    json_t *params = json_array();
    for (uint32_t i = 0; i < d->param_count; i++)
        json_array_append_new(params, json_of_param(kvant_schema_param(d, i), &r->values[i]));
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:s, s:I, s:o, s:o, s:o, s:o, s:{s:I, s:I, s:I}, s:o}", "name",
        d->name, "version", d->version, "title", d->title, "paper", d->paper, "license", d->license,
        "deviations", d->deviations, "file", json_of_bytes(kvant_plugin_file(r->plugin)), "format", format,
        "format_version", (json_int_t)d->format_version, "sides", sides, "dtypes", dtypes, "offers", offers,
        "requires", needs, "head_dim", "min", (json_int_t)d->head_dim_min, "max", (json_int_t)d->head_dim_max,
        "multiple", (json_int_t)d->head_dim_multiple, "parameters", params);
    return object;
}

static json_t *json_of_probe(uint32_t side, const probe *p) {
    const kvant_layout *l = &p->layout;
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:b, s:b, s:s}", "side",
                     side_name(side), "block_tokens", (json_int_t)p->block_tokens, "block_multiple",
                     (json_int_t)l->block_multiple, "extent_bytes_min", (json_int_t)l->size_min,
                     "extent_bytes_max", (json_int_t)(l->size_min + l->size_steps * l->size_step),
                     "extent_bytes_step", (json_int_t)l->size_step, "alignment", (json_int_t)l->alignment,
                     "state_bytes", (json_int_t)l->state_bytes, "payload_bits", p->payload_min,
                     "payload_bits_max", p->payload_max, "all_in_bits", p->all_in_min, "all_in_bits_max",
                     p->all_in_max, "lossless", (l->flags & KVANT_LAYOUT_LOSSLESS) != 0, "keys_before_rope",
                     (l->flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE) != 0, "isa", kvant_isa_name(l->isa));
}

/* ---- As text ------------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static void print_list(const char *label, const json_t *list, const char *none) {
    printf("%-12s", label);
    for (size_t i = 0; i < json_array_size(list); i++)
        printf("%s%s", i > 0 ? ", " : "", json_string_value(json_array_get(list, i)));
    printf("%s\n", json_array_size(list) == 0 ? none : "");
}

enum { WIDTH = 100 };

/* Words in lines of at most WIDTH columns, from column `indent` on; the first line begins where the cursor
 * is. */
static void print_wrapped(size_t indent, const char *text) {
    size_t column = indent;
    while (*text != '\0') {
        size_t word = strcspn(text, " \n");
        bool first = column == indent;
        if (!first && column + 1 + word > WIDTH) {
            printf("\n%*s", (int)indent, "");
            column = indent;
            first = true;
        }
        printf("%s%.*s", first ? "" : " ", (int)word, text);
        column += word + !first;
        text += word;
        if (*text == '\n') {
            printf("\n%*s", (int)indent, "");
            column = indent;
        }
        if (*text != '\0') text++;
    }
    printf("\n");
}

static void print_params(const json_t *params) {
    if (json_array_size(params) == 0) {
        printf("\nno parameters\n");
        return;
    }
    printf("\nparameters\n");
    for (size_t i = 0; i < json_array_size(params); i++) {
        const json_t *p = json_array_get(params, i);
        const char *unit = text_of(p, "unit");
        bool set = strcmp(text_of(p, "value"), text_of(p, "default")) != 0;
        printf("  %-14s %s: %s%s%s; default %s%s%s\n", text_of(p, "name"), text_of(p, "type"),
               text_of(p, "range"), unit[0] != '\0' ? " " : "", unit, text_of(p, "default"),
               set ? "; here " : "", set ? text_of(p, "value") : "");
        printf("  %-14s ", "");
        print_wrapped(17, text_of(p, "help"));
        if (json_is_true(json_object_get(p, "reading")))
            printf("  %-14s (changes only how extents are read)\n", "");
    }
}

static void print_codec(const json_t *codec) {
    const json_t *head = json_object_get(codec, "head_dim");
    printf("%s %s: %s\n\n", text_of(codec, "name"), text_of(codec, "version"), text_of(codec, "title"));
    printf("%-12s%s\n", "paper", text_of(codec, "paper")[0] != '\0' ? text_of(codec, "paper") : "none");
    printf("%-12s%s\n", "license", text_of(codec, "license"));
    printf("%-12s%s\n", "file", text_of(codec, "file")[0] != '\0' ? text_of(codec, "file") : "(registered)");
    printf("%-12s%s, version %lld\n", "format", text_of(codec, "format"),
           (long long)json_integer_value(json_object_get(codec, "format_version")));
    print_list("sides", json_object_get(codec, "sides"), "");
    print_list("rows", json_object_get(codec, "dtypes"), "");
    printf("%-12s%lld to %lld", "head_dim", (long long)json_integer_value(json_object_get(head, "min")),
           (long long)json_integer_value(json_object_get(head, "max")));
    long long multiple = (long long)json_integer_value(json_object_get(head, "multiple"));
    if (multiple > 1) printf(", multiples of %lld", multiple);
    printf("\n");
    print_list("offers", json_object_get(codec, "offers"), "the five calls");
    print_list("requires", json_object_get(codec, "requires"), "nothing");
    print_params(json_object_get(codec, "parameters"));
    const char *deviations = text_of(codec, "deviations");
    printf("\ndeviations\n  ");
    print_wrapped(2, deviations[0] != '\0' ? deviations : "none");
}

static void print_range(const char *label, const json_t *side, const char *least, const char *most) {
    const json_t *low = json_object_get(side, least), *high = json_object_get(side, most);
    printf("  %-22s%.6g", label, json_number_value(low));
    if (json_number_value(high) > json_number_value(low)) printf(" to %.6g", json_number_value(high));
    printf("\n");
}

static void print_side(const json_t *side) {
    printf("\n%s\n", text_of(side, "side"));
    if (json_object_get(side, "error") != NULL) {
        printf("  refused: %s\n", text_of(side, "error"));
        return;
    }
    print_range("block tokens", side, "block_tokens", "block_tokens");
    print_range("  a multiple of", side, "block_multiple", "block_multiple");
    print_range("extent bytes", side, "extent_bytes_min", "extent_bytes_max");
    if (json_integer_value(json_object_get(side, "extent_bytes_step")) > 0)
        print_range("  in steps of", side, "extent_bytes_step", "extent_bytes_step");
    print_range("payload bits/element", side, "payload_bits", "payload_bits_max");
    print_range("all-in bits/element", side, "all_in_bits", "all_in_bits_max");
    printf("  %-22s%s\n", "instruction set", text_of(side, "isa"));
    if (json_is_true(json_object_get(side, "lossless"))) printf("  lossless\n");
    if (json_is_true(json_object_get(side, "keys_before_rope"))) printf("  stores keys before RoPE\n");
}

/* ---- Command ------------------------------------------------------------------------------------------- */

static kvant_status find(request *r, kvant_diag *diag) {
    bool file = strchr(r->codec, '/') != NULL;
    return file ? kvant_plugin_open_file(r->codec, &r->plugin, diag)
                : kvant_plugin_find(r->codec, &r->plugin, diag);
}

static kvant_status apply_set(request *r, const char *set, kvant_diag *diag) {
    char name[64];
    const char *equals = strchr(set, '=');
    if (equals == NULL || (size_t)(equals - set) >= sizeof name)
        return kvant_fail(diag, KVANT_ERROR_SYNTAX, "", "--set takes KEY=VALUE, not \"%.64s\"", set);
    (void)snprintf(name, sizeof name, "%.*s", (int)(equals - set), set);
    uint32_t index = 0;
    kvant_status status = kvant_schema_find(r->plugin->descriptor, name, &index, diag);
    if (status != KVANT_OK) return status;
    if (r->values[index].given != 0)
        return kvant_fail(diag, KVANT_ERROR_DUPLICATE, name, "--set says %s twice", name);
    return kvant_schema_parse(kvant_schema_param(r->plugin->descriptor, index), equals + 1, &r->values[index],
                              diag);
}

static kvant_status prepare(request *r, kvant_diag *diag) {
    kvant_status status = find(r, diag);
    if (status != KVANT_OK) return status;
    r->values = probe_defaults(r->plugin);
    if (r->values == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (int i = 0; i < r->set_count && status == KVANT_OK; i++) status = apply_set(r, r->sets[i], diag);
    if (status == KVANT_OK && r->geometry_text != NULL)
        status = geometry_parse(r->geometry_text, NULL, &r->geometry, diag);
    return status;
}

/* What plan says for each side that the codec takes. *refusals counts the sides that it refuses. */
static json_t *plan_sides(const request *r, uint32_t *refusals) {
    json_t *sides = json_array();
    for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++) {
        if ((r->plugin->descriptor->sides >> side & 1u) == 0) continue;
        probe p;
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_status status =
            probe_plan(r->plugin, &r->geometry.value, side, r->block_tokens, r->values, &p, &diag);
        if (status == KVANT_OK) {
            json_array_append_new(sides, json_of_probe(side, &p));
            continue;
        }
        const char *message = diag.message[0] != '\0' ? diag.message : kvant_status_text(status);
        fprintf(stderr, "kvant info: %s: %s\n", side_name(side), message);
        json_array_append_new(sides, json_pack("{s:s, s:o, s:o}", "side", side_name(side), "error",
                                               json_of_bytes(message), "parameter", json_of_bytes(diag.key)));
        ++*refusals;
    }
    return sides;
}

static int show(const request *r) {
    uint32_t refusals = 0;
    json_t *codec = json_of_codec(r);
    if (codec == NULL) {
        fputs("kvant info: out of memory\n", stderr);
        return EXIT_INPUT;
    }
    if (r->geometry_text != NULL) json_object_set_new(codec, "geometry", plan_sides(r, &refusals));
    int result = refusals > 0 ? EXIT_INPUT : EXIT_DONE;
    if (options.json) {
        if (json_dumpf(codec, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF) result = EXIT_INPUT;
    } else {
        print_codec(codec);
        const json_t *sides = json_object_get(codec, "geometry");
        for (size_t i = 0; i < json_array_size(sides); i++) print_side(json_array_get(sides, i));
    }
    json_decref(codec);
    return result;
}

static int read_options(int argc, char **argv, request *r, const char **sets) {
    static const struct option known[] = {{"geometry", required_argument, NULL, 'g'},
                                          {"set", required_argument, NULL, 's'},
                                          {"block-tokens", required_argument, NULL, 'b'},
                                          {0}};
    opterr = 0;
    r->sets = sets;
    for (int option; (option = getopt_long(argc, argv, ":", known, NULL)) != -1;) {
        char *end = NULL;
        switch (option) {
        case 'g':
            r->geometry_text = optarg;
            break;
        case 's':
            sets[r->set_count++] = optarg;
            break;
        case 'b': {
            unsigned long tokens = strtoul(optarg, &end, 10);
            if (*optarg < '0' || *optarg > '9' || *end != '\0' || tokens < 1 ||
                tokens > KVANT_BLOCK_TOKENS_MAX)
                return usage_error("info", "--block-tokens takes a number from 1 to %d, not \"%s\"",
                                   KVANT_BLOCK_TOKENS_MAX, optarg);
            r->block_tokens = (uint32_t)tokens;
            break;
        }
        case ':':
            return usage_error("info", "%s takes a value", argv[optind - 1]);
        default:
            return usage_error("info", "there is no option %s", argv[optind - 1]);
        }
    }
    if (optind + 1 != argc) return usage_error("info", "it takes one codec");
    r->codec = argv[optind];
    if (r->block_tokens != 0 && r->geometry_text == NULL)
        return usage_error("info", "--block-tokens says nothing without --geometry");
    return EXIT_DONE;
}

static int run(int argc, char **argv) {
    request r = {0};
    const char **sets = calloc((size_t)argc + 1, sizeof *sets);
    kvant_diag diag = {.struct_size = sizeof diag};
    int result = sets != NULL ? read_options(argc, argv, &r, sets) : EXIT_INPUT;
    if (result == EXIT_DONE) {
        kvant_status status = prepare(&r, &diag);
        result = status == KVANT_OK ? show(&r) : input_error(&diag, status);
    }
    geometry_free(&r.geometry);
    free(r.values);
    free(sets);
    return result;
}

const command command_info = {
    .name = "info",
    .summary = "one codec: paper, parameters, capabilities, deviations, sizes",
    .help = "usage: kvant info CODEC [--geometry G [--block-tokens N]] [--set KEY=VALUE]... [--json]\n"
            "\n"
            "CODEC is a name that `kvant list` shows, or a file (with a / in it).\n"
            "\n"
            "  --geometry G      also sizes and bits per element on this geometry:\n"
            "                    layers=30,kv_heads=3,q_heads=9,head_dim=64[,value_dim=64],dtype=f16,\n"
            "                    rope=neox:100000[:rotary_dim] (or rope=gptj:..., rope=none)\n"
            "  --block-tokens N  tokens of a block; without it 64, or the next number that the codec takes\n"
            "  --set KEY=VALUE   a parameter other than its default\n"
            "\n"
            "A geometry or a parameter that the codec refuses is an error with its reason (exit status 3).\n"
            "\n"
            "example: kvant info kivi --set bits=4 \\\n"
            "             --geometry layers=30,kv_heads=3,q_heads=9,head_dim=64,dtype=f16,rope=neox:100000\n",
    .run = run,
};
