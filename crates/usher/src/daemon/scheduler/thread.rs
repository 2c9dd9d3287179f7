// SPDX-License-Identifier: GPL-2.0-only
//! The thread that holds the scheduler. The thread waits for three events:
//!
//! 1. A request: the thread loads the scheduler, changes its settings or unloads it, and sends the
//!    answer.
//! 2. The end of the scheduler by the kernel: the thread records the reason and writes the kernel's
//!    dump to a file. After a change of the online CPUs, the thread loads the scheduler again. In a
//!    daemon, it also does so after a fault, at most twice an hour (`faults`).
//! 3. The next attempt to load the scheduler again.
//!
//! The thread serves one request after another. A request takes as long as the kernel needs to
//! verify and load the BPF programs, or to unload the scheduler; the thread sets no limit. A failed
//! start leaves the previous state. New settings during a restart apply from the restart on. A
//! restart after a hotplug is attempted after each event, at least every 50 ms (`RETRY_AFTER`); the
//! first attempt after a fault waits for 5 s. The first attempt that fails later than 20 s
//! (`ENDING`) after the last hotplug ends the scheduler with an error. If the thread itself fails, it unloads the scheduler
//! and ends.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use log::Level;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use usher_scx::{Kernel, MapIds, Scheduler, ScxError, Settings};
use usher_topology::Source;

use super::control::{Request, Requests, SchedulerControl, Shared};
use super::dump::{dump_path, end_error, remove};
use super::faults::{self, FaultRestarts, Restart};
use super::record;
use super::state::{self, Phase, SchedulerState, SettingsChange};
use crate::daemon::events;
use crate::failure;

/// Expected upper limit of the time in which the kernel ends a scheduler. Restarts are attempted
/// for this time, and clients derive their time limits from the constant.
pub const ENDING: Duration = Duration::from_secs(20);
/// Longest time between two attempts to restart the scheduler.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// The verification of BPF programs recurses deeply.
const STACK_BYTES: usize = 8 << 20;

/// The running thread; dropping this value unloads the scheduler and ends the thread.
#[derive(Debug)]
pub struct SchedulerThread {
    control: SchedulerControl,
    thread: Option<JoinHandle<()>>,
}

impl SchedulerThread {
    /// Starts the thread, which has no scheduler at first and writes the kernel's dumps to `dir`.
    /// `ended` becomes readable whenever a scheduler has ended, and when a start has failed.
    ///
    /// # Errors
    /// A thread or a descriptor cannot be created.
    pub fn start(dir: &Path, kernel: Kernel, ended: Option<Arc<OwnedFd>>) -> anyhow::Result<Self> {
        let (control, requests) = SchedulerControl::new()?;
        if ended.is_none() {
            requests.shared.set(record::take(dir));
        }
        let worker = Worker {
            dir: dir.to_owned(),
            kernel,
            requests,
            ended,
            loaded: None,
            restart: None,
            fault_restarts: FaultRestarts::default(),
        };
        let thread = std::thread::Builder::new()
            .name("scheduler".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || worker.run())
            .context("starting a thread")?;
        Ok(Self {
            control,
            thread: Some(thread),
        })
    }

    /// Returns the handle by which other threads send requests.
    pub fn control(&self) -> &SchedulerControl {
        &self.control
    }
}

impl Drop for SchedulerThread {
    fn drop(&mut self) {
        self.control.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's own state.
struct Worker {
    dir: PathBuf,
    kernel: Kernel,
    requests: Requests,
    /// Becomes readable at each end and each failed start of a scheduler; `None` in a daemon, which
    /// continues to run.
    ended: Option<Arc<OwnedFd>>,
    /// Never moved to another thread.
    loaded: Option<Scheduler>,
    /// The pending restart, if any.
    restart: Option<Restart>,
    fault_restarts: FaultRestarts,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Without this call, the state would stay "running" after a panic of the thread.
        self.end("the thread that keeps the scheduler loaded has ended");
    }
}

impl Worker {
    fn run(mut self) {
        loop {
            if let Err(error) = self.wait() {
                self.end(&failure::line(&error));
                return;
            }
            loop {
                match self.requests.queue.try_recv() {
                    Ok(Request::End) | Err(TryRecvError::Disconnected) => {
                        self.end(state::STOPPED);
                        return;
                    }
                    Ok(request) => self.serve(request),
                    Err(TryRecvError::Empty) => break,
                }
            }
            self.follow_kernel();
        }
    }

    /// Waits for a request, the end of the scheduler, or the next attempt to restart it.
    fn wait(&self) -> anyhow::Result<()> {
        let mut fds = vec![PollFd::new(&self.requests.wake, PollFlags::IN)];
        if let Some(scheduler) = &self.loaded {
            // SAFETY: the descriptor is open, because it belongs to `scheduler`, which outlives the
            // borrow.
            let notify_fd = unsafe { BorrowedFd::borrow_raw(scheduler.notify_fd()) };
            fds.push(PollFd::from_borrowed_fd(notify_fd, PollFlags::IN));
        }
        let timeout = self.restart.map(|restart| {
            let pause = restart.from.saturating_duration_since(Instant::now());
            // Both are far below the largest value.
            Timespec::try_from(pause.max(RETRY_AFTER)).unwrap_or_default()
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for the scheduler's end"),
        }
        // The read fails if another descriptor has ended the wait; the error is ignored.
        let _ = rustix::io::read(&self.requests.wake, &mut [0; 8]);
        Ok(())
    }

    fn serve(&mut self, request: Request) {
        // Errors of sending are ignored: a client that has disconnected needs no answer.
        match request {
            Request::Start(settings, answer) => drop(answer.send(self.start(&settings))),
            Request::Set(change, answer) => drop(answer.send(self.set(change))),
            Request::Stop(reason, answer) => drop(answer.send(Ok(self.stop(&reason)))),
            Request::End => {}
        }
    }

    fn start(&mut self, settings: &Settings) -> anyhow::Result<SchedulerState> {
        state::refuse_beside(self.requests.shared.state().as_ref())?;
        let before = self.requests.shared.state();
        self.requests.shared.set_requested();
        self.requests.shared.set_released(false);
        let started = self.load(settings);
        self.requests.shared.set_released(started.is_err());
        match &started {
            Ok(state) => {
                let text = format!("Usher's scheduler runs with: {}", state.does);
                self.log("scheduler-start", Level::Info, text);
            }
            Err(_) => {
                self.requests.shared.set(before);
                self.notify_end();
            }
        }
        started
    }

    /// Loads a scheduler; the dump of the previous one is removed.
    fn load(&mut self, settings: &Settings) -> anyhow::Result<SchedulerState> {
        self.kernel.ready()?;
        usher_scx::check_bpf_permitted()?;
        usher_scx::check_functions()?;
        remove(&dump_path(&self.dir))?;
        self.requests
            .shared
            .set(Some(SchedulerState::starting(settings)));
        self.begin()?;
        self.requests.shared.state().context(NONE_HERE)
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        // The hotplug number is read before the topology. A CPU that comes online between the two
        // reads therefore causes a restart.
        let hotplug_seq = self.kernel.hotplug_seq()?;
        let machine = usher_topology::load(Source::ThisMachine)?;
        let settings = self.requests.shared.state().context(NONE_HERE)?.settings;
        let scheduler = Scheduler::start(&self.kernel, hotplug_seq, &machine, &settings)?;
        let maps = scheduler.map_ids()?;
        self.requests.shared.change(|state| {
            state.maps = maps;
            // The maps of the previous scheduler no longer exist, and with them the seats that
            // could not be removed.
            state.undone = None;
            state.idle_by_node = scheduler.keeps_nodes_apart();
            state.state = Phase::Running;
        });
        self.loaded = Some(scheduler);
        if let (None, Some(state)) = (&self.ended, self.requests.shared.state()) {
            record::keep(&self.dir, &state);
        }
        Ok(())
    }

    fn set(&mut self, change: SettingsChange) -> anyhow::Result<SchedulerState> {
        let state = self.requests.shared.state().context(NONE_HERE)?;
        let running = match (&self.loaded, state.state) {
            (Some(scheduler), Phase::Running) => Some(scheduler),
            // The restart takes the settings from the state.
            (_, Phase::Restarting | Phase::Recovering) => None,
            _ => bail!(NONE_HERE),
        };
        if state.settings.fifo {
            bail!(
                "the scheduler was started with --fifo: stop it ('usher sched stop') and start it \
                 without that option"
            );
        }
        let settings = change.apply(state.settings);
        if let Some(scheduler) = running {
            scheduler.set(&settings)?;
        }
        note(&self.requests.shared, &settings, |maps| match running {
            Some(_) => usher_scx::SchedulerHandle::open(maps)?.unseat_all(),
            // The seats ended with the previous scheduler.
            None => Ok(()),
        });
        let state = self.requests.shared.state().context(NONE_HERE)?;
        match &state.undone {
            None => Ok(state),
            Some(undone) => bail!("the scheduler now runs with: {}, but {undone}", state.does),
        }
    }

    fn stop(&mut self, reason: &str) -> Option<SchedulerState> {
        self.requests.shared.set_released(true);
        let lives = |state: &SchedulerState| !state.state.is_over();
        let state = self.requests.shared.state().filter(lives);
        self.end(reason);
        if state.is_some() {
            let text = format!("Usher's scheduler ended: {reason}");
            self.log("scheduler-end", Level::Info, text);
        }
        state
    }

    /// Unloads the scheduler, if one is loaded, and records the reason.
    fn end(&mut self, reason: &str) {
        self.restart = None;
        self.loaded = None;
        self.requests.shared.change(|state| {
            if !state.state.is_over() {
                state.end(reason);
            }
        });
        if self.ended.is_none() {
            record::remove(&self.dir);
        }
        self.notify_end();
    }

    /// Logs an event of the scheduler in a daemon.
    fn log(&self, event: &'static str, level: Level, text: String) {
        if self.ended.is_none() {
            events::log_scheduler(event, level, text);
        }
    }

    fn notify_end(&self) {
        if let Some(ended) = &self.ended {
            let _ = rustix::io::write(ended, &1u64.to_ne_bytes());
        }
    }

    /// Handles the end of the scheduler by the kernel, and a pending restart.
    fn follow_kernel(&mut self) {
        if let Some(restart) = self.restart {
            return self.try_restart(restart);
        }
        let ending = match self.loaded.as_ref().map(Scheduler::ending) {
            None | Some(Ok(None)) => return,
            Some(Ok(Some(ending))) => ending,
            Some(Err(error)) => return self.fail(&error.into()),
        };
        if !ending.asks_for_restart() {
            self.loaded = None;
            let error = end_error(&self.dir, &ending);
            match ending.is_error() && self.ended.is_none() {
                true => self.recover(&error),
                false => self.fail(&error),
            }
            return;
        }
        self.requests.shared.change(|state| {
            state.state = Phase::Restarting;
            state.restarts += 1;
        });
        self.loaded = None;
        self.restart = Some(Restart::after(Duration::ZERO));
    }

    fn try_restart(&mut self, restart: Restart) {
        if Instant::now() < restart.from {
            return;
        }
        let before = self.requests.shared.state().map(|state| state.state);
        let hotplug_seq = self.kernel.hotplug_seq().ok();
        match self.begin() {
            Ok(()) => {
                self.restart = None;
                if before == Some(Phase::Recovering) {
                    let text = "Usher's scheduler runs again after a fault".to_owned();
                    self.log("scheduler-start", Level::Info, text);
                }
            }
            Err(error) => {
                // The kernel may not yet have completed the end of the previous scheduler, or the
                // hotplug of the CPU.
                let hotplugged = self.kernel.hotplug_seq().ok() != hotplug_seq;
                self.restart = restart.after_failure(Instant::now(), hotplugged);
                if self.restart.is_none() {
                    self.fail(&error.context("the scheduler could not be restarted"));
                }
            }
        }
    }

    /// Prepares a restart after a fault, unless the limit of such restarts is reached.
    fn recover(&mut self, error: &anyhow::Error) {
        if !self.fault_restarts.take(Instant::now()) {
            let error = format!(
                "{error}, for the third time within an hour; 'usher sched start' starts it again"
            );
            return self.fail(&anyhow::Error::msg(error));
        }
        let reason = failure::line(error);
        let text = format!("{reason}; the daemon starts it again in a few seconds");
        self.log("scheduler-fault", Level::Error, text);
        self.requests.shared.change(|state| state.recover(reason));
        self.restart = Some(Restart::after(faults::PAUSE));
    }

    fn fail(&mut self, error: &anyhow::Error) {
        let reason = failure::line(error);
        // A process that only holds the scheduler ends with the reason as its error.
        self.log("scheduler-end", Level::Error, format!("{ENDED}: {reason}"));
        self.end(&reason);
    }
}

/// The message about the end of a scheduler, before the reason.
pub const ENDED: &str = "the scheduler has ended";

/// The error if there is no scheduler to change.
const NONE_HERE: &str = "Usher's scheduler does not run";

/// Records the new settings. If seats are switched off, existing seats are removed first.
fn note(
    shared: &Shared,
    settings: &Settings,
    unseat_all: impl FnOnce(&MapIds) -> Result<(), ScxError>,
) {
    let Some(before) = shared.state() else {
        return;
    };
    let seats_change = before.settings.seats != settings.seats;
    let mut undone = None;
    if !settings.seats {
        // The control loop reads this setting, and therefore gives no new seats while existing
        // seats are removed.
        shared.change(|state| state.settings.seats = false);
        let unseated = unseat_all(&before.maps);
        undone = unseated.err().map(|error| {
            format!(
                "some soft seats could not be removed ({error}): repeat 'usher sched set \
                     --seats off'"
            )
        });
    }
    shared.change(|state| {
        state.does = state::described(settings);
        state.changes += 1;
        state.undone = undone;
        if seats_change {
            state.seats_since = state.changes;
        }
        state.settings = *settings;
    });
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn seats_are_removed_before_the_change_is_recorded() {
        let shared = Shared::default();
        shared.set(Some(SchedulerState::starting(&Settings::default())));
        let recorded = || {
            let now = shared.state().unwrap();
            let seats = (now.settings.seats, now.seats_since);
            (now.changes, seats, now.undone)
        };
        let kept = Settings {
            smt: false,
            ..Settings::default()
        };
        note(&shared, &kept, |_| panic!("they are kept"));
        assert_eq!(recorded(), (1, (true, 0), None));
        let off = Settings {
            seats: false,
            ..kept
        };
        note(&shared, &off, |_| {
            // At this point, clients still see the old settings, but the control loop already gives
            // no more seats.
            assert_eq!(recorded(), (1, (false, 0), None));
            Err(ScxError::NotRoot)
        });
        let (changes, seats, undone) = recorded();
        assert_eq!((changes, seats), (2, (false, 2)));
        let undone = undone.unwrap();
        assert!(
            undone.starts_with(
                "some soft seats could not be removed (loading a scheduler requires root"
            ),
            "{undone}"
        );
        note(&shared, &off, |_| Ok(()));
        assert_eq!(recorded(), (3, (false, 2), None));
        note(&shared, &kept, |_| panic!("they are kept"));
        assert_eq!(recorded(), (4, (true, 4), None));
    }

    /// Returns a thread on a kernel without sched_ext, with its directories.
    fn thread_without_sched_ext() -> (tempfile::TempDir, SchedulerThread) {
        let dir = tempfile::tempdir().unwrap();
        let thread = SchedulerThread::start(dir.path(), Kernel::at(dir.path()), None).unwrap();
        (dir, thread)
    }

    #[test]
    fn a_failed_start_changes_nothing_but_releases_the_process() {
        let (dir, thread) = thread_without_sched_ext();
        let control = thread.control();
        fs::write(dump_path(dir.path()), "CPU states").unwrap();
        assert!(!control.is_released());
        let refused = control.start(Settings::default()).unwrap_err();
        let line = failure::line(&refused);
        assert!(line.starts_with("this kernel has no sched_ext"), "{line}");
        assert!(control.state().is_none() && control.is_released());
        assert!(dump_path(dir.path()).exists());
    }

    #[test]
    fn settings_that_change_during_a_restart_apply_from_the_restart_on() {
        let dir = tempfile::tempdir().unwrap();
        let (_control, requests) = SchedulerControl::new().unwrap();
        let mut worker = Worker {
            dir: dir.path().to_owned(),
            kernel: Kernel::at(dir.path()),
            requests,
            ended: None,
            loaded: None,
            restart: Some(Restart::after(faults::PAUSE)),
            fault_restarts: FaultRestarts::default(),
        };
        let mut state = SchedulerState::starting(&Settings::default());
        state.recover("a fault".to_owned());
        worker.requests.shared.set(Some(state));
        let change = SettingsChange {
            smt: Some(false),
            seats: Some(false),
            ..SettingsChange::default()
        };
        let changed = worker.set(change).unwrap();
        assert_eq!((changed.state, changed.undone), (Phase::Recovering, None));
        let settings = worker.requests.shared.state().unwrap().settings;
        assert!(!settings.smt && !settings.seats);
    }

    #[test]
    fn changes_and_stops_nothing_without_a_scheduler() {
        let (_dir, thread) = thread_without_sched_ext();
        let control = thread.control().clone();
        let changed = control.set(SettingsChange::default()).unwrap_err();
        assert_eq!(changed.to_string(), NONE_HERE);
        assert!(!control.is_released());
        assert!(control.stop("stopped").unwrap().is_none());
        assert!(control.is_released());
        drop(thread);
        let late = control.stop("stopped").unwrap_err().to_string();
        assert_eq!(late, "the daemon is ending and accepts no more requests");
    }
}
