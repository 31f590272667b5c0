/* The .npy reader: all versions and types it takes, and every way to be wrong. */
#include "data/npy.h"
#include "support/data.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file of this version, dict and data 1, 2, 3, ...; padded as NumPy does where `pad` asks for it. */
static kvant_test_bytes npy_of(unsigned major, const char *dict, size_t data_bytes, int pad) {
    size_t start = major == 1 ? 10 : 12, length = strlen(dict);
    if (pad) length += 64 - (start + length) % 64;
    kvant_test_bytes file = {malloc(start + length + data_bytes), start + length + data_bytes};
    assert_non_null(file.bytes);
    memcpy(file.bytes, "\x93NUMPY", 6);
    file.bytes[6] = (unsigned char)major;
    file.bytes[7] = 0;
    for (size_t i = 8; i < start; i++) file.bytes[i] = (unsigned char)(length >> 8 * (i - 8));
    memset(file.bytes + start, ' ', length);
    memcpy(file.bytes + start, dict, strlen(dict));
    if (pad) file.bytes[start + length - 1] = '\n';
    for (size_t i = 0; i < data_bytes; i++) file.bytes[start + length + i] = (unsigned char)(i + 1);
    return file;
}

static void refuse(kvant_test_bytes file, const char *part) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_npy *npy = NULL;
    kvant_status status = kvant_npy_parse(file.bytes, file.size, "dir/bad.npy", &npy, &diag);
    if (status == KVANT_OK) fail_msg("accepted, and \"%s\" was to be the reason for not", part);
    kvant_assert_refused(status, &diag, "dir/bad.npy");
    kvant_assert_contains(diag.message, part);
}

static void reads_types_and_versions(void **state) {
    (void)state;
    static const struct {
        const char *descr;
        uint32_t dtype;
        size_t bytes;
    } types[] = {{"<f2", KVANT_DTYPE_F16, 2}, {"<f4", KVANT_DTYPE_F32, 4}, {"<f8", KVANT_DTYPE_F64, 8},
                 {"|u1", KVANT_DTYPE_U8, 1},  {"|i1", KVANT_DTYPE_I8, 1},  {"|b1", KVANT_DTYPE_BOOL, 1},
                 {"<u2", KVANT_DTYPE_U16, 2}, {"<i2", KVANT_DTYPE_I16, 2}, {"<u4", KVANT_DTYPE_U32, 4},
                 {"<i4", KVANT_DTYPE_I32, 4}, {"<u8", KVANT_DTYPE_U64, 8}, {"<i8", KVANT_DTYPE_I64, 8},
                 {"|V2", KVANT_DTYPE_U16, 2}, {"<V2", KVANT_DTYPE_U16, 2}, {"<u1", KVANT_DTYPE_U8, 1}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        for (unsigned major = 1; major <= 3; major++) {
            char dict[128];
            (void)snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': (2, 3), }",
                           types[i].descr);
            kvant_test_bytes file = npy_of(major, dict, 6 * types[i].bytes, 1);
            kvant_npy *npy = NULL;
            kvant_diag diag = {.struct_size = sizeof diag};
            if (kvant_npy_parse(file.bytes, file.size, "a/k.npy", &npy, &diag) != KVANT_OK)
                fail_msg("%s", diag.message);
            const kvant_array *array = kvant_npy_array(npy);
            assert_string_equal(array->name, "k");
            assert_int_equal(array->dtype, types[i].dtype);
            assert_int_equal(array->rank, 2);
            assert_int_equal(array->shape[0], 2);
            assert_int_equal(array->shape[1], 3);
            assert_int_equal(array->bytes, 6 * types[i].bytes);
            assert_int_equal(((const unsigned char *)array->data)[5], 6);
            assert_false(kvant_npy_fortran(npy));
            kvant_npy_close(npy);
            free(file.bytes);
        }
}

static void reads_shapes_and_spellings(void **state) {
    (void)state;
    static const struct {
        const char *dict;
        uint32_t rank;
        size_t bytes;
        int fortran;
    } files[] = {{"{'descr': '|u1', 'fortran_order': False, 'shape': ()}", 0, 1, 0},
                 {"{'shape': (5,), 'fortran_order': True, 'descr': '|u1'}", 1, 5, 1},
                 {"{\"descr\":\"|u1\",\"fortran_order\":False,\"shape\":(2,0,3)}", 3, 0, 0},
                 {"{ 'descr' : '|u1' ,\t'fortran_order' : True , 'shape' : ( 1 , 2 , 3 , ) , } \n", 3, 6, 1}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        kvant_test_bytes file = npy_of(1, files[i].dict, files[i].bytes, 0);
        kvant_npy *npy = NULL;
        kvant_diag diag = {.struct_size = sizeof diag};
        if (kvant_npy_parse(file.bytes, file.size, "v", &npy, &diag) != KVANT_OK)
            fail_msg("%s", diag.message);
        assert_int_equal(kvant_npy_array(npy)->rank, files[i].rank);
        assert_int_equal(kvant_npy_fortran(npy), files[i].fortran);
        assert_string_equal(kvant_npy_array(npy)->name, "v");
        kvant_npy_close(npy);
        free(file.bytes);
    }
}

#define DICT(descr, order, shape) "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape "}"

static void refuses_bad_headers(void **state) {
    (void)state;
    static const struct {
        const char *dict;
        size_t data;
        const char *part;
    } bad[] = {
        {"", 4, "not a dict"},
        {"[]", 4, "not a dict"},
        {"{}", 4, "lacks"},
        {"{'descr'}", 4, "dict of strings"},
        {"{'descr': '<f4'}", 4, "lacks"},
        {"{'descr': '<f4', 'fortran_order': False}", 4, "lacks"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", 4, "double key"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (), 'more': 1}", 4, "unknown"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': ()}", 4, "dict of strings"},
        {"{'a_key_that_is_longer_than_any_that_is_allowed': 1}", 4, "dict of strings"},
        {DICT("'>f4'", "False", "()"), 4, "big-endian"},
        {DICT("'|f4'", "False", "()"), 4, "not supported"},
        {DICT("'=f4'", "False", "()"), 4, "not supported"},
        {DICT("'<f3'", "False", "()"), 4, "not supported"},
        {DICT("'<c8'", "False", "()"), 8, "not supported"},
        {DICT("'|O'", "False", "()"), 8, "not supported"},
        {DICT("'|S4'", "False", "()"), 4, "not supported"},
        {DICT("''", "False", "()"), 4, "not supported"},
        {DICT("[('x', '<f4')]", "False", "()"), 4, "structured"},
        {DICT("'<f\\x34'", "False", "()"), 4, "structured"},
        {DICT("'<f4'", "No", "()"), 4, "True or False"},
        {DICT("'<f4'", "0", "()"), 4, "True or False"},
        {DICT("'<f4'", "False", "(1"), 4, "'shape'"},
        {DICT("'<f4'", "False", "1"), 4, "'shape'"},
        {DICT("'<f4'", "False", "(1)"), 4, "'shape'"},
        {DICT("'<f4'", "False", "(,)"), 4, "'shape'"},
        {DICT("'<f4'", "False", "(-1,)"), 4, "'shape'"},
        {DICT("'<f4'", "False", "(1.5,)"), 4, "'shape'"},
        {DICT("'<f4'", "False", "(1 2)"), 4, "'shape'"},
        {DICT("'<f4'", "False", "(1,,)"), 4, "'shape'"},
        {DICT("'<f4'", "False", "(1L,)"), 4, "'shape'"},
        {DICT("'<f4'", "False", "[1]"), 4, "'shape'"},
        {DICT("'<f4'", "False", "(1,1,1,1,1,1,1,1,1)"), 4, "'shape'"},
        {DICT("'<f4'", "False", "(99999999999999999999,)"), 4, "'shape'"},
        {DICT("'<f4'", "False", "(4611686018427387904,)"), 4, "overflows"},
        {DICT("'<f4'", "False", "(4294967296,4294967296,0)"), 4, "overflows"},
        {DICT("'<f4'", "False", "(2,)"), 4, "truncated"},
        {DICT("'<f4'", "False", "(2,)"), 9, "9 follow"},
        {DICT("'<f4'", "False", "(0,)"), 4, "4 follow"},
        {DICT("'<f4'", "False", "(1,)") "x", 4, "goes on"},
        {DICT("'<f4'", "False", "(1,)") DICT("'<f4'", "False", "(1,)"), 4, "goes on"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvant_test_bytes file = npy_of((unsigned)(1 + i % 3), bad[i].dict, bad[i].data, i % 2);
        refuse(file, bad[i].part);
        free(file.bytes);
    }
}

static void refuses_bad_beginnings(void **state) {
    (void)state;
    kvant_test_bytes file = npy_of(2, DICT("'<f4'", "False", "(3,)"), 12, 1);
    for (size_t size = 0; size < file.size; size++) {
        kvant_test_bytes cut = kvant_test_cut(file, size);
        refuse(cut, "");
        free(cut.bytes);
    }
    static const struct {
        size_t at;
        unsigned char byte;
        const char *part;
    } bad[] = {{0, 'N', "magic"},          {5, 'y', "magic"},     {6, 0, "version 0.0"},
               {6, 4, "version 4.0"},      {7, 1, "version 2.1"}, {10, 0xff, "more than 1 MiB"},
               {11, 1, "more than 1 MiB"}, {9, 0xff, "cut off"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvant_test_bytes wrong = kvant_test_cut(file, file.size);
        wrong.bytes[bad[i].at] = bad[i].byte;
        refuse(wrong, bad[i].part);
        free(wrong.bytes);
    }
    free(file.bytes);
}

static void survives_every_bit_flip(void **state) {
    (void)state;
    kvant_test_bytes file = npy_of(1, DICT("'<f4'", "False", "(3,)"), 12, 1);
    for (size_t bit = 0; bit < (file.size - 12) * 8; bit++) {
        kvant_test_bytes flipped = kvant_test_cut(file, file.size);
        flipped.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_npy *npy = NULL;
        kvant_status status = kvant_npy_parse(flipped.bytes, flipped.size, "bad", &npy, &diag);
        if (status == KVANT_OK) {
            assert_int_equal(kvant_npy_array(npy)->bytes, 12);
            kvant_npy_close(npy);
        } else {
            kvant_assert_refused(status, &diag, "bad");
        }
        free(flipped.bytes);
    }
    free(file.bytes);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_types_and_versions), cmocka_unit_test(reads_shapes_and_spellings),
        cmocka_unit_test(refuses_bad_headers), cmocka_unit_test(refuses_bad_beginnings),
        cmocka_unit_test(survives_every_bit_flip)};
    return kvant_run_tests(tests, argc, argv);
}
