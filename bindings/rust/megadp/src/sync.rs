// SPDX-License-Identifier: Apache-2.0
//! The end of backward, and the token that it leaves for the step.
use crate::buffer::Buffer;
use crate::element::Element;
use crate::error::{Result, check};
use crate::request::Request;
use crate::sys;
use std::ptr;
use std::time::Duration;

impl Buffer {
    /// Ends backward: launches what is left, waits until every bucket is reduced, and agrees with all ranks on what was missing or skipped.
    /// What it gives is what a step takes. Calling it again before the step gives the same outcome. Collective, blocking.
    ///
    /// # Errors
    /// STATE (a parameter never became ready: names it and the rank, on all ranks; not in the last microbatch), those of a lost communicator.
    /// After a failure no rank can step; [`Buffer::zero_grad`] or [`Buffer::begin_microbatch`] begins anew.
    ///
    /// ```
    /// # use megadp::{Buffer, Comm, Grid, Param};
    /// # let grid = Grid::data_parallel(&Comm::builder().connect()?)?;
    /// let mut buffer = Buffer::builder().register(&grid, &[Param::new("forgotten", &[2])])?;
    /// let error = buffer.sync().unwrap_err();
    /// assert_eq!((error.code, error.param, error.rank), (megadp::Code::State, Some(0), Some(0)));
    /// assert!(error.text.contains("forgotten"));
    /// # Ok::<(), megadp::Error>(())
    /// ```
    pub fn sync(&mut self) -> Result<Synced<'_>> {
        self.start_sync()?.wait()
    }

    /// [`Buffer::sync`] that goes on while the caller does something else. Collective, does not block.
    ///
    /// # Errors
    /// As [`Buffer::sync`], here or when it is waited for.
    pub fn start_sync(&mut self) -> Result<Syncing<'_>> {
        self.closed = true; // also where it fails: what has been launched is not taken back
        let request = {
            let _inside = self.tree.enter();
            let mut out = ptr::null_mut();
            // SAFETY: a live handle, the tree's only call; the buffer is borrowed mutably, so no slice of a gradient is in use.
            check(unsafe { sys::mdp_grad_sync(self.as_raw(), ptr::null_mut(), &mut out) })?;
            // SAFETY: just created, and ours.
            unsafe { Request::new(out) }?
        };
        Ok(Syncing { buffer: self, request })
    }
}

/// A sync that is going on. Dropped, it leaves the sync to itself; calling it again gives the same outcome.
#[derive(Debug)]
pub struct Syncing<'a> {
    buffer: &'a mut Buffer,
    request: Request,
}

impl<'a> Syncing<'a> {
    /// Waits, in slices of 50 ms.
    ///
    /// # Errors
    /// As [`Buffer::sync`].
    pub fn wait(self) -> Result<Synced<'a>> {
        self.request.wait()?;
        Ok(Synced { buffer: self.buffer })
    }

    /// Whether it has finished. Does not block.
    ///
    /// # Errors
    /// As [`Buffer::sync`].
    pub fn test(&self) -> Result<bool> {
        self.request.test()
    }

    /// Waits for so long at most; says whether it has finished.
    ///
    /// # Errors
    /// As [`Buffer::sync`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool> {
        self.request.wait_timeout(timeout)
    }
}

/// All gradients of a step are reduced, and all ranks have agreed on that. [`Optimizer::step`](crate::Optimizer::step) consumes it; while it is
/// there, the buffer is borrowed, and nothing else can begin.
#[derive(Debug)]
#[must_use = "the step takes it"]
pub struct Synced<'a> {
    pub(crate) buffer: &'a mut Buffer,
}

impl Synced<'_> {
    /// A reduced gradient: the sum over ranks, divided by their number, row-major, without a copy. With [`Sharding::Zero0`](crate::Sharding::Zero0)
    /// all of it is meaningful, with `Zero1` the ranges that [`Buffer::owned`] gives. Local.
    ///
    /// # Errors
    /// INVALID (no such parameter; elements of another type), STATE (frozen), UNSUPPORTED (memory of a device).
    pub fn grad<T: Element>(&self, param: usize) -> Result<&[T]> {
        self.buffer.shared.check(param)?;
        let (data, len) = self.buffer.grad_view(param)?;
        // SAFETY: after a sync the library refuses gradients until the step or a new beginning, for both of which the borrow must end.
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }

    /// The buffer, to be looked at.
    pub fn buffer(&self) -> &Buffer {
        self.buffer
    }
}
