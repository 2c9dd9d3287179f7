// SPDX-License-Identifier: GPL-2.0-only
//! Exit statuses, as `env` and `timeout` have them: a launched program's own
//! is passed on; 125 is Usher's own failure, 126 a command that cannot be
//! run, 127 a command that is not there.

use std::io;
use std::process::ExitCode;

use usher_host::MeasureError;
use usher_host::launch::LaunchError;

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
    let broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        return ExitCode::SUCCESS;
    }
    complain(&line(&error));
    ExitCode::from(status(&error))
}

/// The status that says what kind of failure it was.
fn status(error: &anyhow::Error) -> u8 {
    let known = |cause: &(dyn std::error::Error + 'static)| {
        let launch = cause.downcast_ref::<LaunchError>().map(LaunchError::code);
        let measure = cause.downcast_ref::<MeasureError>().map(MeasureError::code);
        launch.or(measure)
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
    let _ = writeln!(io::stderr(), "usher: {}", one_line(line));
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
