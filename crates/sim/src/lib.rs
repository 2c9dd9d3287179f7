// SPDX-License-Identifier: MIT OR Apache-2.0
//! A machine, its kernel and its programs in virtual time, for the control
//! loop that also runs real ones.
//!
//! Everything here is a simulation: no figure of this crate was measured.

pub mod alone;
pub mod audit;
pub mod campaign;
pub mod chip;
mod clock;
pub mod coloring;
pub mod engine;
pub mod evaluation;
pub mod fault;
pub mod fidelity;
pub mod hands;
pub mod horizon;
mod job;
pub mod kernel;
pub mod machine;
pub mod mix;
pub mod mixfile;
pub mod oracle;
mod ours;
pub mod parallel;
pub mod parsec;
pub mod playback;
mod programs;
pub mod record;
pub mod sample;
pub mod script;
pub mod setup;
pub mod smt;
mod steps;
pub mod swarm;
pub mod threads;
pub mod trial;
mod turns;
mod weather;
pub mod world;
