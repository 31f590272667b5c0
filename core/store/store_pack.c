/* See store_pack.h for the byte map. */
#include "store_pack.h"

#include "bytes.h"
#include "record.h"

#include <kvant/kvant.h>

#include <string.h>
#include <xxhash.h>
#include <zstd.h>

enum {
    VERSION = 1,
    METHOD_ZSTD = 1,
    AT_VERSION = 8,
    AT_METHOD = 12,
    AT_BYTES = 16,
    AT_SUM = 24,
    AT_ZEROS = 32,
    AT_HEAD = 64,
    HEAD_BYTES = 192,
    AT_FRAME = AT_HEAD + HEAD_BYTES,
    SUM_BYTES = 8,
    /* in the record */
    RECORD_AT_VERSION = 8,
    RECORD_AT_BYTES = 16
};
static const char magic[] = "KVANTPAK";
enum { MAGIC_BYTES = sizeof magic - 1, PREFIX_BYTES = sizeof "KVANT" - 1 };

/* The seed of the second part is the sum of the first. */
static uint64_t sum_of(const unsigned char *bytes, size_t size) {
    uint64_t first = XXH3_64bits(bytes, AT_SUM);
    return XXH3_64bits_withSeed(bytes + AT_SUM + SUM_BYTES, size - AT_SUM - SUM_BYTES, first);
}

size_t kvant_store_pack_bound(size_t size) {
    return AT_FRAME + ZSTD_compressBound(size);
}

size_t kvant_store_pack(const void *record, size_t size, int level, void *packed, size_t capacity) {
    unsigned char *to = packed;
    if (size <= HEAD_BYTES || capacity < AT_FRAME) return 0;
    size_t frame = ZSTD_compress(to + AT_FRAME, capacity - AT_FRAME, (const char *)record + HEAD_BYTES,
                                 size - HEAD_BYTES, level);
    if (ZSTD_isError(frame) || frame + AT_FRAME > size - size / 16) return 0;
    size_t all = AT_FRAME + frame;
    memset(to, 0, AT_HEAD);
    memcpy(to, magic, MAGIC_BYTES);
    kvant_put32(to + AT_VERSION, VERSION);
    kvant_put32(to + AT_METHOD, METHOD_ZSTD);
    kvant_put64(to + AT_BYTES, all);
    memcpy(to + AT_HEAD, record, HEAD_BYTES);
    kvant_put64(to + AT_SUM, sum_of(to, all));
    return all;
}

bool kvant_store_is_packed(const void *bytes, size_t size) {
    /* Cut off inside of its magic it still is one, from where that differs from a record's on. */
    return size > PREFIX_BYTES && memcmp(bytes, magic, size < MAGIC_BYTES ? size : MAGIC_BYTES) == 0;
}

static uint32_t no(uint32_t reason, const char *text, const char **why) {
    *why = text;
    return reason;
}

static uint32_t check_version(const unsigned char *at, uint32_t version, const char **why) {
    uint32_t is = kvant_get32(at);
    if (is == version) return KVANT_STORE_FOUND;
    if (is == version << 24) return no(KVANT_STORE_ENDIAN, "its numbers are in the other byte order", why);
    return no(KVANT_STORE_VERSION, "a version that this build does not read", why);
}

static bool all_zero(const unsigned char *bytes, size_t size) {
    unsigned char any = 0;
    for (size_t i = 0; i < size; i++) any |= bytes[i];
    return any == 0;
}

uint32_t kvant_store_unpack_size(const void *packed, size_t size, uint64_t record_max, uint64_t *record_bytes,
                                 const char **why) {
    const unsigned char *bytes = packed, *head = bytes + AT_HEAD;
    if (size < AT_FRAME) return no(KVANT_STORE_TRUNCATED, "the packed record is cut off", why);
    uint32_t reason = check_version(bytes + AT_VERSION, VERSION, why);
    if (reason != KVANT_STORE_FOUND) return reason;
    if (kvant_get64(bytes + AT_BYTES) > size)
        return no(KVANT_STORE_TRUNCATED, "the packed record is cut off", why);
    if (kvant_get64(bytes + AT_BYTES) != size || sum_of(bytes, size) != kvant_get64(bytes + AT_SUM))
        return no(KVANT_STORE_CHECKSUM, "the packed record's checksum or length is wrong", why);
    if (kvant_get32(bytes + AT_METHOD) != METHOD_ZSTD)
        return no(KVANT_STORE_VERSION, "packed by a method that this build does not know", why);
    if (!all_zero(bytes + AT_ZEROS, AT_HEAD - AT_ZEROS) || memcmp(head, "KVANTREC", 8) != 0)
        return no(KVANT_STORE_CHECKSUM, "the packed record holds no record", why);
    reason = check_version(head + RECORD_AT_VERSION, KVANT_RECORD_VERSION, why);
    if (reason != KVANT_STORE_FOUND) return reason;
    uint64_t stated = kvant_get64(head + RECORD_AT_BYTES);
    if (stated > record_max || stated > SIZE_MAX / 2)
        return no(KVANT_STORE_UNREADABLE, "the packed record would be larger than record_max", why);
    if (stated <= HEAD_BYTES ||
        ZSTD_getFrameContentSize(bytes + AT_FRAME, size - AT_FRAME) != stated - HEAD_BYTES)
        return no(KVANT_STORE_CHECKSUM, "the packed record does not hold what it says", why);
    *record_bytes = stated;
    return KVANT_STORE_FOUND;
}

uint32_t kvant_store_unpack(const void *packed, size_t size, void *record, uint64_t record_bytes,
                            const char **why) {
    const unsigned char *bytes = packed;
    memcpy(record, bytes + AT_HEAD, HEAD_BYTES);
    size_t room = (size_t)record_bytes - HEAD_BYTES;
    size_t got = ZSTD_decompress((char *)record + HEAD_BYTES, room, bytes + AT_FRAME, size - AT_FRAME);
    if (ZSTD_isError(got) || got != room)
        return no(KVANT_STORE_CHECKSUM, "the packed record does not unpack", why);
    return KVANT_STORE_FOUND;
}
