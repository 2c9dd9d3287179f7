// SPDX-License-Identifier: MIT OR Apache-2.0
//! What decides in Usher's sched_ext scheduler: who runs where, and when.
//!
//! The rules are C headers (`src/bpf`), integers alone, because the scheduler's BPF
//! programs include them (crate `usher-scx`). Here they are compiled for this machine,
//! so that tests hold them against brute force, and the simulator's machines
//! (crate `usher-sim`) are scheduled by the very same code.
//!
//! - [`where_to`]: on which CPU (`choose.h`, `sets.h`);
//! - [`when`]: who is next, and what is due to each (`turns.h`, `share.h`, `balance.h`);
//! - [`levels`]: the same in the order of Linux 2.6, to compare with (`levels.h`);
//! - [`latency`]: how latencies are counted (`numbers.h`).

mod c;
pub mod latency;
pub mod levels;
pub mod when;
pub mod where_to;
