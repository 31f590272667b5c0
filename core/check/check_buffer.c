/* Buffers between guard pages. */
#include "check_buffer.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATTERN = 0xc5 };

static unsigned char *buffer_first(const check_buffer *buffer) {
    return buffer->map + sysconf(_SC_PAGESIZE);
}

static unsigned char *buffer_end(const check_buffer *buffer) {
    return buffer->map + buffer->map_size - sysconf(_SC_PAGESIZE);
}

bool check_buffer_create(check_buffers *all, check_buffer *buffer, const char *name, size_t size,
                         size_t alignment, size_t slack) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *buffer = (check_buffer){.name = name, .size = size};
    if (size > SIZE_MAX / 4 || alignment > SIZE_MAX / 16) return false;
    size_t inside = (size + slack + 2 * alignment + page - 1) / page * page;
    size_t map_size = inside + 2 * page;
    unsigned char *map = mmap(NULL, map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return false;
    if (mprotect(map + page, inside, PROT_READ | PROT_WRITE) != 0) {
        (void)munmap(map, map_size);
        return false;
    }
    buffer->map = map;
    buffer->map_size = map_size;
    size_t end = (size_t)(uintptr_t)(map + page + inside);
    buffer->data = map + page + inside - (end - (end - size - slack) / alignment * alignment);
    memset(buffer_first(buffer), PATTERN, (size_t)(buffer->data - buffer_first(buffer)));
    memset(buffer->data + size, PATTERN, (size_t)(buffer_end(buffer) - (buffer->data + size)));
    for (size_t i = 0; all != NULL && i < CHECK_BUFFERS; i++)
        if (all->live[i] == NULL) {
            all->live[i] = buffer;
            break;
        }
    return true;
}

void check_buffer_free(check_buffers *all, check_buffer *buffer) {
    for (size_t i = 0; all != NULL && i < CHECK_BUFFERS; i++)
        if (all->live[i] == buffer) all->live[i] = NULL;
    if (buffer->map != NULL) (void)munmap(buffer->map, buffer->map_size);
    *buffer = (check_buffer){.name = buffer->name};
}

void check_buffer_fill(check_buffer *buffer, unsigned char byte) {
    if (buffer->size > 0) memset(buffer->data, byte, buffer->size);
}

void check_buffer_protect(check_buffer *buffer, bool read_only) {
    if (buffer->map == NULL || buffer->read_only == read_only) return;
    buffer->read_only = read_only;
    (void)mprotect(buffer_first(buffer), (size_t)(buffer_end(buffer) - buffer_first(buffer)),
                   read_only ? PROT_READ : PROT_READ | PROT_WRITE);
}

bool check_buffer_damaged(const check_buffer *buffer, ptrdiff_t *offset) {
    if (buffer->map == NULL || buffer->read_only) return false;
    for (const unsigned char *p = buffer->data + buffer->size; p < buffer_end(buffer); p++)
        if (*p != PATTERN) {
            *offset = p - buffer->data;
            return true;
        }
    for (const unsigned char *p = buffer->data; p > buffer_first(buffer);)
        if (*--p != PATTERN) {
            *offset = p - buffer->data;
            return true;
        }
    return false;
}

const check_buffer *check_buffers_find(const check_buffers *all, const void *address) {
    uintptr_t at = (uintptr_t)address;
    for (size_t i = 0; i < CHECK_BUFFERS; i++) {
        const check_buffer *buffer = all->live[i];
        if (buffer != NULL && at >= (uintptr_t)buffer->map && at < (uintptr_t)buffer->map + buffer->map_size)
            return buffer;
    }
    return NULL;
}
