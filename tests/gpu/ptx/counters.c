/* What a launch costs: sectors of global memory, wavefronts of shared memory, instructions by class. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Global memory: 32-byte sectors -------------------------------------------------------------------- */

static void note_block_sector(const ptx_warp *warp, ptx_range *range, bool store, uint64_t sector,
                              ptx_memory_counters *counters) {
    uint32_t **stamps = &range->sector_stamps[store];
    uint64_t first = range->from / PTX_SECTOR;
    if (!*stamps) *stamps = calloc((range->to - 1) / PTX_SECTOR - first + 1, sizeof **stamps);
    if (!*stamps) abort();
    uint32_t *stamp = &(*stamps)[sector - first];
    uint32_t mine = (uint32_t)(warp->block->machine->launch_base + warp->block->ordinal + 1);
    counters->block_sectors += *stamp != mine;
    *stamp = mine;
}

void ptx_count_global(ptx_warp *warp, const ptx_access *access, ptx_range *range) {
    ptx_counters *all = &warp->block->machine->counters;
    ptx_memory_counters *counters = access->kind == PTX_READ    ? &all->load
                                    : access->kind == PTX_WRITE ? &all->store
                                                                : &all->atomic;
    uint64_t seen[2 * PTX_LANES];
    uint32_t count = 0;
    counters->instructions++;
    counters->bytes += (uint64_t)access->size * (uint32_t)__builtin_popcount(access->mask);
    PTX_FOR_LANES(lane, access->mask) {
        uint64_t from = access->address[lane] / PTX_SECTOR,
                 to = (access->address[lane] + access->size - 1) / PTX_SECTOR;
        for (uint64_t sector = from; sector <= to; sector++) {
            uint32_t i = count; /* newest first: neighbours share sectors */
            while (i > 0 && seen[i - 1] != sector) i--;
            if (i > 0) continue;
            if (count < 2 * PTX_LANES) seen[count++] = sector;
            counters->sectors++;
            note_block_sector(warp, range, access->kind != PTX_READ, sector, counters);
        }
    }
}

/* ---- Shared memory: 32 banks of 4 bytes ---------------------------------------------------------------- */

/* Passes for one phase: the most distinct words that one bank must give. */
static uint32_t passes(const uint32_t *words, uint32_t count) {
    uint32_t chain[PTX_LANES], first[PTX_LANES], in_bank[PTX_LANES] = {0}, most = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bank = words[i] % PTX_LANES, n = in_bank[bank], at = first[bank];
        bool again = false;
        for (uint32_t j = 0; j < n && !again; j++, at = chain[at]) again = words[at] == words[i];
        if (again) continue;
        chain[i] = n ? first[bank] : 0;
        first[bank] = i;
        in_bank[bank] = n + 1;
        if (n + 1 > most) most = n + 1;
    }
    return most;
}

/* Lanes are served together as far as their bytes fill 128: 32 lanes of 4, 16 of 8, 8 of 16. */
void ptx_count_shared(ptx_warp *warp, const ptx_access *access, ptx_shared_counters *counters) {
    (void)warp;
    if (access->mask == 0) return;
    uint32_t words_each = access->size > 4 ? access->size / 4 : 1, lanes_each = PTX_LANES / words_each;
    counters->instructions++;
    counters->bytes += (uint64_t)access->size * (uint32_t)__builtin_popcount(access->mask);
    for (uint32_t first = 0; first < PTX_LANES; first += lanes_each) {
        uint32_t words[PTX_LANES], count = 0;
        bool in_order = true;
        for (uint32_t lane = first; lane < first + lanes_each; lane++) {
            if (!(access->mask >> lane & 1u)) continue;
            uint32_t word = (uint32_t)access->address[lane] / 4;
            if (count && word != words[count - 1] + 1) in_order = false;
            for (uint32_t i = 0; i < words_each; i++) words[count++] = word + i;
        }
        if (count == 0) continue;
        counters->ideal++;
        counters->wavefronts += in_order ? 1 : passes(words, count);
    }
}

/* ldmatrix and stmatrix: a matrix of 8 rows of 16 bytes is one pass at best. */
void ptx_count_matrix(ptx_warp *warp, const uint32_t *rows, uint32_t count) {
    ptx_shared_counters *counters = &warp->block->machine->counters.matrix;
    counters->instructions++;
    counters->bytes += (uint64_t)count * 128;
    for (uint32_t m = 0; m < count; m++) {
        uint32_t words[PTX_LANES];
        for (uint32_t i = 0; i < PTX_LANES; i++) words[i] = rows[8 * m + i / 4] / 4 + i % 4;
        counters->ideal++;
        counters->wavefronts += passes(words, PTX_LANES);
    }
}

/* ---- Text ---------------------------------------------------------------------------------------------- */

const char *ptx_class_name(ptx_class class_) {
    static const char *const names[PTX_CLASSES] = {
        "integer",    "float",       "half",         "special",       "convert",
        "move",       "mma",         "global load",  "global store",  "global atomic",
        "async copy", "shared load", "shared store", "shared atomic", "matrix load",
        "local",      "shuffle",     "barrier",      "branch",        "other"};
    return class_ < PTX_CLASSES ? names[class_] : "";
}

const ptx_counters *ptx_machine_counters(const ptx_machine *machine) {
    return &machine->counters;
}

static size_t add_memory(char *text, size_t size, size_t at, const char *name, const ptx_memory_counters *c) {
    if (c->instructions == 0 || at >= size) return at;
    int length = snprintf(
        text + at, size - at,
        "%-18s %12llu instructions %12llu bytes %12llu sectors (%.2f of the bytes) %12llu once a block\n",
        name, (unsigned long long)c->instructions, (unsigned long long)c->bytes,
        (unsigned long long)c->sectors, c->bytes ? (double)c->sectors * PTX_SECTOR / (double)c->bytes : 0.0,
        (unsigned long long)c->block_sectors);
    return at + (size_t)length;
}

static size_t add_shared(char *text, size_t size, size_t at, const char *name, const ptx_shared_counters *c) {
    if (c->instructions == 0 || at >= size) return at;
    int length = snprintf(text + at, size - at,
                          "%-18s %12llu instructions %12llu bytes %12llu wavefronts (ideal %llu)\n", name,
                          (unsigned long long)c->instructions, (unsigned long long)c->bytes,
                          (unsigned long long)c->wavefronts, (unsigned long long)c->ideal);
    return at + (size_t)length;
}

const char *ptx_machine_counter_text(ptx_machine *machine) {
    const ptx_counters *c = &machine->counters;
    char *text = machine->counter_text;
    size_t size = sizeof machine->counter_text;
    size_t at = (size_t)snprintf(
        text, size, "warp instructions  %12llu, divergent %llu, %.1f threads each\n",
        (unsigned long long)c->warp_instructions, (unsigned long long)c->divergent,
        c->warp_instructions ? (double)c->thread_instructions / (double)c->warp_instructions : 0.0);
    for (uint32_t i = 0; i < PTX_CLASSES && at < size; i++)
        if (c->by_class[i])
            at += (size_t)snprintf(text + at, size - at, "  %-16s %12llu\n", ptx_class_name((ptx_class)i),
                                   (unsigned long long)c->by_class[i]);
    at = add_memory(text, size, at, "global loads", &c->load);
    at = add_memory(text, size, at, "global stores", &c->store);
    at = add_memory(text, size, at, "global atomics", &c->atomic);
    at = add_shared(text, size, at, "shared loads", &c->shared_load);
    at = add_shared(text, size, at, "shared stores", &c->shared_store);
    at = add_shared(text, size, at, "shared atomics", &c->shared_atomic);
    add_shared(text, size, at, "matrix accesses", &c->matrix);
    return text;
}
