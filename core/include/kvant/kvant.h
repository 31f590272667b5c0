/* kvant/kvant.h: the application API of kvant, a library for quantizing the KV cache of language models.
 *
 * Three floors, each usable without the one above: the codec floor (encode and decode blocks in memory of
 * your own), the attention floor and the cache floor (both built on it). This version has the codec floor.
 *
 *     kvant_pipeline *pipeline = NULL;
 *     kvant_plan *plan = NULL;
 *     kvant_codec *codec = NULL;
 *     kvant_diag diag = {.struct_size = sizeof diag};
 *     if (kvant_pipeline_load("balanced.ini", &pipeline, &diag) ||           // text -> codecs and parameters
 *         kvant_pipeline_resolve(pipeline, &geometry, &plan, &diag) ||       // -> one row per layer and side
 *         kvant_codec_open(plan, 0, KVANT_SIDE_KEY, &codec, &diag))          // -> a codec of one row
 *         die(diag.message);
 *     kvant_codec_encode(codec, &rows, 0, NULL, extent, capacity, scratch, &report, &diag);
 *     kvant_codec_decode(codec, extent, report.size, 0, &range, &out, scratch, &diag);
 *
 * Threads: functions on one object that take it const may run on many threads at once; all others need the
 * object alone. The plugin registry locks itself. The library starts no thread, writes nothing to stdout or
 * stderr, reads the environment variables KVANT_PLUGIN_PATH and KVANT_ISA once, and never changes the locale,
 * signal handlers or the caller's floating-point environment.
 *
 * Errors: every call that can fail returns a kvant_status and leaves its outputs NULL or untouched; setup
 * calls also fill a kvant_diag, which may be NULL. Inputs are checked, never asserted.
 */
#ifndef KVANT_KVANT_H
#define KVANT_KVANT_H

#include "plugin.h"
#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(KVANT_BUILDING_LIBRARY)
#define KVANT_API __attribute__((visibility("default")))
#else
#define KVANT_API
#endif

enum { KVANT_VERSION_MAJOR = 0, KVANT_VERSION_MINOR = 1, KVANT_VERSION_PATCH = 0 };

/* "0.1.0" of the library that is loaded. */
KVANT_API const char *kvant_version(void);

/* A short text for a status, "not finite"; for an unknown number "unknown status". Never NULL. */
KVANT_API const char *kvant_status_text(kvant_status status);

/* ---- Plugins ------------------------------------------------------------------------------------------- */

/* A codec is found by name: registered ones first, then exactly one file kvant_<name>.so in the first
 * directory that holds it, in this order: directories added here (last added first), KVANT_PLUGIN_PATH
 * (colon-separated; ignored in set-user-id programs), the plugin directory of this installation. Directories
 * must be absolute; relative and empty ones are errors, never the working directory. Files and directories
 * that everybody may write are refused, as is what is not a regular file. A plugin is opened once and stays
 * open for the life of the process. */

/* Adds a directory in front of the others. */
KVANT_API kvant_status kvant_plugin_path_add(const char *directory, kvant_diag *diag);

/* Registers a plugin that is linked into the application. A second registration of the same name is an error;
 * of the same function nothing. */
KVANT_API kvant_status kvant_plugin_register(kvant_plugin_query_fn *query, kvant_diag *diag);

/* Finds and opens by name. On failure the diag names every path tried and why each failed, and the nearest
 * name. */
KVANT_API kvant_status kvant_plugin_find(const char *name, const kvant_plugin **plugin, kvant_diag *diag);

/* Opens one file, absolute or relative, whatever its directory; the plugin's name must be that of the file.
 * From then on the name finds this file. An error if the name is already taken by another file. */
KVANT_API kvant_status kvant_plugin_open_file(const char *path, const kvant_plugin **plugin,
                                              kvant_diag *diag);

/* Everything that would be found, and every file kvant_*.so that would be refused. */
typedef struct kvant_plugin_entry {
    uint32_t struct_size;
    kvant_status status;        /* KVANT_OK, or why it is refused */
    const kvant_plugin *plugin; /* NULL if refused or shadowed */
    const char *name;           /* of the codec; for a refused file the one its name promises */
    const char *file;           /* absolute path; "" = registered by the application */
    const char *reason;         /* why refused, or "shadowed by FILE"; "" = in use */
} kvant_plugin_entry;

/* Calls visit for each, sorted by name, then in search order. Strings live during the call. */
KVANT_API kvant_status kvant_plugin_list(void (*visit)(void *context, const kvant_plugin_entry *entry),
                                         void *context, kvant_diag *diag);

/* The file that a plugin came from, "" if registered. Lives as long as the process. */
KVANT_API const char *kvant_plugin_file(const kvant_plugin *plugin);

/* Instruction sets: the best of this machine, at most KVANT_ISA or what kvant_isa_limit was told. */
KVANT_API uint32_t kvant_isa(void);
KVANT_API kvant_status kvant_isa_limit(const char *name, kvant_diag *diag); /* "scalar", "v2", "v3", "v4",
                                                                               "neon" */
KVANT_API const char *kvant_isa_name(uint32_t isa);

/* ---- Geometry of a model ------------------------------------------------------------------------------- */

/* On which side of RoPE the caller's keys are. */
enum { KVANT_KEYS_AFTER_ROPE = 0, KVANT_KEYS_BEFORE_ROPE = 1 };

typedef struct kvant_geometry {
    uint32_t struct_size;
    uint32_t layer_count;
    uint32_t dtype;                     /* of keys and values: F32, F16 or BF16 */
    uint32_t keys;                      /* KVANT_KEYS_* */
    const kvant_layer_geometry *layers; /* [layer_count] */
    const char *model;                  /* weights, revision, adapters; NULL = unknown: then there is no
                                           fingerprint */
} kvant_geometry;

/* ---- Pipelines ----------------------------------------------------------------------------------------- */

/* What an INI file says (docs/pipelines.md): codecs by name with parameters, and which layer and side uses
 * which. */
typedef struct kvant_pipeline kvant_pipeline;

KVANT_API kvant_status kvant_pipeline_load(const char *file, kvant_pipeline **pipeline, kvant_diag *diag);

/* The same from memory. `name` stands for the file in messages; relative artifact paths are relative to
 * `directory` (NULL = an error where one occurs). */
KVANT_API kvant_status kvant_pipeline_parse(const char *text, size_t size, const char *name,
                                            const char *directory, kvant_pipeline **pipeline,
                                            kvant_diag *diag);

/* One codec with its defaults on both sides of every layer; a side that the codec does not serve stays
 * raw. */
KVANT_API kvant_status kvant_pipeline_of_codec(const char *codec, kvant_pipeline **pipeline,
                                               kvant_diag *diag);

KVANT_API void kvant_pipeline_free(kvant_pipeline *pipeline);

/* A pipeline applied to a geometry: one row per layer and side, checked and planned. Self-contained: the
 * pipeline and the geometry may go. */
typedef struct kvant_plan kvant_plan;

KVANT_API kvant_status kvant_pipeline_resolve(const kvant_pipeline *pipeline, const kvant_geometry *geometry,
                                              kvant_plan **plan, kvant_diag *diag);
KVANT_API void kvant_plan_free(kvant_plan *plan);

enum { KVANT_ON_NONFINITE_ERROR = 0, KVANT_ON_NONFINITE_SATURATE = 1 };

typedef struct kvant_plan_info {
    uint32_t struct_size;
    uint32_t block_tokens;
    uint32_t sinks;
    uint32_t recent;
    uint32_t key_center;   /* 1 = the artifact's channel means are subtracted from keys that are encoded */
    uint32_t on_nonfinite; /* KVANT_ON_NONFINITE_* */
    const char *name;
    const char *artifact_digest; /* SHA-256 in hex, "" = no artifact */
    const kvant_geometry *geometry;
} kvant_plan_info;

/* Pointers live as long as the plan. The caller sets info->struct_size. */
KVANT_API kvant_status kvant_plan_describe(const kvant_plan *plan, kvant_plan_info *info);

typedef struct kvant_row {
    uint32_t struct_size;
    uint32_t replaced;  /* 1 = on_unsupported put another codec here; `reason` says why the asked one could
                           not serve */
    const char *codec;  /* the name in the INI: of a [codec NAME] section or of a plugin */
    const char *reason; /* "" unless replaced */
    const kvant_plugin *plugin;
    const kvant_setup *setup;   /* as the plugin got it */
    const kvant_layout *layout; /* as the plugin answered */
} kvant_row;

KVANT_API kvant_status kvant_plan_row(const kvant_plan *plan, uint32_t layer, uint32_t side, kvant_row *row);

/* The value of parameter `index` of a row as canonical text ("32", "f16", "yes"), as fingerprint and reports
 * have it. Returns the length without NUL, like snprintf; 0 if there is no such parameter. */
KVANT_API size_t kvant_row_value(const kvant_row *row, uint32_t index, char *text, size_t capacity);

/* SHA-256 over everything that changes the meaning of encoded bytes (docs/pipelines.md, "Fingerprint").
 * KVANT_ERROR_MISSING if the geometry names no model. */
KVANT_API kvant_status kvant_plan_fingerprint(const kvant_plan *plan, uint8_t digest[32], kvant_diag *diag);

/* The canonical text that the fingerprint hashes. The string lives as long as the plan. */
KVANT_API kvant_status kvant_plan_canonical(const kvant_plan *plan, const char **text, kvant_diag *diag);

/* ---- Codec floor --------------------------------------------------------------------------------------- */

/* One row of a plan, opened. Keys and values go in and come out as the geometry says (dtype, side of RoPE):
 * the codec floor turns keys, subtracts and adds the key means, and applies the rule for numbers that are not
 * finite. Rows at positions below the pipeline's `sinks` do not enter the extent: the first row after them
 * stands in for them, and the caller keeps them raw and puts them over what the block decodes to. Immutable:
 * any number of threads may encode and decode at once, each with scratch of its own. */
typedef struct kvant_codec kvant_codec;

KVANT_API kvant_status kvant_codec_open(const kvant_plan *plan, uint32_t layer, uint32_t side,
                                        kvant_codec **codec, kvant_diag *diag);
KVANT_API void kvant_codec_close(kvant_codec *codec);

/* The row it was opened for; lives as long as the codec. */
KVANT_API const kvant_row *kvant_codec_row(const kvant_codec *codec);

/* Bytes of an extent at most, and bytes of scratch (aligned to 64) for one encode or decode. */
KVANT_API size_t kvant_codec_extent_max(const kvant_codec *codec);
KVANT_API size_t kvant_codec_scratch_bytes(const kvant_codec *codec);

/* The smallest valid extent size >= size, or 0 if there is none. */
KVANT_API size_t kvant_codec_extent_size(const kvant_codec *codec, size_t size);

typedef struct kvant_encode_report {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t size;      /* bytes of the extent that were used */
    uint64_t saturated; /* metadata or elements that left the format's range */
    uint64_t replaced;  /* elements that were not finite and were replaced (on_nonfinite = saturate): NaN by
                           0, infinities by the largest number of the dtype */
} kvant_encode_report;

/* Encodes one block. rows: [block_tokens, kv_heads, head_dim] of the geometry's dtype, consecutive tokens of
 * which the first has `first_position`. tags: [block_tokens], NULL = all zero. extent: aligned to
 * layout->alignment, `capacity` >= kvant_codec_extent_max. Errors: ARGUMENT, DTYPE, CAPACITY, and NOT_FINITE,
 * which names token, head and channel; the extent is then unspecified. */
KVANT_API kvant_status kvant_codec_encode(const kvant_codec *codec, const kvant_view *rows,
                                          uint64_t first_position, const uint8_t *tags, void *extent,
                                          size_t capacity, void *scratch, kvant_encode_report *report,
                                          kvant_diag *diag);

typedef struct kvant_range {
    uint32_t struct_size;
    uint32_t first_token;
    uint32_t first_head;
    uint32_t reserved;
} kvant_range;

/* Decodes rows->tokens tokens and rows->heads heads from range->first_* on (NULL = from 0) into rows, of any
 * of F32, F16, BF16. `size` is what encode reported. An extent whose bytes are wrong gives wrong numbers,
 * never a crash; checksums are the store's. */
KVANT_API kvant_status kvant_codec_decode(const kvant_codec *codec, const void *extent, size_t size,
                                          uint64_t first_position, const kvant_range *range,
                                          const kvant_mutable_view *rows, void *scratch, kvant_diag *diag);

/* Extensions of the codec's plugin work on its state (kvant.inspect/1, kvant.attend/1). */
KVANT_API const void *kvant_codec_state(const kvant_codec *codec);

/* ---- Calibration --------------------------------------------------------------------------------------- */

/* Learns the artifact of a pipeline from keys, values and queries of real texts: what its codecs cannot be
 * opened without (codebooks, thresholds, scales, widths per tag), and the means of keys where key_center =
 * artifact. docs/calibration.md says what the file holds and what must match when it is used.
 *
 *     kvant_dump_source text = {.struct_size = sizeof text, .name = "prose.safetensors"};
 *     kvant_calibration *learned = NULL;
 *     if (kvant_calibration_run(pipeline, &text, 1, NULL, &learned, &diag) ||
 *         kvant_calibration_write(learned, "balanced.safetensors", &diag))
 *         die(diag.message);
 *     kvant_calibration_free(learned);
 *
 * The artifact that the pipeline names need not exist; it is neither read nor written unless it is the file
 * that kvant_calibration_write is given. Same pipeline and same texts in the same order: same bytes. */
typedef struct kvant_calibration kvant_calibration;

/* One text: a dump (docs/dump-format.md), in a file or in memory. An array of these is walked by its first
 * element's struct_size. */
typedef struct kvant_dump_source {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const char *name;  /* the file; with bytes: what stands for it in messages */
    const void *bytes; /* [size], unchanged during the call; NULL = the file is read */
    uint64_t size;
} kvant_dump_source;

typedef struct kvant_calibration_options {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    /* NULL = none. Called in the caller's thread before each layer of each pass over the texts; passes count
     * from 1, and how many there will be nobody knows. */
    void (*progress)(void *context, uint32_t pass, uint32_t layer, uint32_t layers);
    void *context;
} kvant_calibration_options;

/* Reads the texts layer by layer, as often as a codec asks, and does not hold them in memory. What was
 * learned is loaded back through the pipeline, and every codec opened with it, before this succeeds. options:
 * NULL = none. Errors, each with the file or the codec: UNSUPPORTED (nothing is to be learned, or a codec
 * needs what it does not know how to learn), MISMATCH (texts of different geometry or model), MISSING (a
 * tensor, or too few tokens), NOT_FINITE (by tensor, token, head and channel), VALUE (a tensor of zeros),
 * PLUGIN_BROKEN, and what a codec says. */
KVANT_API kvant_status kvant_calibration_run(const kvant_pipeline *pipeline, const kvant_dump_source *texts,
                                             uint32_t text_count, const kvant_calibration_options *options,
                                             kvant_calibration **calibration, kvant_diag *diag);
KVANT_API void kvant_calibration_free(kvant_calibration *calibration);

typedef struct kvant_calibration_info {
    uint32_t struct_size;
    uint32_t text_count;
    uint64_t tokens;          /* of all texts, without sinks: what was learned from */
    uint32_t tensor_count;    /* of the artifact */
    uint32_t centered_layers; /* layers whose key means were learned */
    uint32_t passes;          /* over the texts */
    uint32_t reserved;
    const void *bytes;  /* the artifact file */
    uint64_t size;      /* of it */
    const char *digest; /* its SHA-256 in hex */
} kvant_calibration_info;

/* Pointers live as long as the calibration. The caller sets info->struct_size. */
KVANT_API kvant_status kvant_calibration_describe(const kvant_calibration *calibration,
                                                  kvant_calibration_info *info);

/* Writes the artifact under a temporary name in the same directory, then renames it; a file of that name is
 * replaced. */
KVANT_API kvant_status kvant_calibration_write(const kvant_calibration *calibration, const char *file,
                                               kvant_diag *diag);

#ifdef __cplusplus
}
#endif

#endif
