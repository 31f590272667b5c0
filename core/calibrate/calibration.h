/* What calibration learned, as the command reports it: more than kvant.h tells. */
#ifndef KVANT_CALIBRATE_CALIBRATION_H
#define KVANT_CALIBRATE_CALIBRATION_H

#include <kvant/kvant.h>

/* A codec that learned; strings live as long as the calibration. */
typedef struct kvant_calibration_codec {
    const char *codec;  /* the pipeline's name for it */
    const char *plugin; /* of the plugin */
    uint32_t rows;      /* layers and sides */
    uint32_t tensors;
    uint32_t passes;
} kvant_calibration_codec;

/* A text that was learned from. */
typedef struct kvant_calibration_text {
    const char *file;
    uint32_t tokens;
    const char *digest; /* SHA-256 of the file in hex */
} kvant_calibration_text;

/* The model that was learned from, NULL = no text names it. */
const char *kvant_calibration_model(const kvant_calibration *calibration);
uint32_t kvant_calibration_layers(const kvant_calibration *calibration);
uint32_t kvant_calibration_codecs(const kvant_calibration *calibration);
kvant_calibration_codec kvant_calibration_codec_at(const kvant_calibration *calibration, uint32_t index);
kvant_calibration_text kvant_calibration_text_at(const kvant_calibration *calibration, uint32_t index);

#endif
