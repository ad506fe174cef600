// SPDX-License-Identifier: Apache-2.0
//! Embeddings, and the cross-entropy of logits, of a vocabulary that is cut over tensor-parallel ranks.
use super::{Array, ArrayMut, Grad};
use crate::comm::Comm;
use crate::error::{Code, Error, Result, check, narrow};
use crate::param::Placed;
use crate::sys;
use std::ptr;

/// A table of rows that is cut by rows over the ranks of a communicator, the same on all ranks. Ids are `i64`, of any shape, counted from 0.
///
/// ```
/// use megadp::Comm;
/// use megadp::tp::{Array, ArrayMut, Embedding, Grad};
/// # fn main() -> megadp::Result<()> {
/// let comm = Comm::builder().connect()?;
/// let (rows, features) = (4 / comm.size()?, 3); // this rank's
/// let (ids, weight, mut output) = ([3i64, 0], vec![1f32; rows * features], [0f32; 6]);
/// let embedding = Embedding::new(4).grad(Grad::Replicated); // what comes back is the same on all ranks
/// let (ids, weight) = (Array::new(&ids, &[2])?, Array::new(&weight, &[rows, features])?);
/// embedding.forward(&comm, &ids, &weight, &mut ArrayMut::new(&mut output, &[2, features])?)?;
/// assert_eq!(output, [1.0; 6]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    rows: usize,
    grad: Option<Grad>,
    flags: u64,
}

impl Embedding {
    /// Of so many rows, on all ranks together.
    pub fn new(rows: usize) -> Self {
        Embedding { rows, grad: None, flags: 0 }
    }

    /// What comes back of the output; it must be said unless the output is cut ([`Embedding::sequence`]).
    pub fn grad(mut self, grad: Grad) -> Self {
        self.grad = Some(grad);
        self
    }

    /// Sequence parallel: the output is cut along its first dimension; ids are whole.
    pub fn sequence(mut self) -> Self {
        self.flags |= sys::MDP_TP_EMBEDDING_SEQUENCE;
        self
    }

    /// Compares over the ranks what should be the same on all. It waits; for debugging.
    pub fn check_replicated(mut self) -> Self {
        self.flags |= sys::MDP_TP_EMBEDDING_CHECK_REPLICATED;
        self
    }

    /// How the ranks hold the table: of a parameter that is registered on a grid ([`Param::placed`](crate::Param::placed)). Local.
    pub fn placed(&self) -> Placed {
        Placed::Sharded { dim: 0, pieces: 1 }
    }

    fn config(&self) -> Result<sys::mdp_tp_embedding_config> {
        Ok(sys::mdp_tp_embedding_config {
            grad: self.grad.map_or(sys::MDP_TP_GRAD_UNSET, |grad| grad as u32),
            rows: narrow(self.rows, "rows")?,
            flags: self.flags,
            ..sys::mdp_tp_embedding_config::new()
        })
    }

    /// `output` becomes the rows `ids` of the table, of which `weight`, rows / ranks x features, is this rank's part. It has the shape that
    /// [`Embedding::output_shape`] tells, and the elements of `weight`: f32, bf16 or f16. Collective, blocking.
    ///
    /// # Errors
    /// INVALID (shapes, dtypes, sizes that do not divide; an id that is not in the table; with [`Embedding::check_replicated`], on all ranks, ids
    /// that are not the same), DESYNC, those of a lost communicator.
    pub fn forward(&self, comm: &Comm, ids: &Array<'_>, weight: &Array<'_>, output: &mut ArrayMut<'_>) -> Result<()> {
        let config = self.config()?;
        let (_inside, comm) = comm.enter();
        // SAFETY: a live handle, the communicator's only call; the struct and arrays live through it, and the output is borrowed mutably.
        check(unsafe { sys::mdp_tp_embedding_fwd(comm, &config, &ids.raw, &weight.raw, &output.raw, ptr::null_mut()) })
    }

    /// `grad_weight` becomes the gradient of this rank's part of the table, with zeros where no id came. Each row is summed in f32, in the order
    /// of the ids. Collective, blocking.
    ///
    /// # Errors
    /// As [`Embedding::forward`].
    pub fn backward(&self, comm: &Comm, ids: &Array<'_>, grad_output: &Array<'_>, grad_weight: &mut ArrayMut<'_>) -> Result<()> {
        self.run_back(comm, ids, grad_output, grad_weight, 0)
    }

    /// The same, added to what is there: a gradient of an earlier microbatch, or of the table's other use.
    ///
    /// # Errors
    /// As [`Embedding::forward`].
    pub fn backward_add(&self, comm: &Comm, ids: &Array<'_>, grad_output: &Array<'_>, grad_weight: &mut ArrayMut<'_>) -> Result<()> {
        self.run_back(comm, ids, grad_output, grad_weight, sys::MDP_GRAD_ADD)
    }

    fn run_back(&self, comm: &Comm, ids: &Array<'_>, grad_output: &Array<'_>, grad_weight: &mut ArrayMut<'_>, flags: u64) -> Result<()> {
        let config = self.config()?;
        let (_inside, comm) = comm.enter();
        // SAFETY: as forward.
        check(unsafe { sys::mdp_tp_embedding_bwd(comm, &config, &ids.raw, &grad_output.raw, &grad_weight.raw, flags, ptr::null_mut()) })
    }

    /// The shape of what forward makes on this rank of ids of this shape. Local.
    ///
    /// # Errors
    /// INVALID (a sequence without dimensions), STATE in a forked child. Sizes that do not divide are refused by [`Embedding::forward`].
    pub fn output_shape(&self, comm: &Comm, ids: &[usize], features: usize) -> Result<Vec<usize>> {
        let (ranks, mut shape) = (comm.size()?, ids.to_vec());
        if self.flags & sys::MDP_TP_EMBEDDING_SEQUENCE != 0 {
            let none = || Error::new(Code::Invalid, "ids have no dimensions; a sequence is cut along the first".to_string());
            *shape.first_mut().ok_or_else(none)? /= ranks;
        }
        shape.push(features);
        Ok(shape)
    }
}

/// The cross-entropy of logits whose classes are cut over the ranks of a communicator, the same number on each; the same on all ranks. Targets are
/// `i64`, classes of the whole counted from 0. No rank ever has all classes' logits.
///
/// ```
/// use megadp::Comm;
/// use megadp::tp::{Array, ArrayMut, CrossEntropy};
/// # fn main() -> megadp::Result<()> {
/// let comm = Comm::builder().connect()?;
/// let columns = 4 / comm.size()?; // this rank's
/// let (logits, targets) = (vec![0f32; 2 * columns], [3i64, -100]);
/// let (logits, targets) = (Array::new(&logits, &[2, columns])?, Array::new(&targets, &[2])?);
/// let (mut losses, mut saved, mut grad) = ([0f32; 2], [0f32; 4], vec![0f32; 2 * columns]);
/// let loss = CrossEntropy::new().ignore_index(-100);
/// let mut to_saved = ArrayMut::new(&mut saved, &[2, 2])?;
/// loss.forward_saving(&comm, &logits, &targets, &mut ArrayMut::new(&mut losses, &[2])?, &mut to_saved)?;
/// assert!((losses[0] - 4f32.ln()).abs() < 1e-6 && losses[1] == 0.0);
/// let (saved, grad_losses) = (Array::new(&saved, &[2, 2])?, Array::new(&[1f32; 2], &[2])?);
/// loss.backward(&comm, &logits, &targets, &saved, &grad_losses, &mut ArrayMut::new(&mut grad, &[2, columns])?)?;
/// assert!(grad[..columns].iter().all(|grad| grad.abs() == 0.25 || *grad == -0.75));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CrossEntropy {
    classes: usize,
    ignore_index: Option<i64>,
    label_smoothing: f64,
    z_loss: f64,
    flags: u64,
}

impl CrossEntropy {
    /// Of all columns that the ranks have.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many classes there are; columns beyond are padding and do not count.
    pub fn classes(mut self, classes: usize) -> Self {
        self.classes = classes;
        self
    }

    /// A target that has neither loss nor gradient.
    pub fn ignore_index(mut self, target: i64) -> Self {
        self.ignore_index = Some(target);
        self
    }

    /// The target has probability 1 - `smoothing`, each other class smoothing / (classes - 1).
    pub fn label_smoothing(mut self, smoothing: f64) -> Self {
        self.label_smoothing = smoothing;
        self
    }

    /// Adds `factor` (log of the sum of exp(logits))².
    pub fn z_loss(mut self, factor: f64) -> Self {
        self.z_loss = factor;
        self
    }

    /// Compares targets over the ranks. It waits; for debugging.
    pub fn check_replicated(mut self) -> Self {
        self.flags |= sys::MDP_TP_CROSS_ENTROPY_CHECK_REPLICATED;
        self
    }

    fn config(&self) -> Result<sys::mdp_tp_cross_entropy_config> {
        let ignores = if self.ignore_index.is_some() { sys::MDP_TP_CROSS_ENTROPY_IGNORE } else { 0 };
        Ok(sys::mdp_tp_cross_entropy_config {
            classes: narrow(self.classes, "classes")?,
            ignore_index: self.ignore_index.unwrap_or(0),
            label_smoothing: self.label_smoothing,
            z_loss: self.z_loss,
            flags: self.flags | ignores,
            ..sys::mdp_tp_cross_entropy_config::new()
        })
    }

    /// `losses`, f32 and of the shape of `targets`, of this rank's columns of `logits`, whose last dimension they are. All ranks get the same.
    /// Collective, blocking.
    ///
    /// # Errors
    /// INVALID (shapes, dtypes, a target that is no class; with [`CrossEntropy::check_replicated`], on all ranks, targets that are not the same),
    /// DESYNC (other columns or settings on another rank), those of a lost communicator.
    pub fn forward(&self, comm: &Comm, logits: &Array<'_>, targets: &Array<'_>, losses: &mut ArrayMut<'_>) -> Result<()> {
        self.run(comm, logits, targets, losses, ptr::null())
    }

    /// The same, with what backward needs: `saved`, f32, has two numbers for each target, as its last dimension.
    ///
    /// # Errors
    /// As [`CrossEntropy::forward`].
    pub fn forward_saving(
        &self,
        comm: &Comm,
        logits: &Array<'_>,
        targets: &Array<'_>,
        losses: &mut ArrayMut<'_>,
        saved: &mut ArrayMut<'_>,
    ) -> Result<()> {
        self.run(comm, logits, targets, losses, &saved.raw)
    }

    fn run(
        &self,
        comm: &Comm,
        logits: &Array<'_>,
        targets: &Array<'_>,
        losses: &mut ArrayMut<'_>,
        saved: *const sys::mdp_tensor,
    ) -> Result<()> {
        let config = self.config()?;
        let (_inside, comm) = comm.enter();
        // SAFETY: a live handle, the communicator's only call; the struct and arrays live through it. What is written, `saved` too, is borrowed mutably.
        check(unsafe { sys::mdp_tp_cross_entropy_fwd(comm, &config, &logits.raw, &targets.raw, &losses.raw, saved, ptr::null_mut()) })
    }

    /// `grad_logits` becomes the gradient of `logits`, of the same shape and elements, from that of the losses. Any number of times. Local.
    ///
    /// # Errors
    /// As [`CrossEntropy::forward`].
    pub fn backward(
        &self,
        comm: &Comm,
        logits: &Array<'_>,
        targets: &Array<'_>,
        saved: &Array<'_>,
        grad_losses: &Array<'_>,
        grad_logits: &mut ArrayMut<'_>,
    ) -> Result<()> {
        self.run_back(comm, &logits.raw, targets, saved, grad_losses, &grad_logits.raw)
    }

    /// The same, where the gradient takes the place of the logits.
    ///
    /// # Errors
    /// As [`CrossEntropy::forward`].
    pub fn backward_in_place(
        &self,
        comm: &Comm,
        logits: &mut ArrayMut<'_>,
        targets: &Array<'_>,
        saved: &Array<'_>,
        grad_losses: &Array<'_>,
    ) -> Result<()> {
        self.run_back(comm, &logits.raw, targets, saved, grad_losses, &logits.raw)
    }

    fn run_back(
        &self,
        comm: &Comm,
        logits: &sys::mdp_tensor,
        targets: &Array<'_>,
        saved: &Array<'_>,
        grad_losses: &Array<'_>,
        to: &sys::mdp_tensor,
    ) -> Result<()> {
        let config = self.config()?;
        let (_inside, comm) = comm.enter();
        let (targets, saved, given) = (&targets.raw, &saved.raw, &grad_losses.raw);
        // SAFETY: a live handle, the communicator's only call; the struct and arrays live through it. What is written is borrowed mutably by the callers.
        check(unsafe { sys::mdp_tp_cross_entropy_bwd(comm, &config, logits, targets, saved, given, to, ptr::null_mut()) })
    }
}
