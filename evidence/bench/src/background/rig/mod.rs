// SPDX-License-Identifier: MIT OR Apache-2.0
//! Infrastructure of experiments: networks, disks, file trees.
//!
//! Everything has the benchmark's process number in its name, and is undone
//! when dropped, when the benchmark is killed ([`keeper`]), or at the next
//! start ([`network::sweep`]).

pub mod disk;
pub mod inputs;
pub mod keeper;
pub mod network;
pub mod slow;
