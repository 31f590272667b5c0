/* Needs a function of the core, which plugins must not. */
#include "honest.h"

void kvant_no_such_function(void);

static void close_it(void *state) {
    (void)state;
    kvant_no_such_function();
}

LIAR("undefined_symbol", .close = close_it)
