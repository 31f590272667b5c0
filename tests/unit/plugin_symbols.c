/* The symbol tables of all built plugins: one exported function, nothing of the core asked for, no library
 * but the C library. And of libkvant.so: kvant_ and nothing else. */
#include "support/elf_symbols.h"
#include "support/test.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLUGINS KVANT_TEST_BUILD_DIR "/lib/kvant"
#define BAD     KVANT_TEST_BUILD_DIR "/tests/bad_plugins"

/* A sanitizer brings symbols and libraries of its own. */
static bool instrumented(const char *name) {
    static const char *const marks[] = {"__asan",   "__ubsan",    "__tsan",   "__sanitizer",
                                        "__lsan",   "__odr_asan", "__msan",   "libasan",
                                        "libubsan", "libtsan",    "libclang", "__gcov"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (strncmp(name, marks[i], strlen(marks[i])) == 0) return true;
    return false;
}

typedef struct findings {
    char exported[1024];
    char asked[1024]; /* undefined kvant_ symbols */
    char libraries[1024];
    bool function;
} findings;

static void add(char *list, const char *name) {
    size_t size = strlen(list);
    (void)snprintf(list + size, 1024 - size, "%s ", name);
}

static void look(void *context, const elf_symbol *symbol) {
    findings *f = context;
    if (instrumented(symbol->name)) return;
    if (symbol->defined) {
        add(f->exported, symbol->name);
        f->function = symbol->function;
    } else if (strncmp(symbol->name, "kvant_", 6) == 0)
        add(f->asked, symbol->name);
}

static void look_at_library(void *context, const char *library) {
    findings *f = context;
    if (!instrumented(library)) add(f->libraries, library);
}

static findings inspect(const char *path) {
    findings f = {.exported = ""};
    kvant_elf_symbols(path, look, &f);
    kvant_elf_needed(path, look_at_library, &f);
    return f;
}

static void every_plugin(void **state) {
    (void)state;
    DIR *directory = opendir(PLUGINS);
    assert_non_null(directory);
    size_t count = 0;
    for (const struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        char path[1024];
        if (strstr(entry->d_name, ".so") == NULL) continue;
        (void)snprintf(path, sizeof path, PLUGINS "/%s", entry->d_name);
        findings f = inspect(path);
        print_message("%s\n", entry->d_name);
        assert_string_equal(f.exported, "kvant_plugin_query ");
        assert_true(f.function);
        assert_string_equal(f.asked, "");
        assert_true(strcmp(f.libraries, "libc.so.6 ") == 0 || strcmp(f.libraries, "") == 0);
        count++;
    }
    (void)closedir(directory);
    assert_true(count > 0);
}

/* The test above can fail. */
static void faults_are_seen(void **state) {
    (void)state;
    findings f = inspect(BAD "/extra_export/kvant_extra_export.so");
    assert_non_null(strstr(f.exported, "extra_export "));
    assert_non_null(strstr(f.exported, "kvant_plugin_query "));
    f = inspect(BAD "/undefined_symbol/kvant_undefined_symbol.so");
    assert_string_equal(f.asked, "kvant_no_such_function ");
    f = inspect(BAD "/no_symbol/kvant_no_symbol.so");
    assert_string_equal(f.exported, "some_other_function ");
}

static void foreign_name(void *context, const elf_symbol *symbol) {
    if (!symbol->defined || instrumented(symbol->name)) return;
    ++((size_t *)context)[0];
    if (strncmp(symbol->name, "kvant_", 6) == 0) return;
    print_error("libkvant exports %s\n", symbol->name);
    ++((size_t *)context)[1];
}

static void library_exports_its_own_names(void **state) {
    (void)state;
    size_t counts[2] = {0};
    kvant_elf_symbols(KVANT_TEST_BUILD_DIR "/lib/libkvant.so", foreign_name, counts);
    assert_true(counts[0] > 20);
    assert_int_equal(counts[1], 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plugin),
        cmocka_unit_test(faults_are_seen),
        cmocka_unit_test(library_exports_its_own_names),
    };
    return kvant_run_tests(tests, argc, argv);
}
