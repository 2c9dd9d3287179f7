// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulates machines, kernels and programs in virtual time, so that the shipped control loop and
//! policies run without hardware.
//!
//! All figures of this crate are simulated, not measured.
//!
//! Layers, from bottom to top:
//!
//! - `machine`, `script`, `parsec`: hardware, programs and models of programs;
//! - `sim_kernel` with `kernel` (its configuration), `queue_order`, `cpu_selection`, `usher_sched`,
//!   `contention`, `threads`, `audit`, `record`: the simulated kernel;
//! - `engine` with `steps`, `programs`, `fault`: the event loop, which runs scripts on that kernel;
//! - `world`: the engine behind the control loop's interface; `actuator`: the journal protocol of
//!   the real actuator;
//! - `slurm_node`: settings of Slurm's policies; `slurm`: their comparison with Usher;
//! - `mix`, `trial`, `campaign`, `evaluation`, `extrapolation`, `oracle`, `advise`, `reruns`,
//!   `learning`: experiments;
//! - `mixfile`: sim files; `fuzz`: test cases with injected faults; `playback`: recorded runs.

pub mod actuator;
pub mod advise;
pub mod alone;
pub mod audit;
pub mod campaign;
mod clock;
mod contention;
mod cpu;
mod cpu_selection;
pub mod engine;
pub mod evaluation;
pub mod extrapolation;
pub mod fault;
pub mod fidelity;
pub mod fuzz;
mod job;
pub mod kernel;
pub mod learning;
pub mod machine;
pub mod mix;
pub mod mixfile;
pub mod oracle;
pub mod parallel;
pub mod parsec;
pub mod playback;
mod programs;
mod queue_order;
pub mod record;
pub mod reruns;
pub mod sample;
pub mod script;
pub mod setup;
pub mod sim_kernel;
pub mod slurm;
pub mod slurm_node;
pub mod smt;
mod steps;
mod task_table;
pub mod threads;
pub mod trial;
mod usher_sched;
pub mod world;
