// SPDX-License-Identifier: GPL-2.0-only
//! Starts root's daemon for `usher sched start`: the systemd service if it is installed and no
//! other runtime directory is requested, else `usher daemon --exit-when-idle`, which ends after
//! `usher sched stop`.
//!
//! 1. If systemd runs and the runtime directory is the default, the command starts the service by
//!    `systemctl start`. If the service is installed, the command returns; a service that does not
//!    listen then is an error.
//! 2. Otherwise the command takes a file lock. Of several `usher sched start` at the same time,
//!    only one starts a daemon; the others wait and use this daemon.
//! 3. The command starts a daemon process with a session of its own and a log file.
//! 4. The command polls every 20 ms ([`CHECK_EVERY`]) until the daemon answers, for at most 30 s
//!    ([`READY_WITHIN`]). If the daemon ends before it answers, the command returns the last line
//!    of the daemon's log as the error.
//!
//! Bounds: `systemctl start` and the wait for the lock have no time limit of their own. A daemon
//! that accepts the connection but does not answer can prolong step 4 by the time limit of
//! `remote`, 10 s per read and write.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::fs::FlockOperation;

use super::remote::Found;
use crate::cli::options::Global;
use crate::runtime;

/// The name of the service.
const UNIT: &str = "usher.service";
/// This directory exists only where systemd runs (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";
/// `systemctl`'s exit status if the unit is not installed.
const NOT_INSTALLED: i32 = 5;
/// Upper limit of the time for which the command polls for the first answer of a new daemon.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Pause between two polls.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Starts a daemon and waits until it answers.
///
/// # Errors
/// The daemon cannot be started, or ends at once.
pub fn start_daemon(global: &Global) -> anyhow::Result<Found> {
    let dir = runtime::sched_dir(global.runtime_dir.as_deref());
    // The service uses the default directory.
    let is_default = global.runtime_dir.is_none();
    if is_default && Path::new(SYSTEMD).exists() && start_service()? {
        let found = Found::at(&dir)?;
        anyhow::ensure!(
            found.client.is_some(),
            "the systemd service {UNIT} runs, but does not \
                                                 listen on its socket"
        );
        return Ok(found);
    }
    let dir = std::path::absolute(&dir).with_context(|| format!("finding {}", dir.display()))?;
    runtime::make_dir(&dir)?;
    let _lock = lock_launch(&dir)?;
    let found = Found::at(&dir)?;
    if found.client.is_some() {
        return Ok(found);
    }
    let mut daemon = spawn_daemon(&dir)?;
    wait_for_answer(&dir, &mut daemon)
}

/// Starts the service. Returns false if it is not installed.
fn start_service() -> anyhow::Result<bool> {
    let systemctl = Command::new("systemctl")
        .args(["start", UNIT])
        .stdin(Stdio::null())
        .output();
    let Ok(output) = systemctl else {
        return Ok(false);
    };
    match output.status.code() {
        Some(0) => Ok(true),
        Some(NOT_INSTALLED) => Ok(false),
        _ => {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("starting the systemd service {UNIT}: {}", text.trim());
        }
    }
}

/// Takes the lock that lets only one `usher sched start` at a time start a daemon. Dropping the
/// file releases the lock.
fn lock_launch(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("launch.lock");
    let doing = || format!("locking {}", path.display());
    let mut lock = OpenOptions::new();
    lock.write(true).create(true).truncate(false);
    lock.mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let lock = lock.open(&path).with_context(doing)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).with_context(doing)?;
    Ok(lock)
}

/// Returns the file of the daemon's messages.
fn log_path(dir: &Path) -> PathBuf {
    dir.join("daemon.log")
}

/// Starts a daemon that leaves this process's session, directory and files.
fn spawn_daemon(dir: &Path) -> anyhow::Result<Child> {
    let path = log_path(dir);
    let log = open_log(&path).with_context(|| format!("writing {}", path.display()))?;
    let mut daemon =
        Command::new(std::env::current_exe().context("finding Usher's own executable")?);
    daemon.args(["daemon", "--exit-when-idle", "--runtime-dir"]);
    daemon.arg(dir).current_dir("/").env_remove("NOTIFY_SOCKET");
    daemon
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    // SAFETY: `leave_caller` makes only two system calls, and allocates nothing, as is required
    // between `fork` and `exec`.
    unsafe { daemon.pre_exec(leave_caller) };
    daemon.spawn().context("starting the daemon")
}

fn open_log(path: &Path) -> std::io::Result<File> {
    let mut log = OpenOptions::new();
    let log = log.write(true).create(true).truncate(true);
    log.mode(0o644).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Moves to a session of its own, and marks all descriptors of the caller to be closed by `exec`.
/// The daemon would otherwise keep the caller's locks and pipes open, and processes that wait for
/// their end would wait for the daemon's end.
fn leave_caller() -> std::io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: the call changes no memory; it only marks descriptors to be closed by `exec`. A
    // kernel without this flag returns an error and leaves the descriptors open.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    Ok(())
}

fn wait_for_answer(dir: &Path, daemon: &mut Child) -> anyhow::Result<Found> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        // The state of the process is read before the check of the socket: if another daemon has
        // started to listen, this daemon ends, and the check finds the other daemon.
        let ended = daemon
            .try_wait()
            .context("waiting for the daemon to listen")?;
        // A connection fails if the daemon ends before it serves.
        let found = Found::at(dir);
        if let Ok(Found {
            client: Some(_), ..
        }) = &found
        {
            return found;
        }
        if let Some(status) = ended {
            bail!(
                "starting the daemon: {}",
                last_message(dir, &status.to_string())
            );
        }
        if Instant::now() > deadline {
            let seconds = READY_WITHIN.as_secs();
            found?;
            bail!(
                "the daemon (process {}) does not listen {seconds} s after its start",
                daemon.id()
            );
        }
        std::thread::sleep(CHECK_EVERY);
    }
}

/// Returns the daemon's last message, or its exit status if it has written no message.
fn last_message(dir: &Path, status: &str) -> String {
    let log = fs::read_to_string(log_path(dir)).unwrap_or_default();
    let last = log.lines().next_back();
    last.map_or_else(
        || format!("the daemon ended without a message ({status})"),
        |line| line.trim_start_matches("usher: ").to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_ends_at_once_reports_its_last_message() {
        let dir = tempfile::tempdir().unwrap();
        let mut failing = Command::new("false").spawn().unwrap();
        let wait = |child: &mut Child| wait_for_answer(dir.path(), child).unwrap_err().to_string();
        let line = wait(&mut failing);
        assert!(
            line.starts_with(
                "starting the daemon: the daemon ended without a message (exit status: 1"
            ),
            "{line}"
        );
        fs::write(log_path(dir.path()), "usher: first\nusher: no memory\n").unwrap();
        assert_eq!(wait(&mut failing), "starting the daemon: no memory");
    }

    #[test]
    fn only_one_command_at_a_time_starts_a_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock_launch(dir.path()).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|threads| {
            threads.spawn(|| done.send(lock_launch(dir.path()).map(drop)).unwrap());
            let second = File::open(dir.path().join("launch.lock")).unwrap();
            let locked = rustix::fs::flock(&second, FlockOperation::NonBlockingLockExclusive);
            assert_eq!(locked, Err(rustix::io::Errno::WOULDBLOCK));
            assert!(is_done.try_recv().is_err());
            drop(first);
            is_done.recv().unwrap().unwrap();
        });
    }

    #[test]
    fn the_log_replaces_no_file_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, log_path(dir.path())).unwrap();
        assert!(open_log(&log_path(dir.path())).is_err());
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
    }
}
