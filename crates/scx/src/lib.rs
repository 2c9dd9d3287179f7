// SPDX-License-Identifier: GPL-2.0-only
//! Library of `usher sched`: a scheduler for kernels with sched_ext, and a counter for any
//! scheduler.
//!
//! The scheduler itself is C source in `bpf/`, with its arithmetic in the headers of `usher-rules`,
//! which the simulator compiles as well. This crate loads the programs, gives them the topology and
//! reads their counters. docs/sched.md describes the use.
//!
//! - `scheduler`: a scheduler that is attached while the value lives;
//! - `seats`: access to a scheduler in another process: seats, counters, threads;
//! - `counter`: address-space switches, needless sharing of cores, migrations, latencies;
//! - `kernel`: state of sched_ext in the running kernel;
//! - `layout`, `machine`: values of the maps; `shared`: their layout in the programs, for tests.

mod counter;
mod error;
mod kernel;
mod layout;
mod machine;
mod object;
mod scheduler;
mod seats;
#[cfg(test)]
mod shared;

pub use counter::{Counted, Counter};
pub use error::ScxError;
pub use kernel::{Kernel, State};
pub use layout::{Ending, Queue, SeatTally, Settings, Tally, ThreadState, Why};
pub use object::check_bpf_permitted;
pub use scheduler::Scheduler;
pub use seats::{MapIds, SchedulerHandle, SoftSeat};
pub use usher_rules::select_cpu::CPUS_MAX;
