// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust.py.
use crate::structs::*;
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
pub type mdp_scaling = u32;
pub type mdp_rule = u32;
pub type mdp_norm = u32;
pub type mdp_missing = u32;
pub type mdp_random = u32;
pub type mdp_bucket_state = u32;
pub type mdp_log_level = i32;

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
pub const MDP_COMM_THREADS_ALWAYS: u64 = 8;

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
pub const MDP_PLACEMENT_PARTIAL_SUM: mdp_placement = 3;
pub const MDP_PLACEMENT_PARTIAL_MEAN: mdp_placement = 4;

pub const MDP_SHARDING_DEFAULT: mdp_sharding = 0;
pub const MDP_SHARDING_ZERO_0: mdp_sharding = 1;
pub const MDP_SHARDING_ZERO_1: mdp_sharding = 2;
pub const MDP_SHARDING_ZERO_2: mdp_sharding = 3;
pub const MDP_SHARDING_WHOLE: mdp_sharding = 4;

pub const MDP_SCALING_MEAN: mdp_scaling = 0;
pub const MDP_SCALING_SUM: mdp_scaling = 1;
pub const MDP_SCALING_TOKENS: mdp_scaling = 2;

pub const MDP_RULE_ADAMW: mdp_rule = 0;
pub const MDP_RULE_ADAM: mdp_rule = 1;
pub const MDP_RULE_SGD: mdp_rule = 2;
pub const MDP_RULE_SGD_MOMENTUM: mdp_rule = 3;
pub const MDP_RULE_SGD_NESTEROV: mdp_rule = 4;
pub const MDP_RULE_LION: mdp_rule = 5;
pub const MDP_RULE_CALLER: mdp_rule = 6;

pub const MDP_NORM_L2: mdp_norm = 0;
pub const MDP_NORM_INF: mdp_norm = 1;

pub const MDP_MISSING_ERROR: mdp_missing = 0;
pub const MDP_MISSING_ZERO: mdp_missing = 1;
pub const MDP_MISSING_SKIP: mdp_missing = 2;

pub const MDP_PARAM_FROZEN: u64 = 1;
pub const MDP_PARAM_OWN_BUCKET: u64 = 2;

pub const MDP_BUFFER_NO_OVERLAP: u64 = 1;
pub const MDP_BUFFER_HIGH_BANDWIDTH_PADDING: u64 = 2;
pub const MDP_BUFFER_REFERENCE_BUCKETS: u64 = 4;
pub const MDP_BUFFER_IGNORE_MEMORY: u64 = 8;
pub const MDP_BUFFER_ERROR_FEEDBACK: u64 = 16;
pub const MDP_BUFFER_CHECK_FINITE: u64 = 32;
pub const MDP_BUFFER_CHECK_LARGE: u64 = 64;

pub const MDP_GRAD_ADD: u64 = 1;
pub const MDP_GRAD_MORE: u64 = 2;

pub const MDP_PARAM_GROUP_SET_LR: u64 = 1;
pub const MDP_PARAM_GROUP_SET_WEIGHT_DECAY: u64 = 2;
pub const MDP_PARAM_GROUP_SET_BETA1: u64 = 4;
pub const MDP_PARAM_GROUP_SET_BETA2: u64 = 8;
pub const MDP_PARAM_GROUP_SET_MOMENTUM: u64 = 16;

pub const MDP_OPTIMIZER_SET_LR: u64 = 1;
pub const MDP_OPTIMIZER_SET_BETA1: u64 = 2;
pub const MDP_OPTIMIZER_SET_BETA2: u64 = 4;
pub const MDP_OPTIMIZER_SET_MOMENTUM: u64 = 8;
pub const MDP_OPTIMIZER_SOME_GROUPS: u64 = 16;
pub const MDP_OPTIMIZER_NO_MASTER: u64 = 32;
pub const MDP_OPTIMIZER_STOCHASTIC_STATE: u64 = 64;
pub const MDP_OPTIMIZER_CHECK_UPDATE: u64 = 128;

pub const MDP_SCALER_CONSTANT: u64 = 1;

pub const MDP_STEP_SET_LR: u64 = 1;
pub const MDP_STEP_UNCHECKED: u64 = 2;

pub const MDP_STEPPED_SKIPPED: u64 = 1;
pub const MDP_STEPPED_CLIPPED: u64 = 2;
pub const MDP_STEPPED_UNCHECKED: u64 = 4;

pub const MDP_RANDOM_UNSET: mdp_random = 0;
pub const MDP_RANDOM_REPLICATED: mdp_random = 1;
pub const MDP_RANDOM_TENSOR: mdp_random = 2;
pub const MDP_RANDOM_EXPERT: mdp_random = 3;

pub const MDP_CHECKPOINT_PARAMS_ONLY: u64 = 1;
pub const MDP_CHECKPOINT_LOAD_HYPER: u64 = 2;

pub const MDP_BUCKET_FILLING: mdp_bucket_state = 0;
pub const MDP_BUCKET_READY: mdp_bucket_state = 1;
pub const MDP_BUCKET_IN_FLIGHT: mdp_bucket_state = 2;
pub const MDP_BUCKET_REDUCED: mdp_bucket_state = 3;
pub const MDP_BUCKET_GATHERING: mdp_bucket_state = 4;
pub const MDP_BUCKET_WHOLE: mdp_bucket_state = 5;

pub const MDP_LOG_ERROR: mdp_log_level = 0;
pub const MDP_LOG_WARNING: mdp_log_level = 1;
pub const MDP_LOG_INFO: mdp_log_level = 2;
pub const MDP_LOG_DEBUG: mdp_log_level = 3;

pub type mdp_allgather_start_fn = Option<unsafe extern "C" fn(context: *mut c_void, mine: *const c_void, bytes: usize, all: *mut c_void, request: *mut *mut c_void) -> i32>;
pub type mdp_allgather_test_fn = Option<unsafe extern "C" fn(context: *mut c_void, request: *mut c_void) -> i32>;
pub type mdp_allgather_free_fn = Option<unsafe extern "C" fn(context: *mut c_void, request: *mut c_void)>;
pub type mdp_interrupted_fn = Option<unsafe extern "C" fn(context: *mut c_void) -> i32>;
pub type mdp_update_fn = Option<unsafe extern "C" fn(user: *mut c_void, update: *const mdp_update) -> i32>;
pub type mdp_log_fn = Option<unsafe extern "C" fn(user: *mut c_void, level: mdp_log_level, text: *const c_char, length: usize)>;

