// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small model of a machine with foreground and background programs, in steps of 0.1 ms. Devices
//! serve requests in the order of arrival; CPUs serve the foreground first, except for a leak; a
//! meter counts and sends notifications. The model uses no production code except the value types.

#![allow(dead_code)] // each user needs a part

use std::collections::{BTreeMap, VecDeque};

use usher_model::*;
use usher_policy::{Linux, Policy, RegulatedPolicy};

pub use crate::fixtures::{no_metering, program, topology};

pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;
pub const TICK_NS: u64 = 100_000;
/// Delay from a foreground request to the sample that the notification of the request causes.
const NOTIFY_DELAY_NS: u64 = MS;
/// Time after a sample during which no notification is sent.
const NOTIFY_HOLDOFF_NS: u64 = 5 * MS;
/// Idle time of a CPU after which a notification is sent.
const IDLE_NOTIFY_NS: u64 = 16 * MS;
/// Delay from a decision to its effect.
const ACT_NS: u64 = 300_000;

pub const DISK: Resource = Resource::Disk(DiskId { major: 8, minor: 0 });
pub const DISK_2: Resource = Resource::Disk(DiskId {
    major: 8,
    minor: 16,
});
pub const LINK: Resource = Resource::Link(LinkId(2));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestOwner {
    Foreground,
    Background(ProgramId),
}

#[derive(Debug, Clone, Default)]
struct Device {
    service_ns: u64,
    /// The requests' owners and remaining service times.
    queue: VecDeque<(RequestOwner, u64)>,
}

/// Foreground work without interruption, and the pause after it.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Requests of the device, or milliseconds of CPU time per thread.
    pub work: u64,
    pub pause_ns: u64,
}

/// The foreground: a repeated sequence of steps.
#[derive(Debug, Clone)]
pub struct Foreground {
    pub resource: Resource,
    pub steps: Vec<Step>,
    /// Pause between two requests of a step.
    pub think_ns: u64,
    /// Threads, if the resource is the CPUs.
    pub threads: u32,
    step: usize,
    done_ns: u64,
    asleep_until_ns: u64,
    /// Whether a request is outstanding.
    pub waits: bool,
    /// Total work done; `worked_ns` is the time at which it was completed.
    pub total: u64,
    pub worked_ns: u64,
}

impl Foreground {
    pub fn new(resource: Resource, steps: Vec<Step>) -> Self {
        Self {
            resource,
            steps,
            think_ns: 0,
            threads: 1,
            step: 0,
            done_ns: 0,
            asleep_until_ns: 0,
            waits: false,
            total: 0,
            worked_ns: 0,
        }
    }

    /// Ends the pause.
    pub fn wake(&mut self) {
        self.asleep_until_ns = 0;
    }

    /// Completes a unit of work.
    fn advance(&mut self, now_ns: u64) {
        self.waits = false;
        self.total += 1;
        self.worked_ns = now_ns;
        self.done_ns += 1;
        self.asleep_until_ns = now_ns + self.think_ns;
        let step = self.steps[self.step % self.steps.len()];
        if self.done_ns >= step.work {
            self.done_ns = 0;
            self.step += 1;
            self.asleep_until_ns = now_ns + step.pause_ns;
        }
    }
}

#[derive(Debug, Clone)]
pub struct Background {
    pub resource: Resource,
    /// Number of outstanding requests on a device, or of threads on the CPUs.
    pub depth: u32,
    pub frozen: bool,
    in_flight: u32,
    /// Nanoseconds of device or CPU time used.
    pub work_ns: u64,
    /// Number of stops.
    pub stops: u64,
    pub frozen_since_ns: u64,
    pub demoted: Option<Demotion>,
    wait_ns: u64,
}

pub struct World {
    pub at_ns: u64,
    pub cpus: u32,
    /// Share of a foreground thread's CPU time that background threads take while all CPUs are
    /// busy.
    pub leak: f64,
    pub notifies: bool,
    /// Whether the kernel watches for idle CPUs and sends notifications.
    pub watched: bool,
    /// Least interval between two readings of CPU times.
    pub cpu_every_ns: u64,
    /// Number of following actions that fail.
    pub refuses: u32,
    pub foreground: Vec<Foreground>,
    pub background: BTreeMap<ProgramId, Background>,
    /// A resource that always-on services use all the time.
    pub ignored: Option<Resource>,
    /// A process that waits for a stopped program.
    pub held: Option<BlockedProcess>,
    pub samples: u64,
    pub log: Vec<(Observation, Decision)>,
    pub keeps_log: bool,
    /// Nanoseconds per request, by device.
    pub service_ns: BTreeMap<Resource, u64>,
    devices: BTreeMap<Resource, Device>,
    metering: Metering,
    live: Metering,
    cpu_debt_ns: f64,
    next_sample_ns: u64,
    scope: SampleScope,
    notify_ns: Option<u64>,
    sampled_ns: u64,
    effects: VecDeque<(u64, Action)>,
    events: Vec<Event>,
    failed: Vec<FailedAction>,
}

impl World {
    pub fn new(cpus: u32) -> Self {
        Self {
            at_ns: 0,
            cpus,
            leak: 0.0,
            notifies: true,
            watched: true,
            cpu_every_ns: 0,
            refuses: 0,
            foreground: vec![],
            background: BTreeMap::new(),
            ignored: None,
            held: None,
            samples: 0,
            log: vec![],
            keeps_log: false,
            service_ns: BTreeMap::new(),
            devices: BTreeMap::new(),
            metering: no_metering(cpus),
            live: no_metering(cpus),
            cpu_debt_ns: 0.0,
            next_sample_ns: 0,
            scope: SampleScope::All,
            notify_ns: None,
            sampled_ns: 0,
            effects: VecDeque::new(),
            events: vec![],
            failed: vec![],
        }
    }

    pub fn device(mut self, resource: Resource, service_ns: u64) -> Self {
        let queue = VecDeque::new();
        self.service_ns.insert(resource, service_ns);
        self.devices.insert(resource, Device { service_ns, queue });
        self
    }

    pub fn arrive(&mut self, id: u64, regulation: Regulation, resource: Resource, depth: u32) {
        let arrival = program(id, Some(regulation));
        self.events.push(Event::Arrived(Box::new(arrival)));
        let background = Background {
            resource,
            depth,
            frozen: false,
            in_flight: 0,
            work_ns: 0,
            stops: 0,
            frozen_since_ns: 0,
            demoted: None,
            wait_ns: 0,
        };
        self.background.insert(ProgramId(id), background);
        self.live.background.insert(ProgramId(id), Usage::default());
        self.next_sample_ns = self.at_ns;
    }

    /// Removes the background programs, with the queued events of their arrivals.
    pub fn without_background(mut self) -> Self {
        self.background.clear();
        self.live.background.clear();
        self.events.clear();
        self
    }

    pub fn depart(&mut self, id: u64) {
        self.background.remove(&ProgramId(id));
        self.live.background.remove(&ProgramId(id));
        self.events.push(Event::Departed(ProgramId(id)));
        self.next_sample_ns = self.at_ns;
    }

    pub fn bg(&self, id: u64) -> &Background {
        &self.background[&ProgramId(id)]
    }

    pub fn run(&mut self, policy: &mut dyn Policy, ns: u64) {
        let until_ns = self.at_ns + ns;
        while self.at_ns < until_ns {
            self.tick(policy);
        }
    }

    /// Runs under `RegulatedPolicy` with the present thresholds.
    pub fn run_regulated(&mut self, ns: u64) {
        let mut policy = regulated(self.cpus);
        self.run(&mut policy, ns);
    }

    pub fn tick(&mut self, policy: &mut dyn Policy) {
        while self.effects.front().is_some_and(|e| e.0 <= self.at_ns) {
            let (_, action) = self.effects.pop_front().unwrap();
            self.take_effect(&action);
        }
        if let Some(resource) = self.ignored {
            charge(&mut self.live.ignored, resource, self.at_ns);
        }
        self.submit_foreground();
        self.submit_background();
        if self.at_ns >= self.next_sample_ns || self.notify_ns.is_some_and(|ns| self.at_ns >= ns) {
            self.sample_and_act(policy);
        }
        self.serve();
        self.spend_cpus();
        self.at_ns += TICK_NS;
    }

    fn submit_foreground(&mut self) {
        let at_ns = self.at_ns;
        let runs = self.background.values().any(|b| !b.frozen);
        for fg in &mut self.foreground {
            if fg.resource == Resource::Cpu || fg.waits || at_ns < fg.asleep_until_ns {
                continue;
            }
            fg.waits = true;
            let device = self.devices.get_mut(&fg.resource).unwrap();
            device
                .queue
                .push_back((RequestOwner::Foreground, device.service_ns));
            charge(&mut self.live.foreground, fg.resource, at_ns);
            if self.notifies && runs && self.notify_ns.is_none() {
                let armed_ns = self.sampled_ns + NOTIFY_HOLDOFF_NS;
                self.notify_ns = Some(armed_ns.max(at_ns + NOTIFY_DELAY_NS));
            }
        }
    }

    fn submit_background(&mut self) {
        for (&id, bg) in &mut self.background {
            let Some(device) = self.devices.get_mut(&bg.resource) else {
                continue;
            };
            while !bg.frozen && bg.in_flight < bg.depth {
                bg.in_flight += 1;
                let request = (RequestOwner::Background(id), device.service_ns);
                device.queue.push_back(request);
                charge(
                    self.live.background.get_mut(&id).unwrap(),
                    bg.resource,
                    self.at_ns,
                );
            }
        }
    }

    fn serve(&mut self) {
        for (&resource, device) in &mut self.devices {
            let Some((owner, left_ns)) = device.queue.front_mut() else {
                continue;
            };
            *left_ns = left_ns.saturating_sub(TICK_NS);
            let (owner, is_done) = (*owner, *left_ns == 0);
            if let RequestOwner::Background(id) = owner
                && let Some(bg) = self.background.get_mut(&id)
            {
                bg.work_ns += TICK_NS;
                bg.in_flight -= u32::from(is_done);
            }
            if is_done {
                device.queue.pop_front();
                let usage = match owner {
                    RequestOwner::Foreground => Some(&mut self.live.foreground),
                    RequestOwner::Background(id) => self.live.background.get_mut(&id),
                };
                send(usage, resource, self.at_ns);
            }
            if is_done && owner == RequestOwner::Foreground {
                let mut waiting = self.foreground.iter_mut();
                let fg = waiting.find(|fg| fg.waits && fg.resource == resource);
                fg.unwrap().advance(self.at_ns + TICK_NS);
            }
        }
    }

    fn spend_cpus(&mut self) {
        let at_ns = self.at_ns;
        let on_cpus =
            |fg: &&mut Foreground| fg.resource == Resource::Cpu && at_ns >= fg.asleep_until_ns;
        let mut active: Vec<_> = self.foreground.iter_mut().filter(on_cpus).collect();
        let threads: u32 = active.iter().map(|fg| fg.threads).sum();
        let runs = |b: &&mut Background| b.resource == Resource::Cpu && !b.frozen;
        let mut others: Vec<_> = self.background.values_mut().filter(runs).collect();
        let wanted: u32 = others.iter().map(|bg| bg.depth).sum();
        let is_full = threads + wanted > self.cpus && wanted > 0;
        let kept = 1.0 - if is_full { self.leak } else { 0.0 };
        let got = f64::from(threads.min(self.cpus)) * kept;
        let tick = TICK_NS as f64;
        for fg in &mut active {
            fg.done_ns += (tick * got / f64::from(threads)) as u64;
            let step = fg.steps[fg.step % fg.steps.len()];
            fg.total += (tick * got / f64::from(threads)) as u64;
            fg.worked_ns = at_ns + TICK_NS;
            if fg.done_ns >= step.work * MS {
                fg.done_ns = 0;
                fg.step += 1;
                fg.asleep_until_ns = at_ns + TICK_NS + step.pause_ns;
            }
        }
        let left = (f64::from(self.cpus) - got).max(0.0);
        let taken = left.min(f64::from(wanted));
        for bg in &mut others {
            let got_ns = tick * taken * f64::from(bg.depth) / f64::from(wanted);
            bg.work_ns += got_ns as u64;
            bg.wait_ns += (tick * f64::from(bg.depth) - got_ns) as u64;
        }
        for (id, bg) in self
            .background
            .iter()
            .filter(|(_, b)| b.resource == Resource::Cpu)
        {
            let usage = self.live.background.get_mut(id).unwrap();
            (usage.cpu_ns, usage.wait_ns) = (bg.work_ns, bg.wait_ns);
        }
        self.live.foreground.cpu_ns += (tick * got) as u64;
        self.live.foreground.wait_ns += (tick * (f64::from(threads) - got)) as u64;
        self.live.idle_ns += (tick * (left - taken)) as u64;
        self.update_idle_cpus((left - taken) as u32);
    }

    fn update_idle_cpus(&mut self, idle: u32) {
        if !self.watched {
            return;
        }
        let at_ns = self.at_ns;
        let before = self.live.idle_cpus.filter(|_| idle > 0);
        let since_ns = before.and_then(|idle_cpus| idle_cpus.since_ns);
        let cpus = match since_ns {
            Some(_) => before.map_or(idle, |idle_cpus| idle_cpus.cpus.min(idle)),
            None => idle,
        };
        let since_ns = since_ns.or((idle > 0).then_some(at_ns));
        let is_alone = idle == self.live.cpus;
        let alone_ns = before
            .and_then(|idle_cpus| idle_cpus.background_only_since_ns)
            .filter(|_| is_alone);
        self.live.idle_cpus = Some(IdleCpus {
            since_ns,
            cpus,
            background_only_since_ns: alone_ns.or(is_alone.then_some(at_ns)),
        });
        let waits = (self.background.values()).any(|b| b.frozen && b.resource == Resource::Cpu);
        let is_notified = since_ns.is_some_and(|ns| at_ns == ns + IDLE_NOTIFY_NS);
        if waits && is_notified && self.notify_ns.is_none() {
            self.notify_ns = Some((self.sampled_ns + NOTIFY_HOLDOFF_NS).max(at_ns));
        }
    }

    fn metering(&mut self) -> Metering {
        let stale = self.metering.clone();
        let mut now = self.live.clone();
        now.cpu_read_ns = self.at_ns;
        if self.at_ns < stale.cpu_read_ns + self.cpu_every_ns {
            now.cpu_read_ns = stale.cpu_read_ns;
            now.idle_ns = stale.idle_ns;
            now.foreground.cpu_ns = stale.foreground.cpu_ns;
            now.foreground.wait_ns = stale.foreground.wait_ns;
            for (id, usage) in &mut now.background {
                usage.cpu_ns = stale.background.get(id).map_or(0, |usage| usage.cpu_ns);
            }
        }
        if !self.notifies {
            now.source = MeterSource::Proc;
        }
        let stopped = |held: &BlockedProcess| {
            self.background
                .get(&held.blocked_by)
                .is_some_and(|b| b.frozen)
        };
        now.blocked = self.held.clone().filter(stopped).into_iter().collect();
        self.metering = now.clone();
        now
    }

    fn sample_and_act(&mut self, policy: &mut dyn Policy) {
        self.samples += 1;
        self.notify_ns = None;
        self.sampled_ns = self.at_ns;
        let observation = Observation {
            at_ns: self.at_ns,
            usable: CpuSet::range(0, self.cpus - 1),
            events: std::mem::take(&mut self.events),
            failed: std::mem::take(&mut self.failed),
            programs: vec![],
            metering: Some(self.metering()),
        };
        let decision = policy.decide(&observation);
        for action in &decision.actions {
            if self.refuses > 0 {
                self.refuses -= 1;
                let (action, error) = (action.clone(), "refused".to_owned());
                self.failed.push(FailedAction { action, error });
            } else {
                self.effects
                    .push_back((self.at_ns + ACT_NS, action.clone()));
            }
        }
        let wait_ns = decision.wake_after_ns.unwrap_or(3600 * S);
        let soon_ns = if self.failed.is_empty() {
            wait_ns
        } else {
            wait_ns.min(10 * MS)
        };
        self.next_sample_ns = self.at_ns + soon_ns.max(TICK_NS);
        self.scope = decision.scope;
        if self.keeps_log {
            self.log.push((observation, decision));
        }
    }

    fn take_effect(&mut self, action: &Action) {
        let at_ns = self.at_ns;
        let Some(bg) = self.background.get_mut(&action.program()) else {
            return;
        };
        match action {
            Action::Freeze { .. } => {
                bg.frozen = true;
                bg.stops += 1;
                bg.frozen_since_ns = at_ns;
            }
            Action::Thaw { .. } => bg.frozen = false,
            Action::Demote { to, .. } => bg.demoted = Some(*to),
            other => panic!("{other:?}"),
        }
    }
}

fn charge(usage: &mut Usage, resource: Resource, at_ns: u64) {
    match resource {
        Resource::Cpu => {}
        Resource::Disk(disk) => {
            let used = usage.disks.entry(disk).or_default();
            used.requests += 1;
            used.sync_sectors += 8;
            used.last_ns = Some(at_ns);
        }
        Resource::Link(link) => {
            let used = usage.links.entry(link).or_default();
            used.sends += 1;
            used.sent_bytes += 1500;
            used.last_ns = Some(at_ns);
        }
    }
}

/// Sends a packet, possibly long after the call that queued it.
fn send(usage: Option<&mut Usage>, resource: Resource, at_ns: u64) {
    if let (Some(usage), Resource::Link(link)) = (usage, resource) {
        let used = usage.links.entry(link).or_default();
        used.packets += 1;
        used.last_ns = Some(at_ns);
    }
}

/// A regulator around a policy that never acts.
pub fn regulated(cpus: u32) -> RegulatedPolicy<Linux> {
    RegulatedPolicy::new(Linux::new(topology(cpus)))
}
