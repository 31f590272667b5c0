/* See calibrate_texts.h. */
#include "calibrate/calibrate_texts.h"

#include "base/text.h"
#include "data/digest.h"
#include "pipeline/codec_rows.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIGEST_PIECE = 4 << 20 };

static const char *const side_names[3] = {"key", "value", "query"};

/* ---- Comparison ---------------------------------------------------------------------------------------- */

/* Two texts side by side: `text` is refused where it differs from `first`. */
typedef struct pair {
    const calibrate_text *first, *text;
    kvant_diag *diag;
} pair;

static const kvant_geometry *geometry_of(const calibrate_text *text) {
    return kvant_dump_geometry(text->dump);
}

static kvant_status differ(const pair *p, uint32_t layer, const char *what, uint32_t first, uint32_t text) {
    if (first == text) return KVANT_OK;
    return kvant_file_fail(
        p->diag, KVANT_ERROR_MISMATCH, p->text->info->file,
        "layer %u has %s = %u, and in %s it has %u: texts of one geometry are learned from", layer, what,
        text, p->first->info->file, first);
}

static kvant_status differ_in_words(const pair *p, const char *what, const char *first, const char *text) {
    if (strcmp(first, text) == 0) return KVANT_OK;
    return kvant_file_fail(p->diag, KVANT_ERROR_MISMATCH, p->text->info->file,
                           "%s \"%.200s\", and %s has \"%.200s\"", what, text, p->first->info->file, first);
}

static kvant_status compare_always(const pair *p) {
    const kvant_geometry *a = geometry_of(p->first), *b = geometry_of(p->text);
    if (a->layer_count != b->layer_count)
        return kvant_file_fail(p->diag, KVANT_ERROR_MISMATCH, p->text->info->file,
                               "%u layers, and %s has %u: texts of one geometry are learned from",
                               b->layer_count, p->first->info->file, a->layer_count);
    kvant_status status =
        differ_in_words(p, "rows of type", kvant_dtype_name(a->dtype), kvant_dtype_name(b->dtype));
    for (uint32_t l = 0; l < a->layer_count && status == KVANT_OK; l++) {
        status = differ(p, l, "kv_heads", a->layers[l].kv_heads, b->layers[l].kv_heads);
        if (status == KVANT_OK) status = differ(p, l, "window", a->layers[l].window, b->layers[l].window);
    }
    return status;
}

static bool same_rope(const kvant_rope *a, const kvant_rope *b) {
    if (a == NULL || b == NULL) return a == b;
    if (a->style != b->style || a->rotary_dim != b->rotary_dim || a->magnitude != b->magnitude) return false;
    for (uint32_t i = 0; i < a->rotary_dim / 2; i++)
        if (a->inverse_frequency[i] != b->inverse_frequency[i]) return false;
    return true;
}

static kvant_status compare_keys(const pair *p) {
    const kvant_geometry *a = geometry_of(p->first), *b = geometry_of(p->text);
    static const char *const keys[2] = {"after RoPE", "before RoPE"};
    kvant_status status = differ_in_words(p, "keys", keys[a->keys], keys[b->keys]);
    for (uint32_t l = 0; l < a->layer_count && status == KVANT_OK; l++) {
        status = differ(p, l, "head_dim", a->layers[l].key_dim, b->layers[l].key_dim);
        if (status == KVANT_OK && !same_rope(a->layers[l].rope, b->layers[l].rope))
            status =
                kvant_file_fail(p->diag, KVANT_ERROR_MISMATCH, p->text->info->file,
                                "the keys of layer %u turn (rope_style, rope_theta, rotary_dim) in another "
                                "way than in %s",
                                l, p->first->info->file);
    }
    return status;
}

static kvant_status compare_values(const pair *p) {
    const kvant_geometry *a = geometry_of(p->first), *b = geometry_of(p->text);
    kvant_status status = KVANT_OK;
    for (uint32_t l = 0; l < a->layer_count && status == KVANT_OK; l++)
        status = differ(p, l, "value_dim", a->layers[l].value_dim, b->layers[l].value_dim);
    return status;
}

static kvant_status compare_queries(const pair *p) {
    const kvant_geometry *a = geometry_of(p->first), *b = geometry_of(p->text);
    kvant_status status = KVANT_OK;
    for (uint32_t l = 0; l < a->layer_count && status == KVANT_OK; l++)
        status = differ(p, l, "q_heads", a->layers[l].q_heads, b->layers[l].q_heads);
    return status;
}

static kvant_status compare_models(const pair *p) {
    return differ_in_words(p, "of the model", geometry_of(p->first)->model, geometry_of(p->text)->model);
}

/* What a dump may say or leave open; it is held against the first text that says it. */
static bool has_any(const calibrate_text *text) {
    (void)text;
    return true;
}
static bool has_keys(const calibrate_text *text) {
    return text->info->has_keys;
}
static bool has_values(const calibrate_text *text) {
    return text->info->has_values;
}
static bool has_q_heads(const calibrate_text *text) {
    return text->info->has_queries ||
           kvant_safetensors_metadata(kvant_dump_file(text->dump), "q_heads") != NULL;
}
static bool has_model(const calibrate_text *text) {
    return geometry_of(text)->model != NULL;
}

enum { PART_ANY, PART_KEYS, PART_VALUES, PART_QUERIES, PART_MODEL, PARTS };
static const struct {
    bool (*says)(const calibrate_text *text);
    kvant_status (*compare)(const pair *p);
} parts[PARTS] = {[PART_ANY] = {has_any, compare_always},
                  [PART_KEYS] = {has_keys, compare_keys},
                  [PART_VALUES] = {has_values, compare_values},
                  [PART_QUERIES] = {has_q_heads, compare_queries},
                  [PART_MODEL] = {has_model, compare_models}};

/* The first text that says each part, NULL = none. */
static kvant_status compare_all(const calibrate_texts *texts, const calibrate_text *first[PARTS],
                                kvant_diag *diag) {
    for (uint32_t i = 0; i < texts->count; i++)
        for (int part = 0; part < PARTS; part++) {
            const calibrate_text *text = &texts->items[i];
            if (!parts[part].says(text)) continue;
            if (first[part] == NULL) {
                first[part] = text;
                continue;
            }
            const pair p = {first[part], text, diag};
            kvant_status status = parts[part].compare(&p);
            if (status != KVANT_OK) return status;
        }
    return KVANT_OK;
}

/* The geometry of all, each part from the first text that says it. */
static kvant_status merge(calibrate_texts *texts, kvant_diag *diag) {
    const calibrate_text *first[PARTS] = {NULL};
    kvant_status status = compare_all(texts, first, diag);
    if (status != KVANT_OK) return status;
    texts->geometry = *geometry_of(first[PART_ANY]);
    texts->layers = calloc(texts->geometry.layer_count, sizeof *texts->layers);
    if (texts->layers == NULL)
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, texts->items[0].info->file, "out of memory");
    for (uint32_t l = 0; l < texts->geometry.layer_count; l++) {
        kvant_layer_geometry *layer = &texts->layers[l];
        *layer = texts->geometry.layers[l];
        if (first[PART_KEYS] != NULL) {
            layer->key_dim = geometry_of(first[PART_KEYS])->layers[l].key_dim;
            layer->rope = geometry_of(first[PART_KEYS])->layers[l].rope;
        }
        if (first[PART_VALUES] != NULL)
            layer->value_dim = geometry_of(first[PART_VALUES])->layers[l].value_dim;
        if (first[PART_QUERIES] != NULL) layer->q_heads = geometry_of(first[PART_QUERIES])->layers[l].q_heads;
    }
    texts->geometry.layers = texts->layers;
    if (first[PART_KEYS] != NULL) texts->geometry.keys = geometry_of(first[PART_KEYS])->keys;
    if (first[PART_MODEL] != NULL) texts->geometry.model = geometry_of(first[PART_MODEL])->model;
    texts->has_keys = first[PART_KEYS] != NULL;
    texts->has_values = first[PART_VALUES] != NULL;
    texts->knows_q_heads = first[PART_QUERIES] != NULL;
    return KVANT_OK;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

/* In pieces that do not stay in memory. */
static kvant_status take_digest(const char *bytes, size_t size, calibrate_text *text, kvant_diag *diag) {
    unsigned char digest[KVANT_SHA256_BYTES];
    kvant_sha256_context *context = kvant_sha256_begin();
    for (size_t at = 0; at < size; at += DIGEST_PIECE) {
        kvant_sha256_add(context, bytes + at, size - at < DIGEST_PIECE ? size - at : DIGEST_PIECE);
        kvant_file_map_forget(&text->map);
    }
    kvant_status status = kvant_sha256_finish(context, digest);
    if (status != KVANT_OK) return kvant_file_fail(diag, status, text->info->file, "out of memory");
    kvant_hex(digest, sizeof digest, text->digest);
    return KVANT_OK;
}

/* One mapping for digest and rows, so that both are of the same bytes. */
static kvant_status open_text(const kvant_dump_source *source, calibrate_text *text, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    const void *bytes = source->bytes;
    size_t size = (size_t)source->size;
    if (bytes == NULL) {
        status = kvant_file_map_open(source->name, &text->map, diag);
        if (status != KVANT_OK) return status;
        bytes = text->map.bytes;
        size = text->map.size;
    }
    status = kvant_dump_parse(bytes, size, source->name, &text->dump, diag);
    if (status != KVANT_OK) return status;
    text->info = kvant_dump_describe(text->dump);
    return take_digest(bytes, size, text, diag);
}

kvant_status calibrate_texts_open(const kvant_dump_source *sources, uint32_t count, calibrate_texts *texts,
                                  kvant_diag *diag) {
    *texts = (calibrate_texts){.items = calloc(count, sizeof *texts->items)};
    if (texts->items == NULL)
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, sources->name, "out of memory");
    kvant_status status = KVANT_OK;
    uint32_t stride = sources->struct_size;
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        const kvant_dump_source *source = (const void *)((const char *)sources + (size_t)i * stride);
        texts->count++;
        status = open_text(source, &texts->items[i], diag);
    }
    if (status == KVANT_OK) status = merge(texts, diag);
    if (status != KVANT_OK) calibrate_texts_close(texts);
    return status;
}

void calibrate_texts_close(calibrate_texts *texts) {
    for (uint32_t i = 0; i < texts->count; i++) {
        kvant_dump_close(texts->items[i].dump);
        kvant_file_map_close(&texts->items[i].map);
    }
    free(texts->items);
    free(texts->layers);
    *texts = (calibrate_texts){0};
}

void calibrate_texts_forget(const calibrate_texts *texts) {
    for (uint32_t i = 0; i < texts->count; i++) kvant_file_map_forget(&texts->items[i].map);
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

kvant_status calibrate_texts_count(const calibrate_texts *texts, uint32_t sinks, uint64_t *tokens,
                                   kvant_diag *diag) {
    *tokens = 0;
    for (uint32_t i = 0; i < texts->count; i++) {
        const kvant_dump_info *info = texts->items[i].info;
        if (info->tokens <= sinks)
            return kvant_file_fail(diag, KVANT_ERROR_MISSING, info->file,
                                   "%u tokens, and the first %u are sinks: there is nothing to learn from",
                                   info->tokens, sinks);
        *tokens += info->tokens - sinks;
    }
    if (*tokens >= CALIBRATE_TOKENS_MIN) return KVANT_OK;
    return kvant_file_fail(diag, KVANT_ERROR_MISSING, texts->items[0].info->file,
                           "too few tokens to learn from: %llu without sinks, and it takes %d",
                           (unsigned long long)*tokens, CALIBRATE_TOKENS_MIN);
}

static kvant_status check_finite(const calibrate_text *text, uint32_t layer, uint32_t what,
                                 const kvant_view *rows, kvant_diag *diag) {
    kvant_place place;
    if (!kvant_find_not_finite(rows, &place)) return KVANT_OK;
    float x = kvant_load_element(kvant_view_at(rows, place.token, place.head) +
                                     (int64_t)place.channel * rows->channel_stride,
                                 rows->dtype);
    return kvant_file_fail(diag, KVANT_ERROR_NOT_FINITE, text->info->file,
                           "layers.%u.%s: %s at token %u, head %u, channel %u", layer, side_names[what],
                           isnan(x) ? "NaN" : "an infinity", place.token, place.head, place.channel);
}

static bool is_zero(const kvant_view *rows, uint32_t first) {
    for (uint32_t t = first; t < rows->tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++) {
            const char *row = kvant_view_at(rows, t, h);
            for (uint32_t c = 0; c < rows->head_dim; c++)
                if (kvant_load_element(row + (int64_t)c * rows->channel_stride, rows->dtype) != 0)
                    return false;
        }
    return true;
}

kvant_status calibrate_check_side(const calibrate_text *text, uint32_t layer, uint32_t side, uint32_t sinks,
                                  const char *codec, kvant_diag *diag) {
    kvant_view rows;
    if (!kvant_dump_view(text->dump, layer, side, &rows))
        return kvant_file_fail(diag, KVANT_ERROR_MISSING, text->info->file,
                               "tensor \"layers.%u.%s\" is missing, and %s learns from it", layer,
                               side_names[side], codec);
    kvant_status status = check_finite(text, layer, side, &rows, diag);
    if (status == KVANT_OK && is_zero(&rows, sinks))
        status = kvant_file_fail(diag, KVANT_ERROR_VALUE, text->info->file,
                                 "layers.%u.%s: all zeros%s: there is nothing to learn from", layer,
                                 side_names[side], sinks > 0 ? " behind the sinks" : "");
    return status;
}

kvant_status calibrate_check_context(const calibrate_text *text, uint32_t layer, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    for (uint32_t what = 0; what < 3 && status == KVANT_OK; what++) {
        kvant_view rows;
        if (kvant_dump_view(text->dump, layer, what, &rows))
            status = check_finite(text, layer, what, &rows, diag);
    }
    return status;
}
