// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the host and the first program of the guest say to each other: one
//! line of JSON each, over a port of its own.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use usher_model::CpuSet;

/// Names of the ports: what the command writes, what it complains, and the
/// lines of this module.
pub(crate) const OUT: &str = "usher.out";
pub(crate) const ERR: &str = "usher.err";
pub(crate) const CONTROL: &str = "usher.control";

/// From the host: what to do, once the guest is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The command and its arguments.
    pub argv: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// Where it starts.
    pub directory: PathBuf,
    /// Directories of the host's that it may write in.
    pub writable: Vec<PathBuf>,
    /// Directories in which it may write what nobody keeps.
    pub scratch: Vec<PathBuf>,
    /// CPUs to be taken offline first.
    pub cpus_off: CpuSet,
    /// The kernel's configuration.
    pub config: PathBuf,
    /// The module with which scratch directories are laid over the host's.
    pub overlay: Option<PathBuf>,
}

/// From the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// Everything is set up; the command starts.
    Ready {
        /// The kernel, as it names itself.
        release: String,
    },
    /// The job cannot be done, and why.
    Refused {
        /// With this status, as `env` and `timeout` have it.
        status: u8,
        /// One line.
        reason: String,
    },
    /// The command has ended.
    Ended {
        /// Its exit status; 128+N where signal N ended it.
        status: u8,
    },
}
