/* See draft.h. */
#include "support/draft.h"
#include "support/test.h"

#include <string.h>

void kvant_draft_put(kvant_draft *d, const char *name, uint32_t dtype, uint64_t a, uint64_t b, uint64_t c) {
    static const unsigned char zeros[1 << 16];
    kvant_array *array = &d->arrays[d->count++];
    *array = (kvant_array){.name = name,
                           .data = zeros,
                           .shape = {a, b, c},
                           .dtype = dtype,
                           .rank = c > 0   ? 3
                                   : b > 0 ? 2
                                           : 1};
    assert_true(kvant_array_size(dtype, array->shape, array->rank, &array->bytes));
    assert_true(array->bytes <= sizeof zeros);
}

void kvant_draft_drop(kvant_draft *d, const char *name) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < d->count; i++)
        if (strcmp(d->arrays[i].name, name) != 0) d->arrays[kept++] = d->arrays[i];
    assert_int_equal(kept, d->count - 1);
    d->count = kept;
}

/* value = NULL takes the key away. */
void kvant_draft_say(kvant_draft *d, const char *key, const char *value) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < d->metadata_count; i++)
        if (strcmp(d->metadata[i].key, key) != 0) d->metadata[kept++] = d->metadata[i];
    d->metadata_count = kept;
    if (value != NULL) d->metadata[d->metadata_count++] = (kvant_metadata){key, value};
}

/* Two layers of other shapes: 10 tokens, 2 kv heads of 8 and 6, 3 kv heads of 12 and 5; 4 queries. */
kvant_draft kvant_draft_dump(void) {
    kvant_draft d = {0};
    kvant_draft_put(&d, "layers.0.key", KVANT_DTYPE_BF16, 10, 2, 8);
    kvant_draft_put(&d, "layers.0.value", KVANT_DTYPE_BF16, 10, 2, 6);
    kvant_draft_put(&d, "layers.0.query", KVANT_DTYPE_F32, 4, 6, 8);
    kvant_draft_put(&d, "layers.1.key", KVANT_DTYPE_BF16, 10, 3, 12);
    kvant_draft_put(&d, "layers.1.value", KVANT_DTYPE_BF16, 10, 3, 5);
    kvant_draft_put(&d, "layers.1.query", KVANT_DTYPE_F32, 4, 3, 12);
    kvant_draft_put(&d, "layers.1.importance", KVANT_DTYPE_F32, 3, 12, 0);
    kvant_draft_put(&d, "tokens", KVANT_DTYPE_I32, 10, 0, 0);
    kvant_draft_put(&d, "tags", KVANT_DTYPE_U8, 10, 0, 0);
    kvant_draft_put(&d, "turn", KVANT_DTYPE_I32, 10, 0, 0);
    kvant_draft_say(&d, "format", "kvant-kv/1");
    kvant_draft_say(&d, "model", "m");
    kvant_draft_say(&d, "layers", "2");
    kvant_draft_say(&d, "kv_heads", "2,3");
    kvant_draft_say(&d, "q_heads", "6,3");
    kvant_draft_say(&d, "head_dim", "8,12");
    kvant_draft_say(&d, "value_dim", "6,5");
    kvant_draft_say(&d, "key_rope", "pre");
    kvant_draft_say(&d, "rope_style", "gptj");
    kvant_draft_say(&d, "rope_theta", "10000,500000.5");
    kvant_draft_say(&d, "rotary_dim", "4,12");
    kvant_draft_say(&d, "scale", "0.25");
    kvant_draft_say(&d, "window", "0,5");
    kvant_draft_say(&d, "query_start", "6");
    kvant_draft_say(&d, "whatever", "kept");
    return d;
}

kvant_text kvant_draft_pack(const kvant_draft *d) {
    kvant_text text = {0};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_pack(&text, d->arrays, d->count, d->metadata, d->metadata_count, "draft", &diag) !=
        KVANT_OK)
        fail_msg("%s", diag.message);
    return text;
}
