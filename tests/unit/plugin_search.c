/* core/plugin/registry and search: which file a name means, and what is said when it means none. Each case
 * runs in a process of its own, since a plugin stays open and the environment is read once. */
#include "support/scratch.h"
#include "support/test.h"

#include <kvant/kvant.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BAD    KVANT_TEST_BUILD_DIR "/tests/bad_plugins"
#define HONEST BAD "/honest/kvant_honest.so"

static kvant_diag diag;

static kvant_status find(const char *name, const kvant_plugin **plugin) {
    diag = (kvant_diag){.struct_size = sizeof diag};
    return kvant_plugin_find(name, plugin, &diag);
}

static void run(void (*body)(void *folder)) {
    char *folder = kvant_scratch_make();
    int result = kvant_in_child(body, folder);
    kvant_scratch_remove(folder);
    assert_int_equal(result, 0);
}

#define IN_CHILD(name)                                                                                       \
    static void name##_(void *folder);                                                                       \
    static void name(void **state) {                                                                         \
        (void)state;                                                                                         \
        run(name##_);                                                                                        \
    }                                                                                                        \
    static void name##_(void *folder)

/* ---- Order --------------------------------------------------------------------------------------------- */

static char *folder_with_honest(const char *folder, const char *name) {
    char *path = kvant_scratch_path(folder, name);
    kvant_expect(mkdir(path, 0755) == 0);
    char *file = kvant_scratch_path(path, "kvant_honest.so");
    kvant_scratch_copy(HONEST, file, SIZE_MAX);
    free(file);
    return path;
}

IN_CHILD(last_added_directory_comes_first) {
    const kvant_plugin *plugin = NULL, *again = NULL;
    char *a = folder_with_honest(folder, "a"), *b = folder_with_honest(folder, "b"),
         *c = folder_with_honest(folder, "c");
    setenv("KVANT_PLUGIN_PATH", c, 1);
    kvant_expect(kvant_plugin_path_add(a, NULL) == KVANT_OK);
    kvant_expect(kvant_plugin_path_add(b, NULL) == KVANT_OK);
    kvant_expect(find("honest", &plugin) == KVANT_OK);
    kvant_expect(strncmp(kvant_plugin_file(plugin), b, strlen(b)) == 0);
    /* Once open, it stays what the name means. */
    kvant_expect(kvant_plugin_path_add(a, NULL) == KVANT_OK);
    kvant_expect(find("honest", &again) == KVANT_OK && again == plugin);
}

IN_CHILD(added_again_is_first_again) {
    const kvant_plugin *plugin = NULL;
    char *a = folder_with_honest(folder, "a"), *b = folder_with_honest(folder, "b");
    kvant_expect(kvant_plugin_path_add(a, NULL) == KVANT_OK);
    kvant_expect(kvant_plugin_path_add(b, NULL) == KVANT_OK);
    kvant_expect(kvant_plugin_path_add(a, NULL) == KVANT_OK);
    kvant_expect(find("honest", &plugin) == KVANT_OK);
    kvant_expect(strncmp(kvant_plugin_file(plugin), a, strlen(a)) == 0);
}

IN_CHILD(variable_gives_directories_in_order) {
    const kvant_plugin *plugin = NULL;
    char *a = folder_with_honest(folder, "a"), *b = folder_with_honest(folder, "b"), both[2048];
    (void)snprintf(both, sizeof both, "/nonexistent:%s:%s/", b, a);
    setenv("KVANT_PLUGIN_PATH", both, 1);
    kvant_expect(find("honest", &plugin) == KVANT_OK);
    kvant_expect(strncmp(kvant_plugin_file(plugin), b, strlen(b)) == 0);
    /* Read once: what a program does to its environment later changes nothing. */
    setenv("KVANT_PLUGIN_PATH", "relative", 1);
    kvant_expect(find("raw2", &plugin) == KVANT_ERROR_PLUGIN_NOT_FOUND);
    kvant_expect(strstr(diag.message, "/nonexistent/kvant_raw2.so: no such directory") != NULL);
}

IN_CHILD(working_directory_is_never_searched) {
    const kvant_plugin *plugin = NULL;
    char *a = folder_with_honest(folder, "a");
    (void)unsetenv("KVANT_PLUGIN_PATH");
    kvant_expect(chdir(a) == 0);
    setenv("LD_LIBRARY_PATH", a, 1);
    kvant_expect(find("honest", &plugin) == KVANT_ERROR_PLUGIN_NOT_FOUND);
}

static void malformed_variable(const char *value, const char *part) {
    const kvant_plugin *plugin = NULL;
    setenv("KVANT_PLUGIN_PATH", value, 1);
    kvant_expect(find("honest", &plugin) == KVANT_ERROR_VALUE);
    kvant_expect(strstr(diag.message, part) != NULL);
    kvant_expect(strcmp(diag.key, "KVANT_PLUGIN_PATH") == 0);
    kvant_expect(plugin == NULL);
}

IN_CHILD(relative_variable) {
    (void)folder;
    malformed_variable(BAD "/honest:lib/kvant", "\"lib/kvant\" is relative");
}
IN_CHILD(dot_in_variable) {
    (void)folder;
    malformed_variable(".", "\".\" is relative");
}
IN_CHILD(empty_end_of_variable) {
    (void)folder;
    malformed_variable(BAD "/honest:", "an empty entry");
}
IN_CHILD(empty_middle_of_variable) {
    (void)folder;
    malformed_variable("/a::" BAD "/honest", "an empty entry");
}

static void path_add(void **state) {
    (void)state;
    diag = (kvant_diag){.struct_size = sizeof diag};
    assert_int_equal(kvant_plugin_path_add("", &diag), KVANT_ERROR_ARGUMENT);
    kvant_assert_contains(diag.message, "empty");
    assert_int_equal(kvant_plugin_path_add("lib/kvant", &diag), KVANT_ERROR_ARGUMENT);
    kvant_assert_contains(diag.message, "\"lib/kvant\" is relative");
    assert_int_equal(kvant_plugin_path_add(NULL, NULL), KVANT_ERROR_ARGUMENT);
}

/* ---- Failure ------------------------------------------------------------------------------------------- */

IN_CHILD(every_path_is_listed_with_its_reason) {
    const kvant_plugin *plugin = NULL;
    char *file = kvant_scratch_path(folder, "file"), *empty = kvant_scratch_path(folder, "empty"), line[2048];
    kvant_scratch_write(file, "x", 1);
    kvant_expect(mkdir(empty, 0755) == 0);
    setenv("KVANT_PLUGIN_PATH", BAD "/honest", 1);
    kvant_expect(kvant_plugin_path_add("/no/where", NULL) == KVANT_OK);
    kvant_expect(kvant_plugin_path_add(file, NULL) == KVANT_OK);
    kvant_expect(kvant_plugin_path_add(empty, NULL) == KVANT_OK);
    kvant_expect(find("honets", &plugin) == KVANT_ERROR_PLUGIN_NOT_FOUND);
    kvant_expect(strncmp(diag.message, "there is no codec \"honets\"; did you mean \"honest\"?\n", 51) == 0);
    (void)snprintf(line, sizeof line,
                   "\n  %s/kvant_honets.so: no such file\n  %s/kvant_honets.so: not a directory\n"
                   "  /no/where/kvant_honets.so: no such directory\n  " BAD
                   "/honest/kvant_honets.so: no such file\n",
                   empty, file);
    kvant_expect(strstr(diag.message, line) != NULL);
    kvant_expect(strcmp(diag.key, "honets") == 0);
}

IN_CHILD(a_long_path_is_cut_and_counted) {
    const kvant_plugin *plugin = NULL;
    (void)folder;
    for (int i = 0; i < 100; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "/a/directory/that/is/not/there/and/has/a/name/of/some/length/%d",
                       i);
        kvant_expect(kvant_plugin_path_add(path, NULL) == KVANT_OK);
    }
    kvant_expect(find("zzz", &plugin) == KVANT_ERROR_PLUGIN_NOT_FOUND);
    kvant_expect(strlen(diag.message) < sizeof diag.message - 1);
    const char *end = strstr(diag.message, "\n  and ");
    kvant_expect(end != NULL && strstr(end, " more") != NULL);
}

static void words_that_are_no_names(void **state) {
    (void)state;
    static const char *const words[] = {"",          "Kivi",     "../honest",
                                        "honest.so", "a/b",      "x y",
                                        "-",         "kvant_\n", "a2345678901234567890123456789_123"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const kvant_plugin *plugin = NULL;
        assert_int_equal(find(words[i], &plugin), KVANT_ERROR_PLUGIN_NOT_FOUND);
        kvant_assert_contains(diag.message, "[a-z][a-z0-9_]{0,31}");
        assert_null(plugin);
    }
    const kvant_plugin *plugin = NULL;
    assert_int_equal(kvant_plugin_find(NULL, &plugin, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_plugin_find("honest", NULL, NULL), KVANT_ERROR_ARGUMENT);
}

/* ---- Identity ------------------------------------------------------------------------------------------ */

IN_CHILD(a_link_under_the_right_name_is_fine) {
    const kvant_plugin *plugin = NULL;
    char *versioned = kvant_scratch_path(folder, "honest-1.0.so"),
         *link = kvant_scratch_path(folder, "kvant_honest.so");
    kvant_scratch_copy(HONEST, versioned, SIZE_MAX);
    kvant_expect(symlink("honest-1.0.so", link) == 0);
    kvant_expect(kvant_plugin_path_add(folder, NULL) == KVANT_OK);
    kvant_expect(find("honest", &plugin) == KVANT_OK);
    kvant_expect(strcmp(kvant_plugin_file(plugin), link) == 0);
}

IN_CHILD(one_file_under_two_names_is_refused) {
    const kvant_plugin *plugin = NULL;
    char *file = kvant_scratch_path(folder, "kvant_honest.so"),
         *other = kvant_scratch_path(folder, "kvant_other.so");
    kvant_scratch_copy(HONEST, file, SIZE_MAX);
    kvant_expect(link(file, other) == 0);
    kvant_expect(kvant_plugin_path_add(folder, NULL) == KVANT_OK);
    kvant_expect(find("honest", &plugin) == KVANT_OK);
    kvant_expect(find("other", &plugin) == KVANT_ERROR_PLUGIN_BROKEN);
    kvant_expect(strstr(diag.message, "carries the plugin \"honest\"") != NULL);
}

IN_CHILD(file_by_relative_path) {
    const kvant_plugin *plugin = NULL, *by_name = NULL;
    char *a = folder_with_honest(folder, "a");
    kvant_expect(chdir(a) == 0);
    kvant_expect(kvant_plugin_open_file("kvant_honest.so", &plugin, &diag) == KVANT_OK);
    kvant_expect(kvant_plugin_file(plugin)[0] == '/');
    kvant_expect(strncmp(kvant_plugin_file(plugin), a, strlen(a)) == 0);
    kvant_expect(chdir("/") == 0);
    kvant_expect(find("honest", &by_name) == KVANT_OK && by_name == plugin);
    /* The same file by another path is the same plugin. */
    char *around = kvant_scratch_path(folder, "a/../a/./kvant_honest.so");
    by_name = NULL;
    kvant_expect(kvant_plugin_open_file(around, &by_name, &diag) == KVANT_OK && by_name == plugin);
}

IN_CHILD(name_taken_by_another_file) {
    const kvant_plugin *plugin = NULL, *other = NULL;
    char *a = folder_with_honest(folder, "a"), *b = folder_with_honest(folder, "b");
    char *in_a = kvant_scratch_path(a, "kvant_honest.so"), *in_b = kvant_scratch_path(b, "kvant_honest.so");
    diag.struct_size = sizeof diag;
    kvant_expect(kvant_plugin_open_file(in_a, &plugin, &diag) == KVANT_OK);
    kvant_expect(kvant_plugin_open_file(in_b, &other, &diag) == KVANT_ERROR_DUPLICATE);
    kvant_expect(strstr(diag.message, in_a) != NULL && strcmp(diag.file, in_b) == 0);
    kvant_expect(other == NULL);
    kvant_expect(kvant_plugin_open_file(in_a, &other, &diag) == KVANT_OK && other == plugin);
}

IN_CHILD(files_that_cannot_be_plugins) {
    const kvant_plugin *plugin = NULL;
    diag.struct_size = sizeof diag;
    char *missing = kvant_scratch_path(folder, "kvant_missing.so"),
         *odd = kvant_scratch_path(folder, "honest.so");
    char *lost = kvant_scratch_path(folder, "no/kvant_x.so");
    kvant_scratch_copy(HONEST, odd, SIZE_MAX);
    kvant_expect(kvant_plugin_open_file(missing, &plugin, &diag) == KVANT_ERROR_PLUGIN_NOT_FOUND);
    kvant_expect(strcmp(diag.file, missing) == 0 && strstr(diag.message, "No such file") != NULL);
    kvant_expect(kvant_plugin_open_file(lost, &plugin, &diag) == KVANT_ERROR_PLUGIN_NOT_FOUND);
    kvant_expect(kvant_plugin_open_file(odd, &plugin, &diag) == KVANT_ERROR_PLUGIN_REFUSED);
    kvant_expect(strstr(diag.message, "kvant_NAME.so") != NULL);
    kvant_expect(kvant_plugin_open_file("", &plugin, &diag) == KVANT_ERROR_ARGUMENT);
    kvant_expect(kvant_plugin_open_file(NULL, &plugin, &diag) == KVANT_ERROR_ARGUMENT);
    kvant_expect(kvant_plugin_open_file("/", &plugin, &diag) == KVANT_ERROR_PLUGIN_REFUSED);
    kvant_expect(plugin == NULL);
}

/* ---- Registered ---------------------------------------------------------------------------------------- */

static const kvant_plugin *borrowed;
static const kvant_plugin *query(uint32_t host_abi) {
    kvant_expect(host_abi == KVANT_ABI);
    return borrowed;
}
static const kvant_plugin *query_again(uint32_t host_abi) {
    return query(host_abi);
}
static const kvant_plugin *query_nothing(uint32_t host_abi) {
    (void)host_abi;
    return NULL;
}

IN_CHILD(registered_plugins_come_first) {
    const kvant_plugin *plugin = NULL;
    diag.struct_size = sizeof diag;
    /* A plugin like one that is linked in: the honest one's, taken from its file behind the registry's
     * back. */
    void *handle = dlopen(HONEST, RTLD_NOW | RTLD_LOCAL);
    kvant_expect(handle != NULL);
    union {
        void *object;
        kvant_plugin_query_fn *function;
    } symbol = {.object = dlsym(handle, "kvant_plugin_query")};
    borrowed = symbol.function(KVANT_ABI);
    (void)folder;
    kvant_expect(kvant_plugin_path_add(BAD "/honest", NULL) == KVANT_OK);
    kvant_expect(kvant_plugin_register(NULL, &diag) == KVANT_ERROR_ARGUMENT);
    kvant_expect(kvant_plugin_register(query_nothing, &diag) == KVANT_ERROR_PLUGIN_BROKEN);
    kvant_expect(kvant_plugin_register(query, &diag) == KVANT_OK);
    kvant_expect(kvant_plugin_register(query, &diag) == KVANT_OK);
    kvant_expect(kvant_plugin_register(query_again, &diag) == KVANT_ERROR_DUPLICATE);
    kvant_expect(strstr(diag.message, "honest") != NULL);
    kvant_expect(find("honest", &plugin) == KVANT_OK && plugin == borrowed);
    kvant_expect(kvant_plugin_file(plugin)[0] == '\0');
    kvant_expect(kvant_plugin_file(NULL)[0] == '\0');
    kvant_expect(kvant_plugin_open_file(HONEST, &plugin, &diag) == KVANT_ERROR_DUPLICATE);
}

IN_CHILD(registering_what_is_found_already) {
    const kvant_plugin *plugin = NULL;
    (void)folder;
    diag.struct_size = sizeof diag;
    kvant_expect(kvant_plugin_path_add(BAD "/honest", NULL) == KVANT_OK);
    kvant_expect(find("honest", &borrowed) == KVANT_OK);
    kvant_expect(kvant_plugin_register(query, &diag) == KVANT_ERROR_DUPLICATE);
    kvant_expect(strstr(diag.message, HONEST) != NULL);
    kvant_expect(find("honest", &plugin) == KVANT_OK && plugin == borrowed);
}

/* ---- List ---------------------------------------------------------------------------------------------- */

typedef struct seen {
    char text[8192];
    size_t size;
} seen;

static void write_down(void *context, const kvant_plugin_entry *entry) {
    seen *s = context;
    s->size +=
        (size_t)snprintf(s->text + s->size, sizeof s->text - s->size, "%s|%d|%s|%s|%s\n", entry->name,
                         (int)entry->status, entry->plugin != NULL ? "open" : "", entry->file, entry->reason);
}

IN_CHILD(list_tells_order_and_shadows) {
    static seen s;
    char *a = folder_with_honest(folder, "a"), *b = folder_with_honest(folder, "b"), want[4096];
    char *odd = kvant_scratch_path(a, "kvant_Odd.so"), *broken = kvant_scratch_path(a, "kvant_broken.so");
    char *hidden = kvant_scratch_path(b, "kvant_broken.so"),
         *ignored = kvant_scratch_path(a, "libkvant_x.so");
    kvant_scratch_write(odd, "x", 1);
    kvant_scratch_write(broken, "x", 1);
    kvant_scratch_copy(HONEST, hidden, SIZE_MAX);
    kvant_scratch_write(ignored, "x", 1);
    (void)unsetenv("KVANT_PLUGIN_PATH");
    kvant_expect(kvant_plugin_path_add(b, NULL) == KVANT_OK);
    kvant_expect(kvant_plugin_path_add(a, NULL) == KVANT_OK);
    diag.struct_size = sizeof diag;
    kvant_expect(kvant_plugin_list(write_down, &s, &diag) == KVANT_OK);
    (void)snprintf(want, sizeof want,
                   "Odd|%d||%s|\"Odd\" cannot be the name of a codec: those are [a-z][a-z0-9_]{0,31}\n"
                   "broken|%d||%s|it is not an ELF file\n"
                   "broken|0||%s|shadowed by %s\n"
                   "honest|0|open|%s/kvant_honest.so|\n"
                   "honest|0||%s/kvant_honest.so|shadowed by %s/kvant_honest.so\n",
                   KVANT_ERROR_PLUGIN_REFUSED, odd, KVANT_ERROR_PLUGIN_REFUSED, broken, hidden, broken, a, b,
                   a);
    if (strncmp(s.text, want, strlen("Odd")) != 0 || strstr(s.text, "honest|0|open") == NULL)
        fprintf(stderr, "%s\nnot\n%s\n", s.text, want);
    /* The installation's own codecs may stand among them. */
    char *line = strtok(want, "\n");
    for (const char *at = s.text; line != NULL; line = strtok(NULL, "\n")) {
        at = strstr(at, line);
        kvant_expect(at != NULL);
    }
    kvant_expect(strstr(s.text, "libkvant") == NULL);
    kvant_expect(kvant_plugin_list(NULL, NULL, NULL) == KVANT_ERROR_ARGUMENT);
}

static void call_back(void *context, const kvant_plugin_entry *entry) {
    const kvant_plugin *plugin = NULL;
    *(int *)context += 1;
    if (entry->plugin != NULL)
        kvant_expect(kvant_plugin_find(entry->name, &plugin, NULL) == KVANT_OK && plugin == entry->plugin);
}

IN_CHILD(list_may_be_called_back_from) {
    int count = 0;
    (void)folder;
    kvant_expect(kvant_plugin_path_add(BAD "/honest", NULL) == KVANT_OK);
    kvant_expect(kvant_plugin_list(call_back, &count, NULL) == KVANT_OK);
    kvant_expect(count > 0);
}

/* ---- The installation ---------------------------------------------------------------------------------- */

/* The shared library, moved somewhere and loaded by a relative path from a working directory that is then
 * left, finds the plugins that lie beside it. */
IN_CHILD(library_finds_its_own_directory) {
    char *library = kvant_scratch_path(folder, "libkvant_copy.so"), *b = NULL, *plugins = NULL;
    kvant_scratch_copy(KVANT_TEST_BUILD_DIR "/lib/libkvant.so", library, SIZE_MAX);
    b = folder_with_honest(folder, "kvant");
    plugins = kvant_scratch_path(b, "kvant_honest.so");
    (void)unsetenv("KVANT_PLUGIN_PATH");
    kvant_expect(chdir(folder) == 0);
    void *handle = dlopen("./libkvant_copy.so", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
    kvant_expect(handle != NULL);
    union {
        void *object;
        kvant_status (*find)(const char *, const kvant_plugin **, kvant_diag *);
        const char *(*file)(const kvant_plugin *);
    } find_symbol = {.object = dlsym(handle, "kvant_plugin_find")},
      file_symbol = {.object = dlsym(handle, "kvant_plugin_file")};
    kvant_expect(chdir("/") == 0);
    const kvant_plugin *plugin = NULL;
    diag = (kvant_diag){.struct_size = sizeof diag};
    kvant_status status = find_symbol.find("honest", &plugin, &diag);
    if (status != KVANT_OK) fprintf(stderr, "%s\n", diag.message);
    kvant_expect(status == KVANT_OK);
    kvant_expect(strcmp(file_symbol.file(plugin), plugins) == 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_added_directory_comes_first),
        cmocka_unit_test(added_again_is_first_again),
        cmocka_unit_test(variable_gives_directories_in_order),
        cmocka_unit_test(working_directory_is_never_searched),
        cmocka_unit_test(relative_variable),
        cmocka_unit_test(dot_in_variable),
        cmocka_unit_test(empty_end_of_variable),
        cmocka_unit_test(empty_middle_of_variable),
        cmocka_unit_test(path_add),
        cmocka_unit_test(every_path_is_listed_with_its_reason),
        cmocka_unit_test(a_long_path_is_cut_and_counted),
        cmocka_unit_test(words_that_are_no_names),
        cmocka_unit_test(a_link_under_the_right_name_is_fine),
        cmocka_unit_test(one_file_under_two_names_is_refused),
        cmocka_unit_test(file_by_relative_path),
        cmocka_unit_test(name_taken_by_another_file),
        cmocka_unit_test(files_that_cannot_be_plugins),
        cmocka_unit_test(registered_plugins_come_first),
        cmocka_unit_test(registering_what_is_found_already),
        cmocka_unit_test(list_tells_order_and_shadows),
        cmocka_unit_test(list_may_be_called_back_from),
        cmocka_unit_test(library_finds_its_own_directory),
    };
    return kvant_run_tests(tests, argc, argv);
}
