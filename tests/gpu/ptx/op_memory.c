/* ld, ldu and st of every state space. */
#include "parse.h"
#include "run.h"

/* ---- Execution ----------------------------------------------------------------------------------------- */

/* Element e of every lane into its register: zeros or copies of the sign above it. */
static void load_element(ptx_warp *warp, const ptx_insn *insn, const ptx_access *access, uint32_t e) {
    void *slot = ptx_slot(warp, insn->slots[e]);
    uint32_t bytes = insn->elements, at = e * bytes, shift = 64 - 8 * bytes;
    bool is_signed = insn->flags & PTX_SIGNED_LOAD;
    if (bytes == 4 && insn->to_bits == 32) {
        PTX_FOR_LANES(lane, access->mask) memcpy((uint32_t *)slot + lane, access->host[lane] + at, 4);
        return;
    }
    if (bytes == 8) {
        PTX_FOR_LANES(lane, access->mask) memcpy((uint64_t *)slot + lane, access->host[lane] + at, 8);
        return;
    }
    PTX_FOR_LANES(lane, access->mask) {
        uint64_t value = 0;
        memcpy(&value, access->host[lane] + at, bytes);
        if (is_signed) value = (uint64_t)((int64_t)(value << shift) >> shift);
        if (insn->to_bits == 64)
            ((uint64_t *)slot)[lane] = value;
        else
            ((uint32_t *)slot)[lane] = insn->to_bits == 32
                                           ? (uint32_t)value
                                           : (uint32_t)value & (uint32_t)((1u << insn->to_bits) - 1u);
    }
}

static void store_element(ptx_warp *warp, const ptx_insn *insn, const ptx_access *access, uint32_t e) {
    uint32_t slot = insn->slots[1 + e], bytes = insn->elements, at = e * bytes;
    if (insn->type2 == 64) {
        PTX_FOR_LANES(lane, access->mask) {
            uint64_t value = ptx_wide(warp, slot, lane);
            memcpy(access->host[lane] + at, &value, bytes);
        }
        return;
    }
    PTX_FOR_LANES(lane, access->mask) {
        uint32_t value = ptx_word(warp, slot, lane);
        memcpy(access->host[lane] + at, &value, bytes);
    }
}

/* Lanes that stored different values to the same place in one instruction: which one stays is not defined. */
static void check_overlap(ptx_warp *warp, const ptx_insn *insn, const ptx_access *access) {
    bool shared = access->space == PTX_SPACE_SHARED;
    if (!(warp->checks & (shared ? PTX_CHECK_SHARED_RACE : PTX_CHECK_GLOBAL_RACE)) ||
        access->space == PTX_SPACE_LOCAL)
        return;
    uint32_t bytes = insn->elements;
    for (uint32_t e = 0; e < insn->vector; e++) PTX_FOR_LANES(lane, access->mask) {
            uint64_t value = insn->type2 == 64 ? ptx_wide(warp, insn->slots[1 + e], lane)
                                               : ptx_word(warp, insn->slots[1 + e], lane);
            if (memcmp(access->host[lane] + (size_t)e * bytes, &value, bytes) == 0) continue;
            ptx_defect_add(warp, insn, shared ? PTX_DEFECT_SHARED_RACE : PTX_DEFECT_GLOBAL_RACE, lane,
                           access->address[lane],
                           "writes %u bytes at 0x%llx, where another lane writes something else",
                           access->size, (unsigned long long)access->address[lane]);
        }
}

static void count_class(ptx_warp *warp, const ptx_insn *insn, uint8_t space) {
    uint64_t *by_class = warp->block->machine->counters.by_class;
    bool load = insn->mode == PTX_READ;
    by_class[insn->class_]--;
    if (space == PTX_SPACE_SHARED)
        by_class[load ? PTX_CLASS_SHARED_LOAD : PTX_CLASS_SHARED_STORE]++;
    else if (space == PTX_SPACE_LOCAL)
        by_class[PTX_CLASS_LOCAL]++;
    else
        by_class[load ? PTX_CLASS_GLOBAL_LOAD : PTX_CLASS_GLOBAL_STORE]++;
}

static void run_part(ptx_warp *warp, const ptx_insn *insn, ptx_access *part) {
    ptx_access_resolve(warp, insn, part);
    for (uint32_t e = 0; e < insn->vector; e++) {
        if (insn->mode == PTX_READ)
            load_element(warp, insn, part, e);
        else
            store_element(warp, insn, part, e);
    }
    if (insn->mode == PTX_WRITE) check_overlap(warp, insn, part);
}

static ptx_step exec_access(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    ptx_access access;
    access.unaligned = access.not_counted = false;
    if (insn->flags & PTX_RELEASES) ptx_block_fence(warp->block);
    access.mask = mask;
    access.size = (uint32_t)insn->elements * insn->vector;
    access.kind = insn->mode;
    access.space = insn->space;
    access.strong = insn->flags & PTX_STRONG;
    ptx_access_addresses(warp, insn, insn->slots[insn->to_count], insn->wide_address, &access);
    if (insn->space != PTX_SPACE_GENERIC) {
        run_part(warp, insn, &access);
        return PTX_STEP_NEXT;
    }
    ptx_access part;
    uint32_t rest = mask;
    bool counted = false;
    while (ptx_access_next_space(&access, &rest, &part)) {
        if (!counted) count_class(warp, insn, part.space);
        counted = true;
        run_part(warp, insn, &part);
    }
    return PTX_STEP_NEXT;
}

/* A kernel's parameter at a place known when the text was read: one value for all lanes. */
static ptx_step exec_argument(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    const uint8_t *from = warp->block->arguments + insn->offset;
    ptx_access access = {.mask = mask};
    for (uint32_t lane = 0; lane < PTX_LANES; lane++) access.host[lane] = (uint8_t *)(uintptr_t)from;
    for (uint32_t e = 0; e < insn->vector; e++) load_element(warp, insn, &access, e);
    return PTX_STEP_NEXT;
}

/* ---- Selection ----------------------------------------------------------------------------------------- */

/* Hints that change time only. Cache policies come with an operand of their own. */
static bool take_hints(ptx_parser *parser, bool load) {
    static const char *const load_hints[] = {"ca", "cg", "cs", "lu", "cv", "nc", "unified", NULL};
    static const char *const store_hints[] = {"wb", "cg", "cs", "wt", NULL};
    static const char *const hints[] = {"weak",
                                        "L1::evict_normal",
                                        "L1::evict_unchanged",
                                        "L1::evict_first",
                                        "L1::evict_last",
                                        "L1::no_allocate",
                                        "L2::evict_normal",
                                        "L2::evict_first",
                                        "L2::evict_last",
                                        "L2::64B",
                                        "L2::128B",
                                        "L2::256B",
                                        NULL};
    while (ptx_take_word(parser, load ? load_hints : store_hints) >= 0) continue;
    while (ptx_take_word(parser, hints) >= 0) continue;
    return ptx_take(parser, "L2::cache_hint");
}

static void take_order(ptx_parser *parser, ptx_insn *insn) {
    static const char *const orders[] = {"volatile", "relaxed", "acquire", "release", "mmio", NULL};
    static const char *const scopes[] = {"cta", "cluster", "gpu", "sys", NULL};
    for (int order; (order = ptx_take_word(parser, orders)) >= 0;)
        insn->flags |= (uint16_t)(order == 3 ? PTX_STRONG | PTX_RELEASES : PTX_STRONG);
    ptx_take_word(parser, scopes);
}

static uint32_t take_vector(ptx_parser *parser) {
    return ptx_take(parser, "v2") ? 2 : ptx_take(parser, "v4") ? 4 : ptx_take(parser, "v8") ? 8 : 1;
}

static void set_class(ptx_insn *insn, bool load) {
    switch (insn->space) {
    case PTX_SPACE_SHARED:
        insn->class_ = load ? PTX_CLASS_SHARED_LOAD : PTX_CLASS_SHARED_STORE;
        break;
    case PTX_SPACE_LOCAL:
        insn->class_ = PTX_CLASS_LOCAL;
        break;
    case PTX_SPACE_CONST:
    case PTX_SPACE_PARAM:
        insn->class_ = PTX_CLASS_MOVE;
        break;
    default:
        insn->class_ = load ? PTX_CLASS_GLOBAL_LOAD : PTX_CLASS_GLOBAL_STORE;
        break;
    }
}

static ptx_type begin(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn, bool load) {
    insn->exec = exec_access;
    insn->mode = load ? PTX_READ : PTX_WRITE;
    take_order(parser, insn);
    insn->space = (uint8_t)ptx_take_space(parser);
    bool policy = take_hints(parser, load);
    insn->vector = (uint8_t)take_vector(parser);
    ptx_type type = ptx_need_type(parser);
    uint32_t bits = ptx_type_bits(type);
    if (bits < 8 || bits > 64) ptx_refuse(parser, "no such type in memory");
    insn->type = (uint8_t)type;
    insn->elements = (uint16_t)(bits / 8);
    if (insn->vector * bits > 256) ptx_refuse(parser, "too long a vector");
    ptx_need_operands(parser, policy ? 3 : 2, policy ? 3 : 2);
    (void)s;
    return type;
}

void ptx_select_load(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    ptx_type type = begin(parser, s, insn, true);
    if (ptx_type_is_signed(type)) insn->flags |= PTX_SIGNED_LOAD;
    ptx_add_to_each(parser, insn, &s->operands[0], insn->vector, ptx_type_bits(type), true);
    ptx_add_address(parser, insn, &s->operands[1]);
    set_class(insn, true);
    const ptx_symbol *symbol = s->operands[1].symbol;
    const ptx_function *function = parser->function;
    if (insn->space != PTX_SPACE_PARAM || !function->is_kernel || !symbol || symbol->space != PTX_SPACE_PARAM)
        return;
    if (symbol->address >= function->formal_bytes) return;
    uint64_t at = symbol->address + (uint64_t)insn->offset;
    if (at + (uint64_t)insn->elements * insn->vector > function->formal_bytes)
        ptx_refuse(parser, "reads behind the kernel's parameters");
    insn->exec = exec_argument;
    insn->offset = (int64_t)at;
}

void ptx_select_store(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    if (ptx_take(parser, "async") || ptx_take(parser, "bulk")) ptx_refuse(parser, "not known here");
    ptx_type type = begin(parser, s, insn, false);
    ptx_add_address(parser, insn, &s->operands[0]);
    ptx_add_from_each(parser, insn, &s->operands[1], insn->vector, type, true);
    const ptx_operand *first =
        s->operands[1].kind == PTX_OPERAND_VECTOR ? &s->elements[s->operands[1].first] : &s->operands[1];
    uint32_t widths[2] = {0, 0}; /* of registers, and of constants, which are as wide as the type */
    for (uint32_t e = 0; e < insn->vector; e++) {
        uint32_t bits = first[e].kind == PTX_OPERAND_REGISTER ? first[e].bits : ptx_type_bits(type);
        widths[bits == 64]++;
    }
    if (widths[0] && widths[1]) ptx_refuse(parser, "a vector of registers of several widths");
    insn->type2 = widths[1] ? 64 : 32;
    set_class(insn, false);
    if (insn->space == PTX_SPACE_CONST) ptx_refuse(parser, "constants cannot be stored to");
}
