// SPDX-License-Identifier: GPL-2.0-only
//! A connection to a daemon: how the daemon is found, and how the result of a call is converted. The
//! calls are in `calls`.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::de::DeserializeOwned;

use super::connection::{ENDED_BY_SIGNAL, EndOfWaits, TrustedConnection, WaitLimits, connect};
use super::error::{DaemonError, has_timed_out};
use super::unanswered::ListeningProcess;
use crate::api::{self, VarlinkClient, VarlinkClientInterface};
use crate::failure;
use crate::peer;
use crate::runtime;

/// A connection to a daemon that this user may trust.
pub struct Daemon {
    pub(super) client: VarlinkClient,
    /// The same socket, to detect that the daemon closed it.
    stream: UnixStream,
    pub(super) path: PathBuf,
    timeout: Duration,
    end: Arc<EndOfWaits>,
    process: ListeningProcess,
}

impl Daemon {
    /// Connects to a daemon: the system's, or else the user's own. `None` if no daemon listens.
    pub fn find(runtime_dir: Option<&Path>) -> Option<Self> {
        Self::find_with(runtime_dir, &WaitLimits::default())
    }

    /// Does the same as [`Self::find`], with other limits for each call.
    pub fn find_with(runtime_dir: Option<&Path>, limits: &WaitLimits<'_>) -> Option<Self> {
        let sockets = runtime::sockets(runtime_dir);
        sockets.iter().find_map(|path| Self::open(path, limits))
    }

    /// Connects to the socket, if a daemon that this user may trust listens there.
    fn open(path: &Path, limits: &WaitLimits<'_>) -> Option<Self> {
        let is_safe = path.parent().is_some_and(runtime::is_safe);
        is_safe.then(|| Self::connect(path, limits).ok()).flatten()
    }

    /// Does the same as [`Self::open`], but returns the error if a daemon listens and does not
    /// answer. `None` also if this user cannot have programs at the daemon.
    pub(super) fn open_if_listening(path: &Path) -> anyhow::Result<Option<Self>> {
        use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied, Unsupported};
        if !path.parent().is_some_and(runtime::is_safe) {
            return Ok(None);
        }
        let none = [NotFound, ConnectionRefused, PermissionDenied, Unsupported];
        match Self::connect(path, &WaitLimits::default()) {
            Ok(daemon) => Ok(Some(daemon)),
            Err(error) if none.contains(&error.kind()) => Ok(None),
            Err(error) => Err(not_connected(path, error)),
        }
    }

    /// Connects, for commands that cannot work without a daemon.
    ///
    /// # Errors
    /// No daemon listens: the message contains the command that starts one.
    pub fn need(runtime_dir: Option<&Path>) -> anyhow::Result<Self> {
        let sockets = runtime::sockets(runtime_dir);
        let limits = WaitLimits::default();
        Self::find(runtime_dir).ok_or_else(|| {
            if let Some(reason) = Self::foreign(runtime_dir, &limits) {
                return anyhow!(reason);
            }
            if let Some(error) = Self::failure(&sockets, &limits) {
                return error;
            }
            if let Some(problem) = runtime::problem(&runtime::own_dir(runtime_dir)) {
                return anyhow!(problem);
            }
            anyhow!(
                "no daemon is listening at {}; 'usher run -- CMD' starts one",
                runtime::socket_list(runtime_dir)
            )
        })
    }

    /// Returns why no daemon can be reached, if the reason is not that no daemon listens.
    pub fn problem(runtime_dir: Option<&Path>) -> Option<String> {
        Self::problem_with(runtime_dir, &WaitLimits::default())
    }

    /// Does the same as [`Self::problem`], with other limits for each connection.
    pub fn problem_with(runtime_dir: Option<&Path>, limits: &WaitLimits<'_>) -> Option<String> {
        let failure = || Self::failure(&runtime::sockets(runtime_dir), limits);
        Self::foreign(runtime_dir, limits).or_else(|| failure().map(|error| failure::line(&error)))
    }

    /// Returns the error of a connection that failed for another reason than a missing daemon.
    fn failure(sockets: &[PathBuf], limits: &WaitLimits<'_>) -> Option<anyhow::Error> {
        let is_absent = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            )
        };
        let is_safe = |path: &&PathBuf| path.parent().is_some_and(runtime::is_safe);
        sockets.iter().filter(is_safe).find_map(|path| {
            let error = Self::connect(path, limits).err()?;
            (!is_absent(&error)).then(|| not_connected(path, error))
        })
    }

    /// Returns why the listening daemon cannot be used, if it is a process of another PID
    /// namespace: in that namespace, the same pids belong to other processes.
    pub fn foreign(runtime_dir: Option<&Path>, limits: &WaitLimits<'_>) -> Option<String> {
        let foreign = |path: &PathBuf| {
            let stream = connect(path, limits.timeout).ok()?;
            let owner = peer::credentials(&stream).ok()?;
            owner.pid.is_none().then(|| foreign_daemon(path))
        };
        runtime::sockets(runtime_dir).iter().find_map(foreign)
    }

    /// Connects to all daemons that listen: the system's and the user's own.
    pub fn find_all(runtime_dir: Option<&Path>, limits: &WaitLimits<'_>) -> Vec<Self> {
        let sockets = runtime::sockets(runtime_dir);
        let open = sockets.iter().filter_map(|path| Self::open(path, limits));
        open.collect()
    }

    fn connect(path: &Path, limits: &WaitLimits<'_>) -> io::Result<Self> {
        let trusted = TrustedConnection::open(path, limits)?;
        Ok(Self {
            client: VarlinkClient::new(trusted.connection),
            stream: trusted.stream,
            path: path.to_owned(),
            timeout: limits.timeout,
            end: trusted.end,
            process: trusted.process,
        })
    }

    fn limits(&self) -> WaitLimits<'_> {
        WaitLimits {
            timeout: self.timeout,
            end: self.end.fd(),
        }
    }

    /// Ignores [`WaitLimits::end`] from now on: a signal that requests the end of the program then
    /// ends no later call, such as the release of the program.
    pub fn ignore_end(&self) {
        self.end.ignore();
    }

    /// Converts the result of a call.
    ///
    /// After a timeout, the caller must know whether the daemon has carried out the call. The
    /// connection is therefore shut down: from then on, the daemon cannot deliver its reply and
    /// undoes the call. A reply that was delivered before the shutdown is valid.
    pub(super) fn outcome<T: DeserializeOwned>(
        &mut self,
        result: Result<T, api::Error>,
    ) -> Result<T, DaemonError> {
        let error = match result {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        if !has_timed_out(error.source_varlink_kind()) {
            return Err(self.convert_error(error));
        }
        let late = late_reply(&self.stream);
        // After the shutdown, further calls need a new connection.
        if let (Some(reply), Ok(again)) = (late, Self::connect(&self.path, &self.limits())) {
            *self = again;
            return Ok(reply);
        }
        Err(self.convert_error(error))
    }

    /// Converts an error to text: the error that the daemon reported, or the reason why its answer
    /// cannot be interpreted.
    pub(super) fn convert_error(&self, error: api::Error) -> DaemonError {
        let mut converted = DaemonError::from(error);
        if converted.is_late && self.limits().must_end() {
            converted.words = ENDED_BY_SIGNAL.to_owned();
        } else if converted.is_late {
            converted.words = self.process.unanswered("the daemon", self.timeout);
        }
        if converted.is_strange {
            let own = env!("CARGO_PKG_VERSION");
            let other = Self::connect(&self.path, &self.limits()).and_then(|mut again| {
                let ping = again.client.ping().call();
                ping.map_err(|_| io::ErrorKind::InvalidData.into())
            });
            let other = other.map_or("another version".to_owned(), |reply| {
                format!("version {} (process {})", reply.version, reply.pid)
            });
            converted.words = format!(
                "the daemon is {other}, which is incompatible with version {own} of this \
                 command; restart the daemon"
            );
        }
        converted
    }

    /// Returns whether the daemon has closed the connection, because the daemon ended or after an
    /// error.
    pub fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        let polled = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::IN;
        polled.is_ok() && fds[0].revents().intersects(ended)
    }

    /// Returns whether the daemon is a process of this user.
    pub fn is_own(&self) -> bool {
        self.process.uid == rustix::process::geteuid().as_raw()
    }

    /// Returns the pid of the daemon.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Returns the daemon's runtime directory.
    pub fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Returns a description of the daemon, for messages that concern several daemons.
    pub fn name(&self) -> String {
        format!("the daemon in '{}'", self.dir().display())
    }
}

impl AsFd for Daemon {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
/// Returns the text that states why a daemon of another PID namespace cannot be used, and the
/// remedy.
fn foreign_daemon(socket: &Path) -> String {
    format!(
        "the daemon at {} belongs to another PID namespace and cannot manage programs of this \
         namespace: run usher outside the container, or set {} to a directory inside the \
         container",
        socket.display(),
        runtime::RUNTIME_DIR
    )
}
fn not_connected(path: &Path, error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("connecting to the daemon at {}", path.display()))
}
/// Shuts the connection down after a timeout, so that the daemon's write of a reply fails. Returns
/// the reply if it has arrived before the shutdown.
fn late_reply<T: DeserializeOwned>(stream: &UnixStream) -> Option<T> {
    stream.shutdown(Shutdown::Read).ok()?;
    let mut bytes = Vec::new();
    (&*stream).read_to_end(&mut bytes).ok()?;
    let message = bytes.strip_suffix(&[0])?;
    let reply: varlink::Reply = serde_json::from_slice(message).ok()?;
    match reply.error {
        Some(_) => None,
        None => serde_json::from_value(reply.parameters?).ok(),
    }
}
