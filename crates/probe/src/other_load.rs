// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CPU time that other programs use while this process measures a program.
//!
//! A [`LoadSnapshot`] contains counters since boot. [`LoadSnapshot::since`] returns the use by
//! other programs between two snapshots:
//!
//! 1. Start with the busy time of all CPUs (`/proc/stat`).
//! 2. Subtract the CPU time of the own process tree: a process, its living descendants, and the
//!    ended descendants that one of these processes has waited for.
//! 3. Subtract the CPU time of kernel threads, because the measured program itself causes much of
//!    it, for example by writing files.
//!
//! An ended descendant that no process of the tree has waited for counts as another program. In a
//! PID namespace, the processes outside it are not visible, but their CPU time is included.
//!
//! A snapshot reads `/proc/stat` and one file per visible process: some milliseconds for a few
//! hundred processes. The resolution is one clock tick (10 ms on nearly all kernels).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use usher_model::ProcStat;

use crate::error::ProbeError;
use crate::file;
use crate::machine::{Roots, pressure};
use crate::process::KERNEL_THREAD;
use crate::text::{self, CpuTicks};
use crate::tree::read_stat;

/// Number of processes in [`OtherLoad::busiest`].
const BUSIEST_MAX: usize = 3;
/// Processes that use fewer CPUs than this are not listed.
const LISTED_CPUS_MIN: f64 = 0.05;

/// Counters of the machine and of all visible processes.
#[derive(Debug, Clone)]
pub struct LoadSnapshot {
    at: Instant,
    machine: CpuTicks,
    /// Time in which some task of the machine waited for a CPU; `None` if the kernel has no PSI.
    waited_ns: Option<u64>,
    processes: BTreeMap<i32, ProcStat>,
    own_pid: i32,
}

/// The use of the machine by other programs between two snapshots.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OtherLoad {
    /// The time between the snapshots in seconds.
    pub seconds: f64,
    /// Mean number of CPUs that other programs used.
    pub cpus: f64,
    /// The CPU time that the hypervisor gave to other virtual machines while this machine had work,
    /// as a fraction of the CPU time that this machine wanted, 0..1.
    pub steal_share: f64,
    /// Fraction of the time in which some task waited for a CPU, tasks of the own tree included;
    /// `None` if the kernel has no PSI.
    pub waiting_share: Option<f64>,
    /// The other processes that used most CPU time, busiest first.
    pub busiest: Vec<BusyProcess>,
}

/// A process that uses CPU time.
#[derive(Debug, Clone, PartialEq)]
pub struct BusyProcess {
    /// The pid.
    pub pid: i32,
    /// Name that the process chose.
    pub name: String,
    /// Mean number of CPUs in use.
    pub cpus: f64,
}

impl LoadSnapshot {
    /// Takes a snapshot. `own_pid` is the root of the own process tree.
    ///
    /// # Errors
    /// `/proc/stat` or the list of processes cannot be read.
    pub fn take(roots: &Roots, own_pid: i32) -> Result<Self, ProbeError> {
        let at = Instant::now();
        let path = roots.proc.join("stat");
        let (machine, _) = file::parse(&path, "the machine's stat", text::machine_stat)?;
        let entries =
            std::fs::read_dir(&roots.proc).map_err(|e| ProbeError::read(&roots.proc, e))?;
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        // A process that has ended meanwhile is skipped.
        let stats = pids.filter_map(|pid: i32| Some((pid, read_stat(&roots.proc, pid).ok()?)));
        Ok(Self {
            at,
            machine,
            waited_ns: pressure(&roots.proc, "cpu").map(|pressure| pressure.some_ns),
            processes: stats.collect(),
            own_pid,
        })
    }

    /// Returns the use by other programs since an earlier snapshot.
    pub fn since(&self, before: &Self) -> OtherLoad {
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        self.over(before, seconds)
    }

    fn over(&self, before: &Self, seconds: f64) -> OtherLoad {
        let rate = rustix::param::clock_ticks_per_second().max(1) as f64 * seconds.max(1e-3);
        let cpus = |ticks: u64| ticks as f64 / rate;
        let busy = self.machine.busy.saturating_sub(before.machine.busy);
        let steal = self.machine.steal.saturating_sub(before.machine.steal);
        let (own, own_before) = (self.own(), before.own());
        let own_ticks = self.total(&own).saturating_sub(before.total(&own_before));
        let kernel_ticks = self.kernel().saturating_sub(before.kernel());
        let waited = self.waited_ns.zip(before.waited_ns);
        let mut busiest: Vec<BusyProcess> = (self.processes.iter())
            .filter(|(pid, stat)| !own.contains(pid) && !is_kernel_thread(stat))
            .map(|(&pid, stat)| BusyProcess {
                pid,
                name: stat.name.clone(),
                cpus: cpus(stat.own_ticks.saturating_sub(before.own_ticks_of(stat))),
            })
            .filter(|process| process.cpus >= LISTED_CPUS_MIN)
            .collect();
        busiest.sort_by(|a, b| b.cpus.total_cmp(&a.cpus).then(a.pid.cmp(&b.pid)));
        busiest.truncate(BUSIEST_MAX);
        OtherLoad {
            seconds,
            cpus: cpus(busy.saturating_sub(own_ticks).saturating_sub(kernel_ticks)),
            steal_share: match busy + steal {
                0 => 0.0,
                wanted => steal as f64 / wanted as f64,
            },
            waiting_share: waited.map(|(now, then)| {
                let waited = now.saturating_sub(then) as f64 * 1e-9;
                (waited / seconds.max(1e-3)).min(1.0)
            }),
            busiest,
        }
    }

    /// Returns the pids of the own tree.
    fn own(&self) -> BTreeSet<i32> {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for (&pid, stat) in &self.processes {
            children.entry(stat.parent).or_default().push(pid);
        }
        let (mut own, mut next) = (BTreeSet::new(), vec![self.own_pid]);
        while let Some(pid) = next.pop() {
            if own.insert(pid) {
                next.extend(children.get(&pid).into_iter().flatten());
            }
        }
        own
    }

    /// Returns the CPU time of processes and of the children that they have waited for.
    fn total(&self, pids: &BTreeSet<i32>) -> u64 {
        let stats = pids.iter().filter_map(|pid| self.processes.get(pid));
        stats
            .map(|stat| stat.own_ticks.saturating_add(stat.children_ticks))
            .sum()
    }

    fn kernel(&self) -> u64 {
        let threads = self
            .processes
            .values()
            .filter(|stat| is_kernel_thread(stat));
        threads.map(|stat| stat.own_ticks).sum()
    }

    /// Returns the CPU time that a process had used at this snapshot; 0 if it did not exist.
    fn own_ticks_of(&self, process: &ProcStat) -> u64 {
        let then = self.processes.get(&process.pid);
        let same = then.filter(|then| then.start_ticks == process.start_ticks);
        same.map_or(0, |then| then.own_ticks)
    }
}

fn is_kernel_thread(stat: &ProcStat) -> bool {
    stat.flags & KERNEL_THREAD != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a snapshot of a machine with these busy and stolen ticks, and of processes: pid,
    /// parent, flags, own ticks and ticks of children.
    fn snapshot(busy: u64, steal: u64, processes: &[(i32, i32, u64, u64, u64)]) -> LoadSnapshot {
        let stat = |&(pid, parent, flags, own, children)| {
            let text = format!(
                "{pid} (p{pid}) S {parent} 1 1 0 -1 {flags} 0 0 0 0 {own} 0 {children} 0 20 0 1 0 7 0"
            );
            (pid, ProcStat::parse(&text).unwrap())
        };
        LoadSnapshot {
            at: Instant::now(),
            machine: CpuTicks {
                busy,
                idle: 0,
                steal,
            },
            waited_ns: None,
            processes: processes.iter().map(stat).collect(),
            own_pid: 10,
        }
    }

    fn ticks(seconds: f64) -> u64 {
        (seconds * rustix::param::clock_ticks_per_second() as f64) as u64
    }

    #[test]
    fn subtracts_the_own_tree_and_kernel_threads() {
        let before = snapshot(
            0,
            0,
            &[
                (1, 0, 0, 0, 0),
                (2, 0, KERNEL_THREAD, 0, 0),
                (10, 1, 0, 0, 0),
                (11, 10, 0, 0, 0),
            ],
        );
        // In 2 s, the tree below process 10 uses 2 s, of which an ended child of process 11 used
        // 1 s. A kernel thread uses 0.5 s, and process 20 uses 1 s.
        let now = snapshot(
            ticks(3.5),
            ticks(0.5),
            &[
                (1, 0, 0, 0, 0),
                (2, 0, KERNEL_THREAD, ticks(0.5), 0),
                (10, 1, 0, ticks(0.25), 0),
                (11, 10, 0, ticks(0.75), ticks(1.0)),
                (20, 1, 0, ticks(1.0), 0),
            ],
        );
        let load = now.over(&before, 2.0);
        assert!((load.cpus - 0.5).abs() < 1e-9, "{load:?}");
        assert!((load.steal_share - 0.125).abs() < 1e-9, "{load:?}");
        let busiest = BusyProcess {
            pid: 20,
            name: "p20".to_owned(),
            cpus: 0.5,
        };
        assert_eq!(load.busiest, [busiest]);
    }

    #[test]
    fn a_later_process_with_the_same_pid_starts_at_zero() {
        let before = snapshot(0, 0, &[(20, 1, 0, ticks(9.0), 0)]);
        let mut now = snapshot(ticks(1.0), 0, &[(20, 1, 0, ticks(1.0), 0)]);
        now.processes.get_mut(&20).unwrap().start_ticks = 8;
        assert!((now.over(&before, 1.0).busiest[0].cpus - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_snapshot_of_this_machine_finds_this_process() {
        let own = std::process::id() as i32;
        let snapshot = LoadSnapshot::take(&Roots::default(), own).unwrap();
        assert!(snapshot.processes.contains_key(&own));
        let load = snapshot.since(&snapshot);
        assert_eq!((load.cpus, load.busiest.len()), (0.0, 0));
    }
}
