// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab: runs a command under another kernel on another machine.
//!
//! The machine is described in one line (`package:4 die:2 core:6 pu:1`), emulated by QEMU, and runs
//! a Debian kernel with sched_ext. The command has the host's files and a separate Linux system:
//! processes, cgroups, CPUs that can be taken offline, BPF. The command's output and exit status
//! are passed on. A guest has at most 255 CPUs, the host must be x86-64, and only root can share
//! files with a guest. docs/lab.md states the other limits.
//!
//! - `shape`: machines that can be emulated;
//! - `vm`: the main interface, a guest with its options and the command that it runs;
//! - `kernels`, `apt`, `cache`: source and storage of kernels and emulators; `packages`: other
//!   Debian programs for guests;
//! - `emulator`: QEMU and virtiofsd with their arguments;
//! - `clock`: frequency of a guest's counters;
//! - `session`: one guest from start to end, on the host's side;
//! - `guest`: the same inside the guest, where this program is init;
//! - `job`: messages between the two sides; `exit_status`, `error`: results of a guest;
//! - `interrupts`: signals that end a guest;
//! - `systemd`: guests that run Debian with systemd from their own disk;
//! - `cli`: the command `usher-lab`.
//!
//! A program that runs guests is also the init program of their kernels; its `main` must begin with
//! [`become_guest`].

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

/// Runs as init if this process is the first process of a guest, and then does not return.
/// Otherwise does nothing.
pub fn become_guest() {
    if guest::is_first() {
        guest::run_init();
    }
}
