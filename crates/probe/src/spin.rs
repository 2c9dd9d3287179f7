// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detection of threads that busy-wait. A program with such threads slows down disproportionately
//! on fewer cores than it has threads.
//!
//! Two signs are evaluated, for threads that use CPU time:
//!
//! * *Yielding.* `sched_yield` with another thread in the queue counts as an involuntary
//!   switch. The kernel itself preempts a thread at most once per tick, and for wake-ups.
//!   Measured on a busy machine, involuntary switches per second of CPU time: sysbench's
//!   yielding locks 300,000 to 370,000, twice as many as voluntary switches; povray 340 to 490;
//!   LAMMPS 320 to 490; pigz and the `cat` that feeds pigz 900 to 20,000, but these two block on
//!   their pipe five to fifty times as often.
//! * *Spinning in a runtime*: samples of the instruction pointer ([`crate::waits`]). Measured:
//!   two LAMMPS ranks 52 to 64 % in MPI libraries, on one core and on two shared cores; GROMACS
//!   (2 OpenMP threads) 64 % in libgomp on two shared cores and 5 to 8 % on one core, where
//!   libgomp detects the single core and sleeps early; povray none. Any polling in MPI is a
//!   sign, since MPI never stops polling. An OpenMP runtime spins a little at every barrier and
//!   then sleeps, so only a large share counts.
//!
//! *How* a runtime waits may be fixed when it starts. GNU OpenMP spins for a long time if every
//! thread has a CPU at the start, and hardly otherwise; Open MPI yields if its cpuset is too
//! small. If the affinity mask is narrowed later, such a program continues to spin as before.
//! GROMACS, 500 steps, 2 OpenMP threads: 1.2 s on two cores, 1.9 s started on one core, 47 s
//! narrowed to one core later. For a program with such a runtime, [`SpinDetector::active_wait`]
//! reports whether its threads wait there at all: x264 links GNU OpenMP but never waits in it.
//!
//! A check costs one file read per thread, one more per thread that has run, and the mappings of up
//! to eight processes ([`PROCESSES_MAX`]). One round of sampling covers at most 32 threads for one
//! interval between checks, usually a second. The second round begins 1 check after the end of the
//! first round, later rounds after 2, 4 and at most 32 checks ([`CHECKS_BETWEEN_MAX`]). If perf
//! events are forbidden, sampling ends for this program, and the reason is reported once.
//!
//! Not detected:
//!
//! * a yield without another thread in the queue;
//! * spin loops in the program's own code or in a statically linked runtime;
//! * the position of threads where perf events are forbidden.
//!
//! `spinners` is therefore a lower bound. A thread that has spun once is assumed to spin for
//! the rest of its life: a program that polls when it waits polls whenever it waits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::file;
use crate::text;
use crate::waits::{SampleCounts, WaitSampler, fixes_waiting_at_start};

/// Involuntary switches per second of CPU time above which a thread counts as yielding, unless it
/// blocks more often than it is switched involuntarily.
const YIELDS_PER_CPU_SECOND: f64 = 20_000.0;
/// Minimum CPU time of a thread between two checks, in nanoseconds; threads with less are not
/// evaluated.
const CPU_NS_MIN: u64 = 2_000_000;
/// Minimum number of samples for shares to be evaluated.
const SAMPLES_MIN: u32 = 30;
/// Minimum share of samples in an MPI library for a thread to count as polling.
const MPI_SHARE: f64 = 0.05;
/// Minimum share of samples in an OpenMP runtime for a thread to count as spinning.
const OPENMP_SHARE: f64 = 0.5;
/// Maximum number of checks between two rounds of sampling.
const CHECKS_BETWEEN_MAX: u32 = 32;
/// Minimum share of samples in a runtime for a thread to count as waiting there.
const WAIT_SHARE: f64 = 0.01;
/// Number of samples of all threads together after which a program is assumed not to wait in a
/// runtime, if no thread was found waiting there. The number is high because most programs begin
/// with a phase of one thread.
const FREE_SAMPLES: u32 = 300;
/// Maximum number of processes that are searched for runtimes at a time, newest first.
const PROCESSES_MAX: usize = 8;

/// Detects busy waiting of a program's threads.
#[derive(Debug)]
pub(crate) struct SpinDetector {
    proc_root: PathBuf,
    last: BTreeMap<i32, SwitchCounts>,
    spinners: BTreeSet<i32>,
    sampler: Option<WaitSampler>,
    /// Number of checks until the next round of sampling, and the interval of the round after that.
    checks_left: u32,
    pause: u32,
    warning: Option<String>,
    /// Whether the program has loaded a runtime that fixes its way of waiting at its start. The
    /// field `waits_in_runtime` states whether samples of threads were inside such a runtime.
    loaded: Option<bool>,
    waits_in_runtime: Option<bool>,
    samples: u32,
    /// Whether threads cannot be sampled on this machine.
    cannot_sample: bool,
}

#[derive(Debug, Clone, Copy)]
struct SwitchCounts {
    cpu_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

impl SpinDetector {
    pub(crate) fn new(proc_root: PathBuf) -> Self {
        Self {
            proc_root,
            last: BTreeMap::new(),
            spinners: BTreeSet::new(),
            sampler: None,
            checks_left: 1,
            pause: 1,
            warning: None,
            loaded: None,
            waits_in_runtime: None,
            samples: 0,
            cannot_sample: false,
        }
    }

    /// Number of living threads that have busy-waited.
    pub(crate) fn spinners(&self) -> u32 {
        u32::try_from(self.spinners.len()).unwrap_or(u32::MAX)
    }

    /// Returns whether the program waits actively in a way that was fixed at its start; `None` if
    /// unknown.
    pub(crate) fn active_wait(&self) -> Option<bool> {
        match (self.loaded, self.waits_in_runtime) {
            (_, Some(true)) => Some(true),
            (Some(true), None) if self.cannot_sample => Some(true),
            (Some(true), None) => None,
            (loaded, _) => loaded.map(|_| false),
        }
    }

    /// Searches the newest of these processes for runtimes at each check, because a process may not
    /// have loaded its runtime at the first check.
    pub(crate) fn find_runtimes(&mut self, pids: &BTreeSet<i32>) {
        if self.last.is_empty() {
            return;
        }
        let newest = pids.iter().rev().take(PROCESSES_MAX);
        let found = newest.filter_map(|&pid| fixes_waiting_at_start(&self.proc_root, pid));
        let loaded = found.reduce(|a, b| a || b);
        if loaded == Some(true) && self.loaded != Some(true) {
            self.restart_sampling();
        }
        self.loaded = loaded.or(self.loaded);
    }

    /// Discards samples that were taken before a runtime was loaded.
    fn restart_sampling(&mut self) {
        self.samples = 0;
        self.waits_in_runtime = self
            .waits_in_runtime
            .filter(|waits_in_runtime| *waits_in_runtime);
        (self.checks_left, self.pause) = (1, 1);
    }

    /// Returns the reason why threads cannot be sampled; later calls return `None`.
    pub(crate) fn take_warning(&mut self) -> Option<String> {
        self.warning.take()
    }

    /// Compares the CPU time and switches of each thread with those at the last check, usually a
    /// second ago, and reads the samples taken since.
    pub(crate) fn check(&mut self, tids: &BTreeSet<i32>) {
        let mut now = BTreeMap::new();
        let mut busy = BTreeSet::new();
        for &tid in tids {
            let Some(counts) = self.switch_counts(tid) else {
                continue;
            };
            let last = self.last.get(&tid);
            let before_ns = last.map_or(0, |last| last.cpu_ns);
            if counts.cpu_ns.saturating_sub(before_ns) >= CPU_NS_MIN {
                busy.insert(tid);
                if last.is_some_and(|last| yields(last, &counts)) {
                    self.spinners.insert(tid);
                }
            }
            now.insert(tid, counts);
        }
        self.last = now;
        self.sample(&busy);
        self.spinners.retain(|tid| tids.contains(tid));
    }

    /// Ends the round of sampling in progress, or starts a round that is due. The interval between
    /// rounds of sampling grows with each round.
    fn sample(&mut self, busy: &BTreeSet<i32>) {
        if let Some(sampler) = self.sampler.take() {
            let counts = sampler.finish(&self.proc_root);
            let spin = counts.iter().filter(|(_, counts)| spins(counts));
            self.spinners.extend(spin.map(|(&tid, _)| tid));
            self.record_waits(&counts);
            return;
        }
        self.checks_left = self.checks_left.saturating_sub(1);
        if self.cannot_sample || self.checks_left > 0 || busy.is_empty() {
            return;
        }
        (self.checks_left, self.pause) = (self.pause, (2 * self.pause).min(CHECKS_BETWEEN_MAX));
        match WaitSampler::start(busy) {
            Ok(sampler) => self.sampler = Some(sampler),
            Err(gap) => {
                let text = format!("Usher cannot detect threads that spin in MPI or OpenMP: {gap}");
                self.warning = Some(text);
                self.cannot_sample = true;
            }
        }
    }

    /// Records whether threads were sampled in a runtime that fixes its way of waiting.
    fn record_waits(&mut self, counts: &BTreeMap<i32, SampleCounts>) {
        let waits = |p: &SampleCounts| {
            p.samples >= SAMPLES_MIN && f64::from(p.fixed) >= WAIT_SHARE * f64::from(p.samples)
        };
        let samples = counts.values().map(|p| p.samples);
        self.samples = samples.fold(self.samples, u32::saturating_add);
        if self.loaded != Some(false) && counts.values().any(waits) {
            self.waits_in_runtime = Some(true);
        } else if self.samples >= FREE_SAMPLES {
            self.waits_in_runtime = self.waits_in_runtime.or(Some(false));
        }
    }

    /// Returns the thread's CPU time and switches. The kernel takes long to generate `status`, so
    /// the file is only read for threads that have run.
    fn switch_counts(&self, tid: i32) -> Option<SwitchCounts> {
        let dir = self.proc_root.join(tid.to_string());
        let sched = file::parse(&dir.join("schedstat"), "a schedstat", text::sched_stat).ok()?;
        if let Some(last) = self.last.get(&tid)
            && sched.cpu_ns == last.cpu_ns
        {
            return Some(*last);
        }
        let status = file::parse(&dir.join("status"), "a status", text::status).ok()?;
        Some(SwitchCounts {
            cpu_ns: sched.cpu_ns,
            voluntary: status.voluntary_switches,
            involuntary: status.involuntary_switches,
        })
    }
}

fn yields(last: &SwitchCounts, now: &SwitchCounts) -> bool {
    let cpu_s = now.cpu_ns.saturating_sub(last.cpu_ns) as f64 / 1e9;
    let yields = now.involuntary.saturating_sub(last.involuntary);
    let blocks = now.voluntary.saturating_sub(last.voluntary);
    cpu_s > 0.0 && yields > blocks && yields as f64 / cpu_s > YIELDS_PER_CPU_SECOND
}

fn spins(counts: &SampleCounts) -> bool {
    let share = |part: u32| f64::from(part) / f64::from(counts.samples.max(1));
    counts.samples >= SAMPLES_MIN
        && (share(counts.mpi) >= MPI_SHARE || share(counts.openmp) >= OPENMP_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yielding_is_distinguished_from_preemption() {
        let at = |cpu_ms: u64, voluntary, involuntary| SwitchCounts {
            cpu_ns: cpu_ms * 1_000_000,
            voluntary,
            involuntary,
        };
        let none = at(0, 0, 0);
        assert!(yields(&none, &at(100, 15_000, 30_000)), "sysbench threads");
        assert!(!yields(&none, &at(120, 0, 60)), "povray");
        assert!(!yields(&none, &at(50, 2400, 470)), "pigz");
        assert!(!yields(&none, &at(5, 1000, 600)), "a pipe's end");
        assert!(!yields(&at(5, 7, 9), &at(5, 7, 9)), "asleep");
    }

    #[test]
    fn polling_in_mpi_is_distinguished_from_occasional_barriers() {
        let counts = |samples, mpi, openmp| SampleCounts {
            samples,
            mpi,
            openmp,
            fixed: mpi + openmp,
        };
        assert!(spins(&counts(110, 68, 0)), "LAMMPS");
        assert!(spins(&counts(201, 0, 128)), "GROMACS on shared cores");
        assert!(!spins(&counts(155, 0, 7)), "GROMACS on one core");
        assert!(!spins(&counts(255, 0, 0)), "povray");
        assert!(!spins(&counts(10, 9, 0)), "too few samples");
    }

    #[test]
    fn a_runtime_counts_if_threads_wait_in_it_or_cannot_be_sampled() {
        let watch = |loaded, waits_in_runtime, cannot_sample| SpinDetector {
            loaded,
            waits_in_runtime,
            cannot_sample,
            ..SpinDetector::new(PathBuf::new())
        };
        let known = |loaded, waits_in_runtime| watch(loaded, waits_in_runtime, false).active_wait();
        assert_eq!(known(None, None), None, "not checked yet");
        assert_eq!(known(Some(false), None), Some(false));
        assert_eq!(known(Some(true), None), None, "not sampled yet");
        assert_eq!(known(Some(true), Some(false)), Some(false), "x264");
        assert_eq!(known(Some(true), Some(true)), Some(true));
        assert_eq!(
            known(Some(false), Some(true)),
            Some(true),
            "the runtime was unloaded"
        );
        let mut cannot_sample = watch(Some(true), None, true);
        cannot_sample.sample(&[1].into());
        cannot_sample.sample(&[1].into());
        assert_eq!(
            cannot_sample.active_wait(),
            Some(true),
            "threads cannot be sampled"
        );
    }

    #[test]
    fn samples_from_before_the_runtime_was_loaded_do_not_count() {
        let counts = |fixed| SampleCounts {
            samples: FREE_SAMPLES,
            fixed,
            ..SampleCounts::default()
        };
        let mut watch = SpinDetector {
            loaded: Some(false),
            pause: CHECKS_BETWEEN_MAX,
            checks_left: CHECKS_BETWEEN_MAX,
            ..SpinDetector::new(PathBuf::new())
        };
        watch.record_waits(&[(1, counts(0))].into());
        assert_eq!(watch.active_wait(), Some(false));
        watch.restart_sampling();
        watch.loaded = Some(true);
        assert_eq!(watch.active_wait(), None, "to be sampled at the next check");
        assert_eq!((watch.checks_left, watch.pause), (1, 1));
        watch.record_waits(&[(1, counts(FREE_SAMPLES))].into());
        assert_eq!(watch.active_wait(), Some(true));
    }

    #[test]
    fn a_thread_sampled_once_in_its_runtime_counts_permanently() {
        let counts = |samples, fixed| SampleCounts {
            samples,
            fixed,
            ..SampleCounts::default()
        };
        let mut watch = SpinDetector::new(PathBuf::new());
        watch.record_waits(&[(1, counts(10, 10))].into());
        watch.record_waits(&[(1, counts(200, 0)), (2, counts(50, 0))].into());
        assert_eq!(watch.waits_in_runtime, None, "too few samples");
        watch.record_waits(&[(1, counts(200, 0)), (2, counts(200, 1))].into());
        assert_eq!(watch.waits_in_runtime, Some(false));
        watch.record_waits(&[(1, counts(200, 0)), (2, counts(200, 9))].into());
        watch.record_waits(&[(1, counts(900, 0))].into());
        assert_eq!(watch.waits_in_runtime, Some(true));
    }
}
