/* kvant.calibrate/1: learns what KVQuant needs of a layer and side.
 *
 *     upper, lower            F32 [kv heads, head_dim]   axis = channel, thresholds = static: quantiles of a
 *                                                        channel over all tokens
 *     codebook                F32 [2^bits]               codebook = nuq: weighted k-means of the elements
 *                                                        within their group's range, normalized to [-1, 1]
 *     normscale, normoffset   F32 [1]                    qnorm = yes
 *
 * A layer's rows are kept until the next layer comes, then fitted and dropped.
 */
#include "kvquant_kmeans.h"
#include "kvquant_state.h"
#include "kvquant_work.h"

#include <kvant/kit/diag.h>

enum { TOKENS_LEAST = 64 };

/* One row of the pipeline: the rows fed so far, or what was learned from them. */
typedef struct lesson {
    const kvant_setup *setup;
    kvquant_config config;
    uint32_t width; /* total_kv_heads * head_dim */
    size_t tokens, room;
    float *rows;      /* [tokens][width] */
    float *gradients; /* the same, squared; NULL as long as no text has any */
    float *upper, *lower;
    float book[16];
    float norm[2]; /* scale, offset */
    bool wanted;   /* something is to be learned */
    bool done;
} lesson;

typedef struct kvquant_session {
    lesson *lessons;
    uint32_t count;
    uint32_t layer; /* the one that is being fed */
    bool started;
} kvquant_session;

static const char *side_of(const lesson *l) {
    return l->setup->side == KVANT_SIDE_KEY ? "key" : "value";
}

#define FAIL(l, status, ...) fail_at((l), (status), diag, __VA_ARGS__)

__attribute__((format(printf, 4, 5))) static kvant_status fail_at(const lesson *l, kvant_status status,
                                                                  kvant_diag *diag, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return kvant_fail(diag, status, "", "layer %u, %s: %s", l->setup->layer, side_of(l), text);
}

/* ---- Quantiles ----------------------------------------------------------------------------------------- */

/* numpy's percentile with linear interpolation, float32 numbers: the position in double, the rest in
 * float. */
static float quantile(const float *sorted, size_t n, double q) {
    double position = q * (double)(n - 1);
    size_t i = (size_t)position;
    double f = position - (double)i;
    float a = sorted[i], b = sorted[i + 1 < n ? i + 1 : i], difference = b - a;
    if (!kvquant_finite(difference)) return (float)((double)a + ((double)b - (double)a) * f);
    return f < 0.5 ? a + difference * (float)f : b - difference * (float)(1 - f);
}

typedef struct ends {
    float upper, lower;
} ends;

/* Sorts x. */
static ends ends_of(const kvquant_config *config, float *x, uint32_t n) {
    kvquant_sort(x, n);
    if (!config->sparse) return (ends){x[n - 1], x[0]};
    double t = kvquant_upper_quantile(config);
    return (ends){quantile(x, n, t), quantile(x, n, 1 - t)};
}

/* ---- Points of the fit --------------------------------------------------------------------------------- */

typedef struct fit {
    kvquant_point *points;
    size_t count;
    float *sorted; /* of one group */
} fit;

/* `n` elements of a group, `step` apart from `at` on: those within [-1, 1] of its range. */
static void add_group(const lesson *l, fit *f, size_t at, uint32_t n, size_t step, ends e) {
    kvquant_range range = kvquant_range_of(e.upper, e.lower);
    if (!(range.half > 0)) return;
    double square = (double)range.half * (double)range.half;
    for (uint32_t i = 0; i < n; i++) {
        size_t element = at + i * step;
        float a = (l->rows[element] - range.middle) / range.half;
        if (!(a >= -1 && a <= 1)) continue; /* also an end of the range that was rounded beyond */
        double weight = l->gradients != NULL ? (double)l->gradients[element] : 1;
        if (l->config.weights == KVQUANT_WEIGHTS_PAPER) weight *= square;
        if (l->config.weights == KVQUANT_WEIGHTS_NONE) weight = 1;
        weight = weight < FLT_MAX ? weight : FLT_MAX;
        f->points[f->count++] = (kvquant_point){a, (float)weight};
    }
}

static void add_channels(lesson *l, fit *f) {
    uint32_t tokens = (uint32_t)l->tokens;
    uint32_t group = l->config.is_static ? tokens : l->setup->block_tokens;
    group = group < tokens ? group : tokens;
    for (uint32_t c = 0; c < l->width; c++)
        for (uint32_t first = 0; first + group <= tokens; first += group) {
            for (uint32_t t = 0; t < group; t++) f->sorted[t] = l->rows[(size_t)(first + t) * l->width + c];
            ends e = ends_of(&l->config, f->sorted, group);
            if (l->config.is_static) {
                l->upper[c] = e.upper;
                l->lower[c] = e.lower;
            }
            add_group(l, f, (size_t)first * l->width + c, group, l->width, e);
        }
}

static void add_tokens(lesson *l, fit *f) {
    for (size_t t = 0; t < l->tokens; t++) {
        memcpy(f->sorted, l->rows + t * l->width, sizeof(float) * l->width);
        ends e = ends_of(&l->config, f->sorted, l->width);
        add_group(l, f, t * l->width, l->width, 1, e);
    }
}

/* ---- What is learned ----------------------------------------------------------------------------------- */

/* Groups of one or two elements have nothing between their ends: no codebook matters. */
static bool groups_are_tiny(const lesson *l) {
    uint32_t group = l->config.channel ? l->setup->block_tokens : l->width;
    return !l->config.is_static && group <= 2;
}

static kvant_status learn_book(lesson *l, fit *f, kvant_diag *diag) {
    uint32_t levels = 1u << l->config.bits, distinct = 0;
    if (l->config.codebook != KVQUANT_NUQ || groups_are_tiny(l)) {
        kvquant_fixed_book(l->config.codebook, l->config.bits, l->book);
        return KVANT_OK;
    }
    switch (kvquant_kmeans(f->points, f->count, levels, l->book, &distinct)) {
    case KVQUANT_FIT_MEMORY:
        return FAIL(l, KVANT_ERROR_MEMORY, "out of memory");
    case KVQUANT_FIT_FEW:
        return FAIL(
            l, KVANT_ERROR_VALUE,
            "%u different elements of positive weight lie within their groups' ranges, and a codebook "
            "of %u entries needs as many",
            distinct, levels);
    default:
        return KVANT_OK;
    }
}

/* Mean and deviation of the points, and of the entries nearest to them. */
static void learn_norm(lesson *l, const fit *f) {
    uint32_t levels = 1u << l->config.bits;
    double count = (double)f->count, sums[2] = {0, 0}, squares[2] = {0, 0};
    l->norm[0] = 1;
    l->norm[1] = 0;
    if (f->count == 0) return;
    for (size_t i = 0; i < f->count; i++) {
        sums[0] += (double)f->points[i].x;
        sums[1] += (double)l->book[kvquant_nearest(l->book, levels, f->points[i].x)];
    }
    double means[2] = {sums[0] / count, sums[1] / count};
    for (size_t i = 0; i < f->count; i++) {
        double before = (double)f->points[i].x - means[0];
        double after = (double)l->book[kvquant_nearest(l->book, levels, f->points[i].x)] - means[1];
        squares[0] += before * before;
        squares[1] += after * after;
    }
    if (!(squares[0] > 0 && squares[1] > 0)) return;
    double scale = __builtin_sqrt(squares[0] / squares[1]);
    l->norm[0] = (float)scale;
    l->norm[1] = (float)(means[0] - means[1] * scale);
}

static bool all_zero(const lesson *l) {
    for (size_t i = 0; i < l->tokens * l->width; i++)
        if (l->rows[i] != 0) return false;
    return true;
}

/* Fits a lesson whose rows are complete and drops them. */
static kvant_status finish(lesson *l, kvant_diag *diag) {
    if (!l->wanted || l->done) return KVANT_OK;
    if (l->tokens < TOKENS_LEAST)
        return FAIL(l, KVANT_ERROR_MISSING, "%zu tokens to learn from, at least %d are needed", l->tokens,
                    TOKENS_LEAST);
    if (all_zero(l))
        return FAIL(l, KVANT_ERROR_VALUE, "all numbers are zero: there is nothing to learn from");
    size_t longest = l->tokens > l->width ? l->tokens : l->width, elements = l->tokens * l->width;
    fit f = {.points = malloc(elements * sizeof *f.points), .sorted = malloc(longest * sizeof *f.sorted)};
    l->upper = malloc(l->width * sizeof *l->upper);
    l->lower = malloc(l->width * sizeof *l->lower);
    kvant_status status = KVANT_OK;
    if (f.points == NULL || f.sorted == NULL || l->upper == NULL || l->lower == NULL)
        status = FAIL(l, KVANT_ERROR_MEMORY, "out of memory");
    if (status == KVANT_OK) {
        if (l->config.channel)
            add_channels(l, &f);
        else
            add_tokens(l, &f);
        status = learn_book(l, &f, diag);
    }
    if (status == KVANT_OK && l->config.qnorm) {
        /* k-means sorts and drops; moments are those of all points. */
        f.count = 0;
        if (l->config.channel)
            add_channels(l, &f);
        else
            add_tokens(l, &f);
        learn_norm(l, &f);
    }
    free(f.points);
    free(f.sorted);
    free(l->rows);
    free(l->gradients);
    l->rows = l->gradients = NULL;
    l->done = status == KVANT_OK;
    return status;
}

/* ---- Feeding ------------------------------------------------------------------------------------------- */

static bool grow(float **array, size_t count) {
    float *grown = realloc(*array, count * sizeof *grown);
    if (grown != NULL) *array = grown;
    return grown != NULL;
}

static kvant_status make_room(lesson *l, size_t tokens, bool gradients, kvant_diag *diag) {
    size_t need = l->tokens + tokens, room = l->room;
    if (need > (size_t)1 << 30)
        return FAIL(l, KVANT_ERROR_UNSUPPORTED, "more than 2^30 tokens to learn from");
    if (need > room) room = need > 2 * room ? need : 2 * room;
    bool first = gradients && l->gradients == NULL;
    bool good = room == l->room || grow(&l->rows, room * l->width);
    if (good && (first || (l->gradients != NULL && room != l->room)))
        good = grow(&l->gradients, room * l->width);
    if (!good) return FAIL(l, KVANT_ERROR_MEMORY, "out of memory");
    l->room = room;
    if (first)
        for (size_t i = 0; i < l->tokens * l->width; i++) l->gradients[i] = 1;
    return KVANT_OK;
}

static const kvant_array *gradients_of(const kvant_sample *sample, const lesson *l) {
    const char *name = l->setup->side == KVANT_SIDE_KEY ? "key_squared_gradient" : "value_squared_gradient";
    for (uint32_t i = 0; i < sample->importance_count; i++)
        if (strcmp(sample->importance[i].name, name) == 0) return &sample->importance[i];
    return NULL;
}

static kvant_status check_shapes(const lesson *l, const kvant_view *view, const kvant_array *gradients,
                                 kvant_diag *diag) {
    if (view->heads != l->setup->total_kv_heads || view->head_dim != l->setup->head_dim)
        return FAIL(l, KVANT_ERROR_MISMATCH, "rows of %u heads and %u channels where the layer has %u and %u",
                    view->heads, view->head_dim, l->setup->total_kv_heads, l->setup->head_dim);
    if (gradients == NULL) return KVANT_OK;
    bool fits = gradients->rank == 3 && gradients->shape[0] == view->tokens &&
                gradients->shape[1] == view->heads && gradients->shape[2] == view->head_dim &&
                (gradients->dtype == KVANT_DTYPE_F32 || gradients->dtype == KVANT_DTYPE_F16 ||
                 gradients->dtype == KVANT_DTYPE_BF16);
    return fits ? KVANT_OK
                : FAIL(l, KVANT_ERROR_MISMATCH,
                       "\"%s\" must be F32, F16 or BF16 [tokens, kv heads, head_dim]", gradients->name);
}

static kvant_status take_row(lesson *l, const kvant_sample *sample, const kvant_view *view,
                             const kvant_array *gradients, uint32_t token, kvant_diag *diag) {
    size_t at = l->tokens * l->width, of_text = (size_t)token * l->width;
    for (uint32_t h = 0; h < view->heads; h++)
        kvant_load_row(view, token, h, l->rows + at + (size_t)h * view->head_dim);
    for (uint32_t i = 0; i < l->width; i++) {
        if (!kvquant_finite(l->rows[at + i]))
            return FAIL(l, KVANT_ERROR_NOT_FINITE, "text %u, token %u, head %u, channel %u is not finite",
                        sample->text, token, i / view->head_dim, i % view->head_dim);
        if (l->gradients == NULL) continue;
        float f = gradients == NULL
                      ? 1
                      : kvant_load_element((const char *)gradients->data +
                                               (of_text + i) * kvant_element_bytes(gradients->dtype),
                                           gradients->dtype);
        if (!(f >= 0 && f <= FLT_MAX))
            return FAIL(l, KVANT_ERROR_VALUE,
                        "text %u, token %u, head %u, channel %u: a squared gradient of %g", sample->text,
                        token, i / view->head_dim, i % view->head_dim, (double)f);
        l->gradients[at + i] = f;
    }
    l->tokens++;
    return KVANT_OK;
}

static kvant_status take(lesson *l, const kvant_sample *sample, kvant_diag *diag) {
    const kvant_view *view = l->setup->side == KVANT_SIDE_KEY ? sample->keys : sample->values;
    if (view == NULL) return FAIL(l, KVANT_ERROR_MISSING, "text %u has no such rows", sample->text);
    const kvant_array *gradients = gradients_of(sample, l);
    uint32_t first = sample->sinks < view->tokens ? sample->sinks : view->tokens;
    kvant_status status = check_shapes(l, view, gradients, diag);
    if (status == KVANT_OK) status = make_room(l, view->tokens - first, gradients != NULL, diag);
    for (uint32_t t = first; status == KVANT_OK && t < view->tokens; t++)
        status = take_row(l, sample, view, gradients, t, diag);
    return status;
}

/* ---- The extension ------------------------------------------------------------------------------------- */

static void free_session(void *memory) {
    kvquant_session *session = memory;
    if (session == NULL) return;
    for (uint32_t i = 0; i < session->count; i++) {
        free(session->lessons[i].rows);
        free(session->lessons[i].gradients);
        free(session->lessons[i].upper);
        free(session->lessons[i].lower);
    }
    free(session->lessons);
    free(session);
}

static kvant_status begin(const kvant_setup *const *setups, uint32_t setup_count, void **out,
                          kvant_diag *diag) {
    kvquant_session *session = calloc(1, sizeof *session);
    *out = NULL;
    if (session != NULL) session->lessons = calloc((size_t)setup_count + 1, sizeof *session->lessons);
    if (session == NULL || session->lessons == NULL) {
        free_session(session);
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    for (uint32_t i = 0; i < setup_count; i++) {
        lesson *l = &session->lessons[session->count++];
        uint64_t width = (uint64_t)setups[i]->total_kv_heads * setups[i]->head_dim;
        l->setup = setups[i];
        kvant_status status = kvquant_config_read(&l->config, setups[i], diag);
        if (status == KVANT_OK && (width == 0 || width > INT32_MAX))
            status = FAIL(l, KVANT_ERROR_GEOMETRY, "%u heads of %u channels", setups[i]->total_kv_heads,
                          setups[i]->head_dim);
        if (status != KVANT_OK) {
            free_session(session);
            return status;
        }
        l->width = (uint32_t)width;
        l->wanted =
            kvquant_needs_thresholds(&l->config) || kvquant_needs_codebook(&l->config) || l->config.qnorm;
    }
    *out = session;
    return KVANT_OK;
}

static kvant_status finish_layer(kvquant_session *session, uint32_t layer, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; status == KVANT_OK && i < session->count; i++)
        if (session->lessons[i].setup->layer == layer) status = finish(&session->lessons[i], diag);
    return status;
}

static kvant_status feed(void *memory, const kvant_sample *sample, kvant_diag *diag) {
    kvquant_session *session = memory;
    kvant_status status = KVANT_OK;
    if (session->started && sample->layer != session->layer)
        status = finish_layer(session, session->layer, diag);
    session->started = true;
    session->layer = sample->layer;
    for (uint32_t i = 0; status == KVANT_OK && i < session->count; i++) {
        lesson *l = &session->lessons[i];
        if (l->setup->layer != sample->layer || !l->wanted) continue;
        if (l->done) return FAIL(l, KVANT_ERROR_ARGUMENT, "rows after those of another layer");
        status = take(l, sample, diag);
    }
    return status;
}

static kvant_status again(void *memory, uint32_t *more, kvant_diag *diag) {
    (void)memory;
    (void)diag;
    *more = 0;
    return KVANT_OK;
}

static void give(const lesson *l, const char *name, const float *data, uint64_t rows, uint64_t columns,
                 kvant_tensor_sink *sink, void *context) {
    kvant_array array = {.name = name, .data = data, .dtype = KVANT_DTYPE_F32, .rank = rows > 0 ? 2 : 1};
    array.shape[0] = rows > 0 ? rows : columns;
    array.shape[1] = rows > 0 ? columns : 0;
    array.bytes = (rows > 0 ? rows : 1) * columns * sizeof(float);
    sink(context, l->setup->layer, l->setup->side, &array);
}

static kvant_status end(void *memory, kvant_tensor_sink *sink, void *context, kvant_diag *diag) {
    kvquant_session *session = memory;
    for (uint32_t i = 0; i < session->count; i++) {
        kvant_status status = finish(&session->lessons[i], diag);
        if (status != KVANT_OK) return status;
    }
    for (uint32_t i = 0; i < session->count; i++) {
        const lesson *l = &session->lessons[i];
        if (!l->wanted) continue;
        uint64_t heads = l->setup->total_kv_heads, dim = l->setup->head_dim;
        if (l->config.codebook == KVQUANT_NUQ)
            give(l, "codebook", l->book, 0, (uint64_t)1 << l->config.bits, sink, context);
        if (l->config.is_static) {
            give(l, "lower", l->lower, heads, dim, sink, context);
            give(l, "upper", l->upper, heads, dim, sink, context);
        }
        if (!l->config.qnorm) continue;
        give(l, "normoffset", &l->norm[1], 0, 1, sink, context);
        give(l, "normscale", &l->norm[0], 0, 1, sink, context);
    }
    return KVANT_OK;
}

const kvant_calibrate kvquant_calibrate = {.struct_size = sizeof(kvant_calibrate),
                                           .begin = begin,
                                           .feed = feed,
                                           .again = again,
                                           .end = end,
                                           .free = free_session};
