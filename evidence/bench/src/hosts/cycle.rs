// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures one kind of chain of the part `churn` in a process of its own. One actuator repeatedly
//! gives seats to several programs, changes the seats and releases the programs.
//!
//! Cycle of each program:
//!
//! 1. The program has a first seat for 150 ms, then another seat for 150 ms, and is then released.
//! 2. One second later, the check begins. It waits until each chain has started two links, at most
//!    5 s.
//! 3. The check fails if a link that started after that second has another mask than the program
//!    had at its start. It also fails if any thread of the program's session has another list of
//!    CPUs. A chain without two links after 5 s counts as stalled.
//!
//! The main thread makes all calls of the actuator. Its CPU time during the calls is therefore the
//! CPU time of Usher. It works in steps of 20 ms. At the end, the programs have 10 s to end.
//!
//! An error ends the measurement of the kind and is part of the printed result. The measurement
//! needs two usable CPUs.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use usher_act::{ActConfig, Actuator, WorkClass};
use usher_model::{Action, CpuSet, ProcessId, ProgramId};

use super::chains::{self, Link, Slot};
use super::churn::{Admission, ChurnResult, name};

/// The hidden command that measures one kind.
pub const KIND: &str = "hosts-churn-kind";

/// Time from a release to the check for narrowed masks.
const GRACE: Duration = Duration::from_secs(1);
/// Interval of the steps that continue the actuator's scans of threads, as in the daemon.
const STEP: Duration = Duration::from_millis(20);
/// Time for which a program keeps each seat. Process chains restart within this time.
const HOLD: Duration = Duration::from_millis(150);
/// Interval of the calls that apply seats to new threads, as in the daemon.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Number of chains of each program.
const CHAINS: usize = 10;
/// Number of links that each chain must start during the check. The creation of the first of these
/// links may have begun before the second of waiting was over; the second link is certainly later.
const LINKS_COUNTED: u64 = 2;
/// If a chain has not started [`LINKS_COUNTED`] links after this time, it counts as stalled.
const STALLED: Duration = Duration::from_secs(5);
/// Time limit for the end of the programs at the end of the measurement.
const END_MAX: Duration = Duration::from_secs(10);

/// Options of the command.
#[derive(Debug, Clone, clap::Args)]
pub struct KindArgs {
    /// Build the chains of threads or processes
    link: Link,
    /// Choose how the programs are admitted
    home: Admission,
    /// Let each link live for this time in microseconds
    lifetime_us: u64,
    /// Release programs this many times
    releases: usize,
    /// Run this many programs at a time
    #[arg(long)]
    at_once: usize,
    /// Run the chains with this usher-bench
    #[arg(long)]
    chains_by: PathBuf,
}

/// Measures the kind and prints its result as JSON.
pub fn run(args: &KindArgs) -> Result<()> {
    // The control loop of the daemon has this scheduling class. Without the permission to use it,
    // the measured times are slightly longer.
    let _ = usher_host::engine::set_realtime_class();
    let mut row = ChurnResult::new(args.link, args.home, args.lifetime_us);
    if let Err(error) = measure(args, &mut row) {
        row.error = Some(format!("{error:#}"));
    }
    crate::machine::print_line(serde_json::to_string(&row)?)
}

/// Times and counts from which figures of the result are computed at the end.
#[derive(Debug, Default)]
struct CycleTimes {
    /// Number of chains in which the last link before a release had started with the seat's mask,
    /// summed over the releases.
    seated: usize,
    /// CPU time of the calls that apply seats.
    seating: Duration,
    /// CPU time of the calls that release programs and continue scans.
    releasing: Duration,
    /// Time from each release to the start of the last link with the mask of a seat.
    free_after: Vec<Duration>,
}

fn measure(args: &KindArgs, row: &mut ChurnResult) -> Result<()> {
    let runtime = tempfile::tempdir()?;
    let mut act = Actuator::open(ActConfig::new(runtime.path()))?;
    let mut tally = CycleTimes::default();
    let mut subjects = Vec::new();
    let begun = Instant::now();
    let at_once = args.at_once.clamp(1, args.releases.max(1));
    for at in 0..at_once {
        let start_at = begun + GRACE * at as u32 / at_once as u32;
        subjects.push(ChurnProgram::start(
            args,
            runtime.path(),
            &mut act,
            at,
            start_at,
        )?);
    }
    let result = cycle(args, &mut act, &mut subjects, row, &mut tally);
    let lasted = begun.elapsed();
    let links: u64 = subjects.iter().map(ChurnProgram::links).sum();
    tally.note(row, links, lasted, at_once);
    let left = act.undo_all();
    let ended: Result<()> = subjects.into_iter().try_for_each(|one| one.chains.end());
    result?;
    ended?;
    ensure!(
        left.is_empty(),
        "masks and priorities that remain after the last release: {left:?}"
    );
    Ok(())
}

impl CycleTimes {
    fn note(&mut self, row: &mut ChurnResult, links: u64, lasted: Duration, at_once: usize) {
        let seconds = lasted.as_secs_f64() * at_once as f64;
        let releases = row.releases.max(1) as f64;
        let (seating, releasing) = (self.seating.as_secs_f64(), self.releasing.as_secs_f64());
        row.seated_percent = self.seated as f64 / (releases * CHAINS as f64) * 100.0;
        row.links_per_s = links as f64 / seconds;
        row.release_cpu_percent = releasing / (GRACE.as_secs_f64() * releases) * 100.0;
        row.seat_cpu_ms = seating * 1e3 / (2.0 * releases);
        row.cpu_percent = (seating + releasing) / seconds * 100.0;
        self.free_after.sort();
        let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
        let median = self.free_after.get(self.free_after.len() / 2);
        row.free_after_ms = [ms(median), ms(self.free_after.last())];
    }
}

/// Advances the cycles of all programs until the wanted number of releases is complete.
fn cycle(
    args: &KindArgs,
    act: &mut Actuator,
    subjects: &mut [ChurnProgram],
    row: &mut ChurnResult,
    tally: &mut CycleTimes,
) -> Result<()> {
    let mut left = args.releases;
    let mut housekeeping = Instant::now();
    while row.releases < args.releases {
        let step = Instant::now();
        tally.releasing += cpu_of(|| act.continue_scans())?;
        if housekeeping.elapsed() >= HOUSEKEEPING {
            housekeeping = Instant::now();
            for subject in subjects.iter() {
                tally.seating += cpu_of(|| act.refresh(subject.program))?;
            }
        }
        for subject in subjects.iter_mut() {
            subject.step(act, &mut left, row, tally)?;
        }
        std::thread::sleep(STEP.saturating_sub(step.elapsed()));
    }
    Ok(())
}

/// Phase of a program's cycle.
#[derive(Debug)]
enum Phase {
    /// The program has no seat until the time `until`.
    Idle { until: Instant },
    /// The program has its first seat until the time `until`.
    Seated { until: Instant },
    /// The program has the other seat until the time `until`.
    Moved { until: Instant },
    /// The program was released at the time `at`.
    Released {
        at: Instant,
        /// Last time at which the benchmark saw a link that had started with the mask of a seat.
        narrowed_at: Instant,
        slots: Vec<Slot>,
    },
    /// The second after the release is over, and links that start from now on are checked.
    Counting {
        from: Vec<Slot>,
        since: Instant,
        /// Whether a link started with the mask of a seat after the second, but before the check
        /// began.
        is_late: bool,
    },
}

/// State of a measured program, which consists of [`CHAINS`] chains.
struct ChurnProgram {
    program: ProgramId,
    chains: Chains,
    phase: Phase,
    seats: [CpuSet; 2],
    /// List of the CPUs of the program's threads without a seat, in the kernel's format.
    whole: String,
}

impl ChurnProgram {
    fn start(
        args: &KindArgs,
        dir: &Path,
        act: &mut Actuator,
        at: usize,
        start_at: Instant,
    ) -> Result<Self> {
        let mut chains = Chains::start(args, &dir.join(format!("slots-{at}")))?;
        let pid = chains.pid;
        let process = procfs::process::Process::new(pid)?;
        let id = ProcessId {
            pid,
            start_ticks: process.stat()?.starttime,
        };
        let program = ProgramId(at as u64 + 1);
        if args.home == Admission::Launched {
            act.prepare_held(program, id, WorkClass::Foreground)?;
        }
        act.admit(program, id, WorkClass::Foreground)?;
        let whole = cpu_list(&process.status()?).context("the program's CPUs")?;
        let cpus: CpuSet = whole.parse()?;
        ensure!(
            cpus.len() >= 2,
            "the part churn needs two usable CPUs, but this machine has {}",
            cpus.len()
        );
        chains.begin()?;
        let seats = [cpus.first(), cpus.last()].map(|cpu| CpuSet::single(cpu.unwrap_or(0)));
        let phase = Phase::Idle { until: start_at };
        Ok(Self {
            program,
            chains,
            phase,
            seats,
            whole,
        })
    }

    fn slots(&self) -> Result<Vec<Slot>> {
        chains::read_slots(&self.chains.slots, CHAINS)
    }

    /// Number of links that all chains have started.
    fn links(&self) -> u64 {
        let slots = self.slots().unwrap_or_default();
        slots.iter().map(|slot| slot.links).sum()
    }

    /// Enters the next phase if the present phase is over. `left` is the number of cycles that are
    /// still to begin.
    fn step(
        &mut self,
        act: &mut Actuator,
        left: &mut usize,
        row: &mut ChurnResult,
        tally: &mut CycleTimes,
    ) -> Result<()> {
        let now = Instant::now();
        let program = self.program;
        match self.phase {
            Phase::Idle { until } if until <= now && *left > 0 => {
                *left -= 1;
                let cpus = self.seats[0].clone();
                tally.seating += cpu_of(|| act.act(&Action::Seat { program, cpus }))?;
                self.phase = Phase::Seated { until: now + HOLD };
            }
            Phase::Seated { until } if until <= now => {
                let cpus = self.seats[1].clone();
                tally.seating += cpu_of(|| act.act(&Action::Seat { program, cpus }))?;
                self.phase = Phase::Moved { until: now + HOLD };
            }
            Phase::Moved { until } if until <= now => self.release(act, tally)?,
            Phase::Released { .. } => self.watch(tally)?,
            Phase::Counting { .. } => self.count(row)?,
            _ => {}
        }
        Ok(())
    }

    fn release(&mut self, act: &mut Actuator, tally: &mut CycleTimes) -> Result<()> {
        let program = self.program;
        let slots = self.slots()?;
        let is_seated = |slot: &&Slot| slot.last_narrowed == slot.links;
        tally.seated += slots.iter().filter(is_seated).count();
        let at = Instant::now();
        tally.releasing += cpu_of(|| act.act(&Action::Release { program }))?;
        self.phase = Phase::Released {
            at,
            narrowed_at: at,
            slots,
        };
        Ok(())
    }

    /// Checks whether a link has started with the mask of a seat since the last step.
    fn watch(&mut self, tally: &mut CycleTimes) -> Result<()> {
        let now = self.slots()?;
        let Phase::Released {
            at,
            narrowed_at,
            slots,
        } = &mut self.phase
        else {
            return Ok(());
        };
        let mut pairs = now.iter().zip(slots.iter());
        if pairs.any(|(now, before)| now.last_narrowed > before.last_narrowed) {
            *narrowed_at = Instant::now();
        }
        slots.clone_from(&now);
        if at.elapsed() >= GRACE {
            let free_after = narrowed_at.duration_since(*at);
            tally.free_after.push(free_after);
            self.phase = Phase::Counting {
                from: now,
                since: Instant::now(),
                is_late: free_after > GRACE,
            };
        }
        Ok(())
    }

    /// Checks the masks as soon as each chain has started two links after the second, or counts the
    /// release as stalled after 5 s.
    fn count(&mut self, row: &mut ChurnResult) -> Result<()> {
        let now = self.slots()?;
        let Phase::Counting {
            from,
            since,
            is_late,
        } = &self.phase
        else {
            return Ok(());
        };
        let pairs = || now.iter().zip(from.iter());
        let is_alive = pairs().all(|(now, from)| now.links >= from.links + LINKS_COUNTED);
        if !is_alive && since.elapsed() < STALLED {
            return Ok(());
        }
        let was_narrowed = *is_late || pairs().any(|(now, from)| now.last_narrowed > from.links);
        row.stalled += usize::from(!is_alive);
        row.narrowed += usize::from(was_narrowed || self.lists_narrowed()?);
        row.releases += 1;
        let until = Instant::now();
        self.phase = Phase::Idle { until };
        Ok(())
    }

    /// Returns whether a thread of the program's session has another list of CPUs than the program
    /// had at its start. The threads include those that are not links.
    fn lists_narrowed(&self) -> Result<bool> {
        let is_own = |process: &procfs::process::Process| {
            let stat = process.stat();
            stat.is_ok_and(|stat| stat.session == self.chains.pid)
        };
        let all = procfs::process::all_processes()?.filter_map(Result::ok);
        let tasks = all.filter(is_own).filter_map(|one| one.tasks().ok());
        let mut status = tasks.flatten().filter_map(|task| task.ok()?.status().ok());
        Ok(status.any(|one| cpu_list(&one).is_some_and(|list| list != self.whole)))
    }
}

/// The list of allowed CPUs in the kernel's format.
fn cpu_list(status: &procfs::process::Status) -> Option<String> {
    let ranges = status.cpus_allowed_list.as_ref()?;
    let one = |&(first, last): &(u32, u32)| format!("{first}-{last}");
    Some(ranges.iter().map(one).collect::<Vec<_>>().join(","))
}

/// The processes of one program. The processes end when the value is dropped or when this process
/// ends.
struct Chains {
    reaper: Child,
    /// The program's first process.
    pid: i32,
    slots: File,
}

impl Chains {
    fn start(args: &KindArgs, path: &Path) -> Result<Self> {
        let slots = chains::make_slots(path, CHAINS)?;
        let mut command = Command::new(&args.chains_by);
        command.args([
            chains::PROGRAM,
            &name(args.link),
            &args.lifetime_us.to_string(),
        ]);
        command.arg(path).args(["--chains", &CHAINS.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut reaper = command.spawn().context("starting chains")?;
        let out = reaper.stdout.take().context("its standard output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let pid = line
            .trim()
            .parse()
            .context("`usher-bench hosts-chains` printed no process number")?;
        Ok(Self { reaper, pid, slots })
    }

    /// Lets the program start its chains.
    fn begin(&mut self) -> Result<()> {
        let stdin = self.reaper.stdin.as_mut();
        Ok(stdin.context("its standard input")?.write_all(&[0])?)
    }

    /// Closes the pipe, and waits until the last process has ended.
    fn end(mut self) -> Result<()> {
        drop(self.reaper.stdin.take());
        let begun = Instant::now();
        while self.reaper.try_wait()?.is_none() {
            ensure!(
                begun.elapsed() < END_MAX,
                "the chains of threads still run {END_MAX:?} after their pipe was closed"
            );
            std::thread::sleep(STEP);
        }
        Ok(())
    }
}

/// Returns the CPU time that a call uses.
fn cpu_of<E>(call: impl FnOnce() -> Result<(), E>) -> Result<Duration, E> {
    let before = cpu_time();
    call()?;
    Ok(cpu_time().saturating_sub(before))
}

/// CPU time of this thread, which executes all of Usher's code in this benchmark.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
