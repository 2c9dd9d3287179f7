// SPDX-License-Identifier: MIT OR Apache-2.0
//! A breach of a rule of this crate: the file, the line, and a text that states what is wrong and
//! what to do.

/// A breach of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Breach {
    /// The file, relative to the root of the tree.
    pub path: String,
    /// The number of the line, from 1. 0 means the file as a whole.
    pub line: usize,
    /// A text that states what is wrong and what to do.
    pub what: String,
}

impl Breach {
    /// Creates the breach of a rule at a line of a file.
    pub fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}
