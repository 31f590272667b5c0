/* See registry.h and "Plugins" in kvant.h.
 *
 * One lock covers everything, the loader's work and the plugins' query functions included: opening is rare,
 * and two threads that look for one name must get one plugin. Hot calls never come here.
 */
#include "plugin/registry.h"

#include "base/text.h"
#include "plugin/fpenv.h"
#include "plugin/isa_level.h"
#include "plugin/vet.h"

#include <kvant/kit/diag.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    kvant_loaded *first;
    kvant_directories added; /* by the application; the last one is searched first */
    char *variable;          /* KVANT_PLUGIN_PATH, as it was when it was first needed */
    bool variable_read;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

void kvant_registry_lock(void) {
    pthread_mutex_lock(&registry.lock);
}

void kvant_registry_unlock(void) {
    pthread_mutex_unlock(&registry.lock);
}

static kvant_status no_memory(kvant_diag *diag) {
    return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

/* ---- Entries ------------------------------------------------------------------------------------------- */

const kvant_loaded *kvant_registry_first(void) {
    return registry.first;
}

const kvant_loaded *kvant_registry_by_name(const char *name) {
    const kvant_loaded *entry = registry.first;
    while (entry != NULL && strcmp(entry->plugin->descriptor->name, name) != 0) entry = entry->next;
    return entry;
}

static const kvant_loaded *by_file(const struct stat *status) {
    const kvant_loaded *entry = registry.first;
    while (entry != NULL &&
           (entry->file[0] == '\0' || entry->device != status->st_dev || entry->inode != status->st_ino))
        entry = entry->next;
    return entry;
}

/* Takes a copy of `entry` into the list. */
static kvant_status enter(const kvant_loaded *entry, const char *file, const kvant_loaded **loaded,
                          kvant_diag *diag) {
    kvant_loaded *copy = malloc(sizeof *copy);
    char *path = strdup(file);
    if (copy == NULL || path == NULL) {
        free(copy);
        free(path);
        return no_memory(diag);
    }
    *copy = *entry;
    copy->file = path;
    copy->next = NULL;
    kvant_loaded **end = &registry.first;
    while (*end != NULL) end = &(*end)->next;
    *end = copy;
    *loaded = copy;
    return KVANT_OK;
}

/* ---- One file ------------------------------------------------------------------------------------------ */

static kvant_status ask(kvant_plugin_query_fn *query, const kvant_plugin **plugin, kvant_diag *diag) {
    *plugin = query(KVANT_ABI);
    if (*plugin == NULL)
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "",
                          "kvant_plugin_query(ABI %d.%d) returns NULL: it has no plugin for this library",
                          KVANT_ABI_MAJOR, KVANT_ABI_MINOR);
    return kvant_vet(*plugin, diag);
}

/* Runs the file's constructors. A refused file stays mapped: what its constructors started may still run. */
static kvant_status load(const char *real, const kvant_plugin **plugin, kvant_diag *diag) {
    void *handle = dlopen(real, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        const char *error = dlerror();
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_REFUSED, "", "the loader says: %s",
                          error != NULL ? error : "nothing");
    }
    union {
        void *object;
        kvant_plugin_query_fn *function;
    } symbol = {.object = dlsym(handle, "kvant_plugin_query")};
    if (symbol.object == NULL)
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "", "it exports no function kvant_plugin_query");
    return ask(symbol.function, plugin, diag);
}

kvant_status kvant_registry_open(const char *path, const char *name, const kvant_loaded **loaded,
                                 kvant_diag *diag) {
    char *real = NULL;
    struct stat file;
    kvant_status status = kvant_plugin_file_check(path, &real, &file, diag);
    if (status != KVANT_OK) return status;

    /* The same file under another name is the same plugin, and its name then is not this one. */
    const kvant_loaded *known = by_file(&file);
    kvant_loaded entry = {.device = file.st_dev, .inode = file.st_ino};
    if (known != NULL)
        entry.plugin = known->plugin;
    else {
        kvant_fp_state saved = kvant_fp_enter();
        status = load(real, &entry.plugin, diag);
        kvant_fp_leave(saved);
    }
    free(real);
    if (status != KVANT_OK) return status;
    if (strcmp(entry.plugin->descriptor->name, name) != 0)
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "",
                          "it carries the plugin \"%s\", so it must be called kvant_%s.so",
                          entry.plugin->descriptor->name, entry.plugin->descriptor->name);
    if (known != NULL) {
        *loaded = known;
        return KVANT_OK;
    }
    return enter(&entry, path, loaded, diag);
}

/* ---- Directories --------------------------------------------------------------------------------------- */

static kvant_status read_variable(kvant_diag *diag) {
    if (registry.variable_read) return KVANT_OK;
    const char *variable = secure_getenv("KVANT_PLUGIN_PATH");
    if (variable != NULL && (registry.variable = strdup(variable)) == NULL) return no_memory(diag);
    registry.variable_read = true;
    return KVANT_OK;
}

kvant_status kvant_registry_directories(kvant_directories *out, kvant_diag *diag) {
    kvant_status status = read_variable(diag);
    for (uint32_t i = registry.added.count; status == KVANT_OK && i > 0; i--) {
        const char *path = registry.added.paths[i - 1];
        status = kvant_directories_append(out, path, strlen(path), diag);
    }
    if (status == KVANT_OK && registry.variable != NULL)
        status = kvant_directories_append_list(out, registry.variable, "KVANT_PLUGIN_PATH", diag);
    if (status == KVANT_OK) {
        char *install = kvant_install_directory();
        if (install != NULL) status = kvant_directories_append(out, install, strlen(install), diag);
        free(install);
    }
    if (status != KVANT_OK) kvant_directories_free(out);
    return status;
}

/* Taking an entry out and appending it again makes it the first to be searched. */
static void forget(const char *directory) {
    for (uint32_t i = 0; i < registry.added.count; i++) {
        if (strcmp(registry.added.paths[i], directory) != 0) continue;
        free(registry.added.paths[i]);
        registry.added.count--;
        memmove(registry.added.paths + i, registry.added.paths + i + 1,
                (registry.added.count - i) * sizeof *registry.added.paths);
        return;
    }
}

kvant_status kvant_plugin_path_add(const char *directory, kvant_diag *diag) {
    if (directory == NULL || directory[0] == '\0')
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "plugin path: an empty directory; it takes an absolute one");
    if (directory[0] != '/')
        return kvant_fail(
            diag, KVANT_ERROR_ARGUMENT, "",
            "plugin path: \"%.512s\" is relative; plugins are looked for in absolute directories only",
            directory);
    kvant_registry_lock();
    forget(directory);
    kvant_status status = kvant_directories_append(&registry.added, directory, strlen(directory), diag);
    kvant_registry_unlock();
    return status;
}

/* ---- Search -------------------------------------------------------------------------------------------- */

/* Lines of a message, as many as fit. */
typedef struct trail {
    kvant_text lines;
    uint32_t left_out;
} trail;

enum { TRAIL_MAX = 1500 };

static void note(trail *t, const char *path, const char *reason) {
    if (t->lines.size + strlen(path) + strlen(reason) + 5 > TRAIL_MAX) {
        t->left_out++;
        return;
    }
    kvant_text_printf(&t->lines, "\n  %s: %s", path, reason);
}

static const char *trail_end(trail *t) {
    if (t->left_out > 0) kvant_text_printf(&t->lines, "\n  and %u more", t->left_out);
    return t->lines.data != NULL ? t->lines.data : "";
}

/* Why there is nothing at `path`, or NULL if something is: that decides the search, fit or not. */
static const char *absence(const char *directory, const char *path) {
    struct stat status;
    if (lstat(path, &status) == 0) return NULL;
    if (errno != ENOENT && errno != ENOTDIR) return NULL;
    const char *fault = kvant_directory_fault(directory);
    return fault != NULL ? fault : "no such file";
}

/* The nearest to a name, of those that are offered one by one. */
typedef struct guess {
    const char *word;
    char best[40]; /* "" = none is near */
} guess;

static void offer(void *context, const char *name) {
    guess *g = context;
    const char *pair[2] = {name, g->best};
    const char *nearest = kvant_nearest(g->word, pair, g->best[0] != '\0' ? 2 : 1);
    if (nearest == name && strlen(name) < sizeof g->best) strcpy(g->best, name);
}

static kvant_status not_found(const char *name, const kvant_directories *directories, trail *t,
                              kvant_diag *diag) {
    guess g = {.word = name};
    for (const kvant_loaded *e = registry.first; e != NULL; e = e->next)
        offer(&g, e->plugin->descriptor->name);
    for (uint32_t i = 0; i < directories->count; i++) kvant_directory_scan(directories->paths[i], offer, &g);
    bool hint = g.best[0] != '\0';
    return kvant_fail(diag, KVANT_ERROR_PLUGIN_NOT_FOUND, name, "there is no codec \"%s\"%s%s%s%s", name,
                      hint ? "; did you mean \"" : "", g.best, hint ? "\"?" : "", trail_end(t));
}

/* Adds the file and the paths tried before it to a reason. */
static kvant_status refused(kvant_status status, const char *name, const char *path, trail *t,
                            kvant_diag *diag) {
    if (diag == NULL || diag->struct_size < sizeof *diag) return status;
    char reason[sizeof diag->message], key[sizeof diag->key];
    memcpy(reason, diag->message, sizeof reason);
    memcpy(key, diag->key, sizeof key);
    if (t->lines.size > 0) note(t, path, "refused");
    (void)kvant_fail(diag, status, key, "codec %s is refused: %s%s", name, reason, trail_end(t));
    (void)snprintf(diag->file, sizeof diag->file, "%s", path);
    return status;
}

static kvant_status search(const char *name, const kvant_loaded **loaded, kvant_diag *diag) {
    kvant_directories directories = {0};
    kvant_status status = kvant_registry_directories(&directories, diag);
    if (status != KVANT_OK) return status;
    trail t = {0};
    uint32_t i = 0;
    for (; i < directories.count; i++) {
        char *path = kvant_plugin_path(directories.paths[i], name);
        if (path == NULL) {
            status = no_memory(diag);
            break;
        }
        const char *why_not = absence(directories.paths[i], path);
        if (why_not == NULL) {
            /* The first file decides: a later directory must not quietly stand in for one that is refused. */
            status = kvant_registry_open(path, name, loaded, diag);
            if (status != KVANT_OK) status = refused(status, name, path, &t, diag);
            free(path);
            break;
        }
        note(&t, path, why_not);
        free(path);
    }
    if (i == directories.count) status = not_found(name, &directories, &t, diag);
    kvant_text_free(&t.lines);
    kvant_directories_free(&directories);
    return status;
}

kvant_status kvant_plugin_find(const char *name, const kvant_plugin **plugin, kvant_diag *diag) {
    if (name == NULL || plugin == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_plugin_find: name or plugin is NULL");
    kvant_status status = kvant_isa_check(diag);
    if (status != KVANT_OK) return status;
    if (!kvant_is_name(name))
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_NOT_FOUND, "",
                          "\"%.64s\" cannot be the name of a codec: those are [a-z][a-z0-9_]{0,31}", name);
    kvant_registry_lock();
    const kvant_loaded *loaded = kvant_registry_by_name(name);
    if (loaded == NULL) status = search(name, &loaded, diag);
    if (status == KVANT_OK) *plugin = loaded->plugin;
    kvant_registry_unlock();
    return status;
}

/* ---- By file, by function ------------------------------------------------------------------------------ */

/* An absolute path to the same directory entry: the last component may be a link that gives the plugin its
 * name. */
static char *absolute(const char *path) {
    const char *slash = strrchr(path, '/');
    kvant_text text = {0};
    if (slash == NULL)
        kvant_text_puts(&text, ".");
    else
        kvant_text_append(&text, path, slash == path ? 1 : (size_t)(slash - path));
    char *directory = text.failed ? NULL : realpath(text.data, NULL);
    kvant_text_free(&text);
    if (directory == NULL) return NULL;
    kvant_text_printf(&text, "%s/%s", strcmp(directory, "/") != 0 ? directory : "",
                      slash != NULL ? slash + 1 : path);
    free(directory);
    if (!text.failed) return text.data;
    kvant_text_free(&text);
    return NULL;
}

static kvant_status open_file(const char *path, const char *name, const kvant_loaded **loaded,
                              kvant_diag *diag) {
    struct stat file, other;
    if (lstat(path, &file) != 0)
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_NOT_FOUND, "", "%s", strerror(errno));
    const kvant_loaded *taken = kvant_registry_by_name(name);
    if (taken != NULL && (stat(path, &other) != 0 || by_file(&other) != taken))
        return kvant_fail(diag, KVANT_ERROR_DUPLICATE, "", "codec %s is already %s%s", name,
                          taken->file[0] != '\0' ? taken->file : "registered by the application",
                          taken->file[0] != '\0' ? ", which stays open" : "");
    return kvant_registry_open(path, name, loaded, diag);
}

kvant_status kvant_plugin_open_file(const char *path, const kvant_plugin **plugin, kvant_diag *diag) {
    if (path == NULL || plugin == NULL || path[0] == '\0')
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_plugin_open_file: path or plugin is NULL or empty");
    kvant_status status = kvant_isa_check(diag);
    if (status != KVANT_OK) return status;
    char *full = absolute(path), *name = kvant_plugin_name_of(path);
    const kvant_loaded *loaded = NULL;
    if (full == NULL)
        status = kvant_fail(diag, KVANT_ERROR_PLUGIN_NOT_FOUND, "", "%s", strerror(errno));
    else if (name == NULL || !kvant_is_name(name))
        status = kvant_fail(diag, KVANT_ERROR_PLUGIN_REFUSED, "",
                            "a plugin's file is called kvant_NAME.so, with a NAME of [a-z][a-z0-9_]{0,31}");
    else {
        kvant_registry_lock();
        status = open_file(full, name, &loaded, diag);
        kvant_registry_unlock();
    }
    if (status == KVANT_OK)
        *plugin = loaded->plugin;
    else if (diag != NULL && diag->struct_size >= sizeof *diag)
        (void)snprintf(diag->file, sizeof diag->file, "%s", full != NULL ? full : path);
    free(full);
    free(name);
    return status;
}

static kvant_status enter_query(kvant_plugin_query_fn *query, kvant_diag *diag) {
    for (const kvant_loaded *entry = registry.first; entry != NULL; entry = entry->next)
        if (entry->query == query) return KVANT_OK;
    kvant_loaded entry = {.query = query};
    kvant_status status = ask(query, &entry.plugin, diag);
    if (status != KVANT_OK) return status;
    const char *name = entry.plugin->descriptor->name;
    const kvant_loaded *taken = kvant_registry_by_name(name), *loaded = NULL;
    if (taken != NULL)
        return kvant_fail(diag, KVANT_ERROR_DUPLICATE, "", "codec %s is already %s", name,
                          taken->file[0] != '\0' ? taken->file : "registered by another function");
    return enter(&entry, "", &loaded, diag);
}

kvant_status kvant_plugin_register(kvant_plugin_query_fn *query, kvant_diag *diag) {
    if (query == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_plugin_register: query is NULL");
    kvant_registry_lock();
    kvant_status status = enter_query(query, diag);
    kvant_registry_unlock();
    return status;
}

const char *kvant_plugin_file(const kvant_plugin *plugin) {
    kvant_registry_lock();
    const kvant_loaded *entry = registry.first;
    while (entry != NULL && entry->plugin != plugin) entry = entry->next;
    kvant_registry_unlock();
    return entry != NULL ? entry->file : "";
}
