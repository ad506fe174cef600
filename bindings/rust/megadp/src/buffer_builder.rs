// SPDX-License-Identifier: Apache-2.0
//! How a buffer is laid out, sharded and reduced, before it is registered.
use crate::buffer::Buffer;
use crate::element::DType;
use crate::error::{Result, check};
use crate::gradients::Shared;
use crate::grid::Ranks;
use crate::handle::Owned;
use crate::param::{Param, RawParams};
use crate::sys;
use std::ptr;

/// What is sharded over the data-parallel ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Sharding {
    /// Nothing: gradients are all-reduced, every rank keeps all optimizer state.
    Zero0 = sys::MDP_SHARDING_ZERO_0,
    /// Optimizer state: gradients are reduce-scattered, parameters all-gathered.
    #[default]
    Zero1 = sys::MDP_SHARDING_ZERO_1,
    /// And gradients: they pass through a small pool, and a rank keeps the sums of what it owns, in f32. Gradients are put, or written where
    /// [`Buffer::acquire`] says; [`Buffer::grad_mut`] and [`Synced::grad`](crate::Synced::grad) have nothing to show. Each microbatch is
    /// sent: m of them send m times as much, and all ranks make as many.
    Zero2 = sys::MDP_SHARDING_ZERO_2,
    /// As `Zero1`, but each parameter's gradient, master and state have one owner, for updates that need all of it. Owners are balanced by
    /// [`Param::cost`](crate::Param::cost).
    Whole = sys::MDP_SHARDING_WHOLE,
}

/// What a sync does about a parameter that never became ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Missing {
    /// It fails on all ranks, naming the parameter and the rank.
    #[default]
    Error = sys::MDP_MISSING_ERROR,
    /// This rank adds what its earlier microbatches brought, or zero.
    Zero = sys::MDP_MISSING_ZERO,
    /// As [`Gradients::skip`](crate::Gradients::skip).
    Skip = sys::MDP_MISSING_SKIP,
}

/// What the sum of gradients is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Scaling {
    /// The number of data-parallel ranks.
    #[default]
    Mean = sys::MDP_SCALING_MEAN,
    /// Nothing.
    Sum = sys::MDP_SCALING_SUM,
    /// The step's tokens, see [`Buffer::tokens`].
    Tokens = sys::MDP_SCALING_TOKENS,
}

/// How to lay out a buffer; see [`Buffer::builder`].
#[derive(Clone, Debug, Default)]
pub struct BufferBuilder {
    raw: sys::mdp_buffer_config,
}

impl BufferBuilder {
    /// Gradients have the dtype of their parameters; f32 unless said.
    pub fn same_grad_dtype(mut self) -> Self {
        self.raw.grad_dtype = sys::MDP_DTYPE_SAME;
        self
    }

    /// What is sharded; optimizer state unless said.
    pub fn sharding(mut self, sharding: Sharding) -> Self {
        self.raw.sharding = sharding as u32;
        self
    }

    /// What a sync does about missing gradients; an error unless said.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.raw.missing = missing as u32;
        self
    }

    /// A bucket closes once it is at least this long; `u64::MAX`: one bucket. A tenth of all unless said, at least 8192.
    pub fn bucket_elements(mut self, elements: u64) -> Self {
        self.raw.bucket_elements = elements;
        self
    }

    /// Instead of that: a bucket closes at all elements divided by this.
    pub fn bucket_count(mut self, count: u64) -> Self {
        self.raw.bucket_count = count;
        self
    }

    /// With [`Sharding::Zero2`]: for how many buckets an arena's pool has room; 2 unless said.
    pub fn pool_buckets(mut self, buckets: u64) -> Self {
        self.raw.pool_buckets = buckets;
        self
    }

    /// With [`Sharding::Zero2`]: the most bytes of gradients outside the pool, where those lie that come before their bucket's turn. A gradient
    /// beyond it is refused (MEMORY). Each rank's own; no limit unless said.
    pub fn spill_limit(mut self, bytes: u64) -> Self {
        self.raw.spill_limit = bytes;
        self
    }

    /// What the sum of gradients is divided by: [`Scaling::Mean`] unless said.
    pub fn scaling(mut self, scaling: Scaling) -> Self {
        self.raw.scaling = scaling as u32;
        self
    }

    /// The type in which f32 gradients are sent, F32 or BF16: each rank's is rounded once, sums are f32. F32 unless said.
    pub fn wire_dtype(mut self, dtype: DType) -> Self {
        self.raw.wire_dtype = dtype as u32;
        self
    }

    /// With [`DType::Bf16`] on the wire: adds to the next step's gradient what rounding lost.
    pub fn error_feedback(mut self) -> Self {
        self.raw.flags |= sys::MDP_BUFFER_ERROR_FEEDBACK;
        self
    }

    /// Looks for gradients that are not finite before they are reduced; see [`Buffer::sync`].
    pub fn check_finite(mut self) -> Self {
        self.raw.flags |= sys::MDP_BUFFER_CHECK_FINITE;
        self
    }

    /// Warns of a gradient with 10 times the largest norm of its first 100; [`Stats::large_gradients`](crate::Stats::large_gradients) counts.
    pub fn check_large(mut self) -> Self {
        self.raw.flags |= sys::MDP_BUFFER_CHECK_LARGE;
        self
    }

    /// Launches everything at the sync, in one bucket.
    pub fn no_overlap(mut self) -> Self {
        self.raw.flags |= sys::MDP_BUFFER_NO_OVERLAP;
        self
    }

    /// Pads bucket ends to a multiple of 65536 elements as well.
    pub fn high_bandwidth_padding(mut self) -> Self {
        self.raw.flags |= sys::MDP_BUFFER_HIGH_BANDWIDTH_PADDING;
        self
    }

    /// Buckets as Megatron-LM has them: max(40,000,000, 1,000,000 x dp x cp) elements.
    pub fn reference_buckets(mut self) -> Self {
        self.raw.flags |= sys::MDP_BUFFER_REFERENCE_BUCKETS;
        self
    }

    /// Takes memory also if the system says that there is too little. Said on one rank, it holds for all.
    pub fn ignore_memory(mut self) -> Self {
        self.raw.flags |= sys::MDP_BUFFER_IGNORE_MEMORY;
        self
    }

    pub(crate) fn raw(&self) -> &sys::mdp_buffer_config {
        &self.raw
    }

    /// Lays out the parameters and their gradients, allocates both (zeroed) and shares the memory with the other ranks. To be registered in
    /// the order of forward: backward then fills the buckets one after another. `on` is a [`Comm`](crate::Comm), whose ranks are then all
    /// data parallel, or a [`Grid`](crate::Grid). Collective over its ranks, blocking.
    ///
    /// # Errors
    /// INVALID (names the parameter), UNSUPPORTED, DESYNC (names the first difference and two ranks), STATE, MEMORY, SYSTEM, those of a lost
    /// communicator.
    pub fn register<'a>(&self, on: impl Into<Ranks<'a>>, params: &[Param]) -> Result<Buffer> {
        let on = on.into();
        let (comm, grid) = on.as_ptrs();
        let params = RawParams::new(params)?;
        let handle = {
            let _inside = on.enter_alone();
            let mut out = ptr::null_mut();
            // SAFETY: a live handle, of which this is the only call; structs, names and shapes live through it.
            check(unsafe { sys::mdp_buffer_register(comm, grid, &self.raw, params.as_ptr(), params.len(), &mut out) })?;
            // SAFETY: just created, and ours.
            unsafe { Owned::new(out) }?
        };
        Ok(Buffer::new(Shared::new(handle, on.tree().clone(), params.into_facts())?))
    }
}
