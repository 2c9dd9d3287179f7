// SPDX-License-Identifier: GPL-2.0-only
//! Queries all daemons that may manage programs of this user: the system's and the user's own. Both
//! run at the same time if root starts the system daemon after a command has started the user's
//! daemon.
//!
//! 1. [`Daemons::query`] connects to each daemon that listens. If none listens, the error names the
//!    command that starts a daemon.
//! 2. It requests the state of each daemon. A daemon that ends meanwhile is left out, unless it is
//!    the only one. Other errors are kept beside the states.
//! 3. `cli::target` selects programs in these states.
//!
//! The daemons are queried one after the other, each with the time limit of `client`, 10 s for each
//! read and write.

use std::path::{Path, PathBuf};

use anyhow::anyhow;

use super::daemon::Daemon;
use super::error::DaemonError;
use crate::api::State;
use crate::runtime;

/// The context of an error of a search for a program.
pub(super) const SEARCHING: &str =
    "searching the programs of all daemons; --runtime-dir selects one";

/// A daemon and its state.
pub struct QueriedDaemon {
    /// The connection.
    pub daemon: Daemon,
    /// The daemon's programs and their seats.
    pub state: State,
}

/// The daemons that listen.
pub struct Daemons {
    runtime_dir: Option<PathBuf>,
    /// The daemons that answered, the system's first; at least one after [`Daemons::query`].
    pub answered: Vec<QueriedDaemon>,
    /// Why the others did not answer.
    pub errors: Vec<anyhow::Error>,
}

impl Daemons {
    /// Connects to the daemons that listen, and requests their states.
    ///
    /// # Errors
    /// No daemon listens, as for [`Daemon::need`], or none answers.
    pub fn query(runtime_dir: Option<&Path>) -> anyhow::Result<Self> {
        let mut daemons = Self {
            runtime_dir: runtime_dir.map(Path::to_owned),
            answered: Vec::new(),
            errors: Vec::new(),
        };
        daemons.refresh()?;
        Ok(daemons)
    }

    /// Does the same as [`Self::query`], for a report of the daemons: there may be no daemon that
    /// listens, or none that answers.
    pub fn survey(runtime_dir: Option<&Path>) -> Self {
        let mut daemons = Self {
            runtime_dir: runtime_dir.map(Path::to_owned),
            answered: Vec::new(),
            errors: Vec::new(),
        };
        let (open, errors) = connect(runtime_dir, Vec::new());
        daemons.request(open, errors);
        daemons
    }

    /// Does the same as [`Self::query`], for a search of programs: fails if any daemon does not
    /// answer, because the program could belong to this daemon.
    ///
    /// # Errors
    /// No daemon listens, or one does not answer.
    pub fn query_all(runtime_dir: Option<&Path>) -> anyhow::Result<Self> {
        let mut daemons = Self::query(runtime_dir)?;
        match daemons.errors.pop() {
            Some(error) => Err(error.context(SEARCHING)),
            None => Ok(daemons),
        }
    }

    /// Requests the states again, also from daemons that have started to listen.
    ///
    /// # Errors
    /// As for [`Self::query`].
    pub fn refresh(&mut self) -> anyhow::Result<()> {
        let open = std::mem::take(&mut self.answered).into_iter();
        let open = open.map(|one| one.daemon);
        let known = open.filter(|daemon| !daemon.is_gone()).collect();
        let dir = self.runtime_dir.as_deref();
        let (mut open, errors) = connect(dir, known);
        if open.is_empty() {
            open.push(Daemon::need(dir)?);
        }
        self.request(open, errors);
        if self.answered.is_empty() {
            let ended = || anyhow!("all daemons ended during the request; run the command again");
            return Err(self.errors.pop().unwrap_or_else(ended));
        }
        Ok(())
    }

    /// Requests the states of the connected daemons. `errors` are those of the connections.
    fn request(&mut self, open: Vec<Daemon>, errors: Vec<anyhow::Error>) {
        let is_only = open.len() == 1 && errors.is_empty();
        self.errors = errors;
        for mut daemon in open {
            match daemon.status() {
                Ok(state) => self.answered.push(QueriedDaemon { daemon, state }),
                Err(error) if is_only => self.errors.push(error),
                Err(error) if DaemonError::is_ending(&error) => {}
                Err(error) => self.errors.push(error.context(daemon.name())),
            }
        }
    }
}

/// Connects to the daemons that listen and are not connected yet. Returns all connections, the
/// system's daemon first, and the errors of daemons that listen but cannot be connected.
pub(super) fn connect(
    runtime_dir: Option<&Path>,
    mut open: Vec<Daemon>,
) -> (Vec<Daemon>, Vec<anyhow::Error>) {
    let sockets = runtime::sockets(runtime_dir);
    let mut errors = Vec::new();
    for path in &sockets {
        if open.iter().any(|one| one.path == *path) {
            continue;
        }
        match Daemon::open_if_listening(path) {
            Ok(daemon) => open.extend(daemon),
            Err(error) => errors.push(error),
        }
    }
    open.sort_by_key(|daemon| sockets.iter().position(|path| *path == daemon.path));
    (open, errors)
}
