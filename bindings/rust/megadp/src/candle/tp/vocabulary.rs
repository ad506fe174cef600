// SPDX-License-Identifier: Apache-2.0
//! Embeddings and cross-entropy of [`crate::tp`] as operations of candle's.
use crate::candle::operation::{Lying, by_dtype, filled, lock, refused, storage_dtype, tensor, with_arrays, wrapped};
use crate::comm::Comm;
use crate::element::Element;
use crate::param::Placed;
use crate::tp::{self, Array, ArrayMut};
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, WithDType};
use std::sync::{Arc, Mutex};

/// Ids or targets as the library has them, for the length of an operation and its backward.
struct Ids {
    data: Vec<i64>,
    shape: Vec<usize>,
}

impl Ids {
    fn new(tensor: &Tensor, argument: &str) -> Result<Self> {
        if !matches!(tensor.dtype(), DType::I64 | DType::U32 | DType::U8) {
            return Err(refused(format!("{argument} has elements of {:?}; these operations take I64, U32 and U8", tensor.dtype())));
        }
        Ok(Ids { data: tensor.flatten_all()?.to_dtype(DType::I64)?.to_vec1()?, shape: tensor.dims().to_vec() })
    }

    fn array(&self) -> Result<Array<'_>> {
        wrapped(Array::new(&self.data, &self.shape))
    }
}

/// A [`tp::Embedding`] on a communicator.
#[derive(Clone, Debug)]
pub struct Embedding {
    embedding: tp::Embedding,
    comm: Arc<Mutex<Comm>>,
}

impl Embedding {
    /// The embedding as an operation of candle's.
    pub fn new(comm: &Comm, embedding: tp::Embedding) -> Self {
        Embedding { embedding, comm: Arc::new(Mutex::new(comm.same())) }
    }

    /// As [`tp::Embedding::placed`]. Local.
    pub fn placed(&self) -> Placed {
        self.embedding.placed()
    }

    /// The rows `ids`, integers from 0, of a table of which `weight` is this rank's part. Collective, blocking, and so is its backward.
    ///
    /// # Errors
    /// As [`tp::Embedding::forward`].
    pub fn forward(&self, ids: &Tensor, weight: &Tensor) -> Result<Tensor> {
        weight.apply_op1(Lookup { of: self.clone(), ids: Ids::new(ids, "ids")? })
    }
}

struct Lookup {
    of: Embedding,
    ids: Ids,
}

impl Lookup {
    fn run<T: WithDType + Element>(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (weight, comm, ids) = (Lying::<T>::new(storage, layout)?, lock(&self.of.comm), self.ids.array()?);
        let features = layout.dims().last().copied().unwrap_or(0);
        let shape = wrapped(self.of.embedding.output_shape(&comm, &self.ids.shape, features))?;
        let weight = weight.array()?;
        Ok((filled::<T>(&shape, |output| self.of.embedding.forward(&comm, &ids, &weight, output))?, Shape::from(shape)))
    }

    fn run_back<T: WithDType + Element>(&self, weight: &Tensor, grad: &Tensor) -> Result<Tensor> {
        let mut data = vec![T::zero(); weight.elem_count()];
        let mut to = wrapped(ArrayMut::new(&mut data, weight.dims()))?;
        let ids = self.ids.array()?;
        with_arrays::<T, _, 1>([grad], |[grad]| wrapped(self.of.embedding.backward(&lock(&self.of.comm), &ids, grad, &mut to)))?;
        tensor(data, weight)
    }
}

impl CustomOp1 for Lookup {
    fn name(&self) -> &'static str {
        "megadp-tp-embedding"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        by_dtype!(storage_dtype(storage), self.run(storage, layout))
    }

    fn bwd(&self, weight: &Tensor, _output: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        by_dtype!(weight.dtype(), self.run_back(weight, grad)).map(Some)
    }
}

/// A [`tp::CrossEntropy`] on a communicator.
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    loss: tp::CrossEntropy,
    comm: Arc<Mutex<Comm>>,
}

impl CrossEntropy {
    /// The loss as an operation of candle's.
    pub fn new(comm: &Comm, loss: tp::CrossEntropy) -> Self {
        CrossEntropy { loss, comm: Arc::new(Mutex::new(comm.same())) }
    }

    /// The loss, F32, of each of `targets`, integers from 0, of this rank's classes of `logits`, their last dimension. Collective, blocking; its
    /// backward is local.
    ///
    /// # Errors
    /// As [`tp::CrossEntropy::forward`].
    pub fn forward(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        logits.apply_op1(Loss { of: self.clone(), targets: Ids::new(targets, "targets")?, saved: Mutex::default() })
    }
}

struct Loss {
    of: CrossEntropy,
    targets: Ids,
    /// By forward, for backward.
    saved: Mutex<Vec<f32>>,
}

impl Loss {
    fn saved_shape(&self) -> Vec<usize> {
        [&self.targets.shape[..], &[2]].concat()
    }

    fn run<T: WithDType + Element>(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (logits, comm, targets) = (Lying::<T>::new(storage, layout)?, lock(&self.of.comm), self.targets.array()?);
        let logits = logits.array()?;
        let mut saved = lock(&self.saved);
        *saved = vec![0.0; 2 * self.targets.data.len()];
        let mut to_saved = wrapped(ArrayMut::new(&mut saved, &self.saved_shape()))?;
        let run = |losses: &mut ArrayMut<'_>| self.of.loss.forward_saving(&comm, &logits, &targets, losses, &mut to_saved);
        Ok((filled::<f32>(&self.targets.shape, run)?, Shape::from(self.targets.shape.clone())))
    }

    fn run_back<T: WithDType + Element>(&self, logits: &Tensor, grad: &Tensor) -> Result<Tensor> {
        let mut data = vec![T::zero(); logits.elem_count()];
        let mut to = wrapped(ArrayMut::new(&mut data, logits.dims()))?;
        let saved = lock(&self.saved);
        let saved = wrapped(Array::new(&*saved, &self.saved_shape()))?;
        let targets = self.targets.array()?;
        with_arrays::<T, _, 1>([logits], |[logits]| {
            with_arrays::<f32, _, 1>([grad], |[grad]| {
                wrapped(self.of.loss.backward(&lock(&self.of.comm), logits, &targets, &saved, grad, &mut to))
            })
        })?;
        tensor(data, logits)
    }
}

impl CustomOp1 for Loss {
    fn name(&self) -> &'static str {
        "megadp-tp-cross-entropy"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        by_dtype!(storage_dtype(storage), self.run(storage, layout))
    }

    fn bwd(&self, logits: &Tensor, _output: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        by_dtype!(logits.dtype(), self.run_back(logits, grad)).map(Some)
    }
}
