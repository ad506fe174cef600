// SPDX-License-Identifier: Apache-2.0
//! Context parallelism in models of [candle](candle_core), on the CPU: [`crate::cp`]'s attention as an operation of candle's that has a backward.
//! Forward and backward are collective; as [`candle::tp`](super::tp) otherwise.
//!
//! ```
//! use candle_core::{DType, Device, Var};
//! use megadp::Comm;
//! use megadp::candle::cp::Attention;
//! use megadp::cp;
//!
//! # fn main() -> megadp::candle::Result<()> {
//! let comm = Comm::builder().connect()?; // the context-parallel ranks
//! let attention = Attention::new(&comm, cp::Attention::new().causal());
//! let q = Var::ones((1, 4, 2, 8), DType::F32, &Device::Cpu)?; // batch, this rank's positions, heads, head_dim
//! let out = attention.forward(&q, &q, &q)?;
//! let grad = out.sum_all()?.backward()?.get(&q).unwrap().sum_all()?.to_scalar::<f32>()?;
//! assert!((grad - 64.0).abs() < 1e-4); // each value has all of the weight of a query
//! # Ok(())
//! # }
//! ```
use super::operation::{Lying, Three, by_dtype, filled, followed, lock, storage_dtype, with_arrays, wrapped};
use crate::comm::Comm;
use crate::cp::{self, Block, Computed};
use crate::element::Element;
use crate::tp::{Array, ArrayMut};
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, WithDType};
use std::fmt;
use std::sync::{Arc, Mutex};

type Function = dyn Fn(Block<'_>) -> Computed + Send + Sync;

/// A [`cp::Attention`] on a communicator, with the function that computes its blocks.
#[derive(Clone)]
pub struct Attention {
    attention: cp::Attention,
    comm: Arc<Mutex<Comm>>,
    function: Arc<Function>,
}

impl fmt::Debug for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attention").field("attention", &self.attention).finish_non_exhaustive()
    }
}

impl Attention {
    /// The attention as an operation of candle's; [`cp::plain_attention`] computes its blocks.
    pub fn new(comm: &Comm, attention: cp::Attention) -> Self {
        Attention { attention, comm: Arc::new(Mutex::new(comm.same())), function: Arc::new(|block| cp::plain_attention(block, None)) }
    }

    /// Another function for the blocks, of forward and backward; it may not use the communicator, nor this operation.
    pub fn function(mut self, function: impl Fn(Block<'_>) -> Computed + Send + Sync + 'static) -> Self {
        self.function = Arc::new(function);
        self
    }

    /// What this rank's queries make of all keys and values, [batch, positions, heads, head_dim]; tensors of any strides, F32 or BF16.
    /// Collective, blocking, and so is its backward.
    ///
    /// # Errors
    /// As [`cp::Forward::run`].
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        q.apply_op3(k, v, Attend { of: self.clone(), lse: Mutex::default() })
    }
}

struct Attend {
    of: Attention,
    /// By forward, for backward.
    lse: Mutex<Vec<f32>>,
}

impl Attend {
    fn run<T: WithDType + Element>(&self, arrays: [(&CpuStorage, &Layout); 3]) -> Result<(CpuStorage, Shape)> {
        let [q, k, v] = arrays.map(|(storage, layout)| Lying::<T>::new(storage, layout));
        let (q, k, v) = (q?, k?, v?);
        let (q, k, v) = (q.array()?, k.array()?, v.array()?);
        let shape = q.shape();
        let of_lse = &shape[..shape.len().min(3)];
        let mut lse = lock(&self.lse);
        *lse = vec![0.0; of_lse.iter().product()];
        let mut to_lse = wrapped(ArrayMut::new(&mut lse, of_lse))?;
        let comm = lock(&self.of.comm);
        let run =
            |out: &mut ArrayMut<'_>| self.of.attention.forward(&q, &k, &v).run(&comm, out, &mut to_lse, |block| (self.of.function)(block));
        Ok((filled::<T>(&shape, run)?, Shape::from(shape.clone())))
    }

    /// Gradients of q, k and v, where candle follows them.
    fn run_back<T: WithDType + Element>(&self, inputs: [&Tensor; 3], out: &Tensor, grad: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let mut grads = inputs.map(|input| vec![T::zero(); input.elem_count()]);
        let [dq, dk, dv] = &mut grads;
        let mut to_dq = wrapped(ArrayMut::new(dq, inputs[0].dims()))?;
        let mut to_dk = wrapped(ArrayMut::new(dk, inputs[1].dims()))?;
        let mut to_dv = wrapped(ArrayMut::new(dv, inputs[2].dims()))?;
        let lse = lock(&self.lse);
        let lse = wrapped(Array::new(&*lse, &inputs[0].dims()[..3]))?;
        let [q, k, v] = inputs;
        with_arrays::<T, _, 5>([q, k, v, out, grad], |[q, k, v, out, grad]| {
            let backward = self.of.attention.backward(q, k, v, out, &lse, grad);
            let comm = lock(&self.of.comm);
            wrapped(backward.run(&comm, &mut to_dq, &mut to_dk, &mut to_dv, |block| (self.of.function)(block)))
        })?;
        followed(grads, &inputs)
    }
}

impl CustomOp3 for Attend {
    fn name(&self) -> &'static str {
        "megadp-cp-attention"
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
        by_dtype!(storage_dtype(s1), self.run([(s1, l1), (s2, l2), (s3, l3)]))
    }

    fn bwd(&self, q: &Tensor, k: &Tensor, v: &Tensor, out: &Tensor, grad: &Tensor) -> Result<Three> {
        let [q, k, v] = by_dtype!(q.dtype(), self.run_back([q, k, v], out, grad))?;
        Ok((q, k, v))
    }
}
