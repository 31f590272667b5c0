/* One codec of a pipeline that learns: its kvant.calibrate/1 session, driven and not trusted. */
#ifndef KVANT_CALIBRATE_SESSION_H
#define KVANT_CALIBRATE_SESSION_H

#include "calibrate/calibrate_sample.h"
#include "data/artifact_write.h"

#include <stdbool.h>

/* A codec that still asks for the samples again after so many passes is broken. */
enum { CALIBRATE_PASSES_MAX = 64 };

typedef struct calibrate_session {
    const kvant_plan *plan;
    const kvant_plugin *plugin;
    const char *codec; /* the pipeline's name for it */
    const kvant_calibrate *calls;
    const kvant_setup **setups; /* every row of the codec */
    uint32_t setup_count;
    void *session; /* the plugin's; after begin */
    bool begun;
    bool wants; /* the next pass */
    uint32_t passes;
    uint32_t tensors;
} calibrate_session;

/* The codecs of the plan that cannot be opened without an artifact, in the order of their first rows. A
 * codec that needs one and has no kvant.calibrate/1 is refused. */
kvant_status calibrate_sessions_find(const kvant_plan *plan, calibrate_session **sessions, uint32_t *count,
                                     kvant_diag *diag);
void calibrate_sessions_free(calibrate_session *sessions, uint32_t count);

/* Which sides of the layer the codec codes; false where it codes neither. */
bool calibrate_session_codes(const calibrate_session *session, uint32_t layer, bool codes[2]);

/* The calls of kvant.calibrate/1 in their order. Errors name the codec; what breaks plugin.h is
 * PLUGIN_BROKEN. `file` is the text of the sample. end adds the tensors to the artifact, and to its metadata
 * what their rows' codec is. */
kvant_status calibrate_session_begin(calibrate_session *session, kvant_diag *diag);
kvant_status calibrate_session_feed(calibrate_session *session, const kvant_sample *sample, const char *file,
                                    kvant_diag *diag);
kvant_status calibrate_session_again(calibrate_session *session, kvant_diag *diag);
kvant_status calibrate_session_end(calibrate_session *session, kvant_artifact_builder *artifact,
                                   kvant_diag *diag);

#endif
