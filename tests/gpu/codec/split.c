/* Attention in three launches, score, softmax and mix, for pairs of codecs from one plugin and from two,
 * against attention in double precision over rows that the CPU decoded. */
#include "split_scene.h"

#include "support/sanitized.h"
#include "support/test.h"

#include <gpu/core_kernels.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { F32 = KVANT_DTYPE_F32, F16 = KVANT_DTYPE_F16, BF16 = KVANT_DTYPE_BF16 };

static void play(split_room *room, const split_shape *s, uint64_t seed) {
    split_scene scene;
    if (getenv("KVANT_GPU_VERBOSE") != NULL)
        print_message(
            "  %s %s dim %u, %s %s dim %u, %u heads of %u, %u positions, %u x %u tokens, dtype %u\n",
            s->sides[0].plugin, s->sides[0].parameters, s->sides[0].dim, s->sides[1].plugin,
            s->sides[1].parameters, s->sides[1].dim, s->heads, s->group, s->positions, s->blocks, s->block,
            s->dtype);
    split_scene_open(&scene, room, s, seed);
    split_scene_attend(&scene);
    split_scene_compare(&scene);
    split_scene_close(&scene);
}

/* Each with something that others have not. */
static const split_shape shapes[] = {
    /* one token a block, one row */
    {.sides = {{"kivi", "bits=2 group=1", 32}, {"raw", "", 64}},
     .heads = 1,
     .group = 1,
     .positions = 1,
     .block = 1,
     .blocks = 5,
     .span = 2,
     .dtype = F16},
    /* a window that leaves out whole references, and begins within one */
    {.sides = {{"raw", "", 64}, {"kivi", "bits=4 group=32", 96}},
     .heads = 2,
     .group = 4,
     .positions = 3,
     .block = 32,
     .blocks = 7,
     .span = 3,
     .dtype = BF16,
     .window = 45,
     .queries = GPU_ROWS_ODD},
    /* a window of one: most partials see nothing, whose cap is still -infinity; rows of two groups of
     * eight */
    {.sides = {{"kivi", "bits=8 group=64", 80}, {"raw", "format=f32", 80}},
     .heads = 1,
     .group = 8,
     .positions = 2,
     .block = 64,
     .blocks = 3,
     .span = 1,
     .dtype = F32,
     .window = 1,
     .soft_cap = 3,
     .whole = true,
     .queries = GPU_ROWS_SPREAD},
    /* soft cap, centred keys, accumulators, tokens behind the queries */
    {.sides = {{"kivi", "bits=3 group=8", 36}, {"kivi", "bits=3 group=7", 20}},
     .heads = 3,
     .group = 3,
     .positions = 2,
     .block = 24,
     .blocks = 9,
     .span = 4,
     .dtype = F16,
     .ahead = 30,
     .soft_cap = 5,
     .center = true,
     .accumulators = true,
     .queries = GPU_ROWS_BACKWARD},
    /* blocks that are no multiple of four tokens, rows that are no multiple of sixteen bytes */
    {.sides = {{"raw", "", 7}, {"raw", "", 9}},
     .heads = 2,
     .group = 5,
     .positions = 2,
     .block = 5,
     .blocks = 11,
     .span = 4,
     .dtype = BF16,
     .ahead = 7,
     .window = 20,
     .center = true,
     .queries = GPU_ROWS_ELEMENT},
    /* wide heads: one slice of the mix, the widest too */
    {.sides = {{"raw", "format=f16", 256}, {"kivi", "bits=1 group=128", 1024}},
     .heads = 1,
     .group = 1,
     .positions = 1,
     .block = 128,
     .blocks = 2,
     .span = 2,
     .dtype = BF16},
    {.sides = {{"kivi", "bits=1 group=4", 1024}, {"raw", "", 520}},
     .heads = 1,
     .group = 4,
     .positions = 3,
     .block = 4,
     .blocks = 6,
     .span = 6,
     .dtype = F16},
    /* groups whose largest codes lie beyond what the type holds */
    {.sides = {{"kivi", "bits=4 group=16", 64}, {"kivi", "bits=2 group=16", 48}},
     .heads = 1,
     .group = 2,
     .positions = 1,
     .block = 32,
     .blocks = 3,
     .span = 2,
     .dtype = F16,
     .wide = true},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void stated_shapes(void **state) {
    split_room room;
    (void)state;
    split_room_begin(&room, 110);
    for (uint32_t i = 0; i < SHAPES; i++) play(&room, &shapes[i], i + 1);
    split_room_end(&room);
}

/* A NaN or an infinity that one row sees is nothing to those that do not see it. */
static void spoilt_token(void **state) {
    static const split_shape shape = {.sides = {{"raw", "", 64}, {"raw", "", 80}},
                                      .heads = 2,
                                      .group = 3,
                                      .positions = 2,
                                      .block = 32,
                                      .blocks = 3,
                                      .span = 2,
                                      .dtype = F16,
                                      .ahead = 5,
                                      .whole = true,
                                      .spoilt = true};
    split_room room;
    (void)state;
    split_room_begin(&room, 110);
    play(&room, &shape, 1);
    split_room_end(&room);
}

enum { ALONE_ROWS = 5, ALONE_BLOCK = 10, ALONE_BLOCKS = 3, ALONE_STRIDE = 33 };

/* The softmax alone, on logits that no score kernel would write. Row r stands at position 20 + r; the blocks
 * lie in descending order, tokens 2 to 7 of each live. */
static void softmax_alone(void **state) {
    const kvant_gpu_reference references[ALONE_BLOCKS] = {
        {.first_position = 20, .live_first = 2, .live_count = 6},
        {.first_position = 10, .live_first = 2, .live_count = 6},
        {.first_position = 0, .live_first = 2, .live_count = 6}};
    const core_attend_state core = {.kv_heads = 1, .value_dim = 3, .block_tokens = ALONE_BLOCK};
    const kvant_gpu_layer layer = {.window = 12, .q_heads = 1, .soft_cap = 0};
    const uint32_t one = 1;
    float logits[ALONE_ROWS * ALONE_STRIDE], partials[ALONE_ROWS][6], before[ALONE_ROWS * ALONE_STRIDE];
    kvant_diag diag = {.struct_size = sizeof diag};
    split_room room;
    uint64_t seed = 4;
    (void)state;
    memset(partials, 0xFF, sizeof partials);
    for (uint32_t i = 0; i < ALONE_ROWS * ALONE_STRIDE; i++) logits[i] = (float)kvant_test_normal(&seed);
    for (uint32_t r = 0; r < ALONE_ROWS; r++) {
        float *row = logits + r * ALONE_STRIDE;
        row[8] = row[30] = NAN;              /* dead, nobody's */
        row[r + 1] = r % 2 == 0 ? 100 : NAN; /* ahead of the row */
        row[22] = INFINITY;                  /* position 2, out of the window */
        if (r == 2) row[10 + 5] = NAN;
        if (r == 3) row[10 + 5] = INFINITY;
        for (uint32_t i = 0; i < 30 && r == 4; i++) row[i] = -INFINITY;
    }
    memcpy(before, logits, sizeof logits);
    split_room_begin(&room, 110);
    gpu_rig *rig = &room.rig;
    const gpu_address state_at = gpu_rig_to_device(rig, &core, sizeof core);
    const gpu_address references_at = gpu_rig_to_device(rig, references, sizeof references);
    const gpu_address logits_at = gpu_rig_to_device(rig, logits, sizeof logits);
    const gpu_address partials_at = gpu_rig_to_device(rig, partials, sizeof partials);
    const kvant_gpu_item item = {.references = references_at,
                                 .reference_count = ALONE_BLOCKS,
                                 .logits = logits_at,
                                 .logit_stride = ALONE_STRIDE,
                                 .accumulators = partials_at, /* not 0: not written */
                                 .partial = partials_at,
                                 .partial_stride = 6,
                                 .query_position = 20,
                                 .positions = ALONE_ROWS};
    const kvant_gpu_call call = {.state = state_at,
                                 .jobs = gpu_rig_to_device(rig, &item, sizeof item),
                                 .job_count = gpu_rig_to_device(rig, &one, sizeof one),
                                 .layer = gpu_rig_to_device(rig, &layer, sizeof layer)};
    if (gpu_device_enter(&rig->device, &diag) != KVANT_OK ||
        gpu_launchable_launch(&room.core, &room.soften, 1, &call, rig->stream, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    gpu_device_leave(&rig->device);
    gpu_rig_from_device(rig, call.layer, NULL, 0);
    gpu_rig_from_device(rig, call.job_count, NULL, 0);
    gpu_rig_from_device(rig, call.jobs, NULL, 0);
    gpu_rig_from_device(rig, partials_at, partials, sizeof partials);
    gpu_rig_from_device(rig, logits_at, logits, sizeof logits);
    gpu_rig_from_device(rig, references_at, NULL, 0);
    gpu_rig_from_device(rig, state_at, NULL, 0);
    split_room_end(&room);
    for (uint32_t r = 0; r < ALONE_ROWS; r++) {
        double most = -INFINITY, sum = 0;
        for (uint32_t pass = 0; pass < 2; pass++)
            for (uint32_t i = 0; i < 30; i++) {
                uint32_t t = i % 10, position = 20 - i / 10 * 10 + t;
                double x = (double)before[r * ALONE_STRIDE + i],
                       weight = (double)logits[r * ALONE_STRIDE + i];
                bool seen = t >= 2 && t < 8 && position <= 20 + r && 20 + r - position < 12;
                if (pass == 0 && seen && x > most) most = x;
                if (pass == 0 || (r == 3 && x == INFINITY)) continue;
                double want = seen && x > -INFINITY ? exp(x - most) : 0;
                kvant_assert_close(weight, want, 1e-6);
                sum += want;
            }
        assert_true((double)partials[r][0] == most);
        if (r == 2 || r == 3)
            assert_true(isnan(partials[r][1]));
        else
            kvant_assert_close(partials[r][1], sum, 1e-6 * (1 + sum));
        for (uint32_t v = 2; v < 5; v++) assert_true(partials[r][v] == 0);
        assert_true(isnan(partials[r][5]));                /* as it was */
        assert_true(isnan(logits[r * ALONE_STRIDE + 30])); /* likewise */
    }
}

/* All pairs of two axes' values occur often among random tuples; the seed is fixed. */
static void random_shapes(split_room *room, uint32_t count, uint64_t seed) {
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256}, groups[] = {1, 3, 4, 8},
                          bits[] = {1, 2, 3, 4, 8}, blocks[] = {32, 64, 128};
    static const char *const formats[] = {"format=input", "format=f16", "format=f32", "format=bf16"};
#define PICK(list) ((list)[kvant_test_random(&seed) % (sizeof(list) / sizeof(list)[0])])
    for (uint32_t i = 0; i < count; i++) {
        char kivi[2][32];
        split_shape s = {.heads = 1 + (uint32_t)(kvant_test_random(&seed) % 2),
                         .group = PICK(groups),
                         .positions = 1 + (uint32_t)(kvant_test_random(&seed) % 3),
                         .block = PICK(blocks),
                         .blocks = 2 + (uint32_t)(kvant_test_random(&seed) % 4),
                         .span = 1 + (uint32_t)(kvant_test_random(&seed) % 3),
                         .dtype = F32 + i % 3,
                         .ahead = kvant_test_random(&seed) % 3 == 0 ? 21 : 0,
                         .window = kvant_test_random(&seed) % 3 == 0 ? 77 : 0,
                         .soft_cap = kvant_test_random(&seed) % 3 == 0 ? 2.0f : 0.0f,
                         .center = kvant_test_random(&seed) % 2 == 0,
                         .whole = kvant_test_random(&seed) % 3 == 0,
                         .accumulators = kvant_test_random(&seed) % 3 == 0,
                         .queries = (uint32_t)(kvant_test_random(&seed) % GPU_ROWS_KINDS)};
        for (uint32_t side = 0; side < 2; side++) {
            (void)snprintf(kivi[side], sizeof kivi[side], "bits=%u group=%u", PICK(bits),
                           kvant_test_random(&seed) % 2 == 0 ? 32 : s.block);
            bool raw = (i / 3 + (i >> side)) % 2 != 0;
            s.sides[side] = (split_side){raw ? "raw" : "kivi", raw ? PICK(formats) : kivi[side], PICK(dims)};
        }
        play(room, &s, seed);
    }
#undef PICK
}

/* The PTX that ships. */
static void shipped_ptx(void **state) {
    split_room room;
    (void)state;
    split_room_begin(&room, 110);
    random_shapes(&room, KVANT_TEST_SANITIZED ? 4 : 40, 1);
    split_room_end(&room);
}

/* The source of each cubin, as far as it can be interpreted. */
static void ptx_of_cubins(void **state) {
    static const uint32_t architectures[] = {80, 90, 100, 120};
    (void)state;
    for (uint32_t i = 0; i < 4 && !KVANT_TEST_SANITIZED; i++) {
        split_room room;
        split_room_begin(&room, architectures[i]);
        play(&room, &shapes[3], i);
        random_shapes(&room, 4, architectures[i]);
        split_room_end(&room);
    }
}

/* The same bits on any grid, whatever the order of its blocks and warps. */
static void any_grid(void **state) {
    split_scene scenes[2];
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        split_room room;
        split_room_begin(&room, 110);
        if (!room.rig.is_real) {
            gpu_fake_device.resident = i == 0 ? 1 : 40;
            gpu_fake_device.seed = 5 + i;
        }
        split_scene_open(&scenes[i], &room, &shapes[1], 3);
        split_scene_attend(&scenes[i]);
        split_scene_compare(&scenes[i]);
        float *partials = scenes[i].partials;
        scenes[i].partials = NULL;
        uint32_t items = scenes[i].items;
        size_t rows = scenes[i].rows, stride = scenes[i].partial_stride;
        split_scene_close(&scenes[i]);
        scenes[i].partials = partials;
        if (i == 1)
            kvant_assert_bytes(partials, scenes[0].partials,
                               items * ((rows * stride + 63) / 64 * 64) * sizeof *partials);
        split_room_end(&room);
    }
    free(scenes[0].partials);
    free(scenes[1].partials);
}

/* What a usual shape costs: codes are fetched once for all heads of a group, logits cross memory four times,
 * and shared memory has no bank conflicts. */
static void traffic(void **state) {
    static const split_side sides[][2] = {
        {{"kivi", "bits=4 group=32", 128}, {"kivi", "bits=4 group=32", 128}},
        {{"kivi", "bits=2 group=32", 128}, {"kivi", "bits=2 group=32", 128}},
        {{"raw", "", 128}, {"raw", "", 128}}};
    static const double bits[] = {5, 3, 16}; /* an element, all in */
    split_room room;
    (void)state;
    (void)unsetenv("KVANT_GPU");
    split_room_begin(&room, 110);
    gpu_fake_device.checks = PTX_CHECK_COUNT;
    for (uint32_t i = 0; i < 3; i++) {
        const split_shape s = {.sides = {sides[i][0], sides[i][1]},
                               .heads = 2,
                               .group = 4,
                               .positions = 1,
                               .block = 64,
                               .blocks = 8,
                               .span = 8,
                               .dtype = F16,
                               .whole = true};
        split_scene scene;
        split_scene_open(&scene, &room, &s, 2);
        split_scene_attend(&scene);
        split_scene_compare(&scene);
        double elements = (double)s.heads * scene.tokens * 128;
        double logits = (double)s.heads * scene.tokens * s.group * sizeof(float);
        for (uint32_t launch = 0; launch < SPLIT_LAUNCHES; launch++) {
            static const char *const names[] = {"score", "softmax", "mix"};
            const ptx_counters *n = &scene.counters[launch];
            double codes = launch == SPLIT_SOFTEN ? 0 : elements * bits[i] / 8;
            double least = codes + (launch == SPLIT_SCORE ? 0 : logits);
            double fetched = (double)n->load.block_sectors * 32 / least;
            double written = (double)n->store.block_sectors * 32 / logits;
            double passes = n->shared_load.ideal == 0
                                ? 1
                                : (double)(n->shared_load.wavefronts + n->shared_store.wavefronts) /
                                      (double)(n->shared_load.ideal + n->shared_store.ideal);
            print_message(
                "%s %s, %s: fetched %.3f times, L1 served %.2f times, written %.3f times the logits, "
                "%.3f of the least shared wavefronts, %.3f warp instructions an element\n",
                s.sides[0].plugin, s.sides[0].parameters, names[launch], fetched,
                (double)n->load.sectors * 32 / least, written, passes,
                (double)n->warp_instructions / elements);
            assert_true(fetched < 1.1 && passes < 1.2);
            assert_true(launch == SPLIT_MIX || written < 1.1);
        }
        split_scene_close(&scene);
    }
    split_room_end(&room);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(stated_shapes), cmocka_unit_test(spoilt_token),
                                              cmocka_unit_test(softmax_alone), cmocka_unit_test(shipped_ptx),
                                              cmocka_unit_test(ptx_of_cubins), cmocka_unit_test(any_grid),
                                              cmocka_unit_test(traffic)};
    return kvant_run_tests(tests, argc, argv);
}
