// SPDX-License-Identifier: GPL-2.0-only
//! The sched_ext scheduler in the daemon.
//!
//! One thread ([`SchedulerThread`]) loads, restarts and unloads the scheduler; other threads send
//! it requests through a [`SchedulerControl`]. The kernel unloads the scheduler when the last
//! descriptor of its BPF link is closed. The scheduler therefore ends with this process, at any
//! kind of death of the process.

pub mod api;
mod configured;
mod control;
mod dump;
mod faults;
mod foreground;
mod record;
mod service;
mod soft_seats;
mod state;
mod thread;

use usher_scx::Kernel;

pub use configured::ConfiguredScheduler;
pub use control::SchedulerControl;
pub use foreground::hold;
pub use service::{SchedulerContext, interface};
pub use soft_seats::seats;
pub use state::{
    LIMIT_MS, Phase, SchedulerConfig, SchedulerState, SettingsChange, described, refuse_beside,
    unix_seconds,
};
pub use thread::{ENDING, SchedulerThread};

/// Returns the kernel of this machine.
pub fn kernel() -> Kernel {
    Kernel::of_host()
}
