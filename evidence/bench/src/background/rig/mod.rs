// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets up the networks, disks and file trees of the experiments.
//!
//! The name of each object of the system contains the benchmark's process number. An object is
//! removed when its value is dropped, or by a [`keeper`] when the benchmark is killed. The next
//! start of the benchmark removes remaining network namespaces ([`network::sweep`]).

pub mod disk;
pub mod inputs;
pub mod keeper;
pub mod network;
pub mod slow;
