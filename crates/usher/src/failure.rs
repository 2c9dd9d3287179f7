// SPDX-License-Identifier: GPL-2.0-only
//! Exit statuses and error messages of all commands: maps errors to exit statuses, formats an error
//! as one line, prints the line, and combines the errors of independent parts.
//!
//! Exit statuses are those of `env` and `timeout`. A launched program's own status is returned
//! unchanged. Usher's own failure has status 125, a command that cannot be executed 126, and a
//! command that does not exist 127. A measurement that a signal ended has status 128 plus the
//! number of the signal.
//!
//! 1. [`exit_code`] ignores an error if its chain of causes contains an I/O error of the kind
//!    `BrokenPipe`. Such an error counts as a closed reader of standard output, as in `usher topo |
//!    head -1`, and the exit status is 0. The check does not distinguish standard output from other
//!    pipes.
//! 2. [`line()`] joins the texts of all causes by `: `. A cause that the text before it already
//!    contains is omitted. Blanks and line ends become single blanks, and Rust's " (os error 13)"
//!    is removed.
//! 3. [`print_error`] writes `usher: ` and the line to standard error, with control characters
//!    escaped. Errors of the write are ignored.
//! 4. [`combine`] prints all errors but the last, and returns the last error, which determines the
//!    exit status. Errors that count as a closed reader are dropped.
//!
//! The cost is linear in the length of the texts, except for the search for repeated causes, which
//! is quadratic.

use std::io;
use std::process::ExitCode;

use usher_host::launch::LaunchError;
use usher_host::mix::MixError;
use usher_host::profile::ProfileError;
use usher_model::without_error_number;

use crate::output;

/// Exit status of a failure of Usher itself: 125.
pub const OWN: u8 = usher_host::launch::OWN_FAILURE;

/// The result of a command: the exit status of the process.
pub type Outcome = anyhow::Result<u8>;

/// A signal ended the measurement.
#[derive(Debug, thiserror::Error)]
#[error("ended by {}", signal_hook::low_level::signal_name(*signal).unwrap_or("a signal"))]
pub struct EndedBySignal {
    /// Number of the signal.
    pub signal: i32,
}

impl EndedBySignal {
    /// Returns the exit status as in a shell: 128 plus the signal's number.
    pub fn code(&self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(OWN)
    }
}

/// Prints an error as one line, `usher: …`, and returns the exit status. A `BrokenPipe` anywhere in
/// the chain of causes counts as a closed reader (`usher topo | head -1`), which is no failure.
pub fn exit_code(outcome: Outcome) -> ExitCode {
    let error = match outcome {
        Ok(status) => return ExitCode::from(status),
        Err(error) => error,
    };
    if is_closed_reader(&error) {
        return ExitCode::SUCCESS;
    }
    print_error(&line(&error));
    ExitCode::from(status(&error))
}

/// Combines the results of independent parts: prints every failure except the last, and returns the
/// last failure, which determines the exit status. Failures by a closed reader are dropped.
pub fn combine(parts: impl IntoIterator<Item = anyhow::Result<()>>) -> Outcome {
    let failed = parts.into_iter().filter_map(Result::err);
    let mut failed: Vec<anyhow::Error> = failed.filter(|e| !is_closed_reader(e)).collect();
    let Some(last) = failed.pop() else {
        return Ok(0);
    };
    failed.iter().for_each(|error| print_error(&line(error)));
    Err(last)
}

/// Returns whether the chain of causes contains a `BrokenPipe`, which counts as a closed reader.
fn is_closed_reader(error: &anyhow::Error) -> bool {
    let causes = error.chain().filter_map(|e| e.downcast_ref::<io::Error>());
    causes
        .map(io::Error::kind)
        .any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// Returns the exit status for this kind of failure.
fn status(error: &anyhow::Error) -> u8 {
    let known = |cause: &(dyn std::error::Error + 'static)| {
        let ended = cause
            .downcast_ref::<EndedBySignal>()
            .map(EndedBySignal::code);
        let launch = cause.downcast_ref::<LaunchError>().map(LaunchError::code);
        let mix = cause.downcast_ref::<MixError>().map(MixError::code);
        let profile = cause.downcast_ref::<ProfileError>().map(ProfileError::code);
        ended.or(launch).or(mix).or(profile)
    };
    error.chain().find_map(known).unwrap_or(OWN)
}

/// Formats the chain of causes in one line; a cause that the text before it already contains is
/// omitted.
pub fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = one_line(&without_error_number(&cause.to_string()));
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

/// Writes a line to standard error; errors are ignored. In a daemon, the line goes to its log.
pub fn print_error(line: &str) {
    let line = one_line(&without_error_number(line));
    if log::max_level() > log::LevelFilter::Off {
        log::error!(target: "usher", "{line}");
        return;
    }
    let line = format!("usher: {}", output::shown(&line));
    let _ = output::write_line(&mut io::stderr(), &line);
}

/// Prints notes on values that were ignored to standard error, one line each.
pub fn print_notes(notes: &[String]) {
    for note in notes {
        print_error(&format!("note: {note}"));
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_last_failed_part_determines_the_status() {
        let fail = |kind: io::ErrorKind| Err(anyhow::Error::from(io::Error::from(kind)));
        assert_eq!(
            combine([Ok(()), fail(io::ErrorKind::BrokenPipe)]).ok(),
            Some(0)
        );
        let both = [
            fail(io::ErrorKind::StorageFull),
            fail(io::ErrorKind::NotFound),
            Ok(()),
        ];
        let last = combine(both).unwrap_err();
        assert_eq!(line(&last), "entity not found");
    }

    #[test]
    fn prints_a_chain_of_errors_in_one_line_without_repetition() {
        let error = Err::<(), _>(io::Error::other("disk\nfull"))
            .context("writing x")
            .context("profiling 'y'")
            .unwrap_err();
        assert_eq!(line(&error), "profiling 'y': writing x: disk full");
        let echo = Err::<(), _>(io::Error::other("no"))
            .context("the answer is no")
            .unwrap_err();
        assert_eq!(line(&echo), "the answer is no");
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        let denied = Err::<(), _>(denied).context("reading x").unwrap_err();
        assert_eq!(line(&denied), "reading x: Permission denied");
        let inside = "writing x: No space left (os error 28) (twice: os error (os error x)";
        let inside = Err::<(), _>(io::Error::other(inside)).context("y");
        assert_eq!(
            line(&inside.unwrap_err()),
            "y: writing x: No space left (twice: os error (os error x)"
        );
    }
}
