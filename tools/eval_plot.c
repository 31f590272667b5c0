/* gnuplot as a child process: a script goes in, an SVG comes out. No shell, no file that anybody else can
 * see. */
#include "eval_report.h"

#include <kvant/kit/diag.h>

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static bool write_all(int fd, const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

static bool read_all(int fd, kvant_text *text) {
    char buffer[8192];
    if (lseek(fd, 0, SEEK_SET) != 0) return false;
    for (;;) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n == 0 && !text->failed;
        kvant_text_append(text, buffer, (size_t)n);
    }
}

/* Runs `gnuplot -d` (no start-up files of the user) on files[0], [1], [2]. Returns errno, or 0 with the wait
 * status. */
static int run_gnuplot(const int files[3], int *wait_status) {
    char name[] = "gnuplot", option[] = "-d";
    char *const argv[] = {name, option, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0) return error;
    for (int i = 0; i < 3 && error == 0; i++) error = posix_spawn_file_actions_adddup2(&actions, files[i], i);
    if (error == 0) error = posix_spawnp(&child, name, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) return error;
    while (waitpid(child, wait_status, 0) < 0)
        if (errno != EINTR) return errno;
    return 0;
}

static kvant_status judge(int error, int wait_status, const kvant_text *out, const kvant_text *complaint,
                          kvant_diag *diag) {
    if (error == ENOENT)
        return kvant_fail(
            diag, KVANT_ERROR_MISSING, "",
            "--html draws with gnuplot, and there is none in PATH: install the package gnuplot-nox");
    if (error != 0) return kvant_fail(diag, KVANT_ERROR_IO, "", "cannot run gnuplot: %s", strerror(error));
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0 && out->data != NULL &&
        strstr(out->data, "<svg") != NULL && strstr(out->data, "</svg>") != NULL)
        return KVANT_OK;
    const char *line = complaint->data != NULL ? complaint->data : "";
    line += strspn(line, " \r\n");
    return kvant_fail(diag, KVANT_ERROR_IO, "", "gnuplot drew nothing: %.*s", (int)strcspn(line, "\r\n"),
                      *line != '\0' ? line : "no message");
}

kvant_status eval_plot(const char *script, kvant_text *svg, kvant_diag *diag) {
    int files[3] = {-1, -1, -1}, wait_status = 0;
    kvant_text out = {0}, complaint = {0};
    kvant_status status = KVANT_OK;
    for (int i = 0; i < 3; i++) {
        files[i] = memfd_create("kvant-plot", MFD_CLOEXEC);
        if (files[i] < 0)
            status = kvant_fail(diag, KVANT_ERROR_IO, "", "no memory file: %s", strerror(errno));
    }
    if (status == KVANT_OK &&
        (!write_all(files[0], script, strlen(script)) || lseek(files[0], 0, SEEK_SET) != 0))
        status = kvant_fail(diag, KVANT_ERROR_IO, "", "cannot write a plot's script: %s", strerror(errno));
    if (status == KVANT_OK) {
        int error = run_gnuplot(files, &wait_status);
        if (error == 0 && (!read_all(files[1], &out) || !read_all(files[2], &complaint)))
            status = kvant_fail(diag, KVANT_ERROR_IO, "", "cannot read a plot");
        else
            status = judge(error, wait_status, &out, &complaint, diag);
    }
    if (status == KVANT_OK) kvant_text_puts(svg, strstr(out.data, "<svg"));
    for (int i = 0; i < 3; i++)
        if (files[i] >= 0) close(files[i]);
    kvant_text_free(&out);
    kvant_text_free(&complaint);
    return status;
}
