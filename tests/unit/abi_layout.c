/* The sizes and offsets of every public struct, pinned: a change here is a change of the ABI. Members are
 * only ever appended; then the size changes, an offset never does. (64-bit machines; the headers have no
 * others in mind.) */
#include <kvant/kvant.h>

#include "support/test.h"

#define SIZE(type, size)         _Static_assert(sizeof(type) == (size), "size of " #type)
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #type "." #member)

SIZE(kvant_diag, 2632);
AT(kvant_diag, struct_size, 0);
AT(kvant_diag, line, 4);
AT(kvant_diag, file, 8);
AT(kvant_diag, key, 520);
AT(kvant_diag, message, 584);

SIZE(kvant_view, 56);
AT(kvant_view, struct_size, 0);
AT(kvant_view, dtype, 4);
AT(kvant_view, data, 8);
AT(kvant_view, tokens, 16);
AT(kvant_view, heads, 20);
AT(kvant_view, head_dim, 24);
AT(kvant_view, reserved, 28);
AT(kvant_view, token_stride, 32);
AT(kvant_view, head_stride, 40);
AT(kvant_view, channel_stride, 48);

SIZE(kvant_mutable_view, 56);
AT(kvant_mutable_view, struct_size, 0);
AT(kvant_mutable_view, dtype, 4);
AT(kvant_mutable_view, data, 8);
AT(kvant_mutable_view, tokens, 16);
AT(kvant_mutable_view, heads, 20);
AT(kvant_mutable_view, head_dim, 24);
AT(kvant_mutable_view, reserved, 28);
AT(kvant_mutable_view, token_stride, 32);
AT(kvant_mutable_view, head_stride, 40);
AT(kvant_mutable_view, channel_stride, 48);

SIZE(kvant_array, 96);
AT(kvant_array, name, 0);
AT(kvant_array, data, 8);
AT(kvant_array, shape, 16);
AT(kvant_array, bytes, 80);
AT(kvant_array, dtype, 88);
AT(kvant_array, rank, 92);

SIZE(kvant_rope, 32);
AT(kvant_rope, struct_size, 0);
AT(kvant_rope, style, 4);
AT(kvant_rope, rotary_dim, 8);
AT(kvant_rope, reserved, 12);
AT(kvant_rope, magnitude, 16);
AT(kvant_rope, inverse_frequency, 24);

SIZE(kvant_layer_geometry, 40);
AT(kvant_layer_geometry, struct_size, 0);
AT(kvant_layer_geometry, kv_heads, 4);
AT(kvant_layer_geometry, q_heads, 8);
AT(kvant_layer_geometry, first_kv_head, 12);
AT(kvant_layer_geometry, total_kv_heads, 16);
AT(kvant_layer_geometry, key_dim, 20);
AT(kvant_layer_geometry, value_dim, 24);
AT(kvant_layer_geometry, window, 28);
AT(kvant_layer_geometry, rope, 32);

SIZE(kvant_param, 112);
AT(kvant_param, struct_size, 0);
AT(kvant_param, type, 4);
AT(kvant_param, flags, 8);
AT(kvant_param, choice_count, 12);
AT(kvant_param, integer_count, 16);
AT(kvant_param, reserved, 20);
AT(kvant_param, name, 24);
AT(kvant_param, unit, 32);
AT(kvant_param, help, 40);
AT(kvant_param, choices, 48);
AT(kvant_param, integers, 56);
AT(kvant_param, integer_min, 64);
AT(kvant_param, integer_max, 72);
AT(kvant_param, integer_default, 80);
AT(kvant_param, number_min, 88);
AT(kvant_param, number_max, 96);
AT(kvant_param, number_default, 104);

SIZE(kvant_table_row, 16);
AT(kvant_table_row, key, 0);
AT(kvant_table_row, value, 8);

SIZE(kvant_value, 32);
AT(kvant_value, integer, 0);
AT(kvant_value, number, 8);
AT(kvant_value, rows, 16);
AT(kvant_value, row_count, 24);
AT(kvant_value, given, 28);

SIZE(kvant_descriptor, 104);
AT(kvant_descriptor, struct_size, 0);
AT(kvant_descriptor, format_id, 4);
AT(kvant_descriptor, format_version, 8);
AT(kvant_descriptor, sides, 12);
AT(kvant_descriptor, dtypes, 16);
AT(kvant_descriptor, requires_bits, 20);
AT(kvant_descriptor, offers_bits, 24);
AT(kvant_descriptor, head_dim_min, 28);
AT(kvant_descriptor, head_dim_max, 32);
AT(kvant_descriptor, head_dim_multiple, 36);
AT(kvant_descriptor, param_count, 40);
AT(kvant_descriptor, reserved, 44);
AT(kvant_descriptor, name, 48);
AT(kvant_descriptor, version, 56);
AT(kvant_descriptor, title, 64);
AT(kvant_descriptor, paper, 72);
AT(kvant_descriptor, license, 80);
AT(kvant_descriptor, deviations, 88);
AT(kvant_descriptor, params, 96);

SIZE(kvant_setup, 80);
AT(kvant_setup, struct_size, 0);
AT(kvant_setup, side, 4);
AT(kvant_setup, layer, 8);
AT(kvant_setup, layer_count, 12);
AT(kvant_setup, dtype, 16);
AT(kvant_setup, block_tokens, 20);
AT(kvant_setup, head_dim, 24);
AT(kvant_setup, kv_heads, 28);
AT(kvant_setup, first_kv_head, 32);
AT(kvant_setup, total_kv_heads, 36);
AT(kvant_setup, q_heads, 40);
AT(kvant_setup, isa, 44);
AT(kvant_setup, value_count, 48);
AT(kvant_setup, tensor_count, 52);
AT(kvant_setup, rope, 56);
AT(kvant_setup, values, 64);
AT(kvant_setup, tensors, 72);

SIZE(kvant_layout, 384);
AT(kvant_layout, struct_size, 0);
AT(kvant_layout, flags, 4);
AT(kvant_layout, alignment, 8);
AT(kvant_layout, block_multiple, 12);
AT(kvant_layout, isa, 16);
AT(kvant_layout, mix_width, 20);
AT(kvant_layout, size_min, 24);
AT(kvant_layout, size_step, 32);
AT(kvant_layout, size_steps, 40);
AT(kvant_layout, payload_bits, 48);
AT(kvant_layout, metadata_bits, 56);
AT(kvant_layout, payload_bits_step, 64);
AT(kvant_layout, metadata_bits_step, 72);
AT(kvant_layout, state_bytes, 80);
AT(kvant_layout, scratch_bytes, 88);
AT(kvant_layout, attend_scratch_bytes, 96);
AT(kvant_layout, attend_scratch_row, 104);
AT(kvant_layout, query_state_bytes, 112);
AT(kvant_layout, attend_tolerance, 120);
AT(kvant_layout, tag_class, 128);

SIZE(kvant_extent, 32);
AT(kvant_extent, bytes, 0);
AT(kvant_extent, size, 8);
AT(kvant_extent, first_position, 16);
AT(kvant_extent, live_first, 24);
AT(kvant_extent, live_count, 28);

SIZE(kvant_encode_args, 64);
AT(kvant_encode_args, struct_size, 0);
AT(kvant_encode_args, reserved, 4);
AT(kvant_encode_args, rows, 8);
AT(kvant_encode_args, classes, 16);
AT(kvant_encode_args, first_position, 24);
AT(kvant_encode_args, extent, 32);
AT(kvant_encode_args, scratch, 40);
AT(kvant_encode_args, size, 48);
AT(kvant_encode_args, saturated, 56);

SIZE(kvant_decode_args, 40);
AT(kvant_decode_args, struct_size, 0);
AT(kvant_decode_args, first_token, 4);
AT(kvant_decode_args, first_head, 8);
AT(kvant_decode_args, reserved, 12);
AT(kvant_decode_args, extent, 16);
AT(kvant_decode_args, rows, 24);
AT(kvant_decode_args, scratch, 32);

SIZE(kvant_plugin, 64);
AT(kvant_plugin, struct_size, 0);
AT(kvant_plugin, abi, 4);
AT(kvant_plugin, descriptor, 8);
AT(kvant_plugin, plan, 16);
AT(kvant_plugin, open, 24);
AT(kvant_plugin, close, 32);
AT(kvant_plugin, encode, 40);
AT(kvant_plugin, decode, 48);
AT(kvant_plugin, extension, 56);

SIZE(kvant_query_args, 48);
AT(kvant_query_args, struct_size, 0);
AT(kvant_query_args, first_head, 4);
AT(kvant_query_args, heads, 8);
AT(kvant_query_args, rows, 12);
AT(kvant_query_args, queries, 16);
AT(kvant_query_args, query_stride, 24);
AT(kvant_query_args, query_state, 32);
AT(kvant_query_args, scratch, 40);

SIZE(kvant_score_args, 80);
AT(kvant_score_args, struct_size, 0);
AT(kvant_score_args, first_head, 4);
AT(kvant_score_args, heads, 8);
AT(kvant_score_args, rows, 12);
AT(kvant_score_args, query_state, 16);
AT(kvant_score_args, extents, 24);
AT(kvant_score_args, extent_count, 32);
AT(kvant_score_args, offset_count, 36);
AT(kvant_score_args, first_turns, 40);
AT(kvant_score_args, offset_turns, 48);
AT(kvant_score_args, logits, 56);
AT(kvant_score_args, logit_stride, 64);
AT(kvant_score_args, scratch, 72);

SIZE(kvant_mix_args, 72);
AT(kvant_mix_args, struct_size, 0);
AT(kvant_mix_args, first_head, 4);
AT(kvant_mix_args, heads, 8);
AT(kvant_mix_args, rows, 12);
AT(kvant_mix_args, extents, 16);
AT(kvant_mix_args, extent_count, 24);
AT(kvant_mix_args, reserved, 28);
AT(kvant_mix_args, weights, 32);
AT(kvant_mix_args, weight_stride, 40);
AT(kvant_mix_args, accumulators, 48);
AT(kvant_mix_args, accumulator_stride, 56);
AT(kvant_mix_args, scratch, 64);

SIZE(kvant_finish_args, 56);
AT(kvant_finish_args, struct_size, 0);
AT(kvant_finish_args, first_head, 4);
AT(kvant_finish_args, heads, 8);
AT(kvant_finish_args, rows, 12);
AT(kvant_finish_args, accumulators, 16);
AT(kvant_finish_args, accumulator_stride, 24);
AT(kvant_finish_args, outputs, 32);
AT(kvant_finish_args, output_stride, 40);
AT(kvant_finish_args, scratch, 48);

SIZE(kvant_attend, 40);
AT(kvant_attend, struct_size, 0);
AT(kvant_attend, reserved, 4);
AT(kvant_attend, query, 8);
AT(kvant_attend, score, 16);
AT(kvant_attend, mix, 24);
AT(kvant_attend, finish, 32);

SIZE(kvant_sample, 96);
AT(kvant_sample, struct_size, 0);
AT(kvant_sample, layer, 4);
AT(kvant_sample, keys, 8);
AT(kvant_sample, values, 16);
AT(kvant_sample, queries, 24);
AT(kvant_sample, tags, 32);
AT(kvant_sample, importance, 40);
AT(kvant_sample, importance_count, 48);
AT(kvant_sample, sinks, 52);
AT(kvant_sample, first_position, 56);
AT(kvant_sample, query_position, 64);
AT(kvant_sample, logit_scale, 72);
AT(kvant_sample, soft_cap, 80);
AT(kvant_sample, text, 88);
AT(kvant_sample, window, 92);

SIZE(kvant_calibrate, 48);
AT(kvant_calibrate, struct_size, 0);
AT(kvant_calibrate, reserved, 4);
AT(kvant_calibrate, begin, 8);
AT(kvant_calibrate, feed, 16);
AT(kvant_calibrate, again, 24);
AT(kvant_calibrate, end, 32);
AT(kvant_calibrate, free, 40);

SIZE(kvant_inspect, 24);
AT(kvant_inspect, struct_size, 0);
AT(kvant_inspect, array_count, 4);
AT(kvant_inspect, describe, 8);
AT(kvant_inspect, read, 16);

SIZE(kvant_plugin_entry, 40);
AT(kvant_plugin_entry, struct_size, 0);
AT(kvant_plugin_entry, status, 4);
AT(kvant_plugin_entry, plugin, 8);
AT(kvant_plugin_entry, name, 16);
AT(kvant_plugin_entry, file, 24);
AT(kvant_plugin_entry, reason, 32);

SIZE(kvant_geometry, 32);
AT(kvant_geometry, struct_size, 0);
AT(kvant_geometry, layer_count, 4);
AT(kvant_geometry, dtype, 8);
AT(kvant_geometry, keys, 12);
AT(kvant_geometry, layers, 16);
AT(kvant_geometry, model, 24);

SIZE(kvant_plan_info, 48);
AT(kvant_plan_info, struct_size, 0);
AT(kvant_plan_info, block_tokens, 4);
AT(kvant_plan_info, sinks, 8);
AT(kvant_plan_info, recent, 12);
AT(kvant_plan_info, key_center, 16);
AT(kvant_plan_info, on_nonfinite, 20);
AT(kvant_plan_info, name, 24);
AT(kvant_plan_info, artifact_digest, 32);
AT(kvant_plan_info, geometry, 40);

SIZE(kvant_row, 48);
AT(kvant_row, struct_size, 0);
AT(kvant_row, replaced, 4);
AT(kvant_row, codec, 8);
AT(kvant_row, reason, 16);
AT(kvant_row, plugin, 24);
AT(kvant_row, setup, 32);
AT(kvant_row, layout, 40);

SIZE(kvant_encode_report, 32);
AT(kvant_encode_report, struct_size, 0);
AT(kvant_encode_report, reserved, 4);
AT(kvant_encode_report, size, 8);
AT(kvant_encode_report, saturated, 16);
AT(kvant_encode_report, replaced, 24);

SIZE(kvant_range, 16);
AT(kvant_range, struct_size, 0);
AT(kvant_range, first_token, 4);
AT(kvant_range, first_head, 8);
AT(kvant_range, reserved, 12);

SIZE(kvant_dump_source, 32);
AT(kvant_dump_source, struct_size, 0);
AT(kvant_dump_source, reserved, 4);
AT(kvant_dump_source, name, 8);
AT(kvant_dump_source, bytes, 16);
AT(kvant_dump_source, size, 24);

SIZE(kvant_calibration_options, 24);
AT(kvant_calibration_options, struct_size, 0);
AT(kvant_calibration_options, reserved, 4);
AT(kvant_calibration_options, progress, 8);
AT(kvant_calibration_options, context, 16);

SIZE(kvant_calibration_info, 56);
AT(kvant_calibration_info, struct_size, 0);
AT(kvant_calibration_info, text_count, 4);
AT(kvant_calibration_info, tokens, 8);
AT(kvant_calibration_info, tensor_count, 16);
AT(kvant_calibration_info, centered_layers, 20);
AT(kvant_calibration_info, passes, 24);
AT(kvant_calibration_info, reserved, 28);
AT(kvant_calibration_info, bytes, 32);
AT(kvant_calibration_info, size, 40);
AT(kvant_calibration_info, digest, 48);

SIZE(kvant_store_key, 88);
AT(kvant_store_key, struct_size, 0);
AT(kvant_store_key, kind, 4);
AT(kvant_store_key, key, 8);
AT(kvant_store_key, fingerprint, 40);
AT(kvant_store_key, salt, 72);
AT(kvant_store_key, salt_bytes, 80);

SIZE(kvant_store_options, 32);
AT(kvant_store_options, struct_size, 0);
AT(kvant_store_options, pack, 4);
AT(kvant_store_options, pack_level, 8);
AT(kvant_store_options, reserved, 12);
AT(kvant_store_options, capacity, 16);
AT(kvant_store_options, record_max, 24);

SIZE(kvant_store_entry, 24);
AT(kvant_store_entry, struct_size, 0);
AT(kvant_store_entry, kind, 4);
AT(kvant_store_entry, key, 8);
AT(kvant_store_entry, bytes, 16);

SIZE(kvant_store_stats, 144);
AT(kvant_store_stats, struct_size, 0);
AT(kvant_store_stats, reserved, 4);
AT(kvant_store_stats, records, 8);
AT(kvant_store_stats, bytes, 16);
AT(kvant_store_stats, capacity, 24);
AT(kvant_store_stats, hits, 32);
AT(kvant_store_stats, puts, 40);
AT(kvant_store_stats, evictions, 48);
AT(kvant_store_stats, reasons, 56);

SIZE(kvant_store_usage, 40);
AT(kvant_store_usage, struct_size, 0);
AT(kvant_store_usage, reserved, 4);
AT(kvant_store_usage, records, 8);
AT(kvant_store_usage, bytes, 16);
AT(kvant_store_usage, capacity, 24);
AT(kvant_store_usage, evictions, 32);

SIZE(kvant_store_calls, 72);
AT(kvant_store_calls, struct_size, 0);
AT(kvant_store_calls, reserved, 4);
AT(kvant_store_calls, put, 8);
AT(kvant_store_calls, get, 16);
AT(kvant_store_calls, touch, 24);
AT(kvant_store_calls, contains, 32);
AT(kvant_store_calls, remove, 40);
AT(kvant_store_calls, iterate, 48);
AT(kvant_store_calls, usage, 56);
AT(kvant_store_calls, close, 64);

SIZE(kvant_attention_info, 16);
AT(kvant_attention_info, struct_size, 0);
AT(kvant_attention_info, keys_on_codes, 4);
AT(kvant_attention_info, values_on_codes, 8);
AT(kvant_attention_info, isa, 12);

SIZE(kvant_reference, 48);
AT(kvant_reference, key, 0);
AT(kvant_reference, value, 8);
AT(kvant_reference, key_size, 16);
AT(kvant_reference, value_size, 24);
AT(kvant_reference, first_position, 32);
AT(kvant_reference, live_first, 40);
AT(kvant_reference, live_count, 44);

SIZE(kvant_raw_run, 24);
AT(kvant_raw_run, keys, 0);
AT(kvant_raw_run, values, 8);
AT(kvant_raw_run, first_position, 16);

SIZE(kvant_token_range, 16);
AT(kvant_token_range, from, 0);
AT(kvant_token_range, to, 8);

SIZE(kvant_attention_sequence, 64);
AT(kvant_attention_sequence, struct_size, 0);
AT(kvant_attention_sequence, reference_count, 4);
AT(kvant_attention_sequence, run_count, 8);
AT(kvant_attention_sequence, reserved, 12);
AT(kvant_attention_sequence, references, 16);
AT(kvant_attention_sequence, runs, 24);
AT(kvant_attention_sequence, queries, 32);
AT(kvant_attention_sequence, ranges, 40);
AT(kvant_attention_sequence, outputs, 48);
AT(kvant_attention_sequence, log_sum_exp, 56);

SIZE(kvant_attention_options, 40);
AT(kvant_attention_options, struct_size, 0);
AT(kvant_attention_options, threads, 4);
AT(kvant_attention_options, scale, 8);
AT(kvant_attention_options, soft_cap, 12);
AT(kvant_attention_options, loop, 16);
AT(kvant_attention_options, loop_context, 24);
AT(kvant_attention_options, first_kv_head, 32);
AT(kvant_attention_options, kv_heads, 36);

SIZE(kvant_record_source, 72);
AT(kvant_record_source, struct_size, 0);
AT(kvant_record_source, kind, 4);
AT(kvant_record_source, tokens, 8);
AT(kvant_record_source, reserved, 12);
AT(kvant_record_source, block, 16);
AT(kvant_record_source, parent, 24);
AT(kvant_record_source, ids, 32);
AT(kvant_record_source, tags, 40);
AT(kvant_record_source, salt, 48);
AT(kvant_record_source, salt_bytes, 56);
AT(kvant_record_source, rows, 64);

SIZE(kvant_record_report, 96);
AT(kvant_record_report, struct_size, 0);
AT(kvant_record_report, reserved, 4);
AT(kvant_record_report, size, 8);
AT(kvant_record_report, saturated, 16);
AT(kvant_record_report, replaced, 24);
AT(kvant_record_report, key, 32);
AT(kvant_record_report, fingerprint, 64);

SIZE(kvant_record_info, 160);
AT(kvant_record_info, struct_size, 0);
AT(kvant_record_info, kind, 4);
AT(kvant_record_info, tokens, 8);
AT(kvant_record_info, layers, 12);
AT(kvant_record_info, sinks, 16);
AT(kvant_record_info, dtype, 20);
AT(kvant_record_info, block, 24);
AT(kvant_record_info, first_position, 32);
AT(kvant_record_info, size, 40);
AT(kvant_record_info, fingerprint, 48);
AT(kvant_record_info, parent, 80);
AT(kvant_record_info, key, 112);
AT(kvant_record_info, ids, 144);
AT(kvant_record_info, tags, 152);

/* The asserts above fail at compile time; this keeps the numbers of released status codes and enumerators. */
static void numbers_are_pinned(void **state) {
    (void)state;
    assert_int_equal(KVANT_ERROR_NOT_FINITE, -30);
    assert_int_equal(KVANT_ERROR_PLUGIN_NOT_FOUND, -40);
    assert_int_equal(KVANT_ERROR_IO, -50);
    assert_int_equal(KVANT_DTYPE_BF16, 3);
    assert_int_equal(KVANT_ABI, 0x10000);
    for (kvant_status s = KVANT_OK; s > -100; s--) assert_non_null(kvant_status_text(s));
    assert_string_equal(kvant_status_text(-99), "unknown status");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_pinned)};
    return kvant_run_tests(tests, argc, argv);
}
