// SPDX-License-Identifier: GPL-2.0-only
//! Background work without a daemon: this process runs the loop for it, and
//! seats nobody.
//!
//! The loop ends when the last process of the work has: a program that forks
//! and exits is regulated on. A keeper watches, so that nothing stays stopped
//! when this process is killed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM, SIGTSTP};
use usher_act::ActConfig;
use usher_host::engine::{AdoptOptions, Engine, EngineConfig, KeeperCommand, ProfileUse};
use usher_host::launch::{Forwarder, LaunchSpec};
use usher_model::{ProgramId, Regulation};

use crate::commands::bg::RegulationArgs;
use crate::commands::usable_machine;
use crate::failure::{self, Outcome};
use crate::runtime;

/// How often it is looked whether what was left behind has ended.
const LOOK: Duration = Duration::from_millis(200);

/// Who is seen for so many looks after the command's end is left behind.
const LEFT_BEHIND: u32 = 3;

/// Set by Ctrl-C and `SIGTERM`. Made before anything is changed, so that nobody who
/// asks this process to end meets one that has not heard of undoing yet.
pub struct Stop(Arc<OwnedFd>);

impl Stop {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// A handler cannot be set.
    pub fn catch() -> anyhow::Result<Self> {
        const CATCHING: &str = "catching signals";
        // Stopped by Ctrl-Z, nobody would let go on what is stopped here.
        signal_hook::flag::register(SIGTSTP, Arc::default()).context(CATCHING)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("making an eventfd")?);
        for signal in [SIGINT, SIGTERM] {
            let stop = stop.clone();
            let ring = move || {
                let _ = rustix::io::write(stop.as_fd(), &1u64.to_ne_bytes());
            };
            // SAFETY: write(2) is async-signal-safe, and nothing else is done.
            unsafe { signal_hook::low_level::register(signal, ring) }.context(CATCHING)?;
        }
        Ok(Self(stop))
    }
}

/// A loop of this process's own.
pub struct Regulator {
    engine: Engine,
    ended: Arc<OwnedFd>,
}

impl Regulator {
    /// Starts the loop and its keeper.
    ///
    /// # Errors
    /// There is nothing to act with, the keeper does not start, or the
    /// thresholds make no sense.
    pub fn start(
        runtime_dir: Option<&Path>,
        store: Option<&Path>,
        args: &RegulationArgs,
    ) -> anyhow::Result<Self> {
        let topology = usable_machine()?;
        let store = runtime::store_path(store);
        let thresholds = runtime::thresholds(args.thresholds.as_deref(), &store)?;
        let policy = usher_policy::by_name_with("linux", &topology, thresholds)
            .context("there is no policy 'linux'")?;
        let exe = std::env::current_exe().context("finding Usher's own executable")?;
        let ended = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("making an eventfd")?);
        let act = ActConfig::new(runtime::own_dir(runtime_dir));
        let mut config = EngineConfig::new(topology, act);
        config.profiles = ProfileUse {
            store: None,
            recall: false,
            learn: false,
        };
        config.ignore = args.ignore.clone();
        config.log_entries_max = 0;
        config.ended = Some(ended.clone());
        config.keeper = Some(KeeperCommand {
            exe,
            subcommand: vec![OsString::from("keeper")],
            respawn: Vec::new(),
        });
        let engine = Engine::start(config, policy).context("starting to regulate")?;
        Ok(Self { engine, ended })
    }

    /// Launches a program as background work, waits for it, and then for what
    /// it has left behind. Answers its exit status.
    ///
    /// # Errors
    /// It cannot be launched or managed.
    pub fn run(self, spec: &LaunchSpec, adopt: AdoptOptions, signals: &mut Forwarder) -> Outcome {
        let (held, adopted) = self.engine.launch(spec, adopt)?;
        tell(&adopted.warnings);
        self.tell_lacking()?;
        let mut running = held.release()?;
        // Who is stopped would not hear that it is to end.
        let asking = rustix::process::geteuid().as_raw();
        let release = || {
            // It may have ended meanwhile.
            let _ = self.engine.release(adopted.id, asking);
        };
        let exit = running.wait_forwarding_with(signals, release);
        let exit = exit.context("waiting for the program")?;
        self.outlast(adopted.id, signals)?;
        self.end();
        Ok(exit.code())
    }

    /// Takes running programs in as background work, and regulates them until
    /// they have ended or a signal comes.
    ///
    /// # Errors
    /// None of them can be managed.
    pub fn attend(
        self,
        pids: &[i32],
        name: Option<&str>,
        policy: Regulation,
        stop: &Stop,
    ) -> Outcome {
        let mut refused = Vec::new();
        let asking = rustix::process::geteuid().as_raw();
        for &pid in pids {
            match self
                .engine
                .attach(pid, adopt([""; 0], name, policy), asking)
            {
                Ok(adopted) => {
                    failure::complain(&format!(
                        "process {pid} is background work until it ends or Ctrl-C is pressed"
                    ));
                    tell(&adopted.warnings);
                }
                Err(error) => refused.push(Err(anyhow::Error::from(error))),
            }
        }
        self.tell_lacking()?;
        while !self.programs()?.is_empty() && !self.rings(&[stop.0.as_fd()])? {}
        self.end();
        failure::of_parts(refused)
    }

    /// Regulates on what a program has left behind when it ended itself, until
    /// that has ended too, or this process is asked to.
    fn outlast(&self, id: ProgramId, signals: &mut Forwarder) -> anyhow::Result<()> {
        let mut seen = 0;
        while self.programs()?.contains(&id) {
            let left = self.engine.status()?.programs;
            let alive = left.iter().any(|p| p.id == id && p.threads > 0);
            // Not who is just ending.
            seen += u32::from(alive);
            if alive && seen == LEFT_BEHIND {
                failure::complain(
                    "the command has ended and left processes behind; they stay background \
                     work until they end too, or Ctrl-C is pressed",
                );
            }
            self.rings(&[self.ended.as_fd(), signals.as_fd()])?;
            if signals.end_requested() {
                break;
            }
        }
        Ok(())
    }

    /// Says what could not be done for the work here, a line each; with a
    /// daemon `usher explain` and `usher status` do.
    fn tell_lacking(&self) -> anyhow::Result<()> {
        let status = self.engine.status()?;
        let each = status.programs.into_iter().filter_map(|p| p.background);
        let lacking = each.flat_map(|background| background.lacking);
        let all: BTreeSet<String> = lacking.chain(status.warnings).collect();
        if all.is_empty() {
            return Ok(());
        }
        let advice = match rustix::process::geteuid().is_root() {
            true => "",
            false => " (as root there is most)",
        };
        let what = format!("regulated with less than there could be{advice}");
        // Nobody wants the same lines in each mail of a nightly job.
        if !std::io::stderr().is_terminal() {
            let count = usher_report::text::count(all.len(), "reason");
            failure::complain(&format!("{what}: {count}, told on a terminal"));
            return Ok(());
        }
        failure::complain(&format!("{what}:"));
        for text in all {
            failure::complain(&format!("  {text}"));
        }
        Ok(())
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

    /// Waits a moment; true when one of them can be read.
    fn rings(&self, bells: &[BorrowedFd<'_>]) -> anyhow::Result<bool> {
        let mut fds: Vec<_> = (bells.iter())
            .map(|bell| PollFd::new(bell, PollFlags::IN))
            .collect();
        let patience = Timespec::try_from(LOOK).ok();
        match rustix::event::poll(&mut fds, patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(fds.iter().any(|fd| !fd.revents().is_empty())),
            Err(error) => Err(error).context("waiting"),
        }
    }

    /// Takes everything back.
    fn end(self) {
        for error in self.engine.stop() {
            failure::complain(&failure::line(&error.into()));
        }
    }
}

/// What the engine is to be told of background work.
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

fn tell(warnings: &[String]) {
    warnings.iter().for_each(|text| failure::complain(text));
}
