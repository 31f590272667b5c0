/* See prefix_index.h. Entries are chained in a hash table that grows a bucket at a time (linear hashing), so
 * that no call is slow because others were many; evictable ones are also in a binary heap, the one used
 * longest ago on top. A key is a SHA-256, so its first bytes are as good a hash as any. */
#include "prefix_index.h"

#include <stdlib.h>
#include <string.h>

#include "checked.h"

typedef kvant_index_entry entry;

struct kvant_prefix_index {
    entry **buckets; /* [bucket_capacity], the first bucket_count in use */
    uint64_t bucket_count;
    uint64_t bucket_mask; /* the least 2^k - 1 that is not below bucket_count - 1 */
    uint64_t bucket_capacity;
    entry **heap; /* [heap_capacity], the first evictable in use; place p is heap[p - 1] */
    uint64_t evictable;
    uint64_t heap_capacity;
    uint64_t entries;
    uint64_t reserved;
    uint64_t pinned;
    uint64_t ticks;
};

kvant_status kvant_prefix_index_open(kvant_prefix_index **out) {
    *out = NULL;
    kvant_prefix_index *index = calloc(1, sizeof *index);
    if (index == NULL) return KVANT_ERROR_MEMORY;
    index->bucket_count = 1;
    index->bucket_capacity = 16;
    index->buckets = calloc((size_t)index->bucket_capacity, sizeof *index->buckets);
    if (index->buckets == NULL) {
        kvant_prefix_index_close(index);
        return KVANT_ERROR_MEMORY;
    }
    *out = index;
    return KVANT_OK;
}

void kvant_prefix_index_close(kvant_prefix_index *index) {
    if (index == NULL) return;
    free(index->buckets);
    free(index->heap);
    free(index);
}

/* ---- Table --------------------------------------------------------------------------------------------- */

static entry **bucket_of(const kvant_prefix_index *index, const uint8_t *key) {
    uint64_t hash;
    memcpy(&hash, key, sizeof hash);
    uint64_t bucket = hash & index->bucket_mask;
    return &index->buckets[bucket < index->bucket_count ? bucket : bucket & index->bucket_mask >> 1];
}

/* The link to the entry of this key. */
static entry **find(const kvant_prefix_index *index, const uint8_t *key) {
    entry **link = bucket_of(index, key);
    while (*link != NULL && memcmp((*link)->key, key, KVANT_BLOCK_KEY_BYTES) != 0) link = &(*link)->next;
    return link;
}

kvant_index_entry *kvant_prefix_index_find(const kvant_prefix_index *index,
                                           const uint8_t key[KVANT_BLOCK_KEY_BYTES]) {
    return *find(index, key);
}

/* One bucket more: takes its part of the one that stood in for it. */
static void split_bucket(kvant_prefix_index *index) {
    uint64_t added = index->bucket_count++;
    if (added > index->bucket_mask) index->bucket_mask = 2 * index->bucket_mask + 1;
    entry **from = &index->buckets[added & index->bucket_mask >> 1], **to = &index->buckets[added];
    while (*from != NULL) {
        entry *e = *from;
        if (bucket_of(index, e->key) == &index->buckets[added]) {
            *to = e;
            to = &e->next;
            *from = e->next;
        } else {
            from = &e->next;
        }
    }
    *to = NULL;
}

/* ---- Heap ---------------------------------------------------------------------------------------------- */

static void put(kvant_prefix_index *index, uint64_t place, entry *e) {
    index->heap[place - 1] = e;
    e->place = (uint32_t)place;
}

static void sift_up(kvant_prefix_index *index, uint64_t place, entry *e) {
    for (; place > 1 && index->heap[place / 2 - 1]->used > e->used; place /= 2)
        put(index, place, index->heap[place / 2 - 1]);
    put(index, place, e);
}

static void sift_down(kvant_prefix_index *index, uint64_t place, entry *e) {
    for (uint64_t child; (child = 2 * place) <= index->evictable; place = child) {
        if (child < index->evictable && index->heap[child]->used < index->heap[child - 1]->used) child++;
        if (index->heap[child - 1]->used >= e->used) break;
        put(index, place, index->heap[child - 1]);
    }
    put(index, place, e);
}

/* Puts an entry into the heap, or takes it out, as its counts say. */
static void settle(kvant_prefix_index *index, entry *e) {
    bool evictable = e->indexed && e->pins == 0 && e->children == 0;
    if (evictable == (e->place != 0)) return;
    if (evictable) {
        sift_up(index, ++index->evictable, e);
        return;
    }
    uint64_t place = e->place;
    entry *last = index->heap[--index->evictable];
    e->place = 0;
    if (last == e) return;
    if (last->used < e->used)
        sift_up(index, place, last);
    else
        sift_down(index, place, last);
}

/* ---- Entries ------------------------------------------------------------------------------------------- */

/* An array of at least `count` pointers, a quarter more than before if it must grow. */
static bool grow(entry ***array, uint64_t *capacity, uint64_t count) {
    if (count <= *capacity) return true;
    uint64_t larger = *capacity + *capacity / 4;
    if (larger < count) larger = count;
    if (larger > SIZE_MAX / sizeof **array) return false;
    entry **grown = realloc(*array, (size_t)larger * sizeof **array);
    if (grown == NULL) return false;
    *array = grown;
    *capacity = larger;
    return true;
}

kvant_status kvant_prefix_index_reserve(kvant_prefix_index *index, uint64_t count) {
    uint64_t all = index->entries + index->reserved; /* both below 2^32 */
    if (count > UINT32_MAX - all) return KVANT_ERROR_MEMORY;
    if (!grow(&index->heap, &index->heap_capacity, all + count) ||
        !grow(&index->buckets, &index->bucket_capacity, all + count))
        return KVANT_ERROR_MEMORY;
    index->reserved += count;
    return KVANT_OK;
}

void kvant_prefix_index_unreserve(kvant_prefix_index *index, uint64_t count) {
    assert(count <= index->reserved);
    index->reserved -= count;
}

bool kvant_prefix_index_add(kvant_prefix_index *index, kvant_index_entry *e) {
    static const uint8_t zeros[KVANT_BLOCK_KEY_BYTES];
    assert(index->reserved > 0 && !e->indexed);
    index->reserved--;
    entry *before = NULL;
    if (memcmp(e->parent, zeros, sizeof zeros) != 0) {
        before = *find(index, e->parent);
        if (before == NULL) return false;
    }
    if (*find(index, e->key) != NULL) return false;
    if (index->entries >= index->bucket_count) split_bucket(index);
    entry **bucket = bucket_of(index, e->key);
    e->next = *bucket;
    *bucket = e;
    e->before = before;
    e->children = 0;
    e->place = 0;
    e->indexed = true;
    e->used = ++index->ticks;
    index->entries++;
    if (e->pins > 0) index->pinned++;
    settle(index, e);
    if (before != NULL) {
        before->children++;
        settle(index, before);
    }
    return true;
}

void kvant_prefix_index_remove(kvant_prefix_index *index, kvant_index_entry *e) {
    assert(e->indexed && e->children == 0);
    entry **link = find(index, e->key), *before = e->before;
    assert(*link == e);
    *link = e->next;
    e->next = NULL;
    e->before = NULL;
    e->indexed = false;
    index->entries--;
    if (e->pins > 0) index->pinned--;
    settle(index, e);
    if (before != NULL) {
        before->children--;
        settle(index, before);
    }
}

void kvant_prefix_index_pin(kvant_prefix_index *index, kvant_index_entry *e) {
    assert(e->pins < UINT32_MAX);
    if (e->pins++ == 0 && e->indexed) index->pinned++;
    settle(index, e);
}

void kvant_prefix_index_unpin(kvant_prefix_index *index, kvant_index_entry *e) {
    assert(e->pins > 0);
    e->used = ++index->ticks;
    if (--e->pins == 0 && e->indexed) index->pinned--;
    settle(index, e);
}

kvant_index_entry *kvant_prefix_index_oldest(const kvant_prefix_index *index) {
    return index->evictable > 0 ? index->heap[0] : NULL;
}

kvant_prefix_index_state kvant_prefix_index_describe(const kvant_prefix_index *index) {
    return (kvant_prefix_index_state){
        .entries = index->entries,
        .pinned = index->pinned,
        .table_bytes = sizeof *index + (index->bucket_capacity + index->heap_capacity) * sizeof *index->heap};
}
