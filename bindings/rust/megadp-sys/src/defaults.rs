// SPDX-License-Identifier: Apache-2.0
// Written by bindings/generate.py from include/megadp.h. Not to be edited: change the header or bindings/generator/raw_rust_defaults.py.
use crate::structs::*;

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

impl mdp_param_group {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_param_group {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_param_state {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_param_state {
    fn default() -> Self {
        Self::new()
    }
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

impl mdp_update {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_update {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_scaler {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_scaler {
    fn default() -> Self {
        Self::new()
    }
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

impl mdp_grad_summary {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_grad_summary {
    fn default() -> Self {
        Self::new()
    }
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

impl mdp_checkpoint_part {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_checkpoint_part {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_checkpoint_tensor {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_checkpoint_tensor {
    fn default() -> Self {
        Self::new()
    }
}

impl mdp_checkpoint_config {
    /// All zero, but for the struct_size.
    pub const fn new() -> Self {
        // SAFETY: integers, numbers and raw pointers may all be zero.
        let mut new: Self = unsafe { core::mem::zeroed() };
        new.struct_size = core::mem::size_of::<Self>() as u32;
        new
    }
}

impl Default for mdp_checkpoint_config {
    fn default() -> Self {
        Self::new()
    }
}

