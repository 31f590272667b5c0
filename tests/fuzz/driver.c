/* Runs a fuzz target without libFuzzer: first every file of a corpus as it is, then mutations of them from a
 * fixed seed, so that a failure comes back on every run.
 *
 *     test_fuzz_npy [--runs N] [--seconds S] [--seed X] FILE-OR-DIRECTORY...
 *
 * An input that ends the program by a signal is left in fuzz-crash.bin. */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { INPUTS_MAX = 256, INPUT_BYTES = 1 << 16 };

typedef struct input {
    uint8_t *bytes;
    size_t size;
} input;

static input corpus[INPUTS_MAX];
static unsigned corpus_count;
static uint64_t random_state;

/* What runs now, for the signal handler. */
static const uint8_t *volatile current_bytes;
static volatile size_t current_size;

static uint64_t random64(void) { /* splitmix64 */
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static size_t below(size_t limit) {
    return limit > 0 ? (size_t)(random64() % limit) : 0;
}

static void on_signal(int number) {
    int fd = open("fuzz-crash.bin", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd >= 0) {
        ssize_t written = write(fd, current_bytes, current_size);
        (void)written;
        close(fd);
    }
    signal(number, SIG_DFL);
    raise(number);
}

/* A copy on the heap that ends where the input ends. */
static void run(const uint8_t *bytes, size_t size) {
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL) abort();
    memcpy(copy, bytes, size);
    current_bytes = copy;
    current_size = size;
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

/* ---- Corpus -------------------------------------------------------------------------------------------- */

static void add_file(const char *path) {
    FILE *stream = fopen(path, "rb");
    if (stream == NULL || corpus_count == INPUTS_MAX) {
        fprintf(stderr, "cannot use %s\n", path);
        exit(2);
    }
    input *i = &corpus[corpus_count++];
    i->bytes = malloc(INPUT_BYTES);
    if (i->bytes == NULL) abort();
    i->size = fread(i->bytes, 1, INPUT_BYTES, stream);
    fclose(stream);
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); /* not alphasort: it depends on the locale */
}

static void add(const char *path) {
    struct stat info;
    struct dirent **names = NULL;
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
        add_file(path);
        return;
    }
    int count = scandir(path, &names, NULL, by_name);
    for (int i = 0; i < count; i++) {
        char file[4096];
        (void)snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.') add_file(file);
        free(names[i]);
    }
    free(names);
}

/* ---- Mutations ----------------------------------------------------------------------------------------- */

static void overwrite_number(uint8_t *bytes, size_t size) {
    static const uint64_t numbers[] = {0,
                                       1,
                                       7,
                                       8,
                                       63,
                                       64,
                                       255,
                                       65535,
                                       65536,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       UINT64_C(1) << 32,
                                       UINT64_C(1) << 62,
                                       UINT64_C(0x7fffffffffffffff),
                                       UINT64_C(1) << 63,
                                       UINT64_MAX,
                                       UINT64_MAX - 7};
    uint64_t number = numbers[below(sizeof numbers / sizeof numbers[0])];
    size_t width = (size_t)1 << below(4), at = below(size);
    for (size_t i = 0; i < width && at + i < size; i++) bytes[at + i] = (uint8_t)(number >> 8 * i);
}

/* A character that the text formats give a meaning. */
static void overwrite_character(uint8_t *bytes, size_t size) {
    static const char characters[] = "0123456789{}[]()\"':,.-eE \\\n\0xlFUu=;#";
    bytes[below(size)] = (uint8_t)characters[below(sizeof characters)];
}

static size_t insert(uint8_t *bytes, size_t size, const uint8_t *from, size_t count) {
    size_t at = below(size + 1);
    if (size + count > INPUT_BYTES) return size;
    memmove(bytes + at + count, bytes + at, size - at);
    memcpy(bytes + at, from, count);
    return size + count;
}

static size_t erase(uint8_t *bytes, size_t size) {
    size_t at = below(size), count = 1 + below(16);
    if (count > size - at) count = size - at;
    memmove(bytes + at, bytes + at + count, size - at - count);
    return size - count;
}

static size_t mutate(uint8_t *bytes, size_t size) {
    uint8_t piece[32];
    if (size == 0) return 0;
    switch (below(9)) {
    case 0:
        bytes[below(size)] ^= (uint8_t)(1u << below(8));
        return size;
    case 1:
        bytes[below(size)] = (uint8_t)random64();
        return size;
    case 2:
        overwrite_number(bytes, size);
        return size;
    case 3:
    case 4:
        overwrite_character(bytes, size);
        return size;
    case 5:
        return below(size); /* truncate */
    case 6:
        return erase(bytes, size);
    case 7: { /* repeat a piece of the input itself */
        size_t at = below(size), count = 1 + below(sizeof piece);
        if (count > size - at) count = size - at;
        memcpy(piece, bytes + at, count);
        return insert(bytes, size, piece, count);
    }
    default: { /* a piece of another input */
        const input *other = &corpus[below(corpus_count)];
        size_t at = below(other->size), count = 1 + below(256);
        if (count > other->size - at) count = other->size - at;
        return insert(bytes, size, other->bytes + at, count);
    }
    }
}

static bool late(const struct timespec *start, unsigned long seconds) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long)(now.tv_sec - start->tv_sec) >= seconds;
}

int main(int argc, char **argv) {
    unsigned long runs = 20000, seconds = 60;
    random_state = 1;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--runs") == 0 && more)
            runs = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0 && more)
            seconds = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0 && more)
            random_state = strtoull(argv[++i], NULL, 10);
        else
            add(argv[i]);
    }
    if (corpus_count == 0) {
        fprintf(stderr, "no corpus\n");
        return 2;
    }
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
    signal(SIGABRT, on_signal);
    signal(SIGFPE, on_signal);
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (unsigned i = 0; i < corpus_count; i++) run(corpus[i].bytes, corpus[i].size);
    unsigned long n = 0;
    uint8_t *bytes = malloc(INPUT_BYTES);
    if (bytes == NULL) abort();
    for (; n < runs && (n % 256 != 0 || !late(&start, seconds)); n++) {
        const input *from = &corpus[below(corpus_count)];
        size_t size = from->size;
        memcpy(bytes, from->bytes, size);
        for (size_t changes = 1 + below(6); changes > 0; changes--) size = mutate(bytes, size);
        run(bytes, size);
    }
    free(bytes);
    for (unsigned i = 0; i < corpus_count; i++) free(corpus[i].bytes);
    printf("%u inputs, %lu mutations\n", corpus_count, n);
    return 0;
}
