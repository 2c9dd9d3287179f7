// SPDX-License-Identifier: GPL-2.0-only
//! Starts root's daemon for `usher sched start`: the systemd service if it is installed and no
//! other runtime directory is requested, else `usher daemon --exit-when-idle` (`autostart`), which
//! ends after `usher sched stop`.
//!
//! 1. If systemd runs and the runtime directory is the default, the command starts the service by
//!    `systemctl start`. If the service is installed, the command returns; a service that does not
//!    listen then is an error.
//! 2. Otherwise the command takes the launch lock. Of several commands at the same time, only one
//!    starts a daemon; the others wait and use this daemon.
//! 3. The command starts a daemon process with a session of its own and a log file.
//! 4. The command polls every 20 ms ([`CHECK_EVERY`]) until the daemon answers, for at most 30 s
//!    ([`READY_WITHIN`]). If the daemon ends before it answers, the command returns the reason
//!    that the daemon wrote as the error.
//!
//! Bounds: `systemctl start` and the wait for the lock have no time limit of their own. A daemon
//! that accepts the connection but does not answer can prolong step 4 by the time limit of
//! `remote`, 10 s per read and write.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::fs::FlockOperation;

use super::remote::Found;
use crate::autostart::{self, DaemonOptions, DaemonProcess};
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
    let daemon = DaemonProcess::spawn(&dir, &DaemonOptions::default())?;
    wait_for_answer(&dir, daemon)
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
    let lock = autostart::open_launch_lock(dir)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)
        .context("locking the start of a daemon")?;
    Ok(lock)
}

fn wait_for_answer(dir: &Path, daemon: DaemonProcess) -> anyhow::Result<Found> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        // The state of the process is read before the check of the socket: if another daemon has
        // started to listen, this daemon ends, and the check finds the other daemon.
        let has_closed = daemon.has_closed();
        // A connection fails if the daemon ends before it serves.
        let found = Found::at(dir);
        if let Ok(Found {
            client: Some(_), ..
        }) = &found
        {
            return found;
        }
        if has_closed {
            let reason = daemon.reason(READY_WITHIN);
            let reason = reason.unwrap_or_else(|| "the daemon ended without a message".to_owned());
            bail!("starting the daemon: {reason}");
        }
        if Instant::now() > deadline {
            let seconds = READY_WITHIN.as_secs();
            found?;
            bail!("the daemon does not listen {seconds} s after its start");
        }
        std::thread::sleep(CHECK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_ends_at_once_reports_its_last_message() {
        let dir = tempfile::tempdir().unwrap();
        let wait = |text| {
            let daemon = DaemonProcess::ended(text);
            let Err(error) = wait_for_answer(dir.path(), daemon) else {
                panic!("no daemon listens");
            };
            error.to_string()
        };
        assert_eq!(
            wait(""),
            "starting the daemon: the daemon ended without a message"
        );
        assert_eq!(wait("no memory\n"), "starting the daemon: no memory");
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
}
