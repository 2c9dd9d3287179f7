// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of reading a topology. Each error is one line that names the input and the reason.
//! Foreign text is shortened to 80 characters, and its control characters are escaped. Paths
//! are shown in full, also with escaped control characters.

use std::path::{Path, PathBuf};

/// Reason why a topology could not be read; one line each, with the input's name.
#[derive(Debug, thiserror::Error)]
pub enum TopologyReadError {
    /// The text is neither a file, a directory, nor a description.
    #[error(
        "cannot read a topology from '{text}': {reason}; give a description such as \
         \"package:2 core:4 pu:2\", an hwloc XML file, or a directory with a copy of /sys"
    )]
    UnknownSource {
        /// The text, shortened.
        text: String,
        /// The reason.
        reason: String,
    },
    /// A one-line description that hwloc does not understand, or that exceeds a limit.
    #[error("cannot build a machine from the description '{text}': {reason}")]
    Synthetic {
        /// The description, shortened.
        text: String,
        /// The reason.
        reason: String,
    },
    /// A file or directory could not be read.
    #[error("cannot read a topology from {path}: {reason}", path = shown_path(path))]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// hwloc could not discover this machine.
    #[error("cannot discover this machine's topology: {reason}")]
    ThisMachine {
        /// The reason and the remedy.
        reason: String,
    },
    /// A file in /proc or /sys that lists the usable CPUs is invalid.
    #[error("cannot determine the usable CPUs from {path}: {reason}", path = shown_path(path))]
    Usable {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The description is valid for hwloc but is not a consistent machine.
    #[error(transparent)]
    Inconsistent(#[from] usher_model::InconsistentTopology),
}

/// The whole path on one line, with control characters escaped.
fn shown_path(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

/// Writes control characters, which could move the cursor of a terminal, as escapes. Other
/// characters are unchanged.
pub(crate) fn escaped(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_debug()),
            false => shown.push(c),
        }
    }
    shown
}

/// The text, shortened to fit an error line, with control characters escaped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_paths_are_escaped() {
        let path = || PathBuf::from("/tmp/a\u{1b}[2J\nb 'ä'");
        let reason = || "no such file".to_owned();
        let errors = [
            TopologyReadError::File {
                path: path(),
                reason: reason(),
            },
            TopologyReadError::Usable {
                path: path(),
                reason: reason(),
            },
        ];
        for error in errors {
            let text = error.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(text.contains("/tmp/a\\u{1b}[2J\\nb 'ä'"), "{text}");
        }
    }
}
