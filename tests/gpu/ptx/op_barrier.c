/* bar and barrier, bar.warp.sync, membar and fence.
 *
 * Whoever arrives hands in what it has seen of the other warps (clocks, see shared_shadow.c); whoever waits
 * takes the sum of that away. */
#include "parse.h"
#include "run.h"

#include <stdio.h>

enum { BAR_SYNC, BAR_ARRIVE, BAR_RED_POPC, BAR_RED_AND, BAR_RED_OR };

/* ---- Arrival and release ------------------------------------------------------------------------------- */

static void hand_in_clocks(ptx_warp *warp, ptx_barrier *barrier) {
    for (uint32_t w = 0; w < warp->block->warp_count; w++)
        if (warp->seen[w] > barrier->clocks[w]) barrier->clocks[w] = warp->seen[w];
    if (warp->clock + 1 > barrier->clocks[warp->index]) barrier->clocks[warp->index] = warp->clock + 1;
}

static void write_reduction(ptx_warp *warp, const ptx_group *group, const ptx_insn *insn,
                            const ptx_barrier *barrier) {
    ptx_frame *frame = group->frame;
    uint32_t *to = (uint32_t *)(void *)(frame->slots + (size_t)insn->slots[0] * PTX_SLOT_BYTES);
    (void)warp;
    if (insn->mode == BAR_RED_POPC) {
        PTX_FOR_LANES(lane, group->lanes) to[lane] = barrier->red_count;
        return;
    }
    bool result =
        insn->mode == BAR_RED_AND ? barrier->red_count == barrier->red_lanes : barrier->red_count != 0;
    *to = (*to & ~group->lanes) | (result ? group->lanes : 0);
}

static void release(ptx_block *block, uint32_t id) {
    ptx_barrier *barrier = &block->barriers[id];
    for (uint32_t w = 0; w < block->warp_count; w++) {
        ptx_warp *warp = &block->warps[w];
        bool waited = false;
        for (uint32_t i = 0; i < warp->group_count; i++) {
            ptx_group *group = &warp->groups[i];
            if (group->wait != PTX_WAIT_BARRIER || group->barrier != id) continue;
            const ptx_insn *insn = &group->frame->function->code[group->at];
            if (insn->mode >= BAR_RED_POPC) write_reduction(warp, group, insn, barrier);
            group->wait = PTX_RUNNABLE;
            group->at++;
            waited = true;
        }
        if (!waited) continue;
        for (uint32_t v = 0; v < block->warp_count; v++)
            if (barrier->clocks[v] > warp->seen[v]) warp->seen[v] = barrier->clocks[v];
        warp->clock++;
    }
    memset(barrier, 0, sizeof *barrier);
}

/* The first group that waits at the barrier, for a report. */
static const ptx_insn *find_waiting(ptx_block *block, uint32_t id, ptx_warp **warp, uint32_t *lane) {
    for (uint32_t w = 0; w < block->warp_count; w++)
        for (uint32_t i = 0; i < block->warps[w].group_count; i++) {
            const ptx_group *group = &block->warps[w].groups[i];
            if (group->wait != PTX_WAIT_BARRIER || group->barrier != id) continue;
            *warp = &block->warps[w];
            *lane = ptx_lowest(group->lanes);
            return &group->frame->function->code[group->at];
        }
    return NULL;
}

static void complete(ptx_block *block, uint32_t id) {
    ptx_barrier *barrier = &block->barriers[id];
    if (barrier->expected == 0) return;
    uint32_t gone = barrier->implicit ? block->exited : 0;
    if (barrier->arrived + gone < barrier->expected) return;
    ptx_warp *warp;
    uint32_t lane;
    const ptx_insn *insn = find_waiting(block, id, &warp, &lane);
    if (gone && insn)
        ptx_defect_add(warp, insn, PTX_DEFECT_EXITED_BARRIER, lane, 0,
                       "waits at barrier %u; %u of %u threads of the block have exited", id, gone,
                       block->threads);
    if (barrier->arrived > barrier->expected && insn)
        ptx_defect_add(warp, insn, PTX_DEFECT_BARRIER_COUNT, lane, 0,
                       "waits at barrier %u for %u threads; %u have come", id, barrier->expected,
                       barrier->arrived);
    release(block, id);
}

void ptx_barrier_after_exit(ptx_block *block) {
    for (uint32_t id = 0; id < PTX_BARRIERS; id++)
        if (block->barriers[id].expected && block->barriers[id].implicit) complete(block, id);
}

/* ---- bar ----------------------------------------------------------------------------------------------- */

/* An operand on which all lanes must agree. */
static uint32_t agreed(ptx_warp *warp, const ptx_insn *insn, uint32_t slot, uint32_t mask) {
    uint32_t value = ptx_word(warp, slot, ptx_lowest(mask));
    PTX_FOR_LANES(lane, mask)
    if (ptx_word(warp, slot, lane) != value)
        ptx_defect_add(warp, insn, PTX_DEFECT_OPERANDS, lane, 0, "names %u where others of its warp name %u",
                       ptx_word(warp, slot, lane), value);
    return value;
}

static void arrive(ptx_warp *warp, const ptx_insn *insn, uint32_t mask, uint32_t id, uint32_t count) {
    ptx_block *block = warp->block;
    ptx_barrier *barrier = &block->barriers[id];
    bool implicit = count == 0;
    uint32_t threads = implicit ? block->threads : count;
    if (!implicit && (count % PTX_LANES || count > (block->threads + PTX_LANES - 1) / PTX_LANES * PTX_LANES))
        ptx_defect_add(warp, insn, PTX_DEFECT_BARRIER_COUNT, ptx_lowest(mask), 0,
                       "asks for %u threads, which is no number of whole warps of the block", count);
    if (barrier->expected == 0) {
        barrier->expected = threads;
        barrier->implicit = implicit;
        barrier->line = insn->line;
    } else if (barrier->expected != threads) {
        ptx_defect_add(warp, insn, PTX_DEFECT_BARRIER_COUNT, ptx_lowest(mask), 0,
                       "asks barrier %u for %u threads; line %u asked for %u", id, threads, barrier->line,
                       barrier->expected);
    }
    uint32_t lanes = (uint32_t)__builtin_popcount(mask);
    barrier->arrived += !implicit && (insn->flags & PTX_ALIGNED) ? PTX_LANES : lanes;
    if (insn->mode >= BAR_RED_POPC) {
        uint32_t a = ptx_predicate(warp, insn->slots[insn->to_count + insn->from_count - 1u]);
        if (insn->flags & PTX_NEGATE_C) a = ~a;
        barrier->red_count += (uint32_t)__builtin_popcount(a & mask);
        barrier->red_lanes += lanes;
    }
    hand_in_clocks(warp, barrier);
}

static ptx_step exec_barrier(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    /* Aligned: the whole warp at once. Lanes that come first wait for the others; those may never come,
     * which is reported as a divergent barrier when nothing else can run. */
    if ((insn->flags & PTX_ALIGNED) && (warp->live & ~mask)) {
        warp->held |= mask;
        return PTX_STEP_NEXT;
    }
    uint32_t id = agreed(warp, insn, insn->slots[insn->to_count], mask), count = 0;
    if (insn->elements) count = agreed(warp, insn, insn->slots[insn->to_count + 1u], mask);
    if (id >= PTX_BARRIERS) {
        ptx_defect_add(warp, insn, PTX_DEFECT_OPERANDS, ptx_lowest(mask), 0, "names barrier %u of %u", id,
                       PTX_BARRIERS);
        id = 0;
    }
    arrive(warp, insn, mask, id, count);
    if (insn->mode == BAR_ARRIVE) {
        warp->clock++;
        warp->groups[warp->current].at++;
    } else {
        ptx_warp_wait_barrier(warp, mask, id);
    }
    complete(warp->block, id);
    return PTX_STEP_JUMP;
}

/* ---- bar.warp.sync members ----------------------------------------------------------------------------- */

static ptx_step exec_warp_sync(ptx_warp *warp, const ptx_insn *insn, uint32_t mask);

/* Lanes of other groups that wait at any bar.warp.sync for the same members. */
static uint32_t waiting_elsewhere(const ptx_warp *warp, uint32_t members) {
    uint32_t lanes = 0;
    for (uint32_t i = 0; i < warp->group_count; i++) {
        const ptx_group *group = &warp->groups[i];
        const ptx_insn *insn = &group->frame->function->code[group->at];
        if (i == warp->current || group->wait != PTX_WAIT_LANES || insn->exec != exec_warp_sync) continue;
        const uint32_t *named =
            (const uint32_t *)(const void *)(group->frame->slots + (size_t)insn->slots[0] * PTX_SLOT_BYTES);
        if (named[ptx_lowest(group->lanes)] == members) lanes |= group->lanes;
    }
    return lanes & members;
}

static ptx_step exec_warp_sync(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    uint32_t rest = mask;
    while (rest) {
        uint32_t members = ptx_word(warp, insn->slots[0], ptx_lowest(rest)), same = 0;
        PTX_FOR_LANES(lane, rest) same |= (uint32_t)(ptx_word(warp, insn->slots[0], lane) == members) << lane;
        rest &= ~same;
        if (same & ~members)
            ptx_defect_add(warp, insn, PTX_DEFECT_MEMBER_MASK, ptx_lowest(same & ~members), 0,
                           "is not in its own member mask 0x%08x", members);
        uint32_t others = waiting_elsewhere(warp, members);
        if (!ptx_warp_gather(warp, insn, same | others, members)) {
            warp->held &= ~others;
            continue;
        }
        for (uint32_t i = 0; i < warp->group_count; i++) {
            ptx_group *group = &warp->groups[i];
            if (i == warp->current || !(group->lanes & others)) continue;
            group->wait = PTX_RUNNABLE;
            group->at++;
        }
        /* Orders memory among the lanes. */
        warp->clock++;
    }
    return PTX_STEP_NEXT;
}

static void select_warp_sync(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    if (!ptx_take(parser, "sync")) ptx_refuse(parser, "sync is missing");
    insn->exec = exec_warp_sync;
    ptx_need_operands(parser, 1, 1);
    ptx_add_from(parser, insn, &s->operands[0], PTX_B32, false);
}

void ptx_select_barrier(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    static const char *const kinds[] = {"sync", "arrive", "red", NULL};
    static const char *const reductions[] = {"popc", "and", "or", NULL};
    if (ptx_take(parser, "warp")) {
        select_warp_sync(parser, s, insn);
        return;
    }
    ptx_take(parser, "cta");
    int kind = ptx_take_word(parser, kinds);
    if (kind < 0) ptx_refuse(parser, "sync, arrive or red expected");
    bool old_name = strcmp(s->opcode, "bar") == 0;
    if (ptx_take(parser, "aligned") || old_name) insn->flags |= PTX_ALIGNED;
    insn->exec = exec_barrier;
    insn->mode = (uint8_t)kind;
    uint32_t results = 0, predicates = 0;
    if (kind == 2) {
        int reduction = ptx_take_word(parser, reductions);
        ptx_type type = ptx_need_type(parser);
        if (reduction < 0 || type != (reduction == 0 ? PTX_U32 : PTX_PRED))
            ptx_refuse(parser, "no such reduction");
        insn->mode = (uint8_t)(BAR_RED_POPC + reduction);
        results = predicates = 1;
        ptx_need_operands(parser, 3, 4);
        ptx_add_to(parser, insn, &s->operands[0], ptx_type_bits(type), false);
    } else {
        ptx_need_operands(parser, kind == BAR_ARRIVE ? 2 : 1, 2);
    }
    ptx_add_from(parser, insn, &s->operands[results], PTX_B32, false);
    insn->elements = s->operand_count - results - predicates > 1; /* a number of threads */
    if (insn->elements) ptx_add_from(parser, insn, &s->operands[results + 1], PTX_B32, false);
    if (predicates) ptx_add_from(parser, insn, &s->operands[s->operand_count - 1], PTX_PRED, false);
}

/* ---- Fences: memory is in order here. They tell the race checks that a block means to be seen. --------- */

void ptx_block_fence(ptx_block *block) {
    uint8_t *blocks = block->machine->fenced_blocks;
    blocks[block->ordinal / 8] |= (uint8_t)(1u << block->ordinal % 8);
}

static ptx_step exec_fence(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    (void)mask;
    if (insn->flags & PTX_RELEASES) ptx_block_fence(warp->block);
    return PTX_STEP_NEXT;
}

void ptx_select_fence(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    static const char *const local[] = {"cta", NULL}, *const wide[] = {"gl", "gpu", "sys", "cluster", NULL};
    static const char *const orders[] = {"sc", "acq_rel", "acquire", "release", NULL};
    (void)s;
    insn->exec = exec_fence;
    ptx_take_word(parser, orders);
    if (ptx_take_word(parser, local) < 0) {
        if (ptx_take_word(parser, wide) < 0) ptx_refuse(parser, "a scope is missing");
        insn->flags |= PTX_RELEASES;
    }
    ptx_need_operands(parser, 0, 0);
}
