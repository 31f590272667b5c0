/* Chat templates for `kvant tag`, as INI files, and spans, as JSON. */
#ifndef KVANT_TOOLS_TAG_TEMPLATE_H
#define KVANT_TOOLS_TAG_TEMPLATE_H

#include "data/tagger.h"

/* Reads a template:
 *
 *     [template]                 ids, separated by blanks; all but `start` may be left out
 *     start      = 1             begins a message
 *     end        = 2             ends it
 *     header_end = 128007        between role and text; none = the role's ids are the header
 *     newline    = 198           scaffolding behind a header or an end
 *     scaffold   = 151652 151653 each alone is scaffolding, anywhere
 *     image      = 151655        each alone stands for a piece of an image
 *     turn       = real_user     or any_user: tool results that come as user messages open a turn, too
 *
 *     [role system]              any title
 *     ids = 9690
 *     as  = inst
 *
 *     [bracket tool_call]        any title
 *     open  = 44 19324 79 4350 46
 *     close = 9617 19324 79 4350 46
 *     as    = tool_call
 *     in    = assistant          honoured in messages of this role only
 */
kvant_status tag_template_load(const char *file, kvant_tag_template *chat, kvant_diag *diag);

/* Reads [{"first": 0, "count": 59, "role": "inst", "modality": "text", "turn": 0}, ...]; modality (text) and
 * turn may be left out. The caller frees *spans. */
kvant_status tag_spans_load(const char *file, kvant_tag_span **spans, uint32_t *count, kvant_diag *diag);

#endif
