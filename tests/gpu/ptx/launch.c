/* A launch: blocks one after another, the warps of a block in turns. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

enum { TURN = 512, LARGEST_CLOCK = 1 << 25, STACK_BYTES = 4096, SHARED_LIMIT = 227 * 1024 };

/* ---- What a launch may ask for ------------------------------------------------------------------------- */

static int refuse(ptx_machine *machine, const ptx_function *kernel, const char *why) {
    snprintf(machine->message, sizeof machine->message, "%s: %s", kernel ? kernel->name : "launch", why);
    return PTX_REFUSED;
}

static int check_launch(ptx_machine *machine, const ptx_function *kernel, const ptx_launch *launch) {
    machine->message[0] = '\0';
    if (!kernel) return refuse(machine, NULL, "no kernel");
    if (kernel->module->machine != machine) return refuse(machine, kernel, "belongs to another machine");
    uint64_t threads = 1;
    for (uint32_t i = 0; i < 3; i++) {
        if (launch->grid[i] == 0 || launch->block[i] == 0) return refuse(machine, kernel, "a dimension is 0");
        if (launch->grid[i] > (i == 0 ? 0x7fffffffu : 65535u))
            return refuse(machine, kernel, "the grid is too large");
        if (launch->block[i] > 1024) return refuse(machine, kernel, "the block is too large");
        threads *= launch->block[i];
    }
    if (threads > kernel->max_threads)
        return refuse(machine, kernel, "the block has more threads than the kernel allows");
    size_t shared = kernel->shared_used + kernel->module->shared_used;
    if (launch->dynamic_shared > SHARED_LIMIT || shared + launch->dynamic_shared > SHARED_LIMIT)
        return refuse(machine, kernel, "too much shared memory");
    if (kernel->formal_count && !launch->arguments) return refuse(machine, kernel, "arguments are missing");
    return PTX_OK;
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void start_block(ptx_block *block, uint32_t base_clock) {
    block->first_clock = base_clock;
    block->exited = 0;
    memset(block->barriers, 0, sizeof block->barriers);
    memset(block->shared, 0xcd, block->shared_bytes);
    for (uint32_t w = 0; w < block->warp_count; w++) {
        ptx_warp *warp = &block->warps[w];
        warp->clock = base_clock;
        for (uint32_t v = 0; v < PTX_MAX_WARPS; v++) warp->seen[v] = base_clock;
        ptx_warp_start(warp);
    }
}

/* Leaves nothing in use, wherever the block stopped. */
static void end_block(ptx_block *block) {
    for (uint32_t w = 0; w < block->warp_count; w++) {
        ptx_warp *warp = &block->warps[w];
        if (warp->live == 0) continue;
        for (uint32_t i = 0; i < warp->group_count; i++)
            for (ptx_frame *frame = warp->groups[i].frame; frame;) {
                ptx_frame *parent = frame->parent;
                frame->lanes &= ~warp->groups[i].lanes;
                if (frame->lanes == 0) ptx_frame_leave(warp, frame);
                frame = parent;
            }
        warp->group_count = 0;
        warp->live = 0;
    }
    if (block->shadow && block->machine->stop) {
        ptx_shared_shadow_destroy(block->shadow);
        block->shadow = NULL;
    }
}

static void report_stuck(ptx_block *block) {
    for (uint32_t w = 0; w < block->warp_count; w++) {
        ptx_warp *warp = &block->warps[w];
        for (uint32_t i = 0; i < warp->group_count; i++) {
            const ptx_group *group = &warp->groups[i];
            const ptx_insn *insn = &group->frame->function->code[group->at];
            uint32_t lane = ptx_lowest(group->lanes);
            if (group->wait == PTX_WAIT_BARRIER) {
                const ptx_barrier *barrier = &block->barriers[group->barrier];
                ptx_defect_add(warp, insn, PTX_DEFECT_DEADLOCK, lane, 0,
                               "waits at barrier %u, to which %u of %u threads have come", group->barrier,
                               barrier->arrived, barrier->expected);
            } else if (insn->class_ == PTX_CLASS_BARRIER && (insn->flags & PTX_ALIGNED)) {
                ptx_defect_add(warp, insn, PTX_DEFECT_DIVERGENT_BARRIER, lane, 0,
                               "comes to a barrier of whole warps with lanes 0x%08x of 0x%08x", group->lanes,
                               warp->live);
            } else {
                ptx_defect_add(warp, insn, PTX_DEFECT_DEADLOCK, lane, 0,
                               "waits with lanes 0x%08x for lanes that never come", group->lanes);
            }
        }
    }
}

static void report_endless(ptx_block *block) {
    ptx_warp *warp = &block->warps[0];
    for (uint32_t w = 0; w < block->warp_count; w++)
        if (block->warps[w].live) warp = &block->warps[w];
    if (!warp->live) return;
    const ptx_group *group = &warp->groups[0];
    ptx_defect_add(warp, &group->frame->function->code[group->at], PTX_DEFECT_ENDLESS,
                   ptx_lowest(group->lanes), 0,
                   "still runs after as many instructions as the launch may take");
}

static void run_block(ptx_block *block, uint64_t *random) {
    ptx_machine *machine = block->machine;
    for (;;) {
        bool moved = false, left = false;
        uint32_t first = random ? (uint32_t)(next_random(random) % block->warp_count) : 0;
        for (uint32_t i = 0; i < block->warp_count; i++) {
            ptx_warp *warp = &block->warps[(first + i) % block->warp_count];
            if (warp->live == 0) continue;
            uint64_t turn = random ? 1 + next_random(random) % TURN : TURN, budget = turn;
            if (budget > machine->instruction_limit) turn = budget = machine->instruction_limit;
            ptx_turn result = ptx_warp_run(warp, &budget);
            machine->instruction_limit -= turn - budget;
            moved = moved || budget != turn;
            left = left || result != PTX_TURN_DONE;
            if (machine->stop) return;
            if (machine->instruction_limit == 0 && result == PTX_TURN_MORE) {
                report_endless(block);
                machine->stop = true;
                return;
            }
        }
        if (!left) return;
        if (moved) continue;
        report_stuck(block);
        machine->stop = true;
        return;
    }
}

/* ---- Launches ------------------------------------------------------------------------------------------ */

static void mark_valid(ptx_block *block) {
    const ptx_function *kernel = block->kernel;
    const ptx_module *module = kernel->module;
    for (uint32_t i = 0; i < module->shared_extent_count; i++)
        memset(block->shared_valid + module->shared_extents[i].from, 1,
               module->shared_extents[i].to - module->shared_extents[i].from);
    for (uint32_t i = 0; i < kernel->shared_extent_count; i++)
        memset(block->shared_valid + kernel->shared_extents[i].from, 1,
               kernel->shared_extents[i].to - kernel->shared_extents[i].from);
    memset(block->shared_valid + module->dynamic_at, 1, block->launch->dynamic_shared);
}

static bool prepare(ptx_block *block) {
    const ptx_function *kernel = block->kernel;
    block->shared_bytes = kernel->module->dynamic_at + (uint32_t)block->launch->dynamic_shared;
    bool calls = kernel->call_count > 0;
    block->local_bytes = (kernel->local_bytes + (calls ? STACK_BYTES : 0) + 15u) & ~15u;
    block->shared = aligned_alloc(1024, (block->shared_bytes + 1024u) & ~1023u);
    block->shared_valid = calloc(block->shared_bytes + 1u, 1);
    block->shadow = ptx_shared_shadow_create(block->shared_bytes, block->warp_count);
    block->warps = calloc(block->warp_count, sizeof *block->warps);
    if (!block->shared || !block->shared_valid || !block->shadow || !block->warps) return false;
    mark_valid(block);
    for (uint32_t w = 0; w < block->warp_count; w++) {
        ptx_warp *warp = &block->warps[w];
        warp->index = w;
        warp->block = block;
        warp->checks = block->launch->checks;
        if (block->local_bytes == 0) continue;
        warp->local = malloc((size_t)block->local_bytes * PTX_LANES);
        if (!warp->local) return false;
    }
    return true;
}

static void clean_up(ptx_block *block) {
    for (uint32_t w = 0; block->warps && w < block->warp_count; w++) ptx_warp_free(&block->warps[w]);
    free(block->warps);
    free(block->shared);
    free(block->shared_valid);
    ptx_shared_shadow_destroy(block->shadow);
}

static uint8_t *copy_arguments(const ptx_function *kernel, const ptx_launch *launch) {
    uint8_t *arguments = calloc(kernel->formal_bytes + 1u, 1);
    for (uint32_t i = 0; arguments && i < kernel->formal_count; i++)
        memcpy(arguments + kernel->formals[i].offset, launch->arguments[i], kernel->formals[i].size);
    return arguments;
}

static void run_grid(ptx_block *block) {
    ptx_machine *machine = block->machine;
    const ptx_launch *launch = block->launch;
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2], random = launch->seed;
    /* A permuted order: from anywhere, backwards. */
    uint64_t shift = launch->seed ? next_random(&random) % blocks : 0;
    uint32_t clock = 1;
    for (uint64_t i = 0; i < blocks && !machine->stop; i++) {
        uint64_t ordinal = launch->seed ? (shift + blocks - i) % blocks : i;
        block->ordinal = ordinal;
        block->at[0] = (uint32_t)(ordinal % launch->grid[0]);
        block->at[1] = (uint32_t)(ordinal / launch->grid[0] % launch->grid[1]);
        block->at[2] = (uint32_t)(ordinal / launch->grid[0] / launch->grid[1]);
        if (clock > LARGEST_CLOCK) {
            ptx_shared_shadow_destroy(block->shadow);
            block->shadow = ptx_shared_shadow_create(block->shared_bytes, block->warp_count);
            if (!block->shadow) abort();
            clock = 1;
        }
        start_block(block, clock);
        run_block(block, launch->seed ? &random : NULL);
        for (uint32_t w = 0; w < block->warp_count; w++)
            if (block->warps[w].clock >= clock) clock = block->warps[w].clock + 1;
        end_block(block);
    }
}

int ptx_kernel_launch(ptx_machine *machine, const ptx_kernel *kernel, const ptx_launch *launch) {
    const ptx_function *function = kernel ? &kernel->function : NULL;
    int status = check_launch(machine, function, launch);
    if (status != PTX_OK) return status;
    memset(&machine->counters, 0, sizeof machine->counters);
    free(machine->report);
    machine->report = NULL;
    machine->report_size = 0;
    machine->defect_count = 0;
    machine->defect_limit = launch->defect_limit ? launch->defect_limit : 16;
    machine->instruction_limit = launch->instruction_limit ? launch->instruction_limit : (uint64_t)1 << 40;
    machine->stop = false;

    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    ptx_block block = {.machine = machine,
                       .kernel = function,
                       .launch = launch,
                       .threads = threads,
                       .warp_count = (threads + PTX_LANES - 1) / PTX_LANES};
    uint8_t *arguments = copy_arguments(function, launch);
    block.arguments = arguments;
    machine->launch_base = machine->blocks_run;
    machine->fenced_blocks = calloc((size_t)(blocks / 8 + 1), 1);
    if (arguments && machine->fenced_blocks && prepare(&block)) {
        run_grid(&block);
        status = machine->defect_count ? PTX_DEFECTS : PTX_OK;
    } else {
        status = refuse(machine, function, "out of memory");
    }
    machine->blocks_run += blocks;
    clean_up(&block);
    free(machine->fenced_blocks);
    machine->fenced_blocks = NULL;
    free(arguments);
    return status;
}
