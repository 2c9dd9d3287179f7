// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mutation test of the scheduler's C headers: `make mutants`.
//!
//! The test measures how much of the scheduler's code is checked by the tests that run outside the
//! kernel. A *mutant* is a copy of the scheduler in which one operator of a header is replaced by
//! its opposite. A mutant is *caught* if a test fails with it. A mutant with which all tests pass
//! is a *survivor*: either the mutant is equivalent to the original, or a test is missing.
//!
//! 1. [`mutants`] finds the operators ([`c_tokens`] reads the source).
//! 2. [`programs`] builds the tests once. They load the compiled scheduler as a shared library.
//! 3. [`library`] compiles a mutant into a library of its own.
//! 4. [`run`] runs the tests with each library, beginning with tests that take little time or have
//!    caught many mutants, until one of the tests fails.
//! 5. [`survivors`] compares the survivors with the list of known survivors, and [`report`] formats
//!    the results.
//!
//! A unit of tests that exceeds its time limit (10 s plus ten times its usual time) catches the
//! mutant. A mutant costs at most two compilations and one run of all tests.
//!
//! Relational, boolean, arithmetic and bitwise operators are replaced. `<` becomes `>=`; a mutant
//! with `<=`, which differs from the original only at the boundary, is not created. Operators on
//! pointers (`*`, `&`) and operators in `#if` are not replaced.

pub mod c_tokens;
pub mod library;
pub mod mutants;
pub mod options;
pub mod programs;
pub mod report;
pub mod run;
pub mod survivors;

use std::path::PathBuf;

/// The headers that are mutated, relative to the root of the repository.
pub const FILES: [&str; 7] = [
    "crates/rules/src/bpf/turns.h",
    "crates/scx/src/bpf/run_queue.h",
    "crates/scx/src/bpf/dispatch.h",
    "crates/scx/src/bpf/enqueue.h",
    "crates/scx/src/bpf/select_cpu.h",
    "crates/scx/src/bpf/charge.h",
    "crates/scx/src/bpf/callbacks.h",
];

/// The list of known survivors, with reasons.
pub const LIST: &str = "crates/rules/survivors.toml";

/// An error of the mutation test: what failed, on which input, and why.
#[derive(Debug)]
pub struct Error(pub String);

impl Error {
    /// Creates the error that `what` failed because of `cause`.
    pub fn of(what: impl std::fmt::Display, cause: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {cause}"))
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Folders of a run.
#[derive(Debug, Clone)]
pub struct Folders {
    /// Root of the repository.
    pub root: PathBuf,
    /// Folder of all files that the run creates.
    pub out: PathBuf,
}
