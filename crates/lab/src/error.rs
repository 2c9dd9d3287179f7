// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of the lab, which occur before a guest runs its command. The text of an error is one line
//! with the operation, its object, the reason and the remedy.

use std::io;
use std::path::PathBuf;

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The text does not describe a machine, or describes a machine that a guest cannot have.
    #[error("a guest cannot have the topology '{text}': {reason}")]
    Shape {
        /// The text.
        text: String,
        /// The reason.
        reason: String,
    },
    /// An invalid description.
    #[error(transparent)]
    Topology(#[from] usher_topology::TopologyReadError),
    /// A request that no guest can satisfy.
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
    /// The requested kernel is not available.
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
        /// The operation for which the program was started.
        doing: String,
        /// The message of the program, or its exit status.
        message: String,
    },
    /// The guest has started but could not run the command.
    #[error("the guest could not run the command: {0}")]
    Guest(String),
    /// A system call or a file operation failed.
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

    /// Returns a function that converts an error of a file operation, as [`io`](Self::io) does,
    /// with the path of the file.
    pub(crate) fn file(doing: &str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        Self::io(format!("{doing} {}", path.into().display()))
    }
}
