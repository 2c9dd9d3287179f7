// SPDX-License-Identifier: GPL-2.0-only
//! What `usher run` does: launch, have it managed, wait.
//!
//! Whatever happens to the daemon, the program goes on and is waited for. A
//! launcher whose daemon has died sees to it that what was done to its program
//! is undone (by the keeper, or where that is dead too by itself), and
//! registers the program again with a daemon that comes back.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use usher_act::{ActConfig, ActError, Rescue};
use usher_host::launch::{
    ChildProcess, Exit, Forwarder, LaunchError, LaunchSpec, StartingChild, Stream, hold,
};
use usher_model::{ProgramId, Regulation};

use crate::api::Register_Reply;
use crate::client::{Daemon, Newcomer, PATIENCE, Said};
use crate::commands::bg::RegulationArgs;
use crate::failure::{self, Outcome};
use crate::measure;
use crate::regulate::{self, Regulator};
use crate::remember::{Run, TELLING};
use crate::runtime;

/// What is to be run, and how.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// `--name`.
    pub name: Option<String>,
    /// `--weight`.
    pub weight: Option<f64>,
    /// `--hints`.
    pub hints: bool,
    /// `usher bg`'s policy; `None`: foreground.
    pub background: Option<Regulation>,
    /// What `usher bg` says of foreground and thresholds.
    pub regulation: RegulationArgs,
    /// `--runtime-dir`.
    pub runtime_dir: Option<PathBuf>,
    /// `--store`.
    pub store: Option<PathBuf>,
}

/// Arguments beyond this many bytes are not sent to the daemon: they serve to
/// recognise the program, and the first ones do.
const ARGV_BYTES_MAX: usize = 64 * 1024;
/// As many words are sent at most.
const ARGV_WORDS_MAX: usize = 4096;

/// Runs the program; answers its exit status.
pub fn run(wish: &Wish) -> Outcome {
    check_named(&wish.argv)?;
    let mut signals = Forwarder::new(wish.own_session()).context("catching signals")?;
    let Some(mut daemon) = Daemon::find(wish.runtime_dir.as_deref()) else {
        match Daemon::foreign(wish.runtime_dir.as_deref()) {
            Some(reason) => failure::complain(&format!("runs unmanaged: {reason}")),
            None => undo_stale(wish.runtime_dir.as_deref()),
        }
        return match wish.background {
            Some(policy) => regulated(wish, policy, &mut signals),
            None => alone(wish, &mut signals),
        };
    };
    wish.regulation.refuse_beside_daemon()?;
    let page = PageFile::offer();
    let held = hold(&wish.spec(page.path(), &signals)?)?;
    let newcomer = wish.newcomer(held.pid(), page.path());
    let registered = daemon.register(newcomer.clone());
    let registered = match wish.background {
        // Background work that nobody regulates would be foreground work: it
        // is not let go, and so killed, where the daemon does not take it.
        Some(_)
            if registered
                .as_ref()
                .is_err_and(|e| Said::part_of(e).is_none()) =>
        {
            Ok(registered?)
        }
        _ => registered,
    };
    let starting = held.start()?;
    let mut minder = Minder::new(wish, newcomer);
    match registered {
        Ok(reply) => minder.is_managed_by(daemon, &reply),
        Err(error) => {
            // A late reply then fails, and the daemon undoes what it has done.
            drop(daemon);
            let running = starting.finish()?;
            return match minder.may_try_again(&error) {
                true => minder.wait(running, &mut signals),
                false => wait(running, &mut signals),
            };
        }
    }
    let running = minder.wait_for_exec(starting, &mut signals)?;
    minder.wait(running, &mut signals)
}

/// Refuses a command that has no name, as shells do.
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

/// Takes back what a daemon did that died together with its keeper.
fn undo_stale(told: Option<&Path>) {
    let dir = runtime::own_dir(told);
    if let Some(problem) = runtime::problem(&dir) {
        failure::complain(&problem);
        return;
    }
    let config = ActConfig::new(dir);
    let errors = match usher_act::undo_stale(&config) {
        Ok(report) => report.errors,
        Err(error) => vec![error],
    };
    // The program is to run all the same.
    for error in errors {
        failure::complain(&failure::line(&error.into()));
    }
}

/// Background work that this process regulates itself.
fn regulated(wish: &Wish, policy: Regulation, signals: &mut Forwarder) -> Outcome {
    let spec = wish.spec(None, signals)?;
    spec.resolve()?;
    let adopt = regulate::adopt(&wish.argv, wish.name.as_deref(), policy);
    let (dir, store) = (wish.runtime_dir.as_deref(), wish.store.as_deref());
    let regulator = Regulator::start(dir, store, &wish.regulation)?;
    regulator.run(&spec, adopt, signals)
}

/// A lone program needs no seats: it has the machine.
fn alone(wish: &Wish, signals: &mut Forwarder) -> Outcome {
    let run = Run::begin(&LaunchSpec::new(&wish.argv));
    let mut running = hold(&wish.spec(None, signals)?)?.release()?;
    let exit = running.wait_forwarding(signals);
    let exit = exit.context("waiting for the program")?;
    let as_asked = LaunchSpec::new(&wish.argv);
    if !running.was_stopped() {
        run.end(exit, &as_asked, wish.name.as_deref(), wish.store.as_ref());
    }
    Ok(exit.code())
}

fn wait(mut running: ChildProcess, signals: &mut Forwarder) -> Outcome {
    let exit = running.wait_forwarding(signals);
    Ok(exit.context("waiting for the program")?.code())
}

/// Whether the user may not do that.
fn is_forbidden(error: &ActError) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Whether Ctrl-C at a terminal reaches this process.
fn is_in_terminals_foreground() -> bool {
    let group = std::fs::File::open("/dev/tty").map(rustix::termios::tcgetpgrp);
    group.is_ok_and(|group| group == Ok(rustix::process::getpgrp()))
}

impl Wish {
    /// Background work gets a session of its own where no terminal talks to it:
    /// the kernel hangs up on a stopped process group whose session loses sight
    /// of it, and weighs sessions against one another.
    fn own_session(&self) -> bool {
        self.background.is_some() && !is_in_terminals_foreground()
    }

    fn spec(&self, page: Option<&Path>, signals: &Forwarder) -> anyhow::Result<LaunchSpec> {
        let mut spec = LaunchSpec {
            new_session: signals.own_session(),
            ..self.words()?
        };
        // In a session of its own nothing would keep it from reading what is typed
        // for others.
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

    /// What is launched: the command, or Usher to become it.
    fn words(&self) -> anyhow::Result<LaunchSpec> {
        Ok(match self.hints {
            false => LaunchSpec::new(&self.argv),
            // How many seats there are is known when the child sits, and the
            // environment is made before: so what is launched is Usher, which
            // looks where it sits and becomes the program.
            true => {
                LaunchSpec::new(&self.argv).resolve()?;
                let own = std::env::current_exe().context("finding Usher's own executable")?;
                let words = [own.into_os_string(), "seated".into(), "--".into()];
                LaunchSpec::new(words.into_iter().chain(self.argv.iter().cloned()))
            }
        })
    }

    fn newcomer(&self, pid: i32, page: Option<&Path>) -> Newcomer {
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
        Newcomer {
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

/// Where progress pages are: in memory.
const PAGES: &str = "/dev/shm";

/// Removes the pages of launchers that were killed, and so could not.
fn sweep(prefix: &str) {
    let own = std::process::id();
    for entry in std::fs::read_dir(PAGES).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        let is_dead = |pid: u32| pid == own || !Path::new("/proc").join(pid.to_string()).exists();
        if pid.is_some_and(is_dead) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The progress page that a program is offered; gone with its launcher.
struct PageFile {
    path: Option<PathBuf>,
    ours: bool,
}

impl PageFile {
    /// Makes one in memory, or takes that which the user has named. A program
    /// that cannot be offered one runs without.
    fn offer() -> Self {
        if let Some(path) = std::env::var_os("USHER_HEARTBEAT") {
            let path = std::path::absolute(path).ok();
            return Self { path, ours: false };
        }
        let prefix = format!("usher-{}-", rustix::process::geteuid().as_raw());
        sweep(&prefix);
        let path = Path::new(PAGES).join(format!("{prefix}{}", std::process::id()));
        let made = usher_heartbeat::Page::create(&path).is_ok();
        Self {
            path: made.then_some(path),
            ours: made,
        }
    }

    fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if let Some(path) = self.path.as_ref().filter(|_| self.ours) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Waits for a managed program and minds who manages it.
struct Minder {
    daemon: Option<Daemon>,
    newcomer: Newcomer,
    runtime_dir: Option<PathBuf>,
    program: i64,
    /// The journal of the daemon that has the program, or had it.
    instance: PathBuf,
    /// Whether a dead daemon's doings are known to be undone.
    clean: bool,
    /// What was said last about undoing them.
    complaint: Option<String>,
    /// Why the program was not taken in, as last reported.
    refusal: Option<String>,
    retry: Duration,
    patience: Duration,
    started: Instant,
    /// Background work that has been asked to end, and so is not stopped again.
    ending: bool,
}

/// How far a dead daemon's doings are undone.
enum Undoing {
    Done,
    /// Its keeper is at it.
    ByOthers,
    Failed,
}

/// How soon a lost daemon is looked for, at first and later.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// First limit for the answer of a daemon that the launcher registers with again:
/// the launcher sees neither signals nor the program's end meanwhile. A daemon that
/// answers too late undoes what it did, so each late answer doubles the limit, up to
/// [`PATIENCE`].
const PATIENCE_AGAIN: Duration = Duration::from_secs(1);

impl Minder {
    fn new(wish: &Wish, newcomer: Newcomer) -> Self {
        Self {
            daemon: None,
            newcomer: Newcomer {
                running: true,
                ..newcomer
            },
            runtime_dir: wish.runtime_dir.clone(),
            program: 0,
            instance: PathBuf::new(),
            clean: true,
            complaint: None,
            refusal: None,
            retry: RETRY_MIN,
            patience: PATIENCE_AGAIN,
            started: Instant::now(),
            ending: false,
        }
    }

    /// A daemon has taken the program in.
    fn is_managed_by(&mut self, daemon: Daemon, reply: &Register_Reply) {
        self.program = reply.id;
        self.instance = PathBuf::from(&reply.instance);
        self.daemon = Some(daemon);
    }

    /// Reports once why the daemon did not take the program in as it was
    /// launched. Returns whether it may be tried again.
    fn may_try_again(&mut self, error: &anyhow::Error) -> bool {
        let line = failure::line(error);
        failure::complain(&match Said::part_of(error) {
            Some(program) => {
                format!("runs as part of program {program}, in which it was started")
            }
            None if Said::is_late(error) => {
                format!("runs unmanaged until the daemon answers: {line}")
            }
            None => format!("runs unmanaged: {line}"),
        });
        self.refusal = Some(line);
        Said::is_late(error)
    }

    /// Waits until the program is executed. A program that is frozen before that
    /// needs its launcher as soon as daemon and keeper are dead.
    fn wait_for_exec(
        &mut self,
        starting: StartingChild,
        signals: &mut Forwarder,
    ) -> anyhow::Result<ChildProcess> {
        while !self.poll(starting.as_fd(), signals)? {
            self.handle_signals_and_daemon_loss(starting.running(), signals);
        }
        Ok(starting.finish()?)
    }

    /// Waits until the program has ended; answers its exit status.
    fn wait(mut self, mut running: ChildProcess, signals: &mut Forwarder) -> Outcome {
        loop {
            self.poll(running.pidfd(), signals)?;
            if let Some(exit) = running.try_wait().context("waiting for the program")? {
                if !running.was_stopped() {
                    self.say_farewell(exit);
                }
                return Ok(exit.code());
            }
            self.handle_signals_and_daemon_loss(&running, signals);
        }
    }

    /// Forwards signals. When the daemon has ended, undoes its changes and looks for
    /// another daemon.
    fn handle_signals_and_daemon_loss(&mut self, running: &ChildProcess, signals: &mut Forwarder) {
        if signals.forward(running) && self.newcomer.background.is_some() {
            self.let_go();
        }
        if self.daemon.as_ref().is_some_and(Daemon::is_gone) {
            self.daemon = None;
            self.clean = false;
            self.retry = RETRY_MIN;
            if self.newcomer.background.is_some() {
                failure::complain(
                    "the daemon has ended: the program runs on, unregulated until there is another",
                );
            }
        }
        if self.daemon.is_none() && !self.ending {
            self.look_after();
        }
    }

    /// Until the descriptor of the program is readable, a signal or the daemon's
    /// death comes, or it is time to look for a daemon again. Returns whether the
    /// descriptor is readable.
    fn poll(&mut self, program: BorrowedFd<'_>, signals: &Forwarder) -> anyhow::Result<bool> {
        let mut fds = vec![
            PollFd::from_borrowed_fd(program, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        let timeout = match &self.daemon {
            Some(daemon) => {
                fds.push(PollFd::from_borrowed_fd(daemon.as_fd(), PollFlags::IN));
                None
            }
            None => Timespec::try_from(self.retry).ok(),
        };
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => Ok(!fds[0].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error).context("waiting for the program"),
        }
    }

    /// Who is stopped would not hear that it is to end.
    fn let_go(&mut self) {
        self.ending = true;
        if let Some(daemon) = self.daemon.as_mut() {
            // It may have ended meanwhile.
            let _ = daemon.detach(self.program);
        }
    }

    /// Without a daemon: sees that the program is let go, and looks for a
    /// daemon that takes it in again.
    fn look_after(&mut self) {
        self.retry = (self.retry * 2).min(RETRY_MAX);
        if !self.clean {
            match self.rescue() {
                Undoing::Done => self.clean = true,
                Undoing::ByOthers => return,
                // A daemon that starts tries it, too.
                Undoing::Failed => {}
            }
        }
        let Some(mut daemon) = Daemon::find_with(self.runtime_dir.as_deref(), self.patience) else {
            return;
        };
        match daemon.register(self.newcomer.clone()) {
            Ok(reply) => {
                self.is_managed_by(daemon, &reply);
                let was_refused = self.refusal.take().is_some();
                if self.newcomer.background.is_some() {
                    failure::complain("there is a daemon again: it regulates the program");
                } else if was_refused {
                    failure::complain("the daemon manages the program now");
                }
            }
            Err(error) => {
                if Said::is_late(&error) {
                    self.patience = (self.patience * 2).min(PATIENCE);
                }
                self.report_refusal(&error);
            }
        }
    }

    /// Reports, once for each reason, that a daemon did not take the program in
    /// again. It is tried again, as the reason may pass: a program's old cgroup
    /// is removed, a quota is free, the daemon answers.
    fn report_refusal(&mut self, error: &anyhow::Error) {
        let line = failure::line(error);
        // It may have ended meanwhile, which is seen next.
        let is_first = self.refusal.as_ref() != Some(&line);
        if is_first && !Said::is_gone(error) {
            failure::complain(&format!(
                "the program is not managed again, which is tried every {} s: {line}",
                RETRY_MAX.as_secs()
            ));
            self.refusal = Some(line);
        }
    }

    /// Sees to it that what the dead daemon did to the program is undone.
    fn rescue(&mut self) -> Undoing {
        let Some(config) = self.act_config() else {
            return Undoing::Done;
        };
        let program = ProgramId(self.program.unsigned_abs());
        match usher_act::rescue(&config, &self.instance, program) {
            Ok(Rescue::Nothing) => Undoing::Done,
            // Only root reads the journal of root's daemon.
            Err(error) if is_forbidden(&error) => self.thaw(&config),
            Err(error) => {
                self.complain_once(&error.into());
                Undoing::Failed
            }
            Ok(Rescue::MasterLives | Rescue::KeeperLives(_)) => Undoing::ByOthers,
            Ok(Rescue::Undone(report)) => {
                let left = report.errors.into_iter().map(anyhow::Error::from);
                left.for_each(|error| failure::complain(&failure::line(&error)));
                Undoing::Done
            }
        }
    }

    /// Thaws the program of a dead daemon of root's. The next start of the daemon
    /// restores the rest.
    fn thaw(&mut self, config: &ActConfig) -> Undoing {
        let is_background = self.newcomer.background.is_some();
        let pid = self.newcomer.pid;
        match usher_act::thaw_launched(config, &self.instance, pid, is_background) {
            Ok(true) => Undoing::Done,
            Ok(false) => Undoing::ByOthers,
            Err(error) => {
                self.complain_once(&error.into());
                Undoing::Failed
            }
        }
    }

    fn complain_once(&mut self, error: &anyhow::Error) {
        let line = failure::line(error);
        if self.complaint.as_ref() != Some(&line) {
            failure::complain(&line);
            self.complaint = Some(line);
        }
    }

    /// Journals lie in `RUNTIME_DIR/instances/NAME`.
    fn act_config(&self) -> Option<ActConfig> {
        let runtime_dir = self.instance.parent().and_then(Path::parent)?;
        Some(ActConfig::new(runtime_dir))
    }

    /// Tells the daemon how long it took, so that it knows the next time.
    fn say_farewell(&mut self, exit: Exit) {
        let took = self.started.elapsed();
        if let Some(daemon) = self.daemon.as_mut()
            && exit.success()
            && took >= TELLING
        {
            // The program has ended well; that nobody remembers it is no failure.
            let _ = daemon.repeated(self.program, took.as_secs_f64());
        }
    }
}
