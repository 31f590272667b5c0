/* What an artifact would hold for a configuration. A codec that asks for one gets what its own
 * kvant.calibrate/1 learns from rows like those that it will encode, or what the formula that the check
 * knows asks for. */
#ifndef KVANT_CHECK_LEARN_H
#define KVANT_CHECK_LEARN_H

#include "check_worker.h"

/* What the samples hold. */
typedef enum check_text {
    CHECK_TEXT_ORDINARY, /* the family of rows of the configuration where it is ordinary, else N(0, 1) */
    CHECK_TEXT_ZEROS,
    CHECK_TEXT_NAN,   /* ordinary but for one NaN on the codec's side */
    CHECK_TEXT_SHORT, /* one token, one query */
    CHECK_TEXT_NONE   /* nothing is fed */
} check_text;

/* Runs one session of kvant.calibrate/1 for the configuration, all heads, and gives its tensors to it. The
 * status and the diag are those of the call that refused; tensors that break the rules of the sink are
 * failures of CHECK_CALIBRATE. KVANT_ERROR_MISSING without a diag: the codec has no such extension. */
kvant_status check_calibrate_case(check_worker *worker, check_case *c, check_text text, kvant_diag *diag);

/* The same for a configuration that plan or open refused with KVANT_ERROR_MISSING: by formula where the
 * check knows one. */
kvant_status check_learn(check_worker *worker, check_case *c, kvant_diag *diag);

#endif
