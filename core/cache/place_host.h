/* The host's memory as a cache's place (place.h): its parts. Every call is done when it returns. */
#ifndef KVANT_CACHE_PLACE_HOST_H
#define KVANT_CACHE_PLACE_HOST_H

#include "cache/step.h"

/* Rows of one dtype to others of it, whatever the strides. */
void host_copy_rows(const kvant_view *from, const kvant_mutable_view *to);

/* ---- encode_host.c ------------------------------------------------------------------------------------- */

kvant_status host_encode(kvant_sequence *s, uint32_t first, uint32_t count, uint32_t layer, uint32_t layers,
                         kvant_diag *diag);

/* ---- attend_host.c ------------------------------------------------------------------------------------- */

size_t host_attend_scratch(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                           uint32_t count, const kvant_attention_options *options);
kvant_status host_attend(kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts, uint32_t count,
                         const kvant_attention_options *options, void *scratch, size_t scratch_size,
                         kvant_diag *diag);
kvant_status host_attend_steps(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                               uint32_t count, const kvant_attention_options *options, kvant_diag *diag);

#endif
