/* Lie: decode uses a fused multiply-add where the machine has one, so floats differ between instruction
 * sets. */
#include "honest.h"

static float add_a_little(float x) {
    return x * 0x1.8p-12f + x;
}

#if defined(__x86_64__)
__attribute__((target("fma"))) static float add_a_little_fused(float x) {
    return __builtin_fmaf(x, 0x1.8p-12f, x);
}
#else
static float add_a_little_fused(float x) {
    return __builtin_fmaf(x, 0x1.8p-12f, x);
}
#endif

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, diag);
    layout->isa = setup->isa;
    return status;
}

static kvant_status decode(const void *state, const kvant_decode_args *args) {
    const honest *h = state;
    const kvant_mutable_view *rows = args->rows;
    kvant_status status = honest_decode(state, args);
    for (uint32_t t = 0; t < rows->tokens; t++)
        for (uint32_t k = 0; k < rows->heads; k++)
            for (uint32_t c = 0; c < rows->head_dim; c++) {
                char *at = kvant_mutable_view_at(rows, t, k) + (int64_t)c * rows->channel_stride;
                float x = kvant_load_element(at, rows->dtype);
                x = h->isa >= KVANT_ISA_X86_64_V3 ? add_a_little_fused(x) : add_a_little(x);
                kvant_store_element(at, rows->dtype, honest_cut(x, rows->dtype));
            }
    return status;
}

LIAR("lie_fma", .plan = plan, .decode = decode)
