// SPDX-License-Identifier: MIT OR Apache-2.0
//! What decides in Usher's sched_ext scheduler: who runs where, and when.
//!
//! The rules are C headers (`src/bpf`), integers alone, because the scheduler's BPF
//! programs include them (crate `usher-scx`). Here they are compiled for this machine,
//! so that tests hold them against brute force, and the simulator's machines
//! (crate `usher-sim`) are scheduled by the very same code.
//!
//! - [`where_to`]: on which CPU (`choose.h`, `sets.h`);
//! - [`share`]: what each thread is due (`share.h`);
//! - [`when`]: who is next (`turns.h`);
//! - [`balance`]: when one LLC takes from another (`balance.h`);
//! - [`levels`]: the same in the order of Linux 2.6, to compare with (`levels.h`);
//! - [`latency`]: how latencies are counted (`numbers.h`).

pub mod balance;
mod c;
pub mod latency;
pub mod levels;
pub mod share;
pub mod when;
pub mod where_to;
