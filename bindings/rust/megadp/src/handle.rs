// SPDX-License-Identifier: Apache-2.0
//! Handles of the library, and the locks that keep its thread rule.
use crate::error::{Code, Error, Result};
use crate::sys;
use core::ffi::c_void;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// How a handle is given back. Always local, from any thread, and without an answer that could fail.
pub(crate) trait Destroy {
    /// # Safety
    /// `handle` is owned by the caller, and not used again.
    unsafe fn destroy(handle: *mut Self);
}

macro_rules! destroy_by {
    ($($handle:ident => $function:ident),*) => {$(
        impl Destroy for sys::$handle {
            unsafe fn destroy(handle: *mut Self) {
                // SAFETY: as the trait says.
                unsafe { sys::$function(handle) }
            }
        }
    )*};
}
destroy_by!(mdp_comm => mdp_comm_destroy, mdp_grid => mdp_grid_destroy, mdp_buffer => mdp_buffer_destroy,
            mdp_optimizer => mdp_optimizer_destroy, mdp_request => mdp_request_free, mdp_tp_linear => mdp_tp_linear_destroy,
            mdp_tp_saved => mdp_tp_saved_free, mdp_halo => mdp_halo_destroy);

/// A handle that is destroyed with this value.
pub(crate) struct Owned<T: Destroy>(NonNull<T>);

impl<T: Destroy> Owned<T> {
    /// # Errors
    /// INTERNAL if the library has answered with NULL.
    ///
    /// # Safety
    /// `handle` was written by a call that succeeded, and nobody else destroys it.
    pub(crate) unsafe fn new(handle: *mut T) -> Result<Self> {
        let none = || Error::new(Code::Internal, "the library says that it has succeeded, but gives no handle");
        NonNull::new(handle).map(Owned).ok_or_else(none)
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Destroy> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.0)
    }
}

impl<T: Destroy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: new() has it that the handle is ours; and this is its end.
        unsafe { T::destroy(self.as_ptr()) }
    }
}

// SAFETY: a handle is an address, tied to no thread, and the library lets any thread destroy it. Calls that it allows on one thread at a
// time only are made by types that are not Sync, and in turn where several values share what is used.
unsafe impl<T: Destroy> Send for Owned<T> {}
// SAFETY: the same. Through a shared reference, types that are Sync make no calls but those that the header allows "from any thread at any
// time".
unsafe impl<T: Destroy> Sync for Owned<T> {}

/// Makes the type that holds it not Sync, and leaves it Send.
pub(crate) type NotSync = PhantomData<Cell<()>>;

/// What the values of one communicator's context have in common: they are one tree. A lock of it is held by no call but those that the header
/// says are made one at a time in a context, since the ranks come to these in one order; each communicator and each buffer has its own
/// [`Turn`] for all others.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Of calls that make, split, compare, save or load. They take this one first and then that of what they are called on.
    alone: Turn,
    // Kept as long as anything that waits.
    _asked: Option<Arc<Asked>>,
}

/// Whose turn it is. The header allows calls of one thread at a time on a communicator, and on a buffer with its optimizers, but several values
/// here are of one of these, and may be sent to different threads: then calls wait for each other, where the library would refuse the second
/// (STATE). What belongs to different ones never waits, since a call may wait for ranks that come to those in another order. The thread
/// that holds it may take it again: a log callback runs inside of a call and may call the library itself.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    holder: Mutex<(Option<ThreadId>, usize)>,
    free: Condvar,
}

/// The closure that a call which waits asks whether to end; see [`CommBuilder::interrupted`](crate::CommBuilder::interrupted).
pub(crate) struct Asked(pub(crate) Box<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asked(..)")
    }
}

impl Asked {
    /// For `mdp_comm_config`: the function, and a context that is valid as long as this value.
    pub(crate) fn raw(self: &Arc<Self>) -> (sys::mdp_interrupted_fn, *mut c_void) {
        (Some(ask), Arc::as_ptr(self).cast_mut().cast())
    }
}

unsafe extern "C" fn ask(context: *mut c_void) -> i32 {
    // SAFETY: the context of raw(), kept by the tree.
    let asked = unsafe { &*context.cast::<Asked>() };
    // Nothing may unwind into C: a closure that panics ends the call.
    i32::from(catch_unwind(AssertUnwindSafe(|| (asked.0)())).unwrap_or(true))
}

impl Tree {
    pub(crate) fn asking(asked: Option<Arc<Asked>>) -> Self {
        Tree { _asked: asked, ..Tree::default() }
    }

    /// For a call that is made one at a time in a context.
    pub(crate) fn enter_alone(&self) -> Inside<'_> {
        self.alone.enter()
    }
}

impl Turn {
    fn holder(&self) -> MutexGuard<'_, (Option<ThreadId>, usize)> {
        // What it guards is written in one go, so a panic elsewhere leaves it whole.
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread is inside of a call.
    pub(crate) fn enter(&self) -> Inside<'_> {
        let me = thread::current().id();
        let mut holder = self.holder();
        while holder.0.is_some_and(|other| other != me) {
            holder = self.free.wait(holder).unwrap_or_else(PoisonError::into_inner);
        }
        *holder = (Some(me), holder.1 + 1);
        Inside(self)
    }
}

/// Held during a call.
pub(crate) struct Inside<'a>(&'a Turn);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut holder = self.0.holder();
        holder.1 -= 1;
        if holder.1 == 0 {
            holder.0 = None;
            self.0.free.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_thread_at_a_time_and_again_from_inside() {
        let (turn, inside) = (Turn::default(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let _outer = turn.enter();
                        let _inner = turn.enter();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(*turn.holder(), (None, 0));
    }
}
