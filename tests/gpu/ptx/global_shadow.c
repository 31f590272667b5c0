/* Races in global memory, byte by byte: the last write and the last read. Pages are made when they are
 * touched; a launch tells its entries from older ones by the number of the block in them.
 *
 *     63 .. 28  block, counted over all launches, plus 1     27 .. 11  clock since the block's first
 *     10        strong                                        9 .. 0   thread
 *
 * Within a block, order is as in shared_shadow.c. Blocks have no order among themselves, unless the earlier
 * one has made a fence: then it is taken to mean to be seen.
 *
 * A page keeps one entry a word, that of its first byte, until there is an access to part of a word. */
#include "run.h"

#include <stdlib.h>

enum { PAGE_BYTES = 4096, STRONG = 1 << 10, THREAD = 1023, CLOCK_BITS = 17 };

struct ptx_page {
    bool split; /* each byte has an entry */
    uint64_t writes[PAGE_BYTES], reads[PAGE_BYTES];
};

void ptx_global_shadow_clear(ptx_range *range) {
    if (!range->pages) return;
    size_t count = (range->to - range->from + PAGE_BYTES - 1) / PAGE_BYTES;
    for (size_t i = 0; i < count; i++) free(range->pages[i]);
    free(range->pages);
    range->pages = NULL;
}

static ptx_page *page_of(ptx_range *range, uint64_t offset) {
    if (!range->pages) {
        range->pages = calloc((range->to - range->from + PAGE_BYTES - 1) / PAGE_BYTES, sizeof *range->pages);
        if (!range->pages) abort();
    }
    ptx_page **page = &range->pages[offset / PAGE_BYTES];
    if (!*page) *page = calloc(1, sizeof **page);
    if (!*page) abort();
    return *page;
}

static uint64_t entry(const ptx_warp *warp, uint32_t lane, bool strong) {
    uint64_t clock = warp->clock - warp->block->first_clock;
    uint64_t largest = (1u << CLOCK_BITS) - 1u;
    return (warp->block->machine->launch_base + warp->block->ordinal + 1) << 28 |
           (clock < largest ? clock : largest) << 11 | (strong ? STRONG : 0) | ptx_thread(warp, lane);
}

static bool unordered(const ptx_warp *warp, uint64_t other, uint32_t lane, bool strong) {
    const ptx_machine *machine = warp->block->machine;
    uint64_t number = other >> 28;
    if (number <= machine->launch_base || (strong && (other & STRONG))) return false;
    uint64_t ordinal = number - 1 - machine->launch_base;
    if (ordinal != warp->block->ordinal)
        return !((uint32_t)machine->fenced_blocks[ordinal / 8] >> ordinal % 8 & 1u);
    uint32_t clock = warp->block->first_clock + (uint32_t)(other >> 11 & ((1u << CLOCK_BITS) - 1u));
    uint32_t thread = other & THREAD, w = thread / PTX_LANES;
    if (w == warp->index) return clock == warp->clock && thread % PTX_LANES != lane;
    return clock >= warp->seen[w];
}

static void report(ptx_warp *warp, const ptx_insn *insn, const ptx_range *range, const ptx_access *access,
                   uint32_t lane, uint64_t other, const char *did) {
    uint64_t ordinal = (other >> 28) - 1 - warp->block->machine->launch_base;
    const char *does = access->kind == PTX_READ ? "reads" : "writes";
    unsigned long long offset = access->address[lane] - range->from;
    if (ordinal == warp->block->ordinal)
        ptx_defect_add(warp, insn, PTX_DEFECT_GLOBAL_RACE, lane, access->address[lane],
                       "%s %s + %llu, which thread %u %s since the last barrier between them", does,
                       range->name, offset, (unsigned)(other & THREAD), did);
    else
        ptx_defect_add(warp, insn, PTX_DEFECT_GLOBAL_RACE, lane, access->address[lane],
                       "%s %s + %llu, which block number %llu %s without a fence", does, range->name, offset,
                       (unsigned long long)ordinal, did);
}

/* The entries of an access are mostly equal: look at runs. */
static void check(ptx_warp *warp, const ptx_insn *insn, const ptx_range *range, const ptx_access *access,
                  uint32_t lane, const uint64_t *entries, uint32_t size, uint32_t step, const char *did) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < size; i += step) {
        if (entries[i] == last) continue;
        last = entries[i];
        if (!unordered(warp, last, lane, access->strong)) continue;
        report(warp, insn, range, access, lane, last, did);
        return;
    }
}

static uint32_t step_of(ptx_page *page, uint32_t at, uint32_t size) {
    if (page->split) return 1;
    if (((at | size) & 3u) == 0) return 4;
    page->split = true;
    for (uint32_t word = 0; word < PAGE_BYTES; word += 4)
        for (uint32_t i = 1; i < 4; i++) {
            page->writes[word + i] = page->writes[word];
            page->reads[word + i] = page->reads[word];
        }
    return 1;
}

static void each_lane(ptx_warp *warp, const ptx_insn *insn, ptx_range *range, const ptx_access *access,
                      bool note) {
    PTX_FOR_LANES(lane, access->mask) {
        uint64_t offset = access->address[lane] - range->from, mine = entry(warp, lane, access->strong);
        uint32_t left = access->size;
        while (left) {
            ptx_page *page = page_of(range, offset);
            uint32_t at = (uint32_t)(offset % PAGE_BYTES),
                     here = PAGE_BYTES - at < left ? PAGE_BYTES - at : left;
            uint32_t step = step_of(page, at, here);
            uint64_t *writes = page->writes + at, *reads = page->reads + at;
            if (!note) {
                check(warp, insn, range, access, lane, writes, here, step, "wrote");
                if (access->kind != PTX_READ)
                    check(warp, insn, range, access, lane, reads, here, step, "read");
            } else {
                uint64_t *entries = access->kind == PTX_READ ? reads : writes;
                for (uint32_t i = 0; i < here; i += step) entries[i] = mine;
            }
            offset += here;
            left -= here;
        }
    }
}

void ptx_global_shadow_access(ptx_warp *warp, const ptx_insn *insn, ptx_range *range,
                              const ptx_access *access) {
    if (range->read_only) return;
    each_lane(warp, insn, range, access, false);
    each_lane(warp, insn, range, access, true);
}
