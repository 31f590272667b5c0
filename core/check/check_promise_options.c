/* Checks over many configurations: that every value of a parameter does something, and the error on
 * standard rows. */
#include "check_compare.h"
#include "check_learn.h"
#include "check_promise.h"
#include "check_quality.h"
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa5, BASES = 160, READING_BASES = 24, BASE_LIMIT = 1 << 16, BAND_BLOCKS = 32 };

/* ---- One configuration, quickly ---------------------------------------------------------------------- */

typedef enum trial_result { TRIAL_REFUSED, TRIAL_MISSING, TRIAL_DONE } trial_result;

typedef struct trial {
    check_case configuration;
    kvant_layout layout;
    check_subject subject;
    check_extent extent;
    size_t elements;
} trial;

static void trial_free(check_worker *worker, trial *t) {
    check_extent_free(worker, &t->extent);
    check_subject_close(&t->subject);
    check_case_free(&t->configuration);
}

/* Opens a row. */
static trial_result trial_open(check_worker *worker, const check_axes *axes, const check_row *row,
                               uint64_t most, trial *t) {
    *t = (trial){0};
    if (!check_case_create(axes, row, 0, &t->configuration)) check_out_of_memory();
    kvant_status status = check_fit(worker, &t->configuration, &t->layout, NULL);
    bool learned = status == KVANT_ERROR_MISSING;
    if (learned && (check_case_elements(&t->configuration) > most ||
                    check_learn(worker, &t->configuration, NULL) != KVANT_OK))
        return TRIAL_MISSING;
    if (learned) status = check_fit(worker, &t->configuration, &t->layout, NULL);
    if (status != KVANT_OK) return TRIAL_REFUSED;
    t->elements = (size_t)check_case_elements(&t->configuration);
    if (t->elements > most) return TRIAL_REFUSED;
    check_case_text(axes, row, &t->configuration, worker->slot->text, CHECK_TEXT);
    status = check_subject_open(worker, &t->subject, &t->configuration.setup, &t->layout, NULL);
    if (status == KVANT_ERROR_MISSING && !learned && check_learn(worker, &t->configuration, NULL) == KVANT_OK)
        status = check_subject_open(worker, &t->subject, &t->configuration.setup, &t->layout, NULL);
    return status == KVANT_OK ? TRIAL_DONE : TRIAL_MISSING;
}

static bool trial_encode(trial *t, check_data data, uint64_t seed, float **values) {
    const kvant_setup *s = &t->configuration.setup;
    const check_encoding how = {.poison = POISON, .scratch = POISON};
    check_random random = check_random_stream(seed, 7);
    *values = malloc(t->elements * sizeof **values);
    if (*values == NULL) check_out_of_memory();
    check_data_fill(data, s->dtype, s->block_tokens, s->kv_heads, s->head_dim, &random, *values);
    return check_subject_encode(&t->subject, *values, &how, &t->extent, NULL);
}

/* ---- Options ----------------------------------------------------------------------------------------- */

/* True where the extents, or what they decode to, differ. */
static bool extents_differ(trial *one, trial *two) {
    if (one->extent.size != two->extent.size ||
        memcmp(one->extent.buffer.data, two->extent.buffer.data, one->extent.size) != 0)
        return true;
    if (one->elements != two->elements) return true;
    float *first = malloc(one->elements * sizeof *first), *second = malloc(two->elements * sizeof *second);
    if (first == NULL || second == NULL) check_out_of_memory();
    bool differ = check_subject_decode_all(&one->subject, &one->extent, CHECK_OPTIONS, first) &&
                  check_subject_decode_all(&two->subject, &two->extent, CHECK_OPTIONS, second) &&
                  memcmp(first, second, one->elements * sizeof *first) != 0;
    free(first);
    free(second);
    return differ;
}

/* Encodes the same rows with both; true where bytes, sizes, decoded rows, or the side of RoPE differ.
 * *usable: both could be done. */
static bool rows_differ(check_worker *worker, const check_row *a, const check_row *b, uint64_t seed,
                        bool *usable) {
    trial one, two;
    trial_result first = trial_open(worker, &worker->axes, a, BASE_LIMIT, &one);
    trial_result second =
        first == TRIAL_DONE ? trial_open(worker, &worker->axes, b, 4 * BASE_LIMIT, &two) : TRIAL_REFUSED;
    *usable = second == TRIAL_DONE;
    bool differ = false;
    if (*usable) {
        const uint32_t placed = KVANT_LAYOUT_KEYS_BEFORE_ROPE;
        float *values = NULL, *others = NULL;
        check_data data = one.configuration.data;
        differ =
            one.layout.size_min != two.layout.size_min || ((one.layout.flags ^ two.layout.flags) & placed);
        bool good =
            !differ && trial_encode(&one, data, seed, &values) && trial_encode(&two, data, seed, &others);
        differ = differ || (good && extents_differ(&one, &two));
        free(values);
        free(others);
    }
    if (first == TRIAL_DONE) trial_free(worker, &two);
    trial_free(worker, &one);
    return differ;
}

/* Looks for a configuration in which this value gives other bytes than another one. */
static void look_for_effect(check_worker *worker, uint32_t a, uint32_t value) {
    const check_axis *axis = &worker->axes.axis[a];
    const check_board *board = worker->board;
    check_random random = check_random_stream(worker->options->seed, 5000 + a * 64 + value);
    bool reading = axis->param->flags & KVANT_PARAM_READING;
    uint32_t compared = 0, wanted = reading ? READING_BASES : BASES;
    for (uint32_t i = 0; i < 8 * BASES && compared < wanted && board->row_count > 0; i++) {
        check_row row = board->rows[check_random_below(&random, board->row_count)], other;
        if (!row.accepted) continue;
        /* Half of the time a row that has the value already; else it is put in. */
        if (i % 2 == 0 && row.value[a] != value) continue;
        row.value[a] = (uint8_t)value;
        other = row;
        other.value[a] =
            (uint8_t)(value != axis->fallback && i % 4 < 2 ? axis->fallback
                                                           : check_random_below(&random, axis->count));
        if (other.value[a] == value) continue;
        bool usable;
        bool differ = rows_differ(worker, &row, &other, check_random_next(&random), &usable);
        compared += usable;
        if (!usable || !differ) continue;
        if (!reading) return;
        char words[2][96];
        (void)check_axis_text(&worker->axes, a, value, words[0], sizeof words[0]);
        (void)check_axis_text(&worker->axes, a, other.value[a], words[1], sizeof words[1]);
        check_fail(worker, CHECK_OPTIONS,
                   "%s is declared as reading only, and %s and %s give different bytes or floats",
                   axis->name, words[0], words[1]);
        return;
    }
    char word[96];
    (void)check_axis_text(&worker->axes, a, value, word, sizeof word);
    worker->slot->text[0] = '\0';
    if (compared == 0)
        check_note(
            worker,
            "%s could not be compared: every configuration that was tried refuses it, or misses an artifact, "
            "or stands alone",
            word);
    else if (!reading)
        check_fail(worker, CHECK_OPTIONS,
                   "%s changes nothing: in %u configurations bytes and floats are those of another value",
                   word, compared);
}

void check_option(check_worker *worker, uint32_t index) {
    check_item_begin(worker, -1);
    if (check_begin(worker, CHECK_OPTIONS))
        for (uint32_t a = CHECK_AXIS_PARAM; a < worker->axes.count; a++) {
            const check_axis *axis = &worker->axes.axis[a];
            if (axis->param_index != index || axis->param->type == KVANT_PARAM_TABLE || axis->count < 2)
                continue;
            for (uint32_t v = 0; v < axis->count; v++) look_for_effect(worker, a, v);
        }
    check_item_end(worker);
}

/* ---- Bands ------------------------------------------------------------------------------------------- */

enum { SETTINGS = 24 };

/* "a=b c=d" into words. */
static uint32_t split(char *text, const char **settings) {
    uint32_t count = 0;
    for (char *save = NULL, *word = strtok_r(text, " ", &save); word != NULL && count < SETTINGS;
         word = strtok_r(NULL, " ", &save))
        settings[count++] = word;
    return count;
}

/* A row of defaults with these settings, opened. */
static trial_result open_settings(check_worker *worker, const char *text, check_axes *axes, trial *t) {
    char copy[256];
    const char *settings[SETTINGS];
    *t = (trial){0};
    (void)snprintf(copy, sizeof copy, "%s", text);
    check_options options = *worker->options;
    options.settings = settings;
    options.setting_count = split(copy, settings);
    if (check_axes_create(worker->plugin->descriptor, &options, axes, NULL) != KVANT_OK) return TRIAL_REFUSED;
    check_row row = {0};
    for (uint32_t a = 0; a < axes->count; a++) row.value[a] = (uint8_t)axes->axis[a].fallback;
    return trial_open(worker, axes, &row, SIZE_MAX, t);
}

/* NMSE on several blocks of one family of rows; negative if something failed. */
static double measure(check_worker *worker, trial *t, check_data data) {
    check_quality q = {0};
    bool good = true;
    for (uint32_t block = 0; block < BAND_BLOCKS && good; block++) {
        float *values = NULL;
        uint32_t *bits = malloc(t->elements * sizeof *bits);
        if (bits == NULL) check_out_of_memory();
        const check_decoding whole = {.tokens = t->configuration.setup.block_tokens,
                                      .heads = t->configuration.setup.kv_heads,
                                      .dtype = KVANT_DTYPE_F32,
                                      .id = CHECK_BANDS};
        good = trial_encode(t, data, worker->options->seed + block, &values) &&
               check_subject_decode(&t->subject, &t->extent, &whole, bits);
        if (good) check_quality_add(&q, values, bits, t->elements);
        check_extent_free(worker, &t->extent);
        free(values);
        free(bits);
    }
    return good ? check_quality_nmse(&q) : -1;
}

static void look_at_band(check_worker *worker, const oracle_band *band, check_axes *axes) {
    static const check_data families[3] = {CHECK_DATA_NORMAL, CHECK_DATA_OUTLIER, CHECK_DATA_OFFSET};
    trial t;
    char settings[256];
    (void)snprintf(settings, sizeof settings, "%s kv_heads=8", band->settings);
    if (open_settings(worker, settings, axes, &t) != TRIAL_DONE)
        check_fail(worker, CHECK_BANDS, "plan or open refuses %s", band->settings);
    else
        for (uint32_t i = 0; i < 3; i++) {
            double nmse = band->error[i] > 0 ? measure(worker, &t, families[i]) : -1;
            if (nmse >= 0 && fabs(sqrt(nmse) - band->error[i]) > 0.025 * band->error[i])
                check_fail(worker, CHECK_BANDS, "the relative L2 error on %s rows is %.5g, published is %.5g",
                           check_data_name(families[i]), sqrt(nmse), band->error[i]);
        }
    trial_free(worker, &t);
}

/* More bits, less error: for every codec with a parameter of that name. */
static void look_at_bits(check_worker *worker, check_axes *axes) {
    double before = INFINITY;
    for (uint32_t a = CHECK_AXIS_PARAM; a < worker->axes.count; a++) {
        const check_axis *axis = &worker->axes.axis[a];
        if (strcmp(axis->name, "bits") != 0 || axis->param->type != KVANT_PARAM_INTEGER) continue;
        for (int64_t bits = axis->param->integer_min; bits <= axis->param->integer_max && bits <= 32;
             bits++) {
            char text[64];
            trial t;
            (void)snprintf(text, sizeof text, "bits=%lld head_dim=128 kv_heads=8 dtype=f32", (long long)bits);
            if (open_settings(worker, text, axes, &t) == TRIAL_DONE) {
                double nmse = measure(worker, &t, CHECK_DATA_NORMAL);
                if (nmse >= before && nmse > 1e-12)
                    check_fail(worker, CHECK_BANDS,
                               "with %lld bits the NMSE on N(0, 1) is %.6g, with fewer it was %.6g",
                               (long long)bits, nmse, before);
                if (nmse >= 0) before = nmse;
            }
            trial_free(worker, &t);
        }
    }
}

void check_bands(check_worker *worker) {
    check_item_begin(worker, -1);
    check_axes *axes = malloc(sizeof *axes);
    if (axes == NULL) check_out_of_memory();
    const oracle *formula = oracle_find(worker->plugin->descriptor);
    if (check_begin(worker, CHECK_BANDS)) {
        for (const oracle_band *band = formula != NULL ? formula->bands : NULL;
             band != NULL && band->settings != NULL; band++)
            look_at_band(worker, band, axes);
        look_at_bits(worker, axes);
    }
    free(axes);
    check_item_end(worker);
}
