// SPDX-License-Identifier: GPL-2.0-only
//! Library of `usher sched`: a scheduler for kernels with sched_ext, and a counter for any
//! scheduler.
//!
//! The scheduler itself is C source in `bpf/`. Its arithmetic is in the headers of `usher-rules`,
//! which the simulator compiles as well. This crate loads the BPF programs, writes the topology
//! into their tables and reads their counters. docs/sched.md describes how to use the scheduler.
//!
//! - `scheduler`: loads the scheduler and keeps it attached until the value is dropped;
//! - `seats`: access to a scheduler in another process: seats, counters, threads;
//! - `counter`: address-space switches, needless sharing of cores, migrations, latencies;
//! - `kernel`: state of sched_ext in the running kernel; `functions`: the kernel's functions that
//!   the BPF programs call; `obstacles`: conditions of a host that forbid a start;
//! - `tables`: sizes of the tables, and the programs of each size;
//! - `layout`, `machine`: values of the BPF maps; `shared`: layout of these values in the compiled
//!   programs, for tests.

mod capacity;
mod counter;
mod error;
mod functions;
mod kernel;
mod layout;
mod machine;
mod object;
mod obstacles;
mod quotas;
mod scheduler;
mod seats;
#[cfg(test)]
mod shared;
mod tables;

pub use counter::{Counted, Counter};
pub use error::ScxError;
pub use functions::check_functions;
pub use kernel::{Kernel, State};
pub use layout::{Ending, Placement, Queue, SeatTally, Settings, Tally, ThreadState, Why};
pub use object::check_bpf_permitted;
pub use obstacles::SchedulerHolder;
pub use quotas::QuotaCounts;
pub use scheduler::{LoadedPrograms, Scheduler, load_programs, reports_quotas};
pub use seats::{MapIds, SchedulerHandle, SoftSeat};
pub use tables::check_cpu_numbers;
pub use usher_rules::select_cpu::CPUS_MAX;
