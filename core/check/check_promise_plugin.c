/* Checks of the plugin as such: its descriptor, symbols and extensions. */
#include "check_promise.h"
#include "check_symbols.h"

#include "gpu/gpu_image.h"
#include "plugin/vet.h"

#include <kvant/kvant.h>
#include <stdio.h>
#include <string.h>

bool check_is_sanitized(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

uint64_t check_globals_digest(const check_worker *worker) {
    /* A registered plugin lives in the program, whose data are not its own. */
    if (worker->file == NULL || worker->file[0] == '\0' || check_is_sanitized()) return 0;
    return check_writable_digest((const void *)(uintptr_t)worker->plugin->encode);
}

static void look_at_descriptor(check_worker *worker) {
    const kvant_descriptor *d = worker->plugin->descriptor;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (!check_begin(worker, CHECK_DESCRIPTOR)) return;
    if (kvant_vet(worker->plugin, &diag) != KVANT_OK)
        check_fail(worker, CHECK_DESCRIPTOR, "%.1000s", diag.message);
    if (d->offers_bits != 0)
        check_note(worker, "the descriptor offers bits 0x%x, which this version does not know",
                   d->offers_bits);
    if (d->format_version == 0)
        check_fail(worker, CHECK_DESCRIPTOR, "format_version is 0: versions count from 1");
    if (worker->axes.skipped_params > 0)
        check_note(worker, "%u parameters beyond the first %d keep their defaults here",
                   worker->axes.skipped_params, CHECK_AXES - CHECK_AXIS_PARAM);
}

static void note_libm(check_worker *worker, const check_symbols *symbols) {
    if (symbols->libm_import[0] != '\0')
        check_note(worker, "needs %s of libm: nothing that encode or decode gives may depend on it",
                   symbols->libm_import);
}

static void look_at_symbols(check_worker *worker) {
    check_symbols symbols;
    if (worker->file[0] == '\0' || !check_begin(worker, CHECK_EXPORTS)) return;
    if (!check_symbols_read(worker->file, &symbols))
        check_fail(worker, CHECK_EXPORTS, "%s: the symbol table cannot be read", worker->file);
    else if (symbols.other_export[0] != '\0')
        check_fail(worker, CHECK_EXPORTS, "exports %s besides kvant_plugin_query (%u symbols in all)",
                   symbols.other_export, symbols.exported);
    else if (symbols.core_import[0] != '\0')
        check_fail(worker, CHECK_EXPORTS, "needs the symbol %s: a plugin links nothing of the core",
                   symbols.core_import);
    else if (symbols.thread_import[0] != '\0')
        check_fail(worker, CHECK_EXPORTS, "needs %s: a plugin starts no thread", symbols.thread_import);
    else if (symbols.thread_local_bytes > 0)
        check_fail(worker, CHECK_EXPORTS, "has %llu bytes of thread-local data",
                   (unsigned long long)symbols.thread_local_bytes);
    note_libm(worker, &symbols);
}

static void look_at_table(check_worker *worker, const char *id, const void *table, size_t least) {
    uint32_t size;
    memcpy(&size, table, sizeof size);
    if (size < least)
        check_fail(worker, CHECK_EXTENSION, "extension(\"%s\"): struct_size is %u, at least %zu are needed",
                   id, size, least);
    if (check_call_extension(worker, id) != table)
        check_fail(worker, CHECK_EXTENSION, "extension(\"%s\") answers differently when asked again", id);
}

static void look_at_known(check_worker *worker) {
    const kvant_descriptor *d = worker->plugin->descriptor;
    const kvant_inspect *inspect = check_call_extension(worker, KVANT_EXT_INSPECT);
    const kvant_attend *attend = check_call_extension(worker, KVANT_EXT_ATTEND);
    const kvant_calibrate *calibrate = check_call_extension(worker, KVANT_EXT_CALIBRATE);
    if (inspect != NULL) {
        look_at_table(worker, KVANT_EXT_INSPECT, inspect, sizeof *inspect);
        if (inspect->describe == NULL || inspect->read == NULL || inspect->array_count == 0)
            check_fail(worker, CHECK_EXTENSION, "kvant.inspect/1 has no array or lacks describe or read");
    }
    if (attend != NULL) {
        look_at_table(worker, KVANT_EXT_ATTEND, attend, sizeof *attend);
        bool keys = d->sides & KVANT_SIDES_KEY, values = d->sides & KVANT_SIDES_VALUE;
        if (keys && (attend->query == NULL || attend->score == NULL))
            check_fail(worker, CHECK_EXTENSION,
                       "kvant.attend/1 lacks query or score, and the codec takes keys");
        if (values && (attend->mix == NULL || attend->finish == NULL))
            check_fail(worker, CHECK_EXTENSION,
                       "kvant.attend/1 lacks mix or finish, and the codec takes values");
    }
    if (calibrate != NULL) {
        look_at_table(worker, KVANT_EXT_CALIBRATE, calibrate, sizeof *calibrate);
        if (calibrate->begin == NULL || calibrate->feed == NULL || calibrate->again == NULL ||
            calibrate->end == NULL || calibrate->free == NULL)
            check_fail(worker, CHECK_EXTENSION, "kvant.calibrate/1 lacks one of its five calls");
    }
}

/* Tables and images; what the kernels do takes a device, or an interpreter, to tell. */
static void look_at_gpu(check_worker *worker) {
    const kvant_gpu *gpu = check_call_extension(worker, KVANT_EXT_GPU);
    kvant_diag diag = {.struct_size = sizeof diag};
    if (gpu == NULL) return;
    look_at_table(worker, KVANT_EXT_GPU, gpu, sizeof *gpu);
    if (gpu_vet(gpu, &diag) != KVANT_OK)
        check_fail(worker, CHECK_EXTENSION, "kvant.gpu/1: %.1000s", diag.message);
}

static void look_at_extensions(check_worker *worker) {
    static const char *const unknown[] = {"",
                                          "kvant",
                                          "kvant.unknown/1",
                                          "kvant.inspect",
                                          "kvant.inspect/1x",
                                          "kvant.inspect/11",
                                          "kvant.inspect/2",
                                          "kvant.attend/0",
                                          "kvant.attend/1 ",
                                          "Kvant.attend/1",
                                          "kvant.shrink/1"};
    if (worker->plugin->extension == NULL || !check_begin(worker, CHECK_EXTENSION)) return;
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        if (check_call_extension(worker, unknown[i]) != NULL)
            check_fail(worker, CHECK_EXTENSION, "extension(\"%s\") is not NULL", unknown[i]);
    look_at_known(worker);
    look_at_gpu(worker);
}

void check_plugin(check_worker *worker) {
    check_item_begin(worker, -1);
    (void)check_begin(worker, CHECK_LOAD);
    look_at_descriptor(worker);
    look_at_symbols(worker);
    look_at_extensions(worker);
    check_item_end(worker);
}
