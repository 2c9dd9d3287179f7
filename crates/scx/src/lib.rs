// SPDX-License-Identifier: GPL-2.0-only
//! `usher sched`: a scheduler for kernels with sched_ext, and a counter that
//! measures any scheduler.
//!
//! What decides is in `bpf/`, and its arithmetic in the headers of `usher-rules`, which
//! the simulator compiles too. Here is what loads it, tells it of the machine and reads
//! what it counts. docs/sched.md says what it is good for.
//!
//! - `scheduler`: one that is attached for as long as the value lives;
//! - `seats`: one that another process holds: seats, counts, threads;
//! - `counter`: address-space switches, needless sharing of cores, migrations,
//!   latencies;
//! - `kernel`: what this kernel has, and which scheduler it runs;
//! - `layout`, `machine`: the maps' values; `shared`: the programs' view of them, for tests.

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
pub use seats::{Held, MapIds, Seat};
pub use usher_rules::where_to::CPUS_MAX;
