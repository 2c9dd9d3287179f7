// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the lab before a guest runs its command. Each is one line with the operation, its
//! object, the reason and the remedy.

use std::io;
use std::path::PathBuf;

/// An error of one line: the operation, its object, the reason and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The text describes no machine, or no machine that a guest can have.
    #[error("a guest cannot have the topology '{text}': {reason}")]
    Shape {
        /// The topology as given.
        text: String,
        /// The reason.
        reason: String,
    },
    /// An invalid description.
    #[error(transparent)]
    Topology(#[from] usher_topology::TopologyReadError),
    /// A request that this guest cannot satisfy.
    #[error("{0}")]
    Request(String),
    /// A required program or file is missing.
    #[error("{what}; {remedy}")]
    Missing {
        /// The missing item.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// A kernel is not available.
    #[error("the kernel '{wanted}' is not available: {reason}")]
    Kernel {
        /// The requested kernel.
        wanted: String,
        /// The reason.
        reason: String,
    },
    /// Another program failed.
    #[error("{doing}: {message}")]
    Tool {
        /// The purpose of the program.
        doing: String,
        /// The message of the program, or how it ended.
        message: String,
    },
    /// The guest has started but could not run the command.
    #[error("the guest could not run the command: {0}")]
    Guest(String),
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// The operation and its object.
        doing: String,
        /// The reason.
        source: io::Error,
    },
}

impl LabError {
    pub(crate) fn shape(text: &str, reason: impl Into<String>) -> Self {
        Self::Shape {
            text: text.to_owned(),
            reason: reason.into(),
        }
    }

    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// As [`io`](Self::io), for a file.
    pub(crate) fn file(doing: &str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        Self::io(format!("{doing} {}", path.into().display()))
    }
}
