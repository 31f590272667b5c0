/* Where sequences are saved in tests: any kind of store in a folder of its own, closed and opened again as by
 * a restart. Calls that must work fail the test.
 *
 *     place p = place_make(PLACE_LMDB);
 *     kvant_saved saved = place_save(&p, s);
 *     place_restart(&p);
 *     kvant_sequence *loaded = place_load(&p, r, &(place_prefix){.ids = ids, .count = n}, &reason);
 *     place_remove(&p); */
#ifndef KVANT_TEST_CACHE_PLACE_H
#define KVANT_TEST_CACHE_PLACE_H

#include "support/cache_rig.h"
#include "support/store_records.h"

/* The two stores of the library, the first also packing, and one of an application's functions, whose names
 * and bytes lie in this process and outlive the store. */
enum {
    PLACE_LMDB = TEST_STORE_LMDB,
    PLACE_DIRECTORY = TEST_STORE_DIRECTORY,
    PLACE_CALLS,
    PLACE_PACKED,
    PLACE_KINDS
};
extern const char *const place_names[PLACE_KINDS];

typedef struct place_memory place_memory;

typedef struct place {
    uint32_t kind;
    uint64_t capacity; /* 0 = the default */
    char *folder, *directory;
    place_memory *memory;
    kvant_store *store; /* NULL = closed */
} place;

place place_make(uint32_t kind);
place place_make_small(uint32_t kind, uint64_t capacity);
void place_close(place *p);
void place_open(place *p);
void place_restart(place *p);
void place_remove(place *p);

/* What lies under a key, as it is stored, replaced by other bytes; the store is closed and opened again. */
unsigned char *place_stored(place *p, const kvant_store_key *key, size_t *size);
void place_plant(place *p, const kvant_store_key *key, const void *bytes, size_t size);

/* The keys of all records; returns how many. */
uint32_t place_keys(place *p, kvant_store_key *keys, uint32_t room);

typedef struct place_prefix {
    const uint64_t *ids;
    const uint8_t *tags;
    uint32_t count;
    const char *salt;
} place_prefix;

kvant_saved place_save(place *p, const kvant_sequence *s);
kvant_sequence *place_load(place *p, rig *r, const place_prefix *prefix, uint32_t *reason);

/* Saved whole, as `tokens` tokens. */
void place_assert_saved(place *p, const kvant_sequence *s, uint64_t tokens);

/* Loads, and fails unless the length and the reason are these. */
kvant_sequence *place_expect(place *p, rig *r, const place_prefix *prefix, uint64_t tokens, uint32_t reason);

/* Takes the same steps with both, over the end of more than one block, with attention, tentative tokens kept
 * and dropped; what is seen and what comes out is the same, bit for bit. ids and tags are those from position
 * 0 on, with at least place_more further ones. */
enum { PLACE_MORE = 200 };
void place_go_on(rig *ra, kvant_sequence *a, rig *rb, kvant_sequence *b, const uint64_t *ids,
                 const uint8_t *tags);

#endif
