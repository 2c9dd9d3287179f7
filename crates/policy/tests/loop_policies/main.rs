// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policies in a loop on a fluid model of a machine.

#![allow(clippy::unwrap_used)]

mod baselines;
mod casas;
mod lending;
mod properties;
mod seats;
mod shapes;
mod spinning;
mod turns;
mod world;
mod yielding;

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;
