/* cp.async: copies to shared memory that happen as late as PTX allows, when they are waited for, so that a
 * kernel that does not wait gets wrong data and a report. */
#include "parse.h"
#include "run.h"

#include <stdlib.h>

enum { COPY, COMMIT, WAIT_GROUP, WAIT_ALL };

static void add_copy(ptx_warp *warp, const ptx_copy *copy) {
    if (warp->copy_count == warp->copy_room) {
        uint32_t room = warp->copy_room ? warp->copy_room * 2 : 256;
        ptx_copy *moved = realloc(warp->copies, room * sizeof *moved);
        if (!moved) abort();
        warp->copies = moved;
        warp->copy_room = room;
    }
    warp->copies[warp->copy_count++] = *copy;
}

/* Bytes that each lane's source gives; the rest of `size` is zero. */
static void source_sizes(ptx_warp *warp, const ptx_insn *insn, uint32_t mask, uint32_t sizes[PTX_LANES]) {
    PTX_FOR_LANES(lane, mask) {
        sizes[lane] = insn->elements;
        if (insn->from_count < 3) continue;
        if (insn->type == PTX_PRED) {
            uint32_t ignore = ptx_predicate(warp, insn->slots[2]) >> lane & 1u;
            if (insn->flags & PTX_NEGATE_C) ignore = !ignore;
            sizes[lane] = ignore ? 0 : insn->elements;
            continue;
        }
        sizes[lane] = ptx_word(warp, insn->slots[2], lane);
        if (sizes[lane] <= insn->elements) continue;
        ptx_defect_add(warp, insn, PTX_DEFECT_OPERANDS, lane, 0, "asks for %u of %u bytes", sizes[lane],
                       insn->elements);
        sizes[lane] = insn->elements;
    }
}

/* Global side: lanes that read everything together, shorter ones each for itself. */
static uint32_t check_source(ptx_warp *warp, const ptx_insn *insn, const ptx_access *from,
                             const uint32_t *sizes) {
    ptx_access whole = *from;
    uint32_t good = 0;
    PTX_FOR_LANES(lane, from->mask) {
        if (sizes[lane] == insn->elements) continue;
        whole.mask &= ~(1u << lane);
        if (sizes[lane] == 0) {
            good |= 1u << lane;
            continue;
        }
        ptx_access part = *from;
        part.mask = 1u << lane;
        part.size = sizes[lane];
        part.unaligned = true;
        if (from->address[lane] % insn->elements != 0) {
            ptx_defect_add(warp, insn, PTX_DEFECT_MISALIGNED, lane, from->address[lane],
                           "copies %u bytes from 0x%llx", insn->elements,
                           (unsigned long long)from->address[lane]);
            continue;
        }
        ptx_access_resolve(warp, insn, &part);
        good |= part.mask;
    }
    ptx_access_resolve(warp, insn, &whole);
    return good | whole.mask;
}

static ptx_step exec_copy(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    ptx_access from = {.mask = mask, .size = insn->elements, .kind = PTX_READ, .space = PTX_SPACE_GLOBAL};
    ptx_access to = {.mask = mask, .size = insn->elements, .kind = PTX_WRITE, .space = PTX_SPACE_SHARED};
    uint32_t sizes[PTX_LANES];
    source_sizes(warp, insn, mask, sizes);
    /* The second address' offset has no field of its own: it is in `target`. */
    ptx_access_addresses(warp, insn, insn->slots[0], insn->wide_address, &to);
    ptx_insn source = *insn;
    source.offset = (int32_t)insn->target;
    ptx_access_addresses(warp, &source, insn->slots[1], true, &from);
    PTX_FOR_LANES(lane, mask) to.address[lane] &= ~PTX_WINDOW_MASK;
    uint32_t good = check_source(warp, insn, &from, sizes);
    ptx_access_resolve(warp, insn, &to);
    good &= to.mask;
    PTX_FOR_LANES(lane, good) {
        ptx_copy copy = {.number = warp->copy_group[lane],
                         .lane = lane,
                         .to = (uint32_t)to.address[lane],
                         .size = sizes[lane],
                         .zeros = insn->elements - sizes[lane],
                         .from = from.address[lane],
                         .line = insn->line};
        add_copy(warp, &copy);
        if (warp->checks & PTX_CHECK_SHARED_INIT)
            ptx_shared_shadow_pending(warp, copy.to, insn->elements, true);
    }
    return PTX_STEP_NEXT;
}

void ptx_async_start(ptx_warp *warp) {
    warp->copy_count = 0;
    memset(warp->copy_group, 0, sizeof warp->copy_group);
}

static void finish_copy(ptx_warp *warp, const ptx_copy *copy) {
    ptx_block *block = warp->block;
    /* The source's allocation may not outlive the launch, but it does live until then. */
    if (copy->size) memcpy(block->shared + copy->to, (const void *)(uintptr_t)copy->from, copy->size);
    memset(block->shared + copy->to + copy->size, 0, copy->zeros);
    uint32_t size = copy->size + copy->zeros;
    if (warp->checks & PTX_CHECK_SHARED_INIT) ptx_shared_shadow_pending(warp, copy->to, size, false);
    if (!(warp->checks & (PTX_CHECK_SHARED_INIT | PTX_CHECK_SHARED_RACE))) return;
    ptx_access access = {
        .mask = 1u << copy->lane, .size = size, .kind = PTX_WRITE, .space = PTX_SPACE_SHARED};
    access.address[copy->lane] = copy->to;
    ptx_insn insn = {.line = copy->line, .guard = PTX_NO_SLOT};
    ptx_shared_shadow_access(warp, &insn, &access);
}

void ptx_async_finish(ptx_warp *warp, uint32_t lanes, uint32_t keep) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < warp->copy_count; i++) {
        const ptx_copy *copy = &warp->copies[i];
        bool old = copy->number + (uint64_t)keep < warp->copy_group[copy->lane];
        if ((lanes >> copy->lane & 1u) && (old || keep == UINT32_MAX))
            finish_copy(warp, copy);
        else
            warp->copies[left++] = *copy;
    }
    warp->copy_count = left;
}

static ptx_step exec_group(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    if (insn->mode == COMMIT) {
        PTX_FOR_LANES(lane, mask) warp->copy_group[lane]++;
    } else {
        ptx_async_finish(warp, mask, insn->mode == WAIT_ALL ? UINT32_MAX : (uint32_t)insn->offset);
    }
    return PTX_STEP_NEXT;
}

/* cp.async.{ca,cg}.shared.global [to], [from], size {, source size or ignore} {, policy} */
void ptx_select_cp(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    static const char *const forms[] = {"commit_group", "wait_group", "wait_all", NULL};
    static const char *const caches[] = {"ca", "cg", NULL};
    static const char *const hints[] = {"L2::64B", "L2::128B", "L2::256B", NULL};
    if (!ptx_take(parser, "async")) ptx_refuse(parser, "only cp.async is known here");
    int form = ptx_take_word(parser, forms);
    insn->exec = exec_group;
    if (form >= 0) {
        insn->mode = (uint8_t)(COMMIT + form);
        ptx_need_operands(parser, form == 1, form == 1);
        if (form == 1 && s->operands[0].kind != PTX_OPERAND_INTEGER) ptx_refuse(parser, "a number expected");
        if (form == 1) insn->offset = (int64_t)s->operands[0].value;
        if (insn->offset < 0 || insn->offset >= INT32_MAX) ptx_refuse(parser, "no such number of groups");
        return;
    }
    int cache = ptx_take_word(parser, caches);
    if (cache < 0) ptx_refuse(parser, "only copies and their groups are known here");
    if (!ptx_take(parser, "global") || (!ptx_take(parser, "shared") && !ptx_take(parser, "shared::cta")))
        ptx_refuse(parser, "copies go from global to shared");
    ptx_take_word(parser, hints);
    bool policy = ptx_take(parser, "L2::cache_hint");
    ptx_need_operands(parser, 3u + policy, 4u + policy);
    if (s->operands[2].kind != PTX_OPERAND_INTEGER) ptx_refuse(parser, "the size is a number");
    uint64_t size = s->operands[2].value;
    if (size != 16 && (cache == 1 || (size != 4 && size != 8))) ptx_refuse(parser, "no such size");
    insn->exec = exec_copy;
    insn->elements = (uint16_t)size;
    insn->space = PTX_SPACE_SHARED;
    ptx_insn source = {.space = PTX_SPACE_GLOBAL};
    ptx_add_address(parser, &source, &s->operands[1]);
    ptx_add_address(parser, insn, &s->operands[0]);
    if (!source.wide_address || source.offset < INT32_MIN || source.offset > INT32_MAX)
        ptx_refuse(parser, "the source address is out of range");
    insn->slots[insn->from_count++] = source.slots[0];
    insn->target = (uint32_t)(int32_t)source.offset;
    if (s->operand_count <= 3u + policy) return;
    bool ignore = s->operands[3].kind == PTX_OPERAND_REGISTER && s->operands[3].bits == 1;
    insn->type = ignore ? PTX_PRED : PTX_B32;
    ptx_add_from(parser, insn, &s->operands[3], ignore ? PTX_PRED : PTX_B32, false);
}
