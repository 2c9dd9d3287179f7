// SPDX-License-Identifier: MIT OR Apache-2.0
//! Usher's sched_ext scheduler outside the kernel.
//!
//! The crate `usher-scx` compiles the scheduler's C source to BPF programs. This crate compiles the
//! same source for this machine, so that unit tests and the simulator (crate `usher-sim`) run it.
//! Each decision of the scheduler is implemented only once.
//!
//! - [`sched`]: the whole scheduler on a simulated machine. It consists of the callbacks
//!   (`callbacks.h` in `usher-scx`) and of the part of the kernel that the callbacks use
//!   (`src/host`).
//!
//! The arithmetic is in separate headers (`src/bpf`). Tests call their functions one by one:
//!
//! - [`select_cpu`]: selection of a CPU (`choose.h`, `sets.h`);
//! - [`share`]: virtual time by weight (`share.h`);
//! - [`run_queue`]: the run queues of an LLC (`turns.h`);
//! - [`balance`]: load balancing between LLCs (`balance.h`);
//! - [`latency`]: histograms of latencies (`numbers.h`).

pub mod balance;
mod c;
pub mod latency;
pub mod run_queue;
pub mod sched;
pub mod select_cpu;
pub mod share;
