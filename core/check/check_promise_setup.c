/* Checks of the calls that set up: plan, its layout, block_tokens, open. */
#include "check_learn.h"
#include "check_promise.h"

#include "plugin/fpenv.h"

#include <kvant/kvant.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PLAN_THREADS = 4, PLAN_CALLS = 50, MAX_BYTES = 1 << 30 };

kvant_diag check_fresh_diag(void) {
    kvant_diag diag;
    memset(&diag, 0x5a, sizeof diag);
    diag.struct_size = sizeof diag;
    return diag;
}

bool check_diag_is_fresh(const kvant_diag *diag) {
    kvant_diag fresh = check_fresh_diag();
    return memcmp(diag, &fresh, sizeof fresh) == 0;
}

const char *check_refusal_fault(kvant_status status, const kvant_diag *diag) {
    if (status > 0) return "its status is positive: errors are negative";
    if (strcmp(kvant_status_text(status), kvant_status_text(1)) == 0) return "its status is none of types.h";
    if (check_diag_is_fresh(diag))
        return "the diag was not filled: key and message must say which rule was broken";
    if (memchr(diag->message, '\0', sizeof diag->message) == NULL ||
        memchr(diag->key, '\0', sizeof diag->key) == NULL)
        return "a string of the diag does not end";
    if (diag->message[0] == '\0') return "the diag's message is empty";
    if (strchr(diag->message, '\n') != NULL) return "the diag's message is more than one line";
    return NULL;
}

/* plan with the setup, its values and the layout between guard pages. */
static kvant_status guarded_plan(check_worker *worker, const check_case *c, kvant_layout *layout,
                                 kvant_diag *diag) {
    check_buffer setup, values, answer;
    size_t values_size = c->setup.value_count * sizeof *c->values;
    if (!check_buffer_create(&worker->buffers, &setup, "setup", sizeof(kvant_setup), 8, 0) ||
        !check_buffer_create(&worker->buffers, &values, "setup.values", values_size, 8, 0) ||
        !check_buffer_create(&worker->buffers, &answer, "layout", sizeof(kvant_layout), 8, 0))
        check_out_of_memory();
    memcpy(values.data, c->values, values_size);
    kvant_setup copy = c->setup;
    copy.values = (const kvant_value *)(const void *)values.data;
    memcpy(setup.data, &copy, sizeof copy);
    check_buffer_protect(&setup, true);
    check_buffer_protect(&values, true);
    kvant_layout zero = {.struct_size = sizeof zero};
    memcpy(answer.data, &zero, sizeof zero);
    kvant_status status = check_call_plan(worker, (const kvant_setup *)(const void *)setup.data,
                                          (kvant_layout *)(void *)answer.data, diag);
    memcpy(layout, answer.data, sizeof *layout);
    ptrdiff_t offset;
    if (check_buffer_damaged(&answer, &offset))
        check_fail(worker, CHECK_BOUNDS, "plan wrote at offset %td of a layout of %zu bytes", offset,
                   answer.size);
    check_buffer_free(&worker->buffers, &setup);
    check_buffer_free(&worker->buffers, &values);
    check_buffer_free(&worker->buffers, &answer);
    return status;
}

typedef struct plan_thread {
    const kvant_plugin *plugin;
    const kvant_setup *setup;
    const kvant_layout *layout;
    kvant_status status;
    bool differs;
} plan_thread;

static void *plan_often(void *argument) {
    plan_thread *self = argument;
    kvant_fp_state saved = kvant_fp_enter();
    for (uint32_t i = 0; i < PLAN_CALLS; i++) {
        kvant_layout layout = {.struct_size = sizeof layout};
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_status status = self->plugin->plan(self->setup, &layout, &diag);
        if (status != self->status || memcmp(&layout, self->layout, sizeof layout) != 0) self->differs = true;
    }
    kvant_fp_leave(saved);
    return NULL;
}

static void plan_from_threads(check_context *context, kvant_status status) {
    pthread_t threads[PLAN_THREADS];
    plan_thread self[PLAN_THREADS];
    for (uint32_t i = 0; i < PLAN_THREADS; i++) {
        self[i] = (plan_thread){context->worker->plugin, &context->configuration.setup, &context->layout,
                                status, false};
        if (pthread_create(&threads[i], NULL, plan_often, &self[i]) != 0) check_out_of_memory();
    }
    bool differs = false;
    for (uint32_t i = 0; i < PLAN_THREADS; i++) {
        (void)pthread_join(threads[i], NULL);
        differs = differs || self[i].differs;
    }
    if (differs)
        check_fail(context->worker, CHECK_PLAN, "plan answers differently when many threads call it at once");
}

/* A diag of an older host: nothing behind its struct_size may be written. */
static void refuse_small_diag(check_context *context) {
    check_worker *worker = context->worker;
    check_buffer small;
    ptrdiff_t offset;
    const uint32_t head[2] = {sizeof head, 0};
    if (!check_buffer_create(&worker->buffers, &small, "diag", sizeof head, 8, 0)) check_out_of_memory();
    memcpy(small.data, head, sizeof head);
    kvant_layout layout = {.struct_size = sizeof layout};
    (void)check_call_plan(worker, &context->configuration.setup, &layout, (kvant_diag *)(void *)small.data);
    if (check_buffer_damaged(&small, &offset))
        check_fail(worker, CHECK_BOUNDS, "plan wrote at offset %td of a diag whose struct_size is 8", offset);
    check_buffer_free(&worker->buffers, &small);
}

static void look_at_refusal(check_context *context, kvant_status status, const kvant_diag *diag) {
    check_worker *worker = context->worker;
    const char *fault = check_refusal_fault(status, diag);
    refuse_small_diag(context);
    const kvant_layout *layout = &context->layout;
    if (fault != NULL)
        check_fail(worker, CHECK_PLAN, "plan refuses with status %d, and %s", status, fault);
    else if (status == KVANT_ERROR_BLOCK_TOKENS &&
             (layout->block_multiple == 0 ||
              context->configuration.setup.block_tokens % layout->block_multiple == 0))
        check_fail(worker, CHECK_PLAN,
                   "plan refuses %u block_tokens as no multiple and says block_multiple %u",
                   context->configuration.setup.block_tokens, layout->block_multiple);
    else if (status == KVANT_ERROR_MISSING && (layout->block_multiple == 0 || layout->alignment == 0))
        check_fail(worker, CHECK_PLAN,
                   "plan misses an artifact and does not fill alignment and block_multiple");
    context->over = true;
    if (check_has_failed(worker, CHECK_PLAN) || !(worker->ran >> CHECK_PLAN & 1)) return;
    worker->ran &= ~((uint64_t)1 << CHECK_PLAN);
    atomic_fetch_add(&worker->board->tallies[CHECK_PLAN].refused, 1);
}

/* plan refuses for want of an artifact, says what it must all the same, and gets one. */
static void look_at_missing(check_context *context) {
    check_worker *worker = context->worker;
    check_case *c = &context->configuration;
    kvant_diag diag = check_fresh_diag();
    kvant_status status = check_call_plan(worker, &c->setup, &context->layout, &diag);
    const char *fault = status == KVANT_ERROR_MISSING ? check_refusal_fault(status, &diag) : NULL;
    if (fault != NULL) check_fail(worker, CHECK_PLAN, "plan misses an artifact, and %s", fault);
    if (context->layout.block_multiple == 0 || context->layout.alignment == 0)
        check_fail(worker, CHECK_PLAN,
                   "plan misses an artifact and does not fill alignment and block_multiple");
    if (check_learn(worker, c, NULL) == KVANT_OK) (void)check_fit(worker, c, &context->layout, NULL);
}

void check_plan_is_pure(check_context *context) {
    check_worker *worker = context->worker;
    check_case *c = &context->configuration, copy;
    /* What the layout depends on is learned first; a refusal must come all the same (look_at_missing). */
    if (check_fit(worker, c, &context->layout, NULL) == KVANT_ERROR_MISSING) look_at_missing(context);
    check_case_text(&worker->axes, &context->row, c, worker->slot->text, CHECK_TEXT);
    kvant_diag diag = check_fresh_diag(), again_diag = check_fresh_diag();
    kvant_status status = guarded_plan(worker, c, &context->layout, &diag);
    if (status == KVANT_OK && !check_diag_is_fresh(&diag))
        check_fail(worker, CHECK_PLAN, "plan accepted and wrote to the diag");
    kvant_layout again;
    if (!check_case_copy(c, &copy)) check_out_of_memory();
    kvant_status again_status = guarded_plan(worker, &copy, &again, &again_diag);
    if (again_status != status)
        check_fail(worker, CHECK_PLAN, "plan answers %d, then %d to an equal setup at another address",
                   status, again_status);
    else if (memcmp(&again, &context->layout, sizeof again) != 0)
        check_fail(worker, CHECK_PLAN, "plan fills another layout for an equal setup at another address");
    again_status = guarded_plan(worker, &copy, &again, NULL);
    if (again_status != status)
        check_fail(worker, CHECK_PLAN, "plan answers %d, and %d without a diag", status, again_status);
    check_case_free(&copy);
    if (worker->number % 16 == 0) plan_from_threads(context, status);
    if (status != KVANT_OK) look_at_refusal(context, status, &diag);
}

#define LAYOUT(condition, ...)                                                                               \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            check_fail(context->worker, CHECK_LAYOUT, __VA_ARGS__);                                          \
            context->over = true;                                                                            \
        }                                                                                                    \
    } while (0)

static void look_at_sizes(check_context *context) {
    const kvant_layout *l = &context->layout;
    uint64_t largest = check_layout_largest(l);
    uint32_t tokens = context->configuration.setup.block_tokens;
    LAYOUT(l->struct_size == sizeof *l, "layout.struct_size became %u", l->struct_size);
    LAYOUT(l->alignment > 0 && l->alignment <= 4096 && (l->alignment & (l->alignment - 1)) == 0,
           "alignment %u is no power of two from 1 to 4096", l->alignment);
    LAYOUT(l->block_multiple > 0 && tokens % l->block_multiple == 0,
           "%u block_tokens were accepted and block_multiple is %u", tokens, l->block_multiple);
    LAYOUT(l->size_min > 0, "size_min is 0");
    LAYOUT((l->size_steps == 0) == (l->size_step == 0), "size_step is %llu with %llu size_steps",
           (unsigned long long)l->size_step, (unsigned long long)l->size_steps);
    LAYOUT(largest >= l->size_min && largest <= MAX_BYTES,
           "the largest extent is %llu bytes for %zu elements", (unsigned long long)largest,
           context->elements);
    LAYOUT(l->state_bytes <= MAX_BYTES && l->scratch_bytes <= MAX_BYTES,
           "state_bytes is %llu and scratch_bytes %llu: more than 1 GiB", (unsigned long long)l->state_bytes,
           (unsigned long long)l->scratch_bytes);
    if (context->over) return;
    uint64_t bits = l->payload_bits + l->metadata_bits;
    uint64_t last = bits + l->size_steps * (l->payload_bits_step + l->metadata_bits_step);
    LAYOUT(l->payload_bits <= 8 * l->size_min && l->metadata_bits <= 8 * l->size_min &&
               bits <= 8 * l->size_min,
           "payload_bits %llu and metadata_bits %llu do not fit in size_min %llu",
           (unsigned long long)l->payload_bits, (unsigned long long)l->metadata_bits,
           (unsigned long long)l->size_min);
    LAYOUT(last <= 8 * largest, "%llu bits with all steps do not fit in %llu bytes", (unsigned long long)last,
           (unsigned long long)largest);
    LAYOUT(last > 0, "payload_bits and metadata_bits are 0");
}

static void look_at_flags(check_context *context) {
    const kvant_layout *l = &context->layout;
    const kvant_setup *setup = &context->configuration.setup;
    bool attends = l->flags & KVANT_LAYOUT_ATTEND;
    uint32_t known = KVANT_LAYOUT_KEYS_BEFORE_ROPE | KVANT_LAYOUT_LOSSLESS | KVANT_LAYOUT_ATTEND;
    LAYOUT((l->flags & ~known) == 0, "flags 0x%x do not exist", l->flags);
    LAYOUT(!(l->flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE) || setup->side == KVANT_SIDE_KEY,
           "KEYS_BEFORE_ROPE is set for values");
    LAYOUT(l->isa <= setup->isa && (l->isa == 0 || l->isa / 32 == setup->isa / 32),
           "isa is %u where %u is the highest allowed", l->isa, setup->isa);
    LAYOUT(!attends || check_call_extension(context->worker, KVANT_EXT_ATTEND) != NULL,
           "ATTEND is set and there is no extension " KVANT_EXT_ATTEND);
    LAYOUT(l->mix_width == 0 || (attends && setup->side == KVANT_SIDE_VALUE),
           "mix_width is %u where nothing is mixed", l->mix_width);
    LAYOUT(l->query_state_bytes % 64 == 0, "query_state_bytes %llu is no multiple of 64",
           (unsigned long long)l->query_state_bytes);
    LAYOUT(isfinite(l->attend_tolerance) && l->attend_tolerance >= 0, "attend_tolerance is %g",
           l->attend_tolerance);
    bool tags = context->worker->plugin->descriptor->requires_bits & KVANT_REQUIRES_TAGS;
    for (uint32_t i = 0; i < 256 && !tags; i++)
        LAYOUT(l->tag_class[i] == 0, "tag_class[%u] is %u, and the codec does not ask for tags", i,
               l->tag_class[i]);
}

/* What neither isa nor a reading parameter may change, by name. */
static const char *layouts_differ(const kvant_layout *a, const kvant_layout *b) {
    if ((a->flags ^ b->flags) & ~(uint32_t)KVANT_LAYOUT_ATTEND) return "flags";
    if (a->alignment != b->alignment) return "alignment";
    if (a->block_multiple != b->block_multiple) return "block_multiple";
    if (a->size_min != b->size_min || a->size_step != b->size_step || a->size_steps != b->size_steps)
        return "sizes";
    if (a->payload_bits != b->payload_bits || a->payload_bits_step != b->payload_bits_step)
        return "payload_bits";
    if (a->metadata_bits != b->metadata_bits || a->metadata_bits_step != b->metadata_bits_step)
        return "metadata_bits";
    if (memcmp(a->tag_class, b->tag_class, sizeof a->tag_class) != 0) return "tag_class";
    return NULL;
}

static void look_at_dependence(check_context *context) {
    check_worker *worker = context->worker;
    check_case *c = &context->configuration;
    kvant_setup changed = c->setup;
    kvant_layout other = {.struct_size = sizeof other};
    changed.isa = c->setup.isa == KVANT_ISA_SCALAR ? kvant_isa() : (uint32_t)KVANT_ISA_SCALAR;
    kvant_status status = check_call_plan(worker, &changed, &other, NULL);
    const char *member = status == KVANT_OK ? layouts_differ(&other, &context->layout) : "the status";
    LAYOUT(member == NULL, "%s depends on setup.isa", member);
    for (uint32_t a = CHECK_AXIS_PARAM; a < worker->axes.count; a++) {
        const check_axis *axis = &worker->axes.axis[a];
        if (axis->param == NULL || !(axis->param->flags & KVANT_PARAM_READING)) continue;
        kvant_value kept = c->values[axis->param_index];
        c->values[axis->param_index] = axis->values[(context->row.value[a] + 1u) % axis->count];
        other = (kvant_layout){.struct_size = sizeof other};
        status = check_call_plan(worker, &c->setup, &other, NULL);
        member = status == KVANT_OK ? layouts_differ(&other, &context->layout) : NULL;
        c->values[axis->param_index] = kept;
        LAYOUT(member == NULL, "%s depends on %s, which is declared as reading only", member, axis->name);
    }
}

void check_layout_is_sane(check_context *context) {
    context->elements = (size_t)check_case_elements(&context->configuration);
    look_at_sizes(context);
    if (!context->over) look_at_flags(context);
    if (!context->over) look_at_dependence(context);
}

/* One block_tokens: what plan says, and whether that keeps the rule. */
static void try_block(check_context *context, uint32_t tokens) {
    check_worker *worker = context->worker;
    uint32_t multiple = context->layout.block_multiple;
    kvant_setup setup = context->configuration.setup;
    setup.block_tokens = tokens;
    kvant_layout layout = {.struct_size = sizeof layout};
    kvant_diag diag = check_fresh_diag();
    kvant_status status = check_call_plan(worker, &setup, &layout, &diag);
    bool fits = tokens % multiple == 0;
    if (fits && status == KVANT_ERROR_BLOCK_TOKENS)
        check_fail(worker, CHECK_BLOCKS,
                   "%u block_tokens, a multiple of block_multiple %u, are refused as none: %.200s", tokens,
                   multiple, check_diag_is_fresh(&diag) ? "" : diag.message);
    else if (!fits && status == KVANT_OK)
        check_fail(worker, CHECK_BLOCKS, "%u block_tokens, no multiple of block_multiple %u, are accepted",
                   tokens, multiple);
    else if (!fits && status != KVANT_ERROR_BLOCK_TOKENS && status != KVANT_ERROR_GEOMETRY)
        check_fail(worker, CHECK_BLOCKS,
                   "%u block_tokens, no multiple of block_multiple %u, are refused with %d (%s)", tokens,
                   multiple, status, kvant_status_text(status));
    else if (status == KVANT_ERROR_BLOCK_TOKENS && layout.block_multiple != multiple)
        check_fail(worker, CHECK_BLOCKS,
                   "refusing %u block_tokens, plan says block_multiple %u instead of %u", tokens,
                   layout.block_multiple, multiple);
    else if (status != KVANT_OK && check_refusal_fault(status, &diag) != NULL)
        check_fail(worker, CHECK_BLOCKS, "refusing %u block_tokens: %s", tokens,
                   check_refusal_fault(status, &diag));
}

void check_blocks(check_context *context) {
    uint32_t multiple = context->layout.block_multiple;
    if (multiple > CHECK_BLOCK_MAX) return;
    static const uint32_t factors[] = {1, 2, 3, 5};
    for (size_t i = 0; i < 4; i++) {
        try_block(context, factors[i] * multiple);
        if (multiple == 1) continue;
        try_block(context, factors[i] * multiple - 1);
        try_block(context, factors[i] * multiple + 1);
        if (multiple > 2) try_block(context, factors[i] * multiple + multiple / 2);
    }
}

/* With the artifact that it asks for; plan must not depend on it where it did not ask for it. */
static kvant_status open_with_artifact(check_context *context, kvant_diag *diag) {
    check_worker *worker = context->worker;
    check_case *c = &context->configuration;
    if (c->setup.tensor_count == 0) {
        kvant_status learned = check_learn(worker, c, diag);
        if (learned != KVANT_OK || c->setup.tensor_count == 0) return KVANT_ERROR_MISSING;
    }
    kvant_layout layout = {.struct_size = sizeof layout};
    if (check_call_plan(worker, &c->setup, &layout, NULL) != KVANT_OK ||
        memcmp(&layout, &context->layout, sizeof layout) != 0)
        check_fail(worker, CHECK_PLAN, "plan accepts without the artifact, and says something else with it");
    /* One number too few in the first dimension: made for another model. */
    kvant_array *last = &c->arrays[c->setup.tensor_count - 1];
    kvant_array kept = *last;
    last->shape[0]++;
    check_subject other;
    kvant_status status = check_subject_open(worker, &other, &c->setup, &context->layout, diag);
    *last = kept;
    const char *fault = status == KVANT_OK ? "accepts it" : check_refusal_fault(status, diag);
    if (fault != NULL)
        check_fail(worker, CHECK_OPEN, "an artifact whose tensor \"%s\" has another shape: open %s",
                   kept.name, fault);
    if (status == KVANT_OK) check_subject_close(&other);
    *diag = check_fresh_diag();
    return check_subject_open(worker, &context->subject, &c->setup, &context->layout, diag);
}

void check_open(check_context *context) {
    check_worker *worker = context->worker;
    kvant_diag diag = check_fresh_diag();
    kvant_status status =
        check_subject_open(worker, &context->subject, &context->configuration.setup, &context->layout, &diag);
    if (status == KVANT_ERROR_MISSING) {
        const char *fault = check_refusal_fault(status, &diag);
        if (fault != NULL) check_fail(worker, CHECK_OPEN, "open misses an artifact, and %s", fault);
        diag = check_fresh_diag();
        status = open_with_artifact(context, &diag);
    }
    if (status == KVANT_OK) {
        if (!check_diag_is_fresh(&diag))
            check_fail(worker, CHECK_OPEN, "open succeeded and wrote to the diag");
        return;
    }
    context->over = true;
    if (status != KVANT_ERROR_MISSING)
        check_fail(worker, CHECK_OPEN, "plan accepted, open refused with %d (%s): %.300s", status,
                   kvant_status_text(status), check_diag_is_fresh(&diag) ? "" : diag.message);
    if (check_has_failed(worker, CHECK_OPEN) || !(worker->ran >> CHECK_OPEN & 1)) return;
    worker->ran &= ~((uint64_t)1 << CHECK_OPEN);
    atomic_fetch_add(&worker->board->tallies[CHECK_OPEN].refused, 1);
}
