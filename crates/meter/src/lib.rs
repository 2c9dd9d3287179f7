// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures the use of CPU time, disks and network interfaces, separately for foreground work, for
//! each background program, and for ignored processes (services, the kernel).
//!
//! | | |
//! |---|---|
//! | [`Meter`] | takes samples; notifies when foreground and background use the same device |
//! | [`find_blocked`] | finds foreground processes that wait for a background program |
//! | [`enable_bpf_stats`] | has the kernel measure the cost of the BPF programs |
//!
//! BPF programs in the kernel (`bpf/`) count the use. This crate loads the BPF programs, configures
//! which programs are background work, and reads the maps. If the kernel rejects BPF, the meter
//! reads `/proc` instead. This crate changes nothing on the machine. The mount points of `/proc`
//! and `/sys` are arguments.

mod blocked;
mod config;
mod disks;
mod error;
mod fallback;
mod files;
mod idle;
mod layout;
mod links;
#[cfg(test)]
mod logic;
mod meter;
mod observer;
mod proc_tree;
mod programs;
mod table;
mod text;

pub use blocked::find_blocked;
pub use config::{MeterConfig, SERVICES};
pub use error::MeterError;
pub use meter::{DeviceNames, Meter, NotifyOn, OwnerClass, ProcessShare};
pub use programs::{ProgramCost, enable_bpf_stats};
