// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contention model: computes by how much programs slow one another down through caches, memory
//! controllers, clock rates and SMT.
//!
//! Caches and the queues of memory controllers fill over many requests. Speeds therefore depend on
//! the recent past, not on the threads that run at this instant. Every [`PERIOD_NS`], the model
//! computes for each program and LLC domain the mean number of running threads over the last
//! period. From these numbers, it sets the speed of each program in each domain, in time
//! proportional to the number of programs times that of domains and nodes:
//!
//! ```text
//! speed = clock / ((1 - stall) + stall * slow)
//! slow  = (1 + sensitivity * miss) * distance * queueing
//! ```
//!
//! - *stall* and *sensitivity*: properties of the program (`script::Memory`).
//! - *miss*: the part of the domain's active working set that the cache does not hold. The working
//!   set is the shared bytes of each program, counted once, and the private bytes of each running
//!   thread. Programs share a cache in proportion to their use.
//! - *distance*: latency of the NUMA nodes that hold the program's memory, relative to that of the
//!   local node.
//! - *queueing*: pressure on each node, weighted by the part of the program's memory on that node.
//!   The pressure on an overloaded node rises until the slowed programs demand no more than the
//!   node's bandwidth. A node that is not overloaded causes no delay.
//! - *clock*: clock rate of the package's cores, which falls with the number of busy cores.
//!
//! SMT has its effect at once, not per period: two threads on one core together do `smt` times the
//! work of one thread.
//!
//! Speeds are relative to an undisturbed core. A thread waits for memory for at most 99 % of its
//! time; the pressure on a node has no upper limit.

use crate::cpu::CpuState;
use crate::job::Job;
use crate::machine::Machine;
use crate::task_table::TaskTable;

/// Time between two updates of the model.
pub(crate) const PERIOD_NS: u64 = 1_000_000;
/// Upper limit of one core's memory bandwidth in GB/s. A thread waits for memory for at least the
/// fraction traffic / limit of its time.
const CORE_GBPS: f64 = 12.0;
/// Upper limit of the share of time that a thread waits for memory.
const STALL_MAX: f64 = 0.99;
/// A speed keeps its value if it would change by less than this fraction.
const SPEED_TOLERANCE: f64 = 1e-3;
/// CPU time at the start of a repetition in which the program is assumed to touch its memory for
/// the first time.
const FIRST_TOUCH_NS: f64 = 300e6;

/// The state of the memory system.
#[derive(Debug, Clone)]
pub(crate) struct MemoryContention {
    updated_ns: u64,
    /// Factor by which the overload of each node slows accesses to it; 1: the node is not
    /// overloaded.
    pressure: Vec<f64>,
}

impl MemoryContention {
    pub fn new(machine: &Machine) -> Self {
        Self {
            updated_ns: 0,
            pressure: vec![1.0; machine.nodes],
        }
    }
    /// Sets every program's speed in every domain from the threads that ran since the last update.
    /// All CPUs must have been charged up to now. Returns whether a speed has changed.
    pub fn update(&mut self, now_ns: u64, machine: &Machine, jobs: &mut [Job]) -> bool {
        let period_ns = (now_ns - self.updated_ns).max(1) as f64;
        self.updated_ns = now_ns;
        let present: Vec<usize> = (0..jobs.len()).filter(|&job| !jobs[job].gone).collect();
        for &job in &present {
            place_memory(machine, jobs, job);
        }
        let domains = machine.domains.len();
        let clocks = clocks(machine, jobs, &present, period_ns);
        let missing: Vec<f64> = (0..domains)
            .map(|d| missing(machine, jobs, &present, d, period_ns))
            .collect();
        self.update_pressure(machine, jobs, &present, &missing, period_ns);
        let mut changed = false;
        for &job in &present {
            let job = &mut jobs[job];
            let far = self.numa_factor(machine, job);
            for domain in 0..domains {
                let speed = clocks[domain] * speed(job, far[domain], missing[domain]);
                let old = &mut job.speed[domain];
                if (speed / *old - 1.0).abs() > SPEED_TOLERANCE {
                    *old = speed;
                    changed = true;
                }
            }
            job.busy_ns.fill(0.0);
            job.done_ns.fill(0.0);
        }
        changed
    }

    /// Raises the pressure on nodes with a demand above their bandwidth, and lowers the pressure on
    /// other nodes.
    fn update_pressure(
        &mut self,
        machine: &Machine,
        jobs: &[Job],
        present: &[usize],
        missing: &[f64],
        period_ns: f64,
    ) {
        let mut demand_gbps = vec![0.0; machine.nodes];
        for &job in present {
            let job = &jobs[job];
            let memory = &job.script.memory;
            let done = job.done_ns.iter().enumerate();
            for (domain, &ns) in done.filter(|&(_, &ns)| ns > 0.0) {
                let traffic = memory.gbps * (1.0 + memory.sensitivity * missing[domain]);
                let job_gbps = traffic * ns / period_ns;
                for (node, part) in job.home.iter().enumerate() {
                    demand_gbps[node] += job_gbps * part;
                }
            }
        }
        for (pressure, demand_gbps) in self.pressure.iter_mut().zip(demand_gbps) {
            let used = demand_gbps / machine.costs.node_gbps;
            // The demand falls as the pressure rises. The square root makes the step smaller, so
            // that the pressure converges.
            *pressure = (*pressure * used.sqrt()).max(1.0);
        }
    }

    /// Returns the memory latency of a program's threads in each domain, relative to the latency of
    /// an idle local node.
    fn numa_factor(&self, machine: &Machine, job: &Job) -> Vec<f64> {
        let home = job.home.iter().zip(&self.pressure);
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
}

/// Assigns a program's memory to the nodes on which its threads run while they touch it for the
/// first time; with `one_node`, to a single node.
fn place_memory(machine: &Machine, jobs: &mut [Job], id: usize) {
    let job = &jobs[id];
    let ran_ns: f64 = job.busy_ns.iter().sum();
    if job.touched_ns >= FIRST_TOUCH_NS || ran_ns <= 0.0 {
        return;
    }
    let before = job.touched_ns;
    let one_node = job.script.memory.one_node;
    let home = (one_node && before == 0.0).then(|| emptiest_node(machine, jobs, id));
    let job = &mut jobs[id];
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
        job.home[machine.node_of[domain]] += ns / job.touched_ns;
    }
}

/// Returns the node with the memory of the fewest programs, among the nodes that a new program may
/// use.
fn emptiest_node(machine: &Machine, jobs: &[Job], id: usize) -> usize {
    let mask = &jobs[id].mask;
    let mut programs = vec![0.0; machine.nodes];
    for (other, job) in jobs.iter().enumerate() {
        let counts = other != id && !job.gone && job.touched_ns > 0.0;
        for (sum, part) in programs.iter_mut().zip(&job.home) {
            *sum += if counts { *part } else { 0.0 };
        }
    }
    let domains = machine.domains.iter().zip(&machine.node_of);
    let may = domains.filter(|(cpus, _)| cpus.iter().any(|&cpu| mask.has(cpu)));
    may.map(|(_, &node)| node)
        .min_by(|&a, &b| programs[a].total_cmp(&programs[b]).then(a.cmp(&b)))
        .unwrap_or(0)
}

/// Returns the clock rate of each domain, relative to the clock rate of a package with one busy
/// core.
fn clocks(machine: &Machine, jobs: &[Job], present: &[usize], period_ns: f64) -> Vec<f64> {
    let mut clocks = vec![1.0; machine.domains.len()];
    let loss = machine.costs.turbo_loss;
    if loss <= 0.0 {
        return clocks;
    }
    for package in &machine.topology.packages {
        let busy =
            |&domain: &usize| -> f64 { present.iter().map(|&job| jobs[job].busy_ns[domain]).sum() };
        let busy: f64 = package.domains.iter().map(busy).sum::<f64>() / period_ns;
        let others = (busy - 1.0).max(0.0) / machine.costs.turbo_cores.max(1.0);
        for &domain in &package.domains {
            clocks[domain] = 1.0 / (1.0 + loss * others.min(1.0));
        }
    }
    clocks
}

/// Returns the fraction of a domain's active working set that its cache does not hold.
fn missing(
    machine: &Machine,
    jobs: &[Job],
    present: &[usize],
    domain: usize,
    period_ns: f64,
) -> f64 {
    let working_set: f64 = present
        .iter()
        .map(|&job| {
            let job = &jobs[job];
            let threads = job.busy_ns[domain] / period_ns;
            let memory = &job.script.memory;
            memory.shared_bytes * threads.min(1.0) + memory.private_bytes * threads
        })
        .sum();
    let has = machine.llc_bytes[domain];
    if working_set > has {
        1.0 - has / working_set
    } else {
        0.0
    }
}

fn speed(job: &Job, far: f64, missing: f64) -> f64 {
    let memory = &job.script.memory;
    let slow = (1.0 + memory.sensitivity * missing) * far;
    // The traffic of a thread implies a minimum of stall time.
    let stall = memory.stall.max(memory.gbps / CORE_GBPS).min(STALL_MAX);
    1.0 / (1.0 - stall + stall * slow)
}

/// Returns the rate of the running thread of a CPU, in work per nanosecond; `None` if the CPU is
/// idle.
pub(crate) fn rate(
    machine: &Machine,
    cpus: &[CpuState],
    tasks: &TaskTable,
    cpu: usize,
) -> Option<f64> {
    let thread = cpus[cpu].current?;
    let place = &machine.places[cpu];
    let job = tasks.job_of(thread);
    let busy = |&&other: &&usize| cpus[other].current.is_some();
    let others = place.siblings.iter().filter(busy).count() as f64;
    let smt = (1.0 + (job.script.memory.smt - 1.0) * others.min(1.0)) / (1.0 + others);
    Some(place.capacity * job.speed[place.domain] * smt)
}
