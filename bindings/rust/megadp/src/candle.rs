// SPDX-License-Identifier: Apache-2.0
//! Models of [candle](candle_core), on the CPU: gradients leave during backward, as soon as each is known.
//!
//! candle's backward makes arrays of its own and tells nobody about them before it ends. So the model is built from other tensors than its
//! variables: each is its variable after an operation that changes nothing, but whose backward hands the gradient over. It is built once; a
//! step writes the new values into the same tensors.
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
use crate::gradients::Gradients;
use crate::grid::Ranks;
use crate::optimizer::{Optimizer, StepOptions, StepReport};
use crate::param::Param;
use crate::pieces::{Piece, Updated};
use crate::request::Request;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Device, InplaceOp1, Layout, Shape, Storage, Tensor, Var};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub mod cp;
pub mod halo;
mod operation;
pub mod tp;

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

/// The first failure to hand a gradient over, which candle passes on as text only.
type Failure = Arc<Mutex<Option<crate::Error>>>;

/// Changes nothing, and hands the gradient over on the way back.
struct Arrival {
    gradients: Gradients,
    param: usize,
    arrived: Arc<AtomicBool>,
    failure: Failure,
}

impl Arrival {
    fn put(&self, grad: &Tensor) -> candle_core::Result<crate::Result<()>> {
        let grad = grad.contiguous()?;
        let (storage, layout) = grad.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            return Ok(Err(crate::Error::new(Code::Unsupported, "a gradient is on a device; on the CPU alone are they handed over")));
        };
        let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        Ok(match storage {
            CpuStorage::F32(data) => self.gradients.put(self.param, &data[range]),
            CpuStorage::F64(data) => self.gradients.put(self.param, &data[range]),
            CpuStorage::BF16(data) => self.gradients.put(self.param, &data[range]),
            CpuStorage::F16(data) => self.gradients.put(self.param, &data[range]),
            other => Err(crate::Error::new(Code::Unsupported, format!("a gradient has elements of {:?}", other.dtype()))),
        })
    }
}

impl CustomOp1 for Arrival {
    fn name(&self) -> &'static str {
        "megadp-arrival"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((storage.to_dtype(layout, storage.dtype())?, layout.shape().clone()))
    }

    /// Called once for each variable that the loss depends on, with the sum over its uses.
    fn bwd(&self, _variable: &Tensor, _same: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        self.arrived.store(true, Ordering::Relaxed);
        self.put(grad)?.map_err(|error| {
            let text = error.to_string();
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            candle_core::Error::msg(text)
        })?;
        Ok(None) // so candle keeps no gradient of the variable, which would be memory for nothing
    }
}

/// Writes a parameter's values into a tensor, in place.
struct Refresh<'a> {
    buffer: &'a Buffer,
    param: usize,
}

impl Refresh<'_> {
    fn copy<T: crate::Element>(&self, to: &mut [T], layout: &Layout) -> candle_core::Result<()> {
        let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        to[range].copy_from_slice(self.buffer.param(self.param).map_err(candle_core::Error::wrap)?);
        Ok(())
    }
}

impl InplaceOp1 for Refresh<'_> {
    fn name(&self) -> &'static str {
        "megadp-refresh"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        match storage {
            CpuStorage::F32(data) => self.copy(data, layout),
            CpuStorage::BF16(data) => self.copy(data, layout),
            CpuStorage::F16(data) => self.copy(data, layout),
            other => Err(candle_core::Error::msg(format!("a parameter has elements of {:?}", other.dtype()))),
        }
    }
}

struct Weight {
    names: Vec<String>,
    var: Var,
    tensor: Tensor,
    /// Whether a gradient has come since the last step.
    arrived: Arc<AtomicBool>,
}

const NO_BACKWARD: &str = "candle gives no gradient to what is below an operation that has no backward, and its fused ones have none \
    (candle_nn::LayerNorm and RmsNorm, ops::softmax_last_dim, rotary_emb::rope): train with ops::layer_norm_slow, RmsNorm::forward_diff, \
    ops::softmax, rotary_emb::rope_slow";

/// The variables of a model, whose gradients are reduced over the ranks. One thread at a time, as [`Buffer`].
pub struct DataParallel {
    buffer: Buffer,
    weights: Vec<Weight>,
    failure: Failure,
    stepped: bool,
}

impl DataParallel {
    /// Registers named variables, in the order of forward; the values of rank 0 become those of all ranks. A variable that comes under several
    /// names is one parameter, with one gradient. f32, bf16 or f16, contiguous, on the CPU. Any [`Sharding`](crate::Sharding) will do. `on` is a
    /// communicator or a grid. Collective over its ranks, blocking.
    ///
    /// # Errors
    /// As [`BufferBuilder::register`]; UNSUPPORTED for other variables; those of candle.
    pub fn register<'a, N: Into<String>>(
        on: impl Into<Ranks<'a>>,
        builder: &BufferBuilder,
        vars: impl IntoIterator<Item = (N, Var)>,
    ) -> Result<Self> {
        DataParallel::register_groups(on, builder, vars, |_| 0)
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
        let mut unique: Vec<(Vec<String>, Var)> = Vec::new();
        for (name, var) in vars {
            match unique.iter_mut().find(|(_, other)| other.id() == var.id()) {
                Some((names, _)) => names.push(name.into()),
                None => unique.push((vec![name.into()], var)),
            }
        }
        let described = |(names, var): &(Vec<String>, Var)| Ok(describe(&names[0], var)?.param_group(param_group(&names[0])));
        let params = unique.iter().map(described).collect::<crate::Result<Vec<_>>>()?;
        let buffer = builder.register(on, &params)?;
        let failure = Failure::default();
        let mut weights = Vec::new();
        for (param, (names, var)) in unique.into_iter().enumerate() {
            let arrived = Arc::new(AtomicBool::new(false));
            let arrival = Arrival { gradients: buffer.gradients(), param, arrived: arrived.clone(), failure: failure.clone() };
            weights.push(Weight { names, tensor: var.apply_op1(arrival)?, var, arrived });
        }
        let mut parallel = DataParallel { buffer, weights, failure, stepped: false };
        parallel.load()?;
        parallel.buffer.broadcast(0)?;
        parallel.refresh()?;
        Ok(parallel)
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

    /// The same, to begin a microbatch or the step anew.
    pub fn buffer_mut(&mut self) -> &mut Buffer {
        &mut self.buffer
    }

    /// Runs backward. Gradients of the variables are handed over meanwhile, and buckets that are full are reduced; what candle keeps are the
    /// gradients of variables that were not registered. Local.
    ///
    /// # Errors
    /// As [`Gradients::put`]; those of candle.
    pub fn backward(&self, loss: &Tensor) -> Result<candle_core::backprop::GradStore> {
        loss.backward().map_err(|error| match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(failure) => failure.into(),
            None => error.into(),
        })
    }

    /// The names of the variables that no [`DataParallel::backward`] of this rank has brought a gradient since the last step, in order of
    /// registration: those that the loss does not depend on, or not in a way that candle can differentiate. Local.
    pub fn without_gradient(&self) -> Vec<&str> {
        self.weights.iter().filter(|weight| !weight.arrived.load(Ordering::Relaxed)).map(|weight| weight.names[0].as_str()).collect()
    }

    /// Syncs, steps, and writes the new values into the model's tensors, each as soon as it has been gathered. Where variables without a
    /// gradient are no failure ([`Missing`](crate::Missing)), the first step tells which they are, as a warning ([`log`](crate::log)).
    /// Collective, blocking.
    ///
    /// # Errors
    /// As [`Buffer::sync`] (the sentence names all variables that got no gradient on this rank) and [`Optimizer::step`]; those of candle.
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
        let without = self.without_gradient().iter().map(|name| format!("{name:?}")).collect::<Vec<_>>();
        let without = (!without.is_empty()).then(|| format!("no gradient came of {}; {NO_BACKWARD}", without.join(", ")));
        self.weights.iter().for_each(|weight| weight.arrived.store(false, Ordering::Relaxed));
        let (report, request) = start(&mut self.buffer).map_err(|mut error| {
            if let (Code::State, Some(_), Some(without)) = (error.code, error.param, &without) {
                error.text = format!("{}. On this rank {without}", error.text);
            }
            error
        })?;
        if let (false, Some(without)) = (self.stepped, &without) {
            crate::log::warn(&format!("in the first step {without}"));
        }
        self.stepped = true;
        self.refresh()?;
        request.wait()?;
        Ok(report)
    }

    /// Writes the parameters' values into the model's tensors: for programs that step in another way than by [`DataParallel::step`]. Local.
    ///
    /// # Errors
    /// Those of a lost communicator; those of candle.
    pub fn refresh(&self) -> Result<()> {
        for (param, weight) in self.weights.iter().enumerate() {
            self.buffer.wait(param)?;
            weight.tensor.inplace_op1(&Refresh { buffer: &self.buffer, param })?;
        }
        Ok(())
    }

    /// Writes the parameters' values into the variables, say, to save them. Local.
    ///
    /// # Errors
    /// Those of a lost communicator; those of candle.
    pub fn store(&self) -> Result<()> {
        for (param, weight) in self.weights.iter().enumerate() {
            self.buffer.wait(param)?;
            weight.var.inplace_op1(&Refresh { buffer: &self.buffer, param })?;
        }
        Ok(())
    }

    /// Takes the variables' values over as the parameters', alike on all ranks; [`DataParallel::refresh`] brings them into the model's tensors.
    /// Local.
    ///
    /// # Errors
    /// Those of a lost communicator; those of candle.
    pub fn load(&mut self) -> Result<()> {
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
