// SPDX-License-Identifier: Apache-2.0
//! What registration would do, without a communicator. Pure, any thread.
use crate::buffer_builder::BufferBuilder;
use crate::error::{Result, check, narrow};
use crate::grid::GridBuilder;
use crate::library::text;
use crate::optimizer_builder::OptimizerBuilder;
use crate::param::{Param, RawParams};
use crate::sys;
use std::ptr;

/// Memory of one rank, in bytes, before each allocation is rounded up to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanReport {
    /// Whole parameters, with padding.
    pub param_bytes: u64,
    /// Whole gradients, with padding; with [`Sharding::Zero2`](crate::Sharding::Zero2) the pool.
    pub grad_bytes: u64,
    /// With [`Sharding::Zero2`](crate::Sharding::Zero2): the sums of the owned pieces in f32; else 0, gradients are reduced in place.
    pub grad_shard_bytes: u64,
    /// The owned pieces in fp32; 0 for f32 parameters, and for bf16 ones with [`OptimizerBuilder::no_master`].
    pub master_bytes: u64,
    /// What the optimizer's rule keeps of the owned pieces: of AdamW both moments in fp32.
    pub state_bytes: u64,
    /// The step's scalars, and what ranks tell each other at a sync; with [`Rule::Caller`](crate::Rule::Caller) the gradients that it is handed.
    pub scratch_bytes: u64,
    /// Alignment gaps and bucket padding, in elements, over all arenas.
    pub padding_elements: u64,
    /// Number of buckets over all arenas.
    pub buckets: u64,
    /// Elements of parameters whose state this rank keeps, without padding.
    pub owned_elements: u64,
    /// With the CUDA backend, on the device, besides: an estimate of what NCCL takes for the communicators of training.
    pub communicator_bytes: u64,
    /// With [`Sharding::Zero2`](crate::Sharding::Zero2), besides: the most that may come to lie outside the pool, all gradients or the limit.
    pub spill_bytes: u64,
    /// With [`BufferBuilder::error_feedback`]: what rounding lost, f32.
    pub feedback_bytes: u64,
    /// With [`OptimizerBuilder::average_decay`], besides: averages, and what a swap keeps aside.
    pub average_bytes: u64,
}

/// What [`BufferBuilder::register`] and [`OptimizerBuilder::create`] would allocate on `rank` of `world` ranks. `optimizer` has all groups
/// (no [`OptimizerBuilder::first_param_group`]); `None`: AdamW with its state in f32.
///
/// # Errors
/// INVALID, UNSUPPORTED, as they.
///
/// ```
/// use megadp::{Buffer, Grid, Optimizer, Param, Rule};
/// let params = [Param::new("w", &[1024, 1024])];
/// let report = megadp::plan(&Grid::builder(), 4, 0, &Buffer::builder(), None, &params)?;
/// assert_eq!(report.owned_elements, 262_144);
/// assert_eq!(report.state_bytes, 2 * 4 * 262_144);
/// let lion = Optimizer::builder().rule(Rule::Lion).bf16_state();
/// let report = megadp::plan(&Grid::builder(), 4, 0, &Buffer::builder(), Some(&lion), &params)?;
/// assert_eq!(report.state_bytes, 2 * 262_144);
/// # Ok::<(), megadp::Error>(())
/// ```
pub fn plan(
    grid: &GridBuilder,
    world: usize,
    rank: usize,
    buffer: &BufferBuilder,
    optimizer: Option<&OptimizerBuilder>,
    params: &[Param],
) -> Result<PlanReport> {
    let (world, rank) = (narrow(world, "world")?, narrow(rank, "rank")?);
    let params = RawParams::new(params)?;
    let mut out = sys::mdp_plan_report::new();
    grid.with_raw(|grid| {
        with_optimizer(optimizer, params.len(), |optimizer| {
            // SAFETY: all pointers are to values that live to the end of the call.
            check(unsafe { sys::mdp_plan(grid, world, rank, buffer.raw(), params.as_ptr(), params.len(), optimizer, &mut out) })
        })
    })?;
    Ok(PlanReport {
        param_bytes: out.param_bytes,
        grad_bytes: out.grad_bytes,
        grad_shard_bytes: out.grad_shard_bytes,
        master_bytes: out.master_bytes,
        state_bytes: out.state_bytes,
        scratch_bytes: out.scratch_bytes,
        padding_elements: out.padding_elements,
        buckets: out.buckets,
        owned_elements: out.owned_elements,
        communicator_bytes: out.communicator_bytes,
        spill_bytes: out.spill_bytes,
        feedback_bytes: out.feedback_bytes,
        average_bytes: out.average_bytes,
    })
}

/// The whole layout, as one line of JSON: arenas with the place of every parameter, the buckets, the ranges that each rank owns, and the bytes
/// of each rank.
///
/// # Errors
/// As [`plan`].
pub fn plan_json(
    grid: &GridBuilder,
    world: usize,
    buffer: &BufferBuilder,
    optimizer: Option<&OptimizerBuilder>,
    params: &[Param],
) -> Result<String> {
    let world = narrow(world, "world")?;
    let params = RawParams::new(params)?;
    grid.with_raw(|grid| {
        with_optimizer(optimizer, params.len(), |optimizer| {
            text(|json, capacity, needed| {
                // SAFETY: text() hands over memory of that size; all pointers are to values that live to the end of the call.
                unsafe { sys::mdp_plan_json(grid, world, buffer.raw(), params.as_ptr(), params.len(), optimizer, json, capacity, needed) }
            })
        })
    })
}

// NULL where there is none.
fn with_optimizer<R>(
    optimizer: Option<&OptimizerBuilder>,
    params: usize,
    with: impl FnOnce(*const sys::mdp_optimizer_config) -> Result<R>,
) -> Result<R> {
    match optimizer {
        Some(optimizer) => optimizer.with_raw(params, |config| with(config)),
        None => with(ptr::null()),
    }
}
