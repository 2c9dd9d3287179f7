// SPDX-License-Identifier: GPL-2.0-only
//! The process that holds the scheduler. It starts the scheduler, restarts it when the machine has
//! gained or lost a CPU, applies changed settings, and ends when it gets a signal or the kernel
//! ends the scheduler.

use std::fs;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use usher_scx::{Ending, MapIds, Scheduler, ScxError, Settings};
use usher_topology::Source;

use crate::failure;

use super::record::{self, Phase, RecordWriter, dump_path};

/// Upper limit of the time in which the kernel ends a scheduler.
pub const ENDING: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Holds the scheduler until a signal arrives. Calls `ready` when the scheduler runs, but not if
/// the signal arrives first.
///
/// # Errors
/// It could not be started, or the kernel ended it.
pub fn hold(
    dir: &Path,
    settings: &Settings,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    super::start::check(&super::kernel(), dir, record::read(dir)?.as_ref())?;
    // Before another process can know the pid to signal.
    let signals = [
        signal_stream(&[SIGTERM, SIGINT, SIGHUP])?,
        signal_stream(&[SIGUSR1])?,
    ];
    let mut held = RecordWriter::take(dir, settings)?;
    let served = serve(dir, &mut held, &signals, ready);
    end(&mut held, served)
}

/// Records the end. If the record cannot be written, the error still contains the reason of the
/// end.
fn end(held: &mut RecordWriter, served: anyhow::Result<()>) -> anyhow::Result<()> {
    let Err(why) = served else {
        return held.end("stopped");
    };
    match held.end(&failure::line(&why)) {
        Ok(()) => Err(why),
        Err(unwritten) => {
            let unwritten = failure::line(&unwritten);
            Err(why.context(format!(
                "the scheduler's end could not be recorded ({unwritten})"
            )))
        }
    }
}

/// Runs until a signal ends it, or the kernel ends the scheduler for good.
fn serve(
    dir: &Path,
    held: &mut RecordWriter,
    signals: &[UnixStream; 2],
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let [ends, changes] = signals;
    let mut scheduler = begin(held)?;
    // Stopped meanwhile: no process is notified that it runs.
    if has_signal(ends, &Timespec::default())? {
        return Ok(());
    }
    ready()?;
    loop {
        if wait(&scheduler, [ends, changes])? {
            return Ok(());
        }
        if { changes }.read(&mut [0; 64]).is_ok() {
            change(dir, &scheduler, held)?;
        }
        let Some(ending) = scheduler.ending()? else {
            continue;
        };
        if !ending.asks_for_restart() {
            drop(scheduler);
            return Err(end_error(dir, &ending));
        }
        held.write(|record| {
            record.state = Phase::Restarting;
            record.restarts += 1;
        })?;
        drop(scheduler);
        match restart(held, ends)? {
            Some(begun) => scheduler = begun,
            None => return Ok(()),
        }
    }
}

fn begin(held: &mut RecordWriter) -> anyhow::Result<Scheduler> {
    let kernel = super::kernel();
    // Before the machine is read, so that no CPU that appears meanwhile is overlooked.
    let hotplug_seq = kernel.hotplug_seq()?;
    let machine = usher_topology::load(Source::ThisMachine)?;
    let settings = held.record().settings;
    let scheduler = Scheduler::start(&kernel, hotplug_seq, &machine, &settings)?;
    let maps = scheduler.map_ids()?;
    held.write(|record| {
        record.maps = maps;
        // Remaining seats vanished with the maps of the previous scheduler.
        record.undone = None;
        record.idle_by_node = scheduler.keeps_nodes_apart();
        record.state = Phase::Running;
    })?;
    Ok(scheduler)
}

/// Applies the settings that `usher sched set` has written.
fn change(dir: &Path, scheduler: &Scheduler, held: &mut RecordWriter) -> anyhow::Result<()> {
    // A signal from another source changes nothing, nor does one while nothing can be changed.
    let Ok(settings) = record::take_request(dir) else {
        return Ok(());
    };
    if held.record().settings.is_fixed() {
        return Ok(());
    }
    scheduler.set(&settings)?;
    note(held, &settings, |maps| {
        usher_scx::SchedulerHandle::open(maps)?.unseat_all()
    })
}

/// Records the new settings, which notifies the waiting process. If seats are switched off,
/// existing seats are removed first.
fn note(
    held: &mut RecordWriter,
    settings: &Settings,
    unseat_all: impl FnOnce(&MapIds) -> Result<(), ScxError>,
) -> anyhow::Result<()> {
    let seats_change = held.record().settings.seats != settings.seats;
    let mut undone = None;
    if !settings.seats {
        // A daemon reads this, and gives no seats while they are removed.
        held.write(|record| record.settings.seats = false)?;
        let unseated = unseat_all(&held.record().maps);
        undone = unseated.err().map(|error| {
            format!("some seats remain ({error}): repeat 'usher sched set --seats off'")
        });
    }
    held.write(|record| {
        record.does = super::described(settings);
        record.changes += 1;
        record.undone = undone;
        if seats_change {
            record.seats_since = record.changes;
        }
        record.settings = *settings;
    })
}

/// Restarts the scheduler. The kernel may not yet have completed the end of the previous scheduler,
/// or the hotplug of the CPU. Returns `None` if a signal arrives meanwhile.
fn restart(held: &mut RecordWriter, ends: &UnixStream) -> anyhow::Result<Option<Scheduler>> {
    let deadline = Instant::now() + ENDING;
    loop {
        match begin(held) {
            Ok(begun) => return Ok(Some(begun)),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context("it could not be restarted"));
            }
            Err(_) => {}
        }
        if has_signal(ends, &LOOK_AGAIN)? {
            return Ok(None);
        }
    }
}

/// Returns whether a signal has arrived, or arrives within that time.
fn has_signal(signals: &UnixStream, within: &Timespec) -> anyhow::Result<bool> {
    let mut signals = [PollFd::new(signals, PollFlags::IN)];
    match poll(&mut signals, Some(within)) {
        Ok(0) | Err(Errno::INTR) => Ok(false),
        Ok(_) => Ok(true),
        Err(error) => Err(error).context("checking for signals"),
    }
}

/// Returns a stream that becomes readable after one of these signals.
fn signal_stream(signals: &[i32]) -> anyhow::Result<UnixStream> {
    let (stream, sender) = UnixStream::pair().context("making a pipe")?;
    stream.set_nonblocking(true).context("setting up a pipe")?;
    for &signal in signals {
        let sender = sender.try_clone().context("copying a pipe")?;
        signal_hook::low_level::pipe::register(signal, sender).context("listening for signals")?;
    }
    Ok(stream)
}

/// Waits for a signal to end or to change settings, or for the scheduler's end. Returns whether the
/// signal to end arrived.
fn wait(scheduler: &Scheduler, signals: [&UnixStream; 2]) -> anyhow::Result<bool> {
    // SAFETY: the descriptor belongs to the scheduler, which outlives this borrow.
    let notify_fd = unsafe { BorrowedFd::borrow_raw(scheduler.notify_fd()) };
    let mut fds = [
        PollFd::new(signals[0], PollFlags::IN),
        PollFd::new(signals[1], PollFlags::IN),
        PollFd::from_borrowed_fd(notify_fd, PollFlags::IN),
    ];
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(!fds[0].revents().is_empty()),
        Err(error) => Err(error).context("waiting for the scheduler's end"),
    }
}

/// Makes the error for a scheduler that the kernel has ended. Its dump is written first, so that
/// readers of the record find it.
fn end_error(dir: &Path, ending: &Ending) -> anyhow::Error {
    let why = match ending.message.is_empty() {
        true => ending.reason.clone(),
        false => format!("{}: {}", ending.reason, ending.message),
    };
    let dump = match write_dump(dir, &ending.dump) {
        Ok(None) => String::new(),
        Ok(Some(path)) => format!("; its dump is in {}", path.display()),
        Err(error) => format!("; its dump is lost ({})", failure::line(&error)),
    };
    anyhow!("the kernel ended it ({why}){dump}")
}

/// Writes the kernel's dump. Returns its path; `None` if the kernel gave none.
fn write_dump(dir: &Path, dump: &str) -> anyhow::Result<Option<PathBuf>> {
    if dump.is_empty() {
        return Ok(None);
    }
    let path = dump_path(dir);
    if let Err(error) = fs::write(&path, dump) {
        // A partial dump would take the space that the record needs.
        let _ = fs::remove_file(&path);
        return Err(error).with_context(|| format!("writing {}", path.display()));
    }
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn detects_a_signal_that_has_arrived() {
        let (signals, mut sender) = UnixStream::pair().unwrap();
        let now = Timespec::default();
        assert!(!has_signal(&signals, &now).unwrap());
        sender.write_all(b"x").unwrap();
        assert!(has_signal(&signals, &now).unwrap());
        // The signal is still pending.
        assert!(has_signal(&signals, &LOOK_AGAIN).unwrap());
    }
    #[test]
    fn seats_are_removed_before_the_change_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = RecordWriter::take(dir, &Settings::default()).unwrap();
        let recorded = || {
            let now = record::read(dir).unwrap().unwrap();
            let seats = (now.settings.seats, now.seats_since);
            (now.changes, seats, now.undone)
        };
        let kept = Settings {
            smt: false,
            ..Settings::default()
        };
        note(&mut held, &kept, |_| panic!("they are kept")).unwrap();
        assert_eq!(recorded(), (1, (true, 0), None));
        let off = Settings {
            seats: false,
            ..kept
        };
        let refuse = |_: &MapIds| {
            // Waiting processes see no change yet; daemons already see that they must give no more
            // seats.
            assert_eq!(recorded(), (1, (false, 0), None));
            Err(ScxError::NotRoot)
        };
        note(&mut held, &off, refuse).unwrap();
        let (changes, seats, undone) = recorded();
        assert_eq!((changes, seats), (2, (false, 2)));
        let undone = undone.unwrap();
        assert!(
            undone.starts_with("some seats remain (loading a scheduler requires root"),
            "{undone}"
        );
        note(&mut held, &off, |_| Ok(())).unwrap();
        assert_eq!(recorded(), (3, (false, 2), None));
        note(&mut held, &kept, |_| panic!("they are kept")).unwrap();
        assert_eq!(recorded(), (4, (true, 4), None));
    }

    fn stall(dump: &str) -> Ending {
        Ending {
            kind: 1026,
            code: 0,
            reason: "runnable task stall".to_owned(),
            message: "make[7] for 30 s".to_owned(),
            dump: dump.to_owned(),
        }
    }

    const STALLED: &str = "the kernel ended it (runnable task stall: make[7] for 30 s)";

    #[test]
    fn reports_why_the_kernel_ended_it_without_a_dump() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let report = |dump: &str| failure::line(&end_error(dir, &stall(dump)));
        assert_eq!(report(""), STALLED);
        assert!(!dump_path(dir).exists());
        let path = dump_path(dir);
        let is_there = format!("{STALLED}; its dump is in {}", path.display());
        assert_eq!(report("CPU states"), is_there);
        assert_eq!(fs::read_to_string(&path).unwrap(), "CPU states");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let lost = report("CPU states");
        let begins = format!("{STALLED}; its dump is lost (writing {}", path.display());
        assert!(lost.starts_with(&begins), "{lost}");
    }

    #[test]
    fn reports_the_reason_of_an_end_that_cannot_be_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = RecordWriter::take(dir, &Settings::default()).unwrap();
        let in_the_way = dir.join("sched.new");
        fs::create_dir(&in_the_way).unwrap();
        let stalled = || Err(anyhow!(STALLED));
        let report = failure::line(&end(&mut held, stalled()).unwrap_err());
        assert!(report.contains("(recording the state"), "{report}");
        assert!(report.ends_with(STALLED), "{report}");
        assert!(end(&mut held, Ok(())).is_err());
        fs::remove_dir(&in_the_way).unwrap();
        let report = failure::line(&end(&mut held, stalled()).unwrap_err());
        assert_eq!(report, STALLED);
        let last = record::read(dir).unwrap().unwrap();
        assert_eq!(last.ended.as_deref(), Some(STALLED));
    }
}
