// SPDX-License-Identifier: Apache-2.0
//! Models of [candle](candle_core), on the CPU: gradients leave during backward, as soon as each is known.
//!
//! candle's backward makes arrays of its own and tells nobody about them before it ends. So the model is built from other tensors than its
//! variables: each has its variable's values, and comes from an operation whose backward hands the gradient over. It is built once; a step
//! writes the new values into the same tensors, and into the variables.
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use megadp::candle::DataParallel;
//! use megadp::{Buffer, Comm, Optimizer, StepOptions};
//!
//! # fn main() -> megadp::candle::Result<()> {
//! let comm = Comm::builder().connect()?;
//! let vars = [("weight", Var::zeros((2, 1), DType::F32, &Device::Cpu)?), ("bias", Var::zeros(1, DType::F32, &Device::Cpu)?)];
//! let mut parallel = DataParallel::register(&comm, &Buffer::builder(), vars)?;
//! let mut optimizer = Optimizer::builder().lr(0.1).create(parallel.buffer())?;
//! let (weight, bias) = (parallel.tensor("weight")?, parallel.tensor("bias")?);
//!
//! let x = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
//! let y = Tensor::new(&[[3f32], [7.0]], &Device::Cpu)?;
//! let loss = || x.matmul(&weight)?.broadcast_add(&bias)?.sub(&y)?.sqr()?.mean_all();
//! let before = loss()?.to_scalar::<f32>()?;
//! for _ in 0..10 {
//!     parallel.backward(&loss()?)?; // gradients are on their way
//!     parallel.step(&mut optimizer, &StepOptions::default())?;
//! }
//! assert!(loss()?.to_scalar::<f32>()? < before / 2.0);
//! # Ok(())
//! # }
//! ```
//!
//! A variable that a loss uses itself counts too: a penalty over a `VarMap`'s variables, or a model that is built from them. Such a gradient,
//! with what came through the tensor, leaves when backward has ended.
//!
//! Which gradient is known when is candle's choice: in a product of activations and weights, written in this order, those of the weights
//! come before backward goes on to the layer below. Where weights are the left factor they come last.
//!
//! # Operations without a backward
//!
//! **Some of candle's fused operations have none**, among them those that `candle_nn::LayerNorm` and `candle_nn::RmsNorm` run on contiguous
//! input, `ops::softmax_last_dim` and `rotary_emb::rope`. candle does not say so: it ends backward there, and whatever is below gets no
//! gradient. Train with `ops::layer_norm_slow`, `RmsNorm::forward_diff` or `ops::rms_norm_slow`, `ops::softmax` and `rotary_emb::rope_slow`.
//! [`DataParallel::step`] names the parameters that got no gradient, and [`DataParallel::without_gradient`] does so after any backward.
use crate::buffer::Buffer;
use crate::buffer_builder::BufferBuilder;
use crate::error::Code;
use crate::grid::Ranks;
use crate::optimizer::{Optimizer, StepOptions, StepReport};
use crate::param::Param;
use crate::pieces::{Piece, Updated};
use crate::request::Request;
use arrival::{Arrival, Failure, Way};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use graph::Graphs;
use operation::lock;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use values::{find_different, write};

mod arrival;
pub mod cp;
mod graph;
pub mod halo;
mod operation;
pub mod tp;
mod values;

/// What calls of this module return.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of either side.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Of this crate: also one that came up inside of a backward.
    Megadp(crate::Error),
    /// Of candle.
    Candle(candle_core::Error),
}

impl Error {
    fn into_megadp(self) -> crate::Error {
        match self {
            Error::Megadp(error) => error,
            Error::Candle(error) => crate::Error::new(Code::Internal, error.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Megadp(error) => error.fmt(f),
            Error::Candle(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Megadp(error) => Some(error),
            Error::Candle(error) => Some(error),
        }
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        Error::Megadp(error)
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Error::Candle(error)
    }
}

struct Weight {
    names: Vec<String>,
    var: Var,
    tensor: Tensor,
    way: Arc<Way>,
}

impl Weight {
    fn name(&self) -> &str {
        &self.names[0]
    }
}

const NO_BACKWARD: &str = "candle gives no gradient to what is below an operation that has no backward, and its fused ones have none \
    (candle_nn::LayerNorm and RmsNorm, ops::softmax_last_dim, rotary_emb::rope): train with ops::layer_norm_slow, RmsNorm::forward_diff, \
    ops::softmax, rotary_emb::rope_slow";

/// The variables of a model, whose gradients are reduced over the ranks. One thread at a time, as [`Buffer`].
pub struct DataParallel {
    buffer: Buffer,
    weights: Arc<Vec<Weight>>,
    graphs: Graphs,
    failure: Failure,
    /// How many steps there were.
    steps: usize,
}

impl DataParallel {
    /// Registers named variables, in the order of forward, the same on all ranks (a `VarMap` has none: sort them); the values of rank 0 become
    /// those of all ranks, also in the variables. A variable that comes under several names is one parameter, with one gradient. f32, bf16 or
    /// f16, contiguous, on the CPU. Any [`Sharding`](crate::Sharding) will do. `on` is a communicator or a grid; with
    /// tensor-parallel ranks see [`DataParallel::register_params`]. Collective over its ranks, blocking.
    ///
    /// # Errors
    /// As [`BufferBuilder::register`]; INVALID (a name for two variables); UNSUPPORTED for other variables; those of candle.
    pub fn register<'a, N: Into<String>>(
        on: impl Into<Ranks<'a>>,
        builder: &BufferBuilder,
        vars: impl IntoIterator<Item = (N, Var)>,
    ) -> Result<Self> {
        DataParallel::register_params(on, builder, vars, |param| param)
    }

    /// The same, with the parameter group of each variable, by its name: see [`Param::param_group`]. Collective, blocking.
    ///
    /// # Errors
    /// As [`DataParallel::register`].
    pub fn register_groups<'a, N: Into<String>>(
        on: impl Into<Ranks<'a>>,
        builder: &BufferBuilder,
        vars: impl IntoIterator<Item = (N, Var)>,
        param_group: impl Fn(&str) -> usize,
    ) -> Result<Self> {
        DataParallel::register_params(on, builder, vars, |param| {
            let group = param_group(param.name());
            param.param_group(group)
        })
    }

    /// The same, with whatever else a [`Param`] says: `say` gets each variable's, and gives it back with its group, order of use, or, on a grid
    /// with tensor-parallel ranks, its placement, which must be said there: what a layer tells ([`tp::Linear::weight_placed`],
    /// [`tp::Linear::bias_placed`], [`tp::Embedding::placed`]); [`Param::replicated`] for what is whole and has the same gradient on all
    /// ranks; [`Param::partial_sum`] for what is whole and is used on a part of a sequence, such as a norm between sequence-parallel layers.
    /// Gradients are then summed, norms counted and replicas kept as the placements say. Not so on a communicator of the data-parallel
    /// ranks alone, where each tensor-parallel rank clips by its own norm, and what is whole drifts apart. Each data-parallel group begins with the
    /// values of its first rank; what is not sharded must be the same on all of these. Collective, blocking.
    ///
    /// # Errors
    /// As [`DataParallel::register`]; INVALID (no placement; `say` gives another parameter, or one that is frozen or used several times);
    /// DESYNC (tensor-parallel ranks differ in what is not sharded: names it).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use megadp::candle::{DataParallel, tp::Linear};
    /// # use megadp::{Axes, Buffer, Comm, Grid, Optimizer, StepOptions, tp};
    /// # fn main() -> megadp::candle::Result<()> {
    /// # let comm = Comm::builder().connect()?;
    /// let grid = Grid::builder().tp(comm.size()?.min(2) as i32).create(&comm)?;
    /// let ranks = grid.comm(Axes::TP)?;
    /// let up = Linear::new(tp::Linear::column(4, 8).bias().sequence().create(&ranks)?);
    /// let down = Linear::new(tp::Linear::row(8, 4).sequence().create(&ranks)?);
    /// let (mine, device) = (8 / ranks.size()?, &Device::Cpu); // of the hidden features
    /// # let ones = |shape: &[usize]| Var::ones(shape, DType::F32, device);
    /// let vars = [("norm", ones(&[4])?), ("up", ones(&[mine, 4])?), ("up.bias", ones(&[mine])?), ("down", ones(&[4, mine])?)];
    /// let (up_weight, up_bias, down_weight) = (up.weight_placed()?, up.bias_placed()?, down.weight_placed()?);
    /// let mut parallel = DataParallel::register_params(&grid, &Buffer::builder(), vars, |param| match param.name() {
    ///     "up" => param.placed(up_weight),
    ///     "up.bias" => param.placed(up_bias),
    ///     "down" => param.placed(down_weight),
    ///     _ => param.partial_sum(), // the norm sees this rank's part of the sequence
    /// })?;
    /// let mut optimizer = Optimizer::builder().lr(0.1).max_grad_norm(1.0).create(parallel.buffer())?;
    /// let [norm, w1, b1, w2] = ["norm", "up", "up.bias", "down"].map(|name| parallel.tensor(name).unwrap());
    /// let x = Tensor::ones((3, 4), DType::F32, device)?; // this rank's part of the sequence
    /// let y = down.forward(&up.forward(&x.broadcast_mul(&norm)?, &w1, Some(&b1))?.relu()?, &w2, None)?;
    /// parallel.backward(&y.sqr()?.sum_all()?)?;
    /// parallel.step(&mut optimizer, &StepOptions::default())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_params<'a, N: Into<String>>(
        on: impl Into<Ranks<'a>>,
        builder: &BufferBuilder,
        vars: impl IntoIterator<Item = (N, Var)>,
        say: impl Fn(Param) -> Param,
    ) -> Result<Self> {
        let on = on.into();
        let unique = unique_vars(vars)?;
        let params = unique.iter().map(|(names, var)| said_of(describe(&names[0], var)?, &say)).collect::<crate::Result<Vec<_>>>()?;
        let mut parallel = DataParallel::of_buffer(builder.register(on, &params)?, unique)?;
        parallel.take_over()?;
        parallel.buffer.broadcast(0)?;
        if on.is_tensor_parallel()? {
            parallel.buffer.verify()?; // nothing else makes these ranks alike
        }
        write(&parallel.weights, &parallel.buffer)?;
        Ok(parallel)
    }

    fn of_buffer(mut buffer: Buffer, vars: Vec<(Vec<String>, Var)>) -> Result<Self> {
        let failure = Failure::default();
        let root = Var::zeros(1, candle_core::DType::F32, &Device::Cpu)?; // candle follows what comes from a variable, this or another
        let mut weights = Vec::new();
        for (param, (names, var)) in vars.into_iter().enumerate() {
            let way = Arc::new(Way::new(buffer.gradients(), param, failure.clone()));
            let tensor = root.apply_op1(Arrival { way: way.clone(), shape: var.shape().clone(), dtype: var.dtype() })?;
            weights.push(Weight { names, var, tensor, way });
        }
        let weights = Arc::new(weights);
        let copies = weights.clone();
        buffer.copies.write = Some(Box::new(move |buffer| write(&copies, buffer).map_err(Error::into_megadp)));
        let graphs = Graphs::new(&weights);
        Ok(DataParallel { buffer, weights, graphs, failure, steps: 0 })
    }

    /// The tensor to build the model with, in the place of the variable of that name. Its values are those of the last step; it stays the same.
    ///
    /// # Errors
    /// INVALID if there is no such name.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let found = self.weights.iter().find(|weight| weight.names.iter().any(|other| other == name));
        let missing = || crate::Error::new(Code::Invalid, format!("no variable was registered as {name:?}"));
        Ok(found.ok_or_else(missing)?.tensor.clone())
    }

    /// Parameters and gradients, by their number in the order of registration.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The same, to be changed: to begin a microbatch, say. What a checkpoint brings ([`LoadCheckpoint`](crate::LoadCheckpoint)) is in the model's
    /// tensors and the variables as well, and so are averages while they are in the parameters' place ([`Optimizer::averaged`]); after other
    /// changes of parameters [`DataParallel::refresh`] is to be called.
    pub fn buffer_mut(&mut self) -> &mut Buffer {
        &mut self.buffer
    }

    /// Runs backward. Gradients of the variables are handed over meanwhile, and buckets that are full are reduced; those of variables that the
    /// loss uses itself, at its end, which a backward of candle's own does not. What is given back are the gradients of variables that were not
    /// registered. Local.
    ///
    /// # Errors
    /// STATE (since the last step a parameter was written, without [`DataParallel::refresh`]; the loss depends on what was computed from
    /// parameters before it, which is found of what a loss before the first step, or of the step
    /// before, has depended on too); as [`Gradients::put`](crate::Gradients::put); those of candle.
    pub fn backward(&self, loss: &Tensor) -> Result<GradStore> {
        self.refuse_outdated()?;
        let nodes = loss.sorted_nodes();
        self.graphs.refuse_outdated(&nodes, &self.weights)?;
        let direct = self.graphs.used_directly(&nodes).into_iter().map(|param| &self.weights[param]).collect::<Vec<_>>();
        direct.iter().for_each(|weight| weight.way.hold());
        let ran = loss.backward();
        let parts = direct.iter().map(|weight| weight.way.release()).collect::<Vec<_>>(); // also where it failed
        let mut kept = ran.map_err(|error| match lock(&self.failure).take() {
            Some(failure) => Error::Megadp(failure),
            None => Error::Candle(error),
        })?;
        for (weight, part) in direct.into_iter().zip(parts) {
            let whole = match (part, kept.remove(&weight.var)) {
                (Some(part), Some(rest)) => Some((part + rest)?),
                (part, rest) => part.or(rest),
            };
            if let Some(grad) = whole {
                weight.way.put(&grad)??;
            }
        }
        Ok(kept)
    }

    /// Refuses a step that would undo what the program has written into variables.
    fn refuse_written(&self) -> crate::Result<()> {
        let Some(param) = find_different(&self.weights) else { return Ok(()) };
        let text = format!(
            "variable {:?} was written since the last step, and its parameter was not: call DataParallel::load after writing variables, and \
             register none that are not trained, such as running means",
            self.weights[param].name()
        );
        Err(crate::Error::new(Code::State, text).about_param(param))
    }

    fn refuse_outdated(&self) -> crate::Result<()> {
        if !self.buffer.copies.outdated.get() {
            return Ok(());
        }
        let text = "parameters were written since the last step, and the model's tensors were not: call DataParallel::refresh after writing to \
                    parameters of the buffer, or stepping in another way than by DataParallel::step";
        Err(crate::Error::new(Code::State, text))
    }

    /// The names of the variables that no [`DataParallel::backward`] of this rank has brought a gradient since the last step, in order of
    /// registration: those that the loss does not depend on, or not in a way that candle can differentiate. Local.
    pub fn without_gradient(&self) -> Vec<&str> {
        self.weights.iter().filter(|weight| !weight.way.has_arrived()).map(Weight::name).collect()
    }

    /// Syncs, steps, and writes the new values into the model's tensors and the variables, each as soon as it has been gathered. Where variables
    /// without a gradient are no failure ([`Missing`](crate::Missing)), the first step tells which they are, as a warning ([`log`](crate::log)).
    /// Collective, blocking.
    ///
    /// # Errors
    /// As [`Buffer::sync`] (the sentence names all variables that got no gradient on this rank) and [`Optimizer::step`]; STATE (parameters were
    /// written without [`DataParallel::refresh`], or variables without [`DataParallel::load`]: all elements are compared, which takes about a fifth of
    /// the time of an AdamW step without its backward); those of candle.
    pub fn step(&mut self, optimizer: &mut Optimizer, options: &StepOptions) -> Result<StepReport> {
        self.step_by(|buffer| optimizer.start_step(buffer, options))
    }

    /// The same with several optimizers of the buffer, as [`Optimizer::step_many`]. Collective, with the same list; blocking.
    ///
    /// # Errors
    /// As [`DataParallel::step`] and [`Optimizer::step_many`].
    pub fn step_many<'o>(&mut self, optimizers: impl IntoIterator<Item = &'o mut Optimizer>, options: &StepOptions) -> Result<StepReport> {
        self.step_by(|buffer| Optimizer::start_step_many(optimizers, buffer, options))
    }

    /// The same where some or all have [`Rule::Caller`](crate::Rule::Caller), as [`Optimizer::step_many_with`]. Collective, with the same list;
    /// blocking.
    ///
    /// # Errors
    /// As [`DataParallel::step`] and [`Optimizer::step_many_with`].
    pub fn step_many_with<'o>(
        &mut self,
        optimizers: impl IntoIterator<Item = &'o mut Optimizer>,
        options: &StepOptions,
        update: impl FnMut(Piece<'_>) -> Updated,
    ) -> Result<StepReport> {
        self.step_by(|buffer| Optimizer::start_step_many_with(optimizers, buffer, options, update))
    }

    fn step_by(&mut self, start: impl FnOnce(&mut Buffer) -> crate::Result<(StepReport, Request)>) -> Result<StepReport> {
        self.refuse_outdated()?;
        self.refuse_written()?;
        let without = self.without_gradient().iter().map(|name| format!("{name:?}")).collect::<Vec<_>>();
        let without = (!without.is_empty()).then(|| format!("no gradient came of {}; {NO_BACKWARD}", without.join(", ")));
        self.weights.iter().for_each(|weight| weight.way.begin_step());
        let (report, request) = start(&mut self.buffer).map_err(|mut error| {
            if let (Code::State, Some(_), Some(without)) = (error.code, error.param, &without) {
                error.text = format!("{}. On this rank {without}", error.text);
            }
            error
        })?;
        if let (0, Some(without)) = (self.steps, &without) {
            crate::log::warn(&format!("in the first step {without}"));
        }
        self.steps += 1;
        if report.skipped {
            write(&self.weights, &self.buffer)?; // the values that were there
        } else {
            self.refresh()?;
        }
        request.wait()?;
        Ok(report)
    }

    /// Writes the parameters' values into the model's tensors and the variables: for programs that step in another way than by
    /// [`DataParallel::step`], or write to the buffer. Local.
    ///
    /// # Errors
    /// Those of a lost communicator; those of candle.
    pub fn refresh(&self) -> Result<()> {
        self.graphs.begin_step();
        write(&self.weights, &self.buffer)
    }

    /// Takes the variables' values over as the parameters', alike on all ranks, and as the model's tensors': after a program has written to
    /// variables. All are taken over; masters of bf16 and f16 parameters keep their digits where they round to what a variable holds, and follow
    /// where they do not. Local.
    ///
    /// # Errors
    /// Those of a lost communicator; those of candle.
    pub fn load(&mut self) -> Result<()> {
        self.take_over()?;
        self.refresh()
    }

    fn take_over(&mut self) -> Result<()> {
        for (param, weight) in self.weights.iter().enumerate() {
            let values = weight.var.flatten_all()?;
            match values.dtype() {
                candle_core::DType::BF16 => self.buffer.write_param(param, &values.to_vec1::<half::bf16>()?)?,
                candle_core::DType::F16 => self.buffer.write_param(param, &values.to_vec1::<half::f16>()?)?,
                _ => self.buffer.write_param(param, &values.to_vec1::<f32>()?)?,
            }
        }
        Ok(())
    }
}

/// The variables, each with all of its names.
fn unique_vars<N: Into<String>>(vars: impl IntoIterator<Item = (N, Var)>) -> crate::Result<Vec<(Vec<String>, Var)>> {
    let mut unique: Vec<(Vec<String>, Var)> = Vec::new();
    let mut given = HashMap::new();
    for (name, var) in vars {
        let name = name.into();
        if given.insert(name.clone(), var.id()).is_some_and(|other| other != var.id()) {
            let text = format!("vars has the name {name:?} for two variables; each needs names of its own");
            return Err(crate::Error::new(Code::Invalid, text));
        }
        match unique.iter_mut().find(|(_, other)| other.id() == var.id()) {
            Some((names, _)) => names.push(name),
            None => unique.push((vec![name], var)),
        }
    }
    Ok(unique)
}

fn said_of(param: Param, say: &impl Fn(Param) -> Param) -> crate::Result<Param> {
    let said = say(param.clone());
    if said.says_only_how(&param) {
        return Ok(said);
    }
    let text = format!(
        "say was given the parameter {:?} and gives another back, or one that is frozen or used several times in a step; its name, shape and \
         dtype are the variable's, each backward brings one gradient of it, and what is not trained is not registered",
        param.name()
    );
    Err(crate::Error::new(Code::Invalid, text))
}

fn describe(name: &str, var: &Var) -> crate::Result<Param> {
    let dtype = match var.dtype() {
        candle_core::DType::F32 => crate::DType::F32,
        candle_core::DType::BF16 => crate::DType::Bf16,
        candle_core::DType::F16 => crate::DType::F16,
        other => {
            let text = format!("variable {name:?} has elements of {other:?}; trained are F32, BF16 and F16");
            return Err(crate::Error::new(Code::Unsupported, text));
        }
    };
    if !matches!(var.device(), Device::Cpu) || !var.is_contiguous() {
        return Err(crate::Error::new(Code::Unsupported, format!("variable {name:?} must be contiguous and on the CPU")));
    }
    Ok(Param::new(name, var.dims()).dtype(dtype))
}
