// SPDX-License-Identifier: GPL-2.0-only
//! Counters of any scheduler's activity, taken at the kernel's trace points: switches, migrations,
//! wake-up latencies, and the time in which two threads share a core.
//!
//! `bpf/count.bpf.c` defines the events, and counts them per CPU in constant time per event.
//! [`Counter::start`] begins to count, and makes each CPU switch threads once. It requires root,
//! and CPU numbers below [`CPUS_MAX`](crate::CPUS_MAX). [`Counter::read`] sums up the counts of all
//! CPUs. [`Counted::since`] returns the difference of two readings.
//!
//! A start waits until a thread has run on each allowed CPU; the wait has no limit of its own. A
//! reading takes time in proportion to the CPUs. Totals have 64 bits and are not reset. Errors: a
//! CPU number from [`CPUS_MAX`](crate::CPUS_MAX) on, programs that the kernel rejects, a map that
//! cannot be read; nothing is retried.

use std::fmt;

use libbpf_rs::{Link, MapHandle, Object};
use rustix::thread::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};
use schemars::JsonSchema;
use serde::Serialize;
use usher_model::{CpuSet, Topology};
use usher_rules::latency::{SLOTS, below};

use crate::ScxError;
use crate::layout::words;
use crate::machine;
use crate::object;

const COUNTS_BYTES: usize = 8 * (8 + SLOTS);
const SHARING_BYTES: usize = 32;

/// Counts, summed over all CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counted {
    /// Context switches, including those to idle.
    pub switches: u64,
    /// Switches to a user thread after a thread of another address space on the same CPU.
    pub space_switches: u64,
    /// As `space_switches`, but a switch to a user thread also counts if a kernel thread ran just
    /// before.
    pub mm_changes: u64,
    /// Migrations to another hardware thread of the same core.
    pub migrations_core: u64,
    /// Migrations to another core of the same LLC.
    pub migrations_llc: u64,
    /// Migrations to another LLC of the same NUMA node.
    pub migrations_node: u64,
    /// Migrations to another NUMA node.
    pub migrations_far: u64,
    /// Wake-ups with a measured latency.
    pub wakeups: u64,
    /// Histogram of the latencies of these wake-ups in nanoseconds, with four slots per power of
    /// two. Slot 4n + q covers (4 + q) 2^n / 4 to (5 + q) 2^n / 4.
    #[serde(serialize_with = "crate::layout::without_last_zeros")]
    pub latency: Vec<u64>,
    /// Time in which at least one core ran two threads.
    pub shared_ns: u64,
    /// Part of `shared_ns` in which another core was idle.
    pub needless_ns: u64,
}

impl Counted {
    /// Converts the 64-bit words of `struct counts`, and the two durations of `struct sharing`.
    fn of(sums: &[u64; 8 + SLOTS], [shared_ns, needless_ns]: [u64; 2]) -> Self {
        Self {
            switches: sums[0],
            space_switches: sums[1],
            mm_changes: sums[2],
            migrations_core: sums[3],
            migrations_llc: sums[4],
            migrations_node: sums[5],
            migrations_far: sums[6],
            wakeups: sums[7],
            latency: sums[8..].to_vec(),
            shared_ns,
            needless_ns,
        }
    }

    /// Returns the difference to an earlier reading of the same counter. A later reading as
    /// `before` may overflow.
    pub fn since(&self, before: &Self) -> Self {
        let latency = self.latency.iter().zip(&before.latency);
        Self {
            switches: self.switches - before.switches,
            space_switches: self.space_switches - before.space_switches,
            mm_changes: self.mm_changes - before.mm_changes,
            migrations_core: self.migrations_core - before.migrations_core,
            migrations_llc: self.migrations_llc - before.migrations_llc,
            migrations_node: self.migrations_node - before.migrations_node,
            migrations_far: self.migrations_far - before.migrations_far,
            wakeups: self.wakeups - before.wakeups,
            latency: latency.map(|(now, before)| now - before).collect(),
            shared_ns: self.shared_ns.saturating_sub(before.shared_ns),
            needless_ns: self.needless_ns.saturating_sub(before.needless_ns),
        }
    }

    /// Returns the latency in nanoseconds that the fraction `share` of the wake-ups does not reach.
    /// The result is the upper end of a histogram slot; `None` without wake-ups.
    pub fn latency_below_ns(&self, share: f64) -> Option<u64> {
        below(&self.latency, share)
    }
}

/// Counter of scheduler events. It counts until the value is dropped.
pub struct Counter {
    /// Attachments of the programs. Declared first, so that they are dropped before the object.
    _links: Vec<Link>,
    counts: MapHandle,
    sharing: MapHandle,
    _object: Object,
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").finish_non_exhaustive()
    }
}

impl Counter {
    /// Starts counting on this machine.
    ///
    /// # Errors
    /// The programs cannot be loaded, for example because the process does not run as root or the
    /// kernel has no BTF.
    pub fn start(machine: &Topology) -> Result<Self, ScxError> {
        let tables = machine::tables(machine, &CpuSet::new())?;
        let open = object::open(tables.size.counter())?;
        let object = object::load(
            open,
            "loading the BPF programs that count scheduler events, which requires root",
        )?;
        object::set_places(&object, &tables)?;
        let sharing = object::map(&object, "sharing", SHARING_BYTES)?;
        let mut all_idle = [0; SHARING_BYTES];
        all_idle[24..].copy_from_slice(&tables.cores.to_ne_bytes());
        object::set(&sharing, 0, &all_idle)?;
        let links: Result<Vec<Link>, _> = object.progs_mut().map(|p| p.attach()).collect();
        let counter = Self {
            _links: links.map_err(ScxError::bpf(
                "attaching the BPF programs that count scheduler events",
            ))?,
            counts: object::map(&object, "counts", COUNTS_BYTES)?,
            sharing,
            _object: object,
        };
        visit_all(machine);
        Ok(counter)
    }

    /// Returns the counts until now.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn read(&self) -> Result<Counted, ScxError> {
        let mut sums = [0; 8 + SLOTS];
        for of_cpu in object::get_each(&self.counts)? {
            for (sum, word) in sums.iter_mut().zip(words(&of_cpu)) {
                *sum += word;
            }
        }
        // The time is read before the map. If a period of sharing ends between the two reads, it
        // does not count a second time as open.
        let now_ns = object::now_ns();
        let sharing: Vec<u64> = words(&object::get(&self.sharing)?).collect();
        Ok(Counted::of(&sums, shared_until(now_ns, &sharing)))
    }
}

/// Returns the durations of `struct sharing`, including the time since its last update.
fn shared_until(now_ns: u64, sharing: &[u64]) -> [u64; 2] {
    let &[shared_ns, needless_ns, since_ns, cores] = sharing else {
        return [0; 2];
    };
    let (shared, idle) = (cores >> 32, cores as u32);
    let open_ns = match since_ns > 0 && shared > 0 {
        true => now_ns.saturating_sub(since_ns),
        false => 0,
    };
    let open_needless_ns = if idle > 0 { open_ns } else { 0 };
    [shared_ns + open_ns, needless_ns + open_needless_ns]
}

/// Makes every CPU switch at least once, so that a CPU with one long-running thread counts as busy.
fn visit_all(machine: &Topology) {
    let visit = || {
        let Ok(before) = sched_getaffinity(None) else {
            return;
        };
        for cpu in machine.cpus.iter().map(|cpu| cpu.os as usize) {
            let mut only = Mask::new();
            if cpu < Mask::MAX_CPU {
                only.set(cpu);
                // If this thread may not run on a CPU, that CPU is not visited and stays unknown.
                let _ = sched_setaffinity(None, &only);
            }
        }
        let _ = sched_setaffinity(None, &before);
    };
    std::thread::scope(|threads| {
        threads.spawn(visit);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::counters_fields;

    #[test]
    fn shared_time_includes_the_open_period() {
        let one = 1 << 32;
        assert_eq!(shared_until(100, &[7, 5, 90, one | 3]), [17, 15]);
        assert_eq!(shared_until(100, &[7, 5, 90, one]), [17, 5]);
        assert_eq!(shared_until(100, &[7, 5, 90, 3]), [7, 5], "none is shared");
        assert_eq!(
            shared_until(100, &[0, 0, 0, one]),
            [0, 0],
            "nothing was seen yet"
        );
        assert_eq!(shared_until(100, &[7, 5, 101, one | 3]), [7, 5]);
    }

    #[test]
    fn counter_works_without_sched_ext() {
        let machine = usher_topology::load(usher_topology::Source::ThisMachine).unwrap();
        let counter = match Counter::start(&machine) {
            Err(ScxError::LoadFailed { source, .. })
                if source.kind() == libbpf_rs::ErrorKind::PermissionDenied =>
            {
                eprintln!("skipped: BPF programs are not permitted here: {source}");
                return;
            }
            started => started.unwrap(),
        };
        let before = counter.read().unwrap();
        // join() sleeps until the thread has ended, which takes at least one context switch.
        std::thread::spawn(|| {}).join().unwrap();
        let counted = counter.read().unwrap().since(&before);
        assert!(counted.switches > 0, "{counted:?}");
    }

    fn counted(latency: &[(usize, u64)]) -> Counted {
        let mut slots = vec![0; SLOTS];
        for (slot, count) in latency {
            slots[*slot] = *count;
        }
        Counted {
            switches: 0,
            space_switches: 0,
            mm_changes: 0,
            migrations_core: 0,
            migrations_llc: 0,
            migrations_node: 0,
            migrations_far: 0,
            wakeups: slots.iter().sum(),
            latency: slots,
            shared_ns: 0,
            needless_ns: 0,
        }
    }

    #[test]
    fn count_fields_match_by_name() {
        let fields = counters_fields("counts");
        let (value, numbers) = fields.numbered();
        let sums: Vec<u64> = words(&value).collect();
        let counted = Counted::of(sums.as_slice().try_into().unwrap(), [0; 2]);
        let json = serde_json::to_value(counted).unwrap();
        for (name, number) in numbers {
            match name.as_str() {
                "latency" => assert_eq!(json["latency"], serde_json::json!([number])),
                name => assert_eq!(json[name], number, "{name}"),
            }
        }
        let sharing = counters_fields("sharing");
        let names = ["shared_ns", "needless_ns", "since_ns", "cores"];
        assert_eq!(sharing.names(), names);
        assert_eq!(
            (fields.bytes(), sharing.bytes()),
            (COUNTS_BYTES, SHARING_BYTES)
        );
    }

    #[test]
    fn percentiles_are_upper_ends_of_slots() {
        assert_eq!(counted(&[]).latency_below_ns(0.5), None);
        let some = counted(&[(10, 98), (80, 1), (123, 1)]);
        assert_eq!(some.latency_below_ns(0.5), Some(7));
        assert_eq!(some.latency_below_ns(0.99), Some((1 << 20) + (1 << 18)));
        assert_eq!(some.latency_below_ns(1.0), Some(1 << 31));
        let before = counted(&[(10, 90)]);
        assert_eq!(some.since(&before).latency[10], 8);
        let json = serde_json::to_value(counted(&[(3, 7)])).unwrap();
        assert_eq!(json["latency"], serde_json::json!([0, 0, 0, 7]));
        let json = serde_json::to_value(counted(&[])).unwrap();
        assert_eq!(json["latency"], serde_json::json!([]));
    }
}
