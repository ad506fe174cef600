// SPDX-License-Identifier: Apache-2.0
//! Descriptions of parameters.
use crate::element::DType;
use crate::error::{Code, Error, Result, narrow};
use crate::sys;
use std::ffi::CString;

/// How tensor-parallel ranks hold a parameter; see [`Param::placed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placed {
    /// As [`Param::replicated`].
    Replicated,
    /// As [`Param::partial_sum`].
    PartialSum,
    /// As [`Param::partial_mean`].
    PartialMean,
    /// As [`Param::sharded`].
    Sharded {
        /// The dimension that is cut.
        dim: usize,
        /// How many pieces each rank has.
        pieces: usize,
    },
}

/// One parameter of the model, to be registered. f32, dense, used once a step, unless said otherwise.
///
/// ```
/// use megadp::{DType, Param};
/// let embedding = Param::new("embedding", &[50257, 768]).dtype(DType::Bf16).tie("words"); // a copy on the last pipeline stage too
/// let norm = Param::new("norm.weight", &[768]).param_group(1); // a group without weight decay
/// # let _ = (embedding, norm);
/// ```
#[derive(Clone, Debug)]
pub struct Param {
    name: String,
    shape: Vec<usize>,
    uses_per_step: usize,
    shard_dim: usize,
    shard_stride: usize,
    param_group: usize,
    tie: Option<String>,
    raw: sys::mdp_param,
}

// SAFETY: raw's pointers are NULL while it is in here.
unsafe impl Send for Param {}
// SAFETY: the same.
unsafe impl Sync for Param {}

impl Param {
    /// A parameter of that shape. The name is unique and has at most 255 bytes; up to 16 dimensions, sizes may be 0.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        let raw = sys::mdp_param { dtype: sys::MDP_DTYPE_F32, ..sys::mdp_param::new() };
        Param { name: name.into(), shape: shape.to_vec(), uses_per_step: 1, shard_dim: 0, shard_stride: 1, param_group: 0, tie: None, raw }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// f32, bf16 or f16.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.raw.dtype = dtype as u32;
        self
    }

    /// How many gradients make it ready in a microbatch: for parameters that are used several times.
    pub fn uses_per_step(mut self, uses: usize) -> Self {
        self.uses_per_step = uses;
        self
    }

    /// It belongs to an expert.
    pub fn expert(mut self) -> Self {
        self.raw.param_class = sys::MDP_PARAM_CLASS_EXPERT;
        self
    }

    /// The tensor-parallel ranks hold the same: counted once in the norm.
    pub fn replicated(mut self) -> Self {
        self.raw.placement = sys::MDP_PLACEMENT_REPLICATED;
        self
    }

    /// The tensor-parallel ranks hold the same, but each has a part of the gradient: these are summed.
    pub fn partial_sum(mut self) -> Self {
        self.raw.placement = sys::MDP_PLACEMENT_PARTIAL_SUM;
        self
    }

    /// As [`partial_sum`](Self::partial_sum), but averaged.
    pub fn partial_mean(mut self) -> Self {
        self.raw.placement = sys::MDP_PLACEMENT_PARTIAL_MEAN;
        self
    }

    /// Each tensor-parallel rank holds its own part, of so many pieces, cut along a dimension.
    pub fn sharded(mut self, dim: usize, pieces: usize) -> Self {
        self.raw.placement = sys::MDP_PLACEMENT_SHARDED;
        (self.shard_dim, self.shard_stride) = (dim, pieces);
        self
    }

    /// The tensor-parallel ranks hold it so: what [`tp::Linear::weight_placed`](crate::tp::Linear::weight_placed) and its like tell.
    pub fn placed(self, placed: Placed) -> Self {
        match placed {
            Placed::Replicated => self.replicated(),
            Placed::PartialSum => self.partial_sum(),
            Placed::PartialMean => self.partial_mean(),
            Placed::Sharded { dim, pieces } => self.sharded(dim, pieces),
        }
    }

    /// Index of its group among the optimizer's [`ParamGroup`](crate::ParamGroup)s.
    pub fn param_group(mut self, group: usize) -> Self {
        self.param_group = group;
        self
    }

    /// It is not trained: the library keeps neither it nor a gradient.
    pub fn frozen(mut self) -> Self {
        self.raw.flags |= sys::MDP_PARAM_FROZEN;
        self
    }

    /// It gets a bucket to itself.
    pub fn own_bucket(mut self) -> Self {
        self.raw.flags |= sys::MDP_PARAM_OWN_BUCKET;
        self
    }

    /// Parameters are used in ascending order of this, equal ones as registered; 0 unless said. [`Buffer::use_order`](crate::Buffer::use_order)
    /// tells it.
    pub fn use_order(mut self, order: i32) -> Self {
        self.raw.use_order = order;
        self
    }

    /// [`Sharding::Zero1`](crate::Sharding::Zero1) or [`Sharding::Whole`](crate::Sharding::Whole), in a buffer of the one or the other, which
    /// it is as unless said.
    pub fn sharding(mut self, sharding: crate::Sharding) -> Self {
        self.raw.sharding = sharding as u32;
        self
    }

    /// With [`Sharding::Whole`](crate::Sharding::Whole): what its update costs, in any unit, by which owners are balanced; its elements unless
    /// said.
    pub fn cost(mut self, cost: f64) -> Self {
        self.raw.cost = cost;
        self
    }

    /// Copies on other pipeline stages have the same tie: their gradients are added up.
    pub fn tie(mut self, tie: impl Into<String>) -> Self {
        self.tie = Some(tie.into());
        self
    }

    /// Whether this is the same array, trained, and with one gradient in a microbatch.
    #[cfg(feature = "candle")]
    pub(crate) fn says_only_how(&self, of: &Param) -> bool {
        let once = self.uses_per_step == 1 && self.raw.flags & sys::MDP_PARAM_FROZEN == 0;
        once && self.name == of.name && self.shape == of.shape && self.raw.dtype == of.raw.dtype
    }

    /// How an array of this placement lies in a checkpoint; name and memory are the caller's to say.
    pub(crate) fn checkpoint_tensor(&self) -> Result<sys::mdp_checkpoint_tensor> {
        let (shard_dim, shard_stride) = self.raw_shards()?;
        Ok(sys::mdp_checkpoint_tensor { placement: self.raw.placement, shard_dim, shard_stride, ..sys::mdp_checkpoint_tensor::new() })
    }

    fn raw_shards(&self) -> Result<(i32, i32)> {
        let is_sharded = self.raw.placement == sys::MDP_PLACEMENT_SHARDED;
        Ok((narrow(self.shard_dim, "the dimension that is cut")?, if is_sharded { narrow(self.shard_stride, "pieces")? } else { 0 }))
    }
}

/// The C structs of parameters, and what they point to.
pub(crate) struct RawParams {
    raw: Vec<sys::mdp_param>,
    shapes: Vec<Vec<i64>>,
    _names: Vec<CString>,
}

impl RawParams {
    pub(crate) fn new(params: &[Param]) -> Result<Self> {
        let mut all = RawParams { raw: Vec::new(), shapes: Vec::new(), _names: Vec::new() };
        for (index, param) in params.iter().enumerate() {
            all.add(param).map_err(|error| error.about_param(index))?;
        }
        Ok(all)
    }

    fn add(&mut self, param: &Param) -> Result<()> {
        let name = CString::new(param.name.as_str())
            .map_err(|_| Error::new(Code::Invalid, format!("the name {:?} holds a NUL; names are text", param.name)))?;
        let tie = param
            .tie
            .as_deref()
            .map(CString::new)
            .transpose()
            .map_err(|_| Error::new(Code::Invalid, format!("the tie {:?} holds a NUL; ties are text", param.tie)))?;
        let shape = param.shape.iter().map(|&size| narrow(size, "a size")).collect::<Result<Vec<i64>>>()?;
        let (shard_dim, shard_stride) = param.raw_shards()?;
        self.raw.push(sys::mdp_param {
            name: name.as_ptr(),
            shape: shape.as_ptr(),
            ndim: narrow(shape.len(), "the number of dimensions")?,
            uses_per_step: narrow(param.uses_per_step, "uses_per_step")?,
            shard_dim,
            shard_stride,
            param_group: narrow(param.param_group, "param_group")?,
            tie: tie.as_ref().map_or(std::ptr::null(), |tie| tie.as_ptr()),
            ..param.raw
        });
        // Moving these leaves what they hold where it is.
        self.shapes.push(shape);
        self._names.extend([Some(name), tie].into_iter().flatten());
        Ok(())
    }

    pub(crate) fn as_ptr(&self) -> *const sys::mdp_param {
        self.raw.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.raw.len()
    }

    /// For each parameter: shape, uses per step, frozen.
    pub(crate) fn into_facts(self) -> impl Iterator<Item = (Vec<i64>, usize, bool)> {
        let facts = self.raw.into_iter().map(|raw| (raw.uses_per_step.max(1) as usize, raw.flags & sys::MDP_PARAM_FROZEN != 0));
        self.shapes.into_iter().zip(facts).map(|(shape, (uses, frozen))| (shape, uses, frozen))
    }
}
