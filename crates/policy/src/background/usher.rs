// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regulation `usher`: stops and continues each background program separately, according to the
//! resources that it uses. If the meter sends notifications, a stop follows a foreground request
//! within milliseconds.
//!
//! Each disk and interface has a [`DeviceThrottle`]; all CPUs together have a [`CpuThrottle`]. A
//! resource is *open* while its throttle permits background work. A program runs while every
//! resource that it uses is open. Work on one disk thus continues while the foreground uses another
//! disk. A program uses a device if it made a request in the last [`USING_NS`] of its run time. A
//! stopped program is assumed to need the resources that it used when it was stopped.
//!
//! *Sampling*. A foreground request to a device that background work uses sends a notification,
//! after which the meter is sampled within a millisecond. While no notification arrives, samples
//! are at most [`CALM_NS`] apart, or at most 100 ms if the meter cannot send notifications. For the
//! CPUs, a kernel timer sends notifications. Without the kernel timer, samples are more frequent
//! while background work runs on the CPUs and little CPU time is idle. While a program is stopped,
//! a sample is due when the resources of the program may open. In addition, ten samples per second
//! check whether the program blocks a foreground process.
//!
//! *Locks*. A stopped program may hold a lock that a foreground process waits for. If the meter
//! reports such a process, the program continues at once for a *grace run*. Only the next stop
//! shows whether the lock has been released. If the program blocks a process again within 1 s after
//! a grace run, the next grace run is twice as long, up to 1.6 s. Because some locks are not
//! detected, every stop ends after [`STOPPED_NS_MAX`] at the latest, with a grace run of
//! [`GRACE_NS`]. Collisions during grace runs are charged as usual.
//!
//! *Cost*. A sample takes time in proportion to devices x programs x devices that a program uses.
//! Budgets of devices are kept after the last program has departed, while the policy exists.

use std::collections::{BTreeMap, BTreeSet};

use usher_model::{Contention, MeterSource, Metering, ProgramId, Resource, Usage};

use super::budget::DelayBudget;
use super::cpus::{ACTIVE_NS, CONTENDED_NS, CpuThrottle, CpuWindow, WINDOW_NS_MIN};
use super::device_throttle::{
    DISK, DeviceSample, DeviceThrottle, LINK, NO_NOTIFY_NS, RecentUse, Requests,
};
use super::regulator::{RegulationChange, TickCtx};

/// A program counts as a user of a device for this time after its last request.
pub const USING_NS: u64 = 100_000_000;
/// Interval between samples without activity.
pub const CALM_NS: u64 = 250_000_000;
/// Interval between checks whether a stopped program blocks a foreground process.
const BLOCK_CHECK_NS: u64 = 100_000_000;
/// Longest stop, after which a grace run follows even if the resources are closed.
pub const STOPPED_NS_MAX: u64 = 10_000_000_000;
/// Length of a grace run after the longest stop, or after the program blocked a foreground process.
/// The length doubles, up to `GRACE_NS_MAX`, each time that the program blocks a process again
/// within `AGAIN_NS` after a grace run.
pub const GRACE_NS: u64 = 50_000_000;
const GRACE_NS_MAX: u64 = 1_600_000_000;
const AGAIN_NS: u64 = 1_000_000_000;
/// Interval between samples while a program may soon use a closed device.
const NEAR_NS: u64 = 25_000_000;
/// Time after a program's last use of a device during which the program is expected to use the
/// device again.
const MAY_USE_NS: u64 = 2_000_000_000;
/// A program that uses or waits for fewer CPUs than this number is not stopped because of the CPUs.
const USES_CPUS: f64 = 0.05;

/// Requests of one accounting owner to a device. For a disk: its requests. For an interface: the
/// sum of sending calls, receiving calls and packets.
fn requests(usage: &Usage, resource: Resource) -> Requests {
    let none = Requests::default();
    match resource {
        Resource::Cpu => none,
        Resource::Disk(disk) => usage.disks.get(&disk).map_or(none, |d| Requests {
            total: d.requests,
            last_ns: d.last_ns,
        }),
        Resource::Link(link) => usage.links.get(&link).map_or(none, |l| Requests {
            total: l.sends + l.receives + l.packets,
            last_ns: l.last_ns,
        }),
    }
}

/// Load on a device: the number of packets of an interface, if known, otherwise the number of
/// requests.
fn burden(usage: &Usage, resource: Resource) -> u64 {
    let packets = match resource {
        Resource::Link(link) => usage.links.get(&link).map_or(0, |l| l.packets),
        Resource::Cpu | Resource::Disk(_) => 0,
    };
    match packets {
        0 => requests(usage, resource).total,
        packets => packets,
    }
}

/// Sectors that the kernel wrote back later, which count as use of the disk by the program that
/// wrote the data.
fn written_back(usage: &Usage, resource: Resource) -> u64 {
    match resource {
        Resource::Disk(disk) => usage.disks.get(&disk).map_or(0, |d| d.async_sectors),
        Resource::Cpu | Resource::Link(_) => 0,
    }
}

fn devices(usage: &Usage) -> impl Iterator<Item = Resource> {
    let disks = usage.disks.keys().map(|&disk| Resource::Disk(disk));
    disks.chain(usage.links.keys().map(|&link| Resource::Link(link)))
}

/// State of one program under the regulation `usher`.
#[derive(Debug, Clone, Default)]
struct ProgramUse {
    /// Figures of the last sample; `None` before the first.
    seen: Option<Usage>,
    /// Time of the last CPU reading, and the CPU time used plus waited for until then.
    cpu_read: Option<(u64, u64)>,
    /// Whether enough CPU times were read to decide if the program uses the CPUs.
    cpu_use_known: bool,
    /// Time of the last use of each resource. For the CPUs, only the existence of the entry counts.
    used: BTreeMap<Resource, u64>,
    /// Start of the present stop.
    stopped_ns: Option<u64>,
    /// End of the last grace run; `grace_ns` is its length.
    grace_until_ns: u64,
    grace_ns: u64,
}

impl ProgramUse {
    /// Processes the program's figures.
    fn read(&mut self, usage: &Usage, ctx: &TickCtx) {
        let before = self.seen.replace(usage.clone()).unwrap_or_default();
        let wanted_ns = usage.cpu_ns + usage.wait_ns;
        if self.stopped_ns.is_some() {
            self.cpu_read = Some((ctx.metering.cpu_read_ns, wanted_ns));
            return;
        }
        for device in devices(usage) {
            let (then, now) = (requests(&before, device), requests(usage, device));
            let wrote = written_back(usage, device) > written_back(&before, device);
            if now.total <= then.total && !wrote {
                continue;
            }
            let at_ns = now.last_ns.filter(|_| !wrote).unwrap_or(ctx.at_ns);
            self.used.insert(device, at_ns.min(ctx.at_ns));
        }
        self.read_cpu(wanted_ns, ctx);
        let at_ns = ctx.at_ns;
        self.used
            .retain(|_, used_ns| *used_ns + MAY_USE_NS >= at_ns);
    }

    /// Processes `wanted_ns`, the CPU time that the program used plus the time for which it waited
    /// for CPUs.
    fn read_cpu(&mut self, wanted_ns: u64, ctx: &TickCtx) {
        let now_ns = ctx.metering.cpu_read_ns;
        let (read_ns, before_ns) = *self.cpu_read.get_or_insert((now_ns, wanted_ns));
        let window_ns = now_ns.saturating_sub(read_ns);
        if window_ns < WINDOW_NS_MIN {
            return;
        }
        let cpus = wanted_ns.saturating_sub(before_ns) as f64 / window_ns as f64;
        self.used.remove(&Resource::Cpu);
        if cpus >= USES_CPUS {
            self.used.insert(Resource::Cpu, ctx.at_ns);
        }
        self.cpu_read = Some((now_ns, wanted_ns));
        self.cpu_use_known = true;
    }

    /// Resources that the program uses now, or used when it was stopped.
    fn uses(&self, at_ns: u64) -> impl Iterator<Item = Resource> + '_ {
        let is_now = move |used_ns: u64| used_ns + USING_NS >= at_ns;
        let each = self.used.iter();
        each.filter(move |&(&resource, &used_ns)| {
            resource == Resource::Cpu || self.stopped_ns.is_some() || is_now(used_ns)
        })
        .map(|(&resource, _)| resource)
    }

    fn stop(&mut self, at_ns: u64) {
        let uses: BTreeSet<_> = self.uses(at_ns).collect();
        self.used.retain(|resource, _| uses.contains(resource));
        self.stopped_ns = Some(at_ns);
    }

    /// Starts a grace run, during which no contention stops the program.
    fn start_grace(&mut self, at_ns: u64, is_blocking: bool) {
        let again = is_blocking && at_ns < self.grace_until_ns + AGAIN_NS;
        self.grace_ns = match again {
            true => (self.grace_ns * 2).clamp(GRACE_NS, GRACE_NS_MAX),
            false => GRACE_NS,
        };
        self.grace_until_ns = at_ns + self.grace_ns;
    }

    fn resume(&mut self, at_ns: u64) {
        self.stopped_ns = None;
        self.used.values_mut().for_each(|used_ns| *used_ns = at_ns);
    }
}

/// All programs under the regulation `usher`, and the throttles of the resources.
#[derive(Debug, Clone, Default)]
pub(super) struct Controller {
    members: BTreeMap<ProgramId, ProgramUse>,
    throttles: BTreeMap<Resource, DeviceThrottle>,
    cpus: Option<CpuThrottle>,
    /// Budgets at the time when the last program departed. The next program starts with these
    /// budgets, because a full budget for each of many successive programs would void the bound on
    /// the delay.
    budgets: BTreeMap<Resource, DelayBudget>,
}

impl Controller {
    pub fn insert(&mut self, id: ProgramId) {
        self.members.entry(id).or_default();
    }

    pub fn remove(&mut self, id: ProgramId) {
        self.members.remove(&id);
        if self.members.is_empty() {
            let throttles = std::mem::take(&mut self.throttles);
            let devices = throttles
                .into_iter()
                .map(|(id, throttle)| (id, throttle.budget()));
            let cpus = self.cpus.take().map(|cpus| (Resource::Cpu, cpus.budget()));
            self.budgets.extend(devices.chain(cpus));
        }
    }

    /// Processes a sample; returns the changes to make.
    pub fn update(&mut self, ctx: &TickCtx) -> Vec<(ProgramId, RegulationChange)> {
        for (id, member) in &mut self.members {
            if let Some(usage) = ctx.metering.background.get(id) {
                member.read(usage, ctx);
            }
        }
        self.update_devices(ctx);
        let budget = self.budgets.get(&Resource::Cpu).copied();
        let cpus = self
            .cpus
            .get_or_insert_with(|| CpuThrottle::new(ctx.at_ns, budget));
        cpus.update(ctx.at_ns, ctx.metering, ctx.thresholds.idle);
        let ids: Vec<_> = self.members.keys().copied().collect();
        let change = |id| Some((id, self.evaluate(id, ctx)?));
        ids.into_iter().filter_map(change).collect()
    }

    fn update_devices(&mut self, ctx: &TickCtx) {
        let metering = ctx.metering;
        let theirs = self.members.keys();
        let mut all: BTreeSet<_> = theirs
            .filter_map(|id| metering.background.get(id))
            .flat_map(devices)
            .collect();
        all.extend(devices(&metering.foreground));
        for device in all {
            let sample = self.device_sample(device, ctx);
            let kind = match device {
                Resource::Link(_) => LINK,
                Resource::Cpu | Resource::Disk(_) => DISK,
            };
            let budget = self.budgets.get(&device).copied();
            let throttle = self.throttles.entry(device);
            throttle
                .or_insert_with(|| DeviceThrottle::new(kind, &sample, budget))
                .update(&sample);
        }
    }

    fn device_sample(&self, device: Resource, ctx: &TickCtx) -> DeviceSample {
        let usage = |id| ctx.metering.background.get(id);
        let own = self.members.keys().filter_map(usage);
        let runs = |m: &&ProgramUse| m.stopped_ns.is_none();
        let uses_it = |m: &&ProgramUse| m.uses(ctx.at_ns).any(|used| used == device);
        let running = self.members.values().filter(runs);
        DeviceSample {
            at_ns: ctx.at_ns,
            foreground: requests(&ctx.metering.foreground, device),
            background: own.map(|usage| burden(usage, device)).sum(),
            users: running.filter(uses_it).count() as u32,
            notifies: has_notify(ctx.metering),
        }
    }

    fn is_open(&self, resource: Resource, at_ns: u64) -> bool {
        match resource {
            Resource::Cpu => self.cpus.as_ref().is_none_or(CpuThrottle::is_open),
            _ => (self.throttles.get(&resource)).is_none_or(|throttle| throttle.is_open(at_ns)),
        }
    }

    /// Closed resources that the program uses.
    fn closed(&self, member: &ProgramUse, at_ns: u64) -> Vec<Resource> {
        let closed = |resource: &Resource| !self.is_open(*resource, at_ns);
        member.uses(at_ns).filter(closed).collect()
    }

    fn evaluate(&mut self, id: ProgramId, ctx: &TickCtx) -> Option<RegulationChange> {
        let at_ns = ctx.at_ns;
        let blocked = ctx.blocked_by(id);
        let member = self.members.get(&id)?;
        let closed = self.closed(member, at_ns);
        let Some(stopped_ns) = member.stopped_ns else {
            if at_ns < member.grace_until_ns || closed.is_empty() {
                return None;
            }
            let (contention, why) = self.reason(closed[0]);
            self.members.get_mut(&id)?.stop(at_ns);
            return Some(RegulationChange::Stop(contention, why));
        };
        let is_long = at_ns >= stopped_ns + STOPPED_NS_MAX;
        let is_blocking = blocked.is_some();
        let change = match blocked {
            Some(why) => RegulationChange::GraceRun(why),
            None if closed.is_empty() => {
                RegulationChange::Continue(self.describe_open(member, at_ns))
            }
            None if is_long => RegulationChange::GraceRun(long_enough()),
            None => return None,
        };
        let member = self.members.get_mut(&id)?;
        if matches!(change, RegulationChange::GraceRun(_)) {
            member.start_grace(at_ns, is_blocking);
        }
        member.resume(at_ns);
        Some(change)
    }

    /// Reason why a resource is closed, as figures and as text.
    fn reason(&self, resource: Resource) -> (Contention, String) {
        match (resource, self.throttles.get(&resource), &self.cpus) {
            (Resource::Cpu, _, Some(cpus)) if cpus.is_imbalance() => {
                for_imbalance(cpus.last_window())
            }
            (Resource::Cpu, _, Some(cpus)) => for_cpus(cpus.last_window()),
            (_, Some(throttle), _) => for_device(resource, throttle),
            _ => for_cpus(CpuWindow::default()),
        }
    }

    fn describe_open(&self, member: &ProgramUse, at_ns: u64) -> String {
        let clear = |resource: Resource| {
            let (budget_ns, clear) = match (resource, &self.cpus) {
                (Resource::Cpu, Some(cpus)) => (cpus.budget_ns(), "have idle capacity"),
                _ => (self.throttles.get(&resource)?.budget_ns(), "is quiet"),
            };
            let ms = budget_ns / 1e6;
            Some(format!(
                "{resource} {clear} ({ms:.1} ms left of the delay budget)"
            ))
        };
        let each: Vec<_> = member.uses(at_ns).filter_map(clear).collect();
        each.join(", ")
    }

    /// Time of the next sample.
    pub fn wake_ns(&self, at_ns: u64, metering: Option<&Metering>) -> Option<u64> {
        let calm_ns = match metering.is_some_and(has_notify) {
            true => CALM_NS,
            false => NO_NOTIFY_NS,
        };
        let each = self.members.values();
        each.map(|member| match member.stopped_ns {
            Some(stopped_ns) => self
                .opens(member, at_ns)
                .min(stopped_ns + STOPPED_NS_MAX)
                .min(at_ns + BLOCK_CHECK_NS),
            None => self.wake_running_ns(member, at_ns, calm_ns),
        })
        .min()
    }

    /// Time at which all resources that a stopped program needs may be open.
    fn opens(&self, member: &ProgramUse, at_ns: u64) -> u64 {
        let opens = |resource: Resource| match resource {
            Resource::Cpu => at_ns + self.cpus_interval_ns(CONTENDED_NS),
            _ => (self.throttles.get(&resource)).map_or(at_ns, |throttle| throttle.wake_ns(at_ns)),
        };
        let closed = self.closed(member, at_ns).into_iter();
        closed.map(opens).max().unwrap_or(at_ns)
    }

    fn cpus_interval_ns(&self, else_ns: u64) -> u64 {
        let cpus = self.cpus.as_ref();
        cpus.map_or(else_ns, |cpus| cpus.sample_interval_ns(else_ns))
    }

    fn wake_running_ns(&self, member: &ProgramUse, at_ns: u64, calm_ns: u64) -> u64 {
        if member.grace_until_ns > at_ns {
            return member.grace_until_ns;
        }
        let closed = |resource: &&Resource| !self.is_open(**resource, at_ns);
        if member.used.keys().find(closed).is_some() {
            return at_ns + NEAR_NS;
        }
        let on_cpus = member.used.contains_key(&Resource::Cpu) || !member.cpu_use_known;
        let contended = self.cpus.as_ref().is_none_or(CpuThrottle::is_contended);
        at_ns
            + match (on_cpus, contended) {
                (true, true) => self.cpus_interval_ns(CONTENDED_NS).min(calm_ns),
                (true, false) => self.cpus_interval_ns(ACTIVE_NS).min(calm_ns),
                (false, _) => calm_ns,
            }
    }
}

fn has_notify(metering: &Metering) -> bool {
    metering.source == MeterSource::Bpf
}

fn long_enough() -> String {
    let (long, run) = (STOPPED_NS_MAX / 1_000_000_000, GRACE_NS / 1_000_000);
    format!(
        "for {run} ms, because the program was stopped for {long} s and may hold a lock that \
         foreground threads wait for"
    )
}

fn for_cpus(window: CpuWindow) -> (Contention, String) {
    let why = format!(
        "foreground threads waited for CPUs ({:.1} threads on average in the last {} ms, while \
         {:.1} CPUs were idle), and the delay budget is spent",
        window.waits,
        window.window_ns / 1_000_000,
        window.idle
    );
    (waits(window), why)
}

fn for_imbalance(window: CpuWindow) -> (Contention, String) {
    let why = "foreground threads waited for a CPU while background work ran on another CPU; \
               background work continues when a CPU is idle";
    (waits(window), why.to_owned())
}

/// Converts the figures of a CPU window to a contention for the CPUs.
fn waits(window: CpuWindow) -> Contention {
    let ns = |cpus: f64| (cpus * window.window_ns as f64) as u64;
    Contention {
        resource: Resource::Cpu,
        background: ns(window.background),
        foreground: ns(window.waits),
        window_ns: window.window_ns,
        threshold: 0.0,
    }
}

fn for_device(resource: Resource, throttle: &DeviceThrottle) -> (Contention, String) {
    let RecentUse {
        foreground,
        background,
        window_ns,
    } = throttle.recent();
    let unit = match resource {
        Resource::Link(_) => "calls and packets",
        Resource::Cpu | Resource::Disk(_) if foreground == 1 => "request",
        Resource::Cpu | Resource::Disk(_) => "requests",
    };
    let used = match foreground {
        0 => format!("the foreground has just used {resource}"),
        _ => format!(
            "the foreground uses {resource} ({foreground} {unit} in the last {} ms)",
            window_ns.div_ceil(1_000_000)
        ),
    };
    let quiet_ms = throttle.required_quiet_ns() / 1_000_000;
    let why = format!(
        "{used}; background work continues after {quiet_ms} ms without a foreground request"
    );
    let contention = Contention {
        resource,
        background,
        foreground,
        window_ns,
        threshold: throttle.required_quiet_ns() as f64,
    };
    (contention, why)
}
