/* `kvant eval --json` and `--csv`. Field names are frozen in docs/json.md: add, never rename. */
#include "eval_report.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ---------------------------------------------------------------------------------------------- */

/* JSON has no NaN (not measured) and no infinity (an error about zeros, or decoded numbers that are not
 * finite). */
static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *spread_json(const kvant_eval *eval, kvant_metric metric) {
    kvant_spread spread;
    if (kvant_eval_spread(eval, metric, &spread) != KVANT_OK || isnan(spread.worst)) return json_null();
    return json_pack("{s:o, s:o, s:i}", "median", number(spread.median), "worst", number(spread.worst),
                     "worst_layer", (int)spread.layer);
}

/* Text that is no UTF-8 (a file's name may be any bytes) keeps its ASCII. */
static json_t *text(const char *string) {
    json_t *json = json_string(string);
    char *ascii = json == NULL ? strdup(string) : NULL;
    if (ascii == NULL) return json;
    for (char *c = ascii; *c != '\0'; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    json = json_string(ascii);
    free(ascii);
    return json;
}

static json_t *account_json(const kvant_account *account) {
    double payload = (double)account->payload_bits / 8, metadata = (double)account->metadata_bits / 8;
    return json_pack("{s:o, s:o, s:I, s:o, s:o, s:o, s:I, s:I}", "payload_bits",
                     number(kvant_account_payload(account)), "all_in_bits",
                     number(kvant_account_all(account)), "elements", (json_int_t)account->extent_elements,
                     "payload_bytes", number(payload), "metadata_bytes", number(metadata), "padding_bytes",
                     number((double)account->extent_bytes - payload - metadata), "extent_bytes",
                     (json_int_t)account->extent_bytes, "raw_bytes", (json_int_t)account->raw_bytes);
}

/* What is measured only on a device, or only on the CPU. */
static json_t *if_measured(bool measured, double x) {
    return measured ? number(x) : json_null();
}

static json_t *side_json(const kvant_eval_side *side, bool on_device) {
    if (!side->measured) return json_null();
    json_t *object = json_pack(
        "{s:s, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o}", "codec", side->codec, "replaced",
        side->asked[0] != '\0' ? json_string(side->asked) : json_null(), "nmse",
        number(kvant_quality_nmse(&side->quality)), "cosine", number(kvant_quality_cosine(&side->quality)),
        "max_error", number(side->quality.rows > 0 ? side->quality.max_error : (double)NAN), "size",
        account_json(&side->account), "not_finite", (json_int_t)side->quality.not_finite, "input_not_finite",
        (json_int_t)side->input_not_finite, "saturated", (json_int_t)side->saturated, "encode_seconds",
        if_measured(!on_device, side->encode_seconds), "decode_seconds",
        if_measured(!on_device, side->decode_seconds));
    json_object_set_new(object, "device_encode_seconds", if_measured(on_device, side->device_encode_seconds));
    json_object_set_new(object, "device_decode_seconds", if_measured(on_device, side->device_decode_seconds));
    json_object_set_new(object, "jit", on_device ? json_boolean(side->jit) : json_null());
    return object;
}

static json_t *attention_json(const kvant_eval_layer *layer) {
    if (layer->heads == NULL) return json_null();
    json_t *heads = json_array();
    for (uint32_t h = 0; h < layer->q_heads; h++) {
        bool output = layer->sides[KVANT_SIDE_VALUE].measured;
        json_array_append_new(
            heads, number(output ? kvant_distortion_errors(&layer->heads[h], 1).both : (double)NAN));
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "key_only",
                     number(kvant_eval_metric(layer, KVANT_METRIC_KEY_ONLY)), "value_only",
                     number(kvant_eval_metric(layer, KVANT_METRIC_VALUE_ONLY)), "both",
                     number(kvant_eval_metric(layer, KVANT_METRIC_BOTH)), "recent",
                     number(kvant_eval_metric(layer, KVANT_METRIC_RECENT)), "kl",
                     number(layer->attention.divergence), "kl_max", number(layer->attention.max_divergence),
                     "heads", heads);
}

static json_t *device_attention_json(const kvant_eval_device_attention *d) {
    if (d->attends == 0) return json_null();
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "attends", eval_attends_name(d->attends), "rms",
                     number(d->rms), "largest", number(d->largest), "log_sum_exp", number(d->log_sum_exp),
                     "of_allowed", number(d->of_allowed), "seconds", number(d->seconds));
}

static json_t *layers_json(const kvant_eval *eval) {
    json_t *layers = json_array();
    for (uint32_t l = 0; l < eval->layer_count; l++) {
        const kvant_eval_layer *layer = &eval->layers[l];
        json_array_append_new(layers,
                              json_pack("{s:i, s:o, s:o, s:o, s:o}", "layer", (int)l, "key",
                                        side_json(&layer->sides[KVANT_SIDE_KEY], eval->on_device), "value",
                                        side_json(&layer->sides[KVANT_SIDE_VALUE], eval->on_device),
                                        "attention", attention_json(layer), "device_attention",
                                        device_attention_json(&layer->device)));
    }
    return layers;
}

static json_t *worst_head_json(const kvant_eval *eval) {
    uint32_t layer, head;
    double error;
    if (!kvant_eval_worst_head(eval, &layer, &head, &error)) return json_null();
    return json_pack("{s:i, s:i, s:o}", "layer", (int)layer, "head", (int)head, "error", number(error));
}

static void add_metrics(json_t *object, const kvant_eval *eval) {
    static const struct {
        const char *name;
        kvant_metric metric;
    } metrics[] = {
        {"key_nmse", KVANT_METRIC_KEY_NMSE},           {"value_nmse", KVANT_METRIC_VALUE_NMSE},
        {"key_cosine", KVANT_METRIC_KEY_COSINE},       {"value_cosine", KVANT_METRIC_VALUE_COSINE},
        {"attention_key_only", KVANT_METRIC_KEY_ONLY}, {"attention_value_only", KVANT_METRIC_VALUE_ONLY},
        {"attention_both", KVANT_METRIC_BOTH},         {"attention_recent", KVANT_METRIC_RECENT},
        {"attention_kl", KVANT_METRIC_DIVERGENCE},     {"device_attention_rms", KVANT_METRIC_DEVICE},
    };
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++)
        json_object_set_new(object, metrics[i].name, spread_json(eval, metrics[i].metric));
}

static json_t *result_json(const eval_report *report, const eval_result *result) {
    const kvant_eval *eval = result->eval;
    kvant_account all = kvant_eval_account(eval), key = kvant_eval_side_account(eval, KVANT_SIDE_KEY);
    kvant_account value = kvant_eval_side_account(eval, KVANT_SIDE_VALUE);
    json_t *object = json_pack(
        "{s:o, s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:o, s:b, s:o, s:o, s:I, s:o}", "pipeline",
        text(result->pipeline), "source", text(result->source), "dump",
        text(report->dumps[result->dump].file), "block_tokens", (int)eval->block_tokens, "sinks",
        (int)eval->sinks, "recent", (int)eval->recent, "tokens", (int)eval->tokens, "coded_tokens",
        (int)eval->coded_tokens, "raw_fraction",
        number((double)(eval->tokens - eval->coded_tokens) / (double)eval->tokens), "coded_under_90_percent",
        (int)eval_codes_little(eval), "payload_bits", number(kvant_account_payload(&all)), "all_in_bits",
        number(kvant_account_all(&all)), "bytes", (json_int_t)kvant_account_bytes(&all), "bytes_per_token",
        number((double)kvant_account_bytes(&all) / (double)eval->tokens));
    json_object_set_new(object, "key_size", account_json(&key));
    json_object_set_new(object, "value_size", account_json(&value));
    add_metrics(object, eval);
    json_object_set_new(object, "worst_head", worst_head_json(eval));
    double encode = kvant_eval_encode_speed(eval), decode = kvant_eval_decode_speed(eval);
    bool there = eval->on_device;
    json_object_set_new(object, "encode_gb_per_second", if_measured(!there, encode));
    json_object_set_new(object, "decode_gb_per_second", if_measured(!there, decode));
    json_object_set_new(object, "device_encode_gb_per_second", if_measured(there, encode));
    json_object_set_new(object, "device_decode_gb_per_second", if_measured(there, decode));
    json_object_set_new(object, "layers", layers_json(eval));
    return object;
}

static json_t *dump_json(const eval_dump *dump) {
    return json_pack("{s:o, s:o, s:o, s:i, s:i, s:i, s:b, s:b, s:b, s:b}", "file", text(dump->file), "name",
                     text(dump->name), "model", text(dump->model), "layers", (int)dump->layers, "tokens",
                     (int)dump->tokens, "query_tokens", (int)dump->query_tokens, "keys_before_rope",
                     (int)dump->keys_before_rope, "has_keys", (int)dump->has_keys, "has_values",
                     (int)dump->has_values, "has_queries", (int)dump->has_queries);
}

static json_t *device_json(const eval_report *report) {
    const kvant_device_info *d = &report->device;
    char capability[32];
    if (!report->on_device) return json_null();
    (void)snprintf(capability, sizeof capability, "%u.%u", d->major, d->minor);
    return json_pack("{s:i, s:o, s:s, s:i}", "number", (int)report->ordinal, "name", text(d->name),
                     "compute_capability", capability, "multiprocessors", (int)d->multiprocessors);
}

bool eval_print_json(const eval_report *report, FILE *stream) {
    json_t *dumps = json_array(), *results = json_array();
    for (uint32_t i = 0; i < report->dump_count; i++)
        json_array_append_new(dumps, dump_json(&report->dumps[i]));
    for (uint32_t i = 0; i < report->result_count; i++)
        json_array_append_new(results, result_json(report, &report->results[i]));
    json_t *root = json_pack("{s:s, s:s, s:o, s:o, s:o}", "kvant", kvant_version(), "command", "eval",
                             "device", device_json(report), "dumps", dumps, "results", results);
    bool done = root != NULL && json_array_size(results) == report->result_count &&
                json_array_size(dumps) == report->dump_count && json_dumpf(root, stream, JSON_INDENT(1)) == 0;
    if (done) fputc('\n', stream);
    json_decref(root);
    return done;
}

/* ---- CSV ----------------------------------------------------------------------------------------------- */

/* RFC 4180: quotes where they are needed. A leading comma but for the first field of a line. */
static void csv_text(FILE *stream, bool first, const char *text) {
    if (!first) fputc(',', stream);
    bool quote = false;
    for (const char *c = text; *c != '\0'; c++)
        quote = quote || *c == ',' || *c == '"' || *c == '\n' || *c == '\r';
    if (quote) fputc('"', stream);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"') fputc('"', stream);
        fputc(*c, stream);
    }
    if (quote) fputc('"', stream);
}

/* An empty field = not measured. */
static void csv_number(FILE *stream, double x) {
    if (isnan(x))
        fputc(',', stream);
    else
        fprintf(stream, ",%.9g", x);
}

static void csv_result(const eval_report *report, const eval_result *result, FILE *stream) {
    const kvant_eval *eval = result->eval;
    kvant_account account = kvant_eval_account(eval);
    csv_text(stream, true, result->pipeline);
    csv_text(stream, false, report->dumps[result->dump].file);
    fprintf(stream, ",%u,%u", eval->tokens, eval->coded_tokens);
    csv_number(stream, kvant_account_payload(&account));
    csv_number(stream, kvant_account_all(&account));
    csv_number(stream, (double)kvant_account_bytes(&account) / (double)eval->tokens);
    for (kvant_metric m = 0; m < KVANT_METRIC_COUNT; m++) {
        kvant_spread spread = {.median = NAN, .worst = NAN};
        (void)kvant_eval_spread(eval, m, &spread);
        csv_number(stream, spread.median);
        csv_number(stream, spread.worst);
        csv_number(stream, isnan(spread.worst) ? (double)NAN : (double)spread.layer);
    }
    const double speeds[2] = {kvant_eval_encode_speed(eval), kvant_eval_decode_speed(eval)};
    for (int i = 0; i < 4; i++) csv_number(stream, eval->on_device == (i >= 2) ? speeds[i % 2] : (double)NAN);
    fputc('\n', stream);
}

static void csv_layers(const eval_report *report, const eval_result *result, FILE *stream) {
    for (uint32_t l = 0; l < result->eval->layer_count; l++) {
        const kvant_eval_layer *layer = &result->eval->layers[l];
        csv_text(stream, true, result->pipeline);
        csv_text(stream, false, report->dumps[result->dump].file);
        fprintf(stream, ",%u", l);
        for (uint32_t side = 0; side < 2; side++) {
            const kvant_eval_side *s = &layer->sides[side];
            csv_text(stream, false, s->measured ? s->codec : "");
            csv_number(stream, s->measured ? kvant_account_payload(&s->account) : (double)NAN);
            csv_number(stream, s->measured ? kvant_account_all(&s->account) : (double)NAN);
        }
        for (kvant_metric m = 0; m < KVANT_METRIC_COUNT; m++) csv_number(stream, kvant_eval_metric(layer, m));
        fputc('\n', stream);
    }
}

/* In the order of kvant_metric. */
static const char *const metric_names[KVANT_METRIC_COUNT] = {
    "key_nmse",           "value_nmse",           "key_cosine",     "value_cosine",
    "attention_key_only", "attention_value_only", "attention_both", "attention_recent",
    "attention_kl",       "device_attention_rms"};

void eval_print_csv(const eval_report *report, bool layers, FILE *stream) {
    if (layers)
        fputs("pipeline,dump,layer,key_codec,key_payload_bits,key_all_in_bits,value_codec,value_payload_bits,"
              "value_all_in_bits",
              stream);
    else
        fputs("pipeline,dump,tokens,coded_tokens,payload_bits,all_in_bits,bytes_per_token", stream);
    for (int m = 0; m < KVANT_METRIC_COUNT; m++) {
        const char *name = metric_names[m];
        if (layers)
            fprintf(stream, ",%s", name);
        else
            fprintf(stream, ",%s_median,%s_worst,%s_worst_layer", name, name, name);
    }
    fputs(layers ? "\n"
                 : ",encode_gb_per_second,decode_gb_per_second,"
                   "device_encode_gb_per_second,device_decode_gb_per_second\n",
          stream);
    for (uint32_t i = 0; i < report->result_count; i++)
        (layers ? csv_layers : csv_result)(report, &report->results[i], stream);
}
