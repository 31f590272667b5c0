/* See record.h for the byte map. */
#include "record.h"

#include "bytes.h"
#include "store/block_key.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    AT_VERSION = 8,
    AT_KIND = 12,
    AT_RECORD_BYTES = 16,
    AT_HEADER_BYTES = 24,
    AT_FINGERPRINT = 32,
    AT_PARENT = 64,
    AT_KEY = 96,
    AT_BLOCK = 128,
    AT_FIRST_POSITION = 136,
    AT_TOKENS = 144,
    AT_LAYERS = 148,
    AT_SINKS = 152,
    AT_DTYPE = 156,
    AT_PAYLOAD_SUM = 160,
    AT_ZEROS = 168,
    AT_TABLE = 192,
    ROW_BYTES = 32, /* of the table: one layer and side */
    RAW_IN_ROW = 16,
    SUM_BYTES = 8
};
static const unsigned char magic[8] = "KVANTREC";

static uint64_t align_up(uint64_t size) {
    return (size + KVANT_RECORD_ALIGNMENT - 1) / KVANT_RECORD_ALIGNMENT * KVANT_RECORD_ALIGNMENT;
}

static uint64_t ids_at(uint32_t layers) {
    return AT_TABLE + (uint64_t)layers * 2 * ROW_BYTES;
}

/* Cannot overflow: both counts have 32 bits. */
static uint64_t header_bytes_of(uint32_t tokens, uint32_t layers) {
    return align_up(ids_at(layers) + (uint64_t)tokens * 10 + SUM_BYTES);
}

static uint32_t element_bytes(uint32_t dtype) {
    return dtype == KVANT_DTYPE_F32 ? 4 : dtype == KVANT_DTYPE_F16 || dtype == KVANT_DTYPE_BF16 ? 2 : 0;
}

static bool all_zero(const unsigned char *bytes, uint64_t size) {
    unsigned char any = 0;
    for (uint64_t i = 0; i < size; i++) any |= bytes[i];
    return any == 0;
}

/* ---- Key ----------------------------------------------------------------------------------------------- */

kvant_status kvant_record_key(const kvant_record_head *head, const uint64_t *ids,
                              const unsigned char *classes, const void *salt, size_t salt_bytes,
                              unsigned char key[KVANT_RECORD_KEY_BYTES]) {
    bool first = head->block == 0 && all_zero(head->parent, sizeof head->parent);
    kvant_block_hasher *hasher;
    kvant_status status = kvant_block_hasher_open(head->fingerprint, &hasher);
    if (status == KVANT_OK)
        status = kvant_block_key(hasher, first ? NULL : head->parent, ids, classes, head->tokens, salt,
                                 salt_bytes, key);
    kvant_block_hasher_close(hasher);
    return status;
}

/* ---- Read ---------------------------------------------------------------------------------------------- */

static void read_head(const unsigned char *bytes, kvant_record_head *head) {
    *head = (kvant_record_head){.kind = kvant_get32(bytes + AT_KIND),
                                .tokens = kvant_get32(bytes + AT_TOKENS),
                                .layers = kvant_get32(bytes + AT_LAYERS),
                                .sinks = kvant_get32(bytes + AT_SINKS),
                                .dtype = kvant_get32(bytes + AT_DTYPE),
                                .block = kvant_get64(bytes + AT_BLOCK),
                                .first_position = kvant_get64(bytes + AT_FIRST_POSITION)};
    memcpy(head->fingerprint, bytes + AT_FINGERPRINT, sizeof head->fingerprint);
    memcpy(head->parent, bytes + AT_PARENT, sizeof head->parent);
    memcpy(head->key, bytes + AT_KEY, sizeof head->key);
}

/* Lengths first: nothing is read, not even a checksum, before it is known to be there. */
static const char *check_lengths(const unsigned char *bytes, size_t size) {
    if (size < AT_TABLE) return "the record is cut off inside its header";
    if (memcmp(bytes, magic, sizeof magic) != 0) return "no record starts here (wrong magic)";
    if (kvant_get32(bytes + AT_VERSION) != KVANT_RECORD_VERSION)
        return "a record version that this build does not read";
    uint32_t layers = kvant_get32(bytes + AT_LAYERS), tokens = kvant_get32(bytes + AT_TOKENS);
    if (layers < 1 || layers > KVANT_RECORD_LAYERS_MAX) return "the number of layers is out of range";
    if (tokens < 1) return "a record without tokens";
    uint64_t header = kvant_get64(bytes + AT_HEADER_BYTES), record = kvant_get64(bytes + AT_RECORD_BYTES);
    if (header != header_bytes_of(tokens, layers))
        return "the header's length does not follow from layers and tokens";
    if (record < header || record % KVANT_RECORD_ALIGNMENT != 0) return "the record's length is impossible";
    if (record > size) return "the record is cut off";
    if (XXH3_64bits(bytes, (size_t)header - SUM_BYTES) != kvant_get64(bytes + header - SUM_BYTES))
        return "the header's checksum is wrong";
    return NULL;
}

static const char *check_head(const unsigned char *bytes, const kvant_record_head *head,
                              uint64_t header_bytes) {
    if (head->kind != KVANT_RECORD_BLOCK && head->kind != KVANT_RECORD_TAIL)
        return "a kind of record that is not known";
    if (element_bytes(head->dtype) == 0) return "raw rows of a dtype that is not F32, F16 or BF16";
    if (head->sinks != 0 && (head->kind != KVANT_RECORD_BLOCK || head->block != 0))
        return "sinks beside something else than block 0";
    if (head->sinks >= head->tokens) return "as many sinks as tokens";
    if (head->first_position > UINT64_MAX - head->tokens) return "positions overflow";
    if (head->block == 0 && !all_zero(head->parent, sizeof head->parent))
        return "block 0 has a block before it";
    uint64_t used = ids_at(head->layers) + (uint64_t)head->tokens * 10;
    if (!all_zero(bytes + AT_ZEROS, AT_TABLE - AT_ZEROS) ||
        !all_zero(bytes + used, header_bytes - SUM_BYTES - used))
        return "bytes of the header that must be zero are not";
    return NULL;
}

/* Parts lie in the table's order, each at the next multiple of 64 after the one before, and fill the
 * payload. */
static const char *check_part(const unsigned char *entry, bool wanted, uint64_t quantum,
                              uint64_t record_bytes, uint64_t *end) {
    uint64_t offset = kvant_get64(entry), size = kvant_get64(entry + 8);
    if (size == 0) return offset == 0 ? NULL : "an absent part has an offset";
    if (!wanted) return "a part that this kind of record does not have";
    if (offset != align_up(*end)) return "a part is not where the one before it ends";
    if (offset > record_bytes || size > record_bytes - offset) return "a part reaches beyond the record";
    if (size % quantum != 0) return "raw rows whose size is not a multiple of their tokens";
    *end = offset + size;
    return NULL;
}

static const char *check_table(const unsigned char *bytes, const kvant_record_head *head,
                               uint64_t header_bytes, uint64_t record_bytes) {
    bool block = head->kind == KVANT_RECORD_BLOCK;
    uint32_t raw_tokens = block ? head->sinks : head->tokens;
    uint64_t quantum = (uint64_t)(raw_tokens > 0 ? raw_tokens : 1) * element_bytes(head->dtype);
    uint64_t end = header_bytes;
    for (uint64_t row = 0; row < (uint64_t)head->layers * 2; row++) {
        const unsigned char *entry = bytes + AT_TABLE + row * ROW_BYTES;
        for (unsigned raw = 0; raw < 2; raw++) {
            uint64_t before = end;
            const char *reason = check_part(entry + raw * RAW_IN_ROW, raw ? raw_tokens > 0 : block,
                                            raw ? quantum : 1, record_bytes, &end);
            if (reason != NULL) return reason;
            if (end != before && !all_zero(bytes + before, align_up(before) - before))
                return "bytes between parts are not zero";
        }
    }
    if (align_up(end) != record_bytes) return "bytes after the last part belong to nothing";
    return all_zero(bytes + end, record_bytes - end) ? NULL : "bytes between parts are not zero";
}

kvant_status kvant_record_read(const void *data, size_t size, kvant_record *record, const char **reason) {
    const unsigned char *bytes = data;
    *reason = check_lengths(bytes, size);
    if (*reason != NULL)
        return size >= AT_TABLE && memcmp(bytes, magic, sizeof magic) == 0 &&
                       kvant_get32(bytes + AT_VERSION) != KVANT_RECORD_VERSION
                   ? KVANT_ERROR_VERSION
                   : KVANT_ERROR_CORRUPT;
    kvant_record r = {.bytes = bytes,
                      .size = kvant_get64(bytes + AT_RECORD_BYTES),
                      .header_bytes = kvant_get64(bytes + AT_HEADER_BYTES)};
    read_head(bytes, &r.head);
    *reason = check_head(bytes, &r.head, r.header_bytes);
    if (*reason == NULL && XXH3_64bits(bytes + r.header_bytes, (size_t)(r.size - r.header_bytes)) !=
                               kvant_get64(bytes + AT_PAYLOAD_SUM))
        *reason = "the payload's checksum is wrong";
    if (*reason == NULL) *reason = check_table(bytes, &r.head, r.header_bytes, r.size);
    if (*reason != NULL) return KVANT_ERROR_CORRUPT;
    r.ids = bytes + ids_at(r.head.layers);
    r.tags = r.ids + (size_t)r.head.tokens * 8;
    r.classes = r.tags + r.head.tokens;
    *record = r;
    return KVANT_OK;
}

kvant_status kvant_record_check_key(const kvant_record *record, const void *salt, size_t salt_bytes) {
    unsigned char key[KVANT_RECORD_KEY_BYTES];
    uint64_t *ids = malloc((size_t)record->head.tokens * sizeof *ids);
    if (ids == NULL) return KVANT_ERROR_MEMORY;
    for (uint32_t t = 0; t < record->head.tokens; t++) ids[t] = kvant_record_id(record, t);
    kvant_status status = kvant_record_key(&record->head, ids, record->classes, salt, salt_bytes, key);
    free(ids);
    if (status != KVANT_OK) return status;
    return memcmp(key, record->head.key, sizeof key) == 0 ? KVANT_OK : KVANT_ERROR_MISMATCH;
}

uint64_t kvant_record_id(const kvant_record *record, uint32_t token) {
    return kvant_get64(record->ids + (size_t)token * 8);
}

static kvant_record_part part_at(const kvant_record *record, uint32_t layer, uint32_t side, unsigned in_row) {
    kvant_record_part part = {0};
    if (layer >= record->head.layers || side > KVANT_SIDE_VALUE) return part;
    const unsigned char *entry = record->bytes + AT_TABLE + ((size_t)layer * 2 + side) * ROW_BYTES + in_row;
    part.size = kvant_get64(entry + 8);
    if (part.size > 0) part.bytes = record->bytes + kvant_get64(entry);
    return part;
}

kvant_record_part kvant_record_extent(const kvant_record *record, uint32_t layer, uint32_t side) {
    return part_at(record, layer, side, 0);
}

kvant_record_part kvant_record_raw(const kvant_record *record, uint32_t layer, uint32_t side) {
    return part_at(record, layer, side, RAW_IN_ROW);
}

/* ---- Write --------------------------------------------------------------------------------------------- */

size_t kvant_record_size(uint32_t tokens, uint32_t layers, uint64_t part_bytes) {
    uint64_t header = header_bytes_of(tokens, layers);
    if (part_bytes > SIZE_MAX / 2 - header) return 0;
    return (size_t)(header + part_bytes);
}

kvant_status kvant_record_start(kvant_record_writer *writer, void *buffer, size_t capacity,
                                kvant_record_head *head, const uint64_t *ids, const unsigned char *tags,
                                const unsigned char *classes, const void *salt, size_t salt_bytes) {
    uint64_t header = header_bytes_of(head->tokens, head->layers);
    if (head->tokens < 1 || head->layers < 1 || head->layers > KVANT_RECORD_LAYERS_MAX)
        return KVANT_ERROR_ARGUMENT;
    if (header > capacity) return KVANT_ERROR_CAPACITY;
    unsigned char *base = buffer;
    memset(base, 0, (size_t)header);
    memcpy(base, magic, sizeof magic);
    kvant_put32(base + AT_VERSION, KVANT_RECORD_VERSION);
    kvant_put32(base + AT_KIND, head->kind);
    kvant_put64(base + AT_HEADER_BYTES, header);
    memcpy(base + AT_FINGERPRINT, head->fingerprint, sizeof head->fingerprint);
    memcpy(base + AT_PARENT, head->parent, sizeof head->parent);
    kvant_put64(base + AT_BLOCK, head->block);
    kvant_put64(base + AT_FIRST_POSITION, head->first_position);
    kvant_put32(base + AT_TOKENS, head->tokens);
    kvant_put32(base + AT_LAYERS, head->layers);
    kvant_put32(base + AT_SINKS, head->sinks);
    kvant_put32(base + AT_DTYPE, head->dtype);
    unsigned char *to_ids = base + ids_at(head->layers), *to_tags = to_ids + (size_t)head->tokens * 8;
    unsigned char *to_classes = to_tags + head->tokens;
    for (uint32_t t = 0; t < head->tokens; t++) kvant_put64(to_ids + (size_t)t * 8, ids[t]);
    if (tags != NULL) memcpy(to_tags, tags, head->tokens);
    if (classes != NULL) memcpy(to_classes, classes, head->tokens);
    kvant_status status = kvant_record_key(head, ids, to_classes, salt, salt_bytes, head->key);
    memcpy(base + AT_KEY, head->key, sizeof head->key);
    *writer = (kvant_record_writer){
        .base = base, .capacity = capacity, .end = (size_t)header, .layers = head->layers};
    return status;
}

void *kvant_record_room(kvant_record_writer *writer, size_t size) {
    uint64_t start = align_up(writer->end);
    if (start > writer->capacity || size > writer->capacity - start) return NULL;
    return writer->base + start;
}

static void put_part(kvant_record_writer *writer, uint32_t layer, uint32_t side, unsigned in_row,
                     size_t size) {
    if (size == 0) return;
    uint64_t start = align_up(writer->end);
    unsigned char *entry = writer->base + AT_TABLE + ((size_t)layer * 2 + side) * ROW_BYTES + in_row;
    memset(writer->base + writer->end, 0, (size_t)start - writer->end);
    kvant_put64(entry, start);
    kvant_put64(entry + 8, size);
    writer->end = (size_t)start + size;
}

void kvant_record_put_extent(kvant_record_writer *writer, uint32_t layer, uint32_t side, size_t size) {
    put_part(writer, layer, side, 0, size);
}

void kvant_record_put_raw(kvant_record_writer *writer, uint32_t layer, uint32_t side, size_t size) {
    put_part(writer, layer, side, RAW_IN_ROW, size);
}

size_t kvant_record_finish(kvant_record_writer *writer) {
    unsigned char *base = writer->base;
    uint64_t size = align_up(writer->end), header = kvant_get64(base + AT_HEADER_BYTES);
    if (size > writer->capacity) return 0;
    memset(base + writer->end, 0, (size_t)size - writer->end);
    kvant_put64(base + AT_RECORD_BYTES, size);
    kvant_put64(base + AT_PAYLOAD_SUM, XXH3_64bits(base + header, (size_t)(size - header)));
    kvant_put64(base + header - SUM_BYTES, XXH3_64bits(base, (size_t)header - SUM_BYTES));
    return (size_t)size;
}
