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

/// Writes control characters, which could move the cursor of a terminal or reverse a text, as
/// escapes. Other characters are unchanged.
pub(crate) fn escaped(text: &str) -> String {
    let is_control = |c: char| {
        let reverses = matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        c.is_control() || reverses
    };
    let mut shown = String::new();
    for c in text.chars() {
        match is_control(c) {
            true => shown.extend(c.escape_debug()),
            false => shown.push(c),
        }
    }
    shown
}

/// A whole input, shortened to fit an error line, with control characters escaped.
pub(crate) fn excerpt(text: &str) -> String {
    shortened(text, 80)
}

/// A word of an input, shortened to fit an error line, with control characters escaped.
pub(crate) fn quoted(word: &str) -> String {
    shortened(word, 32)
}

/// At most the first `most` characters, with control characters escaped.
fn shortened(text: &str, most: usize) -> String {
    let mut rest = text.chars();
    let first: String = rest.by_ref().take(most).collect();
    let more = if rest.next().is_some() { "..." } else { "" };
    format!("{}{more}", escaped(&first))
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

    #[test]
    fn long_texts_are_shortened_and_control_characters_escaped() {
        let text = "ab'\u{1b}\u{202e}".repeat(20);
        let words = |count: usize| "ab'\\u{1b}\\u{202e}".repeat(count);
        assert_eq!(excerpt(&text), format!("{}...", words(16)));
        assert_eq!(quoted(&text), format!("{}ab...", words(6)));
        assert_eq!(quoted("12345"), "12345");
    }
}
