/* See file.h. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

kvant_status kvant_file_fail(kvant_diag *diag, kvant_status status, const char *file, const char *format,
                             ...) {
    if (diag == NULL || diag->struct_size < sizeof *diag) return status;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(diag->message, sizeof diag->message, format, arguments);
    va_end(arguments);
    for (char *c = diag->message; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    (void)snprintf(diag->file, sizeof diag->file, "%s", file);
    diag->key[0] = '\0';
    diag->line = 0;
    return status;
}

static kvant_status system_error(kvant_diag *diag, const char *file, const char *what, int error) {
    kvant_status status = error == ENOSPC || error == EDQUOT || error == EFBIG ? KVANT_ERROR_NO_SPACE
                          : error == ENOMEM                                    ? KVANT_ERROR_MEMORY
                                                                               : KVANT_ERROR_IO;
    return kvant_file_fail(diag, status, file, "%s: %s", what, strerror(error));
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

kvant_status kvant_file_map_open(const char *file, kvant_file_map *map, kvant_diag *diag) {
    *map = (kvant_file_map){.bytes = (const unsigned char *)""};
    /* Without O_NONBLOCK the open of a FIFO would wait for a writer. */
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return system_error(diag, file, "cannot open", errno);
    kvant_status status = KVANT_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = system_error(diag, file, "cannot read", errno);
    } else if (!S_ISREG(info.st_mode)) {
        status = kvant_file_fail(diag, KVANT_ERROR_IO, file, "not a regular file");
    } else if (info.st_size > 0) {
        void *mapping = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (mapping == MAP_FAILED)
            status = system_error(diag, file, "cannot map", errno);
        else
            *map = (kvant_file_map){.bytes = mapping, .size = (size_t)info.st_size, .mapping = mapping};
    }
    close(fd);
    return status;
}

void kvant_file_map_forget(const kvant_file_map *map) {
    /* The mapping is private and never written: pages come back from the file when they are read. */
    if (map->mapping != NULL) (void)madvise(map->mapping, map->size, MADV_DONTNEED);
}

void kvant_file_map_close(kvant_file_map *map) {
    if (map->mapping != NULL) munmap(map->mapping, map->size);
    *map = (kvant_file_map){.bytes = (const unsigned char *)""};
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

enum { BUFFER_BYTES = 1 << 16, NAME_TRIES = 100 };

struct kvant_file_writer {
    char *file;
    char *temporary;
    int fd;
    int error; /* errno of the first write that failed */
    uint64_t offset;
    size_t buffered;
    unsigned char buffer[BUFFER_BYTES];
};

static void release(kvant_file_writer *writer) {
    if (writer->fd >= 0) close(writer->fd);
    free(writer->temporary);
    free(writer->file);
    free(writer);
}

/* Not mkstemp: that makes files only the owner may read, whatever the umask says. */
static int open_temporary(kvant_file_writer *writer, size_t capacity) {
    const char *slash = strrchr(writer->file, '/');
    size_t directory = slash != NULL ? (size_t)(slash - writer->file) + 1 : 0;
    for (unsigned i = 0; i < NAME_TRIES; i++) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        (void)snprintf(writer->temporary, capacity, "%.*s.kvant-%lx-%lx-%x.tmp", (int)directory, writer->file,
                       (unsigned long)getpid(), (unsigned long)now.tv_nsec, i);
        int fd = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

kvant_status kvant_file_writer_open(const char *file, kvant_file_writer **out, kvant_diag *diag) {
    struct stat info;
    if (file[0] == '\0')
        return kvant_file_fail(diag, KVANT_ERROR_IO, file, "the name of the output file is empty");
    /* Renaming onto a device or a pipe would replace it. */
    if (stat(file, &info) == 0 && !S_ISREG(info.st_mode))
        return kvant_file_fail(diag, KVANT_ERROR_IO, file, "exists and is not a regular file");
    size_t capacity = strlen(file) + 64;
    kvant_file_writer *writer = malloc(sizeof *writer);
    if (writer == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, file, "out of memory");
    writer->fd = -1;
    writer->error = 0;
    writer->offset = 0;
    writer->buffered = 0;
    writer->file = strdup(file);
    writer->temporary = malloc(capacity);
    if (writer->file == NULL || writer->temporary == NULL) {
        release(writer);
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, file, "out of memory");
    }
    writer->fd = open_temporary(writer, capacity);
    if (writer->fd < 0) {
        int error = errno;
        release(writer);
        return system_error(diag, file, "cannot create", error);
    }
    *out = writer;
    return KVANT_OK;
}

static void write_all(kvant_file_writer *writer, const unsigned char *bytes, size_t size) {
    while (size > 0 && writer->error == 0) {
        ssize_t n = write(writer->fd, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            writer->error = n < 0 ? errno : EIO;
            return;
        }
        bytes += n;
        size -= (size_t)n;
    }
}

static void flush(kvant_file_writer *writer) {
    write_all(writer, writer->buffer, writer->buffered);
    writer->buffered = 0;
}

void kvant_file_writer_add(kvant_file_writer *writer, const void *bytes, size_t size) {
    writer->offset += size;
    if (size == 0 || writer->error != 0) return;
    if (size > BUFFER_BYTES - writer->buffered) flush(writer);
    if (size >= BUFFER_BYTES) {
        write_all(writer, bytes, size);
        return;
    }
    memcpy(writer->buffer + writer->buffered, bytes, size);
    writer->buffered += size;
}

uint64_t kvant_file_writer_offset(const kvant_file_writer *writer) {
    return writer->offset;
}

/* The new name is only durable once its directory is. Some file systems cannot; then there is nothing to
 * do. */
static void flush_directory(const char *file) {
    const char *slash = strrchr(file, '/');
    char *directory = slash == NULL ? strdup(".") : strndup(file, slash == file ? 1 : (size_t)(slash - file));
    if (directory == NULL) return;
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(directory);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

kvant_status kvant_file_writer_commit(kvant_file_writer *writer, kvant_diag *diag) {
    flush(writer);
    if (writer->error == 0 && fsync(writer->fd) != 0) writer->error = errno;
    if (close(writer->fd) != 0 && writer->error == 0) writer->error = errno;
    writer->fd = -1;
    if (writer->error == 0 && rename(writer->temporary, writer->file) != 0) writer->error = errno;
    kvant_status status = KVANT_OK;
    if (writer->error != 0) {
        unlink(writer->temporary);
        status = system_error(diag, writer->file, "cannot write", writer->error);
    } else {
        flush_directory(writer->file);
    }
    release(writer);
    return status;
}

void kvant_file_writer_abort(kvant_file_writer *writer) {
    if (writer == NULL) return;
    unlink(writer->temporary);
    release(writer);
}
