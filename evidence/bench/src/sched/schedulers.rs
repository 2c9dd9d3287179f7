// SPDX-License-Identifier: MIT OR Apache-2.0
//! The schedulers that the benchmark compares, with their labels and colours on the page, and the
//! options of `usher sched start` for those that Usher provides.
//!
//! `--fifo` is a mode of Usher's own sched_ext scheduler that shares its code except for the order of
//! threads, so a comparison with it isolates that order. The minimal FIFO and the O(1) scheduler of
//! paper 4 are BPF programs of this package.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A scheduler under comparison, as samples name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedScheduler {
    /// EEVDF, the default scheduler of the kernel.
    Eevdf,
    /// EEVDF with another base slice, set in debugfs.
    EevdfSlice {
        /// Base slice in milliseconds.
        ms: u64,
    },
    /// Usher's scheduler with its default options: `usher sched start`.
    Usher,
    /// Usher's scheduler with `--fifo`: first come, first served, without regard to SMT or address
    /// spaces. It executes most of the code of Usher's scheduler at a wake-up and a switch.
    Fifo,
    /// The smallest sched_ext scheduler that the kernel accepts: `bpf/minimal_fifo.bpf.c`.
    FifoMinimal,
    /// The baseline of paper 4, the O(1) scheduler of Linux 2.6: `bpf/o1.bpf.c`.
    O1Plain,
    /// The scheduler that paper 4 proposes, which runs threads of one address space one after
    /// another: the same with `aggregate`.
    O1Aggregate,
    /// A sched_ext scheduler of another project.
    Peer(Peer),
}

/// A scheduler from crates.io.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Name of the crate and of its program.
    pub name: String,
    /// Pinned version.
    pub version: String,
    /// Path of the program.
    pub program: PathBuf,
}

impl ComparedScheduler {
    /// Label for tables and figures.
    pub fn label(&self) -> String {
        match self {
            Self::Eevdf => "EEVDF".to_owned(),
            Self::EevdfSlice { ms } => format!("EEVDF, slices of {ms} ms"),
            Self::Usher => "usher".to_owned(),
            Self::Fifo => "usher --fifo".to_owned(),
            Self::FifoMinimal => "minimal FIFO".to_owned(),
            Self::O1Plain => "O(1)".to_owned(),
            Self::O1Aggregate => "O(1), paper 4".to_owned(),
            Self::Peer(peer) => format!("{} {}", peer.name, peer.version),
        }
    }

    /// Colour class of figures.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Eevdf => "p0",
            Self::EevdfSlice { .. } => "p5",
            Self::Usher => "p1",
            Self::Fifo | Self::FifoMinimal => "p2",
            Self::O1Plain => "p3",
            Self::O1Aggregate => "p4",
            Self::Peer(peer) if peer.name.ends_with("bpfland") => "p6",
            Self::Peer(_) => "p7",
        }
    }

    /// Options of `usher sched start`; `None` for schedulers that Usher does not start.
    pub fn options(&self) -> Option<&'static [&'static str]> {
        match self {
            Self::Usher => Some(&[]),
            Self::Fifo => Some(&["--fifo"]),
            Self::Eevdf
            | Self::EevdfSlice { .. }
            | Self::FifoMinimal
            | Self::O1Plain
            | Self::O1Aggregate
            | Self::Peer(_) => None,
        }
    }

    /// Whether it is another project's sched_ext scheduler: neither a mode of usher, a
    /// baseline nor EEVDF.
    pub fn is_peer(&self) -> bool {
        matches!(self, Self::Peer(_))
    }
}
