/* A pairwise covering array under constraints that only plan knows. See check_cover.h. */
#include "check_cover.h"

#include "check_gpu.h"
#include "check_promise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRIES = 40,         /* per pair, before it counts as refused */
    REFUSED_ROWS = 400, /* refused configurations that are kept, so that their reasons are looked at */
    REFUSED_FOR_KERNELS = 12,
    SMALL_BLOCK = 1 << 18,
    LARGE_BLOCK = 3 << 20, /* elements of a block that is tried if nothing smaller will do */
    SMALL_FOR_KERNELS = 1 << 15,
    LARGE_FOR_KERNELS = 1 << 17
};

enum { PAIR_OPEN, PAIR_COVERED, PAIR_REFUSED };

typedef struct cover {
    check_worker *worker;
    const check_axes *axes;
    check_random random;
    uint32_t first[CHECK_AXES + 1]; /* number of an axis's first value among all values */
    uint32_t values;
    uint8_t *pairs; /* [values][values] */
    uint32_t refused_rows;
    bool blind;
} cover;

static uint8_t *pair_state(const cover *c, uint32_t a, uint32_t va, uint32_t b, uint32_t vb) {
    size_t i = c->first[a] + va, j = c->first[b] + vb;
    return &c->pairs[i < j ? i * c->values + j : j * c->values + i];
}

static bool row_is_accepted(cover *c, const check_row *row, uint64_t most) {
    if (c->blind) return true;
    check_case configuration;
    if (!check_case_create(c->axes, row, 0, &configuration)) check_out_of_memory();
    check_case_text(c->axes, row, &configuration, c->worker->slot->text, CHECK_TEXT);
    kvant_layout layout;
    kvant_status status = check_fit(c->worker, &configuration, &layout, NULL);
    /* What asks for an artifact gets one later. */
    bool accepted =
        (status == KVANT_OK || status == KVANT_ERROR_MISSING) && check_case_elements(&configuration) <= most;
    if (accepted && status == KVANT_OK && c->worker->options->gpu)
        accepted = check_gpu_accepts(c->worker, &configuration.setup, &layout);
    check_case_free(&configuration);
    return accepted;
}

static bool add_row(cover *c, const check_row *row, bool accepted) {
    check_board *board = c->worker->board;
    if (board->row_count == CHECK_ROWS) return false;
    board->rows[board->row_count] = *row;
    board->rows[board->row_count++].accepted = accepted;
    if (!accepted) {
        c->refused_rows++;
        return true;
    }
    for (uint32_t a = 0; a < c->axes->count; a++)
        for (uint32_t b = a + 1; b < c->axes->count; b++)
            *pair_state(c, a, row->value[a], b, row->value[b]) = PAIR_COVERED;
    return true;
}

static check_row fallback_row(const cover *c) {
    check_row row = {.accepted = 0};
    for (uint32_t a = 0; a < c->axes->count; a++) row.value[a] = (uint8_t)c->axes->axis[a].fallback;
    return row;
}

/* Axes on which a large value costs time. */
static bool is_costly(uint32_t axis) {
    return axis == CHECK_AXIS_DIM || axis == CHECK_AXIS_HEADS || axis == CHECK_AXIS_BLOCK;
}

static uint8_t random_value(cover *c, uint32_t a, uint32_t default_percent) {
    const check_axis *axis = &c->axes->axis[a];
    if (check_random_below(&c->random, 100) < default_percent) return (uint8_t)axis->fallback;
    return (uint8_t)check_random_below(&c->random, axis->count);
}

/* The value of axis a that covers most open pairs with the axes in `fixed`. */
static uint8_t best_value(cover *c, uint32_t a, const check_row *row, const bool *fixed) {
    const check_axis *axis = &c->axes->axis[a];
    uint32_t best_gain = 0, best = random_value(c, a, is_costly(a) ? 60 : 20);
    uint32_t start = check_random_below(&c->random, axis->count);
    for (uint32_t i = 0; i < axis->count; i++) {
        uint32_t v = (start + i) % axis->count, gain = 0;
        for (uint32_t b = 0; b < c->axes->count; b++)
            if (fixed[b] && *pair_state(c, a, v, b, row->value[b]) == PAIR_OPEN) gain++;
        if (gain > best_gain) {
            best_gain = gain;
            best = v;
        }
    }
    return (uint8_t)best;
}

static void fill_greedily(cover *c, check_row *row, uint32_t a, uint32_t b) {
    bool fixed[CHECK_AXES] = {false};
    fixed[a] = fixed[b] = true;
    uint32_t count = c->axes->count, start = check_random_below(&c->random, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t axis = (start + i) % count;
        if (fixed[axis]) continue;
        row->value[axis] = best_value(c, axis, row, fixed);
        fixed[axis] = true;
    }
}

/* An accepted row that has one of the two values, else any. */
static bool copy_accepted(cover *c, check_row *row, uint32_t a, uint32_t va, uint32_t b, uint32_t vb) {
    const check_board *board = c->worker->board;
    for (uint32_t i = 0; i < 200 && board->row_count > 0; i++) {
        const check_row *other = &board->rows[check_random_below(&c->random, board->row_count)];
        if (!other->accepted || (i < 150 && other->value[a] != va && other->value[b] != vb)) continue;
        *row = *other;
        return true;
    }
    return false;
}

static void make_row(cover *c, check_row *row, uint32_t round, uint32_t a, uint32_t va, uint32_t b,
                     uint32_t vb) {
    bool copied = round % 2 == 1 && copy_accepted(c, row, a, va, b, vb);
    if (!copied)
        for (uint32_t axis = 0; axis < c->axes->count; axis++)
            row->value[axis] = random_value(c, axis, round * 2);
    row->value[a] = (uint8_t)va;
    row->value[b] = (uint8_t)vb;
    if (round < 3) fill_greedily(c, row, a, b);
    /* One more step away from an accepted row. */
    uint32_t axis = check_random_below(&c->random, c->axes->count);
    if (copied && round % 4 == 3 && axis != a && axis != b) row->value[axis] = random_value(c, axis, 30);
}

static void cover_pair(cover *c, uint32_t a, uint32_t va, uint32_t b, uint32_t vb) {
    bool kernels = c->worker->options->gpu;
    uint64_t small = kernels ? SMALL_FOR_KERNELS : SMALL_BLOCK;
    uint64_t large = kernels ? LARGE_FOR_KERNELS : LARGE_BLOCK;
    check_row row = fallback_row(c), refused = row;
    for (uint32_t round = 0; round < TRIES; round++) {
        make_row(c, &row, round, a, va, b, vb);
        if (row_is_accepted(c, &row, round < TRIES * 2 / 3 ? small : large)) {
            (void)add_row(c, &row, true);
            return;
        }
        if (round == 0) refused = row;
    }
    *pair_state(c, a, va, b, vb) = PAIR_REFUSED;
    if (c->refused_rows < (kernels ? REFUSED_FOR_KERNELS : REFUSED_ROWS)) (void)add_row(c, &refused, false);
}

static void add_grid(cover *c) {
    const check_axis *axis = c->axes->axis;
    for (uint32_t s = 0; s < axis[CHECK_AXIS_SIDE].count; s++)
        for (uint32_t h = 0; h < axis[CHECK_AXIS_HEADS].count; h++)
            for (uint32_t d = 0; d < axis[CHECK_AXIS_DIM].count; d++) {
                check_row row = fallback_row(c);
                row.value[CHECK_AXIS_SIDE] = (uint8_t)s;
                row.value[CHECK_AXIS_HEADS] = (uint8_t)h;
                row.value[CHECK_AXIS_DIM] = (uint8_t)d;
                row.value[CHECK_AXIS_DATA] = random_value(c, CHECK_AXIS_DATA, 0);
                row.value[CHECK_AXIS_DTYPE] = random_value(c, CHECK_AXIS_DTYPE, 0);
                row.value[CHECK_AXIS_ISA] = random_value(c, CHECK_AXIS_ISA, 50);
                (void)add_row(c, &row, row_is_accepted(c, &row, UINT64_MAX));
            }
}

typedef struct pair {
    uint8_t a, va, b, vb;
} pair;

static pair *list_pairs(cover *c, uint32_t *count) {
    uint64_t total = 0;
    const check_axis *axis = c->axes->axis;
    for (uint32_t a = 0; a < c->axes->count; a++)
        for (uint32_t b = a + 1; b < c->axes->count; b++) total += (uint64_t)axis[a].count * axis[b].count;
    pair *pairs = malloc((total + 1) * sizeof *pairs);
    if (pairs == NULL) check_out_of_memory();
    uint32_t n = 0;
    for (uint32_t a = 0; a < c->axes->count; a++)
        for (uint32_t b = a + 1; b < c->axes->count; b++)
            for (uint32_t va = 0; va < axis[a].count; va++)
                for (uint32_t vb = 0; vb < axis[b].count; vb++)
                    pairs[n++] = (pair){(uint8_t)a, (uint8_t)va, (uint8_t)b, (uint8_t)vb};
    for (uint32_t i = n; i > 1; i--) { /* Fisher-Yates */
        uint32_t j = check_random_below(&c->random, i);
        pair other = pairs[i - 1];
        pairs[i - 1] = pairs[j];
        pairs[j] = other;
    }
    *count = n;
    return pairs;
}

static void cover_pairs(cover *c) {
    uint32_t count;
    pair *pairs = list_pairs(c, &count);
    for (uint32_t i = 0; i < count; i++) {
        pair p = pairs[i];
        if (*pair_state(c, p.a, p.va, p.b, p.vb) == PAIR_OPEN) cover_pair(c, p.a, p.va, p.b, p.vb);
    }
    check_board *board = c->worker->board;
    board->pairs = count;
    for (uint32_t i = 0; i < count; i++)
        board->pairs_accepted +=
            *pair_state(c, pairs[i].a, pairs[i].va, pairs[i].b, pairs[i].vb) == PAIR_COVERED;
    free(pairs);
}

/* Rows of which each brings a value that none before it has come first, then the rest: a fraction takes
 * from the front. Accepted rows count; refused ones go to the end of either part. */
static void order_rows(cover *c) {
    check_board *board = c->worker->board;
    bool *seen = calloc(c->values, sizeof *seen);
    if (seen == NULL) check_out_of_memory();
    for (uint32_t i = board->row_count; i > 1; i--) {
        uint32_t j = check_random_below(&c->random, i);
        check_row other = board->rows[i - 1];
        board->rows[i - 1] = board->rows[j];
        board->rows[j] = other;
    }
    uint32_t front = 0;
    for (uint32_t i = 0; i < board->row_count; i++) {
        check_row row = board->rows[i];
        bool brings = false;
        for (uint32_t a = 0; a < c->axes->count; a++) {
            if (row.accepted && !seen[c->first[a] + row.value[a]]) brings = true;
            if (row.accepted) seen[c->first[a] + row.value[a]] = true;
        }
        if (!brings) continue;
        board->rows[i] = board->rows[front];
        board->rows[front++] = row;
    }
    free(seen);
}

/* Every head_dim that the descriptor promises is accepted somewhere. */
static void look_at_head_dims(cover *c) {
    const kvant_descriptor *d = c->axes->descriptor;
    const check_axis *dims = &c->axes->axis[CHECK_AXIS_DIM];
    if (c->blind || !check_begin(c->worker, CHECK_HEAD_DIMS)) return;
    c->worker->slot->text[0] = '\0';
    for (uint32_t v = 0; v < dims->count; v++) {
        uint32_t dim = (uint32_t)dims->values[v].integer;
        if (dim < d->head_dim_min || dim > d->head_dim_max || dim % d->head_dim_multiple != 0) continue;
        bool accepted = false;
        for (uint32_t i = 0; i < c->worker->board->row_count && !accepted; i++)
            accepted =
                c->worker->board->rows[i].accepted && c->worker->board->rows[i].value[CHECK_AXIS_DIM] == v;
        for (uint32_t i = 0; i < 400 && !accepted; i++) {
            check_row row;
            for (uint32_t a = 0; a < c->axes->count; a++) row.value[a] = random_value(c, a, i % 100);
            row.value[CHECK_AXIS_DIM] = (uint8_t)v;
            accepted = row_is_accepted(c, &row, UINT64_MAX);
        }
        c->worker->slot->text[0] = '\0';
        if (!accepted)
            check_fail(
                c->worker, CHECK_HEAD_DIMS,
                "the descriptor promises head_dim %u to %u in steps of %u, and plan refuses %u with all "
                "parameters that were tried",
                d->head_dim_min, d->head_dim_max, d->head_dim_multiple, dim);
    }
}

void check_cover(check_worker *worker, bool blind) {
    cover c = {.worker = worker,
               .axes = &worker->axes,
               .random = check_random_stream(worker->options->seed, 2),
               .blind = blind};
    check_board *board = worker->board;
    board->product = check_axes_product(&worker->axes);
    board->row_count = 0;
    board->pairs = board->pairs_accepted = 0;
    for (uint32_t a = 0; a < c.axes->count; a++) {
        c.first[a] = c.values;
        c.values += c.axes->axis[a].count;
    }
    c.pairs = calloc((size_t)c.values * c.values, 1);
    if (c.pairs == NULL) check_out_of_memory();
    atomic_store(&worker->slot->check, CHECK_PLAN);
    if (!worker->options->gpu) add_grid(&c);
    cover_pairs(&c);
    if (!worker->options->gpu) look_at_head_dims(&c);
    order_rows(&c);
    worker->slot->text[0] = '\0';
    free(c.pairs);
}

uint64_t check_cover_count(const check_worker *worker) {
    const check_board *board = worker->board;
    uint64_t count = worker->options->all ? board->product : board->row_count;
    if (worker->options->fraction >= 1) return count;
    uint64_t part = (uint64_t)((double)count * worker->options->fraction);
    return part == 0 ? 1 : part;
}

/* a * b mod n without overflow. */
static uint64_t multiply_modulo(uint64_t a, uint64_t b, uint64_t n) {
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)a * b % n);
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void check_cover_row(const check_worker *worker, uint64_t number, check_row *row) {
    const check_board *board = worker->board;
    if (!worker->options->all) {
        *row = board->rows[number];
        return;
    }
    /* A walk through all of them in steps that have no divisor in common with their number. */
    uint64_t product = board->product;
    check_random random = check_random_stream(worker->options->seed, 3);
    uint64_t step = product < 3 ? 1 : check_random_next(&random) % product | 1;
    while (common_divisor(step, product) != 1) step = (step + 2) % product | 1;
    uint64_t index = multiply_modulo(step, number, product);
    *row = (check_row){.accepted = 1};
    for (uint32_t a = 0; a < worker->axes.count; a++) {
        uint32_t count = worker->axes.axis[a].count;
        row->value[a] = (uint8_t)(index % count);
        index /= count;
    }
}
