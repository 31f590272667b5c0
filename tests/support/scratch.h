/* A folder of its own for a test, and small doings with files in it. Every call fails the test if it
 * cannot. */
#ifndef KVANT_TEST_SCRATCH_H
#define KVANT_TEST_SCRATCH_H

#include <stddef.h>

/* A new empty folder that only its owner may enter; the path is absolute and without links. The caller
 * frees. */
char *kvant_scratch_make(void);

/* Removes the folder with all that is in it, and frees the path. */
void kvant_scratch_remove(char *folder);

/* "FOLDER/NAME", for the caller to free. */
char *kvant_scratch_path(const char *folder, const char *name);

/* Copies the first `size` bytes of a file, SIZE_MAX = all, with its permissions. */
void kvant_scratch_copy(const char *from, const char *to, size_t size);

/* Writes a file. */
void kvant_scratch_write(const char *path, const void *bytes, size_t size);

/* Runs body in a child process, for what a process can do only once: state of the library, environment,
 * signals. In it, use kvant_expect: cmocka's own assertions would go on with the next test there. Returns
 * its exit status, minus the number of a signal that ended it. */
int kvant_in_child(void (*body)(void *context), void *context);

/* Ends a child with status 1 and says why. */
#define kvant_expect(condition) ((condition) ? (void)0 : kvant_expect_failed(#condition, __FILE__, __LINE__))
_Noreturn void kvant_expect_failed(const char *condition, const char *file, int line);

#endif
