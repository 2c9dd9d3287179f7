// SPDX-License-Identifier: GPL-2.0-only
//! The client side of the daemon's interface: finds a daemon that this user may trust, makes calls
//! with time limits, and converts errors to text.
//!
//! 1. The client tries the sockets of the system daemon and of the user's own daemon, in this
//!    order. If the user names a runtime directory, the client tries only the socket in this
//!    directory.
//! 2. The client skips a socket in a directory to which other users can write. The client also
//!    rejects a socket that another user (other than root) created, and a daemon of another PID
//!    namespace.
//! 3. The client sends a call and waits for the reply. If the registration or the attach of a
//!    program times out, the client shuts the connection down: the daemon then undoes the call,
//!    unless its reply had already been delivered.
//!
//! Bounds:
//!
//! - Each read and each write of the socket waits for at most 10 s ([`ANSWER_TIMEOUT`]), or for the
//!   limit that the caller of [`Daemon::find_with`] gives.
//! - A connection waits for the same time while the daemon's queue of new connections is full.
//! - Launchers wait for less time, and end the wait when a signal arrives ([`WaitLimits`]).
//! - The client repeats no call. After a reply of another version, the client asks the daemon for
//!   its version by one more call.
//! - The path of a socket has at most 107 bytes.
//! - Each error becomes a text that names the cause. After a timeout, `client::unanswered` adds the
//!   state of the daemon's process. [`Daemon::need`] also names the command that starts a daemon.

mod daemons;
mod search;
mod unanswered;

use std::fmt;
use std::io::{self, BufReader, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::SocketAddrUnix;
use serde::de::DeserializeOwned;
use usher_act::{ActConfig, HomeDirs, PreparedHome};
use usher_host::text;
use usher_model::{ProgramId, Regulation};

use crate::api::{self, ErrorKind, VarlinkClient, VarlinkClientInterface};
use crate::failure;
use crate::peer;
use crate::runtime;

pub use daemons::{Daemons, QueriedDaemon};
pub use search::{ProcessSearch, check_unmanaged};
pub use unanswered::ListeningProcess;

/// Default upper limit of the time for which one read or write of the daemon's socket waits.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason of a command that a signal requested to end while it waited for a daemon.
pub const ENDED_BY_SIGNAL: &str = "a signal arrived before the daemon answered";

/// How long, and until which event, a command waits for a daemon.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimits<'a> {
    /// Upper limit of one connection, and of one read or write.
    pub timeout: Duration,
    /// A descriptor that ends each wait when it becomes readable.
    pub end: Option<BorrowedFd<'a>>,
}

impl Default for WaitLimits<'_> {
    fn default() -> Self {
        Self {
            timeout: ANSWER_TIMEOUT,
            end: None,
        }
    }
}

impl WaitLimits<'_> {
    /// Returns whether the waits must end.
    pub fn must_end(&self) -> bool {
        self.end.is_some_and(is_readable)
    }
}

/// Reads from a daemon's socket, until the time limit or the readiness of another descriptor. Both
/// are an error of the kind `TimedOut`.
struct LimitedReader {
    stream: UnixStream,
    timeout: Duration,
    end: Option<OwnedFd>,
}

impl Read for LimitedReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut fds = vec![PollFd::new(&self.stream, PollFlags::IN)];
            let end = self.end.as_ref();
            fds.extend(end.map(|end| PollFd::new(end, PollFlags::IN)));
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) if !fds[0].revents().is_empty() => return self.stream.read(bytes),
                Ok(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

/// Returns whether a descriptor is readable now.
fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Connects to a socket. While the queue of the listening process is full, waits for at most
/// `timeout`.
fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    match peer::connect(&SocketAddrUnix::new(path)?, timeout) {
        Err(rustix::io::Errno::AGAIN) => {
            let text = format!(
                "the process accepts no connections within {}",
                text::seconds(timeout.as_secs_f64())
            );
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
        connected => Ok(connected?),
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

/// A connection to a process of root or of this user, in this PID namespace.
pub struct TrustedConnection {
    /// The Varlink connection.
    pub connection: Arc<RwLock<varlink::Connection>>,
    /// The same socket.
    pub stream: UnixStream,
    /// The process that listens.
    pub process: ListeningProcess,
}

impl TrustedConnection {
    /// Connects to the socket. The limits apply to the connection and to each read and write.
    ///
    /// # Errors
    /// No process accepts the connection within the limit, or this user cannot trust the process.
    pub fn open(path: &Path, limits: &WaitLimits<'_>) -> io::Result<Self> {
        runtime::check_socket_path(path, runtime::SHORTER_DIR)?;
        let stream = connect(path, limits.timeout)?;
        let owner = peer::credentials(&stream)?;
        if owner.uid != 0 && owner.uid != rustix::process::geteuid().as_raw() {
            // Another user created the socket, at the path of the daemon's socket.
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let Some(pid) = owner.pid else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        stream.set_read_timeout(Some(limits.timeout))?;
        let reader = LimitedReader {
            stream: stream.try_clone()?,
            timeout: limits.timeout,
            end: limits.end.map(|end| end.try_clone_to_owned()).transpose()?,
        };
        let mut connection = varlink::Connection::default();
        connection.reader = Some(BufReader::new(Box::new(reader)));
        connection.writer = Some(Box::new(stream.try_clone()?));
        Ok(Self {
            connection: Arc::new(RwLock::new(connection)),
            stream,
            process: ListeningProcess {
                pid,
                uid: owner.uid,
            },
        })
    }
}

fn not_connected(path: &Path, error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("connecting to the daemon at {}", path.display()))
}

/// A connection to a daemon that this user may trust.
pub struct Daemon {
    client: VarlinkClient,
    /// The same socket, to detect that the daemon closed it.
    stream: UnixStream,
    path: PathBuf,
    timeout: Duration,
    /// A descriptor that ends each wait when it becomes readable.
    end: Option<OwnedFd>,
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
    fn open_if_listening(path: &Path) -> anyhow::Result<Option<Self>> {
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
                "no daemon is listening at {}; start one with 'usher daemon'",
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
            end: limits.end.map(|end| end.try_clone_to_owned()).transpose()?,
            process: trusted.process,
        })
    }

    fn limits(&self) -> WaitLimits<'_> {
        WaitLimits {
            timeout: self.timeout,
            end: self.end.as_ref().map(AsFd::as_fd),
        }
    }

    /// Converts the result of a call.
    ///
    /// After a timeout, the caller must know whether the daemon has carried out the call. The
    /// connection is therefore shut down: from then on, the daemon cannot deliver its reply and
    /// undoes the call. A reply that was delivered before the shutdown is valid.
    fn outcome<T: DeserializeOwned>(
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
    fn convert_error(&self, error: api::Error) -> DaemonError {
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

    /// Requests the cgroups of a program that this process is about to launch. The next
    /// registration on this connection uses them. `None`: the daemon creates no cgroups for this
    /// process, or this process cannot open them. The daemon then moves the program after its
    /// registration instead.
    ///
    /// # Errors
    /// The daemon does not answer in time, or ends.
    pub fn prepare(
        &mut self,
        config: &ActConfig,
        background: Option<Regulation>,
    ) -> anyhow::Result<Option<PreparedHome>> {
        // The kernel permits the creation of a process only in a cgroup of the same user.
        if !self.is_own() {
            return Ok(None);
        }
        let background = background.map(|policy| policy.name().to_owned());
        let result = self.client.prepare(background).call();
        let reply: api::Prepare_Reply = match self.outcome(result) {
            Ok(reply) => reply,
            Err(error) if error.is_late || error.is_ending => {
                return Err(error).context("preparing the program's cgroup");
            }
            // The program needs no prepared cgroup. If the daemon cannot manage the program for the
            // same reason, the registration reports the reason.
            Err(_) => return Ok(None),
        };
        let dirs = HomeDirs {
            v2: reply.cgroup.map(PathBuf::from),
            v1: reply.cgroups_v1.into_iter().map(PathBuf::from).collect(),
        };
        let id = ProgramId(reply.id.unsigned_abs());
        Ok(PreparedHome::open_dirs(config, id, &dirs).ok())
    }

    /// Registers a process that has not yet executed its program.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn register(&mut self, request: RegisterRequest) -> anyhow::Result<api::Register_Reply> {
        let pid = request.pid;
        let mut call = self.client.register(
            pid.into(),
            request.name,
            request.argv,
            request.cwd,
            request.weight,
            request.heartbeat,
            request.running.then_some(true),
            request.background.map(|policy| policy.name().to_owned()),
            request.cores.map(i64::from),
            request.hints,
            request.given_hints,
        );
        let result = call.call();
        let outcome = self.outcome(result);
        outcome.with_context(|| format!("registering process {pid}"))
    }

    /// Requests the management of a running process.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn attach(
        &mut self,
        pid: i32,
        name: Option<String>,
        weight: Option<f64>,
        background: Option<Regulation>,
    ) -> anyhow::Result<api::Attach_Reply> {
        let background = background.map(|policy| policy.name().to_owned());
        let mut call = self.client.attach(pid.into(), name, weight, background);
        let result = call.call();
        let outcome = self.outcome(result);
        outcome.with_context(|| format!("attaching process {pid}"))
    }

    /// Returns the program that a process belongs to; `None` if it is not managed.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn find_program(&mut self, pid: i64) -> anyhow::Result<Option<i64>> {
        match self.client.find(pid).call() {
            Ok(reply) => Ok(Some(reply.id)),
            Err(error) if matches!(error.kind(), ErrorKind::NoSuchProgram(_)) => Ok(None),
            Err(error) => Err(self.convert_error(error)).context("querying the daemon"),
        }
    }

    /// Ends the management of a program.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn detach(&mut self, id: i64) -> anyhow::Result<()> {
        let reply = self.client.detach(id).call();
        reply
            .map_err(|error| self.convert_error(error))
            .with_context(|| format!("detaching program {id}"))?;
        Ok(())
    }

    /// Reports that a program has completed its work once.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn repeated(&mut self, id: i64, seconds: f64) -> anyhow::Result<()> {
        let reply = self.client.repeated(id, seconds).call();
        reply
            .map_err(|error| self.convert_error(error))
            .context("reporting the program's end to the daemon")?;
        Ok(())
    }

    /// Requests the end of the daemon. The daemon may close the connection before it has replied.
    ///
    /// # Errors
    /// The daemon refuses, or does not answer in time.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        match self.client.stop().call() {
            Ok(_) => Ok(()),
            Err(error) if is_closed(error.source_varlink_kind()) => Ok(()),
            Err(error) => Err(self.convert_error(error)).context("ending the daemon"),
        }
    }

    /// Requests that the daemon reads its configuration file again.
    ///
    /// # Errors
    /// The file has an error, or the daemon refuses or is gone.
    pub fn reload(&mut self) -> anyhow::Result<api::Reload_Reply> {
        let reply = self.client.reload().call();
        reply
            .map_err(|error| self.convert_error(error))
            .context("reading the configuration file again")
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

    /// Returns the state of all managed programs.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn status(&mut self) -> anyhow::Result<api::State> {
        let reply = self.client.status().call();
        Ok(reply
            .map_err(|error| self.convert_error(error))
            .context("querying the daemon")?
            .state)
    }

    /// Returns the reasons for the present plan.
    ///
    /// # Errors
    /// No such program, or the daemon is gone.
    pub fn explain(&mut self, program: Option<String>) -> anyhow::Result<api::Explain_Reply> {
        let reply = self.client.explain(program).call();
        reply
            .map_err(|error| self.convert_error(error))
            .context("querying the daemon")
    }
}

impl AsFd for Daemon {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A process to register.
#[derive(Debug, Clone, Default)]
pub struct RegisterRequest {
    /// Pid of the process.
    pub pid: i32,
    /// `--name`.
    pub name: Option<String>,
    /// The command that the process will execute.
    pub argv: Vec<String>,
    /// Working directory of the process.
    pub cwd: Option<String>,
    /// `--weight`.
    pub weight: Option<f64>,
    /// `--cores`.
    pub cores: Option<u32>,
    /// Path of the program's heartbeat page.
    pub heartbeat: Option<String>,
    /// Whether the process has already executed its program.
    pub running: bool,
    /// The policy of `usher bg`; `None`: foreground.
    pub background: Option<Regulation>,
    /// The request for the number of threads of a program that is being launched.
    pub hints: Option<api::HintRequest>,
    /// The variables with which the program was launched.
    pub given_hints: Option<api::ThreadHints>,
}

/// An error of the daemon, as text.
#[derive(Debug)]
pub struct DaemonError {
    words: String,
    /// The program that the process belongs to already.
    part_of: Option<i64>,
    /// The process has ended.
    is_gone: bool,
    /// The daemon did not answer in time.
    is_late: bool,
    /// The answer does not match the interface of this version of Usher.
    is_strange: bool,
    /// The daemon ends, or ended before it replied.
    is_ending: bool,
}

impl DaemonError {
    /// Returns the number of the program to which a process already belongs, if this is the reason
    /// for the error of a registration.
    pub fn part_of(error: &anyhow::Error) -> Option<i64> {
        error.downcast_ref::<Self>()?.part_of
    }

    /// Returns whether an error reports that the process has ended.
    pub fn is_gone(error: &anyhow::Error) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|error| error.is_gone)
    }

    /// Returns whether the daemon did not carry out the call because it ends or has ended, so that
    /// the call may be made to another daemon.
    pub fn is_ending(error: &anyhow::Error) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|error| error.is_ending)
    }

    /// Returns whether an error is that of a daemon that listens and does not end: it rejected the
    /// call, or did not answer in time.
    pub fn is_lasting(error: &anyhow::Error) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|error| !error.is_ending)
    }

    /// Returns whether an error reports that the daemon did not answer in time.
    pub fn is_late(error: &anyhow::Error) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|error| error.is_late)
    }
}

impl fmt::Display for DaemonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for DaemonError {}

impl From<api::Error> for DaemonError {
    fn from(error: api::Error) -> Self {
        use ErrorKind as E;
        let part_of = match error.kind() {
            E::AlreadyManaged(Some(e)) => Some(e.id),
            _ => None,
        };
        let words = match error.kind() {
            E::NoSuchProcess(Some(e)) => format!("process {} does not exist", e.pid),
            E::ProcessEnded(Some(e)) => format!(
                "process {} has ended and remains as a zombie until its parent reads its exit \
                 status",
                e.pid
            ),
            E::NotYours(Some(e)) => format!(
                "process {} belongs to user {}; only that user and root may manage it",
                e.pid, e.owner
            ),
            E::KernelThread(Some(e)) => {
                format!(
                    "process {} is a kernel thread; Usher can manage only programs",
                    e.pid
                )
            }
            E::NoSuchProgram(Some(e)) => format!(
                "no managed program has the name or number '{}': 'usher status' lists the managed \
                 programs",
                e.program
            ),
            E::AlreadyManaged(Some(e)) => {
                format!(
                    "process {} already belongs to the managed program {}; to manage the process \
                     differently, release that program first by 'usher detach id:{}'",
                    e.pid, e.id, e.id
                )
            }
            E::Ignored(Some(e)) => e.reason.clone(),
            E::NotPermitted(Some(e)) => format!(
                "only root and the user of the daemon ({}) may make this request",
                e.owner
            ),
            E::QuotaExceeded(Some(e)) => format!(
                "the quota '{}' of {} is exceeded: {}",
                e.quota, e.limit, e.remedy
            ),
            E::BadArgument(Some(e)) => format!("{}: {}", e.argument, e.reason),
            E::Failed(Some(e)) => e.reason.clone(),
            E::Stopping(_) => "the daemon is ending and accepts no more requests".to_owned(),
            _ => transport(&error),
        };
        Self {
            words,
            part_of,
            is_gone: matches!(error.kind(), E::NoSuchProcess(_) | E::ProcessEnded(_)),
            is_late: has_timed_out(error.source_varlink_kind()),
            is_strange: is_strange(&error),
            is_ending: matches!(error.kind(), E::Stopping(_))
                || is_closed(error.source_varlink_kind()),
        }
    }
}

/// Returns whether an error is the end of the time for an answer.
pub fn has_timed_out(kind: Option<&varlink::ErrorKind>) -> bool {
    matches!(
        kind,
        Some(varlink::ErrorKind::Io(
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ))
    )
}

/// Returns whether an error means that the daemon has closed the connection.
fn is_closed(kind: Option<&varlink::ErrorKind>) -> bool {
    matches!(
        kind,
        Some(
            varlink::ErrorKind::ConnectionClosed
                | varlink::ErrorKind::Io(
                    io::ErrorKind::BrokenPipe
                        | io::ErrorKind::ConnectionReset
                        | io::ErrorKind::ConnectionAborted
                        | io::ErrorKind::NotConnected
                        | io::ErrorKind::UnexpectedEof
                )
        )
    )
}

/// Returns whether the error means that daemon and client have different versions: the daemon does
/// not know the call, or the client does not know the reply.
fn is_strange(error: &api::Error) -> bool {
    use varlink::ErrorKind as V;
    matches!(
        error.source_varlink_kind(),
        Some(
            V::SerdeJsonDe(_)
                | V::SerdeJsonSer(_)
                | V::MethodNotFound(_)
                | V::MethodNotImplemented(_)
                | V::InterfaceNotFound(_)
                | V::InvalidParameter(_)
        )
    )
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

/// Describes an error of the transport below the interface.
fn transport(error: &api::Error) -> String {
    match error.source_varlink_kind() {
        Some(varlink::ErrorKind::ConnectionClosed) => "the daemon closed the connection without a \
                                                       reply"
            .to_owned(),
        Some(kind) => format!("the connection to the daemon failed: {kind}"),
        None => "this version of usher cannot interpret the daemon's reply; restart the daemon"
            .to_owned(),
    }
}
