// SPDX-License-Identifier: Apache-2.0
//! AdamW, with its state sharded over the ranks.
use crate::buffer::Buffer;
use crate::element::dense_view;
use crate::error::{Code, Error, Result, check};
use crate::gradients::Shared;
use crate::handle::{NotSync, Owned, Tree};
use crate::library::text;
use crate::request::Request;
use crate::sync::ToStep;
use crate::sys;
use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

/// A group of parameters with values of its own: those for which [`Param::param_group`](crate::Param::param_group) says its index. What is not
/// said is the optimizer's.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParamGroup {
    raw: sys::mdp_param_group,
}

impl ParamGroup {
    /// A group with the optimizer's values.
    pub fn new() -> Self {
        ParamGroup::default()
    }

    /// Its own weight decay, also 0.
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.raw.weight_decay = decay;
        self.raw.flags |= sys::MDP_PARAM_GROUP_SET_WEIGHT_DECAY;
        self
    }

    /// Its own learning rate, also 0.
    pub fn lr(mut self, lr: f64) -> Self {
        self.raw.lr = lr;
        self.raw.flags |= sys::MDP_PARAM_GROUP_SET_LR;
        self
    }
}

/// Values of an optimizer; see [`Optimizer::builder`].
#[derive(Clone, Debug, Default)]
pub struct OptimizerBuilder {
    raw: sys::mdp_optimizer_config,
    groups: Vec<ParamGroup>,
}

// SAFETY: raw's pointer is NULL while it is in here.
unsafe impl Send for OptimizerBuilder {}
// SAFETY: the same.
unsafe impl Sync for OptimizerBuilder {}

impl OptimizerBuilder {
    /// Learning rate, also 0; 1e-3 unless said.
    pub fn lr(mut self, lr: f64) -> Self {
        self.raw.lr = lr;
        self.raw.flags |= sys::MDP_OPTIMIZER_SET_LR;
        self
    }

    /// Decay of the moments, also 0; 0.9 and 0.999 unless said.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Self {
        (self.raw.beta1, self.raw.beta2) = (beta1, beta2);
        self.raw.flags |= sys::MDP_OPTIMIZER_SET_BETA1 | sys::MDP_OPTIMIZER_SET_BETA2;
        self
    }

    /// Added to the root of the second moment; 1e-8 unless said, and for 0; else 1e-37 to 1e37.
    pub fn eps(mut self, eps: f64) -> Self {
        self.raw.eps = eps;
        self
    }

    /// Decoupled weight decay; 0 unless said. Groups may have their own.
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.raw.weight_decay = decay;
        self
    }

    /// Gradients are scaled down to this global norm; off unless said, and for 0.
    pub fn max_grad_norm(mut self, norm: f64) -> Self {
        self.raw.max_grad_norm = norm;
        self
    }

    /// What gradients are scaled down by, and the report shows: [`Norm::L2`] unless said.
    pub fn norm(mut self, norm: Norm) -> Self {
        self.raw.norm = norm as u32;
        self
    }

    /// Gradient elements are clipped to plus and minus this, last of all; off unless said, and for 0.
    pub fn max_grad_value(mut self, value: f64) -> Self {
        self.raw.max_grad_value = value;
        self
    }

    /// Groups of parameters; one with the values above unless said.
    pub fn param_groups(mut self, groups: impl IntoIterator<Item = ParamGroup>) -> Self {
        self.groups = groups.into_iter().collect();
        self
    }

    /// Makes the optimizer of a buffer. Collective, with equal values; blocking.
    ///
    /// # Errors
    /// INVALID (a value out of range; a parameter's group that is not there), DESYNC, STATE, MEMORY, those of a lost communicator.
    pub fn create(&self, buffer: &Buffer) -> Result<Optimizer> {
        let groups: Vec<sys::mdp_param_group> = self.groups.iter().map(|group| group.raw).collect();
        let config = sys::mdp_optimizer_config {
            param_groups: if groups.is_empty() { ptr::null() } else { groups.as_ptr() },
            param_group_count: groups.len() as u64,
            ..self.raw
        };
        let _inside = buffer.tree.enter();
        let mut out = ptr::null_mut();
        // SAFETY: a live handle, the tree's only call; the structs live through it.
        check(unsafe { sys::mdp_optimizer_create(buffer.as_raw(), &config, &mut out) })?;
        // SAFETY: just created, and ours.
        let handle = unsafe { Owned::new(out) }?;
        Ok(Optimizer { handle, shared: buffer.shared.clone(), tree: buffer.tree.clone(), not_sync: NotSync::default() })
    }
}

/// A norm of all gradients together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Norm {
    /// The root of the sum of squares.
    #[default]
    L2 = sys::MDP_NORM_L2,
    /// The largest magnitude.
    Inf = sys::MDP_NORM_INF,
}

/// What one step does differently.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepOptions {
    raw: sys::mdp_step_config,
}

impl StepOptions {
    /// Replaces the optimizer's learning rate from this step on, also by 0.
    pub fn lr(mut self, lr: f64) -> Self {
        self.raw.lr = lr;
        self.raw.flags |= sys::MDP_STEP_SET_LR;
        self
    }

    /// Gradients are divided by this, 1e-37 to 1e37. When it is said, a gradient that is not finite makes all ranks skip the step.
    pub fn loss_scale(mut self, scale: f64) -> Self {
        self.raw.loss_scale = scale;
        self
    }

    /// Gradients are divided by this too, such as the number of microbatches; 1e-37 to 1e37.
    pub fn grad_divisor(mut self, divisor: f64) -> Self {
        self.raw.grad_divisor = divisor;
        self
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
}

/// What an optimizer keeps for each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StateKind {
    /// The value in fp32; f32 parameters are their own masters.
    Master,
    /// The first moment.
    ExpAvg,
    /// The second moment.
    ExpAvgSq,
}

impl StateKind {
    fn name(self) -> &'static CStr {
        match self {
            StateKind::Master => c"master",
            StateKind::ExpAvg => c"exp_avg",
            StateKind::ExpAvgSq => c"exp_avg_sq",
        }
    }
}

/// AdamW (Loshchilov and Hutter, 2019) over a buffer's parameters; each rank keeps the state of the ranges that it owns.
#[derive(Debug)]
pub struct Optimizer {
    handle: Owned<sys::mdp_optimizer>,
    shared: Arc<Shared>,
    tree: Arc<Tree>,
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

    /// The C handle, for calls through [`sys`]: it stays this value's. The thread rules of the header, and that no slice of memory that such a
    /// call writes to is in use, are the caller's to keep.
    pub fn as_raw(&self) -> *mut sys::mdp_optimizer {
        self.handle.as_ptr()
    }

    /// Replaces the values of one group from the next step on; to be called alike on all ranks. Local.
    ///
    /// # Errors
    /// INVALID, STATE, those of a lost communicator.
    pub fn set_param_group(&mut self, group: usize, value: ParamGroup) -> Result<()> {
        let _inside = self.tree.enter();
        // SAFETY: a live handle, the tree's only call.
        check(unsafe { sys::mdp_optimizer_set_param_group(self.as_raw(), group, &value.raw) })
    }

    /// Takes one step and returns when all parameters are whole. It is given this optimizer's buffer, `&mut buffer`, and syncs as
    /// [`Buffer::sync`]; or what a sync of the buffer gave, for programs that look at reduced gradients before. Collective, blocking.
    ///
    /// # Errors
    /// INVALID, those of [`Buffer::sync`], NUMERIC (a gradient is not finite and no loss scale was given; nothing has changed on any rank), those of a lost communicator.
    /// After a failure, [`Buffer::zero_grad`] or [`Buffer::begin_microbatch`] begins anew.
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
        let gradients = gradients.into();
        self.check_buffer(gradients.buffer())?;
        let buffer = gradients.sync(options.raw.loss_scale != 0.0)?;
        let mut report = sys::mdp_step_report::new();
        let mut out = ptr::null_mut();
        {
            let _inside = self.tree.enter();
            // A new step begins with the next gradient after this call, so it counts as a beginning.
            // SAFETY: a live handle, the tree's only call; the buffer is borrowed mutably, so no slice of it is in use.
            buffer.shared.begin(|| check(unsafe { sys::mdp_optimizer_step(self.as_raw(), &options.raw, &mut report, &mut out) }))?;
        }
        buffer.closed = false;
        // SAFETY: just created, and ours.
        let request = unsafe { Request::new(out, &self.tree) }?;
        let report = StepReport {
            grad_norm: report.grad_norm,
            clip_factor: report.clip_factor,
            loss_scale: report.loss_scale,
            step: report.step,
            skipped: report.flags & sys::MDP_STEPPED_SKIPPED != 0,
            clipped: report.flags & sys::MDP_STEPPED_CLIPPED != 0,
        };
        Ok((report, request))
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

    /// The same to be written to, between steps and before the first: for programs that restore a checkpoint. A master holds what is
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

    /// How many steps the parameter has taken part in; not counted are skipped ones, and those for which all ranks had skipped the parameter.
    /// Waits for the last step. Local.
    ///
    /// # Errors
    /// INVALID, STATE (frozen), those of a lost communicator.
    pub fn steps(&self, param: usize) -> Result<u64> {
        let _inside = self.tree.enter();
        let mut steps = 0;
        // SAFETY: a live handle, the tree's only call.
        check(unsafe { sys::mdp_optimizer_steps(self.as_raw(), param, &mut steps) })?;
        Ok(steps)
    }

    /// Goes on as after `taken` steps, from which reports count on, and of which parameter p has taken part in `steps[p]`; without a list, each
    /// in all. With [`Optimizer::state_mut`], to restore what was saved; to be called alike on all ranks. Waits for the last step. Local.
    ///
    /// # Errors
    /// INVALID (the length of `steps`; one above `taken`), those of a lost communicator.
    pub fn set_steps(&mut self, taken: u64, steps: Option<&[u64]>) -> Result<()> {
        let _inside = self.tree.enter();
        let (list, count) = steps.map_or((ptr::null(), 0), |steps| (steps.as_ptr(), steps.len()));
        // SAFETY: a live handle, the tree's only call; the list is borrowed through it.
        check(unsafe { sys::mdp_optimizer_set_steps(self.as_raw(), taken, list, count) })
    }

    /// The rule, its values, groups, steps taken and what [`Optimizer::state`] knows, as one line of JSON. Waits for the last step. Local.
    ///
    /// # Errors
    /// Those of a lost communicator.
    pub fn info(&self) -> Result<String> {
        let _inside = self.tree.enter();
        // SAFETY: a live handle, the tree's only call; text() hands over memory of that size.
        text(|json, capacity, needed| unsafe { sys::mdp_optimizer_info(self.as_raw(), json, capacity, needed) })
    }

    fn state_view(&self, param: usize, kind: StateKind) -> Result<(*mut f32, usize)> {
        let _inside = self.tree.enter();
        let mut view = sys::mdp_tensor::new();
        // SAFETY: a live handle, the tree's only call.
        check(unsafe { sys::mdp_optimizer_state(self.as_raw(), param, kind.name().as_ptr(), &mut view) })?;
        dense_view(&view, &format!("the optimizer's state of parameter {param}"))
    }
}
