/* D_k(b): the error of the attention output if only the tokens of tag k have b bits and all else is exact
 * (TriAxialKV, calibration). For every query row q and head,
 *
 *     o = sum_j e_j v_j / sum_j e_j            e_j = exp(logit_j - the largest logit)
 *
 * and the sums are kept tag by tag, once with exact keys and values, once with those of 2 bits, once with
 * those of 4. So the output with only tag k quantized is
 *
 *     o~ = (sum of the others' exact parts + tag k's quantized part) / (the same without v)
 *
 * and all tags together cost three passes over the tokens. D is the mean of (o~ - o)^2 over channels and
 * queries, and the largest of the heads.
 *
 * Keys of 2 bits take their scales from all tokens of a quantum of consecutive tokens, as if the whole text
 * had 2 bits: in a cache the tokens of a tag share quanta with others'. Tokens that stay raw (sinks) enter
 * nothing but the exact sums. Everything is in double, sums run in the order of the tokens.
 */
#include "triaxial_sensitivity.h"

#include "triaxial_group.h"

#include <kvant/kit/math.h>

#include <stdlib.h>

enum { EXACT, TWO, FOUR, VARIANTS };
static const uint32_t levels[VARIANTS] = {0, 3, 15};

typedef struct job {
    const kvant_sample *sample;
    uint32_t group, sides;
    uint32_t tokens, key_dim, value_dim, queries;
    uint32_t slots;                           /* tags that occur */
    uint8_t tag_of[TRIAXIAL_TAGS];            /* of a slot */
    uint8_t slot_of[TRIAXIAL_TAGS];           /* of a tag */
    float *keys[VARIANTS], *values[VARIANTS]; /* of one kv head, [tokens, dim] */
    double *logits[VARIANTS];                 /* [tokens] */
    double *weight[VARIANTS];                 /* [slots] sums of e */
    double *mixed[VARIANTS];                  /* [slots, value_dim] sums of e v */
    double *before, *after, *query;           /* [slots + 1, value_dim + 1] sums over slots; [key_dim] */
    double error[TRIAXIAL_TAGS][2];           /* of a head, by slot */
} job;

/* ---- Rows of 2 and of 4 bits --------------------------------------------------------------------------- */

/* `count` numbers that are `stride` apart, as one group. */
static void quantize(const float *from, float *to, size_t stride, uint32_t count, uint32_t variant) {
    float min = from[0], max = from[0];
    uint64_t saturated = 0;
    for (uint32_t i = 1; i < count; i++) {
        float x = from[i * stride];
        min = x < min ? x : min;
        max = x > max ? x : max;
    }
    triaxial_group group = triaxial_fit(levels[variant], min, max, &saturated);
    for (uint32_t i = 0; i < count; i++)
        to[i * stride] = triaxial_value(group, triaxial_code(levels[variant], group, from[i * stride]));
}

static void quantize_tokens(const job *j, const float *from, float *to, uint32_t dim, uint32_t variant) {
    for (uint32_t t = j->sample->sinks; t < j->tokens; t++)
        for (uint32_t c = 0; c < dim; c += j->group) {
            size_t at = (size_t)t * dim + c;
            quantize(from + at, to + at, 1, dim - c < j->group ? dim - c : j->group, variant);
        }
}

/* The last quantum is the last `group` tokens, where the text is no whole number of quanta long. */
static void quantize_channels(const job *j, const float *from, float *to, uint32_t dim) {
    for (uint32_t t = j->sample->sinks; t < j->tokens; t += j->group) {
        uint32_t first = j->tokens - t < j->group ? j->tokens - j->group : t;
        for (uint32_t c = 0; c < dim; c++)
            quantize(from + (size_t)first * dim + c, to + (size_t)first * dim + c, dim, j->group, TWO);
    }
}

static void load_head(job *j, uint32_t head) {
    for (uint32_t t = 0; t < j->tokens; t++) {
        kvant_load_row(j->sample->keys, t, head, j->keys[EXACT] + (size_t)t * j->key_dim);
        kvant_load_row(j->sample->values, t, head, j->values[EXACT] + (size_t)t * j->value_dim);
    }
    for (uint32_t v = TWO; v < VARIANTS; v++) {
        memcpy(j->keys[v], j->keys[EXACT], (size_t)j->tokens * j->key_dim * sizeof(float));
        memcpy(j->values[v], j->values[EXACT], (size_t)j->tokens * j->value_dim * sizeof(float));
        if (j->sides & KVANT_SIDES_VALUE) quantize_tokens(j, j->values[EXACT], j->values[v], j->value_dim, v);
    }
    if (j->sides & KVANT_SIDES_KEY) {
        quantize_channels(j, j->keys[EXACT], j->keys[TWO], j->key_dim);
        quantize_tokens(j, j->keys[EXACT], j->keys[FOUR], j->key_dim, FOUR);
    }
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

static double dot(const double *a, const float *b, uint32_t n) {
    double sums[4] = {0, 0, 0, 0};
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (uint32_t k = 0; k < 4; k++) sums[k] += a[i + k] * (double)b[i + k];
    for (; i < n; i++) sums[0] += a[i] * (double)b[i];
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

static double capped(double logit, double cap) {
    if (!(cap > 0)) return logit;
    double x = 2 * logit / cap;
    if (x > 80 || x < -80) return x > 0 ? cap : -cap;
    double e = kvant_exp(x);
    return cap * ((e - 1) / (e + 1)); /* tanh */
}

/* The tokens that a query sees, [*from, *to). */
static void visible(const job *j, uint32_t row, uint32_t *from, uint32_t *to) {
    const kvant_sample *s = j->sample;
    uint64_t position = s->query_position + row, end = position + 1; /* first position not seen */
    uint64_t start = s->window != 0 && end > s->window ? end - s->window : 0;
    uint64_t first = s->first_position;
    *to = end <= first ? 0 : end - first < j->tokens ? (uint32_t)(end - first) : j->tokens;
    *from = start <= first ? 0 : start - first < *to ? (uint32_t)(start - first) : *to;
}

/* Sums of e and e v by slot, for the three variants. */
static void attend(job *j, uint32_t from, uint32_t to) {
    const kvant_sample *s = j->sample;
    double largest = -1e300;
    for (uint32_t v = 0; v < VARIANTS; v++) {
        memset(j->weight[v], 0, j->slots * sizeof(double));
        memset(j->mixed[v], 0, (size_t)j->slots * j->value_dim * sizeof(double));
        for (uint32_t t = from; t < to; t++) {
            double logit =
                v != EXACT && !(j->sides & KVANT_SIDES_KEY)
                    ? j->logits[EXACT][t]
                    : capped(s->logit_scale * dot(j->query, j->keys[v] + (size_t)t * j->key_dim, j->key_dim),
                             s->soft_cap);
            j->logits[v][t] = logit;
            largest = logit > largest ? logit : largest;
        }
    }
    for (uint32_t v = 0; v < VARIANTS; v++)
        for (uint32_t t = from; t < to; t++) {
            uint32_t slot = j->slot_of[s->tags[t]];
            const float *value = j->values[v] + (size_t)t * j->value_dim;
            double e = kvant_exp(j->logits[v][t] - largest),
                   *mixed = j->mixed[v] + (size_t)slot * j->value_dim;
            j->weight[v][slot] += e;
            for (uint32_t c = 0; c < j->value_dim; c++) mixed[c] += e * (double)value[c];
        }
}

/* before[k], after[k]: the exact sums over the slots before and behind k. */
static void sum_the_others(job *j) {
    size_t width = (size_t)j->value_dim + 1;
    for (uint32_t c = 0; c <= j->value_dim; c++) {
        j->before[c] = j->after[j->slots * width + c] = 0;
        for (uint32_t k = 0; k < j->slots; k++) {
            uint32_t back = j->slots - 1 - k;
            const double *exact = j->mixed[EXACT];
            j->before[(k + 1) * width + c] =
                j->before[k * width + c] +
                (c < j->value_dim ? exact[(size_t)k * j->value_dim + c] : j->weight[EXACT][k]);
            j->after[back * width + c] =
                j->after[(back + 1) * width + c] +
                (c < j->value_dim ? exact[(size_t)back * j->value_dim + c] : j->weight[EXACT][back]);
        }
    }
}

static void add_errors(job *j) {
    size_t width = (size_t)j->value_dim + 1;
    const double *all = j->before + j->slots * width;
    for (uint32_t k = 0; k < j->slots; k++)
        for (uint32_t v = TWO; v < VARIANTS; v++) {
            const double *before = j->before + k * width, *after = j->after + (k + 1) * width;
            const double *own = j->mixed[v] + (size_t)k * j->value_dim;
            double weight = before[j->value_dim] + after[j->value_dim] + j->weight[v][k], sum = 0;
            for (uint32_t c = 0; c < j->value_dim && weight > 0 && all[j->value_dim] > 0; c++) {
                double error = (before[c] + after[c] + own[c]) / weight - all[c] / all[j->value_dim];
                sum += error * error;
            }
            j->error[k][v - TWO] += sum / j->value_dim / j->queries;
        }
}

static void measure_head(job *j, uint32_t head) {
    memset(j->error, 0, sizeof j->error);
    for (uint32_t row = 0; row < j->queries; row++) {
        uint32_t from, to;
        const kvant_view *queries = j->sample->queries;
        const char *at = kvant_view_at(queries, row, head);
        for (uint32_t c = 0; c < j->key_dim; c++)
            j->query[c] =
                (double)kvant_load_element(at + (int64_t)c * queries->channel_stride, queries->dtype);
        visible(j, row, &from, &to);
        if (from == to) continue;
        attend(j, from, to);
        sum_the_others(j);
        add_errors(j);
    }
}

/* ---- The whole ----------------------------------------------------------------------------------------- */

static void find_tags(job *j) {
    _Bool seen[TRIAXIAL_TAGS] = {0};
    for (uint32_t t = 0; t < j->tokens; t++) seen[j->sample->tags[t]] = 1;
    for (uint32_t tag = 0; tag < TRIAXIAL_TAGS; tag++) {
        if (!seen[tag]) continue;
        j->slot_of[tag] = (uint8_t)j->slots;
        j->tag_of[j->slots++] = (uint8_t)tag;
    }
}

static void release(job *j) {
    for (uint32_t v = 0; v < VARIANTS; v++) {
        free(j->keys[v]);
        free(j->values[v]);
        free(j->logits[v]);
        free(j->weight[v]);
        free(j->mixed[v]);
    }
    free(j->before);
    free(j->after);
    free(j->query);
}

static _Bool reserve(job *j) {
    size_t sums = (size_t)(j->slots + 1) * (j->value_dim + 1);
    _Bool good = 1;
    for (uint32_t v = 0; v < VARIANTS; v++) {
        j->keys[v] = malloc((size_t)j->tokens * j->key_dim * sizeof(float));
        j->values[v] = malloc((size_t)j->tokens * j->value_dim * sizeof(float));
        j->logits[v] = malloc(j->tokens * sizeof(double));
        j->weight[v] = malloc(j->slots * sizeof(double));
        j->mixed[v] = malloc((size_t)j->slots * j->value_dim * sizeof(double));
        good = good && j->keys[v] && j->values[v] && j->logits[v] && j->weight[v] && j->mixed[v];
    }
    j->before = malloc(sums * sizeof(double));
    j->after = malloc(sums * sizeof(double));
    j->query = malloc(j->key_dim * sizeof(double));
    return good && j->before && j->after && j->query;
}

_Bool triaxial_sensitivity(const kvant_sample *sample, uint32_t group, uint32_t sides,
                           double loss[TRIAXIAL_TAGS][2]) {
    job *j = calloc(1, sizeof *j);
    if (j == NULL) return 0;
    *j = (job){.sample = sample,
               .group = group,
               .sides = sides,
               .tokens = sample->keys->tokens,
               .key_dim = sample->keys->head_dim,
               .value_dim = sample->values->head_dim,
               .queries = sample->queries->tokens};
    find_tags(j);
    double worst[TRIAXIAL_TAGS][2] = {{0, 0}};
    _Bool good = reserve(j);
    uint32_t kv_heads = sample->keys->heads, per_head = sample->queries->heads / kv_heads;
    for (uint32_t head = 0; head < kv_heads && good; head++) {
        load_head(j, head);
        for (uint32_t q = 0; q < per_head; q++) {
            measure_head(j, head * per_head + q);
            for (uint32_t k = 0; k < j->slots; k++)
                for (uint32_t b = 0; b < 2; b++)
                    if (j->error[k][b] > worst[k][b]) worst[k][b] = j->error[k][b];
        }
    }
    for (uint32_t k = 0; k < j->slots && good; k++)
        for (uint32_t b = 0; b < 2; b++) loss[j->tag_of[k]][b] += worst[k][b];
    release(j);
    free(j);
    return good;
}
