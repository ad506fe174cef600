// SPDX-License-Identifier: Apache-2.0
//! A closure that gathers bytes over all ranks, as the library's `mdp_bootstrap`. It may block, so it runs on a thread of its own, which the
//! library asks now and then; at the timeout it is left alone, and what it returns later is dropped.
use crate::sys;
use core::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// See [`CommBuilder::bootstrap`](crate::CommBuilder::bootstrap). `None`: it failed.
pub(crate) type Gather = dyn Fn(&[u8]) -> Option<Vec<Vec<u8>>> + Send + Sync;

pub(crate) struct Meeting {
    gather: Arc<Gather>,
    ranks: usize,
}

struct Pending {
    parts: Receiver<Option<Vec<Vec<u8>>>>,
    size: usize,
    to: *mut u8,
}

impl Meeting {
    pub(crate) fn new(gather: Arc<Gather>, ranks: usize) -> Self {
        Meeting { gather, ranks }
    }

    /// Borrows this value, which must stay where it is as long as the struct is used.
    pub(crate) fn raw(&self) -> sys::mdp_bootstrap {
        let mut raw = sys::mdp_bootstrap::new();
        raw.context = (&raw const *self).cast_mut().cast();
        raw.allgather_start = Some(start);
        raw.allgather_test = Some(test);
        raw.allgather_free = Some(free);
        raw
    }
}

unsafe extern "C" fn start(context: *mut c_void, mine: *const c_void, bytes: usize, all: *mut c_void, request: *mut *mut c_void) -> i32 {
    // SAFETY: the context is that of raw(), the library's bytes are there for this call, and the request is ours to set.
    unsafe {
        let meeting = &*context.cast::<Meeting>();
        let given = std::slice::from_raw_parts(mine.cast::<u8>(), bytes).to_vec();
        let gather = Arc::clone(&meeting.gather);
        let (sender, parts) = channel();
        // A thread that panics drops its sender, which is a failure.
        let started = std::thread::Builder::new().name("megadp boot".into()).spawn(move || sender.send(gather(&given)));
        if started.is_err() {
            return -1;
        }
        *request = Box::into_raw(Box::new(Pending { parts, size: bytes, to: all.cast() })).cast();
        0
    }
}

unsafe extern "C" fn test(context: *mut c_void, request: *mut c_void) -> i32 {
    // SAFETY: the context is that of raw(), the request that of start().
    let (meeting, pending) = unsafe { (&*context.cast::<Meeting>(), &*request.cast::<Pending>()) };
    let parts = match pending.parts.try_recv() {
        Err(TryRecvError::Empty) => return 0,
        Ok(Some(parts)) => parts,
        Ok(None) | Err(TryRecvError::Disconnected) => return -1,
    };
    if parts.len() != meeting.ranks || parts.iter().any(|part| part.len() != pending.size) {
        return -2; // of a wrong length
    }
    for (rank, part) in parts.iter().enumerate() {
        // SAFETY: the library has room for `size` bytes of each rank until the request is freed.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), pending.to.add(rank * pending.size), pending.size) };
    }
    1
}

unsafe extern "C" fn free(_context: *mut c_void, request: *mut c_void) {
    // SAFETY: made by start(), and freed once.
    drop(unsafe { Box::from_raw(request.cast::<Pending>()) });
}
