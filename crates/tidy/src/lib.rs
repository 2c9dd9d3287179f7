// SPDX-License-Identifier: MIT OR Apache-2.0
//! The project's rules that no compiler checks. A rule is a function from the files of the
//! repository (a [`Tree`]) to the breaches of the rule.
//!
//! `cargo test -p usher-tidy` applies all rules to this repository. Each rule also has a test with
//! a small tree in memory that breaks the rule, which detects a rule that finds nothing.

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

/// A rule: returns the breaches of the rule in a tree.
pub type Rule = fn(&Tree) -> Vec<Breach>;

/// All rules, each with its name.
pub const RULES: [(&str, Rule); 16] = [
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
    ("table of contents", documents::check_contents),
];
