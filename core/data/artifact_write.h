/* Makes the bytes of an artifact (artifact.h): tensors and metadata are gathered in any order and packed in
 * one, so that the same contents give the same bytes. */
#ifndef KVANT_DATA_ARTIFACT_WRITE_H
#define KVANT_DATA_ARTIFACT_WRITE_H

#include "base/text.h"

#include <kvant/types.h>

typedef struct kvant_artifact_builder kvant_artifact_builder;

/* NULL without memory. */
kvant_artifact_builder *kvant_artifact_builder_new(void);
void kvant_artifact_builder_free(kvant_artifact_builder *builder);

/* Copies a tensor of one layer and side. Its name is [a-z][a-z0-9_]*, at most 63 characters. Refuses
 * (ARGUMENT, DUPLICATE) a name that is none or was there already, a dtype that does not exist, a rank above
 * KVANT_RANK_MAX, and a size that is not that of the shape; the message does not say whose tensor it is. */
kvant_status kvant_artifact_builder_add(kvant_artifact_builder *builder, uint32_t layer, uint32_t side,
                                        const kvant_array *tensor, kvant_diag *diag);

/* Sets a metadata string, once. A failed allocation is told by pack. */
__attribute__((format(printf, 3, 4))) void
kvant_artifact_builder_say(kvant_artifact_builder *builder, const char *key, const char *format, ...);

uint32_t kvant_artifact_builder_count(const kvant_artifact_builder *builder); /* of tensors */

/* Appends the file's bytes to `bytes`: metadata "format" with the others, tensors sorted by name. `name`
 * stands for the file in messages. */
kvant_status kvant_artifact_builder_pack(const kvant_artifact_builder *builder, const char *name,
                                         kvant_text *bytes, kvant_diag *diag);

#endif
