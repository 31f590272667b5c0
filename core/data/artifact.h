/* Artifacts: what calibration learned, one safetensors file (docs/calibration.md). Tensors are named
 * layers.<l>.<key|value>.<name>; metadata says what it was learned for. The digest is the SHA-256 of the
 * whole file. artifact_write.h makes one.
 *
 *     format    kvant-artifact/1        required
 *     model     of the dumps it was learned from
 *     layers, kv_heads, q_heads, head_dim, value_dim     geometry: one number, or one per layer with commas
 *     key_rope  pre or post, where the tensors depend on the side of RoPE that the caller hands keys over on
 *
 *     layers.<l>.<key|value>.codec      what the row's tensors were learned for: format id and parameters
 *
 * All but `format` are optional; what is there must be true of the geometry that the artifact is used for,
 * and of the codec (core/pipeline compares it). Two models that both have a name must have the same. Other
 * keys are kept and ignored. */
#ifndef KVANT_DATA_ARTIFACT_H
#define KVANT_DATA_ARTIFACT_H

#include <kvant/kvant.h>

typedef struct kvant_artifact kvant_artifact;

kvant_status kvant_artifact_open(const char *file, kvant_artifact **artifact, kvant_diag *diag);
/* The same over bytes in memory, which must outlive it; `name` stands for the file. */
kvant_status kvant_artifact_parse(const void *bytes, size_t size, const char *name, kvant_artifact **artifact,
                                  kvant_diag *diag);
void kvant_artifact_close(kvant_artifact *artifact);

const char *kvant_artifact_file(const kvant_artifact *artifact);                      /* as given to open */
const char *kvant_artifact_digest(const kvant_artifact *artifact);                    /* 64 hex digits */
const char *kvant_artifact_metadata(const kvant_artifact *artifact, const char *key); /* NULL = not there */

/* The tensors of one layer and side, names without prefix, sorted; they live as long as the artifact. The
 * host's own key means are the tensor "center" [total_kv_heads, key_dim] of the key side. Sets *count = 0
 * where there are none. Their shapes are their users' to check. */
const kvant_array *kvant_artifact_tensors(const kvant_artifact *artifact, uint32_t layer, uint32_t side,
                                          uint32_t *count);

/* Refuses by name what was learned for another geometry (layers, heads, dims, side of RoPE, model). */
kvant_status kvant_artifact_check(const kvant_artifact *artifact, const kvant_geometry *geometry,
                                  kvant_diag *diag);

#endif
