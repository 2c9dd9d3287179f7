// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors for which a mix or a profile was not measured, and their exit statuses. When such an
//! error is returned, all actions have been undone and all started programs have ended.

use std::path::PathBuf;

use usher_store::StoreError;

use crate::engine::EngineError;
use crate::launch::{Exit, LaunchError, OWN_FAILURE};
use crate::mix::MixFileError;
use crate::profile::ALONE;

/// The reason why a mix or a profile was not measured. All actions have been undone, and all
/// started programs have ended, when this is returned.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The file is malformed.
    #[error(transparent)]
    File(#[from] MixFileError),
    /// The policy does not exist.
    #[error("there is no policy '{name}': choose from {}", usher_policy::NAMES.join(", "))]
    Policy {
        /// The given name.
        name: String,
    },
    /// A policy is given twice by one name.
    #[error("policy '{name}' is given twice: write '{name}#2' for another arm of it")]
    DuplicatePolicy {
        /// The name.
        name: String,
    },
    /// A program of the mix cannot be run.
    #[error("program '{name}': {source}{}", hint(package.as_deref()))]
    Program {
        /// Its name in the mix.
        name: String,
        /// The Debian package that contains it.
        package: Option<String>,
        /// The cause.
        source: LaunchError,
    },
    /// A file that a program needs does not exist.
    #[error("program '{name}': its {what} {} cannot be read: {source}", path.display())]
    Input {
        /// Its name in the mix.
        name: String,
        /// The kind of file.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A command that makes inputs failed.
    #[error("setup '{command}' ended with {exit}{}", stderr_text(stderr))]
    Setup {
        /// The command.
        command: String,
        /// Its end.
        exit: Exit,
        /// The end of its standard error.
        stderr: String,
    },
    /// A command that makes inputs did not create its output.
    #[error("setup '{command}' did not create {}", path.display())]
    MissingOutput {
        /// The command.
        command: String,
        /// The missing file.
        path: PathBuf,
    },
    /// A program failed.
    #[error(
        "program '{name}' ended with {exit} {}{}",
        under(policy),
        stderr_text(stderr)
    )]
    Failed {
        /// Its name in the mix.
        name: String,
        /// Its end.
        exit: Exit,
        /// The policy.
        policy: String,
        /// The end of its standard error.
        stderr: String,
    },
    /// A program exceeded the time limit of a repetition.
    #[error(
        "program '{name}' {}: a repetition did not end within {seconds:.0} s{}",
        under(policy),
        if policy == ALONE { "" } else { "; set protocol.timeout_seconds if it needs longer" }
    )]
    TimedOut {
        /// Its name in the mix.
        name: String,
        /// The policy.
        policy: String,
        /// The time limit.
        seconds: f64,
    },
    /// The control loop failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A program could not be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The profile store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A step of the runner failed.
    #[error("{doing}: {source}")]
    System {
        /// The step.
        doing: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The curve is invalid.
    #[error("the curve of '{name}': {source}")]
    Curve {
        /// The program.
        name: String,
        /// The cause.
        source: usher_model::CurveError,
    },
    /// A core count is out of range.
    #[error("core counts must be between 1 and {most}, not {given}")]
    Cores {
        /// The given count.
        given: u32,
        /// The machine's number of cores.
        most: u32,
    },
    /// The user has cancelled.
    #[error("interrupted")]
    Cancelled,
}

impl MeasureError {
    /// The exit status.
    pub fn code(&self) -> u8 {
        match self {
            Self::Engine(error) => error.code(),
            Self::Launch(error) | Self::Program { source: error, .. } => error.code(),
            Self::Cancelled => 130,
            _ => OWN_FAILURE,
        }
    }
}

fn hint(package: Option<&str>) -> String {
    package.map_or_else(String::new, |package| {
        let packages = package.replace(',', " ");
        let words: Vec<_> = packages.split_whitespace().collect();
        format!("; on Debian: apt install {}", words.join(" "))
    })
}

/// The condition of a run; there is no policy where a program is measured alone.
fn under(policy: &str) -> String {
    match policy {
        ALONE => "when run alone".to_owned(),
        policy => format!("under '{policy}'"),
    }
}

fn stderr_text(stderr: &str) -> String {
    let words: Vec<_> = stderr.split_whitespace().collect();
    match words.is_empty() {
        true => String::new(),
        false => format!("; its standard error: {}", words.join(" ")),
    }
}
