/* mma.sync of 16 x 8 x k. Each register holds e = 32 / bits elements; lane l is in group g = l/4, t = l%4.
 *
 *     A  register r: row g + 8(r%2), columns 4e(r/2) + et ... + e-1      2 registers (k = 4e) or 4 (k = 8e)
 *     B  register r: column g, rows 4er + et ... + e-1                   half as many
 *     C  32 bits: register r: row g + 8(r/2), column 2t + r%2            4 registers
 *        f16: register r: row g + 8r, columns 2t, 2t+1                   2 registers
 *
 * Integer sums are exact, then wrapped or clamped. Floating-point sums are taken in double and rounded
 * once; the hardware's order and rounding of partial sums are not documented. */
#include "formats.h"
#include "parse.h"
#include "run.h"

enum { INTEGER, REAL };

static float half_of(uint32_t half) {
    return ptx_float_of(PTX_F16, half);
}

static ptx_step exec_mma(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    if (!ptx_warp_gather(warp, insn, mask, UINT32_MAX)) return PTX_STEP_NEXT;
    const uint32_t *c_slots = &insn->slots[insn->from_count];
    const void *operands[7];
    for (uint32_t i = 0; i < insn->from_count - (insn->flags & PTX_HIGH ? 2u : 4u); i++)
        operands[i] = ptx_slot(warp, insn->slots[insn->to_count + i]);
    if (insn->mode == INTEGER) {
        int32_t sums[16][8];
        operands[6] = insn;
        insn->lane(sums, operands);
        for (uint32_t r = 0; r < 4; r++)
            for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
                int64_t sum = (int64_t)(int32_t)ptx_word(warp, c_slots[r], lane) +
                              sums[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2];
                if (insn->flags & PTX_SATFINITE)
                    sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
                ((uint32_t *)ptx_slot(warp, insn->slots[r]))[lane] = (uint32_t)sum;
            }
        return PTX_STEP_NEXT;
    }
    bool half = insn->flags & PTX_HIGH; /* sums in f16 */
    double sums[16][8];
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
            uint32_t word = ptx_word(warp, c_slots[half ? r / 2 : r], lane);
            float c;
            memcpy(&c, &word, sizeof c);
            sums[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2] =
                (double)(half ? half_of(word >> 16 * (r % 2) & 0xffffu) : c);
        }
    operands[6] = insn;
    insn->lane(sums, operands);
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
            double sum = sums[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2];
            uint32_t *to = (uint32_t *)ptx_slot(warp, insn->slots[half ? r / 2 : r]) + lane;
            if (!half) {
                float rounded = (float)sum;
                memcpy(to, &rounded, sizeof rounded);
                if (rounded != rounded) *to = 0x7fffffffu;
                continue;
            }
            uint64_t wide;
            memcpy(&wide, &sum, sizeof wide);
            uint32_t value = (uint32_t)ptx_number_to_float(PTX_F16, ptx_number_from(PTX_F64, wide),
                                                           PTX_ROUND_NEAREST, false);
            *to = r % 2 ? (*to & 0xffffu) | value << 16 : value;
        }
    return PTX_STEP_NEXT;
}

/* k of each shape, by the bits of an element: 4 and 8 per register. */
static bool known_shape(ptx_type a, ptx_type b, uint32_t k) {
    uint32_t bits = ptx_type_bits(a);
    bool integers = !ptx_type_is_float(a) && !ptx_type_is_float(b);
    if (ptx_type_bits(b) != bits || bits < 4 || (k != 128 / bits && k != 256 / bits)) return false;
    if (integers) return bits <= 8;
    bool fp8 = (a == PTX_E4M3 || a == PTX_E5M2) && (b == PTX_E4M3 || b == PTX_E5M2);
    return (a == b && (a == PTX_F16 || a == PTX_BF16 || a == PTX_TF32)) || fp8;
}

void ptx_select_mma(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    static const char *const shapes[] = {"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32", "m16n8k64", NULL};
    if (!ptx_take(parser, "sync") || !ptx_take(parser, "aligned"))
        ptx_refuse(parser, "sync.aligned is missing");
    int shape = ptx_take_word(parser, shapes);
    if (shape < 0) ptx_refuse(parser, "this shape is not known");
    if (!ptx_take(parser, "row") || !ptx_take(parser, "col")) ptx_refuse(parser, "row.col is missing");
    if (ptx_take(parser, "satfinite")) insn->flags |= PTX_SATFINITE;
    ptx_type d = ptx_need_type(parser), a = ptx_need_type(parser), b = ptx_need_type(parser),
             c = ptx_need_type(parser);
    insn->elements = (uint16_t)(4u << shape);
    bool integers = d == PTX_S32;
    if (!known_shape(a, b, insn->elements) || c != d || integers == ptx_type_is_float(a) ||
        (!integers && d != PTX_F32 &&
         (d != PTX_F16 || (ptx_type_bits(a) == 16 && a != PTX_F16) || a == PTX_TF32)))
        ptx_refuse(parser, "these types with this shape are not known");
    if ((insn->flags & PTX_SATFINITE) && !integers) ptx_refuse(parser, "satfinite of floats");
    insn->exec = exec_mma;
    insn->mode = integers ? INTEGER : REAL;
    const char *product = integers        ? ptx_type_bits(a) == 8 ? "product of bytes" : "product of nibbles"
                          : a == PTX_F16  ? "product of f16"
                          : a == PTX_BF16 ? "product of bf16"
                                          : "product of others";
    insn->lane = ptx_find_row(product)->lane;
    insn->type = (uint8_t)a;
    insn->type2 = (uint8_t)b;
    if (d == PTX_F16) insn->flags |= PTX_HIGH;
    uint32_t sums = d == PTX_F16 ? 2 : 4, a_count = insn->elements * ptx_type_bits(a) / 64;
    ptx_need_operands(parser, 4, 4);
    ptx_type sum_type = d == PTX_F32 ? PTX_F32 : PTX_B32;
    ptx_add_to_each(parser, insn, &s->operands[0], sums, 32, false);
    ptx_add_from_each(parser, insn, &s->operands[1], a_count, PTX_B32, false);
    ptx_add_from_each(parser, insn, &s->operands[2], a_count / 2, PTX_B32, false);
    ptx_add_from_each(parser, insn, &s->operands[3], sums, sum_type, false);
}
