// SPDX-License-Identifier: Apache-2.0
//! What the loaded library is; and its way of answering with text.
use crate::error::{Result, check};
use crate::sys;
use std::ffi::c_char;

/// The loaded library's version: major, minor, patch.
///
/// ```
/// assert!(megadp::version() >= (0, 1, 0));
/// ```
pub fn version() -> (u8, u8, u8) {
    // SAFETY: takes nothing, cannot fail, any thread.
    let version = unsafe { sys::mdp_version() };
    ((version >> 16) as u8, (version >> 8) as u8, version as u8)
}

/// What this library is and what it sees, as one line of JSON: version, backends, transport, machine, launcher. Local, any thread.
///
/// # Errors
/// Only if memory is short.
///
/// ```
/// assert!(megadp::info()?.starts_with("{\"version\":"));
/// # Ok::<(), megadp::Error>(())
/// ```
pub fn info() -> Result<String> {
    // SAFETY: text() hands over memory of that size.
    text(|json, capacity, needed| unsafe { sys::mdp_info(json, capacity, needed) })
}

/// Asks for a text's size, and then for the text. What it says may have become longer meanwhile, so the second answer counts.
pub(crate) fn text(ask: impl Fn(*mut c_char, usize, *mut usize) -> sys::mdp_status) -> Result<String> {
    let mut needed = 0;
    check(ask(std::ptr::null_mut(), 0, &mut needed))?;
    loop {
        let capacity = needed;
        let mut bytes = vec![0u8; capacity];
        match check(ask(bytes.as_mut_ptr().cast(), capacity, &mut needed)) {
            Err(_) if needed > capacity => continue,
            result => result?,
        }
        bytes.truncate(needed.saturating_sub(1)); // the NUL
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
}
