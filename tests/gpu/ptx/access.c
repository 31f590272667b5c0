/* Every load, store, atomic and copy of a warp passes here: spaces, bounds, alignment, then shadows and
 * counters. */
#include "run.h"

#include <stdio.h>

void ptx_access_addresses(ptx_warp *warp, const ptx_insn *insn, uint32_t slot, bool wide,
                          ptx_access *access) {
    if (wide) {
        const uint64_t *base = ptx_slot(warp, slot);
        for (uint32_t lane = 0; lane < PTX_LANES; lane++)
            access->address[lane] = base[lane] + (uint64_t)insn->offset;
    } else {
        const uint32_t *base = ptx_slot(warp, slot);
        for (uint32_t lane = 0; lane < PTX_LANES; lane++)
            access->address[lane] = (uint32_t)(base[lane] + (uint32_t)insn->offset);
    }
}

static uint8_t space_of(uint64_t address) {
    switch (address & PTX_WINDOW_MASK) {
    case PTX_SHARED_WINDOW:
        return PTX_SPACE_SHARED;
    case PTX_LOCAL_WINDOW:
        return PTX_SPACE_LOCAL;
    case PTX_PARAM_WINDOW:
        return PTX_SPACE_PARAM;
    default:
        return PTX_SPACE_GLOBAL;
    }
}

bool ptx_access_next_space(ptx_access *all, uint32_t *rest, ptx_access *part) {
    if (*rest == 0) return false;
    uint8_t space = space_of(all->address[ptx_lowest(*rest)]);
    *part = *all;
    part->space = space;
    part->mask = 0;
    PTX_FOR_LANES(lane, *rest) {
        if (space_of(all->address[lane]) != space) continue;
        part->mask |= 1u << lane;
        if (space != PTX_SPACE_GLOBAL) part->address[lane] &= ~PTX_WINDOW_MASK;
    }
    *rest &= ~part->mask;
    return true;
}

static const char *verb(const ptx_access *access) {
    return access->kind == PTX_READ ? "reads" : access->kind == PTX_WRITE ? "writes" : "updates";
}

static const char *space_name(uint8_t space) {
    static const char *const names[] = {"generic", "global", "shared", "local", "constant", "parameter"};
    return names[space];
}

static void check_alignment(ptx_warp *warp, const ptx_insn *insn, ptx_access *access) {
    uint64_t low = access->size - 1, any = 0; /* sizes are powers of two */
    for (uint32_t lane = 0; lane < PTX_LANES; lane++)
        any |= access->mask >> lane & 1u ? access->address[lane] & low : 0;
    if (any == 0) return;
    PTX_FOR_LANES(lane, access->mask) {
        if ((access->address[lane] & low) == 0) continue;
        access->mask &= ~(1u << lane);
        ptx_defect_add(warp, insn, PTX_DEFECT_MISALIGNED, lane, access->address[lane],
                       "%s %u bytes of %s memory at 0x%llx", verb(access), access->size,
                       space_name(access->space), (unsigned long long)access->address[lane]);
    }
}

/* ---- Global -------------------------------------------------------------------------------------------- */

static void outside_range(ptx_warp *warp, const ptx_insn *insn, ptx_access *access, uint32_t lane) {
    char place[200];
    ptx_range_describe(warp->block->machine, access->address[lane], place, sizeof place);
    access->mask &= ~(1u << lane);
    ptx_defect_add(warp, insn, PTX_DEFECT_GLOBAL_BOUNDS, lane, access->address[lane],
                   "%s %u bytes at 0x%llx, %s", verb(access), access->size,
                   (unsigned long long)access->address[lane], place);
}

static void refuse_write(ptx_warp *warp, const ptx_insn *insn, ptx_access *access, const ptx_range *range,
                         uint32_t mask) {
    PTX_FOR_LANES(lane, mask)
    ptx_defect_add(warp, insn, PTX_DEFECT_READ_ONLY, lane, access->address[lane],
                   "%s %u bytes at 0x%llx, in %s", verb(access), access->size,
                   (unsigned long long)access->address[lane], range->name);
    access->mask &= ~mask;
}

/* Lanes that lie in one range are looked at together. */
static void resolve_global(ptx_warp *warp, const ptx_insn *insn, ptx_access *access) {
    ptx_machine *machine = warp->block->machine;
    uint32_t rest = access->mask;
    while (rest) {
        uint32_t first = ptx_lowest(rest);
        ptx_range *range = ptx_range_find(machine, access->address[first]);
        if (!range || access->address[first] + access->size > range->to) {
            outside_range(warp, insn, access, first);
            rest &= rest - 1;
            continue;
        }
        uint32_t together = 0;
        uint64_t from = range->from, room = range->to - access->size - from;
        for (uint32_t lane = 0; lane < PTX_LANES; lane++)
            together |= (uint32_t)(access->address[lane] - from <= room) << lane;
        together &= rest;
        rest &= ~together;
        if (access->kind != PTX_READ && (range->read_only || range->is_const)) {
            refuse_write(warp, insn, access, range, together);
            continue;
        }
        ptx_access part = *access;
        part.mask = together;
        if ((warp->checks & PTX_CHECK_COUNT) && !access->not_counted) ptx_count_global(warp, &part, range);
        if ((warp->checks & PTX_CHECK_GLOBAL_RACE) && !range->is_const)
            ptx_global_shadow_access(warp, insn, range, &part);
    }
    for (uint32_t lane = 0; lane < PTX_LANES; lane++)
        access->host[lane] = (uint8_t *)(uintptr_t)access->address[lane];
}

/* ---- Shared, local, parameters ------------------------------------------------------------------------- */

static const char *shared_neighbour(const ptx_block *block, uint64_t address, char *text, size_t size) {
    const ptx_function *kernel = block->kernel;
    const ptx_extent *nearest = NULL;
    for (uint32_t i = 0; i < kernel->shared_extent_count; i++)
        if (kernel->shared_extents[i].from <= address) nearest = &kernel->shared_extents[i];
    for (uint32_t i = 0; i < kernel->module->shared_extent_count; i++) {
        const ptx_extent *extent = &kernel->module->shared_extents[i];
        if (extent->from <= address && (!nearest || extent->from > nearest->from)) nearest = extent;
    }
    uint32_t dynamic = kernel->module->dynamic_at;
    if (address >= dynamic && block->launch->dynamic_shared)
        snprintf(text, size, "%llu bytes behind dynamic shared memory (%zu bytes)",
                 (unsigned long long)(address - dynamic - block->launch->dynamic_shared),
                 block->launch->dynamic_shared);
    else if (nearest)
        snprintf(text, size, "%llu bytes behind %s (%u bytes)", (unsigned long long)(address - nearest->to),
                 nearest->name, nearest->to - nearest->from);
    else
        snprintf(text, size, "where no variable is");
    return text;
}

static void resolve_shared(ptx_warp *warp, const ptx_insn *insn, ptx_access *access) {
    ptx_block *block = warp->block;
    uint32_t mask = access->mask;
    PTX_FOR_LANES(lane, mask) {
        uint64_t address = access->address[lane];
        /* Gaps between variables are longer than an access. */
        if (address + access->size <= block->shared_bytes && block->shared_valid[address] &&
            block->shared_valid[address + access->size - 1]) {
            access->host[lane] = block->shared + address;
            continue;
        }
        char place[200];
        access->mask &= ~(1u << lane);
        bool across = address < block->shared_bytes && block->shared_valid[address];
        ptx_defect_add(
            warp, insn, PTX_DEFECT_SHARED_BOUNDS, lane, address, "%s %u bytes at shared 0x%llx, %s",
            verb(access), access->size, (unsigned long long)address,
            across ? "across the end of a variable" : shared_neighbour(block, address, place, sizeof place));
    }
    if ((warp->checks & PTX_CHECK_COUNT) && !access->not_counted) {
        ptx_counters *counters = &block->machine->counters;
        ptx_count_shared(warp, access,
                         access->kind == PTX_READ    ? &counters->shared_load
                         : access->kind == PTX_WRITE ? &counters->shared_store
                                                     : &counters->shared_atomic);
    }
    if (warp->checks & (PTX_CHECK_SHARED_INIT | PTX_CHECK_SHARED_RACE))
        ptx_shared_shadow_access(warp, insn, access);
}

static void resolve_local(ptx_warp *warp, const ptx_insn *insn, ptx_access *access) {
    uint64_t bytes = warp->block->local_bytes;
    uint32_t mask = access->mask;
    PTX_FOR_LANES(lane, mask) {
        uint64_t address = access->address[lane];
        access->host[lane] = warp->local + lane * bytes + address;
        if (address + access->size <= bytes) continue;
        access->mask &= ~(1u << lane);
        ptx_defect_add(warp, insn, PTX_DEFECT_LOCAL_BOUNDS, lane, address,
                       "%s %u bytes at local 0x%llx of %llu", verb(access), access->size,
                       (unsigned long long)address, (unsigned long long)bytes);
    }
}

static void resolve_parameters(ptx_warp *warp, const ptx_insn *insn, ptx_access *access) {
    const ptx_frame *frame = warp->frame;
    uint32_t bytes = frame->function->parameter_bytes, mask = access->mask;
    uint32_t kernel_bytes = frame->function->is_kernel ? frame->function->formal_bytes : 0;
    PTX_FOR_LANES(lane, mask) {
        uint64_t address = access->address[lane];
        bool inside = address + access->size <= bytes;
        if (inside && address < kernel_bytes && access->kind == PTX_READ) {
            /* Nothing writes through this pointer. */
            access->host[lane] = (uint8_t *)(uintptr_t)(warp->block->arguments + address);
            continue;
        }
        access->host[lane] = frame->parameters + (size_t)lane * bytes + address;
        if (inside && address >= kernel_bytes) continue;
        access->mask &= ~(1u << lane);
        ptx_defect_add(warp, insn, PTX_DEFECT_PARAM_BOUNDS, lane, address,
                       "%s %u bytes at parameter 0x%llx of %u", verb(access), access->size,
                       (unsigned long long)address, bytes);
    }
}

void ptx_access_resolve(ptx_warp *warp, const ptx_insn *insn, ptx_access *access) {
    if (access->mask == 0) return;
    if (!access->unaligned) check_alignment(warp, insn, access);
    switch (access->space) {
    case PTX_SPACE_SHARED:
        resolve_shared(warp, insn, access);
        break;
    case PTX_SPACE_LOCAL:
        resolve_local(warp, insn, access);
        break;
    case PTX_SPACE_PARAM:
        resolve_parameters(warp, insn, access);
        break;
    default:
        resolve_global(warp, insn, access);
        break;
    }
}
