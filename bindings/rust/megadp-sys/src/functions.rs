// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust_functions.py.
use crate::layers::*;
use crate::structs::*;
use crate::types::*;
use core::ffi::{c_char, c_void};

unsafe extern "C" {
    pub fn mdp_version() -> u32;
    pub fn mdp_status_name(status: mdp_status) -> *const c_char;
    pub fn mdp_last_error() -> *const c_char;
    pub fn mdp_last_error_info(out: *mut mdp_error_info) -> mdp_status;
    pub fn mdp_info(json: *mut c_char, capacity: usize, needed: *mut usize) -> mdp_status;
    pub fn mdp_log_set(r#fn: mdp_log_fn, user: *mut c_void) -> mdp_status;
    pub fn mdp_unique_id_create(out: *mut mdp_unique_id) -> mdp_status;
    pub fn mdp_comm_create(config: *const mdp_comm_config, id: *const mdp_unique_id,
        out: *mut *mut mdp_comm) -> mdp_status;
    pub fn mdp_comm_split(comm: *mut mdp_comm, color: i32, key: i32, out: *mut *mut mdp_comm) -> mdp_status;
    pub fn mdp_comm_rank(comm: *const mdp_comm) -> i32;
    pub fn mdp_comm_size(comm: *const mdp_comm) -> i32;
    pub fn mdp_comm_world_rank(comm: *const mdp_comm, rank: i32) -> i32;
    pub fn mdp_comm_error_info(comm: *mut mdp_comm, out: *mut mdp_error_info) -> mdp_status;
    pub fn mdp_comm_event_fd(comm: *mut mdp_comm, out: *mut i32) -> mdp_status;
    pub fn mdp_comm_abort(comm: *mut mdp_comm) -> mdp_status;
    pub fn mdp_comm_destroy(comm: *mut mdp_comm);
    pub fn mdp_all_reduce(comm: *mut mdp_comm, from: *const mdp_tensor, to: *const mdp_tensor, op: mdp_op,
        stream: mdp_stream, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_reduce_scatter(comm: *mut mdp_comm, from: *const mdp_tensor, to: *const mdp_tensor, op: mdp_op,
        stream: mdp_stream, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_all_gather(comm: *mut mdp_comm, from: *const mdp_tensor, to: *const mdp_tensor, stream: mdp_stream,
        out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_all_to_all(comm: *mut mdp_comm, from: *const mdp_tensor, to: *const mdp_tensor, stream: mdp_stream,
        out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_broadcast(comm: *mut mdp_comm, tensor: *const mdp_tensor, root: i32, stream: mdp_stream,
        out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_barrier(comm: *mut mdp_comm, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_reduce_scatter_v(comm: *mut mdp_comm, from: *const mdp_tensor, to: *const mdp_tensor,
        counts: *const u64, op: mdp_op, stream: mdp_stream, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_all_gather_v(comm: *mut mdp_comm, from: *const mdp_tensor, to: *const mdp_tensor, counts: *const u64,
        stream: mdp_stream, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_all_to_all_v(comm: *mut mdp_comm, from: *const mdp_tensor, from_counts: *const u64,
        to: *const mdp_tensor, to_counts: *const u64, stream: mdp_stream, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_send(comm: *mut mdp_comm, from: *const mdp_tensor, rank: i32, stream: mdp_stream,
        out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_recv(comm: *mut mdp_comm, to: *const mdp_tensor, rank: i32, stream: mdp_stream,
        out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_send_recv(comm: *mut mdp_comm, from: *const mdp_tensor, to_rank: i32, to: *const mdp_tensor,
        from_rank: i32, stream: mdp_stream, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_grid_create(world: *mut mdp_comm, config: *const mdp_grid_config, out: *mut *mut mdp_grid) -> mdp_status;
    pub fn mdp_grid_coords(grid: *mut mdp_grid, axes: u32, index: *mut i32, size: *mut i32) -> mdp_status;
    pub fn mdp_grid_seed(grid: *mut mdp_grid, seed: u64, random: mdp_random, out: *mut u64) -> mdp_status;
    pub fn mdp_grid_comm(grid: *mut mdp_grid, axes: u32, out: *mut *mut mdp_comm) -> mdp_status;
    pub fn mdp_grid_destroy(grid: *mut mdp_grid);
    pub fn mdp_grid_groups_json(grid: *const mdp_grid_config, size: i32, axes: u32, json: *mut c_char, capacity: usize,
        needed: *mut usize) -> mdp_status;
    pub fn mdp_plan(grid: *const mdp_grid_config, size: i32, rank: i32, config: *const mdp_buffer_config,
        params: *const mdp_param, count: usize, optimizer: *const mdp_optimizer_config,
        out: *mut mdp_plan_report) -> mdp_status;
    pub fn mdp_plan_json(grid: *const mdp_grid_config, size: i32, config: *const mdp_buffer_config,
        params: *const mdp_param, count: usize, optimizer: *const mdp_optimizer_config, json: *mut c_char,
        capacity: usize, needed: *mut usize) -> mdp_status;
    pub fn mdp_buffer_register(comm: *mut mdp_comm, grid: *mut mdp_grid, config: *const mdp_buffer_config,
        params: *const mdp_param, count: usize, out: *mut *mut mdp_buffer) -> mdp_status;
    pub fn mdp_buffer_owned(buffer: *mut mdp_buffer, ranges: *mut mdp_range, capacity: usize,
        needed: *mut usize) -> mdp_status;
    pub fn mdp_buffer_find(buffer: *mut mdp_buffer, name: *const c_char, param: *mut usize) -> mdp_status;
    pub fn mdp_buffer_counts(buffer: *mut mdp_buffer, params: *mut usize, buckets: *mut usize) -> mdp_status;
    pub fn mdp_buffer_param_view(buffer: *mut mdp_buffer, param: usize, out: *mut mdp_tensor) -> mdp_status;
    pub fn mdp_buffer_grad_view(buffer: *mut mdp_buffer, param: usize, out: *mut mdp_tensor) -> mdp_status;
    pub fn mdp_buffer_to_dlpack(owner: *mut mdp_buffer, view: *const mdp_tensor,
        out: *mut *mut DLManagedTensorVersioned) -> mdp_status;
    pub fn mdp_buffer_broadcast(buffer: *mut mdp_buffer, root: i32, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_buffer_verify(buffer: *mut mdp_buffer) -> mdp_status;
    pub fn mdp_buffer_zero_grad(buffer: *mut mdp_buffer, stream: mdp_stream) -> mdp_status;
    pub fn mdp_buffer_stats(buffer: *mut mdp_buffer, out: *mut mdp_stats_report) -> mdp_status;
    pub fn mdp_buffer_bucket(buffer: *mut mdp_buffer, bucket: usize, out: *mut mdp_bucket_report) -> mdp_status;
    pub fn mdp_buffer_use_order(buffer: *mut mdp_buffer, use_order: *mut i32, count: usize) -> mdp_status;
    pub fn mdp_buffer_destroy(buffer: *mut mdp_buffer);
    pub fn mdp_microbatch_begin(buffer: *mut mdp_buffer, is_last: i32) -> mdp_status;
    pub fn mdp_param_wait(buffer: *mut mdp_buffer, param: usize, consumer: mdp_stream) -> mdp_status;
    pub fn mdp_param_read(buffer: *mut mdp_buffer, param: usize, to: *const mdp_tensor,
        stream: mdp_stream) -> mdp_status;
    pub fn mdp_param_write(buffer: *mut mdp_buffer, param: usize, from: *const mdp_tensor,
        stream: mdp_stream) -> mdp_status;
    pub fn mdp_param_changed(buffer: *mut mdp_buffer) -> mdp_status;
    pub fn mdp_grad_put(buffer: *mut mdp_buffer, param: usize, grad: *const mdp_tensor, flags: u64,
        producer: mdp_stream) -> mdp_status;
    pub fn mdp_grad_acquire(buffer: *mut mdp_buffer, param: usize, out: *mut mdp_tensor, first: *mut i32,
        producer: mdp_stream) -> mdp_status;
    pub fn mdp_grad_release(buffer: *mut mdp_buffer, param: usize) -> mdp_status;
    pub fn mdp_grad_ready(buffer: *mut mdp_buffer, param: usize, producer: mdp_stream) -> mdp_status;
    pub fn mdp_grad_skip(buffer: *mut mdp_buffer, param: usize) -> mdp_status;
    pub fn mdp_grad_tokens(buffer: *mut mdp_buffer, count: f64) -> mdp_status;
    pub fn mdp_grad_sync(buffer: *mut mdp_buffer, consumer: mdp_stream, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_grad_norm(buffer: *mut mdp_buffer, params: *const usize, count: usize, norm: *mut f64) -> mdp_status;
    pub fn mdp_grad_summarize(buffer: *mut mdp_buffer, sets: *const usize, count: usize,
        out: *mut mdp_grad_summary) -> mdp_status;
    pub fn mdp_grad_scale(buffer: *mut mdp_buffer, params: *const usize, count: usize, factor: f64,
        stream: mdp_stream) -> mdp_status;
    pub fn mdp_grad_owned(buffer: *mut mdp_buffer, param: usize, out: *mut mdp_tensor) -> mdp_status;
    pub fn mdp_grad_changed(buffer: *mut mdp_buffer, producer: mdp_stream) -> mdp_status;
    pub fn mdp_optimizer_create(buffer: *mut mdp_buffer, config: *const mdp_optimizer_config,
        out: *mut *mut mdp_optimizer) -> mdp_status;
    pub fn mdp_optimizer_set_param_group(optimizer: *mut mdp_optimizer, group: usize,
        value: *const mdp_param_group) -> mdp_status;
    pub fn mdp_optimizer_set_scaler(optimizer: *mut mdp_optimizer, scaler: *const mdp_scaler) -> mdp_status;
    pub fn mdp_optimizer_scaler(optimizer: *mut mdp_optimizer, out: *mut mdp_scaler) -> mdp_status;
    pub fn mdp_optimizer_scale(optimizer: *mut mdp_optimizer, out: *mut mdp_tensor) -> mdp_status;
    pub fn mdp_optimizer_step(optimizer: *mut mdp_optimizer, config: *const mdp_step_config,
        report: *mut mdp_step_report, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_optimizer_step_many(optimizers: *const *mut mdp_optimizer, count: usize, config: *const mdp_step_config,
        report: *mut mdp_step_report, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_optimizer_set_update(optimizer: *mut mdp_optimizer, r#fn: mdp_update_fn,
        user: *mut c_void) -> mdp_status;
    pub fn mdp_optimizer_step_begin(optimizers: *const *mut mdp_optimizer, count: usize,
        config: *const mdp_step_config) -> mdp_status;
    pub fn mdp_optimizer_step_next(optimizer: *mut mdp_optimizer, out: *mut mdp_update) -> mdp_status;
    pub fn mdp_optimizer_step_finish(optimizer: *mut mdp_optimizer, failed: i32, report: *mut mdp_step_report,
        out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_optimizer_swap_average(optimizer: *mut mdp_optimizer, stream: mdp_stream,
        out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_optimizer_state(optimizer: *mut mdp_optimizer, param: usize, name: *const c_char,
        out: *mut mdp_tensor) -> mdp_status;
    pub fn mdp_optimizer_steps(optimizer: *mut mdp_optimizer, param: usize, steps: *mut u64) -> mdp_status;
    pub fn mdp_optimizer_set_steps(optimizer: *mut mdp_optimizer, taken: u64, steps: *const u64,
        count: usize) -> mdp_status;
    pub fn mdp_optimizer_info(optimizer: *mut mdp_optimizer, json: *mut c_char, capacity: usize,
        needed: *mut usize) -> mdp_status;
    pub fn mdp_optimizer_destroy(optimizer: *mut mdp_optimizer);
    pub fn mdp_checkpoint_save(config: *const mdp_checkpoint_config, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_checkpoint_load(config: *const mdp_checkpoint_config) -> mdp_status;
    pub fn mdp_checkpoint_info(directory: *const c_char, json: *mut c_char, capacity: usize,
        needed: *mut usize) -> mdp_status;
    pub fn mdp_checkpoint_data(directory: *const c_char, rank: i32, data: *mut c_void, capacity: usize,
        needed: *mut usize) -> mdp_status;
    pub fn mdp_checkpoint_verify(directory: *const c_char, damage: *mut c_char, capacity: usize,
        needed: *mut usize) -> mdp_status;
    pub fn mdp_checkpoint_export(directory: *const c_char, path: *const c_char, most_bytes: u64) -> mdp_status;
    pub fn mdp_request_test(request: *mut mdp_request) -> mdp_status;
    pub fn mdp_request_wait(request: *mut mdp_request, timeout_ns: u64) -> mdp_status;
    pub fn mdp_request_peek(request: *mut mdp_request) -> mdp_status;
    pub fn mdp_request_free(request: *mut mdp_request);
    pub fn mdp_tp_region_fwd(comm: *mut mdp_comm, config: *const mdp_tp_region_config, from: *const mdp_tensor,
        to: *const mdp_tensor, stream: mdp_stream) -> mdp_status;
    pub fn mdp_tp_region_bwd(comm: *mut mdp_comm, config: *const mdp_tp_region_config, from: *const mdp_tensor,
        to: *const mdp_tensor, stream: mdp_stream) -> mdp_status;
    pub fn mdp_tp_linear_create(comm: *mut mdp_comm, config: *const mdp_tp_linear_config,
        out: *mut *mut mdp_tp_linear) -> mdp_status;
    pub fn mdp_tp_linear_fwd(linear: *mut mdp_tp_linear, input: *const mdp_tensor, weight: *const mdp_tensor,
        bias: *const mdp_tensor, output: *const mdp_tensor, stream: mdp_stream,
        saved: *mut *mut mdp_tp_saved) -> mdp_status;
    pub fn mdp_tp_linear_bwd(linear: *mut mdp_tp_linear, saved: *mut mdp_tp_saved, input: *const mdp_tensor,
        weight: *const mdp_tensor, grad_output: *const mdp_tensor, grad_input: *const mdp_tensor,
        grad_weight: *const mdp_tensor, grad_bias: *const mdp_tensor, flags: u64, stream: mdp_stream) -> mdp_status;
    pub fn mdp_tp_saved_free(saved: *mut mdp_tp_saved);
    pub fn mdp_tp_linear_destroy(linear: *mut mdp_tp_linear);
    pub fn mdp_tp_embedding_fwd(comm: *mut mdp_comm, config: *const mdp_tp_embedding_config, ids: *const mdp_tensor,
        weight: *const mdp_tensor, output: *const mdp_tensor, stream: mdp_stream) -> mdp_status;
    pub fn mdp_tp_embedding_bwd(comm: *mut mdp_comm, config: *const mdp_tp_embedding_config, ids: *const mdp_tensor,
        grad_output: *const mdp_tensor, grad_weight: *const mdp_tensor, flags: u64, stream: mdp_stream) -> mdp_status;
    pub fn mdp_tp_cross_entropy_fwd(comm: *mut mdp_comm, config: *const mdp_tp_cross_entropy_config,
        logits: *const mdp_tensor, targets: *const mdp_tensor, losses: *const mdp_tensor, saved: *const mdp_tensor,
        stream: mdp_stream) -> mdp_status;
    pub fn mdp_tp_cross_entropy_bwd(comm: *mut mdp_comm, config: *const mdp_tp_cross_entropy_config,
        logits: *const mdp_tensor, targets: *const mdp_tensor, saved: *const mdp_tensor,
        grad_losses: *const mdp_tensor, grad_logits: *const mdp_tensor, stream: mdp_stream) -> mdp_status;
    pub fn mdp_halo_create(comm: *mut mdp_comm, config: *const mdp_halo_config, out: *mut *mut mdp_halo) -> mdp_status;
    pub fn mdp_halo_start(halo: *mut mdp_halo, fields: *const mdp_tensor, count: usize, flags: u64,
        stream: mdp_stream) -> mdp_status;
    pub fn mdp_halo_finish(halo: *mut mdp_halo, stream: mdp_stream) -> mdp_status;
    pub fn mdp_halo_array(halo: *mut mdp_halo, index: u64, out: *mut mdp_tensor) -> mdp_status;
    pub fn mdp_halo_place(halo: *const mdp_halo, coords: *mut i64, begins: *mut i64, whole: *mut i64) -> mdp_status;
    pub fn mdp_halo_destroy(halo: *mut mdp_halo);
    pub fn mdp_conv_split(config: *const mdp_conv_config, parts: *const i64, count: usize, part: i32,
        out: *mut mdp_conv_part) -> mdp_status;
    pub fn mdp_cp_part(config: *const mdp_cp_config, size: i32, rank: i32, sequence: i64,
        ranges: *mut i64) -> mdp_status;
    pub fn mdp_cp_attention_fwd(comm: *mut mdp_comm, config: *const mdp_cp_config, r#fn: mdp_cp_attention_fn,
        user: *mut c_void, q: *const mdp_tensor, k: *const mdp_tensor, v: *const mdp_tensor, out: *const mdp_tensor,
        lse: *const mdp_tensor, stream: mdp_stream) -> mdp_status;
    pub fn mdp_cp_attention_bwd(comm: *mut mdp_comm, config: *const mdp_cp_config, r#fn: mdp_cp_attention_fn,
        user: *mut c_void, q: *const mdp_tensor, k: *const mdp_tensor, v: *const mdp_tensor, out: *const mdp_tensor,
        lse: *const mdp_tensor, grad_out: *const mdp_tensor, grad_q: *const mdp_tensor, grad_k: *const mdp_tensor,
        grad_v: *const mdp_tensor, stream: mdp_stream) -> mdp_status;
}

