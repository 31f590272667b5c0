/* A trace made of a dump's tokens, tags and turns: its conversation, as agents have it. */
#ifndef KVANT_REPLAY_TRACE_OF_DUMP_H
#define KVANT_REPLAY_TRACE_OF_DUMP_H

#include "data/dump.h"

/* MISSING where the dump has no tags, or its metadata tag_names does not say what they mean; VALUE where
 * nothing of it was generated, or nothing comes first. */
kvant_status kvant_trace_of_dump(const kvant_dump *dump, const char *file, kvant_diag *diag);

#endif
