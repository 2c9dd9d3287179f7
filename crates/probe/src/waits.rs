// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples in which code threads use CPU time: in the program's own code, or in a runtime (MPI,
//! OpenMP) that waits.
//!
//! A thread that spins in user space and a thread that computes have the same values in all
//! counters of the kernel: no system call, and no context switch except at the timer tick. The two
//! threads differ only in the code that they execute.
//!
//! 1. [`WaitSampler::start`] opens the software task clock, which every machine has, for at most 32
//!    threads ([`THREADS_MAX`]). The event samples the thread's instruction pointer four hundred
//!    times per second of CPU time.
//! 2. The caller ends the round at its next check, usually after a second.
//! 3. [`WaitSampler::finish`] reads the samples, and the mappings of each thread's process. An
//!    address inside the library of an MPI or OpenMP runtime counts as a wait, since these
//!    libraries do no computation of their own.
//!
//! Bounds: each sampled thread needs one descriptor and a buffer of 8 KiB, which holds at most 512
//! samples; further samples are lost. Ended threads, and threads with unreadable mappings, are left
//! out. Any other error ends the round before it begins.
//!
//! Not detected: statically linked runtimes, spin loops of the program itself, and processes that
//! this user may not trace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};

use crate::counters::{CounterGap, CounterKind};
use crate::file;
use crate::process::live_dir;

/// CPU time of a thread between two samples, in nanoseconds.
const PERIOD_NS: u64 = 2_500_000;
/// Size of a ring buffer: 512 samples, more than one second needs.
const BUFFER_BYTES: usize = 8192;
/// Maximum number of threads sampled at a time; they represent the whole program.
const THREADS_MAX: usize = 32;

/// Name of the MPI library of any implementation.
const MPI_ITSELF: &str = "libmpi";
/// MPI libraries and their transports, which poll until a message arrives.
const MPI: [&str; 11] = [
    "libfabric",
    MPI_ITSELF,
    "libopen-pal",
    "libopen-rte",
    "libpmix",
    "libpsm2",
    "libucm",
    "libucp",
    "libucs",
    "libuct",
    "mca_",
];
/// OpenMP runtimes, which spin for a while and then sleep unless configured otherwise.
const OPENMP: [&str; 3] = ["libgomp", "libiomp5", "libomp"];

/// The OpenMP runtime that determines at its start, by the number of CPUs found, how long it spins
/// before it sleeps. It does not yield while it spins; LLVM's and Intel's runtimes yield.
const GNU_OPENMP: &str = "libgomp";

/// The number of a thread's samples by location.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SampleCounts {
    /// All samples in user space.
    pub samples: u32,
    /// Samples in an MPI library.
    pub mpi: u32,
    /// Samples in an OpenMP runtime.
    pub openmp: u32,
    /// Samples in a runtime that fixes its way of waiting at its start.
    pub fixed: u32,
}

/// Sampling in progress.
pub(crate) struct WaitSampler {
    samplers: BTreeMap<i32, Sampler>,
}

impl std::fmt::Debug for WaitSampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tids = self.samplers.keys();
        f.debug_list().entries(tids).finish()
    }
}

impl WaitSampler {
    /// Starts to sample these threads, without threads that have ended.
    pub(crate) fn start(tids: &BTreeSet<i32>) -> Result<Self, CounterGap> {
        let mut samplers = BTreeMap::new();
        for &tid in tids.iter().take(THREADS_MAX) {
            match sampler(tid) {
                Ok(sampler) => drop(samplers.insert(tid, sampler)),
                Err(CounterGap::Gone { .. }) => {}
                Err(gap) => return Err(gap),
            }
        }
        Ok(Self { samplers })
    }

    /// Ends the sampling and returns for each thread the number of samples by location.
    pub(crate) fn finish(self, proc_root: &Path) -> BTreeMap<i32, SampleCounts> {
        let counts = |(tid, mut sampler): (i32, Sampler)| {
            let maps = proc_root.join(tid.to_string()).join("maps");
            let maps = ExecutableMaps::parse(&file::read(&maps).ok()?);
            let mut counts = SampleCounts::default();
            while let Some(ip) = next_ip(&mut sampler) {
                counts.count(maps.library(ip));
            }
            Some((tid, counts))
        };
        self.samplers.into_iter().filter_map(counts).collect()
    }
}

impl SampleCounts {
    fn count(&mut self, library: Option<&str>) {
        let begins = |with: &[&str]| {
            library.is_some_and(|name| with.iter().any(|prefix| name.starts_with(prefix)))
        };
        self.samples += 1;
        self.mpi += u32::from(begins(&MPI));
        self.openmp += u32::from(begins(&OPENMP));
        self.fixed += u32::from(begins(&[MPI_ITSELF, GNU_OPENMP]));
    }
}

/// Returns whether a process has loaded a runtime that determines at its start, by the number of
/// CPUs found, how its threads wait; `None` if the mappings cannot be read. GNU OpenMP with
/// `OMP_WAIT_POLICY=passive` in the environment does not count as such a runtime.
pub(crate) fn fixes_waiting_at_start(proc_root: &Path, pid: i32) -> Option<bool> {
    let dir = live_dir(proc_root, pid);
    let maps = ExecutableMaps::parse(&file::read(&dir.join("maps")).ok()?);
    let loaded = |prefix: &&str| {
        maps.by_start
            .values()
            .any(|(_, name)| name.starts_with(prefix))
    };
    let passive = || {
        let environment = file::read(&dir.join("environ")).unwrap_or_default();
        let is_passive = |entry: &str| entry.eq_ignore_ascii_case("OMP_WAIT_POLICY=passive");
        environment.split('\0').any(is_passive)
    };
    // Only the MPI library itself counts: other programs use its transports too.
    Some(loaded(&MPI_ITSELF) || loaded(&GNU_OPENMP) && !passive())
}

fn sampler(tid: i32) -> Result<Sampler, CounterGap> {
    let gap = |source| CounterGap::from(CounterKind::TaskClock, tid, source);
    let counter = Builder::new(Software::TASK_CLOCK)
        .observe_pid(tid)
        .any_cpu()
        .sample(SampleFlag::IP)
        .sample_period(PERIOD_NS)
        .enabled(true)
        .build()
        .map_err(gap)?;
    counter.sampled(BUFFER_BYTES).map_err(gap)
}

/// The next sampled address; records of other kinds are skipped.
fn next_ip(sampler: &mut Sampler) -> Option<u64> {
    loop {
        let record = sampler.next_record()?;
        if let Ok(perf_event::data::Record::Sample(sample)) = record.parse_record() {
            return sample.ip();
        }
    }
}

/// The executable mappings of a process: end address and file name, by start address.
#[derive(Debug, Default)]
struct ExecutableMaps {
    by_start: BTreeMap<u64, (u64, String)>,
}

impl ExecutableMaps {
    /// Parses `/proc/PID/maps`. A line has the form `start-end perms offset dev inode path`.
    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let mut fields = line.split_ascii_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            if !fields.next()?.contains('x') {
                return None;
            }
            let path = fields.nth(3).unwrap_or_default();
            let name = path.rsplit('/').next().unwrap_or_default();
            let hex = |digits| u64::from_str_radix(digits, 16).ok();
            Some((hex(start)?, (hex(end)?, name.to_owned())))
        };
        Self {
            by_start: text.lines().filter_map(line).collect(),
        }
    }

    /// The file name of the mapping that contains an address.
    fn library(&self, address: u64) -> Option<&str> {
        let (_, (end, name)) = self.by_start.range(..=address).next_back()?;
        (address < *end).then_some(name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAPS: &str = "\
        1000-2000 r-xp 00000000 08:01 12 /usr/bin/lmp\n\
        2000-3000 r--p 00000000 08:01 12 /usr/bin/lmp\n\
        7000-9000 r-xp 00000000 08:01 13 /usr/lib/libopen-pal.so.40.30.2\n\
        a000-b000 r-xp 00000000 08:01 14 /usr/lib/libgomp.so.1.0.0\n\
        c000-d000 r-xp 00000000 00:00 0\n";

    #[test]
    fn samples_are_counted_by_library() {
        let maps = ExecutableMaps::parse(MAPS);
        let mut counts = SampleCounts::default();
        for ip in [
            0x0fff, 0x1000, 0x1fff, 0x2000, 0x7000, 0x8fff, 0x9000, 0xa010, 0xc000,
        ] {
            counts.count(maps.library(ip));
        }
        let expected = SampleCounts {
            samples: 9,
            mpi: 2,
            openmp: 1,
            fixed: 1,
        };
        assert_eq!(counts, expected);
    }

    proptest! {
        #[test]
        fn no_maps_make_the_parser_panic(text in "([0-9a-f]{0,20}-?[ r-xp0-9a-f:/]{0,20}\n?){0,8}", ip: u64) {
            let _ = ExecutableMaps::parse(&text).library(ip);
        }
    }
}
