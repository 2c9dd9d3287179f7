// SPDX-License-Identifier: MIT OR Apache-2.0
//! Background work beside foreground work, on a machine that is not there.

#![allow(clippy::unwrap_used)]

mod apart;
mod cpus;
mod devices;
mod paper;
mod upkeep;
mod world;
