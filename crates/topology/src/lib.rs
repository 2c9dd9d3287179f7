// SPDX-License-Identifier: MIT OR Apache-2.0
//! Machines as data: hwloc's description of a computer as a [`Topology`](usher_model::Topology),
//! and its drawing.
//!
//! A machine has one of four sources ([`Source`]): this machine, an XML file written by hwloc, a
//! directory with a copy of another machine's `/sys`, or one line of hwloc's synthetic syntax.
//! [`load`] reads a machine from any source.
//!
//! - `source`: sources, their syntax, and [`load`];
//! - `synthetic`: one-line descriptions;
//! - `xml`: files of hwloc's versions 1 to 3;
//! - [`mod@file`]: reads foreign files with limits, also for other crates;
//! - `sandbox`: runs hwloc's parsers on foreign input in a child process;
//! - `capture`: checks a copy of `/sys` before hwloc reads it;
//! - `discover`: converts hwloc's objects to plain facts;
//! - `assemble`: assembles facts into a `Topology`, by set arithmetic alone;
//! - `capacity`: speed of a core relative to the fastest core;
//! - `usable`: the CPUs that are online and usable by this process;
//! - `draw`: the drawing.
//!
//! This crate reads the machine and never changes it.

mod assemble;
mod capacity;
mod capture;
mod discover;
mod draw;
mod error;
pub mod file;
mod sandbox;
mod source;
mod synthetic;
mod usable;
mod xml;

pub use draw::{DrawOptions, draw};
pub use error::TopologyReadError;
pub use source::{DescribedMachine, Source, describe, load};
pub use usable::{allowed_cpus, online_cpus, usable_cpus};
