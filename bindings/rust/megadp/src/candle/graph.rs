// SPDX-License-Identifier: Apache-2.0
//! What a loss depends on, as candle's graph tells it.
use super::Weight;
use crate::error::{Code, Error, Result};
use candle_core::{Storage, Tensor, TensorId};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// Finds parameters in graphs.
pub(super) struct Graphs {
    /// Which parameter a variable is.
    of_variable: HashMap<TensorId, usize>,
    /// What losses depended on before the first step; none once what came after it has been looked at.
    early: RefCell<Option<HashSet<TensorId>>>,
}

impl Graphs {
    pub(super) fn new(weights: &[Weight]) -> Self {
        let of_variable = weights.iter().enumerate().map(|(param, weight)| (weight.var.id(), param)).collect();
        Graphs { of_variable, early: RefCell::new(Some(HashSet::new())) }
    }

    /// The parameters whose variables themselves are among these nodes, the last of forward first, as backward would find them.
    pub(super) fn used_directly(&self, nodes: &[&Tensor]) -> Vec<usize> {
        let mut params = nodes.iter().filter_map(|node| self.of_variable.get(&node.id()).copied()).collect::<Vec<_>>();
        params.sort_unstable_by(|a, b| b.cmp(a));
        params
    }

    /// Refuses what was computed from parameters before the first step, when there has been one: its values are those of then. Such tensors
    /// come from the building of a model, so one look is enough.
    pub(super) fn refuse_outdated(&self, nodes: &[&Tensor], weights: &[Weight], stepped: bool) -> Result<()> {
        let mut slot = self.early.borrow_mut();
        let Some(early) = slot.as_mut() else { return Ok(()) };
        if !stepped {
            early.extend(nodes.iter().map(|node| node.id()));
            return Ok(());
        }
        let current = weights.iter().flat_map(|weight| [memory(&weight.tensor), memory(&weight.var)]).collect::<HashSet<_>>();
        for node in nodes.iter().filter(|node| early.contains(&node.id()) && !current.contains(&memory(node))) {
            let sources = node.sorted_nodes().into_iter().map(Tensor::id).collect::<HashSet<_>>();
            let source = |weight: &&Weight| sources.contains(&weight.tensor.id()) || sources.contains(&weight.var.id());
            if let Some(weight) = weights.iter().find(source) {
                let text = format!(
                    "the loss depends on a tensor, {:?} {:?}, that was computed from variable {:?} before the last step, so with its values of \
                     then: compute it in each forward (VarBuilder::from_tensors converts once where its dtype is not the variables')",
                    node.dtype(),
                    node.dims(),
                    weight.name()
                );
                return Err(Error::new(Code::State, text));
            }
        }
        *slot = None;
        Ok(())
    }
}

/// What tells a tensor's memory: views have that of what they are views of, and show what is written there.
fn memory(tensor: &Tensor) -> *const Storage {
    std::ptr::from_ref(&*tensor.storage_and_layout().0)
}
