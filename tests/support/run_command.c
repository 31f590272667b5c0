/* See command.h. Output goes through unlinked temporary files, so that no pipe can fill up and block. */
#include "support/run_command.h"

#include "support/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *read_all(FILE *file) {
    char *text = NULL;
    size_t size = 0, capacity = 0;
    rewind(file);
    do {
        if (capacity - size < 4096) {
            capacity = 2 * capacity + 8192;
            text = realloc(text, capacity);
            if (text == NULL) fail_msg("out of memory");
        }
        size += fread(text + size, 1, capacity - size - 1, file);
    } while (!feof(file) && !ferror(file));
    text[size] = '\0';
    return text;
}

static void become(const char *const argv[], int out, int err) {
    int in = open("/dev/null", O_RDONLY);
    if (in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    union {
        const char *const *given;
        char *const *taken;
    } arguments = {.given = argv};
    execvp(argv[0], arguments.taken);
    _exit(127);
}

int kvant_run(const char *const argv[], char **out, char **err) {
    FILE *out_file = tmpfile(), *err_file = tmpfile();
    if (out_file == NULL || err_file == NULL) fail_msg("no temporary file");
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) become(argv, fileno(out_file), fileno(err_file));
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) fail_msg("%s cannot be started", argv[0]);
    if (out != NULL) *out = read_all(out_file);
    if (err != NULL) *err = read_all(err_file);
    (void)fclose(out_file);
    (void)fclose(err_file);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) fail_msg("%s cannot be started", argv[0]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
