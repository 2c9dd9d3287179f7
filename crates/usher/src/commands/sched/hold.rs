// SPDX-License-Identifier: GPL-2.0-only
//! The process that holds the scheduler: starts it, starts it anew when the
//! machine has got or lost a CPU, and ends when it is told to or the kernel ends it.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use usher_scx::{Ending, Scheduler, Settings};
use usher_topology::Source;

use super::record::{Held, dump_path};

/// How long the kernel may take to end a scheduler.
const ENDING: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Holds it until a signal; calls `ready` when it runs.
///
/// # Errors
/// It could not be started, or the kernel ended it.
pub fn hold(
    dir: &Path,
    settings: &Settings,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    super::kernel().ready()?;
    let mut held = Held::take(dir, settings)?;
    let told = signals()?;
    let mut scheduler = begin(settings, &mut held)?;
    ready()?;
    loop {
        if wait(&scheduler, &told)? {
            return Ok(());
        }
        let Some(ending) = scheduler.ending()? else {
            continue;
        };
        drop(scheduler);
        if !ending.asks_for_restart() {
            return give_up(dir, &mut held, &ending);
        }
        held.write(|record| record.restarts += 1)?;
        scheduler = begin_again(settings, &mut held)?;
    }
}

fn begin(settings: &Settings, held: &mut Held) -> anyhow::Result<Scheduler> {
    let machine = usher_topology::load(Source::ThisMachine)?;
    let scheduler = Scheduler::start(&super::kernel(), &machine, settings)?;
    let tally_id = scheduler.tally_id()?;
    held.write(|record| record.tally_id = tally_id)?;
    Ok(scheduler)
}

/// The kernel has just ended one, and may not be through with it, nor with the
/// CPU that comes or goes.
fn begin_again(settings: &Settings, held: &mut Held) -> anyhow::Result<Scheduler> {
    let deadline = Instant::now() + ENDING;
    loop {
        match begin(settings, held) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN),
            Err(error) => {
                let why = format!("it could not begin anew: {error:#}");
                held.write(|record| record.ended = Some(why))?;
                return Err(error);
            }
            begun => return begun,
        }
    }
}

/// A stream that is readable after a signal that says to end.
fn signals() -> anyhow::Result<UnixStream> {
    let (told, tell) = UnixStream::pair().context("making a pipe")?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let tell = tell.try_clone().context("copying a pipe")?;
        signal_hook::low_level::pipe::register(signal, tell).context("listening for signals")?;
    }
    Ok(told)
}

/// Whether it was a signal that ended the waiting.
fn wait(scheduler: &Scheduler, told: &UnixStream) -> anyhow::Result<bool> {
    // SAFETY: the descriptor is the scheduler's, which lives longer than this.
    let bell = unsafe { BorrowedFd::borrow_raw(scheduler.bell()) };
    let mut fds = [
        PollFd::new(told, PollFlags::IN),
        PollFd::from_borrowed_fd(bell, PollFlags::IN),
    ];
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(!fds[0].revents().is_empty()),
        Err(error) => Err(error).context("waiting for the scheduler's end"),
    }
}

fn give_up(dir: &Path, held: &mut Held, ending: &Ending) -> anyhow::Result<()> {
    let why = match ending.message.is_empty() {
        true => ending.reason.clone(),
        false => format!("{}: {}", ending.reason, ending.message),
    };
    held.write(|record| record.ended = Some(why.clone()))?;
    let mut told = String::new();
    if !ending.dump.is_empty() {
        let path = dump_path(dir);
        fs::write(&path, &ending.dump).with_context(|| format!("writing {}", path.display()))?;
        told = format!("; its dump is in {}", path.display());
    }
    bail!("the kernel took its threads back ({why}){told}");
}
