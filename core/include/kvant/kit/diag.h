/* kvant/kit/diag.h: fill a diagnostic and return its status in one expression.
 *
 *     return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "group", "group %u does not divide %u", group, n);
 */
#ifndef KVANT_KIT_DIAG_H
#define KVANT_KIT_DIAG_H

#include "../types.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* key: the parameter at fault or "". A NULL diag is fine. File and line are the caller's to add. */
__attribute__((format(printf, 4, 5))) static inline kvant_status
kvant_fail(kvant_diag *diag, kvant_status status, const char *key, const char *format, ...) {
    if (diag == NULL || diag->struct_size < sizeof *diag) return status;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(diag->message, sizeof diag->message, format, arguments);
    va_end(arguments);
    (void)snprintf(diag->key, sizeof diag->key, "%s", key != NULL ? key : "");
    diag->file[0] = '\0';
    diag->line = 0;
    return status;
}

#endif
