// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launching programs so that they are seated before they touch memory.
//!
//! A page of memory is placed on the NUMA node of the CPU that first touches it, and `exec`
//! maps and touches an executable's first pages. A program must therefore be seated *before*
//! `exec`: [`hold`] forks a child that waits just before it, the caller seats that child, and
//! [`HeldChild::release`] lets it continue. [`repeat`] forks a child that runs the same command
//! repeatedly on demand; all repetitions inherit the seats (cgroup and affinity mask) of that
//! child.
//!
//! A launched program sees the same environment as without Usher: standard streams and
//! inherited descriptors are passed through, the signal mask and dispositions are restored,
//! signals are forwarded ([`Forwarder`]), and the exit status is passed on as shells do
//! ([`Exit::code`]).

mod child;
mod exit;
mod held;
mod prepare;
mod repeater;
mod signals;

pub use child::ignore_file_size_signal;
pub use exit::{Exit, LaunchError, OWN_FAILURE};
pub use held::{ChildProcess, HeldChild, StartingChild, hold, hold_in};
pub use prepare::{LaunchSpec, Stream};
pub use repeater::{Repeater, Repetition, repeat, repeat_in};
pub use signals::Forwarder;
