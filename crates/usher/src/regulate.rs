// SPDX-License-Identifier: GPL-2.0-only
//! Background work without a daemon: this process runs a control loop that regulates the program
//! and gives no seats.
//!
//! 1. [`LocalRegulator::start`] starts the control loop and its keeper. If this process is killed,
//!    the keeper undoes the changes, so that no process stays stopped.
//! 2. The program is launched, or running processes are admitted, as background work. A refused
//!    process does not prevent the admission of the others.
//! 3. The process waits for the program, and then for the processes that the program has left
//!    behind, which are checked every 200 ms ([`CHECK_INTERVAL`]). A process that lives in three
//!    checks is reported. The waits have no time limit.
//! 4. At the end, or after SIGINT or SIGTERM, the control loop ends and undoes all changes. A
//!    launched program gets the signal after its release.
//!
//! SIGTSTP is ignored with `--attach`. An error of the control loop ends the regulation; the exit
//! status of a launched program is returned all the same.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM, SIGTSTP};
use usher_act::ActConfig;
use usher_host::engine::{
    AdoptOptions, AdoptedProgram, Engine, EngineConfig, KeeperCommand, ProfileUse,
};
use usher_host::launch::{Forwarder, HeldChild, LaunchSpec};
use usher_model::{ProgramId, Regulation};
use usher_policy::background::Thresholds;

use crate::daemon::own_process;
use crate::failure::{self, Outcome};
use crate::machine::usable_machine;
use crate::runtime;

/// Interval at which the process checks whether the program's remaining processes have ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A process that is seen in this number of checks after the command's end counts as left behind.
const LEFT_BEHIND_CHECKS: u32 = 3;

/// Becomes readable at Ctrl-C and `SIGTERM`. It is created before the first change, so that each
/// request to end this process also undoes its changes.
pub struct StopSignal(Arc<OwnedFd>);

impl StopSignal {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// A handler cannot be set.
    pub fn catch() -> anyhow::Result<Self> {
        const CATCHING: &str = "catching signals";
        // Ctrl-Z is ignored: if it stopped this process, no process would continue the programs
        // that this process has stopped.
        signal_hook::flag::register(SIGTSTP, Arc::default()).context(CATCHING)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("making an eventfd")?);
        for signal in [SIGINT, SIGTERM] {
            let stop = stop.clone();
            let notify = move || {
                let _ = rustix::io::write(stop.as_fd(), &1u64.to_ne_bytes());
            };
            // SAFETY: the handler only calls `write(2)`, which is async-signal-safe.
            unsafe { signal_hook::low_level::register(signal, notify) }.context(CATCHING)?;
        }
        Ok(Self(stop))
    }
}

/// The control loop of this process.
pub struct LocalRegulator {
    engine: Engine,
    ended: Arc<OwnedFd>,
}

impl LocalRegulator {
    /// Starts the loop and its keeper, with the thresholds and the services to ignore.
    ///
    /// # Errors
    /// The runtime directory cannot be used, this user can neither freeze nor stop processes, or
    /// the keeper does not start.
    pub fn start(
        runtime_dir: Option<&Path>,
        thresholds: Thresholds,
        ignore: &[String],
    ) -> anyhow::Result<Self> {
        let dir = runtime::own_dir(runtime_dir);
        if let Some(problem) = runtime::journal_problem(&dir) {
            bail!(problem);
        }
        let topology = usable_machine()?;
        let policy = usher_policy::by_name_with("linux", &topology, thresholds)
            .context("this build has no policy named 'linux'")?;
        let exe = std::env::current_exe().context("finding Usher's own executable")?;
        let ended = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("making an eventfd")?);
        let mut config = EngineConfig::new(topology, ActConfig::new(dir));
        config.profiles = ProfileUse {
            store: None,
            recall: false,
            learn: false,
        };
        config.ignore = ignore.to_vec();
        config.log_entries_max = 0;
        config.ended = Some(ended.clone());
        config.keeper = Some(KeeperCommand {
            exe,
            subcommand: vec![OsString::from("keeper")],
            respawn: Vec::new(),
        });
        let engine = Engine::start(config, policy)?;
        Ok(Self { engine, ended })
    }

    /// Launches a program as background work and holds it before its `exec`.
    ///
    /// # Errors
    /// The program cannot be launched or managed.
    pub fn launch(self, spec: &LaunchSpec, adopt: AdoptOptions) -> anyhow::Result<RegulatedLaunch> {
        let (held, adopted) = self.engine.launch(spec, adopt)?;
        Ok(RegulatedLaunch {
            regulator: self,
            held,
            adopted,
        })
    }

    /// Admits running programs as background work, and regulates them until they have ended or a
    /// signal arrives.
    ///
    /// # Errors
    /// None of them can be managed.
    pub fn regulate_running(
        self,
        pids: &[i32],
        name: Option<&str>,
        policy: Regulation,
        stop: &StopSignal,
    ) -> Outcome {
        let mut refused = Vec::new();
        let asking = rustix::process::geteuid().as_raw();
        for &pid in pids {
            let adopt = adopt([""; 0], name, policy);
            let attached =
                own_process::check(pid).and_then(|()| self.engine.attach(pid, adopt, asking));
            match attached {
                Ok(adopted) => {
                    failure::print_error(&format!(
                        "process {pid} is regulated as background work until it ends or Ctrl-C \
                         is pressed"
                    ));
                    print_warnings(&adopted.warnings);
                }
                Err(error) => refused.push(Err(anyhow::Error::from(error))),
            }
        }
        self.report_gaps();
        while !self.programs()?.is_empty() && !self.wait_readable(&[stop.0.as_fd()])? {}
        self.end();
        failure::combine(refused)
    }

    /// Continues to regulate the processes that a program has left behind, until these processes
    /// have ended or a signal ends this process.
    fn regulate_left_behind(&self, id: ProgramId, signals: &mut Forwarder) -> anyhow::Result<()> {
        let mut seen = 0;
        while self.programs()?.contains(&id) {
            let left = self.engine.status()?.programs;
            let alive = left.iter().any(|p| p.id == id && p.threads > 0);
            // Processes that end soon after the command do not count as left behind.
            seen += u32::from(alive);
            if alive && seen == LEFT_BEHIND_CHECKS {
                failure::print_error(
                    "the command has ended, but processes that it started still run; they are \
                     regulated as background work until they end or Ctrl-C is pressed",
                );
            }
            self.wait_readable(&[self.ended.as_fd(), signals.as_fd()])?;
            if signals.end_requested() {
                break;
            }
        }
        Ok(())
    }

    /// Prints one line for each limitation of the regulation, such as a priority that could not be
    /// lowered. With a daemon, `usher explain` and `usher status` report these limitations.
    fn report_gaps(&self) {
        let Ok(status) = self.engine.status() else {
            // The loop has ended, which the wait for the programs reports.
            return;
        };
        let each = status.programs.into_iter().filter_map(|p| p.background);
        let lacking = each.flat_map(|background| background.lacking);
        let all: BTreeSet<String> = lacking.chain(status.warnings).collect();
        if all.is_empty() {
            return;
        }
        let advice = match rustix::process::geteuid().is_root() {
            true => "",
            false => " (root has more of these features)",
        };
        let what = format!("some features for regulating background work are unavailable{advice}");
        // Without a terminal, a line with the number replaces the list, because the mails of a
        // nightly job would repeat the list every day.
        if !std::io::stderr().is_terminal() {
            let count = usher_report::text::count(all.len(), "reason");
            failure::print_error(&format!(
                "{what}: {count}; to list them, run 'usher bg -- true' on a terminal"
            ));
            return;
        }
        failure::print_error(&format!("{what}:"));
        for text in all {
            failure::print_error(&format!("  {text}"));
        }
    }

    fn programs(&self) -> anyhow::Result<Vec<ProgramId>> {
        Ok(self
            .engine
            .status()?
            .programs
            .iter()
            .map(|p| p.id)
            .collect())
    }

    /// Waits for at most [`CHECK_INTERVAL`]. Returns true if one of the descriptors is readable.
    fn wait_readable(&self, fds: &[BorrowedFd<'_>]) -> anyhow::Result<bool> {
        let mut fds: Vec<_> = (fds.iter())
            .map(|notify_fd| PollFd::new(notify_fd, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(CHECK_INTERVAL).ok();
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(fds.iter().any(|fd| !fd.revents().is_empty())),
            Err(error) => Err(error).context("waiting"),
        }
    }

    /// Undoes all changes.
    fn end(self) {
        for error in self.engine.stop() {
            failure::print_error(&failure::line(&error.into()));
        }
    }
}

/// Background work that waits before its `exec` and is regulated by this process.
pub struct RegulatedLaunch {
    regulator: LocalRegulator,
    held: HeldChild,
    adopted: AdoptedProgram,
}

impl RegulatedLaunch {
    /// Starts the program, waits for it, and then for the processes that it left behind. Returns
    /// its exit status.
    ///
    /// # Errors
    /// The program cannot be executed.
    pub fn run(self, signals: &mut Forwarder) -> Outcome {
        let Self {
            regulator,
            held,
            adopted,
        } = self;
        print_warnings(&adopted.warnings);
        regulator.report_gaps();
        let mut running = held.release()?;
        // The program is released before the signal is forwarded, because a stopped program could
        // not handle the signal.
        let asking = rustix::process::geteuid().as_raw();
        let release = || {
            // An error is ignored, because the program may have ended meanwhile.
            let _ = regulator.engine.release(adopted.id, asking);
        };
        let exit = running.wait_forwarding_with(signals, release);
        let exit = exit.context("waiting for the program")?;
        if let Err(error) = regulator.regulate_left_behind(adopted.id, signals) {
            // The program's own exit status is returned all the same.
            failure::print_error(&failure::line(&error));
        }
        regulator.end();
        Ok(exit.code())
    }
}

/// Returns the engine's description of background work.
pub fn adopt(
    argv: impl IntoIterator<Item = impl Into<OsString>>,
    name: Option<&str>,
    policy: Regulation,
) -> AdoptOptions {
    let adopt = AdoptOptions {
        background: Some(policy),
        ..AdoptOptions::new(argv)
    };
    match name {
        Some(name) => adopt.named(name),
        None => adopt,
    }
}

fn print_warnings(warnings: &[String]) {
    warnings.iter().for_each(|text| failure::print_error(text));
}
