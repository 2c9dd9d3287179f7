// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fine-grained tasks in the order that caches like.
//!
//! Tasks run to completion: they are not preempted, do not block and take no locks.
//! What they cost beyond their own work is 10 to 20 ns, so that a task may be as
//! small as a macroblock of a video frame.
//!
//! | | |
//! |---|---|
//! | [`Runtime`] | workers, and the order in which they run what is ready |
//! | [`GraphBuilder`], [`Graph`] | tasks and who waits for whom: declared once, run each frame |
//! | [`Runtime::register`], [`Runtime::resolve`] | tasks one by one, by token |
//! | [`Runtime::join`] | two functions at the same time |
//! | [`Groups`] | which tasks belong together: on one core, or close in time |
//! | [`color`] | blocks whose headers do not fall into the same cache sets |
//! | [`dispatch`] | the orders themselves, without threads |
//!
//! The model and the policy `paper` are those of Mori, Takeda and Matsuzaki, "A
//! fine-grain thread scheduling method considering efficiency of hierarchical cache
//! on a symmetric multi-core processor for media processing" (paper 5).

pub mod color;
pub mod dispatch;
mod error;
mod graph;
mod job;
mod join;
mod latch;
mod pool;
mod runtime;
mod sleep;
mod sync;
mod tokens;
mod worker;

pub use dispatch::Groups;
pub use error::{GraphError, Left, Panicked, RunError, RuntimeError, TaskError, WaitError};
pub use graph::{Graph, GraphBuilder};
pub use runtime::{Handle, Policy, Runtime};

#[cfg(all(test, feature = "loom"))]
mod interleavings;
