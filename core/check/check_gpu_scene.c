/* Scenes of attention on the device. See check_gpu_scene.h. */
#include "check_gpu_scene.h"

#include "check_learn.h"
#include "check_promise.h"

#include <kvant/kit/rope.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa7, PARTNER_TRIES = 30, PARTIAL_GAP = 3, POOL_MORE = 2, SINKS_MOST = 5, SPAN_MOST = 4 };

static void *must_allocate(size_t count, size_t width) {
    void *memory = calloc(count + 1, width);
    if (memory == NULL) check_out_of_memory();
    return memory;
}

/* ---- The other side ------------------------------------------------------------------------------------ */

/* Parameters of its own, drawn at random; everything else that two sides of a layer share is the same. */
static void draw_partner(const check_context *context, check_axes *axes, check_random *random,
                         check_case *c) {
    const check_axes *own = &context->worker->axes;
    check_row row = context->row;
    *axes = *own;
    axes->axis[CHECK_AXIS_DIM] = own->axis[own->gpu + CHECK_GPU_AXIS_DIM];
    row.value[CHECK_AXIS_DIM] = row.value[own->gpu + CHECK_GPU_AXIS_DIM];
    axes->axis[CHECK_AXIS_SIDE].count = 1;
    axes->axis[CHECK_AXIS_SIDE].values[0].integer = 1 - context->configuration.setup.side;
    row.value[CHECK_AXIS_SIDE] = 0;
    for (uint32_t a = CHECK_AXIS_PARAM; a < own->gpu; a++)
        row.value[a] = check_random_below(random, 3) == 0
                           ? (uint8_t)own->axis[a].fallback
                           : (uint8_t)check_random_below(random, own->axis[a].count);
    if (!check_case_create(axes, &row, check_random_next(random), c)) check_out_of_memory();
    c->setup.block_tokens = context->configuration.setup.block_tokens;
    c->block_exact = true;
}

static bool plan_partner(check_worker *worker, check_case *c, kvant_layout *layout) {
    *layout = (kvant_layout){.struct_size = sizeof *layout};
    kvant_status status = check_call_plan(worker, &c->setup, layout, NULL);
    if (status == KVANT_ERROR_MISSING && check_learn(worker, c, NULL) == KVANT_OK) {
        *layout = (kvant_layout){.struct_size = sizeof *layout};
        status = check_call_plan(worker, &c->setup, layout, NULL);
    }
    return status == KVANT_OK && check_gpu_accepts(worker, &c->setup, layout);
}

/* pair is pure, and says why it refuses. */
static kvant_status ask_pair(check_worker *worker, const kvant_setup *key, const kvant_setup *value) {
    const kvant_gpu *table = worker->gpu->table;
    kvant_gpu_plan one = {.struct_size = sizeof one, .kernel_count = 1}, two = one;
    kvant_diag diag = check_fresh_diag();
    kvant_status status = check_call_gpu_pair(worker, table, key, value, &one.kernels[0], &diag);
    kvant_status again = check_call_gpu_pair(worker, table, key, value, &two.kernels[0], NULL);
    const char *fault = status != KVANT_OK ? check_refusal_fault(status, &diag) : NULL;
    if (again != status || memcmp(&one, &two, sizeof one) != 0)
        check_fail(worker, CHECK_GPU_ATTEND, "pair answers differently when asked again");
    if (fault != NULL)
        check_fail(worker, CHECK_GPU_ATTEND, "pair refuses with status %d, and %s", status, fault);
    diag = (kvant_diag){.struct_size = sizeof diag};
    if (status == KVANT_OK && gpu_plan_vet(&one, &diag) != KVANT_OK) {
        check_fail(worker, CHECK_GPU_ATTEND, "pair: %s", diag.message);
        return KVANT_ERROR_PLUGIN_BROKEN;
    }
    return status;
}

static void refused(check_worker *worker) {
    if (worker->running != CHECK_GPU_ATTEND || check_has_failed(worker, CHECK_GPU_ATTEND)) return;
    worker->ran &= ~((uint64_t)1 << CHECK_GPU_ATTEND);
    atomic_fetch_add(&worker->board->tallies[CHECK_GPU_ATTEND].refused, 1);
}

/* Opens the other side for a setup that goes together with the configuration's. */
static bool open_partner(check_scene *scene, check_random *random) {
    check_context *context = scene->context;
    check_worker *worker = context->worker;
    uint32_t own = context->configuration.setup.side;
    check_scene_side *other = &scene->side[1 - own];
    check_axes *axes = must_allocate(1, sizeof *axes);
    kvant_layout layout;
    bool found = false;
    for (uint32_t i = 0; i < PARTNER_TRIES && !found; i++) {
        draw_partner(context, axes, random, &other->partner);
        const kvant_setup *setups[2];
        setups[own] = &context->configuration.setup;
        setups[1 - own] = &other->partner.setup;
        found = plan_partner(worker, &other->partner, &layout) &&
                ask_pair(worker, setups[0], setups[1]) == KVANT_OK;
        if (!found) check_case_free(&other->partner);
    }
    free(axes);
    if (!found) {
        refused(worker);
        return false;
    }
    kvant_status status = check_subject_open(worker, &other->own, &other->partner.setup, &layout, NULL);
    if (status == KVANT_ERROR_MISSING && other->partner.setup.tensor_count == 0 &&
        check_learn(worker, &other->partner, NULL) == KVANT_OK)
        status = check_subject_open(worker, &other->own, &other->partner.setup, &layout, NULL);
    return status == KVANT_OK; /* else check "open" of such a configuration says so */
}

static bool open_codecs(check_scene *scene) {
    check_worker *worker = scene->context->worker;
    for (uint32_t s = 0; s < 2; s++) {
        check_scene_side *side = &scene->side[s];
        if (side->subject == NULL) continue;
        if (check_gpu_open(worker, side->subject, &side->codec) != KVANT_OK) return false;
        side->is_open = true;
        if (gpu_codec_offers(&side->codec, KVANT_GPU_QUERY) ||
            gpu_codec_offers(&side->codec, KVANT_GPU_FINISH)) {
            check_note(worker, "attention with a query or finish kernel is not compared with the CPU's yet");
            return false;
        }
    }
    return true;
}

static bool open_pair(check_scene *scene) {
    check_worker *worker = scene->context->worker;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = gpu_codec_pair(&scene->side[0].codec, scene->side[0].subject->setup,
                                         scene->side[1].subject->setup, &diag);
    if (status == KVANT_ERROR_UNSUPPORTED)
        refused(worker);
    else if (status != KVANT_OK)
        check_fail(worker, CHECK_GPU_ATTEND, "%s", diag.message);
    return status == KVANT_OK;
}

/* ---- The sequence -------------------------------------------------------------------------------------- */

static void choose_lives(check_scene *scene, check_random *random, bool ragged) {
    for (uint32_t b = 0; b < scene->blocks; b++) {
        uint32_t first = b == 0 ? scene->sinks : 0, count = scene->block - first;
        if (ragged) {
            uint32_t from = check_random_below(random, count + 1);
            first += from;
            count = check_random_below(random, count - from + 1);
        }
        scene->live_first[b] = first;
        scene->live_count[b] = count;
        for (uint32_t t = 0; t < count; t++) scene->lives[b * scene->block + first + t] = true;
    }
    for (uint32_t t = 0; t < scene->sinks; t++) scene->lives[t] = true;
    for (uint32_t t = scene->blocks * scene->block; t < scene->tokens; t++) scene->lives[t] = true;
}

static void choose_sight(check_scene *scene, check_random *random) {
    const check_context *context = scene->context;
    const check_axes *axes = &context->worker->axes;
    int64_t sight = check_axes_value(axes, &context->row, axes->gpu + CHECK_GPU_AXIS_SIGHT);
    bool mixed = sight == CHECK_SIGHT_MIXED, ragged = mixed || sight == CHECK_SIGHT_LIVE;
    uint32_t key_dim = scene->side[0].dim;
    if (mixed || sight == CHECK_SIGHT_WINDOW) scene->window = 1 + check_random_below(random, scene->tokens);
    if (ragged && scene->blocks > 0) {
        uint32_t most = scene->block < SINKS_MOST ? scene->block : SINKS_MOST;
        scene->sinks = check_random_below(random, most + 1);
    }
    if (mixed || sight == CHECK_SIGHT_CAP) {
        scene->soft_cap = (float)(2 + 20 * check_random_unit(random));
        scene->center = must_allocate((size_t)scene->heads * key_dim, sizeof(float));
        for (uint32_t i = 0; i < scene->heads * key_dim; i++)
            scene->center[i] = (float)check_random_normal(random);
    }
    choose_lives(scene, random, ragged);
}

/* Ordinary rows; or some at the ends of F16's range, whose groups span more than F16 holds. Logits of such
 * keys are brought back to where a softmax means something. */
static void choose_data(check_scene *scene, check_random *random) {
    check_data given = scene->context->configuration.data;
    for (uint32_t s = 0; s < 2; s++) {
        bool huge = check_random_below(random, 4) == 0;
        uint32_t ordinary = check_random_below(random, CHECK_DATA_RANGE + 1);
        scene->side[s].data = huge ? CHECK_DATA_HUGE : (check_data)ordinary;
        if (given < CHECK_DATA_COUNT && (check_data_is_ordinary(given) || given == CHECK_DATA_HUGE))
            scene->side[s].data = given;
    }
    if (scene->side[0].data == CHECK_DATA_HUGE) scene->scale /= 4096;
}

static void choose_shape(check_scene *scene, check_random *random) {
    const check_context *context = scene->context;
    const check_axes *axes = &context->worker->axes;
    const kvant_setup *setup = &context->configuration.setup;
    scene->block = setup->block_tokens;
    scene->heads = setup->kv_heads;
    scene->group = setup->q_heads / setup->kv_heads;
    switch (check_axes_value(axes, &context->row, axes->gpu + CHECK_GPU_AXIS_TOKENS)) {
    case CHECK_TOKENS_ONE:
        scene->tokens = 1;
        break;
    case CHECK_TOKENS_BEFORE_BLOCK:
        scene->tokens = scene->block > 1 ? scene->block - 1 : 1;
        break;
    case CHECK_TOKENS_BLOCK:
        scene->tokens = scene->block;
        break;
    case CHECK_TOKENS_AFTER_BLOCK:
        scene->tokens = scene->block + 1;
        break;
    default:
        scene->tokens = 10 * scene->block + 7;
    }
    scene->blocks = scene->tokens / scene->block;
    scene->positions = 1 + check_random_below(random, scene->tokens < 3 ? scene->tokens : 3);
    scene->rows = scene->positions * scene->group;
    scene->span = 1 + check_random_below(random, SPAN_MOST);
    scene->spans = scene->blocks > 0 ? (scene->blocks + scene->span - 1) / scene->span : 1;
    scene->items = scene->spans * scene->heads;
    scene->first_position = check_random_below(random, 2) == 0 ? 0 : 5000000000;
    scene->scale = (float)((0.5 + check_random_unit(random)) / sqrt((double)setup->head_dim));
    choose_data(scene, random);
    scene->partial_stride = 2 + scene->side[1].dim + PARTIAL_GAP;
    scene->item_stride = (scene->rows * scene->partial_stride + 63) / 64 * 64;
    scene->live_first = must_allocate(scene->blocks, sizeof(uint32_t));
    scene->live_count = must_allocate(scene->blocks, sizeof(uint32_t));
    scene->lives = must_allocate(scene->tokens, sizeof(bool));
}

const float *check_scene_row(const check_scene *scene, uint32_t side, uint32_t token, uint32_t head) {
    const check_scene_side *s = &scene->side[side];
    return s->seen + ((size_t)token * scene->heads + head) * s->dim;
}

/* ---- Rows of a side ------------------------------------------------------------------------------------ */

static bool keeps_before_rope(const check_scene *scene, uint32_t side) {
    const check_subject *subject = scene->side[side].subject;
    return (subject->layout.flags & KVANT_LAYOUT_KEYS_BEFORE_ROPE) && subject->setup->rope != NULL;
}

/* Codes of such keys are turned by whoever scores, raw rows by whoever stored them. */
static void turn_rows(check_scene *scene, check_scene_side *side) {
    const kvant_rope *rope = side->subject->setup->rope;
    float *turns = must_allocate(2 * kvant_rope_pairs(rope), sizeof *turns);
    for (uint32_t t = 0; t < scene->tokens; t++) {
        bool coded = t >= scene->sinks && t < scene->blocks * scene->block;
        kvant_rope_turns(rope, scene->first_position + t, turns);
        for (uint32_t h = 0; h < scene->heads; h++) {
            float *row = side->seen + ((size_t)t * scene->heads + h) * side->dim;
            kvant_rope_apply(rope, turns, row);
            for (uint32_t c = 0; c < side->dim && !coded; c++)
                row[c] = check_data_round((double)row[c], side->subject->setup->dtype);
        }
    }
    free(turns);
}

static void send_turns(check_scene *scene, const kvant_rope *rope) {
    check_worker *worker = scene->context->worker;
    size_t width = 2 * kvant_rope_pairs(rope);
    float *first = must_allocate(scene->blocks * width, sizeof *first);
    float *offset = must_allocate(scene->block * width, sizeof *offset);
    for (uint32_t b = 0; b < scene->blocks; b++) {
        kvant_rope_turns(rope, scene->first_position + (uint64_t)b * scene->block, first + b * width);
        for (size_t i = 0; i < width; i++) first[b * width + i] *= (float)rope->magnitude;
    }
    for (uint32_t t = 0; t < scene->block; t++) kvant_rope_turns(rope, t, offset + t * width);
    check_room_put(worker, &scene->first_turns, "first_turns", first, scene->blocks * width * sizeof *first,
                   (check_placing){0});
    check_room_put(worker, &scene->offset_turns, "offset_turns", offset,
                   scene->block * width * sizeof *offset, (check_placing){0});
    free(offset);
    free(first);
}

/* Extents in any order, with others between them that nobody names. */
static void scatter(const check_scene *scene, check_scene_side *side, check_random *random) {
    uint32_t count = scene->blocks + POOL_MORE;
    side->index = must_allocate(count, sizeof *side->index);
    side->step = must_allocate(count, sizeof *side->step);
    for (uint32_t i = 0; i < count; i++) side->index[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = check_random_below(random, i), other = side->index[i - 1];
        side->index[i - 1] = side->index[j];
        side->index[j] = other;
    }
}

static bool encode_blocks(check_scene *scene, check_scene_side *side, check_random *random, bool arbitrary) {
    check_worker *worker = scene->context->worker;
    const kvant_layout *l = &side->subject->layout;
    size_t row = (size_t)scene->heads * side->dim, block = row * scene->block;
    scatter(scene, side, random);
    side->stride = ((size_t)check_layout_largest(l) + l->alignment - 1) / l->alignment * l->alignment;
    /* The last extent ends where the memory ends. */
    size_t size = (scene->blocks + POOL_MORE - 1) * side->stride + (size_t)check_layout_largest(l);
    check_room_create(worker, &side->pool, "extents", size, (check_placing){.alignment = l->alignment});
    for (uint32_t b = 0; b < scene->blocks; b++) {
        const check_encoding how = {.poison = POISON,
                                    .scratch = POISON,
                                    .first_position = scene->first_position + (uint64_t)b * scene->block};
        check_extent extent;
        uint64_t step = 0;
        float *decoded = must_allocate(block, sizeof *decoded);
        bool good = check_subject_encode(side->subject, side->raw + b * block, &how, &extent, NULL) &&
                    check_subject_decode_all(side->subject, &extent, CHECK_GPU_ATTEND, decoded);
        if (good) {
            (void)check_layout_has_size(l, extent.size, &step);
            side->step[b] = (uint32_t)step;
            memcpy(check_room_bytes(&side->pool) + side->index[b] * side->stride, extent.buffer.data,
                   extent.size);
            for (size_t i = 0; i < block; i++)
                if (b * scene->block + i / row >= scene->sinks) side->seen[b * block + i] = decoded[i];
        }
        check_extent_free(worker, &extent);
        free(decoded);
        if (!good) return false;
    }
    for (size_t i = 0; i < size && arbitrary; i++)
        check_room_bytes(&side->pool)[i] = (unsigned char)check_random_next(random);
    check_room_send(worker, &side->pool);
    return true;
}

static void send_run(check_scene *scene, check_scene_side *side, uint32_t run, uint32_t first,
                     uint32_t tokens, check_form form) {
    check_worker *worker = scene->context->worker;
    if (tokens == 0) return;
    check_rows_create(worker, &side->rows[run], side->subject->setup->dtype, tokens, scene->heads, side->dim,
                      form);
    check_buffer_fill(&side->rows[run].buffer, POISON);
    check_rows_store(&side->rows[run], side->seen + (size_t)first * scene->heads * side->dim);
    check_gpu_rows_put(worker, &side->on_device[run], &side->rows[run], false);
}

static bool make_side(check_scene *scene, uint32_t number, check_random *random, bool arbitrary) {
    check_scene_side *side = &scene->side[number];
    const kvant_setup *setup = side->subject->setup;
    size_t count = (size_t)scene->tokens * scene->heads * side->dim;
    side->raw = must_allocate(count, sizeof *side->raw);
    side->seen = must_allocate(count, sizeof *side->seen);
    check_data_fill(side->data, setup->dtype, scene->tokens, scene->heads, side->dim, random, side->raw);
    memcpy(side->seen, side->raw, count * sizeof *side->raw);
    if (!encode_blocks(scene, side, random, arbitrary)) return false;
    if (keeps_before_rope(scene, number)) {
        turn_rows(scene, side);
        send_turns(scene, setup->rope);
    }
    uint32_t tail = scene->blocks * scene->block;
    send_run(scene, side, 0, 0, scene->sinks, (check_form)check_random_below(random, CHECK_FORM_COUNT));
    send_run(scene, side, 1, tail, scene->tokens - tail,
             (check_form)check_random_below(random, CHECK_FORM_COUNT));
    return true;
}

static void send_queries(check_scene *scene, check_random *random) {
    check_worker *worker = scene->context->worker;
    const kvant_setup *setup = scene->side[0].subject->setup;
    uint32_t heads = scene->heads * scene->group, dim = scene->side[0].dim;
    scene->queries = must_allocate((size_t)scene->positions * heads * dim, sizeof *scene->queries);
    check_data_fill(CHECK_DATA_NORMAL, setup->dtype, scene->positions, heads, dim, random, scene->queries);
    check_rows_create(worker, &scene->query_rows, setup->dtype, scene->positions, heads, dim,
                      (check_form)check_random_below(random, CHECK_FORM_COUNT));
    check_buffer_fill(&scene->query_rows.buffer, POISON);
    check_rows_store(&scene->query_rows, scene->queries);
    check_gpu_rows_put(worker, &scene->queries_room, &scene->query_rows, false);
    if (scene->center != NULL)
        check_room_put(worker, &scene->center_room, "center", scene->center,
                       (size_t)scene->heads * dim * sizeof(float), (check_placing){0});
}

static kvant_gpu_view run_view(const check_scene_side *side, uint32_t run) {
    const kvant_gpu_view none = {0, 0, 0, 0};
    return side->subject != NULL ? check_gpu_rows_view(&side->on_device[run], &side->rows[run]) : none;
}

static uint32_t entry(const uint32_t *list, uint32_t index) {
    return list != NULL ? list[index] : 0;
}

static void send_lists(check_scene *scene) {
    check_worker *worker = scene->context->worker;
    kvant_gpu_reference *references = must_allocate(scene->blocks, sizeof *references);
    for (uint32_t b = 0; b < scene->blocks; b++)
        references[b] =
            (kvant_gpu_reference){.first_position = scene->first_position + (uint64_t)b * scene->block,
                                  .key_index = entry(scene->side[0].index, b),
                                  .value_index = entry(scene->side[1].index, b),
                                  .key_step = entry(scene->side[0].step, b),
                                  .value_step = entry(scene->side[1].step, b),
                                  .live_first = scene->live_first[b],
                                  .live_count = scene->live_count[b]};
    check_room_put(worker, &scene->references, "references", references, scene->blocks * sizeof *references,
                   (check_placing){0});
    free(references);
    uint32_t tail = scene->blocks * scene->block, first[2] = {0, tail},
             tokens[2] = {scene->sinks, scene->tokens - tail};
    kvant_gpu_run runs[2] = {{.tokens = 0}, {.tokens = 0}};
    for (uint32_t i = 0; i < 2; i++) {
        if (tokens[i] == 0) continue;
        runs[i] = (kvant_gpu_run){.keys = run_view(&scene->side[0], i),
                                  .values = run_view(&scene->side[1], i),
                                  .first_position = scene->first_position + first[i],
                                  .tokens = tokens[i]};
    }
    check_room_put(worker, &scene->runs, "runs", runs, sizeof runs, (check_placing){0});
}

bool check_scene_create(check_context *context, check_scene *scene, check_scene_kind kind) {
    check_random random = check_random_stream(context->configuration.seed, 99);
    uint32_t own = context->configuration.setup.side;
    *scene = (check_scene){.context = context};
    scene->side[own].subject = &context->subject;
    if (kind.pair) {
        scene->side[1 - own].subject = &scene->side[1 - own].own;
        if (!open_partner(scene, &random)) return false;
    }
    if (!open_codecs(scene) || (kind.pair && !open_pair(scene))) return false;
    for (uint32_t s = 0; s < 2; s++)
        if (scene->side[s].subject != NULL) scene->side[s].dim = scene->side[s].subject->setup->head_dim;
    choose_shape(scene, &random);
    choose_sight(scene, &random);
    for (uint32_t s = 0; s < 2; s++)
        if (scene->side[s].subject != NULL && !make_side(scene, s, &random, kind.arbitrary)) return false;
    if (scene->side[0].subject != NULL) send_queries(scene, &random);
    send_lists(scene);
    return true;
}

kvant_gpu_item check_scene_item(const check_scene *scene, uint32_t number) {
    uint32_t span = number / scene->heads, first = span * scene->span;
    uint32_t left = scene->blocks - first, tail = scene->tokens - scene->blocks * scene->block;
    uint32_t sinks_run = span == 0 && scene->sinks > 0, tail_run = span + 1 == scene->spans && tail > 0;
    size_t turns = scene->first_turns.size / (scene->blocks > 0 ? scene->blocks : 1);
    const kvant_gpu_view none = {0, 0, 0, 0};
    return (kvant_gpu_item){
        .queries =
            scene->queries != NULL ? check_gpu_rows_view(&scene->queries_room, &scene->query_rows) : none,
        .references = scene->references.data + first * sizeof(kvant_gpu_reference),
        .runs = scene->runs.data + (sinks_run ? 0 : sizeof(kvant_gpu_run)),
        .first_turns = scene->first_turns.data != 0 ? scene->first_turns.data + first * turns : 0,
        .query_position = scene->first_position + scene->tokens - scene->positions,
        .kv_head = number % scene->heads,
        .positions = scene->positions,
        .reference_count = left < scene->span ? left : scene->span,
        .run_count = sinks_run + tail_run};
}

kvant_gpu_layer check_scene_layer(const check_scene *scene) {
    return (kvant_gpu_layer){.key_base = scene->side[0].pool.data,
                             .key_stride = scene->side[0].stride,
                             .value_base = scene->side[1].pool.data,
                             .value_stride = scene->side[1].stride,
                             .value_state = scene->side[1].codec.state,
                             .center = scene->center_room.data,
                             .offset_turns = scene->offset_turns.data,
                             .scale = scene->scale,
                             .soft_cap = scene->soft_cap,
                             .window = scene->window,
                             .q_heads = scene->heads * scene->group};
}

void check_scene_free(check_scene *scene) {
    check_worker *worker = scene->context->worker;
    uint32_t own = scene->context->configuration.setup.side;
    check_room *const rooms[] = {&scene->queries_room, &scene->center_room, &scene->references,
                                 &scene->runs,         &scene->first_turns, &scene->offset_turns};
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) check_room_free(worker, rooms[i]);
    if (scene->query_rows.buffer.data != NULL) check_rows_free(worker, &scene->query_rows);
    for (uint32_t s = 0; s < 2; s++) {
        check_scene_side *side = &scene->side[s];
        for (uint32_t i = 0; i < 2; i++) {
            check_room_free(worker, &side->on_device[i]);
            if (side->rows[i].buffer.data != NULL) check_rows_free(worker, &side->rows[i]);
        }
        check_room_free(worker, &side->pool);
        if (side->is_open) gpu_codec_close(&side->codec);
        free(side->raw);
        free(side->seen);
        free(side->index);
        free(side->step);
    }
    check_scene_side *other = &scene->side[1 - own];
    check_subject_close(&other->own);
    if (other->partner.values != NULL) check_case_free(&other->partner);
    free(scene->live_first);
    free(scene->live_count);
    free(scene->lives);
    free(scene->center);
    free(scene->queries);
}
