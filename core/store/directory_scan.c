/* See directory_scan.h. */
#include "directory_scan.h"

#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_BYTES = KVANT_STORE_NAME_BYTES - 1, HEX_DIGITS = 2 * KEY_BYTES, ROOM_STEP = 4096 };
static const char *const suffixes[] = {[KVANT_STORE_BLOCK] = ".block", [KVANT_STORE_TAIL] = ".tail"};

void kvant_file_name(const uint8_t *name, char path[KVANT_FILE_NAME_BYTES]) {
    char hex[HEX_DIGITS + 1];
    kvant_hex(name, KEY_BYTES, hex);
    (void)snprintf(path, KVANT_FILE_NAME_BYTES, "%.2s/%.2s/%s%s", hex, hex + 2, hex,
                   suffixes[name[KEY_BYTES]]);
}

uint64_t kvant_file_room(uint64_t bytes) {
    return (bytes + ROOM_STEP - 1) / ROOM_STEP * ROOM_STEP;
}

static int digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *text, size_t count, uint8_t *bytes) {
    for (size_t i = 0; i < count; i++) {
        int high = digit(text[2 * i]);
        int low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return false;
        bytes[i] = (uint8_t)(high * 16 + low);
    }
    return true;
}

/* The name of a record in the folders `above`, two bytes of its key. */
static bool read_name(const char *file, const uint8_t *above, uint8_t *name) {
    if (!read_hex(file, KEY_BYTES, name) || memcmp(name, above, 2) != 0) return false;
    name[KEY_BYTES] = 0;
    for (uint8_t kind = KVANT_STORE_BLOCK; kind <= KVANT_STORE_TAIL; kind++)
        if (strcmp(file + HEX_DIGITS, suffixes[kind]) == 0) name[KEY_BYTES] = kind;
    return name[KEY_BYTES] != 0;
}

static int add(kvant_found_list *list, const uint8_t *name, const struct stat *info) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity * 2 + 64;
        kvant_found *files = realloc(list->files, capacity * sizeof *files);
        if (files == NULL) return ENOMEM;
        list->files = files;
        list->capacity = capacity;
    }
    kvant_found *found = &list->files[list->count++];
    memcpy(found->name, name, KVANT_STORE_NAME_BYTES);
    found->bytes = (uint64_t)info->st_size;
    found->used = info->st_mtim;
    return 0;
}

static int scan_files(int fd, const char *name, const uint8_t *above, kvant_found_list *list) {
    uint8_t record[KVANT_STORE_NAME_BYTES];
    struct stat info;
    if (!read_name(name, above, record)) return 0;
    /* Gone since: somebody evicted it. */
    if (fstatat(fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT ? 0 : errno;
    return S_ISREG(info.st_mode) ? add(list, record, &info) : 0;
}

/* Level 0: the root with folders of the key's first byte; 1: those of the second; 2: files. */
static int scan_level(int above_fd, const char *path, unsigned level, uint8_t *above,
                      kvant_found_list *list) {
    int fd = openat(above_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return level > 0 && (errno == ENOTDIR || errno == ENOENT || errno == ELOOP) ? 0 : errno;
    DIR *directory = fdopendir(fd);
    if (directory == NULL) {
        int error = errno;
        close(fd);
        return error;
    }
    int error = 0;
    const struct dirent *entry;
    while (error == 0 && (errno = 0, entry = readdir(directory)) != NULL) {
        if (level == 2)
            error = scan_files(fd, entry->d_name, above, list);
        else if (strlen(entry->d_name) == 2 && read_hex(entry->d_name, 1, above + level))
            error = scan_level(fd, entry->d_name, level + 1, above, list);
    }
    if (error == 0 && entry == NULL) error = errno;
    (void)closedir(directory);
    return error;
}

static int by_use(const void *a, const void *b) {
    const kvant_found *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return memcmp(x->name, y->name, sizeof x->name);
}

int kvant_scan(int root, kvant_found_list *list) {
    uint8_t above[2] = {0};
    kvant_found_free(list);
    int error = scan_level(root, ".", 0, above, list);
    if (error != 0)
        kvant_found_free(list);
    else if (list->count > 0)
        qsort(list->files, list->count, sizeof *list->files, by_use);
    return error;
}

void kvant_found_free(kvant_found_list *list) {
    free(list->files);
    *list = (kvant_found_list){0};
}
