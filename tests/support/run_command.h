/* Runs a program and keeps what it says: for tests of the real `kvant` command.
 *
 *     char *out, *err;
 *     int status = kvant_run((const char *const[]){KVANT_TEST_COMMAND, "list", NULL}, &out, &err);
 *     ...
 *     free(out);
 *     free(err);
 *
 * To set a variable for it, run it through env: {"env", "KVANT_ISA=v2", KVANT_TEST_COMMAND, "list", NULL}.
 */
#ifndef KVANT_TEST_RUN_COMMAND_H
#define KVANT_TEST_RUN_COMMAND_H

/* argv[0] is the program (a path, or a name in PATH), NULL ends the list. Standard input is empty. *out
 * and *err are what it wrote to standard output and standard error, NUL-terminated, for the caller to
 * free; either may be NULL: then it is thrown away. Returns the exit status, or minus the number of the
 * signal that ended it. Fails the test if the program cannot be started. */
int kvant_run(const char *const argv[], char **out, char **err);

#endif
