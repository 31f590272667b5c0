/* See saved.h. */
#include "saved.h"

#include <kvant/kit/diag.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kvant_status in_file(kvant_diag *diag, const char *file, kvant_status status) {
    if (status != KVANT_OK && diag->file[0] == '\0')
        (void)snprintf(diag->file, sizeof diag->file, "%s", file);
    return status;
}

void *aligned_room(size_t size, size_t alignment) {
    if (size > SIZE_MAX / 2) return NULL;
    size_t rounded = (size + alignment - 1) / alignment * alignment;
    return aligned_alloc(alignment, rounded > 0 ? rounded : alignment);
}

const char *saved_record_name(uint32_t index, char text[32]) {
    (void)snprintf(text, 32, "record %u", index);
    return text;
}

kvant_status saved_open(const char *path, saved *s, kvant_diag *diag) {
    *s = (saved){.path = path, .info.struct_size = sizeof s->info};
    kvant_status status = kvant_sequence_file_open(path, &s->file, diag);
    if (status != KVANT_OK) return status;
    const kvant_record *first = kvant_sequence_file_record(s->file, 0);
    if (first == NULL) {
        status = kvant_file_fail(diag, KVANT_ERROR_MISSING, path, "holds no records");
    } else {
        status = kvant_description_read(kvant_sequence_file_description(s->file), first->head.dtype,
                                        kvant_sequence_file_tokens(s->file), path, &s->description, diag);
        if (status == KVANT_OK && s->description.layers != first->head.layers)
            status = kvant_file_fail(diag, KVANT_ERROR_CORRUPT, path,
                                     "the description has %u layers, the records %u", s->description.layers,
                                     first->head.layers);
    }
    if (status != KVANT_OK) saved_close(s);
    return status;
}

/* The first line that differs, of the file's canonical text and of the one that the installed codecs give. */
static kvant_status name_difference(const saved *s, const char *now, kvant_diag *diag) {
    const char *then = s->description.canonical;
    for (;;) {
        size_t a = strcspn(then, "\n"), b = strcspn(now, "\n");
        if (a != b || memcmp(then, now, a) != 0)
            return kvant_file_fail(
                diag, KVANT_ERROR_MISMATCH, s->path,
                "the installed codecs do not read these records: written with \"%.*s\", and now it "
                "is \"%.*s\"",
                a < 200 ? (int)a : 200, then, b < 200 ? (int)b : 200, now);
        if (then[a] == '\0' || now[b] == '\0') break;
        then += a + 1;
        now += b + 1;
    }
    return kvant_file_fail(diag, KVANT_ERROR_MISMATCH, s->path,
                           "the records have another fingerprint than the pipeline that the file describes");
}

static kvant_status check_records(const saved *s, kvant_diag *diag) {
    for (uint32_t i = 0; i < kvant_sequence_file_count(s->file); i++) {
        char name[32];
        kvant_status status = kvant_unpack_check(s->plan, kvant_sequence_file_record(s->file, i),
                                                 saved_record_name(i, name), diag);
        if (status != KVANT_OK) return in_file(diag, s->path, status);
    }
    return KVANT_OK;
}

kvant_status saved_resolve(saved *s, const char *directory, kvant_diag *diag) {
    const kvant_description *d = &s->description;
    kvant_pipeline *pipeline = NULL;
    unsigned char fingerprint[KVANT_RECORD_KEY_BYTES];
    const char *canonical = NULL;
    char name[512]; /* the INI file is inside this one; a file of its name may not be there, or be another */
    (void)snprintf(name, sizeof name, "%s[%s]", s->path, d->pipeline_name);
    kvant_status status =
        kvant_pipeline_parse(d->pipeline, strlen(d->pipeline), name,
                             directory != NULL ? directory : d->pipeline_directory, &pipeline, diag);
    if (status == KVANT_OK)
        status = kvant_pipeline_resolve(pipeline, kvant_dump_geometry(d->dump), &s->plan, diag);
    kvant_pipeline_free(pipeline);
    if (status == KVANT_OK) status = kvant_plan_describe(s->plan, &s->info);
    if (status == KVANT_OK) status = kvant_plan_fingerprint(s->plan, fingerprint, diag);
    if (status == KVANT_OK) status = kvant_plan_canonical(s->plan, &canonical, diag);
    if (status != KVANT_OK) return in_file(diag, s->path, status);
    const kvant_record *first = kvant_sequence_file_record(s->file, 0);
    if (memcmp(fingerprint, first->head.fingerprint, sizeof fingerprint) != 0)
        return name_difference(s, canonical, diag);
    return check_records(s, diag);
}

void saved_close(saved *s) {
    kvant_plan_free(s->plan);
    kvant_description_free(&s->description);
    kvant_sequence_file_close(s->file);
    *s = (saved){0};
}
