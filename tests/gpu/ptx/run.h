/* What exists while a kernel runs: machine, block, warp, groups of lanes, frames. */
#ifndef KVANT_TEST_PTX_RUN_H
#define KVANT_TEST_PTX_RUN_H

#include "code.h"

#include <string.h>

enum { PTX_BARRIERS = 16, PTX_MAX_WARPS = 32, PTX_MAX_DEFECTS = 256, PTX_SECTOR = 32 };

/* Shadow of a page of global memory, see global_shadow.c. */
typedef struct ptx_page ptx_page;

typedef struct ptx_range {
    uint64_t from, to;
    char *name;
    bool read_only, owned, is_const;
    ptx_page **pages;
    uint32_t *sector_stamps[2]; /* the block that last read, and wrote, each sector: ordinal + 1 */
} ptx_range;

/* A call's registers and parameters. The kernel itself is the first frame. */
typedef struct ptx_frame {
    const ptx_function *function;
    struct ptx_frame *parent;
    const ptx_call *call;
    uint32_t return_to, depth;
    uint32_t lanes; /* that are still in it */
    uint32_t local_at;
    uint8_t *slots;         /* 64-byte aligned */
    uint32_t *written;      /* lanes, one word a slot */
    uint8_t *parameters;    /* parameter_bytes for each lane; a kernel's own are the block's */
    struct ptx_frame *next; /* in the list of those to be used again */
} ptx_frame;

typedef enum ptx_wait {
    PTX_RUNNABLE,
    PTX_WAIT_LANES,  /* for lanes of its own warp to come here */
    PTX_WAIT_BARRIER /* arrived at a block's barrier */
} ptx_wait;

/* Lanes of a warp at one place. */
typedef struct ptx_group {
    uint32_t lanes;
    uint32_t at;
    ptx_frame *frame;
    uint8_t wait;
    uint8_t barrier;
} ptx_group;

typedef struct ptx_copy { /* a cp.async of one lane, not yet done */
    uint32_t number;      /* of the group it was committed to */
    uint32_t lane;
    uint32_t to;
    uint32_t size, zeros;
    uint64_t from;
    uint32_t line;
} ptx_copy;

struct ptx_warp {
    ptx_frame *frame; /* of the current group */
    uint8_t *slots;   /* its slots */
    uint32_t lanes;   /* of the current group */
    ptx_group groups[PTX_LANES];
    uint32_t group_count, current;
    uint32_t index;
    uint32_t exists, live; /* lanes */
    uint32_t checks;
    struct ptx_block *block;
    ptx_frame *kernel_frame, *spare;
    uint8_t *local; /* local_bytes for each lane */
    ptx_copy *copies;
    uint32_t copy_count, copy_room;
    uint32_t copy_group[PTX_LANES];
    uint32_t clock;               /* of the race checks: grows at every barrier */
    uint32_t seen[PTX_MAX_WARPS]; /* clocks of the others that are ordered before now */
    uint64_t instructions;
    uint32_t held; /* lanes that the current instruction did not let pass */
    uint32_t picks, favoured;
};

typedef struct ptx_barrier {
    uint32_t expected; /* threads; 0: nobody has come */
    uint32_t arrived;
    uint32_t line;    /* of the first to come */
    bool implicit;    /* all threads of the block */
    uint32_t waiting; /* threads that wait for it */
    uint32_t red_count, red_lanes;
    uint32_t clocks[PTX_MAX_WARPS]; /* of those that arrived, see shared_shadow.c */
} ptx_barrier;

typedef struct ptx_block {
    ptx_machine *machine;
    const ptx_function *kernel;
    const ptx_launch *launch;
    uint32_t threads, warp_count;
    uint32_t at[3];
    uint64_t ordinal;
    uint32_t shared_bytes; /* static, gaps, dynamic */
    uint8_t *shared;
    uint8_t *shared_valid; /* a byte a byte: belongs to a variable */
    struct ptx_shared_shadow *shadow;
    uint32_t local_bytes;
    const uint8_t *arguments; /* of the kernel */
    uint32_t first_clock;
    ptx_barrier barriers[PTX_BARRIERS];
    ptx_warp *warps;
    uint32_t exited; /* threads */
} ptx_block;

struct ptx_machine {
    char message[1024];
    ptx_module *modules;
    ptx_range *ranges; /* sorted by address */
    uint32_t range_count, range_room;
    uint32_t last_range;
    ptx_counters counters;
    uint32_t checks;
    bool stop;
    uint32_t defect_limit;
    ptx_defect *defects;
    uint32_t defect_count;
    char *report;
    size_t report_size;
    char counter_text[8192];
    uint64_t instruction_limit;
    uint8_t *fenced_blocks; /* a bit a block */
    uint64_t blocks_run;    /* of all launches: numbers blocks for the global shadow */
    uint64_t launch_base;
};

/* ---- Slots --------------------------------------------------------------------------------------------- */

static inline void *ptx_slot(const ptx_warp *warp, uint32_t slot) {
    return warp->slots + (size_t)slot * PTX_SLOT_BYTES;
}
static inline uint32_t ptx_word(const ptx_warp *warp, uint32_t slot, uint32_t lane) {
    return ((const uint32_t *)ptx_slot(warp, slot))[lane];
}
static inline uint64_t ptx_wide(const ptx_warp *warp, uint32_t slot, uint32_t lane) {
    return ((const uint64_t *)ptx_slot(warp, slot))[lane];
}
static inline uint32_t ptx_predicate(const ptx_warp *warp, uint32_t slot) {
    return *(const uint32_t *)ptx_slot(warp, slot);
}
static inline void ptx_set_predicate(ptx_warp *warp, uint32_t slot, uint32_t mask, uint32_t value) {
    uint32_t *word = ptx_slot(warp, slot);
    *word = (*word & ~mask) | (value & mask);
}
static inline uint32_t ptx_lowest(uint32_t mask) {
    return (uint32_t)__builtin_ctz(mask);
}
#define PTX_FOR_LANES(lane, mask)                                                                            \
    for (uint32_t lane##_left_ = (mask), lane = 0;                                                           \
         lane##_left_ != 0 && (lane = (uint32_t)__builtin_ctz(lane##_left_), 1);                             \
         lane##_left_ &= lane##_left_ - 1)

/* Copies a row of 32 (or, wide, 64) bit lanes, those of the mask only. */
void ptx_store_words(uint32_t *to, const uint32_t *from, uint32_t mask);
void ptx_store_wides(uint64_t *to, const uint64_t *from, uint32_t mask);

/* Denormal numbers of a row, f32 or halves, become zeros of their sign (op_lanes.c). */
void ptx_flush_row(ptx_type type, uint32_t *to, const uint32_t *from);

/* ---- Warps (warp.c) ------------------------------------------------------------------------------------ */

typedef enum ptx_turn { PTX_TURN_BLOCKED, PTX_TURN_DONE, PTX_TURN_MORE } ptx_turn;

/* Runs until all lanes wait or have exited, or for `budget` instructions. */
ptx_turn ptx_warp_run(ptx_warp *warp, uint64_t *budget);
void ptx_warp_start(ptx_warp *warp);
/* Takes the lanes out of the current group. */
void ptx_warp_exit_lanes(ptx_warp *warp, uint32_t lanes);
/* Moves lanes of the current group to another place: a group of their own until they meet others. */
void ptx_warp_split(ptx_warp *warp, uint32_t lanes, ptx_frame *frame, uint32_t at);
ptx_frame *ptx_frame_enter(ptx_warp *warp, const ptx_function *function, ptx_frame *parent);
void ptx_frame_leave(ptx_warp *warp, ptx_frame *frame);
void ptx_warp_free(ptx_warp *warp);
/* For instructions that masks of lanes run at once: true when all of `members` that are alive are among the
 * lanes of `mask`, which are here. Otherwise those wait here for the others. */
bool ptx_warp_gather(ptx_warp *warp, const ptx_insn *insn, uint32_t mask, uint32_t members);
/* The lanes, which are in the current group, wait at a barrier; the group's others go on. */
void ptx_warp_wait_barrier(ptx_warp *warp, uint32_t lanes, uint32_t barrier);

/* ---- Barriers (barrier.c) ------------------------------------------------------------------------------ */

/* The block makes what it has written visible to others. */
void ptx_block_fence(ptx_block *block);
/* After lanes exited: a barrier may now have all that can come. */
void ptx_barrier_after_exit(ptx_block *block);

/* ---- Memory (access.c) --------------------------------------------------------------------------------- */

typedef enum ptx_access_kind { PTX_READ, PTX_WRITE, PTX_ATOMIC } ptx_access_kind;

/* One warp's access: 32 addresses in one space and a size. access.c checks, counts and finds host memory. */
typedef struct ptx_access {
    uint32_t mask; /* lanes; those that fail a check are taken out */
    uint32_t size; /* bytes a lane */
    uint8_t kind;
    uint8_t space; /* never generic */
    bool strong;
    bool unaligned;              /* any address will do: the caller has looked at alignment */
    bool not_counted;            /* the caller counts */
    uint64_t address[PTX_LANES]; /* in: address or offset in its space */
    uint8_t *host[PTX_LANES];    /* out */
} ptx_access;

void ptx_access_resolve(ptx_warp *warp, const ptx_insn *insn, ptx_access *access);
/* Fills address[] from an address operand of 32 or 64 bits. */
void ptx_access_addresses(ptx_warp *warp, const ptx_insn *insn, uint32_t slot, bool wide, ptx_access *access);
/* Splits generic addresses by space: takes the lanes of one space out of *rest. False: none left. */
bool ptx_access_next_space(ptx_access *all, uint32_t *rest, ptx_access *part);

/* ---- Ranges (machine.c) -------------------------------------------------------------------------------- */

/* The range that holds the address, or NULL. */
ptx_range *ptx_range_find(ptx_machine *machine, uint64_t address);
/* "3 bytes behind x (4096 bytes)" */
void ptx_range_describe(const ptx_machine *machine, uint64_t address, char *text, size_t size);

/* ---- Shadows ------------------------------------------------------------------------------------------- */

struct ptx_shared_shadow *ptx_shared_shadow_create(uint32_t bytes, uint32_t warps);
void ptx_shared_shadow_destroy(struct ptx_shared_shadow *shadow);
void ptx_shared_shadow_access(ptx_warp *warp, const ptx_insn *insn, const ptx_access *access);
/* Bytes between the start of a cp.async and the end of its wait. */
void ptx_shared_shadow_pending(ptx_warp *warp, uint32_t at, uint32_t size, bool pending);
void ptx_global_shadow_access(ptx_warp *warp, const ptx_insn *insn, ptx_range *range,
                              const ptx_access *access);
void ptx_global_shadow_clear(ptx_range *range);

void ptx_async_start(ptx_warp *warp);
/* Ends the copies of the lanes whose group is older than the newest `keep`. */
void ptx_async_finish(ptx_warp *warp, uint32_t lanes, uint32_t keep);

/* ---- Counting ------------------------------------------------------------------------------------------ */

void ptx_count_global(ptx_warp *warp, const ptx_access *access, ptx_range *range);
void ptx_count_shared(ptx_warp *warp, const ptx_access *access, ptx_shared_counters *counters);
void ptx_count_matrix(ptx_warp *warp, const uint32_t *rows, uint32_t count);

/* ---- Reports ------------------------------------------------------------------------------------------- */

void ptx_defect_add(ptx_warp *warp, const ptx_insn *insn, ptx_defect_kind kind, uint32_t lane,
                    uint64_t address, const char *format, ...) __attribute__((format(printf, 6, 7)));
/* The thread's number in its block. */
static inline uint32_t ptx_thread(const ptx_warp *warp, uint32_t lane) {
    return warp->index * PTX_LANES + lane;
}

#endif
