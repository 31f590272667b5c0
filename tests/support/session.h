/* The kvant command as its users type it, for tests of several steps: what the last one printed stays in
 * `out` and `err`.
 *
 *     must(KVANT("encode", "kivi", path("d.safetensors"), "-o", path("r")));
 *     refused(KVANT("decode", path("r"), "-o", "/nowhere/d"), "/nowhere/d");
 */
#ifndef KVANT_TEST_SESSION_H
#define KVANT_TEST_SESSION_H

extern char *out, *err;

#define KVANT(...) run((const char *const[]){KVANT_TEST_COMMAND, __VA_ARGS__, NULL})
int run(const char *const argv[]);

/* Exit status 0. */
void must(int status);

/* Exit status 3, nothing on stdout, one line on stderr that contains `part`. */
void refused(int status, const char *part);

/* A path in the test's directory, the same string for the same name. */
const char *path(const char *name);

#endif
