// SPDX-License-Identifier: Apache-2.0
//! Spatial parallelism in models of [candle](candle_core), on the CPU: parts of images with what the neighbours have around them, as an operation
//! of candle's that has a backward. A convolution or pooling of the padded part, without padding of its own, then is that of the whole image.
//! Forward and backward are collective; as [`candle::tp`](super::tp) otherwise.
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use megadp::Comm;
//! use megadp::candle::halo::HaloPad;
//! use megadp::halo::{Edge, Halo};
//!
//! # fn main() -> megadp::candle::Result<()> {
//! let comm = Comm::builder().connect()?;
//! let grid = [1, 1, comm.size()?, 1]; // batch, channels, height, width: images are cut along their height
//! let builder = Halo::builder(&grid, &[2, 3, 4, 8]).low(&[0, 0, 1, 1]).high(&[0, 0, 1, 1]);
//! let pad = HaloPad::new(&comm, &builder.edges([Edge::Keep, Edge::Keep, Edge::Zero, Edge::Zero]))?;
//! let x = Var::ones((2, 3, 4, 8), DType::F32, &Device::Cpu)?; // this rank's part
//! let weight = Tensor::ones((5, 3, 3, 3), DType::F32, &Device::Cpu)?;
//! let y = pad.forward(&x)?.conv2d(&weight, 0, 1, 1, 1)?;
//! assert_eq!(y.dims(), [2, 5, 4, 8]);
//! assert!(y.sum_all()?.backward()?.get(&x).is_some());
//! # Ok(())
//! # }
//! ```
use super::operation::{by_dtype, lock, storage_dtype, tensor, wrapped};
use crate::comm::Comm;
use crate::element::Element;
use crate::error::{Code, Error};
use crate::halo::{ArrayMut, Halo, HaloBuilder};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType};
use std::sync::{Arc, Mutex};

/// A [`Halo`] of one field, around parts that are tensors. Clones are the same halo.
#[derive(Clone, Debug)]
pub struct HaloPad {
    halo: Arc<Mutex<Halo>>,
    low: Vec<usize>,
    high: Vec<usize>,
}

impl HaloPad {
    /// The halo that the builder describes, as an operation of candle's. Collective, with equal values but for the part; blocking.
    ///
    /// # Errors
    /// As [`HaloBuilder::create`].
    pub fn new(comm: &Comm, builder: &HaloBuilder) -> crate::Result<Self> {
        let (low, high) = builder.widths();
        Ok(HaloPad { halo: Arc::new(Mutex::new(builder.create(comm)?)), low, high })
    }

    /// This rank's part with its halo around it; 0 at edges that are kept. Of tensors of any strides, F32 or BF16 as the builder says. Collective,
    /// but waits for neighbours alone; blocking, and so is its backward, which adds the gradient of a halo where it came from.
    ///
    /// # Errors
    /// As [`Halo::exchange`].
    pub fn forward(&self, part: &Tensor) -> Result<Tensor> {
        if part.rank() != self.low.len() {
            let text = format!("the tensor has {} dimensions, and the halo {}", part.rank(), self.low.len());
            return wrapped(Err(Error::new(Code::Invalid, text)));
        }
        let mut padded = part.clone();
        for (dim, (&low, &high)) in self.low.iter().zip(&self.high).enumerate() {
            if low + high > 0 {
                padded = padded.pad_with_zeros(dim, low, high)?;
            }
        }
        padded.contiguous()?.apply_op1(Exchange(self.halo.clone()))
    }
}

/// Of padded parts, contiguous. Their padding gets no gradient, since all that was there is overwritten, or kept.
struct Exchange(Arc<Mutex<Halo>>);

impl Exchange {
    fn run<T: WithDType + Element>(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        let mut data = storage.as_slice::<T>()?[range].to_vec();
        wrapped(ArrayMut::new(&mut data, layout.dims()).and_then(|padded| lock(&self.0).exchange(&mut [padded])))?;
        Ok((T::to_cpu_storage_owned(data), layout.shape().clone()))
    }

    fn run_back<T: WithDType + Element>(&self, grad: &Tensor) -> Result<Tensor> {
        let mut data = grad.flatten_all()?.to_vec1::<T>()?;
        wrapped(ArrayMut::new(&mut data, grad.dims()).and_then(|padded| lock(&self.0).backward(&mut [padded])))?;
        tensor(data, grad)
    }
}

impl CustomOp1 for Exchange {
    fn name(&self) -> &'static str {
        "megadp-halo-pad"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        by_dtype!(storage_dtype(storage), self.run(storage, layout))
    }

    fn bwd(&self, _padded: &Tensor, _exchanged: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        by_dtype!(grad.dtype(), self.run_back(grad)).map(Some)
    }
}
