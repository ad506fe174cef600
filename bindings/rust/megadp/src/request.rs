// SPDX-License-Identifier: Apache-2.0
//! Operations that are still going on.
use crate::error::{Result, check_pending};
use crate::handle::Owned;
use crate::sys;
use std::time::Duration;

/// How long one wait inside of the library lasts at most, before the caller gets a word in.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// One pending operation. Local; any thread, also several at a time. Dropping it leaves the operation to itself.
#[derive(Debug)]
pub struct Request {
    handle: Owned<sys::mdp_request>,
}

impl Request {
    /// # Safety
    /// A request that a call which succeeded has written.
    pub(crate) unsafe fn new(handle: *mut sys::mdp_request) -> Result<Self> {
        // SAFETY: as above.
        unsafe { Owned::new(handle) }.map(|handle| Request { handle })
    }

    /// Whether the operation has finished. Does not block.
    ///
    /// # Errors
    /// Those of the operation; asking again gives the same.
    pub fn test(&self) -> Result<bool> {
        // SAFETY: a live request; allowed from any thread.
        check_pending(unsafe { sys::mdp_request_test(self.handle.as_ptr()) })
    }

    /// Waits until the operation has finished, or for so long; says whether it has finished.
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
    /// Those of the operation.
    pub fn wait(&self) -> Result<()> {
        self.wait_while(|| true).map(|_| ())
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
