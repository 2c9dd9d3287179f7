// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a topology could not be read.

use std::path::PathBuf;

/// Why a topology could not be read; one line each, naming the input.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The text names neither a file, nor a directory, nor a description.
    #[error(
        "cannot read a topology from '{text}': {reason}; give a description such as \
         \"package:2 core:4 pu:2\", an hwloc XML file, or a directory with a copy of /sys"
    )]
    UnknownSource {
        /// The text as given, shortened.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A one-line description that hwloc does not understand, or that asks
    /// for too much.
    #[error("cannot build a machine from the description '{text}': {reason}")]
    Synthetic {
        /// The description as given, shortened.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file or directory that could not be read.
    #[error("cannot read a topology from {path}: {reason}", path = path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// hwloc could not discover this machine.
    #[error("cannot discover this machine's topology: {reason}")]
    ThisMachine {
        /// Why, and what to do.
        reason: String,
    },
    /// A file of /proc or /sys that says which CPUs may be used.
    #[error("cannot tell which CPUs may be used, from {path}: {reason}", path = path.display())]
    Usable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The description holds together for hwloc but not as a machine.
    #[error(transparent)]
    Inconsistent(#[from] usher_model::InconsistentTopology),
}

/// The text, shortened to what fits in an error line, control characters
/// shown as escapes.
pub(crate) fn excerpt(text: &str) -> String {
    const SHOWN: usize = 80;
    let mut shown: String = text
        .chars()
        .take(SHOWN)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push_str("...");
    }
    shown
}
