/* ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16 bits, spread over a warp.
 *
 * Lane l holds, of each matrix, row l/4, columns 2(l%4) and 2(l%4)+1; transposed, column l/4 of those two
 * rows. Lane 8m+r gives the address of row r of matrix m. */
#include "parse.h"
#include "run.h"

static bool rows_of(ptx_warp *warp, const ptx_insn *insn, uint32_t slot, ptx_access_kind kind,
                    ptx_access *access) {
    *access = (ptx_access){.mask = insn->vector == 4 ? UINT32_MAX : (1u << 8 * insn->vector) - 1,
                           .size = 16,
                           .kind = (uint8_t)kind,
                           .space = PTX_SPACE_SHARED,
                           .not_counted = true};
    ptx_access_addresses(warp, insn, slot, insn->wide_address, access);
    uint32_t rows[PTX_LANES], wanted = access->mask;
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        if ((access->mask >> lane & 1u) && (access->address[lane] & PTX_WINDOW_MASK) == PTX_SHARED_WINDOW)
            access->address[lane] &= ~PTX_WINDOW_MASK;
        rows[lane] = (uint32_t)access->address[lane];
    }
    if (warp->checks & PTX_CHECK_COUNT) ptx_count_matrix(warp, rows, insn->vector);
    ptx_access_resolve(warp, insn, access);
    return access->mask == wanted;
}

/* Where lane l's element e of a matrix is: the row, and the column. */
static void place(const ptx_insn *insn, uint32_t lane, uint32_t e, uint32_t *row, uint32_t *column) {
    uint32_t outer = lane / 4, inner = 2 * (lane % 4) + e;
    bool transposed = insn->flags & PTX_TRANSPOSED;
    *row = transposed ? inner : outer;
    *column = transposed ? outer : inner;
}

static ptx_step exec_ldmatrix(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    if (!ptx_warp_gather(warp, insn, mask, UINT32_MAX)) return PTX_STEP_NEXT;
    ptx_access access;
    if (!rows_of(warp, insn, insn->slots[insn->to_count], PTX_READ, &access)) return PTX_STEP_NEXT;
    uint16_t values[4][8][8];
    for (uint32_t r = 0; r < 8u * insn->vector; r++) memcpy(values[r / 8][r % 8], access.host[r], 16);
    for (uint32_t m = 0; m < insn->vector; m++) {
        uint32_t *to = ptx_slot(warp, insn->slots[m]);
        for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
            uint32_t row, column, word = 0;
            for (uint32_t e = 0; e < 2; e++) {
                place(insn, lane, e, &row, &column);
                word |= (uint32_t)values[m][row][column] << 16 * e;
            }
            to[lane] = word;
        }
    }
    return PTX_STEP_NEXT;
}

static ptx_step exec_stmatrix(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    if (!ptx_warp_gather(warp, insn, mask, UINT32_MAX)) return PTX_STEP_NEXT;
    ptx_access access;
    if (!rows_of(warp, insn, insn->slots[0], PTX_WRITE, &access)) return PTX_STEP_NEXT;
    for (uint32_t m = 0; m < insn->vector; m++)
        for (uint32_t lane = 0; lane < PTX_LANES; lane++)
            for (uint32_t e = 0; e < 2; e++) {
                uint32_t row, column;
                place(insn, lane, e, &row, &column);
                uint16_t value = (uint16_t)(ptx_word(warp, insn->slots[1 + m], lane) >> 16 * e);
                memcpy(access.host[8 * m + row] + (size_t)2 * column, &value, 2);
            }
    return PTX_STEP_NEXT;
}

static ptx_step exec_movmatrix(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    if (!ptx_warp_gather(warp, insn, mask, UINT32_MAX)) return PTX_STEP_NEXT;
    uint32_t result[PTX_LANES];
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        result[lane] = 0;
        for (uint32_t e = 0; e < 2; e++) {
            uint32_t row = 2 * (lane % 4) + e, column = lane / 4;
            uint32_t word = ptx_word(warp, insn->slots[1], row * 4 + column / 2);
            result[lane] |= (word >> 16 * (column % 2) & 0xffffu) << 16 * e;
        }
    }
    memcpy(ptx_slot(warp, insn->slots[0]), result, sizeof result);
    return PTX_STEP_NEXT;
}

static void take_shape(ptx_parser *parser, ptx_insn *insn) {
    if (!ptx_take(parser, "sync") || !ptx_take(parser, "aligned"))
        ptx_refuse(parser, "sync.aligned is missing");
    if (!ptx_take(parser, "m8n8")) ptx_refuse(parser, "only m8n8 is known here");
    insn->vector = ptx_take(parser, "x1") ? 1 : ptx_take(parser, "x2") ? 2 : ptx_take(parser, "x4") ? 4 : 0;
    if (insn->vector == 0) ptx_refuse(parser, "the number of matrices is missing");
    if (ptx_take(parser, "trans")) insn->flags |= PTX_TRANSPOSED;
    insn->space = (uint8_t)ptx_take_space(parser);
    if (insn->space != PTX_SPACE_SHARED && insn->space != PTX_SPACE_GENERIC)
        ptx_refuse(parser, "matrices lie in shared memory");
    if (ptx_need_type(parser) != PTX_B16) ptx_refuse(parser, "only b16 is known here");
}

void ptx_select_ldmatrix(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    take_shape(parser, insn);
    insn->exec = exec_ldmatrix;
    ptx_need_operands(parser, 2, 2);
    ptx_add_to_each(parser, insn, &s->operands[0], insn->vector, 32, false);
    ptx_add_address(parser, insn, &s->operands[1]);
}

void ptx_select_stmatrix(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    take_shape(parser, insn);
    insn->exec = exec_stmatrix;
    ptx_need_operands(parser, 2, 2);
    ptx_add_address(parser, insn, &s->operands[0]);
    ptx_add_from_each(parser, insn, &s->operands[1], insn->vector, PTX_B32, false);
}

void ptx_select_movmatrix(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    if (!ptx_take(parser, "sync") || !ptx_take(parser, "aligned") || !ptx_take(parser, "m8n8") ||
        !ptx_take(parser, "trans") || ptx_need_type(parser) != PTX_B16)
        ptx_refuse(parser, "only sync.aligned.m8n8.trans.b16 is known here");
    insn->exec = exec_movmatrix;
    ptx_need_operands(parser, 2, 2);
    ptx_add_to(parser, insn, &s->operands[0], 32, false);
    ptx_add_from(parser, insn, &s->operands[1], PTX_B32, false);
}
