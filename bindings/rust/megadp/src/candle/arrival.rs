// SPDX-License-Identifier: Apache-2.0
//! How gradients get from candle's backward into the buffer.
use super::operation::lock;
use crate::error::Code;
use crate::gradients::Gradients;
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cpu_backend::CpuDevice;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Shape, Storage, Tensor};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const BETWEEN: &str = "Between two backwards of a model comes DataParallel::step; where gradients are to be added up, \
    Buffer::begin_microbatch comes before each; losses of another model go through detached tensors";

/// The first failure to hand a gradient over, which candle passes on as text only.
pub(super) type Failure = Arc<Mutex<Option<crate::Error>>>;

/// What comes through a model's tensor in the backward that runs.
#[derive(Default)]
enum Coming {
    /// It is all that there is: it goes at once.
    #[default]
    Whole,
    /// The loss uses the variable itself as well, and what that adds is known when backward has ended.
    Part(Option<Tensor>),
}

/// Where the gradient of one parameter goes.
pub(super) struct Way {
    gradients: Gradients,
    param: usize,
    /// Whether a gradient has come since the last step.
    arrived: AtomicBool,
    coming: Mutex<Coming>,
    failure: Failure,
}

impl Way {
    pub(super) fn new(gradients: Gradients, param: usize, failure: Failure) -> Self {
        Way { gradients, param, arrived: AtomicBool::new(false), coming: Mutex::default(), failure }
    }

    pub(super) fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::Relaxed)
    }

    pub(super) fn begin_step(&self) {
        self.arrived.store(false, Ordering::Relaxed);
    }

    /// From here on what comes through the model's tensor is kept back.
    pub(super) fn hold(&self) {
        *lock(&self.coming) = Coming::Part(None);
    }

    /// What was kept back; from here on nothing is.
    pub(super) fn release(&self) -> Option<Tensor> {
        match std::mem::take(&mut *lock(&self.coming)) {
            Coming::Part(part) => part,
            Coming::Whole => None,
        }
    }

    /// Hands a gradient over. After a refusal the sentence says what is to be done between two backwards.
    pub(super) fn put(&self, grad: &Tensor) -> candle_core::Result<crate::Result<()>> {
        self.arrived.store(true, Ordering::Relaxed);
        let grad = grad.contiguous()?;
        let (storage, layout) = grad.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            return Ok(Err(crate::Error::new(Code::Unsupported, "a gradient is on a device; on the CPU alone are they handed over")));
        };
        let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        let put = match storage {
            CpuStorage::F32(data) => self.gradients.put(self.param, &data[range]),
            CpuStorage::F64(data) => self.gradients.put(self.param, &data[range]),
            CpuStorage::BF16(data) => self.gradients.put(self.param, &data[range]),
            CpuStorage::F16(data) => self.gradients.put(self.param, &data[range]),
            other => Err(crate::Error::new(Code::Unsupported, format!("a gradient has elements of {:?}", other.dtype()))),
        };
        Ok(put.map_err(|error| match error.code {
            Code::State => crate::Error { text: format!("{}. {BETWEEN}", error.text), ..error },
            _ => error,
        }))
    }
}

/// Makes a model's tensor, of zeros, and hands its gradient over on the way back. It is no operation on the variable: so candle comes to the
/// variable only where the loss uses it directly.
pub(super) struct Arrival {
    pub(super) way: Arc<Way>,
    pub(super) shape: Shape,
    pub(super) dtype: DType,
}

impl CustomOp1 for Arrival {
    fn name(&self) -> &'static str {
        "megadp-arrival"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuDevice.zeros_impl(&self.shape, self.dtype)?, self.shape.clone()))
    }

    /// Called once in a backward if the loss depends on the tensor, with the sum over its uses.
    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        if let Coming::Part(part) = &mut *lock(&self.way.coming) {
            *part = Some(match part.take() {
                Some(earlier) => (earlier + grad)?, // a backward inside of this one
                None => grad.clone(),
            });
            return Ok(None);
        }
        self.way.put(grad)?.map_err(|error| {
            let text = error.to_string();
            lock(&self.way.failure).get_or_insert(error);
            candle_core::Error::msg(text)
        })?;
        Ok(None) // so candle keeps nothing, which would be memory for nothing
    }
}
