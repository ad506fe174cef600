// SPDX-License-Identifier: Apache-2.0
//! Linear layers whose weights are cut over tensor-parallel ranks.
use super::{Array, ArrayMut, Grad};
use crate::buffer::Buffer;
use crate::comm::Comm;
use crate::element::DType;
use crate::error::{Code, Error, Result, check, narrow};
use crate::gradients::Shared;
use crate::handle::{NotSync, Owned, Tree, Turn};
use crate::param::Placed;
use crate::sys;
use std::ptr;
use std::sync::Arc;

/// What a layer is to be; from [`Linear::column`] and [`Linear::row`].
#[derive(Clone, Debug)]
pub struct LinearBuilder {
    split: sys::mdp_tp_split,
    features: (usize, usize),
    blocks: Vec<i64>,
    dtype: DType,
    grad: Option<Grad>,
    flags: u64,
}

impl LinearBuilder {
    fn new(split: sys::mdp_tp_split, in_features: usize, out_features: usize) -> Self {
        let features = (in_features, out_features);
        LinearBuilder { split, features, blocks: Vec::new(), dtype: DType::F32, grad: None, flags: 0 }
    }

    fn flag(mut self, flag: u64) -> Self {
        self.flags |= flag;
        self
    }

    /// With a bias, that is added once, to the sum.
    pub fn bias(self) -> Self {
        self.flag(sys::MDP_TP_LINEAR_BIAS)
    }

    /// The weight is in x out, not out x in.
    pub fn transposed(self) -> Self {
        self.flag(sys::MDP_TP_LINEAR_TRANSPOSED)
    }

    /// Sequence parallel: the input (of a column-parallel layer) or the output (of a row-parallel one) is cut along its first dimension outside of
    /// the layer.
    pub fn sequence(self) -> Self {
        self.flag(sys::MDP_TP_LINEAR_SEQUENCE)
    }

    /// Column-parallel: the output is whole on all ranks.
    pub fn gather_output(self) -> Self {
        self.flag(sys::MDP_TP_LINEAR_GATHER_OUTPUT)
    }

    /// Row-parallel: the input is whole on all ranks, and each takes its part.
    pub fn whole_input(self) -> Self {
        self.flag(sys::MDP_TP_LINEAR_WHOLE_INPUT)
    }

    /// Compares over the ranks what should be the same on all. It waits; for debugging.
    pub fn check_replicated(self) -> Self {
        self.flag(sys::MDP_TP_LINEAR_CHECK_REPLICATED)
    }

    /// What comes back of the output where that is the same on all ranks (row-parallel without sequence, gathered outputs); it must be said there.
    pub fn grad(mut self, grad: Grad) -> Self {
        self.grad = Some(grad);
        self
    }

    /// Of all arrays: f32, which it is unless said, or bf16, whose sums are f32. Gradients of weight and bias may be f32 in any case.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Sizes along the cut dimension of what is fused (q, k, v): each is cut over the ranks by itself, and a rank holds its parts of all, one after
    /// another.
    pub fn blocks(mut self, sizes: impl IntoIterator<Item = i64>) -> Self {
        self.blocks = sizes.into_iter().collect();
        self
    }

    /// The layer of arrays that are given to each call. Collective, with equal values; blocking.
    ///
    /// # Errors
    /// INVALID (sizes that do not divide; a gradient that must be said), UNSUPPORTED (there is no library for products: OpenBLAS or oneDNN), DESYNC,
    /// those of a lost communicator.
    pub fn create(&self, comm: &Comm) -> Result<Linear> {
        self.make(comm, None, 0, None)
    }

    /// The layer of parameters of a buffer, each a rank's part, of [`Param::sharded`](crate::Param::sharded) placement over the same ranks (the bias
    /// of a row-parallel layer: replicated, with sequence a partial sum). What is frozen there is given to each call. Collective, with equal values;
    /// blocking.
    ///
    /// # Errors
    /// As [`LinearBuilder::create`]; INVALID (a parameter's shape, dtype or placement).
    pub fn create_in(&self, comm: &Comm, buffer: &Buffer, weight: usize, bias: Option<usize>) -> Result<Linear> {
        for param in [Some(weight), bias].into_iter().flatten() {
            buffer.shared.check(param)?;
        }
        self.make(comm, Some(buffer), weight, bias)
    }

    fn make(&self, comm: &Comm, buffer: Option<&Buffer>, weight: usize, bias: Option<usize>) -> Result<Linear> {
        let with_bias = if bias.is_some() { sys::MDP_TP_LINEAR_BIAS } else { 0 };
        let config = sys::mdp_tp_linear_config {
            split: self.split,
            in_features: narrow(self.features.0, "in_features")?,
            out_features: narrow(self.features.1, "out_features")?,
            blocks: if self.blocks.is_empty() { ptr::null() } else { self.blocks.as_ptr() },
            block_count: self.blocks.len() as u64,
            buffer: buffer.map_or(ptr::null_mut(), Buffer::as_raw),
            weight: weight as u64,
            bias: bias.unwrap_or(0) as u64,
            dtype: self.dtype as u32,
            grad: self.grad.map_or(sys::MDP_TP_GRAD_UNSET, |grad| grad as u32),
            flags: self.flags | with_bias,
            ..sys::mdp_tp_linear_config::new()
        };
        let ranks = comm.size()?;
        let (_inside, raw_comm) = comm.enter_alone();
        let mut out = ptr::null_mut();
        // SAFETY: live handles, the communicator's only call; the structs live through it.
        check(unsafe { sys::mdp_tp_linear_create(raw_comm, &config, &mut out) })?;
        // SAFETY: just created, and ours.
        let handle = unsafe { Owned::new(out) }?;
        let params = buffer.map(|buffer| {
            let trained = |param: &usize| !buffer.shared.params[*param].frozen;
            let params = [Some(weight), bias].into_iter().flatten().filter(trained).collect();
            (buffer.shared.clone(), params)
        });
        Ok(Linear {
            handle,
            _tree: comm.tree.clone(),
            turn: comm.turn.clone(),
            builder: self.clone(),
            ranks,
            params,
            not_sync: NotSync::default(),
        })
    }
}

/// A linear layer `y = x Wᵀ + b` whose weight is cut over the ranks of a communicator. Features are the last dimension of its arrays. Nothing is
/// initialised. See the [module](super) for an example.
#[derive(Debug)]
pub struct Linear {
    handle: Owned<sys::mdp_tp_linear>,
    /// The communicator's, as which the layer counts.
    turn: Arc<Turn>,
    _tree: Arc<Tree>,
    builder: LinearBuilder,
    ranks: usize,
    /// The buffer, and which of its parameters are the layer's and trained.
    params: Option<(Arc<Shared>, Vec<usize>)>,
    not_sync: NotSync,
}

impl Linear {
    /// Each rank computes some features of the output, from the same input.
    pub fn column(in_features: usize, out_features: usize) -> LinearBuilder {
        LinearBuilder::new(sys::MDP_TP_COLUMN, in_features, out_features)
    }

    /// Each rank has some features of the input, and computes a part of the sum that makes the output.
    pub fn row(in_features: usize, out_features: usize) -> LinearBuilder {
        LinearBuilder::new(sys::MDP_TP_ROW, in_features, out_features)
    }

    fn has(&self, flag: u64) -> bool {
        self.builder.flags & flag != 0
    }

    /// The shape of what the layer makes on this rank of an input of this shape. Local. What does not fit is refused by [`Linear::forward`].
    pub fn output_shape(&self, input: &[usize]) -> Vec<usize> {
        let (mut shape, column) = (input.to_vec(), self.builder.split == sys::MDP_TP_COLUMN);
        if let (true, true, Some(first)) = (self.has(sys::MDP_TP_LINEAR_SEQUENCE), input.len() > 1, shape.first_mut()) {
            *first = if column { first.saturating_mul(self.ranks) } else { *first / self.ranks };
        }
        if let Some(last) = shape.last_mut() {
            let is_cut = column && !self.has(sys::MDP_TP_LINEAR_GATHER_OUTPUT);
            *last = self.builder.features.1 / if is_cut { self.ranks } else { 1 };
        }
        shape
    }

    /// How the ranks hold the weight: of a parameter that is registered on a grid ([`Param::placed`](crate::Param::placed)). Local.
    ///
    /// # Errors
    /// INVALID (blocks of different sizes, which no placement describes: make a layer of each).
    pub fn weight_placed(&self) -> Result<Placed> {
        let blocks = &self.builder.blocks;
        if self.ranks > 1 && blocks.iter().any(|&size| size != blocks[0]) {
            let text = format!("blocks are {blocks:?}; a placement describes blocks of equal sizes: make a layer of each");
            return Err(Error::new(Code::Invalid, text));
        }
        let is_first = (self.builder.split == sys::MDP_TP_COLUMN) != self.has(sys::MDP_TP_LINEAR_TRANSPOSED);
        Ok(Placed::Sharded { dim: usize::from(!is_first), pieces: blocks.len().max(1) })
    }

    /// The same of the bias: cut as a column-parallel layer's features are; whole in a row-parallel one, and with sequence its gradient is a
    /// part on each rank. Local.
    ///
    /// # Errors
    /// As [`Linear::weight_placed`].
    pub fn bias_placed(&self) -> Result<Placed> {
        if self.builder.split == sys::MDP_TP_COLUMN {
            return Ok(match self.weight_placed()? {
                Placed::Sharded { pieces, .. } => Placed::Sharded { dim: 0, pieces },
                other => other,
            });
        }
        Ok(if self.has(sys::MDP_TP_LINEAR_SEQUENCE) { Placed::PartialSum } else { Placed::Replicated })
    }

    /// The output of an input: what is added to this says of which weight, and then it runs.
    pub fn forward<'a>(&'a self, input: &'a Array<'_>) -> Forward<'a> {
        Forward { layer: self, input: &input.raw, weight: None, bias: None, buffer: None }
    }

    /// The gradients, from that of the output: what is added to this says of what, and then it runs.
    pub fn backward<'a>(&'a self, grad_output: &'a Array<'_>) -> Backward<'a> {
        Backward {
            layer: self,
            grad_output: &grad_output.raw,
            saved: None,
            input: None,
            weight: None,
            buffer: None,
            grad_input: None,
            grad_weight: None,
            grad_bias: None,
            flags: 0,
        }
    }

    /// Values are read and gradients written while the buffer is borrowed, which keeps both apart from slices that the program has.
    fn check_buffer(&self, given: Option<&Buffer>) -> Result<()> {
        let text = match (&self.params, given) {
            (None, None) => return Ok(()),
            (Some((shared, params)), Some(buffer)) if Arc::ptr_eq(shared, &buffer.shared) => {
                return params.iter().try_for_each(|&param| buffer.wait(param));
            }
            (Some(_), None) => "the layer's parameters are a buffer's: give it by of()",
            (Some(_), Some(_)) => "of() was given another buffer than the one that the layer was made with",
            (None, Some(_)) => "of() was given a buffer; the layer was made without one",
        };
        Err(Error::new(Code::Invalid, text))
    }
}

/// A copy of an input, for one backward of the same layer. It may be dropped unused, and any number may be alive.
#[derive(Debug)]
pub struct Saved(Owned<sys::mdp_tp_saved>);

fn raw(tensor: Option<&sys::mdp_tensor>) -> *const sys::mdp_tensor {
    tensor.map_or(ptr::null(), ptr::from_ref)
}

/// A call of [`Linear::forward`] that is being put together.
#[derive(Debug)]
#[must_use = "it runs by run() or save()"]
pub struct Forward<'a> {
    layer: &'a Linear,
    input: &'a sys::mdp_tensor,
    weight: Option<&'a sys::mdp_tensor>,
    bias: Option<&'a sys::mdp_tensor>,
    buffer: Option<&'a Buffer>,
}

impl<'a> Forward<'a> {
    /// This rank's part of the weight.
    pub fn weight(mut self, weight: &'a Array<'_>) -> Self {
        self.weight = Some(&weight.raw);
        self
    }

    /// This rank's part of the bias; of a row-parallel layer all of it.
    pub fn bias(mut self, bias: &'a Array<'_>) -> Self {
        self.bias = Some(&bias.raw);
        self
    }

    /// Weight and bias are those of the buffer that the layer was made with. Waits for their values.
    pub fn of(mut self, buffer: &'a Buffer) -> Self {
        self.buffer = Some(buffer);
        self
    }

    /// Writes the output. The caller keeps the input for backward. Collective, blocking.
    ///
    /// # Errors
    /// INVALID (shapes, dtypes, what is missing), DESYNC, those of a lost communicator.
    pub fn run(self, output: &mut ArrayMut<'_>) -> Result<()> {
        self.call(output, ptr::null_mut())
    }

    /// The same, and keeps a copy of the input.
    ///
    /// # Errors
    /// As [`Forward::run`]; MEMORY.
    pub fn save(self, output: &mut ArrayMut<'_>) -> Result<Saved> {
        let mut saved = ptr::null_mut();
        self.call(output, &mut saved)?;
        // SAFETY: just made, and ours.
        Ok(Saved(unsafe { Owned::new(saved) }?))
    }

    fn call(self, output: &mut ArrayMut<'_>, saved: *mut *mut sys::mdp_tp_saved) -> Result<()> {
        self.layer.check_buffer(self.buffer)?;
        let _inside = self.layer.turn.enter();
        let (layer, weight, bias) = (self.layer.handle.as_ptr(), raw(self.weight), raw(self.bias));
        // SAFETY: a live handle, the communicator's only call. The arrays are borrowed through it, the output mutably; parameters of a buffer are read
        // while that is borrowed.
        check(unsafe { sys::mdp_tp_linear_fwd(layer, self.input, weight, bias, &output.raw, ptr::null_mut(), saved) })
    }
}

/// A call of [`Linear::backward`] that is being put together. What is not said is not computed, but gradients of a buffer's parameters always: they
/// are written where they belong and counted as ready.
#[derive(Debug)]
#[must_use = "it runs by run()"]
pub struct Backward<'a> {
    layer: &'a Linear,
    grad_output: &'a sys::mdp_tensor,
    saved: Option<Saved>,
    input: Option<&'a sys::mdp_tensor>,
    weight: Option<&'a sys::mdp_tensor>,
    buffer: Option<&'a Buffer>,
    grad_input: Option<&'a sys::mdp_tensor>,
    grad_weight: Option<&'a sys::mdp_tensor>,
    grad_bias: Option<&'a sys::mdp_tensor>,
    flags: u64,
}

impl<'a> Backward<'a> {
    /// What [`Forward::save`] kept.
    pub fn saved(mut self, saved: Saved) -> Self {
        self.saved = Some(saved);
        self
    }

    /// The input of the forward. Neither this nor what was saved is needed if the weight needs no gradient.
    pub fn input(mut self, input: &'a Array<'_>) -> Self {
        self.input = Some(&input.raw);
        self
    }

    /// This rank's part of the weight.
    pub fn weight(mut self, weight: &'a Array<'_>) -> Self {
        self.weight = Some(&weight.raw);
        self
    }

    /// As [`Forward::of`].
    pub fn of(mut self, buffer: &'a Buffer) -> Self {
        self.buffer = Some(buffer);
        self
    }

    /// Where the gradient of the input goes.
    pub fn grad_input(mut self, to: &'a mut ArrayMut<'_>) -> Self {
        self.grad_input = Some(&to.raw);
        self
    }

    /// Where the gradient of the weight goes.
    pub fn grad_weight(mut self, to: &'a mut ArrayMut<'_>) -> Self {
        self.grad_weight = Some(&to.raw);
        self
    }

    /// Where the gradient of the bias goes.
    pub fn grad_bias(mut self, to: &'a mut ArrayMut<'_>) -> Self {
        self.grad_bias = Some(&to.raw);
        self
    }

    /// Gradients of weight and bias are added to what is there.
    pub fn add(mut self) -> Self {
        self.flags |= sys::MDP_GRAD_ADD;
        self
    }

    /// Computes them. Collective, blocking.
    ///
    /// # Errors
    /// INVALID (shapes, dtypes, what is missing), STATE (what was saved is another layer's; as [`Gradients::put`](crate::Gradients::put)), DESYNC, those
    /// of a lost communicator.
    pub fn run(self) -> Result<()> {
        self.layer.check_buffer(self.buffer)?;
        match &self.layer.params {
            None => self.call(),
            Some((shared, params)) => shared.arrive_together(params, &mut || self.call()),
        }
    }

    fn call(&self) -> Result<()> {
        let _inside = self.layer.turn.enter();
        let saved = self.saved.as_ref().map_or(ptr::null_mut(), |saved| saved.0.as_ptr());
        let (input, weight) = (raw(self.input), raw(self.weight));
        let (grad_input, grad_weight, grad_bias) = (raw(self.grad_input), raw(self.grad_weight), raw(self.grad_bias));
        // SAFETY: live handles, the communicator's only call. The arrays are borrowed through it, those that are written mutably; parameters of a buffer
        // are read while that is borrowed, and nobody has a slice of their gradients: arrive_together() has looked.
        check(unsafe {
            sys::mdp_tp_linear_bwd(
                self.layer.handle.as_ptr(),
                saved,
                input,
                weight,
                self.grad_output,
                grad_input,
                grad_weight,
                grad_bias,
                self.flags,
                ptr::null_mut(),
            )
        })
    }
}
