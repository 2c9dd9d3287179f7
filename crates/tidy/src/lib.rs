// SPDX-License-Identifier: MIT OR Apache-2.0
//! The house rules that a compiler does not check, each a function from the
//! files of a tree to what is wrong with them.
//!
//! `cargo test -p usher-tidy` applies them to this repository; every rule also
//! has a test on a small tree made in memory that breaks it, so that a rule
//! that sees nothing is found out.

pub mod dependencies;
pub mod documents;
pub mod layers;
pub mod licence;
pub mod programs;
pub mod purity;
pub mod size;
pub mod tokens;
pub mod tree;
pub mod words;

pub use tree::{File, Tree};

/// One breach of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Breach {
    /// The file, relative to the root of the tree.
    pub path: String,
    /// The line, from 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// What is wrong and what to do about it.
    pub what: String,
}

impl Breach {
    /// A breach at a line of a file.
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

/// A rule: what is wrong with a tree.
pub type Rule = fn(&Tree) -> Vec<Breach>;

/// Every rule, by name.
pub const RULES: [(&str, Rule); 10] = [
    ("licences", licence::check),
    ("sizes", size::check),
    ("layers", layers::check),
    ("purity of policy", purity::check),
    ("words", words::check_words),
    ("paths of one machine", words::check_paths),
    ("sleeping tests", words::check_sleeps),
    ("programs only wire", programs::check),
    ("code map", documents::check_code_map),
    ("links and make targets", documents::check_links),
];
