/* A parsed pipeline: what the INI text says, checked as far as it can be without a geometry. The grammar
 * is in docs/pipelines.md. */
#ifndef KVANT_PIPELINE_PIPELINE_H
#define KVANT_PIPELINE_PIPELINE_H

#include <kvant/kvant.h>

#include "pipeline/arena.h"
#include "pipeline/ini.h"

#include <stdbool.h>

enum { KVANT_BLOCK_TOKENS_MAX = 65536, KVANT_LAYERS_MAX = 4096 };

/* A plugin with the values of its parameters: a [codec NAME] section, or a plugin named alone. */
typedef struct kvant_codec_spec {
    const char *name; /* as [layers] says it */
    const kvant_plugin *plugin;
    kvant_value *values; /* [param_count] */
    int32_t *lines;      /* [param_count]: the line of each value, 0 = the default */
    int32_t line;        /* of the section; 0 = none */
    bool used;           /* some [layers] section or on_unsupported names it */
} kvant_codec_spec;

/* Layers first to last, both included; negative numbers count from the end, -1 is the last. */
typedef struct kvant_layer_range {
    int32_t first;
    int32_t last;
} kvant_layer_range;

enum { KVANT_SPEC_NONE = -1 };

/* One [layers] section. */
typedef struct kvant_layer_rule {
    const kvant_layer_range *ranges; /* in the order of the text */
    uint32_t range_count;            /* 0 = every layer */
    int32_t line;
    int32_t spec[2];      /* per side: an index of pipeline.specs, or KVANT_SPEC_NONE */
    int32_t spec_line[2]; /* of `key =` and `value =` */
} kvant_layer_rule;

struct kvant_pipeline {
    kvant_arena arena;
    kvant_ini *ini;   /* NULL = of a codec's name */
    const char *file; /* as messages name it; "" = none */
    const char *name;
    const char *artifact; /* path, NULL = none */
    uint32_t block_tokens;
    uint32_t sinks;
    uint32_t recent;
    uint32_t key_center;
    uint32_t on_nonfinite;
    int32_t replacement;       /* the spec of on_unsupported = use NAME, or KVANT_SPEC_NONE = error */
    int32_t block_tokens_line; /* 0 = the default */
    int32_t key_center_line;
    kvant_codec_spec *specs;
    uint32_t spec_count;
    kvant_layer_rule *rules;
    uint32_t rule_count;
};

/* What a command takes as PIPELINE: a codec's name ([a-z][a-z0-9_]*), else a file. */
kvant_status kvant_pipeline_open(const char *word, kvant_pipeline **pipeline, kvant_diag *diag);

/* Fills the diag with the pipeline's file and a line of it. */
__attribute__((format(printf, 6, 7))) kvant_status kvant_pipeline_fail(const kvant_pipeline *pipeline,
                                                                       kvant_diag *diag, kvant_status status,
                                                                       int32_t line, const char *key,
                                                                       const char *format, ...);

/* The parts of the reader, in the order in which kvant_pipeline_parse calls them. `directory` is that of
 * relative artifact paths, or NULL. */
kvant_status kvant_pipeline_read_head(kvant_pipeline *pipeline, const char *directory, kvant_diag *diag);
kvant_status kvant_pipeline_read_codecs(kvant_pipeline *pipeline, kvant_diag *diag);
kvant_status kvant_pipeline_read_layers(kvant_pipeline *pipeline, kvant_diag *diag);

/* The spec that a word of the text means: a [codec] section, else a plugin with its defaults. `line` and
 * `key` say where the word stands. */
kvant_status kvant_pipeline_find_spec(kvant_pipeline *pipeline, const char *word, int32_t line,
                                      const char *key, int32_t *spec, kvant_diag *diag);

/* "0-3, 7, -2, -1" -> ranges; `line` is that of the section. */
kvant_status kvant_layer_ranges_parse(kvant_pipeline *pipeline, const char *text, int32_t line,
                                      const kvant_layer_range **ranges, uint32_t *count, kvant_diag *diag);

/* A rule's range on a model of `layers` layers: from and to are set, from <= to < layers. */
kvant_status kvant_layer_range_resolve(const kvant_pipeline *pipeline, const kvant_layer_rule *rule,
                                       uint32_t index, uint32_t layers, uint32_t *from, uint32_t *to,
                                       kvant_diag *diag);

#endif
