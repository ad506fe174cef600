// SPDX-License-Identifier: Apache-2.0
//! Operations that are still going on.
use crate::error::{Code, Error, Result, check, check_pending};
use crate::handle::{Owned, Tree};
use crate::sys;
use std::sync::Arc;
use std::time::Duration;

/// How long one wait inside of the library lasts at most, before the caller gets a word in.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// One pending operation. Local; any thread, also several at a time. Dropping it leaves the operation to itself, waits for nothing, and tells of
/// no failure.
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # let comm = megadp::Comm::builder().connect()?;
/// comm.start_barrier()?; // nobody would know when it ends
/// # Ok::<(), megadp::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "wait() tells how the operation ended; one that is dropped goes on alone, and is lost where the program ends before it"]
pub struct Request {
    handle: Owned<sys::mdp_request>,
    _tree: Arc<Tree>,
}

impl Request {
    /// # Safety
    /// A request that a call which succeeded has written.
    pub(crate) unsafe fn new(handle: *mut sys::mdp_request, tree: &Arc<Tree>) -> Result<Self> {
        // SAFETY: as above.
        unsafe { Owned::new(handle) }.map(|handle| Request { handle, _tree: tree.clone() })
    }

    /// Whether the operation has finished. Does not block.
    ///
    /// # Errors
    /// Those of the operation; asking again gives the same.
    pub fn test(&self) -> Result<bool> {
        // SAFETY: a live request; allowed from any thread.
        check_pending(unsafe { sys::mdp_request_test(self.handle.as_ptr()) })
    }

    /// Whether the operation has finished, well or not: unlike [`test`](Request::test) it tells of no failure, so that the next save still does
    /// (see [`SaveCheckpoint::start`](crate::SaveCheckpoint::start)). Does not block.
    ///
    /// # Errors
    /// STATE in a forked child.
    pub fn is_finished(&self) -> Result<bool> {
        // SAFETY: a live request; allowed from any thread.
        check_pending(unsafe { sys::mdp_request_peek(self.handle.as_ptr()) })
    }

    /// Waits until the operation has finished, or for so long, or until the communicator's [`interrupted`](crate::CommBuilder::interrupted) says
    /// so; says whether it has finished.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: a live request; allowed from any thread.
        check_pending(unsafe { sys::mdp_request_wait(self.handle.as_ptr(), ns) })
    }

    /// Waits until the operation has finished: at most for the communicator's timeout, then it has failed.
    ///
    /// # Errors
    /// Those of the operation; ABORTED if the communicator's [`interrupted`](crate::CommBuilder::interrupted) said so: then the operation goes
    /// on, and may be waited for again, unless [`Comm::failure`](crate::Comm::failure) tells of an abort.
    pub fn wait(&self) -> Result<()> {
        if self.wait_timeout(Duration::MAX)? {
            return Ok(());
        }
        Err(Error::new(Code::Aborted, "waiting for an operation was interrupted; it goes on"))
    }

    /// The same for an operation whose arrays are only borrowed: interrupted, it is aborted on all ranks, so that it ends.
    pub(crate) fn wait_to_the_end(&self, comm: &Owned<sys::mdp_comm>) -> Result<()> {
        while !self.wait_timeout(Duration::MAX)? {
            // SAFETY: a live handle; allowed from any thread.
            check(unsafe { sys::mdp_comm_abort(comm.as_ptr()) })?;
        }
        Ok(())
    }

    /// Waits as long as `go_on` says so, which is asked every 50 ms; says whether the operation has finished. For programs that look for a
    /// signal or a cancelled task meanwhile: after `false` the operation goes on, and may be waited for again.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait_while(&self, mut go_on: impl FnMut() -> bool) -> Result<bool> {
        loop {
            if self.wait_timeout(SLICE)? {
                return Ok(true);
            }
            if !go_on() {
                return Ok(false);
            }
        }
    }
}
