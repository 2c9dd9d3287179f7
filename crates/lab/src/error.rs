// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong before a guest runs its command.

use std::io;
use std::path::PathBuf;

/// One line: what was being done, to what, why it failed, what to do.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// No machine, or none that a guest can be.
    #[error("the topology '{text}' cannot be a guest's: {reason}")]
    Shape {
        /// As it was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A description that does not describe.
    #[error(transparent)]
    Topology(#[from] usher_topology::TopologyError),
    /// A request that makes no sense for this guest.
    #[error("{0}")]
    Request(String),
    /// A program or file that the lab needs is not there.
    #[error("{what}; {remedy}")]
    Missing {
        /// What is not there.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// No such kernel to be had.
    #[error("no kernel {wanted}: {reason}")]
    Kernel {
        /// As it was asked for.
        wanted: String,
        /// Why there is none.
        reason: String,
    },
    /// Another program did not do what it was to do.
    #[error("{doing}: {said}")]
    Tool {
        /// What it was run for.
        doing: String,
        /// What it said, or how it ended.
        said: String,
    },
    /// The guest was there and would not run the command.
    #[error("the guest: {0}")]
    Guest(String),
    /// The system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, to what.
        doing: String,
        /// Why it failed.
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
