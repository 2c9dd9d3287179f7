// SPDX-License-Identifier: GPL-2.0-only
//! The launcher, the process of `usher run` and `usher bg`: launches the program, registers it with
//! the daemon, and waits for its end.
//!
//! 1. The launcher connects to a daemon, and requests a cgroup for the program. If no daemon
//!    listens, the launcher starts one (`crate::autostart`).
//! 2. The launcher starts a child process in this cgroup, which waits before its `exec`. The move of
//!    a running process into the cgroup would take 8 to 20 ms.
//! 3. The launcher registers the child with the daemon, which gives the child its seat.
//! 4. The child executes the program; the launcher waits for its end (`managed_wait`). If the reply
//!    of the daemon contains a number of threads, the child sets `OMP_NUM_THREADS` and similar
//!    variables to it before its `exec`, unless the user has set them.
//!
//! With `--no-daemon`, or if no daemon can be started, the program runs unmanaged, and a background
//! program at the lowest priority. One line names the reason.
//!
//! Whatever happens to the daemon, the program keeps running and the launcher waits for the
//! program. After the daemon's death, the launcher ensures that the changes to the program are
//! undone, and registers the program with the next daemon. If daemon and keeper were killed, and a
//! command had started the daemon, the launcher starts the next daemon (`restart`).
//!
//! Bounds: the start of a daemon delays the program by at most 30 s, 10 s for each of its steps
//! (`crate::autostart`). Up to 3 daemons are started if each of them ends before it replies. The
//! registration takes at most 2 s for each read and write of the socket ([`REGISTER_TIMEOUT`]). A
//! signal that requests the program's end ends these waits: the program then runs unmanaged, and
//! receives the signal. A refused program runs unmanaged, and a refused background program at the
//! lowest priority. After a late answer, the program runs at its own priority, and the launcher
//! tries to register the program again. Less than 64 KiB and fewer than 4,096 words of the command
//! line are sent. The wait for the program has no time limit.

pub mod copies;
mod managed_wait;
pub mod placeholders;
mod progress_page;
mod registration;
mod restart;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use usher_act::{ActConfig, ActError};
use usher_host::launch::{
    ChildProcess, Forwarder, HeldChild, LaunchError, LaunchSpec, Stream, exec_in_place, hold,
    hold_in,
};
use usher_model::Regulation;

use crate::api::{HintRequest, Register_Reply, ThreadHints};
use crate::autostart;
use crate::cli::options::{RegulationArgs, explicit_store, report_other_store};
use crate::client::{Daemon, DaemonError, RegisterRequest, WaitLimits};
use crate::failure::{self, Outcome};
use crate::measure;
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
    /// `--cores`.
    pub cores: Option<u32>,
    /// `--hints` and `--no-hints`.
    pub hints: HintMode,
    /// The policy of `usher bg`; `None`: foreground.
    pub background: Option<Regulation>,
    /// `--no-daemon`.
    pub no_daemon: bool,
    /// The options of `usher bg` about foreground and thresholds.
    pub regulation: RegulationArgs,
    /// `--runtime-dir`.
    pub runtime_dir: Option<PathBuf>,
    /// `--store`.
    pub store: Option<PathBuf>,
}

/// A child that waits before its `exec`, and the request that registers it.
struct RequestedChild {
    held: HeldChild,
    request: RegisterRequest,
}

/// When the launcher sets `OMP_NUM_THREADS` and similar variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintMode {
    /// If the profile store contains copies of an earlier run of the program.
    AfterCopies,
    /// In every run (`--hints`).
    Always,
    /// Never (`--no-hints`).
    Never,
}

/// Only leading arguments of together less than this number of bytes are sent to the daemon. The
/// daemon uses arguments only to recognise the program, for which the first arguments suffice.
const ARGV_BYTES_MAX: usize = 64 * 1024;
/// Upper limit of the time for which a program waits for the answer of a daemon before it runs
/// unmanaged.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(2);
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
    if options.no_daemon {
        return unmanaged(options, &mut signals);
    }
    options.check_daemon_options()?;
    let page = PageFile::offer();
    let spec = options.spec(page.path(), &signals);
    let spec = spec.env(usher_probe::RUN_VARIABLE, run_id());
    // A command that does not exist starts no daemon.
    spec.resolve()?;
    let (child, registered) = options.register(&spec, page.path(), &mut signals)?;
    let RequestedChild { held, request } = child;
    let daemon_options = options.regulation.daemon_options(options.store.clone());
    let mut wait_loop = ManagedWait::new(options.runtime_dir.clone(), request, daemon_options);
    let threads = match registered {
        Ok((daemon, reply)) => {
            wait_loop.is_managed_by(daemon, &reply);
            reply.hints.as_ref().map(thread_count)
        }
        Err(error) => {
            // The connection is closed, so that the daemon cannot deliver a late reply, and undoes
            // the call. After a late answer, the launcher registers the program again. The daemon then
            // records the priority at that time as the former priority and restores it at the
            // release, so that the priority must not be lowered before.
            let is_refused =
                DaemonError::part_of(&error).is_none() && !DaemonError::is_late(&error);
            let lowered = match options.background.is_some() && is_refused {
                true => options.lower_priority(held.pid(), spec.new_session),
                false => Ok(()),
            };
            let hints = options.own_hints(&spec);
            let threads = hints.as_ref().map(thread_count);
            wait_loop.set_hints(hints);
            let running = held.start_with_threads(threads)?.finish()?;
            return match wait_loop.may_try_again(&error, lowered) {
                true => wait_loop.wait(running, &mut signals),
                false => wait(running, &mut signals),
            };
        }
    };
    let running = wait_loop.wait_for_exec(held.start_with_threads(threads)?, &mut signals)?;
    wait_loop.wait(running, &mut signals)
}

/// Runs the program without a daemon, at the user's request.
fn unmanaged(options: &RunOptions, signals: &mut Forwarder) -> Outcome {
    const REASON: &str = "the option --no-daemon is given";
    let spec = options.spec(None, signals);
    signals.keep_pending();
    let held = hold(&spec)?;
    match options.background {
        None => failure::print_error(&format!("the program runs unmanaged: {REASON}")),
        Some(_) => {
            let lowered = options.lower_priority(held.pid(), spec.new_session);
            managed_wait::report_unregulated(REASON, lowered);
        }
    }
    let threads = options.own_hints(&spec).as_ref().map(thread_count);
    wait(held.start_with_threads(threads)?.finish()?, signals)
}

/// Returns a value of [`usher_probe::RUN_VARIABLE`]: the pid of this process and the time. The daemon
/// recognises by this value processes of the program whose parents have ended.
fn run_id() -> String {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    format!("{}.{}{:09}", std::process::id(), now.tv_sec, now.tv_nsec)
}

/// Returns the value of the variables.
fn thread_count(hints: &ThreadHints) -> u32 {
    u32::try_from(hints.threads).unwrap_or(u32::MAX)
}

/// Returns the number of CPUs that this process, and a program that it launches, may use by its
/// affinity mask and its CPU quota.
fn own_cpus() -> i64 {
    let cpus = std::thread::available_parallelism();
    cpus.map_or(1, |cpus| i64::try_from(cpus.get()).unwrap_or(i64::MAX))
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

    /// Checks the options that only a daemon uses which this command starts. Prints that a running
    /// daemon uses another profile store.
    ///
    /// # Errors
    /// A daemon runs already, or the file of thresholds cannot be used.
    fn check_daemon_options(&self) -> anyhow::Result<()> {
        let store = explicit_store(self.store.as_deref());
        if !self.regulation.is_given() && store.is_none() {
            return Ok(());
        }
        if let Some(mut daemon) = Daemon::find(self.runtime_dir.as_deref()) {
            self.regulation.refuse_beside_daemon()?;
            report_other_store(&mut daemon, store);
        }
        match self.regulation.is_given() {
            true => self.regulation.thresholds(self.store.as_deref()).map(drop),
            false => Ok(()),
        }
    }

    /// Starts a child that waits before its `exec`, and registers the child with a daemon, which is
    /// started if none listens. Returns the child, the request, and the result of the registration:
    /// no daemon can be started, or the daemon refuses.
    ///
    /// # Errors
    /// The child cannot be started.
    fn register(
        &self,
        spec: &LaunchSpec,
        page: Option<&Path>,
        signals: &mut Forwarder,
    ) -> anyhow::Result<(RequestedChild, anyhow::Result<(Daemon, Register_Reply)>)> {
        let options = self.regulation.daemon_options(self.store.clone());
        let config = ActConfig::new(runtime::own_dir(self.runtime_dir.as_deref()));
        let end = signals.end_fd();
        let limits = WaitLimits {
            timeout: REGISTER_TIMEOUT,
            end: Some(end.as_fd()),
        };
        let dir = self.runtime_dir.as_deref();
        // The request is made once, because it reads the CPU quota while the child waits.
        let mut child: Option<RequestedChild> = None;
        let registered = autostart::call(dir, &options, &limits, |daemon| {
            // A child that another daemon could not register is in the cgroup of its launcher.
            let child = match child.take() {
                Some(known) => child.insert(known),
                None => {
                    let home = daemon.prepare(&config, self.background)?;
                    signals.keep_pending();
                    let held = hold_in(spec, home.as_ref())?;
                    let request = self.request(held.pid(), page, spec);
                    child.insert(RequestedChild { held, request })
                }
            };
            daemon.register(child.request.clone())
        });
        match (child, registered) {
            (Some(child), registered) => Ok((child, registered)),
            (None, Err(error)) if error.is::<LaunchError>() => Err(error),
            (None, registered) => {
                signals.keep_pending();
                let held = hold(spec)?;
                let request = self.request(held.pid(), page, spec);
                Ok((RequestedChild { held, request }, registered))
            }
        }
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
        let spec = self.program();
        let hints = self.own_hints(&spec);
        let spec = match hints.as_ref().map(thread_count) {
            Some(number) => spec.threads(number),
            None => spec,
        };
        exec_in_place(&spec).into()
    }

    fn spec(&self, page: Option<&Path>, signals: &Forwarder) -> LaunchSpec {
        let mut spec = LaunchSpec {
            new_session: signals.own_session(),
            ..self.program()
        };
        // In a session of its own, nothing would prevent the program from reading input that is
        // meant for other programs.
        if spec.new_session && std::io::stdin().is_terminal() {
            spec.stdin = Stream::Null;
        }
        let Some(page) = page else {
            return spec;
        };
        let spec = spec.heartbeat(page);
        match measure::ompt_tool() {
            Some(library) => spec.ompt_tool(&library),
            None => spec,
        }
    }

    /// Returns the program to launch, with the variables that may set its number of threads.
    fn program(&self) -> LaunchSpec {
        let spec = LaunchSpec::new(&self.argv);
        match self.hints {
            HintMode::Never => spec,
            HintMode::AfterCopies | HintMode::Always => spec.thread_hints(),
        }
    }

    fn request(&self, pid: i32, page: Option<&Path>, spec: &LaunchSpec) -> RegisterRequest {
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
            cores: self.cores,
            heartbeat: page.map(|page| page.display().to_string()),
            running: false,
            background: self.background,
            hints: self.hint_request(spec),
            given_hints: None,
        }
    }

    /// Returns the request for the number of threads; `None` if no variables may be set.
    fn hint_request(&self, spec: &LaunchSpec) -> Option<HintRequest> {
        (!spec.thread_variables.is_empty()).then(|| HintRequest {
            variables: names(spec),
            always: self.hints == HintMode::Always,
            cpus: own_cpus(),
        })
    }

    /// Returns the variables that are set without a daemon: with `--hints`, to the number of CPUs
    /// of this process.
    fn own_hints(&self, spec: &LaunchSpec) -> Option<ThreadHints> {
        let is_set = self.hints == HintMode::Always && !spec.thread_variables.is_empty();
        is_set.then(|| ThreadHints {
            threads: own_cpus(),
            variables: names(spec),
            from_copies: false,
        })
    }
}

/// Returns the names of the variables that may be set.
fn names(spec: &LaunchSpec) -> Vec<String> {
    let names = spec.thread_variables.iter();
    names.map(|&name| name.to_owned()).collect()
}
