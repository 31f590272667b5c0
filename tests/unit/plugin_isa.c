/* core/plugin/isa: levels by name, the limit, and KVANT_ISA, which is never quietly ignored. */
#include "support/scratch.h"
#include "support/test.h"

#include "plugin/isa_level.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static kvant_diag diag;

static kvant_status limit(const char *name) {
    diag = (kvant_diag){.struct_size = sizeof diag};
    return kvant_isa_limit(name, &diag);
}

/* What the kernel says about the processor, one flag of each level. */
static bool processor_has(const char *flag) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[8192], padded[32];
    bool found = false;
    (void)snprintf(padded, sizeof padded, " %s ", flag);
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = ' ';
        found = strncmp(line, "flags", 5) == 0 && strstr(line, padded) != NULL;
    }
    if (file != NULL) (void)fclose(file);
    return found;
}

static void agrees_with_the_kernel(void *context) {
    (void)context;
    (void)unsetenv("KVANT_ISA");
#if defined(__x86_64__)
    uint32_t want = !processor_has("sse4_2")        ? KVANT_ISA_SCALAR
                    : !processor_has("avx2")        ? KVANT_ISA_X86_64_V2
                    : !processor_has("avx512_vnni") ? KVANT_ISA_X86_64_V3
                                                    : KVANT_ISA_X86_64_V4;
    kvant_expect(kvant_isa() == want);
#else
    (void)processor_has;
    kvant_expect(kvant_isa() == KVANT_ISA_AARCH64);
#endif
    kvant_expect(kvant_isa_check(NULL) == KVANT_OK);
}

static void detection(void **state) {
    (void)state;
    assert_int_equal(kvant_in_child(agrees_with_the_kernel, NULL), 0);
}

static void limits(void *context) {
    (void)context;
    (void)unsetenv("KVANT_ISA");
    uint32_t best = kvant_isa();
    const char *best_name = kvant_isa_name(best);
    kvant_expect(limit("scalar") == KVANT_OK && kvant_isa() == KVANT_ISA_SCALAR);
    kvant_expect(limit(best_name) == KVANT_OK && kvant_isa() == best); /* may be raised again */
    static const char *const wrong[] = {"", "v9", "V2", "avx2", "v", "scalar ", "2"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        kvant_expect(limit(wrong[i]) == KVANT_ERROR_VALUE);
        kvant_expect(strstr(diag.message, "there is no instruction set") != NULL);
        kvant_expect(strstr(diag.message, "scalar") != NULL && strstr(diag.message, best_name) != NULL);
        kvant_expect(kvant_isa() == best);
    }
    kvant_expect(limit(NULL) == KVANT_ERROR_ARGUMENT);
    kvant_expect(kvant_isa_limit("v9", NULL) == KVANT_ERROR_VALUE);
#if defined(__x86_64__)
    kvant_expect(limit("neon") == KVANT_ERROR_VALUE);
    kvant_expect(strstr(diag.message, "another processor family") != NULL);
    if (best >= KVANT_ISA_X86_64_V2)
        kvant_expect(limit("v2") == KVANT_OK && kvant_isa() == KVANT_ISA_X86_64_V2);
    if (best < KVANT_ISA_X86_64_V4) {
        kvant_expect(limit("v4") == KVANT_ERROR_VALUE);
        kvant_expect(strstr(diag.message, "above the best of this machine") != NULL);
        kvant_expect(kvant_isa() == KVANT_ISA_X86_64_V2 || best < KVANT_ISA_X86_64_V2);
    }
#endif
}

static void limit_by_name(void **state) {
    (void)state;
    assert_int_equal(kvant_in_child(limits, NULL), 0);
}

static void valid_variable(void *context) {
    (void)context;
    setenv("KVANT_ISA", "scalar", 1);
    kvant_expect(kvant_isa() == KVANT_ISA_SCALAR);
    kvant_expect(kvant_isa_check(NULL) == KVANT_OK);
    setenv("KVANT_ISA", "nonsense", 1); /* read once */
    kvant_expect(kvant_isa_check(NULL) == KVANT_OK);
    kvant_expect(kvant_isa() == KVANT_ISA_SCALAR);
}

static void ignored(void *context, const kvant_plugin_entry *entry) {
    (void)context;
    (void)entry;
}

/* Whatever opens a plugin says so. */
static void invalid_variable(void *context) {
    const kvant_plugin *plugin = NULL;
    setenv("KVANT_ISA", context, 1);
    setenv("KVANT_PLUGIN_PATH", KVANT_TEST_BUILD_DIR "/tests/bad_plugins/honest", 1);
    diag.struct_size = sizeof diag;
    kvant_expect(kvant_plugin_find("honest", &plugin, &diag) == KVANT_ERROR_VALUE);
    kvant_expect(strncmp(diag.message, "KVANT_ISA: ", 11) == 0 && strcmp(diag.key, "KVANT_ISA") == 0);
    kvant_expect(strstr(diag.message, "this machine") != NULL && strstr(diag.message, "scalar") != NULL);
    kvant_expect(kvant_plugin_open_file("/kvant_honest.so", &plugin, &diag) == KVANT_ERROR_VALUE);
    kvant_expect(kvant_plugin_list(ignored, NULL, &diag) == KVANT_ERROR_VALUE);
    kvant_expect(kvant_isa_check(&diag) == KVANT_ERROR_VALUE);
    /* Saying it in another way does not make the variable right. */
    kvant_expect(limit("scalar") == KVANT_OK);
    kvant_expect(kvant_isa_check(&diag) == KVANT_ERROR_VALUE);
    kvant_expect(plugin == NULL);
}

static void variable(void **state) {
    (void)state;
    assert_int_equal(kvant_in_child(valid_variable, NULL), 0);
    char nonsense[] = "v33", empty[] = "", foreign[] = "neon";
    assert_int_equal(kvant_in_child(invalid_variable, nonsense), 0);
    assert_int_equal(kvant_in_child(invalid_variable, empty), 0);
#if defined(__x86_64__)
    assert_int_equal(kvant_in_child(invalid_variable, foreign), 0);
#endif
}

static void names(void **state) {
    (void)state;
    assert_string_equal(kvant_isa_name(KVANT_ISA_SCALAR), "scalar");
    assert_string_equal(kvant_isa_name(KVANT_ISA_X86_64_V2), "v2");
    assert_string_equal(kvant_isa_name(KVANT_ISA_X86_64_V3), "v3");
    assert_string_equal(kvant_isa_name(KVANT_ISA_X86_64_V4), "v4");
    assert_string_equal(kvant_isa_name(KVANT_ISA_AARCH64), "neon");
    assert_string_equal(kvant_isa_name(1), "unknown");
    assert_string_equal(kvant_isa_name(UINT32_MAX), "unknown");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(detection),
        cmocka_unit_test(limit_by_name),
        cmocka_unit_test(variable),
        cmocka_unit_test(names),
    };
    return kvant_run_tests(tests, argc, argv);
}
