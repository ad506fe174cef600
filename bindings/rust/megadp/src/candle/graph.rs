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
    seen: RefCell<Seen>,
}

/// Tensors that losses have depended on. Those that are made anew in each forward never come again; what is kept by mistake comes from the
/// building of a model, or from the forward before, so these are remembered, and not all that there ever were.
#[derive(Default)]
struct Seen {
    /// Before the first step.
    early: HashSet<TensorId>,
    /// In the step before this one, unless that was the first.
    last: HashSet<TensorId>,
    /// In this step.
    now: HashSet<TensorId>,
    stepped: bool,
}

impl Graphs {
    pub(super) fn new(weights: &[Weight]) -> Self {
        let of_variable = weights.iter().enumerate().map(|(param, weight)| (weight.var.id(), param)).collect();
        Graphs { of_variable, seen: RefCell::default() }
    }

    /// The parameters whose variables themselves are among these nodes, the last of forward first, as backward would find them.
    pub(super) fn used_directly(&self, nodes: &[&Tensor]) -> Vec<usize> {
        let mut params = nodes.iter().filter_map(|node| self.of_variable.get(&node.id()).copied()).collect::<Vec<_>>();
        params.sort_unstable_by(|a, b| b.cmp(a));
        params
    }

    /// Parameters have other values: what was computed before is outdated.
    pub(super) fn begin_step(&self) {
        let mut seen = self.seen.borrow_mut();
        let now = std::mem::take(&mut seen.now);
        if now.is_empty() {
            return; // written again, or before the first loss
        }
        if std::mem::replace(&mut seen.stepped, true) {
            seen.last = now;
        } else {
            seen.early = now;
        }
    }

    /// Refuses what was computed from parameters before the last step: its values are those of then.
    pub(super) fn refuse_outdated(&self, nodes: &[&Tensor], weights: &[Weight]) -> Result<()> {
        let mut seen = self.seen.borrow_mut();
        let current = weights.iter().flat_map(|weight| [memory(&weight.tensor), memory(&weight.var)]).collect::<HashSet<_>>();
        let before = |id: TensorId| seen.early.contains(&id) || seen.last.contains(&id);
        for node in nodes.iter().filter(|node| before(node.id()) && !current.contains(&memory(node))) {
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
        seen.now.extend(nodes.iter().map(|node| node.id()));
        Ok(())
    }
}

/// What tells a tensor's memory: views have that of what they are views of, and show what is written there.
fn memory(tensor: &Tensor) -> *const Storage {
    std::ptr::from_ref(&*tensor.storage_and_layout().0)
}
