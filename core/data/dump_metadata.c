/* Metadata strings of a dump: numbers against shapes, RoPE, windows, the scale of logits. */
#include "dump_internal.h"
#include "file.h"
#include "numbers.h"

#include <kvant/kit/rope.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct context {
    kvant_dump *dump;
    const dump_source *source;
    kvant_diag *diag;
} context;

static kvant_status bad_value(const context *c, const char *key, const char *rule) {
    const char *value = kvant_dump_metadata(c->source, key);
    kvant_status status =
        kvant_file_fail(c->diag, KVANT_ERROR_VALUE, c->dump->file, "metadata \"%s\": \"%.80s\" is not %s",
                        key, value != NULL ? value : "", rule);
    if (c->diag != NULL && c->diag->struct_size >= sizeof *c->diag) strcpy(c->diag->key, key);
    return status;
}

/* ---- Numbers ------------------------------------------------------------------------------------------- */

/* One number, or one per layer; empty where the key is not there. */
static kvant_status read_numbers(const context *c, const char *key, const char *rule, bool whole, double low,
                                 double high, kvant_numbers *list) {
    *list = (kvant_numbers){0};
    const char *text = kvant_dump_metadata(c->source, key);
    if (text == NULL) return KVANT_OK;
    kvant_status status = kvant_numbers_read(text, whole, low, high, list);
    if (status == KVANT_ERROR_MEMORY) return kvant_file_fail(c->diag, status, c->dump->file, "out of memory");
    if (status == KVANT_OK && (list->count == 1 || list->count == c->dump->geometry.layer_count))
        return KVANT_OK;
    kvant_numbers_free(list);
    return bad_value(c, key, rule);
}

/* A single number; *value is left alone where the key is not there. */
static kvant_status read_number(const context *c, const char *key, const char *rule, bool whole, double low,
                                double high, double *value) {
    kvant_numbers list;
    kvant_status status = read_numbers(c, key, rule, whole, low, high, &list);
    if (status == KVANT_OK && list.count > 1) status = bad_value(c, key, rule);
    if (status == KVANT_OK) *value = kvant_numbers_at(&list, 0, *value);
    kvant_numbers_free(&list);
    return status;
}

/* ---- Counts that the shapes say too -------------------------------------------------------------------- */

enum { COUNT_MAX = 0x7fffffff };

typedef uint32_t count_of_layer(const context *c, uint32_t layer);

static uint32_t layer_count_of(const context *c, uint32_t layer) {
    (void)layer;
    return c->dump->geometry.layer_count;
}
static uint32_t kv_heads_of(const context *c, uint32_t layer) {
    return c->dump->layers[layer].kv_heads;
}
static uint32_t q_heads_of(const context *c, uint32_t layer) {
    return c->dump->layers[layer].q_heads;
}
static uint32_t head_dim_of(const context *c, uint32_t layer) {
    return c->dump->layers[layer].key_dim;
}
static uint32_t value_dim_of(const context *c, uint32_t layer) {
    return c->dump->layers[layer].value_dim;
}

static kvant_status check_count(const context *c, const char *key, count_of_layer *shape) {
    kvant_numbers list;
    kvant_status status =
        read_numbers(c, key, "a whole number > 0 (or one per layer)", true, 1, COUNT_MAX, &list);
    for (uint32_t l = 0; l < c->dump->geometry.layer_count && list.count > 0 && status == KVANT_OK; l++)
        if (kvant_numbers_at(&list, l, 0) != shape(c, l))
            status = kvant_file_fail(c->diag, KVANT_ERROR_MISMATCH, c->dump->file,
                                     "metadata \"%s\" says %.0f, the tensors of layer %u say %u", key,
                                     kvant_numbers_at(&list, l, 0), l, shape(c, l));
    kvant_numbers_free(&list);
    return status;
}

static kvant_status check_counts(const context *c) {
    kvant_status status = check_count(c, "layers", layer_count_of);
    if (status == KVANT_OK) status = check_count(c, "kv_heads", kv_heads_of);
    /* Of a side that is not there the shapes say nothing. */
    if (status == KVANT_OK && c->dump->info.has_keys) status = check_count(c, "head_dim", head_dim_of);
    if (status == KVANT_OK && c->dump->info.has_values) status = check_count(c, "value_dim", value_dim_of);
    if (status == KVANT_OK && c->dump->info.has_queries) status = check_count(c, "q_heads", q_heads_of);
    return status;
}

/* Without queries only the metadata know how many query heads there are. */
static kvant_status read_q_heads(const context *c) {
    if (c->dump->info.has_queries) return KVANT_OK;
    kvant_numbers list;
    kvant_status status =
        read_numbers(c, "q_heads", "a whole number > 0 (or one per layer)", true, 1, COUNT_MAX, &list);
    for (uint32_t l = 0; l < c->dump->geometry.layer_count && list.count > 0 && status == KVANT_OK; l++) {
        kvant_layer_geometry *layer = &c->dump->layers[l];
        layer->q_heads = (uint32_t)kvant_numbers_at(&list, l, 0);
        if (layer->q_heads % layer->kv_heads != 0)
            status =
                kvant_file_fail(c->diag, KVANT_ERROR_GEOMETRY, c->dump->file,
                                "metadata \"q_heads\": %u is not a multiple of the %u kv heads of layer %u",
                                layer->q_heads, layer->kv_heads, l);
    }
    kvant_numbers_free(&list);
    return status;
}

/* ---- RoPE ---------------------------------------------------------------------------------------------- */

static kvant_status read_rope_style(const context *c, uint32_t *style) {
    const char *text = kvant_dump_metadata(c->source, "rope_style");
    *style = KVANT_ROPE_NONE;
    if (text == NULL) {
        const char *other = kvant_dump_metadata(c->source, "rope_theta") != NULL   ? "rope_theta"
                            : kvant_dump_metadata(c->source, "rotary_dim") != NULL ? "rotary_dim"
                                                                                   : NULL;
        if (other == NULL) return KVANT_OK;
        return kvant_file_fail(c->diag, KVANT_ERROR_CONFLICT, c->dump->file,
                               "metadata has \"%s\" and not \"rope_style\" (neox, gptj or none)", other);
    }
    if (strcmp(text, "none") == 0) return KVANT_OK;
    if (strcmp(text, "neox") != 0 && strcmp(text, "gptj") != 0)
        return bad_value(c, "rope_style", "neox, gptj or none");
    *style = strcmp(text, "neox") == 0 ? KVANT_ROPE_NEOX : KVANT_ROPE_GPTJ;
    if (kvant_dump_metadata(c->source, "rope_theta") != NULL) return KVANT_OK;
    return kvant_file_fail(c->diag, KVANT_ERROR_MISSING, c->dump->file,
                           "metadata has \"rope_style\" and not \"rope_theta\"");
}

static kvant_status read_key_rope(const context *c, uint32_t style) {
    const char *text = kvant_dump_metadata(c->source, "key_rope");
    c->dump->geometry.keys = KVANT_KEYS_AFTER_ROPE;
    if (text == NULL || strcmp(text, "post") == 0) return KVANT_OK;
    if (strcmp(text, "pre") != 0) return bad_value(c, "key_rope", "pre or post");
    if (style == KVANT_ROPE_NONE && kvant_dump_metadata(c->source, "rope_style") == NULL)
        return kvant_file_fail(
            c->diag, KVANT_ERROR_CONFLICT, c->dump->file,
            "metadata \"key_rope\" is pre, and \"rope_style\" and \"rope_theta\" do not say how keys turn");
    c->dump->geometry.keys = KVANT_KEYS_BEFORE_ROPE;
    return KVANT_OK;
}

static kvant_status set_rope(const context *c, uint32_t l, uint32_t style, double theta, uint32_t rotary_dim,
                             size_t frequency_stride) {
    kvant_dump *dump = c->dump;
    if (rotary_dim % 2 != 0 || rotary_dim > dump->layers[l].key_dim)
        return kvant_file_fail(c->diag, KVANT_ERROR_VALUE, dump->file,
                               "metadata \"rotary_dim\": %u is odd or above the head_dim %u of layer %u",
                               rotary_dim, dump->layers[l].key_dim, l);
    double *frequency = dump->frequencies + l * frequency_stride;
    kvant_rope_inverse_frequency(theta, rotary_dim, frequency);
    for (uint32_t i = 0; i < rotary_dim / 2; i++)
        if (!isfinite(frequency[i])) return bad_value(c, "rope_theta", "a base whose powers are finite");
    dump->ropes[l] = (kvant_rope){.struct_size = sizeof dump->ropes[l],
                                  .style = style,
                                  .rotary_dim = rotary_dim,
                                  .magnitude = 1,
                                  .inverse_frequency = frequency};
    dump->layers[l].rope = &dump->ropes[l];
    return KVANT_OK;
}

static kvant_status read_rope(const context *c) {
    kvant_dump *dump = c->dump;
    uint32_t style, layers = dump->geometry.layer_count, widest = 0;
    kvant_numbers theta = {0}, rotary = {0};
    kvant_status status = read_rope_style(c, &style);
    if (status == KVANT_OK) status = read_key_rope(c, style);
    /* The dims of keys are not known without keys. */
    if (status != KVANT_OK || style == KVANT_ROPE_NONE || !dump->info.has_keys) return status;
    status =
        read_numbers(c, "rope_theta", "a number from 1 to 1e15 (or one per layer)", false, 1, 1e15, &theta);
    if (status == KVANT_OK)
        status = read_numbers(c, "rotary_dim", "an even number > 0 (or one per layer)", true, 2, COUNT_MAX,
                              &rotary);
    if (status != KVANT_OK) goto out;
    for (uint32_t l = 0; l < layers; l++)
        if (dump->layers[l].key_dim > widest) widest = dump->layers[l].key_dim;
    size_t stride = (size_t)widest / 2 + 1;
    if (stride > DUMP_FREQUENCIES_MAX / layers) {
        status = kvant_file_fail(c->diag, KVANT_ERROR_GEOMETRY, dump->file,
                                 "%u layers with keys of %u channels are too many", layers, widest);
        goto out;
    }
    dump->ropes = calloc(layers, sizeof *dump->ropes);
    dump->frequencies = calloc(layers, stride * sizeof *dump->frequencies);
    if (dump->ropes == NULL || dump->frequencies == NULL) {
        status = kvant_file_fail(c->diag, KVANT_ERROR_MEMORY, dump->file, "out of memory");
        goto out;
    }
    for (uint32_t l = 0; l < layers && status == KVANT_OK; l++)
        status = set_rope(c, l, style, kvant_numbers_at(&theta, l, 0),
                          (uint32_t)kvant_numbers_at(&rotary, l, dump->layers[l].key_dim), stride);
out:
    kvant_numbers_free(&theta);
    kvant_numbers_free(&rotary);
    return status;
}

/* ---- The rest ------------------------------------------------------------------------------------------ */

static kvant_status read_windows(const context *c) {
    kvant_numbers list;
    kvant_status status =
        read_numbers(c, "window", "a whole number >= 0 (or one per layer)", true, 0, COUNT_MAX, &list);
    for (uint32_t l = 0; l < c->dump->geometry.layer_count && status == KVANT_OK; l++)
        c->dump->layers[l].window = (uint32_t)kvant_numbers_at(&list, l, 0);
    kvant_numbers_free(&list);
    return status;
}

static kvant_status read_scale(const context *c) {
    kvant_dump *dump = c->dump;
    dump->info.scale = 1 / sqrt((double)dump->layers[0].key_dim);
    bool alike = true;
    for (uint32_t l = 1; l < dump->geometry.layer_count; l++)
        alike = alike && dump->layers[l].key_dim == dump->layers[0].key_dim;
    if (!alike && dump->info.has_queries && kvant_dump_metadata(c->source, "scale") == NULL)
        return kvant_file_fail(
            c->diag, KVANT_ERROR_MISSING, dump->file,
            "layers have different head dims: metadata \"scale\" must say the scale of logits");
    return read_number(c, "scale", "a number > 0", false, 1e-30, 1e30, &dump->info.scale);
}

/* Row 0 of the queries has this position; where it is not said, the queries are those of the last tokens. */
static kvant_status read_query_start(const context *c) {
    kvant_dump_info *info = &c->dump->info;
    if (!info->has_queries) return KVANT_OK;
    if (info->query_tokens > info->tokens)
        return kvant_file_fail(c->diag, KVANT_ERROR_GEOMETRY, c->dump->file, "%u queries and only %u tokens",
                               info->query_tokens, info->tokens);
    double start = info->tokens - info->query_tokens;
    kvant_status status = read_number(c, "query_start", "a whole number >= 0", true, 0, COUNT_MAX, &start);
    if (status != KVANT_OK) return status;
    info->query_start = (uint64_t)start;
    if (info->query_start + info->query_tokens <= info->tokens) return KVANT_OK;
    return kvant_file_fail(c->diag, KVANT_ERROR_GEOMETRY, c->dump->file,
                           "metadata \"query_start\": queries of positions %llu to %llu, and only %u tokens",
                           (unsigned long long)info->query_start,
                           (unsigned long long)info->query_start + info->query_tokens - 1, info->tokens);
}

kvant_status kvant_dump_read_metadata(kvant_dump *dump, const dump_source *source, kvant_diag *diag) {
    const context c = {dump, source, diag};
    const char *model = kvant_dump_metadata(source, "model");
    dump->geometry.model = model != NULL && model[0] != '\0' ? model : NULL;
    kvant_status status = check_counts(&c);
    if (status == KVANT_OK) status = read_q_heads(&c);
    if (status == KVANT_OK) status = read_rope(&c);
    if (status == KVANT_OK) status = read_windows(&c);
    if (status == KVANT_OK) status = read_scale(&c);
    if (status == KVANT_OK) status = read_query_start(&c);
    return status;
}
