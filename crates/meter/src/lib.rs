// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who uses what of the machine: foreground, background programs, and what is
//! neither; how much CPU time, which disk, which network interface.
//!
//! | | |
//! |---|---|
//! | [`Meter`] | looks again and again; rings when foreground meets background |
//! | [`held_up`] | who in the foreground waits for what a background program holds |
//! | [`keep_account`] | what metering costs |
//!
//! BPF programs in the kernel (`bpf/`) count; this crate loads them, tells them
//! which programs are background, and reads. Where BPF is refused, `/proc` has
//! to do. This crate only reads the machine; files are found below roots that
//! are arguments.

mod blocked;
mod config;
mod disks;
mod error;
mod fallback;
mod files;
mod idle;
mod kin;
mod layout;
mod links;
mod meter;
mod observer;
mod programs;
#[cfg(test)]
mod rules;
mod table;
mod text;

pub use blocked::held_up;
pub use config::{MeterConfig, SERVICES};
pub use error::MeterError;
pub use meter::{Meter, Names, Party, User, Wanted};
pub use programs::{ProgramCost, keep_account};
