// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp_layers.h. Not to be edited: change the header or bindings/generator/raw_rust_layers.py.
use crate::structs::*;
use crate::types::*;
use core::ffi::c_void;
use core::marker::{PhantomData, PhantomPinned};

#[repr(C)]
pub struct mdp_tp_linear {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct mdp_tp_saved {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

#[repr(C)]
pub struct mdp_halo {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

pub type mdp_tp_region = u32;
pub type mdp_tp_grad = u32;
pub type mdp_tp_split = u32;
pub type mdp_edge = u32;
pub type mdp_cp_form = u32;
pub type mdp_cp_mask = u32;

pub const MDP_TP_REGION_UNSET: mdp_tp_region = 0;
pub const MDP_TP_COPY: mdp_tp_region = 1;
pub const MDP_TP_REDUCE: mdp_tp_region = 2;
pub const MDP_TP_SCATTER: mdp_tp_region = 3;
pub const MDP_TP_GATHER: mdp_tp_region = 4;
pub const MDP_TP_REDUCE_SCATTER: mdp_tp_region = 5;
pub const MDP_TP_EXCHANGE: mdp_tp_region = 6;

pub const MDP_TP_GRAD_UNSET: mdp_tp_grad = 0;
pub const MDP_TP_GRAD_PARTIAL: mdp_tp_grad = 1;
pub const MDP_TP_GRAD_REPLICATED: mdp_tp_grad = 2;

pub const MDP_TP_SPLIT_UNSET: mdp_tp_split = 0;
pub const MDP_TP_COLUMN: mdp_tp_split = 1;
pub const MDP_TP_ROW: mdp_tp_split = 2;

pub const MDP_TP_LINEAR_BIAS: u64 = 1;
pub const MDP_TP_LINEAR_TRANSPOSED: u64 = 2;
pub const MDP_TP_LINEAR_SEQUENCE: u64 = 4;
pub const MDP_TP_LINEAR_GATHER_OUTPUT: u64 = 8;
pub const MDP_TP_LINEAR_WHOLE_INPUT: u64 = 16;
pub const MDP_TP_LINEAR_CHECK_REPLICATED: u64 = 32;

pub const MDP_TP_REGION_CHECK_REPLICATED: u64 = 1;

pub const MDP_TP_EMBEDDING_SEQUENCE: u64 = 1;
pub const MDP_TP_EMBEDDING_CHECK_REPLICATED: u64 = 2;

pub const MDP_TP_CROSS_ENTROPY_IGNORE: u64 = 1;
pub const MDP_TP_CROSS_ENTROPY_CHECK_REPLICATED: u64 = 2;

pub const MDP_EDGE_KEEP: mdp_edge = 0;
pub const MDP_EDGE_ZERO: mdp_edge = 1;
pub const MDP_EDGE_PERIODIC: mdp_edge = 2;
pub const MDP_EDGE_REFLECT: mdp_edge = 3;

pub const MDP_HALO_FACES: u64 = 1;

pub const MDP_HALO_BACKWARD: u64 = 1;

pub const MDP_CP_AUTO: mdp_cp_form = 0;
pub const MDP_CP_RING: mdp_cp_form = 1;
pub const MDP_CP_ALL_TO_ALL: mdp_cp_form = 2;

pub const MDP_CP_MASK_NONE: mdp_cp_mask = 0;
pub const MDP_CP_MASK_CAUSAL: mdp_cp_mask = 1;

pub const MDP_CP_CAUSAL: u64 = 1;

pub type mdp_cp_attention_fn = Option<unsafe extern "C" fn(user: *mut c_void, block: *const mdp_cp_block) -> i32>;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_tp_region_config {
    pub struct_size: u32,
    pub region: mdp_tp_region,
    pub grad: mdp_tp_grad,
    pub dim: i32,
    pub to_dim: i32,
    pub reserved: u32,
    pub parts: *const u64,
    pub to_parts: *const u64,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_tp_linear_config {
    pub struct_size: u32,
    pub split: mdp_tp_split,
    pub in_features: i64,
    pub out_features: i64,
    pub blocks: *const i64,
    pub block_count: u64,
    pub buffer: *mut mdp_buffer,
    pub weight: u64,
    pub bias: u64,
    pub dtype: mdp_dtype,
    pub grad: mdp_tp_grad,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_tp_embedding_config {
    pub struct_size: u32,
    pub grad: mdp_tp_grad,
    pub rows: i64,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_tp_cross_entropy_config {
    pub struct_size: u32,
    pub reserved: u32,
    pub classes: i64,
    pub ignore_index: i64,
    pub label_smoothing: f64,
    pub z_loss: f64,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_halo_config {
    pub struct_size: u32,
    pub dtype: mdp_dtype,
    pub ndim: i32,
    pub fields: u32,
    pub grid: *const i64,
    pub shape: *const i64,
    pub low: *const i64,
    pub high: *const i64,
    pub edges: *const mdp_edge,
    pub flags: u64,
    pub arrays: u64,
    pub staggered: *const i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_conv_config {
    pub struct_size: u32,
    pub reserved: u32,
    pub kernel: i64,
    pub stride: i64,
    pub dilation: i64,
    pub padding_low: i64,
    pub padding_high: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_conv_part {
    pub struct_size: u32,
    pub reserved: u32,
    pub low: i64,
    pub high: i64,
    pub output_begin: i64,
    pub output_size: i64,
    pub first: i64,
    pub inside_begin: i64,
    pub inside_size: i64,
    pub whole_output: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_cp_config {
    pub struct_size: u32,
    pub form: mdp_cp_form,
    pub bounds: *const i64,
    pub bound_count: u64,
    pub flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mdp_cp_block {
    pub struct_size: u32,
    pub mask: mdp_cp_mask,
    pub q_begin: i64,
    pub k_begin: i64,
    pub head_begin: i64,
    pub q: *const mdp_tensor,
    pub k: *const mdp_tensor,
    pub v: *const mdp_tensor,
    pub out: *const mdp_tensor,
    pub lse: *const mdp_tensor,
    pub grad_out: *const mdp_tensor,
    pub grad_q: *const mdp_tensor,
    pub grad_k: *const mdp_tensor,
    pub grad_v: *const mdp_tensor,
    pub q_bounds: *const i64,
    pub k_bounds: *const i64,
    pub bound_count: u64,
    pub stream: mdp_stream,
}

impl mdp_tp_region_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_tp_region_config {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_tp_linear_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_tp_linear_config {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_tp_embedding_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_tp_embedding_config {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_tp_cross_entropy_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_tp_cross_entropy_config {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_halo_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_halo_config {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_conv_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_conv_config {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_conv_part {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_conv_part {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_cp_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_cp_config {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_cp_block {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_cp_block {
    fn default() -> Self {
        Self::new()
    }
}

