// SPDX-License-Identifier: MIT OR Apache-2.0
//! The chip of paper 5, its decoder's tasks, and the orders in which they run.
//!
//! The paper's tables come from an evaluation board and from a simulator that
//! nobody else has. This models both: the dispatchers are those of `usher-tasks`,
//! the caches those of `usher-cache`; tasks are graphs with what each touches
//! ([`TaskGraph`]), here made up from how an H.264 decoder works ([`h264`]), or
//! recorded from a real program ([`TaskGraph::from_json`]). [`Machine`] runs them
//! with penalties that are always the same, as the paper's simulator has them, or
//! with queues at the shared cache and at memory, as its board must have had. What
//! the paper does not tell is in [`Fitted`]: one set of parameters for all cells and
//! both modes.
//!
//! Everything is simulated: no figure of this module was measured, but for those
//! that the paper measured (`published`).

mod engine;
pub mod figure4;
mod fitted;
mod graph;
pub mod h264;
mod memory;
mod pattern;
pub mod published;
pub mod study;
mod tally;

pub use engine::{Chip, ChipError, Machine, Work};
pub use fitted::{CLOCK_HZ, DISPATCH_CYCLES, Fitted};
pub use graph::{
    Access, GraphError, Kind, MEMORY_BYTES, Order, SEGMENT_BYTES, TaskGraph, TaskSpec,
};
pub use memory::{Caches, Counts, Mode, Timing};
pub use pattern::Pattern;
pub use tally::{Ran, Span, Tally};
