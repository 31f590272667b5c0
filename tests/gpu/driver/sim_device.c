/* The simulated device: its lock, what every call passes, contexts, attributes. */
#include "sim_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MULTIPROCESSORS = 3, DRIVER_VERSION = 13000 };

sim_device sim;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local uint32_t contexts; /* all of them the same */

/* ---- Begin and end ------------------------------------------------------------------------------------- */

bool sim_begin(const sim_config *config) {
    memset(&sim, 0, sizeof sim);
    sim.config = *config;
    sim.legacy.is_blocking = true;
    sim.pending_end = &sim.pending;
    sim.random = config->seed;
    sim.config.folders = config->folders != NULL ? strdup(config->folders) : NULL;
    sim.totals.machine = ptx_machine_create();
    if (sim.config.memory_most == 0) sim.config.memory_most = (uint64_t)4 << 30;
    if (sim.config.driver_version == 0) sim.config.driver_version = DRIVER_VERSION;
    if (sim.config.resident == 0) sim.config.resident = 2;
    if (sim.config.shared_most == 0) {
        uint32_t capability = 10 * config->major + config->minor, kib = 227;
        if (capability == 80 || capability == 87) kib = 163;
        if (capability == 86 || capability == 89 || config->major == 12) kib = 99;
        if (capability == 75) kib = 64;
        sim.config.shared_most = kib << 10;
    }
    contexts = 0;
    sim.is_started = sim.totals.machine != NULL && (config->folders == NULL || sim.config.folders != NULL);
    return sim.is_started;
}

void sim_end(void) {
    sim_stream_end();
    sim_graph_end();
    sim_code_end();
    sim_memory_end();
    ptx_machine_destroy(sim.totals.machine);
    free((char *)(uintptr_t)sim.config.folders);
    free(sim.complaint);
    free(sim.said);
    memset(&sim, 0, sizeof sim);
}

sim_config *sim_settings(void) {
    return &sim.config;
}

const sim_totals *sim_state(void) {
    sim.totals.contexts = contexts;
    return &sim.totals;
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

gpu_result sim_misuse(gpu_result result, const char *format, ...) {
    size_t before = sim.complaint != NULL ? strlen(sim.complaint) : 0;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *text = length > 0 ? realloc(sim.complaint, before + (size_t)length + 2) : NULL;
    if (text == NULL) return result;
    va_start(arguments, format);
    (void)vsnprintf(text + before, (size_t)length + 1, format, arguments);
    va_end(arguments);
    if (text[before + (size_t)length - 1] != '\n') memcpy(text + before + length, "\n", 2);
    sim.complaint = text;
    return result;
}

gpu_result sim_enter(const char *call, unsigned rules) {
    gpu_result result = GPU_SUCCESS;
    sim_capture *capture = NULL;
    pthread_mutex_lock(&lock);
    if (!sim.is_started) return SIM_ERROR_NOT_INITIALIZED;
    if ((rules & SIM_CONTEXT) != 0 && contexts == 0)
        return sim_misuse(SIM_ERROR_INVALID_CONTEXT, "%s without a current context", sim_call_name(call));
    if (sim.config.before != NULL && sim.config.before(call, &result)) return result;
    if ((rules & SIM_UNSAFE) != 0 && sim_capture_forbids(&capture))
        return sim_capture_spoil(capture, SIM_ERROR_CAPTURE_UNSUPPORTED, sim_call_name(call));
    if ((rules & SIM_WORK) == SIM_WORK) sim_wander();
    return GPU_SUCCESS;
}

/* Hooks may not return, so nothing is held then. */
gpu_result sim_leave(const char *call, unsigned rules, gpu_result result) {
    void (*complain)(const char *) = sim.config.complain;
    void (*after)(const char *) = sim.config.after;
    char *complaint = sim.complaint;
    if (complaint != NULL) {
        free(sim.said);
        sim.said = complaint;
        sim.complaint = NULL;
    }
    if (result == GPU_SUCCESS && (rules & SIM_STICKY) != 0) result = sim.broken;
    sim.totals.contexts = contexts;
    if (after != NULL) after(call);
    if (complaint != NULL && complain == NULL) (void)fputs(complaint, stderr);
    pthread_mutex_unlock(&lock);
    if (complaint != NULL && complain != NULL) complain(complaint);
    return result;
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

SIM_CALL(SIM_ANYHOW, init, (unsigned flags), (flags)) {
    if (flags != 0) return GPU_ERROR_INVALID_VALUE;
    return sim.config.no_device ? GPU_ERROR_NO_DEVICE : GPU_SUCCESS;
}

SIM_CALL(SIM_ANYHOW, driver_version, (int *version), (version)) {
    *version = sim.config.driver_version;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_ANYHOW, device_count, (int *count), (count)) {
    *count = sim.config.no_device ? 0 : 1;
    return GPU_SUCCESS;
}

static gpu_result need_device(gpu_device_number device) {
    return device == 0 && !sim.config.no_device ? GPU_SUCCESS : SIM_ERROR_INVALID_DEVICE;
}

SIM_CALL(SIM_ANYHOW, device_get, (gpu_device_number * device, int ordinal), (device, ordinal)) {
    *device = ordinal;
    return need_device(ordinal);
}

SIM_CALL(SIM_ANYHOW, device_name, (char *name, int size, gpu_device_number device), (name, size, device)) {
    gpu_result result = need_device(device);
    if (result == GPU_SUCCESS && size <= 0) result = GPU_ERROR_INVALID_VALUE;
    if (result == GPU_SUCCESS) (void)snprintf(name, (size_t)size, "PTX interpreter");
    return result;
}

SIM_CALL(SIM_ANYHOW, device_attribute, (int *value, int attribute, gpu_device_number device),
         (value, attribute, device)) {
    const struct {
        int attribute, value;
    } known[] = {
        {1, 1024}, /* threads of a block, all and by dimension; the grid's dimensions */
        {2, 1024},
        {3, 1024},
        {4, 64},
        {5, 0x7fffffff},
        {6, 65535},
        {7, 65535},
        {8, SIM_SHARED_UNASKED},
        {9, 64 << 10}, /* constants */
        {10, 32},      /* lanes of a warp */
        {12, 64 << 10} /* registers of a block */,
        {13, 1000000}, /* kHz */
        {GPU_ATTRIBUTE_MULTIPROCESSORS, MULTIPROCESSORS},
        {36, 1000000}, /* kHz of the memory, whose bus has so many bits, and its cache so many bytes */
        {37, 256},
        {38, 1 << 20},
        {39, 2048}, /* threads of a multiprocessor */
        {41, 1},    /* unified addresses */
        {GPU_ATTRIBUTE_MAJOR, (int)sim.config.major},
        {GPU_ATTRIBUTE_MINOR, (int)sim.config.minor},
        {81, (int)sim.config.shared_most + 1024}, /* shared memory, registers of a multiprocessor */
        {82, 64 << 10},
        {GPU_ATTRIBUTE_SHARED_OPTIN, (int)sim.config.shared_most}};
    gpu_result result = need_device(device);
    for (size_t i = 0; i < sizeof known / sizeof known[0] && result == GPU_SUCCESS; i++) {
        if (known[i].attribute != attribute) continue;
        *value = known[i].value;
        return GPU_SUCCESS;
    }
    if (result != GPU_SUCCESS) return result;
    return sim_misuse(GPU_ERROR_INVALID_VALUE, "cuDeviceGetAttribute: attribute %d is not simulated",
                      attribute);
}

SIM_CALL(SIM_ANYHOW, device_memory, (size_t * bytes, gpu_device_number device), (bytes, device)) {
    *bytes = sim.config.memory_most;
    return need_device(device);
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

SIM_CALL(SIM_ANYHOW, primary_retain, (gpu_context * context, gpu_device_number device), (context, device)) {
    gpu_result result = need_device(device);
    if (result != GPU_SUCCESS) return result;
    sim.totals.retained++;
    *context = &sim.context;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_ANYHOW, primary_release, (gpu_device_number device), (device)) {
    gpu_result result = need_device(device);
    if (result != GPU_SUCCESS) return result;
    if (sim.totals.retained == 0)
        return sim_misuse(SIM_ERROR_INVALID_CONTEXT,
                          "cuDevicePrimaryCtxRelease of a context that is not retained");
    sim.totals.retained--;
    return GPU_SUCCESS;
}

static gpu_result need_context(gpu_context context, const char *call) {
    if (context == &sim.context && sim.totals.retained > 0) return GPU_SUCCESS;
    return sim_misuse(SIM_ERROR_INVALID_CONTEXT, "%s: %s", call,
                      context == &sim.context ? "nobody retains the context any more" : "no context");
}

SIM_CALL(SIM_ANYHOW, context_push, (gpu_context context), (context)) {
    gpu_result result = need_context(context, "cuCtxPushCurrent");
    if (result == GPU_SUCCESS) contexts++;
    return result;
}

SIM_CALL(SIM_CONTEXT, context_pop, (gpu_context * context), (context)) {
    contexts--;
    if (context != NULL) *context = &sim.context;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_ANYHOW, context_set, (gpu_context context), (context)) {
    gpu_result result = context != NULL ? need_context(context, "cuCtxSetCurrent") : GPU_SUCCESS;
    if (result != GPU_SUCCESS) return result;
    if (context != NULL && contexts == 0) contexts = 1;
    if (context == NULL && contexts > 0) contexts--;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_ANYHOW, context_get, (gpu_context * context), (context)) {
    *context = contexts > 0 ? &sim.context : NULL;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_CONTEXT, context_device, (gpu_device_number * device), (device)) {
    *device = 0;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_WORK | SIM_UNSAFE, context_synchronize, (void), ()) {
    return sim_finish(0);
}
