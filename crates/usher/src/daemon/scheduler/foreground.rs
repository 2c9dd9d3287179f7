// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler without a daemon: `usher sched start --foreground`.
//!
//! 1. Take the lock of the foreground scheduler in the runtime directory, and listen on a socket of
//!    its own.
//! 2. Serve only the interface `org.usher.Scheduler1` on the socket, and load the scheduler.
//! 3. Wait without a time limit for SIGTERM, SIGINT, SIGHUP, `usher sched stop` or the end of the
//!    scheduler by the kernel.
//! 4. Unload the scheduler. When the kernel ended the scheduler, the process ends with an error.
//!
//! A signal during the load takes effect when the load ends.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use usher_scx::Settings;
use varlink::VarlinkService;

use super::service::{SchedulerContext, interface};
use super::state::STOPPED;
use super::thread::{ENDED, SchedulerThread};
use crate::daemon::listen::{DaemonSocket, SocketNames};
use crate::daemon::{server, signals};

/// Holds the scheduler until a signal arrives or the scheduler is stopped. Calls `ready` when the
/// scheduler runs, but not if the signal arrives first.
///
/// # Errors
/// The scheduler could not be started, or the kernel ended it.
pub fn hold(
    dir: &Path,
    settings: Settings,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let ending = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("making an eventfd")?);
    signals::catch(&ending, &[SIGTERM, SIGINT, SIGHUP]).context("catching signals")?;
    let listening = DaemonSocket::start(dir, SocketNames::FOREGROUND_SCHEDULER, Duration::ZERO)?;
    let thread = SchedulerThread::start(dir, super::kernel(), Some(ending.clone()))?;
    let context = SchedulerContext {
        scheduler: thread.control().clone(),
        exits: Arc::new(|| true),
    };
    let make_service = Box::new(move |peer| {
        VarlinkService::new(
            "Usher",
            "usher",
            env!("CARGO_PKG_VERSION"),
            "varlink:org.usher.Scheduler1",
            vec![interface(&context, peer)],
        )
    });
    let server = server::spawn(&listening, make_service, &ending)?;
    thread.control().start(settings)?;
    // If the start was stopped before its end, no success is reported.
    if !is_readable(&ending)? {
        ready()?;
    }
    if server.join().is_err() {
        bail!("the thread that serves the socket has panicked");
    }
    let scheduler = thread.control().clone();
    drop(thread);
    match scheduler.state().and_then(|state| state.ended) {
        Some(reason) if reason != STOPPED => bail!("{ENDED}: {reason}"),
        _ => Ok(()),
    }
}

fn is_readable(ending: &OwnedFd) -> anyhow::Result<bool> {
    let mut fds = [PollFd::new(ending, PollFlags::IN)];
    let ready = poll(&mut fds, Some(&Timespec::default()));
    Ok(ready.context("checking for signals")? > 0)
}
