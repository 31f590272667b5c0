/* Defects: one line for each kind at each line of the text. */
#include "run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *ptx_defect_name(ptx_defect_kind kind) {
    static const char *const names[PTX_DEFECT_KINDS] = {
        [PTX_DEFECT_GLOBAL_BOUNDS] = "global memory out of bounds",
        [PTX_DEFECT_SHARED_BOUNDS] = "shared memory out of bounds",
        [PTX_DEFECT_LOCAL_BOUNDS] = "local memory out of bounds",
        [PTX_DEFECT_PARAM_BOUNDS] = "parameters out of bounds",
        [PTX_DEFECT_READ_ONLY] = "store to read-only memory",
        [PTX_DEFECT_MISALIGNED] = "misaligned access",
        [PTX_DEFECT_UNINITIALISED_SHARED] = "uninitialised shared memory",
        [PTX_DEFECT_UNINITIALISED_REGISTER] = "uninitialised register",
        [PTX_DEFECT_ASYNC_NOT_WAITED] = "cp.async not waited for",
        [PTX_DEFECT_SHARED_RACE] = "race in shared memory",
        [PTX_DEFECT_GLOBAL_RACE] = "race in global memory",
        [PTX_DEFECT_DEADLOCK] = "deadlock",
        [PTX_DEFECT_DIVERGENT_BARRIER] = "divergent barrier",
        [PTX_DEFECT_EXITED_BARRIER] = "barrier after threads have exited",
        [PTX_DEFECT_BARRIER_COUNT] = "wrong number of threads at a barrier",
        [PTX_DEFECT_MEMBER_MASK] = "wrong member mask",
        [PTX_DEFECT_SHUFFLE_SOURCE] = "shuffle from a lane that takes no part",
        [PTX_DEFECT_OPERANDS] = "operands that the instruction may not have",
        [PTX_DEFECT_TRAP] = "trap",
        [PTX_DEFECT_ENDLESS] = "no end",
    };
    return (unsigned)kind < PTX_DEFECT_KINDS ? names[kind] : "";
}

/* The text of a line, without what surrounds it. */
static const char *line_text(const ptx_module *module, uint32_t line, uint32_t *length) {
    const char *at = module->text, *end = module->text + module->text_size;
    for (uint32_t i = 1; i < line && at < end; at++) i += *at == '\n';
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    const char *stop = at;
    while (stop < end && *stop != '\n') stop++;
    *length = (uint32_t)(stop - at);
    return at;
}

static void add_to_report(ptx_machine *machine, const char *text) {
    size_t length = strlen(text);
    char *moved = realloc(machine->report, machine->report_size + length + 1);
    if (!moved) return;
    machine->report = moved;
    memcpy(moved + machine->report_size, text, length + 1);
    machine->report_size += length;
}

void ptx_defect_add(ptx_warp *warp, const ptx_insn *insn, ptx_defect_kind kind, uint32_t lane,
                    uint64_t address, const char *format, ...) {
    const ptx_block *block = warp->block;
    ptx_machine *machine = block->machine;
    for (uint32_t i = 0; i < machine->defect_count; i++) {
        if (machine->defects[i].kind != kind || machine->defects[i].line != insn->line) continue;
        machine->defects[i].count++;
        return;
    }
    if (machine->defect_count == machine->defect_limit) {
        machine->stop = true;
        return;
    }
    ptx_defect *moved = realloc(machine->defects, (machine->defect_count + 1) * sizeof *moved);
    if (!moved) abort();
    machine->defects = moved;
    ptx_defect *defect = &moved[machine->defect_count++];
    const uint32_t *size = block->launch->block;
    uint32_t thread = ptx_thread(warp, lane);
    *defect =
        (ptx_defect){.kind = kind,
                     .line = insn->line,
                     .block = {block->at[0], block->at[1], block->at[2]},
                     .thread = {thread % size[0], thread / size[0] % size[1], thread / size[0] / size[1]},
                     .address = address,
                     .count = 1};
    int at = snprintf(defect->text, sizeof defect->text, "%s: %s: block (%u,%u,%u) thread (%u,%u,%u) ",
                      block->kernel->name, ptx_defect_name(kind), defect->block[0], defect->block[1],
                      defect->block[2], defect->thread[0], defect->thread[1], defect->thread[2]);
    va_list arguments;
    va_start(arguments, format);
    if ((size_t)at < sizeof defect->text)
        vsnprintf(defect->text + at, sizeof defect->text - (size_t)at, format, arguments);
    va_end(arguments);

    uint32_t length;
    const ptx_module *module = block->kernel->module;
    const char *text = line_text(module, insn->line, &length);
    char place[256];
    snprintf(place, sizeof place, "\n    %s:%u: %.*s\n", module->name, insn->line,
             (int)(length < 160 ? length : 160), text);
    add_to_report(machine, defect->text);
    add_to_report(machine, place);
}

const char *ptx_machine_report(const ptx_machine *machine) {
    return machine->report ? machine->report : "";
}
uint32_t ptx_machine_defect_count(const ptx_machine *machine) {
    return machine->defect_count;
}
const ptx_defect *ptx_machine_defect(const ptx_machine *machine, uint32_t index) {
    return index < machine->defect_count ? &machine->defects[index] : NULL;
}
const char *ptx_machine_message(const ptx_machine *machine) {
    return machine->message;
}
