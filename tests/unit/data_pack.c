/* Packing and unpacking with codecs of many extent sizes that look at tags: registered here, so that the
 * bytes are known. Each extent is a byte per token for its class and then the rows; tokens of class 1 make it
 * longer. */
#include "store/tag_classes.h"
#include "data/dump.h"
#include "store/pack.h"
#include "support/data.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 8, LAYERS = 2, TOKENS = 29, HEADS = 2, KEY_DIM = 4, VALUE_DIM = 6, QUANTUM = 16 };

/* ---- The codecs ---------------------------------------------------------------------------------------- */

typedef struct odd_state {
    uint32_t tokens, heads, dim, dtype;
} odd_state;

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    (void)diag;
    uint64_t rows = (uint64_t)setup->block_tokens * setup->kv_heads * setup->head_dim * 2;
    layout->alignment = 256;
    layout->block_multiple = 1;
    layout->size_min = rows + setup->block_tokens;
    layout->size_step = QUANTUM;
    layout->size_steps = setup->block_tokens;
    layout->payload_bits = rows * 8;
    layout->metadata_bits = setup->block_tokens * UINT64_C(8);
    layout->metadata_bits_step = QUANTUM * 8;
    layout->state_bytes = sizeof(odd_state);
    layout->scratch_bytes = 64;
    return KVANT_OK;
}

static kvant_status plan_by_two(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    for (unsigned tag = 0; tag < 256; tag++) layout->tag_class[tag] = tag % 2;
    return plan(setup, layout, diag);
}

static kvant_status plan_by_three(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    for (unsigned tag = 0; tag < 256; tag++) layout->tag_class[tag] = tag % 3 == 0;
    return plan(setup, layout, diag);
}

static kvant_status open_state(const kvant_setup *setup, const kvant_layout *layout, void *state,
                               kvant_diag *diag) {
    (void)layout;
    (void)diag;
    *(odd_state *)state = (odd_state){setup->block_tokens, setup->kv_heads, setup->head_dim, setup->dtype};
    return KVANT_OK;
}

static void close_state(void *state) {
    (void)state;
}

static kvant_status encode(const void *state, kvant_encode_args *args) {
    const odd_state *s = state;
    unsigned char *to = args->extent;
    size_t rows = (size_t)s->tokens * s->heads * s->dim * 2, longer = 0;
    for (uint32_t t = 0; t < s->tokens; t++) {
        to[t] = args->classes[t];
        longer += args->classes[t];
    }
    kvant_mutable_view view = {.dtype = s->dtype,
                               .data = to + s->tokens,
                               .token_stride = (int64_t)(2 * s->heads * s->dim),
                               .head_stride = (int64_t)(2 * s->dim),
                               .head_dim = s->dim,
                               .channel_stride = 2};
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t h = 0; h < s->heads; h++) {
            float row[VALUE_DIM];
            kvant_load_row(args->rows, t, h, row);
            kvant_store_row(&view, t, h, row);
        }
    memset(to + s->tokens + rows, 0x5a, longer * QUANTUM);
    args->size = s->tokens + rows + longer * QUANTUM;
    return KVANT_OK;
}

static kvant_status decode(const void *state, const kvant_decode_args *args) {
    const odd_state *s = state;
    const kvant_view view = {.dtype = s->dtype,
                             .data = (const char *)args->extent->bytes + s->tokens,
                             .token_stride = (int64_t)(2 * s->heads * s->dim),
                             .head_stride = (int64_t)(2 * s->dim),
                             .head_dim = s->dim,
                             .channel_stride = 2};
    for (uint32_t t = 0; t < args->rows->tokens; t++)
        for (uint32_t h = 0; h < args->rows->heads; h++) {
            float row[VALUE_DIM];
            kvant_load_row(&view, args->first_token + t, args->first_head + h, row);
            kvant_store_row(args->rows, t, h, row);
        }
    return KVANT_OK;
}

#define DESCRIPTOR(word, id)                                                                                 \
    {                                                                                                        \
        .struct_size = sizeof(kvant_descriptor), .format_id = (id), .format_version = 1,                     \
        .sides = KVANT_SIDES_BOTH, .dtypes = KVANT_DTYPES_F16, .requires_bits = KVANT_REQUIRES_TAGS,         \
        .head_dim_min = 1, .head_dim_max = VALUE_DIM, .head_dim_multiple = 1, .name = (word),                \
        .version = "1.0.0", .title = "odd", .paper = "", .license = "Apache-2.0", .deviations = ""           \
    }
static const kvant_descriptor two_descriptor = DESCRIPTOR("oddtwo", 0x3264646f),
                              three_descriptor = DESCRIPTOR("oddthree", 0x3364646f);
static const kvant_plugin two = {sizeof two,  KVANT_ABI, &two_descriptor, plan_by_two, open_state,
                                 close_state, encode,    decode,          NULL};
static const kvant_plugin three = {
    sizeof three, KVANT_ABI, &three_descriptor, plan_by_three, open_state, close_state, encode, decode, NULL};

static const kvant_plugin *query_two(uint32_t abi) {
    (void)abi;
    return &two;
}
static const kvant_plugin *query_three(uint32_t abi) {
    (void)abi;
    return &three;
}

/* ---- A sequence ---------------------------------------------------------------------------------------- */

typedef struct sequence {
    kvant_plan *plan;
    kvant_codec **codecs;
    kvant_view rows[LAYERS * 2];
    uint16_t data[LAYERS * 2][TOKENS * HEADS * VALUE_DIM];
    uint64_t ids[TOKENS];
    unsigned char tags[TOKENS];
} sequence;

static kvant_plan *resolve(const char *text) {
    kvant_diag diag = {.struct_size = sizeof diag};
    static bool registered;
    if (!registered && (kvant_plugin_register(query_two, &diag) != KVANT_OK ||
                        kvant_plugin_register(query_three, &diag) != KVANT_OK))
        fail_msg("%s", diag.message);
    registered = true;
    kvant_layer_geometry layers[LAYERS];
    for (unsigned l = 0; l < LAYERS; l++)
        layers[l] = (kvant_layer_geometry){.struct_size = sizeof layers[l],
                                           .kv_heads = HEADS,
                                           .q_heads = HEADS,
                                           .total_kv_heads = HEADS,
                                           .key_dim = KEY_DIM,
                                           .value_dim = VALUE_DIM};
    const kvant_geometry geometry = {.struct_size = sizeof geometry,
                                     .layer_count = LAYERS,
                                     .dtype = KVANT_DTYPE_F16,
                                     .layers = layers,
                                     .model = "m"};
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan_of = NULL;
    if (kvant_pipeline_parse(text, strlen(text), "odd.ini", NULL, &pipeline, &diag) != KVANT_OK ||
        kvant_pipeline_resolve(pipeline, &geometry, &plan_of, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    kvant_pipeline_free(pipeline);
    return plan_of;
}

#define ODD                                                                                                  \
    "[pipeline]\nname = odd\nblock_tokens = 8\nsinks = 3\nrecent = 2\n[layers]\nkey = oddtwo\nvalue = "      \
    "oddthree\n"

static void open_sequence(sequence *s) {
    kvant_diag diag = {.struct_size = sizeof diag};
    s->plan = resolve(ODD);
    if (kvant_codecs_open(s->plan, true, true, &s->codecs, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    for (unsigned i = 0; i < LAYERS * 2; i++) {
        uint32_t dim = i % 2 == 0 ? KEY_DIM : VALUE_DIM;
        for (unsigned e = 0; e < TOKENS * HEADS * dim; e++) s->data[i][e] = (uint16_t)(0x3c00 + i * 1000 + e);
        s->rows[i] = kvant_rows_view(s->data[i], KVANT_DTYPE_F16, TOKENS, HEADS, dim);
    }
    for (unsigned t = 0; t < TOKENS; t++) {
        s->ids[t] = 5000 + t;
        s->tags[t] = (unsigned char)(t % 7);
    }
}

static void close_sequence(sequence *s) {
    kvant_codecs_close(s->codecs, LAYERS);
    kvant_plan_free(s->plan);
}

static kvant_packer *open_packer(const sequence *s, uint32_t threads) {
    const kvant_pack_source source = {.plan = s->plan,
                                      .codecs = s->codecs,
                                      .rows = s->rows,
                                      .tokens = TOKENS,
                                      .threads = threads,
                                      .ids = s->ids,
                                      .tags = s->tags,
                                      .salt = "tenant",
                                      .salt_bytes = 6};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_packer *packer = NULL;
    if (kvant_packer_open(&source, &packer, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    return packer;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void joins_classes(void **state) {
    (void)state;
    kvant_plan *odd = resolve(ODD);
    unsigned char classes[256];
    assert_int_equal(kvant_tag_classes(odd, classes), KVANT_OK);
    static const unsigned char want[12] = {0, 1, 2, 3, 2, 1,
                                           0, 1, 2, 3, 2, 1}; /* (tag mod 2, tag mod 3 == 0) */
    kvant_assert_bytes(classes, want, sizeof want);
    kvant_plan_free(odd);
    odd = resolve("[pipeline]\nname = odd\nblock_tokens = 8\n[layers]\nkey = oddtwo\nvalue = oddtwo\n");
    assert_int_equal(kvant_tag_classes(odd, classes), KVANT_OK);
    for (unsigned tag = 0; tag < 256; tag++) assert_int_equal(classes[tag], tag % 2);
    kvant_plan_free(odd);
}

static void packs_and_unpacks(void **state) {
    (void)state;
    static sequence s;
    open_sequence(&s);
    kvant_packer *one = open_packer(&s, 1), *many = open_packer(&s, 5);
    assert_int_equal(kvant_packer_count(one), 4); /* 29 tokens, 2 recent: 3 blocks and a tail of 5 */
    assert_int_equal(kvant_packer_blocks(one)->tail_tokens, 5);
    unsigned char *extent = aligned_alloc(4096, 4096), *scratch = aligned_alloc(4096, 65536);
    assert_true(extent != NULL && scratch != NULL);
    uint16_t back[TOKENS * HEADS * VALUE_DIM];
    uint64_t extent_bytes = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const unsigned char *bytes, *other;
        size_t size, other_size;
        kvant_diag diag = {.struct_size = sizeof diag};
        if (kvant_packer_next(one, &bytes, &size, &diag) != KVANT_OK) fail_msg("%s", diag.message);
        assert_int_equal(kvant_packer_next(many, &other, &other_size, &diag), KVANT_OK);
        assert_int_equal(size, other_size);
        kvant_assert_bytes(other, bytes, size);
        kvant_record record;
        const char *reason;
        if (kvant_record_read(bytes, size, &record, &reason) != KVANT_OK) fail_msg("%s", reason);
        assert_int_equal(record.size, size);
        assert_int_equal(kvant_record_check_key(&record, "tenant", 6), KVANT_OK);
        assert_int_equal(kvant_record_check_key(&record, "other", 5),
                         i == 0 ? KVANT_ERROR_MISMATCH : KVANT_OK);
        assert_int_equal(kvant_unpack_check(s.plan, &record, "r", &diag), KVANT_OK);
        assert_int_equal(record.head.sinks, i == 0 ? 3 : 0);
        for (uint32_t t = 0; t < record.head.tokens; t++) {
            assert_int_equal(record.tags[t], (8 * i + t) % 7);
            assert_int_equal(kvant_record_id(&record, t), 5000 + 8 * i + t);
        }
        for (uint32_t row = 0; row < LAYERS * 2; row++) {
            kvant_record_part part = kvant_record_extent(&record, row / 2, row % 2);
            uint32_t dim = row % 2 == 0 ? KEY_DIM : VALUE_DIM, longer = 0;
            for (uint32_t t = 0; t < BLOCK; t++) {
                unsigned tag =
                    (8 * i + (i == 0 && t < 3 ? 3 : t)) % 7; /* sinks take that of the row after them */
                unsigned class = row % 2 == 0 ? tag % 2 : tag % 3 == 0;
                if (i < 3) assert_int_equal(part.bytes[t], class);
                longer += class;
            }
            assert_int_equal(part.size, i < 3 ? BLOCK + BLOCK * HEADS * dim * 2 + longer * QUANTUM : 0);
            extent_bytes += part.size;
            /* In the extent the first row after the sinks stands in their place; what comes back has them
             * again. */
            if (i == 0)
                for (uint32_t t = 0; t < 3; t++)
                    kvant_assert_bytes(part.bytes + BLOCK + (size_t)t * HEADS * dim * 2,
                                       (const unsigned char *)s.data[row] + (size_t)3 * HEADS * dim * 2,
                                       (size_t)HEADS * dim * 2);
            memset(back, 0xee, sizeof back);
            if (kvant_unpack_rows(s.codecs[row], &record, row / 2, row % 2, back, extent, scratch, "record",
                                  &diag) != KVANT_OK)
                fail_msg("%s", diag.message);
            size_t used = (size_t)record.head.tokens * HEADS * dim;
            kvant_assert_bytes(back, s.data[row] + (size_t)8 * i * HEADS * dim, used * 2);
            assert_int_equal(back[used], 0xeeee);
        }
    }
    const unsigned char *bytes;
    size_t size;
    assert_int_equal(kvant_packer_next(one, &bytes, &size, NULL), KVANT_ERROR_ARGUMENT);
    kvant_pack_totals totals = kvant_packer_totals(one);
    assert_int_equal(totals.extent_bytes, extent_bytes);
    assert_int_equal(totals.raw_bytes, (5 + 3) * HEADS * 2 * LAYERS * (KEY_DIM + VALUE_DIM));
    kvant_packer_close(one);
    kvant_packer_close(many);
    free(extent);
    free(scratch);
    close_sequence(&s);
}

/* A record that is whole and is not this plan's. */
static void refuses_what_does_not_fit(void **state) {
    (void)state;
    static sequence s;
    open_sequence(&s);
    kvant_packer *packer = open_packer(&s, 1);
    const unsigned char *bytes;
    size_t size;
    kvant_record record;
    const char *reason;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_packer_next(packer, &bytes, &size, &diag), KVANT_OK);
    assert_int_equal(kvant_record_read(bytes, size, &record, &reason), KVANT_OK);
    static const struct {
        const char *text, *part;
    } others[] = {
        {"[pipeline]\nname = odd\nblock_tokens = 8\nsinks = 2\nrecent = 2\n[layers]\nkey = oddtwo\nvalue = "
         "oddthree\n",
         "another scheme"},
        {"[pipeline]\nname = odd\nblock_tokens = 8\nsinks = 3\n[layers]\nkey = oddthree\nvalue = oddthree\n",
         "another scheme"}};
    for (unsigned i = 0; i < 2; i++) {
        kvant_plan *other = resolve(others[i].text);
        assert_int_equal(kvant_unpack_check(other, &record, "record 7", &diag), KVANT_ERROR_MISMATCH);
        kvant_assert_contains(diag.message, "record 7");
        kvant_assert_contains(diag.message, others[i].part);
        kvant_plan_free(other);
    }
    /* The same fingerprint, and still not right: only a forger makes these, and they must be refused too. */
    kvant_record forged = record;
    forged.head.tokens = 7;
    assert_int_equal(kvant_unpack_check(s.plan, &forged, "r", &diag), KVANT_ERROR_MISMATCH);
    forged = record;
    forged.head.sinks = 2;
    assert_int_equal(kvant_unpack_check(s.plan, &forged, "r", &diag), KVANT_ERROR_MISMATCH);
    forged = record;
    forged.head.layers = 1;
    assert_int_equal(kvant_unpack_check(s.plan, &forged, "r", &diag), KVANT_ERROR_MISMATCH);
    kvant_packer_close(packer);
    close_sequence(&s);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(joins_classes),
                                              cmocka_unit_test(packs_and_unpacks),
                                              cmocka_unit_test(refuses_what_does_not_fit)};
    return kvant_run_tests(tests, argc, argv);
}
