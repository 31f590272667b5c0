/* The report grows record by record, and is sorted at the end. */
#include "check_report.h"

#include <stdlib.h>
#include <string.h>

enum { FAILURES_MAX = 4096, NOTES_MAX = 64 };

static bool has_failure(const check_report *report, check_id id, int64_t number, const char *message) {
    for (uint32_t i = 0; i < report->failure_count; i++) {
        const check_failure *f = &report->failures[i];
        if (f->id == id && f->number == number && (number >= 0 || strcmp(f->message, message) == 0))
            return true;
    }
    return false;
}

bool check_report_add_failure(check_report *report, check_id id, int64_t number, const char *configuration,
                              const char *message) {
    if (report->failure_count == FAILURES_MAX || has_failure(report, id, number, message)) return true;
    check_failure *failures = realloc(report->failures, (report->failure_count + 1) * sizeof *failures);
    if (failures == NULL) return false;
    report->failures = failures;
    check_failure *f = &failures[report->failure_count];
    *f = (check_failure){id, number, strdup(configuration), strdup(message)};
    report->failure_count++;
    return f->configuration != NULL && f->message != NULL;
}

bool check_report_add_note(check_report *report, const char *message) {
    for (uint32_t i = 0; i < report->note_count; i++)
        if (strcmp(report->notes[i], message) == 0) return true;
    if (report->note_count == NOTES_MAX) return true;
    char **notes = realloc(report->notes, (report->note_count + 1) * sizeof *notes);
    if (notes == NULL) return false;
    report->notes = notes;
    notes[report->note_count] = strdup(message);
    return notes[report->note_count++] != NULL;
}

bool check_report_set_plugin(check_report *report, const char *name, const char *version, const char *file,
                             const char *device) {
    if (report->name != NULL) return true;
    report->name = strdup(name);
    report->version = strdup(version);
    report->file = strdup(file);
    report->device = strdup(device);
    return report->name != NULL && report->version != NULL && report->file != NULL && report->device != NULL;
}

static int compare_failures(const void *left, const void *right) {
    const check_failure *a = left, *b = right;
    if (a->id != b->id) return a->id < b->id ? -1 : 1;
    if (a->number != b->number) return a->number < b->number ? -1 : 1;
    return strcmp(a->message, b->message);
}

static int compare_notes(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

void check_report_finish(check_report *report, const check_board *board) {
    if (report->failure_count > 0)
        qsort(report->failures, report->failure_count, sizeof *report->failures, compare_failures);
    if (report->note_count > 0)
        qsort(report->notes, report->note_count, sizeof *report->notes, compare_notes);
    for (unsigned id = 0; id < CHECK_COUNT; id++)
        report->tallies[id] = (check_tally){.passed = board->tallies[id].passed,
                                            .failed = board->tallies[id].failed,
                                            .refused = board->tallies[id].refused,
                                            .skipped = board->tallies[id].skipped};
    report->configurations = board->items - board->fixed_items;
    report->product = board->product;
    report->pairs = board->pairs;
    report->pairs_accepted = board->pairs_accepted;
}

void check_report_free(check_report *report) {
    for (uint32_t i = 0; i < report->failure_count; i++) {
        free(report->failures[i].configuration);
        free(report->failures[i].message);
    }
    for (uint32_t i = 0; i < report->note_count; i++) free(report->notes[i]);
    free(report->failures);
    free(report->notes);
    free(report->name);
    free(report->version);
    free(report->file);
    free(report->device);
    *report = (check_report){0};
}

bool check_report_failed(const check_report *report) {
    for (unsigned id = 0; id < CHECK_COUNT; id++)
        if (report->tallies[id].failed > 0) return true;
    return report->failure_count > 0;
}
