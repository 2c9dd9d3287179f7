// SPDX-License-Identifier: MIT OR Apache-2.0
//! The house rules that a compiler does not check, each a function from the
//! files of a tree to what is wrong with them.
//!
//! `cargo test -p usher-tidy` applies them to this repository; every rule also
//! has a test on a small tree made in memory that breaks it, so that a rule
//! that sees nothing is found out.

mod breach;
mod c_lines;
pub mod circles;
pub mod dependencies;
pub mod documents;
pub mod layers;
pub mod licence;
pub mod messages;
pub mod mutation;
pub mod names;
pub mod programs;
pub mod prose;
pub mod purity;
pub mod sample;
pub mod size;
pub mod subjects;
pub mod tokens;
pub mod tree;
pub mod words;
pub mod workspaces;

pub use breach::Breach;
pub use tree::{File, Tree};

/// A rule: what is wrong with a tree.
pub type Rule = fn(&Tree) -> Vec<Breach>;

/// Every rule, by name.
pub const RULES: [(&str, Rule); 15] = [
    ("prose", prose::check),
    ("old names", names::check_old),
    ("homonyms", names::check_homonyms),
    ("licences", licence::check),
    ("sizes", size::check),
    ("layers", layers::check),
    ("workspaces", workspaces::check),
    ("circles of files", circles::check),
    ("purity of the crate policy", purity::check),
    ("words", words::check_words),
    ("paths of one machine", words::check_paths),
    ("sleeping tests", words::check_sleeps),
    ("programs only wire", programs::check),
    ("code map", documents::check_code_map),
    ("links and make targets", documents::check_links),
];
