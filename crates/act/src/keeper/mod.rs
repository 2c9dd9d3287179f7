// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper: a minimal process that outlives its master by as long as it
//! takes to undo what the master did.
//!
//! It is started before the first program is taken in, forks twice and leads
//! a session of its own, so that neither the master's process group nor its
//! terminal reaches it. `SIGHUP`, `SIGINT`, `SIGQUIT`, `SIGTERM` and `SIGTSTP`
//! are ignored: they are meant for the master, whose death ends the keeper
//! anyway, and a keeper that a service manager ends together with its master
//! could not do the one thing that it is for. Only `SIGKILL` and the master's
//! death end it.
//!
//! It waits on a pidfd and holds nothing else. When the master has died
//! without closing its journal, it undoes what stands there and, where it was
//! told to, executes the respawn command in its own place (the daemon again).
//! Masters that die soon after their start, one after the other, are started
//! at rising intervals: what is undone stays undone, and no core is lost to
//! a daemon that cannot live.
//!
//! A master whose keeper has died starts another one
//! ([`KeeperHandle::replace`]); each writes its number into the instance's
//! directory, where launchers find it ([`crate::rescue`]).

mod handle;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use usher_model::ProcessId;

pub use handle::KeeperHandle;

use crate::config::ActConfig;
use crate::error::{ActError, file_error};
use crate::files;
use crate::procs::Procs;
use crate::undo;

/// Where a keeper writes its number, in the instance's directory.
const FILE: &str = "keeper";
/// What a master that ends in good order makes there first: whatever it
/// leaves, it is not to be started again.
pub(crate) const ENDING: &str = "ending";
/// How soon this process is killed where memory runs out.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";
/// Signals meant for the master.
const IGNORED: [libc::c_int; 6] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGPIPE,
];
/// How often running a master died soon after its start; from keeper to
/// keeper through the environment of the masters between.
const SOON_DEAD: &str = "USHER_SOON_DEAD";
/// A master that lived shorter than this died soon.
const SOON: Duration = Duration::from_secs(10);
/// Pause before the respawn when masters die soon, from the third on.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(32);
/// A master that does not read any more is dying, unless it still lives then:
/// its descriptors are closed before its death can be seen.
const GIVEN_UP: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// How long it tries to undo before the rest is left to the next start...
const PATIENCE: Duration = Duration::from_secs(10);
/// ... which is soon where it starts the master again.
const PATIENCE_RESPAWN: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE_UNDO: Duration = Duration::from_millis(50);

/// What `usher keeper` is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperTask {
    /// Whose death to wait for.
    pub master: ProcessId,
    /// The master's journal directory.
    pub instance_dir: PathBuf,
    /// Where to act.
    pub config: ActConfig,
    /// What to execute when everything is undone and the master did not end
    /// in good order; empty: nothing.
    pub respawn: Vec<OsString>,
}

impl KeeperTask {
    /// The task of an actuator's keeper.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn of(actuator: &crate::Actuator, respawn: Vec<OsString>) -> Result<Self, ActError> {
        Ok(Self {
            master: Procs::new(actuator.config()).own()?,
            instance_dir: actuator.instance_dir().to_owned(),
            config: actuator.config().clone(),
            respawn,
        })
    }

    /// The arguments after the subcommand's name, for [`Self::from_args`]:
    /// the master's number and start time, six paths, the respawn command.
    pub fn to_args(&self) -> Vec<OsString> {
        let config = &self.config;
        let mut args: Vec<OsString> = vec![
            self.master.pid.to_string().into(),
            self.master.start_ticks.to_string().into(),
        ];
        let paths = [
            &self.instance_dir,
            &config.runtime_dir,
            &config.cgroup_root,
            &config.proc_root,
            &config.sys_root,
            &config.systemd_dir,
        ];
        args.extend(paths.map(|path| path.clone().into_os_string()));
        args.extend(self.respawn.iter().cloned());
        args
    }

    /// Reads what [`Self::to_args`] wrote.
    ///
    /// # Errors
    /// What is missing or malformed.
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Result<Self, ActError> {
        let mut args = args.into_iter();
        let mut next = |what: &'static str| args.next().ok_or_else(|| malformed(what));
        let master = ProcessId {
            pid: number(next("the master's number")?)?,
            start_ticks: number(next("the master's start time")?)?,
        };
        let instance_dir = next("the journal's directory")?.into();
        let config = ActConfig {
            runtime_dir: next("the runtime directory")?.into(),
            cgroup_root: next("the cgroup root")?.into(),
            proc_root: next("the proc root")?.into(),
            sys_root: next("the sys root")?.into(),
            systemd_dir: next("systemd's directory")?.into(),
            ..ActConfig::new("")
        };
        Ok(Self {
            master,
            instance_dir,
            config,
            respawn: args.collect(),
        })
    }
}

fn malformed(what: &str) -> ActError {
    ActError::Keeper {
        exe: std::env::current_exe().unwrap_or_default(),
        reason: format!("its command line lacks {what}; it is started by usher itself"),
    }
}

fn number<T: std::str::FromStr>(arg: OsString) -> Result<T, ActError> {
    let text = arg.to_string_lossy();
    text.parse().map_err(|_| malformed("a number"))
}

/// The body of the hidden subcommand `usher keeper`: detaches, says that it
/// is ready on standard output, waits for the master's death, undoes, and
/// executes the respawn command, if any. The calling process ends at once
/// with status 0; only its grandchild returns.
///
/// Any other thread of the process must be blocked and hold no lock.
///
/// # Errors
/// It could not start to watch, or something could not be undone; that is
/// left to the next start.
pub fn run(task: &KeeperTask) -> Result<(), ActError> {
    let failed = |doing: &'static str| file_error(doing, &task.instance_dir);
    ignore_signals();
    let oom_score = fs::read(OOM_SCORE).ok();
    detach().map_err(failed("detaching the keeper of"))?;
    let procs = Procs::new(&task.config);
    let master = procs.open(task.master);
    let own = procs.own()?;
    sign(&task.instance_dir, own)?;
    let ready = format!("{} {}\n", own.pid, own.start_ticks);
    let told = io::stdout().write_all(ready.as_bytes());
    if let (Err(_), Some(master)) = (told, &master)
        && !dies_within(master, GIVEN_UP)
    {
        // It lives, has waited too long, and starts another.
        return Ok(());
    }
    leave_stdio().map_err(failed("reporting to the master of"))?;
    let begun = Instant::now();
    if let Some(master) = master {
        wait_for(&master);
    }
    let soon_dead = match begun.elapsed() < SOON {
        true => soon_dead_before() + 1,
        false => 0,
    };
    if !task.instance_dir.join(crate::journal::FILE).exists() {
        return Ok(());
    }
    let was_ending = task.instance_dir.join(ENDING).exists();
    let undone = undo_all(task);
    if was_ending {
        return undone;
    }
    // Who executes the master again keeps nothing any more.
    let _ = fs::remove_file(task.instance_dir.join(FILE));
    if let Some(score) = oom_score {
        let _ = fs::write(OOM_SCORE, score);
    }
    respawn(&task.respawn, soon_dead)?;
    undone
}

fn soon_dead_before() -> u32 {
    let told = std::env::var(SOON_DEAD).ok();
    told.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// How long to wait before a master is started again after so many running
/// that died soon.
fn pause(soon_dead: u32) -> Duration {
    match soon_dead {
        0..=2 => Duration::ZERO,
        many => PAUSE_MIN
            .saturating_mul(1 << (many - 3).min(16))
            .min(PAUSE_MAX),
    }
}

/// Bytes that a process number and its start time have at most.
const ID_BYTES_MAX: u64 = 64;

/// The keeper that signed last in an instance's directory.
pub(crate) fn of_instance(instance_dir: &Path) -> Option<ProcessId> {
    let bytes = files::read_own(&instance_dir.join(FILE), ID_BYTES_MAX).ok()?;
    parse_id(std::str::from_utf8(&bytes).ok()?)
}

fn parse_id(text: &str) -> Option<ProcessId> {
    let (pid, start) = text.trim().split_once(' ')?;
    Some(ProcessId {
        pid: pid.parse().ok()?,
        start_ticks: start.parse().ok()?,
    })
}

/// Writes the keeper's number where launchers look for it.
fn sign(instance_dir: &Path, own: ProcessId) -> Result<(), ActError> {
    let path = instance_dir.join(FILE);
    let fresh = instance_dir.join(format!("{FILE}.{}", own.pid));
    fs::write(&fresh, format!("{} {}\n", own.pid, own.start_ticks))
        .and_then(|()| fs::rename(&fresh, &path))
        .map_err(file_error("writing", path))
}

fn undo_all(task: &KeeperTask) -> Result<(), ActError> {
    let patience = match task.respawn.is_empty() {
        true => PATIENCE,
        false => PATIENCE_RESPAWN,
    };
    let begun = Instant::now();
    loop {
        let (undone, errors) = match undo::undo_instance(&task.config, &task.instance_dir) {
            Ok(report) => (report.instances == 1, report.errors),
            Err(error) => (false, vec![error]),
        };
        // Somebody else may have done it.
        if undone || !task.instance_dir.exists() || begun.elapsed() >= patience {
            return errors.into_iter().next().map_or(Ok(()), Err);
        }
        std::thread::sleep(PAUSE_UNDO);
    }
}

fn respawn(command: &[OsString], soon_dead: u32) -> Result<(), ActError> {
    let Some((program, args)) = command.split_first() else {
        return Ok(());
    };
    std::thread::sleep(pause(soon_dead));
    for signal in IGNORED {
        // SAFETY: no handler is installed, only the default disposition.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let error = Command::new(program)
        .args(args)
        .env(SOON_DEAD, soon_dead.to_string())
        .exec();
    Err(ActError::Keeper {
        exe: program.into(),
        reason: format!("executing it in the keeper's place: {error}"),
    })
}

fn ignore_signals() {
    for signal in IGNORED {
        // SAFETY: no handler is installed, only the signal ignored.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Forks twice with a new session between, and drops what was inherited. The
/// callers in between end here.
fn detach() -> io::Result<()> {
    // SAFETY: closes descriptors that nothing in this process has opened.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    fork_and_leave()?;
    rustix::process::setsid()?;
    fork_and_leave()?;
    rustix::process::chdir("/")?;
    // Best effort: needs rights that a user does not have.
    let _ = fs::write(OOM_SCORE, "-1000");
    let _ = fs::write("/proc/self/comm", "usher-keeper");
    Ok(())
}

/// Forks and ends the parent.
fn fork_and_leave() -> io::Result<()> {
    // SAFETY: any other thread is blocked in `join` and holds no lock that the
    // child takes; the child has this thread alone.
    match unsafe { libc::fork() } {
        0 => Ok(()),
        // SAFETY: ends this process without running what belongs to its copy.
        child if child > 0 => unsafe { libc::_exit(0) },
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets go of the pipe to the master; errors still go to its standard error.
fn leave_stdio() -> io::Result<()> {
    let null = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Waits for the death of the process behind a pidfd; whether it came in time.
fn dies_within(process: &OwnedFd, time: Timespec) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&time)) == Ok(1)
}

/// Waits for the death of the process behind a pidfd.
fn wait_for(process: &OwnedFd) {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    while poll(&mut fds, None) != Ok(1) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_the_deaths_up_to_a_bound() {
        let seconds: Vec<u64> = (0..12).map(|deaths| pause(deaths).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 0, 1, 2, 4, 8, 16, 32, 32, 32, 32]);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }

    #[test]
    fn arguments_read_back() {
        let task = KeeperTask {
            master: ProcessId {
                pid: 12,
                start_ticks: 345,
            },
            instance_dir: "/run/usher/instances/12-345".into(),
            config: ActConfig::new("/run/usher"),
            respawn: vec!["usher".into(), "daemon".into(), "--x=y".into()],
        };
        assert_eq!(KeeperTask::from_args(task.to_args()).unwrap(), task);
        let error = KeeperTask::from_args(["12".into()]).unwrap_err();
        assert!(error.to_string().contains("start time"), "{error}");
        let error = KeeperTask::from_args(["x".into()]).unwrap_err();
        assert!(error.to_string().contains("a number"), "{error}");
    }
}
