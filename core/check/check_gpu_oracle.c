/* Attention in double precision on what the CPU decoded, and how far a kernel may be from it.
 *
 * Bounds of one row. A logit may be off by attend_tolerance of the keys' layout, which speaks of the norm of
 * all of a row's logits: relative to the sum of absolute products, with room for a row that is not average,
 * and by float's rounding. Weights p of a softmax whose logits are off by e_t are off by p_t (e_t + sum p e),
 * to first order; the mix by attend_tolerance of the values' layout and rounding, of the sum of absolute
 * products. */
#include "check_gpu_scene.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Room above the mean of a row's errors. */
static const double spread = 4;

typedef struct answer {
    double *out, *absolute, *slack; /* [value dim]: sum p v, sum p |v|, sum p (e + sum p e) |v| */
    double log_sum, log_slack;
    bool sees;
    double *logits, *error; /* [tokens] */
} answer;

bool check_scene_is_coded(const check_scene *scene, uint32_t token) {
    return token >= scene->sinks && token < scene->blocks * scene->block;
}

bool check_scene_sees(const check_scene *scene, uint32_t position, uint32_t token) {
    uint32_t own = scene->tokens - scene->positions + position;
    return token <= own && scene->lives[token] && (scene->window == 0 || own - token < scene->window);
}

double check_scene_logit(const check_scene *scene, uint32_t position, uint32_t q_head, uint32_t token,
                         double *absolute) {
    uint32_t dim = scene->side[0].dim, head = q_head / scene->group;
    const float *query = scene->queries + ((size_t)position * scene->heads * scene->group + q_head) * dim;
    const float *key = check_scene_row(scene, 0, token, head);
    bool centred = scene->center != NULL && check_scene_is_coded(scene, token);
    double sum = 0;
    *absolute = 0;
    for (uint32_t c = 0; c < dim; c++) {
        double product = (double)query[c] * (double)key[c];
        double mean = centred ? (double)query[c] * (double)scene->center[(size_t)head * dim + c] : 0;
        sum += product + mean;
        *absolute += fabs(product) + fabs(mean);
    }
    *absolute *= (double)scene->scale;
    return sum * (double)scene->scale;
}

/* logits, -infinity where hidden, and the sums of absolute products in error. */
static void score(const check_scene *scene, uint32_t position, uint32_t q_head, answer *a) {
    double squares = 0, coded = 0;
    for (uint32_t t = 0; t < scene->tokens; t++) {
        a->logits[t] = -INFINITY;
        a->error[t] = 0;
        if (!check_scene_sees(scene, position, t)) continue;
        a->logits[t] = check_scene_logit(scene, position, q_head, t, &a->error[t]);
        if (check_scene_is_coded(scene, t)) squares += a->error[t] * a->error[t];
        coded += check_scene_is_coded(scene, t);
    }
    double mean = coded > 0 ? sqrt(squares / coded) : 0;
    double tolerance = scene->side[0].subject->layout.attend_tolerance;
    for (uint32_t t = 0; t < scene->tokens; t++) {
        double codes = check_scene_is_coded(scene, t)
                           ? spread * tolerance * (a->error[t] > mean ? a->error[t] : mean)
                           : 0;
        a->error[t] = codes + CHECK_GPU_ROUNDING * a->error[t];
        if (scene->soft_cap > 0 && a->logits[t] > -INFINITY)
            a->logits[t] = (double)scene->soft_cap * tanh(a->logits[t] / (double)scene->soft_cap);
    }
}

static void mix(const check_scene *scene, uint32_t head, answer *a) {
    uint32_t dim = scene->side[1].dim;
    double most = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < scene->tokens; t++) most = a->logits[t] > most ? a->logits[t] : most;
    a->sees = most > -INFINITY;
    a->log_slack = 0;
    for (uint32_t t = 0; t < scene->tokens && a->sees; t++) {
        a->logits[t] = exp(a->logits[t] - most); /* weights from here on */
        sum += a->logits[t];
    }
    for (uint32_t t = 0; t < scene->tokens && a->sees; t++) {
        a->logits[t] /= sum;
        a->log_slack += a->logits[t] * a->error[t];
    }
    a->log_sum = most + log(sum);
    memset(a->out, 0, dim * sizeof *a->out);
    memset(a->absolute, 0, dim * sizeof *a->absolute);
    memset(a->slack, 0, dim * sizeof *a->slack);
    for (uint32_t t = 0; t < scene->tokens && a->sees; t++) {
        const float *value = check_scene_row(scene, 1, t, head);
        double weight = a->logits[t], off = a->error[t] + a->log_slack;
        for (uint32_t v = 0; v < dim && weight > 0; v++) {
            double product = weight * (double)value[v];
            a->out[v] += product;
            a->absolute[v] += fabs(product);
            a->slack[v] += fabs(product) * off;
        }
    }
}

/* ---- Partials ------------------------------------------------------------------------------------------ */

typedef struct merged {
    double *out; /* [value dim] */
    double most, sum;
    const char *fault;
} merged;

static void merge(const check_scene *scene, const float *partials, uint32_t head, uint32_t row, merged *m) {
    uint32_t dim = scene->side[1].dim;
    m->most = -INFINITY;
    m->sum = 0;
    m->fault = NULL;
    memset(m->out, 0, dim * sizeof *m->out);
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t s = 0; s < scene->spans; s++) {
            const float *p = partials + ((size_t)s * scene->heads + head) * scene->item_stride +
                             row * scene->partial_stride;
            if (p[0] != p[0]) m->fault = "a largest logit is NaN";
            if (pass == 0 && (double)p[0] > m->most) m->most = (double)p[0];
            if (pass == 0) continue;
            bool nothing = p[0] == -INFINITY;
            double factor = nothing ? 1 : exp((double)p[0] - m->most);
            m->sum += factor * (double)p[1];
            for (uint32_t v = 0; v < dim; v++) {
                m->out[v] += factor * (double)p[2 + v];
                if (nothing && p[2 + v] != 0) m->fault = "an item sees nothing, and its sums are not zeros";
            }
            if (nothing && p[1] != 0) m->fault = "an item sees nothing, and its sum of weights is not zero";
        }
}

static double norm(const double *x, uint32_t count) {
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

static void compare_row(const check_scene *scene, uint32_t head, uint32_t row, const answer *want,
                        const merged *got) {
    check_worker *worker = scene->context->worker;
    uint32_t dim = scene->side[1].dim;
    double tolerance = scene->side[1].subject->layout.attend_tolerance;
    if (got->fault != NULL) {
        check_fail(worker, CHECK_GPU_ATTEND, "kv head %u, row %u: %s", head, row, got->fault);
        return;
    }
    if (!want->sees || !(got->sum > 0)) {
        if (want->sees || got->sum != 0 || got->most > -INFINITY)
            check_fail(worker, CHECK_GPU_ATTEND, "kv head %u, row %u sees %s, and the partials have sum %g",
                       head, row, want->sees ? "tokens" : "no token", got->sum);
        return;
    }
    double log_sum = got->most + log(got->sum);
    double log_bound = want->log_slack + CHECK_GPU_ROUNDING * (1 + fabs(want->log_sum));
    if (!(fabs(log_sum - want->log_sum) <= log_bound)) {
        check_fail(worker, CHECK_GPU_ATTEND,
                   "kv head %u, row %u: the log of the sum of exponentials is %.9g, it must be %.9g +- %.2g",
                   head, row, log_sum, want->log_sum, log_bound);
        return;
    }
    double error = 0;
    for (uint32_t v = 0; v < dim; v++) {
        double e = got->out[v] / got->sum - want->out[v];
        error += e * e;
    }
    double bound =
        norm(want->slack, dim) + (tolerance + CHECK_GPU_ROUNDING) * norm(want->absolute, dim) + 1e-30;
    if (!(sqrt(error) <= bound))
        check_fail(
            worker, CHECK_GPU_ATTEND,
            "kv head %u, row %u: the output is %.3g away from attention on decoded rows, of norm %.3g; "
            "%.3g is the most",
            head, row, sqrt(error), norm(want->out, dim), bound);
}

void check_scene_compare(const check_scene *scene, const float *partials) {
    uint32_t dim = scene->side[1].dim;
    double *room = calloc(4 * (size_t)dim + 2 * (size_t)scene->tokens, sizeof *room);
    if (room == NULL) check_out_of_memory();
    answer want = {.out = room, .absolute = room + dim, .slack = room + 2 * dim, .logits = room + 4 * dim};
    want.error = want.logits + scene->tokens;
    merged got = {.out = room + 3 * dim};
    for (uint32_t head = 0; head < scene->heads; head++)
        for (uint32_t row = 0; row < scene->rows; row++) {
            score(scene, row / scene->group, head * scene->group + row % scene->group, &want);
            mix(scene, head, &want);
            merge(scene, partials, head, row, &got);
            compare_row(scene, head, row, &want, &got);
        }
    free(room);
}
