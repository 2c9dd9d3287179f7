// SPDX-License-Identifier: GPL-2.0-only
//! The launcher's wait for the end of a managed program. During the wait, the launcher forwards
//! signals to the program, and registers the program with another daemon when its daemon has ended.
//!
//! 1. The launcher polls the program, its own signals and the daemon's socket, without a time
//!    limit.
//! 2. When the daemon has ended, its keeper undoes the daemon's changes to the program. If the
//!    keeper is dead, too, the launcher undoes the changes. While a keeper works, step 3 waits.
//! 3. A thread searches for a daemon and registers the program again (`registration`): at once,
//!    then at intervals that double from 50 ms to 2 s, and after each signal. The attempts have no
//!    limit. If the daemon was started by a command of this user, and daemon and keeper were killed,
//!    the thread also starts a daemon, up to 5 times (`restart`).
//! 4. When the program has ended, the launcher reports its duration to the daemon and returns its
//!    exit status. Only a run that succeeded, took at least 0.5 s and was never stopped is
//!    reported.
//!
//! Bounds: one undo takes up to 2.2 s, during which the launcher handles neither signals nor the
//! program's end. A registration waits up to 60 s for the daemon. Background work that has received
//! a signal to end is released and not registered again. If it still runs after 2 s, one line states
//! this. A refusal or an error of an undo is
//! printed when the text differs from the last printed text.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use usher_act::{ActConfig, ActError, UndoOutcome, UndoReport};
use usher_host::launch::{ChildProcess, Exit, Forwarder, StartingChild};
use usher_model::ProgramId;

use crate::api::{Register_Reply, ThreadHints};
use crate::autostart::DaemonOptions;
use crate::client::{Daemon, DaemonError, RegisterRequest};
use crate::failure::{self, Outcome};
use crate::runtime;

use super::registration::{Registered, Registration};
use super::restart::Restarts;

/// Minimum duration of a run that counts: the duration of a shorter run says little about
/// scalability.
const DURATION_MIN: Duration = Duration::from_millis(500);

/// Waits for a managed program, and registers it anew when its daemon dies.
pub struct ManagedWait {
    daemon: Option<Daemon>,
    request: RegisterRequest,
    runtime_dir: Option<PathBuf>,
    /// The options of a daemon that this launcher starts.
    daemon_options: DaemonOptions,
    /// Whether the daemon that manages the program, or managed it last, belongs to this user and was
    /// started by a command.
    is_automatic: bool,
    restarts: Restarts,
    program: i64,
    /// Whether the daemon that manages the program, or managed it last, regulates it.
    is_regulated: bool,
    /// The journal directory of the daemon that manages the program, or managed it last.
    instance: PathBuf,
    /// Whether a dead daemon's changes are known to be undone.
    clean: bool,
    /// The last reported error of an undo of a dead daemon's changes.
    undo_error: Option<String>,
    /// The last reported reason why the program was not admitted.
    refusal: Option<String>,
    /// The interval until the next search for a daemon.
    retry: Duration,
    /// The registration in progress, if any.
    registration: Option<Registration>,
    started: Instant,
    /// Whether background work has received a signal to end. From then on, it is not stopped again.
    ending: bool,
    /// The time at which the release of background work is reported.
    report_release_at: Option<Instant>,
}

/// The progress of undoing a dead daemon's changes.
enum UndoProgress {
    Done,
    /// The daemon's keeper is undoing them.
    ByOthers,
    Failed,
}

/// Time after which background work that has received a signal to end is reported to run still.
const END_TIME: Duration = Duration::from_secs(2);
/// First interval of the search for a new daemon; each wait doubles the interval.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// Upper limit of the interval.
const RETRY_MAX: Duration = Duration::from_secs(2);

impl ManagedWait {
    /// Starts without a daemon; `request` registers the program again, and `daemon_options` are the
    /// options of a daemon that this launcher starts.
    pub fn new(
        runtime_dir: Option<PathBuf>,
        request: RegisterRequest,
        daemon_options: DaemonOptions,
    ) -> Self {
        Self {
            daemon: None,
            request: RegisterRequest {
                running: true,
                hints: None,
                ..request
            },
            runtime_dir,
            daemon_options,
            is_automatic: false,
            restarts: Restarts::default(),
            program: 0,
            is_regulated: false,
            instance: PathBuf::new(),
            clean: true,
            undo_error: None,
            refusal: None,
            retry: RETRY_MIN,
            registration: None,
            started: Instant::now(),
            ending: false,
            report_release_at: None,
        }
    }

    /// Records that a daemon has admitted the program.
    pub fn is_managed_by(&mut self, daemon: Daemon, reply: &Register_Reply) {
        daemon.ignore_end();
        self.program = reply.id;
        self.instance = PathBuf::from(&reply.instance);
        self.is_regulated = reply.regulation.is_some();
        self.is_automatic = reply.exits_when_idle == Some(true) && daemon.is_own();
        self.restarts.managed(Instant::now());
        if reply.hints.is_some() {
            self.set_hints(reply.hints.clone());
        }
        self.daemon = Some(daemon);
    }

    /// Records the variables with which the program is launched. `usher status` lists them, also if
    /// another daemon manages the program later.
    pub fn set_hints(&mut self, hints: Option<ThreadHints>) {
        self.request.given_hints = hints;
    }

    /// Returns whether the program is background work, by request or by a rule of the daemon.
    fn is_background(&self) -> bool {
        self.request.background.is_some() || self.is_regulated
    }

    /// Reports once why the daemon did not admit the program as it was launched. `lowered` is the
    /// result of lowering the priority of refused background work. Returns whether another attempt
    /// may succeed.
    pub fn may_try_again(&mut self, error: &anyhow::Error, lowered: Result<(), ActError>) -> bool {
        let line = failure::line(error);
        let is_late = DaemonError::is_late(error);
        match DaemonError::part_of(error) {
            Some(program) => failure::print_error(&format!(
                "the program runs as part of program {program}, which started it"
            )),
            None if is_late => failure::print_error(&format!(
                "the program runs unmanaged until the daemon answers: {line}"
            )),
            None if self.is_background() => report_unregulated(&line, lowered),
            None => failure::print_error(&format!("the program runs unmanaged: {line}")),
        }
        self.refusal = Some(line);
        is_late
    }

    /// Waits until the launched process has executed its program. If the process is frozen before
    /// its `exec` and daemon and keeper die, only the launcher can thaw the process.
    pub fn wait_for_exec(
        &mut self,
        starting: StartingChild,
        signals: &mut Forwarder,
    ) -> anyhow::Result<ChildProcess> {
        while !self.poll(starting.as_fd(), signals)? {
            self.handle_signals_and_daemon_loss(starting.running(), signals);
        }
        Ok(starting.finish()?)
    }

    /// Waits until the program has ended and returns its exit status.
    pub fn wait(mut self, mut running: ChildProcess, signals: &mut Forwarder) -> Outcome {
        loop {
            self.poll(running.pidfd(), signals)?;
            if let Some(exit) = running.try_wait().context("waiting for the program")? {
                if !running.was_stopped() {
                    self.report_exit(exit);
                }
                return Ok(exit.code());
            }
            self.handle_signals_and_daemon_loss(&running, signals);
        }
    }

    /// Forwards signals. When the daemon has ended, undoes its changes and searches for another
    /// daemon.
    fn handle_signals_and_daemon_loss(&mut self, running: &ChildProcess, signals: &mut Forwarder) {
        if signals.forward(running) && self.is_background() {
            self.release();
        }
        if self.daemon.as_ref().is_some_and(Daemon::is_gone) {
            self.daemon = None;
            self.clean = false;
            self.retry = RETRY_MIN;
            if self.is_background() {
                failure::print_error(
                    "the daemon has ended: the program keeps running and is not regulated until \
                     another daemon starts",
                );
            }
        }
        if self
            .report_release_at
            .is_some_and(|at| at <= Instant::now())
        {
            self.report_release_at = None;
            failure::print_error(
                "the program still runs after a signal that requests its end; it is not regulated \
                 any more",
            );
        }
        self.take_registration();
        if self.daemon.is_none() && self.registration.is_none() && !self.ending {
            self.housekeeping();
        }
    }

    /// Waits until the program's descriptor is readable, a signal arrives, the daemon dies, or the
    /// next search for a daemon is due. Returns whether the descriptor is readable.
    fn poll(&mut self, program: BorrowedFd<'_>, signals: &Forwarder) -> anyhow::Result<bool> {
        let searches = self.daemon.is_none() && self.registration.is_none();
        let interval = match self.report_release_at {
            Some(at) => Some(at.saturating_duration_since(Instant::now())),
            None => searches.then(|| self.next_interval()),
        };
        let mut fds = vec![
            PollFd::from_borrowed_fd(program, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        let timeout = interval.and_then(|interval| Timespec::try_from(interval).ok());
        if let Some(daemon) = &self.daemon {
            fds.push(PollFd::from_borrowed_fd(daemon.as_fd(), PollFlags::IN));
        }
        if let Some(registration) = &self.registration {
            fds.push(PollFd::new(registration, PollFlags::IN));
        }
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error).context("waiting for the program"),
        }
    }

    /// Returns the interval until the next search for a daemon, and doubles it for the next wait.
    fn next_interval(&mut self) -> Duration {
        let interval = self.retry;
        self.retry = (interval * 2).min(RETRY_MAX);
        interval
    }

    /// Releases stopped background work, which could not handle a signal to end. The daemon then
    /// closes the connection.
    fn release(&mut self) {
        self.ending = true;
        let Some(mut daemon) = self.daemon.take() else {
            return;
        };
        match daemon.detach(self.program) {
            Ok(()) => self.report_release_at = Some(Instant::now() + END_TIME),
            // The program has ended meanwhile.
            Err(error) if DaemonError::is_lasting(&error) => {}
            Err(_) => self.daemon = Some(daemon),
        }
    }

    /// Without a daemon: ensures that the program is released, and begins to register it with
    /// another daemon.
    fn housekeeping(&mut self) {
        if !self.clean {
            match self.undo_orphaned() {
                UndoProgress::Done => self.clean = true,
                UndoProgress::ByOthers => return,
                // A daemon that starts later repeats the undo.
                UndoProgress::Failed => {}
            }
            self.permit_restart();
        }
        let start = self.restarts.take(Instant::now());
        let sockets = runtime::sockets(self.runtime_dir.as_deref());
        if !start && !sockets.iter().any(|path| path.exists()) {
            return;
        }
        let start = start.then(|| self.daemon_options.clone());
        match Registration::begin(self.runtime_dir.clone(), self.request.clone(), start) {
            Ok(registration) => self.registration = Some(registration),
            Err(error) => self.report_refusal(&error.into()),
        }
    }

    /// Permits this launcher to start a daemon, if the last one was started by a command, and was
    /// killed together with its keeper. A daemon that was ended on request is not started again.
    fn permit_restart(&mut self) {
        let is_automatic = std::mem::take(&mut self.is_automatic);
        if is_automatic && usher_act::was_killed(&self.instance) {
            self.restarts.permit(Instant::now());
            if self.restarts.has_given_up() {
                failure::print_error(
                    "the program runs unmanaged until another command starts a daemon: the daemon \
                     was killed again and again",
                );
            }
        }
    }

    /// Processes the result of a registration, if it is known.
    fn take_registration(&mut self) {
        let Some(registered) = self.registration.as_ref().and_then(Registration::take) else {
            return;
        };
        self.registration = None;
        self.registered(registered);
    }

    fn registered(&mut self, registered: Registered) {
        match registered {
            None => {}
            Some(Ok((daemon, reply))) => {
                self.is_managed_by(daemon, &reply);
                let was_refused = self.refusal.take().is_some();
                if self.ending {
                    self.release();
                } else if self.is_background() {
                    failure::print_error("a daemon runs again and regulates the program");
                } else if was_refused {
                    failure::print_error("the daemon manages the program now");
                }
            }
            Some(Err(error)) if error.is::<DaemonError>() => self.report_refusal(&error),
            Some(Err(error)) => self.report_failed_start(&error),
        }
    }

    /// Reports, after the last attempt, that no daemon could be started.
    fn report_failed_start(&mut self, error: &anyhow::Error) {
        if self.restarts.has_given_up() {
            let line = failure::line(error);
            failure::print_error(&format!(
                "the program runs unmanaged until another command starts a daemon: {line}"
            ));
            self.refusal = Some(line);
        }
    }

    /// Reports, once for each reason, that a daemon did not admit the program again. The attempt is
    /// repeated, because the reason may vanish: a program's old cgroup is removed, a quota is free,
    /// the daemon answers.
    fn report_refusal(&mut self, error: &anyhow::Error) {
        let line = failure::line(error);
        // The daemon reports a program that has ended as gone. This is no refusal: the launcher
        // detects the end of the program next.
        let is_first = self.refusal.as_ref() != Some(&line);
        if is_first && !DaemonError::is_gone(error) {
            failure::print_error(&format!(
                "the new daemon does not manage the program; further attempts follow every {} s: \
                 {line}",
                RETRY_MAX.as_secs()
            ));
            self.refusal = Some(line);
        }
    }

    /// Ensures that the dead daemon's changes to the program are undone.
    fn undo_orphaned(&mut self) -> UndoProgress {
        let Some(config) = self.act_config() else {
            return UndoProgress::Done;
        };
        let program = ProgramId(self.program.unsigned_abs());
        match usher_act::undo_orphaned(&config, &self.instance, program) {
            Ok(UndoOutcome::Nothing) => UndoProgress::Done,
            // Only root can read the journal of root's daemon. An ordinary user's launcher can only
            // thaw its program.
            Err(error) if is_forbidden(&error) => self.thaw(&config),
            Err(error) => {
                self.report_once(&error.into());
                UndoProgress::Failed
            }
            Ok(UndoOutcome::OwnerAlive | UndoOutcome::KeeperAlive(_)) => UndoProgress::ByOthers,
            Ok(UndoOutcome::Undone(report)) => self.undone(report),
        }
    }

    /// Reports the errors of an undo. The undo is repeated while threads may still inherit a mask
    /// or a priority, or new processes appear in the cgroup. One attempt takes up to 2.2 s, in
    /// which the launcher handles neither signals nor the end of the program.
    fn undone(&mut self, report: UndoReport) -> UndoProgress {
        let is_incomplete = report.errors.iter().any(ActError::is_not_undone);
        let lines = report
            .errors
            .into_iter()
            .map(|error| failure::line(&error.into()));
        let lines: Vec<String> = lines.collect();
        if !lines.is_empty() {
            self.report_once(&anyhow::Error::msg(lines.join("; ")));
        }
        match is_incomplete {
            true => UndoProgress::Failed,
            false => UndoProgress::Done,
        }
    }

    /// Thaws the program that a dead daemon of root managed. The next start of a daemon of root
    /// restores masks and priorities.
    fn thaw(&mut self, config: &ActConfig) -> UndoProgress {
        let is_background = self.is_background();
        let pid = self.request.pid;
        match usher_act::thaw_launched(config, &self.instance, pid, is_background) {
            Ok(true) => UndoProgress::Done,
            Ok(false) => UndoProgress::ByOthers,
            Err(error) => {
                self.report_once(&error.into());
                UndoProgress::Failed
            }
        }
    }

    fn report_once(&mut self, error: &anyhow::Error) {
        let line = failure::line(error);
        if self.undo_error.as_ref() != Some(&line) {
            failure::print_error(&line);
            self.undo_error = Some(line);
        }
    }

    /// Returns the paths: journals lie in `RUNTIME_DIR/instances/NAME`.
    fn act_config(&self) -> Option<ActConfig> {
        let runtime_dir = self.instance.parent().and_then(Path::parent)?;
        Some(ActConfig::new(runtime_dir))
    }

    /// Reports the duration to the daemon, which stores it for the next run.
    fn report_exit(&mut self, exit: Exit) {
        let took = self.started.elapsed();
        if let Some(daemon) = self.daemon.as_mut()
            && exit.success()
            && took >= DURATION_MIN
        {
            // An error is ignored, because a duration that is not stored affects only predictions.
            let _ = daemon.repeated(self.program, took.as_secs_f64());
        }
    }
}

/// Reports why background work is not regulated, and whether its priority has been lowered.
pub fn report_unregulated(reason: &str, lowered: Result<(), ActError>) {
    failure::print_error(&unregulated_line(reason, lowered));
}

fn unregulated_line(reason: &str, lowered: Result<(), ActError>) -> String {
    match lowered {
        Ok(()) => format!(
            "the program runs at the lowest priority, and is not stopped for foreground work: \
             {reason}"
        ),
        // The failed step may be one of several.
        Err(error) => format!(
            "the program does not run at the lowest priority, and is not stopped for foreground \
             work: {reason}; {}",
            failure::line(&error.into())
        ),
    }
}

/// Returns whether the user lacks the privilege.
fn is_forbidden(error: &ActError) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_interval_between_searches_for_a_daemon_is_the_shortest() {
        let dir = tempfile::tempdir().unwrap();
        let request = RegisterRequest::default();
        let options = DaemonOptions::default();
        let mut wait = ManagedWait::new(Some(dir.path().to_owned()), request, options);
        let intervals = (0..7).map(|_| {
            wait.housekeeping();
            wait.next_interval().as_millis()
        });
        let intervals: Vec<_> = intervals.collect();
        assert_eq!(intervals, [50, 100, 200, 400, 800, 1600, 2000]);
    }

    #[test]
    fn the_report_names_the_error_if_the_priority_could_not_be_lowered() {
        let line = unregulated_line("no daemon", Ok(()));
        assert!(
            line.starts_with("the program runs at the lowest priority"),
            "{line}"
        );
        let error = ActError::Process {
            doing: "lowering the priority of",
            pid: 7,
            source: Errno::PERM.into(),
        };
        let line = unregulated_line("no daemon", Err(error));
        assert!(!line.contains("runs at the lowest priority"), "{line}");
        let causes = ": no daemon; lowering the priority of process 7: Operation not permitted";
        assert!(line.ends_with(causes), "{line}");
    }
}
