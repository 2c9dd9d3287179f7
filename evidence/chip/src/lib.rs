// SPDX-License-Identifier: MIT OR Apache-2.0
//! The chip of paper 5, the tasks of its decoder, and the orders in which they run.
//!
//! The paper's tables come from an evaluation board and a simulator that are not available. This
//! module models both. The dispatchers are those of `usher-tasks`, the caches those of
//! `usher-cache`. Tasks are graphs with memory accesses ([`TaskGraph`]), either generated from the
//! structure of an H.264 decoder ([`h264`]) or recorded from a real program
//! ([`TaskGraph::from_json`]). [`ChipMachine`] runs them in one of two modes: with constant miss
//! penalties, as the paper's simulator, or with queues at the shared cache and memory, as on its
//! board. Parameters that the paper does not give are in [`FittedParameters`]: one set for all
//! cells and both modes.
//!
//! All results of this module are simulated; only the figures in `published` were measured, by the
//! paper.

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

pub use engine::{Chip, ChipError, ChipMachine, GroupedGraph};
pub use fitted::{CLOCK_HZ, DISPATCH_CYCLES, FittedParameters};
pub use graph::{
    AccessKind, Dependencies, MEMORY_BYTES, SEGMENT_BYTES, TaskAccess, TaskGraph, TaskGraphError,
    TaskSpec,
};
pub use memory::{CacheCounts, Caches, MissModel, Timing};
pub use pattern::Pattern;
pub use tally::{CycleTotals, RunResult, TaskExecution};
