// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab runs a command in a guest, which has another topology and another kernel than the host.
//!
//! A *guest* is a machine that QEMU emulates. Its topology is described in one line
//! (`package:4 die:2 core:6 pu:1`), and it runs a Debian kernel with sched_ext. The command sees
//! the host's files, but has the processes, cgroups and BPF programs of the guest, and can take the
//! guest's CPUs offline. The lab forwards the command's output and returns its exit status.
//!
//! Limits: a guest has at most 255 CPUs, the host must be x86-64, and the lab must run as root to
//! share the host's files. docs/lab.md states the other limits.
//!
//! - `shape`: machines that can be emulated;
//! - `vm`: the main interface, a guest with its options and the command that it runs;
//! - `kernels`, `apt`, `cache`: where kernels and emulators come from and are stored; `packages`:
//!   other Debian programs for guests;
//! - `emulator`: QEMU and virtiofsd with their arguments;
//! - `clock`: frequency of a guest's counters;
//! - `session`: one guest from start to end, on the host's side;
//! - `guest`: a session on the guest's side, where this program is the init process;
//! - `job`: messages between host and guest; `exit_status`, `error`: results of a guest;
//! - `interrupts`: signals that end a guest;
//! - `systemd`: guests that run Debian with systemd from their own disk;
//! - `cli`: the command `usher-lab`.
//!
//! The kernel of a guest starts the program that has started the guest as its init process. The
//! `main` of a program that runs guests must therefore begin with [`become_guest`].

mod apt;
mod cache;
pub mod cli;
mod clock;
mod emulator;
mod error;
mod exit_status;
mod guest;
mod interrupts;
mod job;
pub mod kernels;
pub mod packages;
mod session;
mod shape;
pub mod systemd;
mod vm;

pub use cache::LabCache;
pub use error::LabError;
pub use exit_status::{NOT_FOUND, NOT_RUNNABLE, OWN_FAILURE, TIMED_OUT};
pub use shape::{CPUS_MAX, Shape};
pub use vm::{Clock, GuestEnd, GuestOutcome, IdleTime, Streams, Vm};

/// If this process is the init process of a guest, runs the guest and never returns. In all other
/// processes, returns at once.
pub fn become_guest() {
    if guest::is_first() {
        guest::run_init();
    }
}
