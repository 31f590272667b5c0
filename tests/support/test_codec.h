/* One codec of a real plugin, opened the way the host does, for tests that look at bytes and numbers at each
 * instruction set. Everything that goes wrong fails the test.
 *
 *     kvant_test_codec *c = kvant_test_codec_open("kivi", KVANT_SIDE_KEY, KVANT_DTYPE_F32, 64, 2, 128, isa,
 *                                                 "bits=2 group=32");
 *     kvant_test_codec_encode(c, rows, 64 * 2 * 128);         rows of the dtype, dense [token, head, channel]
 *     float *x = kvant_test_codec_decode(c, KVANT_DTYPE_F32);      dense, of the whole block
 *     uint8_t *codes = kvant_test_codec_inspect(c, "codes", &array);
 *     free(codes); free(x); kvant_test_codec_close(c);
 */
#ifndef KVANT_TEST_TEST_CODEC_H
#define KVANT_TEST_TEST_CODEC_H

#include <kvant/plugin.h>

#include <stddef.h>

typedef struct kvant_test_codec {
    const kvant_plugin *plugin;
    kvant_setup setup;
    kvant_layout layout;
    kvant_value *values;
    void *state;
    void *scratch; /* scratch_bytes, filled with garbage; what lies behind it is watched */
    uint8_t *extent;
    uint64_t size;      /* as encode said */
    uint64_t saturated; /* likewise */
    /* For the caller to set before encode. */
    const uint8_t *classes; /* [tokens] of layout.tag_class, for a codec that asks for tags */
    uint64_t first_position;
    /* What values[] points into. */
    char *text;
    kvant_table_row *rows;
} kvant_test_codec;

/* parameters: "name=value name=value", "" = all defaults; a table is written name=key:integer,key:integer
 * (one table at most). */
kvant_test_codec *kvant_test_codec_open(const char *plugin, uint32_t side, uint32_t dtype, uint32_t tokens,
                                        uint32_t heads, uint32_t head_dim, uint32_t isa,
                                        const char *parameters);

/* The same for a setup that says more: layer, ranks, RoPE, tensors. Totals of 0 are filled in; the parameters
 * are the text's. What it points to lives until close. */
kvant_test_codec *kvant_test_codec_open_setup(const char *plugin, const kvant_setup *setup,
                                              const char *parameters);

/* What plan answers to the same as open is given; KVANT_OK is an answer too. */
kvant_status kvant_test_codec_plan(const char *plugin, uint32_t side, uint32_t dtype, uint32_t tokens,
                                   uint32_t heads, uint32_t head_dim, const char *parameters,
                                   kvant_layout *layout, kvant_diag *diag);
void kvant_test_codec_close(kvant_test_codec *codec);

/* `count` elements of setup.dtype, the whole block. The extent is poisoned first, and its surroundings are
 * checked. */
void kvant_test_codec_encode(kvant_test_codec *codec, const void *rows, size_t count);

/* The whole block as `dtype`, into poisoned memory; the caller frees. */
void *kvant_test_codec_decode(kvant_test_codec *codec, uint32_t dtype);

/* An array of kvant.inspect/1 by name; the caller frees. */
void *kvant_test_codec_inspect(kvant_test_codec *codec, const char *name, kvant_array *array);

/* The instruction sets of this machine, scalar first. Returns how many. */
enum { KVANT_TEST_ISA_MAX = 8 };
uint32_t kvant_test_isas(uint32_t isas[KVANT_TEST_ISA_MAX]);

/* A dense view. */
kvant_view kvant_test_view(const void *data, uint32_t dtype, uint32_t tokens, uint32_t heads,
                           uint32_t head_dim);
kvant_mutable_view kvant_test_mutable_view(void *data, uint32_t dtype, uint32_t tokens, uint32_t heads,
                                           uint32_t head_dim);

#endif
