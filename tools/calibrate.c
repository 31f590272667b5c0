/* `kvant calibrate`: learn what a pipeline's codecs need, from dumps, into an artifact. */
#include "command.h"

#include "base/text.h"
#include "calibrate/calibration.h"
#include "pipeline/pipeline.h"

#include <kvant/kit/diag.h>

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct request {
    const char *pipeline;
    char **dumps;
    uint32_t dump_count;
    const char *output;
} request;

/* ---- Progress ------------------------------------------------------------------------------------------ */

typedef struct progress {
    const char *pipeline;
    bool shown;
} progress;

static void show_progress(void *context, uint32_t pass, uint32_t layer, uint32_t layers) {
    progress *p = context;
    if (!isatty(STDERR_FILENO)) return;
    p->shown = true;
    fprintf(stderr, "\r\033[K%.60s: pass %u, layer %u of %u", p->pipeline, pass, layer + 1, layers);
    fflush(stderr);
}

static void clear_progress(progress *p) {
    if (p->shown) fputs("\r\033[K", stderr);
    p->shown = false;
}

/* ---- The report ---------------------------------------------------------------------------------------- */

static json_t *json_of_texts(const kvant_calibration *c, uint32_t count) {
    json_t *texts = json_array();
    for (uint32_t i = 0; i < count; i++) {
        kvant_calibration_text text = kvant_calibration_text_at(c, i);
        json_array_append_new(texts, json_pack("{s:s, s:I, s:s}", "file", text.file, "tokens",
                                               (json_int_t)text.tokens, "digest", text.digest));
    }
    return texts;
}

static json_t *json_of_codecs(const kvant_calibration *c) {
    json_t *codecs = json_array();
    for (uint32_t i = 0; i < kvant_calibration_codecs(c); i++) {
        kvant_calibration_codec codec = kvant_calibration_codec_at(c, i);
        json_array_append_new(codecs,
                              json_pack("{s:s, s:s, s:I, s:I, s:I}", "codec", codec.codec, "plugin",
                                        codec.plugin, "rows", (json_int_t)codec.rows, "tensors",
                                        (json_int_t)codec.tensors, "passes", (json_int_t)codec.passes));
    }
    return codecs;
}

static int print_json(const request *r, const char *pipeline, const kvant_calibration *c,
                      const kvant_calibration_info *info) {
    json_t *root = json_pack(
        "{s:s, s:s, s:s?, s:I, s:I, s:I, s:I, s:I, s:s, s:o, s:o}", "file", r->output, "pipeline", pipeline,
        "model", kvant_calibration_model(c), "layers", (json_int_t)kvant_calibration_layers(c), "tokens",
        (json_int_t)info->tokens, "tensors", (json_int_t)info->tensor_count, "centered_layers",
        (json_int_t)info->centered_layers, "bytes", (json_int_t)info->size, "digest", info->digest, "texts",
        json_of_texts(c, info->text_count), "codecs", json_of_codecs(c));
    if (root == NULL) {
        fputs("kvant calibrate: out of memory, or a name that is not UTF-8\n", stderr);
        return EXIT_INPUT;
    }
    int result =
        json_dumpf(root, stdout, JSON_INDENT(2)) == 0 && putchar('\n') != EOF ? EXIT_DONE : EXIT_INPUT;
    json_decref(root);
    return result;
}

static int report(const request *r, const char *pipeline, const kvant_calibration *c) {
    kvant_calibration_info info = {.struct_size = sizeof info};
    (void)kvant_calibration_describe(c, &info);
    if (options.json) return print_json(r, pipeline, c, &info);
    printf("%s: %u tensors, %llu bytes, learned from %llu tokens of %u text%s\n", r->output,
           info.tensor_count, (unsigned long long)info.size, (unsigned long long)info.tokens, info.text_count,
           info.text_count == 1 ? "" : "s");
    if (info.centered_layers > 0) printf("  key means of %u layers\n", info.centered_layers);
    for (uint32_t i = 0; i < kvant_calibration_codecs(c); i++) {
        kvant_calibration_codec codec = kvant_calibration_codec_at(c, i);
        printf("  codec %s (plugin %s): %u tensors for %u rows, in %u pass%s\n", codec.codec, codec.plugin,
               codec.tensors, codec.rows, codec.passes, codec.passes == 1 ? "" : "es");
    }
    printf("  digest %s\n", info.digest);
    return EXIT_DONE;
}

/* ---- The command --------------------------------------------------------------------------------------- */

/* True where both names lead to one file that exists. */
static bool same_file(const char *a, const char *b) {
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static kvant_status check_output(const request *r, kvant_diag *diag) {
    const char *input = same_file(r->output, r->pipeline) ? r->pipeline : NULL;
    for (uint32_t i = 0; i < r->dump_count && input == NULL; i++)
        if (same_file(r->output, r->dumps[i])) input = r->dumps[i];
    if (input == NULL) return KVANT_OK;
    return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "-o %.300s would replace the input %.300s", r->output,
                      input);
}

/* The artifact is of use once the pipeline names it. */
static void advise(const request *r, const kvant_pipeline *pipeline) {
    if (pipeline->artifact != NULL && same_file(pipeline->artifact, r->output)) return;
    fprintf(stderr,
            "kvant calibrate: the pipeline names %s%s; say artifact = FILE in its [pipeline] section "
            "to use this one\n",
            pipeline->artifact != NULL ? "the artifact " : "no artifact",
            pipeline->artifact != NULL ? pipeline->artifact : "");
}

static kvant_status learn(const request *r, const kvant_pipeline *pipeline, kvant_calibration **learned,
                          kvant_diag *diag) {
    kvant_dump_source *texts = calloc(r->dump_count, sizeof *texts);
    if (texts == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint32_t i = 0; i < r->dump_count; i++)
        texts[i] = (kvant_dump_source){.struct_size = sizeof texts[i], .name = r->dumps[i]};
    progress p = {.pipeline = pipeline->name};
    const kvant_calibration_options how = {
        .struct_size = sizeof how, .progress = show_progress, .context = &p};
    kvant_status status = kvant_calibration_run(pipeline, texts, r->dump_count, &how, learned, diag);
    clear_progress(&p);
    free(texts);
    return status;
}

static int calibrate(const request *r) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_pipeline *pipeline = NULL;
    kvant_calibration *learned = NULL;
    kvant_status status = check_output(r, &diag);
    if (status == KVANT_OK) status = kvant_pipeline_open(r->pipeline, &pipeline, &diag);
    if (status == KVANT_OK) status = learn(r, pipeline, &learned, &diag);
    if (status == KVANT_OK) status = kvant_calibration_write(learned, r->output, &diag);
    int result = status == KVANT_OK ? report(r, pipeline->name, learned) : input_error(&diag, status);
    if (status == KVANT_OK) advise(r, pipeline);
    kvant_calibration_free(learned);
    kvant_pipeline_free(pipeline);
    return result;
}

static int run(int argc, char **argv) {
    static const struct option known[] = {{"output", required_argument, NULL, 'o'}, {0}};
    request r = {0};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":o:", known, NULL)) != -1;) {
        if (option == 'o')
            r.output = optarg;
        else if (option == ':')
            return usage_error("calibrate", "%s takes a value", argv[optind - 1]);
        else
            return usage_error("calibrate", "there is no option %s", argv[optind - 1]);
    }
    if (argc - optind < 2) return usage_error("calibrate", "it takes a pipeline and one dump or more");
    if (r.output == NULL || r.output[0] == '\0') return usage_error("calibrate", "-o ARTIFACT is missing");
    r.pipeline = argv[optind];
    r.dumps = &argv[optind + 1];
    r.dump_count = (uint32_t)(argc - optind - 1);
    return calibrate(&r);
}

const command command_calibrate = {
    .name = "calibrate",
    .summary = "learn what a pipeline's codecs need, from dumps, into an artifact",
    .help =
        "usage: kvant calibrate PIPELINE DUMP... -o ARTIFACT [--json]\n"
        "\n"
        "Learns from the keys, values and queries of one text or more: codebooks, thresholds, scales and "
        "widths\n"
        "that the pipeline's codecs cannot be opened without, and where it says key_center = artifact the "
        "means\n"
        "of the keys. A pipeline that needs nothing of this is an error. What was learned is loaded back\n"
        "through the pipeline before it is written. Same pipeline, same dumps: same bytes.\n"
        "\n"
        "  PIPELINE      an INI file, or the name of a codec: its defaults on both sides. The artifact that "
        "it\n"
        "                names need not exist\n"
        "  DUMP          a kvant-kv/1 file (see `kvant help import`); several are several texts of one "
        "model.\n"
        "                Sinks are not learned from\n"
        "  -o ARTIFACT   the file to write; a file of that name is replaced once the new one is complete\n"
        "  --json        what was learned as one JSON document (docs/json.md)\n"
        "\n"
        "Measure on a text that was not learned from; docs/calibration.md says more.\n"
        "\n"
        "example:\n"
        "  kvant calibrate pipelines/int4-g32-centered.ini samples/sample_prose.safetensors -o "
        "mine.safetensors\n",
    .run = run,
};
