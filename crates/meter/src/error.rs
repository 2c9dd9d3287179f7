// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes wrong while metering.

use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be metered.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// A file could not be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file was read and is not what it should be.
    #[error("{} does not look like {expected}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What was expected in it.
        expected: &'static str,
    },
    /// The kernel refused something of BPF.
    #[error("{doing}: {source}; metering by BPF needs root or CAP_BPF and CAP_PERFMON")]
    Bpf {
        /// What was being done.
        doing: String,
        /// What the kernel or libbpf said.
        source: libbpf_rs::Error,
    },
    /// The cgroup lies deeper than the programs look.
    #[error(
        "{} lies {level} levels below the root, more than {most}: take a cgroup nearer to it",
        path.display()
    )]
    TooDeep {
        /// Which cgroup.
        path: PathBuf,
        /// How deep it lies.
        level: u32,
        /// How deep it may.
        most: u32,
    },
    /// The process is not there any more, or a later one has its number.
    #[error("process {pid} has ended")]
    Gone {
        /// Which.
        pid: i32,
    },
}

impl MeterError {
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn malformed(path: &Path, expected: &'static str) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            expected,
        }
    }

    pub(crate) fn bpf(doing: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |source| Self::Bpf {
            doing: doing.into(),
            source,
        }
    }
}
