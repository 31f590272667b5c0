/* `kvant eval` takes at most the dump's size and 64 MiB, however many threads are asked for. */
#include "support/run_command.h"
#include "support/sanitized.h"
#include "support/scratch.h"
#include "support/test.h"
#include "support/write_dump.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* Layers whose queries alone take 16 MiB of sums each, all of them at once if it were allowed. */
static void memory_is_bounded(void **state) {
    (void)state;
    if (KVANT_TEST_SANITIZED) skip(); /* sanitizers have memory of their own */
    kvant_test_dump d = kvant_test_dump_default();
    d.layers = 16;
    d.tokens = 128;
    d.kv_heads = 8;
    d.q_heads = 64;
    d.key_dim = 128;
    d.value_dim = 128;
    d.query_tokens = 40;
    d.query_start = 88;
    char *folder = kvant_scratch_make(), *dump = kvant_scratch_path(folder, "wide.safetensors"), *out, *err;
    kvant_test_dump_write(&d, dump);
    struct stat file;
    assert_int_equal(stat(dump, &file), 0);
    const char *const argv[] = {KVANT_TEST_COMMAND, "eval", "kivi", dump, "--threads", "64", NULL};
    int status = kvant_run(argv, &out, &err);
    if (status != 0) fail_msg("%s", err);
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &usage), 0);
    size_t most = (size_t)file.st_size + ((size_t)64 << 20), took = (size_t)usage.ru_maxrss * 1024;
    if (took > most) fail_msg("%zu bytes, and at most %zu are allowed", took, most);
    assert_true(took > (size_t)file.st_size / 2); /* the dump was read, and this number means something */
    free(out);
    free(err);
    free(dump);
    kvant_scratch_remove(folder);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(memory_is_bounded)};
    return kvant_run_tests(tests, argc, argv);
}
