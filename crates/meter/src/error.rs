// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of the meter: a file of `/proc` or `/sys` that is unreadable or malformed, a BPF
//! operation that the kernel rejects, a cgroup that is too deep, and a process that has ended.

use std::io;
use std::path::{Path, PathBuf};

/// An error while metering.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// A file could not be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file was read, but does not have the expected format.
    #[error("the file {} has an unexpected format; expected {expected}", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
    },
    /// The kernel rejected a BPF operation.
    #[error("{doing}: {source}; metering by BPF requires root, or CAP_BPF and CAP_PERFMON")]
    Bpf {
        /// The BPF operation.
        doing: String,
        /// The error of the kernel or of libbpf.
        source: libbpf_rs::Error,
    },
    /// The cgroup is deeper than the levels that the BPF programs search.
    #[error(
        "the cgroup {} is {level} levels below the root, but at most {most} are supported: use a \
         cgroup nearer to the root",
        path.display()
    )]
    TooDeep {
        /// The cgroup's directory.
        path: PathBuf,
        /// Level of the cgroup below the root.
        level: u32,
        /// The maximum depth.
        most: u32,
    },
    /// The process to manage has ended, or its number belongs to a later process.
    #[error("process {pid} has ended")]
    Gone {
        /// The process.
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
