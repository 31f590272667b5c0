/* See sequence_file.h for the byte map. */
#include "sequence_file.h"

#include "bytes.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    AT_VERSION = 8,
    AT_ZEROS = 12,
    AT_HEAD_BYTES = 16,
    AT_RECORDS = 24,
    AT_TOKENS = 32,
    AT_DESCRIPTION_BYTES = 40,
    AT_MORE_ZEROS = 48,
    AT_DESCRIPTION = 64,
    SUM_BYTES = 8,
    SEQUENCE_VERSION = 1
};
static const unsigned char magic[8] = "KVANTSEQ";

struct kvant_sequence_file {
    char *name;
    kvant_file_map map; /* empty where the bytes are the caller's */
    kvant_record_part description;
    kvant_record *records;
    uint32_t count;
    uint64_t tokens;
};

/* description < 2^63 */
static uint64_t head_bytes_of(uint64_t description) {
    uint64_t used = AT_DESCRIPTION + description + SUM_BYTES;
    return (used + KVANT_RECORD_ALIGNMENT - 1) / KVANT_RECORD_ALIGNMENT * KVANT_RECORD_ALIGNMENT;
}

/* ---- Read ---------------------------------------------------------------------------------------------- */

static bool is_other_version(const unsigned char *bytes, size_t size) {
    return size >= AT_DESCRIPTION && memcmp(bytes, magic, sizeof magic) == 0 &&
           kvant_get32(bytes + AT_VERSION) != SEQUENCE_VERSION;
}

static const char *check_head(const unsigned char *bytes, size_t size) {
    if (size < AT_DESCRIPTION) return "too short for a file of records (truncated file?)";
    if (memcmp(bytes, magic, sizeof magic) != 0) return "not a file of records (wrong magic)";
    if (is_other_version(bytes, size)) return "a version of the format that this build does not read";
    uint64_t head = kvant_get64(bytes + AT_HEAD_BYTES),
             description = kvant_get64(bytes + AT_DESCRIPTION_BYTES);
    if (head > size || head < AT_DESCRIPTION || description > head - AT_DESCRIPTION)
        return "the head does not fit into the file (truncated file?)";
    if (head != head_bytes_of(description)) return "the head's length does not follow from the description's";
    if (XXH3_64bits(bytes, (size_t)head - SUM_BYTES) != kvant_get64(bytes + head - SUM_BYTES))
        return "the head's checksum is wrong";
    uint64_t zeros = kvant_get32(bytes + AT_ZEROS) | kvant_get64(bytes + AT_MORE_ZEROS) |
                     kvant_get64(bytes + AT_MORE_ZEROS + 8);
    for (uint64_t i = AT_DESCRIPTION + description; i < head - SUM_BYTES; i++) zeros |= bytes[i];
    if (zeros != 0) return "bytes of the head that must be zero are not";
    return NULL;
}

/* What a record must have in common with the one before it, or with the first. */
static const char *check_order(const kvant_record *record, const kvant_record *before,
                               const kvant_record *first) {
    static const unsigned char zeros[KVANT_RECORD_KEY_BYTES];
    const kvant_record_head *head = &record->head;
    if (before == NULL) {
        if (head->block != 0 || head->first_position != 0 || memcmp(head->parent, zeros, sizeof zeros) != 0)
            return "the first record is not the start of a sequence";
        return NULL;
    }
    if (before->head.kind == KVANT_RECORD_TAIL) return "a record after the tail";
    if (head->block != before->head.block + 1)
        return "the number of its block does not follow the one before";
    if (head->first_position != before->head.first_position + before->head.tokens)
        return "its position does not follow the record before";
    if (memcmp(head->parent, before->head.key, sizeof head->parent) != 0)
        return "it does not name the key of the record before";
    if (memcmp(head->fingerprint, first->head.fingerprint, sizeof head->fingerprint) != 0)
        return "it has another fingerprint than the first record";
    if (head->layers != first->head.layers || head->dtype != first->head.dtype)
        return "it has other layers or another dtype than the first record";
    if (head->kind == KVANT_RECORD_BLOCK && head->tokens != first->head.tokens)
        return "its block has another number of tokens than the first";
    return NULL;
}

static kvant_status add_record(kvant_sequence_file *sequence, const kvant_record *record) {
    if ((sequence->count & (sequence->count - 1)) == 0) { /* full at every power of two */
        size_t capacity = sequence->count > 0 ? (size_t)sequence->count * 2 : 1;
        kvant_record *records = realloc(sequence->records, capacity * sizeof *records);
        if (records == NULL) return KVANT_ERROR_MEMORY;
        sequence->records = records;
    }
    sequence->records[sequence->count++] = *record;
    return KVANT_OK;
}

static kvant_status read_records(kvant_sequence_file *sequence, const unsigned char *bytes, size_t size,
                                 kvant_diag *diag) {
    size_t at = (size_t)kvant_get64(bytes + AT_HEAD_BYTES);
    uint64_t tokens = 0;
    while (at < size) {
        kvant_record record;
        const char *reason;
        kvant_status status = kvant_record_read(bytes + at, size - at, &record, &reason);
        if (status == KVANT_OK) {
            const kvant_record *records = sequence->records;
            reason =
                check_order(&record, sequence->count > 0 ? &records[sequence->count - 1] : NULL, records);
            if (reason == NULL && kvant_record_check_key(&record, NULL, 0) != KVANT_OK)
                reason = "its key is not that of its tokens";
            if (reason != NULL) status = KVANT_ERROR_CORRUPT;
        }
        if (status != KVANT_OK)
            return kvant_file_fail(diag, status, sequence->name, "record %u at byte %zu: %s", sequence->count,
                                   at, reason);
        if (add_record(sequence, &record) != KVANT_OK)
            return kvant_file_fail(diag, KVANT_ERROR_MEMORY, sequence->name, "out of memory");
        tokens += record.head.tokens;
        at += (size_t)record.size;
    }
    uint64_t records = kvant_get64(bytes + AT_RECORDS);
    if (sequence->count != records)
        return kvant_file_fail(diag, KVANT_ERROR_CORRUPT, sequence->name,
                               "the head says %llu records, and there are %u (truncated file?)",
                               (unsigned long long)records, sequence->count);
    sequence->tokens = kvant_get64(bytes + AT_TOKENS);
    if (sequence->tokens == tokens) return KVANT_OK;
    return kvant_file_fail(diag, KVANT_ERROR_CORRUPT, sequence->name,
                           "the head says %llu tokens, and the records have %llu",
                           (unsigned long long)sequence->tokens, (unsigned long long)tokens);
}

kvant_status kvant_sequence_file_parse(const void *data, size_t size, const char *name,
                                       kvant_sequence_file **out, kvant_diag *diag) {
    const unsigned char *bytes = data;
    kvant_sequence_file *sequence = calloc(1, sizeof *sequence);
    if (sequence == NULL || (sequence->name = strdup(name)) == NULL) {
        free(sequence);
        return kvant_file_fail(diag, KVANT_ERROR_MEMORY, name, "out of memory");
    }
    const char *reason = check_head(bytes, size);
    kvant_status status = KVANT_OK;
    if (reason != NULL)
        status =
            kvant_file_fail(diag, is_other_version(bytes, size) ? KVANT_ERROR_VERSION : KVANT_ERROR_CORRUPT,
                            name, "%s", reason);
    else
        status = read_records(sequence, bytes, size, diag);
    if (status != KVANT_OK) {
        kvant_sequence_file_close(sequence);
        return status;
    }
    sequence->description =
        (kvant_record_part){bytes + AT_DESCRIPTION, kvant_get64(bytes + AT_DESCRIPTION_BYTES)};
    *out = sequence;
    return KVANT_OK;
}

kvant_status kvant_sequence_file_open(const char *file, kvant_sequence_file **out, kvant_diag *diag) {
    kvant_file_map map;
    kvant_status status = kvant_file_map_open(file, &map, diag);
    if (status != KVANT_OK) return status;
    status = kvant_sequence_file_parse(map.bytes, map.size, file, out, diag);
    if (status == KVANT_OK)
        (*out)->map = map;
    else
        kvant_file_map_close(&map);
    return status;
}

void kvant_sequence_file_close(kvant_sequence_file *sequence) {
    if (sequence == NULL) return;
    kvant_file_map_close(&sequence->map);
    free(sequence->records);
    free(sequence->name);
    free(sequence);
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

uint32_t kvant_sequence_file_count(const kvant_sequence_file *sequence) {
    return sequence->count;
}

uint64_t kvant_sequence_file_tokens(const kvant_sequence_file *sequence) {
    return sequence->tokens;
}

const kvant_record *kvant_sequence_file_record(const kvant_sequence_file *sequence, uint32_t index) {
    return index < sequence->count ? &sequence->records[index] : NULL;
}

kvant_record_part kvant_sequence_file_description(const kvant_sequence_file *sequence) {
    return sequence->description;
}

/* ---- Write --------------------------------------------------------------------------------------------- */

kvant_status kvant_sequence_file_create(const char *file, const void *description, size_t size,
                                        uint32_t records, uint64_t tokens, kvant_file_writer **writer,
                                        kvant_diag *diag) {
    uint64_t head_bytes = head_bytes_of(size);
    unsigned char *head = calloc(1, (size_t)head_bytes);
    if (head == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, file, "out of memory");
    memcpy(head, magic, sizeof magic);
    kvant_put32(head + AT_VERSION, SEQUENCE_VERSION);
    kvant_put64(head + AT_HEAD_BYTES, head_bytes);
    kvant_put64(head + AT_RECORDS, records);
    kvant_put64(head + AT_TOKENS, tokens);
    kvant_put64(head + AT_DESCRIPTION_BYTES, size);
    memcpy(head + AT_DESCRIPTION, description, size);
    kvant_put64(head + head_bytes - SUM_BYTES, XXH3_64bits(head, (size_t)head_bytes - SUM_BYTES));
    kvant_status status = kvant_file_writer_open(file, writer, diag);
    if (status == KVANT_OK) kvant_file_writer_add(*writer, head, (size_t)head_bytes);
    free(head);
    return status;
}
