// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between the host and the guest's init program, each one line of JSON, over a port of
//! their own: the host sends one `GuestJob`; the guest sends `Report`s.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use usher_model::CpuSet;

/// Name of the port for the command's standard output; the next constants are the ports for its
/// standard error and for the messages of this module.
pub(crate) const OUT: &str = "usher.out";
pub(crate) const ERR: &str = "usher.err";
pub(crate) const CONTROL: &str = "usher.control";

/// The job of a guest, which the host sends when the guest is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuestJob {
    /// The command and its arguments.
    pub argv: Vec<String>,
    /// The whole environment of the command.
    pub environment: Vec<(String, String)>,
    /// The working directory of the command.
    pub directory: PathBuf,
    /// Host directories in which the command may write.
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

/// A message from the guest.
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
        /// Exit status of the command; 128+N for signal N.
        status: u8,
    },
}
