// SPDX-License-Identifier: Apache-2.0
//! Communicators: this rank in one ordered group of ranks.
use crate::bootstrap::{Gather, Meeting};
use crate::error::{Error, Result, check, narrow};
use crate::handle::{Asked, Inside, NotSync, Owned, Tree, Turn};
use crate::request::Request;
use crate::sys;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Where arrays live and who moves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Backend {
    /// The host, unless asked for something else.
    #[default]
    Auto = sys::MDP_BACKEND_AUTO,
    /// Memory of the host.
    Host = sys::MDP_BACKEND_HOST,
    /// An NVIDIA GPU.
    Cuda = sys::MDP_BACKEND_CUDA,
}

/// A fresh name and secret under which ranks find each other once. Made by one rank and carried to the others by the caller; who has it may
/// join, so it is not printed by `Debug`.
#[derive(Clone, Copy)]
pub struct UniqueId(sys::mdp_unique_id);

impl UniqueId {
    /// Its size in bytes.
    pub const SIZE: usize = 128;

    /// A new one. Between nodes, rank 0's address is taken from the environment variable MEGADP_ROOT (host:port). Local, any thread.
    ///
    /// # Errors
    /// INVALID (MEGADP_ROOT makes no sense), SYSTEM.
    ///
    /// ```
    /// let id = megadp::UniqueId::create()?;
    /// let comm = megadp::Comm::builder().id(&id, 0, 1).connect()?;
    /// assert_eq!((comm.rank()?, comm.size()?), (0, 1));
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn create() -> Result<Self> {
        let mut id = sys::mdp_unique_id::new();
        // SAFETY: id is ours.
        check(unsafe { sys::mdp_unique_id_create(&mut id) })?;
        Ok(UniqueId(id))
    }

    /// Its bytes, to be sent to other ranks.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        self.0.bytes
    }

    /// One that another rank made.
    pub fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        UniqueId(sys::mdp_unique_id { bytes })
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

/// How to join; see [`Comm::builder`].
#[derive(Clone, Default)]
pub struct CommBuilder {
    raw: sys::mdp_comm_config,
    id: Option<(UniqueId, usize, usize)>,
    bootstrap: Option<(Arc<Gather>, usize, usize)>,
    interrupted: Option<Arc<Asked>>,
    expected: usize,
}

// SAFETY: the pointers of `raw` are null until connect() makes a copy of it.
unsafe impl Send for CommBuilder {}
// SAFETY: as above; a shared builder is only read.
unsafe impl Sync for CommBuilder {}

impl fmt::Debug for CommBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommBuilder").field("raw", &self.raw).field("id", &self.id).field("bootstrap", &self.bootstrap.is_some()).finish()
    }
}

impl CommBuilder {
    /// Which backend; [`Backend::Auto`] unless said.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.raw.backend = backend as u32;
        self
    }

    /// How long any collective call waits for another rank; five minutes unless said.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.raw.timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).max(1);
        self
    }

    /// Meets the other ranks by an id, as number `rank` of `size`, and not by the launcher's environment.
    pub fn id(mut self, id: &UniqueId, rank: usize, size: usize) -> Self {
        self.id = Some((*id, rank, size));
        self
    }

    /// Meets the other ranks by a closure that gathers bytes, as number `rank` of `size`: given this rank's bytes, it returns those of all
    /// ranks, in their order, or `None` if it cannot. It is called twice, inside [`connect`](Self::connect) alone, on a thread of its own,
    /// and may block: at the timeout it is left to itself. What it carries holds a secret: whoever reads it may join.
    pub fn bootstrap<F>(mut self, rank: usize, size: usize, gather: F) -> Self
    where
        F: Fn(&[u8]) -> Option<Vec<Vec<u8>>> + Send + Sync + 'static,
    {
        self.bootstrap = Some((Arc::new(gather), rank, size));
        self
    }

    /// A closure that is asked about every 50 ms, on the calling thread, while a call on this communicator, or on what is made from it, waits:
    /// for a flag that a signal handler or another task sets. After `true` the call ends: with ABORTED, which loses the communicator if the
    /// call is collective, while a local one may be repeated; or, if it waits for a [`Request`], as at a timeout. The closure must not use the
    /// communicator; one that panics says `true`.
    pub fn interrupted<F>(mut self, asked: F) -> Self
    where
        F: Fn() -> bool + Send + Sync + 'static,
    {
        self.interrupted = Some(Arc::new(Asked(Box::new(asked))));
        self
    }

    /// The number of ranks that the launcher must say: joining fails where it says another.
    pub fn expect_size(mut self, size: usize) -> Self {
        self.expected = size;
        self
    }

    /// With CUDA: which of the devices that this process sees. Unless said, this rank's number on its node, modulo their number.
    pub fn device(mut self, device: u16) -> Self {
        self.raw.device = i32::from(device);
        self.raw.flags |= sys::MDP_COMM_SET_DEVICE;
        self
    }

    /// With CUDA: sums in the order of the CPU, so the same bits on every run and machine; slower.
    pub fn exact_sums(mut self) -> Self {
        self.raw.flags |= sys::MDP_COMM_EXACT_SUMS;
        self
    }

    /// Data of the host goes between nodes over sockets on which both sides prove that they know the job's secret, and not over UCX, whose port
    /// anybody who reaches it can use to abort the rank. The same on all ranks; the environment variable MEGADP_TRANSPORT must not say ucx.
    pub fn sockets(mut self) -> Self {
        self.raw.flags |= sys::MDP_COMM_SOCKETS;
        self
    }

    /// How many threads work on a long array of the host together, while the program waits inside the library. Unless said, this rank's share
    /// of the processors. Results do not depend on it, and ranks may differ.
    pub fn host_threads(mut self, threads: u16) -> Self {
        self.raw.host_threads = i32::from(threads);
        self
    }

    /// The threads of the host help also while the program computes.
    pub fn threads_always(mut self) -> Self {
        self.raw.flags |= sys::MDP_COMM_THREADS_ALWAYS;
        self
    }

    /// Joins. Collective over the ranks of the job; blocks, at most for the timeout.
    ///
    /// # Errors
    /// INVALID (a value; an environment that is partial, contradictory or unknown), UNSUPPORTED (the backend), TIMEOUT (names the ranks that
    /// did not come), PEER, DESYNC, STATE, SYSTEM, MEMORY.
    pub fn connect(&self) -> Result<Comm> {
        let mut raw = self.raw;
        raw.size = narrow(self.expected, "expect_size")?;
        if let Some((_, rank, size)) = self.id {
            raw.rank = narrow(rank, "rank")?;
            raw.size = narrow(size, "size")?;
        }
        let meeting = self.bootstrap.as_ref().map(|(gather, _, size)| Meeting::new(Arc::clone(gather), *size));
        let bootstrap = meeting.as_ref().map(Meeting::raw);
        if let (Some(bootstrap), Some((_, rank, size))) = (&bootstrap, &self.bootstrap) {
            raw.rank = narrow(*rank, "rank")?;
            raw.size = narrow(*size, "size")?;
            raw.bootstrap = bootstrap;
        }
        if let Some(asked) = &self.interrupted {
            (raw.interrupted, raw.interrupted_context) = asked.raw();
        }
        let id = self.id.as_ref().map_or(ptr::null(), |(id, _, _)| &raw const id.0);
        let mut out = ptr::null_mut();
        // SAFETY: all pointers, that of the bootstrap too, are to values that live to the end of the call.
        check(unsafe { sys::mdp_comm_create(&raw, id, &mut out) })?;
        // SAFETY: just created, and ours.
        Ok(Comm::new(unsafe { Owned::new(out) }?, Arc::new(Tree::asking(self.interrupted.clone()))))
    }
}

/// This rank in one ordered group of ranks. The world is made by [`Comm::builder`], parts of it by [`Comm::split`] and
/// [`Grid::comm`](crate::Grid::comm); all of them, and what is made from them, are one tree with one failure.
///
/// After a drop nothing can be called any more, which the compiler sees:
///
/// ```compile_fail,E0382
/// let comm = megadp::Comm::builder().connect()?;
/// drop(comm);
/// comm.barrier()?;
/// # Ok::<(), megadp::Error>(())
/// ```
///
/// Dropping it is local and waits for nobody; the tree ends with the last value that was made from it, and the other ranks are told that this
/// one has left.
#[derive(Debug)]
pub struct Comm {
    pub(crate) handle: Arc<Owned<sys::mdp_comm>>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) turn: Arc<Turn>,
    not_sync: NotSync,
}

impl Comm {
    pub(crate) fn new(handle: Owned<sys::mdp_comm>, tree: Arc<Tree>) -> Self {
        Comm::taking(handle, tree, Arc::default())
    }

    /// One that takes turns with other values of the same communicator.
    pub(crate) fn taking(handle: Owned<sys::mdp_comm>, tree: Arc<Tree>, turn: Arc<Turn>) -> Self {
        Comm { handle: Arc::new(handle), tree, turn, not_sync: NotSync::default() }
    }

    /// Joins the ranks of one job into a communicator, the world: with the values given, or else from the launcher's environment; a single
    /// rank if no launcher is recognised. Ranks may be processes or threads.
    ///
    /// ```
    /// use std::time::Duration;
    /// let comm = megadp::Comm::builder().timeout(Duration::from_secs(60)).connect()?;
    /// println!("rank {} of {}", comm.rank()?, comm.size()?);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn builder() -> CommBuilder {
        CommBuilder::default()
    }

    pub(crate) fn enter(&self) -> (Inside<'_>, *mut sys::mdp_comm) {
        (self.turn.enter(), self.handle.as_ptr())
    }

    /// For a call that is made one at a time in a context.
    pub(crate) fn enter_alone(&self) -> ((Inside<'_>, Inside<'_>), *mut sys::mdp_comm) {
        ((self.tree.enter_alone(), self.turn.enter()), self.handle.as_ptr())
    }

    /// The same communicator as another value, that may be used on another thread: calls on both take turns.
    #[cfg(feature = "candle")]
    pub(crate) fn same(&self) -> Self {
        Comm { handle: self.handle.clone(), tree: self.tree.clone(), turn: self.turn.clone(), not_sync: NotSync::default() }
    }

    /// The C handle, for calls through [`sys`]: it stays this value's, and the thread rules of the header are the caller's to keep.
    pub fn as_raw(&self) -> *mut sys::mdp_comm {
        self.handle.as_ptr()
    }

    fn number(answer: i32) -> Result<usize> {
        // -1 leaves its reason where a status would.
        usize::try_from(answer).map_err(|_| Error::last(sys::MDP_E_STATE))
    }

    /// This rank, from 0. Local.
    ///
    /// # Errors
    /// STATE in a forked child.
    pub fn rank(&self) -> Result<usize> {
        // SAFETY: a live handle; allowed from any thread.
        Self::number(unsafe { sys::mdp_comm_rank(self.handle.as_ptr()) })
    }

    /// The number of ranks. Local.
    ///
    /// # Errors
    /// STATE in a forked child.
    pub fn size(&self) -> Result<usize> {
        // SAFETY: a live handle; allowed from any thread.
        Self::number(unsafe { sys::mdp_comm_size(self.handle.as_ptr()) })
    }

    /// The number in the world, the communicator that was not split, of a rank of this one: the number that every [`Error`] has. Local.
    ///
    /// # Errors
    /// INVALID (no such rank), STATE in a forked child.
    ///
    /// ```
    /// let comm = megadp::Comm::builder().connect()?;
    /// assert_eq!(comm.world_rank(0)?, 0);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn world_rank(&self, rank: usize) -> Result<usize> {
        let rank = narrow(rank, "rank")?;
        // SAFETY: a live handle; allowed from any thread.
        Self::number(unsafe { sys::mdp_comm_world_rank(self.handle.as_ptr(), rank) })
    }

    /// Cuts the communicator: ranks that give the same color form a new one, ordered by key, then by rank; `None` joins none. As
    /// MPI_Comm_split. Collective, blocking.
    ///
    /// # Errors
    /// INVALID, STATE (forked child), those of a lost communicator.
    ///
    /// ```
    /// let comm = megadp::Comm::builder().connect()?;
    /// assert_eq!(comm.split(Some(7), 0)?.unwrap().size()?, 1);
    /// assert!(comm.split(None, 0)?.is_none());
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Comm>> {
        let color = color.map_or(Ok(-1), |color| narrow(color, "color"))?;
        let (_inside, comm) = self.enter_alone();
        let mut out = ptr::null_mut();
        // SAFETY: a live handle, the communicator's only call.
        check(unsafe { sys::mdp_comm_split(comm, color, key, &mut out) })?;
        if out.is_null() {
            return Ok(None);
        }
        // SAFETY: just created, and ours.
        Ok(Some(Comm::new(unsafe { Owned::new(out) }?, self.tree.clone())))
    }

    /// Returns when all ranks have called it, and all collectives this rank put on the communicator before have finished.
    /// Collective, blocking.
    ///
    /// # Errors
    /// Those of a lost communicator.
    pub fn barrier(&self) -> Result<()> {
        self.start_barrier()?.wait_to_the_end(&self.handle)
    }

    /// [`Comm::barrier`] that goes on while the caller does something else. Collective, does not block.
    ///
    /// # Errors
    /// As [`Comm::barrier`], here or when it is waited for.
    ///
    /// ```
    /// let comm = megadp::Comm::builder().connect()?;
    /// let all_here = comm.start_barrier()?;
    /// let mut looked = 0;
    /// while !all_here.wait_while(|| { looked += 1; false })? {} // between slices: a signal, a cancelled task
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn start_barrier(&self) -> Result<Request> {
        let (_inside, comm) = self.enter();
        let mut out = ptr::null_mut();
        // SAFETY: a live handle, the communicator's only call.
        check(unsafe { sys::mdp_barrier(comm, &mut out) })?;
        // SAFETY: just created, and ours.
        unsafe { Request::new(out, &self.tree) }
    }

    /// The failure that made this tree unusable: the first one, on whatever call or rank it was noticed. Local.
    ///
    /// # Errors
    /// STATE (forked child).
    pub fn failure(&self) -> Result<Option<Error>> {
        failure(&self.handle)
    }

    /// What may abort this tree from any thread.
    pub fn aborter(&self) -> Aborter {
        Aborter { handle: self.handle.clone() }
    }

    /// Readable, for poll or an event loop, while a request of this tree has finished that nobody has seen finished; test the pending ones
    /// then. Only requests made after the first call of this count. Never to be read. Local.
    ///
    /// # Errors
    /// STATE (forked child), SYSTEM.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>> {
        let (_inside, comm) = self.enter();
        let mut fd = -1;
        // SAFETY: a live handle, the communicator's only call.
        check(unsafe { sys::mdp_comm_event_fd(comm, &mut fd) })?;
        // SAFETY: open until the tree's last handle is gone, of which self has one.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

fn failure(handle: &Owned<sys::mdp_comm>) -> Result<Option<Error>> {
    let mut info = sys::mdp_error_info::new();
    // SAFETY: a live handle; allowed from any thread at any time.
    check(unsafe { sys::mdp_comm_error_info(handle.as_ptr(), &mut info) })?;
    Ok(Error::from_kept(&info))
}

/// Makes a communicator tree unusable on all ranks: for a rank that cannot go on and would leave the others waiting. May be cloned and sent to
/// any thread, and used there while another one is inside of a call. Keeps the tree alive.
///
/// ```
/// let comm = megadp::Comm::builder().connect()?;
/// let aborter = comm.aborter();
/// std::thread::spawn(move || aborter.abort()).join().unwrap()?;
/// assert_eq!(comm.barrier().unwrap_err().code, megadp::Code::Aborted);
/// # Ok::<(), megadp::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Aborter {
    handle: Arc<Owned<sys::mdp_comm>>,
}

impl Aborter {
    /// Pending and later calls end with ABORTED on all ranks, naming this rank. Does nothing after an earlier failure, and does not block.
    ///
    /// # Errors
    /// STATE (forked child).
    pub fn abort(&self) -> Result<()> {
        // SAFETY: a live handle; allowed from any thread at any time.
        check(unsafe { sys::mdp_comm_abort(self.handle.as_ptr()) })
    }

    /// As [`Comm::failure`], from any thread.
    ///
    /// # Errors
    /// STATE (forked child).
    pub fn failure(&self) -> Result<Option<Error>> {
        failure(&self.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_the_headers() {
        let builder = Comm::builder();
        assert_eq!(builder.raw.flags, 0);
        assert_eq!(builder.clone().device(0).raw.flags, sys::MDP_COMM_SET_DEVICE);
        assert_eq!(builder.clone().exact_sums().raw.flags, sys::MDP_COMM_EXACT_SUMS);
        assert_eq!(builder.clone().sockets().raw.flags, sys::MDP_COMM_SOCKETS);
        assert_eq!(builder.clone().threads_always().raw.flags, sys::MDP_COMM_THREADS_ALWAYS);
        assert_eq!(builder.clone().host_threads(u16::MAX).connect().unwrap_err().code, crate::Code::Invalid);
        assert_eq!(builder.exact_sums().sockets().host_threads(1).connect().unwrap().size().unwrap(), 1);
    }
}
