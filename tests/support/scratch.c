/* See scratch.h. */
#include "support/scratch.h"

#include "support/test.h"

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

char *kvant_scratch_make(void) {
    const char *root = getenv("TMPDIR");
    char *pattern = kvant_scratch_path(root != NULL && root[0] == '/' ? root : "/tmp", "kvant_test_XXXXXX");
    if (mkdtemp(pattern) == NULL) fail_msg("cannot make %s", pattern);
    char *folder = realpath(pattern, NULL);
    if (folder == NULL) fail_msg("cannot find %s", pattern);
    free(pattern);
    return folder;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *place) {
    (void)status;
    (void)type;
    (void)place;
    return remove(path);
}

void kvant_scratch_remove(char *folder) {
    if (nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0) fail_msg("cannot remove %s", folder);
    free(folder);
}

char *kvant_scratch_path(const char *folder, const char *name) {
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    if (path == NULL) fail_msg("out of memory");
    (void)snprintf(path, size, "%s/%s", folder, name);
    return path;
}

void kvant_scratch_write(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, size, file) != size || fclose(file) != 0)
        fail_msg("cannot write %s", path);
}

void kvant_scratch_copy(const char *from, const char *to, size_t size) {
    struct stat status;
    FILE *file = fopen(from, "rb");
    if (file == NULL || fstat(fileno(file), &status) != 0) fail_msg("cannot read %s", from);
    size_t all = (size_t)status.st_size, count = size < all ? size : all;
    char *bytes = malloc(count + 1);
    if (bytes == NULL || fread(bytes, 1, count, file) != count) fail_msg("cannot read %s", from);
    (void)fclose(file);
    kvant_scratch_write(to, bytes, count);
    free(bytes);
    if (chmod(to, status.st_mode & 07777) != 0) fail_msg("cannot chmod %s", to);
}

int kvant_in_child(void (*body)(void *context), void *context) {
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        /* cmocka's handlers would jump out of a crash and go on with the next test. */
        static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS};
        for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++) (void)signal(crashes[i], SIG_DFL);
        body(context);
        (void)fflush(NULL);
        _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) fail_msg("no child process");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void kvant_expect_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, condition);
    _exit(1);
}
