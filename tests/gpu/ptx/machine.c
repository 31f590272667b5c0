/* A machine and its table of global memory. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

ptx_machine *ptx_machine_create(void) {
    return calloc(1, sizeof(ptx_machine));
}

static void forget_range(ptx_range *range) {
    ptx_global_shadow_clear(range);
    free(range->sector_stamps[0]);
    free(range->sector_stamps[1]);
    if (range->owned) free((void *)(uintptr_t)range->from);
    free(range->name);
}

void ptx_machine_destroy(ptx_machine *machine) {
    if (!machine) return;
    while (machine->modules) ptx_module_unload(machine->modules);
    for (uint32_t i = 0; i < machine->range_count; i++) forget_range(&machine->ranges[i]);
    free(machine->ranges);
    free(machine->defects);
    free(machine->report);
    free(machine);
}

/* The first range that ends behind the address. */
static uint32_t search(const ptx_machine *machine, uint64_t address) {
    uint32_t low = 0, high = machine->range_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (machine->ranges[middle].to <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

ptx_range *ptx_range_find(ptx_machine *machine, uint64_t address) {
    if (machine->last_range < machine->range_count) {
        ptx_range *last = &machine->ranges[machine->last_range];
        if (address >= last->from && address < last->to) return last;
    }
    uint32_t at = search(machine, address);
    if (at == machine->range_count || machine->ranges[at].from > address) return NULL;
    machine->last_range = at;
    return &machine->ranges[at];
}

void ptx_range_describe(const ptx_machine *machine, uint64_t address, char *text, size_t size) {
    uint32_t at = search(machine, address);
    const ptx_range *in =
        at < machine->range_count && machine->ranges[at].from <= address ? &machine->ranges[at] : NULL;
    const ptx_range *before = at > 0 ? &machine->ranges[at - 1] : NULL;
    const ptx_range *behind = at < machine->range_count ? &machine->ranges[at] : NULL;
    if (in)
        snprintf(text, size, "across the end of %s (%llu bytes)", in->name,
                 (unsigned long long)(in->to - in->from));
    else if (before && (!behind || address - before->to <= behind->from - address))
        snprintf(text, size, "%llu bytes behind %s (%llu bytes)", (unsigned long long)(address - before->to),
                 before->name, (unsigned long long)(before->to - before->from));
    else if (behind)
        snprintf(text, size, "%llu bytes before %s (%llu bytes)",
                 (unsigned long long)(behind->from - address), behind->name,
                 (unsigned long long)(behind->to - behind->from));
    else
        snprintf(text, size, "where nothing is allocated");
}

static bool add_range(ptx_machine *machine, void *memory, size_t size, const char *name, bool read_only,
                      bool owned) {
    uint64_t from = (uint64_t)(uintptr_t)memory, to = from + size;
    if (size == 0) return false;
    uint32_t at = search(machine, from);
    if (at < machine->range_count && machine->ranges[at].from < to) return false;
    if (machine->range_count == machine->range_room) {
        uint32_t room = machine->range_room ? machine->range_room * 2 : 32;
        ptx_range *moved = realloc(machine->ranges, room * sizeof *moved);
        if (!moved) return false;
        machine->ranges = moved;
        machine->range_room = room;
    }
    char *copy = malloc(strlen(name) + 1);
    if (!copy) return false;
    memcpy(copy, name, strlen(name) + 1);
    memmove(&machine->ranges[at + 1], &machine->ranges[at],
            (machine->range_count - at) * sizeof *machine->ranges);
    machine->ranges[at] =
        (ptx_range){.from = from, .to = to, .name = copy, .read_only = read_only, .owned = owned};
    machine->range_count++;
    return true;
}

void *ptx_memory_alloc(ptx_machine *machine, size_t size, const char *name) {
    if (size == 0 || size > SIZE_MAX / 2) return NULL;
    /* Space behind it, so that the next allocation does not touch it and overruns are nobody's. */
    size_t whole = (size + 511) / 256 * 256;
    void *memory = aligned_alloc(256, whole);
    if (!memory) return NULL;
    memset(memory, 0xcb, whole);
    if (add_range(machine, memory, size, name, false, true)) return memory;
    free(memory);
    return NULL;
}

static void remove_range(ptx_machine *machine, const void *memory, bool owned) {
    uint64_t from = (uint64_t)(uintptr_t)memory;
    uint32_t at = search(machine, from);
    if (!memory || at == machine->range_count || machine->ranges[at].from != from ||
        machine->ranges[at].owned != owned)
        return;
    forget_range(&machine->ranges[at]);
    machine->range_count--;
    memmove(&machine->ranges[at], &machine->ranges[at + 1],
            (machine->range_count - at) * sizeof *machine->ranges);
}

void ptx_memory_free(ptx_machine *machine, void *memory) {
    remove_range(machine, memory, true);
}

bool ptx_memory_add(ptx_machine *machine, void *memory, size_t size, const char *name, bool read_only) {
    return add_range(machine, memory, size, name, read_only, false);
}

void ptx_memory_remove(ptx_machine *machine, const void *memory) {
    remove_range(machine, memory, false);
}

bool ptx_memory_contains(const ptx_machine *machine, const void *address, size_t size) {
    uint64_t from = (uint64_t)(uintptr_t)address;
    uint32_t at = search(machine, from);
    return at < machine->range_count && machine->ranges[at].from <= from &&
           size <= machine->ranges[at].to - from;
}
