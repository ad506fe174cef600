// SPDX-License-Identifier: Apache-2.0
//! What the operations of candle's in this crate have in common: arrays of the library over candle's memory, and errors as candle has them.
use crate::element::{Element, Strided};
use crate::error::Code;
use crate::tp::{Array, ArrayMut};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor, WithDType};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The gradients of an operation with three inputs.
pub(super) type Three = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn refused(text: String) -> candle_core::Error {
    candle_core::Error::wrap(crate::Error::new(Code::Unsupported, text))
}

pub(super) fn wrapped<R>(outcome: crate::Result<R>) -> Result<R> {
    outcome.map_err(candle_core::Error::wrap)
}

/// The elements of a storage, and how they lie.
pub(super) struct Lying<'a, T> {
    data: &'a [T],
    layout: &'a Layout,
    strides: Vec<i64>,
}

impl<'a, T: WithDType + Element> Lying<'a, T> {
    pub(super) fn new(storage: &'a CpuStorage, layout: &'a Layout) -> Result<Self> {
        Ok(Lying { data: storage.as_slice()?, layout, strides: layout.stride().iter().map(|&stride| stride as i64).collect() })
    }

    pub(super) fn array(&self) -> Result<Array<'_>> {
        wrapped(Array::new(Strided::new(self.data, self.layout.start_offset(), &self.strides), self.layout.dims()))
    }
}

/// Calls `work` with tensors' memory as arrays.
pub(super) fn with_arrays<T: WithDType + Element, R, const N: usize>(
    tensors: [&Tensor; N],
    work: impl FnOnce([&Array<'_>; N]) -> Result<R>,
) -> Result<R> {
    let held = tensors.map(Tensor::storage_and_layout);
    let lying = held.iter().map(|(storage, layout)| match &**storage {
        Storage::Cpu(storage) => Lying::<T>::new(storage, layout),
        _ => Err(refused("a tensor is on a device; these operations are those of the CPU".into())),
    });
    let lying = lying.collect::<Result<Vec<_>>>()?;
    let arrays = lying.iter().map(Lying::array).collect::<Result<Vec<_>>>()?;
    work(std::array::from_fn(|i| &arrays[i]))
}

/// Zeros, and what `fill` makes of them; as candle stores them.
pub(super) fn filled<T: WithDType + Element>(
    shape: &[usize],
    fill: impl FnOnce(&mut ArrayMut<'_>) -> crate::Result<()>,
) -> Result<CpuStorage> {
    let mut data = vec![T::zero(); shape.iter().product()];
    wrapped(ArrayMut::new(&mut data, shape).and_then(|mut array| fill(&mut array)))?;
    Ok(T::to_cpu_storage_owned(data))
}

pub(super) fn tensor<T: WithDType>(data: Vec<T>, like: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(data, like.shape(), like.device())
}

/// Gradients of up to three inputs, for candle: of those that it follows.
pub(super) fn followed<T: WithDType>(grads: impl IntoIterator<Item = Vec<T>>, inputs: &[&Tensor]) -> Result<[Option<Tensor>; 3]> {
    let mut found = [None, None, None];
    for (to, (data, input)) in found.iter_mut().zip(grads.into_iter().zip(inputs)) {
        *to = if input.track_op() { Some(tensor(data, input)?) } else { None };
    }
    Ok(found)
}

pub(super) fn storage_dtype(storage: &CpuStorage) -> DType {
    storage.dtype()
}

/// `$call::<T>($arguments)`, with the element's type of a candle dtype.
macro_rules! by_dtype {
    ($dtype:expr, $self:ident.$call:ident($($argument:expr),*)) => {
        match $dtype {
            candle_core::DType::F32 => $self.$call::<f32>($($argument),*),
            candle_core::DType::BF16 => $self.$call::<half::bf16>($($argument),*),
            other => {
                let text = format!("a tensor has elements of {other:?}; these operations are for F32 and BF16");
                Err($crate::candle::operation::refused(text))
            }
        }
    };
}
pub(super) use by_dtype;
