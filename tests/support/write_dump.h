/* Dumps (kvant-kv/1) written for a test: keys with a loud channel and an offset, values away from zero,
 * queries.
 *
 *     kvant_test_dump d = kvant_test_dump_default();
 *     d.value_dim = 7;
 *     kvant_test_dump_write(&d, "/tmp/x.safetensors");
 *
 * The same seed gives the same keys whether they are written before or after RoPE. */
#ifndef KVANT_TEST_WRITE_DUMP_H
#define KVANT_TEST_WRITE_DUMP_H

#include <kvant/types.h>

#include <stdbool.h>

typedef struct kvant_test_dump {
    uint32_t layers, tokens, kv_heads, q_heads, key_dim, value_dim, query_tokens;
    uint64_t query_start;
    uint32_t dtype;       /* F32, F16 or BF16 */
    uint32_t query_dtype; /* 0 = the same */
    uint32_t window;
    bool has_keys, has_values, has_queries;
    bool keys_before_rope;
    const char *model; /* NULL = none */
    uint64_t seed;
    /* One element of one tensor ("layers.1.value") that is replaced; NULL = none. */
    const char *poisoned;
    uint32_t token, head, channel;
    float poison;
} kvant_test_dump;

/* 3 layers, 150 tokens, 2 kv heads and 6 query heads, dims 32 and 24, 9 queries at the end, F16, NeoX
 * RoPE. */
kvant_test_dump kvant_test_dump_default(void);

void kvant_test_dump_write(const kvant_test_dump *dump, const char *file);

#endif
