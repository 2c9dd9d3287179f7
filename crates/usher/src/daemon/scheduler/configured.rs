// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler that the configuration file enables (`[scheduler] enable = true`).
//!
//! 1. The daemon passes the table `[scheduler]` at its start and at each reload.
//! 2. [`change`] compares the table with the previous table and with the state of the scheduler, and
//!    determines the request: start, stop, new settings, or none. A table that has not changed does
//!    not start a scheduler that was stopped on request.
//! 3. A thread of its own sends the request, because the kernel needs seconds to verify the BPF
//!    programs. Requests keep the order of the tables.
//!
//! Only root's daemon without `--exit-when-idle` follows the table, because a daemon that a command
//! started ends with its last program. A failed start is logged, and reported by `usher status` and
//! `usher sched status`. It is repeated only while the kernel still unloads a previous scheduler of
//! Usher's, for at most 20 s ([`ENDING`]), every 50 ms.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use log::Level;
use usher_scx::{Kernel, Settings, State};

use super::control::SchedulerControl;
use super::state::{Phase, STOPPED, SchedulerConfig, SchedulerState, SettingsChange};
use super::thread::ENDING;
use crate::daemon::events;
use crate::failure;

/// Pause between two attempts to start the scheduler.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// The name of Usher's scheduler in the kernel.
const NAME: &str = "usher";

/// Follows the table `[scheduler]` of the configuration file.
#[derive(Debug)]
pub struct ConfiguredScheduler {
    control: SchedulerControl,
    /// Whether this daemon may load the scheduler by itself.
    follows: bool,
    /// The last table. The lock also orders requests.
    last: Mutex<SchedulerConfig>,
    requests: Sender<Change>,
}

/// A request that a table causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Start(Settings),
    Set(SettingsChange),
    Stop,
}

impl ConfiguredScheduler {
    /// Starts the thread that sends requests. If the daemon does not follow the table, no request is
    /// ever sent.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(control: SchedulerControl, kernel: Kernel, follows: bool) -> io::Result<Self> {
        let (requests, queue) = channel();
        let sender = control.clone();
        let thread = std::thread::Builder::new().name("sched-config".to_owned());
        thread.spawn(move || serve(&sender, &kernel, &queue))?;
        Ok(Self {
            control,
            follows,
            last: Mutex::default(),
            requests,
        })
    }

    /// Returns whether this daemon follows the table.
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// Applies a table. Returns a sentence about the consequence; `None` if there is none.
    pub fn apply(&self, table: SchedulerConfig) -> Option<&'static str> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *last, table);
        if !self.follows {
            let is_new = table.enable && !before.enable;
            return is_new.then_some(
                "[scheduler] has no effect on this daemon: only root's daemon that runs as a \
                 service loads the scheduler",
            );
        }
        let state = self.control.state();
        let change = change(before, table, state.as_ref())?;
        // The thread ends only with this value.
        let _ = self.requests.send(change);
        Some(match change {
            Change::Start(_) => "the scheduler is being started ('usher sched status')",
            Change::Set(_) => "the settings of the scheduler are being changed",
            Change::Stop => "the scheduler is being stopped",
        })
    }
}

/// Returns the request that leads from the table `before` to the table `now`.
fn change(
    before: SchedulerConfig,
    now: SchedulerConfig,
    state: Option<&SchedulerState>,
) -> Option<Change> {
    let lives = state.is_some_and(|state| !state.state.is_over());
    let was_stopped = state.is_some_and(|state| state.ended.as_deref() == Some(STOPPED));
    match (now.enable, lives) {
        (true, false) if before == now && was_stopped => None,
        (true, false) => Some(Change::Start(now.settings)),
        (true, true) if before == now => None,
        (true, true) => Some(Change::Set(settings_change(&now.settings))),
        (false, true) if before.enable => Some(Change::Stop),
        (false, _) => None,
    }
}

fn settings_change(settings: &Settings) -> SettingsChange {
    SettingsChange {
        smt: Some(settings.smt),
        aggregate: Some(settings.aggregate),
        seats: Some(settings.seats),
        turn_ms: Some(settings.turn_ns / 1_000_000),
        max_lag_ms: Some(settings.max_lag_ns / 1_000_000),
    }
}

fn serve(control: &SchedulerControl, kernel: &Kernel, queue: &Receiver<Change>) {
    for change in queue {
        let (what, failed) = match change {
            Change::Start(settings) => ("started", start(control, kernel, settings).err()),
            Change::Set(change) => ("changed", control.set(change).err()),
            Change::Stop => ("stopped", control.stop(STOPPED).err()),
        };
        if let Some(error) = failed {
            let text = format!(
                "the scheduler, which the configuration file sets, could not be {what}: {}",
                failure::line(&error)
            );
            events::log_scheduler("scheduler-failed", Level::Error, text);
        }
    }
}

/// Starts the scheduler. A failure becomes the state of the scheduler.
fn start(control: &SchedulerControl, kernel: &Kernel, settings: Settings) -> anyhow::Result<()> {
    // An earlier table may have started it.
    let lives = || control.state().is_some_and(|state| !state.state.is_over());
    if lives() {
        return control.set(settings_change(&settings)).map(drop);
    }
    let deadline = Instant::now() + ENDING;
    let error = loop {
        match control.start(settings) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline || !is_unloading(kernel) => break error,
            Err(_) => std::thread::sleep(RETRY_AFTER),
        }
    };
    if !lives() {
        let mut failed = SchedulerState::starting(&settings);
        failed.end(&failure::line(&error));
        failed.state = Phase::Failed;
        control.record_failure(failed);
    }
    Err(error)
}

/// Returns whether the kernel has not yet unloaded a scheduler of Usher's, which a dead daemon held.
fn is_unloading(kernel: &Kernel) -> bool {
    match kernel.state() {
        Ok(State::Enabled { name }) => name == NAME,
        Ok(State::Changing(_)) => true,
        Ok(State::Disabled) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::daemon::scheduler::SchedulerThread;

    fn table(enable: bool, smt: bool) -> SchedulerConfig {
        SchedulerConfig {
            enable,
            settings: Settings {
                smt,
                ..Settings::default()
            },
        }
    }

    fn state(phase: Phase, ended: Option<&str>) -> SchedulerState {
        let mut state = SchedulerState::starting(&Settings::default());
        state.state = phase;
        state.ended = ended.map(str::to_owned);
        state
    }

    #[test]
    fn a_changed_table_starts_changes_or_stops_the_scheduler() {
        let (off, on, other) = (table(false, true), table(true, true), table(true, false));
        let start = |table: SchedulerConfig| Some(Change::Start(table.settings));
        assert_eq!(change(off, on, None), start(on));
        assert_eq!(change(off, off, None), None);
        assert_eq!(change(on, off, None), None);
        for phase in [Phase::Running, Phase::Restarting, Phase::Recovering] {
            let runs = state(phase, None);
            assert_eq!(change(on, on, Some(&runs)), None);
            assert_eq!(change(on, off, Some(&runs)), Some(Change::Stop));
            // The user started it.
            assert_eq!(change(off, off, Some(&runs)), None);
            let changed = change(on, other, Some(&runs));
            let Some(Change::Set(set)) = changed else {
                panic!("{changed:?}");
            };
            assert_eq!((set.smt, set.turn_ms), (Some(false), Some(24)));
        }
    }

    #[test]
    fn an_unchanged_table_starts_it_again_unless_a_request_stopped_it() {
        let (on, other) = (table(true, true), table(true, false));
        let stopped = state(Phase::Ended, Some(STOPPED));
        assert_eq!(change(on, on, Some(&stopped)), None);
        let start = Some(Change::Start(other.settings));
        assert_eq!(change(on, other, Some(&stopped)), start);
        let stalled = state(Phase::Ended, Some("a stall"));
        let failed = state(Phase::Failed, Some("another scheduler"));
        let start = Some(Change::Start(on.settings));
        for ended in [stalled, failed] {
            assert_eq!(change(on, on, Some(&ended)), start);
        }
    }

    /// Returns a follower on a kernel without sched_ext, with its thread and directory.
    fn follower(follows: bool) -> (ConfiguredScheduler, SchedulerThread, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let thread = SchedulerThread::start(dir.path(), kernel.clone(), None).unwrap();
        let control = thread.control().clone();
        let configured = ConfiguredScheduler::new(control, kernel, follows).unwrap();
        (configured, thread, dir)
    }

    #[test]
    fn another_daemon_reports_once_that_the_table_has_no_effect() {
        let (configured, thread, _dir) = follower(false);
        assert_eq!(configured.apply(table(false, true)), None);
        let note = configured.apply(table(true, true)).unwrap();
        assert!(note.starts_with("[scheduler] has no effect"), "{note}");
        assert_eq!(configured.apply(table(true, false)), None);
        assert!(thread.control().state().is_none());
    }

    #[test]
    fn a_failed_start_becomes_the_state_of_the_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let thread = SchedulerThread::start(dir.path(), kernel.clone(), None).unwrap();
        let control = thread.control();
        let error = start(control, &kernel, Settings::default()).unwrap_err();
        let state = control.state().unwrap();
        assert_eq!(state.state, Phase::Failed);
        assert_eq!(state.ended, Some(failure::line(&error)));
        assert!(error.to_string().contains("no sched_ext"), "{error}");
    }

    #[test]
    fn the_thread_ends_with_the_follower() {
        let (configured, thread, dir) = follower(true);
        let configured = Arc::new(configured);
        let note = configured.apply(table(true, true)).unwrap();
        assert!(note.contains("is being started"), "{note}");
        drop((configured, thread, dir));
    }
}
