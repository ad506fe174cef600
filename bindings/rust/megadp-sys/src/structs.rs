// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust_structs.py.
use crate::types::*;
use core::ffi::{c_char, c_void};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_unique_id {
    pub bytes: [u8; 128],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_error_info {
    pub struct_size: u32,
    pub status: mdp_status,
    pub rank: i32,
    pub bucket: i32,
    pub param: i64,
    pub operation: u64,
    pub text: [c_char; 1024],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_bootstrap {
    pub struct_size: u32,
    pub reserved: u32,
    pub context: *mut c_void,
    pub allgather_start: mdp_allgather_start_fn,
    pub allgather_test: mdp_allgather_test_fn,
    pub allgather_free: mdp_allgather_free_fn,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_comm_config {
    pub struct_size: u32,
    pub backend: mdp_backend,
    pub rank: i32,
    pub size: i32,
    pub device: i32,
    pub host_threads: i32,
    pub timeout_ns: u64,
    pub flags: u64,
    pub bootstrap: *const mdp_bootstrap,
    pub interrupted: mdp_interrupted_fn,
    pub interrupted_context: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_grid_config {
    pub struct_size: u32,
    pub tp: i32,
    pub cp: i32,
    pub ep: i32,
    pub pp: i32,
    pub expert_tp: i32,
    pub instances: i32,
    pub reserved: i32,
    pub order: *const c_char,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_tensor {
    pub struct_size: u32,
    pub dtype: mdp_dtype,
    pub device_type: i32,
    pub device_id: i32,
    pub ndim: i32,
    pub reserved: u32,
    pub data: *mut c_void,
    pub shape: *const i64,
    pub strides: *const i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_param {
    pub struct_size: u32,
    pub dtype: mdp_dtype,
    pub name: *const c_char,
    pub shape: *const i64,
    pub ndim: i32,
    pub uses_per_step: i32,
    pub param_class: mdp_param_class,
    pub placement: mdp_placement,
    pub shard_dim: i32,
    pub shard_stride: i32,
    pub param_group: i32,
    pub use_order: i32,
    pub flags: u64,
    pub tie: *const c_char,
    pub sharding: mdp_sharding,
    pub reserved: u32,
    pub cost: f64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_buffer_config {
    pub struct_size: u32,
    pub grad_dtype: mdp_dtype,
    pub sharding: mdp_sharding,
    pub missing: mdp_missing,
    pub bucket_elements: u64,
    pub bucket_count: u64,
    pub flags: u64,
    pub pool_buckets: u64,
    pub spill_limit: u64,
    pub scaling: mdp_scaling,
    pub wire_dtype: mdp_dtype,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_plan_report {
    pub struct_size: u32,
    pub reserved: u32,
    pub param_bytes: u64,
    pub grad_bytes: u64,
    pub grad_shard_bytes: u64,
    pub master_bytes: u64,
    pub state_bytes: u64,
    pub scratch_bytes: u64,
    pub padding_elements: u64,
    pub buckets: u64,
    pub owned_elements: u64,
    pub communicator_bytes: u64,
    pub spill_bytes: u64,
    pub feedback_bytes: u64,
    pub average_bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_range {
    pub struct_size: u32,
    pub reserved: u32,
    pub arena: i64,
    pub bucket: i64,
    pub param: i64,
    pub begin: i64,
    pub end: i64,
    pub param_begin: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_param_group {
    pub struct_size: u32,
    pub reserved: u32,
    pub lr: f64,
    pub weight_decay: f64,
    pub flags: u64,
    pub beta1: f64,
    pub beta2: f64,
    pub momentum: f64,
    pub eps: f64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_param_state {
    pub struct_size: u32,
    pub reserved: u32,
    pub name: *const c_char,
    pub bytes: *const u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_optimizer_config {
    pub struct_size: u32,
    pub rule: mdp_rule,
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub max_grad_norm: f64,
    pub param_groups: *const mdp_param_group,
    pub param_group_count: u64,
    pub flags: u64,
    pub max_grad_value: f64,
    pub norm: mdp_norm,
    pub first_param_group: u32,
    pub momentum: f64,
    pub state: *const c_char,
    pub param_states: *const mdp_param_state,
    pub param_state_count: u64,
    pub average_decay: f64,
    pub state_dtype: mdp_dtype,
    pub reserved: u32,
    pub seed: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_update {
    pub struct_size: u32,
    pub optimizer: u32,
    pub param: u64,
    pub param_begin: u64,
    pub count: u64,
    pub master: *mut f32,
    pub grad: *const f32,
    pub state: *const *mut f32,
    pub state_count: u64,
    pub step: u64,
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub momentum: f64,
    pub stream: mdp_stream,
    pub param_states: *const *mut c_void,
    pub param_state_bytes: *const u64,
    pub param_state_count: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_scaler {
    pub struct_size: u32,
    pub growth_interval: u32,
    pub hysteresis: u32,
    pub clean_steps: u32,
    pub overflows: u32,
    pub reserved: u32,
    pub scale: f64,
    pub growth_factor: f64,
    pub backoff_factor: f64,
    pub min_scale: f64,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_step_config {
    pub struct_size: u32,
    pub reserved: u32,
    pub lr: f64,
    pub loss_scale: f64,
    pub stream: mdp_stream,
    pub flags: u64,
    pub grad_divisor: f64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_step_report {
    pub struct_size: u32,
    pub reserved: u32,
    pub grad_norm: f64,
    pub clip_factor: f64,
    pub loss_scale: f64,
    pub step: u64,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_grad_summary {
    pub struct_size: u32,
    pub reserved: u32,
    pub norm: f64,
    pub inf_norm: f64,
    pub zeros: u64,
    pub nonfinite: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_stats_report {
    pub struct_size: u32,
    pub reserved: u32,
    pub comm_ns: u64,
    pub exposed_ns: u64,
    pub bytes: u64,
    pub buckets: u64,
    pub launched_in_backward: u64,
    pub syncs: u64,
    pub host_syncs: u64,
    pub spill_peak_bytes: u64,
    pub large_gradients: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_bucket_report {
    pub struct_size: u32,
    pub state: mdp_bucket_state,
    pub ready_ns: u64,
    pub reduce_begin_ns: u64,
    pub reduce_end_ns: u64,
    pub gather_begin_ns: u64,
    pub gather_end_ns: u64,
    pub sync_ns: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_checkpoint_part {
    pub struct_size: u32,
    pub reserved: u32,
    pub buffer: *mut mdp_buffer,
    pub optimizer: *mut mdp_optimizer,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_checkpoint_tensor {
    pub struct_size: u32,
    pub placement: mdp_placement,
    pub name: *const c_char,
    pub tensor: *const mdp_tensor,
    pub shard_dim: i32,
    pub shard_stride: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_checkpoint_config {
    pub struct_size: u32,
    pub reserved: u32,
    pub directory: *const c_char,
    pub parts: *const mdp_checkpoint_part,
    pub part_count: u64,
    pub tensors: *const mdp_checkpoint_tensor,
    pub tensor_count: u64,
    pub shared_data: *const c_void,
    pub shared_bytes: u64,
    pub rank_data: *const c_void,
    pub rank_bytes: u64,
    pub keep: u64,
    pub optional: *const c_char,
    pub flags: u64,
}

