/* What the simulated device runs of an image: PTX as it is; of a fat binary the PTX that the build left
 * beside the file with the same bytes (cmake/KvantCuda.cmake: <name>.fatbin, <name>.compute_<nn>.ptx). */
#include "sim_state.h"

#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FATBIN_MAGIC = (int)0xba55ed50u, FATBIN_HEADER = 16, PATH_ROOM = 512 };

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    char *bytes = NULL;
    if (file == NULL) return NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long length = ftell(file);
        rewind(file);
        bytes = length >= 0 ? calloc(1, (size_t)length + 1) : NULL;
        if (bytes != NULL && fread(bytes, 1, (size_t)length, file) != (size_t)length) {
            free(bytes);
            bytes = NULL;
        }
        *size = length >= 0 ? (size_t)length : 0;
    }
    (void)fclose(file);
    return bytes;
}

static bool has_bytes(const char *path, const void *bytes, size_t size) {
    size_t length = 0;
    char *file = read_file(path, &length);
    bool same = file != NULL && length == size && memcmp(file, bytes, size) == 0;
    free(file);
    return same;
}

/* The first file below the folders whose name ends so and whose bytes are these. */
static bool find_file(const char *ending, const void *bytes, size_t size, char path[static PATH_ROOM]) {
    char *folders = strdup(sim.config.folders != NULL ? sim.config.folders : ""), *rest = folders;
    bool found = false;
    for (char *folder = strsep(&rest, ":"); folder != NULL && !found; folder = strsep(&rest, ":")) {
        char *roots[] = {folder, NULL};
        FTS *walk = folder[0] != '\0' ? fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
        for (FTSENT *e = walk != NULL ? fts_read(walk) : NULL; e != NULL && !found; e = fts_read(walk)) {
            size_t length = strlen(e->fts_path), tail = strlen(ending);
            if (e->fts_info != FTS_F || length < tail || strcmp(e->fts_path + length - tail, ending) != 0 ||
                length >= PATH_ROOM || e->fts_statp->st_size != (off_t)size)
                continue;
            found = has_bytes(e->fts_path, bytes, size);
            if (found) (void)snprintf(path, PATH_ROOM, "%s", e->fts_path);
        }
        if (walk != NULL) (void)fts_close(walk);
    }
    free(folders);
    return found;
}

/* ---- PTX ----------------------------------------------------------------------------------------------- */

static gpu_result take_ptx(const char *image, char **text, char *name, size_t name_size) {
    char path[PATH_ROOM];
    const char *target = strstr(image, ".target sm_");
    unsigned long capability = 10 * sim.config.major + sim.config.minor;
    sim.totals.was_ptx = true;
    if (target == NULL || strstr(image, ".version") == NULL)
        return sim_misuse(GPU_ERROR_INVALID_IMAGE, "cuLibraryLoadData: neither PTX nor a fat binary");
    char *end = NULL;
    unsigned long wants = strtoul(target + strlen(".target sm_"), &end, 10);
    if (wants > capability || (*end == 'a' && wants != capability))
        return sim_misuse(GPU_ERROR_INVALID_PTX, "cuLibraryLoadData: PTX for sm_%lu%s on a device of %u.%u",
                          wants, *end == 'a' ? "a" : "", sim.config.major, sim.config.minor);
    if (find_file(".ptx", image, strlen(image), path))
        (void)snprintf(name, name_size, "%s", path);
    else
        (void)snprintf(name, name_size, "PTX image %u", ++sim.library_number);
    *text = strdup(image);
    return *text != NULL ? GPU_SUCCESS : GPU_ERROR_OUT_OF_MEMORY;
}

/* ---- Fat binaries -------------------------------------------------------------------------------------- */

static gpu_result take_fatbin(const char *image, char **text, char *name, size_t name_size) {
    char path[PATH_ROOM];
    uint16_t header = 0;
    uint64_t body = 0;
    const unsigned capability = 10 * sim.config.major + sim.config.minor;
    memcpy(&header, image + 6, sizeof header);
    memcpy(&body, image + 8, sizeof body);
    sim.totals.was_ptx = false;
    if (!find_file(".fatbin", image, header + body, path))
        return sim_misuse(
            GPU_ERROR_NO_BINARY_FOR_GPU,
            "cuLibraryLoadData: no file *.fatbin below %s is this fat binary, so its PTX cannot be "
            "found; set KVANT_PTX_FOLDER to the folder where it was built, or KVANT_PTX_DEVICE=11.0 "
            "to be given PTX",
            sim.config.folders != NULL ? sim.config.folders : "(no folder)");
    /* A cubin runs on later devices of its major version. */
    path[strlen(path) - strlen(".fatbin")] = '\0';
    for (unsigned n = capability; n >= 10 * sim.config.major && *text == NULL; n--) {
        size_t size = 0;
        (void)snprintf(name, name_size, "%s.compute_%u.ptx", path, n);
        *text = read_file(name, &size);
    }
    if (*text != NULL) return GPU_SUCCESS;
    return sim_misuse(GPU_ERROR_NO_BINARY_FOR_GPU,
                      "cuLibraryLoadData: no file %s.compute_<nn>.ptx for a device of %u.%u", path,
                      sim.config.major, sim.config.minor);
}

gpu_result sim_image_text(const void *image, char **text, char *name, size_t name_size) {
    int magic = 0;
    if (image == NULL) return GPU_ERROR_INVALID_VALUE;
    if (*(const char *)image != '\0' && ((const char *)image)[1] != '\0' && ((const char *)image)[2] != '\0')
        memcpy(&magic, image, sizeof magic);
    return magic == FATBIN_MAGIC ? take_fatbin(image, text, name, name_size)
                                 : take_ptx(image, text, name, name_size);
}
