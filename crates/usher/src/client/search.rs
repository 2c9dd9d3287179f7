// SPDX-License-Identifier: GPL-2.0-only
//! Finds the daemon that manages a process, among all daemons that listen for this user: the
//! system's and the user's own. A daemon knows only its own programs. A command that attaches a
//! process to one daemon therefore searches the programs of the others first.
//!
//! A search makes one call to each daemon. A process that is attached to another daemon between the
//! search and the attachment is not found.

use std::path::Path;

use anyhow::{Context, bail};

use super::daemon::Daemon;
use super::daemons::{self, SEARCHING};
use super::error::DaemonError;

/// The program that contains a process.
pub struct ManagingProgram {
    /// Its number.
    pub id: i64,
    /// A description of its daemon.
    pub daemon: String,
}

/// The connections of a search.
pub struct ProcessSearch {
    daemons: Vec<Daemon>,
}

impl ProcessSearch {
    /// Connects to the daemons that listen; there may be none.
    ///
    /// # Errors
    /// A daemon that listens cannot be connected.
    pub fn open(runtime_dir: Option<&Path>) -> anyhow::Result<Self> {
        let (daemons, mut errors) = daemons::connect(runtime_dir, Vec::new());
        match errors.pop() {
            Some(error) => Err(error.context(SEARCHING)),
            None => Ok(Self { daemons }),
        }
    }

    /// Returns the program that contains the process; `None` if no daemon manages it.
    ///
    /// # Errors
    /// A daemon does not answer.
    pub fn find(&mut self, pid: i32) -> anyhow::Result<Option<ManagingProgram>> {
        for daemon in &mut self.daemons {
            match daemon.find_program(pid.into()) {
                Ok(Some(id)) => {
                    let daemon = daemon.name();
                    return Ok(Some(ManagingProgram { id, daemon }));
                }
                Ok(None) => {}
                Err(error) if DaemonError::is_ending(&error) => {}
                Err(error) => return Err(error.context(daemon.name()).context(SEARCHING)),
            }
        }
        Ok(None)
    }
}

/// Checks that no daemon manages the process, before it is attached. A single daemon is not
/// queried, because it makes this check with the attachment. If no daemon can be connected, the
/// attachment reports the error.
///
/// # Errors
/// A daemon manages the process, or does not answer.
pub fn check_unmanaged(runtime_dir: Option<&Path>, pid: i32) -> anyhow::Result<()> {
    let attaching = || format!("attaching process {pid}");
    let (daemons, mut errors) = daemons::connect(runtime_dir, Vec::new());
    match (daemons.len(), errors.pop()) {
        (0, _) | (1, None) => return Ok(()),
        (_, Some(error)) => return Err(error.context(SEARCHING)).with_context(attaching),
        (_, None) => {}
    }
    let mut search = ProcessSearch { daemons };
    if let Some(found) = search.find(pid).with_context(attaching)? {
        bail!(
            "attaching process {pid}: it already belongs to program {} of {}; to manage the \
             process differently, release that program first by 'usher detach pid:{pid}'",
            found.id,
            found.daemon
        );
    }
    Ok(())
}
