/* Growing strings, names, and the nearest word. */
#include "base/text.h"
#include "support/test.h"

#include <string.h>

static void grows(void **state) {
    (void)state;
    kvant_text text = {0};
    for (int i = 0; i < 1000; i++) kvant_text_printf(&text, "%d,", i);
    kvant_text_append(&text, "x\0y", 3);
    assert_false(text.failed);
    assert_int_equal(text.size, 10 * 2 + 90 * 3 + 900 * 4 + 3);
    assert_memory_equal(text.data + text.size - 7, "999,x\0y", 8); /* and the NUL behind it */
    kvant_text_free(&text);
    assert_null(text.data);
}

static void nearest_word(void **state) {
    (void)state;
    static const char *const words[] = {"block_tokens", "sinks", "recent", "key_center"};
    assert_string_equal(kvant_nearest("block_token", words, 4), "block_tokens");
    assert_string_equal(kvant_nearest("sink", words, 4), "sinks");
    assert_string_equal(kvant_nearest("key_centre", words, 4), "key_center");
    assert_null(kvant_nearest("quux", words, 4));
    assert_null(kvant_nearest("anything", words, 0));
    char absurd[500];
    memset(absurd, 'a', sizeof absurd - 1);
    absurd[sizeof absurd - 1] = '\0';
    assert_null(kvant_nearest(absurd, words, 4));
}

static void names(void **state) {
    (void)state;
    assert_true(kvant_is_name("k"));
    assert_true(kvant_is_name("q8_0"));
    assert_true(kvant_is_name("a123456789012345678901234567890b")); /* 32 */
    assert_false(kvant_is_name("a123456789012345678901234567890bc"));
    assert_false(kvant_is_name(""));
    assert_false(kvant_is_name("8bit"));
    assert_false(kvant_is_name("Kivi"));
    assert_false(kvant_is_name("../kivi"));
    assert_false(kvant_is_name("ki-vi"));
}

static void hex(void **state) {
    (void)state;
    char out[7];
    kvant_hex((const unsigned char[]){0x00, 0xab, 0x5f}, 3, out);
    assert_string_equal(out, "00ab5f");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(grows), cmocka_unit_test(nearest_word),
                                              cmocka_unit_test(names), cmocka_unit_test(hex)};
    return kvant_run_tests(tests, argc, argv);
}
