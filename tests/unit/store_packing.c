/* Records packed with zstd: smaller, the same when they come back, and no bomb. */
#include "store/bytes.h"
#include "store/store_pack.h"
#include "support/scratch.h"
#include "support/store_damage.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>

enum { AT_BYTES = 16, AT_SUM = 24, AT_ZEROS = 32, AT_HEAD = 64, HEAD_BYTES = 192, AT_FRAME = 256 };

static void reseal_packed(unsigned char *p, size_t size) {
    kvant_put64(p + AT_BYTES, size);
    kvant_put64(p + AT_SUM, XXH3_64bits_withSeed(p + AT_ZEROS, size - AT_ZEROS, XXH3_64bits(p, AT_SUM)));
}

static void smaller_and_the_same(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
        test_record soft = test_record_make(1, &(test_record_wish){.payload = 30000}),
                    hard = test_record_make(2, &(test_record_wish){.payload = 30000, .random = 1}),
                    tail = test_record_make(3, &(test_record_wish){.kind = KVANT_STORE_TAIL});
        kvant_store *store = test_store_open(kind, directory, 0, KVANT_STORE_PACK_ZSTD);
        test_store_put(store, &soft);
        test_store_put(store, &hard);
        test_store_put(store, &tail);
        kvant_store_close(store);
        size_t size = 0;
        free(test_store_stored(kind, directory, &soft.key, &size));
        assert_in_range(size, AT_FRAME, soft.size / 4);
        free(test_store_stored(kind, directory, &hard.key, &size)); /* gets no smaller: as it is */
        assert_int_equal(size, hard.size);
        /* A store that packs nothing reads them, and replaces them by its own form. */
        store = test_store_open(kind, directory, 0, KVANT_STORE_PACK_NONE);
        assert_int_equal(test_store_ask(store, &soft), KVANT_STORE_FOUND);
        assert_int_equal(test_store_ask(store, &hard), KVANT_STORE_FOUND);
        assert_int_equal(test_store_ask(store, &tail), KVANT_STORE_FOUND);
        test_store_put(store, &soft);
        kvant_store_close(store);
        free(test_store_stored(kind, directory, &soft.key, &size));
        assert_int_equal(size, soft.size);
        test_record_free(&soft);
        test_record_free(&hard);
        test_record_free(&tail);
        free(directory);
        kvant_scratch_remove(folder);
    }
}

static void levels_differ(void **state) {
    (void)state;
    test_record r = test_record_make(1, &(test_record_wish){.payload = 60000});
    size_t capacity = kvant_store_pack_bound(r.size), sizes[2];
    unsigned char *packed = malloc(capacity);
    assert_non_null(packed);
    sizes[0] = kvant_store_pack(r.bytes, r.size, 1, packed, capacity);
    sizes[1] = kvant_store_pack(r.bytes, r.size, 19, packed, capacity);
    assert_true(sizes[1] > 0 && sizes[1] < sizes[0]);
    free(packed);
    test_record_free(&r);
}

/* ---- What must not be unpacked ------------------------------------------------------------------------- */

typedef struct packed {
    test_record record;
    unsigned char *bytes;
    size_t size, capacity;
} packed;

static packed make_packed(void) {
    packed p = {.record = test_record_make(9, &(test_record_wish){.payload = 3000})};
    p.capacity = kvant_store_pack_bound(p.record.size) + 4096;
    p.bytes = calloc(1, p.capacity);
    assert_non_null(p.bytes);
    p.size = kvant_store_pack(p.record.bytes, p.record.size, 3, p.bytes, p.capacity);
    assert_true(p.size > AT_FRAME);
    return p;
}

/* Another frame in place of the record's. */
static void set_frame(packed *p, const void *bytes, size_t size) {
    size_t frame = ZSTD_compress(p->bytes + AT_FRAME, p->capacity - AT_FRAME, bytes, size, 3);
    assert_false(ZSTD_isError(frame));
    p->size = AT_FRAME + frame;
    reseal_packed(p->bytes, p->size);
}

/* As the store sees it, with little room for records. */
static uint32_t ask(const packed *p, uint64_t record_max) {
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store_options options = {.struct_size = sizeof options, .record_max = record_max};
    kvant_store *store = test_store_open(TEST_STORE_DIRECTORY, directory, 0, 0);
    test_store_put(store, &p->record);
    kvant_store_close(store);
    test_store_plant(TEST_STORE_DIRECTORY, directory, &p->record.key, p->bytes, p->size);
    assert_int_equal(kvant_store_open_directory(directory, &options, &store, NULL), KVANT_OK);
    uint32_t reason = test_store_ask(store, &p->record);
    assert_int_equal(test_store_count(store, reason), 1);
    kvant_store_close(store);
    free(directory);
    kvant_scratch_remove(folder);
    return reason;
}

static void bombs(void **state) {
    (void)state;
    packed p = make_packed();
    size_t size = p.record.size;
    assert_int_equal(ask(&p, 0), KVANT_STORE_FOUND);
    assert_int_equal(ask(&p, size), KVANT_STORE_FOUND);
    assert_int_equal(ask(&p, size - 1), KVANT_STORE_UNREADABLE); /* the head says so, before anything else */
    unsigned char *zeros = calloc(1, 1 << 24);
    assert_non_null(zeros);
    /* The frame holds more than the head says, says so or not; less; nothing that is a frame. */
    set_frame(&p, zeros, 1 << 24);
    assert_int_equal(ask(&p, 1 << 20), KVANT_STORE_CHECKSUM);
    kvant_put64(p.bytes + AT_HEAD + 16, (1 << 24) + HEAD_BYTES);
    reseal_packed(p.bytes, p.size);
    assert_int_equal(ask(&p, 1 << 20), KVANT_STORE_UNREADABLE);
    assert_int_equal(ask(&p, 1 << 26), KVANT_STORE_CHECKSUM); /* unpacks, and is no record */
    kvant_put64(p.bytes + AT_HEAD + 16, UINT64_MAX);
    reseal_packed(p.bytes, p.size);
    assert_int_equal(ask(&p, 1 << 20), KVANT_STORE_UNREADABLE);
    kvant_put64(p.bytes + AT_HEAD + 16, size);
    set_frame(&p, zeros, size - HEAD_BYTES - 1);
    assert_int_equal(ask(&p, 0), KVANT_STORE_CHECKSUM);
    set_frame(&p, zeros, size - HEAD_BYTES); /* the right length of the wrong bytes */
    assert_int_equal(ask(&p, 0), KVANT_STORE_CHECKSUM);
    memset(p.bytes + AT_FRAME, 0x77, 100);
    p.size = AT_FRAME + 100;
    reseal_packed(p.bytes, p.size);
    assert_int_equal(ask(&p, 0), KVANT_STORE_CHECKSUM);
    set_frame(&p, p.record.bytes + HEAD_BYTES, size - HEAD_BYTES); /* and the right ones */
    assert_int_equal(ask(&p, 0), KVANT_STORE_FOUND);
    free(zeros);
    free(p.bytes);
    test_record_free(&p.record);
}

/* A frame that lies about its own size: the second of two frames, one without a size. */
static void frames_that_lie(void **state) {
    (void)state;
    packed p = make_packed();
    size_t body = p.record.size - HEAD_BYTES;
    set_frame(&p, p.record.bytes + HEAD_BYTES, body);
    size_t more = ZSTD_compress(p.bytes + p.size, p.capacity - p.size, p.record.bytes, 64, 3);
    assert_false(ZSTD_isError(more));
    p.size += more;
    reseal_packed(p.bytes, p.size);
    assert_int_equal(ask(&p, 0), KVANT_STORE_CHECKSUM);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    assert_non_null(context);
    (void)ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
    size_t frame =
        ZSTD_compress2(context, p.bytes + AT_FRAME, p.capacity - AT_FRAME, p.record.bytes + HEAD_BYTES, body);
    ZSTD_freeCCtx(context);
    assert_false(ZSTD_isError(frame));
    p.size = AT_FRAME + frame;
    reseal_packed(p.bytes, p.size);
    assert_int_equal(ask(&p, 0), KVANT_STORE_CHECKSUM);
    free(p.bytes);
    test_record_free(&p.record);
}

static void fields(void **state) {
    (void)state;
    static const struct {
        size_t at;
        uint32_t value, reason;
    } cases[] = {{8, 2, KVANT_STORE_VERSION},
                 {8, 1u << 24, KVANT_STORE_ENDIAN},
                 {12, 2, KVANT_STORE_VERSION},
                 {40, 1, KVANT_STORE_CHECKSUM},
                 {AT_HEAD, 0, KVANT_STORE_CHECKSUM},
                 {AT_HEAD + 8, 2, KVANT_STORE_VERSION},
                 {AT_HEAD + 8, 1u << 24, KVANT_STORE_ENDIAN},
                 {AT_HEAD + 32, 9, KVANT_STORE_CHECKSUM}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        packed p = make_packed();
        kvant_put32(p.bytes + cases[i].at, cases[i].value);
        reseal_packed(p.bytes, p.size);
        uint32_t reason = ask(&p, 0);
        if (reason != cases[i].reason) fail_msg("case %zu: %s", i, kvant_store_reason_text(reason));
        free(p.bytes);
        test_record_free(&p.record);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(smaller_and_the_same), cmocka_unit_test(levels_differ), cmocka_unit_test(bombs),
        cmocka_unit_test(frames_that_lie),      cmocka_unit_test(fields),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
