// SPDX-License-Identifier: GPL-2.0-only
//! The client side of the scheduler's interface `org.usher.Scheduler1`: finds the process that
//! holds the scheduler by the sockets in the runtime directory, and requests starts, changes and
//! stops from this process.
//!
//! Two kinds of processes can hold the scheduler: a daemon, and `usher sched start --foreground`.
//! If both listen, the process that holds a scheduler is used. [`Found::at`] skips a socket without
//! a trusted listener.
//!
//! Each read and write of a socket waits for at most 10 s. The answer to a start, a change or a stop
//! may take 60 s ([`CHANGE_TIMEOUT`]). [`Found::at`] queries up to two processes one after another,
//! and returns an error if a process does not answer. The error names the reason
//! (`client::unanswered`). No call is repeated.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use usher_scx::{Kernel, ScxError, Settings, State as Loaded};

use crate::client::{self, ListeningProcess, ReadTimeout, TrustedConnection, WaitLimits};
use crate::daemon::scheduler::api::{self, ErrorKind, VarlinkClient, VarlinkClientInterface};
use crate::daemon::scheduler::{ENDING, Phase, SchedulerState, SettingsChange, kernel};
use crate::runtime;

/// Upper limit of the time for the answer to a start, a change or a stop: 60 s. Before the answer,
/// the kernel verifies the BPF programs or ends the scheduler, which may take seconds.
const CHANGE_TIMEOUT: Duration = ENDING.saturating_mul(3);

/// Text for [`Phase::Restarting`].
pub const RESTARTS: &str = "restarts because CPUs went online or offline";

/// Text for [`Phase::Recovering`].
pub const RECOVERS: &str =
    "starts again in a few seconds, because the kernel ended it after a fault";

/// The message if no scheduler of Usher's runs anywhere.
pub const NONE_RUNS: &str = "Usher's scheduler does not run";

/// The error for other users.
pub const FOR_ROOT: &str = "'usher sched' requires root, except for 'usher sched status': run \
                            this command as root";

/// The message after an end.
pub const TAKES_OVER: &str = "the kernel's own scheduler takes over\n";

/// The name of Usher's scheduler in the kernel.
pub const NAME: &str = "usher";

/// A connection to a process that can hold the scheduler: a daemon, or `usher sched start
/// --foreground`.
pub struct SchedulerClient {
    client: VarlinkClient,
    /// Upper limit of the time for the next answer.
    timeout: ReadTimeout,
    process: ListeningProcess,
    /// The process in messages.
    name: &'static str,
}

impl fmt::Debug for SchedulerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("SchedulerClient");
        text.field("process", &self.process).finish_non_exhaustive()
    }
}

/// The result of a request to stop the scheduler.
#[derive(Debug, Clone, Copy)]
pub struct Stopped {
    /// Whether a scheduler was loaded.
    pub was_loaded: bool,
    /// Whether the process that held the scheduler ends after the stop.
    pub exits: bool,
}

/// The processes that can hold a scheduler, and the state of the scheduler.
#[derive(Debug, Default)]
pub struct Found {
    /// The process that holds a scheduler; else the daemon, if one listens.
    pub client: Option<SchedulerClient>,
    /// The last scheduler of that process.
    pub state: Option<SchedulerState>,
}

impl Found {
    /// Connects to the processes of this runtime directory.
    ///
    /// # Errors
    /// A process does not answer, or the directory is a file.
    pub fn at(dir: &Path) -> anyhow::Result<Self> {
        if dir.is_file() {
            let dir = dir.display();
            bail!("the runtime directory '{dir}' is a file: name a directory with --runtime-dir");
        }
        let mut found = Self::default();
        for (socket, name) in [
            (runtime::SOCKET, "the daemon"),
            (
                runtime::FOREGROUND_SOCKET,
                "'usher sched start --foreground'",
            ),
        ] {
            let Some(mut client) = SchedulerClient::connect(&dir.join(socket), name) else {
                continue;
            };
            let state = client.status()?;
            let lives = |state: &SchedulerState| !state.state.is_over();
            if found.client.is_none() || state.as_ref().is_some_and(lives) {
                found = Self {
                    client: Some(client),
                    state,
                };
            }
        }
        Ok(found)
    }

    /// Returns the process that holds the scheduler.
    ///
    /// # Errors
    /// No scheduler of Usher's is held here.
    pub fn holder(self, dir: &Path) -> anyhow::Result<(SchedulerClient, SchedulerState)> {
        match (self.client, self.state) {
            (Some(client), Some(state)) if !state.state.is_over() => Ok((client, state)),
            _ => Err(none_runs(&kernel(), dir)),
        }
    }
}

/// Returns the state of the scheduler that runs the threads.
///
/// # Errors
/// The state cannot be read, or no scheduler of Usher's runs the threads now.
pub fn running(dir: &Path) -> anyhow::Result<SchedulerState> {
    let (_, state) = Found::at(dir)?.holder(dir)?;
    check_running(state)
}

fn check_running(state: SchedulerState) -> anyhow::Result<SchedulerState> {
    match state.state {
        Phase::Starting => bail!("the scheduler is still starting: try again in a moment"),
        Phase::Restarting => bail!("the scheduler {RESTARTS}: try again in a moment"),
        Phase::Recovering => bail!("the scheduler {RECOVERS}: try again in a few seconds"),
        Phase::Ended | Phase::Failed => bail!(NONE_RUNS),
        Phase::Running => Ok(state),
    }
}

/// Returns why no scheduler can be reached.
fn none_runs(kernel: &Kernel, dir: &Path) -> anyhow::Error {
    if let Some(unknown) = unknown(kernel, dir) {
        return anyhow!(unknown);
    }
    match kernel.state() {
        // No scheduler can be started here.
        Err(error @ ScxError::NoSchedExt { .. }) => error.into(),
        _ => anyhow!("{NONE_RUNS}: 'usher sched start' starts it"),
    }
}

/// If the kernel runs a scheduler of Usher's that no process of this runtime directory holds,
/// returns why the state of this scheduler is unknown. Returns `None` if the kernel runs no
/// scheduler of Usher's.
pub fn unknown(kernel: &Kernel, dir: &Path) -> Option<String> {
    match kernel.state() {
        Ok(Loaded::Enabled { name }) if name == NAME => {}
        _ => return None,
    }
    Some(format!(
        "Usher's scheduler runs, but no process that listens in {} has loaded it: the scheduler \
         was started with another --runtime-dir, or is just ending",
        dir.display()
    ))
}

impl SchedulerClient {
    /// Returns `None` if no process listens on the socket, or if this user cannot trust the
    /// process.
    fn connect(socket: &Path, name: &'static str) -> Option<Self> {
        let is_safe = socket.parent().is_some_and(runtime::is_safe);
        let trusted = is_safe.then(|| TrustedConnection::open(socket, &WaitLimits::default()));
        let trusted = trusted?.ok()?;
        Some(Self {
            client: VarlinkClient::new(trusted.connection),
            timeout: trusted.timeout,
            process: trusted.process,
            name,
        })
    }

    /// Returns the process that listens.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Returns a pidfd of the process that listens.
    ///
    /// # Errors
    /// The process has ended.
    pub fn process(&self) -> anyhow::Result<OwnedFd> {
        let pid = Pid::from_raw(self.pid())
            .context("the kernel reports no pid of the process that listens on the socket")?;
        let process = pidfd_open(pid, PidfdFlags::empty());
        process.with_context(|| format!("opening the daemon's process {}", self.pid()))
    }

    /// Loads the scheduler, and returns its state when it runs the threads.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn start(&mut self, settings: &Settings) -> anyhow::Result<SchedulerState> {
        self.allow_changes();
        let reply = self.client.start(serde_json::to_value(settings)?).call();
        parse(reply.map_err(|error| self.converted(error))?.scheduler)
    }

    /// Changes the settings of the running scheduler, and returns its state.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn set(&mut self, change: &SettingsChange) -> anyhow::Result<SchedulerState> {
        self.allow_changes();
        let ms = |ms: Option<u64>| ms.map(u64::cast_signed);
        let (turn_ms, max_lag_ms) = (ms(change.turn_ms), ms(change.max_lag_ms));
        let mut call = self.client.set(
            change.smt,
            change.aggregate,
            change.seats,
            turn_ms,
            max_lag_ms,
        );
        let reply = call.call();
        parse(reply.map_err(|error| self.converted(error))?.scheduler)
    }

    /// Unloads the scheduler.
    ///
    /// # Errors
    /// The daemon refuses, or is gone. `is_gone` reports a process that ended during the call.
    pub fn stop(
        &mut self,
        is_gone: impl FnOnce() -> anyhow::Result<bool>,
    ) -> anyhow::Result<Stopped> {
        self.allow_changes();
        match self.client.stop().call() {
            Ok(reply) => Ok(Stopped {
                was_loaded: reply.pid.is_some(),
                exits: reply.exits,
            }),
            // A process that only holds the scheduler may end before its reply arrives.
            Err(error) if error.source_varlink_kind().is_some() && is_gone()? => Ok(Stopped {
                was_loaded: true,
                exits: true,
            }),
            Err(error) => Err(self.converted(error)),
        }
    }

    /// Waits longer for the following answers.
    fn allow_changes(&self) {
        self.timeout.set(CHANGE_TIMEOUT);
    }

    fn status(&mut self) -> anyhow::Result<Option<SchedulerState>> {
        let reply = self.client.status().call();
        let state = reply.map_err(|error| self.converted(error));
        let state = state.with_context(|| format!("querying {}", self.name))?;
        state.scheduler.map(parse).transpose()
    }

    fn converted(&self, error: api::Error) -> anyhow::Error {
        match client::has_timed_out(error.source_varlink_kind()) {
            true => anyhow!(self.process.unanswered(self.name, self.timeout.get())),
            false => converted(error),
        }
    }
}

/// Returns whether the process has ended, or ends within the given time.
pub fn has_ended(process: &impl AsFd, within: Duration) -> anyhow::Result<bool> {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    let limit = Timespec::try_from(within).ok();
    let ended = poll(&mut ends, limit.as_ref()).context("waiting for the daemon's end")?;
    Ok(ended != 0)
}

fn parse(state: serde_json::Value) -> anyhow::Result<SchedulerState> {
    serde_json::from_value(state).context(OTHER_VERSION)
}

const OTHER_VERSION: &str = "the daemon has a different version than this command: restart the \
                             daemon";

fn converted(error: api::Error) -> anyhow::Error {
    use varlink::ErrorKind as V;
    match error.kind() {
        ErrorKind::PermissionDenied(_) => anyhow!(FOR_ROOT),
        ErrorKind::Failed(Some(failed)) => anyhow!(failed.reason.clone()),
        ErrorKind::BadArgument(Some(bad)) => anyhow!("{}: {}", bad.argument, bad.reason),
        _ => match error.source_varlink_kind() {
            Some(V::InterfaceNotFound(_) | V::MethodNotFound(_)) => anyhow!(OTHER_VERSION),
            Some(kind) => anyhow!("the connection to the daemon failed: {kind}"),
            None => anyhow!(OTHER_VERSION),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn suggests_no_start_where_none_is_possible() {
        let (dir, sys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let actual = || none_runs(&Kernel::at(sys.path()), dir.path()).to_string();
        assert!(
            actual().starts_with("this kernel has no sched_ext"),
            "{}",
            actual()
        );
        let ext = sys.path().join("kernel/sched_ext");
        fs::create_dir_all(&ext).unwrap();
        fs::write(ext.join("state"), "disabled\n").unwrap();
        let start = "Usher's scheduler does not run: 'usher sched start' starts it";
        assert_eq!(actual(), start);
    }

    #[test]
    fn rejects_a_file_as_runtime_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let actual = Found::at(file.path()).unwrap_err().to_string();
        let line = format!(
            "the runtime directory '{}' is a file",
            file.path().display()
        );
        assert!(actual.starts_with(&line), "{actual}");
    }

    #[test]
    fn finds_no_scheduler_in_a_directory_without_a_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let found = Found::at(dir.path()).unwrap();
        assert!(found.client.is_none() && found.state.is_none());
        assert!(found.holder(dir.path()).is_err());
    }

    #[test]
    fn a_scheduler_that_does_not_run_the_threads_is_not_used() {
        let mut state = SchedulerState::starting(&Settings::default());
        let refused = |state: &SchedulerState, word: &str| {
            let error = check_running(state.clone()).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        refused(&state, "is still starting");
        state.state = Phase::Restarting;
        refused(&state, "restarts because");
        state.state = Phase::Recovering;
        refused(&state, "starts again in a few seconds");
        state.state = Phase::Running;
        assert!(check_running(state.clone()).is_ok());
        state.end("stopped");
        refused(&state, NONE_RUNS);
    }

    #[test]
    fn reports_why_a_running_scheduler_is_unknown() {
        let (dir, sys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dir = dir.path();
        let kernel = Kernel::at(sys.path());
        assert_eq!(unknown(&kernel, dir), None);
        let ext = sys.path().join("kernel/sched_ext");
        fs::create_dir_all(ext.join("root")).unwrap();
        fs::write(ext.join("state"), "enabled\n").unwrap();
        fs::write(ext.join("root/ops"), "bpfland\n").unwrap();
        assert_eq!(unknown(&kernel, dir), None);
        fs::write(ext.join("root/ops"), "usher\n").unwrap();
        let line = unknown(&kernel, dir).unwrap();
        let listens = format!("no process that listens in {} has loaded it", dir.display());
        assert!(line.contains(&listens), "{line}");
        assert_eq!(none_runs(&kernel, dir).to_string(), line);
    }

    #[test]
    fn notices_the_end_of_a_process() {
        let mut cat = Command::new("cat");
        let mut child = cat.stdin(Stdio::piped()).spawn().unwrap();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        assert!(!has_ended(&process, Duration::ZERO).unwrap());
        drop(child.stdin.take());
        assert!(has_ended(&process, Duration::from_secs(30)).unwrap());
        child.wait().unwrap();
    }
}
