/* `kvant eval` on a terminal: one table per dump, a line per pipeline, in at most about 130 columns. */
#include "eval_report.h"

#include <math.h>
#include <string.h>

bool eval_codes_little(const kvant_eval *eval) {
    return (double)eval->coded_tokens < EVAL_CODED_ENOUGH * (double)eval->tokens;
}

const char *eval_attends_name(uint32_t attends) {
    return attends == KVANT_DEVICE_ATTEND_FUSED   ? "fused"
           : attends == KVANT_DEVICE_ATTEND_SPLIT ? "split"
                                                  : "rows";
}

void eval_format_small(char *text, double x) {
    if (isnan(x))
        (void)snprintf(text, EVAL_NUMBER, "-");
    else if (x == 0)
        (void)snprintf(text, EVAL_NUMBER, "0");
    else
        (void)snprintf(text, EVAL_NUMBER, "%.1e", x);
}

void eval_format_error(char *text, double x) {
    if (isnan(x))
        (void)snprintf(text, EVAL_NUMBER, "-");
    else if (x == 0)
        (void)snprintf(text, EVAL_NUMBER, "0");
    else if (x < 0.001)
        (void)snprintf(text, EVAL_NUMBER, "%.0e", x);
    else if (x < 10)
        (void)snprintf(text, EVAL_NUMBER, "%.4f", x);
    else
        (void)snprintf(text, EVAL_NUMBER, "%.4g", x);
}

void eval_format_decimal(char *text, double x, int digits) {
    if (isnan(x))
        (void)snprintf(text, EVAL_NUMBER, "-");
    else
        (void)snprintf(text, EVAL_NUMBER, "%.*f", digits, x);
}

static kvant_spread spread_of(const kvant_eval *eval, kvant_metric metric) {
    kvant_spread spread = {.median = NAN, .worst = NAN};
    (void)kvant_eval_spread(eval, metric, &spread);
    return spread;
}

static void print_small(double x, int width) {
    char text[EVAL_NUMBER];
    eval_format_small(text, x);
    printf(" %*s", width, text);
}

static void print_error(double x, int width) {
    char text[EVAL_NUMBER];
    eval_format_error(text, x);
    printf(" %*s", width, text);
}

static void print_decimal(double x, int digits, int width) {
    char text[EVAL_NUMBER];
    eval_format_decimal(text, x, digits);
    printf(" %*s", width, text);
}

/* "0.2229 L13" */
static void print_worst(const kvant_spread *spread, int width) {
    char number[EVAL_NUMBER], text[2 * EVAL_NUMBER];
    eval_format_error(number, spread->worst);
    if (isnan(spread->worst))
        (void)snprintf(text, sizeof text, "-");
    else if (spread->worst == 0) /* no layer is worse than another */
        (void)snprintf(text, sizeof text, "0");
    else
        (void)snprintf(text, sizeof text, "%s L%u", number, spread->layer);
    printf(" %*s", width, text);
}

/* "13.4": layer and query head */
static void print_worst_head(const kvant_eval *eval, int width) {
    char text[2 * EVAL_NUMBER] = "-";
    uint32_t layer, head;
    double error;
    if (kvant_eval_worst_head(eval, &layer, &head, &error) && error > 0)
        (void)snprintf(text, sizeof text, "%u.%u", layer, head);
    printf(" %*s", width, text);
}

static void print_header(int width) {
    printf("%-*s        bits    bytes          NMSE                      attention error                   "
           "worst     row"
           "   raw      GB/s\n",
           width, "");
    printf("%-*s  codes   all   /token       K K worst       V  K only V only   both      worst recent   "
           "head      KL"
           "     %%  enc  dec\n",
           width, "pipeline");
}

static void print_result(const eval_result *result, int width) {
    const kvant_eval *eval = result->eval;
    kvant_account account = kvant_eval_account(eval);
    kvant_spread key = spread_of(eval, KVANT_METRIC_KEY_NMSE), both = spread_of(eval, KVANT_METRIC_BOTH);
    char name[512];
    (void)snprintf(name, sizeof name, "%.500s%s", result->pipeline, eval_codes_little(eval) ? "*" : "");
    printf("%-*s", width, name);
    print_decimal(kvant_account_payload(&account), 2, 6);
    print_decimal(kvant_account_all(&account), 2, 5);
    print_decimal((double)kvant_account_bytes(&account) / eval->tokens, 0, 8);
    print_small(key.median, 7);
    print_small(key.worst, 7);
    print_small(spread_of(eval, KVANT_METRIC_VALUE_NMSE).median, 7);
    print_error(spread_of(eval, KVANT_METRIC_KEY_ONLY).median, 7);
    print_error(spread_of(eval, KVANT_METRIC_VALUE_ONLY).median, 6);
    print_error(both.median, 6);
    print_worst(&both, 10);
    print_error(spread_of(eval, KVANT_METRIC_RECENT).median, 6);
    print_worst_head(eval, 6);
    print_small(spread_of(eval, KVANT_METRIC_DIVERGENCE).median, 7);
    print_decimal(100.0 * (eval->tokens - eval->coded_tokens) / eval->tokens, 1, 5);
    print_decimal(kvant_eval_encode_speed(eval), 1, 4);
    print_decimal(kvant_eval_decode_speed(eval), 1, 4);
    putchar('\n');
}

/* ---- Per layer ----------------------------------------------------------------------------------------- */

static void print_layers(const eval_result *result, const eval_dump *dump) {
    const kvant_eval *eval = result->eval;
    printf("\n%s on %s, layer by layer\n", result->pipeline, dump->name);
    printf("layer key              bits  K NMSE  cosine  value            bits  V NMSE  cosine   K only V "
           "only   both"
           " recent  head      KL%s\n",
           eval->on_device ? "  device" : "");
    for (uint32_t l = 0; l < eval->layer_count; l++) {
        const kvant_eval_layer *layer = &eval->layers[l];
        printf("%5u", l);
        for (uint32_t side = 0; side < 2; side++) {
            const kvant_eval_side *s = &layer->sides[side];
            printf(" %-14.14s", s->measured ? s->codec : "-");
            print_decimal(s->measured ? kvant_account_all(&s->account) : (double)NAN, 2, 6);
            print_small(kvant_quality_nmse(&s->quality), 7);
            print_decimal(kvant_quality_cosine(&s->quality), 5, 7);
            putchar(' ');
        }
        for (kvant_metric m = KVANT_METRIC_KEY_ONLY; m <= KVANT_METRIC_RECENT; m++)
            print_error(kvant_eval_metric(layer, m), m == KVANT_METRIC_KEY_ONLY ? 7 : 6);
        kvant_eval one = *eval; /* the worst head of this layer alone */
        one.layers = &eval->layers[l];
        one.layer_count = 1;
        uint32_t ignored, head;
        double error;
        if (kvant_eval_worst_head(&one, &ignored, &head, &error) && error > 0)
            printf(" %5u", head);
        else
            printf(" %5s", "-");
        print_small(kvant_eval_metric(layer, KVANT_METRIC_DIVERGENCE), 7);
        if (eval->on_device) print_small(kvant_eval_metric(layer, KVANT_METRIC_DEVICE), 7);
        putchar('\n');
    }
}

/* ---- Notes --------------------------------------------------------------------------------------------- */

bool eval_attention_note(const kvant_eval *eval, char *text) {
    kvant_spread rms = spread_of(eval, KVANT_METRIC_DEVICE);
    uint32_t layer;
    double of_allowed;
    if (!kvant_eval_device_worst(eval, &layer, &of_allowed)) return false;
    (void)snprintf(
        text, EVAL_NOTE,
        "its own attention (%s) differs from that of the decoded rows by %.1e in the middle layer and "
        "%.1e in layer %u, at most %.2g of what is allowed",
        eval_attends_name(eval->layers[layer].device.attends), rms.median, rms.worst, rms.layer, of_allowed);
    return true;
}

bool eval_compiled_note(const kvant_eval *eval, char *text) {
    for (uint32_t l = 0; l < eval->layer_count; l++)
        for (uint32_t side = 0; side < 2; side++) {
            const kvant_eval_side *s = &eval->layers[l].sides[side];
            if (!s->jit) continue;
            (void)snprintf(text, EVAL_NOTE,
                           "the driver compiled PTX of codec %s: it has no cubin for this GPU", s->codec);
            return true;
        }
    return false;
}

static void note_missing(const eval_dump *dump) {
    if (dump->has_keys && dump->has_values && dump->has_queries) return;
    printf("-: %s has no", dump->name);
    const char *separator = " ";
    const struct {
        bool has;
        const char *what;
    } parts[] = {{dump->has_keys, "keys"}, {dump->has_values, "values"}, {dump->has_queries, "queries"}};
    for (int i = 0; i < 3; i++) {
        if (parts[i].has) continue;
        printf("%s%s", separator, parts[i].what);
        separator = ", ";
    }
    printf(": not measured is what needs them\n");
}

static void note_result(const eval_result *result) {
    const kvant_eval *eval = result->eval;
    if (eval_codes_little(eval))
        printf("*: %s codes %u of %u tokens (blocks of %u, %u sinks): its numbers speak for few tokens\n",
               result->pipeline, eval->coded_tokens, eval->tokens, eval->block_tokens, eval->sinks);
    for (uint32_t side = 0; side < 2; side++) {
        uint32_t replaced = 0, first = 0, bad = 0, first_bad = 0;
        for (uint32_t l = eval->layer_count; l-- > 0;) {
            const kvant_eval_side *s = &eval->layers[l].sides[side];
            if (s->asked[0] != '\0') replaced++, first = l;
            if (s->input_not_finite > 0) bad++, first_bad = l;
        }
        const char *name = side == KVANT_SIDE_KEY ? "keys" : "values";
        if (replaced > 0)
            printf("!: %s: %s of %u layers (the first is %u) are coded by %s, since %s cannot serve them\n",
                   result->pipeline, name, replaced, first, eval->layers[first].sides[side].codec,
                   eval->layers[first].sides[side].asked);
        if (bad > 0)
            printf("!: %s: %s of %u layers (the first is %u) had numbers that are not finite, and were "
                   "replaced\n",
                   result->pipeline, name, bad, first_bad);
    }
}

static void note_device(const eval_result *result) {
    char text[EVAL_NOTE];
    if (eval_attention_note(result->eval, text)) printf("device: %s: %s\n", result->pipeline, text);
    if (eval_compiled_note(result->eval, text)) printf("device: %s: %s\n", result->pipeline, text);
}

static const char *rows_text(const eval_dump *dump) {
    return !dump->has_keys ? "" : dump->keys_before_rope ? ", keys before RoPE" : ", keys after RoPE";
}

void eval_print_table(const eval_report *report, bool layers) {
    size_t width = strlen("pipeline");
    for (uint32_t i = 0; i < report->result_count; i++) {
        size_t size = strlen(report->results[i].pipeline) + eval_codes_little(report->results[i].eval);
        if (size > width) width = size;
    }
    if (width > 40) width = 40;
    if (report->on_device)
        printf("device %u: %s, compute capability %u.%u, %u multiprocessors\n\n", report->ordinal,
               report->device.name, report->device.major, report->device.minor,
               report->device.multiprocessors);
    for (uint32_t d = 0; d < report->dump_count; d++) {
        const eval_dump *dump = &report->dumps[d];
        printf("%s%s: %u layers, %u tokens, %u query rows%s\n", d > 0 ? "\n" : "", dump->name, dump->layers,
               dump->tokens, dump->query_tokens, rows_text(dump));
        print_header((int)width);
        for (uint32_t i = 0; i < report->result_count; i++)
            if (report->results[i].dump == d) print_result(&report->results[i], (int)width);
        note_missing(dump);
        for (uint32_t i = 0; i < report->result_count; i++)
            if (report->results[i].dump == d) note_result(&report->results[i]);
        for (uint32_t i = 0; i < report->result_count; i++)
            if (report->results[i].dump == d) note_device(&report->results[i]);
        for (uint32_t i = 0; layers && i < report->result_count; i++)
            if (report->results[i].dump == d) print_layers(&report->results[i], dump);
    }
}
