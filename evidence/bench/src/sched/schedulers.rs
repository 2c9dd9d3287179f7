// SPDX-License-Identifier: MIT OR Apache-2.0
//! The schedulers that the benchmark compares, with their labels and colours on the page. For
//! Usher's own schedulers, also the options of `usher sched start`.
//!
//! `--fifo` is a mode of Usher's sched_ext scheduler that differs from the default mode only in the
//! order of threads. A comparison of the two modes therefore shows the effect of the order alone.
//! The minimal FIFO and the O(1) scheduler of paper 4 are BPF programs of this package.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A compared scheduler. Samples contain its name in JSON.
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
    /// EEVDF without cache-aware load balancing (CONFIG_SCHED_CACHE), which is switched off in
    /// debugfs.
    EevdfCacheOff,
    /// Usher's scheduler with its default options: `usher sched start`.
    Usher,
    /// Usher's scheduler with `--fifo`: first come, first served, without regard to SMT or address
    /// spaces. At a wake-up and at a switch, this mode executes most of the code of the default
    /// mode.
    Fifo,
    /// The smallest sched_ext scheduler that the kernel accepts: `bpf/minimal_fifo.bpf.c`.
    FifoMinimal,
    /// The baseline of paper 4, the O(1) scheduler of Linux 2.6: `bpf/o1.bpf.c`.
    O1Plain,
    /// The scheduler that paper 4 proposes: `bpf/o1.bpf.c` with `aggregate`, which prefers threads
    /// of the address space that runs.
    O1Aggregate,
    /// A sched_ext scheduler of another project.
    Peer(Peer),
}

/// A scheduler of another project, from crates.io.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Name of the crate, which is also the name of its program.
    pub name: String,
    /// Pinned version.
    pub version: String,
    /// Path of the built program.
    pub program: PathBuf,
    /// Options of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl ComparedScheduler {
    /// Label of the scheduler in tables and figures.
    pub fn label(&self) -> String {
        match self {
            Self::Eevdf => "EEVDF".to_owned(),
            Self::EevdfSlice { ms } => format!("EEVDF, slices of {ms} ms"),
            Self::EevdfCacheOff => "EEVDF, not cache-aware".to_owned(),
            Self::Usher => "usher".to_owned(),
            Self::Fifo => "usher --fifo".to_owned(),
            Self::FifoMinimal => "minimal FIFO".to_owned(),
            Self::O1Plain => "O(1)".to_owned(),
            Self::O1Aggregate => "O(1), paper 4".to_owned(),
            Self::Peer(peer) => {
                let words = [peer.name.as_str(), &peer.version].into_iter();
                let words = words.chain(peer.options.iter().map(String::as_str));
                words.collect::<Vec<&str>>().join(" ")
            }
        }
    }

    /// CSS class of the scheduler's colour in figures.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Eevdf => "p0",
            Self::EevdfSlice { .. } | Self::EevdfCacheOff => "p5",
            Self::Usher => "p1",
            Self::Fifo | Self::FifoMinimal => "p2",
            Self::O1Plain => "p3",
            Self::O1Aggregate => "p4",
            Self::Peer(peer) if peer.name.ends_with("bpfland") => "p6",
            Self::Peer(_) => "p7",
        }
    }

    /// Options of `usher sched start` for the scheduler; `None` if `usher` does not start it.
    pub fn options(&self) -> Option<&'static [&'static str]> {
        match self {
            Self::Usher => Some(&[]),
            Self::Fifo => Some(&["--fifo"]),
            Self::Eevdf
            | Self::EevdfSlice { .. }
            | Self::EevdfCacheOff
            | Self::FifoMinimal
            | Self::O1Plain
            | Self::O1Aggregate
            | Self::Peer(_) => None,
        }
    }

    /// Whether the scheduler is a sched_ext scheduler of another project.
    pub fn is_peer(&self) -> bool {
        matches!(self, Self::Peer(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_of_a_peer_has_its_options() {
        let peer = |options: &[&str]| Peer {
            name: "scx_x".to_owned(),
            version: "1.2".to_owned(),
            program: PathBuf::from("/x"),
            options: options.iter().map(|&option| option.to_owned()).collect(),
        };
        let label = |options| ComparedScheduler::Peer(peer(options)).label();
        assert_eq!(label(&[]), "scx_x 1.2");
        assert_eq!(label(&["--fast"]), "scx_x 1.2 --fast");
        // Text that an older version of the benchmark wrote.
        let older = r#"{"peer":{"name":"scx_x","version":"1.2","program":"/x"}}"#;
        let parsed: ComparedScheduler = serde_json::from_str(older).unwrap();
        assert_eq!(parsed, ComparedScheduler::Peer(peer(&[])));
        assert_eq!(serde_json::to_string(&parsed).unwrap(), older);
    }
}
