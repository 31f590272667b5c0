/* The two-sided check of the error: that of the formula for formats that the check knows, laws of nature
 * for others. */
#include "check_compare.h"
#include "check_promise.h"
#include "check_quality.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

enum { ENOUGH = 1024 /* elements that a statistic needs */ };

void check_quality_add(check_quality *q, const float *given, const uint32_t *bits, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double x = (double)given[i], e = (double)check_bits_float(bits[i]) - x;
        q->energy += x * x;
        q->error += e * e;
        q->lean += e * x;
    }
    q->count += count;
}

void check_quality_add_expected(check_quality *q, const float *given, const double *expected, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double x = (double)given[i], e = expected[i] - x;
        q->energy += x * x;
        q->error += e * e;
        q->lean += e * x;
    }
    q->count += count;
}

double check_quality_nmse(const check_quality *q) {
    return q->error == 0 ? 0 : q->energy == 0 ? INFINITY : q->error / q->energy;
}

/* Against a quantizer in double precision on the same rows. */
static void compare_with_formula(check_context *context, const oracle *formula, const check_quality *got) {
    check_worker *worker = context->worker;
    double *expected = malloc(context->elements * sizeof *expected);
    if (expected == NULL) check_out_of_memory();
    check_quality wanted = {0};
    bool known = formula->quantize(worker->plugin->descriptor, &context->configuration.setup, context->values,
                                   expected);
    if (known) check_quality_add_expected(&wanted, context->values, expected, context->elements);
    free(expected);
    if (!known) {
        worker->ran &= ~((uint64_t)1 << CHECK_ERROR);
        return;
    }
    double ours = check_quality_nmse(got), theirs = check_quality_nmse(&wanted);
    /* Below this, the rounding of F32 itself is seen. Extreme rows are held to less: there, one step of a
     * stored scale decides. */
    double band = check_data_is_ordinary(context->configuration.data) ? 0.02 : 0.1, floor = 1e-12;
    if (fabs(ours - theirs) > band * theirs + floor)
        check_fail(worker, CHECK_ERROR,
                   "the NMSE is %.6g, that of the formula in double precision on the same rows %.6g", ours,
                   theirs);
}

/* Every parameter has its default. */
static bool is_default(const check_context *context) {
    const check_axes *axes = &context->worker->axes;
    for (uint32_t a = CHECK_AXIS_PARAM; a < axes->count; a++)
        if (axes->axis[a].values[context->row.value[a]].given) return false;
    return true;
}

static double bits_per_element(const check_context *context) {
    const kvant_layout *l = &context->layout;
    uint64_t step;
    (void)check_layout_has_size(l, context->extent.size, &step);
    return (double)(l->payload_bits + l->metadata_bits +
                    step * (l->payload_bits_step + l->metadata_bits_step)) /
           (double)context->elements;
}

/* What holds for every quantizer. */
static void compare_with_nature(check_context *context, const check_quality *q) {
    check_worker *worker = context->worker;
    const kvant_setup *setup = &context->configuration.setup;
    double nmse = check_quality_nmse(q), bits = bits_per_element(context);
    if (q->count < ENOUGH || !check_data_is_ordinary(context->configuration.data) || setup->head_dim < 8)
        return;
    if (is_default(context) && nmse >= 1)
        check_fail(worker, CHECK_ERROR,
                   "the NMSE is %.6g with default parameters: zeros instead of the rows make 1", nmse);
    /* No code of R bits has a smaller error on N(0, 1) than 2^-2R (Shannon 1959); rows of a half type
     * have fewer digits. */
    double digits = setup->dtype == KVANT_DTYPE_F32 ? 16 : setup->dtype == KVANT_DTYPE_F16 ? 8 : 6;
    double bound = exp2(-2 * bits);
    if (context->configuration.data == CHECK_DATA_NORMAL && bits < digits && nmse < 0.9 * bound)
        check_fail(worker, CHECK_ERROR,
                   "the NMSE is %.6g; with the %.3f bits an element that the layout says, no code can "
                   "be below %.6g",
                   nmse, bits, bound);
    /* Codes at cell centres lean by 0, at cell means by -1 times the error; what is cut off leans by far
     * more. Chance adds some. Rows with few digits may lie on one side of every cell. */
    if (context->configuration.data != CHECK_DATA_NORMAL || setup->dtype == KVANT_DTYPE_BF16) return;
    double lean = q->error > 0 ? q->lean / q->error : 0;
    double chance = q->error > 0 ? 6 * sqrt(q->energy / q->error / (double)q->count) : 0;
    if (fabs(lean) > 3 + chance)
        check_fail(worker, CHECK_ERROR,
                   "the error leans %s zero: sum(error * x) is %.3g times sum(error^2), codes that are "
                   "rounded to nearest stay within 3",
                   lean < 0 ? "towards" : "away from", lean);
}

void check_error(check_context *context) {
    check_quality got = {0};
    check_quality_add(&got, context->values, context->decoded, context->elements);
    uint32_t dtype = context->configuration.setup.dtype;
    if (context->configuration.data == CHECK_DATA_MAXIMUM && dtype != KVANT_DTYPE_F16) {
        /* Sums and ranges of the largest floats leave the range of floats: formulas end there. */
        context->worker->ran &= ~((uint64_t)1 << CHECK_ERROR);
        return;
    }
    const oracle *formula = oracle_find(context->worker->plugin->descriptor);
    if (formula != NULL)
        compare_with_formula(context, formula, &got);
    else
        compare_with_nature(context, &got);
}
