/* A warp: groups of lanes, each at one place. The group that runs is the one deepest in calls, then
 * furthest behind; groups that meet become one. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

enum { PATIENCE = 20000 }; /* instructions before a group that others wait behind lets them run */

/* ---- Frames -------------------------------------------------------------------------------------------- */

static uint32_t special_value(const ptx_warp *warp, ptx_special special, uint32_t lane) {
    const ptx_block *block = warp->block;
    const ptx_launch *launch = block->launch;
    uint32_t thread = ptx_thread(warp, lane), bit = 1u << lane;
    switch (special) {
    case PTX_TID_X:
        return thread % launch->block[0];
    case PTX_TID_Y:
        return thread / launch->block[0] % launch->block[1];
    case PTX_TID_Z:
        return thread / launch->block[0] / launch->block[1];
    case PTX_NTID_X:
        return launch->block[0];
    case PTX_NTID_Y:
        return launch->block[1];
    case PTX_NTID_Z:
        return launch->block[2];
    case PTX_CTAID_X:
        return block->at[0];
    case PTX_CTAID_Y:
        return block->at[1];
    case PTX_CTAID_Z:
        return block->at[2];
    case PTX_NCTAID_X:
        return launch->grid[0];
    case PTX_NCTAID_Y:
        return launch->grid[1];
    case PTX_NCTAID_Z:
        return launch->grid[2];
    case PTX_LANEID:
        return lane;
    case PTX_WARPID:
        return warp->index;
    case PTX_NWARPID:
        return block->warp_count;
    case PTX_NSMID:
        return 1;
    case PTX_LANEMASK_EQ:
        return bit;
    case PTX_LANEMASK_LT:
        return bit - 1;
    case PTX_LANEMASK_LE:
        return bit | (bit - 1);
    case PTX_LANEMASK_GT:
        return ~(bit | (bit - 1));
    case PTX_LANEMASK_GE:
        return ~(bit - 1);
    case PTX_TOTAL_SHARED:
        return block->kernel->shared_used + (uint32_t)launch->dynamic_shared;
    case PTX_DYNAMIC_SHARED:
        return (uint32_t)launch->dynamic_shared;
    case PTX_WARP_SIZE:
        return PTX_LANES;
    default:
        return 0;
    }
}

static void fill_slot(ptx_warp *warp, ptx_frame *frame, const ptx_fill *fill) {
    uint32_t *words = (uint32_t *)(void *)(frame->slots + (size_t)fill->slot * PTX_SLOT_BYTES);
    uint64_t *wides = (uint64_t *)(void *)words;
    if (fill->kind == PTX_FILL_PREDICATE) {
        *words = (uint32_t)fill->value;
        return;
    }
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) {
        uint64_t value = fill->value;
        if (fill->kind == PTX_FILL_LOCAL) value += frame->local_at;
        if (fill->kind == PTX_FILL_SPECIAL) value = special_value(warp, (ptx_special)fill->value, lane);
        if (fill->bits == 64)
            wides[lane] = value;
        else
            words[lane] = (uint32_t)value;
    }
}

static ptx_frame *new_frame(const ptx_function *function) {
    ptx_frame *frame = calloc(1, sizeof *frame);
    if (!frame) abort();
    frame->function = function;
    frame->slots = aligned_alloc(64, (size_t)function->slot_count * PTX_SLOT_BYTES);
    frame->written = calloc(function->slot_count, sizeof *frame->written);
    frame->parameters = calloc(PTX_LANES, function->parameter_bytes ? function->parameter_bytes : 1);
    if (!frame->slots || !frame->written || !frame->parameters) abort();
    return frame;
}

ptx_frame *ptx_frame_enter(ptx_warp *warp, const ptx_function *function, ptx_frame *parent) {
    ptx_frame **link = &warp->spare;
    while (*link && (*link)->function != function) link = &(*link)->next;
    ptx_frame *frame = *link;
    if (frame)
        *link = frame->next;
    else
        frame = new_frame(function);
    frame->parent = parent;
    frame->depth = parent ? parent->depth + 1 : 0;
    frame->local_at = parent ? (parent->local_at + parent->function->local_bytes + 15u) & ~15u : 0;
    /* What nobody wrote is conspicuous, and the same in every run. */
    memset(frame->slots, 0xcd, (size_t)function->slot_count * PTX_SLOT_BYTES);
    memcpy(frame->written, function->initial, function->slot_count * sizeof *frame->written);
    *(uint32_t *)(void *)frame->slots = 0;
    for (uint32_t i = 0; i < function->fill_count; i++) fill_slot(warp, frame, &function->fills[i]);
    return frame;
}

void ptx_frame_leave(ptx_warp *warp, ptx_frame *frame) {
    frame->next = warp->spare;
    warp->spare = frame;
}

void ptx_warp_free(ptx_warp *warp) {
    while (warp->spare) {
        ptx_frame *frame = warp->spare;
        warp->spare = frame->next;
        free(frame->slots);
        free(frame->written);
        free(frame->parameters);
        free(frame);
    }
    free(warp->local);
    free(warp->copies);
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

void ptx_warp_start(ptx_warp *warp) {
    ptx_block *block = warp->block;
    uint32_t threads = block->threads - warp->index * PTX_LANES;
    warp->exists = warp->live = threads >= PTX_LANES ? UINT32_MAX : (1u << threads) - 1;
    warp->kernel_frame = ptx_frame_enter(warp, block->kernel, NULL);
    warp->kernel_frame->lanes = warp->live;
    warp->groups[0] = (ptx_group){.lanes = warp->live, .frame = warp->kernel_frame};
    warp->group_count = 1;
    warp->current = 0;
    warp->held = 0;
    if (warp->local) memset(warp->local, 0xcd, (size_t)block->local_bytes * PTX_LANES);
    ptx_async_start(warp);
}

static void remove_group(ptx_warp *warp, uint32_t index) {
    warp->groups[index] = warp->groups[--warp->group_count];
    if (warp->current == warp->group_count) warp->current = index;
}

static void merge_groups(ptx_warp *warp) {
    for (uint32_t i = 0; i + 1 < warp->group_count; i++) {
        ptx_group *a = &warp->groups[i];
        if (a->wait == PTX_WAIT_BARRIER) continue;
        for (uint32_t j = i + 1; j < warp->group_count;) {
            const ptx_group *b = &warp->groups[j];
            if (b->wait == PTX_WAIT_BARRIER || b->at != a->at || b->frame != a->frame) {
                j++;
                continue;
            }
            a->lanes |= b->lanes;
            a->wait = PTX_RUNNABLE; /* it tries again with the lanes that came */
            remove_group(warp, j);
        }
    }
}

/* Chooses the group to run. False: none can. */
static bool pick(ptx_warp *warp) {
    if (warp->group_count > 1) merge_groups(warp);
    uint32_t best = UINT32_MAX;
    bool rotate = warp->picks > PATIENCE;
    for (uint32_t i = 0; i < warp->group_count; i++) {
        const ptx_group *g = &warp->groups[i];
        if (g->wait != PTX_RUNNABLE) continue;
        if (best == UINT32_MAX) {
            best = i;
            continue;
        }
        const ptx_group *b = &warp->groups[best];
        bool before = g->frame->depth != b->frame->depth ? g->frame->depth > b->frame->depth : g->at < b->at;
        if (before != rotate) best = i;
    }
    if (best == UINT32_MAX) return false;
    warp->picks = warp->group_count > 1 ? warp->picks + 1 : 0;
    if (warp->picks > PATIENCE + PATIENCE / 4) warp->picks = 0;
    const ptx_group *g = &warp->groups[best];
    warp->current = best;
    warp->lanes = g->lanes;
    warp->frame = g->frame;
    warp->slots = g->frame->slots;
    return true;
}

void ptx_warp_split(ptx_warp *warp, uint32_t lanes, ptx_frame *frame, uint32_t at) {
    ptx_group *g = &warp->groups[warp->current];
    if (lanes == g->lanes) {
        g->frame = frame;
        g->at = at;
        return;
    }
    g->lanes &= ~lanes;
    warp->groups[warp->group_count++] = (ptx_group){.lanes = lanes, .at = at, .frame = frame};
}

void ptx_warp_exit_lanes(ptx_warp *warp, uint32_t lanes) {
    ptx_group *g = &warp->groups[warp->current];
    ptx_async_finish(warp, lanes, UINT32_MAX);
    for (ptx_frame *frame = g->frame; frame;) {
        ptx_frame *parent = frame->parent;
        frame->lanes &= ~lanes;
        if (frame->lanes == 0) ptx_frame_leave(warp, frame);
        frame = parent;
    }
    warp->live &= ~lanes;
    warp->block->exited += (uint32_t)__builtin_popcount(lanes);
    g->lanes &= ~lanes;
    if (g->lanes == 0) remove_group(warp, warp->current);
    /* Who waits for lanes of this warp now waits for fewer: it tries again. */
    for (uint32_t i = 0; i < warp->group_count; i++)
        if (warp->groups[i].wait == PTX_WAIT_LANES) warp->groups[i].wait = PTX_RUNNABLE;
    ptx_barrier_after_exit(warp->block);
}

void ptx_warp_wait_barrier(ptx_warp *warp, uint32_t lanes, uint32_t barrier) {
    ptx_group *g = &warp->groups[warp->current];
    if (lanes != g->lanes) {
        uint32_t at = g->at;
        g->lanes &= ~lanes;
        g->at++;
        warp->groups[warp->group_count] = (ptx_group){.lanes = lanes, .at = at, .frame = g->frame};
        g = &warp->groups[warp->group_count++];
    }
    g->wait = PTX_WAIT_BARRIER;
    g->barrier = (uint8_t)barrier;
}

bool ptx_warp_gather(ptx_warp *warp, const ptx_insn *insn, uint32_t mask, uint32_t members) {
    uint32_t gone = members & ~warp->live;
    if (gone)
        ptx_defect_add(warp, insn, PTX_DEFECT_MEMBER_MASK, ptx_lowest(mask), 0,
                       "lanes 0x%08x take part that %s", gone,
                       gone & warp->exists ? "have exited" : "do not exist");
    if ((members & warp->live & ~mask) == 0) return true;
    warp->held |= mask;
    return false;
}

/* After an instruction that held lanes back: they wait here, the others go on. */
static void split_held(ptx_warp *warp) {
    ptx_group *g = &warp->groups[warp->current];
    uint32_t held = warp->held;
    warp->held = 0;
    if (held == g->lanes) {
        g->wait = PTX_WAIT_LANES;
        return;
    }
    warp->groups[warp->group_count++] =
        (ptx_group){.lanes = held, .at = g->at, .frame = g->frame, .wait = PTX_WAIT_LANES};
    g->lanes &= ~held;
    g->at++;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static void check_registers(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    uint32_t *written = warp->frame->written;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < insn->from_count; i++)
        missing |= mask & ~written[insn->slots[insn->to_count + i]];
    if (insn->flags & PTX_COPIES) {
        for (uint32_t i = 0; i < insn->to_count; i++)
            written[insn->slots[i]] = (written[insn->slots[i]] & ~mask) | (mask & ~missing);
        return;
    }
    for (uint32_t i = 0; i < insn->to_count; i++) written[insn->slots[i]] |= mask;
    if (missing == 0) return;
    PTX_FOR_LANES(lane, missing)
    ptx_defect_add(warp, insn, PTX_DEFECT_UNINITIALISED_REGISTER, lane, 0,
                   "reads a register that was never written");
}

static void count(ptx_warp *warp, const ptx_insn *insn) {
    ptx_counters *counters = &warp->block->machine->counters;
    counters->warp_instructions++;
    counters->thread_instructions += (uint32_t)__builtin_popcount(warp->lanes);
    counters->divergent += warp->lanes != warp->live;
    counters->by_class[insn->class_]++;
    warp->instructions++;
}

static void uncount(ptx_warp *warp, const ptx_insn *insn) {
    ptx_counters *counters = &warp->block->machine->counters;
    counters->warp_instructions--;
    counters->thread_instructions -= (uint32_t)__builtin_popcount(warp->lanes);
    counters->divergent -= warp->lanes != warp->live;
    counters->by_class[insn->class_]--;
}

static uint32_t guarded(const ptx_warp *warp, const ptx_insn *insn) {
    if (insn->guard == PTX_NO_SLOT) return warp->lanes;
    uint32_t holds = ptx_predicate(warp, insn->guard);
    return warp->lanes & (insn->guard_not ? ~holds : holds);
}

static void check_guard(ptx_warp *warp, const ptx_insn *insn) {
    uint32_t missing = insn->guard == PTX_NO_SLOT ? 0 : warp->lanes & ~warp->frame->written[insn->guard];
    PTX_FOR_LANES(lane, missing)
    ptx_defect_add(warp, insn, PTX_DEFECT_UNINITIALISED_REGISTER, lane, 0,
                   "is guarded by a predicate that was never written");
}

ptx_turn ptx_warp_run(ptx_warp *warp, uint64_t *budget) {
    const bool registers = warp->checks & PTX_CHECK_REGISTERS;
    const ptx_machine *machine = warp->block->machine;
    while (pick(warp)) {
        ptx_group *g = &warp->groups[warp->current];
        const ptx_insn *code = warp->frame->function->code;
        bool straight = true; /* still the same group, alone */
        while (straight) {
            if (*budget == 0) return PTX_TURN_MORE;
            --*budget;
            const ptx_insn *insn = &code[g->at];
            uint32_t mask = guarded(warp, insn);
            count(warp, insn);
            if (registers) {
                check_guard(warp, insn);
                if (mask) check_registers(warp, insn, mask);
            }
            ptx_step step = mask ? insn->exec(warp, insn, mask) : PTX_STEP_NEXT;
            if (step == PTX_STEP_NEXT) {
                if (warp->held == 0)
                    g->at++;
                else {
                    if (warp->held == mask) uncount(warp, insn);
                    split_held(warp);
                    straight = false;
                }
            } else {
                straight = false;
            }
            if (machine->stop || step == PTX_STEP_STOP) return PTX_TURN_DONE;
            if (warp->group_count != 1) straight = false;
        }
    }
    return warp->live ? PTX_TURN_BLOCKED : PTX_TURN_DONE;
}
