/* See session.h. */
#include "support/session.h"

#include "support/data.h"
#include "support/run_command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *out, *err;

int run(const char *const argv[]) {
    free(out);
    free(err);
    return kvant_run(argv, &out, &err);
}

void must(int status) {
    if (status != 0) fail_msg("exit status %d: %s%s", status, out, err);
}

void refused(int status, const char *part) {
    if (status != 3) fail_msg("exit status %d, not 3: %s%s", status, out, err);
    assert_string_equal(out, "");
    kvant_assert_contains(err, part);
    assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1);
}

const char *path(const char *name) {
    static char paths[64][128];
    char wanted[128];
    (void)snprintf(wanted, sizeof wanted, "%s/%s", kvant_test_directory(), name);
    for (unsigned i = 0; i < 64; i++) {
        if (paths[i][0] == '\0') strcpy(paths[i], wanted);
        if (strcmp(paths[i], wanted) == 0) return paths[i];
    }
    fail_msg("too many files");
    return NULL;
}
