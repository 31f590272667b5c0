/* Sizes and offsets of the structs of device.h, pinned as those in abi_layout.c are. */
#include <kvant/kvant.h>

#include "support/test.h"

#define SIZE(type, size)         _Static_assert(sizeof(type) == (size), "size of " #type)
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #type "." #member)

SIZE(kvant_device_info, 144);
AT(kvant_device_info, struct_size, 0);
AT(kvant_device_info, major, 4);
AT(kvant_device_info, minor, 8);
AT(kvant_device_info, multiprocessors, 12);
AT(kvant_device_info, name, 16);

SIZE(kvant_device_layer_info, 16);
AT(kvant_device_layer_info, struct_size, 0);
AT(kvant_device_layer_info, attends, 4);
AT(kvant_device_layer_info, jit, 8);

SIZE(kvant_device_limits, 40);
AT(kvant_device_limits, struct_size, 0);
AT(kvant_device_limits, blocks, 4);
AT(kvant_device_limits, sequences, 8);
AT(kvant_device_limits, positions, 12);
AT(kvant_device_limits, positions_of_one, 16);
AT(kvant_device_limits, reserved, 20);
AT(kvant_device_limits, runs, 24);
AT(kvant_device_limits, span_tokens, 28);
AT(kvant_device_limits, references, 32);

SIZE(kvant_device_block, 40);
AT(kvant_device_block, struct_size, 0);
AT(kvant_device_block, reserved, 4);
AT(kvant_device_block, rows, 8);
AT(kvant_device_block, extent, 16);
AT(kvant_device_block, first_position, 24);
AT(kvant_device_block, tags, 32);

SIZE(kvant_device_extent, 48);
AT(kvant_device_extent, struct_size, 0);
AT(kvant_device_extent, first_token, 4);
AT(kvant_device_extent, first_head, 8);
AT(kvant_device_extent, reserved, 12);
AT(kvant_device_extent, extent, 16);
AT(kvant_device_extent, size, 24);
AT(kvant_device_extent, first_position, 32);
AT(kvant_device_extent, rows, 40);

SIZE(kvant_device_sequence, 64);
AT(kvant_device_sequence, struct_size, 0);
AT(kvant_device_sequence, reference_count, 4);
AT(kvant_device_sequence, run_count, 8);
AT(kvant_device_sequence, reserved, 12);
AT(kvant_device_sequence, references, 16);
AT(kvant_device_sequence, runs, 24);
AT(kvant_device_sequence, queries, 32);
AT(kvant_device_sequence, outputs, 40);
AT(kvant_device_sequence, log_sum_exp, 48);
AT(kvant_device_sequence, query_position, 56);

SIZE(kvant_device_attend_options, 48);
AT(kvant_device_attend_options, struct_size, 0);
AT(kvant_device_attend_options, window, 4);
AT(kvant_device_attend_options, scale, 8);
AT(kvant_device_attend_options, soft_cap, 12);
AT(kvant_device_attend_options, key_base, 16);
AT(kvant_device_attend_options, key_stride, 24);
AT(kvant_device_attend_options, value_base, 32);
AT(kvant_device_attend_options, value_stride, 40);

static void structs_are_pinned(void **state) {
    (void)state;
    assert_int_equal(sizeof(kvant_bytes) % 8, 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(structs_are_pinned)};
    return kvant_run_tests(tests, argc, argv);
}
