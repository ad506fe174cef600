// SPDX-License-Identifier: Apache-2.0
//! Steps whose updates are the caller's: a closure that gets what this rank owns of each parameter.
use crate::buffer::Buffer;
use crate::error::{Code, Error, Result, check};
use crate::optimizer::{Optimizer, StepOptions, StepReport, finish, ready};
use crate::request::Request;
use crate::sync::ToStep;
use crate::sys;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::slice;

/// What a closure that updates answers: any error fails the step, on all ranks.
pub type Updated = std::result::Result<(), Box<dyn std::error::Error>>;

/// What this rank owns of a parameter, for the caller's update of it; all slices are of one length.
#[derive(Debug)]
#[non_exhaustive]
pub struct Piece<'a> {
    /// The number of its optimizer in the list of [`Optimizer::step_many_with`].
    pub optimizer: usize,
    /// The parameter, numbered as registered.
    pub param: usize,
    /// Where the piece begins in the flattened parameter.
    pub param_begin: usize,
    /// The values in fp32, to be updated.
    pub master: &'a mut [f32],
    /// Reduced, divided and clipped.
    pub grad: &'a [f32],
    /// The arrays that [`OptimizerBuilder::state`](crate::OptimizerBuilder::state) names, to be updated; the rest are empty.
    pub state: [&'a mut [f32]; Piece::MOST_STATES],
    /// The bytes that [`OptimizerBuilder::param_state`](crate::OptimizerBuilder::param_state) gives this parameter, in that order, to be
    /// updated; zero at first, and aligned for any element; the rest are empty. [`slice::align_to_mut`] makes elements of them.
    pub param_states: [&'a mut [u8]; Piece::MOST_STATES],
    /// How many steps the parameter has taken part in, this one too: from 1 on.
    pub step: u64,
    /// Of its group, as the next five.
    pub lr: f64,
    /// Decay of the first moment, 0.9 unless said.
    pub beta1: f64,
    /// Decay of the second moment, 0.999 unless said.
    pub beta2: f64,
    /// 1e-8 unless said.
    pub eps: f64,
    /// 0 unless said.
    pub weight_decay: f64,
    /// 0.9 unless said.
    pub momentum: f64,
}

impl Piece<'_> {
    /// So many arrays may be named.
    pub const MOST_STATES: usize = 4;

    /// # Safety
    /// What mdp_optimizer_step_next has written, with elements, in memory of the host; used before it is called again, or the step finished.
    unsafe fn new(raw: &sys::mdp_update) -> Self {
        let len = raw.count as usize;
        // SAFETY: arrays of that many elements, apart from each other, and nobody else's until the next piece.
        let mutable = |data: *mut f32| unsafe { slice::from_raw_parts_mut(data, len) };
        let array = |number: usize| {
            if number as u64 >= raw.state_count {
                return Default::default();
            }
            // SAFETY: the list has state_count arrays.
            mutable(unsafe { *raw.state.add(number) })
        };
        let bytes = |number: usize| {
            if number as u64 >= raw.param_state_count {
                return Default::default();
            }
            // SAFETY: both lists have param_state_count entries; so many bytes lie there, nobody else's until the next piece.
            match unsafe { (*raw.param_states.add(number), *raw.param_state_bytes.add(number)) } {
                (_, 0) => Default::default(),
                // SAFETY: the same.
                (data, len) => unsafe { slice::from_raw_parts_mut(data.cast::<u8>(), len as usize) },
            }
        };
        Piece {
            optimizer: raw.optimizer as usize,
            param: raw.param as usize,
            param_begin: raw.param_begin as usize,
            master: mutable(raw.master),
            // SAFETY: the same.
            grad: unsafe { slice::from_raw_parts(raw.grad, len) },
            state: std::array::from_fn(array),
            param_states: std::array::from_fn(bytes),
            step: raw.step,
            lr: raw.lr,
            beta1: raw.beta1,
            beta2: raw.beta2,
            eps: raw.eps,
            weight_decay: raw.weight_decay,
            momentum: raw.momentum,
        }
    }
}

impl Optimizer {
    /// [`Optimizer::step`] of [`Rule::Caller`](crate::Rule::Caller): `update` is called on this thread, once for each piece that this rank owns
    /// of a parameter, unless the step is skipped or all ranks have skipped the parameter. When it has answered `Ok` for all pieces on all ranks,
    /// masters are rounded into parameters, and these are gathered. If it answers an error on any rank, or panics there, the step fails on all:
    /// masters and state may have changed, and further steps are refused until a checkpoint is loaded or [`Optimizer::set_steps`] called. The panic
    /// goes on when all ranks know. Collective, blocking.
    ///
    /// # Errors
    /// As [`Optimizer::step`]; ABORTED (an update failed on some rank: here the sentence ends with the error; the communicator is not lost),
    /// STATE (an earlier one did), UNSUPPORTED (memory of a device).
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Optimizer, Param, Piece, Rule, StepOptions};
    /// # let mut buffer = Buffer::builder().register(&Comm::builder().connect()?, &[Param::new("w", &[2])])?;
    /// let mut optimizer = Optimizer::builder().rule(Rule::Caller).state(["sum_of_squares"]).lr(0.5).create(&buffer)?;
    /// buffer.gradients().put(0, &[2f32, -4.0])?;
    /// optimizer.step_with(&mut buffer, &StepOptions::default(), |piece| {
    ///     let Piece { master, grad, state: [sum, ..], lr, .. } = piece; // AdaGrad
    ///     for ((w, g), s) in master.iter_mut().zip(grad).zip(sum) {
    ///         *s += g * g;
    ///         *w -= lr as f32 * g / s.sqrt();
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(buffer.param::<f32>(0)?, [-0.5, 0.5]);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    ///
    /// A piece is lent for the call:
    ///
    /// ```compile_fail,E0521
    /// # use megadp::{Buffer, Optimizer, StepOptions};
    /// # fn keeps(optimizer: &mut Optimizer, buffer: &mut Buffer) {
    /// let mut kept = Vec::new();
    /// let _ = optimizer.step_with(buffer, &StepOptions::default(), |piece| Ok(kept.push(piece)));
    /// # }
    /// ```
    pub fn step_with<'a>(
        &mut self,
        gradients: impl Into<ToStep<'a>>,
        options: &StepOptions,
        update: impl FnMut(Piece<'_>) -> Updated,
    ) -> Result<StepReport> {
        Optimizer::step_many_with([self], gradients, options, update)
    }

    /// The same, but returns as [`Optimizer::start_step`] does; all updates are done then.
    ///
    /// # Errors
    /// As [`Optimizer::step_with`].
    pub fn start_step_with<'a>(
        &mut self,
        gradients: impl Into<ToStep<'a>>,
        options: &StepOptions,
        update: impl FnMut(Piece<'_>) -> Updated,
    ) -> Result<(StepReport, Request)> {
        Optimizer::start_step_many_with([self], gradients, options, update)
    }

    /// [`Optimizer::step_many`] of which some or all have [`Rule::Caller`](crate::Rule::Caller): `update` gets the pieces of those,
    /// [`Piece::optimizer`] tells whose. Otherwise as [`Optimizer::step_with`]. Collective, with the same list; blocking.
    ///
    /// # Errors
    /// As [`Optimizer::step_many`] and [`Optimizer::step_with`].
    pub fn step_many_with<'o, 'a>(
        optimizers: impl IntoIterator<Item = &'o mut Optimizer>,
        gradients: impl Into<ToStep<'a>>,
        options: &StepOptions,
        update: impl FnMut(Piece<'_>) -> Updated,
    ) -> Result<StepReport> {
        let (report, request) = Optimizer::start_step_many_with(optimizers, gradients, options, update)?;
        request.wait()?;
        Ok(report)
    }

    /// The same, but returns as [`Optimizer::start_step`] does; all updates are done then.
    ///
    /// # Errors
    /// As [`Optimizer::step_many_with`].
    pub fn start_step_many_with<'o, 'a>(
        optimizers: impl IntoIterator<Item = &'o mut Optimizer>,
        gradients: impl Into<ToStep<'a>>,
        options: &StepOptions,
        mut update: impl FnMut(Piece<'_>) -> Updated,
    ) -> Result<(StepReport, Request)> {
        let optimizers: Vec<&Optimizer> = optimizers.into_iter().map(|optimizer| &*optimizer).collect(); // borrowed mutably
        let gradients = gradients.into();
        if !gradients.buffer().shared.on_host {
            let text =
                "parameters are memory of a device; slices are memory of the host (as_raw() and mdp_optimizer_step_begin lead to others)";
            return Err(Error::new(Code::Unsupported, text));
        }
        let (first, buffer) = ready(&optimizers, gradients, options)?;
        begin(first, &optimizers, buffer, options)?;
        // Whoever catches the panic finds the optimizer as after an error, and what the closure borrows as any panic leaves it.
        let updated = catch_unwind(AssertUnwindSafe(|| update_pieces(first, &mut update)));
        let failed = !matches!(updated, Ok(Ok(())));
        // SAFETY: a live handle, and finish() calls it as the buffer's only call; no slice of a piece is in use.
        let finished = finish(first, buffer, false, |report, out| unsafe {
            sys::mdp_optimizer_step_finish(first.as_raw(), failed.into(), report, out)
        });
        match updated {
            Ok(Ok(())) => finished,
            Ok(Err(mine)) => finished.map_err(|told| Error { param: mine.param, text: format!("{}: {}", told.text, mine.text), ..told }),
            Err(panic) => resume_unwind(panic),
        }
    }
}

fn begin(first: &Optimizer, optimizers: &[&Optimizer], buffer: &mut Buffer, options: &StepOptions) -> Result<()> {
    let raw: Vec<_> = optimizers.iter().map(|optimizer| optimizer.as_raw()).collect();
    let config = options.raw()?;
    let _inside = first.shared.enter();
    // SAFETY: live handles, the buffer's only call; the list lives through it. The buffer is borrowed mutably until the step is finished.
    buffer.begin_step(|| check(unsafe { sys::mdp_optimizer_step_begin(raw.as_ptr(), raw.len(), config) }))
}

/// Until an update fails.
fn update_pieces(first: &Optimizer, update: &mut dyn FnMut(Piece<'_>) -> Updated) -> Result<()> {
    loop {
        let mut raw = sys::mdp_update::new();
        {
            let _inside = first.shared.enter();
            // SAFETY: a live handle, the buffer's only call.
            check(unsafe { sys::mdp_optimizer_step_next(first.as_raw(), &mut raw) })?;
        }
        if raw.count == 0 {
            return Ok(());
        }
        // SAFETY: just written; the closure cannot keep it. Buffer and optimizers are borrowed mutably, so nobody has a slice of their memory.
        update(unsafe { Piece::new(&raw) }).map_err(|reason| {
            let param = raw.param as usize;
            Error::new(Code::Aborted, format!("the update of parameter {param}: {reason}")).about_param(param)
        })?;
    }
}
