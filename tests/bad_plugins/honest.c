/* Not bad at all: what the others are measured against. Loads, and passes every check. */
#include "honest.h"

LIAR("honest", .extension = NULL)
