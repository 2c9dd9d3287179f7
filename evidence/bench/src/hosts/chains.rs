// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measured program of the part `churn`: chains of short-lived threads or processes. Each
//! thread or process (a *link* of the chain) lives for a given time and starts the next link just
//! before it ends.
//!
//! - **End**: every link polls standard input, which is a pipe. Only the benchmark holds the other
//!   end of the pipe. When the benchmark ends for any reason, the pipe hangs up, and no link starts
//!   a next link.
//! - **Reaper**: each link of a process chain becomes an orphan when its parent ends. The command's
//!   first process, in another session than the chains, adopts and reaps the orphans as init does.
//!   This process ends after the last orphan.
//! - **Report**: each link writes two numbers into its chain's slot (16 bytes) of a shared file:
//!   its own number, and the number of the last link that started with another affinity mask than
//!   the program had at its start. The benchmark therefore misses no link, even if the link lives
//!   for less than a millisecond.
//!
//! A program runs until the pipe hangs up; it has no other time limit. Each thread has a stack of
//! 64 KiB.

use std::fs::{File, OpenOptions};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{WaitOptions, getpid, set_child_subreaper, setsid, wait};
use rustix::thread::{CpuSet, sched_getaffinity, set_current_timer_slack};

/// The name of the hidden command.
pub const PROGRAM: &str = "hosts-chains";

/// Bytes of a chain's slot in the shared file.
const SLOT_BYTES: usize = 16;
/// Stack size of a thread. The default of 2 MiB would make the creation of threads slower.
const STACK_BYTES: usize = 64 * 1024;
/// Time after which the program's first process starts a chain of processes again. The first
/// process has the mask of the present seat, and a restarted chain inherits it.
const PROCESS_CHAIN: Duration = Duration::from_millis(100);
/// Pause between two attempts to start a link when a limit on processes is reached.
const RETRY: Duration = Duration::from_millis(1);

/// The kind of the links of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// Threads of one process.
    Thread,
    /// Processes.
    Process,
}

/// Options of the program.
#[derive(Debug, Clone, clap::Args)]
pub struct ChainsArgs {
    /// Build the chains of threads or processes
    pub link: Link,
    /// Let each link live for this time in microseconds
    pub lifetime_us: u64,
    /// Use this file, which has a slot for each chain
    pub slots: PathBuf,
    /// Run this many chains at a time
    #[arg(long, default_value_t = 10)]
    pub chains: usize,
}

/// The content of a chain's slot in the shared file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot {
    /// Number of links started.
    pub links: u64,
    /// Number of the last link that started with another affinity mask than the program had at its
    /// start; 0: no link did.
    pub last_narrowed: u64,
}

/// Reads the slots of all chains.
pub fn read_slots(file: &File, chains: usize) -> Result<Vec<Slot>> {
    let mut bytes = vec![0; chains * SLOT_BYTES];
    file.read_exact_at(&mut bytes, 0).context("reading slots")?;
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |sum, &b| sum << 8 | u64::from(b))
    };
    let slots = bytes.chunks_exact(SLOT_BYTES).map(|slot| Slot {
        links: number(&slot[..8]),
        last_narrowed: number(&slot[8..]),
    });
    Ok(slots.collect())
}

/// Creates a file with empty slots.
pub fn make_slots(path: &Path, chains: usize) -> Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path);
    let file = file.with_context(|| format!("making {}", path.display()))?;
    file.set_len((chains * SLOT_BYTES) as u64)?;
    Ok(file)
}

/// Starts the program, which prints its process number and waits for a byte on standard input. Then
/// reaps ended processes until no process of the chains is left.
pub fn run(args: &ChainsArgs) -> Result<()> {
    set_child_subreaper(Some(getpid())).context("adopting orphans")?;
    // SAFETY: SIG_IGN installs no handler function; therefore no code runs in signal context. From
    // now on, the kernel reaps ended children.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    // SAFETY: this process has one thread; no lock is therefore held by another thread during the
    // fork.
    match unsafe { libc::fork() } {
        0 => run_program(args),
        child if child > 0 => {
            // With SIGCHLD ignored, `wait` returns only after all children have ended, with the
            // error ECHILD.
            while !matches!(wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
            Ok(())
        }
        _ => Err(std::io::Error::last_os_error()).context("starting the program"),
    }
}

fn run_program(args: &ChainsArgs) -> Result<()> {
    setsid().context("making a session")?;
    // The default timer slack would add 50 us to the lifetime of each link.
    set_current_timer_slack(NonZeroU64::new(1))?;
    let mut options = OpenOptions::new();
    let slots = options.read(true).write(true).open(&args.slots);
    let chain = Arc::new(Chain {
        lifetime: Duration::from_micros(args.lifetime_us),
        whole: sched_getaffinity(None)?,
        slots: slots.with_context(|| format!("opening {}", args.slots.display()))?,
    });
    crate::machine::print_line(getpid().as_raw_nonzero())?;
    // The benchmark writes a byte after it has attached the program.
    if rustix::io::read(std::io::stdin(), &mut [0_u8; 1])? == 0 {
        return Ok(());
    }
    match args.link {
        Link::Thread => {
            (0..args.chains).for_each(|at| chain.start_thread(at, Slot::default()));
            while !is_over_within(Duration::from_secs(60)) {}
            Ok(())
        }
        Link::Process => keep_process_chains(&chain, args.chains),
    }
}

/// Starts chains of processes, and restarts each chain when it has ended. Only the first link of a
/// chain is a child of the program's first process; later links are orphans.
fn keep_process_chains(chain: &Chain, chains: usize) -> Result<()> {
    let mut ends = Vec::new();
    for at in 0..chains {
        ends.push(chain.start_process(at, Slot::default())?);
    }
    loop {
        let stdin = std::io::stdin();
        let stdin = PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::HUP);
        let all = ends.iter().map(|end| PollFd::new(end, PollFlags::HUP));
        let mut fds: Vec<PollFd<'_>> = all.chain([stdin]).collect();
        let polled = poll(&mut fds, None);
        let is_over: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if polled.is_err() {
            continue;
        }
        if is_over[chains] {
            return Ok(());
        }
        let slots = read_slots(&chain.slots, chains)?;
        for at in (0..chains).filter(|&at| is_over[at]) {
            ends[at] = chain.start_process(at, slots[at])?;
        }
    }
}

/// Waits for `time`. Returns true at once when the benchmark has ended, otherwise false after
/// `time`.
fn is_over_within(time: Duration) -> bool {
    let stdin = std::io::stdin();
    let stdin = stdin.as_fd();
    let mut fds = [PollFd::from_borrowed_fd(stdin, PollFlags::HUP)];
    let timeout = Timespec::try_from(time).ok();
    matches!(poll(&mut fds, timeout.as_ref()), Ok(ready) if ready > 0)
}

/// State that all chains of the program share.
struct Chain {
    lifetime: Duration,
    /// The affinity mask of the program at its start.
    whole: CpuSet,
    slots: File,
}

impl Chain {
    /// Writes the start of a link into the slot of its chain.
    fn report(&self, at: usize, slot: &mut Slot) {
        slot.links += 1;
        if sched_getaffinity(None).is_ok_and(|mask| mask != self.whole) {
            slot.last_narrowed = slot.links;
        }
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(&slot.links.to_le_bytes());
        bytes[8..].copy_from_slice(&slot.last_narrowed.to_le_bytes());
        // If the write fails, the slot shows no progress, and the benchmark reports the chain as
        // stalled.
        let _ = self.slots.write_all_at(&bytes, (at * SLOT_BYTES) as u64);
    }

    fn start_thread(self: &Arc<Self>, at: usize, slot: Slot) {
        loop {
            let chain = self.clone();
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let started = thread.spawn(move || chain.be_thread(at, slot));
            if started.is_ok() || is_over_within(RETRY) {
                return;
            }
        }
    }

    fn be_thread(self: &Arc<Self>, at: usize, mut slot: Slot) {
        self.report(at, &mut slot);
        if !is_over_within(self.lifetime) {
            self.start_thread(at, slot);
        }
    }

    /// Starts a chain of processes in the session of the program. A process becomes an orphan when
    /// its parent ends. Returns a pipe that hangs up when the last process has ended.
    fn start_process(&self, at: usize, slot: Slot) -> Result<OwnedFd> {
        let (end, held) = rustix::pipe::pipe()?;
        // SAFETY: this process has one thread; no lock is therefore held by another thread during
        // the fork.
        match unsafe { libc::fork() } {
            0 => self.be_process(at, slot, &held),
            child if child > 0 => Ok(end),
            _ => Err(std::io::Error::last_os_error()).context("starting a chain"),
        }
    }

    fn be_process(&self, at: usize, mut slot: Slot, _held: &OwnedFd) -> ! {
        let begun = Instant::now();
        self.report(at, &mut slot);
        let mut lifetime = self.lifetime;
        while !is_over_within(lifetime) && begun.elapsed() < PROCESS_CHAIN {
            // SAFETY: this process has one thread; no lock is therefore held by another thread
            // during the fork.
            match unsafe { libc::fork() } {
                0 => {
                    self.report(at, &mut slot);
                    lifetime = self.lifetime;
                }
                child if child > 0 => break,
                _ => lifetime = RETRY,
            }
        }
        // SAFETY: `_exit` ends this forked process at once and runs no exit handlers or destructors
        // of the parent's state.
        unsafe { libc::_exit(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_what_links_report() {
        let dir = tempfile::tempdir().unwrap();
        let slots = make_slots(&dir.path().join("slots"), 2).unwrap();
        let whole = sched_getaffinity(None).unwrap();
        let lifetime = Duration::ZERO;
        let mut slot = Slot {
            links: 4_711,
            last_narrowed: 300,
        };
        Chain {
            lifetime,
            whole,
            slots,
        }
        .report(1, &mut slot);
        let slots = File::open(dir.path().join("slots")).unwrap();
        let expected = Slot {
            links: 4_712,
            last_narrowed: 300,
        };
        let read = read_slots(&slots, 2).unwrap();
        assert_eq!(read, [Slot::default(), expected]);
    }
}
