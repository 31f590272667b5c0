/* The texts that calibration learns from: dumps, mapped and checked against each other. */
#ifndef KVANT_CALIBRATE_TEXTS_H
#define KVANT_CALIBRATE_TEXTS_H

#include "data/dump.h"
#include "data/file.h"

#include <kvant/kvant.h>

typedef struct calibrate_text {
    kvant_file_map map; /* empty where the bytes are the caller's */
    kvant_dump *dump;
    const kvant_dump_info *info;
    char digest[65]; /* SHA-256 of the file in hex */
} calibrate_text;

typedef struct calibrate_texts {
    calibrate_text *items;
    uint32_t count;
    kvant_geometry geometry; /* of all of them; layers are its own */
    kvant_layer_geometry *layers;
    /* What the dumps say of it: the shapes of a side that no dump has are made up. */
    bool has_keys, has_values, knows_q_heads;
} calibrate_texts;

/* Opens all, and refuses by name what differs in geometry (layers, heads, dims, dtype, RoPE, side of RoPE,
 * windows) or model from a text before it. On failure nothing is to be closed. */
kvant_status calibrate_texts_open(const kvant_dump_source *sources, uint32_t count, calibrate_texts *texts,
                                  kvant_diag *diag);
void calibrate_texts_close(calibrate_texts *texts);

/* Keeps no page of the texts in memory until it is read again: called after each layer. */
void calibrate_texts_forget(const calibrate_texts *texts);

/* Refuses texts that are shorter than `sinks` + 1 tokens, or too short together; *tokens = all of them
 * without the sinks. */
enum { CALIBRATE_TOKENS_MIN = 32 };
kvant_status calibrate_texts_count(const calibrate_texts *texts, uint32_t sinks, uint64_t *tokens,
                                   kvant_diag *diag);

/* The rows of one side of a layer must be there, finite, and not all zeros behind the sinks. `codec` wants
 * them. */
kvant_status calibrate_check_side(const calibrate_text *text, uint32_t layer, uint32_t side, uint32_t sinks,
                                  const char *codec, kvant_diag *diag);

/* What a codec gets besides (the other side, queries) must be finite where it is there. */
kvant_status calibrate_check_context(const calibrate_text *text, uint32_t layer, kvant_diag *diag);

#endif
