/* Not bad: calibration that keeps its rules. */
#include "honest_calibrate.h"

LEARNING("honest_learns", .reserved = 0)
