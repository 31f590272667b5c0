/* See trace_write.h. Names are those of this folder's writers: nothing in them needs escaping. */
#include "replay/trace_write.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/tags.h>

kvant_status trace_writer_open(const char *file, const char *note, trace_writer *w, kvant_diag *diag) {
    *w = (trace_writer){0};
    kvant_status status = kvant_file_writer_open(file, &w->file, diag);
    if (status != KVANT_OK) return status;
    kvant_text_printf(&w->line, "{\"format\": \"kvant-trace/1\", \"note\": \"%s\"", note);
    trace_write_end(w);
    return KVANT_OK;
}

kvant_status trace_writer_close(trace_writer *w, kvant_status status, kvant_diag *diag) {
    if (w->file == NULL) return status;
    if (status == KVANT_OK && w->line.failed)
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (status == KVANT_OK)
        status = kvant_file_writer_commit(w->file, diag);
    else
        kvant_file_writer_abort(w->file);
    kvant_text_free(&w->line);
    w->file = NULL;
    return status;
}

void trace_write_op(trace_writer *w, const char *op, const char *sequence) {
    kvant_text_printf(&w->line, "{\"op\": \"%s\"", op);
    if (sequence != NULL) kvant_text_printf(&w->line, ", \"sequence\": \"%s\"", sequence);
}

void trace_write_end(trace_writer *w) {
    kvant_text_puts(&w->line, "}\n");
    if (!w->line.failed) kvant_file_writer_add(w->file, w->line.data, w->line.size);
    w->line.size = 0;
}

static void write_piece(trace_writer *w, const trace_piece *p) {
    if (p->segment != NULL) {
        kvant_text_printf(&w->line, "{\"segment\": \"%s\"}", p->segment);
        return;
    }
    if (p->ids == NULL)
        kvant_text_printf(&w->line, "{\"range\": [%llu, %u]", (unsigned long long)p->first, p->count);
    for (uint32_t i = 0; p->ids != NULL && i < p->count; i++)
        kvant_text_printf(&w->line, "%s%llu", i == 0 ? "{\"ids\": [" : ", ", (unsigned long long)p->ids[i]);
    if (p->ids != NULL) kvant_text_puts(&w->line, "]");
    kvant_text_printf(&w->line, ", \"role\": \"%s\"%s}", kvant_tag_word(KVANT_TAG_AXIS_ROLE, p->role),
                      p->generated ? ", \"generated\": true" : "");
}

void trace_write_text(trace_writer *w, const char *key, const trace_piece *pieces, uint32_t count) {
    kvant_text_printf(&w->line, ", \"%s\": [", key);
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) kvant_text_puts(&w->line, ", ");
        write_piece(w, &pieces[i]);
    }
    kvant_text_puts(&w->line, "]");
}

void trace_write_segment(trace_writer *w, const char *name, const trace_piece *pieces, uint32_t count) {
    kvant_text_printf(&w->line, "{\"segment\": \"%s\"", name);
    trace_write_text(w, "text", pieces, count);
    trace_write_end(w);
}
