// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the CPU time that is idle although threads wait, under any scheduler, by the BPF programs
//! of `bpf/conservation.bpf.c`. That file has the definitions and the limits.

use std::fmt;
use std::thread;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use rustix::thread::{CpuSet as Affinity, sched_getaffinity, sched_setaffinity};

/// The compiled programs, with the alignment that the ELF reader requires.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
    env!("OUT_DIR"),
    "/conservation.bpf.o"
)));
/// Section of the variable with the number of CPUs.
const ALL_CPUS: &str = ".rodata.all_cpus";
const TOTALS: &str = "totals";
const CPU_STATES: &str = "cpu_states";
/// Number of 64-bit words of `struct totals`.
const WORDS: usize = 8;
/// The program for requests to reschedule, and the programs that replace it on kernels without its
/// trace point.
const RESCHEDULES: [&str; 1] = ["on_need_resched"];
const INTERRUPTS: [&str; 2] = ["on_interrupt", "on_wake_idle"];

/// Totals of all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IdleTotals {
    /// Idle CPU time although threads waited.
    pub unserved_ns: u64,
    /// Idle CPU time.
    pub idle_ns: u64,
    /// Longest time without interruption in which a CPU was idle although a thread waited.
    pub longest_ns: u64,
    /// Number of such times.
    pub episodes: u64,
}

/// The loaded programs. They count between [`Self::start`] and the end of its result.
pub struct ConservationCounter {
    object: Object,
    totals: MapHandle,
    cpu_states: MapHandle,
    /// Number of the last measurement.
    measurement: u64,
}

impl fmt::Debug for ConservationCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConservationCounter")
            .finish_non_exhaustive()
    }
}

/// A measurement, which ends when the value is dropped.
pub struct ConservationRun<'a> {
    _links: Vec<Link>,
    totals: &'a MapHandle,
}

impl ConservationCounter {
    /// Loads the programs.
    ///
    /// # Errors
    /// The kernel rejects the programs.
    pub fn load(cpus: usize) -> Result<Self> {
        let object = match load(cpus, &RESCHEDULES) {
            Ok(object) => object,
            Err(_) => load(cpus, &INTERRUPTS)?,
        };
        let map = |name: &str| -> Result<MapHandle> {
            let map = object.maps().find(|map| map.name() == name);
            let map = map.with_context(|| format!("the programs have no map {name}"))?;
            MapHandle::try_from(&map).with_context(|| format!("opening the map {name}"))
        };
        Ok(Self {
            totals: map(TOTALS)?,
            cpu_states: map(CPU_STATES)?,
            object,
            measurement: 0,
        })
    }

    /// Starts a measurement with totals of 0, and makes each CPU switch threads once.
    ///
    /// # Errors
    /// A program cannot be attached.
    pub fn start(&mut self) -> Result<ConservationRun<'_>> {
        self.measurement += 1;
        let mut words = [0; WORDS];
        words[WORDS - 1] = self.measurement;
        let zeroed: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        let zero = self
            .totals
            .update(&0_u32.to_ne_bytes(), &zeroed, MapFlags::ANY);
        zero.context("writing the totals")?;
        for cpu in self.cpu_states.keys() {
            let zero = self.cpu_states.update(&cpu, &[0; 4], MapFlags::ANY);
            zero.context("writing the states of the CPUs")?;
        }
        let mut links = Vec::new();
        for program in self.object.progs_mut().filter(|program| program.autoload()) {
            let name = program.name().to_string_lossy().into_owned();
            let link = program.attach();
            links.push(link.with_context(|| format!("attaching the program {name}"))?);
        }
        visit_all_cpus();
        Ok(ConservationRun {
            _links: links,
            totals: &self.totals,
        })
    }
}

impl ConservationRun<'_> {
    /// Returns the totals since the start.
    pub fn read(&self) -> Result<IdleTotals> {
        let value = self.totals.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.context("reading the totals")?;
        // The clock of bpf_ktime_get_ns().
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        totals_of(&value.context("the map of totals is empty")?, now_ns)
    }
}

fn load(cpus: usize, optional: &[&str]) -> Result<Object> {
    let open = ObjectBuilder::default().open_memory(&OBJECT.0);
    let mut open = open.context("reading the programs that count idle time")?;
    let mut map = open.maps_mut().find(|map| map.name() == ALL_CPUS);
    let value = map.as_mut().and_then(|map| map.initial_value_mut());
    let value = value.context("the programs have no variable with the number of CPUs")?;
    value.copy_from_slice(&u32::try_from(cpus)?.to_ne_bytes());
    for mut program in open.progs_mut() {
        if optional.iter().any(|name| program.name() == *name) {
            program.set_autoload(true);
        }
    }
    open.load()
        .context("loading the programs that count idle time")
}

/// Converts the bytes of `struct totals`. The longest time includes an episode that has not ended at
/// `now_ns`.
fn totals_of(bytes: &[u8], now_ns: u64) -> Result<IdleTotals> {
    let words = bytes.chunks_exact(8).map(|chunk| {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    let words: Vec<u64> = words.collect();
    ensure!(words.len() == WORDS, "the totals have an unexpected size");
    let open_ns = match words[4] {
        0 => 0,
        begun_ns => now_ns.saturating_sub(begun_ns),
    };
    Ok(IdleTotals {
        unserved_ns: words[2],
        idle_ns: words[3],
        longest_ns: words[5].max(open_ns),
        episodes: words[6] + u64::from(open_ns > 0),
    })
}

/// Runs a thread on each CPU in turn, so that the state of each CPU is known.
fn visit_all_cpus() {
    let visit = || {
        let Ok(all) = sched_getaffinity(None) else {
            return;
        };
        for cpu in (0..Affinity::MAX_CPU).filter(|&cpu| all.is_set(cpu)) {
            let mut only = Affinity::new();
            only.set(cpu);
            // A CPU that cannot be visited counts as busy.
            let _ = sched_setaffinity(None, &only);
        }
    };
    thread::scope(|scope| {
        scope.spawn(visit);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_totals_are_read_in_their_order() {
        let bytes: Vec<u8> = (1..=8_u64).flat_map(u64::to_ne_bytes).collect();
        let totals = totals_of(&bytes, 0).unwrap();
        let IdleTotals {
            unserved_ns,
            idle_ns,
            longest_ns,
            episodes,
        } = totals;
        assert_eq!((unserved_ns, idle_ns, longest_ns, episodes), (3, 4, 6, 7));
        assert!(totals_of(&bytes[..56], 0).is_err());
    }

    /// An episode that began at 5 ns has not ended at 30 ns.
    #[test]
    fn open_episode_counts_until_the_reading() {
        let bytes: Vec<u8> = (1..=8_u64).flat_map(u64::to_ne_bytes).collect();
        let totals = totals_of(&bytes, 30).unwrap();
        let IdleTotals {
            unserved_ns,
            longest_ns,
            episodes,
            ..
        } = totals;
        assert_eq!((unserved_ns, longest_ns, episodes), (3, 25, 8));
    }

    #[test]
    fn the_object_has_the_optional_programs() {
        let mut open = ObjectBuilder::default().open_memory(&OBJECT.0).unwrap();
        let names: Vec<String> = open
            .progs_mut()
            .map(|program| program.name().to_string_lossy().into_owned())
            .collect();
        for name in RESCHEDULES.iter().chain(&INTERRUPTS) {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
        assert!(open.maps_mut().any(|map| map.name() == ALL_CPUS));
    }
}
