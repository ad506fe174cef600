// SPDX-License-Identifier: Apache-2.0
//! One block of an attention: what the caller's function is given, and how the library calls it.
use crate::element::{Element, check_view, dense_length};
use crate::error::{Code, Error, Result};
use crate::sys;
use core::ffi::c_void;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::thread;

/// What a function of blocks answers: any error fails the call, on all ranks.
pub type Computed = crate::pieces::Updated;

/// Some queries and some keys. Arrays are [batch, positions, heads, head_dim], lse without the last.
#[derive(Debug)]
#[non_exhaustive]
pub struct Block<'a> {
    /// A query sees keys up to its own position: as many, and from the same position on.
    pub causal: bool,
    /// Where q begins in the whole sequence.
    pub q_begin: usize,
    /// The same of k and v.
    pub k_begin: usize,
    /// Where q begins among all heads.
    pub head_begin: usize,
    /// The queries.
    pub q: View<'a>,
    /// The keys.
    pub k: View<'a>,
    /// The values.
    pub v: View<'a>,
    /// Of packed sequences where they begin and end in q; else empty.
    pub q_bounds: Vec<usize>,
    /// The same in k; a sequence may be empty in one of both.
    pub k_bounds: Vec<usize>,
    /// What is to be written.
    pub wanted: Wanted<'a>,
}

/// What a function of blocks is to write, all of it F32.
#[derive(Debug)]
#[non_exhaustive]
pub enum Wanted<'a> {
    /// Forward.
    Outputs {
        /// The values weighted by the exponentials of scores minus lse.
        out: ViewMut<'a>,
        /// The natural logarithm of the sum of the exponentials of scores; minus infinity without a key, where out is not looked at.
        lse: ViewMut<'a>,
    },
    /// Backward: this block's part of the gradients.
    Gradients {
        /// What forward wrote, of all keys.
        out: View<'a>,
        /// The same.
        lse: View<'a>,
        /// What has come back.
        grad_out: View<'a>,
        /// Of the queries.
        grad_q: ViewMut<'a>,
        /// Of the keys.
        grad_k: ViewMut<'a>,
        /// Of the values.
        grad_v: ViewMut<'a>,
    },
}

impl<'a> Block<'a> {
    /// # Safety
    /// What the library gives its function, used until that returns.
    unsafe fn new(raw: &'a sys::mdp_cp_block) -> Self {
        // SAFETY: tensors that live as long as the block; all but grad_* are there.
        let read = |tensor: *const sys::mdp_tensor| View { raw: unsafe { &*tensor } };
        // SAFETY: the same.
        let written = |tensor: *const sys::mdp_tensor| ViewMut { raw: unsafe { &*tensor }, borrowed: PhantomData };
        let bounds = |list: *const i64| match raw.bound_count as usize {
            0 => Vec::new(),
            // SAFETY: a list of so many.
            count => unsafe { slice::from_raw_parts(list, count) }.iter().map(|&bound| bound as usize).collect(),
        };
        let wanted = if raw.grad_out.is_null() {
            Wanted::Outputs { out: written(raw.out), lse: written(raw.lse) }
        } else {
            let (out, lse, grad_out) = (read(raw.out), read(raw.lse), read(raw.grad_out));
            Wanted::Gradients { out, lse, grad_out, grad_q: written(raw.grad_q), grad_k: written(raw.grad_k), grad_v: written(raw.grad_v) }
        };
        Block {
            causal: raw.mask == sys::MDP_CP_MASK_CAUSAL,
            q_begin: raw.q_begin as usize,
            k_begin: raw.k_begin as usize,
            head_begin: raw.head_begin as usize,
            q: read(raw.q),
            k: read(raw.k),
            v: read(raw.v),
            q_bounds: bounds(raw.q_bounds),
            k_bounds: bounds(raw.k_bounds),
            wanted,
        }
    }

    /// Which keys of the block its query number `query` sees.
    pub fn keys_of(&self, query: usize) -> Range<usize> {
        let keys = if self.q_bounds.is_empty() {
            0..self.k.size(1)
        } else {
            let sequence = self.q_bounds.windows(2).position(|ends| (ends[0]..ends[1]).contains(&query));
            sequence.map_or(0..0, |n| self.k_bounds[n]..self.k_bounds[n + 1])
        };
        if self.causal { keys.start..keys.end.min(query + 1).max(keys.start) } else { keys }
    }
}

/// An array that a block reads, of any strides.
#[derive(Debug)]
pub struct View<'a> {
    raw: &'a sys::mdp_tensor,
}

/// An array that a block writes, of any strides.
#[derive(Debug)]
pub struct ViewMut<'a> {
    raw: &'a sys::mdp_tensor,
    borrowed: PhantomData<&'a mut ()>,
}

impl<'a> View<'a> {
    /// The sizes of its dimensions.
    pub fn shape(&self) -> Vec<usize> {
        (0..self.raw.ndim as usize).map(|d| self.size(d)).collect()
    }

    pub(super) fn size(&self, dim: usize) -> usize {
        lists(self.raw).0[dim] as usize
    }

    /// Its elements, row-major: as they lie where they are dense, else a copy.
    ///
    /// # Errors
    /// INVALID (another type), UNSUPPORTED (memory of a device).
    pub fn elements<T: Element>(&self) -> Result<Cow<'a, [T]>> {
        check_view::<T>(self.raw, "the array")?;
        let first = self.raw.data.cast_const().cast::<T>();
        if let Some(length) = dense_length(self.raw) {
            // SAFETY: so many elements of this type, which nobody writes during the call.
            return Ok(if length == 0 { Cow::default() } else { Cow::Borrowed(unsafe { slice::from_raw_parts(first, length) }) });
        }
        let (shape, strides) = lists(self.raw);
        let mut found = Vec::with_capacity(shape.iter().product::<i64>() as usize);
        // SAFETY: an element of the array.
        walk(shape, strides, 0, &mut |offset| found.push(unsafe { *first.offset(offset) }));
        Ok(Cow::Owned(found))
    }

    /// Its elements as f32, whatever of the library's types they are: as [`View::elements`].
    ///
    /// # Errors
    /// UNSUPPORTED (memory of a device; bf16 and f16 without the feature `half`).
    pub fn floats(&self) -> Result<Cow<'a, [f32]>> {
        match self.raw.dtype {
            #[cfg(feature = "half")]
            sys::MDP_DTYPE_BF16 => Ok(self.elements::<half::bf16>()?.iter().map(|value| value.to_f32()).collect()),
            #[cfg(feature = "half")]
            sys::MDP_DTYPE_F16 => Ok(self.elements::<half::f16>()?.iter().map(|value| value.to_f32()).collect()),
            sys::MDP_DTYPE_F32 => self.elements(),
            other => {
                let text = format!("the array has elements of dtype {other}; others than f32 are read with the crate's feature `half`");
                Err(Error::new(Code::Unsupported, text))
            }
        }
    }

    /// The C struct, with the address and strides, for code that takes those.
    pub fn as_raw(&self) -> &'a sys::mdp_tensor {
        self.raw
    }
}

impl ViewMut<'_> {
    /// The sizes of its dimensions.
    pub fn shape(&self) -> Vec<usize> {
        View { raw: self.raw }.shape()
    }

    /// Writes all of it, from row-major elements.
    ///
    /// # Errors
    /// INVALID (another number of elements), UNSUPPORTED (memory of a device).
    pub fn write(&mut self, elements: &[f32]) -> Result<()> {
        check_view::<f32>(self.raw, "the array")?;
        let (shape, strides) = lists(self.raw);
        if shape.iter().product::<i64>() as usize != elements.len() {
            let text = format!("there are {} elements; the array has shape {shape:?}", elements.len());
            return Err(Error::new(Code::Invalid, text));
        }
        let (first, mut elements) = (self.raw.data.cast::<f32>(), elements.iter());
        walk(shape, strides, 0, &mut |offset| {
            if let Some(&element) = elements.next() {
                // SAFETY: an element of the array, which is this block's to write.
                unsafe { *first.offset(offset) = element };
            }
        });
        Ok(())
    }

    /// The C struct, with the address and strides, for code that takes those. What it points to is written during the call alone.
    pub fn as_raw(&mut self) -> &sys::mdp_tensor {
        self.raw
    }
}

/// Sizes and strides.
fn lists(raw: &sys::mdp_tensor) -> (&[i64], &[i64]) {
    let count = raw.ndim as usize;
    // SAFETY: a block's tensors have both, and at least three dimensions.
    unsafe { (slice::from_raw_parts(raw.shape, count), slice::from_raw_parts(raw.strides, count)) }
}

/// Calls `with` for where each element lies, row-major.
fn walk(shape: &[i64], strides: &[i64], offset: isize, with: &mut dyn FnMut(isize)) {
    let (Some((&size, inner)), Some((&stride, inner_strides))) = (shape.split_first(), strides.split_first()) else {
        return with(offset);
    };
    for i in 0..size {
        walk(inner, inner_strides, offset + (i * stride) as isize, with);
    }
}

/// What a call takes along through the library.
pub(super) struct Attending<'f> {
    pub(super) function: &'f mut dyn FnMut(Block<'_>) -> Computed,
    /// Of the last block: the library calls no function again that has failed.
    pub(super) answer: thread::Result<Computed>,
}

/// For `mdp_cp_attention_fn`; `user` is an [`Attending`].
pub(super) unsafe extern "C" fn attend_block(user: *mut c_void, raw: *const sys::mdp_cp_block) -> i32 {
    // SAFETY: the caller's value, on the caller's thread, and a block that lives until this returns.
    let (attending, block) = unsafe { (&mut *user.cast::<Attending<'_>>(), Block::new(&*raw)) };
    // Nothing may unwind into C. Who catches the panic finds what the closure borrows as any panic leaves it.
    attending.answer = catch_unwind(AssertUnwindSafe(|| (attending.function)(block)));
    i32::from(!matches!(attending.answer, Ok(Ok(()))))
}
