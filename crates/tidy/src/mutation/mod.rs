// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mutation test of the scheduler's C headers: `make mutants`.
//!
//! The test measures how much of the scheduler's code the tests on the host check. It replaces one
//! operator of a header by its opposite, compiles the mutated scheduler, and runs the tests. A
//! mutant is caught if a test fails. A survivor is either equivalent to the original or shows a
//! missing test.
//!
//! 1. [`mutants`] finds the operators ([`c_tokens`] reads the source).
//! 2. [`programs`] builds the tests once. They load the compiled scheduler as a shared library.
//! 3. [`library`] compiles a mutant into a library of its own.
//! 4. [`run`] runs the tests with each library, the fastest first, until one fails.
//! 5. [`survivors`] compares the result with the list of known survivors, and [`report`] prints it.
//!
//! Relational, boolean, arithmetic and bitwise operators are replaced. `<` becomes `>=`: a mutant
//! that differs at the boundary only (`<=`) is not made. Operators of pointers and in `#if` stay.

pub mod c_tokens;
pub mod library;
pub mod mutants;
pub mod options;
pub mod programs;
pub mod report;
pub mod run;
pub mod survivors;

use std::path::PathBuf;

/// Mutated headers, relative to the root of the repository.
pub const FILES: [&str; 7] = [
    "crates/rules/src/bpf/turns.h",
    "crates/scx/src/bpf/run_queue.h",
    "crates/scx/src/bpf/dispatch.h",
    "crates/scx/src/bpf/enqueue.h",
    "crates/scx/src/bpf/select_cpu.h",
    "crates/scx/src/bpf/charge.h",
    "crates/scx/src/bpf/callbacks.h",
];

/// List of survivors, with reasons.
pub const LIST: &str = "crates/rules/survivors.toml";

/// An error of the mutation test: what failed, on which input, and why.
#[derive(Debug)]
pub struct Error(pub String);

impl Error {
    /// Prefixes a cause.
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
    /// Folder of everything that the run creates.
    pub out: PathBuf,
}
