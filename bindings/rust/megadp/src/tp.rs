// SPDX-License-Identifier: Apache-2.0
//! Tensor and sequence parallelism: linear layers whose weights are cut over ranks, embeddings and cross-entropy of a vocabulary that is cut, and
//! the operators between what is replicated and what is cut. These are the halves, forward and backward, for an autodiff to wrap; with the feature `candle`, `megadp::candle::tp` has them wrapped.
//!
//! A column-parallel layer, and a row-parallel one on what it gives:
//!
//! ```
//! use megadp::Comm;
//! use megadp::tp::{Array, ArrayMut, Grad, Linear};
//!
//! # fn main() -> megadp::Result<()> {
//! let comm = Comm::builder().connect()?; // the tensor-parallel ranks
//! let hidden = 8 / comm.size()?; // this rank's features
//! let up = Linear::column(4, 8).create(&comm)?;
//! let down = Linear::row(8, 2).grad(Grad::Replicated).create(&comm)?; // what comes back is the same on all ranks
//! let (up_weight, down_weight) = (vec![0.5f32; hidden * 4], vec![0.25f32; 2 * hidden]); // this rank's parts
//! let (up_weight, down_weight) = (Array::new(&up_weight, &[hidden, 4])?, Array::new(&down_weight, &[2, hidden])?);
//!
//! let (x, mut h, mut y) = ([1f32; 12], vec![0f32; 3 * hidden], [0f32; 6]);
//! let x = Array::new(&x, &[3, 4])?; // rows of features, the same on all ranks
//! up.forward(&x).weight(&up_weight).run(&mut ArrayMut::new(&mut h, &[3, hidden])?)?;
//! let h = Array::new(&h, &[3, hidden])?;
//! down.forward(&h).weight(&down_weight).run(&mut ArrayMut::new(&mut y, &[3, 2])?)?;
//! assert_eq!(y, [4.0; 6]); // summed over the ranks
//!
//! let (dy, mut dh, mut dw) = ([1f32; 6], vec![0f32; 3 * hidden], vec![0f32; 2 * hidden]);
//! let (mut to_dh, mut to_dw) = (ArrayMut::new(&mut dh, &[3, hidden])?, ArrayMut::new(&mut dw, &[2, hidden])?);
//! let dy = Array::new(&dy, &[3, 2])?;
//! down.backward(&dy).input(&h).weight(&down_weight).grad_input(&mut to_dh).grad_weight(&mut to_dw).run()?;
//! assert!(dh.iter().all(|&value| value == 0.5) && dw.iter().all(|&value| value == 6.0));
//! # Ok(())
//! # }
//! ```
//!
//! All are collective over the communicator, in the order of its other collectives, which do not wait for gradients or gathers; blocking.
use crate::element::{Element, Strided, sizes};
use crate::error::Result;
use crate::sys;
use std::marker::PhantomData;

mod linear;
mod region;
mod vocabulary;

pub use linear::{Backward, Forward, Linear, LinearBuilder, Saved};
pub use region::Region;
pub use vocabulary::{CrossEntropy, Embedding};

/// The gradient that comes back of what is the same on all ranks. To take the one for the other gives wrong numbers without a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Grad {
    /// Each rank's is a part: they are summed.
    Partial = sys::MDP_TP_GRAD_PARTIAL,
    /// It is the same on all ranks.
    Replicated = sys::MDP_TP_GRAD_REPLICATED,
}

/// An array that a call reads: elements with a shape, of any strides.
#[derive(Debug)]
pub struct Array<'a> {
    pub(crate) raw: sys::mdp_tensor,
    /// What raw points to.
    shape: Vec<i64>,
    borrowed: PhantomData<&'a ()>,
}

impl<'a> Array<'a> {
    /// A slice, row-major and dense, or a [`Strided`] one.
    ///
    /// # Errors
    /// INVALID (the number of elements; strides that lead out of the slice).
    pub fn new<T: Element>(data: impl Into<Strided<'a, T>>, shape: &[usize]) -> Result<Self> {
        let shape = sizes(shape)?;
        let raw = data.into().tensor(&shape)?;
        Ok(Array { raw, shape, borrowed: PhantomData })
    }

    /// The sizes of its dimensions.
    pub fn shape(&self) -> Vec<usize> {
        self.shape.iter().map(|&size| size as usize).collect()
    }
}

/// An array that a call writes. No two of its elements may be in the same place.
#[derive(Debug)]
pub struct ArrayMut<'a> {
    pub(crate) raw: sys::mdp_tensor,
    /// What raw points to.
    _shape: Vec<i64>,
    borrowed: PhantomData<&'a mut ()>,
}

impl<'a> ArrayMut<'a> {
    /// A slice, row-major and dense.
    ///
    /// # Errors
    /// INVALID (the number of elements).
    pub fn new<T: Element>(data: &'a mut [T], shape: &[usize]) -> Result<Self> {
        let shape = sizes(shape)?;
        let mut raw = Strided::from(&*data).tensor(&shape)?;
        raw.data = data.as_mut_ptr().cast();
        Ok(ArrayMut { raw, _shape: shape, borrowed: PhantomData })
    }

    /// Of any strides; as [`Strided::new`].
    ///
    /// # Errors
    /// INVALID (strides that lead out of the slice).
    pub fn strided<T: Element>(data: &'a mut [T], offset: usize, strides: &'a [i64], shape: &[usize]) -> Result<Self> {
        let shape = sizes(shape)?;
        let mut raw = Strided::new(&*data, offset, strides).tensor(&shape)?;
        let first = if shape.contains(&0) { 0 } else { offset };
        // The strides were checked, so the offset lies in the slice.
        raw.data = data[first..].as_mut_ptr().cast();
        Ok(ArrayMut { raw, _shape: shape, borrowed: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_stay_inside_of_their_slices() {
        let mut data = [0f32; 6];
        assert!(Array::new(&data, &[2, 3]).is_ok() && Array::new(&data, &[2, 4]).is_err());
        assert!(ArrayMut::new(&mut data, &[3, 2]).is_ok() && ArrayMut::new(&mut data, &[7]).is_err());
        assert!(ArrayMut::strided(&mut data, 5, &[-1], &[6]).is_ok() && ArrayMut::strided(&mut data, 4, &[-1], &[6]).is_err());
        assert!(ArrayMut::strided(&mut data, 99, &[1], &[0]).is_ok() && Array::new(&data, &[usize::MAX, 2]).is_err());
        let first = data.as_ptr();
        // SAFETY: inside of the array.
        let third = unsafe { first.add(2) }.cast_mut().cast();
        assert_eq!(ArrayMut::strided(&mut data, 2, &[1], &[2]).unwrap().raw.data, third);
    }
}
