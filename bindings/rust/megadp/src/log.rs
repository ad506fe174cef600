// SPDX-License-Identifier: Apache-2.0
//! Where the library's messages go. They tell what is no failure of a call: a stranger's connection refused, a slow rank noticed.
use crate::error::{Result, check};
use crate::sys;
use std::ffi::{c_char, c_void};
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// Something is wrong.
    Error,
    /// Something may be wrong.
    Warning,
    /// Good to know.
    Info,
    /// For who looks for a defect.
    Debug,
}

type Callback = Box<dyn Fn(Level, &str) + Send + Sync>;

/// The callback in use. The library is given no pointer to it: it could not be told when nobody uses it any more, if two threads set one at
/// the same time.
static CURRENT: Mutex<Option<Arc<Callback>>> = Mutex::new(None);

fn current() -> MutexGuard<'static, Option<Arc<Callback>>> {
    CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands messages to `callback`, one at a time, at the end of an ordinary call of any thread and on that thread; never inside of a drop or a
/// call of [`Gradients`](crate::Gradients). It may call this crate, also `set`; but a gradient that it hands over inside of a call that begins or
/// ends a step of the same buffer, or of a layer's backward, is refused (STATE). If it panics, the panic ends there (its message is
/// printed by the panic hook as usual), and the call in which it ran goes on; with `panic = "abort"` nothing can be contained. When this
/// returns, the callback set before is not running and is dropped, unless it is the one that calls. Any thread.
///
/// # Errors
/// None are known.
///
/// ```
/// megadp::log::set(|level, text| eprintln!("megadp: {level:?}: {text}"))?;
/// megadp::log::reset()?;
/// # Ok::<(), megadp::Error>(())
/// ```
pub fn set(callback: impl Fn(Level, &str) + Send + Sync + 'static) -> Result<()> {
    replace(Some(Arc::new(Box::new(callback))))
}

/// Back to the default: errors and warnings go to standard error, the rest is dropped. Otherwise as [`set`].
///
/// # Errors
/// None are known.
pub fn reset() -> Result<()> {
    replace(None)
}

fn replace(new: Option<Arc<Callback>>) -> Result<()> {
    let function: sys::mdp_log_fn = if new.is_some() { Some(deliver) } else { None };
    let old = mem::replace(&mut *current(), new);
    // Waits for a callback that is running on another thread, so CURRENT must not be locked here.
    // SAFETY: deliver() needs nothing, and does not unwind.
    let set = check(unsafe { sys::mdp_log_set(function, ptr::null_mut()) });
    drop(old); // dropping a closure is code of the caller's: outside of the lock
    set
}

/// A warning of this crate's own, from where messages of the library may come too.
#[cfg(feature = "candle")]
pub(crate) fn warn(text: &str) {
    // SAFETY: the text is lent for the call.
    unsafe { deliver(ptr::null_mut(), sys::MDP_LOG_WARNING, text.as_ptr().cast(), text.len()) }
}

/// What the library calls.
unsafe extern "C" fn deliver(_user: *mut c_void, level: sys::mdp_log_level, text: *const c_char, length: usize) {
    // SAFETY: the library lends `length` bytes for the call.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    let level = match level {
        sys::mdp_log_level::MIN..=sys::MDP_LOG_ERROR => Level::Error,
        sys::MDP_LOG_WARNING => Level::Warning,
        sys::MDP_LOG_INFO => Level::Info,
        _ => Level::Debug,
    };
    let callback = current().clone(); // its own count, since the callback may replace itself
    let called = panic::catch_unwind(AssertUnwindSafe(move || {
        let text = String::from_utf8_lossy(bytes);
        match callback {
            Some(callback) => callback(level, &text),
            None if level <= Level::Warning => eprintln!("megadp: {text}"), // between two calls of replace()
            None => {}
        }
    }));
    if let Err(payload) = called {
        mem::forget(payload); // dropping it is code of the caller's too, and could panic again
    }
}
