/* What the floors above need of an opened codec beyond kvant.h. */
#ifndef KVANT_PIPELINE_CODEC_FLOOR_H
#define KVANT_PIPELINE_CODEC_FLOOR_H

#include <kvant/kvant.h>

/* The channel means that encode subtracted, [kv_heads, head_dim]: logits that come from codes lack the
 * query times these. NULL where the row is not centred. */
const float *kvant_codec_center(const kvant_codec *codec);

#endif
