// SPDX-License-Identifier: Apache-2.0
//! All parameters and gradients of a model: laid out, cut into buckets, shared with the other ranks.
use crate::buffer_builder::BufferBuilder;
use crate::element::{Element, Strided, dense_view, tensor};
use crate::error::{Code, Error, Result, check};
use crate::gradients::{GradMut, Gradients, Shared};
use crate::handle::NotSync;
use crate::request::Request;
use crate::sys;
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::Arc;

/// All parameters of a model and their gradients. Its memory is the library's, shared with the ranks of this node; it lives until the
/// last of the buffer, its [`Gradients`] and its optimizers is dropped.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) shared: Arc<Shared>,
    /// A sync has been called, and no step or new beginning after it: gradients are not to be written.
    pub(crate) closed: bool,
    /// What may still write to the parameters.
    pub(crate) broadcast: RefCell<Option<Request>>,
    pub(crate) copies: Copies,
    not_sync: NotSync,
}

/// Writes what copies there are of the parameters anew.
type Write = dyn Fn(&Buffer) -> Result<()> + Send;

/// Copies of the parameters that somebody keeps.
#[derive(Default)]
pub(crate) struct Copies {
    pub(crate) write: Option<Box<Write>>,
    /// Parameters may have been written since.
    pub(crate) outdated: Cell<bool>,
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies").field("write", &self.write.is_some()).field("outdated", &self.outdated).finish()
    }
}

impl Buffer {
    pub(crate) fn new(shared: Shared) -> Self {
        Buffer {
            shared: Arc::new(shared),
            closed: false,
            broadcast: RefCell::default(),
            copies: Copies::default(),
            not_sync: NotSync::default(),
        }
    }

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
        let _inside = self.shared.enter();
        let (mut params, mut buckets) = (0, 0);
        // SAFETY: a live handle, the buffer's only call.
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
        let _inside = self.shared.enter();
        let mut param = 0;
        // SAFETY: a live handle, the buffer's only call; the name lives through it.
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
    /// dropped, the optimizer's masters follow at the next step, where they do not round to what was written. Local.
    ///
    /// # Errors
    /// As [`Buffer::param`].
    pub fn param_mut<T: Element>(&mut self, param: usize) -> Result<ParamMut<'_, T>> {
        let (data, len) = self.whole_param(param)?;
        Ok(ParamMut { data, len, buffer: self, elements: PhantomData })
    }

    /// After all parameters were replaced, other than by a step.
    pub(crate) fn write_copies(&self) -> Result<()> {
        self.copies.write.as_ref().map_or(Ok(()), |write| write(self))
    }

    fn whole_param<T: Element>(&self, param: usize) -> Result<(*mut T, usize)> {
        self.shared.check(param)?;
        let view = {
            let _inside = self.shared.enter();
            let mut view = sys::mdp_tensor::new();
            // SAFETY: a live handle, the buffer's only call.
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
        let _inside = self.shared.enter();
        // SAFETY: a live handle, the buffer's only call; `to` is borrowed mutably, and has the parameter's size.
        check(unsafe { sys::mdp_param_read(self.as_raw(), param, &to, ptr::null_mut()) })
    }

    /// Copies into a parameter, cast from the elements' type (f32, bf16, f16 or f64): alike on all ranks, or before [`Buffer::broadcast`]. The
    /// master of this parameter follows at the next step, where it does not round to what was written. Waits as [`Buffer::wait`]. Local.
    ///
    /// # Errors
    /// INVALID, STATE (frozen), UNSUPPORTED (memory of a device), those of a lost communicator.
    pub fn write_param<'a, T: Element>(&mut self, param: usize, from: impl Into<Strided<'a, T>>) -> Result<()> {
        let shape = self.shared.shape_on_host(param)?;
        let from = from.into().tensor(shape).map_err(|error| error.about_param(param))?;
        self.end_broadcast()?;
        self.copies.outdated.set(true);
        let _inside = self.shared.enter();
        // SAFETY: a live handle, the buffer's only call; no slice of the parameter is in use, since the buffer is borrowed mutably.
        check(unsafe { sys::mdp_param_write(self.as_raw(), param, &from, ptr::null_mut()) })
    }

    /// Compares all parameters, bit for bit, over each data-parallel group, over tensor-parallel ranks what is not sharded, and what is tied; of
    /// the latter two also reduced gradients. Collective, blocking; slow: for checks.
    ///
    /// # Errors
    /// DESYNC (names the first parameter that differs and two ranks), STATE, those of a lost communicator.
    pub fn verify(&self) -> Result<()> {
        let _inside = self.shared.enter_alone();
        // SAFETY: a live handle, the buffer's only call; it only reads.
        check(unsafe { sys::mdp_buffer_verify(self.as_raw()) })
    }

    /// With [`Scaling::Tokens`](crate::Scaling::Tokens): over how many tokens (or samples) this rank's losses of the step are summed. Steps and norms divide by the
    /// sum over the data-parallel ranks, by 1 if that is 0; reduced gradients stay sums. Ranks that share a batch say the same, or one does.
    /// Once a step, before the sync. Local; with half-width gradients on all ranks before the first one, collective over the world, blocking:
    /// there reductions divide.
    ///
    /// # Errors
    /// INVALID, STATE (another scaling; twice in a step; after the sync; after the first half-width gradient), those of a lost communicator.
    pub fn tokens(&mut self, count: f64) -> Result<()> {
        let _inside = self.shared.enter();
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_grad_tokens(self.as_raw(), count) })
    }

    /// Says whether the microbatch that begins is the last one of its step: only then do gradients become final. Without this call every step
    /// has one microbatch. With [`Sharding::Zero2`](crate::Sharding::Zero2) it launches what the one before has left, zero where nothing came. Local.
    ///
    /// # Errors
    /// STATE (gradients of the last microbatch have come already; a sync is pending), those of a lost communicator.
    pub fn begin_microbatch(&mut self, last: bool) -> Result<()> {
        // SAFETY: a live handle, the buffer's only call.
        self.begin(|buffer| unsafe { sys::mdp_microbatch_begin(buffer, last.into()) })
    }

    /// Sets all gradients to zero and begins the step anew; what was put, ready or skipped is forgotten. Needed after a step that failed, and
    /// where a program adds into [`Buffer::grad_mut`] itself. Local.
    ///
    /// # Errors
    /// STATE (a bucket of this step has been launched, or a sync is pending), those of a lost communicator.
    pub fn zero_grad(&mut self) -> Result<()> {
        // SAFETY: a live handle, the buffer's only call; no slice of a gradient is in use, since the buffer is borrowed mutably.
        self.begin(|buffer| unsafe { sys::mdp_buffer_zero_grad(buffer, ptr::null_mut()) })
    }

    fn begin(&mut self, call: impl FnOnce(*mut sys::mdp_buffer) -> sys::mdp_status) -> Result<()> {
        let inside = self.shared.enter();
        self.shared.take_back();
        self.shared.begin(|| check(call(self.shared.as_ptr())))?;
        drop(inside);
        self.closed = false;
        Ok(())
    }

    /// A call that ends a step: a new one begins with the next gradient. So it does where the gradient is not finite, but for a step that makes no
    /// norm, which only tells what the sync has found.
    pub(crate) fn end_step<R>(&mut self, unchecked: bool, call: impl FnOnce() -> Result<R>) -> Result<R> {
        let ended = |outcome: &Result<R>| outcome.as_ref().map_or_else(|error| error.code == Code::Numeric && !unchecked, |_| true);
        let outcome = self.shared.begin_if(ended, call);
        self.closed &= !ended(&outcome);
        outcome
    }

    /// A call that begins a step in parts, and ends it where the gradient is not finite.
    pub(crate) fn begin_step<R>(&mut self, call: impl FnOnce() -> Result<R>) -> Result<R> {
        let ended = |outcome: &Result<R>| outcome.as_ref().is_err_and(|error| error.code == Code::Numeric);
        let outcome = self.shared.begin_if(ended, call);
        self.closed &= !ended(&outcome);
        outcome
    }

    /// The memory of a gradient that has not come yet, to be written (or added to) before [`GradMut::ready`]. It holds what it held: zero, or
    /// the last step's. Waits until the last step no longer reads it. Local.
    ///
    /// # Errors
    /// INVALID (no such parameter; elements of another type), STATE (frozen; ready or skipped already; after a sync), UNSUPPORTED (memory of
    /// a device; [`Sharding::Zero2`](crate::Sharding::Zero2), where [`Buffer::acquire`] lends it), those of a lost communicator.
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
        let _inside = self.shared.enter();
        let mut view = sys::mdp_tensor::new();
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_buffer_grad_view(self.as_raw(), param, &mut view) })?;
        dense_view(&view, &format!("the gradient of parameter {param}"))
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
        self.buffer.copies.outdated.set(true);
        let _inside = self.buffer.shared.enter();
        // It fails only if the communicator is lost, and every later call says so.
        // SAFETY: a live handle, the buffer's only call.
        let _ = unsafe { sys::mdp_param_changed(self.buffer.as_raw()) };
    }
}
