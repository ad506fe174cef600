// SPDX-License-Identifier: Apache-2.0
//! What can be asked of a buffer: what this rank owns, counters, and the times of buckets.
use crate::buffer::Buffer;
use crate::error::{Result, check};
use crate::sys;
use std::ops::Range;
use std::ptr;
use std::time::Duration;

impl Buffer {
    /// The ranges of elements whose optimizer state this rank keeps, by arena, in order of position. Local.
    ///
    /// # Errors
    /// STATE (forked child).
    pub fn owned(&self) -> Result<Vec<OwnedRange>> {
        let _inside = self.shared.enter();
        let mut needed = 0;
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_buffer_owned(self.as_raw(), ptr::null_mut(), 0, &mut needed) })?;
        let mut ranges = vec![sys::mdp_range::new(); needed];
        // SAFETY: the same, with memory for that many.
        check(unsafe { sys::mdp_buffer_owned(self.as_raw(), ranges.as_mut_ptr(), needed, &mut needed) })?;
        Ok(ranges.iter().map(OwnedRange::new).collect())
    }

    /// Counters since registration. Local.
    ///
    /// # Errors
    /// STATE (forked child).
    pub fn stats(&self) -> Result<Stats> {
        let _inside = self.shared.enter();
        let mut out = sys::mdp_stats_report::new();
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_buffer_stats(self.as_raw(), &mut out) })?;
        Ok(Stats {
            comm: Duration::from_nanos(out.comm_ns),
            exposed: Duration::from_nanos(out.exposed_ns),
            bytes: out.bytes,
            buckets: out.buckets,
            launched_in_backward: out.launched_in_backward,
            syncs: out.syncs,
            host_syncs: out.host_syncs,
            spill_peak_bytes: out.spill_peak_bytes,
            large_gradients: out.large_gradients,
        })
    }

    /// Of each parameter the [`Param::use_order`](crate::Param::use_order) with which the last synced step's gradients would have filled bucket
    /// after bucket; for the next time that they are registered. The same on all ranks of a stage. Collective over the world, blocking.
    ///
    /// # Errors
    /// STATE (no sync yet), UNSUPPORTED (ranks of a stage hold different experts), those of a lost communicator.
    pub fn use_order(&self) -> Result<Vec<i32>> {
        let _inside = self.shared.enter_alone();
        let mut order = vec![0; self.shared.params.len()];
        // SAFETY: a live handle, the buffer's only call, with memory for a number of each parameter.
        check(unsafe { sys::mdp_buffer_use_order(self.as_raw(), order.as_mut_ptr(), order.len()) })?;
        Ok(order)
    }

    /// The last step's times of one bucket, by number in launch order. Local.
    ///
    /// # Errors
    /// INVALID (no such bucket), STATE (forked child).
    pub fn bucket(&self, bucket: usize) -> Result<BucketReport> {
        let _inside = self.shared.enter();
        let mut out = sys::mdp_bucket_report::new();
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_buffer_bucket(self.as_raw(), bucket, &mut out) })?;
        Ok(BucketReport::new(&out))
    }
}

/// One owned piece of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedRange {
    /// The arena: one per parameter dtype, gradient dtype and class, in order of first registration.
    pub arena: usize,
    /// The bucket, by number in launch order.
    pub bucket: usize,
    /// The parameter.
    pub param: usize,
    /// Elements within the arena.
    pub elements: Range<usize>,
    /// The element of the flattened parameter where the range begins.
    pub param_begin: usize,
}

impl OwnedRange {
    fn new(raw: &sys::mdp_range) -> Self {
        OwnedRange {
            arena: raw.arena as usize,
            bucket: raw.bucket as usize,
            param: raw.param as usize,
            elements: raw.begin as usize..raw.end as usize,
            param_begin: raw.param_begin as usize,
        }
    }
}

/// Sums since registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Time that collectives of gradients and parameters took, one after another.
    pub comm: Duration,
    /// Time that callers spent waiting for them.
    pub exposed: Duration,
    /// Bytes of the buckets that were reduced and gathered.
    pub bytes: u64,
    /// Buckets launched.
    pub buckets: u64,
    /// Of these, before the sync was called.
    pub launched_in_backward: u64,
    /// Syncs that finished.
    pub syncs: u64,
    /// How often a call made its thread wait for a device.
    pub host_syncs: u64,
    /// With [`Sharding::Zero2`](crate::Sharding::Zero2): the most bytes of gradients outside the pool at a time.
    pub spill_peak_bytes: u64,
    /// With [`BufferBuilder::check_large`](crate::BufferBuilder::check_large): warnings.
    pub large_gradients: u64,
}

/// Where a bucket is in its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BucketState {
    /// Waits for gradients.
    Filling,
    /// All gradients are there; waits for earlier buckets.
    Ready,
    /// Being reduced.
    InFlight,
    /// Reduced.
    Reduced,
    /// Stepped; new parameters on their way.
    Gathering,
    /// Parameters up to date on all ranks.
    Whole,
    /// What a newer library knows.
    Other(u32),
}

/// The last step's times of one bucket, in nanoseconds of CLOCK_MONOTONIC; none if it has not happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketReport {
    /// Where it is.
    pub state: BucketState,
    /// Its last gradient arrived.
    pub ready_ns: Option<u64>,
    /// Its reduction began.
    pub reduce_begin_ns: Option<u64>,
    /// It was reduced.
    pub reduce_end_ns: Option<u64>,
    /// The gather of its parameters began.
    pub gather_begin_ns: Option<u64>,
    /// They were whole.
    pub gather_end_ns: Option<u64>,
    /// The sync was called: the end of backward.
    pub sync_ns: Option<u64>,
}

impl BucketReport {
    fn new(raw: &sys::mdp_bucket_report) -> Self {
        let time = |ns: u64| (ns != 0).then_some(ns);
        let state = match raw.state {
            sys::MDP_BUCKET_FILLING => BucketState::Filling,
            sys::MDP_BUCKET_READY => BucketState::Ready,
            sys::MDP_BUCKET_IN_FLIGHT => BucketState::InFlight,
            sys::MDP_BUCKET_REDUCED => BucketState::Reduced,
            sys::MDP_BUCKET_GATHERING => BucketState::Gathering,
            sys::MDP_BUCKET_WHOLE => BucketState::Whole,
            other => BucketState::Other(other),
        };
        BucketReport {
            state,
            ready_ns: time(raw.ready_ns),
            reduce_begin_ns: time(raw.reduce_begin_ns),
            reduce_end_ns: time(raw.reduce_end_ns),
            gather_begin_ns: time(raw.gather_begin_ns),
            gather_end_ns: time(raw.gather_end_ns),
            sync_ns: time(raw.sync_ns),
        }
    }
}
