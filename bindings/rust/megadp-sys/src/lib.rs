// SPDX-License-Identifier: Apache-2.0
//! The C interface of megadp as it is: `megadp.h`, declaration by declaration. What each one does, who owns what, and which thread may
//! call it is said there; the crate `megadp` is the safe layer on top.
//!
//! Handles are opaque types behind pointers. Enumerations are integers with constants, since a library that is newer than this crate
//! may answer with values that it does not know. `new()` of a struct is all zero, which is the default of every field, with `struct_size`
//! set. No `std` is needed.
//!
//! # Which library
//!
//! - Feature `bundled`: the library is built from the sources that come with this crate (`MEGADP_SOURCE_DIR` names others), by CMake 3.25 or
//!   newer (with `MEGADP_CMAKE_OPTIONS` besides), Python 3 and a C++20 compiler, as a static library, and becomes part of the program; only
//!   the C++ runtime (libstdc++) is linked dynamically. Static, because cargo hands link arguments such as an rpath to no package but the one
//!   whose build script asks for them: a program in another crate would not find a shared library that lies in cargo's build folder.
//! - Otherwise the shared library: from the folder `MEGADP_LIB_DIR`, or beside the file `MEGADP_LIBRARY`, or where `pkg-config megadp`
//!   finds it. The build script tells its direct dependents the folder, as `DEP_MEGADP_LIBDIR`. `cargo run` and `cargo test` find
//!   the library by themselves; for programs started otherwise, see `megadp`.
#![no_std]
#![allow(non_camel_case_types)]

#[rustfmt::skip]
mod defaults;
#[rustfmt::skip]
#[allow(missing_docs)]
mod functions;
#[rustfmt::skip]
#[allow(missing_docs)]
mod layers;
#[rustfmt::skip]
#[allow(missing_docs)]
mod structs;
#[rustfmt::skip]
#[allow(missing_docs)]
mod types;
pub use functions::*;
pub use layers::*;
pub use structs::*;
pub use types::*;

#[cfg(test)]
#[rustfmt::skip]
mod layers_layout;
#[cfg(test)]
#[rustfmt::skip]
mod layout;
#[cfg(test)]
mod tests;
