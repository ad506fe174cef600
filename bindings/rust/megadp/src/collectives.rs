// SPDX-License-Identifier: Apache-2.0
//! Collectives on the caller's arrays. Ranks are summed along a fixed balanced binary tree, in fp32 (f64 in f64, i64 wraps around, u8 stops
//! at 255), so results do not depend on timing.
use crate::comm::Comm;
use crate::element::{Element, tensor};
use crate::error::{Code, Error, Result, check, narrow};
use crate::request::Request;
use crate::sys;
use std::mem::ManuallyDrop;
use std::ptr;
use std::time::Duration;

/// How values of all ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Op {
    /// Their sum.
    Sum = sys::MDP_OP_SUM,
    /// Their mean; not for integers.
    Avg = sys::MDP_OP_AVG,
    /// The largest; NaN if one of them is.
    Max = sys::MDP_OP_MAX,
    /// The smallest; NaN if one of them is.
    Min = sys::MDP_OP_MIN,
}

#[derive(Clone, Copy)]
enum Call<'a> {
    AllReduce(Op),
    ReduceScatter(Op),
    AllGather,
    AllToAll,
    Broadcast(i32),
    ReduceScatterV(&'a [u64], Op),
    AllGatherV(&'a [u64]),
    AllToAllV(&'a [u64], &'a [u64]),
    Send(i32),
    Recv(i32),
    SendRecv(i32, i32),
}

impl Call<'_> {
    /// One count for each rank: C reads as many.
    fn check(self, ranks: usize) -> Result<()> {
        let lists: &[(&str, &[u64])] = match self {
            Call::ReduceScatterV(counts, _) | Call::AllGatherV(counts) => &[("counts", counts)],
            Call::AllToAllV(from_counts, to_counts) => &[("from_counts", from_counts), ("to_counts", to_counts)],
            _ => &[],
        };
        for (name, list) in lists {
            if list.len() != ranks {
                let text = format!("{name} has {} numbers; it has one for each of the {ranks} ranks", list.len());
                return Err(Error::new(Code::Invalid, text));
            }
        }
        Ok(())
    }
}

impl Comm {
    /// # Safety
    /// Both arrays stay alive and untouched until the request has finished.
    unsafe fn start<T: Element>(&self, call: Call, from: (*const T, usize), to: (*mut T, usize)) -> Result<Request> {
        call.check(self.size()?)?;
        let (from_shape, to_shape) = ([from.1 as i64], [to.1 as i64]);
        let from = tensor(from.0.cast_mut(), &from_shape, None);
        let to = tensor(to.0, &to_shape, None);
        let (_inside, comm) = self.enter();
        let mut out = ptr::null_mut();
        let none = ptr::null_mut();
        // SAFETY: a live handle, the communicator's only call; the structs live through it, the arrays as the caller promises.
        check(unsafe {
            match call {
                Call::AllReduce(op) => sys::mdp_all_reduce(comm, &from, &to, op as u32, none, &mut out),
                Call::ReduceScatter(op) => sys::mdp_reduce_scatter(comm, &from, &to, op as u32, none, &mut out),
                Call::AllGather => sys::mdp_all_gather(comm, &from, &to, none, &mut out),
                Call::AllToAll => sys::mdp_all_to_all(comm, &from, &to, none, &mut out),
                Call::Broadcast(root) => sys::mdp_broadcast(comm, &to, root, none, &mut out),
                Call::ReduceScatterV(counts, op) => sys::mdp_reduce_scatter_v(comm, &from, &to, counts.as_ptr(), op as u32, none, &mut out),
                Call::AllGatherV(counts) => sys::mdp_all_gather_v(comm, &from, &to, counts.as_ptr(), none, &mut out),
                Call::AllToAllV(from_counts, to_counts) => {
                    sys::mdp_all_to_all_v(comm, &from, from_counts.as_ptr(), &to, to_counts.as_ptr(), none, &mut out)
                }
                Call::Send(rank) => sys::mdp_send(comm, &from, rank, none, &mut out),
                Call::Recv(rank) => sys::mdp_recv(comm, &to, rank, none, &mut out),
                Call::SendRecv(to_rank, from_rank) => sys::mdp_send_recv(comm, &from, to_rank, &to, from_rank, none, &mut out),
            }
        })?;
        // SAFETY: just created, and ours.
        unsafe { Request::new(out, &self.tree) }
    }

    fn run<T: Element>(&self, call: Call, from: &[T], to: &mut [T]) -> Result<()> {
        // SAFETY: waited for, to the end, while both are borrowed.
        unsafe { self.start(call, (from.as_ptr(), from.len()), (to.as_mut_ptr(), to.len())) }?.wait_to_the_end(&self.handle)
    }

    fn run_in_place<T: Element>(&self, call: Call, data: &mut [T]) -> Result<()> {
        let to = (data.as_mut_ptr(), data.len());
        // SAFETY: waited for, to the end, while it is borrowed.
        unsafe { self.start(call, (to.0.cast_const(), to.1), to) }?.wait_to_the_end(&self.handle)
    }

    fn pend<T: Element>(&self, call: Call, from: Option<Vec<T>>, mut to: Vec<T>) -> Result<Pending<T>> {
        let target = (to.as_mut_ptr(), to.len());
        let source = from.as_ref().map_or((target.0.cast_const(), target.1), |from| (from.as_ptr(), from.len()));
        // SAFETY: Pending owns both, and gives them back or frees them only once the request has finished. Moving a Vec leaves its memory
        // where it is.
        let request = unsafe { self.start(call, source, target) }?;
        Ok(Pending { request, arrays: ManuallyDrop::new((from.unwrap_or_default(), to)) })
    }

    /// `data` = op over ranks of `data`. Collective, blocking.
    ///
    /// # Errors
    /// INVALID, STATE (forked child), DESYNC (a rank called something else), PEER, TIMEOUT, ABORTED; after the last four the tree is unusable.
    ///
    /// ```
    /// let comm = megadp::Comm::builder().connect()?;
    /// let mut losses = [0.5f32, 1.5];
    /// comm.all_reduce(&mut losses, megadp::Op::Avg)?;
    /// assert_eq!(losses, [0.5, 1.5]); // the mean over one rank
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn all_reduce<T: Element>(&self, data: &mut [T], op: Op) -> Result<()> {
        self.run_in_place(Call::AllReduce(op), data)
    }

    /// `from` has as many times the elements of `to` as there are ranks: `to` = op over ranks of their piece number "this rank". Collective,
    /// blocking.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn reduce_scatter<T: Element>(&self, from: &[T], to: &mut [T], op: Op) -> Result<()> {
        self.run(Call::ReduceScatter(op), from, to)
    }

    /// `to` has as many times the elements of `from` as there are ranks: the pieces of all ranks in rank order. Collective, blocking.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_gather<T: Element>(&self, from: &[T], to: &mut [T]) -> Result<()> {
        self.run(Call::AllGather, from, to)
    }

    /// Piece r of `from` becomes piece "this rank" of rank r's `to`; lengths are equal, and divisible by the number of ranks. Collective,
    /// blocking.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_to_all<T: Element>(&self, from: &[T], to: &mut [T]) -> Result<()> {
        self.run(Call::AllToAll, from, to)
    }

    /// `data` = rank `root`'s, on all ranks. Collective, blocking.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<()> {
        self.run_in_place(Call::Broadcast(narrow(root, "root")?), data)
    }

    /// [`Comm::reduce_scatter`] with pieces of different sizes: `counts[r]` elements for rank r, the same on all ranks. Collective, blocking.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn reduce_scatter_v<T: Element>(&self, from: &[T], to: &mut [T], counts: &[u64], op: Op) -> Result<()> {
        self.run(Call::ReduceScatterV(counts, op), from, to)
    }

    /// [`Comm::all_gather`] with pieces of different sizes: `counts[r]` elements of rank r, the same on all ranks. Collective, blocking.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_gather_v<T: Element>(&self, from: &[T], to: &mut [T], counts: &[u64]) -> Result<()> {
        self.run(Call::AllGatherV(counts), from, to)
    }

    /// [`Comm::all_to_all`] with pieces of different sizes: `from_counts[r]` elements go to rank r, `to_counts[r]` come from it. Collective,
    /// blocking.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn all_to_all_v<T: Element>(&self, from: &[T], from_counts: &[u64], to: &mut [T], to_counts: &[u64]) -> Result<()> {
        self.run(Call::AllToAllV(from_counts, to_counts), from, to)
    }

    /// Sends `data` to another rank, which receives as much of the same type; no other rank takes part. Blocking, until it is received.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn send<T: Element>(&self, data: &[T], rank: usize) -> Result<()> {
        self.run(Call::Send(narrow(rank, "rank")?), data, &mut [])
    }

    /// `data` = what another rank sends this one: the first that was not received yet. Blocking.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn recv<T: Element>(&self, data: &mut [T], rank: usize) -> Result<()> {
        self.run(Call::Recv(narrow(rank, "rank")?), &[], data)
    }

    /// Sends `from` to rank `to_rank` and receives `to` from rank `from_rank`, both at once; `None` leaves that half out. Blocking.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn send_recv<T: Element>(&self, from: &[T], to_rank: Option<usize>, to: &mut [T], from_rank: Option<usize>) -> Result<()> {
        let peer = |rank: Option<usize>, name| rank.map_or(Ok(-1), |rank| narrow(rank, name));
        self.run(Call::SendRecv(peer(to_rank, "to_rank")?, peer(from_rank, "from_rank")?), from, to)
    }

    /// [`Comm::all_reduce`] that goes on while the caller does something else. Collective, does not block.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`], here or when it is waited for.
    ///
    /// ```
    /// let comm = megadp::Comm::builder().connect()?;
    /// let pending = comm.start_all_reduce(vec![1i64, 2], megadp::Op::Sum)?;
    /// assert_eq!(pending.wait()?, [1, 2]);
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn start_all_reduce<T: Element>(&self, data: Vec<T>, op: Op) -> Result<Pending<T>> {
        self.pend(Call::AllReduce(op), None, data)
    }

    /// [`Comm::reduce_scatter`] into `to` that goes on while the caller does something else. Collective, does not block.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`], here or when it is waited for.
    pub fn start_reduce_scatter<T: Element>(&self, from: Vec<T>, to: Vec<T>, op: Op) -> Result<Pending<T>> {
        self.pend(Call::ReduceScatter(op), Some(from), to)
    }

    /// [`Comm::all_gather`] into `to` that goes on while the caller does something else. Collective, does not block.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`], here or when it is waited for.
    pub fn start_all_gather<T: Element>(&self, from: Vec<T>, to: Vec<T>) -> Result<Pending<T>> {
        self.pend(Call::AllGather, Some(from), to)
    }

    /// [`Comm::all_to_all`] into `to` that goes on while the caller does something else. Collective, does not block.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`], here or when it is waited for.
    pub fn start_all_to_all<T: Element>(&self, from: Vec<T>, to: Vec<T>) -> Result<Pending<T>> {
        self.pend(Call::AllToAll, Some(from), to)
    }

    /// [`Comm::broadcast`] that goes on while the caller does something else. Collective, does not block.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`], here or when it is waited for.
    pub fn start_broadcast<T: Element>(&self, data: Vec<T>, root: usize) -> Result<Pending<T>> {
        self.pend(Call::Broadcast(narrow(root, "root")?), None, data)
    }
}

/// A collective that is going on, with its arrays. Any thread. If it is dropped before it has finished, the operation goes on, and its arrays
/// are leaked: a drop does not wait, and the memory is still in use.
#[derive(Debug)]
pub struct Pending<T: Element> {
    request: Request,
    arrays: ManuallyDrop<(Vec<T>, Vec<T>)>,
}

impl<T: Element> Pending<T> {
    /// Waits, and gives the result.
    ///
    /// # Errors
    /// Those of the operation; the arrays are freed then. As [`Request::wait`]; the arrays of an operation that goes on are leaked.
    pub fn wait(mut self) -> Result<Vec<T>> {
        self.request.wait()?;
        Ok(std::mem::take(&mut self.arrays.1))
    }

    /// Whether it has finished. Does not block.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn test(&self) -> Result<bool> {
        self.request.test()
    }

    /// Waits for so long at most; says whether it has finished.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.request.wait_timeout(timeout)
    }
}

impl<T: Element> Drop for Pending<T> {
    fn drop(&mut self) {
        // A failed operation has finished too; one that cannot be asked about (in a forked child) has not.
        let unfinished = match self.request.test() {
            Ok(finished) => !finished,
            Err(error) => matches!(error.code, crate::Code::State | crate::Code::Invalid),
        };
        if !unfinished {
            // SAFETY: dropped once, here, and nobody uses them any more.
            unsafe { ManuallyDrop::drop(&mut self.arrays) };
        }
    }
}
