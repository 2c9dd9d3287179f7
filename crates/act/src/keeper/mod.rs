// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper: a minimal process that survives its owner, an Usher process that acts on programs,
//! until it has undone the owner's actions.
//!
//! It is started before the first program is admitted. It forks twice and leads a session of its
//! own, so that signals to the owner's process group or terminal do not reach it. It ignores
//! `SIGHUP`, `SIGINT`, `SIGQUIT`, `SIGTERM` and `SIGTSTP`. They are meant for the owner, and the
//! owner's death ends the keeper anyway. A keeper that a service manager ends together with its
//! owner could not undo anything. Only `SIGKILL` and the owner's death end it.
//!
//! It waits on a pidfd of the owner and keeps no other resource open. When the owner has died
//! without closing its journal, the keeper undoes the journal's state. If it was given a respawn
//! command (the daemon again), it then executes that command in its own process. If several owners
//! in a row die soon after their start, they are restarted at rising intervals, so that a daemon
//! that cannot run does not use up a CPU.
//!
//! If the keeper has died, its owner starts another keeper ([`KeeperHandle::replace`]). Each keeper
//! writes its process number into the instance's directory, where launchers find it
//! ([`crate::undo_orphaned`]).

mod handle;
mod instance_files;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use usher_model::ProcessId;

pub use handle::KeeperHandle;
pub(crate) use instance_files::{ENDING, of_instance};

use self::instance_files::{FILE, write_id};
use crate::config::ActConfig;
use crate::error::{ActError, file_error};
use crate::procs::Procs;
use crate::undo;

/// The kernel's preference for killing this process when memory runs out.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";
/// Signals meant for the owner, which the keeper ignores.
const IGNORED: [libc::c_int; 6] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGPIPE,
];
/// How many owners in a row died soon after their start. It is passed from keeper to keeper through
/// the environment of the owners between.
const SHORT_LIFE_COUNT: &str = "USHER_SHORT_LIFE_COUNT";
/// An owner that lived for a shorter time counts as short-lived.
const SHORT_LIFE: Duration = Duration::from_secs(10);
/// Pause before the respawn of short-lived owners, from the third in a row on.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(32);
/// Time to wait for the owner's death if its pipe is closed: the kernel closes the descriptors of a
/// dying process before its death becomes visible.
const OWNER_DEATH_WAIT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// Upper limit of the time for undo attempts. The next start of Usher undoes what remains...
const UNDO_TIME_MAX: Duration = Duration::from_secs(10);
/// ... which follows soon if the keeper respawns the owner.
const UNDO_TIME_MAX_RESPAWN: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const PAUSE_UNDO: Duration = Duration::from_millis(50);

/// The arguments of `usher keeper`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperTask {
    /// The owner, which the keeper watches.
    pub owner: ProcessId,
    /// The owner's journal directory.
    pub instance_dir: PathBuf,
    /// The paths to act on.
    pub config: ActConfig,
    /// The command to execute when everything is undone and the owner did not exit in an orderly
    /// way. Empty: none.
    pub respawn: Vec<OsString>,
}

impl KeeperTask {
    /// Returns the task of an actuator's keeper.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn of(actuator: &crate::Actuator, respawn: Vec<OsString>) -> Result<Self, ActError> {
        Ok(Self {
            owner: Procs::new(actuator.config()).own()?,
            instance_dir: actuator.instance_dir().to_owned(),
            config: actuator.config().clone(),
            respawn,
        })
    }

    /// Returns the arguments after the subcommand's name, for [`Self::from_args`]: the owner's pid
    /// and start time, six paths, the respawn command.
    pub fn to_args(&self) -> Vec<OsString> {
        let config = &self.config;
        let mut args: Vec<OsString> = vec![
            self.owner.pid.to_string().into(),
            self.owner.start_ticks.to_string().into(),
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

    /// Parses the output of [`Self::to_args`].
    ///
    /// # Errors
    /// An argument is missing or malformed.
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Result<Self, ActError> {
        let mut args = args.into_iter();
        let mut next = |what: &'static str| args.next().ok_or_else(|| malformed(what));
        let owner = ProcessId {
            pid: number(next("the owner's pid")?)?,
            start_ticks: number(next("the owner's start time")?)?,
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
            owner,
            instance_dir,
            config,
            respawn: args.collect(),
        })
    }
}

fn malformed(what: &str) -> ActError {
    ActError::Keeper {
        exe: std::env::current_exe().unwrap_or_default(),
        reason: format!(
            "the keeper's command line lacks {what}; only usher itself starts a keeper"
        ),
    }
}

fn number<T: std::str::FromStr>(arg: OsString) -> Result<T, ActError> {
    let text = arg.to_string_lossy();
    text.parse().map_err(|_| malformed("a number"))
}

/// The body of the hidden subcommand `usher keeper`: detaches, reports on standard output that it
/// is ready, waits for the owner's death, undoes, and executes the respawn command, if any. The
/// calling process ends at once with status 0; only its grandchild returns.
///
/// Any other thread of the process must be blocked and hold no lock.
///
/// # Errors
/// The keeper could not start to watch its owner, or some change could not be undone. The next
/// start undoes the remaining changes.
pub fn run(task: &KeeperTask) -> Result<(), ActError> {
    let failed = |doing: &'static str| file_error(doing, &task.instance_dir);
    ignore_signals();
    let oom_score = fs::read(OOM_SCORE).ok();
    detach().map_err(failed("detaching the keeper from the terminal of"))?;
    let procs = Procs::new(&task.config);
    let owner = procs.open(task.owner);
    let own = procs.own()?;
    write_id(&task.instance_dir, own)?;
    let ready = format!("{} {}\n", own.pid, own.start_ticks);
    let reported = io::stdout().write_all(ready.as_bytes());
    if let (Err(_), Some(owner)) = (reported, &owner)
        && !dies_within(owner, OWNER_DEATH_WAIT)
    {
        // The owner lives, timed out, and starts another keeper.
        return Ok(());
    }
    leave_stdio().map_err(failed("reporting the keeper's start to the owner of"))?;
    let begun = Instant::now();
    if let Some(owner) = owner {
        wait_for(&owner);
    }
    let short_lives = match begun.elapsed() < SHORT_LIFE {
        true => short_lives_before() + 1,
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
    // The process that executes the owner again is no longer a keeper.
    let _ = fs::remove_file(task.instance_dir.join(FILE));
    if let Some(score) = oom_score {
        let _ = fs::write(OOM_SCORE, score);
    }
    respawn(&task.respawn, short_lives)?;
    undone
}

fn short_lives_before() -> u32 {
    let count = std::env::var(SHORT_LIFE_COUNT).ok();
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Returns the pause before the next start after this number of short-lived owners in a row.
fn pause(short_lives: u32) -> Duration {
    match short_lives {
        0..=2 => Duration::ZERO,
        many => PAUSE_MIN
            .saturating_mul(1 << (many - 3).min(16))
            .min(PAUSE_MAX),
    }
}

fn undo_all(task: &KeeperTask) -> Result<(), ActError> {
    let time_max = match task.respawn.is_empty() {
        true => UNDO_TIME_MAX,
        false => UNDO_TIME_MAX_RESPAWN,
    };
    let begun = Instant::now();
    loop {
        let (undone, errors) = match undo::undo_instance(&task.config, &task.instance_dir) {
            Ok(report) => (report.instances == 1, report.errors),
            Err(error) => (false, vec![error]),
        };
        // Another process may have undone it.
        if undone || !task.instance_dir.exists() || begun.elapsed() >= time_max {
            return errors.into_iter().next().map_or(Ok(()), Err);
        }
        std::thread::sleep(PAUSE_UNDO);
    }
}

fn respawn(command: &[OsString], short_lives: u32) -> Result<(), ActError> {
    let Some((program, args)) = command.split_first() else {
        return Ok(());
    };
    std::thread::sleep(pause(short_lives));
    for signal in IGNORED {
        // SAFETY: no handler is installed, only the default disposition.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let error = Command::new(program)
        .args(args)
        .env(SHORT_LIFE_COUNT, short_lives.to_string())
        .exec();
    Err(ActError::Keeper {
        exe: program.into(),
        reason: format!("replacing the keeper by a new daemon failed: {error}"),
    })
}

fn ignore_signals() {
    for signal in IGNORED {
        // SAFETY: no handler is installed, only the signal ignored.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Forks twice with a new session between, and drops inherited resources. The intermediate
/// processes exit here.
fn detach() -> io::Result<()> {
    // SAFETY: closes descriptors that nothing in this process has opened.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    fork_and_exit_parent()?;
    rustix::process::setsid()?;
    fork_and_exit_parent()?;
    rustix::process::chdir("/")?;
    // Best effort: an ordinary user lacks the privilege.
    let _ = fs::write(OOM_SCORE, "-1000");
    let _ = fs::write("/proc/self/comm", "usher-keeper");
    Ok(())
}

/// Forks and ends the parent.
fn fork_and_exit_parent() -> io::Result<()> {
    // SAFETY: any other thread is blocked in `join` and holds no lock that the
    // child takes; the child has this thread alone.
    match unsafe { libc::fork() } {
        0 => Ok(()),
        // SAFETY: `_exit` ends this process without running destructors or exit handlers, which the
        // child's copy still needs.
        child if child > 0 => unsafe { libc::_exit(0) },
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes the pipe to the owner; errors still go to the owner's standard error.
fn leave_stdio() -> io::Result<()> {
    let null = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Waits for the death of the process of a pidfd. Returns whether it died in time.
fn dies_within(process: &OwnedFd, time: Timespec) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&time)) == Ok(1)
}

/// Waits for the death of the process of a pidfd.
fn wait_for(process: &OwnedFd) {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    while poll(&mut fds, None) != Ok(1) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn respawn_pauses_grow_with_short_lives_up_to_a_bound() {
        let seconds: Vec<u64> = (0..12).map(|deaths| pause(deaths).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 0, 1, 2, 4, 8, 16, 32, 32, 32, 32]);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }

    #[test]
    fn keeper_arguments_survive_a_round_trip() {
        let task = KeeperTask {
            owner: ProcessId {
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
