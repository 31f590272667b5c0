/* How fast the stores open, put and get. Times as they are and as ratios: opening to opening a store with one
 * record; getting to memcpy of the same bytes, measured in turn in the same run. Prints a Markdown table.
 *
 *     store_speed [--records N] [--bytes N] [--gets N] [--kind lmdb|directory|all] [--pack] [--directory DIR]
 *
 * N records (100000) of about `bytes` (4096) are put below DIR (/dev/shm, or else /tmp), then the store is
 * closed and opened `ROUNDS` times, the best counts; then `gets` (20000) records are read in no order. In
 * /dev/shm a flush costs nothing: puts there are what the software takes, puts on a disk what the disk takes.
 * What was written is removed at the end. */
#include <kvant/kvant.h>
#include <store/record.h>

#include <errno.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS = 64, ROUNDS = 7 };

typedef struct options {
    uint32_t records, bytes, gets, pack;
    const char *kind, *directory;
} options;

static _Noreturn void die(const char *what, const char *why) {
    fprintf(stderr, "store_speed: %s: %s\n", what, why);
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t mix(uint64_t z) { /* splitmix64 */
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- Records ------------------------------------------------------------------------------------------- */

typedef struct record {
    unsigned char *bytes;
    size_t size;
    kvant_store_key key;
} record;

/* Record `number` into the same buffer as the one before. */
static void make(record *r, uint32_t number, uint32_t payload) {
    kvant_record_head head = {
        .kind = KVANT_RECORD_BLOCK, .tokens = TOKENS, .layers = 1, .dtype = KVANT_DTYPE_F16};
    size_t capacity = kvant_record_size(TOKENS, 1, payload + 64);
    uint64_t ids[TOKENS];
    for (uint32_t t = 0; t < TOKENS; t++) ids[t] = mix((uint64_t)number * TOKENS + t);
    if (r->bytes == NULL) r->bytes = aligned_alloc(64, (capacity + 63) / 64 * 64);
    kvant_record_writer writer;
    if (r->bytes == NULL ||
        kvant_record_start(&writer, r->bytes, capacity, &head, ids, NULL, NULL, NULL, 0) != KVANT_OK)
        die("record", "cannot be made");
    uint64_t *room = kvant_record_room(&writer, payload);
    for (uint32_t i = 0; i < payload / 8; i++) room[i] = mix(number + i) & 0x0f0f0f0f0f0f0f0f;
    kvant_record_put_extent(&writer, 0, 0, payload / 8 * 8);
    r->size = kvant_record_finish(&writer);
    r->key = (kvant_store_key){.struct_size = sizeof r->key, .kind = KVANT_STORE_BLOCK};
    memcpy(r->key.key, head.key, sizeof head.key);
}

static kvant_status touch(void *context, const void *bytes, size_t size) {
    (void)bytes;
    *(uint64_t *)context += size;
    return KVANT_OK;
}

/* ---- One store ----------------------------------------------------------------------------------------- */

static kvant_store *open_store(const options *o, bool lmdb, const char *path) {
    kvant_store_options settings = {
        .struct_size = sizeof settings, .capacity = UINT64_C(64) << 30, .pack = o->pack};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_store *store = NULL;
    if ((lmdb ? kvant_store_open_lmdb : kvant_store_open_directory)(path, &settings, &store, &diag) !=
        KVANT_OK)
        die(path, diag.message);
    return store;
}

static double best_open(const options *o, bool lmdb, const char *path) {
    double best = 1e9;
    for (unsigned i = 0; i < ROUNDS; i++) {
        double start = now();
        kvant_store *store = open_store(o, lmdb, path);
        double took = now() - start;
        kvant_store_close(store);
        if (took < best) best = took;
    }
    return best;
}

static double put_all(const options *o, kvant_store *store, uint32_t count) {
    record r = {0};
    kvant_diag diag = {.struct_size = sizeof diag};
    double took = 0;
    for (uint32_t i = 0; i < count; i++) {
        make(&r, i, o->bytes);
        double start = now();
        if (kvant_store_put(store, &r.key, r.bytes, r.size, &diag) != KVANT_OK) die("put", diag.message);
        took += now() - start;
    }
    free(r.bytes);
    return took / count;
}

/* Seconds of one get; *copied: of a memcpy of the same record. */
static double get_some(const options *o, kvant_store *store, double *copied) {
    record r = {0};
    kvant_diag diag = {.struct_size = sizeof diag};
    double took = 0;
    uint64_t total = 0;
    unsigned char *to = NULL;
    *copied = 0;
    for (uint32_t i = 0; i < o->gets; i++) {
        make(&r, (uint32_t)(mix(i) % o->records), o->bytes);
        if (to == NULL) to = malloc(r.size);
        if (to == NULL) die("memory", "out of it");
        double start = now();
        if (kvant_store_get(store, &r.key, touch, &total, NULL, &diag) != KVANT_OK) die("get", diag.message);
        double between = now();
        memcpy(to, r.bytes, r.size);
        __asm__ volatile("" : : "r"(to) : "memory");
        took += between - start;
        *copied += now() - between;
    }
    free(to);
    free(r.bytes);
    *copied /= o->gets;
    return took / o->gets;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *place) {
    (void)status, (void)type, (void)place;
    return remove(path);
}

static void measure(const options *o, bool lmdb) {
    char root[4096], path[4112];
    if ((size_t)snprintf(root, sizeof root, "%s/kvant_store_XXXXXX", o->directory) >= sizeof root ||
        mkdtemp(root) == NULL)
        die(o->directory, strerror(errno));
    (void)snprintf(path, sizeof path, "%s/one", root);
    kvant_store *store = open_store(o, lmdb, path);
    (void)put_all(o, store, 1);
    kvant_store_close(store);
    double open_one = best_open(o, lmdb, path);
    (void)snprintf(path, sizeof path, "%s/many", root);
    store = open_store(o, lmdb, path);
    double put = put_all(o, store, o->records), copied = 0;
    kvant_store_close(store);
    double open_many = best_open(o, lmdb, path);
    store = open_store(o, lmdb, path);
    double get = get_some(o, store, &copied);
    kvant_store_close(store);
    printf("| %s%s | %u | %u | %.2f | %.1f | %.1f | %.1f | %.1f |\n", lmdb ? "lmdb" : "directory",
           o->pack ? ", packed" : "", o->records, o->bytes, open_many * 1e3, open_many / open_one, put * 1e6,
           get * 1e6, get / copied);
    (void)nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static uint32_t number(const char *text) {
    char *end = NULL;
    unsigned long value = text != NULL ? strtoul(text, &end, 10) : 0;
    if (text == NULL || *end != '\0' || value < 1 || value > 100000000)
        die("not a number", text != NULL ? text : "");
    return (uint32_t)value;
}

int main(int argc, char **argv) {
    options o = {.records = 100000, .bytes = 4096, .gets = 20000, .kind = "all"};
    o.directory = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        bool taken = true;
        if (strcmp(argv[i], "--records") == 0) {
            o.records = number(next);
        } else if (strcmp(argv[i], "--bytes") == 0) {
            o.bytes = number(next);
        } else if (strcmp(argv[i], "--gets") == 0) {
            o.gets = number(next);
        } else if (strcmp(argv[i], "--kind") == 0 && next != NULL) {
            o.kind = next;
        } else if (strcmp(argv[i], "--directory") == 0 && next != NULL) {
            o.directory = next;
        } else if (strcmp(argv[i], "--pack") == 0) {
            o.pack = KVANT_STORE_PACK_ZSTD;
            taken = false;
        } else {
            die("unknown argument", argv[i]);
        }
        i += taken;
    }
    bool all = strcmp(o.kind, "all") == 0;
    if (!all && strcmp(o.kind, "lmdb") != 0 && strcmp(o.kind, "directory") != 0) die("unknown kind", o.kind);
    printf("| store | records | bytes each | open ms | / open of one | put us | get us | / memcpy |\n");
    printf("|---|---|---|---|---|---|---|---|\n");
    if (all || strcmp(o.kind, "lmdb") == 0) measure(&o, true);
    if (all || strcmp(o.kind, "directory") == 0) measure(&o, false);
    return 0;
}
