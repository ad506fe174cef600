// SPDX-License-Identifier: Apache-2.0
//! One rank's parameters for all.
use crate::buffer::Buffer;
use crate::error::{Code, Result, check, narrow};
use crate::request::Request;
use crate::sys;
use std::cell::RefCell;
use std::ptr;
use std::time::Duration;

impl Buffer {
    /// Copies all parameters from rank `root` of each data-parallel group to its other ranks. Waits in slices of 50 ms.
    /// Collective, blocking.
    ///
    /// # Errors
    /// INVALID, STATE, those of a lost communicator.
    pub fn broadcast(&mut self, root: usize) -> Result<()> {
        self.start_broadcast(root)?.wait()
    }

    /// [`Buffer::broadcast`] that goes on while the caller does something else. What needs the parameters waits for its end. Collective, does
    /// not block.
    ///
    /// # Errors
    /// As [`Buffer::broadcast`], here or when it is waited for.
    pub fn start_broadcast(&mut self, root: usize) -> Result<Broadcasting<'_>> {
        let root = narrow(root, "root")?;
        self.end_broadcast()?;
        let request = {
            let _inside = self.shared.enter();
            let mut out = ptr::null_mut();
            // SAFETY: a live handle, the buffer's only call; no slice is in use, and none is given before the request has ended.
            check(unsafe { sys::mdp_buffer_broadcast(self.as_raw(), root, &mut out) })?;
            // SAFETY: just created, and ours.
            unsafe { Request::new(out, &self.shared.tree) }?
        };
        self.broadcast = RefCell::new(Some(request));
        self.copies.outdated.set(true);
        Ok(Broadcasting { buffer: self })
    }

    /// Waits until no broadcast writes to the parameters any more.
    pub(crate) fn end_broadcast(&self) -> Result<()> {
        let ended = self.broadcast.borrow().as_ref().map_or(Ok(()), Request::wait);
        let goes_on = ended.is_err() && self.broadcast.borrow().as_ref().is_some_and(|request| matches!(request.test(), Ok(false)));
        if !goes_on && !ended.as_ref().is_err_and(|error| matches!(error.code, Code::State | Code::Invalid)) {
            self.broadcast.take(); // what could not be asked about (in a forked child) may still go on
        }
        ended
    }
}

/// A broadcast that is going on. Dropped, it leaves the broadcast to itself; the buffer waits for it where parameters are needed.
#[derive(Debug)]
pub struct Broadcasting<'a> {
    buffer: &'a mut Buffer,
}

impl Broadcasting<'_> {
    /// Waits.
    ///
    /// # Errors
    /// As [`Buffer::broadcast`].
    pub fn wait(self) -> Result<()> {
        self.buffer.end_broadcast()
    }

    /// Whether it has finished. Does not block.
    ///
    /// # Errors
    /// As [`Buffer::broadcast`].
    pub fn test(&self) -> Result<bool> {
        self.buffer.broadcast.borrow().as_ref().map_or(Ok(true), Request::test)
    }

    /// Waits for so long at most; says whether it has finished.
    ///
    /// # Errors
    /// As [`Buffer::broadcast`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.buffer.broadcast.borrow().as_ref().map_or(Ok(true), |request| request.wait_timeout(timeout))
    }
}
