/* What a file of records says about itself, enough to decode it without the dump and the pipeline it came
 * from: a safetensors file.
 *
 *     metadata   format              kvant-sequence/1
 *                pipeline            text of the INI file
 *                pipeline_name       its name in messages
 *                pipeline_directory  where its artifact's relative path starts; only with an artifact
 *                canonical           the text that the fingerprint hashes, for messages
 *                tokens, tags        yes = the dump had that tensor
 *                dump.<key>          the dump's metadata
 *     tensors    geometry            U32 [layers, 4]: kv heads, q heads, key dim, value dim; dim 0 = no side
 *                dump.<name>         every other tensor of the dump than keys, values, tokens, tags */
#ifndef KVANT_STORE_DESCRIPTION_H
#define KVANT_STORE_DESCRIPTION_H

#include "base/text.h"
#include "data/dump.h"
#include "record.h"

typedef struct kvant_description_source {
    const kvant_dump *dump;
    const kvant_plan *plan;
    const char *model; /* instead of the dump's; NULL = as the dump says */
    const char *pipeline;
    const char *pipeline_name;
    const char *pipeline_directory; /* NULL = none */
} kvant_description_source;

/* Appends the description's bytes to `text`. `file` stands in messages. */
kvant_status kvant_description_write(const kvant_description_source *source, const char *file,
                                     kvant_text *text, kvant_diag *diag);

typedef struct kvant_description {
    kvant_safetensors *st;
    const char *pipeline;
    const char *pipeline_name;
    const char *pipeline_directory; /* NULL = none */
    const char *canonical;
    bool has_tokens, has_tags, has_keys, has_values;
    uint32_t layers;

    /* The dump to be written: arrays without data for keys and values, in the order key, value of layer 0,
     * 1, ..., then tokens and tags where it has them, then the others with their data. */
    kvant_array *arrays;
    uint32_t array_count;
    kvant_metadata *metadata;
    uint32_t metadata_count;
    kvant_dump *dump; /* over those: the geometry */
    char *names;
} kvant_description;

/* Reads and checks; dtype and tokens are those of the records. The bytes must outlive it. */
kvant_status kvant_description_read(kvant_record_part bytes, uint32_t dtype, uint64_t tokens,
                                    const char *file, kvant_description *description, kvant_diag *diag);
void kvant_description_free(kvant_description *description);

#endif
