/* The layout of the public structs on machines of 64 bits, and the values of the public constants. A build in which one differs
 * stops here: docs/abi.md says what that means. Written by tests/abi/layout.py --update; not to be edited. */
#include <stddef.h>

#include "soquete/soquete.h"

#define SIZE(type, bytes)                                                                                                      \
    _Static_assert(sizeof(void *) != 8 || sizeof(struct type) == (bytes), "the size of struct " #type " changed")
#define FIELD(type, member, bytes)                                                                                             \
    _Static_assert(sizeof(void *) != 8 || offsetof(struct type, member) == (bytes), #type "." #member " moved")
#define VALUE(name, number) _Static_assert((name) == (number), "the value of " #name " changed")

SIZE(soq_error, 1008);
FIELD(soq_error, struct_size, 0);
FIELD(soq_error, code, 4);
FIELD(soq_error, text, 8);
VALUE(SOQ_EINVAL, 1);
VALUE(SOQ_ENOMEM, 2);
VALUE(SOQ_EUNSUPPORTED, 3);
VALUE(SOQ_EIO, 4);
VALUE(SOQ_ECORRUPT, 5);
VALUE(SOQ_ENOTFOUND, 6);
VALUE(SOQ_EBUSY, 7);
VALUE(SOQ_ECANCELLED, 8);
VALUE(SOQ_ELIMIT, 9);
VALUE(SOQ_EDEVICE, 10);
VALUE(SOQ_EABI, 11);
VALUE(SOQ_EINTERNAL, 12);
VALUE(SOQ_ERROR_TEXT_MAX, 1000);
VALUE(SOQ_DTYPE_F32, 0);
VALUE(SOQ_DTYPE_F16, 1);
VALUE(SOQ_DTYPE_Q4_0, 2);
VALUE(SOQ_DTYPE_Q4_1, 3);
VALUE(SOQ_DTYPE_Q5_0, 6);
VALUE(SOQ_DTYPE_Q5_1, 7);
VALUE(SOQ_DTYPE_Q8_0, 8);
VALUE(SOQ_DTYPE_Q2_K, 10);
VALUE(SOQ_DTYPE_Q3_K, 11);
VALUE(SOQ_DTYPE_Q4_K, 12);
VALUE(SOQ_DTYPE_Q5_K, 13);
VALUE(SOQ_DTYPE_Q6_K, 14);
VALUE(SOQ_DTYPE_IQ4_NL, 20);
VALUE(SOQ_DTYPE_IQ4_XS, 23);
VALUE(SOQ_DTYPE_BF16, 30);

SIZE(soq_option, 56);
FIELD(soq_option, struct_size, 0);
FIELD(soq_option, type, 4);
FIELD(soq_option, key, 8);
FIELD(soq_option, default_value, 16);
FIELD(soq_option, min, 24);
FIELD(soq_option, max, 32);
FIELD(soq_option, choices, 40);
FIELD(soq_option, help, 48);

SIZE(soq_config, 40);
FIELD(soq_config, struct_size, 0);
FIELD(soq_config, reserved, 4);
FIELD(soq_config, ctx, 8);
FIELD(soq_config, get_int, 16);
FIELD(soq_config, get_float, 24);
FIELD(soq_config, get_string, 32);

SIZE(soq_worker, 24);
FIELD(soq_worker, struct_size, 0);
FIELD(soq_worker, index, 4);
FIELD(soq_worker, count, 8);
FIELD(soq_worker, reserved, 12);
FIELD(soq_worker, region, 16);

SIZE(soq_host, 72);
FIELD(soq_host, struct_size, 0);
FIELD(soq_host, abi_major, 4);
FIELD(soq_host, ctx, 8);
FIELD(soq_host, log, 16);
FIELD(soq_host, alloc, 24);
FIELD(soq_host, free, 32);
FIELD(soq_host, cpu_count, 40);
FIELD(soq_host, parallel, 48);
FIELD(soq_host, barrier, 56);
FIELD(soq_host, cancelled, 64);
VALUE(SOQ_OPT_INT, 1);
VALUE(SOQ_OPT_FLOAT, 2);
VALUE(SOQ_OPT_BOOL, 3);
VALUE(SOQ_OPT_STRING, 4);
VALUE(SOQ_OPT_ENUM, 5);
VALUE(SOQ_OPT_SIZE, 6);
VALUE(SOQ_OPT_PATH, 7);
VALUE(SOQ_LOG_ERROR, 0);
VALUE(SOQ_LOG_WARN, 1);
VALUE(SOQ_LOG_INFO, 2);
VALUE(SOQ_LOG_DEBUG, 3);

SIZE(soq_step, 72);
FIELD(soq_step, struct_size, 0);
FIELD(soq_step, total_bytes, 4);
FIELD(soq_step, serial, 8);
FIELD(soq_step, flags, 16);
FIELD(soq_step, n_rows, 20);
FIELD(soq_step, n_seqs, 24);
FIELD(soq_step, n_segments, 28);
FIELD(soq_step, n_outputs, 32);
FIELD(soq_step, n_edits, 36);
FIELD(soq_step, n_copies, 40);
FIELD(soq_step, off_rows, 44);
FIELD(soq_step, off_seqs, 48);
FIELD(soq_step, off_segments, 52);
FIELD(soq_step, off_outputs, 56);
FIELD(soq_step, off_edits, 60);
FIELD(soq_step, off_copies, 64);
FIELD(soq_step, reserved, 68);

SIZE(soq_step_row, 32);
FIELD(soq_step_row, token, 0);
FIELD(soq_step_row, token_source, 4);
FIELD(soq_step_row, position, 8);
FIELD(soq_step_row, entry, 12);
FIELD(soq_step_row, seq, 16);
FIELD(soq_step_row, parent, 20);
FIELD(soq_step_row, flags, 24);
FIELD(soq_step_row, mass_line, 28);

SIZE(soq_step_seq, 24);
FIELD(soq_step_seq, slot, 0);
FIELD(soq_step_seq, n_cached, 4);
FIELD(soq_step_seq, first_row, 8);
FIELD(soq_step_seq, n_rows, 12);
FIELD(soq_step_seq, first_segment, 16);
FIELD(soq_step_seq, n_segments, 20);

SIZE(soq_step_segment, 40);
FIELD(soq_step_segment, group, 0);
FIELD(soq_step_segment, flags, 4);
FIELD(soq_step_segment, first_layer, 8);
FIELD(soq_step_segment, n_layers, 12);
FIELD(soq_step_segment, first_head, 16);
FIELD(soq_step_segment, n_heads, 20);
FIELD(soq_step_segment, first_entry, 24);
FIELD(soq_step_segment, n_entries, 28);
FIELD(soq_step_segment, position_offset, 32);
FIELD(soq_step_segment, rotation, 36);

SIZE(soq_step_edit, 16);
FIELD(soq_step_edit, slot, 0);
FIELD(soq_step_edit, group, 4);
FIELD(soq_step_edit, index, 8);
FIELD(soq_step_edit, block, 12);

SIZE(soq_step_copy, 16);
FIELD(soq_step_copy, group, 0);
FIELD(soq_step_copy, dst, 4);
FIELD(soq_step_copy, src, 8);
FIELD(soq_step_copy, n_tokens, 12);
VALUE(SOQ_STEP_LINEAR, 1);
VALUE(SOQ_ROW_LOGITS, 1);
VALUE(SOQ_ROW_LOGPROB, 2);
VALUE(SOQ_ROW_HIDDEN, 4);
VALUE(SOQ_ROW_PADDING, 8);
VALUE(SOQ_SEGMENT_ROTATE, 1);
VALUE(SOQ_SEGMENT_ROLLING, 2);
VALUE(SOQ_BLOCK_NONE, 4294967295);
VALUE(SOQ_BLOCK_CLASS_SHIFT, 28);
VALUE(SOQ_BLOCK_INDEX_MASK, 268435455);

SIZE(soq_kv_format, 72);
FIELD(soq_kv_format, struct_size, 0);
FIELD(soq_kv_format, kind, 4);
FIELD(soq_kv_format, dtype, 8);
FIELD(soq_kv_format, bits, 12);
FIELD(soq_kv_format, group_tokens, 16);
FIELD(soq_kv_format, group_dims, 20);
FIELD(soq_kv_format, symmetric, 24);
FIELD(soq_kv_format, rotation, 28);
FIELD(soq_kv_format, outliers, 32);
FIELD(soq_kv_format, sketch_bits, 36);
FIELD(soq_kv_format, pre_rope, 40);
FIELD(soq_kv_format, tail_dtype, 44);
FIELD(soq_kv_format, codebook_size, 48);
FIELD(soq_kv_format, codebook, 56);
FIELD(soq_kv_format, tile_bytes, 64);

SIZE(soq_kv_plane, 96);
FIELD(soq_kv_plane, struct_size, 0);
FIELD(soq_kv_plane, role, 4);
FIELD(soq_kv_plane, heads, 8);
FIELD(soq_kv_plane, width, 12);
FIELD(soq_kv_plane, tokens_per_entry, 16);
FIELD(soq_kv_plane, alias, 20);
FIELD(soq_kv_plane, format, 24);

SIZE(soq_kv_group_desc, 56);
FIELD(soq_kv_group_desc, struct_size, 0);
FIELD(soq_kv_group_desc, index, 4);
FIELD(soq_kv_group_desc, kind, 8);
FIELD(soq_kv_group_desc, n_layers, 12);
FIELD(soq_kv_group_desc, block_tokens, 16);
FIELD(soq_kv_group_desc, max_blocks, 20);
FIELD(soq_kv_group_desc, n_planes, 24);
FIELD(soq_kv_group_desc, plane_stride, 28);
FIELD(soq_kv_group_desc, planes, 32);
FIELD(soq_kv_group_desc, block_bytes, 40);
FIELD(soq_kv_group_desc, storage, 48);

SIZE(soq_kv_shape, 32);
FIELD(soq_kv_shape, struct_size, 0);
FIELD(soq_kv_shape, n_layers, 4);
FIELD(soq_kv_shape, n_heads, 8);
FIELD(soq_kv_shape, n_kv_heads, 12);
FIELD(soq_kv_shape, head_dim, 16);
FIELD(soq_kv_shape, context, 20);
FIELD(soq_kv_shape, block_tokens, 24);
FIELD(soq_kv_shape, model_window, 28);

SIZE(soq_kv_plan, 40);
FIELD(soq_kv_plan, struct_size, 0);
FIELD(soq_kv_plan, needs, 4);
FIELD(soq_kv_plan, window, 8);
FIELD(soq_kv_plan, sinks, 12);
FIELD(soq_kv_plan, slot_positions, 16);
FIELD(soq_kv_plan, grid, 20);
FIELD(soq_kv_plan, every, 24);
FIELD(soq_kv_plan, queries, 28);
FIELD(soq_kv_plan, no_prefix_hits, 32);
FIELD(soq_kv_plan, no_drafts, 36);

SIZE(soq_kv_range, 8);
FIELD(soq_kv_range, first, 0);
FIELD(soq_kv_range, last, 4);

SIZE(soq_kv_commit, 16);
FIELD(soq_kv_commit, struct_size, 0);
FIELD(soq_kv_commit, n_positions, 4);
FIELD(soq_kv_commit, end_of_prompt, 8);
FIELD(soq_kv_commit, max_ranges, 12);

SIZE(soq_kv_head, 40);
FIELD(soq_kv_head, n, 0);
FIELD(soq_kv_head, n_keep, 4);
FIELD(soq_kv_head, positions, 8);
FIELD(soq_kv_head, mass, 16);
FIELD(soq_kv_head, keys, 24);
FIELD(soq_kv_head, keep, 32);

SIZE(soq_kv_selection, 64);
FIELD(soq_kv_selection, struct_size, 0);
FIELD(soq_kv_selection, layer, 4);
FIELD(soq_kv_selection, n_layers, 8);
FIELD(soq_kv_selection, n_heads, 12);
FIELD(soq_kv_selection, head_dim, 16);
FIELD(soq_kv_selection, group_heads, 20);
FIELD(soq_kv_selection, n_positions, 24);
FIELD(soq_kv_selection, end_of_prompt, 28);
FIELD(soq_kv_selection, n_prompt, 32);
FIELD(soq_kv_selection, n_queries, 36);
FIELD(soq_kv_selection, head_stride, 40);
FIELD(soq_kv_selection, heads, 48);
FIELD(soq_kv_selection, scratch, 56);

SIZE(soq_kv_scratch, 16);
FIELD(soq_kv_scratch, fixed, 0);
FIELD(soq_kv_scratch, per_entry, 8);

SIZE(soq_kv_policy_ops, 88);
FIELD(soq_kv_policy_ops, struct_size, 0);
FIELD(soq_kv_policy_ops, traits, 4);
FIELD(soq_kv_policy_ops, instance_size, 8);
FIELD(soq_kv_policy_ops, init, 16);
FIELD(soq_kv_policy_ops, shutdown, 24);
FIELD(soq_kv_policy_ops, describe, 32);
FIELD(soq_kv_policy_ops, state_size, 40);
FIELD(soq_kv_policy_ops, on_commit, 48);
FIELD(soq_kv_policy_ops, select, 56);
FIELD(soq_kv_policy_ops, scratch, 64);
FIELD(soq_kv_policy_ops, budget, 80);

SIZE(soq_kv_tile, 24);
FIELD(soq_kv_tile, struct_size, 0);
FIELD(soq_kv_tile, role, 4);
FIELD(soq_kv_tile, layer, 8);
FIELD(soq_kv_tile, head, 12);
FIELD(soq_kv_tile, tokens, 16);
FIELD(soq_kv_tile, width, 20);

SIZE(soq_kv_codec_ops, 56);
FIELD(soq_kv_codec_ops, struct_size, 0);
FIELD(soq_kv_codec_ops, reserved, 4);
FIELD(soq_kv_codec_ops, instance_size, 8);
FIELD(soq_kv_codec_ops, init, 16);
FIELD(soq_kv_codec_ops, shutdown, 24);
FIELD(soq_kv_codec_ops, describe, 32);
FIELD(soq_kv_codec_ops, encode, 40);
FIELD(soq_kv_codec_ops, decode, 48);
VALUE(SOQ_FORMAT_PLAIN, 1);
VALUE(SOQ_FORMAT_AFFINE, 2);
VALUE(SOQ_FORMAT_CODEBOOK, 3);
VALUE(SOQ_FORMAT_OPAQUE, 4);
VALUE(SOQ_PLANE_KEY, 1);
VALUE(SOQ_PLANE_VALUE, 2);
VALUE(SOQ_PLANE_LATENT, 3);
VALUE(SOQ_PLANE_INDEX, 4);
VALUE(SOQ_GROUP_FULL, 1);
VALUE(SOQ_GROUP_WINDOW, 2);
VALUE(SOQ_GROUP_LATENT, 3);
VALUE(SOQ_GROUP_INDEXED, 4);
VALUE(SOQ_GROUP_RECURRENT, 5);
VALUE(SOQ_NEED_SELECTION, 1);
VALUE(SOQ_NEED_MASS, 2);
VALUE(SOQ_NEED_KEYS, 4);
VALUE(SOQ_NEED_LAYER_BUDGETS, 8);
VALUE(SOQ_NEED_HEAD_BUDGETS, 16);
VALUE(SOQ_POLICY_NO_CHUNKS, 1);
VALUE(SOQ_POLICY_NO_PREFIX_HITS, 2);
VALUE(SOQ_POLICY_NO_DRAFTS, 4);
VALUE(SOQ_POLICY_NO_FORK, 8);
VALUE(SOQ_POLICY_NO_SAVE, 16);

SIZE(soq_view, 32);
FIELD(soq_view, buffer, 0);
FIELD(soq_view, offset, 8);
FIELD(soq_view, rows, 16);
FIELD(soq_view, cols, 20);
FIELD(soq_view, row_stride, 24);
FIELD(soq_view, dtype, 28);

SIZE(soq_device, 216);
FIELD(soq_device, struct_size, 0);
FIELD(soq_device, index, 4);
FIELD(soq_device, name, 8);
FIELD(soq_device, id, 136);
FIELD(soq_device, memory_total, 200);
FIELD(soq_device, memory_free, 208);

SIZE(soq_backend_params, 16);
FIELD(soq_backend_params, struct_size, 0);
FIELD(soq_backend_params, device, 4);
FIELD(soq_backend_params, max_rows, 8);
FIELD(soq_backend_params, max_slots, 12);

SIZE(soq_op_desc, 60);
FIELD(soq_op_desc, struct_size, 0);
FIELD(soq_op_desc, op, 4);
FIELD(soq_op_desc, weight_dtype, 8);
FIELD(soq_op_desc, kind, 12);
FIELD(soq_op_desc, rows, 16);
FIELD(soq_op_desc, cols, 20);
FIELD(soq_op_desc, head_dim_k, 24);
FIELD(soq_op_desc, head_dim_v, 28);
FIELD(soq_op_desc, n_heads, 32);
FIELD(soq_op_desc, n_kv_heads, 36);
FIELD(soq_op_desc, key_format, 40);
FIELD(soq_op_desc, value_format, 44);
FIELD(soq_op_desc, key_dtype, 48);
FIELD(soq_op_desc, value_dtype, 52);
FIELD(soq_op_desc, flags, 56);

SIZE(soq_weight_desc, 64);
FIELD(soq_weight_desc, struct_size, 0);
FIELD(soq_weight_desc, dtype, 4);
FIELD(soq_weight_desc, name, 8);
FIELD(soq_weight_desc, data, 16);
FIELD(soq_weight_desc, bytes, 24);
FIELD(soq_weight_desc, rows, 32);
FIELD(soq_weight_desc, cols, 36);
FIELD(soq_weight_desc, uses, 40);
FIELD(soq_weight_desc, may_repack, 44);
FIELD(soq_weight_desc, shard, 48);
FIELD(soq_weight_desc, n_shards, 52);
FIELD(soq_weight_desc, shard_axis, 56);
FIELD(soq_weight_desc, reserved, 60);

SIZE(soq_weight_info, 24);
FIELD(soq_weight_info, struct_size, 0);
FIELD(soq_weight_info, flags, 4);
FIELD(soq_weight_info, weight, 8);
FIELD(soq_weight_info, bytes, 16);

SIZE(soq_memory_ops, 56);
FIELD(soq_memory_ops, struct_size, 0);
FIELD(soq_memory_ops, reserved, 4);
FIELD(soq_memory_ops, buffer_alloc, 8);
FIELD(soq_memory_ops, buffer_free, 16);
FIELD(soq_memory_ops, buffer_write, 24);
FIELD(soq_memory_ops, buffer_read, 32);
FIELD(soq_memory_ops, weight_prepare, 40);
FIELD(soq_memory_ops, weight_free, 48);

SIZE(soq_matmul_args, 88);
FIELD(soq_matmul_args, struct_size, 0);
FIELD(soq_matmul_args, accumulate, 4);
FIELD(soq_matmul_args, weight, 8);
FIELD(soq_matmul_args, bias, 16);
FIELD(soq_matmul_args, x, 24);
FIELD(soq_matmul_args, y, 56);

SIZE(soq_matmul_ops, 16);
FIELD(soq_matmul_ops, struct_size, 0);
FIELD(soq_matmul_ops, reserved, 4);
FIELD(soq_matmul_ops, matmul, 8);

SIZE(soq_embed_args, 48);
FIELD(soq_embed_args, struct_size, 0);
FIELD(soq_embed_args, scale, 4);
FIELD(soq_embed_args, weight, 8);
FIELD(soq_embed_args, y, 16);

SIZE(soq_norm_args, 96);
FIELD(soq_norm_args, struct_size, 0);
FIELD(soq_norm_args, kind, 4);
FIELD(soq_norm_args, width, 8);
FIELD(soq_norm_args, eps, 12);
FIELD(soq_norm_args, weight, 16);
FIELD(soq_norm_args, bias, 24);
FIELD(soq_norm_args, x, 32);
FIELD(soq_norm_args, y, 64);

SIZE(soq_rope_table_args, 72);
FIELD(soq_rope_table_args, struct_size, 0);
FIELD(soq_rope_table_args, mscale, 4);
FIELD(soq_rope_table_args, inv_freq, 8);
FIELD(soq_rope_table_args, table, 40);

SIZE(soq_rope_args, 80);
FIELD(soq_rope_args, struct_size, 0);
FIELD(soq_rope_args, kind, 4);
FIELD(soq_rope_args, n_heads, 8);
FIELD(soq_rope_args, head_dim, 12);
FIELD(soq_rope_args, x, 16);
FIELD(soq_rope_args, table, 48);

SIZE(soq_activation_args, 104);
FIELD(soq_activation_args, struct_size, 0);
FIELD(soq_activation_args, kind, 4);
FIELD(soq_activation_args, gate, 8);
FIELD(soq_activation_args, up, 40);
FIELD(soq_activation_args, y, 72);

SIZE(soq_add_args, 104);
FIELD(soq_add_args, struct_size, 0);
FIELD(soq_add_args, reserved, 4);
FIELD(soq_add_args, a, 8);
FIELD(soq_add_args, b, 40);
FIELD(soq_add_args, y, 72);

SIZE(soq_scale_args, 48);
FIELD(soq_scale_args, struct_size, 0);
FIELD(soq_scale_args, scale, 4);
FIELD(soq_scale_args, cap, 8);
FIELD(soq_scale_args, reserved, 12);
FIELD(soq_scale_args, x, 16);

SIZE(soq_gather_args, 72);
FIELD(soq_gather_args, struct_size, 0);
FIELD(soq_gather_args, reserved, 4);
FIELD(soq_gather_args, x, 8);
FIELD(soq_gather_args, y, 40);

SIZE(soq_elementwise_ops, 72);
FIELD(soq_elementwise_ops, struct_size, 0);
FIELD(soq_elementwise_ops, reserved, 4);
FIELD(soq_elementwise_ops, embed, 8);
FIELD(soq_elementwise_ops, norm, 16);
FIELD(soq_elementwise_ops, rope_table, 24);
FIELD(soq_elementwise_ops, rope, 32);
FIELD(soq_elementwise_ops, activation, 40);
FIELD(soq_elementwise_ops, add, 48);
FIELD(soq_elementwise_ops, scale, 56);
FIELD(soq_elementwise_ops, gather, 64);

SIZE(soq_kv_append_args, 80);
FIELD(soq_kv_append_args, struct_size, 0);
FIELD(soq_kv_append_args, layer, 4);
FIELD(soq_kv_append_args, group, 8);
FIELD(soq_kv_append_args, k, 16);
FIELD(soq_kv_append_args, v, 48);

SIZE(soq_attention_args, 184);
FIELD(soq_attention_args, struct_size, 0);
FIELD(soq_attention_args, layer, 4);
FIELD(soq_attention_args, group, 8);
FIELD(soq_attention_args, n_heads, 16);
FIELD(soq_attention_args, n_kv_heads, 20);
FIELD(soq_attention_args, head_dim_k, 24);
FIELD(soq_attention_args, head_dim_v, 28);
FIELD(soq_attention_args, scale, 32);
FIELD(soq_attention_args, softcap, 36);
FIELD(soq_attention_args, window, 40);
FIELD(soq_attention_args, sinks, 44);
FIELD(soq_attention_args, sink_logits, 48);
FIELD(soq_attention_args, inv_freq, 56);
FIELD(soq_attention_args, rope_kind, 88);
FIELD(soq_attention_args, n_rot, 92);
FIELD(soq_attention_args, q, 96);
FIELD(soq_attention_args, out, 128);
FIELD(soq_attention_args, mass, 160);
FIELD(soq_attention_args, mass_offset, 168);
FIELD(soq_attention_args, mass_stride, 176);
FIELD(soq_attention_args, reserved, 180);

SIZE(soq_kv_gather_args, 56);
FIELD(soq_kv_gather_args, struct_size, 0);
FIELD(soq_kv_gather_args, n_keep, 4);
FIELD(soq_kv_gather_args, group, 8);
FIELD(soq_kv_gather_args, src, 16);
FIELD(soq_kv_gather_args, dst, 24);
FIELD(soq_kv_gather_args, n_src, 32);
FIELD(soq_kv_gather_args, n_dst, 36);
FIELD(soq_kv_gather_args, dst_first, 40);
FIELD(soq_kv_gather_args, reserved, 44);
FIELD(soq_kv_gather_args, keep, 48);

SIZE(soq_attention_ops, 56);
FIELD(soq_attention_ops, struct_size, 0);
FIELD(soq_attention_ops, reserved, 4);
FIELD(soq_attention_ops, group_create, 8);
FIELD(soq_attention_ops, group_free, 16);
FIELD(soq_attention_ops, group_slab, 24);
FIELD(soq_attention_ops, kv_append, 32);
FIELD(soq_attention_ops, attention, 40);
FIELD(soq_attention_ops, kv_gather, 48);

SIZE(soq_backend_ops, 104);
FIELD(soq_backend_ops, struct_size, 0);
FIELD(soq_backend_ops, flags, 4);
FIELD(soq_backend_ops, domain, 8);
FIELD(soq_backend_ops, instance_size, 16);
FIELD(soq_backend_ops, devices, 24);
FIELD(soq_backend_ops, init, 32);
FIELD(soq_backend_ops, shutdown, 40);
FIELD(soq_backend_ops, supports, 48);
FIELD(soq_backend_ops, begin, 56);
FIELD(soq_backend_ops, end, 64);
FIELD(soq_backend_ops, memory, 72);
FIELD(soq_backend_ops, matmul, 80);
FIELD(soq_backend_ops, attention, 88);
FIELD(soq_backend_ops, elementwise, 96);
VALUE(SOQ_OP_MATMUL, 1);
VALUE(SOQ_OP_EMBED, 2);
VALUE(SOQ_OP_NORM, 3);
VALUE(SOQ_OP_ROPE_TABLE, 4);
VALUE(SOQ_OP_ROPE, 5);
VALUE(SOQ_OP_ACTIVATION, 6);
VALUE(SOQ_OP_ADD, 7);
VALUE(SOQ_OP_SCALE, 8);
VALUE(SOQ_OP_GATHER, 9);
VALUE(SOQ_OP_ATTENTION, 10);
VALUE(SOQ_OP_KV_APPEND, 11);
VALUE(SOQ_OP_KV_GATHER, 12);
VALUE(SOQ_OPDESC_TREE, 1);
VALUE(SOQ_OPDESC_SOFTCAP, 2);
VALUE(SOQ_OPDESC_WINDOW, 4);
VALUE(SOQ_OPDESC_MASS, 8);
VALUE(SOQ_OPDESC_SEGMENTS, 16);
VALUE(SOQ_OPDESC_ROTATE, 32);
VALUE(SOQ_USE_MATMUL, 1);
VALUE(SOQ_USE_EMBED, 2);
VALUE(SOQ_USE_VECTOR, 4);
VALUE(SOQ_WEIGHT_KEEPS_SOURCE, 1);
VALUE(SOQ_NORM_RMS, 1);
VALUE(SOQ_NORM_LAYER, 2);
VALUE(SOQ_ROPE_INTERLEAVED, 1);
VALUE(SOQ_ROPE_HALF, 2);
VALUE(SOQ_ACT_SILU, 1);
VALUE(SOQ_ACT_GELU_TANH, 2);
VALUE(SOQ_ACT_GELU_ERF, 3);
VALUE(SOQ_ACT_RELU, 4);
VALUE(SOQ_BACKEND_BATCH_INVARIANT, 1);

SIZE(soq_logit_bias, 8);
FIELD(soq_logit_bias, token, 0);
FIELD(soq_logit_bias, bias, 4);

SIZE(soq_sampling, 64);
FIELD(soq_sampling, struct_size, 0);
FIELD(soq_sampling, top_k, 4);
FIELD(soq_sampling, temperature, 8);
FIELD(soq_sampling, top_p, 12);
FIELD(soq_sampling, min_p, 16);
FIELD(soq_sampling, repeat_penalty, 20);
FIELD(soq_sampling, presence_penalty, 24);
FIELD(soq_sampling, frequency_penalty, 28);
FIELD(soq_sampling, repeat_last_n, 32);
FIELD(soq_sampling, seed, 40);
FIELD(soq_sampling, n_bias, 48);
FIELD(soq_sampling, bias_stride, 52);
FIELD(soq_sampling, bias, 56);

SIZE(soq_sampler_row, 48);
FIELD(soq_sampler_row, struct_size, 0);
FIELD(soq_sampler_row, n_vocab, 4);
FIELD(soq_sampler_row, logits, 8);
FIELD(soq_sampler_row, scratch, 16);
FIELD(soq_sampler_row, mask, 24);
FIELD(soq_sampler_row, history, 32);
FIELD(soq_sampler_row, n_history, 40);
FIELD(soq_sampler_row, position, 44);

SIZE(soq_sampled, 16);
FIELD(soq_sampled, struct_size, 0);
FIELD(soq_sampled, token, 4);
FIELD(soq_sampled, logprob, 8);
FIELD(soq_sampled, n_candidates, 12);

SIZE(soq_sampler_ops, 64);
FIELD(soq_sampler_ops, struct_size, 0);
FIELD(soq_sampler_ops, reserved, 4);
FIELD(soq_sampler_ops, instance_size, 8);
FIELD(soq_sampler_ops, init, 16);
FIELD(soq_sampler_ops, shutdown, 24);
FIELD(soq_sampler_ops, defaults, 32);
FIELD(soq_sampler_ops, check, 40);
FIELD(soq_sampler_ops, state_size, 48);
FIELD(soq_sampler_ops, sample, 56);

SIZE(soq_role_entry, 40);
FIELD(soq_role_entry, struct_size, 0);
FIELD(soq_role_entry, role, 4);
FIELD(soq_role_entry, minor, 8);
FIELD(soq_role_entry, min_minor, 12);
FIELD(soq_role_entry, ops, 16);
FIELD(soq_role_entry, options, 24);
FIELD(soq_role_entry, n_options, 32);
FIELD(soq_role_entry, option_stride, 36);

SIZE(soq_plugin, 64);
FIELD(soq_plugin, struct_size, 0);
FIELD(soq_plugin, abi_major, 4);
FIELD(soq_plugin, name, 8);
FIELD(soq_plugin, variant, 16);
FIELD(soq_plugin, version, 24);
FIELD(soq_plugin, summary, 32);
FIELD(soq_plugin, licence, 40);
FIELD(soq_plugin, n_roles, 48);
FIELD(soq_plugin, role_stride, 52);
FIELD(soq_plugin, roles, 56);
VALUE(SOQ_ROLE_BACKEND, 1);
VALUE(SOQ_ROLE_KV_POLICY, 2);
VALUE(SOQ_ROLE_KV_CODEC, 3);
VALUE(SOQ_ROLE_SAMPLER, 4);
VALUE(SOQ_ROLE_KV_STORE, 5);
VALUE(SOQ_ROLE_DRAFTER, 6);
VALUE(SOQ_ROLE_CONSTRAINT, 7);
VALUE(SOQ_ROLE_SEARCH, 8);
VALUE(SOQ_ROLE_COMM, 9);
VALUE(SOQ_BACKEND_MINOR, 1);
VALUE(SOQ_KV_POLICY_MINOR, 1);
VALUE(SOQ_KV_CODEC_MINOR, 1);
VALUE(SOQ_SAMPLER_MINOR, 1);
VALUE(SOQ_ABI_MAJOR, 0);

SIZE(soq_runtime_params, 48);
FIELD(soq_runtime_params, struct_size, 0);
FIELD(soq_runtime_params, reserved, 4);
FIELD(soq_runtime_params, config, 8);
FIELD(soq_runtime_params, plugin_dirs, 16);
FIELD(soq_runtime_params, settings, 24);
FIELD(soq_runtime_params, log, 32);
FIELD(soq_runtime_params, log_ctx, 40);

SIZE(soq_model_params, 24);
FIELD(soq_model_params, struct_size, 0);
FIELD(soq_model_params, reserved, 4);
FIELD(soq_model_params, progress, 8);
FIELD(soq_model_params, progress_ctx, 16);

SIZE(soq_model_info, 96);
FIELD(soq_model_info, struct_size, 0);
FIELD(soq_model_info, n_vocab, 4);
FIELD(soq_model_info, n_layers, 8);
FIELD(soq_model_info, context, 12);
FIELD(soq_model_info, n_parameters, 16);
FIELD(soq_model_info, weight_bytes, 24);
FIELD(soq_model_info, kv_limit, 32);
FIELD(soq_model_info, kv_used, 40);
FIELD(soq_model_info, kv_peak, 48);
FIELD(soq_model_info, family, 56);
FIELD(soq_model_info, backend, 64);
FIELD(soq_model_info, has_template, 72);
FIELD(soq_model_info, has_vocabulary, 76);
FIELD(soq_model_info, kv_evicted, 80);
FIELD(soq_model_info, kv_freed, 88);

SIZE(soq_message, 16);
FIELD(soq_message, role, 0);
FIELD(soq_message, content, 8);

SIZE(soq_event, 32);
FIELD(soq_event, struct_size, 0);
FIELD(soq_event, token, 4);
FIELD(soq_event, logprob, 8);
FIELD(soq_event, index, 12);
FIELD(soq_event, text, 16);
FIELD(soq_event, text_size, 24);

SIZE(soq_request, 88);
FIELD(soq_request, struct_size, 0);
FIELD(soq_request, n_messages, 4);
FIELD(soq_request, messages, 8);
FIELD(soq_request, prompt, 16);
FIELD(soq_request, ids, 24);
FIELD(soq_request, n_ids, 32);
FIELD(soq_request, message_stride, 40);
FIELD(soq_request, reserved, 44);
FIELD(soq_request, max_tokens, 48);
FIELD(soq_request, ignore_eog, 52);
FIELD(soq_request, sampling, 56);
FIELD(soq_request, stop, 64);
FIELD(soq_request, on_event, 72);
FIELD(soq_request, ctx, 80);

SIZE(soq_result, 80);
FIELD(soq_result, struct_size, 0);
FIELD(soq_result, reason, 4);
FIELD(soq_result, prompt_tokens, 8);
FIELD(soq_result, cached_tokens, 12);
FIELD(soq_result, generated_tokens, 16);
FIELD(soq_result, reserved, 20);
FIELD(soq_result, ttft_s, 24);
FIELD(soq_result, prefill_s, 32);
FIELD(soq_result, decode_s, 40);
FIELD(soq_result, itl_s, 48);
FIELD(soq_result, kv_bytes, 56);
FIELD(soq_result, kv_evicted, 64);
FIELD(soq_result, kv_freed, 72);
VALUE(SOQ_REASON_EOG, 1);
VALUE(SOQ_REASON_STOP, 2);
VALUE(SOQ_REASON_LENGTH, 3);
VALUE(SOQ_REASON_CANCELLED, 4);
VALUE(SOQ_TOKENIZE_BOS, 1);
VALUE(SOQ_TOKENIZE_SPECIAL, 2);
