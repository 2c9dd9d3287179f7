// SPDX-License-Identifier: GPL-2.0-only
//! `usher daemon stop`: ends the daemon, and waits until it has undone its changes and has ended.
//!
//! 1. Connect to the daemon, open a pidfd of its process, and request the number of its programs.
//! 2. Send the call `Stop`. The daemon checks that the caller is root or the daemon's own user.
//! 3. Wait for the end of the process, at most 60 s ([`END_MAX`]).
//! 4. If the daemon's journal is left, the daemon could not undo all its changes, which is an
//!    error.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use usher_act::ActConfig;

use crate::answers::StoppedDaemon;
use crate::cli::options::Global;
use crate::client::Daemon;
use crate::failure::Outcome;
use crate::output::Output;
use crate::runtime;

/// Ends the daemon and waits until it has undone its changes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The daemon releases all programs, which keep running with their former affinity, and unloads
the sched_ext scheduler. Only root and the user of the daemon may end it. The keeper starts no
other daemon, and systemd does not restart the service.

Exit status: 0 if the daemon has ended and has undone its changes; 125 if no daemon listens, if
it refuses, if it has not ended after 60 s, or if a change could not be undone.

Examples:
  usher daemon stop
  sudo usher daemon stop --runtime-dir /run/usher")]
pub struct Args {}

/// Upper limit of the time until the daemon has ended.
const END_MAX: Duration = Duration::from_secs(60);

/// Ends the daemon.
pub fn run(_: &Args, global: &Global, out: Output) -> Outcome {
    let dir = global.runtime_dir.as_deref();
    let Some(mut daemon) = Daemon::find(dir) else {
        match Daemon::problem(dir) {
            Some(problem) => bail!(problem),
            None => bail!("no daemon is listening at {}", runtime::socket_list(dir)),
        }
    };
    let pid = daemon.pid();
    let process = open(pid).with_context(|| format!("watching the daemon (process {pid})"))?;
    // The daemon can end without an answer about its programs.
    let programs = daemon.status().ok().map(|state| state.programs.len());
    daemon.stop()?;
    await_end(pid, &process)?;
    check_undone(daemon.dir(), pid)?;
    out.answer(&StoppedDaemon { stopped: pid }, || {
        format!(
            "the daemon (process {pid}) has ended; {}",
            released(programs)
        )
    })?;
    Ok(0)
}

/// States what happens to the programs that the daemon managed; `None`: their number is unknown.
fn released(programs: Option<usize>) -> String {
    match programs {
        None => "released programs keep running".to_owned(),
        Some(0) => "it managed no program".to_owned(),
        Some(1) => "the released program keeps running".to_owned(),
        Some(n) => format!("the {n} released programs keep running"),
    }
}

fn open(pid: i32) -> anyhow::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).context("the daemon has no pid")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn await_end(pid: i32, process: &OwnedFd) -> anyhow::Result<()> {
    let deadline = Instant::now() + END_MAX;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec::try_from(left)?)) {
            Ok(0) => bail!(
                "the daemon (process {pid}) has accepted the request, but still runs after {} s",
                END_MAX.as_secs()
            ),
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map(drop).context("waiting for the daemon's end"),
        }
    }
}

/// Checks that the daemon has left no journal.
fn check_undone(dir: &Path, pid: i32) -> anyhow::Result<()> {
    let begin = format!("{pid}-");
    let mut stale = usher_act::stale_journals(&ActConfig::new(dir)).into_iter();
    let is_left = stale.any(|journal| {
        let name = journal.dir.file_name();
        name.is_some_and(|name| name.to_string_lossy().starts_with(&begin))
    });
    anyhow::ensure!(
        !is_left,
        "the daemon (process {pid}) has ended, but could not undo all its changes; run 'usher undo'"
    );
    Ok(())
}
