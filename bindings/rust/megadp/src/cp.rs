// SPDX-License-Identifier: Apache-2.0
//! Context parallelism: attention over a sequence that is cut over ranks. The attention of a block, some queries with some keys, is a closure of the
//! caller's, such as [`plain_attention`]. Forward and backward are calls of their own, for an autodiff to wrap; with the feature `candle`,
//! `megadp::candle::cp` has them wrapped.
//!
//! ```
//! use megadp::Comm;
//! use megadp::cp::{Array, ArrayMut, Attention, plain_attention};
//!
//! # fn main() -> megadp::Result<()> {
//! let comm = Comm::builder().connect()?; // the context-parallel ranks
//! let attention = Attention::new().causal();
//! let part = attention.part(comm.size()?, comm.rank()?, 12 * comm.size()?)?; // this rank's positions
//! let length: usize = part.iter().map(|range| range.len()).sum();
//!
//! let shape = [1, length, 2, 4]; // batch, positions, heads, head_dim
//! let (x, mut out, mut lse) = (vec![1f32; 8 * length], vec![0f32; 8 * length], vec![0f32; 2 * length]);
//! let x = Array::new(&x, &shape)?;
//! let (mut to_out, mut to_lse) = (ArrayMut::new(&mut out, &shape)?, ArrayMut::new(&mut lse, &shape[..3])?);
//! attention.forward(&x, &x, &x).run(&comm, &mut to_out, &mut to_lse, |block| plain_attention(block, None))?;
//! assert!(out.iter().all(|&value| (value - 1.0).abs() < 1e-6));
//! # Ok(())
//! # }
//! ```
use crate::comm::Comm;
use crate::error::{Error, Result, check, narrow};
use crate::sys;
pub use crate::tp::{Array, ArrayMut};
use core::ffi::c_void;
use std::ops::Range;
use std::panic::resume_unwind;
use std::ptr;

mod block;
mod plain;

use block::{Attending, attend_block};
pub use block::{Block, Computed, View, ViewMut, Wanted};
pub use plain::plain_attention;

/// What moves between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Form {
    /// What sends less.
    #[default]
    Auto = sys::MDP_CP_AUTO,
    /// Keys and values, while a block is computed.
    Ring = sys::MDP_CP_RING,
    /// Each rank gets the whole sequence of some heads.
    AllToAll = sys::MDP_CP_ALL_TO_ALL,
}

/// What attention there is over the cut sequence; the same on all ranks. See the [module](self) for an example.
#[derive(Clone, Debug, Default)]
pub struct Attention {
    form: Form,
    causal: bool,
    bounds: Option<Vec<u64>>,
}

impl Attention {
    /// In which every query sees every key.
    pub fn new() -> Self {
        Self::default()
    }

    /// A query sees keys up to its own position. The sequence is then cut into two chunks a rank, so that all have as much to compute.
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// What moves; [`Form::Auto`] unless said.
    pub fn form(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Of packed sequences in the whole: 0, and where each ends. A query sees the keys of its own one.
    pub fn bounds(mut self, bounds: impl IntoIterator<Item = u64>) -> Self {
        self.bounds = Some(bounds.into_iter().collect());
        self
    }

    /// The positions that rank `rank` of `size` has of a sequence, in the order of its part: one range, or, where it is causal, two. Local.
    ///
    /// # Errors
    /// INVALID (no such rank; a sequence that does not divide, naming ones that would).
    ///
    /// ```
    /// # use megadp::cp::Attention;
    /// assert_eq!(Attention::new().part(3, 1, 12)?, [4..8]);
    /// assert_eq!(Attention::new().causal().part(3, 1, 12)?, [2..4, 8..10]);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn part(&self, size: usize, rank: usize, sequence: usize) -> Result<Vec<Range<usize>>> {
        let (size, rank, sequence) = (narrow(size, "size")?, narrow(rank, "rank")?, narrow(sequence, "sequence")?);
        let mut found = [0i64; 4];
        self.with_config(|config| {
            // SAFETY: a struct that lives through the call, and room for the four numbers that it writes.
            check(unsafe { sys::mdp_cp_part(config, size, rank, sequence, found.as_mut_ptr()) })
        })?;
        let [first, first_end, second, second_end] = found.map(|value| value as usize);
        Ok([first..first_end, second..second_end].into_iter().filter(|range| !range.is_empty()).collect())
    }

    /// Attention of this rank's part of q, k and v, [batch, positions, heads, head_dim], of any strides, F32, BF16 or F16; [`Forward::run`] computes it.
    /// k and v may have fewer heads: head h of q uses their head h / (heads / kv_heads).
    pub fn forward<'a>(&'a self, q: &'a Array<'a>, k: &'a Array<'a>, v: &'a Array<'a>) -> Forward<'a> {
        Forward { attention: self, read: [&q.raw, &k.raw, &v.raw] }
    }

    /// Its gradients, from what forward was given and has written, and the gradient of `out`; [`Backward::run`] computes them.
    pub fn backward<'a>(
        &'a self,
        q: &'a Array<'a>,
        k: &'a Array<'a>,
        v: &'a Array<'a>,
        out: &'a Array<'a>,
        lse: &'a Array<'a>,
        grad_out: &'a Array<'a>,
    ) -> Backward<'a> {
        Backward { attention: self, read: [&q.raw, &k.raw, &v.raw, &out.raw, &lse.raw, &grad_out.raw] }
    }

    fn with_config<R>(&self, call: impl FnOnce(*const sys::mdp_cp_config) -> Result<R>) -> Result<R> {
        let bounds = self.bounds.iter().flatten().map(|&bound| narrow(bound, "bounds")).collect::<Result<Vec<i64>>>()?;
        call(&sys::mdp_cp_config {
            form: self.form as sys::mdp_cp_form,
            bounds: if self.bounds.is_some() { bounds.as_ptr() } else { ptr::null() },
            bound_count: bounds.len() as u64,
            flags: if self.causal { sys::MDP_CP_CAUSAL } else { 0 },
            ..sys::mdp_cp_config::new()
        })
    }

    fn attend(
        &self,
        comm: &Comm,
        function: &mut dyn FnMut(Block<'_>) -> Computed,
        call: impl FnOnce(*mut sys::mdp_comm, *const sys::mdp_cp_config, *mut c_void) -> sys::mdp_status,
    ) -> Result<()> {
        let mut attending = Attending { function, answer: Ok(Ok(())) };
        let done = self.with_config(|config| {
            let (_inside, comm) = comm.enter();
            check(call(comm, config, (&raw mut attending).cast()))
        });
        match attending.answer {
            Ok(Ok(())) => done,
            Ok(Err(mine)) => done.map_err(|told| Error { text: format!("{}: {mine}", told.text), ..told }),
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// An attention that is ready to be computed; from [`Attention::forward`].
#[derive(Debug)]
#[must_use = "run() computes it"]
pub struct Forward<'a> {
    attention: &'a Attention,
    read: [&'a sys::mdp_tensor; 3],
}

impl Forward<'_> {
    /// Writes `out`, like q, and `lse`, [batch, positions, heads], F32: for each query the natural logarithm of the sum of the exponentials of its scores.
    /// `function` is called on this thread for each block with a key that a query may see; parts are merged in f32, in one order. It may not use the
    /// communicator. Where it answers an error on any rank, or panics there, the call fails on all; the panic goes on when all ranks know.
    /// Collective, blocking.
    ///
    /// # Errors
    /// On all ranks: INVALID (shapes, sizes that do not divide), DESYNC, ABORTED (the function failed on some rank: here the sentence ends with the error;
    /// the communicator is not lost); those of a lost communicator.
    ///
    /// A block is lent for the call:
    ///
    /// ```compile_fail,E0521
    /// # use megadp::{Comm, cp::{ArrayMut, Forward}};
    /// # fn keeps(forward: Forward<'_>, comm: &Comm, out: &mut ArrayMut<'_>, lse: &mut ArrayMut<'_>) {
    /// let mut kept = Vec::new();
    /// let _ = forward.run(comm, out, lse, |block| Ok(kept.push(block)));
    /// # }
    /// ```
    pub fn run(
        self,
        comm: &Comm,
        out: &mut ArrayMut<'_>,
        lse: &mut ArrayMut<'_>,
        mut function: impl FnMut(Block<'_>) -> Computed,
    ) -> Result<()> {
        let [q, k, v] = self.read;
        self.attention.attend(comm, &mut function, |comm, config, user| {
            // SAFETY: a live handle, the communicator's only call; structs, arrays and the function live through it, and what it writes is borrowed mutably.
            unsafe { sys::mdp_cp_attention_fwd(comm, config, Some(attend_block), user, q, k, v, &out.raw, &lse.raw, ptr::null_mut()) }
        })
    }
}

/// A backward that is ready to be computed; from [`Attention::backward`].
#[derive(Debug)]
#[must_use = "run() computes it"]
pub struct Backward<'a> {
    attention: &'a Attention,
    read: [&'a sys::mdp_tensor; 6],
}

impl Backward<'_> {
    /// Writes the gradients of q, k and v. As [`Forward::run`]; parts are added in f32. Collective, blocking.
    ///
    /// # Errors
    /// As [`Forward::run`].
    pub fn run(
        self,
        comm: &Comm,
        grad_q: &mut ArrayMut<'_>,
        grad_k: &mut ArrayMut<'_>,
        grad_v: &mut ArrayMut<'_>,
        mut function: impl FnMut(Block<'_>) -> Computed,
    ) -> Result<()> {
        let [q, k, v, out, lse, grad_out] = self.read;
        let (dq, dk, dv, stream) = (&grad_q.raw, &grad_k.raw, &grad_v.raw, ptr::null_mut());
        self.attention.attend(comm, &mut function, |comm, config, user| {
            // SAFETY: as in forward.
            unsafe { sys::mdp_cp_attention_bwd(comm, config, Some(attend_block), user, q, k, v, out, lse, grad_out, dq, dk, dv, stream) }
        })
    }
}
