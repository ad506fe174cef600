// SPDX-License-Identifier: Apache-2.0
//! Types of elements, and arrays that are handed to the library.
use crate::error::{Code, Error, Result};
use crate::sys;

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum DType {
    /// 32-bit floating point.
    F32 = sys::MDP_DTYPE_F32,
    /// bfloat16.
    Bf16 = sys::MDP_DTYPE_BF16,
    /// 16-bit floating point.
    F16 = sys::MDP_DTYPE_F16,
    /// 64-bit floating point; for collectives, and to copy parameters and gradients in and out.
    F64 = sys::MDP_DTYPE_F64,
    /// 64-bit integers; for collectives.
    I64 = sys::MDP_DTYPE_I64,
    /// Bytes; for collectives.
    U8 = sys::MDP_DTYPE_U8,
}

/// A Rust type that the library knows too. With the feature `half`, also `half::bf16` and `half::f16`.
///
/// # Safety
/// `DTYPE` describes the type's memory, and every pattern of bits is a value of it.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Its name in the library.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {$(
        // SAFETY: the same memory, and a number for every pattern of bits.
        unsafe impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
element!(f32 => F32, f64 => F64, i64 => I64, u8 => U8);
#[cfg(feature = "half")]
element!(half::bf16 => Bf16, half::f16 => F16);

/// A slice of elements with a stride for each dimension, as a source of gradients and parameters that are not row-major. A plain `&[T]`
/// converts into one: row-major and dense.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a, T> {
    data: &'a [T],
    offset: usize,
    strides: Option<&'a [i64]>,
}

impl<'a, T: Element> Strided<'a, T> {
    /// `strides` counts elements and may be negative; `offset` is where the element with all indices 0 lies. Whether every element lies
    /// inside of `data` is checked where the shape is known.
    pub fn new(data: &'a [T], offset: usize, strides: &'a [i64]) -> Self {
        Strided { data, offset, strides: Some(strides) }
    }

    /// The struct to hand to the library for an array of this shape, which is [`sizes`]' or the library's, so that its elements can be counted.
    /// Valid as long as the shape and what this borrows.
    pub(crate) fn tensor(&self, shape: &[i64]) -> Result<sys::mdp_tensor> {
        let numel = shape.iter().product::<i64>() as usize;
        let Some(strides) = self.strides else {
            if self.data.len() != numel {
                let text = format!("the array has {} elements; the shape is {shape:?}, which has {numel}", self.data.len());
                return Err(Error::new(Code::Invalid, text));
            }
            return Ok(tensor(self.data.as_ptr().cast_mut(), shape, None));
        };
        if strides.len() != shape.len() {
            let text = format!("the array has {} strides; the shape is {shape:?}", strides.len());
            return Err(Error::new(Code::Invalid, text));
        }
        let mut reach = (self.offset as i128, self.offset as i128); // of the lowest and of the highest element
        for (&size, &stride) in shape.iter().zip(strides) {
            let span = i128::from(stride) * i128::from(size - 1).max(0);
            if span < 0 { reach.0 += span } else { reach.1 += span }
        }
        if numel > 0 && (reach.0 < 0 || reach.1 >= self.data.len() as i128) {
            let text = format!(
                "with offset {}, strides {strides:?} and shape {shape:?} the array reaches from {} to {}; the slice has {} elements",
                self.offset,
                reach.0,
                reach.1,
                self.data.len()
            );
            return Err(Error::new(Code::Invalid, text));
        }
        // Without elements the offset may lie outside.
        let first = if numel > 0 { self.data[self.offset..].as_ptr() } else { self.data.as_ptr() };
        Ok(tensor(first.cast_mut(), shape, Some(strides)))
    }
}

impl<'a, T> From<&'a [T]> for Strided<'a, T> {
    fn from(data: &'a [T]) -> Self {
        Strided { data, offset: 0, strides: None }
    }
}

impl<'a, T> From<&'a Vec<T>> for Strided<'a, T> {
    fn from(data: &'a Vec<T>) -> Self {
        Strided::from(data.as_slice())
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Strided<'a, T> {
    fn from(data: &'a [T; N]) -> Self {
        Strided::from(data.as_slice())
    }
}

/// The shape as the library has it, once it is known that its elements can be counted.
pub(crate) fn sizes(shape: &[usize]) -> Result<Vec<i64>> {
    let count = shape.iter().try_fold(1i64, |count, &size| count.checked_mul(i64::try_from(size).ok()?));
    let too_many = || Error::new(Code::Invalid, format!("the shape is {shape:?}, which has more elements than can be counted"));
    count.map(|_| shape.iter().map(|&size| size as i64).collect()).ok_or_else(too_many)
}

/// An array in memory of the host. It is only written if the library's function says so.
pub(crate) fn tensor<T: Element>(data: *mut T, shape: &[i64], strides: Option<&[i64]>) -> sys::mdp_tensor {
    sys::mdp_tensor {
        dtype: T::DTYPE as sys::mdp_dtype,
        device_type: 1,
        ndim: shape.len() as i32,
        data: data.cast(),
        shape: shape.as_ptr(),
        strides: strides.map_or(std::ptr::null(), <[i64]>::as_ptr),
        ..sys::mdp_tensor::new()
    }
}

/// Refuses a view that the library has lent unless its elements are `T`, on the host. `name` says what of, in the error.
pub(crate) fn check_view<T: Element>(view: &sys::mdp_tensor, name: &str) -> Result<()> {
    if view.device_type > 1 {
        return Err(Error::new(Code::Unsupported, format!("{name} is memory of a device; slices are memory of the host")));
    }
    if view.dtype != T::DTYPE as sys::mdp_dtype {
        let text = format!("{name} has elements of dtype {}; asked for were {:?} ({})", view.dtype, T::DTYPE, T::DTYPE as u32);
        return Err(Error::new(Code::Invalid, text));
    }
    Ok(())
}

/// How many elements a view that the library has lent has, if they are dense and row-major.
pub(crate) fn dense_length(view: &sys::mdp_tensor) -> Option<usize> {
    let dims = 0..view.ndim as usize;
    // SAFETY: the library wrote ndim sizes and as many strides, which live as long as what the view is of.
    let (size, stride) = (|d: usize| unsafe { *view.shape.add(d) }, |d: usize| unsafe { *view.strides.add(d) });
    if dims.clone().any(|d| size(d) == 0) {
        return Some(0); // strides of nothing say nothing
    }
    let mut numel = 1;
    for d in dims.rev() {
        if !view.strides.is_null() && size(d) > 1 && stride(d) != numel {
            return None;
        }
        numel *= size(d);
    }
    Some(numel as usize)
}

/// Pointer and length of a view that the library has lent, once it is known that its elements are `T`, dense, and on the host.
pub(crate) fn dense_view<T: Element>(view: &sys::mdp_tensor, name: &str) -> Result<(*mut T, usize)> {
    check_view::<T>(view, name)?;
    let refused = || Error::new(Code::Unsupported, format!("{name} is not dense and row-major"));
    let length = dense_length(view).ok_or_else(refused)?;
    Ok((if length == 0 { std::ptr::NonNull::dangling().as_ptr() } else { view.data.cast() }, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_without_elements_is_dense() {
        let length = |shape: &[i64], strides: &[i64]| dense_length(&tensor::<f32>(std::ptr::null_mut(), shape, Some(strides)));
        for shape in [&[3, 0][..], &[0, 3], &[2, 0, 3], &[2, 3, 0], &[0]] {
            let strides = vec![1; shape.len()]; // as the library writes them: of sizes that are at least 1
            assert_eq!(length(shape, &strides), Some(0), "{shape:?}");
        }
        assert_eq!((length(&[2, 3], &[3, 1]), length(&[2, 3], &[4, 1])), (Some(6), None));
    }

    #[test]
    fn strides_stay_inside_of_the_slice() {
        let data = [0f32; 12];
        let ok = |offset, strides: &[i64], shape: &[i64]| Strided::new(&data, offset, strides).tensor(shape).is_ok();
        assert!(ok(0, &[4, 1], &[3, 4]) && ok(0, &[1, 3], &[3, 4]) && ok(11, &[-4, -1], &[3, 4]) && ok(11, &[0], &[7]));
        assert!(ok(99, &[5, 5], &[0, 4]) && ok(3, &[], &[]));
        assert!(!ok(1, &[4, 1], &[3, 4]) && !ok(10, &[-4, -1], &[3, 4]) && !ok(12, &[], &[]) && !ok(0, &[i64::MAX], &[3]));
        assert!(!ok(0, &[1], &[3, 4]) && !ok(0, &[i64::MIN], &[2]));
        assert!(Strided::from(&data).tensor(&[3, 4]).is_ok() && Strided::from(&data).tensor(&[3, 3]).is_err());
    }
}
