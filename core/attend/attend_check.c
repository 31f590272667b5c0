/* The arguments of a call, checked before anything is written. See kvant.h. */
#include "attend/attend.h"

#include "pipeline/plan.h"

#include <kvant/kit/diag.h>

#include <math.h>

/* Where in the call a check stands. */
typedef struct attend_where {
    const kvant_attention *a;
    uint32_t sequence;
    kvant_diag *diag;
} attend_where;

__attribute__((format(printf, 4, 5))) static kvant_status refuse(const attend_where *w, kvant_status status,
                                                                 const char *key, const char *format, ...) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return kvant_fail(w->diag, status, key, "layer %u attention: sequence %u: %s", w->a->layer, w->sequence,
                      message);
}

const kvant_attention_sequence *attend_sequence_at(const kvant_attention_sequence *sequences,
                                                   uint32_t index) {
    const char *first = (const char *)sequences;
    return (const kvant_attention_sequence *)(const void *)(first + (size_t)index * sequences->struct_size);
}

/* ---- Views --------------------------------------------------------------------------------------------- */

static bool is_float(uint32_t dtype) {
    return dtype == KVANT_DTYPE_F32 || dtype == KVANT_DTYPE_F16 || dtype == KVANT_DTYPE_BF16;
}

static kvant_status check_queries(const attend_where *w, const kvant_attention_sequence *s) {
    const kvant_view *v = s->queries;
    if (v == NULL || v->struct_size < sizeof *v || (v->data == NULL && v->tokens != 0))
        return refuse(w, KVANT_ERROR_ARGUMENT, "queries",
                      "queries are NULL, hold no data, or their struct_size is not %zu", sizeof *v);
    if (!is_float(v->dtype))
        return refuse(w, KVANT_ERROR_DTYPE, "queries", "queries of type %u are not f32, f16 or bf16",
                      v->dtype);
    if (v->heads != w->a->q_heads || v->head_dim != w->a->key_dim)
        return refuse(
            w, KVANT_ERROR_ARGUMENT, "queries",
            "queries [%u rows, %u heads, %u channels], and the layer has %u query heads and keys of %u "
            "channels",
            v->tokens, v->heads, v->head_dim, w->a->q_heads, w->a->key_dim);
    return KVANT_OK;
}

static kvant_status check_outputs(const attend_where *w, const kvant_attention_sequence *s) {
    const kvant_mutable_view *v = s->outputs;
    if (v == NULL || v->struct_size < sizeof *v || (v->data == NULL && s->queries->tokens != 0))
        return refuse(w, KVANT_ERROR_ARGUMENT, "outputs",
                      "outputs are NULL, hold no data, or their struct_size is not %zu", sizeof *v);
    if (!is_float(v->dtype))
        return refuse(w, KVANT_ERROR_DTYPE, "outputs", "outputs of type %u are not f32, f16 or bf16",
                      v->dtype);
    if (v->tokens != s->queries->tokens || v->heads != w->a->q_heads || v->head_dim != w->a->value_dim)
        return refuse(w, KVANT_ERROR_ARGUMENT, "outputs",
                      "outputs [%u, %u, %u], and the queries ask for [%u rows, %u heads, %u channels]",
                      v->tokens, v->heads, v->head_dim, s->queries->tokens, w->a->q_heads, w->a->value_dim);
    return KVANT_OK;
}

static kvant_status check_ranges(const attend_where *w, const kvant_attention_sequence *s) {
    if (s->queries->tokens == 0) return KVANT_OK;
    if (s->ranges == NULL) return refuse(w, KVANT_ERROR_ARGUMENT, "ranges", "ranges are NULL");
    for (uint32_t r = 0; r < s->queries->tokens; r++)
        if (s->ranges[r].from > s->ranges[r].to)
            return refuse(w, KVANT_ERROR_ARGUMENT, "ranges",
                          "row %u: the range [%llu, %llu) ends before it begins", r,
                          (unsigned long long)s->ranges[r].from, (unsigned long long)s->ranges[r].to);
    return KVANT_OK;
}

/* ---- References ---------------------------------------------------------------------------------------- */

static kvant_status check_extent(const attend_where *w, uint32_t index, uint32_t side, const void *bytes,
                                 uint64_t size) {
    static const char *const names[2] = {"key", "value"};
    const kvant_codec *codec = w->a->codecs[side];
    uint32_t alignment = w->a->rows[side]->layout->alignment;
    if (bytes == NULL || ((uintptr_t)bytes & (alignment - 1)) != 0)
        return refuse(w, KVANT_ERROR_ARGUMENT, names[side],
                      "reference %u: the %s extent is NULL or not aligned to %u bytes", index, names[side],
                      alignment);
    if (size == 0 || size > SIZE_MAX || kvant_codec_extent_size(codec, (size_t)size) != size)
        return refuse(w, KVANT_ERROR_ARGUMENT, names[side],
                      "reference %u: %llu bytes are no size of a %s extent of codec %s", index,
                      (unsigned long long)size, names[side], w->a->rows[side]->codec);
    return KVANT_OK;
}

static kvant_status check_reference(const attend_where *w, uint32_t index, const kvant_reference *r) {
    uint32_t block = w->a->block_tokens;
    if (r->live_count == 0) return KVANT_OK;
    if (r->live_first > block || r->live_count > block - r->live_first)
        return refuse(w, KVANT_ERROR_ARGUMENT, "live_first",
                      "reference %u: live tokens from %u, %u of them, are not within a block of %u", index,
                      r->live_first, r->live_count, block);
    if (r->first_position > UINT64_MAX - block)
        return refuse(w, KVANT_ERROR_ARGUMENT, "first_position",
                      "reference %u: first position %llu + %u tokens overflows", index,
                      (unsigned long long)r->first_position, block);
    if (r->first_position + r->live_first < w->a->sinks)
        return refuse(
            w, KVANT_ERROR_ARGUMENT, "live_first",
            "reference %u: its token at position %llu is one of the %u sinks, whose row the block does "
            "not have: let a raw run have it",
            index, (unsigned long long)(r->first_position + r->live_first), w->a->sinks);
    kvant_status status = check_extent(w, index, KVANT_SIDE_KEY, r->key, r->key_size);
    return status == KVANT_OK ? check_extent(w, index, KVANT_SIDE_VALUE, r->value, r->value_size) : status;
}

static kvant_status check_rows(const attend_where *w, uint32_t index, const char *name, const kvant_view *v,
                               uint32_t dim) {
    if (v == NULL || v->struct_size < sizeof *v || (v->data == NULL && v->tokens != 0))
        return refuse(w, KVANT_ERROR_ARGUMENT, name,
                      "raw run %u: %s are NULL, hold no data, or their struct_size is not %zu", index, name,
                      sizeof *v);
    if (v->dtype != w->a->dtype)
        return refuse(w, KVANT_ERROR_DTYPE, name, "raw run %u: %s of type %u, and the geometry says %u",
                      index, name, v->dtype, w->a->dtype);
    if (v->heads != w->a->kv_heads || v->head_dim != dim)
        return refuse(
            w, KVANT_ERROR_ARGUMENT, name,
            "raw run %u: %s [%u tokens, %u heads, %u channels], and the layer has %u kv heads of %u", index,
            name, v->tokens, v->heads, v->head_dim, w->a->kv_heads, dim);
    return KVANT_OK;
}

static kvant_status check_run(const attend_where *w, uint32_t index, const kvant_raw_run *run) {
    kvant_status status = check_rows(w, index, "keys", run->keys, w->a->key_dim);
    if (status == KVANT_OK) status = check_rows(w, index, "values", run->values, w->a->value_dim);
    if (status != KVANT_OK) return status;
    if (run->keys->tokens != run->values->tokens)
        return refuse(w, KVANT_ERROR_ARGUMENT, "values", "raw run %u: %u keys and %u values", index,
                      run->keys->tokens, run->values->tokens);
    if (run->first_position > UINT64_MAX - run->keys->tokens)
        return refuse(w, KVANT_ERROR_ARGUMENT, "first_position",
                      "raw run %u: first position %llu + %u tokens overflows", index,
                      (unsigned long long)run->first_position, run->keys->tokens);
    return KVANT_OK;
}

static kvant_status check_sequence(const attend_where *w, const kvant_attention_sequence *s) {
    kvant_status status = check_queries(w, s);
    if (status == KVANT_OK) status = check_outputs(w, s);
    if (status == KVANT_OK) status = check_ranges(w, s);
    if (status != KVANT_OK) return status;
    if ((s->references == NULL && s->reference_count != 0) || (s->runs == NULL && s->run_count != 0))
        return refuse(w, KVANT_ERROR_ARGUMENT, "", "%u references or %u raw runs at NULL", s->reference_count,
                      s->run_count);
    for (uint32_t i = 0; i < s->reference_count && status == KVANT_OK; i++)
        status = check_reference(w, i, &s->references[i]);
    for (uint32_t i = 0; i < s->run_count && status == KVANT_OK; i++) status = check_run(w, i, &s->runs[i]);
    return status;
}

/* ---- The call ------------------------------------------------------------------------------------------ */

static kvant_status check_options(const kvant_attention *a, const kvant_attention_options *o,
                                  kvant_diag *diag) {
    if (o == NULL || o->struct_size < sizeof *o)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "options",
                          "layer %u attention: options are NULL, or their struct_size is not %zu", a->layer,
                          sizeof *o);
    if (o->threads > KVANT_ATTEND_THREADS_MAX)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "threads",
                          "layer %u attention: threads = %u is above %d", a->layer, o->threads,
                          KVANT_ATTEND_THREADS_MAX);
    if (o->first_kv_head >= a->kv_heads || o->kv_heads > a->kv_heads - o->first_kv_head)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "first_kv_head",
                          "layer %u attention: %u kv heads from head %u on are not within the layer's %u",
                          a->layer, o->kv_heads, o->first_kv_head, a->kv_heads);
    if (!isfinite(o->scale) || o->scale == 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "scale",
                          "layer %u attention: scale = %g is no finite number other than 0", a->layer,
                          (double)o->scale);
    if (!isfinite(o->soft_cap) || o->soft_cap < 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "soft_cap",
                          "layer %u attention: soft_cap = %g is no finite number from 0 on", a->layer,
                          (double)o->soft_cap);
    return KVANT_OK;
}

uint32_t attend_heads_end(const kvant_attention *a, const kvant_attention_options *options) {
    return options->kv_heads != 0 ? options->first_kv_head + options->kv_heads : a->kv_heads;
}

kvant_status attend_check(const kvant_attention *a, const kvant_attention_sequence *sequences, uint32_t count,
                          const kvant_attention_options *options, kvant_diag *diag) {
    kvant_status status = check_options(a, options, diag);
    if (status != KVANT_OK || count == 0) return status;
    if (sequences == NULL || sequences->struct_size < sizeof *sequences ||
        sequences->struct_size % _Alignof(kvant_attention_sequence) != 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "sequences",
                          "layer %u attention: sequences are NULL, or the first one's struct_size is not %zu",
                          a->layer, sizeof *sequences);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        attend_where w = {.a = a, .sequence = i, .diag = diag};
        status = check_sequence(&w, attend_sequence_at(sequences, i));
    }
    return status;
}
