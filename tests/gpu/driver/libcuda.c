/* libcuda.so.1 of the simulated device: what a program finds that looks for a driver, and how it is set up
 * from the environment. README.md lists the variables. */
#include "sim.h"
#include "sim_calls.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVER_VERSION = 13000, PER_THREAD_DEFAULT_STREAM = 2 };
enum { FOUND = 0, NOT_FOUND = 1, TOO_OLD = 2 }; /* CUdriverProcAddressQueryResult */
enum { NOT_SUPPORTED = 801 };

gpu_result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_begun;
static const char *counts_to;

/* ---- Environment --------------------------------------------------------------------------------------- */

static bool refuse(const char *name, const char *value, const char *wants) {
    (void)fprintf(stderr, "kvant's simulated driver: %s=%s: it is %s\n", name, value, wants);
    return false;
}

static bool read_device(sim_config *config) {
    const char *text = getenv("KVANT_PTX_DEVICE");
    int end = 0;
    if (text == NULL) text = "11.0";
    if (sscanf(text, "%2u.%1u%n", &config->major, &config->minor, &end) == 2 && text[end] == '\0')
        return true;
    return refuse("KVANT_PTX_DEVICE", text, "a compute capability, such as 9.0");
}

static bool read_checks(sim_config *config) {
    static const struct {
        const char *name;
        uint32_t checks;
    } known[] = {{"all", PTX_CHECK_ALL & ~PTX_CHECK_COUNT}, {"none", PTX_CHECK_NONE},
                 {"shared-init", PTX_CHECK_SHARED_INIT},    {"shared-race", PTX_CHECK_SHARED_RACE},
                 {"global-race", PTX_CHECK_GLOBAL_RACE},    {"registers", PTX_CHECK_REGISTERS}};
    const char *text = getenv("KVANT_PTX_CHECKS");
    if (text == NULL) text = "all";
    config->checks = counts_to != NULL ? PTX_CHECK_COUNT : PTX_CHECK_NONE;
    for (const char *at = text; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        size_t length = strcspn(at, ","), i = 0, count = sizeof known / sizeof known[0];
        while (i < count && (strlen(known[i].name) != length || strncmp(known[i].name, at, length) != 0)) i++;
        if (i == count)
            return refuse("KVANT_PTX_CHECKS", text,
                          "all, none, or a list of shared-init, shared-race, global-race, registers");
        config->checks |= known[i].checks;
    }
    return true;
}

static bool read_number(const char *name, uint64_t most, uint64_t *value) {
    const char *text = getenv(name);
    char *end = NULL;
    if (text == NULL) return true;
    unsigned long long number = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || number > most) return refuse(name, text, "a number");
    *value = number;
    return true;
}

static bool read_environment(sim_config *config) {
    const char *order = getenv("KVANT_PTX_ORDER"), *folders = getenv("KVANT_PTX_FOLDER");
    uint64_t seed = 0;
    counts_to = getenv("KVANT_PTX_COUNTS");
    config->folders = folders != NULL ? folders : KVANT_SIM_FOLDER;
    config->deferred = order != NULL && strcmp(order, "deferred") == 0;
    if (order != NULL && !config->deferred && strcmp(order, "eager") != 0)
        return refuse("KVANT_PTX_ORDER", order, "eager or deferred");
    if (!read_device(config) || !read_checks(config) || !read_number("KVANT_PTX_SEED", UINT32_MAX, &seed) ||
        !read_number("KVANT_PTX_MEMORY", UINT64_MAX, &config->memory_most))
        return false;
    config->seed = (uint32_t)seed;
    return true;
}

static void complain(const char *text) {
    (void)fprintf(stderr, "kvant's simulated driver: %s", text);
}

/* ---- Entry --------------------------------------------------------------------------------------------- */

/* cuInit: the one call before which there is no device. */
static gpu_result begin(unsigned flags) {
    sim_config config = {.driver_version = DRIVER_VERSION, .complain = complain};
    pthread_mutex_lock(&lock);
    if (!is_begun) is_begun = read_environment(&config) && sim_begin(&config);
    bool begun = is_begun;
    pthread_mutex_unlock(&lock);
    return begun ? sim_init(flags) : GPU_ERROR_INVALID_VALUE;
}

/* May be asked before. */
static gpu_result driver_version(int *version) {
    *version = DRIVER_VERSION;
    return GPU_SUCCESS;
}

__attribute__((visibility("default"))) gpu_result
cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    bool is_known = false;
    if (name == NULL || function == NULL || version > DRIVER_VERSION) return GPU_ERROR_INVALID_VALUE;
    if (flags == PER_THREAD_DEFAULT_STREAM) return NOT_SUPPORTED;
    void (*entry)(void) = sim_find(name, version, &is_known);
    if (strcmp(name, "cuInit") == 0) entry = (void (*)(void))begin;
    if (strcmp(name, "cuDriverGetVersion") == 0) entry = (void (*)(void))driver_version;
    if (strcmp(name, "cuGetProcAddress") == 0 && version >= 12000)
        entry = (void (*)(void))cuGetProcAddress_v2;
    memcpy(function, &entry, sizeof entry);
    if (found != NULL) *found = entry != NULL ? FOUND : is_known ? TOO_OLD : NOT_FOUND;
    return GPU_SUCCESS;
}

__attribute__((destructor)) static void end(void) {
    if (!is_begun) return;
    char *counts = counts_to != NULL ? sim_counts() : NULL;
    FILE *out = counts == NULL ? NULL : strcmp(counts_to, "stderr") == 0 ? stderr : fopen(counts_to, "w");
    if (counts != NULL && (out == NULL || fputs(counts, out) == EOF || fflush(out) != 0)) perror(counts_to);
    if (out != NULL && out != stderr) (void)fclose(out);
    free(counts);
    sim_end();
}
