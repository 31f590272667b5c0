/* bra, brx, call, ret, exit, trap, and instructions that only change time. */
#include "parse.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Branches ------------------------------------------------------------------------------------------ */

static void move_rest_on(ptx_warp *warp, uint32_t lanes) {
    if (lanes != warp->lanes) warp->groups[warp->current].at++;
}

static ptx_step exec_branch(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    if (mask == warp->lanes) {
        warp->groups[warp->current].at = insn->target;
        return PTX_STEP_JUMP;
    }
    if (insn->flags & PTX_ALIGNED)
        ptx_defect_add(warp, insn, PTX_DEFECT_OPERANDS, ptx_lowest(mask), 0,
                       "branches apart, although it is .uni");
    ptx_warp_split(warp, mask, warp->frame, insn->target);
    move_rest_on(warp, mask);
    return PTX_STEP_JUMP;
}

void ptx_select_branch(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    insn->exec = exec_branch;
    if (ptx_take(parser, "uni")) insn->flags |= PTX_ALIGNED;
    ptx_need_operands(parser, 1, 1);
    if (s->operands[0].kind != PTX_OPERAND_LABEL) ptx_refuse(parser, "a label expected");
    ptx_add_reference(parser, &s->operands[0], parser->function->code_count, UINT32_MAX, 0);
}

static ptx_step exec_brx(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    const ptx_branch_table *table = &warp->frame->function->tables[insn->target];
    ptx_frame *frame = warp->frame;
    uint32_t rest = mask;
    bool all = mask == warp->lanes;
    if (!all) {
        /* Lanes whose guard does not hold stay the current group. */
        move_rest_on(warp, mask);
    }
    while (rest) {
        uint32_t index = ptx_word(warp, insn->slots[0], ptx_lowest(rest)), same = 0;
        PTX_FOR_LANES(lane, rest) same |= (uint32_t)(ptx_word(warp, insn->slots[0], lane) == index) << lane;
        rest &= ~same;
        if (index >= table->count) {
            ptx_defect_add(warp, insn, PTX_DEFECT_OPERANDS, ptx_lowest(same), 0, "branches to entry %u of %u",
                           index, table->count);
            warp->block->machine->stop = true;
            return PTX_STEP_STOP;
        }
        ptx_warp_split(warp, same, frame, table->targets[index]);
    }
    return PTX_STEP_JUMP;
}

void ptx_select_brx(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    if (!ptx_take(parser, "idx")) ptx_refuse(parser, "only brx.idx is known here");
    ptx_take(parser, "uni");
    insn->exec = exec_brx;
    ptx_need_operands(parser, 2, 2);
    ptx_add_from(parser, insn, &s->operands[0], PTX_U32, false);
    for (uint32_t i = 0; i < parser->table_count; i++) {
        if (parser->tables[i].length != s->operands[1].name_length ||
            memcmp(parser->tables[i].name, s->operands[1].name, parser->tables[i].length) != 0)
            continue;
        insn->target = parser->tables[i].table;
        return;
    }
    ptx_refuse(parser, "no such table of labels");
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

/* One value between two frames, lane by lane. */
static void pass(ptx_frame *to, const ptx_formal *to_place, const ptx_frame *from,
                 const ptx_formal *from_place, uint32_t lanes) {
    PTX_FOR_LANES(lane, lanes) {
        uint64_t value = 0;
        if (from_place->is_register) {
            const uint8_t *slot = from->slots + (size_t)from_place->slot * PTX_SLOT_BYTES;
            if (from_place->bits == 1)
                value = *(const uint32_t *)(const void *)slot >> lane & 1u;
            else
                memcpy(&value, slot + (size_t)lane * (from_place->bits == 64 ? 8 : 4),
                       from_place->bits == 64 ? 8 : 4);
        }
        if (to_place->is_register) {
            uint8_t *slot = to->slots + (size_t)to_place->slot * PTX_SLOT_BYTES;
            if (to_place->bits == 1) {
                uint32_t *mask = (uint32_t *)(void *)slot;
                *mask = (*mask & ~(1u << lane)) | (uint32_t)(value & 1u) << lane;
            } else {
                memcpy(slot + (size_t)lane * (to_place->bits == 64 ? 8 : 4), &value,
                       to_place->bits == 64 ? 8 : 4);
            }
            to->written[to_place->slot] |= 1u << lane;
            continue;
        }
        uint8_t *memory = to->parameters + (size_t)lane * to->function->parameter_bytes + to_place->offset;
        if (from_place->is_register)
            memcpy(memory, &value, to_place->size);
        else
            memcpy(memory,
                   from->parameters + (size_t)lane * from->function->parameter_bytes + from_place->offset,
                   from_place->size);
    }
}

/* A text that a parameter points to. */
static void read_text(ptx_warp *warp, const ptx_formal *place, uint32_t lane, char *text, size_t size) {
    uint64_t address;
    snprintf(text, size, "?");
    const ptx_frame *frame = warp->frame;
    if (place->is_register || place->size != 8) return;
    memcpy(&address, frame->parameters + (size_t)lane * frame->function->parameter_bytes + place->offset, 8);
    const ptx_range *range = ptx_range_find(warp->block->machine, address);
    for (size_t i = 0; range && i + 1 < size && address + i < range->to; i++) {
        text[i] = *(const char *)(uintptr_t)(address + i);
        text[i + 1] = '\0';
        if (text[i] == '\0') break;
    }
}

/* The two functions that nvcc expects the driver to know. */
static ptx_step call_outside(ptx_warp *warp, const ptx_insn *insn, const ptx_call *call, uint32_t mask) {
    if (strcmp(call->callee->name, "__assertfail") == 0) {
        char text[160] = "?";
        if (call->argument_count > 0)
            read_text(warp, &call->arguments[0], ptx_lowest(mask), text, sizeof text);
        PTX_FOR_LANES(lane, mask)
        ptx_defect_add(warp, insn, PTX_DEFECT_TRAP, lane, 0, "assertion failed: %s", text);
        warp->block->machine->stop = true;
        return PTX_STEP_STOP;
    }
    PTX_FOR_LANES(lane, mask) /* vprintf prints nothing and returns 0 */
    if (call->result_count > 0 && !call->results[0].is_register)
        memset(warp->frame->parameters + (size_t)lane * warp->frame->function->parameter_bytes +
                   call->results[0].offset,
               0, call->results[0].size);
    return PTX_STEP_NEXT;
}

static ptx_step exec_call(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    const ptx_call *call = warp->frame->function->calls[insn->target];
    const ptx_function *callee = call->callee;
    if (!callee->has_body) return call_outside(warp, insn, call, mask);
    ptx_frame *from = warp->frame;
    uint32_t local_end = from->local_at + from->function->local_bytes + 15u + callee->local_bytes;
    if (local_end > warp->block->local_bytes || from->depth > 200) {
        ptx_defect_add(warp, insn, PTX_DEFECT_LOCAL_BOUNDS, ptx_lowest(mask), 0,
                       "calls too deep: the stack of %u bytes is full", warp->block->local_bytes);
        warp->block->machine->stop = true;
        return PTX_STEP_STOP;
    }
    ptx_frame *frame = ptx_frame_enter(warp, callee, from);
    frame->call = call;
    frame->lanes = mask;
    frame->return_to = warp->groups[warp->current].at + 1;
    for (uint32_t i = 0; i < call->argument_count; i++)
        pass(frame, &callee->formals[callee->result_count + i], from, &call->arguments[i], mask);
    ptx_warp_split(warp, mask, frame, 0);
    move_rest_on(warp, mask);
    return PTX_STEP_JUMP;
}

static ptx_step exec_return(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    ptx_frame *frame = warp->frame;
    bool rest = mask != warp->lanes;
    if (insn->mode == 1 || !frame->parent) {
        if (rest) warp->groups[warp->current].at++;
        ptx_warp_exit_lanes(warp, mask);
        return PTX_STEP_JUMP;
    }
    for (uint32_t i = 0; i < frame->call->result_count; i++)
        pass(frame->parent, &frame->call->results[i], frame, &frame->function->formals[i], mask);
    ptx_warp_split(warp, mask, frame->parent, frame->return_to);
    if (rest) warp->groups[warp->current].at++;
    frame->lanes &= ~mask;
    if (frame->lanes == 0) ptx_frame_leave(warp, frame);
    return PTX_STEP_JUMP;
}

static void actual(ptx_parser *parser, const ptx_operand *operand, const ptx_formal *formal,
                   ptx_formal *place) {
    if (operand->kind == PTX_OPERAND_REGISTER) {
        *place = (ptx_formal){.is_register = true, .bits = (uint8_t)operand->bits, .slot = operand->slot};
        if (formal->is_register ? formal->bits != operand->bits : formal->size * 8 != operand->bits)
            ptx_refuse(parser, "an argument has another size");
    } else if (operand->kind == PTX_OPERAND_SYMBOL && operand->symbol->space == PTX_SPACE_PARAM) {
        *place = (ptx_formal){.bits = operand->symbol->bits,
                              .offset = (uint32_t)operand->symbol->address,
                              .size = (uint32_t)operand->symbol->size};
        if (formal->is_register || formal->size != place->size)
            ptx_refuse(parser, "an argument has another size");
    } else {
        ptx_refuse(parser, "an argument is neither a parameter nor a register");
    }
}

void ptx_select_call(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    ptx_take(parser, "uni");
    insn->exec = exec_call;
    uint32_t next = 0;
    const ptx_operand *results = NULL, *arguments = NULL;
    if (next < s->operand_count && s->operands[next].kind == PTX_OPERAND_VECTOR)
        results = &s->operands[next++];
    if (next == s->operand_count || !s->operands[next].name)
        ptx_refuse(parser, "calls through pointers are not known here");
    const ptx_operand *name = &s->operands[next++];
    if (next < s->operand_count && s->operands[next].kind == PTX_OPERAND_VECTOR)
        arguments = &s->operands[next++];
    if (next != s->operand_count) ptx_refuse(parser, "calls through pointers are not known here");

    ptx_function *callee = NULL;
    for (uint32_t i = 0; i < parser->module->function_count; i++) {
        ptx_function *function = parser->module->functions[i];
        if (strlen(function->name) == name->name_length &&
            memcmp(function->name, name->name, name->name_length) == 0)
            callee = function;
    }
    if (!callee || callee->is_kernel)
        ptx_parse_error(parser, s->line, "call of %.*s, which is no function", (int)name->name_length,
                        name->name);
    uint32_t result_count = results ? results->count : 0, argument_count = arguments ? arguments->count : 0;
    if (result_count != callee->result_count || result_count > 2 || argument_count > 32 ||
        result_count + argument_count != callee->formal_count)
        ptx_refuse(parser, "another number of arguments");
    ptx_function *function = parser->function;
    ptx_call **moved = realloc(function->calls, (function->call_count + 1) * sizeof(ptx_call *));
    if (moved) function->calls = moved;
    ptx_call *call = calloc(1, sizeof *call);
    if (!moved || !call) {
        free(call);
        ptx_refuse(parser, "out of memory");
    }
    insn->target = function->call_count;
    function->calls[function->call_count++] = call;
    *call = (ptx_call){.callee = callee, .result_count = result_count, .argument_count = argument_count};
    for (uint32_t i = 0; i < result_count; i++)
        actual(parser, &s->elements[results->first + i], &callee->formals[i], &call->results[i]);
    for (uint32_t i = 0; i < argument_count; i++)
        actual(parser, &s->elements[arguments->first + i], &callee->formals[result_count + i],
               &call->arguments[i]);
}

void ptx_select_return(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    insn->exec = exec_return;
    insn->mode = strcmp(s->opcode, "exit") == 0;
    ptx_take(parser, "uni");
    ptx_need_operands(parser, 0, 0);
}

/* ---- The rest ------------------------------------------------------------------------------------------ */

static ptx_step exec_nothing(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    (void)warp;
    (void)insn;
    (void)mask;
    return PTX_STEP_NEXT;
}

void ptx_select_nothing(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    (void)s;
    insn->exec = exec_nothing;
    for (uint32_t i = 0; i < parser->statement.modifier_count; i++) parser->statement.taken[i] = true;
}

/* Programmatic dependent launch: launches run one after another here. */
void ptx_select_griddepcontrol(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    (void)s;
    insn->exec = exec_nothing;
    if (!ptx_take(parser, "wait") && !ptx_take(parser, "launch_dependents"))
        ptx_refuse(parser, "wait or launch_dependents expected");
}

static ptx_step exec_trap(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    PTX_FOR_LANES(lane, mask) ptx_defect_add(warp, insn, PTX_DEFECT_TRAP, lane, 0, "stops the kernel");
    warp->block->machine->stop = true;
    return PTX_STEP_STOP;
}

void ptx_select_trap(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    insn->exec = exec_trap;
    (void)s;
    ptx_need_operands(parser, 0, 0);
}
