// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observes the programs of the part `pinning` while they run. It reads the seats of the program
//! that pins its threads, and the CPUs on which the unpinned programs spend their CPU time.
//! Unpinned programs pin no threads, and are named `visitor-N`.
//!
//! 1. Every 100 ms the observer reads `usher status`.
//! 2. Every 10 ms the observer reads the CPU time and the present CPU of each thread of the
//!    unpinned programs. The CPU time since the previous sample is attributed to the present CPU.
//! 3. If an unpinned program had a seat in two consecutive readings of the status, its CPU time
//!    between the readings counts. It counts as inside if the CPU is in one of the two seats.
//!
//! Limit: the observer misses threads that live for less than 10 ms. The difference to the CPU time
//! that the meter counts shows the missed CPU time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;
use usher_meter::{Meter, MeterConfig};
use usher_model::{CpuSet, ProgramId};

use super::pin_watch::PinWatch;
use crate::processes::usher;

/// Prefix of the names of unpinned programs.
pub const VISITOR: &str = "visitor";
/// Interval between two readings of `usher status`.
const STATE_EVERY: Duration = Duration::from_millis(100);
const THREADS_EVERY: Duration = Duration::from_millis(10);

/// State of a program in `usher status`.
#[derive(Debug, Clone, Default)]
pub struct ProgramState {
    pub pid: i32,
    /// The program's seat; empty: no seat.
    pub seat: CpuSet,
    /// CPUs to which the program has pinned its threads, as the daemon reports.
    pub pinned_to: Option<CpuSet>,
}

/// CPU time of unpinned programs.
#[derive(Debug, Clone, Default)]
pub struct SeatTimes {
    /// CPU time while the programs had a seat, in nanoseconds.
    pub seated_ns: u64,
    /// Part of `seated_ns` on CPUs of the seat, in nanoseconds.
    pub inside_ns: u64,
    /// Total CPU time in nanoseconds: the sum of the samples, and the count of the meter.
    pub sampled_ns: u64,
    pub metered_ns: u64,
    /// Different seats that the readings contained.
    pub seats: BTreeSet<String>,
}

/// Handle of the observing thread.
#[derive(Debug)]
pub struct Observer {
    shared: Arc<Shared>,
    thread: JoinHandle<SeatTimes>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    watch: Mutex<Option<PinWatch>>,
}

impl Shared {
    fn watch(&self) -> std::sync::MutexGuard<'_, Option<PinWatch>> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer {
    /// Begins to observe the programs of the daemon with the runtime directory `runtime`.
    pub fn start(binary: &Path, runtime: &Path) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut sampler = Sampler {
            shared: shared.clone(),
            binary: binary.to_owned(),
            runtime: runtime.to_owned(),
            meter: Meter::open(&MeterConfig::default()),
            metered: BTreeMap::new(),
            metered_at: Instant::now(),
            begun: Instant::now(),
            threads: BTreeMap::new(),
            samples: Vec::new(),
            state: BTreeMap::new(),
            inside: SeatTimes::default(),
        };
        let thread = std::thread::Builder::new()
            .name("observer".to_owned())
            .spawn(move || sampler.run())?;
        Ok(Self { shared, thread })
    }

    /// Begins to watch a program that pins its threads.
    pub fn watch(&self, watch: PinWatch) {
        *self.shared.watch() = Some(watch);
    }

    /// Returns the observations of the watched program.
    pub fn take_observations(&self) -> Option<PinWatch> {
        self.shared.watch().take()
    }

    /// Ends the observation. Returns the CPU times of the unpinned programs.
    pub fn stop(self) -> SeatTimes {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// CPU time of a thread between two samples, and the CPU on which the thread was.
#[derive(Debug)]
struct Sample {
    name: String,
    used_ns: u64,
    cpu: u32,
}

#[derive(Debug)]
struct Sampler {
    shared: Arc<Shared>,
    binary: PathBuf,
    runtime: PathBuf,
    meter: Meter,
    /// CPU time that the meter counted, by the number of the program's process.
    metered: BTreeMap<i32, u64>,
    metered_at: Instant,
    begun: Instant,
    /// CPU time of each thread when it was last read.
    threads: BTreeMap<(i32, i32), u64>,
    /// Samples since the last reading of the state.
    samples: Vec<Sample>,
    /// State of the programs at the last reading of `usher status`.
    state: BTreeMap<String, ProgramState>,
    inside: SeatTimes,
}

impl Sampler {
    fn run(&mut self) -> SeatTimes {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let state = read_state(&self.binary, &self.runtime).unwrap_or_default();
            self.count(&state);
            self.meter(&state);
            self.state = state;
            if let Some(watch) = self.shared.watch().as_mut() {
                let state = self.state.get(watch.name());
                watch.observe(state);
            }
            let until = Instant::now() + STATE_EVERY;
            while Instant::now() < until {
                sleep(THREADS_EVERY);
                self.sample();
            }
        }
        self.inside.metered_ns = self.metered.values().sum();
        self.inside.clone()
    }

    fn visitors(&self) -> Vec<(String, i32)> {
        let visitors = self.state.iter();
        let visitors = visitors.filter(|(name, _)| name.starts_with(VISITOR));
        visitors
            .map(|(name, state)| (name.clone(), state.pid))
            .collect()
    }

    /// Reads the CPU times of the threads of the unpinned programs.
    fn sample(&mut self) {
        let mut threads = BTreeMap::new();
        for (name, pid) in self.visitors() {
            for tid in numbers(&format!("/proc/{pid}/task")) {
                let Some((cpu_ns, cpu)) = cpu_time(pid, tid) else {
                    continue;
                };
                threads.insert((pid, tid), cpu_ns);
                // The CPU time before the first sample belongs to no interval.
                let Some(before_ns) = self.threads.get(&(pid, tid)) else {
                    continue;
                };
                self.samples.push(Sample {
                    name: name.clone(),
                    used_ns: cpu_ns.saturating_sub(*before_ns),
                    cpu,
                });
            }
        }
        self.threads = threads;
    }

    /// Counts the CPU time of the samples since the last reading of the state as inside or outside
    /// of the seats.
    fn count(&mut self, now: &BTreeMap<String, ProgramState>) {
        for sample in std::mem::take(&mut self.samples) {
            self.inside.sampled_ns += sample.used_ns;
            let (before, after) = (self.state.get(&sample.name), now.get(&sample.name));
            let (Some(before), Some(after)) = (before, after) else {
                continue;
            };
            if before.seat.is_empty() || after.seat.is_empty() {
                continue;
            }
            self.inside.seats.insert(after.seat.to_string());
            self.inside.seated_ns += sample.used_ns;
            if before.seat.contains(sample.cpu) || after.seat.contains(sample.cpu) {
                self.inside.inside_ns += sample.used_ns;
            }
        }
    }

    /// Adds new programs to the meter, and reads the meter once a second.
    fn meter(&mut self, now: &BTreeMap<String, ProgramState>) {
        let visitors = now.iter().filter(|(name, _)| name.starts_with(VISITOR));
        for (_, visitor) in visitors {
            let id = ProgramId(u64::from(visitor.pid.unsigned_abs()));
            let root = usher_probe::process_id("/proc".as_ref(), visitor.pid);
            if let (false, Ok(root)) = (self.metered.contains_key(&visitor.pid), root)
                && self.meter.manage(id, None, root).is_ok()
            {
                self.metered.insert(visitor.pid, 0);
            }
        }
        if self.metered_at.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.metered_at = Instant::now();
        let at_ns = self.begun.elapsed().as_nanos() as u64;
        let counted = self.meter.sample(at_ns, true).background;
        for (id, usage) in counted {
            let pid = id.0 as i32;
            self.metered.insert(pid, usage.cpu_ns);
            let is_alive = now.values().any(|state| state.pid == pid);
            if !is_alive {
                self.meter.forget(id);
            }
        }
    }
}

/// The programs that the daemon manages, by name.
fn read_state(binary: &Path, runtime: &Path) -> Option<BTreeMap<String, ProgramState>> {
    let mut command = usher(binary, runtime);
    let output = command.args(["status", "--json"]).output().ok()?;
    let state: Value = serde_json::from_slice(&output.stdout).ok()?;
    let programs = state["programs"].as_array()?.iter();
    let states = programs.filter_map(|program| {
        let list = |key: &str| program[key].as_str()?.parse::<CpuSet>().ok();
        let state = ProgramState {
            pid: i32::try_from(program["pid"].as_i64()?).ok()?,
            seat: list("cpus").unwrap_or_default(),
            pinned_to: list("pinned_to"),
        };
        Some((program["name"].as_str()?.to_owned(), state))
    });
    Some(states.collect())
}

/// Returns the names of a directory's entries that are numbers.
pub fn numbers(dir: &str) -> Vec<i32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(number).collect()
}

/// CPU time of a thread in nanoseconds, and the CPU on which the thread last ran.
fn cpu_time(pid: i32, tid: i32) -> Option<(u64, u32)> {
    let dir = format!("/proc/{pid}/task/{tid}");
    let stat = std::fs::read_to_string(format!("{dir}/stat")).ok()?;
    // The CPU is field 39 of the file. The first two fields end with the last parenthesis.
    let cpu = stat.rsplit_once(") ")?.1.split(' ').nth(36)?;
    let times = std::fs::read_to_string(format!("{dir}/schedstat")).ok()?;
    let cpu_ns = times.split(' ').next()?;
    Some((cpu_ns.parse().ok()?, cpu.parse().ok()?))
}
