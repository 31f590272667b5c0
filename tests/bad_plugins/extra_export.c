/* Exports a second function: loads, and is what the test of symbol tables must notice. */
#include "honest.h"

__attribute__((visibility("default"))) int extra_export(void);

int extra_export(void) {
    return 1;
}

LIAR("extra_export", .extension = NULL)
