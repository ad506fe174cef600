// SPDX-License-Identifier: Apache-2.0
//! The world cut into tensor, context, expert, data and pipeline parallel groups.
use crate::comm::Comm;
use crate::error::{Code, Error, Result, check, narrow};
use crate::handle::{Inside, NotSync, Owned, Tree, Turn};
use crate::library::text;
use crate::sys;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::ops::BitOr;
use std::ptr;
use std::sync::Arc;

/// Axes of a grid, combined by `|`; on the dense grid unless [`Axes::EXPERT_GRID`] is among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axes(u32);

impl Axes {
    /// Tensor parallel.
    pub const TP: Axes = Axes(sys::MDP_AXIS_TP);
    /// Context parallel.
    pub const CP: Axes = Axes(sys::MDP_AXIS_CP);
    /// Expert parallel.
    pub const EP: Axes = Axes(sys::MDP_AXIS_EP);
    /// Data parallel.
    pub const DP: Axes = Axes(sys::MDP_AXIS_DP);
    /// Pipeline parallel.
    pub const PP: Axes = Axes(sys::MDP_AXIS_PP);
    /// The axes are those of the expert grid.
    pub const EXPERT_GRID: Axes = Axes(sys::MDP_AXIS_EXPERT_GRID);
}

impl BitOr for Axes {
    type Output = Axes;

    fn bitor(self, other: Axes) -> Axes {
        Axes(self.0 | other.0)
    }
}

/// Sizes of a grid; see [`Grid::builder`]. What is not said is 1; data parallelism gets what is left.
#[derive(Clone, Debug, Default)]
pub struct GridBuilder {
    raw: sys::mdp_grid_config,
    order: Option<String>,
}

// SAFETY: raw's pointer is NULL while it is in here.
unsafe impl Send for GridBuilder {}
// SAFETY: the same.
unsafe impl Sync for GridBuilder {}

impl GridBuilder {
    /// Tensor parallel size.
    pub fn tp(mut self, size: i32) -> Self {
        self.raw.tp = size;
        self
    }

    /// Context parallel size.
    pub fn cp(mut self, size: i32) -> Self {
        self.raw.cp = size;
        self
    }

    /// Expert parallel size.
    pub fn ep(mut self, size: i32) -> Self {
        self.raw.ep = size;
        self
    }

    /// Pipeline parallel size.
    pub fn pp(mut self, size: i32) -> Self {
        self.raw.pp = size;
        self
    }

    /// Tensor parallel size of experts; as that of dense layers unless said.
    pub fn expert_tp(mut self, size: i32) -> Self {
        self.raw.expert_tp = size;
        self
    }

    /// Optimizer instances: the dp x cp ranks in so many runs of neighbours, each with all of the optimizer's state; gradients are summed
    /// inside one, then across. 1 unless said.
    pub fn instances(mut self, count: i32) -> Self {
        self.raw.instances = count;
        self
    }

    /// Axes from fastest to slowest varying rank; "tp-cp-ep-dp-pp" unless said.
    pub fn order(mut self, order: impl Into<String>) -> Self {
        self.order = Some(order.into());
        self
    }

    /// Calls `with` with the C struct, which is valid during that call.
    pub(crate) fn with_raw<R>(&self, with: impl FnOnce(&sys::mdp_grid_config) -> Result<R>) -> Result<R> {
        let order = self.order.as_deref().map(CString::new).transpose();
        let order = order.map_err(|_| Error::new(Code::Invalid, format!("order is {:?}; it must not hold a NUL", self.order)))?;
        with(&sys::mdp_grid_config { order: order.as_ref().map_or(ptr::null(), |order| order.as_ptr()), ..self.raw })
    }

    /// Cuts the world. Collective over it, with equal values; blocking.
    ///
    /// # Errors
    /// INVALID (sizes that do not divide, order), DESYNC (values differ), STATE, those of a lost communicator.
    pub fn create(&self, world: &Comm) -> Result<Grid> {
        self.with_raw(|raw| {
            let (_inside, comm) = world.enter_alone();
            let mut out = ptr::null_mut();
            // SAFETY: a live handle, the grid's only call; the struct lives through it.
            check(unsafe { sys::mdp_grid_create(comm, raw, &mut out) })?;
            // SAFETY: just created, and ours.
            let handle = unsafe { Owned::new(out) }?;
            Ok(Grid { handle, tree: world.tree.clone(), turns: RefCell::default(), not_sync: NotSync::default() })
        })
    }

    /// All groups that the axes span in a world of this size, as JSON. Pure; any thread.
    ///
    /// # Errors
    /// INVALID.
    ///
    /// ```
    /// use megadp::{Axes, Grid};
    /// assert_eq!(Grid::builder().tp(2).groups_json(4, Axes::DP)?, "[[0,2],[1,3]]");
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn groups_json(&self, world: usize, axes: Axes) -> Result<String> {
        let world = narrow(world, "world")?;
        // SAFETY: text() hands over memory of that size.
        self.with_raw(|raw| text(|json, capacity, needed| unsafe { sys::mdp_grid_groups_json(raw, world, axes.0, json, capacity, needed) }))
    }
}

/// The world cut into parallel groups. Keeps the communicator alive.
#[derive(Debug)]
pub struct Grid {
    pub(crate) handle: Owned<sys::mdp_grid>,
    pub(crate) tree: Arc<Tree>,
    /// Of communicators that were asked for.
    turns: RefCell<HashMap<u32, Arc<Turn>>>,
    not_sync: NotSync,
}

/// Which ranks draw the same random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Random {
    /// All: of what is replicated over tensor-parallel ranks.
    Replicated = sys::MDP_RANDOM_REPLICATED,
    /// The ranks of a tensor-parallel group draw different ones: of what is cut over them.
    Tensor = sys::MDP_RANDOM_TENSOR,
    /// Those of an expert-parallel group, too: inside experts.
    Expert = sys::MDP_RANDOM_EXPERT,
}

/// Whose parameters a buffer has: a communicator's ranks, all of them data parallel, or those of a grid.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Ranks<'a> {
    /// Data parallelism alone.
    Comm(&'a Comm),
    /// As the grid cuts them.
    Grid(&'a Grid),
}

impl<'a> From<&'a Comm> for Ranks<'a> {
    fn from(comm: &'a Comm) -> Self {
        Ranks::Comm(comm)
    }
}

impl<'a> From<&'a Grid> for Ranks<'a> {
    fn from(grid: &'a Grid) -> Self {
        Ranks::Grid(grid)
    }
}

impl Ranks<'_> {
    pub(crate) fn tree(&self) -> &Arc<Tree> {
        match self {
            Ranks::Comm(comm) => &comm.tree,
            Ranks::Grid(grid) => &grid.tree,
        }
    }

    #[cfg(feature = "candle")]
    pub(crate) fn is_tensor_parallel(&self) -> Result<bool> {
        match self {
            Ranks::Comm(_) => Ok(false),
            Ranks::Grid(grid) => Ok(grid.coords(Axes::TP)?.1 > 1),
        }
    }

    /// For a call that is made one at a time in a context.
    pub(crate) fn enter_alone(&self) -> (Inside<'_>, Option<Inside<'_>>) {
        let turn = match self {
            Ranks::Comm(comm) => Some(&comm.turn),
            Ranks::Grid(_) => None, // it is one value, which one thread has
        };
        (self.tree().enter_alone(), turn.map(|turn| turn.enter()))
    }

    /// The handles as mdp_buffer_register takes them: one of the two, the other NULL.
    pub(crate) fn as_ptrs(&self) -> (*mut sys::mdp_comm, *mut sys::mdp_grid) {
        match self {
            Ranks::Comm(comm) => (comm.handle.as_ptr(), ptr::null_mut()),
            Ranks::Grid(grid) => (ptr::null_mut(), grid.handle.as_ptr()),
        }
    }
}

impl Grid {
    /// Sizes other than data parallelism alone.
    ///
    /// ```
    /// use megadp::{Axes, Comm, Grid};
    /// let grid = Grid::builder().tp(1).order("tp-dp").create(&Comm::builder().connect()?)?;
    /// assert_eq!(grid.coords(Axes::TP | Axes::DP)?, (0, 1));
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn builder() -> GridBuilder {
        GridBuilder::default()
    }

    /// All ranks data parallel: for its groups and coordinates, since [`BufferBuilder::register`](crate::BufferBuilder::register) takes the
    /// communicator as well. Collective over the world, blocking.
    ///
    /// # Errors
    /// As [`GridBuilder::create`].
    pub fn data_parallel(world: &Comm) -> Result<Grid> {
        GridBuilder::default().create(world)
    }

    /// The C handle, for calls through [`sys`]: it stays this value's, and the thread rules of the header are the caller's to keep.
    pub fn as_raw(&self) -> *mut sys::mdp_grid {
        self.handle.as_ptr()
    }

    /// This rank's index in the group that the axes span together, and the group's size. Local.
    ///
    /// # Errors
    /// INVALID (EP on the dense grid, CP on the expert grid), STATE (forked child).
    pub fn coords(&self, axes: Axes) -> Result<(usize, usize)> {
        let (mut index, mut size) = (0, 0);
        // SAFETY: a live handle, the grid's only call.
        check(unsafe { sys::mdp_grid_coords(self.handle.as_ptr(), axes.0, &mut index, &mut size) })?;
        Ok((narrow(index, "index")?, narrow(size, "size")?))
    }

    /// The seed of this rank's random numbers, for dropout and initial values, of one that is the same on all ranks. Local.
    ///
    /// # Errors
    /// STATE (forked child).
    pub fn seed(&self, seed: u64, random: Random) -> Result<u64> {
        let mut found = 0;
        // SAFETY: a live handle, the grid's only call.
        check(unsafe { sys::mdp_grid_seed(self.handle.as_ptr(), seed, random as u32, &mut found) })?;
        Ok(found)
    }

    /// The communicator of that group; asking again gives another value of the same one. Collective over the whole world the first time;
    /// blocking.
    ///
    /// # Errors
    /// As [`Grid::coords`], and those of a lost communicator.
    pub fn comm(&self, axes: Axes) -> Result<Comm> {
        let turn = self.turns.borrow_mut().entry(axes.0).or_default().clone();
        let _inside = self.tree.enter_alone();
        let mut out = ptr::null_mut();
        // SAFETY: a live handle, the grid's only call.
        check(unsafe { sys::mdp_grid_comm(self.handle.as_ptr(), axes.0, &mut out) })?;
        // SAFETY: just created, and ours.
        Ok(Comm::taking(unsafe { Owned::new(out) }?, self.tree.clone(), turn))
    }
}
