// SPDX-License-Identifier: Apache-2.0
//! Failures, as values.
use crate::sys;
use std::ffi::CStr;
use std::fmt;

/// What calls of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of a failure. `docs/errors.md` of the repository lists causes and remedies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// An argument is wrong.
    Invalid,
    /// Right arguments at the wrong moment.
    State,
    /// Not offered by this build, backend or machine.
    Unsupported,
    /// Out of memory.
    Memory,
    /// A call of the operating system failed.
    System,
    /// A device or transport library failed.
    Backend,
    /// Another rank died or left.
    Peer,
    /// Another rank did not come in time.
    Timeout,
    /// Ranks called different operations, or registered different things.
    Desync,
    /// A rank aborted the communicator.
    Aborted,
    /// A value is not finite.
    Numeric,
    /// Stored or received bytes are damaged.
    Corrupt,
    /// A defect of the library.
    Internal,
    /// A status that a newer library has.
    Other(i32),
}

impl Code {
    pub(crate) fn new(status: sys::mdp_status) -> Self {
        match status {
            sys::MDP_E_INVALID => Code::Invalid,
            sys::MDP_E_STATE => Code::State,
            sys::MDP_E_UNSUPPORTED => Code::Unsupported,
            sys::MDP_E_MEMORY => Code::Memory,
            sys::MDP_E_SYSTEM => Code::System,
            sys::MDP_E_BACKEND => Code::Backend,
            sys::MDP_E_PEER => Code::Peer,
            sys::MDP_E_TIMEOUT => Code::Timeout,
            sys::MDP_E_DESYNC => Code::Desync,
            sys::MDP_E_ABORTED => Code::Aborted,
            sys::MDP_E_NUMERIC => Code::Numeric,
            sys::MDP_E_CORRUPT => Code::Corrupt,
            sys::MDP_E_INTERNAL => Code::Internal,
            other => Code::Other(other),
        }
    }

    /// Whether such a failure of a collective call leaves the communicator unusable: all that is left to do with it and with what was made
    /// from it is to look at local memory, and to drop them. Of an update that failed ([`Optimizer::step_with`](crate::Optimizer::step_with)), or
    /// a block of attention ([`cp`](crate::cp)), which is ABORTED too, [`Comm::failure`](crate::Comm::failure) knows nothing: there ranks go on together.
    pub fn is_final(self) -> bool {
        matches!(self, Code::Peer | Code::Timeout | Code::Aborted | Code::Backend | Code::Desync)
    }
}

/// A failed call: what kind of failure, what it is about where that is known, and a sentence that names the argument, parameter or rank.
///
/// ```
/// let error = megadp::Grid::builder().tp(-1).groups_json(4, megadp::Axes::DP).unwrap_err();
/// assert_eq!(error.code, megadp::Code::Invalid);
/// assert!(error.text.contains("-1"), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// The kind of failure.
    pub code: Code,
    /// The rank to blame, in the world.
    pub rank: Option<usize>,
    /// The bucket it is about, numbered in launch order.
    pub bucket: Option<usize>,
    /// The parameter it is about, numbered as registered.
    pub param: Option<usize>,
    /// Running number of the collective in its group.
    pub operation: Option<u64>,
    /// The sentence.
    pub text: String,
}

impl Error {
    /// A failure that this crate finds by itself, before the library is asked.
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Error { code, rank: None, bucket: None, param: None, operation: None, text: text.into() }
    }

    pub(crate) fn about_param(self, param: usize) -> Self {
        Error { param: Some(param), ..self }
    }

    fn from_info(info: &sys::mdp_error_info, text: String) -> Self {
        Error {
            code: Code::new(info.status),
            rank: usize::try_from(info.rank).ok(),
            bucket: usize::try_from(info.bucket).ok(),
            param: usize::try_from(info.param).ok(),
            operation: (info.operation != 0).then_some(info.operation),
            text,
        }
    }

    /// What a communicator keeps of its first failure; none while its status is OK.
    pub(crate) fn from_kept(info: &sys::mdp_error_info) -> Option<Self> {
        // SAFETY: the library ends the text with a NUL inside of the array.
        let text = unsafe { CStr::from_ptr(info.text.as_ptr()) };
        (info.status != sys::MDP_OK).then(|| Error::from_info(info, text.to_string_lossy().into_owned()))
    }

    /// The failure of this thread's last call; `status` is what it returned, or what is likely where it returned none. To be called right after
    /// it: another call would replace it.
    pub(crate) fn last(status: sys::mdp_status) -> Self {
        let mut info = sys::mdp_error_info::new();
        // SAFETY: info is ours, and says its size. It succeeds, and so leaves the sentence as it is.
        let told = unsafe { sys::mdp_last_error_info(&mut info) };
        // SAFETY: never NULL, and valid until this thread's next call; copied here. Longer than the text in info may be.
        let text = unsafe { CStr::from_ptr(sys::mdp_last_error()) }.to_string_lossy().into_owned();
        if told == sys::MDP_OK && info.status != sys::MDP_OK {
            return Error::from_info(&info, text);
        }
        Error::new(Code::new(status), text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.text, self.code)
    }
}

impl std::error::Error for Error {}

/// Turns what a call returned into a result; `Ok(false)` is "not finished yet". On the thread that made the call, before its next one.
pub(crate) fn check_pending(status: sys::mdp_status) -> Result<bool> {
    match status {
        sys::MDP_OK => Ok(true),
        pending if pending > 0 => Ok(false),
        failed => Err(Error::last(failed)),
    }
}

/// The same for calls that are done when they return.
pub(crate) fn check(status: sys::mdp_status) -> Result<()> {
    check_pending(status).map(|_| ())
}

/// A number of the caller's in the width that the library takes.
pub(crate) fn narrow<T: TryFrom<U>, U: Copy + fmt::Display>(value: U, name: &str) -> Result<T> {
    T::try_from(value).map_err(|_| Error::new(Code::Invalid, format!("{name} is {value}, which is more than the library can count")))
}
