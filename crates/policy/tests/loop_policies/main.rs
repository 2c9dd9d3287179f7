// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of whole policies in a control loop on a fluid model of a machine: progress follows each
//! program's true curve, and time is virtual.

#![allow(clippy::unwrap_used)]

mod baselines;
mod casas;
mod fixed;
mod lending;
mod properties;
mod seats;
mod shapes;
mod slurm;
mod spinning;
mod suspendable;
mod turns;
mod variation;
mod world;

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;
