/* Internal to `kvant eval`: what a run of the command found, and the forms it is printed in. */
#ifndef KVANT_TOOLS_EVAL_REPORT_H
#define KVANT_TOOLS_EVAL_REPORT_H

#include "base/text.h"
#include "measure/eval_run.h"

#include <stdio.h>

typedef struct eval_dump {
    char *file;  /* as given */
    char *name;  /* without folders and suffix */
    char *model; /* "" = unknown */
    uint32_t layers;
    uint32_t tokens;
    uint32_t query_tokens;
    bool keys_before_rope;
    bool has_keys, has_values, has_queries;
} eval_dump;

typedef struct eval_result {
    char *pipeline; /* its name, or the argument where two pipelines of this run have the same name */
    char *source;   /* the argument */
    uint32_t dump;  /* index */
    kvant_eval *eval;
} eval_result;

/* Results are sorted by dump, then in the order of the command line. */
typedef struct eval_report {
    bool on_device;
    uint32_t ordinal; /* of the device */
    kvant_device_info device;
    eval_dump *dumps;
    uint32_t dump_count;
    eval_result *results;
    uint32_t result_count;
} eval_report;

/* A pipeline that codes less than this part of a dump is marked: its numbers speak for few tokens. */
#define EVAL_CODED_ENOUGH 0.9
bool eval_codes_little(const kvant_eval *eval);

/* "fused", "split", "rows": how a device attends (KVANT_DEVICE_ATTEND_*). */
const char *eval_attends_name(uint32_t attends);

/* What is said of a run on a device besides its numbers: how far its own attention is off; that its driver
 * had to compile. False where there is nothing to say. `text` has room for EVAL_NOTE characters. */
enum { EVAL_NOTE = 512 };
bool eval_attention_note(const kvant_eval *eval, char *text);
bool eval_compiled_note(const kvant_eval *eval, char *text);

/* Short forms of numbers: "-" for NaN, "inf", 3 or 4 digits. `text` has room for 16 characters. */
enum { EVAL_NUMBER = 16 };
void eval_format_small(char *text, double x); /* 9.6e-03 */
void eval_format_error(char *text, double x); /* 0.1563 */
void eval_format_decimal(char *text, double x, int digits);

/* The terminal's table; with `layers` a table per pipeline and dump besides. */
void eval_print_table(const eval_report *report, bool layers);

/* One document; false = out of memory. Field names: docs/json.md. */
bool eval_print_json(const eval_report *report, FILE *stream);

/* One line per result, with `layers` one per result and layer; the first line names the columns. */
void eval_print_csv(const eval_report *report, bool layers, FILE *stream);

/* One self-contained page. Runs gnuplot for its plots. */
kvant_status eval_write_html(const eval_report *report, const char *file, kvant_diag *diag);

/* gnuplot's SVG for a script, without anything in front of "<svg". Appends to `svg`. */
kvant_status eval_plot(const char *script, kvant_text *svg, kvant_diag *diag);

#endif
