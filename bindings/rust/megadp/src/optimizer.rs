// SPDX-License-Identifier: Apache-2.0
//! Steps of an update rule, whose state is sharded over the ranks.
use crate::buffer::Buffer;
use crate::element::{Element, dense_view};
use crate::error::{Code, Error, Result, check};
use crate::gradients::Shared;
use crate::handle::{NotSync, Owned};
use crate::library::text;
use crate::optimizer_builder::{OptimizerBuilder, ParamGroup};
use crate::request::Request;
use crate::sync::ToStep;
use crate::sys;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::Arc;

/// What one step does differently.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepOptions {
    raw: sys::mdp_step_config,
    // Whether these were said: the library takes 0 for unsaid.
    has_scale: bool,
    has_divisor: bool,
}

// SAFETY: raw's pointer is a stream's, which this only hands on to the library; a stream may be used by any thread, and who gives one promises
// that it lives.
unsafe impl Send for StepOptions {}
// SAFETY: the same.
unsafe impl Sync for StepOptions {}

impl StepOptions {
    /// Replaces the optimizer's learning rate from this step on, also by 0.
    pub fn lr(mut self, lr: f64) -> Self {
        self.raw.lr = lr;
        self.raw.flags |= sys::MDP_STEP_SET_LR;
        self
    }

    /// Gradients are divided by this, 1e-37 to 1e37. When it is said, a gradient that is not finite makes all ranks skip the step.
    pub fn loss_scale(mut self, scale: f64) -> Self {
        (self.raw.loss_scale, self.has_scale) = (scale, true);
        self
    }

    /// Gradients are divided by this too, such as the number of microbatches; 1e-37 to 1e37.
    pub fn grad_divisor(mut self, divisor: f64) -> Self {
        (self.raw.grad_divisor, self.has_divisor) = (divisor, true);
        self
    }

    /// The struct to hand to the library.
    pub(crate) fn raw(&self) -> Result<&sys::mdp_step_config> {
        for (said, value, name) in
            [(self.has_scale, self.raw.loss_scale, "loss_scale"), (self.has_divisor, self.raw.grad_divisor, "grad_divisor")]
        {
            if said && value == 0.0 {
                return Err(Error::new(Code::Invalid, format!("config.{name} is 0; it must be between 1e-37 and 1e37")));
            }
        }
        Ok(&self.raw)
    }

    /// No norm is computed, and what is not finite spreads; INVALID with clipping, a loss scale or scaler, [`Rule::Caller`](crate::Rule::Caller).
    /// On one node, with [`BufferBuilder::no_overlap`](crate::BufferBuilder::no_overlap) and unless a sync came before, on all ranks or
    /// none, gradients are then reduced, parameters updated and gathered in one pass over memory.
    pub fn unchecked(mut self) -> Self {
        self.raw.flags |= sys::MDP_STEP_UNCHECKED;
        self
    }

    pub(crate) fn is_unchecked(&self) -> bool {
        self.raw.flags & sys::MDP_STEP_UNCHECKED != 0
    }

    /// With CUDA: the stream that the step's work goes with; the device's default stream unless said.
    ///
    /// # Safety
    /// It must be NULL or a live cudaStream_t of the rank's device, as long as these options are used.
    pub unsafe fn stream(mut self, stream: sys::mdp_stream) -> Self {
        self.raw.stream = stream;
        self
    }
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// L2 norm of the whole reduced gradient, over all ranks, divided by the loss scale, before clipping.
    pub grad_norm: f64,
    /// What the gradient was multiplied by; 1: not clipped.
    pub clip_factor: f64,
    /// The loss scale in use.
    pub loss_scale: f64,
    /// Steps taken so far, skipped ones not counted.
    pub step: u64,
    /// A gradient was not finite: nothing was changed, and the step not counted.
    pub skipped: bool,
    /// The gradient was scaled down to the largest norm.
    pub clipped: bool,
    /// As [`StepOptions::unchecked`] asks for; the norm is NaN.
    pub unchecked: bool,
}

/// What an optimizer keeps for each element: the master, and what its [`Rule`](crate::Rule) needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StateKind {
    /// The value in fp32; f32 parameters are their own masters.
    Master,
    /// The first moment, or the mean that Lion keeps.
    ExpAvg,
    /// The second moment.
    ExpAvgSq,
    /// The sum of gradients.
    MomentumBuffer,
    /// With [`OptimizerBuilder::average_decay`]: the moving average of the master. It begins as that is before the first step.
    Average,
    /// With [`Rule::Caller`](crate::Rule::Caller): the array of that number in [`OptimizerBuilder::state`].
    Caller(usize),
}

/// A [`Rule`](crate::Rule) over a buffer's parameters; each rank keeps the state of the ranges that it owns.
#[derive(Debug)]
pub struct Optimizer {
    handle: Owned<sys::mdp_optimizer>,
    pub(crate) shared: Arc<Shared>,
    /// With a rule of the caller's: the names of its arrays.
    callers: Option<Vec<CString>>,
    not_sync: NotSync,
}

impl Optimizer {
    /// Its values.
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Optimizer, Param, ParamGroup};
    /// # let comm = Comm::builder().connect()?;
    /// let params = [Param::new("w", &[4]), Param::new("norm", &[2]).param_group(1)];
    /// let buffer = Buffer::builder().register(&comm, &params)?;
    /// let optimizer = Optimizer::builder()
    ///     .lr(3e-4)
    ///     .betas(0.9, 0.95)
    ///     .weight_decay(0.1)
    ///     .max_grad_norm(1.0)
    ///     .param_groups([ParamGroup::new(), ParamGroup::new().weight_decay(0.0)]) // weights decay, norms do not
    ///     .create(&buffer)?;
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn builder() -> OptimizerBuilder {
        OptimizerBuilder::default()
    }

    pub(crate) fn new(handle: Owned<sys::mdp_optimizer>, buffer: &Buffer, callers: Option<Vec<CString>>) -> Self {
        Optimizer { handle, shared: buffer.shared.clone(), callers, not_sync: NotSync::default() }
    }

    /// The C handle, for calls through [`sys`]: it stays this value's. The thread rules of the header, and that no slice of memory that such a
    /// call writes to is in use, are the caller's to keep.
    pub fn as_raw(&self) -> *mut sys::mdp_optimizer {
        self.handle.as_ptr()
    }

    /// Replaces the values of one group, by the number that parameters say, from the next step on; to be called alike on all ranks. Local.
    ///
    /// # Errors
    /// INVALID, STATE, those of a lost communicator.
    pub fn set_param_group(&mut self, group: usize, value: ParamGroup) -> Result<()> {
        let raw = value.raw("value")?;
        let _inside = self.shared.enter();
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_optimizer_set_param_group(self.as_raw(), group, &raw) })
    }

    /// Takes one step and returns when all parameters are whole. It is given this optimizer's buffer, `&mut buffer`, and syncs as
    /// [`Buffer::sync`]; or what a sync of the buffer gave, for programs that look at reduced gradients before. Collective, blocking.
    ///
    /// # Errors
    /// INVALID, those of [`Buffer::sync`], NUMERIC (a gradient is not finite, and there is no loss scale and no [`Scaler`](crate::Scaler); nothing has changed on any rank), those of a lost communicator.
    /// After a failure of the sync, [`Buffer::zero_grad`] or [`Buffer::begin_microbatch`] begins anew; NUMERIC of the step has begun the next
    /// one, as a skipped step does.
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Optimizer, Param, StepOptions};
    /// # let mut buffer = Buffer::builder().register(&Comm::builder().connect()?, &[Param::new("w", &[1])])?;
    /// # let mut optimizer = Optimizer::builder().create(&buffer)?;
    /// buffer.gradients().put(0, &[f32::INFINITY])?;
    /// let report = optimizer.step(&mut buffer, &StepOptions::default().loss_scale(1024.0))?;
    /// assert!(report.skipped);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn step<'a>(&mut self, gradients: impl Into<ToStep<'a>>, options: &StepOptions) -> Result<StepReport> {
        let (report, request) = self.start_step(gradients, options)?;
        request.wait()?;
        Ok(report)
    }

    /// The same, but returns once the report is known, while parameters are still gathered: [`Buffer::param`] and [`Gradients`](crate::Gradients)
    /// wait for those that they need, the request for all. Collective, blocking until then.
    ///
    /// # Errors
    /// As [`Optimizer::step`].
    pub fn start_step<'a>(&mut self, gradients: impl Into<ToStep<'a>>, options: &StepOptions) -> Result<(StepReport, Request)> {
        let raw = self.as_raw();
        // SAFETY: a live handle, and start() calls it as the buffer's only call.
        start(&[self], gradients.into(), options, |config, report, out| unsafe { sys::mdp_optimizer_step(raw, config, report, out) })
    }

    /// One step of several optimizers of one buffer, each with groups of its own ([`OptimizerBuilder::first_param_group`]): one sync, norm,
    /// skip decision and report, which are the first one's, as is the scaler. They clip alike, and have their learning rates from
    /// [`Optimizer::set_param_group`]. Otherwise as [`Optimizer::step`]. Collective, with the same list; blocking.
    ///
    /// # Errors
    /// INVALID (no optimizer; one of another buffer; a trained parameter whose group none or two have; a learning rate), else as
    /// [`Optimizer::step`].
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Optimizer, Param, Rule, StepOptions};
    /// # let comm = Comm::builder().connect()?;
    /// let mut buffer = Buffer::builder().register(&comm, &[Param::new("w", &[1]), Param::new("table", &[1]).param_group(1)])?;
    /// let mut lion = Optimizer::builder().rule(Rule::Lion).lr(0.5).first_param_group(0).create(&buffer)?;
    /// let mut sgd = Optimizer::builder().rule(Rule::Sgd).lr(0.5).first_param_group(1).create(&buffer)?;
    /// buffer.gradients().put(0, &[2f32])?;
    /// buffer.gradients().put(1, &[2f32])?;
    /// Optimizer::step_many([&mut lion, &mut sgd], &mut buffer, &StepOptions::default())?;
    /// assert_eq!((buffer.param::<f32>(0)?[0], buffer.param::<f32>(1)?[0]), (-0.5, -1.0));
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn step_many<'o, 'a>(
        optimizers: impl IntoIterator<Item = &'o mut Optimizer>,
        gradients: impl Into<ToStep<'a>>,
        options: &StepOptions,
    ) -> Result<StepReport> {
        let (report, request) = Optimizer::start_step_many(optimizers, gradients, options)?;
        request.wait()?;
        Ok(report)
    }

    /// The same, but returns as [`Optimizer::start_step`] does.
    ///
    /// # Errors
    /// As [`Optimizer::step_many`].
    pub fn start_step_many<'o, 'a>(
        optimizers: impl IntoIterator<Item = &'o mut Optimizer>,
        gradients: impl Into<ToStep<'a>>,
        options: &StepOptions,
    ) -> Result<(StepReport, Request)> {
        let optimizers: Vec<&Optimizer> = optimizers.into_iter().map(|optimizer| &*optimizer).collect(); // borrowed mutably
        let raw: Vec<_> = optimizers.iter().map(|optimizer| optimizer.as_raw()).collect();
        // SAFETY: live handles, and start() calls it as the buffer's only call; the list lives through it.
        start(&optimizers, gradients.into(), options, |config, report, out| unsafe {
            sys::mdp_optimizer_step_many(raw.as_ptr(), raw.len(), config, report, out)
        })
    }

    pub(crate) fn check_buffer(&self, buffer: &Buffer) -> Result<()> {
        if Arc::ptr_eq(&self.shared, &buffer.shared) {
            return Ok(());
        }
        Err(Error::new(Code::Invalid, "the buffer is not the one that this optimizer was created for"))
    }

    /// The part of a parameter's state that this rank keeps, empty if it keeps none; where it begins in the flattened parameter is
    /// [`OwnedRange::param_begin`](crate::OwnedRange::param_begin). The buffer is the optimizer's, borrowed because f32 parameters are
    /// their own masters. Waits for the last step. Local.
    ///
    /// # Errors
    /// INVALID, STATE (frozen), those of a lost communicator.
    pub fn state<'a>(&'a self, buffer: &'a Buffer, param: usize, kind: StateKind) -> Result<&'a [f32]> {
        self.check_buffer(buffer)?;
        buffer.end_broadcast()?;
        let (data, len) = self.state_view(param, kind)?;
        // SAFETY: written by a step, and by the first look after parameters were written, both of which need the buffer mutably; lives as
        // long as the optimizer.
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// The same as elements of another type: what an optimizer with [`OptimizerBuilder::bf16_state`](crate::OptimizerBuilder::bf16_state)
    /// keeps is bf16 (feature `half`).
    ///
    /// # Errors
    /// As [`Optimizer::state`]; INVALID also for a type that it is not of.
    pub fn state_as<'a, T: Element>(&'a self, buffer: &'a Buffer, param: usize, kind: StateKind) -> Result<&'a [T]> {
        self.check_buffer(buffer)?;
        buffer.end_broadcast()?;
        let (data, len) = self.state_view(param, kind)?;
        // SAFETY: as in state().
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// The same as [`Optimizer::state`] to be written to, between steps and before the first: for programs that restore a checkpoint. A master holds what is
    /// written into it until its parameter is written again.
    ///
    /// # Errors
    /// As [`Optimizer::state`].
    pub fn state_mut<'a>(&'a mut self, buffer: &'a mut Buffer, param: usize, kind: StateKind) -> Result<&'a mut [f32]> {
        self.check_buffer(buffer)?;
        buffer.end_broadcast()?;
        let (data, len) = self.state_view(param, kind)?;
        // SAFETY: the same; and nobody else has a slice, since both are borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
    }

    /// Evaluates on the averages: they are the parameters while `evaluate` runs, rounded, on all ranks; then what was there before is again,
    /// bit for bit. Meanwhile gradients, steps and checkpoints are refused in all of the buffer. Also where `evaluate` panics what was
    /// there before is put back, as far as the communicator lives. Collective at both ends, blocking.
    ///
    /// # Errors
    /// As [`Optimizer::swap_average`].
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Optimizer, Param, Rule, StepOptions};
    /// # let mut buffer = Buffer::builder().register(&Comm::builder().connect()?, &[Param::new("w", &[1])])?;
    /// let mut optimizer = Optimizer::builder().rule(Rule::Sgd).lr(1.0).average_decay(0.75).create(&buffer)?;
    /// buffer.gradients().put(0, &[-4f32])?;
    /// optimizer.step(&mut buffer, &StepOptions::default())?;
    /// let averaged = optimizer.averaged(&mut buffer, |buffer| buffer.param::<f32>(0).map(|w| w[0]))??;
    /// assert_eq!((averaged, buffer.param::<f32>(0)?[0]), (1.0, 4.0));
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn averaged<R>(&mut self, buffer: &mut Buffer, evaluate: impl FnOnce(&Buffer) -> R) -> Result<R> {
        self.swap_average(buffer)?;
        // What the closure borrows is as any panic leaves it; the buffer it only reads.
        let answer = catch_unwind(AssertUnwindSafe(|| evaluate(buffer)));
        let back = self.swap_average(buffer);
        match answer {
            Ok(answer) => back.map(|()| answer),
            Err(panic) => resume_unwind(panic), // where that failed, the next training call says that the averages are still there
        }
    }

    /// Puts the averages in the place of this optimizer's parameters, or what was there before back; see [`Optimizer::averaged`]. Collective,
    /// blocking.
    ///
    /// # Errors
    /// INVALID (another buffer), STATE (no [`OptimizerBuilder::average_decay`]; another optimizer's averages are there; a step is under way),
    /// those of a lost communicator.
    pub fn swap_average(&mut self, buffer: &mut Buffer) -> Result<()> {
        self.check_buffer(buffer)?;
        buffer.end_broadcast()?;
        let mut out = ptr::null_mut();
        {
            let _inside = self.shared.enter();
            // SAFETY: a live handle, the buffer's only call. The buffer is borrowed mutably, so no slice of it is in use.
            check(unsafe { sys::mdp_optimizer_swap_average(self.as_raw(), ptr::null_mut(), &mut out) })?;
        }
        // SAFETY: just created, and ours.
        unsafe { Request::new(out, &self.shared.tree) }?.wait()?;
        buffer.write_copies()
    }

    /// How many steps the parameter has taken part in; not counted are skipped ones, and those for which all ranks had skipped the parameter.
    /// Waits for the last step. Local.
    ///
    /// # Errors
    /// INVALID, STATE (frozen), those of a lost communicator.
    pub fn steps(&self, param: usize) -> Result<u64> {
        let _inside = self.shared.enter();
        let mut steps = 0;
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_optimizer_steps(self.as_raw(), param, &mut steps) })?;
        Ok(steps)
    }

    /// Goes on as after `taken` steps, from which reports count on, and of which parameter p has taken part in `steps[p]`; without a list, each
    /// in all. With [`Optimizer::state_mut`], to restore what was saved; to be called alike on all ranks. Waits for the last step. Local.
    ///
    /// # Errors
    /// INVALID (the length of `steps`; one above `taken`), those of a lost communicator.
    pub fn set_steps(&mut self, taken: u64, steps: Option<&[u64]>) -> Result<()> {
        let _inside = self.shared.enter();
        let (list, count) = steps.map_or((ptr::null(), 0), |steps| (steps.as_ptr(), steps.len()));
        // SAFETY: a live handle, the buffer's only call; the list is borrowed through it.
        check(unsafe { sys::mdp_optimizer_set_steps(self.as_raw(), taken, list, count) })
    }

    /// The rule, its values, groups, steps taken and what [`Optimizer::state`] knows, as one line of JSON. Waits for the last step. Local.
    ///
    /// # Errors
    /// Those of a lost communicator.
    pub fn info(&self) -> Result<String> {
        let _inside = self.shared.enter();
        // SAFETY: a live handle, the buffer's only call; text() hands over memory of that size.
        text(|json, capacity, needed| unsafe { sys::mdp_optimizer_info(self.as_raw(), json, capacity, needed) })
    }

    fn state_view<T: Element>(&self, param: usize, kind: StateKind) -> Result<(*mut T, usize)> {
        let _inside = self.shared.enter();
        let mut view = sys::mdp_tensor::new();
        // SAFETY: a live handle, the buffer's only call.
        check(unsafe { sys::mdp_optimizer_state(self.as_raw(), param, self.name_of(kind)?.as_ptr(), &mut view) })?;
        dense_view(&view, &format!("the optimizer's state of parameter {param}"))
    }

    fn name_of(&self, kind: StateKind) -> Result<&CStr> {
        Ok(match kind {
            StateKind::Master => c"master",
            StateKind::ExpAvg => c"exp_avg",
            StateKind::ExpAvgSq => c"exp_avg_sq",
            StateKind::MomentumBuffer => c"momentum_buffer",
            StateKind::Average => c"average",
            StateKind::Caller(number) => {
                let names = self.callers.as_deref().unwrap_or_default();
                return names.get(number).map(CString::as_c_str).ok_or_else(|| {
                    let text = format!("kind is Caller({number}); this optimizer has {} arrays of the caller's", names.len());
                    Error::new(Code::Invalid, text)
                });
            }
        })
    }
}

/// Syncs, and makes the call that steps these optimizers, which are borrowed mutably.
fn start(
    optimizers: &[&Optimizer],
    gradients: ToStep<'_>,
    options: &StepOptions,
    call: impl FnOnce(&sys::mdp_step_config, &mut sys::mdp_step_report, &mut *mut sys::mdp_request) -> sys::mdp_status,
) -> Result<(StepReport, Request)> {
    if optimizers.iter().any(|optimizer| optimizer.callers.is_some()) {
        let text = "the optimizer's rule is Rule::Caller; Optimizer::step_with and step_many_with take the closure that updates";
        return Err(Error::new(Code::State, text));
    }
    let (first, buffer) = ready(optimizers, gradients, options)?;
    let raw = options.raw()?;
    finish(first, buffer, options.is_unchecked(), |report, out| call(raw, report, out))
}

/// What begins a step of these optimizers: the first of them, and the buffer after a sync.
pub(crate) fn ready<'o, 'a>(
    optimizers: &[&'o Optimizer],
    gradients: ToStep<'a>,
    options: &StepOptions,
) -> Result<(&'o Optimizer, &'a mut Buffer)> {
    let Some(first) = optimizers.first() else {
        return Err(Error::new(Code::Invalid, "optimizers is empty; give at least one"));
    };
    optimizers.iter().try_for_each(|optimizer| optimizer.check_buffer(gradients.buffer()))?;
    let raw = options.raw()?;
    if options.is_unchecked() {
        return Ok((first, gradients.into_buffer())); // the step syncs: it may then add up the buckets itself
    }
    Ok((first, gradients.sync(|| raw.loss_scale != 0.0 || first.has_scaler())?))
}

/// Makes the call that ends a step.
pub(crate) fn finish(
    first: &Optimizer,
    buffer: &mut Buffer,
    unchecked: bool,
    call: impl FnOnce(&mut sys::mdp_step_report, &mut *mut sys::mdp_request) -> sys::mdp_status,
) -> Result<(StepReport, Request)> {
    let mut report = sys::mdp_step_report::new();
    let mut out = ptr::null_mut();
    let _inside = first.shared.enter();
    // The buffer is borrowed mutably, so no slice of it is in use.
    buffer.end_step(unchecked, || check(call(&mut report, &mut out)))?;
    buffer.copies.outdated.set(true);
    // SAFETY: just created, and ours.
    let request = unsafe { Request::new(out, &first.shared.tree) }?;
    let report = StepReport {
        grad_norm: report.grad_norm,
        clip_factor: report.clip_factor,
        loss_scale: report.loss_scale,
        step: report.step,
        skipped: report.flags & sys::MDP_STEPPED_SKIPPED != 0,
        clipped: report.flags & sys::MDP_STEPPED_CLIPPED != 0,
        unchecked: report.flags & sys::MDP_STEPPED_UNCHECKED != 0,
    };
    Ok((report, request))
}
