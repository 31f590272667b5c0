/* See search.h. */
#include "plugin/search.h"

#include "base/text.h"

#include <kvant/kit/diag.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where plugins lie as seen from the directory of the library, and of a program that has it linked in.
 * Packagers who place them elsewhere define these. */
#ifndef KVANT_PLUGIN_DIR_FROM_LIBRARY
#define KVANT_PLUGIN_DIR_FROM_LIBRARY "kvant"
#endif
#ifndef KVANT_PLUGIN_RELATIVE_DIR
#define KVANT_PLUGIN_RELATIVE_DIR "../lib/kvant"
#endif

static kvant_status no_memory(kvant_diag *diag) {
    return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

/* ---- Lists of directories ------------------------------------------------------------------------------ */

kvant_status kvant_directories_append(kvant_directories *list, const char *path, size_t size,
                                      kvant_diag *diag) {
    while (size > 1 && path[size - 1] == '/') size--;
    for (uint32_t i = 0; i < list->count; i++)
        if (strlen(list->paths[i]) == size && memcmp(list->paths[i], path, size) == 0) return KVANT_OK;
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity * 2 + 8;
        char **paths = realloc(list->paths, capacity * sizeof *paths);
        if (paths == NULL) return no_memory(diag);
        list->paths = paths;
        list->capacity = capacity;
    }
    char *copy = strndup(path, size);
    if (copy == NULL) return no_memory(diag);
    list->paths[list->count++] = copy;
    return KVANT_OK;
}

void kvant_directories_free(kvant_directories *list) {
    for (uint32_t i = 0; i < list->count; i++) free(list->paths[i]);
    free(list->paths);
    *list = (kvant_directories){0};
}

kvant_status kvant_directories_append_list(kvant_directories *list, const char *text, const char *source,
                                           kvant_diag *diag) {
    for (;;) {
        size_t size = strcspn(text, ":");
        if (size == 0)
            return kvant_fail(diag, KVANT_ERROR_VALUE, source,
                              "%s: an empty entry; it takes absolute directories with a colon between two",
                              source);
        if (text[0] != '/')
            return kvant_fail(diag, KVANT_ERROR_VALUE, source,
                              "%s: \"%.*s\" is relative; plugins are looked for in absolute directories only",
                              source, (int)(size < 512 ? size : 512), text);
        kvant_status status = kvant_directories_append(list, text, size, diag);
        if (status != KVANT_OK) return status;
        if (text[size] == '\0') return KVANT_OK;
        text += size + 1;
    }
}

const char *kvant_directory_fault(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0) {
        if (errno == ENOENT) return "no such directory";
        if (errno == ELOOP) return "symbolic links in a circle";
        return errno == EACCES ? "permission denied" : "cannot be read";
    }
    if (!S_ISDIR(status.st_mode)) return "not a directory";
    return access(path, R_OK | X_OK) == 0 ? NULL : "permission denied";
}

/* ---- The installation ---------------------------------------------------------------------------------- */

/* The file that the kernel mapped at `address`. The loader only knows the path that it was given, which
 * may be relative to a working directory long left. */
static char *mapped_file(const void *address) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) return NULL;
    char *line = NULL, *file = NULL;
    size_t capacity = 0;
    while (file == NULL && getline(&line, &capacity, maps) > 0) {
        unsigned long long from = 0, to = 0;
        int path = 0;
        if (sscanf(line, "%llx-%llx %*s %*s %*s %*s %n", &from, &to, &path) < 2 || path == 0) continue;
        if ((uintptr_t)address < from || (uintptr_t)address >= to) continue;
        line[strcspn(line, "\n")] = '\0';
        if (line[path] != '/') break;
        file = strdup(line + path);
        break;
    }
    free(line);
    (void)fclose(maps);
    return file;
}

char *kvant_install_directory(void) {
    Dl_info info;
    struct link_map *map = NULL;
    const void *here = (const void *)(uintptr_t)kvant_install_directory;
    if (dladdr1(here, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL) return NULL;
    bool program = map->l_name == NULL || map->l_name[0] == '\0';
    char *named = program                    ? strdup("/proc/self/exe")
                  : info.dli_fname[0] == '/' ? strdup(info.dli_fname)
                                             : mapped_file(here);
    char *file = named != NULL ? realpath(named, NULL) : NULL;
    free(named);
    if (file == NULL) return NULL;
    *strrchr(file, '/') = '\0';
    kvant_text directory = {0};
    kvant_text_printf(&directory, "%s/%s", file,
                      program ? KVANT_PLUGIN_RELATIVE_DIR : KVANT_PLUGIN_DIR_FROM_LIBRARY);
    free(file);
    if (directory.failed) {
        kvant_text_free(&directory);
        return NULL;
    }
    /* Without "..", for people who read it; as it is where nothing lies there. */
    char *clean = realpath(directory.data, NULL);
    if (clean == NULL) return directory.data;
    kvant_text_free(&directory);
    return clean;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

char *kvant_plugin_path(const char *directory, const char *name) {
    kvant_text path = {0};
    kvant_text_printf(&path, "%s/kvant_%s.so", strcmp(directory, "/") != 0 ? directory : "", name);
    if (!path.failed) return path.data;
    kvant_text_free(&path);
    return NULL;
}

char *kvant_plugin_name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    size_t size = strlen(base), prefix = strlen("kvant_"), suffix = strlen(".so");
    if (size < prefix + suffix || strncmp(base, "kvant_", prefix) != 0 ||
        strcmp(base + size - suffix, ".so") != 0)
        return NULL;
    return strndup(base + prefix, size - prefix - suffix);
}

void kvant_directory_scan(const char *path, void (*visit)(void *context, const char *name), void *context) {
    DIR *directory = opendir(path);
    if (directory == NULL) return;
    for (const struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        char *name = kvant_plugin_name_of(entry->d_name);
        if (name != NULL) visit(context, name);
        free(name);
    }
    (void)closedir(directory);
}

static kvant_status refuse(kvant_diag *diag, const char *reason) {
    return kvant_fail(diag, KVANT_ERROR_PLUGIN_REFUSED, "", "%s", reason);
}

/* Of the directory that a path lies in. */
static kvant_status check_directory_of(const char *path, kvant_diag *diag) {
    char *directory = strdup(path);
    if (directory == NULL) return no_memory(diag);
    char *slash = strrchr(directory, '/');
    if (slash != NULL) slash[slash == directory ? 1 : 0] = '\0';
    struct stat status;
    kvant_status result = KVANT_OK;
    if (stat(directory, &status) != 0)
        result = kvant_fail(diag, KVANT_ERROR_PLUGIN_REFUSED, "", "its directory %s cannot be looked at: %s",
                            directory, strerror(errno));
    else if ((status.st_mode & S_IWOTH) != 0)
        result = kvant_fail(
            diag, KVANT_ERROR_PLUGIN_REFUSED, "",
            "everybody may write to its directory %s, so anybody may have put it there; chmod o-w it",
            directory);
    free(directory);
    return result;
}

static const char *kind(mode_t mode) {
    if (S_ISDIR(mode)) return "it is a directory, not a regular file";
    if (S_ISFIFO(mode)) return "it is a FIFO, not a regular file";
    if (S_ISSOCK(mode)) return "it is a socket, not a regular file";
    return "it is a device, not a regular file";
}

static kvant_status check_real_file(const char *path, const char *real, struct stat *status,
                                    kvant_diag *diag) {
    if (stat(real, status) != 0) return refuse(diag, strerror(errno));
    if (!S_ISREG(status->st_mode)) return refuse(diag, kind(status->st_mode));
    if ((status->st_mode & S_IWOTH) != 0) return refuse(diag, "everybody may write to it; chmod o-w it");
    /* Both where it was found and where links lead: whoever can write to either chooses the code. */
    kvant_status result = check_directory_of(path, diag);
    if (result == KVANT_OK) result = check_directory_of(real, diag);
    return result != KVANT_OK ? result : kvant_elf_check(real, diag);
}

kvant_status kvant_plugin_file_check(const char *path, char **real, struct stat *status, kvant_diag *diag) {
    *real = realpath(path, NULL);
    if (*real == NULL) {
        if (errno == ELOOP) return refuse(diag, "symbolic links in a circle");
        if (errno == ENOENT) return refuse(diag, "a symbolic link to nothing");
        return refuse(diag, strerror(errno));
    }
    kvant_status result = check_real_file(path, *real, status, diag);
    if (result != KVANT_OK) {
        free(*real);
        *real = NULL;
    }
    return result;
}
