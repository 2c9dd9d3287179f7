// SPDX-License-Identifier: MIT OR Apache-2.0
//! Background work beside foreground work on a model of a machine.

#![allow(clippy::unwrap_used)]

mod compare;
mod cpus;
mod devices;
mod faults;
mod fixtures;
mod isolation;
mod paper;
mod world;
