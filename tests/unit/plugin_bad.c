/* Every deliberately bad plugin, and what a file system can do wrong, is refused with an error of its own,
 * and leaves a good plugin beside it usable. See tests/bad_plugins/README.md. */
#include "support/scratch.h"
#include "support/test.h"

#include <kvant/kvant.h>

#include <dirent.h>
#include <elf.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define BAD    KVANT_TEST_BUILD_DIR "/tests/bad_plugins"
#define HONEST BAD "/honest/kvant_honest.so"

typedef struct wrong {
    const char *kind;
    kvant_status status;
    const char *reason;
} wrong;

static const wrong kinds[] = {
    {"no_symbol", KVANT_ERROR_PLUGIN_BROKEN, "exports no function kvant_plugin_query"},
    {"null_root", KVANT_ERROR_PLUGIN_BROKEN, "kvant_plugin_query(ABI 1.0) returns NULL"},
    {"wrong_major", KVANT_ERROR_PLUGIN_ABI, "plugin.abi is 2.3 and this library takes 1.x"},
    {"small_root", KVANT_ERROR_PLUGIN_BROKEN, "plugin.struct_size is 40"},
    {"null_descriptor", KVANT_ERROR_PLUGIN_BROKEN, "plugin.descriptor is NULL"},
    {"small_descriptor", KVANT_ERROR_PLUGIN_BROKEN, "descriptor.struct_size is 8"},
    {"no_encode", KVANT_ERROR_PLUGIN_BROKEN, "plugin.encode is NULL"},
    {"malformed_name", KVANT_ERROR_PLUGIN_BROKEN, "descriptor.name is \"Malformed-Name\""},
    {"other_name", KVANT_ERROR_PLUGIN_BROKEN, "carries the plugin \"somebody_else\""},
    {"duplicate_parameter", KVANT_ERROR_PLUGIN_BROKEN, "parameter 1 (bits): parameter 0 has the same name"},
    {"default_out_of_range", KVANT_ERROR_PLUGIN_BROKEN,
     "parameter 0 (bits): the default 9 is outside of 4 to 8"},
    {"empty_choice", KVANT_ERROR_PLUGIN_BROKEN, "parameter 0 (bits): a choice without choices"},
    {"null_help", KVANT_ERROR_PLUGIN_BROKEN, "parameter 0 (bits): help"},
    {"unordered_integers", KVANT_ERROR_PLUGIN_BROKEN, "integers[1] = 4 does not ascend"},
    {"unknown_requirement", KVANT_ERROR_PLUGIN_ABI, "descriptor.requires_bits has 0x80000000"},
    {"no_sides", KVANT_ERROR_PLUGIN_BROKEN, "descriptor.sides is 0x0"},
    {"unprintable_format", KVANT_ERROR_PLUGIN_BROKEN, "descriptor.format_id is 0x00000007"},
    {"undefined_symbol", KVANT_ERROR_PLUGIN_REFUSED, "undefined symbol: kvant_no_such_function"},
};
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

static const char *const accepted[] = {"honest", "higher_minor", "unknown_offer", "flush_on_load",
                                       "extra_export"};

/* In a child: looks for kvant_<kind>.so in `folder` alone. */
typedef struct search {
    const char *folder;
    const char *name;
    kvant_status status;
    const char *reason;
} search;

static void find_and_compare(void *context) {
    const search *s = context;
    const kvant_plugin *plugin = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    char path[1024];
    kvant_expect(kvant_plugin_path_add(BAD "/honest", &diag) == KVANT_OK);
    kvant_expect(kvant_plugin_path_add(s->folder, &diag) == KVANT_OK);
    kvant_status status = kvant_plugin_find(s->name, &plugin, &diag);
    if (status != s->status || (s->status != KVANT_OK && strstr(diag.message, s->reason) == NULL))
        fprintf(stderr, "%s: status %d, \"%s\"\n", s->name, status, diag.message);
    kvant_expect(status == s->status);
    if (status != KVANT_OK) {
        kvant_expect(plugin == NULL);
        kvant_expect(strstr(diag.message, s->reason) != NULL);
        kvant_expect(strstr(diag.message, s->name) != NULL);
        (void)snprintf(path, sizeof path, "%s/kvant_%s.so", s->folder, s->name);
        kvant_expect(strcmp(diag.file, path) == 0);
        /* The same again: nothing was half entered. */
        kvant_expect(kvant_plugin_find(s->name, &plugin, NULL) == s->status);
    }
    if (strcmp(s->name, "honest") == 0) return;
    kvant_expect(kvant_plugin_find("honest", &plugin, &diag) == KVANT_OK);
    kvant_expect(strcmp(plugin->descriptor->name, "honest") == 0);
}

static void refused_by_content(void **state) {
    (void)state;
    for (size_t i = 0; i < KIND_COUNT; i++) {
        char folder[1024];
        (void)snprintf(folder, sizeof folder, BAD "/%s", kinds[i].kind);
        search s = {folder, kinds[i].kind, kinds[i].status, kinds[i].reason};
        assert_int_equal(kvant_in_child(find_and_compare, &s), 0);
    }
}

static void accepted_though_odd(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        char folder[1024];
        (void)snprintf(folder, sizeof folder, BAD "/%s", accepted[i]);
        search s = {folder, accepted[i], KVANT_OK, ""};
        assert_int_equal(kvant_in_child(find_and_compare, &s), 0);
    }
}

/* Liars load: only the conformance check can tell. */
static void liars_load(void **state) {
    (void)state;
    DIR *directory = opendir(BAD);
    assert_non_null(directory);
    size_t count = 0;
    for (const struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        char folder[1024];
        if (strncmp(entry->d_name, "lie_", 4) != 0) continue;
        (void)snprintf(folder, sizeof folder, BAD "/%s", entry->d_name);
        search s = {folder, entry->d_name, KVANT_OK, ""};
        assert_int_equal(kvant_in_child(find_and_compare, &s), 0);
        count++;
    }
    (void)closedir(directory);
    assert_true(count >= 25);
}

/* All of them in one process, one after another, and one list of all. */
static void count_entry(void *context, const kvant_plugin_entry *entry) {
    size_t *counts = context;
    kvant_expect(entry->struct_size == sizeof *entry);
    if (entry->plugin == NULL) {
        size_t i = 0;
        while (i < KIND_COUNT && strcmp(kinds[i].kind, entry->name) != 0) i++;
        kvant_expect(i < KIND_COUNT);
        kvant_expect(entry->status == kinds[i].status);
        kvant_expect(strstr(entry->reason, kinds[i].reason) != NULL);
        counts[1]++;
        return;
    }
    kvant_expect(entry->status == KVANT_OK && entry->reason[0] == '\0');
    kvant_expect(strcmp(entry->name, entry->plugin->descriptor->name) == 0);
    kvant_expect(strcmp(entry->file, kvant_plugin_file(entry->plugin)) == 0);
    counts[0]++;
}

static void list_all(void *context) {
    char folder[1024];
    size_t counts[2] = {0};
    (void)context;
    (void)unsetenv("KVANT_PLUGIN_PATH");
    for (size_t i = 0; i < KIND_COUNT; i++) {
        (void)snprintf(folder, sizeof folder, BAD "/%s", kinds[i].kind);
        kvant_expect(kvant_plugin_path_add(folder, NULL) == KVANT_OK);
    }
    kvant_expect(kvant_plugin_path_add(BAD "/honest", NULL) == KVANT_OK);
    kvant_diag diag = {.struct_size = sizeof diag};
    for (int round = 0; round < 2; round++) {
        counts[0] = counts[1] = 0;
        kvant_expect(kvant_plugin_list(count_entry, counts, &diag) == KVANT_OK);
        kvant_expect(counts[0] >= 1); /* and what is installed beside the tests */
        kvant_expect(counts[1] == KIND_COUNT);
    }
}

static void listed_with_reasons(void **state) {
    (void)state;
    assert_int_equal(kvant_in_child(list_all, NULL), 0);
}

/* ---- What a file system can do wrong ------------------------------------------------------------------- */

typedef enum fault {
    NOT_ELF,
    EMPTY,
    CUT_OFF,
    CUT_OFF_IN_SEGMENT,
    CUT_OFF_HEADERS,
    OTHER_MACHINE,
    PROGRAM,
    DIRECTORY,
    FIFO,
    DANGLING_LINK,
    LINK_CIRCLE,
    WORLD_WRITABLE_FILE,
    WORLD_WRITABLE_DIRECTORY,
    LINK_INTO_WORLD_WRITABLE,
    OTHER_FILE_NAME,
    FAULT_COUNT
} fault;

static const wrong faults[FAULT_COUNT] = {
    [NOT_ELF] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "not an ELF file"},
    [EMPTY] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "not an ELF file"},
    [CUT_OFF] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "cut off"},
    [CUT_OFF_IN_SEGMENT] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "cut off"},
    [CUT_OFF_HEADERS] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "cut off"},
    [OTHER_MACHINE] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "another machine"},
    [PROGRAM] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, ""},
    [DIRECTORY] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "it is a directory, not a regular file"},
    [FIFO] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "it is a FIFO, not a regular file"},
    [DANGLING_LINK] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "a symbolic link to nothing"},
    [LINK_CIRCLE] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "symbolic links in a circle"},
    [WORLD_WRITABLE_FILE] = {"honest", KVANT_ERROR_PLUGIN_REFUSED, "everybody may write to it"},
    [WORLD_WRITABLE_DIRECTORY] = {"honest", KVANT_ERROR_PLUGIN_REFUSED,
                                  "everybody may write to its directory"},
    [LINK_INTO_WORLD_WRITABLE] = {"honest", KVANT_ERROR_PLUGIN_REFUSED,
                                  "everybody may write to its directory"},
    [OTHER_FILE_NAME] = {"renamed", KVANT_ERROR_PLUGIN_BROKEN, "it must be called kvant_honest.so"},
};

/* An offset in the middle of what is mapped last. */
static size_t within_last_segment(void) {
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    size_t middle = 0;
    FILE *file = fopen(HONEST, "rb");
    assert_true(file != NULL && fread(&header, sizeof header, 1, file) == 1);
    assert_int_equal(fseek(file, (long)header.e_phoff, SEEK_SET), 0);
    for (int i = 0; i < header.e_phnum; i++) {
        assert_int_equal(fread(&segment, sizeof segment, 1, file), 1);
        if (segment.p_type == PT_LOAD && segment.p_offset > middle)
            middle = segment.p_offset + segment.p_filesz / 2;
    }
    (void)fclose(file);
    return middle;
}

static void make_fault(fault f, const char *folder) {
    char *file = kvant_scratch_path(folder, f == OTHER_FILE_NAME ? "kvant_renamed.so" : "kvant_honest.so");
    char *other = kvant_scratch_path(folder, "other");
    char *elsewhere = kvant_scratch_path(other, "kvant_honest.so");
    int done = 0;
    switch (f) {
    case NOT_ELF:
        kvant_scratch_write(file,
                            "#!/bin/sh\nexit 0\n# long enough for the header of an ELF file, and more\n", 70);
        break;
    case EMPTY:
        kvant_scratch_write(file, "", 0);
        break;
    case CUT_OFF:
        kvant_scratch_copy(HONEST, file, 4000);
        break;
    case CUT_OFF_IN_SEGMENT:
        kvant_scratch_copy(HONEST, file, within_last_segment());
        break;
    case CUT_OFF_HEADERS:
        kvant_scratch_copy(HONEST, file, 100);
        break;
    case OTHER_MACHINE: {
        unsigned char header[64] = {0x7f, 'E', 'L', 'F', 2, 1, 1, [16] = 3, [18] = 243 /* RISC-V */};
        kvant_scratch_write(file, header, sizeof header);
        break;
    }
    case PROGRAM:
        kvant_scratch_copy(KVANT_TEST_COMMAND, file, SIZE_MAX);
        break;
    case DIRECTORY:
        done = mkdir(file, 0755);
        break;
    case FIFO:
        done = mkfifo(file, 0644);
        break;
    case DANGLING_LINK:
        done = symlink("nowhere", file);
        break;
    case LINK_CIRCLE:
        done = symlink("other", file) | symlink("kvant_honest.so", other);
        break;
    case WORLD_WRITABLE_FILE:
        kvant_scratch_copy(HONEST, file, SIZE_MAX);
        done = chmod(file, 0646);
        break;
    case WORLD_WRITABLE_DIRECTORY:
        kvant_scratch_copy(HONEST, file, SIZE_MAX);
        done = chmod(folder, 01777); /* sticky like /tmp: others may still add files */
        break;
    case LINK_INTO_WORLD_WRITABLE:
        done = mkdir(other, 0777) | chmod(other, 0777);
        kvant_scratch_copy(HONEST, elsewhere, SIZE_MAX);
        done |= symlink(elsewhere, file);
        break;
    default:
        kvant_scratch_copy(HONEST, file, SIZE_MAX);
    }
    assert_int_equal(done, 0);
    free(file);
    free(other);
    free(elsewhere);
}

static void refused_by_file(void **state) {
    (void)state;
    for (fault f = 0; f < FAULT_COUNT; f++) {
        char *folder = kvant_scratch_make();
        make_fault(f, folder);
        /* The good one lies in the next directory of the path, and must not quietly stand in. */
        search s = {folder, faults[f].kind, faults[f].status, faults[f].reason};
        if (kvant_in_child(find_and_compare, &s) != 0) fail_msg("fault %d", (int)f);
        kvant_scratch_remove(folder);
    }
}

/* ---- The floating-point environment -------------------------------------------------------------------- */

static void find_flusher(void *context) {
    (void)context;
#if defined(__x86_64__)
    const kvant_plugin *plugin = NULL;
    unsigned mine = 0x1f80 | 0x4000; /* rounding up */
    _mm_setcsr(mine);
    kvant_expect(kvant_plugin_path_add(BAD "/flush_on_load", NULL) == KVANT_OK);
    kvant_expect(kvant_plugin_find("flush_on_load", &plugin, NULL) == KVANT_OK);
    kvant_expect((_mm_getcsr() & ~0x3fu) == mine);
#endif
}

static void constructors_do_not_change_the_mode(void **state) {
    (void)state;
    assert_int_equal(kvant_in_child(find_flusher, NULL), 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_by_content), cmocka_unit_test(accepted_though_odd),
        cmocka_unit_test(liars_load),         cmocka_unit_test(listed_with_reasons),
        cmocka_unit_test(refused_by_file),    cmocka_unit_test(constructors_do_not_change_the_mode),
    };
    return kvant_run_tests(tests, argc, argv);
}
