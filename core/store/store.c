/* kvant_store: what every kind of store has in common. Names and bytes go down to the kind's calls; nothing
 * comes up that was not verified here, and every refusal is counted here. */
#include "store.h"

#include "store_pack.h"

#include "data/file.h"

#include <kvant/kit/diag.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct kvant_store {
    const kvant_store_calls *calls;
    void *state;
    kvant_store_options options;
    atomic_uint_fast64_t puts;
    atomic_uint_fast64_t reasons[KVANT_STORE_REASONS];
};

const char *kvant_store_reason_text(uint32_t reason) {
    static const char *const texts[KVANT_STORE_REASONS] = {
        "found",           "absent",           "truncated",    "wrong checksum",
        "unknown version", "other byte order", "not a record", "other scheme",
        "other key",       "unreadable",       "full"};
    return reason < KVANT_STORE_REASONS ? texts[reason] : "unknown reason";
}

/* ---- For the kinds ------------------------------------------------------------------------------------- */

kvant_status kvant_store_system_error(kvant_diag *diag, const char *path, const char *what, int error) {
    kvant_status status = error == ENOSPC || error == EDQUOT || error == EFBIG ? KVANT_ERROR_NO_SPACE
                          : error == ENOMEM                                    ? KVANT_ERROR_MEMORY
                                                                               : KVANT_ERROR_IO;
    return kvant_file_fail(diag, status, path, "%s: %s", what, strerror(error));
}

/* A name is on the disk when the directory that it stands in is. */
static kvant_status flush_parent(const char *directory, kvant_diag *diag) {
    char *path = strdup(directory);
    if (path == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, directory, "out of memory");
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/') path[--size] = '\0';
    char *slash = strrchr(path, '/');
    if (slash != NULL) slash[slash == path] = '\0';
    kvant_status status = kvant_store_flush_directory(slash != NULL ? path : ".", diag);
    free(path);
    return status;
}

kvant_status kvant_store_flush_directory(const char *directory, kvant_diag *diag) {
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0) close(fd);
    /* Some file systems flush no directories; there a rename is all that can be done. */
    if (error == 0 || error == EINVAL) return KVANT_OK;
    return kvant_store_system_error(diag, directory, "cannot flush the directory", error);
}

kvant_status kvant_store_make_directory(const char *directory, kvant_diag *diag) {
    bool made = mkdir(directory, 0775) == 0;
    if (!made && errno != EEXIST)
        return kvant_store_system_error(diag, directory, "cannot make the directory", errno);
    struct stat info;
    if (stat(directory, &info) != 0)
        return kvant_store_system_error(diag, directory, "cannot look at the directory", errno);
    if (!S_ISDIR(info.st_mode)) return kvant_file_fail(diag, KVANT_ERROR_IO, directory, "not a directory");
    if ((info.st_mode & S_IWOTH) != 0)
        return kvant_file_fail(
            diag, KVANT_ERROR_IO, directory,
            "everybody may write to it, so anybody may have put records there; chmod o-w it");
    return made ? flush_parent(directory, diag) : KVANT_OK;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

kvant_status kvant_store_settle(const kvant_store_options *given, kvant_store_options *options,
                                kvant_diag *diag) {
    static const uint64_t mebi = UINT64_C(1) << 20, most = (UINT64_C(1) << 32) - 65536;
    *options = (kvant_store_options){0};
    if (given != NULL) {
        if (given->struct_size < sizeof given->struct_size)
            return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "struct_size", "options without struct_size");
        size_t size = given->struct_size < sizeof *options ? given->struct_size : sizeof *options;
        memcpy(options, given, size);
    }
    options->struct_size = sizeof *options;
    if (options->pack > KVANT_STORE_PACK_ZSTD)
        return kvant_fail(diag, KVANT_ERROR_VALUE, "pack", "pack %u is not known", options->pack);
    if (options->pack_level < 0 || options->pack_level > 19)
        return kvant_fail(diag, KVANT_ERROR_VALUE, "pack_level", "pack_level %d is not in 0 to 19",
                          options->pack_level);
    if (options->pack_level == 0) options->pack_level = 1;
    if (options->capacity == 0) options->capacity = 1024 * mebi;
    if (options->capacity < mebi || options->capacity > (UINT64_C(1) << 46))
        return kvant_fail(diag, KVANT_ERROR_VALUE, "capacity",
                          "a capacity of %llu bytes is not in 1 MiB to 64 TiB",
                          (unsigned long long)options->capacity);
    if (options->record_max == 0) options->record_max = options->capacity / 4;
    if (options->record_max > most) options->record_max = most;
    return KVANT_OK;
}

kvant_status kvant_store_open_calls(const kvant_store_calls *calls, void *state,
                                    const kvant_store_options *options, kvant_store **out, kvant_diag *diag) {
    if (calls == NULL || calls->struct_size < sizeof *calls || calls->put == NULL || calls->get == NULL ||
        calls->contains == NULL || calls->remove == NULL || calls->iterate == NULL || calls->usage == NULL ||
        calls->close == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "calls",
                          "a store needs put, get, contains, remove, iterate, usage and close");
    kvant_store_options settled;
    kvant_status status = kvant_store_settle(options, &settled, diag);
    if (status != KVANT_OK) return status;
    kvant_store *store = calloc(1, sizeof *store);
    if (store == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    store->calls = calls;
    store->state = state;
    store->options = settled;
    *out = store;
    return KVANT_OK;
}

void kvant_store_close(kvant_store *store) {
    if (store == NULL) return;
    store->calls->close(store->state);
    free(store);
}

static kvant_status check_key(const kvant_store *store, const kvant_store_key *key, kvant_diag *diag) {
    if (store == NULL || key == NULL || key->struct_size < sizeof *key)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "key", "a store and a key with its struct_size");
    if (key->kind != KVANT_STORE_BLOCK && key->kind != KVANT_STORE_TAIL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "kind", "kind %u is neither block nor tail", key->kind);
    if (key->salt == NULL && key->salt_bytes > 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "salt", "salt_bytes without a salt");
    return KVANT_OK;
}

/* ---- Put ----------------------------------------------------------------------------------------------- */

/* A record in the form in which it is stored; *packed is to be freed. */
static const void *stored_form(const kvant_store *store, const void *record, size_t *size, void **packed) {
    *packed = NULL;
    if (store->options.pack != KVANT_STORE_PACK_ZSTD) return record;
    size_t capacity = kvant_store_pack_bound(*size);
    *packed = malloc(capacity);
    if (*packed == NULL) return record;
    size_t bytes = kvant_store_pack(record, *size, store->options.pack_level, *packed, capacity);
    if (bytes == 0) return record;
    *size = bytes;
    return *packed;
}

static kvant_status check_record(const kvant_store *store, const kvant_store_key *key, const void *record,
                                 size_t size, kvant_diag *diag) {
    const char *why = "";
    if (record == NULL) return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "record", "no record");
    if (size > store->options.record_max)
        return kvant_fail(diag, KVANT_ERROR_CAPACITY, "record_max",
                          "a record of %zu bytes; this store takes at most %llu", size,
                          (unsigned long long)store->options.record_max);
    uint32_t reason = kvant_store_verify(key, record, size, &why);
    if (reason == KVANT_STORE_FOUND) return KVANT_OK;
    kvant_status status = reason == KVANT_STORE_FINGERPRINT || reason == KVANT_STORE_KEY
                              ? KVANT_ERROR_MISMATCH
                          : reason == KVANT_STORE_VERSION    ? KVANT_ERROR_VERSION
                          : reason == KVANT_STORE_UNREADABLE ? KVANT_ERROR_MEMORY
                                                             : KVANT_ERROR_CORRUPT;
    return kvant_fail(diag, status, "record", "the record to be put: %s", why);
}

kvant_status kvant_store_put(kvant_store *store, const kvant_store_key *key, const void *record, size_t size,
                             kvant_diag *diag) {
    uint8_t name[KVANT_STORE_NAME_BYTES];
    kvant_status status = check_key(store, key, diag);
    if (status == KVANT_OK) status = check_record(store, key, record, size, diag);
    if (status != KVANT_OK) return status;
    void *packed = NULL;
    const void *bytes = stored_form(store, record, &size, &packed);
    kvant_store_name(key, name);
    status = store->calls->put(store->state, name, bytes, size, diag);
    free(packed);
    if (status == KVANT_OK)
        atomic_fetch_add(&store->puts, 1);
    else
        atomic_fetch_add(
            &store->reasons[status == KVANT_ERROR_NO_SPACE ? KVANT_STORE_FULL : KVANT_STORE_UNREADABLE], 1);
    return status;
}

/* ---- Get ----------------------------------------------------------------------------------------------- */

typedef struct lookup {
    const kvant_store *store;
    const kvant_store_key *key;
    kvant_store_use *use;
    void *context;
    uint32_t reason; /* ABSENT until bytes were seen */
    const char *why;
    kvant_status used; /* what `use` returned */
} lookup;

static kvant_status hand_out(lookup *l, const void *bytes, size_t size) {
    l->reason = kvant_store_verify(l->key, bytes, size, &l->why);
    if (l->reason != KVANT_STORE_FOUND) return KVANT_OK;
    l->used = l->use(l->context, bytes, size);
    return l->used;
}

static kvant_status hand_out_packed(lookup *l, const void *bytes, size_t size) {
    uint64_t record_bytes = 0;
    l->reason = kvant_store_unpack_size(bytes, size, l->store->options.record_max, &record_bytes, &l->why);
    if (l->reason != KVANT_STORE_FOUND) return KVANT_OK;
    void *record = malloc((size_t)record_bytes);
    kvant_status status = KVANT_OK;
    if (record == NULL) {
        l->reason = KVANT_STORE_UNREADABLE;
        l->why = "out of memory";
    } else {
        l->reason = kvant_store_unpack(bytes, size, record, record_bytes, &l->why);
        if (l->reason == KVANT_STORE_FOUND) status = hand_out(l, record, (size_t)record_bytes);
    }
    free(record);
    return status;
}

static kvant_status on_bytes(void *context, const void *bytes, size_t size) {
    lookup *l = context;
    return kvant_store_is_packed(bytes, size) ? hand_out_packed(l, bytes, size) : hand_out(l, bytes, size);
}

kvant_status kvant_store_get(kvant_store *store, const kvant_store_key *key, kvant_store_use *use,
                             void *context, uint32_t *reason, kvant_diag *diag) {
    uint8_t name[KVANT_STORE_NAME_BYTES];
    kvant_status status = check_key(store, key, diag);
    if (status == KVANT_OK && use == NULL)
        status = kvant_fail(diag, KVANT_ERROR_ARGUMENT, "use", "nobody to use the record");
    if (status != KVANT_OK) return status;
    lookup l = {.store = store,
                .key = key,
                .use = use,
                .context = context,
                .reason = KVANT_STORE_ABSENT,
                .why = "there is no such record"};
    kvant_store_name(key, name);
    kvant_diag inner = {.struct_size = sizeof inner};
    status = store->calls->get(store->state, name, on_bytes, &l, &inner);
    if (l.reason == KVANT_STORE_ABSENT && status != KVANT_ERROR_MISSING) {
        l.reason = KVANT_STORE_UNREADABLE;
        l.why = inner.message[0] != '\0' ? inner.message : "the store handed out nothing";
    }
    atomic_fetch_add(&store->reasons[l.reason], 1);
    if (reason != NULL) *reason = l.reason;
    if (l.reason != KVANT_STORE_FOUND)
        return kvant_file_fail(diag, KVANT_ERROR_MISSING, inner.file, "%s: %s",
                               kvant_store_reason_text(l.reason), l.why);
    if (store->calls->touch != NULL) store->calls->touch(store->state, name);
    return l.used;
}

typedef struct copy {
    void *buffer;
    size_t capacity;
    size_t *size;
} copy;

static kvant_status copy_out(void *context, const void *record, size_t size) {
    copy *c = context;
    *c->size = size;
    if (size > c->capacity) return KVANT_ERROR_CAPACITY;
    memcpy(c->buffer, record, size);
    return KVANT_OK;
}

kvant_status kvant_store_read(kvant_store *store, const kvant_store_key *key, void *buffer, size_t capacity,
                              size_t *size, uint32_t *reason, kvant_diag *diag) {
    if (size == NULL || (buffer == NULL && capacity > 0))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "buffer", "a buffer and a place for the size");
    copy c = {.buffer = buffer, .capacity = capacity, .size = size};
    kvant_status status = kvant_store_get(store, key, copy_out, &c, reason, diag);
    if (status == KVANT_ERROR_CAPACITY)
        return kvant_fail(diag, status, "capacity", "the record has %zu bytes and the buffer %zu", *size,
                          capacity);
    return status;
}

/* ---- The others ---------------------------------------------------------------------------------------- */

kvant_status kvant_store_contains(kvant_store *store, const kvant_store_key *key, kvant_diag *diag) {
    uint8_t name[KVANT_STORE_NAME_BYTES];
    kvant_status status = check_key(store, key, diag);
    if (status != KVANT_OK) return status;
    kvant_store_name(key, name);
    return store->calls->contains(store->state, name, diag);
}

kvant_status kvant_store_remove(kvant_store *store, const kvant_store_key *key, kvant_diag *diag) {
    uint8_t name[KVANT_STORE_NAME_BYTES];
    kvant_status status = check_key(store, key, diag);
    if (status != KVANT_OK) return status;
    kvant_store_name(key, name);
    return store->calls->remove(store->state, name, diag);
}

typedef struct walk {
    kvant_status (*visit)(void *context, const kvant_store_entry *entry);
    void *context;
} walk;

static kvant_status on_name(void *context, const uint8_t *name, uint64_t bytes) {
    const walk *w = context;
    kvant_store_entry entry = {
        .struct_size = sizeof entry, .kind = name[KVANT_STORE_KEY_BYTES], .key = name, .bytes = bytes};
    return w->visit(w->context, &entry);
}

kvant_status kvant_store_iterate(kvant_store *store,
                                 kvant_status (*visit)(void *context, const kvant_store_entry *entry),
                                 void *context, kvant_diag *diag) {
    if (store == NULL || visit == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "a store and a visitor");
    walk w = {.visit = visit, .context = context};
    return store->calls->iterate(store->state, on_name, &w, diag);
}

kvant_status kvant_store_describe(kvant_store *store, kvant_store_stats *stats, kvant_diag *diag) {
    if (store == NULL || stats == NULL || stats->struct_size < sizeof stats->struct_size)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "a store and stats with their struct_size");
    kvant_store_usage usage = {.struct_size = sizeof usage};
    kvant_status status = store->calls->usage(store->state, &usage, diag);
    if (status != KVANT_OK) return status;
    kvant_store_stats all = {.struct_size = stats->struct_size,
                             .records = usage.records,
                             .bytes = usage.bytes,
                             .capacity = usage.capacity,
                             .evictions = usage.evictions,
                             .puts = atomic_load(&store->puts)};
    for (unsigned i = 0; i < KVANT_STORE_REASONS; i++) all.reasons[i] = atomic_load(&store->reasons[i]);
    all.hits = all.reasons[KVANT_STORE_FOUND];
    memcpy(stats, &all, stats->struct_size < sizeof all ? stats->struct_size : sizeof all);
    return KVANT_OK;
}
