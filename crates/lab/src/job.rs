// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between the host and the guest's init program: one line of JSON each, over a separate
//! port.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use usher_model::CpuSet;

/// Names of the ports: the command's standard output, its standard error, and the messages of this
/// module.
pub(crate) const OUT: &str = "usher.out";
pub(crate) const ERR: &str = "usher.err";
pub(crate) const CONTROL: &str = "usher.control";

/// Sent by the host once the guest is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The command and its arguments.
    pub argv: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// Its working directory.
    pub directory: PathBuf,
    /// Host directories that it may write in.
    pub writable: Vec<PathBuf>,
    /// Directories with discarded writes.
    pub scratch: Vec<PathBuf>,
    /// CPUs to take offline first.
    pub cpus_off: CpuSet,
    /// The kernel's configuration.
    pub config: PathBuf,
    /// The overlay module for scratch directories.
    pub overlay: Option<PathBuf>,
}

/// Sent by the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// Everything is set up; the command starts.
    Ready {
        /// The kernel's release.
        release: String,
    },
    /// The job cannot be done.
    Refused {
        /// The exit status, as of `env` and `timeout`.
        status: u8,
        /// The reason in one line.
        reason: String,
    },
    /// The command has ended.
    Ended {
        /// Its exit status; 128+N for signal N.
        status: u8,
    },
}
