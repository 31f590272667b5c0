/* The checks themselves. Each file check_promise_*.c holds those of one kind. */
#ifndef KVANT_CHECK_PROMISE_H
#define KVANT_CHECK_PROMISE_H

#include "check_context.h"

/* ---- Items (each begins and ends an item of its own) ------------------------------------------------- */

/* The plugin as such: descriptor, symbols, extensions. */
void check_plugin(check_worker *worker);

/* Parameter `index`: does every value of it change something? */
void check_option(check_worker *worker, uint32_t index);

/* Published error bands; for an unknown codec, that more bits are better. */
void check_bands(check_worker *worker);

/* Configuration `number`, leaving out the checks before `from`. */
void check_configuration(check_worker *worker, uint64_t number, uint32_t from);

/* ---- Checks of one configuration --------------------------------------------------------------------- */

void check_plan_is_pure(check_context *context);
void check_layout_is_sane(check_context *context);
void check_blocks(check_context *context);
void check_open(check_context *context);
void check_calibrate(check_context *context);
void check_encode(check_context *context);
void check_decode(check_context *context);
void check_finite(check_context *context);
void check_lossless(check_context *context);
void check_error(check_context *context);
void check_bits(check_context *context);
void check_repeat(check_context *context);
void check_views(check_context *context);
void check_slices(check_context *context);
void check_rounding(check_context *context);
void check_isa(check_context *context);
void check_threads(check_context *context);
void check_inspect(check_context *context);
void check_attend(check_context *context);
void check_arbitrary(check_context *context);
void check_quiet(check_context *context);

void check_gpu_plan(check_context *context);
void check_gpu_upload(check_context *context);
void check_gpu_encode(check_context *context);
void check_gpu_finite(check_context *context);
void check_gpu_decode(check_context *context);
void check_gpu_attend(check_context *context);
void check_gpu_score(check_context *context);
void check_gpu_mix(check_context *context);
void check_gpu_arbitrary(check_context *context);

/* ---- Shared ------------------------------------------------------------------------------------------ */

void check_item_begin(check_worker *worker, int64_t number);
void check_item_end(check_worker *worker);

/* Threads of this process, up to a constant. */
uint64_t check_thread_count(void);

/* Counts check `id` as run on this item and names it as what runs now; false where it is not wanted, or
 * given up. */
bool check_begin(check_worker *worker, check_id id);

/* A diag that shows whether anybody wrote to it. */
kvant_diag check_fresh_diag(void);
bool check_diag_is_fresh(const kvant_diag *diag);

/* What is wrong with a refusal, or NULL. */
const char *check_refusal_fault(kvant_status status, const kvant_diag *diag);

/* Digest of the plugin's writable data; 0 where it cannot be told. */
uint64_t check_globals_digest(const check_worker *worker);

/* True where memory and system calls belong to a sanitizer's run-time too, so that some checks would blame
 * the plugin for it. */
bool check_is_sanitized(void);

#endif
