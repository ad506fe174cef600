// SPDX-License-Identifier: Apache-2.0
//! All parameters and gradients of a model: laid out, cut into buckets, shared with the other ranks.
use crate::element::{Element, Strided, dense_view, tensor};
use crate::error::{Code, Error, Result, check};
use crate::gradients::{GradMut, Gradients, Shared};
use crate::grid::Ranks;
use crate::handle::{NotSync, Owned, Tree};
use crate::param::{Param, RawParams};
use crate::request::Request;
use crate::sys;
use std::cell::RefCell;
use std::ffi::CString;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

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
    /// As [`Gradients::skip`].
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
            let _inside = on.tree().enter();
            let mut out = ptr::null_mut();
            // SAFETY: a live handle, the tree's only call; structs, names and shapes live through it.
            check(unsafe { sys::mdp_buffer_register(comm, grid, &self.raw, params.as_ptr(), params.len(), &mut out) })?;
            // SAFETY: just created, and ours.
            unsafe { Owned::new(out) }?
        };
        let shared = Arc::new(Shared::new(handle, params.into_facts())?);
        Ok(Buffer { shared, tree: on.tree().clone(), closed: false, broadcast: RefCell::default(), not_sync: NotSync::default() })
    }
}

/// All parameters of a model and their gradients. Its memory is the library's, shared with the ranks of this node; it lives until the
/// last of the buffer, its [`Gradients`] and its optimizers is dropped.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tree: Arc<Tree>,
    /// A sync has been called, and no step or new beginning after it: gradients are not to be written.
    pub(crate) closed: bool,
    /// What may still write to the parameters.
    pub(crate) broadcast: RefCell<Option<Request>>,
    not_sync: NotSync,
}

impl Buffer {
    /// How parameters are laid out.
    ///
    /// ```
    /// use megadp::{Buffer, Comm, Param, Sharding};
    /// let comm = Comm::builder().connect()?;
    /// let params = [Param::new("w", &[3, 3]), Param::new("b", &[3])];
    /// let mut buffer = Buffer::builder().sharding(Sharding::Zero0).register(&comm, &params)?;
    /// buffer.write_param(0, &[0.5f32; 9])?;
    /// assert_eq!(buffer.param::<f32>(0)?, [0.5; 9]);
    /// assert_eq!(buffer.param::<f32>(1)?, [0.0; 3]);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn builder() -> BufferBuilder {
        BufferBuilder::default()
    }

    /// The C handle, for calls through [`sys`]: it stays this value's. The thread rules of the header, and that no slice of memory that such a
    /// call writes to is in use, are the caller's to keep.
    pub fn as_raw(&self) -> *mut sys::mdp_buffer {
        self.shared.as_ptr()
    }

    /// How many parameters were registered.
    pub fn len(&self) -> usize {
        self.shared.params.len()
    }

    /// Whether no parameter was registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Into how many buckets their gradients are cut. Local.
    ///
    /// # Errors
    /// STATE (forked child).
    pub fn buckets(&self) -> Result<usize> {
        let _inside = self.tree.enter();
        let (mut params, mut buckets) = (0, 0);
        // SAFETY: a live handle, the tree's only call.
        check(unsafe { sys::mdp_buffer_counts(self.as_raw(), &mut params, &mut buckets) })?;
        Ok(buckets)
    }

    /// The index of the parameter of that name. Local.
    ///
    /// # Errors
    /// INVALID (no parameter is called so), STATE (forked child).
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Param};
    /// let buffer = Buffer::builder().register(&Comm::builder().connect()?, &[Param::new("weight", &[4]), Param::new("bias", &[2])])?;
    /// assert_eq!(buffer.param::<f32>(buffer.find("bias")?)?.len(), 2);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn find(&self, name: &str) -> Result<usize> {
        let c_name = CString::new(name).map_err(|_| Error::new(Code::Invalid, format!("name is {name:?}; it must not hold a NUL")))?;
        let _inside = self.tree.enter();
        let mut param = 0;
        // SAFETY: a live handle, the tree's only call; the name lives through it.
        check(unsafe { sys::mdp_buffer_find(self.as_raw(), c_name.as_ptr(), &mut param) })?;
        Ok(param)
    }

    /// What may be called from any thread at any time: gradients that arrive, parameters that are waited for.
    pub fn gradients(&self) -> Gradients {
        Gradients::new(self.shared.clone())
    }

    /// The values of a parameter, row-major, without a copy. Waits until it is whole after the last step. Local.
    ///
    /// # Errors
    /// INVALID (no such parameter; elements of another type), STATE (frozen), UNSUPPORTED (memory of a device), those of a lost communicator.
    pub fn param<T: Element>(&self, param: usize) -> Result<&[T]> {
        let (data, len) = self.whole_param(param)?;
        // SAFETY: whole, so nobody writes to it before a step, a write or a broadcast, for all of which the buffer must be borrowed
        // mutably; and the memory lives as long as the buffer.
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// The same to be written to, between a step and the next forward: alike on all ranks, or before [`Buffer::broadcast`]. When it is
    /// dropped, the optimizer's masters take over all parameters as they then are, at the next step. Local.
    ///
    /// # Errors
    /// As [`Buffer::param`].
    pub fn param_mut<T: Element>(&mut self, param: usize) -> Result<ParamMut<'_, T>> {
        let (data, len) = self.whole_param(param)?;
        Ok(ParamMut { data, len, buffer: self, elements: PhantomData })
    }

    fn whole_param<T: Element>(&self, param: usize) -> Result<(*mut T, usize)> {
        self.shared.check(param)?;
        let view = {
            let _inside = self.tree.enter();
            let mut view = sys::mdp_tensor::new();
            // SAFETY: a live handle, the tree's only call.
            check(unsafe { sys::mdp_buffer_param_view(self.as_raw(), param, &mut view) })?;
            view
        };
        let found = dense_view(&view, &format!("parameter {param}"))?;
        self.wait(param)?;
        Ok(found)
    }

    /// Waits until a parameter holds its values after the last step. Local; at most for the timeout.
    ///
    /// # Errors
    /// INVALID, those of a lost communicator.
    pub fn wait(&self, param: usize) -> Result<()> {
        self.end_broadcast()?;
        self.shared.wait(param)
    }

    /// Waits until every parameter holds its values after the last step. Local; at most for the timeout.
    ///
    /// # Errors
    /// Those of a lost communicator.
    pub fn wait_all(&self) -> Result<()> {
        self.end_broadcast()?;
        self.shared.wait_all()
    }

    /// Copies a parameter out, row-major, cast to the elements' type (f32, bf16, f16 or f64). Waits as [`Buffer::wait`]. Local.
    ///
    /// # Errors
    /// INVALID, STATE (frozen), UNSUPPORTED (memory of a device), those of a lost communicator.
    pub fn read_param<T: Element>(&self, param: usize, to: &mut [T]) -> Result<()> {
        let shape = self.shared.shape_on_host(param)?;
        let to =
            Strided::from(&*to).tensor(shape).map(|_| tensor(to.as_mut_ptr(), shape, None)).map_err(|error| error.about_param(param))?;
        self.end_broadcast()?;
        let _inside = self.tree.enter();
        // SAFETY: a live handle, the tree's only call; `to` is borrowed mutably, and has the parameter's size.
        check(unsafe { sys::mdp_param_read(self.as_raw(), param, &to, ptr::null_mut()) })
    }

    /// Copies into a parameter, cast from the elements' type (f32, bf16, f16 or f64): alike on all ranks, or before [`Buffer::broadcast`]. The
    /// master of this parameter follows at the next step. Waits as [`Buffer::wait`]. Local.
    ///
    /// # Errors
    /// INVALID, STATE (frozen), UNSUPPORTED (memory of a device), those of a lost communicator.
    pub fn write_param<'a, T: Element>(&mut self, param: usize, from: impl Into<Strided<'a, T>>) -> Result<()> {
        let shape = self.shared.shape_on_host(param)?;
        let from = from.into().tensor(shape).map_err(|error| error.about_param(param))?;
        self.end_broadcast()?;
        let _inside = self.tree.enter();
        // SAFETY: a live handle, the tree's only call; no slice of the parameter is in use, since the buffer is borrowed mutably.
        check(unsafe { sys::mdp_param_write(self.as_raw(), param, &from, ptr::null_mut()) })
    }

    /// Compares all parameters, bit for bit, over each data-parallel group. Collective, blocking; slow: for checks.
    ///
    /// # Errors
    /// DESYNC (names the first parameter that differs and two ranks), STATE, those of a lost communicator.
    pub fn verify(&self) -> Result<()> {
        let _inside = self.tree.enter();
        // SAFETY: a live handle, the tree's only call; it only reads.
        check(unsafe { sys::mdp_buffer_verify(self.as_raw()) })
    }

    /// With [`Scaling::Tokens`]: over how many tokens (or samples) this rank's losses of the step are summed. Steps and norms divide by the
    /// sum over the data-parallel ranks, by 1 if that is 0; reduced gradients stay sums. Ranks that share a batch say the same, or one does.
    /// Once a step, before the sync. Local; with half-width gradients on all ranks before the first one, collective over the world, blocking:
    /// there reductions divide.
    ///
    /// # Errors
    /// INVALID, STATE (another scaling; twice in a step; after the sync; after the first half-width gradient), those of a lost communicator.
    pub fn tokens(&mut self, count: f64) -> Result<()> {
        let _inside = self.tree.enter();
        // SAFETY: a live handle, the tree's only call.
        check(unsafe { sys::mdp_grad_tokens(self.as_raw(), count) })
    }

    /// Says whether the microbatch that begins is the last one of its step: only then do gradients become final. Without this call every step
    /// has one microbatch. With [`Sharding::Zero2`] it launches what the one before has left, zero where nothing came. Local.
    ///
    /// # Errors
    /// STATE (gradients of the last microbatch have come already; a sync is pending), those of a lost communicator.
    pub fn begin_microbatch(&mut self, last: bool) -> Result<()> {
        // SAFETY: a live handle, the tree's only call.
        self.begin(|buffer| unsafe { sys::mdp_microbatch_begin(buffer, last.into()) })
    }

    /// Sets all gradients to zero and begins the step anew; what was put, ready or skipped is forgotten. Needed after a step that failed, and
    /// where a program adds into [`Buffer::grad_mut`] itself. Local.
    ///
    /// # Errors
    /// STATE (a bucket of this step has been launched, or a sync is pending), those of a lost communicator.
    pub fn zero_grad(&mut self) -> Result<()> {
        // SAFETY: a live handle, the tree's only call; no slice of a gradient is in use, since the buffer is borrowed mutably.
        self.begin(|buffer| unsafe { sys::mdp_buffer_zero_grad(buffer, ptr::null_mut()) })
    }

    fn begin(&mut self, call: impl FnOnce(*mut sys::mdp_buffer) -> sys::mdp_status) -> Result<()> {
        let inside = self.tree.enter();
        self.shared.begin(|| check(call(self.shared.as_ptr())))?;
        drop(inside);
        self.closed = false;
        Ok(())
    }

    /// The memory of a gradient that has not come yet, to be written (or added to) before [`GradMut::ready`]. It holds what it held: zero, or
    /// the last step's. Waits until the last step no longer reads it. Local.
    ///
    /// # Errors
    /// INVALID (no such parameter; elements of another type), STATE (frozen; ready or skipped already; after a sync), UNSUPPORTED (memory of
    /// a device; [`Sharding::Zero2`], where [`Buffer::acquire`] lends it), those of a lost communicator.
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Param};
    /// # let comm = Comm::builder().connect()?;
    /// let mut buffer = Buffer::builder().register(&comm, &[Param::new("w", &[3])])?;
    /// let mut grad = buffer.grad_mut::<f32>(0)?;
    /// grad.copy_from_slice(&[1.0, 2.0, 3.0]);
    /// grad.ready()?;
    /// assert_eq!(buffer.sync()?.grad::<f32>(0)?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn grad_mut<T: Element>(&mut self, param: usize) -> Result<GradMut<'_, T>> {
        self.shared.check(param)?;
        if self.closed {
            let text = format!("the gradient of parameter {param} cannot be written between a sync and the step");
            return Err(Error::new(Code::State, text).about_param(param));
        }
        let (data, len) = self.grad_view(param)?;
        self.wait(param)?;
        self.shared.lend(param, data, len)
    }

    pub(crate) fn grad_view<T: Element>(&self, param: usize) -> Result<(*mut T, usize)> {
        let _inside = self.tree.enter();
        let mut view = sys::mdp_tensor::new();
        // SAFETY: a live handle, the tree's only call.
        check(unsafe { sys::mdp_buffer_grad_view(self.as_raw(), param, &mut view) })?;
        dense_view(&view, &format!("the gradient of parameter {param}"))
    }

    /// The ranges of elements whose optimizer state this rank keeps, by arena, in order of position. Local.
    ///
    /// # Errors
    /// STATE (forked child).
    pub fn owned(&self) -> Result<Vec<OwnedRange>> {
        let _inside = self.tree.enter();
        let mut needed = 0;
        // SAFETY: a live handle, the tree's only call.
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
        let _inside = self.tree.enter();
        let mut out = sys::mdp_stats_report::new();
        // SAFETY: a live handle, the tree's only call.
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
        })
    }

    /// The last step's times of one bucket, by number in launch order. Local.
    ///
    /// # Errors
    /// INVALID (no such bucket), STATE (forked child).
    pub fn bucket(&self, bucket: usize) -> Result<BucketReport> {
        let _inside = self.tree.enter();
        let mut out = sys::mdp_bucket_report::new();
        // SAFETY: a live handle, the tree's only call.
        check(unsafe { sys::mdp_buffer_bucket(self.as_raw(), bucket, &mut out) })?;
        Ok(BucketReport::new(&out))
    }
}

/// One parameter's memory, to be written to; see [`Buffer::param_mut`].
#[derive(Debug)]
pub struct ParamMut<'a, T> {
    data: *mut T,
    len: usize,
    buffer: &'a mut Buffer,
    elements: PhantomData<&'a mut [T]>,
}

impl<T> Deref for ParamMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: Buffer::param_mut has found that nobody else uses it, and the buffer stays borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl<T> DerefMut for ParamMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the same.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }
}

impl<T> Drop for ParamMut<'_, T> {
    fn drop(&mut self) {
        let _inside = self.buffer.tree.enter();
        // It fails only if the communicator is lost, and every later call says so.
        // SAFETY: a live handle, the tree's only call.
        let _ = unsafe { sys::mdp_param_changed(self.buffer.as_raw()) };
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
    /// With [`Sharding::Zero2`]: the most bytes of gradients outside the pool at a time.
    pub spill_peak_bytes: u64,
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
