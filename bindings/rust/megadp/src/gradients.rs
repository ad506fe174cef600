// SPDX-License-Identifier: Apache-2.0
//! The arrival of gradients, from any thread; and what keeps a slice of a gradient apart from it.
use crate::buffer::Buffer;
use crate::element::{Element, Strided, dense_view};
use crate::error::{Code, Error, Result, check};
use crate::handle::{Inside, Owned, Tree, Turn};
use crate::sys;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

thread_local! {
    /// The buffer of whose slots this thread holds some during a call in which a log callback may run.
    static HELD: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// What this crate must know of a parameter's gradient in the microbatch that is going on, to lend its memory: not while another thread
/// puts it, and not once it is ready, since its bucket may be launched then.
#[derive(Debug, Default)]
struct Slot {
    arrivals: usize,
    lent: bool,
}

#[derive(Debug)]
pub(crate) struct ParamFacts {
    pub(crate) shape: Vec<i64>,
    uses: usize,
    pub(crate) frozen: bool,
    slot: Mutex<Slot>,
}

impl ParamFacts {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        // Written in one go, so a panic elsewhere leaves it whole.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The buffer's handle, and its parameters: what a buffer, its gradients and its optimizers have in common. Any of them may be the last one, and
/// may still wait, so each keeps the tree.
#[derive(Debug)]
pub(crate) struct Shared {
    handle: Owned<sys::mdp_buffer>,
    pub(crate) tree: Arc<Tree>,
    turn: Turn,
    pub(crate) params: Vec<ParamFacts>,
    pub(crate) on_host: bool,
}

impl Shared {
    pub(crate) fn new(
        handle: Owned<sys::mdp_buffer>,
        tree: Arc<Tree>,
        facts: impl Iterator<Item = (Vec<i64>, usize, bool)>,
    ) -> Result<Self> {
        let params: Vec<_> = facts.map(|(shape, uses, frozen)| ParamFacts { shape, uses, frozen, slot: Mutex::default() }).collect();
        let mut on_host = true;
        if let Some(first) = params.iter().position(|param| !param.frozen) {
            let mut view = sys::mdp_tensor::new();
            // SAFETY: a live handle that nobody else has yet.
            check(unsafe { sys::mdp_buffer_param_view(handle.as_ptr(), first, &mut view) })?;
            on_host = view.device_type <= 1;
        }
        Ok(Shared { handle, tree, turn: Turn::default(), params, on_host })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::mdp_buffer {
        self.handle.as_ptr()
    }

    /// For a call on the buffer, or on one of its optimizers, that is not allowed from any thread.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.turn.enter()
    }

    /// The same for a call that is made one at a time in a context.
    pub(crate) fn enter_alone(&self) -> (Inside<'_>, Inside<'_>) {
        (self.tree.enter_alone(), self.enter())
    }

    pub(crate) fn check(&self, param: usize) -> Result<&ParamFacts> {
        self.params.get(param).ok_or_else(|| {
            let text = format!("param is {param}; this buffer has {} parameters, counted from 0", self.params.len());
            Error::new(Code::Invalid, text)
        })
    }

    /// The shape of a parameter whose memory is the host's: copies to and from a device may go on after the call.
    pub(crate) fn shape_on_host(&self, param: usize) -> Result<&[i64]> {
        let facts = self.check(param)?;
        if self.on_host {
            return Ok(&facts.shape);
        }
        let text = format!("parameter {param} is memory of a device; slices are memory of the host (as_raw() leads to calls with others)");
        Err(Error::new(Code::Unsupported, text).about_param(param))
    }

    pub(crate) fn wait(&self, param: usize) -> Result<()> {
        self.check(param)?;
        // SAFETY: a live handle; allowed from any thread at any time.
        check(unsafe { sys::mdp_param_wait(self.as_ptr(), param, ptr::null_mut()) })
    }

    pub(crate) fn wait_all(&self) -> Result<()> {
        // SAFETY: a live handle; allowed from any thread at any time.
        check(unsafe { sys::mdp_param_wait(self.as_ptr(), usize::MAX, ptr::null_mut()) })
    }

    /// A call after which gradients are counted anew, unless it fails.
    pub(crate) fn begin<R>(&self, call: impl FnOnce() -> Result<R>) -> Result<R> {
        self.begin_if(Result::is_ok, call)
    }

    /// A call after which gradients are counted anew where `begun` says so of its outcome. No gradient arrives meanwhile: one that came between
    /// the call and our own zero would be forgotten here, though the library counts it.
    pub(crate) fn begin_if<R>(&self, begun: impl FnOnce(&Result<R>) -> bool, call: impl FnOnce() -> Result<R>) -> Result<R> {
        let mut slots: Vec<_> = self.params.iter().map(ParamFacts::slot).collect();
        let result = self.held(call);
        if begun(&result) {
            slots.iter_mut().for_each(|slot| **slot = Slot::default());
        }
        result
    }

    /// A call during which this thread holds slots: a gradient that a log callback hands over inside of it would wait for its own thread.
    fn held<R>(&self, call: impl FnOnce() -> R) -> R {
        let outer = HELD.replace(self);
        let result = call();
        HELD.set(outer);
        result
    }

    /// Takes back what was lent through guards that were forgotten, as if they had been dropped. For whoever borrows the buffer mutably: a
    /// guard borrows it too, so nobody can have one any more.
    pub(crate) fn take_back(&self) {
        for (param, facts) in self.params.iter().enumerate() {
            let mut slot = facts.slot();
            if std::mem::take(&mut slot.lent) {
                // It fails if the library has lent nothing (GradMut), or the communicator is lost, and every later call says so.
                // SAFETY: a live handle; allowed from any thread at any time. The slice is gone.
                let _ = unsafe { sys::mdp_grad_release(self.as_ptr(), param) };
            }
        }
    }

    /// One arrival: a call that counts as `count` of the gradients that are expected, if it succeeds.
    fn arrive(&self, param: usize, count: impl FnOnce(&ParamFacts) -> usize, call: impl FnOnce(&ParamFacts) -> Result<()>) -> Result<()> {
        let facts = self.check(param)?;
        if ptr::eq(HELD.get(), self) {
            let text =
                format!("the gradient of parameter {param} came inside of a call that begins or ends a step, or of a layer's backward");
            return Err(Error::new(Code::State, text).about_param(param));
        }
        let mut slot = facts.slot();
        if slot.lent {
            let text = format!("the gradient of parameter {param} is being written through grad_mut or acquire");
            return Err(Error::new(Code::State, text).about_param(param));
        }
        let called = call(facts);
        // After a refusal nothing has arrived; after any other failure, something may have.
        if !called.as_ref().is_err_and(|error| matches!(error.code, Code::Invalid | Code::State)) {
            slot.arrivals += count(facts);
        }
        called
    }

    /// One call that brings a gradient of each of several parameters, all different ones.
    pub(crate) fn arrive_together(&self, params: &[usize], call: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        match params {
            [] => self.held(call),
            [first, others @ ..] => self.arrive(*first, |_| 1, |_| self.arrive_together(others, call)),
        }
    }

    pub(crate) fn lend<T>(&self, param: usize, data: *mut T, len: usize) -> Result<GradMut<'_, T>> {
        let facts = self.check(param)?;
        let mut slot = facts.slot();
        if slot.arrivals >= facts.uses {
            let text = format!("the gradient of parameter {param} is ready already: it came {} of {} times", slot.arrivals, facts.uses);
            return Err(Error::new(Code::State, text).about_param(param));
        }
        slot.lent = true;
        Ok(GradMut { shared: self, param, data, len, elements: PhantomData })
    }
}

/// Hands gradients over, from any thread at any time; may be cloned. Several threads may do so at a time. Keeps the buffer's memory and the
/// communicator alive.
///
/// ```
/// # use megadp::{Buffer, Comm, Param};
/// # let comm = Comm::builder().connect()?;
/// let mut buffer = Buffer::builder().register(&comm, &[Param::new("a", &[2]), Param::new("b", &[2])])?;
/// let gradients = buffer.gradients();
/// std::thread::scope(|scope| {
///     for param in 0..2 {
///         let gradients = &gradients;
///         scope.spawn(move || gradients.put(param, &[1f32, 2.0]).unwrap());
///     }
/// });
/// assert_eq!(buffer.sync()?.grad::<f32>(1)?, [1.0, 2.0]);
/// # Ok::<(), megadp::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gradients {
    shared: Arc<Shared>,
}

impl Gradients {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Gradients { shared }
    }

    /// Copies a gradient in and counts it as ready. The first one of a step replaces what the slot held, later ones of the step (other uses,
    /// other microbatches) are added. f32, bf16, f16 or f64, cast to the gradient's dtype. The array may be reused when the call returns.
    /// Local; waits for the last step's update of the same bucket, and with [`Sharding::Zero2`](crate::Sharding::Zero2) for nothing: before its
    /// bucket's turn the gradient lies outside the pool.
    ///
    /// # Errors
    /// INVALID (the number of elements, strides), STATE (frozen; more often than uses_per_step; after a sync; skipped; being written through
    /// [`Buffer::grad_mut`] or [`Buffer::acquire`]), MEMORY (beyond [`BufferBuilder::spill_limit`](crate::BufferBuilder::spill_limit); it may
    /// come again), UNSUPPORTED (memory of a device), those of a lost communicator.
    pub fn put<'a, T: Element>(&self, param: usize, grad: impl Into<Strided<'a, T>>) -> Result<()> {
        self.put_flagged(param, grad.into(), 0)
    }

    /// The same, but more of the same use is coming: not ready yet.
    ///
    /// # Errors
    /// As [`Gradients::put`].
    pub fn put_part<'a, T: Element>(&self, param: usize, grad: impl Into<Strided<'a, T>>) -> Result<()> {
        self.put_flagged(param, grad.into(), sys::MDP_GRAD_MORE)
    }

    fn put_flagged<T: Element>(&self, param: usize, grad: Strided<'_, T>, flags: u64) -> Result<()> {
        let shape = self.shared.shape_on_host(param)?;
        let grad = grad.tensor(shape).map_err(|error| error.about_param(param))?;
        let ready = usize::from(flags & sys::MDP_GRAD_MORE == 0);
        let put = |_: &ParamFacts| {
            // SAFETY: a live handle; allowed from any thread at any time. The array has the parameter's shape and is borrowed. Nobody has a
            // slice of the gradient: arrive() has looked.
            check(unsafe { sys::mdp_grad_put(self.shared.as_ptr(), param, &grad, flags, ptr::null_mut()) })
        };
        self.shared.arrive(param, |_| ready, put)
    }

    /// Counts a gradient as ready whose memory was written through [`Buffer::grad_mut`] before. With [`Sharding::Zero2`](crate::Sharding::Zero2)
    /// that is what [`Acquired::ready`] is for. Local, does not block.
    ///
    /// # Errors
    /// As [`Gradients::put`].
    pub fn ready(&self, param: usize) -> Result<()> {
        // SAFETY: a live handle; allowed from any thread at any time. Nobody has a slice of the gradient: arrive() has looked.
        self.shared.arrive(param, |_| 1, |_| check(unsafe { sys::mdp_grad_ready(self.shared.as_ptr(), param, ptr::null_mut()) }))
    }

    /// This rank has no gradient of the parameter in this microbatch. If no microbatch brought one, this rank adds zero; if that is so on
    /// all ranks, the optimizer leaves the parameter alone. Local, does not block.
    ///
    /// # Errors
    /// As [`Gradients::ready`].
    pub fn skip(&self, param: usize) -> Result<()> {
        // SAFETY: as in ready().
        self.shared.arrive(param, |facts| facts.uses, |_| check(unsafe { sys::mdp_grad_skip(self.shared.as_ptr(), param) }))
    }

    /// Waits until a parameter holds its values after the last step. Local; at most for the timeout.
    ///
    /// # Errors
    /// INVALID, those of a lost communicator.
    pub fn wait(&self, param: usize) -> Result<()> {
        self.shared.wait(param)
    }
}

/// The memory of one gradient, to be written to; see [`Buffer::grad_mut`]. Dropped, it leaves the gradient as not yet
/// ready.
#[derive(Debug)]
pub struct GradMut<'a, T> {
    shared: &'a Shared,
    param: usize,
    data: *mut T,
    len: usize,
    elements: PhantomData<&'a mut [T]>,
}

impl<T> GradMut<'_, T> {
    /// Counts the gradient as ready. Local, does not block.
    ///
    /// # Errors
    /// Those of a lost communicator.
    pub fn ready(self) -> Result<()> {
        let (shared, param) = (self.shared, self.param);
        drop(self);
        // SAFETY: a live handle; allowed from any thread at any time. The slice is gone.
        shared.arrive(param, |_| 1, |_| check(unsafe { sys::mdp_grad_ready(shared.as_ptr(), param, ptr::null_mut()) }))
    }
}

impl<T> Deref for GradMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: while it is lent nothing of it arrives, so its bucket is not launched; the buffer is borrowed mutably, so no sync is called.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl<T> DerefMut for GradMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the same.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }
}

impl<T> Drop for GradMut<'_, T> {
    fn drop(&mut self) {
        if let Ok(facts) = self.shared.check(self.param) {
            facts.slot().lent = false;
        }
    }
}

impl Buffer {
    /// Lends the memory where a gradient goes, whatever is sharded: written there, it is not copied. It is for one use in this microbatch,
    /// row-major, in the gradient's dtype; f32 with [`Sharding::Zero2`](crate::Sharding::Zero2) where gradients are half as wide and
    /// uses_per_step is above 1. Several may be lent at a time, each of another parameter, and be written by other threads. While one is, the
    /// compiler allows neither a microbatch to begin nor a sync nor a step. After [`std::mem::forget`] it is still lent: a sync or step is STATE
    /// on all ranks and names the parameter, until [`Buffer::begin_microbatch`] or [`Buffer::zero_grad`] takes it back. Local; waits as
    /// [`Gradients::put`].
    ///
    /// # Errors
    /// INVALID (no such parameter; elements of another type), STATE (frozen; lent, ready or skipped already; after a sync), MEMORY (beyond
    /// [`BufferBuilder::spill_limit`](crate::BufferBuilder::spill_limit)), UNSUPPORTED (memory of a device), those of a lost communicator.
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Param, Sharding};
    /// # let comm = Comm::builder().connect()?;
    /// let mut buffer = Buffer::builder().sharding(Sharding::Zero2).register(&comm, &[Param::new("tied", &[3]).uses_per_step(2)])?;
    /// for use_of_it in 0..2 {
    ///     let mut grad = buffer.acquire::<f32>(0)?;
    ///     assert_eq!(grad.first(), use_of_it == 0);
    ///     if grad.first() {
    ///         grad.fill(0.0);
    ///     }
    ///     grad.iter_mut().for_each(|element| *element += 1.0);
    ///     grad.ready()?;
    /// }
    /// assert_eq!(buffer.sync()?.owned_grad::<f32>(0)?, [2.0; 3]);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    ///
    /// ```compile_fail,E0502
    /// # use megadp::{Buffer, Comm, Param};
    /// # let mut buffer = Buffer::builder().register(&Comm::builder().connect()?, &[Param::new("w", &[3])])?;
    /// let mut grad = buffer.acquire::<f32>(0)?;
    /// buffer.sync()?;
    /// grad.fill(1.0);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn acquire<T: Element>(&self, param: usize) -> Result<Acquired<'_, T>> {
        self.shared.shape_on_host(param)?;
        let (mut view, mut first) = (sys::mdp_tensor::new(), 0);
        {
            let mut slot = self.shared.check(param)?.slot();
            // SAFETY: a live handle; allowed from any thread at any time.
            check(unsafe { sys::mdp_grad_acquire(self.as_raw(), param, &mut view, &mut first, ptr::null_mut()) })?;
            slot.lent = true;
        }
        let lent = Lent { shared: &self.shared, param };
        let (data, len) = dense_view(&view, &format!("the gradient of parameter {param}")).map_err(|error| error.about_param(param))?;
        Ok(Acquired { lent, first: first != 0, data, len, elements: PhantomData })
    }
}

/// What the library has lent, until it is given back.
#[derive(Debug)]
struct Lent<'a> {
    shared: &'a Shared,
    param: usize,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Ok(facts) = self.shared.check(self.param) {
            let mut slot = facts.slot();
            // It fails only if the communicator is lost, and every later call says so.
            // SAFETY: a live handle; allowed from any thread at any time. The slice is gone.
            let _ = unsafe { sys::mdp_grad_release(self.shared.as_ptr(), self.param) };
            slot.lent = false;
        }
    }
}

/// Memory where a gradient goes, to be written to (or added to, unless it is the [`Acquired::first`]); see [`Buffer::acquire`]. Dropped, it
/// is given back, and it is as if nothing had been written. In what is added to, that holds only if nothing was.
#[derive(Debug)]
pub struct Acquired<'a, T> {
    lent: Lent<'a>,
    first: bool,
    data: *mut T,
    len: usize,
    elements: PhantomData<&'a mut [T]>,
}

// SAFETY: memory that nobody else has, as a &mut [T]; and calls that are allowed from any thread.
unsafe impl<T: Element> Send for Acquired<'_, T> {}
// SAFETY: the same.
unsafe impl<T: Element> Sync for Acquired<'_, T> {}

impl<T> Acquired<'_, T> {
    /// Whether nothing that counts lies there: then every element is to be written. Otherwise they are to be added to.
    pub fn first(&self) -> bool {
        self.first
    }

    /// Counts the gradient as ready. Local, does not block.
    ///
    /// # Errors
    /// Those of a lost communicator.
    pub fn ready(self) -> Result<()> {
        let (shared, param) = (self.lent.shared, self.lent.param);
        std::mem::forget(self.lent);
        shared.check(param)?.slot().lent = false;
        // SAFETY: a live handle; allowed from any thread at any time. The slice is gone.
        shared.arrive(param, |_| 1, |_| check(unsafe { sys::mdp_grad_ready(shared.as_ptr(), param, ptr::null_mut()) }))
    }
}

impl<T> Deref for Acquired<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: lent to us alone: while it is, nothing of the parameter arrives (the library and arrive() see to that), so its bucket is not
        // launched; the buffer is borrowed, so there is no sync, and no new beginning after which the memory would be another's.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl<T> DerefMut for Acquired<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the same.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }
}
