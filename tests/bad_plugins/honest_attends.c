/* Not bad: attention on codes that keeps its rules. */
#include "honest_attend.h"

ATTENDING("honest_attends", .reserved = 0)
