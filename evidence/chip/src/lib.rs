// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates the chip of paper 5: the tasks of an H.264 decoder run on several cores, in different
//! orders.
//!
//! The figures of the paper were measured on an evaluation board and on a simulator, which are not
//! available. This crate models the board and the simulator.
//!
//! 1. A [`TaskGraph`] contains tasks with memory accesses. [`h264`] generates the graph of a frame
//!    from the structure of an H.264 decoder; [`TaskGraph::from_json`] reads a recording of a real
//!    program.
//! 2. A [`Pattern`] determines the order of the tasks, with a dispatcher of `usher-tasks`.
//! 3. [`ChipMachine`] runs the graph on simulated cores with the caches of `usher-cache`. It has
//!    two cost models of cache misses: constant penalties, as in the paper's simulator, or accesses
//!    that queue at the shared cache and memory, as on the board.
//! 4. `study` compares the results with the published figures.
//!
//! [`FittedParameters`] contains the parameters that the paper does not give: one set for all cells
//! of the tables and both cost models.
//!
//! All results of this crate are simulated. Only the figures in `published` were measured, by the
//! authors of the paper.

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
