// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports tests that cannot run on this machine.
//!
//! The test harness of Rust has no result between "passed" and "failed" that a running test can
//! choose. So a test that lacks a right, a device or a kernel feature reports a skip and returns.
//! `make test` sets [`LIST`], lists all skips at its end, and compares them with `.ci/skipped`.

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
/// the test. Without a name of its own the test's thread is called `main`, as the harness calls it
/// with `--test-threads 1`.
///
/// # Panics
/// If the list cannot be written: a skip must not get lost.
pub fn report(file: &str, reason: fmt::Arguments<'_>) {
    let thread = std::thread::current();
    let line = line(file, thread.name().unwrap_or("main"), &reason.to_string());
    eprint!("skipped: {line}");
    let Some(list) = std::env::var_os(LIST) else {
        return;
    };
    // In one write, as other tests append to the file at the same time.
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

/// `FILE: TEST: REASON`, in one line.
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
