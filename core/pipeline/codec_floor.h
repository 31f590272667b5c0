/* What the floors above need of an opened codec beyond kvant.h. */
#ifndef KVANT_PIPELINE_CODEC_FLOOR_H
#define KVANT_PIPELINE_CODEC_FLOOR_H

#include <kvant/kvant.h>

/* The channel means that encode subtracted, [kv_heads, head_dim]: logits that come from codes lack the
 * query times these. NULL where the row is not centred. */
const float *kvant_codec_center(const kvant_codec *codec);

/* The row of the plan that it was opened for, and that plan; they live as long as the codec. */
const struct kvant_plan_entry *kvant_codec_entry(const kvant_codec *codec);
const kvant_plan *kvant_codec_plan(const kvant_codec *codec);

/* How many first tokens of a block are sinks, which stay raw: the first row after them stands in for each of
 * them, with its class. */
uint32_t kvant_codec_sinks(const kvant_codec *codec, uint64_t first_position);

#endif
