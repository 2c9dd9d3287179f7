// SPDX-License-Identifier: MIT OR Apache-2.0
//! Usher's sched_ext scheduler outside the kernel.
//!
//! The scheduler is C source that the BPF programs are compiled from (crate `usher-scx`). This
//! crate compiles the same source for this machine, so that unit tests and the simulator
//! (crate `usher-sim`) run it. There is no second version of its decisions.
//!
//! - [`sched`]: the whole scheduler on a simulated machine: the callbacks (`callbacks.h` in
//!   `usher-scx`) and, in `src/host`, the part of the kernel that they rely on.
//!
//! The arithmetic lies in headers of its own (`src/bpf`), whose functions tests call one by
//! one:
//!
//! - [`where_to`]: on which CPU (`choose.h`, `sets.h`);
//! - [`share`]: virtual time by weight (`share.h`);
//! - [`when`]: the run queues of an LLC (`turns.h`);
//! - [`balance`]: when an LLC takes a thread from another one (`balance.h`);
//! - [`levels`]: the order of Linux 2.6, for comparison (`levels.h`);
//! - [`latency`]: slots of latencies (`numbers.h`).

pub mod balance;
mod c;
pub mod latency;
pub mod levels;
pub mod sched;
pub mod share;
pub mod when;
pub mod where_to;
