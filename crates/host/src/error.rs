// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a mix or a profile was not measured.

use std::path::PathBuf;

use usher_store::StoreError;

use crate::engine::EngineError;
use crate::launch::{Exit, LaunchError, OWN_FAILURE};
use crate::mix::MixFileError;
use crate::profile::ALONE;

/// Why a mix or a profile was not measured. Everything is put back, and what
/// was started is gone, when this is returned.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The file is wrong.
    #[error(transparent)]
    File(#[from] MixFileError),
    /// A policy that nobody knows.
    #[error("there is no policy '{name}': choose from {}", usher_policy::NAMES.join(", "))]
    Policy {
        /// As it was given.
        name: String,
    },
    /// A policy is asked for twice by one name.
    #[error("policy '{name}' is named twice: write '{name}#2' for another arm of it")]
    Twice {
        /// The name.
        name: String,
    },
    /// A program of the mix cannot be run.
    #[error("program '{name}': {source}{}", hint(package.as_deref()))]
    Program {
        /// Its name in the mix.
        name: String,
        /// The Debian package that it is in.
        package: Option<String>,
        /// Why.
        source: LaunchError,
    },
    /// A file that a program needs is not there.
    #[error("program '{name}': its {what} {} cannot be read: {source}", path.display())]
    Input {
        /// Its name in the mix.
        name: String,
        /// Which one.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A command that makes inputs failed.
    #[error("setup '{command}' ended with {exit}{}", said(stderr))]
    Setup {
        /// The command.
        command: String,
        /// How it ended.
        exit: Exit,
        /// The end of what it said.
        stderr: String,
    },
    /// A command that makes inputs did not make what it should.
    #[error("setup '{command}' did not make {}", path.display())]
    NotMade {
        /// The command.
        command: String,
        /// What is missing.
        path: PathBuf,
    },
    /// A program failed.
    #[error("program '{name}' ended with {exit} {}{}", under(policy), said(stderr))]
    Died {
        /// Its name in the mix.
        name: String,
        /// How it ended.
        exit: Exit,
        /// Under which policy.
        policy: String,
        /// The end of what it said.
        stderr: String,
    },
    /// A program hung.
    #[error(
        "program '{name}' {}: no end of a repetition in {seconds:.0} s{}",
        under(policy),
        if policy == ALONE { "" } else { "; set protocol.patience_seconds if it needs longer" }
    )]
    Hangs {
        /// Its name in the mix.
        name: String,
        /// Under which policy.
        policy: String,
        /// How long was waited.
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
    /// Something of the runner's own.
    #[error("{doing}: {source}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The curve makes no sense.
    #[error("the curve of '{name}': {source}")]
    Curve {
        /// Of which program.
        name: String,
        /// Why.
        source: usher_model::CurveError,
    },
    /// The core counts make no sense.
    #[error("core counts must be between 1 and {most}, not {given}")]
    Cores {
        /// What was given.
        given: u32,
        /// The machine's.
        most: u32,
    },
    /// The user has had enough.
    #[error("interrupted")]
    Cancelled,
}

impl MeasureError {
    /// The exit status that says so.
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

/// No policy is at work where a program is measured alone.
fn under(policy: &str) -> String {
    match policy {
        ALONE => "when run alone".to_owned(),
        policy => format!("under '{policy}'"),
    }
}

fn said(stderr: &str) -> String {
    let words: Vec<_> = stderr.split_whitespace().collect();
    match words.is_empty() {
        true => String::new(),
        false => format!("; it said: {}", words.join(" ")),
    }
}
