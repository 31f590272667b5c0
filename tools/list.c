/* kvant list: every codec found, and every file refused. */
#include "command.h"

#include "gpu/gpu_image.h"
#include "plugin/registry.h"
#include "probe.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bits are those of the defaults on a geometry that most codecs take. */
static const char reference[] = "layers=1,kv_heads=8,q_heads=32,head_dim=128,dtype=f16,rope=neox:10000";

typedef struct catalog {
    parsed_geometry geometry;
    json_t *codecs;
    json_t *refused;
    json_t *shadowed;
} catalog;

/* ---- Collecting ---------------------------------------------------------------------------------------- */

static json_t *names_of_sides(uint32_t sides) {
    json_t *list = json_array();
    for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++)
        if ((sides >> side & 1u) != 0) json_array_append_new(list, json_string(side_name(side)));
    return list;
}

static json_t *names_of_dtypes(uint32_t dtypes) {
    static const uint32_t order[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};
    json_t *list = json_array();
    for (size_t i = 0; i < 3; i++)
        if ((dtypes >> order[i] & 1u) != 0) json_array_append_new(list, json_string(dtype_name(order[i])));
    return list;
}

/* {"key": {"payload": 2, "all_in": 3, "all_in_max": 3}, "value": null}; null where plan refuses the
 * reference. */
static json_t *bits_of(const kvant_plugin *plugin, const kvant_geometry *geometry) {
    json_t *bits = json_object();
    kvant_value *values = probe_defaults(plugin);
    for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++) {
        probe p;
        json_t *of_side = json_null();
        if (values != NULL && probe_plan(plugin, geometry, side, 0, values, &p, NULL) == KVANT_OK)
            of_side = json_pack("{s:f, s:f, s:f}", "payload", p.payload_min, "all_in", p.all_in_min,
                                "all_in_max", p.all_in_max);
        json_object_set_new(bits, side_name(side), of_side);
    }
    free(values);
    return bits;
}

/* "sm_80 sm_90 compute_80"; compute: PTX. */
static json_t *images_of(const kvant_plugin *plugin) {
    const kvant_gpu *gpu = plugin->extension != NULL ? plugin->extension(KVANT_EXT_GPU) : NULL;
    char text[256] = "none";
    if (gpu != NULL && gpu_vet(gpu, NULL) == KVANT_OK)
        gpu_images_text(gpu, text, sizeof text);
    else if (gpu != NULL)
        (void)snprintf(text, sizeof text, "broken");
    return json_string(text);
}

static json_t *describe(const kvant_plugin_entry *entry, const kvant_geometry *reference_geometry) {
    const kvant_descriptor *d = entry->plugin->descriptor;
    kvant_geometry geometry = *reference_geometry;
    for (uint32_t dtype = KVANT_DTYPE_F32; (d->dtypes >> geometry.dtype & 1u) == 0; dtype++)
        geometry.dtype = dtype;
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "name", d->name, "version", d->version,
                     "title", d->title, "sides", names_of_sides(d->sides), "dtypes",
                     names_of_dtypes(d->dtypes), "bits", bits_of(entry->plugin, &geometry), "gpu",
                     images_of(entry->plugin), "file", json_of_bytes(entry->file));
}

static void collect(void *context, const kvant_plugin_entry *entry) {
    catalog *c = context;
    if (entry->plugin != NULL) {
        json_array_append_new(c->codecs, describe(entry, &c->geometry.value));
        return;
    }
    json_t *item = json_pack("{s:o, s:o, s:o}", "name", json_of_bytes(entry->name), "file",
                             json_of_bytes(entry->file), "reason", json_of_bytes(entry->reason));
    json_array_append_new(entry->status != KVANT_OK ? c->refused : c->shadowed, item);
}

static json_t *searched_directories(void) {
    json_t *list = json_array();
    kvant_directories directories = {0};
    kvant_registry_lock();
    kvant_status status = kvant_registry_directories(&directories, NULL);
    kvant_registry_unlock();
    for (uint32_t i = 0; status == KVANT_OK && i < directories.count; i++) {
        const char *fault = kvant_directory_fault(directories.paths[i]);
        json_array_append_new(list, json_pack("{s:o, s:s}", "path", json_of_bytes(directories.paths[i]),
                                              "fault", fault != NULL ? fault : ""));
    }
    kvant_directories_free(&directories);
    return list;
}

/* ---- Table --------------------------------------------------------------------------------------------- */

enum { COLUMNS = 7, CELL = 40 };

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static void join(const json_t *list, char out[CELL]) {
    size_t size = 0;
    out[0] = '\0';
    for (size_t i = 0; i < json_array_size(list) && size < CELL; i++)
        size += (size_t)snprintf(out + size, CELL - size, "%s%s", i > 0 ? " " : "",
                                 json_string_value(json_array_get(list, i)));
}

/* "3", "4.125", "4.1-6.2"; for two sides that differ "3/4"; "?" where plan refused. */
static void bits_text(const json_t *codec, const char *least, const char *most, char out[CELL]) {
    char side[2][CELL] = {"", ""};
    uint32_t count = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(codec, "sides")); i++) {
        const char *name = json_string_value(json_array_get(json_object_get(codec, "sides"), i));
        const json_t *bits = json_object_get(json_object_get(codec, "bits"), name);
        double low = json_number_value(json_object_get(bits, least));
        double high = json_number_value(json_object_get(bits, most));
        if (!json_is_object(bits))
            (void)snprintf(side[count], CELL, "?");
        else if (high > low)
            (void)snprintf(side[count], CELL, "%.4g-%.4g", low, high);
        else
            (void)snprintf(side[count], CELL, "%.4g", low);
        count++;
    }
    bool same = count < 2 || strcmp(side[0], side[1]) == 0;
    (void)snprintf(out, CELL, "%.18s%s%.18s", side[0], same ? "" : "/", same ? "" : side[1]);
}

typedef struct row {
    char cells[COLUMNS][CELL];
    const char *file;
} row;

static void fill(const json_t *codec, row *r) {
    (void)snprintf(r->cells[0], CELL, "%s", text_of(codec, "name"));
    (void)snprintf(r->cells[1], CELL, "%s", text_of(codec, "version"));
    join(json_object_get(codec, "sides"), r->cells[2]);
    bits_text(codec, "payload", "payload", r->cells[3]);
    bits_text(codec, "all_in", "all_in_max", r->cells[4]);
    join(json_object_get(codec, "dtypes"), r->cells[5]);
    (void)snprintf(r->cells[6], CELL, "%s", text_of(codec, "gpu"));
    r->file = text_of(codec, "file")[0] != '\0' ? text_of(codec, "file") : "(registered)";
}

static int print_codecs(const json_t *codecs) {
    static const char *const head[COLUMNS] = {"CODEC", "VERSION", "SIDES", "BITS", "ALL-IN", "ROWS", "GPU"};
    size_t count = json_array_size(codecs), width[COLUMNS];
    row *rows = calloc(count + 1, sizeof *rows);
    if (rows == NULL) return EXIT_INPUT;
    for (size_t c = 0; c < COLUMNS; c++) (void)snprintf(rows[0].cells[c], CELL, "%s", head[c]);
    rows[0].file = "FILE";
    for (size_t i = 0; i < count; i++) fill(json_array_get(codecs, i), &rows[i + 1]);
    for (size_t c = 0; c < COLUMNS; c++) {
        width[c] = 0;
        for (size_t i = 0; i <= count; i++)
            if (strlen(rows[i].cells[c]) > width[c]) width[c] = strlen(rows[i].cells[c]);
    }
    for (size_t i = 0; i <= count; i++) {
        for (size_t c = 0; c < COLUMNS; c++) printf("%-*s  ", (int)width[c], rows[i].cells[c]);
        printf("%s\n", rows[i].file);
    }
    free(rows);
    return EXIT_DONE;
}

static void print_files(const char *title, const json_t *files) {
    if (json_array_size(files) == 0) return;
    printf("\n%s\n", title);
    for (size_t i = 0; i < json_array_size(files); i++)
        printf("  %s: %s\n", text_of(json_array_get(files, i), "file"),
               text_of(json_array_get(files, i), "reason"));
}

static int print_table(const json_t *all) {
    int result = print_codecs(json_object_get(all, "codecs"));
    print_files("REFUSED", json_object_get(all, "refused"));
    print_files("NOT IN USE", json_object_get(all, "shadowed"));
    printf(
        "\nBITS are those of codes alone, ALL-IN those of all bytes, per element, with default parameters\n"
        "(8 heads of 128 channels)\n");
    printf("GPU code: %s\n", text_of(all, "gpu_code"));
    printf("instruction set: %s\n", text_of(all, "isa"));
    const json_t *directories = json_object_get(all, "directories");
    for (size_t i = 0; i < json_array_size(directories); i++) {
        const json_t *d = json_array_get(directories, i);
        const char *fault = text_of(d, "fault");
        printf("%s%s%s%s\n", i == 0 ? "searched: " : "          ", text_of(d, "path"),
               fault[0] != '\0' ? ": " : "", fault);
    }
    return result;
}

/* ---- Command ------------------------------------------------------------------------------------------- */

static int run(int argc, char **argv) {
    if (argc > 1) return usage_error("list", "it takes no argument, not \"%s\"", argv[1]);
    kvant_diag diag = {.struct_size = sizeof diag};
    catalog c = {.codecs = json_array(), .refused = json_array(), .shadowed = json_array()};
    kvant_status status = geometry_parse(reference, NULL, &c.geometry, &diag);
    if (status == KVANT_OK) status = kvant_plugin_list(collect, &c, &diag);
    json_t *all = json_pack("{s:o, s:o, s:o, s:o, s:s, s:s}", "codecs", c.codecs, "refused", c.refused,
                            "shadowed", c.shadowed, "directories", searched_directories(), "gpu_code",
                            KVANT_HAVE_NVCC ? "built" : "not built", "isa", kvant_isa_name(kvant_isa()));
    int result = EXIT_DONE;
    if (status != KVANT_OK)
        result = input_error(&diag, status);
    else if (!options.json)
        result = print_table(all);
    else if (json_dumpf(all, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF)
        result = EXIT_INPUT;
    json_decref(all);
    geometry_free(&c.geometry);
    return result;
}

const command command_list = {
    .name = "list",
    .summary = "every codec found, and every file refused",
    .help =
        "usage: kvant list [--json]\n"
        "\n"
        "One line for each codec that a pipeline can name: version, sides it takes, bits per element with\n"
        "default parameters, dtypes of rows, GPU images (sm: cubins; compute: PTX, which the driver\n"
        "compiles), file. Then the files kvant_*.so in the searched directories that are refused, each with\n"
        "the reason, and those that are not in use because a file of the same name comes before them.\n"
        "\n"
        "Directories are searched in this order: --plugin-path, the variable KVANT_PLUGIN_PATH, the plugin\n"
        "directory of the installation.\n"
        "\n"
        "example: kvant --plugin-path /opt/codecs list\n",
    .run = run,
};
