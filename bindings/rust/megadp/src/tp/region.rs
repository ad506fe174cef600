// SPDX-License-Identifier: Apache-2.0
//! The operators between what is replicated and what is cut over tensor-parallel ranks.
use super::{Array, ArrayMut, Grad};
use crate::comm::Comm;
use crate::error::{Code, Error, Result, check, narrow};
use crate::sys;
use std::ptr;

/// An operator on arrays over the ranks of a communicator, and its gradient. Dimensions are counted from 0, the outermost.
///
/// ```
/// use megadp::Comm;
/// use megadp::tp::{Array, ArrayMut, Grad, Region};
/// # fn main() -> megadp::Result<()> {
/// let comm = Comm::builder().connect()?;
/// let (region, ranks) = (Region::gather(1, Grad::Partial), comm.size()?);
/// let (part, mut whole) = ([1f32; 6], vec![0f32; 6 * ranks]);
/// region.forward(&comm, &Array::new(&part, &[2, 3])?, &mut ArrayMut::new(&mut whole, &[2, 3 * ranks])?)?;
/// assert!(whole.iter().all(|&value| value == 1.0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Region {
    region: sys::mdp_tp_region,
    grad: Option<Grad>,
    dim: usize,
    to_dim: usize,
    parts: Vec<u64>,
    to_parts: Vec<u64>,
    flags: u64,
}

type Call = unsafe extern "C" fn(
    *mut sys::mdp_comm,
    *const sys::mdp_tp_region_config,
    *const sys::mdp_tensor,
    *const sys::mdp_tensor,
    sys::mdp_stream,
) -> sys::mdp_status;

impl Region {
    fn new(region: sys::mdp_tp_region, grad: Option<Grad>, dim: usize, to_dim: usize) -> Self {
        Region { region, grad, dim, to_dim, parts: Vec::new(), to_parts: Vec::new(), flags: 0 }
    }

    /// What is replicated, the same on. Its gradient is the sum of what comes back, if that is partial.
    pub fn copy(grad: Grad) -> Self {
        Self::new(sys::MDP_TP_COPY, Some(grad), 0, 0)
    }

    /// The sum over the ranks, on all of them. Its gradient is that of [`Region::copy`].
    pub fn reduce(grad: Grad) -> Self {
        Self::new(sys::MDP_TP_REDUCE, Some(grad), 0, 0)
    }

    /// Of what is replicated, this rank's part along `dim`. Its gradient is all parts.
    pub fn scatter(dim: usize) -> Self {
        Self::new(sys::MDP_TP_SCATTER, None, dim, 0)
    }

    /// All parts along `dim` together. Its gradient is this rank's part of what comes back, or of the sum of that, if it is partial.
    pub fn gather(dim: usize, grad: Grad) -> Self {
        Self::new(sys::MDP_TP_GATHER, Some(grad), dim, 0)
    }

    /// This rank's part along `dim` of the sum over the ranks. Its gradient is all parts.
    pub fn reduce_scatter(dim: usize) -> Self {
        Self::new(sys::MDP_TP_REDUCE_SCATTER, None, dim, 0)
    }

    /// What is cut along `dim` becomes cut along `to_dim`, such as sequence and heads. Its gradient is the inverse.
    pub fn exchange(dim: usize, to_dim: usize) -> Self {
        Self::new(sys::MDP_TP_EXCHANGE, None, dim, to_dim)
    }

    /// The sizes of the ranks' parts along `dim`, one for each rank; equal ones unless said.
    pub fn parts(mut self, parts: impl IntoIterator<Item = u64>) -> Self {
        self.parts = parts.into_iter().collect();
        self
    }

    /// The same along `to_dim`.
    pub fn to_parts(mut self, parts: impl IntoIterator<Item = u64>) -> Self {
        self.to_parts = parts.into_iter().collect();
        self
    }

    /// Compares over the ranks what should be the same on all. It waits; for debugging.
    pub fn check_replicated(mut self) -> Self {
        self.flags |= sys::MDP_TP_REGION_CHECK_REPLICATED;
        self
    }

    /// `to` becomes what the operator makes of `from`; it has the shape that [`Region::output_shape`] tells. Collective, blocking.
    ///
    /// # Errors
    /// INVALID (shapes, sizes that do not divide; with [`Region::check_replicated`], on all ranks, an array that is not), DESYNC, those of a
    /// lost communicator.
    pub fn forward(&self, comm: &Comm, from: &Array<'_>, to: &mut ArrayMut<'_>) -> Result<()> {
        self.run(sys::mdp_tp_region_fwd, comm, from, to)
    }

    /// `to` becomes the gradient of forward's input, from that of its output. Collective, blocking.
    ///
    /// # Errors
    /// As [`Region::forward`].
    pub fn backward(&self, comm: &Comm, from: &Array<'_>, to: &mut ArrayMut<'_>) -> Result<()> {
        self.run(sys::mdp_tp_region_bwd, comm, from, to)
    }

    fn run(&self, function: Call, comm: &Comm, from: &Array<'_>, to: &mut ArrayMut<'_>) -> Result<()> {
        self.check_parts(comm.size()?)?;
        let list = |parts: &[u64]| if parts.is_empty() { ptr::null() } else { parts.as_ptr() };
        let config = sys::mdp_tp_region_config {
            region: self.region,
            grad: self.grad.map_or(sys::MDP_TP_GRAD_UNSET, |grad| grad as u32),
            dim: narrow(self.dim, "dim")?,
            to_dim: narrow(self.to_dim, "to_dim")?,
            parts: list(&self.parts),
            to_parts: list(&self.to_parts),
            flags: self.flags,
            ..sys::mdp_tp_region_config::new()
        };
        let (_inside, comm) = comm.enter();
        // SAFETY: a live handle, the communicator's only call; the structs, lists and arrays live through it, and `to` is borrowed mutably.
        check(unsafe { function(comm, &config, &from.raw, &to.raw, ptr::null_mut()) })
    }

    /// C reads one for each rank.
    fn check_parts(&self, ranks: usize) -> Result<()> {
        for (name, list) in [("parts", &self.parts), ("to_parts", &self.to_parts)] {
            if !list.is_empty() && list.len() != ranks {
                let text = format!("{name} has {} numbers; it has one for each of the {ranks} ranks", list.len());
                return Err(Error::new(Code::Invalid, text));
            }
        }
        Ok(())
    }

    /// The shape of what forward makes on this rank of an array of this shape. Local.
    ///
    /// # Errors
    /// INVALID (no such dimension; not one part for each rank), STATE in a forked child. Sizes that do not divide are refused by
    /// [`Region::forward`].
    pub fn output_shape(&self, comm: &Comm, input: &[usize]) -> Result<Vec<usize>> {
        let (rank, ranks, mut shape) = (comm.rank()?, comm.size()?, input.to_vec());
        self.check_parts(ranks)?;
        let find = |dim: usize| {
            let text = format!("dim is {dim}; the array has {} dimensions, counted from 0", input.len());
            input.get(dim).copied().ok_or_else(|| Error::new(Code::Invalid, text))
        };
        let part = |dim: usize, parts: &[u64]| Ok(parts.get(rank).map_or(find(dim)? / ranks, |&size| size as usize));
        let whole = |dim| {
            let size = find(dim)?;
            // What is too large for a number is too large for an array, which says so.
            let of_parts = || self.parts.iter().fold(0, |sum: u64, &part| sum.saturating_add(part)) as usize;
            Ok(if self.parts.is_empty() { size.saturating_mul(ranks) } else { of_parts() })
        };
        match self.region {
            sys::MDP_TP_SCATTER | sys::MDP_TP_REDUCE_SCATTER => shape[self.dim] = part(self.dim, &self.parts)?,
            sys::MDP_TP_GATHER => shape[self.dim] = whole(self.dim)?,
            sys::MDP_TP_EXCHANGE => {
                (shape[self.dim], shape[self.to_dim]) = (whole(self.dim)?, part(self.to_dim, &self.to_parts)?);
            }
            _ => {}
        }
        Ok(shape)
    }
}
