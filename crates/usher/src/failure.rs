// SPDX-License-Identifier: GPL-2.0-only
//! Exit statuses, as `env` and `timeout` have them: a launched program's own
//! is passed on; 125 is Usher's own failure, 126 a command that cannot be
//! run, 127 a command that is not there.

use std::io;
use std::process::ExitCode;

use usher_host::MeasureError;
use usher_host::launch::LaunchError;

use crate::measure::Ended;
use crate::output;

/// Usher itself failed.
pub const OWN: u8 = usher_host::launch::OWN_FAILURE;

/// What a command answers: the status that the process ends with.
pub type Outcome = anyhow::Result<u8>;

/// Prints what went wrong as one line, `usher: …`, and gives the exit status.
/// A reader that went away (`usher topo | head -1`) is no failure.
pub fn exit_code(outcome: Outcome) -> ExitCode {
    let error = match outcome {
        Ok(status) => return ExitCode::from(status),
        Err(error) => error,
    };
    if nobody_reads(&error) {
        return ExitCode::SUCCESS;
    }
    complain(&line(&error));
    ExitCode::from(status(&error))
}

/// The outcome of parts of which none keeps the others from being done: every
/// failure is told, and the last one decides on the status.
pub fn of_parts(parts: impl IntoIterator<Item = anyhow::Result<()>>) -> Outcome {
    let failed = parts.into_iter().filter_map(Result::err);
    let mut failed: Vec<anyhow::Error> = failed.filter(|e| !nobody_reads(e)).collect();
    let Some(last) = failed.pop() else {
        return Ok(0);
    };
    failed.iter().for_each(|error| complain(&line(error)));
    Err(last)
}

/// Whether all that is wrong is that the reader went away.
fn nobody_reads(error: &anyhow::Error) -> bool {
    let causes = error.chain().filter_map(|e| e.downcast_ref::<io::Error>());
    causes
        .map(io::Error::kind)
        .any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// The status that says what kind of failure it was.
fn status(error: &anyhow::Error) -> u8 {
    let known = |cause: &(dyn std::error::Error + 'static)| {
        let ended = cause.downcast_ref::<Ended>().map(Ended::code);
        let launch = cause.downcast_ref::<LaunchError>().map(LaunchError::code);
        let measure = cause.downcast_ref::<MeasureError>().map(MeasureError::code);
        ended.or(launch).or(measure)
    };
    error.chain().find_map(known).unwrap_or(OWN)
}

/// The chain of causes in one line; a cause that its effect quotes already is
/// not said twice.
pub fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = one_line(&without_number(&cause.to_string()));
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

/// Says something on standard error; it is no matter when nobody listens.
pub fn complain(line: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "usher: {}", output::shown(&one_line(line)));
}

/// What the system said, without Rust's " (os error 13)".
fn without_number(text: &str) -> String {
    match text.rsplit_once(" (os error ") {
        Some((said, number)) if number.ends_with(')') => said.to_owned(),
        _ => text.to_owned(),
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
    fn the_last_part_that_fails_decides() {
        let fail = |kind: io::ErrorKind| Err(anyhow::Error::from(io::Error::from(kind)));
        assert_eq!(
            of_parts([Ok(()), fail(io::ErrorKind::BrokenPipe)]).ok(),
            Some(0)
        );
        let both = [
            fail(io::ErrorKind::StorageFull),
            fail(io::ErrorKind::NotFound),
            Ok(()),
        ];
        let last = of_parts(both).unwrap_err();
        assert_eq!(line(&last), "entity not found");
    }

    #[test]
    fn a_chain_is_one_line_and_says_nothing_twice() {
        let error = Err::<(), _>(io::Error::other("disk\nfull"))
            .context("writing x")
            .context("profiling 'y'")
            .unwrap_err();
        assert_eq!(line(&error), "profiling 'y': writing x: disk full");
        let echo = Err::<(), _>(io::Error::other("no"))
            .context("it said no")
            .unwrap_err();
        assert_eq!(line(&echo), "it said no");
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        let denied = Err::<(), _>(denied).context("reading x").unwrap_err();
        assert_eq!(line(&denied), "reading x: Permission denied");
    }
}
