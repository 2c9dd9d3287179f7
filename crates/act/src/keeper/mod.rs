// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper: a minimal process that undoes the actions of its owner after the owner's death. The
//! owner is an Usher process that acts on programs.
//!
//! 1. The owner starts the keeper before it admits the first program. The keeper forks twice and
//!    leads a session of its own, so that signals to the owner's process group or terminal do not
//!    reach it.
//! 2. The keeper waits on a pidfd of the owner. The keeper keeps no other resource open.
//! 3. After the owner's death, the keeper undoes the changes in the owner's journal. The keeper
//!    repeats failed attempts every 50 ms for at most 10 s, or for 2 s if it has a respawn command.
//!    An attempt that has begun in this time is completed. The next start of Usher undoes the
//!    remaining changes. After an orderly exit of the owner there is no journal, and the keeper
//!    ends.
//! 4. If the keeper has a respawn command (the daemon again) and the owner did not exit in an
//!    orderly way, the keeper executes this command in its own process. If owners repeatedly live
//!    for less than 10 s, the keeper pauses before the third and each further start, from 1 s up to
//!    32 s, so that a daemon that cannot run does not use up a CPU.
//!
//! The keeper ignores `SIGPIPE`, and also `SIGHUP`, `SIGINT`, `SIGQUIT`, `SIGTERM` and `SIGTSTP`.
//! The latter signals are meant for the owner, and the keeper ends after the owner's death in any
//! case. In particular, a service manager that ends all processes of the owner's unit must not end
//! the keeper before the undo. Only `SIGKILL` and the owner's death end the keeper.
//!
//! If the keeper has died, its owner starts another keeper ([`KeeperHandle::replace`]). Each keeper
//! writes its pid and start time into the instance's directory, where launchers find it
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
pub(crate) use instance_files::{ENDING, of_instance, undoes};

use self::instance_files::{FILE, write_id};
use crate::config::ActConfig;
use crate::error::{ActError, file_error};
use crate::procs::Procs;
use crate::undo;

/// The file with the kernel's preference for killing this process when memory runs out.
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
/// The environment variable with the number of consecutive owners that died soon after their start.
/// Each keeper passes the number to the next keeper through the environment of the owner that it
/// starts.
pub const SHORT_LIFE_COUNT: &str = "USHER_SHORT_LIFE_COUNT";
/// An owner that lives for less than this time counts as short-lived.
const SHORT_LIFE: Duration = Duration::from_secs(10);
/// Pause before the respawn after the third consecutive short-lived owner. Each further short-lived
/// owner doubles the pause, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause before a respawn.
const PAUSE_MAX: Duration = Duration::from_secs(32);
/// Time to wait for the owner's death if the owner's end of the pipe is closed. The kernel closes
/// the descriptors of a dying process before the pidfd reports its death.
const OWNER_DEATH_WAIT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// Upper limit of the time for undo attempts without a respawn command. The next start of Usher
/// undoes the remaining changes.
const UNDO_TIME_MAX: Duration = Duration::from_secs(10);
/// Upper limit of the time for undo attempts with a respawn command. The limit is shorter, because
/// the respawned owner soon undoes the remaining changes.
const UNDO_TIME_MAX_RESPAWN: Duration = Duration::from_secs(2);
/// Pause between two undo attempts.
const PAUSE_UNDO: Duration = Duration::from_millis(50);

/// The arguments of `usher keeper`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperTask {
    /// The owner, which the keeper watches.
    pub owner: ProcessId,
    /// The owner's journal directory.
    pub instance_dir: PathBuf,
    /// The configuration of the owner's actuator.
    pub config: ActConfig,
    /// The command to execute after the undo if the owner did not exit in an orderly way. If this
    /// is empty, the keeper executes no command.
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

    /// Returns the arguments that follow the subcommand's name, in the format of
    /// [`Self::from_args`]: the owner's pid and start time, six paths, the respawn command.
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
/// is ready, waits for the owner's death, undoes the owner's changes, and executes the respawn
/// command, if any. The calling process ends at once with status 0; the function returns only in
/// its grandchild.
///
/// If the calling process has other threads, they must be blocked and must hold no locks, because
/// the function forks.
///
/// # Errors
/// The keeper could not start to watch its owner, or a change could not be undone. The next start
/// of Usher undoes the remaining changes.
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
        // The owner lives, but did not wait long enough for this keeper's report. The owner starts
        // another keeper.
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
    // Launchers must not take this process for a keeper any more, because it now executes the
    // owner's command.
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

/// Returns the pause before the next respawn after this number of consecutive short-lived owners.
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
        // If the instance's directory is gone, another process of Usher has completed the undo.
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
        // SAFETY: `signal` sets the default disposition of a valid signal, and installs no handler.
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
        // SAFETY: `signal` sets a valid signal to be ignored, and installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Detaches the keeper: forks, begins a new session, forks again, and closes inherited descriptors.
/// The two parent processes exit in this function.
fn detach() -> io::Result<()> {
    // SAFETY: `close_range` closes only inherited descriptors, which no object of this process
    // owns.
    unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
    fork_and_exit_parent()?;
    rustix::process::setsid()?;
    fork_and_exit_parent()?;
    rustix::process::chdir("/")?;
    // Errors are ignored, because an ordinary user lacks the privilege to lower this value.
    let _ = fs::write(OOM_SCORE, "-1000");
    let _ = fs::write("/proc/self/comm", "usher-keeper");
    Ok(())
}

/// Forks, and exits in the parent process.
fn fork_and_exit_parent() -> io::Result<()> {
    // SAFETY: by the contract of [`run`], any other thread is blocked and holds no lock; the child,
    // which has only a copy of this thread, can take every lock.
    match unsafe { libc::fork() } {
        0 => Ok(()),
        // SAFETY: `_exit` ends the parent and runs no destructors or exit handlers; the child still
        // uses their resources.
        child if child > 0 => unsafe { libc::_exit(0) },
        _ => Err(io::Error::last_os_error()),
    }
}

/// Replaces standard input and the pipe to the owner by `/dev/null`. Error messages still go to the
/// standard error of the owner.
fn leave_stdio() -> io::Result<()> {
    let null = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Waits for the death of the process of a pidfd, at most for `time`. Returns whether the process
/// died in time.
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
