// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab: runs a command under another kernel on another machine.
//!
//! The machine is described in one line (`package:4 die:2 core:6 pu:1`), built
//! by QEMU in software, and run with a kernel of Debian's that has sched_ext.
//! The command sees the host's files and a Linux system of its own: processes,
//! cgroups, CPUs that can be taken offline, BPF. What it writes comes back, and
//! its exit status. docs/lab.md says what such a machine is good for, and what
//! it is not.
//!
//! - `shape`: which described machines can be built;
//! - `kernels`, `apt`, `cache`: where kernels come from and stay; `packages`: other
//!   programs of Debian's, for guests;
//! - `emulator`: QEMU and virtiofsd, and what they are told;
//! - `clock`: how fast a guest's counters count;
//! - `session`: one guest, from its start to its end, from outside;
//! - `guest`: the same from inside, where this program is the first one;
//! - `job`: what the two sides say to each other;
//! - `systemd`: guests that run Debian with systemd from a disk of their own;
//! - `cli`: the command `usher-lab`.
//!
//! A program that runs guests is also what their kernels start first, so its
//! `main` begins with [`become_guest`].

mod apt;
mod cache;
pub mod cli;
mod clock;
mod emulator;
mod error;
mod guest;
mod interrupts;
mod job;
pub mod kernels;
pub mod packages;
mod session;
mod shape;
pub mod systemd;
mod vm;

pub use cache::Cache;
pub use error::LabError;
pub use shape::{CPUS_MAX, Shape};
pub use vm::{Clock, End, Idle, Outcome, Streams, Vm};

/// The lab itself failed, or the guest did; as `env` and `timeout` have it.
pub const OWN_FAILURE: u8 = 125;
/// The command cannot be run.
pub const NOT_RUNNABLE: u8 = 126;
/// The command is not there.
pub const NOT_FOUND: u8 = 127;
/// Time was up.
pub const TIMED_OUT: u8 = 124;

/// Takes over where this process is the first one of a guest, and never comes
/// back then; does nothing anywhere else.
pub fn become_guest() {
    if guest::is_first() {
        guest::live();
    }
}
