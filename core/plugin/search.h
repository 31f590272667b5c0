/* Where plugins may lie: the ordered list of directories, and what makes a file or directory unfit to be
 * loaded from. No state: the registry owns what applications and the environment say. */
#ifndef KVANT_PLUGIN_SEARCH_H
#define KVANT_PLUGIN_SEARCH_H

#include <kvant/types.h>

#include <stdbool.h>
#include <sys/stat.h>

/* Absolute directories in search order. The texts belong to the list. */
typedef struct kvant_directories {
    char **paths;
    uint32_t count;
    uint32_t capacity;
} kvant_directories;

/* Appends a copy unless the same text is there already. */
kvant_status kvant_directories_append(kvant_directories *list, const char *path, size_t size,
                                      kvant_diag *diag);
void kvant_directories_free(kvant_directories *list);

/* Appends the entries of a colon-separated list. VALUE for an empty or relative entry, with key =
 * `source`; the list may then have some of them. */
kvant_status kvant_directories_append_list(kvant_directories *list, const char *text, const char *source,
                                           kvant_diag *diag);

/* The plugin directory of this installation, found from the file that the running library's code was
 * mapped from: next to libkvant.so `kvant`; for a program that has the library linked in `../lib/kvant`.
 * NULL if it cannot be told (no /proc, the file was deleted). The caller frees. */
char *kvant_install_directory(void);

/* "/DIR/kvant_NAME.so"; NULL without memory. The caller frees. */
char *kvant_plugin_path(const char *directory, const char *name);

/* The NAME in "kvant_NAME.so" at the end of a path, as a copy; NULL if the file is called otherwise or
 * without memory. */
char *kvant_plugin_name_of(const char *path);

/* Calls visit with the NAME of everything called kvant_NAME.so in a directory, in no order; whether it is
 * a name and the file a plugin is not looked at. A directory that cannot be read has none. */
void kvant_directory_scan(const char *path, void (*visit)(void *context, const char *name), void *context);

/* Sets *real to the path without symbolic links (the caller frees) and *status to what lies there.
 * PLUGIN_REFUSED: not a regular file; it, its directory or the directory that it was looked for in may be
 * written by everybody; or not an ELF shared object of this machine that is whole. The message does not
 * repeat the path. */
kvant_status kvant_plugin_file_check(const char *path, char **real, struct stat *status, kvant_diag *diag);

/* "no such directory" and the like if nothing can be found in a directory, else NULL. Static. */
const char *kvant_directory_fault(const char *path);

/* PLUGIN_REFUSED unless `file` is a shared object for this machine whose segments lie within it: the
 * loader maps segments unseen, and what is missing of a half-copied file would end the process. */
kvant_status kvant_elf_check(const char *file, kvant_diag *diag);

#endif
