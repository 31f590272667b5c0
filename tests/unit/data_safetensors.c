/* The safetensors reader and writer: what is right comes back, what is wrong is refused in one line. */
#include "base/text.h"
#include "data/safetensors.h"
#include "support/data.h"
#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *in_directory(const char *name) {
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", kvant_test_directory(), name);
    return path;
}

/* The diag of a refusal; a success fails the test. */
static kvant_diag refuse(kvant_test_bytes file, const char *what) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_safetensors *st = NULL;
    kvant_status status = kvant_safetensors_parse(file.bytes, file.size, "bad.safetensors", &st, &diag);
    if (status == KVANT_OK) fail_msg("accepted: %s", what);
    assert_null(st);
    kvant_assert_refused(status, &diag, "bad.safetensors");
    return diag;
}

static void refuse_header(const char *header, size_t data_bytes, const char *part) {
    kvant_test_bytes file = kvant_test_safetensors(header, data_bytes);
    kvant_diag diag = refuse(file, header);
    kvant_assert_contains(diag.message, part);
    free(file.bytes);
}

/* ---- Right files --------------------------------------------------------------------------------------- */

static void reads_every_dtype(void **state) {
    (void)state;
    static const char *const names[] = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "U8",
                                        "I8",  "U16", "I16", "U32",  "I32",     "U64",     "I64",     "BOOL"};
    static const uint32_t bytes[] = {8, 4, 2, 2, 1, 1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 1};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        char header[128];
        (void)snprintf(header, sizeof header,
                       "{\"x\":{\"dtype\":\"%s\",\"shape\":[3,1],\"data_offsets\":[0,%u]}}", names[i],
                       bytes[i] * 3);
        kvant_test_bytes file = kvant_test_safetensors(header, bytes[i] * 3);
        kvant_safetensors *st = NULL;
        kvant_diag diag = {.struct_size = sizeof diag};
        assert_int_equal(kvant_safetensors_parse(file.bytes, file.size, "x", &st, &diag), KVANT_OK);
        const kvant_array *x = kvant_safetensors_find(st, "x");
        assert_non_null(x);
        assert_string_equal(kvant_dtype_name(x->dtype), names[i]);
        assert_int_equal(kvant_dtype_bytes(x->dtype), bytes[i]);
        assert_int_equal(kvant_dtype_of_name(names[i]), x->dtype);
        assert_int_equal(x->bytes, bytes[i] * 3);
        assert_int_equal(*(const unsigned char *)x->data, 1);
        kvant_safetensors_close(st);
        free(file.bytes);
    }
    assert_int_equal(kvant_dtype_bytes(0), 0);
    assert_int_equal(kvant_dtype_bytes(99), 0);
    assert_int_equal(kvant_dtype_of_name("F4"), KVANT_DTYPE_NONE);
}

static void sorts_and_finds(void **state) {
    (void)state;
    /* Out of order in the header and in the data; an empty tensor, a scalar, spaces after the header. */
    kvant_test_bytes file =
        kvant_test_safetensors("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]},\"__metadata__"
                               "\":{\"z\":\"1\",\"a\":\"\\u00e9\\n\"},"
                               "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                               "\"c\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
                               "\"d\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[6,6]}}   ",
                               6);
    kvant_safetensors *st = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_safetensors_parse(file.bytes, file.size, "x", &st, &diag), KVANT_OK);
    assert_int_equal(kvant_safetensors_count(st), 4);
    for (uint32_t i = 0; i < 4; i++) {
        const char name[2] = {(char)('a' + (int)i), '\0'};
        assert_string_equal(kvant_safetensors_at(st, i)->name, name);
        assert_ptr_equal(kvant_safetensors_find(st, name), kvant_safetensors_at(st, i));
    }
    assert_null(kvant_safetensors_at(st, 4));
    assert_null(kvant_safetensors_find(st, "e"));
    assert_int_equal(kvant_safetensors_find(st, "a")->rank, 0);
    assert_int_equal(kvant_safetensors_find(st, "c")->bytes, 0);
    assert_int_equal(*(const unsigned char *)kvant_safetensors_find(st, "b")->data, 5);
    assert_int_equal(kvant_safetensors_metadata_count(st), 2);
    assert_string_equal(kvant_safetensors_metadata_key(st, 0), "a");
    assert_string_equal(kvant_safetensors_metadata(st, "a"), "\xc3\xa9\n");
    assert_string_equal(kvant_safetensors_metadata(st, "z"), "1");
    assert_null(kvant_safetensors_metadata(st, "b"));
    kvant_safetensors_close(st);
    free(file.bytes);
}

static void round_trip(void **state) {
    (void)state;
    const unsigned char data[12] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 255, 254};
    const kvant_array arrays[] = {
        {.name = "zz \"quoted\" \xc3\xa9",
         .data = data,
         .shape = {3, 2},
         .bytes = 12,
         .dtype = KVANT_DTYPE_BF16,
         .rank = 2},
        {.name = "aa", .data = data + 1, .shape = {1}, .bytes = 4, .dtype = KVANT_DTYPE_F32, .rank = 1},
        {.name = "none", .data = data, .shape = {0, 5}, .bytes = 0, .dtype = KVANT_DTYPE_I8, .rank = 2}};
    const kvant_array wrong = {
        .name = "zz", .data = data, .shape = {3}, .bytes = 12, .dtype = KVANT_DTYPE_BF16, .rank = 1};
    const kvant_metadata metadata[] = {{"second", "2\n"}, {"first", "1"}};
    char file[256], again[256];
    strcpy(file, in_directory("round.safetensors"));
    strcpy(again, in_directory("again.safetensors"));
    kvant_diag diag = {.struct_size = sizeof diag};
    /* The first array's shape is wrong by a factor of two: refused, nothing left. */
    assert_int_equal(kvant_safetensors_write(file, &wrong, 1, NULL, 0, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(access(file, F_OK), -1);
    assert_int_equal(kvant_safetensors_write(file, arrays, 3, metadata, 2, &diag), KVANT_OK);
    assert_int_equal(kvant_safetensors_write(again, arrays, 3, metadata, 2, &diag), KVANT_OK);
    kvant_test_bytes one = kvant_test_read(file), two = kvant_test_read(again);
    assert_int_equal(one.size, two.size);
    kvant_assert_bytes(one.bytes, two.bytes, one.size);

    kvant_safetensors *st = NULL;
    assert_int_equal(kvant_safetensors_open(file, &st, &diag), KVANT_OK);
    assert_int_equal(kvant_safetensors_count(st), 3);
    for (unsigned i = 0; i < 3; i++) {
        const kvant_array *found = kvant_safetensors_find(st, arrays[i].name);
        assert_non_null(found);
        assert_int_equal(found->dtype, arrays[i].dtype);
        assert_int_equal(found->rank, arrays[i].rank);
        assert_memory_equal(found->shape, arrays[i].shape, sizeof found->shape);
        assert_int_equal(found->bytes, arrays[i].bytes);
        kvant_assert_bytes(found->data, arrays[i].data, (size_t)found->bytes);
    }
    assert_string_equal(kvant_safetensors_metadata(st, "second"), "2\n");
    /* The mapping starts at a page, so this is the offset in the file. */
    assert_int_equal((uintptr_t)kvant_safetensors_find(st, arrays[0].name)->data % 64, 0);
    kvant_safetensors_close(st);

    kvant_text text = {0};
    assert_int_equal(kvant_safetensors_pack(&text, arrays, 3, metadata, 2, "x", &diag), KVANT_OK);
    assert_int_equal(text.size, one.size);
    kvant_assert_bytes(text.data, one.bytes, one.size);
    kvant_text_free(&text);
    free(one.bytes);
    free(two.bytes);
}

/* ---- Writing that fails -------------------------------------------------------------------------------- */

static void write_leaves_nothing_behind(void **state) {
    (void)state;
    const unsigned char data[4] = {1, 2, 3, 4};
    kvant_array array = {
        .name = "x", .data = data, .shape = {4}, .bytes = 4, .dtype = KVANT_DTYPE_U8, .rank = 1};
    kvant_diag diag = {.struct_size = sizeof diag};
    unsigned before = kvant_test_file_count(kvant_test_directory());
    const char *file = in_directory("kept.safetensors");
    assert_int_equal(kvant_safetensors_write(file, &array, 1, NULL, 0, &diag), KVANT_OK);
    kvant_test_bytes old = kvant_test_read(file);

    /* A writer that is abandoned, and one that gets too few and too many bytes, leave the old file. */
    for (size_t bytes = 3; bytes <= 5; bytes++) {
        kvant_safetensors_writer *writer = NULL;
        assert_int_equal(kvant_safetensors_begin(file, &array, 1, NULL, 0, &writer, &diag), KVANT_OK);
        kvant_safetensors_add(writer, "abcdefgh", bytes);
        if (bytes == 4) {
            kvant_safetensors_abort(writer);
        } else {
            kvant_status status = kvant_safetensors_commit(writer, &diag);
            kvant_assert_refused(status, &diag, file);
        }
        kvant_test_bytes now = kvant_test_read(file);
        assert_int_equal(now.size, old.size);
        kvant_assert_bytes(now.bytes, old.bytes, old.size);
        free(now.bytes);
    }
    assert_int_equal(kvant_test_file_count(kvant_test_directory()), before + 1);
    free(old.bytes);

    /* Names that are no place for a file. */
    static const char *const places[] = {"/dev/null", "/nonexistent/x", "", "/"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        kvant_status status = kvant_safetensors_write(places[i], &array, 1, NULL, 0, &diag);
        kvant_assert_refused(status, &diag, places[i]);
    }
    struct stat info;
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));

    /* What the format cannot hold. */
    const kvant_array twice[2] = {array, array};
    assert_int_equal(kvant_safetensors_write(file, twice, 2, NULL, 0, &diag), KVANT_ERROR_ARGUMENT);
    const kvant_metadata same[2] = {{"k", "1"}, {"k", "2"}};
    assert_int_equal(kvant_safetensors_write(file, &array, 1, same, 2, &diag), KVANT_ERROR_ARGUMENT);
    const kvant_metadata bad_utf8 = {"k", "\xff"};
    assert_int_equal(kvant_safetensors_write(file, &array, 1, &bad_utf8, 1, &diag), KVANT_ERROR_ARGUMENT);
    array.name = "__metadata__";
    assert_int_equal(kvant_safetensors_write(file, &array, 1, NULL, 0, &diag), KVANT_ERROR_ARGUMENT);
}

/* A disk that fills up, by way of the limit on a file's size. */
static void write_survives_a_full_disk(void **state) {
    (void)state;
    static const unsigned char data[300000] = {1};
    const kvant_array array = {
        .name = "x", .data = data, .shape = {300000}, .bytes = 300000, .dtype = KVANT_DTYPE_U8, .rank = 1};
    kvant_diag diag = {.struct_size = sizeof diag};
    const char *file = in_directory("full.safetensors");
    unsigned before = kvant_test_file_count(kvant_test_directory());
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 100000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    kvant_status status = kvant_safetensors_write(file, &array, 1, NULL, 0, &diag);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, KVANT_ERROR_NO_SPACE);
    kvant_assert_refused(status, &diag, file);
    assert_int_equal(kvant_test_file_count(kvant_test_directory()), before);
    assert_int_equal(kvant_safetensors_write(file, &array, 1, NULL, 0, &diag), KVANT_OK);
}

/* ---- Wrong files --------------------------------------------------------------------------------------- */

#define U8_2(offsets) "{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" offsets "}}"
#define SHAPE(shape)  "{\"x\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[0,8]}}"
#define TWO(a, b)                                                                                            \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" a                                             \
    "},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" b "}}"

static void refuses_bad_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *part;
    } bad[] = {
        {"", 0, "does not start with '{'"},
        {"[]", 0, "does not start with '{'"},
        {" {}", 0, "does not start with '{'"},
        {"{", 0, "does not start with '{'"},
        {"{]", 0, "header, byte"},
        {"{} {}", 0, "header, byte"},
        {"{\"x\":1}", 0, "not an object"},
        {"{\"x\":{}}", 0, "\"dtype\" is missing"},
        {"{\"x\":{\"dtype\":7,\"shape\":[],\"data_offsets\":[0,0]}}", 0, "\"dtype\" is missing"},
        {"{\"x\":{\"dtype\":\"F31\",\"shape\":[],\"data_offsets\":[0,0]}}", 0, "\"F31\" is not known"},
        {"{\"x\":{\"dtype\":\"f32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "\"f32\" is not known"},
        {"{\"x\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0, "\"shape\" is missing"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":2,\"data_offsets\":[0,2]}}", 2, "\"shape\" is missing"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[2]}}", 2, "data_offsets"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2],\"extra\":1}}", 2,
         "unknown key \"extra\""},
        {"{\"x\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "duplicate"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "duplicate"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate"},
        {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "duplicate"},
        {"{\"__metadata__\":[]}", 0, "not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "metadata \"a\" is not a string"},
        {"{\"__metadata__\":{\"a\":null}}", 0, "metadata \"a\" is not a string"},
        {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "metadata \"a\" is not a string"},
        {U8_2("[0,3]"), 3, "take 2 bytes"},
        {U8_2("[0,1]"), 1, "take 2 bytes"},
        {U8_2("[0,2]"), 1, "truncated"},
        {U8_2("[0,2]"), 3, "belong to no tensor"},
        {U8_2("[1,3]"), 3, "belong to no tensor"},
        {U8_2("[2,0]"), 2, "begin <= end"},
        {U8_2("[-2,0]"), 2, "begin <= end"},
        {U8_2("[0,2,2]"), 2, "begin <= end"},
        {U8_2("[0]"), 2, "begin <= end"},
        {U8_2("[0,2.0]"), 2, "begin <= end"},
        {U8_2("[\"0\",\"2\"]"), 2, "begin <= end"},
        {U8_2("{}"), 2, "begin <= end"},
        {U8_2("[9223372036854775806,9223372036854775807]"), 2, "truncated"},
        {U8_2("[0,18446744073709551616]"), 2, "header, byte"},
        {SHAPE("[-2]"), 8, "whole numbers"},
        {SHAPE("[2.0]"), 8, "whole numbers"},
        {SHAPE("[\"2\"]"), 8, "whole numbers"},
        {SHAPE("[null]"), 8, "whole numbers"},
        {SHAPE("[[2]]"), 8, "whole numbers"},
        {SHAPE("[4611686018427387904]"), 8, "overflows"},
        {SHAPE("[4611686018427387906]"), 8, "overflows"},
        {SHAPE("[2147483648,2147483648,2147483648]"), 8, "overflows"},
        {SHAPE("[4294967296,1073741824,0]"), 8, "overflows"},
        {SHAPE("[3]"), 8, "take 12 bytes"},
        {SHAPE("[0]"), 8, "take 0 bytes"},
        {SHAPE("[]"), 8, "take 4 bytes"},
        {SHAPE("[1,1,1,1,1,1,1,1,2]"), 8, "rank 9"},
        {TWO("[0,2]", "[1,3]"), 3, "overlap"},
        {TWO("[0,2]", "[0,2]"), 2, "overlap"},
        {TWO("[1,3]", "[0,2]"), 4, "overlap"},
        {TWO("[0,2]", "[3,5]"), 5, "belong to no tensor"},
        {TWO("[0,2]", "[2,4]"), 5, "belong to no tensor"},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "header, byte"},
        {"{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "header, byte"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse_header(bad[i].header, bad[i].data, bad[i].part);
    /* A name that would break the line, and one longer than any message. */
    refuse_header("{\"a\\nb\\u001b[2J\":7}", 0, "a?b?[2J");
    char *long_name = malloc(100100);
    memset(long_name, 'n', 100100);
    memcpy(long_name, "{\"", 2);
    strcpy(long_name + 100000, "\":7}");
    refuse_header(long_name, 0, "not an object");
    /* A million brackets are no stack overflow. */
    memset(long_name + 2, '[', 99998);
    memcpy(long_name, "{\"x\":", 5);
    refuse_header(long_name, 0, "header, byte");
    free(long_name);
}

static void refuses_bad_lengths(void **state) {
    (void)state;
    kvant_test_bytes file = kvant_test_safetensors("{}", 0);
    static const uint64_t lengths[] = {0,
                                       1,
                                       3,
                                       4,
                                       100000000,
                                       100000001,
                                       UINT64_C(1) << 32,
                                       UINT64_C(1) << 63,
                                       UINT64_MAX,
                                       UINT64_MAX - 7,
                                       UINT64_MAX - 9};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (unsigned b = 0; b < 8; b++) file.bytes[b] = (unsigned char)(lengths[i] >> 8 * b);
        (void)refuse(file, "a wrong length");
    }
    free(file.bytes);
}

static const char good[] =
    "{\"__metadata__\":{\"format\":\"x\"},\"k\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":"
    "[0,12]},\"v\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[12,20]}}";

static void refuses_every_truncation(void **state) {
    (void)state;
    kvant_test_bytes file = kvant_test_safetensors(good, 20);
    for (size_t size = 0; size < file.size; size++) {
        kvant_test_bytes cut = kvant_test_cut(file, size);
        (void)refuse(cut, "a truncated file");
        free(cut.bytes);
    }
    free(file.bytes);
}

/* A flipped bit may leave a file right (a name, a string): then it must read without fault. */
static void survives_every_bit_flip(void **state) {
    (void)state;
    kvant_test_bytes file = kvant_test_safetensors(good, 20);
    unsigned refused = 0;
    for (size_t bit = 0; bit < file.size * 8; bit++) {
        kvant_test_bytes flipped = kvant_test_cut(file, file.size);
        flipped.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_safetensors *st = NULL;
        kvant_status status = kvant_safetensors_parse(flipped.bytes, flipped.size, "bad", &st, &diag);
        if (status == KVANT_OK) {
            for (uint32_t i = 0; i < kvant_safetensors_count(st); i++) {
                const kvant_array *array = kvant_safetensors_at(st, i);
                const unsigned char *data = array->data;
                assert_true(data >= flipped.bytes && data + array->bytes <= flipped.bytes + flipped.size);
            }
            kvant_safetensors_close(st);
        } else {
            kvant_assert_refused(status, &diag, "bad");
            refused++;
        }
        free(flipped.bytes);
    }
    assert_true(refused > file.size * 8 / 2);
    free(file.bytes);
}

static void refuses_what_is_no_file(void **state) {
    (void)state;
    static const char *const places[] = {"/", "/dev/null", "/dev/zero", "/nonexistent", "", "/etc/passwd/x"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_safetensors *st = NULL;
        kvant_status status = kvant_safetensors_open(places[i], &st, &diag);
        assert_int_equal(status, KVANT_ERROR_IO);
        kvant_assert_refused(status, &diag, places[i]);
    }
    /* A pipe without a writer must not be waited for. */
    const char *pipe = in_directory("pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    kvant_safetensors *st = NULL;
    assert_int_equal(kvant_safetensors_open(pipe, &st, NULL), KVANT_ERROR_IO);
    /* Without a diag. */
    assert_int_equal(kvant_safetensors_open("/nonexistent", &st, NULL), KVANT_ERROR_IO);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(reads_every_dtype),
                                              cmocka_unit_test(sorts_and_finds),
                                              cmocka_unit_test(round_trip),
                                              cmocka_unit_test(write_leaves_nothing_behind),
                                              cmocka_unit_test(write_survives_a_full_disk),
                                              cmocka_unit_test(refuses_bad_headers),
                                              cmocka_unit_test(refuses_bad_lengths),
                                              cmocka_unit_test(refuses_every_truncation),
                                              cmocka_unit_test(survives_every_bit_flip),
                                              cmocka_unit_test(refuses_what_is_no_file)};
    return kvant_run_tests(tests, argc, argv);
}
