/* core/plugin from many threads at once: different names, the same name, refused ones in between, lists.
 * Meant for the thread sanitizer as well. */
#include "support/scratch.h"
#include "support/test.h"

#include <kvant/kvant.h>

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAD KVANT_TEST_BUILD_DIR "/tests/bad_plugins"

enum { THREADS = 16, ROUNDS = 8, NAMES_MAX = 64 };

static char names[NAMES_MAX][64];
static size_t name_count;
static pthread_barrier_t barrier;

typedef struct worker {
    pthread_t handle;
    size_t number;
    const kvant_plugin *found[NAMES_MAX];
    size_t listed;
} worker;

static void count(void *context, const kvant_plugin_entry *entry) {
    *(size_t *)context += entry->plugin != NULL;
}

static void *search(void *context) {
    worker *w = context;
    pthread_barrier_wait(&barrier);
    for (size_t round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < name_count; i++) {
            size_t n = (i + w->number * 7 + round) % name_count;
            kvant_diag diag = {.struct_size = sizeof diag};
            const kvant_plugin *plugin = NULL;
            kvant_expect(kvant_plugin_find(names[n], &plugin, &diag) == KVANT_OK);
            kvant_expect(strcmp(plugin->descriptor->name, names[n]) == 0);
            kvant_expect(w->found[n] == NULL || w->found[n] == plugin);
            kvant_expect(strstr(kvant_plugin_file(plugin), names[n]) != NULL);
            w->found[n] = plugin;
            kvant_expect(kvant_plugin_find("no_encode", &plugin, &diag) == KVANT_ERROR_PLUGIN_BROKEN);
            kvant_expect(strstr(diag.message, "plugin.encode is NULL") != NULL);
            if (i % 8 == w->number % 8) kvant_expect(kvant_plugin_find("nowhere", &plugin, NULL) != KVANT_OK);
            if (i == w->number) {
                w->listed = 0;
                kvant_expect(kvant_plugin_list(count, &w->listed, &diag) == KVANT_OK);
                kvant_expect(w->listed >= name_count);
            }
            kvant_expect(kvant_plugin_path_add(BAD "/honest", NULL) == KVANT_OK);
        }
    return NULL;
}

static void all_at_once(void *context) {
    static worker workers[THREADS];
    char folder[1024];
    (void)context;
    DIR *directory = opendir(BAD);
    kvant_expect(directory != NULL);
    for (const struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (strncmp(entry->d_name, "lie_", 4) != 0 || name_count == NAMES_MAX) continue;
        (void)snprintf(names[name_count++], sizeof names[0], "%.63s", entry->d_name);
        (void)snprintf(folder, sizeof folder, BAD "/%s", entry->d_name);
        kvant_expect(kvant_plugin_path_add(folder, NULL) == KVANT_OK);
    }
    (void)closedir(directory);
    kvant_expect(name_count > THREADS);
    kvant_expect(kvant_plugin_path_add(BAD "/no_encode", NULL) == KVANT_OK);
    kvant_expect(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    for (size_t t = 0; t < THREADS; t++) {
        workers[t].number = t;
        kvant_expect(pthread_create(&workers[t].handle, NULL, search, &workers[t]) == 0);
    }
    for (size_t t = 0; t < THREADS; t++) kvant_expect(pthread_join(workers[t].handle, NULL) == 0);
    for (size_t t = 1; t < THREADS; t++)
        for (size_t n = 0; n < name_count; n++) kvant_expect(workers[t].found[n] == workers[0].found[n]);
}

static void many_threads_get_one_plugin_each(void **state) {
    (void)state;
    assert_int_equal(kvant_in_child(all_at_once, NULL), 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(many_threads_get_one_plugin_each)};
    return kvant_run_tests(tests, argc, argv);
}
