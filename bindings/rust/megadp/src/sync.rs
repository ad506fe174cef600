// SPDX-License-Identifier: Apache-2.0
//! The end of backward, and the token that it leaves for the step.
use crate::buffer::Buffer;
use crate::element::{Element, dense_view};
use crate::error::{Code, Error, Result, check};
use crate::request::Request;
use crate::sys;
use std::ptr;
use std::time::Duration;

impl Buffer {
    /// Ends backward: launches what is left, waits until every bucket is reduced, and agrees with all ranks on what was missing or skipped.
    /// For programs that look at reduced gradients, or wait for them in their own way: a step of the buffer itself syncs too. Calling it again
    /// before the step gives the same outcome. Collective, blocking.
    ///
    /// # Errors
    /// STATE (a parameter never became ready: names it and the rank, on all ranks; not in the last microbatch), after which no rank can step;
    /// NUMERIC (with [`BufferBuilder::check_finite`](crate::BufferBuilder::check_finite), on all ranks: names parameter, element, value,
    /// microbatch and rank), after which a step of the buffer with a loss scale is skipped; those of a lost communicator.
    /// [`Buffer::zero_grad`] or [`Buffer::begin_microbatch`] begins anew.
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Param};
    /// # let comm = Comm::builder().connect()?;
    /// let mut buffer = Buffer::builder().register(&comm, &[Param::new("forgotten", &[2])])?;
    /// let error = buffer.sync().unwrap_err();
    /// assert_eq!((error.code, error.param, error.rank), (megadp::Code::State, Some(0), Some(0)));
    /// assert!(error.text.contains("forgotten"));
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn sync(&mut self) -> Result<Synced<'_>> {
        self.start_sync()?.wait()
    }

    /// [`Buffer::sync`] that goes on while the caller does something else. Collective, does not block.
    ///
    /// # Errors
    /// As [`Buffer::sync`], here or when it is waited for.
    pub fn start_sync(&mut self) -> Result<Syncing<'_>> {
        self.closed = true; // also if it fails: what has been launched is not taken back
        let request = {
            let _inside = self.shared.enter();
            let mut out = ptr::null_mut();
            // SAFETY: a live handle, the buffer's only call; the buffer is borrowed mutably, so no slice of a gradient is in use.
            check(unsafe { sys::mdp_grad_sync(self.as_raw(), ptr::null_mut(), &mut out) })?;
            // SAFETY: just created, and ours.
            unsafe { Request::new(out, &self.shared.tree) }?
        };
        Ok(Syncing { buffer: self, request })
    }
}

/// A sync that is going on. Dropped, it leaves the sync to itself; calling it again gives the same outcome.
#[derive(Debug)]
pub struct Syncing<'a> {
    buffer: &'a mut Buffer,
    request: Request,
}

impl<'a> Syncing<'a> {
    /// Waits.
    ///
    /// # Errors
    /// As [`Buffer::sync`].
    pub fn wait(self) -> Result<Synced<'a>> {
        self.request.wait()?;
        Ok(Synced { buffer: self.buffer })
    }

    /// Whether it has finished. Does not block.
    ///
    /// # Errors
    /// As [`Buffer::sync`].
    pub fn test(&self) -> Result<bool> {
        self.request.test()
    }

    /// Waits for so long at most; says whether it has finished.
    ///
    /// # Errors
    /// As [`Buffer::sync`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.request.wait_timeout(timeout)
    }
}

/// All gradients of a step are reduced, and all ranks have agreed on that. [`Optimizer::step`](crate::Optimizer::step) consumes it; while it is
/// there, the buffer is borrowed, and nothing else can begin.
#[derive(Debug)]
#[must_use = "the step takes it"]
pub struct Synced<'a> {
    pub(crate) buffer: &'a mut Buffer,
}

/// Of a set of reduced gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct GradSummary {
    /// The L2 norm; infinite or NaN if a gradient is not finite.
    pub norm: f64,
    /// The largest magnitude; NaN is none.
    pub inf_norm: f64,
    /// How many elements are zero.
    pub zeros: u64,
    /// How many are infinite or NaN.
    pub nonfinite: u64,
}

impl Synced<'_> {
    /// A reduced gradient: the sum over ranks, divided by their number, row-major, without a copy. With [`Sharding::Zero0`](crate::Sharding::Zero0)
    /// all of it is meaningful, with `Zero1` the ranges that [`Buffer::owned`] gives; with `Zero2` see [`Synced::owned_grad`]. Local.
    ///
    /// # Errors
    /// INVALID (no such parameter; elements of another type), STATE (frozen), UNSUPPORTED (memory of a device; `Zero2`).
    pub fn grad<T: Element>(&self, param: usize) -> Result<&[T]> {
        self.buffer.shared.check(param)?;
        let (data, len) = self.buffer.grad_view(param)?;
        // SAFETY: after a sync the library refuses gradients until the step or a new beginning, for both of which the borrow must end.
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// What this rank owns of a reduced gradient, whatever is sharded: empty if that is nothing; where it begins in the flattened parameter is
    /// [`OwnedRange::param_begin`](crate::OwnedRange::param_begin). In the gradient's dtype; f32 with `Zero2`. Without a copy. Local.
    ///
    /// # Errors
    /// As [`Synced::grad`], without the last.
    pub fn owned_grad<T: Element>(&self, param: usize) -> Result<&[T]> {
        let (data, len) = self.owned_view(param)?;
        // SAFETY: as in grad().
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// The same to be written to; [`Synced::grads_changed`] follows. Local.
    ///
    /// # Errors
    /// As [`Synced::owned_grad`].
    pub fn owned_grad_mut<T: Element>(&mut self, param: usize) -> Result<&mut [T]> {
        let (data, len) = self.owned_view(param)?;
        // SAFETY: the same; and nobody else has a slice, since this is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
    }

    fn owned_view<T: Element>(&self, param: usize) -> Result<(*mut T, usize)> {
        self.buffer.shared.check(param)?;
        let _inside = self.buffer.shared.enter();
        let mut view = sys::mdp_tensor::new();
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_grad_owned(self.buffer.as_raw(), param, &mut view) })?;
        dense_view(&view, &format!("what this rank owns of the gradient of parameter {param}"))
    }

    /// The L2 norm of the reduced gradients of these parameters (`None`: of all) over the whole model, each element counted once, as the step
    /// counts it. Infinite or NaN if a gradient is not finite, on all ranks. Collective, with the same list on ranks that share parameters;
    /// blocking.
    ///
    /// # Errors
    /// INVALID (a parameter that is frozen, unknown, or listed twice), those of a lost communicator.
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Optimizer, Param, StepOptions};
    /// # let comm = Comm::builder().connect()?;
    /// let mut buffer = Buffer::builder().register(&comm, &[Param::new("w", &[2])])?;
    /// let mut optimizer = Optimizer::builder().create(&buffer)?;
    /// buffer.gradients().put(0, &[3f32, 4.0])?;
    /// let mut synced = buffer.sync()?;
    /// assert_eq!(synced.grad_norm(None)?, 5.0);
    /// synced.scale_grads(0.5, Some(&[0]))?;
    /// assert_eq!(synced.grad::<f32>(0)?, [1.5, 2.0]);
    /// optimizer.step(synced, &StepOptions::default())?;
    /// assert_eq!(optimizer.steps(0)?, 1);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn grad_norm(&self, params: Option<&[usize]>) -> Result<f64> {
        let (first, count) = listed(params);
        let _inside = self.buffer.shared.enter();
        let mut norm = 0.0;
        // SAFETY: a live handle, the buffer's only call; the list is borrowed for it.
        check(unsafe { sys::mdp_grad_norm(self.buffer.as_raw(), first, count, &mut norm) })?;
        Ok(norm)
    }

    /// Of each of `count` sets of parameters what [`GradSummary`] says, over the whole model, as [`Synced::grad_norm`] counts it: `sets[i]` is the
    /// set that parameter i is in, `None`: in none; without sets all are in the first. Every rank gets the same. Collective, with the same
    /// count; blocking.
    ///
    /// # Errors
    /// INVALID (not a set for each parameter; a set that is not below count), MEMORY, those of a lost communicator.
    pub fn grad_summaries(&self, sets: Option<&[Option<usize>]>, count: usize) -> Result<Vec<GradSummary>> {
        let params = self.buffer.shared.params.len();
        if let Some(sets) = sets.filter(|sets| sets.len() != params) {
            return Err(Error::new(Code::Invalid, format!("there are {} sets for {params} parameters", sets.len())));
        }
        let numbers: Option<Vec<usize>> = sets.map(|sets| sets.iter().map(|set| set.unwrap_or(usize::MAX)).collect());
        let first = numbers.as_ref().map_or(ptr::null(), |numbers| numbers.as_ptr());
        let mut found = vec![sys::mdp_grad_summary::new(); count];
        let _inside = self.buffer.shared.enter();
        // SAFETY: a live handle, the buffer's only call; there is a set for each parameter, and room for `count`.
        check(unsafe { sys::mdp_grad_summarize(self.buffer.as_raw(), first, count, found.as_mut_ptr()) })?;
        let told =
            |one: sys::mdp_grad_summary| GradSummary { norm: one.norm, inf_norm: one.inf_norm, zeros: one.zeros, nonfinite: one.nonfinite };
        Ok(found.into_iter().map(told).collect())
    }

    /// Multiplies reduced gradients of these parameters (`None`: of all) by a factor, in place: what [`Synced::grad`] shows and the step uses.
    /// With [`Sharding::Zero1`](crate::Sharding::Zero1) and `Zero2` what this rank owns of them. Local; to be called alike on all ranks.
    ///
    /// # Errors
    /// INVALID (as [`Synced::grad_norm`]; a factor that is not finite), those of a lost communicator.
    pub fn scale_grads(&mut self, factor: f64, params: Option<&[usize]>) -> Result<()> {
        let (first, count) = listed(params);
        let _inside = self.buffer.shared.enter();
        // SAFETY: a live handle, the buffer's only call; the borrow is mutable, so no slice of a gradient is in use.
        check(unsafe { sys::mdp_grad_scale(self.buffer.as_raw(), first, count, factor, ptr::null_mut()) })
    }

    /// Says that reduced gradients were written, through [`Synced::owned_grad_mut`], or [`Buffer::as_raw`] and views of the library's memory.
    /// Local.
    ///
    /// # Errors
    /// Those of a lost communicator.
    pub fn grads_changed(&mut self) -> Result<()> {
        let _inside = self.buffer.shared.enter();
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_grad_changed(self.buffer.as_raw(), ptr::null_mut()) })
    }

    /// The buffer, to be looked at.
    pub fn buffer(&self) -> &Buffer {
        self.buffer
    }
}

/// What [`Optimizer::step`](crate::Optimizer::step) takes: a buffer, which is synced then, or what a sync of it gave.
#[derive(Debug)]
#[non_exhaustive]
pub enum ToStep<'a> {
    /// Not synced yet, as far as this says: a sync that was called gives the same outcome again.
    Buffer(&'a mut Buffer),
    /// After a sync.
    Synced(Synced<'a>),
}

impl<'a> From<&'a mut Buffer> for ToStep<'a> {
    fn from(buffer: &'a mut Buffer) -> Self {
        ToStep::Buffer(buffer)
    }
}

impl<'a> From<Synced<'a>> for ToStep<'a> {
    fn from(synced: Synced<'a>) -> Self {
        ToStep::Synced(synced)
    }
}

impl<'a> ToStep<'a> {
    pub(crate) fn buffer(&self) -> &Buffer {
        match self {
            ToStep::Buffer(buffer) => buffer,
            ToStep::Synced(synced) => synced.buffer,
        }
    }

    pub(crate) fn into_buffer(self) -> &'a mut Buffer {
        match self {
            ToStep::Buffer(buffer) => buffer,
            ToStep::Synced(synced) => synced.buffer,
        }
    }

    /// Here and not in the library's step, so that no other call on the buffer waits while ranks are waited for. `skips`: whether
    /// gradients that are not finite make all ranks skip the step.
    pub(crate) fn sync(self, skips: impl FnOnce() -> bool) -> Result<&'a mut Buffer> {
        match self {
            ToStep::Buffer(buffer) => match buffer.sync().map(|_| ()) {
                Err(error) if error.code != Code::Numeric || !skips() => Err(error),
                _ => Ok(buffer),
            },
            synced => Ok(synced.into_buffer()),
        }
    }
}

/// A list as the library takes it. An empty slice has a pointer too: none is listed, while NULL means all.
fn listed(params: Option<&[usize]>) -> (*const usize, usize) {
    params.map_or((ptr::null(), 0), |params| (params.as_ptr(), params.len()))
}
