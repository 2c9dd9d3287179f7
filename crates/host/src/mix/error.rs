// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error type of the measurement of a mix, which is a set of programs that run at the same
//! time.
//!
//! The variants of [`MixError`] follow the steps of a measurement: selection of the policies,
//! opening of the programs' input files, setup commands that create inputs, measurement of the
//! programs' curves, and the runs. [`MixError::code`] returns the exit status of Usher: 127 if a
//! program does not exist, 126 if a program cannot be executed, 130 if the user cancelled the
//! measurement, and otherwise 125.

use std::path::PathBuf;

use crate::launch::{Exit, LaunchError, OWN_FAILURE};
use crate::measured::{RunError, stderr_text};
use crate::profile::ProfileError;

/// The reason why a mix was not measured. All actions have been undone, and all started programs
/// have ended, when this is returned.
#[derive(Debug, thiserror::Error)]
pub enum MixError {
    /// The policy does not exist.
    #[error("the policy '{name}' does not exist: choose from {}", usher_policy::NAMES.join(", "))]
    Policy {
        /// The given name.
        name: String,
    },
    /// The same policy name is given twice.
    #[error("the policy '{name}' is given twice: write '{name}#2' to run the policy a second time")]
    DuplicatePolicy {
        /// The name.
        name: String,
    },
    /// A program of the mix cannot be executed.
    #[error("the program '{name}' cannot be started: {source}{}", hint(package.as_deref()))]
    Program {
        /// Name of the program in the mix.
        name: String,
        /// The Debian package that contains the program.
        package: Option<String>,
        /// The cause.
        source: LaunchError,
    },
    /// A file that a program of the mix needs as input cannot be opened.
    #[error("the {what} {} of the program '{name}' cannot be read: {source}", path.display())]
    Input {
        /// Name of the program in the mix.
        name: String,
        /// The kind of file.
        what: &'static str,
        /// Path of the input.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A setup command, which creates inputs of programs, failed.
    #[error(
        "the setup command '{command}' ended with {exit}{}",
        stderr_text(stderr)
    )]
    Setup {
        /// The command.
        command: String,
        /// The way in which the command ended.
        exit: Exit,
        /// The last part of the command's standard error.
        stderr: String,
    },
    /// A setup command succeeded, but did not create the file that a program needs.
    #[error("the setup command '{command}' did not create the file {}", path.display())]
    MissingOutput {
        /// The command.
        command: String,
        /// The missing file.
        path: PathBuf,
    },
    /// The scalability curve of a program could not be measured.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A run of the mix failed, or the user cancelled it.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl MixError {
    /// Returns the exit status of Usher for this error.
    pub fn code(&self) -> u8 {
        match self {
            Self::Program { source, .. } => source.code(),
            Self::Profile(error) => error.code(),
            Self::Run(error) => error.code(),
            _ => OWN_FAILURE,
        }
    }

    /// Returns whether the user has cancelled.
    pub fn is_cancelled(&self) -> bool {
        matches!(
            self,
            Self::Run(RunError::Cancelled) | Self::Profile(ProfileError::Run(RunError::Cancelled))
        )
    }
}

fn hint(package: Option<&str>) -> String {
    package.map_or_else(String::new, |package| {
        let packages = package.replace(',', " ");
        let words: Vec<_> = packages.split_whitespace().collect();
        format!("; on Debian: apt install {}", words.join(" "))
    })
}
