/* kvant/kvant.h: the application API of kvant, a library for quantizing the KV cache of language models.
 *
 * Three floors, each usable without the one above: the codec floor (encode and decode blocks in memory of
 * your own), the attention floor (built on it) and the cache floor (cache.h, built on both).
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

/* ---- Attention floor ----------------------------------------------------------------------------------- */

/* Attention of query rows over encoded blocks and raw rows, wherever they lie: for an engine that keeps its
 * own pages. Query row r of query head h sees the tokens of one range:
 *
 *     output = sum_t p_t v_t,    p = softmax_t(cap(scale * q.k_t)),    cap(x) = soft_cap * tanh(x / soft_cap)
 *
 * with the keys and values of kv head h / (q_heads / kv_heads). Blocks are attended on their codes where the
 * codec offers that (kvant.attend/1), keys and values each for themselves, any codec beside any other; else
 * they are decoded a few tokens at a time. The host turns keys that are before RoPE, caller's or codec's, and
 * adds what centring took from logits: they are those of the keys that kvant_codec_decode gives.
 *
 *     kvant_attention *attention = NULL;
 *     if (kvant_attention_open(plan, layer, &attention, &diag)) die(diag.message);
 *     kvant_codec_encode(kvant_attention_codec(attention, KVANT_SIDE_KEY), ...);            // as blocks fill
 *     kvant_token_range_causal(position, rows, window, ranges);                             // each step
 *     kvant_attention_run(attention, &sequence, 1, &options, scratch, size, &diag);
 *
 * Immutable: any number of threads may run one at once, each call with scratch of its own.
 *
 * Same numbers: what a row gets depends on nothing but its query and the references and runs that it sees
 * something of: not on threads, other rows or other sequences of the call, to the bit. Where both sides are
 * decoded it does not depend on the instruction set either. The host's own arithmetic is float, without fused
 * multiply-adds and libm: outputs differ from those of the decoded rows in double precision by at most 2e-6 *
 * (1 + m) of the sum of p_t ||v_t||, log-sum-exps by at most 5e-7 * (1 + m), where m is the largest sum over
 * channels of |scale * q k|. A codec on whose codes it runs adds layout.attend_tolerance, as plugin.h says.
 */
typedef struct kvant_attention kvant_attention;

/* Opens both codecs of a layer. Errors as kvant_codec_open. */
KVANT_API kvant_status kvant_attention_open(const kvant_plan *plan, uint32_t layer,
                                            kvant_attention **attention, kvant_diag *diag);
KVANT_API void kvant_attention_close(kvant_attention *attention);

/* The codec of a side, to encode and decode with; lives as long as the attention. */
KVANT_API const kvant_codec *kvant_attention_codec(const kvant_attention *attention, uint32_t side);

typedef struct kvant_attention_info {
    uint32_t struct_size;
    uint32_t keys_on_codes;   /* 1 = scored on codes, 0 = decoded */
    uint32_t values_on_codes; /* 1 = mixed on codes, 0 = decoded */
    uint32_t isa;             /* KVANT_ISA_*: of the host's own kernels; a codec's is layout.isa */
} kvant_attention_info;

/* The caller sets info->struct_size. */
KVANT_API kvant_status kvant_attention_describe(const kvant_attention *attention, kvant_attention_info *info);

/* Where one block of a sequence lies, and which of its tokens live: the first tokens are not there where they
 * are sinks, the last where a sequence was cut, and a block out of which tokens were dropped is referred to
 * twice. Bytes of a reference that no row sees, and rows of tokens that no row sees, are not read. A
 * reference without live tokens is skipped, whatever else it says. Frozen. */
typedef struct kvant_reference {
    const void *key; /* the extents, each aligned to its layout.alignment */
    const void *value;
    uint64_t key_size; /* as encode said */
    uint64_t value_size;
    uint64_t first_position; /* of token 0 of the block, as it was encoded */
    uint32_t live_first;     /* first live token of the block; none may be a sink of the plan */
    uint32_t live_count;
} kvant_reference;

/* Consecutive tokens whose rows are raw: sinks, those not yet encoded, those of the step itself. Frozen. */
typedef struct kvant_raw_run {
    const kvant_view *keys;   /* [tokens, kv_heads, key_dim], of the geometry's dtype and side of RoPE */
    const kvant_view *values; /* [tokens, kv_heads, value_dim], of the geometry's dtype */
    uint64_t first_position;  /* of token 0 */
} kvant_raw_run;

/* A query row sees the tokens of references and runs whose positions are in [from, to). Frozen. */
typedef struct kvant_token_range {
    uint64_t from;
    uint64_t to;
} kvant_token_range;

/* The ranges of `rows` query rows at consecutive positions: all tokens up to and including its own, or the
 * newest `window` of them (0 = all). */
KVANT_API void kvant_token_range_causal(uint64_t first_position, uint32_t rows, uint32_t window,
                                        kvant_token_range *ranges);

/* The part of one sequence in a call. No token may be in it twice. An array of these is walked by its first
 * element's struct_size. */
typedef struct kvant_attention_sequence {
    uint32_t struct_size;
    uint32_t reference_count;
    uint32_t run_count;
    uint32_t reserved; /* 0 */
    const kvant_reference *references;
    const kvant_raw_run *runs;
    const kvant_view *queries;         /* [rows, q_heads, key_dim], any float type; turned, scale not in */
    const kvant_token_range *ranges;   /* [rows] */
    const kvant_mutable_view *outputs; /* [rows, q_heads, value_dim], F32, F16 or BF16; where a row sees no
                                          token: 0 */
    float *log_sum_exp; /* [rows, q_heads]: ln of the sum of exp(logit); -infinity where a row sees no token.
                           NULL = not asked for. With it a caller adds other tokens, another rank's part or
                           a learned sink: weights of the parts are exp(log_sum_exp - that of all) */
} kvant_attention_sequence;

/* A loop over threads: calls body(argument, index, thread) once for every index below count, from threads of
 * the caller's with numbers below `threads`, no two at once with the same number, and returns when all are
 * done. */
typedef void kvant_loop_body(void *argument, uint32_t index, uint32_t thread);
typedef void kvant_loop(void *context, uint32_t count, uint32_t threads, kvant_loop_body *body,
                        void *argument);

typedef struct kvant_attention_options {
    uint32_t struct_size;
    uint32_t threads; /* that work on the call; 0 or 1 = the caller's alone */
    float scale;      /* of logits, usually 1 / sqrt(key_dim); not 0 */
    float soft_cap;   /* 0 = none */
    kvant_loop *loop; /* NULL = threads beyond the caller's are started for the call, and joined */
    void *loop_context;
    /* The kv heads that the call serves, with their query heads: nothing is written for others, so that
     * threads of the caller's may share a sequence. kv_heads = 0: all from the first on. */
    uint32_t first_kv_head;
    uint32_t kv_heads;
} kvant_attention_options;

/* Bytes of scratch for a call with that many threads and at most `rows` query rows for a sequence, however
 * many sequences and tokens. 0 if there is no such size. Grows with both arguments. */
KVANT_API size_t kvant_attention_scratch_bytes(const kvant_attention *attention, uint32_t threads,
                                               uint32_t rows);

/* Attends. scratch: aligned to 64, `scratch_size` bytes. Everything is checked before anything is written:
 * ARGUMENT, DTYPE and CAPACITY name sequence, reference or run, row and rule. After PLUGIN_BROKEN, or an
 * ARGUMENT that says that `loop` broke its rules, outputs are unspecified. Queries and raw rows are not
 * searched for numbers that are not finite: one makes NaN of the rows that see it. */
KVANT_API kvant_status kvant_attention_run(const kvant_attention *attention,
                                           const kvant_attention_sequence *sequences, uint32_t sequence_count,
                                           const kvant_attention_options *options, void *scratch,
                                           size_t scratch_size, kvant_diag *diag);

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

#include "stores.h"

#include "records.h"

#include "device.h"

#include "cache.h"

#endif
