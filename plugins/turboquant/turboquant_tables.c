/* The tables of a state: signs, orders and matrices from the seed, codebooks from kit/lloyd_max.h.
 *
 * Random numbers are splitmix64's: state += 0x9E3779B97F4A7C15, then two xor-shift-multiplies. A sign is -1
 * where bit 63 is set. The stream of the first part's rotation starts at the seed itself, so that its first
 * dim numbers are its signs; every other stream starts at the mixed sum of seed and its own number. */
#include "turboquant_state.h"

#include <kvant/kit/lloyd_max.h>
#include <kvant/kit/root.h>

#include <math.h>

enum { STREAM_ROTATION, STREAM_SKETCH, STREAMS };

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t next_random(uint64_t *stream) {
    *stream += 0x9e3779b97f4a7c15u;
    return mix(*stream);
}

static uint64_t stream_start(uint64_t seed, uint32_t number) {
    return number == 0 ? seed : mix(seed + number * 0xd1342543de82ef95u);
}

/* ---- Room ---------------------------------------------------------------------------------------------- */

static bool is_power_of_two(uint32_t n) {
    return (n & (n - 1)) == 0;
}

static uint32_t rounds_of(const turboquant_state *s, uint32_t dim) {
    return (is_power_of_two(dim) ? 1u : 4u) * (s->doubled ? 2u : 1u);
}

static void *take(char *base, size_t *used, size_t bytes) {
    void *array = base != NULL ? base + *used : NULL;
    *used += turboquant_round_up(bytes, 64);
    return array;
}

static void place_rotation(turboquant_rotation *r, uint32_t dim, uint32_t rounds, char *base, size_t *used) {
    *r = (turboquant_rotation){.dim = dim, .rounds = rounds, .reorders = !is_power_of_two(dim)};
    r->weights = take(base, used, (size_t)rounds * dim * sizeof(float));
    if (r->reorders) r->order = take(base, used, (size_t)rounds * dim * sizeof(uint32_t));
}

/* Points tables behind the state; base = NULL only counts. */
static size_t place(const turboquant_state *s, turboquant_tables *tables, char *base) {
    size_t used = turboquant_round_up(sizeof(turboquant_state), 64);
    for (uint32_t p = 0; p < s->block.part_count; p++) {
        const turboquant_part *part = &s->block.parts[p];
        turboquant_tables *t = &tables[p];
        uint32_t rounds = rounds_of(s, part->dim);
        *t = (turboquant_tables){0};
        place_rotation(&t->rotation, part->dim, rounds, base, &used);
        if (s->block.prod && s->sketch_kind == TURBOQUANT_SKETCH_HADAMARD)
            place_rotation(&t->sketch, part->dim, rounds, base, &used);
        if (s->block.prod && s->sketch_kind == TURBOQUANT_SKETCH_GAUSSIAN)
            t->matrix = take(base, &used, (size_t)part->dim * part->dim * sizeof(float));
        if (part->code_bits == 0) continue;
        t->centroids = take(base, &used, part->levels * sizeof(float));
        t->boundaries = take(base, &used, part->levels * sizeof(float));
        if (part->code_bits < 5) continue;
        t->search.edge = take(base, &used, TURBOQUANT_CELLS * sizeof(float));
        t->search.first = take(base, &used, TURBOQUANT_CELLS * sizeof(uint32_t));
    }
    return used;
}

uint64_t turboquant_state_bytes(const turboquant_state *state) {
    turboquant_tables tables[TURBOQUANT_PARTS];
    return place(state, tables, NULL);
}

/* ---- Contents ------------------------------------------------------------------------------------------ */

static void fill_order(uint32_t *order, uint32_t dim, uint64_t *stream) {
    for (uint32_t i = 0; i < dim; i++) order[i] = i;
    for (uint32_t i = dim - 1; i > 0; i--) { /* Fisher and Yates */
        uint32_t j = (uint32_t)((next_random(stream) >> 32) * (i + 1) >> 32), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static void fill_rotation(turboquant_rotation *r, uint64_t stream) {
    for (uint32_t round = 0; round < r->rounds; round++) {
        float *weights = r->weights + (size_t)round * r->dim;
        if (r->reorders && round > 0) fill_order(r->order + (size_t)round * r->dim, r->dim, &stream);
        for (uint32_t chunk = 1u << 31, i = 0; chunk > 0; chunk /= 2) {
            if ((r->dim & chunk) == 0) continue;
            float weight = (float)(1 / kvant_root((double)chunk));
            for (uint32_t end = i + chunk; i < end; i++)
                weights[i] = next_random(&stream) >> 63 != 0 ? -weight : weight;
        }
    }
}

/* Independent N(0,1) by Box and Muller. */
static void fill_gaussian(float *matrix, size_t count, uint64_t stream) {
    for (size_t i = 0; i < count; i++) {
        double u = ((double)(next_random(&stream) >> 11) + 0.5) * 0x1p-53;
        double v = (double)(next_random(&stream) >> 11) * 0x1p-53;
        matrix[i] = (float)(kvant_root(-2 * kvant_log(u)) * kvant_cos(0x1.921fb54442d18p+2 * v));
    }
}

/* The cell of a number: monotone, whatever rounds in it. */
static uint32_t cell_of(const turboquant_search *search, float t) {
    float cut = t > search->low ? t : search->low;
    cut = cut < search->high ? cut : search->high;
    return (uint32_t)(int32_t)(cut * search->slope + search->offset);
}

/* Every boundary gets a cell of its own, if 2048 cells allow for that. */
static void fill_search(turboquant_tables *t, uint32_t levels) {
    turboquant_search *search = &t->search;
    uint32_t count = levels - 1;
    search->low = t->boundaries[0];
    search->high = t->boundaries[count - 1];
    for (search->slope = 16; search->slope <= 4096; search->slope *= 2) {
        search->offset = 1 - search->low * search->slope;
        search->cells = (uint32_t)(search->high * search->slope + search->offset) + 1;
        if (search->cells > TURBOQUANT_CELLS) break;
        bool alone = true;
        for (uint32_t k = 1; k < count; k++)
            alone &= cell_of(search, t->boundaries[k - 1]) < cell_of(search, t->boundaries[k]);
        if (alone) break;
    }
    if (search->cells > TURBOQUANT_CELLS || search->slope > 4096) {
        search->cells = 0;
        return;
    }
    for (uint32_t k = 0, cell = 0; cell < search->cells; cell++) {
        while (k < count && cell_of(search, t->boundaries[k]) < cell) k++;
        bool here = k < count && cell_of(search, t->boundaries[k]) == cell;
        search->first[cell] = k;
        search->edge[cell] = here ? t->boundaries[k] : HUGE_VALF;
    }
}

static void fill_codebook(const turboquant_state *s, const turboquant_part *part, turboquant_tables *t) {
    double centroids[256], boundaries[256];
    uint32_t dimension = s->codebook == TURBOQUANT_CODEBOOK_SPHERE ? part->dim : 0;
    kvant_lloyd_max(dimension, part->code_bits, centroids, boundaries);
    for (uint32_t k = 0; k < part->levels; k++) t->centroids[k] = (float)centroids[k];
    for (uint32_t k = 0; k + 1 < part->levels; k++) t->boundaries[k] = (float)boundaries[k];
    if (t->search.edge != NULL) fill_search(t, part->levels);
}

void turboquant_tables_make(turboquant_state *s) {
    place(s, s->tables, (char *)s);
    for (uint32_t p = 0; p < s->block.part_count; p++) {
        const turboquant_part *part = &s->block.parts[p];
        turboquant_tables *t = &s->tables[p];
        t->root = (float)kvant_root((double)part->dim);
        t->inverse_root = (float)(1 / kvant_root((double)part->dim));
        fill_rotation(&t->rotation, stream_start(s->seed, STREAMS * p + STREAM_ROTATION));
        uint64_t stream = stream_start(s->seed, STREAMS * p + STREAM_SKETCH);
        if (t->sketch.dim > 0) fill_rotation(&t->sketch, stream);
        if (t->matrix != NULL) fill_gaussian(t->matrix, (size_t)part->dim * part->dim, stream);
        if (part->code_bits > 0) fill_codebook(s, part, t);
    }
}
