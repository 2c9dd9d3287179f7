// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads progress and demand of programs (perf events, cgroups, PSI, `/proc`, heartbeats), the
//! identity of programs, and the capabilities of this machine.
//!
//! | | |
//! |---|---|
//! | [`ProgramProbe`] | one program: CPU time, waiting, threads, spinners, progress, its end |
//! | [`ForkScan`] | the process tree of a program, with new worker processes |
//! | [`ExecWatch`] | a notification when a process executes a program |
//! | [`PerfCounters`] | instructions (or the task clock) of a program |
//! | [`MachineProbe`], [`usable_cpus`] | idle CPUs, steal, pressure; usable CPUs |
//! | [`LoadSnapshot`] | the CPU time that other programs use during a measurement |
//! | [`CpuQuotas`] | the CPU time that the cgroups of a process allow |
//! | [`identify`] | the key of a program's profile |
//! | [`Capabilities`] | features of kernel and machine, and the fallback for each missing one |
//!
//! This crate only reads. The roots of all paths are arguments.

mod build_id;
mod bytes;
mod capabilities;
mod counters;
mod delay;
mod error;
mod exec_watch;
mod file;
mod forks;
mod group;
mod identity;
mod machine;
mod members;
mod other_load;
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
pub use exec_watch::ExecWatch;
pub use forks::{ForkScan, RUN_VARIABLE};
pub use identity::{ProgramCommand, THREAD_VARIABLES, command_line_of, command_of, identify};
pub use machine::{MachineProbe, MachineSample, Roots, busy_ns, online_cpus, usable_cpus};
pub use other_load::{BusyProcess, LoadSnapshot, OtherLoad};
pub use process::ProcessFacts;
pub use program::{ProbeConfig, ProgramProbe, process_id};
pub use quota::CpuQuotas;
pub use text::Pressure;
