// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples of one program: CPU time, waiting time, threads, spinners, progress, and the end of the
//! program.
//!
//! 1. A sample reads CPU time and waiting time, and subtracts the steal time that the kernel counts
//!    as CPU time.
//! 2. If a count of threads or a check for spinning is due, the threads are listed. A count or
//!    check is omitted if the program has used less than 1 % of a CPU since the last count or
//!    check.
//! 3. Progress comes from the best source that works: units of work on the heartbeat page, then
//!    useful CPU time on this page (OMPT), then instructions, then bytes, then CPU time. Bytes are a
//!    source only if the caller trusts them ([`ProgramProbe::count_bytes`]). A heartbeat page
//!    without any units and without thread slots is no source.
//!
//! Cost: for a program with a cgroup, steps 1 and 3 make two small reads of open files. Each perf
//! event costs one more read, and a heartbeat page its own reads. Without a cgroup, a sample walks
//! the process tree (`tree.rs`). Threads are counted at the first sample, and then after intervals
//! that double from 8 ms up to [`ProbeConfig::threads_every_ns`], 1 s by default. After the
//! beginning of a wait for CPUs, the interval is 4 ms again. The checks for spinning begin at once,
//! after 0.1 s and after 0.15 s more, and then have the same interval of 1 s.
//!
//! Errors: a cgroup that cannot be read ends a sample. An invalid heartbeat page is reported once
//! and ignored from then on. The reason why threads cannot be sampled for spinning is reported
//! once. Threads that cannot be listed are reported at each count; the previous count stays valid.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use rustix::event::PollFlags;
use usher_model::{
    DemandReading, ProcessId, ProcessTree, ProgramId, ProgramSample, Progress, ProgressSource,
    SourceErrors,
};

use crate::bytes::ByteCounter;
use crate::counters::{CounterGap, CounterKind, PerfCounters};
use crate::delay::{RunDelay, RunDelays};
use crate::error::ProbeError;
use crate::members::{ProgramMembers, TotalTimes};
use crate::spin::SpinDetector;
use crate::tree::read_stat;

/// The options of a probe.
#[derive(Debug, Clone)]
pub struct ProbeConfig {
    /// `/proc`; tests use other directories.
    pub proc_root: PathBuf,
    /// The program's heartbeat page, if it has one.
    pub heartbeat: Option<PathBuf>,
    /// Minimum interval between checks of threads for spinning, in nanoseconds. Threads are counted
    /// at the same interval, and more often in two periods when their number matters most: after
    /// the program has arrived, and after it has begun to wait for CPUs.
    pub threads_every_ns: u64,
    /// The calibrated errors of the sources of progress on this machine.
    pub source_errors: SourceErrors,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            proc_root: "/proc".into(),
            heartbeat: None,
            threads_every_ns: 1_000_000_000,
            source_errors: SourceErrors::default(),
        }
    }
}

/// A program that has used less than 1/REST_DIVISOR of a CPU since the last check is at rest.
const REST_DIVISOR: u64 = 100;

/// Least interval between counts of threads, in nanoseconds. Each count doubles the interval, up to
/// [`ProbeConfig::threads_every_ns`]; the beginning of a wait for CPUs resets the interval.
const COUNT_NS_MIN: u64 = 4_000_000;
/// Least interval between counts of bytes, in nanoseconds, because a count reads two files per
/// process.
const BYTES_NS_MIN: u64 = 100_000_000;
/// Least interval between counts of waits, in nanoseconds, because a count reads a file per thread.
const DELAYS_NS_MIN: u64 = 200_000_000;
/// Intervals before each of the first checks for spinning, in nanoseconds. The intervals are short:
/// programs that run for less than a second must be checked, too.
const FIRST_CHECKS_NS: [u64; 3] = [0, 100_000_000, 150_000_000];
/// A program waits for CPUs if it waits for more than 1/WAITING_DIVISOR of the time since the last
/// sample.
const WAITING_DIVISOR: u64 = 10;

/// The probe of one program.
#[derive(Debug)]
pub struct ProgramProbe {
    id: ProgramId,
    root: ProcessId,
    config: ProbeConfig,
    members: ProgramMembers,
    heartbeat: Option<usher_heartbeat::Page>,
    /// Work that the heartbeat page counted before the program's arrival.
    work_before: u64,
    /// CPU time of waiting that the heartbeat page showed at the last sample.
    page_waiting_ns: u64,
    /// CPU time of waiting since the arrival, without steal time.
    waiting_ns: f64,
    counters: Option<PerfCounters>,
    /// Counts bytes if no better source works.
    byte_counter: Option<ByteCounter>,
    /// Bytes at the last sample; `None` if they were not counted.
    bytes: Option<u64>,
    /// Time and result of the last count of bytes.
    bytes_at: (u64, Option<u64>),
    trusts_bytes: bool,
    /// Counts the waits for CPUs.
    delays: Option<RunDelays>,
    demand: Option<DemandReading>,
    spin: SpinDetector,
    first: TotalTimes,
    last: TotalTimes,
    /// CPU time since the arrival, without steal time.
    cpu_ns: f64,
    threads: u32,
    /// The last count of threads, and the last check for spinning.
    counted: LastCheck,
    watched: LastCheck,
    watches: usize,
    count_pause_ns: u64,
    /// Time of the last sample, and whether the program waited for CPUs then.
    waited: (u64, bool),
    progress: Option<Progress>,
    warnings: Vec<String>,
}

/// Time of the last check of a property that changes only while the program runs.
#[derive(Debug, Clone, Copy, Default)]
struct LastCheck {
    /// Time of the last check, and the program's CPU time at that time.
    last: Option<(u64, u64)>,
}

impl LastCheck {
    /// Returns whether the next check is due and the program has run since the last check. A
    /// program at rest causes no checks.
    fn is_due(&self, at_ns: u64, cpu_ns: u64, every_ns: u64) -> bool {
        self.last.is_none_or(|(last_ns, then_ns)| {
            let passed_ns = at_ns.saturating_sub(last_ns);
            let ran = cpu_ns.saturating_sub(then_ns) >= passed_ns / REST_DIVISOR;
            passed_ns >= every_ns && ran
        })
    }
}

impl ProgramProbe {
    /// Opens a probe of the program that consists of this process tree.
    ///
    /// # Errors
    /// The program has ended, its cgroup cannot be read, or its heartbeat page is invalid.
    pub fn open(home: &ProcessTree, config: ProbeConfig) -> Result<Self, ProbeError> {
        let mut members = ProgramMembers::open(home, &config.proc_root)?;
        let heartbeat = match &config.heartbeat {
            Some(path) => Some(usher_heartbeat::Page::open(path)?),
            None => None,
        };
        let first = members.totals()?;
        let mut probe = Self {
            id: home.program,
            root: home.root,
            spin: SpinDetector::new(config.proc_root.clone()),
            config,
            members,
            heartbeat: None,
            work_before: 0,
            page_waiting_ns: 0,
            waiting_ns: 0.0,
            counters: None,
            byte_counter: None,
            bytes: None,
            bytes_at: (0, None),
            trusts_bytes: false,
            delays: None,
            demand: None,
            first,
            last: first,
            cpu_ns: 0.0,
            threads: 0,
            counted: LastCheck::default(),
            watched: LastCheck::default(),
            watches: 0,
            count_pause_ns: COUNT_NS_MIN,
            waited: (0, false),
            progress: None,
            warnings: Vec::new(),
        };
        heartbeat
            .into_iter()
            .for_each(|page| probe.use_heartbeat(page));
        Ok(probe)
    }

    /// Reads progress from this heartbeat page, counted from now on.
    pub fn use_heartbeat(&mut self, mut page: usher_heartbeat::Page) {
        let threads = page.threads().ok().flatten();
        self.page_waiting_ns = threads.map_or(0, |threads| threads.waiting_cpu_ns);
        self.work_before = page.work().unwrap_or(0);
        self.heartbeat = Some(page);
    }

    /// Uses counters that were opened at the program's launch.
    pub fn use_counters(&mut self, counters: PerfCounters) {
        self.counters = Some(counters);
    }

    /// Opens instruction counters on the running program.
    ///
    /// # Errors
    /// The reason why there are no counters; the probe then uses other sources of progress.
    pub fn count_instructions(&mut self) -> Result<(), CounterGap> {
        let processes = self.members.processes().unwrap_or_default();
        let kind = CounterKind::Instructions;
        let counters = PerfCounters::on_running(kind, &self.config.proc_root, &processes)?;
        self.counters = Some(counters);
        Ok(())
    }

    /// Counts the bytes that the program reads and writes, while no better source of progress works.
    /// `trusted`: the bytes are a source of progress.
    pub fn count_bytes(&mut self, trusted: bool) {
        self.byte_counter = Some(ByteCounter::new(&self.config.proc_root));
        self.trusts_bytes = trusted;
    }

    /// Counts the time that the program's threads wait for CPUs.
    pub fn count_delays(&mut self) {
        self.delays = Some(RunDelays::new(&self.config.proc_root));
    }

    /// Returns the last reading of CPU time and waits, at most 200 ms before the last sample;
    /// `None` if the waits are not counted.
    pub fn demand(&self) -> Option<DemandReading> {
        self.demand
    }

    /// Returns the bytes that the program had read and written at the last sample since the first
    /// sample; `None` if they were not counted.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Samples the program. `steal` is [`crate::MachineSample::steal_in_cpu_time`], the
    /// fraction of CPU time that the hypervisor took, 0..1.
    ///
    /// # Errors
    /// The program has ended and its cgroup is removed, or the cgroup cannot be read.
    pub fn sample(&mut self, at_ns: u64, steal: f64) -> Result<ProgramSample, ProbeError> {
        let now = self.members.totals()?;
        let before = std::mem::replace(&mut self.last, now);
        let used_ns = now.cpu_ns.saturating_sub(before.cpu_ns);
        let kept = 1.0 - steal.clamp(0.0, 1.0);
        self.cpu_ns += used_ns as f64 * kept;
        self.check_waiting(at_ns, before);
        self.check_threads(at_ns);
        self.progress = self.best_progress(at_ns, kept);
        self.sample_delays(at_ns);
        let wait_ns = match (now.wait_ns, self.first.wait_ns) {
            (Some(now), Some(first)) => Some(now.saturating_sub(first)),
            _ => None,
        };
        Ok(ProgramSample {
            id: self.id,
            cpu_ns: self.cpu_ns as u64,
            wait_ns,
            threads: self.threads,
            spinners: self.spin.spinners(),
            active_wait: self.spin.active_wait(),
            progress: self.progress,
            stopped: false,
        })
    }

    /// Returns whether the last process has ended.
    ///
    /// # Errors
    /// When the cgroup cannot be read.
    pub fn has_ended(&mut self) -> Result<bool, ProbeError> {
        self.members.has_ended()
    }

    /// Also tracks these processes, which have left the program's cgroup or joined the program.
    pub fn follow(&mut self, leavers: &[ProcessId]) {
        self.members.follow(leavers);
    }

    /// Returns the pid of the program's oldest living process, which is the root of the process
    /// tree while the root lives.
    pub fn oldest_process(&self) -> Option<i32> {
        let pids = self.members.processes().unwrap_or_default().into_iter();
        let living = pids.filter_map(|pid| {
            let stat = read_stat(&self.config.proc_root, pid).ok()?;
            (!stat.is_dead()).then_some((pid != self.root.pid, stat.start_ticks, pid))
        });
        living.min().map(|(.., pid)| pid)
    }

    /// Returns the CPU time that the kernel has summed up for the program, which shows at little cost
    /// whether the program has run; `None` for a program without a cgroup, or if the CPU time cannot
    /// be read.
    pub fn summed_cpu_ns(&mut self) -> Option<u64> {
        self.members.summed_cpu_ns()
    }

    /// Returns whether all processes of the program are stopped by a signal (`SIGSTOP`, `SIGTSTP`)
    /// or by a debugger.
    pub fn is_stopped(&self) -> bool {
        let pids = self.members.processes().unwrap_or_default().into_iter();
        let stats = pids.filter_map(|pid| read_stat(&self.config.proc_root, pid).ok());
        let mut living = stats.filter(|stat| !stat.is_dead()).peekable();
        let is_any = living.peek().is_some();
        is_any && living.all(|stat| matches!(stat.state, 'T' | 't'))
    }

    /// Returns the descriptor and the event to poll for the program's end. After an event, call
    /// [`ProgramProbe::has_ended`], which also arms the event again. With a cgroup, polling returns
    /// the event when the last process leaves, and on other changes of the cgroup's state. Without
    /// a cgroup, polling returns the event when the polled process ends, although other processes
    /// of the program may live.
    pub fn poll(&self) -> (BorrowedFd<'_>, PollFlags) {
        self.members.poll()
    }

    /// Returns the warnings since the last call. An invalid heartbeat page, and the reason why
    /// threads cannot be sampled for spinning, lead to one warning in the life of the probe. A
    /// failure to list the threads leads to a warning at each count of threads. After the failure
    /// of a source of progress, the probe uses the next best source.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Counts the threads if a count is due, and checks the threads for spinning if a check is due.
    fn check_threads(&mut self, at_ns: u64) {
        let (cpu_ns, every_ns) = (self.last.cpu_ns, self.config.threads_every_ns);
        let watch_pause_ns = FIRST_CHECKS_NS.get(self.watches).unwrap_or(&every_ns);
        let watch = self
            .watched
            .is_due(at_ns, cpu_ns, *watch_pause_ns.min(&every_ns));
        let pause_ns = self.count_pause_ns.min(every_ns);
        if !watch && !self.counted.is_due(at_ns, cpu_ns, pause_ns) {
            return;
        }
        let check = LastCheck {
            last: Some((at_ns, cpu_ns)),
        };
        self.counted = check;
        self.count_pause_ns = pause_ns.saturating_mul(2).max(COUNT_NS_MIN);
        let tids = match self.members.threads() {
            Ok(tids) => tids,
            Err(error) => return self.warnings.push(error.to_string()),
        };
        self.threads = u32::try_from(tids.len()).unwrap_or(u32::MAX);
        if watch {
            self.watched = check;
            self.watches += 1;
            if let Ok(pids) = self.members.processes() {
                self.spin.find_runtimes(&pids);
            }
            self.spin.check(&tids);
            self.warnings.extend(self.spin.take_warning());
        }
    }

    /// Schedules an early count of threads if the program has begun to wait for CPUs.
    fn check_waiting(&mut self, at_ns: u64, before: TotalTimes) {
        let (last_ns, did) = self.waited;
        let wait_ns = self.last.wait_ns.unwrap_or(0);
        let waited_ns = wait_ns.saturating_sub(before.wait_ns.unwrap_or(0));
        let waits = waited_ns > at_ns.saturating_sub(last_ns) / WAITING_DIVISOR;
        if waits && !did {
            self.count_pause_ns = COUNT_NS_MIN;
        }
        self.waited = (at_ns, waits);
    }

    /// The best available source of progress. The total of a source never decreases. The source
    /// changes when a program begins to report heartbeats after its first samples.
    fn best_progress(&mut self, at_ns: u64, kept: f64) -> Option<Progress> {
        self.bytes = None;
        let (total, source) = self.best_total(at_ns, kept);
        let spins = self.spin.spinners() > 0;
        Some(Progress {
            total,
            source,
            confidence: self.config.source_errors.confidence(source, spins),
        })
    }

    /// Returns the total of the best available source.
    fn best_total(&mut self, at_ns: u64, kept: f64) -> (f64, ProgressSource) {
        if let Some((total, source)) = self.heartbeat_progress(kept) {
            return (total, source);
        }
        if let Some(counters) = &mut self.counters
            && counters.kind() == CounterKind::Instructions
        {
            return (counters.read(), ProgressSource::Instructions);
        }
        self.bytes = self.sample_bytes(at_ns);
        match self.bytes.filter(|&bytes| self.trusts_bytes && bytes > 0) {
            Some(bytes) => (bytes as f64, ProgressSource::Bytes),
            None => (self.cpu_ns, ProgressSource::CpuTime),
        }
    }

    /// Returns the bytes of the program, counted at most ten times a second.
    fn sample_bytes(&mut self, at_ns: u64) -> Option<u64> {
        let counter = self.byte_counter.as_mut()?;
        let (last_ns, last) = self.bytes_at;
        if last.is_some() && at_ns < last_ns + BYTES_NS_MIN {
            return last;
        }
        let bytes = counter.sample(&self.members.processes().ok()?);
        self.bytes_at = (at_ns, bytes);
        bytes
    }

    /// Counts the waits for CPUs if a count is due.
    fn sample_delays(&mut self, at_ns: u64) {
        let last_ns = self.demand.map_or(0, |last| last.at_ns);
        let Some(delays) = self.delays.as_mut() else {
            return;
        };
        if self.demand.is_some() && at_ns < last_ns + DELAYS_NS_MIN {
            return;
        }
        // A program that is just ending has no threads; its last reading is kept.
        let tids = self.members.threads().unwrap_or_default();
        if tids.is_empty() {
            return;
        }
        let reading = |delay: RunDelay| DemandReading {
            at_ns,
            cpu_ns: self.cpu_ns as u64,
            delay_ns: delay.ns,
            is_complete: delay.is_complete,
        };
        self.demand = delays.sample(&tids).map(reading);
        if self.demand.is_none() {
            self.delays = None;
        }
    }

    /// Returns progress from the heartbeat page: units of work, or useful CPU time. `kept` is the
    /// fraction of CPU time since the last sample that was not stolen.
    fn heartbeat_progress(&mut self, kept: f64) -> Option<(f64, ProgressSource)> {
        let page = self.heartbeat.as_mut()?;
        let work = page.work();
        let work = work.map(|work| work.saturating_sub(self.work_before));
        let read = work.and_then(|work| match work {
            0 => page.threads().map(|threads| (0, threads)),
            _ => Ok((work, None)),
        });
        match read {
            Ok((0, None)) => None,
            Ok((0, Some(threads))) => {
                let before_ns =
                    std::mem::replace(&mut self.page_waiting_ns, threads.waiting_cpu_ns);
                let waited_ns = threads.waiting_cpu_ns.saturating_sub(before_ns);
                self.waiting_ns += waited_ns as f64 * kept;
                Some((self.useful_ns(), ProgressSource::Ompt))
            }
            Ok((work, _)) => Some((work as f64, ProgressSource::Heartbeat)),
            Err(error) => {
                self.heartbeat = None;
                self.warnings.push(format!(
                    "{error}; Usher ignores the heartbeat page of this program from now on"
                ));
                None
            }
        }
    }

    /// CPU time of the program minus the CPU time that its threads spent waiting. The waiting time
    /// is subtracted when a wait ends, so the difference may decrease temporarily; the maximum so
    /// far is returned.
    fn useful_ns(&self) -> f64 {
        let useful_ns = (self.cpu_ns - self.waiting_ns).max(0.0);
        match self.progress {
            Some(last) if last.source == ProgressSource::Ompt => useful_ns.max(last.total),
            _ => useful_ns,
        }
    }
}

/// Returns the identity (pid and start time) of the process with this number.
///
/// # Errors
/// There is no such process, or its files cannot be read.
pub fn process_id(
    proc_root: &std::path::Path,
    pid: i32,
) -> Result<usher_model::ProcessId, ProbeError> {
    let start_ticks = read_stat(proc_root, pid)?.start_ticks;
    Ok(usher_model::ProcessId { pid, start_ticks })
}
