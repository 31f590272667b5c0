/* See cache_place.h. */
#include "support/cache_place.h"

#include "store/store.h"
#include "support/scratch.h"
#include "support/store_damage.h"
#include "support/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

const char *const place_names[PLACE_KINDS] = {"lmdb", "directory", "calls", "lmdb, packed"};

/* ---- A store of functions ------------------------------------------------------------------------------ */

enum { NAMES_MAX = 4096 };
typedef struct entry {
    uint8_t name[KVANT_STORE_NAME_BYTES];
    void *bytes;
    size_t size;
} entry;

struct place_memory {
    pthread_mutex_t lock;
    uint32_t count;
    entry entries[NAMES_MAX];
};

static entry *find(place_memory *m, const uint8_t *name) {
    for (uint32_t i = 0; i < m->count; i++)
        if (memcmp(m->entries[i].name, name, KVANT_STORE_NAME_BYTES) == 0) return &m->entries[i];
    return NULL;
}

static kvant_status put(void *state, const uint8_t *name, const void *bytes, size_t size, kvant_diag *diag) {
    place_memory *m = state;
    void *copy = malloc(size);
    (void)diag;
    if (copy == NULL) return KVANT_ERROR_MEMORY;
    memcpy(copy, bytes, size);
    pthread_mutex_lock(&m->lock);
    entry *e = find(m, name);
    if (e == NULL && m->count < NAMES_MAX) {
        e = &m->entries[m->count++];
        memcpy(e->name, name, KVANT_STORE_NAME_BYTES);
    }
    if (e != NULL) {
        free(e->bytes);
        e->bytes = copy;
        e->size = size;
    }
    pthread_mutex_unlock(&m->lock);
    if (e == NULL) free(copy);
    return e != NULL ? KVANT_OK : KVANT_ERROR_NO_SPACE;
}

/* Hands out a copy that begins at an odd address. */
static kvant_status get(void *state, const uint8_t *name, kvant_store_use *use, void *context,
                        kvant_diag *diag) {
    place_memory *m = state;
    unsigned char *copy = NULL;
    size_t size = 0;
    (void)diag;
    pthread_mutex_lock(&m->lock);
    const entry *e = find(m, name);
    if (e != NULL && (copy = malloc(e->size + 1)) != NULL) {
        size = e->size;
        memcpy(copy + 1, e->bytes, size);
    }
    pthread_mutex_unlock(&m->lock);
    if (copy == NULL) return e != NULL ? KVANT_ERROR_MEMORY : KVANT_ERROR_MISSING;
    kvant_status status = use(context, copy + 1, size);
    free(copy);
    return status;
}

static kvant_status contains(void *state, const uint8_t *name, kvant_diag *diag) {
    place_memory *m = state;
    (void)diag;
    pthread_mutex_lock(&m->lock);
    bool there = find(m, name) != NULL;
    pthread_mutex_unlock(&m->lock);
    return there ? KVANT_OK : KVANT_ERROR_MISSING;
}

static kvant_status drop(void *state, const uint8_t *name, kvant_diag *diag) {
    place_memory *m = state;
    (void)diag;
    pthread_mutex_lock(&m->lock);
    entry *e = find(m, name);
    if (e != NULL) {
        free(e->bytes);
        *e = m->entries[--m->count];
    }
    pthread_mutex_unlock(&m->lock);
    return e != NULL ? KVANT_OK : KVANT_ERROR_MISSING;
}

static kvant_status iterate(void *state,
                            kvant_status (*visit)(void *context, const uint8_t *name, uint64_t bytes),
                            void *context, kvant_diag *diag) {
    place_memory *m = state;
    (void)diag;
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < m->count && status == KVANT_OK; i++)
        status = visit(context, m->entries[i].name, m->entries[i].size);
    return status;
}

static kvant_status usage(void *state, kvant_store_usage *u, kvant_diag *diag) {
    place_memory *m = state;
    (void)diag;
    u->records = m->count;
    return KVANT_OK;
}

static void leave(void *state) {
    (void)state;
}

static const kvant_store_calls calls = {.struct_size = sizeof calls,
                                        .put = put,
                                        .get = get,
                                        .contains = contains,
                                        .remove = drop,
                                        .iterate = iterate,
                                        .usage = usage,
                                        .close = leave};

/* ---- Places -------------------------------------------------------------------------------------------- */

place place_make_small(uint32_t kind, uint64_t capacity) {
    place p = {.kind = kind, .capacity = capacity, .folder = kvant_scratch_make()};
    p.directory = kvant_scratch_path(p.folder, "store");
    if (kind == PLACE_CALLS) {
        p.memory = calloc(1, sizeof *p.memory);
        assert_non_null(p.memory);
        (void)pthread_mutex_init(&p.memory->lock, NULL);
    }
    place_open(&p);
    return p;
}

place place_make(uint32_t kind) {
    return place_make_small(kind, 0);
}

void place_close(place *p) {
    kvant_store_close(p->store);
    p->store = NULL;
}

void place_open(place *p) {
    const kvant_store_options options = {.struct_size = sizeof options,
                                         .capacity = p->capacity,
                                         .pack = p->kind == PLACE_PACKED ? KVANT_STORE_PACK_ZSTD
                                                                         : KVANT_STORE_PACK_NONE};
    if (p->kind == PLACE_CALLS)
        rig_ok(kvant_store_open_calls(&calls, p->memory, &options, &p->store, &rig_diag));
    else if (p->kind == PLACE_DIRECTORY)
        rig_ok(kvant_store_open_directory(p->directory, &options, &p->store, &rig_diag));
    else
        rig_ok(kvant_store_open_lmdb(p->directory, &options, &p->store, &rig_diag));
}

void place_restart(place *p) {
    place_close(p);
    place_open(p);
}

void place_remove(place *p) {
    place_close(p);
    if (p->memory != NULL) {
        for (uint32_t i = 0; i < p->memory->count; i++) free(p->memory->entries[i].bytes);
        (void)pthread_mutex_destroy(&p->memory->lock);
        free(p->memory);
    }
    free(p->directory);
    kvant_scratch_remove(p->folder);
}

/* ---- Damage -------------------------------------------------------------------------------------------- */

static uint32_t on_disk(const place *p) {
    return p->kind == PLACE_PACKED ? TEST_STORE_LMDB : p->kind;
}

unsigned char *place_stored(place *p, const kvant_store_key *key, size_t *size) {
    unsigned char *bytes = NULL;
    if (p->kind == PLACE_CALLS) {
        uint8_t name[KVANT_STORE_NAME_BYTES];
        kvant_store_name(key, name);
        const entry *e = find(p->memory, name);
        assert_non_null(e);
        bytes = malloc(e->size);
        assert_non_null(bytes);
        memcpy(bytes, e->bytes, e->size);
        *size = e->size;
        return bytes;
    }
    place_close(p);
    bytes = test_store_stored(on_disk(p), p->directory, key, size);
    place_open(p);
    return bytes;
}

void place_plant(place *p, const kvant_store_key *key, const void *bytes, size_t size) {
    if (p->kind == PLACE_CALLS) {
        uint8_t name[KVANT_STORE_NAME_BYTES];
        kvant_store_name(key, name);
        assert_int_equal(put(p->memory, name, bytes, size, NULL), KVANT_OK);
        return;
    }
    place_close(p);
    test_store_plant(on_disk(p), p->directory, key, bytes, size);
    place_open(p);
}

typedef struct key_list {
    kvant_store_key *keys;
    uint32_t count, room;
} key_list;

static kvant_status add_key(void *context, const kvant_store_entry *e) {
    key_list *l = context;
    if (l->count == l->room) return KVANT_ERROR_CAPACITY;
    kvant_store_key *key = &l->keys[l->count++];
    *key = (kvant_store_key){.struct_size = sizeof *key, .kind = e->kind};
    memcpy(key->key, e->key, sizeof key->key);
    return KVANT_OK;
}

uint32_t place_keys(place *p, kvant_store_key *keys, uint32_t room) {
    key_list l = {.keys = keys, .room = room};
    rig_ok(kvant_store_iterate(p->store, add_key, &l, &rig_diag));
    return l.count;
}

/* ---- Save and load ------------------------------------------------------------------------------------- */

kvant_saved place_save(place *p, const kvant_sequence *s) {
    kvant_saved saved;
    memset(&saved, 0xee, sizeof saved);
    saved.struct_size = sizeof saved;
    rig_ok(kvant_sequence_save(s, p->store, &saved, &rig_diag));
    assert_int_equal(saved.struct_size, sizeof saved);
    assert_int_equal(saved.reserved, 0);
    return saved;
}

void place_assert_saved(place *p, const kvant_sequence *s, uint64_t tokens) {
    kvant_saved saved = place_save(p, s);
    if (saved.tokens != tokens)
        fail_msg("%llu tokens were saved, not %llu", (unsigned long long)saved.tokens,
                 (unsigned long long)tokens);
}

kvant_sequence *place_load(place *p, rig *r, const place_prefix *prefix, uint32_t *reason) {
    const kvant_prefix asked = {.struct_size = sizeof asked,
                                .ids = prefix->ids,
                                .tags = prefix->tags,
                                .count = prefix->count,
                                .salt = prefix->salt,
                                .salt_bytes = prefix->salt != NULL ? strlen(prefix->salt) : 0};
    kvant_sequence *s = NULL;
    rig_ok(kvant_sequence_load(r->cache, p->store, &asked, &s, reason, &rig_diag));
    assert_non_null(s);
    return s;
}

kvant_sequence *place_expect(place *p, rig *r, const place_prefix *prefix, uint64_t tokens, uint32_t reason) {
    uint32_t said = UINT32_MAX;
    kvant_sequence *s = place_load(p, r, prefix, &said);
    kvant_sequence_info info = rig_info(s);
    if (info.length != tokens || said != reason)
        fail_msg("%s: %llu of %u tokens, %s; expected %llu, %s", place_names[p->kind],
                 (unsigned long long)info.length, prefix->count, kvant_store_reason_text(said),
                 (unsigned long long)tokens, kvant_store_reason_text(reason));
    assert_int_equal(info.private_first, UINT64_MAX);
    assert_int_equal(info.live_tokens, info.length);
    return s;
}

/* ---- Go on --------------------------------------------------------------------------------------------- */

static void assert_same_bytes(const kvant_sequence *a, const kvant_sequence *b) {
    kvant_bytes x = rig_bytes(a), y = rig_bytes(b);
    assert_int_equal(x.payload, y.payload);
    assert_int_equal(x.metadata, y.metadata);
    assert_int_equal(x.padding, y.padding);
    assert_int_equal(x.raw, y.raw);
}

void place_go_on(rig *ra, kvant_sequence *a, rig *rb, kvant_sequence *b, const uint64_t *ids,
                 const uint8_t *tags) {
    static const struct {
        uint32_t count, tentative, dropped;
    } steps[] = {{1, 0, 0}, {5, 0, 0},  {4, 3, 2},   {1, 0, 0}, {7, 6, 0},
                 {2, 0, 0}, {61, 0, 0}, {30, 20, 9}, {1, 1, 1}, {70, 0, 0}};
    float *x = malloc((rig_outputs(ra, 70) + 1) * sizeof *x),
          *y = malloc((rig_outputs(rb, 70) + 1) * sizeof *y);
    assert_true(x != NULL && y != NULL);
    rig_assert_alike(ra, a, rb, b);
    assert_same_bytes(a, b);
    for (uint32_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        uint32_t length = (uint32_t)rig_info(a).length, count = steps[i].count;
        rig_step step = {.ids = ids + length,
                         .tags = tags != NULL ? tags + length : NULL,
                         .count = count,
                         .tentative = steps[i].tentative,
                         .dropped = steps[i].dropped};
        memset(x, 0xff, rig_outputs(ra, count) * sizeof *x);
        memset(y, 0xee, rig_outputs(rb, count) * sizeof *y);
        step.outputs = x;
        rig_take(ra, a, &step);
        step.outputs = y;
        rig_take(rb, b, &step);
        kvant_assert_bytes(y, x, rig_outputs(ra, count) * sizeof *x);
    }
    rig_assert_alike(ra, a, rb, b);
    assert_same_bytes(a, b);
    free(x);
    free(y);
}
