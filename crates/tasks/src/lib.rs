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
//! | [`Runtime::join`] | two things at once, and nested |
//! | [`Groups`] | which tasks belong together: on one core, or close in time |
//! | [`Graph::explain`] | which order was found for tasks without groups, and how others did |
//! | [`RuntimeBuilder`] | how a runtime is to be: policy, places, the workers' stacks |
//! | [`Places`] | where workers run: together, by the caches that cores share |
//! | [`Runtime::trace`], [`Runtime::counters`] | who ran what when: for Perfetto, as a picture, in figures |
//! | [`color`] | blocks whose headers do not fall into the same cache sets |
//! | [`dispatch`] | the orders themselves, without threads |
//!
//! The model and the policy `paper` are those of Mori, Takeda and Matsuzaki, "A
//! fine-grain thread scheduling method considering efficiency of hierarchical cache
//! on a symmetric multi-core processor for media processing" (paper 5).

mod at_work;
mod closure;
pub mod color;
mod counters;
pub mod dispatch;
mod error;
mod graph;
mod guess;
mod job;
mod join;
mod latch;
mod levels;
mod llc;
mod places;
mod policy;
mod pool;
mod runtime;
mod slab;
mod sleep;
mod sync;
mod tokens;
mod trace;
mod trials;
#[doc(hidden)]
pub mod waits;
mod worker;

pub use counters::{AllCounters, Counters};
pub use dispatch::Groups;
pub use error::{GraphError, Left, Panicked, RunError, RuntimeError, TaskError, WaitError};
pub use graph::{Explanation, Graph, GraphBuilder, Order, Tried};
pub use guess::Together;
pub use places::{Distance, Places};
pub use policy::Policy;
pub use runtime::{Handle, Runtime, RuntimeBuilder, WORKERS_MAX};
pub use trace::{ColorBy, Span, Trace, TraceError};

#[cfg(all(test, feature = "loom"))]
mod interleavings;
