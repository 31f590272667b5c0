/* Files in memory, good and bad, for tests of the parsers. */
#ifndef KVANT_TEST_DATA_H
#define KVANT_TEST_DATA_H

#include <kvant/types.h>

/* Bytes on the heap, so that a sanitizer sees a read beyond them. */
typedef struct kvant_test_bytes {
    unsigned char *bytes;
    size_t size;
} kvant_test_bytes;

/* A safetensors file of this header and `data_bytes` bytes of data: 1, 2, 3, ... */
kvant_test_bytes kvant_test_safetensors(const char *header, size_t data_bytes);

/* The first `size` bytes of it in memory of their own. */
kvant_test_bytes kvant_test_cut(kvant_test_bytes from, size_t size);

/* The whole contents of a file; fails the test if there is none. */
kvant_test_bytes kvant_test_read(const char *file);
void kvant_test_write(const char *file, const void *bytes, size_t size);

/* A refusal as every parser must give it: an error, the file's name in the diag, one line that says
 * something. */
#define kvant_assert_refused(status, diag, name)                                                             \
    kvant_assert_refused_at((status), (diag), (name), __FILE__, __LINE__)
void kvant_assert_refused_at(kvant_status status, const kvant_diag *diag, const char *name, const char *file,
                             int line);

/* An empty directory for files that this program writes; the same one on every call, removed at exit. */
const char *kvant_test_directory(void);

/* How many files are in it, hidden ones too: a failed write leaves none. */
unsigned kvant_test_file_count(const char *directory);

#endif
