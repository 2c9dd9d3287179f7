// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs do to one another's speed: caches, memory controllers,
//! clock rates, hardware threads.
//!
//! Caches fill and controllers' queues build up over many requests, so what
//! counts is who ran lately, not who runs this very moment: every [`PERIOD_NS`]
//! the engine takes the mean number of threads of each program that ran in
//! each domain since the last time, and sets each program's speed there:
//!
//! ```text
//! speed = clock / ((1 - stall) + stall * slow)
//! slow  = (1 + sensitivity * miss) * distance * queueing
//! ```
//!
//! - *miss*: the part of all that runs in the domain (each program's shared
//!   bytes once, its private bytes a thread) that the domain's cache does not
//!   hold; caches are taken to be shared in proportion to use.
//! - *distance*: latency of the nodes that the program's memory lies in.
//! - *queueing*: each node's pressure, by the part of the memory in it. A node
//!   that is asked for more than it can carry slows everybody until the
//!   demand fits; below that it answers at once.
//! - *clock*: cores that share a package run slower the more of them are busy.
//!
//! Hardware threads of one core share it at once, not with delay: two threads
//! together do `smt` times what one does.

use crate::engine::Engine;
use crate::machine::Machine;

/// Time between two looks.
pub(crate) const PERIOD_NS: u64 = 1_000_000;
/// What one core can move at most; who moves less waits for that part of its
/// time at least.
const CORE_GBPS: f64 = 12.0;
/// Nobody only waits.
const STALL_MAX: f64 = 0.99;
/// A speed that changes by less than this, relative, is left.
const NOTICEABLE: f64 = 1e-3;
/// Pages are taken to be touched in the first so many nanoseconds of CPU time of a
/// repetition.
const TOUCHING_NS: f64 = 300e6;

/// The state of the memory system.
#[derive(Debug, Clone)]
pub(crate) struct Weather {
    looked_ns: u64,
    /// How much slower each node answers because it is overloaded; 1: not.
    pressure: Vec<f64>,
}

impl Weather {
    pub fn new(machine: &Machine) -> Self {
        Self {
            looked_ns: 0,
            pressure: vec![1.0; machine.nodes],
        }
    }
}

impl Engine {
    /// Sets every program's speed in every domain by who ran since the last
    /// look.
    pub(crate) fn look_at_memory(&mut self) {
        self.settle();
        let period_ns = (self.now_ns - self.weather.looked_ns).max(1) as f64;
        self.weather.looked_ns = self.now_ns;
        let here: Vec<usize> = (0..self.jobs.len())
            .filter(|&job| !self.jobs[job].gone)
            .collect();
        for &job in &here {
            self.touch(job);
        }
        let domains = self.machine.domains.len();
        let mut clocks = vec![1.0; domains];
        self.set_clocks(&here, period_ns, &mut clocks);
        let missing: Vec<f64> = (0..domains)
            .map(|d| self.missing(&here, d, period_ns))
            .collect();
        self.press(&here, &missing, period_ns);
        let mut changed = false;
        for &job in &here {
            let far = self.farness(job);
            for domain in 0..domains {
                let speed = clocks[domain] * self.speed(job, far[domain], missing[domain]);
                let old = &mut self.jobs[job].speed[domain];
                if (speed / *old - 1.0).abs() > NOTICEABLE {
                    *old = speed;
                    changed = true;
                }
            }
            self.jobs[job].busy_ns.fill(0.0);
            self.jobs[job].done_ns.fill(0.0);
        }
        if changed {
            for cpu in 0..self.cpus.len() {
                if self.cpus[cpu].current.is_some() {
                    self.set_rate(cpu);
                    self.arm(cpu);
                }
            }
        }
    }

    /// Where a program's memory comes to lie: where its threads run first, or
    /// its first thread.
    fn touch(&mut self, id: usize) {
        let job = &self.jobs[id];
        let ran_ns: f64 = job.busy_ns.iter().sum();
        if job.touched_ns >= TOUCHING_NS || ran_ns <= 0.0 {
            return;
        }
        let before = job.touched_ns;
        let one_node = job.script.memory.one_node;
        let home = (one_node && before == 0.0).then(|| self.emptiest_node(id));
        let job = &mut self.jobs[id];
        job.touched_ns += ran_ns;
        if let Some(node) = home {
            job.home.fill(0.0);
            job.home[node] = 1.0;
        }
        if one_node {
            return;
        }
        for home in &mut job.home {
            *home *= before / job.touched_ns;
        }
        for (domain, ns) in job.busy_ns.iter().enumerate() {
            job.home[self.machine.node_of[domain]] += ns / job.touched_ns;
        }
    }

    /// The node where the first thread of a program that begins would run: a
    /// new program goes where the fewest are.
    fn emptiest_node(&self, id: usize) -> usize {
        let mask = &self.jobs[id].mask;
        let mut programs = vec![0.0; self.machine.nodes];
        for (other, job) in self.jobs.iter().enumerate() {
            let counts = other != id && !job.gone && job.touched_ns > 0.0;
            for (sum, part) in programs.iter_mut().zip(&job.home) {
                *sum += if counts { *part } else { 0.0 };
            }
        }
        let domains = self.machine.domains.iter().zip(&self.machine.node_of);
        let may = domains.filter(|(cpus, _)| cpus.iter().any(|&cpu| mask.has(cpu)));
        may.map(|(_, &node)| node)
            .min_by(|&a, &b| programs[a].total_cmp(&programs[b]).then(a.cmp(&b)))
            .unwrap_or(0)
    }

    fn set_clocks(&self, here: &[usize], period_ns: f64, clocks: &mut [f64]) {
        let loss = self.machine.costs.turbo_loss;
        if loss <= 0.0 {
            return;
        }
        for package in &self.machine.topology.packages {
            let busy = |&domain: &usize| -> f64 {
                here.iter().map(|&job| self.jobs[job].busy_ns[domain]).sum()
            };
            let busy: f64 = package.domains.iter().map(busy).sum::<f64>() / period_ns;
            let others = (busy - 1.0).max(0.0) / self.machine.costs.turbo_cores.max(1.0);
            for &domain in &package.domains {
                clocks[domain] = 1.0 / (1.0 + loss * others.min(1.0));
            }
        }
    }

    /// The part of what runs in a domain that its cache does not hold.
    fn missing(&self, here: &[usize], domain: usize, period_ns: f64) -> f64 {
        let asked: f64 = here
            .iter()
            .map(|&job| {
                let job = &self.jobs[job];
                let threads = job.busy_ns[domain] / period_ns;
                let memory = &job.script.memory;
                memory.shared_bytes * threads.min(1.0) + memory.private_bytes * threads
            })
            .sum();
        let has = self.machine.llc_bytes[domain];
        if asked > has { 1.0 - has / asked } else { 0.0 }
    }

    /// Lets pressure on the nodes rise where more is asked than they carry,
    /// and fall where it is not.
    fn press(&mut self, here: &[usize], missing: &[f64], period_ns: f64) {
        let mut asked = vec![0.0; self.machine.nodes];
        for &job in here {
            let job = &self.jobs[job];
            let memory = &job.script.memory;
            let done = job.done_ns.iter().enumerate();
            for (domain, &ns) in done.filter(|&(_, &ns)| ns > 0.0) {
                let traffic = memory.gbps * (1.0 + memory.sensitivity * missing[domain]);
                let asks = traffic * ns / period_ns;
                for (node, part) in job.home.iter().enumerate() {
                    asked[node] += asks * part;
                }
            }
        }
        for (pressure, asked) in self.weather.pressure.iter_mut().zip(asked) {
            let used = asked / self.machine.costs.node_gbps;
            // What is asked falls as the pressure rises: half-way each time, so
            // that it settles.
            *pressure = (*pressure * used.sqrt()).max(1.0);
        }
    }

    /// Latency of a program's memory from each domain, relative to its own
    /// node's at rest.
    fn farness(&self, job: usize) -> Vec<f64> {
        let machine = &self.machine;
        let home = self.jobs[job].home.iter().zip(&self.weather.pressure);
        let slow: Vec<f64> = home.map(|(part, pressure)| part * pressure).collect();
        let all: f64 = slow.iter().sum();
        let mut packages = vec![0.0; machine.topology.packages.len()];
        for (node, slow) in slow.iter().enumerate() {
            packages[machine.package_of[node]] += slow;
        }
        let (near, far) = (machine.costs.near_factor, machine.costs.far_factor);
        let of = |(domain, &node): (usize, &usize)| {
            let own = slow[node];
            let package = packages[machine.topology.domains[domain].package];
            own + near * (package - own) + far * (all - package)
        };
        machine.node_of.iter().enumerate().map(of).collect()
    }

    fn speed(&self, job: usize, far: f64, missing: f64) -> f64 {
        let memory = &self.jobs[job].script.memory;
        let slow = (1.0 + memory.sensitivity * missing) * far;
        // Bytes do not move in no time.
        let stall = memory.stall.max(memory.gbps / CORE_GBPS).min(STALL_MAX);
        1.0 / (1.0 - stall + stall * slow)
    }

    /// Work a nanosecond of the thread that runs on a CPU.
    pub(crate) fn set_rate(&mut self, cpu: usize) {
        let Some(thread) = self.cpus[cpu].current else {
            return;
        };
        let place = &self.machine.places[cpu];
        let job = &self.jobs[self.threads[thread].program];
        let busy = |&&other: &&usize| self.cpus[other].current.is_some();
        let others = place.siblings.iter().filter(busy).count() as f64;
        let smt = (1.0 + (job.script.memory.smt - 1.0) * others.min(1.0)) / (1.0 + others);
        self.cpus[cpu].rate = place.capacity * job.speed[place.domain] * smt;
    }

    /// A CPU has somebody, or nobody, now: the other hardware threads of its
    /// core go slower or faster.
    pub(crate) fn siblings_speed(&mut self, cpu: usize) {
        for at in 0..self.machine.places[cpu].siblings.len() {
            let other = self.machine.places[cpu].siblings[at];
            if self.cpus[other].current.is_some() {
                self.account(other);
                self.set_rate(other);
                self.arm(other);
            }
        }
    }
}
