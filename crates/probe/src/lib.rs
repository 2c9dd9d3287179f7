// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers of programs' progress and demand: perf events, cgroups, PSI,
//! `/proc`, heartbeats; of what a program is; and of what this machine offers.
//!
//! | | |
//! |---|---|
//! | [`ProgramProbe`] | one program: CPU time, waiting, threads, spinners, progress, its end |
//! | [`PerfCounters`] | instructions (or the task clock) of a program |
//! | [`MachineProbe`], [`usable_cpus`] | idle CPUs, steal, pressure; CPUs that may be used |
//! | [`CpuQuotas`] | how much CPU time the cgroups of a process allow it |
//! | [`identify`] | the key under which a program's profile is kept |
//! | [`Capabilities`] | what kernel and machine offer, and what is done without |
//!
//! This crate only reads. Files are found below roots that are arguments.

mod capabilities;
mod counters;
mod error;
mod file;
mod group;
mod identity;
mod machine;
mod members;
mod process;
mod program;
mod quota;
mod spin;
mod text;
mod tree;
mod waits;

pub use capabilities::{Capabilities, Capability};
pub use counters::{CounterGap, CounterKind, PerfCounters};
pub use error::ProbeError;
pub use identity::{Command, THREAD_VARIABLES, command_of, identify};
pub use machine::{MachineProbe, MachineSample, Roots, usable_cpus};
pub use process::ProcessFacts;
pub use program::{ProbeConfig, ProgramProbe, process_id};
pub use quota::CpuQuotas;
pub use text::Pressure;
