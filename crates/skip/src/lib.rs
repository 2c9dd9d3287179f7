// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports tests that cannot run on this machine.
//!
//! In Rust's test harness, a running test can only pass or fail. A test that lacks a privilege, a
//! device or a kernel feature therefore reports a skip by [`skip!`] and returns:
//!
//! 1. The skip is printed as `skipped: FILE: TEST: REASON`.
//! 2. If the environment variable [`LIST`] is set, the line is appended to the file that it names.
//! 3. `make test` sets [`LIST`], prints all skips at its end, and compares them with `.ci/skipped`.
//!
//! A list that cannot be written is a panic, and the test then fails. Each skip is one line and one
//! `write` call; white space in the reason is replaced by single spaces.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;

/// Environment variable with the path of the file to which skips are appended, one per line.
pub const LIST: &str = "USHER_SKIPPED";

/// Reports that the calling test, or a part of it, cannot run here. Takes the reason as
/// `format!` does.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {
        $crate::report(file!(), ::std::format_args!($($reason)+))
    };
}

/// Prints the skip and appends it to the file that [`LIST`] names. `file` is the source file of
/// the test. The name of the test is the name of its thread. If the thread has no name, `main` is
/// used, which is also the name of the thread under `--test-threads 1`.
///
/// # Panics
/// If the list cannot be written, because a skip would otherwise be lost.
pub fn report(file: &str, reason: fmt::Arguments<'_>) {
    let thread = std::thread::current();
    let line = line(file, thread.name().unwrap_or("main"), &reason.to_string());
    eprint!("skipped: {line}");
    let Some(list) = std::env::var_os(LIST) else {
        return;
    };
    // The line is appended by one write, because other tests append to the file at the same time.
    let appended = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&list)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = appended {
        panic!(
            "{}: writing the record of a skipped test: {error}",
            list.display()
        );
    }
}

/// Returns `FILE: TEST: REASON` in one line, with a line feed.
fn line(file: &str, test: &str, reason: &str) -> String {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{file}: {test}: {reason}\n")
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_reason_of_several_lines_is_one_line() {
        let expected = "crates/act/tests/pins.rs: pins: needs two CPUs\n";
        assert_eq!(
            line("crates/act/tests/pins.rs", "pins", "needs\n  two CPUs"),
            expected
        );
    }
}
