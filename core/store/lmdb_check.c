/* See lmdb_check.h for the map. */
#include "lmdb_check.h"

#include "data/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER = KVANT_LMDB_PAGE_HEADER,
    NODE = 8, /* bytes of a node before its key */
    TREE = 48,
    META_BYTES = 152,
    AT_FREE_TREE = 40,
    AT_MAIN_TREE = 88,
    AT_LAST_PAGE = 136,
    AT_TRANSACTION = 144,
    DEPTH_MAX = 32,
    NAME_BYTES = 33,
    AGE_BYTES = 8,
    UNWRITTEN_MAX = 65536 /* pages at the end that a transaction took and gave back */
};
enum { BRANCH = 1, LEAF = 2, OVERFLOW = 4, META = 8 };
enum { NODE_LARGE = 1, NODE_TREE = 2 };
static const uint32_t magic = 0xBEEFC0DE;
static const uint64_t no_page = UINT64_MAX;
static const char unread[] = "it cannot be read", no_head[] = "no head of this transaction";

static uint16_t get16(const unsigned char *p) {
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static uint32_t get32(const unsigned char *p) {
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static uint64_t get64(const unsigned char *p) {
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* ---- Heads --------------------------------------------------------------------------------------------- */

/* The file is read, not mapped: that is quicker for pages that are looked at once, and a file that somebody
 * cuts off meanwhile is an error, not a signal. */
typedef struct image {
    int fd;
    const unsigned char *bytes; /* instead of the file, where there are some */
    uint64_t size;
    uint64_t pages;   /* of the snapshot; the last free ones may never have been written */
    uint64_t written; /* that the file holds */
    size_t page_bytes;
    unsigned char *seen;   /* a bit per page */
    unsigned char *levels; /* [DEPTH_MAX] pages: the one at hand, those above it */
    const char *why;
    uint64_t page; /* where */
} image;

static bool bad(image *m, uint64_t page, const char *why) {
    m->why = why;
    m->page = page;
    return false;
}

/* One of the two first pages. `bytes` holds META_BYTES of it. */
static const char *head_fault(const unsigned char *bytes, uint64_t number, uint64_t size,
                              size_t *page_bytes) {
    const unsigned char *free_tree = bytes + AT_FREE_TREE, *main_tree = bytes + AT_MAIN_TREE;
    uint32_t psize = get32(free_tree);
    if (get64(bytes) != number || get16(bytes + 10) != META || get32(bytes + 16) != magic)
        return "not a head";
    if (get32(bytes + 20) != 1) return "another version of the format";
    if (psize < 4096 || psize > 65536 || (psize & (psize - 1)) != 0) return "an impossible page size";
    if (get64(bytes + 24) != 0 || get16(free_tree + 4) != 8 || get16(main_tree + 4) != 0 ||
        get32(main_tree) != 0)
        return "flags that this store does not use";
    if (get64(bytes + AT_LAST_PAGE) < 1 || get64(bytes + AT_LAST_PAGE) >= size / psize + UNWRITTEN_MAX)
        return "the file is shorter than its head says";
    uint64_t transaction = get64(bytes + AT_TRANSACTION);
    if (transaction != 0 && transaction % 2 != number) return "the head of another transaction";
    *page_bytes = psize;
    return NULL;
}

kvant_status kvant_lmdb_check_head(int fd, const char *file, kvant_diag *diag) {
    unsigned char bytes[META_BYTES];
    struct stat info;
    size_t page_bytes = 0, first = 0;
    if (fstat(fd, &info) != 0)
        return kvant_file_fail(diag, KVANT_ERROR_IO, file, "data.mdb: %s", strerror(errno));
    for (unsigned i = 0; i < 2; i++) {
        if (pread(fd, bytes, sizeof bytes, (off_t)(i * first)) != (ssize_t)sizeof bytes)
            return kvant_file_fail(diag, KVANT_ERROR_IO, file, "data.mdb cannot be read");
        const char *why = head_fault(bytes, i, (uint64_t)info.st_size, &page_bytes);
        if (i == 0) first = page_bytes;
        if (why == NULL && page_bytes != first) why = "an impossible page size";
        if (why != NULL)
            return kvant_file_fail(diag, KVANT_ERROR_CORRUPT, file,
                                   "data.mdb is damaged in page %u: %s; remove the directory to start anew",
                                   i, why);
    }
    return KVANT_OK;
}

/* ---- Pages --------------------------------------------------------------------------------------------- */

static bool read_at(const image *m, uint64_t at, void *to, size_t size) {
    if (at > m->size || size > m->size - at) return false;
    if (m->bytes != NULL) {
        memcpy(to, m->bytes + at, size);
        return true;
    }
    return pread(m->fd, to, size, (off_t)at) == (ssize_t)size;
}

/* Pages [from, from + count), below `limit`, belong to the caller now; false if one is out of bounds or
 * somebody else's. */
static bool claim(image *m, uint64_t from, uint64_t count, uint64_t limit, uint64_t by) {
    if (from < 2 || from >= limit || count > limit - from) return bad(m, by, "it points outside of the file");
    for (uint64_t i = from; i < from + count;) {
        if (i % 8 == 0 && from + count - i >= 8 && m->seen[i / 8] == 0) {
            m->seen[i / 8] = 0xff;
            i += 8;
            continue;
        }
        unsigned char bit = (unsigned char)(1u << i % 8);
        if ((m->seen[i / 8] & bit) != 0) return bad(m, by, "a page that belongs to two");
        m->seen[i / 8] |= bit;
        i++;
    }
    return true;
}

typedef struct tree {
    uint16_t flags, depth;
    uint64_t branches, leaves, overflows, entries, root;
} tree;

static tree read_tree(const unsigned char *p) {
    return (tree){.flags = get16(p + 4),
                  .depth = get16(p + 6),
                  .branches = get64(p + 8),
                  .leaves = get64(p + 16),
                  .overflows = get64(p + 24),
                  .entries = get64(p + 32),
                  .root = get64(p + 40)};
}

/* What the leaves of a tree hold. */
enum { HOLDS_FREE, HOLDS_TREES, HOLDS_RECORDS, HOLDS_AGES, HOLDS_ORDER };

typedef struct walk {
    image *m;
    uint32_t holds;
    uint16_t depth;
    unsigned base; /* levels of the tree that this one hangs in */
    tree count;    /* of what was seen */
} walk;

static bool check_tree(image *m, const unsigned char *bytes, uint32_t holds, unsigned base, uint64_t by);

/* A list of free pages: how many, then their numbers, falling. */
static bool check_list(walk *w, const unsigned char *value, uint64_t size, uint64_t page) {
    uint64_t count = get64(value), before = no_page;
    if (size % 8 != 0 || size < 8 || count > size / 8 - 1)
        return bad(w->m, page, "a list longer than its room");
    for (uint64_t i = 1; i <= count; i++) {
        uint64_t number = get64(value + i * 8);
        if (number >= before) return bad(w->m, page, "free pages out of order");
        if (!claim(w->m, number, 1, w->m->pages, page)) return false;
        before = number;
    }
    return true;
}

/* One that has pages of its own: their head must be right, LMDB goes by it. */
static bool check_large_list(walk *w, uint64_t first, uint64_t size, uint64_t pages) {
    unsigned char *value = malloc((size_t)size + HEADER);
    if (value == NULL) return bad(w->m, first, "out of memory");
    bool sound =
        read_at(w->m, first * w->m->page_bytes, value, (size_t)size + HEADER) || bad(w->m, first, unread);
    if (sound && (get16(value + 10) != OVERFLOW || get32(value + 12) != pages))
        sound = bad(w->m, first, "a large value that is not where it belongs");
    sound = sound && check_list(w, value + HEADER, size, first);
    free(value);
    return sound;
}

static bool check_main(walk *w, const unsigned char *key, uint16_t key_bytes, uint16_t flags,
                       const unsigned char *value, uint64_t size, uint64_t page) {
    static const struct {
        const char *name;
        uint32_t holds;
    } trees[] = {{"records", HOLDS_RECORDS}, {"ages", HOLDS_AGES}, {"order", HOLDS_ORDER}};
    if (flags == 0) return true;
    if (flags != NODE_TREE || size != TREE) return bad(w->m, page, "a value of an unknown kind");
    for (unsigned i = 0; i < sizeof trees / sizeof trees[0]; i++)
        if (key_bytes == strlen(trees[i].name) && memcmp(key, trees[i].name, key_bytes) == 0)
            return check_tree(w->m, value, trees[i].holds, w->base + w->depth, page);
    return bad(w->m, page, "a tree of an unknown name");
}

/* A key and its value; *room is what the node takes of the page. */
static bool check_leaf_node(walk *w, const unsigned char *node, uint64_t left, uint64_t page,
                            uint64_t *room) {
    uint16_t flags = get16(node + 4), key_bytes = get16(node + 6);
    uint64_t size = get16(node) | (uint64_t)get16(node + 2) << 16;
    bool large = flags == NODE_LARGE;
    const unsigned char *value = node + NODE + key_bytes;
    *room = NODE + (uint64_t)key_bytes + (large ? 8 : size);
    if (*room > left) return bad(w->m, page, "a node reaches beyond its page");
    if (flags != 0 && w->holds != HOLDS_TREES && !large) return bad(w->m, page, "a value of an unknown kind");
    if (large) {
        uint64_t first = get64(value), pages = (HEADER + size + w->m->page_bytes - 1) / w->m->page_bytes;
        if (!claim(w->m, first, pages, w->m->written, page)) return false;
        w->count.overflows += pages;
        if (w->holds == HOLDS_FREE)
            return key_bytes == AGE_BYTES ? check_large_list(w, first, size, pages)
                                          : bad(w->m, page, "a key of the wrong length");
        if (w->holds != HOLDS_RECORDS) return bad(w->m, page, "a value of the wrong length");
    }
    uint16_t wanted = w->holds == HOLDS_RECORDS || w->holds == HOLDS_AGES ? NAME_BYTES : AGE_BYTES;
    if (w->holds == HOLDS_TREES) return check_main(w, node + NODE, key_bytes, flags, value, size, page);
    if (key_bytes != wanted) return bad(w->m, page, "a key of the wrong length");
    if (w->holds == HOLDS_FREE) return check_list(w, value, size, page);
    if (w->holds == HOLDS_RECORDS) return true;
    return size == (w->holds == HOLDS_AGES ? AGE_BYTES : NAME_BYTES) ||
           bad(w->m, page, "a value of the wrong length");
}

static bool check_page(walk *w, uint64_t number, unsigned depth, uint64_t by) {
    if (depth >= w->depth || w->base + depth >= DEPTH_MAX) return bad(w->m, by, "a tree deeper than it says");
    if (!claim(w->m, number, 1, w->m->written, by)) return false;
    unsigned char *page = w->m->levels + (w->base + depth) * w->m->page_bytes;
    if (!read_at(w->m, number * w->m->page_bytes, page, w->m->page_bytes)) return bad(w->m, number, unread);
    bool leaf = depth + 1 == w->depth;
    uint32_t lower = get16(page + 12), upper = get16(page + 14), end = (uint32_t)w->m->page_bytes;
    if (get64(page) != number || get16(page + 10) != (leaf ? LEAF : BRANCH))
        return bad(w->m, number, "another page lies here");
    if (lower <= HEADER || lower % 2 != 0 || lower > upper || upper > end)
        return bad(w->m, number, "its bounds are impossible");
    uint64_t taken = 0;
    for (uint32_t at = HEADER; at < lower; at += 2) {
        uint32_t offset = get16(page + at);
        if (offset < upper || offset % 2 != 0 || offset + NODE > end)
            return bad(w->m, number, "a node outside of its page");
        const unsigned char *node = page + offset;
        uint64_t room = NODE + (uint64_t)get16(node + 6);
        if (leaf && !check_leaf_node(w, node, end - offset, number, &room)) return false;
        if (room > end - offset) return bad(w->m, number, "a node reaches beyond its page");
        taken += (room + 1) / 2 * 2;
        w->count.entries += leaf;
        uint64_t below = get16(node) | (uint64_t)get16(node + 2) << 16 | (uint64_t)get16(node + 4) << 32;
        if (!leaf && !check_page(w, below, depth + 1, number)) return false;
    }
    if (taken != end - upper) return bad(w->m, number, "nodes that overlap");
    w->count.leaves += leaf;
    w->count.branches += !leaf;
    return true;
}

static bool check_tree(image *m, const unsigned char *bytes, uint32_t holds, unsigned base, uint64_t by) {
    tree t = read_tree(bytes);
    walk w = {.m = m, .holds = holds, .depth = t.depth, .base = base};
    if (t.depth > DEPTH_MAX || (t.depth == 0) != (t.root == no_page))
        return bad(m, by, "an impossible depth");
    if (holds != HOLDS_FREE && (t.flags != 0 || get32(bytes) != 0))
        return bad(m, by, "flags that this store does not use");
    if (t.depth > 0 && !check_page(&w, t.root, 0, by)) return false;
    return (w.count.branches == t.branches && w.count.leaves == t.leaves &&
            w.count.overflows == t.overflows && w.count.entries == t.entries) ||
           bad(m, by, "a tree of other numbers than it says");
}

/* ---- All ----------------------------------------------------------------------------------------------- */

/* The head of this transaction. At first both are of transaction 0, and after a failed commit the second one
 * may be of no use: LMDB takes the first. */
static bool find_head(image *m, uint64_t transaction, unsigned char head[META_BYTES]) {
    unsigned char bytes[META_BYTES];
    uint64_t at = 0;
    bool found = false;
    for (uint64_t i = 0; i < 2; i++, at = m->page_bytes) {
        if (!read_at(m, at, bytes, sizeof bytes)) return bad(m, i, unread);
        const char *why = head_fault(bytes, i, m->size, &m->page_bytes);
        if (why != NULL) return bad(m, i, why);
        if (found || get64(bytes + AT_TRANSACTION) != transaction) continue;
        memcpy(head, bytes, META_BYTES);
        found = true;
    }
    return found || bad(m, 0, no_head);
}

static bool check_image(image *m, uint64_t transaction) {
    unsigned char head[META_BYTES];
    if (!find_head(m, transaction, head)) return false;
    m->pages = get64(head + AT_LAST_PAGE) + 1;
    m->written = m->size / m->page_bytes < m->pages ? m->size / m->page_bytes : m->pages;
    m->seen = calloc((size_t)(m->pages / 8) + 1, 1);
    m->levels = malloc(DEPTH_MAX * m->page_bytes);
    bool sound = (m->seen != NULL && m->levels != NULL) || bad(m, 0, "out of memory");
    sound = sound && check_tree(m, head + AT_FREE_TREE, HOLDS_FREE, 0, 0) &&
            check_tree(m, head + AT_MAIN_TREE, HOLDS_TREES, 0, 0);
    free(m->seen);
    free(m->levels);
    return sound;
}

bool kvant_lmdb_bytes_are_sound(const unsigned char *bytes, size_t size, uint64_t transaction,
                                const char **why, uint64_t *page) {
    image m = {.fd = -1, .bytes = bytes, .size = size};
    bool sound = check_image(&m, transaction);
    *why = m.why;
    *page = m.page;
    return sound;
}

kvant_status kvant_lmdb_check(int fd, uint64_t transaction, const char *file, bool *moved, kvant_diag *diag) {
    struct stat info;
    *moved = false;
    if (fstat(fd, &info) != 0)
        return kvant_file_fail(diag, KVANT_ERROR_IO, file, "data.mdb: %s", strerror(errno));
    image m = {.fd = fd, .size = (uint64_t)info.st_size};
    if (check_image(&m, transaction)) return KVANT_OK;
    *moved = m.why == no_head;
    return kvant_file_fail(diag, KVANT_ERROR_CORRUPT, file,
                           "data.mdb is damaged in page %llu: %s; remove the directory to start anew",
                           (unsigned long long)m.page, m.why);
}

const void *kvant_lmdb_map(const void *value, size_t page_bytes) {
    if (sysconf(_SC_PAGESIZE) != (long)page_bytes) return NULL;
    const unsigned char *page = (const unsigned char *)value - (uintptr_t)value % page_bytes;
    return get16(page + 10) == LEAF ? page - get64(page) * page_bytes : NULL;
}

bool kvant_lmdb_large_is_sound(const void *value, size_t size, const void *map, size_t page_bytes) {
    /* A page of the transaction's own has some number all the same; it lies at no such place. */
    uintptr_t at = (uintptr_t)value - (uintptr_t)map;
    /* Small values lie inside of a leaf, and there no value begins where its offsets do. */
    if (at % page_bytes != HEADER) return true;
    const unsigned char *header = (const unsigned char *)value - HEADER;
    uint64_t pages = ((uint64_t)size + HEADER + page_bytes - 1) / page_bytes;
    return get64(header) == at / page_bytes && get16(header + 10) == OVERFLOW && get32(header + 12) == pages;
}
