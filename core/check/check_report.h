/* How a report grows. False where there is no memory. */
#ifndef KVANT_CHECK_REPORT_H
#define KVANT_CHECK_REPORT_H

#include "check_board.h"

bool check_report_add_failure(check_report *report, check_id id, int64_t number, const char *configuration,
                              const char *message);
bool check_report_add_note(check_report *report, const char *message);
bool check_report_set_plugin(check_report *report, const char *name, const char *version, const char *file,
                             const char *device);

/* Sorts, and takes the numbers from the board. */
void check_report_finish(check_report *report, const check_board *board);

#endif
