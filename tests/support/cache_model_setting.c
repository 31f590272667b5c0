/* Pipelines and geometries of the model check: every rule of the cache in one of them at least. See
 * cache_model.h. */
#include "support/cache_model.h"

#include <kvant/kit/rope.h>

#include <stdio.h>
#include <string.h>

#define LAYERS(key, value) "[layers]\nkey = " key "\nvalue = " value "\n"

static const char raw_text[] = "[pipeline]\nblock_tokens = 16\n" LAYERS("raw", "raw");

static const char uniform_text[] =
    "[pipeline]\nblock_tokens = 16\nsinks = 3\nrecent = 20\n"
    "[codec u]\nplugin = uniform\nformat = int4\nsymmetry = asymmetric\n" LAYERS("u", "u");

static const char kivi_text[] = "[pipeline]\nblock_tokens = 32\nrecent = 64\n" LAYERS("kivi", "kivi");

/* Attention on codes, of both sides. */
static const char hack_text[] = "[pipeline]\nblock_tokens = 32\nsinks = 3\nrecent = 1\n"
                                "[codec h]\nplugin = hack\npartition = 16\n" LAYERS("h", "h");

static const char turboquant_text[] = "[pipeline]\nblock_tokens = 16\nrecent = 20\n"
                                      "[codec t]\nplugin = turboquant\nbits = 3\n" LAYERS("t", "kivi");

/* Sizes by tags. */
static const char triaxial_text[] = "[pipeline]\nblock_tokens = 64\nsinks = 3\nrecent = 20\n"
                                    "[codec t]\nplugin = triaxial\nspace = roles\ntags = t\n"
                                    "[tags t]\ninst = 4\ntool_call = 4\ndefault = 2\n" LAYERS("t", "t");

/* Keys before RoPE, sizes by outliers. */
static const char kvquant_text[] =
    "[pipeline]\nblock_tokens = 32\nrecent = 20\n"
    "[codec k]\nplugin = kvquant\ncodebook = nf\nthresholds = dynamic\nfraction = 0.05\n" LAYERS("k", "k");

static const char window_text[] = "[pipeline]\nblock_tokens = 16\nsinks = 3\nrecent = 20\n"
                                  "[codec u]\nplugin = uniform\nformat = int8\n" LAYERS("u", "raw");

static const char narrow_text[] = "[pipeline]\nblock_tokens = 16\n"
                                  "[codec h]\nplugin = hack\npartition = 16\nbits = 4\n" LAYERS("h", "h");

static const char saturate_text[] =
    "[pipeline]\nblock_tokens = 16\nsinks = 3\nrecent = 1\non_nonfinite = saturate\n" LAYERS("uniform",
                                                                                             "kivi");

const model_setting model_settings[] = {
    {"raw", raw_text, KVANT_DTYPE_F32, {16, 16}, {0, 0}, false, 0, 40},
    {"uniform", uniform_text, KVANT_DTYPE_F16, {8, 16}, {0, 0}, false, 3, 50},
    {"kivi", kivi_text, KVANT_DTYPE_BF16, {16, 16}, {0, 0}, false, 0, 24},
    {"hack", hack_text, KVANT_DTYPE_F16, {16, 16}, {0, 0}, false, 3, 30},
    {"turboquant", turboquant_text, KVANT_DTYPE_F16, {16, 8}, {0, 0}, false, 0, 200},
    {"triaxial", triaxial_text, KVANT_DTYPE_F16, {16, 16}, {0, 0}, false, 2, 16},
    {"kvquant", kvquant_text, KVANT_DTYPE_F32, {16, 16}, {0, 0}, true, 3, 24},
    {"window", window_text, KVANT_DTYPE_F16, {16, 8}, {0, 48}, false, 0, 40},
    {"narrow", narrow_text, KVANT_DTYPE_F32, {16, 16}, {7, 40}, false, 2, 40},
    {"saturate", saturate_text, KVANT_DTYPE_F16, {16, 16}, {0, 0}, false, 3, 40},
};
const uint32_t model_setting_count = sizeof model_settings / sizeof model_settings[0];

kvant_plan *model_setting_plan(const model_setting *setting) {
    double frequency[MODEL_KEY_DIM / 2];
    kvant_rope_inverse_frequency(10000, MODEL_KEY_DIM, frequency);
    kvant_rope rope = {.struct_size = sizeof rope,
                       .style = setting->turns ? KVANT_ROPE_NEOX : KVANT_ROPE_NONE,
                       .rotary_dim = MODEL_KEY_DIM,
                       .magnitude = 1,
                       .inverse_frequency = frequency};
    kvant_layer_geometry layers[MODEL_LAYERS];
    for (uint32_t i = 0; i < MODEL_LAYERS; i++)
        layers[i] = (kvant_layer_geometry){.struct_size = sizeof layers[i],
                                           .kv_heads = MODEL_HEADS,
                                           .q_heads = MODEL_Q_HEADS,
                                           .total_kv_heads = MODEL_HEADS,
                                           .key_dim = MODEL_KEY_DIM,
                                           .value_dim = setting->value_dim[i],
                                           .window = setting->window[i],
                                           .rope = &rope};
    kvant_geometry geometry = {.struct_size = sizeof geometry,
                               .layer_count = MODEL_LAYERS,
                               .dtype = setting->dtype,
                               .layers = layers,
                               .model = "test/model@1"};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    if (kvant_pipeline_parse(setting->text, strlen(setting->text), setting->name, NULL, &pipeline, &diag) !=
            KVANT_OK ||
        kvant_pipeline_resolve(pipeline, &geometry, &plan, &diag) != KVANT_OK)
        MODEL_FAIL("setting %s: %s", setting->name, diag.message);
    kvant_pipeline_free(pipeline);
    return plan;
}
