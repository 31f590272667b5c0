/* Records and files of records: they come back as they were, and no flipped bit gets through. */
#include "data/file.h"
#include "store/record.h"
#include "store/sequence_file.h"
#include "support/data.h"
#include "support/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { LAYERS = 2, CAPACITY = 8192 };

typedef struct built {
    unsigned char *bytes;
    size_t size;
    kvant_record_head head;
} built;

static void fill(unsigned char *to, size_t size, unsigned seed) {
    for (size_t i = 0; i < size; i++) to[i] = (unsigned char)(seed * 31 + i * 7 + 1);
}

/* Sizes of the extents of a block and of raw rows; the key of layer 1 has none, as behind a window. */
static size_t extent_size(uint32_t layer, uint32_t side) {
    return layer == 1 && side == 0 ? 0 : 100 + 60 * layer + 7 * side;
}

static size_t raw_size(const kvant_record_head *head, uint32_t layer, uint32_t side) {
    uint32_t tokens = head->kind == KVANT_RECORD_TAIL ? head->tokens : head->sinks;
    return (size_t)tokens * 2 * (3 + layer + side);
}

static built build(uint32_t kind, uint32_t block, uint32_t tokens, uint32_t sinks, const built *before) {
    built b = {
        .head = {.kind = kind,
                 .tokens = tokens,
                 .layers = LAYERS,
                 .sinks = sinks,
                 .dtype = KVANT_DTYPE_F16,
                 .block = block,
                 .first_position = before != NULL ? before->head.first_position + before->head.tokens : 0}};
    fill(b.head.fingerprint, 32, 5);
    if (before != NULL) memcpy(b.head.parent, before->head.key, 32);
    unsigned char *buffer = aligned_alloc(64, CAPACITY), tags[64], classes[64];
    uint64_t ids[64];
    assert_non_null(buffer);
    memset(buffer, 0xee, CAPACITY);
    for (uint32_t t = 0; t < tokens; t++) {
        ids[t] = UINT64_C(0x1122334455667788) * (t + 1) + block;
        tags[t] = (unsigned char)(t % 5);
        classes[t] = (unsigned char)(t % 2);
    }
    kvant_record_writer writer;
    assert_int_equal(kvant_record_start(&writer, buffer, CAPACITY, &b.head, ids, tags, classes, NULL, 0),
                     KVANT_OK);
    for (uint32_t i = 0; i < LAYERS * 2; i++) {
        size_t extent = kind == KVANT_RECORD_BLOCK ? extent_size(i / 2, i % 2) : 0,
               raw = raw_size(&b.head, i / 2, i % 2);
        unsigned char *room = kvant_record_room(&writer, extent);
        assert_non_null(room);
        assert_int_equal((size_t)(room - buffer) % 64, 0);
        fill(room, extent, i);
        kvant_record_put_extent(&writer, i / 2, i % 2, extent);
        room = kvant_record_room(&writer, raw);
        assert_non_null(room);
        fill(room, raw, i + 10);
        kvant_record_put_raw(&writer, i / 2, i % 2, raw);
    }
    b.size = kvant_record_finish(&writer);
    b.bytes = malloc(b.size);
    assert_non_null(b.bytes);
    memcpy(b.bytes, buffer, b.size);
    free(buffer);
    return b;
}

static void assert_part(kvant_record_part part, size_t size, unsigned seed) {
    unsigned char want[512];
    assert_int_equal(part.size, size);
    if (size == 0) {
        assert_null(part.bytes);
        return;
    }
    fill(want, size, seed);
    kvant_assert_bytes(part.bytes, want, size);
}

/* ---- Right records ------------------------------------------------------------------------------------- */

static void round_trip(void **state) {
    (void)state;
    static const struct {
        uint32_t kind, block, tokens, sinks;
    } cases[] = {{KVANT_RECORD_BLOCK, 0, 8, 3},
                 {KVANT_RECORD_BLOCK, 0, 1, 0},
                 {KVANT_RECORD_BLOCK, 7, 64, 0},
                 {KVANT_RECORD_TAIL, 2, 5, 0},
                 {KVANT_RECORD_TAIL, 0, 1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        built before = {0};
        fill(before.head.key, 32, 9);
        before.head.first_position = UINT64_C(1) << 33;
        bool first = cases[i].block == 0;
        built b =
            build(cases[i].kind, cases[i].block, cases[i].tokens, cases[i].sinks, first ? NULL : &before);
        kvant_record r;
        const char *reason;
        /* More bytes may follow, and nothing needs to be aligned. */
        unsigned char *shifted = malloc(b.size + 100);
        assert_non_null(shifted);
        memset(shifted, 0xdd, b.size + 100);
        memcpy(shifted + 1, b.bytes, b.size);
        if (kvant_record_read(shifted + 1, b.size + 99, &r, &reason) != KVANT_OK) fail_msg("%s", reason);
        assert_int_equal(r.size, b.size);
        assert_int_equal(r.head.kind, cases[i].kind);
        assert_int_equal(r.head.block, cases[i].block);
        assert_int_equal(r.head.tokens, cases[i].tokens);
        assert_int_equal(r.head.sinks, cases[i].sinks);
        assert_int_equal(r.head.first_position, first ? 0 : UINT64_C(1) << 33);
        kvant_assert_bytes(r.head.key, b.head.key, 32);
        kvant_assert_bytes(r.head.parent, b.head.parent, 32);
        assert_int_equal(kvant_record_check_key(&r, NULL, 0), KVANT_OK);
        for (uint32_t t = 0; t < cases[i].tokens; t++) {
            assert_true(kvant_record_id(&r, t) == UINT64_C(0x1122334455667788) * (t + 1) + cases[i].block);
            assert_int_equal(r.tags[t], t % 5);
            assert_int_equal(r.classes[t], t % 2);
        }
        for (uint32_t p = 0; p < LAYERS * 2; p++) {
            bool block = cases[i].kind == KVANT_RECORD_BLOCK;
            assert_part(kvant_record_extent(&r, p / 2, p % 2), block ? extent_size(p / 2, p % 2) : 0, p);
            assert_part(kvant_record_raw(&r, p / 2, p % 2), raw_size(&r.head, p / 2, p % 2), p + 10);
        }
        assert_null(kvant_record_extent(&r, LAYERS, 0).bytes);
        assert_null(kvant_record_raw(&r, 0, 2).bytes);
        free(shifted);
        free(b.bytes);
    }
}

static void same_input_same_bytes(void **state) {
    (void)state;
    built a = build(KVANT_RECORD_BLOCK, 0, 8, 3, NULL), b = build(KVANT_RECORD_BLOCK, 0, 8, 3, NULL);
    assert_int_equal(a.size, b.size);
    kvant_assert_bytes(a.bytes, b.bytes, a.size);
    free(a.bytes);
    free(b.bytes);
}

static void keys_depend_on_everything(void **state) {
    (void)state;
    kvant_record_head head = {.tokens = 3, .block = 0};
    const uint64_t ids[3] = {1, 2, 3}, other[3] = {1, 2, 4};
    const unsigned char classes[3] = {0, 0, 1}, flat[3] = {0};
    unsigned char keys[8][32];
    assert_int_equal(kvant_record_key(&head, ids, classes, NULL, 0, keys[0]), KVANT_OK);
    assert_int_equal(kvant_record_key(&head, other, classes, NULL, 0, keys[1]), KVANT_OK);
    assert_int_equal(kvant_record_key(&head, ids, flat, NULL, 0, keys[2]), KVANT_OK);
    assert_int_equal(kvant_record_key(&head, ids, classes, "s", 1, keys[3]), KVANT_OK);
    head.fingerprint[31] = 1;
    assert_int_equal(kvant_record_key(&head, ids, classes, NULL, 0, keys[4]), KVANT_OK);
    head.fingerprint[31] = 0;
    head.parent[0] = 1;
    assert_int_equal(kvant_record_key(&head, ids, classes, NULL, 0, keys[5]), KVANT_OK);
    head.tokens = 2;
    assert_int_equal(kvant_record_key(&head, ids, classes, NULL, 0, keys[6]), KVANT_OK);
    for (unsigned i = 0; i < 7; i++)
        for (unsigned j = 0; j < i; j++) assert_memory_not_equal(keys[i], keys[j], 32);
    /* The salt is of block 0 alone; later blocks carry it through the chain. */
    head.block = 1;
    assert_int_equal(kvant_record_key(&head, ids, classes, "s", 1, keys[0]), KVANT_OK);
    assert_int_equal(kvant_record_key(&head, ids, classes, NULL, 0, keys[1]), KVANT_OK);
    kvant_assert_bytes(keys[0], keys[1], 32);

    /* The key of a record and the one computed without it are one. */
    built b = build(KVANT_RECORD_BLOCK, 0, 64, 0, NULL);
    uint64_t many[64];
    unsigned char many_classes[64];
    for (uint32_t t = 0; t < 64; t++) {
        many[t] = UINT64_C(0x1122334455667788) * (t + 1);
        many_classes[t] = (unsigned char)(t % 2);
    }
    assert_int_equal(kvant_record_key(&b.head, many, many_classes, NULL, 0, keys[0]), KVANT_OK);
    kvant_assert_bytes(keys[0], b.head.key, 32);
    kvant_record r;
    const char *reason;
    assert_int_equal(kvant_record_read(b.bytes, b.size, &r, &reason), KVANT_OK);
    assert_int_equal(kvant_record_check_key(&r, "salt", 4), KVANT_ERROR_MISMATCH);
    free(b.bytes);
}

static void writer_knows_its_room(void **state) {
    (void)state;
    unsigned char buffer[1024];
    uint64_t ids[4] = {0};
    kvant_record_head head = {.kind = KVANT_RECORD_TAIL, .tokens = 4, .layers = 1, .dtype = KVANT_DTYPE_F16};
    kvant_record_writer writer;
    size_t header = kvant_record_size(4, 1, 0);
    assert_int_equal(kvant_record_start(&writer, buffer, header - 1, &head, ids, NULL, NULL, NULL, 0),
                     KVANT_ERROR_CAPACITY);
    assert_int_equal(kvant_record_start(&writer, buffer, header + 64, &head, ids, NULL, NULL, NULL, 0),
                     KVANT_OK);
    assert_non_null(kvant_record_room(&writer, 64));
    assert_null(kvant_record_room(&writer, 65));
    assert_null(kvant_record_room(&writer, SIZE_MAX));
    head.tokens = 0;
    assert_int_equal(kvant_record_start(&writer, buffer, sizeof buffer, &head, ids, NULL, NULL, NULL, 0),
                     KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_record_size(1, 1, UINT64_MAX), 0);
}

/* ---- Wrong records ------------------------------------------------------------------------------------- */

static const char *refuse(const unsigned char *bytes, size_t size) {
    kvant_record r;
    const char *reason = NULL;
    unsigned char *copy =
        malloc(size > 0 ? size : 1); /* of its own, so that a sanitizer sees a read beyond it */
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    kvant_status status = kvant_record_read(copy, size, &r, &reason);
    free(copy);
    if (status == KVANT_OK) fail_msg("a wrong record was accepted");
    assert_non_null(reason);
    return reason;
}

static void refuses_every_bit_flip(void **state) {
    (void)state;
    const built records[] = {build(KVANT_RECORD_BLOCK, 0, 8, 3, NULL),
                             build(KVANT_RECORD_TAIL, 0, 5, 0, NULL)};
    for (unsigned i = 0; i < 2; i++) {
        for (size_t bit = 0; bit < records[i].size * 8; bit++) {
            records[i].bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            (void)refuse(records[i].bytes, records[i].size);
            records[i].bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        for (size_t size = 0; size < records[i].size; size++) (void)refuse(records[i].bytes, size);
        free(records[i].bytes);
    }
}

/* Fields that a checksum would not catch because it was made after them. */
static void reseal(unsigned char *bytes, size_t size) {
    uint64_t header = 0, sum;
    for (unsigned i = 0; i < 8; i++) header |= (uint64_t)bytes[24 + i] << 8 * i;
    if (header > size || header < 200) return;
    sum = XXH3_64bits(bytes + header, size - header);
    for (unsigned i = 0; i < 8; i++) bytes[160 + i] = (unsigned char)(sum >> 8 * i);
    sum = XXH3_64bits(bytes, header - 8);
    for (unsigned i = 0; i < 8; i++) bytes[header - 8 + i] = (unsigned char)(sum >> 8 * i);
}

static void put(unsigned char *bytes, size_t at, unsigned width, uint64_t value) {
    for (unsigned i = 0; i < width; i++) bytes[at + i] = (unsigned char)(value >> 8 * i);
}

static void names_the_reason(void **state) {
    (void)state;
    static const struct {
        size_t at;
        unsigned width;
        uint64_t value;
        const char *part;
    } bad[] = {
        {0, 1, 'k', "magic"},
        {8, 4, 2, "version"},
        {12, 4, 0, "kind"},
        {12, 4, 3, "kind"},
        {12, 4, KVANT_RECORD_TAIL, "sinks"},
        {16, 8, 64, "length is impossible"},
        {16, 8, 1000001, "length is impossible"},
        {16, 8, 1 << 20, "cut off"},
        {16, 8, UINT64_MAX - 63, "cut off"},
        {24, 8, 0, "header's length"},
        {24, 8, UINT64_MAX, "header's length"},
        {64, 1, 1, "block before"},
        {128, 8, 1, "sinks beside"},
        {136, 8, UINT64_MAX - 3, "positions overflow"},
        {144, 4, 0, "without tokens"},
        {144, 4, UINT32_MAX, "header's length"},
        {148, 4, 0, "layers"},
        {148, 4, 65537, "layers"},
        {148, 4, UINT32_MAX, "layers"},
        {152, 4, 8, "as many sinks"},
        {152, 4, 0, "does not have"}, /* raw rows without sinks */
        {152, 4, 4, "not a multiple"},
        {156, 4, 0, "dtype"},
        {156, 4, KVANT_DTYPE_U8, "dtype"},
        {168, 1, 1, "must be zero"},
        {191, 1, 1, "must be zero"},
        {192, 8, 0, "not where"},
        {192, 8, UINT64_MAX, "not where"},
        {192 + 8, 8, 0, "has an offset"},
        {192 + 8, 8, UINT64_MAX, "beyond the record"},
        {192 + 8, 8, 99, "not zero"},
        {192 + 8, 8, 200, "not where"},
        {192 + 24, 8, 0, "has an offset"},
        {192 + 24, 8, 17, "not a multiple"},
        {192 + 2 * 32, 8, 8, "has an offset"}, /* of the extent that is not there */
    };
    built good = build(KVANT_RECORD_BLOCK, 0, 8, 3, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        unsigned char *bytes = malloc(good.size);
        assert_non_null(bytes);
        memcpy(bytes, good.bytes, good.size);
        put(bytes, bad[i].at, bad[i].width, bad[i].value);
        reseal(bytes, good.size);
        kvant_assert_contains(refuse(bytes, good.size), bad[i].part);
        free(bytes);
    }
    /* The last part cut short, and a tail with an extent. */
    put(good.bytes, 192 + 3 * 32 + 24, 8, 0);
    put(good.bytes, 192 + 3 * 32 + 16, 8, 0);
    reseal(good.bytes, good.size);
    kvant_assert_contains(refuse(good.bytes, good.size), "belong to nothing");
    free(good.bytes);
    built tail = build(KVANT_RECORD_TAIL, 0, 5, 0, NULL);
    memcpy(tail.bytes + 192, tail.bytes + 192 + 16, 16);
    memset(tail.bytes + 192 + 16, 0, 16);
    reseal(tail.bytes, tail.size);
    kvant_assert_contains(refuse(tail.bytes, tail.size), "does not have");
    free(tail.bytes);
}

/* ---- Files of records ---------------------------------------------------------------------------------- */

enum { RECORDS = 3 };

static kvant_test_bytes sequence(const built records[RECORDS], uint32_t count, uint64_t tokens,
                                 uint32_t written) {
    char file[256];
    (void)snprintf(file, sizeof file, "%s/sequence", kvant_test_directory());
    kvant_file_writer *writer = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_sequence_file_create(file, "description", 11, count, tokens, &writer, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    for (uint32_t i = 0; i < written; i++) kvant_file_writer_add(writer, records[i].bytes, records[i].size);
    assert_int_equal(kvant_file_writer_commit(writer, &diag), KVANT_OK);
    return kvant_test_read(file);
}

static void refuse_sequence(const unsigned char *bytes, size_t size, const char *part) {
    kvant_test_bytes all = {(unsigned char *)(uintptr_t)bytes, size}, copy = kvant_test_cut(all, size);
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_sequence_file *file = NULL;
    kvant_status status = kvant_sequence_file_parse(copy.bytes, copy.size, "bad.kvant", &file, &diag);
    if (status == KVANT_OK) fail_msg("accepted, and \"%s\" was to be the reason for not", part);
    kvant_assert_refused(status, &diag, "bad.kvant");
    kvant_assert_contains(diag.message, part);
    free(copy.bytes);
}

static void reads_sequences(void **state) {
    (void)state;
    built records[RECORDS];
    records[0] = build(KVANT_RECORD_BLOCK, 0, 8, 3, NULL);
    records[1] = build(KVANT_RECORD_BLOCK, 1, 8, 0, &records[0]);
    records[2] = build(KVANT_RECORD_TAIL, 2, 5, 0, &records[1]);
    for (uint32_t count = 0; count <= RECORDS; count++) {
        uint64_t tokens = count < 3 ? count * 8 : 21;
        kvant_test_bytes file = sequence(records, count, tokens, count);
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_sequence_file *s = NULL;
        if (kvant_sequence_file_parse(file.bytes, file.size, "x", &s, &diag) != KVANT_OK)
            fail_msg("%s", diag.message);
        assert_int_equal(kvant_sequence_file_count(s), count);
        assert_int_equal(kvant_sequence_file_tokens(s), tokens);
        assert_int_equal(kvant_sequence_file_description(s).size, 11);
        assert_memory_equal(kvant_sequence_file_description(s).bytes, "description", 11);
        for (uint32_t i = 0; i < count; i++) {
            const kvant_record *record = kvant_sequence_file_record(s, i);
            assert_int_equal(record->size, records[i].size);
            kvant_assert_bytes(record->bytes, records[i].bytes, records[i].size);
        }
        assert_null(kvant_sequence_file_record(s, count));
        kvant_sequence_file_close(s);
        /* Every cut and every flipped bit. */
        for (size_t size = 0; size < file.size; size++) refuse_sequence(file.bytes, size, "");
        for (size_t bit = 0; bit < file.size * 8; bit++) {
            file.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            refuse_sequence(file.bytes, file.size, "");
            file.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        free(file.bytes);
    }
    for (unsigned i = 0; i < RECORDS; i++) free(records[i].bytes);
}

static void refuses_bad_order(void **state) {
    (void)state;
    built zero = build(KVANT_RECORD_BLOCK, 0, 8, 3, NULL), one = build(KVANT_RECORD_BLOCK, 1, 8, 0, &zero);
    built tail = build(KVANT_RECORD_TAIL, 1, 5, 0, &zero), two = build(KVANT_RECORD_BLOCK, 2, 8, 0, &zero);
    built longer = build(KVANT_RECORD_BLOCK, 1, 9, 0, &zero);
    built orphan_before = zero, orphan, later_before = zero, later;
    fill(orphan_before.head.key, 32, 77);
    orphan = build(KVANT_RECORD_BLOCK, 1, 8, 0, &orphan_before);
    later_before.head.first_position = 8;
    later = build(KVANT_RECORD_BLOCK, 1, 8, 0, &later_before);
    built after = build(KVANT_RECORD_BLOCK, 2, 8, 0, &tail);
    built stranger = build(KVANT_RECORD_BLOCK, 1, 8, 0, &zero);
    stranger.bytes[32] ^= 1; /* another fingerprint */
    reseal(stranger.bytes, stranger.size);
    built forged = build(KVANT_RECORD_BLOCK, 1, 8, 0, &zero);
    forged.bytes[96] ^= 1; /* a key that is not its own */
    reseal(forged.bytes, forged.size);
    const struct {
        built records[RECORDS];
        uint32_t written, said;
        uint64_t tokens;
        const char *part;
    } bad[] = {
        {{one}, 1, 1, 8, "not the start of a sequence"},
        {{zero, zero}, 2, 2, 16, "record 1 at byte"},
        {{zero, two}, 2, 2, 16, "number of its block"},
        {{zero, orphan}, 2, 2, 16, "does not name the key"},
        {{zero, later}, 2, 2, 16, "position does not follow"},
        {{zero, longer}, 2, 2, 17, "another number of tokens"},
        {{zero, stranger}, 2, 2, 16, "another fingerprint"},
        {{zero, forged}, 2, 2, 16, "key is not that of its tokens"},
        {{zero, tail, after}, 3, 3, 21, "a record after the tail"},
        {{zero, one}, 2, 3, 16, "says 3 records, and there are 2"},
        {{zero, one}, 2, 1, 16, "says 1 records"},
        {{zero, one}, 2, 2, 17, "says 17 tokens"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvant_test_bytes file = sequence(bad[i].records, bad[i].said, bad[i].tokens, bad[i].written);
        refuse_sequence(file.bytes, file.size, bad[i].part);
        free(file.bytes);
    }
    built all[] = {zero, one, tail, two, longer, orphan, later, after, stranger, forged};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i].bytes);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip),
                                              cmocka_unit_test(same_input_same_bytes),
                                              cmocka_unit_test(keys_depend_on_everything),
                                              cmocka_unit_test(writer_knows_its_room),
                                              cmocka_unit_test(refuses_every_bit_flip),
                                              cmocka_unit_test(names_the_reason),
                                              cmocka_unit_test(reads_sequences),
                                              cmocka_unit_test(refuses_bad_order)};
    return kvant_run_tests(tests, argc, argv);
}
