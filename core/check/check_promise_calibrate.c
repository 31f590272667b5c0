/* The check of kvant.calibrate/1: same samples, same tensors; and what cannot be learned from is refused. */
#include "check_learn.h"
#include "check_promise.h"

#include <kvant/kit/diag.h>
#include <kvant/kvant.h>
#include <stdlib.h>
#include <string.h>

enum { EVERY = 8 };

static bool same_array(const kvant_array *a, const kvant_array *b) {
    return strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->rank == b->rank &&
           a->bytes == b->bytes && memcmp(a->shape, b->shape, a->rank * sizeof a->shape[0]) == 0 &&
           memcmp(a->data, b->data, (size_t)a->bytes) == 0;
}

/* A second session on the same rows. */
static void learn_again(check_context *context, const check_case *first) {
    check_worker *worker = context->worker;
    check_case second;
    if (!check_case_copy(first, &second)) check_out_of_memory();
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = check_calibrate_case(worker, &second, CHECK_TEXT_ORDINARY, &diag);
    uint32_t count = first->setup.tensor_count;
    if (status != KVANT_OK)
        check_fail(worker, CHECK_CALIBRATE, "calibrate learns once and refuses the same samples then: %.200s",
                   diag.message);
    else if (second.setup.tensor_count != count)
        check_fail(worker, CHECK_CALIBRATE, "calibrate gives %u tensors, then %u for the same samples", count,
                   second.setup.tensor_count);
    else
        for (uint32_t i = 0; i < count; i++)
            if (!same_array(&first->arrays[i], &second.arrays[i])) {
                check_fail(worker, CHECK_CALIBRATE, "tensor \"%.63s\" differs when learned again",
                           first->arrays[i].name);
                break;
            }
    check_case_free(&second);
}

/* Nothing can be learned from this: an error with a reason. */
static void learn_nothing(check_context *context, check_text text, const char *what) {
    check_worker *worker = context->worker;
    check_case other;
    if (!check_case_copy(&context->configuration, &other)) check_out_of_memory();
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = check_calibrate_case(worker, &other, text, &diag);
    if (status == KVANT_OK)
        check_fail(worker, CHECK_CALIBRATE, "calibrate learns from %s without an error", what);
    else if (status > 0 || strcmp(kvant_status_text(status), kvant_status_text(1)) == 0)
        check_fail(worker, CHECK_CALIBRATE, "on %s calibrate returns %d, which is no status", what, status);
    else if (diag.message[0] == '\0')
        check_fail(worker, CHECK_CALIBRATE, "on %s calibrate refuses without a message", what);
    check_case_free(&other);
}

void check_calibrate(check_context *context) {
    check_worker *worker = context->worker;
    check_case learned;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (worker->number % EVERY != 0 || check_call_extension(worker, KVANT_EXT_CALIBRATE) == NULL) {
        worker->ran &= ~((uint64_t)1 << CHECK_CALIBRATE);
        return;
    }
    if (!check_case_copy(&context->configuration, &learned)) check_out_of_memory();
    kvant_status status = check_calibrate_case(worker, &learned, CHECK_TEXT_ORDINARY, &diag);
    if (status != KVANT_OK && diag.message[0] == '\0')
        check_fail(worker, CHECK_CALIBRATE, "calibrate refuses with %d (%s) and says no reason", status,
                   kvant_status_text(status));
    /* A configuration may have nothing to learn: then begin says so. */
    if (status == KVANT_OK && learned.setup.tensor_count > 0) {
        learn_again(context, &learned);
        learn_nothing(context, CHECK_TEXT_ZEROS, "zeros");
        learn_nothing(context, CHECK_TEXT_NAN, "rows with a NaN");
        learn_nothing(context, CHECK_TEXT_SHORT, "a single token");
        learn_nothing(context, CHECK_TEXT_NONE, "no sample");
    }
    check_case_free(&learned);
}
