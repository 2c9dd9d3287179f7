// SPDX-License-Identifier: GPL-2.0-only
//! The process that holds the scheduler: starts it, starts it anew when the
//! machine has got or lost a CPU, tells it what else it is to do, and ends when it
//! is told to or the kernel ends it.

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

use super::record::{self, Held, State, dump_path};

/// How long the kernel may take to end a scheduler.
pub const ENDING: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Holds it until a signal; calls `ready` when it runs, which it never does if the signal
/// comes first.
///
/// # Errors
/// It could not be started, or the kernel ended it.
pub fn hold(
    dir: &Path,
    settings: &Settings,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    super::start::check(&super::kernel(), dir, record::read(dir)?.as_ref())?;
    // Before anybody knows whom to tell.
    let told = [told_by(&[SIGTERM, SIGINT, SIGHUP])?, told_by(&[SIGUSR1])?];
    let mut held = Held::take(dir, settings)?;
    let served = serve(dir, &mut held, &told, ready);
    end(&mut held, served)
}

/// Puts its end on record. Why it ended is told where that cannot be done, too.
fn end(held: &mut Held, served: anyhow::Result<()>) -> anyhow::Result<()> {
    let Err(why) = served else {
        return held.end("stopped");
    };
    match held.end(&failure::line(&why)) {
        Ok(()) => Err(why),
        Err(unwritten) => {
            let unwritten = failure::line(&unwritten);
            Err(why.context(format!(
                "the record lacks the scheduler's end ({unwritten})"
            )))
        }
    }
}

/// Until it is told to end, or the kernel ends it for good.
fn serve(
    dir: &Path,
    held: &mut Held,
    told: &[UnixStream; 2],
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let [ends, changes] = told;
    let mut scheduler = begin(held)?;
    // Stopped meanwhile: nobody is told that it runs.
    if is_told(ends, &Timespec::default())? {
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
            return Err(given_up(dir, &ending));
        }
        held.write(|record| {
            record.state = State::BeginningAnew;
            record.restarts += 1;
        })?;
        drop(scheduler);
        match begin_again(held, ends)? {
            Some(begun) => scheduler = begun,
            None => return Ok(()),
        }
    }
}

fn begin(held: &mut Held) -> anyhow::Result<Scheduler> {
    let kernel = super::kernel();
    // Before the machine is read, so that no CPU that comes meanwhile is overlooked.
    let hotplug_seq = kernel.hotplug_seq()?;
    let machine = usher_topology::load(Source::ThisMachine)?;
    let settings = held.record().settings;
    let scheduler = Scheduler::start(&kernel, hotplug_seq, &machine, &settings)?;
    let maps = scheduler.map_ids()?;
    held.write(|record| {
        record.maps = maps;
        // Seats that were left are gone with the maps of the last.
        record.undone = None;
        record.idle_by_node = scheduler.keeps_nodes_apart();
        record.state = State::Running;
    })?;
    Ok(scheduler)
}

/// What `usher sched set` has left is done from now on.
fn change(dir: &Path, scheduler: &Scheduler, held: &mut Held) -> anyhow::Result<()> {
    // A signal of somebody else's changes nothing, nor does one where nothing can be.
    let Ok(settings) = record::take_wanted(dir) else {
        return Ok(());
    };
    if held.record().settings.is_fixed() {
        return Ok(());
    }
    scheduler.set(&settings)?;
    note(held, &settings, |maps| {
        usher_scx::Held::open(maps)?.unseat_all()
    })
}

/// Puts it on record, which tells whoever waits for it that it is so: seats are taken away
/// before, if none are to be kept.
fn note(
    held: &mut Held,
    settings: &Settings,
    unseat_all: impl FnOnce(&MapIds) -> Result<(), ScxError>,
) -> anyhow::Result<()> {
    let seats_change = held.record().settings.seats != settings.seats;
    let mut undone = None;
    if !settings.seats {
        // A daemon goes by this, and gives none while they are taken away.
        held.write(|record| record.settings.seats = false)?;
        let unseated = unseat_all(&held.record().maps);
        undone = unseated.err().map(|error| {
            format!("seats are left ({error}): 'usher sched set --seats off' tries again")
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

/// The kernel has just ended one, and may not be through with it, nor with the
/// CPU that comes or goes. `None`: told to end meanwhile.
fn begin_again(held: &mut Held, ends: &UnixStream) -> anyhow::Result<Option<Scheduler>> {
    let deadline = Instant::now() + ENDING;
    loop {
        match begin(held) {
            Ok(begun) => return Ok(Some(begun)),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context("it could not begin anew"));
            }
            Err(_) => {}
        }
        if is_told(ends, &LOOK_AGAIN)? {
            return Ok(None);
        }
    }
}

/// Whether a signal has come, or does within that time.
fn is_told(told: &UnixStream, within: &Timespec) -> anyhow::Result<bool> {
    let mut told = [PollFd::new(told, PollFlags::IN)];
    match poll(&mut told, Some(within)) {
        Ok(0) | Err(Errno::INTR) => Ok(false),
        Ok(_) => Ok(true),
        Err(error) => Err(error).context("looking for signals"),
    }
}

/// A stream that is readable after one of these signals.
fn told_by(signals: &[i32]) -> anyhow::Result<UnixStream> {
    let (told, tell) = UnixStream::pair().context("making a pipe")?;
    told.set_nonblocking(true).context("setting up a pipe")?;
    for &signal in signals {
        let tell = tell.try_clone().context("copying a pipe")?;
        signal_hook::low_level::pipe::register(signal, tell).context("listening for signals")?;
    }
    Ok(told)
}

/// Waits for a signal to end or to change, or for the scheduler's end; whether it
/// was the first.
fn wait(scheduler: &Scheduler, told: [&UnixStream; 2]) -> anyhow::Result<bool> {
    // SAFETY: the descriptor is the scheduler's, which lives longer than this.
    let bell = unsafe { BorrowedFd::borrow_raw(scheduler.bell()) };
    let mut fds = [
        PollFd::new(told[0], PollFlags::IN),
        PollFd::new(told[1], PollFlags::IN),
        PollFd::from_borrowed_fd(bell, PollFlags::IN),
    ];
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(!fds[0].revents().is_empty()),
        Err(error) => Err(error).context("waiting for the scheduler's end"),
    }
}

/// What is said of a scheduler that the kernel has ended. Its dump is written by then, so that
/// whoever reads on record that there is one finds it.
fn given_up(dir: &Path, ending: &Ending) -> anyhow::Error {
    let why = match ending.message.is_empty() {
        true => ending.reason.clone(),
        false => format!("{}: {}", ending.reason, ending.message),
    };
    let dump = match write_dump(dir, &ending.dump) {
        Ok(None) => String::new(),
        Ok(Some(path)) => format!("; its dump is in {}", path.display()),
        Err(error) => format!("; its dump is lost ({})", failure::line(&error)),
    };
    anyhow!("the kernel took its threads back ({why}){dump}")
}

/// Where it lies then; `None`: the kernel gave none.
fn write_dump(dir: &Path, dump: &str) -> anyhow::Result<Option<PathBuf>> {
    if dump.is_empty() {
        return Ok(None);
    }
    let path = dump_path(dir);
    if let Err(error) = fs::write(&path, dump) {
        // A part of it would take the room that the record needs.
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
    fn a_signal_that_has_come_is_seen() {
        let (told, mut tell) = UnixStream::pair().unwrap();
        let now = Timespec::default();
        assert!(!is_told(&told, &now).unwrap());
        tell.write_all(b"x").unwrap();
        assert!(is_told(&told, &now).unwrap());
        // It is still to be heeded.
        assert!(is_told(&told, &LOOK_AGAIN).unwrap());
    }
    #[test]
    fn seats_are_taken_away_before_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = Held::take(dir, &Settings::default()).unwrap();
        let told = || {
            let now = record::read(dir).unwrap().unwrap();
            let seats = (now.settings.seats, now.seats_since);
            (now.changes, seats, now.undone)
        };
        let kept = Settings {
            smt: false,
            ..Settings::default()
        };
        note(&mut held, &kept, |_| panic!("they are kept")).unwrap();
        assert_eq!(told(), (1, (true, 0), None));
        let off = Settings {
            seats: false,
            ..kept
        };
        let refuse = |_: &MapIds| {
            // Those who wait see nothing new, daemons that they are to give no more.
            assert_eq!(told(), (1, (false, 0), None));
            Err(ScxError::NotRoot)
        };
        note(&mut held, &off, refuse).unwrap();
        let (changes, seats, undone) = told();
        assert_eq!((changes, seats), (2, (false, 2)));
        let undone = undone.unwrap();
        assert!(
            undone.starts_with("seats are left (a scheduler is root's"),
            "{undone}"
        );
        note(&mut held, &off, |_| Ok(())).unwrap();
        assert_eq!(told(), (3, (false, 2), None));
        note(&mut held, &kept, |_| panic!("they are kept")).unwrap();
        assert_eq!(told(), (4, (true, 4), None));
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

    const STALLED: &str =
        "the kernel took its threads back (runnable task stall: make[7] for 30 s)";

    #[test]
    fn why_the_kernel_ended_it_is_told_whatever_becomes_of_its_dump() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let told = |dump: &str| failure::line(&given_up(dir, &stall(dump)));
        assert_eq!(told(""), STALLED);
        assert!(!dump_path(dir).exists());
        let path = dump_path(dir);
        let is_there = format!("{STALLED}; its dump is in {}", path.display());
        assert_eq!(told("CPU states"), is_there);
        assert_eq!(fs::read_to_string(&path).unwrap(), "CPU states");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let lost = told("CPU states");
        let begins = format!("{STALLED}; its dump is lost (writing {}", path.display());
        assert!(lost.starts_with(&begins), "{lost}");
    }

    #[test]
    fn why_it_ended_is_told_where_it_cannot_be_put_on_record() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut held = Held::take(dir, &Settings::default()).unwrap();
        let in_the_way = dir.join("sched.new");
        fs::create_dir(&in_the_way).unwrap();
        let stalled = || Err(anyhow!(STALLED));
        let told = failure::line(&end(&mut held, stalled()).unwrap_err());
        assert!(told.contains("(writing what is known"), "{told}");
        assert!(told.ends_with(STALLED), "{told}");
        assert!(end(&mut held, Ok(())).is_err());
        fs::remove_dir(&in_the_way).unwrap();
        let told = failure::line(&end(&mut held, stalled()).unwrap_err());
        assert_eq!(told, STALLED);
        let last = record::read(dir).unwrap().unwrap();
        assert_eq!(last.ended.as_deref(), Some(STALLED));
    }
}
