// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of background regulation (`usher`, `eii`, `ipd`) on a model of a machine with CPUs, disks
//! and interfaces in virtual time.

#![allow(clippy::unwrap_used)]

mod compare;
mod cpus;
mod devices;
mod faults;
mod fixtures;
mod isolation;
mod paper;
mod world;
