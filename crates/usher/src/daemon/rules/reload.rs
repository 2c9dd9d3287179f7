// SPDX-License-Identifier: GPL-2.0-only
//! Reads the configuration file again, at `usher daemon reload` and at SIGHUP.
//!
//! The new rules replace the old ones at once. If the file has an error, the old rules stay in
//! force. The settings of the table `[daemon]` take effect at the next start of the daemon; a note
//! reports this if they have changed. A change of the table `[scheduler]` starts, changes or stops
//! the scheduler (`scheduler::configured`).

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::SIGHUP;
use usher_host::engine::EngineHandle;

use super::file::{self, ConfigFile};
use super::{DaemonSettings, SharedRules, scan};
use crate::daemon::scheduler::ConfiguredScheduler;
use crate::daemon::signals;
use crate::failure;

/// Reads the file again on request; may be cloned and used in any thread.
#[derive(Clone)]
pub struct Reloader(Arc<Inner>);

struct Inner {
    /// The file that `--config` names.
    given: Option<PathBuf>,
    /// Number of cores of the machine.
    cores: usize,
    /// The settings at the start of the daemon.
    started_with: DaemonSettings,
    rules: SharedRules,
    scheduler: ConfiguredScheduler,
    /// Reports new rules to the thread that scans for processes. The lock also orders reloads.
    changed: Mutex<Sender<()>>,
}

/// The result of a reload.
#[derive(Debug)]
pub struct Reloaded {
    /// The file; `None` if there is none.
    pub file: Option<PathBuf>,
    /// Number of rules.
    pub rules: usize,
    /// Warnings about the rules, and notes about changes that take effect later.
    pub notes: Vec<String>,
}

impl Reloader {
    /// Puts the contents of the file in force: logs warnings about the rules, starts the thread that
    /// attaches running processes, and applies the table `[scheduler]`. `cores` is the number of
    /// cores of the machine.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        given: Option<PathBuf>,
        file: ConfigFile,
        cores: usize,
        engine: EngineHandle,
        scheduler: ConfiguredScheduler,
    ) -> io::Result<Self> {
        for warning in file.rules.excess_cores(cores) {
            log::warn!("{warning}");
        }
        match scheduler.apply(file.scheduler) {
            Some(note) if scheduler.follows() => log::info!("{note}"),
            Some(note) => log::warn!("{note}"),
            None => {}
        }
        let rules = SharedRules::new(file.rules);
        let (changed, receiver) = channel();
        scan::start(engine, rules.clone(), receiver)?;
        Ok(Self(Arc::new(Inner {
            given,
            cores,
            started_with: file.daemon,
            rules,
            scheduler,
            changed: Mutex::new(changed),
        })))
    }

    /// Returns the rules in force.
    pub fn rules(&self) -> &SharedRules {
        &self.0.rules
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// The error of the file. The old rules stay in force.
    pub fn reload(&self) -> anyhow::Result<Reloaded> {
        let changed = self.0.changed.lock();
        let changed = changed.unwrap_or_else(PoisonError::into_inner);
        let config = file::load(self.0.given.as_deref())?;
        let mut notes = config.rules.excess_cores(self.0.cores);
        if config.daemon != self.0.started_with {
            notes.push(
                "the settings in [daemon] take effect at the next start of the daemon".to_owned(),
            );
        }
        let scheduler = self.0.scheduler.apply(config.scheduler);
        notes.extend(scheduler.map(str::to_owned));
        let reloaded = Reloaded {
            file: config.rules.file.clone(),
            rules: config.rules.rules.len(),
            notes,
        };
        self.0.rules.set(config.rules);
        // Fails only after the end of the thread, which ends with the engine.
        let _ = changed.send(());
        Ok(reloaded)
    }

    /// Starts a thread that reads the file again at SIGHUP and prints the result.
    ///
    /// # Errors
    /// The signal cannot be caught, or the thread cannot be started.
    pub fn reload_at_sighup(&self) -> io::Result<()> {
        use rustix::event::{EventfdFlags, eventfd};
        let requested: Arc<OwnedFd> = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        signals::catch(&requested, &[SIGHUP])?;
        let reloader = self.clone();
        let follow = move || {
            let mut count = [0; 8];
            while rustix::io::retry_on_intr(|| rustix::io::read(&requested, &mut count)).is_ok() {
                match reloader.reload() {
                    Ok(reloaded) => log::info!("{reloaded}"),
                    Err(error) => {
                        log::error!("{}; the old rules stay in force", failure::line(&error));
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("reload".to_owned());
        thread.spawn(follow).map(drop)
    }
}

impl std::fmt::Display for Reloaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.file {
            Some(file) => {
                let rules = usher_report::text::count(self.rules, "rule");
                write!(f, "{rules} of {} in force", file.display())?;
            }
            None => f.write_str("no rules in force, because there is no configuration file")?,
        }
        self.notes.iter().try_for_each(|note| write!(f, "; {note}"))
    }
}
