// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a launch fails and how a program ends, as exit statuses.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

/// Exit status of Usher's own failures, as `env` and `timeout` use it.
pub const OWN_FAILURE: u8 = 125;
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Why a program could not be launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No command at all.
    #[error("launching a program: no command was given")]
    NoCommand,
    /// The program is nowhere to be found.
    #[error("running '{}': {}", program.display(), source_text(source))]
    NotFound {
        /// The program as given.
        program: OsString,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program is there but cannot be executed.
    #[error("running '{}': {}", program.display(), source_text(source))]
    CannotExecute {
        /// The program as given.
        program: OsString,
        /// What the kernel said.
        source: io::Error,
    },
    /// An argument or a variable that no program can be given.
    #[error("running '{}': {what} holds a NUL byte", program.display())]
    Nul {
        /// The program as given.
        program: OsString,
        /// Which string.
        what: String,
    },
    /// A file for a standard stream could not be opened.
    #[error("opening {} for the program's standard {stream}: {source}", path.display())]
    Stream {
        /// `input`, `output` or `error`.
        stream: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something else on the way there.
    #[error("running '{}': {doing}: {source}", program.display())]
    System {
        /// The program as given.
        program: OsString,
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit status that says so: 127 not found, 126 not executable, 125
    /// everything that is Usher's own failure.
    pub fn code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => NOT_FOUND,
            Self::CannotExecute { .. } => CANNOT_EXECUTE,
            _ => OWN_FAILURE,
        }
    }

    /// What `exec` said about the program.
    pub(super) fn from_exec(program: OsString, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Self::NotFound { program, source },
            _ => Self::CannotExecute { program, source },
        }
    }
}

/// The kernel's words without Rust's "(os error N)".
fn source_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// Its exit status, where it exited.
    pub status: Option<u8>,
    /// The signal that ended it, where one did.
    pub signal: Option<i32>,
    /// CPU time in seconds of the process and the children that it waited for.
    pub cpu_seconds: f64,
}

impl Exit {
    pub(super) fn new(raw_status: i32, cpu_seconds: f64) -> Self {
        let status = ExitStatus::from_raw(raw_status);
        Self {
            // An exit status has eight bits.
            status: status.code().map(|code| (code & 0xff) as u8),
            signal: status.signal(),
            cpu_seconds,
        }
    }

    /// The exit status as a shell gives it: 128 + the signal's number where a
    /// signal ended the program.
    pub fn code(&self) -> u8 {
        let by_signal = || self.signal.map(|signal| (128 + (signal & 0x7f)) as u8);
        self.status.or_else(by_signal).unwrap_or(OWN_FAILURE)
    }

    /// Whether it exited with status 0.
    pub fn success(&self) -> bool {
        self.status == Some(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.status, self.signal) {
            (Some(status), _) => write!(f, "exit status {status}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => f.write_str("an unknown end"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Exit::new(3 << 8, 0.0).code(), 3);
        assert_eq!(Exit::new(0, 0.0).code(), 0);
        assert_eq!(Exit::new(9, 0.0).code(), 137);
        assert_eq!(Exit::new(15, 0.0).to_string(), "signal 15");
    }
}
