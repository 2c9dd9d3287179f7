// SPDX-License-Identifier: GPL-2.0-only
//! The launcher, the process of `usher run` and `usher bg`: launches the program, registers it with
//! the daemon, and waits for its end.
//!
//! 1. The launcher searches for a daemon. Without a daemon, `usher run` undoes the changes of dead
//!    daemons, runs the program unmanaged and stores its duration (`crate::remember`). `usher bg`
//!    regulates the program itself (`crate::regulate`).
//! 2. The launcher starts a child process that waits before its `exec`, and registers the child
//!    with the daemon, which gives the child its seat.
//! 3. The child executes the program; the launcher waits for its end (`managed_wait`).
//!
//! Whatever happens to the daemon, the program keeps running and the launcher waits for the
//! program. After the daemon's death, the launcher ensures that the changes to the program are
//! undone, and registers the program with the next daemon.
//!
//! Bounds: the registration delays the program by at most 10 s for each read and write of the
//! socket (`crate::client`). A refused program runs unmanaged, and a refused background program at
//! the lowest priority. After a late answer, the program runs at its own priority, and the launcher
//! tries to register the program again. Less than 64 KiB and fewer than 4,096 words of the command
//! line are sent. The wait for the program has no time limit.

mod managed_wait;
mod progress_page;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::Context;
use usher_act::{ActConfig, ActError};
use usher_host::engine::EngineError;
use usher_host::launch::{
    ChildProcess, Forwarder, LaunchError, LaunchSpec, Stream, exec_in_place, hold,
};
use usher_model::Regulation;
use usher_policy::background::Thresholds;

use crate::cli::options::RegulationArgs;
use crate::client::{Daemon, DaemonError, RegisterRequest};
use crate::failure::{self, Outcome};
use crate::measure;
use crate::regulate::{self, LocalRegulator};
use crate::remember::MeasuredRun;
use crate::runtime;
use managed_wait::ManagedWait;
use progress_page::PageFile;

/// The command to run, and its options.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// `--name`.
    pub name: Option<String>,
    /// `--weight`.
    pub weight: Option<f64>,
    /// `--hints`.
    pub hints: bool,
    /// The policy of `usher bg`; `None`: foreground.
    pub background: Option<Regulation>,
    /// The options of `usher bg` about foreground and thresholds.
    pub regulation: RegulationArgs,
    /// `--runtime-dir`.
    pub runtime_dir: Option<PathBuf>,
    /// `--store`.
    pub store: Option<PathBuf>,
}

/// Only leading arguments of together less than this number of bytes are sent to the daemon. The
/// daemon uses arguments only to recognise the program, for which the first arguments suffice.
const ARGV_BYTES_MAX: usize = 64 * 1024;
/// Fewer words than this number are sent.
const ARGV_WORDS_MAX: usize = 4096;

/// Runs the program and returns its exit status.
pub fn run(options: &RunOptions) -> Outcome {
    check_named(&options.argv)?;
    match launch(options) {
        Err(error) if is_shortage(&error) => Err(options.run_in_place(&error)),
        outcome => outcome,
    }
}

/// Returns whether an error means that the program was not started because of too few descriptors,
/// processes or bytes of memory.
fn is_shortage(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<LaunchError>();
    error.is_some_and(LaunchError::is_shortage)
}

fn launch(options: &RunOptions) -> Outcome {
    let signals = Forwarder::new(options.own_session());
    let mut signals = signals.map_err(|source| LaunchError::System {
        program: options.argv.first().cloned().unwrap_or_default(),
        doing: "catching signals",
        source,
    })?;
    let Some(mut daemon) = Daemon::find(options.runtime_dir.as_deref()) else {
        return without_daemon(options, &mut signals);
    };
    options.regulation.refuse_beside_daemon()?;
    let page = PageFile::offer();
    let spec = options.spec(page.path(), &signals)?;
    let held = hold(&spec)?;
    let request = options.request(held.pid(), page.path());
    let registered = daemon.register(request.clone());
    let mut wait_loop = ManagedWait::new(options.runtime_dir.clone(), request);
    match registered {
        Ok(reply) => wait_loop.is_managed_by(daemon, &reply),
        Err(error) => {
            // After the connection is closed, the daemon cannot deliver a late reply, and undoes
            // the call.
            drop(daemon);
            // After a late answer, the launcher registers the program again. The daemon then
            // records the priority at that time as the former priority and restores it at the
            // release, so that the priority must not be lowered before.
            let is_refused =
                DaemonError::part_of(&error).is_none() && !DaemonError::is_late(&error);
            let lowered = match options.background.is_some() && is_refused {
                true => options.lower_priority(held.pid(), spec.new_session),
                false => Ok(()),
            };
            let running = held.start()?.finish()?;
            return match wait_loop.may_try_again(&error, lowered) {
                true => wait_loop.wait(running, &mut signals),
                false => wait(running, &mut signals),
            };
        }
    }
    let running = wait_loop.wait_for_exec(held.start()?, &mut signals)?;
    wait_loop.wait(running, &mut signals)
}

/// Runs the program without a daemon. This process itself regulates background work.
fn without_daemon(options: &RunOptions, signals: &mut Forwarder) -> Outcome {
    let dir = options.runtime_dir.as_deref();
    let foreign = Daemon::foreign(dir);
    if let Some(policy) = options.background {
        if let Some(reason) = foreign {
            failure::print_error(&format!("this command regulates the program: {reason}"));
        }
        return regulated(options, policy, signals);
    }
    match foreign {
        Some(reason) => failure::print_error(&format!("the program runs unmanaged: {reason}")),
        None => undo_stale(dir),
    }
    alone(options, signals)
}

/// Rejects a command with an empty name, as shells do.
///
/// # Errors
/// The first word is empty.
pub fn check_named(argv: &[OsString]) -> Result<(), LaunchError> {
    match argv.first().filter(|word| word.is_empty()) {
        Some(word) => Err(LaunchError::NotFound {
            program: word.clone(),
            source: std::io::Error::new(std::io::ErrorKind::NotFound, "command not found"),
        }),
        None => Ok(()),
    }
}

/// Undoes the changes of a daemon that died together with its keeper.
fn undo_stale(runtime_dir: Option<&Path>) {
    let dir = runtime::own_dir(runtime_dir);
    if let Some(problem) = runtime::journal_problem(&dir) {
        failure::print_error(&problem);
        return;
    }
    let config = ActConfig::new(dir);
    let errors = match usher_act::undo_stale(&config) {
        Ok(report) => report.errors,
        Err(error) => vec![error],
    };
    // The program runs even if an undo has failed.
    for error in errors {
        failure::print_error(&failure::line(&error.into()));
    }
}

/// Runs background work that this process regulates itself. If it cannot be regulated, it runs at
/// the lowest priority.
fn regulated(options: &RunOptions, policy: Regulation, signals: &mut Forwarder) -> Outcome {
    let spec = options.spec(None, signals)?;
    spec.resolve()?;
    let adopt = regulate::adopt(&options.argv, options.name.as_deref(), policy);
    let thresholds = options.thresholds()?;
    let dir = options.runtime_dir.as_deref();
    let launched = LocalRegulator::start(dir, thresholds, &options.regulation.ignore)
        .and_then(|regulator| regulator.launch(&spec, adopt));
    let reason = match launched.map_err(|error| error.downcast::<EngineError>()) {
        Ok(launched) => return launched.run(signals),
        Err(Ok(EngineError::Launch(error))) => return Err(error.into()),
        Err(Ok(error)) => error.into(),
        Err(Err(error)) => error,
    };
    // If this fails because of a shortage, `run_in_place` prints the only line.
    let held = hold(&spec)?;
    let lowered = options.lower_priority(held.pid(), spec.new_session);
    managed_wait::report_unregulated(&failure::line(&reason), lowered);
    wait(held.release()?, signals)
}

/// Runs a single program without a daemon and without a seat, because only a daemon gives seats.
fn alone(options: &RunOptions, signals: &mut Forwarder) -> Outcome {
    let run = MeasuredRun::begin(&LaunchSpec::new(&options.argv));
    let mut running = hold(&options.spec(None, signals)?)?.release()?;
    let exit = running.wait_forwarding(signals);
    let exit = exit.context("waiting for the program")?;
    let as_asked = LaunchSpec::new(&options.argv);
    if !running.was_stopped() {
        run.end(
            exit,
            &as_asked,
            options.name.as_deref(),
            options.store.as_ref(),
        );
    }
    Ok(exit.code())
}

fn wait(mut running: ChildProcess, signals: &mut Forwarder) -> Outcome {
    let exit = running.wait_forwarding(signals);
    Ok(exit.context("waiting for the program")?.code())
}

/// Returns whether Ctrl-C at a terminal reaches this process.
fn is_in_terminals_foreground() -> bool {
    let group = std::fs::File::open("/dev/tty").map(rustix::termios::tcgetpgrp);
    group.is_ok_and(|group| group == Ok(rustix::process::getpgrp()))
}

impl RunOptions {
    /// Returns whether the program gets a session of its own: background work does, unless it is in
    /// the foreground of a terminal. In a session of its own, the program has its own share of the
    /// CPU time, and is no part of a stopped process group of the terminal, to which the kernel
    /// sends SIGHUP when the group becomes orphaned.
    fn own_session(&self) -> bool {
        self.background.is_some() && !is_in_terminals_foreground()
    }

    /// Lowers the priority of a process or thread that executes unregulated background work.
    ///
    /// # Errors
    /// A value could not be lowered. The program runs nevertheless.
    fn lower_priority(&self, tid: i32, starts_session: bool) -> Result<(), ActError> {
        let config = ActConfig::new(runtime::own_dir(self.runtime_dir.as_deref()));
        usher_act::lower_launched(&config, tid, starts_session)
    }

    /// Returns the thresholds of background work. A shortage of descriptors or memory is returned
    /// as a [`LaunchError`], so that the program replaces this process.
    fn thresholds(&self) -> anyhow::Result<Thresholds> {
        let thresholds = self.regulation.thresholds(self.store.as_deref());
        thresholds.map_err(|error| {
            let source = error.downcast_ref::<io::Error>();
            let Some(errno) = source.and_then(io::Error::raw_os_error) else {
                return error;
            };
            let shortage = LaunchError::System {
                program: self.argv.first().cloned().unwrap_or_default(),
                doing: "reading the thresholds of background work",
                source: io::Error::from_raw_os_error(errno),
            };
            match shortage.is_shortage() {
                true => shortage.into(),
                false => error,
            }
        })
    }

    /// Executes the program in place of this process, which has too few resources for a launcher
    /// beside the program (`ulimit -n`, `ulimit -u`). The program runs unmanaged, and background
    /// work at the lowest priority. Returns only after an error.
    fn run_in_place(&self, shortage: &anyhow::Error) -> anyhow::Error {
        let line = failure::line(shortage);
        match self.background {
            None => failure::print_error(&format!("the program runs unmanaged: {line}")),
            Some(_) => {
                // At `exec`, the calling thread replaces the process and keeps its own priority.
                // With a small stack limit, the calling thread is not the main thread (`main`).
                let own = rustix::thread::gettid().as_raw_nonzero().get();
                managed_wait::report_unregulated(&line, self.lower_priority(own, false));
            }
        }
        match self.words() {
            Ok(spec) => exec_in_place(&spec).into(),
            Err(error) => error,
        }
    }

    fn spec(&self, page: Option<&Path>, signals: &Forwarder) -> anyhow::Result<LaunchSpec> {
        let mut spec = LaunchSpec {
            new_session: signals.own_session(),
            ..self.words()?
        };
        // In a session of its own, nothing would prevent the program from reading input that is
        // meant for other programs.
        if spec.new_session && std::io::stdin().is_terminal() {
            spec.stdin = Stream::Null;
        }
        let Some(page) = page else {
            return Ok(spec);
        };
        let spec = spec.heartbeat(page);
        Ok(match measure::ompt_tool() {
            Some(library) => spec.ompt_tool(&library),
            None => spec,
        })
    }

    /// Returns the program to launch: the command, or Usher, which then executes the command.
    fn words(&self) -> anyhow::Result<LaunchSpec> {
        Ok(match self.hints {
            false => LaunchSpec::new(&self.argv),
            // The number of CPUs is known only when the child has its seat, but the environment is
            // passed before. The launcher therefore launches `usher seated`, which counts the CPUs
            // of the seat, sets the variables and executes the program.
            true => {
                LaunchSpec::new(&self.argv).resolve()?;
                let own = std::env::current_exe().context("finding Usher's own executable")?;
                let words = [own.into_os_string(), "seated".into(), "--".into()];
                LaunchSpec::new(words.into_iter().chain(self.argv.iter().cloned()))
            }
        })
    }

    fn request(&self, pid: i32, page: Option<&Path>) -> RegisterRequest {
        let mut room = ARGV_BYTES_MAX;
        let mut words = ARGV_WORDS_MAX;
        let short = |arg: &String| {
            room = room.saturating_sub(arg.len());
            words = words.saturating_sub(1);
            room > 0 && words > 0
        };
        let argv = self
            .argv
            .iter()
            .map(|arg| arg.to_string_lossy().into_owned());
        let cwd = std::env::current_dir().ok();
        RegisterRequest {
            pid,
            name: self.name.clone(),
            argv: argv.take_while(short).collect(),
            cwd: cwd.map(|dir| dir.display().to_string()),
            weight: self.weight,
            heartbeat: page.map(|page| page.display().to_string()),
            running: false,
            background: self.background,
        }
    }
}
