// SPDX-License-Identifier: GPL-2.0-only
//! Functions that `usher profile` and `usher mix` share:
//!
//! - the configuration of an engine in this process, with a keeper that undoes its changes;
//! - the handling of signals that end a measurement;
//! - the warning about programs that a daemon manages at the same time;
//! - the search for the OMPT tool, and the terminal's style for tables.
//!
//! SIGINT, SIGTERM or SIGHUP requests the end of the measurement. A second signal ends the process
//! at once, and the keeper undoes the changes. Signals that were ignored at the start stay ignored.
//! The warning waits for a daemon within the time limit of `client`, 10 s for each read and write.

use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use usher_act::ActConfig;
use usher_host::engine::{EngineConfig, KeeperCommand};
use usher_host::mix::MixError;
use usher_report::table::TerminalStyle;
use usher_report::text;

use crate::cli::options::Global;
use crate::client::{Daemon, WaitLimits};
use crate::failure::EndedBySignal;
use crate::machine::usable_machine;
use crate::output::Output;
use crate::progress::Progress;
use crate::runtime;

/// Returns the configuration of an engine on this machine. If this process is killed, a keeper
/// undoes its changes.
pub fn engine_config(global: &Global) -> anyhow::Result<EngineConfig> {
    let runtime_dir = runtime::own_dir(global.runtime_dir.as_deref());
    if let Some(problem) = runtime::journal_problem(&runtime_dir) {
        bail!(problem);
    }
    // The actuator would make the directory for this user only, and a daemon that uses it later
    // could not be reached by other users.
    runtime::make_dir(&runtime_dir)?;
    let mut config = EngineConfig::new(usable_machine()?, ActConfig::new(runtime_dir));
    config.keeper = Some(KeeperCommand {
        exe: std::env::current_exe().context("finding Usher's own executable")?,
        subcommand: vec!["keeper".into()],
        respawn: Vec::new(),
    });
    Ok(config)
}

/// Signals that end a measurement in an orderly way.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Whether a signal has requested the end, and which one.
#[derive(Debug, Clone, Default)]
pub struct Interruption {
    caught: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interruption {
    /// Watches for signals that request the end. A second signal ends the process at once, and the
    /// keeper undoes the changes. A signal that is ignored from the start (`nohup`, background jobs
    /// of scripts) stays ignored.
    ///
    /// # Errors
    /// When a handler cannot be set.
    pub fn watch() -> anyhow::Result<Self> {
        let own = Self::default();
        for signal in ENDING.into_iter().filter(|&signal| !is_ignored(signal)) {
            let number = signal.unsigned_abs() as usize;
            signal_hook::flag::register_conditional_default(signal, own.caught.clone())
                .and_then(|_| signal_hook::flag::register_usize(signal, own.signal.clone(), number))
                .and_then(|_| signal_hook::flag::register(signal, own.caught.clone()))
                .context("catching signals")?;
        }
        Ok(own)
    }

    /// Returns a flag that becomes true when a signal that requests the end arrives.
    pub fn flag(&self) -> &AtomicBool {
        &self.caught
    }

    /// Returns the result of a measurement, or an error that names the signal that ended the
    /// measurement.
    ///
    /// # Errors
    /// As the measurement.
    pub fn outcome<T>(&self, measured: Result<T, impl Into<MixError>>) -> anyhow::Result<T> {
        let signal = self.signal.load(Ordering::Relaxed) as i32;
        measured.map_err(|error| match error.into() {
            error if error.is_cancelled() && signal != 0 => EndedBySignal { signal }.into(),
            error => error.into(),
        })
    }
}

/// Returns whether this process was started with a signal ignored.
fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction fills `action` if it returns 0.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Warns if a daemon manages programs, because these programs disturb the measurement.
pub fn warn_of_neighbours(global: &Global, progress: &Progress) {
    let daemons = Daemon::find_all(global.runtime_dir.as_deref(), &WaitLimits::default());
    let states = daemons.into_iter().filter_map(|mut d| d.status().ok());
    let managed: usize = states.map(|state| state.programs.len()).sum();
    if managed > 0 {
        progress.print_line(&format!(
            "usher: the measurement may be inaccurate, because a daemon manages {} at the same \
             time",
            text::count(managed, "program")
        ));
    }
}

/// Returns Usher's OMPT tool, which reports the progress of OpenMP programs: from `USHER_OMPT`,
/// else beside this program or where it is installed.
pub fn ompt_tool() -> Option<PathBuf> {
    const NAME: &str = "libusher_ompt.so";
    if let Some(path) = std::env::var_os("USHER_OMPT") {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    let exe = std::env::current_exe().ok()?;
    let dir = exe.parent()?;
    let places = [
        dir.join(NAME),
        dir.join("../lib/usher").join(NAME),
        dir.join("../lib").join(NAME),
    ];
    places.into_iter().find(|path| path.is_file())
}

/// Returns the terminal's style for tables.
pub fn style(out: Output) -> TerminalStyle {
    TerminalStyle {
        colour: out.color,
        width: out
            .is_terminal()
            .then(|| u16::try_from(out.width()).unwrap_or(u16::MAX)),
    }
}
