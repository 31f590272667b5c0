/* Lies that need more than one changed line: plugins registered in this program, checked through check_run.
 * Among them those that would take a careless tool down: that hang, eat memory, end the process, crash
 * while they plan. */
#include "support/test.h"

#include "bad_plugins/honest.h"
#include "check/check.h"

#include <kvant/kvant.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A registered plugin by this name, with these calls. */
#define REGISTERED(NAME, PLAN, OPEN, ENCODE, DECODE, EXTENSION)                                              \
    static const kvant_descriptor NAME##_descriptor = {HONEST_DESCRIPTOR(#NAME)};                            \
    static const kvant_plugin NAME##_plugin = {.struct_size = sizeof(kvant_plugin),                          \
                                               .abi = KVANT_ABI,                                             \
                                               .descriptor = &NAME##_descriptor,                             \
                                               .plan = PLAN,                                                 \
                                               .open = OPEN,                                                 \
                                               .close = honest_close,                                        \
                                               .encode = ENCODE,                                             \
                                               .decode = DECODE,                                             \
                                               .extension = EXTENSION};                                      \
    /* Sanitizer builds leave some of them out. */                                                           \
    __attribute__((unused)) static const kvant_plugin *NAME##_query(uint32_t host_abi) {                     \
        (void)host_abi;                                                                                      \
        return &NAME##_plugin;                                                                               \
    }

static void check_slowly(kvant_plugin_query_fn *query, const char *name, double fraction, double timeout,
                         check_report *report) {
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_plugin_register(query, &diag), KVANT_OK);
    const check_options options = {.codec = name,
                                   .seed = 1,
                                   .fraction = fraction,
                                   .timeout = timeout,
                                   .number = -1,
                                   .memory_limit = (uint64_t)256 << 20};
    kvant_status status = check_run(&options, report, &diag);
    if (status != KVANT_OK) print_message("%s\n", diag.message);
    assert_int_equal(status, KVANT_OK);
}

static void check_it(kvant_plugin_query_fn *query, const char *name, double fraction, check_report *report) {
    check_slowly(query, name, fraction, 10, report);
}

/* The check fails, and says this. */
static void expect(const check_report *report, check_id id, const char *words) {
    bool said = false;
    for (uint32_t i = 0; i < report->failure_count; i++) {
        const check_failure *f = &report->failures[i];
        if (f->id == id && strstr(f->message, words) != NULL) said = true;
    }
    if (!said)
        for (uint32_t i = 0; i < report->failure_count && i < 10; i++)
            print_message("%s: %s\n", check_name(report->failures[i].id), report->failures[i].message);
    if (!said) print_message("expected from %s: %s\n", check_name(id), words);
    assert_true(report->tallies[id].failed > 0);
    assert_true(said);
}

/* ---- What would take the tool down ------------------------------------------------------------------- */

static kvant_status hang_encode(const void *state, kvant_encode_args *args) {
    volatile uint32_t wait = ((const honest *)state)->head_dim == 8;
    while (wait != 0) {
    }
    return honest_encode(state, args);
}
REGISTERED(hangs, honest_plan, honest_open, hang_encode, honest_decode, NULL)

static void a_call_that_hangs(void **state) {
    (void)state;
    check_report report;
    check_slowly(hangs_query, "hangs", 0.1, 0.5, &report);
    expect(&report, CHECK_ENCODE, "encode did not return within 0.5 s");
    check_report_free(&report);
}

static kvant_status eat_decode(const void *state, const kvant_decode_args *args) {
    for (;;) {
        char *volatile more =
            malloc(1 << 24); /* volatile: memory that nobody looks at may be optimised away */
        if (more == NULL) break;
        memset(more, 1, 1 << 24);
    }
    return honest_decode(state, args);
}
REGISTERED(eats, honest_plan, honest_open, honest_encode, eat_decode, NULL)

static void a_call_that_eats_memory(void **state) {
    (void)state;
    check_report report;
    check_it(eats_query, "eats", 0.02, &report);
    expect(&report, CHECK_DECODE, "decode took more memory than 256 MiB");
    check_report_free(&report);
}

static kvant_status exit_decode(const void *state, const kvant_decode_args *args) {
    if (args->first_token > 0) exit(0);
    return honest_decode(state, args);
}
REGISTERED(exits, honest_plan, honest_open, honest_encode, exit_decode, NULL)

static void a_call_that_ends_the_process(void **state) {
    (void)state;
    check_report report;
    check_it(exits_query, "exits", 0.1, &report);
    expect(&report, CHECK_SLICES, "decode ended the process with status 0");
    /* What comes behind is checked all the same. */
    assert_true(report.tallies[CHECK_ISA].passed > 3);
    check_report_free(&report);
}

static kvant_status crash_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    if (setup->head_dim == 46) abort();
    return honest_plan(setup, layout, diag);
}
REGISTERED(crashes, crash_plan, honest_open, honest_encode, honest_decode, NULL)

static void a_plan_that_crashes(void **state) {
    (void)state;
    check_report report;
    check_it(crashes_query, "crashes", 0.2, &report);
    expect(&report, CHECK_PLAN, "plan died of signal 6");
    assert_true(report.tallies[CHECK_ENCODE].passed > 3);
    check_report_free(&report);
}

/* ---- Quiet ------------------------------------------------------------------------------------------- */

static kvant_status allocate_encode(const void *state, kvant_encode_args *args) {
    void *volatile scratch = malloc(48);
    free(scratch);
    return honest_encode(state, args);
}
REGISTERED(allocates, honest_plan, honest_open, allocate_encode, honest_decode, NULL)

static kvant_status print_decode(const void *state, const kvant_decode_args *args) {
    static const char words[] = "decoding\n";
    if (write(STDOUT_FILENO, words, sizeof words - 1) < 0) return KVANT_ERROR_IO;
    return honest_decode(state, args);
}
REGISTERED(prints, honest_plan, honest_open, honest_encode, print_decode, NULL)

static void *idle(void *argument) {
    (void)pause();
    return argument;
}

static kvant_status thread_encode(const void *state, kvant_encode_args *args) {
    pthread_t thread;
    (void)pthread_create(&thread, NULL, idle, NULL);
    return honest_encode(state, args);
}
REGISTERED(starts, honest_plan, honest_open, thread_encode, honest_decode, NULL)

static void hot_calls_that_are_not_quiet(void **state) {
    (void)state;
    check_report report;
    check_it(prints_query, "prints", 0.05, &report);
    expect(&report, CHECK_QUIET, "prints to stdout or stderr");
    check_report_free(&report);
#if !defined(__SANITIZE_THREAD__)
    check_it(starts_query, "starts", 0.02, &report);
    expect(&report, CHECK_QUIET, "a thread is left");
    check_report_free(&report);
#endif
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    check_it(allocates_query, "allocates", 0.05, &report);
    if (report.tallies[CHECK_QUIET].passed + report.tallies[CHECK_QUIET].failed > 0)
        expect(&report, CHECK_QUIET, "a hot call allocates memory");
    check_report_free(&report);
#endif
}

/* ---- Setup ------------------------------------------------------------------------------------------- */

/* Asks for blocks of 3 tokens and takes any. */
static kvant_status careless_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, diag);
    layout->block_multiple = setup->block_tokens % 3 == 0 ? 3 : 1;
    return status;
}
REGISTERED(careless, careless_plan, honest_open, honest_encode, honest_decode, NULL)

/* Refuses blocks with the wrong number. */
static kvant_status picky_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, diag);
    layout->block_multiple = 16;
    if (setup->block_tokens % 16 != 0) return kvant_fail(diag, KVANT_ERROR_VALUE, "", "blocks of 16, please");
    return status;
}
REGISTERED(picky, picky_plan, honest_open, honest_encode, honest_decode, NULL)

static kvant_status talkative_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, diag);
    if (diag != NULL) (void)kvant_fail(diag, KVANT_OK, "", "all is well");
    return status;
}
REGISTERED(talkative, talkative_plan, honest_open, honest_encode, honest_decode, NULL)

static kvant_status stubborn_open(const kvant_setup *setup, const kvant_layout *layout, void *memory,
                                  kvant_diag *diag) {
    if (setup->head_dim % 64 != 0) return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "", "not in this state");
    return honest_open(setup, layout, memory, diag);
}
REGISTERED(stubborn, honest_plan, stubborn_open, honest_encode, honest_decode, NULL)

static void setup_lies(void **state) {
    (void)state;
    check_report report;
    check_it(careless_query, "careless", 0.05, &report);
    expect(&report, CHECK_BLOCKS, "no multiple of block_multiple 3, are accepted");
    check_report_free(&report);
    check_it(picky_query, "picky", 0.05, &report);
    expect(&report, CHECK_BLOCKS, "are refused with -13");
    check_report_free(&report);
    check_it(talkative_query, "talkative", 0.05, &report);
    expect(&report, CHECK_PLAN, "plan accepted and wrote to the diag");
    check_report_free(&report);
    check_it(stubborn_query, "stubborn", 0.05, &report);
    expect(&report, CHECK_OPEN, "plan accepted, open refused");
    check_report_free(&report);
}

/* ---- Bytes ------------------------------------------------------------------------------------------- */

static kvant_status lossless_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, diag);
    layout->flags |= KVANT_LAYOUT_LOSSLESS;
    return status;
}
REGISTERED(flawless, lossless_plan, honest_open, honest_encode, honest_decode, NULL)

static kvant_status skip_decode(const void *state, const kvant_decode_args *args) {
    kvant_mutable_view rows = *args->rows;
    kvant_decode_args fewer = *args;
    if (rows.tokens > 1) rows.tokens--;
    fewer.rows = &rows;
    return honest_decode(state, &fewer);
}
REGISTERED(skips, honest_plan, honest_open, honest_encode, skip_decode, NULL)

static kvant_status gap_decode(const void *state, const kvant_decode_args *args) {
    const kvant_mutable_view *rows = args->rows;
    kvant_status status = honest_decode(state, args);
    uint32_t size = kvant_element_bytes(rows->dtype);
    if (rows->channel_stride > size && rows->head_dim > 1) ((char *)rows->data)[size] = 0;
    return status;
}
REGISTERED(litters, honest_plan, honest_open, honest_encode, gap_decode, NULL)

static void byte_lies(void **state) {
    (void)state;
    check_report report;
    check_it(flawless_query, "flawless", 0.05, &report);
    expect(&report, CHECK_LOSSLESS, "the layout says lossless");
    check_report_free(&report);
    check_it(skips_query, "skips", 0.05, &report);
    expect(&report, CHECK_DECODE, "decode did not write token");
    check_report_free(&report);
    check_it(litters_query, "litters", 0.2, &report);
    expect(&report, CHECK_BOUNDS, "decode wrote between the elements of padded rows");
    check_report_free(&report);
}

/* ---- Error ------------------------------------------------------------------------------------------- */

/* Claims a format that the check knows by its formula, and rounds to 8 bits. */
static const kvant_descriptor false_descriptor = {.struct_size = sizeof(kvant_descriptor),
                                                  .format_id = 'R' | 'A' << 8 | 'W' << 16 | ' ' << 24,
                                                  .format_version = 1,
                                                  .sides = KVANT_SIDES_BOTH,
                                                  .dtypes = KVANT_DTYPES_ALL,
                                                  .head_dim_min = 1,
                                                  .head_dim_max = 4096,
                                                  .head_dim_multiple = 1,
                                                  .param_count = 1,
                                                  .name = "pretends",
                                                  .version = "1.0.0",
                                                  .title = "Another codec's format",
                                                  .paper = "",
                                                  .license = "Apache-2.0",
                                                  .deviations = "",
                                                  .params = honest_params};
static const kvant_plugin false_plugin = {.struct_size = sizeof(kvant_plugin),
                                          .abi = KVANT_ABI,
                                          .descriptor = &false_descriptor,
                                          .plan = honest_plan,
                                          .open = honest_open,
                                          .close = honest_close,
                                          .encode = honest_encode,
                                          .decode = honest_decode};
static const kvant_plugin *false_query(uint32_t host_abi) {
    (void)host_abi;
    return &false_plugin;
}

static void error_lies(void **state) {
    (void)state;
    check_report report;
    check_it(false_query, "pretends", 0.05, &report);
    expect(&report, CHECK_ERROR, "that of the formula in double precision on the same rows");
    check_report_free(&report);
}

/* ---- Parameters -------------------------------------------------------------------------------------- */

static const kvant_param reading_params[] = {{HONEST_PARAM, .flags = KVANT_PARAM_READING}};
static const kvant_descriptor reading_descriptor = {.struct_size = sizeof(kvant_descriptor),
                                                    .format_id = 0x54534548,
                                                    .format_version = 1,
                                                    .sides = KVANT_SIDES_BOTH,
                                                    .dtypes = KVANT_DTYPES_ALL,
                                                    .head_dim_min = 1,
                                                    .head_dim_max = 4096,
                                                    .head_dim_multiple = 1,
                                                    .param_count = 1,
                                                    .name = "misreads",
                                                    .version = "1.0.0",
                                                    .title = "Says that bits do not matter",
                                                    .paper = "",
                                                    .license = "Apache-2.0",
                                                    .deviations = "",
                                                    .params = reading_params};
static const kvant_plugin reading_plugin = {HONEST_CALLS, .descriptor = &reading_descriptor};
static const kvant_plugin *reading_query(uint32_t host_abi) {
    (void)host_abi;
    return &reading_plugin;
}

/* 4 bits that are called 8, and the reverse. */
static kvant_status swapped_open(const kvant_setup *setup, const kvant_layout *layout, void *memory,
                                 kvant_diag *diag) {
    kvant_status status = honest_open(setup, layout, memory, diag);
    honest *h = memory;
    h->bits = 12 - h->bits;
    return status;
}
static kvant_status swapped_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    const kvant_value value = {.integer = 12 - setup->values[0].integer};
    kvant_setup swapped = *setup;
    swapped.values = &value;
    return honest_plan(&swapped, layout, diag);
}
REGISTERED(swapped, swapped_plan, swapped_open, honest_encode, honest_decode, NULL)

static void parameter_lies(void **state) {
    (void)state;
    check_report report;
    check_it(reading_query, "misreads", 0.05, &report);
    expect(&report, CHECK_LAYOUT, "which is declared as reading only");
    check_report_free(&report);
    check_it(swapped_query, "swapped", 0.05, &report);
    expect(&report, CHECK_BANDS, "with 8 bits the NMSE");
    check_report_free(&report);
}

/* ---- Extensions -------------------------------------------------------------------------------------- */

static kvant_status describe_codes(const void *state, const kvant_extent *extent, uint32_t index,
                                   kvant_array *array) {
    const honest *h = state;
    (void)extent;
    *array = (kvant_array){.name = index == 0 ? "codes" : "scale", .dtype = KVANT_DTYPE_U8, .rank = 1};
    array->shape[0] = (uint64_t)h->tokens * h->heads * h->head_dim;
    array->bytes = array->shape[0];
    return KVANT_OK;
}

/* The last code is left out. */
static kvant_status read_codes(const void *state, const kvant_extent *extent, uint32_t index, void *data,
                               void *scratch) {
    const honest *h = state;
    (void)index;
    (void)scratch;
    (void)extent;
    memset(data, 1, (size_t)h->tokens * h->heads * h->head_dim - 1);
    return KVANT_OK;
}
static const kvant_inspect forgetful = {
    .struct_size = sizeof forgetful, .array_count = 1, .describe = describe_codes, .read = read_codes};
static const void *forgetful_extension(const char *id) {
    return strncmp(id, KVANT_EXT_INSPECT, strlen(KVANT_EXT_INSPECT)) == 0 ? &forgetful : NULL;
}
REGISTERED(forgets, honest_plan, honest_open, honest_encode, honest_decode, forgetful_extension)

static void extension_lies(void **state) {
    (void)state;
    check_report report;
    check_it(forgets_query, "forgets", 0.05, &report);
    expect(&report, CHECK_EXTENSION, "extension(\"kvant.inspect/1x\") is not NULL");
    expect(&report, CHECK_INSPECT, "does not write all of its");
    check_report_free(&report);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_hangs),
        cmocka_unit_test(a_call_that_eats_memory),
        cmocka_unit_test(a_call_that_ends_the_process),
        cmocka_unit_test(a_plan_that_crashes),
        cmocka_unit_test(hot_calls_that_are_not_quiet),
        cmocka_unit_test(setup_lies),
        cmocka_unit_test(byte_lies),
        cmocka_unit_test(error_lies),
        cmocka_unit_test(parameter_lies),
        cmocka_unit_test(extension_lies),
    };
    return kvant_run_tests(tests, argc, argv);
}
