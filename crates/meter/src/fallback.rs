// SPDX-License-Identifier: MIT OR Apache-2.0
//! Meters the machine by `/proc`, for kernels that reject BPF.
//!
//! Each sample reads totals of the whole machine, and divides them among the owners as far as they
//! can be distinguished:
//!
//! - CPU time: the time of a background program is read from `cpu.stat` of its cgroup or from its
//!   processes, the time of services from their processes. The rest of the machine's busy time is
//!   foreground.
//! - Disks: `/proc/PID/io` contains the bytes that a background process has read and written, but
//!   not the disk. These bytes are distributed over the disks in proportion to the disks' activity.
//!   The rest of the activity is foreground.
//! - Interfaces: owners cannot be distinguished, and all use is foreground.
//!
//! Limits: A sample reads `/proc/diskstats`, `/proc/net/dev`, and while background programs are
//! managed the statistics of every process and the I/O counts of their processes. A thorough sample
//! also reads two files per process. CPU times of processes and of the machine have the resolution
//! of a clock tick (10 ms). If a file cannot be read, the counts keep their values. The fallback
//! never notifies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use usher_model::{DiskId, DiskUse, LinkId, LinkUse, MeterSource, Metering, ProcStat};
use usher_model::{ProcessId, ProgramId, Usage};

use crate::config::MeterConfig;
use crate::disks::{self, Disks};
use crate::error::MeterError;
use crate::layout::comm;
use crate::links;
use crate::meter::{DeviceNames, OwnerClass};
use crate::proc_tree;
use crate::text::{self, DiskLine, LinkLine, MachineTicks};

const PF_KTHREAD: u64 = 0x0020_0000;
/// Number of the scheduling policy SCHED_IDLE, from the kernel's `include/uapi/linux/sched.h`.
const SCHED_IDLE: u32 = 5;
const SECTOR_BYTES: u64 = 512;
/// Upper limit of [`Fallback::unmatched_ns`]. The limit must exceed the CPU time that the
/// resolution of clock ticks can hide. A larger difference has another cause, namely that the
/// counts of processes and of the machine do not include the same times, and is dropped.
const UNMATCHED_NS_MAX: u64 = 1_000_000_000;

/// A background program.
#[derive(Debug, Default)]
struct FallbackProgram {
    cgroup: Option<PathBuf>,
    roots: BTreeSet<i32>,
    usage: Usage,
    /// CPU time of the cgroup at the last sample.
    cgroup_ns: Option<u64>,
    /// Sectors read and written by each process of the program at the last sample.
    transferred_sectors: BTreeMap<ProcessStart, u64>,
}

/// A process by its pid and its start time.
type ProcessStart = (i32, u64);

/// The times of a process at the last sample. The start time distinguishes the process from a later
/// process with the same pid.
#[derive(Debug, Clone, Copy, Default)]
struct ProcessTimes {
    start_ticks: u64,
    run_ns: u64,
    wait_ns: u64,
}

/// The meter without BPF, which reads `/proc`.
#[derive(Debug)]
pub(crate) struct Fallback {
    config: MeterConfig,
    why: String,
    services: BTreeSet<[u8; 16]>,
    managed: BTreeMap<ProgramId, FallbackProgram>,
    foreground: Usage,
    ignored: Usage,
    processes: BTreeMap<i32, ProcessTimes>,
    machine: Option<MachineTicks>,
    /// CPU time by which the owners other than foreground exceeded the machine's busy time. This
    /// time is subtracted from later samples.
    unmatched_ns: u64,
    disk_lines: Option<BTreeMap<DiskId, DiskLine>>,
    link_lines: Option<BTreeMap<String, LinkLine>>,
    disks: Disks,
    step_ns: u64,
    cpus: u32,
    idle_ns: u64,
    cpu_read_ns: u64,
}

impl Fallback {
    /// Starts metering. Each later sample reports the increase since this call.
    pub fn open(config: &MeterConfig, why: String) -> Self {
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        let mut fallback = Self {
            config: config.clone(),
            why,
            services: config.ignore.iter().map(|name| comm(name)).collect(),
            managed: BTreeMap::new(),
            foreground: Usage::default(),
            ignored: Usage::default(),
            processes: BTreeMap::new(),
            machine: None,
            unmatched_ns: 0,
            disk_lines: None,
            link_lines: None,
            disks: Disks::new(&config.proc, &config.sys),
            step_ns: 1_000_000_000 / ticks,
            cpus: 1,
            idle_ns: 0,
            cpu_read_ns: 0,
        };
        fallback.count_processes(true);
        fallback.sample(0, true);
        fallback
    }

    pub fn reasons(&self) -> Vec<String> {
        [
            self.why.as_str(),
            "processes that start and end between two samples count as foreground, unless they \
             are in the cgroup of a background program",
            "the time that threads wait for CPUs is measured for the first thread of each \
             process only",
            "the disk that a background program uses is guessed from the load of the disks; the \
             network interface that a background program uses is unknown, so all network use \
             counts as foreground",
            "contention between foreground and background is detected only at the next sample, \
             not at once",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    pub fn manage(
        &mut self,
        program: ProgramId,
        cgroup: Option<&Path>,
        root: ProcessId,
    ) -> Result<(), MeterError> {
        self.forget(program);
        let proc = &self.config.proc;
        let is_same = |stat: ProcStat| stat.start_ticks == root.start_ticks;
        if cgroup.is_none() && !proc_tree::process(proc, root.pid).is_some_and(is_same) {
            return Err(MeterError::Gone { pid: root.pid });
        }
        let cgroup_ns = cgroup.map(cgroup_run_ns).transpose()?;
        let mut managed = FallbackProgram {
            cgroup: cgroup.map(Path::to_owned),
            roots: BTreeSet::from([root.pid]),
            cgroup_ns,
            ..FallbackProgram::default()
        };
        managed.transferred_sectors = managed.sectors(proc, &proc_tree::processes(proc));
        self.managed.insert(program, managed);
        Ok(())
    }

    pub fn forget(&mut self, program: ProgramId) {
        self.managed.remove(&program);
    }

    pub fn names(&self) -> DeviceNames {
        DeviceNames {
            disks: self.disks.names().clone(),
            links: links::named(&self.config.sys),
        }
    }

    pub fn sample(&mut self, at_ns: u64, thorough: bool) -> Metering {
        // Disks are read before CPUs, because reading the CPUs changes the list of processes of the
        // last sample, which the disks need.
        self.read_disks(at_ns);
        if thorough {
            self.read_cpus();
            self.cpu_read_ns = at_ns;
        }
        self.read_links(at_ns);
        let background = self.managed.iter();
        Metering {
            source: MeterSource::Proc,
            cpus: self.cpus,
            idle_ns: self.idle_ns,
            cpu_read_ns: self.cpu_read_ns,
            rq_imbalances: 0,
            idle_cpus: None,
            foreground: self.foreground.clone(),
            ignored: self.ignored.clone(),
            background: background
                .map(|(program, managed)| (*program, managed.usage.clone()))
                .collect(),
            blocked: Vec::new(),
        }
    }

    fn read_cpus(&mut self) {
        let online = self.config.sys.join("devices/system/cpu/online");
        self.cpus = text::parse_optional(&online, text::cpu_count).unwrap_or(self.cpus);
        let others_ns = self.count_processes(false);
        let stat = self.config.proc.join("stat");
        let Some(now) = text::parse_optional(&stat, text::machine_ticks) else {
            return;
        };
        let before = self.machine.replace(now).unwrap_or(now);
        let ns = |now: u64, before: u64| now.saturating_sub(before).saturating_mul(self.step_ns);
        self.idle_ns = self.idle_ns.saturating_add(ns(now.idle, before.idle));
        let busy_ns = ns(now.busy, before.busy);
        // The clock ticks of a process may become visible one sample earlier than the same ticks in
        // the machine's total.
        let others_ns = others_ns.saturating_add(self.unmatched_ns);
        self.unmatched_ns = others_ns.saturating_sub(busy_ns).min(UNMATCHED_NS_MAX);
        add(
            &mut self.foreground.cpu_ns,
            busy_ns.saturating_sub(others_ns),
        );
    }

    /// Counts the run and wait time of each process since the last sample. Returns the run time of
    /// owners other than foreground. The first call only records the present totals.
    fn count_processes(&mut self, first: bool) -> u64 {
        let processes = proc_tree::processes(&self.config.proc);
        let owners = self.owners(&processes);
        let mut others_ns = self.count_cgroups();
        let mut counted = BTreeMap::new();
        for (pid, stat) in &processes {
            let now = self.counted(*pid, stat);
            let before = self.processes.get(pid).copied().unwrap_or_default();
            let same = before.start_ticks == now.start_ticks;
            counted.insert(*pid, now);
            if first {
                continue;
            }
            let before = if same {
                before
            } else {
                ProcessTimes::default()
            };
            let run_ns = now.run_ns.saturating_sub(before.run_ns);
            let wait_ns = now.wait_ns.saturating_sub(before.wait_ns);
            others_ns += self.charge(owners.get(pid), run_ns, wait_ns);
        }
        self.processes = counted;
        others_ns
    }

    fn counted(&self, pid: i32, stat: &ProcStat) -> ProcessTimes {
        let schedstat = self.config.proc.join(pid.to_string()).join("schedstat");
        ProcessTimes {
            start_ticks: stat.start_ticks,
            run_ns: stat.own_ticks.saturating_mul(self.step_ns),
            wait_ns: text::parse_optional(&schedstat, text::queued_ns).unwrap_or(0),
        }
    }

    /// Charges run and wait time to an owner. Returns the run time if the owner is not foreground.
    /// For a program with a cgroup, the run time is not charged here, because it is read from the
    /// cgroup.
    fn charge(&mut self, owner: Option<&OwnerClass>, run_ns: u64, wait_ns: u64) -> u64 {
        match owner {
            Some(OwnerClass::Background(program)) => {
                let Some(managed) = self.managed.get_mut(program) else {
                    return 0;
                };
                add(&mut managed.usage.wait_ns, wait_ns);
                if managed.cgroup.is_some() {
                    return 0;
                }
                add(&mut managed.usage.cpu_ns, run_ns);
                run_ns
            }
            Some(OwnerClass::Ignored) => {
                add(&mut self.ignored.wait_ns, wait_ns);
                add(&mut self.ignored.cpu_ns, run_ns);
                run_ns
            }
            Some(OwnerClass::Foreground) | None => {
                add(&mut self.foreground.wait_ns, wait_ns);
                0
            }
        }
    }

    fn count_cgroups(&mut self) -> u64 {
        let mut all_ns = 0;
        for managed in self.managed.values_mut() {
            let Some(Ok(now_ns)) = managed.cgroup.as_deref().map(cgroup_run_ns) else {
                continue;
            };
            let before_ns = managed.cgroup_ns.replace(now_ns).unwrap_or(now_ns);
            let run_ns = now_ns.saturating_sub(before_ns);
            add(&mut managed.usage.cpu_ns, run_ns);
            all_ns += run_ns;
        }
        all_ns
    }

    /// Returns the owners of all processes that are not foreground.
    fn owners(&mut self, processes: &BTreeMap<i32, ProcStat>) -> BTreeMap<i32, OwnerClass> {
        let own = std::process::id() as i32;
        let is_ignored = |pid: i32, stat: &ProcStat| {
            pid == own
                || stat.flags & PF_KTHREAD != 0
                || stat.policy == Some(SCHED_IDLE)
                || self.services.contains(&comm(&stat.name))
        };
        let mut owners: BTreeMap<i32, OwnerClass> = processes
            .iter()
            .filter(|(pid, stat)| is_ignored(**pid, stat))
            .map(|(pid, _)| (*pid, OwnerClass::Ignored))
            .collect();
        for (program, managed) in &mut self.managed {
            let members = managed.members(processes);
            owners.extend(
                members
                    .into_iter()
                    .map(|pid| (pid, OwnerClass::Background(*program))),
            );
        }
        owners
    }

    fn read_disks(&mut self, at_ns: u64) {
        let lines = text::read(&self.config.proc.join("diskstats")).unwrap_or_default();
        let whole = |line: DiskLine| {
            let disk = DiskId {
                major: line.major,
                minor: line.minor,
            };
            self.is_whole(disk).then_some((disk, line))
        };
        let now: BTreeMap<DiskId, DiskLine> = lines
            .lines()
            .filter_map(text::disk_line)
            .filter_map(whole)
            .collect();
        let unknown: Vec<DiskId> = now
            .keys()
            .filter(|disk| !self.disks.knows(**disk))
            .copied()
            .collect();
        self.disks.refresh(unknown);
        let before = self.disk_lines.replace(now.clone());
        let transferred_sectors = self.sectors_moved();
        let Some(before) = before else { return };
        let new: BTreeMap<DiskId, DiskUse> = now
            .iter()
            .map(|(disk, line)| (*disk, done(before.get(disk), line, at_ns)))
            .filter(|(_, uses)| uses.sync_sectors + uses.async_sectors > 0)
            .collect();
        self.split(new, transferred_sectors);
    }

    /// Divides the disks' activity: charges background programs their parts, and the foreground the
    /// rest.
    fn split(
        &mut self,
        new: BTreeMap<DiskId, DiskUse>,
        transferred_sectors: BTreeMap<ProgramId, u64>,
    ) {
        let sectors = |uses: &DiskUse| uses.sync_sectors + uses.async_sectors;
        let all = new
            .values()
            .map(sectors)
            .sum::<u64>()
            .max(transferred_sectors.values().sum());
        for (disk, uses) in new {
            let mut rest = uses;
            for (program, of_program) in &transferred_sectors {
                let share = *of_program as f64 / all.max(1) as f64;
                let part = part(uses, share);
                rest = disks::since(part, rest);
                rest.last_ns = rest.last_ns.filter(|_| rest.requests > 0);
                if let Some(managed) = self.managed.get_mut(program).filter(|_| share > 0.0) {
                    let total = managed.usage.disks.entry(disk).or_default();
                    *total = disks::sum(*total, part);
                }
            }
            if sectors(&rest) > 0 {
                let total = self.foreground.disks.entry(disk).or_default();
                *total = disks::sum(*total, rest);
            }
        }
    }

    fn is_whole(&self, disk: DiskId) -> bool {
        let dir = self.config.sys.join("dev/block").join(disk.to_string());
        !dir.join("partition").exists()
    }

    /// Returns the sectors that each background program has read and written since the last sample,
    /// which is the increase of the sum over the program's processes.
    ///
    /// When a parent reaps a child, the parent's count increases by the child's count, which has
    /// been charged already. When an existing process joins the program, its count up to then does
    /// not belong to the program, and is subtracted.
    fn sectors_moved(&mut self) -> BTreeMap<ProgramId, u64> {
        let mut transferred_sectors = BTreeMap::new();
        if self.managed.is_empty() {
            return transferred_sectors;
        }
        let processes = proc_tree::processes(&self.config.proc);
        let known = &self.processes;
        let is_known = |(pid, start_ticks): &ProcessStart| {
            let known = known.get(pid);
            known.is_some_and(|known| known.start_ticks == *start_ticks)
        };
        for (program, managed) in &mut self.managed {
            let now = managed.sectors(&self.config.proc, &processes);
            let joined = now.iter().filter(|(process, _)| {
                !managed.transferred_sectors.contains_key(process) && is_known(process)
            });
            let joined: u64 = joined.map(|(_, sectors)| sectors).sum();
            let before = managed.transferred_sectors.values().sum::<u64>() + joined;
            transferred_sectors.insert(*program, now.values().sum::<u64>().saturating_sub(before));
            managed.transferred_sectors = now;
        }
        transferred_sectors
    }

    fn read_links(&mut self, at_ns: u64) {
        let lines = text::read(&self.config.proc.join("net/dev")).unwrap_or_default();
        let lines = lines.lines().filter_map(text::link_line);
        let now: BTreeMap<String, LinkLine> = lines.map(|line| (line.name.clone(), line)).collect();
        let before = self.link_lines.replace(now);
        let (Some(before), Some(now)) = (before, &self.link_lines) else {
            return;
        };
        for (link, name) in links::named(&self.config.sys) {
            if let (Some(before), Some(now)) = (before.get(&name), now.get(&name)) {
                let more = transferred(before, now, at_ns);
                charge_link(&mut self.foreground, link, more);
            }
        }
    }
}

impl FallbackProgram {
    /// Returns the processes of the program. If the program has no cgroup, these are its root
    /// processes and their descendants, including earlier descendants that have become orphans.
    fn members(&mut self, processes: &BTreeMap<i32, ProcStat>) -> BTreeSet<i32> {
        match &self.cgroup {
            Some(cgroup) => proc_tree::members(cgroup),
            None => {
                self.roots.retain(|pid| processes.contains_key(pid));
                self.roots = proc_tree::with_descendants(&self.roots, processes);
                self.roots.clone()
            }
        }
    }

    /// Returns the sectors that each process of the program has read and written.
    fn sectors(
        &mut self,
        proc: &Path,
        processes: &BTreeMap<i32, ProcStat>,
    ) -> BTreeMap<ProcessStart, u64> {
        let sectors = |pid| {
            let process = (pid, processes.get(&pid)?.start_ticks);
            let io = proc.join(pid.to_string()).join("io");
            Some((process, text::parse_optional(&io, sectors_of).unwrap_or(0)))
        };
        self.members(processes)
            .into_iter()
            .filter_map(sectors)
            .collect()
    }
}

fn add(total: &mut u64, more: u64) {
    *total = total.saturating_add(more);
}

fn cgroup_run_ns(cgroup: &Path) -> Result<u64, MeterError> {
    let usage = |text: &str| text::keyed(text, "usage_usec")?.checked_mul(1000);
    text::parse(&cgroup.join("cpu.stat"), "the CPU time of a cgroup", usage)
}

fn sectors_of(io: &str) -> Option<u64> {
    let read = text::keyed(io, "read_bytes")?;
    let written = text::keyed(io, "write_bytes")?;
    Some(read.checked_add(written)? / SECTOR_BYTES)
}

/// Returns a disk's activity since `before`. Reads count as requests, and writes count as
/// writeback.
fn done(before: Option<&DiskLine>, now: &DiskLine, at_ns: u64) -> DiskUse {
    let before = before.unwrap_or(now);
    let requests = now.reads.saturating_sub(before.reads);
    DiskUse {
        requests,
        sync_sectors: now.read_sectors.saturating_sub(before.read_sectors),
        async_sectors: now.written_sectors.saturating_sub(before.written_sectors),
        last_ns: (requests > 0).then_some(at_ns),
    }
}

fn part(uses: DiskUse, share: f64) -> DiskUse {
    let of = |whole: u64| (whole as f64 * share).ceil() as u64;
    DiskUse {
        requests: of(uses.requests).min(uses.requests),
        sync_sectors: of(uses.sync_sectors).min(uses.sync_sectors),
        async_sectors: of(uses.async_sectors).min(uses.async_sectors),
        last_ns: uses.last_ns.filter(|_| share > 0.0),
    }
}

fn transferred(before: &LinkLine, now: &LinkLine, at_ns: u64) -> LinkUse {
    let sends = now.sent_packets.saturating_sub(before.sent_packets);
    let receives = now.received_packets.saturating_sub(before.received_packets);
    LinkUse {
        sends,
        sent_bytes: now.sent_bytes.saturating_sub(before.sent_bytes),
        receives,
        received_bytes: now.received_bytes.saturating_sub(before.received_bytes),
        packets: 0,
        last_ns: (sends + receives > 0).then_some(at_ns),
    }
}

fn charge_link(usage: &mut Usage, link: LinkId, more: LinkUse) {
    if more.last_ns.is_some() {
        let total = usage.links.entry(link).or_default();
        *total = links::sum(*total, more);
    }
}
