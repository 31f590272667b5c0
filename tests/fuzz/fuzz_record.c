/* Records, files of records and their description. Checksums would stop nearly every mutation at the door, so
 * each input is also read with its checksums put right. */
#include "fuzz.h"
#include "store/bytes.h"
#include "store/description.h"
#include "store/sequence_file.h"

#include <xxhash.h>

/* Puts the checksums of a record right, where its lengths allow it. Returns its size, 0 where they do not. */
static size_t reseal_record(uint8_t *bytes, size_t size) {
    if (size < 192) return 0;
    uint64_t record = kvant_get64(bytes + 16), header = kvant_get64(bytes + 24);
    if (record > size || header > record || header < 192) return 0;
    kvant_put64(bytes + 160, XXH3_64bits(bytes + header, (size_t)(record - header)));
    kvant_put64(bytes + header - 8, XXH3_64bits(bytes, (size_t)header - 8));
    return (size_t)record;
}

static void reseal_sequence(uint8_t *bytes, size_t size) {
    if (size < 64) return;
    uint64_t head = kvant_get64(bytes + 16);
    if (head < 64 || head > size) return;
    kvant_put64(bytes + head - 8, XXH3_64bits(bytes, (size_t)head - 8));
    for (size_t at = (size_t)head, step = 1; at < size && step > 0; at += step)
        step = reseal_record(bytes + at, size - at);
}

static void use_record(const kvant_record *record) {
    kvant_fuzz_touch(record->bytes, record->size);
    for (uint32_t i = 0; i < record->head.layers * 2; i++) {
        kvant_record_part extent = kvant_record_extent(record, i / 2, i % 2),
                          raw = kvant_record_raw(record, i / 2, i % 2);
        kvant_fuzz_touch(extent.bytes, extent.size);
        kvant_fuzz_touch(raw.bytes, raw.size);
    }
    for (uint32_t t = 0; t < record->head.tokens; t++) (void)kvant_record_id(record, t);
    (void)kvant_record_check_key(record, "salt", 4);
}

static void read_record(const uint8_t *data, size_t size) {
    kvant_record record;
    const char *reason = NULL;
    if (kvant_record_read(data, size, &record, &reason) == KVANT_OK)
        use_record(&record);
    else if (reason == NULL)
        abort();
}

static void read_sequence(const uint8_t *data, size_t size) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_sequence_file *file = NULL;
    kvant_status status = kvant_sequence_file_parse(data, size, "fuzz", &file, &diag);
    kvant_fuzz_check(status, &diag);
    if (status != KVANT_OK) return;
    const kvant_record *first = kvant_sequence_file_record(file, 0);
    for (uint32_t i = 0; i < kvant_sequence_file_count(file); i++)
        use_record(kvant_sequence_file_record(file, i));
    kvant_description description;
    status = kvant_description_read(kvant_sequence_file_description(file),
                                    first != NULL ? first->head.dtype : KVANT_DTYPE_F32,
                                    kvant_sequence_file_tokens(file), "fuzz", &description, &diag);
    kvant_fuzz_check(status, &diag);
    if (status == KVANT_OK) kvant_description_free(&description);
    kvant_sequence_file_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    read_record(data, size);
    read_sequence(data, size);
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL) return 0;
    memcpy(copy, data, size);
    (void)reseal_record(copy, size);
    read_record(copy, size);
    memcpy(copy, data, size);
    reseal_sequence(copy, size);
    read_sequence(copy, size);
    free(copy);
    return 0;
}
