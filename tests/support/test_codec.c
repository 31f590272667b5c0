/* See test_codec.h. */
#include "support/test_codec.h"
#include "support/test.h"

#include <kvant/kit/view.h>
#include <kvant/kvant.h>
#include <plugin/fpenv.h>
#include <plugin/schema.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, POISON = 0xA5 };

static void *guarded(size_t size) {
    size_t room = (size + 2 * GUARD + 63) / 64 * 64;
    uint8_t *memory = aligned_alloc(64, room);
    if (memory == NULL) fail_msg("out of memory: %zu bytes", room);
    memset(memory, POISON, room);
    return memory + GUARD;
}

static void check_guard(const void *memory, size_t size, const char *what) {
    const uint8_t *bytes = memory;
    for (size_t i = 0; i < GUARD; i++)
        if (bytes[(ptrdiff_t)i - GUARD] != POISON || bytes[size + i] != POISON)
            fail_msg("%s: a byte beside it was written", what);
}

static void release(void *memory) {
    if (memory != NULL) free((uint8_t *)memory - GUARD);
}

/* "x:1,y:2" to the rows of a table, cut out of `text`, which the codec keeps. */
static void set_table(kvant_test_codec *codec, char *text, kvant_value *value) {
    uint32_t room = 1;
    for (const char *c = text; *c != '\0'; c++) room += *c == ',';
    kvant_table_row *rows = calloc(room, sizeof *rows);
    assert_non_null(rows);
    free(codec->rows);
    codec->rows = rows;
    char *rest = NULL;
    *value = (kvant_value){.rows = rows, .given = 1};
    for (char *line = strtok_r(text, ",", &rest); line != NULL; line = strtok_r(NULL, ",", &rest)) {
        char *colon = strchr(line, ':');
        if (colon == NULL) fail_msg("\"%s\" is not key:integer", line);
        *colon = '\0';
        rows[value->row_count++] = (kvant_table_row){line, strtoll(colon + 1, NULL, 10)};
    }
}

/* "a=1 b=2" through the plugin's own schema. */
static void set_values(kvant_test_codec *codec, const char *parameters) {
    const kvant_descriptor *d = codec->plugin->descriptor;
    codec->values = calloc(d->param_count + 1, sizeof *codec->values);
    assert_non_null(codec->values);
    for (uint32_t i = 0; i < d->param_count; i++)
        kvant_schema_default(kvant_schema_param(d, i), &codec->values[i]);
    char *rest = NULL;
    codec->text = strdup(parameters);
    assert_non_null(codec->text);
    for (char *word = strtok_r(codec->text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        kvant_diag diag = {.struct_size = sizeof diag};
        char *equals = strchr(word, '=');
        uint32_t index = 0;
        if (equals == NULL) fail_msg("\"%s\" is not name=value", word);
        *equals = '\0';
        if (kvant_schema_find(d, word, &index, &diag) != KVANT_OK) fail_msg("%s", diag.message);
        const kvant_param *param = kvant_schema_param(d, index);
        kvant_value *value = &codec->values[index];
        if (param->type == KVANT_PARAM_TABLE)
            set_table(codec, equals + 1, value);
        else if (kvant_schema_parse(param, equals + 1, value, &diag) != KVANT_OK)
            fail_msg("%s", diag.message);
    }
}

static kvant_test_codec *prepare(const char *plugin, const kvant_setup *setup, const char *parameters) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_test_codec *codec = calloc(1, sizeof *codec);
    assert_non_null(codec);
    if (kvant_plugin_find(plugin, &codec->plugin, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    set_values(codec, parameters);
    kvant_setup *s = &codec->setup;
    *s = *setup;
    s->struct_size = sizeof *s;
    if (s->layer_count == 0) s->layer_count = s->layer + 1;
    if (s->total_kv_heads == 0) s->total_kv_heads = s->first_kv_head + s->kv_heads;
    if (s->q_heads == 0) s->q_heads = s->kv_heads;
    s->value_count = codec->plugin->descriptor->param_count;
    s->values = codec->values;
    codec->layout.struct_size = sizeof codec->layout;
    return codec;
}

kvant_status kvant_test_codec_plan(const char *plugin, uint32_t side, uint32_t dtype, uint32_t tokens,
                                   uint32_t heads, uint32_t head_dim, const char *parameters,
                                   kvant_layout *layout, kvant_diag *diag) {
    const kvant_setup setup = {
        .side = side, .dtype = dtype, .block_tokens = tokens, .kv_heads = heads, .head_dim = head_dim};
    kvant_test_codec *codec = prepare(plugin, &setup, parameters);
    kvant_status status = codec->plugin->plan(&codec->setup, &codec->layout, diag);
    *layout = codec->layout;
    kvant_test_codec_close(codec);
    return status;
}

kvant_test_codec *kvant_test_codec_open_setup(const char *plugin, const kvant_setup *setup,
                                              const char *parameters) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_test_codec *codec = prepare(plugin, setup, parameters);
    if (codec->plugin->plan(&codec->setup, &codec->layout, &diag) != KVANT_OK)
        fail_msg("plan: %s", diag.message);
    const kvant_layout *l = &codec->layout;
    if (l->alignment > GUARD) fail_msg("alignment %u is more than this helper gives", l->alignment);
    codec->state = guarded(l->state_bytes);
    memset(codec->state, 0, l->state_bytes);
    codec->scratch = guarded(l->scratch_bytes);
    codec->extent = guarded(l->size_min + l->size_step * l->size_steps);
    if (codec->plugin->open(&codec->setup, l, codec->state, &diag) != KVANT_OK)
        fail_msg("open: %s", diag.message);
    return codec;
}

kvant_test_codec *kvant_test_codec_open(const char *plugin, uint32_t side, uint32_t dtype, uint32_t tokens,
                                        uint32_t heads, uint32_t head_dim, uint32_t isa,
                                        const char *parameters) {
    const kvant_setup setup = {.side = side,
                               .dtype = dtype,
                               .block_tokens = tokens,
                               .kv_heads = heads,
                               .head_dim = head_dim,
                               .isa = isa};
    return kvant_test_codec_open_setup(plugin, &setup, parameters);
}

void kvant_test_codec_close(kvant_test_codec *codec) {
    if (codec->state != NULL) codec->plugin->close(codec->state);
    release(codec->state);
    release(codec->scratch);
    release(codec->extent);
    free(codec->values);
    free(codec->rows);
    free(codec->text);
    free(codec);
}

static void check_guards(const kvant_test_codec *codec) {
    const kvant_layout *l = &codec->layout;
    check_guard(codec->state, l->state_bytes, "state");
    check_guard(codec->scratch, l->scratch_bytes, "scratch");
    check_guard(codec->extent, l->size_min + l->size_step * l->size_steps, "extent");
}

static kvant_extent extent_of(const kvant_test_codec *codec) {
    return (kvant_extent){.bytes = codec->extent,
                          .size = codec->size,
                          .first_position = codec->first_position,
                          .live_count = codec->setup.block_tokens};
}

void kvant_test_codec_encode(kvant_test_codec *codec, const void *rows, size_t count) {
    const kvant_setup *s = &codec->setup;
    const kvant_layout *l = &codec->layout;
    kvant_view view = kvant_test_view(rows, s->dtype, s->block_tokens, s->kv_heads, s->head_dim);
    kvant_encode_args args = {.struct_size = sizeof args,
                              .rows = &view,
                              .classes = codec->classes,
                              .first_position = codec->first_position,
                              .extent = codec->extent,
                              .scratch = codec->scratch};
    assert_int_equal(count, (size_t)s->block_tokens * s->kv_heads * s->head_dim);
    memset(codec->extent, POISON, l->size_min + l->size_step * l->size_steps);
    memset(codec->scratch, POISON, l->scratch_bytes);
    kvant_fp_state saved = kvant_fp_enter();
    kvant_status status = codec->plugin->encode(codec->state, &args);
    kvant_fp_leave(saved);
    assert_int_equal(status, KVANT_OK);
    codec->size = args.size;
    codec->saturated = args.saturated;
    check_guards(codec);
}

void *kvant_test_codec_decode(kvant_test_codec *codec, uint32_t dtype) {
    const kvant_setup *s = &codec->setup;
    size_t bytes = (size_t)s->block_tokens * s->kv_heads * s->head_dim * kvant_element_bytes(dtype);
    uint8_t *out = malloc(bytes + GUARD);
    assert_non_null(out);
    memset(out, POISON, bytes + GUARD);
    kvant_extent extent = extent_of(codec);
    kvant_mutable_view view = kvant_test_mutable_view(out, dtype, s->block_tokens, s->kv_heads, s->head_dim);
    kvant_decode_args args = {
        .struct_size = sizeof args, .extent = &extent, .rows = &view, .scratch = codec->scratch};
    memset(codec->scratch, POISON, codec->layout.scratch_bytes);
    kvant_fp_state saved = kvant_fp_enter();
    kvant_status status = codec->plugin->decode(codec->state, &args);
    kvant_fp_leave(saved);
    assert_int_equal(status, KVANT_OK);
    for (size_t i = 0; i < GUARD; i++) assert_int_equal(out[bytes + i], POISON);
    check_guards(codec);
    return out;
}

void *kvant_test_codec_inspect(kvant_test_codec *codec, const char *name, kvant_array *array) {
    if (codec->plugin->extension == NULL) fail_msg("no extensions");
    const kvant_inspect *inspect = codec->plugin->extension(KVANT_EXT_INSPECT);
    assert_non_null(inspect);
    kvant_extent extent = extent_of(codec);
    for (uint32_t i = 0; i < inspect->array_count; i++) {
        assert_int_equal(inspect->describe(codec->state, &extent, i, array), KVANT_OK);
        if (array->bytes == 0 || strcmp(array->name, name) != 0) continue;
        uint8_t *out = malloc(array->bytes);
        assert_non_null(out);
        memset(out, POISON, array->bytes);
        assert_int_equal(inspect->read(codec->state, &extent, i, out, codec->scratch), KVANT_OK);
        check_guards(codec);
        return out;
    }
    fail_msg("inspect shows no array \"%s\"", name);
    return NULL;
}

uint32_t kvant_test_isas(uint32_t isas[KVANT_TEST_ISA_MAX]) {
    static const uint32_t all[] = {KVANT_ISA_SCALAR, KVANT_ISA_X86_64_V2, KVANT_ISA_X86_64_V3,
                                   KVANT_ISA_X86_64_V4, KVANT_ISA_AARCH64};
    uint32_t best = kvant_isa(), count = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] == KVANT_ISA_SCALAR ||
            (all[i] <= best && (all[i] >= KVANT_ISA_AARCH64) == (best >= KVANT_ISA_AARCH64)))
            isas[count++] = all[i];
    return count;
}

kvant_view kvant_test_view(const void *data, uint32_t dtype, uint32_t tokens, uint32_t heads,
                           uint32_t head_dim) {
    int64_t element = kvant_element_bytes(dtype);
    return (kvant_view){.struct_size = sizeof(kvant_view),
                        .dtype = dtype,
                        .data = data,
                        .tokens = tokens,
                        .heads = heads,
                        .head_dim = head_dim,
                        .token_stride = element * heads * head_dim,
                        .head_stride = element * head_dim,
                        .channel_stride = element};
}

kvant_mutable_view kvant_test_mutable_view(void *data, uint32_t dtype, uint32_t tokens, uint32_t heads,
                                           uint32_t head_dim) {
    int64_t element = kvant_element_bytes(dtype);
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = dtype,
                                .data = data,
                                .tokens = tokens,
                                .heads = heads,
                                .head_dim = head_dim,
                                .token_stride = element * heads * head_dim,
                                .head_stride = element * head_dim,
                                .channel_stride = element};
}
