/* `kvant calibrate` reads dumps layer by layer: it never has the whole of them in memory. */
#include "support/run_command.h"
#include "support/sanitized.h"
#include "support/scratch.h"
#include "support/test.h"
#include "support/write_dump.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char centred[] = "[pipeline]\nsinks = 4\nkey_center = artifact\nartifact = "
                              "a.safetensors\n[layers]\nkey = uniform\nvalue = raw\n";

/* 48 MiB in 24 layers. A child of its own writes them, since a process starts with its parent's memory. */
static void write_dump(void *context) {
    kvant_test_dump d = kvant_test_dump_default();
    d.layers = 24;
    d.tokens = 512;
    d.kv_heads = 8;
    d.q_heads = 8;
    d.key_dim = 128;
    d.value_dim = 128;
    d.has_queries = false;
    kvant_test_dump_write(&d, context);
}

static void memory_is_that_of_a_layer(void **state) {
    (void)state;
    if (KVANT_TEST_SANITIZED) skip(); /* sanitizers have memory of their own */
    char *folder = kvant_scratch_make(), *dump = kvant_scratch_path(folder, "d.safetensors");
    char *pipeline = kvant_scratch_path(folder, "p.ini"),
         *output = kvant_scratch_path(folder, "a.safetensors");
    kvant_scratch_write(pipeline, centred, strlen(centred));
    assert_int_equal(kvant_in_child(write_dump, dump), 0);
    struct stat file;
    assert_int_equal(stat(dump, &file), 0);
    assert_true(file.st_size > 48 << 20);
    pid_t child = fork();
    if (child == 0) {
        execl(KVANT_TEST_COMMAND, "kvant", "calibrate", pipeline, dump, "-o", output, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    struct rusage usage;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    assert_int_equal(status, 0);
    size_t took = (size_t)usage.ru_maxrss * 1024;
    if (took > (size_t)file.st_size / 2) fail_msg("%zu bytes for a dump of %zu", took, (size_t)file.st_size);
    free(dump);
    free(pipeline);
    free(output);
    kvant_scratch_remove(folder);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(memory_is_that_of_a_layer)};
    return kvant_run_tests(tests, argc, argv);
}
