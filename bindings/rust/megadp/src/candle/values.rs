// SPDX-License-Identifier: Apache-2.0
//! Values of parameters in candle's tensors.
use super::{Result, Weight};
use crate::buffer::Buffer;
use crate::element::Element;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, InplaceOp1, Layout, Storage, Tensor};
use std::ops::Range;

/// Writes the parameters' values into the model's tensors and the variables, each as soon as it is whole.
pub(super) fn write(weights: &[Weight], buffer: &Buffer) -> Result<()> {
    for (param, weight) in weights.iter().enumerate() {
        buffer.wait(param)?;
        if weight.tensor.elem_count() == 0 {
            continue; // candle takes its strides for those of repeated elements
        }
        for tensor in [&weight.tensor, weight.var.as_tensor()] {
            tensor.inplace_op1(&Refresh { buffer, param })?;
        }
    }
    buffer.copies.outdated.set(false);
    Ok(())
}

fn elements(layout: &Layout) -> Range<usize> {
    layout.start_offset()..layout.start_offset() + layout.shape().elem_count()
}

/// Writes a parameter's values into a tensor, in place.
struct Refresh<'a> {
    buffer: &'a Buffer,
    param: usize,
}

impl Refresh<'_> {
    fn copy<T: Element>(&self, to: &mut [T], layout: &Layout) -> candle_core::Result<()> {
        to[elements(layout)].copy_from_slice(self.buffer.param(self.param).map_err(candle_core::Error::wrap)?);
        Ok(())
    }
}

impl InplaceOp1 for Refresh<'_> {
    fn name(&self) -> &'static str {
        "megadp-refresh"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        match storage {
            CpuStorage::F32(data) => self.copy(data, layout),
            CpuStorage::BF16(data) => self.copy(data, layout),
            CpuStorage::F16(data) => self.copy(data, layout),
            other => Err(candle_core::Error::msg(format!("a parameter has elements of {:?}", other.dtype()))),
        }
    }
}

/// The first of the parameters whose variable has other values than the model's tensor, bit for bit. All elements are looked at, since the
/// step that follows writes all of them.
pub(super) fn find_different(weights: &[Weight]) -> Option<usize> {
    weights.iter().position(|weight| !alike(&weight.tensor, &weight.var))
}

fn alike(a: &Tensor, b: &Tensor) -> bool {
    let ((a, a_layout), (b, b_layout)) = (a.storage_and_layout(), b.storage_and_layout());
    let (a_elements, b_elements) = (elements(a_layout), elements(b_layout));
    match (&*a, &*b) {
        (Storage::Cpu(CpuStorage::F32(a)), Storage::Cpu(CpuStorage::F32(b))) => same(&a[a_elements], &b[b_elements]),
        (Storage::Cpu(CpuStorage::BF16(a)), Storage::Cpu(CpuStorage::BF16(b))) => same(&a[a_elements], &b[b_elements]),
        (Storage::Cpu(CpuStorage::F16(a)), Storage::Cpu(CpuStorage::F16(b))) => same(&a[a_elements], &b[b_elements]),
        _ => false,
    }
}

fn same<T: Element>(a: &[T], b: &[T]) -> bool {
    bytes(a) == bytes(b) // numbers would not do: NaN is not equal to itself
}

fn bytes<T: Element>(slice: &[T]) -> &[u8] {
    // SAFETY: an element's memory is that of its value, so all bytes are there to be read.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), size_of_val(slice)) }
}
