// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metering by BPF: what the programs in the kernel counted, by program and
//! device.
//!
//! A cheap look reads three small maps, disks, links and crowds, with a handful of
//! system calls; a thorough one visits every thread in the kernel too and reads idle
//! time.

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
use crate::idle::{Idle, Look};
use crate::kin;
use crate::layout::{Control, CpuUse, Crowds, Device, DiskKey, UserUse, comm};
use crate::layout::{FIRST_PROGRAM, FOREGROUND, IGNORED};
use crate::links::{self, Links};
use crate::meter::{Names, Party, User, Wanted};
use crate::programs::{Kernel, ProgramCost};
use crate::text;

const SECOND_NS: u64 = 1_000_000_000;
/// Nanoseconds of an epoch of the list of users, and between two looks at how
/// disks are stacked.
const EPOCH_NS: u64 = SECOND_NS;
/// Levels of cgroups that the programs look at: bits of a word.
const DEEPEST_LEVEL: u32 = 31;
const ALL_LEVELS: u32 = u32::MAX;
/// The number of the root of all cgroups; another number at the root of a
/// mount says that this is a cgroup namespace.
const ROOT_CGROUP: u64 = 1;
/// The initial namespace of process numbers (`PROC_PID_INIT_INO`).
const INITIAL_PIDS: u64 = 0xEFFF_FFFC;

/// A background program as the kernel knows it.
#[derive(Debug, Clone, Copy)]
struct Managed {
    party: u32,
    cgroup: Option<(u64, u32)>,
}

/// Looks by BPF.
#[derive(Debug)]
pub(crate) struct Observer {
    kernel: Kernel,
    config: MeterConfig,
    managed: BTreeMap<ProgramId, Managed>,
    next_party: u32,
    disks: Disks,
    /// What the kernel was told of what lies on what.
    beneath: BTreeMap<DiskId, DiskId>,
    links: Links,
    idle: Idle,
    step_ns: u64,
    cpus: u32,
    idle_ns: u64,
    cpu_read_ns: u64,
    epoch_began_ns: u64,
    cpu: BTreeMap<u32, CpuUse>,
    /// As the kernel counted at the last look.
    seen: BTreeMap<DiskKey, DiskUse>,
    /// With stacked disks charged to those under them.
    charged: BTreeMap<(u32, DiskId), DiskUse>,
    link_uses: BTreeMap<(u32, LinkId), LinkUse>,
    crowds: Crowds,
    troubles: BTreeSet<String>,
}

impl Observer {
    /// Loads and attaches the programs.
    pub fn open(config: &MeterConfig) -> Result<Self, MeterError> {
        let orders = Control {
            begun_ns: now_ns(),
            recent_ns: config.recent_ns,
            epoch: 1,
            ..Control::default()
        };
        let services: Vec<_> = config.ignore.iter().map(|name| comm(name)).collect();
        let ticks = rustix::param::clock_ticks_per_second().max(1);
        let mut observer = Self {
            kernel: Kernel::start(orders, &services)?,
            config: config.clone(),
            managed: BTreeMap::new(),
            next_party: FIRST_PROGRAM,
            disks: Disks::new(&config.proc, &config.sys),
            beneath: BTreeMap::new(),
            links: Links::new(&config.proc, &config.sys),
            idle: Idle::default(),
            step_ns: SECOND_NS / ticks,
            cpus: 1,
            idle_ns: 0,
            cpu_read_ns: 0,
            epoch_began_ns: 0,
            cpu: BTreeMap::new(),
            seen: BTreeMap::new(),
            charged: BTreeMap::new(),
            link_uses: BTreeMap::new(),
            crowds: Crowds::default(),
            troubles: BTreeSet::new(),
        };
        observer.look_at_cpus(orders.begun_ns);
        observer.look_at_crowds();
        Ok(observer)
    }

    pub fn sample(&mut self, at_ns: u64, thorough: bool) -> Metering {
        // Armed before anything is read, so that nothing after it goes unheard.
        let armed = self.kernel.arm_bell();
        self.note(armed);
        if thorough {
            self.turn_epoch(at_ns);
            self.look_at_cpus(at_ns);
        }
        self.look_at_disks();
        self.look_at_links();
        self.look_at_crowds();
        self.metering()
    }

    fn look_at_cpus(&mut self, at_ns: u64) {
        let visited = self.kernel.visit_threads();
        self.note(visited);
        let cpu = &mut self.cpu;
        let read = self.kernel.cpu_uses.each(|party, uses| {
            cpu.extend(uses.next().map(|now| (party, now)));
        });
        self.note(read);
        let online = self.config.sys.join("devices/system/cpu/online");
        let online = text::parse(&online, "a list of CPUs", text::cpu_count);
        self.cpus = self.note(online).unwrap_or(self.cpus);
        let stat = self.config.proc.join("stat");
        let ticks = text::parse(&stat, "the machine's stat", text::machine_ticks);
        if let Some(ticks) = self.note(ticks) {
            self.idle_ns = self.idle.advance(Look {
                at_ns,
                cpus: self.cpus,
                run_ns: self.cpu.values().map(|uses| uses.run_ns).sum(),
                stat_ns: ticks.idle.saturating_mul(self.step_ns),
                step_ns: self.step_ns,
            });
        }
        self.cpu_read_ns = at_ns;
    }

    /// Once a second: a new page in the list of users, and another look at what
    /// lies on what.
    fn turn_epoch(&mut self, at_ns: u64) {
        let passed_ns = at_ns.saturating_sub(self.epoch_began_ns);
        if passed_ns < EPOCH_NS {
            return;
        }
        // A list that nobody has turned for longer holds nothing recent.
        self.kernel.orders.epoch += (passed_ns / EPOCH_NS).min(2);
        self.epoch_began_ns = at_ns;
        let told = self.kernel.give_orders();
        self.note(told);
        let known = self.disks.known();
        self.look_at_stacks(known);
    }

    fn look_at_stacks(&mut self, disks: Vec<DiskId>) {
        self.disks.refresh(disks);
        let bottom = |disk| Some((disk, self.disks.bottom(disk)?));
        let now: BTreeMap<DiskId, DiskId> =
            self.disks.known().into_iter().filter_map(bottom).collect();
        for gone in self.beneath.keys().filter(|disk| !now.contains_key(disk)) {
            self.kernel.remove_beneath(Device::Disk(*gone));
        }
        for (disk, bottom) in &now {
            let (upper, lower) = (Device::Disk(*disk), Device::Disk(*bottom));
            let told = self.kernel.set_beneath(upper, lower);
            self.note(told);
        }
        self.beneath = now;
    }

    /// Reads what disks did, and charges what has come since the last look, so
    /// that a disk that is stacked anew takes no past along.
    fn look_at_disks(&mut self) {
        let mut now: BTreeMap<DiskKey, DiskUse> = BTreeMap::new();
        let read = self.kernel.disk_uses.each(|key, uses| {
            now.insert(key, uses.fold(DiskUse::default(), disks::sum));
        });
        self.note(read);
        let unknown = now.keys().map(|key| key.disk);
        let unknown: Vec<DiskId> = unknown.filter(|disk| !self.disks.knows(*disk)).collect();
        if !unknown.is_empty() {
            self.look_at_stacks(unknown);
        }
        let mut new: BTreeMap<u32, BTreeMap<DiskId, DiskUse>> = BTreeMap::new();
        for (key, uses) in now {
            let before = self.seen.get(&key).copied().unwrap_or_default();
            let of_party = new.entry(key.party).or_default();
            of_party.insert(key.disk, disks::since(before, uses));
            self.seen.insert(key, uses);
        }
        for (party, uses) in new {
            for (disk, more) in self.disks.settle(&uses) {
                let total = self.charged.entry((party, disk)).or_default();
                *total = disks::sum(*total, more);
            }
        }
    }

    fn look_at_links(&mut self) {
        let mut now: BTreeMap<(u32, LinkId), LinkUse> = BTreeMap::new();
        let links = &mut self.links;
        let read = self.kernel.link_uses.each(|key, uses| {
            if let Some(link) = links.id(key.interface) {
                let total = now.entry((key.party, link)).or_default();
                *total = uses.fold(*total, links::sum);
            }
        });
        if self.note(read).is_some() {
            self.link_uses = now;
        }
    }

    fn look_at_crowds(&mut self) {
        let crowds = self.kernel.crowds();
        self.crowds = self.note(crowds).unwrap_or(self.crowds);
    }

    fn watches(&self) -> bool {
        self.kernel.loaded.no_watch.is_none() && self.crowds.queues >= self.cpus
    }

    fn idle_cpus(&self) -> Option<IdleCpus> {
        let Crowds {
            vacant_since_ns,
            vacant_cpus,
            alone_since_ns,
            ..
        } = self.crowds;
        self.watches().then_some(IdleCpus {
            since_ns: Some(vacant_since_ns).filter(|ns| *ns != 0),
            cpus: vacant_cpus,
            background_only_since_ns: Some(alone_since_ns).filter(|ns| *ns != 0),
        })
    }

    pub fn ring_for(&mut self, wanted: Wanted) {
        let orders = &mut self.kernel.orders;
        let now = (u32::from(wanted.crowds), u32::from(wanted.vacancies));
        if now != (orders.crowds, orders.vacancies) {
            (orders.crowds, orders.vacancies) = now;
            let told = self.kernel.give_orders();
            self.note(told);
        }
    }

    fn metering(&self) -> Metering {
        let background = self.managed.iter();
        Metering {
            source: MeterSource::Bpf,
            cpus: self.cpus,
            idle_ns: self.idle_ns,
            cpu_read_ns: self.cpu_read_ns,
            rq_imbalances: self.crowds.found,
            idle_cpus: self.idle_cpus(),
            foreground: self.usage(FOREGROUND),
            ignored: self.usage(IGNORED),
            background: background
                .map(|(program, managed)| (*program, self.usage(managed.party)))
                .collect(),
            blocked: Vec::new(),
        }
    }

    fn usage(&self, party: u32) -> Usage {
        let cpu = self.cpu.get(&party).copied().unwrap_or_default();
        let disks = self.charged.range((party, DISK_MIN)..=(party, DISK_MAX));
        let links = self
            .link_uses
            .range((party, LinkId(0))..=(party, LinkId(u32::MAX)));
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
        // What was used until now was not background's.
        self.kernel.visit_threads()?;
        let party = self.next_party;
        let cgroup = cgroup.map(cgroup_number).transpose()?;
        self.next_party += 1;
        self.managed.insert(program, Managed { party, cgroup });
        let told = self.give_orders();
        let added = told.and_then(|()| match cgroup {
            Some((id, _)) => self.kernel.add_cgroup(id, party),
            None => self.add_kin(root, party),
        });
        if added.is_err() {
            self.forget(program);
        }
        added
    }

    /// Lists a process and its descendants. From the moment that a process is
    /// listed its children are too, so what is looked for are those born
    /// before; the search ends when it finds nobody new.
    fn add_kin(&self, root: ProcessId, party: u32) -> Result<(), MeterError> {
        let proc = &self.config.proc;
        let lives = |stat: ProcStat| stat.start_ticks == root.start_ticks;
        let mut listed = BTreeSet::from([root.pid]);
        self.kernel.add_kin(root.pid, party)?;
        if !kin::process(proc, root.pid).is_some_and(lives) {
            self.kernel.remove_kin(root.pid);
            return Err(MeterError::Gone { pid: root.pid });
        }
        loop {
            let found = kin::with_descendants(&listed, &kin::processes(proc));
            let new: Vec<i32> = found.difference(&listed).copied().collect();
            if new.is_empty() {
                return Ok(());
            }
            for pid in new {
                self.kernel.add_kin(pid, party)?;
                listed.insert(pid);
                if kin::process(proc, pid).is_none() {
                    self.kernel.remove_kin(pid);
                }
            }
        }
    }

    pub fn forget(&mut self, program: ProgramId) {
        let Some(managed) = self.managed.remove(&program) else {
            return;
        };
        let visited = self.kernel.visit_threads();
        self.note(visited);
        if let Some((id, _)) = managed.cgroup {
            self.kernel.remove_cgroup(id);
        }
        let kin = &mut self.kernel.kin;
        let removed = kin.remove_where(|_, of| of == managed.party);
        self.note(removed);
        self.forget_uses();
        let told = self.give_orders();
        self.note(told);
    }

    /// Makes room in the kernel's maps: what is no living program's goes,
    /// with what a CPU was just counting when its program was forgotten before.
    fn forget_uses(&mut self) {
        let alive: BTreeSet<u32> = self.managed.values().map(|of| of.party).collect();
        let gone = |party: u32| party >= FIRST_PROGRAM && !alive.contains(&party);
        let kernel = &mut self.kernel;
        let removed = [
            kernel.cpu_uses.remove_where(|party, _| gone(party)),
            kernel.disk_uses.remove_where(|key, _| gone(key.party)),
            kernel.link_uses.remove_where(|key, _| gone(key.party)),
        ];
        self.cpu.retain(|of, _| !gone(*of));
        self.seen.retain(|used, _| !gone(used.party));
        self.charged.retain(|(of, _), _| !gone(*of));
        self.link_uses.retain(|(of, _), _| !gone(*of));
        for removed in removed {
            self.note(removed);
        }
    }

    fn give_orders(&mut self) -> Result<(), MeterError> {
        let managed = || self.managed.values();
        let levels = managed()
            .filter_map(|of| of.cgroup)
            .map(|(_, levels)| levels);
        let orders = &mut self.kernel.orders;
        orders.levels = levels.fold(0, |all, some| all | some);
        orders.kin = u32::from(managed().any(|of| of.cgroup.is_none()));
        orders.programs = self.managed.len() as u32;
        self.kernel.give_orders()
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.kernel.bell()
    }

    pub fn names(&self) -> Names {
        Names {
            disks: self.disks.names().clone(),
            links: self.links.names(),
        }
    }

    pub fn costs(&self) -> Vec<ProgramCost> {
        let watch = ProgramCost {
            name: "look_for_crowds".to_owned(),
            runs: self.crowds.looks,
            run_ns: self.crowds.looks_ns,
        };
        // The kernel keeps no account of timers.
        let mut costs = self.kernel.loaded.costs();
        costs.push(watch);
        costs
    }

    pub fn program_ids(&self) -> Vec<u32> {
        self.kernel.loaded.program_ids()
    }

    /// Who has used a resource in the last second or two, the most first.
    pub fn top_users(&mut self, resource: Resource) -> Vec<User> {
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
        let epoch = self.kernel.orders.epoch;
        let mut found: BTreeMap<u32, (u64, UserUse)> = BTreeMap::new();
        let read = self.kernel.users.each(|key, uses| {
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

    fn ranked(&self, found: BTreeMap<u32, (u64, UserUse)>) -> Vec<User> {
        let all: u64 = found.values().map(|(recent, _)| recent).sum();
        let mut users: Vec<User> = found
            .into_iter()
            .filter(|(_, (recent, _))| *recent > 0)
            .map(|(tgid, (recent, uses))| User {
                pid: tgid as i32,
                comm: uses.comm,
                party: self.party(uses.party),
                share: recent as f64 / all as f64,
            })
            .collect();
        users.sort_by(|a, b| b.share.total_cmp(&a.share));
        users
    }

    fn party(&self, number: u32) -> Party {
        let mut managed = self.managed.iter();
        match managed.find(|(_, managed)| managed.party == number) {
            Some((program, _)) => Party::Background(*program),
            None if number == IGNORED => Party::Ignored,
            None => Party::Foreground,
        }
    }

    /// What could not be counted or told, a sentence each.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self.troubles.iter().cloned().collect();
        let kinds = [
            "threads were not counted: the kernel had no memory for their accounts",
            "uses of disks or interfaces were not counted: there were too many different ones",
            "processes were taken for foreground: a program has more than can be listed",
        ];
        let lost = self.kernel.losses().into_iter().zip(kinds);
        reasons.extend(
            lost.filter(|(count, _)| *count > 0)
                .map(|(count, what)| format!("{count} {what}")),
        );
        let missing = &self.kernel.loaded.missing;
        reasons.extend(missing.iter().map(|point| {
            format!("use of the network is not seen whole: this kernel has no trace point {point}")
        }));
        if !self.watches() {
            let why = match &self.kernel.loaded.no_watch {
                Some(refused) => {
                    format!("this kernel refuses the watch, as those before 5.17 do ({refused})")
                }
                None => format!(
                    "the run queues of {} CPUs of {} are known here",
                    self.crowds.queues, self.cpus
                ),
            };
            reasons.push(format!(
                "foreground threads that wait for one another on one CPU, while background work \
                 has another, are seen late: {why}"
            ));
        }
        let pids = fs::metadata(self.config.proc.join("self/ns/pid"));
        if pids.is_ok_and(|pids| pids.ino() != INITIAL_PIDS) {
            reasons.push(
                "processes are numbered by a container: a program without a cgroup of its own \
                 cannot be told from foreground work"
                    .to_owned(),
            );
        }
        reasons
    }

    /// Remembers what went wrong; the figures stay as they were.
    fn note<T>(&mut self, result: Result<T, MeterError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.troubles.insert(error.to_string());
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

/// The kernel's number of a cgroup, and the level that it lies on as a bit;
/// all levels where a namespace hides how deep its root lies.
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
