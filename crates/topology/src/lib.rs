// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines as data: hwloc's view of a computer as a
//! [`Topology`](usher_model::Topology), and a drawing of it.
//!
//! A machine comes from one of four places ([`Source`]): this machine, an XML
//! file written by hwloc, a directory that holds a copy of another machine's
//! `/sys`, or one line of hwloc's synthetic syntax. [`load`] reads any of them.
//!
//! - `source`: what a source is, how people write it, and [`load`];
//! - `synthetic`: what a one-line description may ask for;
//! - `sandbox`: hwloc's parsers run on foreign input in a child process;
//! - `discover`: hwloc's objects as plain parts;
//! - `assemble`: plain parts to a `Topology`, by set arithmetic alone;
//! - `capacity`: how fast a core is beside the fastest;
//! - `usable`: the CPUs that are online and that this process may use;
//! - `draw`: the picture.
//!
//! This crate reads the machine and never changes it.

mod assemble;
mod capacity;
mod discover;
mod draw;
mod error;
mod sandbox;
mod source;
mod synthetic;
mod usable;

pub use draw::{DrawOptions, draw};
pub use error::TopologyError;
pub use source::{Source, load};
pub use usable::{allowed_cpus, online_cpus, usable_cpus};
