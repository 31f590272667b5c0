/* See learner.h. */
#include "support/learner.h"

#include "support/test.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>
#include <kvant/kvant.h>

#include <math.h>
#include <stdlib.h>

learner_behaviour learner;

enum { BITS, BEFORE, SIZED, TASTE, PARAMS };

static const kvant_param params[PARAMS] = {
    [BITS] = {.struct_size = sizeof(kvant_param),
              .type = KVANT_PARAM_INTEGER,
              .name = "bits",
              .unit = "bits",
              .help = "a number that changes bytes",
              .integer_min = 1,
              .integer_max = 8,
              .integer_default = 4},
    [BEFORE] = {.struct_size = sizeof(kvant_param),
                .type = KVANT_PARAM_SWITCH,
                .name = "before",
                .unit = "",
                .help = "keys before RoPE",
                .integer_max = 1},
    [SIZED] = {.struct_size = sizeof(kvant_param),
               .type = KVANT_PARAM_SWITCH,
               .name = "sized",
               .unit = "",
               .help = "sizes depend on the artifact",
               .integer_max = 1},
    [TASTE] = {.struct_size = sizeof(kvant_param),
               .type = KVANT_PARAM_SWITCH,
               .flags = KVANT_PARAM_UNLEARNED,
               .name = "taste",
               .unit = "",
               .help = "nothing that is learned depends on it",
               .integer_max = 1},
};

/* ---- The codec ----------------------------------------------------------------------------------------- */

typedef struct learner_state {
    uint32_t tokens, heads, head_dim;
} learner_state;

static kvant_status learner_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    uint64_t elements = (uint64_t)setup->block_tokens * setup->kv_heads * setup->head_dim;
    layout->block_multiple = 1;
    layout->alignment = 64;
    if (setup->side == KVANT_SIDE_KEY && setup->values[BEFORE].integer != 0)
        layout->flags = KVANT_LAYOUT_KEYS_BEFORE_ROPE;
    if (setup->values[SIZED].integer != 0 && setup->tensor_count == 0)
        return kvant_fail(diag, KVANT_ERROR_MISSING, "sized", "the sizes are in the artifact");
    layout->isa = KVANT_ISA_SCALAR;
    layout->size_min = 4 * elements;
    layout->payload_bits = 32 * elements;
    layout->state_bytes = sizeof(learner_state);
    return KVANT_OK;
}

static kvant_status learner_open(const kvant_setup *setup, const kvant_layout *layout, void *state,
                                 kvant_diag *diag) {
    const kvant_array *range = NULL;
    (void)layout;
    for (uint32_t i = 0; i < setup->tensor_count; i++)
        if (strcmp(setup->tensors[i].name, "range") == 0) range = &setup->tensors[i];
    if (range == NULL) return kvant_fail(diag, KVANT_ERROR_MISSING, "", "there is no tensor \"range\"");
    if (range->dtype != KVANT_DTYPE_F32 || range->rank != 2 || range->shape[0] != setup->total_kv_heads ||
        range->shape[1] != 2)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "", "the tensor \"range\" is not F32 [%u, 2]",
                          setup->total_kv_heads);
    learner_state *s = state;
    *s = (learner_state){setup->block_tokens, setup->kv_heads, setup->head_dim};
    return KVANT_OK;
}

static void learner_close(void *state) {
    (void)state;
}

static kvant_status learner_encode(const void *state, kvant_encode_args *args) {
    const learner_state *s = state;
    float *to = args->extent;
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t h = 0; h < s->heads; h++, to += s->head_dim) kvant_load_row(args->rows, t, h, to);
    args->size = (uint64_t)s->tokens * s->heads * s->head_dim * sizeof(float);
    args->saturated = 0;
    return KVANT_OK;
}

static kvant_status learner_decode(const void *state, const kvant_decode_args *args) {
    const learner_state *s = state;
    for (uint32_t t = 0; t < args->rows->tokens; t++)
        for (uint32_t h = 0; h < args->rows->heads; h++) {
            size_t row = (size_t)(args->first_token + t) * s->heads + args->first_head + h;
            kvant_store_row(args->rows, t, h, (const float *)args->extent->bytes + row * s->head_dim);
        }
    return KVANT_OK;
}

/* ---- Learning ------------------------------------------------------------------------------------------ */

/* One row: sums of the first pass, then range. */
typedef struct lesson {
    double *sum, *count; /* [heads] */
    float *range;        /* [heads, 2] */
} lesson;

typedef struct session {
    const kvant_setup *const *setups;
    uint32_t setup_count, pass;
    lesson *lessons; /* [setup_count] */
} session;

static void *take(size_t count, size_t size) {
    void *memory = calloc(count, size);
    assert_non_null(memory);
    return memory;
}

static kvant_status learner_begin(const kvant_setup *const *setups, uint32_t setup_count, void **out,
                                  kvant_diag *diag) {
    session *s = take(1, sizeof *s);
    (void)diag;
    *s =
        (session){.setups = setups, .setup_count = setup_count, .lessons = take(setup_count, sizeof(lesson))};
    for (uint32_t i = 0; i < setup_count; i++) {
        assert_int_equal(setups[i]->tensor_count, 0);
        assert_int_equal(setups[i]->first_kv_head, 0);
        assert_int_equal(setups[i]->kv_heads, setups[i]->total_kv_heads);
        uint32_t heads = setups[i]->total_kv_heads;
        s->lessons[i] = (lesson){take(heads, sizeof(double)), take(heads, sizeof(double)),
                                 take(2 * (size_t)heads, sizeof(float))};
    }
    learner.sessions++;
    learner.open_sessions++;
    learner.setups += setup_count;
    *out = s;
    return KVANT_OK;
}

static void learn_rows(const session *s, lesson *l, const kvant_view *rows, uint32_t sinks) {
    float *row = take(rows->head_dim, sizeof *row);
    for (uint32_t t = sinks; t < rows->tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++) {
            kvant_load_row(rows, t, h, row);
            for (uint32_t c = 0; c < rows->head_dim; c++) {
                double x = fabs((double)row[c]);
                if (s->pass == 0) {
                    l->sum[h] += x;
                    l->count[h]++;
                } else {
                    float distance = (float)fabs(x - (double)l->range[2 * h]);
                    if (distance > l->range[2 * h + 1]) l->range[2 * h + 1] = distance;
                }
            }
        }
    free(row);
}

static kvant_status learner_feed(void *memory, const kvant_sample *sample, kvant_diag *diag) {
    session *s = memory;
    if (learner.on_sample != NULL) learner.on_sample(sample);
    if (learner.lie == LEARNER_STATUS) return 1;
    if (learner.refuse != KVANT_OK && sample->layer == 1)
        return kvant_fail(diag, learner.refuse, "bits", "refused by the test");
    for (uint32_t i = 0; i < s->setup_count; i++) {
        const kvant_setup *setup = s->setups[i];
        const kvant_view *rows = setup->side == KVANT_SIDE_KEY ? sample->keys : sample->values;
        if (setup->layer == sample->layer) learn_rows(s, &s->lessons[i], rows, sample->sinks);
    }
    return KVANT_OK;
}

static kvant_status learner_again(void *memory, uint32_t *again, kvant_diag *diag) {
    session *s = memory;
    (void)diag;
    learner.passes++;
    if (s->pass == 0)
        for (uint32_t i = 0; i < s->setup_count; i++)
            for (uint32_t h = 0; h < s->setups[i]->total_kv_heads; h++)
                s->lessons[i].range[2 * h] = (float)(s->lessons[i].sum[h] / s->lessons[i].count[h]);
    *again = learner.lie == LEARNER_ENDLESS || s->pass == 0;
    s->pass++;
    return KVANT_OK;
}

static kvant_status learner_end(void *memory, kvant_tensor_sink *sink, void *context, kvant_diag *diag) {
    const session *s = memory;
    (void)diag;
    if (learner.lie == LEARNER_NOTHING) return KVANT_OK;
    /* Last row first: the order of tensors in the file is the host's. */
    for (uint32_t i = s->setup_count; i-- > 0;) {
        const kvant_setup *setup = s->setups[i];
        uint64_t heads = setup->total_kv_heads;
        uint32_t layer = setup->layer, side = setup->side;
        kvant_array tensor = {.name = "range",
                              .data = s->lessons[i].range,
                              .shape = {heads, 2},
                              .bytes = heads * 2 * sizeof(float),
                              .dtype = KVANT_DTYPE_F32,
                              .rank = 2};
        if (learner.lie == LEARNER_TWICE) sink(context, layer, side, &tensor);
        if (learner.lie == LEARNER_WRONG_LAYER) layer = setup->layer_count;
        if (learner.lie == LEARNER_WRONG_SIDE) side = 2;
        if (learner.lie == LEARNER_CENTER) tensor.name = "center";
        if (learner.lie == LEARNER_NAME) tensor.name = "ra.nge";
        if (learner.lie == LEARNER_SIZE) tensor.bytes -= 1;
        if (learner.lie == LEARNER_DTYPE) tensor.dtype = 99;
        if (learner.lie == LEARNER_SHAPE) tensor.rank = 1;
        if (learner.lie == LEARNER_SHAPE) tensor.shape[0] = heads * 2;
        sink(context, layer, side, &tensor);
    }
    return KVANT_OK;
}

static void learner_free(void *memory) {
    session *s = memory;
    for (uint32_t i = 0; i < s->setup_count; i++) {
        free(s->lessons[i].sum);
        free(s->lessons[i].count);
        free(s->lessons[i].range);
    }
    free(s->lessons);
    free(s);
    learner.open_sessions--;
}

static const kvant_calibrate calibrate = {.struct_size = sizeof calibrate,
                                          .begin = learner_begin,
                                          .feed = learner_feed,
                                          .again = learner_again,
                                          .end = learner_end,
                                          .free = learner_free};

static const void *learner_extension(const char *id) {
    return strcmp(id, KVANT_EXT_CALIBRATE) == 0 ? &calibrate : NULL;
}

static const kvant_descriptor descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = 'L' | 'E' << 8 | 'R' << 16 | 'N' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .head_dim_min = 1,
    .head_dim_max = 65536,
    .head_dim_multiple = 1,
    .param_count = PARAMS,
    .name = "learner",
    .version = "1.0.0",
    .title = "Learns a range, and keeps what it gets",
    .paper = "",
    .license = "Apache-2.0",
    .deviations = "",
    .params = params,
};

static const kvant_plugin plugin = {
    .struct_size = sizeof(kvant_plugin),
    .abi = KVANT_ABI,
    .descriptor = &descriptor,
    .plan = learner_plan,
    .open = learner_open,
    .close = learner_close,
    .encode = learner_encode,
    .decode = learner_decode,
    .extension = learner_extension,
};

const kvant_plugin *kvant_plugin_query_learner(uint32_t host_abi) {
    (void)host_abi;
    return &plugin;
}

int learner_setup(void **state) {
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)state;
    learner = (learner_behaviour){0};
    if (kvant_plugin_register(kvant_plugin_query_learner, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    return 0;
}
