/* See geometry.h. */
#include "geometry.h"

#include "base/text.h"
#include "pipeline/plan.h"
#include "plugin/schema.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/rope.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The parts are read like a codec's parameters: same spelling of numbers, same errors. */
enum { LAYERS, KV_HEADS, Q_HEADS, HEAD_DIM, VALUE_DIM, DTYPE, ROPE, PART_COUNT };

static const char *const part_names[PART_COUNT] = {"layers",    "kv_heads", "q_heads", "head_dim",
                                                   "value_dim", "dtype",    "rope"};

#define COUNT(part, most)                                                                                    \
    {                                                                                                        \
        .struct_size = sizeof(kvant_param), .type = KVANT_PARAM_INTEGER, .name = (part), .unit = "",         \
        .integer_min = 1, .integer_max = (most)                                                              \
    }

static const char *const dtypes[] = {"f32", "f16", "bf16"};
static const uint32_t dtype_numbers[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};

static const kvant_param parts[ROPE] = {
    COUNT("layers", KVANT_LAYERS_MAX),
    COUNT("kv_heads", KVANT_HEADS_MAX),
    COUNT("q_heads", KVANT_HEADS_MAX),
    COUNT("head_dim", KVANT_DIM_MAX),
    COUNT("value_dim", KVANT_DIM_MAX),
    {.type = KVANT_PARAM_CHOICE, .name = "dtype", .unit = "", .choice_count = 3, .choices = dtypes},
};
static const kvant_param theta_rule = {
    .type = KVANT_PARAM_NUMBER, .name = "rope", .unit = "(theta)", .number_min = 1, .number_max = 1e30};
static const kvant_param rotary_rule = {.type = KVANT_PARAM_INTEGER,
                                        .name = "rope",
                                        .unit = "(rotary_dim)",
                                        .integer_min = 2,
                                        .integer_max = KVANT_DIM_MAX};

typedef struct reading {
    int64_t numbers[ROPE];
    bool seen[PART_COUNT];
    uint32_t style;
    double theta;
    int64_t rotary_dim; /* 0 = the head */
} reading;

/* "none", "neox:THETA" or "gptj:THETA:ROTARY_DIM". Cuts text up. */
static kvant_status read_rope(char *text, reading *r, kvant_diag *diag) {
    char *theta = strchr(text, ':');
    if (theta != NULL) *theta++ = '\0';
    char *rotary = theta != NULL ? strchr(theta, ':') : NULL;
    if (rotary != NULL) *rotary++ = '\0';
    r->style = strcmp(text, "none") == 0   ? KVANT_ROPE_NONE
               : strcmp(text, "neox") == 0 ? KVANT_ROPE_NEOX
                                           : KVANT_ROPE_GPTJ;
    if (r->style == KVANT_ROPE_GPTJ && strcmp(text, "gptj") != 0)
        return kvant_fail(diag, KVANT_ERROR_UNKNOWN_NAME, "rope",
                          "rope: there is no style \"%.64s\"; it takes none, neox or gptj", text);
    if ((r->style == KVANT_ROPE_NONE) != (theta == NULL))
        return kvant_fail(diag, KVANT_ERROR_SYNTAX, "rope",
                          "rope: it takes none, or a style and theta: neox:10000 or gptj:10000:64");
    if (theta == NULL) return KVANT_OK;
    kvant_value value;
    kvant_status status = kvant_schema_parse(&theta_rule, theta, &value, diag);
    r->theta = value.number;
    if (status != KVANT_OK || rotary == NULL) return status;
    status = kvant_schema_parse(&rotary_rule, rotary, &value, diag);
    r->rotary_dim = value.integer;
    return status;
}

/* "name=text". Cuts it up. */
static kvant_status read_part(char *part, reading *r, kvant_diag *diag) {
    char *text = strchr(part, '=');
    if (text == NULL)
        return kvant_fail(
            diag, KVANT_ERROR_SYNTAX, "",
            "geometry: \"%.64s\" is not NAME=VALUE; parts have a comma between two, without blanks", part);
    *text++ = '\0';
    uint32_t i = 0;
    while (i < PART_COUNT && strcmp(part_names[i], part) != 0) i++;
    if (i == PART_COUNT) {
        const char *nearest = kvant_nearest(part, part_names, PART_COUNT);
        return kvant_fail(
            diag, KVANT_ERROR_UNKNOWN_NAME, "", "geometry: there is no part \"%.64s\"; %s%s%s", part,
            nearest != NULL ? "did you mean " : "there are layers, kv_heads, q_heads, head_dim, ",
            nearest != NULL ? nearest : "value_dim, dtype, rope", nearest != NULL ? "?" : "");
    }
    if (r->seen[i])
        return kvant_fail(diag, KVANT_ERROR_DUPLICATE, part_names[i], "geometry: %s is said twice",
                          part_names[i]);
    r->seen[i] = true;
    if (i == ROPE) return read_rope(text, r, diag);
    kvant_value value = {0};
    kvant_status status = kvant_schema_parse(&parts[i], text, &value, diag);
    r->numbers[i] = value.integer;
    return status;
}

static kvant_status read_parts(const char *text, reading *r, kvant_diag *diag) {
    char *copy = strdup(text);
    if (copy == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_status status = KVANT_OK;
    for (char *part = copy; part != NULL && status == KVANT_OK;) {
        char *next = strchr(part, ',');
        if (next != NULL) *next++ = '\0';
        status = read_part(part, r, diag);
        part = next;
    }
    free(copy);
    for (uint32_t i = 0; i < PART_COUNT && status == KVANT_OK; i++)
        if (!r->seen[i] && i != VALUE_DIM)
            status = kvant_fail(diag, KVANT_ERROR_MISSING, part_names[i],
                                "geometry: %s is missing; all but value_dim are needed", part_names[i]);
    return status;
}

/* What no part alone can break. */
static kvant_status check(const reading *r, kvant_diag *diag) {
    if (r->numbers[Q_HEADS] % r->numbers[KV_HEADS] != 0)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "q_heads",
                          "q_heads: %lld is not a multiple of kv_heads = %lld",
                          (long long)r->numbers[Q_HEADS], (long long)r->numbers[KV_HEADS]);
    if (r->style == KVANT_ROPE_NONE) return KVANT_OK;
    int64_t head_dim = r->numbers[HEAD_DIM], rotary = r->rotary_dim != 0 ? r->rotary_dim : head_dim;
    if (rotary % 2 != 0)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "rope",
                          "rope: %lld channels cannot turn, they turn in pairs; name an even rotary_dim",
                          (long long)rotary);
    if (rotary > head_dim)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "rope",
                          "rope: rotary_dim %lld is above head_dim = %lld", (long long)rotary,
                          (long long)head_dim);
    return KVANT_OK;
}

static kvant_status build(const reading *r, parsed_geometry *out, kvant_diag *diag) {
    uint32_t count = (uint32_t)r->numbers[LAYERS], key_dim = (uint32_t)r->numbers[HEAD_DIM];
    uint32_t rotary = r->rotary_dim != 0 ? (uint32_t)r->rotary_dim : key_dim;
    bool turns = r->style != KVANT_ROPE_NONE;
    out->layers = calloc(count, sizeof *out->layers);
    out->inverse_frequency = calloc(rotary / 2 + (size_t)1, sizeof *out->inverse_frequency);
    if (out->layers == NULL || out->inverse_frequency == NULL)
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (turns) kvant_rope_inverse_frequency(r->theta, rotary, out->inverse_frequency);
    out->rope = (kvant_rope){.struct_size = sizeof out->rope,
                             .style = r->style,
                             .rotary_dim = rotary,
                             .magnitude = 1,
                             .inverse_frequency = out->inverse_frequency};
    for (uint32_t i = 0; i < count; i++)
        out->layers[i] = (kvant_layer_geometry){
            .struct_size = sizeof *out->layers,
            .kv_heads = (uint32_t)r->numbers[KV_HEADS],
            .q_heads = (uint32_t)r->numbers[Q_HEADS],
            .total_kv_heads = (uint32_t)r->numbers[KV_HEADS],
            .key_dim = key_dim,
            .value_dim = r->seen[VALUE_DIM] ? (uint32_t)r->numbers[VALUE_DIM] : key_dim,
            .rope = turns ? &out->rope : NULL,
        };
    out->value = (kvant_geometry){.struct_size = sizeof out->value,
                                  .layer_count = count,
                                  .dtype = dtype_numbers[r->numbers[DTYPE]],
                                  .keys = KVANT_KEYS_AFTER_ROPE,
                                  .layers = out->layers};
    return KVANT_OK;
}

kvant_status geometry_parse(const char *text, const char *model, parsed_geometry *out, kvant_diag *diag) {
    *out = (parsed_geometry){0};
    reading r = {0};
    kvant_status status = read_parts(text, &r, diag);
    if (status == KVANT_OK) status = check(&r, diag);
    if (status == KVANT_OK) status = build(&r, out, diag);
    if (status != KVANT_OK)
        geometry_free(out);
    else
        out->value.model = model;
    return status;
}

void geometry_free(parsed_geometry *g) {
    free(g->layers);
    free(g->inverse_frequency);
    *g = (parsed_geometry){0};
}
