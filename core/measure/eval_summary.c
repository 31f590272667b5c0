/* Numbers of a whole run, see the second half of eval_run.h. */
#include "measure/eval_run.h"

#include <math.h>
#include <stdlib.h>

double kvant_eval_metric(const kvant_eval_layer *layer, kvant_metric metric) {
    const kvant_eval_side *key = &layer->sides[KVANT_SIDE_KEY], *value = &layer->sides[KVANT_SIDE_VALUE];
    bool output = value->measured; /* without values only the divergence means anything */
    switch (metric) {
    case KVANT_METRIC_KEY_NMSE:
        return kvant_quality_nmse(&key->quality);
    case KVANT_METRIC_VALUE_NMSE:
        return kvant_quality_nmse(&value->quality);
    case KVANT_METRIC_KEY_COSINE:
        return kvant_quality_cosine(&key->quality);
    case KVANT_METRIC_VALUE_COSINE:
        return kvant_quality_cosine(&value->quality);
    case KVANT_METRIC_KEY_ONLY:
        return output ? layer->attention.key_only : (double)NAN;
    case KVANT_METRIC_VALUE_ONLY:
        return output ? layer->attention.value_only : (double)NAN;
    case KVANT_METRIC_BOTH:
        return output ? layer->attention.both : (double)NAN;
    case KVANT_METRIC_RECENT:
        return output ? layer->attention.recent : (double)NAN;
    case KVANT_METRIC_DIVERGENCE:
        return layer->attention.divergence;
    case KVANT_METRIC_DEVICE:
        return layer->device.rms;
    case KVANT_METRIC_COUNT:
        break;
    }
    return NAN;
}

kvant_status kvant_eval_spread(const kvant_eval *eval, kvant_metric metric, kvant_spread *spread) {
    bool small_is_bad = metric == KVANT_METRIC_KEY_COSINE || metric == KVANT_METRIC_VALUE_COSINE;
    double *values = calloc(eval->layer_count + (size_t)1, sizeof *values);
    if (values == NULL) return KVANT_ERROR_MEMORY;
    uint32_t count = 0;
    *spread = (kvant_spread){.median = NAN, .worst = NAN};
    for (uint32_t layer = 0; layer < eval->layer_count; layer++) {
        double x = kvant_eval_metric(&eval->layers[layer], metric);
        if (isnan(x)) continue;
        values[count++] = x;
        if (isnan(spread->worst) || (small_is_bad ? x < spread->worst : x > spread->worst)) {
            spread->worst = x;
            spread->layer = layer;
        }
    }
    spread->median = kvant_median(values, count);
    free(values);
    return KVANT_OK;
}

bool kvant_eval_worst_head(const kvant_eval *eval, uint32_t *layer, uint32_t *head, double *error) {
    bool found = false;
    for (uint32_t l = 0; l < eval->layer_count && eval->has_output_error; l++)
        for (uint32_t h = 0; h < eval->layers[l].q_heads; h++) {
            double both = kvant_distortion_errors(&eval->layers[l].heads[h], 1).both;
            if (isnan(both) || (found && both <= *error)) continue;
            *layer = l;
            *head = h;
            *error = both;
            found = true;
        }
    return found;
}

kvant_account kvant_eval_side_account(const kvant_eval *eval, uint32_t side) {
    kvant_account account = {0};
    for (uint32_t layer = 0; layer < eval->layer_count; layer++)
        kvant_account_merge(&account, &eval->layers[layer].sides[side].account);
    return account;
}

kvant_account kvant_eval_account(const kvant_eval *eval) {
    kvant_account account = kvant_eval_side_account(eval, KVANT_SIDE_KEY);
    kvant_account value = kvant_eval_side_account(eval, KVANT_SIDE_VALUE);
    kvant_account_merge(&account, &value);
    return account;
}

static double speed(const kvant_eval *eval, bool encode) {
    double seconds = 0;
    for (uint32_t layer = 0; layer < eval->layer_count; layer++)
        for (uint32_t side = 0; side < 2; side++) {
            const kvant_eval_side *s = &eval->layers[layer].sides[side];
            if (eval->on_device)
                seconds += encode ? s->device_encode_seconds : s->device_decode_seconds;
            else
                seconds += encode ? s->encode_seconds : s->decode_seconds;
        }
    kvant_account account = kvant_eval_account(eval);
    return seconds > 0 ? 4e-9 * (double)account.extent_elements / seconds : (double)NAN;
}

double kvant_eval_encode_speed(const kvant_eval *eval) {
    return speed(eval, true);
}

double kvant_eval_decode_speed(const kvant_eval *eval) {
    return speed(eval, false);
}

bool kvant_eval_device_worst(const kvant_eval *eval, uint32_t *layer, double *of_allowed) {
    bool found = false;
    for (uint32_t l = 0; l < eval->layer_count; l++) {
        const kvant_eval_device_attention *d = &eval->layers[l].device;
        if (d->attends == 0 || (found && d->of_allowed <= *of_allowed)) continue;
        *layer = l;
        *of_allowed = d->of_allowed;
        found = true;
    }
    return found;
}

bool kvant_eval_not_finite(const kvant_eval *eval, uint32_t *layer, uint32_t *side, uint64_t *count) {
    for (uint32_t l = 0; l < eval->layer_count; l++)
        for (uint32_t s = 0; s < 2; s++) {
            uint64_t bad = eval->layers[l].sides[s].quality.not_finite;
            if (bad == 0) continue;
            *layer = l;
            *side = s;
            *count = bad;
            return true;
        }
    return false;
}
