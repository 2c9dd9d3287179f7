// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launch errors and program exits, and their mapping to exit statuses. The statuses are those of a
//! shell, `env` and `timeout`: 125 for a failure of Usher, 126 for a program that is not
//! executable, 127 for a program that is not found, 128 + N for a program that signal N ended.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};

/// Exit status of Usher's own failures, as in `env` and `timeout`.
pub const OWN_FAILURE: u8 = 125;
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The reason why a program could not be launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The command is empty.
    #[error("no program can be launched, because no command was given")]
    NoCommand,
    /// The program does not exist.
    #[error("running '{}': {}", program.display(), source_text(source))]
    NotFound {
        /// The program as given.
        program: OsString,
        /// The kernel's error.
        source: io::Error,
    },
    /// The program exists but cannot be executed.
    #[error("running '{}': {}", program.display(), source_text(source))]
    CannotExecute {
        /// The program as given.
        program: OsString,
        /// The kernel's error.
        source: io::Error,
    },
    /// An argument or an environment variable contains a NUL byte.
    #[error("running '{}': {what} contains a NUL byte", program.display())]
    Nul {
        /// The program as given.
        program: OsString,
        /// The string.
        what: String,
    },
    /// A file for a standard stream could not be opened.
    #[error("opening {} for the program's standard {stream}: {source}", path.display())]
    Stream {
        /// `input`, `output` or `error`.
        stream: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another step failed.
    #[error("running '{}' failed while {doing}: {source}", program.display())]
    System {
        /// The program as given.
        program: OsString,
        /// The step.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl LaunchError {
    /// Returns the exit status: 127 for a program that is not found, 126 for a program that is not
    /// executable, 125 for all failures of Usher itself.
    pub fn code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => NOT_FOUND,
            Self::CannotExecute { .. } => CANNOT_EXECUTE,
            _ => OWN_FAILURE,
        }
    }

    /// Returns whether the program was not started because this process or the machine has no more
    /// descriptors, processes or memory.
    pub fn is_shortage(&self) -> bool {
        let Self::System { source, .. } = self else {
            return false;
        };
        matches!(
            source.raw_os_error(),
            Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM)
        )
    }

    /// Returns the error for a failed `exec`.
    pub(super) fn from_exec(program: OsString, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Self::NotFound { program, source },
            _ => Self::CannotExecute { program, source },
        }
    }
}

/// Returns the error's text without Rust's suffix "(os error N)".
fn source_text(error: &io::Error) -> String {
    usher_model::without_error_number(&error.to_string())
}

/// The end of a program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit status of the program, if it exited.
    pub status: Option<u8>,
    /// The signal that ended the program, if a signal did.
    pub signal: Option<i32>,
    /// CPU time in seconds of the process and the children that it waited for.
    pub cpu_seconds: f64,
}

impl Exit {
    pub(super) fn new(raw_status: i32, cpu_seconds: f64) -> Self {
        let status = ExitStatus::from_raw(raw_status);
        Self {
            // Only the lower eight bits are an exit status.
            status: status.code().map(|code| (code & 0xff) as u8),
            signal: status.signal(),
            cpu_seconds,
        }
    }

    /// Returns the exit status as in a shell: 128 + the signal's number if a signal ended the
    /// program.
    pub fn code(&self) -> u8 {
        let by_signal = || self.signal.map(|signal| (128 + (signal & 0x7f)) as u8);
        self.status.or_else(by_signal).unwrap_or(OWN_FAILURE)
    }

    /// Returns whether the program exited with status 0.
    pub fn success(&self) -> bool {
        self.status == Some(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.status, self.signal) {
            (Some(status), _) => write!(f, "exit status {status}"),
            (None, Some(signal)) => write!(f, "signal {signal}"),
            (None, None) => f.write_str("an unknown exit status"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(Exit::new(3 << 8, 0.0).code(), 3);
        assert_eq!(Exit::new(0, 0.0).code(), 0);
        assert_eq!(Exit::new(9, 0.0).code(), 137);
        assert_eq!(Exit::new(15, 0.0).to_string(), "signal 15");
    }
}
