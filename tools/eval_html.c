/* `kvant eval --html`: one page without anything from outside: tables, error against bits, errors per
 * layer. */
#include "eval_report.h"

#include <kvant/kit/diag.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char page_head[] =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<title>kvant eval</title>\n<style>\n"
    "body { font: 15px/1.45 sans-serif; margin: 2em auto; max-width: 90em; padding: 0 1em; color: #222; }\n"
    "table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto; }\n"
    "th, td { padding: .25em .6em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }\n"
    "th { background: #f4f4f4; vertical-align: bottom; }\n"
    "th:first-child, td:first-child { text-align: left; }\n"
    "td { font-variant-numeric: tabular-nums; }\n"
    "svg { max-width: 60em; width: 100%; height: auto; }\n"
    ".note { color: #555; }\n"
    "</style>\n</head>\n<body>\n<h1>kvant eval</h1>\n"
    "<p class=\"note\">NMSE and cosine are those of coded tokens. Attention error is ||o - o'|| / ||o|| over "
    "all query "
    "rows and heads of a layer, against attention in double precision. Every whole block is coded but for "
    "the sinks; "
    "&ldquo;recent&rdquo; keeps the pipeline's recent window raw. Numbers are medians over layers unless "
    "they say "
    "otherwise. GB/s are those of one thread or of the device, at 4 bytes an element.</p>\n";

/* Text into HTML. Control characters would end up as nothing that a browser shows. */
static void put_escaped(kvant_text *page, const char *text) {
    for (const char *c = text; *c != '\0'; c++) switch (*c) {
        case '&':
            kvant_text_puts(page, "&amp;");
            break;
        case '<':
            kvant_text_puts(page, "&lt;");
            break;
        case '>':
            kvant_text_puts(page, "&gt;");
            break;
        case '"':
            kvant_text_puts(page, "&quot;");
            break;
        case '\'':
            kvant_text_puts(page, "&#39;");
            break;
        default:
            if ((unsigned char)*c < 0x20 || *c == 0x7f)
                kvant_text_puts(page, "?");
            else
                kvant_text_append(page, c, 1);
        }
}

static void put_cell(kvant_text *page, const char *text) {
    kvant_text_puts(page, "<td>");
    put_escaped(page, text);
    kvant_text_puts(page, "</td>");
}

static void put_small(kvant_text *page, double x) {
    char text[EVAL_NUMBER];
    eval_format_small(text, x);
    put_cell(page, text);
}

static void put_error(kvant_text *page, double x) {
    char text[EVAL_NUMBER];
    eval_format_error(text, x);
    put_cell(page, text);
}

static void put_decimal(kvant_text *page, double x, int digits) {
    char text[EVAL_NUMBER];
    eval_format_decimal(text, x, digits);
    put_cell(page, text);
}

static kvant_spread spread_of(const kvant_eval *eval, kvant_metric metric) {
    kvant_spread spread = {.median = NAN, .worst = NAN};
    (void)kvant_eval_spread(eval, metric, &spread);
    return spread;
}

static void put_worst(kvant_text *page, const kvant_spread *spread, void (*format)(char *, double)) {
    char number[EVAL_NUMBER], text[3 * EVAL_NUMBER];
    format(number, spread->worst);
    if (isnan(spread->worst))
        (void)snprintf(text, sizeof text, "-");
    else
        (void)snprintf(text, sizeof text, "%s (layer %u)", number, spread->layer);
    put_cell(page, text);
}

static void put_worst_head(kvant_text *page, const kvant_eval *eval) {
    char number[EVAL_NUMBER], text[5 * EVAL_NUMBER] = "-";
    uint32_t layer, head;
    double error;
    if (kvant_eval_worst_head(eval, &layer, &head, &error)) {
        eval_format_error(number, error);
        (void)snprintf(text, sizeof text, "%s (layer %u, head %u)", number, layer, head);
    }
    put_cell(page, text);
}

static const char summary_head[] =
    "<table>\n<tr><th>pipeline</th><th>bits<br>codes</th><th>bits<br>all</th><th>bytes<br>a token</th>"
    "<th>raw<br>%</th><th>K NMSE</th><th>K NMSE<br>worst</th><th>V NMSE</th><th>V NMSE<br>worst</th>"
    "<th>K cosine</th><th>V cosine</th><th>attention<br>K only</th><th>V only</th><th>both</th>"
    "<th>both<br>worst layer</th><th>worst head</th><th>recent<br>raw</th><th>KL of rows</th>"
    "<th>encode<br>GB/s</th><th>decode<br>GB/s</th></tr>\n";

static void put_summary_row(kvant_text *page, const eval_result *result) {
    const kvant_eval *eval = result->eval;
    kvant_account account = kvant_eval_account(eval);
    kvant_spread key = spread_of(eval, KVANT_METRIC_KEY_NMSE),
                 value = spread_of(eval, KVANT_METRIC_VALUE_NMSE);
    kvant_spread both = spread_of(eval, KVANT_METRIC_BOTH);
    kvant_text_puts(page, "<tr><td>");
    put_escaped(page, result->pipeline);
    kvant_text_puts(page, eval_codes_little(eval) ? " *</td>" : "</td>");
    put_decimal(page, kvant_account_payload(&account), 3);
    put_decimal(page, kvant_account_all(&account), 3);
    put_decimal(page, (double)kvant_account_bytes(&account) / eval->tokens, 1);
    put_decimal(page, 100.0 * (eval->tokens - eval->coded_tokens) / eval->tokens, 1);
    put_small(page, key.median);
    put_worst(page, &key, eval_format_small);
    put_small(page, value.median);
    put_worst(page, &value, eval_format_small);
    put_decimal(page, spread_of(eval, KVANT_METRIC_KEY_COSINE).median, 5);
    put_decimal(page, spread_of(eval, KVANT_METRIC_VALUE_COSINE).median, 5);
    put_error(page, spread_of(eval, KVANT_METRIC_KEY_ONLY).median);
    put_error(page, spread_of(eval, KVANT_METRIC_VALUE_ONLY).median);
    put_error(page, both.median);
    put_worst(page, &both, eval_format_error);
    put_worst_head(page, eval);
    put_error(page, spread_of(eval, KVANT_METRIC_RECENT).median);
    put_small(page, spread_of(eval, KVANT_METRIC_DIVERGENCE).median);
    put_decimal(page, kvant_eval_encode_speed(eval), 2);
    put_decimal(page, kvant_eval_decode_speed(eval), 2);
    kvant_text_puts(page, "</tr>\n");
}

static void put_layers(kvant_text *page, const eval_result *result) {
    kvant_text_puts(page, "<details><summary>");
    put_escaped(page, result->pipeline);
    kvant_text_puts(
        page, ", layer by layer</summary>\n<table>\n<tr><th>layer</th><th>key</th><th>bits</th><th>NMSE</th>"
              "<th>cosine</th><th>value</th><th>bits</th><th>NMSE</th><th>cosine</th><th>attention<br>K only"
              "</th><th>V only</th><th>both</th><th>recent<br>raw</th><th>KL of rows</th></tr>\n");
    for (uint32_t l = 0; l < result->eval->layer_count; l++) {
        const kvant_eval_layer *layer = &result->eval->layers[l];
        kvant_text_printf(page, "<tr><td>%u</td>", l);
        for (uint32_t side = 0; side < 2; side++) {
            const kvant_eval_side *s = &layer->sides[side];
            put_cell(page, s->measured ? s->codec : "-");
            put_decimal(page, s->measured ? kvant_account_all(&s->account) : (double)NAN, 3);
            put_small(page, kvant_quality_nmse(&s->quality));
            put_decimal(page, kvant_quality_cosine(&s->quality), 5);
        }
        for (kvant_metric m = KVANT_METRIC_KEY_ONLY; m <= KVANT_METRIC_RECENT; m++)
            put_error(page, kvant_eval_metric(layer, m));
        put_small(page, kvant_eval_metric(layer, KVANT_METRIC_DIVERGENCE));
        kvant_text_puts(page, "</tr>\n");
    }
    kvant_text_puts(page, "</table>\n</details>\n");
}

/* ---- Plots --------------------------------------------------------------------------------------------- */

/* The number that a dump's plots show. */
static kvant_metric plotted(const eval_dump *dump) {
    if (dump->has_keys && dump->has_values && dump->has_queries) return KVANT_METRIC_BOTH;
    return dump->has_keys ? KVANT_METRIC_KEY_NMSE : KVANT_METRIC_VALUE_NMSE;
}

static const char *plotted_text(kvant_metric metric) {
    if (metric == KVANT_METRIC_BOTH) return "attention error, both sides";
    return metric == KVANT_METRIC_KEY_NMSE ? "NMSE of keys" : "NMSE of values";
}

/* A single-quoted string of gnuplot, where only the quote itself needs care. */
static void put_quoted(kvant_text *script, const char *text) {
    kvant_text_puts(script, "'");
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '\'')
            kvant_text_puts(script, "''");
        else if ((unsigned char)*c < 0x20 || *c == 0x7f)
            kvant_text_puts(script, "?");
        else
            kvant_text_append(script, c, 1);
    }
    kvant_text_puts(script, "'");
}

/* What a logarithmic axis can show. */
static bool drawable(double x) {
    return isfinite(x) && x > 0;
}

/* Error against bits: a point per pipeline at its median layer, a bar up to its worst one. False = nothing to
 * draw. */
static bool scatter_script(const eval_report *report, uint32_t dump, kvant_text *script) {
    kvant_metric metric = plotted(&report->dumps[dump]);
    kvant_text data = {0}, plots = {0};
    double most = 0;
    for (uint32_t i = 0; i < report->result_count; i++) {
        const eval_result *result = &report->results[i];
        kvant_spread spread = spread_of(result->eval, metric);
        kvant_account account = kvant_eval_account(result->eval);
        double bits = kvant_account_all(&account);
        if (result->dump != dump || !drawable(spread.median) || !drawable(bits)) continue;
        if (bits > most) most = bits;
        kvant_text_printf(&plots, "%s'-' using 1:2:2:3 with yerrorbars pt 7 ps 0.8 lw 1.5 title ",
                          plots.size > 0 ? ", " : "plot ");
        put_quoted(&plots, result->pipeline);
        kvant_text_printf(&data, "%.9g %.9g %.9g\ne\n", bits, spread.median,
                          drawable(spread.worst) ? spread.worst : spread.median);
    }
    bool any = plots.size > 0;
    if (any) {
        kvant_text_printf(
            script,
            "set terminal svg size 860,430 dynamic noenhanced font 'sans-serif,12'\n"
            "set key outside right top\nset logscale y\nset grid\nset xrange [0:%.9g]\n"
            "set title '%s'\nset format y '%%g'\nset xlabel 'bits per element, everything counted'\n"
            "set ylabel 'median layer, bar: up to the worst'\n",
            most * 1.1, plotted_text(metric));
        kvant_text_append(script, plots.data, plots.size);
        kvant_text_puts(script, "\n");
        kvant_text_append(script, data.data, data.size);
    }
    script->failed = script->failed || plots.failed || data.failed;
    kvant_text_free(&plots);
    kvant_text_free(&data);
    return any;
}

/* Labels of a logarithmic colour scale that may span less than a decade: both ends and the middle. */
static void put_colours(kvant_text *script, double low, double high) {
    if (low == high) {
        low *= 0.9;
        high *= 1.1;
    }
    double middle = sqrt(low) * sqrt(high);
    kvant_text_printf(script,
                      "set logscale cb\nset cbrange [%.9g:%.9g]\n"
                      "set cbtics ('%.2g' %.9g, '%.2g' %.9g, '%.2g' %.9g)\n"
                      "set palette defined (0 '#fff7ec', 1 '#fdbb84', 2 '#d7301f', 3 '#7f0000')\n",
                      low, high, low, low, middle, middle, high, high);
}

/* The heat map: a row per pipeline, a column per layer. */
static bool heat_script(const eval_report *report, uint32_t dump, kvant_text *script) {
    kvant_metric metric = plotted(&report->dumps[dump]);
    kvant_text data = {0}, names = {0};
    uint32_t rows = 0, layers = report->dumps[dump].layers;
    double low = INFINITY, high = 0;
    for (uint32_t i = 0; i < report->result_count; i++) {
        const eval_result *result = &report->results[i];
        if (result->dump != dump) continue;
        if (rows > 0) kvant_text_puts(&names, ", ");
        put_quoted(&names, result->pipeline);
        kvant_text_printf(&names, " %u", rows);
        for (uint32_t l = 0; l < layers; l++) {
            double x = kvant_eval_metric(&result->eval->layers[l], metric);
            if (drawable(x)) {
                low = fmin(low, x);
                high = fmax(high, x);
                kvant_text_printf(&data, "%u %u %.9g\n", l, rows, x);
            } else {
                kvant_text_printf(&data, "%u %u NaN\n", l, rows);
            }
        }
        rows++;
    }
    bool any = high > 0;
    if (any) {
        kvant_text_printf(script,
                          "set terminal svg size 860,%u dynamic noenhanced font 'sans-serif,12'\n"
                          "set title '%s, by layer'\nset xlabel 'layer'\nset xtics out 0, %u\n"
                          "set xrange [-0.5:%u.5]\nset yrange [%u.5:-0.5]\nset ytics out (%s)\n",
                          130 + 26 * rows, plotted_text(metric), layers > 20 ? 5u : 1u, layers - 1, rows - 1,
                          names.data);
        put_colours(script, low, high);
        kvant_text_puts(script, "plot '-' using 1:2:3 with image pixels notitle\n");
        kvant_text_append(script, data.data, data.size);
        kvant_text_puts(script, "e\n");
    }
    script->failed = script->failed || names.failed || data.failed;
    kvant_text_free(&names);
    kvant_text_free(&data);
    return any;
}

/* gnuplot gives every plot the same ids; a page may have each once. Puts `prefix` in front of definitions and
 * uses. */
static void put_svg(kvant_text *page, const char *svg, const char *prefix) {
    static const char *const marks[] = {" id='", " id=\"", "href='#", "href=\"#", "url(#"};
    while (*svg != '\0') {
        size_t size = 1;
        bool mark = false;
        for (size_t i = 0; i < sizeof marks / sizeof marks[0] && !mark; i++) {
            mark = strncmp(svg, marks[i], strlen(marks[i])) == 0;
            if (mark) size = strlen(marks[i]);
        }
        kvant_text_append(page, svg, size);
        if (mark) kvant_text_puts(page, prefix);
        svg += size;
    }
}

static kvant_status put_plot(kvant_text *page, const char *title,
                             bool (*write)(const eval_report *, uint32_t, kvant_text *),
                             const eval_report *report, uint32_t dump, kvant_diag *diag) {
    kvant_text script = {0}, svg = {0};
    kvant_status status = KVANT_OK;
    bool any = write(report, dump, &script);
    kvant_text_printf(page, "<h3>%s</h3>\n", title);
    if (script.failed)
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for a plot");
    else if (any)
        status = eval_plot(script.data, &svg, diag);
    else
        kvant_text_puts(page, "<p class=\"note\">Nothing to draw: no error above zero.</p>\n");
    if (status == KVANT_OK && any) {
        char prefix[32];
        (void)snprintf(prefix, sizeof prefix, "%c%u-", title[0], dump);
        put_svg(page, svg.data != NULL ? svg.data : "", prefix);
    }
    kvant_text_free(&script);
    kvant_text_free(&svg);
    return status;
}

/* ---- The page ------------------------------------------------------------------------------------------ */

static void put_device(kvant_text *page, const eval_report *report) {
    if (!report->on_device) return;
    kvant_text_printf(page, "<p>Device %u: ", report->ordinal);
    put_escaped(page, report->device.name);
    kvant_text_printf(page, ", compute capability %u.%u</p>\n", report->device.major, report->device.minor);
}

static void put_note(kvant_text *page, const eval_result *result, const char *text) {
    kvant_text_puts(page, "<p class=\"note\">device: ");
    put_escaped(page, result->pipeline);
    kvant_text_puts(page, ": ");
    put_escaped(page, text);
    kvant_text_puts(page, "</p>\n");
}

static kvant_status put_dump(kvant_text *page, const eval_report *report, uint32_t dump, kvant_diag *diag) {
    const eval_dump *d = &report->dumps[dump];
    kvant_text_puts(page, "<h2>");
    put_escaped(page, d->name);
    kvant_text_printf(page, "</h2>\n<p>%u layers, %u tokens, %u query rows", d->layers, d->tokens,
                      d->query_tokens);
    if (d->model[0] != '\0') kvant_text_puts(page, "; ");
    put_escaped(page, d->model);
    kvant_text_puts(page, "</p>\n");
    kvant_text_puts(page, summary_head);
    bool little = false;
    for (uint32_t i = 0; i < report->result_count; i++) {
        if (report->results[i].dump != dump) continue;
        put_summary_row(page, &report->results[i]);
        little = little || eval_codes_little(report->results[i].eval);
    }
    kvant_text_puts(page, "</table>\n");
    if (little)
        kvant_text_puts(
            page, "<p class=\"note\">* codes under 90 % of the tokens: its numbers speak for few.</p>\n");
    for (uint32_t i = 0; i < report->result_count; i++) {
        char text[EVAL_NOTE];
        const eval_result *result = &report->results[i];
        if (result->dump == dump && eval_attention_note(result->eval, text)) put_note(page, result, text);
        if (result->dump == dump && eval_compiled_note(result->eval, text)) put_note(page, result, text);
    }
    if (!d->has_keys || !d->has_values || !d->has_queries)
        kvant_text_printf(page, "<p class=\"note\">-: not measured; the dump has no%s%s%s.</p>\n",
                          d->has_keys ? "" : " keys", d->has_values ? "" : " values",
                          d->has_queries ? "" : " queries");
    kvant_status status = put_plot(page, "Error against bits", scatter_script, report, dump, diag);
    if (status == KVANT_OK) status = put_plot(page, "Layers", heat_script, report, dump, diag);
    for (uint32_t i = 0; status == KVANT_OK && i < report->result_count; i++)
        if (report->results[i].dump == dump) put_layers(page, &report->results[i]);
    return status;
}

kvant_status eval_write_html(const eval_report *report, const char *file, kvant_diag *diag) {
    kvant_text page = {0};
    kvant_status status = KVANT_OK;
    kvant_text_puts(&page, page_head);
    put_device(&page, report);
    for (uint32_t dump = 0; dump < report->dump_count && status == KVANT_OK; dump++)
        status = put_dump(&page, report, dump, diag);
    kvant_text_printf(&page, "<p class=\"note\">kvant %s</p>\n</body>\n</html>\n", kvant_version());
    if (status == KVANT_OK && page.failed)
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for the page");
    if (status == KVANT_OK) {
        FILE *stream = fopen(file, "wb");
        bool done = stream != NULL && fwrite(page.data, 1, page.size, stream) == page.size;
        int error = errno;
        if (stream != NULL && fclose(stream) != 0 && done) {
            done = false;
            error = errno;
        }
        if (!done) {
            status = kvant_fail(diag, KVANT_ERROR_IO, "", "cannot write: %s", strerror(error));
            if (diag != NULL) (void)snprintf(diag->file, sizeof diag->file, "%s", file);
        }
    }
    kvant_text_free(&page);
    return status;
}
