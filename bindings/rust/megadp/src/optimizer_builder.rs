// SPDX-License-Identifier: Apache-2.0
//! What an optimizer is made with: the rule, its values, groups of parameters.
use crate::buffer::Buffer;
use crate::error::{Code, Error, Result, check};
use crate::handle::Owned;
use crate::optimizer::Optimizer;
#[cfg(doc)]
use crate::pieces::Piece;
use crate::sys;
use std::ffi::CString;
use std::ptr;

/// What a step does with a gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Rule {
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    #[default]
    AdamW = sys::MDP_RULE_ADAMW,
    /// Adam (Kingma and Ba, 2015); weight decay is L2 regularization, in the gradient.
    Adam = sys::MDP_RULE_ADAM,
    /// Gradient descent, without state; weight decay is L2 regularization, as in the next two.
    Sgd = sys::MDP_RULE_SGD,
    /// With momentum, whose buffer is a sum of gradients in which the learning rate does not stand.
    SgdMomentum = sys::MDP_RULE_SGD_MOMENTUM,
    /// With Nesterov's momentum.
    SgdNesterov = sys::MDP_RULE_SGD_NESTEROV,
    /// The sign of a mean of gradients (Chen et al., 2023), with decoupled weight decay.
    Lion = sys::MDP_RULE_LION,
    /// What a closure does, which [`Optimizer::step_with`] takes, with arrays of state that [`OptimizerBuilder::state`] names.
    Caller = sys::MDP_RULE_CALLER,
}

/// A group of parameters with values of its own: those for which [`Param::param_group`](crate::Param::param_group) says its index. What is not
/// said is the optimizer's.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParamGroup {
    raw: sys::mdp_param_group,
    no_eps: bool, // 0 was said, which the library would take for the optimizer's
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

    /// Its own decay of the moments, also 0.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Self {
        (self.raw.beta1, self.raw.beta2) = (beta1, beta2);
        self.raw.flags |= sys::MDP_PARAM_GROUP_SET_BETA1 | sys::MDP_PARAM_GROUP_SET_BETA2;
        self
    }

    /// Its own eps, 1e-37 to 1e37.
    pub fn eps(mut self, eps: f64) -> Self {
        (self.raw.eps, self.no_eps) = (eps, eps == 0.0);
        self
    }

    /// Its own momentum, also 0.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.raw.momentum = momentum;
        self.raw.flags |= sys::MDP_PARAM_GROUP_SET_MOMENTUM;
        self
    }

    /// The struct to hand to the library; `name` is the argument's.
    pub(crate) fn raw(&self, name: &str) -> Result<sys::mdp_param_group> {
        check_eps(self.no_eps, name)?;
        Ok(self.raw)
    }
}

fn check_eps(no_eps: bool, name: &str) -> Result<()> {
    if !no_eps {
        return Ok(());
    }
    Err(Error::new(Code::Invalid, format!("{name}.eps is 0; it must be between 1e-37 and 1e37")))
}

/// Values of an optimizer; see [`Optimizer::builder`]. One that the rule has not is to be left unsaid.
#[derive(Clone, Debug, Default)]
pub struct OptimizerBuilder {
    raw: sys::mdp_optimizer_config,
    groups: Vec<ParamGroup>,
    state: Vec<String>,
    param_states: Vec<(String, Vec<u64>)>,
    no_eps: bool,
}

// SAFETY: raw's pointers are NULL while they are in here.
unsafe impl Send for OptimizerBuilder {}
// SAFETY: the same.
unsafe impl Sync for OptimizerBuilder {}

impl OptimizerBuilder {
    /// What a step does: [`Rule::AdamW`] unless said.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.raw.rule = rule as u32;
        self
    }

    /// Names of the arrays that [`Rule::Caller`] keeps for each element, f32 and zero at first, at most [`Piece::MOST_STATES`]: state is sharded
    /// and checkpointed as that of any rule. None unless said.
    pub fn state<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.state = names.into_iter().map(N::into).collect();
        self
    }

    /// Bytes that [`Rule::Caller`] keeps besides of whole parameters, by a name: so many of each parameter of the buffer, in order, 0 of those
    /// that have none. At most [`Piece::MOST_STATES`] of them.
    pub fn param_state(mut self, name: impl Into<String>, bytes: impl IntoIterator<Item = u64>) -> Self {
        self.param_states.push((name.into(), bytes.into_iter().collect()));
        self
    }

    /// Learning rate, also 0; 1e-3 unless said, 1e-4 of [`Rule::Lion`].
    pub fn lr(mut self, lr: f64) -> Self {
        self.raw.lr = lr;
        self.raw.flags |= sys::MDP_OPTIMIZER_SET_LR;
        self
    }

    /// Decay of the moments, also 0; 0.9 and 0.999 unless said, 0.9 and 0.99 of [`Rule::Lion`]. Of these and Adam.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Self {
        (self.raw.beta1, self.raw.beta2) = (beta1, beta2);
        self.raw.flags |= sys::MDP_OPTIMIZER_SET_BETA1 | sys::MDP_OPTIMIZER_SET_BETA2;
        self
    }

    /// Added to the root of the second moment, 1e-37 to 1e37; 1e-8 unless said. Of [`Rule::AdamW`] and Adam.
    pub fn eps(mut self, eps: f64) -> Self {
        (self.raw.eps, self.no_eps) = (eps, eps == 0.0);
        self
    }

    /// What stays of the momentum's buffer, also 0; 0.9 unless said. Of [`Rule::SgdMomentum`] and [`Rule::SgdNesterov`].
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.raw.momentum = momentum;
        self.raw.flags |= sys::MDP_OPTIMIZER_SET_MOMENTUM;
        self
    }

    /// Weight decay, decoupled or L2 as the [`Rule`] has it; 0 unless said. Groups may have their own.
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

    /// An exponential moving average of the parameters is kept, with this decay, below 1, such as 0.999; none unless said, and for 0. See
    /// [`Optimizer::averaged`].
    pub fn average_decay(mut self, decay: f64) -> Self {
        self.raw.average_decay = decay;
        self
    }

    /// Groups of parameters; one with the values above unless said.
    pub fn param_groups(mut self, groups: impl IntoIterator<Item = ParamGroup>) -> Self {
        self.groups = groups.into_iter().collect();
        self
    }

    /// The optimizer has but the groups from this one on, as many as [`OptimizerBuilder::param_groups`] says; parameters of others are other
    /// optimizers', and [`Optimizer::step_many`] steps them together. All groups unless said.
    pub fn first_param_group(mut self, first: u32) -> Self {
        self.raw.first_param_group = first;
        self.raw.flags |= sys::MDP_OPTIMIZER_SOME_GROUPS;
        self
    }

    /// What the rule keeps is bf16, rounded to nearest unless [`OptimizerBuilder::stochastic_state`] is said; f32 unless said. Not of
    /// [`Rule::Caller`].
    pub fn bf16_state(mut self) -> Self {
        self.raw.state_dtype = sys::MDP_DTYPE_BF16;
        self
    }

    /// With [`OptimizerBuilder::bf16_state`]: rounded stochastically.
    pub fn stochastic_state(mut self) -> Self {
        self.raw.flags |= sys::MDP_OPTIMIZER_STOCHASTIC_STATE;
        self
    }

    /// bf16 parameters have no fp32 masters, but are rounded stochastically. Not of [`Rule::Caller`], nor for f16.
    pub fn no_master(mut self) -> Self {
        self.raw.flags |= sys::MDP_OPTIMIZER_NO_MASTER;
        self
    }

    /// To debug an update of [`Rule::Caller`]: behind each piece come copies of its two halves, and a step that makes anything else of them
    /// fails.
    pub fn check_update(mut self) -> Self {
        self.raw.flags |= sys::MDP_OPTIMIZER_CHECK_UPDATE;
        self
    }

    /// Of stochastic rounding, whose bits are the same on any number of ranks; 0 unless said.
    pub fn seed(mut self, seed: u64) -> Self {
        self.raw.seed = seed;
        self
    }

    /// Makes the optimizer of a buffer. Collective, with equal values; blocking.
    ///
    /// # Errors
    /// INVALID (a value out of range, or that the rule has not; a parameter's group that is not there), UNSUPPORTED
    /// ([`OptimizerBuilder::no_master`] with f16), DESYNC, STATE, MEMORY, those of a lost communicator.
    pub fn create(&self, buffer: &Buffer) -> Result<Optimizer> {
        let callers = (self.raw.rule == sys::MDP_RULE_CALLER).then(|| self.state_names()).transpose()?;
        self.with_raw(buffer.len(), |config| {
            let _inside = buffer.shared.enter_alone();
            let mut out = ptr::null_mut();
            // SAFETY: a live handle, the buffer's only call; the struct lives through it.
            check(unsafe { sys::mdp_optimizer_create(buffer.as_raw(), config, &mut out) })?;
            // SAFETY: just created, and ours.
            Ok(Optimizer::new(unsafe { Owned::new(out) }?, buffer, callers))
        })
    }

    /// Calls `with` with the C struct, which is valid during that call; `params`: how many parameters there are.
    pub(crate) fn with_raw<R>(&self, params: usize, with: impl FnOnce(&sys::mdp_optimizer_config) -> Result<R>) -> Result<R> {
        check_eps(self.no_eps, "config")?;
        let named = |(i, group): (usize, &ParamGroup)| group.raw(&format!("config.param_groups[{i}]"));
        let groups = self.groups.iter().enumerate().map(named).collect::<Result<Vec<_>>>()?;
        let names = self.state_names()?;
        let listed = CString::new(self.state.join("\n")).unwrap_or_default(); // no name has a NUL
        let kept_names = self.param_state_names(params)?;
        let raw_kept = |((_, bytes), name): (&(String, Vec<u64>), &CString)| sys::mdp_param_state {
            name: name.as_ptr(),
            bytes: bytes.as_ptr(),
            ..sys::mdp_param_state::new()
        };
        let kept: Vec<_> = self.param_states.iter().zip(&kept_names).map(raw_kept).collect();
        with(&sys::mdp_optimizer_config {
            param_states: if kept.is_empty() { ptr::null() } else { kept.as_ptr() },
            param_state_count: kept.len() as u64,
            state: if names.is_empty() { ptr::null() } else { listed.as_ptr() },
            param_groups: if groups.is_empty() { ptr::null() } else { groups.as_ptr() },
            param_group_count: groups.len() as u64,
            ..self.raw
        })
    }

    fn param_state_names(&self, params: usize) -> Result<Vec<CString>> {
        let named = |(name, bytes): &(String, Vec<u64>)| {
            if bytes.len() != params {
                let text = format!("param_state {name:?} has {} numbers of bytes; there are {params} parameters", bytes.len());
                return Err(Error::new(Code::Invalid, text));
            }
            CString::new(name.as_str()).map_err(|_| Error::new(Code::Invalid, format!("param_state {name:?} has a NUL in its name")))
        };
        self.param_states.iter().map(named).collect()
    }

    // The library takes them as lines, and so would not see these faults.
    fn state_names(&self) -> Result<Vec<CString>> {
        let bad = |name: &&String| name.is_empty() || name.contains(['\n', '\0']);
        if let Some(name) = self.state.iter().find(bad) {
            let right = "names are of 1 to 64 letters, digits, '_', '-' and '.'";
            return Err(Error::new(Code::Invalid, format!("config.state has the name {name:?}; {right}")));
        }
        Ok(self.state.iter().map(|name| CString::new(name.as_str()).unwrap_or_default()).collect())
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
