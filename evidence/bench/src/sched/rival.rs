// SPDX-License-Identifier: MIT OR Apache-2.0
//! The schedulers that the benchmark compares, with their labels, colours and the commands that
//! start them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rival {
    /// The kernel's own.
    Eevdf,
    /// EEVDF with another base slice.
    EevdfSlice {
        /// Milliseconds.
        ms: u64,
    },
    /// `usher sched start`.
    Usher,
    /// First come, first served, blind to SMT: `--fifo`, which keeps most of our program.
    Fifo,
    /// The minimum that the kernel requires: `bpf/minimal_fifo.bpf.c`.
    FifoMinimal,
    /// Paper 4's baseline: `--o1 plain`.
    O1Plain,
    /// Paper 4's cure: `--o1 aggregate`.
    O1Aggregate,
    /// Another sched_ext scheduler.
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

impl Rival {
    /// Label for tables and figures.
    pub fn label(&self) -> String {
        match self {
            Self::Eevdf => "EEVDF".to_owned(),
            Self::EevdfSlice { ms } => format!("EEVDF, slices of {ms} ms"),
            Self::Usher => "ours".to_owned(),
            Self::Fifo => "ours, --fifo".to_owned(),
            Self::FifoMinimal => "minimal FIFO".to_owned(),
            Self::O1Plain => "ours, --o1 plain".to_owned(),
            Self::O1Aggregate => "ours, --o1 aggregate".to_owned(),
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

    /// Words for `usher sched start`; `None` for what Usher does not start.
    pub fn options(&self) -> Option<&'static [&'static str]> {
        match self {
            Self::Usher => Some(&[]),
            Self::Fifo => Some(&["--fifo"]),
            Self::O1Plain => Some(&["--o1", "plain"]),
            Self::O1Aggregate => Some(&["--o1", "aggregate"]),
            Self::Eevdf | Self::EevdfSlice { .. } | Self::FifoMinimal | Self::Peer(_) => None,
        }
    }

    /// Whether it is another project's sched_ext scheduler: neither a mode of usher nor EEVDF.
    pub fn is_peer(&self) -> bool {
        matches!(self, Self::Peer(_))
    }
}
