/* See tester.h. */
#include "support/tester.h"

#include "support/test.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>
#include <kvant/kvant.h>

#include <stdlib.h>

tester_behaviour tester;

typedef struct tester_state {
    uint32_t tokens, heads, head_dim, steps;
    uint32_t marks[16]; /* shows that the state came zeroed */
} tester_state;

static const char *const metas[] = {"input", "f16", "bf16", "f32"};
static const char *const attends[] = {"float", "int8"};
static const int64_t widths[] = {1, 2, 3, 4, 8};

#define PARAM(name_, type_, ...)                                                                             \
    {                                                                                                        \
        .struct_size = sizeof(kvant_param), .type = (type_), .name = (name_), .unit = "", .help = "a help",  \
        __VA_ARGS__                                                                                          \
    }

static const kvant_param params[] = {
    PARAM("bits", KVANT_PARAM_INTEGER, .integers = widths, .integer_count = 5, .integer_min = 1,
          .integer_max = 8, .integer_default = 2),
    PARAM("group", KVANT_PARAM_INTEGER, .integer_min = 1, .integer_max = 1024, .integer_default = 32),
    PARAM("ratio", KVANT_PARAM_NUMBER, .number_min = -2, .number_max = 10, .number_default = 0.1),
    PARAM("meta", KVANT_PARAM_CHOICE, .choices = metas, .choice_count = 4),
    PARAM("exact", KVANT_PARAM_SWITCH, .integer_max = 1, .integer_default = 1),
    PARAM("tags", KVANT_PARAM_TABLE, .integer_max = 8),
    PARAM("attend", KVANT_PARAM_CHOICE, .choices = attends, .choice_count = 2, .flags = KVANT_PARAM_READING),
    PARAM("later", KVANT_PARAM_INTEGER, .integer_max = 9, .integer_default = 3, .flags = KVANT_PARAM_LATER),
};

static kvant_status tester_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    uint64_t elements = (uint64_t)setup->block_tokens * setup->kv_heads * setup->head_dim;
    layout->block_multiple = tester.block_multiple != 0 ? tester.block_multiple : 1;
    layout->flags = tester.flags;
    if (setup->side == KVANT_SIDE_VALUE) layout->flags &= ~(uint32_t)KVANT_LAYOUT_KEYS_BEFORE_ROPE;
    layout->alignment = 64;
    layout->isa = KVANT_ISA_SCALAR;
    if (tester.refuse != KVANT_OK && (tester.refuse_layers == 0 || setup->layer < tester.refuse_layers))
        return kvant_fail(diag, tester.refuse, tester.refuse_key, "refused by the test");
    if (setup->block_tokens % layout->block_multiple != 0)
        return kvant_fail(diag, KVANT_ERROR_BLOCK_TOKENS, "block_tokens", "block_tokens: multiples of %u",
                          layout->block_multiple);
    layout->size_min = 4 * elements + setup->block_tokens;
    layout->payload_bits = 32 * elements;
    layout->metadata_bits = 8 * (uint64_t)setup->block_tokens;
    layout->size_steps = tester.size_steps;
    layout->size_step = tester.size_steps != 0 ? 16 : 0;
    layout->state_bytes = tester.state_bytes != 0 ? tester.state_bytes : sizeof(tester_state);
    layout->scratch_bytes = 100;
    if (tester.lie != NULL) tester.lie(layout);
    return KVANT_OK;
}

static kvant_status tester_keys_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    for (uint32_t tag = 0; tag < 256; tag++) layout->tag_class[tag] = (uint8_t)(tag % 7);
    return tester_plan(setup, layout, diag);
}

static kvant_status tester_open(const kvant_setup *setup, const kvant_layout *layout, void *state,
                                kvant_diag *diag) {
    const unsigned char *bytes = state;
    (void)layout;
    if (tester.open_fails != KVANT_OK)
        return kvant_fail(diag, tester.open_fails, "bits", "not opened by the test");
    if ((uintptr_t)state % 64 != 0) return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "state is not aligned");
    for (size_t i = 0; i < sizeof(tester_state); i++)
        if (bytes[i] != 0) return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "state is not zeroed");
    tester_state *s = state;
    *s = (tester_state){.tokens = setup->block_tokens,
                        .heads = setup->kv_heads,
                        .head_dim = setup->head_dim,
                        .steps = tester.size_steps};
    tester.last_setup = setup;
    tester.opened++;
    return KVANT_OK;
}

static void tester_close(void *state) {
    (void)state;
    tester.closed++;
}

static kvant_status tester_encode(const void *state, kvant_encode_args *args) {
    const tester_state *s = state;
    if (tester.encode_fails != KVANT_OK) return tester.encode_fails;
    memset(args->scratch, 0x5a, 100);
    size_t row = s->head_dim, count = (size_t)s->tokens * s->heads * row;
    float *out = args->extent;
    /* A tiny multiple shows whether denormals live: 1e-38 * 1e-5 is 0 where they are flushed. */
    volatile float tiny = 1e-38f;
    float denormal = tiny * 1e-5f;
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t h = 0; h < s->heads; h++)
            kvant_load_row(args->rows, t, h, out + ((size_t)t * s->heads + h) * row);
    uint8_t *tail = (uint8_t *)(out + count);
    for (uint32_t t = 0; t < s->tokens; t++) tail[t] = args->classes != NULL ? args->classes[t] : 0;
    size_t size = count * sizeof(float) + s->tokens;
    if (s->steps != 0) {
        memset(tail + s->tokens, 0, 16);
        size += 16;
    }
    args->size = tester.encode_size != 0 ? tester.encode_size : size;
    args->saturated = tester.saturated + (denormal == 0);
    return KVANT_OK;
}

static kvant_status tester_decode(const void *state, const kvant_decode_args *args) {
    const tester_state *s = state;
    memset(args->scratch, 0x5a, 100);
    for (uint32_t t = 0; t < args->rows->tokens; t++)
        for (uint32_t h = 0; h < args->rows->heads; h++) {
            size_t at = ((size_t)(args->first_token + t) * s->heads + args->first_head + h) * s->head_dim;
            const float *row = (const float *)args->extent->bytes + at;
            kvant_store_row(args->rows, t, h, row);
        }
    return KVANT_OK;
}

static const kvant_descriptor tester_descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = 'T' | 'E' << 8 | 'S' << 16 | 'T' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .head_dim_min = 1,
    .head_dim_max = 65536,
    .head_dim_multiple = 1,
    .param_count = sizeof params / sizeof params[0],
    .name = "tester",
    .version = "1.0.0",
    .title = "Keeps what it gets",
    .paper = "",
    .license = "Apache-2.0",
    .deviations = "",
    .params = params,
};

static const kvant_descriptor tester_keys_descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = 'T' | 'E' << 8 | 'S' << 16 | 'K' << 24,
    .format_version = 2,
    .sides = KVANT_SIDES_KEY,
    .dtypes = KVANT_DTYPES_F16 | KVANT_DTYPES_F32,
    .requires_bits = KVANT_REQUIRES_TAGS,
    .head_dim_min = 8,
    .head_dim_max = 64,
    .head_dim_multiple = 8,
    .name = "tester_keys",
    .version = "1.0.0",
    .title = "Keeps the keys that it gets",
    .paper = "",
    .license = "Apache-2.0",
    .deviations = "",
};

static const kvant_descriptor tester_tags_descriptor = {
    .struct_size = sizeof(kvant_descriptor),
    .format_id = 'T' | 'E' << 8 | 'S' << 16 | 'G' << 24,
    .format_version = 1,
    .sides = KVANT_SIDES_BOTH,
    .dtypes = KVANT_DTYPES_ALL,
    .requires_bits = KVANT_REQUIRES_TAGS,
    .head_dim_min = 1,
    .head_dim_max = 65536,
    .head_dim_multiple = 1,
    .name = "tester_tags",
    .version = "1.0.0",
    .title = "Keeps what it gets, and the classes",
    .paper = "",
    .license = "Apache-2.0",
    .deviations = "",
};

static const kvant_plugin tester_plugin = {
    .struct_size = sizeof(kvant_plugin),
    .abi = KVANT_ABI,
    .descriptor = &tester_descriptor,
    .plan = tester_plan,
    .open = tester_open,
    .close = tester_close,
    .encode = tester_encode,
    .decode = tester_decode,
};

static const kvant_plugin tester_keys_plugin = {
    .struct_size = sizeof(kvant_plugin),
    .abi = KVANT_ABI,
    .descriptor = &tester_keys_descriptor,
    .plan = tester_keys_plan,
    .open = tester_open,
    .close = tester_close,
    .encode = tester_encode,
    .decode = tester_decode,
};

static const kvant_plugin tester_tags_plugin = {
    .struct_size = sizeof(kvant_plugin),
    .abi = KVANT_ABI,
    .descriptor = &tester_tags_descriptor,
    .plan = tester_keys_plan,
    .open = tester_open,
    .close = tester_close,
    .encode = tester_encode,
    .decode = tester_decode,
};

const kvant_plugin *kvant_plugin_query_tester_tags(uint32_t host_abi) {
    (void)host_abi;
    return &tester_tags_plugin;
}

const kvant_plugin *kvant_plugin_query_tester(uint32_t host_abi) {
    (void)host_abi;
    return &tester_plugin;
}

const kvant_plugin *kvant_plugin_query_tester_keys(uint32_t host_abi) {
    (void)host_abi;
    return &tester_keys_plugin;
}

void tester_register(void) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_plugin_register(kvant_plugin_query_tester, &diag) != KVANT_OK ||
        kvant_plugin_register(kvant_plugin_query_tester_keys, &diag) != KVANT_OK ||
        kvant_plugin_register(kvant_plugin_query_tester_tags, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
}
