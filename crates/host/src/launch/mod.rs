// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launching programs so that they are seated before they touch memory.
//!
//! A page of memory is placed on the NUMA node of the CPU that first touches
//! it, and an executable maps and touches its first pages inside `exec`. So a
//! program must sit where it is to run *before* `exec`: [`hold`] forks a child
//! that waits just short of it, the caller seats that child, and
//! [`Held::release`] lets it go on. [`repeat`] forks a child that runs the
//! same command again and again on demand, all repetitions inside the seats
//! (cgroup and affinity mask) of that one child.
//!
//! What a good wrapper owes its program is kept: standard streams and
//! inherited descriptors are passed through, the signal mask and dispositions
//! are as they were, signals are forwarded ([`Forwarder`]), and the exit status
//! is passed on as shells do ([`Exit::code`]).

mod child;
mod exit;
mod held;
mod prepare;
mod repeater;
mod signals;

pub use child::ignore_file_size_signal;
pub use exit::{Exit, LaunchError, OWN_FAILURE};
pub use held::{Held, Running, Starting, hold, hold_in};
pub use prepare::{LaunchSpec, Stream};
pub use repeater::{Repeater, Repetition, repeat, repeat_in};
pub use signals::Forwarder;
