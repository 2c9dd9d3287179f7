// SPDX-License-Identifier: GPL-2.0-only
//! Talking to the daemon, and saying what it said in words.

use std::fmt;
use std::io::{self, BufReader, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::de::DeserializeOwned;
use usher_model::Regulation;

use crate::api::{self, ErrorKind, VarlinkClient, VarlinkClientInterface};
use crate::peer;
use crate::runtime;

/// How long the daemon may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What is wrong with a daemon of another pid namespace, and what to do.
fn foreign_daemon(socket: &Path) -> String {
    format!(
        "a daemon of another pid namespace listens at {}; it cannot manage programs of this one: run usher outside the container, or set {} to a directory of the container's own",
        socket.display(),
        runtime::RUNTIME_DIR
    )
}

/// A connection to a daemon that this user may trust.
pub struct Daemon {
    client: VarlinkClient,
    /// The same socket, to see it hung up.
    stream: UnixStream,
    path: PathBuf,
    patience: Duration,
}

impl Daemon {
    /// Connects to the user's own daemon, else to the system's; `None` where
    /// no daemon listens.
    pub fn find(runtime_dir: Option<&Path>) -> Option<Self> {
        Self::find_with(runtime_dir, PATIENCE)
    }

    /// As [`Self::find`], for a daemon that must answer each call within `patience`.
    pub fn find_with(runtime_dir: Option<&Path>, patience: Duration) -> Option<Self> {
        let sockets = runtime::sockets(runtime_dir);
        let safe = |path: &&PathBuf| path.parent().is_some_and(runtime::is_safe);
        let mut safe = sockets.iter().filter(safe);
        safe.find_map(|path| Self::connect(path, patience).ok())
    }

    /// Connects, where nothing can be done without a daemon.
    ///
    /// # Errors
    /// No daemon listens: says how to start one.
    pub fn need(runtime_dir: Option<&Path>) -> anyhow::Result<Self> {
        let sockets = runtime::sockets(runtime_dir);
        Self::find(runtime_dir).ok_or_else(|| {
            if let Some(reason) = Self::foreign(runtime_dir) {
                return anyhow!(reason);
            }
            let paths: Vec<String> = sockets.iter().map(|p| p.display().to_string()).collect();
            anyhow!(
                "no daemon is listening at {}; start one with 'usher daemon'",
                paths.join(" or ")
            )
        })
    }

    /// Why the daemon that listens there cannot be used: it is a process of a pid
    /// namespace outside this one, where process numbers mean other processes.
    pub fn foreign(runtime_dir: Option<&Path>) -> Option<String> {
        let foreign = |path: &PathBuf| {
            let stream = UnixStream::connect(path).ok()?;
            let owner = peer::credentials(&stream).ok()?;
            owner.pid.is_none().then(|| foreign_daemon(path))
        };
        runtime::sockets(runtime_dir).iter().find_map(foreign)
    }

    fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        let owner = peer::credentials(&stream)?;
        if owner.uid != 0 && owner.uid != rustix::process::geteuid().as_raw() {
            // A socket that another user put where ours should be.
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if owner.pid.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let mut connection = varlink::Connection::default();
        connection.reader = Some(BufReader::new(Box::new(stream.try_clone()?)));
        connection.writer = Some(Box::new(stream.try_clone()?));
        let client = VarlinkClient::new(Arc::new(RwLock::new(connection)));
        Ok(Self {
            client,
            stream,
            path: path.to_owned(),
            patience,
        })
    }

    /// What a call came to, in words.
    ///
    /// A caller that gives up must know whether the daemon has done it. From the
    /// shutdown on, the daemon cannot deliver its reply and undoes what it has
    /// done; a reply that was delivered before counts.
    fn outcome<T: DeserializeOwned>(&mut self, result: Result<T, api::Error>) -> Result<T, Said> {
        let error = match result {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        if !has_timed_out(&error) {
            return Err(self.said(error));
        }
        let late = late_reply(&self.stream);
        // Nothing more can be read from the old connection.
        if let (Some(reply), Ok(again)) = (late, Self::connect(&self.path, self.patience)) {
            *self = again;
            return Ok(reply);
        }
        Err(self.said(error))
    }

    /// What the daemon said, or why it said nothing that can be understood.
    fn said(&self, error: api::Error) -> Said {
        let mut said = Said::from(error);
        if said.is_strange {
            let own = env!("CARGO_PKG_VERSION");
            let other = Self::connect(&self.path, self.patience).and_then(|mut again| {
                let ping = again.client.ping().call();
                ping.map_err(|_| io::ErrorKind::InvalidData.into())
            });
            let other = other.map_or("another version".to_owned(), |reply| {
                format!("version {} (process {})", reply.version, reply.pid)
            });
            said.words = format!(
                "the daemon is of {other}, this command of version {own}, and they do not understand one another; restart the daemon"
            );
        }
        said
    }

    /// Whether the daemon has hung up, which it does only by ending.
    pub fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        let polled = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::IN;
        polled.is_ok() && fds[0].revents().intersects(ended)
    }

    /// Has a process managed that has not yet executed its program.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn register(&mut self, newcomer: Newcomer) -> anyhow::Result<api::Register_Reply> {
        let pid = newcomer.pid;
        let mut call = self.client.register(
            pid.into(),
            newcomer.name,
            newcomer.argv,
            newcomer.cwd,
            newcomer.weight,
            newcomer.heartbeat,
            newcomer.running.then_some(true),
            newcomer.background.map(|policy| policy.name().to_owned()),
        );
        let result = call.call();
        let outcome = self.outcome(result);
        outcome.with_context(|| format!("registering process {pid}"))
    }

    /// Has a running process managed.
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

    /// The program that a process is part of; `None` where it is not managed.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn find_program(&mut self, pid: i64) -> anyhow::Result<Option<i64>> {
        match self.client.find(pid).call() {
            Ok(reply) => Ok(Some(reply.id)),
            Err(error) if matches!(error.kind(), ErrorKind::NoSuchProgram(_)) => Ok(None),
            Err(error) => Err(self.said(error)).context("asking the daemon"),
        }
    }

    /// Lets a program go.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn detach(&mut self, id: i64) -> anyhow::Result<()> {
        let reply = self.client.detach(id).call();
        reply
            .map_err(|error| self.said(error))
            .with_context(|| format!("detaching program {id}"))?;
        Ok(())
    }

    /// Says that a program has completed its work once.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn repeated(&mut self, id: i64, seconds: f64) -> anyhow::Result<()> {
        let reply = self.client.repeated(id, seconds).call();
        reply
            .map_err(|error| self.said(error))
            .context("telling the daemon")?;
        Ok(())
    }

    /// What is managed.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn status(&mut self) -> anyhow::Result<api::State> {
        let reply = self.client.status().call();
        Ok(reply
            .map_err(|error| self.said(error))
            .context("asking the daemon")?
            .state)
    }

    /// Why it is managed so.
    ///
    /// # Errors
    /// No such program, or the daemon is gone.
    pub fn explain(&mut self, program: Option<String>) -> anyhow::Result<api::Explain_Reply> {
        let reply = self.client.explain(program).call();
        reply
            .map_err(|error| self.said(error))
            .context("asking the daemon")
    }
}

impl AsFd for Daemon {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A process to register.
#[derive(Debug, Clone, Default)]
pub struct Newcomer {
    /// Its number.
    pub pid: i32,
    /// `--name`.
    pub name: Option<String>,
    /// What it will execute.
    pub argv: Vec<String>,
    /// Where.
    pub cwd: Option<String>,
    /// `--weight`.
    pub weight: Option<f64>,
    /// Path of its progress page.
    pub heartbeat: Option<String>,
    /// Whether it has executed its program already.
    pub running: bool,
    /// `usher bg`'s policy; `None`: foreground.
    pub background: Option<Regulation>,
}

/// What the daemon said, in words.
#[derive(Debug)]
pub struct Said {
    words: String,
    /// The program that a process is part of already.
    part_of: Option<i64>,
    /// The process has ended.
    is_gone: bool,
    /// The daemon did not answer in time.
    is_late: bool,
    /// The answer is none of this version's interface.
    is_strange: bool,
}

impl Said {
    /// The program that a process is part of, where an error says that this is why
    /// the daemon did not take it in.
    pub fn part_of(error: &anyhow::Error) -> Option<i64> {
        error.downcast_ref::<Self>()?.part_of
    }

    /// Whether an error says that the process has ended.
    pub fn is_gone(error: &anyhow::Error) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|said| said.is_gone)
    }

    /// Whether an error says that the daemon did not answer in time.
    pub fn is_late(error: &anyhow::Error) -> bool {
        error
            .downcast_ref::<Self>()
            .is_some_and(|said| said.is_late)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Said {}

impl From<api::Error> for Said {
    fn from(error: api::Error) -> Self {
        use ErrorKind as E;
        let part_of = match error.kind() {
            E::AlreadyManaged(Some(e)) => Some(e.id),
            _ => None,
        };
        let words = match error.kind() {
            E::NoSuchProcess(Some(e)) => format!("there is no process {}", e.pid),
            E::NotYours(Some(e)) => format!(
                "process {} belongs to user {}; only that user and root may manage it",
                e.pid, e.owner
            ),
            E::KernelThread(Some(e)) => {
                format!("{} is a kernel thread: only programs are managed", e.pid)
            }
            E::NoSuchProgram(Some(e)) => format!(
                "no managed program is called or numbered '{}'; 'usher status' lists them",
                e.program
            ),
            E::AlreadyManaged(Some(e)) => {
                format!("process {} is managed already, in program {}", e.pid, e.id)
            }
            E::QuotaExceeded(Some(e)) => format!(
                "over the quota '{}', which is {}: {}",
                e.quota, e.limit, e.remedy
            ),
            E::BadArgument(Some(e)) => format!("{}: {}", e.argument, e.reason),
            E::Failed(Some(e)) => e.reason.clone(),
            E::Stopping(_) => "the daemon is ending".to_owned(),
            _ => transport(&error),
        };
        Self {
            words,
            part_of,
            is_gone: matches!(error.kind(), E::NoSuchProcess(_)),
            is_late: has_timed_out(&error),
            is_strange: is_strange(&error),
        }
    }
}

fn has_timed_out(error: &api::Error) -> bool {
    matches!(
        error.source_varlink_kind(),
        Some(varlink::ErrorKind::Io(
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ))
    )
}

/// Whether the answer, or the question, is not known to the other side.
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

/// Gives up waiting for a reply: the daemon's write fails from here on. Returns
/// the reply where it was there already.
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

/// What went wrong below the interface.
fn transport(error: &api::Error) -> String {
    match error.source_varlink_kind() {
        Some(varlink::ErrorKind::ConnectionClosed) => "the daemon hung up".to_owned(),
        Some(varlink::ErrorKind::Io(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)) => {
            format!("the daemon did not answer within {} s", PATIENCE.as_secs())
        }
        Some(kind) => format!("the connection to the daemon failed: {kind}"),
        None => "the daemon gave an answer that this version does not know".to_owned(),
    }
}
