/* Memory that notices: every buffer that the check hands to a plugin lies between two pages that fault.
 *
 *     | no access | pattern .... | data[size] | slack | no access |
 *                                 ^ aligned           ^ page boundary
 *
 * The data end as close to the last page as their alignment allows; with alignment 1 a read one byte too
 * far faults. The pattern before the data and in the slack shows writes that stay inside the page.
 */
#ifndef KVANT_CHECK_BUFFER_H
#define KVANT_CHECK_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct check_buffer {
    const char *name; /* static: "extent", "state", "scratch" */
    unsigned char *data;
    size_t size;
    unsigned char *map;
    size_t map_size;
    bool read_only;
} check_buffer;

/* How many live at once in one worker. */
enum { CHECK_BUFFERS = 96 };

/* The live buffers of a worker, which its signal handler searches. */
typedef struct check_buffers {
    const check_buffer *live[CHECK_BUFFERS];
} check_buffers;

/* `slack` bytes at least lie between the data and the last page: an odd slack makes an odd address where
 * alignment is 1. False when the system has no memory. */
bool check_buffer_create(check_buffers *all, check_buffer *buffer, const char *name, size_t size,
                         size_t alignment, size_t slack);
void check_buffer_free(check_buffers *all, check_buffer *buffer);

/* Fills the data with a byte. */
void check_buffer_fill(check_buffer *buffer, unsigned char byte);

/* Reading only from now on, or writing again. */
void check_buffer_protect(check_buffer *buffer, bool read_only);

/* The offset, relative to the data, of a byte outside of them that was overwritten; true if there is one. */
bool check_buffer_damaged(const check_buffer *buffer, ptrdiff_t *offset);

/* The buffer whose pages hold this address, or NULL. */
const check_buffer *check_buffers_find(const check_buffers *all, const void *address);

#endif
