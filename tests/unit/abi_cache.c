/* Sizes and offsets of the structs of cache.h, pinned as those in abi_layout.c are. */
#include <kvant/kvant.h>

#include "support/test.h"

#define SIZE(type, size)         _Static_assert(sizeof(type) == (size), "size of " #type)
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #type "." #member)

SIZE(kvant_cache_options, 56);
AT(kvant_cache_options, struct_size, 0);
AT(kvant_cache_options, threads, 4);
AT(kvant_cache_options, bytes, 8);
AT(kvant_cache_options, loop, 16);
AT(kvant_cache_options, loop_context, 24);
AT(kvant_cache_options, store, 32);
AT(kvant_cache_options, device, 40);
AT(kvant_cache_options, stream, 48);

SIZE(kvant_bytes, 56);
AT(kvant_bytes, struct_size, 0);
AT(kvant_bytes, reserved, 4);
AT(kvant_bytes, payload, 8);
AT(kvant_bytes, metadata, 16);
AT(kvant_bytes, padding, 24);
AT(kvant_bytes, raw, 32);
AT(kvant_bytes, tables, 40);
AT(kvant_bytes, total, 48);

SIZE(kvant_cache_report, 192);
AT(kvant_cache_report, struct_size, 0);
AT(kvant_cache_report, sequences, 4);
AT(kvant_cache_report, bytes, 8);
AT(kvant_cache_report, capacity, 64);
AT(kvant_cache_report, free, 72);
AT(kvant_cache_report, unusable, 80);
AT(kvant_cache_report, peak, 88);
AT(kvant_cache_report, blocks, 96);
AT(kvant_cache_report, indexed, 104);
AT(kvant_cache_report, pinned, 112);
AT(kvant_cache_report, lookups, 120);
AT(kvant_cache_report, asked_tokens, 128);
AT(kvant_cache_report, found_tokens, 136);
AT(kvant_cache_report, stored_hits, 144);
AT(kvant_cache_report, evictions, 152);
AT(kvant_cache_report, spilled, 160);
AT(kvant_cache_report, spill_failures, 168);
AT(kvant_cache_report, saturated, 176);
AT(kvant_cache_report, replaced, 184);

SIZE(kvant_prefix, 56);
AT(kvant_prefix, struct_size, 0);
AT(kvant_prefix, reserved, 4);
AT(kvant_prefix, ids, 8);
AT(kvant_prefix, tags, 16);
AT(kvant_prefix, count, 24);
AT(kvant_prefix, salt, 32);
AT(kvant_prefix, salt_bytes, 40);
AT(kvant_prefix, first_step_end, 48);

SIZE(kvant_sequence_info, 48);
AT(kvant_sequence_info, struct_size, 0);
AT(kvant_sequence_info, in_step, 4);
AT(kvant_sequence_info, length, 8);
AT(kvant_sequence_info, live_tokens, 16);
AT(kvant_sequence_info, blocks, 24);
AT(kvant_sequence_info, tail_first, 32);
AT(kvant_sequence_info, private_first, 40);

SIZE(kvant_step_options, 32);
AT(kvant_step_options, struct_size, 0);
AT(kvant_step_options, count, 4);
AT(kvant_step_options, tentative, 8);
AT(kvant_step_options, reserved, 12);
AT(kvant_step_options, ids, 16);
AT(kvant_step_options, tags, 24);

SIZE(kvant_step_rows, 56);
AT(kvant_step_rows, struct_size, 0);
AT(kvant_step_rows, reserved, 4);
AT(kvant_step_rows, sequence, 8);
AT(kvant_step_rows, keys, 16);
AT(kvant_step_rows, values, 24);
AT(kvant_step_rows, queries, 32);
AT(kvant_step_rows, outputs, 40);
AT(kvant_step_rows, log_sum_exp, 48);

SIZE(kvant_attend_part, 48);
AT(kvant_attend_part, struct_size, 0);
AT(kvant_attend_part, reserved, 4);
AT(kvant_attend_part, sequence, 8);
AT(kvant_attend_part, queries, 16);
AT(kvant_attend_part, ranges, 24);
AT(kvant_attend_part, outputs, 32);
AT(kvant_attend_part, log_sum_exp, 40);

SIZE(kvant_saved, 40);
AT(kvant_saved, struct_size, 0);
AT(kvant_saved, reserved, 4);
AT(kvant_saved, tokens, 8);
AT(kvant_saved, blocks, 16);
AT(kvant_saved, tail_tokens, 24);
AT(kvant_saved, bytes, 32);

/* The asserts above fail at compile time; this has a program that says so. */
static void structs_are_pinned(void **state) {
    (void)state;
    assert_int_equal(sizeof(kvant_bytes) % 8, 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(structs_are_pinned)};
    return kvant_run_tests(tests, argc, argv);
}
