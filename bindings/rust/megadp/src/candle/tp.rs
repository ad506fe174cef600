// SPDX-License-Identifier: Apache-2.0
//! Tensor and sequence parallelism in models of [candle](candle_core), on the CPU: layers and operators of [`crate::tp`] as operations of
//! candle's that have a backward. Weights are tensors, this rank's parts: variables, or those of a [`DataParallel`](super::DataParallel), whose
//! gradients then leave as all others do; layers tell [`DataParallel::register_params`](super::DataParallel::register_params) how they are placed.
//!
//! Forward and backward are collective. candle runs the backward of what the loss depends on, in an order that follows from the model: so it
//! is the same on all ranks where these build the same model, and use the same outputs.
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use megadp::Comm;
//! use megadp::candle::tp::Linear;
//! use megadp::tp::{self, Grad};
//!
//! # fn main() -> megadp::candle::Result<()> {
//! let comm = Comm::builder().connect()?; // the tensor-parallel ranks
//! let hidden = 8 / comm.size()?; // this rank's features
//! let up = Linear::new(tp::Linear::column(4, 8).create(&comm)?);
//! let down = Linear::new(tp::Linear::row(8, 2).grad(Grad::Replicated).create(&comm)?);
//! let (w1, w2) = (Var::ones((hidden, 4), DType::F32, &Device::Cpu)?, Var::ones((2, hidden), DType::F32, &Device::Cpu)?);
//!
//! let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?; // the same on all ranks
//! let y = down.forward(&up.forward(&x, &w1, None)?.relu()?, &w2, None)?; // so is this
//! assert_eq!(y.to_vec2::<f32>()?, [[32.0; 2]; 3]);
//! let grads = y.sum_all()?.backward()?;
//! assert_eq!(grads.get(&w1).unwrap().to_vec2::<f32>()?, vec![vec![6.0; 4]; hidden]);
//! # Ok(())
//! # }
//! ```
use super::operation::{Lying, Three, by_dtype, filled, followed, lock, storage_dtype, tensor, with_arrays, wrapped};
use crate::comm::Comm;
use crate::element::Element;
use crate::param::Placed;
use crate::tp::{self, ArrayMut};
use candle_core::{CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, WithDType};
use std::sync::{Arc, Mutex};

mod vocabulary;

pub use vocabulary::{CrossEntropy, Embedding};

/// A [`tp::Linear`] that was made without a buffer. Clones are the same layer.
#[derive(Clone, Debug)]
pub struct Linear(Arc<Mutex<tp::Linear>>);

impl Linear {
    /// The layer as an operation of candle's.
    pub fn new(layer: tp::Linear) -> Self {
        Linear(Arc::new(Mutex::new(layer)))
    }

    /// The output on this rank, of tensors of any strides. Collective, blocking, and so is its backward.
    ///
    /// # Errors
    /// As [`tp::Forward::run`].
    pub fn forward(&self, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match bias {
            Some(bias) => input.apply_op3(weight, bias, self.clone()),
            None => input.apply_op2(weight, self.clone()),
        }
    }

    /// As [`tp::Linear::weight_placed`]. Local.
    ///
    /// # Errors
    /// As there.
    pub fn weight_placed(&self) -> crate::Result<Placed> {
        lock(&self.0).weight_placed()
    }

    /// As [`tp::Linear::bias_placed`]. Local.
    ///
    /// # Errors
    /// As there.
    pub fn bias_placed(&self) -> crate::Result<Placed> {
        lock(&self.0).bias_placed()
    }

    fn run<T: WithDType + Element>(&self, arrays: &[(&CpuStorage, &Layout)]) -> Result<(CpuStorage, Shape)> {
        let lying = arrays.iter().map(|(storage, layout)| Lying::<T>::new(storage, layout)).collect::<Result<Vec<_>>>()?;
        let arrays = lying.iter().map(Lying::array).collect::<Result<Vec<_>>>()?;
        let layer = lock(&self.0);
        let shape = layer.output_shape(&arrays[0].shape());
        let forward = layer.forward(&arrays[0]).weight(&arrays[1]);
        let forward = if let Some(bias) = arrays.get(2) { forward.bias(bias) } else { forward };
        Ok((filled::<T>(&shape, |output| forward.run(output))?, Shape::from(shape)))
    }

    /// Gradients of the input, where candle follows that, the weight, and the bias.
    fn run_back<T: WithDType + Element>(&self, tensors: &[&Tensor], grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let zeros = |tensor: &&Tensor| vec![T::zero(); tensor.elem_count()];
        let mut grads = tensors.iter().map(zeros).collect::<Vec<_>>();
        let mut outputs = Vec::new();
        for (data, tensor) in grads.iter_mut().zip(tensors) {
            outputs.push(wrapped(ArrayMut::new(data, tensor.dims()))?);
        }
        with_arrays::<T, _, 3>([tensors[0], tensors[1], grad], |[input, weight, grad]| {
            let layer = lock(&self.0);
            let mut backward = layer.backward(grad).input(input).weight(weight);
            let mut outputs = outputs.iter_mut();
            backward = match outputs.next() {
                Some(to) if tensors[0].track_op() => backward.grad_input(to),
                _ => backward,
            };
            backward = if let Some(to) = outputs.next() { backward.grad_weight(to) } else { backward };
            backward = if let Some(to) = outputs.next() { backward.grad_bias(to) } else { backward };
            wrapped(backward.run())
        })?;
        followed(grads, tensors)
    }
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "megadp-tp-linear"
    }

    fn cpu_fwd(&self, s1: &CpuStorage, l1: &Layout, s2: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        by_dtype!(storage_dtype(s1), self.run(&[(s1, l1), (s2, l2)]))
    }

    fn bwd(&self, input: &Tensor, weight: &Tensor, _output: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [input, weight, _] = by_dtype!(input.dtype(), self.run_back(&[input, weight], grad))?;
        Ok((input, weight))
    }
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "megadp-tp-linear"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        by_dtype!(storage_dtype(s1), self.run(&[(s1, l1), (s2, l2), (s3, l3)]))
    }

    fn bwd(&self, input: &Tensor, weight: &Tensor, bias: &Tensor, _output: &Tensor, grad: &Tensor) -> Result<Three> {
        let [input, weight, bias] = by_dtype!(input.dtype(), self.run_back(&[input, weight, bias], grad))?;
        Ok((input, weight, bias))
    }
}

/// A [`tp::Region`] on a communicator.
#[derive(Clone, Debug)]
pub struct Region {
    region: tp::Region,
    comm: Arc<Mutex<Comm>>,
}

impl Region {
    /// The operator as an operation of candle's.
    pub fn new(comm: &Comm, region: tp::Region) -> Self {
        Region { region, comm: Arc::new(Mutex::new(comm.same())) }
    }

    /// What it makes of a tensor of any strides. Collective, blocking, and so is its backward.
    ///
    /// # Errors
    /// As [`tp::Region::forward`].
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.apply_op1(self.clone())
    }

    fn run<T: WithDType + Element>(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (input, comm) = (Lying::<T>::new(storage, layout)?, lock(&self.comm));
        let shape = wrapped(self.region.output_shape(&comm, layout.dims()))?;
        let input = input.array()?;
        Ok((filled::<T>(&shape, |output| self.region.forward(&comm, &input, output))?, Shape::from(shape)))
    }

    fn run_back<T: WithDType + Element>(&self, input: &Tensor, grad: &Tensor) -> Result<Tensor> {
        let mut data = vec![T::zero(); input.elem_count()];
        let mut to = wrapped(ArrayMut::new(&mut data, input.dims()))?;
        with_arrays::<T, _, 1>([grad], |[grad]| wrapped(self.region.backward(&lock(&self.comm), grad, &mut to)))?;
        tensor(data, input)
    }
}

impl CustomOp1 for Region {
    fn name(&self) -> &'static str {
        "megadp-tp-region"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        by_dtype!(storage_dtype(storage), self.run(storage, layout))
    }

    fn bwd(&self, input: &Tensor, _output: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        by_dtype!(input.dtype(), self.run_back(input, grad)).map(Some)
    }
}
