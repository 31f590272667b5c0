/* A codec opened for one configuration, with guarded memory for all that its calls take, and the calls in
 * the forms that the checks need. */
#ifndef KVANT_CHECK_SUBJECT_H
#define KVANT_CHECK_SUBJECT_H

#include "check_worker.h"

/* How rows lie in memory. */
typedef enum check_form {
    CHECK_FORM_DENSE,      /* [token][head][channel] */
    CHECK_FORM_ODD,        /* the same at an odd address */
    CHECK_FORM_HEAD_FIRST, /* [head][token][channel] */
    CHECK_FORM_PADDED,     /* [token][head][channel] with gaps behind channels, heads and tokens */
    CHECK_FORM_BACKWARDS,  /* all three strides negative */
    CHECK_FORM_TRANSPOSED, /* [channel][head][token] */
    CHECK_FORM_COUNT
} check_form;

const char *check_form_name(check_form form);

/* Rows in guarded memory, for reading or for writing. */
typedef struct check_rows {
    check_buffer buffer;
    uint32_t dtype, tokens, heads, head_dim;
    unsigned char *first; /* element (0, 0, 0) */
    int64_t token_stride, head_stride, channel_stride;
} check_rows;

void check_rows_create(check_worker *worker, check_rows *rows, uint32_t dtype, uint32_t tokens,
                       uint32_t heads, uint32_t head_dim, check_form form);
void check_rows_free(check_worker *worker, check_rows *rows);

/* Dense values, exact in the dtype, into the rows. */
void check_rows_store(check_rows *rows, const float *values);

/* The bits of the elements, dense, widened to 32. */
void check_rows_load(const check_rows *rows, uint32_t *bits);

/* True if a byte that belongs to no element differs from `byte`. */
bool check_rows_gap_written(const check_rows *rows, unsigned char byte, size_t *offset);

kvant_view check_rows_view(const check_rows *rows);
kvant_mutable_view check_rows_mutable_view(const check_rows *rows);

typedef struct check_subject {
    check_worker *worker;
    const kvant_setup *setup;
    kvant_layout layout;
    check_buffer state;
    check_buffer scratch;
    uint8_t *classes; /* of the tokens of a block: all classes in turn; NULL for a codec that asks for none */
    bool is_open;
} check_subject;

/* Allocates and opens; the state can only be read from then on. On failure the status and the diag are
 * open's. */
kvant_status check_subject_open(check_worker *worker, check_subject *subject, const kvant_setup *setup,
                                const kvant_layout *layout, kvant_diag *diag);
void check_subject_close(check_subject *subject);

/* Largest extent of a layout; 0 if it overflows. */
uint64_t check_layout_largest(const kvant_layout *layout);

/* True if size = size_min + k * size_step with k in 0..size_steps. */
bool check_layout_has_size(const kvant_layout *layout, uint64_t size, uint64_t *step);

/* An extent in memory of its own, exactly as large as what encode chose. */
typedef struct check_extent {
    check_buffer buffer;
    uint64_t size;
    uint64_t saturated;
    uint64_t first_position;
} check_extent;

void check_extent_free(check_worker *worker, check_extent *extent);

typedef struct check_encoding {
    check_form form;
    unsigned char poison;  /* of the extent's memory before */
    unsigned char scratch; /* of the scratch */
    uint64_t first_position;
} check_encoding;

/* Encodes dense values [block_tokens, kv_heads, head_dim]. Looks at the status, the size, the guards, the
 * arguments; `beyond` (may be NULL) tells whether bytes behind the used size changed. False, with the
 * failure noted, if there is no extent to go on with. */
bool check_subject_encode(check_subject *subject, const float *values, const check_encoding *how,
                          check_extent *extent, bool *beyond);

/* The same from any view. */
bool check_subject_encode_view(check_subject *subject, const kvant_view *view, const check_encoding *how,
                               check_extent *extent, bool *beyond);

typedef struct check_decoding {
    uint32_t first_token, tokens, first_head, heads;
    uint32_t dtype;
    check_form form;
    unsigned char poison;  /* of the output before */
    unsigned char scratch; /* of the scratch */
    check_id id;           /* the check that complaints are for */
} check_decoding;

/* Decodes a range into bits[tokens * heads * head_dim] (F32 bits, or those of a half). Guards and gaps are
 * looked at. False, with the failure noted, if decode refused. */
bool check_subject_decode(check_subject *subject, const check_extent *extent, const check_decoding *how,
                          uint32_t *bits);

/* The whole extent as floats. */
bool check_subject_decode_all(check_subject *subject, const check_extent *extent, check_id id, float *values);

#endif
