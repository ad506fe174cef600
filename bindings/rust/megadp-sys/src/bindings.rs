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
pub const MDP_COMM_SOCKETS: u64 = 4;

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
pub const MDP_BUFFER_IGNORE_MEMORY: u64 = 16;

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

pub type mdp_allgather_start_fn = Option<unsafe extern "C" fn(context: *mut c_void, mine: *const c_void, bytes: usize, all: *mut c_void, request: *mut *mut c_void) -> i32>;
pub type mdp_allgather_test_fn = Option<unsafe extern "C" fn(context: *mut c_void, request: *mut c_void) -> i32>;
pub type mdp_allgather_free_fn = Option<unsafe extern "C" fn(context: *mut c_void, request: *mut c_void)>;
pub type mdp_log_fn = Option<unsafe extern "C" fn(user: *mut c_void, level: i32, text: *const c_char, length: usize)>;

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
pub struct mdp_bootstrap {
    pub struct_size: u32,
    pub reserved: u32,
    pub context: *mut c_void,
    pub allgather_start: mdp_allgather_start_fn,
    pub allgather_test: mdp_allgather_test_fn,
    pub allgather_free: mdp_allgather_free_fn,
}

impl mdp_bootstrap {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_bootstrap {
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
    pub bootstrap: *const mdp_bootstrap,
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

