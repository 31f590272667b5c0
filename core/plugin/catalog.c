/* kvant_plugin_list: everything that would be found by name, and everything that would not and why. See
 * kvant.h.
 *
 * Files are opened as kvant_plugin_find would open them, so the list tells the truth about a later search: a
 * file that is refused here hides those behind it there too.
 */
#include "plugin/registry.h"

#include "base/text.h"
#include "plugin/isa_level.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <string.h>

/* A file, or a plugin that is already in use. */
typedef struct item {
    char *name;
    char *file; /* "" = registered */
    char *reason;
    const kvant_plugin *plugin;
    kvant_status status;
    uint32_t place; /* in search order; 0 = in use before */
} item;

typedef struct catalog {
    item *items;
    uint32_t count;
    uint32_t capacity;
    const char *directory; /* that is being scanned */
    uint32_t place;
    bool failed; /* out of memory */
} catalog;

static void append(catalog *c, const char *name, const char *file, const kvant_plugin *plugin) {
    if (c->count == c->capacity) {
        uint32_t capacity = c->capacity * 2 + 16;
        item *items = realloc(c->items, capacity * sizeof *items);
        if (items == NULL) {
            c->failed = true;
            return;
        }
        c->items = items;
        c->capacity = capacity;
    }
    item *new_item = &c->items[c->count++];
    *new_item = (item){.name = strdup(name), .file = strdup(file), .plugin = plugin, .place = c->place};
    c->failed = c->failed || new_item->name == NULL || new_item->file == NULL;
}

static bool has_file(const catalog *c, const char *file) {
    for (uint32_t i = 0; i < c->count; i++)
        if (strcmp(c->items[i].file, file) == 0) return true;
    return false;
}

static void append_file(void *context, const char *name) {
    catalog *c = context;
    if (c->failed) return;
    char *file = kvant_plugin_path(c->directory, name);
    if (file == NULL)
        c->failed = true;
    else if (!has_file(c, file))
        append(c, name, file, NULL);
    free(file);
}

static int by_name_and_place(const void *a, const void *b) {
    const item *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->place > y->place) - (x->place < y->place);
}

/* Needs the lock. */
static kvant_status collect(catalog *c, kvant_diag *diag) {
    kvant_directories directories = {0};
    kvant_status status = kvant_registry_directories(&directories, diag);
    if (status != KVANT_OK) return status;
    for (const kvant_loaded *e = kvant_registry_first(); e != NULL && !c->failed; e = e->next)
        append(c, e->plugin->descriptor->name, e->file, e->plugin);
    for (uint32_t i = 0; i < directories.count; i++) {
        c->directory = directories.paths[i];
        c->place = i + 1;
        kvant_directory_scan(c->directory, append_file, c);
    }
    kvant_directories_free(&directories);
    if (c->failed) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (c->count > 0) qsort(c->items, c->count, sizeof *c->items, by_name_and_place);
    return KVANT_OK;
}

/* The first of its name. Needs the lock. */
static void open_item(item *first) {
    if (first->plugin != NULL) return;
    kvant_diag diag = {.struct_size = sizeof diag};
    const kvant_loaded *loaded = NULL;
    if (!kvant_is_name(first->name))
        first->status = kvant_fail(&diag, KVANT_ERROR_PLUGIN_REFUSED, "",
                                   "\"%.64s\" cannot be the name of a codec: those are [a-z][a-z0-9_]{0,31}",
                                   first->name);
    else
        first->status = kvant_registry_open(first->file, first->name, &loaded, &diag);
    if (first->status == KVANT_OK)
        first->plugin = loaded->plugin;
    else
        first->reason = strdup(diag.message);
}

static void shadow(item *other, const item *first) {
    kvant_text reason = {0};
    kvant_text_printf(&reason, "shadowed by %s",
                      first->file[0] != '\0' ? first->file : "the application's own");
    other->reason = reason.data;
}

static void visit_all(const catalog *c, void (*visit)(void *context, const kvant_plugin_entry *entry),
                      void *context) {
    for (uint32_t i = 0; i < c->count; i++) {
        const item *from = &c->items[i];
        kvant_plugin_entry entry = {
            .struct_size = sizeof entry,
            .status = from->status,
            .plugin = from->plugin,
            .name = from->name,
            .file = from->file,
            .reason = from->reason != NULL ? from->reason : "",
        };
        visit(context, &entry);
    }
}

kvant_status kvant_plugin_list(void (*visit)(void *context, const kvant_plugin_entry *entry), void *context,
                               kvant_diag *diag) {
    if (visit == NULL) return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_plugin_list: visit is NULL");
    kvant_status status = kvant_isa_check(diag);
    if (status != KVANT_OK) return status;
    catalog c = {0};
    kvant_registry_lock();
    status = collect(&c, diag);
    const item *first = NULL;
    for (uint32_t i = 0; status == KVANT_OK && i < c.count; i++) {
        if (first != NULL && strcmp(first->name, c.items[i].name) == 0)
            shadow(&c.items[i], first);
        else
            open_item(&c.items[i]), first = &c.items[i];
    }
    kvant_registry_unlock();
    if (status == KVANT_OK) visit_all(&c, visit, context); /* without the lock: it may call the registry */
    for (uint32_t i = 0; i < c.count; i++) {
        free(c.items[i].name);
        free(c.items[i].file);
        free(c.items[i].reason);
    }
    free(c.items);
    return status;
}
