// SPDX-License-Identifier: Apache-2.0
//! Data-parallel training: gradients are reduced while backward runs, optimizer state is sharded over the ranks, parameters are gathered
//! while the next forward begins.
//!
//! A program hands over the list of its parameters and gets memory for them back. In backward it says which gradient is there; at the end
//! it steps:
//!
//! ```
//! use megadp::{Buffer, Comm, Optimizer, Param, StepOptions};
//!
//! # fn main() -> megadp::Result<()> {
//! let comm = Comm::builder().connect()?; // ranks and meeting place from the launcher's environment; else a single rank
//! let params = [Param::new("weight", &[4, 2]), Param::new("bias", &[2])]; // in the order of forward
//! let mut buffer = Buffer::builder().register(&comm, &params)?;
//! let mut optimizer = Optimizer::builder().lr(0.1).weight_decay(0.0).create(&buffer)?;
//! let gradients = buffer.gradients(); // may go to other threads
//!
//! for _ in 0..3 {
//!     let _weight: &[f32] = buffer.param(0)?; // waits until it is whole
//!     gradients.put(1, &[1f32; 2])?; // as backward finds them
//!     gradients.put(0, &[0.5f32; 8])?;
//!     let report = optimizer.step(&mut buffer, &StepOptions::default())?; // all ranks agree here on what has come
//!     assert!((report.grad_norm - 2.0).abs() < 1e-6);
//! }
//! assert!(buffer.param::<f32>(1)?.iter().all(|&bias| (bias + 0.3).abs() < 1e-5));
//! # Ok(())
//! # }
//! ```
//!
//! Each rank runs the same program: `megadp run -n 2 PROGRAM`, mpirun, torchrun or SLURM start them.
//!
//! # Conventions
//! **Local and collective.** What is called collective is to be called by every rank, in the same order; it waits for the other ranks, at
//! most for the communicator's timeout. Everything else is local and waits for no other rank, unless it says so.
//!
//! **Errors** are values: [`Error`] has a code, the rank, bucket and parameter it is about, and a sentence. Nothing in this crate panics on
//! bad input, no `Drop` fails, and none waits for another rank. After a failure for which [`Code::is_final`] holds in a collective call the communicator is lost.
//!
//! **Threads.** The library allows one thread at a time on a communicator, and on a buffer with its optimizers. So [`Comm`], [`Grid`], [`Buffer`]
//! and [`Optimizer`] are [`Send`] and not [`Sync`]; if values of one of these (a buffer and its optimizer, a communicator and its
//! [`tp::Linear`]) have been sent to different threads, their calls wait for each other. Other communicators and buffers never do: each may
//! be trained by a thread of its own, and ranks may come to them in any order. Calls that make one of them, split, compare
//! ([`Buffer::verify`], [`Buffer::use_order`]), save or load take turns in all of a tree, and ranks come to these in one order. What may be
//! called from any thread at any time has types of its own, which are `Send` and `Sync`: [`Gradients`], [`Request`], [`Aborter`].
//!
//! ```compile_fail,E0277
//! fn shared<T: Sync>() {}
//! shared::<megadp::Buffer>();
//! ```
//!
//! **Memory** of parameters and gradients is the library's. Slices of it borrow the [`Buffer`], so that the compiler keeps them apart from
//! calls that write to it. On a device (CUDA) there are no slices: the `as_raw` functions and [`sys`] lead to the C interface.
//!
//! **Other builds of the library** are chosen when the program is built, by `MEGADP_LIB_DIR` or `MEGADP_LIBRARY`, or, as long as the ABI is
//! the same, when it is started, by `LD_LIBRARY_PATH`.
//!
//! # Features
//! - `bundled`: the library is built by CMake and becomes part of the program.
//! - `candle`: the module `candle`, gradients of candle's models as backward finds them; it asks for Rust 1.88.
//! - `half`: `half::bf16` and `half::f16` are elements.

pub use megadp_sys as sys;

mod bootstrap;
mod broadcast;
mod buffer;
mod buffer_builder;
mod buffer_report;
#[cfg(feature = "candle")]
pub mod candle;
mod checkpoint;
mod collectives;
mod comm;
pub mod cp;
mod element;
mod error;
mod gradients;
mod grid;
pub mod halo;
mod handle;
mod library;
pub mod log;
mod optimizer;
mod optimizer_builder;
mod param;
mod pieces;
mod plan;
mod request;
mod scaler;
mod sync;
pub mod tp;

pub use broadcast::Broadcasting;
pub use buffer::{Buffer, ParamMut};
pub use buffer_builder::{BufferBuilder, Missing, Scaling, Sharding};
pub use buffer_report::{BucketReport, BucketState, OwnedRange, Stats};
pub use checkpoint::{
    LoadCheckpoint, SaveCheckpoint, checkpoint_damage, checkpoint_data, checkpoint_info, export_checkpoint, verify_checkpoint,
};
pub use collectives::{Op, Pending};
pub use comm::{Aborter, Backend, Comm, CommBuilder, UniqueId};
pub use element::{DType, Element, Strided};
pub use error::{Code, Error, Result};
pub use gradients::{Acquired, GradMut, Gradients};
pub use grid::{Axes, Grid, GridBuilder, Random, Ranks};
pub use library::{info, version};
pub use optimizer::{Optimizer, StateKind, StepOptions, StepReport};
pub use optimizer_builder::{Norm, OptimizerBuilder, ParamGroup, Rule};
pub use param::{Param, Placed};
pub use pieces::{Piece, Updated};
pub use plan::{PlanReport, plan, plan_json};
pub use request::Request;
pub use scaler::Scaler;
pub use sync::{GradSummary, Synced, Syncing, ToStep};
