// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between the host and the guest's init program, over a separate port. The host sends one
//! `GuestJob`, and the guest sends at most two `Report`s: that the guest is ready, and how the job
//! has ended. Each message is one line of JSON of any length.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use usher_model::CpuSet;

/// Name of the port for the command's standard output. The next constants are the names of the port
/// for its standard error, and of the port for the messages of this module.
pub(crate) const OUT: &str = "usher.out";
pub(crate) const ERR: &str = "usher.err";
pub(crate) const CONTROL: &str = "usher.control";

/// The job of a guest: the command, its environment and the set-up of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuestJob {
    /// The command and its arguments.
    pub argv: Vec<String>,
    /// The complete environment of the command.
    pub environment: Vec<(String, String)>,
    /// The working directory of the command.
    pub directory: PathBuf,
    /// Host directories in which the command may write.
    pub writable: Vec<PathBuf>,
    /// Directories in which the command may write and of which the writes are discarded.
    pub scratch: Vec<PathBuf>,
    /// CPUs that the guest takes offline before the command starts.
    pub cpus_off: CpuSet,
    /// Path of the kernel's configuration.
    pub config: PathBuf,
    /// Path of the kernel module of overlays, which scratch directories need; `None` if the
    /// kernel's files have no such module.
    pub overlay: Option<PathBuf>,
}

/// A message from the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// The guest is set up, and the command starts now.
    Ready {
        /// The kernel's release.
        release: String,
    },
    /// The job cannot be run.
    Refused {
        /// The exit status of the lab, one of `exit_status`.
        status: u8,
        /// The reason in one line.
        reason: String,
    },
    /// The command has ended.
    Ended {
        /// Exit status of the command; 128 + N if signal N has ended the command.
        status: u8,
    },
}
