# SPDX-License-Identifier: Apache-2.0
# Written by bindings/generate.py from include/megadp.h; not to be edited.

const FUNCTIONS = (
    :mdp_version,
    :mdp_status_name,
    :mdp_last_error,
    :mdp_last_error_info,
    :mdp_info,
    :mdp_log_set,
    :mdp_unique_id_create,
    :mdp_comm_create,
    :mdp_comm_split,
    :mdp_comm_rank,
    :mdp_comm_size,
    :mdp_comm_world_rank,
    :mdp_comm_error_info,
    :mdp_comm_event_fd,
    :mdp_comm_abort,
    :mdp_comm_destroy,
    :mdp_all_reduce,
    :mdp_reduce_scatter,
    :mdp_all_gather,
    :mdp_all_to_all,
    :mdp_broadcast,
    :mdp_barrier,
    :mdp_reduce_scatter_v,
    :mdp_all_gather_v,
    :mdp_all_to_all_v,
    :mdp_send,
    :mdp_recv,
    :mdp_send_recv,
    :mdp_grid_create,
    :mdp_grid_coords,
    :mdp_grid_seed,
    :mdp_grid_comm,
    :mdp_grid_destroy,
    :mdp_grid_groups_json,
    :mdp_plan,
    :mdp_plan_json,
    :mdp_buffer_register,
    :mdp_buffer_owned,
    :mdp_buffer_find,
    :mdp_buffer_counts,
    :mdp_buffer_param_view,
    :mdp_buffer_grad_view,
    :mdp_buffer_to_dlpack,
    :mdp_buffer_broadcast,
    :mdp_buffer_verify,
    :mdp_buffer_zero_grad,
    :mdp_buffer_stats,
    :mdp_buffer_bucket,
    :mdp_buffer_use_order,
    :mdp_buffer_destroy,
    :mdp_microbatch_begin,
    :mdp_param_wait,
    :mdp_param_read,
    :mdp_param_write,
    :mdp_param_changed,
    :mdp_grad_put,
    :mdp_grad_acquire,
    :mdp_grad_release,
    :mdp_grad_ready,
    :mdp_grad_skip,
    :mdp_grad_tokens,
    :mdp_grad_sync,
    :mdp_grad_norm,
    :mdp_grad_summarize,
    :mdp_grad_scale,
    :mdp_grad_owned,
    :mdp_grad_changed,
    :mdp_optimizer_create,
    :mdp_optimizer_set_param_group,
    :mdp_optimizer_set_scaler,
    :mdp_optimizer_scaler,
    :mdp_optimizer_scale,
    :mdp_optimizer_step,
    :mdp_optimizer_step_many,
    :mdp_optimizer_set_update,
    :mdp_optimizer_step_begin,
    :mdp_optimizer_step_next,
    :mdp_optimizer_step_finish,
    :mdp_optimizer_swap_average,
    :mdp_optimizer_state,
    :mdp_optimizer_steps,
    :mdp_optimizer_set_steps,
    :mdp_optimizer_info,
    :mdp_optimizer_destroy,
    :mdp_checkpoint_save,
    :mdp_checkpoint_load,
    :mdp_checkpoint_info,
    :mdp_checkpoint_data,
    :mdp_checkpoint_verify,
    :mdp_checkpoint_export,
    :mdp_request_test,
    :mdp_request_wait,
    :mdp_request_peek,
    :mdp_request_free,
    :mdp_tp_region_fwd,
    :mdp_tp_region_bwd,
    :mdp_tp_linear_create,
    :mdp_tp_linear_fwd,
    :mdp_tp_linear_bwd,
    :mdp_tp_saved_free,
    :mdp_tp_linear_destroy,
    :mdp_tp_embedding_fwd,
    :mdp_tp_embedding_bwd,
    :mdp_tp_cross_entropy_fwd,
    :mdp_tp_cross_entropy_bwd,
    :mdp_halo_create,
    :mdp_halo_start,
    :mdp_halo_finish,
    :mdp_halo_array,
    :mdp_halo_place,
    :mdp_halo_destroy,
    :mdp_conv_split,
    :mdp_cp_part,
    :mdp_cp_attention_fwd,
    :mdp_cp_attention_bwd,
)

mdp_version() =
    ccall(entries[1], UInt32, ())
mdp_status_name(status) =
    ccall(entries[2], Cstring, (mdp_status,), status)
mdp_last_error() =
    ccall(entries[3], Cstring, ())
mdp_last_error_info(out) =
    ccall(entries[4], mdp_status, (Ptr{mdp_error_info},), out)
mdp_info(json, capacity, needed) =
    ccall(entries[5], mdp_status, (Ptr{UInt8}, Csize_t, Ptr{Csize_t}), json, capacity, needed)
mdp_log_set(fn, user) =
    ccall(entries[6], mdp_status, (Ptr{Cvoid}, Ptr{Cvoid}), fn, user)
mdp_unique_id_create(out) =
    ccall(entries[7], mdp_status, (Ptr{mdp_unique_id},), out)
mdp_comm_create(config, id, out) =
    @waiting(entries[8], mdp_status, (Ptr{mdp_comm_config}, Ptr{mdp_unique_id}, Ptr{Ptr{mdp_comm}}), config, id, out)
mdp_comm_split(comm, color, key, out) =
    @waiting(entries[9], mdp_status, (Ptr{mdp_comm}, Int32, Int32, Ptr{Ptr{mdp_comm}}), comm, color, key, out)
mdp_comm_rank(comm) =
    ccall(entries[10], Int32, (Ptr{mdp_comm},), comm)
mdp_comm_size(comm) =
    ccall(entries[11], Int32, (Ptr{mdp_comm},), comm)
mdp_comm_world_rank(comm, rank) =
    ccall(entries[12], Int32, (Ptr{mdp_comm}, Int32), comm, rank)
mdp_comm_error_info(comm, out) =
    ccall(entries[13], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_error_info}), comm, out)
mdp_comm_event_fd(comm, out) =
    ccall(entries[14], mdp_status, (Ptr{mdp_comm}, Ptr{Int32}), comm, out)
mdp_comm_abort(comm) =
    ccall(entries[15], mdp_status, (Ptr{mdp_comm},), comm)
mdp_comm_destroy(comm) =
    ccall(entries[16], Cvoid, (Ptr{mdp_comm},), comm)
mdp_all_reduce(comm, from, to, op, stream, out) =
    @waiting(entries[17], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, mdp_op, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, op, stream, out)
mdp_reduce_scatter(comm, from, to, op, stream, out) =
    @waiting(entries[18], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, mdp_op, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, op, stream, out)
mdp_all_gather(comm, from, to, stream, out) =
    @waiting(entries[19], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, stream, out)
mdp_all_to_all(comm, from, to, stream, out) =
    @waiting(entries[20], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, stream, out)
mdp_broadcast(comm, tensor, root, stream, out) =
    @waiting(entries[21], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Int32, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, tensor, root, stream, out)
mdp_barrier(comm, out) =
    @waiting(entries[22], mdp_status, (Ptr{mdp_comm}, Ptr{Ptr{mdp_request}}), comm, out)
mdp_reduce_scatter_v(comm, from, to, counts, op, stream, out) =
    @waiting(entries[23], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{UInt64}, mdp_op, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, counts, op, stream, out)
mdp_all_gather_v(comm, from, to, counts, stream, out) =
    @waiting(entries[24], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{UInt64}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, counts, stream, out)
mdp_all_to_all_v(comm, from, from_counts, to, to_counts, stream, out) =
    @waiting(entries[25], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{UInt64}, Ptr{mdp_tensor}, Ptr{UInt64}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, from_counts, to, to_counts, stream, out)
mdp_send(comm, from, rank, stream, out) =
    @waiting(entries[26], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Int32, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, rank, stream, out)
mdp_recv(comm, to, rank, stream, out) =
    @waiting(entries[27], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Int32, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, to, rank, stream, out)
mdp_send_recv(comm, from, to_rank, to, from_rank, stream, out) =
    @waiting(entries[28], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Int32, Ptr{mdp_tensor}, Int32, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to_rank, to, from_rank, stream, out)
mdp_grid_create(world, config, out) =
    @waiting(entries[29], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_grid_config}, Ptr{Ptr{mdp_grid}}), world, config, out)
mdp_grid_coords(grid, axes, index, size) =
    ccall(entries[30], mdp_status, (Ptr{mdp_grid}, UInt32, Ptr{Int32}, Ptr{Int32}), grid, axes, index, size)
mdp_grid_seed(grid, seed, random, out) =
    ccall(entries[31], mdp_status, (Ptr{mdp_grid}, UInt64, mdp_random, Ptr{UInt64}), grid, seed, random, out)
mdp_grid_comm(grid, axes, out) =
    @waiting(entries[32], mdp_status, (Ptr{mdp_grid}, UInt32, Ptr{Ptr{mdp_comm}}), grid, axes, out)
mdp_grid_destroy(grid) =
    ccall(entries[33], Cvoid, (Ptr{mdp_grid},), grid)
mdp_grid_groups_json(grid, size, axes, json, capacity, needed) =
    ccall(entries[34], mdp_status, (Ptr{mdp_grid_config}, Int32, UInt32, Ptr{UInt8}, Csize_t, Ptr{Csize_t}), grid, size, axes, json, capacity, needed)
mdp_plan(grid, size, rank, config, params, count, optimizer, out) =
    ccall(entries[35], mdp_status, (Ptr{mdp_grid_config}, Int32, Int32, Ptr{mdp_buffer_config}, Ptr{mdp_param}, Csize_t, Ptr{mdp_optimizer_config}, Ptr{mdp_plan_report}), grid, size, rank, config, params, count, optimizer, out)
mdp_plan_json(grid, size, config, params, count, optimizer, json, capacity, needed) =
    ccall(entries[36], mdp_status, (Ptr{mdp_grid_config}, Int32, Ptr{mdp_buffer_config}, Ptr{mdp_param}, Csize_t, Ptr{mdp_optimizer_config}, Ptr{UInt8}, Csize_t, Ptr{Csize_t}), grid, size, config, params, count, optimizer, json, capacity, needed)
mdp_buffer_register(comm, grid, config, params, count, out) =
    @waiting(entries[37], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_grid}, Ptr{mdp_buffer_config}, Ptr{mdp_param}, Csize_t, Ptr{Ptr{mdp_buffer}}), comm, grid, config, params, count, out)
mdp_buffer_owned(buffer, ranges, capacity, needed) =
    ccall(entries[38], mdp_status, (Ptr{mdp_buffer}, Ptr{mdp_range}, Csize_t, Ptr{Csize_t}), buffer, ranges, capacity, needed)
mdp_buffer_find(buffer, name, param) =
    ccall(entries[39], mdp_status, (Ptr{mdp_buffer}, Cstring, Ptr{Csize_t}), buffer, name, param)
mdp_buffer_counts(buffer, params, buckets) =
    ccall(entries[40], mdp_status, (Ptr{mdp_buffer}, Ptr{Csize_t}, Ptr{Csize_t}), buffer, params, buckets)
mdp_buffer_param_view(buffer, param, out) =
    ccall(entries[41], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}), buffer, param, out)
mdp_buffer_grad_view(buffer, param, out) =
    ccall(entries[42], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}), buffer, param, out)
mdp_buffer_to_dlpack(owner, view, out) =
    ccall(entries[43], mdp_status, (Ptr{mdp_buffer}, Ptr{mdp_tensor}, Ptr{Ptr{DLManagedTensorVersioned}}), owner, view, out)
mdp_buffer_broadcast(buffer, root, out) =
    @waiting(entries[44], mdp_status, (Ptr{mdp_buffer}, Int32, Ptr{Ptr{mdp_request}}), buffer, root, out)
mdp_buffer_verify(buffer) =
    @waiting(entries[45], mdp_status, (Ptr{mdp_buffer},), buffer)
mdp_buffer_zero_grad(buffer, stream) =
    @waiting(entries[46], mdp_status, (Ptr{mdp_buffer}, Ptr{Cvoid}), buffer, stream)
mdp_buffer_stats(buffer, out) =
    ccall(entries[47], mdp_status, (Ptr{mdp_buffer}, Ptr{mdp_stats_report}), buffer, out)
mdp_buffer_bucket(buffer, bucket, out) =
    ccall(entries[48], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_bucket_report}), buffer, bucket, out)
mdp_buffer_use_order(buffer, use_order, count) =
    @waiting(entries[49], mdp_status, (Ptr{mdp_buffer}, Ptr{Int32}, Csize_t), buffer, use_order, count)
mdp_buffer_destroy(buffer) =
    ccall(entries[50], Cvoid, (Ptr{mdp_buffer},), buffer)
mdp_microbatch_begin(buffer, is_last) =
    @waiting(entries[51], mdp_status, (Ptr{mdp_buffer}, Int32), buffer, is_last)
mdp_param_wait(buffer, param, consumer) =
    @waiting(entries[52], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{Cvoid}), buffer, param, consumer)
mdp_param_read(buffer, param, to, stream) =
    @waiting(entries[53], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}, Ptr{Cvoid}), buffer, param, to, stream)
mdp_param_write(buffer, param, from, stream) =
    @waiting(entries[54], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}, Ptr{Cvoid}), buffer, param, from, stream)
mdp_param_changed(buffer) =
    ccall(entries[55], mdp_status, (Ptr{mdp_buffer},), buffer)
mdp_grad_put(buffer, param, grad, flags, producer) =
    @waiting(entries[56], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}, UInt64, Ptr{Cvoid}), buffer, param, grad, flags, producer)
mdp_grad_acquire(buffer, param, out, first, producer) =
    @waiting(entries[57], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}, Ptr{Int32}, Ptr{Cvoid}), buffer, param, out, first, producer)
mdp_grad_release(buffer, param) =
    ccall(entries[58], mdp_status, (Ptr{mdp_buffer}, Csize_t), buffer, param)
mdp_grad_ready(buffer, param, producer) =
    ccall(entries[59], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{Cvoid}), buffer, param, producer)
mdp_grad_skip(buffer, param) =
    ccall(entries[60], mdp_status, (Ptr{mdp_buffer}, Csize_t), buffer, param)
mdp_grad_tokens(buffer, count) =
    @waiting(entries[61], mdp_status, (Ptr{mdp_buffer}, Cdouble), buffer, count)
mdp_grad_sync(buffer, consumer, out) =
    @waiting(entries[62], mdp_status, (Ptr{mdp_buffer}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), buffer, consumer, out)
mdp_grad_norm(buffer, params, count, norm) =
    @waiting(entries[63], mdp_status, (Ptr{mdp_buffer}, Ptr{Csize_t}, Csize_t, Ptr{Cdouble}), buffer, params, count, norm)
mdp_grad_summarize(buffer, sets, count, out) =
    @waiting(entries[64], mdp_status, (Ptr{mdp_buffer}, Ptr{Csize_t}, Csize_t, Ptr{mdp_grad_summary}), buffer, sets, count, out)
mdp_grad_scale(buffer, params, count, factor, stream) =
    ccall(entries[65], mdp_status, (Ptr{mdp_buffer}, Ptr{Csize_t}, Csize_t, Cdouble, Ptr{Cvoid}), buffer, params, count, factor, stream)
mdp_grad_owned(buffer, param, out) =
    ccall(entries[66], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}), buffer, param, out)
mdp_grad_changed(buffer, producer) =
    ccall(entries[67], mdp_status, (Ptr{mdp_buffer}, Ptr{Cvoid}), buffer, producer)
mdp_optimizer_create(buffer, config, out) =
    @waiting(entries[68], mdp_status, (Ptr{mdp_buffer}, Ptr{mdp_optimizer_config}, Ptr{Ptr{mdp_optimizer}}), buffer, config, out)
mdp_optimizer_set_param_group(optimizer, group, value) =
    ccall(entries[69], mdp_status, (Ptr{mdp_optimizer}, Csize_t, Ptr{mdp_param_group}), optimizer, group, value)
mdp_optimizer_set_scaler(optimizer, scaler) =
    @waiting(entries[70], mdp_status, (Ptr{mdp_optimizer}, Ptr{mdp_scaler}), optimizer, scaler)
mdp_optimizer_scaler(optimizer, out) =
    @waiting(entries[71], mdp_status, (Ptr{mdp_optimizer}, Ptr{mdp_scaler}), optimizer, out)
mdp_optimizer_scale(optimizer, out) =
    ccall(entries[72], mdp_status, (Ptr{mdp_optimizer}, Ptr{mdp_tensor}), optimizer, out)
mdp_optimizer_step(optimizer, config, report, out) =
    @waiting(entries[73], mdp_status, (Ptr{mdp_optimizer}, Ptr{mdp_step_config}, Ptr{mdp_step_report}, Ptr{Ptr{mdp_request}}), optimizer, config, report, out)
mdp_optimizer_step_many(optimizers, count, config, report, out) =
    @waiting(entries[74], mdp_status, (Ptr{Ptr{mdp_optimizer}}, Csize_t, Ptr{mdp_step_config}, Ptr{mdp_step_report}, Ptr{Ptr{mdp_request}}), optimizers, count, config, report, out)
mdp_optimizer_set_update(optimizer, fn, user) =
    ccall(entries[75], mdp_status, (Ptr{mdp_optimizer}, Ptr{Cvoid}, Ptr{Cvoid}), optimizer, fn, user)
mdp_optimizer_step_begin(optimizers, count, config) =
    @waiting(entries[76], mdp_status, (Ptr{Ptr{mdp_optimizer}}, Csize_t, Ptr{mdp_step_config}), optimizers, count, config)
mdp_optimizer_step_next(optimizer, out) =
    @waiting(entries[77], mdp_status, (Ptr{mdp_optimizer}, Ptr{mdp_update}), optimizer, out)
mdp_optimizer_step_finish(optimizer, failed, report, out) =
    @waiting(entries[78], mdp_status, (Ptr{mdp_optimizer}, Int32, Ptr{mdp_step_report}, Ptr{Ptr{mdp_request}}), optimizer, failed, report, out)
mdp_optimizer_swap_average(optimizer, stream, out) =
    @waiting(entries[79], mdp_status, (Ptr{mdp_optimizer}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), optimizer, stream, out)
mdp_optimizer_state(optimizer, param, name, out) =
    @waiting(entries[80], mdp_status, (Ptr{mdp_optimizer}, Csize_t, Cstring, Ptr{mdp_tensor}), optimizer, param, name, out)
mdp_optimizer_steps(optimizer, param, steps) =
    @waiting(entries[81], mdp_status, (Ptr{mdp_optimizer}, Csize_t, Ptr{UInt64}), optimizer, param, steps)
mdp_optimizer_set_steps(optimizer, taken, steps, count) =
    @waiting(entries[82], mdp_status, (Ptr{mdp_optimizer}, UInt64, Ptr{UInt64}, Csize_t), optimizer, taken, steps, count)
mdp_optimizer_info(optimizer, json, capacity, needed) =
    @waiting(entries[83], mdp_status, (Ptr{mdp_optimizer}, Ptr{UInt8}, Csize_t, Ptr{Csize_t}), optimizer, json, capacity, needed)
mdp_optimizer_destroy(optimizer) =
    ccall(entries[84], Cvoid, (Ptr{mdp_optimizer},), optimizer)
mdp_checkpoint_save(config, out) =
    @waiting(entries[85], mdp_status, (Ptr{mdp_checkpoint_config}, Ptr{Ptr{mdp_request}}), config, out)
mdp_checkpoint_load(config) =
    @waiting(entries[86], mdp_status, (Ptr{mdp_checkpoint_config},), config)
mdp_checkpoint_info(directory, json, capacity, needed) =
    @waiting(entries[87], mdp_status, (Cstring, Ptr{UInt8}, Csize_t, Ptr{Csize_t}), directory, json, capacity, needed)
mdp_checkpoint_data(directory, rank, data, capacity, needed) =
    @waiting(entries[88], mdp_status, (Cstring, Int32, Ptr{Cvoid}, Csize_t, Ptr{Csize_t}), directory, rank, data, capacity, needed)
mdp_checkpoint_verify(directory, damage, capacity, needed) =
    @waiting(entries[89], mdp_status, (Cstring, Ptr{UInt8}, Csize_t, Ptr{Csize_t}), directory, damage, capacity, needed)
mdp_checkpoint_export(directory, path, most_bytes) =
    @waiting(entries[90], mdp_status, (Cstring, Cstring, UInt64), directory, path, most_bytes)
mdp_request_test(request) =
    ccall(entries[91], mdp_status, (Ptr{mdp_request},), request)
mdp_request_wait(request, timeout_ns) =
    @waiting(entries[92], mdp_status, (Ptr{mdp_request}, UInt64), request, timeout_ns)
mdp_request_peek(request) =
    ccall(entries[93], mdp_status, (Ptr{mdp_request},), request)
mdp_request_free(request) =
    ccall(entries[94], Cvoid, (Ptr{mdp_request},), request)
mdp_tp_region_fwd(comm, config, from, to, stream) =
    @waiting(entries[95], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tp_region_config}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}), comm, config, from, to, stream)
mdp_tp_region_bwd(comm, config, from, to, stream) =
    @waiting(entries[96], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tp_region_config}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}), comm, config, from, to, stream)
mdp_tp_linear_create(comm, config, out) =
    @waiting(entries[97], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tp_linear_config}, Ptr{Ptr{mdp_tp_linear}}), comm, config, out)
mdp_tp_linear_fwd(linear, input, weight, bias, output, stream, saved) =
    @waiting(entries[98], mdp_status, (Ptr{mdp_tp_linear}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}, Ptr{Ptr{mdp_tp_saved}}), linear, input, weight, bias, output, stream, saved)
mdp_tp_linear_bwd(linear, saved, input, weight, grad_output, grad_input, grad_weight, grad_bias, flags, stream) =
    @waiting(entries[99], mdp_status, (Ptr{mdp_tp_linear}, Ptr{mdp_tp_saved}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, UInt64, Ptr{Cvoid}), linear, saved, input, weight, grad_output, grad_input, grad_weight, grad_bias, flags, stream)
mdp_tp_saved_free(saved) =
    ccall(entries[100], Cvoid, (Ptr{mdp_tp_saved},), saved)
mdp_tp_linear_destroy(linear) =
    ccall(entries[101], Cvoid, (Ptr{mdp_tp_linear},), linear)
mdp_tp_embedding_fwd(comm, config, ids, weight, output, stream) =
    @waiting(entries[102], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tp_embedding_config}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}), comm, config, ids, weight, output, stream)
mdp_tp_embedding_bwd(comm, config, ids, grad_output, grad_weight, flags, stream) =
    @waiting(entries[103], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tp_embedding_config}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, UInt64, Ptr{Cvoid}), comm, config, ids, grad_output, grad_weight, flags, stream)
mdp_tp_cross_entropy_fwd(comm, config, logits, targets, losses, saved, stream) =
    @waiting(entries[104], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tp_cross_entropy_config}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}), comm, config, logits, targets, losses, saved, stream)
mdp_tp_cross_entropy_bwd(comm, config, logits, targets, saved, grad_losses, grad_logits, stream) =
    ccall(entries[105], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tp_cross_entropy_config}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}), comm, config, logits, targets, saved, grad_losses, grad_logits, stream)
mdp_halo_create(comm, config, out) =
    @waiting(entries[106], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_halo_config}, Ptr{Ptr{mdp_halo}}), comm, config, out)
mdp_halo_start(halo, fields, count, flags, stream) =
    @waiting(entries[107], mdp_status, (Ptr{mdp_halo}, Ptr{mdp_tensor}, Csize_t, UInt64, Ptr{Cvoid}), halo, fields, count, flags, stream)
mdp_halo_finish(halo, stream) =
    @waiting(entries[108], mdp_status, (Ptr{mdp_halo}, Ptr{Cvoid}), halo, stream)
mdp_halo_array(halo, index, out) =
    ccall(entries[109], mdp_status, (Ptr{mdp_halo}, UInt64, Ptr{mdp_tensor}), halo, index, out)
mdp_halo_place(halo, coords, begins, whole) =
    ccall(entries[110], mdp_status, (Ptr{mdp_halo}, Ptr{Int64}, Ptr{Int64}, Ptr{Int64}), halo, coords, begins, whole)
mdp_halo_destroy(halo) =
    ccall(entries[111], Cvoid, (Ptr{mdp_halo},), halo)
mdp_conv_split(config, parts, count, part, out) =
    ccall(entries[112], mdp_status, (Ptr{mdp_conv_config}, Ptr{Int64}, Csize_t, Int32, Ptr{mdp_conv_part}), config, parts, count, part, out)
mdp_cp_part(config, size, rank, sequence, ranges) =
    ccall(entries[113], mdp_status, (Ptr{mdp_cp_config}, Int32, Int32, Int64, Ptr{Int64}), config, size, rank, sequence, ranges)
mdp_cp_attention_fwd(comm, config, fn, user, q, k, v, out, lse, stream) =
    @waiting(entries[114], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_cp_config}, Ptr{Cvoid}, Ptr{Cvoid}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}), comm, config, fn, user, q, k, v, out, lse, stream)
mdp_cp_attention_bwd(comm, config, fn, user, q, k, v, out, lse, grad_out, grad_q, grad_k, grad_v, stream) =
    @waiting(entries[115], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_cp_config}, Ptr{Cvoid}, Ptr{Cvoid}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}), comm, config, fn, user, q, k, v, out, lse, grad_out, grad_q, grad_k, grad_v, stream)
