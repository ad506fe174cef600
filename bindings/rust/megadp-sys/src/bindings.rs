// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust.py.
use core::ffi::{c_char, c_void};
use core::marker::{PhantomData, PhantomPinned};

#[repr(C)]
pub struct mdp_comm {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct mdp_grid {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct mdp_buffer {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct mdp_optimizer {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct mdp_request {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct DLManagedTensorVersioned {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

pub type mdp_stream = *mut c_void;
pub type mdp_status = i32;
pub type mdp_backend = u32;
pub type mdp_dtype = u32;
pub type mdp_op = u32;
pub type mdp_param_class = u32;
pub type mdp_placement = u32;
pub type mdp_sharding = u32;
pub type mdp_rule = u32;
pub type mdp_missing = u32;
pub type mdp_bucket_state = u32;

pub const MDP_OK: mdp_status = 0;
pub const MDP_PENDING: mdp_status = 1;
pub const MDP_E_INVALID: mdp_status = -1;
pub const MDP_E_STATE: mdp_status = -2;
pub const MDP_E_UNSUPPORTED: mdp_status = -3;
pub const MDP_E_MEMORY: mdp_status = -4;
pub const MDP_E_SYSTEM: mdp_status = -5;
pub const MDP_E_BACKEND: mdp_status = -6;
pub const MDP_E_PEER: mdp_status = -7;
pub const MDP_E_TIMEOUT: mdp_status = -8;
pub const MDP_E_DESYNC: mdp_status = -9;
pub const MDP_E_ABORTED: mdp_status = -10;
pub const MDP_E_NUMERIC: mdp_status = -11;
pub const MDP_E_CORRUPT: mdp_status = -12;
pub const MDP_E_INTERNAL: mdp_status = -13;

pub const MDP_BACKEND_AUTO: mdp_backend = 0;
pub const MDP_BACKEND_HOST: mdp_backend = 1;
pub const MDP_BACKEND_CUDA: mdp_backend = 2;

pub const MDP_DTYPE_DEFAULT: mdp_dtype = 0;
pub const MDP_DTYPE_SAME: mdp_dtype = 1;
pub const MDP_DTYPE_F32: mdp_dtype = 2;
pub const MDP_DTYPE_BF16: mdp_dtype = 3;
pub const MDP_DTYPE_F16: mdp_dtype = 4;
pub const MDP_DTYPE_F64: mdp_dtype = 5;
pub const MDP_DTYPE_I64: mdp_dtype = 6;
pub const MDP_DTYPE_U8: mdp_dtype = 7;

pub const MDP_OP_SUM: mdp_op = 0;
pub const MDP_OP_AVG: mdp_op = 1;
pub const MDP_OP_MAX: mdp_op = 2;
pub const MDP_OP_MIN: mdp_op = 3;

pub const MDP_COMM_SET_DEVICE: u64 = 1;
pub const MDP_COMM_EXACT_SUMS: u64 = 2;

pub const MDP_AXIS_TP: u32 = 1;
pub const MDP_AXIS_CP: u32 = 2;
pub const MDP_AXIS_EP: u32 = 4;
pub const MDP_AXIS_DP: u32 = 8;
pub const MDP_AXIS_PP: u32 = 16;
pub const MDP_AXIS_EXPERT_GRID: u32 = 256;

pub const MDP_PARAM_CLASS_DENSE: mdp_param_class = 0;
pub const MDP_PARAM_CLASS_EXPERT: mdp_param_class = 1;

pub const MDP_PLACEMENT_UNSET: mdp_placement = 0;
pub const MDP_PLACEMENT_REPLICATED: mdp_placement = 1;
pub const MDP_PLACEMENT_SHARDED: mdp_placement = 2;

pub const MDP_SHARDING_DEFAULT: mdp_sharding = 0;
pub const MDP_SHARDING_ZERO_0: mdp_sharding = 1;
pub const MDP_SHARDING_ZERO_1: mdp_sharding = 2;

pub const MDP_RULE_ADAMW: mdp_rule = 0;

pub const MDP_MISSING_ERROR: mdp_missing = 0;
pub const MDP_MISSING_ZERO: mdp_missing = 1;
pub const MDP_MISSING_SKIP: mdp_missing = 2;

pub const MDP_PARAM_FROZEN: u64 = 1;
pub const MDP_PARAM_OWN_BUCKET: u64 = 2;

pub const MDP_BUFFER_NO_OVERLAP: u64 = 1;
pub const MDP_BUFFER_HIGH_BANDWIDTH_PADDING: u64 = 4;
pub const MDP_BUFFER_REFERENCE_BUCKETS: u64 = 8;

pub const MDP_GRAD_ADD: u64 = 1;
pub const MDP_GRAD_MORE: u64 = 2;

pub const MDP_GROUP_SET_LR: u64 = 1;

pub const MDP_OPTIMIZER_SET_BETAS: u64 = 1;

pub const MDP_STEP_SET_LR: u64 = 1;

pub const MDP_STEPPED_SKIPPED: u64 = 1;
pub const MDP_STEPPED_CLIPPED: u64 = 2;

pub const MDP_BUCKET_FILLING: mdp_bucket_state = 0;
pub const MDP_BUCKET_READY: mdp_bucket_state = 1;
pub const MDP_BUCKET_IN_FLIGHT: mdp_bucket_state = 2;
pub const MDP_BUCKET_REDUCED: mdp_bucket_state = 3;
pub const MDP_BUCKET_GATHERING: mdp_bucket_state = 4;
pub const MDP_BUCKET_WHOLE: mdp_bucket_state = 5;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_unique_id {
    pub bytes: [u8; 128],
}

impl mdp_unique_id {
    /// All zero.
    pub const fn new() -> Self {
        // SAFETY: integers may all be zero.
        unsafe { core::mem::zeroed() }
    }
}

impl Default for mdp_unique_id {
    fn default() -> Self {
        Self::new()
    }
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

impl mdp_error_info {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_error_info {
    fn default() -> Self {
        Self::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_comm_config {
    pub struct_size: u32,
    pub backend: mdp_backend,
    pub rank: i32,
    pub nranks: i32,
    pub device: i32,
    pub host_threads: i32,
    pub timeout_ns: u64,
    pub flags: u64,
}

impl mdp_comm_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_comm_config {
    fn default() -> Self {
        Self::new()
    }
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

impl mdp_grid_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_grid_config {
    fn default() -> Self {
        Self::new()
    }
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

impl mdp_tensor {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_tensor {
    fn default() -> Self {
        Self::new()
    }
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
    pub group: i32,
    pub reserved: i32,
    pub flags: u64,
}

impl mdp_param {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_param {
    fn default() -> Self {
        Self::new()
    }
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
}

impl mdp_buffer_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_buffer_config {
    fn default() -> Self {
        Self::new()
    }
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
}

impl mdp_plan_report {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_plan_report {
    fn default() -> Self {
        Self::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_range {
    pub struct_size: u32,
    pub reserved: u32,
    pub buffer: i64,
    pub bucket: i64,
    pub param: i64,
    pub begin: i64,
    pub end: i64,
    pub param_begin: i64,
}

impl mdp_range {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_range {
    fn default() -> Self {
        Self::new()
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_group {
    pub struct_size: u32,
    pub reserved: u32,
    pub lr: f64,
    pub weight_decay: f64,
    pub flags: u64,
}

impl mdp_group {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_group {
    fn default() -> Self {
        Self::new()
    }
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
    pub groups: *const mdp_group,
    pub ngroups: u64,
    pub flags: u64,
}

impl mdp_optimizer_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_optimizer_config {
    fn default() -> Self {
        Self::new()
    }
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
}

impl mdp_step_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_step_config {
    fn default() -> Self {
        Self::new()
    }
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

impl mdp_step_report {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_step_report {
    fn default() -> Self {
        Self::new()
    }
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
}

impl mdp_stats_report {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_stats_report {
    fn default() -> Self {
        Self::new()
    }
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

impl mdp_bucket_report {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_bucket_report {
    fn default() -> Self {
        Self::new()
    }
}

pub type mdp_log_fn = Option<unsafe extern "C" fn(user: *mut c_void, level: i32, text: *const c_char, length: usize)>;

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
    pub fn mdp_barrier(comm: *mut mdp_comm) -> mdp_status;
    pub fn mdp_grid_create(world: *mut mdp_comm, config: *const mdp_grid_config, out: *mut *mut mdp_grid) -> mdp_status;
    pub fn mdp_grid_coords(grid: *mut mdp_grid, axes: u32, index: *mut i32, size: *mut i32) -> mdp_status;
    pub fn mdp_grid_comm(grid: *mut mdp_grid, axes: u32, out: *mut *mut mdp_comm) -> mdp_status;
    pub fn mdp_grid_destroy(grid: *mut mdp_grid);
    pub fn mdp_grid_groups_json(grid: *const mdp_grid_config, world: i32, axes: u32, json: *mut c_char,
        capacity: usize, needed: *mut usize) -> mdp_status;
    pub fn mdp_plan(grid: *const mdp_grid_config, world: i32, rank: i32, config: *const mdp_buffer_config,
        params: *const mdp_param, count: usize, out: *mut mdp_plan_report) -> mdp_status;
    pub fn mdp_plan_json(grid: *const mdp_grid_config, world: i32, config: *const mdp_buffer_config,
        params: *const mdp_param, count: usize, json: *mut c_char, capacity: usize, needed: *mut usize) -> mdp_status;
    pub fn mdp_buffer_register(grid: *mut mdp_grid, config: *const mdp_buffer_config, params: *const mdp_param,
        count: usize, out: *mut *mut mdp_buffer) -> mdp_status;
    pub fn mdp_buffer_owned(buffer: *mut mdp_buffer, ranges: *mut mdp_range, capacity: usize,
        needed: *mut usize) -> mdp_status;
    pub fn mdp_buffer_param_view(buffer: *mut mdp_buffer, param: usize, out: *mut mdp_tensor) -> mdp_status;
    pub fn mdp_buffer_grad_view(buffer: *mut mdp_buffer, param: usize, out: *mut mdp_tensor) -> mdp_status;
    pub fn mdp_buffer_to_dlpack(owner: *mut mdp_buffer, view: *const mdp_tensor,
        out: *mut *mut DLManagedTensorVersioned) -> mdp_status;
    pub fn mdp_buffer_broadcast(buffer: *mut mdp_buffer, root: i32) -> mdp_status;
    pub fn mdp_buffer_verify(buffer: *mut mdp_buffer) -> mdp_status;
    pub fn mdp_buffer_zero_grad(buffer: *mut mdp_buffer, stream: mdp_stream) -> mdp_status;
    pub fn mdp_buffer_stats(buffer: *mut mdp_buffer, out: *mut mdp_stats_report) -> mdp_status;
    pub fn mdp_buffer_bucket(buffer: *mut mdp_buffer, bucket: usize, out: *mut mdp_bucket_report) -> mdp_status;
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
    pub fn mdp_grad_ready(buffer: *mut mdp_buffer, param: usize, producer: mdp_stream) -> mdp_status;
    pub fn mdp_grad_skip(buffer: *mut mdp_buffer, param: usize) -> mdp_status;
    pub fn mdp_grad_sync(buffer: *mut mdp_buffer, consumer: mdp_stream, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_optimizer_create(buffer: *mut mdp_buffer, config: *const mdp_optimizer_config,
        out: *mut *mut mdp_optimizer) -> mdp_status;
    pub fn mdp_optimizer_set_group(optimizer: *mut mdp_optimizer, group: usize, value: *const mdp_group) -> mdp_status;
    pub fn mdp_optimizer_step(optimizer: *mut mdp_optimizer, config: *const mdp_step_config,
        report: *mut mdp_step_report, out: *mut *mut mdp_request) -> mdp_status;
    pub fn mdp_optimizer_state(optimizer: *mut mdp_optimizer, param: usize, name: *const c_char,
        out: *mut mdp_tensor) -> mdp_status;
    pub fn mdp_optimizer_destroy(optimizer: *mut mdp_optimizer);
    pub fn mdp_request_test(request: *mut mdp_request) -> mdp_status;
    pub fn mdp_request_wait(request: *mut mdp_request, timeout_ns: u64) -> mdp_status;
    pub fn mdp_request_free(request: *mut mdp_request);
}

#[cfg(test)]
pub(crate) mod layout {
    use core::mem::{align_of, offset_of, size_of};

    /// name, size, alignment, [(field, offset)]
    pub type Struct = (&'static str, usize, usize, &'static [(&'static str, usize)]);

    pub const STRUCTS: &[Struct] = &[
        ("mdp_unique_id", size_of::<super::mdp_unique_id>(), align_of::<super::mdp_unique_id>(), &[
            ("bytes", offset_of!(super::mdp_unique_id, bytes)),
        ]),
        ("mdp_error_info", size_of::<super::mdp_error_info>(), align_of::<super::mdp_error_info>(), &[
            ("struct_size", offset_of!(super::mdp_error_info, struct_size)),
            ("status", offset_of!(super::mdp_error_info, status)),
            ("rank", offset_of!(super::mdp_error_info, rank)),
            ("bucket", offset_of!(super::mdp_error_info, bucket)),
            ("param", offset_of!(super::mdp_error_info, param)),
            ("operation", offset_of!(super::mdp_error_info, operation)),
            ("text", offset_of!(super::mdp_error_info, text)),
        ]),
        ("mdp_comm_config", size_of::<super::mdp_comm_config>(), align_of::<super::mdp_comm_config>(), &[
            ("struct_size", offset_of!(super::mdp_comm_config, struct_size)),
            ("backend", offset_of!(super::mdp_comm_config, backend)),
            ("rank", offset_of!(super::mdp_comm_config, rank)),
            ("nranks", offset_of!(super::mdp_comm_config, nranks)),
            ("device", offset_of!(super::mdp_comm_config, device)),
            ("host_threads", offset_of!(super::mdp_comm_config, host_threads)),
            ("timeout_ns", offset_of!(super::mdp_comm_config, timeout_ns)),
            ("flags", offset_of!(super::mdp_comm_config, flags)),
        ]),
        ("mdp_grid_config", size_of::<super::mdp_grid_config>(), align_of::<super::mdp_grid_config>(), &[
            ("struct_size", offset_of!(super::mdp_grid_config, struct_size)),
            ("tp", offset_of!(super::mdp_grid_config, tp)),
            ("cp", offset_of!(super::mdp_grid_config, cp)),
            ("ep", offset_of!(super::mdp_grid_config, ep)),
            ("pp", offset_of!(super::mdp_grid_config, pp)),
            ("expert_tp", offset_of!(super::mdp_grid_config, expert_tp)),
            ("instances", offset_of!(super::mdp_grid_config, instances)),
            ("reserved", offset_of!(super::mdp_grid_config, reserved)),
            ("order", offset_of!(super::mdp_grid_config, order)),
            ("flags", offset_of!(super::mdp_grid_config, flags)),
        ]),
        ("mdp_tensor", size_of::<super::mdp_tensor>(), align_of::<super::mdp_tensor>(), &[
            ("struct_size", offset_of!(super::mdp_tensor, struct_size)),
            ("dtype", offset_of!(super::mdp_tensor, dtype)),
            ("device_type", offset_of!(super::mdp_tensor, device_type)),
            ("device_id", offset_of!(super::mdp_tensor, device_id)),
            ("ndim", offset_of!(super::mdp_tensor, ndim)),
            ("reserved", offset_of!(super::mdp_tensor, reserved)),
            ("data", offset_of!(super::mdp_tensor, data)),
            ("shape", offset_of!(super::mdp_tensor, shape)),
            ("strides", offset_of!(super::mdp_tensor, strides)),
        ]),
        ("mdp_param", size_of::<super::mdp_param>(), align_of::<super::mdp_param>(), &[
            ("struct_size", offset_of!(super::mdp_param, struct_size)),
            ("dtype", offset_of!(super::mdp_param, dtype)),
            ("name", offset_of!(super::mdp_param, name)),
            ("shape", offset_of!(super::mdp_param, shape)),
            ("ndim", offset_of!(super::mdp_param, ndim)),
            ("uses_per_step", offset_of!(super::mdp_param, uses_per_step)),
            ("param_class", offset_of!(super::mdp_param, param_class)),
            ("placement", offset_of!(super::mdp_param, placement)),
            ("shard_dim", offset_of!(super::mdp_param, shard_dim)),
            ("shard_stride", offset_of!(super::mdp_param, shard_stride)),
            ("group", offset_of!(super::mdp_param, group)),
            ("reserved", offset_of!(super::mdp_param, reserved)),
            ("flags", offset_of!(super::mdp_param, flags)),
        ]),
        ("mdp_buffer_config", size_of::<super::mdp_buffer_config>(), align_of::<super::mdp_buffer_config>(), &[
            ("struct_size", offset_of!(super::mdp_buffer_config, struct_size)),
            ("grad_dtype", offset_of!(super::mdp_buffer_config, grad_dtype)),
            ("sharding", offset_of!(super::mdp_buffer_config, sharding)),
            ("missing", offset_of!(super::mdp_buffer_config, missing)),
            ("bucket_elements", offset_of!(super::mdp_buffer_config, bucket_elements)),
            ("bucket_count", offset_of!(super::mdp_buffer_config, bucket_count)),
            ("flags", offset_of!(super::mdp_buffer_config, flags)),
        ]),
        ("mdp_plan_report", size_of::<super::mdp_plan_report>(), align_of::<super::mdp_plan_report>(), &[
            ("struct_size", offset_of!(super::mdp_plan_report, struct_size)),
            ("reserved", offset_of!(super::mdp_plan_report, reserved)),
            ("param_bytes", offset_of!(super::mdp_plan_report, param_bytes)),
            ("grad_bytes", offset_of!(super::mdp_plan_report, grad_bytes)),
            ("grad_shard_bytes", offset_of!(super::mdp_plan_report, grad_shard_bytes)),
            ("master_bytes", offset_of!(super::mdp_plan_report, master_bytes)),
            ("state_bytes", offset_of!(super::mdp_plan_report, state_bytes)),
            ("scratch_bytes", offset_of!(super::mdp_plan_report, scratch_bytes)),
            ("padding_elements", offset_of!(super::mdp_plan_report, padding_elements)),
            ("buckets", offset_of!(super::mdp_plan_report, buckets)),
            ("owned_elements", offset_of!(super::mdp_plan_report, owned_elements)),
        ]),
        ("mdp_range", size_of::<super::mdp_range>(), align_of::<super::mdp_range>(), &[
            ("struct_size", offset_of!(super::mdp_range, struct_size)),
            ("reserved", offset_of!(super::mdp_range, reserved)),
            ("buffer", offset_of!(super::mdp_range, buffer)),
            ("bucket", offset_of!(super::mdp_range, bucket)),
            ("param", offset_of!(super::mdp_range, param)),
            ("begin", offset_of!(super::mdp_range, begin)),
            ("end", offset_of!(super::mdp_range, end)),
            ("param_begin", offset_of!(super::mdp_range, param_begin)),
        ]),
        ("mdp_group", size_of::<super::mdp_group>(), align_of::<super::mdp_group>(), &[
            ("struct_size", offset_of!(super::mdp_group, struct_size)),
            ("reserved", offset_of!(super::mdp_group, reserved)),
            ("lr", offset_of!(super::mdp_group, lr)),
            ("weight_decay", offset_of!(super::mdp_group, weight_decay)),
            ("flags", offset_of!(super::mdp_group, flags)),
        ]),
        ("mdp_optimizer_config", size_of::<super::mdp_optimizer_config>(), align_of::<super::mdp_optimizer_config>(), &[
            ("struct_size", offset_of!(super::mdp_optimizer_config, struct_size)),
            ("rule", offset_of!(super::mdp_optimizer_config, rule)),
            ("lr", offset_of!(super::mdp_optimizer_config, lr)),
            ("beta1", offset_of!(super::mdp_optimizer_config, beta1)),
            ("beta2", offset_of!(super::mdp_optimizer_config, beta2)),
            ("eps", offset_of!(super::mdp_optimizer_config, eps)),
            ("weight_decay", offset_of!(super::mdp_optimizer_config, weight_decay)),
            ("max_grad_norm", offset_of!(super::mdp_optimizer_config, max_grad_norm)),
            ("groups", offset_of!(super::mdp_optimizer_config, groups)),
            ("ngroups", offset_of!(super::mdp_optimizer_config, ngroups)),
            ("flags", offset_of!(super::mdp_optimizer_config, flags)),
        ]),
        ("mdp_step_config", size_of::<super::mdp_step_config>(), align_of::<super::mdp_step_config>(), &[
            ("struct_size", offset_of!(super::mdp_step_config, struct_size)),
            ("reserved", offset_of!(super::mdp_step_config, reserved)),
            ("lr", offset_of!(super::mdp_step_config, lr)),
            ("loss_scale", offset_of!(super::mdp_step_config, loss_scale)),
            ("stream", offset_of!(super::mdp_step_config, stream)),
            ("flags", offset_of!(super::mdp_step_config, flags)),
        ]),
        ("mdp_step_report", size_of::<super::mdp_step_report>(), align_of::<super::mdp_step_report>(), &[
            ("struct_size", offset_of!(super::mdp_step_report, struct_size)),
            ("reserved", offset_of!(super::mdp_step_report, reserved)),
            ("grad_norm", offset_of!(super::mdp_step_report, grad_norm)),
            ("clip_factor", offset_of!(super::mdp_step_report, clip_factor)),
            ("loss_scale", offset_of!(super::mdp_step_report, loss_scale)),
            ("step", offset_of!(super::mdp_step_report, step)),
            ("flags", offset_of!(super::mdp_step_report, flags)),
        ]),
        ("mdp_stats_report", size_of::<super::mdp_stats_report>(), align_of::<super::mdp_stats_report>(), &[
            ("struct_size", offset_of!(super::mdp_stats_report, struct_size)),
            ("reserved", offset_of!(super::mdp_stats_report, reserved)),
            ("comm_ns", offset_of!(super::mdp_stats_report, comm_ns)),
            ("exposed_ns", offset_of!(super::mdp_stats_report, exposed_ns)),
            ("bytes", offset_of!(super::mdp_stats_report, bytes)),
            ("buckets", offset_of!(super::mdp_stats_report, buckets)),
            ("launched_in_backward", offset_of!(super::mdp_stats_report, launched_in_backward)),
            ("syncs", offset_of!(super::mdp_stats_report, syncs)),
            ("host_syncs", offset_of!(super::mdp_stats_report, host_syncs)),
        ]),
        ("mdp_bucket_report", size_of::<super::mdp_bucket_report>(), align_of::<super::mdp_bucket_report>(), &[
            ("struct_size", offset_of!(super::mdp_bucket_report, struct_size)),
            ("state", offset_of!(super::mdp_bucket_report, state)),
            ("ready_ns", offset_of!(super::mdp_bucket_report, ready_ns)),
            ("reduce_begin_ns", offset_of!(super::mdp_bucket_report, reduce_begin_ns)),
            ("reduce_end_ns", offset_of!(super::mdp_bucket_report, reduce_end_ns)),
            ("gather_begin_ns", offset_of!(super::mdp_bucket_report, gather_begin_ns)),
            ("gather_end_ns", offset_of!(super::mdp_bucket_report, gather_end_ns)),
            ("sync_ns", offset_of!(super::mdp_bucket_report, sync_ns)),
        ]),
    ];

    pub const VALUES: &[(&str, i64)] = &[
        ("MDP_OK", super::MDP_OK as i64),
        ("MDP_PENDING", super::MDP_PENDING as i64),
        ("MDP_E_INVALID", super::MDP_E_INVALID as i64),
        ("MDP_E_STATE", super::MDP_E_STATE as i64),
        ("MDP_E_UNSUPPORTED", super::MDP_E_UNSUPPORTED as i64),
        ("MDP_E_MEMORY", super::MDP_E_MEMORY as i64),
        ("MDP_E_SYSTEM", super::MDP_E_SYSTEM as i64),
        ("MDP_E_BACKEND", super::MDP_E_BACKEND as i64),
        ("MDP_E_PEER", super::MDP_E_PEER as i64),
        ("MDP_E_TIMEOUT", super::MDP_E_TIMEOUT as i64),
        ("MDP_E_DESYNC", super::MDP_E_DESYNC as i64),
        ("MDP_E_ABORTED", super::MDP_E_ABORTED as i64),
        ("MDP_E_NUMERIC", super::MDP_E_NUMERIC as i64),
        ("MDP_E_CORRUPT", super::MDP_E_CORRUPT as i64),
        ("MDP_E_INTERNAL", super::MDP_E_INTERNAL as i64),
        ("MDP_BACKEND_AUTO", super::MDP_BACKEND_AUTO as i64),
        ("MDP_BACKEND_HOST", super::MDP_BACKEND_HOST as i64),
        ("MDP_BACKEND_CUDA", super::MDP_BACKEND_CUDA as i64),
        ("MDP_DTYPE_DEFAULT", super::MDP_DTYPE_DEFAULT as i64),
        ("MDP_DTYPE_SAME", super::MDP_DTYPE_SAME as i64),
        ("MDP_DTYPE_F32", super::MDP_DTYPE_F32 as i64),
        ("MDP_DTYPE_BF16", super::MDP_DTYPE_BF16 as i64),
        ("MDP_DTYPE_F16", super::MDP_DTYPE_F16 as i64),
        ("MDP_DTYPE_F64", super::MDP_DTYPE_F64 as i64),
        ("MDP_DTYPE_I64", super::MDP_DTYPE_I64 as i64),
        ("MDP_DTYPE_U8", super::MDP_DTYPE_U8 as i64),
        ("MDP_OP_SUM", super::MDP_OP_SUM as i64),
        ("MDP_OP_AVG", super::MDP_OP_AVG as i64),
        ("MDP_OP_MAX", super::MDP_OP_MAX as i64),
        ("MDP_OP_MIN", super::MDP_OP_MIN as i64),
        ("MDP_COMM_SET_DEVICE", super::MDP_COMM_SET_DEVICE as i64),
        ("MDP_COMM_EXACT_SUMS", super::MDP_COMM_EXACT_SUMS as i64),
        ("MDP_AXIS_TP", super::MDP_AXIS_TP as i64),
        ("MDP_AXIS_CP", super::MDP_AXIS_CP as i64),
        ("MDP_AXIS_EP", super::MDP_AXIS_EP as i64),
        ("MDP_AXIS_DP", super::MDP_AXIS_DP as i64),
        ("MDP_AXIS_PP", super::MDP_AXIS_PP as i64),
        ("MDP_AXIS_EXPERT_GRID", super::MDP_AXIS_EXPERT_GRID as i64),
        ("MDP_PARAM_CLASS_DENSE", super::MDP_PARAM_CLASS_DENSE as i64),
        ("MDP_PARAM_CLASS_EXPERT", super::MDP_PARAM_CLASS_EXPERT as i64),
        ("MDP_PLACEMENT_UNSET", super::MDP_PLACEMENT_UNSET as i64),
        ("MDP_PLACEMENT_REPLICATED", super::MDP_PLACEMENT_REPLICATED as i64),
        ("MDP_PLACEMENT_SHARDED", super::MDP_PLACEMENT_SHARDED as i64),
        ("MDP_SHARDING_DEFAULT", super::MDP_SHARDING_DEFAULT as i64),
        ("MDP_SHARDING_ZERO_0", super::MDP_SHARDING_ZERO_0 as i64),
        ("MDP_SHARDING_ZERO_1", super::MDP_SHARDING_ZERO_1 as i64),
        ("MDP_RULE_ADAMW", super::MDP_RULE_ADAMW as i64),
        ("MDP_MISSING_ERROR", super::MDP_MISSING_ERROR as i64),
        ("MDP_MISSING_ZERO", super::MDP_MISSING_ZERO as i64),
        ("MDP_MISSING_SKIP", super::MDP_MISSING_SKIP as i64),
        ("MDP_PARAM_FROZEN", super::MDP_PARAM_FROZEN as i64),
        ("MDP_PARAM_OWN_BUCKET", super::MDP_PARAM_OWN_BUCKET as i64),
        ("MDP_BUFFER_NO_OVERLAP", super::MDP_BUFFER_NO_OVERLAP as i64),
        ("MDP_BUFFER_HIGH_BANDWIDTH_PADDING", super::MDP_BUFFER_HIGH_BANDWIDTH_PADDING as i64),
        ("MDP_BUFFER_REFERENCE_BUCKETS", super::MDP_BUFFER_REFERENCE_BUCKETS as i64),
        ("MDP_GRAD_ADD", super::MDP_GRAD_ADD as i64),
        ("MDP_GRAD_MORE", super::MDP_GRAD_MORE as i64),
        ("MDP_GROUP_SET_LR", super::MDP_GROUP_SET_LR as i64),
        ("MDP_OPTIMIZER_SET_BETAS", super::MDP_OPTIMIZER_SET_BETAS as i64),
        ("MDP_STEP_SET_LR", super::MDP_STEP_SET_LR as i64),
        ("MDP_STEPPED_SKIPPED", super::MDP_STEPPED_SKIPPED as i64),
        ("MDP_STEPPED_CLIPPED", super::MDP_STEPPED_CLIPPED as i64),
        ("MDP_BUCKET_FILLING", super::MDP_BUCKET_FILLING as i64),
        ("MDP_BUCKET_READY", super::MDP_BUCKET_READY as i64),
        ("MDP_BUCKET_IN_FLIGHT", super::MDP_BUCKET_IN_FLIGHT as i64),
        ("MDP_BUCKET_REDUCED", super::MDP_BUCKET_REDUCED as i64),
        ("MDP_BUCKET_GATHERING", super::MDP_BUCKET_GATHERING as i64),
        ("MDP_BUCKET_WHOLE", super::MDP_BUCKET_WHOLE as i64),
    ];

    /// Their addresses: a test that reads them does not link where one is not exported.
    pub fn functions() -> [(&'static str, *const ()); 56] {
        [
            ("mdp_version", super::mdp_version as *const ()),
            ("mdp_status_name", super::mdp_status_name as *const ()),
            ("mdp_last_error", super::mdp_last_error as *const ()),
            ("mdp_last_error_info", super::mdp_last_error_info as *const ()),
            ("mdp_info", super::mdp_info as *const ()),
            ("mdp_log_set", super::mdp_log_set as *const ()),
            ("mdp_unique_id_create", super::mdp_unique_id_create as *const ()),
            ("mdp_comm_create", super::mdp_comm_create as *const ()),
            ("mdp_comm_split", super::mdp_comm_split as *const ()),
            ("mdp_comm_rank", super::mdp_comm_rank as *const ()),
            ("mdp_comm_size", super::mdp_comm_size as *const ()),
            ("mdp_comm_error_info", super::mdp_comm_error_info as *const ()),
            ("mdp_comm_event_fd", super::mdp_comm_event_fd as *const ()),
            ("mdp_comm_abort", super::mdp_comm_abort as *const ()),
            ("mdp_comm_destroy", super::mdp_comm_destroy as *const ()),
            ("mdp_all_reduce", super::mdp_all_reduce as *const ()),
            ("mdp_reduce_scatter", super::mdp_reduce_scatter as *const ()),
            ("mdp_all_gather", super::mdp_all_gather as *const ()),
            ("mdp_all_to_all", super::mdp_all_to_all as *const ()),
            ("mdp_broadcast", super::mdp_broadcast as *const ()),
            ("mdp_barrier", super::mdp_barrier as *const ()),
            ("mdp_grid_create", super::mdp_grid_create as *const ()),
            ("mdp_grid_coords", super::mdp_grid_coords as *const ()),
            ("mdp_grid_comm", super::mdp_grid_comm as *const ()),
            ("mdp_grid_destroy", super::mdp_grid_destroy as *const ()),
            ("mdp_grid_groups_json", super::mdp_grid_groups_json as *const ()),
            ("mdp_plan", super::mdp_plan as *const ()),
            ("mdp_plan_json", super::mdp_plan_json as *const ()),
            ("mdp_buffer_register", super::mdp_buffer_register as *const ()),
            ("mdp_buffer_owned", super::mdp_buffer_owned as *const ()),
            ("mdp_buffer_param_view", super::mdp_buffer_param_view as *const ()),
            ("mdp_buffer_grad_view", super::mdp_buffer_grad_view as *const ()),
            ("mdp_buffer_to_dlpack", super::mdp_buffer_to_dlpack as *const ()),
            ("mdp_buffer_broadcast", super::mdp_buffer_broadcast as *const ()),
            ("mdp_buffer_verify", super::mdp_buffer_verify as *const ()),
            ("mdp_buffer_zero_grad", super::mdp_buffer_zero_grad as *const ()),
            ("mdp_buffer_stats", super::mdp_buffer_stats as *const ()),
            ("mdp_buffer_bucket", super::mdp_buffer_bucket as *const ()),
            ("mdp_buffer_destroy", super::mdp_buffer_destroy as *const ()),
            ("mdp_microbatch_begin", super::mdp_microbatch_begin as *const ()),
            ("mdp_param_wait", super::mdp_param_wait as *const ()),
            ("mdp_param_read", super::mdp_param_read as *const ()),
            ("mdp_param_write", super::mdp_param_write as *const ()),
            ("mdp_param_changed", super::mdp_param_changed as *const ()),
            ("mdp_grad_put", super::mdp_grad_put as *const ()),
            ("mdp_grad_ready", super::mdp_grad_ready as *const ()),
            ("mdp_grad_skip", super::mdp_grad_skip as *const ()),
            ("mdp_grad_sync", super::mdp_grad_sync as *const ()),
            ("mdp_optimizer_create", super::mdp_optimizer_create as *const ()),
            ("mdp_optimizer_set_group", super::mdp_optimizer_set_group as *const ()),
            ("mdp_optimizer_step", super::mdp_optimizer_step as *const ()),
            ("mdp_optimizer_state", super::mdp_optimizer_state as *const ()),
            ("mdp_optimizer_destroy", super::mdp_optimizer_destroy as *const ()),
            ("mdp_request_test", super::mdp_request_test as *const ()),
            ("mdp_request_wait", super::mdp_request_wait as *const ()),
            ("mdp_request_free", super::mdp_request_free as *const ()),
        ]
    }
}
