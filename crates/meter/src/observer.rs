// SPDX-License-Identifier: MIT OR Apache-2.0
//! The meter by BPF: reads the use by owner and device that the BPF programs in the kernel have
//! counted.
//!
//! 1. A sample first arms notification again.
//! 2. A thorough sample also runs the task iterator, which visits every thread in the kernel, and
//!    reads CPU times and idle time. Once a second, it begins a new epoch of the process list and
//!    reads again how disks are stacked.
//! 3. Each sample reads three small maps (disks, links, the run-queue scan) by a few system calls.
//! 4. The increases are charged to the owners. Use of a stacked disk is also charged to the disks
//!    below it (`disks.rs`).
//!
//! Bounds: a thorough sample takes time in proportion to the threads of the machine. Another sample
//! takes time in proportion to the pairs of an owner and a device, of which there are at most 2048.
//! A failed reading keeps the last values, and each different error is kept once for
//! [`Observer::reasons`]. Cgroups deeper than level 31 are rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use usher_model::{DiskId, DiskUse, LinkId, LinkUse, MeterSource, Metering, ProcStat};
use usher_model::{IdleCpus, ProcessId, ProgramId, Resource, Usage};

use crate::config::MeterConfig;
use crate::disks::{self, Disks};
use crate::error::MeterError;
use crate::idle::{IdleEstimate, IdleSample};
use crate::layout::{BpfConfig, CpuUse, Device, DiskKey, ProcessUse, RqScan, comm};
use crate::layout::{FIRST_PROGRAM, FOREGROUND, IGNORED};
use crate::links::{self, KnownLinks};
use crate::meter::{DeviceNames, NotifyOn, OwnerClass, ProcessShare};
use crate::proc_tree;
use crate::programs::{KernelMeter, ProgramCost};
use crate::text;

const SECOND_NS: u64 = 1_000_000_000;
/// Length of an epoch of the process list, and also the interval between two readings of how disks
/// are stacked.
const EPOCH_NS: u64 = SECOND_NS;
/// The deepest cgroup level that the BPF programs check, because the levels are bits of a 32-bit
/// word.
const DEEPEST_LEVEL: u32 = 31;
const ALL_LEVELS: u32 = u32::MAX;
/// The inode number of the root of all cgroups. If the root of a mount has another inode number,
/// this process is in a cgroup namespace.
const ROOT_CGROUP: u64 = 1;
/// The inode number of the initial pid namespace (`PROC_PID_INIT_INO`).
const INITIAL_PIDS: u64 = 0xEFFF_FFFC;

/// A background program as configured in the kernel.
#[derive(Debug, Clone, Copy)]
struct MeteredProgram {
    owner: u32,
    cgroup: Option<(u64, u32)>,
}

/// The meter by BPF programs.
#[derive(Debug)]
pub(crate) struct Observer {
    kernel: KernelMeter,
    config: MeterConfig,
    managed: BTreeMap<ProgramId, MeteredProgram>,
    next_owner: u32,
    disks: Disks,
    /// For each stacked disk, the disk below it, as written to the BPF programs' map.
    lower_disks: BTreeMap<DiskId, DiskId>,
    links: KnownLinks,
    idle: IdleEstimate,
    step_ns: u64,
    cpus: u32,
    idle_ns: u64,
    cpu_read_ns: u64,
    epoch_began_ns: u64,
    cpu: BTreeMap<u32, CpuUse>,
    /// The disk counters of the BPF programs at the last sample.
    counted: BTreeMap<DiskKey, DiskUse>,
    /// Use by owner and disk. The use of a stacked disk is also charged to the disks below it.
    charged: BTreeMap<(u32, DiskId), DiskUse>,
    link_uses: BTreeMap<(u32, LinkId), LinkUse>,
    rq_scan: RqScan,
    errors: BTreeSet<String>,
}

impl Observer {
    /// Loads and attaches the BPF programs.
    pub fn open(config: &MeterConfig) -> Result<Self, MeterError> {
        let kernel_config = BpfConfig {
            start_ns: now_ns(),
            recent_ns: config.recent_ns,
            epoch: 1,
            ..BpfConfig::default()
        };
        let services: Vec<_> = config.ignore.iter().map(|name| comm(name)).collect();
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        let mut observer = Self {
            kernel: KernelMeter::start(kernel_config, &services)?,
            config: config.clone(),
            managed: BTreeMap::new(),
            next_owner: FIRST_PROGRAM,
            disks: Disks::new(&config.proc, &config.sys),
            lower_disks: BTreeMap::new(),
            links: KnownLinks::new(&config.proc, &config.sys),
            idle: IdleEstimate::default(),
            step_ns: SECOND_NS / ticks,
            cpus: 1,
            idle_ns: 0,
            cpu_read_ns: 0,
            epoch_began_ns: 0,
            cpu: BTreeMap::new(),
            counted: BTreeMap::new(),
            charged: BTreeMap::new(),
            link_uses: BTreeMap::new(),
            rq_scan: RqScan::default(),
            errors: BTreeSet::new(),
        };
        observer.read_cpus(kernel_config.start_ns);
        observer.read_rq_scan();
        Ok(observer)
    }

    pub fn sample(&mut self, at_ns: u64, thorough: bool) -> Metering {
        // Notification is armed before the maps are read, because an event between the reading and
        // the arming would be missed.
        let armed = self.kernel.arm_notify();
        self.note(armed);
        if thorough {
            self.advance_epoch(at_ns);
            self.read_cpus(at_ns);
        }
        self.read_disks();
        self.read_links();
        self.read_rq_scan();
        self.metering()
    }

    fn read_cpus(&mut self, at_ns: u64) {
        let visited = self.kernel.count_threads();
        self.note(visited);
        let cpu = &mut self.cpu;
        let read = self.kernel.cpu_uses.each(|owner, uses| {
            cpu.extend(uses.next().map(|now| (owner, now)));
        });
        self.note(read);
        let online = self.config.sys.join("devices/system/cpu/online");
        let online = text::parse(&online, "a list of CPUs", text::cpu_count);
        self.cpus = self.note(online).unwrap_or(self.cpus);
        let stat = self.config.proc.join("stat");
        let ticks = text::parse(&stat, "the machine's stat", text::machine_ticks);
        if let Some(ticks) = self.note(ticks) {
            self.idle_ns = self.idle.advance(IdleSample {
                at_ns,
                cpus: self.cpus,
                run_ns: self.cpu.values().map(|uses| uses.run_ns).sum(),
                stat_ns: ticks.idle.saturating_mul(self.step_ns),
                step_ns: self.step_ns,
            });
        }
        self.cpu_read_ns = at_ns;
    }

    /// Once a second, starts a new epoch of the process list and reads again how disks are stacked.
    fn advance_epoch(&mut self, at_ns: u64) {
        let passed_ns = at_ns.saturating_sub(self.epoch_began_ns);
        if passed_ns < EPOCH_NS {
            return;
        }
        // An advance by two epochs is enough, because no entry of the process list is recent then.
        self.kernel.config.epoch += (passed_ns / EPOCH_NS).min(2);
        self.epoch_began_ns = at_ns;
        let written = self.kernel.update_config();
        self.note(written);
        let known = self.disks.known();
        self.read_stacks(known);
    }

    fn read_stacks(&mut self, disks: Vec<DiskId>) {
        self.disks.refresh(disks);
        let bottom = |disk| Some((disk, self.disks.bottom(disk)?));
        let now: BTreeMap<DiskId, DiskId> =
            self.disks.known().into_iter().filter_map(bottom).collect();
        for gone in self
            .lower_disks
            .keys()
            .filter(|disk| !now.contains_key(disk))
        {
            self.kernel.remove_lower_device(Device::Disk(*gone));
        }
        for (disk, bottom) in &now {
            let (upper, lower) = (Device::Disk(*disk), Device::Disk(*bottom));
            let written = self.kernel.set_lower_device(upper, lower);
            self.note(written);
        }
        self.lower_disks = now;
    }

    /// Reads the disk counters and charges the increase since the last sample. Because only
    /// increases are charged, the past use of a disk stays with the disks to which it was charged,
    /// even if the disk is stacked on another disk later.
    fn read_disks(&mut self) {
        let mut now: BTreeMap<DiskKey, DiskUse> = BTreeMap::new();
        let read = self.kernel.disk_uses.each(|key, uses| {
            now.insert(key, uses.fold(DiskUse::default(), disks::sum));
        });
        self.note(read);
        let unknown = now.keys().map(|key| key.disk);
        let unknown: Vec<DiskId> = unknown.filter(|disk| !self.disks.knows(*disk)).collect();
        if !unknown.is_empty() {
            self.read_stacks(unknown);
        }
        let mut new: BTreeMap<u32, BTreeMap<DiskId, DiskUse>> = BTreeMap::new();
        for (key, uses) in now {
            let before = self.counted.get(&key).copied().unwrap_or_default();
            let of_owner = new.entry(key.owner).or_default();
            of_owner.insert(key.disk, disks::since(before, uses));
            self.counted.insert(key, uses);
        }
        for (owner, uses) in new {
            for (disk, more) in self.disks.charge_stacks(&uses) {
                let total = self.charged.entry((owner, disk)).or_default();
                *total = disks::sum(*total, more);
            }
        }
    }

    fn read_links(&mut self) {
        let mut now: BTreeMap<(u32, LinkId), LinkUse> = BTreeMap::new();
        let links = &mut self.links;
        let read = self.kernel.link_uses.each(|key, uses| {
            if let Some(link) = links.id(key.interface) {
                let total = now.entry((key.owner, link)).or_default();
                *total = uses.fold(*total, links::sum);
            }
        });
        if self.note(read).is_some() {
            self.link_uses = now;
        }
    }

    fn read_rq_scan(&mut self) {
        let rq_scan = self.kernel.rq_scan();
        self.rq_scan = self.note(rq_scan).unwrap_or(self.rq_scan);
    }

    fn scans_all_queues(&self) -> bool {
        self.kernel.loaded.scan_refused.is_none() && self.rq_scan.queues >= self.cpus
    }

    fn idle_cpus(&self) -> Option<IdleCpus> {
        let RqScan {
            vacant_since_ns,
            vacant_cpus,
            background_only_since_ns,
            ..
        } = self.rq_scan;
        self.scans_all_queues().then_some(IdleCpus {
            since_ns: Some(vacant_since_ns).filter(|ns| *ns != 0),
            cpus: vacant_cpus,
            background_only_since_ns: Some(background_only_since_ns).filter(|ns| *ns != 0),
        })
    }

    pub fn notify_on(&mut self, events: NotifyOn) {
        let config = &mut self.kernel.config;
        let now = (u32::from(events.imbalances), u32::from(events.vacancies));
        if now != (config.notify_imbalances, config.notify_vacancies) {
            (config.notify_imbalances, config.notify_vacancies) = now;
            let written = self.kernel.update_config();
            self.note(written);
        }
    }

    fn metering(&self) -> Metering {
        let background = self.managed.iter();
        Metering {
            source: MeterSource::Bpf,
            cpus: self.cpus,
            idle_ns: self.idle_ns,
            cpu_read_ns: self.cpu_read_ns,
            rq_imbalances: self.rq_scan.imbalances,
            idle_cpus: self.idle_cpus(),
            foreground: self.usage(FOREGROUND),
            ignored: self.usage(IGNORED),
            background: background
                .map(|(program, managed)| (*program, self.usage(managed.owner)))
                .collect(),
            blocked: Vec::new(),
        }
    }

    fn usage(&self, owner: u32) -> Usage {
        let cpu = self.cpu.get(&owner).copied().unwrap_or_default();
        let disks = self.charged.range((owner, DISK_MIN)..=(owner, DISK_MAX));
        let links = self
            .link_uses
            .range((owner, LinkId(0))..=(owner, LinkId(u32::MAX)));
        Usage {
            cpu_ns: cpu.run_ns,
            wait_ns: cpu.wait_ns,
            disks: disks.map(|((_, disk), uses)| (*disk, *uses)).collect(),
            links: links.map(|((_, link), uses)| (*link, *uses)).collect(),
        }
    }

    pub fn manage(
        &mut self,
        program: ProgramId,
        cgroup: Option<&Path>,
        root: ProcessId,
    ) -> Result<(), MeterError> {
        self.forget(program);
        // The threads are counted now, before the program is registered, because their use up to
        // now is foreground use.
        self.kernel.count_threads()?;
        let owner = self.next_owner;
        let cgroup = cgroup.map(cgroup_number).transpose()?;
        self.next_owner += 1;
        self.managed
            .insert(program, MeteredProgram { owner, cgroup });
        let written = self.update_config();
        let added = written.and_then(|()| match cgroup {
            Some((id, _)) => self.kernel.add_cgroup(id, owner),
            None => self.add_pid(root, owner),
        });
        if added.is_err() {
            self.forget(program);
        }
        added
    }

    /// Lists a process and its descendants in pid_map. From now on, the BPF programs list the
    /// children that a listed process forks; this function adds the children that were forked
    /// before. This function repeats a pass over `/proc` until a pass finds no new process.
    fn add_pid(&self, root: ProcessId, owner: u32) -> Result<(), MeterError> {
        let proc = &self.config.proc;
        let is_same = |stat: ProcStat| stat.start_ticks == root.start_ticks;
        let mut listed = BTreeSet::from([root.pid]);
        self.kernel.add_pid(root.pid, owner)?;
        if !proc_tree::process(proc, root.pid).is_some_and(is_same) {
            self.kernel.remove_pid(root.pid);
            return Err(MeterError::Gone { pid: root.pid });
        }
        loop {
            let found = proc_tree::with_descendants(&listed, &proc_tree::processes(proc));
            let new: Vec<i32> = found.difference(&listed).copied().collect();
            if new.is_empty() {
                return Ok(());
            }
            for pid in new {
                self.kernel.add_pid(pid, owner)?;
                listed.insert(pid);
                if proc_tree::process(proc, pid).is_none() {
                    self.kernel.remove_pid(pid);
                }
            }
        }
    }

    pub fn forget(&mut self, program: ProgramId) {
        let Some(managed) = self.managed.remove(&program) else {
            return;
        };
        let visited = self.kernel.count_threads();
        self.note(visited);
        if let Some((id, _)) = managed.cgroup {
            self.kernel.remove_cgroup(id);
        }
        let pids = &mut self.kernel.pid_map;
        let removed = pids.remove_where(|_, of| of == managed.owner);
        self.note(removed);
        self.forget_uses();
        let written = self.update_config();
        self.note(written);
    }

    /// Frees the map entries of removed programs. An entry may appear after the removal of its
    /// program, because a CPU was just counting a use. The next call frees such an entry.
    fn forget_uses(&mut self) {
        let alive: BTreeSet<u32> = self.managed.values().map(|of| of.owner).collect();
        let gone = |owner: u32| owner >= FIRST_PROGRAM && !alive.contains(&owner);
        let kernel = &mut self.kernel;
        let removed = [
            kernel.cpu_uses.remove_where(|owner, _| gone(owner)),
            kernel.disk_uses.remove_where(|key, _| gone(key.owner)),
            kernel.link_uses.remove_where(|key, _| gone(key.owner)),
        ];
        self.cpu.retain(|of, _| !gone(*of));
        self.counted.retain(|used, _| !gone(used.owner));
        self.charged.retain(|(of, _), _| !gone(*of));
        self.link_uses.retain(|(of, _), _| !gone(*of));
        for removed in removed {
            self.note(removed);
        }
    }

    fn update_config(&mut self) -> Result<(), MeterError> {
        let managed = || self.managed.values();
        let levels = managed()
            .filter_map(|of| of.cgroup)
            .map(|(_, levels)| levels);
        let config = &mut self.kernel.config;
        config.cgroup_levels = levels.fold(0, |all, some| all | some);
        config.tracks_pids = u32::from(managed().any(|of| of.cgroup.is_none()));
        config.programs = self.managed.len() as u32;
        self.kernel.update_config()
    }

    pub fn notify_fd(&self) -> BorrowedFd<'_> {
        self.kernel.notify_fd()
    }

    pub fn names(&self) -> DeviceNames {
        DeviceNames {
            disks: self.disks.names().clone(),
            links: self.links.names(),
        }
    }

    pub fn costs(&self) -> Vec<ProgramCost> {
        let scan = ProgramCost {
            name: "scan_on_timer".to_owned(),
            runs: self.rq_scan.scans,
            run_ns: self.rq_scan.scans_ns,
        };
        // The cost of the timer is added from the scan's own counters, because the kernel keeps no
        // statistics of timers.
        let mut costs = self.kernel.loaded.costs();
        costs.push(scan);
        costs
    }

    pub fn program_ids(&self) -> Vec<u32> {
        self.kernel.loaded.program_ids()
    }

    /// Returns the processes that used a resource in the last one or two seconds, ordered by
    /// decreasing use.
    pub fn top_processes(&mut self, resource: Resource) -> Vec<ProcessShare> {
        let devices: BTreeSet<Device> = match resource {
            Resource::Cpu => BTreeSet::from([Device::Cpu]),
            Resource::Disk(disk) => self
                .disks
                .above(disk)
                .into_iter()
                .map(Device::Disk)
                .collect(),
            Resource::Link(link) => BTreeSet::from([Device::Link(self.links.interface(link))]),
        };
        let epoch = self.kernel.config.epoch;
        let mut found: BTreeMap<u32, (u64, ProcessUse)> = BTreeMap::new();
        let read = self.kernel.process_uses.each(|key, uses| {
            let uses = uses.next().filter(|_| devices.contains(&key.device));
            let Some(uses) = uses else {
                return;
            };
            let recent = uses.recent(epoch);
            let of_process = found.entry(key.tgid).or_insert((0, uses));
            of_process.0 += recent;
        });
        self.note(read);
        self.ranked(found)
    }

    fn ranked(&self, found: BTreeMap<u32, (u64, ProcessUse)>) -> Vec<ProcessShare> {
        let all: u64 = found.values().map(|(recent, _)| recent).sum();
        let mut processes: Vec<ProcessShare> = found
            .into_iter()
            .filter(|(_, (recent, _))| *recent > 0)
            .map(|(tgid, (recent, uses))| ProcessShare {
                pid: tgid as i32,
                comm: uses.comm,
                owner: self.owner(uses.owner),
                share: recent as f64 / all as f64,
            })
            .collect();
        processes.sort_by(|a, b| b.share.total_cmp(&a.share));
        processes
    }

    fn owner(&self, number: u32) -> OwnerClass {
        let mut managed = self.managed.iter();
        match managed.find(|(_, managed)| managed.owner == number) {
            Some((program, _)) => OwnerClass::Background(*program),
            None if number == IGNORED => OwnerClass::Ignored,
            None => OwnerClass::Foreground,
        }
    }

    /// Returns one sentence for each kind of use that could not be counted, and for each failed
    /// configuration.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self.errors.iter().cloned().collect();
        let kinds = [
            "threads were not counted, because the kernel had no memory for their counters",
            "uses of disks or network interfaces were not counted, because the machine has too \
             many devices",
            "background processes were counted as foreground, because a program has more \
             processes than the meter can list",
            "uses of CPUs were not counted, because the meter can count only 1024 programs",
        ];
        let lost = self.kernel.losses().into_iter().zip(kinds);
        reasons.extend(
            lost.filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{count} {what}")),
        );
        let missing = &self.kernel.loaded.missing;
        reasons.extend(missing.iter().map(|point| {
            format!(
                "use of the network is counted only in part, because this kernel has no trace \
                 point {point}"
            )
        }));
        if !self.scans_all_queues() {
            let why = match &self.kernel.loaded.scan_refused {
                Some(refused) => {
                    format!(
                        "this kernel rejects the scan of run queues, as kernels before 5.17 do \
                         ({refused})"
                    )
                }
                None => format!(
                    "the run queues of only {} of {} CPUs are known",
                    self.rq_scan.queues, self.cpus
                ),
            };
            reasons.push(format!(
                "Usher detects late that foreground threads share one CPU while background work \
                 uses another CPU: {why}"
            ));
        }
        let pids = fs::metadata(self.config.proc.join("self/ns/pid"));
        if pids.is_ok_and(|pids| pids.ino() != INITIAL_PIDS) {
            reasons.push(
                "in this PID namespace, a background program without a cgroup of its own cannot \
                 be distinguished from foreground work"
                    .to_owned(),
            );
        }
        reasons
    }

    /// Returns the value of a result. For an error, records the error and returns `None`; the
    /// measured values then keep their last values.
    fn note<T>(&mut self, result: Result<T, MeterError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.errors.insert(error.to_string());
                None
            }
        }
    }
}

const DISK_MIN: DiskId = DiskId { major: 0, minor: 0 };
const DISK_MAX: DiskId = DiskId {
    major: u32::MAX,
    minor: u32::MAX,
};

/// Returns the inode number of a cgroup, and its level as a bit. In a cgroup namespace the level is
/// unknown, because the namespace hides the depth of its root. All level bits are set in this case.
fn cgroup_number(dir: &Path) -> Result<(u64, u32), MeterError> {
    let read = |path: &Path| fs::metadata(path).map_err(MeterError::read(path));
    let dir = fs::canonicalize(dir).map_err(MeterError::read(dir))?;
    let this = read(&dir)?;
    let mut level = 0;
    let mut root = this.ino();
    for above in dir.ancestors().skip(1) {
        let above = read(above)?;
        if above.dev() != this.dev() {
            break;
        }
        level += 1;
        root = above.ino();
    }
    if root != ROOT_CGROUP {
        return Ok((this.ino(), ALL_LEVELS));
    }
    if level > DEEPEST_LEVEL {
        return Err(MeterError::TooDeep {
            path: dir,
            level,
            most: DEEPEST_LEVEL,
        });
    }
    Ok((this.ino(), 1 << level))
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * SECOND_NS + now.tv_nsec as u64
}

#[cfg(test)]
mod tests;
