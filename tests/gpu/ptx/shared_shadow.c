/* What is known of every byte of shared memory: who wrote it last, who read it since, and whether a copy to
 * it is under way.
 *
 * Order is that of vector clocks. A warp's clock grows at every barrier and bar.warp.sync; an access
 * carries the clock of its warp. It is ordered before what warp w does now if w has seen a later clock of
 * that warp (through barriers), or within a warp if the clock has grown since. Two accesses of different
 * threads, one of them a write, without order are a race. Clocks only grow, so that what earlier blocks
 * left behind is older than the block's first clock: nothing is cleared between blocks, and a byte whose
 * writer is that old is uninitialised.
 *
 * Memory that is only accessed by whole words keeps one entry a word, the one of its first byte; the first
 * access to part of a word in 64 bytes of memory makes entries for each of them. */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

enum { LANE_BITS = 6, MANY = 32, STRONG = 1 << 15, THREAD = 1023, UNIT = 64 };

struct ptx_shared_shadow {
    uint32_t bytes, warps;
    uint32_t *write_clock;
    uint16_t *writer; /* thread, STRONG */
    uint32_t *reads;  /* [warp][byte]: clock << LANE_BITS | lane, or MANY lanes */
    uint8_t *pending; /* copies under way */
    uint8_t *split;   /* a unit has entries for each byte */
};

struct ptx_shared_shadow *ptx_shared_shadow_create(uint32_t bytes, uint32_t warps) {
    struct ptx_shared_shadow *shadow = calloc(1, sizeof *shadow);
    if (!shadow) return NULL;
    size_t count = (bytes + UNIT) / UNIT * UNIT;
    shadow->bytes = (uint32_t)count;
    shadow->warps = warps;
    shadow->write_clock = calloc(count, sizeof *shadow->write_clock);
    shadow->writer = calloc(count, sizeof *shadow->writer);
    shadow->reads = calloc(count * warps, sizeof *shadow->reads);
    shadow->pending = calloc(count, 1);
    shadow->split = calloc(count / UNIT, 1);
    if (shadow->write_clock && shadow->writer && shadow->reads && shadow->pending && shadow->split)
        return shadow;
    ptx_shared_shadow_destroy(shadow);
    return NULL;
}

void ptx_shared_shadow_destroy(struct ptx_shared_shadow *shadow) {
    if (!shadow) return;
    free(shadow->write_clock);
    free(shadow->writer);
    free(shadow->reads);
    free(shadow->pending);
    free(shadow->split);
    free(shadow);
}

static void split_unit(struct ptx_shared_shadow *shadow, uint32_t unit) {
    shadow->split[unit] = 1;
    for (uint32_t word = unit * UNIT; word < (unit + 1) * UNIT; word += 4)
        for (uint32_t i = 1; i < 4; i++) {
            shadow->write_clock[word + i] = shadow->write_clock[word];
            shadow->writer[word + i] = shadow->writer[word];
            for (uint32_t w = 0; w < shadow->warps; w++) {
                uint32_t *reads = shadow->reads + (size_t)w * shadow->bytes + word;
                reads[i] = reads[0];
            }
        }
}

/* Distance between the entries of an access, which lies within a unit: they are aligned and no longer than
 * 32 bytes. */
static uint32_t step_of(struct ptx_shared_shadow *shadow, uint64_t at, uint32_t size) {
    uint32_t unit = (uint32_t)(at / UNIT);
    if (!shadow->split[unit]) {
        if (((at | size) & 3u) == 0) return 4;
        split_unit(shadow, unit);
    }
    return 1;
}

void ptx_shared_shadow_pending(ptx_warp *warp, uint32_t at, uint32_t size, bool pending) {
    uint8_t *counts = warp->block->shadow->pending + at;
    for (uint32_t i = 0; i < size; i++) counts[i] = (uint8_t)(counts[i] + (pending ? 1 : -1));
}

static void report_race(ptx_warp *warp, const ptx_insn *insn, const ptx_access *access, uint32_t lane,
                        uint32_t byte, uint32_t other, const char *did) {
    uint64_t address = access->address[lane] + byte;
    if (other == UINT32_MAX)
        ptx_defect_add(warp, insn, PTX_DEFECT_SHARED_RACE, lane, address,
                       "%s shared 0x%llx, which several threads of its warp %s since the last barrier",
                       access->kind == PTX_READ ? "reads" : "writes", (unsigned long long)address, did);
    else
        ptx_defect_add(warp, insn, PTX_DEFECT_SHARED_RACE, lane, address,
                       "%s shared 0x%llx, which thread %u %s since the last barrier between them",
                       access->kind == PTX_READ ? "reads" : "writes", (unsigned long long)address, other,
                       did);
}

/* Whether the last write of a byte is without order to what `thread` does now. */
static bool write_unordered(const ptx_warp *warp, uint32_t clock, uint32_t writer, uint32_t lane,
                            bool strong) {
    if (clock < warp->block->first_clock || (strong && (writer & STRONG))) return false;
    uint32_t thread = writer & THREAD, w = thread / PTX_LANES;
    if (w == warp->index) return clock == warp->clock && thread % PTX_LANES != lane;
    return clock >= warp->seen[w];
}

static bool any_nonzero(const uint8_t *bytes, uint32_t size) {
    uint8_t any = 0;
    for (uint32_t i = 0; i < size; i++) any |= bytes[i];
    return any;
}

/* All bytes of an access mostly have the same writer: one test for all. */
static bool same_writer(const struct ptx_shared_shadow *shadow, uint64_t at, uint32_t size, uint32_t step) {
    uint32_t differ = 0;
    for (uint32_t i = step; i < size; i += step)
        differ |= (shadow->write_clock[at + i] ^ shadow->write_clock[at]) |
                  (uint32_t)(shadow->writer[at + i] ^ shadow->writer[at]);
    return differ == 0;
}

static void check_initialised(ptx_warp *warp, const ptx_insn *insn, const ptx_access *access, uint32_t lane,
                              uint32_t step) {
    const struct ptx_shared_shadow *shadow = warp->block->shadow;
    uint64_t at = access->address[lane];
    uint32_t oldest = UINT32_MAX, byte = 0;
    for (uint32_t i = 0; i < access->size; i += step) {
        if (shadow->write_clock[at + i] >= oldest) continue;
        oldest = shadow->write_clock[at + i];
        byte = i;
    }
    if (any_nonzero(shadow->pending + at, access->size))
        ptx_defect_add(warp, insn, PTX_DEFECT_ASYNC_NOT_WAITED, lane, at,
                       "%s shared 0x%llx, to which a copy is under way",
                       access->kind == PTX_READ ? "reads" : "updates", (unsigned long long)at);
    else if (oldest < warp->block->first_clock)
        ptx_defect_add(warp, insn, PTX_DEFECT_UNINITIALISED_SHARED, lane, at + byte,
                       "%s shared 0x%llx, which no thread of the block wrote",
                       access->kind == PTX_READ ? "reads" : "updates", (unsigned long long)(at + byte));
}

static void check_writes(ptx_warp *warp, const ptx_insn *insn, const ptx_access *access, uint32_t lane,
                         uint32_t step) {
    const struct ptx_shared_shadow *shadow = warp->block->shadow;
    uint64_t at = access->address[lane];
    uint32_t count = same_writer(shadow, at, access->size, step) ? 1 : access->size;
    for (uint32_t i = 0; i < count; i += step) {
        if (!write_unordered(warp, shadow->write_clock[at + i], shadow->writer[at + i], lane, access->strong))
            continue;
        report_race(warp, insn, access, lane, i, shadow->writer[at + i] & THREAD, "wrote");
        return;
    }
}

/* Against the reads of one warp. */
static bool reads_unordered(const ptx_warp *warp, uint32_t reader_warp, uint32_t read, uint32_t lane) {
    uint32_t clock = read >> LANE_BITS, reader = read & ((1u << LANE_BITS) - 1u);
    if (clock < warp->block->first_clock) return false;
    if (reader_warp == warp->index) return clock == warp->clock && reader != lane;
    return clock >= warp->seen[reader_warp];
}

static void check_reads(ptx_warp *warp, const ptx_insn *insn, const ptx_access *access, uint32_t lane,
                        uint32_t step) {
    const struct ptx_shared_shadow *shadow = warp->block->shadow;
    uint64_t at = access->address[lane];
    for (uint32_t w = 0; w < warp->block->warp_count; w++) {
        const uint32_t *reads = shadow->reads + (size_t)w * shadow->bytes + at;
        uint32_t newest = 0;
        for (uint32_t i = 0; i < access->size; i += step) newest = reads[i] > newest ? reads[i] : newest;
        uint32_t limit = w == warp->index ? warp->clock : warp->seen[w];
        if (newest >> LANE_BITS < limit || newest >> LANE_BITS < warp->block->first_clock) continue;
        for (uint32_t i = 0; i < access->size; i += step) {
            if (!reads_unordered(warp, w, reads[i], lane)) continue;
            uint32_t reader = reads[i] & ((1u << LANE_BITS) - 1u);
            report_race(warp, insn, access, lane, i, reader == MANY ? UINT32_MAX : w * PTX_LANES + reader,
                        "read");
            return;
        }
    }
}

static void note_read(ptx_warp *warp, const ptx_access *access, uint32_t lane, uint32_t step) {
    struct ptx_shared_shadow *shadow = warp->block->shadow;
    uint32_t *reads = shadow->reads + (size_t)warp->index * shadow->bytes + access->address[lane];
    uint32_t mine = warp->clock << LANE_BITS | lane, many = warp->clock << LANE_BITS | MANY;
    for (uint32_t i = 0; i < access->size; i += step)
        reads[i] = reads[i] >> LANE_BITS == warp->clock && reads[i] != mine ? many : mine;
}

static void note_write(ptx_warp *warp, const ptx_access *access, uint32_t lane, uint32_t step) {
    struct ptx_shared_shadow *shadow = warp->block->shadow;
    uint64_t at = access->address[lane];
    uint16_t writer = (uint16_t)(ptx_thread(warp, lane) | (access->strong ? STRONG : 0));
    for (uint32_t i = 0; i < access->size; i += step) {
        shadow->write_clock[at + i] = warp->clock;
        shadow->writer[at + i] = writer;
    }
}

/* All lanes are looked at before any is noted: lanes of one instruction do not race with each other here
 * (what they store is compared where they store it). */
void ptx_shared_shadow_access(ptx_warp *warp, const ptx_insn *insn, const ptx_access *access) {
    struct ptx_shared_shadow *shadow = warp->block->shadow;
    bool races = warp->checks & PTX_CHECK_SHARED_RACE, initialised = warp->checks & PTX_CHECK_SHARED_INIT;
    PTX_FOR_LANES(lane, access->mask) {
        uint32_t step = step_of(shadow, access->address[lane], access->size);
        if (access->kind != PTX_WRITE && initialised) check_initialised(warp, insn, access, lane, step);
        if (!races) continue;
        check_writes(warp, insn, access, lane, step);
        if (access->kind != PTX_READ) check_reads(warp, insn, access, lane, step);
    }
    PTX_FOR_LANES(lane, access->mask) {
        uint32_t step = step_of(shadow, access->address[lane], access->size);
        if (access->kind != PTX_READ)
            note_write(warp, access, lane, step);
        else if (races && !access->strong)
            note_read(warp, access, lane, step);
    }
}
