// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that busy-wait: on fewer cores than there are of them, such a
//! program collapses.
//!
//! Two signs are looked for, in threads that use CPU time at all:
//!
//! * *Yielding.* `sched_yield` with somebody else in the queue counts as an
//!   involuntary switch. The kernel itself takes the CPU away at most once a
//!   tick, and for wake-ups. Measured on a busy machine, switches a second of
//!   CPU time: sysbench's yielding locks 300,000 to 370,000, twice as many as
//!   voluntary ones; povray 340 to 490; LAMMPS 320 to 490; pigz and the `cat`
//!   that feeds it 900 to 20,000, but they block on their pipe five to fifty
//!   times as often.
//! * *Spinning in a runtime*: samples of where the thread is ([`crate::waits`]).
//!   Measured: two LAMMPS ranks 52 to 64 % in MPI libraries, on one core and on
//!   two shared with others; GROMACS (2 OpenMP threads) 64 % in libgomp on
//!   two shared cores and 5 to 8 % on one, where libgomp knows that it has one
//!   core and sleeps early; povray none. Any polling in MPI is a sign, since it
//!   never gives up; an OpenMP runtime spins a little at every barrier and then
//!   sleeps, so that only a large share counts.
//!
//! *How* a runtime waits may be settled for good when it starts: GNU OpenMP
//! spins long where it has a CPU for every thread then, and hardly where it has
//! not; Open MPI yields where its cpuset is too small. Narrowed later, such a
//! program goes on spinning as before. GROMACS, 500 steps, 2 OpenMP threads: 1.2 s
//! on two cores, 1.9 s started on one, 47 s squeezed onto one. So for a program
//! with such a runtime it is found out whether its threads wait there at all
//! ([`SpinWatch::active_wait`]): x264 links GNU OpenMP and never does.
//!
//! What cannot be seen: a yield with nobody else in the queue, spin loops in the
//! program's own code or in a runtime linked statically, anything at all about
//! where a thread is where perf events are forbidden. `spinners` is therefore
//! a lower bound. A thread once seen to spin is taken to go on to as long as it
//! lives: a program that polls when it waits polls whenever it waits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::file;
use crate::text;
use crate::waits::{Places, WaitSampler, settles_at_start};

/// Involuntary switches a second of CPU time from which a thread yields, if it
/// blocks less often than that.
const YIELDS_PER_CPU_SECOND: f64 = 20_000.0;
/// CPU time between two looks below which a thread says nothing.
const LEAST_CPU_NS: u64 = 2_000_000;
/// Samples below which shares say nothing.
const LEAST_SAMPLES: u32 = 30;
/// Share of samples in an MPI library from which a thread polls.
const MPI_SHARE: f64 = 0.05;
/// Share of samples in an OpenMP runtime from which a thread spins.
const OPENMP_SHARE: f64 = 0.5;
/// Looks between two rounds of sampling, at most.
const MOST_LOOKS_BETWEEN: u32 = 32;
/// Share of samples in a runtime from which a thread waits there.
const WAIT_SHARE: f64 = 0.01;
/// Samples of a program without any in a runtime after which it is taken not
/// to wait there: most begin with work for one thread.
const FREE_SAMPLES: u32 = 300;
/// Processes whose runtimes are looked for at a time, the newest first.
const AT_MOST_PROCESSES: usize = 8;

/// Watches a program's threads for busy waiting.
#[derive(Debug)]
pub(crate) struct SpinWatch {
    proc_root: PathBuf,
    last: BTreeMap<i32, Turns>,
    spinners: BTreeSet<i32>,
    sampler: Option<WaitSampler>,
    /// Looks until the next round of sampling, and the pause after that.
    looks_to_go: u32,
    pause: u32,
    warning: Option<String>,
    /// Whether a runtime is loaded that settles at its start how to wait, and
    /// whether threads were met waiting in it.
    loaded: Option<bool>,
    met: Option<bool>,
    samples: u32,
    /// Threads cannot be sampled here.
    blind: bool,
}

#[derive(Debug, Clone, Copy)]
struct Turns {
    cpu_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

impl SpinWatch {
    pub(crate) fn new(proc_root: PathBuf) -> Self {
        Self {
            proc_root,
            last: BTreeMap::new(),
            spinners: BTreeSet::new(),
            sampler: None,
            looks_to_go: 1,
            pause: 1,
            warning: None,
            loaded: None,
            met: None,
            samples: 0,
            blind: false,
        }
    }

    /// Threads seen to busy-wait that still live.
    pub(crate) fn spinners(&self) -> u32 {
        u32::try_from(self.spinners.len()).unwrap_or(u32::MAX)
    }

    /// Whether the program waits actively in a way that it settled at its
    /// start; `None` while that is not known.
    pub(crate) fn active_wait(&self) -> Option<bool> {
        match (self.loaded, self.met) {
            (_, Some(true)) => Some(true),
            (Some(true), None) if self.blind => Some(true),
            (Some(true), None) => None,
            (loaded, _) => loaded.map(|_| false),
        }
    }

    /// Looks for runtimes in the newest of these processes. At the first look
    /// they may not have loaded any yet.
    pub(crate) fn look_for_runtimes(&mut self, pids: &BTreeSet<i32>) {
        if self.last.is_empty() {
            return;
        }
        let newest = pids.iter().rev().take(AT_MOST_PROCESSES);
        let found = newest.filter_map(|&pid| settles_at_start(&self.proc_root, pid));
        let loaded = found.reduce(|a, b| a || b);
        if loaded == Some(true) && self.loaded != Some(true) {
            self.begin_again();
        }
        self.loaded = loaded.or(self.loaded);
    }

    /// What was sampled before there was a runtime to be met in says nothing.
    fn begin_again(&mut self) {
        self.samples = 0;
        self.met = self.met.filter(|met| *met);
        (self.looks_to_go, self.pause) = (1, 1);
    }

    /// Why threads cannot be sampled, told once.
    pub(crate) fn take_warning(&mut self) -> Option<String> {
        self.warning.take()
    }

    /// Compares each thread with how it was at the last look, a second or so
    /// ago, and reads the samples taken since.
    pub(crate) fn look(&mut self, tids: &BTreeSet<i32>) {
        let mut now = BTreeMap::new();
        let mut busy = BTreeSet::new();
        for &tid in tids {
            let Some(turns) = self.turns(tid) else {
                continue;
            };
            let last = self.last.get(&tid);
            let before_ns = last.map_or(0, |last| last.cpu_ns);
            if turns.cpu_ns.saturating_sub(before_ns) >= LEAST_CPU_NS {
                busy.insert(tid);
                if last.is_some_and(|last| yields(last, &turns)) {
                    self.spinners.insert(tid);
                }
            }
            now.insert(tid, turns);
        }
        self.last = now;
        self.sample(&busy);
        self.spinners.retain(|tid| tids.contains(tid));
    }

    /// Ends a round of sampling, or begins one when it is time: at first often,
    /// then ever more rarely.
    fn sample(&mut self, busy: &BTreeSet<i32>) {
        if let Some(sampler) = self.sampler.take() {
            let places = sampler.finish(&self.proc_root);
            let spin = places.iter().filter(|(_, places)| spins(places));
            self.spinners.extend(spin.map(|(&tid, _)| tid));
            self.meet(&places);
            return;
        }
        self.looks_to_go = self.looks_to_go.saturating_sub(1);
        if self.blind || self.looks_to_go > 0 || busy.is_empty() {
            return;
        }
        (self.looks_to_go, self.pause) = (self.pause, (2 * self.pause).min(MOST_LOOKS_BETWEEN));
        match WaitSampler::start(busy) {
            Ok(sampler) => self.sampler = Some(sampler),
            Err(gap) => {
                let told = format!("threads that spin in MPI or OpenMP cannot be seen: {gap}");
                self.warning = Some(told);
                self.blind = true;
            }
        }
    }

    /// Notes whether threads were met in a runtime that settled how to wait.
    fn meet(&mut self, places: &BTreeMap<i32, Places>) {
        let waits = |p: &Places| {
            p.samples >= LEAST_SAMPLES && f64::from(p.settled) >= WAIT_SHARE * f64::from(p.samples)
        };
        let samples = places.values().map(|p| p.samples);
        self.samples = samples.fold(self.samples, u32::saturating_add);
        if self.loaded != Some(false) && places.values().any(waits) {
            self.met = Some(true);
        } else if self.samples >= FREE_SAMPLES {
            self.met = self.met.or(Some(false));
        }
    }

    /// The thread's CPU time and switches. `status` is long to write for the
    /// kernel and is read only of threads that ran.
    fn turns(&self, tid: i32) -> Option<Turns> {
        let dir = self.proc_root.join(tid.to_string());
        let sched = file::parse(&dir.join("schedstat"), "a schedstat", text::sched_stat).ok()?;
        if let Some(last) = self.last.get(&tid)
            && sched.cpu_ns == last.cpu_ns
        {
            return Some(*last);
        }
        let status = file::parse(&dir.join("status"), "a status", text::status).ok()?;
        Some(Turns {
            cpu_ns: sched.cpu_ns,
            voluntary: status.voluntary_switches,
            involuntary: status.involuntary_switches,
        })
    }
}

fn yields(last: &Turns, now: &Turns) -> bool {
    let cpu_s = now.cpu_ns.saturating_sub(last.cpu_ns) as f64 / 1e9;
    let yields = now.involuntary.saturating_sub(last.involuntary);
    let blocks = now.voluntary.saturating_sub(last.voluntary);
    cpu_s > 0.0 && yields > blocks && yields as f64 / cpu_s > YIELDS_PER_CPU_SECOND
}

fn spins(places: &Places) -> bool {
    let share = |part: u32| f64::from(part) / f64::from(places.samples.max(1));
    places.samples >= LEAST_SAMPLES
        && (share(places.mpi) >= MPI_SHARE || share(places.openmp) >= OPENMP_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yielding_is_told_from_being_preempted() {
        let at = |cpu_ms: u64, voluntary, involuntary| Turns {
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
    fn polling_in_mpi_is_told_from_a_barrier_now_and_then() {
        let places = |samples, mpi, openmp| Places {
            samples,
            mpi,
            openmp,
            settled: mpi + openmp,
        };
        assert!(spins(&places(110, 68, 0)), "LAMMPS");
        assert!(spins(&places(201, 0, 128)), "GROMACS on shared cores");
        assert!(!spins(&places(155, 0, 7)), "GROMACS on one core");
        assert!(!spins(&places(255, 0, 0)), "povray");
        assert!(!spins(&places(10, 9, 0)), "too few samples");
    }

    #[test]
    fn a_runtime_counts_when_threads_wait_in_it_or_nobody_can_tell() {
        let watch = |loaded, met, blind| SpinWatch {
            loaded,
            met,
            blind,
            ..SpinWatch::new(PathBuf::new())
        };
        let known = |loaded, met| watch(loaded, met, false).active_wait();
        assert_eq!(known(None, None), None, "not looked yet");
        assert_eq!(known(Some(false), None), Some(false));
        assert_eq!(known(Some(true), None), None, "not sampled yet");
        assert_eq!(known(Some(true), Some(false)), Some(false), "x264");
        assert_eq!(known(Some(true), Some(true)), Some(true));
        assert_eq!(known(Some(false), Some(true)), Some(true), "it has gone");
        let mut blind = watch(Some(true), None, true);
        blind.sample(&[1].into());
        blind.sample(&[1].into());
        assert_eq!(blind.active_wait(), Some(true), "no samples to be had");
    }

    #[test]
    fn samples_from_before_the_runtime_was_loaded_do_not_count() {
        let places = |settled| Places {
            samples: FREE_SAMPLES,
            settled,
            ..Places::default()
        };
        let mut watch = SpinWatch {
            loaded: Some(false),
            pause: MOST_LOOKS_BETWEEN,
            looks_to_go: MOST_LOOKS_BETWEEN,
            ..SpinWatch::new(PathBuf::new())
        };
        watch.meet(&[(1, places(0))].into());
        assert_eq!(watch.active_wait(), Some(false));
        watch.begin_again();
        watch.loaded = Some(true);
        assert_eq!(watch.active_wait(), None, "to be sampled at the next look");
        assert_eq!((watch.looks_to_go, watch.pause), (1, 1));
        watch.meet(&[(1, places(FREE_SAMPLES))].into());
        assert_eq!(watch.active_wait(), Some(true));
    }

    #[test]
    fn a_thread_met_once_in_its_runtime_counts_for_good() {
        let places = |samples, settled| Places {
            samples,
            settled,
            ..Places::default()
        };
        let mut watch = SpinWatch::new(PathBuf::new());
        watch.meet(&[(1, places(10, 10))].into());
        watch.meet(&[(1, places(200, 0)), (2, places(50, 0))].into());
        assert_eq!(watch.met, None, "too few samples");
        watch.meet(&[(1, places(200, 0)), (2, places(200, 1))].into());
        assert_eq!(watch.met, Some(false));
        watch.meet(&[(1, places(200, 0)), (2, places(200, 9))].into());
        watch.meet(&[(1, places(900, 0))].into());
        assert_eq!(watch.met, Some(true));
    }
}
