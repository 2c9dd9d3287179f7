// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches programs in a way that permits a caller to seat them before they touch memory.
//!
//! The kernel allocates a page of memory on the NUMA node of the CPU that first touches the page,
//! and `exec` already touches the first pages of a program. A program must therefore be seated
//! *before* `exec`: [`hold`] forks a child that waits just before its `exec`, the caller seats this
//! child, and [`HeldChild::release`] makes the child execute the program. [`repeat`] forks a child
//! that runs the same command repeatedly on demand; all repetitions inherit the seat (cgroup and
//! affinity mask) of this child.
//!
//! A launched program has the same environment as without Usher. The program gets the standard
//! streams, the inherited descriptors, and the original signal mask and dispositions of the
//! launcher. The launcher forwards signals to the program ([`Forwarder`]), and exits with the
//! program's status, as a shell would ([`Exit::code`]).

mod child;
mod exit;
mod group;
mod held;
mod prepare;
mod repeater;
mod signals;

pub use child::{adjust_attributes, exec_in_place};
pub use exit::{Exit, LaunchError, OWN_FAILURE};
pub use group::wait_for_all;
pub use held::{ChildProcess, HeldChild, StartingChild, hold, hold_in};
pub use prepare::{LaunchSpec, Stream};
pub use repeater::{Repeater, Repetition, repeat, repeat_in};
pub use signals::Forwarder;
